/* The command line from outside: exit codes, words, signals. */
#include "base/team.h"
#include "integration/process.h"
#include "integration/slow.h"
#include "support/listen.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define STREAM_LONG                                                                                          \
    "{\"prompt\":\"Once upon a time\",\"stream\":true,\"ignore_eos\":true,\"seed\":1,\"max_tokens\":900}"

static struct process p;

static void end(void)
{
    if (p.pid > 0)
        process_free(&p);
}

TestSuite(cli, .fini = end, .timeout = 1200);

/* A file of the test's own, which stays in /tmp. */
static const char *file_with(const void *bytes, size_t n)
{
    static char path[64];
    strcpy(path, "/tmp/hearth-it-cli-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, bytes, n), (ssize_t)n);
    close(fd);
    return path;
}

/* ---- words ---- */

Test(cli, version_is_one_line)
{
    cr_assert_eq(PROCESS_RUN(&p, "--version"), 0);
    cr_assert_eq(strncmp(p.stdout_text, "hearthd 0.", 10), 0, "%s", p.stdout_text);
}

Test(cli, help_names_every_command)
{
    static const char *const commands[] = {"serve", "run", "bench", "inspect", "tokenize", "check-config"};
    cr_assert_eq(PROCESS_RUN(&p, "--help"), 0);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        expect_in(p.stdout_text, commands[i]);
}

Test(cli, help_of_serve_lists_the_flags_with_their_defaults)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--help"), 0);
    expect_in(p.stdout_text, "--queue-limit");
    expect_in(p.stdout_text, "default 256");
}

Test(cli, an_unknown_command_names_the_nearest_and_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "srve"), 2);
    expect_in(p.stderr_text, "did you mean serve?");
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "help", "stat"), 2);
    expect_in(p.stderr_text, "unknown command \"stat\"; did you mean stats?");
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "small.gguf"), 2);
    expect_in(p.stderr_text, "unknown command \"small.gguf\"; a model is named by --model");
}

Test(cli, an_unknown_flag_names_the_nearest_and_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--prot", "1"), 2);
    expect_in(p.stderr_text, "did you mean --port?");
}

Test(cli, print_config_says_where_values_come_from)
{
    static const char *const args[] = {"--print-config", "--slots=3", NULL};
    static const char *const env[] = {"HEARTH_PORT=1234", NULL};
    process_start(&p, &(struct process_start){.args = args, .env = env});
    cr_assert_eq(process_wait(&p), 0);
    expect_in(p.stdout_text, "# HEARTH_PORT\nport = 1234\n");
    expect_in(p.stdout_text, "# --slots\nslots = 3\n");
}

Test(cli, check_config_accepts_the_sample)
{
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--config", HEARTH_SOURCE_DIR "/config/hearthd.conf"), 0);
    expect_in(p.stdout_text, "hearthd.conf: ok");
}

Test(cli, check_config_names_the_line_and_is_2)
{
    const char *path = file_with("port = 1\nslot = 2\n", 18);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--config", path), 2);
    expect_in(p.stderr_text, ":2: unknown key \"slot\"; did you mean slots?");
    unlink(path);
}

Test(cli, check_config_reads_the_chat_template_it_names)
{
    const char *path = file_with("a\n{% include 'x' %}\n", 20);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--chat-template", path), 2);
    expect_in(p.stderr_text, "line 2: statement \"include\" is not supported");
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--chat-template", "/nonexistent"), 2);
    expect_in(p.stderr_text, "chat_template: /nonexistent: No such file");
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--chat-template", "chatml"), 0);
    unlink(path);
}

