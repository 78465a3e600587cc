/* The commands beside serve, from outside: run, bench, stats, and what each says of itself. */
#include "integration/process.h"
#include "integration/slow.h"
#include "support/listen.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static struct process p;

static void end(void)
{
    if (p.pid > 0)
        process_free(&p);
}

TestSuite(commands, .fini = end, .timeout = 1200);

/* ---- run and bench ---- */

Test(commands, run_prints_text_on_stdout_and_timings_on_stderr)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--threads", "2", "--temperature", "0",
                             "--max-tokens", "16", "Once upon a time"),
                 0, "%s", p.stderr_text);
    cr_assert_gt(p.n_stdout, 8);
    expect_in(p.stderr_text, "tokens/s");
    expect_in(p.stderr_text, "seed ");
}

Test(commands, run_reads_its_prompt_from_stdin)
{
    struct process other;
    PROCESS_START(&other, "run", "--model", PROCESS_MODEL, "--temperature", "0", "-n", "8");
    process_feed(&other, "Once upon a time");
    cr_assert_eq(process_wait(&other), 0, "%s", other.stderr_text);
    cr_assert_eq(
        PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--temperature", "0", "-n", "8", "Once upon a time"),
        0);
    cr_assert_str_eq(p.stdout_text, other.stdout_text);
    process_free(&other);
}

/* hearthd run of random weights, which write every byte there is, on a terminal; what has reached it. */
static ssize_t run_on_a_terminal(char *out, size_t room)
{
    struct termios raw;
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave = -1;
    size_t n = 0;
    if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0)
        slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    cr_assert_geq(slave, 0);
    cr_assert_eq(tcgetattr(slave, &raw), 0);
    cfmakeraw(&raw);
    cr_assert_eq(tcsetattr(slave, TCSANOW, &raw), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(slave, STDOUT_FILENO);
        execl(HEARTHD_BINARY, "hearthd", "run", "--model", HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf",
              "--seed", "3", "--temperature", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0",
              "--ignore-eos", "--max-tokens", "400", "hi", NULL);
        _exit(127);
    }
    close(slave);
    for (ssize_t got; (got = read(master, out + n, room - n)) > 0;) /* at its end a terminal is an error */
        n += (size_t)got;
    close(master);
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    return (ssize_t)n;
}

Test(commands, run_writes_no_command_to_a_terminal)
{
    static char text[65536];
    ssize_t n = run_on_a_terminal(text, sizeof text - 1);
    cr_assert_gt(n, 400);
    for (ssize_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        cr_assert(c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f), "byte %02x at %zd", c, i);
        cr_assert(c != 0xc2 || (unsigned char)text[i + 1] >= 0xa0, "C1 at %zd", i);
    }
    expect_in(text, "\\x04");
}

Test(commands, run_counts_one_token_as_one)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "-n", "1", "Once"), 0);
    expect_in(p.stderr_text, "prompt        1 token  ");
}

Test(commands, run_with_a_seed_repeats_itself)
{
    struct process other;
    cr_assert_eq(PROCESS_RUN(&other, "run", "--model", PROCESS_MODEL, "--seed", "7", "-n", "24", "Lily"), 0);
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--seed", "7", "-n", "24", "Lily"), 0);
    cr_assert_str_eq(p.stdout_text, other.stdout_text);
    process_free(&other);
}

Test(commands, run_refuses_a_second_prompt)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "Once", "upon"), 2);
    expect_in(p.stderr_text, "quote it");
}

static void expect_same_text(const struct process *a, const struct process *b)
{
    cr_assert_str_eq(a->stdout_text, b->stdout_text, "%s%s", a->stderr_text, b->stderr_text);
    cr_assert_gt(a->n_stdout, 1);
}

Test(commands, run_reads_stdin_for_a_dash_and_takes_what_follows_two_as_it_is)
{
    static const char *const prompts[] = {"-dash", "--help", "-", "--"};
    struct process other;
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        PROCESS_START(&other, "run", "--model", PROCESS_MODEL, "--temperature", "0", "-", "-n", "8");
        process_feed(&other, prompts[i]);
        cr_assert_eq(process_wait(&other), 0, "%s", other.stderr_text);
        cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--temperature", "0", "-n", "8", "--",
                                 prompts[i]),
                     0, "%s", p.stderr_text);
        expect_same_text(&p, &other);
        process_free(&other);
        process_free(&p);
    }
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--", "Once", "-n"), 2);
    expect_in(p.stderr_text, "quote it (the second one is \"-n\")");
}

