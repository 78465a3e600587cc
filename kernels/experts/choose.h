/* choose.h - the choice of experts of one row, by one warp: route_row() and route_factors() of abi/route.h
 * with the experts dealt to the lanes. Lane l has experts l, l + 32, ...: so its sum of probabilities is the
 * lane's chain of arith.h, and everything stays in registers.
 *
 *   logits, bias, factors  [n_experts] f32; the last two may be absent (0)
 *   out                    [2 n_used] f32: numbers ascending, then weights; in global or in shared memory
 *
 * The best of equals is the one of the lowest number. A NaN wins only if it is the first of those that may
 * still be chosen, as in route_best(). Rows without one take n_used times 35 instructions with up to 128
 * experts, 63 with up to 256, and two dependent reductions each; others, and those of more experts, 111, 163
 * and 269, and ten dependent shuffles. Must match abi/route.h in every bit: tests/simt/nodes.c.
 *
 * Thread: all lanes of one warp. */
#pragma once
#include "abi/route.h"
#include "device/simt.h"

#define CHOOSE_SLOTS (ROUTE_MAX_EXPERTS / SIMT_LANES) /* experts of a lane, at most */
#define CHOOSE_FEW   4 /* those of up to 128 experts, which have code of their own, */
#define CHOOSE_SOME  8 /* and of up to 256 */
#define CHOOSE_NONE  UINT32_MAX

/* Returns the lowest number of those whose bit is set in `open`, by lane and slot. */
SIMT_INLINE uint32_t choose_first(const uint32_t slots, uint32_t open)
{
    uint32_t first = CHOOSE_NONE;
#pragma unroll
    for (uint32_t j = slots; j-- > 0;)
        first = open >> j & 1 ? j * SIMT_LANES + simt_lane() : first;
    for (uint32_t mask = SIMT_LANES / 2; mask; mask /= 2) {
        uint32_t other = simt_shfl_xor_u32(first, mask);
        first = other < first ? other : first;
    }
    return first;
}

/* Returns the value of number `at`, to all lanes. */
SIMT_INLINE float choose_value(const uint32_t slots, const float v[CHOOSE_SLOTS], uint32_t at)
{
    float mine = v[0];
#pragma unroll
    for (uint32_t j = 1; j < slots; j++)
        mine = at / SIMT_LANES == j ? v[j] : mine;
    return simt_shfl_f32(mine, at % SIMT_LANES);
}

/* A value that is no NaN as a number of the same order, above 0. Both zeros are one, as where floats are
 * compared. */
SIMT_INLINE uint32_t choose_ranked(float v)
{
    uint32_t bits = arith_to_bits(v + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Returns the number of the best open value: route_best(). */
SIMT_INLINE uint32_t choose_best(const uint32_t slots, const float v[CHOOSE_SLOTS], uint32_t open)
{
    uint32_t at = CHOOSE_NONE;
    float top = 0;
    bool odd = false;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        bool is_open = open >> j & 1, is_nan = v[j] != v[j];
        odd = odd || (is_open && is_nan);
        if (is_open && !is_nan && (at == CHOOSE_NONE || v[j] > top)) {
            top = v[j];
            at = j * SIMT_LANES + simt_lane();
        }
    }
    for (uint32_t mask = SIMT_LANES / 2; mask; mask /= 2) {
        float other = simt_shfl_xor_f32(top, mask);
        uint32_t from = simt_shfl_xor_u32(at, mask);
        bool better = at == CHOOSE_NONE || other > top || (other == top && from < at);
        if (from != CHOOSE_NONE && better) {
            top = other;
            at = from;
        }
    }
    if (!simt_ballot(odd))
        return at;
    uint32_t first = choose_first(slots, open);
    float value = choose_value(slots, v, first);
    return value != value ? first : at;
}

/* True if an open value is a NaN. */
SIMT_INLINE bool choose_is_odd(const uint32_t slots, const float v[CHOOSE_SLOTS], uint32_t open)
{
    bool odd = false;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++)
        odd = odd || ((open >> j & 1) && v[j] != v[j]);
    return simt_ballot(odd) != 0;
}

/* Returns the bits of the n best of the open values, of which none is a NaN: as choose_one_by_one() in a
 * third of its time, since a rank that is gone is 0, and no float or bit is looked at. */