Test(cli, check_config_refuses_what_serve_does_with_the_same_words)
{
    char long_path[128] = "/tmp/";
    memset(long_path + 5, 'p', 103); /* one byte too many */
    const struct {
        const char *flag, *value, *said;
    } bad[] = {
        {"--api-keys-file", "/nonexistent", "api_keys_file /nonexistent: No such file"},
        {"--admin-key-file", "/nonexistent", "admin_key_file /nonexistent: No such file"},
        {"--trusted-proxies", "10.0.0.0/33", "trusted_proxies: 10.0.0.0/33 is neither an address"},
        {"--cors-origins", "example.org", "cors_origins: example.org is not an origin like"},
        {"--allowed-hosts", "http://example.org", "allowed_hosts: http://example.org is not a name like"},
        {"--tls-port", "8443", "tls_port needs tls_certificate and tls_key"},
        {"--host", "no host", "host no host: "},
        {"--host", "", "host is empty"},
        {"--unix-socket", long_path, "ppp: longer than 107 bytes"},
        {"--unix-socket", "/nonexistent/s", "unix_socket /nonexistent/s: No such file or directory"},
        {"--unix-socket", "/dev/null/s", "unix_socket /dev/null/s: Not a directory"},
        {"--unix-socket", "/dev/null", "unix_socket /dev/null: exists and is not a socket"},
        {"--tls-port", "9316", "tls_port must differ from port (both 9316)"},
        {"--executor", "graph", "executor graph replays CUDA graphs: backend cpu has none"},
        {"--cpu-tuning", "/tmp", "cpu_tuning: /tmp: Is a directory"},
        {"--arithmetic", "exact", "arithmetic exact needs backend cpu and executor eager"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *port = strcmp(bad[i].value, "9316") ? "any" : "9316";
        for (int serve = 0; serve < 2; serve++) {
            cr_assert_eq(PROCESS_RUN(&p, serve ? "serve" : "check-config", "--model", PROCESS_MODEL, "--port",
                                     port, "--backend", "cpu", bad[i].flag, bad[i].value),
                         2, "%s", bad[i].flag);
            expect_in(p.stderr_text, bad[i].said);
            process_free(&p);
        }
    }
    char path[64];
    snprintf(path, sizeof path, "/tmp/hearth-%d.sock", (int)getpid());
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--model", PROCESS_MODEL, "--port", "any", "--unix-socket", path,
                             "--tls-port", "any", "--tls-certificate", "/nonexistent", "--tls-key",
                             "/dev/null"),
                 2);
    cr_assert_eq(access(path, F_OK), -1, "what was bound before the error is taken back");
    process_free(&p);
    cr_assert_eq(
        PROCESS_RUN(&p, "check-config", "--host", "localhost", "--unix-socket", path, "--executor", "graph"),
        0, "the machine may have a GPU: %s", p.stderr_text);
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--tls-port", "8443", "--tls-certificate", "/dev/null",
                             "--tls-key", "/dev/null"),
                 2);
    expect_in(p.stderr_text, "/dev/null");
}

Test(cli, a_certificate_without_a_port_is_warned_about)
{
    static const char *const args[] = {"--tls-key", "/dev/null", NULL};
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--tls-certificate", "/dev/null", "--tls-key", "/dev/null"),
                 0);
    expect_in(p.stderr_text, "warning: tls_certificate has no effect: tls_port is not set");
    process_free(&p);
    process_serve(&p, &(struct process_start){.args = args});
    expect_in(p.stderr_text, "warning: tls_key has no effect: tls_port is not set");
}

Test(cli, check_config_misses_a_model_that_is_not_there_and_is_3)
{
    const char *path = file_with("model = /nonexistent/a.gguf\n", 28);
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--config", path), 3);
    expect_in(p.stderr_text, "model /nonexistent/a.gguf: directory /nonexistent does not exist");
    unlink(path);
}

Test(cli, an_unknown_variable_is_warned_about_and_not_fatal)
{
    static const char *const args[] = {"check-config", NULL};
    static const char *const env[] = {"HEARTH_QUEUE_LIMT=3", "HEARTH_SERVICE_ACCOUNT_NAME=x", NULL};
    process_start(&p, &(struct process_start){.args = args, .env = env});
    cr_assert_eq(process_wait(&p), 0);
    expect_in(p.stderr_text, "warning: unknown environment variable HEARTH_QUEUE_LIMT is ignored; did you "
                             "mean HEARTH_QUEUE_LIMIT?");
    expect_in(p.stderr_text,
              "warning: unknown environment variable HEARTH_SERVICE_ACCOUNT_NAME is ignored\n");
}

Test(cli, a_missing_config_file_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "--config", "/nonexistent/hearthd.conf"), 2);
    expect_in(p.stderr_text, "/nonexistent/hearthd.conf");
}

/* ---- what cannot be served ---- */

Test(cli, a_mistyped_model_names_the_nearest_file_and_is_3)
{
    cr_assert_eq(
        PROCESS_RUN(&p, "serve", "--port", "0", "--model", HEARTH_SOURCE_DIR "/models/hearth-story.gguf"), 3);
    expect_in(p.stderr_text, "the nearest name is " PROCESS_MODEL);
}