Test(commands, run_stops_at_ctrl_c_with_0)
{
    PROCESS_START(&p, "run", "--model", PROCESS_MODEL, SLOW, "--ignore-eos", "-n", "1000",
                  "Once upon a time");
    while (p.n_stdout == 0) { /* the first text has come: it is generating */
        char byte;
        cr_assert_eq(read(p.out, &byte, 1), 1);
        p.stdout_text[p.n_stdout++] = byte;
    }
    process_signal(&p, SIGINT);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    expect_in(p.stderr_text, "end cancelled");
}

/* Waits until the process handles SIGINT. */
static void wait_handles_sigint(void)
{
    char path[64], line[256];
    unsigned long long caught = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)p.pid);
    while (!(caught & 1u << (SIGINT - 1))) {
        FILE *f = fopen(path, "r");
        cr_assert(f);
        while (fgets(line, sizeof line, f))
            sscanf(line, "SigCgt: %llx", &caught);
        fclose(f);
    }
}

Test(commands, run_cancelled_before_its_first_token_has_no_timings)
{
    static char prompt[4000];
    for (int i = 0; i < 160; i++)
        strcat(prompt, "One day a cat sat. ");
    PROCESS_START(&p, "run", "--model", PROCESS_MODEL, SLOW, prompt);
    wait_handles_sigint();
    process_signal(&p, SIGINT);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    expect_in(p.stderr_text, "of them computed, no text\nend cancelled");
    cr_assert_null(strstr(p.stderr_text, "tokens/s"));
}

Test(commands, commands_that_read_the_configuration_print_it)
{
    static const char *const commands[] = {"serve", "run", "bench", "stats"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        struct process one = {0};
        cr_assert_eq(PROCESS_RUN(&one, commands[i], "--print-config", "--slots", "5"), 0, "%s", commands[i]);
        expect_in(one.stdout_text, "slots = 5");
        process_free(&one);
    }
}

static void expect_rows(const json_t *report)
{
    static const char *const names[] = {"pp64", "tg32", "tg32@d16", "tg32@b2", "tg32@d16@b2"};
    const json_t *rows = json_object_get(report, "rows");
    cr_assert_eq(json_array_size(rows), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *row = json_array_get(rows, i);
        cr_assert_str_eq(json_string_value(json_object_get(row, "test")), names[i]);
        cr_assert_gt(json_real_value(json_object_get(row, "tokens_per_s")), 0);
        cr_assert_gt(json_real_value(json_object_get(row, "fraction")), 0);
        cr_assert_gt(json_real_value(json_object_get(row, "read_GBps")), 0); /* measured around it */
        cr_assert_gt(json_real_value(json_object_get(row, "attention_ops_per_token")), 0);
    }
    cr_assert_gt(json_real_value(json_object_get(json_object_get(report, "roofline"), "read_GBps")), 0);
}

static double sum_of(const json_t *ops, const char *what)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(ops); i++)
        sum += json_number_value(json_object_get(json_array_get(ops, i), what));
    return sum;
}

static void expect_near(double value, double expected)
{
    cr_expect(fabs(value - expected) <= 1e-5 * expected, "%g, not %g", value, expected);
}

/* The bytes of all matrices in the file's list, and of a row of the embedding, whose matrix is the head too.
 */
static double matrix_bytes(void)
{
    struct process inspect;
    cr_assert_eq(PROCESS_RUN(&inspect, "inspect", "--json", PROCESS_MODEL), 0, "%s", inspect.stderr_text);
    json_t *file = json_loads(inspect.stdout_text, 0, NULL), *tensors = json_object_get(file, "tensors");
    double bytes = 0;
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i);
        double size = json_number_value(json_object_get(tensor, "bytes"));
        if (json_array_size(json_object_get(tensor, "shape")) == 2)
            bytes += size;
        if (strcmp(json_string_value(json_object_get(tensor, "name")), "token_embd.weight") == 0)
            bytes += size / 4096;
    }
    json_decref(file);
    process_free(&inspect);
    return bytes;
}

