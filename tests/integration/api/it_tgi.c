/* TGI's dialect: POST /generate_stream. */
#include "integration/harness.h"

#define ROUTE "/generate_stream"

DAEMON_TEST(tgi, each_event_has_a_token_and_the_last_the_whole_text)
{
    char text[512] = "";
    struct reply r = post(ROUTE, "{\"inputs\":\"Once upon a time\",\"parameters\":{\"max_new_tokens\":12,"
                                 "\"do_sample\":false,\"return_full_text\":true}}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert(!strstr(r.body, "[DONE]"));
    const json_t *whole = NULL;
    json_t *events = json_array();
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *event = json_loads(line + 6, 0, NULL);
        cr_assert(event && !whole, "%s", line);
        json_array_append_new(events, event);
        strncat(text, json_text(event, "token.text"), 100);
        cr_assert(json_number(event, "token.logprob") <= 0);
        bool again = json_array_size(events) == 13; /* the last one, which has no text of its own */
        cr_assert_eq(json_number(event, "index"), again ? 12 : json_array_size(events));
        whole = json_is_string(json_at(event, "generated_text")) ? event : NULL;
    }
    cr_assert(whole);
    cr_assert_eq(json_array_size(events), 13);
    cr_assert_eq(strncmp(json_text(whole, "generated_text"), "Once upon a time, there was", 27), 0);
    cr_assert_str_eq(json_text(whole, "generated_text") + 16, text);
    cr_assert_str_eq(json_text(whole, "details.finish_reason"), "length");
    cr_assert_eq(json_number(whole, "details.generated_tokens"), 12);
    json_decref(events);
    reply_free(&r);
}

DAEMON_TEST(tgi, a_reply_that_is_not_streamed_has_its_details)
{
    struct reply r = post(ROUTE, "{\"inputs\":\"Once upon a time\",\"stream\":false,\"parameters\":{"
                                 "\"stop\":[\" little\"],\"details\":true,\"seed\":3}}");
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_str_eq(json_text(root, "generated_text"), ", there was a");
    cr_assert_str_eq(json_text(root, "details.finish_reason"), "stop_sequence");
    cr_assert_eq(json_array_size(json_at(root, "details.tokens")),
                 json_number(root, "details.generated_tokens"));
    json_decref(root);
    reply_free(&r);
    r = post(ROUTE, "{\"inputs\":\"Once\",\"stream\":false,\"parameters\":{\"grammar\":{\"type\":\"regex\","
                    "\"value\":\"yes\"}}}");
    root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "generated_text"), "yes");
    cr_assert_str_eq(json_text(root, "generated_text"), "yes");
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(tgi, the_address_alone_answers_whole_unless_a_stream_is_asked_for)
{
    static const char body[] = "{\"inputs\":\"Once upon a time\",\"parameters\":{\"max_new_tokens\":3}";
    char text[256];
    snprintf(text, sizeof text, "%s}", body);
    struct reply r = post("/", text);
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_eq(json_array_size(root), 1);
    cr_assert_str_eq(json_text(root, "0.generated_text"), ", there was");
    json_decref(root);
    reply_free(&r);
    snprintf(text, sizeof text, "%s,\"stream\":true}", body);
    r = post("/", text);
    cr_assert_not_null(strstr(r.body, "\"generated_text\":\", there was\""), "%s", r.body);
    cr_assert_eq(strncmp(r.body, "data: {\"index\":1,", 17), 0, "%s", r.body);
    reply_free(&r);
    r = post("/", "{\"inputs\":7}");
    cr_assert_eq(r.status, 400);
    cr_assert_not_null(strstr(r.body, "\"error_type\":\"invalid_request\""), "%s", r.body);
    reply_free(&r);
    r = get("/");
    cr_assert_eq(strncmp(r.body, "<!", 2), 0);
    reply_free(&r);
}

DAEMON_TEST(tgi, refusals_have_its_form_and_name_the_field)
{
    static const char *const cases[][2] = {
        {"{}", "inputs is missing"},
        {"{\"inputs\":5}", "inputs must be a string"},
        {"{\"inputs\":\"a\",\"parameters\":{\"max_new_tokens\":-1}}",
         "parameters.max_new_tokens must be between 0 and 1024 (got -1)"},
        {"{\"inputs\":\"a\",\"parameters\":{\"top_n_tokens\":99}}",
         "parameters.top_n_tokens must be between"},
        {"{\"inputs\":\"a\",\"parameters\":{\"grammar\":{\"type\":\"regex\",\"value\":\"(?<=a)\"}}}",
         "parameters.grammar.value: a lookbehind"},
        {"{\"inputs\":\"a\",\"parameters\":{\"grammar\":{\"type\":\"json\",\"value\":5}}}",
         "parameters.grammar.value must be a JSON schema"},
        {"{\"inputs\":\"a\",\"parameters\":{\"truncate\":0}}",
         "parameters.truncate must be -1 or at least 1"},
        {"{\"inputs\":\"a\",\"parameters\":{\"grammar\":{\"type\":\"lark\"}}}", "must have type json"},
        {"{\"inputs\":\"a\",\"parameters\":{\"grammar\":{\"type\":\"regex\"}}}",
         "parameters.grammar.value is missing"},
        {"{\"inputs\":\"a\",\"parameters\":{\"grammar\":{\"type\":\"json\",\"value\":null}}}",
         "parameters.grammar.value is missing"},
        {"{\"inputs\":\"a\",\"parameters\":{\"temperature\":\"x\"}}",
         "parameters.temperature must be a number (got a string)"},
        {"{\"inputs\":\"a\",\"parameters\":{\"temperature\":7}}",
         "parameters.temperature must be between 0 and 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(ROUTE, cases[i][0]);
        json_t *root = reply_json(&r);
        cr_assert_eq(r.status, 400, "%s", r.body);
        cr_assert(strstr(json_text(root, "error"), cases[i][1]), "%s", r.body);
        cr_assert_str_eq(json_text(root, "error_type"), "invalid_request");
        json_decref(root);
        reply_free(&r);
    }
}
