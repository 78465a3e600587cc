/* The scanner of a model's text, over the raw outputs of tests/data/toolcalls: 17 formats, well-formed and
 * broken, each fed whole, cut in two at every byte, byte by byte and by threes. */
#include "parsed.h"

#include "chat/tool_list.h"
#include "support/failing_alloc.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>

#define CASES HEARTH_TEST_DATA "/toolcalls/"

/* --- the cases --- */

struct format_cases {
    FILE *file;
    char *line;
    size_t cap;
    json_t *head;
    json_t *tools;
    struct arena arena;
    struct toolcall_tools list;
    const struct toolcall_format *format;
    const char *prompt;
};

static json_t *next_line(struct format_cases *f)
{
    ssize_t n = getline(&f->line, &f->cap, f->file);
    return n > 1 ? json_loadb(f->line, (size_t)n, 0, NULL) : NULL;
}

static void open_cases(struct format_cases *f, const char *name)
{
    char path[512];
    *f = (struct format_cases){0};
    snprintf(path, sizeof path, CASES "%s.jsonl", name);
    f->file = fopen(path, "r");
    f->tools = json_load_file(CASES "tools.json", 0, NULL);
    cr_assert(f->file && f->tools, "%s", path);
    f->head = next_line(f);
    f->format = toolcall_format_find(name);
    cr_assert(f->head && f->format, "no format %s", name);
    f->prompt = json_string_value(json_object_get(f->head, "generation_prompt"));
    cr_assert_eq(tool_list_read(&f->arena, f->tools, &f->list), 0);
}

static void close_cases(struct format_cases *f)
{
    json_decref(f->head);
    json_decref(f->tools);
    arena_close(&f->arena);
    free(f->line);
    fclose(f->file);
}

/* --- matching: the rules of match.py beside the cases --- */

static void trim(const char **s, size_t *n)
{
    while (*n && isspace((unsigned char)**s))
        ++*s, --*n;
    while (*n && isspace((unsigned char)(*s)[*n - 1]))
        --*n;
}

static bool equal_trimmed(const struct bytes *got, const char *expected)
{
    const char *a = got->p ? got->p : "", *b = expected ? expected : "";
    size_t n = got->n, m = strlen(b);
    trim(&a, &n);
    trim(&b, &m);
    return n == m && !memcmp(a, b, n);
}

/* Without blanks; `all`: all of it, else its beginning. */
static bool equal_squeezed(const struct bytes *got, const char *expected, bool all)
{
    for (size_t i = 0; i < got->n; i++) {
        if (isspace((unsigned char)got->p[i]))
            continue;
        while (isspace((unsigned char)*expected))
            expected++;
        if (got->p[i] != *expected++)
            return false;
    }
    return !all || !*expected;
}

static bool call_matches(const struct parsed_call *c, const json_t *expected)
{
    const char *name = json_string_value(json_object_get(expected, "name"));
    const json_t *id = json_object_get(expected, "id"),
                 *prefix = json_object_get(expected, "arguments_prefix_of");
    const char *text = json_string_value(json_object_get(expected, "arguments_text"));
    const char *has = json_string_value(json_object_get(expected, "arguments_has"));
    if (!equal_trimmed(&c->name, name) || (id && !equal_trimmed(&c->id, json_string_value(id))))
        return false;
    if (text)
        return equal_squeezed(&c->arguments, text, true);
    if (has)
        return memmem(c->arguments.p, c->arguments.n, has, strlen(has));
    if (prefix) {
        char *whole = json_dumps(prefix, JSON_COMPACT);
        bool ok = equal_squeezed(&c->arguments, whole, false);
        free(whole);
        return ok;
    }
    json_t *arguments = json_loadb(c->arguments.p, c->arguments.n, 0, NULL);
    bool ok = arguments && json_equal(arguments, json_object_get(expected, "arguments"));
    json_decref(arguments);
    return ok;
}

static bool is_raw(const struct bytes *content, const char *raw)
{
    const char *p = content->p ? content->p : "", *r = raw;
    size_t n = content->n, m = strlen(raw);
    trim(&p, &n);
    trim(&r, &m);
    return n * 10 >= m * 6 && (!n || memmem(raw, strlen(raw), p, n));
}

