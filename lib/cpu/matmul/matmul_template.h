/* clang-format off */
/* matmul_template.h - the matrix product for one vector width.
 * Included once per instruction set, after these definitions:
 *
 *   LANES            f32 per vector (16 or 8); a "row vector" is LANES rows side by side
 *   PAIR_SUMS        1: products are summed in 16 bits, in pairs, before they are widened: pairs_of(), pairs_add(),
 *                    pairs_sum(), pairs_widen(); 0: dot() sums four of them in 32 bits
 *   PANEL_COLUMNS    columns of the panel kernel: 2 * PANEL_COLUMNS accumulators and 3 more fit the registers
 *   PANEL_UNPACKS    1: panels unpack weights on the way, as most types are fastest so
 *   DIRECT_COLUMNS   up to this many columns, at most 8, weights are unpacked in registers
 *   vi, vf           vectors of integers and of floats, and the vi_*, vf_*, dot() used below
 *   QUANTISE_SUPER   quantise_super(), or a faster equivalent
 *
 * Two shapes serve all types. Few columns (decode): a block of 32 columns of 16 rows is unpacked into 8
 * registers and multiplied with every column, one group at a time (with sums of pairs: both row vectors of a
 * group, a step at a time); it runs as fast as memory reads. Many columns (batches, prefill): 2 row vectors x
 * PANEL_COLUMNS accumulators stay in registers over a block, and weights are unpacked a step at a time
 * between the products of the step before. Where that is too much work for every panel, the first one stores
 * the expanded tile in the L1 cache for the others.
 * Thread: any; all functions are pure but for the caller's scratch. */
/* clang-format on */
#include "matmul_fold.h"
#include "matmul_fetch.h"

#define PAIR_GROUPS (2 / ROW_VECTORS) /* groups of the two row vectors of a panel */
/* The columns of a panel kernel. */
INLINE uint32_t panel_columns(uint32_t kind)
{
    return has_halves(kind) ? PANEL_COLUMNS / 2 : PANEL_COLUMNS;
}

/* True if every panel unpacks weights itself, between products that keep the multipliers busy, where a
 * variant does not say. Otherwise the first one stores its expanded tile, which is cheaper where unpacking is
 * much work. (Tried: eight columns of a type with half-blocks, one half after the other, with the first
 * half's products in the L1 cache: as fast as this with eight columns, a tenth slower with many.) */
INLINE bool panel_unpacks(uint32_t kind)
{
    return PANEL_UNPACKS && matmul_traits[kind].fold != MATMUL_FOLD_K16;
}

/* The activations of step t; `x` is the first step of the block. */
INLINE vi step_of(const int8_t *x, size_t width, uint32_t t)
{
    return vi_bcast(x + t * width * 4);
}

#if PAIR_SUMS
/* The number of steps whose products fit 16 bits together: a pair of them is at most 2 * 127 times the
 * largest value. */
