/* bench_load - clients for a hearthd that has more of them than it can serve, or that serves for long.
 *
 *   bench_load wave PORT N     N clients at once, each with a connection and one request of 16 tokens
 *
 *   bench_load soak PORT N C FIRST
 *       N requests, the first of them number FIRST, over C connections: whole replies, streams, several
 *       choices, long prompts that no cache has, bad input of every kind, streams that are left at their
 *       first text or before, and streams that a DELETE from another connection ends, likewise
 *
 * Prints what came as one line "sent .. ok .. refused .. left .. deleted .. wrong ..", and after a wave how
 * long the refused waited as they see it, from their connecting on. Ends with 1 when a reply is wrong: not
 * whole, not a status of its kind, a refusal without Retry-After. Nothing here asserts a time. One thread. */
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROOM        65536 /* of a reply */
#define LONG_TOKENS 500
#define LONG_EVERY  32

/* LEFT, DELETED: at the first text. LEFT_SOON, DELETED_SOON: as soon as the request is sent. DELETE ends
 * another client's. */
enum kind { WHOLE, STREAM, LEFT, LEFT_SOON, DELETED, DELETED_SOON, BAD, CHOICES, LONG, DELETE, KINDS };

struct client {
    int fd;
    enum kind kind;
    bool busy;
    unsigned long number;   /* of the request, in its X-Request-Id */
    struct client *deleter; /* sends the DELETE for us */
    bool deleted;           /* it has been told to */
    uint64_t began_ns;
    size_t n_in, sent, n_out;
    char in[ROOM], out[4096];
};

static struct {
    uint16_t port;
    int epoll;
    unsigned long first, to_send, sent, open, ok, refused, left, deleted, wrong;
    struct client *clients;
    double *refused_ms; /* [to_send] */
} l;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- connections ---- */

static void watch(struct client *c, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(l.epoll, EPOLL_CTL_MOD, c->fd, &e) < 0)
        die("epoll_ctl");
}

static void open_client(struct client *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(l.port)};
    struct epoll_event e = {.events = EPOLLOUT, .data.ptr = c};
    int on = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS)
        die("connect");
    if (epoll_ctl(l.epoll, EPOLL_CTL_ADD, c->fd, &e) < 0)
        die("epoll_ctl");
    l.open++;
}

static void close_client(struct client *c)
{
    close(c->fd);
    c->fd = -1;
    l.open--;
}

/* ---- a request ---- */

/* A prompt of its own each time, from its first tokens on, so that no cache has it. */
static const char *long_body(unsigned long number)
{
    static char body[8 * LONG_TOKENS];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\":2,\"prompt\":[5,%lu,%lu,%lu",
                                5 + number % 90, 5 + number / 90 % 90, 5 + number / 8100 % 90);
    for (unsigned i = 4; i < LONG_TOKENS; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, ",%lu", 5 + (number + i * 37) % 90);
    snprintf(body + n, sizeof body - n, "]}");
    return body;
}

/* The requests that must be refused, and how. */
static const struct bad {
    const char *request, *body;
    int status;
} bad[] = {
    {"POST /generate", "{\"prompt\":\"Once\",\"max_tokens\":8,\"temperature\":\"hot\"}", 400},
    {"POST /generate", "{\"prompt\":\"Once\",\"max_tok", 400},
    {"POST /generate", "{\"prompt\":[1,99999999]}", 400},
    {"POST /v1/chat/completions", "{\"messages\":[]}", 400},
    {"POST /nowhere", "{}", 404},
    {"PUT /generate", "{}", 405},
};

static const struct bad *bad_of(const struct client *c)
{
    return &bad[c->number / 16 % (sizeof bad / sizeof *bad)];
}