static bool matches(const struct parsed *got, const json_t *expected, const char *raw, const char *finish)
{
    const json_t *calls = json_object_get(expected, "tool_calls");
    bool content_is_raw = json_is_true(json_object_get(expected, "content_is_raw"));
    const char *content = json_string_value(json_object_get(expected, "content"));
    const char *reasoning = json_string_value(json_object_get(expected, "reasoning"));
    if (content_is_raw ? !is_raw(&got->content, raw) : !equal_trimmed(&got->content, content))
        return false;
    if (!content_is_raw && !equal_trimmed(&got->reasoning, reasoning))
        return false;
    if (json_array_size(calls) != got->n_calls)
        return false;
    for (size_t i = 0; i < got->n_calls; i++)
        if (!call_matches(&got->calls[i], json_array_get(calls, i)))
            return false;
    return !strcmp(finish, json_string_value(json_object_get(expected, "finish_reason")));
}

/* --- one case --- */

static struct parsed *parse(const struct format_cases *f, const char *raw, size_t cut, size_t by, bool length)
{
    struct parsed *p = parsed_open(f->format, &f->list, f->prompt);
    size_t n = strlen(raw), at = cut < n ? cut : 0;
    if (at)
        parsed_feed(p, raw, at);
    for (; at < n; at += by)
        parsed_feed(p, raw + at, n - at < by ? n - at : by);
    cr_assert_eq(toolcall_end(p->s, length), 0);
    return p;
}

static void check_case(const struct format_cases *f, const json_t *c)
{
    const char *raw = json_string_value(json_object_get(c, "raw"));
    const char *id = json_string_value(json_object_get(c, "id"));
    const json_t *any = json_object_get(c, "expect_any");
    bool length = json_is_true(json_object_get(c, "length")), ok = false;
    size_t n = strlen(raw), step = n > 1500 ? 7 : 1; /* the long ones are long in the middle of a string */
    struct parsed *whole = parse(f, raw, 0, n ? n : 1, length);
    const char *finish = length ? "length" : whole->n_calls ? "tool_calls" : "stop";
    for (size_t i = 0; i < json_array_size(any); i++)
        ok |= matches(whole, json_array_get(any, i), raw, finish);
    cr_assert(ok, "%s %s: content %.*s, %zu calls, arguments %.*s", toolcall_format_name(f->format), id,
              (int)whole->content.n, whole->content.p, whole->n_calls, (int)whole->calls[0].arguments.n,
              whole->calls[0].arguments.p);
    for (size_t i = 0; i < n + 2; i += step) {
        struct parsed *cut = i < n ? parse(f, raw, i, n, length) : parse(f, raw, 0, i == n ? 1 : 3, length);
        cr_assert(parsed_same(whole, cut), "%s %s: cut at %zu it is another", toolcall_format_name(f->format),
                  id, i);
        parsed_close(cut);
    }
    parsed_close(whole);
}

static void check_format(const char *name, size_t n_expected)
{
    struct format_cases f;
    size_t n = 0;
    open_cases(&f, name);
    for (json_t *c; (c = next_line(&f)); n++) {
        check_case(&f, c);
        json_decref(c);
    }
    close_cases(&f);
    cr_assert_eq(n, n_expected, "%s: %zu cases", name, n);
}

#define FORMAT(test, name, n_cases)                                                                          \
    Test(toolcall, test##_is_parsed_at_every_cut)                                                            \
    {                                                                                                        \
        check_format(name, n_cases);                                                                         \
    }
FORMAT(hermes, "hermes", 41)
FORMAT(qwen3_coder, "qwen3-coder", 34)
FORMAT(qwen3_5, "qwen3.5", 46)
FORMAT(llama3_json, "llama3-json", 41)
FORMAT(mistral_nemo, "mistral-nemo", 34)
FORMAT(mistral_callid, "mistral-callid", 35)
FORMAT(mistral_args, "mistral-args", 39)
FORMAT(harmony, "harmony", 39)
FORMAT(deepseek_r1, "deepseek-r1", 44)
FORMAT(deepseek_v3_1, "deepseek-v3.1", 44)
FORMAT(deepseek_v3_2, "deepseek-v3.2", 39)
FORMAT(glm_4_6, "glm-4.6", 32)
FORMAT(glm_4_7, "glm-4.7", 43)
FORMAT(gemma4, "gemma4", 43)
FORMAT(phi_4_mini, "phi-4-mini", 29)
FORMAT(granite, "granite", 45)
FORMAT(command_r7b, "command-r7b", 37)

/* A run of blanks at any place of a text, around the numbers that the scanner waits through. */
static void check_blanks(const struct format_cases *f, const char *raw)
{
    static const size_t runs[] = {63, 64, 65, 66, 130, 257, 514};
    size_t n = strlen(raw);
    char *text = malloc(n + 600);
    for (size_t at = 0; at <= n; at++)
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            size_t len = n + runs[r];
            memcpy(text, raw, at);
            memset(text + at, (at + r) % 3 ? ' ' : '\n', runs[r]);
            strcpy(text + at + runs[r], raw + at);
            struct parsed *whole = parse(f, text, 0, len, false), *one = parse(f, text, 0, 1, false),
                          *seven = parse(f, text, 0, 7, false);
            cr_assert(parsed_same(whole, one) && parsed_same(whole, seven), "%s: %zu blanks at %zu of %s",
                      toolcall_format_name(f->format), runs[r], at, raw);
            parsed_close(whole);
            parsed_close(one);
            parsed_close(seven);
        }
    free(text);
}

