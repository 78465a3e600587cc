/* The decoder's sampler, against its formulas. */
#include "abi/arith.h"
#include "sampler/sampler.h"
#include "sampler/sampler_loops.h"
#define RANDOM_SEED 7
#include "support/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float random_float(float low, float high)
{
    return low + (high - low) * (float)(random_u32() & 0xffffff) / 16777216.0f;
}

#define MAX_VOCAB 160000

static void *scratch(void)
{
    static void *memory;
    if (!memory)
        memory = malloc(sampler_scratch_size(MAX_VOCAB));
    memset(memory, 0xa5, 4096); /* any content will do */
    return memory;
}

static struct step_sampling plain(float temperature)
{
    return (struct step_sampling){
        .seed = 1, .temperature = temperature, STEP_SAMPLING_NEUTRAL, .penalty_last_n = 64};
}

static int32_t pick(const float *logits, uint32_t n, const struct step_sampling *set, uint32_t position)
{
    struct sampler_input in = {.logits = logits, .n_vocab = n, .set = set, .position = position};
    return sampler_pick(&in, scratch());
}

/* ---- the formulas of sampler.h, spelled out with a full sort ---- */

struct entry {
    uint32_t id;
    float x, w, order;
    uint64_t mass;
};

static int by_order(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    if (p->order != q->order)
        return p->order > q->order ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

static float weigh_entries(struct entry *e, uint32_t n, uint64_t *total)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = fmaxf(max, e[i].x);
    *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        e[i].w = arith_exp2((e[i].x - max) * ARITH_LOG2E);
        e[i].mass = (uint64_t)truncf(e[i].w * 0x1p40f);
        *total += e[i].mass;
    }
    return max;
}

static uint32_t shortest_run(struct entry *e, uint32_t n, uint64_t total, float p)
{
    uint64_t sum = 0;
    unsigned __int128 need = ((unsigned __int128)total * (uint64_t)(p * 0x1p24f)) >> 24;
    qsort(e, n, sizeof *e, by_order);
    uint32_t kept = 0, seen = 0;
    do {
        sum += e[seen].mass;
        if (e[seen].mass > 0)
            e[kept++] = e[seen];
        seen++;
    } while (seen < n && (sum < need || kept == 0));
    return kept;
}

static int32_t reference_pick(const struct sampler_input *in)
{
    const struct step_sampling *set = in->set;
    struct entry *e = malloc(in->n_vocab * sizeof *e);
    uint32_t n = in->n_vocab;
    uint64_t total;
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){.id = i, .x = in->logits[i], .order = in->logits[i]};
    if (set->top_k > 0 && (uint32_t)set->top_k < n) {
        qsort(e, n, sizeof *e, by_order);
        n = (uint32_t)set->top_k;
    }
    if (set->typical_p < 1) {
        float max = weigh_entries(e, n, &total);
        uint64_t surprise = 0;
        for (uint32_t i = 0; i < n; i++)
            surprise += (uint64_t)truncf(e[i].w * (max - e[i].x) * 0x1p40f);
        float mean = (float)surprise / (float)total;
        for (uint32_t i = 0; i < n; i++)
            e[i].order = -fabsf((max - e[i].x) - mean);
        n = shortest_run(e, n, total, set->typical_p);
    }
    if (set->top_p < 1) {
        weigh_entries(e, n, &total);
        for (uint32_t i = 0; i < n; i++)
            e[i].order = e[i].x;
        n = shortest_run(e, n, total, set->top_p);
    }
    float max = weigh_entries(e, n, &total), best = -INFINITY;
    uint32_t id = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (set->min_p > 0 && e[i].w < set->min_p && e[i].x != max)
            continue;
        float score = (e[i].x - max) / set->temperature + arith_gumbel(set->seed, in->position, e[i].id);
        if (score > best || (score == best && e[i].id < id)) {
            best = score;
            id = e[i].id;
        }
    }
    free(e);
    return (int32_t)id;
}

/* Logits on a coarse grid, so that ties are common. */
static void fill_logits(float *x, uint32_t n, float spread, bool coarse)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = random_float(-spread, spread);
        if (coarse)
            x[i] = rintf(x[i] * 4) / 4;
    }
}