INLINE uint32_t run_steps(uint32_t kind)
{
    const struct matmul_traits *t = &matmul_traits[kind];
    uint32_t largest = t->codes ? quant_codebooks[t->codes].largest + t->zero : (1u << t->bits) - 1;
    uint32_t n = t->bits == 8 ? 1 : 32767 / (254 * largest);
    return n >= 8 && !has_halves(kind) ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

/* The multiplier that widens the pairs of step t of block `slot` of e. */
INLINE vi multiplier(uint32_t kind, const struct expanded *e, uint32_t slot, uint32_t t)
{
    if (!has_whole_scales(kind))
        return vi_set16(1);
    return vi_load(e->scale[has_halves(kind) ? 2 * slot + t / 4 : slot]);
}

/* The start of the integer sum over block j (its half h), which is block `slot` of e: -zero * sum of x,
 * scaled like the sum. */
INLINE vi start(uint32_t kind, const struct expanded *e, uint32_t slot, const struct matmul_panel *p,
                size_t width, uint32_t column, uint32_t j, uint32_t h)
{
    uint32_t zero = matmul_traits[kind].zero;
    if (!zero || zero == 128)
        return vi_set(0);
    if (!has_whole_scales(kind) &&
        has_halves(kind)) /* of one half: the sum of the other is multiplied by 0 */
        return pairs_widen(vi_bcast(p->n16 + 2 * j * width + column), vi_set((int)(h ? zero << 16 : zero)));
    vi by = vi_set16((short)zero);
    if (matmul_traits[kind].fold == MATMUL_FOLD_K32)
        by = vi_shift(vi_load(e->scale[slot]), __builtin_ctz(zero));
    return pairs_widen(vi_bcast(p->n16 + 2 * j * width + column),
                       has_halves(kind) ? vi_load(e->min[slot]) : by);
}
#else
/* The start of the integer sum over block j (its half h): -zero * sum of x. */
INLINE vi start(uint32_t kind, const struct matmul_panel *p, size_t width, uint32_t column, size_t j,
                uint32_t h)
{
    if (!matmul_traits[kind].zero && !matmul_traits[kind].codes)
        return vi_set(0);
    vi v = vi_bcast(has_halves(kind) ? p->n16 + (2 * j + h) * width + column : p->n + j * width + column);
    return zero_of(kind) == 64 ? vi_add(v, v) : v;
}
#endif

#if !PAIR_SUMS
/* Multiplies one block, unpacked in registers, with one column. Returns the new value of chain c. */
INLINE vf direct_block(uint32_t kind, const vi w[MATMUL_STEPS], const struct expanded *e,
                       const struct matmul_panel *p, uint32_t column, uint32_t j, vf c)
{
    const int8_t *x = p->q + (j * MATMUL_STEPS * p->width + column) * 4;
    const uint32_t n_steps = has_halves(kind) ? 4 : 8;
    vi low = start(kind, p, p->width, column, j, 0), high = start(kind, p, p->width, column, j, 1);
    for (uint32_t t = 0; t < n_steps; t++) {
        low = dot(low, w[t], step_of(x, p->width, t));
        if (has_halves(kind))
            high = dot(high, w[t + 4], step_of(x, p->width, t + 4));
    }
    return vf_fma(vf_bcast(p->a + j * p->width + column), scaled(kind, e, j, low, high), c);
}
#endif

/* The work on one tile: the panels of a chunk of columns, and the memory to prefetch meanwhile. */
struct chunk {
    const struct matmul_input *in;
    uint32_t column, end, super, n_blocks;
    bool fresh;                          /* the first super-block of its half of K: totals start here */
    const uint8_t *tile[2], *globals[2]; /* of each row vector, to unpack on the way */
    /* For each group: weights of later tiles, of which every block of a panel prefetches `part` bytes. */
    uintptr_t ahead[2];
    size_t part;
    uint32_t hint; /* enum matmul_hint, not MATMUL_HINT_BUILT */
    bool spread;   /* the first panel stores its expanded tile for the others */
    float *out;    /* output of the chunk's first column at the last super-block, else NULL */
    size_t stride;
};

/* The source of a panel's weights: it unpacks them; it unpacks them and stores the expanded tile for the
 * panels that follow; it reads the expanded tile. */
enum weights_from { FROM_TILE, FROM_TILE_SPREADING, FROM_SPREAD };

/* The weights of step t of block j of row vector r. */
INLINE vi panel_weights(uint32_t kind, enum weights_from from, const struct chunk *x, struct expanded *e,
                        uint32_t j, uint32_t r, uint32_t t)
{
    if (from == FROM_SPREAD)
        return vi_load(e[r].q[j * MATMUL_STEPS + t]);
    size_t at = matmul_block_at(&matmul_traits[kind], x->n_blocks, j) + r % ROW_VECTORS * LANES * 4;
    vi w = unpack_step(kind, x->tile[r] + at, (int)t);
    if (from == FROM_TILE_SPREADING)
        vi_store(e[r].q[j * MATMUL_STEPS + t], w);
    return w;
}

/* panel_sums() computes the sums of block j for two row vectors and W columns, one or two (halves) of
 * each. */
#if PAIR_SUMS
/* The same, with the scales of block `slot` of e. */
INLINE void pair_sums(uint32_t kind, enum weights_from from, uint32_t W, size_t width, const struct chunk *x,
                      struct expanded *e, uint32_t slot, const struct matmul_panel *p, uint32_t column,
                      uint32_t j, vi sum[2][2][PANEL_COLUMNS])
{
    const uint32_t run = run_steps(kind);
    const int8_t *q = p->q + (j * MATMUL_STEPS * width + column) * 4;
#pragma GCC unroll 8
    for (uint32_t c = 0; c < W; c++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++)
            for (uint32_t h = 0; h < 2; h++)
                sum[h][r][c] = start(kind, &e[r], slot, p, width, column + c, j, h);
#pragma GCC unroll 8
    for (uint32_t t = 0; t < MATMUL_STEPS; t += run) {
        const uint32_t h = has_halves(kind) && !has_whole_scales(kind) ? t / 4 : 0;
        vi pairs[2][PANEL_COLUMNS];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < run; i++) {
            vi w0 = panel_weights(kind, from, x, e, j, 0, t + i);
            vi w1 = panel_weights(kind, from, x, e, j, 1, t + i);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < W; c++) {
                vi v = step_of(q + (size_t)c * 4, width, t + i);
                vi p0 = pairs_of(kind, w0, v), p1 = pairs_of(kind, w1, v);
                pairs[0][c] = i ? pairs_add(pairs[0][c], p0) : p0;
                pairs[1][c] = i ? pairs_add(pairs[1][c], p1) : p1;
            }
        }
#pragma GCC unroll 8
        for (uint32_t c = 0; c < W; c++)
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                sum[h][r][c] = pairs_sum(sum[h][r][c], pairs[r][c], multiplier(kind, &e[r], slot, t));
    }
}

