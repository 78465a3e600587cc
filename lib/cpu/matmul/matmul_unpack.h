/* matmul_unpack.h - unpacks weights and their scales into vectors, for one vector width; included by
 * matmul_template.h, whose vi_* and vf_* it uses.
 * Thread: any; all functions are pure. */
#include "matmul_pack.h"

/* The kinds of integer weights that have a kernel. */
#define EACH_KERNEL(X)                                                                                       \
    X(Q4_K)                                                                                                  \
    X(Q5_K)                                                                                                  \
    X(Q6_K)                                                                                                  \
    X(Q3_K)                                                                                                  \
    X(Q2_K)                                                                                                  \
    X(Q8_0)                                                                                                  \
    X(Q5_0)                                                                                                  \
    X(Q4_0)                                                                                                  \
    X(Q4_1)                                                                                                  \
    X(Q5_1)                                                                                                  \
    X(MXFP4)                                                                                                 \
    X(IQ4_NL)                                                                                                \
    X(IQ4_XS)                                                                                                \
    X(IQ3_XXS)                                                                                               \
    X(IQ3_S)                                                                                                 \
    X(IQ2_XXS)                                                                                               \
    X(IQ2_XS)                                                                                                \
    X(IQ1_S)                                                                                                 \
    X(IQ1_M)                                                                                                 \
    X(TQ2_0)                                                                                                 \
    X(NVFP4)

/* An expanded tile: the values and scales of one row vector, in the L1 cache. */
struct expanded {
    uint8_t q[MATMUL_SUPER_BLOCKS * MATMUL_STEPS][4 * LANES];
    /* Per block or per half-block. With pair sums, integer scales are the multipliers of pairs_sum(), and
     * `min` of types without minima holds, per block, the multipliers of the sums of x. */
    float scale[16][LANES], min[16][LANES];
    float d[LANES], dmin[LANES];
    uint8_t bytes[2][MATMUL_SUPER_BLOCKS * MATMUL_ROWS]; /* Q4_K Q5_K: scales and minima of the whole group */
} __attribute__((aligned(64)));

/* True if a scale covers 16 columns of weights, so that a block has two sums. */
INLINE bool has_halves(uint32_t kind)
{
    uint32_t fold = matmul_traits[kind].fold;
    return fold == MATMUL_FOLD_K16 || fold == MATMUL_FOLD_K16M || fold == MATMUL_FOLD_S16;
}

/* True if scales are integers, with a float per super-block above them. */
INLINE bool has_whole_scales(uint32_t kind)
{
    uint32_t fold = matmul_traits[kind].fold;
    return fold == MATMUL_FOLD_K || fold == MATMUL_FOLD_K32 || fold == MATMUL_FOLD_K16 ||
           fold == MATMUL_FOLD_K16M;
}

/* The zero of unpacked values, where a type has one: sums start at the value that the panels have for it. */
INLINE uint32_t zero_of(uint32_t kind)
{
    return !has_halves(kind) ? 128 : matmul_traits[kind].codes ? 64 : 32;
}

/* The values of 16 codes, above their zero where kernels multiply unsigned values. */
INLINE vi codebook(uint32_t kind)
{
    vi v = vi_sixteen(quant_codebooks[matmul_traits[kind].codes].value);
    uint32_t zero = PAIR_SUMS ? matmul_traits[kind].zero : zero_of(kind);
    return zero ? vi_add8(v, vi_set8((char)zero)) : v;
}

/* Unpacks step t of four, of 6 bits. */
INLINE vi unpack_six(const uint8_t *p, int t)
{
    if (t < 3)
        return vi_and(vi_load(p + 64 * t), vi_set8(63));
    vi a = vi_shift(vi_load(p), -6), b = vi_shift(vi_load(p + 64), -4), c = vi_shift(vi_load(p + 128), -2);
    return vi_or(vi_or(vi_and(a, vi_set8(3)), vi_and(b, vi_set8(12))), vi_and(c, vi_set8(48)));
}

/* Unpacks step t of a block: 4 columns x LANES rows. `p` is the block plus the row vector's offset. */
INLINE vi unpack_step(uint32_t kind, const uint8_t *p, int t)
{
    uint32_t bits = matmul_traits[kind].bits, zero = matmul_traits[kind].zero;
    const uint8_t *two = p + (bits & 4 ? 256 : 0), *one = two + (bits & 2 ? 128 : 0);
    if (bits == 8)
        return PAIR_SUMS ? vi_xor(vi_load(p + 64 * t), vi_set8((char)0x80)) : vi_load(p + 64 * t);
    if (bits == 6)
        return unpack_six(p + 192 * (t / 4), t % 4);
    vi w = vi_set(0);
    int n = 0; /* bits unpacked so far */
    if (bits & 4) {
        w = vi_and(t % 2 ? vi_shift(vi_load(p + 64 * (t / 2)), -4) : vi_load(p + 64 * (t / 2)), vi_set8(15));
        n = 4;
    }
    if (bits & 2) {
        vi v = vi_and(vi_shift(vi_load(two + 64 * (t / 4)), n - 2 * (t % 4)), vi_set8((char)(3 << n)));
        w = n ? vi_or(w, v) : v;
        n += 2;
    }
    if (bits & 1) /* never alone */
        w = vi_or(w, vi_and(vi_shift(vi_load(one), n - t), vi_set8((char)(1 << n))));
    if (matmul_traits[kind].codes)
        return vi_lookup(codebook(kind), w);
    return !PAIR_SUMS && zero && zero != zero_of(kind) ? vi_add8(w, vi_set8((char)(zero_of(kind) - zero)))
                                                       : w;
}