static struct step_sampling random_settings(void)
{
    static const float ps[] = {1, 1, 0.999f, 0.95f, 0.7f, 0.3f, 0.01f};
    static const float temperatures[] = {0.05f, 0.7f, 1, 2, 50};
    static const int32_t ks[] = {0, 0, 0, 1, 2, 5, 40, 300};
    static const float min_ps[] = {0, 0, 0.05f, 0.5f, 1};
    struct step_sampling set = plain(temperatures[random_u32() % 5]);
    set.seed = random_u32();
    set.top_k = ks[random_u32() % 8];
    set.typical_p = ps[random_u32() % 7];
    set.top_p = ps[random_u32() % 7];
    set.min_p = min_ps[random_u32() % 5];
    return set;
}

Test(sampler, selection_without_sorting_picks_what_the_sorted_formulas_pick)
{
    static float x[5000];
    for (int round = 0; round < 3000; round++) {
        uint32_t n = round % 30 == 0 ? 5000 : 1 + random_u32() % 200;
        fill_logits(x, n, random_float(0, 30), round % 2);
        struct step_sampling set = random_settings();
        struct sampler_input in = {.logits = x, .n_vocab = n, .set = &set, .position = random_u32()};
        int32_t expected = reference_pick(&in), got = sampler_pick(&in, scratch());
        cr_assert_eq(got, expected, "round %d: %d, expected %d (n %u k %d typical %g top_p %g min_p %g T %g)",
                     round, got, expected, n, set.top_k, (double)set.typical_p, (double)set.top_p,
                     (double)set.min_p, (double)set.temperature);
    }
}

/* ---- distributions ---- */

#define DRAWS 20000

static double chi_square(const uint32_t *seen, const double *p, uint32_t n, uint32_t draws)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (p[i] > 0)
            sum += (seen[i] - draws * p[i]) * (seen[i] - draws * p[i]) / (draws * p[i]);
        else
            sum += seen[i] ? INFINITY : 0;
    return sum;
}

static void softmax(const float *x, uint32_t n, double temperature, double *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i] = exp(x[i] / temperature);
    for (uint32_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* 16 tokens, 15 degrees of freedom: a correct sampler exceeds 44 once in 10,000 sets of draws; the seeds are
 * fixed, so the outcome is too. */
static void check_draws(const float *x, const struct step_sampling *set, const double *p)
{
    uint32_t seen[16] = {0};
    for (uint32_t position = 0; position < DRAWS; position++)
        seen[pick(x, 16, set, position)]++;
    double chi = chi_square(seen, p, 16, DRAWS);
    cr_assert_lt(chi, 44.0, "chi-square %g", chi);
}

Test(sampler, draws_follow_the_softmax_at_any_temperature)
{
    static const float temperatures[] = {0.5f, 1, 1.7f};
    for (int t = 0; t < 3; t++) {
        float x[16];
        double p[16];
        fill_logits(x, 16, 2, false);
        softmax(x, 16, (double)temperatures[t], p);
        struct step_sampling set = plain(temperatures[t]);
        check_draws(x, &set, p);
    }
}

Test(sampler, draws_after_top_k_follow_the_renormalised_softmax)
{
    float x[16];
    double p[16];
    fill_logits(x, 16, 2, false);
    softmax(x, 16, 1, p);
    struct step_sampling set = plain(1);
    set.top_k = 5;
    double sum = 0;
    for (int i = 0; i < 16; i++) {
        int larger = 0;
        for (int j = 0; j < 16; j++)
            larger += x[j] > x[i];
        p[i] = larger < 5 ? p[i] : 0;
        sum += p[i];
    }
    for (int i = 0; i < 16; i++)
        p[i] /= sum;
    check_draws(x, &set, p);
}

Test(sampler, draws_of_different_seeds_are_independent)
{
    /* Equal tokens of two seeds happen as often as chance says: sum p^2 = 1/16 of the draws. */
    float x[16] = {0};
    struct step_sampling a = plain(1), b = plain(1);
    b.seed = 2;
    int equal = 0;
    for (uint32_t position = 0; position < DRAWS; position++)
        equal += pick(x, 16, &a, position) == pick(x, 16, &b, position);
    cr_assert(abs(equal - DRAWS / 16) < 140, "%d", equal); /* 4 sigma */
}

Test(sampler, the_same_seed_and_position_give_the_same_token)
{
    float x[100];
    fill_logits(x, 100, 1, false);
    struct step_sampling set = plain(1);
    int32_t first = pick(x, 100, &set, 9);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(pick(x, 100, &set, 9), first);
}

/* ---- the filters, from their definitions in doubles ---- */

static uint32_t survivors(const float *x, uint32_t n, struct step_sampling set)
{
    uint32_t seen = 0;
    set.temperature = 1000; /* nearly uniform among what is left */
    for (uint32_t position = 0; position < 600; position++)
        seen |= 1u << pick(x, n, &set, position);
    return seen;
}

/* Tokens from the most probable on until their probabilities reach `top_p`. */
static uint32_t top_p_mask(const double *p, uint32_t n, double top_p)
{
    uint32_t mask = 0;
    for (double sum = 0; sum < top_p;) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!(mask >> i & 1) && (best == n || p[i] > p[best]))
                best = i;
        mask |= 1u << best;
        sum += p[best];
    }
    return mask;
}

