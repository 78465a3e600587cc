/* engine_banned.c - texts that must not contain some strings (sampler/banned.h): what is published of them,
 * and how they go back. A sequence that goes back computes the row of its last token once more, for the
 * logits that the next token is drawn from; the rows behind it are overwritten. No page is published before
 * that is past: the cache accepts a row when the token behind it is final. */
#include "engine_private.h"
#include "sampler/banned.h"

#include <assert.h>

uint32_t engine_n_text(const struct engine_request *r)
{
    return r->banned ? banned_n_tokens(r->banned) : atomic_load_explicit(&r->n_out, memory_order_relaxed);
}

uint64_t engine_seed(const struct engine_request *r)
{
    return r->banned ? banned_seed(r->banned, r->sampling.seed) : r->sampling.seed;
}

uint32_t engine_final_rows(const struct engine_request *r, uint32_t end)
{
    if (!r->banned)
        return end;
    uint32_t n = r->n_prompt + atomic_load_explicit(&r->n_out, memory_order_relaxed) - 1;
    return n < end ? n : end;
}

void engine_publish_text(struct engine *e, struct engine_request *r, uint32_t n, uint64_t now_ns)
{
    uint32_t before = atomic_load_explicit(&r->n_out, memory_order_relaxed);
    if (n <= before)
        return;
    if (before == 0)
        r->first_ns = now_ns;
    atomic_store_explicit(&r->n_out, n, memory_order_release);
    engine_count_tokens(e, now_ns, 0, n - before);
    engine_list(e, r);
}

/* The noise is new, and the decoder gets its seed with the settings. */
static void go_back(struct engine *e, struct sequence *q)
{
    struct engine_request *r = q->r;
    uint32_t n = banned_n_tokens(r->banned);
    assert(q->n_samples > n && q->last_step <= e->retired); /* no row of it is in flight */
    q->n_samples = n;
    q->n_rows = r->n_prompt + n - 1;
    q->fresh = true;
    engine_states_go_back(e, r->slot);
}

bool engine_banned_go_back(struct engine *e, struct sequence *q)
{
    struct banned *b = q->r->banned;
    uint32_t before = banned_n_tokens(b);
    bool may = banned_go_back(b, q->r->chain) == BANNED_WITHDRAWN;
    if (banned_n_tokens(b) < before)
        go_back(e, q);
    return may;
}

bool engine_banned_take(struct engine *e, struct sequence *q, int32_t token)
{
    enum banned_verdict verdict = banned_take(q->r->banned, token, q->r->chain);
    if (verdict != BANNED_FINE)
        go_back(e, q);
    return verdict != BANNED_HOPELESS;
}
