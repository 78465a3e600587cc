/* http.c - between libmicrohttpd and requests: headers, bodies, replies. (Connections: connection.c.) */
#include "http.h"
#include "base/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CUT_FACTOR  8     /* times max_body: what is read to be thrown away */
#define UNUSED_BODY 65536 /* bytes: what is read of a body that its method has no use for */
#define FIRST_BODY  4096  /* the least body_memory */
#define REPLY_BLOCK 16384 /* bytes of a stream, or of a large reply, that libmicrohttpd takes at once */

/* --- headers --- */

struct headers {
    const char *content_type, *content_encoding, *request_id, *expect;
    const char *host, *origin, *authorization, *x_api_key, *forwarded_for;
    char forwarded_lines[512]; /* several header lines as one list */
    uint64_t content_length;
    unsigned n_lengths, n_encodings, n_hosts;
    bool chunked;   /* the transfer encoding is one we know */
    bool no_host;   /* HTTP/1.1 requires one */
    bool bad_name;  /* a blank before the colon: "Content-Length : 5" is a length to some */
    bool bad_value; /* a CR or LF: a line's end to some. (What follows a NUL libmicrohttpd 0.9.75 hides.) */
};

/* Several lines are one list (RFC 9110, 5.3), whose last addresses count: what no longer fits is its
 * beginning. */
static void add_forwarded(struct headers *h, const char *value)
{
    size_t had = h->forwarded_for ? strlen(h->forwarded_for) : 0, n = strlen(value);
    if (!h->forwarded_for || had + n + 2 > sizeof h->forwarded_lines) {
        h->forwarded_for = value;
        return;
    }
    memmove(h->forwarded_lines, h->forwarded_for, had);
    h->forwarded_lines[had] = ',';
    memcpy(h->forwarded_lines + had + 1, value, n + 1);
    h->forwarded_for = h->forwarded_lines;
}

static enum MHD_Result take_header(void *cls, enum MHD_ValueKind kind, const char *key, size_t key_size,
                                   const char *value, size_t value_size)
{
    struct headers *h = cls;
    const struct {
        const char *name, **value;
    } kept[] = {{"Content-Type", &h->content_type},
                {"Content-Encoding", &h->content_encoding},
                {"X-Request-Id", &h->request_id},
                {"Expect", &h->expect},
                {"Host", &h->host},
                {"Origin", &h->origin},
                {"Authorization", &h->authorization},
                {"X-Api-Key", &h->x_api_key}};
    (void)kind;
    if (!value)
        value = "";
    h->bad_name |= strpbrk(key, " \t\r\n") != NULL || strlen(key) != key_size;
    h->bad_value |= strpbrk(value, "\r\n") != NULL || strlen(value) != value_size;
    h->n_hosts += !strcasecmp(key, "Host");
    if (!strcasecmp(key, "X-Forwarded-For"))
        add_forwarded(h, value);
    if (!strcasecmp(key, "Content-Length")) {
        h->n_lengths++;
        h->content_length = strtoull(value, NULL, 10);
    } else if (!strcasecmp(key, "Transfer-Encoding")) {
        h->n_encodings++;
        h->chunked = !strcasecmp(value, "chunked");
    }
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!strcasecmp(key, kept[i].name))
            *kept[i].value = value;
    return MHD_YES;
}

static void take_id(struct request *r, const char *given)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = given ? strlen(given) : 0;
    if (n >= 1 && n < sizeof r->id && strspn(given, allowed) == n)
        memcpy(r->id, given, n + 1);
    else
        make_id(r->id, "req-");
}

/* Refuses what could make two parsers in a row disagree about where a request ends. */
static int check_framing(const struct headers *h, struct api_error *e)
{
    const char *words = NULL;
    if (h->n_lengths && h->n_encodings)
        words = "Content-Length together with Transfer-Encoding";
    else if (h->n_lengths > 1)
        words = "more than one Content-Length";
    else if (h->n_encodings > 1)
        words = "more than one Transfer-Encoding";
    else if (h->n_encodings && !h->chunked)
        words = "a Transfer-Encoding other than chunked";
    else if (h->bad_name)
        words = "a blank in a header's name";
    else if (h->bad_value)
        words = "a line break or a NUL in a header's value";
    else if (h->n_hosts > 1)
        words = "more than one Host";
    else if (h->no_host)
        words = "HTTP/1.1 without a Host";
    if (!words)
        return 0;
    e->close = e->at_once = true;
    return api_invalid(e, NULL, "%s is not accepted", words);
}

