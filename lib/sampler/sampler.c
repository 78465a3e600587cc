#include "sampler.h"
#include "abi/arith.h"
#include "base/isa.h"
#include "sampler_loops.h"

#define SAMPLER_LOOPS sampler_loops_plain
#define SAMPLER_ISA   "plain"
#include "sampler_template.h"

#include <assert.h>
#include <string.h>

#define BLOCK   64   /* tokens that are walked together, and skipped together when none can matter */
#define FEW     1024 /* tokens that are selected one by one; of more, ranges are left out first */
#define BUCKETS 1024 /* ranges of an order that are told apart at once */

/* One token of few. `key` is what the current filter orders by (larger first). */
struct candidate {
    float key;
    uint32_t id;
    uint64_t mass;
};

/* Tokens still in play. With more than FEW the ids ascend. */
struct tokens {
    uint32_t n;
    float *x;
    uint32_t *id;
    uint64_t *mass;
};

const struct sampler_loops *sampler_loops_at(uint32_t index)
{
    const struct sampler_loops *all[3] = {&sampler_loops_plain};
    uint32_t n = 1;
#if defined(__x86_64__)
    if (isa_has(ISA_AVX2))
        all[n++] = &sampler_loops_avx2;
    if (isa_has(ISA_AVX512))
        all[n++] = &sampler_loops_avx512;
#endif
    return index < n ? all[index] : NULL;
}

const struct sampler_loops *sampler_loops_best(void)
{
    const struct sampler_loops *best = NULL;
    for (uint32_t i = 0; sampler_loops_at(i); i++)
        best = sampler_loops_at(i);
    return best;
}

/* The parts of a caller's scratch. */
struct scratch {
    struct tokens set;     /* [n_vocab] each */
    struct candidate *few; /* [2 * FEW] */
    float *x;              /* [n_vocab] */
    uint32_t *count;       /* [n_vocab] */
};

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t sampler_scratch_size(uint32_t n_vocab)
{
    return 2 * round_up(n_vocab * sizeof(float)) + 2 * round_up(n_vocab * sizeof(uint32_t)) +
           round_up(n_vocab * sizeof(uint64_t)) + round_up(2 * FEW * sizeof(struct candidate));
}

static void *take(char **at, size_t n)
{
    void *p = *at;
    *at += round_up(n);
    return p;
}

static struct scratch scratch_split(void *memory, uint32_t n_vocab)
{
    char *at = memory;
    struct scratch s = {.few = take(&at, 2 * FEW * sizeof *s.few)};
    s.set.mass = take(&at, n_vocab * sizeof *s.set.mass);
    s.set.x = take(&at, n_vocab * sizeof *s.set.x);
    s.set.id = take(&at, n_vocab * sizeof *s.set.id);
    s.x = take(&at, n_vocab * sizeof *s.x);
    s.count = take(&at, n_vocab * sizeof *s.count);
    return s;
}

/* ---- bias, bans, penalties ---- */

static void penalise(const struct sampler_input *in, const struct scratch *s)
{
    const struct step_sampling *set = in->set;
    uint32_t n = in->n_history < set->penalty_last_n ? in->n_history : set->penalty_last_n;
    const int32_t *window = in->history + (in->n_history - n);
    bool repetition = set->repetition_penalty != 1.0f;
    bool additive = set->presence_penalty != 0.0f || set->frequency_penalty != 0.0f;

    /* Only the counts of these tokens are cleared, without a pass over the vocabulary. */
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)window[i] < in->n_vocab)
            s->count[window[i]] = 0;
    for (uint32_t i = 0; i < n; i++)
        if ((uint32_t)window[i] < in->n_vocab)
            s->count[window[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)window[i];
        if (id >= in->n_vocab || s->count[id] == 0)
            continue;
        float x = s->x[id];
        if (repetition)
            x = x > 0.0f ? x / set->repetition_penalty : x * set->repetition_penalty;
        if (additive)
            x = x - __builtin_fmaf(set->frequency_penalty, (float)s->count[id], set->presence_penalty);
        s->x[id] = x;
        s->count[id] = 0;
    }
}

static void copy_masked(const struct sampler_input *in, float *x)
{
    for (uint32_t at = 0; at < in->n_vocab; at += 32) {
        uint32_t bits = in->mask[at / 32], n = in->n_vocab - at < 32 ? in->n_vocab - at : 32;
        for (uint32_t i = 0; i < n; i++)
            x[at + i] = bits >> i & 1 ? in->logits[at + i] : -ARITH_INF;
    }
}

