/* local_engine.h - one engine without a server: run and bench hand it requests and wait. Thread: the one that
 * opened it, except offline_interrupt(). */
#pragma once
#include "config/config.h"
#include "engine/engine.h"
#include "base/error.h"
#include "service/models/runtime.h"

#include <semaphore.h>

struct offline {
    struct runtime runtime;
    struct engine *engine;
    sem_t news;
};

/* Finds the model of cfg->model, loads it, starts the engine. */
int offline_open(struct offline *o, const struct config *cfg, struct error *err);
/* The same with the caller's hand on the executor before the engine takes it. */
int offline_open_with(struct offline *o, const struct config *cfg,
                      int (*prepare)(struct executor *x, struct error *err), struct error *err);
/* Stops the engine while `look` has the executor, then starts a new one. No request is open. */
int offline_pause(struct offline *o, const struct config *cfg,
                  int (*look)(void *context, struct executor *x, struct error *err), void *context,
                  struct error *err);
void offline_close(struct offline *o); /* a zeroed one is fine */

/* Waits for tokens or an end of any request; returns the request or NULL after offline_interrupt() or a
 * signal. */
struct engine_request *offline_wait(struct offline *o);
/* Makes offline_wait() return; async-signal-safe. */
void offline_interrupt(struct offline *o);
