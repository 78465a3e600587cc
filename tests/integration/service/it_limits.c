/* Requests that no client should send, answered or cut: large bodies, deep nesting, many
 * headers, slow senders, too many connections. */
#include "integration/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

static char *spaces(size_t n)
{
    char *text = malloc(n + 1);
    memset(text, ' ', n);
    text[n] = '\0';
    return text;
}

DAEMON_TEST(limits, ten_megabytes_are_a_413_that_the_client_sees)
{
    char *body = spaces(10u << 20);
    expect_words(post("/generate", body), 413, "too_large", "max_body");
    free(body);
}

DAEMON_TEST(limits, curl_with_expect_gets_the_413_before_it_sends)
{
    char *body = spaces(10u << 20);
    struct reply r = curl_post("/generate", body, 10u << 20);
    expect_words(r, 413, "too_large", "max_body");
    free(body);
}

DAEMON_TEST(limits, curl_with_expect_sends_a_body_that_is_allowed)
{
    char *body = long_prompt("once upon a time ", 150000, "");
    struct reply r = curl_post("/generate", body, strlen(body));
    free(expect_error(r, 400, "context_exceeded"));
    free(body);
}

DAEMON_TEST(limits, expect_is_answered_at_once_when_the_headers_refuse)
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_puts(
        fd,
        "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
    client_read(fd, &r, false);
    free(expect_error(r, 404, "not_found"));
    close(fd);
}

DAEMON_TEST(limits, a_body_announced_too_large_to_throw_away_is_refused_at_once)
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n");
    client_read(fd, &r, false);
    free(expect_error(r, 413, "too_large"));
    close(fd);
}

DAEMON_TEST(limits, a_chunked_body_over_the_limit_is_a_413)
{
    char block[65536], head[32];
    struct reply r;
    int fd = client_connect(daemon_.port);
    memset(block, ' ', sizeof block);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 80; i++) {
        snprintf(head, sizeof head, "%zx\r\n", sizeof block);
        client_puts(fd, head);
        client_send(fd, block, sizeof block);
        client_puts(fd, "\r\n");
    }
    client_puts(fd, "0\r\n\r\n");
    client_read(fd, &r, false);
    free(expect_error(r, 413, "too_large"));
    close(fd);
}

/* A connection that the daemon cuts is not a client that left: the access line and the one counter say so. */
static void expect_told(const char *counter, const char *line)
{
    wait_stat(counter, 1);
    cr_assert_eq(stat_number("requests.cancelled"), 0);
    char *log = daemon_read_log();
    cr_assert(strstr(log, line), "no \"%s\" in %s", line, log);
    free(log);
}

DAEMON_TEST(limits, an_endless_body_is_cut)
{
    char block[65536];
    struct reply r;
    int fd = client_connect(daemon_.port);
    memset(block, ' ', sizeof block);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    size_t sent = 0;
    while (sent < (size_t)200 << 20 && client_puts(fd, "10000\r\n") && client_send(fd, block, sizeof block) &&
           client_puts(fd, "\r\n"))
        sent += sizeof block;
    cr_assert_lt(sent, (size_t)64 << 20, "the daemon read %zu bytes", sent);
    close(fd);
    expect_told("requests.rejected", ": POST /generate 413 too_large ");
    r = get("/health");
    cr_assert_eq(r.status, 200);
    reply_free(&r);
}

DAEMON_TEST(limits, a_megabyte_of_brackets_is_refused)
{
    char *body = malloc((1 << 20) + 1);
    memset(body, '[', 1 << 20);
    body[1 << 20] = '\0';
    expect_words(post("/generate", body), 400, "invalid_request", "nested deeper than 64");
    free(body);
}

DAEMON_TEST(limits, ten_thousand_headers_are_refused)
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_puts(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 10000; i++) {
        char line[32];
        snprintf(line, sizeof line, "X-%d: y\r\n", i);
        if (!client_puts(fd, line))
            break;
    }
    client_puts(fd, "\r\n");
    client_read(fd, &r, true);
    cr_assert(r.status == 431 || r.status == 413 || r.status == 0, "%d", r.status);
    reply_free(&r);
    close(fd);
    r = get("/health");
    cr_assert_eq(r.status, 200);
    reply_free(&r);
}

