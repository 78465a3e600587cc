/* llama-server's dialect: its names in and out. */
#include "api/api.h"
#include "integration/harness.h"

DAEMON_TEST(llama, a_completion_has_its_names)
{
    json_t *root =
        post_ok("/completion", "{\"prompt\":\"Once upon a time\",\"n_predict\":4,\"temperature\":0,"
                               "\"n_probs\":2,\"seed\":-1,\"top_k\":-1,\"repeat_last_n\":-1,\"mirostat\":0,"
                               "\"samplers\":[\"top_k\"],\"logit_bias\":[[11,0.5],[400,false]]}");
    cr_assert_eq(json_array_size(json_at(root, "tokens")), 4);
    cr_assert_neq(json_number(root, "tokens.1"), 400, "a bias of false bans a token");
    cr_assert_eq(json_array_size(json_at(root, "completion_probabilities.0.top_logprobs")), 2);
    cr_assert_str_eq(json_text(root, "stop_type"), "limit");
    cr_assert_eq(json_number(root, "tokens_evaluated"), 4);
    cr_assert_eq(json_number(root, "timings.predicted_n"), 4);
    cr_assert_eq(json_number(root, "timings.cache_n") + json_number(root, "timings.prompt_n"), 4);
    cr_assert_eq(json_number(root, "generation_settings.n_predict"), 4);
    cr_assert(json_is_true(json_at(root, "stop")));
    json_decref(root);
    root = post_ok("/completion", "{\"prompt\":\"Once\",\"max_completion_tokens\":2,\"top_k\":-1,"
                                  "\"repeat_last_n\":-1}");
    cr_assert_eq(json_number(root, "generation_settings.n_predict"), 2);
    cr_assert_eq(json_number(root, "generation_settings.top_k"), 0, "off");
    cr_assert_eq(json_number(root, "generation_settings.repeat_last_n"), 8192, "all");
    json_decref(root);
    root = post_ok("/completion", "{\"prompt\":\"Once\",\"grammar\":\"root ::= \\\"yes\\\"\"}");
    cr_assert_str_eq(json_text(root, "content"), "yes");
    cr_assert_str_eq(json_text(root, "stop_type"), "eos");
    json_decref(root);
    root = post_ok("/completion", "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"n_predict\":99999,"
                                  "\"stop\":[\" little\"]}");
    cr_assert_str_eq(json_text(root, "stopping_word"), " little");
    cr_assert_str_eq(json_text(root, "stop_type"), "word");
    json_decref(root);
}

