/* attend_parts.h - the parts of few splits of a few lone rows, handed over and merged without tickets
 * (attend_room.h, attend_is_handed()).
 *
 * The block of a row's last split, which also appends the row and so seldom ends first, merges the row. Its
 * own part stays in its work area. Each value of another split's part goes through memory in a word of its
 * own, which is not 0 once it is there: neither a release, an acquire nor a ticket lies between the last part
 * and the merge. The words that a warp reads, only that warp reads, and it sets them to 0 when it has them.
 * Layers alternate between two sets of words; a wait for all blocks' end of a layer lies before its set is
 * used again. No block waits before all of its own parts are written, so every wait ends. One that fails is
 * noticed by all at the op's end.
 *
 * Thread: attend_hand(): any compute thread; attend_take(): all of a block, behind a barrier after the last
 * unit; the others: one warp. */
#pragma once
#include "attend_room.h"

/* Stores a value of the result, as a word if the op passes words on. */
SIMT_INLINE void attend_put(bool passes, SIMT_GLOBAL float *to, float v)
{
    if (passes)
        words_put(to, v);
    else
        *to = v;
}

/* A value that is handed over; never 0. */
SIMT_INLINE uint64_t attend_word(float v)
{
    return 1ull << 32 | arith_to_bits(v);
}

#define ATTEND_SHARE 64 /* dimensions of a head that a warp merges */

/* The words of a split's part of a head: maximum and sum for each warp that merges it, then the values. */
SIMT_INLINE SIMT_GLOBAL uint64_t *attend_words(const SIMT_SHARED struct attend_room *room, uint32_t row,
                                               uint32_t head, uint32_t split)
{
    return DECODER_AT(uint64_t, room->handed) +
           ((row * room->in.n_heads + head) * ATTEND_HANDED_SPLITS + split) *
               (ATTEND_HANDED_STATS + room->in.layout.head_dim);
}
_Static_assert(ATTEND_PLAIN_HEAD_DIM / ATTEND_SHARE * 2 == ATTEND_HANDED_STATS, "two for each");

/* Returns whether the part of the block's unit `unit` stays in its work area until the merge: it is a row's
 * last split, and the block computes none after it. */
SIMT_INLINE bool attend_stays(const SIMT_SHARED struct attend_room *room, uint32_t unit)
{
    const SIMT_SHARED struct attend_unit *u = &room->units[unit];
    return unit + 1 == room->n_batch && u->split + 1 == u->n_splits && room->pass_heads == room->ratio;
}

/* Hands over two neighbouring values of a unit's part of a head, from d on, and with a share's first ones the
 * maximum and the sum. of: enum attend_stat. */
SIMT_INLINE void attend_hand(const SIMT_SHARED struct attend_room *room,
                             const SIMT_SHARED struct attend_unit *u, const SIMT_SHARED float *of,
                             uint32_t head, uint32_t d, const SIMT_SHARED float *o)
{
    if (attend_stays(room, (uint32_t)(u - room->units)))
        return;
    SIMT_GLOBAL uint64_t *to = attend_words(room, u->row, head, u->split);
    simt_st_relaxed_gpu_u64(to + ATTEND_HANDED_STATS + d, attend_word(o[0]));
    simt_st_relaxed_gpu_u64(to + ATTEND_HANDED_STATS + d + 1, attend_word(o[1]));
    if (d % ATTEND_SHARE)
        return;
    simt_st_relaxed_gpu_u64(to + d / ATTEND_SHARE * 2, attend_word(of[ATTEND_MAX]));
    simt_st_relaxed_gpu_u64(to + d / ATTEND_SHARE * 2 + 1, attend_word(of[ATTEND_SUM]));
}

#define ATTEND_TAKEN 8 /* splits whose values are loaded together */
_Static_assert(SIMT_LOOK_SPINS % (2 * ATTEND_TAKEN) == 0 || 2 * ATTEND_TAKEN % SIMT_LOOK_SPINS == 0,
               "flow_patient() counts in these steps");

