/* bench_hops_client.c - the client of bench --hops. While a stream comes it only reads and looks at the
 * clock; what was read is taken apart afterwards. */
#include "base/clock.h"
#include "bench_hops.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROOM 65536 /* bytes read at once */

/* ---- a stream ---- */

static int dial(uint16_t port, struct error *err)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&addr, sizeof addr) < 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        return error_set(err, -EIO, "--hops: 127.0.0.1:%u: %s", port, strerror(code));
    }
    return fd;
}

static int send_all(int fd, const char *bytes, size_t n, struct error *err)
{
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            return error_set(err, -EIO, "--hops: the request could not be sent: %s", strerror(errno));
        bytes += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return 0;
}

static int ask(int fd, const char *body, struct error *err)
{
    char head[256];
    int n = snprintf(head, sizeof head,
                     "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                     strlen(body));
    int rc = send_all(fd, head, (size_t)n, err);
    return rc < 0 ? rc : send_all(fd, body, strlen(body), err);
}

static void reply_close(struct hops_reply *r)
{
    free(r->bytes);
    free(r->arrivals);
    *r = (struct hops_reply){0};
}

/* Makes room for one more arrival; in steps, so that it costs nothing between most of them. */
static int reserve(struct hops_reply *r, size_t *room, size_t *n_room, struct error *err)
{
    if (*room - r->n >= ROOM && r->n_arrivals < *n_room)
        return 0;
    size_t bytes = 2 * *room + 16 * ROOM, n = 2 * *n_room + 4096;
    char *p = realloc(r->bytes, bytes);
    r->bytes = p ? p : r->bytes;
    struct hops_arrival *a = p ? realloc(r->arrivals, n * sizeof *a) : NULL;
    r->arrivals = a ? a : r->arrivals;
    if (!a)
        return error_set(err, -ENOMEM, "out of memory");
    *room = bytes;
    *n_room = n;
    return 0;
}

/* Reads until the server closes. */
static int take(int fd, struct hops_reply *r, struct error *err)
{
    size_t room = 0, n_room = 0;
    int rc;
    while ((rc = reserve(r, &room, &n_room, err)) == 0) {
        ssize_t n = recv(fd, r->bytes + r->n, ROOM, 0);
        uint64_t now = clock_ns();
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, -EIO, "--hops: the reply could not be read: %s", strerror(errno));
        if (n == 0)
            return 0;
        r->n += (size_t)n;
        r->arrivals[r->n_arrivals++] = (struct hops_arrival){r->n, now};
    }
    return rc;
}

int hops_client_run(struct hops_client *c, struct error *err)
{
    int rc = 0;
    c->n_bytes = 0;
    for (uint32_t i = 0; i < c->n_streams && rc == 0; i++) {
        struct hops_reply reply = {0};
        int fd = dial(c->port, err);
        rc = fd < 0 ? fd : ask(fd, c->body, err);
        if (rc == 0)
            rc = take(fd, &reply, err);
        if (fd >= 0)
            close(fd);
        if (rc == 0)
            rc = hops_reply_read(&reply, c->n_tokens, c->n_bytes, c->reads + (size_t)i * c->n_tokens,
                                 &c->n_bytes, err);
        reply_close(&reply);
    }
    return rc;
}

/* ---- what it says ---- */

struct reader {
    const struct hops_reply *reply;
    size_t arrival;  /* the first that may have the byte that is looked for */
    char *body;      /* without the marks of chunks, up to here: */
    size_t n, event; /* `event` begins there */
    uint64_t n_before;
    struct hops_read *reads;
    uint32_t n_reads, n_tokens; /* tokens found, and expected */
    bool done;                  /* the stream's last event was there */
};

static int broken(struct error *err, const char *why)
{
    return error_set(err, -EIO, "--hops: the reply is no stream of events: %s", why);
}

/* When byte `at` of the reply was there. */
static uint64_t arrived_ns(struct reader *r, size_t at)
{
    while (r->reply->arrivals[r->arrival].end <= at)
        r->arrival++;
    return r->reply->arrivals[r->arrival].ns;
}

/* The tokens of an event have one time; those before the last had to wait for text, and all of the event
 * that ends the stream. */