#if !PAIR_SUMS
INLINE void unpack(uint32_t kind, const uint8_t *p, vi w[MATMUL_STEPS])
{
#pragma GCC unroll 8
    for (int t = 0; t < MATMUL_STEPS; t++)
        w[t] = unpack_step(kind, p, t);
}
#endif

/* Unpacks the six-bit scales and minima of a group, which begin at `p`, to a byte each; 4 * LANES at a
 * time. */
INLINE void expand_bytes(const uint8_t *p, uint8_t bytes[2][MATMUL_SUPER_BLOCKS * MATMUL_ROWS])
{
#pragma GCC unroll 4
    for (uint32_t i = 0; i < MATMUL_SUPER_BLOCKS * MATMUL_ROWS; i += 4 * LANES) {
        vi low = vi_load(p + i), high = vi_nibbles(p + MATMUL_SUPER_BLOCKS * MATMUL_ROWS + i / 2);
        vi scale = vi_and(vi_shift(high, 4), vi_set8(48)), min = vi_and(vi_shift(high, 2), vi_set8(48));
        vi_store(bytes[0] + i, vi_or(scale, vi_and(low, vi_set8(15))));
        vi_store(bytes[1] + i, vi_or(min, vi_and(vi_shift(low, -4), vi_set8(15))));
    }
}

/* Stores an integer scale for LANES rows. */
INLINE void put_scale(float *to, vi v)
{
#if PAIR_SUMS
    vi_store(to, vi_twice(v));
#else
    vf_store(to, vf_of(v));
#endif
}

/* The 6-bit scale of Q3_K of half-block i. */
INLINE vi scale_of_three(const uint8_t *p, uint32_t o, uint32_t i)
{
    vi low = vi_and(vi_srl(vi_u8x(p + 16 * (i / 2) + o), 4 * (i % 2)), vi_set(15));
    vi high = vi_and(vi_srl(vi_u8x(p + 128 + 16 * (i / 4) + o), 2 * (i % 4)), vi_set(3));
    return vi_add(vi_or(low, vi_sll(high, 4)), vi_set(-32));
}

/* Expands the scales of the half-blocks of block j, as block `slot` of e. */
INLINE void expand_half_scales(uint32_t kind, const uint8_t *p, uint32_t o, uint32_t j, uint32_t slot,
                               struct expanded *e)
{
    for (uint32_t i = 2 * j; i < 2 * j + 2; i++) {
        uint32_t to = i + 2 * (slot - j);
        if (kind == MATMUL_Q3_K)
            put_scale(e->scale[to], scale_of_three(p, o, i));
        else if (kind == MATMUL_NVFP4)
            vf_store(e->scale[to], vf_mul(vf_bits(vi_sll(vi_u8x(p + 16 * i + o), 20)), vf_set(0x1p119f)));
        else if (matmul_traits[kind].fold == MATMUL_FOLD_K16)
            put_scale(e->scale[to], vi_s8x(p + 16 * i + o));
        else {
            vi v = vi_u8x(p + 16 * i + o);
            put_scale(e->scale[to], vi_and(v, vi_set(15)));
            vf_store(e->min[to], vf_of(vi_srl(v, 4)));
        }
    }
#if PAIR_SUMS
    if (matmul_traits[kind].fold == MATMUL_FOLD_K16) {
        vi both = vi_pair(vi_load(e->scale[2 * slot]), vi_load(e->scale[2 * slot + 1]));
        vi_store(e->min[slot], vi_shift(both, __builtin_ctz(matmul_traits[kind].zero)));
    }
#endif
}

/* Expands the scales of block j of a tile, as block `slot` of e. `p`: the scales of all blocks; o: the first
 * row; bytes: of its group, if the type has them. */
INLINE void expand_block_scales(uint32_t kind, const uint8_t *p, uint32_t n_blocks, uint32_t o, uint32_t j,
                                const uint8_t bytes[2][MATMUL_SUPER_BLOCKS * MATMUL_ROWS], uint32_t slot,
                                struct expanded *e)
{
    uint32_t fold = matmul_traits[kind].fold;
    if (fold == MATMUL_FOLD_K) {
        put_scale(e->scale[slot], vi_u8x(bytes[0] + 16 * j + o));
        vf_store(e->min[slot], vf_of(vi_u8x(bytes[1] + 16 * j + o)));
    } else if (has_halves(kind))
        expand_half_scales(kind, p, o, j, slot, e);
    else if (fold == MATMUL_FOLD_K32)
        put_scale(e->scale[slot], matmul_traits[kind].scale_size ? vi_s8x(p + 16 * j + o) : vi_set(1));
    else if (kind == MATMUL_MXFP4) { /* quant_half_e8m0() */
        vi bits = vi_max(vi_sll(vi_u8x(p + 16 * j + o), 23), vi_set(0x00400000));
        vf_store(e->scale[slot], vf_mul(vf_bits(bits), vf_set(0.5f)));
    } else {
        vf_store(e->scale[slot], vf_half(p + 32 * j + 2 * o));
        if (fold == MATMUL_FOLD_SM)
            vf_store(e->min[slot], vf_half(p + 32 * (n_blocks + j) + 2 * o));
    }
}

/* Expands the scales of the whole super-block. */
INLINE void expand_globals(uint32_t kind, const uint8_t *p, uint32_t o, struct expanded *e)
{
    if (matmul_traits[kind].fold == MATMUL_FOLD_S16) {
        vf_store(e->d, vf_load((const float *)(const void *)p + o));
        return;
    }
    if (matmul_traits[kind].global_size)
        vf_store(e->d, matmul_unit(kind) == 1.0f ? vf_half(p + 2 * o)
                                                 : vf_mul(vf_half(p + 2 * o), vf_set(matmul_unit(kind))));
    if (matmul_traits[kind].global_size > 32)
        vf_store(e->dmin, vf_half(p + 32 + 2 * o));
}
