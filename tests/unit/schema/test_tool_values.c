/* Values of arguments that hold the marks of their format: the grammar lets a model write those that the
 * scanner reads back, and no others. */
#include "tool_case.h"

/* The call of `add` with these arguments, JSON, in the order given. */
static void write_add(const struct toolcall_writing *w, json_t *arguments, char *out)
{
    char *all = json_dumps(arguments, 0);
    const char *key;
    json_t *value;
    out = stpcpy(out, w->begin);
    for (const char *s = w->call; *s; s++) {
        if (*s == WRITING_VALUE && w->param) {
            json_object_foreach(arguments, key, value)
            {
                char *one = json_dumps(value, JSON_ENCODE_ANY);
                bool text = json_is_string(value);
                for (const char *p = w->param; *p; p++)
                    if (*p == WRITING_NAME)
                        out = stpcpy(out, key);
                    else if (*p == WRITING_VALUE)
                        out = stpcpy(out, text ? json_string_value(value) : one);
                    else if (*p == WRITING_TEXT)
                        out = stpcpy(out, text ? "true" : "false");
                    else
                        *out++ = *p;
                free(one);
            }
        } else if ((unsigned char)*s <= WRITING_TEXT)
            out = stpcpy(out, *s == WRITING_NAME ? "add" : *s == WRITING_ID ? "Abc012345" : all);
        else
            *out++ = *s;
    }
    strcpy(out, w->end);
    free(all);
}

struct whole_call {
    unsigned n;
    char arguments[2048];
};

static void hear_whole(void *user, const struct toolcall_event *e)
{
    struct whole_call *h = user;
    h->n += e->kind == TOOLCALL_BEGIN;
    if (e->kind == TOOLCALL_ARGUMENTS)
        strncat(h->arguments, e->s, e->n);
}

/* The grammar takes the call with the text, and the scanner reads it back; or both do not. */
static void expect_written(const struct tool_grammar_options *o, const char *text, bool written)
{
    const char *name = toolcall_format_name(o->format);
    struct whole_call heard = {0};
    struct toolcall_options options = {
        .format = o->format, .tools = &tools, .emit = hear_whole, .user = &heard};
    char call[2048];
    json_t *arguments =
        json_pack("{s:i, s:s, s:[s, s], s:s}", "n", 3, "word", text, "more", text, "b", "unit", "C");
    if (!written) /* in a string of JSON it is a word */
        json_object_set_new(arguments, "more", json_pack("[]"));
    write_add(toolcall_writing_of(o->format), arguments, call);
    struct toolcall_scanner *s = toolcall_open(&arena, &options);
    cr_assert(s && toolcall_feed(s, call, strlen(call)) == 0 && toolcall_end(s, false) == 0);
    json_t *got = json_loads(heard.arguments, 0, NULL);
    cr_expect_eq(heard.n == 1 && json_equal(got, arguments), written, "%s hears %s in %s", name,
                 heard.arguments, call);
    cr_expect_eq(taken(o, call) == (long)strlen(call), written, "%s takes %ld of %s", name, taken(o, call),
                 call);
    json_decref(got);
    json_decref(arguments);
}

Test(tool_values, marks_in_a_value_are_words)
{
    open_tools(OPEN_TOOLS);
    for (size_t i = 0; i < toolcall_n_formats(); i++) {
        const struct toolcall_format *f = toolcall_format_at(i);
        struct tool_grammar_options o = options_of(toolcall_format_name(f));
        const char *mark;
        for (size_t k = 0; toolcall_writing_of(f) && (mark = toolcall_format_mark(f, k)); k++) {
            char text[128];
            snprintf(text, sizeof text, "a%s b%s", mark, mark);
            expect_written(&o, text, true);
        }
    }
    close_tools();
}

Test(tool_values, what_the_scanner_takes_for_the_end_of_a_text_is_in_no_text)
{
    static const char *const formats[] = {"qwen3-coder", "qwen3.5", "glm-4.6",
                                          "glm-4.7",     "minimax", "deepseek-v3.2"};
    open_tools(OPEN_TOOLS);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct tool_grammar_options o = options_of(formats[i]);
        struct toolcall_end_mark end;
        for (size_t k = 0; toolcall_value_end(o.format, k, &end); k++) {
            char text[256];
            snprintf(text, sizeof text, "a%s%s%sb", end.before, end.mark, end.then ? end.then : "");
            expect_written(&o, text, false);
            snprintf(text, sizeof text, "a%s%s \n%sb", end.before, end.mark, end.then ? end.then : "");
            expect_written(&o, text, false);
            snprintf(text, sizeof text, "a%sb%sc%s", end.before, end.mark, end.then ? end.then : "");
            expect_written(&o, text, true);
        }
    }
    close_tools();
}

#define LONG                                                                                                 \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":255,\"maxLength\":256}},\"required\":[\"a\"]}" \
    "}}]"

/* The largest lengths that are held, in the format with the longest tags. */
Test(tool_values, a_text_of_bounded_length_has_no_closing_tag)
{
    static const char begin[] = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
                                "<｜DSML｜parameter name=\"a\" string=\"true\">",
                      end[] = "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
    open_tools(LONG);
    struct tool_grammar_options o = options_of("deepseek-v3.2");
    for (int n = 0; n < 2; n++) {
        char text[1024];
        snprintf(text, sizeof text, "%s%0*d%s%s", begin, 238, 0,
                 n == 0 ? "</｜DSML｜invoke-_--" : "</｜DSML｜invoke>---", end);
        if (n == 0)
            expect_taken(&o, text);
        else
            expect_refused(&o, text);
    }
    close_tools();
}

#define WORDS(more, word)                                                                                    \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\"," more "\"parameters\":{\"type\":\"object\","      \
    "\"properties\":{\"a\":{\"enum\":[\"x\",\"" word "\"]}},\"required\":[\"a\"]}}}]"
#define ONE(word)                                                                                            \
    "<tool_call>\n<function=f>\n<parameter=a>\n" word "\n</parameter>\n</function>\n</tool_call>"

Test(tool_values, a_listed_value_that_cannot_be_written_in_tags_is_left_out_or_refused)
{
    struct error err = {0};
    open_tools(WORDS("", "</parameter></function>"));
    struct tool_grammar_options o = options_of("qwen3-coder");
    expect_taken(&o, ONE("x"));
    expect_refused(&o, ONE("</parameter></function>"));
    close_tools();
    arena = (struct arena){0};
    cr_assert_eq(refusal("qwen3-coder", WORDS("\"strict\":true,", "</parameter></function>"), &err),
                 -ENOTSUP);
    cr_assert_str_eq(err.text,
                     "a value of the parameter a holds tags that would end it in the format qwen3-coder");
    cr_assert_eq(refusal("qwen3-coder", WORDS("\"strict\":true,", "</parameter>y"), &err), 0);
    cr_assert_eq(refusal("hermes", WORDS("\"strict\":true,", "</parameter></function>"), &err), 0);
}
