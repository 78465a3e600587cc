/* request.h - an HTTP request on its way to one reply.
 *
 * Every request goes: headers (refused here where possible) -> body -> its route's handler -> reply, or
 * suspended until there is one. All that comes for a suspended request (a token, a deadline, a cancel, a
 * keep-alive) sets state and calls request_resume(). A request that its headers refuse is answered after its
 * body was read and thrown away.
 *
 * Thread: the loop, but for what request_run() gives to the pool. Memory: a request owns one arena; it is
 * freed when libmicrohttpd, the engine and the pool have all let go of it. */
#pragma once
#include "access.h"
#include "base/api_error.h"
#include "base/arena.h"
#include "base/buf.h"
#include "pool.h"
#include "http_route.h"
#include "unread.h"

#include <microhttpd.h>
#include <sys/queue.h>

#define ID_RANDOM 22 /* characters, 131 bits */

struct connection;
struct log_access;
struct request;
struct http_server;
struct server_model;
struct stats;

enum request_phase {
    REQUEST_BODY,    /* reading, or throwing away */
    REQUEST_WAITING, /* its handler has taken it; suspended until there is news */
    REQUEST_REPLY,   /* a reply is ready, not yet queued */
    REQUEST_STREAM,  /* a stream is ready, not yet queued */
    REQUEST_QUEUED,  /* the reply is libmicrohttpd's to send */
};

/* The end of a request for tokens. */
enum request_outcome {
    OUTCOME_NONE, /* as its status says */
    OUTCOME_COMPLETED,
    OUTCOME_CANCELLED,
    OUTCOME_TIMED_OUT,
    OUTCOME_FAILED,
};

/* The callbacks of a request that its handler answers later. */
struct request_ops {
    void (*drop)(struct request *r); /* its client takes no more of it; idempotent */
    void (*tick)(struct request *r); /* keep-alive: see request_start_ticks() */
    void (*log)(const struct request *r, struct log_access *line);
    enum request_outcome (*count)(const struct request *r, struct stats *stats);
};

/* A list in a reply that is written on the pool as its client takes it: a long one is never held whole, and
 * holds up no other request. */
struct reply_list {
    STAILQ_ENTRY(reply_list) link;
    size_t at;           /* its offset in `out` */
    uint32_t i, to;      /* items [i, to) are still to come */
    const char *between; /* the separator before each item but the first */
    bool begun;          /* the next item is not the first */
    /* Writes item l->i. All that it reads must live, and stay as it is, until all are written. */
    void (*put)(struct buf *out, struct reply_list *l);
    const void *of; /* put's own */
};

struct request {
    struct http_server *server;
    struct connection *connection; /* NULL once libmicrohttpd is done with it */
    struct MHD_Connection *mhd;
    struct arena arena;
    LIST_ENTRY(request) link; /* of server.requests */
    unsigned refs;            /* libmicrohttpd, engine, pool */

    const struct route *route;                                     /* NULL: none */
    void (*put_error)(struct buf *out, const struct api_error *e); /* before the route's; or NULL */
    const char *method, *path;
    const char *origin;           /* of a page elsewhere that may ask; NULL: no CORS headers */
    uint64_t owner;               /* of the key it came with; 0: keys are not in use */
    bool admin;                   /* it came with the admin key */
    uint64_t client;              /* key or address that it comes from; 0: not asked for */
    bool counted;                 /* in server.clients */
    char id[65];                  /* X-Request-Id: the client's or ours */
    char address[ACCESS_ADDRESS]; /* the client's, behind trusted proxies too */
    enum request_phase phase;
    bool suspended;
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
    STAILQ_HEAD(, reply_list) lists;
    struct arena items_arena; /* of `items` alone, so that the pool allocates nothing beside the loop */
    struct buf items;
    size_t items_at; /* bytes of it taken */
    bool writing;    /* the pool has the lists, `items`, and all that the lists are made of */
    /* In a stream, or a reply that goes on: writes what comes next, if anything does, when all of `out` is
     * taken; or NULL. */
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

    const struct request_ops *ops; /* NULL: it has been answered, or not begun */
    void *context;                 /* of the ops */
    struct server_model *model;    /* of a handler that works on the pool; else NULL */
    struct pool_job job;
    bool working; /* the pool has the job */
    void (*work)(struct request *);
    void (*worked)(struct request *);
};

/* Reply with what `out` holds as JSON, or with a 503 when there was no memory for it. */
void request_reply(struct request *r, int status);
/* The body of that 503, which needs no memory. */
extern const char no_memory_reply[];
/* In a stream: a whole event stands at the end of `out`. False when there was no memory for it: what there is
 * of it is not sent, and the stream ends with an `event: error` instead. */
bool request_wrote(struct request *r);
/* In a stream, or in a large reply: moves what may be sent, at most `max` bytes; 0 when there is nothing, or
 * nothing yet (r->writing), or when no memory was left in the middle (r->gone). */
size_t request_take(struct request *r, char *out, size_t max);
#define REPLY_WINDOW 16384 /* bytes of a stream or of a list that are written ahead of what is taken */
/* Bytes of a stream or list that are written and not taken. A list that has not come is a window full. */
size_t request_n_ahead(const struct request *r);
/* Appends the list to `out`: now, or `later`, on the pool, as the client takes it. */
void request_put_list(struct request *r, struct reply_list list, bool later);
/* Reply with r->error, or with *e (copied). */
void request_fail(struct request *r, const struct api_error *e);
/* Writes the error object, with its newline. */
void api_error_put(struct buf *out, const struct api_error *e);
/* Writes the error's figures, each behind a comma. */
void api_error_put_context(struct buf *out, const struct api_error *e);
/* Writes the error object in the form of the route. */
void request_put_error(struct request *r, const struct api_error *e);
/* From inside a handler: no reply yet. Watches for the client's leaving. */
void request_suspend(struct request *r);
/* The same of one that its handler has taken: the reply follows later, or, of a stream that has begun, more
 * of it. */
void request_wait(struct request *r);
/* There is news (phase, out, gone): let libmicrohttpd look. */
void request_resume(struct request *r);
/* Its client takes no more of it, or has to do without the rest: the connection is closed. */
void request_give_up(struct request *r);
/* Keep-alive: ops->tick() every `ms`. */
void request_start_ticks(struct request *r, uint64_t ms);
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
#define REQUEST_LARGE_REPLY UNREAD_LARGE
/* Marks the reply as whole: the client has only to take the rest of it. */
void request_answered(struct request *r);
/* From now on its client must take max_body bytes of it per body_timeout_ms. */
void request_limit(struct request *r);
/* The answers to what its connection asks. */
extern const struct connection_ops request_connection_ops;
void request_ref(struct request *r);
/* Calls `work`, which may touch the request's arena, body, out, error and context only, on the pool, then
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
void request_unref(struct request *r);

/* "gen-" and the like, then ID_RANDOM random characters, NUL-terminated. */
void make_id(char *out, const char *prefix);