static void expect_costs(const json_t *report)
{
    const double layer = 256 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 768, head = 256 * 4096;
    const json_t *rows = json_object_get(report, "rows"), *prompt = json_array_get(rows, 0),
                 *deep = json_array_get(rows, 2), *two = json_array_get(rows, 4);
    expect_near(json_number_value(json_object_get(prompt, "int8_ops_per_token")), 2 * 6 * layer);
    expect_near(json_number_value(json_object_get(deep, "int8_ops_per_token")), 2 * (6 * layer + head));
    double past = 16 + 32 / 2, kv = past * 6 * 2 * 128 * 2, bytes = matrix_bytes();
    expect_near(json_number_value(json_object_get(deep, "attention_ops_per_token")), 4 * 6 * 256 * past);
    expect_near(json_number_value(json_object_get(deep, "bytes_per_token")), bytes + kv);
    /* Weights are read once for both; a token's own are what bytes ends with, and its keys and values. */
    double row = json_number_value(json_object_get(two, "bytes_per_token"));
    cr_expect(row > bytes / 2 + kv && row < bytes / 2 + kv + 256, "%g", row);
}

Test(commands, bench_takes_one_number_of_repetitions)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "-r", "3,9"), 2);
    expect_in(p.stderr_text, "-r takes one number, 1 to 101 (got \"3,9\")");
}

Test(commands, bench_refuses_lists_with_holes)
{
    static const char *const lists[] = {"5,", ",5", "5,,6", "5 6", "-1", "x", "1,2,3,4,5,6,7,8,9"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct process one;
        char got[96];
        cr_assert_eq(PROCESS_RUN(&one, "bench", "--model", PROCESS_MODEL, "-p", lists[i]), 2, "%s", lists[i]);
        snprintf(got, sizeof got,
                 "-p must be 0 to 1048576, or up to 8 such numbers separated by commas (got \"%s\")",
                 lists[i]);
        expect_in(one.stderr_text, got);
        process_free(&one);
    }
    cr_assert_eq(PROCESS_RUN(&p, "bench", "-r", ""), 2);
    expect_in(p.stderr_text, "-r needs a value");
}

Test(commands, bench_ops_lists_the_ops_of_the_fused_program)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "-p", "0", "-n", "8", "-r", "1", "--ops"),
                 0, "%s", p.stderr_text);
    expect_in(p.stdout_text, "tg8, executor persistent, a step of 1.0 rows");
    expect_in(p.stdout_text, "\nMATMUL attn_q+attn_k+attn_v");
    expect_in(p.stdout_text, "\nMATMUL ffn_gate+ffn_up");
    expect_in(p.stdout_text, "us   share"); /* which an emulated device does not get: tests/cuda */
    expect_in(p.stdout_text, "GB/s read");
}

Test(commands, bench_ops_lists_the_graph_node_by_node_with_executor_eager)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "-p", "0", "-n", "8", "-r", "1", "--ops",
                             "--executor", "eager"),
                 0, "%s", p.stderr_text);
    expect_in(p.stdout_text, "tg8, executor eager, a step of 1.0 rows");
    expect_in(p.stdout_text, "\nMUL_MAT ffn_down");
    expect_in(p.stdout_text, "\nSOFT_MAX");
}

/* The ops of a test add up to what its row says. */
static void expect_ops(const json_t *report, const char *executor, size_t n)
{
    const json_t *ops = json_object_get(report, "ops");
    cr_assert_eq(json_array_size(ops), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(json_object_get(report, "rows"), i),
                     *test = json_array_get(ops, i);
        const json_t *all = json_object_get(test, "ops");
        const char *name = json_string_value(json_object_get(test, "test"));
        cr_assert_str_eq(name, json_string_value(json_object_get(row, "test")));
        cr_assert_str_eq(json_string_value(json_object_get(test, "executor")), executor);
        if (strcmp(name, "tg32@d16@b2") == 0) { /* whose prompts are computed in between */
            cr_assert_eq(json_array_size(all), 0);
            continue;
        }
        double rows = json_number_value(json_object_get(test, "rows_per_step"));
        cr_assert(sum_of(all, "us") > 0 && rows >= 1);
        if (strcmp(name, "pp64") == 0)
            expect_near(sum_of(all, "int8_ops"),
                        rows * json_number_value(json_object_get(row, "int8_ops_per_token")));
        if (strcmp(name, "tg32") == 0) { /* one row a step, its logits among them */
            expect_near(rows, 1);
            expect_near(sum_of(all, "bytes"), json_number_value(json_object_get(row, "bytes_per_token")));
            expect_near(sum_of(all, "int8_ops"),
                        json_number_value(json_object_get(row, "int8_ops_per_token")));
            expect_near(sum_of(all, "float_ops"),
                        json_number_value(json_object_get(row, "attention_ops_per_token")));
        }
    }
}