static int check_route(struct request *r, struct api_error *e)
{
    bool options = !strcmp(r->method, "OPTIONS");
    if (options && !strcmp(r->path, "*")) { /* of the server as a whole */
        r->allow = "GET, HEAD, POST, OPTIONS";
        return 0;
    }
    if (!r->route) {
        const char *meant = route_nearest(r->server->routes, r->path);
        return api_fail(e, 404, "not_found", NULL, "no route %.100s%s%s%s", r->path,
                        meant ? " (the nearest is " : "", meant ? meant : "", meant ? ")" : "");
    }
    r->allow = route_allow(r->route);
    if (options)
        return 0;
    if (route_takes(r->route, r->method)) {
        r->allow = NULL;
        return 0;
    }
    return api_fail(e, 405, "method_not_allowed", NULL, "%s does not allow %.20s (allowed: %s)", r->path,
                    r->method, r->allow);
}

/* Checks where the request says it comes from and goes to. Over a Unix socket a Host means nothing. */
static int check_place(struct request *r, const struct headers *h, struct api_error *e)
{
    const struct access *a = r->server->access;
    if (h->host && r->connection->listener->port && !access_allows_host(a, h->host))
        return api_fail(e, 403, "forbidden", NULL,
                        "Host %.100s is not allowed: use an IP address, localhost or a name in allowed_hosts",
                        h->host);
    if (!h->origin)
        return 0;
    if (!access_allows_origin(a, h->origin, h->host))
        return api_fail(e, 403, "forbidden", NULL, "Origin %.100s is not in cors_origins", h->origin);
    r->origin = h->origin;
    return 0;
}

static int check_key(struct request *r, const struct headers *h, struct api_error *e)
{
    struct access_who who = access_identify(r->server->access, h->authorization, h->x_api_key);
    bool given = h->authorization || h->x_api_key;
    r->owner = who.owner;
    r->admin = who.role == ACCESS_ADMIN;
    if (r->route->open || who.role == ACCESS_ADMIN || (who.role == ACCESS_USER && !r->route->admin))
        return 0;
    if (r->route->admin && !r->server->cfg->admin_key_file[0])
        return api_fail(e, 401, "unauthorized", NULL,
                        "this route needs the admin key, but admin_key_file is not set");
    return api_fail(e, 401, "unauthorized", NULL, "%s, as Authorization: Bearer KEY",
                    r->route->admin ? "this route needs the admin key"
                    : given         ? "unknown key: a valid one is needed"
                                    : "a key is needed");
}

static const struct sockaddr *peer_of(const struct request *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info ? info->client_addr : NULL;
}

/* All work for a model counts: clients share the pool, too. */
static int check_client(struct request *r, const struct headers *h, struct api_error *e)
{
    struct http_server *s = r->server;
    if (!r->route->post || !r->route->needs_model)
        return 0;
    r->client = r->owner ? r->owner : access_client(s->access, peer_of(r), h->forwarded_for);
    if (!s->cfg->client_limit)
        return 0;
    enum client_entry entry = clients_enter(&s->clients, r->client, s->cfg->client_limit);
    r->counted = entry == CLIENT_COUNTED;
    if (entry != CLIENT_REFUSED)
        return 0;
    e->retry_after_s = retry_after_s(1, 1, &s->stats.stay);
    return api_fail(e, 429, "rate_limited", NULL,
                    "this client already has %u requests in progress (client_limit)", s->cfg->client_limit);
}

static int check_content(const struct request *r, const struct headers *h, struct api_error *e)
{
    static const char *const types[] = {"application/json", "application/x-www-form-urlencoded"};
    const char *type = h->content_type, *encoding = h->content_encoding;
    if (!r->route->post)
        return 0;
    if (encoding && *encoding && strcasecmp(encoding, "identity"))
        return api_fail(e, 415, "unsupported_media_type", NULL,
                        "Content-Encoding %.60s is not accepted: send the body without encoding", encoding);
    if (!type || !*type)
        return 0;
    size_t n = strcspn(type, "; \t");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (n == strlen(types[i]) && !strncasecmp(type, types[i], n))
            return 0;
    return api_fail(e, 415, "unsupported_media_type", NULL,
                    "Content-Type %.60s is not accepted: use application/json", type);
}

