/* Chains of filters against the cases of a plain reference in double precision (tests/data/samplers), the
 * state that passes from token to token, and what the draw's frequencies are. */
#include "abi/arith.h"
#include "sampler/sampler_chain.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX 64 /* tokens of a case's vocabulary, and of its history */

static struct sampler_tokens breakers[8];
static int32_t breaker_ids[8][8], history[256];
static uint32_t dry[256], single[2];
static _Alignas(8) char scratch[65536];

static double number(const json_t *args, const char *name)
{
    return json_number_value(json_object_get(args, name));
}

static uint32_t read_ids(const json_t *list, int32_t *out)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static void read_dry(struct sampler_chain *c, const json_t *args)
{
    const json_t *given = json_object_get(args, "breakers");
    c->dry_multiplier = (float)number(args, "multiplier");
    c->dry_base = (float)number(args, "base");
    c->dry_allowed_length = (uint32_t)number(args, "allowed");
    c->n_breakers = (uint32_t)json_array_size(given);
    c->breakers = breakers;
    c->single = single;
    c->n_single = 8 * sizeof single;
    memset(single, 0, sizeof single);
    for (uint32_t i = 0; i < c->n_breakers; i++) {
        breakers[i] =
            (struct sampler_tokens){breaker_ids[i], read_ids(json_array_get(given, i), breaker_ids[i])};
        if (breakers[i].n == 1)
            single[breaker_ids[i][0] / 32] |= 1u << (breaker_ids[i][0] % 32);
    }
}

/* One filter of a case, by the reference's names. The history is that of the last filter that has one. */
static void add(struct sampler_chain *c, struct step_sampling *s, struct sampler_input *in,
                const json_t *filter)
{
    static const char *const names[SAMPLER_N_FILTERS] = {
        "penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature"};
    const char *name = json_string_value(json_array_get(filter, 0));
    const json_t *args = json_array_get(filter, 1), *last = json_object_get(args, "last");
    if (last)
        in->n_history = read_ids(last, history);
    s->penalty_last_n = 256;
    if (!strcmp(name, "mirostat_v2")) {
        c->mirostat = true;
        c->mu = number(args, "mu");
        return;
    }
    if (!strcmp(name, "adaptive_p")) {
        c->adaptive_target = (float)number(args, "target");
        c->adaptive_p = number(args, "average");
        c->adaptive_n = 1;
        return;
    }
    uint32_t f = 0;
    for (; f < SAMPLER_N_FILTERS && strcmp(name, names[f]) != 0; f++)
        ;
    if (f == SAMPLER_N_FILTERS) { /* dynatemp */
        f = SAMPLER_TEMPERATURE;
        c->dynatemp_range = (float)number(args, "spread");
        c->dynatemp_exponent = (float)number(args, "exponent");
    }
    c->order[c->n_order++] = (uint8_t)f;
    double p = number(args, "p"), n = number(args, "n");
    switch (f) {
    case SAMPLER_PENALTIES:
        s->repetition_penalty = (float)number(args, "repeat");
        s->frequency_penalty = (float)number(args, "freq");
        s->presence_penalty = (float)number(args, "presence");
        break;
    case SAMPLER_DRY:
        read_dry(c, args);
        break;
    case SAMPLER_TOP_N_SIGMA:
        c->top_n_sigma = (float)n;
        break;
    case SAMPLER_TOP_K:
        s->top_k = (int32_t)number(args, "k");
        break;
    case SAMPLER_TYPICAL_P:
        s->typical_p = (float)p;
        break;
    case SAMPLER_TOP_P:
        s->top_p = (float)p;
        break;
    case SAMPLER_MIN_P:
        s->min_p = (float)p;
        break;
    case SAMPLER_XTC:
        c->xtc_threshold = (float)number(args, "threshold");
        c->xtc_probability = json_is_true(json_object_get(args, "struck")) ? 1.0f : 0.0f;
        break;
    default:
        s->temperature = (float)number(args, "t");
    }
}

