/* http.h - inside the HTTP side: the server's state, a connection, an HTTP request on its way to one reply.
 * (What daemon/service/serve.c sees is server.h.)
 *
 * Every request goes: headers (refused here where possible) -> body -> its route's handler -> reply, or
 * suspended until there is one. Who has something for a suspended request - a token, a deadline, a cancel, a
 * keep-alive - does the same thing: sets state, request_resume(). A request that its headers refuse is
 * answered after its body was read and thrown away.
 *
 * Thread: the loop, but for what request_run() gives to the pool. Memory: a request owns one arena; it is
 * freed when libmicrohttpd, the engine and the pool have all let go of it. */
#pragma once
#include "access.h"
#include "api_error.h"
#include "base/arena.h"
#include "base/buf.h"
#include "client_limit.h"
#include "base/clock.h"
#include "config/config.h"
#include "engine/engine.h"
#include "listener.h"
#include "pool.h"
#include "route.h"
#include "service/server.h"
#include "base/histogram.h"

#include <stdatomic.h>

#define ID_RANDOM         22 /* characters, 131 bits */
#define SPARE_CONNECTIONS 64 /* beside max_connections busy ones, so that health still gets an answer */

struct generation;
struct request;

/* Tells which connections may be closed to make room for another (connection.c). */
enum connection_state {
    CONNECTION_RESTING,    /* it has no request, or not all of its headers */
    CONNECTION_DISCARDING, /* its client sends a body that is thrown away */
    CONNECTION_REPLYING,   /* its client, which has no key, takes the reply */
    CONNECTION_KEYED,      /* the same of a client with a key */
    CONNECTION_BUSY,       /* its request was accepted: it comes in, waits or runs; max_connections */
    CONNECTION_CUT,        /* it was closed to make room: libmicrohttpd will see its end */
    CONNECTION_STATES
};

/* The connections of one state; the first has moved no byte for longest. */
struct connection_list {
    struct connection *first, *last;
    uint32_t n;
};

struct server {
    uv_loop_t *loop;
    const struct config *cfg;
    struct listener *listeners;
    unsigned n_listeners;
    char *where;
    struct access *access;
    char warning[240]; /* about how it listens, or "" */
    int wake_fd;       /* eventfd: server_wake() adds to it */
    uv_poll_t wake;
    uv_timer_t drain_timer, linger_timer;
    uv_poll_t reserve; /* see server.c */
    uv_work_t first_work;
    unsigned n_handles; /* of the server and of its connections: all closed before it is freed */

    enum server_state state;
    _Atomic uint32_t progress_ppm;
    struct server_model models[2]; /* room for the two below */
    struct server_model *model;    /* new requests run on; NULL: loading, or suspended */
    struct server_model *leaving;  /* requests still run on; or NULL */
    struct engine_stats past;      /* figures of those that are gone: what counts up */
    void (*left)(void *context);
    void *left_context;
    struct MHD_Response *no_memory;   /* to requests that there is no memory for */
    const struct server_admin *admin; /* NULL in tests that have no use for it */
    void *admin_context;
    int64_t created; /* Unix seconds of the start */

    struct stats stats;
    struct clients clients;         /* when client_limit is on */
    struct request *requests;       /* in the hands of libmicrohttpd */
    struct generation *generations; /* accepted and not finished */
    uint32_t n_active;              /* of them */
    uint32_t n_preparing;           /* accepted, not submitted to the engine yet */
    struct pool *pool;
    uint32_t n_jobs;  /* on the pool */
    uint32_t n_texts; /* of them: /tokenize and /detokenize */
    uint32_t n_connections;
    struct connection_list connections[CONNECTION_STATES];
    uint64_t body_bytes;  /* held by all bodies together */
    uint64_t text_bytes;  /* of these, by those of /tokenize and /detokenize */
    uint64_t reply_bytes; /* held by all replies that their clients have not taken yet, or promised to them */

    bool draining, closing;
    bool lingers; /* drain_min_ms is not over */
    void (*drained)(void *context);
    void *drained_context;
};

struct connection {
    struct server *server;
    struct listener *listener;
    struct connection *next, *prev; /* of the same state */
    enum connection_state state;
    uint64_t moved_ns; /* CLOCK_MONOTONIC: it came to this state, or moved bytes in it */
    int fd;
    uv_timer_t timer; /* header, then body, then keep-alive comments: one at a time */
    uv_poll_t watch;  /* for the peer's leaving */
    struct request *request;
    bool has_watch;
    bool left;          /* the peer sends no more */
    bool idle;          /* between two requests */
    uint64_t paused_ms; /* left of its time when that was stopped; 0: it was not */
    unsigned n_handles;
};

enum request_phase {
    REQUEST_BODY,    /* reading, or throwing away */
    REQUEST_WAITING, /* its handler has taken it; suspended until there is news */
    REQUEST_REPLY,   /* a reply is ready, not yet queued */
    REQUEST_STREAM,  /* a stream is ready, not yet queued */
    REQUEST_QUEUED,  /* the reply is libmicrohttpd's to send */
};

