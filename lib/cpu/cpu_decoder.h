/* cpu_decoder.h - the state of the cpu decoder, shared by the files of the backend.
 * Private to lib/cpu.
 *   cpu_backend.c  the table: open, load, ring of steps, logits to results, info
 *   persistent.c   the fused program, run by the whole team (persistent)
 *   eager.c        the graph, node by node, with the same bits
 *   cpu_tune.c     the variants of the products, timed in load() and while idle
 *   cpu_load.c     the memory of load(): weights, cache, scratch, tables
 * Thread: the engine's, which is member 0 of the team; info() reads the atomics from any thread. Memory:
 * allocated in open and load. */
#pragma once
#include "prefault.h"
#include "attention.h"
#include "delta_net.h"
#include "backend/backend.h"
#include "backend/trace.h"
#include "model/graph.h"
#include "model/kv_plan.h"
#include "base/memory.h"
#include "cpu/matmul/team_experts.h"
#include "cpu/matmul/team_heads.h"
#include "cpu/matmul/team_matmul.h"
#include "model/program.h"
#include "sampler/sampler.h"
#include "slots.h"
#include "cpu/tuning/tuning.h"
#include "backend/step_check.h"
#include "base/team.h"
#include "weights.h"

#include <stdatomic.h>

#define DECODER_RING 2

struct exact;
struct eager;
struct retuned;

struct decoder_member {
    struct product_scratch product;
    struct experts_order *experts;
    struct attend_scratch attend[MODEL_MAX_KINDS];
    void *sampler;
    uint32_t op; /* the op that it is in, as a trace counts: from the end of the previous one */
};

struct decoder {
    struct backend base;
    struct backend_config cfg;
    int32_t *end_tokens;
    char device[64];
    const struct matmul_kernels *kernels;
    const struct ops *ops;
    struct team *team;

    /* Set by load(). */
    const struct program *program;
    const struct graph *graph;
    struct weights weights;
    struct memory_block kv, windows, scratch, transfer, rope; /* windows: the window pages */
    struct ahead *ahead, *windows_ahead;                      /* prefault of kv and windows */
    struct slots slots;
    struct step_checker *checker;
    struct attend attend[MODEL_MAX_KINDS]; /* of the model's kinds of attention */
    struct delta_net delta;
    struct product_shared product;
    struct tuning tuning;           /* as load() left it */
    _Atomic(struct tuning *) tuned; /* the choices in force; NULL before load() */
    struct retuned *retuned;        /* those that were adopted later, the newest first */
    uint32_t again_at;              /* see tuning_again() */
    uint64_t again_wait_ns;         /* idleness before the next one that is measured again */
    struct decoder_member *members; /* [team size] */
    struct rows buffers[PROGRAM_N_BUFFERS];
    struct eager *eager; /* if cfg.eager with int8 */
    struct exact *exact; /* if cfg.eager with exact */
    uint32_t n_vocab;
    struct kv_layout whole;  /* a page of all layers, as pages are exchanged */
    struct kv_plan plan;     /* the KV cache; arithmetic exact: n_pages alone */
    uint32_t n_snapshots;    /* recurrent states beside those of the slots */
    struct trace trace;      /* of the newest step with rows; closed: none is wanted */
    _Atomic uint64_t *op_ns; /* [n_ops]: time that each op of the program has taken so far */

    const uint32_t *masks; /* of step_logit.mask: of mask_words each */
    uint32_t mask_words;

    /* Steps in flight: a ring, the oldest at ring_first. */
    struct step *ring[DECODER_RING];
    uint32_t ring_first, ring_n;

    /* The step that runs or ran last. */
    const struct step *step;
    int32_t tokens[STEP_MAX_ROWS];        /* token of each row */
    uint16_t logit_rows[STEP_MAX_LOGITS]; /* step row of each logit row */
    struct step_result results[STEP_MAX_LOGITS];
    uint32_t n_results, n_taken;
    uint64_t steps_done; /* id of the newest finished step */
    bool fresh_logits;   /* the logits buffer belongs to that step */

    _Atomic uint64_t steps, busy_ns, heartbeat_ns;
    uint64_t pages_used, windows_used; /* pages of the KV cache in use, counted from the first */
    _Atomic uint64_t pieces_seen;      /* team_progress() at the last info() */
    _Atomic uint32_t state;
};

/* cpu_step.c */
/* Sets heartbeat_ns, at every op and dispatch; returns the time. Inside an op, which may take seconds on a
 * slow machine, the pieces of work that members take count as progress; none is taken while all wait. */
uint64_t decoder_beat(struct decoder *d);
/* Fills results[i] from logit row i. Any member, with its own sampler scratch. */
void decoder_choose(struct decoder *d, uint32_t i, const float *logits, void *scratch);

/* cpu_load.c: d->program and d->graph must be set. After a failure decoder_unload() frees what was
 * allocated. */
int decoder_load(struct decoder *d, struct error *err);
void decoder_unload(struct decoder *d);

/* cpu_tune.c: call when weights and scratch are in place. -EINVAL: the file of cfg.cpu_tuning is broken. */
int decoder_tune(struct decoder *d, struct error *err);
/* See backend_ops.idle: measures one unsettled choice again, and adopts what it finds. */
uint64_t decoder_tune_again(struct decoder *d, bool (*wanted)(void *context), void *context);
/* Frees what was adopted, and keeps it in the file of cfg.cpu_tuning. */
void decoder_tune_close(struct decoder *d);

/* persistent.c: runs the whole program for the current step. */
void decoder_walk(struct decoder *d);
/* Opens or closes d->trace. Between two steps. */
int decoder_trace(struct decoder *d, bool on, struct error *err);

/* eager.c: buffers and execution of single nodes. eager_dispatch() runs one on the whole team. */
int eager_open(struct decoder *d, struct error *err);
void eager_close(struct eager *e);        /* NULL is fine */
size_t eager_size(const struct eager *e); /* bytes */
struct rows eager_logits(const struct eager *e, const struct graph *g);
void eager_dispatch(struct decoder *d, uint32_t node);
/* See backend_node_ops.value. */
void eager_value(const struct decoder *d, uint32_t node, uint32_t row, float *out, float *factor);
