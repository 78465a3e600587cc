/* Anthropic's messages over HTTP. */
#include "support/chat_driver.h"

static const char anthropic[] =
    "{\"model\":\"m\",\"max_tokens\":32000,%s\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-"
    "header: a\"},"
    "{\"type\":\"text\",\"text\":\"S\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"thinking\":{\"type\":"
    "\"adaptive\"},"
    "\"tools\":[{\"name\":\"get_weather\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"city\":{"
    "\"type\":"
    "\"string\"}}}},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}],\"metadata\":{\"user_id\":"
    "\"u\"},"
    "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]},"
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"\"},{"
    "\"type\":\"tool_use\","
    "\"id\":\"toolu_1\",\"name\":\"get_weather\",\"input\":{\"city\":\"x\"}}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":[{"
    "\"type\":\"text\","
    "\"text\":\"7\"}]},{\"type\":\"text\",\"text\":\"go\"}]},{\"role\":\"system\",\"content\":\"late\"}]}";

static struct reply ask_anthropic(const char *path, const char *more)
{
    char body[4096];
    snprintf(body, sizeof body, anthropic, more);
    return post(path, body);
}

/* Members of their types that are null here: a client may ask for each without looking first. */
static void expect_nothing_in(const json_t *message)
{
    static const char *const members[] = {
        "stop_sequence",        "stop_details",          "container",
        "usage.cache_creation", "usage.server_tool_use", "usage.service_tier"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        cr_assert(json_is_null(json_at(message, members[i])), "%s", members[i]);
}

Test(anthropic, anthropics_messages_have_blocks)
{
    start_template(THINKS, "auto");
    script("Hm.</think>Let me see. " CALL "<|endoftext|>");
    struct reply r = ask_anthropic("/v1/messages?beta=true", "");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "type"), "message");
    cr_assert_str_eq(json_text(root, "content.0.thinking"), "Hm.");
    cr_assert_str_eq(json_text(root, "content.1.text"), "Let me see. ");
    cr_assert_not(strstr(r.body, "citations")); /* null is what the AI SDK refuses */
    cr_assert_str_eq(json_text(root, "content.2.name"), "get_weather");
    cr_assert_str_eq(json_text(root, "content.2.input.city"), "Be rn");
    cr_assert_str_eq(json_text(root, "content.2.caller.type"), "direct");
    cr_assert_str_eq(json_text(root, "stop_reason"), "tool_use");
    cr_assert_gt(json_number(root, "usage.input_tokens"), 0);
    expect_nothing_in(root);
    json_decref(root);
    reply_free(&r);
    r = ask_anthropic("/v1/messages/count_tokens", "");
    root = reply_json(&r);
    cr_assert_eq((uint32_t)json_number(root, "input_tokens"), fake.last.n_prompt);
    json_decref(root);
    reply_free(&r);
    stop();
}

Test(anthropic, anthropics_stream_opens_and_closes_each_block_in_order)
{
    static const char *const order[] = {"event: message_start\n",
                                        "event: content_block_start\n",
                                        "\"index\":0",
                                        "thinking_delta",
                                        "event: content_block_stop\n",
                                        "event: content_block_start\n",
                                        "\"index\":1",
                                        "text_delta",
                                        "event: content_block_stop\n",
                                        "event: content_block_start\n",
                                        "\"index\":2",
                                        "\"input\":{}",
                                        "input_json_delta",
                                        "event: content_block_stop\n",
                                        "event: message_delta\n",
                                        "\"stop_reason\":\"tool_use\"",
                                        "event: message_stop\n"};
    start_template(THINKS, "auto");
    script("Hm.</think>Let me see. " CALL "<|endoftext|>");
    struct reply r = ask_anthropic("/v1/messages", "\"stream\":true,");
    cr_assert_eq(r.status, 200, "%s", r.body);
    const char *at = r.body;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        cr_assert(at = strstr(at, order[i]), "no %s in %s", order[i], r.body);
    cr_assert(!strstr(r.body, "[DONE]"));
    reply_free(&r);
    stop();
}

/* The engine may be writing the number then. */
SERVER_TEST(anthropic, anthropics_stream_that_a_keep_alive_began_counts_the_cache_at_its_end, "keepalive_ms",
            "100")
{
    fake.n_cached = 1;
    fake.hold = true;
    int fd = client_connect(f.port);
    struct reply r = {0};
    client_request(fd, "POST", "/v1/messages", "", "{\"max_tokens\":50,\"stream\":true," ASK "}");
    while (!r.raw || !strstr(r.raw, ": keep-alive"))
        cr_assert(reply_more(&r, fd));
    cr_assert(strstr(r.raw, "\"cache_read_input_tokens\":0,"), "%s", r.raw);
    fake.hold = false;
    while (!strstr(r.raw, "event: message_stop"))
        cr_assert(reply_more(&r, fd));
    const char *end = strstr(r.raw, "event: message_delta");
    cr_assert(end && strstr(end, "\"cache_read_input_tokens\":1,"), "%s", r.raw);
    reply_free(&r);
    close(fd);
}

/* They were skipped: the model did not see what it was asked about. */
Test(anthropic, anthropics_search_results_and_documents_of_plain_text_are_read)
{
#define FOUND                                                                                                \
    "{\"type\":\"search_result\",\"title\":\"T\",\"source\":\"s\",\"content\":[{\"type\":\"text\",\"text\":" \
    "\"a\"},{"                                                                                               \
    "\"type\":\"text\",\"text\":\"b\"}]}"
    start_template("{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}", "auto");
    script("x<|endoftext|>");
    struct reply r = post(
        "/v1/messages",
        "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[" FOUND
        ",{\"type\":\"document\",\"title\":\"D\",\"source\":{\"type\":\"text\",\"media_type\":\"text/plain\","
        "\"data\":\"d\"}},{\"type\":\"text\",\"text\":\"q\"}]}]}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    expect_prompt("[user T\ns\na\nb\nD\nd\nq]");
    reply_free(&r);
    stop();
}

/* The tool runner of Anthropic's SDK then sends the whole conversation; else its second request had the
 * tool's result alone.
 */
Test(anthropic, anthropics_threads_are_refused_in_the_words_that_their_client_looks_for)
{
    static const char *const threads[] = {"\"create\"}", "\"continue\",\"previous_message_id\":\"msg_1\"}"};
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"max_tokens\":5,\"thread\":{\"type\":%s," ASK "}", threads[i]);
        struct reply r = post("/v1/messages", body);
        json_t *root = reply_json(&r);
        cr_assert_eq(r.status, 400);
        cr_assert(strstr(json_text(root, "error.message"), "thread is not supported"), "%s", r.body);
        cr_assert_str_eq(json_text(root, "error.details.error_code"), "thread_unsupported_request");
        cr_assert_str_eq(json_text(root, "error.details.unsupported.0"), "thread");
        json_decref(root);
        reply_free(&r);
    }
    struct reply r = post("/v1/messages", "{\"max_tokens\":5,\"thread\":null," ASK "}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    stop();
}

Test(anthropic, anthropics_errors_have_their_own_form)
{
    start_template(HERMES, "auto");
    struct reply r =
        post("/v1/messages",
             "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}");
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 400);
    cr_assert_str_eq(json_text(root, "type"), "error");
    cr_assert_str_eq(json_text(root, "error.type"), "invalid_request_error");
    cr_assert(strstr(json_text(root, "error.message"), "messages[0].content[0].type"), "%s", r.body);
    json_decref(root);
    reply_free(&r);
    stop();
}