static int too_large(const struct http_server *s, struct api_error *e)
{
    return api_fail(e, 413, "too_large", NULL, "the body is larger than max_body, %llu bytes",
                    (unsigned long long)s->cfg->max_body);
}

static bool uses_no_body(const struct request *r)
{
    static const char *const methods[] = {"GET", "HEAD", "OPTIONS", "DELETE"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(r->method, methods[i]))
            return true;
    return false;
}

static int too_large_unused(const struct request *r, struct api_error *e)
{
    return api_fail(e, 413, "too_large", NULL, "%s takes no body: at most %d bytes of one are read",
                    r->method, UNUSED_BODY);
}

/* Known to be too large before any of it has come. */
static int check_unused(const struct request *r, const struct headers *h, struct api_error *e)
{
    if (!uses_no_body(r) || h->content_length <= UNUSED_BODY)
        return 0;
    e->close = e->at_once = true;
    return too_large_unused(r, e);
}

/* Only a request whose body is read can wait or run: others take no place, and their connections may be
 * closed for new ones (connection.c). */
static int check_connections(const struct request *r, struct api_error *e)
{
    struct http_server *s = r->server;
    uint32_t n = s->connections[CONNECTION_BUSY].n;
    if (!route_takes_body(r->route, r->method) || n < s->cfg->max_connections)
        return 0;
    s->ops->queue_full(s, e);
    e->close = true;
    return api_fail(e, 503, "queue_full", NULL,
                    "%u connection%s a request in progress, max_connections is %u", n,
                    n == 1 ? " has" : "s have", s->cfg->max_connections);
}

static int check_state(struct request *r, struct api_error *e)
{
    struct http_server *s = r->server;
    if (r->route->always)
        return 0;
    if (check_connections(r, e) < 0)
        return -1;
    if (r->route->needs_model && s->ops->has_model(s, r->route, e) < 0)
        return -1;
    return r->route->work ? s->ops->admits(s, e) : 0;
}

static int check_headers(struct request *r, const struct headers *h)
{
    struct api_error *e = &r->error;
    if (check_framing(h, e) < 0 || check_unused(r, h, e) < 0 || check_place(r, h, e) < 0 ||
        check_route(r, e) < 0)
        return -1;
    if (!strcmp(r->method, "OPTIONS"))
        return 0;
    if (check_key(r, h, e) < 0 || check_state(r, e) < 0 || check_content(r, h, e) < 0)
        return -1;
    if (r->route->post && h->content_length > r->server->cfg->max_body)
        return too_large(r->server, e);
    bool is_long = h->content_length > REQUEST_INLINE_BODY;
    if (r->route->text && r->server->ops->admits_text(r->server, is_long, e) < 0)
        return -1;
    return check_client(r, h, e);
}

/* --- replies --- */

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    MHD_add_response_header(response, name, value);
}

/* For a browser's page on an origin that may ask. */
static void add_cors(const struct request *r, struct MHD_Response *response)
{
    add_header(response, "Access-Control-Allow-Origin", r->origin);
    add_header(response, "Vary", "Origin");
    add_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (strcmp(r->method, "OPTIONS"))
        return;
    add_header(response, "Access-Control-Allow-Methods", r->allow ? r->allow : "GET, HEAD, POST, OPTIONS");
    /* Clients have headers of their own (the openai client a dozen); "*" does not cover Authorization. */
    add_header(response, "Access-Control-Allow-Headers",
               "Authorization, Content-Type, X-Api-Key, X-Request-Id, *");
    add_header(response, "Access-Control-Max-Age", "600");
}

static void add_headers(const struct request *r, struct MHD_Response *response)
{
    char seconds[16];
    add_header(response, "X-Request-Id", r->id);
    if (r->route && r->route->id_header)
        add_header(response, r->route->id_header, r->id);
    if (r->allow)
        add_header(response, "Allow", r->allow);
    if (r->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%u", r->retry_after_s);
        add_header(response, "Retry-After", seconds);
    }
    if (r->close)
        add_header(response, "Connection", "close");
    add_header(response, "X-Content-Type-Options", "nosniff");
    if (r->policy) {
        add_header(response, "Content-Security-Policy", r->policy);
        add_header(response, "Referrer-Policy", "no-referrer");
        add_header(response, "Cache-Control", "no-cache");
    }
    if (r->status == 401)
        add_header(response, "WWW-Authenticate", "Bearer");
    if (r->origin)
        add_cors(r, response);
}