/* The merge of a share of a head by one warp: lane l has dimensions l and l + 32 of it, and split l's maximum
 * and sum. */
struct attend_taking {
    SIMT_GLOBAL uint64_t *stats, *words; /* split 0's; and its words from the share on */
    const SIMT_SHARED float *own;        /* the share of the last split, if it stayed, or NULL */
    uint32_t n, n_far;                   /* splits; those whose parts are words */
    uint32_t stride;                     /* words of a split */
    uint32_t second; /* from a lane's first dimension to its second: 32, or 0: it has one */
    float max, sum;  /* this lane's split's; later max is its factor */
    float o[2], total;
};

/* Loads what this lane has of splits first to first + ATTEND_TAKEN - 1, and its maximum and sum before the
 * first. Returns whether all of it is there. */
SIMT_INLINE bool attend_look(struct attend_taking *t, uint32_t first, uint64_t v[ATTEND_TAKEN][2])
{
    uint64_t all = ~0ull;
    uint32_t lane = simt_lane();
    if (first == 0 && lane < t->n_far) {
        uint64_t max = simt_ld_relaxed_gpu_u64(t->stats + lane * t->stride);
        uint64_t sum = simt_ld_relaxed_gpu_u64(t->stats + lane * t->stride + 1);
        t->max = arith_from_bits((uint32_t)max);
        t->sum = arith_from_bits((uint32_t)sum);
        all = max & sum;
    }
#pragma unroll
    for (uint32_t k = 0; k < ATTEND_TAKEN; k++) { /* behind the last split that one again: no branch */
        uint32_t split = first + k < t->n_far ? first + k : t->n_far - 1;
        const SIMT_GLOBAL uint64_t *from = t->words + split * t->stride + lane;
        v[k][0] = simt_ld_relaxed_gpu_u64(from);
        v[k][1] = simt_ld_relaxed_gpu_u64(from + t->second);
        all &= v[k][0] & v[k][1];
    }
    return all >> 32 != 0;
}

/* Turns each lane's maximum into the factor of its split, and adds the sums up. Lanes without a split have
 * -inf and 0, which change nothing. */
SIMT_INLINE void attend_weigh_splits(struct attend_taking *t)
{
    float top = simt_shfl_f32(t->max, 0);
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < t->n; first += ATTEND_TAKEN)
#pragma unroll
        for (uint32_t k = 0; k < ATTEND_TAKEN; k++) {
            float x = simt_shfl_f32(t->max, first + k);
            top = x > top ? x : top;
        }
    t->max = arith_exp2(t->max - top);
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < t->n; first += ATTEND_TAKEN)
#pragma unroll
        for (uint32_t k = 0; k < ATTEND_TAKEN; k++)
            t->total =
                __builtin_fmaf(simt_shfl_f32(t->max, first + k), simt_shfl_f32(t->sum, first + k), t->total);
}
_Static_assert(ATTEND_HANDED_SPLITS % ATTEND_TAKEN == 0 && ATTEND_HANDED_SPLITS <= SIMT_LANES,
               "a lane a split");

/* Waits for the parts and adds them up, splits ascending. A wait that fails leaves sums that are never used:
 * all threads end at the next one. */
SIMT_INLINE void attend_take_parts(const struct flow_guard *guard, struct attend_taking *t, uint32_t head)
{
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < t->n_far; first += ATTEND_TAKEN) {
        uint64_t v[ATTEND_TAKEN][2];
        struct flow_patience patience = {0, 0};
        while (!attend_look(t, first, v)) {
            patience.spins += 2 * ATTEND_TAKEN - 1; /* a turn polls so many words more than other waits */
            if (!flow_patient(guard, &patience, FLOW_HEAD + head, 0, 1))
                break;
        }
        if (first == 0)
            attend_weigh_splits(t);
#pragma unroll
        for (uint32_t k = 0; k < ATTEND_TAKEN; k++) {
            float e = simt_shfl_f32(t->max, first + k);
            for (uint32_t i = 0; i < 2; i++)
                if (first + k < t->n_far)
                    t->o[i] = __builtin_fmaf(e, arith_from_bits((uint32_t)v[k][i]), t->o[i]);
        }
    }
    float e = simt_shfl_f32(t->max, t->n - 1);
    for (uint32_t i = 0; i < 2; i++)
        if (t->own)
            t->o[i] = __builtin_fmaf(e, t->own[i * t->second + simt_lane()], t->o[i]);
}