static void must_be_cut(int fd)
{
    struct reply r = {0};
    while (reply_more(&r, fd))
        ;
    cr_assert_eq(r.raw_len, 0, "%s", r.raw);
    reply_free(&r);
    close(fd);
}

DAEMON_TEST(slow, a_header_that_never_ends_is_cut, "--header-timeout-ms", "300")
{
    int fd = client_connect(daemon_.port);
    client_puts(fd, "GET /health HTTP/1.1\r\nHost: ");
    for (int i = 0; i < 200 && client_puts(fd, "x"); i++)
        usleep(20000); /* a byte now and then keeps no connection alive */
    must_be_cut(fd);
}

DAEMON_TEST(slow, a_silent_connection_is_cut, "--header-timeout-ms", "200")
{
    must_be_cut(client_connect(daemon_.port));
}

DAEMON_TEST(slow, a_body_that_never_ends_is_cut, "--body-timeout-ms", "300")
{
    int fd = client_connect(daemon_.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{");
    for (int i = 0; i < 200 && client_puts(fd, " "); i++)
        usleep(20000);
    must_be_cut(fd);
    expect_told("requests.timed_out", ": POST /generate 408 timeout ");
}

DAEMON_TEST(slow, a_refused_body_that_never_ends_is_what_it_was_refused_for, "--body-timeout-ms", "300")
{
    int fd = client_connect(daemon_.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                    "Content-Length: 100000\r\n\r\n{");
    must_be_cut(fd);
    expect_told("requests.rejected", ": POST /generate 415 unsupported_media_type ");
}

/* It comes in one piece: on a busy machine a tenth of a second may pass between two. */
DAEMON_TEST(slow, a_running_request_is_not_cut_by_the_body_timeout, SLOW, "--body-timeout-ms", "100")
{
    static const char request[] = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 52\r\n\r\n"
                                  "{\"prompt\":\"Once\",\"max_tokens\":200,\"ignore_eos\":true}";
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_puts(fd, request);
    client_read(fd, &r, false);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 200, "%s", r.raw);
    json_decref(root);
    reply_free(&r);
    close(fd);
}

static void in_the_middle(int fd, int where)
{
    static const char *const headers[] = {"GET /hea", "GET /health HTTP/1.1\r\n",
                                          "GET /health HTTP/1.1\r\nHost: local",
                                          "GET /health HTTP/1.1\r\nHost: localhost\r\n"};
    if (where < 4) {
        client_puts(fd, headers[where]);
        return;
    }
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
    for (int k = 0; k < 50 * (where - 4); k++)
        client_puts(fd, "{\"prompt\":                                        ");
}

/* Their last bytes and their end are seen at once: by a daemon that is stopped for as long. */
DAEMON_TEST(slow, senders_that_left_in_the_middle_are_forgotten, "--body-timeout-ms", "3600000",
            "--header-timeout-ms", "3600000")
{
    struct reply r = {0};
    int fds[16];
    for (int i = 0; i < 16; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "GET", "/health", "", NULL);
        if (i < 8) /* the others' second request stands behind a whole one */
            client_read(fds[i], &r, false);
        reply_free(&r);
    }
    wait_connections(17);
    kill(daemon_.pid, SIGSTOP);
    for (int i = 0; i < 16; i++) {
        in_the_middle(fds[i], i % 8);
        close(fds[i]);
    }
    kill(daemon_.pid, SIGCONT);
    wait_connections(1);
}

DAEMON_TEST(slow, who_will_send_no_more_is_answered)
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":7}");
    shutdown(fd, SHUT_WR);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 400);
    reply_free(&r);
    close(fd);
}

