/* What a connection may hold of the server: memory for a body, a place among max_connections, and its own
 * place when another connection needs one. */
#include "http.h"
#include "server_driver.h"

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
    for (const struct request *r = f.server->requests; r; r = r->next)
        n_halves += r->body_seen == strlen(PART);
    body_bytes = f.server->body_bytes;
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
