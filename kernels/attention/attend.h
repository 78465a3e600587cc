/* attend.h - attention of a step's rows over the paged cache, with the norm, rotation and append before it.
 * arith.h has the formulas, attend_layout.h the arguments, kv_tile.h the order inside a tile. The plain
 * attention is that of heads of up to 128 values over their whole past; the general one has longer heads too,
 * windows, capped scores, sinks, temperatures, normalised values and layers that read another layer's cache.
 *
 *   attend_prefetch()       called before the QKV product's output may be read: plans the step, unless the
 *                           layer before did, and begins to copy pages that earlier steps wrote
 *   attend_append_phase()   unless lone or ready: normalises and rotates heads of q and k (q in place),
 *                           appends K and V; heads are dealt over all blocks. Then a hop (all blocks arrive).
 *                           Lone: each row is alone in its slot, and its kv heads have one unit a split
 *   attend_phase()          computes units (group of rows of one slot, split, heads of a kv head), which are
 *                           dealt over all blocks; if lone, the unit of the last split prepares and appends
 *                           its own row
 *
 * A block's work is a stream of pieces: for each unit, for each pass (as many query heads as fit), for each
 * page, the pieces of its keys, then those of its values. They are copied (cp.async) into a ring of slots,
 * ahead of their use, across pages and units.
 *
 * Splits are merged in one of two ways. Of a few lone rows the block of a row's last split waits for the
 * other splits' parts (attend_parts.h). Of others the block that draws the last ticket of a (group, heads)
 * has finished its last split and merges its splits.
 *
 * Floor: K and V of a sequence's past once for each group of its rows: 4 bytes a value of f16 and bf16 (K and
 * V together), 2.125 of q8_0; so 147,456 bytes a token of Qwen3-8B in f16. Must match lib/cpu/attention.c
 * in every bit: tests/simt/attend/attending.c, and in whole models tests/cuda/test_cuda_twin.c.
 *
 * Thread: all compute threads of every block call these together, in this order; between the calls the work
 * area must not be touched.
 * Errors: false: an index of the step was out of range and is recorded through the guard; the caller ends. */
#pragma once
#include "attend_page.h"
#include "attend_parts.h"

_Static_assert(ATTEND_PLAIN_HEAD_DIM == HEAD_PARTS * SIMT_LANES &&
                   ATTEND_MAX_HEAD_DIM == HEAD_LONG_PARTS * SIMT_LANES,
               "a head's parts");

struct attend {
    struct crew crew;
    const struct flow_guard *guard;
    SIMT_SHARED struct attend_room *room;
    bool lone;    /* rows prepare themselves; if it is constant false, the compiler omits that code */
    bool general; /* constant: attend_room.h, GENERAL */
    bool polls;   /* q, k and v are words (words.h); as `lone` */
    bool passes;  /* and so is the result; as `lone` */
};

/* --- the stream --- */

SIMT_INLINE void attend_copy(const struct attend *a, SIMT_SHARED char *to, const SIMT_GLOBAL char *from,
                             uint32_t bytes)
{
    for (uint32_t i = simt_thread() * 16; i < bytes; i += a->crew.n_threads * 16)
        simt_cp_async16(to + i, from + i);
}

/* Begins to copy a piece: those of a page's tokens that a row of the unit sees. Each call commits one group
 * of copies, also at the end of the stream. */
SIMT_INLINE bool attend_fill(const struct attend *a, uint32_t number)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    const SIMT_SHARED struct attend_place *at = &room->places[number % ATTEND_PLACES];
    if (at->unit >= room->n_batch) {
        simt_cp_async_commit();
        return true;
    }
    const SIMT_SHARED struct attend_unit *u = &room->units[at->unit];
    uint32_t page = u->first_page + at->page, id = attend_page_of(room, u->slot, page);
    if (id >= room->in.slots.n_pages) {
        if (simt_thread() == 0)
            flow_fail(a->guard, DECODER_RANGE, DECODER_RANGE_EDIT, id, room->in.slots.n_pages);
        return false;
    }
    uint32_t shift = room->piece_shift, n_pieces = KV_PAGE_TOKENS >> shift;
    uint32_t which = at->piece < n_pieces ? KV_KEYS : KV_VALUES;
    uint32_t first = at->piece % n_pieces << shift, seen = attend_seen(u->last, page);
    uint32_t n = seen > first ? seen - first : 0;
    n = n < 1u << shift ? n : 1u << shift;
    const SIMT_GLOBAL char *from = attend_tile_at(room, id, u->kv_head, which);
    SIMT_SHARED char *to = ATTEND_AT(char, room, ring) + at->slot * room->piece_bytes;
    uint32_t row = room->tile.row_bytes, scale = room->tile.scale_bytes;
    attend_copy(a, to, from + first * row, n * row);
    attend_copy(a, to + (row << shift), from + KV_PAGE_TOKENS * row + first * scale,
                attend_round16(n * scale));
    simt_cp_async_commit();
    return true;
}

