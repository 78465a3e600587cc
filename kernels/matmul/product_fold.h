/* product_fold.h - the end of a product: the values that the warps have written to the fold area are added up
 * by super-block, in two halves of K, and finished as the op says. Each thread owns pairs of a row and a
 * column. Where the result is passed on quantised, the 32 lanes of a warp own a block of one column, which
 * takes two tiles.
 *
 * Floor: one load and one addition per pair and super-block; no bank conflicts with one column or eight,
 * two-way conflicts with several that are passed on quantised.
 *
 * Thread: all compute threads of a block; each accesses only the pairs that it owns. */
#pragma once
#include "product.h"

/* Destination of the result of one row of the matrix and one column. */
SIMT_INLINE SIMT_GLOBAL float *product_out(const SIMT_SHARED struct product *p,
                                           const SIMT_SHARED struct product_matrix *m, uint32_t n,
                                           uint32_t column)
{
    uint32_t out_col = program_is_gated(p->epilogue) ? p->matrix[0].out_col : m->out_col;
    return DECODER_AT(float, p->out) + (size_t)column * p->out_stride + out_col + n;
}

/* Stores a result, and empties the old value if the op does. Gate's product is stored where up's will read
 * it, not in the destination, if that is words. */
SIMT_INLINE void product_give(const SIMT_SHARED struct product *p, uint32_t matrix, SIMT_GLOBAL float *out,
                              float v)
{
    bool gated = program_is_gated(p->epilogue);
    if (gated && matrix == 0)
        out[p->old] = v;
    else if (p->words)
        words_put(out, v);
    else
        *out = v;
    if (p->empties_old)
        out[p->old] = arith_from_bits(WORDS_EMPTY);
}

/* Returns whether the result is passed on quantised. A constant false in a node's kernel. */
SIMT_INLINE bool product_quantises(const SIMT_SHARED struct product *p, const struct product_place *place)
{
    return place->args && p->words == PRODUCT_QUANTISED;
}

/* Returns whether the result needs an old value: x, or gate's y. This thread stored y; in a wide product by
 * columns another lane of its warp did, before ring_give(). */
SIMT_INLINE bool product_adds(const SIMT_SHARED struct product *p, uint32_t matrix)
{
    return p->epilogue == PROGRAM_RESIDUAL || p->epilogue >= PROGRAM_TIMES_SILU ||
           (program_is_gated(p->epilogue) && matrix == 1);
}

/* Returns the old value. A product of up to 8 columns that has it elsewhere than the result loads it as a
 * word: the block has seen it or waited for it, or this thread stored it. */
SIMT_INLINE float product_before(const SIMT_SHARED struct product *p, const bool wide,
                                 const SIMT_GLOBAL float *out)
{
    return activation_get(out + p->old, !wide && p->old);
}

SIMT_INLINE float product_bias(const SIMT_SHARED struct product_matrix *m, uint32_t n)
{
    return m->bias ? DECODER_AT(const float, m->bias)[n] : 0;
}

/* Returns the result, from both halves' sums. */
SIMT_INLINE float product_finish(const SIMT_SHARED struct product *p, uint32_t matrix, float r, float before,
                                 float bias, float sum0, float sum1)
{
    float y = (sum0 + sum1) * r;
    if (p->matrix[matrix].bias)
        y = y + bias;
    y = y * p->scale;
    if (!product_adds(p, matrix))
        return p->cap > 0 ? arith_cap(y * (2.0f / p->cap * ARITH_LOG2E), p->cap) : y;
    if (p->epilogue == PROGRAM_RESIDUAL)
        return before + y;
    if (p->epilogue == PROGRAM_SWIGLU_CLAMPED)
        return arith_swiglu_clamped(before, y);
    if (p->epilogue >= PROGRAM_TIMES_SILU)
        return before * (p->epilogue == PROGRAM_TIMES_SILU ? arith_silu(y) : arith_sigmoid(y));
    return (p->epilogue == PROGRAM_GEGLU ? arith_gelu(before) : arith_silu(before)) * y;
}

SIMT_INLINE uint32_t product_shift_of(const enum product_form form, const SIMT_SHARED struct product *p)
{
    return form == PRODUCT_ONE ? 0 : form == PRODUCT_FAR ? 3 : p->shift;
}

/* Number of a stage's group among those that may be folded together, whose values have 1 << shift columns. */
SIMT_INLINE uint32_t product_turn(const struct product_label *label, uint32_t shift)
{
    return label->turn % (PRODUCT_MOST_STAGES >> shift);
}

/* Adds a stage's values to the sums of pairs own, own + n_threads ..., [column][half 2][row 16], and finishes
 * the pairs if that stage was the last of its run. */
