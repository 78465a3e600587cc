/* linear_tile.h - the order inside a tile of the cache for heads whose size is no multiple of 32: token after
 * token, dimension after dimension, then for q8_0 [64][blocks] scales; keys and values alike. The sizes are
 * kv_layout.h's. Other heads have the order of kv_tile.h.
 * Thread: any device thread; pure functions, but for linear_append(), which a whole warp calls. */
#pragma once
#include "attention/attend_head.h"

/* A token's keys or values, and its scales. */
struct linear_row {
    SIMT_GLOBAL char *values;
    SIMT_GLOBAL uint16_t *scales;
};

SIMT_INLINE bool linear_is(uint32_t head_dim)
{
    return head_dim % ARITH_BLOCK != 0;
}

SIMT_INLINE uint32_t linear_blocks(uint32_t head_dim)
{
    return (head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
}

SIMT_INLINE struct linear_row linear_row_of(SIMT_GLOBAL char *tile, const struct kv_layout *l, uint32_t token)
{
    size_t elements = kv_tile_elements(l);
    return (struct linear_row){
        .values = tile + token * (elements / KV_PAGE_TOKENS),
        .scales = (SIMT_GLOBAL uint16_t *)(tile + elements) + token * linear_blocks(l->head_dim),
    };
}

/* Stores a token's head x[head_dim] in the cache's type, by one warp. A short last block is quantised with
 * zeros behind it. */
SIMT_INLINE void linear_append(const struct linear_row *to, const struct kv_layout *l,
                               const SIMT_SHARED float *x)
{
    uint32_t n = l->head_dim, lane = simt_lane();
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < linear_blocks(n); b++) {
        uint32_t d = b * ARITH_BLOCK + lane;
        float v = d < n ? x[d] : 0.0f;
        if (l->type == KV_Q8_0) {
            int8_t q;
            float scale = head_quantise(v, &q);
            if (d < n)
                to->values[d] = (char)q;
            if (lane == 0)
                to->scales[b] = (uint16_t)f16_from_float(scale);
        } else if (d < n) {
            ((SIMT_GLOBAL uint16_t *)to->values)[d] =
                (uint16_t)(l->type == KV_F16 ? f16_from_float(v) : arith_bf16(v));
        }
    }
}