static uint32_t typical_mask(const double *p, uint32_t n, double typical_p)
{
    double entropy = 0;
    for (uint32_t i = 0; i < n; i++)
        entropy -= p[i] * log(p[i]);
    uint32_t mask = 0;
    for (double sum = 0; sum < typical_p;) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!(mask >> i & 1) && (best == n || fabs(-log(p[i]) - entropy) < fabs(-log(p[best]) - entropy)))
                best = i;
        mask |= 1u << best;
        sum += p[best];
    }
    return mask;
}

Test(sampler, top_p_keeps_the_shortest_list_that_reaches_it)
{
    for (int round = 0; round < 60; round++) {
        float x[12];
        double p[12];
        fill_logits(x, 12, 3, false);
        softmax(x, 12, 1, p);
        struct step_sampling set = plain(1);
        set.top_p = random_float(0.05f, 0.99f);
        cr_assert_eq(survivors(x, 12, set), top_p_mask(p, 12, (double)set.top_p), "round %d", round);
    }
}

Test(sampler, typical_p_keeps_the_tokens_nearest_to_the_entropy)
{
    for (int round = 0; round < 60; round++) {
        float x[12];
        double p[12];
        fill_logits(x, 12, 3, false);
        softmax(x, 12, 1, p);
        struct step_sampling set = plain(1);
        set.typical_p = random_float(0.05f, 0.99f);
        cr_assert_eq(survivors(x, 12, set), typical_mask(p, 12, (double)set.typical_p), "round %d", round);
    }
}

Test(sampler, min_p_keeps_the_tokens_above_its_share_of_the_likeliest)
{
    for (int round = 0; round < 60; round++) {
        float x[12], max = -INFINITY;
        fill_logits(x, 12, 3, false);
        struct step_sampling set = plain(1);
        set.min_p = random_float(0.01f, 0.9f);
        uint32_t mask = 0;
        for (int i = 0; i < 12; i++)
            max = fmaxf(max, x[i]);
        for (uint32_t i = 0; i < 12; i++)
            mask |= (uint32_t)(exp((double)(x[i] - max)) >= (double)set.min_p) << i;
        cr_assert_eq(survivors(x, 12, set), mask, "round %d", round);
    }
}

Test(sampler, top_p_works_on_what_top_k_left)
{
    /* 0.4 0.3 0.2 0.1: of the two likeliest the first holds 0.57 of what is left, but 0.4 of all. */
    float x[4] = {logf(0.4f), logf(0.3f), logf(0.2f), logf(0.1f)};
    struct step_sampling set = plain(1);
    set.top_k = 2;
    set.top_p = 0.5f;
    cr_assert_eq(survivors(x, 4, set), 1u);
}