/* The demo model has 6 layers of 256 values, 4 heads and 2 of keys and values with 64 each, 768 in the FFN,
 * 4,096 tokens; bf16 keys and values. */
Test(commands, bench_json_is_one_object_whose_rows_and_ops_follow_from_the_models_shape)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--threads", "2", "--kv-type", "bf16",
                             "-p", "64", "-n", "32", "-d", "16", "-b", "2", "-r", "1", "--ops", "--json"),
                 0, "%s", p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL);
    cr_assert(report, "%s", p.stdout_text);
    expect_rows(report);
    expect_costs(report);
    expect_ops(report, "persistent", 5);
    const json_t *unsettled = json_object_get(json_object_get(report, "tuning"), "unsettled");
    cr_assert(json_is_integer(unsettled) && json_integer_value(unsettled) == 0); /* weights below 64 MiB */
    json_decref(report);
}

Test(commands, the_nodes_of_executor_eager_add_up_to_the_same)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--executor", "eager", "-p", "64", "-n",
                             "32", "-r", "1", "--ops", "--json"),
                 0, "%s", p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL);
    cr_assert(report, "%s", p.stdout_text);
    expect_ops(report, "eager", 2);
    json_decref(report);
}

static double field(const json_t *event, const char *name)
{
    return json_number_value(json_object_get(event, name));
}

static bool has_text(const json_t *event, const char *field, const char *text)
{
    const char *value = json_string_value(json_object_get(event, field));
    return value && strcmp(value, text) == 0;
}

/* The ops of a thread in one test: all of the program, one after the other. Returns their number. */
static uint32_t follow_thread(const json_t *events, int test, int thread)
{
    double before = 0;
    uint32_t n = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (!has_text(e, "ph", "X") || (int)field(e, "pid") != test || (int)field(e, "tid") != thread)
            continue;
        if (has_text(e, "cat", "work")) {
            cr_assert(field(e, "ts") >= before - 0.002, "op %u begins at %g, before %g", n, field(e, "ts"),
                      before);
            cr_assert_eq((uint32_t)field(json_object_get(e, "args"), "op"), n++);
            before = field(e, "ts") + field(e, "dur");
        } else
            cr_assert(has_text(e, "cat", "wait") && field(e, "ts") + field(e, "dur") <= before + 0.002);
    }
    return n;
}

/* Its figures count every op once: five a layer, and embedding, head and sampling. */
static void expect_trace_of(const json_t *report, size_t i, const char *test)
{
    const json_t *trace = json_array_get(json_object_get(report, "traces"), i);
    cr_assert(trace && has_text(trace, "test", test) && field(trace, "members") == 2);
    cr_assert_eq(sum_of(json_object_get(trace, "ops"), "n"), 6 * 5 + 3);
    cr_assert_gt(sum_of(json_object_get(trace, "ops"), "work_us"), 0);
}

Test(commands, bench_trace_writes_the_steps_as_their_threads_saw_them)
{
    char path[] = "/tmp/hearth-trace-XXXXXX";
    close(mkstemp(path));
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--threads", "2", "-p", "16", "-n", "4",
                             "-r", "1", "--json", "--trace", path),
                 0, "%s", p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL), *events = json_load_file(path, 0, NULL);
    unlink(path);
    cr_assert(report && json_is_array(events), "%s", p.stdout_text);
    expect_trace_of(report, 0, "pp16");
    expect_trace_of(report, 1, "tg4");
    for (int test = 1; test <= 2; test++)
        for (int thread = 0; thread < 2; thread++)
            cr_assert_eq(follow_thread(events, test, thread), 6 * 5 + 3);
    json_decref(report);
    json_decref(events);
}

