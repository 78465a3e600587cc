/* route.h - the choice of experts: which of them compute a row, and with what weights (arith.h, EXPERTS).
 * The host and devices compile the same functions. Thread: any; pure. Memory: the caller's. */
#pragma once
#include "arith.h"

#define ROUTE_MAX_EXPERTS 512
#define ROUTE_MAX_USED    32

enum route_gating { ROUTE_SOFTMAX = 1, ROUTE_SIGMOID = 2 }; /* the values of the key expert_gating_func */

struct route_rule {
    uint16_t n_experts, n_used;       /* n_used of n_experts compute a row */
    uint16_t n_groups, n_groups_used; /* n_groups divides n_experts; 1 of 1: no groups */
    uint16_t gating;                  /* enum route_gating */
    uint16_t normalise;               /* 1: the weights of the chosen ones add up to 1 before `scale` */
    float scale;
};

struct route_set { /* a set of experts */
    uint32_t bits[ROUTE_MAX_EXPERTS / 32];
};

static inline bool route_has(const struct route_set *s, uint32_t e)
{
    return s->bits[e / 32] >> e % 32 & 1;
}

static inline void route_put(struct route_set *s, uint32_t e)
{
    s->bits[e / 32] |= 1u << e % 32;
}

/* Returns the expert of [first, last) with the largest value that is not in `out`: the lowest of equals. */
static inline uint32_t route_best(const float *value, const struct route_set *out, uint32_t first,
                                  uint32_t last)
{
    uint32_t best = last;
    for (uint32_t e = first; e < last; e++)
        if (!route_has(out, e) && (best == last || value[e] > value[best]))
            best = e;
    return best;
}

/* Returns the sum of the two largest values of a group. */
static inline float route_group_score(const float *value, uint32_t first, uint32_t n)
{
    struct route_set out = {{0}};
    uint32_t best = route_best(value, &out, first, first + n);
    route_put(&out, best);
    return n > 1 ? value[best] + value[route_best(value, &out, first, first + n)] : value[best];
}

/* Puts the experts of all groups that are not kept into `out`. */
static inline void route_drop_groups(const struct route_rule *r, const float *value, struct route_set *out)
{
    uint32_t size = r->n_experts / r->n_groups;
    float score[ROUTE_MAX_EXPERTS];
    struct route_set kept = {{0}};
    for (uint32_t g = 0; g < r->n_groups; g++)
        score[g] = route_group_score(value, g * size, size);
    for (uint32_t i = 0; i < r->n_groups_used; i++)
        route_put(&kept, route_best(score, &kept, 0, r->n_groups));
    for (uint32_t e = 0; e < r->n_experts; e++)
        if (!route_has(&kept, e / size))
            route_put(out, e);
}

/* Sums x[i], i < n, over lanes. */
static inline float route_sum(const float *x, uint32_t n)
{
    float v[ARITH_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        v[i % ARITH_LANES] = v[i % ARITH_LANES] + x[i];
    return arith_tree(v);
}

/* Writes every expert's probability to p; softmax: not yet divided by the sum, which is returned (1 of a
 * sigmoid). */
static inline float route_probabilities(const struct route_rule *r, const float *logits, float *p)
{
    float top = logits[0];
    for (uint32_t e = 1; e < r->n_experts; e++)
        top = logits[e] > top ? logits[e] : top;
    for (uint32_t e = 0; e < r->n_experts; e++)
        p[e] = r->gating == ROUTE_SIGMOID ? arith_sigmoid(logits[e])
                                          : arith_exp2((logits[e] - top) * ARITH_LOG2E);
    return r->gating == ROUTE_SIGMOID ? 1.0f : route_sum(p, r->n_experts);
}

/* Chooses the experts of a row by the router's logits [n_experts] and, if there is one, the choice's bias.
 * out[0 .. n_used) are their numbers, ascending, and out[n_used .. 2 n_used) their weights. Logits that are
 * not finite give valid numbers and weights that are NaN. */
static inline void route_row(const struct route_rule *r, const float *logits, const float *bias, float *out)
{
    float p[ROUTE_MAX_EXPERTS], value[ROUTE_MAX_EXPERTS];
    struct route_set gone = {{0}}, chosen = {{0}};
    float total = route_probabilities(r, logits, p), sum = 0.0f;
    bool by_logits = !bias && r->n_groups == 1; /* then the order is the same */
    for (uint32_t e = 0; e < r->n_experts; e++)
        value[e] = by_logits ? logits[e] : bias ? p[e] / total + bias[e] : p[e] / total;
    if (r->n_groups > 1)
        route_drop_groups(r, value, &gone);
    for (uint32_t i = 0; i < r->n_used; i++) {
        uint32_t e = route_best(value, &gone, 0, r->n_experts);
        route_put(&gone, e);
        route_put(&chosen, e);
    }
    for (uint32_t e = 0, i = 0; e < r->n_experts; e++)
        if (route_has(&chosen, e)) {
            out[i] = (float)e;
            out[r->n_used + i++] = p[e];
            sum = sum + p[e];
        }
    if (r->normalise)
        total = r->gating == ROUTE_SIGMOID && sum < 0x1p-14f ? 0x1p-14f : sum;
    for (uint32_t i = 0; i < r->n_used; i++)
        out[r->n_used + i] = out[r->n_used + i] / total * r->scale;
}

/* Multiplies the weights of a choice by the factors [n_experts] of its experts. */
static inline void route_factors(const struct route_rule *r, const float *factors, float *out)
{
    for (uint32_t i = 0; i < r->n_used; i++)
        out[r->n_used + i] = out[r->n_used + i] * factors[(uint32_t)out[i]];
}