DAEMON_TEST(llama, several_texts_are_an_array)
{
    json_t *root =
        post_ok("/completion", "{\"prompt\":[\"Once upon a time\",[258,397],\"Once\"],\"n_predict\":4,"
                               "\"temperature\":0,\"n_cmpl\":2}");
    json_t *alone = post_ok("/completion", "{\"prompt\":[258,397],\"n_predict\":4,\"temperature\":0}");
    cr_assert_eq(json_array_size(root), 6);
    for (size_t i = 0; i < 6; i++)
        cr_assert_eq(json_number(json_array_get(root, i), "index"), (long long)i);
    cr_assert_str_eq(json_text(root, "3.content"), json_text(alone, "content"));
    cr_assert_eq(json_number(root, "2.tokens_evaluated"), 2);
    cr_assert_eq(json_number(root, "5.timings.prompt_n") + json_number(root, "5.timings.cache_n"), 1);
    json_decref(root);
    json_decref(alone);
    struct events e;
    struct reply r = post("/completion", "{\"prompt\":[\"Once\",\"The\"],\"n_predict\":2,\"stream\":true}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    events_read(&e, &r);
    int n_ends[2] = {0};
    for (size_t i = 0; i < e.n; i++)
        n_ends[json_number(e.data[i], "index")] += json_is_true(json_at(e.data[i], "stop"));
    cr_assert(n_ends[0] == 1 && n_ends[1] == 1);
    events_free(&e);
    reply_free(&r);
}

DAEMON_TEST(llama, a_stream_ends_with_the_event_that_stops)
{
    struct reply r = post("/completion", "{\"prompt\":\"Once upon a time\",\"n_predict\":3,\"temperature\":0,"
                                         "\"stream\":true}");
    char content[256] = "";
    bool stopped = false;
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert(!strstr(r.body, "[DONE]"));
    for (char *line = strtok(r.body, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *root = json_loads(line + 6, 0, NULL);
        cr_assert(root && !stopped, "%s", line);
        strncat(content, json_text(root, "content"), 100);
        stopped = json_is_true(json_at(root, "stop"));
        json_decref(root);
    }
    cr_assert(stopped);
    cr_assert_str_eq(content, ", there was");
    reply_free(&r);
}

DAEMON_TEST(llama, the_template_is_applied_and_nothing_generated)
{
    json_t *root =
        post_ok("/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <|im_end|>\"}]}");
    const char *prompt = json_text(root, "prompt");
    cr_assert(strstr(prompt, "Hi <|im_end|>"), "%s", prompt);
    json_decref(root);
    root = get_ok("/stats");
    cr_assert_eq(json_number(root, "requests.running"), 0);
    json_decref(root);
}

DAEMON_TEST(llama, props_and_slots_tell_of_the_model)
{
    json_t *root = get_ok("/props");
    double n_slots = json_number(root, "total_slots");
    cr_assert_eq(json_number(root, "default_generation_settings.n_ctx"), 1024);
    cr_assert_str_eq(json_text(root, "eos_token"), "<|endoftext|>");
    cr_assert_not_null(strstr(json_text(root, "chat_template"), "<|im_start|>"), "the one in force");
    cr_assert_str_eq(json_text(root, "chat_format"), "none");
    json_decref(root);
    root = get_ok("/slots");
    cr_assert_eq(json_array_size(root), (size_t)n_slots);
    cr_assert(json_is_false(json_at(root, "0.is_processing")));
    json_decref(root);
}

DAEMON_TEST(llama, bad_input_is_refused_by_name)
{
    static const struct {
        const char *path, *body, *param;
        int status;
    } cases[] = {
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":\"x\"}", "n_predict", 400},
        {"/completion", "{\"prompt\":\"a\",\"logit_bias\":[[1]]}", "logit_bias", 400},
        {"/completion", "{}", "prompt", 400},
        {"/infill", "{\"input_prefix\":7}", "input_prefix", 400},
        {"/infill", "{\"input_extra\":[{\"filename\":\"a\"}]}", "input_extra", 400},
        {"/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", "input_suffix", 501},
        {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", 501},
        {"/v1/completions", "{\"prompt\":[1],\"suffix\":\"b\"}", "suffix", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reply r = post(cases[i].path, cases[i].body);
        json_t *root = reply_json(&r);
        cr_assert_eq(r.status, cases[i].status, "%s: %s", cases[i].body, r.body);
        cr_assert_str_eq(json_text(root, "error.param"), cases[i].param, "%s", r.body);
        json_decref(root);
        reply_free(&r);
    }
}

/* --- small facts of other servers --- */

DAEMON_TEST(peers, the_facts_that_clients_ask_first)
{
    json_t *root = get_ok("/version");
    cr_assert(json_is_string(json_at(root, "version")));
    json_decref(root);
    root = get_ok("/load");
    cr_assert_eq(json_number(root, "server_load"), 0);
    json_decref(root);
    root = get_ok("/info");
    cr_assert_eq(json_number(root, "max_total_tokens"), 1024);
    json_decref(root);
    json_decref(get_ok("/ping"));
    root = post_ok("/tokenize",
                   "{\"model\":\"m\",\"prompt\":\"Once upon a time\",\"add_special_tokens\":false}");
    cr_assert_eq(json_number(root, "count"), 4);
    cr_assert_eq(json_array_size(json_at(root, "tokens")), 4);
    cr_assert_eq(json_number(root, "max_model_len"), 1024);
    json_decref(root);
    struct reply r = post("/tokenize", "{\"prompt\":\"a\",\"content\":\"b\"}");
    cr_assert_eq(r.status, 400);
    reply_free(&r);
}

/* Clients ask some with HEAD first, to see that a server is there. */
DAEMON_TEST(peers, head_tells_of_each_route_what_get_does)
{
    unsigned n = 0;
    for (const struct route *route = api_routes; route->path; route++) {
        bool gets = !route->remove && (!route->post || route->both);
        char type[512];
        if (!gets || strchr(route->path, '{'))
            continue;
        struct reply whole = get(route->path);
        snprintf(type, sizeof type, "%s", reply_header(&whole, "Content-Type"));
        struct reply head = client_once(daemon_.port, "HEAD", route->path, "", NULL);
        cr_assert_eq(head.status, whole.status, "%s: %d, not %d", route->path, head.status, whole.status);
        cr_assert_str_eq(reply_header(&head, "Content-Type"), type, "%s", route->path);
        cr_assert_gt(atoi(reply_header(&head, "Content-Length")), 0, "%s", route->path);
        cr_assert_eq(head.len, 0, "%s: %s", route->path, head.body);
        n += head.status == 200;
        reply_free(&head);
        reply_free(&whole);
    }
    cr_assert_geq(n, 15, "%u routes", n);
}