static struct step_sampling neutral(void)
{
    return (struct step_sampling){.temperature = 1, STEP_SAMPLING_NEUTRAL, .penalty_last_n = 256};
}

/* Runs filters [from, to) of a case over the logits, in one chain; the logits at the end replace them. */
static void run(float *logits, uint32_t n, const json_t *filters, size_t from, size_t to)
{
    struct step_sampling set = neutral();
    struct sampler_input in = {
        .logits = logits, .n_vocab = n, .set = &set, .history = history, .position = 9, .dry = dry};
    struct sampler_candidate *out;
    struct sampler_chain c;
    sampler_chain_defaults(&c);
    c.n_order = 0;
    for (size_t i = from; i < to; i++)
        add(&c, &set, &in, json_array_get(filters, i));
    uint32_t left = sampler_chain_filter(&c, &in, scratch, &out);
    for (uint32_t i = 0; i < n; i++)
        logits[i] = -INFINITY;
    for (uint32_t i = 0; i < left; i++)
        logits[out[i].id] = out[i].x;
}

static bool has(const json_t *filters, const char *name)
{
    for (size_t i = 0; i < json_array_size(filters); i++)
        if (!strcmp(json_string_value(json_array_get(json_array_get(filters, i), 0)), name))
            return true;
    return false;
}

static void check(const char *id, const float *logits, uint32_t n, const json_t *expect)
{
    const json_t *kept = json_object_get(expect, "kept"), *probs = json_object_get(expect, "probs");
    double sum = 0, m = -INFINITY;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++)
        m = fmax(m, (double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - m);
    for (uint32_t i = 0; i < n; i++)
        n_kept += logits[i] > -INFINITY;
    cr_expect_eq(n_kept, json_array_size(kept), "%s: %u left", id, n_kept);
    for (size_t i = 0; i < json_array_size(kept); i++) {
        double p = exp((double)logits[json_integer_value(json_array_get(kept, i))] - m) / sum;
        double expected = json_number_value(json_array_get(probs, i));
        cr_expect(fabs(p - expected) <= 1e-5 * fmax(expected, 1e-2), "%s: p %.9f, %.9f expected", id, p,
                  expected);
    }
}

Test(sampler_chain, gives_the_distribution_of_the_reference_for_every_case)
{
    FILE *f = fopen(HEARTH_TEST_DATA "/samplers/cases.jsonl", "r");
    char line[65536];
    uint32_t n_cases = 0;
    cr_assert(f);
    for (; fgets(line, sizeof line, f); n_cases++) {
        json_t *root = json_loads(line, 0, NULL);
        const json_t *given = json_object_get(root, "logits"), *filters = json_object_get(root, "chain");
        uint32_t n = (uint32_t)json_array_size(given);
        size_t n_filters = json_array_size(filters);
        float logits[MAX];
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)json_number_value(json_array_get(given, i));
        /* The reference gives penalties and dry a history each, a text has one. */
        bool two = has(filters, "penalties") && has(filters, "dry");
        size_t part = two ? 1 : n_filters;
        for (size_t i = 0; i < n_filters; i += part)
            run(logits, n, filters, i, i + part);
        check(json_string_value(json_object_get(root, "id")), logits, n, json_object_get(root, "expect"));
        json_decref(root);
    }
    fclose(f);
    cr_assert_geq(n_cases, 200);
}

/* The draw takes each token as often as its probability says. */
Test(sampler_chain, draws_tokens_as_often_as_they_are_likely)
{
    static const float logits[] = {1, 0, -1, 2};
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 4, .set = &set};
    struct sampler_chain c;
    uint32_t counts[4] = {0};
    double sum = exp(1) + 1 + exp(-1) + exp(2);
    sampler_chain_defaults(&c);
    for (in.position = 0; in.position < 20000; in.position++)
        counts[sampler_chain_pick(&c, &in, scratch)]++;
    for (int i = 0; i < 4; i++) {
        double expected = 20000 * exp((double)logits[i]) / sum;
        cr_expect_lt(fabs(counts[i] - expected), 5 * sqrt(expected), "token %d: %u", i, counts[i]);
    }
}

