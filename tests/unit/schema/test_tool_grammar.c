/* Calls that a grammar makes a model write, format by format: the scanner reads them as it reads the model's
 * own. */
#include "chat/tool_list.h"
#include "grammar/matcher.h"
#include "schema/tool_grammar.h"
#include "toolcall/toolcall_writing.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"
    "\"word\":{\"type\":\"string\",\"maxLength\":5},\"unit\":{\"$ref\":\"#/$defs/u\"}},\"required\":[\"n\"],"
    "\"additionalProperties\":false,\"$defs\":{\"u\":{\"enum\":[\"C\",\"F\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"list\"}}]";

static struct arena arena;
static json_t *list;
static struct toolcall_tools tools;

static void open_tools(const char *text)
{
    list = json_loads(text, 0, NULL);
    cr_assert(list);
    cr_assert_eq(tool_list_read(&arena, list, &tools), 0);
}

static void close_tools(void)
{
    json_decref(list);
    arena_close(&arena);
}

static bool none_is_control(const void *context, const char *mark)
{
    (void)context;
    (void)mark;
    return false;
}

static struct tool_grammar_options options_of(const char *format)
{
    return (struct tool_grammar_options){
        .format = toolcall_format_find(format), .list = list, .tools = &tools, .is_control = none_is_control};
}

/* Bytes of a text that the grammar takes; -1 when all are taken and the text may not end there. */
static long taken(const struct tool_grammar_options *o, const char *text)
{
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    struct error err = {0};
    cr_assert_eq(tool_grammar_compile(&g, o, &err), 0, "%s: %s", toolcall_format_name(o->format), err.text);
    cr_assert_eq(matcher_open(&m, g), 0);
    size_t n = matcher_bytes(m, text, strlen(text));
    bool whole = n == strlen(text) && !matcher_can_end(m);
    matcher_close(m);
    grammar_unref(g);
    return whole ? -1 : (long)n;
}

static void expect_taken(const struct tool_grammar_options *o, const char *text)
{
    cr_assert_eq(taken(o, text), (long)strlen(text), "%s: %ld of %s", toolcall_format_name(o->format),
                 taken(o, text), text);
}

static void expect_refused(const struct tool_grammar_options *o, const char *text)
{
    cr_assert_neq(taken(o, text), (long)strlen(text), "%s: %s", toolcall_format_name(o->format), text);
}

/* --- what is written is what is read --- */

struct heard {
    char names[64], arguments[256];
};

static void hear(void *user, const struct toolcall_event *e)
{
    struct heard *h = user;
    if (e->kind == TOOLCALL_BEGIN)
        strncat(h->names, e->s, e->n);
    if (e->kind == TOOLCALL_ARGUMENTS)
        strncat(h->arguments, e->s, e->n);
}

static void expect_heard(const struct tool_grammar_options *o, const char *text)
{
    struct heard h = {0};
    struct toolcall_options options = {.format = o->format, .tools = &tools, .emit = hear, .user = &h};
    struct toolcall_scanner *s = toolcall_open(&arena, &options);
    cr_assert(s && toolcall_feed(s, text, strlen(text)) == 0 && toolcall_end(s, false) == 0);
    cr_assert_str_eq(h.names, "add", "%s: %s", toolcall_format_name(o->format), text);
    json_t *got = json_loads(h.arguments, 0, NULL),
           *want = json_loads("{\"n\": 3, \"word\": \"a<b\"}", 0, NULL);
    cr_assert(json_equal(got, want), "%s: %s", toolcall_format_name(o->format), h.arguments);
    json_decref(got);
    json_decref(want);
}

/* One call as the format writes it: from the data that the grammar is made of. */
static void write_call(const struct toolcall_writing *w, const char *n, char out[512])
{
    const char *const names[] = {"n", "word"}, *const values[] = {n, "a<b"},
                      *const texts[] = {"false", "true"};
    strcpy(out, w->begin);
    for (const char *s = w->call; *s; s++) {
        if (*s == WRITING_NAME)
            strcat(out, "add");
        else if (*s == WRITING_ID)
            strcat(out, "Abc012345");
        else if (*s == WRITING_VALUE && !w->param)
            sprintf(out + strlen(out), "{\"n\": %s, \"word\": \"a<b\"}", n);
        else if (*s != WRITING_VALUE)
            strncat(out, s, 1);
        for (size_t i = 0; *s == WRITING_VALUE && w->param && i < 2; i++)
            for (const char *p = w->param; *p; p++)
                if ((unsigned char)*p <= WRITING_TEXT)
                    strcat(out, *p == WRITING_NAME ? names[i] : *p == WRITING_VALUE ? values[i] : texts[i]);
                else
                    strncat(out, p, 1);
    }
    strcat(out, w->end);
}

