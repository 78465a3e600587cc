/* The sampler over vocabularies of which thousands of tokens stay in play: there whole ranges of them are
 * kept and left out together, and most are never scored. The token must be that of the formulas of sampler.h
 * with a full sort, for all logits: equal, hardly different, as far apart as floats can be. */
#include "abi/arith.h"
#include "sampler/sampler.h"
#include "sampler/sampler_loops.h"
#define RANDOM_SEED 11
#include "support/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VOCAB 40000

/* ---- the formulas, with a full sort ---- */

struct entry {
    uint32_t id;
    float x, w, key;
    uint64_t mass;
};

static int by_key(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    if (p->key != q->key)
        return p->key > q->key ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

static float weigh(struct entry *e, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = fmaxf(max, e[i].x);
    for (uint32_t i = 0; i < n; i++) {
        e[i].w = arith_exp2((e[i].x - max) * ARITH_LOG2E);
        e[i].mass = (uint64_t)truncf(e[i].w * 0x1p40f);
    }
    return max;
}

/* Keeps the tokens in the order of the keys until their masses reach the share. */
static uint32_t keep_share(struct entry *e, uint32_t n, float share)
{
    uint64_t total = 0, sum = 0;
    uint32_t kept = 0, n_run = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += e[i].mass;
        e[kept] = e[i];
        kept += e[i].mass > 0;
    }
    uint64_t need = (uint64_t)(((unsigned __int128)total * (uint64_t)(share * 0x1p24f)) >> 24);
    qsort(e, kept, sizeof *e, by_key);
    do
        sum += e[n_run++].mass;
    while (n_run < kept && sum < need);
    return n_run;
}

static uint32_t keep_typical(struct entry *e, uint32_t n, float p)
{
    float max = weigh(e, n);
    uint64_t total = 0, surprise = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += e[i].mass;
        surprise += e[i].mass ? (uint64_t)truncf(e[i].w * (max - e[i].x) * 0x1p40f) : 0;
    }
    float mean = (float)surprise / (float)total;
    for (uint32_t i = 0; i < n; i++)
        e[i].key = -fabsf((max - e[i].x) - mean);
    return keep_share(e, n, p);
}

static int32_t expected_pick(const struct sampler_input *in)
{
    static struct entry e[MAX_VOCAB];
    const struct step_sampling *set = in->set;
    uint32_t n = in->n_vocab, id = UINT32_MAX;
    float best = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){.id = i, .x = in->logits[i], .key = in->logits[i]};
    if (set->top_k > 0 && (uint32_t)set->top_k < n) {
        qsort(e, n, sizeof *e, by_key);
        n = (uint32_t)set->top_k;
    }
    if (set->typical_p < 1)
        n = keep_typical(e, n, set->typical_p);
    if (set->top_p < 1) {
        weigh(e, n);
        for (uint32_t i = 0; i < n; i++)
            e[i].key = e[i].x;
        n = keep_share(e, n, set->top_p);
    }
    float max = weigh(e, n);
    for (uint32_t i = 0; i < n; i++) {
        if (set->min_p > 0 && e[i].w < set->min_p && e[i].x != max)
            continue;
        float score = (e[i].x - max) / set->temperature + arith_gumbel(set->seed, in->position, e[i].id);
        if (score > best || (score == best && e[i].id < id)) {
            best = score;
            id = e[i].id;
        }
    }
    return (int32_t)id;
}

/* ---- any logits, any settings ---- */

static float logit_of(int kind)
{
    float r = random_part() * 2 - 1;
    switch (kind) {
    case 0: /* as a model has them: most far below a few */
        return random_u32() % 2000 ? r * 9 - 4 : 12 + r * 3;
    case 1: /* many ties */
        return rintf(r * 12) / 2;
    case 2:
        return 5;
    case 3: /* two values that are neighbours */
        return random_u32() % 3 ? 7.0f : 7.0000005f;
    case 4: /* no two differ by a normal number */
        return r * 0x1p-130f;
    case 5: /* two differ by more than the largest one */
        return r * 3e38f;
    case 6: /* one range holds nearly all */
        return random_u32() % 5000 ? 1 + r * 1e-4f : 20 * r;
    default:
        return r * 25;
    }
}
#define KINDS 8

static struct step_sampling random_settings(void)
{
    static const float shares[] = {1, 1, 0.9999f, 0.95f, 0.5f, 0.05f, 0};
    static const float temperatures[] = {0.01f, 0.7f, 1, 2, 90};
    static const int32_t ks[] = {0, 0, 0, 1, 40, 1023, 1024, 1025, 3000};
    static const float least[] = {0, 0, 0.05f, 0.9f};
    return (struct step_sampling){.seed = random_u32(),
                                  .temperature = temperatures[random_u32() % 5],
                                  .top_k = ks[random_u32() % 9],
                                  .typical_p = shares[random_u32() % 7],
                                  .top_p = shares[random_u32() % 7],
                                  .min_p = least[random_u32() % 4],
                                  .repetition_penalty = 1};
}

