/* What the dialects of chats refuse, each by the name that its client knows. */
#include "support/chat_driver.h"

Test(refusals, a_member_that_is_missing_is_said_to_be_nothing)
{
    static const struct {
        const char *path, *body, *words;
    } cases[] = {
        {"/v1/messages", "{}", "messages must be an array of at least one message (got nothing)"},
        {"/v1/messages/count_tokens", "{}",
         "messages must be an array of at least one message (got nothing)"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\"}]}",
         "messages[0].content must be a string or an array of blocks (got nothing)"},
        {"/v1/responses", "{}", "input must be a string or an array of at least one item (got nothing)"},
        {"/v1/embeddings", "{\"input\":[\"\"]}", "input gives an empty prompt"},
    };
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(cases[i].path, cases[i].body);
        cr_assert_eq(r.status, 400, "%s", r.body);
        cr_assert(strstr(r.body, cases[i].words), "%s", r.body);
        reply_free(&r);
    }
    stop();
}

/* In dialects whose unknown members pass, those that are known and of another type do not. */
Test(refusals, a_member_of_another_type_is_refused_by_name)
{
    static const struct {
        const char *path, *member, *words;
    } cases[] = {
        {"/v1/messages", "\"system\":5", "system must be a string or an array (got 5)"},
        {"/v1/messages", "\"tools\":{}", "tools must be an array (got an object)"},
        {"/v1/messages", "\"tool_choice\":\"any\"", "tool_choice must be an object (got a string)"},
        {"/v1/messages", "\"thinking\":true", "thinking must be an object (got true)"},
        {"/v1/messages/count_tokens", "\"system\":false", "system must be a string or an array (got false)"},
        {"/v1/responses", "\"tool_choice\":1", "tool_choice must be a string or an object (got 1)"},
        {"/v1/responses", "\"model\":[]", "model must be a string (got an empty array)"},
        {"/v1/responses", "\"input\":[{\"role\":\"user\",\"content\":5}]",
         "input[0].content must be a string or an array (got 5)"},
        {"/v1/chat/completions", "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":5}",
         "response_format.json_schema must be an object (got 5)"},
        {"/v1/chat/completions", "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters must be an object (got an empty array)"},
        {"/api/chat", "\"options\":[]", "options must be an object (got an empty array)"},
        {"/api/chat", "\"stream\":\"no\"", "stream must be true or false (got a string)"},
        {"/api/chat", "\"think\":1.5", "think must be a string or true or false (got 1.5)"},
        {"/api/chat", "\"messages\":[{\"role\":\"user\",\"content\":[]}]",
         "messages[0].content must be a string (got an empty array)"},
        {"/api/generate", "\"prompt\":5", "prompt must be a string (got 5)"},
        {"/generate_stream", "\"inputs\":\"a\",\"parameters\":[]",
         "parameters must be an object (got an empty array)"},
        {"/completion", "\"prompt\":\"a\",\"logit_bias\":\"x\"",
         "logit_bias must be an object or an array (got a string)"},
    };
    static const char rest[] = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        bool chats = strstr(cases[i].path, "chat") || strstr(cases[i].path, "messages");
        const char *more = chats && !strstr(cases[i].member, "messages") ? rest
                           : !strcmp(cases[i].path, "/v1/responses") && !strstr(cases[i].member, "input")
                               ? "\"input\":\"a\""
                               : NULL;
        snprintf(body, sizeof body, "{%s%s%s}", cases[i].member, more ? "," : "", more ? more : "");
        struct reply r = post(cases[i].path, body);
        cr_expect_eq(r.status, 400, "%s %s: %s", cases[i].path, body, r.body);
        cr_expect(strstr(r.body, cases[i].words), "%s %s: %s", cases[i].path, body, r.body);
        reply_free(&r);
    }
    stop();
}

