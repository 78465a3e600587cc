/* kv_tile.h - the order inside a tile of the cache, on a device (kv_layout.h leaves it to each backend).
 *
 * A tile is [64 tokens][head_dim] elements, then for q8_0 [64][head_dim / 32] scales, keys and values alike.
 * A token's elements stand in units of 4 (8 bytes of f16, 4 bytes of q8_0); unit u of token t lies at place
 * u ^ kv_tile_swizzle(t) of the token's row. So both ways of reading are free of bank conflicts in a linear
 * copy of the tile in shared memory: one thread per token, each at the same unit of its own token (16
 * threads, or 32 of q8_0, fill the 32 banks), and a warp along one token. head_dim is a multiple of 32.
 *
 * The tokens of a range lie in one run of bytes, and so do their scales. */
#pragma once
#include "kv_layout.h"

#define KV_TILE_UNIT 4 /* elements */

struct kv_tile {
    uint32_t units, unit_bytes; /* per token */
    uint32_t shift, mask;       /* of the swizzle */
    uint32_t row_bytes;         /* a token's elements */
    uint32_t scale_bytes;       /* a token's scales; 0 for f16 */
};

static inline struct kv_tile kv_tile_of(uint32_t head_dim, uint32_t type)
{
    uint32_t units = head_dim / KV_TILE_UNIT, wide = type == KV_F16 ? 4 : 5; /* 2^wide units fill the banks */
    uint32_t even = units % 32 == 0 ? 5 : units % 16 == 0 ? 4 : 3;
    uint32_t bits = even < wide ? even : wide;
    uint32_t unit_bytes = type == KV_F16 ? 8 : 4;
    return (struct kv_tile){
        .units = units,
        .unit_bytes = unit_bytes,
        .shift = wide - bits,
        .mask = (1u << bits) - 1,
        .row_bytes = units * unit_bytes,
        .scale_bytes = type == KV_F16 ? 0 : head_dim / 32 * 2,
    };
}

static inline uint32_t kv_tile_swizzle(const struct kv_tile *k, uint32_t token)
{
    return token >> k->shift & k->mask;
}

/* Where unit `unit` of a token begins, in bytes from the token's row. */
static inline uint32_t kv_tile_place(const struct kv_tile *k, uint32_t token, uint32_t unit)
{
    return (unit ^ kv_tile_swizzle(k, token)) * k->unit_bytes;
}