/* Fills the ring at the start of a batch. */
SIMT_INLINE bool attend_fill_ring(const struct attend *a)
{
    for (uint32_t i = 0; i < a->room->n_slots; i++)
        if (!attend_fill(a, i))
            return false;
    return true;
}

/* Waits until this thread's copies have landed, except those of the last n pieces. */
SIMT_INLINE void attend_landed(uint32_t n)
{
    if (n == 0)
        simt_cp_async_wait(0);
    else if (n == 1)
        simt_cp_async_wait(1);
    else
        simt_cp_async_wait(2);
}

/* --- before attention --- */

/* Finds the units of the step and of this block. A barrier must follow. False: a row is out of range. */
SIMT_INLINE bool attend_plan(const struct attend *a, const struct attend_args *in,
                             const SIMT_GLOBAL struct step_row *rows, uint32_t n_rows, bool lone_rows)
{
    if (simt_thread() == 0)
        attend_room_set(a->general, a->room, in, rows, n_rows, lone_rows);
    crew_sync(&a->crew);
    if (!attend_count_splits(a->general, &a->crew, a->guard, a->room))
        return false;
    if (simt_warp() == 0) {
        attend_sum_splits(a->general, a->room);
        attend_find_batch(a->general, a->room, 0);
    }
    return true;
}

/* True if a kv head has several units a split: one of them would append what the others read. */
SIMT_INLINE bool attend_is_parted(const struct attend_args *in)
{
    uint32_t ratio = in->n_heads / in->layout.n_kv_heads;
    return attend_unit_heads(ratio) < ratio;
}

/* The caller has set crew, guard, general, polls and passes. `lone_rows`: no two rows share a slot.
 * `planned`: the last call was for another layer with the same rows, `in` differs by what attend_room_layer()
 * sets, and no thread has since written to the room. */
SIMT_INLINE bool attend_prefetch(struct attend *a, const struct attend_args *in,
                                 const SIMT_GLOBAL struct step_row *rows, uint32_t n_rows, bool lone_rows,
                                 bool planned)
{
    const bool general = a->general;
    a->room = simt_carve(in->work, in->work_bytes);
    a->lone = lone_rows && (!general || !attend_is_parted(in));
    bool many = n_rows > in->max_rows;
    if (many && simt_thread() == 0)
        flow_fail(a->guard, DECODER_RANGE, DECODER_RANGE_COUNT, n_rows, in->max_rows);
    if (many)
        return false;
    if (planned && a->room->whole) {
        if (simt_thread() == 0)
            attend_room_again(general, a->room, in);
    } else if (!attend_plan(a, in, rows, n_rows, lone_rows)) {
        return false;
    }
    crew_sync(&a->crew);
    return (!a->lone && !a->room->in.ready) || attend_fill_ring(a);
}

SIMT_INLINE struct head_turn attend_turn(const struct attend *a, uint32_t pos, uint64_t gain)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    size_t at = (size_t)pos * (room->in.rope_dim / 2);
    return (struct head_turn){
        .gain = DECODER_AT(const float, gain),
        .cosines = DECODER_AT(const float, room->in.cosines) + at,
        .sines = DECODER_AT(const float, room->in.sines) + at,
        .n = room->in.layout.head_dim,
        .rope_dim = room->in.rope_dim,
        .eps = room->in.eps,
        .normed = gain != 0,
        .neox = room->in.neox != 0,
        .words = a->polls ? a->guard : NULL,
    };
}