INLINE void panel_sums(uint32_t kind, enum weights_from from, uint32_t W, size_t width, const struct chunk *x,
                       struct expanded *e, const struct matmul_panel *p, uint32_t column, uint32_t j,
                       vi sum[2][2][PANEL_COLUMNS])
{
    pair_sums(kind, from, W, width, x, e, j, p, column, j, sum);
}
#else
INLINE void panel_sums(uint32_t kind, enum weights_from from, uint32_t W, size_t width, const struct chunk *x,
                       struct expanded *e, const struct matmul_panel *p, uint32_t column, uint32_t j,
                       vi sum[2][2][PANEL_COLUMNS])
{
    const uint32_t n_halves = has_halves(kind) ? 2 : 1, n_steps = MATMUL_STEPS / n_halves;
    const int8_t *q = p->q + (j * MATMUL_STEPS * width + column) * 4;
#pragma GCC unroll 2
    for (uint32_t h = 0; h < n_halves; h++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < W; c++)
            sum[h][0][c] = sum[h][1][c] = start(kind, p, width, column + c, j, h);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n_steps; i++)
#pragma GCC unroll 2
        for (uint32_t h = 0; h < n_halves; h++) {
            uint32_t t = h * n_steps + i;
            vi w0 = panel_weights(kind, from, x, e, j, 0, t);
            vi w1 = panel_weights(kind, from, x, e, j, 1, t);
#pragma GCC unroll 8
            for (uint32_t c = 0; c < W; c++) {
                vi v = step_of(q + (size_t)c * 4, width, t);
                sum[h][0][c] = dot(sum[h][0][c], w0, v);
                sum[h][1][c] = dot(sum[h][1][c], w1, v);
            }
        }
}
#endif

/* Adds minimum i of e, of a block or a half of one, to the chains of two row vectors and W columns; b: the
 * columns' factors. The columns run side by side, to hide the latency of one chain. */
INLINE void chain_minimum(uint32_t W, const struct expanded *e, uint32_t i, const float *b,
                          vf m[2][PANEL_COLUMNS])
{
    vf min0 = vf_load(e[0].min[i]), min1 = vf_load(e[1].min[i]);
#pragma GCC unroll 8
    for (uint32_t c = 0; c < W; c++) {
        vf v = vf_bcast(b + c);
        m[0][c] = vf_fma(v, min0, m[0][c]);
        m[1][c] = vf_fma(v, min1, m[1][c]);
    }
}

/* Computes the chains over n_blocks blocks. */
INLINE void panel_minima(uint32_t fold, uint32_t W, const struct expanded *e, const struct matmul_panel *p,
                         size_t width, uint32_t column, uint32_t n_blocks, vf m[2][PANEL_COLUMNS])
{
    uint32_t n = minima_of(fold) * n_blocks;
    const float *b = fold == MATMUL_FOLD_K16M ? p->b16 + column : p->b + column;
#pragma GCC unroll 8
    for (uint32_t c = 0; c < W; c++)
        m[0][c] = m[1][c] = vf_zero();
    for (uint32_t i = 0; i < n; i++, b += width)
        chain_minimum(W, e, i, b, m);
}

#if PAIR_SUMS
_Static_assert(DIRECT_COLUMNS <= PANEL_COLUMNS && ROW_VECTORS == 2, "room for the sums of a group");