Test(sampler, top_k_of_equal_logits_keeps_the_smaller_ids)
{
    float x[16] = {0};
    struct step_sampling set = plain(1);
    set.top_k = 3;
    cr_assert_eq(survivors(x, 16, set), 7u);
}

Test(sampler, the_tightest_filters_still_leave_the_likeliest_token)
{
    float x[8] = {0, 1, 5, 2, 1, 0, 3, 4};
    struct step_sampling set = plain(1);
    set.top_k = 8;
    set.top_p = 0;
    set.min_p = 1;
    cr_assert_eq(survivors(x, 8, set), 1u << 2);
}

/* ---- greedy ---- */

Test(sampler, greedy_ties_go_to_the_smaller_id)
{
    static float x[1000];
    x[333] = x[700] = x[999] = 4;
    struct step_sampling set = plain(0);
    cr_assert_eq(pick(x, 1000, &set, 3), 333);
}

Test(sampler, greedy_does_not_look_at_filters)
{
    float x[4] = {0, 10, 0, 0}; /* typical_p alone would remove the likeliest here */
    struct step_sampling set = plain(0);
    set.typical_p = 0.0001f;
    set.top_k = 3;
    cr_assert_eq(pick(x, 4, &set, 3), 1);
}

Test(sampler, a_vocabulary_of_one_has_one_answer)
{
    float x[1] = {-3};
    struct step_sampling greedy = plain(0), warm = plain(1);
    warm.top_k = 40;
    cr_assert_eq(pick(x, 1, &greedy, 0), 0);
    cr_assert_eq(pick(x, 1, &warm, 0), 0);
}

/* ---- bias, bans, penalties ---- */

Test(sampler, a_bias_of_minus_infinity_is_a_ban)
{
    float x[4] = {9, 8, 1, 0};
    struct step_bias biases[] = {{0, -INFINITY}, {1, -INFINITY}};
    for (int temperature = 0; temperature < 2; temperature++) {
        struct step_sampling set = plain((float)temperature);
        set.n_bias = 2;
        for (uint32_t position = 0; position < 500; position++) {
            struct sampler_input in = {
                .logits = x, .n_vocab = 4, .set = &set, .biases = biases, .position = position};
            cr_assert_geq(sampler_pick(&in, scratch()), 2);
        }
    }
}

Test(sampler, biases_are_added_to_the_logit)
{
    float x[4] = {0, 1, 2, 3};
    struct step_bias biases[] = {{0, 2.5f}, {0, 1.0f}, {3, -1.0f}};
    struct step_sampling set = plain(0);
    set.n_bias = 3;
    struct sampler_input in = {.logits = x, .n_vocab = 4, .set = &set, .biases = biases};
    cr_assert_eq(sampler_pick(&in, scratch()), 0);
    cr_assert_eq(x[0], 0.0f); /* the caller's logits stay */
}

Test(sampler, banned_end_tokens_are_never_picked)
{
    float x[4] = {9, 1, 8, 0};
    int32_t banned[] = {0, 2};
    struct step_sampling set = plain(1);
    for (uint32_t position = 0; position < 500; position++) {
        struct sampler_input in = {
            .logits = x, .n_vocab = 4, .set = &set, .banned = banned, .n_banned = 2, .position = position};
        int32_t token = sampler_pick(&in, scratch());
        cr_assert(token == 1 || token == 3, "%d", token);
    }
}

Test(sampler, when_all_is_banned_the_largest_logit_is_the_answer)
{
    float x[3] = {1, 7, 3};
    int32_t banned[] = {0, 1, 2};
    for (int temperature = 0; temperature < 2; temperature++) {
        struct step_sampling set = plain((float)temperature);
        struct sampler_input in = {.logits = x, .n_vocab = 3, .set = &set, .banned = banned, .n_banned = 3};
        cr_assert_eq(sampler_pick(&in, scratch()), 1);
    }
}

static int32_t pick_after(const float *x, const struct step_sampling *set, const int32_t *history, uint32_t n)
{
    struct sampler_input in = {.logits = x, .n_vocab = 4, .set = set, .history = history, .n_history = n};
    return sampler_pick(&in, scratch());
}

