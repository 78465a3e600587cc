/* kv_layout.h - where keys and values lie: the one function that computes offsets, for every backend.
 *
 * A page holds 64 tokens of one sequence, for all layers, under one id. A tile is what one attention loop
 * reads: tile(page, layer, kv_head, K or V) = 64 x head_dim elements (q8_0: head_dim rounded up to four),
 * then (q8_0) their scales. Each backend has its own order inside a tile; copy, export and sharing use whole
 * tiles only. All tiles of a page are contiguous, so a page is one run of bytes. q8_0: int8 with one f16
 * scale per 32 values of a token's head (head_dim / 32 scales per token). bf16: head_dim is even.
 *
 * Units: bytes. Thread: any, host or device; pure functions. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define KV_PAGE_TOKENS 64

enum kv_type { KV_F16, KV_Q8_0, KV_BF16, KV_N_TYPES };
enum kv_which { KV_KEYS, KV_VALUES };

/* The part of a page that belongs to the layers of one kind of attention: all of it unless page_bytes says
 * otherwise. */
struct kv_layout {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t type;       /* enum kv_type */
    uint64_t page_bytes; /* of a whole page; 0: of the part, which is the page */
    uint64_t at;         /* the part's offset in a page */
};

/* Bytes of one tile's elements; the scales follow them. */
static inline size_t kv_tile_elements(const struct kv_layout *l)
{
    return (size_t)KV_PAGE_TOKENS * (l->type == KV_Q8_0 ? (l->head_dim + 3) / 4 * 4 : l->head_dim * 2);
}

/* Bytes of one tile, scales included; a multiple of 64. */
static inline size_t kv_tile_size(const struct kv_layout *l)
{
    size_t scales = l->type == KV_Q8_0 ? (size_t)KV_PAGE_TOKENS * ((l->head_dim + 31) / 32) * 2 : 0;
    return kv_tile_elements(l) + scales;
}

static inline size_t kv_part_size(const struct kv_layout *l)
{
    return kv_tile_size(l) * 2 * l->n_layers * l->n_kv_heads;
}

static inline size_t kv_page_size(const struct kv_layout *l)
{
    return l->page_bytes ? (size_t)l->page_bytes : kv_part_size(l);
}

/* Pages of layers with a window that a sequence holds at most: those that its window covers, those of its
 * rows in flight, and the one that a fork copies. */
static inline uint32_t kv_windows_of(uint32_t window, uint32_t rows_in_flight)
{
    return (uint32_t)(((uint64_t)window + rows_in_flight) / KV_PAGE_TOKENS) + 3;
}

static inline size_t kv_offset(const struct kv_layout *l, uint32_t page, uint32_t layer, uint32_t kv_head,
                               enum kv_which which)
{
    size_t tile = ((size_t)layer * l->n_kv_heads + kv_head) * 2 + (size_t)which;
    return (size_t)page * kv_page_size(l) + (size_t)l->at + tile * kv_tile_size(l);
}