/* Row r's heads of q, k or v: those that begin at column col. */
SIMT_INLINE SIMT_GLOBAL float *attend_in(const SIMT_SHARED struct attend_room *room, uint32_t r, uint32_t col)
{
    return DECODER_AT(float, room->in.in) + (size_t)r * room->in.in_stride + col;
}

/* Norm and rotation of a head of q or k. */
SIMT_INLINE void attend_turn_head(const bool general, SIMT_SHARED float *to, const SIMT_GLOBAL float *x,
                                  const struct head_turn *t)
{
    if (general)
        head_prepare_long(to, x, t);
    else
        head_prepare(to, x, t);
}

/* Writes a row's head of k or v to `stage` in the form that the cache stores, by one warp. */
SIMT_INLINE void attend_stage(const struct attend *a, SIMT_SHARED float *stage, uint32_t r, uint32_t pos,
                              uint32_t kv_head, uint32_t which)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, head = kv_head * head_dim;
    if (which == KV_KEYS) {
        struct head_turn turn = attend_turn(a, pos, room->in.k_gain);
        attend_turn_head(a->general, stage, attend_in(room, r, room->in.k_col + head), &turn);
        return;
    }
    const SIMT_GLOBAL float *v = attend_in(room, r, room->in.v_col + head);
    if (a->general && room->in.v_normed) {
        struct head_turn turn = {
            .n = head_dim, .eps = room->in.eps, .normed = true, .words = a->polls ? a->guard : NULL};
        head_prepare_long(stage, v, &turn);
        return;
    }
    head_stage(stage, v, head_dim, a->polls ? a->guard : NULL);
}

/* One warp's task in attend_append_phase(): head `head` of row r, the query heads first, then k, then v. */
SIMT_INLINE void attend_append_head(const struct attend *a, SIMT_SHARED float *stage, uint32_t r,
                                    uint32_t head)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, n_heads = room->in.n_heads;
    uint32_t slot = attend_rows(room)[r].slot, pos = attend_rows(room)[r].pos;
    if (head < n_heads) {
        struct head_turn turn = attend_turn(a, pos, room->in.q_gain);
        SIMT_GLOBAL float *q = attend_in(room, r, room->in.q_col + head * head_dim);
        attend_turn_head(a->general, stage, q, &turn);
        for (uint32_t d = simt_lane(); d < head_dim; d += SIMT_LANES)
            if (a->polls)
                words_put(q + d, stage[d]);
            else
                q[d] = stage[d];
    } else {
        uint32_t kv_head = (head - n_heads) % room->in.layout.n_kv_heads;
        uint32_t which = head - n_heads < room->in.layout.n_kv_heads ? KV_KEYS : KV_VALUES;
        uint32_t id = attend_page_of(room, slot, pos / KV_PAGE_TOKENS), token = pos % KV_PAGE_TOKENS;
        if (id >= room->in.slots.n_pages) {
            if (simt_lane() == 0)
                flow_fail(a->guard, DECODER_RANGE, DECODER_RANGE_EDIT, id, room->in.slots.n_pages);
            return;
        }
        if (attend_rows(room)[r].flags & STEP_ROW_CACHED)
            return;
        struct kv_tile tile = attend_tile(room);
        struct head_place to = head_place_of(attend_tile_at(room, id, kv_head, which), &tile, token);
        attend_stage(a, stage, r, pos, kv_head, which);
        head_append(&to, &tile, token, stage, head_dim);
    }
}

SIMT_INLINE void attend_append_phase(struct attend *a)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, n = room->in.n_heads + 2 * room->in.layout.n_kv_heads;
    n = a->general && room->in.cached ? room->in.n_heads : n;
    uint32_t n_tasks = room->n_rows * n, warp = simt_warp();
    uint32_t n_warps =
        (room->in.work_bytes - room->stats) / (head_dim * 4); /* warps that have room for a head */
    n_warps = n_warps < a->crew.n_warps ? n_warps : a->crew.n_warps;
    if (warp >= n_warps)
        return;
    SIMT_SHARED float *stage = ATTEND_AT(float, room, stats) + warp * head_dim;
    for (uint32_t i = simt_block() + warp * simt_n_blocks(); i < n_tasks; i += n_warps * simt_n_blocks())
        attend_append_head(a, stage, i / n, i % n);
}

