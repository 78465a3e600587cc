/* The HTTP side over an engine of the test's own: what a client gets for every way a generation can end, and
 * what no well-behaved client sends. */
#include "support/listen.h"
#include "support/server_driver.h"

#include <fcntl.h>

/* --- replies --- */

SERVER_TEST(generate, a_reply_has_text_tokens_usage_and_reason)
{
    struct reply r = post("/generate", "{\"prompt\":\"Once upon a time\",\"seed\":42}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_str_eq(reply_header(&r, "Content-Type"), "application/json");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "text"), " there was a cat.");
    cr_assert_str_eq(json_text(root, "finish_reason"), "eos");
    cr_assert(json_is_null(json_at(root, "stop")));
    cr_assert_eq(json_number(root, "seed"), 42);
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), 4);
    cr_assert_eq(json_number(root, "usage.completion_tokens"), fake.n_script);
    cr_assert_eq(json_array_size(json_at(root, "tokens")), fake.n_script, "the end token is one of them");
    cr_assert_eq(strncmp(json_text(root, "id"), "gen-", 4), 0);
    cr_assert_eq(strlen(json_text(root, "id")), 26);
    json_decref(root);
    reply_free(&r);
}

SERVER_TEST(generate, fields_reach_the_engine)
{
    struct reply r =
        post("/generate",
             "{\"prompt\":[1,2,3.0],\"temperature\":0.25,\"top_k\":7,\"top_p\":0.5,\"min_p\":0.125,"
             "\"typical_p\":0.75,\"repetition_penalty\":1.5,\"presence_penalty\":-1,"
             "\"frequency_penalty\":2,\"penalty_last_n\":9,\"seed\":9007199254740991,\"min_tokens\":1,"
             "\"max_tokens\":11,\"stop_token_ids\":[5],\"ignore_eos\":true,\"logit_bias\":{\"7\":-5},"
             "\"logprobs\":2,\"prompt_logprobs\":3,\"cache_prompt\":false,\"priority\":-4}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    const struct engine_request *e = &fake.last;
    const struct step_sampling *s = &e->sampling;
    cr_assert(e->n_prompt == 3 && fake.last_prompt[0] == 1 && fake.last_prompt[2] == 3);
    cr_assert(s->temperature == 0.25f && s->top_k == 7 && s->top_p == 0.5f && s->min_p == 0.125f);
    cr_assert(s->typical_p == 0.75f && s->repetition_penalty == 1.5f && s->presence_penalty == -1);
    cr_assert(s->frequency_penalty == 2 && s->penalty_last_n == 9 && s->seed == 9007199254740991u);
    cr_assert(e->min_tokens == 1 && e->max_tokens == 11 && e->n_stop_ids == 1 && e->ignore_eos);
    cr_assert(s->n_bias == 1 && e->want_logprobs && e->n_top == 2 && e->want_prompt_logprobs);
    cr_assert(e->n_prompt_top == 3 && !e->cache_prompt && e->priority == -4);
    reply_free(&r);
}

SERVER_TEST(generate, absent_fields_take_the_documented_defaults)
{
    struct reply r = post("/generate", "{\"prompt\":\"Once upon a time\",\"top_k\":null}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    const struct step_sampling *s = &fake.last.sampling;
    cr_assert(s->temperature == 0.8f && s->top_k == 40 && s->top_p == 0.95f && s->min_p == 0.05f);
    cr_assert(s->typical_p == 1 && s->repetition_penalty == 1 && s->penalty_last_n == 64);
    cr_assert(fake.last.max_tokens == 252 && fake.last.cache_prompt, "min(256, context - prompt)");
    cr_assert(fake.last.queue_deadline_ns && !fake.last.deadline_ns);
    reply_free(&r);
}

SERVER_TEST(generate, a_stop_string_ends_the_text_and_cancels_the_engine)
{
    fake.finish = ENGINE_RUNNING;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"stop\":[\"zebra\",\"was a c\"]}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "text"), " there ");
    cr_assert_str_eq(json_text(root, "stop"), "was a c");
    cr_assert_str_eq(json_text(root, "finish_reason"), "stop");
    cr_assert_eq(fake.n_cancelled, 1);
    json_decref(root);
    reply_free(&r);
}

SERVER_TEST(generate, log_probabilities_have_exactly_as_many_alternatives_as_asked)
{
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"logprobs\":3,\"max_tokens\":2}");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "logprobs")), 2);
    cr_assert_eq(json_array_size(json_at(root, "logprobs.0.top")), 3);
    cr_assert_str_eq(json_text(root, "logprobs.0.text"), " there");
    cr_assert_str_eq(json_text(root, "finish_reason"), "length");
    json_decref(root);
    reply_free(&r);
}

