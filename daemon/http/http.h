/* http.h - the state that all requests and connections share, and what libmicrohttpd calls. Thread: loop. */
#pragma once
#include "access.h"
#include "base/clock.h"
#include "base/histogram.h"
#include "client_limit.h"
#include "config/config.h"
#include "connection.h"
#include "listener.h"
#include "peer.h"
#include "pool.h"
#include "request.h"
#include "http_route.h"
#include "stream_times.h"

#include <uv.h>

struct api;
struct generator;
struct http_server;

/* The answers of the layers above to http's questions; each `s` is the http_server that they share. */
struct http_ops {
    int (*has_model)(struct http_server *s, const struct route *route,
                     struct api_error *e);                     /* 0, or -1 and why the route has none */
    int (*admits)(struct http_server *s, struct api_error *e); /* 0, or -1: no request for tokens */
    int (*admits_text)(struct http_server *s, bool is_long,
                       struct api_error *e); /* the same of /tokenize and /detokenize */
    void (*queue_full)(struct http_server *s, struct api_error *e); /* depth, limit, Retry-After */
    void (*ended)(struct http_server *s);                           /* a request or generation has */
    void (*wake)(struct http_server *s); /* makes the loop take a turn; any thread */
};

struct http_server {
    uv_loop_t *loop;
    const struct config *cfg;
    const struct http_ops *ops;
    struct generator *generator; /* of the handlers, as is `api`: unknown here */
    struct api *api;
    struct listener *listeners;
    unsigned n_listeners;
    struct access *access;
    const struct route *routes;
    struct pool *pool;
    uint32_t n_jobs;                /* on the pool */
    struct MHD_Response *no_memory; /* to requests that there is no memory for */
    unsigned n_handles;             /* of the server and of its connections: all closed before it is freed */

    struct stream_times *times; /* NULL: none are kept */
    struct stats stats;
    struct clients clients;        /* when client_limit is on */
    LIST_HEAD(, request) requests; /* in the hands of libmicrohttpd */
    uint32_t n_connections;
    struct peers peers; /* the addresses of the connections */
    struct connection_list connections[CONNECTION_STATES];
    struct unread unread; /* whole replies of these */
    uint64_t body_bytes;  /* held by all bodies together */
    uint64_t text_bytes;  /* of these, by those of /tokenize and /detokenize */
    uint64_t reply_bytes; /* held by all replies that their clients have not taken yet, or promised to them,
                             and by grammars and large bodies of requests that wait or run */
};

/* Hands jobs that have run back to their requests. */
void http_take_jobs(struct http_server *s);
/* A whole 503 that is made at the start; NULL without memory. */
struct MHD_Response *http_no_memory_response(void);
/* The callbacks of every listener. */
extern const struct listener_callbacks http_callbacks;