Test(commands, bench_trace_is_refused_before_anything_is_measured)
{
    struct process one;
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--trace", "/nonexistent/trace.json"), 2);
    expect_in(p.stderr_text, "--trace: /nonexistent/trace.json: No such file");
    cr_assert_eq(
        PROCESS_RUN(&one, "bench", "--model", PROCESS_MODEL, "--executor", "eager", "--trace", "/dev/null"),
        2);
    expect_in(one.stderr_text, "only executor persistent can be traced");
    process_free(&one);
}

Test(commands, bench_tells_what_was_measured_before_its_trace_failed)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--threads", "2", "-p", "16", "-n", "4",
                             "-r", "1", "--json", "--trace", "/dev/full"),
                 9, "%s", p.stderr_text);
    expect_in(p.stderr_text, "/dev/full cannot be written");
    json_t *report = json_loads(p.stdout_text, 0, NULL);
    cr_assert_eq(json_array_size(json_object_get(report, "rows")), 2, "%s", p.stdout_text);
    json_decref(report);
}

Test(commands, bench_refuses_to_measure_nothing)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "-p", "0", "-n", "0"), 2);
    expect_in(p.stderr_text, "nothing to measure");
}

Test(commands, bench_refuses_what_does_not_fit_the_context)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "-p", "0", "-n", "5000"), 2);
    expect_in(p.stderr_text, "tg5000 needs");
}

/* ---- stats ---- */

Test(commands, stats_shows_a_running_daemon_as_a_table)
{
    struct process other;
    char url[64];
    uint16_t port = process_serve(&p, &(struct process_start){0});
    snprintf(url, sizeof url, "http://127.0.0.1:%u", port);
    cr_assert_eq(PROCESS_RUN(&other, "stats", url), 0, "%s", other.stderr_text);
    expect_in(other.stdout_text, "hearthd 0.");
    expect_in(other.stdout_text, " · ready · ");
    expect_in(other.stdout_text, "0 running · 0 of 256 waiting");
    process_free(&other);
}

Test(commands, stats_of_a_daemon_that_is_not_there_says_where_it_asked)
{
    cr_assert_eq(PROCESS_RUN(&p, "stats", "http://127.0.0.1:1"), 1);
    expect_in(p.stderr_text, "http://127.0.0.1:1: Connection refused; does a daemon listen on port 1 there?");
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "ps", "unix:/nowhere"), 1);
    expect_in(p.stderr_text, "unix:/nowhere: No such file or directory; does a daemon listen there?");
}

Test(commands, what_is_no_url_is_2_and_nobody_is_asked)
{
    static const char *const urls[] = {"ftp://localhost", "http://127.0.0.1:99999", "127.0.0.1:http",
                                       "localhost:0"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        struct process other;
        cr_assert_eq(PROCESS_RUN(&other, "stats", urls[i]), 2, "%s", urls[i]);
        expect_in(other.stderr_text, "is not a URL: expected http://host:port or unix:/path");
        process_free(&other);
    }
}

Test(commands, a_port_that_is_any_is_no_place_to_ask)
{
    static const char *const commands[] = {"stats", "ps"};
    for (size_t i = 0; i < 2; i++) {
        struct process other;
        cr_assert_eq(PROCESS_RUN(&other, commands[i], "--port", "any"), 2);
        expect_in(other.stderr_text, "port is any: give the port in use (--port), or the daemon's URL");
        process_free(&other);
    }
}

/* The request that `hearthd ps` sends to an address of this machine, which does not answer. */
static const char *asked(uint32_t address, const char *host, const char *key_file)
{
    static char text[4096], command[256];
    size_t n = 0;
    uint16_t port;
    int fd = listen_at(address, &port);
    text[0] = '\0';
    snprintf(command, sizeof command, "HEARTH_API_KEYS_FILE=%s " HEARTHD_BINARY " ps http://%s:%u 2>&1",
             key_file, host, port);
    FILE *f = popen(command, "r");
    cr_assert(f);
    int peer = accept(fd, NULL, NULL);
    for (ssize_t got = 1; got > 0 && !strstr(text, "\r\n\r\n"); n += (size_t)got) {
        got = read(peer, text + n, sizeof text - 1 - n);
        text[n + (size_t)(got > 0 ? got : 0)] = '\0';
    }
    close(peer);
    close(fd);
    pclose(f);
    return text;
}