SERVER_TEST(generate, a_token_that_is_no_utf8_by_itself_is_given_as_bytes)
{
    fake.script[0] = tokenizer_find(f.tokenizer, "\xc4\xac", 2); /* byte 0x8a as byte-level BPE writes it */
    cr_assert_geq(fake.script[0], 0);
    fake.n_script = 1;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"logprobs\":1,\"max_tokens\":1}");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "logprobs.0.text"), "");
    cr_assert_eq(json_number(root, "logprobs.0.bytes.0"), 0x8a);
    cr_assert_str_eq(json_text(root, "text"), "\xef\xbf\xbd");
    json_decref(root);
    reply_free(&r);
}

/* Returns the offsets of the one reply, or of all events joined; to decref. */
static json_t *text_offsets(struct reply r, bool stream)
{
    struct events e = {.n = 1};
    json_t *offsets = json_array();
    cr_assert_eq(r.status, 200, "%s", r.body);
    if (stream)
        events_read(&e, &r);
    else
        e.data[0] = reply_json(&r);
    for (size_t i = 0; i < e.n; i++)
        json_array_extend(offsets, json_at(e.data[i], "choices.0.logprobs.text_offset"));
    events_free(&e);
    reply_free(&r);
    return offsets;
}

/* Each of the two accented letters is two tokens, a byte each: no character begins in the second. */
SERVER_TEST(generate, text_offsets_count_characters_in_a_stream_too)
{
    script(" caf\xc3\xa9s \xc3\xa9");
    json_t *whole = text_offsets(post("/v1/completions", "{\"prompt\":\"Once\",\"logprobs\":0}"), false);
    json_t *streamed =
        text_offsets(post("/v1/completions", "{\"prompt\":\"Once\",\"logprobs\":0,\"stream\":true}"), true);
    char *text = json_dumps(whole, JSON_COMPACT);
    cr_assert_str_eq(text, "[0,3,4,5,5,6,7,8]");
    cr_assert(json_equal(whole, streamed));
    free(text);
    json_decref(whole);
    json_decref(streamed);
}

SERVER_TEST(generate, the_least_body_memory_holds_a_request, "body_memory", "4K")
{
    struct reply r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

SERVER_TEST(stream, deltas_join_to_the_text_and_the_last_event_has_the_figures)
{
    struct events e;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"stream\":true,\"seed\":1}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_str_eq(reply_header(&r, "Content-Type"), "text/event-stream");
    cr_assert_str_eq(reply_header(&r, "Cache-Control"), "no-cache");
    cr_assert_str_eq(reply_header(&r, "X-Accel-Buffering"), "no");
    events_read(&e, &r);
    char *text = events_text(&e, "text");
    cr_assert_str_eq(text, " there was a cat.");
    cr_assert(e.done && e.n > 3 && !r.cut);
    cr_assert_str_eq(json_text(e.data[e.n - 1], "finish_reason"), "eos");
    cr_assert_eq(json_number(e.data[e.n - 1], "usage.completion_tokens"), fake.n_script);
    size_t n_tokens = 0;
    for (size_t i = 0; i < e.n; i++)
        n_tokens += json_array_size(json_at(e.data[i], "tokens"));
    cr_assert_eq(n_tokens, fake.n_script, "every token is in exactly one event");
    free(text);
    events_free(&e);
    reply_free(&r);
}

SERVER_TEST(stream, nothing_of_a_stop_string_is_leaked)
{
    struct events e;
    fake.finish = ENGINE_RUNNING;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"stream\":true,\"stop\":\"a cat\"}");
    events_read(&e, &r);
    char *text = events_text(&e, "text");
    cr_assert_str_eq(text, " there was ");
    cr_assert_str_eq(json_text(e.data[e.n - 1], "stop"), "a cat");
    free(text);
    events_free(&e);
    reply_free(&r);
}