DAEMON_TEST(many, body_memory_bounds_all_bodies_together, "--body-memory", "1M", "--max-body", "1M")
{
    int fds[4];
    char *half = spaces(400 << 10);
    for (int i = 0; i < 4; i++) {
        fds[i] = client_connect(daemon_.port);
        client_puts(fds[i], "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n");
        client_send(fds[i], half, 400 << 10);
    }
    char *rest = spaces(500000 - (400 << 10));
    int n_refused = 0;
    for (int i = 0; i < 4; i++) {
        struct reply r;
        client_send(fds[i], rest, 500000 - (400 << 10));
        client_read(fds[i], &r, false);
        cr_assert(r.status == 400 || r.status == 503, "%d: %s", r.status, r.body);
        n_refused += r.status == 503;
        reply_free(&r);
        close(fds[i]);
    }
    cr_assert_geq(n_refused, 1);
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
    free(half);
    free(rest);
}

DAEMON_TEST(many, a_body_that_body_memory_never_holds_is_a_413, "--body-memory", "64K", "--max-body", "1M")
{
    char *body = spaces(100000);
    expect_words(post("/generate", body), 413, "too_large", "body_memory is 65536");
    free(body);
}

/* Four connections whose request has begun. */
static void begin_four(int fds[4])
{
    for (int i = 0; i < 4; i++) {
        fds[i] = client_connect(daemon_.port);
        client_puts(fds[i], "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{");
    }
    while (metric("hearth_body_bytes") < 4 * 4096) /* the least that a body takes */
        usleep(5000);
}

/* The rest of the four, which must be answered. */
static void end_four(const int fds[4])
{
    struct reply r;
    for (int i = 0; i < 4; i++) {
        client_puts(fds[i], "\"content\":\"a\"}");
        client_read(fds[i], &r, false);
        cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
        reply_free(&r);
        close(fds[i]);
    }
}

DAEMON_TEST(many, above_max_connections_health_and_figures_still_answer, "--max-connections", "4")
{
    static const char *const paths[] = {"/health", "/health/live", "/stats", "/requests", "/"};
    int fds[4];
    begin_four(fds);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply r = get(paths[i]);
        cr_assert_eq(r.status, 200, "%s: %d", paths[i], r.status);
        reply_free(&r);
    }
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full",
                 "4 connections have a request in progress, max_connections is 4");
    end_four(fds);
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
}

enum way { SILENT, HALF_A_HEADER, IDLE, REFUSED, OPTIONS, HEALTH_WITH_A_BODY, NOT_READING, N_WAYS };

/* Sends text, and waits until the daemon has read it and says something. */
static void say(int fd, const char *text)
{
    char byte;
    client_puts(fd, text);
    cr_assert_eq(recv(fd, &byte, 1, MSG_PEEK), 1, "no answer to %.40s", text);
}

#define EXPECTS "Host: localhost\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"

/* For more than the buffers of both sides hold. */
static void ask_and_not_read(int fd)
{
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static char all[2000 * sizeof request];
    for (char *at = all; at < all + sizeof all - sizeof request;)
        at = stpcpy(at, request);
    say(fd, all);
}