SIMT_INLINE void product_fold(const enum product_form form, const SIMT_SHARED struct product *p,
                              const struct product_label *label, uint32_t first_column,
                              const SIMT_SHARED float *values, uint32_t own,
                              const struct product_place *place, const struct crew *crew)
{
    const bool wide = form == PRODUCT_FAR;
    uint32_t log2 = product_shift_of(form, p), item = (wide ? TILE_MAX_PANEL : 1) * TILE_ROWS << log2;
    const SIMT_SHARED struct product_matrix *m = &p->matrix[label->matrix];
    SIMT_SHARED char *near_sums =
        place->fold + PRODUCT_SUMS_AT + (product_turn(label, log2) * 2 * TILE_ROWS * 4 << log2);
    SIMT_SHARED float *all = (SIMT_SHARED float *)(wide ? product_work(place) : near_sums);
    uint32_t n = form == PRODUCT_ONE ? 1 : product_some(wide, p, first_column), shift = product_shift(n);
    uint32_t per_tile = label->n_tiles > 1 ? p->n_supers : label->n_items, half = (p->n_supers + 1) / 2;
    bool quantises = !wide && product_quantises(p, place);
    for (uint32_t i = simt_opaque(own); i < (label->n_tiles * TILE_ROWS) << shift; i += crew->n_threads) {
        uint32_t row = i % TILE_ROWS, column = i / TILE_ROWS & ((1u << shift) - 1);
        uint32_t tile = i / TILE_ROWS >> shift;
        if (quantises && shift) { /* a warp has 32 rows of a column */
            column = i / SIMT_LANES & ((1u << shift) - 1);
            tile = i / SIMT_LANES >> shift << 1 | (i / TILE_ROWS & 1);
        }
        uint32_t number = first_column + column;
        if (column >= n)
            continue;
        uint32_t index = form == PRODUCT_ONE ? 0 : number - p->first_column;
        SIMT_SHARED float *sums = all + index * 2 * TILE_ROWS + row;
        const SIMT_SHARED float *v = values + tile * per_tile * item +
                                     column / ACTIVATION_COLUMNS * PRODUCT_PANEL +
                                     product_word(row, column % ACTIVATION_COLUMNS, log2);
        uint32_t in_matrix = (label->first_tile + tile) * TILE_ROWS + row;
        SIMT_GLOBAL float *out = product_out(p, m, in_matrix, number);
        bool ends = label->last && in_matrix < m->n;
        float sum[2] = {0, 0};
        float before = ends && product_adds(p, label->matrix) ? product_before(p, wide, out) : 0;
        float bias = ends ? product_bias(m, in_matrix) : 0; /* both loaded early */
        if (label->first_item) {
            sum[0] = sums[0];
            sum[1] = sums[TILE_ROWS];
        }
        uint32_t s = label->first_item, end = s + per_tile, middle = half < end ? half : end;
#pragma clang loop unroll_count(4)
        for (; s < middle; s++, v += item)
            sum[0] += *v;
#pragma clang loop unroll_count(4)
        for (; s < end; s++, v += item)
            sum[1] += *v;
        if (!label->last) {
            sums[0] = sum[0];
            sums[TILE_ROWS] = sum[1];
            continue;
        }
        float r = wide || product_is_far(p, place) ? DECODER_AT(const float, p->wide_factors)[number]
                                                   : p->factor[index];
        if (!ends)
            continue;
        float y = product_finish(p, label->matrix, r, before, bias, sum[0], sum[1]);
        if (quantises && label->matrix)
            quantised_put(out - in_matrix, in_matrix / ARITH_BLOCK, y);
        else
            product_give(p, label->matrix, out, y);
    }
}

/* This thread's number among owners. Those of warps 2 and 3 of each four come first: of 14 compute warps
 * their schedulers have three, the others four. */
SIMT_INLINE uint32_t product_owner(const struct crew *crew)
{
    uint32_t thread = simt_opaque(simt_thread()), four = thread / 128, in_four = thread % 128;
    uint32_t n_first =
        crew->n_threads / 128 * 64 + (crew->n_threads % 128 > 64 ? crew->n_threads % 128 - 64 : 0);
    return in_four >= 64 ? four * 64 + in_four - 64 : n_first + four * 64 + in_four;
}

/* Folds the values of n stages of one part of the fold area: of the block's stage `number` of this product
 * on, whose label is number `label`. Groups that may be there together have their own owners and their own
 * room for sums; all stages of a group have the same, so that a thread finds the sums, and gate's y, that it
 * stored itself. */
SIMT_INLINE void product_settle(const enum product_form form, const SIMT_SHARED struct product *p,
                                uint32_t label, uint32_t number, uint32_t n, uint32_t first_column,
                                const struct product_place *place, const struct crew *crew)
{
    const bool wide = form == PRODUCT_FAR;
    uint32_t log2 = product_shift_of(form, p), n_owners = p->group_tiles * TILE_ROWS << (wide ? 4 : log2);
    uint32_t thread = product_owner(crew);
    if (PRODUCT_MOST_STAGES >> log2 <= 1 && thread >= n_owners)
        return; /* all groups have the same owners, the first threads */
    SIMT_SHARED float *values = product_values(wide, p, log2, place->fold, number);
    SIMT_SMALL_LOOP
    for (uint32_t stage = 0; stage < n; stage++, values += product_stage_floats(p, log2)) {
        struct product_label of = product_label(product_labels(place->fold), label + stage);
        uint32_t first = wide ? 0 : product_turn(&of, log2) * ((n_owners + 31) / 32 * 32);
        while (first >= crew->n_threads)
            first -= crew->n_threads;
        uint32_t own = thread < first ? thread + crew->n_threads - first : thread - first;
        if (own < n_owners)
            product_fold(form, p, &of, first_column, values, own, place, crew);
    }
}