Test(toolcall, long_runs_of_blanks_are_read_the_same_at_every_cut)
{
    static const char *const names[] = {
        "hermes",         "qwen3-coder", "qwen3.5",     "llama3-json",   "mistral-nemo", "mistral-args",
        "mistral-callid", "harmony",     "deepseek-r1", "deepseek-v3.1", "glm-4.6",      "deepseek-v3.2",
        "glm-4.7",        "gemma4",      "phi-4-mini",  "granite",       "command-r7b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct format_cases f;
        unsigned n = 0;
        open_cases(&f, names[i]);
        for (json_t *c; n < 3 && (c = next_line(&f)); json_decref(c)) {
            const char *raw = json_string_value(json_object_get(c, "raw"));
            if (strlen(raw) > 150 || strlen(raw) < 30)
                continue;
            check_blanks(&f, raw);
            n++;
        }
        close_cases(&f);
    }
}

/* --- what holds for all --- */

static struct parsed *scan(const char *format, const char *text, bool cut)
{
    static const struct toolcall_param params[] = {{"city", true}, {"days", false}};
    static const struct toolcall_tool list[] = {{"get_weather", params, 2}, {"list_items", NULL, 0}};
    static const struct toolcall_tools tools = {list, 2};
    struct parsed *p = parsed_open(toolcall_format_find(format), &tools, "");
    parsed_feed(p, text, strlen(text));
    cr_assert_eq(toolcall_end(p->s, cut), 0);
    return p;
}

static void expect_bytes(const struct bytes *got, const char *expected)
{
    cr_assert(got->n == strlen(expected) && !memcmp(got->n ? got->p : "", expected, got->n), "%.*s, not %s",
              (int)got->n, got->n ? got->p : "", expected);
}

static void expect_arguments(const char *format, const char *text, const char *arguments)
{
    struct parsed *p = scan(format, text, false);
    cr_assert_eq(p->n_calls, 1, "%s: %zu calls", text, p->n_calls);
    expect_bytes(&p->calls[0].name, "get_weather");
    expect_bytes(&p->calls[0].arguments, arguments);
    parsed_close(p);
}

static void expect_content(const char *format, const char *text, const char *content)
{
    struct parsed *p = scan(format, text, false);
    cr_assert_eq(p->n_calls, 0);
    expect_bytes(&p->content, content);
    parsed_close(p);
}

/* The text that a client has not seen is no longer than a delimiter and the newlines before it. */
Test(toolcall, text_is_held_only_as_long_as_it_may_become_a_delimiter)
{
    static const char text[] =
        "a < b <t <to<tool_calm> [TOOL [ARGS ``` <|ch <|channex| {\"a\": 1} \n \n\n\nend "
        "<｜tool▁cal <function <funct=x> <thin";
    for (size_t k = 0; k < toolcall_n_formats(); k++) {
        struct parsed *p = parsed_open(toolcall_format_at(k), NULL, "");
        for (size_t i = 0; i < sizeof text - 1; i++) {
            parsed_feed(p, text + i, 1);
            cr_assert_leq(i + 1 - p->content.n, 40, "%s holds %zu bytes back",
                          toolcall_format_name(toolcall_format_at(k)), i + 1 - p->content.n);
        }
        cr_assert_eq(toolcall_end(p->s, false), 0);
        expect_bytes(&p->content, text);
        parsed_close(p);
    }
}

