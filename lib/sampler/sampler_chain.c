#include "sampler_chain.h"
#include "sampler_chain_private.h"
#include "abi/arith.h"

#include <math.h>
#include <string.h>

#define MOST_NOISE 17.0f      /* arith_gumbel() is below 16.7 */
#define XTC_COIN   UINT32_MAX /* the counter of its word: no token's */

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

size_t sampler_chain_scratch_size(uint32_t n_vocab)
{
    return n_vocab * (sizeof(struct sampler_candidate) + sizeof(float) + sizeof(uint32_t)) + 64;
}

/* --- what is left --- */

static float largest(const struct left *l)
{
    float m = -INFINITY;
    for (uint32_t i = 0; i < l->n; i++)
        m = l->c[i].x > m ? l->c[i].x : m;
    return m;
}

/* Gives each its probability; returns the entropy in nats. ln p = (x - m) - ln sum, so one logarithm serves
 * all. */
static double softmax(struct left *l)
{
    float m = largest(l);
    double sum = 0, mean = 0;
    for (uint32_t i = 0; i < l->n; i++)
        sum += l->c[i].p = (double)arith_exp2((l->c[i].x - m) * ARITH_LOG2E);
    for (uint32_t i = 0; i < l->n; i++) {
        l->c[i].p /= sum;
        mean += l->c[i].p > 0 ? l->c[i].p * (double)(l->c[i].x - m) : 0;
    }
    l->m = m;
    l->ln_sum = (double)(arith_log2((float)sum) * ARITH_LN2);
    return l->ln_sum - mean;
}

static void keep_at_least(struct left *l, float x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->c[i].x >= x)
            l->c[n++] = l->c[i];
    l->n = n;
}

static bool before(const struct sampler_candidate *a, const struct sampler_candidate *b)
{
    return a->key != b->key ? a->key < b->key : a->id < b->id;
}

static void swap(struct sampler_candidate *a, struct sampler_candidate *b)
{
    struct sampler_candidate t = *a;
    *a = *b;
    *b = t;
}

/* Puts [from, to) around one of them, the middle of three; returns its place. */
static uint32_t split(struct sampler_candidate *c, uint32_t from, uint32_t to)
{
    uint32_t mid = from + (to - from) / 2, last = to - 1, at = from;
    if (before(&c[mid], &c[from]))
        swap(&c[mid], &c[from]);
    if (before(&c[last], &c[from]))
        swap(&c[last], &c[from]);
    if (before(&c[mid], &c[last]))
        swap(&c[mid], &c[last]);
    for (uint32_t i = from; i < last; i++)
        if (before(&c[i], &c[last]))
            swap(&c[i], &c[at++]);
    swap(&c[at], &c[last]);
    return at;
}

static bool reaches(double sum, double need, bool beyond)
{
    return beyond ? sum > need : sum >= need;
}

/* Keeps the shortest beginning of the order (key, then id, ascending) whose masses sum to `need`, or to more:
 * selection by halves, each pass over what is still in question. */
static void keep_mass(struct left *l, double need, bool beyond)
{
    uint32_t from = 0, to = l->n;
    double sum = 0;
    while (from < to) {
        uint32_t at = split(l->c, from, to);
        double below = sum;
        for (uint32_t i = from; i < at; i++)
            below += l->c[i].p;
        if (at > from && reaches(below, need, beyond)) {
            to = at;
        } else if (reaches(below + l->c[at].p, need, beyond)) {
            from = to = at + 1;
        } else {
            sum = below + l->c[at].p;
            from = at + 1;
        }
    }
    l->n = to ? to : 1;
}

static void order_by_x(struct left *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        l->c[i].key = -l->c[i].x;
}

/* --- filters --- */

#define COLDEST 1e-10f /* below it x / t leaves the range of floats, and the largest is all that is left */

static void top_k(struct left *l, int32_t k)
{
    if (k <= 0 || (uint32_t)k >= l->n)
        return;
    order_by_x(l);
    for (uint32_t i = 0; i < l->n; i++)
        l->c[i].p = 1;
    keep_mass(l, k, false);
}

static void top_p(struct left *l, float p)
{
    if (p >= 1)
        return;
    softmax(l);
    order_by_x(l);
    keep_mass(l, (double)p, false);
}

