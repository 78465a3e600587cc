/* engine_retire.c - applies the results of a finished step to its sequences: tokens become final, pages are
 * published, requests end. */
#include "engine_spill.h"
#include "engine_speculate.h"

#include <errno.h>

/* Checks that a result answers its request. A decoder that does otherwise is broken, and none of its results
 * can be trusted. */
static bool sane(const struct engine *e, const struct flight *f, const struct step_result *result,
                 struct error *why)
{
    const struct asked *a = &f->asked[result->logit_index];
    bool in_range = result->token >= 0 && (e->n_vocab == 0 || (uint32_t)result->token < e->n_vocab);
    if (result->step == f->id && result->slot == a->slot &&
        ((result->flags & STEP_RESULT_NOT_FINITE) || in_range))
        return true;
    error_set(why, -EIO,
              "step %llu: the decoder returned token %d for slot %u of step %llu, slot %u was expected",
              (unsigned long long)f->id, (int)result->token, result->slot, (unsigned long long)result->step,
              a->slot);
    return false;
}

static void take_tops(struct step_top *out, const struct step_result *result, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = i < result->n_top ? result->top[i] : (struct step_top){.token = -1};
}

static void take_target(struct engine_request *r, uint32_t index, const struct step_result *result)
{
    r->prompt_out[index] = (struct engine_token){r->prompt[index], result->logprob};
    if (r->n_prompt_top)
        take_tops(r->prompt_top + (size_t)index * r->n_prompt_top, result, r->n_prompt_top);
}

static void take_sample(struct engine *e, struct sequence *q, uint32_t index,
                        const struct step_result *result, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    if (!engine_constrain_token(r, result->token)) { /* there was no mask: nothing may follow */
        engine_end(e, q, ENGINE_STUCK, now_ns);
        return;
    }
    r->out[index] = (struct engine_token){result->token, r->want_logprobs ? result->logprob : 0.0f};
    if (r->want_logprobs && r->n_top)
        take_tops(r->top + (size_t)index * r->n_top, result, r->n_top);
    if (index == 0)
        r->first_ns = now_ns;
    atomic_store_explicit(&r->n_out, index + 1, memory_order_release);
    engine_count_tokens(e, now_ns, 0, 1);
    engine_draft_token(e, r->slot, index, result->token);
    if (engine_ends(e, r, result->token, index))
        engine_end(e, q, ENGINE_EOS, now_ns);
    else if (index + 1 == r->max_tokens)
        engine_end(e, q, ENGINE_LENGTH, now_ns);
    else
        engine_list(e, r);
}

/* Accepts the sequence's rows of a finished step, up to position `end`; their tokens are final. */
static void accept_rows(struct engine *e, struct sequence *q, uint32_t slot, uint32_t end, uint64_t now_ns)
{
    const struct engine_request *r = q->r;
    uint32_t n_prompt = end < r->n_prompt ? end : r->n_prompt;
    if (q->n_done < n_prompt) {
        kv_cache_accept(e->kv, slot, r->prompt + q->n_done, n_prompt - q->n_done);
        if (!q->forked) /* forks share one prompt, which counts once */
            engine_count_tokens(e, now_ns, n_prompt - q->n_done, 0);
        q->n_done = n_prompt;
        e->room = true; /* a queued request may wait for these pages */
    }
    for (; q->n_done < end; q->n_done++)
        kv_cache_accept(e->kv, slot, &r->out[q->n_done - r->n_prompt].token, 1);
}

/* Publishes the progress of the prompt, after its targets are stored. Ends a request that only fills the
 * cache. */
static void publish_progress(struct engine *e, struct sequence *q, uint64_t now_ns)
{
    struct engine_request *r = q->r;
    uint32_t n_prompt = q->n_done < r->n_prompt ? q->n_done : r->n_prompt;
    if (atomic_load_explicit(&r->n_prompt_done, memory_order_relaxed) == n_prompt)
        return;
    atomic_store_explicit(&r->n_prompt_done, n_prompt, memory_order_release);
    if (n_prompt < r->n_prompt)
        return;
    atomic_store_explicit(&r->state, ENGINE_DECODE, memory_order_release);
    if (r->max_tokens == 0)
        engine_end(e, q, ENGINE_LENGTH, now_ns);
}

static void fail_not_finite(struct engine *e, struct flight *f, uint64_t now_ns)
{
    for (uint32_t i = 0; i < f->n_logits; i++) {
        struct sequence *q = &e->seqs[f->asked[i].slot];
        if (q->r && !f->asked[i].dropped && (f->results[i].flags & STEP_RESULT_NOT_FINITE))
            engine_end(e, q, ENGINE_NOT_FINITE, now_ns);
    }
}

bool engine_retire(struct engine *e, struct flight *f, uint64_t now_ns, struct error *why)
{
    for (uint32_t i = 0; i < f->n_logits; i++)
        if (!sane(e, f, &f->results[i], why))
            return false;
    engine_draft_check(e, f);
    fail_not_finite(e, f, now_ns); /* first: pages of such a sequence must not be published */
    for (uint32_t i = 0; i < f->n_spans; i++) {
        uint32_t slot = f->spans[i].slot;
        if (e->seqs[slot].r)
            accept_rows(e, &e->seqs[slot], slot, f->spans[i].end, now_ns);
    }
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct asked *a = &f->asked[i];
        if (a->target && e->seqs[a->slot].r)
            take_target(e->seqs[a->slot].r, a->index, &f->results[i]);
    }
    e->retired = f->id;
    for (uint32_t i = 0; i < f->n_spans; i++)
        if (e->seqs[f->spans[i].slot].r)
            publish_progress(e, &e->seqs[f->spans[i].slot], now_ns);
    for (uint32_t i = 0; i < f->n_logits; i++) {
        const struct asked *a = &f->asked[i];
        if (!a->target && !a->dropped && e->seqs[a->slot].r)
            take_sample(e, &e->seqs[a->slot], a->index, &f->results[i], now_ns);
    }
    for (uint32_t i = 0; i < f->n_spans; i++) /* those that ended earlier and waited for this step */
        engine_release(e, f->spans[i].slot);
    engine_disk_retire(e, now_ns);
    return true;
}