/* Adds the sums over block j of a group, whose scales are block `slot` of e[row vector], times the W columns
 * of a panel to the chains c[row vector][column]. */
INLINE void direct_block(uint32_t kind, uint32_t W, const struct chunk *x, struct expanded *e, uint32_t slot,
                         const struct matmul_panel *p, uint32_t j, vf c[2][PANEL_COLUMNS])
{
    vi sum[2][2][PANEL_COLUMNS];
    pair_sums(kind, FROM_TILE, W, W, x, e, slot, p, 0, j, sum);
#pragma GCC unroll 8
    for (uint32_t i = 0; i < W; i++)
#pragma GCC unroll 2
        for (uint32_t r = 0; r < 2; r++)
            c[r][i] = vf_fma(vf_bcast(p->a + j * W + i),
                             scaled(kind, &e[r], slot, sum[0][r][i], sum[1][r][i]), c[r][i]);
}

/* Multiplies all blocks of a group, with scales expanded in e. */
INLINE void direct_expanded(uint32_t kind, uint32_t W, const struct chunk *x, const uint8_t *scales,
                            const struct matmul_panel *p, struct expanded *e, vf c[2][PANEL_COLUMNS],
                            vf min[2][PANEL_COLUMNS])
{
#pragma GCC unroll 2
    for (uint32_t r = 0; r < 2; r++)
        expand_scales(kind, scales, x->n_blocks, r * LANES, e->bytes, &e[r]);
    for (uint32_t j = 0; j < x->n_blocks; j++) {
        fetch(x->hint, x->ahead[0] + j * x->part, x->part);
        direct_block(kind, W, x, e, j, p, j, c);
    }
    panel_minima(matmul_traits[kind].fold, W, e, p, W, 0, x->n_blocks, min);
}

/* Multiplies all blocks of a group, with scales expanded in registers, one block at a time as block 0 of
 * own. */
INLINE void direct_in_place(uint32_t kind, uint32_t W, const struct chunk *x, const uint8_t *scales,
                            const struct matmul_panel *p, const struct expanded *e, struct expanded own[2],
                            vf c[2][PANEL_COLUMNS], vf min[2][PANEL_COLUMNS])
{
    const uint32_t n_min = minima_of(matmul_traits[kind].fold);
    for (uint32_t j = 0; j < x->n_blocks; j++) {
        fetch(x->hint, x->ahead[0] + j * x->part, x->part);
#pragma GCC unroll 2
        for (uint32_t r = 0; r < 2; r++)
            expand_block_scales(kind, scales, x->n_blocks, r * LANES, j, e->bytes, 0, &own[r]);
        direct_block(kind, W, x, own, 0, p, j, c);
#pragma GCC unroll 2
        for (uint32_t i = 0; i < n_min; i++)
            chain_minimum(W, own, i, (n_min == 2 ? p->b16 : p->b) + (n_min * j + i) * W, min);
    }
}

/* Multiplies a super-block of a group with the W columns of a panel, which has no others, and adds the values
 * to total[row vector][column]. Constants that a panel decides at run time, for any number of columns, are
 * fixed here; with few columns a block's scales are expanded in registers, where they are used. With one
 * column both would be half of all instructions. */
INLINE void direct_tile(uint32_t kind, uint32_t W, const struct matmul_matrix *m, uint32_t group,
                        uint32_t super, const struct matmul_panel *p, const struct fetched *ahead,
                        struct expanded *e, float total[2][MATMUL_PANEL][LANES])
{
    const uint8_t *tile = matmul_tile(m, group, super);
    uint32_t n_blocks = matmul_n_blocks(m->k, super), fold = matmul_traits[kind].fold;
    const struct chunk x = {.tile = {tile, tile},
                            .n_blocks = n_blocks,
                            .hint = ahead->hint,
                            .ahead = {ahead->at},
                            .part = prefetch_part(kind, MATMUL_SUPER_BLOCKS)};
    /* Not where that needs too many registers, nor where expanding them one by one is more work. */
    const bool in_place = kind != MATMUL_Q3_K && (W == 1 || (W == 2 && fold != MATMUL_FOLD_K16));
    struct expanded own[2], *to = in_place ? own : e;
    vf c[2][PANEL_COLUMNS], min[2][PANEL_COLUMNS];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < W; i++)
        c[0][i] = c[1][i] = min[0][i] = min[1][i] = vf_zero();
    if (fold == MATMUL_FOLD_K) {
        expand_bytes(tile, e->bytes);
        /* Forces loads: otherwise the compiler keeps the vector and extracts each byte from it. */
        __asm__("" : "+m"(e->bytes));
    }
    if (in_place)
        direct_in_place(kind, W, &x, tile, p, e, own, c, min);
    else
        direct_expanded(kind, W, &x, tile, p, e, c, min);
