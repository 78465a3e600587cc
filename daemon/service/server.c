/* server.c - the server as a whole: listeners, state, drain, end. */
#include "api/api.h"
#include "generation/generation.h"
#include "http/access.h"
#include "server_private.h"
#include "base/log.h"
#include "http/tls.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MOST_LEVELS       16384 /* an address with more idle connections is no larger than one with so many */
#define OTHER_DESCRIPTORS 192   /* of other things than connections: on cpu it has about 13, a driver many */
#define CLOSE_MS          5000  /* the time that server_end() waits for an engine that is stuck */
#define FLUSH_MS          1000  /* after a drain's time is over: for last replies to leave */
#define MAX_LISTENERS     16

/* --- listeners --- */

static struct listener *add_listener(struct server *s, int fd, bool tls)
{
    struct listener *l = &s->http.listeners[s->http.n_listeners++];
    *l = (struct listener){.fd = fd, .owner = &s->http, .tls = tls};
    listener_name(l);
    return l;
}

/* The addresses of cfg->host, which may stand in brackets as in a URL: freeaddrinfo(). */
static int find_host(struct addrinfo **out, const struct config *cfg, uint32_t number, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char port[8], name[256];
    size_t n = strlen(cfg->host), brackets = n > 2 && cfg->host[0] == '[' && cfg->host[n - 1] == ']';
    if (n >= sizeof name)
        return error_set(err, -EINVAL, "host is longer than %zu bytes", sizeof name - 1);
    if (n == 0)
        return error_set(err, -EINVAL, "host is empty: use an address, such as 127.0.0.1, or a name");
    snprintf(port, sizeof port, "%u", number);
    snprintf(name, sizeof name, "%.*s", (int)(n - 2 * brackets), cfg->host + brackets);
    int rc = getaddrinfo(name, port, &hints, out);
    if (rc == EAI_MEMORY)
        return error_set(err, -ENOMEM, "host %s: out of memory", cfg->host);
    return rc ? error_set(err, -EINVAL, "host %s: %s", cfg->host, gai_strerror(rc)) : 0;
}

/* A certificate that no client will see: an operator who names one wants HTTPS. */
static void warn_certificate(const struct config *cfg)
{
    if (!cfg->tls_port && (cfg->tls_certificate[0] || cfg->tls_key[0]))
        log_warn("%s has no effect: tls_port is not set",
                 cfg->tls_certificate[0] ? "tls_certificate" : "tls_key");
}

/* Known before either is bound: the second bind would say that some other process has the port. */
static int check_ports(const struct config *cfg, struct error *err)
{
    if (cfg->tls_port && cfg->tls_port == cfg->port)
        return error_set(err, -EINVAL, "tls_port must differ from port (both %u)", cfg->port);
    return 0;
}

int server_check(const struct config *cfg, struct error *err)
{
    struct addrinfo *list = NULL;
    warn_certificate(cfg);
    int rc = check_ports(cfg, err);
    if (rc == 0)
        rc = find_host(&list, cfg, cfg->port, err);
    if (rc < 0)
        return rc;
    freeaddrinfo(list);
    return cfg->unix_socket[0] ? listener_check_unix(cfg->unix_socket, err) : 0;
}

static int bind_host(struct server *s, uint32_t number, bool tls, struct error *err)
{
    struct addrinfo *list = NULL;
    unsigned before = s->http.n_listeners;
    int rc = find_host(&list, s->http.cfg, number, err);
    for (struct addrinfo *a = list; a && s->http.n_listeners < MAX_LISTENERS && rc == 0; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        struct error words = {0};
        int fd = listener_bind_tcp(a->ai_addr, a->ai_addrlen, &words);
        if (fd >= 0)
            add_listener(s, fd, tls);
        else if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL) /* a name may have addresses this host lacks */
            rc = error_set(err, fd, "%s://%s", tls ? "https" : "http", words.text);
        else if (!a->ai_next && s->http.n_listeners == before)
            rc = error_set(err, fd, "%s://%s", tls ? "https" : "http", words.text);
    }
    freeaddrinfo(list);
    return rc;
}

