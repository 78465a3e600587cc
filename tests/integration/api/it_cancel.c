/* A request ends in the queue, in prefill and in decode, by its client's leaving, by DELETE /requests/{id} or
 * by a deadline: computing stops, slots and pages return, and it is counted as what it was. The model has
 * random weights and a long context, so that a prompt is long enough to be caught half computed. */
#include "integration/harness.h"
#include "support/models/made_model.h"

#define PROMPT 16000 /* tokens: seconds of prefill */

static char model[64];

static void remove_model(void)
{
    unlink(model);
}

static void start(const char *flag, const char *value)
{
    snprintf(model, sizeof model, "/tmp/hearth-cancel-%d.gguf", (int)getpid());
    make_model(model, "tiny-llama3", "q4_k_m", "--n-ctx 16384");
    atexit(remove_model);
    /* No drafts: the model repeats itself, and a long text would be over before it can be cut off. */
    daemon_start((const char *[]){"--model", model, "--n-ctx", "16384", "--kv-memory", "100M",
                                  "--speculation", "off", flag, value, NULL});
}

/* --- a request brought into a phase --- */

/* The request's row of GET /requests in this state, with at least `computed` prompt tokens done. */
static bool is_in(const char *id, const char *state, long long computed)
{
    struct reply r = get("/requests");
    json_t *root = reply_json(&r), *row;
    bool found = false;
    size_t i;
    json_array_foreach(json_at(root, "requests"), i, row) found =
        found || (!strcmp(json_text(row, "request_id"), id) && !strcmp(json_text(row, "state"), state) &&
                  json_number(row, "computed") >= computed);
    json_decref(root);
    reply_free(&r);
    return found;
}

static void wait_in(const char *id, const char *state, long long computed)
{
    for (int left = 300000; !is_in(id, state, computed); left--) {
        cr_assert_gt(left, 0, "%s is never %s", id, state);
        usleep(1000);
    }
}

static char *long_ids(const char *rest)
{
    size_t size = PROMPT * 4 + 256, at;
    char *body = malloc(size);
    at = (size_t)snprintf(body, size, "{\"prompt\":[");
    for (int i = 0; i < PROMPT; i++)
        at += (size_t)snprintf(body + at, size - at, "%s%d", i ? "," : "", 5 + i * 37 % 90);
    snprintf(body + at, size - at, "]%s}", rest);
    return body;
}

#define ENDLESS "{\"prompt\":\"Once\",\"max_tokens\":15000,\"ignore_eos\":true}"

static int decoding(const char *id)
{
    int fd = send_as(id, ENDLESS);
    wait_in(id, "decode", 1);
    return fd;
}

static int prefilling(const char *id, const char *rest)
{
    char *body = long_ids(rest);
    int fd = send_as(id, body);
    wait_in(id, "prefill", 64);
    free(body);
    return fd;
}

static int other; /* what keeps the slot */

static int queued(const char *id)
{
    other = decoding("other");
    int fd = send_as(id, "{\"prompt\":\"Once\"}");
    wait_in(id, "queued", 0);
    return fd;
}

/* --- its end --- */

static void delete (const char *id)
{
    char path[64];
    snprintf(path, sizeof path, "/requests/%s", id);
    struct reply r = client_once(daemon_.port, "DELETE", path, "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
}

static struct reply read_reply(int fd)
{
    struct reply r;
    client_read(fd, &r, false);
    close(fd);
    return r;
}

/* Nothing is computed any more, and nothing held. */
static void expect_rest(long long n_cancelled)
{
    wait_stat("requests.running", 0);
    wait_stat("requests.waiting", 0);
    wait_stat("kv.pages_used", 0);
    long long steps = stat_number("decoder.steps");
    usleep(100000);
    cr_assert_eq(stat_number("decoder.steps"), steps);
    cr_assert_eq(stat_number("requests.cancelled"), n_cancelled);
}

static void expect_cancelled_after(int fd)
{
    free(expect_error(read_reply(fd), 499, "cancelled"));
}

Test(cancel, while_it_waits_by_its_client)
{
    start("--slots", "1");
    close(queued("x"));
    wait_stat("requests.waiting", 0);
    cr_assert_eq(stat_number("requests.running"), 1);
    close(other);
    expect_rest(2);
    daemon_stop();
}

Test(cancel, while_it_waits_by_its_id)
{
    start("--slots", "1");
    int fd = queued("x");
    delete ("x");
    expect_cancelled_after(fd);
    delete ("other");
    close(other);
    expect_rest(2);
    daemon_stop();
}

Test(cancel, in_the_middle_of_a_long_prompt_by_its_client)
{
    start("--slots", "2");
    int fd = prefilling("x", "");
    struct reply r = get("/health/ready"); /* meanwhile, as the prompt's tokens below show */
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
    expect_rest(1);
    cr_assert_lt(stat_number("tokens.prompt"), PROMPT);
    cr_assert_eq(stat_number("tokens.generated"), 0);
    daemon_stop();
}

Test(cancel, in_the_middle_of_a_long_prompt_by_its_id)
{
    start("--slots", "8");
    int fd = prefilling("x", ",\"n\":8,\"stream\":true");
    delete ("x");
    expect_cancelled_after(fd);
    expect_rest(1);
    cr_assert_lt(stat_number("tokens.prompt"), PROMPT);
    cr_assert_eq(stat_number("tokens.generated"), 0);
    daemon_stop();
}

/* The first two have slots, the third waits. */
Test(cancel, a_request_with_several_prompts_is_listed_with_all_of_them)
{
    start("--slots", "2");
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/v1/completions", "X-Request-Id: x\r\n",
                   "{\"prompt\":[[5,6],[5,6,7],[5,6,7,8]],\"max_tokens\":15000,\"ignore_eos\":true}");
    wait_in("x", "decode", 5);
    struct reply r = get("/requests");
    cr_assert(strstr(r.body, "\"prompts\":3,\"prompt_tokens\":9,\"computed\":5,"), "%s", r.body);
    reply_free(&r);
    delete ("x");
    r = read_reply(fd);
    reply_free(&r);
    daemon_stop();
}

