/* product_narrow.h - the compute warps of a product of up to 8 columns: near ones, in the block's work area,
 * or far ones, of a wide product with so few.
 *
 * The warps process super-blocks in turn, from stage to stage (tile_product.h), and write their values to the
 * fold area, which has three parts of 8 / columns stages each. Behind its super-blocks of a part's first
 * stage a warp waits until all have given back the stages of the part before (the ring's own mbarriers say
 * so). Then each thread adds up what it owns of that part (product_fold.h), keeps the two halves' sums
 * between parts, and finishes what is complete. So a warp that has one super-block more than others delays
 * none of them: they are up to a part ahead. Only behind a block's last stage all meet at a barrier.
 *
 * Floor: the packed bytes of the matrices, once; far columns once for each tile of 16 rows, from L2. One wait
 * for an mbarrier per 8 / columns stages, and one barrier of the compute warps. Matches
 * lib/cpu/matmul/team_matmul.c in every bit; NaNs may differ in payload.
 *
 * Thread: all compute threads of a block together; product_items() and product_multiply(): all lanes of a
 * warp. */
#pragma once
#include "product_fold.h"

/* Multiplies this warp's super-blocks of a stage by a panel; one tile type. */
SIMT_INLINE void product_items(const uint32_t type, const enum product_form form, const struct activation *x,
                               const SIMT_SHARED char *stage, SIMT_SHARED float *values, uint32_t shift,
                               uint32_t n_items, uint32_t first_super, uint32_t n_supers, uint32_t first,
                               uint32_t n_threads)
{
    const bool one = form == PRODUCT_ONE, is_far = form == PRODUCT_FAR;
    const uint32_t bytes = tile_super_bytes(type), log2 = one ? 0 : shift;
    for (uint32_t each = simt_opaque(first); each < n_items; each += simt_opaque(n_threads) / SIMT_LANES) {
        uint32_t item = simt_opaque(each);
        uint32_t lane = simt_opaque(simt_lane()), g = lane / 4, t = lane % 4;
        SIMT_SHARED float *to = values + (item * TILE_ROWS << log2);
        const SIMT_SHARED char *tile = stage + item * bytes;
        uint32_t super = first_super + item;
        float v[TILE_MAX_PANEL][4];
        while (super >= n_supers)
            super -= n_supers;
        if (one && tile_is_float(type)) {
            product_put(to, 0, lane % TILE_ROWS, lane / TILE_ROWS,
                        tile_multiply_one_float(type, tile, lane, x, super), 0);
            continue;
        }
        if (one) {
            tile_multiply_one(type, tile, lane, x, super, v[0]);
            product_put(to, 0, g, 2 * t, v[0][0], 0);
            product_put(to, 0, g + 8, 2 * t, v[0][1], 0);
            continue;
        }
        if (!tile_is_float(type)) {
            tile_multiply(type, 1, is_far, tile, lane, x, super, v);
            product_put(to, log2, g, 2 * t, v[0][0], v[0][1]);
            product_put(to, log2, g + 8, 2 * t, v[0][2], v[0][3]);
            continue;
        }
        uint32_t row = lane % TILE_ROWS, column = lane / TILE_ROWS * 4;
        tile_multiply_floats(type, is_far, tile, lane, x, super, v[0]);
        product_put(to, log2, row, column, v[0][0], v[0][1]);
        product_put(to, log2, row, column + 2, v[0][2], v[0][3]);
    }
}

/* Multiplies the stage at place->at, the block's stage `number` of this product. A warp without a super-block
 * returns at once. */
