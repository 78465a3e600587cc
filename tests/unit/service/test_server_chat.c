/* Chats over HTTP: what the model writes (the fake engine's script) becomes content, reasoning and tool
 * calls, in whole replies and in streams. */
#include "support/server_driver.h"

#define CHAT "/v1/chat/completions"

static const char tools[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                            "\"parameters\":{\"type\":\"object\","
                            "\"properties\":{\"city\":{\"type\":\"string\"}}}}},{\"type\":\"web_search\"}]";

/* A server whose model has this template. */
static void start_template(const char *source, const char *chat_format)
{
    char path[] = "/tmp/hearth-template-XXXXXX";
    struct error err = {0};
    const char *keys[] = {"chat_format", chat_format, NULL};
    open_server(keys);
    fake.n_ctx = 1024;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, source, strlen(source)), (ssize_t)strlen(source));
    close(fd);
    cr_assert_eq(chat_template_open(&f.chat, path, model_gguf(f.model), f.tokenizer, &err), 0, "%s",
                 err.text);
    unlink(path);
    struct server_model m = {
        .engine = (struct engine *)&fake, .tokenizer = f.tokenizer, .model = f.model, .chat = f.chat};
    m.hash = model_hash(f.model, 0);
    server_set_model(f.server, &m);
    server_set_state(f.server, SERVER_READY);
    pthread_create(&f.thread, NULL, run_loop, NULL);
}

#define HERMES                                                                                               \
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}={{ "             \
    "c.function.arguments.city }}{% endfor %}{% endfor %}{% if tools %}<tool_call>{% endif %}"               \
    "{% if add_generation_prompt %}:{% endif %}"
#define THINKS                                                                                               \
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}<think>\n"

#define ASK  "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define CALL "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Be rn\"}}\n</tool_call>"

static struct reply ask(const char *members)
{
    char body[2048];
    snprintf(body, sizeof body, "{" ASK ",\"temperature\":0%s%s}", *members ? "," : "", members);
    return client_once(f.port, "POST", CHAT, "", body);
}

static json_t *ask_whole(const char *members)
{
    struct reply r = ask(members);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    reply_free(&r);
    return root;
}

static json_t *ask_with_tools(const char *more)
{
    char members[1024];
    snprintf(members, sizeof members, "%s%s", tools, more);
    return ask_whole(members);
}

/* --- whole replies --- */

Test(chat, a_call_is_taken_out_of_the_text)
{
    start_template(HERMES, "auto");
    script(" Let me see.\n" CALL "<|endoftext|>");
    json_t *root = ask_with_tools("");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), " Let me see.");
    cr_assert_str_eq(json_text(root, "choices.0.message.tool_calls.0.type"), "function");
    cr_assert_str_eq(json_text(root, "choices.0.message.tool_calls.0.function.name"), "get_weather");
    cr_assert_str_eq(json_text(root, "choices.0.message.tool_calls.0.function.arguments"),
                     "{\"city\": \"Be rn\"}");
    cr_assert_eq(strlen(json_text(root, "choices.0.message.tool_calls.0.id")), 9);
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "tool_calls");
    json_decref(root);
    script(CALL "\n" CALL "<|endoftext|>");
    root = ask_with_tools("");
    cr_assert(json_is_null(json_at(root, "choices.0.message.content")));
    cr_assert_eq(json_array_size(json_at(root, "choices.0.message.tool_calls")), 2);
    cr_assert_str_neq(json_text(root, "choices.0.message.tool_calls.0.id"),
                      json_text(root, "choices.0.message.tool_calls.1.id"));
    json_decref(root);
    root = ask_with_tools(",\"parallel_tool_calls\":false");
    cr_assert_eq(json_array_size(json_at(root, "choices.0.message.tool_calls")), 1);
    json_decref(root);
    stop();
}

Test(chat, what_is_no_call_is_content)
{
    start_template(HERMES, "auto");
    script("a <tool_call> b {\"name\"<|endoftext|>");
    json_t *root = ask_with_tools("");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), "a <tool_call> b {\"name\"");
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
    json_decref(root);
    stop();
}

Test(chat, without_tools_nothing_is_a_call)
{
    start_template(HERMES, "auto");
    script(CALL "<|endoftext|>");
    json_t *root = ask_whole("");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), CALL);
    json_decref(root);
    root = ask_with_tools(",\"tool_choice\":\"none\"");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), CALL);
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "stop");
    json_decref(root);
    stop();
}

