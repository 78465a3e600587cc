/* The resources of the server that a connection may hold: memory for a body, a place among max_connections,
 * and its own place when another connection needs one. */
#include "http/http.h"
#include "service/server_private.h"
#include "support/server_driver.h"

/* --- bodies --- */

#define PART "0123456789abcdef" /* of a body of twice as many bytes */
#define USER "x-api-key: sesame\r\n"
#define BOSS "x-api-key: master\r\n"

static const struct bodied {
    const char *method, *path, *headers;
    int status;
} bodied[] = {
    {"OPTIONS", "/generate", "", 204},
    {"OPTIONS", "/admin/model", "", 204},
    {"OPTIONS", "*", "", 204},
    {"OPTIONS", "/nowhere", "", 404},
    {"OPTIONS", "/generate", "Expect: 100-continue\r\n", 204},
    {"GET", "/health", "", 200},
    {"HEAD", "/health", "", 200},
    {"GET", "/generate", USER, 405},
    {"GET", "/v1/models", USER, 200},
    {"GET", "/admin/model", BOSS, 404}, /* without a server_admin there are no models to swap */
    {"HEAD", "/admin/model", BOSS, 404},
    {"POST", "/admin/suspend", BOSS, 404},
    {"POST", "/admin/resume", BOSS, 404},
    {"DELETE", "/requests/x", USER, 404},
    {"DELETE", "/generate", USER, 405},
    {"PUT", "/generate", USER, 405},
    {"PATCH", "/admin/model", BOSS, 405},
    {"POST", "/nowhere", USER, 404},
    {"POST", "/health", "", 405},
    {"POST", "/generate", "", 401},
    {"POST", "/admin/model", USER, 401},
    {"POST", "/generate", USER "Content-Type: text/plain\r\n", 415},
    {"POST", "/generate", USER "Content-Encoding: gzip\r\n", 415},
};
#define N_BODIED (sizeof bodied / sizeof *bodied)

/* The headers and the first half of the body. */
static int send_half(const struct bodied *b, bool chunked)
{
    char text[512];
    int fd = client_connect(f.port);
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n\r\n%s" PART, b->method,
             b->path, b->headers, chunked ? "Transfer-Encoding: chunked" : "Content-Length: 32",
             chunked ? "20\r\n" : "");
    cr_assert(client_puts(fd, text));
    return fd;
}

static void expect_whole(const struct bodied *b, bool chunked, int fd)
{
    struct reply r;
    cr_assert(client_puts(fd, chunked ? PART "\r\n0\r\n\r\n" : PART));
    client_read(fd, &r, !strcmp(b->method, "HEAD"));
    cr_assert_eq(r.status, b->status, "%s %s gave %d: %s", b->method, b->path, r.status, r.body);
    reply_free(&r);
    close(fd);
}

static unsigned n_halves;
static uint64_t body_bytes;

static void count_halves(void)
{
    n_halves = 0;
    for (const struct request *r = LIST_FIRST(&f.server->http.requests); r; r = LIST_NEXT(r, link))
        n_halves += r->body_seen == strlen(PART);
    body_bytes = f.server->http.body_bytes;
}

static void expect_nothing_kept(bool chunked)
{
    int fds[N_BODIED];
    for (size_t i = 0; i < N_BODIED; i++)
        fds[i] = send_half(&bodied[i], chunked);
    for (n_halves = 0; n_halves < N_BODIED; usleep(1000))
        on_loop(count_halves);
    cr_assert_eq(body_bytes, 0, "%llu bytes are kept", (unsigned long long)body_bytes);
    for (size_t i = 0; i < N_BODIED; i++)
        expect_whole(&bodied[i], chunked, fds[i]);
}

