/* product_op.h - the ops MATMUL, EXPERTS and HEADS of the persistent decoder: all multiply by
 * product_run(), of which the kernel has one copy. A MATMUL calls it once, the others once for each unit
 * (experts/mixture.h).
 * Thread: all compute threads of every block together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "mixture.h"
#include "matmul/product_wide.h"

/* Quantises the product's n columns, which may be words: by each block for itself or, `is_far`, this block's
 * share; `wide`: the product is, and a wide one's factors come first. If the op before has yet to be
 * signalled, the last warp signals it and quantises nothing, so that the others do not wait for its release.
 */
SIMT_INLINE void product_take_columns(struct walk *w, SIMT_SHARED struct product *p, const bool is_far,
                                      bool wide, SIMT_SHARED char *work, uint32_t n)
{
    uint32_t warp = simt_warp();
    bool signals = p->polls && *walk_quiet(w->args, w->index - 1) == GATE_LATER;
    uint32_t n_warps = w->crew.n_warps - signals, n_all = is_far ? n_warps * simt_n_blocks() : n_warps;
    if (p->polls)
        walk_note_wait(w, 0, 0);
    if (warp < n_warps) {
        uint32_t at = is_far ? simt_block() * n_warps + warp : warp;
        if (is_far && wide)
            at = product_find_factors(p, true, false, 0, n, at, n_all);
        product_quantise(p, is_far, work, 0, n, at, n_all, wide, &w->guard);
    } else if (simt_lane() == 0) {
        walk_signal_before(w);
    }
    if (p->polls)
        walk_note_wait(w, 0, 1);
}

/* Quantises what the product multiplies: the step's rows by all blocks together if it is wide or its columns
 * are shared, else by each block for itself; of units, the columns of all together if rows are gathered, else
 * the unit's (of experts one row, of heads all) by each block. A narrow product's factors come behind the
 * barrier, beside the first products: they take longest, and only the last values of a run need them. Columns
 * that are words are never wide, and columns that come quantised are only copied. If words are shared, no
 * block still copies panels from where these are written (lib/cuda/plan_words.c). False: end. */
SIMT_INLINE bool product_take_rows(struct walk *w, SIMT_SHARED struct product *p, SIMT_SHARED char *work,
                                   bool by_unit, bool gathers)
{
    uint32_t n = p->n_columns, n_warps = w->crew.n_warps, warp = simt_warp();
    if (gathers) {
        n = mixture_n_columns(w, p);
    } else if (by_unit) {
        if (mixture_at(w->args, 0)->state == MIXTURE_KEPT)
            return true;
        n = mixture_at(w->args, 0)->out_part ? n : 1;
    }
    bool wide = gathers || (!by_unit && product_is_wide(n, p->k, p->forms, w->args->shared.work_bytes));
    if (p->polls == PRODUCT_QUANTISED) {
        walk_note_wait(w, 0, 0);
        product_take_quantised(p, work, n, &w->crew, &w->guard);
        walk_note_wait(w, 0, 1);
    } else if (wide || (!by_unit && product_is_shared(n, p->k, n_warps))) {
        product_take_columns(w, p, true, wide, work, n);
        if (!walk_meet(w, 1))
            return false;
        if (wide)
            return true;
        product_fetch(p, work, n, &w->crew);
    } else {
        product_take_columns(w, p, false, false, work, n);
    }
    crew_sync(&w->crew);
    product_find_factors(p, false, true, 0, n, warp, n_warps);
    return true;
}

/* Describes the op, by the last warp: the first one releases the previous op's counter and then waits for
 * this op's. */
SIMT_INLINE void product_describe_op(struct walk *w, SIMT_SHARED struct product *p, const bool has_units)
{
    if (simt_warp() + 1 != w->crew.n_warps)
        return;
    product_open(p, w->args, w->program, w->op, w->plan, w->step, w->n_rows, walk_polls(w));
    if (simt_lane() == 0 && walk_passes_words(w))
        *walk_quiet(w->args, w->index) = w->op->flags & PROGRAM_SIGNALS ? GATE_LATER : GATE_MUTE;
    if (!has_units || w->op->opcode == PROGRAM_MATMUL)
        return;
    simt_syncwarp(); /* several lanes have written it */
    if (simt_lane() != 0)
        return;
    if (w->op->opcode == PROGRAM_HEADS)
        mixture_open_heads(mixture_at(w->args, 0), p, w->args, w->op, w->n_rows);
    else
        mixture_open(mixture_at(w->args, 0), p, w->args, w->program, w->op, w->n_rows);
}

/* Begins the op; behind its own choice (route_op.h) it is described, and what it waits for is there. False:
 * end. */
SIMT_INLINE bool product_begin(struct walk *w, SIMT_SHARED struct product *p, const bool has_units)
{
    bool chosen = has_units && mixture_again(w) == GATE_CHOSEN;
    if (!chosen)
        product_describe_op(w, p, has_units);
    if (chosen || w->before == WALK_NOTHING)
        crew_sync(&w->crew);
    if (!chosen && !walk_wait(w))
        return false;
    if (has_units && p->by_unit && simt_thread() == 0) {
        mixture_tell(w);
        if (mixture_at(w->args, 0)->gathers)
            mixture_come_again(w);
    }
    if (has_units && w->op->opcode == PROGRAM_HEADS)
        mixture_keep(w);
    return true;
}

/* has_units: a constant; without it the code of EXPERTS and HEADS is left out. Each unit is a call of its
 * own, and what comes before the first one if rows are gathered, so that product_run() has the registers to
 * itself. */
SIMT_INLINE bool product_op(struct walk *w, const bool has_units)
{
    SIMT_SHARED char *fold = walk_fold(w), *work = walk_work(w);
    SIMT_SHARED struct product *p = product_at(fold, 0);
    struct ring_place at = walk_place(w);
    struct product_place place = {work, fold, &w->ring, &at, &w->guard, w->args, w->args->shared.work_bytes};
    bool again = has_units && mixture_goes_on(w);
    if (again)
        crew_sync(&w->crew); /* no thread reads the unit before any more */
    else if (!product_begin(w, p, has_units))
        return false;
    bool by_unit = has_units && p->by_unit, gathers = by_unit && mixture_at(w->args, 0)->gathers;
    if (by_unit && (again || !gathers)) {
        if (!mixture_go(w, p))
            return false;
        if (!mixture_goes_on(w))
            return mixture_end(w, p);
    }
    if (!(gathers && again) && !product_take_rows(w, p, work, by_unit, gathers))
        return false;
    if (gathers && !again)
        return true;
    bool go = product_run(p, &place, &w->crew);
    if (p->n_empties && simt_warp() + 1 == w->crew.n_warps)
        walk_empty(w, p->empties, p->n_empties, w->n_rows);
    walk_keep_place(w, at);
    return go;
}