/* The same, with the log-probabilities of the prompts: the third is not computed. */
Test(cancel, an_echo_of_a_prompt_that_was_not_computed_has_no_probabilities)
{
    start("--slots", "2");
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/v1/completions", "X-Request-Id: x\r\n",
                   "{\"prompt\":[[5,6],[5,6,7],[5,6,7,8]],\"max_tokens\":15000,\"ignore_eos\":true,\"echo\":"
                   "true,\"logprobs\":1}");
    wait_in("x", "decode", 5);
    delete ("x");
    struct reply r = read_reply(fd);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    cr_assert(json_is_number(json_at(root, "choices.1.logprobs.token_logprobs.2")));
    cr_assert_eq(json_array_size(json_at(root, "choices.2.logprobs.tokens")), 4);
    for (size_t i = 0; i < 4; i++) {
        cr_assert(json_is_null(json_array_get(json_at(root, "choices.2.logprobs.token_logprobs"), i)));
        cr_assert(json_is_null(json_array_get(json_at(root, "choices.2.logprobs.top_logprobs"), i)));
    }
    json_decref(root);
    reply_free(&r);
    daemon_stop();
}

Test(cancel, while_tokens_come_by_its_client)
{
    start("--slots", "2");
    close(decoding("x"));
    expect_rest(1);
    cr_assert_lt(stat_number("tokens.generated"), 15000);
    daemon_stop();
}

Test(cancel, while_tokens_come_by_its_id)
{
    start("--slots", "2");
    int fd = decoding("x");
    delete ("x");
    struct reply r = read_reply(fd);
    cr_assert_eq(r.status, 200);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "finish_reason"), "cancelled");
    cr_assert_eq(json_array_size(json_at(root, "tokens")),
                 (size_t)json_number(root, "usage.completion_tokens"));
    json_decref(root);
    reply_free(&r);
    expect_rest(1);
    daemon_stop();
}

/* --- deadlines --- */

static void expect_timed_out(long long n)
{
    cr_assert_eq(stat_number("requests.timed_out"), n);
}

Test(deadline, in_the_queue_is_a_504_that_names_the_limit)
{
    start("--slots", "1");
    other = decoding("other");
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"queue_timeout_ms\":50}"), 504, "timeout",
                 "queue_timeout_ms (50) passed before the request could run");
    expect_words(post("/generate", "{\"prompt\":\"Once\",\"timeout_ms\":50}"), 504, "timeout",
                 "timeout_ms (50) passed before the request could run");
    expect_timed_out(2);
    close(other);
    expect_rest(1);
    daemon_stop();
}

Test(deadline, in_the_middle_of_a_long_prompt_is_a_504)
{
    start("--slots", "2");
    char *body = long_ids(",\"timeout_ms\":400,\"queue_timeout_ms\":0");
    free(expect_error(post("/generate", body), 504, "timeout"));
    expect_timed_out(1);
    expect_rest(0);
    cr_assert_lt(stat_number("tokens.prompt"), PROMPT);
    free(body);
    daemon_stop();
}

Test(deadline, while_tokens_come_keeps_what_there_is)
{
    struct reply r;
    long long n = 0;
    start("--slots", "2");
    /* On a busy machine a deadline may come before the first token: that is a 504, and then it gets more. */
    for (int ms = 500; ms <= 8000; ms *= 2) {
        char body[128];
        snprintf(body, sizeof body,
                 "{\"prompt\":\"Once\",\"max_tokens\":15000,\"ignore_eos\":true,\"timeout_ms\":%d}", ms);
        r = post("/generate", body);
        n++;
        if (r.status != 504)
            break;
        reply_free(&r);
    }
    cr_assert_eq(r.status, 200);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "finish_reason"), "timeout");
    cr_assert_gt(json_number(root, "usage.completion_tokens"), 0);
    json_decref(root);
    reply_free(&r);
    expect_timed_out(n);
    expect_rest(0);
    daemon_stop();
}

Test(deadline, of_the_configuration_holds_where_the_request_has_none)
{
    start("--timeout-ms", "300");
    char *body = long_ids("");
    free(expect_error(post("/generate", body), 504, "timeout"));
    free(body);
    body = long_ids(",\"timeout_ms\":0,\"max_tokens\":1,\"queue_timeout_ms\":0");
    cr_assert_eq(stat_number("requests.timed_out"), 1);
    int fd = send_as("y", body);
    wait_in("y", "prefill", 6400);
    close(fd); /* it runs on, having no limit of its own: cancelled, not timed out */
    expect_rest(1);
    expect_timed_out(1);
    free(body);
    daemon_stop();
}
