/* route_op.h - ROUTE in the persistent decoder (program_ops.h): the choice of experts of each row.
 *   in [n_rows][n_experts], out [n_rows][2 n_used] f32, from a column of their rows on
 * A warp per row (choose.h); rows go to blocks in turn. Floor: 4 bytes a logit and a hop; in fact the chain
 * of n_used choices. Must match route_row() and route_factors() of abi/route.h:
 * tests/cuda/test_cuda_golden.c. Behind the choice the rows are gathered by expert, if that pays (gather.h).
 * Thread: all compute threads of every block together. Errors: false: end, as
 * interpreter.h says. */
#pragma once
#include "choose.h"
#include "gather.h"

SIMT_INLINE const SIMT_GLOBAL float *route_vector(const struct walk *w, uint32_t weight)
{
    return weight == PROGRAM_NONE ? DECODER_AT(const float, 0) : walk_vector(w, weight);
}

SIMT_INLINE bool route_op(struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    const struct route_rule rule = {.n_experts = op->route.n_experts,
                                    .n_used = op->route.n_used,
                                    .n_groups = op->route.n_groups,
                                    .n_groups_used = op->route.n_groups_used,
                                    .gating = op->route.gating,
                                    .normalise = op->route.normalise,
                                    .scale = op->route.scale};
    const SIMT_GLOBAL float *bias = route_vector(w, op->bias[0]), *factors = route_vector(w, op->weight[0]);
    if (!walk_wait(w))
        return false;
    for (uint32_t row = simt_warp() * simt_n_blocks() + simt_block(); row < w->n_rows;
         row += w->crew.n_warps * simt_n_blocks())
        choose_row(&rule, walk_row(w, op->in, row), bias, factors,
                   walk_row(w, op->out, row) + op->out_col[0]);
    return !mixture_gathers(w->n_rows, op->route.n_used, op->route.n_experts) || gather_all(w);
}
