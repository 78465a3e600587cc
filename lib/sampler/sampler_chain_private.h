/* sampler_chain_private.h - the parts of a chain: sampler_chain.c (filters, the draw), sampler_history.c
 * (what looks at the tokens so far). Thread, memory: the chain's. */
#pragma once
#include "sampler_chain.h"
#include "sampler_loops.h"
#include "sampler_select.h"

/* Tokens still in play, their ids ascending, their logits finite. */
struct left {
    struct tokens t;
    const struct sampler_loops *loops;
    float *w; /* [n_vocab] e^(x - m), their sum, the largest x and ln of the sum: of the last softmax */
    float m;
    double sum, ln_sum;
    uint32_t *counts; /* [n_vocab] scratch */
    struct candidate *few;
    struct sampler_candidate *out; /* [n_vocab] */
};

/* The nearest finite logit. */
float chain_finite(float x);
void chain_penalties(struct left *l, const struct sampler_input *in);
void chain_dry(struct left *l, const struct sampler_chain *c, const struct sampler_input *in);
/* The token that the budget of the reasoning forces, or -1. */
int32_t chain_forced(const struct sampler_chain *c);
/* Takes a token into the state of the budget. */
void chain_count(struct sampler_chain *c, int32_t token);
