/* attend_head.h - work on one head of q, k or v: norm, rotation, append to the cache. arith.h has the
 * formulas. Floor: reads 4 bytes a value of the head, writes 2 (f16, bf16) or 1.0625 (q8_0) a value of k and
 * v. Tested by tests/simt/attend/attending.c against lib/cpu.
 * Thread: one warp per head: all 32 lanes call with the same arguments. */
#pragma once
#include "abi/arith.h"
#include "device/f16.h"
#include "device/lanes.h"
#include "device/words.h"
#include "kv_tile.h"

/* Norm and rotation of a head of q or k. */
struct head_turn {
    const SIMT_GLOBAL float *gain;            /* [n], if normed; head_prepare_long(): or NULL */
    const SIMT_GLOBAL float *cosines, *sines; /* [rope_dim / 2], at the row's position */
    uint32_t n, rope_dim;                     /* rope_dim <= n */
    float eps;
    bool normed, neox;
    const struct flow_guard *words; /* not NULL: the head is words (words.h); guards their wait */
};

#define HEAD_PARTS      4  /* parts of 32 values of the plain attention's longest head, 128 */
#define HEAD_LONG_PARTS 18 /* and of the longest, 576 */

/* A lane's elements of a head, all loaded at once, so that the load latencies overlap. */
struct head_load {
    float x[HEAD_PARTS], gain[HEAD_PARTS];
    float cosine[HEAD_PARTS / 2], sine[HEAD_PARTS / 2];
};

/* Waits for the lane's elements of a head that is words, all in one turn. */
SIMT_INLINE void head_take(struct head_load *l, const SIMT_GLOBAL float *x, const struct head_turn *t)
{
    struct flow_patience patience = {0, 0};
    uint32_t most;
    do {
        most = 0;
#pragma unroll
        for (uint32_t e = 0; e < HEAD_PARTS; e++) {
            uint32_t d = simt_lane() + e * SIMT_LANES;
            uint32_t v = d < t->n ? simt_ld_relaxed_gpu((const SIMT_GLOBAL uint32_t *)x + d) : 0;
            l->x[e] = arith_from_bits(v);
            most = v > most ? v : most;
        }
    } while (!words_end(most < WORDS_EMPTY, &patience, t->words));
}

SIMT_INLINE void head_ask(struct head_load *l, const SIMT_GLOBAL float *x, const struct head_turn *t)
{
    uint32_t lane = simt_lane(), half = t->rope_dim / 2;
#pragma unroll
    for (uint32_t e = 0; e < HEAD_PARTS; e++) {
        uint32_t d = lane + e * SIMT_LANES;
        l->x[e] = !t->words && d < t->n ? x[d] : 0.0f;
        l->gain[e] = t->normed && d < t->n ? t->gain[d] : 0.0f;
        if (e < HEAD_PARTS / 2) {
            l->cosine[e] = d < half ? t->cosines[d] : 0.0f;
            l->sine[e] = d < half ? t->sines[d] : 0.0f;
        }
    }
    if (t->words)
        head_take(l, x, t);
}

/* to = x normed and rotated. Before and after the call each lane accesses only its own elements (d % 32). */
SIMT_INLINE void head_prepare(SIMT_SHARED float *to, const SIMT_GLOBAL float *x, const struct head_turn *t)
{
    uint32_t lane = simt_lane(), half = t->rope_dim / 2;
    float sum = 0.0f, r = 1.0f;
    struct head_load l;
    head_ask(&l, x, t);
    if (t->normed) {
#pragma unroll
        for (uint32_t e = 0; e < HEAD_PARTS; e++)
            if (lane + e * SIMT_LANES < t->n)
                sum = __builtin_fmaf(l.x[e], l.x[e], sum);
        r = 1.0f / __builtin_sqrtf(lanes_sum(sum) / (float)t->n + t->eps);
    }
#pragma unroll
    for (uint32_t e = 0; e < HEAD_PARTS; e++)
        if (lane + e * SIMT_LANES < t->n)
            to[lane + e * SIMT_LANES] = t->normed ? l.x[e] * r * l.gain[e] : l.x[e];
    simt_syncwarp();
#pragma unroll
    for (uint32_t e = 0; e < HEAD_PARTS / 2; e++) {
        uint32_t i = lane + e * SIMT_LANES;
        uint32_t first = t->neox ? i : 2 * i, second = t->neox ? i + half : 2 * i + 1;
        if (i >= half)
            continue;
        float a = to[first], b = to[second];
        arith_rope(&a, &b, l.cosine[e], l.sine[e]);
        to[first] = a;
        to[second] = b;
    }
    simt_syncwarp();
}

/* to = x, a head of n values. A turn loads 16 bytes a lane: that is a whole head of up to 128 values. Then
 * any lane may read any element. words: as in struct head_turn. */
