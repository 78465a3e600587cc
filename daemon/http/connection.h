/* connection.h - one client's connection: its time limits, its peer's leaving, its state, and which
 * connection makes room for another. Thread: loop. Memory: from libmicrohttpd's notice of its coming until
 * libuv has closed its handles after that of its going. */
#pragma once
#include "peer.h"
#include "unread.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define SPARE_CONNECTIONS 64 /* beside max_connections busy ones, so that health still gets an answer */

struct listener;
struct request;
struct http_server;

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

/* The answers of a connection's request to what happens to it. The connection asks by this table alone, so
 * that requests know connections, and not the other way round. */
struct connection_ops {
    void (*tick)(struct request *r);       /* the time of connection_start_ticks() has come again */
    void (*cut_body)(struct request *r);   /* the time for its body is over */
    void (*give_up)(struct request *r);    /* its client has left */
    void (*drop_reply)(struct request *r); /* its reply, which is not read, takes memory that others need */
};

/* The connections of one state. */
struct connection_list {
    struct connection_queue queue;
    uint32_t n;
};

struct connection {
    struct http_server *server;
    struct listener *listener;
    struct peer *peer;               /* until it is closed */
    TAILQ_ENTRY(connection) link;    /* of the same state */
    TAILQ_ENTRY(connection) of_peer; /* of the same state and peer, while it is idle */
    enum connection_state state;
    uint64_t moved_ns; /* CLOCK_MONOTONIC: it came to this state, or moved bytes in it */
    int fd;
    uv_timer_t timer; /* header, then body, then keep-alive comments: one at a time */
    uv_poll_t watch;  /* for the peer's leaving */
    /* The facts about its request. */
    struct request *request; /* NULL: it has none */
    const struct connection_ops *ops;
    bool whole;    /* all of it has come, or it was answered without */
    bool watched;  /* it waits: it is given up when the peer leaves */
    size_t n_held; /* bytes that its reply takes */
    struct unread_reply unread;
    bool has_watch;
    bool left;                 /* the peer sends no more */
    bool idle;                 /* between two requests */
    uint64_t limit_ms, due_ns; /* its time, and when it is over */
    bool given_back;           /* it was prolonged because the loop was late */
    uint64_t paused_ms;        /* left of its time when that was stopped; 0: it was not */
    unsigned n_handles;
};

/* Libmicrohttpd's callbacks: a connection has come or gone; a request line is there. */
void connection_notify(void *cls, struct MHD_Connection *mhd, void **context,
                       enum MHD_ConnectionNotificationCode code);
void *connection_uri(void *cls, const char *uri, struct MHD_Connection *mhd);
struct connection *connection_of(struct MHD_Connection *mhd); /* NULL: there was no memory for it */
/* It has a request from here to there. */
void connection_begin(struct connection *c, struct request *r, const struct connection_ops *ops);
void connection_rest(struct connection *c);
/* The headers are there: the request was accepted, or its body is thrown away. */
void connection_accept(struct connection *c);
void connection_discard(struct connection *c);
/* The request is whole, or is answered without the rest of it: its time stops. */
void connection_whole(struct connection *c);
/* The reply is whole: all that is left is its client's to take, who came with a key or not. */
void connection_answered(struct connection *c, bool keyed);
/* libmicrohttpd has brought bytes of the body, or taken some of the reply. */
void connection_moved(struct connection *c);
/* Ends it unless this is called again, or the timer stopped, within `ms`, or soon when its peer has left
 * before its request was whole. By what the loop looks too late the time is prolonged, once. */
void connection_limit(struct connection *c, uint64_t ms);
/* Its request holds n bytes for the reply. */
void connection_held(struct connection *c, size_t n);
/* The replies of all clients exceed body_memory: closes connections whose clients have not read theirs, in
 * the order of unread.h, but not `newest`. */
void connection_drop_unread(const struct connection *newest);
/* Nothing more is sent or received: libmicrohttpd sees its end. */
void connection_shut(struct connection *c);
/* Keep-alive ticks for a waiting request: ops->tick() every `ms`. */
void connection_start_ticks(struct connection *c, uint64_t ms);
void connection_stop_timer(struct connection *c);
/* Stops the time that connection_limit() gave, and lets the rest of it go on. */
void connection_pause(struct connection *c);
void connection_continue(struct connection *c);
/* Its request waits: the peer's leaving ends it. */
void connection_watch(struct connection *c);
