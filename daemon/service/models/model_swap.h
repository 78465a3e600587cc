/* model_swap.h - which model is served: the first load, another in its place, putting it away and fetching it
 * back.
 *
 * On the cpu the new model is loaded beside the one that serves; then new requests begin on the new one and
 * what has begun, waiting or running, ends on the old one, which is closed after its last. Where both do not
 * fit, and on a device of its own, whose resident decoder fills it, the file is looked at first; then what
 * waits is refused, what runs may finish within drain_timeout_ms, the old model is closed and the new one
 * loaded, and when that fails the old one is loaded again. A model that is no model costs no outage.
 *
 * One thing is done at a time. The /admin routes reach it through server_admin of server.h. Thread: loop;
 * loading has a thread of its own (loader.h), closing the pool's. */
#pragma once
#include "config/config.h"
#include "base/error.h"
#include "loader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct server;
struct swap_view;
struct swap; /* opaque */

struct swap_options {
    uv_loop_t *loop;
    const struct config *cfg;
    struct server *server;
    /* Another model serves now: swap_current(). Or none does, and none will: loading failed, and so did going
     * back to the one before. */
    void (*serves)(void *context);
    void (*lost)(void *context, const struct error *err);
    void *context;
};

/* Begins with loading `path`, from model_file_find(). */
int swap_open(struct swap **out, const struct swap_options *options, const char *path, struct error *err);
/* The process ends: nothing new begins, nothing is restored. */
void swap_stop(struct swap *sw);
/* After server_end(), outside uv_run(): closes what is loaded and frees. False: a load is still going on, and
 * nothing but the process's end ends it. */
bool swap_close(struct swap *sw);

/* The model that requests run on, and the one that the last requests before it still run on; NULL: none. */
struct loader *swap_current(const struct swap *sw);
struct loader *swap_leaving(const struct swap *sw);

void swap_view(const struct swap *sw, struct swap_view *out);
