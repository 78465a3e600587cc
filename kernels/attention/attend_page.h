/* attend_page.h - one page against a few queries: scores, weights, the weighted sum. Over f16 the lanes of
 * arith.h's dot product are the accumulators of four threads. Thread: all compute threads of a block,
 * together; each phase deals its work over them, and a crew_sync lies between two phases. */
#pragma once
#include "attend_room.h"
#include "device/f16.h"
#include "attend_head.h"

/* The piece of keys or values that a phase works on. */
struct attend_piece {
    const SIMT_SHARED char *data; /* rows of the piece's tokens, then their scales */
    uint32_t first, n; /* tokens of the page: its first one; how many from there on a query may see */
    uint32_t page;     /* index in the sequence */
};

/* A token's key and the queries that a thread multiplies by it. */
struct attend_key {
    const SIMT_SHARED char *row;
    const SIMT_SHARED uint16_t *scales;
    const SIMT_SHARED float *q[4]; /* as attend_put_query() stores them */
    uint32_t swizzle, blocks;
};

/* --- over f16: four threads share a key --- */

#define ATTEND_SHARERS 4

/* Four neighbouring lanes of the dot products of up to four queries. */
struct attend_lanes {
    float v[4][4];
};

SIMT_INLINE void attend_lanes_add(struct attend_lanes *a, const struct attend_lanes *b, int n)
{
    for (int j = 0; j < n; j++)
        for (int l = 0; l < 4; l++)
            a->v[j][l] = a->v[j][l] + b->v[j][l];
}

/* Adds block i to lanes 4 * part to 4 * part + 3 of n dot products. */
SIMT_INLINE void attend_fold(struct attend_lanes *to, const struct attend_key *k, int n, uint32_t part,
                             uint32_t i)
{
    attend_u2 unit = *(const SIMT_SHARED attend_u2 *)(k->row + ((i * 8 + part) ^ k->swizzle) * 8);
    float x[4] = {f16_to_float(unit[0] & 0xffffu), f16_to_float(unit[0] >> 16),
                  f16_to_float(unit[1] & 0xffffu), f16_to_float(unit[1] >> 16)};
    for (int j = 0; j < n; j++) {
        attend_f4 q = *(const SIMT_SHARED attend_f4 *)(k->q[j] + i * 32 + part * 4);
        for (int l = 0; l < 4; l++)
            to->v[j][l] = __builtin_fmaf(q[l], x[l], to->v[j][l]);
    }
}

/* Computes these lanes. `constant`: the number of blocks is a constant, and the loop is unrolled. */
SIMT_INLINE struct attend_lanes attend_part(const struct attend_key *k, int n, uint32_t part,
                                            const bool constant)
{
    struct attend_lanes to = {{{0.0f}}};
    if (constant) {
#pragma unroll
        for (uint32_t i = 0; i < k->blocks; i++)
            attend_fold(&to, k, n, part, i);
        return to;
    }
#pragma clang loop unroll(disable)
    for (uint32_t i = 0; i < k->blocks; i++)
        attend_fold(&to, k, n, part, i);
    return to;
}

/* Computes n dot products of one token, n 2 or 4, by the four threads of a key; `sharer`: which of them
 * calls. Lanes 16 apart meet in one thread. Then two threads exchange their lanes, 8 and then 4 apart; while
 * there are several queries, each of the two goes on with half of them. Returns the product of query sharer *
 * n / 4. */
SIMT_INLINE float attend_dot_f16(const struct attend_key *k, int n, uint32_t sharer, const bool constant)
{
    struct attend_lanes a = attend_part(k, n, sharer, constant);
    struct attend_lanes b = attend_part(k, n, simt_opaque(sharer + ATTEND_SHARERS), constant);
    attend_lanes_add(&a, &b, n);
    for (uint32_t x = ATTEND_SHARERS / 2; x; x /= 2) {
        bool upper = (sharer & x) != 0;
        if (n == 1) {
            for (int l = 0; l < 4; l++)
                a.v[0][l] = a.v[0][l] + simt_shfl_xor_f32(a.v[0][l], x);
            continue;
        }
        n /= 2;
        for (int j = 0; j < n; j++)
            for (int l = 0; l < 4; l++) {
                float keep = upper ? a.v[j + n][l] : a.v[j][l], give = upper ? a.v[j][l] : a.v[j + n][l];
                a.v[j][l] = keep + simt_shfl_xor_f32(give, x);
            }
    }
    return (a.v[0][0] + a.v[0][2]) + (a.v[0][1] + a.v[0][3]);
}

