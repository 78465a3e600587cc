#include "sampler_chain.h"
#include "sampler_chain_private.h"
#include "abi/arith.h"

#include <math.h>
#include <string.h>

#define XTC_COIN UINT32_MAX /* the counter of its word: no token's */

void sampler_chain_defaults(struct sampler_chain *c)
{
    *c = (struct sampler_chain){.n_order = SAMPLER_N_FILTERS,
                                .xtc_threshold = 0.1f,
                                .dynatemp_exponent = 1,
                                .dry_base = 1.75f,
                                .dry_allowed_length = 2,
                                .dry_last_n = UINT32_MAX,
                                .mirostat_tau = 5,
                                .mirostat_eta = 0.1f,
                                .adaptive_target = -1,
                                .adaptive_decay = 0.9f};
    for (uint32_t i = 0; i < SAMPLER_N_FILTERS; i++)
        c->order[i] = (uint8_t)i;
}

void sampler_chain_begin(struct sampler_chain *c)
{
    double weight = 1 / (1 - (double)c->adaptive_decay);
    c->mu = 2 * (double)c->mirostat_tau;
    c->adaptive_n = weight;
    c->adaptive_p = (double)c->adaptive_target * weight; /* as if the target had always been met */
    c->inside = c->budget.begins_inside;
    c->n_inside = c->n_opened = c->n_closed = 0;
    c->forcing = false;
}

uint32_t sampler_chain_history(const struct sampler_chain *c, const struct step_sampling *set)
{
    uint32_t n = set->penalty_last_n;
    return c->dry_multiplier > 0 && c->dry_last_n > n ? c->dry_last_n : n;
}

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t sampler_chain_scratch_size(uint32_t n_vocab)
{
    return round_up(TOKENS_FEW * sizeof(struct candidate)) + round_up(n_vocab * sizeof(uint64_t)) +
           2 * round_up(n_vocab * sizeof(float)) + 2 * round_up(n_vocab * sizeof(uint32_t)) +
           round_up(n_vocab * sizeof(struct sampler_candidate));
}

static void *carve(char **at, size_t n)
{
    void *p = *at;
    *at += round_up(n);
    return p;
}

static struct left left_open(void *scratch, uint32_t n_vocab)
{
    char *at = scratch;
    struct left l = {.loops = sampler_loops_best(), .few = carve(&at, TOKENS_FEW * sizeof *l.few)};
    l.t.mass = carve(&at, n_vocab * sizeof *l.t.mass);
    l.t.x = carve(&at, n_vocab * sizeof *l.t.x);
    l.t.id = carve(&at, n_vocab * sizeof *l.t.id);
    l.w = carve(&at, n_vocab * sizeof *l.w);
    l.counts = carve(&at, n_vocab * sizeof *l.counts);
    l.out = carve(&at, n_vocab * sizeof *l.out);
    return l;
}

/* --- what is left --- */

#define LANES 8 /* partial sums, so that the processor need not wait for each sum before the next */

static double sum_lanes(const double v[LANES])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* Gives each its weight e^(x - m), p = w / sum; returns the entropy in nats. ln p = (x - m) - ln sum, so one
 * logarithm serves all. */
static double softmax(struct left *l)
{
    const float *x = l->t.x;
    float m = tokens_max(x, l->t.n), *w = l->w;
    double sums[LANES] = {0}, distances[LANES] = {0};
    l->loops->weights(x, l->t.n, m, w);
    for (uint32_t at = 0; at < l->t.n; at += LANES)
        for (uint32_t i = 0; i < LANES && at + i < l->t.n; i++) {
            sums[i] += (double)w[at + i];
            distances[i] += w[at + i] > 0 ? (double)w[at + i] * (double)(x[at + i] - m) : 0;
        }
    l->m = m;
    l->sum = sum_lanes(sums);
    l->ln_sum = (double)(arith_log2((float)l->sum) * ARITH_LN2);
    return l->ln_sum - sum_lanes(distances) / l->sum;
}

static uint32_t block_at(const struct left *l, uint32_t at)
{
    return l->t.n - at < TOKENS_BLOCK ? l->t.n - at : TOKENS_BLOCK;
}

static void keep_at_least(struct left *l, float least)
{
    bool keep[TOKENS_BLOCK];
    uint32_t n, kept = 0;
    for (uint32_t at = 0; at < l->t.n; at += n) {
        n = block_at(l, at);
        for (uint32_t i = 0; i < n; i++)
            keep[i] = l->t.x[at + i] >= least;
        kept = tokens_keep(&l->t, NULL, at, n, keep, kept);
    }
    l->t.n = kept;
}

float chain_finite(float x)
{
    return x > 3e38f ? 3e38f : x < -3e38f ? -3e38f : x;
}

/* --- filters --- */

#define COLDEST 1e-10f /* below it x / t leaves the range of floats, and the largest is all that is left */

static void top_k(struct left *l, int32_t k)
{
    if (k > 0 && (uint32_t)k < l->t.n)
        tokens_top_k(l->loops, &l->t, (uint32_t)k, l->few);
}

