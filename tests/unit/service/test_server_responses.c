/* OpenAI's responses over HTTP. */
#include "support/chat_driver.h"

static const char responses[] =
    "{\"model\":\"m\",%s\"max_output_tokens\":32000,\"store\":false,\"include\":[\"reasoning.encrypted_"
    "content\"],\"client_metadata\":{\"a\":\"b\"},\"reasoning\":{\"summary\":\"auto\"},\"tools\":["
    "{\"type\":\"function\",\"name\":\"lone\",\"strict\":false,\"parameters\":{\"type\":\"object\"}},"
    "{\"type\":\"namespace\",\"name\":\"get\",\"tools\":[{\"type\":\"function\",\"name\":\"weather\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}]},"
    "{\"type\":\"web_search\",\"external_web_access\":false}],\"input\":["
    "{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\","
    "\"text\":\"D\"}]},{\"role\":\"user\",\"content\":\"U\"},"
    "{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":null,\"encrypted_content\":null},"
    "{\"type\":\"reasoning\",\"id\":\"rs_2\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
    "\"text\":\"R\"}]},"
    "{\"type\":\"function_call\",\"id\":\"fc_1\",\"call_id\":\"call_1\",\"name\":\"weather\",\"namespace\":"
    "\"get\",\"arguments\":\"{\\\"city\\\":\\\"x\\\"}\"},"
    "{\"type\":\"function_call_output\",\"call_id\":\"call_1\",\"output\":[{\"type\":\"input_text\","
    "\"text\":\"7\"}]},"
    "{\"type\":\"web_search_call\",\"id\":\"ws_1\"}]}";

/* Writes the roles, contents, reasoning and calls that it was given. */
#define SHOWS                                                                                                \
    "{% for m in messages %}{{ m.role[0] }}{{ m.content or '' }}{{ m.reasoning_content }}{% for c in "       \
    "m.tool_calls"                                                                                           \
    " %}{{ c.function.name }}{% endfor %}{% endfor %}{% if tools %}<tool_call>{% endif %}<think>\n"

#define GET_CALL "<tool_call>\n{\"name\": \"get__weather\", \"arguments\": {\"city\": \"Be\"}}\n</tool_call>"

static struct reply ask_responses(const char *more)
{
    char body[4096];
    snprintf(body, sizeof body, responses, more);
    return post("/v1/responses", body);
}

Test(responses, responses_are_items_in_the_order_of_the_text)
{
    start_template(SHOWS, "auto");
    script("Hm.</think>See. " GET_CALL "<|endoftext|>");
    struct reply r = ask_responses("");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "object"), "response");
    cr_assert_str_eq(json_text(root, "status"), "completed");
    cr_assert_str_eq(json_text(root, "output.0.content.0.text"), "Hm.");
    cr_assert_str_eq(json_text(root, "output.1.content.0.type"), "output_text");
    cr_assert_str_eq(json_text(root, "output.1.content.0.text"), "See. ");
    cr_assert_str_eq(json_text(root, "output.2.type"), "function_call");
    cr_assert_str_eq(json_text(root, "output.2.name"), "weather");
    cr_assert_str_eq(json_text(root, "output.2.namespace"), "get");
    cr_assert_str_eq(json_text(root, "output.2.arguments"), "{\"city\": \"Be\"}");
    cr_assert_gt(json_number(root, "usage.output_tokens_details.reasoning_tokens"), 0);
    cr_assert_eq(json_number(root, "usage.input_tokens_details.cache_write_tokens"), 0);
    cr_assert_gt(json_number(root, "completed_at"), 0);
    json_decref(root);
    reply_free(&r);
    stop();
}