/* The logits that sampling starts from: the model's own if nothing changes them, else an adjusted copy. */
static const float *adjust(const struct sampler_input *in, const struct scratch *s)
{
    const struct step_sampling *set = in->set;
    bool penalties =
        set->repetition_penalty != 1.0f || set->presence_penalty != 0.0f || set->frequency_penalty != 0.0f;
    penalties = penalties && set->penalty_last_n > 0 && in->n_history > 0;
    if (set->n_bias == 0 && in->n_banned == 0 && !penalties && !in->mask)
        return in->logits;
    if (in->mask)
        copy_masked(in, s->x);
    else
        memcpy(s->x, in->logits, in->n_vocab * sizeof *s->x);
    for (uint32_t i = 0; i < set->n_bias; i++)
        if ((uint32_t)in->biases[i].token < in->n_vocab)
            s->x[in->biases[i].token] += in->biases[i].bias;
    for (uint32_t i = 0; i < in->n_banned; i++)
        if ((uint32_t)in->banned[i] < in->n_vocab)
            s->x[in->banned[i]] = -ARITH_INF;
    if (penalties)
        penalise(in, s);
    return s->x;
}

/* ---- passes over the vocabulary ---- */

/* Tells whether one of n logits is above the threshold; a NaN is not. Vectorises. */
static inline bool any_above(const float *x, uint32_t n, float threshold)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= x[i] > threshold;
    return any != 0;
}

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

/* The largest logit (NaN is skipped), -inf when there is none. Vectorises: a maximum has no order. */
static float find_max(const float *x, uint32_t n)
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

/* The id of the largest logit, ties by the smaller id; -1 if none is above -inf. */
static int32_t find_largest(const float *x, uint32_t n)
{
    float max = find_max(x, n);
    for (uint32_t i = 0; i < n && max > -ARITH_INF; i++)
        if (x[i] == max)
            return (int32_t)i;
    return -1;
}

static float bounded(float x)
{
    return x < 3e38f ? x : 3e38f;
}

/* All tokens above the threshold. */
static void gather_above(const float *restrict x, uint32_t n, float threshold, struct tokens *set)
{
    float *restrict to = set->x;
    uint32_t *restrict id = set->id, kept = 0;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t end = at + BLOCK < n ? at + BLOCK : n;
        if (!any_above(x + at, end - at, threshold))
            continue;
        for (uint32_t i = at; i < end; i++) {
            to[kept] = bounded(x[i]);
            id[kept] = i;
            kept += x[i] > threshold;
        }
    }
    set->n = kept;
}

/* Moves those of tokens [at, at + n) that are kept to [kept, ...); the new end. `mass`: theirs, or NULL. */
static uint32_t keep_some(struct tokens *set, uint64_t *mass, uint32_t at, uint32_t n, const bool *keep,
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

/* Moves the shortest run of the order whose masses reach `need` to the front of the set, unordered. Returns
 * its length (>= 1). All masses are above 0; need <= their sum. Quickselect by mass: nothing is sorted. */
static uint32_t select_mass(struct candidate *set, uint32_t n, uint64_t need)
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

/* Copies them: their order is none. */
static void take_few(const struct candidate *few, uint32_t n, struct tokens *set)
{
    set->n = n;
    for (uint32_t i = 0; i < n; i++) {
        set->x[i] = few[i].key;
        set->id[i] = few[i].id;
    }
}

/* The k <= FEW largest: one walk with a threshold that rises whenever the room is full. Ids ascend, so a
 * later token must be larger than the k-th so far to matter. */
static void gather_top_few(const float *x, uint32_t n, uint32_t k, const struct scratch *s,
                           struct tokens *set)
{
    const uint32_t room = k < BLOCK ? k + BLOCK : 2 * k; /* a small k would be selected too often */
    float threshold = -ARITH_INF;
    uint32_t n_few = 0;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t end = at + BLOCK < n ? at + BLOCK : n;
        if (!any_above(x + at, end - at, threshold))
            continue;
        for (uint32_t i = at; i < end; i++) {
            if (!(x[i] > threshold))
                continue;
            if (n_few == room) {
                n_few = select_mass(s->few, n_few, k);
                threshold = s->few[0].key;
                for (uint32_t j = 1; j < n_few; j++)
                    threshold = s->few[j].key < threshold ? s->few[j].key : threshold;
                if (!(x[i] > threshold))
                    continue;
            }
            s->few[n_few++] = (struct candidate){.key = bounded(x[i]), .id = i, .mass = 1};
        }
    }
    take_few(s->few, n_few > k ? select_mass(s->few, n_few, k) : n_few, set);
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

/* Those of a bucket, or of all without a range, selected one by one. */
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
    uint32_t n_run = select_mass(few, n_few, need), last = 0;
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
        kept = keep_some(set, NULL, at, n, keep, kept);
    }
    set->n = kept;
}