static void typical_p(struct left *l, float p)
{
    if (p >= 1)
        return;
    double entropy = softmax(l);
    for (uint32_t i = 0; i < l->n; i++)
        l->c[i].key = (float)fabs(l->ln_sum - (double)(l->c[i].x - l->m) - entropy);
    keep_mass(l, (double)p, true);
}

static void min_p(struct left *l, float p)
{
    float m = largest(l);
    uint32_t n = 0;
    for (uint32_t i = 0; p > 0 && i < l->n; i++)
        if (l->c[i].x == m || arith_exp2((l->c[i].x - m) * ARITH_LOG2E) >= p)
            l->c[n++] = l->c[i];
    l->n = p > 0 ? n : l->n;
}

static void top_n_sigma(struct left *l, float n)
{
    double sum = 0, squares = 0;
    if (n <= 0)
        return;
    for (uint32_t i = 0; i < l->n; i++) {
        sum += (double)l->c[i].x;
        squares += (double)l->c[i].x * (double)l->c[i].x;
    }
    double mean = sum / l->n, variance = squares / l->n - mean * mean;
    keep_at_least(l, (float)((double)largest(l) - (double)n * sqrt(variance > 0 ? variance : 0)));
}

static float coin(uint64_t seed, uint32_t position)
{
    uint32_t words[4];
    arith_philox(seed, position, XTC_COIN, words);
    return (float)(words[0] >> 8) * 0x1p-24f;
}

static void xtc(struct left *l, const struct sampler_chain *c, const struct sampler_input *in)
{
    uint32_t n_above = 0, n = 0, least = 0;
    if (!(c->xtc_probability > 0) || c->xtc_threshold > 0.5f ||
        coin(in->set->seed, in->position) >= c->xtc_probability)
        return;
    softmax(l);
    order_by_x(l);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->c[i].p < (double)c->xtc_threshold)
            continue;
        least = !n_above || before(&l->c[least], &l->c[i]) ? i : least;
        n_above++;
    }
    for (uint32_t i = 0; n_above > 1 && i < l->n; i++)
        if (i == least || l->c[i].p < (double)c->xtc_threshold)
            l->c[n++] = l->c[i];
    l->n = n_above > 1 ? n : l->n;
}

static void only_largest(struct left *l)
{
    struct sampler_candidate best = l->c[0];
    for (uint32_t i = 1; i < l->n; i++)
        if (l->c[i].x > best.x || (l->c[i].x == best.x && l->c[i].id < best.id))
            best = l->c[i];
    l->c[0] = best;
    l->n = 1;
}

static void temperature(struct left *l, const struct sampler_chain *c, float t)
{
    if (c->dynatemp_range > 0 && l->n > 1) {
        float lo = t > c->dynatemp_range ? t - c->dynatemp_range : 0, hi = t + c->dynatemp_range;
        double share = softmax(l) / (double)(arith_log2((float)l->n) * ARITH_LN2);
        float power = share > 0 ? arith_exp2(c->dynatemp_exponent * arith_log2((float)share)) : 0;
        t = lo + (hi - lo) * power;
    }
    if (!(t > COLDEST)) {
        only_largest(l);
        return;
    }
    for (uint32_t i = 0; i < l->n; i++)
        l->c[i].x /= t;
}

static void mirostat(struct left *l, double mu)
{
    uint32_t n = 0;
    softmax(l);
    for (uint32_t i = 0; i < l->n; i++) /* -log2 p = (ln sum - (x - m)) / ln 2 */
        if (l->c[i].x == l->m || (l->ln_sum - (double)(l->c[i].x - l->m)) * (double)ARITH_LOG2E <= mu)
            l->c[n++] = l->c[i];
    l->n = n;
    if (l->ln_sum * (double)ARITH_LOG2E > mu) /* not even the likeliest */
        only_largest(l);
}

static void adaptive(struct left *l, const struct sampler_chain *c)
{
    double target = 2 * (double)c->adaptive_target - c->adaptive_p / c->adaptive_n;
    target = target < 0 ? 0 : target > 1 ? 1 : target;
    softmax(l);
    for (uint32_t i = 0; i < l->n; i++) {
        double d = fabs(l->c[i].p - target) / 0.3;
        l->c[i].x = (float)(5 - 10 * d * d / (1 + d));
    }
}

/* --- the chain --- */