Test(sampler_chain, neutral_filters_pick_what_the_sampler_of_the_decoder_picks)
{
    static float logits[1000];
    static _Alignas(8) char other[1 << 20];
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 1000, .set = &set};
    struct sampler_chain c;
    cr_assert_leq(sampler_scratch_size(1000), sizeof other);
    sampler_chain_defaults(&c);
    for (in.position = 0; in.position < 300; in.position++) {
        set.seed = in.position;
        for (uint32_t i = 0; i < 1000; i++)
            logits[i] = 3 * arith_gumbel(7, in.position, i);
        cr_expect_eq(sampler_chain_pick(&c, &in, scratch), sampler_pick(&in, other));
    }
}

/* The coin falls as often as it should, and the noise is the same whether it is thrown or not. */
Test(sampler_chain, the_coin_of_xtc_moves_no_noise)
{
    static const float logits[] = {2, 1.9f, 1.8f, -5};
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 4, .set = &set};
    struct sampler_candidate *out;
    struct sampler_chain off, half;
    uint32_t n_struck = 0;
    sampler_chain_defaults(&off);
    sampler_chain_defaults(&half);
    half.xtc_probability = 0.5f;
    for (in.position = 0; in.position < 4000; in.position++) {
        uint32_t n = sampler_chain_filter(&half, &in, scratch, &out);
        cr_assert(n == 4 || n == 2);
        n_struck += n == 2;
        int32_t token = sampler_chain_pick(&half, &in, scratch);
        cr_assert(n == 2 || token == sampler_chain_pick(&off, &in, scratch));
    }
    cr_expect_lt(abs((int)n_struck - 2000), 160);
}

/* mu moves by what was drawn, so that the surprise comes to tau. */
Test(sampler_chain, mirostat_brings_the_surprise_to_its_target)
{
    static float logits[500];
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 500, .set = &set};
    struct sampler_chain c;
    double mu = 6;
    sampler_chain_defaults(&c);
    c.mirostat = true;
    c.mirostat_tau = 3;
    sampler_chain_begin(&c);
    cr_assert_eq(c.mu, mu);
    for (uint32_t i = 0; i < 500; i++)
        logits[i] = -2 * logf((float)i + 1);
    static struct sampler_candidate kept[500];
    for (in.position = 0; in.position < 500; in.position++) {
        struct sampler_candidate *out;
        uint32_t n = sampler_chain_filter(&c, &in, scratch, &out);
        double sum = 0, p = 0;
        memcpy(kept, out, n * sizeof *kept);
        int32_t token = sampler_chain_pick(&c, &in, scratch);
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)kept[i].x);
        for (uint32_t i = 0; i < n; i++)
            p = kept[i].id == token ? exp((double)kept[i].x) / sum : p;
        mu -= 0.1 * (-log2(p) - 3);
        cr_assert_float_eq(c.mu, mu, 1e-3);
    }
}

Test(sampler_chain, adaptive_p_answers_what_was_drawn)
{
    static const float logits[] = {0, -1, -2, -3};
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 4, .set = &set};
    struct sampler_chain c;
    double p[4], sum = 0, total = 10, weighted = 5;
    sampler_chain_defaults(&c);
    c.adaptive_target = 0.5f;
    sampler_chain_begin(&c);
    for (int i = 0; i < 4; i++)
        sum += p[i] = exp((double)logits[i]);
    for (in.position = 0; in.position < 50; in.position++) {
        int32_t token = sampler_chain_pick(&c, &in, scratch);
        weighted = p[token] / sum + 0.9 * weighted;
        total = 1 + 0.9 * total;
        cr_assert_float_eq(c.adaptive_p / c.adaptive_n, weighted / total, 1e-5);
    }
}