static void gather_top_many(const struct sampler_loops *loops, const float *x, uint32_t n, uint32_t k,
                            const struct scratch *s, struct tokens *set)
{
    struct order by_logit = {.loops = loops};
    float low = ARITH_INF, high = -ARITH_INF;
    gather_above(x, n, -ARITH_INF, set);
    for (uint32_t i = 0; i < set->n; i++) {
        low = set->x[i] < low ? set->x[i] : low;
        high = set->x[i] > high ? set->x[i] : high;
    }
    if (set->n > k)
        keep_to(&by_logit, set, find_cut(&by_logit, set, low, high, true, k, s->few));
}

/* ---- filters ---- */

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
        kept = keep_some(set, mass, at, n, keep, kept);
    }
    set->n = kept;
    return total;
}

#define REACH 28.0f /* a token of a mass lies at most 27.73 below the likeliest */

static uint64_t needed(uint64_t total, float p)
{
    uint64_t share = p > 0.0f ? (uint64_t)(int64_t)((p < 1.0f ? p : 1.0f) * 0x1p24f) : 0;
    return (total >> 24) * share + (((total & 0xffffff) * share) >> 24);
}

static void keep_typical(const struct sampler_loops *loops, struct tokens *set, float p,
                         struct candidate *few)
{
    struct order by_nearness = {.loops = loops, .typical = true, .max = find_max(set->x, set->n)};
    uint64_t surprise, total = weigh(loops, set, by_nearness.max, &surprise);
    by_nearness.mean = (float)surprise / (float)total;
    keep_to(&by_nearness, set, find_cut(&by_nearness, set, -REACH, 0, false, needed(total, p), few));
}

static void keep_top_p(const struct sampler_loops *loops, struct tokens *set, float p, struct candidate *few)
{
    struct order by_logit = {.loops = loops};
    float max = find_max(set->x, set->n), low = max - REACH - (max < 0.0f ? -max : max) * 0x1p-22f;
    uint64_t surprise, total = weigh(loops, set, max, &surprise);
    keep_to(&by_logit, set, find_cut(&by_logit, set, low, max, false, needed(total, p), few));
}

static void keep_min_p(const struct sampler_loops *loops, struct tokens *set, float p)
{
    float max = find_max(set->x, set->n), w[BLOCK];
    uint32_t n, kept = 0;
    bool keep[BLOCK];
    for (uint32_t at = 0; at < set->n; at += n) {
        n = block_at(set, at);
        const float *x = set->x + at;
        loops->weights(x, n, max, w);
        for (uint32_t i = 0; i < n; i++)
            keep[i] = (x[i] == max) | (w[i] >= p);
        kept = keep_some(set, NULL, at, n, keep, kept);
    }
    set->n = kept;
}

/* ---- sampling ---- */

/* Gumbel noise lies in (-2.9, 16.7). A token further below the likeliest than this many temperatures loses to
 * it with any noise. */
#define NOISE_SPAN  20.0f
#define NOISE_MAX   16.7f
#define NOISE_STEPS 0x1p23f

/* The distance below the largest logit beyond which no token can be sampled: its weight is under 2^-40
 * (27.73) or under min_p, or its noise cannot make up for it. */
static float reach(const struct step_sampling *set)
{
    if (set->typical_p < 1.0f || set->top_p < 1.0f)
        return REACH;
    float noise = set->temperature * NOISE_SPAN;
    if (set->min_p > 0.0f) {
        float filter = set->min_p < 1.0f ? 0.01f - arith_log2(set->min_p + 1e-30f) * ARITH_LN2 : 0.01f;
        return filter < noise ? filter : noise;
    }
    return noise;
}

static void gather(const struct sampler_loops *loops, const struct step_sampling *set, const float *x,
                   uint32_t n, const struct scratch *s, struct tokens *out)
{
    uint32_t k = set->top_k > 0 ? (uint32_t)set->top_k : n;
    if (k < n && k <= FEW) {
        gather_top_few(x, n, k, s, out);
        return;
    }
    if (k < n) {
        gather_top_many(loops, x, n, k, s, out);
        return;
    }
    float max = bounded(find_max(x, n));
    /* The last term covers the rounding of the others. */
    float below = max - reach(set) - (max < 0.0f ? -max : max) * 0x1p-22f;
    gather_above(x, n, below < max ? below : -ARITH_INF, out);
}

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
static int32_t choose(const struct sampler_loops *loops, const struct step_sampling *set, uint32_t position,
                      const struct tokens *t)
{
    struct sampler_noise noise = {.max = find_max(t->x, t->n),
                                  .temperature = set->temperature,
                                  .seed = set->seed,
                                  .position = position};
    struct choice best = {-ARITH_INF, UINT32_MAX};
    uint32_t n;
    for (uint32_t at = 0; at < t->n; at += n) {
        float least;
        n = block_at(t, at);
        float distance = (find_max(t->x + at, n) - noise.max) / noise.temperature;
        uint32_t greatest = noise_rank(best.score, distance, &least);
        if (!(least > NOISE_MAX))
            choose_among(loops, &noise, t->x + at, t->id + at, n, greatest, &best);
    }
    return (int32_t)best.id;
}