/* Every address of 127/8 is this machine; the program knows that of the first one only. */
Test(commands, keys_of_files_are_for_this_machine_alone)
{
    char key_file[] = "/tmp/hearth-keys-XXXXXX";
    int fd = mkstemp(key_file);
    cr_assert_eq(write(fd, "alpha-key\n", 10), 10);
    close(fd);
    expect_in(asked(INADDR_LOOPBACK, "127.0.0.1", key_file), "Bearer alpha-key");
    expect_in(asked(INADDR_LOOPBACK, "localhost", key_file), "Bearer alpha-key");
    /* Names that begin as one of this machine does are others'. */
    cr_assert_eq(PROCESS_RUN(&p, "ps", "http://127.0.0.1:80@127.0.0.2"), 2, "%s", p.stderr_text);
    const char *elsewhere = asked(INADDR_LOOPBACK + 1, "127.0.0.2", key_file);
    expect_in(elsewhere, "GET /requests");
    cr_assert_null(strstr(elsewhere, "alpha-key"), "%s", elsewhere);
    unlink(key_file);
}

/* Calls visit with each command that `hearthd --help` lists; how many there are. */
static unsigned each_command(void (*visit)(const char *name, void *context), void *context)
{
    char name[32];
    unsigned n = 0;
    cr_assert_eq(PROCESS_RUN(&p, "--help"), 0);
    for (const char *line = p.stdout_text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "  ", 2) || sscanf(line + 2, "%31[a-z-] ", name) != 1)
            continue;
        if (!strcmp(name, "hearthd") || !strcmp(name, "curl")) /* the examples */
            continue;
        visit(name, context);
        n++;
    }
    return n;
}

static void answers_help(const char *name, void *context)
{
    (void)context;
    struct process other;
    cr_assert_eq(PROCESS_RUN(&other, name, "--help"), 0, "%s: %s", name, other.stderr_text);
    cr_assert_eq(strncmp(other.stdout_text, "hearthd ", 8), 0, "%s", other.stdout_text);
    process_free(&other);
}

Test(commands, every_command_answers_help_with_0)
{
    cr_assert_eq(each_command(answers_help, NULL), 12);
}

/* The man page's text without roff's backslashes; to free. */
static char *read_man_page(void)
{
    FILE *f = fopen(HEARTH_SOURCE_DIR "/config/man/hearthd.8", "re");
    cr_assert_not_null(f);
    char *text = calloc(1, 65536), *to = text;
    cr_assert_gt(fread(text, 1, 65535, f), 0);
    fclose(f);
    for (const char *from = text; *from; from++)
        if (*from != '\\')
            *to++ = *from;
    *to = '\0';
    return text;
}

/* With a paragraph of its own among the commands. */
static void is_in_man_page(const char *name, void *page)
{
    char head[64];
    snprintf(head, sizeof head, "\n.TP\n.B %s\n", name);
    const char *commands = strstr(page, "\n.SH COMMANDS\n"), *at = strstr(commands, head);
    cr_assert(at && at < strstr(page, "\n.SH SIGNALS\n"), "hearthd(8) has no command %s", name);
}

Test(commands, the_man_page_has_every_command_and_flag_of_help)
{
    char *page = read_man_page(), *words = NULL;
    each_command(is_in_man_page, page);
    cr_assert(words = strdup(p.stdout_text));
    unsigned n = 0;
    for (char *at = words; (at = strstr(at, "--")); n++) {
        size_t len = 2 + strspn(at + 2, "abcdefghijklmnopqrstuvwxyz-");
        char *flag = strndup(at, len);
        cr_assert(strstr(page, flag), "hearthd(8) does not name %s", flag);
        free(flag);
        at += len;
    }
    cr_assert_geq(n, 4, "%s", words);
    free(words);
    free(page);
}

Test(commands, tokenize_says_that_the_model_is_missing)
{
    cr_assert_eq(PROCESS_RUN(&p, "tokenize"), 2);
    expect_in(p.stderr_text, "error: --model is missing\nusage: hearthd tokenize --model FILE");
}

