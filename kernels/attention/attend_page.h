/* attend_page.h - one page against a few queries: scores, weights, the weighted sum. The lanes of arith.h's
 * dot product are the accumulators of one thread, so only sums of weights cross threads.
 * Thread: all compute threads of a block, together; each phase deals its work over them, and a crew_sync lies
 * between two phases. */
#pragma once
#include "attend_room.h"
#include "device/f16.h"
#include "attend_head.h"

/* The piece of keys or values that a phase works on. */
struct attend_piece {
    const SIMT_SHARED char *data; /* rows of the piece's tokens, then their scales */
    uint32_t first, n;            /* tokens of the page: its first one; how many of it a query may see */
    uint32_t page;                /* index in the sequence */
};

/* A token's key and the queries that are multiplied by it. */
struct attend_key {
    const SIMT_SHARED char *row;
    const SIMT_SHARED uint16_t *scales;
    const SIMT_SHARED float *q[2]; /* as attend_put_query() stores them */
    uint32_t swizzle, blocks;
};

struct attend_lanes {
    float v[2][4];
};

/* Computes lanes 4 * part to 4 * part + 3 of n dot products. */
SIMT_INLINE struct attend_lanes attend_part(const struct attend_key *k, int n, uint32_t part)
{
    struct attend_lanes to = {{{0.0f}}};
    for (uint32_t i = 0; i < k->blocks; i++) {
        uint64_t unit = *(const SIMT_SHARED uint64_t *)(k->row + ((i * 8 + part) ^ k->swizzle) * 8);
        float x[4];
        for (int l = 0; l < 4; l++)
            x[l] = f16_to_float((uint32_t)(unit >> 16 * l) & 0xffffu);
        for (int j = 0; j < n; j++) {
            attend_f4 q = *(const SIMT_SHARED attend_f4 *)(k->q[j] + i * 32 + part * 4);
            for (int l = 0; l < 4; l++)
                to.v[j][l] = __builtin_fmaf(q[l], x[l], to.v[j][l]);
        }
    }
    return to;
}

SIMT_INLINE struct attend_lanes attend_both(struct attend_lanes a, struct attend_lanes b, int n)
{
    for (int j = 0; j < n; j++)
        for (int l = 0; l < 4; l++)
            a.v[j][l] = a.v[j][l] + b.v[j][l];
    return a;
}

/* Does the first two steps of the tree: lanes 16 and then 8 apart. */
SIMT_INLINE struct attend_lanes attend_quarter(const struct attend_key *k, int n, uint32_t part)
{
    struct attend_lanes a = attend_part(k, n, part);
    a = attend_both(a, attend_part(k, n, part + 4), n);
    struct attend_lanes b = attend_part(k, n, part + 2);
    return attend_both(a, attend_both(b, attend_part(k, n, part + 6), n), n);
}

/* Computes n dot products of one token over f16. The tree is evaluated depth first, so that few lanes are
 * alive, and its halves in a loop, so that the compiler does not interleave them. */
SIMT_INLINE void attend_dot_f16(const struct attend_key *k, int n, float out[2])
{
    struct attend_lanes a = {{{0.0f}}};
#pragma clang loop unroll(disable)
    for (uint32_t part = 0; part < 2; part++) {
        struct attend_lanes b = attend_quarter(k, n, part);
        a = part == 0 ? b : attend_both(a, b, n);
    }
    for (int j = 0; j < n; j++)
        out[j] = (a.v[j][0] + a.v[j][2]) + (a.v[j][1] + a.v[j][3]);
}

/* The low and the high bf16 value of a word. */
SIMT_INLINE float attend_low(uint32_t pair)
{
    return arith_from_bf16(pair);
}

SIMT_INLINE float attend_high(uint32_t pair)
{
    return arith_from_bits(pair & 0xffff0000u);
}