/* Computes the scores of the piece's tokens for all queries, n queries of a token by four neighbouring
 * threads. The tokens of a half warp differ in bits 2 and 3, in which the swizzle then differs and the
 * sharers' units do not, so that their reads fall into different banks. */
SIMT_INLINE void attend_scores_f16(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                   const struct attend_piece *p, uint32_t n_queries, int n, uint32_t blocks,
                                   const bool constant)
{
    SIMT_SHARED float *scores = ATTEND_AT(float, room, scores);
    const SIMT_SHARED float *queries = ATTEND_AT(const float, room, queries);
    uint32_t shift = room->piece_shift, head_dim = blocks * 32;
    uint32_t n_tasks = (n_queries + (uint32_t)n - 1) / (uint32_t)n * ATTEND_SHARERS << shift;
    struct kv_tile tile = attend_tile(room);
    if (p->n == 0)
        return;
    for (uint32_t task = simt_thread(); task < n_tasks; task += crew->n_threads) {
        uint32_t sharer = task % ATTEND_SHARERS, i = task / ATTEND_SHARERS & ((1u << shift) - 1);
        uint32_t token = (i << 2 | i >> (shift - 2)) & ((1u << shift) - 1);
        uint32_t first = (task / ATTEND_SHARERS >> shift) * (uint32_t)n;
        uint32_t read = token < p->n ? token : p->n - 1; /* the lanes of a warp stay together */
        struct attend_key k = {
            .row = p->data + read * tile.row_bytes,
            .swizzle = kv_tile_swizzle(&tile, p->first + read),
            .blocks = blocks,
        };
        for (int j = 0; j < n; j++) {
            uint32_t q = first + (uint32_t)j;
            k.q[j] = queries + (q < n_queries ? q : n_queries - 1) * head_dim;
        }
        float s = attend_dot_f16(&k, n, sharer, constant);
        uint32_t q = first + sharer * (uint32_t)n / ATTEND_SHARERS;
        if (token < p->n && q < n_queries && (n == 4 || sharer % 2 == 0))
            scores[q * KV_PAGE_TOKENS + p->first + token] = s;
    }
}

/* Makes a common head size a constant. With others a thread keeps two queries: four spill in the decoder on
 * sm_120. */
SIMT_INLINE void attend_scores_f16_by(const bool general, const struct crew *crew,
                                      const SIMT_SHARED struct attend_room *room,
                                      const struct attend_piece *p, uint32_t n_queries)
{
    uint32_t blocks = room->in.layout.head_dim / 32;
    if (!general && blocks == 4 && n_queries > 2)
        attend_scores_f16(crew, room, p, n_queries, 4, 4, true);
    else if (!general && blocks == 4)
        attend_scores_f16(crew, room, p, n_queries, 2, 4, true);
    else if (!general && blocks == 2 && n_queries > 2)
        attend_scores_f16(crew, room, p, n_queries, 4, 2, true);
    else
        attend_scores_f16(crew, room, p, n_queries, 2, blocks, false);
}

/* --- over bf16 and q8_0: a thread takes a key --- */

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
        else
            attend_dot_q8(&k, n, s);
        scores[first * KV_PAGE_TOKENS + p->first + token] = s[0];
        if (n > 1)
            scores[second * KV_PAGE_TOKENS + p->first + token] = s[1];
    }
}

/* Two queries share a key, unless that leaves half of the compute threads without work. */
SIMT_INLINE void attend_scores_by(const struct crew *crew, const SIMT_SHARED struct attend_room *room,
                                  const struct attend_piece *p, uint32_t n_queries, enum kv_type type)
{
    uint32_t blocks = room->in.layout.head_dim / 32;
    if (n_queries << room->piece_shift >= crew->n_threads)
        attend_scores_of(crew, room, p, n_queries, 2, type, blocks);
    else
        attend_scores_of(crew, room, p, n_queries, 1, type, blocks);
}

