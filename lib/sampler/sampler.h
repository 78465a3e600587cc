/* sampler.h - from logits to a token and to log-probabilities: the host's and the cpu backend's
 * implementation of what API.md calls sampling. Order: bias and bans, penalties, top_k, typical_p, top_p,
 * min_p, temperature; then Gumbel-max with noise from (seed, position, token), or the largest logit (ties:
 * the smaller id) at temperature 0. Every filter works on the softmax at temperature 1 of what the filters
 * before it left; at least one token always stays. No mutable state: the same inputs give the same token, on
 * every backend (kernels/abi/arith.h). Thread: pure; the scratch belongs to one caller at a time. Cost: one
 * pass over the vocabulary when 0 < top_k <= 1024, about ten over the tokens within e^-28 of the likeliest
 * with typical_p or top_p alone (152,000 tokens, Zen 4: 0.03 and 1 to 1.7 ms); nothing is sorted.
 *
 * THE FORMULAS, which every implementation follows to the bit. Sums of probabilities are sums of integers, so
 * they may be computed in any order. All arithmetic is f32, and every operation rounds once.
 *
 *   adjust    x[i] = logit[i], or -inf where the mask has no bit;
 *             each bias in its order: x = x + bias; a banned end token: x = -inf.
 *             Then once for every distinct token among the last penalty_last_n of the history, c times in it:
 *             x = x > 0 ? x / repetition : x * repetition;  x = x - fmaf(frequency, (float)c, presence).
 *             Each of the two operations is skipped when its penalties are neutral (1; 0 and 0).
 *             NaN counts as -inf, more than 3e38 as 3e38. A token at -inf is excluded; if none is left, the
 *             result is the largest of the model's own logits.
 *   greedy    not (temperature > 0): the largest x, ties by the smaller id. No filter applies.
 *   top_k     > 0: the top_k largest, ties by the smaller id.
 *   weights   of a set S, with m = max x in S: w[i] = arith_exp2((x[i] - m) * ARITH_LOG2E),
 *             mass[i] = trunc(w[i] * 2^40) as a 64-bit integer, total = sum of mass[i].
 *   need(p)   P = trunc(min(p, 1) * 2^24); need = floor(total * P / 2^24), exactly (split total in two).
 *   typical_p < 1: E = sum of trunc(w[i] * (m - x[i]) * 2^40); mean = (float)E / (float)total;
 *             d[i] = |(m - x[i]) - mean|  (the surprise less the entropy: ln Z cancels);
 *             the shortest list in the order (d ascending, id ascending) with sum of mass >= need(typical_p).
 *   top_p     < 1: the shortest list in the order (x descending, id ascending) with mass >= need(top_p).
 *             Both keep at least one token, and none of mass 0 (less than 2^-40 of the likeliest).
 *   min_p     > 0: w[i] >= min_p, and always the likeliest.
 *   sample    with m = max x of the remaining set: the largest (x[i] - m) / temperature +
 *             arith_gumbel(seed, position, i), ties by the smaller id. */
#pragma once
#include "abi/step.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sampler_input {
    const float *logits; /* [n_vocab], the model's own */
    uint32_t n_vocab;
    const struct step_sampling *set;
    const struct step_bias *biases; /* set->n_bias of them */
    const int32_t
        *history; /* tokens of the sequence so far, oldest first: at least the last penalty_last_n */
    uint32_t n_history;
    const int32_t *banned; /* end tokens, while they must not be sampled */
    uint32_t n_banned;
    uint32_t position;    /* position of the token to sample */
    const uint32_t *mask; /* [n_vocab] bits: tokens that may be sampled, at least one; NULL: all */
    uint32_t *dry;        /* [n_history] scratch of sampler_chain.h's dry; NULL: it is off */
};

size_t sampler_scratch_size(uint32_t n_vocab); /* bytes; 8-byte aligned, any content */
/* Samples a token id, always in range. `scratch` has sampler_scratch_size() bytes. */
int32_t sampler_pick(const struct sampler_input *in, void *scratch);

/* The log-sum-exp of the logits over the fixed segments of arith.h, as max and log2 of the sum, so that
 * logprob(x) = (x - max) - log2_sum * ln 2. sampler_norm() returns false if a logit is not finite (-inf
 * included). Segment s holds logits [s * ARITH_LSE_SEGMENT, ...): m[s] is its max; lane l adds arith_exp2((x
 * - m[s]) * ARITH_LOG2E) of its elements l, l+32, ... ascending from 0; the tree gives sum[s]. Then max = max
 * m[s], and ascending from L = 0: L = fmaf(arith_exp2((m[s] - max) * ARITH_LOG2E), sum[s], L); log2_sum =
 * arith_log2(L). */
struct sampler_norm {
    float max, log2_sum;
};
bool sampler_norm(const float *logits, uint32_t n_vocab, struct sampler_norm *out);
float sampler_logprob(const struct sampler_norm *norm, float logit);
/* Writes the n_top largest tokens with their log-probabilities, sorted, ties by the smaller id. n_top <=
 * STEP_MAX_TOP. In a smaller vocabulary the remaining entries are {-1, -inf}. */
void sampler_top(const float *logits, uint32_t n_vocab, const struct sampler_norm *norm, uint32_t n_top,
                 struct step_top *out);
