/* product_wide.h - the compute warps of a wide product of more than 8 columns: they lie in global memory,
 * where all blocks together have quantised them, and are multiplied in chunks of 16, two panels. How the
 * warps share a stage depends on the number of chunks.
 *
 * Many: by COLUMNS. A warp takes a chunk through all super-blocks of a tile, adds their values to sums that
 * lie in the order of the fragments, so that only one lane accesses each, and finishes them at the end of K.
 * No value crosses the fold area and no barrier stands between stages: a warp goes on while others still have
 * a chunk of an earlier stage, as far as the ring goes. All stages of a group have the same owners; the
 * chunks of the next group begin at the warp behind the last one's, so that all warps have equally many.
 *
 * Few: by super-blocks, from warp 0 on in every stage. The warps write the values of one chunk to the fold
 * area, meet, and add them up (product_settle()).
 *
 * Sums lie in the work area: [slot][half of K 2][panel 2][lane 32][4] floats. A warp has the slots of its
 * number, of that plus the number of warps, and so on, whichever chunks it owns. Where the work area has no
 * room for equally many slots of each warp, a chunk has the same owner in every group, and its slot is its
 * number.
 *
 * Floor: each panel once for every tile of 16 rows, 1.25 bytes a value, from L2. Matches
 * lib/cpu/matmul/team_matmul.c in every bit; NaNs may differ in payload.
 *
 * Thread: all compute threads of a block together; product_wide_multiply() and product_wide_finish(): all
 * lanes of a warp. */
#pragma once
#include "product_narrow.h"

_Static_assert(PRODUCT_CHUNK_SUMS == 2 * TILE_MAX_PANEL * SIMT_LANES * sizeof(simt_u4), "a slot");

SIMT_INLINE uint32_t product_n_chunks(const SIMT_SHARED struct product *p)
{
    return product_chunks(p->end_column - p->first_column);
}

/* The warp that has a group's first chunk, or, if the warps share stages by super-blocks: */
#define PRODUCT_NO_LEAD UINT32_MAX

/* The first group's. */
SIMT_INLINE uint32_t product_first_lead(const SIMT_SHARED struct product *p,
                                        const struct product_place *place, const struct crew *crew)
{
    uint32_t n_columns = p->end_column - p->first_column;
    return product_is_by_columns(n_columns, crew->n_warps, place->sums_bytes) ? 0 : PRODUCT_NO_LEAD;
}

SIMT_INLINE uint32_t product_next_lead(const SIMT_SHARED struct product *p, const struct product_place *place,
                                       const struct crew *crew, uint32_t lead)
{
    uint32_t n_chunks = product_n_chunks(p), n_warps = crew->n_warps;
    uint32_t rounds = (n_chunks + n_warps - 1) / n_warps;
    if (rounds * n_warps * PRODUCT_CHUNK_SUMS > place->sums_bytes)
        return 0;
    return (lead + n_chunks) % n_warps;
}

/* This warp's first chunk; the next ones follow n_warps apart. */
SIMT_INLINE uint32_t product_first_chunk(const struct crew *crew, uint32_t lead)
{
    uint32_t warp = simt_warp();
    return warp < lead ? warp + crew->n_warps - lead : warp - lead;
}

/* This warp's sums of a chunk. */
SIMT_INLINE SIMT_SHARED char *product_chunk_sums(const struct product_place *place, const struct crew *crew,
                                                 uint32_t lead, uint32_t chunk)
{
    uint32_t slot = simt_warp() + chunk - product_first_chunk(crew, simt_opaque(lead));
    return product_work(place) + slot * PRODUCT_CHUNK_SUMS;
}

/* Adds a super-block's values to a half's sums, which begin with the half's first super-block. */
SIMT_INLINE void product_add(SIMT_SHARED simt_u4 *sums, bool begins, const float v[TILE_MAX_PANEL][4])
{
#pragma unroll
    for (uint32_t i = 0; i < TILE_MAX_PANEL; i++) {
        simt_u4 old = {0, 0, 0, 0}, sum;
        if (!begins)
            old = sums[i * SIMT_LANES];
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            sum[e] = arith_to_bits(arith_from_bits(old[e]) + v[i][e]);
        sums[i * SIMT_LANES] = sum;
    }
}

/* Multiplies super-blocks of a stage, of one tile type, by a chunk: by columns all from `first` to `end`,
 * else every n_warps-th. The stage begins with super-block first_super of a tile. The values go to `to`:
 * those of the stage, or a chunk's sums. */