SERVER_TEST(stream, comments_keep_a_waiting_stream_alive, "keepalive_ms", "100")
{
    fake.hold = true;
    int fd = client_connect(f.port);
    struct reply r = {0};
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\",\"stream\":true}");
    while (!r.raw || !strstr(r.raw, ": keep-alive"))
        cr_assert(reply_more(&r, fd));
    cr_assert(!strncmp(r.raw, "HTTP/1.1 200", 12), "the comment brings the 200");
    fake.hold = false;
    while (!strstr(r.raw, "[DONE]"))
        cr_assert(reply_more(&r, fd));
    reply_free(&r);
    close(fd);
}

/* --- ways to end --- */

/* The dialect's clients know no other word than its own. */
SERVER_TEST(end, a_text_cut_by_time_is_of_length_in_the_openai_dialect)
{
    fake.finish = ENGINE_TIMEOUT;
    struct reply r = post("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":100}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "choices.0.finish_reason"), "length");
    json_decref(root);
    reply_free(&r);
}

SERVER_TEST(end, logits_that_are_not_finite_are_a_500)
{
    fake.finish = ENGINE_NOT_FINITE;
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 500, "internal", "finite");
}

SERVER_TEST(end, a_fault_before_the_first_text_of_a_stream_is_a_500)
{
    fake.finish = ENGINE_FAULT;
    fake.n_script = 0;
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"stream\":true}"), 500, "internal",
                 "decoder is gone");
}

SERVER_TEST(end, a_fault_inside_a_stream_is_an_error_event)
{
    struct events e;
    fake.finish = ENGINE_FAULT;
    fake.n_script = 3;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"stream\":true}");
    cr_assert_eq(r.status, 200);
    events_read(&e, &r);
    cr_assert_not_null(e.error);
    cr_assert_str_eq(json_text(e.error, "error.type"), "internal");
    cr_assert(!e.done && !r.cut, "the stream ends in order, but is not done");
    events_free(&e);
    reply_free(&r);
}

SERVER_TEST(end, a_request_that_waits_too_long_is_a_504)
{
    fake.hold = true;
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"queue_timeout_ms\":30}"), 504, "timeout",
                 "queue_timeout_ms");
}

SERVER_TEST(end, a_deadline_before_the_first_token_is_a_504)
{
    fake.n_script = 0;
    fake.finish = ENGINE_RUNNING;
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"timeout_ms\":30}"), 504, "timeout", "first token");
}

SERVER_TEST(end, who_names_no_time_has_the_longest_there_is, "timeout_ms", "3600000", "max_timeout_ms", "30")
{
    fake.n_script = 0;
    fake.finish = ENGINE_RUNNING;
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 504, "timeout", "timeout_ms (30) passed");
}

SERVER_TEST(end, a_deadline_after_the_first_token_keeps_the_text)
{
    fake.n_script = 2;
    fake.finish = ENGINE_RUNNING;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"timeout_ms\":60}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "finish_reason"), "timeout");
    cr_assert_str_eq(json_text(root, "text"), " there was");
    json_decref(root);
    reply_free(&r);
}

SERVER_TEST(end, a_full_queue_is_a_503_with_depth_limit_and_retry_after, "queue_limit", "1")
{
    fake.hold = true;
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert(wait_for(&fake.n_submitted, 1));
    struct reply r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_str_eq(reply_header(&r, "Retry-After"), "1");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number(root, "error.queue_depth"), 1);
    cr_assert_eq(json_number(root, "error.queue_limit"), 1);
    json_decref(root);
    free(expect_error(r, 503, "queue_full"));
    close(fd);
}