SIMT_INLINE uint32_t choose_best_of(const uint32_t slots, const float v[CHOOSE_SLOTS], uint32_t open,
                                    uint32_t n)
{
    uint32_t rank[CHOOSE_SLOTS], chosen = 0;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++)
        rank[j] = open >> j & 1 ? choose_ranked(v[j]) : 0;
    SIMT_SMALL_LOOP
    for (; n > 0; n--) {
        uint32_t top = rank[0], at = CHOOSE_NONE;
#pragma unroll
        for (uint32_t j = 1; j < slots; j++)
            top = rank[j] > top ? rank[j] : top;
        top = simt_redux_max_u32(top);
#pragma unroll
        for (uint32_t j = slots; j-- > 0;)
            at = rank[j] == top ? j * SIMT_LANES + simt_lane() : at;
        at = simt_redux_min_u32(at);
#pragma unroll
        for (uint32_t j = 0; j < slots; j++) {
            bool is = at == j * SIMT_LANES + simt_lane();
            rank[j] = is ? 0 : rank[j];
            chosen |= is ? 1u << j : 0;
        }
    }
    return chosen;
}

/* The bits of the experts [first, first + n) among those of this lane. */
SIMT_INLINE uint32_t choose_range(const uint32_t slots, uint32_t first, uint32_t n)
{
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        uint32_t e = j * SIMT_LANES + simt_lane();
        bits |= e >= first && e - first < n ? 1u << j : 0;
    }
    return bits;
}

/* Clears the bit of number `at` in its lane. */
SIMT_INLINE uint32_t choose_without(uint32_t bits, uint32_t at)
{
    return at % SIMT_LANES == simt_lane() ? bits & ~(1u << at / SIMT_LANES) : bits;
}

/* Returns the bits of the n best of the open values, of which some may be NaNs. */
SIMT_INLINE uint32_t choose_one_by_one(const uint32_t slots, const float v[CHOOSE_SLOTS], uint32_t open,
                                       uint32_t n)
{
    uint32_t chosen = 0;
    SIMT_SMALL_LOOP
    for (; n > 0; n--) {
        uint32_t before = open;
        open = choose_without(open, choose_best(slots, v, open));
        chosen |= before & ~open;
    }
    return chosen;
}

/* The experts of the groups that are kept: route_drop_groups(). */
SIMT_INLINE uint32_t choose_groups(const uint32_t slots, const struct route_rule *r,
                                   const float v[CHOOSE_SLOTS])
{
    uint32_t n_groups = r->n_groups, size = r->n_experts / n_groups, kept = 0;
    uint32_t open = choose_range(slots, 0, n_groups);
    float score[CHOOSE_SLOTS];
#pragma unroll
    for (uint32_t j = 0; j < slots; j++)
        score[j] = 0;
    SIMT_SMALL_LOOP
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t group = choose_range(slots, g * size, size), best = choose_best(slots, v, group);
        float sum = choose_value(slots, v, best);
        if (size > 1)
            sum = sum + choose_value(slots, v, choose_best(slots, v, choose_without(group, best)));
#pragma unroll
        for (uint32_t j = 0; j < slots; j++)
            score[j] = j * SIMT_LANES + simt_lane() == g ? sum : score[j];
    }
    SIMT_SMALL_LOOP
    for (uint32_t i = 0, n = r->n_groups_used; i < n; i++) {
        uint32_t best = choose_best(slots, score, open);
        open = choose_without(open, best);
        kept |= choose_range(slots, best * size, size);
    }
    return kept;
}

/* The sum of p over the chosen, ascending. */
SIMT_INLINE float choose_sum(const uint32_t slots, const float p[CHOOSE_SLOTS], uint32_t chosen)
{
    float sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        uint32_t bits = simt_ballot(chosen >> j & 1);
        SIMT_SMALL_LOOP
        for (; bits; bits &= bits - 1)
            sum = sum + simt_shfl_f32(p[j], (uint32_t)__builtin_ctz(bits));
    }
    return sum;
}

/* The choice: `near`, or `far` if that is NULL. */
struct choose_out {
    SIMT_GLOBAL float *far;
    SIMT_SHARED float *near;
};