static void make_request(struct client *c)
{
    static const char *const bodies[KINDS] = {
        [WHOLE] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":16,\"ignore_eos\":true}",
        [STREAM] = "{\"prompt\":\"One day\",\"max_tokens\":8,\"ignore_eos\":true,\"stream\":true}",
        [LEFT] = "{\"prompt\":\"There was a\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":true}",
        [CHOICES] = "{\"prompt\":\"The cat\",\"max_tokens\":4,\"n\":2}"};
    bool to_end = c->kind == LEFT_SOON || c->kind == DELETED || c->kind == DELETED_SOON;
    const char *request = c->kind == BAD ? bad_of(c)->request : "POST /generate", *body = bodies[c->kind];
    body = c->kind == BAD    ? bad_of(c)->body
           : c->kind == LONG ? long_body(c->number)
           : to_end          ? bodies[LEFT]
                             : body;
    if (c->kind == DELETE)
        c->n_out =
            (size_t)snprintf(c->out, sizeof c->out,
                             "DELETE /requests/load-%lu HTTP/1.1\r\nHost: localhost\r\n\r\n", c->number);
    else
        c->n_out = (size_t)snprintf(c->out, sizeof c->out,
                                    "%s HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: load-%lu\r\n"
                                    "Content-Length: %zu\r\n\r\n%s",
                                    request, c->number, strlen(body), body);
    c->sent = c->n_in = 0;
    c->in[0] = '\0';
    c->busy = true;
    c->began_ns = clock_ns();
}

static void start(struct client *c, enum kind kind, unsigned long number)
{
    c->kind = kind;
    c->number = number;
    c->deleted = false;
    make_request(c);
    if (c->fd < 0)
        open_client(c);
    else
        watch(c, EPOLLOUT);
}

static void leave(struct client *c)
{
    l.left++;
    c->busy = false;
    close_client(c);
}

static void send_more(struct client *c)
{
    ssize_t n = send(c->fd, c->out + c->sent, c->n_out - c->sent, MSG_NOSIGNAL);
    if (n > 0)
        c->sent += (size_t)n;
    if (c->sent < c->n_out)
        return;
    watch(c, EPOLLIN);
    if (c->kind == DELETED_SOON)
        start(c->deleter, DELETE, c->number);
    else if (c->kind == LEFT_SOON)
        leave(c);
}

/* ---- its reply ---- */

static const char *header(const struct client *c, const char *name)
{
    const char *at = strstr(c->in, name), *end = strstr(c->in, "\r\n\r\n");
    return at && end && at < end ? at + strlen(name) : NULL;
}

/* All of it has come: by its length, or by the last chunk. */
static bool is_whole(const struct client *c)
{
    const char *body = strstr(c->in, "\r\n\r\n"), *length = header(c, "Content-Length: ");
    if (!body)
        return false;
    if (length)
        return c->n_in - (size_t)(body + 4 - c->in) >= strtoul(length, NULL, 10);
    return c->n_in >= 5 && !memcmp(c->in + c->n_in - 5, "0\r\n\r\n", 5);
}

static void wrong(struct client *c, const char *what)
{
    if (l.wrong++ < 5)
        fprintf(stderr, "%s: %.*s\n", what, (int)strcspn(c->in, "\r"), c->in);
}

static bool has(const struct client *c, const char *text)
{
    return strstr(c->in, text) != NULL;
}

/* A DELETE that comes when all is said finds nothing. */
static bool is_as_asked(const struct client *c, int status)
{
    switch (c->kind) {
    case BAD:
        return status == bad_of(c)->status && has(c, "\"error\":");
    case STREAM:
        return status == 200 && has(c, "data: [DONE]\n\n");
    case DELETED:
    case DELETED_SOON:
        return status == 499 ||
               (status == 200 && (has(c, "\"cancelled\"") || has(c, "\"finish_reason\":\"length\"")));
    case DELETE:
        return status == 202 || status == 404;
    default:
        return status == 200 && has(c, "\"finish_reason\":");
    }
}

static void judge(struct client *c)
{
    int status = atoi(c->in + strlen("HTTP/1.1 "));
    bool close_after = header(c, "Connection: close");
    c->busy = false;
    if (status == 503 && header(c, "Retry-After: ") && has(c, "\"code\":503"))
        l.refused_ms[l.refused++] = (double)(clock_ns() - c->began_ns) / 1e6;
    else if (!is_as_asked(c, status))
        wrong(c, "not what was asked for");
    else if (c->kind == DELETE)
        l.deleted += status == 202;
    else
        l.ok++;
    if (close_after)
        close_client(c);
}

