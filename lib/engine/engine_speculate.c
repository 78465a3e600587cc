/* engine_speculate.c - prompt-lookup speculation: a text is likely to repeat what it contains already. Where
 * the last tokens of a sequence occurred before, the tokens that followed there are drafted: they enter the
 * next step as further rows of the sequence, each with logits. The token sampled from a row is the one that
 * would be sampled without drafts as long as all drafts before it were right. So a step yields one token more
 * than the number of right drafts. Of a constrained text the drafts are the tokens of the bytes that its
 * grammar forces, each with a mask of its own. Rows behind a wrong draft are overwritten later; no page that
 * holds one of them is ever accepted. */
#include "engine_speculate.h"
#include "speculation/draft_policy.h"
#include "speculation/ngram_index.h"

#include <errno.h>
#include <stdlib.h>

#define OWN_MEMORY   24.0f  /* tokens that the odds of one sequence remember, per class */
#define ALL_MEMORY   256.0f /* tokens that the odds of all sequences remember, per class */
#define FORCED_TRIES 16.0f  /* weight of the odds that forced bytes are cut into tokens as here, at first */
#define FORCED_HITS  14.0f
#define OFF_AFTER    16 /* plans in a row without a draft that pays: the request counts as turned off */

/* The drafts of a slot. */
struct drafted {
    struct lookup index;
    struct draft_odds odds;
    bool used, off, was_off; /* it has drafted; it is turned off; it was turned off once */
    uint32_t n_refused;
    uint32_t forced_at, n_forced; /* tokens[n_forced] are those that follow n_out = forced_at; 0: of none */
    uint32_t n, n_sent;           /* draft tokens for the next step; those in the step in flight */
    int32_t tokens[DRAFT_MAX];
};

struct engine_draft {
    struct draft_odds all, forced;
    struct draft_costs costs;
    struct draft_chain chains[STEP_MAX_SLOTS];
    uint32_t slots[STEP_MAX_SLOTS]; /* slot of each chain */
    uint64_t woken_ns;
    struct drafted of[]; /* [n_slots] */
};

