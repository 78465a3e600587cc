/* Faults around a daemon that is in order: a full disk, a log without a reader, a clock that jumps,
 * a process that is stopped for a while, a client that takes nothing. tests/bench/chaos.sh has what needs
 * root.
 */
#include "integration/harness.h"
#include "integration/process.h"
#include "integration/starved.h"
#include "support/temporary_dir.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#define STREAM(rest) "{\"prompt\":\"Once\",\"ignore_eos\":true,\"stream\":true" rest "}"

static bool has_event(const struct reply *r)
{
    const char *event = r->raw ? strstr(r->raw, "data: ") : NULL;
    return event && strstr(event, "\n\n");
}

struct stream {
    int fd;
    struct reply r; /* what has come: all of it perhaps, when this process was slow to look */
};

/* False: its time was over before its first token. */
static bool try_stream(struct stream *s, const char *body)
{
    *s = (struct stream){.fd = client_connect(daemon_.port)};
    client_request(s->fd, "POST", "/generate", "", body);
    while (!has_event(&s->r) && (!s->r.raw || !strstr(s->r.raw, "timeout_ms")))
        cr_assert(reply_more(&s->r, s->fd));
    if (!strstr(s->r.raw, "timeout_ms"))
        return true;
    reply_free(&s->r);
    close(s->fd);
    return false;
}

static struct stream start_stream(const char *body)
{
    struct stream s;
    cr_assert(try_stream(&s, body));
    return s;
}

/* To its end, which must be of that kind. */
static void expect_end(struct stream s, const char *reason)
{
    char words[64];
    snprintf(words, sizeof words, "\"finish_reason\":\"%s\"", reason);
    while (!strstr(s.r.raw, "data: [DONE]\n\n"))
        cr_assert(reply_more(&s.r, s.fd), "the stream was cut: %s", s.r.raw);
    cr_assert_not_null(strstr(s.r.raw, words), "%s", s.r.raw);
    cr_assert_null(strstr(s.r.raw, "event: error"), "%s", s.r.raw);
    reply_free(&s.r);
    close(s.fd);
}

/* --- disk --- */

/* A file may not grow beyond so many bytes: writing fails in the middle of a page. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    cr_assert_eq(prlimit(daemon_.pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

static void ask_twice(char *body)
{
    for (int i = 0; i < 2; i++)
        json_decref(generate(body));
    wait_stat("requests.running", 0);
}

Test(chaos, a_disk_that_is_full_costs_the_cache_alone)
{
    char *dir = temporary_dir();
    char *body = long_prompt("Tom and Lily went to the park. ", 40, ",\"max_tokens\":2");
    daemon_start((const char *[]){"--prefix-cache-dir", dir, NULL});
    limit_files(1000);
    ask_twice(body);
    while (!stat_number("prefix_disk.errors"))
        usleep(5000);
    cr_assert_eq(stat_number("prefix_disk.spilled"), 0);
    for (int i = 0; i < 4000 && temporary_dir_count(dir); i++) /* one may be under way */
        usleep(5000);
    cr_assert_eq(temporary_dir_count(dir), 0, "the half of a page keeps a full disk full");
    limit_files(RLIM_INFINITY);
    ask_twice(body);
    daemon_stop();
    temporary_dir_remove(dir);
    free(body);
}

Test(chaos, a_cache_directory_that_goes_away_costs_the_cache_alone)
{
    char *dir = temporary_dir(), *moved = temporary_dir();
    char *body = long_prompt("Tom and Lily went to the park. ", 40, ",\"max_tokens\":2");
    daemon_start((const char *[]){"--prefix-cache-dir", dir, NULL});
    cr_assert_eq(rename(dir, moved), 0);
    int file = open(dir, O_WRONLY | O_CREAT, 0600); /* what cannot be a directory is in its place */
    ask_twice(body);
    close(file);
    unlink(dir);
    daemon_stop();
    temporary_dir_remove(moved);
    free(dir);
    free(body);
}

/* --- the log --- */