Test(tool_grammar, a_call_of_each_format_is_taken_and_read_back)
{
    unsigned n_written = 0;
    open_tools(tools_text);
    for (size_t i = 0; i < toolcall_n_formats(); i++) {
        const struct toolcall_format *f = toolcall_format_at(i);
        const struct toolcall_writing *w = toolcall_writing_of(f);
        struct tool_grammar_options o = options_of(toolcall_format_name(f));
        char text[512];
        if (!w)
            continue;
        n_written++;
        write_call(w, "3", text);
        expect_taken(&o, text);
        expect_heard(&o, text);
        write_call(w, "10", text);
        expect_refused(&o, text);
        expect_refused(&o, "I would rather talk.");
    }
    cr_assert_eq(n_written, 18);
    close_tools();
}

/* --- choices --- */

#define CALL(name, arguments)                                                                                \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

Test(tool_grammar, a_schema_holds_with_its_own_references)
{
    open_tools(tools_text);
    struct tool_grammar_options o = options_of("hermes");
    expect_taken(&o, CALL("add", "{\"n\": 1, \"unit\": \"C\"}"));
    expect_taken(&o, CALL("list", "{\"any\": [1, null]}"));
    expect_refused(&o, CALL("add", "{\"n\": 1, \"unit\": \"K\"}"));
    expect_refused(&o, CALL("add", "{\"unit\": \"C\"}"));
    expect_refused(&o, CALL("list", "7"));
    expect_refused(&o, CALL("other", "{}"));
    close_tools();
}

Test(tool_grammar, only_the_chosen_functions_are_called_and_only_once_when_one_is_asked)
{
    open_tools(tools_text);
    struct tool_grammar_options o = options_of("hermes");
    json_t *only = json_pack("[s]", "list");
    expect_taken(&o, CALL("list", "{}") "\n" CALL("add", "{\"n\": 2}"));
    o.one = true;
    expect_refused(&o, CALL("list", "{}") "\n" CALL("add", "{\"n\": 2}"));
    o.only = only;
    expect_taken(&o, CALL("list", "{}"));
    expect_refused(&o, CALL("add", "{\"n\": 2}"));
    json_decref(only);
    close_tools();
}

Test(tool_grammar, reasoning_comes_first_where_the_prompt_lets_it)
{
    open_tools(tools_text);
    struct tool_grammar_options o = options_of("hermes");
    expect_refused(&o, "<think>Hm.</think>" CALL("list", "{}"));
    o.reasoning = REASONING_POSSIBLE;
    expect_taken(&o, "<think>Hm. </thin</think>\n\n" CALL("list", "{}"));
    expect_taken(&o, CALL("list", "{}"));
    o.reasoning = REASONING_OPEN;
    expect_taken(&o, "Hm.</think>\n" CALL("list", "{}"));
    expect_refused(&o, "Hm.");
    close_tools();
}

Test(tool_grammar, a_schemas_text_stands_behind_the_reasoning)
{
    struct tool_grammar_options o = {
        .format = toolcall_format_find("hermes"), .reasoning = REASONING_OPEN, .is_control = none_is_control};
    json_t *schema = json_pack("{s:[s,s], s:{}}", "enum", "a", "b", "$defs");
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    cr_assert_eq(tool_grammar_of_schema(&g, &o, schema, NULL), 0);
    cr_assert_eq(matcher_open(&m, g), 0);
    const char *text = "\"a\"? Or b.</think>\n\n\"b\"", *bad = "\"b\"";
    cr_assert_eq(matcher_bytes(m, text, strlen(text)), strlen(text));
    cr_assert(matcher_can_end(m));
    cr_assert_eq(matcher_bytes(m, bad, strlen(bad)), 0);
    matcher_close(m);
    grammar_unref(g);
    json_decref(schema);
}

Test(tool_grammar, a_tagged_text_ends_at_its_tag_and_keeps_its_length)
{
    open_tools(tools_text);
    struct tool_grammar_options o = options_of("qwen3-coder");
#define WORD(w)                                                                                              \
    "<tool_call>\n<function=add>\n<parameter=n>\n3\n</parameter>\n<parameter=word>\n" w                      \
    "\n</parameter>\n</function>\n</tool_call>"
    expect_taken(&o, WORD("</par"));
    expect_taken(&o, WORD(""));
    expect_refused(&o, WORD("longer"));
    close_tools();
}

/* --- control tokens --- */

static bool tool_calls_is_control(const void *context, const char *mark)
{
    (void)context;
    return !strcmp(mark, "[TOOL_CALLS]");
}

Test(tool_grammar, a_control_token_stands_for_its_mark_and_in_no_string)
{
    open_tools(tools_text);
    struct tool_grammar_options o = options_of("mistral-nemo");
    o.is_control = tool_calls_is_control;
    expect_taken(&o, "\xff[TOOL_CALLS][{\"name\": \"list\", \"arguments\": {}}]");
    expect_taken(&o, "\xff[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"n\": 1, \"word\": \"[TOO\"}}]");
    expect_refused(&o, "[TOOL_CALLS][{\"name\": \"list\", \"arguments\": {}}]");
    expect_refused(&o, "\xff[TOOL_CALLS][{\"name\": \"list\", \"arguments\": {\"a\":\"\xff[TOOL_CALLS]\"}}]");
    close_tools();
}