/* Selection finds what sorting would, on a large vocabulary with many equal logits. */
Test(sampler_chain, prefixes_of_an_order_are_those_of_a_sorted_list)
{
    enum { N = 5000 };
    static float logits[N];
    static _Alignas(8) char large[N * 64];
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = N, .set = &set};
    struct sampler_candidate *out;
    struct sampler_chain c;
    cr_assert_leq(sampler_chain_scratch_size(N), sizeof large);
    sampler_chain_defaults(&c);
    for (uint32_t i = 0; i < N; i++)
        logits[i] = (float)((i * 7919) % 50) / 10;
    set.top_k = 777;
    uint32_t n = sampler_chain_filter(&c, &in, large, &out);
    cr_assert_eq(n, 777);
    for (uint32_t i = 0; i < n;
         i++) { /* 100 tokens have each logit; of the least that is kept the first 77 stay */
        cr_assert_geq(out[i].x, 4.2f);
        cr_assert(out[i].x > 4.2f || (uint32_t)out[i].id < 77 * 50, "%d", out[i].id);
    }
}

/* x / t leaves the range of floats: the largest is taken, whatever filters follow. */
Test(sampler_chain, the_coldest_temperature_takes_the_largest)
{
    static const float logits[] = {1, 4, 3, 4.5f, 2};
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 5, .set = &set};
    struct sampler_chain c;
    sampler_chain_defaults(&c);
    c.top_n_sigma = 100;
    set.typical_p = 0.5f;
    for (float t = 1; t > 0; t /= 4) {
        set.temperature = t;
        int32_t token = sampler_chain_pick(&c, &in, scratch);
        cr_assert(t > 1e-3f || token == 3, "%g: %d", (double)t, token);
    }
}

/* A penalty beyond the range of floats would leave filters that count with the logits' spread nothing. */
Test(sampler_chain, the_largest_penalty_of_dry_leaves_finite_logits)
{
    static const float logits[] = {1, 2, 3, 4};
    int32_t past[400];
    static uint32_t z[400];
    struct step_sampling set = neutral();
    struct sampler_input in = {
        .logits = logits, .n_vocab = 4, .set = &set, .history = past, .n_history = 400, .dry = z};
    struct sampler_candidate *out;
    struct sampler_chain c;
    for (int i = 0; i < 400; i++)
        past[i] = 3;
    sampler_chain_defaults(&c);
    c.dry_multiplier = 100;
    c.dry_base = 4;
    c.dry_last_n = 400;
    uint32_t n = sampler_chain_filter(&c, &in, scratch, &out);
    cr_assert_eq(n, 4);
    for (uint32_t i = 0; i < n; i++)
        cr_assert(isfinite(out[i].x), "token %d: %g", out[i].id, (double)out[i].x);
}

Test(sampler_chain, banned_and_masked_tokens_never_come)
{
    static const float logits[] = {5, 4, 3, 2};
    static const uint32_t mask = 0xe; /* not token 0 */
    const int32_t end = 1;
    const struct step_bias bias = {2, -INFINITY};
    struct step_sampling set = neutral();
    set.n_bias = 1;
    struct sampler_input in = {.logits = logits,
                               .n_vocab = 4,
                               .set = &set,
                               .biases = &bias,
                               .banned = &end,
                               .n_banned = 1,
                               .mask = &mask};
    struct sampler_chain c;
    sampler_chain_defaults(&c);
    for (in.position = 0; in.position < 50; in.position++)
        cr_assert_eq(sampler_chain_pick(&c, &in, scratch), 3);
}

/* "<t>" opens the reasoning, "</t>" closes it: tokens 10 11 and 12 13, and others cut elsewhere. */
static const char *mark_piece(const void *context, int32_t token, uint32_t *len)
{
    static const char *const pieces[16] = {
        [1] = "a",    [2] = "b", [3] = "c",  [4] = "d",   [5] = "</",   [6] = "t",  [7] = "x<",
        [8] = "t>\n", [9] = ">", [10] = "<", [11] = "t>", [12] = "</t", [13] = ">", [14] = "/t"};
    const char *s = pieces[token] ? pieces[token] : "";
    (void)context;
    *len = (uint32_t)strlen(s);
    return s;
}