static int take_tokens(struct reader *r, const json_t *event, uint64_t ns, struct error *err)
{
    size_t n = json_array_size(json_object_get(event, "tokens"));
    bool last = json_object_get(event, "finish_reason") != NULL;
    if (n > r->n_tokens - r->n_reads)
        return error_set(err, -EIO, "--hops: the stream has more than the %u tokens asked for", r->n_tokens);
    for (size_t i = 0; i < n; i++)
        r->reads[r->n_reads++] =
            (struct hops_read){.ns = ns, .n_bytes = r->n_before + r->event, .held = last || i + 1 < n};
    return 0;
}

/* An event that ended with byte `at` of the reply. */
static int take_event(struct reader *r, const char *text, size_t n, size_t at, struct error *err)
{
    static const char data[] = "data: ", end[] = "data: [DONE]";
    if (n >= strlen(end) && memcmp(text, end, strlen(end)) == 0) {
        r->done = true;
        return 0;
    }
    if (n < strlen(data) || memcmp(text, data, strlen(data)) != 0)
        return *text == ':' ? 0 : error_set(err, -EIO, "--hops: the server answers: %.*s", (int)n, text);
    json_t *event = json_loadb(text + strlen(data), n - strlen(data), 0, NULL);
    int rc = event ? take_tokens(r, event, arrived_ns(r, at), err) : broken(err, "an event is no JSON");
    json_decref(event);
    return rc;
}

/* Takes a chunk, which begins at byte `at` of the reply, and the events that it completes. */
static int take_chunk(struct reader *r, size_t at, size_t n, struct error *err)
{
    size_t from = r->n;
    int rc = 0;
    memcpy(r->body + r->n, r->reply->bytes + at, n);
    r->n += n;
    for (size_t i = from > 0 ? from : 1; i < r->n && rc == 0; i++) {
        if (r->body[i] != '\n' || r->body[i - 1] != '\n' || i == r->event)
            continue;
        const char *text = r->body + r->event;
        size_t length = i - 1 - r->event;
        r->event = i + 1;
        rc = take_event(r, text, length, at + (i - from), err);
    }
    return rc;
}

static int take_chunks(struct reader *r, size_t at, struct error *err)
{
    const struct hops_reply *reply = r->reply;
    for (;;) {
        char *end;
        const char *size = reply->bytes + at;
        if (!memchr(size, '\n', reply->n - at))
            return broken(err, "it ends within a chunk");
        unsigned long n = strtoul(size, &end, 16);
        if (end == size || end[0] != '\r' || end[1] != '\n')
            return broken(err, "a chunk has no size");
        if (n == 0)
            return 0;
        at = (size_t)(end + 2 - reply->bytes);
        if (n > reply->n - at || reply->n - at - n < 2)
            return broken(err, "it ends within a chunk");
        int rc = take_chunk(r, at, n, err);
        if (rc < 0)
            return rc;
        at += n + 2;
    }
}

static int take_head(const struct hops_reply *r, size_t *at, struct error *err)
{
    static const char ok[] = "HTTP/1.1 200";
    const char *end = r->n ? memmem(r->bytes, r->n, "\r\n\r\n", 4) : NULL;
    if (!end)
        return broken(err, r->n ? "it has no end of its head" : "it is empty");
    *at = (size_t)(end + 4 - r->bytes);
    if (memcmp(r->bytes, ok, strlen(ok)) != 0)
        return error_set(err, -EIO, "--hops: the server answers: %.*s", (int)(r->n - *at), r->bytes + *at);
    if (!memmem(r->bytes, *at, "Transfer-Encoding: chunked", 26))
        return broken(err, "it does not come in chunks");
    return 0;
}

int hops_reply_read(const struct hops_reply *reply, uint32_t n_tokens, uint64_t n_before,
                    struct hops_read *reads, uint64_t *n_after, struct error *err)
{
    struct reader r = {.reply = reply, .n_before = n_before, .reads = reads, .n_tokens = n_tokens};
    size_t at = 0;
    int rc = take_head(reply, &at, err);
    if (rc < 0)
        return rc;
    r.body = malloc(reply->n);
    rc = r.body ? take_chunks(&r, at, err) : error_set(err, -ENOMEM, "out of memory");
    free(r.body);
    if (rc == 0 && !r.done)
        rc = broken(err, "its last event is missing");
    if (rc == 0 && r.n_reads != n_tokens)
        rc = error_set(err, -EIO, "--hops: the stream has %u tokens, %u were asked for", r.n_reads, n_tokens);
    if (rc == 0)
        *n_after = n_before + r.n;
    return rc;
}
