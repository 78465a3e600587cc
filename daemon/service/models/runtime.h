/* runtime.h - a model made ready to run as the configuration asks: file, tokenizer, backend, executor.
 * serve, run and bench all open one of these; the engine comes on top of it. Thread: open and close belong to
 * one thread each; what is in between belongs to the engine. Order of closing: engine first, then this. */
#pragma once
#include "backend/backend.h"
#include "config/config.h"
#include "base/error.h"

#include <limits.h>

struct engine;
struct engine_config;
struct executor;
struct model;
struct model_config;
struct tokenizer;

struct runtime {
    char path[PATH_MAX];
    struct model *model;
    struct tokenizer *tokenizer;
    struct executor *executor;
    uint32_t n_ctx; /* of the configuration, or the default for this model */
    uint64_t hash;  /* model_hash(), once it is loaded */
    char why[360];  /* backend auto: why it is not cuda; else "" */
};

struct runtime_progress { /* called on the opening thread; fraction 0..1 */
    void (*report)(void *context, double fraction);
    void *context;
};

/* Call it before the program has a second thread. */
void runtime_prepare(const struct config *cfg);

/* Checks that executor, backend and arithmetic go together, as far as the configuration alone says it: with
 * backend auto it is the machine that decides. cpu_tuning must not be a directory. */
int runtime_check(const struct config *cfg, struct error *err);

/* The type of the cache. auto depends on the model alone, so that every machine gives the same text: bf16 as
 * in the models' training, which what products round hides; f16 where they round nothing. */
enum kv_type runtime_kv_type(const struct config *cfg, const struct model *m);
/* The context that n_ctx = auto gives the model. */
uint32_t runtime_default_n_ctx(const struct model_config *mc);

/* The two halves of runtime_open(): what the file says, then backend and executor. In between the file's
 * metadata can be read; runtime_load() releases the model, and nothing done to the file later matters. -EIO:
 * the file cannot be read, or was changed meanwhile. After a failed runtime_load() the runtime is still to be
 * closed. */
int runtime_read(struct runtime *out, const struct config *cfg, const char *path, struct error *err);
int runtime_load(struct runtime *r, const struct config *cfg, const struct runtime_progress *progress,
                 struct error *err);
/* `path` comes from model_file_find(). Error codes are those of error.h. *out is to be
 * closed only on success. */
int runtime_open(struct runtime *out, const struct config *cfg, const char *path,
                 const struct runtime_progress *progress, struct error *err);
void runtime_close(struct runtime *r);

/* The engine's settings out of the configuration; wake and context are the caller's to add. */
void runtime_engine_config(const struct runtime *r, const struct config *cfg, struct engine_config *out);

/* "cpu avx512vnni, 2 threads": where it runs, for people. */
void runtime_describe(const struct runtime *r, char *out, size_t room);