/* Holds a connection for as long as the daemon allows it, without a request that waits or runs. */
static void hold_place(int fd, enum way way)
{
    struct reply r;
    switch (way) {
    case HALF_A_HEADER:
        client_puts(fd, "GET /health HTTP/1.1\r\nHo");
        break;
    case IDLE:
        client_request(fd, "GET", "/health", "", NULL);
        client_read(fd, &r, false);
        reply_free(&r);
        break;
    case REFUSED:
        client_puts(fd, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{");
        break;
    case OPTIONS:
        say(fd, "OPTIONS /generate HTTP/1.1\r\n" EXPECTS);
        break;
    case HEALTH_WITH_A_BODY:
        say(fd, "GET /health HTTP/1.1\r\n" EXPECTS);
        break;
    case NOT_READING:
        ask_and_not_read(fd);
        break;
    default:
        break;
    }
}

/* N_WAYS: in all of them. */
static void connections_that_do_nothing(int way)
{
    struct reply r;
    int fds[100], stream = client_connect(daemon_.port);
    client_request(stream, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":60,\"ignore_eos\":true,\"stream\":true}");
    wait_stat("requests.running", 1);
    for (int i = 0; i < 100; i++) {
        fds[i] = connect_narrow();
        hold_place(fds[i], way == N_WAYS ? i % N_WAYS : way);
    }
    for (int i = 0; i < 20; i++) {
        r = get("/health/ready");
        cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
        reply_free(&r);
    }
    client_read(stream, &r, false);
    cr_assert(r.status == 200 && !r.cut && strstr(r.body, "[DONE]"), "the stream was cut: %s", r.body);
    reply_free(&r);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    close(stream);
}

#define PATIENT                                                                                              \
    "--max-connections", "4", "--header-timeout-ms", "3600000", "--body-timeout-ms", "3600000", SLOW

DAEMON_TEST(many, connections_that_do_nothing_keep_health_from_nobody, PATIENT)
{
    connections_that_do_nothing(N_WAYS);
}

DAEMON_TEST(many, bodies_of_options_without_end_keep_health_from_nobody, PATIENT)
{
    connections_that_do_nothing(OPTIONS);
}

DAEMON_TEST(many, bodies_of_health_without_end_keep_health_from_nobody, PATIENT)
{
    connections_that_do_nothing(HEALTH_WITH_A_BODY);
}

DAEMON_TEST(many, replies_that_are_not_read_keep_health_from_nobody, PATIENT)
{
    connections_that_do_nothing(NOT_READING);
}

/* A connection from 127.0.0.n. */
static int connect_from(int n)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + (uint32_t)n)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(daemon_.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Asks on a connection, once all that came before now are accepted. */
static void expect_health(int fd)
{
    struct reply r = get("/health");
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
    reply_free(&r);
    client_request(fd, "GET", "/health", "", NULL);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
    reply_free(&r);
}

/* A client has connected when a hundred others of one address hold all places, and 20 of a third come; only
 * then it asks. */
static void expect_place_beside(enum way way)
{
    int fds[120];
    for (int i = 0; i < 100; i++) {
        fds[i] = connect_from(1);
        hold_place(fds[i], way);
    }
    int fd = connect_from(2);
    for (int i = 100; i < 120; i++)
        fds[i] = connect_from(3);
    expect_health(fd);
    for (int i = 0; i < 120; i++)
        close(fds[i]);
    close(fd);
}

DAEMON_TEST(many, connections_of_one_address_close_none_of_another, PATIENT)
{
    expect_place_beside(SILENT);
    expect_place_beside(OPTIONS);
}

/* The client is there first, so that its connection is the oldest that does nothing. */
DAEMON_TEST(many, connections_that_come_back_at_once_close_none_of_another_address, PATIENT)
{
    int fds[300], fd = connect_from(2);
    for (int i = 0; i < 300; i++)
        fds[i] = connect_from(1);
    expect_health(fd);
    for (int i = 0; i < 300; i++)
        close(fds[i]);
    close(fd);
}

/* 2,000 connections of 400 addresses hold nearly all places. Those of one address that come then close their
 * own, however many: all others still get an answer. */
DAEMON_TEST(many, connections_of_one_address_close_none_of_hundreds_of_others, "--max-connections", "2000",
            "--header-timeout-ms", "3600000")
{
    enum { OTHERS = 2000, CROWD = 300 };
    static int fds[OTHERS + CROWD];
    for (int i = 0; i < OTHERS; i++)
        fds[i] = connect_from(256 + i % 400);
    for (int i = OTHERS; i < OTHERS + CROWD; i++)
        fds[i] = connect_from(1);
    for (int i = 0; i < OTHERS; i += 97)
        expect_health(fds[i]);
    for (int i = 0; i < OTHERS; i++) {
        struct pollfd closed = {.fd = fds[i], .events = POLLRDHUP};
        cr_assert_eq(poll(&closed, 1, 0), 0, "connection %d was closed", i);
    }
    for (int i = 0; i < OTHERS + CROWD; i++)
        close(fds[i]);
}

DAEMON_TEST(many, refused_bodies_without_end_keep_health_from_nobody, PATIENT)
{
    connections_that_do_nothing(REFUSED);
    char *log = daemon_read_log();
    cr_assert(strstr(log, " 404 not_found "), "those that made room were refused, and did not leave: %s",
              log);
    free(log);
}

/* The daemon's descriptors, or only those that are sockets. */
static int count_descriptors(bool sockets)
{
    char path[64], target[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", daemon_.pid);
    DIR *dir = opendir(path);
    cr_assert_not_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        ssize_t got = readlinkat(dirfd(dir), entry->d_name, target, sizeof target);
        n += got > 0 && (!sockets || !strncmp(target, "socket:", 7));
    }
    closedir(dir);
    return n;
}

/* n connections come at once, of which the daemon can keep only some, at least n_taken, and go at once. */
static void come_and_go(int n, int n_taken)
{
    int fds[80];
    kill(daemon_.pid, SIGSTOP);
    for (int i = 0; i < n; i++)
        fds[i] = client_connect(daemon_.port);
    kill(daemon_.pid, SIGCONT);
    while (count_descriptors(true) < n_taken + 1) /* the listening one */
        usleep(5000);
    kill(daemon_.pid, SIGSTOP);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    kill(daemon_.pid, SIGCONT);
    struct reply r = get("/health");
    cr_assert_eq(r.status, 200, "it listens no more");
    reply_free(&r);
}

/* 64 are kept for health, and of these some free. */
DAEMON_TEST(many, after_the_last_connection_that_could_be_had_it_listens_again, "--max-connections", "4")
{
    come_and_go(68, 60);
    come_and_go(80, 60);
}

DAEMON_TEST(many, after_the_last_descriptor_it_listens_again)
{
    struct rlimit limit = {(rlim_t)count_descriptors(false) + 20, 0};
    limit.rlim_max = limit.rlim_cur;
    cr_assert_eq(prlimit(daemon_.pid, RLIMIT_NOFILE, &limit, NULL), 0);
    come_and_go(40, 10);
    come_and_go(40, 10);
}

/* A hard limit of 90 descriptors holds 4 connections, the 64 for health and 22 others. The test's own are
 * open before it falls, and above it. */
Test(many, a_hard_limit_of_descriptors_lowers_what_is_accepted)
{
    int fds[120];
    struct rlimit limit = {90, 90};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 120; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 100);
        cr_assert_geq(fds[i], 100);
        close(fd);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    daemon_start(NULL);
    at.sin_port = htons(daemon_.port);
    for (int i = 0; i < 120; i++)
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&at, sizeof at), 0);
    struct reply r = get("/health");
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
    reply_free(&r);
    int busy[4];
    begin_four(busy);
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full", "max_connections is 4");
    end_four(busy);
    char *log = daemon_read_log();
    const char *words = strstr(log, "max_connections is 4, not 1000: this process may open at most 90 files");
    cr_assert(words && !strstr(words + 1, "max_connections is"), "%s", log);
    free(log);
    for (int i = 0; i < 120; i++)
        close(fds[i]);
    daemon_stop();
}

