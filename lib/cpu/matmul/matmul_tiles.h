/* clang-format off */
/* matmul_tiles.h - the matrix product on tiles of int8 (AMX): 16 columns of activations by 16 rows of weights.
 * Included after matmul_512.h, a table of the same vectors `tiles_base`, and these operations on the tile
 * registers 0 to 7, whose numbers are literals:
 *
 *   tile_config(p), tile_release()   sets the shapes of all registers (struct tile_shapes); ends their use
 *   tile_zero(i)
 *   tile_load(i, p, stride), tile_store(i, p, stride)
 *   tile_dot(c, a, b)                c[m][n] += sum over k of a[m][4 k + i] * b[k][4 n + i], i < 4, all signed
 *
 * A scale covers 32 or 16 values of k, so a tile holds the sums of one scale, and is stored and folded for every
 * one. Where tiles are full, two of them are dotted while the two before are folded, and the columns' chains stay in
 * registers (tile_whole()); else TILE_SUMS tiles are dotted, stored and folded together. Sums are exact, and the fold
 * is matmul_fold.h's, so the bits are those of all tables. A packed step
 * (matmul_pack.h) is a row of the tile of weights as it stands, once its values are signed. Activations are laid
 * out as panels of one column, so that a tile's rows lie ARITH_SUPER bytes apart, also from one panel of
 * MATMUL_PANEL to the next.
 * Thread: any; run() sets the shapes and releases the tiles before it returns, so that a parked thread has none
 * for the system to save. */
/* clang-format on */
#include "matmul_fold.h"
#include "matmul_fetch.h"

#define TILE_COLUMNS 16
#define TILE_SUMS    4 /* tiles 0 to 3 hold sums, 4 and 5 columns, 6 and 7 weights */
_Static_assert(MATMUL_CHUNK % TILE_COLUMNS == 0, "a chunk is whole tiles");
_Static_assert(LANES == MATMUL_ROWS, "a row vector is a group");

struct tile_shapes { /* the operand of ldtilecfg, palette 1 */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64)));

struct tile_scratch {
    struct scratch base; /* e[0] and total[][][0] are used */
    int32_t sums[TILE_SUMS][TILE_COLUMNS][LANES];
    float chain[TILE_COLUMNS][LANES]; /* of each column, over the blocks so far */
};

/* The values of k under one scale. */
INLINE uint32_t sum_values(uint32_t kind)
{
    return has_halves(kind) ? ARITH_BLOCK / 2 : ARITH_BLOCK;
}

static void set_shapes(uint32_t n_values, uint32_t n_columns)
{
    struct tile_shapes t = {.palette = 1};
    for (uint32_t i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? n_columns : n_values / 4);
        t.row_bytes[i] = (uint16_t)(i / 2 == 2 ? n_values : 4 * MATMUL_ROWS);
    }
    tile_config(&t);
}

/* Unpacks the tile of a group: signed values, and scales. */
INLINE void expand_tile(uint32_t kind, const struct matmul_matrix *m, uint32_t group, uint32_t super,
                        struct expanded *e)
{
    const uint8_t *tile = matmul_tile(m, group, super);
    const uint32_t n_blocks = matmul_n_blocks(m->k, super);
    const bool is_signed = !matmul_traits[kind].zero && !matmul_traits[kind].codes;
    for (uint32_t j = 0; j < n_blocks; j++)
#pragma GCC unroll 8
        for (int t = 0; t < MATMUL_STEPS; t++) {
            vi w = unpack_step(kind, tile + matmul_block_at(&matmul_traits[kind], n_blocks, j), t);
            if (!is_signed)
                w = vi_add8(w, vi_set8((char)-(int)zero_of(kind)));
            vi_store(e->q[j * MATMUL_STEPS + (uint32_t)t], w);
        }
    if (matmul_traits[kind].fold == MATMUL_FOLD_K)
        expand_bytes(tile, e->bytes);
    expand_scales(kind, tile, n_blocks, 0, e->bytes, e);
    expand_globals(kind, matmul_globals(m, group, super), 0, e);
}

