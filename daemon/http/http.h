/* http.h - the state that all requests and connections share, and what libmicrohttpd calls. (What
 * daemon/service/serve.c sees is server.h.) Thread: loop. */
#pragma once
#include "access.h"
#include "base/clock.h"
#include "base/histogram.h"
#include "client_limit.h"
#include "config/config.h"
#include "connection.h"
#include "engine/engine.h"
#include "listener.h"
#include "pool.h"
#include "request.h"
#include "route.h"
#include "service/server.h"

#include <stdatomic.h>

struct generation;

struct server {
    uv_loop_t *loop;
    const struct config *cfg;
    struct listener *listeners;
    unsigned n_listeners;
    char *where;
    struct access *access;
    const struct route *routes;
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

/* Hands jobs that have run back to their requests. */
void server_take_jobs(struct server *s);
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
