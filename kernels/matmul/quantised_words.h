/* quantised_words.h - columns of a product that are quantised where they are made, and passed on as words
 * (device/words.h): no norm's gain follows, so the op before can do once what each block would do for itself.
 *
 * A column lies where the floats of its row would, and fits there. It is a panel of one column (tile.h), so
 * that a super-block has 24 units of 16 bytes, 16 of integers and one of scales for each block; only bits 0
 * to 6 of each integer are inverted: as none is -128, no word is WORDS_EMPTY. A column has a multiple of 64
 * values, 128 at least. The rest of its last super-block is not passed on; in panels it is zero.
 *
 * Floor: 384 bytes of 256 values, from L2, in each block; two loads in flight a thread.
 *
 * Thread: quantised_put(): all lanes of a warp; quantised_take(): all compute threads of a block; the others:
 * any. */
#pragma once
#include "activation.h"
#include "device/compute_warps.h"

#define QUANTISED_SUPER_WORDS 96u
#define QUANTISED_INTEGERS    16u /* units of integers in a super-block */
#define QUANTISED_UNITS       24u
#define QUANTISED_FLIP        0x7f7f7f7fu

/* Quantises block `block` of a column, of which this lane has value v, and stores it as words. */
SIMT_INLINE void quantised_put(SIMT_GLOBAL float *column, uint32_t block, float v)
{
    uint32_t lane = simt_lane(), j = block % 8, part = lane / 4;
    struct activation_by by = activation_by(simt_redux_max_u32(arith_to_bits(v) & 0x7fffffffu));
    uint32_t word = ((uint32_t)activation_integer(&by, v) & 0xff) << 8 * (lane % 4);
    word |= simt_shfl_xor_u32(word, 1);
    word |= simt_shfl_xor_u32(word, 2);
    int32_t sum = simt_dp4a(word, 0x01010101u, 0);
    for (uint32_t mask = 4; mask < SIMT_LANES; mask *= 2)
        sum += (int32_t)simt_shfl_xor_u32((uint32_t)sum, mask);
    SIMT_GLOBAL float *super = column + block / 8 * QUANTISED_SUPER_WORDS;
    bool integers = lane % 4 == 0;
    uint32_t at = j / 2 * 16 + part % 4 * 4 + j % 2 * 2 + part / 4;
    float b = by.scale * (float)sum, scale = lane == 1 ? by.scale : lane == 2 ? b : 0; /* unused column: 0 */
    if (!integers)
        at = QUANTISED_INTEGERS * 4 + j * 4 + (lane < 4 ? lane - 1 : 3);
    if (integers || lane < 4 || lane == 5)
        words_put_bits(super + at, integers ? word ^ QUANTISED_FLIP : words_bits(scale));
}

/* The unit that a lane copies of each super-block, if it has one. */
struct quantised_lane {
    uint32_t from; /* words from the super-block's beginning */
    uint32_t to;   /* bytes from a panel's super-block to the unit's place in the first column */
    uint32_t next; /* bytes from there to the next column's */
    int32_t k;     /* the unit exists in super-blocks that begin before this value */
    uint32_t flip;
};

SIMT_INLINE struct quantised_lane quantised_lane(const struct activation *a, uint32_t k)
{
    uint32_t lane = simt_opaque(simt_lane()), block = lane - QUANTISED_INTEGERS,
             even = (a->width + 1) / 2 * 2;
    struct quantised_lane l = {.from = lane * 4};
    if (lane < QUANTISED_INTEGERS) {
        l.to = lane / 4 * a->width * 64 + lane % 4 * 16;
        l.next = 64;
        l.k = (int32_t)(k - lane / 4 * 2 * ARITH_BLOCK);
        l.flip = QUANTISED_FLIP;
    } else if (lane < QUANTISED_UNITS) {
        l.to = a->scales_at + block * even * 8;
        l.next = 8;
        l.k = (int32_t)(k - block / 2 * 2 * ARITH_BLOCK);
    }
    return l;
}

/* Stores a unit in a panel. The last column of an odd width also clears the scales of the unused column
 * beside it. */
SIMT_INLINE void quantised_store(const struct activation *a, const struct quantised_lane *l, uint32_t column,
                                 uint32_t super, simt_u4 v)
{
    typedef uint32_t two __attribute__((vector_size(8)));
    SIMT_SHARED char *to = a->near + super * a->super_bytes + l->to + column * l->next;
    if (l->next == 64 || (l->next && column + 1 == a->width && a->width % 2))
        *(SIMT_SHARED simt_u4 *)to = v ^ l->flip;
    else if (l->next)
        *(SIMT_SHARED two *)to = (two){v[0], v[1]};
}

/* Copies columns of k values, rows of `stride` floats from x on, into the block's panel, once they are there:
 * a warp two super-blocks at a time, of two columns if there are more than one. A barrier must follow. */
SIMT_INLINE void quantised_take(const struct activation *a, const SIMT_GLOBAL float *x, uint32_t stride,
                                uint32_t k, const struct crew *crew, const struct flow_guard *guard)
{
    struct quantised_lane l = quantised_lane(a, k);
    uint32_t n_supers = tile_supers(k), lone = a->width == 1 ? crew->n_warps : 0;
    const SIMT_GLOBAL uint32_t *words = (const SIMT_GLOBAL uint32_t *)x + l.from;
    SIMT_SMALL_LOOP
    for (uint32_t column = 0; column < a->width; column += 2)
        SIMT_SMALL_LOOP
    for (uint32_t super = simt_opaque(simt_warp()); super < n_supers; super += crew->n_warps + lone) {
        uint32_t other = lone ? column : column + 1, beside = super + lone;
        bool second = other < a->width && beside < n_supers;
        bool has[2] = {(int32_t)(super * TILE_COLUMNS) < l.k,
                       second && (int32_t)(beside * TILE_COLUMNS) < l.k};
        const SIMT_GLOBAL uint32_t *from[2] = {
            words + (size_t)column * stride + super * QUANTISED_SUPER_WORDS,
            words + (size_t)other * stride + beside * QUANTISED_SUPER_WORDS};
        simt_u4 v[2] = {{l.flip, l.flip, l.flip, l.flip}, {l.flip, l.flip, l.flip, l.flip}};
        struct flow_patience patience = {0, 0};
        do {
            for (uint32_t i = 0; i < 2; i++)
                if (has[i])
                    v[i] = simt_ld_relaxed_gpu_u4(from[i]);
        } while (!words_end(words_are_there(v[0]) && words_are_there(v[1]), &patience, guard));
        quantised_store(a, &l, column, super, v[0]);
        if (second)
            quantised_store(a, &l, other, beside, v[1]);
    }
}