/* --- a unit --- */

/* Query heads of a unit that go through its pages together. */
struct attend_pass {
    const SIMT_SHARED struct attend_unit *unit;
    SIMT_SHARED float *stats;
    uint32_t first_head, n_heads; /* those of the kv head */
    uint32_t n_queries;           /* query q: row q / n_heads of the group, head q % n_heads */
};

SIMT_INLINE struct attend_pass attend_pass_of(const SIMT_SHARED struct attend_room *room,
                                              const SIMT_SHARED struct attend_place *at)
{
    struct attend_pass p = {.unit = &room->units[at->unit], .first_head = at->pass * room->pass_heads};
    uint32_t left = room->ratio - p.first_head;
    p.n_heads = left < room->pass_heads ? left : room->pass_heads;
    p.n_queries = p.unit->n_rows * p.n_heads;
    p.stats = ATTEND_AT(float, room, stats) + at->passes % 2 * room->n_queries * ATTEND_QUERY_STATS;
    return p;
}

/* Head number, in `out` and in q, of query q of a pass. */
SIMT_INLINE uint32_t attend_head(const SIMT_SHARED struct attend_room *room, const struct attend_pass *p,
                                 uint32_t q)
{
    return p->unit->part * room->ratio + p->first_head + q % p->n_heads;
}

/* Stores a query in the form that scores read, from the scaled values of each lane's own elements: floats
 * (rounded to bf16 if the cache is), or int8 [head_dim] and then a float scale for each 32. */
SIMT_INLINE void attend_put_query(const bool general, const SIMT_SHARED struct attend_room *room,
                                  SIMT_SHARED float *to, const float own[HEAD_LONG_PARTS])
{
    uint32_t head_dim = room->in.layout.head_dim, type = room->tile.type, lane = simt_lane();
    if (type == KV_Q8_0)
        simt_syncwarp(); /* all lanes have read the floats that the bytes overwrite */
#pragma unroll
    for (uint32_t e = 0; e < (general ? HEAD_LONG_PARTS : HEAD_PARTS); e++) {
        uint32_t d = e * SIMT_LANES + lane;
        if (e * SIMT_LANES >= head_dim)
            break;
        if (type != KV_Q8_0) {
            to[d] = type == KV_BF16 ? arith_from_bf16(arith_bf16(own[e])) : own[e];
            continue;
        }
        int8_t q;
        float scale = head_quantise(own[e], &q);
        ((SIMT_SHARED int8_t *)to)[d] = q;
        if (lane == 0)
            to[head_dim / 4 + e] = scale;
    }
}

/* The factor of the query at position pos. */
SIMT_INLINE float attend_factor(const bool general, const SIMT_SHARED struct attend_room *room, uint32_t pos)
{
    float factor = room->in.scale * ARITH_LOG2E;
    if (general && room->in.cap > 0)
        factor = factor * (2.0f / room->in.cap);
    if (general && room->in.temperatures)
        factor = factor * DECODER_AT(const float, room->in.temperatures)[pos];
    return factor;
}

/* Prepares and scales one query, by one warp. */
SIMT_INLINE void attend_prepare_query(const struct attend *a, const struct attend_pass *p, uint32_t query)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, r = p->unit->row + query / p->n_heads;
    uint32_t pos = attend_rows(room)[r].pos;
    const SIMT_GLOBAL float *x = attend_in(room, r, room->in.q_col + attend_head(room, p, query) * head_dim);
    SIMT_SHARED float *q = ATTEND_AT(float, room, queries) + query * head_dim;
    float factor = attend_factor(a->general, room, pos), own[HEAD_LONG_PARTS];
    if (a->lone) {
        struct head_turn turn = attend_turn(a, pos, room->in.q_gain);
        attend_turn_head(a->general, q, x, &turn);
    }
#pragma unroll
    for (uint32_t e = 0; e < (a->general ? HEAD_LONG_PARTS : HEAD_PARTS); e++) {
        uint32_t d = e * SIMT_LANES + simt_lane();
        own[e] = d < head_dim ? (a->lone ? q[d] : x[d]) * factor : 0.0f;
    }
    attend_put_query(a->general, room, q, own);
    if (simt_lane() == 0) {
        SIMT_SHARED float *of = p->stats + query * ATTEND_QUERY_STATS;
        of[ATTEND_MAX] = -ARITH_INF;
        of[ATTEND_SUM] = 0.0f;
        of[ATTEND_POS] = arith_from_bits(pos);
    }
}

