/* branch.h - the ops that join a branch to the residual stream, a gate, and two parts of a row: for models
 * that normalise the result of a product (gemma2, gemma3, gemma4), add embeddings for each layer, or have a
 * compressed cache (deepseek2).
 *
 *   ADD_NORM   out = (out + in / rms(in) * gain) * scale, over parts of k values of each row: [rows][n] f32;
 *              with PROGRAM_SET without the old `out`
 *   GATE       out = gelu(out) * in: [rows][n] f32, in from a column on
 *   JOIN       out = n[0] values of in, then n[1] others / rms(them) * gain: [rows][n[0] + n[1]] f32, all of
 *              them from columns on
 *
 * ADD_NORM: a part is a block's. Its first warp folds the squares in the order of arith.h, then all compute
 * threads finish the part. Floor: 16 bytes a value (in twice, out read and written) of a part that a block's
 * L1 does not hold; 4,096 values: about 1.7 us of chained additions and a round trip. GATE: a thread per
 * value; 12 bytes a value. JOIN: a block per row, as ADD_NORM, from the one on at which the groups of HEADS
 * end; 12 bytes a value. With PROGRAM_BESIDE it does not wait: HEADS has waited for what JOIN reads. Must
 * match walk_add_norm(), walk_gate() and walk_join() of lib/cpu/persistent.c in every bit:
 * tests/cuda/test_cuda_golden.c.
 *
 * Thread: all compute threads of every block together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "activation.h"
#include "device/interpreter.h"

/* Computes 1/rms of a part of k values, by the first warp; all compute threads get it. */
SIMT_INLINE float branch_inverse(const struct walk *w, const SIMT_GLOBAL float *x, uint32_t k)
{
    SIMT_SHARED float *shared = walk_work(w);
    if (simt_warp() == 0) {
        float r = activation_rms_inverse(x, k, w->op->eps, false);
        if (simt_lane() == 0)
            *shared = r;
    }
    crew_sync(&w->crew);
    float r = *shared;
    crew_sync(&w->crew); /* all have read it */
    return r;
}

SIMT_INLINE bool add_norm_op(struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t k = op->k, n_parts = op->n[0] / k;
    float scale = op->weight[0] == PROGRAM_NONE ? op->scale : walk_vector(w, op->weight[0])[0];
    const SIMT_GLOBAL float *gain = walk_vector(w, op->gain);
    bool sets = op->flags & PROGRAM_SET;
    if (!walk_wait(w))
        return false;
    for (uint32_t unit = simt_block(); unit < w->n_rows * n_parts; unit += simt_n_blocks()) {
        uint32_t row = unit / n_parts, at = unit % n_parts * k;
        const SIMT_GLOBAL float *in = walk_row(w, op->in, row) + at;
        SIMT_GLOBAL float *out = walk_row(w, op->out, row) + at;
        float r = branch_inverse(w, in, k);
        for (uint32_t i = simt_thread(); i < k; i += w->crew.n_threads)
            out[i] = (sets ? in[i] * r * gain[i] : out[i] + in[i] * r * gain[i]) * scale;
    }
    return true;
}

SIMT_INLINE bool gate_op(struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t n = op->n[0], first = op->out_col[0], n_threads = w->crew.n_threads;
    if (!walk_wait(w))
        return false;
    for (uint32_t i = simt_block() * n_threads + simt_thread(); i < w->n_rows * n;
         i += simt_n_blocks() * n_threads) {
        SIMT_GLOBAL float *out = walk_row(w, op->out, i / n) + i % n;
        *out = arith_gelu(*out) * walk_row(w, op->in, i / n)[first + i % n];
    }
    return true;
}

SIMT_INLINE bool join_op(struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t n = op->n[0], k = op->n[1];
    const SIMT_GLOBAL float *gain = walk_vector(w, op->gain);
    if (!(op->flags & PROGRAM_BESIDE) && !walk_wait(w))
        return false;
    uint32_t n_blocks = simt_n_blocks(), row = simt_block() + n_blocks - w->plan->first_block;
    for (row = row < n_blocks ? row : row - n_blocks; row < w->n_rows; row += n_blocks) {
        const SIMT_GLOBAL float *in = walk_row(w, op->in, row);
        const SIMT_GLOBAL float *first = in + op->out_col[0], *second = in + op->out_col[1];
        SIMT_GLOBAL float *out = walk_row(w, op->out, row) + op->out_col[2];
        float r = branch_inverse(w, second, k);
        for (uint32_t i = simt_thread(); i < n; i += w->crew.n_threads)
            out[i] = first[i];
        for (uint32_t i = simt_thread(); i < k; i += w->crew.n_threads)
            out[n + i] = second[i] * r * gain[i];
    }
    return true;
}
