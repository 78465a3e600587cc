/* Calls that a client insists on: a model with random weights, which would write nonsense, makes them, in
 * every dialect that can ask. */
#include "support/models/variant.h"
#include "integration/harness.h"

#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define BASE "tiny-qwen3-s11-q4_k_m"
#define HERMES                                                                                               \
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}"                 \
    "{% if enable_thinking %}<think>{% endif %}"
#define SCHEMA                                                                                               \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"$ref\":\"#/$defs/c\"},\"now\":{\"type\":\"boolean\"}}" \
    ",\"required\":[\"city\",\"now\"],\"additionalProperties\":false,\"$defs\":{\"c\":{\"enum\":[\"Bern\","  \
    "\"Basel\"]}}}"
#define EMPTY "{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}"
#define TOOLS                                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":" SCHEMA "}},"      \
    "{\"type\":\"function\",\"function\":{\"name\":\"stop\",\"parameters\":" EMPTY "}}]"
#define SAID "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define ASK  SAID ",\"reasoning_effort\":\"none\"" /* which such a model would not end */

static char model[64];

static void start(void)
{
    variant_write(model, BASE, EDITS(SET_STR("tokenizer.chat_template", HERMES)));
    daemon_start((const char *[]){"--model", model, NULL});
}

static void end(void)
{
    daemon_stop();
    unlink(model);
}

static json_t *ask(const char *path, const char *members)
{
    char body[2048];
    snprintf(body, sizeof body, "{%s}", members);
    struct reply r = post(path, body);
    cr_assert_eq(r.status, 200, "%s: %s", body, r.body);
    json_t *root = reply_json(&r);
    reply_free(&r);
    return root;
}

/* Arguments of a call of `weather`, or none of `stop`. */
static void expect_call(const char *name, const json_t *arguments)
{
    const char *city = json_string_value(json_object_get(arguments, "city"));
    if (!strcmp(name, "stop")) {
        cr_assert_eq(json_object_size(arguments), 0);
        return;
    }
    cr_assert_str_eq(name, "weather");
    cr_assert(city && (!strcmp(city, "Bern") || !strcmp(city, "Basel")));
    cr_assert(json_is_boolean(json_object_get(arguments, "now")));
    cr_assert_eq(json_object_size(arguments), 2);
}

static void expect_text_call(json_t *root, const char *name, const char *arguments)
{
    json_t *read = json_loads(json_text(root, arguments), 0, NULL);
    cr_assert(read, "%s", json_text(root, arguments));
    expect_call(json_text(root, name), read);
    json_decref(read);
}

#define CALL "choices.0.message.tool_calls.0.function"

Test(tool_choice, a_call_comes_where_one_is_required)
{
    start();
    for (int seed = 0; seed < 10; seed++) {
        char members[2048];
        snprintf(members, sizeof members,
                 ASK "," TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"seed\":%d",
                 seed);
        json_t *root = ask(CHAT, members);
        expect_text_call(root, CALL ".name", CALL ".arguments");
        cr_assert_eq(json_array_size(json_at(root, "choices.0.message.tool_calls")), 1);
        cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "tool_calls");
        cr_assert(json_is_null(json_at(root, "choices.0.message.content")));
        json_decref(root);
    }
    end();
}

/* The arguments go back to where the string began, and take what the schema leaves. */
Test(tool_choice, a_call_has_no_banned_strings, .init = start, .fini = end)
{
    for (int seed = 0; seed < 10; seed++) {
        char members[2048];
        snprintf(members, sizeof members,
                 ASK "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"weather\"}},"
                     "\"parallel_tool_calls\":false,\"banned_strings\":[\"Bern\",\"true\"],\"seed\":%d",
                 seed);
        json_t *root = ask(CHAT, members);
        expect_text_call(root, CALL ".name", CALL ".arguments");
        cr_assert_not(strstr(json_text(root, CALL ".arguments"), "Bern"));
        cr_assert_not(strstr(json_text(root, CALL ".arguments"), "true"));
        json_decref(root);
    }
}

/* 1,000 of them are compiled for a call, or refused by a limit that the words name; a stream beside them has
 * all its tokens. */