/* Adds a unit of a key, 8 dimensions from d on, to the chains of n dot products. */
SIMT_INLINE void attend_unit_bf16(const struct attend_key *k, int n, uint32_t d, float chain[2])
{
    simt_u4 x = *(const SIMT_SHARED simt_u4 *)(k->row + (d / 8 ^ k->swizzle) * 16);
    for (int j = 0; j < n; j++)
        for (uint32_t i = 0; i < 2; i++) {
            attend_f4 q = *(const SIMT_SHARED attend_f4 *)(k->q[j] + d + i * 4);
            chain[j] = arith_fma_flushed(q[1], attend_high(x[i * 2]), chain[j]);
            chain[j] = arith_fma_flushed(q[0], attend_low(x[i * 2]), chain[j]);
            chain[j] = arith_fma_flushed(q[3], attend_high(x[i * 2 + 1]), chain[j]);
            chain[j] = arith_fma_flushed(q[2], attend_low(x[i * 2 + 1]), chain[j]);
        }
}

/* Computes n dot products of one token over bf16: the halves of the head are two chains, computed side by
 * side. */
SIMT_INLINE void attend_dot_bf16(const struct attend_key *k, int n, float out[2])
{
    float low[2] = {0.0f, 0.0f}, high[2] = {0.0f, 0.0f};
    uint32_t half = k->blocks * 16;
#pragma clang loop unroll(disable)
    for (uint32_t d = 0; d < half; d += 8) {
        attend_unit_bf16(k, n, d, low);
        attend_unit_bf16(k, n, half + d, high);
    }
    for (int j = 0; j < n; j++)
        out[j] = low[j] + high[j];
}

/* Adds the products of four words of int8. */
SIMT_INLINE int32_t attend_dot16(simt_u4 a, simt_u4 b)
{
    int32_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum = simt_dp4a(a[i], b[i], sum);
    return sum;
}

/* Computes n dot products of one token over q8_0. A block is two units; their exact sums are added as
 * integers. */
SIMT_INLINE void attend_dot_q8(const struct attend_key *k, int n, float out[2])
{
    for (int j = 0; j < n; j++)
        out[j] = 0.0f;
    for (uint32_t i = 0; i < k->blocks; i++) {
        simt_u4 x = *(const SIMT_SHARED simt_u4 *)(k->row + (2 * i ^ k->swizzle) * 16);
        simt_u4 y = *(const SIMT_SHARED simt_u4 *)(k->row + ((2 * i + 1) ^ k->swizzle) * 16);
        float scale = f16_to_float(k->scales[i]);
        for (int j = 0; j < n; j++) {
            const SIMT_SHARED simt_u4 *q = (const SIMT_SHARED simt_u4 *)k->q[j] + 2 * i;
            int32_t dot = attend_dot16(x, q[0]) + attend_dot16(y, q[1]);
            out[j] = __builtin_fmaf((float)dot, k->q[j][k->blocks * 8 + i] * scale, out[j]);
        }
    }
}

/* Computes the scores of the piece's tokens for all queries, n queries in one thread. */
SIMT_INLINE void attend_scores_of(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                  const struct attend_piece *p, uint32_t n_queries, int n, enum kv_type type,
                                  uint32_t blocks)
{
    SIMT_SHARED float *scores = ATTEND_AT(float, room, scores);
    const SIMT_SHARED float *queries = ATTEND_AT(const float, room, queries);
    uint32_t shift = room->piece_shift, head_dim = blocks * 32;
    uint32_t n_tasks = (n_queries + (uint32_t)n - 1) / (uint32_t)n << shift;
    struct kv_tile tile = attend_tile(room);
    for (uint32_t task = simt_thread(); task < n_tasks; task += crew->n_threads) {
        uint32_t token = task & ((1u << shift) - 1), first = (task >> shift) * (uint32_t)n;
        if (token >= p->n)
            continue;
        uint32_t second = first + 1 < n_queries ? first + 1 : first; /* an odd last query is computed twice */
        struct attend_key k = {
            .row = p->data + token * tile.row_bytes,
            .scales = (const SIMT_SHARED uint16_t *)(p->data + (tile.row_bytes << shift) +
                                                     token * tile.scale_bytes),
            .q = {queries + first * head_dim, queries + second * head_dim},
            .swizzle = kv_tile_swizzle(&tile, p->first + token),
            .blocks = blocks,
        };
        float s[2];
        if (type == KV_BF16)
            attend_dot_bf16(&k, n, s);
        else if (type == KV_Q8_0)
            attend_dot_q8(&k, n, s);
        else
            attend_dot_f16(&k, n, s);
        scores[first * KV_PAGE_TOKENS + p->first + token] = s[0];
        if (n > 1)
            scores[second * KV_PAGE_TOKENS + p->first + token] = s[1];
    }
}