/* Some columns of a super-block, up to TILE_COLUMNS. */
struct columns {
    const int8_t *q;     /* of the first, for the tile */
    const float *scales; /* of the first: MATMUL_COLUMN_SCALES each */
    uint32_t skip, n;    /* columns [skip, n) are wanted: the others were computed before */
};

/* The columns from `column` on: the last ones of an input stand with as many before them as fill a tile. */
INLINE struct columns columns_at(const struct matmul_input *in, uint32_t super, uint32_t column)
{
    uint32_t n = matmul_min(TILE_COLUMNS, in->n_columns), first = matmul_min(column, in->n_columns - n);
    int8_t *base = (int8_t *)in->data + (size_t)super * in->n_columns * MATMUL_COLUMN_SUPER;
    float *scales = (float *)(void *)(base + (size_t)in->n_columns * ARITH_SUPER);
    return (struct columns){.q = base + (size_t)first * ARITH_SUPER,
                            .scales = scales + (size_t)first * MATMUL_COLUMN_SCALES,
                            .skip = column - first,
                            .n = n};
}

/* Tile c becomes sum i of the columns at q times the weights at w, by way of tiles a and b. */
#define DOT_INTO(c, a, b, q, w, i)                                                                           \
    do {                                                                                                     \
        tile_zero(c);                                                                                        \
        tile_load(a, (q) + (i)*n_values, ARITH_SUPER);                                                       \
        tile_load(b, (w) + (i)*n_values * MATMUL_ROWS, 4 * MATMUL_ROWS);                                     \
        tile_dot(c, a, b);                                                                                   \
    } while (0)
#define TILE_DOT(i, a, b)                                                                                    \
    if (i < n)                                                                                               \
        DOT_INTO(i, a, b, q, w, i);
#define TILE_STORE(i)                                                                                        \
    if (i < n)                                                                                               \
        tile_store(i, s->sums[i], 4 * LANES);

/* Computes n sums from sum `first` of a super-block on. */
INLINE void tile_sums(uint32_t kind, const struct columns *x, uint32_t first, uint32_t n,
                      struct tile_scratch *s)
{
    const uint32_t n_values = sum_values(kind);
    const int8_t *q = x->q + first * n_values;
    const uint8_t *w = s->base.e[0].q[0] + first * n_values * MATMUL_ROWS;
    TILE_DOT(0, 4, 6)
    TILE_DOT(1, 5, 7)
    TILE_DOT(2, 4, 6)
    TILE_DOT(3, 5, 7)
    TILE_STORE(0)
    TILE_STORE(1)
    TILE_STORE(2)
    TILE_STORE(3)
}

/* Folds the sums of n_blocks blocks from block j on into the columns' chains. */
INLINE void fold_sums(uint32_t kind, const struct columns *x, uint32_t j, uint32_t n_blocks,
                      struct tile_scratch *s)
{
    const uint32_t n_halves = has_halves(kind) ? 2 : 1;
    for (uint32_t c = x->skip; c < x->n; c++) {
        const float *a = x->scales + (size_t)c * MATMUL_COLUMN_SCALES + j;
        vf chain = j ? vf_load(s->chain[c]) : vf_zero();
#pragma GCC unroll 4
        for (uint32_t b = 0; b < n_blocks; b++) {
            vi low = vi_load(s->sums[b * n_halves][c]), high = vi_load(s->sums[(b + 1) * n_halves - 1][c]);
            chain = vf_fma(vf_bcast(a + b), scaled(kind, &s->base.e[0], j + b, low, high), chain);
        }
        vf_store(s->chain[c], chain);
    }
}