Test(sampler_large, ranges_that_are_kept_together_give_the_token_of_the_full_sort)
{
    static float x[MAX_VOCAB];
    static const uint32_t sizes[] = {1024, 1025, 1500, 4097, 9000, MAX_VOCAB};
    void *scratch = malloc(sampler_scratch_size(MAX_VOCAB));
    memset(scratch, 0xa5, sampler_scratch_size(MAX_VOCAB));
    for (int round = 0; round < 1600; round++) {
        int kind = round % KINDS;
        uint32_t n = sizes[round % 97 ? random_u32() % 5 : 5];
        for (uint32_t i = 0; i < n; i++)
            x[i] = logit_of(kind);
        struct step_sampling set = random_settings();
        struct sampler_input in = {.logits = x, .n_vocab = n, .set = &set, .position = random_u32()};
        int32_t expected = expected_pick(&in), got = sampler_pick(&in, scratch);
        cr_assert_eq(got, expected,
                     "round %d, kind %d: %d, expected %d (n %u k %d typical %g top_p %g min_p %g T %g)",
                     round, kind, got, expected, n, set.top_k, (double)set.typical_p, (double)set.top_p,
                     (double)set.min_p, (double)set.temperature);
    }
    free(scratch);
}

/* Logits that take turns at being the best: each block of tokens lies above the one before it by less than
 * noises differ, so that what has been scored so far rules out as much as it may, and no more. */
Test(sampler_large, a_token_that_was_not_scored_could_not_have_been_the_answer)
{
    static float x[MAX_VOCAB];
    void *scratch = malloc(sampler_scratch_size(MAX_VOCAB));
    for (int round = 0; round < 300; round++) {
        struct step_sampling set = {
            .seed = random_u32(), .temperature = round % 2 ? 1 : 0.3f, STEP_SAMPLING_NEUTRAL};
        for (uint32_t i = 0; i < 9000; i++)
            x[i] = set.temperature * ((float)(i / 64) * 0.13f * (float)(round % 3) + random_part() * 4);
        struct sampler_input in = {.logits = x, .n_vocab = 9000, .set = &set, .position = random_u32()};
        cr_assert_eq(sampler_pick(&in, scratch), expected_pick(&in), "round %d", round);
    }
    free(scratch);
}

/* ---- how much is looked at ---- */

#define LARGE_VOCAB 152064

static uint64_t n_seen; /* values that the loops have read */

static void count_weights(const float *x, uint32_t n, float max, float *w)
{
    n_seen += n;
    sampler_loops_plain.weights(x, n, max, w);
}

static void count_masses(const float *x, uint32_t n, float max, uint64_t *mass, uint64_t *total,
                         uint64_t *surprise)
{
    n_seen += n;
    sampler_loops_plain.masses(x, n, max, mass, total, surprise);
}

static void count_nearness(const float *x, uint32_t n, float max, float mean, float *key)
{
    n_seen += n;
    sampler_loops_plain.nearness(x, n, max, mean, key);
}

static void count_buckets(const float *key, uint32_t n, const struct sampler_range *range, uint32_t *bucket)
{
    n_seen += n;
    sampler_loops_plain.buckets(key, n, range, bucket);
}

static uint32_t count_bounds(const float *key, const uint32_t *bucket, uint32_t n, uint32_t b, float *low,
                             float *high)
{
    n_seen += n;
    return sampler_loops_plain.bounds(key, bucket, n, b, low, high);
}

static void count_scores(const float *x, const uint32_t *id, uint32_t n, const struct sampler_noise *noise,
                         float *score)
{
    n_seen += n;
    sampler_loops_plain.scores(x, id, n, noise, score);
}

static void count_ranks(const uint32_t *id, uint32_t n, const struct sampler_noise *noise, uint32_t *rank)
{
    n_seen += n;
    sampler_loops_plain.ranks(id, n, noise, rank);
}

static const struct sampler_loops counting = {.name = "counting",
                                              .weights = count_weights,
                                              .masses = count_masses,
                                              .nearness = count_nearness,
                                              .buckets = count_buckets,
                                              .bounds = count_bounds,
                                              .scores = count_scores,
                                              .ranks = count_ranks};

/* Passes over the vocabulary that a pick takes, the most of all kinds of logits. */
static double most_passes(float *x, void *scratch, float typical_p, float top_p)
{
    double most = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        struct step_sampling set = {
            .seed = 1, .temperature = 1, .typical_p = typical_p, .top_p = top_p, .repetition_penalty = 1};
        for (uint32_t i = 0; i < LARGE_VOCAB; i++)
            x[i] = logit_of(kind);
        struct sampler_input in = {.logits = x, .n_vocab = LARGE_VOCAB, .set = &set};
        n_seen = 0;
        sampler_pick_with(&counting, &in, scratch);
        cr_assert_gt(n_seen, 0);
        most = fmax(most, (double)n_seen / LARGE_VOCAB);
    }
    return most;
}