Test(chat, reasoning_that_the_prompt_opened_is_apart)
{
    start_template(THINKS, "auto");
    script("Hmm.\n</think>\n\nYes.<|endoftext|>");
    json_t *root = ask_whole("");
    cr_assert_str_eq(json_text(root, "choices.0.message.reasoning_content"), "Hmm.");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), "Yes.");
    cr_assert_gt(json_number(root, "usage.completion_tokens_details.reasoning_tokens"), 0);
    json_decref(root);
    stop();
}

Test(chat, the_format_is_the_templates_or_the_configurations_or_the_requests)
{
    start_template(HERMES, "mistral-args");
    script("[TOOL_CALLS]get_weather[ARGS]{\"city\": \"x\"}<|endoftext|>");
    json_t *root = ask_with_tools("");
    cr_assert_str_eq(json_text(root, "choices.0.message.tool_calls.0.function.arguments"),
                     "{\"city\": \"x\"}");
    json_decref(root);
    root = ask_with_tools(",\"chat_format\":\"none\"");
    cr_assert_str_eq(json_text(root, "choices.0.message.content"),
                     "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"x\"}");
    json_decref(root);
    expect_words(ask("\"chat_format\":\"x\""), 400, "invalid_request", "chat_format must be auto or");
    stop();
}

Test(chat, a_call_that_max_tokens_cut_ends_with_length)
{
    start_template(HERMES, "auto");
    script(CALL);
    fake.finish = ENGINE_LENGTH;
    fake.n_script -= 12;
    json_t *root = ask_with_tools("");
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "length");
    json_decref(root);
    stop();
}

Test(chat, max_tokens_beyond_the_context_is_what_fits)
{
    start_template(HERMES, "auto");
    script(" Yes.<|endoftext|>");
    json_decref(ask_whole("\"max_tokens\":32000"));
    cr_assert_leq(fake.last.max_tokens, 1024);
    stop();
}

/* --- streams --- */

struct streamed {
    char content[512], reasoning[512], arguments[512], name[64], id[64], finish[32];
    int n_begun;
};

static void join(char *to, const json_t *delta, const char *name)
{
    const char *s = json_string_value(json_object_get(delta, name));
    strcat(to, s ? s : "");
}

static void take_delta(struct streamed *s, const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *call = json_array_get(json_object_get(delta, "tool_calls"), 0);
    const json_t *function = json_object_get(call, "function");
    join(s->content, delta, "content");
    join(s->reasoning, delta, "reasoning_content");
    join(s->finish, choice, "finish_reason");
    join(s->arguments, function, "arguments");
    if (!json_object_get(function, "name"))
        return;
    join(s->name, function, "name");
    join(s->id, call, "id");
    cr_assert_str_eq(json_string_value(json_object_get(call, "type")), "function");
    cr_assert_eq(json_integer_value(json_object_get(call, "index")), s->n_begun++);
}

static struct streamed ask_stream(const char *more)
{
    char members[1024];
    struct streamed s = {0};
    struct events e;
    snprintf(members, sizeof members, "%s,\"stream\":true%s", tools, more);
    struct reply r = ask(members);
    cr_assert_eq(r.status, 200, "%s", r.body);
    events_read(&e, &r);
    cr_assert(e.done && !e.error);
    for (size_t i = 0; i < e.n; i++)
        if (json_array_size(json_object_get(e.data[i], "choices")))
            take_delta(&s, json_array_get(json_object_get(e.data[i], "choices"), 0));
    events_free(&e);
    reply_free(&r);
    return s;
}

Test(chat, a_stream_says_what_the_whole_reply_says)
{
    start_template(THINKS, "auto");
    script("Hm < m.\n</think>\n\nLet me see.\n" CALL "<|endoftext|>");
    struct streamed s = ask_stream("");
    cr_assert_str_eq(s.reasoning, "Hm < m.");
    cr_assert_str_eq(s.content, "Let me see.");
    cr_assert_str_eq(s.name, "get_weather");
    cr_assert_eq(strlen(s.id), 9);
    cr_assert_str_eq(s.arguments, "{\"city\": \"Be rn\"}");
    cr_assert_str_eq(s.finish, "tool_calls");
    cr_assert_eq(s.n_begun, 1);
    stop();
}

