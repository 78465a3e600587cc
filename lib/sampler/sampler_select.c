#include "sampler_select.h"
#include "abi/arith.h"
#include "sampler_loops.h"

#include <string.h>

#define BLOCK   TOKENS_BLOCK
#define FEW     TOKENS_FEW
#define BUCKETS 1024 /* ranges of an order that are told apart at once */

/* ---- passes over tokens ---- */

static inline bool any_in(const uint32_t *bucket, uint32_t n, uint32_t b)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= bucket[i] == b;
    return any != 0;
}

static inline bool any_within(const uint32_t *rank, uint32_t n, uint32_t most)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= rank[i] <= most;
    return any != 0;
}

/* Vectorises: a maximum has no order. */
float tokens_max(const float *x, uint32_t n)
{
    float lane[ARITH_LANES], max = -ARITH_INF;
    for (int l = 0; l < ARITH_LANES; l++)
        lane[l] = -ARITH_INF;
    uint32_t i = 0;
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (uint32_t l = 0; l < ARITH_LANES; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int l = 0; l < ARITH_LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    return max;
}

uint32_t tokens_keep(struct tokens *set, uint64_t *mass, uint32_t at, uint32_t n, const bool *keep,
                     uint32_t kept)
{
    float *x = set->x;
    uint32_t *id = set->id, n_keep = 0, to = kept;
    for (uint32_t i = 0; i < n; i++)
        n_keep += keep[i];
    if (n_keep == 0 || (n_keep == n && kept == at))
        return kept + n_keep;
    for (uint32_t i = 0; i < n; i++) {
        x[to] = x[at + i];
        id[to] = id[at + i];
        to += keep[i];
    }
    for (uint32_t i = 0; mass && i < n; i++) {
        mass[kept] = mass[at + i];
        kept += keep[i];
    }
    return to;
}

/* ---- selection of few ---- */

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->key > b->key || (a->key == b->key && a->id < b->id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    struct candidate t = *a;
    *a = *b;
    *b = t;
}

static struct candidate median_of_three(const struct candidate *set, uint32_t n)
{
    const struct candidate *a = set, *b = set + n / 2, *c = set + n - 1;
    if (before(b, a)) {
        const struct candidate *t = a;
        a = b;
        b = t;
    }
    return before(c, a) ? *a : before(c, b) ? *c : *b;
}

/* Moves the pivot and the candidates that order before it to the front. Returns their number. The order is
 * strict, so the pivot is the last among them. */
static uint32_t partition(struct candidate *set, uint32_t n, struct candidate pivot)
{
    uint32_t n_front = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!before(&pivot, &set[i]))
            swap(&set[i], &set[n_front++]);
    return n_front;
}

static uint64_t sum_mass(const struct candidate *set, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += set[i].mass;
    return sum;
}

/* Quickselect by mass: nothing is sorted. */
uint32_t candidates_select(struct candidate *set, uint32_t n, uint64_t need)
{
    uint32_t low = 0, high = n; /* the run ends inside [low, high] and contains all below `low` */
    while (high - low > 1) {
        struct candidate pivot = median_of_three(set + low, high - low);
        uint32_t n_front = partition(set + low, high - low, pivot);
        if (n_front == high - low) { /* the pivot is the last: set it apart */
            for (uint32_t i = low; i < high; i++)
                if (set[i].id == pivot.id)
                    swap(&set[i], &set[high - 1]);
            n_front--;
        }
        uint64_t front = sum_mass(set + low, n_front);
        if (front >= need) {
            high = low + n_front;
        } else {
            need -= front;
            low += n_front;
        }
    }
    return low + 1;
}

/* ---- selection of many ---- */

/* Larger keys first, equal ones by the smaller id: the logit, or how near the surprise is to the mean. */
struct order {
    const struct sampler_loops *loops;
    bool typical;
    float max, mean;
};

/* The keys of tokens [at, at + n) with n <= BLOCK, in `room` where they are not the logits themselves. */
static const float *keys_of(const struct order *o, const struct tokens *set, uint32_t at, uint32_t n,
                            float room[BLOCK])
{
    if (!o->typical)
        return set->x + at;
    o->loops->nearness(set->x + at, n, o->max, o->mean, room);
    return room;
}

static uint32_t block_at(const struct tokens *set, uint32_t at)
{
    return set->n - at < BLOCK ? set->n - at : BLOCK;
}

/* Cuts [low, high], low < high, into BUCKETS, the largest keys first. Keys may lie so near one another, or so
 * far apart, that their difference is no normal number: then they are stretched. */
static struct sampler_range range_of(float low, float high)
{
    float stretch = high - low < 1e-30f ? 0x1p96f : high - low > 1e30f ? 0x1p-8f : 1.0f;
    return (struct sampler_range){.low = low,
                                  .high = high,
                                  .stretch = stretch,
                                  .scale = (BUCKETS - 1) / (high * stretch - low * stretch),
                                  .n_buckets = BUCKETS};
}

