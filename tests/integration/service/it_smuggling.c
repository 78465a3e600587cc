/* Requests whose end two parsers in a row could see at different places, sent as raw bytes: to the daemon
 * itself, which refuses them and closes the connection, and through HAProxy with the shipped configuration,
 * where both must have seen the same requests. In each a second request, GET /smuggled, stands where the
 * first may end. */
#include "integration/harness.h"
#include "support/listen.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define POST   "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
#define BODY   "{\"content\":\"a\"}" /* 15 bytes */
#define HIDDEN "GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define CHUNKS "Transfer-Encoding: chunked\r\n\r\n"
#define TEXT(s)                                                                                              \
    {                                                                                                        \
        s, sizeof(s) - 1                                                                                     \
    }

struct attack {
    const char *bytes;
    size_t n;
};

/* One refusal, then the end of the connection. */
static const struct attack refused[] = {
    /* two lengths */
    TEXT(POST "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Content-Length: 15\r\nContent-Length: 0\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 0\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 15\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    /* a length that is no number */
    TEXT(POST "Content-Length: 15, 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: +15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: -1\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 0xf\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 1 5\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: \r\n\r\n" HIDDEN),
    TEXT(POST "Content-Length: 15abc\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 18446744073709551631\r\n\r\n" BODY HIDDEN), /* 2^64 + 15 */
    /* a length that one of the two does not see */
    TEXT(POST "Content-Length : 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST " Content-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "X-A: b\r\n Content-Length: 15\r\n\r\n" HIDDEN),
    TEXT(POST "X-A: b\rContent-Length: 15\r\n\r\n" HIDDEN),
    TEXT(POST "X-A: b\rTransfer-Encoding: chunked\r\n\r\n" HIDDEN),
    TEXT(POST "Content-Length\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT("POST /tokenize HTTP/1.1\r\n Host: localhost\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    /* codings */
    TEXT(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" HIDDEN),
    /* chunks */
    TEXT(POST CHUNKS "fffffffffffffffff\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "1000000000000000f\r\n" BODY "\r\n0\r\n\r\n" HIDDEN), /* 2^64 + 15 */
    TEXT(POST CHUNKS "-1\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "0xf\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "f \r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS " f\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "f\r\n" BODY "XX0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    /* who is meant */
    TEXT("GET /health HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n" HIDDEN),
    TEXT("GET /health HTTP/1.1\r\n\r\n" HIDDEN),
};

/* Two requests, whole and one after the other: RFC 9112 lets a server take a bare LF as a line's end, and
 * libmicrohttpd does. It ends a value at a NUL and says nothing of it, as if what stands behind were not
 * there. A proxy that hands on what it does not understand is not safe in front of it; HAProxy refuses a NUL
 * where a request's end is told. */
static const struct attack taken[] = {
    TEXT(POST "Content-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length:\t15\r\n\r\n" BODY HIDDEN),
    TEXT(POST CHUNKS "f;a=b\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "f\r\n" BODY "\r\n0\r\nContent-Length: 50\r\nHost: evil.example\r\n\r\n" HIDDEN),
    TEXT("POST /tokenize HTTP/1.1\nHost: localhost\nContent-Length: 15\n\n" BODY HIDDEN),
    TEXT(POST "X-A: b\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "X-A: b\0c\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Content-Length: 15\0"
              "9\r\n\r\n" BODY HIDDEN),
    TEXT(POST "Transfer-Encoding: chunked\0x\r\n\r\nf\r\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT("POST /tokenize HTTP/1.1\r\nHost: localhost\0.example\r\nContent-Length: 15\r\n\r\n" BODY HIDDEN),
    TEXT(POST CHUNKS "f;a\n" BODY "\r\n0\r\n\r\n" HIDDEN),
    TEXT(POST CHUNKS "f\n" BODY "\n0\n\n" HIDDEN),
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* All that comes until the connection ends, which our half-close allows it to. */
static struct reply send_raw(uint16_t port, const struct attack *a)
{
    struct reply r = {0};
    int fd = client_connect(port);
    client_send(fd, a->bytes, a->n);
    shutdown(fd, SHUT_WR);
    while (reply_more(&r, fd))
        ;
    close(fd);
    return r;
}

static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    for (const char *at = text; at && (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

DAEMON_TEST(smuggling, what_is_ambiguous_is_refused_and_ends_the_connection)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct reply r = send_raw(daemon_.port, &refused[i]);
        cr_assert(r.raw && !strncmp(r.raw, "HTTP/1.1 4", 10), "%s\ngave\n%s", refused[i].bytes, r.raw);
        cr_assert_null(strstr(r.raw, "smuggled"), "%s\ngave\n%s", refused[i].bytes, r.raw);
        reply_free(&r);
    }
    char *log = daemon_read_log();
    cr_assert_null(strstr(log, "smuggled"), "%s", log);
    free(log);
}

DAEMON_TEST(smuggling, a_missing_host_and_a_blank_in_the_path_get_one_reply_in_our_words)
{
    static const struct attack strange[] = {TEXT("GET /health HTTP/1.1\r\n\r\n" HIDDEN),
                                            TEXT("GET /health HTTP/1.1 HTTP/1.1\r\nHost: localhost\r\n\r\n")};
    static const char *const words[] = {"HTTP/1.1 without a Host is not accepted",
                                        "no route /health HTTP/1.1"};
    for (size_t i = 0; i < COUNT(strange); i++) {
        struct reply r = {0};
        int fd = client_connect(daemon_.port);
        client_send(fd, strange[i].bytes, strange[i].n);
        while (!r.raw || !strstr(r.raw, "}}\n"))
            cr_assert(reply_more(&r, fd), "%s\ngave\n%s", strange[i].bytes, r.raw);
        cr_assert(strstr(r.raw, words[i]) && count(r.raw, "\r\nDate: ") == 1, "%s", r.raw);
        reply_free(&r);
        close(fd);
    }
    struct reply r = {0}; /* to HTTP/1.0 a Host is unknown */
    int fd = client_connect(daemon_.port);
    cr_assert(client_puts(fd, "GET /health HTTP/1.0\r\n\r\n"));
    while (reply_more(&r, fd))
        ;
    cr_assert(r.raw && !strncmp(r.raw, "HTTP/1.1 200", 12), "%s", r.raw);
    reply_free(&r);
    close(fd);
}

/* A half-close is a leaving, so the connection stays open here until both replies have come. */
DAEMON_TEST(smuggling, what_is_clear_is_two_requests)
{
    for (size_t i = 0; i < COUNT(taken); i++) {
        struct reply r = {0};
        int fd = client_connect(daemon_.port);
        client_send(fd, taken[i].bytes, taken[i].n);
        while (!r.raw || !strstr(r.raw, "no route /smuggled"))
            cr_assert(reply_more(&r, fd), "%zu: %s\ngave\n%s", i, taken[i].bytes, r.raw);
        cr_assert_eq(count(r.raw, "HTTP/1.1 "), 2, "%zu: %s", i, r.raw);
        cr_assert(!strncmp(r.raw, "HTTP/1.1 200", 12), "%zu: %s", i, r.raw);
        reply_free(&r);
        close(fd);
    }
}

DAEMON_TEST(smuggling, endless_chunk_extensions_are_cut, "--body-timeout-ms", "1000")
{
    static char rubbish[300000];
    int fd = client_connect(daemon_.port);
    memset(rubbish, 'x', sizeof rubbish);
    client_puts(fd, POST CHUNKS "f;");
    client_send(fd, rubbish, sizeof rubbish);
    struct reply r = {0};
    while (reply_more(&r, fd))
        ;
    cr_assert(!r.raw || !strstr(r.raw, "HTTP/1.1 200"), "%s", r.raw);
    reply_free(&r);
    close(fd);
}

/* --- behind HAProxy --- */

static uint16_t free_port(void)
{
    uint16_t port;
    close(listen_loopback(&port));
    return port;
}

/* The shipped configuration, with one server and our ports. */
static void write_config(const char *path, uint16_t front)
{
    char command[600];
    snprintf(command, sizeof command,
             "sed -e 's|bind :8000|bind 127.0.0.1:%u|' -e 's|server one .*|server one 127.0.0.1:%u|'"
             " -e '/server two/d; /server three/d; /stats socket/d' %s/config/haproxy.cfg >%s",
             front, daemon_.port, HEARTH_SOURCE_DIR, path);
    cr_assert_eq(system(command), 0);
}

static pid_t start_haproxy(const char *config, int log)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        execlp("haproxy", "haproxy", "-f", config, NULL);
        _exit(127);
    }
    return pid;
}

static bool is_served(uint16_t port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bool open = connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    close(fd);
    if (!open)
        return false;
    struct reply r = client_once(port, "POST", "/tokenize", "", BODY);
    open = r.status == 200;
    reply_free(&r);
    return open;
}

static char *read_all(int fd)
{
    struct stat st;
    fstat(fd, &st);
    char *text = calloc(1, (size_t)st.st_size + 1);
    cr_assert_eq(pread(fd, text, (size_t)st.st_size, 0), st.st_size);
    return text;
}

/* A half-close is a leaving, to HAProxy too. */
static void send_open(uint16_t port, const struct attack *a)
{
    struct reply r = {0};
    int fd = client_connect(port);
    client_send(fd, a->bytes, a->n);
    while ((!r.raw || !strstr(r.raw, "no route /smuggled")) && reply_more(&r, fd))
        ;
    reply_free(&r);
    close(fd);
}

/* The daemon has seen the hidden request no more often than HAProxy sent it, which HAProxy writes down when
 * the client's connection has ended: perhaps a moment after the mark. */
static void expect_same(uint16_t front, int log)
{
    struct reply last = client_once(front, "GET", "/mark", "", NULL); /* the daemon has all before it */
    cr_assert_eq(last.status, 404);
    reply_free(&last);
    char *ours = daemon_read_log();
    unsigned sent = count(ours, "smuggled");
    for (int left = 300000;; left--) {
        char *theirs = read_all(log);
        bool same = sent <= count(theirs, "/smuggled ");
        cr_assert(same || left, "%s\n%s", ours, theirs);
        free(theirs);
        if (same)
            break;
        usleep(1000);
    }
    free(ours);
}

DAEMON_TEST(smuggling, behind_haproxy_both_see_the_same_requests)
{
    if (system("command -v haproxy >/dev/null")) {
        printf("SKIP smuggling haproxy: not installed (package haproxy)\n");
        return;
    }
    char config[] = "/tmp/hearth-haproxy-XXXXXX";
    int fd = mkstemp(config), log = memfd_create("haproxy", MFD_CLOEXEC);
    uint16_t front = free_port();
    write_config(config, front);
    pid_t haproxy = start_haproxy(config, log);
    for (int i = 0; i < 1000 && !is_served(front); i++)
        usleep(20000);
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct reply r = send_raw(front, &refused[i]);
        reply_free(&r);
        expect_same(front, log);
    }
    for (size_t i = 0; i < COUNT(taken); i++) {
        send_open(front, &taken[i]);
        expect_same(front, log);
    }
    char *ours = daemon_read_log();
    cr_assert_geq(count(ours, "smuggled"), 3, "those that are two requests are two");
    free(ours);
    kill(haproxy, SIGKILL);
    waitpid(haproxy, NULL, 0);
    unlink(config);
    close(fd);
    close(log);
}
