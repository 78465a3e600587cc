/* http_route.h - which paths there are, which method each takes, who answers. Thread: loop. */
#pragma once
#include "base/buf.h"

#include <stdbool.h>

struct api_error;
struct dialect;
struct request;

struct route {
    const char *path;            /* "/v1/models/{id}": any that begins so and goes on */
    bool post;                   /* POST; else GET and HEAD */
    bool both;                   /* POST, and GET and HEAD as well */
    bool remove;                 /* DELETE, nothing else */
    bool body;                   /* its handler reads the body of a POST */
    bool always;                 /* answered while loading and draining: health */
    bool needs_model;            /* 503 loading until there is one */
    bool work;                   /* takes a place in the queue */
    bool text;                   /* the same while others' texts are read, if its own is long */
    bool open;                   /* needs no key */
    bool admin;                  /* needs the admin key */
    bool quiet;                  /* not in the access log at info */
    bool lines;                  /* its streams are lines of JSON, not events */
    bool lists;                  /* shows models that are not loaded, too */
    const struct route *on_post; /* the route of a POST to the same path, if this one takes GET; or NULL */
    void (*handle)(struct request *r);
    const struct dialect *dialect; /* the dialect, if it is a route of generations */
    const char *id_header;         /* replies repeat X-Request-Id under this name; or NULL */
    /* Writes an error in the route's own form, with a newline; NULL: api_error_put(). */
    void (*put_error)(struct buf *out, const struct api_error *e);
};

/* `routes` ends with a row without a path. NULL: there is none. */
const struct route *route_find(const struct route *routes, const char *path, const char *method);
/* Returns the part of a path that stands for {id} in its route. */
const char *route_id(const struct route *route, const char *path);
/* The known path that is most likely meant by this one; NULL: none is close enough. */
const char *route_nearest(const struct route *routes, const char *path);
/* A route in the same folder ("/api/"), whose dialect an unknown path is in; or NULL. */
const struct route *route_beside(const struct route *routes, const char *path);
/* Value of an Allow header. */
const char *route_allow(const struct route *route);
bool route_takes(const struct route *route, const char *method);
/* True when the handler reads the body of such a request: that of any other is thrown away as it comes. */
bool route_takes_body(const struct route *route, const char *method);
