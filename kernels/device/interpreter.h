/* interpreter.h - the state of a block of the persistent decoder while it runs the program, and the ordering
 * of an op against the same op's work in other blocks.
 *
 * An op is a function `bool NAME_op(struct walk *w)`. It may first prefetch data that no op of this step
 * writes; it calls walk_wait() before it accesses what earlier ops write, does this block's share and
 * returns; the loop then signals the op's end. An op that passes its output on as words says so in
 * walk_quiet() instead: the loop then signals nothing, or leaves that to the next op (GATE_LATER). The next
 * op polls the words (walk_polls()); its walk_wait() orders only the block's own warps, and what words cannot
 * order it gets by walk_wait_behind(). An op of several phases calls walk_meet() between them, or
 * walk_signal() and walk_wait_for() if it has work to do meanwhile; every block decides alike whether a phase
 * runs (from n_rows, lone_rows, k). False means end: the op returns it at once, in all compute threads
 * (crew_any() if only some threads know). An op that repeats code which needs all registers sets
 * GATE_AGAIN (step_gate.h) and returns: the loop calls it once more, with nothing kept but what lies in
 * memory.
 *
 * Thread: all compute threads of every block call these functions together, except where one thread or warp
 * is named. The counts in `uses` lie in shared memory; only thread 0 and walk_signal_before() access them.
 * Ops only read the struct. */
#pragma once
#include "compute_warps.h"
#include "step_gate.h"
#include "words.h"
#include "abi/schedule.h"

#define WALK_NOTHING UINT32_MAX

struct walk {
    const struct decoder_args *args;
    struct crew crew;
    struct ring ring;
    struct flow_guard guard;
    SIMT_SHARED uint32_t *uses; /* [n_counters]: how often this block has signalled each */
    const SIMT_GLOBAL struct program *program;
    const SIMT_GLOBAL struct program_op *op;     /* the op that runs */
    const SIMT_GLOBAL struct schedule_op *plan;  /* its schedule */
    const SIMT_GLOBAL struct decoder_step *seen; /* the published step: tokens, lone_rows */
    const SIMT_GLOBAL struct step *step;         /* its rows and logits */
    uint32_t index;                              /* index of the op */
    uint32_t before; /* counter of the previous op that ran in this step, or WALK_NOTHING */
    uint32_t n_rows; /* rows of the op: the step's, or its logits with PROGRAM_HEAD */
    uint32_t result; /* the part, of DECODER_RING, of the results that the step writes */
};

/* What a warp keeps from op to op. It lies in shared memory: a register that lasts for the whole loop is one
 * fewer in every op. */
struct walk_kept {
    uint32_t at;             /* position in the step: persistent_loop.h */
    struct ring_place place; /* in the ring; the same in all compute warps between two ops */
};
_Static_assert(sizeof(struct walk_kept) == DECODER_WARP_BYTES, "behind the states of mixtures");

/* This warp's, for its own lanes alone. The warp meets before one of them writes it, and after. */
SIMT_INLINE SIMT_SHARED struct walk_kept *walk_kept(const struct decoder_args *args)
{
    const struct decoder_shared *s = &args->shared;
    uint32_t behind =
        s->mbarriers + s->n_stages * 16 + DECODER_N_GATES * DECODER_GATE_BYTES + 2 * DECODER_MIXTURE_BYTES;
    SIMT_SHARED struct walk_kept *all =
        simt_carve(behind + simt_opaque(0), DECODER_MAX_THREADS / 32 * DECODER_WARP_BYTES);
    return all + simt_warp();
}

SIMT_INLINE struct ring_place walk_place(const struct walk *w)
{
    return (struct ring_place){walk_kept(w->args)->place.turns};
}

/* A barrier of the compute warps lies between an op's walk_place() and this. */
SIMT_INLINE void walk_keep_place(const struct walk *w, struct ring_place place)
{
    if (simt_lane() == 0)
        walk_kept(w->args)->place.turns = place.turns;
    simt_syncwarp();
}

