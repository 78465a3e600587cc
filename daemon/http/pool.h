/* pool.h - threads for what takes too long for the loop: reading bodies that are large or expensive to read,
 * writing long replies. A job has a class, and each class has threads of its own: no job ever waits for one
 * of another class, and the system shares the processors between them by their nice values, the decoder's
 * threads first. Jobs of one class begin in the order they came. A job that has run is handed back by
 * pool_next().
 *
 * Threads: all functions from one (the loop); cfg.wake is called from the pool's own when pool_next() has
 * something. Memory: a job is its caller's, and stays where it is until pool_next() has returned it. */
#pragma once
#include "base/error.h"

#include <stdbool.h>

enum pool_class {
    POOL_PROMPT,      /* a generation's body, a few milliseconds of work */
    POOL_LONG_PROMPT, /* the same, of any length */
    POOL_REPLY,       /* the next of a long reply, less than a millisecond */
    POOL_TEXT,        /* /tokenize and /detokenize, which no text waits for */
    POOL_N_CLASSES
};

/* Threads of a class: one on few cores, so that they do not take those of the decoder. */
#define POOL_FEW_CORES   4
#define POOL_MAX_THREADS 2

struct pool; /* opaque: the fields are in pool.c */

struct pool_job {
    void (*run)(struct pool_job *job); /* on a thread of the pool */
    struct pool_job *next;             /* the pool's */
};

/* -ENOMEM: threads could not be started; none is later. `wake` may be called until pool_close() returns. */
int pool_open(struct pool **out, void (*wake)(void *context), void *context, struct error *err);
void pool_add(struct pool *p, enum pool_class class, struct pool_job *job);
/* A job that has run and was not returned before, or NULL. */
struct pool_job *pool_next(struct pool *p);
/* No job may be left. NULL is fine. */
void pool_close(struct pool *p);