Test(tool_choice, a_thousand_functions_are_taken_or_refused_by_a_limit, .init = start, .fini = end)
{
    static char body[1 << 20];
    static const char *const parameters[] = {"", ",\"parameters\":" SCHEMA};
    struct events e;
    struct reply r;
    int stream = client_connect(daemon_.port);
    client_request(stream, "POST", "/generate", "",
                   "{\"prompt\":\"a\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}");
    for (int k = 0; k < 2; k++) {
        char *at =
            body + sprintf(body, "{" ASK ",\"tool_choice\":\"required\",\"max_tokens\":60,\"tools\":[");
        for (int i = 0; i < 1000; i++)
            at += sprintf(at, "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%d\"%s}}", i ? "," : "",
                          i, parameters[k]);
        strcpy(at, "]}");
        struct reply called = post(CHAT, body);
        if (k) {
            expect_words(called, 400, "invalid_request", "the body has more than");
            continue;
        }
        json_t *root = reply_json(&called);
        cr_assert_eq(called.status, 200, "%s", called.body);
        const char *name = json_text(root, "choices.0.message.tool_calls.0.function.name");
        cr_assert_eq(strncmp(name, "tool_", 5), 0, "%s", called.body);
        json_decref(root);
        reply_free(&called);
    }
    client_read(stream, &r, false);
    events_read(&e, &r);
    cr_assert(e.done);
    cr_assert_eq(json_number(e.data[e.n - 1], "usage.completion_tokens"), 200);
    events_free(&e);
    reply_free(&r);
    close(stream);
}

Test(tool_choice, the_named_function_is_called_in_every_dialect)
{
    start();
    json_t *root =
        ask(CHAT, ASK "," TOOLS ",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\","
                      "\"function\":{\"name\":\"weather\"}}");
    cr_assert_str_eq(json_text(root, CALL ".name"), "weather");
    expect_text_call(root, CALL ".name", CALL ".arguments");
    json_decref(root);
    root = ask(CHAT,
               ASK "," TOOLS ",\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"allowed_tools\","
                   "\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":"
                   "{\"name\":\"stop\"}}]}}");
    cr_assert_str_eq(json_text(root, CALL ".name"), "stop");
    json_decref(root);
    root = ask("/v1/messages", SAID
               ",\"max_tokens\":400,\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"name\":\"weather\","
               "\"input_schema\":" SCHEMA "}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"weather\","
               "\"disable_parallel_tool_use\":true}");
    expect_call(json_text(root, "content.0.name"), json_at(root, "content.0.input"));
    cr_assert_str_eq(json_text(root, "stop_reason"), "tool_use");
    json_decref(root);
    root =
        ask("/v1/responses",
            "\"input\":\"a\",\"reasoning\":{\"effort\":\"none\"},\"tools\":[{\"type\":\"function\",\"name\":"
            "\"weather\",\"parameters\":" SCHEMA
            "}],\"parallel_tool_calls\":false,\"tool_choice\":{\"type\":\"function\",\"name\":\"weather\"}");
    expect_text_call(root, "output.0.name", "output.0.arguments");
    json_decref(root);
    end();
}

Test(tool_choice, a_choice_that_cannot_be_met_is_refused_by_name)
{
    static const struct {
        const char *members, *words;
    } cases[] = {
        {"\"tool_choice\":\"required\"", "tool_choice needs tools"},
        {TOOLS ",\"tool_choice\":\"always\"", "tool_choice must be"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice must be"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"walk\"}}",
         "tool_choice names walk, which is not among the tools"},
        {TOOLS ",\"chat_format\":\"gemma4\",\"tool_choice\":\"required\"", "format gemma4 cannot be forced"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
         "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{"
         "\"type\":\"object\"}}}}}}],\"tool_choice\":\"required\"",
         "uniqueItems"},
    };
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{" ASK ",%s}", cases[i].members);
        struct reply r = post(CHAT, body);
        cr_assert_eq(r.status, 400, "%s", r.body);
        cr_assert(strstr(r.body, cases[i].words), "%s", r.body);
        cr_assert(strstr(r.body, "\"param\":\"tool_choice\""), "%s", r.body);
        reply_free(&r);
    }
    end();
}