SIMT_INLINE void product_multiply(const SIMT_SHARED struct product *p, uint32_t number,
                                  const struct product_place *place, const struct crew *crew)
{
    struct product_label label = product_label(product_labels(place->fold), ring_passed(place->at));
    uint32_t warp = simt_warp(),
             first = warp < label.lead ? warp + crew->n_warps - label.lead : warp - label.lead;
    if (first >= label.n_items)
        return;
    struct ring ring = product_ring(place);
    const SIMT_SHARED char *stage = ring_stage(&ring, place->at);
    SIMT_SHARED float *values = product_values(false, p, p->shift, place->fold, number);
#define PRODUCT_ITEMS(type, form, x, shift)                                                                  \
    case type:                                                                                               \
        product_items(type, form, &x, stage, values, shift, label.n_items, label.first_item, p->n_supers,    \
                      first, crew->n_threads);                                                               \
        return
#define PRODUCT_CASE_FAR(type)    PRODUCT_ITEMS(type, PRODUCT_FAR, far, 3)
#define PRODUCT_CASE_ONE(type)    PRODUCT_ITEMS(type, PRODUCT_ONE, x, 0)
#define PRODUCT_CASE_NARROW(type) PRODUCT_ITEMS(type, PRODUCT_NARROW, x, p->shift)
    if (product_is_far(p, place)) {
        struct activation far = product_far_columns(p, place, p->first_column);
        switch (label.type) {
            PRODUCT_EACH_TYPE(PRODUCT_CASE_FAR);
        }
        return;
    }
    struct activation x = activation_at(product_work(place), NULL, p->end_column - p->first_column, p->forms);
    if (p->shift == 0) /* a single sequence */
        switch (label.type) {
            PRODUCT_CASE_ONE(TILE_Q4_K);
            PRODUCT_CASE_ONE(TILE_Q5_K);
            PRODUCT_CASE_ONE(TILE_Q6_K);
            PRODUCT_CASE_ONE(TILE_Q8_0);
            PRODUCT_CASE_ONE(TILE_Q5_0);
            PRODUCT_CASE_ONE(TILE_Q4_0);
            PRODUCT_CASE_ONE(TILE_MXFP4);
            PRODUCT_CASE_ONE(TILE_IQ4_NL);
            PRODUCT_CASE_ONE(TILE_NVFP4);
            PRODUCT_CASE_ONE(TILE_CODES);
            PRODUCT_CASE_ONE(TILE_THREES);
            PRODUCT_CASE_ONE(TILE_F16);
            PRODUCT_CASE_ONE(TILE_BF16);
            PRODUCT_CASE_ONE(TILE_F32);
        }
    switch (label.type) {
        PRODUCT_EACH_TYPE(PRODUCT_CASE_NARROW);
    }
#undef PRODUCT_ITEMS
#undef PRODUCT_CASE_FAR
#undef PRODUCT_CASE_ONE
#undef PRODUCT_CASE_NARROW
}

/* Folds the values of the part that the last of `n` stages is in. */
SIMT_INLINE void product_settle_part(const SIMT_SHARED struct product *p, uint32_t n,
                                     const struct product_place *place, const struct crew *crew)
{
    uint32_t n_due = product_at_in_part(n - 1, p->shift) + 1, label = ring_passed(place->at) - n_due;
    if (p->shift == 0)
        product_settle(PRODUCT_ONE, p, label, n - n_due, n_due, p->first_column, place, crew);
    else
        product_settle(PRODUCT_NARROW, p, label, n - n_due, n_due, p->first_column, place, crew);
}

/* Multiplies this block's share by the columns that it quantised last, up to 8. False: end. A warp whose
 * stage does not come goes to the barrier behind the last one, as the others do in their time.
 *
 * A warp adds up what it owns of a part before it gives back the first stage of the next, and it has seen all
 * warps give back the stage before that. So when it comes to write over a part, three parts on, all have
 * added it up. */
SIMT_INLINE bool product_run_narrow(const SIMT_SHARED struct product *p, const struct product_place *place,
                                    const struct crew *crew)
{
    uint32_t n = 0; /* stages that are given back */
    bool told = false;
    for (bool more = true; more;) {
        struct ring ring = product_ring(place);
        told = !ring_take(&ring, place->at, place->guard);
        if (told)
            break;
        product_multiply(p, n, place, crew);
        if (n && product_at_in_part(n, p->shift) == 0) {
            ring = product_ring(place);
            told = !ring_await_given(&ring, place->at, place->guard);
            if (told)
                break;
            product_settle_part(p, n, place, crew);
        }
        more = !product_label(product_labels(place->fold), ring_passed(place->at)).ends;
        ring = product_ring(place);
        ring_give(&ring, place->at);
        n++;
    }
    if (crew_any(crew, told))
        return false;
    product_settle_part(p, n, place, crew);
    return true;
}