static void top_n_sigma(struct left *l, float n)
{
    double sum = 0, squares = 0;
    if (n <= 0)
        return;
    for (uint32_t i = 0; i < l->t.n; i++) {
        sum += (double)l->t.x[i];
        squares += (double)l->t.x[i] * (double)l->t.x[i];
    }
    double mean = sum / l->t.n, variance = squares / l->t.n - mean * mean;
    float max = tokens_max(l->t.x, l->t.n);
    keep_at_least(l, (float)((double)max - (double)n * sqrt(variance > 0 ? variance : 0)));
}

static float coin(uint64_t seed, uint32_t position)
{
    uint32_t words[4];
    arith_philox(seed, position, XTC_COIN, words);
    return (float)(words[0] >> 8) * 0x1p-24f;
}

/* The last of those that are likely enough, by logit, then id; their number. */
static uint32_t find_least(const struct left *l, double limit, uint32_t *least)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->t.n; i++) {
        if ((double)l->w[i] < limit)
            continue;
        *least = !n || l->t.x[i] <= l->t.x[*least] ? i : *least; /* the ids ascend */
        n++;
    }
    return n;
}

static void xtc(struct left *l, const struct sampler_chain *c, const struct sampler_input *in)
{
    bool keep[TOKENS_BLOCK];
    uint32_t least = 0, n, kept = 0;
    if (!(c->xtc_probability > 0) || c->xtc_threshold > 0.5f ||
        coin(in->set->seed, in->position) >= c->xtc_probability)
        return;
    softmax(l);
    double limit = (double)c->xtc_threshold * l->sum;
    if (find_least(l, limit, &least) < 2)
        return;
    for (uint32_t at = 0; at < l->t.n; at += n) {
        n = block_at(l, at);
        for (uint32_t i = 0; i < n; i++)
            keep[i] = (double)l->w[at + i] < limit || at + i == least;
        kept = tokens_keep(&l->t, NULL, at, n, keep, kept);
    }
    l->t.n = kept;
}

static void only_largest(struct left *l)
{
    uint32_t i = 0;
    float max = tokens_max(l->t.x, l->t.n);
    while (i + 1 < l->t.n && l->t.x[i] < max)
        i++;
    l->t.x[0] = l->t.x[i];
    l->t.id[0] = l->t.id[i];
    l->t.n = 1;
}

static void temperature(struct left *l, const struct sampler_chain *c, float t)
{
    if (c->dynatemp_range > 0 && l->t.n > 1) {
        float lo = t > c->dynatemp_range ? t - c->dynatemp_range : 0, hi = t + c->dynatemp_range;
        double share = softmax(l) / (double)(arith_log2((float)l->t.n) * ARITH_LN2);
        float power = share > 0 ? arith_exp2(c->dynatemp_exponent * arith_log2((float)share)) : 0;
        t = lo + (hi - lo) * power;
    }
    if (!(t > COLDEST)) {
        only_largest(l);
        return;
    }
    for (uint32_t i = 0; i < l->t.n && t != 1; i++)
        l->t.x[i] = chain_finite(l->t.x[i] / t);
}

static void mirostat(struct left *l, double mu)
{
    bool keep[TOKENS_BLOCK];
    uint32_t n, kept = 0;
    softmax(l);
    for (uint32_t at = 0; at < l->t.n; at += n) {
        const float *x = l->t.x + at;
        n = block_at(l, at);
        for (uint32_t i = 0; i < n; i++) /* -log2 p = (ln sum - (x - m)) / ln 2 */
            keep[i] = x[i] == l->m || (l->ln_sum - (double)(x[i] - l->m)) * (double)ARITH_LOG2E <= mu;
        kept = tokens_keep(&l->t, NULL, at, n, keep, kept);
    }
    l->t.n = kept;
    if (l->ln_sum * (double)ARITH_LOG2E > mu) /* not even the likeliest */
        only_largest(l);
}

static void adaptive(struct left *l, const struct sampler_chain *c)
{
    double target = 2 * (double)c->adaptive_target - c->adaptive_p / c->adaptive_n;
    target = target < 0 ? 0 : target > 1 ? 1 : target;
    softmax(l);
    for (uint32_t i = 0; i < l->t.n; i++) {
        double d = fabs((double)l->w[i] / l->sum - target) / 0.3;
        l->t.x[i] = (float)(5 - 10 * d * d / (1 + d));
    }
}

/* --- the chain --- */

/* The logits that the filters begin with, in the room of the weights. */
static void adjust(struct left *l, const struct sampler_input *in)
{
    for (uint32_t i = 0; i < in->n_vocab; i++) {
        float x = in->logits[i];
        l->w[i] = !(x >= -3e38f) ? -INFINITY : x > 3e38f ? 3e38f : x;
    }
    for (uint32_t i = 0; in->mask && i < in->n_vocab; i++)
        l->w[i] = in->mask[i / 32] >> (i % 32) & 1 ? l->w[i] : -INFINITY;
    for (uint32_t i = 0; i < in->set->n_bias; i++)
        l->w[in->biases[i].token] += in->biases[i].bias;
    for (uint32_t i = 0; i < in->n_banned; i++)
        l->w[in->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < in->n_vocab; i++) {
        l->t.x[l->t.n] = l->w[i];
        l->t.id[l->t.n] = i;
        l->t.n += l->w[i] > -INFINITY;
    }
}

