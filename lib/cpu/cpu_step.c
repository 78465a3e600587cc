/* cpu_step.c - what the ops of a step need from its decoder: the heartbeat, and the results of logit rows:
 * the sampled token, log-probabilities, alternatives. */
#include "base/clock.h"
#include "cpu_decoder.h"

#include <assert.h>

uint64_t decoder_beat(struct decoder *d)
{
    uint64_t now = clock_ns();
    atomic_store_explicit(&d->heartbeat_ns, now, memory_order_relaxed);
    return now;
}

/* True if sampling takes the largest logit. */
static bool is_plain_greedy(const struct step_sampling *set, bool bans)
{
    return set->temperature <= 0.0f && set->n_bias == 0 && !bans &&
           (set->penalty_last_n == 0 || (set->repetition_penalty == 1.0f && set->presence_penalty == 0.0f &&
                                         set->frequency_penalty == 0.0f));
}

static int32_t pick(const struct decoder *d, const struct step_row *row, const struct step_logit *want,
                    const float *logits, void *scratch)
{
    const struct slot *slot = &d->slots.slot[row->slot];
    bool bans = want->flags & STEP_BAN_END;
    const uint32_t *mask = NULL;
    if (want->mask)
        mask = d->masks + (size_t)(want->mask - 1) * d->mask_words;
    uint32_t start = slot->history_start, n = row->pos + 1;
    struct sampler_input in = {
        .logits = logits,
        .n_vocab = d->n_vocab,
        .set = &slot->sampling,
        .biases = slots_biases(&d->slots, row->slot),
        .history = slots_history(&d->slots, row->slot) + start,
        .n_history = n > start ? n - start : 0,
        .banned = bans ? d->end_tokens : NULL,
        .n_banned = bans ? d->cfg.n_end_tokens : 0,
        .position = row->pos + 1,
        .mask = mask,
    };
    return sampler_pick(&in, scratch);
}

void decoder_choose(struct decoder *d, uint32_t i, const float *logits, void *scratch)
{
    const struct step_logit *want = &d->step->logits[i];
    const struct step_row *row = &d->step->rows[want->row];
    struct step_result *r = &d->results[i];
    *r = (struct step_result){.step = d->step->id, .slot = row->slot, .pos = row->pos, .logit_index = i};
    int32_t largest = d->ops->argmax(logits, d->n_vocab);
    r->flags = want->target >= 0 ? STEP_RESULT_TARGET : 0;
    r->token = want->target >= 0 ? want->target : 0;
    if (largest >= 0 && want->target < 0) {
        bool bans = (want->flags & STEP_BAN_END) && d->cfg.n_end_tokens;
        bool plain = !want->mask && is_plain_greedy(&d->slots.slot[row->slot].sampling, bans);
        r->token = plain ? largest : pick(d, row, want, logits, scratch);
    }
    if (largest < 0) {
        r->flags |= STEP_RESULT_NOT_FINITE;
        return;
    }
    struct sampler_norm norm;
    if (!(want->flags & STEP_LOGPROB) && !want->n_top && want->target < 0)
        return;
    sampler_norm(logits, d->n_vocab, &norm);
    r->logprob = sampler_logprob(&norm, logits[r->token]);
    r->n_top = want->n_top < d->n_vocab ? want->n_top : (uint16_t)d->n_vocab;
    sampler_top(logits, d->n_vocab, &norm, r->n_top, r->top);
}