Test(sampler, repetition_divides_positive_and_multiplies_negative_logits)
{
    int32_t history[] = {0};
    struct step_sampling set = plain(0);
    set.repetition_penalty = 2;
    float positive[4] = {4, 2.1f, -9, -9}, negative[4] = {-1, -1.9f, -9, -9};
    cr_assert_eq(pick_after(positive, &set, history, 1), 1); /* 4 / 2 < 2.1 */
    cr_assert_eq(pick_after(negative, &set, history, 1), 1); /* -1 * 2 < -1.9 */
}

Test(sampler, repetition_counts_a_token_once)
{
    int32_t history[] = {0, 0, 0};
    float x[4] = {4, 1.9f, -9, -9};
    struct step_sampling set = plain(0);
    set.repetition_penalty = 2;
    cr_assert_eq(pick_after(x, &set, history, 3), 0);
}

Test(sampler, frequency_grows_with_the_count_and_presence_does_not)
{
    int32_t history[] = {0, 0, 0, 1};
    float x[4] = {4, 3.5f, -9, -9};
    struct step_sampling frequency = plain(0), presence = plain(0);
    frequency.frequency_penalty = 0.5f; /* 4 - 1.5 < 3.5 - 0.5 */
    presence.presence_penalty = 0.5f;   /* 3.5 > 3 */
    cr_assert_eq(pick_after(x, &frequency, history, 4), 1);
    cr_assert_eq(pick_after(x, &presence, history, 4), 0);
}

Test(sampler, penalties_see_the_last_n_tokens_only)
{
    int32_t history[] = {0, 3, 3};
    float x[4] = {4, 3, 2, 1};
    struct step_sampling set = plain(0);
    set.presence_penalty = 2;
    set.penalty_last_n = 2;
    cr_assert_eq(pick_after(x, &set, history, 3), 0);
    set.penalty_last_n = 3;
    cr_assert_eq(pick_after(x, &set, history, 3), 1);
    set.penalty_last_n = 0;
    cr_assert_eq(pick_after(x, &set, history, 3), 0);
}

Test(sampler, tokens_out_of_range_are_ignored)
{
    int32_t history[] = {-1, 4, 1 << 30}, banned[] = {-5, 99};
    struct step_bias biases[] = {{-1, 9}, {4, 9}};
    float x[4] = {1, 2, 3, 0};
    struct step_sampling set = plain(0);
    set.presence_penalty = 9;
    set.n_bias = 2;
    struct sampler_input in = {.logits = x,
                               .n_vocab = 4,
                               .set = &set,
                               .biases = biases,
                               .banned = banned,
                               .n_banned = 2,
                               .history = history,
                               .n_history = 3};
    cr_assert_eq(sampler_pick(&in, scratch()), 2);
}

/* ---- what should not be there ---- */

Test(sampler, a_nan_is_never_picked)
{
    float x[70];
    for (int i = 0; i < 70; i++)
        x[i] = NAN;
    x[66] = -1;
    for (int k = 0; k < 80; k += 5) {
        struct step_sampling set = plain((float)(k % 2));
        set.top_k = k;
        set.top_p = 0.9f;
        set.typical_p = 0.9f;
        cr_assert_eq(pick(x, 70, &set, (uint32_t)k), 66);
    }
}

Test(sampler, infinities_do_not_derail_the_filters)
{
    float x[4] = {-INFINITY, 3, INFINITY, -INFINITY};
    struct step_sampling set = plain(1);
    set.top_p = 0.9f;
    set.min_p = 0.1f;
    set.typical_p = 0.99f;
    cr_assert_eq(pick(x, 4, &set, 5), 2);
    set.top_k = 2;
    cr_assert_eq(pick(x, 4, &set, 5), 2);
}

/* ---- log-probabilities ---- */