Test(cli, a_model_in_a_missing_directory_names_the_directory)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--model", "/nonexistent/dir/a.gguf"), 3);
    expect_in(p.stderr_text, "directory /nonexistent/dir does not exist");
}

Test(cli, a_directory_as_model_is_3)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--model", HEARTH_SOURCE_DIR "/models"), 3);
    expect_in(p.stderr_text, "is a directory");
}

Test(cli, more_threads_than_cores_are_warned_of)
{
    char threads[16];
    uint32_t cores = team_cores();
    snprintf(threads, sizeof threads, "%u", cores + 1);
    if (cores < TEAM_MAX) {
        cr_assert_eq(
            PROCESS_RUN(&p, "run", "--threads", threads, "--model", PROCESS_MODEL, "-n", "1", "Once"), 0);
        expect_in(p.stderr_text, "but this process may use");
        process_free(&p);
    }
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "-n", "1", "Once"), 0);
    cr_assert_null(strstr(p.stderr_text, "but this process may use"), "%s", p.stderr_text);
}

Test(cli, a_directory_as_cpu_tuning_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--cpu-tuning", "/tmp", "--model", PROCESS_MODEL, "-n", "1", "Once"),
                 2);
    expect_in(p.stderr_text, "cpu_tuning: /tmp: Is a directory");
}

Test(cli, a_cpu_tuning_file_that_is_not_used_is_logged_with_the_reason)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--cpu-tuning", "/nonexistent/tuning", "--model", PROCESS_MODEL, "-n",
                             "1", "Once"),
                 0);
    expect_in(p.stderr_text, "cpu_tuning: weights below 64 MiB are not measured");
}

Test(cli, a_file_that_is_no_gguf_is_4)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--model", HEARTH_SOURCE_DIR "/LICENSE"), 4);
    expect_in(p.stderr_text, "LICENSE");
}

Test(cli, an_architecture_nobody_knows_is_5)
{
    static char bytes[8 << 20];
    FILE *f = fopen(PROCESS_MODEL, "r");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    char *key = memmem(bytes, n, "general.architecture", 20);
    cr_assert(key);
    memcpy(key + 20 + 4 + 8, "zzz", 3); /* behind the value's type and length */
    const char *path = file_with(bytes, n);
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--model", path), 5);
    expect_in(p.stderr_text, "zzz");
    unlink(path);
}

Test(cli, cuda_without_a_driver_is_6_and_never_becomes_cpu)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--backend", "cuda", "--libcuda",
                             "/nonexistent/libcuda.so", "--model", PROCESS_MODEL),
                 6);
    expect_in(p.stderr_text, "no CUDA driver: /nonexistent/libcuda.so");
}

Test(cli, auto_without_a_driver_is_cpu)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--libcuda", "/nonexistent/libcuda.so", "--model", PROCESS_MODEL,
                             "-n", "1", "Once"),
                 0);
    expect_in(p.stderr_text, "cpu");
}

Test(cli, an_executor_the_backend_lacks_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--executor", "graph", "--backend", "cpu", "--model",
                             PROCESS_MODEL),
                 2);
    expect_in(p.stderr_text, "graph");
}

Test(cli, exact_arithmetic_without_eager_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--arithmetic", "exact", "--model", PROCESS_MODEL),
                 2);
    expect_in(p.stderr_text, "eager");
}

Test(cli, kv_memory_too_small_for_one_page_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--kv-memory", "1K", "Once"), 2);
    expect_in(p.stderr_text, "kv_memory: the KV cache may take 1024 bytes, one page of 64 tokens takes");
}

Test(cli, run_without_a_length_writes_what_fits_into_kv_memory)
{
    cr_assert_eq(
        PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--kv-memory", "192K", "--ignore-eos", "Once"), 0,
        "%s", p.stderr_text);
    process_free(&p);
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--kv-memory", "192K", "-n", "64", "Once"),
                 2);
    expect_in(p.stderr_text, "--max-tokens 64 exceed the context of 64");
}

Test(cli, a_context_that_kv_memory_cannot_hold_is_said)
{
    PROCESS_START(&p, "serve", "--port", "0", "--kv-memory", "1M", "--n-ctx", "1024", "--model",
                  PROCESS_MODEL);
    process_expect(&p, ", not 1024: kv_memory cannot hold more");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
}

