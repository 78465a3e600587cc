/* cuda_decoder.h - the cuda decoder's host side: everything the files of the backend share. Private to
 * lib/cuda. cuda_backend.c   the table: open, ring of steps, results, info, close cuda_load.c      what
 * load() takes: kernels, weights, cache, scratch, tables cuda_weights.c   the packed copy of the weights, and
 * how it gets there cuda_resident.c  the persistent decoder: launch, park, relaunch, leave (persistent)
 *   cuda_nodes.c     the graph, one launch per node (eager), and the same captured and replayed (graph)
 *   cuda_watch.c     whether the device still lives, and what is said when it does not
 *
 * All memory, modules, functions and streams are taken in load(), before the first launch: while the resident
 * kernel runs, no call of the driver may allocate or wait for the device. Thread: the engine's; the atomics
 * and the pinned words are what info() reads. */
#pragma once
#include "backend/backend.h"
#include "cuda_kernels.h"
#include "cuda_memory.h"
#include "cuda_weights.h"
#include "abi/device_abi.h"
#include "driver.h"
#include "model/graph.h"
#include "plan.h"
#include "model/program.h"
#include "backend/step_check.h"

#include <stdatomic.h>

#define CUDA_STALL_MS 10000 /* where the configuration does not say */

struct cuda_nodes;

struct cuda_decoder {
    struct backend base;
    struct cuda_decoder *next; /* of those that could not be closed */
    struct backend_config cfg;
    int32_t *end_tokens;
    struct cuda_driver driver;
    struct cuda_device device;
    char isa[8];
    uint64_t stall_ns;

    /* Since load(). */
    const struct program *program;
    const struct graph *graph;
    void *stream;
    struct cuda_kernels kernels;
    struct plan plan;
    struct cuda_weights weights;
    struct cuda_block tables, scratch, pages;
    struct cuda_block cleared; /* the part of scratch that is cleared before each launch */
    struct cuda_pinned control, steps, results, exported, transfer;
    struct step_checker *checker;
    uint32_t n_pages, n_blocks, max_rows;
    uint32_t export_stride; /* floats between rows of `exported` */
    uint64_t scratch_bytes;
    char note[200];

    /* The resident kernel. */
    void *resident; /* its function; NULL: node by node */
    struct decoder_args args;
    uint32_t n_threads; /* of a block */

    struct cuda_nodes *nodes; /* when cfg.eager */

    /* Steps: counted modulo 2^32 as in struct decoder_control. */
    uint32_t submitted, taken; /* written to the ring; whose results have all been handed out */
    uint32_t n_taken;          /* results of step `taken` handed out so far */
    struct cuda_flight {
        uint64_t id;
        uint32_t n_results;
        uint32_t exports; /* a bit per logit row with STEP_EXPORT */
    } flights[DECODER_RING];
    uint32_t fresh_exports; /* of the newest finished step, until the next submit */
    uint64_t steps_done;    /* id of the newest finished step */

    struct error fault; /* once its code is set, every call returns it */
    uint64_t beat_ns, looked_ns, silent_ns, queried_ns, busy_since_ns;
    uint32_t beat;

    _Atomic uint64_t launches, parks, n_steps, busy_ns, heartbeat_ns;
    _Atomic uint32_t heartbeat_seen, in_flight;
    _Atomic bool faulted;
};

/* A word of pinned memory that the device writes, or reads. */
static inline uint32_t cuda_word(const uint32_t *word)
{
    return atomic_load_explicit((const _Atomic uint32_t *)(const void *)word, memory_order_acquire);
}

static inline void cuda_word_set(uint32_t *word, uint32_t value)
{
    atomic_store_explicit((_Atomic uint32_t *)(void *)word, value, memory_order_release);
}

static inline struct decoder_control *cuda_control(const struct cuda_decoder *d)
{
    return d->control.data;
}

static inline uint32_t cuda_in_flight(const struct cuda_decoder *d)
{
    return d->submitted - d->taken;
}

static inline struct step *cuda_step_at(const struct cuda_decoder *d, uint32_t number)
{
    return (struct step *)(void *)((char *)d->steps.data +
                                   (size_t)(number % DECODER_RING) * d->args.step_stride);
}

/* cuda_load.c: d->program and d->graph are set. On failure cuda_unload() gives back what was taken. */
int cuda_load_all(struct cuda_decoder *d, struct error *err);
void cuda_unload(struct cuda_decoder *d);

/* cuda_resident.c */
int cuda_resident_launch(struct cuda_decoder *d, struct error *err);
/* Launches it again if it has left; `parked`: of its own will, which is counted. */
int cuda_resident_wake(struct cuda_decoder *d, bool parked, struct error *err);
bool cuda_resident_has_left(const struct cuda_decoder *d);
/* Waits until nothing of ours runs on the device any more, well or not; false when that takes longer. */
bool cuda_wait_idle(const struct cuda_decoder *d, uint64_t limit_ns);
/* Tells it to leave and waits for that. */
bool cuda_resident_leave(struct cuda_decoder *d, enum decoder_stop how, uint64_t limit_ns);

/* cuda_nodes.c */
int cuda_nodes_open(struct cuda_decoder *d, struct error *err);
size_t cuda_nodes_size(const struct cuda_decoder *d);                          /* bytes on the device */
void cuda_nodes_close(struct cuda_nodes *n, const struct cuda_driver *driver); /* NULL is fine */
int cuda_nodes_begin(struct cuda_decoder *d, struct error *err);
int cuda_nodes_dispatch(struct cuda_decoder *d, uint32_t node, struct error *err);
/* Whether launches of nodes are marked, and how long a node's took in the newest finished step, which has
 * been marked. */
int cuda_nodes_time(struct cuda_decoder *d, bool on, struct error *err);
int cuda_nodes_ns(struct cuda_decoder *d, uint32_t node, uint64_t *ns, struct error *err);
/* The whole step in one launch. */
int cuda_nodes_replay(struct cuda_decoder *d, struct error *err);

/* cuda_watch.c */
/* cuStreamQuery() on any thread: CUDA_NOT_READY while something of ours runs. */
int cuda_query(const struct cuda_decoder *d);
/* A step has been handed over: from here on there have to be signs of life. */
void cuda_watch_begin(struct cuda_decoder *d);
/* Looks at the device while a step is in flight: 0, or the fault, which stays. Relaunches a resident kernel
 * that has left while the step was on its way. */
int cuda_watch(struct cuda_decoder *d, uint64_t now_ns);
/* The same for a device that has nothing to do: it may be lost all the same. */
int cuda_watch_idle(struct cuda_decoder *d, uint64_t now_ns);
/* After this every call returns it. Returns rc. */
int cuda_fail(struct cuda_decoder *d, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* For info(), on any thread: when the heartbeat last moved. */
uint64_t cuda_last_beat(struct cuda_decoder *d);
