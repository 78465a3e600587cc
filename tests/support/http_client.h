/* http_client.h - a small HTTP/1.1 client for tests: sockets, whole replies, chunked bodies, and everything a
 * well-behaved library would not send. */
#pragma once
#include "http_socket.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

struct reply {
    int status; /* 0: the connection ended before a reply */
    char *head; /* status line and headers */
    char *body; /* NUL-terminated */
    size_t len; /* of the body, chunks joined */
    bool cut;   /* the connection ended inside the body */
    char *raw;
    size_t raw_len;
};

static inline int client_connect(uint16_t port)
{
    int fd = client_dial(port);
    cr_assert_geq(fd, 0, "connect to port %u: %s", port, strerror(errno));
    return fd;
}

/* A connection with buffers as small as they can be, the server's too. */
static inline int client_connect_narrow(uint16_t port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = CLIENT_TIMEOUT_S};
    int room = 4096, segment = 536, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    cr_assert_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0, "connect: %s", strerror(errno));
    return fd;
}

/* The value of a header, or NULL; valid until the next call. */
static inline const char *reply_header(const struct reply *r, const char *name)
{
    static char value[512];
    size_t n = strlen(name);
    for (const char *line = r->head; line; line = strstr(line, "\r\n")) {
        line += line != r->head ? 2 : 0;
        if (!strncasecmp(line, name, n) && line[n] == ':') {
            const char *v = line + n + 1 + strspn(line + n + 1, " ");
            snprintf(value, sizeof value, "%.*s", (int)strcspn(v, "\r\n"), v);
            return value;
        }
    }
    return NULL;
}

static inline void reply_free(struct reply *r)
{
    free(r->raw);
    free(r->head);
    free(r->body);
    *r = (struct reply){0};
}

/* One more piece of the raw reply; false at its end. */
static inline bool reply_more(struct reply *r, int fd)
{
    char block[65536];
    ssize_t n;
    while ((n = recv(fd, block, sizeof block, 0)) < 0 && errno == EINTR) /* stopped meanwhile */
        ;
    if (n <= 0)
        return false;
    r->raw = realloc(r->raw, r->raw_len + (size_t)n + 1);
    memcpy(r->raw + r->raw_len, block, (size_t)n);
    r->raw_len += (size_t)n;
    r->raw[r->raw_len] = '\0';
    return true;
}

static inline bool reply_need(struct reply *r, int fd, size_t n)
{
    while (r->raw_len < n)
        if (!reply_more(r, fd))
            return false;
    return true;
}

/* Bytes up to and with the line's end from `at`, or 0 when the connection ended. */
static inline size_t reply_line(struct reply *r, int fd, size_t at)
{
    for (;;) {
        char *end = r->raw_len > at ? strstr(r->raw + at, "\r\n") : NULL;
        if (end)
            return (size_t)(end - r->raw) - at + 2;
        if (!reply_more(r, fd))
            return 0;
    }
}

static inline void reply_add(struct reply *r, const char *bytes, size_t n)
{
    r->body = realloc(r->body, r->len + n + 1);
    memcpy(r->body + r->len, bytes, n);
    r->len += n;
    r->body[r->len] = '\0';
}

static inline void reply_chunks(struct reply *r, int fd, size_t at)
{
    for (;;) {
        size_t line = reply_line(r, fd, at), n = line ? strtoul(r->raw + at, NULL, 16) : 0;
        if (!line || !reply_need(r, fd, at + line + n + 2)) {
            r->cut = true;
            return;
        }
        reply_add(r, r->raw + at + line, n);
        at += line + n + 2;
        if (!n)
            return;
    }
}

/* Reads one whole reply ("100 Continue" is passed over). */
static inline void client_read(int fd, struct reply *r, bool head_only)
{
    char *end;
    memset(r, 0, sizeof *r);
    size_t from = 0;
    for (;;) {
        while (!r->raw || !(end = strstr(r->raw + from, "\r\n\r\n")))
            if (!reply_more(r, fd))
                return;
        r->status = atoi(r->raw + from + 9);
        if (r->status != 100)
            break;
        from = (size_t)(end - r->raw) + 4;
    }
    size_t at = (size_t)(end - r->raw) + 4;
    r->head = strndup(r->raw + from, at - from - 2);
    reply_add(r, "", 0);
    const char *length = reply_header(r, "Content-Length");
    size_t n = length ? strtoul(length, NULL, 10) : 0;
    if (head_only || r->status == 204)
        return;
    const char *coding = reply_header(r, "Transfer-Encoding");
    if (coding && !strcasecmp(coding, "chunked"))
        reply_chunks(r, fd, at);
    else if ((r->cut = !reply_need(r, fd, at + n)))
        reply_add(r, r->raw + at, r->raw_len - at);
    else
        reply_add(r, r->raw + at, n);
}

/* A request on a connection of its own. */
static inline struct reply client_once(uint16_t port, const char *method, const char *path,
                                       const char *headers, const char *body)
{
    struct reply r;
    int fd = client_connect(port);
    client_request(fd, method, path, headers, body);
    client_read(fd, &r, !strcmp(method, "HEAD"));
    close(fd);
    return r;
}

