/* kv_tile.h - the order inside a tile of the cache, on a device (kv_layout.h leaves it to each backend).
 *
 * A tile is [64 tokens][head_dim] elements, then for q8_0 [64][head_dim / 32] scales; keys and values alike.
 * A token's elements stand in units; a unit is what a thread loads of a key at once: 16 bytes (8 elements of
 * bf16, 16 of q8_0), but 8 bytes (4 elements) of f16, whose sums combine no more neighbours (arith.h, LANES).
 * Unit u of token t is at place u ^ kv_tile_swizzle(t) of the token's row. So both ways of reading a linear
 * copy of the tile in shared memory are free of bank conflicts: one thread per token, each at the same unit
 * of its own token (8 threads, or 16 of f16, fill the 32 banks), and a warp along one token. head_dim is a
 * multiple of 32.
 *
 * The tokens of a range lie in one run of bytes, and so do their scales.
 * Thread: any, host or device; pure functions. */
#pragma once
#include "abi/kv_layout.h"

struct kv_tile {
    uint32_t type;                  /* enum kv_type */
    uint32_t unit_shift, unit_mask; /* split an element's index into its unit and its place there */
    uint32_t unit_bytes;
    uint32_t shift, mask; /* swizzle: kv_tile_swizzle() */
    uint32_t row_bytes;   /* bytes of a token's elements */
    uint32_t scale_bytes; /* bytes of a token's scales; 0 unless q8_0 */
};

static inline uint32_t kv_unit_shift(uint32_t type)
{
    return type == KV_F16 ? 2 : type == KV_BF16 ? 3 : 4;
}

static inline uint32_t kv_unit_bytes(uint32_t type)
{
    return type == KV_F16 ? 8 : 16;
}

static inline struct kv_tile kv_tile_of(uint32_t head_dim, uint32_t type)
{
    uint32_t unit_shift = kv_unit_shift(type), unit_bytes = kv_unit_bytes(type);
    uint32_t units = head_dim >> unit_shift;
    uint32_t wide = 7 - (uint32_t)__builtin_ctz(unit_bytes); /* 2^wide units fill the banks */
    uint32_t even = (uint32_t)__builtin_ctz(units), bits = even < wide ? even : wide;
    return (struct kv_tile){
        .type = type,
        .unit_shift = unit_shift,
        .unit_mask = (1u << unit_shift) - 1,
        .unit_bytes = unit_bytes,
        .shift = wide - bits,
        .mask = (1u << bits) - 1,
        .row_bytes = units * unit_bytes,
        .scale_bytes = type == KV_Q8_0 ? head_dim / 32 * 2 : 0,
    };
}

static inline uint32_t kv_tile_swizzle(const struct kv_tile *k, uint32_t token)
{
    return token >> k->shift & k->mask;
}

/* Offset of element d of a token, in bytes from the token's row. */
static inline uint32_t kv_tile_place(const struct kv_tile *k, uint32_t token, uint32_t d)
{
    uint32_t unit = (d >> k->unit_shift) ^ kv_tile_swizzle(k, token);
    return unit * k->unit_bytes + (d & k->unit_mask) * (k->unit_bytes >> k->unit_shift);
}
