#include "sampler.h"
#include "abi/arith.h"
#include "base/isa.h"
#include "sampler_loops.h"

#define SAMPLER_LOOPS sampler_loops_plain
#define SAMPLER_ISA   "plain"
#include "sampler_template.h"

#include <string.h>

#define BLOCK 64 /* logits that are skipped together if none can matter */

/* A token that no filter has removed. The current filter orders by `key`, largest first. */
struct candidate {
    float x, key;
    uint32_t id;
    uint64_t mass;
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

/* The parts of a caller's scratch, all sized by n_vocab. */
struct scratch {
    struct candidate *set;
    float *x;
    uint32_t *count;
};

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

size_t sampler_scratch_size(uint32_t n_vocab)
{
    return round_up(n_vocab * sizeof(struct candidate)) + round_up(n_vocab * sizeof(float)) +
           round_up(n_vocab * sizeof(uint32_t));
}

static struct scratch scratch_split(void *memory, uint32_t n_vocab)
{
    char *at = memory;
    struct scratch s = {.set = (struct candidate *)at};
    at += round_up(n_vocab * sizeof(struct candidate));
    s.x = (float *)at;
    at += round_up(n_vocab * sizeof(float));
    s.count = (uint32_t *)at;
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

/* The logits that sampling starts from: the model's own if nothing changes them, else an adjusted copy. */
static const float *adjust(const struct sampler_input *in, const struct scratch *s)
{
    const struct step_sampling *set = in->set;
    bool penalties =
        set->repetition_penalty != 1.0f || set->presence_penalty != 0.0f || set->frequency_penalty != 0.0f;
    penalties = penalties && set->penalty_last_n > 0 && in->n_history > 0;
    if (set->n_bias == 0 && in->n_banned == 0 && !penalties)
        return in->logits;
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

/* True if one of n logits is above the threshold; a NaN is not. Vectorises. */
static inline bool any_above(const float *x, uint32_t n, float threshold)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= x[i] > threshold;
    return any != 0;
}

/* The largest logit (NaN is skipped), or -inf if there is none. Vectorises: a maximum has no order. */
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

static struct candidate candidate_of(float x, uint32_t id)
{
    float bounded = x < 3e38f ? x : 3e38f;
    return (struct candidate){.x = bounded, .key = bounded, .id = id, .mass = 1};
}

/* Collects all tokens above the threshold. Returns their number. */
static uint32_t gather_above(const float *x, uint32_t n, float threshold, struct candidate *set)
{
    uint32_t n_set = 0;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t end = at + BLOCK < n ? at + BLOCK : n;
        if (!any_above(x + at, end - at, threshold))
            continue;
        for (uint32_t i = at; i < end; i++)
            if (x[i] > threshold)
                set[n_set++] = candidate_of(x[i], i);
    }
    return n_set;
}

/* ---- selection ---- */

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

/* Collects the k largest in one pass, with a threshold that rises whenever the set is full. Ids ascend, so a
 * later token must be larger than the k-th largest so far to matter. */
static uint32_t gather_top_k(const float *x, uint32_t n, uint32_t k, struct candidate *set)
{
    uint32_t room = k < n / 2 ? 2 * k : n; /* > k */
    if (room < k + BLOCK)                  /* otherwise a small k would run select_mass() too often */
        room = k + BLOCK < n ? k + BLOCK : n;
    float threshold = -ARITH_INF;
    uint32_t n_set = 0;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t end = at + BLOCK < n ? at + BLOCK : n;
        if (!any_above(x + at, end - at, threshold))
            continue;
        for (uint32_t i = at; i < end; i++) {
            if (!(x[i] > threshold))
                continue;
            if (n_set == room) {
                n_set = select_mass(set, n_set, k);
                threshold = set[0].key;
                for (uint32_t j = 1; j < n_set; j++)
                    threshold = set[j].key < threshold ? set[j].key : threshold;
                if (!(x[i] > threshold))
                    continue;
            }
            set[n_set++] = candidate_of(x[i], i);
        }
    }
    return n_set > k ? select_mass(set, n_set, k) : n_set;
}

/* ---- filters ---- */

static float set_max(const struct candidate *set, uint32_t n)
{
    float max = set[0].x;
    for (uint32_t i = 1; i < n; i++)
        max = set[i].x > max ? set[i].x : max;
    return max;
}

/* Computes the weights of up to BLOCK candidates. Returns their number. */
static uint32_t block_weights(const struct sampler_loops *loops, const struct candidate *set, uint32_t n,
                              float max, float w[BLOCK])
{
    float x[BLOCK];
    n = n < BLOCK ? n : BLOCK;
    for (uint32_t i = 0; i < n; i++)
        x[i] = set[i].x;
    loops->weights(x, n, max, w);
    return n;
}

/* Sets the masses and drops tokens of mass 0. Returns the total. *surprise is the sum of mass times the
 * distance from the likeliest. */
static uint64_t weigh(const struct sampler_loops *loops, struct candidate *set, uint32_t *n, float max,
                      uint64_t *surprise)
{
    uint64_t total = 0, sum = 0;
    uint32_t kept = 0, n_block;
    for (uint32_t at = 0; at < *n; at += n_block) {
        float w[BLOCK];
        n_block = block_weights(loops, set + at, *n - at, max, w);
        for (uint32_t i = 0; i < n_block; i++) {
            struct candidate c = set[at + i];
            c.mass = (uint64_t)(int64_t)(w[i] * 0x1p40f);
            if (c.mass == 0)
                continue;
            set[kept++] = c;
            total += c.mass;
            sum += (uint64_t)(int64_t)(w[i] * (max - c.x) * 0x1p40f);
        }
    }
    *n = kept;
    *surprise = sum;
    return total;
}

