/* engine_fork.c - forks of one prompt: the first choice computes it, the others continue from its pages. */
#include "engine_private.h"

#include <assert.h>

bool engine_can_fork(const struct engine *e, const struct engine_request *r, uint32_t n)
{
    uint32_t n_shared = kv_shared_pages(r->n_prompt), n_pages = kv_pages_for(r->n_prompt + r->max_tokens);
    return e->shares_pages && n <= e->cfg.n_slots && n_shared <= ENGINE_MAX_HIT &&
           n_shared + (uint64_t)n * (n_pages - n_shared) <= e->n_pages;
}

void engine_fork(struct engine *e, uint32_t slot, uint32_t first_row)
{
    for (uint32_t i = 0; i < e->cfg.n_slots && e->seqs[slot].n_waiting; i++) {
        struct sequence *q = &e->seqs[i];
        if (!q->r || q->first != slot)
            continue;
        q->first = NO_SLOT;
        q->forked = true;
        q->copies = kv_cache_fork(e->kv, i, slot, q->r->n_prompt, &q->copy_from);
        q->n_rows = q->r->n_prompt - 1;
        q->n_done = kv_shared_pages(q->r->n_prompt) * KV_PAGE_TOKENS; /* it accepts the rest itself */
        engine_states_fork(e, i, slot, first_row);
        e->seqs[slot].n_waiting--;
    }
    assert(e->seqs[slot].n_waiting == 0); /* each one that waited has its pages */
}
