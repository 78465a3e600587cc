/* engine_sample.c - tokens of requests with a chain of filters, drawn between steps from the logits that the
 * decoder exports. A draw takes milliseconds over a large vocabulary. All threads of the decoder's team draw,
 * and a step waits for draws only so long (draw_round.h): the texts whose tokens are not drawn by then miss a
 * step, the others do not wait for them. */
#include "draw_round.h"
#include "engine_private.h"
#include "sampler/sampler_chain.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SIDE 8 /* threads that draw at once: a scratch is 32 bytes a token */

/* The memory in which one thread draws. */
struct draw_scratch {
    void *chain;
    int32_t *history; /* [n_ctx] */
    uint32_t *dry;    /* [n_ctx] */
};

static uint32_t n_scratch(uint32_t n_slots, uint32_t n_threads)
{
    uint32_t most = n_slots < MOST_SIDE ? n_slots : MOST_SIDE;
    return n_threads < most ? n_threads : most;
}

uint64_t engine_draw_size(uint32_t n_slots, uint32_t n_threads, uint32_t n_vocab, uint32_t n_ctx)
{
    struct draw_scratch *s;
    uint64_t tokens = (uint64_t)n_ctx * (sizeof *s->history + sizeof *s->dry);
    return n_slots * (n_vocab * sizeof(float) + sizeof(struct engine_draw)) +
           n_scratch(n_slots, n_threads) * (sizeof *s + sampler_chain_scratch_size(n_vocab) + tokens);
}

uint64_t engine_draw_bytes(const struct engine *e)
{
    return engine_draw_size(e->cfg.n_slots, executor_members(e->x), e->n_vocab, e->n_ctx);
}

static bool open_scratch(const struct engine *e, struct draw_scratch *s)
{
    s->chain = malloc(sampler_chain_scratch_size(e->n_vocab));
    s->history = calloc(e->n_ctx, sizeof *s->history);
    s->dry = calloc(e->n_ctx, sizeof *s->dry);
    return s->chain && s->history && s->dry;
}

int engine_sample_open(struct engine *e, struct error *err)
{
    e->n_scratch = n_scratch(e->cfg.n_slots, executor_members(e->x));
    e->draws = calloc(e->cfg.n_slots, sizeof *e->draws);
    e->draw_logits = calloc((size_t)e->cfg.n_slots * e->n_vocab + 1, sizeof *e->draw_logits);
    e->scratch = calloc(e->n_scratch, sizeof *e->scratch);
    bool ok = e->draws && e->draw_logits && e->scratch;
    for (uint32_t i = 0; ok && i < e->n_scratch; i++)
        ok = open_scratch(e, &e->scratch[i]);
    return ok ? 0 : error_set(err, -ENOMEM, "no memory to sample with filters");
}

void engine_sample_close(struct engine *e)
{
    for (uint32_t i = 0; e->scratch && i < e->n_scratch; i++) {
        free(e->scratch[i].chain);
        free(e->scratch[i].history);
        free(e->scratch[i].dry);
    }
    free(e->scratch);
    free(e->draw_logits);
    free(e->draws);
    e->scratch = NULL;
    e->draw_logits = NULL;
    e->draws = NULL;
}

static float *logits_of(const struct engine *e, uint32_t slot)
{
    return e->draw_logits + (size_t)slot * e->n_vocab;
}

void engine_sample_keep(struct engine *e, const struct asked *a, const struct step_result *result)
{
    uint32_t slot = a->slot;
    const float *logits = executor_logits(e->x, result->logit_index);
    assert(logits && !e->seqs[slot].drawing); /* the step asked for them, and no other has run */
    memcpy(logits_of(e, slot), logits, e->n_vocab * sizeof *logits);
    e->draws[slot] = (struct engine_draw){.result = *result, .asked = *a, .since_ns = clock_ns()};
    e->seqs[slot].drawing = true;
}

bool engine_sample_pending(const struct engine *e)
{
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++)
        if (e->seqs[slot].r && e->seqs[slot].drawing)
            return true;
    return false;
}

/* ---- a draw: any thread of the team ---- */

