/* server_private.h - the server's parts: what http, generation and api know of it, and its own. Thread: loop.
 */
#pragma once
#include "api/admin.h"
#include "generation/generator.h"
#include "http/http.h"
#include "server.h"

struct server {
    struct http_server http; /* first: server_of() */
    struct generator generator;
    struct api api;
    char *where;
    char warning[240]; /* about how it listens, or "" */
    int wake_fd;       /* eventfd: server_wake() adds to it */
    uv_poll_t wake;
    uv_timer_t drain_timer, linger_timer;
    uv_poll_t reserve; /* see server.c */
    uv_work_t first_work;
    bool closing;
    bool lingers; /* drain_min_ms is not over */
    void (*drained)(void *context);
    void *drained_context;
};