/* Prepares the queries of a pass, a warp each. */
SIMT_INLINE void attend_prepare(const struct attend *a, const struct attend_pass *p)
{
    for (uint32_t query = simt_warp(); query < p->n_queries; query += a->crew.n_warps)
        attend_prepare_query(a, p, query);
}

/* --- results --- */

struct attend_scratch_at {
    SIMT_GLOBAL uint32_t *tickets;
    SIMT_GLOBAL float *folds, *outs; /* those of the first split of a (row, head); the others follow */
};

SIMT_INLINE struct attend_scratch_at attend_scratch_of(const SIMT_SHARED struct attend_room *room,
                                                       uint32_t row, uint32_t head)
{
    uint32_t max_rows = room->in.max_rows, n_heads = room->in.n_heads;
    uint32_t splits = room->max_splits;
    SIMT_GLOBAL char *at = DECODER_AT(char, room->in.scratch);
    size_t first = ((size_t)row * n_heads + head) * splits;
    return (struct attend_scratch_at){
        .tickets = (SIMT_GLOBAL uint32_t *)at + (size_t)row * n_heads,
        .folds = (SIMT_GLOBAL float *)(at + attend_folds_at(max_rows, n_heads)) + first * 2,
        .outs = (SIMT_GLOBAL float *)(at + attend_outs_at(max_rows, n_heads, splits)) +
                first * room->in.layout.head_dim,
    };
}

/* The score of a head that has no value. */
SIMT_INLINE float attend_sink(const SIMT_SHARED struct attend_room *room, uint32_t head)
{
    return DECODER_AT(const float, room->in.sinks)[head] * ARITH_LOG2E;
}

/* Writes two neighbouring sums of query q: the result, or one split's part of it. */
SIMT_INLINE void attend_give(const struct attend *a, const struct attend_pass *p, uint32_t q, uint32_t d,
                             const SIMT_SHARED float *o)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, row = p->unit->row + q / p->n_heads;
    uint32_t head = attend_head(room, p, q);
    const SIMT_SHARED float *of = p->stats + q * ATTEND_QUERY_STATS;
    float max = of[ATTEND_MAX], sum = of[ATTEND_SUM], before = 0.0f;
    if (!a->general && a->lone && attend_is_handed(room, p->unit)) {
        attend_hand(room, p->unit, of, head, d, o);
        return;
    }
    if (p->unit->n_splits > 1) {
        struct attend_scratch_at to = attend_scratch_of(room, row, head);
        uint32_t split = p->unit->split;
        if (a->general && p->unit->n_rows > 1) {
            uint32_t pos = attend_rows(room)[row].pos, first = attend_row_first(true, room, p->unit, pos);
            split += p->unit->first_split;
            if (split > pos >> p->unit->split_shift || split < first)
                return; /* other rows of the unit see this split */
            split -= first;
        }
        to.outs[split * head_dim + d] = o[0];
        to.outs[split * head_dim + d + 1] = o[1];
        if (d == 0) {
            to.folds[2 * split] = max;
            to.folds[2 * split + 1] = sum;
        }
        return;
    }
    SIMT_GLOBAL float *out =
        DECODER_AT(float, room->in.out) + (size_t)row * room->in.out_stride + head * head_dim + d;
    float own = max;
    if (a->general && room->in.sinks) {
        float sink = attend_sink(room, head);
        max = sink > max ? sink : max;
        before = arith_exp2(sink - max);
    }
    float e = arith_exp2(own - max), inverse = 1.0f / __builtin_fmaf(e, sum, before);
    attend_put(a->passes, out, __builtin_fmaf(e, o[0], 0.0f) * inverse);
    attend_put(a->passes, out + 1, __builtin_fmaf(e, o[1], 0.0f) * inverse);
}