/* Adds the value of the super-block to the columns' totals, of which total[0] is the tile's first column. */
INLINE void add_values(uint32_t kind, const struct columns *x, uint32_t n_blocks, bool fresh,
                       const struct tile_scratch *s, float total[][2][LANES])
{
    const uint32_t fold = matmul_traits[kind].fold;
    const struct expanded *e = &s->base.e[0];
    for (uint32_t c = x->skip; c < x->n; c++) {
        float *scales = (float *)(uintptr_t)(x->scales + (size_t)c * MATMUL_COLUMN_SCALES);
        const struct matmul_panel p = {
            .width = 1, .b = scales + MATMUL_SUPER_BLOCKS, .b16 = scales + 2 * MATMUL_SUPER_BLOCKS};
        vf v = super_value(fold, vf_load(s->chain[c]), minima(fold, e, &p, 0, n_blocks), e);
        vf_store(total[c - x->skip][0], vf_add(fresh ? vf_zero() : vf_load(total[c - x->skip][0]), v));
    }
}

/* The memory to prefetch beside a super-block: a part for each TILE_SUMS tiles. */
struct ahead {
    struct fetched next;
    size_t part;
};

/* Multiplies a super-block of fewer columns or blocks than the tiles hold. */
INLINE void tile_part(uint32_t kind, const struct columns *x, uint32_t n_blocks, bool fresh,
                      struct ahead *ahead, struct tile_scratch *s, float total[][2][LANES])
{
    const uint32_t n_halves = has_halves(kind) ? 2 : 1, together = TILE_SUMS / n_halves;
    uint32_t j = 0;
    for (; j + together <= n_blocks; j += together, ahead->next.at += ahead->part) {
        fetch(ahead->next.hint, ahead->next.at, ahead->part);
        tile_sums(kind, x, j * n_halves, TILE_SUMS, s);
        fold_sums(kind, x, j, together, s);
    }
    if (j < n_blocks) {
        tile_sums(kind, x, j * n_halves, (n_blocks - j) * n_halves, s);
        fold_sums(kind, x, j, n_blocks - j, s);
    }
    add_values(kind, x, n_blocks, fresh, s, total);
}

/* Pair p of the sums of a super-block: two tiles, which hold one block of halves, else two blocks. */
#define PAIR_DOT(p, c0, c1)                                                                                  \
    do {                                                                                                     \
        DOT_INTO(c0, 4, 6, q, w, 2 * (p));                                                                   \
        DOT_INTO(c1, 5, 7, q, w, 2 * (p) + 1);                                                               \
    } while (0)
#define PAIR_STORE(p, c0, c1)                                                                                \
    do {                                                                                                     \
        tile_store(c0, s->sums[(p) % 2 * 2], 4 * LANES);                                                     \
        tile_store(c1, s->sums[(p) % 2 * 2 + 1], 4 * LANES);                                                 \
    } while (0)

/* Folds the sums of pair p into the chains of all columns of a tile. */
INLINE void fold_pair(uint32_t kind, const struct columns *x, uint32_t p, struct tile_scratch *s,
                      vf chain[TILE_COLUMNS])
{
    const uint32_t n_blocks = has_halves(kind) ? 1 : 2;
#pragma GCC unroll 2
    for (uint32_t b = 0; b < n_blocks; b++) {
        const uint32_t j = p * n_blocks + b, at = p % 2 * 2 + b;
#pragma GCC unroll 16
        for (uint32_t c = 0; c < TILE_COLUMNS; c++) {
            const float *a = x->scales + (size_t)c * MATMUL_COLUMN_SCALES + j;
            vi low = vi_load(s->sums[at][c]), high = vi_load(s->sums[at + 2 - n_blocks - b][c]);
            chain[c] = vf_fma(vf_bcast(a), scaled(kind, &s->base.e[0], j, low, high), chain[c]);
        }
    }
}

/* Adds the values of a super-block to the totals, four columns side by side, which hides the latency of their
 * chains of minima. */