Test(cli, run_refuses_a_prompt_over_the_context_with_both_lengths_and_2)
{
    static char prompt[9 * 900 + 1], words[64];
    for (int i = 0; i < 900; i++)
        memcpy(prompt + 9 * i, "zebra at ", 9);
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "--n-ctx", "64", prompt), 2);
    unsigned n = 0;
    const char *at = strstr(p.stderr_text, "the prompt has ");
    cr_assert(at && sscanf(at, "the prompt has %u tokens", &n) == 1, "%s", p.stderr_text);
    cr_assert_geq(n, 1800, "all of it is counted");
    snprintf(words, sizeof words, "the prompt has %u tokens, the context has 64", n);
    expect_in(p.stderr_text, words);
}

Test(cli, help_of_run_lists_the_short_flags)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--help"), 0);
    expect_in(p.stdout_text, "  -n ");
    expect_in(p.stdout_text, "  -h ");
}

Test(cli, limits_of_run_are_whole_numbers)
{
    cr_assert_eq(PROCESS_RUN(&p, "run", "--model", PROCESS_MODEL, "-n", "0", "Once"), 2);
    expect_in(p.stderr_text, "--max-tokens must be a whole number, 1 to 1048576 (got \"0\")");
}

/* The exit code of a shell's line in which H is the daemon and M the demo model. */
static int shell(const char *line)
{
    char command[1024];
    snprintf(command, sizeof command, "H=%s; M=%s; %s", HEARTHD_BINARY, PROCESS_MODEL, line);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(cli, output_that_cannot_be_written_is_told_and_is_1)
{
    static const char *const commands[] = {"$H run --model $M -n 4 Once",
                                           "$H inspect --json $M",
                                           "$H inspect $M",
                                           "echo hi | $H tokenize --model $M",
                                           "$H --help",
                                           "$H --print-config"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[256];
        snprintf(line, sizeof line, "(%s) 2>&1 >/dev/full | grep -q '^error: stdout: '", commands[i]);
        cr_assert_eq(shell(line), 0, "%s says nothing", commands[i]);
        snprintf(line, sizeof line, "(%s) >/dev/full 2>/dev/null", commands[i]);
        cr_assert_eq(shell(line), 1, "%s", commands[i]);
    }
}

Test(cli, a_port_in_use_is_8_and_says_whom_to_ask)
{
    char port[8], question[64];
    uint16_t taken;
    int fd = listen_loopback(&taken);
    snprintf(port, sizeof port, "%u", taken);
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", port, "--model", PROCESS_MODEL), 8);
    snprintf(question, sizeof question, "ss -ltnp 'sport = :%s'", port);
    expect_in(p.stderr_text, question);
    close(fd);
}

Test(cli, a_unix_socket_in_use_is_8_and_says_whom_to_ask)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char question[160];
    const char *path = file_with("", 0);
    unlink(path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--unix-socket", path, "--model", PROCESS_MODEL), 8);
    snprintf(question, sizeof question, "ss -lxp src %s", path);
    expect_in(p.stderr_text, question);
    unlink(path);
    close(fd);
}

/* To ask it whether it is in use would then wait for ever. */
Test(cli, a_unix_socket_whose_backlog_is_full_is_8_too)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = file_with("", 0);
    int clients[4];
    unlink(path);
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, 0), 0);
    for (int i = 0; i < 4; i++) {
        clients[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        int rc = connect(clients[i], (struct sockaddr *)&address, sizeof address);
        cr_assert(rc == 0 || errno == EAGAIN);
    }
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--unix-socket", path, "--model", PROCESS_MODEL), 8);
    expect_in(p.stderr_text, "another process listens on it");
    unlink(path);
    for (int i = 0; i < 4; i++)
        close(clients[i]);
    close(fd);
}

Test(cli, a_plain_file_in_place_of_the_unix_socket_is_kept_and_2)
{
    const char *path = file_with("mine", 4);
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--port", "0", "--unix-socket", path, "--model", PROCESS_MODEL), 2);
    expect_in(p.stderr_text, "exists and is not a socket");
    cr_assert_eq(unlink(path), 0, "it must still be there");
}

