/* engine_constrain.c - requests whose text must stay in a language, or has banned strings: the mask of the
 * next token, and when it is known. */
#include "engine_private.h"
#include "grammar/matcher.h"
#include "sampler/banned.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define MASKS_NS  10000000 /* the longest wait of a step for masks */
#define MASK_PART 100000   /* steps of a matcher, about 1 ms */
#define FORCED    256      /* bytes that are looked for */
#define REPLAY    64       /* final tokens that a matcher may have to take again when its text goes back */

int engine_constrain_open(struct engine *e, struct error *err)
{
    uint32_t words = (e->n_vocab + 31) / 32;
    if (!words || !executor_masks(e->x, NULL, 0, 0))
        return 0;
    uint32_t n = e->cfg.n_slots + STEP_MAX_LOGITS;
    e->masks = calloc((size_t)n * words, sizeof *e->masks);
    if (!e->masks)
        return error_set(err, -ENOMEM, "no memory for the masks of %u slots", e->cfg.n_slots);
    e->mask_words = words;
    e->n_masks = n;
    executor_masks(e->x, e->masks, n, words);
    return 0;
}

void engine_constrain_close(struct engine *e)
{
    if (e->masks)
        executor_masks(e->x, NULL, 0, 0);
    free(e->masks);
    e->masks = NULL;
}

/* True if the mask of its next token is known to be needed, and not made yet. */
static bool wants_mask(const struct sequence *q)
{
    return q->r && engine_is_masked(q->r) && !q->masked && q->n_samples < q->r->max_tokens &&
           !engine_token_waits(q);
}

bool engine_constrain_pending(const struct engine *e)
{
    for (uint32_t slot = 0; e->masks && slot < e->cfg.n_slots; slot++)
        if (wants_mask(&e->seqs[slot]))
            return true;
    return false;
}

static uint32_t *mask_of(const struct engine *e, uint32_t slot)
{
    return e->masks + (size_t)slot * e->mask_words;
}

/* Brings the matcher back to a token that stands. It is saved before it takes the first token that may be
 * withdrawn, and takes final ones for good, so that it can drop what they need no more. */
static void follow_back(struct sequence *q, uint32_t n_text, uint32_t n_final)
{
    assert(q->saved || q->n_taken <= n_text); /* else it has taken a token for good that was not final */
    if (!q->saved)
        return;
    if (q->n_taken == n_final) {
        matcher_keep(q->r->constraint);
        q->saved = false;
    } else if (q->n_taken > n_text || n_final >= q->n_saved + REPLAY) {
        matcher_restore(q->r->constraint);
        q->n_taken = q->n_saved;
        q->saved = false;
    }
}

/* Takes the next token of the text. False: the matcher has failed. */
static bool follow(struct sequence *q, uint32_t n_final)
{
    struct engine_request *r = q->r;
    if (!q->saved && q->n_taken >= n_final) {
        if (!matcher_save(r->constraint)) {
            matcher_fail(r->constraint); /* a text that could not go back must not go on */
            return false;
        }
        q->saved = true;
        q->n_saved = q->n_taken;
    }
    return matcher_token(r->constraint, r->vocabulary, r->out[q->n_taken++].token);
}

/* Takes banned tokens out of the mask. False: no token was left, the text is shorter now, and its next mask
 * is another one. */
static bool finish_mask(struct engine *e, struct sequence *q, uint32_t *mask, uint32_t *n)
{
    struct engine_request *r = q->r;
    if (!r->banned || !*n || banned_restrict(r->banned, mask, e->n_vocab, r->chain))
        return true;
    *n = 0;
    return !engine_banned_go_back(e, q);
}

/* The newest tokens first: hostile grammars make a token as dear as a part of a mask. */
static void make_part(struct engine *e, uint32_t slot)
{
    struct sequence *q = &e->seqs[slot];
    struct engine_request *r = q->r;
    uint32_t *mask = mask_of(e, slot), n = 0;
    uint32_t n_text = engine_n_text(r), n_final = r->banned ? banned_n_final(r->banned) : n_text;
    if (!r->constraint) {
        n = banned_mask(r->banned, mask, e->n_vocab, r->chain);
        q->masked = true;
    } else {
        follow_back(q, n_text, n_final);
        if (q->n_taken < n_text)
            q->masked = !follow(q, n_final);
        else if (matcher_mask_part(r->constraint, r->vocabulary, mask, MASK_PART, &n))
            q->masked = finish_mask(e, q, mask, &n);
    }
    q->mask = n ? slot + 1 : 0;
}

void engine_constrain_begin(struct engine *e)
{
    e->masks_until_ns = clock_ns() + MASKS_NS;
}

bool engine_constrain_has_time(struct engine *e)
{
    uint64_t now = clock_ns();
    atomic_store_explicit(&e->heartbeat_ns, now, memory_order_relaxed);
    return now < e->masks_until_ns;
}

void engine_constrain_masks(struct engine *e)
{
    bool has_time = true;
    engine_constrain_begin(e);
    while (has_time && engine_constrain_pending(e)) {
        uint32_t slot = e->mask_turn;
        e->mask_turn = (slot + 1) % e->cfg.n_slots;
        if (!wants_mask(&e->seqs[slot]))
            continue;
        make_part(e, slot);
        has_time = engine_constrain_has_time(e);
    }
}

bool engine_constrain_allows(const struct engine *e, uint32_t mask, int32_t token)
{
    return mask && (mask_of(e, mask - 1)[token / 32] >> (token % 32) & 1);
}

/* ---- drafts ---- */

uint32_t engine_constrain_forced(const struct engine *e, uint32_t slot, int32_t *tokens, uint32_t most)
{
    const struct engine_request *r = e->seqs[slot].r;
    char bytes[FORCED];
    uint32_t n = e->seqs[slot].mask ? matcher_forced(r->constraint, bytes, sizeof bytes, MASK_PART) : 0,
             at = 0, i = 0;
    while (i < most && at < n) {
        int32_t token = vocabulary_longest(r->vocabulary, bytes + at, n - at);
        if (token < 0)
            break;
        tokens[i++] = token;
        at += r->vocabulary->lens[token];
    }
    return i;
}

/* A mask that would hold up the step is no draft's worth. */
uint32_t engine_constrain_ahead(struct engine *e, uint32_t slot, const int32_t *tokens, uint32_t n)
{
    struct sequence *q = &e->seqs[slot];
    struct matcher *m = q->r->constraint;
    uint32_t n_masks = e->cfg.n_slots + e->n_ahead, i = 0, n_allowed;
    assert(n_masks + n <= e->n_masks); /* a step has fewer drafts than logit rows */
    if (!n || !matcher_save(m))
        return 0;
    for (; i < n && engine_constrain_has_time(e) && matcher_token(m, q->r->vocabulary, tokens[i]); i++)
        if (!matcher_mask_part(m, q->r->vocabulary, mask_of(e, n_masks + i), MASK_PART, &n_allowed) ||
            !n_allowed)
            break;
    matcher_restore(m);
    q->ahead = n_masks + 1;
    e->n_ahead += i;
    return i;
}

bool engine_constrain_holds(const struct engine *e)
{
    for (uint32_t slot = 0; e->n_flights > 0 && slot < e->cfg.n_slots; slot++)
        if (e->seqs[slot].r && !e->seqs[slot].drawing && engine_token_waits(&e->seqs[slot]))
            return true;
    return false;
}

bool engine_constrains(const struct engine *e)
{
    return e->masks != NULL;
}