/* Writes the newest tokens before position n_prompt + index, as many as the chain looks at. */
static uint32_t copy_history(const struct engine_request *r, uint32_t index, int32_t *history)
{
    uint32_t n = r->n_prompt + index;
    uint32_t wanted = sampler_chain_history(r->chain, &r->sampling);
    uint32_t from = n > wanted ? n - wanted : 0;
    for (uint32_t i = from; i < n; i++)
        history[i - from] = i < r->n_prompt ? r->prompt[i] : r->out[i - r->n_prompt].token;
    return n - from;
}

static void draw(const struct engine *e, uint32_t slot, const struct draw_scratch *s)
{
    struct engine_draw *d = &e->draws[slot];
    const struct engine_request *r = e->seqs[slot].r;
    uint32_t index = d->asked.index;
    const float *logits = logits_of(e, slot);
    bool bans = r->ignore_eos || index < r->min_tokens;
    const uint32_t *mask = NULL;
    if (d->asked.mask)
        mask = e->masks + (size_t)(d->asked.mask - 1) * e->mask_words;
    struct step_sampling set = r->sampling;
    set.seed = engine_seed(r);
    struct sampler_input in = {.logits = logits,
                               .n_vocab = e->n_vocab,
                               .set = &set,
                               .biases = r->biases,
                               .history = s->history,
                               .n_history = copy_history(r, index, s->history),
                               .banned = e->end_tokens,
                               .n_banned = bans ? e->cfg.n_end_tokens : 0,
                               .position = r->n_prompt + index,
                               .mask = mask,
                               .dry = s->dry};
    struct sampler_norm norm;
    d->result.token = sampler_chain_pick(r->chain, &in, s->chain);
    if (r->want_logprobs && sampler_norm(logits, e->n_vocab, &norm))
        d->result.logprob = sampler_logprob(&norm, logits[d->result.token]);
}

/* ---- the draws of a round ---- */

struct round {
    struct engine *e;
    struct draw_round time;
    uint32_t n;
    const uint32_t *slots; /* [n] in the order of their turns */
    _Atomic uint32_t next;
};

/* Every thread draws one at least, so that each round makes progress. */
static void draw_some(void *context, uint32_t member)
{
    struct round *round = context;
    struct engine *e = round->e;
    if (member >= e->n_scratch)
        return;
    uint64_t from = clock_ns();
    (void)draw_round_goes_on(&round->time, from);
    do {
        uint32_t i = atomic_fetch_add_explicit(&round->next, 1, memory_order_relaxed);
        if (i >= round->n)
            return;
        draw(e, round->slots[i], &e->scratch[member]);
        uint64_t now = clock_ns();
        e->seqs[round->slots[i]].draw_ns = now - from;
        e->seqs[round->slots[i]].drawing = false;
        from = now;
    } while (draw_round_goes_on(&round->time, from));
}

static uint64_t turn_of(const struct engine *e, uint32_t slot)
{
    return draw_turn(e->draws[slot].since_ns, e->seqs[slot].draw_ns);
}

static uint32_t list_draws(const struct engine *e, uint32_t *slots)
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        if (!e->seqs[slot].r || !e->seqs[slot].drawing)
            continue;
        uint32_t at = n++;
        for (; at > 0 && turn_of(e, slots[at - 1]) > turn_of(e, slot); at--)
            slots[at] = slots[at - 1];
        slots[at] = slot;
    }
    return n;
}

uint32_t engine_sample_draw(struct engine *e, uint32_t *slots)
{
    struct round round = {.e = e, .slots = slots, .n = list_draws(e, slots)};
    uint32_t n_drawn = 0;
    if (!round.n)
        return 0;
    round.time.time_ns = draw_round_time(e->cfg.draw_ns, e->decode_ms);
    atomic_store_explicit(&e->heartbeat_ns, clock_ns(), memory_order_relaxed);
    if (round.n == 1)
        draw_some(&round, 0);
    else
        executor_share(e->x, draw_some, &round);
    for (uint32_t i = 0; i < round.n; i++)
        if (!e->seqs[slots[i]].drawing)
            slots[n_drawn++] = slots[i];
    return n_drawn;
}
