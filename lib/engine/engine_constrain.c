/* engine_constrain.c - requests whose text must stay in a language: the mask of the next token, and when it
 * is known. */
#include "engine_private.h"
#include "grammar/matcher.h"

#include <errno.h>
#include <stdlib.h>

int engine_constrain_open(struct engine *e, struct error *err)
{
    uint32_t words = (e->n_vocab + 31) / 32;
    if (!words || !executor_masks(e->x, NULL, 0, 0))
        return 0;
    e->masks = calloc((size_t)e->cfg.n_slots * words, sizeof *e->masks);
    if (!e->masks)
        return error_set(err, -ENOMEM, "no memory for the masks of %u slots", e->cfg.n_slots);
    e->mask_words = words;
    executor_masks(e->x, e->masks, e->cfg.n_slots, words);
    return 0;
}

void engine_constrain_close(struct engine *e)
{
    if (e->masks)
        executor_masks(e->x, NULL, 0, 0);
    free(e->masks);
    e->masks = NULL;
}

uint32_t engine_constrain_mask(struct engine *e, uint32_t slot)
{
    const struct engine_request *r = e->seqs[slot].r;
    uint64_t from = clock_ns();
    uint32_t n = matcher_mask(r->constraint, r->vocabulary, e->masks + (size_t)slot * e->mask_words);
    uint64_t now = clock_ns();
    e->masks_ns += now - from;
    atomic_store_explicit(&e->heartbeat_ns, now, memory_order_relaxed);
    return n ? slot + 1 : 0;
}

bool engine_constrain_token(const struct engine_request *r, int32_t token)
{
    return !r->constraint || matcher_token(r->constraint, r->vocabulary, token);
}

bool engine_constrain_holds(const struct engine *e)
{
    for (uint32_t slot = 0; e->masks && e->n_flights > 0 && slot < e->cfg.n_slots; slot++)
        if (e->seqs[slot].r && engine_constraint_waits(&e->seqs[slot]))
            return true;
    return false;
}

bool engine_constrains(const struct engine *e)
{
    return e->masks != NULL;
}
