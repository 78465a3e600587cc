/* Chats over HTTP: what the model writes (the fake engine's script) becomes content, reasoning and tool
 * calls, in whole replies and in streams. */
#include "support/chat_driver.h"

#define CHAT "/v1/chat/completions"

static const char tools[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                            "\"parameters\":{\"type\":\"object\","
                            "\"properties\":{\"city\":{\"type\":\"string\"}}}}},{\"type\":\"web_search\"}]";

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

/* --- templates --- */

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

/* DeepSeek's and Mistral's word for it, and Moonshot's; in an earlier message it is only a label. */
Test(chat, a_message_may_say_itself_that_it_is_begun)
{
#define SAYS(role, word)                                                                                     \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"" role "\",\"content\":\"On\"," word   \
    "}]}"
    static const struct {
        const char *body, *prompt;
    } cases[] = {{SAYS("assistant", "\"prefix\":true"), "[a]:On"},
                 {SAYS("assistant", "\"partial\":true"), "[a]:On"},
                 {SAYS("assistant", "\"prefix\":false,\"partial\":null"), "[a][On]:"},
                 {SAYS("user", "\"prefix\":true"), "[a][On]:"},
                 {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true},"
                  "{\"role\":\"assistant\",\"content\":\"On\"}]}",
                  "[a][On]:"}};
    start_template(
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}:{% endif %}",
        "auto");
    script("ce<|endoftext|>");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(CHAT, cases[i].body);
        cr_assert_eq(r.status, 200, "%s", r.body);
        expect_prompt(cases[i].prompt);
        reply_free(&r);
    }
    struct reply r = post(CHAT, SAYS("assistant", "\"prefix\":1"));
    cr_assert_eq(r.status, 400);
    cr_assert(strstr(r.body, "messages[1].prefix must be true or false"), "%s", r.body);
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
