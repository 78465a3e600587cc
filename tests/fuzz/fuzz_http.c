/* fuzz_http - any bytes into the real server's sockets: libmicrohttpd, routes, fields, replies and streams,
 * over an engine that says the same few words to all. However a client cuts, floods or leaves, every
 * reply is well formed, none is a 500, and when all connections are closed nothing is left of them.
 *
 * The first byte chooses: bit 0 TCP instead of the Unix socket, bit 1 keys are needed ("sesame", "master" for
 * /admin), bit 2 the engine lets nothing leave its queue, bit 3 the server is loading, bit 4 it drains. Bytes
 * that occur in no UTF-8 text are commands between what is sent: */
enum { CMD_TURN = 0xf8, CMD_KILO, CMD_NEXT, CMD_HALF_CLOSE, CMD_CLOSE, CMD_RESET, CMD_READ, CMD_WAIT };

#include "support/fake_engine.h"
#include "chat/chat_template.h"
#include "backend/executor.h"
#include "fuzz_file.h"
#include "generation/generation.h"
#include "service/server_private.h"
#include "base/log.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#define N_CLIENTS   4
#define MAX_REPLY   (1 << 20)
#define MAX_TURNS   400   /* of the loop, in one input's commands */
#define MAX_SETTLES 20000 /* the same at its end, at least half a millisecond each */

static struct {
    uv_loop_t loop;
    struct config cfg, locked_cfg;
    struct access *locked, *open;
    struct server *server;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct executor *executor;
    struct sockaddr_storage addresses[2];
    socklen_t lengths[2];
} f;

struct client {
    int fd; /* -1: none */
    char *in;
    size_t n_in;
};
static struct client clients[N_CLIENTS], *client;
static unsigned turns;

/* --- the server --- */

static int listen_on(int family, unsigned which)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local = {.sun_family = AF_UNIX}; /* a name that the kernel chooses */
    int rc = family == AF_INET ? bind(fd, (struct sockaddr *)&four, sizeof four)
                               : bind(fd, (struct sockaddr *)&local, sizeof(sa_family_t));
    f.lengths[which] = sizeof f.addresses[which];
    CHECK(fd >= 0 && rc == 0 && listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&f.addresses[which], &f.lengths[which]) == 0);
    return fd;
}

static void set_model(void)
{
    struct server_model m = {.engine = (struct engine *)&fake, .tokenizer = f.tokenizer, .model = f.model};
    CHECK(chat_template_open(&f.chat, "", model_gguf(f.model), f.tokenizer, NULL) == 0 && f.chat);
    struct backend_config cfg = {
        .n_threads = 1, .isa = "scalar", .n_slots = 1, .n_ctx = 64, .steps_in_flight = 1};
    CHECK(executor_open(&f.executor, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, f.model, NULL) == 0);
    m.executor = f.executor; /* which never runs: /stats and /metrics describe it */
    m.why = "";
    m.chat = f.chat;
    m.hash = 1;
    server_set_model(f.server, &m);
}

/* Serves the /admin routes; the word chooses the result. */
static void find_model(const void *context, const char *word, struct swap_found *out)
{
    (void)context;
    *out = (struct swap_found){0};
    (void)snprintf(out->path, sizeof out->path, "%s", word);
    if (*word == 'n')
        out->rc = error_set(&out->why, -ENOENT, "there is none %.100s", word);
}

static int swap(void *context, const struct swap_found *found, struct error *err)
{
    (void)context;
    return found->rc             ? error_set(err, found->rc, "%s", found->why.text)
           : *found->path == 'b' ? error_set(err, -EBUSY, "busy")
                                 : 0;
}

static int suspend(void *context, struct error *err)
{
    (void)context;
    (void)err;
    return fake.hold; /* 1: it is so already */
}

static void view(const void *context, struct swap_view *out)
{
    (void)context;
    *out =
        (struct swap_view){.state = "idle", .serves = "a.gguf", .last_model = "\"b\"", .last_error = "no\n"};
}

static const struct server_admin admin = {
    .find = find_model, .swap = swap, .suspend = suspend, .resume = suspend, .view = view};