static void adjust(struct left *l, const struct sampler_input *in)
{
    for (uint32_t i = 0; i < in->n_vocab; i++) {
        bool masked = in->mask && !(in->mask[i / 32] >> (i % 32) & 1);
        float x = in->logits[i];
        l->x[i] = masked || !(x >= -3e38f) ? -INFINITY : x > 3e38f ? 3e38f : x;
    }
    for (uint32_t i = 0; i < in->set->n_bias; i++)
        l->x[in->biases[i].token] += in->biases[i].bias;
    for (uint32_t i = 0; i < in->n_banned; i++)
        l->x[in->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < in->n_vocab; i++)
        if (l->x[i] > -INFINITY)
            l->c[l->n++] = (struct sampler_candidate){.x = l->x[i], .id = (int32_t)i};
}

/* Every token was banned: the largest of the model's own logits, as in sampler.h. */
static void take_any(struct left *l, const struct sampler_input *in)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < in->n_vocab; i++)
        best = in->logits[i] > in->logits[best] ? (int32_t)i : best;
    l->c[0] = (struct sampler_candidate){.x = in->logits[best], .id = best};
    l->n = 1;
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
        typical_p(l, set->typical_p);
        break;
    case SAMPLER_TOP_P:
        top_p(l, set->top_p);
        break;
    case SAMPLER_MIN_P:
        min_p(l, set->min_p);
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

static void filter_all(struct left *l, struct sampler_chain *c, const struct sampler_input *in, void *scratch)
{
    *l = (struct left){.c = scratch};
    l->x = (float *)(l->c + in->n_vocab);
    l->counts = (uint32_t *)(l->x + in->n_vocab);
    adjust(l, in);
    if (!l->n)
        take_any(l, in);
    for (uint32_t i = 0; i < c->n_order; i++)
        if (runs(c, c->order[i]))
            run(l, c, in, c->order[i]);
    if (c->mirostat)
        mirostat(l, c->mu);
}

uint32_t sampler_chain_filter(struct sampler_chain *c, const struct sampler_input *in, void *scratch,
                              struct sampler_candidate **out)
{
    struct left l;
    filter_all(&l, c, in, scratch);
    if (c->adaptive_target >= 0)
        adaptive(&l, c);
    *out = l.c;
    return l.n;
}

static struct sampler_candidate draw(const struct left *l, const struct sampler_input *in)
{
    struct sampler_candidate best = {.id = -1};
    float score = 0;
    uint32_t words[4], group = UINT32_MAX; /* one call of the generator serves four tokens */
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t id = (uint32_t)l->c[i].id;
        if (best.id >= 0 && l->c[i].x + MOST_NOISE < score)
            continue;
        if (id / 4 != group)
            arith_philox(in->set->seed, in->position, group = id / 4, words);
        float s = l->c[i].x + arith_gumbel_of(words[id % 4]);
        if (best.id < 0 || s > score || (s == score && l->c[i].id < best.id)) {
            best = l->c[i];
            score = s;
        }
    }
    return best;
}

static int32_t draw_adaptive(struct left *l, struct sampler_chain *c, const struct sampler_input *in)
{
    adaptive(l, c); /* p stay those before it */
    struct sampler_candidate drawn = draw(l, in);
    c->adaptive_p = drawn.p + (double)c->adaptive_decay * c->adaptive_p;
    c->adaptive_n = 1 + (double)c->adaptive_decay * c->adaptive_n;
    return drawn.id;
}

static int32_t draw_mirostat(struct left *l, struct sampler_chain *c, const struct sampler_input *in)
{
    softmax(l); /* of what is left */
    struct sampler_candidate drawn = draw(l, in);
    double surprise = (l->ln_sum - (double)(drawn.x - l->m)) * (double)ARITH_LOG2E;
    c->mu -= (double)c->mirostat_eta * (surprise - (double)c->mirostat_tau);
    return drawn.id;
}

int32_t sampler_chain_pick(struct sampler_chain *c, const struct sampler_input *in, void *scratch)
{
    struct left l;
    int32_t token = chain_forced(c);
    if (token < 0 || (in->mask && !(in->mask[token / 32] >> (token % 32) & 1))) {
        filter_all(&l, c, in, scratch);
        token = c->adaptive_target >= 0 ? draw_adaptive(&l, c, in)
                : c->mirostat           ? draw_mirostat(&l, c, in)
                                        : draw(&l, in).id;
    }
    chain_count(c, token);
    return token;
}
