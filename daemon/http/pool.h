/* pool.h - threads for what takes too long for the loop: reading bodies that are large or expensive to read,
 * writing long replies, waiting for a file system. A job has a class, and each class has threads of its own:
 * no job ever waits for one of another class, and the system shares the processors between them by their nice
 * values, the decoder's threads first. Clients with jobs of one class take turns, so that one who has many
 * waits for each other client's once; jobs of one client begin in the order they came. A job that has run, or
 * was cancelled before, is handed back by pool_next().
 *
 * Threads: all functions from one (the loop); cfg.wake is called from the pool's own when pool_next() has
 * something. Memory: a job is its caller's, and stays where it is until pool_next() has returned it. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

enum pool_class {
    POOL_PROMPT,      /* a generation's body, a few milliseconds of work */
    POOL_LONG_PROMPT, /* the same, of any length */
    POOL_REPLY,       /* the next of a long reply, less than a millisecond */
    POOL_TEXT,        /* /tokenize and /detokenize, which no text waits for */
    POOL_FILES,       /* looking for a file, which takes as long as its file system */
    POOL_N_CLASSES
};

/* Threads of a class: one on few cores, so that they do not take those of the decoder. */
#define POOL_FEW_CORES   4
#define POOL_MAX_THREADS 2

struct pool; /* opaque: the fields are in pool.c */

struct pool_job {
    void (*run)(struct pool_job *job); /* on a thread of the pool */
    uint64_t client;                   /* equal for jobs of one client */
    /* The pool's. */
    TAILQ_ENTRY(pool_job) link;
    uint64_t turn; /* a client has one job per turn */
    enum pool_class class;
};

/* -ENOMEM: threads could not be started; none is later. `wake` may be called until pool_close() returns. */
int pool_open(struct pool **out, void (*wake)(void *context), void *context, struct error *err);
void pool_add(struct pool *p, enum pool_class class, struct pool_job *job);
/* Hands a job of the pool's back without running it. No effect on one that has begun. */
void pool_cancel(struct pool *p, struct pool_job *job);
/* A job that has run, or was cancelled, and was not returned before; or NULL. */
struct pool_job *pool_next(struct pool *p);
/* No job may be left. NULL is fine. */
void pool_close(struct pool *p);