static void set_script(void)
{
    static const char text[] = " there was a caf\xc3\xa9 \xf0\x9f\x99\x82.<|endoftext|>";
    int32_t *ids;
    size_t n;
    struct tokenizer_flags flags = {.parse_special = true};
    CHECK(tokenizer_encode(f.tokenizer, text, strlen(text), flags, 0, &ids, &n, NULL) == 0 && n < 64);
    memcpy(fake.script, ids, n * sizeof *ids);
    fake.n_script = (uint32_t)n;
    fake.finish = ENGINE_EOS;
    fake.n_ctx = 256;
    free(ids);
}

static void configure(struct config *c, const char *keys)
{
    static const char *const pairs[][2] = {
        {"max_body", "16K"},
        {"client_limit", "3"},
        {"queue_limit", "2"},
        /* libmicrohttpd keeps some connections that it has refused until
         * their time is over, though the client is gone: settle() waits for it. */
        {"header_timeout_ms", "1000"},
        {"body_timeout_ms", "1000"},
        {"cors_origins", "https://a.example"}};
    CHECK(config_defaults(c, NULL) == 0 && config_set(c, "api_keys", keys, NULL) == 0);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        CHECK(config_set(c, pairs[i][0], pairs[i][1], NULL) == 0);
}

static void open_server(void)
{
    int fds[2] = {listen_on(AF_UNIX, 0), listen_on(AF_INET, 1)};
    log_open(LOG_LEVEL_ERROR, LOG_TEXT);
    static struct fuzz_file key;
    key = fuzz_file_open("master\n", 7);
    configure(&f.cfg, "");
    configure(&f.locked_cfg, "sesame");
    CHECK(config_set(&f.locked_cfg, "admin_key_file", key.path, NULL) == 0);
    CHECK(model_open(&f.model, HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf", NULL) == 0);
    CHECK(tokenizer_open(&f.tokenizer, model_gguf(f.model), NULL) == 0);
    CHECK(uv_loop_init(&f.loop) == 0);
    CHECK(server_open(&f.server, &f.loop, &f.cfg, fds, 2, NULL) == 0);
    CHECK(access_open(&f.locked, &f.locked_cfg, NULL) == 0);
    f.open = f.server->http.access;
    fake.server = f.server;
    server_set_admin(f.server, &admin, NULL);
    set_script();
    set_model();
    CHECK(f.server->generator.model->n_ctx == fake.n_ctx); /* or every prompt would be too long */
    for (size_t i = 0; i < N_CLIENTS; i++) {
        clients[i].fd = -1;
        clients[i].in = malloc(MAX_REPLY + 1);
        CHECK(clients[i].in);
    }
}

/* Sets what the first byte says. Draining begins and ends by hand: server_drain() has no way back. */
static void choose(uint8_t options)
{
    f.server->http.access = options & 2 ? f.locked : f.open;
    fake.hold = options & 4;
    f.server->generator.state = options & 8 ? SERVER_LOADING : options & 16 ? SERVER_DRAINING : SERVER_READY;
}

static void turn(void)
{
    fake_tick(NULL);
    uv_run(&f.loop, UV_RUN_NOWAIT);
}

static bool is_idle(void)
{
    const struct server *s = f.server;
    return !s->http.n_connections && LIST_EMPTY(&s->http.requests) && LIST_EMPTY(&s->generator.generations) &&
           !s->generator.n_active && !s->generator.n_preparing && !s->http.n_jobs && !s->http.body_bytes &&
           !s->http.text_bytes && !s->http.reply_bytes && !s->generator.n_texts && !fake.n_live;
}

/* --- replies --- */

static const char *find(const char *at, const char *end, const char *word)
{
    return memmem(at, (size_t)(end - at), word, strlen(word));
}

/* The value of a header, not terminated, or NULL. */
static const char *header(const char *head, const char *end, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = find(head, end, "\r\n"); line; line = find(line + 2, end, "\r\n"))
        if ((size_t)(end - line) > n + 4 && !strncasecmp(line + 2, name, n) && line[2 + n] == ':')
            return line + 4 + n;
    return NULL;
}

static void check_head(const char *head, const char *end, int status)
{
    static const int known[] = {100, 200, 202, 204, 400, 401, 403, 404, 405, 408, 409, 411,
                                413, 414, 415, 417, 429, 431, 499, 501, 503, 504, 505};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        is_known |= status == known[i];
    CHECK(is_known);
    for (const char *p = head; p < end; p++) /* nothing of a client's breaks a line */
        CHECK((*p >= ' ' && *p != 127) || ((*p == '\r' && p[1] == '\n') || (*p == '\n' && p[-1] == '\r')));
    if (status == 503 && header(head, end, "Content-Type"))
        CHECK(header(head, end, "Retry-After"));
}

/* Our own form has the status as its code. OpenAI's has a word or null there, and a type that its clients
 * know for the status. */
static void check_kind(const json_t *error, int status)
{
    const json_t *code = json_object_get(error, "code");
    const char *type = json_string_value(json_object_get(error, "type"));
    CHECK(type);
    if (json_is_integer(code)) {
        CHECK(json_integer_value(code) == status);
        return;
    }
    CHECK(json_is_string(code) || json_is_null(code));
    CHECK(!strcmp(type, status == 401   ? "authentication_error"
                        : status == 403 ? "permission_error"
                        : status == 404 ? "not_found_error"
                        : status == 429 ? "rate_limit_error"
                        : status < 500  ? "invalid_request_error"
                                        : "server_error"));
}

/* An unknown path beside a dialect's routes is refused in the dialect's form: Ollama's and TGI's is a text,
 * Anthropic's an object without a code. */
static void check_error(const json_t *root, int status)
{
    const json_t *error = json_object_get(root, "error"), *type = json_object_get(root, "type");
    if (json_is_string(error)) {
        const json_t *kind = json_object_get(root, "error_type");
        CHECK(json_string_length(error) > 0);
        CHECK(json_object_size(root) == (kind ? 2 : 1) && (!kind || json_string_length(kind) > 0));
        return;
    }
    CHECK(json_string_length(json_object_get(error, "message")) > 0);
    if (!type) {
        check_kind(error, status);
        return;
    }
    CHECK(json_is_string(type) && !strcmp(json_string_value(type), "error"));
    CHECK(json_string_length(json_object_get(error, "type")) > 0);
}

static void check_json(const char *body, size_t n, int status)
{
    json_error_t words;
    json_t *root = json_loadb(body, n, 0, &words);
    if (!root)
        fprintf(stderr, "%s in %.*s\n", words.text, (int)n, body);
    CHECK(root);
    if (status >= 400 && !json_object_get(root, "status")) /* which /health has in all its answers */
        check_error(root, status);
    json_decref(root);
}

/* Lines of a stream: data that is JSON, comments, the name of an event. */
static void check_events(const char *body, size_t n)
{
    for (const char *end = body + n, *line = body, *next; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (!next)
            return; /* cut by its client */
        size_t len = (size_t)(next - line);
        if (!strncmp(line, "data: {", 7))
            check_json(line + 6, len - 6, 200);
        else
            CHECK(!len || *line == ':' || !strncmp(line, "data: [DONE]", 12) || !strncmp(line, "event: ", 7));
    }
}

/* A chunked body's end, its bytes joined in place; NULL: cut. */
static char *join_chunks(char *at, char *end, size_t *n)
{
    char *out = at;
    for (*n = 0;;) {
        char *rest;
        const char *line = find(at, end, "\r\n");
        size_t size = line ? strtoul(at, &rest, 16) : 0;
        if (!line)
            return NULL;
        CHECK(rest == line); /* the size and nothing else */
        at = rest + 2;
        if ((size_t)(end - at) < size + 2)
            return NULL;
        memmove(out + *n, at, size);
        *n += size;
        CHECK(at[size] == '\r' && at[size + 1] == '\n');
        at += size + 2;
        if (!size)
            return at;
    }
}

/* One reply; where the next begins, or NULL. */
static char *check_reply(char *at, char *end)
{
    char *body = (char *)find(at, end, "\r\n\r\n");
    if (!body)
        return NULL;
    CHECK(!strncmp(at, "HTTP/1.1 ", 9) || !strncmp(at, "HTTP/1.0 ", 9));
    int status = atoi(at + 9);
    check_head(at, body, status);
    const char *length = header(at, body, "Content-Length"), *type = header(at, body, "Content-Type"),
               *coding = header(at, body, "Transfer-Encoding");
    body += 4;
    size_t n = length ? strtoul(length, NULL, 10) : 0;
    bool none = status == 100 || status == 204 || end - body < 5 || !strncmp(body, "HTTP/", 5); /* HEAD */
    char *next = none ? body : coding ? join_chunks(body, end, &n) : body + n;
    if (!next || none)
        return next;
    if (next > end)
        return NULL;
    if (type && !strncmp(type, "application/json", 16))
        check_json(body, n, status);
    if (type && !strncmp(type, "text/event-stream", 17))
        check_events(body, n);
    return next;
}

static void check_replies(struct client *c)
{
    char *end = c->in + c->n_in;
    *end = '\0';
    for (char *at = c->in; at && at < end;)
        at = check_reply(at, end);
    c->n_in = 0;
}

/* --- clients --- */

static void connect_client(uint8_t options)
{
    unsigned which = options & 1;
    int yes = 1, fd = socket(f.addresses[which].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct linger reset = {.l_onoff = 1}; /* leaves no port behind that has to wait */
    CHECK(fd >= 0);
    while (connect(fd, (struct sockaddr *)&f.addresses[which], f.lengths[which]) < 0 &&
           errno != EINPROGRESS) {
        CHECK(errno == EAGAIN); /* the backlog is full */
        turn();
    }
    if (which) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    client->fd = fd;
}

static void receive(struct client *c)
{
    char block[16384];
    ssize_t n;
    while (c->fd >= 0 && (n = recv(c->fd, block, sizeof block, 0)) > 0) {
        size_t kept = (size_t)n < MAX_REPLY - c->n_in ? (size_t)n : MAX_REPLY - c->n_in;
        memcpy(c->in + c->n_in, block, kept);
        c->n_in += kept;
    }
}

static void leave(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    check_replies(c);
}

static void send_bytes(const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(client->fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return; /* the server has had enough */
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        } else if (turns++ < MAX_TURNS) {
            receive(client);
            turn();
        } else {
            return;
        }
    }
}

static void obey(uint8_t command, uint8_t options)
{
    static char kilo[1024];
    memset(kilo, 'x', sizeof kilo);
    switch (command) {
    case CMD_KILO:
        send_bytes(kilo, sizeof kilo);
        return;
    case CMD_NEXT:
        client = client == clients + N_CLIENTS - 1 ? clients : client + 1;
        break;
    case CMD_HALF_CLOSE:
        shutdown(client->fd, SHUT_WR);
        break;
    case CMD_RESET:
        setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        leave(client);
        break;
    case CMD_CLOSE:
        leave(client);
        break;
    case CMD_READ:
        receive(client);
        break;
    default:
        break;
    }
    for (unsigned n = command == CMD_WAIT ? 40 : 1; n && turns < MAX_TURNS; n--, turns++)
        turn();
    if (client->fd < 0)
        connect_client(options);
}

static void settle(void)
{
    for (size_t i = 0; i < 60; i++) { /* what was asked for may be answered yet */
        turn();
        for (size_t k = 0; k < N_CLIENTS; k++)
            receive(&clients[k]);
    }
    for (size_t k = 0; k < N_CLIENTS; k++)
        leave(&clients[k]);
    unsigned n = 0;
    for (; !is_idle() && n < MAX_SETTLES; n++) {
        turn();
        if (n > 20)
            usleep(500);
    }
    CHECK(n < MAX_SETTLES);
    CHECK(!f.server->http.clients.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!f.server)
        open_server();
    if (!size)
        return 0;
    choose(data[0]);
    turns = 0;
    client = clients;
    connect_client(data[0]);
    for (size_t at = 1, n; at < size; at += n) {
        for (n = 0; at + n < size && data[at + n] < CMD_TURN; n++)
            ;
        if (n)
            send_bytes((const char *)data + at, n);
        else
            obey(data[at], data[0]);
        n += !n;
    }
    settle();
    return 0;
}