Test(chat, a_stream_with_logprobs_has_each_tokens_once)
{
    start_template(HERMES, "auto");
    script(" Yes. " CALL "<|endoftext|>");
    char members[1024];
    struct events e;
    size_t n = 0;
    snprintf(members, sizeof members, "%s,\"stream\":true,\"logprobs\":true", tools);
    struct reply r = ask(members);
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++)
        n += json_array_size(json_object_get(json_at(e.data[i], "choices.0.logprobs"), "content"));
    cr_assert_eq(n, fake.n_script, "%zu of %u tokens", n, fake.n_script);
    events_free(&e);
    reply_free(&r);
    stop();
}

/* --- conversations as agents send them --- */

static const char agents[] =
    "{\"max_tokens\":1,\"messages\":["
    "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"You "
    "are\",\"cache_control\":{\"type\":\"x\"}}]},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]},"
    "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"toolu_"
    "0123456789\","
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"toolu_0123456789\",\"content\":null},"
    "{\"role\":\"system\",\"content\":\"late\"},"
    "{\"role\":\"user\",\"content\":\"go\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"x\",\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \"}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"x\",\"content\":\"no\"},"
    "{\"role\":\"assistant\",\"content\":\"ok\"},"
    "{\"role\":\"user\",\"content\":\"x\"},"
    "{\"role\":\"system\",\"content\":\"late again\"}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":"
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"description\":\"an a\"}}}}}]}";

static void expect_taken(const char *source)
{
    start_template(source, "auto");
    script("x");
    struct reply r = post(CHAT, agents);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    stop();
}

static void expect_file_takes(const char *name)
{
    char path[512];
    static char source[65536];
    snprintf(path, sizeof path, HEARTH_TEST_DATA "/templates/%s.jinja", name);
    FILE *file = fopen(path, "r");
    cr_assert(file, "%s", path);
    source[fread(source, 1, sizeof source - 1, file)] = '\0';
    fclose(file);
    expect_taken(source);
}

Test(chat, an_agents_messages_are_taken_by_qwens_template)
{
    expect_file_takes("qwen3");
}

Test(chat, an_agents_messages_are_taken_by_mistrals_template)
{
    expect_file_takes("mistral");
}

Test(chat, an_agents_messages_are_taken_by_a_template_that_refuses_all_it_can)
{
    expect_taken(
        "{% if tools %}x{% endif %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('late') }}{% endif %}{{ m.content.strip() }}{% for c in m.tool_calls %}"
        "{% if c.id|length != 9 %}{{ raise_exception('id') }}{% endif %}{% endfor %}"
        "{% if m.role == 'tool' and not m.name %}{{ raise_exception('name') }}{% endif %}{% endfor %}");
}

/* --- Anthropic's dialect --- */

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

Test(chat, anthropics_messages_have_blocks)
{
    start_template(THINKS, "auto");
    script("Hm.</think>Let me see. " CALL "<|endoftext|>");
    struct reply r = ask_anthropic("/v1/messages?beta=true", "");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "type"), "message");
    cr_assert_str_eq(json_text(root, "content.0.thinking"), "Hm.");
    cr_assert_str_eq(json_text(root, "content.1.text"), "Let me see. ");
    cr_assert_str_eq(json_text(root, "content.2.name"), "get_weather");
    cr_assert_str_eq(json_text(root, "content.2.input.city"), "Be rn");
    cr_assert_str_eq(json_text(root, "stop_reason"), "tool_use");
    cr_assert_gt(json_number(root, "usage.input_tokens"), 0);
    json_decref(root);
    reply_free(&r);
    r = ask_anthropic("/v1/messages/count_tokens", "");
    root = reply_json(&r);
    cr_assert_eq((uint32_t)json_number(root, "input_tokens"), fake.last.n_prompt);
    json_decref(root);
    reply_free(&r);
    stop();
}

Test(chat, anthropics_stream_opens_and_closes_each_block_in_order)
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
SERVER_TEST(chat, anthropics_stream_that_a_keep_alive_began_counts_the_cache_at_its_end, "keepalive_ms",
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

Test(chat, anthropics_errors_have_their_own_form)
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

Test(chat, a_member_that_is_missing_is_said_to_be_nothing)
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
Test(chat, a_member_of_another_type_is_refused_by_name)
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
        {"/v1/responses", "\"model\":[]", "model must be a string (got an array)"},
        {"/v1/responses", "\"input\":[{\"role\":\"user\",\"content\":5}]",
         "input[0].content must be a string or an array (got 5)"},
        {"/v1/chat/completions", "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":5}",
         "response_format.json_schema must be an object (got 5)"},
        {"/v1/chat/completions", "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":[]}}]",
         "tools[0].function.parameters must be an object (got an array)"},
        {"/api/chat", "\"options\":[]", "options must be an object (got an array)"},
        {"/api/chat", "\"stream\":\"no\"", "stream must be true or false (got a string)"},
        {"/api/chat", "\"think\":1.5", "think must be a string or true or false (got 1.5)"},
        {"/api/chat", "\"messages\":[{\"role\":\"user\",\"content\":[]}]",
         "messages[0].content must be a string (got an array)"},
        {"/api/generate", "\"prompt\":5", "prompt must be a string (got 5)"},
        {"/generate_stream", "\"inputs\":\"a\",\"parameters\":[]",
         "parameters must be an object (got an array)"},
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

