/* The real daemon with backend = cuda, on the emulated driver: what it serves, how the resident kernel lives,
 * parks and comes back, and what happens when the device fails. */
#include "integration/admin.h"
#include "integration/process.h"
#include "support/listen.h"
#include "abi/device_abi.h"

#include <dirent.h>
#include <grp.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>

#define CUDA  "--backend", "cuda", "--libcuda", LIBCUDA, "--slots", "4", "--n-ctx", "256"
#define STORY "{\"prompt\":\"Once upon a time\",\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":"

/* The beginning of the recorded greedy story. */
static void expect_story(const char *text)
{
    char recorded[2048] = {0};
    FILE *f = fopen(HEARTH_TEST_DATA "/once-upon-a-time.txt", "rb");
    cr_assert_not_null(f);
    cr_assert_gt(fread(recorded, 1, sizeof recorded - 1, f), 0);
    fclose(f);
    cr_assert(*text && strncmp(recorded, text, strlen(text)) == 0, "got: %s", text);
}

static void wait_state(const char *state)
{
    for (int left = 12000;; left--) {
        char *now = stat_text("decoder.state");
        bool there = strcmp(now, state) == 0;
        cr_assert(there || left > 0, "the decoder is %s, not %s", now, state);
        free(now);
        if (there)
            return;
        usleep(5000);
    }
}

/* From here on this process is a plain user's, where it is root's and such a user reaches the program. */
static void become_nobody(void)
{
    if (geteuid())
        return;
    cr_assert_eq(seteuid(65534), 0);
    bool reaches = !eaccess(HEARTHD_BINARY, X_OK) && !eaccess(LIBCUDA, R_OK) && !eaccess(DEMO_MODEL, R_OK);
    cr_assert_eq(seteuid(0), 0);
    if (reaches)
        cr_assert(!setgroups(0, NULL) && !setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
}

/* The daemon ends by itself with this exit code, and its log has these words. */
static void expect_end(int code, const char *words)
{
    int got = daemon_end(0);
    char *log = daemon_read_log();
    cr_assert_eq(got, code, "exit code %d\n%s", got, log);
    cr_assert_not_null(strstr(log, words), "no \"%s\" in\n%s", words, log);
    free(log);
}

/* ---- serving ---- */

/* Its files in /proc are root's then: the driver and this program open those that all may read. */
Test(cuda, serves_as_a_plain_user_whose_memory_nobody_may_dump)
{
    char path[64];
    struct stat st;
    become_nobody();
    daemon_start((const char *[]){CUDA, "--core-dumps", "no", NULL});
    snprintf(path, sizeof path, "/proc/%d/environ", daemon_.pid);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_uid, 0, "it may be dumped");
    json_t *root = generate(STORY "6}");
    expect_story(json_text(root, "text"));
    json_decref(root);
    daemon_stop();
}

DAEMON_TEST(cuda, one_launch_serves_many_tokens, CUDA)
{
    expect_stat("device.backend", "cuda");
    expect_stat("device.name", "SIMT emulator");
    expect_stat("device.isa", "sm_90");
    for (int i = 1; i <= 2; i++) {
        json_t *root = generate(STORY "6}");
        expect_story(json_text(root, "text"));
        json_decref(root);
        cr_assert_eq(stat_number("decoder.tokens"), 6 * i);
        cr_assert_eq(stat_number("decoder.launches"), 1);
        cr_assert_eq(stat_number("decoder.parks"), 0);
        cr_assert_gt(stat_number("decoder.busy_ms"), 0);
    }
    cr_assert_gt(stat_number("device.memory_total"), stat_number("device.memory_used"));
    cr_assert_eq(stat_number("device.modules"), 1);
    cr_assert_eq(stat_number("device.cubins"), 0);
    wait_state("idle");
}

