/* cuda_decoder.h - the cuda decoder's host side: what the files of the backend share. Private to lib/cuda.
 *
 *   cuda_backend.c   the backend table: open, ring of steps, results, info, close
 *   cuda_load.c      load(): kernels, weights, cache, scratch, tables
 *   cuda_weights.c   the packed copy of the weights, and its upload
 *   cuda_resident.c  the persistent decoder: launch, park, relaunch, end
 *   cuda_nodes.c     the graph, one launch per node (eager), and the same captured and replayed (graph)
 *   cuda_trace.c     the times of a step
 *   cuda_account.c   where every block stood when the kernel failed
 *   cuda_watch.c     device health, and the messages about failures
 *
 * Memory: all memory, modules, functions and streams are acquired in load(), before the first launch: while
 * the persistent kernel runs, no driver call may allocate or wait for the device.
 * Thread: the engine thread; info() reads only the atomics and the pinned words, on any thread. */
#pragma once
#include "backend/backend.h"
#include "cuda_kernels.h"
#include "cuda_memory.h"
#include "cuda_weights.h"
#include "abi/device_abi.h"
#include "abi/sample_layout.h"
#include "driver.h"
#include "model/graph.h"
#include "model/kv_plan.h"
#include "plan.h"
#include "backend/trace.h"
#include "model/program.h"
#include "backend/step_check.h"

#include <stdatomic.h>

#define CUDA_STALL_MS 10000 /* default, if the configuration has none */

struct cuda_nodes;

struct cuda_decoder {
    struct backend base;
    struct cuda_decoder *next; /* list of decoders that could not be closed */
    struct backend_config cfg;
    int32_t *end_tokens;
    struct cuda_driver driver;
    struct cuda_device device;
    char isa[8];
    uint64_t stall_ns;

    /* Set by load(). */
    const struct program *program;
    const struct graph *graph;
    void *stream;
    struct cuda_kernels kernels;
    struct plan plan;
    struct program *marked; /* the device's copy of the program: plan.h */
    uint64_t panel_bytes;   /* plan_panels() */
    struct cuda_weights weights;
    struct cuda_block tables, scratch, pages, states;
    struct cuda_block cleared; /* the part of scratch that is cleared before each launch */
    struct cuda_pinned control, steps, results, exported, masks, transfer;
    struct step_checker *checker;
    struct kv_plan cache;
    uint32_t n_blocks, max_rows;
    uint32_t export_stride; /* floats between rows of `exported` */
    uint64_t scratch_bytes;
    char note[200];

    /* The persistent kernel. */
    void *resident; /* its function; NULL: node by node */
    struct decoder_args args;
    uint32_t n_threads;      /* threads of a block */
    struct cuda_block marks; /* of a trace, once one was asked for */
    void *copies;            /* a stream beside the kernel's, and a copy of `cleared`: for the account */
    struct cuda_pinned standing;
    struct decoder_kind kinds[MODEL_MAX_KINDS];

    struct cuda_nodes *nodes; /* set if cfg.eager */

    /* The engine's masks, of which a step's are copied to the pinned ones: backend_sampling_ops.masks. */
    const uint32_t *engine_masks;
    uint32_t mask_words; /* of each of them */

    /* Steps: counted modulo 2^32 as in struct decoder_control. */
    uint32_t submitted, taken; /* steps written to the ring; steps whose results have all been returned */
    uint32_t n_taken;          /* results of step `taken` returned so far */
    struct cuda_flight {
        uint64_t id;
        uint32_t n_results;
        uint32_t exports; /* a bit per logit row with STEP_EXPORT */
    } flights[DECODER_RING];
    uint32_t fresh_exports; /* those of the newest finished step, until the next submit */
    uint64_t steps_done;    /* id of the newest finished step */

    struct error fault;    /* once its code is set, every call fails with it */
    char *_Atomic account; /* of cuda_account(); freed in cuda_unload() */
    uint64_t beat_ns, looked_ns, silent_ns, queried_ns, busy_since_ns, last_step_ns;
    uint32_t beat;

    _Atomic uint64_t launches, parks, n_steps, busy_ns, heartbeat_ns;
    _Atomic uint32_t heartbeat_seen, in_flight;
    _Atomic bool faulted;
};

/* Reads or writes a word of pinned memory that the device writes or reads. */
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