SIMT_INLINE SIMT_GLOBAL uint32_t *walk_counter(const struct walk *w, uint32_t counter)
{
    return DECODER_AT(uint32_t, w->args->counters) + counter * DECODER_LINE;
}

SIMT_INLINE void walk_signal_counter(struct walk *w, uint32_t counter)
{
    flow_signal(walk_counter(w, counter), w->crew.n_threads);
    if (simt_thread() == 0)
        w->uses[counter]++;
}

SIMT_INLINE bool walk_wait_counter(struct walk *w, uint32_t counter)
{
    uint32_t target = simt_thread() == 0 ? w->uses[counter] * simt_n_blocks() : 0;
    return flow_wait(walk_counter(w, counter), target, &w->guard, w->crew.n_threads);
}

/* --- what thread 0 notes for the host --- */

/* word: of the block's line in `places`. */
SIMT_INLINE void walk_note_place(const struct decoder_args *args, uint32_t word, uint32_t value)
{
    if (simt_thread() == 0)
        simt_st_relaxed_gpu(DECODER_AT(uint32_t, args->places) + simt_block() * DECODER_LINE + word, value);
}

SIMT_INLINE SIMT_GLOBAL struct decoder_mark *walk_mark(const struct walk *w)
{
    uint32_t n_ops = w->args->n_counters / DECODER_PHASES;
    return DECODER_AT(struct decoder_mark, w->args->trace) + (size_t)simt_block() * n_ops + w->index;
}

SIMT_INLINE bool walk_notes_times(const struct walk *w)
{
    return w->args->trace && simt_thread() == 0;
}

/* The step is noted here: once the end of its last op is signalled, a later step may take its place. Thread:
 * one that notes times. */
SIMT_INLINE void walk_note_begin(const struct walk *w)
{
    SIMT_GLOBAL struct decoder_mark *m = walk_mark(w);
    m->step = w->step->id;
    m->begin_ns = simt_globaltimer();
    m->begin = simt_clock();
}

SIMT_INLINE void walk_note_end(const struct walk *w)
{
    if (walk_notes_times(w))
        walk_mark(w)->end = simt_clock();
}

/* edge: 0 for the begin of a wait, 1 for its end. */
SIMT_INLINE void walk_note_wait(const struct walk *w, uint32_t phase, uint32_t edge)
{
    if (walk_notes_times(w))
        walk_mark(w)->wait[phase][edge] = simt_clock();
}

/* --- waits --- */

/* Waits for `counter`, as the op's wait number `phase`. */
SIMT_INLINE bool walk_wait_noted(struct walk *w, uint32_t counter, uint32_t phase)
{
    walk_note_wait(w, phase, 0);
    bool go = walk_wait_counter(w, counter);
    walk_note_wait(w, phase, 1);
    return go;
}

/* How op `index` ends in this step, the one that runs or the one before it: enum gate_quiet. An op that
 * passes its output on as words (words.h) sets it, before a barrier, and ends with a barrier of the block
 * alone. */
SIMT_INLINE SIMT_SHARED uint32_t *walk_quiet(const struct decoder_args *args, uint32_t index)
{
    return &gate_of(args, index % 2 ? GATE_EXPERTS : GATE_STEP).word[GATE_QUIET];
}

/* Returns whether the op passes words on in this step. */
SIMT_INLINE bool walk_passes_words(const struct walk *w)
{
    return w->op->flags & PROGRAM_WORDS && w->n_rows <= w->args->words_rows;
}

/* Returns whether the op before this one did. */
SIMT_INLINE bool walk_polls(const struct walk *w)
{
    return w->before != WALK_NOTHING && *walk_quiet(w->args, w->index - 1);
}

/* Waits until earlier ops' output may be read and their input overwritten; behind an op that passed words on,
 * for the block's own warps. False: end. */
SIMT_INLINE bool walk_wait(struct walk *w)
{
    if (w->before == WALK_NOTHING)
        return true;
    if (!walk_polls(w))
        return walk_wait_noted(w, w->before, 0);
    crew_sync(&w->crew);
    return true;
}