/* --- refusals --- */

static int refusal(const char *format, const char *text, struct error *err)
{
    struct grammar *g = NULL;
    open_tools(text);
    struct tool_grammar_options o = options_of(format);
    int rc = tool_grammar_compile(&g, &o, err);
    grammar_unref(g);
    close_tools();
    arena = (struct arena){0};
    return rc;
}

#define TOOL(name, more, schema)                                                                             \
    "[{\"type\":\"function\",\"function\":{\"name\":\"" name "\"," more "\"parameters\":" schema "}}]"
#define INEXACT                                                                                              \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":"         \
    "{\"type\":\"object\"}}}}"

Test(tool_grammar, a_schema_that_cannot_be_held_is_any_object_unless_the_tool_is_strict)
{
    struct error err = {0};
    cr_assert_eq(refusal("hermes", TOOL("f", "", INEXACT), &err), 0, "%s", err.text);
    cr_assert_eq(refusal("hermes", TOOL("f", "\"strict\":true,", INEXACT), &err), -ENOTSUP);
    cr_assert(strstr(err.text, "uniqueItems"), "%s", err.text);
}

#define TEXT(more) "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"," more "}}}"

Test(tool_grammar, a_text_between_tags_is_held_exactly_where_the_tool_is_strict)
{
    struct error err = {0};
    cr_assert_eq(refusal("qwen3-coder", TOOL("f", "", TEXT("\"pattern\":\"^x\"")), &err), 0, "%s", err.text);
    cr_assert_eq(refusal("qwen3-coder", TOOL("f", "\"strict\":true,", TEXT("\"maxLength\":9")), &err), 0,
                 "%s", err.text);
    cr_assert_eq(refusal("qwen3-coder", TOOL("f", "\"strict\":true,", TEXT("\"pattern\":\"^x\"")), &err),
                 -ENOTSUP);
    cr_assert_str_eq(err.text, "pattern of the parameter a cannot be enforced in the format qwen3-coder");
    err = (struct error){0};
    cr_assert_eq(refusal("qwen3-coder", TOOL("f", "\"strict\":true,", TEXT("\"maxLength\":900")), &err),
                 -ENOTSUP);
    cr_assert_eq(refusal("hermes", TOOL("f", "\"strict\":true,", TEXT("\"pattern\":\"^x\"")), &err), 0);
    err = (struct error){0};
    cr_assert_eq(
        refusal("qwen3-coder",
                TOOL("f", "", "{\"type\":\"object\",\"properties\":{\"a>b\":{\"type\":\"integer\"}}}"), &err),
        -EINVAL);
    cr_assert(strstr(err.text, "the name a>b cannot be written"), "%s", err.text);
}

/* Functions f0, f1, ... whose schema takes work: a text of its member must match one pattern of some. */
static void open_costly_tools(int n_tools)
{
    json_t *all = json_array();
    for (int i = 0; i < n_tools; i++) {
        json_t *any = json_array();
        char name[16];
        for (int k = 0; k < 12; k++) {
            char pattern[32];
            snprintf(pattern, sizeof pattern, "^%c(a|b)*a(a|b){9}$", 'c' + k);
            json_array_append_new(any, json_pack("{s:s}", "pattern", pattern));
        }
        snprintf(name, sizeof name, "f%d", i);
        json_array_append_new(all, json_pack("{s:s,s:{s:s,s:{s:s,s:{s:{s:o}}}}}", "type", "function",
                                             "function", "name", name, "parameters", "type", "object",
                                             "properties", "x", "anyOf", any));
    }
    char *text = json_dumps(all, 0);
    open_tools(text);
    free(text);
    json_decref(all);
}

/* All schemas together take one compilation's work: those behind it are any object. */
Test(tool_grammar, many_costly_schemas_share_the_work_of_one)
{
    open_costly_tools(2);
    struct tool_grammar_options o = options_of("hermes");
    expect_refused(&o, CALL("f1", "{\"x\": \"z\"}"));
    close_tools();
    arena = (struct arena){0};
    open_costly_tools(100);
    o = options_of("hermes");
    expect_refused(&o, CALL("f1", "{\"x\": \"z\"}"));
    expect_taken(&o, CALL("f99", "{\"x\": \"z\"}"));
    close_tools();
}

Test(tool_grammar, what_cannot_be_written_is_refused_by_name)
{
    struct error err = {0};
    cr_assert_eq(refusal("hermes", TOOL("a\\\"b", "", "{}"), &err), -EINVAL);
    cr_assert(strstr(err.text, "cannot be written in the format hermes"), "%s", err.text);
    err = (struct error){0};
    cr_assert_eq(refusal("gemma4", TOOL("f", "", "{}"), &err), -ENOTSUP);
    cr_assert(strstr(err.text, "gemma4"), "%s", err.text);
}