INLINE void add_whole(uint32_t kind, const struct columns *x, bool fresh, const struct tile_scratch *s,
                      const vf chain[TILE_COLUMNS], float total[][2][LANES])
{
    const uint32_t fold = matmul_traits[kind].fold;
    const struct expanded *e = &s->base.e[0];
    const uint32_t n_min = minima_of(fold) * MATMUL_SUPER_BLOCKS;
    const float *b = x->scales + (fold == MATMUL_FOLD_K16M ? 2 : 1) * MATMUL_SUPER_BLOCKS;
#pragma GCC unroll 4
    for (uint32_t first = 0; first < TILE_COLUMNS; first += 4) {
        vf m[4];
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++)
            m[c] = vf_zero();
#pragma GCC unroll 16
        for (uint32_t i = 0; i < n_min; i++)
#pragma GCC unroll 4
            for (uint32_t c = 0; c < 4; c++)
                m[c] = vf_fma(vf_bcast(b + (size_t)(first + c) * MATMUL_COLUMN_SCALES + i),
                              vf_load(e->min[i]), m[c]);
#pragma GCC unroll 4
        for (uint32_t c = 0; c < 4; c++) {
            if (first + c < x->skip)
                continue;
            float *t = total[first + c - x->skip][0];
            vf v = super_value(fold, chain[first + c], m[c], e);
            vf_store(t, vf_add(fresh ? vf_zero() : vf_load(t), v));
        }
    }
}

/* Multiplies a super-block of MATMUL_SUPER_BLOCKS blocks with TILE_COLUMNS columns, whose chains stay in
 * registers. A pair of sums is dotted two pairs, and stored one pair, before it is folded, so that no fold
 * waits for a tile. */
INLINE void tile_whole(uint32_t kind, const struct columns *x, bool fresh, struct ahead *ahead,
                       struct tile_scratch *s, float total[][2][LANES])
{
    const uint32_t n_values = sum_values(kind), n_pairs = ARITH_SUPER / n_values / 2;
    const int8_t *q = x->q;
    const uint8_t *w = s->base.e[0].q[0];
    vf chain[TILE_COLUMNS];
#pragma GCC unroll 16
    for (uint32_t c = 0; c < TILE_COLUMNS; c++)
        chain[c] = vf_zero();
    PAIR_DOT(0, 0, 1);
#pragma GCC unroll 4
    for (uint32_t p = 0; p < n_pairs; p += 2, ahead->next.at += ahead->part) {
        fetch(ahead->next.hint, ahead->next.at, ahead->part);
        PAIR_DOT(p + 1, 2, 3);
        PAIR_STORE(p, 0, 1);
        if (p > 0)
            fold_pair(kind, x, p - 1, s, chain);
        if (p + 2 < n_pairs)
            PAIR_DOT(p + 2, 0, 1);
        PAIR_STORE(p + 1, 2, 3);
        fold_pair(kind, x, p, s, chain);
    }
    fold_pair(kind, x, n_pairs - 1, s, chain);
    add_whole(kind, x, fresh, s, chain, total);
}

/* Multiplies a super-block of a group, expanded in s, with the columns of a tile. */
INLINE void tile_super(uint32_t kind, const struct columns *x, uint32_t n_blocks, bool fresh,
                       struct ahead *ahead, struct tile_scratch *s, float total[][2][LANES])
{
    if (x->n == TILE_COLUMNS && n_blocks == MATMUL_SUPER_BLOCKS)
        tile_whole(kind, x, fresh, ahead, s, total);
    else
        tile_part(kind, x, n_blocks, fresh, ahead, s, total);
}