static void budget_run(struct sampler_chain *c, const int32_t *likely, uint32_t n, int32_t *out)
{
    static float logits[16];
    struct step_sampling set = neutral();
    struct sampler_input in = {.logits = logits, .n_vocab = 16, .set = &set};
    set.temperature = 0;
    sampler_chain_begin(c);
    for (uint32_t i = 0; i < n; i++) {
        memset(logits, 0, sizeof logits);
        logits[likely[i]] = 5;
        out[i] = sampler_chain_pick(c, &in, scratch);
    }
}

Test(sampler_chain, a_budget_closes_the_reasoning)
{
    static const int32_t next[] = {12, 14, 11, 13}, likely[] = {1, 10, 11, 2, 3, 4, 5, 6, 7, 8};
    static const int32_t itself[] = {2, 12, 13, 4, 4, 6, 3, 3, 9, 1};
    int32_t out[10];
    struct sampler_chain c;
    sampler_chain_defaults(&c);
    c.budget = (struct sampler_budget){.on = true,
                                       .limit = 3,
                                       .open = {.text = "<t>", .n = 3},
                                       .close = {.text = "</t>", .n = 4, .next = next},
                                       .piece = mark_piece};
    budget_run(&c, likely, 10, out);
    cr_expect_arr_eq(out, ((int32_t[]){1, 10, 11, 2, 3, 4, 12, 13, 7, 8}), sizeof out);
    c.budget.begins_inside = true; /* and closes it before the limit */
    budget_run(&c, itself, 10, out);
    cr_expect_arr_eq(out, itself, sizeof out);
    c.budget.limit = 0;
    budget_run(&c, itself, 10, out);
    cr_expect_arr_eq(out, ((int32_t[]){12, 13, 13, 4, 4, 6, 3, 3, 9, 1}), sizeof out);
    c.budget.limit = 2; /* the mark is half there when the limit comes */
    budget_run(&c, (const int32_t[]){2, 12, 1, 4, 5, 6, 7, 8, 9, 1}, 10, out);
    cr_expect_arr_eq(out, ((int32_t[]){2, 12, 13, 4, 5, 6, 7, 8, 9, 1}), sizeof out);
}

/* However the marks are cut: with other text in the same token, and where the limit comes inside. */
Test(sampler_chain, a_budget_reads_marks_of_several_tokens_by_their_text)
{
    static const int32_t next[] = {12, 14, 11, 13};
    static const struct {
        uint32_t limit;
        bool begins_inside;
        int32_t likely[10], out[10];
    } cases[] = {
        {5,
         false,
         {7, 8, 1, 2, 5, 8, 1, 2, 3, 4},
         {7, 8, 1, 2, 5, 8, 1, 2, 3, 4}}, /* "x<" "t>\n": closes itself */
        {3,
         true,
         {1, 7, 14, 9, 1, 1, 1, 1, 1, 1},
         {1, 7, 14, 13, 1, 1, 1, 1, 1, 1}},                                         /* "x<" "/t", the limit */
        {2, true, {1, 5, 1, 2, 2, 2, 2, 2, 2, 2}, {1, 5, 11, 2, 2, 2, 2, 2, 2, 2}}, /* "</", the limit */
        {2, true, {1, 7, 1, 2, 2, 2, 2, 2, 2, 2}, {1, 7, 14, 13, 2, 2, 2, 2, 2, 2}}, /* "x<", the limit */
        {4,
         false,
         {10, 10, 11, 1, 10, 5, 6, 9, 1, 1},
         {10, 10, 11, 1, 10, 5, 6, 13, 1, 1}}, /* "<<t>": opens */
    };
    int32_t out[10];
    struct sampler_chain c;
    sampler_chain_defaults(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.budget = (struct sampler_budget){.on = true,
                                           .begins_inside = cases[i].begins_inside,
                                           .limit = cases[i].limit,
                                           .open = {.text = "<t>", .n = 3},
                                           .close = {.text = "</t>", .n = 4, .next = next},
                                           .piece = mark_piece};
        budget_run(&c, cases[i].likely, 10, out);
        for (int k = 0; k < 10; k++)
            cr_expect_eq(out[k], cases[i].out[k], "case %zu, token %d: %d", i, k, out[k]);
    }
}
