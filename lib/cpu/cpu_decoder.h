/* cpu_decoder.h - the cpu decoder: everything the files of the backend share. Private to lib/cpu.
 *   cpu_backend.c  the table: open, load, ring of steps, results, info
 *   persistent.c   the fused program, walked by the whole team (persistent)
 *   eager.c        the graph, node by node: the same bits, and the oracle of reference.h
 *   sample_rows.c  from logits to results
 *   cpu_load.c     what load() takes: weights, cache, scratch, tables
 * Thread: the engine's, which is member 0 of the team; the atomics are what info() reads. */
#pragma once
#include "prefault.h"
#include "attention.h"
#include "backend/backend.h"
#include "model/graph.h"
#include "base/memory.h"
#include "cpu/matmul/team_matmul.h"
#include "model/program.h"
#include "sampler/sampler.h"
#include "slots.h"
#include "backend/step_check.h"
#include "base/team.h"
#include "weights.h"

#include <stdatomic.h>

#define DECODER_RING 2

struct exact;
struct eager;

struct decoder_member {
    struct product_scratch product;
    struct attend_scratch attend;
    void *sampler;
};

struct decoder {
    struct backend base;
    struct backend_config cfg;
    int32_t *end_tokens;
    char device[64];
    const struct matmul_kernels *kernels;
    const struct ops *ops;
    struct team *team;

    /* Since load(). */
    const struct program *program;
    const struct graph *graph;
    struct weights weights;
    struct memory_block kv, scratch, transfer, rope;
    struct ahead *ahead; /* of kv */
    struct slots slots;
    struct step_checker *checker;
    struct attend attend;
    struct product_shared product;
    struct decoder_member *members; /* [team size] */
    struct rows buffers[PROGRAM_N_BUFFERS];
    struct eager *eager; /* when cfg.eager, int8 */
    struct exact *exact; /* when cfg.eager, exact */
    uint32_t n_vocab, n_pages;
    _Atomic uint64_t *op_ns; /* [n_ops]: time each op of the program has taken so far */

    /* Steps in flight: a ring, oldest at ring_first. */
    struct step *ring[DECODER_RING];
    uint32_t ring_first, ring_n;

    /* The step that runs, or ran last. */
    const struct step *step;
    int32_t tokens[STEP_MAX_ROWS];        /* of its rows */
    uint16_t logit_rows[STEP_MAX_LOGITS]; /* step row of each logit row */
    struct step_result results[STEP_MAX_LOGITS];
    uint32_t n_results, n_taken;
    uint64_t steps_done; /* id of the newest finished step */
    bool fresh_logits;   /* the logits buffer is that step's */

    _Atomic uint64_t steps, busy_ns, heartbeat_ns;
    uint64_t pages_used;          /* of the KV cache, from the first */
    _Atomic uint64_t pieces_seen; /* team_progress() when info() last looked */
    _Atomic uint32_t state;
};

/* A sign of life, with every op and dispatch; returns the time. Inside an op, which may take seconds on a
 * slow machine, the pieces of work that members take are the signs, and nobody gives one while all wait. */
uint64_t decoder_beat(struct decoder *d);

/* Page operations, table edits, settings and tokens of a step; then its rows may run. */
void decoder_begin_step(struct decoder *d, const struct step *step);
/* After its last op: the sampled tokens become known to their slots, the results may be taken. */
void decoder_finish_step(struct decoder *d);

/* cpu_load.c: d->program and d->graph are set. On failure decoder_unload() gives back what was taken. */
int decoder_load(struct decoder *d, struct error *err);
void decoder_unload(struct decoder *d);

/* persistent.c: runs the whole program for the step begun. */
void decoder_walk(struct decoder *d);

/* sample_rows.c: fills results[i] from logit row i; any member, with its own sampler scratch. */
void decoder_choose(struct decoder *d, uint32_t i, const float *logits, void *scratch);

/* persistent.c: a step whose attention is dealt split by split (attend.n_splits); any member. */
void decoder_attend_splits(struct decoder *d, uint32_t member, uint32_t layer, float scale, struct rows q,
                           struct rows out);

/* eager.c */
int eager_open(struct decoder *d, struct error *err);
void eager_close(struct eager *e);        /* NULL is fine */
size_t eager_size(const struct eager *e); /* bytes */
struct rows eager_logits(const struct eager *e, const struct graph *g);
void eager_dispatch(struct decoder *d, uint32_t node);
