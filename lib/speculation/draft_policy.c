#include "draft_policy.h"

#include <assert.h>
#include <stddef.h>

#define PRIOR_TRIES 4.0f /* weight of the odds of all sequences in those of one */
#define PLAIN_STEPS 64   /* steps for which the cost of a step without drafts is valid */
#define DRAFT_STEPS 512  /* the same for a step with drafts that was seen five times or more */
#define FIRST_STEPS 24   /* the same for one seen n times: FIRST_STEPS << n */
#define FIRST_SLOPE 0.06 /* of a step's time: the assumed cost of a draft row until one is measured */
#define WORTH       1.03 /* factor on the tokens per millisecond without drafts that a plan must exceed */

/* ---- odds ---- */

static uint32_t class_of(uint32_t length)
{
    static const uint32_t from[DRAFT_CLASSES] = {0, 2, 3, 4, 6, 9, 16};
    uint32_t class = DRAFT_CLASSES - 1;
    while (from[class] > length)
        class --;
    return class;
}

void draft_odds_open(struct draft_odds *all)
{
    static const float first[DRAFT_CLASSES] = {0.3f, 0.1f, 0.2f, 0.35f, 0.5f, 0.65f, 0.8f};
    for (uint32_t i = 0; i < DRAFT_CLASSES; i++) {
        all->tries[i] = PRIOR_TRIES;
        all->hits[i] = PRIOR_TRIES * first[i];
    }
}

void draft_odds_note(struct draft_odds *o, uint32_t length, bool right, float memory)
{
    uint32_t class = class_of(length);
    assert(memory >= 1);
    float keep = 1 - 1 / memory;
    o->tries[class] = o->tries[class] * keep + 1;
    o->hits[class] = o->hits[class] * keep + (right ? 1.0f : 0.0f);
}

float draft_odds_of(const struct draft_odds *own, const struct draft_odds *all, uint32_t length)
{
    uint32_t class = class_of(length);
    float prior = all->tries[class] > 0 ? all->hits[class] / all->tries[class] : 0;
    float odds = (own->hits[class] + PRIOR_TRIES * prior) / (own->tries[class] + PRIOR_TRIES);
    assert(odds >= 0 && odds <= 1); /* also no NaN, with which every plan would be the best */
    return odds;
}

/* ---- costs ---- */

static bool is_known(const struct draft_costs *c, const struct draft_cost *cost)
{
    bool plain = cost >= c->plain && cost <= c->plain + STEP_MAX_LOGITS;
    uint64_t steps = plain ? PLAIN_STEPS : cost->n < 5 ? FIRST_STEPS << cost->n : DRAFT_STEPS;
    return cost->n && c->n_steps - cost->noted <= steps;
}

void draft_costs_note(struct draft_costs *c, uint32_t n_rows, uint32_t n_draft, double ms)
{
    if (n_rows > STEP_MAX_LOGITS || ms <= 0)
        return;
    struct draft_cost *cost = n_draft ? &c->drafted[n_rows] : &c->plain[n_rows];
    bool known = is_known(c, cost);
    float value = (float)ms;
    if (known && value > 2 * cost->ms) /* limits the effect of a single outlier */
        value = 2 * cost->ms;
    cost->ms = known ? 0.75f * cost->ms + 0.25f * value : value;
    cost->noted = ++c->n_steps;
    cost->n++;
}