/* A server with a key for users and one for administrators. */
static void start_locked(const char *const *keys)
{
    const char *all[16] = {"api_keys", "sesame", "admin_key_file"};
    char path[40];
    int fd = memfd_create("key", MFD_CLOEXEC);
    cr_assert_eq(write(fd, "master\n", 7), 7);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    all[3] = path;
    for (size_t n = 4; keys && *keys; n++)
        all[n] = *keys++;
    start_keys(all);
    close(fd);
}

#define LOCKED_TEST(suite, name, ...)                                                                        \
    static void suite##_##name(void);                                                                        \
    Test(suite, name)                                                                                        \
    {                                                                                                        \
        start_locked((const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL});                                     \
        suite##_##name();                                                                                    \
        stop();                                                                                              \
    }                                                                                                        \
    static void suite##_##name(void)

LOCKED_TEST(body, is_kept_of_no_request_that_does_not_use_it)
{
    expect_nothing_kept(false);
    expect_nothing_kept(true);
}

LOCKED_TEST(body, of_others_leaves_body_memory_to_who_has_a_key, "body_memory", "4K")
{
    int fds[20];
    for (int i = 0; i < 20; i++)
        fds[i] = send_half(&bodied[0], false);
    for (n_halves = 0; n_halves < 20; usleep(1000))
        on_loop(count_halves);
    struct reply r = client_once(f.port, "POST", "/generate", USER, "{\"prompt\":\"Once\"}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
}

static const char *const bodiless[] = {"GET", "HEAD", "OPTIONS", "DELETE"};

SERVER_TEST(body, that_a_method_has_no_use_for_is_refused_when_it_is_long)
{
    for (size_t i = 0; i < sizeof bodiless / sizeof *bodiless; i++) {
        char text[256];
        struct reply r;
        int fd = client_connect(f.port);
        snprintf(text, sizeof text, "%s /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 65537\r\n\r\n",
                 bodiless[i]);
        client_puts(fd, text);
        client_read(fd, &r, i == 1);
        cr_assert_eq(r.status, 413, "%s: %d", bodiless[i], r.status);
        reply_free(&r);
        close(fd);
    }
}

SERVER_TEST(body, that_a_method_has_no_use_for_is_cut_when_it_goes_on)
{
    char kilobyte[1025];
    memset(kilobyte, ' ', 1024);
    kilobyte[1024] = '\0';
    for (size_t i = 0; i < sizeof bodiless / sizeof *bodiless; i++) {
        char byte, head[256];
        int n = 0, fd = client_connect(f.port);
        snprintf(head, sizeof head,
                 "%s /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", bodiless[i]);
        client_puts(fd, head);
        while (n < 20000 && client_puts(fd, "400\r\n") && client_puts(fd, kilobyte) &&
               client_puts(fd, "\r\n"))
            n++;
        cr_assert_lt(n, 20000, "%s: it is read", bodiless[i]);
        cr_assert_leq(recv(fd, &byte, 1, 0), 0, "%s: it was answered", bodiless[i]);
        close(fd);
    }
}

/* --- time that is not the client's --- */

static uint32_t n_open, n_in[CONNECTION_STATES];

static void count_connections(void)
{
    n_open = f.server->http.n_connections;
    for (int i = 0; i < CONNECTION_STATES; i++)
        n_in[i] = f.server->http.connections[i].n;
}

static void wait_open(uint32_t n)
{
    for (int left = 60000; on_loop(count_connections), n_open != n; left--) {
        cr_assert_gt(left, 0, "%u connections, not %u, are open", n_open, n);
        usleep(1000);
    }
}

#define HELD_UP_US 2500000 /* longer than the header_timeout_ms of these tests */

static void expect_answer(int fd)
{
    struct reply r;
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "it was cut");
    reply_free(&r);
    close(fd);
}

static void send_and_hold_up(void)
{
    client_request(f.client, "GET", "/health", "", NULL);
    usleep(HELD_UP_US);
}

SERVER_TEST(connection, is_not_cut_for_headers_that_came_while_the_loop_was_held_up, "header_timeout_ms",
            "2000")
{
    f.client = client_connect(f.port);
    wait_open(1);
    on_loop(send_and_hold_up);
    expect_answer(f.client);
}

