/* product_op.h - the ops MATMUL and EXPERTS of the persistent decoder: both multiply by product_run(), of
 * which the kernel has one copy. A MATMUL calls it once, an EXPERTS once for each unit (experts/mixture.h).
 * Thread: all compute threads of every block together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "mixture.h"
#include "matmul/product.h"

/* Quantises what the product multiplies: the step's rows by all blocks together if it is wide, else by each
 * block for itself; of experts, the columns of all places together if rows are gathered, else the unit's row
 * by each block. A narrow product's factors come behind the barrier, beside the first products: they take
 * longest, and only the last values of a run need them. False: end. */
SIMT_INLINE bool product_take_rows(struct walk *w, SIMT_SHARED struct product *p, SIMT_SHARED char *work,
                                   bool by_expert, bool gathers)
{
    uint32_t n = p->n_columns, n_warps = w->crew.n_warps, warp = simt_warp();
    if (gathers) {
        n = mixture_list_of(w->args)->n_places;
    } else if (by_expert) {
        if (mixture_at(w->args, 0)->state == MIXTURE_KEPT)
            return true;
        n = 1;
    }
    if (gathers || (!by_expert && product_is_wide(n, p->k, p->forms, w->args->shared.work_bytes))) {
        n_warps *= simt_n_blocks();
        warp = product_find_factors(p, true, 0, n, simt_block() * w->crew.n_warps + warp, n_warps);
        product_quantise(p, true, work, 0, n, warp, n_warps);
        return walk_meet(w, 1);
    }
    product_quantise(p, false, work, 0, n, warp, n_warps);
    crew_sync(&w->crew);
    product_find_factors(p, false, 0, n, warp, n_warps);
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

/* Begins the op. False: end. */
SIMT_INLINE bool product_begin(struct walk *w, SIMT_SHARED struct product *p, const bool has_experts)
{
    product_describe_op(w, p, has_experts);
    if (w->before == WALK_NOTHING)
        crew_sync(&w->crew);
    if (!walk_wait(w))
        return false;
    if (has_experts && p->by_expert && simt_thread() == 0) {
        mixture_tell(w);
        if (mixture_at(w->args, 0)->gathers)
            mixture_come_again(w);
    }
    return true;
}

/* has_experts: a constant; without it the code of EXPERTS is left out. Each unit is a call of its own, and
 * what comes before the first one if rows are gathered, so that product_run() has the registers to itself. */
SIMT_INLINE bool product_op(struct walk *w, const bool has_experts)
{
    SIMT_SHARED char *fold = walk_fold(w), *work = walk_work(w);
    SIMT_SHARED struct product *p = product_at(fold, 0);
    struct ring_place at = walk_place(w);
    struct product_place place = {work, fold, &w->ring, &at, &w->guard, w->args};
    bool again = has_experts && mixture_goes_on(w);
    if (again)
        crew_sync(&w->crew); /* no thread reads the unit before any more */
    else if (!product_begin(w, p, has_experts))
        return false;
    bool by_expert = has_experts && p->by_expert, gathers = by_expert && mixture_at(w->args, 0)->gathers;
    if (by_expert && (again || !gathers)) {
        if (!mixture_go(w, p))
            return false;
        if (!mixture_goes_on(w))
            return mixture_end(w, p);
    }
    if (!(gathers && again) && !product_take_rows(w, p, work, by_expert, gathers))
        return false;
    if (gathers && !again)
        return true;
    bool go = product_run(p, &place, &w->crew);
    walk_keep_place(w, at);
    return go;
}
