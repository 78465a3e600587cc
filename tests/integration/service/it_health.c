/* Health, figures, and the life of the daemon as a client and a service manager see it. */
#include "integration/harness.h"
#include "support/listen.h"
#include "support/models/made_model.h"

#include <sys/un.h>

static void expect_status(const char *path, int status, const char *word)
{
    struct reply r = get(path);
    cr_assert_eq(r.status, status, "%s gave %d", path, r.status);
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "status"), word);
    json_decref(root);
    reply_free(&r);
}

static void expect_no_traffic(void)
{
    static const char *const figures[] = {"tokens.prompt", "tokens.generated", "tokens.prompt_cached",
                                          "decoder.steps", "decoder.tokens",   "requests.completed"};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        cr_assert_eq(stat_number(figures[i]), 0, "%s", figures[i]);
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number_value(json_at(root, "throughput.tokens_per_s")), 0);
    cr_assert_eq(json_number_value(json_at(root, "throughput.prompt_tokens_per_s")), 0);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(health, the_warm_up_is_no_traffic)
{
    expect_no_traffic();
}

DAEMON_TEST(health, eager_launches_are_those_of_steps_for_clients, "--executor", "eager")
{
    cr_assert_eq(stat_number("decoder.launches"), 0);
    expect_no_traffic();
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":5,\"ignore_eos\":true}"));
    cr_assert_eq(stat_number("decoder.steps"), 5);
    cr_assert_eq(stat_number("decoder.launches"), 5 * stat_number("decoder.ops_per_step"));
}

DAEMON_TEST(health, a_ready_daemon_says_so_everywhere)
{
    expect_status("/health", 200, "ready");
    expect_status("/health/ready", 200, "ready");
    expect_status("/health/proxy", 200, "ready");
    expect_status("/health/live", 200, "live");
}

DAEMON_TEST(health, cpu_without_a_driver_is_told_with_the_reason, "--backend", "auto", "--libcuda",
            "/nonexistent/libcuda.so")
{
    static const char why[] = "backend auto uses cpu: no CUDA driver: /nonexistent/libcuda.so";
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    char *log = daemon_read_log();
    cr_assert_str_eq(json_text(root, "device.backend"), "cpu");
    cr_assert_not_null(strstr(json_text(root, "device.why"), why), "%s", json_text(root, "device.why"));
    cr_assert_not_null(strstr(log, why), "%s", log);
    free(log);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(health, head_gives_the_headers_alone)
{
    struct reply r = client_once(daemon_.port, "HEAD", "/stats", "", NULL);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
}

DAEMON_TEST(stats, scratch_and_the_time_inside_steps_are_shown)
{
    long long scratch = stat_number("device.scratch"), before = stat_number("decoder.busy_ms");
    cr_assert(scratch > 0 && scratch < stat_number("device.memory_used"), "%lld", scratch);
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":200,\"ignore_eos\":true}"));
    long long busy = stat_number("decoder.busy_ms") - before;
    cr_assert(busy > 0 && busy < 1000 * (stat_number("uptime_s") + 1), "%lld ms", busy);
}

static void expect_kv_type(const char *model, const char *flag, const char *value, const char *wanted)
{
    daemon_start((const char *[]){"--model", model, flag, value, NULL});
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "kv.type"), wanted, "%s of %s", flag ? value : "auto", model);
    json_decref(root);
    reply_free(&r);
    daemon_stop();
}

/* The default with int8 products: see figures_add_up. */
Test(stats, float_weights_keep_an_f16_cache_unless_told_otherwise)
{
    char model[64];
    made_model("tiny-llama3", "f16", model);
    expect_kv_type(model, NULL, NULL, "f16");
    expect_kv_type(model, "--kv-type", "bf16", "bf16");
    unlink(model);
}

DAEMON_TEST(stats, figures_add_up)
{
    for (int i = 0; i < 3; i++)
        json_decref(generate("{\"prompt\":\"Once upon a time\",\"max_tokens\":10,\"ignore_eos\":true}"));
    wait_stat("requests.running", 0);
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    cr_assert_str_eq(json_text(root, "state"), "ready");
    cr_assert_str_eq(json_text(root, "model.arch"), "qwen3");
    cr_assert_str_eq(json_text(root, "model.quantization"), "Q4_K_M");
    cr_assert_eq(json_number(root, "model.parameters"), 5771264);
    cr_assert_eq(json_number(root, "model.bytes"), 3785024);
    cr_assert_eq(json_number(root, "model.n_layers"), 6);
    cr_assert_eq(json_number(root, "model.n_ctx"), 1024);
    cr_assert_eq(json_number(root, "model.n_vocab"), 4096);
    cr_assert_str_eq(json_text(root, "device.backend"), "cpu");
    cr_assert_str_eq(json_text(root, "decoder.executor"), "persistent");
    cr_assert_eq(json_number(root, "decoder.launches"), 1, "the resident team was started once");
    cr_assert_eq(json_number(root, "requests.completed"), 3);
    cr_assert_eq(json_number(root, "requests.queue_limit"), 256);
    cr_assert_geq(json_number(root, "tokens.generated"), 30);
    cr_assert_eq(json_number(root, "kv.page_tokens"), 64);
    cr_assert_str_eq(json_text(root, "kv.type"), "bf16");
    const char *kinds[] = {"queue", "ttft", "inter_token", "total"};
    for (int i = 0; i < 4; i++) {
        json_t *p = json_at(json_at(root, "latency_ms"), kinds[i]);
        double p50 = json_number_value(json_at(p, "p50")), p99 = json_number_value(json_at(p, "p99"));
        cr_assert(p50 > 0 && p50 <= p99, "%s: p50 %g, p99 %g", kinds[i], p50, p99);
    }
    json_at(root, "throughput.tokens_per_s");
    json_at(root, "decoder.heartbeat_age_ms");
    json_decref(root);
    reply_free(&r);
}