Test(commands, help_of_tokenize_names_all_its_flags)
{
    struct process other;
    cr_assert_eq(PROCESS_RUN(&other, "tokenize", "--help"), 0);
    expect_in(other.stdout_text, "--no-special   ");
    expect_in(other.stdout_text, "--ids          ");
    process_free(&other);
}

/* --- parse --- */

#define PARSE(q, text, code, ...)                                                                            \
    do {                                                                                                     \
        PROCESS_START(q, "parse", __VA_ARGS__);                                                              \
        process_feed(q, text);                                                                               \
        cr_assert_eq(process_wait(q), code, "%s", (q)->stderr_text);                                         \
    } while (0)

Test(commands, parse_shows_what_a_client_gets_of_a_text)
{
    PARSE(&p,
          "<think>\nHm.\n</think>\n\nYes.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
          "[1]}}\n</tool_call>",
          0, "--format", "hermes", "--by", "1");
    cr_assert_str_eq(
        p.stdout_text,
        "{\"content\":\"Yes.\",\"reasoning\":\"Hm.\",\"tool_calls\":[{\"id\":null,\"name\":\"f\","
        "\"arguments\":\"{\\\"a\\\": [1]}\"}],\"finish_reason\":\"tool_calls\"}\n");
}

Test(commands, parse_prints_each_delta_and_takes_what_the_prompt_opened)
{
    PARSE(&p, "ab</think>c", 0, "--format", "hermes", "--generation-prompt", "<think>", "--cut", "1",
          "--length", "--deltas");
    cr_assert_str_eq(p.stdout_text,
                     "{\"reasoning\":\"a\"}\n{\"reasoning\":\"b\"}\n{\"content\":\"c\"}\n{\"content\":\"c\","
                     "\"reasoning\":\"ab\",\"tool_calls\":[],\"finish_reason\":\"length\"}\n");
}

Test(commands, parse_names_the_formats_and_what_is_wrong)
{
    PARSE(&p, "", 2, "--format", "hermez");
    expect_in(p.stderr_text, "--format must be one of harmony, gemma4, ");
    expect_in(p.stderr_text, ", none (got \"hermez\")");
    struct process other;
    PARSE(&other, "", 2, "--format", "none", "--by", "0");
    expect_in(other.stderr_text, "--by must be a count of bytes, 1 or more (got \"0\")");
    process_free(&other);
    PARSE(&other, "", 2, "--length");
    expect_in(other.stderr_text, "--format or --model is missing");
    process_free(&other);
}

/* A schema may come from anywhere: what the answer quotes of it must not reach the terminal as it is. */
Test(commands, constrain_escapes_what_it_quotes)
{
    char path[] = "/tmp/hearth-schema-XXXXXX";
    const char schema[] =
        "{\"properties\": {\"a\\u001b[31m\": {\"propertyNames\": {\"pattern\": \"(?<=a)b\"}}}}";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, schema, sizeof schema - 1) == (ssize_t)sizeof schema - 1);
    close(fd);
    PROCESS_START(&p, "constrain", "--schema", path);
    process_feed(&p, "x");
    cr_assert_eq(process_wait(&p), 3, "%s", p.stderr_text);
    unlink(path);
    cr_assert(!strchr(p.stdout_text, '\033'), "an escape sequence reaches the terminal");
    expect_in(p.stdout_text, "#/properties/a\\x1b[31m/propertyNames");
}

Test(commands, constrain_judges_each_line)
{
    PROCESS_START(&p, "constrain", "--lines", "--regex", "a+b");
    process_feed(&p, "ab\naab\nb\n\naa");
    cr_assert_eq(process_wait(&p), 1, "%s", p.stderr_text);
    cr_assert_str_eq(p.stdout_text, "accepted\naccepted\nrefused at byte 0\n"
                                    "refused at byte 0: the text ends too early\n"
                                    "refused at byte 2: the text ends too early\n");
}

Test(commands, constrain_says_that_a_file_cannot_be_read)
{
    cr_assert_eq(PROCESS_RUN(&p, "constrain", "--schema", "/tmp"), 2, "%s", p.stderr_text);
    expect_in(p.stderr_text, "/tmp: Is a directory");
}