/* The same, but behind an op that passed words on it waits for the end of op->wait, if there is one. */
SIMT_INLINE bool walk_wait_behind(struct walk *w)
{
    if (walk_polls(w) && w->op->wait != PROGRAM_NONE)
        return walk_wait_noted(w, w->op->wait, 0);
    return walk_wait(w);
}

/* Signals the end of the op before this one, by one thread. A barrier lies between that op's stores and this
 * call, and another before the block waits for the counter. */
SIMT_INLINE void walk_signal_before(const struct walk *w)
{
    simt_red_release_gpu_add(walk_counter(w, w->before), 1);
    w->uses[w->before]++;
}

/* Signals the end of this block's part of a phase, 1 to DECODER_PHASES - 1 (0 is the op's end, which the loop
 * signals). */
SIMT_INLINE void walk_signal(struct walk *w, uint32_t phase)
{
    walk_signal_counter(w, w->index * DECODER_PHASES + phase);
}

/* Waits until all blocks have signalled the phase. False: end. */
SIMT_INLINE bool walk_wait_for(struct walk *w, uint32_t phase)
{
    return walk_wait_noted(w, w->index * DECODER_PHASES + phase, phase);
}

SIMT_INLINE bool walk_meet(struct walk *w, uint32_t phase)
{
    walk_signal(w, phase);
    return walk_wait_for(w, phase);
}

/* Buffer `buffer` of row `row`; for the logits, of logit row `row`. */
SIMT_INLINE SIMT_GLOBAL float *walk_row(const struct walk *w, uint32_t buffer, uint32_t row)
{
    const struct decoder_buffers *b = &w->args->buffers;
    if (buffer == PROGRAM_LOGITS)
        return DECODER_AT(float, b->logits) + (size_t)row * b->logits_stride;
    return DECODER_AT(float, b->rows) + (size_t)row * b->row_floats + w->program->buffers[buffer].offset;
}

/* Empties words [first, first + n) of the scratch of each of the first n_rows rows, at most words_rows; n is
 * a multiple of 4. By one warp of every block. */
SIMT_INLINE void walk_empty(const struct walk *w, uint32_t first, uint32_t n, uint32_t n_rows)
{
    const struct decoder_buffers *b = &w->args->buffers;
    uint32_t quads = n / 4, rows = n_rows < w->args->words_rows ? n_rows : w->args->words_rows;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_block() * SIMT_LANES + simt_lane(); i < rows * quads;
         i += simt_n_blocks() * SIMT_LANES)
        words_empty4(DECODER_AT(float, b->rows) + (size_t)(i / quads) * b->row_floats + first +
                     i % quads * 4);
}

/* The floats of a gain or bias, by model weight index. */
SIMT_INLINE const SIMT_GLOBAL float *walk_vector(const struct walk *w, uint32_t weight)
{
    return DECODER_AT(const float, DECODER_AT(const uint64_t, w->args->vectors)[weight]);
}

/* Prefetches n > 0 floats, which a later op reads and no op writes, into L2: every 128-byte line of them,
 * whatever their alignment. The caller does part `part` of `n_parts`. */
SIMT_INLINE void walk_ask(uint64_t floats, uint32_t n, uint32_t part, uint32_t n_parts)
{
    SIMT_SMALL_LOOP
    for (uint32_t i = part * 32; i < n + 31; i += n_parts * 32)
        simt_prefetch_l2(DECODER_AT(const float, floats) + (i < n ? i : n - 1));
}

/* Named parts of the block's dynamic shared memory. */
#define walk_work_and_kept(w)                                                                                \
    ((SIMT_SHARED char *)simt_carve((w)->args->shared.work,                                                  \
                                    DECODER_KEPT_BYTES + (w)->args->shared.work_bytes))
#define walk_work(w) ((SIMT_SHARED void *)(walk_work_and_kept(w) + DECODER_KEPT_BYTES))
#define walk_fold(w) simt_carve((w)->args->shared.fold, (w)->args->shared.fold_bytes)
