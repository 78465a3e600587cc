/* admin.h - what the handlers know beside requests and generations: how models are swapped, and facts of the
 * start. Thread: loop. */
#pragma once
#include "base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* The state of a swap of models. Strings hold until the next turn of the loop. */
struct swap_view {
    const char *state;  /* "idle", or what is being done */
    const char *model;  /* the file being loaded, as a path below model_dir; NULL: none */
    const char *serves; /* likewise; NULL: none does now */
    double progress;    /* of the load, 0..1 */
    uint64_t moves;     /* grows as a load gets anywhere, or the closing of models at the process's end */
    bool suspended;
    /* The last swap that ended, if there was one. */
    const char *last_model; /* NULL: none */
    const char *last_error; /* NULL: it went well */
    uint64_t last_ns;       /* CLOCK_MONOTONIC */
    uint64_t n_done, n_failed;
};

/* The place of the model that an administrator asked for. */
struct swap_found {
    int rc; /* 0, or -ENOENT, -EACCES: there is no such model */
    struct error why;
    char path[PATH_MAX];
};

/* The functions that serve the /admin routes. */
struct server_admin {
    /* Looks for `word`, what an administrator wrote: a path below model_dir, or the start model by the path
     * given there. A network file system may take any time. Thread: any, until server_end(). */
    void (*find)(const void *context, const char *word, struct swap_found *out);
    /* Another model in place of the one that serves (or is put away). -EBUSY: something is being done
     * already; found->rc; -ESHUTDOWN; -ENOMEM. */
    int (*swap)(void *context, const struct swap_found *found, struct error *err);
    /* Puts the model away: memory and device are free, the process stays. And fetches it back. 1: it is so
     * already. */
    int (*suspend)(void *context, struct error *err);
    int (*resume)(void *context, struct error *err);
    void (*view)(const void *context, struct swap_view *out);
};

struct api {
    const struct server_admin *admin; /* NULL in tests that have no use for it */
    void *admin_context;
    int64_t created;     /* Unix seconds of the start */
    const char *warning; /* about how it listens, or "" */
};