/* Each thread writes the sums that it kept; the deal is that of attend_values(). */
SIMT_INLINE void attend_give_all(const struct attend *a, const struct attend_pass *p)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    struct attend_deal deal = attend_deal_of(room, p->n_queries);
    for (uint32_t task = simt_thread(); task < deal.n_tasks; task += a->crew.n_threads)
        for (uint32_t q = task / deal.per_query * deal.per, end = q + deal.per; q < end && q < p->n_queries;
             q++) {
            uint32_t d = task % deal.per_query * deal.wide;
            SIMT_SMALL_LOOP
            for (uint32_t to = d + deal.wide; d < to; d += 2)
                attend_give(a, p, q, d,
                            ATTEND_AT(const float, room, outs) + q * room->in.layout.head_dim + d);
        }
}

/* Merges the n splits of four dimensions, from d on, of one head of one row, ascending. */
SIMT_INLINE void attend_merge_part(const struct attend *a, uint32_t row, uint32_t head, uint32_t n,
                                   uint32_t d)
{
    const bool general = a->general;
    const SIMT_SHARED struct attend_room *room = a->room;
    struct attend_scratch_at from = attend_scratch_of(room, row, head);
    uint32_t head_dim = room->in.layout.head_dim;
    float max = from.folds[0], sum = 0.0f;
#pragma clang loop unroll_count(8)
    for (uint32_t i = 1; i < n; i++)
        max = from.folds[2 * i] > max ? from.folds[2 * i] : max;
    if (general && room->in.sinks) {
        float sink = attend_sink(room, head);
        max = sink > max ? sink : max;
        sum = arith_exp2(sink - max);
    }
    attend_f4 o = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma clang loop unroll_count(8)
    for (uint32_t i = 0; i < n; i++) {
        float e = arith_exp2(from.folds[2 * i] - max);
        attend_f4 part = *(const SIMT_GLOBAL attend_f4 *)(from.outs + i * head_dim + d);
        sum = __builtin_fmaf(e, from.folds[2 * i + 1], sum);
        for (int j = 0; j < 4; j++)
            o[j] = __builtin_fmaf(e, part[j], o[j]);
    }
    float inverse = 1.0f / sum;
    for (int j = 0; j < 4; j++)
        o[j] = o[j] * inverse;
    SIMT_GLOBAL float *out =
        DECODER_AT(float, room->in.out) + (size_t)row * room->in.out_stride + head * head_dim + d;
    if (!a->passes)
        *(SIMT_GLOBAL attend_f4 *)out = o;
    for (int j = 0; a->passes && j < 4; j++)
        words_put(out + j, o[j]);
}

/* Merges query head q of the unit's part, counted row by row, by one warp. */
SIMT_INLINE void attend_merge_head(const struct attend *a, const SIMT_SHARED struct attend_unit *u,
                                   uint32_t q)
{
    const bool general = a->general;
    const SIMT_SHARED struct attend_room *room = a->room;
    uint32_t head_dim = room->in.layout.head_dim, d = simt_lane() * 4, ratio = room->ratio;
    uint32_t row = u->row + q / ratio, head = u->part * ratio + q % ratio;
    uint32_t n = attend_row_splits(general, room, u, row);
    if (!general && d < head_dim)
        attend_merge_part(a, row, head, n, d);
#pragma clang loop unroll(disable)
    for (; general && d < head_dim; d += SIMT_LANES * 4)
        attend_merge_part(a, row, head, n, simt_opaque(d)); /* a register fewer: sm_89 spilled */
}

/* Merges, after all of the batch's units are written, the groups that are complete: those that are handed
 * over once their parts are there, of others those whose last ticket this block draws. */
SIMT_INLINE void attend_merge(const struct attend *a)
{
    SIMT_SHARED struct attend_room *room = a->room;
    crew_sync(&a->crew);
    if (!a->general && a->lone && room->handed)
        attend_take(&a->crew, a->guard, room, a->passes);
    if (!room->tickets)
        return;
    if (simt_warp() == 0) {
        const SIMT_SHARED struct attend_unit *u = &room->units[simt_lane()];
        bool last = false;
        if (room->tickets >> simt_lane() & 1) {
            SIMT_GLOBAL uint32_t *ticket = attend_scratch_of(room, u->row, 0).tickets + u->part;
            last = simt_atom_acq_rel_gpu_add(ticket, 1) == u->n_splits - 1;
            if (last)
                simt_st_relaxed_gpu(ticket, 0);
        }
        uint32_t mask = simt_ballot(last);
        if (simt_lane() == 0)
            room->last_arrivals = mask;
    }
    crew_sync(&a->crew);
    uint32_t ratio = room->ratio;
    for (uint32_t left = room->last_arrivals; left; left &= left - 1) {
        const SIMT_SHARED struct attend_unit *u = &room->units[__builtin_ctz(left)];
        for (uint32_t q = simt_warp(); q < u->n_rows * ratio; q += a->crew.n_warps)
            attend_merge_head(a, u, q);
    }
}