static enum MHD_Result queue(struct request *r, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    add_headers(r, response);
    enum MHD_Result rc = MHD_queue_response(r->mhd, (unsigned)r->status, response);
    MHD_destroy_response(response);
    r->phase = REQUEST_QUEUED;
    return rc;
}

/* Gives libmicrohttpd what there is of a stream, or of a reply that is large; with nothing to send it
 * suspends, always. */
static ssize_t read_stream(void *cls, uint64_t pos, char *out, size_t max)
{
    struct request *r = cls;
    (void)pos;
    size_t n = r->gone ? 0 : request_take(r, out, max);
    if (r->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n) {
        connection_moved(r->connection);
        stream_times_hand(r->server->times, n);
        return (ssize_t)n;
    }
    if (r->stream_ended && !r->writing)
        return MHD_CONTENT_READER_END_OF_STREAM;
    request_suspend(r);
    return 0;
}

/* A large reply is sent by callback, which sees how fast its client takes it. The bytes of a small one are
 * the arena's, which lives until libmicrohttpd is done with the request. */
static struct MHD_Response *make_response(struct request *r)
{
    bool goes_on = !STAILQ_EMPTY(&r->lists) || r->more;
    uint64_t size = goes_on ? MHD_SIZE_UNKNOWN : r->out.len;
    if (!goes_on && r->out.len <= REQUEST_LARGE_REPLY)
        return MHD_create_response_from_buffer(r->out.len, r->out.p ? r->out.p : "", MHD_RESPMEM_PERSISTENT);
    r->stream_ended = true;
    return MHD_create_response_from_callback(size, REPLY_BLOCK, read_stream, r, NULL);
}

static enum MHD_Result queue_reply(struct request *r)
{
    struct MHD_Response *response = make_response(r);
    if (response && r->out.len)
        add_header(response, "Content-Type", r->content_type ? r->content_type : "application/json");
    r->replied_ns = clock_ns();
    request_hold_reply(r);
    request_limit(r);
    request_answered(r);
    return queue(r, response);
}

static enum MHD_Result queue_stream(struct request *r)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, REPLY_BLOCK, read_stream, r, NULL);
    if (response) {
        add_header(response, "Content-Type", r->route->lines ? "application/x-ndjson" : "text/event-stream");
        add_header(response, "Cache-Control", "no-cache");
        add_header(response, "X-Accel-Buffering", "no");
    }
    r->status = 200;
    return queue(r, response);
}

/* --- a request's way --- */

/* A proxy may send the whole URL: "GET http://host/health". Only its path counts. */
static const char *path_of(const char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t n = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], n))
            continue;
        const char *path = strchr(target + n, '/');
        return path ? path : "/";
    }
    return target;
}

static struct request *request_open(struct listener *l, struct MHD_Connection *mhd, const char *path,
                                    const char *method)
{
    struct connection *c = connection_of(mhd);
    struct request *r = c ? calloc(1, sizeof *r) : NULL;
    if (!r)
        return NULL;
    struct http_server *s = l->owner;
    path = path_of(path);
    *r =
        (struct request){.server = s, .connection = c, .mhd = mhd, .refs = 1, .method = method, .path = path};
    r->opened_ns = clock_ns();
    r->out.arena = &r->arena;
    STAILQ_INIT(&r->lists);
    r->route = route_find(s->routes, path, method);
    connection_begin(c, r, &request_connection_ops);
    LIST_INSERT_HEAD(&s->requests, r, link);
    return r;
}

/* Nothing of the body is kept, neither what is there nor what comes. */
static void discard(struct request *r)
{
    r->discard = true;
    request_drop_body(r);
    connection_discard(r->connection);
}