/* A strict umask, as services have it, must not lock everyone else out. */
Test(cli, a_unix_socket_is_open_to_whoever_may_enter_its_directory)
{
    struct stat st;
    const char *path = file_with("", 0);
    const char *const args[] = {"--unix-socket", path, NULL};
    unlink(path);
    umask(0077);
    process_serve(&p, &(struct process_start){.args = args});
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0666, "%o", st.st_mode);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    cr_assert_lt(stat(path, &st), 0, "it goes with the daemon");
}

Test(cli, an_address_that_is_not_ours_is_2)
{
    cr_assert_eq(PROCESS_RUN(&p, "serve", "--host", "192.0.2.1", "--port", "0", "--model", PROCESS_MODEL), 2);
    expect_in(p.stderr_text, "192.0.2.1");
}

/* ---- serving ---- */

Test(cli, the_start_line_says_where_what_and_how)
{
    static const char *const args[] = {"--slots", "4", "--n-ctx", "1024", NULL};
    char expected[128];
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    snprintf(expected, sizeof expected, "listening on http://127.0.0.1:%u · ", port);
    expect_in(p.stderr_text, expected);
    expect_in(p.stderr_text, " · cpu ");
    expect_in(p.stderr_text, ", 2 threads · 4 slots × 1,024\n");
    expect_in(p.stderr_text, "\nmemory: weights 4.");
    expect_in(p.stderr_text, " MiB for 4,096 tokens, activations ");
    snprintf(expected, sizeof expected,
             "\ncurl -d '{\"prompt\":\"Once upon a time\"}' http://127.0.0.1:%u/generate\n", port);
    expect_in(p.stderr_text, expected);
}

Test(cli, an_open_host_is_warned_about_at_start_and_in_stats)
{
    static const char *const args[] = {"--host", "0.0.0.0", NULL};
    static char reply[16384];
    unsigned port = 0;
    process_serve(&p, &(struct process_start){.args = args});
    expect_in(p.stderr_text, "warning: listening on 0.0.0.0 without API keys");
    cr_assert_eq(sscanf(strstr(p.stderr_text, "http://0.0.0.0:"), "http://0.0.0.0:%u", &port), 1);
    cr_assert_eq(process_http((uint16_t)port, "/stats", NULL, reply, sizeof reply), 200);
    expect_in(reply, "\"warnings\":[\"listening on 0.0.0.0 without API keys: open to all");
}

Test(cli, a_host_that_only_this_machine_reaches_is_not)
{
    static const char *const hosts[] = {"127.0.0.1", "127.9.9.9", "localhost"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const char *const args[] = {"--host", hosts[i], NULL};
        process_serve(&p, &(struct process_start){.args = args});
        cr_assert_null(strstr(p.stderr_text, "without API keys"), "%s: %s", hosts[i], p.stderr_text);
        process_signal(&p, SIGTERM);
        cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
        process_free(&p);
        p = (struct process){0};
    }
}

Test(cli, sigterm_ends_an_idle_daemon_with_0)
{
    process_serve(&p, &(struct process_start){0});
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
}

Test(cli, sigint_ends_an_idle_daemon_with_0)
{
    process_serve(&p, &(struct process_start){0});
    process_signal(&p, SIGINT);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
}

Test(cli, sigterm_lets_a_running_stream_finish)
{
    static char reply[1 << 20];
    uint16_t port = process_serve(&p, &(struct process_start){0});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_signal(&p, SIGTERM);
    cr_assert(process_read_until(fd, "data: [DONE]", reply, sizeof reply), "the stream was cut:\n%s", reply);
    expect_in(reply, "\"finish_reason\":\"length\"");
    expect_in(reply, "\"completion_tokens\":900");
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    close(fd);
}

Test(cli, a_draining_daemon_is_not_ready_and_takes_nothing_new)
{
    static char reply[1 << 20], other[1 << 16];
    static const char *const args[] = {SLOW, NULL};
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_signal(&p, SIGTERM);
    process_expect(&p, "draining");
    cr_assert_eq(process_http(port, "/generate", "{\"prompt\":\"a\"}", other, sizeof other), 503);
    expect_in(other, "draining");
    cr_assert_eq(process_http(port, "/health/ready", NULL, other, sizeof other), 503);
    cr_assert_eq(process_http(port, "/health/live", NULL, other, sizeof other), 200);
    close(fd);
}