static double between(double x, double x0, double y0, double x1, double y1)
{
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

/* Interpolates between known costs within a quarter of n_rows: a few rows more or less cost nearly the
 * same. */
double draft_cost_plain(const struct draft_costs *c, uint32_t n_rows)
{
    uint32_t reach = n_rows / 4, low = n_rows, high = n_rows;
    if (n_rows > STEP_MAX_LOGITS)
        return 0;
    while (low > 0 && low + reach >= n_rows && !is_known(c, &c->plain[low]))
        low--;
    while (high <= STEP_MAX_LOGITS && high <= n_rows + reach && !is_known(c, &c->plain[high]))
        high++;
    bool below = low > 0 && low + reach >= n_rows, above = high <= STEP_MAX_LOGITS && high <= n_rows + reach;
    if (below && above && high > low)
        return between(n_rows, low, c->plain[low].ms, high, c->plain[high].ms);
    return below ? c->plain[low].ms : above ? c->plain[high].ms : 0;
}

double draft_cost(const struct draft_costs *c, uint32_t n_rows, uint32_t n_draft)
{
    double base = draft_cost_plain(c, n_rows), low_ms = base, ms;
    uint32_t n = n_rows + n_draft, low = n, high = n;
    assert(n <= STEP_MAX_LOGITS);
    while (low > n_rows && !is_known(c, &c->drafted[low]))
        low--;
    while (high <= STEP_MAX_LOGITS && !is_known(c, &c->drafted[high]))
        high++;
    if (low > n_rows)
        low_ms = c->drafted[low].ms;
    if (low == n)
        ms = low_ms;
    else if (high <= STEP_MAX_LOGITS)
        ms = between(n, low, low_ms, high, c->drafted[high].ms);
    else if (low > n_rows)
        ms = between(n, n_rows, base, low, low_ms);
    else
        ms = base * (1 + FIRST_SLOPE * n_draft);
    return ms > base ? ms : base;
}

/* The largest number of draft rows whose cost is known; a plan goes at most to twice that. */
static uint32_t known_drafts(const struct draft_costs *c, uint32_t n_rows)
{
    uint32_t n = STEP_MAX_LOGITS;
    assert(n_rows <= n);
    while (n > n_rows && !is_known(c, &c->drafted[n]))
        n--;
    return n - n_rows;
}

/* ---- the plan ---- */

static double step_cost(const struct draft_costs *c, const struct draft_step *step, uint32_t n_draft)
{
    if (step->always)
        return 1;
    if (step->row_ms > 0)
        return step->base_ms + step->row_ms * n_draft;
    return n_draft ? draft_cost(c, step->n_rows, n_draft) : draft_cost_plain(c, step->n_rows);
}

/* The chain whose next token is the most likely to count, or NULL. */
static struct draft_chain *likeliest(struct draft_chain *chains, uint32_t n_chains)
{
    struct draft_chain *best = NULL;
    for (uint32_t i = 0; i < n_chains; i++)
        if (chains[i].n < chains[i].n_max && (!best || chains[i].reach > best->reach))
            best = &chains[i];
    return best;
}

/* Adds one token to the chain. Returns the expected gain of the step in tokens. */
static float extend(struct draft_chain *chain, const struct draft_odds *all)
{
    float reach = chain->reach;
    chain->n++;
    chain->reach *= draft_odds_of(chain->odds, all, chain->length + chain->n);
    return reach;
}

uint32_t draft_plan(const struct draft_costs *c, const struct draft_odds *all, const struct draft_step *step,
                    struct draft_chain *chains, uint32_t n_chains)
{
    struct draft_chain *order[STEP_MAX_LOGITS];
    uint32_t n = 0, n_best = 0, n_max = step->n_max < STEP_MAX_LOGITS ? step->n_max : STEP_MAX_LOGITS;
    double base = step_cost(c, step, 0), tokens = step->n_rows;
    if (!step->always && step->row_ms <= 0) {
        uint32_t next = 2 * known_drafts(c, step->n_rows) + 1;
        n_max = n_max < next ? n_max : next;
    }
    for (uint32_t i = 0; i < n_chains; i++) {
        chains[i].n = 0;
        chains[i].reach = draft_odds_of(chains[i].odds, all, chains[i].length);
    }
    double best = base > 0 ? WORTH * tokens / base : 0;
    while (base > 0 && n < n_max && (order[n] = likeliest(chains, n_chains))) {
        tokens += extend(order[n++], all);
        double rate = tokens / step_cost(c, step, n);
        if (rate > best || step->always) {
            best = rate;
            n_best = n;
        }
    }
    for (; n > n_best; n--)
        order[n - 1]->n--;
    return n_best;
}