/* A list in a reply that is written on the pool as its client takes it: a long one is never held whole, and
 * holds up no other request. */
struct reply_list {
    struct reply_list *next;
    size_t at;           /* where in `out` it stands */
    uint32_t i, to;      /* items [i, to) are still to come */
    const char *between; /* what goes before each item but the first */
    bool begun;          /* the next item is not the first */
    /* Writes item l->i. What it reads must live, and stay as it is, until all are written. */
    void (*put)(struct buf *out, struct reply_list *l);
    const void *of; /* put's own */
};

struct request {
    struct server *server;
    struct connection *connection; /* NULL once libmicrohttpd is done with it */
    struct MHD_Connection *mhd;
    struct arena arena;
    struct request *next, *prev;
    unsigned refs; /* libmicrohttpd, engine, pool */

    const struct route *route; /* NULL: none */
    const char *method, *path;
    const char *origin;           /* of a page elsewhere that may ask; NULL: no CORS headers */
    uint64_t owner;               /* of the key it came with; 0: keys are not in use */
    bool admin;                   /* it came with the admin key */
    uint64_t client;              /* key or address that it comes from; 0: not asked for */
    bool counted;                 /* in server.clients */
    char id[65];                  /* X-Request-Id: the client's or ours */
    char address[ACCESS_ADDRESS]; /* the client's, behind trusted proxies too */
    enum request_phase phase;
    bool suspended, watched;
    bool gone;    /* the client left: nothing will be sent */
    bool discard; /* the body is thrown away */
    bool cut;     /* we ended its connection: `error` says why, if it was refused */
    bool has_body;
    /* CLOCK_MONOTONIC; accepted: the body is complete; replied: libmicrohttpd has got the whole reply. */
    uint64_t accepted_ns, opened_ns, replied_ns;

    char *body; /* malloc'ed: it grows and leaves early */
    size_t body_len, body_cap;
    uint64_t body_seen; /* bytes, thrown away ones included */

    /* The reply. */
    int status;
    struct api_error error;
    struct buf out;   /* its body, or the part of a stream not taken yet */
    size_t held;      /* bytes in server.reply_bytes */
    size_t out_at;    /* of a stream: bytes taken */
    size_t out_whole; /* of a stream: the end of its newest whole event */
    /* Lists that stand in `out` beside its bytes, by their place; and what of the first is written. */
    struct reply_list *lists, *last_list;
    struct arena items_arena; /* of `items` alone, so that the pool allocates nothing beside the loop */
    struct buf items;
    size_t items_at; /* bytes of it taken */
    bool writing;    /* the pool has the lists, `items`, and all that the lists are made of */
    /* Of a stream: writes what comes next, if anything does, when all of `out` is taken; or NULL. */
    void (*more)(struct request *r);
    void (*dropped)(struct request *r); /* once the pool has let go of the lists of one that was given up */
    uint64_t n_taken;                   /* since its client's time was last set: see request_limit() */
    bool limited;                       /* its client has its time to take it */
    bool stream_ended;
    bool cut_short;           /* the stream ends with the event that needs no memory */
    const char *allow;        /* header */
    const char *content_type; /* NULL: application/json */
    const char *policy;       /* Content-Security-Policy, of the page */
    uint32_t retry_after_s;
    bool close;

    struct generation *generation; /* or NULL */
    struct server_model *model;    /* of a handler that works on the pool; else NULL */
    struct pool_job job;
    bool working; /* the pool has the job */
    void (*work)(struct request *);
    void (*worked)(struct request *);
};

/* Reply with what `out` holds as JSON, or with a 503 when there was no memory for it. */
void request_reply(struct request *r, int status);
/* That 503's body, which needs no memory. */
extern const char no_memory_reply[];
/* Of a stream: a whole event stands at the end of `out`. False when there was no memory for it: what there is
 * of it is not sent, and the stream ends with an `event: error` instead. */
bool request_wrote(struct request *r);
/* Of a stream, or of a large reply: moves what may be sent, at most `max` bytes; 0 when there is nothing, or
 * nothing yet (r->writing), or when no memory was left in the middle (r->gone). */
size_t request_take(struct request *r, char *out, size_t max);
#define REPLY_WINDOW 16384 /* bytes of a stream or of a list that are written ahead of what is taken */
/* Bytes of a stream or list that are written and not taken. A list that has not come is a window full. */
size_t request_n_ahead(const struct request *r);
/* At the end of `out`: now, or `later`, on the pool, as the client takes it. */
void request_put_list(struct request *r, struct reply_list list, bool later);
/* Reply with r->error, or with *e (copied). */
void request_fail(struct request *r, const struct api_error *e);
/* The error object, with its newline. */
void api_error_put(struct buf *out, const struct api_error *e);
/* The same in the form of the route's dialect. */
void request_put_error(struct request *r, const struct api_error *e);
/* From inside a handler: no reply yet. Watches for the client's leaving. */
void request_suspend(struct request *r);
/* There is news (phase, out, gone): let libmicrohttpd look. */
void request_resume(struct request *r);
/* Counts that the body takes `cap` bytes now. */
void request_count_body(struct request *r, size_t cap);
/* Drops the body's memory. */
void request_drop_body(struct request *r);
/* For an answer that costs little but may be long: tells if there is room for it beside the large replies
 * that others have not taken yet (body_memory; alone it always has). Else r->error is set, and what there was
 * of it is gone. */
