/* Ollama's routes over HTTP. */
#include "support/chat_driver.h"

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

Test(ollama, ollamas_chat_has_arguments_as_an_object)
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

Test(ollama, a_last_message_of_the_assistants_is_gone_on_with)
{
#define BEGINS(text, more)                                                                                   \
    "{\"stream\":false," more "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\"," \
    "\"content\":\"" text "\"}]}"
    static const struct {
        const char *body, *prompt;
    } cases[] = {{BEGINS("On", ""), "[a]:On"},
                 {BEGINS("On", "\"format\":\"\","), "[a]:On"},
                 {BEGINS("", ""), "[a][]:"}};
    start_template(
        "{% for m in messages %}[{{ m.content }}]{% endfor %}{% if add_generation_prompt %}:{% endif %}",
        "auto");
    script("ce<|endoftext|>");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post("/api/chat", cases[i].body);
        cr_assert_eq(r.status, 200, "%s", r.body);
        expect_prompt(cases[i].prompt);
        reply_free(&r);
    }
    /* A constraint is not refused for it, but here for the backend that lacks them. */
    struct reply r = post("/api/chat", BEGINS("On", "\"format\":\"json\","));
    cr_assert(strstr(r.body, "the backend cannot constrain texts"), "%s", r.body);
    reply_free(&r);
    stop();
}

Test(ollama, ollamas_stream_is_lines_with_each_call_whole)
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

Test(ollama, ollamas_generate_and_the_models_facts)
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
    r = post("/api/chat", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"images\":[\"x\"]}]}");
    cr_assert_eq(r.status, 400);
    root = reply_json(&r);
    cr_assert(strstr(json_text(root, "error"), "messages[0].images is not supported"), "%s", r.body);
    json_decref(root);
    reply_free(&r);
    stop();
}

/* 0 is no limit, as in Ollama; only a request without a prompt asks for no text. */
Test(ollama, ollamas_num_predict_may_be_0)
{
    start_template(HERMES, "auto");
    script(" Yes.<|endoftext|>");
    struct reply r =
        post("/api/generate", "{\"prompt\":\"a\",\"stream\":false,\"options\":{\"num_predict\":0}}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "response"), " Yes.", "%s", r.body);
    cr_assert_str_eq(json_text(root, "done_reason"), "stop");
    cr_assert_null(json_object_get(root, "context"), "there is none that could come back");
    json_decref(root);
    reply_free(&r);
    r = post("/api/generate", "{\"stream\":false}");
    root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "done_reason"), "load", "%s", r.body);
    json_decref(root);
    reply_free(&r);
    stop();
}

Test(ollama, ollamas_raw_prompt_is_taken_as_it_is)
{
    start_template(HERMES, "auto");
    script(" Yes.<tool_call><|endoftext|>");
    struct reply r =
        post("/api/generate", "{\"prompt\":\"a b\",\"raw\":true,\"system\":\"\",\"template\":\"\","
                              "\"context\":[],\"images\":[],\"stream\":false}");
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

/* Ollama itself refuses what a raw prompt has no place for. */
Test(ollama, what_would_change_a_prompt_is_refused_where_it_cannot)
{
    static const struct {
        const char *members, *words;
    } cases[] = {
        {"\"template\":\"{{ .Prompt }}\"", "template is not supported"},
        {"\"context\":[1,2]", "context is not supported"},
        {"\"context\":5", "context must be an array (got 5)"},
        {"\"raw\":true,\"template\":\"{{ .Prompt }}\"", "template is not supported"},
        {"\"raw\":true,\"system\":\"s\"", "system is not supported beside raw"},
        {"\"raw\":true,\"context\":[1]", "context is not supported"},
        {"\"suffix\":\"b\",\"system\":\"s\"", "system is not supported beside suffix"},
        {"\"options\":{\"top_k\":-1,\"repeat_last_n\":-1,\"min_p\":7}", "options.min_p must be between"},
        {"\"logprobs\":1", "logprobs must be true or false (got 1)"},
        {"\"top_logprobs\":2", "top_logprobs needs logprobs to be true"},
        {"\"raw\":true,\"top_logprobs\":2", "top_logprobs needs logprobs to be true"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs must be between 0 and 20 (got 21)"},
    };
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", cases[i].members);
        struct reply r = post("/api/generate", body);
        cr_expect_eq(r.status, 400, "%s: %s", body, r.body);
        cr_expect(strstr(r.body, cases[i].words), "%s: %s", body, r.body);
        reply_free(&r);
    }
    stop();
}

Test(ollama, what_is_no_message_is_named)
{
    static const char *const cases[][2] = {
        {"7", "messages[0] must be an object (got 7)"},
        {"{\"content\":\"a\"}", "messages[0].role must be a string (got nothing)"},
        {"{\"role\":\"king\",\"content\":\"a\"}", "(got \\\"king\\\")"}};
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"messages\":[%s]}", cases[i][0]);
        struct reply r = post("/api/chat", body);
        cr_expect_eq(r.status, 400, "%s: %s", body, r.body);
        cr_expect(strstr(r.body, cases[i][1]), "%s: %s", body, r.body);
        reply_free(&r);
    }
    stop();
}