/* It would say that it listens, and answer nothing while some connections are held. */
Test(many, too_few_descriptors_end_the_start)
{
    struct rlimit limit = {85, 85};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    daemon_spawn(NULL);
    cr_assert_eq(daemon_end(0), 2);
    char *log = daemon_read_log();
    cr_assert(strstr(log, "at most 85 files and sockets, which is too few"), "%s", log);
    free(log);
}

/* The slot must be taken for as long as the test looks. */
#define LONG  "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}"
#define SHORT "{\"prompt\":\"Once\",\"max_tokens\":2}"

DAEMON_TEST(many, a_full_queue_is_a_503_and_drains, SLOW, "--slots", "1", "--queue-limit", "2")
{
    int fds[3];
    struct reply r;
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", "/generate", i ? "" : "X-Request-Id: long\r\n", i ? SHORT : LONG);
        wait_stat(i ? "requests.waiting" : "requests.running", i ? i : 1);
    }
    r = post("/generate", "{\"prompt\":\"Once\"}");
    cr_assert_not_null(reply_header(&r, "Retry-After"));
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number(root, "error.queue_limit"), 2);
    json_decref(root);
    free(expect_error(r, 503, "queue_full"));
    r = client_once(daemon_.port, "DELETE", "/requests/long", "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
    for (int i = 0; i < 3; i++) {
        client_read(fds[i], &r, false);
        cr_assert_eq(r.status, 200, "%s", r.body);
        reply_free(&r);
        close(fds[i]);
    }
}