Test(cli, a_drain_says_how_many_run_and_how_many_are_refused)
{
    static char reply[1 << 20], other[1 << 16];
    static const char *const args[] = {SLOW, "--slots", "1", NULL};
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG), waiting[2];
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    for (int i = 0; i < 2; i++)
        waiting[i] = process_request(port, "/generate", STREAM_LONG);
    do
        cr_assert_eq(process_http(port, "/stats", NULL, other, sizeof other), 200);
    while (!strstr(other, "\"running\":1,\"waiting\":2"));
    process_signal(&p, SIGTERM);
    process_expect(&p, "SIGTERM: draining, 1 running, 2 waiting and refused, for at most 30000 ms");
    for (int i = 0; i < 2; i++)
        close(waiting[i]);
    close(fd);
}

Test(cli, a_second_signal_ends_a_running_stream_now_with_0)
{
    static char reply[1 << 20];
    static const char *const args[] = {SLOW, NULL};
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_signal(&p, SIGTERM);
    process_expect(&p, "draining");
    process_signal(&p, SIGTERM);
    process_read_until(fd, "data: [DONE]", reply, sizeof reply);
    expect_in(reply, "\"finish_reason\":\"cancelled\"");
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    close(fd);
}

Test(cli, a_drain_that_takes_too_long_cancels_and_is_still_0)
{
    static const char *const args[] = {SLOW, "--drain-timeout-ms", "1", NULL};
    static char reply[1 << 20];
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_signal(&p, SIGTERM);
    process_read_until(fd, "data: [DONE]", reply, sizeof reply);
    expect_in(reply, "\"finish_reason\":\"cancelled\"");
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    close(fd);
}

/* As a virtual machine is paused: both limits, of the drain and of what follows it, are over when it goes on.
 */
Test(cli, a_drain_in_which_the_process_was_stopped_ends_in_order)
{
    static const char *const args[] = {SLOW, "--drain-timeout-ms", "1000", NULL};
    static char reply[1 << 20];
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_signal(&p, SIGTERM);
    process_expect(&p, "draining");
    process_signal(&p, SIGSTOP);
    sleep(4);
    process_signal(&p, SIGCONT);
    process_read_until(fd, "data: [DONE]", reply, sizeof reply);
    expect_in(reply, "\"finish_reason\":\"cancelled\"");
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    cr_assert_null(strstr(p.stderr_text, "did not finish in time"), "%s", p.stderr_text);
    close(fd);
}

Test(cli, sighup_reads_the_log_level_again)
{
    const char *path = file_with("log_level = info\n", 17);
    const char *const args[] = {"--config", path, NULL};
    process_serve(&p, &(struct process_start){.args = args});
    int fd = open(path, O_WRONLY | O_TRUNC);
    cr_assert_eq(write(fd, "log_level = error\n", 18), 18);
    close(fd);
    process_signal(&p, SIGHUP);
    process_expect(&p, "SIGHUP: log_level is now error");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    cr_assert_null(strstr(p.stderr_text, "SIGTERM"), "%s", p.stderr_text);
    unlink(path);
}

Test(cli, a_host_may_stand_in_brackets)
{
    static const char *const args[] = {"--host", "[127.0.0.1]", NULL};
    cr_assert_gt(process_serve(&p, &(struct process_start){.args = args}), 0);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
}

Test(cli, a_directory_of_models_is_checked_as_serve_does)
{
    static const char *const commands[] = {"serve", "check-config"};
    char dir[] = "/tmp/hearth-it-cli-XXXXXX";
    cr_assert_not_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(PROCESS_RUN(&p, commands[i], "--port", "any", "--models", dir), 3);
        expect_in(p.stderr_text, "no .gguf in it");
        process_free(&p);
        cr_assert_eq(PROCESS_RUN(&p, commands[i], "--port", "any", "--models", "/nonexistent"), 3);
        expect_in(p.stderr_text, "models /nonexistent: No such file or directory");
        process_free(&p);
    }
    cr_assert_eq(PROCESS_RUN(&p, "check-config", "--models", dir, "--model", PROCESS_MODEL), 0);
    cr_assert_eq(rmdir(dir), 0);
}

