/* loader.h - everything a daemon needs before it is ready, on a thread of its own: model, tokenizer, backend,
 * executor, engine, and one warm-up token through all of them. Meanwhile the loop answers health.
 *
 * Thread: loader_start and loader_finish from the loop thread; loader_close from the one that has it then;
 * loader_progress from any. `done` is called on the loop thread. A load cannot be interrupted: a process that
 * wants to leave earlier exits. */
#pragma once
#include "config/config.h"
#include "engine/engine.h"
#include "base/error.h"
#include "runtime.h"

#include <limits.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

struct chat_template;
struct server_model;
struct constraints;
struct prefix_dir;
struct prefix_disk;

struct loader_options {
    const struct config *cfg;      /* must outlive the loader */
    const char *path;              /* from model_file_find() or model_file_below() */
    struct prefix_dir *prefix_dir; /* of all models that are loaded at once, or NULL; outlives the loader */
    bool check; /* only read the file and see whether it is a model: nothing large is taken */
    void (*wake)(void *context); /* of the engine, once the warm-up is over */
    void *wake_context;
    void (*done)(void *context);
    void *done_context;
};

struct loader {
    /* Results, valid once `done` was called and loader_finish() returned 0. */
    struct runtime runtime;
    struct engine *engine;
    struct chat_template *chat;
    struct constraints *constraints; /* NULL: the backend cannot constrain */
    struct prefix_disk *disk;        /* the engine's; or NULL */
    /* Private. */
    struct loader_options options;
    char path[PATH_MAX];
    _Atomic uint32_t progress; /* thousandths */
    _Atomic uint64_t n_moves;
    _Atomic bool warm;
    sem_t warm_up;
    uv_thread_t thread;
    uv_async_t *finished;
    struct error err;
    int rc;
};

/* Fills *l, which must stay where it is until it is closed. */
int loader_start(struct loader *l, uv_loop_t *loop, const struct loader_options *options, struct error *err);
double loader_progress(const struct loader *l); /* 0..1 */
/* Grows as the loading thread gets anywhere, as the disk does with cached pages, and as loader_close() does.
 */
uint64_t loader_moves(const struct loader *l);
/* In or after `done`: joins the thread; 0, or why it failed. */
int loader_finish(struct loader *l, struct error *err);
/* The model that was loaded, for the server; `name` is left NULL. */
struct server_model loader_model(const struct loader *l);
/* Refuses the file, once it is open, where it is larger than the whole device that `on`, a loaded model,
 * fills: closing that one would not help. 0 or -ENOMEM. */
int loader_check_size(const struct loader *l, const struct loader *on, struct error *err);
/* Closes engine and runtime, once, after loader_finish(), also when that failed. Nothing may call the engine
 * any more. */
void loader_close(struct loader *l);
