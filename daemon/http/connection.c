/* connection.c - one client's connection: its time limits, its peer's leaving, its state, and which
 * connection makes room for another. */
#include "http.h"
#include "base/log.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/socket.h>

#define IDLE_MS  60000 /* between two requests */
#define LATE_MS  100   /* by which a timer is late only where the loop was held up */
#define LEFT_MS  1000  /* a request whose sender has left, to be whole */
#define STILL_MS 1000  /* without a byte: longer than a client needs to send its request or take more */
#define ROOM     8     /* connections that may come before one that was cut is gone */
#define TRIED    8     /* addresses with as many idle connections, of which one loses one */
#define FEW      8     /* idle connections that an address may have without being closed before others */

/* --- time limits --- */

/* True if its sender left bytes behind that libmicrohttpd has not taken yet. */
static bool has_unread(const struct connection *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void on_tick(uv_timer_t *timer)
{
    struct connection *c = timer->data;
    if (c->request)
        c->ops->tick(c->request);
    listener_run_dirty(c->server->listeners, c->server->n_listeners);
}

static bool has_whole_request(const struct connection *c)
{
    return c->request && c->whole;
}

static void on_slow(uv_timer_t *timer);

/* libuv counts from when the loop's turn began: one that has taken long would be the client's time. */
static void start_limit(struct connection *c, uint64_t ms)
{
    uv_update_time(c->server->loop);
    c->due_ns = clock_ns() + ms * 1000000;
    uv_timer_start(&c->timer, on_slow, ms, 0);
}

/* The loop was held up, or the process stopped, and what the client sent in time is not read yet: once it
 * gets as much time again. */
static bool give_back(struct connection *c)
{
    uint64_t now = clock_ns(), late_ms = now > c->due_ns ? (now - c->due_ns) / 1000000 : 0;
    if (c->given_back || late_ms < LATE_MS)
        return false;
    c->given_back = true;
    start_limit(c, late_ms < c->limit_ms ? late_ms : c->limit_ms);
    return true;
}

static void on_slow(uv_timer_t *timer)
{
    struct connection *c = timer->data;
    if (give_back(c))
        return;
    if (c->left && !has_whole_request(c) && has_unread(c)) {
        connection_limit(c, LEFT_MS);
    } else {
        if (c->request && !c->whole && !c->left)
            c->ops->cut_body(c->request);
        connection_shut(c);
    }
    listener_run_dirty(c->server->listeners, c->server->n_listeners);
}

void connection_limit(struct connection *c, uint64_t ms)
{
    if (c->left && !has_whole_request(c) && ms > LEFT_MS)
        ms = LEFT_MS;
    c->given_back = false;
    c->limit_ms = ms;
    start_limit(c, ms);
}

void connection_start_ticks(struct connection *c, uint64_t ms)
{
    uv_timer_start(&c->timer, on_tick, ms, ms);
}

void connection_stop_timer(struct connection *c)
{
    uv_timer_stop(&c->timer);
}

void connection_whole(struct connection *c)
{
    c->whole = true;
    uv_timer_stop(&c->timer);
}

void connection_pause(struct connection *c)
{
    if (!uv_is_active((uv_handle_t *)&c->timer))
        return;
    c->paused_ms = uv_timer_get_due_in(&c->timer) + 1; /* 0 says that it was not stopped */
    uv_timer_stop(&c->timer);
}

void connection_continue(struct connection *c)
{
    if (c->paused_ms)
        connection_limit(c, c->paused_ms);
    c->paused_ms = 0;
}

/* --- its peer's leaving --- */

static void handle_closed(struct connection *c)
{
    assert(c->n_handles > 0 && c->server->n_handles >= c->n_handles);
    c->server->n_handles--;
    if (!--c->n_handles)
        free(c);
}

/* libmicrohttpd does not look again when the end of the connection came with the last bytes, in a header or
 * a body: a request that is not whole with what was sent never will be. One that is whole and waits, for its
 * text or for its client to read, is given up. One that was answered at once keeps its reply, since a client
 * may close its side alone. */
static void on_watch(uv_poll_t *watch, int status, int events)
{
    struct connection *c = watch->data;
    if (status >= 0 && !(events & UV_DISCONNECT))
        return;
    uv_poll_stop(watch);
    c->left = true;
    if (!has_whole_request(c))
        connection_limit(c, LEFT_MS);
    if (!c->request || !c->watched)
        return;
    c->ops->give_up(c->request);
    listener_run_dirty(c->server->listeners, c->server->n_listeners);
}

void connection_shut(struct connection *c)
{
    shutdown(c->fd, SHUT_RDWR);
}

static void on_watch_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void watch(struct connection *c)
{
    if (!c->has_watch) {
        if (uv_poll_init(c->server->loop, &c->watch, c->fd) < 0)
            return;
        c->watch.data = c;
        c->has_watch = true;
        c->n_handles++;
        c->server->n_handles++;
    }
    if (!uv_is_active((uv_handle_t *)&c->watch))
        uv_poll_start(&c->watch, UV_DISCONNECT, on_watch);
}

void connection_watch(struct connection *c)
{
    if (!c->watched)
        watch(c);
    c->watched = true;
}

/* --- states --- */

/* True where make_room() may close it before replies to clients with a key. */
static bool is_idle(enum connection_state state)
{
    static_assert(CONNECTION_REPLYING == PEER_STATES - 1, "idle states come first");
    return state <= CONNECTION_REPLYING;
}

/* The bytes of a whole reply that its client is to take. */
static size_t unread_of(const struct connection *c)
{
    bool reads = c->state == CONNECTION_REPLYING || c->state == CONNECTION_KEYED;
    return reads && c->request ? c->n_held : 0;
}

void connection_held(struct connection *c, size_t n)
{
    c->n_held = n;
    if (unread_of(c) != c->unread.n_bytes)
        unread_set(&c->server->unread, &c->unread, unread_of(c), clock_ns());
}

static void unlink_connection(struct connection *c)
{
    struct connection_list *list = &c->server->connections[c->state];
    if (is_idle(c->state)) {
        TAILQ_REMOVE(&c->peer->idle[c->state], c, of_peer);
        peer_remove_idle(&c->server->peers, c->peer);
    }
    TAILQ_REMOVE(&list->queue, c, link);
    assert(list->n > 0);
    list->n--;
}

static void link_connection(struct connection *c, enum connection_state state)
{
    struct connection_list *list = &c->server->connections[state];
    c->state = state;
    if (is_idle(state)) {
        TAILQ_INSERT_TAIL(&c->peer->idle[state], c, of_peer);
        peer_add_idle(&c->server->peers, c->peer);
    }
    c->moved_ns = clock_ns();
    unread_set(&c->server->unread, &c->unread, unread_of(c), c->moved_ns);
    TAILQ_INSERT_TAIL(&list->queue, c, link);
    list->n++;
}

static void set_state(struct connection *c, enum connection_state state)
{
    if (c->state == CONNECTION_CUT)
        return;
    unlink_connection(c);
    link_connection(c, state);
}

void connection_begin(struct connection *c, struct request *r, const struct connection_ops *ops)
{
    assert(!c->request);
    c->request = r;
    c->ops = ops;
    c->n_held = 0;
    c->whole = c->watched = c->idle = false;
}

void connection_rest(struct connection *c)
{
    c->paused_ms = 0;
    c->request = NULL;
    c->idle = true;
    connection_limit(c, IDLE_MS);
    set_state(c, CONNECTION_RESTING);
}

void connection_accept(struct connection *c)
{
    set_state(c, CONNECTION_BUSY);
}

void connection_discard(struct connection *c)
{
    set_state(c, CONNECTION_DISCARDING);
}

void connection_answered(struct connection *c, bool keyed)
{
    set_state(c, keyed ? CONNECTION_KEYED : CONNECTION_REPLYING);
}

void connection_moved(struct connection *c)
{
    set_state(c, c->state);
}

/* --- room for others --- */

/* The best to close of those in these queues that have moved nothing since then. */
static struct connection *first_still(const struct connection_queue *const queues[PEER_STATES],
                                      uint64_t since_ns)
{
    for (int state = 0; state < PEER_STATES; state++) {
        struct connection *c = TAILQ_FIRST(queues[state]);
        if (c && c->moved_ns <= since_ns)
            return c;
    }
    return NULL;
}

/* The same among all connections, where no address has more than FEW that are idle, else among those of the
 * addresses that have most: of a few of these, so that looking costs the same however many there are. */
static struct connection *find_still(const struct http_server *s, uint64_t since_ns)
{
    const struct connection_queue *queues[PEER_STATES];
    const struct peer *p;
    int n_tried = 0;
    for (int state = 0; state < PEER_STATES; state++)
        queues[state] = &s->connections[state].queue;
    if (s->peers.most <= FEW)
        return first_still(queues, since_ns);
    TAILQ_FOREACH(p, peers_largest(&s->peers), level) {
        for (int state = 0; state < PEER_STATES; state++)
            queues[state] = &p->idle[state];
        struct connection *c = first_still(queues, since_ns);
        if (c || ++n_tried == TRIED)
            return c;
    }
    return NULL;
}

/* A client that connects when the spare connections are used up may still ask for health, so another
 * connection is closed. It is one of the address that has most, so that one that connects faster than others
 * can send their headers closes only its own. There a client that is sending or reading right now loses its
 * connection only when all others are, too. A busy connection is never closed: there are at most
 * max_connections of these, and so always others. */
static void make_room(struct http_server *s)
{
    if (s->n_connections <= s->cfg->max_connections + SPARE_CONNECTIONS - ROOM)
        return;
    uint64_t now = clock_ns();
    struct connection *c = find_still(s, now - STILL_MS * 1000000ull);
    if (!c)
        c = find_still(s, now);
    if (!c)
        c = TAILQ_FIRST(&s->connections[CONNECTION_KEYED].queue);
    if (!c)
        return;
    set_state(c, CONNECTION_CUT);
    connection_shut(c);
}

/* --- memory for replies --- */

/* Its memory goes in the loop's next turn, which ops->wake() makes it take. */
static void drop_unread(struct connection *c)
{
    set_state(c, CONNECTION_CUT);
    c->ops->drop_reply(c->request);
    c->server->ops->wake(c->server);
}

/* A quarter of body_memory is theirs, so that what is promised to requests that still run drops no reply that
 * is being read; and never so little that short replies drop each other. */
void connection_drop_unread(const struct connection *newest)
{
    struct http_server *s = newest->server;
    uint64_t theirs = s->cfg->body_memory / 4;
    if (s->reply_bytes <= s->cfg->body_memory)
        return;
    if (theirs < REQUEST_LARGE_REPLY)
        theirs = REQUEST_LARGE_REPLY;
    while (s->reply_bytes > s->cfg->body_memory && s->unread.n_bytes > theirs) {
        struct unread_reply *u = unread_first(&s->unread, &newest->unread, clock_ns());
        if (!u)
            return;
        drop_unread((struct connection *)((char *)u - offsetof(struct connection, unread)));
    }
}

/* --- what libmicrohttpd says --- */

static void on_timer_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

/* The address that it comes from; a proxy's clients are all its own. */
static struct peer *peer_of(struct http_server *s, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return peer_ref(&s->peers, access_client(s->access, info ? info->client_addr : NULL, NULL));
}

static void connection_open(struct listener *l, struct MHD_Connection *mhd, void **context)
{
    struct http_server *s = l->owner;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *c = calloc(1, sizeof *c);
    if (!c || !info || !(c->peer = peer_of(s, mhd))) { /* without it every request is refused */
        free(c);
        return;
    }
    c->server = s;
    c->listener = l;
    c->fd = info->connect_fd;
    s->n_connections++;
    uv_timer_init(s->loop, &c->timer);
    c->timer.data = c;
    c->n_handles = 1;
    s->n_handles++;
    connection_limit(c, s->cfg->header_timeout_ms);
    watch(c);
    *context = c;
    make_room(s);
    link_connection(c, CONNECTION_RESTING);
}

static void connection_close(struct connection *c)
{
    assert(c->server->n_connections > 0);
    c->server->n_connections--;
    unlink_connection(c);
    unread_set(&c->server->unread, &c->unread, 0, clock_ns());
    peer_unref(c->peer);
    if (c->has_watch)
        uv_close((uv_handle_t *)&c->watch, on_watch_closed);
    uv_close((uv_handle_t *)&c->timer, on_timer_closed);
}

/* libmicrohttpd gives up listening when it has all the connections it may, or the system has no descriptor
 * for one more, and begins again when it is run after one has gone: nothing else may ever have it run. */
void connection_notify(void *cls, struct MHD_Connection *mhd, void **context,
                       enum MHD_ConnectionNotificationCode code)
{
    struct listener *l = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_open(l, mhd, context);
        return;
    }
    l->dirty = true;
    if (*context)
        connection_close(*context);
}

struct connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* The request line is there: from now on the headers have their time. (The first request's time runs since
 * the connection was opened.) */
void *connection_uri(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    (void)cls;
    (void)uri;
    struct connection *c = connection_of(mhd);
    if (c && c->idle)
        connection_limit(c, c->server->cfg->header_timeout_ms);
    return NULL;
}