/* Merges the share from dimension d on of query q's head, of the row whose last split is the block's unit
 * `unit`, by one warp. */
SIMT_INLINE void attend_take_share(const struct flow_guard *guard, const SIMT_SHARED struct attend_room *room,
                                   uint32_t unit, uint32_t q, uint32_t d, bool passes)
{
    const SIMT_SHARED struct attend_unit *u = &room->units[unit];
    uint32_t head_dim = room->in.layout.head_dim, head = u->kv_head * room->ratio + q, lane = simt_lane();
    SIMT_GLOBAL uint64_t *words = attend_words(room, u->row, head, 0);
    struct attend_taking t = {.stats = words + d / ATTEND_SHARE * 2,
                              .words = words + ATTEND_HANDED_STATS + d,
                              .n = u->n_splits,
                              .n_far = u->n_splits,
                              .stride = ATTEND_HANDED_STATS + head_dim,
                              .second = d + SIMT_LANES < head_dim ? SIMT_LANES : 0,
                              .max = -ARITH_INF};
    if (attend_stays(room, unit)) { /* a unit is one pass then */
        const SIMT_SHARED float *stats =
            ATTEND_AT(const float, room, stats) + (unit % 2 * room->n_queries + q) * ATTEND_QUERY_STATS;
        t.n_far--;
        t.own = ATTEND_AT(const float, room, outs) + q * head_dim + d;
        if (lane == t.n_far) {
            t.max = stats[ATTEND_MAX];
            t.sum = stats[ATTEND_SUM];
        }
    }
    attend_take_parts(guard, &t, head);
    float inverse = 1.0f / t.total;
    SIMT_GLOBAL float *out =
        DECODER_AT(float, room->in.out) + (size_t)u->row * room->in.out_stride + head * head_dim + d + lane;
    attend_put(passes, out, t.o[0] * inverse);
    if (t.second)
        attend_put(passes, out + SIMT_LANES, t.o[1] * inverse);
    if (lane < t.n_far) {
        simt_st_relaxed_gpu_u64(t.stats + lane * t.stride, 0);
        simt_st_relaxed_gpu_u64(t.stats + lane * t.stride + 1, 0);
    }
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < t.n_far; first += ATTEND_TAKEN)
#pragma unroll
        for (uint32_t k = 0; k < ATTEND_TAKEN; k++) {
            SIMT_GLOBAL uint64_t *word = t.words + (first + k) * t.stride + lane;
            if (first + k < t.n_far)
                simt_st_relaxed_gpu_u64(word, 0);
            if (first + k < t.n_far && t.second)
                simt_st_relaxed_gpu_u64(word + SIMT_LANES, 0);
        }
}

/* Merges the rows whose last split is one of the block's units, a warp per share of a head. */
SIMT_INLINE void attend_take(const struct crew *crew, const struct flow_guard *guard,
                             const SIMT_SHARED struct attend_room *room, bool passes)
{
    uint32_t log2 = room->in.layout.head_dim > ATTEND_SHARE, n = room->ratio << log2;
    for (uint32_t unit = 0; unit < room->n_batch; unit++) {
        const SIMT_SHARED struct attend_unit *u = &room->units[unit];
        if (!attend_is_handed(room, u) || u->split + 1 != u->n_splits)
            continue;
        for (uint32_t i = simt_warp(); i < n; i += crew->n_warps)
            attend_take_share(guard, room, unit, i >> log2, (i & log2) * ATTEND_SHARE, passes);
    }
}