/* The same for a client that, like most libraries, takes no reply before it has sent the last byte. */
static inline struct reply client_once_whole(uint16_t port, const char *path, const char *body)
{
    struct reply r;
    int fd = client_connect(port);
    cr_assert(client_request(fd, "POST", path, "", body), "the connection ended inside the request");
    client_read(fd, &r, false);
    close(fd);
    return r;
}

static inline json_t *reply_json(const struct reply *r)
{
    json_error_t words;
    json_t *root = json_loadb(r->body, r->len, JSON_ALLOW_NUL, &words);
    cr_assert_not_null(root, "status %d, not JSON (%s): %s", r->status, words.text, r->body);
    return root;
}

/* A member by path, "error.type"; fails when it is not there. */
static inline json_t *json_at(const json_t *root, const char *path)
{
    char name[64];
    const json_t *at = root;
    while (*path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(name)) : json_object_get(at, name);
        cr_assert_not_null(at, "no member %s", name);
        path += n + (path[n] == '.');
    }
    return (json_t *)at;
}

static inline const char *json_text(const json_t *root, const char *path)
{
    const char *s = json_string_value(json_at(root, path));
    cr_assert_not_null(s, "%s is no string", path);
    return s;
}

static inline long long json_number(const json_t *root, const char *path)
{
    json_t *v = json_at(root, path);
    cr_assert(json_is_number(v), "%s is no number", path);
    return (long long)json_number_value(v);
}

/* The error has /generate's type; on OpenAI's routes theirs, and as code /generate's or none. */
static inline void expect_type(const json_t *error, int status, const char *type)
{
    const json_t *code = json_object_get(error, "code");
    const char *given = json_string_value(json_object_get(error, "type")), *word = json_string_value(code);
    if (json_is_integer(code)) {
        cr_assert_str_eq(given, type);
        cr_assert_eq(json_integer_value(code), status);
        return;
    }
    cr_assert(word ? !strcmp(word, type) || status == 401 || status == 404 || status == 429 ||
                         !strcmp(word, "context_length_exceeded")
                   : !strcmp(type, "invalid_request"),
              "%s, not %s", word, type);
    cr_assert(strstr(given, "_error"), "%s", given);
}

/* A reply that must be an error of API.md's shape with this status and type; returns its message (to free).
 */
static inline char *expect_error(struct reply r, int status, const char *type)
{
    cr_assert_eq(r.status, status, "status %d: %s", r.status, r.body);
    json_t *root = reply_json(&r);
    expect_type(json_at(root, "error"), status, type);
    cr_assert_eq(r.body[r.len - 1], '\n', "an object ends with a newline");
    char *words = strdup(json_text(root, "error.message"));
    json_decref(root);
    reply_free(&r);
    return words;
}

static inline void expect_words(struct reply r, int status, const char *type, const char *words)
{
    char *message = expect_error(r, status, type);
    cr_assert(strstr(message, words), "\"%s\" lacks \"%s\"", message, words);
    free(message);
}

/* Events of a stream: the data of each, joined text. */
struct events {
    json_t *data[2048];
    size_t n;
    unsigned n_comments;
    bool done;     /* data: [DONE] was the last */
    json_t *error; /* of `event: error` */
};

static inline void events_line(struct events *e, char *line, bool *error)
{
    if (line[0] == ':') {
        e->n_comments++;
    } else if (!strcmp(line, "event: error")) {
        *error = true;
    } else if (!strncmp(line, "data: ", 6) && !strcmp(line + 6, "[DONE]")) {
        e->done = true;
    } else if (!strncmp(line, "data: ", 6)) {
        cr_assert(!e->done, "data after [DONE]");
        json_error_t words;
        json_t *data = json_loads(line + 6, JSON_ALLOW_NUL, &words); /* a model may write U+0000 */
        cr_assert_not_null(data, "%s: %s", words.text, line);
        if (*error)
            e->error = data;
        else
            e->data[e->n++] = data;
        *error = false;
    } else {
        cr_assert_eq(line[0], '\0', "not SSE: %s", line);
    }
}

static inline void events_read(struct events *e, const struct reply *r)
{
    bool error = false;
    char *copy = strdup(r->body), *rest = copy, *line;
    memset(e, 0, sizeof *e);
    while ((line = strsep(&rest, "\n")))
        events_line(e, line, &error);
    free(copy);
}

static inline void events_free(struct events *e)
{
    for (size_t i = 0; i < e->n; i++)
        json_decref(e->data[i]);
    json_decref(e->error);
}

/* The deltas' `path` joined (to free). */
static inline char *events_text(const struct events *e, const char *name)
{
    char *text = calloc(1, 1);
    for (size_t i = 0; i < e->n; i++) {
        const char *piece = json_string_value(json_object_get(e->data[i], name));
        size_t n = strlen(text), more = piece ? strlen(piece) : 0;
        text = realloc(text, n + more + 1);
        memcpy(text + n, piece ? piece : "", more);
        text[n + more] = '\0';
    }
    return text;
}