/* Its log is a pipe that holds one page. When there is room again it says how many lines are missing. */
Test(chaos, a_log_that_nobody_reads_stops_nothing)
{
    struct process p;
    char out[4096];
    uint16_t port = process_serve(&p, &(struct process_start){0});
    fcntl(p.err, F_SETPIPE_SZ, 4096);
    for (int i = 0; i < 60; i++)
        cr_assert_eq(process_http(port, "/nowhere", NULL, out, sizeof out), 404);
    fcntl(p.err, F_SETPIPE_SZ, 65536); /* there is room again */
    cr_assert_eq(process_http(port, "/nowhere", NULL, out, sizeof out), 404);
    process_expect(&p, "lines of the log could not be written\n");
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0, "%s", p.stderr_text);
    process_free(&p);
}

Test(chaos, a_log_whose_reader_has_gone_stops_nothing)
{
    struct process p;
    char out[4096];
    uint16_t port = process_serve(&p, &(struct process_start){0});
    close(p.err);
    p.err = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(
            process_http(port, "/generate", "{\"prompt\":\"Once\",\"max_tokens\":2}", out, sizeof out), 200);
    process_signal(&p, SIGTERM);
    cr_assert_eq(process_wait(&p), 0);
    process_free(&p);
}

/* Else the first file or socket that it opens would be its log. */
Test(chaos, closed_standard_streams_are_filled)
{
    char link[64], target[PATH_MAX] = "";
    daemon_streams_closed = true;
    daemon_spawn(NULL);
    for (int fd = 0; fd < 3; fd++) {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", daemon_.pid, fd);
        for (int i = 0; i < 4000 && strcmp(target, "/dev/null"); i++) {
            ssize_t n = readlink(link, target, sizeof target - 1);
            target[n > 0 ? n : 0] = '\0';
            usleep(5000);
        }
        cr_assert_str_eq(target, "/dev/null", "descriptor %d is %s", fd, target);
        target[0] = '\0';
    }
    cr_assert_eq(daemon_end(SIGKILL), 128 + SIGKILL);
}

/* --- time --- */

static void jump(long seconds)
{
    starve->clock_ahead_s = seconds;
}

static void check_times(json_t *reply)
{
    static const char *const names[] = {"queue_ms", "prefill_ms", "ttft_ms", "decode_ms"};
    for (size_t i = 0; i < 4; i++) {
        double ms = json_number_value(json_object_get(json_at(reply, "timings"), names[i]));
        cr_assert(ms >= 0 && ms < 3600e3, "%s is %g", names[i], ms);
    }
    json_decref(reply);
}

Test(chaos, a_clock_that_jumps_ends_no_request_and_no_request_forgets_its_end)
{
    const long jumps[] = {86400, -86400, 400000000, -1000000000, 1};
    starved_start((const char *[]){SLOW, "--queue-timeout-ms", "300000", "--keepalive-ms", "100", NULL});
    for (size_t i = 0; i < sizeof jumps / sizeof *jumps; i++) {
        struct stream s = start_stream(STREAM(",\"max_tokens\":60,\"timeout_ms\":500000"));
        jump(jumps[i]);
        check_times(
            generate("{\"prompt\":\"Two\",\"max_tokens\":4,\"ignore_eos\":true,\"timeout_ms\":500000}"));
        jump(0);
        expect_end(s, "length");
    }
    jump(1000);
    struct stream s;
    char body[128];
    int ms = 200;
    do /* more, where the machine is busy */
        snprintf(body, sizeof body, STREAM(",\"max_tokens\":1000,\"timeout_ms\":%d"), ms);
    while (!try_stream(&s, body) && (ms *= 2));
    jump(-86400);
    expect_end(s, "timeout");
    cr_assert_lt(stat_number("uptime_s"), 3600);
    daemon_stop();
}

/* Longer than the watchdog's patience. */
DAEMON_TEST(chaos, a_process_that_was_stopped_goes_on, "--watchdog-ms", "2000")
{
    struct stream streams[4];
    for (int i = 0; i < 4; i++)
        streams[i] = start_stream(STREAM(",\"max_tokens\":600"));
    for (int i = 0; i < 2; i++) {
        kill(daemon_.pid, SIGSTOP);
        usleep(2500000);
        kill(daemon_.pid, SIGCONT);
        json_decref(generate("{\"prompt\":\"Two\",\"max_tokens\":2}"));
    }
    for (int i = 0; i < 4; i++)
        expect_end(streams[i], "length");
    cr_assert_eq(stat_number("requests.failed"), 0);
}

/* --- a client that takes nothing --- */