/* Nothing that a client said of its words, tools or limits is left out in silence. */
Test(refusals, what_cannot_be_read_is_named_with_its_place)
{
#define USER(content)      "{\"messages\":[{\"role\":\"user\",\"content\":" content "}]}"
#define ANTHROPIC(members) "{" members "," ASK "}"
    static const struct {
        const char *path, *body, *words;
    } cases[] = {
        {"/v1/messages", USER("[\"a\"]"), "messages[0].content[0] must be an object (got a string)"},
        {"/v1/messages", USER("[{\"text\":\"a\"}]"),
         "messages[0].content[0].type must be a string (got nothing)"},
        {"/v1/messages", USER("[{\"type\":\"text\",\"text\":5}]"),
         "messages[0].content[0].text must be a string (got 5)"},
        {"/v1/messages", USER("[{\"type\":\"search_result\"}]"),
         "messages[0].content[0].content must be an array (got nothing)"},
        {"/v1/messages", USER("[{\"type\":\"document\",\"source\":{\"type\":\"text\"}}]"),
         "messages[0].content[0].source.data must be a string (got nothing)"},
        {"/v1/messages", USER("[{\"type\":\"search_result\",\"content\":[{}]}]"),
         "messages[0].content[0].content[0].text must be a string (got nothing)"},
        {"/v1/messages", USER("[{\"type\":\"document\",\"source\":{\"type\":\"base64\"}}]"),
         "messages[0].content[0].type must be \\\"text\\\": the model reads text only (got "
         "\\\"document\\\")"},
        {"/v1/messages", USER("[{\"type\":\"tool_result\",\"content\":5}]"),
         "messages[0].content[0].content must be a string or an array (got 5)"},
        {"/v1/messages",
         "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"input\":{}}]}]}",
         "messages[0].content[0].name must be a string (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"system\":[{\"type\":\"text\"}]"),
         "system[0].text must be a string (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"tools\":[5]"), "tools[0] must be an object (got 5)"},
        {"/v1/messages", ANTHROPIC("\"tools\":[{\"name\":\"f\"}]"),
         "tools[0].input_schema must be an object (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"tools\":[{\"input_schema\":{}}]"),
         "tools[0].name must be a string (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"tool_choice\":{}"), "tool_choice.type must be a string (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"thinking\":{\"type\":\"deep\"}"),
         "thinking.type must be enabled, disabled, adaptive or between_tools (got \\\"deep\\\")"},
        {"/v1/messages", ANTHROPIC("\"thinking\":{}"), "thinking.type must be enabled"},
        {"/v1/messages", ANTHROPIC("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":\"x\"}"),
         "thinking.budget_tokens must be an integer (got a string)"},
        {"/v1/messages", ANTHROPIC("\"output_config\":{\"effort\":5}"),
         "output_config.effort must be a string (got 5)"},
        {"/v1/messages", ANTHROPIC("\"output_config\":{\"format\":{\"type\":\"xml\"}}"),
         "output_config.format.type must be json_schema (got \\\"xml\\\")"},
        {"/v1/messages", ANTHROPIC("\"output_config\":{\"format\":{\"type\":\"json_schema\"}}"),
         "output_config.format.schema must be an object (got nothing)"},
        {"/v1/messages", ANTHROPIC("\"output_format\":{\"type\":\"json_schema\"}"),
         "output_format.schema must be an object (got nothing)"},
        {"/v1/responses", "{\"input\":[{\"role\":\"user\"}]}",
         "input[0].content must be a string or an array (got nothing)"},
        {"/v1/responses", "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}",
         "input[0].content[0].text must be a string (got nothing)"},
        {"/v1/responses", "{\"input\":[{\"type\":\"function_call\",\"arguments\":\"{}\"}]}",
         "input[0].name must be a string (got nothing)"},
        {"/v1/responses", "{\"input\":[{\"type\":\"function_call_output\",\"output\":5}]}",
         "input[0].output must be a string or an array (got 5)"},
        {"/v1/responses", "{\"input\":\"a\",\"tools\":[{\"type\":\"function\"}]}",
         "tools[0].name must be a string (got nothing)"},
        {"/v1/responses",
         "{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[5]}]}",
         "tools[0].tools[0] must be an object (got 5)"},
        {"/v1/responses", "{\"input\":\"a\",\"tool_choice\":{\"type\":\"function\"}}",
         "tool_choice.name must be a string (got nothing)"},
        {"/api/chat", "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
         "messages[0].tool_calls[0].function.name must be a string (got nothing)"},
        {"/api/generate", "{\"prompt\":\"a\",\"images\":[\"x\"]}", "images is not supported"},
    };
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(cases[i].path, cases[i].body);
        cr_expect_eq(r.status, 400, "%s: %s", cases[i].body, r.body);
        cr_expect(strstr(r.body, cases[i].words), "%s: %s", cases[i].body, r.body);
        cr_expect(strcmp(cases[i].path, "/v1/messages") ||
                      strstr(r.body, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\""),
                  "%s", r.body);
        reply_free(&r);
    }
    stop();
}

/* The output of a program, and a text that was cut in UTF-16, hold what is no character. */
Test(refusals, an_escape_that_is_no_character_does_not_end_a_talk)
{
#define HALF "a\\u0000b\\ud83d"
    static const char *const cases[][2] = {
        {"/v1/chat/completions", USER("\"" HALF "\"")},
        {"/v1/responses", "{\"input\":\"" HALF "\"}"},
        {"/v1/messages", USER("\"" HALF "\"")},
        {"/v1/messages/count_tokens", USER("\"" HALF "\"")},
        {"/api/chat", USER("\"" HALF "\"")},
        {"/api/generate", "{\"prompt\":\"" HALF "\"}"},
    };
    start_template(HERMES, "auto");
    script("x<|endoftext|>");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(cases[i][0], cases[i][1]);
        cr_expect_eq(r.status, 200, "%s: %s", cases[i][0], r.body);
        expect_prompt("a\xef\xbf\xbd"
                      "b\xef\xbf\xbd:");
        reply_free(&r);
    }
    struct reply r = post("/v1/completions", "{\"prompt\":\"" HALF "\"}");
    cr_expect_eq(r.status, 400, "%s", r.body);
    reply_free(&r);
    stop();
}
