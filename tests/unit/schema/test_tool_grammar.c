/* Calls that a grammar makes a model write, format by format: the scanner reads them as it reads the model's
 * own. */
#include "tool_case.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},"
    "\"word\":{\"type\":\"string\",\"maxLength\":5},\"unit\":{\"$ref\":\"#/$defs/u\"}},\"required\":[\"n\"],"
    "\"additionalProperties\":false,\"$defs\":{\"u\":{\"enum\":[\"C\",\"F\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"list\"}}]";

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

Test(tool_grammar, a_schemas_text_stands_in_harmonys_final_channel)
{
    struct tool_grammar_options o = {.format = toolcall_format_find("harmony"),
                                     .is_control = none_is_control};
    static const struct {
        enum tool_grammar_reasoning reasoning;
        const char *text;
        bool whole;
    } cases[] = {
        {REASONING_NONE, "<|channel|>final<|message|>1", true},
        {REASONING_NONE, "1", false},
        {REASONING_POSSIBLE, "<|channel|>final<|message|>1", true},
        {REASONING_POSSIBLE,
         "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>1", true},
        {REASONING_POSSIBLE, "<|channel|>analysis<|message|>so<|call|><|end|><|start|>assistant", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *schema = json_pack("{s:i}", "const", 1);
        struct grammar *g = NULL;
        struct matcher *m = NULL;
        o.reasoning = cases[i].reasoning;
        cr_assert_eq(tool_grammar_of_schema(&g, &o, schema, NULL), 0);
        cr_assert_eq(matcher_open(&m, g), 0);
        size_t n = matcher_bytes(m, cases[i].text, strlen(cases[i].text));
        cr_assert_eq(n == strlen(cases[i].text), cases[i].whole, "%s", cases[i].text);
        matcher_close(m);
        grammar_unref(g);
        json_decref(schema);
    }
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

static void expect_arguments(const char *schema, const char *good, const char *bad)
{
    char text[512], call[256];
    struct tool_grammar_options o;
    snprintf(text, sizeof text, TOOL("f", "", "%s"), schema);
    open_tools(text);
    o = options_of("hermes");
    snprintf(call, sizeof call, CALL("f", "%s"), good);
    expect_taken(&o, call);
    snprintf(call, sizeof call, CALL("f", "%s"), bad);
    expect_refused(&o, call);
    close_tools();
    arena = (struct arena){0};
}

/* A small model would invent others; one that is not named is required all the same. */
Test(tool_grammar, only_parameters_that_the_schema_names_are_written)
{
    expect_arguments("{\"properties\":{\"a\":{}}}", "{\"a\": 1}", "{\"b\": 1}");
    expect_arguments("{\"type\":\"object\",\"properties\":{}}", "{}", "{\"b\": 1}");
    expect_arguments("{}", "{\"b\": 1}", "1");
    expect_arguments("{\"type\":\"object\"}", "{\"b\": 1}", "1");
    expect_arguments("{\"properties\":{},\"additionalProperties\":{\"type\":\"null\"}}", "{\"b\": null}",
                     "{\"b\": 1}");
    expect_arguments("{\"properties\":{},\"patternProperties\":{\"^b\":{}}}", "{\"b\": 1}", "1");
    expect_arguments("{\"properties\":{},\"required\":[\"b\"]}", "{\"b\": 1}", "{}");
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

/* ---- calls that may come ---- */

static struct tool_grammar_options lazy_of(const char *format)
{
    struct tool_grammar_options o = options_of(format);
    o.lazy = true;
    return o;
}

Test(tool_grammar, a_lazy_text_is_free_up_to_a_call_and_behind_it)
{
    open_tools(tools_text);
    struct tool_grammar_options o = lazy_of("hermes");
    expect_taken(&o, "");
    expect_taken(&o, "I add <tool and <b>é</b> {\"name\": 1}\n");
    expect_taken(
        &o,
        "<think>so</think>Well: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\":3}}\n</tool_call>");
    expect_taken(&o, "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>\nand "
                     "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\":9}}\n</tool_call> done");
    expect_refused(&o, "Well: <tool_call>\n{\"name\": \"add\", \"arguments\": {\"n\":10}}\n</tool_call>");
    expect_refused(&o, "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>");
    expect_refused(&o, "<tool_call>add(3)</tool_call>");
    cr_assert_eq(taken(&o, "a<tool_call>\n{\"name\": \"add\""), -1, "a call that has begun must end");
    o.one = true;
    expect_taken(&o, "a<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>");
    expect_refused(&o, "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>\n"
                       "<tool_call>\n{\"name\": \"list\", \"arguments\": {}}\n</tool_call>");
    close_tools();
}

Test(tool_grammar, a_lazy_call_opens_in_none_of_the_ways_that_the_grammar_does_not_hold)
{
    static const struct {
        const char *format, *text, *not ;
    } cases[] = {
        {"qwen3-coder", "a < b <tool_call>\n<function=list>\n</function>\n</tool_call>",
         "<function=list>\n</function>"},
        {"llama3-json", "{\"answer\": {\"name\": \"x\"}}", "{ \"name\" : \"add\", \"parameters\": {}}"},
        {"llama3-json", "{\"name\": \"list\", \"parameters\": {}}", "<|python_tag|>add.call(n=1)"},
        {"mistral-nemo", "[1] [TOOL_CALLS][{\"name\": \"list\", \"arguments\": {}}]",
         "[TOOL_CALLS]list[ARGS]{}"},
        {"harmony",
         "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.list <|constrain|>json<|message|>{}",
         "<|start|>assistant to=functions.list<|message|>{}"},
        {"deepseek-v3.1",
         "so <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>list<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         "<｜tool▁call▁begin｜>list<｜tool▁sep｜>{}"},
    };
    open_tools(tools_text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tool_grammar_options o = lazy_of(cases[i].format);
        expect_taken(&o, cases[i].text);
        expect_refused(&o, cases[i].not );
    }
    close_tools();
}

static bool all_are_control(const void *context, const char *mark)
{
    (void)context;
    return *mark == '<';
}

Test(tool_grammar, in_a_lazy_text_control_tokens_that_open_no_call_are_free)
{
    open_tools(tools_text);
    struct tool_grammar_options o = lazy_of("hermes");
    o.is_control = all_are_control;
    expect_taken(&o, "\xff<think>so <tool_call> is a word\xff</think>\n\xff<tool_call>\n{\"name\": \"list\", "
                     "\"arguments\": {}}\n\xff</tool_call>");
    expect_refused(&o, "a\xff<tool_call>b");
    expect_refused(&o, "a\xff<other>");
    close_tools();
}

/* ---- what the scanner hears in lazy texts ---- */

struct calls {
    unsigned n, n_bad;
    char name[64], arguments[512];
};

static bool is_allowed(const char *name, const char *arguments)
{
    json_t *a = json_loads(arguments, 0, NULL);
    json_t *n = json_object_get(a, "n"), *word = json_object_get(a, "word"),
           *unit = json_object_get(a, "unit");
    bool ok = json_is_object(a), adds = !strcmp(name, "add"),
         more = json_is_array(json_object_get(a, "more"));
    if (adds) {
        size_t known = 1 + (word != NULL) + (unit != NULL) + more;
        ok &= tools.list[0].n_params == 3 || (word && unit && more);
        ok &= json_is_integer(n) && json_integer_value(n) >= 1 && json_integer_value(n) <= 9;
        ok &= json_object_size(a) == known && (!word || json_is_string(word));
        ok &= !unit || (json_is_string(unit) && strchr("CF", *json_string_value(unit)));
    }
    json_decref(a);
    return ok && (adds || !strcmp(name, "list"));
}

static void hear_call(void *user, const struct toolcall_event *e)
{
    struct calls *c = user;
    size_t used = strlen(c->arguments);
    if (e->kind == TOOLCALL_BEGIN) {
        snprintf(c->name, sizeof c->name, "%.*s", (int)e->n, e->s);
        *c->arguments = 0;
    }
    if (e->kind == TOOLCALL_ARGUMENTS)
        snprintf(c->arguments + used, sizeof c->arguments - used, "%.*s", (int)e->n, e->s);
    if (e->kind == TOOLCALL_END) {
        c->n++;
        c->n_bad += !is_allowed(c->name, c->arguments);
    }
}

/* The scanner sees the bytes of a control token as those of any text. */
static struct calls calls_of(const char *format, const char *text)
{
    struct calls c = {0};
    struct arena own = {0};
    struct toolcall_options options = {
        .format = toolcall_format_find(format), .tools = &tools, .emit = hear_call, .user = &c};
    struct toolcall_scanner *s = toolcall_open(&own, &options);
    cr_assert(s);
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, TOOL_GRAMMAR_CONTROL);
        cr_assert_eq(toolcall_feed(s, p, n), 0);
        p += n + (p[n] != 0);
    }
    cr_assert_eq(toolcall_end(s, false), 0);
    arena_close(&own);
    return c;
}

#define BAD "\"parameters\": {\"n\": 99}}"

Test(tool_grammar, no_lazy_text_is_a_call_with_other_arguments)
{
    static const struct {
        const char *format, *text;
        bool control;
    } cases[] = {
        {"llama3-json", "[{\"name\": \"add\", " BAD "]", false},
        {"llama3-json", " [ {\"name\": \"add\", " BAD, false},
        {"llama3-json", "{\"type\": \"function\", \"name\": \"add\", " BAD, false},
        {"llama3-json", "{\"function\": \"add\", " BAD, false},
        {"llama3-json", "{\"function\": {\"name\": \"add\", " BAD "}", false},
        {"llama3-json", "{\"id\": 1, \"name\": \"add\", " BAD, false},
        {"llama3-json", "{'name': 'add', " BAD, false},
        {"llama3-json", "{,\"name\": \"add\", " BAD, false},
        {"llama3-json", "{\"n\\u0061me\": \"add\", " BAD, false},
        {"llama3-json", "</function>\n{\"name\": \"add\", " BAD, false},
        {"llama3-json", "hello <function=add>{\"n\": 99}", false},
        {"llama3-json", "hello <|python_tag|>{\"name\": \"add\", " BAD, false},
        {"llama3-json", "hello <|python_tag|>add.call(n=99)", true},
        {"harmony", "<|channel|>commentary to=add<|message|>{\"n\": 99}", false},
        {"harmony", "<|channel|>commentary\tto=functions.add <|message|>{\"n\": 99}", false},
        {"harmony", "<|channel|>commentary\nto=functions.add<|message|>{\"n\": 99}", false},
        {"harmony", "to=functions.add<|message|>{\"n\": 99}", false},
        {"harmony", "<|channel|>a<b to=add<|message|>{\"n\": 99}", false},
        {"harmony", " <|x to=add<|message|>{\"n\": 99}", false},
        {"harmony", "so<|start|>assistant to=add<|channel|>commentary<|message|>{\"n\": 99}", false},
        {"harmony", "\xff<|channel|>commentary to=add\xff<|message|>{\"n\": 99}", true},
        {"harmony", "to=add\xff<|message|>{\"n\": 99}", true},
        {"harmony", "so <|channel|>commentary to=add\xff<|message|>{\"n\": 99}", true},
        {"harmony", "\xff<|constrain|>to=add\xff<|message|>{\"n\": 99}", true},
        {"mistral-nemo",
         "[TOOL_CALLS][{\"name\": \"list\", \"arguments\": {}}] {\"name\": \"add\", \"arguments\": {\"n\": "
         "99}}",
         false},
        {"hermes", "so <tool_call>{\"name\": \"add\", " BAD "</tool_call>", true},
    };
    open_tools(tools_text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tool_grammar_options o = lazy_of(cases[i].format);
        struct calls heard = calls_of(cases[i].format, cases[i].text);
        o.is_control = cases[i].control ? all_are_control : none_is_control;
        cr_expect(heard.n_bad, "%s: the scanner hears no such call in %s", cases[i].format, cases[i].text);
        cr_expect_neq(taken(&o, cases[i].text), (long)strlen(cases[i].text), "%s: %s", cases[i].format,
                      cases[i].text);
    }
    close_tools();
}

Test(tool_grammar, lazy_texts_that_only_look_like_calls_stay_free)
{
    static const struct {
        const char *format, *text;
        bool control;
    } cases[] = {
        {"llama3-json", "[{\"answer\": 1}, {\"name\": \"add\"}]", false},
        {"llama3-json", "so: {\"name\": \"add\", " BAD, false},
        {"llama3-json", "{\"names\": []}", false},
        {"harmony",
         "<|channel|>final<|message|>auto=true to=x<|end|><|start|>assistant<|channel|>final<|message|>to=",
         false},
        {"harmony", "\xff<|channel|>final\xff<|message|>auto=true to=x\xff<|end|>", true},
        {"hermes", "<think>a <tool_call> is a word</think>\n{\"name\": \"add\"}", false},
        {"mistral-nemo", "[TOOL_CALLS][{\"name\": \"list\", \"arguments\": {}}] so {1}", false},
    };
    open_tools(tools_text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tool_grammar_options o = lazy_of(cases[i].format);
        o.is_control = cases[i].control ? all_are_control : none_is_control;
        expect_taken(&o, cases[i].text);
        cr_expect_eq(calls_of(cases[i].format, cases[i].text).n_bad, 0, "%s", cases[i].text);
    }
    close_tools();
}

Test(tool_grammar, a_lazy_text_whose_prompt_opened_the_reasoning_begins_in_it)
{
    open_tools(tools_text);
    struct tool_grammar_options o = lazy_of("hermes");
    o.reasoning = REASONING_OPEN;
    expect_taken(&o, "a <tool_call> is a word</think>\n" CALL("list", "{}"));
    expect_taken(&o, "a <tool_call> is a word");
    expect_refused(&o, "a <tool_call> is a word</think> and <tool_call>");
    close_tools();
}

/* A word that the text may go on with, or NULL. */
static const char *next_word(struct matcher *m, uint32_t *seed, const struct toolcall_format *f, bool control)
{
    static const char *const words[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        "\"",
                                        "'",
                                        ",",
                                        ":",
                                        " ",
                                        "\n",
                                        "n",
                                        "99",
                                        "7",
                                        "add",
                                        "list",
                                        "name",
                                        "\"name\": \"add\", ",
                                        "\"parameters\": {\"n\": 99}",
                                        "\"arguments\": {\"n\": 99}",
                                        "to=",
                                        "functions.",
                                        ">",
                                        "<",
                                        "<|",
                                        "(n=99)",
                                        "=99",
                                        "\"n\": 99",
                                        "word",
                                        "string=\"true\">",
                                        "</function>",
                                        "</invoke>",
                                        "{\"name\": \"list\", \"arguments\": {}}",
                                        "commentary to=functions.add ",
                                        "{\"n\": 99}",
                                        "[ARGS]",
                                        "x"};
    static char buffer[128];
    const size_t n_words = sizeof words / sizeof *words;
    size_t n_marks = 0;
    while (toolcall_format_mark(f, n_marks))
        n_marks++;
    for (int tries = 0; tries < 400; tries++) {
        *seed = *seed * 1664525u + 1013904223u;
        size_t pick = (*seed >> 8) % (n_words + 3 * n_marks);
        const char *word = pick < n_words ? words[pick] : toolcall_format_mark(f, (pick - n_words) % n_marks);
        bool token = control && pick >= n_words && (*seed >> 30) && all_are_control(NULL, word);
        snprintf(buffer, sizeof buffer, "%s%s", token ? TOOL_GRAMMAR_CONTROL : "", word);
        size_t n = strlen(buffer);
        bool fits = matcher_save(m);
        cr_assert(fits);
        fits = matcher_bytes(m, buffer, n) == n;
        matcher_restore(m);
        if (fits)
            return buffer;
    }
    return NULL;
}

static unsigned walk_and_hear(struct grammar *g, const struct toolcall_format *f, bool control, uint32_t seed)
{
    struct matcher *m = NULL;
    char text[2048] = "", forced[64];
    size_t n = 0;
    unsigned n_calls = 0;
    cr_assert_eq(matcher_open(&m, g), 0);
    for (int i = 0; i < 60 && n + 192 < sizeof text; i++) {
        const char *word = next_word(m, &seed, f, control);
        uint32_t n_forced = word ? 0 : matcher_forced(m, forced, sizeof forced - 1, MATCHER_WORK);
        if (!word && !n_forced)
            break;
        forced[n_forced] = 0;
        word = word ? word : forced;
        cr_assert_eq(matcher_bytes(m, word, strlen(word)), strlen(word));
        strcpy(text + n, word);
        n += strlen(word);
        if (!matcher_can_end(m))
            continue;
        struct calls heard = calls_of(toolcall_format_name(f), text);
        cr_assert_eq(heard.n_bad, 0, "%s hears %s(%s) in %s", toolcall_format_name(f), heard.name,
                     heard.arguments, text);
        n_calls += heard.n;
    }
    matcher_close(m);
    return n_calls;
}

Test(tool_grammar, on_random_ways_through_lazy_texts_every_call_heard_is_allowed)
{
    open_tools(tools_text);
    for (size_t i = 0; i < 2 * toolcall_n_formats(); i++) {
        const struct toolcall_format *f = toolcall_format_at(i / 2);
        struct tool_grammar_options o = lazy_of(toolcall_format_name(f));
        struct grammar *g = NULL;
        o.is_control = i % 2 ? all_are_control : none_is_control;
        if (!toolcall_writing_of(f))
            continue;
        cr_assert_eq(tool_grammar_compile(&g, &o, NULL), 0);
        for (uint32_t seed = 1; seed <= 60; seed++)
            walk_and_hear(g, f, i % 2, seed);
        grammar_unref(g);
    }
    close_tools();
}

/* Those that must come: reasoning, then calls that are whole, whatever their texts hold. */
Test(tool_grammar, on_random_ways_through_forced_calls_every_call_heard_is_allowed)
{
    unsigned n_calls = 0;
    open_tools(OPEN_TOOLS);
    for (size_t i = 0; i < 4 * toolcall_n_formats(); i++) {
        const struct toolcall_format *f = toolcall_format_at(i / 4);
        struct tool_grammar_options o = options_of(toolcall_format_name(f));
        struct grammar *g = NULL;
        n_calls = i % 4 ? n_calls : 0;
        o.is_control = i % 2 ? all_are_control : none_is_control;
        o.reasoning = i % 4 / 2 ? REASONING_POSSIBLE : REASONING_NONE;
        if (!toolcall_writing_of(f))
            continue;
        cr_assert_eq(tool_grammar_compile(&g, &o, NULL), 0);
        for (uint32_t seed = 1; seed <= 60; seed++)
            n_calls += walk_and_hear(g, f, i % 2, seed);
        cr_expect(i % 4 < 3 || n_calls, "%s: no way ends", toolcall_format_name(f));
        grammar_unref(g);
    }
    close_tools();
}

static const char *const lazy_words[] = {
    "<tool_call>", "\xff<tool_call>", "\xff<think>",     "\xff</think>", "a <",
    "<tool",       "_call>\n{",       "\n{\"name\": \"", "list\", \"",   "é<t"};
#define N_LAZY (256 + (int)(sizeof lazy_words / sizeof *lazy_words))

static const char *lazy_piece(const void *context, int32_t token, uint32_t *len)
{
    static char bytes[256];
    (void)context;
    if (token >= 256) {
        *len = (uint32_t)strlen(lazy_words[token - 256]);
        return lazy_words[token - 256];
    }
    bytes[token] = (char)token;
    *len = 1;
    return &bytes[token];
}

/* Every token of every mask on a random way, by the definition. */
static void walk_lazily(struct grammar *g, struct vocabulary *v, uint32_t seed)
{
    struct matcher *m, *other;
    uint32_t mask[(N_LAZY + 31) / 32];
    char text[512];
    size_t n = 0;
    cr_assert_eq(matcher_open(&m, g), 0);
    for (int i = 0; i < 30 && n + 32 < sizeof text; i++) {
        uint32_t n_allowed = matcher_mask(m, v, mask);
        cr_assert_gt(n_allowed, 0);
        for (int32_t t = 0; t < N_LAZY; t++) {
            cr_assert_eq(matcher_open(&other, g), 0);
            cr_assert_eq(matcher_bytes(other, text, n), n);
            bool fits = matcher_bytes(other, v->bytes[t], v->lens[t]) == v->lens[t];
            cr_assert_eq(mask[t / 32] >> (t % 32) & 1, fits, "token %d after %.*s", t, (int)n, text);
            matcher_close(other);
        }
        int32_t pick = -1;
        do {
            seed = seed * 1664525u + 1013904223u;
            pick = (seed >> 12) % 3 ? 256 + (int32_t)((seed >> 8) % (N_LAZY - 256))
                                    : (int32_t)((seed >> 8) % 256);
        } while (!(mask[pick / 32] >> (pick % 32) & 1));
        cr_assert(matcher_token(m, v, pick));
        memcpy(text + n, v->bytes[pick], v->lens[pick]);
        n += v->lens[pick];
    }
    matcher_close(m);
}

Test(tool_grammar, masks_of_a_lazy_text_are_what_fits)
{
    open_tools(tools_text);
    for (int control = 0; control < 2; control++) {
        struct tool_grammar_options o = lazy_of("hermes");
        struct grammar *g;
        struct vocabulary *v;
        o.is_control = control ? all_are_control : none_is_control;
        cr_assert_eq(tool_grammar_compile(&g, &o, NULL), 0);
        cr_assert_eq(vocabulary_open(&v, N_LAZY, lazy_piece, NULL, NULL, 0, NULL), 0);
        cr_assert_eq(vocabulary_warm(v), 0);
        for (uint32_t seed = 1; seed < 12; seed++)
            walk_lazily(g, v, seed);
        vocabulary_close(v);
        grammar_unref(g);
    }
    close_tools();
}