static void sum_buckets(const struct order *o, const struct tokens *set, const struct sampler_range *range,
                        bool unit, uint64_t sum[BUCKETS + 1])
{
    const uint64_t *mass = set->mass;
    float room[BLOCK];
    uint32_t bucket[BLOCK], n;
    memset(sum, 0, (BUCKETS + 1) * sizeof *sum);
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        o->loops->buckets(keys_of(o, set, at, n, room), n, range, bucket);
        for (uint32_t i = 0; i < n; i++)
            sum[bucket[i]] += unit ? 1 : mass[at + i];
    }
}

/* The bucket in which the masses reach *need; those before it are taken off. */
static uint32_t find_bucket(const uint64_t sum[BUCKETS], uint64_t *need)
{
    uint32_t b = 0;
    for (; b < BUCKETS - 1 && sum[b] < *need; b++)
        *need -= sum[b];
    return b;
}

/* Finds the number of tokens in a bucket, and their smallest and largest key. */
static uint32_t find_bounds(const struct order *o, const struct tokens *set,
                            const struct sampler_range *range, uint32_t b, float *low, float *high)
{
    float room[BLOCK];
    uint32_t bucket[BLOCK], n, n_all = 0;
    *low = ARITH_INF;
    *high = -ARITH_INF;
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *key = keys_of(o, set, at, n, room);
        o->loops->buckets(key, n, range, bucket);
        if (any_in(bucket, n, b))
            n_all += o->loops->bounds(key, bucket, n, b, low, high);
    }
    return n_all;
}

/* Among tokens of one key the ids decide, and they ascend. */
static struct candidate cut_equal(const struct order *o, const struct tokens *set, float same, bool unit,
                                  uint64_t need)
{
    float room[BLOCK];
    uint32_t n;
    struct candidate last = {.key = same};
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *key = keys_of(o, set, at, n, room);
        for (uint32_t i = 0; i < n; i++) {
            if (key[i] != same)
                continue;
            last.id = set->id[at + i];
            uint64_t mass = unit ? 1 : set->mass[at + i];
            if (mass >= need)
                return last;
            need -= mass;
        }
    }
    return last;
}

/* Selects the tokens of a bucket, or of all without a range, one by one. */
static struct candidate cut_few(const struct order *o, const struct tokens *set,
                                const struct sampler_range *range, uint32_t b, bool unit, uint64_t need,
                                struct candidate *few)
{
    float room[BLOCK];
    uint32_t bucket[BLOCK] = {0}, n, n_few = 0;
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *key = keys_of(o, set, at, n, room);
        if (range)
            o->loops->buckets(key, n, range, bucket);
        if (!any_in(bucket, n, b))
            continue;
        for (uint32_t i = 0; i < n; i++)
            if (bucket[i] == b)
                few[n_few++] = (struct candidate){
                    .key = key[i], .id = set->id[at + i], .mass = unit ? 1 : set->mass[at + i]};
    }
    uint32_t n_run = candidates_select(few, n_few, need), last = 0;
    for (uint32_t i = 1; i < n_run; i++)
        last = before(&few[last], &few[i]) ? i : last;
    return few[last];
}

/* The last token of the shortest list in this order whose masses (`unit`: one each) reach `need`. All keys
 * lie in [low, high]; this range is narrowed to one of few tokens, or of one key. */
static struct candidate find_cut(const struct order *o, const struct tokens *set, float low, float high,
                                 bool unit, uint64_t need, struct candidate *few)
{
    uint64_t sum[BUCKETS + 1]; /* the last: outside of the range */
    need += need == 0;         /* one token always stays */
    if (set->n <= FEW)
        return cut_few(o, set, NULL, 0, unit, need, few);
    while (low < high) {
        struct sampler_range range = range_of(low, high);
        sum_buckets(o, set, &range, unit, sum);
        uint32_t b = find_bucket(sum, &need);
        if (find_bounds(o, set, &range, b, &low, &high) <= FEW)
            return cut_few(o, set, &range, b, unit, need, few);
    }
    return cut_equal(o, set, low, unit, need);
}

static void keep_to(const struct order *o, struct tokens *set, struct candidate last)
{
    float room[BLOCK];
    bool keep[BLOCK];
    uint32_t n, kept = 0;
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *key = keys_of(o, set, at, n, room);
        const uint32_t *id = set->id + at;
        for (uint32_t i = 0; i < n; i++)
            keep[i] = (key[i] > last.key) | ((key[i] == last.key) & (id[i] <= last.id));
        kept = tokens_keep(set, NULL, at, n, keep, kept);
    }
    set->n = kept;
}

/* ---- filters ---- */

void tokens_top_k(const struct sampler_loops *loops, struct tokens *set, uint32_t k, struct candidate *few)
{
    struct order by_logit = {.loops = loops};
    float low = ARITH_INF, high = -ARITH_INF;
    for (uint32_t i = 0; i < set->n; i++) {
        low = set->x[i] < low ? set->x[i] : low;
        high = set->x[i] > high ? set->x[i] : high;
    }
    keep_to(&by_logit, set, find_cut(&by_logit, set, low, high, true, k, few));
}

