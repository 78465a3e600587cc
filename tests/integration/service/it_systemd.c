/* hearthd as a service: the test plays systemd, with a notify socket, a listening socket, a watchdog and the
 * journal's variable. */
#include "integration/process.h"
#include "integration/slow.h"
#include "support/http_client.h"
#include "support/listen.h"
#include "support/temporary_dir.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct process p;
static int manager = -1;
static char notify_variable[128];

/* The manager's socket, abstract so that nothing is left behind. */
static void open_manager(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {120, 0};
    int n =
        snprintf(notify_variable, sizeof notify_variable, "NOTIFY_SOCKET=@hearth-it-systemd-%d", getpid());
    const char *name = notify_variable + strlen("NOTIFY_SOCKET=");

    memcpy(address.sun_path + 1, name + 1, strlen(name) - 1);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_gt(n, 0);
    cr_assert_eq(bind(manager, (struct sockaddr *)&address,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
                 0);
    setsockopt(manager, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
}

static void end(void)
{
    if (p.pid > 0)
        process_free(&p);
}

TestSuite(systemd, .init = open_manager, .fini = end, .timeout = 1200);

/* Messages until one contains `part`; that one. */
static const char *notified(const char *part)
{
    static char text[2048];
    do {
        ssize_t n;
        while ((n = recv(manager, text, sizeof text - 1, 0)) < 0 && errno == EINTR) /* stopped meanwhile */
            ;
        cr_assert_gt(n, 0, "no message with \"%s\" came; stderr was:\n%s", part, p.stderr_text);
        text[n] = '\0';
    } while (!strstr(text, part));
    return text;
}

static uint16_t start_notified(const char *const *args)
{
    const char *const env[] = {notify_variable, NULL};
    return process_serve(&p, &(struct process_start){.args = args, .env = env});
}

Test(systemd, loading_is_a_status_and_asks_for_time)
{
    start_notified(NULL);
    const char *message = notified("EXTEND_TIMEOUT_USEC=");
    expect_in(message, "STATUS=Loading ");
}

Test(systemd, ready_carries_the_start_line)
{
    start_notified(NULL);
    expect_in(notified("READY=1"), "STATUS=listening on http://127.0.0.1:");
}

Test(systemd, when_ready_is_said_health_says_so_too)
{
    char reply[4096];
    uint16_t port = start_notified(NULL);
    notified("READY=1");
    cr_assert_eq(process_http(port, "/health/ready", NULL, reply, sizeof reply), 200);
}

Test(systemd, a_load_that_fails_never_says_ready)
{
    static const char *const args[] = {"serve", "--port", "0", "--model", HEARTH_SOURCE_DIR "/LICENSE", NULL};
    const char *const env[] = {notify_variable, NULL};
    char text[2048];
    ssize_t n;
    process_start(&p, &(struct process_start){.args = args, .env = env});
    cr_assert_eq(process_wait(&p), 4);
    while ((n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[n] = '\0';
        cr_assert_null(strstr(text, "READY=1"));
    }
}

/* The parser's error quotes what the template's author wrote. */
Test(systemd, words_of_a_template_are_no_messages_to_the_manager)
{
    static const char source[] = "{{ 1 \"x\\nREADY=1\\nMAINPID=1\\nWATCHDOG=trigger\\n\x1b[2J\" }}";
    char template[] = "/tmp/hearth-template-XXXXXX", text[2048];
    const char *const args[] = {"serve",       "--port",          "0",      "--model",
                                PROCESS_MODEL, "--chat-template", template, NULL};
    const char *const env[] = {notify_variable, NULL};
    int fd = mkstemp(template);
    ssize_t n;
    cr_assert_eq(write(fd, source, sizeof source - 1), (ssize_t)sizeof source - 1);
    close(fd);
    process_start(&p, &(struct process_start){.args = args, .env = env});
    cr_assert_eq(process_wait(&p), 2, "%s", p.stderr_text);
    unlink(template);
    bool told = false;
    while ((n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[n] = '\0';
        told = told || strstr(text, "STATUS=chat_template");
        cr_assert_null(strstr(text, "\nREADY=1"), "%s", text);
        cr_assert_null(strchr(text, 0x1b), "%s", text);
    }
    cr_assert(told, "the error is the status: %s", p.stderr_text);
}

Test(systemd, the_watchdog_is_fed_while_the_decoder_is_idle)
{
    const char *const env[] = {notify_variable, "WATCHDOG_USEC=400000", NULL};
    process_serve(&p, &(struct process_start){.env = env});
    for (int i = 0; i < 4; i++)
        notified("WATCHDOG=1");
}

Test(systemd, the_watchdog_is_not_fed_by_a_process_whose_decoder_hangs)
{
    static const char *const args[] = {"--watchdog-ms", "2000", NULL};
    const char *const env[] = {notify_variable, "WATCHDOG_USEC=400000", NULL};
    process_serve(&p, &(struct process_start){.args = args, .env = env});
    notified("WATCHDOG=1");
    process_freeze_workers(&p);
    expect_in(notified("is not responding"), "STATUS=");
    cr_assert_eq(process_wait(&p), 9, "%s", p.stderr_text);
    char text[2048];
    ssize_t n;
    while ((n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[n] = '\0';
        cr_assert_null(strstr(text, "WATCHDOG=1"));
    }
}

/* A small model with that name in the directory. */
static void put_model(const char *dir, const char *name)
{
    static char bytes[1 << 20];
    char path[256];
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    FILE *from = fopen(HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf", "rb"), *to = fopen(path, "wb");
    cr_assert(from && to);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, from)) > 0;)
        cr_assert_eq(fwrite(bytes, 1, n, to), n);
    fclose(from);
    cr_assert_eq(fclose(to), 0);
}

/* The engine of the first model and its decoder live on. */
Test(systemd, the_watchdog_is_not_fed_when_the_decoder_of_a_second_model_hangs)
{
    char *dir = temporary_dir(), reply[1 << 16];
    const char *const args[] = {"--model",       "",     "--models", dir, "--kv-memory", "16M",
                                "--watchdog-ms", "2000", NULL};
    const char *const env[] = {notify_variable, "WATCHDOG_USEC=400000", NULL};
    pid_t threads[256];
    put_model(dir, "a");
    put_model(dir, "b");
    uint16_t port = process_serve(&p, &(struct process_start){.args = args, .env = env});
    notified("READY=1");
    int n = process_threads(&p, threads, 256);
    cr_assert_eq(process_http(port, "/generate", "{\"model\":\"b\",\"prompt\":[1],\"max_tokens\":1}", reply,
                              sizeof reply),
                 200, "%s", reply);
    notified("WATCHDOG=1");
    process_freeze_others(&p, threads, n);
    expect_in(notified("is not responding"), "STATUS=");
    cr_assert_eq(process_wait(&p), 9, "%s", p.stderr_text);
    temporary_dir_remove(dir);
}

/* A POST without a body, with the admin key; the reply must have this status. */
static void ask_admin(uint16_t port, const char *path, const char *status)
{
    char text[4096] = "";
    int fd = client_connect(port);
    int n =
        snprintf(text, sizeof text,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nx-api-key: boss\r\nContent-Length: 0\r\n\r\n", path);
    cr_assert_eq(write(fd, text, (size_t)n), n);
    text[0] = '\0';
    process_read_until(fd, "}\n", text, sizeof text);
    expect_in(text, status);
    close(fd);
}

Test(systemd, a_model_put_away_is_in_the_status_and_the_watchdog_is_fed_on)
{
    char key[] = "/tmp/hearth-key-XXXXXX";
    const char *const args[] = {"--admin-key-file", key, "--watchdog-ms", "2000", NULL};
    const char *const env[] = {notify_variable, "WATCHDOG_USEC=400000", NULL};
    int fd = mkstemp(key);
    cr_assert_eq(write(fd, "boss\n", 5), 5);
    close(fd);
    uint16_t port = process_serve(&p, &(struct process_start){.args = args, .env = env});
    unlink(key);
    notified("READY=1");
    ask_admin(port, "/admin/suspend", " 202 ");
    notified("STATUS=Suspended");
    for (int i = 0; i < 12; i++) /* longer than the decoder's watchdog is patient */
        notified("WATCHDOG=1");
    ask_admin(port, "/admin/resume", " 202 ");
    notified("tokens/s");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
}

Test(systemd, stopping_is_said_when_draining)
{
    start_notified(NULL);
    notified("READY=1");
    process_signal(&p, SIGTERM);
    expect_in(notified("STOPPING=1"), "EXTEND_TIMEOUT_USEC=");
    cr_assert_eq(process_wait(&p), 0);
}

Test(systemd, a_drain_asks_for_time_as_long_as_it_lasts)
{
    static const char *const args[] = {SLOW, NULL};
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}";
    uint16_t port = start_notified(args);
    notified("READY=1");
    int fd = process_request(port, "/generate", body);
    notified("STATUS=1 running");
    process_signal(&p, SIGTERM);
    notified("STOPPING=1");
    for (int i = 0; i < 3; i++)
        expect_in(notified("STATUS=Draining, 1 running"), "EXTEND_TIMEOUT_USEC=");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    close(fd);
}

Test(systemd, closing_asks_for_time_when_it_begins)
{
    char text[2048];
    ssize_t n;
    start_notified(NULL);
    notified("READY=1");
    process_signal(&p, SIGTERM);
    notified("STOPPING=1");
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    bool asked = false;
    while ((n = recv(manager, text, sizeof text - 1, MSG_DONTWAIT)) > 0) {
        text[n] = '\0';
        asked = asked || !strncmp(text, "EXTEND_TIMEOUT_USEC=", 20);
    }
    cr_assert(asked);
}

/* As a disk that does not answer holds the thread that closes the model. */
Test(systemd, a_close_that_hangs_ends_by_itself)
{
    static const char *const args[] = {"--watchdog-ms", "0", NULL};
    start_notified(args);
    notified("READY=1");
    process_freeze_workers(&p);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    expect_in(p.stderr_text, "closing the model got nowhere");
}

Test(systemd, an_inherited_socket_replaces_host_and_port)
{
    static const char *const args[] = {"serve", "--host",  "192.0.2.1",   "--threads",
                                       "2",     "--model", PROCESS_MODEL, NULL};
    const char *const env[] = {notify_variable, NULL};
    char reply[4096];
    uint16_t port;
    int fd = listen_loopback(&port);
    process_start(&p, &(struct process_start){.args = args, .env = env, .listen_fd = fd});
    notified("READY=1");
    process_expect(&p, "1 socket from the service manager replaces host, port and unix_socket");
    cr_assert_eq(process_http(port, "/health/ready", NULL, reply, sizeof reply), 200);
    close(fd);
}

Test(systemd, an_inherited_socket_that_all_can_reach_without_keys_or_tls_is_warned_about)
{
    static const char *const args[] = {"serve", "--tls-port", "30443",       "--threads",
                                       "2",     "--model",    PROCESS_MODEL, NULL};
    const char *const env[] = {notify_variable, NULL};
    char reply[4096];
    uint16_t port;
    int fd = listen_at(INADDR_ANY, &port);
    process_start(&p, &(struct process_start){.args = args, .env = env, .listen_fd = fd});
    notified("READY=1");
    process_expect(&p, "nothing listens on tls_port 30443");
    process_expect(&p, "listening on http://0.0.0.0:");
    process_expect(&p, "without API keys");
    cr_assert_eq(process_http(port, "/stats", NULL, reply, sizeof reply), 200);
    expect_in(reply, "without API keys");
    close(fd);
}

/* The backlog belongs to the socket unit: who connects while the daemon drains is answered by the next one.
 */
Test(systemd, a_connection_made_while_draining_waits_for_the_next_process)
{
    static const char *const args[] = {"serve", "--threads", "2", "--model", PROCESS_MODEL, NULL};
    const char *const env[] = {notify_variable, NULL};
    static char reply[1 << 16];
    uint16_t port;
    int fd = listen_loopback(&port);
    const struct process_start start = {.args = args, .env = env, .listen_fd = fd};
    process_start(&p, &start);
    notified("READY=1");
    process_signal(&p, SIGTERM);
    notified("STOPPING=1");
    int waiting = process_request(port, "/health/live", NULL);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    process_free(&p);
    process_start(&p, &start);
    cr_assert(process_read_until(waiting, "\r\n", reply, sizeof reply), "%s", reply);
    expect_in(reply, "HTTP/1.1 200");
    close(waiting);
    close(fd);
}

/* JOURNAL_STREAM names the pipe's device and inode, which are known only in the child: a shell fills them in.
 * The first line, and the exit code. */
static int say_to_journal(const char *flags, char line[256])
{
    char command[512];
    snprintf(command, sizeof command,
             "exec 2>&1; JOURNAL_STREAM=$(stat -L -c %%d:%%i /proc/self/fd/2) exec %s serve %s",
             HEARTHD_BINARY, flags);
    FILE *f = popen(command, "r");
    cr_assert(f && fgets(line, 256, f));
    return WEXITSTATUS(pclose(f));
}

Test(systemd, lines_carry_priorities_when_stderr_is_the_journal)
{
    char line[256] = "";
    cr_assert_eq(say_to_journal("--model /nonexistent/x", line), 3);
    cr_assert_eq(strncmp(line, "<3>model", 8), 0, "%s", line);
    cr_assert_eq(say_to_journal("--prot 1", line), 2);
    cr_assert_eq(strncmp(line, "<3>unknown flag", 15), 0, "%s", line);
}