SIMT_INLINE void product_wide_items(const uint32_t type, const struct activation *x,
                                    const SIMT_SHARED char *stage, SIMT_SHARED char *to, bool by_columns,
                                    uint32_t first_super, uint32_t n_supers, uint32_t first, uint32_t end,
                                    uint32_t n_warps)
{
    const uint32_t bytes = tile_super_bytes(type), value_bytes = TILE_MAX_PANEL * PRODUCT_PANEL * 4;
    for (uint32_t each = simt_opaque(first); each < end; each += by_columns ? 1 : simt_opaque(n_warps)) {
        uint32_t item = simt_opaque(each), lane = simt_opaque(simt_lane()), super = first_super + item;
        const SIMT_SHARED char *tile = stage + item * bytes;
        float v[TILE_MAX_PANEL][4];
        while (super >= n_supers)
            super -= n_supers;
        if (!tile_is_float(type))
            tile_multiply(type, TILE_MAX_PANEL, true, tile, lane, x, super, v);
#pragma unroll
        for (uint32_t i = 0; tile_is_float(type) && i < TILE_MAX_PANEL; i++) {
            struct activation panel = *x;
            panel.far_at += i * x->second;
            tile_multiply_floats(type, true, tile, lane, &panel, super, v[i]);
        }
        if (by_columns) {
            uint32_t middle = (n_supers + 1) / 2, half = super >= middle;
            SIMT_SHARED simt_u4 *sums = (SIMT_SHARED simt_u4 *)to + lane;
            product_add(sums + half * TILE_MAX_PANEL * SIMT_LANES, super == 0 || super == middle, v);
            continue;
        }
        SIMT_SHARED float *values = (SIMT_SHARED float *)(to + item * value_bytes);
#pragma unroll
        for (uint32_t i = 0; i < TILE_MAX_PANEL; i++, values += PRODUCT_PANEL) {
            uint32_t row = tile_is_float(type) ? lane % TILE_ROWS : lane / 4;
            uint32_t column = tile_is_float(type) ? lane / TILE_ROWS * 4 : lane % 4 * 2;
            product_put(values, 3, row, column, v[i][0], v[i][1]);
            if (tile_is_float(type))
                product_put(values, 3, row, column + 2, v[i][2], v[i][3]);
            else
                product_put(values, 3, row + 8, column, v[i][2], v[i][3]);
        }
    }
}

/* Multiplies the stage at place->at by chunk `chunk`: by columns its tile number `tile`, else this warp's
 * super-blocks. */
SIMT_INLINE void product_wide_multiply(const SIMT_SHARED struct product *p, uint32_t lead, uint32_t chunk,
                                       uint32_t tile, const struct product_place *place,
                                       const struct crew *crew)
{
    struct product_label label = product_label(product_labels(place->fold), ring_passed(place->at));
    uint32_t first = simt_warp(), end = label.n_items;
    SIMT_SHARED char *to = (SIMT_SHARED char *)product_values(true, p, 3, place->fold, 0);
    if (lead != PRODUCT_NO_LEAD) {
        uint32_t per_tile = label.n_tiles > 1 ? p->n_supers : label.n_items;
        first = tile * per_tile;
        end = first + per_tile;
        to = product_chunk_sums(place, crew, lead, chunk);
    }
    if (first >= end)
        return;
    struct ring ring = product_ring(place);
    const SIMT_SHARED char *stage = ring_stage(&ring, place->at);
    struct activation x = product_far_columns(p, place, p->first_column + chunk * PRODUCT_WIDE);
#define PRODUCT_CASE(type)                                                                                   \
    case type:                                                                                               \
        product_wide_items(type, &x, stage, to, lead != PRODUCT_NO_LEAD, label.first_item, p->n_supers,      \
                           first, end, crew->n_warps);                                                       \
        return
    switch (label.type) {
        PRODUCT_EACH_TYPE(PRODUCT_CASE);
    }
#undef PRODUCT_CASE
}