#pragma GCC unroll 2
    for (uint32_t r = 0; r < 2; r++) {
        expand_globals(kind, matmul_globals(m, group, super), r * LANES, &to[r]);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < W; i++)
            vf_store(total[r][i],
                     vf_add(vf_load(total[r][i]), super_value(fold, c[r][i], min[r][i], &to[r])));
    }
}
#else
/* Multiplies a super-block of one row vector with the W columns of a panel and adds the values to
 * total[column]. */
INLINE void direct_tile(uint32_t kind, uint32_t W, const struct matmul_matrix *m, uint32_t group,
                        uint32_t super, uint32_t o, const struct matmul_panel *p, const struct fetched *ahead,
                        struct expanded *e, float total[MATMUL_PANEL][LANES])
{
    const uint8_t *tile = matmul_tile(m, group, super);
    uint32_t n_blocks = matmul_n_blocks(m->k, super);
    uint32_t fold = matmul_traits[kind].fold;
    size_t part = prefetch_part(kind, MATMUL_SUPER_BLOCKS);
    vf c[MATMUL_PANEL];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < W; i++)
        c[i] = vf_zero();
    if (fold == MATMUL_FOLD_K && o == 0) /* for the whole group */
        expand_bytes(tile, e->bytes);
    expand_scales(kind, tile, n_blocks, o, e->bytes, e);
    expand_globals(kind, matmul_globals(m, group, super), o, e);
    for (uint32_t j = 0; j < n_blocks; j++) {
        vi w[MATMUL_STEPS];
        if (o == 0)
            fetch(ahead->hint, ahead->at + j * part, part);
        unpack(kind, tile + matmul_block_at(&matmul_traits[kind], n_blocks, j) + 4 * o, w);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < W; i++)
            c[i] = direct_block(kind, w, e, p, i, j, c[i]);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < W; i++) {
        vf v = super_value(fold, c[i], minima(fold, e, p, i, n_blocks), e);
        vf_store(total[i], vf_add(vf_load(total[i]), v));
    }
}
#endif

INLINE void direct(uint32_t kind, uint32_t W, const struct matmul_matrix *m, const struct matmul_input *in,
                   uint32_t first, uint32_t last, float *out, size_t stride, struct scratch *s)
{
    uint32_t n_super = matmul_n_super(m->k), half = matmul_half(n_super);
    const uint32_t hint = hint_of(in, MATMUL_HINT_NTA);
    const size_t distance = distance_of(in, DIRECT_AHEAD);
    for (uint32_t g = first; g < last; g++, out += MATMUL_ROWS) {
        float total[2][ROW_VECTORS][MATMUL_PANEL][LANES] __attribute__((aligned(64))) = {0};
        for (uint32_t super = 0; super < n_super; super++) {
            struct matmul_panel p = matmul_panel(in, 0, super);
            struct fetched ahead = ahead_of(kind, m, in, g, last, super, 1, distance, hint);
#if PAIR_SUMS
            direct_tile(kind, W, m, g, super, &p, &ahead, s->e, total[super >= half]);
#else
            for (uint32_t r = 0; r < ROW_VECTORS; r++)
                direct_tile(kind, W, m, g, super, r * LANES, &p, &ahead, &s->e[0], total[super >= half][r]);
#endif
        }
        for (uint32_t r = 0; r < ROW_VECTORS; r++)
            for (uint32_t i = 0; i < W; i++)
                put(m, g * MATMUL_ROWS + r * LANES, out + i * stride + r * LANES,
                    vf_add(vf_load(total[0][r][i]), vf_load(total[1][r][i])));
    }
}

/* Prefetches a little at a time: prefetches that wait for each other delay the loads behind them. */
INLINE void chunk_fetch(const struct chunk *x, uint32_t panel_index, uint32_t j)
{
    size_t first = (panel_index * MATMUL_SUPER_BLOCKS + j) * x->part;
    for (uint32_t g = 0; g < PAIR_GROUPS; g++)
        fetch(x->hint, x->ahead[g] + first, x->part);
}

/* Expands the scales of block j while its values are unpacked; with the first block also those of the
 * super-block. */
