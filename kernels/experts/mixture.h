/* mixture.h - the products of a mixture of experts in the persistent decoder (program_ops.h, EXPERTS): those
 * of product.h, of one expert's matrices and one column at a time.
 *
 *   gated   out of (row, u) = act(W_gate x + b) * (W_up x + b)
 *           x: the row's normalised input; W, b: of expert u of the row's choice
 *   summed  out of row (+)= sum over u, ascending, of weight u * (W_down x_u + b)
 *           x_u: column u of the row
 *
 * A unit is a pair of a row and one of its chosen experts; units follow row by row, experts ascending. The
 * groups of each unit are dealt to blocks where those of the unit before end, so that the blocks stream as
 * much. Between units one lane points the description of the product (struct product) at the next expert of
 * which its block has a group. The results of a summed op stand in buffers.activations, [row][u][n], until
 * all blocks have theirs; then each thread adds those of its columns.
 *
 * A block's producer warp knows the experts only when its compute warps have seen ROUTE end: the experts'
 * gate (step_gate.h) tells it the number of rows. It then reads the choice by itself, for both ops of the
 * mixture, and so runs ahead of the compute warps through the second one. They end that op only when it has
 * read all: the next mixture's ROUTE writes the choice anew.
 *
 * Floor: the packed bytes of a row's experts, for each row anew; of a summed op 8 bytes a part and a meeting
 * of all blocks. Three barriers of the compute warps a unit besides product_run()'s. Must match
 * lib/cpu/matmul/team_experts.h in every bit: tests/cuda/test_cuda_golden.c, tests/cuda/test_cuda_twin.c.
 *
 * Thread: mixture_open(): one lane. mixture_seek(): one lane, of the warp that opened. mixture_stream(): all
 * lanes of the producer warp. The rest: all compute threads of every block together. Errors: false: end, as
 * interpreter.h says. */
#pragma once
#include "device/step_gate.h"
#include "matmul/product.h"

/* The unit at which a description is pointed. */
struct mixture {
    uint32_t choice,
        out; /* columns of a row's buffers: its experts' numbers, and then their weights; its sums */
    uint32_t n_rows;
    uint32_t row; /* n_rows: there is no further unit */
    uint16_t n_used, expert;
    uint16_t u;      /* the expert is the u-th of the row's choice */
    uint16_t summed; /* each expert has its own k columns of `in`, and the results are added up */
    uint16_t adds;   /* to what stands at `out` */
    uint16_t fresh;  /* the unit's column is not quantised yet */
    uint32_t reserved;
};
_Static_assert(sizeof(struct mixture) == DECODER_MIXTURE_BYTES, "two of them lie behind the gates");

/* The compute warps' (0) and the producer's (1). */
SIMT_INLINE SIMT_SHARED struct mixture *mixture_at(const struct decoder_args *args, uint32_t which)
{
    const struct decoder_shared *s = &args->shared;
    uint32_t behind = s->mbarriers + s->n_stages * 16 + DECODER_N_GATES * DECODER_GATE_BYTES;
    return simt_carve(behind + which * DECODER_MIXTURE_BYTES + simt_opaque(0), DECODER_MIXTURE_BYTES);
}

/* True of the second op of a mixture: the one whose results are weighed and added up. */
SIMT_INLINE bool mixture_is_summed(const SIMT_GLOBAL struct program_op *op)
{
    return !program_is_gated(op->epilogue);
}

SIMT_INLINE const SIMT_GLOBAL float *mixture_choice(const SIMT_SHARED struct mixture *m,
                                                    const struct decoder_args *args, uint32_t row)
{
    const struct decoder_buffers *b = &args->buffers;
    return DECODER_AT(const float, b->rows) + (size_t)row * b->row_floats + m->choice;
}

/* Makes a description of the op's whole matrices (product_open()) one of the first expert's. */
SIMT_INLINE void mixture_open(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                              const struct decoder_args *args, const SIMT_GLOBAL struct program *program,
                              const SIMT_GLOBAL struct program_op *op, uint32_t n_rows)
{
    uint32_t n = op->n[0], n_used = op->route.n_used;
    bool summed = mixture_is_summed(op);
    m->choice = program->buffers[PROGRAM_CHOICE].offset + op->gate_col;
    m->out = program->buffers[op->out].offset;
    m->n_rows = n_rows;
    m->row = 0;
    m->n_used = (uint16_t)n_used;
    m->expert = 0;
    m->u = 0;
    m->summed = summed;
    m->adds = op->epilogue == PROGRAM_RESIDUAL;
    for (uint32_t i = 0; i < p->n_matrices; i++) {
        p->matrix[i].n = n;
        p->matrix[i].n_tiles = n / TILE_ROWS;
        p->matrix[i].out_col = 0;
    }
    if (!summed)
        return;
    p->epilogue = PROGRAM_STORE;
    p->out = args->buffers.activations;
    p->out_stride = n_used * n;
}

/* Points the description at the expert of unit (row, u), if there is one. */
SIMT_INLINE void mixture_point(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                               const struct decoder_args *args, uint32_t row, uint32_t u, const bool next)
{
    uint32_t before = m->u, n = p->matrix[0].n, expert = m->expert;
    m->fresh = m->summed || row != m->row || !next;
    m->row = row;
    m->u = (uint16_t)u;
    if (row == m->n_rows)
        return;
    uint32_t chosen = (uint32_t)mixture_choice(m, args, row)[u];
    m->expert = (uint16_t)chosen;
    for (uint32_t i = 0; i < p->n_matrices; i++) {
        SIMT_SHARED struct product_matrix *x = &p->matrix[i];
        uint64_t bytes = (uint64_t)x->n_tiles * p->n_supers * x->super_bytes;
        x->tiles += chosen * bytes - expert * bytes;
        if (x->bias)
            x->bias += (uint64_t)chosen * n * 4 - (uint64_t)expert * n * 4;
    }
    p->out += (uint64_t)u * n * 4 - (uint64_t)before * n * 4;
    if (m->summed)
        p->in += (uint64_t)u * p->k * 4 - (uint64_t)before * p->k * 4;
}

