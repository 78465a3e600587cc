/* sampler_history.c - the filters of a chain that look at the tokens so far, and the budget of reasoning. */
#include "sampler_chain_private.h"
#include "abi/arith.h"

#include <math.h>
#include <string.h>

#define LARGEST_EXPONENT 88.7228391f /* of e, in a float */

/* --- penalties --- */

void chain_penalties(struct left *l, const struct sampler_input *in)
{
    const struct step_sampling *s = in->set;
    uint32_t n = s->penalty_last_n < in->n_history ? s->penalty_last_n : in->n_history;
    bool adds = s->frequency_penalty != 0 || s->presence_penalty != 0, scales = s->repetition_penalty != 1;
    if (!n || (!adds && !scales))
        return;
    memset(l->counts, 0, in->n_vocab * sizeof *l->counts);
    for (uint32_t i = in->n_history - n; i < in->n_history; i++)
        l->counts[in->history[i]]++;
    for (uint32_t i = 0; i < l->n; i++) {
        struct sampler_candidate *c = &l->c[i];
        uint32_t count = l->counts[c->id];
        if (count && scales)
            c->x = c->x > 0 ? c->x / s->repetition_penalty : c->x * s->repetition_penalty;
        if (count && adds)
            c->x -= fmaf(s->frequency_penalty, (float)count, s->presence_penalty);
    }
}

/* --- dry: over the context read backwards --- */

#define LARGEST_PENALTY 1e9 /* beyond any logit, and far from the end of the range of floats */

struct reversed {
    const int32_t *end; /* one behind the newest token */
    uint32_t n;
};

static int32_t token_at(const struct reversed *r, uint32_t i)
{
    return r->end[-1 - (int64_t)i];
}

static bool is_single(const struct sampler_chain *c, int32_t token)
{
    return c->single && (uint32_t)token < c->n_single && c->single[token / 32] >> (token % 32) & 1;
}

/* The breaker b ends, read forwards, with the i newest tokens behind it: its first token stands at i. */
static bool breaks_at(const struct reversed *r, const struct sampler_tokens *b, uint32_t i)
{
    if (b->ids[0] != token_at(r, i) || b->n - 1 > i)
        return false;
    for (uint32_t k = 1; k < b->n; k++)
        if (b->ids[k] != token_at(r, i - k))
            return false;
    return true;
}

/* Returns how many of the newest tokens stand behind the newest breaker. */
static uint32_t behind_breaker(const struct sampler_chain *c, const struct reversed *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        uint32_t longest = is_single(c, token_at(r, i)) ? 1 : 0;
        for (uint32_t k = 0; k < c->n_breakers; k++)
            if (c->breakers[k].n > longest && breaks_at(r, &c->breakers[k], i))
                longest = c->breakers[k].n;
        if (longest)
            return i - (longest - 1);
    }
    return r->n;
}

static uint32_t largest_exponent(float base)
{
    return base > 1.000001f ? (uint32_t)(LARGEST_EXPONENT / (arith_log2(base) * ARITH_LN2)) : 0;
}

static double power(double base, uint32_t e)
{
    double out = 1;
    for (; e; e >>= 1, base *= base)
        out *= e & 1 ? base : 1;
    return out;
}

/* The Z-algorithm: z = how many tokens from k on equal those from 0 on, for each k from the last known match.
 * Sets counts[x] to the longest repetition that x would go on with, where it is `allowed` or more. */
static void find_repeats(struct left *l, const struct sampler_chain *c, const struct reversed *r,
                         uint32_t limit, uint32_t *z)
{
    uint32_t from = 0, to = 0; /* the match that ends last: [from, to) equals [0, to - from) */
    for (uint32_t k = 1; k < r->n; k++) {
        uint32_t n = k < to ? (z[k - from] < to - k ? z[k - from] : to - k) : 0;
        while (n + k < r->n && token_at(r, n) == token_at(r, n + k))
            n++;
        z[k] = n;
        if (k + n > to) {
            from = k;
            to = k + n;
        }
        n = n < limit ? n : limit;
        int32_t next = token_at(r, k - 1);
        if (n >= c->dry_allowed_length && l->counts[next] < n + 1)
            l->counts[next] = n + 1;
    }
}

void chain_dry(struct left *l, const struct sampler_chain *c, const struct sampler_input *in)
{
    uint32_t n = c->dry_last_n < in->n_history ? c->dry_last_n : in->n_history;
    struct reversed r = {.end = in->history + in->n_history, .n = n};
    if (!(c->dry_multiplier != 0) || c->dry_base < 1 || n <= c->dry_allowed_length || !in->dry)
        return;
    uint32_t limit = behind_breaker(c, &r), cap = largest_exponent(c->dry_base);
    if (limit < c->dry_allowed_length)
        return;
    memset(l->counts, 0, in->n_vocab * sizeof *l->counts);
    find_repeats(l, c, &r, limit, in->dry);
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t count = l->counts[l->c[i].id]; /* a repetition's length + 1 */
        if (!count || is_single(c, l->c[i].id))
            continue;
        uint32_t e = count - 1 - c->dry_allowed_length;
        e = cap && e > cap ? cap : e;
        double penalty = (double)c->dry_multiplier * power((double)c->dry_base, e);
        l->c[i].x -= (float)fmin(penalty, LARGEST_PENALTY);
    }
}

/* --- the budget --- */

int32_t chain_forced(const struct sampler_chain *c)
{
    const struct sampler_budget *b = &c->budget;
    bool due = b->on && c->inside && (c->forcing || c->n_inside >= b->limit);
    return due ? b->close.ids[c->n_closed] : -1;
}

/* The number of a mark's tokens that have come in a row, with this one. */
static uint32_t matched(const struct sampler_tokens *mark, uint32_t n, int32_t token)
{
    if (n < mark->n && mark->ids[n] == token)
        return n + 1;
    return mark->n && mark->ids[0] == token ? 1 : 0;
}

void chain_count(struct sampler_chain *c, int32_t token)
{
    const struct sampler_budget *b = &c->budget;
    if (!b->on)
        return;
    if (!c->inside) {
        c->n_opened = matched(&b->open, c->n_opened, token);
        c->inside = b->open.n && c->n_opened == b->open.n;
        c->n_inside = c->n_closed = 0;
        c->n_opened = c->inside ? 0 : c->n_opened;
        return;
    }
    c->forcing = c->forcing || c->n_inside >= b->limit;
    c->n_inside++;
    c->n_closed = matched(&b->close, c->n_closed, token);
    if (c->n_closed == b->close.n) {
        c->inside = c->forcing = false;
        c->n_closed = 0;
    }
}