SIMT_INLINE void head_stage(SIMT_SHARED float *to, const SIMT_GLOBAL float *x, uint32_t n,
                            const struct flow_guard *words)
{
    simt_syncwarp(); /* no lane still reads what was here */
#pragma clang loop unroll(disable)
    for (uint32_t first = 0; first < n; first += 4 * SIMT_LANES) {
        uint32_t d = first + simt_lane() * 4;
        const SIMT_GLOBAL float *from = d < n ? x + d : NULL;
        simt_u4 v = {0, 0, 0, 0};
        if (words)
            v = words_take4(from, words);
        else if (from)
            v = *(const SIMT_GLOBAL simt_u4 *)from;
        if (from)
            *(SIMT_SHARED simt_u4 *)(to + d) = v;
    }
    simt_syncwarp();
}

/* As head_prepare(), for a head of any length, which loops, and whose norm needs no gain. */
SIMT_INLINE void head_prepare_long(SIMT_SHARED float *to, const SIMT_GLOBAL float *x,
                                   const struct head_turn *t)
{
    uint32_t lane = simt_lane(), half = t->rope_dim / 2;
    float sum = 0.0f;
    head_stage(to, x, t->n, t->words);
    if (t->normed) {
#pragma clang loop unroll(disable)
        for (uint32_t d = lane; d < t->n; d += SIMT_LANES)
            sum = __builtin_fmaf(to[d], to[d], sum);
        float r = 1.0f / __builtin_sqrtf(lanes_sum(sum) / (float)t->n + t->eps);
#pragma clang loop unroll(disable)
        for (uint32_t d = lane; d < t->n; d += SIMT_LANES)
            to[d] = t->gain ? to[d] * r * t->gain[d] : to[d] * r;
    }
    simt_syncwarp();
#pragma clang loop unroll(disable)
    for (uint32_t i = lane; i < half; i += SIMT_LANES) {
        uint32_t first = t->neox ? i : 2 * i, second = t->neox ? i + half : 2 * i + 1;
        float a = to[first], b = to[second];
        arith_rope(&a, &b, t->cosines[i], t->sines[i]);
        to[first] = a;
        to[second] = b;
    }
    simt_syncwarp();
}

/* Destination of a token's keys or values: its row of a tile and its scales and, if `near` is set, those of a
 * copy of the tile in shared memory. */
struct head_place {
    SIMT_GLOBAL char *row, *scales;
    SIMT_SHARED char *near_row, *near_scales;
    bool near;
};

SIMT_INLINE void head_append_16(const struct head_place *to, uint32_t at, uint32_t bits)
{
    *(SIMT_GLOBAL uint16_t *)(to->row + at) = (uint16_t)bits;
    if (to->near)
        *(SIMT_SHARED uint16_t *)(to->near_row + at) = (uint16_t)bits;
}

/* arith_quantise() of a block with one value per lane. */
SIMT_INLINE float head_quantise(float x, int8_t *q)
{
    uint32_t top = arith_to_bits(x) & 0x7fffffffu;
    for (uint32_t w = SIMT_LANES / 2; w; w /= 2) {
        uint32_t other = simt_shfl_xor_u32(top, w);
        top = other > top ? other : top;
    }
    bool finite = top < 0x7f800000u, tiny = top < 0x0d800000u;
    float amax = arith_from_bits(top);
    float inverse = finite && !tiny ? 127.0f / amax : 0.0f;
    *q = finite ? (int8_t)(int32_t)__builtin_rintf(x * inverse) : 0;
    return !finite ? arith_from_bits(0x7fc00000u) : tiny ? 0.0f : amax / 127.0f;
}

SIMT_INLINE void head_append_q8(const struct head_place *to, uint32_t at, uint32_t block, float x)
{
    int8_t q;
    uint16_t scale = (uint16_t)f16_from_float(head_quantise(x, &q));
    to->row[at] = (char)q;
    if (to->near)
        to->near_row[at] = (char)q;
    if (simt_lane() != 0)
        return;
    ((SIMT_GLOBAL uint16_t *)to->scales)[block] = scale;
    if (to->near)
        ((SIMT_SHARED uint16_t *)to->near_scales)[block] = scale;
}

/* Stores token `token`'s head x[n] in the cache's type; n is a multiple of 32. A lane reads its own
 * elements. */
SIMT_INLINE void head_append(const struct head_place *to, const struct kv_tile *tile, uint32_t token,
                             const SIMT_SHARED float *x, uint32_t n)
{
#pragma clang loop unroll(disable)
    for (uint32_t d = simt_lane(); d < n; d += SIMT_LANES) {
        uint32_t at = kv_tile_place(tile, token, d);
        if (tile->type == KV_Q8_0)
            head_append_q8(to, at, d / ARITH_BLOCK, x[d]);
        else
            head_append_16(to, at, tile->type == KV_F16 ? f16_from_float(x[d]) : arith_bf16(x[d]));
    }
}

/* The same, in global memory only. */
SIMT_INLINE struct head_place head_place_of(SIMT_GLOBAL char *tile, const struct kv_tile *k, uint32_t token)
{
    return (struct head_place){
        .row = tile + token * k->row_bytes,
        .scales = tile + KV_PAGE_TOKENS * k->row_bytes + token * k->scale_bytes,
    };
}