SERVER_TEST(end, prompts_that_wait_are_bounded_in_tokens_too, "queue_tokens", "12")
{
    fake.hold = true;
    int first = client_connect(f.port), second = client_connect(f.port);
    client_request(first, "POST", "/generate", "", "{\"prompt\":[5,6,7,8,9,10],\"add_special\":false}");
    cr_assert(wait_for(&fake.n_submitted, 1));
    client_request(second, "POST", "/generate", "", "{\"prompt\":[5,6,7,8,9],\"add_special\":false}");
    cr_assert(wait_for(&fake.n_submitted, 2));
    expect_words(post("/generate", "{\"prompt\":[5,6],\"add_special\":false}"), 503, "queue_full",
                 "queue_tokens is 12");
    close(first);
    close(second);
}

SERVER_TEST(end, when_queue_tokens_are_used_up_the_headers_are_enough, "queue_tokens", "6")
{
    fake.hold = true;
    int first = client_connect(f.port), second = client_connect(f.port);
    client_request(first, "POST", "/generate", "", "{\"prompt\":[5,6,7,8,9,10],\"add_special\":false}");
    cr_assert(wait_for(&fake.n_submitted, 1));
    struct reply r;
    client_puts(second, "POST /generate HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                        "Content-Length: 1000\r\n\r\n"); /* nothing of the body */
    client_read(second, &r, false);
    cr_assert_not_null(reply_header(&r, "Retry-After"));
    expect_words(r, 503, "queue_full", "6 prompt tokens are waiting, queue_tokens is 6");
    close(first);
    close(second);
}

SERVER_TEST(end, a_prompt_above_queue_tokens_may_wait_alone, "queue_tokens", "2")
{
    fake.n_script = 1;
    fake.finish = ENGINE_EOS;
    struct reply r = post("/generate", "{\"prompt\":[5,6,7,8,9,10]}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

SERVER_TEST(end, the_engine_may_say_that_the_queue_is_full)
{
    fake.submit_error = -EAGAIN;
    free(expect_error(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full"));
    fake.submit_error = -EINVAL;
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 400, "invalid_request", "said no");
    fake.submit_error = -EIO;
    free(expect_error(post("/generate", "{\"prompt\":\"Once\"}"), 500, "internal"));
}

/* --- the access line --- */

/* stderr becomes a file that no other process has. */
static int catch_log(void)
{
    int fd = memfd_create("log", 0);
    cr_assert_geq(fd, 0);
    cr_assert_geq(dup2(fd, STDERR_FILENO), 0);
    return fd;
}

/* The line is written after the reply has left: waits for `words`, returns all. */
static const char *expect_logged(int log, const char *words)
{
    static char text[65536];
    for (int i = 0; i < 10000; i++) {
        ssize_t n = pread(log, text, sizeof text - 1, 0);
        cr_assert_geq(n, 0);
        text[n] = '\0';
        if (strstr(text, words))
            return text;
        usleep(1000);
    }
    cr_assert_fail("no \"%s\" in: %s", words, text);
    return text;
}

SERVER_TEST(access, a_finished_generation_has_its_figures_and_the_id_of_its_reply)
{
    char words[128];
    int log = catch_log();
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    json_t *root = reply_json(&r);
    snprintf(words, sizeof words, "POST /generate 200 %s prompt=1 cached=0 tokens=2 finish=length ",
             json_text(root, "id"));
    expect_logged(log, words);
    json_decref(root);
    reply_free(&r);
}

static void expect_finish(int log, enum engine_finish last, const char *word)
{
    char words[64];
    snprintf(words, sizeof words, "finish=%s choices=eos,eos,%s ", word, word);
    fake.last_choice = last;
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":50,\"n\":3}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    expect_logged(log, words);
}

SERVER_TEST(access, the_finish_of_many_choices_is_the_worst_of_theirs_which_follow)
{
    int log = catch_log();
    expect_finish(log, ENGINE_RUNNING, "eos");
    expect_finish(log, ENGINE_LENGTH, "length");
    expect_finish(log, ENGINE_TIMEOUT, "timeout");
    expect_finish(log, ENGINE_CANCELLED, "cancelled");
}

SERVER_TEST(access, a_refusal_is_named)
{
    int log = catch_log();
    free(expect_error(post("/generate", "{\"prompt\":\"Once\",\"n\":129}"), 400, "invalid_request"));
    expect_logged(log, "POST /generate 400 invalid_request ");
    free(expect_error(get("/generat"), 404, "not_found"));
    expect_logged(log, " 404 not_found ");
}

SERVER_TEST(access, a_timeout_in_the_queue_is_no_error_but_a_timeout)
{
    int log = catch_log();
    fake.hold = true;
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"queue_timeout_ms\":1}"), 504, "timeout", "queue");
    expect_logged(log, " prompt=1 cached=0 tokens=0 finish=timeout ");
    fake.hold = false;
}

SERVER_TEST(access, a_client_that_left_has_the_tokens_it_got)
{
    struct reply r = {0};
    int log = catch_log();
    fake.finish = ENGINE_RUNNING;
    fake.n_script = 1; /* and then nothing more, for ever */
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\",\"stream\":true}");
    while (!r.raw || !strstr(r.raw, " there"))
        cr_assert(reply_more(&r, fd));
    close(fd);
    expect_logged(log, " prompt=1 cached=0 tokens=1 finish=cancelled ");
    reply_free(&r);
}

SERVER_TEST(access, who_leaves_inside_a_body_is_a_499)
{
    int log = catch_log(), fd = client_connect(f.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    close(fd);
    expect_logged(log, "POST /generate 499 ");
}

SERVER_TEST(access, what_was_refused_has_no_figures)
{
    int log = catch_log();
    expect_words(post("/generate", "{}"), 400, "invalid_request", "prompt is missing");
    cr_assert_null(strstr(expect_logged(log, "POST /generate 400 "), "finish="));
}

/* --- state --- */

static void say_draining(void *context)
{
    (void)context;
    f.drained = true;
}

static void drain_long(void)
{
    server_drain(f.server, 60000, say_draining, NULL);
}
static void drain_now(void)
{
    server_drain(f.server, 0, say_draining, NULL);
}

static void fail_and_drain(void)
{
    server_fail(f.server, "the decoder is not responding");
    drain_now();
}

static bool wait_drained(void)
{
    for (int i = 0; i < 10000 && !f.drained; i++)
        usleep(1000);
    return f.drained;
}

SERVER_TEST(drain, an_idle_server_says_so_for_drain_min_ms_unless_told_to_hurry)
{
    f.cfg.drain_min_ms = 3600000;
    on_loop(drain_long);
    for (int i = 0; i < 20; i++) {
        struct reply r = get("/health/proxy");
        cr_assert_eq(r.status, 404);
        reply_free(&r);
    }
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 503, "draining", "shutting down");
    cr_assert_not(f.drained);
    on_loop(drain_now);
    cr_assert(wait_drained());
}

Test(state, while_loading_health_answers_and_work_is_refused)
{
    open_server(NULL);
    server_set_progress(f.server, 0.25);
    pthread_create(&f.thread, NULL, run_loop, NULL);
    struct reply r = get("/health");
    cr_assert_eq(r.status, 503);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "status"), "loading");
    cr_assert_float_eq(json_real_value(json_at(root, "progress")), 0.25, 1e-6);
    json_decref(root);
    reply_free(&r);
    r = get("/health/live");
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    r = get("/stats");
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_str_eq(reply_header(&r, "Retry-After"), "5");
    free(expect_error(r, 503, "loading"));
    free(expect_error(get("/v1/models"), 503, "loading"));
    stop();
}