static void accept_after_hold_up(void)
{
    f.client = client_connect(f.port);
    usleep(HELD_UP_US);
    listener_run(&f.server->http.listeners[0]);
}

SERVER_TEST(connection, has_its_time_from_when_it_is_accepted, "header_timeout_ms", "2000")
{
    on_loop(accept_after_hold_up);
    wait_open(1);
    client_request(f.client, "GET", "/health", "", NULL);
    expect_answer(f.client);
}

/* --- places --- */

static void wait_connections(enum connection_state state, uint32_t n)
{
    for (int left = 60000; on_loop(count_connections), n_in[state] != n; left--) {
        cr_assert_gt(left, 0, "%u connections, not %u, are in state %d", n_in[state], n, state);
        usleep(1000);
    }
}

static void expect_status(const char *method, const char *path, const char *headers, const char *body,
                          int status)
{
    struct reply r = client_once(f.port, method, path, headers, body);
    cr_assert_eq(r.status, status, "%s %s gave %d: %s", method, path, r.status, r.body);
    reply_free(&r);
}

#define ONCE "{\"prompt\":\"Once\"}"

/* Asks for more than the buffers of both sides hold, and reads nothing of it. */
static int ask_for_pages(const char *id)
{
    char header[64];
    int fd = client_connect_narrow(f.port);
    snprintf(header, sizeof header, "X-Request-Id: %s\r\n", id);
    for (int i = 0; i < 20; i++)
        cr_assert(client_request(fd, "GET", "/", header, NULL));
    return fd;
}