/* The first call: all headers are there, nothing of the body. */
static enum MHD_Result take_headers(struct request *r, const char *version)
{
    struct headers h = {0};
    const struct config *cfg = r->server->cfg;
    MHD_get_connection_values_n(r->mhd, MHD_HEADER_KIND, take_header, &h);
    h.no_host = !h.n_hosts && strcmp(version, "HTTP/1.0");
    take_id(r, h.request_id);
    access_address(r->server->access, peer_of(r), h.forwarded_for, r->address);
    r->has_body = h.n_encodings || h.content_length;
    connection_stop_timer(r->connection);
    if (r->has_body)
        connection_limit(r->connection, cfg->body_timeout_ms);
    bool refused = check_headers(r, &h) < 0;
    if (refused || !r->route || !route_takes_body(r->route, r->method))
        discard(r);
    else
        connection_accept(r->connection);
    bool expects = h.expect && !strcasecmp(h.expect, "100-continue");
    bool hopeless = h.content_length > CUT_FACTOR * cfg->max_body;
    bool at_once = r->error.at_once || (r->has_body && (expects || hopeless));
    if (!refused || !at_once)
        return MHD_YES;
    connection_whole(r->connection);
    request_fail(r, &r->error);
    return queue_reply(r); /* libmicrohttpd closes the connection after it */
}

/* Texts have half of it at most, so that generations still find room; one alone may have all. */
static bool has_room_for_body(const struct request *r, size_t cap)
{
    const struct http_server *s = r->server;
    uint64_t others = s->body_bytes - r->body_cap, texts = r->route->text ? s->text_bytes - r->body_cap : 0;
    return others + cap <= s->cfg->body_memory && (!texts || texts + cap <= s->cfg->body_memory / 2);
}

static bool grow_body(struct request *r, size_t n)
{
    struct http_server *s = r->server;
    size_t cap = r->body_cap ? r->body_cap : FIRST_BODY;
    while (cap < n)
        cap *= 2;
    if (cap == r->body_cap)
        return true;
    if (cap > s->cfg->body_memory) { /* not even alone: to try again would not help */
        api_fail(&r->error, 413, "too_large", NULL, "the body needs %zu bytes of memory, body_memory is %llu",
                 cap, (unsigned long long)s->cfg->body_memory);
        return false;
    }
    if (!has_room_for_body(r, cap)) {
        s->ops->queue_full(s, &r->error);
        api_fail(&r->error, 503, "queue_full", NULL,
                 "body_memory, %llu bytes for all request bodies, is used up",
                 (unsigned long long)s->cfg->body_memory);
        return false;
    }
    char *body = realloc(r->body, cap);
    if (!body) {
        api_out_of_memory(&r->error);
        return false;
    }
    request_count_body(r, cap);
    r->body = body;
    return true;
}

static enum MHD_Result take_body(struct request *r, const char *data, size_t n)
{
    const struct config *cfg = r->server->cfg;
    connection_moved(r->connection);
    r->body_seen += n;
    bool unused = uses_no_body(r);
    if (r->body_seen > (unused ? UNUSED_BODY : CUT_FACTOR * cfg->max_body)) {
        unused ? too_large_unused(r, &r->error) : too_large(r->server, &r->error);
        r->cut = true;
        return MHD_NO;
    }
    if (r->discard)
        return MHD_YES;
    if (r->body_len + n > cfg->max_body)
        too_large(r->server, &r->error);
    else if (grow_body(r, r->body_len + n)) {
        assert(r->body_len + n <= r->body_cap);
        memcpy(r->body + r->body_len, data, n);
        r->body_len += n;
        return MHD_YES;
    }
    discard(r);
    return MHD_YES;
}

/* A byte order mark, which editors of Windows put before a file: RFC 8259 lets a reader pass over it. */
static void skip_mark(struct request *r)
{
    static const char mark[] = {'\xef', '\xbb', '\xbf'};
    if (r->body_len < sizeof mark || memcmp(r->body, mark, sizeof mark))
        return;
    r->body_len -= sizeof mark;
    memmove(r->body, r->body + sizeof mark, r->body_len);
}

static void end_body(struct request *r)
{
    connection_whole(r->connection);
    r->accepted_ns = clock_ns();
    skip_mark(r);
    if (r->error.status) {
        request_fail(r, &r->error);
    } else if (!strcmp(r->method, "OPTIONS")) {
        request_reply(r, 204);
    } else if (r->route->needs_model && r->server->ops->has_model(r->server, r->route, &r->error) < 0) {
        request_fail(r, &r->error); /* it went while the body came */
    } else {
        r->route->handle(r);
    }
}