int engine_draft_open(struct engine *e, struct error *err)
{
    if (e->cfg.speculation == ENGINE_SPECULATE_OFF)
        return 0;
    e->draft = calloc(1, sizeof *e->draft + e->cfg.n_slots * sizeof *e->draft->of);
    if (!e->draft)
        return error_set(err, -ENOMEM, "no memory for drafts of %u slots", e->cfg.n_slots);
    draft_odds_open(&e->draft->all);
    for (uint32_t i = 0; i < DRAFT_CLASSES; i++) {
        e->draft->forced.tries[i] = FORCED_TRIES;
        e->draft->forced.hits[i] = FORCED_HITS;
    }
    for (uint32_t i = 0; i < e->cfg.n_slots; i++) {
        int rc = lookup_open(&e->draft->of[i].index, e->n_ctx, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

void engine_draft_close(struct engine *e)
{
    for (uint32_t i = 0; e->draft && i < e->cfg.n_slots; i++)
        lookup_close(&e->draft->of[i].index);
    free(e->draft);
}

/* ---- measuring odds and costs ---- */

static void begin(struct drafted *d, const struct engine_request *r)
{
    lookup_begin(&d->index, r->n_prompt + r->max_tokens);
    lookup_feed(&d->index, r->prompt, r->n_prompt);
    d->odds = (struct draft_odds){0};
    d->used = d->off = d->was_off = false;
    d->n_refused = d->forced_at = 0;
}

void engine_draft_token(struct engine *e, uint32_t slot, uint32_t index, int32_t token)
{
    if (!e->draft)
        return;
    struct drafted *d = &e->draft->of[slot];
    struct lookup *l = &d->index;
    if (index == 0)
        begin(d, e->seqs[slot].r);
    if (l->expects) {
        bool right = l->tokens[l->source] == token;
        draft_odds_note(&d->odds, l->length, right, OWN_MEMORY);
        draft_odds_note(&e->draft->all, l->length, right, ALL_MEMORY);
    }
    lookup_add(l, token);
}

/* The time that a step waited for drafts' results before it began belongs to its cost. */
void engine_draft_measure(struct engine *e, const struct flight *f, double ms, uint64_t now_ns)
{
    if (!e->draft || f->n_prefill || f->n_spans == 0)
        return;
    uint64_t since = e->retired_ns > e->draft->woken_ns ? e->retired_ns : e->draft->woken_ns;
    if (f->n_draft && executor_kind(e->x) != EXECUTOR_EAGER && now_ns > since)
        ms = (double)(now_ns - since) / 1e6;
    draft_costs_note(&e->draft->costs, f->n_decode + f->n_draft, f->n_draft, ms);
}

void engine_draft_woken(struct engine *e, uint64_t now_ns)
{
    if (e->draft)
        e->draft->woken_ns = now_ns;
}

/* ---- planning the next step ---- */

static uint32_t n_out_of(const struct engine_request *r)
{
    return atomic_load_explicit(&r->n_out, memory_order_relaxed);
}

/* Returns the number of tokens that may be drafted: none follows the last token of the request. */
static uint32_t most_of(const struct engine_request *r)
{
    uint32_t n = r->max_tokens - n_out_of(r) - 1;
    return n < DRAFT_MAX ? n : DRAFT_MAX;
}

/* Looks for the forced tokens once for each token of the text, and while there is time. */
static uint32_t force_draft(struct engine *e, uint32_t slot, struct drafted *d)
{
    const struct engine_request *r = e->seqs[slot].r;
    if (d->forced_at != n_out_of(r)) {
        if (!e->seqs[slot].mask || !engine_constrain_has_time(e))
            return 0;
        d->n_forced = engine_constrain_forced(e, slot, d->tokens, most_of(r));
        d->forced_at = n_out_of(r);
    }
    return d->n_forced;
}

/* Writes the expected tokens. Returns how many may be drafted. */
static uint32_t copy_draft(struct engine *e, uint32_t slot, struct drafted *d)
{
    const struct engine_request *r = e->seqs[slot].r;
    uint32_t n_out = n_out_of(r), n = r->constraint ? force_draft(e, slot, d) : most_of(r);
    if (!r->constraint)
        lookup_draft(&d->index, d->tokens, n);
    for (uint32_t i = 0; i < n; i++)
        if (engine_ends(e, r, d->tokens[i], n_out + i))
            return i;
    return n;
}

/* The plan is asked first with as many forced tokens as there might be: looking for them takes long. */
static bool is_unread(const struct engine *e, uint32_t slot)
{
    const struct sequence *q = &e->seqs[slot];
    return q->r->constraint && q->mask && e->draft->of[slot].forced_at != n_out_of(q->r);
}

/* Replaces what might be forced by what is. True if there was any such. */
static bool read_forced(struct engine *e, uint32_t n_chains)
{
    bool any = false;
    for (uint32_t i = 0; i < n_chains; i++) {
        uint32_t slot = e->draft->slots[i];
        if (!is_unread(e, slot))
            continue;
        e->draft->chains[i].n_max = copy_draft(e, slot, &e->draft->of[slot]);
        any = true;
    }
    return any;
}

static uint32_t list_chains(struct engine *e, uint32_t *n_decode)
{
    struct engine_draft *all = e->draft;
    uint32_t n = 0;
    *n_decode = 0;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++) {
        const struct sequence *q = &e->seqs[slot];
        struct drafted *d = &all->of[slot];
        if (!engine_decodes(q))
            continue;
        ++*n_decode;
        d->n = 0;
        bool forced = q->r->constraint && !engine_draws(q->r);
        if (!n_out_of(q->r) || engine_draws(q->r) || q->r->banned || (!forced && !d->index.expects))
            continue; /* its first token is in flight, or drawn by the host, or may be withdrawn, or there is
                         nothing to expect */
        all->slots[n] = slot;
        all->chains[n++] =
            (struct draft_chain){.odds = forced ? &all->forced : &d->odds,
                                 .length = forced ? 1 : d->index.length,
                                 .n_max = is_unread(e, slot) ? most_of(q->r) : copy_draft(e, slot, d)};
    }
    return n;
}

/* Sets the costs of a step with prefill, in which a draft row costs as much as a prefill row. False if they
 * are not known yet. */
static bool price_prefill(const struct engine *e, struct draft_step *step)
{
    double rows = 0;
    bool any = false;
    for (uint32_t slot = 0; slot < e->cfg.n_slots; slot++)
        if (engine_prefills(&e->seqs[slot])) {
            rows += e->seqs[slot].r->n_prompt - e->seqs[slot].n_rows;
            any = true;
        }
    double ms = e->decode_ms + rows * e->prefill_row_ms, most = e->cfg.step_ms;
    step->row_ms = any ? e->prefill_row_ms : 0;
    step->base_ms = ms < most ? ms : most;
    return !any || (e->prefill_row_ms > 0 && e->decode_ms > 0);
}

/* Counts the sequences that could have drafted but whose drafts would not have paid. */
static void note_refusals(struct engine *e, uint32_t n_chains)
{
    for (uint32_t i = 0; i < n_chains; i++) {
        struct drafted *d = &e->draft->of[e->draft->slots[i]];
        if (d->n > 0 || e->draft->chains[i].n_max == 0) {
            d->n_refused = 0;
            d->off = d->off && d->n == 0;
        } else if (++d->n_refused == OFF_AFTER && d->used && !d->off) {
            d->off = true;
            count(&e->turned_off, !d->was_off);
            d->was_off = true;
        }
    }
}

static uint32_t plan(struct engine *e, uint32_t n_logits, uint32_t *n_asked)
{
    struct draft_step step = {.always = e->cfg.speculation == ENGINE_SPECULATE_ALWAYS};
    uint32_t n_chains = e->draft ? list_chains(e, &step.n_rows) : 0, most = n_logits;
    most = most < e->max_rows ? most : e->max_rows;
    *n_asked = 0;
    if (n_chains == 0 || step.n_rows >= most || (!price_prefill(e, &step) && !step.always))
        return 0;
    *n_asked = n_chains;
    step.n_max = most - step.n_rows;
    uint32_t n = draft_plan(&e->draft->costs, &e->draft->all, &step, e->draft->chains, n_chains);
    if (n > 0 && read_forced(e, n_chains))
        n = draft_plan(&e->draft->costs, &e->draft->all, &step, e->draft->chains, n_chains);
    for (uint32_t i = 0; i < n_chains; i++)
        e->draft->of[e->draft->slots[i]].n = e->draft->chains[i].n;
    return n;
}

uint32_t engine_draft_plan(struct engine *e, uint32_t n_logits)
{
    uint32_t n_asked, n = plan(e, n_logits, &n_asked);
    note_refusals(e, n_asked);
    return n;
}

uint32_t engine_draft_length(const struct engine *e, uint32_t slot)
{
    return e->draft && e->n_flights == 0 ? e->draft->of[slot].n : 0;
}

int32_t engine_draft_at(const struct engine *e, uint32_t slot, uint32_t index)
{
    return e->draft->of[slot].tokens[index];
}

uint32_t engine_draft_mask(struct engine *e, uint32_t slot)
{
    struct drafted *d = &e->draft->of[slot];
    d->n = engine_constrain_ahead(e, slot, d->tokens, d->n);
    return d->n;
}

void engine_draft_sent(struct engine *e, struct flight *f, uint32_t slot, uint32_t n)
{
    if (!e->draft)
        return;
    struct drafted *d = &e->draft->of[slot];
    d->n_sent = n;
    f->n_draft += n;
    if (n == 0)
        return;
    count(&e->drafted, n);
    count(&e->draft_requests, !d->used);
    d->used = true;
}

/* Drafts wait for the results of the steps before them. The sequences beside wait too, which costs less than
 * a separate step for them. */
bool engine_draft_holds(struct engine *e)
{
    if (!e->draft || e->n_flights == 0)
        return false;
    const struct flight *last = &e->flights[(e->first_flight + e->n_flights - 1) % MAX_FLIGHTS];
    if (last->n_draft > 0)
        return true;
    engine_constrain_begin(e);
    uint32_t n_asked, n = plan(e, STEP_MAX_LOGITS, &n_asked);
    /* Without drafts the next step is built now; otherwise it is planned again when it is built. */
    if (n == 0 && !e->built)
        note_refusals(e, n_asked);
    return n > 0;
}

/* ---- judging the results ---- */

/* True if the draft row of logit row i was computed behind tokens that are all part of the text. */
static bool is_right(const struct flight *f, uint32_t i, int32_t token)
{
    const struct step_result *before = &f->results[i - 1];
    return !f->asked[i - 1].dropped && !(before->flags & STEP_RESULT_NOT_FINITE) && before->token == token &&
           !(f->results[i].flags & STEP_RESULT_NOT_FINITE); /* else it is computed again without drafts */
}

/* Judges logit rows [first, first + n] of a sequence; the first is no draft. Returns how many of the n drafts
 * are right. */
static uint32_t take_drafts(struct engine_request *r, struct flight *f, uint32_t first, const int32_t *tokens,
                            uint32_t n)
{
    uint32_t n_right = 0;
    for (uint32_t i = 1; i <= n; i++) {
        f->asked[first + i].dropped = !is_right(f, first + i, tokens[i - 1]);
        if (f->asked[first + i].dropped)
            continue;
        r->out[f->asked[first + i].index - 1].token = tokens[i - 1]; /* accept_rows() reads it */
        n_right++;
    }
    return n_right;
}

static void take_back(struct engine *e, struct flight *f, uint32_t slot, uint32_t n_wrong)
{
    e->seqs[slot].n_rows -= n_wrong;
    e->seqs[slot].n_samples -= n_wrong;
    for (uint32_t i = 0; i < f->n_spans; i++)
        if (f->spans[i].slot == slot)
            f->spans[i].end -= n_wrong;
}

static void note_forced(struct engine *e, uint32_t n, uint32_t n_right)
{
    for (uint32_t i = 0; i < n && i <= n_right; i++)
        draft_odds_note(&e->draft->forced, 1 + i, i < n_right, ALL_MEMORY);
    count(&e->forced, n_right);
}

void engine_draft_check(struct engine *e, struct flight *f)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < f->n_logits && f->n_draft; i++) {
        uint32_t slot = f->asked[i].slot;
        struct drafted *d = &e->draft->of[slot];
        uint32_t n = d->n_sent;
        if (f->asked[i].target || n == 0)
            continue;
        d->n_sent = 0;
        if (e->seqs[slot].r) {
            uint32_t n_right = take_drafts(e->seqs[slot].r, f, i, d->tokens, n);
            take_back(e, f, slot, n - n_right);
            engine_states_take_back(e, &e->seqs[slot], n_right, n_right == n);
            count(&e->accepted, n_right);
            if (e->seqs[slot].r->constraint)
                note_forced(e, n, n_right);
            longest = n_right > longest ? n_right : longest;
        }
        i += n;
    }
    count(&e->draft_steps, f->n_draft > 0);
    count(&e->steps_saved, longest);
}