/* Every token was banned: the largest of the model's own logits, as in sampler.h. */
static void take_any(struct left *l, const struct sampler_input *in)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < in->n_vocab; i++)
        best = in->logits[i] > in->logits[best] ? i : best;
    l->t.x[0] = chain_finite(in->logits[best]);
    l->t.id[0] = best;
    l->t.n = 1;
}

static void run(struct left *l, const struct sampler_chain *c, const struct sampler_input *in,
                enum sampler_filter filter)
{
    const struct step_sampling *set = in->set;
    switch (filter) {
    case SAMPLER_PENALTIES:
        chain_penalties(l, in);
        break;
    case SAMPLER_DRY:
        chain_dry(l, c, in);
        break;
    case SAMPLER_TOP_N_SIGMA:
        top_n_sigma(l, c->top_n_sigma);
        break;
    case SAMPLER_TOP_K:
        top_k(l, set->top_k);
        break;
    case SAMPLER_TYPICAL_P:
        if (set->typical_p < 1)
            tokens_typical_p(l->loops, &l->t, set->typical_p, true, l->few);
        break;
    case SAMPLER_TOP_P:
        if (set->top_p < 1)
            tokens_top_p(l->loops, &l->t, set->top_p, l->few);
        break;
    case SAMPLER_MIN_P:
        if (set->min_p > 0)
            tokens_min_p(l->loops, &l->t, set->min_p);
        break;
    case SAMPLER_XTC:
        xtc(l, c, in);
        break;
    case SAMPLER_TEMPERATURE:
        temperature(l, c, set->temperature);
        break;
    case SAMPLER_N_FILTERS:
        break;
    }
}

static bool runs(const struct sampler_chain *c, enum sampler_filter filter)
{
    return !c->mirostat || filter == SAMPLER_PENALTIES || filter == SAMPLER_DRY ||
           filter == SAMPLER_TEMPERATURE;
}

static struct left filter_all(struct sampler_chain *c, const struct sampler_input *in, void *scratch)
{
    struct left l = left_open(scratch, in->n_vocab);
    adjust(&l, in);
    if (!l.t.n)
        take_any(&l, in);
    for (uint32_t i = 0; i < c->n_order; i++)
        if (runs(c, c->order[i]))
            run(&l, c, in, c->order[i]);
    if (c->mirostat)
        mirostat(&l, c->mu);
    return l;
}

uint32_t sampler_chain_filter(struct sampler_chain *c, const struct sampler_input *in, void *scratch,
                              struct sampler_candidate **out)
{
    struct left l = filter_all(c, in, scratch);
    if (c->adaptive_target >= 0)
        adaptive(&l, c);
    for (uint32_t i = 0; i < l.t.n; i++)
        l.out[i] = (struct sampler_candidate){.x = l.t.x[i], .id = (int32_t)l.t.id[i]};
    *out = l.out;
    return l.t.n;
}

/* Returns the place of the largest x + noise among what is left. */
static uint32_t draw(const struct left *l, const struct sampler_input *in)
{
    struct sampler_noise noise = {
        .max = 0, .temperature = 1, .seed = in->set->seed, .position = in->position};
    uint32_t id = tokens_draw(l->loops, &noise, &l->t), i = 0;
    while (i + 1 < l->t.n && l->t.id[i] != id)
        i++;
    return i;
}

static uint32_t draw_adaptive(struct left *l, struct sampler_chain *c, const struct sampler_input *in)
{
    adaptive(l, c); /* the weights stay those before it */
    uint32_t drawn = draw(l, in);
    c->adaptive_p = (double)l->w[drawn] / l->sum + (double)c->adaptive_decay * c->adaptive_p;
    c->adaptive_n = 1 + (double)c->adaptive_decay * c->adaptive_n;
    return drawn;
}

static uint32_t draw_mirostat(struct left *l, struct sampler_chain *c, const struct sampler_input *in)
{
    softmax(l); /* of what is left */
    uint32_t drawn = draw(l, in);
    double surprise = (l->ln_sum - (double)(l->t.x[drawn] - l->m)) * (double)ARITH_LOG2E;
    c->mu -= (double)c->mirostat_eta * (surprise - (double)c->mirostat_tau);
    return drawn;
}

int32_t sampler_chain_pick(struct sampler_chain *c, const struct sampler_input *in, void *scratch)
{
    int32_t token = chain_forced(c);
    if (token < 0 || (in->mask && !(in->mask[token / 32] >> (token % 32) & 1))) {
        struct left l = filter_all(c, in, scratch);
        uint32_t drawn = c->adaptive_target >= 0 ? draw_adaptive(&l, c, in)
                         : c->mirostat           ? draw_mirostat(&l, c, in)
                                                 : draw(&l, in);
        token = (int32_t)l.t.id[drawn];
    }
    chain_count(c, token);
    return token;
}
