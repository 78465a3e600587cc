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
    for (uint32_t i = 0; i < l->t.n; i++) {
        float x = l->t.x[i];
        uint32_t times = l->counts[l->t.id[i]];
        if (times && scales)
            x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        if (times && adds)
            x -= fmaf(s->frequency_penalty, (float)times, s->presence_penalty);
        l->t.x[i] = chain_finite(x);
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

/* Returns where the first token of the newest such breaker stands among the `n` newest tokens; n: there is
 * none. Knuth, Morris and Pratt's search, from its last token to its first; `border` has room for its tokens:
 * border[k] of its k + 1 last ones begin and end alike. */
static uint32_t find_breaker(const struct reversed *r, const struct sampler_tokens *b, uint32_t n,
                             uint32_t *border)
{
    const int32_t *last = b->ids + b->n - 1;
    border[0] = 0;
    for (uint32_t k = 1, same = 0; k < b->n; k++) {
        while (same && last[-(int64_t)same] != last[-(int64_t)k])
            same = border[same - 1];
        same += last[-(int64_t)same] == last[-(int64_t)k];
        border[k] = same;
    }
    for (uint32_t i = 0, same = 0; i < n; i++) {
        while (same && last[-(int64_t)same] != token_at(r, i))
            same = border[same - 1];
        same += last[-(int64_t)same] == token_at(r, i);
        if (same == b->n)
            return i;
    }
    return n;
}

/* Returns the number of tokens after the newest breaker: the one that starts last; of several, the longest.
 * `room` is scratch for as many tokens as there are. */
static uint32_t behind_breaker(const struct sampler_chain *c, const struct reversed *r, uint32_t *room)
{
    uint32_t at = 0, longest = 1;
    while (at < r->n && !is_single(c, token_at(r, at)))
        at++;
    for (uint32_t k = 0; k < c->n_breakers; k++) {
        const struct sampler_tokens *b = &c->breakers[k];
        uint32_t n = at < r->n ? at + 1 : r->n; /* a longer one may begin with the same token */
        uint32_t found = b->n && b->n <= n ? find_breaker(r, b, n, room) : n;
        if (found < at || (found == at && found < n && b->n > longest)) {
            at = found;
            longest = b->n;
        }
    }
    return at < r->n ? at - (longest - 1) : r->n;
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
    if (!(c->dry_multiplier != 0) || c->dry_base < 1 || n <= c->dry_allowed_length || !in->dry)
        return;
    struct reversed r = {.end = in->history + in->n_history, .n = n};
    uint32_t limit = behind_breaker(c, &r, in->dry), cap = largest_exponent(c->dry_base);
    if (limit < c->dry_allowed_length)
        return;
    memset(l->counts, 0, in->n_vocab * sizeof *l->counts);
    find_repeats(l, c, &r, limit, in->dry);
    for (uint32_t i = 0; i < l->t.n; i++) {
        uint32_t count = l->counts[l->t.id[i]]; /* a repetition's length + 1 */
        if (!count || is_single(c, (int32_t)l->t.id[i]))
            continue;
        uint32_t e = count - 1 - c->dry_allowed_length;
        e = cap && e > cap ? cap : e;
        double penalty = (double)c->dry_multiplier * power((double)c->dry_base, e);
        l->t.x[i] -= (float)fmin(penalty, LARGEST_PENALTY);
    }
}

/* --- the budget --- */

int32_t chain_forced(const struct sampler_chain *c)
{
    const struct sampler_budget *b = &c->budget;
    bool due = b->on && c->inside && (c->forcing || c->n_inside >= b->limit);
    return due ? b->close.next[c->n_closed] : -1;
}

/* The number of a mark's bytes that end the text with this byte; before it there were n. */
static uint32_t mark_advance(const struct sampler_mark *mark, uint32_t n, char byte)
{
    for (uint32_t k = n + 1; k > 0; k--)
        if (mark->text[k - 1] == byte && !memcmp(mark->text, mark->text + (n + 1 - k), k - 1))
            return k;
    return 0;
}

/* Takes the bytes of a token. True when the mark is complete; what follows it in the token does not count. */
static bool mark_take(const struct sampler_mark *mark, uint32_t *n, const char *piece, uint32_t len)
{
    for (uint32_t i = 0; mark->n && i < len; i++) {
        *n = mark_advance(mark, *n, piece[i]);
        if (*n < mark->n)
            continue;
        *n = 0;
        return true;
    }
    return false;
}

void chain_count(struct sampler_chain *c, int32_t token)
{
    const struct sampler_budget *b = &c->budget;
    if (!b->on)
        return;
    uint32_t len = 0;
    const char *piece = b->piece(b->context, token, &len);
    if (!c->inside) {
        c->inside = piece && mark_take(&b->open, &c->n_opened, piece, len);
        c->n_inside = c->n_closed = 0;
        return;
    }
    c->forcing = c->forcing || c->n_inside >= b->limit;
    c->n_inside++;
    if (piece && mark_take(&b->close, &c->n_closed, piece, len))
        c->inside = c->forcing = false;
}
