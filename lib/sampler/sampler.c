#include "sampler.h"
#include "abi/arith.h"
#include "base/isa.h"
#include "sampler_loops.h"
#include "sampler_select.h"

#define SAMPLER_LOOPS sampler_loops_plain
#define SAMPLER_ISA   "plain"
#include "sampler_template.h"

#include <assert.h>
#include <string.h>

#define BLOCK TOKENS_BLOCK
#define FEW   TOKENS_FEW

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

static void *carve(char **at, size_t n)
{
    void *p = *at;
    *at += round_up(n);
    return p;
}

static struct scratch scratch_split(void *memory, uint32_t n_vocab)
{
    char *at = memory;
    struct scratch s = {.few = carve(&at, 2 * FEW * sizeof *s.few)};
    s.set.mass = carve(&at, n_vocab * sizeof *s.set.mass);
    s.set.x = carve(&at, n_vocab * sizeof *s.set.x);
    s.set.id = carve(&at, n_vocab * sizeof *s.set.id);
    s.x = carve(&at, n_vocab * sizeof *s.x);
    s.count = carve(&at, n_vocab * sizeof *s.count);
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

/* The id of the largest logit, ties by the smaller id; -1 if none is above -inf. */
static int32_t find_largest(const float *x, uint32_t n)
{
    float max = tokens_max(x, n);
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
                n_few = candidates_select(s->few, n_few, k);
                threshold = s->few[0].key;
                for (uint32_t j = 1; j < n_few; j++)
                    threshold = s->few[j].key < threshold ? s->few[j].key : threshold;
                if (!(x[i] > threshold))
                    continue;
            }
            s->few[n_few++] = (struct candidate){.key = bounded(x[i]), .id = i, .mass = 1};
        }
    }
    take_few(s->few, n_few > k ? candidates_select(s->few, n_few, k) : n_few, set);
}

/* ---- sampling ---- */

/* Gumbel noise lies in (-2.9, 16.7). A token further below the likeliest than this many temperatures loses to
 * it with any noise. */
#define NOISE_SPAN 20.0f

/* The distance below the largest logit beyond which no token can be sampled: its weight is under 2^-40
 * (27.73) or under min_p, or its noise cannot make up for it. */
static float reach(const struct step_sampling *set)
{
    if (set->typical_p < 1.0f || set->top_p < 1.0f)
        return TOKENS_REACH;
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
        gather_above(x, n, -ARITH_INF, out);
        if (out->n > k)
            tokens_top_k(loops, out, k, s->few);
        return;
    }
    float max = bounded(tokens_max(x, n));
    /* The last term covers the rounding of the others. */
    float below = max - reach(set) - (max < 0.0f ? -max : max) * 0x1p-22f;
    gather_above(x, n, below < max ? below : -ARITH_INF, out);
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
        tokens_typical_p(loops, left, set->typical_p, false, s.few);
    if (set->top_p < 1.0f)
        tokens_top_p(loops, left, set->top_p, s.few);
    if (set->min_p > 0.0f)
        tokens_min_p(loops, left, set->min_p);
    struct sampler_noise noise = {.max = tokens_max(left->x, left->n),
                                  .temperature = set->temperature,
                                  .seed = set->seed,
                                  .position = in->position};
    return (int32_t)tokens_draw(loops, &noise, left);
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
    float max = tokens_max(logits, n_vocab), sum = 0.0f;
    for (uint32_t at = 0; at < n_vocab; at += ARITH_LSE_SEGMENT) {
        uint32_t n = n_vocab - at < ARITH_LSE_SEGMENT ? n_vocab - at : ARITH_LSE_SEGMENT;
        float m = tokens_max(logits + at, n);
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