DAEMON_TEST(cuda, a_stream_gives_the_same_text_in_pieces, CUDA)
{
    struct events e;
    struct reply r = post("/generate", STORY "6,\"stream\":true}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    events_read(&e, &r);
    cr_assert(e.done);
    char *text = events_text(&e, "text");
    expect_story(text);
    cr_assert_gt(e.n, 3);
    free(text);
    events_free(&e);
    reply_free(&r);
}

/* The replies' choices, from a daemon with these flags; to decref. */
static json_t *choices_of(const char *const *flags, const char *body)
{
    daemon_start(flags);
    json_t *root = generate(body), *choices = json_incref(json_at(root, "choices"));
    json_decref(root);
    daemon_stop();
    return choices;
}

static void expect_choices_of_the_cpu(const char *fields)
{
    char *body = long_prompt("Once upon a time ", 20, fields);
    json_t *cuda = choices_of((const char *[]){CUDA, NULL}, body);
    json_t *cpu =
        choices_of((const char *[]){"--backend", "cpu", "--slots", "4", "--n-ctx", "256", NULL}, body);
    char *a = json_dumps(cuda, 0), *b = json_dumps(cpu, 0);
    cr_assert_eq(json_array_size(cuda), 3);
    cr_assert(json_equal(cuda, cpu), "cuda: %s\ncpu: %s", a, b);
    free(a);
    free(b);
    free(body);
    json_decref(cuda);
    json_decref(cpu);
}

Test(cuda, sampled_choices_and_their_log_probabilities_are_the_cpus)
{
    expect_choices_of_the_cpu(
        ",\"n\":3,\"seed\":11,\"temperature\":1.2,\"top_p\":0.9,\"repetition_penalty\":1.2,"
        "\"frequency_penalty\":0.3,\"logprobs\":3,\"max_tokens\":8");
}

/* The host draws them from logits that the decoder exports. */
Test(cuda, choices_drawn_by_further_filters_are_the_cpus)
{
    expect_choices_of_the_cpu(
        ",\"n\":3,\"seed\":11,\"temperature\":1.2,\"dry_multiplier\":2,\"xtc_probability\":0.5,"
        "\"mirostat\":2,\"logprobs\":3,\"max_tokens\":6");
}

Test(cuda, cached_pages_outlive_the_process)
{
    char dir[] = "/tmp/hearth-it-XXXXXX", command[64];
    cr_assert_not_null(mkdtemp(dir));
    char *body =
        long_prompt("Once upon a time ", 20, ",\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":4");
    char *texts[2];
    for (int i = 0; i < 2; i++) {
        daemon_start((const char *[]){CUDA, "--prefix-cache-dir", dir, NULL});
        json_t *root = generate(body);
        cr_assert_eq(json_number(root, "usage.cached_tokens"), i ? 64 : 0);
        texts[i] = strdup(json_text(root, "text"));
        json_decref(root);
        daemon_stop();
    }
    cr_assert_str_eq(texts[0], texts[1]);
    free(texts[0]);
    free(texts[1]);
    free(body);
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

static void expect_launches(const char *executor, long long per_step, long long more)
{
    expect_stat("decoder.executor", executor);
    cr_assert_eq(stat_number("decoder.launches"), 0);
    json_t *root = generate(STORY "3}");
    expect_story(json_text(root, "text"));
    json_decref(root);
    long long n = per_step ? per_step : stat_number("decoder.ops_per_step") + more;
    cr_assert_eq(stat_number("decoder.launches"), n * stat_number("decoder.steps"));
}

DAEMON_TEST(cuda, eager_launches_every_node_and_the_step_around_them, CUDA, "--executor", "eager")
{
    expect_launches("eager", 0, 2);
}

DAEMON_TEST(cuda, graph_launches_once_per_step, CUDA, "--executor", "graph")
{
    expect_launches("graph", 1, 0);
}

/* ---- the prefix cache on disk ---- */

/* Asks a daemon of its own, with this directory; the text, to free. */
static char *ask_on(const char *dir, const char *backend, long long cached, long long spilled)
{
    daemon_start((const char *[]){CUDA, "--prefix-cache-dir", dir, "--backend", backend, NULL});
    char *body =
        long_prompt("Once upon a time ", 20, ",\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":4");
    json_t *root = generate(body);
    char *text = strdup(json_text(root, "text"));
    cr_assert_eq(json_number(root, "usage.cached_tokens"), cached);
    wait_stat("prefix_disk.spilled", spilled);
    cr_assert_eq(stat_number("decoder.launches"), 1); /* steps that only move pages are steps like others */
    daemon_stop();
    json_decref(root);
    free(body);
    return text;
}

Test(cuda, a_restarted_daemon_begins_with_its_own_pages_and_not_with_those_of_the_cpu)
{
    char *dir = temporary_dir(), *on_cpu = ask_on(dir, "cpu", 0, 1), *first = ask_on(dir, "cuda", 0, 1),
         *again = ask_on(dir, "cuda", 64, 0);
    cr_assert_str_eq(first, on_cpu);
    cr_assert_str_eq(again, first);
    free(on_cpu);
    free(first);
    free(again);
    temporary_dir_remove(dir);
}

/* ---- with everything checked ---- */

/* The race detector, poison and late copies, under the whole daemon, whose own accesses to pinned memory are
 * checked too. */
static void start_watched(void)
{
    daemon_binary = HEARTHD_WATCHED_BINARY;
    daemon_spawn((const char *[]){CUDA, "--libcuda", LIBCUDA_CHECKED, NULL});
}

Test(cuda, a_daemon_on_the_checked_emulator_gives_it_nothing_to_report)
{
    start_watched();
    daemon_wait_listening();
    daemon_wait_ready();
    json_t *root = generate(STORY "4}");
    expect_story(json_text(root, "text"));
    json_decref(root);
    cr_assert_eq(stat_number("decoder.launches"), 1);
    char *log = daemon_read_log();
    cr_assert_null(strstr(log, "SIMT emulator:"), "%s", log);
    free(log);
    daemon_stop();
}

#ifdef HOST_IS_WATCHED
/* The check bites: the host reads the results of the first token without the order that `completed` gives. */
Test(cuda, a_host_that_takes_results_without_order_is_reported)
{
    char at[16];
    (void)snprintf(at, sizeof at, "%zu", offsetof(struct decoder_control, completed));
    setenv("SIMT_HOST_MUTE", at, 1);
    start_watched();
    expect_end(9, "by the host is not ordered after the store by block 0");
}
#endif

/* ---- parking ---- */

DAEMON_TEST(cuda, a_parked_decoder_comes_back_with_its_cache, CUDA, "--park-after-ms", "200")
{
    char *body =
        long_prompt("Once upon a time ", 20, ",\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":4");
    json_t *first = generate(body);
    wait_state("parked");
    long long parks = stat_number("decoder.parks");
    cr_assert_geq(parks, 1);
    cr_assert_eq(stat_number("decoder.launches"), parks);
    json_t *again = generate(body);
    cr_assert_geq(stat_number("decoder.launches"), parks + 1);
    cr_assert_eq(json_number(first, "usage.cached_tokens"), 0);
    cr_assert_eq(json_number(again, "usage.cached_tokens"), 64);
    cr_assert_str_eq(json_text(first, "text"), json_text(again, "text"));
    json_decref(first);
    json_decref(again);
    free(body);
    wait_state("parked");
}

Test(cuda, sigterm_lets_what_runs_finish)
{
    struct reply r = {0};
    daemon_start((const char *[]){CUDA, NULL});
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", STORY "12,\"stream\":true}");
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd));
    kill(daemon_.pid, SIGTERM);
    while (reply_more(&r, fd))
        ;
    cr_assert_not_null(strstr(r.raw, "\"finish_reason\":\"length\""), "%s", r.raw);
    cr_assert_not_null(strstr(r.raw, "[DONE]"));
    expect_end(0, "bye");
    reply_free(&r);
    close(fd);
}

/* ---- what idleness costs ---- */

/* Processor time that threads of the daemon have used, in ns: of the threads of the emulated device, which a
 * GPU does not have, or of all others. */
static long long used_ns(bool of_device)
{
    long long sum = 0;
    char path[300], name[32];
    (void)snprintf(path, sizeof path, "/proc/%d/task", daemon_.pid);
    DIR *threads = opendir(path);
    cr_assert_not_null(threads);
    for (struct dirent *t; (t = readdir(threads));) {
        long long ns = 0;
        (void)snprintf(path, sizeof path, "/proc/%d/task/%s/comm", daemon_.pid, t->d_name);
        FILE *comm = *t->d_name == '.' ? NULL : fopen(path, "re");
        (void)snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", daemon_.pid, t->d_name);
        FILE *stat = comm ? fopen(path, "re") : NULL;
        if (stat && fgets(name, sizeof name, comm) && fscanf(stat, "%lld", &ns) == 1)
            sum += (strcmp(name, "simt-stream\n") == 0) == of_device ? ns : 0;
        if (stat)
            fclose(stat);
        if (comm)
            fclose(comm);
    }
    closedir(threads);
    return sum;
}

static long long now_ns(void)
{
    struct timespec t;
    cr_assert_eq(clock_gettime(CLOCK_MONOTONIC, &t), 0);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#define WINDOW_US 1000000
#define IDLE_CORE 0.005 /* of one core, in any state that the daemon is idle in */

/* Half a percent of a core at most, the device's threads included or not. */
static void expect_no_processor_used(bool with_device)
{
    cr_assert_gt(used_ns(false), 0); /* it can be read at all */
    long long began = now_ns(), own = used_ns(false), device = used_ns(true);
    usleep(WINDOW_US);
    own = used_ns(false) - own;
    device = used_ns(true) - device;
    double most = IDLE_CORE * (double)(now_ns() - began);
    cr_assert_leq((double)(own + (with_device ? device : 0)), most, "%lld ns of %.0f, and the device %lld",
                  own, most, device);
}

DAEMON_TEST(cuda, an_idle_daemon_uses_no_processor_while_its_kernel_waits, CUDA, "--park-after-ms", "0")
{
    json_decref(generate(STORY "12}"));
    wait_state("idle");
    cr_assert_gt(used_ns(true), 0);
    expect_no_processor_used(false);
    expect_stat("decoder.state", "idle");
}

/* After some tokens, at rest: neither the daemon nor the device computes. */
static void expect_rest(const char *state)
{
    json_decref(generate(STORY "2}"));
    wait_state(state);
    expect_no_processor_used(true);
    expect_stat("decoder.state", state);
}

DAEMON_TEST(cuda, nor_does_the_device_once_it_is_parked, CUDA, "--park-after-ms", "200")
{
    expect_rest("parked");
}

DAEMON_TEST(cuda, nor_between_the_launches_of_eager, CUDA, "--executor", "eager")
{
    expect_rest("idle");
}

DAEMON_TEST(cuda, nor_between_those_of_graph, CUDA, "--executor", "graph")
{
    expect_rest("idle");
}

Test(cuda, nor_with_its_model_put_away)
{
    const char *key = admin_open();
    daemon_start((const char *[]){CUDA, "--admin-key-file", key, NULL});
    json_decref(generate(STORY "2}"));
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    expect_no_processor_used(true);
    struct reply h = get("/health/ready");
    cr_assert_str_eq(h.body, "{\"status\":\"suspended\"}\n");
    reply_free(&h);
    daemon_stop();
    admin_close();
}

/* ---- a device that is not there, or not enough ---- */

static void spawn_with(const char *fault, const char *const *flags)
{
    setenv("SIMT_FAULT", fault, 1);
    daemon_spawn(flags);
}

/* 9, and not 6: the unit tries again. */
Test(cuda_load, kernels_that_the_driver_refuses_are_9)
{
    spawn_with("jit", (const char *[]){CUDA, NULL});
    expect_end(9, "cuModuleLoadDataEx");
}

Test(cuda_load, a_driver_that_does_not_start_is_9_and_one_without_a_device_is_6)
{
    spawn_with("init", (const char *[]){CUDA, NULL});
    expect_end(9, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized; start "
                  "nvidia-fabricmanager");
    spawn_with("init:1:100", (const char *[]){CUDA, NULL});
    expect_end(6, "cuInit: CUDA_ERROR_NO_DEVICE");
}

Test(cuda_load, a_device_that_is_not_there_is_6)
{
    daemon_spawn((const char *[]){CUDA, "--cuda-device", "1", NULL});
    expect_end(6, "the CUDA driver has 1 devices, counted from 0; there is no device 1");
}

/* With a device that does not serve, that is a warning; with none it is not. */
static void expect_cpu(const char *fault, const char *words, bool is_warned)
{
    setenv("SIMT_FAULT", fault, 1);
    daemon_start((const char *[]){"--backend", "auto", "--libcuda", LIBCUDA, NULL});
    expect_stat("device.backend", "cpu");
    char *why = stat_text("device.why"), *log = daemon_read_log();
    cr_assert_not_null(strstr(why, words), "%s", why);
    cr_assert_not_null(strstr(log, words), "%s", log);
    cr_assert_eq(strstr(log, "warning: backend auto uses cpu: ") != NULL, is_warned, "%s", log);
    free(why);
    free(log);
    daemon_stop();
}

Test(cuda_load, with_auto_the_cpu_takes_over_and_the_log_says_why)
{
    expect_cpu("jit", "cuModuleLoadDataEx", true);
    expect_cpu("init", "CUDA_ERROR_SYSTEM_NOT_READY", true);
    expect_cpu("init:1:100", "CUDA_ERROR_NO_DEVICE", false);
}

Test(cuda_load, every_allocation_that_fails_is_7_and_says_what_it_was_for)
{
    static const struct {
        const char *fault, *words;
    } cases[] = {{"alloc:1", "for weights"},
                 {"alloc:2", "for tables"},
                 {"alloc:3", "for activations"},
                 {"alloc:4", "for the KV cache"},
                 {"host_alloc:1", "copying the weights"},
                 {"host_alloc:3", "for the control words"},
                 {"host_alloc:4", "for steps"},
                 {"host_alloc:5", "for results"},
                 {"host_alloc:6", "for exported logits"},
                 {"host_alloc:7", "for masks"},
                 {"host_alloc:8", "for page transfers"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spawn_with(cases[i].fault, (const char *[]){CUDA, NULL});
        expect_end(7, cases[i].words);
    }
}

Test(cuda_load, a_model_that_does_not_fit_is_7_with_both_numbers)
{
    setenv("SIMT_MEMORY_MB", "8", 1);
    daemon_spawn((const char *[]){CUDA, NULL});
    int code = daemon_end(0);
    char *log = daemon_read_log();
    cr_assert_eq(code, 7, "%s", log);
    cr_assert(strstr(log, "needs") && strstr(log, "MiB are free"), "%s", log);
    free(log);
}

/* ---- a device that fails while it works ---- */

static char *fault_dir, fault_now[64];

/* The device of the next daemon will fail like this, not before fault_happens(). */
static void fault_prepare(const char *fault)
{
    fault_dir = temporary_dir();
    snprintf(fault_now, sizeof fault_now, "%s/now", fault_dir);
    setenv("SIMT_FAULT", fault, 1);
    setenv("SIMT_FAULT_WHEN", fault_now, 1);
}

static void fault_happens(void)
{
    cr_assert_eq(symlink("/", fault_now), 0);
}

/* Two replies: that of the request that ran, and that of who asked behind it on its connection. Both leave in
 * one turn of the loop, before the process may end. */
static void expect_failed_and_not_ready(int fd)
{
    struct reply r = {0};
    while (reply_more(&r, fd)) /* until the process ends */
        ;
    cr_assert(r.raw && strncmp(r.raw, "HTTP/1.1 500 ", 13) == 0 && strstr(r.raw, "internal"), "%s", r.raw);
    const char *ready = strstr(r.raw + 9, "HTTP/1.1 ");
    cr_assert(ready && strncmp(ready, "HTTP/1.1 503 ", 13) == 0 && strstr(ready, "\"stalled\""), "%s", r.raw);
    reply_free(&r);
}

/* The fault comes while a request runs, which gets an error; readiness is 503 meanwhile, the process ends
 * with 9. */
static void expect_fault(const char *fault, const char *const *flags, const char *words)
{
    fault_prepare(fault);
    daemon_start(flags);
    int fd = client_connect(daemon_.port);
    double before = stat_number("decoder.tokens");
    client_request(fd, "POST", "/generate", "", STORY "240}");
    client_request(fd, "GET", "/health/ready", "", NULL);
    while (stat_number("decoder.tokens") == before)
        usleep(1000);
    fault_happens();
    expect_failed_and_not_ready(fd);
    close(fd);
    expect_end(9, words);
    temporary_dir_remove(fault_dir);
}

Test(cuda_fault, a_grid_that_dies_in_a_step_ends_the_process_with_the_drivers_words)
{
    expect_fault("step", (const char *[]){CUDA, NULL}, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

/* The first to see it, engine or event loop, says how long the heartbeat has stood. */
Test(cuda_fault, a_grid_that_stands_still_is_given_up_when_its_heartbeat_is_older_than_watchdog_ms)
{
    static const char words[] = "is not responding: no heartbeat for ";
    expect_fault("stuck", (const char *[]){CUDA, "--watchdog-ms", "3000", NULL}, words);
    char *log = daemon_read_log();
    long age = atol(strstr(log, words) + strlen(words));
    cr_assert_geq(age, 3000, "%ld ms\n%s", age, log);
    free(log);
}

/* Without words, since behind those there are no signals to be counted. */
Test(cuda_fault, a_block_that_hangs_is_named_in_the_log)
{
    expect_fault("lost", (const char *[]){CUDA, "--watchdog-ms", "3000", "--cuda-words", "no", NULL},
                 "block 1, still there");
    char *log = daemon_read_log();
    cr_assert_not_null(strstr(log, " of 3 blocks have signalled"), "%s", log);
    free(log);
}

Test(cuda_fault, a_device_that_is_lost_is_an_error_to_the_request)
{
    expect_fault("query", (const char *[]){CUDA, NULL}, "cuStreamQuery");
}

/* No client asks for a token, and still none is sent to a device that has gone. */
static void expect_fault_while_idle(const char *fault, const char *words)
{
    fault_prepare(fault);
    daemon_start((const char *[]){CUDA, NULL});
    wait_state("idle");
    fault_happens();
    expect_end(9, words);
    temporary_dir_remove(fault_dir);
}

Test(cuda_fault, a_device_that_is_lost_ends_an_idle_process_too)
{
    expect_fault_while_idle("query", "cuStreamQuery: CUDA_ERROR_UNKNOWN");
}

Test(cuda_fault, a_grid_that_dies_idle_ends_the_process_too)
{
    expect_fault_while_idle("step", "CUDA_ERROR_ILLEGAL_ADDRESS");
}

/* ---- its place in a service ---- */

/* A life of the service on its socket; ready. */
static void begin_life(struct process *p, int listen_fd, uint16_t port, const char *const *env)
{
    static const char *const args[] = {"serve", "--model", DEMO_MODEL, CUDA, NULL};
    char reply[4096];
    process_start(p, &(struct process_start){.args = args, .env = env, .listen_fd = listen_fd});
    while (process_http(port, "/health/ready", NULL, reply, sizeof reply) != 200)
        usleep(5000);
}

/* As far as the first token of a stream, then the device fails under it. */
static void fail_in_a_stream(struct process *p, uint16_t port)
{
    static char text[1 << 16];
    int fd = process_request(port, "/generate", STORY "240,\"stream\":true}");
    cr_assert(process_read_until(fd, "data: ", text, sizeof text), "%s", text);
    fault_happens();
    cr_assert(process_read_until(fd, "CUDA_ERROR_ILLEGAL_ADDRESS", text, sizeof text), "%s", text);
    close(fd);
    cr_assert_eq(process_wait(p), 9, "%s", p->stderr_text);
    process_free(p);
}

Test(cuda_fault, the_socket_outlives_the_process_and_the_next_one_serves_who_came_meanwhile)
{
    struct process p;
    static char reply[1 << 16];
    char when[96];
    uint16_t port;
    int fd = listen_loopback(&port);
    fault_prepare("step");
    snprintf(when, sizeof when, "SIMT_FAULT_WHEN=%s", fault_now);
    begin_life(&p, fd, port, (const char *[]){"SIMT_FAULT=step", when, NULL});
    fail_in_a_stream(&p, port);
    int waiting = process_request(port, "/health/live", NULL);
    begin_life(&p, fd, port, NULL);
    cr_assert(process_read_until(waiting, "\r\n", reply, sizeof reply), "%s", reply);
    expect_in(reply, "HTTP/1.1 200");
    cr_assert_eq(process_http(port, "/generate", STORY "6}", reply, sizeof reply), 200, "%s", reply);
    json_t *root = json_loads(strchr(reply, '{'), JSON_DISABLE_EOF_CHECK, NULL);
    expect_story(json_text(root, "text"));
    json_decref(root);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    process_free(&p);
    close(waiting);
    close(fd);
    temporary_dir_remove(fault_dir);
}

/* ---- hearthd bench ---- */

#define BENCH_ON_CUDA                                                                                        \
    "bench", "--config", "/dev/null", "--model", HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf",            \
        "--backend", "cuda", "--libcuda", LIBCUDA, "--n-ctx", "64"
#define BENCH_ONE BENCH_ON_CUDA, "-p", "3", "-n", "3", "-r", "1"
#define BENCH     BENCH_ONE, "--executors"

Test(cuda_bench, the_three_executors_stand_side_by_side_with_what_they_launch)
{
    static const struct {
        const char *executor;
        double least, most; /* launches per token of text */
    } want[] = {{"persistent", 0, 0}, {"graph", 1, 1}, {"eager", 20, 200}};
    struct process p;
    cr_assert_eq(PROCESS_RUN(&p, BENCH, "--json"), 0, "%s", p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL), *rows = json_object_get(report, "rows");
    cr_assert_eq(json_array_size(rows), 6, "%s", p.stdout_text);
    cr_assert(json_is_true(json_object_get(report, "emulated")));
    for (size_t i = 0; i < 6; i++) {
        json_t *row = json_array_get(rows, i);
        double launches = json_real_value(json_object_get(row, "launches_per_token"));
        cr_assert_str_eq(json_string_value(json_object_get(row, "test")), i % 2 ? "tg3" : "pp3");
        cr_assert_str_eq(json_string_value(json_object_get(row, "executor")), want[i / 2].executor);
        cr_assert(json_is_null(json_object_get(row, "tokens_per_s")), "the emulator's speed is shown as one");
        if (i % 2)
            cr_assert(launches >= want[i / 2].least && launches <= want[i / 2].most, "%s: %g",
                      want[i / 2].executor, launches);
    }
    for (size_t i = 0; i < 6; i++) { /* those of the row alone: what loaded the model launched the decoder */
        json_int_t n = json_integer_value(json_object_get(json_array_get(rows, i), "launches"));
        cr_assert(i < 2 ? n == 0 : n > 0, "row %zu has %lld launches", i, (long long)n);
    }
    json_t *text =
        json_array_get(rows, 3); /* by the graph: one launch for each token of its one repetition */
    cr_assert_eq(json_integer_value(json_object_get(text, "launches")), 4, "%s", p.stdout_text);
    json_decref(report);
    process_free(&p);
}

Test(cuda_bench, a_table_of_the_emulator_says_that_it_shows_no_speeds)
{
    struct process p;
    cr_assert_eq(PROCESS_RUN(&p, BENCH), 0, "%s", p.stderr_text);
    expect_in(p.stdout_text, "SIMT emulator, not a GPU: no speeds");
    cr_assert_null(strstr(p.stdout_text, "±"), "%s", p.stdout_text);
    process_free(&p);
}

/* Of no use as times, but each token has all of them in their order, or the command fails. */
Test(cuda_bench, hops_of_the_emulator_are_followed_and_not_timed)
{
    struct process p;
    cr_assert_eq(PROCESS_RUN(&p, BENCH_ON_CUDA, "--hops", "-n", "6", "-r", "1", "--json"), 0, "%s",
                 p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL), *hops = json_object_get(report, "hops");
    cr_assert(json_is_true(json_object_get(report, "emulated")), "%s", p.stdout_text);
    cr_assert_str_eq(json_string_value(json_object_get(report, "kernel_by")), "traced steps");
    cr_assert_eq(json_integer_value(json_object_get(report, "tokens")) +
                     json_integer_value(json_object_get(report, "held")),
                 6);
    cr_assert(json_is_null(json_object_get(report, "empty_step_us")));
    cr_assert_eq(json_array_size(hops), 9);
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(hops, 3), "part")), "PCIe");
    for (size_t i = 0; i < 9; i++)
        cr_assert(json_is_null(json_object_get(json_object_get(json_array_get(hops, i), "us"), "median")));
    cr_assert(json_is_null(json_object_get(json_object_get(report, "sums"), "client_ms")));
    json_decref(report);
    process_free(&p);
}

Test(cuda_bench, ops_of_the_emulator_are_counted_and_not_timed)
{
    struct process p;
    cr_assert_eq(PROCESS_RUN(&p, BENCH_ONE, "--ops"), 0, "%s", p.stderr_text);
    expect_in(p.stdout_text, "tg3, executor eager, a step of 1.0 rows");
    expect_in(p.stdout_text, "\nMUL_MAT ffn_down ");
    cr_assert_null(strstr(p.stdout_text, "share"), "%s", p.stdout_text);
    process_free(&p);
}