/* Makes the head size a constant. For the common sizes two queries share a key, unless that leaves half of
 * the compute threads without work. */
SIMT_INLINE void attend_scores_by(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                  const struct attend_piece *p, uint32_t n_queries, enum kv_type type)
{
    uint32_t blocks = room->in.layout.head_dim / 32;
    bool both = n_queries << room->piece_shift >= crew->n_threads;
    if (blocks == 4 && both)
        attend_scores_of(crew, room, p, n_queries, 2, type, 4);
    else if (blocks == 4)
        attend_scores_of(crew, room, p, n_queries, 1, type, 4);
    else if (blocks == 2 && both)
        attend_scores_of(crew, room, p, n_queries, 2, type, 2);
    else if (blocks == 2)
        attend_scores_of(crew, room, p, n_queries, 1, type, 2);
    else if (blocks == 3)
        attend_scores_of(crew, room, p, n_queries, 1, type, 3);
    else
        attend_scores_of(crew, room, p, n_queries, 1, type, 1);
}

/* For bf16 any head size is a loop of a few turns. */
SIMT_INLINE void attend_scores_bf16(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                    const struct attend_piece *p, uint32_t n_queries)
{
    uint32_t blocks = room->in.layout.head_dim / 32;
    if (n_queries << room->piece_shift >= crew->n_threads)
        attend_scores_of(crew, room, p, n_queries, 2, KV_BF16, blocks);
    else
        attend_scores_of(crew, room, p, n_queries, 1, KV_BF16, blocks);
}

/* Any head size in a loop, a query in each thread. */
SIMT_INLINE void attend_scores_long(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                    const struct attend_piece *p, uint32_t n_queries, enum kv_type type)
{
    attend_scores_of(crew, room, p, n_queries, 1, type, room->in.layout.head_dim / 32);
}

SIMT_INLINE void attend_scores(const bool general, const struct crew *crew,
                               const SIMT_SHARED struct attend_room *room, const struct attend_piece *p,
                               uint32_t n_queries)
{
    if (room->tile.type == KV_BF16)
        attend_scores_bf16(crew, room, p, n_queries);
    else if (general && room->tile.type == KV_Q8_0)
        attend_scores_long(crew, room, p, n_queries, KV_Q8_0);
    else if (general)
        attend_scores_long(crew, room, p, n_queries, KV_F16);
    else if (room->tile.type == KV_Q8_0)
        attend_scores_by(crew, room, p, n_queries, KV_Q8_0);
    else
        attend_scores_by(crew, room, p, n_queries, KV_F16);
}

/* Number of tokens of a page up to position pos. */
SIMT_INLINE uint32_t attend_seen(uint32_t pos, uint32_t page)
{
    uint32_t start = page * KV_PAGE_TOKENS;
    if (pos < start)
        return 0;
    return pos - start < KV_PAGE_TOKENS ? pos - start + 1 : KV_PAGE_TOKENS;
}

/* First token of a page that a row at position pos sees: KV_PAGE_TOKENS or more if its window begins later.
 */
SIMT_INLINE uint32_t attend_begin(const bool general, const SIMT_SHARED struct attend_room *room,
                                  uint32_t pos, uint32_t page)
{
    uint32_t first = general ? attend_first_seen(room->in.window, pos) : 0, start = page * KV_PAGE_TOKENS;
    return first > start ? first - start : 0;
}

/* Number of tokens of a page up to the last that a row at position pos sees; 0 if it sees none. */
SIMT_INLINE uint32_t attend_end(const bool general, const SIMT_SHARED struct attend_room *room, uint32_t pos,
                                uint32_t page)
{
    return attend_begin(general, room, pos, page) < KV_PAGE_TOKENS ? attend_seen(pos, page) : 0;
}