/* The body has ended, or the request was resumed. */
static enum MHD_Result go_on(struct request *r)
{
    if (r->phase == REQUEST_BODY)
        end_body(r);
    if (r->gone)
        return MHD_NO;
    switch (r->phase) {
    case REQUEST_REPLY:
        return queue_reply(r);
    case REQUEST_STREAM:
        return queue_stream(r);
    default:
        if (r->phase == REQUEST_WAITING)
            request_suspend(r);
        return MHD_YES;
    }
}

/* The connection is closed after it, as with every reply to the first call. */
static enum MHD_Result refuse_without_memory(const struct listener *l, struct MHD_Connection *mhd)
{
    const struct http_server *s = l->owner;
    log_warn("out of memory: a request is refused");
    return s->no_memory ? MHD_queue_response(mhd, 503, s->no_memory) : MHD_NO;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n, void **context)
{
    struct request *r = *context;
    if (!r) {
        *context = r = request_open(cls, mhd, url, method);
        return r ? take_headers(r, version) : refuse_without_memory(cls, mhd);
    }
    if (*n) {
        size_t taken = *n;
        *n = 0;
        return take_body(r, data, taken);
    }
    return go_on(r);
}

static void write_log(const struct request *r)
{
    bool quiet = r->route && r->route->quiet && r->status < 400;
    struct log_access line = {.method = r->method,
                              .route = r->route ? r->route->path : NULL,
                              .path = r->path,
                              .client = r->address,
                              .status = r->gone && !r->status ? 499 : r->status,
                              .error = r->status >= 400 ? r->error.type : NULL,
                              .ms = (double)(clock_ns() - r->opened_ns) / 1e6};
    if (r->ops)
        r->ops->log(r, &line);
    log_access(quiet ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, r->id, &line);
}

static void count_outcome(struct http_server *s, const struct request *r, bool sent)
{
    if (!r->route || !r->route->work || !strcmp(r->method, "OPTIONS"))
        return;
    enum request_outcome outcome = r->ops ? r->ops->count(r, &s->stats) : OUTCOME_NONE;
    if (r->status == 499 || outcome == OUTCOME_CANCELLED || !r->status ||
        (!sent && outcome == OUTCOME_NONE && !r->cut))
        s->stats.cancelled++;
    else if (r->status == 408 || r->status == 504 || outcome == OUTCOME_TIMED_OUT)
        s->stats.timed_out++;
    else if (r->status == 500 || outcome == OUTCOME_FAILED)
        s->stats.failed++;
    else if (r->status == 200)
        s->stats.completed++;
    else
        stats_count_reject(&s->stats, r->error.type, (double)(r->replied_ns - r->opened_ns) / 1e6);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct request *r = *context;
    (void)cls;
    (void)mhd;
    if (!r)
        return;
    struct http_server *s = r->server;
    struct connection *c = r->connection;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        r->gone = true;
    r->cut |= c->state == CONNECTION_CUT;
    if (r->cut && !r->status) { /* the status that it would have got */
        r->status = r->error.status;
        r->replied_ns = clock_ns();
    }
    write_log(r);
    count_outcome(s, r, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    if (r->counted)
        clients_leave(&s->clients, r->client);
    connection_rest(c);
    r->connection = NULL;
    r->mhd = NULL;
    r->suspended = false;
    if (r->ops)
        r->ops->drop(r);
    request_cancel_work(r);
    LIST_REMOVE(r, link);
    request_unref(r);
    *context = NULL;
    s->ops->ended(s);
}

/* libmicrohttpd's words are about what strangers send, and quote it. */
static void on_log(void *cls, const char *fmt, va_list args)
{
    char words[256];
    (void)cls;
    if (!log_enabled(LOG_LEVEL_DEBUG))
        return;
    vsnprintf(words, sizeof words, fmt, args);
    log_debug("http: %s", log_quote(words));
}

struct MHD_Response *http_no_memory_response(void)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        strlen(no_memory_reply), (void *)no_memory_reply, MHD_RESPMEM_PERSISTENT);
    if (response) {
        add_header(response, "Content-Type", "application/json");
        add_header(response, "Retry-After", "1");
        add_header(response, "Connection", "close");
    }
    return response;
}

const struct listener_callbacks http_callbacks = {
    .request = on_request,
    .completed = on_completed,
    .connection = connection_notify,
    .uri = connection_uri,
    .log = on_log,
};