/* The object of each event has them too. */
Test(responses, responses_give_back_what_the_request_said)
{
    static const char said[] = "\"instructions\":\"I\",\"metadata\":{\"run\":\"7\"},\"tool_choice\":\"none\","
                               "\"user\":\"u\",\"text\":{\"verbosity\":"
                               "\"low\",\"format\":null},\"prompt_cache_key\":\"k\",\"stream\":true,";
    static const char *const back[] = {
        "\"instructions\":\"I\"",
        "\"metadata\":{\"run\":\"7\"}",
        "\"tool_choice\":\"none\"",
        "\"tools\":[{\"type\":\"function\",\"name\":\"lone\",\"strict\":false,",
        "{\"type\":\"web_search\",\"external_web_access\":false}]",
        "\"reasoning\":{\"effort\":null,\"summary\":\"auto\"}",
        "\"text\":{\"format\":{\"type\":\"text\"},\"verbosity\":\"low\"}",
        "\"prompt_cache_key\":\"k\"",
        "\"safety_identifier\":null",
        "\"user\":\"u\"",
    };
    start_template(SHOWS, "auto");
    script("</think><tool_call>{\"name\":\"lone\",\"arguments\":{}}</tool_call><|endoftext|>");
    struct reply r = ask_responses(said);
    cr_assert_eq(r.status, 200, "%s", r.body);
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        unsigned n = 0;
        for (const char *s = r.body; (s = strstr(s, back[i])); s++)
            n++;
        cr_expect_eq(n, 3, "%s: %u times in %s", back[i], n, r.body);
    }
    reply_free(&r);
    r = post("/v1/responses", "{\"input\":\"a\"}");
    cr_expect(strstr(r.body, "\"instructions\":null,\"metadata\":{},\"tools\":[],\"tool_choice\":\"auto\""),
              "%s", r.body);
    reply_free(&r);
    stop();
}

Test(responses, responses_give_a_namespace_to_its_own_tools_alone)
{
    start_template(SHOWS, "auto");
    script("</think><tool_call>{\"name\":\"get__weather\",\"arguments\":{}}</tool_call><|endoftext|>");
    struct reply r = post("/v1/responses",
                          "{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"get\",\"tools\":[{"
                          "\"type\":\"function\",\"name\":\"time\"}]},{\"type\":\"function\",\"name\":"
                          "\"get__weather\"}]}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert(strstr(r.body, "\"name\":\"get__weather\""), "%s", r.body);
    cr_assert_null(strstr(strstr(r.body, "\"output\":["), "\"namespace\""), "%s", r.body);
    json_decref(root);
    reply_free(&r);
    char body[1024];
    snprintf(body, sizeof body,
             "{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"get\",\"tools\":[{\"type\":"
             "\"function\",\"name\":\"%0300d\"}]}]}",
             1);
    r = post("/v1/responses", body);
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, "may have 253 bytes together (got 303)"), "%s", r.body);
    reply_free(&r);
    stop();
}

Test(responses, responses_make_one_message_of_an_answers_items)
{
    start_template(SHOWS, "auto");
    script("</think>x<|endoftext|>");
    struct reply r = ask_responses("\"instructions\":\"I\",");
    cr_assert_eq(r.status, 200, "%s", r.body);
    expect_prompt("sIsDuUaRget__weathert7<tool_call><think>");
    reply_free(&r);
    stop();
}

/* Each event names itself twice and has the next number. */
static json_t *next_event(char **at, unsigned number, char name[64])
{
    char *event = strstr(*at, "event: "), *data = event ? strstr(event, "data: ") : NULL;
    cr_assert(data, "no event %u", number);
    cr_assert_eq(sscanf(event, "event: %63s", name), 1);
    char *end = strstr(data, "\n\n");
    cr_assert(end);
    *end = '\0';
    *at = end + 1;
    json_t *root = json_loads(data + 6, 0, NULL);
    cr_assert(root, "%s", data);
    cr_assert_str_eq(json_text(root, "type"), name);
    cr_assert_eq((unsigned)json_number(root, "sequence_number"), number);
    return root;
}

/* The tokens of a list of log-probabilities as a text. */
static void join_tokens(char *to, const json_t *list)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        cr_assert_eq(json_array_size(json_object_get(item, "top_logprobs")), 2);
        join(to, item, "token");
    }
}