INLINE void panel_scales(uint32_t kind, const struct chunk *x, uint32_t j, struct expanded *e)
{
    for (uint32_t r = 0; r < 2; r++) {
        const uint8_t *p = x->tile[r];
        uint32_t o = r % ROW_VECTORS * LANES;
        struct expanded *group = &e[r - r % ROW_VECTORS];
        if (matmul_traits[kind].fold == MATMUL_FOLD_K && j == 0 && o == 0)
            expand_bytes(p, group->bytes);
        expand_block_scales(kind, p, x->n_blocks, o, j, group->bytes, j, &e[r]);
        if (j == 0)
            expand_globals(kind, x->globals[r], o, &e[r]);
    }
}

/* Multiplies a super-block of two row vectors with W columns of a panel from `column` on. Where scales widen
 * pairs, they are unpacked a block ahead: stored values are not available at once. */
INLINE void panel(uint32_t kind, enum weights_from from, uint32_t W, size_t width, struct expanded *e,
                  const struct matmul_panel *p, uint32_t column, const struct chunk *x, uint32_t panel_index,
                  float total[][2][LANES])
{
    uint32_t fold = matmul_traits[kind].fold;
    bool scales = from == FROM_TILE_SPREADING || (from == FROM_TILE && column == 0 && panel_index == 0);
    vf chain[2][PANEL_COLUMNS];
#pragma GCC unroll 8
    for (uint32_t c = 0; c < W; c++)
        chain[0][c] = chain[1][c] = vf_zero();
    if (scales && PAIR_SUMS)
        panel_scales(kind, x, 0, e);
    for (uint32_t j = 0; j < x->n_blocks; j++) {
        vi sum[2][2][PANEL_COLUMNS];
        if (column == 0)
            chunk_fetch(x, panel_index, j);
        if (scales && j + PAIR_SUMS < x->n_blocks)
            panel_scales(kind, x, j + PAIR_SUMS, e);
        panel_sums(kind, from, W, width, x, e, p, column, j, sum);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < W; c++)
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                chain[r][c] = vf_fma(vf_bcast(p->a + j * width + column + c),
                                     scaled(kind, &e[r], j, sum[0][r][c], sum[1][r][c]), chain[r][c]);
    }
    vf m[2][PANEL_COLUMNS];
    panel_minima(fold, W, e, p, width, column, x->n_blocks, m);
#pragma GCC unroll 8
    for (uint32_t c = 0; c < W; c++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            vf v = super_value(fold, chain[r][c], m[r][c], &e[r]);
            vf_store(total[c][r], vf_add(x->fresh ? vf_zero() : vf_load(total[c][r]), v));
        }
}

INLINE void chunk_fetch_out(const struct chunk *x, uint32_t panel_index, uint32_t n_columns)
{
    for (uint32_t c = 0; x->out && c < n_columns; c++)
        for (uint32_t g = 0; g < PAIR_GROUPS; g++)
            __builtin_prefetch(x->out + (panel_index * MATMUL_PANEL + c) * x->stride + g * MATMUL_ROWS, 1);
}

/* The last panel of an input may be narrower. Each number of columns has its own code: sums stay in registers
 * only if their number is a constant. */
INLINE void panel_any(uint32_t kind, enum weights_from from, struct expanded *e, const struct matmul_panel *p,
                      const struct chunk *x, uint32_t panel_index, float total[][2][LANES])
{
    for (uint32_t column = 0, W; column < p->width; column += W, total += W) {
        W = matmul_min(panel_columns(kind), p->width - column);
#define PANEL_CASE(i)                                                                                        \
    case i:                                                                                                  \
        if (i <= panel_columns(kind))                                                                        \
            panel(kind, from, i, p->width, e, p, column, x, panel_index, total);                             \
        break;
        switch (W) {
            PANEL_CASE(1)
            PANEL_CASE(2)
            PANEL_CASE(3)
            PANEL_CASE(4)
            PANEL_CASE(5)
            PANEL_CASE(6)
            PANEL_CASE(7)
            PANEL_CASE(8)
        }
#undef PANEL_CASE
    }
}