bool request_has_room(struct request *r);
/* Counts n bytes, instead of what was counted before, as held for the reply (body_memory) until the request
 * ends. */
void request_hold(struct request *r, size_t n);
/* The same of all memory that the request has, once its reply is whole or is made of what is there. When the
 * replies of all clients then exceed body_memory, others that are not read are dropped. */
void request_hold_reply(struct request *r);
#define REQUEST_LARGE_REPLY (64 * 1024) /* bytes: more than a socket takes at once */
/* The reply is whole: from now on its client must take max_body bytes of it per body_timeout_ms. */
void request_limit(struct request *r);
void request_ref(struct request *r);
/* Calls `work`, which may touch the request's arena, body, out, error and generation only, on the pool, then
 * `worked` on the loop. */
void request_run(struct request *r, enum pool_class class, void (*work)(struct request *),
                 void (*worked)(struct request *));
#define REQUEST_INLINE_BODY                                                                                  \
    4096 /* bytes that are read on the loop: about 0.1 ms of parsing and tokenising                          \
          */
/* The same from inside a handler, or from `worked`: the request is suspended meanwhile. */
void request_wait_for(struct request *r, enum pool_class class, void (*work)(struct request *),
                      void (*worked)(struct request *));
/* The work is not needed any more: `worked` is called soon, without `work` if that has not begun. */
void request_cancel_work(struct request *r);
/* Hands jobs that have run back to their requests. */
void server_take_jobs(struct server *s);
void request_unref(struct request *r);

/* connection.c. libmicrohttpd's callbacks: a connection has come or gone; a request line is there. */
void connection_notify(void *cls, struct MHD_Connection *mhd, void **context,
                       enum MHD_ConnectionNotificationCode code);
void *connection_uri(void *cls, const char *uri, struct MHD_Connection *mhd);
struct connection *connection_of(struct MHD_Connection *mhd); /* NULL: there was no memory for it */
/* It has a request from here to there. */
void connection_begin(struct connection *c, struct request *r);
void connection_rest(struct connection *c);
/* The headers are there: the request was accepted, or its body is thrown away. */
void connection_accept(struct connection *c);
void connection_discard(struct connection *c);
/* The reply is whole: all that is left is its client's to take. */
void connection_answered(struct connection *c);
/* libmicrohttpd has brought bytes of the body, or taken some of the reply. */
void connection_moved(struct connection *c);
/* Ends it unless this is called again, or the timer stopped, within `ms`, or soon when its peer has left
 * before its request was whole. */
void connection_limit(struct connection *c, uint64_t ms);
/* The replies of all clients exceed body_memory: closes connections whose clients have not read theirs, that
 * which has moved no byte for longest first, but not `newest`. */
void connection_drop_unread(const struct connection *newest);
/* Its request gets no more: the connection is closed. */
void connection_give_up(struct connection *c);
/* Keep-alive ticks for a waiting request: generation_tick() every `ms`. */
void connection_start_ticks(struct connection *c, uint64_t ms);
void connection_stop_timer(struct connection *c);
/* Stops the time that connection_limit() gave, and lets the rest of it go on. */
void connection_pause(struct connection *c);
void connection_continue(struct connection *c);
/* Looks for its peer's leaving once more. */
void connection_watch(struct connection *c);

/* "gen-" and the like, then ID_RANDOM random characters, NUL-terminated. */
void make_id(char *out, const char *prefix);

/* A whole 503 that is made at the start; NULL without memory. */
struct MHD_Response *http_no_memory_response(void);
/* The callbacks of every listener. */
extern const struct listener_callbacks http_callbacks;
/* Runs the listeners on which something was resumed. */
void server_run_listeners(struct server *s);
const char *server_state_name(enum server_state state); /* as /health shows it */
/* Requests waiting: in the engine's queue or on their way to it. */
uint32_t server_n_waiting(const struct server *s);
/* Why no work is taken in the server's state: fills *e and returns -1, or 0 when it is ready. */
int server_refuses(const struct server *s, struct api_error *e);
/* The same, and when the queue is full. */
int server_admits(struct server *s, struct api_error *e);
/* The same for a text that is too long to be read on the spot (/tokenize, /detokenize). */
int server_admits_text(struct server *s, struct api_error *e);
/* server_model.c: the current model, for as long as its user wants to have it. */
struct server_model *server_take_model(struct server *s);
void server_give_model(struct server *s, struct server_model *m);
/* News for the generations of all models in use, then: is one left? */
void server_take_news(struct server *s);
/* Figures of the current model's engine (zeros: there is none), with what counts up and what runs and waits
 * summed over all models there were. */
void server_engine_stats(const struct server *s, struct engine_stats *out);
/* Depth, limit and Retry-After of a queue_full. */
void server_queue_full(struct server *s, struct api_error *e);
/* A request or generation has ended: drain may be complete. */
void server_check_drained(struct server *s);