Test(life, sigterm_lets_running_requests_finish_and_leaves_with_0)
{
    struct reply r = {0};
    daemon_start(NULL);
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":300,\"ignore_eos\":true,\"stream\":true}");
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd));
    kill(daemon_.pid, SIGTERM);
    while (reply_more(&r, fd))
        ;
    cr_assert_not_null(strstr(r.raw, "\"finish_reason\":\"length\""), "%s", r.raw + r.raw_len / 2);
    cr_assert_not_null(strstr(r.raw, "[DONE]"));
    cr_assert_eq(daemon_end(0), 0);
    reply_free(&r);
    close(fd);
}

Test(life, a_second_signal_cancels_what_runs_and_leaves_with_0)
{
    struct reply r = {0};
    daemon_start((const char *[]){SLOW, NULL});
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}");
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd));
    kill(daemon_.pid, SIGTERM);
    for (int status = 200; status != 404;) { /* the drain has begun */
        struct reply h = get("/health/proxy");
        status = h.status;
        reply_free(&h);
        if (!status)
            break;
    }
    int code = daemon_end(SIGTERM);
    while (reply_more(&r, fd))
        ;
    cr_assert_not_null(strstr(r.raw, "[DONE]"), "an orderly end");
    cr_assert_eq(code, 0);
    reply_free(&r);
    close(fd);
}

Test(life, a_unix_socket_answers_and_is_removed)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct reply r;
    char path[] = "/tmp/hearth-it-XXXXXX";
    cr_assert_not_null(mkdtemp(path));
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/hearth.sock", path);
    daemon_start((const char *[]){"--unix-socket", addr.sun_path, NULL});
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    close(fd);
    daemon_stop();
    cr_assert_neq(access(addr.sun_path, F_OK), 0);
    rmdir(path);
}

/* An operator removes a socket in use and starts another daemon on its path. */
Test(life, a_unix_socket_of_another_process_stays)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char path[] = "/tmp/hearth-it-XXXXXX";
    cr_assert_not_null(mkdtemp(path));
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/hearth.sock", path);
    daemon_start((const char *[]){"--unix-socket", addr.sun_path, NULL});
    cr_assert_eq(unlink(addr.sun_path), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    daemon_stop();
    cr_assert_eq(unlink(addr.sun_path), 0, "it was removed");
    close(fd);
    rmdir(path);
}

Test(life, an_address_in_use_is_exit_code_8)
{
    char port[8];
    uint16_t taken;
    int fd = listen_loopback(&taken);
    snprintf(port, sizeof port, "%u", taken);
    daemon_spawn((const char *[]){"--port", port, NULL});
    cr_assert_eq(daemon_end(0), 8);
    close(fd);
}

DAEMON_TEST(stats, there_is_nothing_to_warn_about_on_loopback)
{
    struct reply r = get("/stats");
    json_t *root = reply_json(&r), *warnings = json_at(root, "warnings");
    cr_assert(json_is_array(warnings) && !json_array_size(warnings));
    json_decref(root);
    reply_free(&r);
}

/* The logits of each slot, 4 bytes a token, and a scratch for each thread, 32 bytes a token. */
DAEMON_TEST(health, memory_to_draw_tokens_is_counted, "--slots", "8", "--threads", "2")
{
    long long sampling = stat_number("device.sampling");
    cr_assert_geq(sampling, stat_number("model.n_vocab") * (8 * 4 + 2 * 32), "%lld", sampling);
    char line[64], *log = daemon_read_log();
    snprintf(line, sizeof line, ", sampling %.1f MiB", (double)sampling / (1 << 20));
    cr_assert(strstr(log, line), "%s: %s", line, log);
    free(log);
    struct reply r = get("/metrics");
    snprintf(line, sizeof line, "\nhearth_sampling_bytes %lld\n", sampling);
    cr_assert(strstr(r.body, line), "%s", line);
    reply_free(&r);
}
