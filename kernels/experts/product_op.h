/* product_op.h - the ops MATMUL and EXPERTS of the persistent decoder: both multiply by product_run(), of
 * which the kernel has one copy. A MATMUL calls it once, an EXPERTS once for each unit (experts/mixture.h).
 * Thread: all compute threads of every block together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "mixture.h"
#include "matmul/product.h"

/* Quantises the step's rows: by all blocks together if the product is wide, else by each block for itself; of
 * experts, the unit's row by each block. A narrow product's factors come behind the barrier, beside the first
 * products: they take longest, and only the last values of a run need them. False: end. */
SIMT_INLINE bool product_take_rows(struct walk *w, SIMT_SHARED struct product *p, SIMT_SHARED char *work,
                                   bool by_expert)
{
    uint32_t first = 0, n = p->n_columns, n_warps = w->crew.n_warps, warp = simt_warp();
    if (by_expert) {
        if (!mixture_is_fresh(w))
            return true;
        first = mixture_row(w);
        n = 1;
    } else if (product_is_wide(n, p->k, p->forms, w->args->shared.work_bytes)) {
        n_warps *= simt_n_blocks();
        warp = product_find_factors(p, true, 0, n, simt_block() * w->crew.n_warps + warp, n_warps);
        product_quantise(p, true, work, 0, n, warp, n_warps);
        return walk_meet(w, 1);
    }
    product_quantise(p, false, work, first, n, warp, n_warps);
    crew_sync(&w->crew);
    product_find_factors(p, false, first, n, warp, n_warps);
    return true;
}

/* Describes the op, by the last warp: the first one releases the previous op's counter and then waits for
 * this op's. */
SIMT_INLINE void product_describe_op(struct walk *w, SIMT_SHARED struct product *p, const bool has_experts)
{
    if (simt_warp() + 1 != w->crew.n_warps)
        return;
    product_open(p, w->args, w->program, w->op, w->plan, w->step, w->n_rows);
    if (!has_experts || w->op->opcode != PROGRAM_EXPERTS)
        return;
    simt_syncwarp(); /* several lanes have written it */
    if (simt_lane() == 0)
        mixture_open(mixture_at(w->args, 0), p, w->args, w->program, w->op, w->n_rows);
}

/* Begins the op, or goes on to the block's next unit. False: end. */
SIMT_INLINE bool product_begin(struct walk *w, SIMT_SHARED struct product *p, const bool has_experts)
{
    if (has_experts && mixture_goes_on(w))
        return mixture_next(w, p);
    product_describe_op(w, p, has_experts);
    if (w->before == WALK_NOTHING)
        crew_sync(&w->crew);
    return walk_wait(w) && (!has_experts || !p->by_expert || mixture_go(w, p, false));
}

/* has_experts: a constant; without it the code of EXPERTS is left out. Each unit is a call of its own, so
 * that product_run() has the registers to itself. */
SIMT_INLINE bool product_op(struct walk *w, const bool has_experts)
{
    SIMT_SHARED char *fold = walk_fold(w), *work = walk_work(w);
    SIMT_SHARED struct product *p = product_at(fold, 0);
    struct product_place place = {work, fold, &w->ring, &w->place, &w->guard};
    if (!product_begin(w, p, has_experts))
        return false;
    bool by_expert = has_experts && p->by_expert;
    if (by_expert && !mixture_goes_on(w))
        return mixture_end(w, p);
    return product_take_rows(w, p, work, by_expert) && product_run(p, &place, &w->crew);
}