SIMT_INLINE void attend_scores(const bool general, const struct crew *crew,
                               const SIMT_SHARED struct attend_room *room, const struct attend_piece *p,
                               uint32_t n_queries)
{
    if (room->tile.type == KV_BF16)
        attend_scores_by(crew, room, p, n_queries, KV_BF16);
    else if (room->tile.type == KV_Q8_0)
        attend_scores_by(crew, room, p, n_queries, KV_Q8_0);
    else
        attend_scores_f16_by(general, crew, room, p, n_queries);
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

/* Stores a token's weight for a block of q8_0 values: an 8-byte group of `codes` has the upper seven bits of
 * four tokens' weights, then the lower ones. */
SIMT_INLINE void attend_put_code(SIMT_SHARED int8_t *codes, uint32_t token, uint32_t u)
{
    SIMT_SHARED int8_t *to = codes + token / 4 * 8 + token % 4;
    to[0] = (int8_t)(u >> 7);
    to[4] = (int8_t)(u & 127);
}

/* Quantises the weights of lane and lane + 32 for each block of q8_0 values, by one warp, into steps and
 * codes (attend_room.h). scales: those of the page's values; n: tokens seen. */
SIMT_INLINE void attend_weigh(SIMT_SHARED float *steps, SIMT_SHARED int8_t *codes,
                              const SIMT_GLOBAL uint16_t *scales, uint32_t blocks, uint32_t n, float low,
                              float high)
{
    uint32_t lane = simt_lane();
#pragma clang loop unroll(disable)
    for (uint32_t b = 0; b < blocks; b++) {
        float s0 = lane < n ? f16_to_float(scales[lane * blocks + b]) : 0.0f;
        float s1 = lane + 32 < n ? f16_to_float(scales[(lane + 32) * blocks + b]) : 0.0f;
        float x0 = arith_weight_product(low, s0), x1 = arith_weight_product(high, s1);
        uint32_t p0 = arith_to_bits(x0) & 0x7fffffffu, p1 = arith_to_bits(x1) & 0x7fffffffu;
        uint32_t top = p0 > p1 ? p0 : p1;
        for (uint32_t x = SIMT_LANES / 2; x; x /= 2) {
            uint32_t other = simt_shfl_xor_u32(top, x);
            top = other > top ? other : top;
        }
        struct arith_weights by = arith_weights_of(top);
        attend_put_code(codes + b * ATTEND_CODE_BYTES, lane, arith_quantise_weight(x0, by));
        attend_put_code(codes + b * ATTEND_CODE_BYTES, lane + 32, arith_quantise_weight(x1, by));
        if (lane == 0)
            steps[b] = by.step;
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
    uint32_t step_blocks = attend_step_blocks(general, room->in.layout.head_dim);
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
            float sum = __builtin_fmaf(sum_before, factor, lanes_sum(low + high));
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
            attend_weigh(ATTEND_AT(float, room, steps) + q * step_blocks,
                         ATTEND_AT(int8_t, room, codes) + q * blocks * ATTEND_CODE_BYTES, scales, blocks, n,
                         n ? low : 0.0f, n ? high : 0.0f);
    }
}

/* The deal of the weighted sums, the same for all pages of a unit: a thread keeps `wide` neighbouring
 * dimensions of up to `per` queries, as many as leave a warp for each scheduler of an SM. */
struct attend_deal {
    uint32_t wide, per, per_query, n_tasks; /* per_query: threads that share a query */
};
#define ATTEND_FEW_TASKS (4 * SIMT_LANES)

SIMT_INLINE struct attend_deal attend_deal_of(const SIMT_SHARED struct attend_room *room, uint32_t n_queries)
{
    struct attend_deal d = {.wide = room->tile.type == KV_Q8_0 ? 4 : 2};
    d.per_query = room->in.layout.head_dim / d.wide;
    uint32_t all = n_queries * d.per_query;
    d.per = all <= ATTEND_FEW_TASKS ? 1 : all <= 2 * ATTEND_FEW_TASKS ? 2 : 4;
    d.n_tasks = (n_queries + d.per - 1) / d.per * d.per_query;
    return d;
}

/* Neighbouring values of the piece's tokens. */
struct attend_value {
    const SIMT_SHARED char *data;
    struct kv_tile tile;
    uint32_t first;    /* token of the page */
    uint32_t place[4]; /* byte in the row of a token whose number is i */
};

/* The swizzle goes bit by bit: that of token t + i, t a multiple of four, is that of t with that of i, which
 * stays the same in a loop over t. */
SIMT_INLINE struct attend_value attend_value_of(const SIMT_SHARED struct attend_room *room,
                                                const struct attend_piece *p, uint32_t d, enum kv_type type)
{
    struct attend_value v = {.data = p->data, .tile = attend_tile(room), .first = p->first};
    uint32_t shift = kv_unit_shift(type), bytes = kv_unit_bytes(type);
    uint32_t place = (d >> shift) * bytes + (d & ((1u << shift) - 1)) * (bytes >> shift);
    for (uint32_t i = 0; i < 4; i++)
        v.place[i] = simt_opaque(place ^ kv_tile_swizzle(&v.tile, i) * bytes);
    return v;
}

/* Address of token t + i's values. */
SIMT_INLINE const SIMT_SHARED char *attend_value_at(const struct attend_value *v, uint32_t t, uint32_t i,
                                                    enum kv_type type)
{
    uint32_t turn = kv_tile_swizzle(&v->tile, v->first + t) * kv_unit_bytes(type);
    return v->data + t * v->tile.row_bytes + i * v->tile.row_bytes + (v->place[i] ^ turn);
}

SIMT_INLINE void attend_load2(const struct attend_value *v, uint32_t t, uint32_t i, enum kv_type type,
                              float out[2])
{
    uint32_t h = *(const SIMT_SHARED uint32_t *)attend_value_at(v, t, i, type);
    out[0] = type == KV_BF16 ? attend_low(h) : f16_to_float(h & 0xffffu);
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
    attend_load2(v, t, 0, type, x);
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
    attend_load2(v, t, 0, KV_BF16, x[0]);
    if (t + 1 < most)
        attend_load2(v, t, 1, KV_BF16, x[1]);
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
        attend_load2(v, t, i, type, x[i]);
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
    uint32_t head_dim = room->in.layout.head_dim, piece = 1u << room->piece_shift;
    struct attend_deal deal = attend_deal_of(room, n_queries);
    for (uint32_t task = simt_thread(); task < deal.n_tasks; task += crew->n_threads) {
        uint32_t group = task / deal.per_query, d = task % deal.per_query * 2;
        struct attend_value v = attend_value_of(room, p, d, type);
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

/* Moves byte i of each of four words into word i. */
SIMT_INLINE void attend_transpose(uint32_t w[4])
{
    uint32_t a = simt_permute(w[0], w[1], 0x5140), b = simt_permute(w[2], w[3], 0x5140);
    uint32_t c = simt_permute(w[0], w[1], 0x7362), d = simt_permute(w[2], w[3], 0x7362);
    w[0] = simt_permute(a, b, 0x5410);
    w[1] = simt_permute(a, b, 0x7632);
    w[2] = simt_permute(c, d, 0x5410);
    w[3] = simt_permute(c, d, 0x7632);
}

/* Integer sums of four dimensions of up to four queries: those of the weights' upper seven bits, and of the
 * lower ones. */
struct attend_sums_q8 {
    const SIMT_SHARED char *codes[4]; /* of the block, from the piece's first token on */
    int32_t high[4][4], low[4][4];
};

/* Adds the piece's q8_0 values, four tokens at a time. A query's weight of a token that it does not see is 0.
 */
SIMT_INLINE void attend_add_q8(struct attend_sums_q8 *s, const struct attend_value *v, uint32_t n_tokens,
                               int n)
{
#pragma clang loop unroll(disable)
    for (uint32_t t = 0; t < n_tokens; t += 4) {
        const SIMT_SHARED char *at = attend_value_at(v, t, 0, KV_Q8_0);
        uint32_t x[4] = {*(const SIMT_SHARED uint32_t *)at};
#pragma unroll
        for (uint32_t i = 1; i < 4; i++) { /* where no token is stored, it reads the first one again */
            const SIMT_SHARED char *own = attend_value_at(v, t, i, KV_Q8_0);
            x[i] = *(const SIMT_SHARED uint32_t *)(t + i < n_tokens ? own : at);
        }
        attend_transpose(x);
#pragma unroll
        for (int j = 0; j < n; j++) {
            attend_u2 w = *(const SIMT_SHARED attend_u2 *)(s->codes[j] + t * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s->high[j][i] = simt_dp4a(x[i], w[0], s->high[j][i]);
                s->low[j][i] = simt_dp4a(x[i], w[1], s->low[j][i]);
            }
        }
    }
}

/* Updates four dimensions of query q by a piece's integer sums. The page's last piece converts them to
 * floats. */
SIMT_INLINE void attend_keep_q8(const bool general, const SIMT_SHARED struct attend_room *room,
                                const SIMT_SHARED float *of, const int32_t sums[4], uint32_t q, uint32_t d,
                                bool begin, bool end, bool fresh)
{
    uint32_t head_dim = room->in.layout.head_dim;
    SIMT_SHARED int32_t *kept = ATTEND_AT(int32_t, room, sums) + q * head_dim + d;
    SIMT_SHARED float *to = ATTEND_AT(float, room, outs) + q * head_dim + d;
    float step =
        ATTEND_AT(const float, room, steps)[q * attend_step_blocks(general, head_dim) + d / ARITH_BLOCK];
    for (int i = 0; i < 4; i++) {
        int32_t sum = sums[i] + (begin ? 0 : kept[i]);
        if (end)
            to[i] = __builtin_fmaf((float)sum, step, (fresh ? 0.0f : to[i]) * of[ATTEND_FACTOR]);
        else
            kept[i] = sum;
    }
}

/* attend_values_of() for q8_0. */
SIMT_INLINE void attend_values_q8(const bool general, const struct crew *crew,
                                  const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                                  const struct attend_piece *p, uint32_t n_queries, bool begin, bool fresh,
                                  int n)
{
    struct attend_deal deal = attend_deal_of(room, n_queries);
    uint32_t code_bytes = room->in.layout.head_dim / ARITH_BLOCK * ATTEND_CODE_BYTES;
    uint32_t piece = 1u << room->piece_shift, n_tokens = p->n < piece ? p->n : piece;
    bool end = p->first + piece == KV_PAGE_TOKENS;
    for (uint32_t task = simt_thread(); task < deal.n_tasks; task += crew->n_threads) {
        uint32_t d = task % deal.per_query * 4, first = task / deal.per_query * (uint32_t)n;
        struct attend_value v = attend_value_of(room, p, d, KV_Q8_0);
        struct attend_sums_q8 s = {.high = {{0}}};
#pragma unroll
        for (int j = 0; j < n; j++) {
            uint32_t q = first + (uint32_t)j < n_queries ? first + (uint32_t)j : n_queries - 1;
            s.codes[j] = ATTEND_AT(const char, room, codes) + q * code_bytes +
                         d / ARITH_BLOCK * ATTEND_CODE_BYTES + p->first * 2;
        }
        attend_add_q8(&s, &v, n_tokens, n);
#pragma unroll
        for (int j = 0; j < n; j++) {
            uint32_t q = first + (uint32_t)j;
            int32_t sums[4];
            for (int i = 0; i < 4; i++)
                sums[i] = s.high[j][i] * 128 + s.low[j][i];
            if (q < n_queries)
                attend_keep_q8(general, room, stats + q * ATTEND_QUERY_STATS, sums, q, d, begin, end, fresh);
        }
    }
}

/* attend_values() with a constant type. */
SIMT_INLINE void attend_values_by(const bool general, const struct crew *crew,
                                  const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                                  const struct attend_piece *p, uint32_t n_queries, bool begin, bool fresh,
                                  enum kv_type type, int n)
{
    if (type == KV_Q8_0)
        attend_values_q8(general, crew, room, stats, p, n_queries, begin, fresh, n);
    else
        attend_values_of(general, crew, room, stats, p, n_queries, begin, begin && fresh, type, n);
}

/* `first`: the page is the unit's first. */
SIMT_INLINE void attend_values(const bool general, const struct crew *crew,
                               const SIMT_SHARED struct attend_room *room, const SIMT_SHARED float *stats,
                               const struct attend_piece *p, uint32_t n_queries, bool begin, bool first)
{
    static const enum kv_type types[] = {KV_F16, KV_BF16, KV_Q8_0};
    uint32_t per = attend_deal_of(room, n_queries).per, type = room->tile.type;
#pragma unroll
    for (uint32_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (type != types[i])
            continue;
        if (per == 1)
            attend_values_by(general, crew, room, stats, p, n_queries, begin, first, types[i], 1);
        else if (per == 2)
            attend_values_by(general, crew, room, stats, p, n_queries, begin, first, types[i], 2);
        else
            attend_values_by(general, crew, room, stats, p, n_queries, begin, first, types[i], 4);
    }
}