Test(sampler, log_probabilities_are_those_of_the_softmax)
{
    static const uint32_t sizes[] = {1, 7, 31, 33, 4095, 4096, 4097, 151936};
    static float x[151936];
    for (int s = 0; s < 8; s++) {
        uint32_t n = sizes[s];
        fill_logits(x, n, 12, false);
        double max = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < n; i++)
            max = fmax(max, (double)x[i]);
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)x[i] - max);
        struct sampler_norm norm;
        cr_assert(sampler_norm(x, n, &norm));
        for (uint32_t i = 0; i < n; i += 1 + n / 50) {
            double exact = (double)x[i] - max - log(sum);
            cr_assert_float_eq(sampler_logprob(&norm, x[i]), exact, 5e-6, "n %u, token %u", n, i);
        }
    }
}

Test(sampler, the_normaliser_folds_segments_lanes_and_tree_as_documented)
{
    static float x[3 * ARITH_LSE_SEGMENT - 77];
    uint32_t n = 3 * ARITH_LSE_SEGMENT - 77;
    fill_logits(x, n, 20, false);
    float max = -INFINITY, m[3] = {-INFINITY, -INFINITY, -INFINITY}, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        m[i / ARITH_LSE_SEGMENT] = fmaxf(m[i / ARITH_LSE_SEGMENT], x[i]);
        max = fmaxf(max, x[i]);
    }
    for (uint32_t s = 0; s < 3; s++) {
        float lane[32] = {0};
        for (uint32_t i = s * ARITH_LSE_SEGMENT; i < n && i < (s + 1) * ARITH_LSE_SEGMENT; i++)
            lane[i % 32] += arith_exp2((x[i] - m[s]) * ARITH_LOG2E);
        for (int w = 16; w; w /= 2)
            for (int l = 0; l < w; l++)
                lane[l] += lane[l ^ w];
        sum = fmaf(arith_exp2((m[s] - max) * ARITH_LOG2E), lane[0], sum);
    }
    struct sampler_norm norm;
    cr_assert(sampler_norm(x, n, &norm));
    cr_assert_eq(norm.max, max);
    cr_assert_eq(norm.log2_sum, arith_log2(sum));
}

Test(sampler, a_logit_that_is_not_finite_is_reported)
{
    static float x[5000];
    struct sampler_norm norm;
    cr_assert(sampler_norm(x, 5000, &norm));
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        x[4321] = bad[i];
        cr_assert_not(sampler_norm(x, 5000, &norm));
    }
}

Test(sampler, alternatives_are_sorted_with_ties_by_smaller_id)
{
    static float x[3000];
    for (int round = 0; round < 20; round++) {
        fill_logits(x, 3000, 3, round % 2);
        struct sampler_norm norm;
        struct step_top top[STEP_MAX_TOP];
        cr_assert(sampler_norm(x, 3000, &norm));
        sampler_top(x, 3000, &norm, STEP_MAX_TOP, top);
        for (int t = 0; t < STEP_MAX_TOP; t++) {
            uint32_t id = (uint32_t)top[t].token, ahead = 0;
            for (uint32_t i = 0; i < 3000; i++)
                ahead += x[i] > x[id] || (x[i] == x[id] && i < id);
            cr_assert_eq(ahead, (uint32_t)t);
            cr_assert_eq(top[t].logprob, sampler_logprob(&norm, x[id]));
        }
    }
}

Test(sampler, a_small_vocabulary_fills_the_alternatives_with_none)
{
    float x[2] = {1, 2};
    struct sampler_norm norm;
    struct step_top top[3];
    cr_assert(sampler_norm(x, 2, &norm));
    sampler_top(x, 2, &norm, 3, top);
    cr_assert_eq(top[0].token, 1);
    cr_assert_eq(top[2].token, -1);
}

Test(sampler, a_large_vocabulary_gives_the_same_tokens_as_the_sorted_formulas)
{
    static float x[151936];
    for (int round = 0; round < 6; round++) {
        fill_logits(x, 151936, round % 2 ? 0.1f : 15, false);
        struct step_sampling set = random_settings();
        set.top_k = round < 3 ? 0 : 40;
        struct sampler_input in = {.logits = x, .n_vocab = 151936, .set = &set, .position = 77};
        cr_assert_eq(sampler_pick(&in, scratch()), reference_pick(&in));
    }
}