/* The number of log-probabilities in all lines of a reply, each with two alternatives; and of the tokens. */
static size_t count_logprobs(struct reply r, double *n_tokens)
{
    size_t n = 0, i;
    json_t *item;
    cr_assert_eq(r.status, 200, "%s", r.body);
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line, 0, NULL);
        cr_assert(root, "%s", line);
        json_array_foreach(json_object_get(root, "logprobs"), i, item)
        {
            cr_assert_eq(json_array_size(json_object_get(item, "top_logprobs")), 2, "%s", line);
            cr_assert(json_is_array(json_object_get(item, "bytes")), "%s", line);
        }
        n += json_array_size(json_object_get(root, "logprobs"));
        if (json_is_true(json_object_get(root, "done")))
            *n_tokens = json_number(root, "eval_count");
        json_decref(root);
    }
    reply_free(&r);
    return n;
}

Test(ollama, each_token_has_its_log_probability_once)
{
    static const char *const bodies[] = {"\"raw\":true,\"stream\":false", "\"raw\":true", "\"stream\":false",
                                         "\"think\":true"};
    start_template(THINKS, "auto");
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        char body[256];
        double n = 0;
        script("Hm.</think>See.<|endoftext|>");
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"logprobs\":true,\"top_logprobs\":2,%s}", bodies[i]);
        size_t found = count_logprobs(post("/api/generate", body), &n);
        cr_expect(found == (size_t)n && found > 4, "%s: %zu of %g", body, found, n);
    }
    for (int streams = 0; streams < 2; streams++) {
        char more[96];
        double n = 0;
        script("Hm.</think>See. " CALL "<|endoftext|>");
        snprintf(more, sizeof more, "\"logprobs\":true,\"top_logprobs\":2,\"stream\":%s,",
                 streams ? "true" : "false");
        size_t found = count_logprobs(ask_ollama(more), &n);
        cr_expect(found == (size_t)n && found > 10, "stream %d: %zu of %g", streams, found, n);
    }
    stop();
}

/* Where there is one model, every name is its own. */
Test(ollama, what_is_shown_is_asked_for_by_a_name)
{
    static const struct {
        const char *body, *words;
    } cases[] = {
        {"{}", "model is missing"},
        {"{\"model\":\"\",\"verbose\":true}", "model is missing"},
        {"{\"model\":5}", "model must be a string (got 5)"},
        {"{\"model\":", "near end of file"},
        {"", "the body is empty"},
    };
    static const char *const forms[] = {"{\"model\":\"%s\"}", "{\"name\":\"%s\"}",
                                        "{\"model\":\"%s:latest\",\"verbose\":true,\"options\":{}}",
                                        "{\"model\":\"another\"}"};
    start_template(HERMES, "auto");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post("/api/show", cases[i].body);
        json_t *root = reply_json(&r);
        cr_expect_eq(r.status, 400, "%s: %s", cases[i].body, r.body);
        cr_expect(strstr(json_text(root, "error"), cases[i].words), "%s: %s", cases[i].body, r.body);
        json_decref(root);
        reply_free(&r);
    }
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char body[256];
        snprintf(body, sizeof body, forms[i], model_config(f.model)->name);
        struct reply r = post("/api/show", body);
        json_t *root = reply_json(&r);
        cr_expect_str_eq(json_text(root, "capabilities.1"), "tools", "%s: %s", body, r.body);
        json_decref(root);
        reply_free(&r);
    }
    stop();
}