/* --- Ollama's dialect --- */

#define OLLAMA                                                                                               \
    "{\"model\":\"x:latest\",%s\"options\":{\"num_ctx\":8192,\"num_predict\":-1,\"seed\":1,\"mirostat\":0}," \
    "\"keep_alive\":-1,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","            \
    "\"parameters\":{}}}],"                                                                                  \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[]},{\"role\":\"assistant\",\"content\":" \
    "\"\","                                                                                                  \
    "\"tool_calls\":[{\"function\":{\"name\":\"get_weather\",\"arguments\":{\"city\":\"x\"}}}]},"            \
    "{\"role\":\"tool\",\"tool_name\":\"get_weather\",\"content\":\"7\"}]}"

static struct reply ask_ollama(const char *more)
{
    char body[2048];
    snprintf(body, sizeof body, OLLAMA, more);
    return post("/api/chat", body);
}

Test(chat, ollamas_chat_has_arguments_as_an_object)
{
    start_template(THINKS, "auto");
    script("Hm.</think>See. " CALL "<|endoftext|>");
    struct reply r = ask_ollama("\"stream\":false,");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "message.content"), "See. ");
    cr_assert_str_eq(json_text(root, "message.thinking"), "Hm.");
    cr_assert_str_eq(json_text(root, "message.tool_calls.0.function.arguments.city"), "Be rn");
    cr_assert(json_is_true(json_at(root, "done")));
    cr_assert_str_eq(json_text(root, "done_reason"), "stop");
    cr_assert_gt(json_number(root, "eval_count"), 0);
    json_decref(root);
    reply_free(&r);
    stop();
}

Test(chat, ollamas_stream_is_lines_with_each_call_whole)
{
    char content[256] = "", thinking[256] = "";
    int n_calls = 0, n_done = 0;
    start_template(THINKS, "auto");
    script("Hm.</think>See. " CALL "<|endoftext|>");
    struct reply r = ask_ollama("");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_str_eq(reply_header(&r, "Content-Type"), "application/x-ndjson");
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        cr_assert(root, "%s", line);
        join(content, json_at(root, "message"), "content");
        join(thinking, json_at(root, "message"), "thinking");
        n_calls += json_object_get(json_at(root, "message"), "tool_calls") != NULL;
        n_done += json_is_true(json_at(root, "done"));
        json_decref(root);
    }
    cr_assert_str_eq(content, "See. ");
    cr_assert_str_eq(thinking, "Hm.");
    cr_assert_eq(n_calls, 1);
    cr_assert_eq(n_done, 1);
    reply_free(&r);
    stop();
}

Test(chat, ollamas_generate_and_the_models_facts)
{
    static const char *const paths[] = {"/api/tags", "/api/ps", "/api/version"};
    start_template(HERMES, "auto");
    script(" Yes.<|endoftext|>");
    struct reply r = post("/api/generate", "{\"prompt\":\"a\",\"system\":\"s\",\"stream\":false}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "response"), " Yes.", "%s", r.body);
    json_decref(root);
    reply_free(&r);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        r = get(paths[i]);
        cr_assert_eq(r.status, 200);
        json_decref(reply_json(&r));
        reply_free(&r);
    }
    r = post("/api/show", "{\"model\":\"x\"}");
    root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "capabilities.1"), "tools");
    json_decref(root);
    reply_free(&r);
    r = post("/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[\"x\"]}]}");
    cr_assert_eq(r.status, 400);
    root = reply_json(&r);
    cr_assert(strstr(json_text(root, "error"), "messages[0].images is not supported"), "%s", r.body);
    json_decref(root);
    reply_free(&r);
    stop();
}

/* --- OpenAI's responses --- */

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