/* Those of the message alone, in its deltas and in the response at the end. */
Test(responses, a_message_has_the_log_probabilities_of_its_tokens)
{
    char name[64], deltas[256] = "", last[256] = "", whole[256] = "";
    start_template(SHOWS, "auto");
    script("Hm.</think>See it. " GET_CALL "<|endoftext|>");
    struct reply r = ask_responses("\"top_logprobs\":2,");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number(root, "top_logprobs"), 2, "%s", r.body);
    join_tokens(whole, json_at(root, "output.1.content.0.logprobs"));
    json_decref(root);
    reply_free(&r);
    script("Hm.</think>See it. " GET_CALL "<|endoftext|>");
    r = ask_responses("\"top_logprobs\":2,\"stream\":true,");
    char *at = r.body;
    for (unsigned i = 0; !*last; i++) {
        root = next_event(&at, i, name);
        if (!strcmp(name, "response.output_text.delta"))
            join_tokens(deltas, json_at(root, "logprobs"));
        if (!strcmp(name, "response.completed"))
            join_tokens(last, json_at(root, "response.output.1.content.0.logprobs"));
        json_decref(root);
    }
    cr_expect_str_eq(whole, "See it. ");
    cr_expect_str_eq(deltas, whole);
    cr_expect_str_eq(last, whole);
    reply_free(&r);
    stop();
}

Test(responses, a_response_without_text_has_not_ended_in_its_first_events)
{
    char name[64];
    start_template(SHOWS, "auto");
    script("<|endoftext|>");
    struct reply r = ask_responses("\"stream\":true,");
    char *at = r.body;
    for (unsigned i = 0; i < 2; i++) {
        json_t *root = next_event(&at, i, name);
        cr_assert_str_eq(json_text(root, "response.status"), "in_progress");
        cr_assert(json_is_null(json_at(root, "response.usage")), "%s", name);
        cr_assert(json_is_null(json_at(root, "response.completed_at")), "%s", name);
        cr_assert_eq(json_array_size(json_at(root, "response.output")), 0);
        json_decref(root);
    }
    reply_free(&r);
    stop();
}

Test(responses, responses_stream_opens_and_closes_each_item)
{
    static const char *const order[] = {
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    };
    char name[64], *at;
    unsigned number = 0;
    start_template(SHOWS, "auto");
    script("Hm.</think>See. " GET_CALL "<|endoftext|>");
    struct reply r = ask_responses("\"stream\":true,");
    cr_assert_eq(r.status, 200, "%s", r.body);
    at = r.body;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        json_t *root = next_event(&at, number++, name);
        while (i && !strcmp(name, order[i - 1]) && strcmp(name, order[i])) { /* several deltas */
            json_decref(root);
            root = next_event(&at, number++, name);
        }
        cr_assert_str_eq(name, order[i]);
        if (i + 1 == sizeof order / sizeof *order) {
            cr_assert_str_eq(json_text(root, "response.output.2.arguments"), "{\"city\": \"Be\"}");
            cr_assert_gt(json_number(root, "response.usage.output_tokens"), 0);
        }
        json_decref(root);
    }
    reply_free(&r);
    stop();
}

Test(responses, a_response_that_was_cut_is_incomplete)
{
    start_template(THINKS, "auto");
    script("</think>See what is there");
    struct reply r = post("/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":6}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "status"), "incomplete", "%s", r.body);
    cr_assert_str_eq(json_text(root, "incomplete_details.reason"), "max_output_tokens");
    cr_assert_str_eq(json_text(root, "output.0.status"), "incomplete");
    json_decref(root);
    reply_free(&r);
    stop();
}

Test(responses, responses_refuse_what_needs_a_store_or_is_of_another_type)
{
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}", "previous_response_id"},
        {"{\"input\":\"a\",\"conversation\":\"c\"}", "conversation"},
        {"{\"input\":\"a\",\"background\":true}", "background"},
        {"{\"input\":\"a\",\"prompt\":{\"id\":\"p\"}}", "prompt"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0].content[0]"},
        {"{\"input\":[{\"content\":\"a\"}]}", "input[0].role"},
        {"{\"input\":[]}", "input"},
        {"{}", "input"},
        {"{\"input\":\"a\",\"instructions\":[]}", "instructions"},
        {"{\"input\":\"a\",\"metadata\":1}", "metadata"},
        {"{\"input\":\"a\",\"tools\":\"x\"}", "tools"},
        {"{\"input\":\"a\",\"reasoning\":\"high\"}", "reasoning"},
        {"{\"input\":\"a\",\"text\":[]}", "text"},
    };
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post("/v1/responses", cases[i].body);
        json_t *root = reply_json(&r);
        cr_assert_eq(r.status, 400, "%s", r.body);
        cr_assert_str_eq(json_text(root, "error.param"), cases[i].param);
        json_decref(root);
        reply_free(&r);
    }
    stop();
}
