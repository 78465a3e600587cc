/* matmul_fetch.h - prefetches weights ahead of their product, by the hint and the distance of a variant
 * (matmul.h); included by matmul_template.h.
 * Thread: any; all functions are pure. */
#include "matmul_pack.h"

/* The distance in bytes by which weights are prefetched ahead of their tile where a variant names none: when
 * they are unpacked in registers, and in a panel, which reads memory for short moments only. Half of it costs
 * a tenth with eight columns, and with one column where memory is fast. Twice as far gains nothing; before a
 * run knew the next weights it cost a twentieth of a model's step where memory is slow, because the memory
 * behind a piece of work may belong to another member or be used much later. AVX2 alone takes longer to
 * multiply weights that are unpacked in registers, and half is far enough: 1 to 4 % of a model's step
 * (decode-epyc-zen3). */
#define DIRECT_AHEAD (PAIR_SUMS ? 4352 : 8704)
#define PANEL_AHEAD  13056

/* Prefetches the lines of [at, at + size). One branch per call: the hint is part of the instruction. */
INLINE void fetch(uint32_t hint, uintptr_t at, size_t size)
{
#define FETCH_LINES(locality)                                                                                \
    for (size_t i = 0; i < size; i += 64)                                                                    \
    __builtin_prefetch((const void *)(at + i), 0, locality)
    switch (hint) {
    case MATMUL_HINT_T0:
        FETCH_LINES(3);
        break;
    case MATMUL_HINT_T1:
        FETCH_LINES(2);
        break;
    case MATMUL_HINT_T2:
        FETCH_LINES(1);
        break;
    case MATMUL_HINT_NTA:
        FETCH_LINES(0);
        break;
    default:; /* MATMUL_HINT_NONE */
    }
#undef FETCH_LINES
}

/* The hint of a variant, or `built` where it names none. */
INLINE uint32_t hint_of(const struct matmul_input *in, uint32_t built)
{
    return in->variant.hint ? in->variant.hint : built;
}

INLINE size_t distance_of(const struct matmul_input *in, size_t built)
{
    return in->variant.ahead ? in->variant.ahead : built;
}

/* The bytes of a tile in its group, with its d and dmin. */
INLINE size_t super_size(uint32_t kind)
{
    return matmul_tile_size(&matmul_traits[kind], MATMUL_SUPER_BLOCKS) + matmul_traits[kind].global_size;
}

struct fetched { /* what to prefetch while a tile is multiplied */
    /* It may be far outside the matrix, where prefetching has no effect and a pointer would be undefined. */
    uintptr_t at;
    uint32_t hint;
};

/* The memory `distance` bytes after the start of a tile, without the groups that the other of `n_groups` row
 * vectors compute at the same time; beyond group `last`, in the weights that are read next. With
 * MATMUL_HINT_NONE only these are prefetched: the hardware follows one stream of addresses, but no jump. */
INLINE struct fetched ahead_of(uint32_t kind, const struct matmul_matrix *m, const struct matmul_input *in,
                               uint32_t group, uint32_t last, uint32_t super, uint32_t n_groups,
                               size_t distance, uint32_t hint)
{
    size_t at = super * super_size(kind) + distance, skipped = 0;
    for (size_t rest = at; rest >= m->group_size; rest -= m->group_size)
        skipped += (n_groups - 1) * m->group_size;
    at += group * m->group_size + skipped;
    size_t end = last * m->group_size;
    if (!in->next || at < end)
        return (struct fetched){(uintptr_t)m->data + at, hint};
    return (struct fetched){(uintptr_t)in->next + (at - end),
                            hint == MATMUL_HINT_NONE ? MATMUL_HINT_T1 : hint};
}

/* The bytes to prefetch at each of n places while a tile is multiplied. */
INLINE size_t prefetch_part(uint32_t kind, uint32_t n)
{
    return (super_size(kind) / n + 63) / 64 * 64;
}