/* Multiplies a tile with all panels of a chunk. Whole panels are adjacent in memory. */
INLINE void chunk_panels(uint32_t kind, bool spread, struct expanded *e, const struct chunk *x,
                         float total[][2][LANES])
{
    const uint32_t W = panel_columns(kind);
    const enum weights_from from = spread ? FROM_SPREAD : FROM_TILE;
    struct matmul_panel p = matmul_panel(x->in, x->column / MATMUL_PANEL, x->super);
    uint32_t n = x->end - x->column, i = 0, c = 0;
    if (spread) {
        panel(kind, FROM_TILE_SPREADING, W, MATMUL_PANEL, e, &p, 0, x, 0, total);
        c = W;
    }
    for (; i < n / MATMUL_PANEL; i++, c = 0, total += MATMUL_PANEL) {
        chunk_fetch_out(x, i, MATMUL_PANEL);
        for (; c < MATMUL_PANEL; c += W)
            panel(kind, from, W, MATMUL_PANEL, e, &p, c, x, i, total + c);
        matmul_panel_next(&p);
    }
    if (n % MATMUL_PANEL == 0)
        return;
    p = matmul_panel(x->in, x->column / MATMUL_PANEL + i, x->super);
    chunk_fetch_out(x, i, p.width);
    panel_any(kind, from, e, &p, x, i, total);
}

/* True if the first of the panels of n columns stores its expanded tile for the others. */
INLINE bool spreads(uint32_t kind, uint32_t n, uint32_t shape)
{
    if (n < MATMUL_PANEL)
        return false;
    return shape == MATMUL_SHAPE_SPREAD || (shape != MATMUL_SHAPE_PANEL && !panel_unpacks(kind));
}