/* Fills in the masses and drops tokens that have none. *surprise: the masses times the distance from the
 * likeliest. */
static uint64_t weigh(const struct sampler_loops *loops, struct tokens *set, float max, uint64_t *surprise)
{
    uint64_t total = 0, *mass = set->mass;
    uint32_t kept = 0, n;
    bool keep[BLOCK];
    *surprise = 0;
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        loops->masses(set->x + at, n, max, mass + at, &total, surprise);
        for (uint32_t i = 0; i < n; i++)
            keep[i] = mass[at + i] != 0;
        kept = tokens_keep(set, mass, at, n, keep, kept);
    }
    set->n = kept;
    return total;
}

#define REACH TOKENS_REACH

static uint64_t needed(uint64_t total, float p)
{
    uint64_t share = p > 0.0f ? (uint64_t)(int64_t)((p < 1.0f ? p : 1.0f) * 0x1p24f) : 0;
    return (total >> 24) * share + (((total & 0xffffff) * share) >> 24);
}

void tokens_typical_p(const struct sampler_loops *loops, struct tokens *set, float p, bool beyond,
                      struct candidate *few)
{
    struct order by_nearness = {.loops = loops, .typical = true, .max = tokens_max(set->x, set->n)};
    uint64_t surprise, total = weigh(loops, set, by_nearness.max, &surprise);
    by_nearness.mean = (float)surprise / (float)total;
    keep_to(&by_nearness, set, find_cut(&by_nearness, set, -REACH, 0, false, needed(total, p) + beyond, few));
}

void tokens_top_p(const struct sampler_loops *loops, struct tokens *set, float p, struct candidate *few)
{
    struct order by_logit = {.loops = loops};
    float max = tokens_max(set->x, set->n), low = max - REACH - (max < 0.0f ? -max : max) * 0x1p-22f;
    uint64_t surprise, total = weigh(loops, set, max, &surprise);
    keep_to(&by_logit, set, find_cut(&by_logit, set, low, max, false, needed(total, p), few));
}

void tokens_min_p(const struct sampler_loops *loops, struct tokens *set, float p)
{
    float max = tokens_max(set->x, set->n), w[BLOCK];
    uint32_t n, kept = 0;
    bool keep[BLOCK];
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *x = set->x + at;
        loops->weights(x, n, max, w);
        for (uint32_t i = 0; i < n; i++)
            keep[i] = (x[i] == max) | (w[i] >= p);
        kept = tokens_keep(set, NULL, at, n, keep, kept);
    }
    set->n = kept;
}

/* ---- the draw ---- */

#define NOISE_MAX   16.7f
#define NOISE_STEPS 0x1p23f

/* A token whose score may reach `best` has a noise of at least `least`: the random words whose ranks from the
 * greatest noise down (sampler_loops.h) are at most the result. Some more, for what rounding may do. */
static uint32_t noise_rank(float best, float distance, float *least)
{
    float slack =
        0.01f + ((best < 0.0f ? -best : best) + (distance < 0.0f ? -distance : distance)) * 0x1p-20f;
    *least = best - distance - slack;
    if (!(*least > 0.0f)) /* not a number, too */
        return UINT32_MAX;
    /* u is above exp(-exp(-least)), so 1 - u below exp(-least). */
    return (uint32_t)(arith_exp2(-*least * ARITH_LOG2E) * NOISE_STEPS) + 1;
}

struct choice {
    float score;
    uint32_t id;
};

/* Scores those of n <= BLOCK tokens whose noise is among the greatest. */
static void choose_among(const struct sampler_loops *loops, const struct sampler_noise *noise, const float *x,
                         const uint32_t *id, uint32_t n, uint32_t greatest, struct choice *best)
{
    float some_x[BLOCK], score[BLOCK];
    uint32_t some_id[BLOCK], rank[BLOCK], n_some = 0;
    loops->ranks(id, n, noise, rank);
    if (!any_within(rank, n, greatest))
        return;
    for (uint32_t i = 0; i < n; i++) {
        some_x[n_some] = x[i];
        some_id[n_some] = id[i];
        n_some += rank[i] <= greatest;
    }
    loops->scores(some_x, some_id, n_some, noise, score);
    for (uint32_t i = 0; i < n_some; i++)
        if (score[i] > best->score || (score[i] == best->score && some_id[i] < best->id))
            *best = (struct choice){score[i], some_id[i]};
}

/* In a block only tokens are scored whose noise is great enough to reach the best so far from the block's
 * largest logit. */
uint32_t tokens_draw(const struct sampler_loops *loops, const struct sampler_noise *noise,
                     const struct tokens *t)
{
    struct choice best = {-ARITH_INF, UINT32_MAX};
    uint32_t n;
    for (uint32_t at = 0; at < t->n; at += n) {
        float least;
        n = block_at(t, at);
        float distance = (tokens_max(t->x + at, n) - noise->max) / noise->temperature;
        uint32_t greatest = noise_rank(best.score, distance, &least);
        if (!(least > NOISE_MAX))
            choose_among(loops, noise, t->x + at, t->id + at, n, greatest, &best);
    }
    return best.id;
}