/* --- the phase --- */

/* Place of piece `number`. Each turn looks up what it needs again, so that little stays in registers between
 * turns. */
SIMT_INLINE const SIMT_SHARED struct attend_place *attend_at(const struct attend *a, uint32_t number)
{
    return &a->room->places[number % ATTEND_PLACES];
}

/* Appends k or v of a lone row to its tile, and to its piece in the ring if that has been copied already. In
 * the pass that begins with piece `number`, the first n_slots pieces have been copied at the start of the
 * stream, and one fewer later. */
SIMT_INLINE void attend_append_own(const struct attend *a, uint32_t number, uint32_t which)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    const SIMT_SHARED struct attend_unit *u = &room->units[attend_at(a, number)->unit];
    uint32_t head_dim = room->in.layout.head_dim, shift = room->piece_shift;
    uint32_t token = u->last % KV_PAGE_TOKENS, inside = token & ((1u << shift) - 1);
    uint32_t id = attend_page_of(room, u->slot, u->last / KV_PAGE_TOKENS);
    uint32_t piece = ((u->n_pages - 1) * 2 + which) * (KV_PAGE_TOKENS >> shift) + (token >> shift);
    if (id >= room->in.slots.n_pages)
        return; /* attend_fill() reports it */
    SIMT_SHARED float *stage = ATTEND_AT(float, room, stage) + which * head_dim;
    struct kv_tile tile = attend_tile(room);
    struct head_place to = head_place_of(attend_tile_at(room, id, u->kv_head, which), &tile, token);
    to.near = piece < room->n_slots - (number ? 1 : 0);
    if (to.near) {
        uint32_t slot = room->places[(number + piece) % ATTEND_PLACES].slot;
        SIMT_SHARED char *near = ATTEND_AT(char, room, ring) + slot * room->piece_bytes;
        to.near_row = near + inside * tile.row_bytes;
        to.near_scales = near + (tile.row_bytes << shift) + inside * tile.scale_bytes;
    }
    attend_stage(a, stage, u->row, u->last, u->kv_head, which);
    head_append(&to, &tile, token, stage, head_dim);
}

/* Returns whether the pass that begins with piece `number` must append a lone row's own k and v. */
SIMT_INLINE bool attend_appends(const struct attend *a, uint32_t number)
{
    const SIMT_SHARED struct attend_place *at = attend_at(a, number);
    const SIMT_SHARED struct attend_unit *u = &a->room->units[at->unit];
    if (attend_rows(a->room)[u->row].flags & STEP_ROW_CACHED)
        return false;
    if (a->general && a->room->in.cached)
        return false;
    return a->lone && at->pass == 0 && u->split + 1 == u->n_splits;
}

SIMT_INLINE void attend_begin_pass(const struct attend *a, uint32_t number)
{
    if (attend_appends(a, number)) { /* copies under way read that token's old bytes */
        simt_cp_async_wait(0);
        crew_sync(&a->crew);
        for (uint32_t which = a->crew.n_warps - 1 - simt_warp(); which <= KV_VALUES; which += a->crew.n_warps)
            attend_append_own(a, number, which); /* the last warps have the fewest queries */
    }
    struct attend_pass p = attend_pass_of(a->room, attend_at(a, number));
    attend_prepare(a, &p);
}