/* The ways that a client without a key has to hold a connection. */
static int hold_without_key(int way)
{
    static const char *const halves[] = {
        "",
        "GET /generate HTT",
        "POST /generate HTTP/1.1\r\nHost: local",
        "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        "OPTIONS /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"};
    struct reply r;
    int n = sizeof halves / sizeof *halves;
    if (way % (n + 2) == n)
        return ask_for_pages("page");
    int fd = client_connect(f.port);
    if (way % (n + 2) < n) {
        client_puts(fd, halves[way % (n + 2)]);
        return fd;
    }
    client_request(fd, "GET", "/health", "", NULL);
    client_read(fd, &r, false);
    reply_free(&r);
    return fd;
}

/* As many as may be busy, and then more than can be open at all. */
LOCKED_TEST(place, is_taken_by_no_client_without_a_key, "max_connections", "8")
{
    int fds[100];
    for (int i = 0; i < 100; i++) {
        fds[i] = hold_without_key(i);
        if (i % 8 == 7)
            expect_status("POST", "/generate", USER, ONCE, 200);
    }
    for (int i = 0; i < 100; i++)
        close(fds[i]);
}

/* As a pool of connections does it. */
SERVER_TEST(place, may_be_taken_by_every_connection_that_is_open, "max_connections", "2")
{
    struct reply r;
    int fds[10];
    for (int i = 0; i < 10; i++)
        fds[i] = client_connect(f.port);
    for (int i = 0; i < 30; i++) {
        client_request(fds[i % 10], "POST", "/generate", "", ONCE);
        client_read(fds[i % 10], &r, false);
        cr_assert_eq(r.status, 200, "%d: %s", r.status, r.raw);
        reply_free(&r);
    }
    for (int i = 0; i < 10; i++)
        close(fds[i]);
}

static int generate_held(const char *id)
{
    char header[64];
    int fd = client_connect(f.port);
    unsigned before = fake.n_submitted;
    snprintf(header, sizeof header, "X-Request-Id: %s\r\n", id);
    client_request(fd, "POST", "/generate", header, ONCE);
    cr_assert(wait_for(&fake.n_submitted, before + 1));
    return fd;
}

SERVER_TEST(place, is_held_while_a_request_waits_and_a_cancel_returns_it, "max_connections", "2")
{
    fake.hold = true;
    int a = generate_held("a"), b = generate_held("b");
    struct reply r = post("/generate", ONCE);
    cr_assert_str_eq(reply_header(&r, "Connection"), "close");
    cr_assert_not_null(reply_header(&r, "Retry-After"));
    expect_words(r, 503, "queue_full", "2 connections have a request in progress, max_connections is 2");
    expect_status("GET", "/health", "", NULL, 200);
    expect_status("GET", "/requests", "", NULL, 200);
    expect_status("OPTIONS", "/generate", "", NULL, 204);
    expect_status("DELETE", "/requests/a", "", NULL, 202);
    wait_connections(CONNECTION_BUSY, 1);
    close(b);
    wait_connections(CONNECTION_BUSY, 0);
    fake.hold = false;
    expect_status("POST", "/generate", "", ONCE, 200);
    close(a);
}

/* {"content":"1 1 1 ..."}: 400 KB, whose tokens are 1.4 MB of text. */
static char *long_content(void)
{
    size_t n = 200000;
    char *body = malloc(2 * n + 40), *at = stpcpy(body, "{\"content\":\"");
    for (size_t i = 0; i < n; i++)
        at = stpcpy(at, "1 ");
    strcpy(at, "\"}");
    return body;
}

/* Its long reply is not read. */
static int tokenise(const char *headers)
{
    char *body = long_content();
    int fd = client_connect_narrow(f.port);
    cr_assert(client_request(fd, "POST", "/tokenize", headers, body));
    free(body);
    return fd;
}

SERVER_TEST(place, is_given_back_before_a_whole_reply_is_read, "max_connections", "1")
{
    int fd = tokenise("");
    wait_connections(CONNECTION_REPLYING, 1);
    expect_status("POST", "/generate", "", ONCE, 200);
    close(fd);
}

#define LONG_STREAM                                                                                          \
    "{\"prompt\":\"Once\",\"stream\":true,\"ignore_eos\":true,\"logprobs\":20,\"max_tokens\":250}"

/* More than the buffers of both sides hold: 250 tokens with 20 alternatives each. */
static int stream_long(void)
{
    fake.n_script = 256;
    for (uint32_t i = 0; i < fake.n_script; i++)
        fake.script[i] = fake.script[0];
    int fd = client_connect_narrow(f.port);
    client_request(fd, "POST", "/generate", "", LONG_STREAM);
    return fd;
}

SERVER_TEST(place, is_given_back_when_a_stream_is_whole_though_it_is_not_read, "max_connections", "1")
{
    int fd = stream_long();
    wait_connections(CONNECTION_REPLYING, 1);
    fake.n_script = 3;
    expect_status("POST", "/generate", "", ONCE, 200);
    close(fd);
}

SERVER_TEST(place, is_given_back_when_a_body_is_too_large_to_be_kept, "max_connections", "1", "max_body",
            "1K")
{
    char text[2000];
    int fd = client_connect(f.port);
    memset(text, ' ', sizeof text);
    text[sizeof text - 1] = '\0';
    client_puts(fd,
                "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n");
    client_puts(fd, text);
    wait_connections(CONNECTION_DISCARDING, 1);
    expect_status("POST", "/generate", "", ONCE, 200);
    close(fd);
}

/* --- room --- */

/* max_connections is 4 in what follows: from so many on a new connection closes another. */
#define FULL (4 + SPARE_CONNECTIONS - 8)

static bool has_come;
static const char *expected_id;

static void look_for_id(void)
{
    for (const struct request *r = LIST_FIRST(&f.server->http.requests); r; r = LIST_NEXT(r, link))
        has_come |= !strcmp(r->id, expected_id);
}

/* One more that does not read comes, and is answered as far as it goes. */
static int crowd(const char *id)
{
    int fd = ask_for_pages(id);
    expected_id = id;
    for (has_come = false; !has_come; usleep(1000))
        on_loop(look_for_id);
    wait_connections(CONNECTION_REPLYING, FULL);
    return fd;
}

static void expect_whole_list(int fd, struct reply *r)
{
    while (!r->raw || !strstr(r->raw + (r->raw_len > 8 ? r->raw_len - 8 : 0), "]}\n"))
        cr_assert(reply_more(r, fd), "it was cut after %zu bytes", r->raw_len);
    cr_assert(!strncmp(r->raw, "HTTP/1.1 200", 12), "%.300s", r->raw);
    reply_free(r);
    close(fd);
}

static uint64_t newest_ns;

static void read_newest(void)
{
    newest_ns =
        TAILQ_LAST(&f.server->http.connections[CONNECTION_REPLYING].queue, connection_queue)->moved_ns;
}

/* Reads until libmicrohttpd takes the next piece. */
static void read_a_piece(int fd, struct reply *r)
{
    on_loop(read_newest);
    for (uint64_t before = newest_ns; newest_ns == before; on_loop(read_newest))
        cr_assert(reply_more(r, fd), "it was cut after %zu bytes", r->raw_len);
}

SERVER_TEST(room, is_made_by_who_does_not_read_before_who_reads, "max_connections", "4")
{
    struct reply r = {0};
    static const char *const late[] = {"a", "b", "c", "d", "e", NULL};
    int fds[FULL + 5], n = 0, reader = tokenise("");
    wait_connections(CONNECTION_REPLYING, 1);
    while (n < FULL - 1)
        fds[n++] = ask_for_pages("page");
    wait_connections(CONNECTION_REPLYING, FULL);
    for (const char *const *id = late; *id; id++) {
        read_a_piece(reader, &r);
        fds[n++] = crowd(*id);
    }
    expect_whole_list(reader, &r);
    while (n)
        close(fds[--n]);
}

LOCKED_TEST(room, is_not_made_by_a_reply_to_a_key_for_clients_without_one, "max_connections", "4")
{
    struct reply r = {0};
    int fds[FULL + 20], n = 0, keyed = tokenise(USER);
    wait_connections(CONNECTION_KEYED, 1);
    while (n < FULL + 20)
        fds[n++] = ask_for_pages("page");
    wait_connections(CONNECTION_REPLYING, FULL - 1);
    expect_status("GET", "/health", "", NULL, 200);
    expect_whole_list(keyed, &r);
    while (n)
        close(fds[--n]);
}

static void expect_end(int fd, const char *end)
{
    struct reply r = {0};
    while (!r.raw || !strstr(r.raw, end))
        cr_assert(reply_more(&r, fd), "it was cut after %zu bytes", r.raw_len);
    cr_assert(!strncmp(r.raw, "HTTP/1.1 200", 12), "%.300s", r.raw);
    reply_free(&r);
    close(fd);
}

SERVER_TEST(room, is_not_made_by_what_comes_in_waits_or_runs, "max_connections", "4")
{
    int fds[FULL + 40];
    fake.finish = ENGINE_RUNNING; /* a stream goes on after its 250 tokens */
    int sending = client_connect(f.port), running = stream_long();
    client_puts(sending, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{");
    cr_assert(wait_for(&fake.n_tokens, 249));
    fake.hold = true;
    int waiting = generate_held("w");
    wait_connections(CONNECTION_BUSY, 3);
    for (int i = 0; i < FULL + 40; i++)
        fds[i] = hold_without_key(i);
    expect_status("GET", "/health", "", NULL, 200);
    wait_connections(CONNECTION_BUSY, 4); /* one of those that came sends a body, too */
    fake.finish = ENGINE_EOS;
    fake.n_script = 3;
    fake.hold = false;
    client_puts(sending, "\"content\":\"a\"}");
    expect_end(sending, "]}");
    expect_end(waiting, "\"finish_reason\"");
    expect_end(running, "[DONE]");
    for (int i = 0; i < FULL + 40; i++)
        close(fds[i]);
}