/* Nothing of the body is sent, so it cannot have been waited for, or read. */
DAEMON_TEST(many, a_full_queue_is_told_when_the_headers_are_there, SLOW, "--slots", "1", "--queue-limit", "1",
            "--body-timeout-ms", "3600000")
{
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", "/generate", "", LONG);
        wait_stat(i ? "requests.waiting" : "requests.running", 1);
    }
    static const char *const routes[] = {"/generate", "/v1/completions", "/v1/chat/completions"};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        struct reply r;
        char head[200];
        int fd = client_connect(daemon_.port);
        snprintf(
            head, sizeof head,
            "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n",
            routes[i]);
        cr_assert(client_puts(fd, head));
        cr_assert_eq(recv(fd, head, 12, MSG_PEEK | MSG_WAITALL), 12);
        cr_assert(!strncmp(head, "HTTP/1.1 503", 12), "the body was asked for: %.12s", head);
        client_read(fd, &r, false);
        cr_assert_not_null(reply_header(&r, "Retry-After"));
        free(expect_error(r, 503, "queue_full"));
        close(fd);
    }
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    wait_stat("requests.running", 0);
}

/* Requests that run for a while, so that there is a drain to be refused by. */
static void start_running(int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", "/generate", "", LONG);
    }
    wait_stat("requests.running", n);
}

DAEMON_TEST(many, a_drain_is_a_503_that_a_client_with_a_large_body_sees, SLOW)
{
    int fds[24];
    char *body = spaces(1u << 20);
    start_running(fds, 24);
    kill(daemon_.pid, SIGTERM);
    for (int status = 200; status == 200;) {
        struct reply r = get("/health");
        status = r.status;
        reply_free(&r);
    }
    for (int i = 0; i < 20; i++)
        free(expect_error(client_once_whole(daemon_.port, "/generate", body), 503, "draining"));
    for (int i = 0; i < 24; i++)
        close(fds[i]);
    free(body);
}

DAEMON_TEST(many, above_max_connections_a_client_with_a_large_body_sees_the_503, "--max-connections", "4")
{
    int fds[4];
    char *body = spaces(1u << 20);
    begin_four(fds);
    for (int i = 0; i < 20; i++)
        expect_words(client_once_whole(daemon_.port, "/generate", body), 503, "queue_full",
                     "max_connections");
    end_four(fds);
    free(body);
}

DAEMON_TEST(many, requests_that_find_a_free_slot_do_not_count_as_waiting, "--slots", "32", "--queue-limit",
            "4")
{
    int fds[24];
    for (int i = 0; i < 24; i++)
        fds[i] = client_connect(daemon_.port);
    for (int i = 0; i < 24; i++)
        client_request(fds[i], "POST", "/generate", "",
                       "{\"prompt\":\"Once\",\"max_tokens\":30,\"ignore_eos\":true}");
    for (int i = 0; i < 24; i++) {
        struct reply r;
        client_read(fds[i], &r, false);
        cr_assert_eq(r.status, 200, "request %d: %s", i, r.body);
        reply_free(&r);
        close(fds[i]);
    }
}

DAEMON_TEST(many, slots_and_queue_limit_together_are_accepted_at_once, SLOW, "--slots", "1", "--queue-limit",
            "2")
{
    int fds[3];
    struct reply r;
    for (int i = 0; i < 3; i++)
        fds[i] = client_connect(daemon_.port);
    for (int i = 0; i < 3; i++)
        client_request(fds[i], "POST", "/generate", "", LONG);
    wait_stat("requests.running", 1);
    wait_stat("requests.waiting", 2);
    r = post("/generate", "{\"prompt\":\"Once\"}");
    json_t *root = reply_json(&r);
    cr_assert_eq(json_number(root, "error.queue_depth"), 2);
    json_decref(root);
    free(expect_error(r, 503, "queue_full"));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    wait_stat("requests.running", 0);
}