SIMT_INLINE void choose_put(const struct choose_out *out, uint32_t at, float value)
{
    if (out->near)
        out->near[at] = value;
    else
        out->far[at] = value;
}

/* Writes the chosen ones' numbers and weights. */
SIMT_INLINE void choose_write(const uint32_t slots, const struct route_rule *r, const float p[CHOOSE_SLOTS],
                              uint32_t chosen, float total, const SIMT_GLOBAL float *factors,
                              const struct choose_out *out)
{
    uint32_t lane = simt_lane(), n_used = r->n_used, base = 0;
    float scale = r->scale;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        uint32_t bits = simt_ballot(chosen >> j & 1), e = j * SIMT_LANES + lane;
        uint32_t at = base + (uint32_t)__builtin_popcount(bits & ((1u << lane) - 1));
        if (bits >> lane & 1) {
            float weight = p[j] / total * scale;
            choose_put(out, at, (float)e);
            choose_put(out, n_used + at, factors ? weight * factors[e] : weight);
        }
        base += (uint32_t)__builtin_popcount(bits);
    }
}

/* Sets every expert's probability, not yet divided by the sum, which is returned: route_probabilities(). */
SIMT_INLINE float choose_probabilities(const uint32_t slots, bool sigmoid, const float z[CHOOSE_SLOTS],
                                       uint32_t exist, float p[CHOOSE_SLOTS])
{
    float top = choose_value(slots, z, choose_best(slots, z, exist)), sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        p[j] = sigmoid ? arith_sigmoid(z[j]) : arith_exp2((z[j] - top) * ARITH_LOG2E);
        sum = exist >> j & 1 ? sum + p[j] : sum;
    }
    for (uint32_t mask = ARITH_LANES / 2; mask; mask /= 2)
        sum = sum + simt_shfl_xor_f32(sum, mask);
    return sigmoid ? 1.0f : sum;
}

SIMT_INLINE void choose_row_of(const uint32_t slots, const struct route_rule *r,
                               const SIMT_GLOBAL float *logits, const SIMT_GLOBAL float *bias,
                               const SIMT_GLOBAL float *factors, const struct choose_out *out)
{
    uint32_t exist = choose_range(slots, 0, r->n_experts), chosen;
    bool sigmoid = r->gating == ROUTE_SIGMOID, by_logits = !bias && r->n_groups == 1;
    float p[CHOOSE_SLOTS], v[CHOOSE_SLOTS];
#pragma unroll
    for (uint32_t j = 0; j < slots; j++)
        v[j] = exist >> j & 1 ? logits[j * SIMT_LANES + simt_lane()] : 0.0f;
    float total = choose_probabilities(slots, sigmoid, v, exist, p);
#pragma unroll
    for (uint32_t j = 0; j < slots; j++) {
        float share = p[j] / total, more = bias && exist >> j & 1 ? bias[j * SIMT_LANES + simt_lane()] : 0;
        v[j] = by_logits ? v[j] : bias ? share + more : share;
    }
    uint32_t open = r->n_groups > 1 ? choose_groups(slots, r, v) : exist;
    if (slots > CHOOSE_SOME || choose_is_odd(slots, v, open)) /* most slots: ranks would spill on sm_120 */
        chosen = choose_one_by_one(slots, v, open, r->n_used);
    else
        chosen = choose_best_of(slots, v, open, r->n_used);
    if (r->normalise) {
        float sum = choose_sum(slots, p, chosen);
        total = sigmoid && sum < 0x1p-14f ? 0x1p-14f : sum;
    }
    choose_write(slots, r, p, chosen, total, factors, out);
}

SIMT_INLINE void choose_row(const struct route_rule *r, const SIMT_GLOBAL float *logits,
                            const SIMT_GLOBAL float *bias, const SIMT_GLOBAL float *factors,
                            const struct choose_out *out)
{
    if (r->n_experts <= CHOOSE_FEW * SIMT_LANES)
        choose_row_of(CHOOSE_FEW, r, logits, bias, factors, out);
    else if (r->n_experts <= CHOOSE_SOME * SIMT_LANES)
        choose_row_of(CHOOSE_SOME, r, logits, bias, factors, out);
    else
        choose_row_of(CHOOSE_SLOTS, r, logits, bias, factors, out);
}
