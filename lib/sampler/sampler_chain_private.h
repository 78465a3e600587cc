/* sampler_chain_private.h - the parts of a chain: sampler_chain.c (filters, the draw), sampler_history.c
 * (what looks at the tokens so far). Thread, memory: the chain's. */
#pragma once
#include "sampler_chain.h"

/* Tokens still in play. */
struct left {
    struct sampler_candidate *c;
    uint32_t n;
    float m; /* the largest x, and ln of the sum of e^(x - m): of the last softmax */
    double ln_sum;
    float *x;         /* [n_vocab] scratch */
    uint32_t *counts; /* [n_vocab] scratch */
};

void chain_penalties(struct left *l, const struct sampler_input *in);
void chain_dry(struct left *l, const struct sampler_chain *c, const struct sampler_input *in);
/* The token that the budget of the reasoning forces, or -1. */
int32_t chain_forced(const struct sampler_chain *c);
/* Takes a token into the state of the budget. */
void chain_count(struct sampler_chain *c, int32_t token);