SERVER_TEST(state, a_drain_refuses_what_waits_and_lets_finish_what_runs)
{
    fake.finish = ENGINE_RUNNING;
    int running = client_connect(f.port), waiting;
    struct reply r;
    client_request(running, "POST", "/generate", "", "{\"prompt\":\"Once\",\"max_tokens\":3}");
    cr_assert(wait_for(&fake.n_submitted, 1));
    client_read(running, &r, false);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    fake.hold = true;
    waiting = client_connect(f.port);
    client_request(waiting, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert(wait_for(&fake.n_submitted, 2));
    on_loop(drain_long);
    client_read(waiting, &r, false);
    free(expect_error(r, 503, "draining"));
    cr_assert(wait_drained());
    r = get("/health/proxy");
    cr_assert_eq(r.status, 404);
    reply_free(&r);
    r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_str_eq(reply_header(&r, "Connection"), "close");
    free(expect_error(r, 503, "draining"));
    close(running);
    close(waiting);
}

/* Another instance can do the work; what is asked about this one alone is still answered. */
SERVER_TEST(state, a_drain_refuses_texts_and_answers_about_itself)
{
    static const char *const still[] = {"/v1/models", "/api/tags", "/requests"};
    struct reply r;
    int running = client_connect(f.port);
    fake.finish = ENGINE_RUNNING;
    client_request(running, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert(wait_for(&fake.n_tokens, 1));
    on_loop(drain_long);
    r = post("/tokenize", "{\"content\":\"Once\"}");
    cr_assert_str_eq(reply_header(&r, "Connection"), "close");
    cr_assert_str_eq(reply_header(&r, "Retry-After"), "1");
    free(expect_error(r, 503, "draining"));
    free(expect_error(post("/detokenize", "{\"tokens\":[1]}"), 503, "draining"));
    for (size_t i = 0; i < sizeof still / sizeof *still; i++) {
        r = get(still[i]);
        cr_assert_eq(r.status, 200, "%s: %d", still[i], r.status);
        reply_free(&r);
    }
    close(running);
}

SERVER_TEST(state, a_drain_without_time_cancels_what_runs)
{
    struct reply r;
    fake.finish = ENGINE_RUNNING;
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert(wait_for(&fake.n_tokens, 1));
    on_loop(drain_now);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "finish_reason"), "cancelled");
    json_decref(root);
    reply_free(&r);
    close(fd);
    cr_assert(wait_drained());
}