static int bind_unix(struct server *s, struct error *err)
{
    int fd = listener_bind_unix(s->http.cfg->unix_socket, err);
    if (fd < 0)
        return fd;
    listener_own_path(add_listener(s, fd, false), s->http.cfg->unix_socket);
    return 0;
}

/* Binds all that the configuration asks for. */
static int bind_all(struct server *s, struct error *err)
{
    const struct config *cfg = s->http.cfg;
    warn_certificate(cfg);
    int rc = check_ports(cfg, err);
    if (rc == 0)
        rc = bind_host(s, cfg->port, false, err);
    if (rc == 0 && cfg->unix_socket[0])
        rc = bind_unix(s, err);
    if (rc < 0 || !cfg->tls_port)
        return rc;
    rc = tls_load(cfg->tls_certificate, cfg->tls_key, err);
    return rc < 0 ? rc : bind_host(s, cfg->tls_port, true, err);
}

/* The address at which other machines reach it, in the configuration's word or the inherited socket's; or
 * NULL. */
static const char *open_place(const struct server *s, bool inherited)
{
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        if (!listener_is_local(&s->http.listeners[i]))
            return inherited ? s->http.listeners[i].where : s->http.cfg->host;
    return NULL;
}

static void warn(struct server *s, bool inherited)
{
    const char *place = open_place(s, inherited);
    if (place && !access_needs_key(s->http.access))
        snprintf(s->warning, sizeof s->warning,
                 "listening on %.100s without API keys: open to all clients that can reach this machine",
                 place);
    else
        snprintf(s->warning, sizeof s->warning, "%s", access_warning(s->http.access));
}

static int inherit(struct server *s, const int *fds, int n_fds, struct error *err)
{
    if (n_fds > MAX_LISTENERS)
        return error_set(err, -EINVAL, "%d sockets inherited, at most %d can be used", n_fds, MAX_LISTENERS);
    for (int i = 0; i < n_fds; i++)
        add_listener(s, fds[i], false)->inherited = true;
    return 0;
}