/* The prompt's tokens as a text. */
static void expect_prompt(const char *want)
{
    char text[512] = "";
    for (uint32_t i = 0; i < fake.last.n_prompt && i < 64; i++) {
        struct tokenizer_piece p = tokenizer_piece(f.tokenizer, fake.last_prompt[i], true);
        strncat(text, p.s, p.len);
    }
    cr_assert_str_eq(text, want);
}

Test(chat, responses_are_items_in_the_order_of_the_text)
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
    cr_assert_gt(json_number(root, "completed_at"), 0);
    json_decref(root);
    reply_free(&r);
    stop();
}

/* The object of each event has them too. */
Test(chat, responses_give_back_what_the_request_said)
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

Test(chat, responses_give_a_namespace_to_its_own_tools_alone)
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

Test(chat, responses_make_one_message_of_an_answers_items)
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

Test(chat, responses_stream_opens_and_closes_each_item)
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

Test(chat, a_response_that_was_cut_is_incomplete)
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

Test(chat, a_tool_without_a_description_does_not_cost_the_request)
{
    start_template(
        "{% for t in tools %}{{ t.function.name + ':' + t.function.description + '.' }}{% endfor %}"
        "{{ messages[0].content }}",
        "auto");
    script("x<|endoftext|>");
    json_decref(ask_with_tools(""));
    expect_prompt("get_weather:.a");
    stop();
}

/* --- answers that a client has begun --- */

Test(chat, an_answer_that_the_client_has_begun_is_gone_on_with)
{
#define BEGUN                                                                                                \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"On<|im_end|>" \
    "\"}]"
    start_template(
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}:{% endif %}",
        "auto");
    script("ce<|endoftext|>");
    struct reply r = post("/v1/messages", "{\"max_tokens\":5," BEGUN "}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    expect_prompt("[a]:On<|im_end|>");
    cr_assert_gt(fake.last.n_prompt, 5, "the begun text holds no control token");
    reply_free(&r);
    r = post(CHAT, "{\"continue_final_message\":true,\"add_generation_prompt\":false," BEGUN "}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    expect_prompt("[a]:On<|im_end|>");
    reply_free(&r);
    r = post(CHAT, "{" BEGUN "}");
    expect_prompt("[a][On<|im_end|>]:");
    reply_free(&r);
    stop();
}

Test(chat, an_answer_that_has_begun_is_no_reasoning_and_has_no_constraint)
{
    start_template(
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}<think>\n"
        "{% endif %}{% if false %}</think>{% endif %}",
        "auto");
    script("ce<|endoftext|>");
    struct reply r =
        post(CHAT, "{\"continue_final_message\":true,\"add_generation_prompt\":false," BEGUN "}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    expect_prompt("[a]<think>\n</think>\n\nOn<|im_end|>");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "choices.0.message.content"), "ce");
    json_decref(root);
    reply_free(&r);
    r = post(CHAT, "{\"continue_final_message\":true,\"add_generation_prompt\":false,"
                   "\"response_format\":{\"type\":\"json_object\"}," BEGUN "}");
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, "response_format cannot constrain an answer that messages has begun"), "%s",
              r.body);
    reply_free(&r);
    stop();
}

Test(chat, ollamas_raw_prompt_is_taken_as_it_is)
{
    start_template(HERMES, "auto");
    script(" Yes.<tool_call><|endoftext|>");
    struct reply r =
        post("/api/generate", "{\"prompt\":\"a b\",\"raw\":true,\"system\":\"s\",\"stream\":false}");
    json_t *root = reply_json(&r);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_str_eq(json_text(root, "response"), " Yes.<tool_call>");
    expect_prompt("a b");
    json_decref(root);
    reply_free(&r);
    r = post("/api/generate", "{\"prompt\":\"a\",\"suffix\":\"b\"}");
    cr_assert_eq(r.status, 501);
    cr_assert(strstr(r.body, "suffix needs a model with fill-in-the-middle tokens"), "%s", r.body);
    reply_free(&r);
    r = post("/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"format\":\"yaml\"}");
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, "format must be"), "%s", r.body);
    reply_free(&r);
    stop();
}

Test(chat, responses_refuse_what_needs_a_store_or_is_of_another_type)
{
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{\"input\":\"a\",\"previous_response_id\":\"resp_1\"}", "previous_response_id"},
        {"{\"input\":\"a\",\"conversation\":\"c\"}", "conversation"},
        {"{\"input\":\"a\",\"background\":true}", "background"},
        {"{\"input\":\"a\",\"prompt\":{\"id\":\"p\"}}", "prompt"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}", "input[0].content"},
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