/* Goes to the first unit, from the current one (`next`: from the one behind it) on, of which this block has a
 * group. */
SIMT_INLINE void mixture_seek(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                              const struct decoder_args *args, const bool next)
{
    uint32_t row = m->row, u = m->u, n_rows = m->n_rows, n_used = m->n_used;
    uint32_t n_blocks = simt_n_blocks(), n_groups = p->n_groups, turn = n_groups % n_blocks;
    uint32_t first = product_first_group(p);
    for (bool on = next; row < n_rows && (on || first >= n_groups); on = false) {
        first = first < turn ? first + n_blocks - turn : first - turn;
        if (++u == n_used) {
            u = 0;
            row++;
        }
    }
    uint32_t block = simt_block();
    p->first_block = block >= first ? block - first : block + n_blocks - first;
    mixture_point(m, p, args, row, u, next);
}

/* --- the compute warps --- */

/* Points the description at the block's next unit: at the first one, behind the wait of the op, or (`next`)
 * at the one behind the current. By thread 0, which also tells the producer that the choice is there, and
 * behind the last unit of all waits until the producer has read it. */
SIMT_INLINE bool mixture_go(struct walk *w, SIMT_SHARED struct product *p, const bool next)
{
    bool stop = false;
    if (simt_thread() == 0) {
        SIMT_SHARED struct mixture *m = mixture_at(w->args, 0);
        struct gate gate = gate_of(w->args, GATE_EXPERTS);
        if (!next && !m->summed)
            stop = !gate_put(&gate, m->n_rows, &w->guard);
        mixture_seek(m, p, w->args, next);
        gate.word[GATE_AGAIN] = m->row < m->n_rows;
        if (m->summed && m->row == m->n_rows)
            stop = !gate_drained(&gate, &w->guard);
    }
    return !crew_any(&w->crew, stop);
}

/* True while the description is pointed at a unit: the op is called until it is not. */
SIMT_INLINE bool mixture_goes_on(const struct walk *w)
{
    return gate_of(w->args, GATE_EXPERTS).word[GATE_AGAIN];
}

SIMT_INLINE uint32_t mixture_row(const struct walk *w)
{
    return mixture_at(w->args, 0)->row;
}

/* False: the unit before has the same column. */
SIMT_INLINE bool mixture_is_fresh(const struct walk *w)
{
    return mixture_at(w->args, 0)->fresh;
}

SIMT_INLINE bool mixture_next(struct walk *w, SIMT_SHARED struct product *p)
{
    crew_sync(&w->crew); /* no thread reads the unit before any more */
    return mixture_go(w, p, true);
}

/* Adds the parts of each row's experts up, ascending from 0, times their weights. */
SIMT_INLINE void mixture_add(const struct decoder_args *args, uint32_t n)
{
    const SIMT_SHARED struct mixture *m = mixture_at(args, 0);
    const struct decoder_buffers *b = &args->buffers;
    uint32_t n_used = m->n_used, n_threads = args->n_crew;
    for (uint32_t i = simt_block() * n_threads + simt_thread(); i < m->n_rows * n;
         i += simt_n_blocks() * n_threads) {
        uint32_t row = i / n, column = i % n;
        const SIMT_GLOBAL float *weights = mixture_choice(m, args, row) + n_used;
        const SIMT_GLOBAL float *y =
            DECODER_AT(const float, b->activations) + (size_t)row * n_used * n + column;
        SIMT_GLOBAL float *out = DECODER_AT(float, b->rows) + (size_t)row * b->row_floats + m->out + column;
        float sum = 0, before = m->adds ? *out : 0;
        SIMT_SMALL_LOOP
        for (uint32_t u = 0; u < n_used; u++)
            sum = __builtin_fmaf(weights[u], y[(size_t)u * n], sum);
        *out = m->adds ? before + sum : sum;
    }
}

/* Ends the op behind its last unit. */
SIMT_INLINE bool mixture_end(struct walk *w, const SIMT_SHARED struct product *p)
{
    if (!mixture_at(w->args, 0)->summed)
        return true;
    if (!walk_meet(w, 1))
        return false;
    mixture_add(w->args, p->matrix[0].n);
    return true;
}

/* --- the producer warp --- */

/* Fetches what the compute warps will consume of an EXPERTS op that is described in p. */
SIMT_INLINE bool mixture_stream(SIMT_SHARED struct product *p, const struct decoder_args *args,
                                const SIMT_GLOBAL struct program *program,
                                const SIMT_GLOBAL struct program_op *op, struct gate *gate,
                                const struct ring *ring, struct ring_place *place,
                                const struct flow_guard *guard)
{
    SIMT_SHARED struct mixture *m = mixture_at(args, 1);
    if (!mixture_is_summed(op) && !gate_await(gate, guard))
        return false;
    if (simt_lane() == 0) {
        mixture_open(m, p, args, program, op, gate->word[GATE_WORD]);
        mixture_seek(m, p, args, false);
    }
    simt_syncwarp();
    while (m->row < m->n_rows) {
        if (!product_produce(p, ring, place, guard))
            return false;
        simt_syncwarp(); /* no lane reads the unit before any more */
        if (simt_lane() == 0)
            mixture_seek(m, p, args, true);
        simt_syncwarp();
    }
    if (mixture_is_summed(op))
        gate_take(gate);
    return true;
}
