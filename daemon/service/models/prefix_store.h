/* prefix_store.h - where the daemon keeps its prefix cache over restarts: the directory of the configuration,
 * opened for the model that is loaded. Errors are logged and disable the cache, never the service.
 * Thread: the loader; later log lines come from the disk thread. */
#pragma once
#include "config/config.h"
#include "backend/executor.h"

#include <stdint.h>

struct prefix_dir;
struct prefix_disk;

/* NULL: off, not possible here, or it failed and the log says why. prefix_disk_close() after the engine.
 * `shared`: all loaded models have the budget together; NULL: there is one model. moved() is called on
 * the disk's thread, until the disk is closed, whenever it got anywhere. */
struct prefix_disk *prefix_store_open(const struct config *cfg, const struct executor *x, uint64_t model_hash,
                                      struct prefix_dir *shared, void (*moved)(void *context), void *context);