/* Computes how the weights of lane and lane + 32 are quantised for each block of q8_0 values, by one warp.
 * step_at: where the steps begin; scales: those of the page's values; n: tokens seen. */
SIMT_INLINE void attend_weigh(SIMT_SHARED float *to, uint32_t step_at, const SIMT_GLOBAL uint16_t *scales,
                              uint32_t blocks, uint32_t n, float low, float high)
{
    uint32_t lane = simt_lane();
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < blocks; b++) {
        float s0 = lane < n ? f16_to_float(scales[lane * blocks + b]) : 0.0f;
        float s1 = lane + 32 < n ? f16_to_float(scales[(lane + 32) * blocks + b]) : 0.0f;
        uint32_t p0 = arith_to_bits(arith_weight_product(low, s0)) & 0x7fffffffu;
        uint32_t p1 = arith_to_bits(arith_weight_product(high, s1)) & 0x7fffffffu;
        uint32_t top = p0 > p1 ? p0 : p1;
        for (uint32_t x = SIMT_LANES / 2; x; x /= 2) {
            uint32_t other = simt_shfl_xor_u32(top, x);
            top = other > top ? other : top;
        }
        struct arith_weights by = arith_weights_of(top);
        if (lane == 0) {
            to[b] = by.inverse;
            to[step_at + b] = by.step;
        }
    }
}

/* The score of a token, capped if there is a cap; -inf if the query does not see it. */
SIMT_INLINE float attend_score(const bool general, const SIMT_SHARED struct attend_room *room,
                               const SIMT_SHARED float *score, bool seen)
{
    if (!seen)
        return -ARITH_INF;
    return general && room->in.cap > 0 ? arith_cap(*score, room->in.cap * ARITH_LOG2E) : *score;
}

/* Turns scores into weights, a warp per query. scales: as for attend_weigh(), or NULL. */
SIMT_INLINE void attend_soften(const bool general, const struct crew *crew,
                               const SIMT_SHARED struct attend_room *room, SIMT_SHARED float *stats,
                               uint32_t page, uint32_t n_queries, const SIMT_GLOBAL uint16_t *scales)
{
    uint32_t lane = simt_lane(), blocks = room->in.layout.head_dim / ARITH_BLOCK;
    uint32_t step_at = attend_step_blocks(general, room->in.layout.head_dim);
    for (uint32_t q = simt_warp(); q < n_queries; q += crew->n_warps) {
        SIMT_SHARED float *of = stats + q * ATTEND_QUERY_STATS;
        SIMT_SHARED float *w = ATTEND_AT(float, room, scores) + q * KV_PAGE_TOKENS + lane;
        uint32_t pos = arith_to_bits(of[ATTEND_POS]), n = attend_end(general, room, pos, page);
        uint32_t first = attend_begin(general, room, pos, page);
        float low = attend_score(general, room, w, lane < n && lane >= first);
        float high = attend_score(general, room, w + 32, lane + 32 < n && lane + 32 >= first);
        float top = low > high ? low : high, before = of[ATTEND_MAX], sum_before = of[ATTEND_SUM];
        for (uint32_t x = SIMT_LANES / 2; x; x /= 2) {
            float other = simt_shfl_xor_f32(top, x);
            top = top > other ? top : other;
        }
        if (n) {
            float max = before > top ? before : top, factor = arith_exp2(before - max);
            low = arith_exp2(low - max);
            high = arith_exp2(high - max);
            float sum = __builtin_fmaf(sum_before, factor, head_tree(low + high));
            bool round = room->tile.type == KV_BF16;
            w[0] = round ? arith_from_bf16(arith_bf16(low)) : low;
            w[32] = round ? arith_from_bf16(arith_bf16(high)) : high;
            simt_syncwarp(); /* all lanes have read what lane 0 now writes */
            if (lane == 0) {
                of[ATTEND_MAX] = max;
                of[ATTEND_SUM] = sum;
                of[ATTEND_FACTOR] = factor;
            }
        } else if (lane == 0) {
            of[ATTEND_FACTOR] = 1.0f;
        }
        if (scales)
            attend_weigh(ATTEND_AT(float, room, steps) + q * 2 * step_at, step_at, scales, blocks, n,
                         n ? low : 0.0f, n ? high : 0.0f);
    }
}