static int open_listeners(struct server *s, struct error *err)
{
    struct listener_callbacks callbacks = http_callbacks;
    callbacks.max_connections = s->http.cfg->max_connections + SPARE_CONNECTIONS;
    callbacks.idle_timeout_s = s->http.cfg->body_timeout_ms / 1000 + 1;
    for (unsigned i = 0; i < s->http.n_listeners; i++) {
        int rc = listener_open(&s->http.listeners[i], s->http.loop, &callbacks, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int make_where(struct server *s, struct error *err)
{
    size_t size = 1;
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        size += strlen(s->http.listeners[i].where) + 2;
    s->where = calloc(1, size);
    if (!s->where)
        return error_set(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; i < s->http.n_listeners; i++) {
        strcat(s->where, i ? ", " : "");
        strcat(s->where, s->http.listeners[i].where);
    }
    return 0;
}

/* --- news from the engine --- */

static void on_wake(uv_poll_t *wake, int status, int events)
{
    struct server *s = wake->data;
    uint64_t n;
    (void)status;
    (void)events;
    stream_times_turn(s->http.times);
    (void)!read(s->wake_fd, &n, sizeof n); /* first: news that comes after it wakes the loop again */
    generator_take_news(&s->generator);
    http_take_jobs(&s->http);
    listener_run_dirty(s->http.listeners, s->http.n_listeners);
}

/* A full counter (EAGAIN) loses nothing: the loop has not come to read it yet. */
void server_wake(void *server)
{
    const uint64_t one = 1;
    int error = errno;
    (void)!write(((struct server *)server)->wake_fd, &one, sizeof one);
    errno = error;
}

/* Not a uv_async_t: uv_async_send() marks its handle as busy while it writes, and the loop spins until the
 * mark is gone. An engine that is stopped just there would take the loop with it, and the watchdog that is to
 * see it. */
static int open_wake(struct server *s, struct error *err)
{
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return error_set(err, -errno, "cannot create an eventfd: %s", strerror(errno));
    int rc = uv_poll_init(s->http.loop, &s->wake, s->wake_fd);
    if (rc < 0)
        return error_set(err, rc, "cannot watch an eventfd: %s", uv_strerror(rc));
    s->wake.data = s;
    s->http.n_handles++;
    rc = uv_poll_start(&s->wake, UV_READABLE, on_wake);
    return rc < 0 ? error_set(err, rc, "cannot watch an eventfd: %s", uv_strerror(rc)) : 0;
}

/* --- life --- */

/* libuv's own threads only close models, one at a time (model_swap.c). libuv reads this at their first work.
 */
static void size_libuv_pool(void)
{
    setenv("UV_THREADPOOL_SIZE", "1", 0);
}

static void check_drained(struct server *s);

static void on_closed(uv_handle_t *handle)
{
    struct server *s = handle->data;
    assert(s->http.n_handles > 0); /* the server is closed when none is left */
    s->http.n_handles--;
}

static void ignore_poll(uv_poll_t *poll, int status, int events)
{
    (void)poll;
    (void)status;
    (void)events;
}

static void no_work(uv_work_t *work)
{
    (void)work;
}

static void on_no_work(uv_work_t *work, int status)
{
    (void)status;
    struct server *s = work->data;
    assert(s->http.n_jobs > 0);
    s->http.n_jobs--;
}

uint32_t server_connections_within(uint64_t n_descriptors)
{
    uint64_t others = n_descriptors / 4 < OTHER_DESCRIPTORS ? n_descriptors / 4 : OTHER_DESCRIPTORS;
    uint64_t most =
        n_descriptors > others + SPARE_CONNECTIONS ? n_descriptors - others - SPARE_CONNECTIONS : 0;
    return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

/* The largest descriptor that a connection may have. */
static uint32_t highest_descriptor(const struct server *s)
{
    struct rlimit limit;
    uint32_t most = s->http.cfg->max_connections + SPARE_CONNECTIONS + OTHER_DESCRIPTORS;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= most ? (uint32_t)limit.rlim_cur - 1
                                                                           : most;
}

static void no_thread(void *arg)
{
    (void)arg;
}

/* A thread, which leaves its memory to the one that comes after it. */
static int try_thread(struct error *err)
{
    uv_thread_t thread;
    int rc = uv_thread_create(&thread, no_thread, NULL);
    if (rc < 0)
        return error_set(err, -ENOMEM, "cannot start a thread: %s", uv_strerror(rc));
    uv_thread_join(&thread);
    return 0;
}

/* libuv ends the process where it finds no memory for its table of descriptors, or for its thread. Both are
 * taken here, at the start: the table by watching the highest descriptor that a connection can have. */
static int reserve(struct server *s, struct error *err)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    int high = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, highest_descriptor(s)) : -1;
    if (high >= 0 && uv_poll_init(s->http.loop, &s->reserve, high) == 0) {
        s->reserve.data = s;
        s->http.n_handles++;
        uv_poll_start(&s->reserve, UV_READABLE, ignore_poll);
        uv_poll_stop(&s->reserve);
        uv_close((uv_handle_t *)&s->reserve, on_closed);
    }
    if (high >= 0)
        close(high);
    if (fd >= 0)
        close(fd);
    int rc = try_thread(err);
    if (rc < 0)
        return rc;
    s->first_work.data = s;
    s->http.n_jobs += uv_queue_work(s->http.loop, &s->first_work, no_work, on_no_work) == 0;
    return 0;
}

static bool listeners_closed(const struct server *s)
{
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        if (s->http.listeners[i].n_handles)
            return false;
    return true;
}

/* --- what http asks --- */

/* When requests name their models, a request for tokens waits for its own, and lists show models that are not
 * loaded. */
static int ask_model(struct http_server *http, const struct route *route, struct api_error *e)
{
    const struct generator *g = http->generator;
    if (g->model)
        return 0;
    if (generator_refuses(g, e) < 0)
        return -1;
    if (route->work || route->lists)
        return 0;
    e->retry_after_s = 5;
    return api_fail(e, 503, "loading", NULL, "no model is loaded now: the next request for tokens loads one");
}

static int ask_admission(struct http_server *http, struct api_error *e)
{
    return generator_admits(http->generator, e);
}

static int ask_text_admission(struct http_server *http, bool is_long, struct api_error *e)
{
    return generator_admits_text(http->generator, is_long, e);
}

static void tell_queue(struct http_server *http, struct api_error *e)
{
    generator_queue_full(http->generator, http->generator->model, e);
}

/* The http_server is the server's first member. */
static struct server *server_of(struct http_server *http)
{
    return (struct server *)http;
}

static void take_end(struct http_server *http)
{
    check_drained(server_of(http));
}

static void take_wake(struct http_server *http)
{
    server_wake(server_of(http));
}

static const struct http_ops ops = {.has_model = ask_model,
                                    .admits = ask_admission,
                                    .admits_text = ask_text_admission,
                                    .queue_full = tell_queue,
                                    .ended = take_end,
                                    .wake = take_wake};

int server_open(struct server **out, uv_loop_t *loop, const struct config *cfg, const int *fds, int n_fds,
                struct error *err)
{
    struct server *s = calloc(1, sizeof *s);
    if (s)
        s->http.listeners = calloc(MAX_LISTENERS, sizeof *s->http.listeners);
    if (!s || !s->http.listeners) {
        free(s);
        return error_set(err, -ENOMEM, "out of memory");
    }
    for (int state = 0; state < CONNECTION_STATES; state++)
        TAILQ_INIT(&s->http.connections[state].queue);
    unread_open(&s->http.unread);
    s->http.loop = loop;
    s->http.cfg = cfg;
    s->http.ops = &ops;
    s->http.routes = api_routes;
    s->http.generator = &s->generator;
    s->http.api = &s->api;
    TAILQ_INIT(&s->generator.waiting);
    s->generator.http = &s->http;
    s->generator.cfg = cfg;
    s->api.warning = s->warning;
    s->wake_fd = -1;
    s->http.stats.started_ns = clock_ns();
    s->api.created = (int64_t)time(NULL);
    size_libuv_pool();
    json_object_seed(0); /* from the system's randomness, before threads parse */
    json_count_failures();
    s->http.no_memory = http_no_memory_response();
    uv_timer_init(loop, &s->drain_timer);
    uv_timer_init(loop, &s->linger_timer);
    s->drain_timer.data = s->linger_timer.data = s;
    s->http.n_handles = 2;
    uint32_t n = cfg->max_connections < MOST_LEVELS ? cfg->max_connections + SPARE_CONNECTIONS : MOST_LEVELS;
    int rc = peers_open(&s->http.peers, n) ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = reserve(s, err);
    if (rc == 0)
        rc = open_wake(s, err);
    if (rc == 0)
        rc = pool_open(&s->http.pool, server_wake, s, err);
    if (rc == 0)
        rc = access_open(&s->http.access, cfg, err);
    if (rc == 0)
        rc = n_fds > 0 ? inherit(s, fds, n_fds, err) : bind_all(s, err);
    if (rc == 0)
        warn(s, n_fds > 0);
    if (rc == 0)
        rc = make_where(s, err);
    if (rc == 0)
        rc = open_listeners(s, err);
    if (rc < 0) {
        (void)server_end(s);
        server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void server_keep_times(struct server *s, struct stream_times *times)
{
    s->http.times = times;
}

void server_reload(struct server *s)
{
    struct error err = {0};
    if (access_reload(s->http.access, &err) < 0)
        log_error("keys: %s; the current keys stay in use", err.text);
    else if (access_needs_key(s->http.access))
        log_info("keys: %u in use", access_n_keys(s->http.access));
    if (!s->http.cfg->tls_port)
        return;
    err = (struct error){0};
    if (tls_load(s->http.cfg->tls_certificate, s->http.cfg->tls_key, &err) < 0)
        log_error("certificate: %s; the current one stays in use: %s", err.text, tls_summary());
    else
        log_info("certificate: %s", tls_summary());
}

const char *server_warning(const struct server *s)
{
    return s->warning;
}

const char *server_where(const struct server *s)
{
    return s->where;
}

uint16_t server_port(const struct server *s)
{
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        if (s->http.listeners[i].port)
            return s->http.listeners[i].port;
    return 0;
}

void server_set_progress(struct server *s, double fraction)
{
    if (fraction >= 0 && fraction <= 1)
        atomic_store(&s->generator.progress_ppm, (uint32_t)(fraction * 1e6));
}

void server_set_state(struct server *s, enum server_state state)
{
    generator_set_state(&s->generator, state);
}

enum server_state server_state(const struct server *s)
{
    return s->generator.state;
}

struct server_load server_load(const struct server *s)
{
    return generator_load(&s->generator);
}

void server_fail(struct server *s, const char *words)
{
    server_set_state(s, SERVER_STALLED);
    for (struct generation *g = LIST_FIRST(&s->generator.generations); g; g = LIST_NEXT(g, link))
        generation_abandon(g, words);
    listener_run_dirty(s->http.listeners, s->http.n_listeners);
}

/* --- drain --- */

static void cancel_all(struct server *s)
{
    for (struct generation *g = LIST_FIRST(&s->generator.generations); g; g = LIST_NEXT(g, link))
        generation_cancel(g);
}

static void finish_drain(struct server *s)
{
    void (*drained)(void *) = s->drained;
    uv_timer_stop(&s->drain_timer);
    s->drained = NULL;
    if (drained)
        drained(s->drained_context);
}

static bool is_drained(const struct server *s)
{
    if (s->generator.n_active || s->lingers)
        return false;
    for (const struct request *r = LIST_FIRST(&s->http.requests); r; r = LIST_NEXT(r, link))
        if (r->phase != REQUEST_BODY) /* its reply is on the way */
            return false;
    return true;
}

static void check_drained(struct server *s)
{
    if (s->generator.draining && s->drained && is_drained(s))
        finish_drain(s);
}

static void on_lingered(uv_timer_t *timer)
{
    struct server *s = timer->data;
    s->lingers = false;
    check_drained(s);
}

/* A proxy that asks /health/proxy every so often must have seen that this server drains before its port is
 * closed. With inherited sockets the port stays open. */
static void linger(struct server *s, uint64_t timeout_ms)
{
    uint64_t ms = s->http.cfg->drain_min_ms < timeout_ms ? s->http.cfg->drain_min_ms : timeout_ms;
    bool own = s->http.n_listeners && !s->http.listeners[0].inherited;
    s->lingers = own && ms > 0;
    if (s->lingers)
        uv_timer_start(&s->linger_timer, on_lingered, ms, 0);
    else
        uv_timer_stop(&s->linger_timer);
}

static void on_flushed(uv_timer_t *timer)
{
    finish_drain(timer->data);
}

static void on_drain_over(uv_timer_t *timer)
{
    struct server *s = timer->data;
    cancel_all(s);
    uv_timer_start(timer, on_flushed, FLUSH_MS, 0);
    listener_run_dirty(s->http.listeners, s->http.n_listeners);
}

static void begin_drain(struct server *s)
{
    struct generation *next;
    s->generator.draining = true;
    if (s->generator.state != SERVER_STALLED) /* a stalled server keeps that state until the end */
        s->generator.state = SERVER_DRAINING;
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        if (s->http.listeners[i].inherited)
            listener_quiesce(&s->http.listeners[i]);
    for (struct generation *g = LIST_FIRST(&s->generator.generations); g; g = next) {
        next = LIST_NEXT(g, link);
        generation_refuse(g);
    }
}

void server_drain(struct server *s, uint64_t timeout_ms, void (*done)(void *context), void *context)
{
    if (!s->generator.draining) {
        begin_drain(s); /* it serves what an inherited socket has accepted: no client to tell yet */
        s->drained = done;
        s->drained_context = context;
    } else if (uv_timer_get_due_in(&s->drain_timer) <= timeout_ms) {
        return;
    }
    linger(s, timeout_ms);
    /* Through the timer even when nothing is left, so that `done` never comes from inside this call. */
    bool idle = is_drained(s);
    uv_timer_start(&s->drain_timer, idle ? on_flushed : on_drain_over, idle ? 0 : timeout_ms, 0);
}

/* --- the end --- */

static bool any_suspended(const struct server *s)
{
    for (const struct request *r = LIST_FIRST(&s->http.requests); r; r = LIST_NEXT(r, link))
        if (r->suspended)
            return true;
    return false;
}

static void drop_requests(struct server *s)
{
    struct request *next;
    for (struct request *r = LIST_FIRST(&s->http.requests); r; r = next) {
        next = LIST_NEXT(r, link);
        r->gone = true;
        if (r->ops)
            r->ops->drop(r);
        request_cancel_work(r);
        request_resume(r);
    }
    listener_run_dirty(s->http.listeners, s->http.n_listeners);
}

static void on_close_timer(uv_timer_t *timer)
{
    (void)timer;
}

/* libmicrohttpd must not be stopped with a suspended connection, nor may a request go while the engine has
 * it. */
static bool run_down(struct server *s)
{
    uint64_t until = clock_ns() + CLOSE_MS * 1000000ull;
    uv_timer_start(&s->drain_timer, on_close_timer, 20, 20); /* so that the loop comes back to look */
    while (s->generator.n_active || s->http.n_jobs || any_suspended(s)) {
        cancel_all(s);
        drop_requests(s);
        if (clock_ns() > until)
            return false;
        uv_run(s->http.loop, UV_RUN_ONCE);
    }
    return true;
}

int server_end(struct server *s)
{
    s->closing = s->generator.draining = true;
    s->drained = NULL;
    if (s->generator.state != SERVER_STALLED)
        s->generator.state = SERVER_DRAINING;
    if (!run_down(s)) {
        log_warn("%s within %d ms",
                 s->http.n_jobs ? "a text was not read or written to its end, or a file not found in time"
                                : "the engine did not release its requests",
                 CLOSE_MS);
        return -ETIMEDOUT;
    }
    uv_timer_stop(&s->drain_timer);
    for (unsigned i = 0; i < s->http.n_listeners; i++)
        listener_close(&s->http.listeners[i]);
    while (!listeners_closed(s))
        uv_run(s->http.loop, UV_RUN_ONCE);
    LIST_INIT(&s->generator.loaded);
    s->generator.model = s->generator.leaving = NULL; /* their engines may be closed from here on */
    return 0;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    pool_close(s->http.pool);
    if (s->wake.data)
        uv_close((uv_handle_t *)&s->wake, on_closed);
    uv_close((uv_handle_t *)&s->drain_timer, on_closed);
    uv_close((uv_handle_t *)&s->linger_timer, on_closed);
    while (s->http.n_handles)
        uv_run(s->http.loop, UV_RUN_ONCE);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    if (s->http.no_memory)
        MHD_destroy_response(s->http.no_memory);
    free(s->http.listeners);
    access_close(s->http.access);
    clients_free(&s->http.clients);
    peers_close(&s->http.peers);
    tls_unload();
    free(s->where);
    free(s);
}