/* The process ends for it at once; a reader meanwhile must not take that for a SIGTERM. */
SERVER_TEST(state, a_decoder_that_hangs_is_stalled_until_the_end)
{
    static const char *const routes[] = {"/health", "/health/ready", "/health/proxy"};
    on_loop(fail_and_drain);
    cr_assert(wait_drained());
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        struct reply r = get(routes[i]);
        cr_assert_eq(r.status, 503, "%s: %d", routes[i], r.status);
        json_t *root = reply_json(&r);
        cr_assert_str_eq(json_text(root, "status"), "stalled");
        json_decref(root);
        reply_free(&r);
    }
    struct reply r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_str_eq(reply_header(&r, "Connection"), "close");
    free(expect_error(r, 503, "stalled"));
}

static void ask_and_drain(void)
{
    client_request(f.client, "GET", "/health", "", NULL); /* served while the socket is quiesced */
    drain_long();
    cr_assert_not(f.drained, "`done` came from inside server_drain()");
}

Test(state, a_drain_is_never_done_before_its_call_returns)
{
    struct reply r;
    f.inherited = listen_loopback(NULL);
    fcntl(f.inherited, F_SETFL, O_NONBLOCK);
    start_keys(NULL);
    f.client = client_connect(f.port);
    client_request(f.client, "GET", "/health", "", NULL);
    client_read(f.client, &r, false);
    reply_free(&r);
    on_loop(ask_and_drain);
    cr_assert(wait_drained());
    close(f.client);
    stop();
}

