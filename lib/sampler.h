/* sampler.h - from logits to a token and to log-probabilities: the host's and the cpu backend's
 * implementation of what API.md calls sampling. Order: bias and bans, penalties, top_k, typical_p, top_p,
 * min_p, temperature; then Gumbel-max with noise from (seed, position, token), or the largest logit (ties:
 * the smaller id) at temperature 0. Every filter works on the softmax at temperature 1 of what the filters
 * before it left; at least one token always stays. No mutable state: the same inputs give the same token, on
 * every backend (kernels/arith.h). Thread: pure; the scratch belongs to one caller at a time. Cost: one pass
 * over the vocabulary when top_k > 0, no sort of it. */
#pragma once
#include "step.h"

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
    const int32_t *banned; /* end tokens, when they cannot be sampled */
    uint32_t n_banned;
    uint32_t position; /* of the token to come */
};

size_t sampler_scratch_size(uint32_t n_vocab);
int32_t sampler_pick(const struct sampler_input *in, void *scratch);

/* log sum exp of the logits over the fixed segments of arith.h, as max and log2 of the sum, so that
 * logprob(x) = (x - max) - log2_sum * ln 2. False when a logit is not finite (-inf included). */
struct sampler_norm {
    float max, log2_sum;
};
bool sampler_norm(const float *logits, uint32_t n_vocab, struct sampler_norm *out);
float sampler_logprob(const struct sampler_norm *norm, float logit);
/* The n_top largest, sorted, ties by smaller id. */
void sampler_top(const float *logits, uint32_t n_vocab, const struct sampler_norm *norm, uint32_t n_top,
                 struct step_top *out);