#define PANEL_OF(kind)                                                                                       \
    static __attribute__((noinline)) void panel_##kind(struct expanded *e, const struct chunk *x,            \
                                                       float total[][2][LANES])                              \
    {                                                                                                        \
        if (x->spread)                                                                                       \
            chunk_panels(MATMUL_##kind, true, e, x, total);                                                  \
        else                                                                                                 \
            chunk_panels(MATMUL_##kind, false, e, x, total);                                                 \
    }
EACH_KERNEL(PANEL_OF)

/* Calls chunk_panels() for the kind of weights. */
INLINE void chunk_super(uint32_t kind, const struct chunk *x, bool second, struct scratch *s)
{
    float(*total)[2][LANES] = s->total[second];
#define CHUNK_CASE(kind)                                                                                     \
    case MATMUL_##kind:                                                                                      \
        panel_##kind(s->e, x, total);                                                                        \
        break;
    switch (kind) {
        EACH_KERNEL(CHUNK_CASE)
    }
#undef CHUNK_CASE
}

/* Computes groups in pairs; a last single group is computed twice and written once. (Tried: chunks of columns
 * as the outer loop, so that an input larger than the L2 cache is read once. It gains nothing: the input
 * streams in time.) */
INLINE void panels(uint32_t kind, const struct matmul_matrix *m, const struct matmul_input *in,
                   uint32_t first, uint32_t last, float *out, size_t stride, struct scratch *s)
{
    uint32_t n_super = matmul_n_super(m->k), half = matmul_half(n_super);
    const size_t distance = distance_of(in, PANEL_AHEAD);
    for (uint32_t g = first; g < last; g += PAIR_GROUPS, out += PAIR_GROUPS * MATMUL_ROWS)
        for (uint32_t chunk = 0; chunk < in->n_columns; chunk += MATMUL_CHUNK) {
            uint32_t end = matmul_min(chunk + MATMUL_CHUNK, in->n_columns);
            uint32_t n_groups = matmul_min(PAIR_GROUPS, last - g);
            if (n_super == 1) /* the second half of K is empty */
                memset(s->total[1], 0, (end - chunk) * sizeof s->total[1][0]);
            for (uint32_t super = 0; super < n_super; super++) {
                struct chunk x = {.in = in, .column = chunk, .end = end, .super = super, .stride = stride};
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t group = g + matmul_min(r / ROW_VECTORS, n_groups - 1);
                    x.tile[r] = matmul_tile(m, group, super);
                    x.globals[r] = matmul_globals(m, group, super);
                }
                x.n_blocks = matmul_n_blocks(m->k, super);
                x.fresh = super == 0 || super == half;
                x.part = prefetch_part(kind,
                                       (end - chunk + MATMUL_PANEL - 1) / MATMUL_PANEL * MATMUL_SUPER_BLOCKS);
                /* Few panels use a tile soon, so it skips the second-level cache; many panels would evict it
                 * from the first one before its use. */
                const uint32_t hint = hint_of(in, x.part > 64 ? MATMUL_HINT_NTA : MATMUL_HINT_T1);
                x.spread = spreads(kind, end - chunk, in->variant.shape);
                for (uint32_t i = 0; i < PAIR_GROUPS; i++) {
                    struct fetched ahead =
                        ahead_of(kind, m, in, g + i, last, super, PAIR_GROUPS, distance, hint);
                    x.ahead[i] = ahead.at;
                    x.hint = ahead.hint;
                }
                x.out = super + 1 == n_super ? out + chunk * stride : NULL;
                chunk_super(kind, &x, super >= half, s);
            }
            put_chunk(m, g, n_groups, chunk, end, out, stride, s);
        }
}

/* The number of columns up to which a block is unpacked in registers, again for each row vector, where a
 * variant does not say: more than two only where there is nothing to unpack, or where a panel would unpack
 * twice (eight columns of 6 bits: a sixth slower from the cache, but as much faster from slow memory). With
 * sums of pairs both row vectors of a group are unpacked together, and there is no such limit. */
INLINE uint32_t built_columns(uint32_t kind)
{
    uint32_t bits = matmul_traits[kind].bits;
    return PAIR_SUMS ? DIRECT_COLUMNS : matmul_min(DIRECT_COLUMNS, bits == 6 ? 8 : bits == 8 ? 6 : 2);
}

/* The same for a shape. More than four columns have code only where they are built so: it takes long to
 * compile, and a panel was faster everywhere else. */
INLINE uint32_t direct_columns(uint32_t kind, uint32_t shape)
{
    uint32_t built = built_columns(kind);
    return shape == MATMUL_SHAPE_BUILT ? built : shape == MATMUL_SHAPE_DIRECT ? (built > 4 ? built : 4) : 0;
}

#define DIRECT_CASE(kind, i)                                                                                 \
    case i:                                                                                                  \
        if (i <= direct_columns(MATMUL_##kind, MATMUL_SHAPE_DIRECT)) {                                       \
            direct(MATMUL_##kind, i, m, in, first, last, out, stride, s);                                    \
            return;                                                                                          \
        }                                                                                                    \
        break;
#define RUN_OF(kind)                                                                                         \
    static __attribute__((noinline)) void run_##kind(                                                        \
        const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,         \
        float *out, size_t stride, struct scratch *s)                                                        \
    {                                                                                                        \
        switch (in->n_columns <= direct_columns(MATMUL_##kind, in->variant.shape) ? in->n_columns : 0) {     \
            DIRECT_CASE(kind, 1)                                                                             \
            DIRECT_CASE(kind, 2)                                                                             \
            DIRECT_CASE(kind, 3)                                                                             \
            DIRECT_CASE(kind, 4)                                                                             \
            DIRECT_CASE(kind, 5)                                                                             \
            DIRECT_CASE(kind, 6)                                                                             \
            DIRECT_CASE(kind, 7)                                                                             \
            DIRECT_CASE(kind, 8)                                                                             \
        }                                                                                                    \
        panels(MATMUL_##kind, m, in, first, last, out, stride, s);                                           \
    }
EACH_KERNEL(RUN_OF)

#include "matmul_floats.h"

static void quantise(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats)
{
    for (uint32_t super = first; super < last; super++) {
        struct matmul_panel p = matmul_panel(in, panel, super);
        uint32_t n_blocks = matmul_n_blocks(in->k, super);
        size_t k = (size_t)super * ARITH_SUPER;
        if (n_blocks)
            QUANTISE_SUPER(&p, n_blocks, k, x, gain);
        if (floats)
            keep_floats(&p, matmul_n_values(in->k, super), k, x, gain);
    }
}

#define RUN_ENTRY(kind) [MATMUL_##kind] = run_##kind,
static void run(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,
                float *out, size_t stride, void *scratch)
{
    static void (*const of[MATMUL_N_KINDS])(const struct matmul_matrix *, const struct matmul_input *,
                                            uint32_t, uint32_t, float *, size_t, struct scratch *) = {
        EACH_KERNEL(RUN_ENTRY) /* the types without a kernel of their own differ in the file only */
            [MATMUL_IQ2_S] = run_IQ2_XS,
        [MATMUL_TQ1_0] = run_TQ2_0,
        [MATMUL_F16] = run_floats,
        [MATMUL_BF16] = run_floats,
        [MATMUL_F32] = run_floats,
    };
    of[m->kind](m, in, first, last, out, stride, scratch);
}