static uint64_t needed(uint64_t total, float p)
{
    uint64_t share = p > 0.0f ? (uint64_t)(int64_t)((p < 1.0f ? p : 1.0f) * 0x1p24f) : 0;
    return (total >> 24) * share + (((total & 0xffffff) * share) >> 24);
}

static uint32_t keep_typical(const struct sampler_loops *loops, struct candidate *set, uint32_t n, float p)
{
    float max = set_max(set, n);
    uint64_t surprise, total = weigh(loops, set, &n, max, &surprise);
    float mean = (float)surprise / (float)total;
    for (uint32_t i = 0; i < n; i++) {
        float d = (max - set[i].x) - mean;
        set[i].key = d < 0.0f ? d : -d;
    }
    return select_mass(set, n, needed(total, p));
}

static uint32_t keep_top_p(const struct sampler_loops *loops, struct candidate *set, uint32_t n, float p)
{
    uint64_t surprise, total = weigh(loops, set, &n, set_max(set, n), &surprise);
    for (uint32_t i = 0; i < n; i++)
        set[i].key = set[i].x;
    return select_mass(set, n, needed(total, p));
}

static uint32_t keep_min_p(const struct sampler_loops *loops, struct candidate *set, uint32_t n, float p)
{
    float max = set_max(set, n);
    uint32_t kept = 0, n_block;
    for (uint32_t at = 0; at < n; at += n_block) {
        float w[BLOCK];
        n_block = block_weights(loops, set + at, n - at, max, w);
        for (uint32_t i = 0; i < n_block; i++)
            if (set[at + i].x == max || w[i] >= p)
                set[kept++] = set[at + i];
    }
    return kept;
}

/* ---- sampling ---- */

/* Gumbel noise lies in (-2.9, 16.7). A token further below the likeliest than this many temperatures always
 * loses to it. */
#define NOISE_SPAN 20.0f

/* The distance below the largest logit beyond which no token can be sampled: its weight is under 2^-40
 * (27.73) or under min_p, or its noise cannot make up for it. */
static float reach(const struct step_sampling *set)
{
    if (set->typical_p < 1.0f || set->top_p < 1.0f)
        return 28.0f;
    float noise = set->temperature * NOISE_SPAN;
    if (set->min_p > 0.0f) {
        float filter = set->min_p < 1.0f ? 0.01f - arith_log2(set->min_p + 1e-30f) * ARITH_LN2 : 0.01f;
        return filter < noise ? filter : noise;
    }
    return noise;
}

static uint32_t gather(const struct step_sampling *set, const float *x, uint32_t n, struct candidate *out)
{
    if (set->top_k > 0 && (uint32_t)set->top_k < n)
        return gather_top_k(x, n, (uint32_t)set->top_k, out);
    float max = find_max(x, n);
    max = max < 3e38f ? max : 3e38f;
    /* The last term covers the rounding errors of the others. */
    float below = max - reach(set) - (max < 0.0f ? -max : max) * 0x1p-22f;
    return gather_above(x, n, below < max ? below : -ARITH_INF, out);
}

static int32_t choose(const struct sampler_loops *loops, const struct step_sampling *set, uint32_t position,
                      const struct candidate *c, uint32_t n)
{
    struct sampler_noise noise = {
        .max = set_max(c, n), .temperature = set->temperature, .seed = set->seed, .position = position};
    float x[BLOCK], score[BLOCK], best = -ARITH_INF;
    uint32_t id[BLOCK], choice = UINT32_MAX;
    for (uint32_t at = 0; at < n; at += BLOCK) {
        uint32_t n_block = n - at < BLOCK ? n - at : BLOCK;
        for (uint32_t i = 0; i < n_block; i++) {
            x[i] = c[at + i].x;
            id[i] = c[at + i].id;
        }
        loops->scores(x, id, n_block, &noise, score);
        for (uint32_t i = 0; i < n_block; i++)
            if (score[i] > best || (score[i] == best && id[i] < choice)) {
                best = score[i];
                choice = id[i];
            }
    }
    return (int32_t)choice;
}

int32_t sampler_pick(const struct sampler_input *in, void *scratch)
{
    struct scratch s = scratch_split(scratch, in->n_vocab);
    const struct step_sampling *set = in->set;
    const float *x = adjust(in, &s);
    uint32_t n = set->temperature > 0.0f ? gather(set, x, in->n_vocab, s.set) : 0;
    if (n == 0) { /* greedy, or nothing is left */
        int32_t largest = find_largest(x, in->n_vocab);
        largest = largest >= 0 ? largest : find_largest(in->logits, in->n_vocab);
        return largest >= 0 ? largest : 0;
    }
    const struct sampler_loops *loops = sampler_loops_best();
    if (set->typical_p < 1.0f)
        n = keep_typical(loops, s.set, n, set->typical_p);
    if (set->top_p < 1.0f)
        n = keep_top_p(loops, s.set, n, set->top_p);
    if (set->min_p > 0.0f)
        n = keep_min_p(loops, s.set, n, set->min_p);
    return choose(loops, set, in->position, s.set, n);
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
