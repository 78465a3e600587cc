/* engine_sample.c - tokens of requests with a chain of filters, drawn on the engine's thread from the logits
 * that the decoder exports. */
#include "engine_private.h"
#include "sampler/sampler_chain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int engine_sample_open(struct engine *e, struct error *err)
{
    e->chain_history = calloc(e->n_ctx, sizeof *e->chain_history);
    e->chain_dry = calloc(e->n_ctx, sizeof *e->chain_dry);
    if (e->chain_history && e->chain_dry)
        e->chain_scratch = malloc(sampler_chain_scratch_size(e->n_vocab));
    return e->chain_scratch ? 0 : error_set(err, -ENOMEM, "no memory to sample with filters");
}

void engine_sample_close(struct engine *e)
{
    free(e->chain_scratch);
    free(e->chain_history);
    free(e->chain_dry);
    e->chain_scratch = NULL;
    e->chain_history = NULL;
    e->chain_dry = NULL;
}

/* Writes the newest tokens before position n_prompt + index, as many as the chain looks at. */
static uint32_t copy_history(const struct engine *e, const struct engine_request *r, uint32_t index)
{
    uint32_t n = r->n_prompt + index, wanted = sampler_chain_history(r->chain, &r->sampling);
    uint32_t from = n > wanted ? n - wanted : 0;
    for (uint32_t i = from; i < n; i++)
        e->chain_history[i - from] = i < r->n_prompt ? r->prompt[i] : r->out[i - r->n_prompt].token;
    return n - from;
}

void engine_sample(struct engine *e, const struct sequence *q, const struct asked *a,
                   struct step_result *result)
{
    const struct engine_request *r = q->r;
    uint32_t index = a->index;
    const float *logits = executor_logits(e->x, result->logit_index);
    bool bans = r->ignore_eos || index < r->min_tokens;
    const uint32_t *mask = NULL;
    if (a->mask)
        mask = e->masks + (size_t)(a->mask - 1) * e->mask_words;
    assert(logits); /* the step asked for them, and no other has run */
    struct sampler_input in = {.logits = logits,
                               .n_vocab = e->n_vocab,
                               .set = &r->sampling,
                               .biases = r->biases,
                               .history = e->chain_history,
                               .n_history = copy_history(e, r, index),
                               .banned = e->end_tokens,
                               .n_banned = bans ? e->cfg.n_end_tokens : 0,
                               .position = r->n_prompt + index,
                               .mask = mask,
                               .dry = e->chain_dry};
    struct sampler_norm norm;
    atomic_store_explicit(&e->heartbeat_ns, clock_ns(), memory_order_relaxed); /* each may take 10 ms */
    result->token = sampler_chain_pick(r->chain, &in, e->chain_scratch);
    if (r->want_logprobs && sampler_norm(logits, e->n_vocab, &norm))
        result->logprob = sampler_logprob(&norm, logits[result->token]);
}