static void read_more(struct client *c)
{
    ssize_t n = recv(c->fd, c->in + c->n_in, ROOM - 1 - c->n_in, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        if (c->busy)
            wrong(c, n ? strerror(errno) : "cut");
        c->busy = false;
        close_client(c);
        return;
    }
    c->n_in += (size_t)n;
    c->in[c->n_in] = '\0';
    if (c->kind == LEFT && has(c, "data: ")) {
        leave(c);
        return;
    }
    if (c->kind == DELETED && !c->deleted && has(c, "data: ")) {
        c->deleted = true;
        start(c->deleter, DELETE, c->number);
    }
    if (is_whole(c))
        judge(c);
}

static void handle(struct client *c, uint32_t events)
{
    if (c->sent < c->n_out && (events & (EPOLLOUT | EPOLLERR)))
        send_more(c);
    else
        read_more(c);
}

static void turn(void)
{
    struct epoll_event events[256];
    int n;
    while ((n = epoll_wait(l.epoll, events, 256, 600000)) < 0 && errno == EINTR) /* stopped meanwhile */
        ;
    if (n <= 0) {
        fprintf(stderr, "no news for ten minutes\n");
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        struct client *c = events[i].data.ptr;
        if (c->fd >= 0)
            handle(c, events[i].events);
    }
}

/* ---- ways to ask ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void wave(void)
{
    for (unsigned long i = 0; i < l.to_send; i++) {
        start(&l.clients[i], WHOLE, i);
        l.sent++;
    }
    while (l.ok + l.refused + l.wrong < l.sent)
        turn();
    qsort(l.refused_ms, l.refused, sizeof *l.refused_ms, compare);
    if (l.refused)
        printf("refused after ms, as clients see it: p50 %.1f p99 %.1f\n", l.refused_ms[l.refused / 2],
               l.refused_ms[l.refused * 99 / 100]);
}

static void start_next(struct client *c)
{
    static const enum kind mix[] = {WHOLE, WHOLE,   STREAM, WHOLE,   BAD, STREAM,    CHOICES, LEFT,
                                    WHOLE, DELETED, STREAM, CHOICES, BAD, LEFT_SOON, WHOLE,   DELETED_SOON};
    unsigned long number = l.first + l.sent++;
    start(c, number % LONG_EVERY == 0 ? LONG : mix[number % (sizeof mix / sizeof *mix)], number);
}

/* The second half of the clients sends the DELETEs for the first. */
static void soak(unsigned long n_clients)
{
    unsigned long n = n_clients / 2, busy = 1;
    for (unsigned long i = 0; i < n; i++)
        l.clients[i].deleter = &l.clients[n + i];
    while (busy) {
        for (unsigned long i = 0; i < n && l.sent < l.to_send; i++)
            if (!l.clients[i].busy && !l.clients[n + i].busy)
                start_next(&l.clients[i]);
        busy = 0;
        for (unsigned long i = 0; i < n_clients; i++)
            busy += l.clients[i].busy;
        if (busy)
            turn();
    }
}

int main(int argc, char **argv)
{
    bool soaking = argc == 6 && !strcmp(argv[1], "soak");
    if (!soaking && !(argc == 4 && !strcmp(argv[1], "wave"))) {
        fprintf(stderr, "usage: bench_load wave PORT N | soak PORT N C FIRST\n");
        return 2;
    }
    l.port = (uint16_t)atoi(argv[2]);
    l.to_send = strtoul(argv[3], NULL, 10);
    unsigned long n_clients = soaking ? 2 * strtoul(argv[4], NULL, 10) : l.to_send;
    l.first = soaking ? strtoul(argv[5], NULL, 10) : 0;
    struct rlimit files = {n_clients + 64, n_clients + 64};
    setrlimit(RLIMIT_NOFILE, &files);
    l.epoll = epoll_create1(EPOLL_CLOEXEC);
    l.clients = calloc(n_clients, sizeof *l.clients);
    l.refused_ms = calloc(l.to_send + 1, sizeof *l.refused_ms);
    if (l.epoll < 0 || !l.clients || !l.refused_ms)
        die("bench_load");
    for (unsigned long i = 0; i < n_clients; i++)
        l.clients[i].fd = -1;
    if (soaking)
        soak(n_clients);
    else
        wave();
    printf("sent %lu ok %lu refused %lu left %lu deleted %lu wrong %lu\n", l.sent, l.ok, l.refused, l.left,
           l.deleted, l.wrong);
    return l.wrong ? 1 : 0;
}