/* Reads what is left in the buffers, then the end of the connection; not the end of the stream. */
static void expect_cut(int fd)
{
    struct reply r = {0};
    while (reply_more(&r, fd))
        ;
    cr_assert_null(strstr(r.raw, "[DONE]"), "it was not cut");
    reply_free(&r);
    close(fd);
}

DAEMON_TEST(chaos, a_client_that_takes_nothing_harms_nobody_and_is_cut, "--body-timeout-ms", "2000")
{
    int deaf[4];
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":20,\"ignore_eos\":true,\"logprobs\":20}"));
    long long each = stat_number("tokens.prompt"), before = own_memory();
    for (int i = 0; i < 4; i++) {
        deaf[i] = connect_narrow();
        client_request(deaf[i], "POST", "/generate", "", STREAM(",\"max_tokens\":900,\"logprobs\":20"));
    }
    while (stat_number("tokens.prompt") < 5 * each) /* all four are in */
        usleep(1000);
    json_decref(generate("{\"prompt\":\"Two\",\"max_tokens\":20,\"ignore_eos\":true}"));
    expect_end(start_stream(STREAM(",\"max_tokens\":50")), "length");
    wait_stat("requests.running", 0);
    wait_connections(1);
    long long grown = own_memory() - before;
#ifdef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    grown = 0;
#endif
    cr_assert_lt(grown, 16 << 20); /* their whole texts: about 1.3 MB each */
    for (int i = 0; i < 4; i++)
        expect_cut(deaf[i]);
}

static void wait_log(const char *words)
{
    for (bool there = false; !there; usleep(5000)) {
        char *log = daemon_read_log();
        there = strstr(log, words);
        free(log);
    }
}

/* An hour passes while the last engine is closed, as on a disk that takes its cached pages slowly: more than
 * requests have to end, after one signal and after two. */
Test(chaos, a_close_that_takes_long_is_no_request_that_does_not_end)
{
    for (int n_signals = 1; n_signals <= 2; n_signals++) {
        starved_start((const char *[]){SLOW, NULL});
        starve->close_takes_s = 3600;
        struct stream s = {0};
        if (n_signals == 2) {
            s = start_stream(STREAM(",\"max_tokens\":1000"));
            kill(daemon_.pid, SIGTERM);
            wait_log("SIGTERM: draining");
        }
        cr_assert_eq(daemon_end(SIGTERM), 0);
        if (n_signals == 2)
            expect_end(s, "cancelled");
        char *log = daemon_read_log();
        cr_assert(strstr(log, "bye") && !strstr(log, "did not finish in time"), "%s", log);
        free(log);
    }
}

/* The service manager's socket. */
static int open_manager(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 60};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "hearth-it-chaos-%d", getpid());
    char name[64];
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(
        bind(fd, (struct sockaddr *)&address, (socklen_t)(sizeof address.sun_family + 1 + (size_t)n)), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    snprintf(name, sizeof name, "@hearth-it-chaos-%d", getpid());
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

/* Waits for a message that begins so; older ones are passed over. */
static void expect_message(int manager, const char *begin)
{
    char text[2048] = "";
    while (strncmp(text, begin, strlen(begin)) != 0) {
        ssize_t n = recv(manager, text, sizeof text - 1, 0);
        cr_assert_gt(n, 0, "no message \"%s\" came", begin);
        text[n] = '\0';
    }
}

/* Each page that a slow disk takes is a reason to wait on. */
Test(chaos, closing_asks_for_time_as_long_as_pages_are_written)
{
    char *dir = temporary_dir(), *prompt = long_prompt("word ", 600, ",\"max_tokens\":1");
    int manager = open_manager();
    starved_start((const char *[]){"--prefix-cache-dir", dir, NULL});
    starve->pages_wait = true;
    json_decref(generate(prompt));
    free(prompt);
    kill(daemon_.pid, SIGTERM);
    expect_message(manager, "STOPPING=1");
    for (int i = 0; i < 4; i++) {
        expect_message(manager, "EXTEND_TIMEOUT_USEC=");
        starve->n_pages_may++;
    }
    starve->pages_wait = false;
    cr_assert_eq(daemon_end(0), 0);
    char *log = daemon_read_log();
    cr_assert(strstr(log, "bye") && !strstr(log, "got nowhere"), "%s", log);
    free(log);
    close(manager);
    temporary_dir_remove(dir);
}