/* A link as into a cache elsewhere, one to nothing, and a directory with the name of a model. */
Test(cli, models_that_are_left_out_are_named_at_start)
{
    char dir[] = "/tmp/hearth-it-cli-XXXXXX", path[3][64];
    cr_assert_not_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++)
        snprintf(path[i], sizeof path[i], "%s/%c.gguf", dir, 'a' + i);
    cr_assert_eq(symlink(PROCESS_MODEL, path[0]) + symlink("nothing", path[1]) + mkdir(path[2], 0700), 0);
    const char *const args[] = {"--models", dir, NULL};
    process_serve(&p, &(struct process_start){.args = args});
    expect_in(p.stderr_text, "/a.gguf is left out: a link leads out of the directory\n");
    expect_in(p.stderr_text, "/b.gguf is left out: No such file or directory\n");
    expect_in(p.stderr_text, "/c.gguf is left out: it is not a regular file\n");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    cr_assert_eq(unlink(path[0]) + unlink(path[1]) + rmdir(path[2]) + rmdir(dir), 0);
}

Test(cli, sighup_names_the_changed_keys_that_need_a_restart)
{
    static const char before[] = "slots = 2\nhost = 127.0.0.1\n",
                      after[] = "slots = 3\nhost = 127.0.0.1\nqueue_limit = 7\nlog_level = debug\n";
    const char *path = file_with(before, sizeof before - 1);
    const char *const args[] = {"--config", path, NULL};
    process_serve(&p, &(struct process_start){.args = args});
    process_signal(&p, SIGHUP);
    process_expect(&p, "reading key files and certificate again\n");
    int fd = open(path, O_WRONLY | O_TRUNC);
    cr_assert_eq(write(fd, after, sizeof after - 1), (ssize_t)sizeof after - 1);
    close(fd);
    process_signal(&p, SIGHUP);
    process_expect(&p, "in force only after a restart: slots, queue_limit\n");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    const char *first = strstr(p.stderr_text, "only after a restart");
    cr_assert_null(strstr(first + 1, "only after a restart"), "%s", p.stderr_text);
    unlink(path);
}

Test(cli, sigusr1_and_sigusr2_are_ignored)
{
    static char reply[1 << 16];
    uint16_t port = process_serve(&p, &(struct process_start){0});
    process_signal(&p, SIGUSR1);
    process_signal(&p, SIGUSR2);
    cr_assert_eq(process_http(port, "/health", NULL, reply, sizeof reply), 200, "%s", reply);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
}

Test(cli, a_broken_file_on_sighup_changes_nothing)
{
    const char *path = file_with("log_level = info\n", 17);
    const char *const args[] = {"--config", path, NULL};
    process_serve(&p, &(struct process_start){.args = args});
    int fd = open(path, O_WRONLY | O_TRUNC);
    cr_assert_eq(write(fd, "log_level = loud\n", 17), 17);
    close(fd);
    process_signal(&p, SIGHUP);
    process_expect(&p, "nothing was changed");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    unlink(path);
}

Test(cli, the_log_holds_no_prompt)
{
    static const char *const args[] = {"--log-level", "debug", NULL};
    static char reply[1 << 16];
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    cr_assert_eq(
        process_http(port, "/generate", "{\"prompt\":\"xyzzy plugh\",\"max_tokens\":2}", reply, sizeof reply),
        200, "%s", reply);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    cr_assert_null(strstr(p.stderr_text, "xyzzy"), "%s", p.stderr_text);
}

Test(cli, a_decoder_that_hangs_is_9)
{
    static const char *const args[] = {SLOW, "--watchdog-ms", "2000", NULL};
    static char reply[1 << 20];
    uint16_t port = process_serve(&p, &(struct process_start){.args = args});
    int fd = process_request(port, "/generate", STREAM_LONG);
    cr_assert(process_read_until(fd, "data: {", reply, sizeof reply), "%s", reply);
    process_freeze_workers(&p);
    cr_assert_eq(process_wait(&p), 9, "%s", p.stderr_text);
    expect_in(p.stderr_text, "is not responding");
    process_read_until(fd, "data: [DONE]", reply, sizeof reply);
    expect_in(reply, "event: error");
    close(fd);
}

Test(cli, an_idle_engine_that_hangs_is_9_too)
{
    static const char *const args[] = {"--watchdog-ms", "2000", NULL};
    process_serve(&p, &(struct process_start){.args = args});
    process_freeze_workers(&p);
    cr_assert_eq(process_wait(&p), 9, "%s", p.stderr_text);
}