/* ---- what is not even gathered ---- */

#define WIDE 151936

/* The token with the least noise is the likeliest; the one with the most lies below it by less than their
 * noises differ, 18 temperatures, and so is the answer. */
Test(sampler, a_token_as_far_down_as_noise_reaches_can_still_be_the_answer)
{
    static float x[WIDE];
    uint32_t position = 0, low = 0, high = 0;
    float most = -INFINITY, least = INFINITY;
    for (uint32_t p = 0; p < 48; p++)
        for (uint32_t i = 0; i < WIDE; i++)
            if (arith_gumbel(1, p, i) > most) {
                most = arith_gumbel(1, p, i);
                position = p;
                low = i;
            }
    for (uint32_t i = 0; i < WIDE; i++)
        if (arith_gumbel(1, position, i) < least) {
            least = arith_gumbel(1, position, i);
            high = i;
        }
    cr_assert_gt(most - least, 18.0f);
    static const float temperatures[] = {0.5f, 1, 50};
    for (int t = 0; t < 3; t++) {
        struct step_sampling set = plain(temperatures[t]);
        for (uint32_t i = 0; i < WIDE; i++)
            x[i] = -1e6f;
        x[high] = 0;
        x[low] = -temperatures[t] * (most - least - 0.05f);
        struct sampler_input in = {.logits = x, .n_vocab = WIDE, .set = &set, .position = position};
        cr_assert_eq(sampler_pick(&in, scratch()), (int32_t)low);
        cr_assert_eq(reference_pick(&in), (int32_t)low);
    }
}

/* One token and far below it all others, each of a mass that is almost none: together they are more than the
 * smallest part of the total that a filter can leave out. At this temperature one of them is the answer. */
Test(sampler, a_filter_counts_every_token_that_has_a_mass)
{
    static const float depths[] = {19, 21, 24, 27.4f};
    static float x[WIDE];
    for (int d = 0; d < 4; d++)
        for (int typical = 0; typical < 2; typical++) {
            fill_logits(x, WIDE, 0.2f, false);
            for (uint32_t i = 0; i < WIDE; i++)
                x[i] -= depths[d];
            x[777] = 0;
            struct step_sampling set = plain(100);
            *(typical ? &set.typical_p : &set.top_p) = 1 - 0x1p-24f;
            struct sampler_input in = {.logits = x, .n_vocab = WIDE, .set = &set, .position = 5};
            int32_t got = sampler_pick(&in, scratch());
            cr_assert_neq(got, 777, "%g down", (double)depths[d]);
            cr_assert_eq(got, reference_pick(&in), "%g down", (double)depths[d]);
        }
}

/* ---- instruction sets ---- */

Test(sampler_loops, every_instruction_set_gives_the_same_bits)
{
    enum { N = 1000 };
    static float x[N], w[N], expected[N];
    static uint32_t id[N];
    fill_logits(x, N, 60, false);
    for (uint32_t i = 0; i < N; i++)
        id[i] = random_u32() % 300000;
    x[17] = -INFINITY;
    for (uint32_t k = 1; sampler_loops_at(k); k++) {
        const struct sampler_loops *plain = sampler_loops_at(0), *fast = sampler_loops_at(k);
        for (uint32_t n = N; n > N - 70; n--) { /* every tail */
            plain->weights(x, n, 60, expected);
            fast->weights(x, n, 60, w);
            cr_assert_eq(memcmp(w, expected, n * sizeof *w), 0, "weights of %u, %s", n, fast->name);
            float a = plain->sum_weights(x, n, 60), b = fast->sum_weights(x, n, 60);
            cr_assert_eq(memcmp(&a, &b, sizeof a), 0, "sum of %u, %s", n, fast->name);
            struct sampler_noise noise = {
                .max = 60, .temperature = 0.7f, .seed = n * 77777777777u, .position = n};
            plain->scores(x, id, n, &noise, expected);
            fast->scores(x, id, n, &noise, w);
            cr_assert_eq(memcmp(w, expected, n * sizeof *w), 0, "scores of %u, %s", n, fast->name);
        }
    }
}