/* Bytes of a mask in pinned memory. */
static inline size_t cuda_mask_bytes(const struct cuda_decoder *d)
{
    return sample_mask_words(d->args.buffers.n_vocab) * sizeof(uint32_t);
}

/* True if a model needs the general attention (kernels/attention/attend.h). */
bool cuda_is_general(const struct model_config *c);
/* cuda_load.c: d->program and d->graph are set. On failure cuda_unload() releases what was acquired. */
int cuda_load_all(struct cuda_decoder *d, struct error *err);
void cuda_unload(struct cuda_decoder *d);

/* cuda_resident.c */
int cuda_resident_launch(struct cuda_decoder *d, struct error *err);
/* Launches it again if it has ended; `parked`: it ended by itself, which is counted. */
int cuda_resident_wake(struct cuda_decoder *d, bool parked, struct error *err);
bool cuda_resident_has_left(const struct cuda_decoder *d);
/* Waits until nothing of this process runs on the device any more, failed or not. False: it takes longer than
 * the limit. */
bool cuda_wait_idle(const struct cuda_decoder *d, uint64_t limit_ns);
/* Asks the kernel to end and waits for that; false: as above. */
bool cuda_resident_leave(struct cuda_decoder *d, enum decoder_stop how, uint64_t limit_ns);

/* cuda_nodes.c */
int cuda_nodes_open(struct cuda_decoder *d, struct error *err);
size_t cuda_nodes_size(const struct cuda_decoder *d);                          /* bytes of device memory */
void cuda_nodes_close(struct cuda_nodes *n, const struct cuda_driver *driver); /* NULL is fine */
int cuda_nodes_begin(struct cuda_decoder *d, struct error *err);
int cuda_nodes_dispatch(struct cuda_decoder *d, uint32_t node, struct error *err);
/* Turns per-node timing on or off, and returns the time that a node took in the newest finished step, which
 * must have been timed. */
int cuda_nodes_time(struct cuda_decoder *d, bool on, struct error *err);
int cuda_nodes_ns(struct cuda_decoder *d, uint32_t node, uint64_t *ns, struct error *err);
int cuda_nodes_value(struct cuda_decoder *d, uint32_t node, uint32_t row, float *out, float *factor,
                     struct error *err);
/* Runs the whole step in one launch. */
int cuda_nodes_replay(struct cuda_decoder *d, struct error *err);

/* cuda_trace.c: see backend_ops. The kernel is launched again for the next step. */
int cuda_trace(struct cuda_decoder *d, bool on, struct error *err);
int cuda_traced(struct cuda_decoder *d, struct trace *out, struct error *err);
/* Converts the marks of the latest step, [out->n_members][out->n_ops] and behind them those of the border
 * [DECODER_RING], to ns of one clock, and sets out->step. */
void cuda_trace_convert(struct trace *out, const struct decoder_mark *marks);

/* cuda_account.c: call once the decoder has failed by a wait that did not end. Gives the blocks that can end
 * time for that, copies what all have noted and makes d->account of it, if the device still copies; at most
 * 1 s. */
void cuda_account(struct cuda_decoder *d);

/* cuda_watch.c */
/* cuStreamQuery() on any thread: CUDA_NOT_READY while something of this process runs. */
int cuda_query(const struct cuda_decoder *d);
/* Starts watching: a step has been submitted, so the heartbeat must move from now on. */
void cuda_watch_begin(struct cuda_decoder *d);
/* Checks the device while a step is in flight. Returns 0 or the fault, which stays. Relaunches a persistent
 * kernel that ended while the step was on its way. */
int cuda_watch(struct cuda_decoder *d, uint64_t now_ns);
/* Checks a device that has nothing to do: it may fail all the same. */
int cuda_watch_idle(struct cuda_decoder *d, uint64_t now_ns);
/* Writes the name of an op, such as "op 12 (MATMUL, blk.1.ffn_down)". */
void cuda_name_op(const struct cuda_decoder *d, uint32_t op, char *out, size_t room);
/* Writes what a wait that failed waited for: `record` begins with what, value and target (abi/failure.h). */
void cuda_name_wait(const uint32_t record[3], char *out, size_t room);
/* Sets the fault that every later call returns. Returns rc. */
int cuda_fail(struct cuda_decoder *d, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Returns when the heartbeat last moved. Thread: any; for info(). */
uint64_t cuda_last_beat(struct cuda_decoder *d);