Test(toolcall, arguments_come_while_they_are_written)
{
    static const char text[] =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"abcdefghijkl";
    struct parsed *p = scan("hermes", text, true);
    cr_assert_eq(p->n_calls, 1);
    expect_bytes(&p->calls[0].arguments, "{\"city\": \"abcdefghijkl");
    parsed_close(p);
    p = scan("qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nabcdef", true);
    expect_bytes(&p->calls[0].arguments, "{\"city\": \"abcdef");
    parsed_close(p);
}

Test(toolcall, broken_arguments_become_json)
{
    static const struct {
        const char *written, *repaired;
    } cases[] = {
        {"{'city': 'B\"x', 'n': None}", "{\"city\": \"B\\\"x\", \"n\": null}"},
        {"{\"a\": [1, 2,], }", "{\"a\": [1, 2] }"},
        {"{\"a\": True, \"b\": 1 \"c\": 2}", "{\"a\": true, \"b\": 1, \"c\": 2}"},
        {"{\"a\": \"x\ty\\q\\u12\"}", "{\"a\": \"x\\ty\\\\q\\\\u12\"}"},
        {"{\"a\": hello world, \"b\": 007}", "{\"a\": \"hello world\", \"b\": \"007\"}"},
        {"{\"a\": , \"b\"}", "{\"a\":null, \"b\": null}"},
        {"{\"a\": [{\"b\": 1}", "{\"a\": [{\"b\": 1}]}"},
        {"{\"a\": {\"b\": 1]", "{\"a\": {\"b\": 1}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "[TOOL_CALLS]get_weather[ARGS]%s", cases[i].written);
        expect_arguments("mistral-args", text, cases[i].repaired);
    }
}

Test(toolcall, blanks_between_tokens_are_bounded)
{
    char text[2000] = "[TOOL_CALLS]get_weather[ARGS]{\"city\":";
    size_t n = strlen(text);
    memset(text + n, '\n', 1500);
    strcpy(text + n + 1500, "\"x\"}");
    struct parsed *p = scan("mistral-args", text, false);
    cr_assert_lt(p->calls[0].arguments.n, 100);
    parsed_close(p);
}

Test(toolcall, python_values_in_tags_are_json_and_other_text_stays_text)
{
    static const struct {
        const char *value, *json;
    } cases[] = {{"['a', True]", "[\"a\", true]"},
                 {"False", "false"},
                 {"007", "\"007\""},
                 {"{broken", "\"{broken\""},
                 {"\"q\"", "\"q\""},
                 {"", "\"\""},
                 {"1e5", "1e5"},
                 {"a, b", "\"a, b\""},
                 {"'x'", "\"'x'\""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], json[128];
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=get_weather>\n<parameter=days>\n%s\n</parameter>\n</function>\n</"
                 "tool_call>",
                 cases[i].value);
        snprintf(json, sizeof json, "{\"days\": %s}", cases[i].json);
        expect_arguments("qwen3-coder", text, json);
    }
}

/* --- values that hold what closes them --- */

static void expect_arguments_by(const char *format, const char *text, size_t by, const char *arguments)
{
    static const struct toolcall_param params[] = {{"city", true}, {"days", false}};
    static const struct toolcall_tool list[] = {{"get_weather", params, 2}};
    static const struct toolcall_tools tools = {list, 1};
    struct parsed *p = parsed_open(toolcall_format_find(format), &tools, "");
    for (size_t at = 0, n = strlen(text); at < n; at += by)
        parsed_feed(p, text + at, n - at < by ? n - at : by);
    cr_assert_eq(toolcall_end(p->s, false), 0);
    cr_assert_eq(p->n_calls, 1, "%s by %zu: %zu calls", text, by, p->n_calls);
    expect_bytes(&p->calls[0].arguments, arguments);
    parsed_close(p);
}

#define CODER(days)                                                                                          \
    "<tool_call>\n<function=get_weather>\n<parameter=days>\n" days                                           \
    "\n</parameter>\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>"
#define GLM(days)                                                                                            \
    "<tool_call>get_weather<arg_key>days</arg_key><arg_value>" days                                          \
    "</arg_value><arg_key>city</arg_key><arg_value>x</arg_value></tool_call>"