/* Piece `number` of the batch's stream; valid once its copy has landed. */
SIMT_INLINE struct attend_piece attend_piece_of(const SIMT_SHARED struct attend_room *room,
                                                const SIMT_SHARED struct attend_place *at)
{
    const SIMT_SHARED struct attend_unit *u = &room->units[at->unit];
    uint32_t n_pieces = KV_PAGE_TOKENS >> room->piece_shift;
    struct attend_piece x = {
        .data = ATTEND_AT(const char, room, ring) + at->slot * room->piece_bytes,
        .first = at->piece % n_pieces << room->piece_shift,
        .page = u->first_page + at->page,
    };
    uint32_t seen = attend_seen(u->last, x.page);
    x.n = seen > x.first ? seen - x.first : 0;
    return x;
}

SIMT_INLINE void attend_turn_keys(const struct attend *a, uint32_t number)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    struct attend_piece x = attend_piece_of(room, attend_at(a, number));
    attend_scores(a->general, &a->crew, room, &x, attend_pass_of(room, attend_at(a, number)).n_queries);
}

SIMT_INLINE void attend_turn_weights(const struct attend *a, uint32_t number)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    const SIMT_SHARED struct attend_place *at = attend_at(a, number);
    struct attend_pass p = attend_pass_of(room, at);
    uint32_t page = p.unit->first_page + at->page, id = attend_page_of(room, p.unit->slot, page);
    const SIMT_GLOBAL uint16_t *scales = NULL;
    if (room->tile.type == KV_Q8_0)
        scales = (const SIMT_GLOBAL uint16_t *)(attend_tile_at(room, id, p.unit->kv_head, KV_VALUES) +
                                                KV_PAGE_TOKENS * room->tile.row_bytes);
    attend_soften(a->general, &a->crew, room, p.stats, page, p.n_queries, scales);
}

SIMT_INLINE void attend_turn_values(const struct attend *a, uint32_t number, bool begin)
{
    const SIMT_SHARED struct attend_room *room = a->room;
    const SIMT_SHARED struct attend_place *at = attend_at(a, number);
    struct attend_pass p = attend_pass_of(room, at);
    struct attend_piece x = attend_piece_of(room, at);
    attend_values(a->general, &a->crew, room, p.stats, &x, p.n_queries, begin, at->page == 0);
}

/* Handles one piece: waits for it, begins the copy of a later one, computes. */
SIMT_INLINE bool attend_turn_of(const struct attend *a, uint32_t number)
{
    SIMT_SHARED struct attend_room *room = a->room;
    const SIMT_SHARED struct attend_place *at = attend_at(a, number);
    if (at->page == 0 && at->piece == 0)
        attend_begin_pass(a, number);
    attend_landed(room->n_slots - (number ? 2 : 1));
    crew_sync(&a->crew); /* all copies have landed, and all threads have read the piece before */
    if (simt_thread() == 0)
        attend_next_place(room, &room->places[(number + room->n_slots + 1) % ATTEND_PLACES],
                          &room->places[(number + room->n_slots) % ATTEND_PLACES]);
    if (number && !attend_fill(a, number + room->n_slots - 1))
        return false;
    uint32_t n_pieces = KV_PAGE_TOKENS >> room->piece_shift, piece = at->piece;
    if (piece < n_pieces) {
        attend_turn_keys(a, number);
        if (piece + 1 < n_pieces)
            return true;
        crew_sync(&a->crew);
        attend_turn_weights(a, number);
        return true;
    }
    attend_turn_values(a, number, piece == n_pieces);
    if (piece + 1 == 2 * n_pieces && at->page + 1 == room->units[at->unit].n_pages) {
        struct attend_pass p = attend_pass_of(room, at);
        attend_give_all(a, &p);
    }
    return true;
}

SIMT_INLINE bool attend_phase(struct attend *a)
{
    SIMT_SHARED struct attend_room *room = a->room;
    bool filled = a->lone || room->in.ready;
    for (uint32_t done = 0; room->n_batch; done += ATTEND_BATCH) {
        if (!filled && !attend_fill_ring(a))
            return false;
        filled = false;
        for (uint32_t i = 0; room->places[i % ATTEND_PLACES].unit < room->n_batch; i++)
            if (!attend_turn_of(a, i))
                return false;
        attend_merge(a);
        if (!room->more)
            break;
        crew_sync(&a->crew); /* no thread reads the batch any more */
        if (simt_warp() == 0)
            attend_find_batch(a->general, room, done + ATTEND_BATCH);
        crew_sync(&a->crew);
    }
    return true;
}