SERVER_TEST(state, a_drain_is_a_503_that_a_client_with_a_large_body_sees)
{
    enum { N = 1 << 20 };
    char *body = malloc(N + 1);
    memset(body, ' ', N);
    body[N] = '\0';
    fake.finish = ENGINE_RUNNING; /* goes on for ever after the script */
    int running = client_connect(f.port);
    client_request(running, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert(wait_for(&fake.n_tokens, 1));
    on_loop(drain_long);
    for (int i = 0; i < 20; i++)
        free(expect_error(client_once_whole(f.port, "/generate", body), 503, "draining"));
    cr_assert_not(f.drained);
    close(running);
    free(body);
}

static size_t n_of_body;

static void look_at_body(void)
{
    const struct request *r = LIST_FIRST(&f.server->http.requests);
    n_of_body = r ? r->body_len : 0;
}

SERVER_TEST(state, a_drain_refuses_a_generation_whose_body_is_still_coming)
{
    struct reply r;
    int fd = client_connect(f.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{\"prompt\"");
    for (n_of_body = 0; !n_of_body; usleep(1000))
        on_loop(look_at_body);
    on_loop(drain_long);
    client_puts(fd, ":\"Once\"}");
    client_read(fd, &r, false);
    cr_assert_str_eq(reply_header(&r, "Connection"), "close");
    free(expect_error(r, 503, "draining"));
    cr_assert_eq(fake.n_submitted, 0);
    close(fd);
}

SERVER_TEST(state, closing_with_requests_in_every_phase_leaves_nothing_open)
{
    int fds[6];
    fake.hold = true;
    for (int i = 0; i < 6; i++)
        fds[i] = client_connect(f.port);
    client_request(fds[0], "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    client_request(fds[1], "POST", "/generate", "", "{\"prompt\":\"Once\",\"stream\":true}");
    cr_assert(wait_for(&fake.n_submitted, 2));
    fake.hold = false;
    fake.finish = ENGINE_RUNNING;
    client_request(fds[2], "POST", "/generate", "", "{\"prompt\":\"Once\",\"stream\":true}");
    cr_assert(wait_for(&fake.n_submitted, 3));
    client_puts(fds[3], "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prom");
    client_puts(fds[4], "GET /health HTT");
    stop();
    f.server = NULL;
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}

/* --- routes and headers --- */

SERVER_TEST(route, an_unknown_path_names_the_nearest)
{
    expect_words(post("/genrate", "{}"), 404, "not_found", "the nearest is /generate");
    expect_words(get("/metric"), 404, "not_found", "/metrics");
    expect_words(get("/x"), 404, "not_found", "no route /x");
    expect_words(get("/v1/v1/models"), 404, "not_found", "the nearest is /v1/models");
    expect_words(get("/v1/models/"), 404, "not_found", "the nearest is /v1/models");
    expect_words(get("//health"), 404, "not_found", "the nearest is /health");
    static const char *const others[] = {"/favicon.ico", "/v1/moderations", "/api/pull", "/v1"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* another path altogether: no advice */
        struct reply r = get(others[i]);
        cr_assert(r.status == 404 && !strstr(r.body, "nearest"), "%s", r.body);
        reply_free(&r);
    }
}

SERVER_TEST(route, a_wrong_method_names_the_right_ones)
{
    struct reply r = get("/generate");
    cr_assert_str_eq(reply_header(&r, "Allow"), "POST, OPTIONS");
    free(expect_error(r, 405, "method_not_allowed"));
    r = post("/health", "{}");
    cr_assert_str_eq(reply_header(&r, "Allow"), "GET, HEAD, OPTIONS");
    free(expect_error(r, 405, "method_not_allowed"));
}

SERVER_TEST(route, options_gives_204_and_allow)
{
    struct reply r = client_once(f.port, "OPTIONS", "/generate", "", NULL);
    cr_assert_eq(r.status, 204);
    cr_assert_str_eq(reply_header(&r, "Allow"), "POST, OPTIONS");
    reply_free(&r);
}

SERVER_TEST(route, options_of_the_whole_server_is_answered)
{
    struct reply r = client_once(f.port, "OPTIONS", "*", "", NULL);
    cr_assert_eq(r.status, 204);
    reply_free(&r);
}

SERVER_TEST(route, a_whole_url_is_taken_for_its_path)
{
    struct reply r = client_once(f.port, "GET", "http://localhost:8080/health?x=1", "", NULL);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    r = client_once(f.port, "POST", "HTTPS://a.b/generate", "", "{\"prompt\":\"Once\"}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    r = client_once(f.port, "GET", "http://localhost", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_str_eq(reply_header(&r, "Content-Type"), "text/html; charset=utf-8");
    reply_free(&r);
}

SERVER_TEST(route, a_model_is_found_by_its_name_alone)
{
    struct reply r = get("/v1/models/Hearth%20Stories%206M");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "id"), "Hearth Stories 6M");
    cr_assert_str_eq(json_text(root, "object"), "model");
    json_decref(root);
    reply_free(&r);
    expect_words(get("/v1/models/some/other"), 404, "not_found", "no model some/other");
    expect_words(get("/v1/models/"), 404, "not_found", "no route /v1/models/");
}

SERVER_TEST(route, head_works_where_get_does)
{
    struct reply r = client_once(f.port, "HEAD", "/health", "", NULL);
    cr_assert_eq(r.status, 200);
    cr_assert_eq(r.len, 0);
    reply_free(&r);
}

SERVER_TEST(route, a_good_request_id_is_echoed_and_a_bad_one_replaced)
{
    struct reply r = client_once(f.port, "GET", "/health", "X-Request-Id: my.request-1_A\r\n", NULL);
    cr_assert_str_eq(reply_header(&r, "X-Request-Id"), "my.request-1_A");
    reply_free(&r);
    r = client_once(f.port, "GET", "/health", "X-Request-Id: no spaces\r\n", NULL);
    cr_assert_neq(strcmp(reply_header(&r, "X-Request-Id"), "no spaces"), 0);
    reply_free(&r);
}

SERVER_TEST(route, only_json_content_types_are_taken)
{
    const char *good[] = {"Content-Type: application/json; charset=utf-8\r\n",
                          "Content-Type: application/x-www-form-urlencoded\r\n", ""};
    char text[512];
    for (int i = 0; i < 4; i++) {
        struct reply r;
        int fd = client_connect(f.port);
        snprintf(text, sizeof text,
                 "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 15\r\n\r\n"
                 "{\"content\":\"a\"}",
                 i < 3 ? good[i] : "Content-Type: text/plain\r\n");
        client_puts(fd, text);
        client_read(fd, &r, false);
        close(fd);
        if (i < 3)
            cr_assert_eq(r.status, 200, "%s", r.body);
        else
            expect_words(r, 415, "unsupported_media_type", "text/plain");
        if (i < 3)
            reply_free(&r);
    }
}

SERVER_TEST(route, a_byte_order_mark_before_the_body_is_passed_over_once)
{
    struct reply r = post("/tokenize", "\xef\xbb\xbf{\"content\":\"a\"}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    expect_words(post("/tokenize", "\xef\xbb\xbf\xef\xbb\xbf{}"), 400, "invalid_request", "line 1, column 1");
    expect_words(post("/tokenize", "\xef\xbb\xbf"), 400, "invalid_request", "the body is empty");
}

SERVER_TEST(route, an_encoded_body_is_refused_unless_the_encoding_is_none)
{
    expect_words(
        client_once(f.port, "POST", "/tokenize", "Content-Encoding: gzip\r\n", "{\"content\":\"a\"}"), 415,
        "unsupported_media_type", "gzip");
    struct reply r =
        client_once(f.port, "POST", "/tokenize", "Content-Encoding: identity\r\n", "{\"content\":\"a\"}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

static void smuggled(const char *headers)
{
    char text[512];
    struct reply r;
    int fd = client_connect(f.port);
    snprintf(text, sizeof text,
             "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%s\r\n0\r\n\r\n{\"content\":\"a\"}", headers);
    client_puts(fd, text);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 400, "%s gave %d", headers, r.status);
    struct reply rest = {0};
    while (reply_more(&rest, fd))
        ;
    cr_assert_null(rest.raw && strstr(rest.raw, "HTTP/1.1") ? rest.raw : NULL, "the connection must end");
    reply_free(&rest);
    reply_free(&r);
    close(fd);
}

SERVER_TEST(route, ambiguous_framing_is_refused_and_ends_the_connection)
{
    smuggled("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n");
    smuggled("Content-Length: 15\r\nContent-Length: 5\r\n");
    smuggled("Transfer-Encoding: xchunked\r\n");
    smuggled("Content-Length : 15\r\n");
    smuggled("Transfer-Encoding : chunked\r\n");
    smuggled("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n");
}

SERVER_TEST(route, requests_of_one_connection_are_answered_in_turn)
{
    struct reply r;
    int fd = client_connect(f.port);
    for (int i = 0; i < 20; i++) {
        client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\",\"max_tokens\":1}");
        client_read(fd, &r, false);
        cr_assert_eq(r.status, 200, "%s", r.body);
        reply_free(&r);
    }
    close(fd);
}