Test(toolcall, a_closing_tag_in_a_string_of_json_does_not_end_the_value)
{
    static const struct {
        const char *format, *text, *days;
    } cases[] = {
        {"qwen3-coder", CODER("[\"a</parameter></function>\", 1]"), "[\"a</parameter></function>\", 1]"},
        {"qwen3-coder",
         CODER("{\"a\": \"</parameter><parameter=city>\", \"b\": \"</function></tool_call>\"}"),
         "{\"a\": \"</parameter><parameter=city>\", \"b\": \"</function></tool_call>\"}"},
        {"qwen3-coder", CODER("\"\\\"</parameter></function>\""), "\"\\\"</parameter></function>\""},
        {"glm-4.7", GLM("[\"</arg_value></tool_call>\"]"), "[\"</arg_value></tool_call>\"]"},
        {"glm-4.7", GLM("[\"</arg_value><arg_key>\", \"b\"]"), "[\"</arg_value><arg_key>\", \"b\"]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[256];
        snprintf(arguments, sizeof arguments, "{\"days\": %s, \"city\": \"x\"}", cases[i].days);
        for (size_t by = 1; by <= strlen(cases[i].text); by++)
            expect_arguments_by(cases[i].format, cases[i].text, by, arguments);
    }
}

Test(toolcall, a_closing_tag_in_what_only_begins_as_json_ends_the_value)
{
    static const struct {
        const char *format, *text, *arguments;
    } cases[] = {
        {"qwen3-coder", CODER("[\"a, \"b\"]"), "{\"days\": \"[\\\"a, \\\"b\\\"]\", \"city\": \"x\"}"},
        {"qwen3-coder", CODER("['a</parameter></function>']"), "{\"days\": \"['a\"}"},
        {"qwen3-coder",
         "<tool_call>\n<function=get_weather>\n<parameter=days>\n\"a</parameter>\n</function>\n</tool_call>",
         "{\"days\": \"\\\"a\"}"},
        {"qwen3-coder",
         "<tool_call>\n<function=get_weather>\n<parameter=days>\n\"a</parameter>\n<parameter=city>\nx\n"
         "</parameter>\n</function>\n</tool_call>",
         "{\"days\": \"\\\"a\", \"city\": \"x\"}"},
        {"glm-4.7", GLM("[\"a"), "{\"days\": \"[\\\"a\", \"city\": \"x\"}"},
        {"glm-4.7", GLM("[\"a</arg_value></tool_call>\" b"), "{\"days\": \"[\\\"a\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t by = 1; by <= strlen(cases[i].text); by++)
            expect_arguments_by(cases[i].format, cases[i].text, by, cases[i].arguments);
}

/* Nor is what it held taken for text, or for another call. */
Test(toolcall, a_string_of_json_that_is_cut_behind_closing_tags_is_a_call_that_is_cut)
{
    static const char text[] =
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n[\"a</parameter></function></tool_call>"
        "<function=get_weather><parameter=city>1</parameter></function>\", \"b";
    struct parsed *p = scan("qwen3-coder", text, true);
    cr_assert_eq(p->n_calls, 1);
    expect_bytes(&p->content, "");
    parsed_close(p);
}

Test(toolcall, a_closing_tag_in_a_text_ends_it_only_where_the_call_goes_on_or_ends)
{
    static const char text[] =
        "<tool_call>\n<function=get_weather>\n<parameter=city>\na</parameter>b </function> "
        "c\n</parameter>\n</function>\n</tool_call>";
    expect_arguments("qwen3-coder", text, "{\"city\": \"a</parameter>b </function> c\"}");
    struct parsed *p = scan("qwen3-coder",
                            "<function=get_weather>\n<parameter=city>\na</parameter></function>b\n"
                            "</parameter>\n</function>",
                            false);
    expect_bytes(&p->calls[0].arguments, "{\"city\": \"a\"}");
    expect_bytes(&p->content, "b\n</parameter>\n</function>");
    parsed_close(p);
}

/* Texts of a schema: what begins them may be reasoning, all else is theirs. */
Test(toolcall, a_verbatim_text_has_reasoning_in_front_alone)
{
    static const struct {
        const char *format, *text, *prompt, *reasoning, *content;
    } cases[] = {
        {"hermes", "{\"a\": \"<think>b</think>\"}", "", "", "{\"a\": \"<think>b</think>\"}"},
        {"hermes", "<think>so</think>\n\n[\"</think>\n<think>\"]", "", "so", "[\"</think>\n<think>\"]"},
        {"hermes", "so</think>\n\"<tool_call>{}</tool_call>\"", "<think>\n", "so",
         "\"<tool_call>{}</tool_call>\""},
        {"gemma4", "\"<|tool_call>call:f{}<tool_call|>\"", "", "", "\"<|tool_call>call:f{}<tool_call|>\""},
        {"harmony",
         "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>\"<|end|> "
         "to=f\"",
         "", "so", "\"<|end|> to=f\""},
        {"harmony", "<|channel|>final<|message|>[1]", "", "", "[1]"},
        {"llama3-json", "{\"name\": \"get_weather\", \"parameters\": {}}", "", "",
         "{\"name\": \"get_weather\", \"parameters\": {}}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t by = 1, n = strlen(cases[i].text); by <= n; by++) {
            struct parsed *p = calloc(1, sizeof *p);
            p->content.arena = p->reasoning.arena = &p->arena;
            struct toolcall_options o = {.format = toolcall_format_find(cases[i].format),
                                         .verbatim = true,
                                         .prompt = cases[i].prompt,
                                         .prompt_len = strlen(cases[i].prompt),
                                         .emit = parsed_event,
                                         .user = p};
            cr_assert(p->s = toolcall_open(&p->arena, &o));
            for (size_t at = 0; at < n; at += by)
                parsed_feed(p, cases[i].text + at, n - at < by ? n - at : by);
            cr_assert_eq(toolcall_end(p->s, false), 0);
            cr_assert_eq(p->n_calls, 0);
            expect_bytes(&p->reasoning, cases[i].reasoning);
            expect_bytes(&p->content, cases[i].content);
            parsed_close(p);
        }
}

Test(toolcall, a_mark_in_prose_is_text)
{
    expect_content("hermes", "Write <tool_call> to call, and <think> to think.",
                   "Write <tool_call> to call, and <think> to think.");
    expect_content("qwen3-coder", "The tag <function=name> opens.", "The tag <function=name> opens.");
    expect_content("mistral-args", "[TOOL_CALLS] is a token.", "[TOOL_CALLS] is a token.");
    expect_content("llama3-json", "{\"name\": \"Alice\", \"parameters\": {}}",
                   "{\"name\": \"Alice\", \"parameters\": {}}");
    expect_content("none", "<think>x</think><tool_call>", "<think>x</think><tool_call>");
}

Test(toolcall, the_other_formats_are_parsed)
{
    expect_arguments(
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        "<|tool_call_argument_begin|>{\"city\": \"x\"}<|tool_call_end|><|tool_calls_section_end|>",
        "{\"city\": \"x\"}");
    expect_arguments("lfm2", "<|tool_call_start|>[get_weather(city=\"x\", days=[1, 'a'])]<|tool_call_end|>",
                     "{\"city\": \"x\", \"days\": [1, \"a\"]}");
    expect_arguments(
        "minimax",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">x</parameter>\n"
        "</invoke>\n</minimax:tool_call>",
        "{\"city\": \"x\"}");
    expect_arguments("llama3-json", "<|python_tag|>get_weather.call(city=\"x\")", "{\"city\": \"x\"}");
    expect_arguments("llama3-json", "<function=get_weather>{\"city\": \"x\"}</function>",
                     "{\"city\": \"x\"}");
}

Test(toolcall, bytes_that_are_no_utf8_are_replaced_at_every_cut)
{
    static const char text[] = "a\xff\xc3 b\xe2\x82 \xf0\x9f\x92\xa9 <tool\x80";
    for (size_t i = 0; i < sizeof text; i++) {
        struct parsed *p = parsed_open(toolcall_format_find("hermes"), NULL, "");
        parsed_feed(p, text, i);
        parsed_feed(p, text + i, sizeof text - 1 - i);
        cr_assert_eq(toolcall_end(p->s, false), 0);
        expect_bytes(
            &p->content,
            "a\xEF\xBF\xBD\xEF\xBF\xBD b\xEF\xBF\xBD\xEF\xBF\xBD \xf0\x9f\x92\xa9 <tool\xEF\xBF\xBD");
        parsed_close(p);
    }
}

Test(toolcall, a_channel_that_begins_in_a_text_is_followed)
{
    struct parsed *p =
        scan("harmony", "ab<|channel|>analysis<|message|>cd<|end|><|start|>assistant<|message|>e", false);
    expect_bytes(&p->reasoning, "cd");
    expect_bytes(&p->content, "ab\n\ne");
    parsed_close(p);
    expect_content("harmony", "a <|message|>b", "a b");
}

/* Nothing was offered: no format makes a call of what looks like one. */
Test(toolcall, without_tools_nothing_is_a_call)
{
    static const char *const texts[][2] = {
        {"harmony", "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}<|call|>"},
        {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
        {"mistral-args", "[TOOL_CALLS]f[ARGS]{\"a\": 1}"},
        {"qwen3-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct parsed p = {0};
        p.content.arena = p.reasoning.arena = &p.arena;
        struct toolcall_options o = {
            .format = toolcall_format_find(texts[i][0]), .no_calls = true, .emit = parsed_event, .user = &p};
        struct toolcall_scanner *s = toolcall_open(&p.arena, &o);
        cr_assert(s);
        cr_assert_eq(toolcall_feed(s, texts[i][1], strlen(texts[i][1])), 0);
        cr_assert_eq(toolcall_end(s, false), 0);
        cr_expect_eq(p.n_calls, 0, "%s", texts[i][0]);
        cr_expect_gt(p.content.n, 0, "%s", texts[i][0]);
        arena_close(&p.arena);
    }
}

Test(toolcall, a_name_that_is_no_utf8_is_mended)
{
    struct parsed *p = scan("gemma4",
                            "<|tool_call>\xe3"
                            "f{a:1}<tool_call|>",
                            false);
    cr_assert_eq(p->n_calls, 1);
    expect_bytes(&p->calls[0].name, "?f");
    parsed_close(p);
}

Test(toolcall, a_text_of_openers_takes_linear_time)
{
    size_t n = 0, cap = 1 << 20;
    char *text = malloc(cap);
    static const char again[] = "<tool_call>{\"arguments\": {\"a\": \"";
    while (n + sizeof again < cap) {
        memcpy(text + n, again, sizeof again - 1);
        n += sizeof again - 1;
    }
    struct parsed *p = parsed_open(toolcall_format_find("hermes"), NULL, "");
    parsed_feed(p, text, n);
    cr_assert_eq(toolcall_end(p->s, false), 0);
    cr_assert_eq(p->content.n, n);
    parsed_close(p);
    free(text);
}

Test(toolcall, the_template_tells_the_format)
{
    static const struct {
        const char *source, *format;
    } cases[] = {
        {"{{ '<tool_call>' }}<think>", "hermes"},
        {"<function= <parameter= <tool_call>", "qwen3-coder"},
        {"<function= <parameter= <tool_call> <think>", "qwen3.5"},
        {"[TOOL_CALLS] [CALL_ID] [ARGS]", "mistral-callid"},
        {"[TOOL_CALLS] [ARGS]", "mistral-args"},
        {"[TOOL_CALLS]", "mistral-nemo"},
        {"<|channel|>analysis<|message|>", "harmony"},
        {"<|start_header_id|> \"parameters\"", "llama3-json"},
        {"<think>", "think"},
        {"{{ messages }}", "none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_str_eq(
            toolcall_format_name(toolcall_format_of_template(cases[i].source, strlen(cases[i].source))),
            cases[i].format);
}

Test(toolcall, a_scanner_without_memory_says_so)
{
    static const char text[] =
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"a\": \"b\"}}</tool_call>";
    bool failed = true;
    for (size_t n = 0; failed && n < 100; n++) {
        struct arena a = {0};
        struct parsed p = {.content.arena = &p.arena, .reasoning.arena = &p.arena};
        struct toolcall_options o = {
            .format = toolcall_format_find("hermes"), .emit = parsed_event, .user = &p};
        fail_alloc_after(n);
        struct toolcall_scanner *s = toolcall_open(&a, &o);
        failed = !s || toolcall_feed(s, text, sizeof text - 1) < 0 || toolcall_end(s, false) < 0;
        fail_alloc_never();
        arena_close(&a);
        arena_close(&p.arena);
    }
    cr_assert(!failed);
}