/* Multiplies a group with a chunk of columns. */
INLINE void tile_chunk(uint32_t kind, const struct matmul_matrix *m, const struct matmul_input *in,
                       uint32_t group, uint32_t last, uint32_t chunk, uint32_t end, struct tile_scratch *s)
{
    const uint32_t n_super = matmul_n_super(m->k), half = matmul_half(n_super);
    const uint32_t n_parts =
        (end - chunk + TILE_COLUMNS - 1) / TILE_COLUMNS * (ARITH_SUPER / (TILE_SUMS * sum_values(kind)));
    struct ahead ahead = {.part = prefetch_part(kind, n_parts)};
    const uint32_t hint = hint_of(in, ahead.part > 64 ? MATMUL_HINT_NTA : MATMUL_HINT_T1);
    for (uint32_t super = 0; super < n_super; super++) {
        ahead.next = ahead_of(kind, m, in, group, last, super, 1, distance_of(in, PANEL_AHEAD), hint);
        expand_tile(kind, m, group, super, &s->base.e[0]);
        for (uint32_t column = chunk; column < end; column += TILE_COLUMNS) {
            struct columns x = columns_at(in, super, column);
            tile_super(kind, &x, matmul_n_blocks(m->k, super), super == 0 || super == half, &ahead, s,
                       s->base.total[super >= half] + (column - chunk));
        }
    }
}

#define TILES_OF(kind)                                                                                       \
    static __attribute__((noinline)) void tiles_##kind(                                                      \
        const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,         \
        float *out, size_t stride, struct tile_scratch *s)                                                   \
    {                                                                                                        \
        set_shapes(sum_values(MATMUL_##kind), matmul_min(TILE_COLUMNS, in->n_columns));                      \
        for (uint32_t g = first; g < last; g++, out += MATMUL_ROWS)                                          \
            for (uint32_t chunk = 0; chunk < in->n_columns; chunk += MATMUL_CHUNK) {                         \
                uint32_t end = matmul_min(chunk + MATMUL_CHUNK, in->n_columns);                              \
                if (matmul_n_super(m->k) == 1) /* the second half of K is empty */                           \
                    memset(s->base.total[1], 0, (end - chunk) * sizeof s->base.total[1][0]);                 \
                tile_chunk(MATMUL_##kind, m, in, g, last, chunk, end, s);                                    \
                put_chunk(m, g, 1, chunk, end, out, stride, &s->base);                                       \
            }                                                                                                \
        tile_release();                                                                                      \
    }
EACH_KERNEL(TILES_OF)

/* Computes float weights as tiles_base does, whose floats stand where it expects them. */
#define TILES_ENTRY(kind) [MATMUL_##kind] = tiles_##kind,
static void tiles_run(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                      uint32_t last, float *out, size_t stride, void *scratch)
{
    static void (*const of[MATMUL_N_KINDS])(const struct matmul_matrix *, const struct matmul_input *,
                                            uint32_t, uint32_t, float *, size_t, struct tile_scratch *) = {
        EACH_KERNEL(TILES_ENTRY)[MATMUL_IQ2_S] = tiles_IQ2_XS,
        [MATMUL_TQ1_0] = tiles_TQ2_0,
    };
    if (matmul_is_float(m))
        tiles_base.run(m, in, first, last, out, stride, scratch);
    else
        of[m->kind](m, in, first, last, out, stride, scratch);
}

/* Turns [n][width] words of 4 bytes into [width][n]. */
static void turn_words(void *words, uint32_t n, uint32_t width)
{
    uint32_t from[ARITH_SUPER / 4 * MATMUL_PANEL], to[ARITH_SUPER / 4 * MATMUL_PANEL];
    memcpy(from, words, (size_t)n * width * 4);
    for (uint32_t c = 0; c < width; c++)
        for (uint32_t i = 0; i < n; i++)
            to[c * n + i] = from[i * width + c];
    memcpy(words, to, (size_t)n * width * 4);
}
_Static_assert(MATMUL_COLUMN_SCALES <= ARITH_SUPER / 4, "room to turn the scales");

/* Quantises as tiles_base does, then makes panels of one column of a panel's values and scales. */
static void tiles_quantise(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                           const float *const *x, const float *gain, bool floats)
{
    tiles_base.quantise(in, panel, first, last, x, gain, floats);
    for (uint32_t super = first; super < last; super++) {
        struct matmul_panel p = matmul_panel(in, panel, super);
        turn_words(p.q, ARITH_SUPER / 4, p.width);
        turn_words(p.a, MATMUL_COLUMN_SCALES, p.width);
    }
}
