/* Swapping the model of a device that the resident decoder fills: the file is looked at while the old model
 * serves, then the old one goes, the new one comes, and goes back when it does not fit. */
#include "integration/admin.h"

#define DATA HEARTH_TEST_DATA "/"
#define CUDA "--backend", "cuda", "--libcuda", LIBCUDA, "--n-ctx", "256"
#define ASK  "{\"prompt\":[1,22,29,36,43],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":"

static const char *first, *second;

static void start(const char *slots)
{
    const char *key = admin_open();
    first = admin_copy(DATA "tiny-qwen3-s11-q4_k_m.gguf", "first.gguf", SIZE_MAX);
    second = admin_copy(DATA "tiny-qwen3-s11-q8_0.gguf", "second.gguf", SIZE_MAX);
    daemon_start((const char *[]){CUDA, "--slots", slots, "--admin-key-file", key, "--model", first, NULL});
}

static char *ask(const char *path)
{
    json_t *root = generate(ASK "4}");
    char *text = strdup(json_text(root, path));
    json_decref(root);
    return text;
}

static void expect_log(const char *words)
{
    char *log = daemon_read_log();
    cr_assert(strstr(log, words), "no \"%s\" in %s", words, log);
    free(log);
}

/* A stream that has begun and goes on for a while. */
static int begin_stream(struct reply *r)
{
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "X-Request-Id: long\r\n", ASK "200,\"stream\":true}");
    *r = (struct reply){0};
    while (!r->raw || !strstr(r->raw, "data: "))
        cr_assert(reply_more(r, fd));
    return fd;
}

static void end_stream(int fd, struct reply *r)
{
    while (reply_more(r, fd))
        if (strstr(r->raw, "[DONE]"))
            break;
    cr_assert(strstr(r->raw, "[DONE]") && !strstr(r->raw, "event: error"), "%s", r->raw);
    reply_free(r);
    close(fd);
}

Test(cuda_swap, the_old_model_goes_before_the_new_one_comes)
{
    start("4");
    char *before = ask("text"), *print = ask("system_fingerprint");
    admin_swapped("second.gguf");
    char *other = ask("system_fingerprint");
    cr_assert_str_neq(print, other);
    cr_assert_eq(stat_number("decoder.launches"), 1);
    admin_swapped("first.gguf");
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    struct reply r = get("/stats");
    cr_assert_not_null(strstr(r.body, "\"backend\":\"cuda\""));
    reply_free(&r);
    free(before);
    free(print);
    free(other);
    free(after);
    admin_finish();
}

Test(cuda_swap, what_waits_is_refused_and_what_runs_ends)
{
    struct reply r, waiting;
    start("1");
    int fd = begin_stream(&r), queued = client_connect(daemon_.port);
    client_request(queued, "POST", "/generate", "", ASK "4}");
    wait_stat("requests.waiting", 1);
    admin_expect(admin_swap("second.gguf"), 202);
    client_read(queued, &waiting, false);
    cr_assert_not_null(reply_header(&waiting, "Retry-After"));
    expect_words(waiting, 503, "loading", "being loaded");
    close(queued);
    cr_assert(admin_is("state", "draining"));
    struct reply h = get("/health/ready");
    cr_assert_eq(h.status, 503);
    cr_assert(strstr(h.body, "\"status\":\"loading\",\"progress\":"), "%s", h.body);
    reply_free(&h);
    expect_words(post("/generate", ASK "4}"), 503, "loading", "being loaded");
    admin_expect(client_once(daemon_.port, "DELETE", "/requests/long", ADMIN_KEY, NULL), 202);
    end_stream(fd, &r);
    admin_wait("idle");
    cr_assert(admin_is("model", "second.gguf"));
    admin_finish();
}

Test(cuda_swap, a_broken_file_disturbs_nobody)
{
    struct reply r;
    start("2");
    admin_copy(DATA "tiny-qwen3-s11-q4_k_m.gguf", "cut.gguf", 1000000);
    int fd = begin_stream(&r);
    admin_not_swapped("cut.gguf", "cut off");
    struct reply h = get("/health/ready");
    cr_assert_eq(h.status, 200);
    reply_free(&h);
    admin_expect(client_once(daemon_.port, "DELETE", "/requests/long", ADMIN_KEY, NULL), 202);
    end_stream(fd, &r);
    admin_finish();
}

/* The first model takes 12 MiB with all it needs. The demo model takes more than there is, though its file is
 * smaller. */
Test(cuda_swap, a_model_that_does_not_fit_brings_the_old_one_back)
{
    setenv("SIMT_MEMORY_MB", "14", 1);
    start("1");
    admin_copy(DEMO_MODEL, "large.gguf", SIZE_MAX);
    char *before = ask("text");
    admin_not_swapped("large.gguf", "MiB");
    expect_log("restoring");
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    cr_assert(admin_is("model", "first.gguf"));
    free(before);
    free(after);
    admin_finish();
}

Test(cuda_swap, a_file_larger_than_the_device_costs_no_outage)
{
    setenv("SIMT_MEMORY_MB", "14", 1);
    start("1");
    cr_assert_eq(truncate(admin_copy(DEMO_MODEL, "large.gguf", SIZE_MAX), 16 << 20), 0);
    admin_not_swapped("large.gguf", "the device");
    char *log = daemon_read_log();
    cr_assert_null(strstr(log, "restoring"), "%s", log);
    free(log);
    free(ask("text"));
    admin_finish();
}

Test(cuda_swap, a_model_put_away_leaves_the_device_and_comes_back_with_the_same_tokens)
{
    start("2");
    char *before = ask("text");
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    struct reply h = get("/health/ready");
    cr_assert_eq(h.status, 503);
    cr_assert_str_eq(h.body, "{\"status\":\"suspended\"}\n");
    reply_free(&h);
    admin_expect(admin_post("/admin/resume", ""), 202);
    admin_wait("idle");
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    free(before);
    free(after);
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    admin_finish();
}

Test(cuda_swap, sigterm_while_the_old_model_drains_leaves_in_order)
{
    struct reply r;
    start("1");
    int fd = begin_stream(&r);
    admin_expect(admin_swap("second.gguf"), 202);
    admin_wait("draining");
    kill(daemon_.pid, SIGTERM);
    for (int status = 503; status && status != 404;) {
        struct reply h = get("/health/proxy");
        status = h.status;
        reply_free(&h);
    }
    int code = daemon_end(SIGTERM);
    end_stream(fd, &r);
    cr_assert_eq(code, 0);
    admin_close();
}
