/* model_set.h - several models of one directory: each request names the one it runs on.
 *
 * Models are the .gguf files of the directory, of a split one the first part; their names are the files'
 * without ".gguf". One is loaded when a request names it: beside the others if it fits. If not, and on a
 * device that one decoder fills, others make room: one without requests first, the one idle for longest, else
 * the one used least recently, which takes no more requests and is closed after its last. So two models that
 * do not fit together serve in turns, each for all requests that came before the first of the other. While
 * the one that was waited for longest has no room yet, each other is loaded that fits beside; such a
 * load is not broken off when the room is there earlier, and the wanted one waits for its end. None
 * makes room for a file that is no model, which is read before, nor for a model that lately did not fit
 * alone. A model that no request has had for model_ttl_s is closed; the first one, which is loaded at start
 * and which requests without a name run on, only makes room.
 *
 * One thing is loaded or closed at a time. Thread: loop; loading has a thread of its own (loader.h), closing
 * the pool's. Memory: entries live until model_set_close(), as numbers name them. */
#pragma once
#include "base/error.h"
#include "config/config.h"
#include "loader.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define MODEL_SET_MOST 16 /* that are loaded at once */

struct model_set; /* opaque */
struct server;
struct swap_view;

struct model_set_options {
    uv_loop_t *loop;
    const struct config *cfg;
    struct server *server;
    void (*serves)(void *context);                        /* the first model is there */
    void (*lost)(void *context, const struct error *err); /* the first could not be loaded at start */
    void *context;
};

/* Begins with loading the first model: `model` of the configuration, or the first of the directory by name
 * whose file can be loaded.
 * -ENOENT: the directory is none, or has none. */
int model_set_open(struct model_set **out, const struct model_set_options *options, struct error *err);
/* The process ends: nothing new begins. */
void model_set_stop(struct model_set *set);
/* After server_end(), outside uv_run(): closes what is loaded and frees. False: a load is still going on, and
 * nothing but the process's end ends it. */
bool model_set_close(struct model_set *set);

/* The model loaded at a place, 0 to MODEL_SET_MOST - 1; NULL: none. */
struct loader *model_set_loader(const struct model_set *set, uint32_t place);
/* The file of the first model. */
const char *model_set_first(const struct model_set *set);
/* Writes a view as a swap has it: what is being loaded and what serves requests without a name. */
void model_set_view(const struct model_set *set, struct swap_view *out);
/* "a, b, c": the names there are, as many as have room. */
void model_set_names(const struct model_set *set, char *out, size_t room);