int32_t sampler_pick_with(const struct sampler_loops *loops, const struct sampler_input *in, void *scratch)
{
    assert(in->n_vocab > 0 && in->n_vocab <= INT32_MAX); /* a token is an int32_t */
    struct scratch s = scratch_split(scratch, in->n_vocab);
    const struct step_sampling *set = in->set;
    const float *x = adjust(in, &s);
    struct tokens *left = &s.set;
    if (set->temperature > 0.0f)
        gather(loops, set, x, in->n_vocab, &s, left);
    if (left->n == 0) { /* greedy, or nothing is left */
        int32_t largest = find_largest(x, in->n_vocab);
        largest = largest >= 0 ? largest : find_largest(in->logits, in->n_vocab);
        return largest >= 0 ? largest : 0;
    }
    if (set->typical_p < 1.0f)
        keep_typical(loops, left, set->typical_p, s.few);
    if (set->top_p < 1.0f)
        keep_top_p(loops, left, set->top_p, s.few);
    if (set->min_p > 0.0f)
        keep_min_p(loops, left, set->min_p);
    return choose(loops, set, in->position, left);
}

int32_t sampler_pick(const struct sampler_input *in, void *scratch)
{
    return sampler_pick_with(sampler_loops_best(), in, scratch);
}

/* ---- log-probabilities ---- */

static inline float weight_of(float x, float max)
{
    return arith_exp2((x - max) * ARITH_LOG2E);
}

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < n; i++)
        bad |= (arith_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return bad == 0;
}

bool sampler_norm(const float *logits, uint32_t n_vocab, struct sampler_norm *out)
{
    if (n_vocab == 0 || !all_finite(logits, n_vocab))
        return false;
    const struct sampler_loops *loops = sampler_loops_best();
    float max = find_max(logits, n_vocab), sum = 0.0f;
    for (uint32_t at = 0; at < n_vocab; at += ARITH_LSE_SEGMENT) {
        uint32_t n = n_vocab - at < ARITH_LSE_SEGMENT ? n_vocab - at : ARITH_LSE_SEGMENT;
        float m = find_max(logits + at, n);
        sum = __builtin_fmaf(weight_of(m, max), loops->sum_weights(logits + at, n, m), sum);
    }
    *out = (struct sampler_norm){.max = max, .log2_sum = arith_log2(sum)};
    return true;
}

float sampler_logprob(const struct sampler_norm *norm, float logit)
{
    return (logit - norm->max) - norm->log2_sum * ARITH_LN2;
}

/* Inserts (x, id) into a list of at most `room`, largest first. Ids come ascending, so ties go behind. */
static uint32_t insert_top(struct step_top *list, uint32_t n, uint32_t room, float x, uint32_t id)
{
    uint32_t at = n < room ? n : room - 1;
    for (; at > 0 && list[at - 1].logprob < x; at--)
        list[at] = list[at - 1];
    list[at] = (struct step_top){.token = (int32_t)id, .logprob = x};
    return n < room ? n + 1 : room;
}

void sampler_top(const float *logits, uint32_t n_vocab, const struct sampler_norm *norm, uint32_t n_top,
                 struct step_top *out)
{
    uint32_t n = 0;
    assert(n_top <= STEP_MAX_TOP);
    float threshold = -ARITH_INF;
    for (uint32_t at = 0; at < n_vocab && n_top > 0; at += BLOCK) {
        uint32_t end = at + BLOCK < n_vocab ? at + BLOCK : n_vocab;
        if (!any_above(logits + at, end - at, threshold))
            continue;
        for (uint32_t i = at; i < end; i++) {
            if (!(logits[i] > threshold))
                continue;
            n = insert_top(out, n, n_top, logits[i], i);
            threshold = n == n_top ? out[n - 1].logprob : -ARITH_INF;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        out[i].logprob = sampler_logprob(norm, out[i].logprob);
    for (; n < n_top; n++)
        out[n] = (struct step_top){.token = -1, .logprob = -ARITH_INF};
}
