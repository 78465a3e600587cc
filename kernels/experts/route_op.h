/* route_op.h - ROUTE in the persistent decoder (program_ops.h): the choice of experts of each row.
 *   in [n_rows][n_experts], out [n_rows][2 n_used] f32, from a column of their rows on
 * A warp per row (choose.h); rows go to blocks in turn. Floor: 4 bytes a logit and a hop; in fact the chain
 * of n_used choices. Must match route_row() and route_factors() of abi/route.h:
 * tests/cuda/test_cuda_golden.c. Behind the choice the rows are gathered by expert, if that pays (gather.h).
 *
 * Where rows are few, each block chooses for itself (mixture_is_own()), which saves the hop: ROUTE does
 * nothing, and the gated EXPERTS op behind it is called for the choice first, by the same code.
 * Thread: all compute threads of every block together. Errors: false: end, as
 * interpreter.h says. */
#pragma once
#include "choose.h"
#include "gather.h"
#include "product_op.h"

_Static_assert(MIXTURE_OWN_EXPERTS <= CHOOSE_SOME * SIMT_LANES, "choices in shared memory");

SIMT_INLINE const SIMT_GLOBAL float *route_vector(const struct walk *w, uint32_t weight)
{
    return weight == PROGRAM_NONE ? DECODER_AT(const float, 0) : walk_vector(w, weight);
}

/* True of ROUTE, and of an EXPERTS op that is called for the choice. */
SIMT_INLINE bool route_is_due(const struct walk *w)
{
    return w->op->opcode == PROGRAM_ROUTE ||
           (mixture_is_chosen(w->op) && mixture_chooses(w->op, w->n_rows) && !mixture_again(w));
}

/* Lets the EXPERTS op be called once more, behind its choice. */
SIMT_INLINE void route_go_on(const struct walk *w)
{
    if (simt_thread() == 0)
        gate_of(w->args, GATE_EXPERTS).word[GATE_AGAIN] = GATE_CHOSEN;
    crew_sync(&w->crew);
}

/* Chooses for this block's rows, or for all of them. The largest mixtures have no register for `own`. */
SIMT_INLINE void route_rows(const uint32_t slots, const bool own, const struct walk *w,
                            const SIMT_GLOBAL struct program_op *op, const struct route_rule *rule)
{
    const SIMT_GLOBAL float *bias = route_vector(w, op->bias[0]), *factors = route_vector(w, op->weight[0]);
    uint32_t row = own ? simt_warp() : simt_warp() * simt_n_blocks() + simt_block();
    for (; row < w->n_rows; row += w->crew.n_warps * (own ? 1 : simt_n_blocks())) {
        const struct choose_out out = {.far = walk_row(w, op->out, row) + op->out_col[0],
                                       .near = own ? mixture_own(w->args) + row * 2 * rule->n_used : NULL};
        choose_row_of(slots, rule, walk_row(w, op->in, row), bias, factors, &out);
    }
}

SIMT_INLINE bool route_op(struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    bool own = mixture_chooses(op, w->n_rows);
    if (own && op->opcode == PROGRAM_ROUTE)
        return true;
    if (own) { /* it waits for what ROUTE would have waited for */
        product_describe_op(w, product_at(walk_fold(w), 0), true);
        op--;
        w->before -= DECODER_PHASES;
    }
    const struct route_rule rule = {.n_experts = op->route.n_experts,
                                    .n_used = op->route.n_used,
                                    .n_groups = op->route.n_groups,
                                    .n_groups_used = op->route.n_groups_used,
                                    .gating = op->route.gating,
                                    .normalise = op->route.normalise,
                                    .scale = op->route.scale};
    if (!walk_wait(w))
        return false;
    if (rule.n_experts > MIXTURE_OWN_EXPERTS)
        route_rows(CHOOSE_SLOTS, false, w, op, &rule);
    else if (rule.n_experts > CHOOSE_FEW * SIMT_LANES)
        route_rows(CHOOSE_SOME, own, w, op, &rule);
    else
        route_rows(CHOOSE_FEW, own, w, op, &rule);
    if (own)
        route_go_on(w);
    return own || !mixture_gathers(w->n_rows, op->route.n_used, op->route.n_experts) || gather_all(w);
}