/* The deal of the weighted sums, the same for all pages of a unit: a thread keeps two neighbouring dimensions
 * of up to `per` queries. */
SIMT_INLINE uint32_t attend_per(const struct crew *crew, uint32_t head_dim, uint32_t n_queries)
{
    return n_queries * (head_dim / 2) <= crew->n_threads ? 1 : 4;
}

/* Two neighbouring values of a token. */
struct attend_value {
    const SIMT_SHARED char *data;
    const SIMT_SHARED char *scales;
    struct kv_tile tile;
    uint32_t first, unit, inside; /* token of the page; unit of its row; byte in the unit */
};

SIMT_INLINE const SIMT_SHARED char *attend_value_at(const struct attend_value *v, uint32_t token,
                                                    enum kv_type type)
{
    uint32_t unit = v->unit ^ kv_tile_swizzle(&v->tile, v->first + token);
    return v->data + token * v->tile.row_bytes + unit * kv_unit_bytes(type) + v->inside;
}

SIMT_INLINE void attend_load2(const struct attend_value *v, uint32_t token, enum kv_type type, float out[2])
{
    uint32_t h = *(const SIMT_SHARED uint32_t *)attend_value_at(v, token, type);
    out[0] = type == KV_BF16 ? attend_low(h) : f16_to_float(h);
    out[1] = type == KV_BF16 ? attend_high(h) : f16_to_float(h >> 16);
}

/* The sums of one thread. Query j has weights weights[j] (from this piece on) and sees seen[j] of its
 * tokens. */
struct attend_sums {
    const SIMT_SHARED float *weights[4];
    uint32_t seen[4];
    float o[4][2];
};

SIMT_INLINE void attend_add_token(struct attend_sums *s, const struct attend_value *v, uint32_t t,
                                  enum kv_type type, int n)
{
    float x[2];
    attend_load2(v, t, type, x);
    for (int j = 0; j < n; j++)
        if (t < s->seen[j])
            for (int i = 0; i < 2; i++)
                s->o[j][i] = __builtin_fmaf(s->weights[j][t], x[i], s->o[j][i]);
}

/* Adds tokens t and t + 1 of bf16, t even. Queries that see only t add its neighbour as zeros; token t + 1 is
 * read only if t + 1 < most. */
SIMT_INLINE void attend_add_pair(struct attend_sums *s, const struct attend_value *v, uint32_t t,
                                 uint32_t most, int n)
{
    float x[2][2] = {{0.0f}};
    attend_load2(v, t, KV_BF16, x[0]);
    if (t + 1 < most)
        attend_load2(v, t + 1, KV_BF16, x[1]);
    for (int j = 0; j < n; j++) {
        bool both = t + 1 < s->seen[j];
        float low = s->weights[j][t], high = both ? s->weights[j][t + 1] : 0.0f;
        for (int i = 0; i < 2 && t < s->seen[j]; i++) {
            s->o[j][i] = arith_fma_flushed(high, both ? x[1][i] : 0.0f, s->o[j][i]);
            s->o[j][i] = arith_fma_flushed(low, x[0][i], s->o[j][i]);
        }
    }
}

/* Adds four tokens that all queries see; of bf16 the later one of a pair first. */
SIMT_INLINE void attend_add_four(struct attend_sums *s, const struct attend_value *v, uint32_t t,
                                 enum kv_type type, int n)
{
    float x[4][2];
    for (uint32_t i = 0; i < 4; i++)
        attend_load2(v, t + i, type, x[i]);
    for (int j = 0; j < n; j++) {
        attend_f4 w = *(const SIMT_SHARED attend_f4 *)(s->weights[j] + t);
        for (int i = 0; i < 4; i++)
            for (int d = 0; d < 2; d++)
                s->o[j][d] = type == KV_BF16 ? arith_fma_flushed(w[i ^ 1], x[i ^ 1][d], s->o[j][d])
                                             : __builtin_fmaf(w[i], x[i][d], s->o[j][d]);
    }
}