/* The random model cannot end its reasoning, so its text is all of it; without one it is the schema's. */
Test(tool_choice, a_format_waits_for_the_end_of_the_reasoning_that_the_prompt_opened)
{
    start();
    json_t *root =
        ask(CHAT, SAID ",\"reasoning_effort\":\"high\",\"max_tokens\":20,\"response_format\":{\"type\":"
                       "\"json_schema\",\"json_schema\":{\"schema\":{\"enum\":[true]}}}");
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "length");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), "");
    cr_assert_neq(strlen(json_text(root, "choices.0.message.reasoning_content")), 0);
    json_decref(root);
    root = ask(CHAT, ASK ",\"max_tokens\":20,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{"
                         "\"schema\":{\"enum\":[true]}}}");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), "true");
    json_decref(root);
    end();
}

/* A text that a schema allows is the answer, whatever marks of calls and reasoning stand in it. */
Test(tool_choice, marks_in_json_of_a_schema_are_words)
{
    static const struct {
        const char *format, *json;
    } cases[] = {
        {"hermes", "[\"<think>a</think>\",\"<tool_call>{}</tool_call>\"]"},
        {"qwen3.5", "{\"<function=f></function>\":true}"},
        {"harmony", "\"<|end|><|start|>assistant to=f<|message|>{}<|call|>\""},
        {"llama3-json", "{\"name\":\"stop\",\"parameters\":{}}"},
        {"mistral-nemo", "[\"[TOOL_CALLS][{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}]\"]"},
    };
    start();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char members[1536];
        snprintf(members, sizeof members, ASK ",\"chat_format\":\"%s\",\"guided_json\":{\"const\":%s}," TOOLS,
                 cases[i].format, cases[i].json);
        json_t *root = ask(CHAT, members), *want = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        const char *content = json_text(root, "choices.0.message.content");
        json_t *got = json_loads(content, JSON_DECODE_ANY, NULL);
        cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
        cr_assert(json_equal(got, want), "%s: %s", cases[i].format, content);
        json_decref(got);
        json_decref(want);
        json_decref(root);
    }
    end();
}

/* ---- strict tools that may be called ---- */

#define STRICT                                                                                               \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"strict\":%s,"                    \
    "\"parameters\":" SCHEMA "}}]"

static char *ask_strict(const char *strict, int seed, const char *rest)
{
    char members[2048];
    int n = snprintf(members, sizeof members, ASK ",\"max_tokens\":60,\"seed\":%d%s,", seed, rest);
    snprintf(members + n, sizeof members - (size_t)n, STRICT, strict);
    json_t *root = ask(CHAT, members);
    char *text = json_dumps(json_at(root, "choices.0.message"), JSON_SORT_KEYS);
    json_decref(root);
    return text;
}

/* The demo model tells stories, in which no call opens. */
Test(tool_choice, a_strict_tool_that_is_not_called_leaves_the_text_as_it_is)
{
    strcpy(model, "/tmp/hearth-template-XXXXXX");
    int fd = mkstemp(model);
    cr_assert(fd >= 0 && write(fd, HERMES, sizeof HERMES - 1) == (ssize_t)sizeof HERMES - 1);
    close(fd);
    daemon_start((const char *[]){"--chat-template", model, NULL});
    for (int seed = 0; seed < 4; seed++) {
        char *free_text = ask_strict("false", seed, ""), *strict = ask_strict("true", seed, ""),
             *greedy = ask_strict("true", seed, ",\"temperature\":0"),
             *free_greedy = ask_strict("false", seed, ",\"temperature\":0");
        cr_assert_str_eq(free_text, strict);
        cr_assert_str_eq(free_greedy, greedy);
        free(free_text);
        free(strict);
        free(greedy);
        free(free_greedy);
    }
    end();
}

Test(tool_choice, a_strict_tool_whose_schema_cannot_be_held_is_refused_with_auto_too)
{
    start();
    struct reply r =
        post(CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                   "\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":"
                   "\"array\",\"uniqueItems\":true}}}}}]}");
    cr_assert_eq(r.status, 400, "%s", r.body);
    cr_assert(strstr(r.body, "uniqueItems") && strstr(r.body, "\"param\":\"tools\""), "%s", r.body);
    reply_free(&r);
    end();
}