/* Two rounds of 1,024 ranges leave few tokens or one key. A round reads keys and their ranges twice, and
 * their bounds: 3 passes for logits, 5 for typical_p, which computes its keys. Beside them: masses, the last
 * cut, what stays, ranks and scores. (What is selected one by one, at most 1,024 tokens, is not counted.) */
Test(sampler_large, a_pick_takes_few_passes_over_a_large_vocabulary)
{
    float *x = malloc(LARGE_VOCAB * sizeof *x);
    void *scratch = malloc(sampler_scratch_size(LARGE_VOCAB));
    cr_assert_leq(most_passes(x, scratch, 1, 0.95f), 10);
    cr_assert_leq(most_passes(x, scratch, 0.95f, 1), 16);
    cr_assert_leq(most_passes(x, scratch, 0.95f, 0.95f), 26);
    free(scratch);
    free(x);
}

/* ---- instruction sets ---- */

enum { N = 300 };

static void expect_same_masses(const struct sampler_loops *plain, const struct sampler_loops *fast,
                               const float *x, uint32_t n)
{
    uint64_t expected[N], mass[N], sums[4] = {1, 2, 1, 2};
    plain->masses(x, n, 0, expected, &sums[0], &sums[1]);
    fast->masses(x, n, 0, mass, &sums[2], &sums[3]);
    cr_assert_eq(memcmp(mass, expected, n * sizeof *mass), 0, "masses of %u, %s", n, fast->name);
    cr_assert(sums[0] == sums[2] && sums[1] == sums[3], "sums of %u, %s", n, fast->name);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(expected[i], (uint64_t)truncf(arith_exp2(x[i] * ARITH_LOG2E) * 0x1p40f));
}

static void expect_same_buckets(const struct sampler_loops *plain, const struct sampler_loops *fast,
                                const float *x, uint32_t n)
{
    struct sampler_range range = {.low = -20, .high = -1, .stretch = 1, .scale = 7 / 19.0f, .n_buckets = 8};
    uint32_t expected[N], bucket[N];
    plain->buckets(x, n, &range, expected);
    fast->buckets(x, n, &range, bucket);
    cr_assert_eq(memcmp(bucket, expected, n * sizeof *bucket), 0, "buckets of %u, %s", n, fast->name);
    for (uint32_t b = 0; b <= 8; b++) {
        float low[2] = {-2, -2}, high[2] = {-10, -10};
        uint32_t count = plain->bounds(x, bucket, n, b, &low[0], &high[0]);
        cr_assert_eq(fast->bounds(x, bucket, n, b, &low[1], &high[1]), count, "%s", fast->name);
        cr_assert(low[0] == low[1] && high[0] == high[1], "bounds of %u, %s", n, fast->name);
    }
}

/* In a row or not, a rank says how many values of the noise are greater. */
static void expect_same_ranks(const struct sampler_loops *plain, const struct sampler_loops *fast, uint32_t n)
{
    struct sampler_noise noise = {.seed = n * 77777777777u, .position = n};
    uint32_t id[N], expected[N], rank[N];
    for (uint32_t i = 0; i < n; i++)
        id[i] = n % 2 ? random_u32() % 300000 : 400 + i;
    plain->ranks(id, n, &noise, expected);
    fast->ranks(id, n, &noise, rank);
    cr_assert_eq(memcmp(rank, expected, n * sizeof *rank), 0, "ranks of %u, %s", n, fast->name);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(arith_gumbel(noise.seed, noise.position, id[i]), arith_gumbel_of(~(rank[i] << 9)));
}

Test(sampler_large, every_instruction_set_gives_the_same_bits)
{
    float x[N];
    for (uint32_t i = 0; i < N; i++)
        x[i] = i % 7 ? -random_part() * 30 : -random_part() * 90;
    x[3] = 0;
    for (uint32_t k = 0; sampler_loops_at(k); k++) {
        const struct sampler_loops *plain = sampler_loops_at(0), *fast = sampler_loops_at(k);
        for (uint32_t n = N; n > N - 70; n--) { /* every tail */
            float expected[N], key[N];
            expect_same_masses(plain, fast, x, n);
            expect_same_buckets(plain, fast, x, n);
            plain->nearness(x, n, 0, 4, expected);
            fast->nearness(x, n, 0, 4, key);
            cr_assert_eq(memcmp(key, expected, n * sizeof *key), 0, "nearness of %u, %s", n, fast->name);
        }
        for (uint32_t n = 0; n <= 64; n++)
            expect_same_ranks(plain, fast, n);
    }
}