/* Adds the tokens that all queries see, four at a time, then those that some see. */
SIMT_INLINE void attend_add(struct attend_sums *s, const struct attend_value *v, enum kv_type type, int n)
{
    uint32_t least = s->seen[0], most = s->seen[0], t = 0;
    for (int j = 1; j < n; j++) {
        least = s->seen[j] < least ? s->seen[j] : least;
        most = s->seen[j] > most ? s->seen[j] : most;
    }
#pragma clang loop unroll(disable)
    for (; t + 4 <= least; t += 4)
        attend_add_four(s, v, t, type, n);
    uint32_t step = type == KV_BF16 ? 2 : 1;
#pragma clang loop unroll(disable)
    for (; t < most; t += step)
        if (type == KV_BF16)
            attend_add_pair(s, v, t, most, n);
        else
            attend_add_token(s, v, t, type, n);
}

/* Adds the piece's values to the sums. `begin`: the piece begins a page, so the sums are multiplied by its
 * factor; `fresh`: the sums are 0. */
SIMT_INLINE void attend_values_of(const bool general, const struct crew *crew,
                                  const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                                  const struct attend_piece *p, uint32_t n_queries, bool begin, bool fresh,
                                  enum kv_type type, int n)
{
    uint32_t head_dim = room->in.layout.head_dim, pairs = head_dim / 2;
    uint32_t n_tasks = (n_queries + (uint32_t)n - 1) / (uint32_t)n * pairs, piece = 1u << room->piece_shift;
    for (uint32_t task = simt_thread(); task < n_tasks; task += crew->n_threads) {
        uint32_t group = task / pairs, d = task % pairs * 2;
        struct attend_value v = {.data = p->data, .tile = attend_tile(room), .first = p->first};
        v.unit = d >> kv_unit_shift(type);
        v.inside = (d & ((1u << kv_unit_shift(type)) - 1)) * 2;
        struct attend_sums s;
        SIMT_SHARED float *to[4];
        for (int j = 0; j < n; j++) {
            uint32_t q = group * (uint32_t)n + (uint32_t)j;
            q = q < n_queries
                    ? q
                    : n_queries - 1; /* the last query is computed several times, with the same result */
            const SIMT_SHARED float *of = stats + q * ATTEND_QUERY_STATS;
            uint32_t seen = attend_end(general, room, arith_to_bits(of[ATTEND_POS]), p->page);
            seen = seen > p->first ? seen - p->first : 0;
            s.seen[j] = seen < piece ? seen : piece;
            s.weights[j] = ATTEND_AT(const float, room, scores) + q * KV_PAGE_TOKENS + p->first;
            to[j] = ATTEND_AT(float, room, outs) + q * head_dim + d;
            float factor = begin ? of[ATTEND_FACTOR] : 1.0f;
            for (int i = 0; i < 2; i++)
                s.o[j][i] = (fresh ? 0.0f : to[j][i]) * factor;
        }
        attend_add(&s, &v, type, n);
        for (int j = 0; j < n; j++)
            for (int i = 0; i < 2; i++)
                to[j][i] = s.o[j][i];
    }
}

/* Adds the q8_0 values of the piece that one query sees, times its quantised weights, to integer sums. */
SIMT_INLINE void attend_add_q8(const struct attend_value *v, const SIMT_SHARED float *weights, uint32_t seen,
                               float inverse, int32_t sums[2])
{
    struct arith_weights by = {.inverse = inverse};
#pragma clang loop unroll(disable)
    for (uint32_t t = 0; t < seen; t++) {
        uint32_t x = *(const SIMT_SHARED uint16_t *)attend_value_at(v, t, KV_Q8_0);
        float scale = f16_to_float(*(const SIMT_SHARED uint16_t *)(v->scales + t * v->tile.scale_bytes));
        int32_t u = (int32_t)arith_quantise_weight(arith_weight_product(weights[t], scale), by);
        sums[0] += u * (int8_t)(x & 0xff);
        sums[1] += u * (int8_t)(x >> 8);
    }
}