/* Finishes a tile times a chunk, of which `from` has the sums of all of K. */
SIMT_INLINE void product_wide_finish(const SIMT_SHARED struct product *p, const struct product_label *label,
                                     uint32_t chunk, uint32_t tile, const SIMT_SHARED char *from)
{
    const SIMT_SHARED struct product_matrix *m = &p->matrix[label->matrix];
    bool floats = tile_is_float(label->type), adds = product_adds(p, label->matrix);
    uint32_t lane = simt_lane(), first_row = (label->first_tile + tile) * TILE_ROWS;
    uint32_t row = first_row + (floats ? lane % TILE_ROWS : lane / 4);
    uint32_t first = p->first_column + chunk * PRODUCT_WIDE;
    first += floats ? lane / TILE_ROWS * 4 : lane % 4 * 2;
    const SIMT_SHARED simt_u4 *sums = (const SIMT_SHARED simt_u4 *)from + lane;
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < TILE_MAX_PANEL; i++, sums += SIMT_LANES, first += ACTIVATION_COLUMNS) {
        simt_u4 sum0 = sums[0], sum1 = {0, 0, 0, 0};
        float before[4] = {0}, bias[4] = {0}, r[4] = {0};
        if (p->n_supers > 1)
            sum1 = sums[TILE_MAX_PANEL * SIMT_LANES];
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) { /* all are loaded before the first is used */
            uint32_t n = row + (floats ? 0 : e / 2 * 8), column = first + (floats ? e : e % 2);
            if (n >= m->n || column >= p->end_column)
                continue;
            before[e] = adds ? product_out(p, m, n, column)[p->old] : 0;
            bias[e] = product_bias(m, n);
            r[e] = DECODER_AT(const float, p->wide_factors)[column];
        }
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            uint32_t n = row + (floats ? 0 : e / 2 * 8), column = first + (floats ? e : e % 2);
            if (n < m->n && column < p->end_column)
                product_give(p, label->matrix, product_out(p, m, n, column),
                             product_finish(p, label->matrix, r[e], before[e], bias[e],
                                            arith_from_bits(sum0[e]), arith_from_bits(sum1[e])));
        }
    }
}

/* Multiplies the stage at place->at by a chunk. By columns its tiles come one after the other, and a tile's
 * last super-block finishes it. */
SIMT_INLINE void product_wide_chunk(const SIMT_SHARED struct product *p, uint32_t lead, uint32_t chunk,
                                    const struct product_place *place, const struct crew *crew)
{
    SIMT_SMALL_LOOP
    for (uint32_t tile = 0, n_tiles = 1; tile < n_tiles; tile++) {
        product_wide_multiply(p, lead, chunk, tile, place, crew);
        if (lead == PRODUCT_NO_LEAD)
            return;
        struct product_label label = product_label(product_labels(place->fold), ring_passed(place->at));
        n_tiles = label.n_tiles;
        if (label.last)
            product_wide_finish(p, &label, chunk, tile, product_chunk_sums(place, crew, lead, chunk));
    }
}

/* Gives the stage back. */
SIMT_INLINE void product_wide_give(const struct product_place *place)
{
    struct ring ring = product_ring(place);
    ring_give(&ring, place->at);
}

/* A barrier of the compute warps. False: end, since the stage of one of them did not come. */
SIMT_INLINE bool product_wide_meet(const struct crew *crew, bool told)
{
    return !crew_any(crew, told);
}

/* Multiplies by all columns, a chunk after the other, stage after stage. False: end. */
SIMT_INLINE bool product_run_wide(const SIMT_SHARED struct product *p, const struct product_place *place,
                                  const struct crew *crew)
{
    uint32_t lead = product_first_lead(p, place, crew);
    bool told = false;
    for (bool more = true; more && !told;) {
        struct ring ring = product_ring(place);
        told = !ring_take(&ring, place->at, place->guard);
        uint32_t chunk = lead == PRODUCT_NO_LEAD ? 0 : product_first_chunk(crew, lead);
        SIMT_SMALL_LOOP
        for (; chunk < product_n_chunks(p); chunk += lead == PRODUCT_NO_LEAD ? 1 : crew->n_warps) {
            if (!told)
                product_wide_chunk(p, lead, chunk, place, crew);
            if (lead != PRODUCT_NO_LEAD)
                continue;
            if (!product_wide_meet(crew, told))
                return false;
            uint32_t number = ring_passed(place->at);
            more = !product_label(product_labels(place->fold), number).ends;
            if (chunk + 1 == product_n_chunks(p))
                product_wide_give(place);
            product_settle(PRODUCT_FAR, p, number, 0, 1, p->first_column + chunk * PRODUCT_WIDE, place, crew);
            crew_sync(crew);
        }
        if (lead == PRODUCT_NO_LEAD || told)
            continue;
        struct product_label label = product_label(product_labels(place->fold), ring_passed(place->at));
        more = !label.ends;
        if (label.last && (label.matrix == 1 || !program_is_gated(p->epilogue)))
            lead = product_next_lead(p, place, crew, lead);
        product_wide_give(place);
    }
    return lead == PRODUCT_NO_LEAD || product_wide_meet(crew, told);
}

/* Multiplies this block's share, if it has one, by the columns that were quantised last. False: end. */
SIMT_INLINE bool product_run(const SIMT_SHARED struct product *p, const struct product_place *place,
                             const struct crew *crew)
{
    if (product_first_group(p) >= p->n_groups)
        return true;
    if (product_is_far(p, place) && p->end_column - p->first_column > ACTIVATION_COLUMNS)
        return product_run_wide(p, place, crew);
    return product_run_narrow(p, place, crew);
}