/* Updates the integer sums of two dimensions of query q. The page's last piece converts them to floats. */
SIMT_INLINE void attend_query_q8(const bool general, const SIMT_SHARED struct attend_room *room,
                                 const SIMT_SHARED float *stats, const struct attend_piece *p,
                                 const struct attend_value *v, uint32_t q, uint32_t d, bool begin, bool fresh)
{
    uint32_t head_dim = room->in.layout.head_dim, block = d / ARITH_BLOCK, piece = 1u << room->piece_shift;
    const SIMT_SHARED float *of = stats + q * ATTEND_QUERY_STATS;
    uint32_t step_at = attend_step_blocks(general, head_dim);
    const SIMT_SHARED float *steps = ATTEND_AT(const float, room, steps) + q * 2 * step_at + block;
    SIMT_SHARED int32_t *kept = ATTEND_AT(int32_t, room, sums) + q * head_dim + d;
    SIMT_SHARED float *to = ATTEND_AT(float, room, outs) + q * head_dim + d;
    uint32_t seen = attend_end(general, room, arith_to_bits(of[ATTEND_POS]), p->page);
    seen = seen > p->first ? seen - p->first : 0;
    int32_t sums[2] = {begin ? 0 : kept[0], begin ? 0 : kept[1]};
    attend_add_q8(v, ATTEND_AT(const float, room, scores) + q * KV_PAGE_TOKENS + p->first,
                  seen < piece ? seen : piece, steps[0], sums);
    bool end = p->first + piece == KV_PAGE_TOKENS;
    for (int i = 0; i < 2; i++)
        if (end)
            to[i] =
                __builtin_fmaf((float)sums[i], steps[step_at], (fresh ? 0.0f : to[i]) * of[ATTEND_FACTOR]);
        else
            kept[i] = sums[i];
}

/* attend_values_of() for q8_0, query by query. */
SIMT_INLINE void attend_values_q8(const bool general, const struct crew *crew,
                                  const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                                  const struct attend_piece *p, uint32_t n_queries, bool begin, bool fresh,
                                  uint32_t per)
{
    uint32_t pairs = room->in.layout.head_dim / 2, n_tasks = (n_queries + per - 1) / per * pairs;
    for (uint32_t task = simt_thread(); task < n_tasks; task += crew->n_threads) {
        uint32_t d = task % pairs * 2, first = task / pairs * per;
        struct attend_value v = {.data = p->data, .tile = attend_tile(room), .first = p->first};
        v.unit = d >> kv_unit_shift(KV_Q8_0);
        v.inside = d & ((1u << kv_unit_shift(KV_Q8_0)) - 1);
        v.scales = p->data + (v.tile.row_bytes << room->piece_shift) + d / ARITH_BLOCK * 2;
#pragma clang loop unroll(disable)
        for (uint32_t q = first; q < first + per && q < n_queries; q++)
            attend_query_q8(general, room, stats, p, &v, q, d, begin, fresh);
    }
}

/* `first`: the page is the unit's first. */
SIMT_INLINE void attend_values(const bool general, const struct crew *crew,
                               const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                               const struct attend_piece *p, uint32_t n_queries, bool begin, bool first)
{
    uint32_t per = attend_per(crew, room->in.layout.head_dim, n_queries), type = room->tile.type;
    bool fresh = begin && first;
    if (type == KV_Q8_0)
        attend_values_q8(general, crew, room, stats, p, n_queries, begin, first, per);
    else if (type == KV_BF16 && per == 1)
        attend_values_of(general, crew, room, stats, p, n_queries, begin, fresh, KV_BF16, 1);
    else if (type == KV_BF16)
        attend_values_of(general, crew, room, stats, p, n_queries, begin, fresh, KV_BF16, 4);
    else if (per == 1)
        attend_values_of(general, crew, room, stats, p, n_queries, begin, fresh, KV_F16, 1);
    else
        attend_values_of(general, crew, room, stats, p, n_queries, begin, fresh, KV_F16, 4);
}
