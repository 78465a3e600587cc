/* Chains over vocabularies of which thousands of tokens stay in play: what is left, and the token, must be
 * those of a full sort, filter by filter. And dry, whose searches are linear, against one that tries every
 * place. */
#include "abi/arith.h"
#include "sampler/sampler_chain.h"
#define RANDOM_SEED 5
#include "support/random.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VOCAB 9000

/* ---- the filters, with a full sort ---- */

struct entry {
    uint32_t id;
    float x, key;
    uint64_t mass, surprise;
};

static int by_key(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    if (p->key != q->key)
        return p->key > q->key ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

static int by_id(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    return p->id < q->id ? -1 : p->id > q->id;
}

static float weigh(struct entry *e, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = fmaxf(max, e[i].x);
    for (uint32_t i = 0; i < n; i++) {
        float w = arith_exp2((e[i].x - max) * ARITH_LOG2E);
        e[i].mass = (uint64_t)truncf(w * 0x1p40f);
        e[i].surprise = e[i].mass ? (uint64_t)truncf(w * (max - e[i].x) * 0x1p40f) : 0;
        e[i].key = e[i].x;
    }
    return max;
}

/* The shortest list in the order of the keys whose masses reach their share, or more than that. */
static uint32_t keep_share(struct entry *e, uint32_t n, float share, bool beyond)
{
    uint64_t total = 0, sum = 0;
    uint32_t n_run = 0;
    for (uint32_t i = 0; i < n; i++)
        total += e[i].mass;
    uint64_t need = (uint64_t)(((unsigned __int128)total * (uint64_t)(share * 0x1p24f)) >> 24) + beyond;
    qsort(e, n, sizeof *e, by_key);
    do
        sum += e[n_run++].mass;
    while (n_run < n && sum < need);
    return n_run;
}

static uint32_t keep_typical(struct entry *e, uint32_t n, float p)
{
    float max = weigh(e, n);
    uint64_t total = 0, surprise = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += e[i].mass;
        surprise += e[i].surprise;
    }
    for (uint32_t i = 0; i < n; i++)
        e[i].key = e[i].mass ? -fabsf((max - e[i].x) - (float)surprise / (float)total) : -INFINITY;
    return keep_share(e, n, p, true);
}

static uint32_t keep_likely(struct entry *e, uint32_t n, float p)
{
    float max = weigh(e, n);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (e[i].x == max || arith_exp2((e[i].x - max) * ARITH_LOG2E) >= p)
            e[kept++] = e[i];
    return kept;
}

static uint32_t filter(struct entry *e, uint32_t n, enum sampler_filter f, const struct step_sampling *set)
{
    weigh(e, n);
    switch (f) {
    case SAMPLER_TOP_K:
        qsort(e, n, sizeof *e, by_key);
        return set->top_k && (uint32_t)set->top_k < n ? (uint32_t)set->top_k : n;
    case SAMPLER_TYPICAL_P:
        return set->typical_p < 1 ? keep_typical(e, n, set->typical_p) : n;
    case SAMPLER_TOP_P:
        return set->top_p < 1 ? keep_share(e, n, set->top_p, false) : n;
    case SAMPLER_MIN_P:
        return set->min_p > 0 ? keep_likely(e, n, set->min_p) : n;
    case SAMPLER_TEMPERATURE:
        for (uint32_t i = 0; i < n; i++)
            e[i].x /= set->temperature;
        return n;
    default:
        return n;
    }
}

static int32_t best_of(const struct entry *e, uint32_t n, const struct sampler_input *in)
{
    float best = -INFINITY;
    int32_t id = -1;
    for (uint32_t i = 0; i < n; i++) {
        float score = e[i].x + arith_gumbel(in->set->seed, in->position, e[i].id);
        if (score > best) { /* the ids ascend */
            best = score;
            id = (int32_t)e[i].id;
        }
    }
    return id;
}

static float logit_of(int kind)
{
    float r = random_part() * 2 - 1;
    switch (kind) {
    case 0: /* as a model has them: most far below a few */
        return random_u32() % 2000 ? r * 9 - 4 : 12 + r * 3;
    case 1: /* many ties */
        return rintf(r * 12) / 2;
    case 2: /* two values that are neighbours */
        return random_u32() % 3 ? 7.0f : 7.0000005f;
    default:
        return r * 8;
    }
}

static struct step_sampling random_settings(void)
{
    static const float shares[] = {1, 0.9999f, 0.95f, 0.5f, 0.05f};
    static const int32_t ks[] = {0, 0, 40, 1024, 3000};
    static const float least[] = {0, 0.001f, 0.05f}, temperatures[] = {0.3f, 1, 2.5f};
    return (struct step_sampling){.seed = random_u32(),
                                  .temperature = temperatures[random_u32() % 3],
                                  .top_k = ks[random_u32() % 5],
                                  .typical_p = shares[random_u32() % 5],
                                  .top_p = shares[random_u32() % 5],
                                  .min_p = least[random_u32() % 3],
                                  .repetition_penalty = 1};
}

Test(sampler_chain_large, filters_in_any_order_leave_what_full_sorts_leave)
{
    static const uint8_t filters[] = {SAMPLER_TOP_K, SAMPLER_TYPICAL_P, SAMPLER_TOP_P, SAMPLER_MIN_P,
                                      SAMPLER_TEMPERATURE};
    static const uint32_t sizes[] = {50, 1024, 1025, MAX_VOCAB};
    static float x[MAX_VOCAB];
    static struct entry e[MAX_VOCAB];
    void *scratch = malloc(sampler_chain_scratch_size(MAX_VOCAB));
    memset(scratch, 0xa5, sampler_chain_scratch_size(MAX_VOCAB));
    for (int round = 0; round < 500; round++) {
        uint32_t n = sizes[random_u32() % 4], left = n;
        struct step_sampling set = random_settings();
        struct sampler_input in = {.logits = x, .n_vocab = n, .set = &set, .position = random_u32()};
        struct sampler_candidate *out;
        struct sampler_chain c;
        sampler_chain_defaults(&c);
        memcpy(c.order, filters, c.n_order = sizeof filters);
        for (uint32_t i = c.n_order - 1; i > 0; i--) {
            uint32_t k = random_u32() % (i + 1);
            uint8_t f = c.order[i];
            c.order[i] = c.order[k];
            c.order[k] = f;
        }
        for (uint32_t i = 0; i < n; i++)
            e[i] = (struct entry){.id = i, .x = x[i] = logit_of(round % 4)};
        for (uint32_t i = 0; i < c.n_order; i++)
            left = filter(e, left, c.order[i], &set);
        qsort(e, left, sizeof *e, by_id);
        cr_assert_eq(sampler_chain_filter(&c, &in, scratch, &out), left, "round %d", round);
        for (uint32_t i = 0; i < left; i++)
            cr_assert((uint32_t)out[i].id == e[i].id && out[i].x == e[i].x, "round %d, token %u: %d", round,
                      e[i].id, out[i].id);
        cr_assert_eq(sampler_chain_pick(&c, &in, scratch), best_of(e, left, &in), "round %d", round);
    }
    free(scratch);
}

/* ---- dry ---- */

#define DRY_VOCAB   12
#define DRY_HISTORY 200

static bool stands_at(const struct sampler_tokens *b, const int32_t *history, uint32_t n, uint32_t at)
{
    return b->n <= n - at && !memcmp(history + at, b->ids, b->n * sizeof *b->ids);
}

/* The number of tokens behind the newest breaker, found by trying every place. */
static uint32_t behind(const struct sampler_chain *c, const int32_t *history, uint32_t n)
{
    for (uint32_t at = n; at-- > 0;) {
        uint32_t longest = *c->single >> history[at] & 1;
        for (uint32_t k = 0; k < c->n_breakers; k++)
            if (c->breakers[k].n > longest && stands_at(&c->breakers[k], history, n, at))
                longest = c->breakers[k].n;
        if (longest)
            return n - at - longest;
    }
    return n;
}

/* The longest end of the history, up to a breaker, that stood before with the token behind it. */
static uint32_t repeats(const int32_t *history, uint32_t n, uint32_t limit, int32_t token)
{
    uint32_t most = 0;
    for (uint32_t at = 1; at < n; at++) {
        uint32_t same = 0;
        while (same < at && same < limit && history[at - 1 - same] == history[n - 1 - same])
            same++;
        most = history[at] == token && same > most ? same : most;
    }
    return most;
}

Test(sampler_chain_large, dry_finds_what_trying_every_place_finds)
{
    static const float logits[DRY_VOCAB];
    static int32_t history[DRY_HISTORY], ids[4][6];
    static uint32_t room[DRY_HISTORY];
    void *scratch = malloc(sampler_chain_scratch_size(DRY_VOCAB));
    uint32_t n_penalised = 0, n_behind = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t kinds = 2 + random_u32() % 5, n = 1 + random_u32() % DRY_HISTORY, single = 0;
        struct step_sampling set = {.temperature = 1, STEP_SAMPLING_NEUTRAL};
        struct sampler_input in = {.logits = logits,
                                   .n_vocab = DRY_VOCAB,
                                   .set = &set,
                                   .history = history,
                                   .n_history = n,
                                   .dry = room};
        struct sampler_tokens breakers[4];
        struct sampler_candidate *out;
        struct sampler_chain c;
        sampler_chain_defaults(&c);
        for (uint32_t i = 0; i < n; i++)
            history[i] = (int32_t)(random_u32() % kinds);
        for (uint32_t k = 0; k < 4; k++) {
            breakers[k] = (struct sampler_tokens){ids[k], 2 + random_u32() % 5};
            for (uint32_t i = 0; i < breakers[k].n; i++)
                ids[k][i] = (int32_t)(random_u32() % kinds);
        }
        if (random_u32() % 3 == 0)
            single = 1u << random_u32() % kinds;
        c.single = &single;
        c.n_single = DRY_VOCAB;
        c.breakers = breakers;
        c.n_breakers = random_u32() % 5;
        c.dry_multiplier = 1;
        c.dry_base = 2;
        c.dry_allowed_length = 1 + random_u32() % 3;
        uint32_t limit = behind(&c, history, n);
        n_behind += limit < n;
        cr_assert_eq(sampler_chain_filter(&c, &in, scratch, &out), DRY_VOCAB);
        for (int32_t token = 0; token < DRY_VOCAB; token++) {
            uint32_t same = n > c.dry_allowed_length ? repeats(history, n, limit, token) : 0;
            bool hit = same >= c.dry_allowed_length && !(single >> token & 1);
            float expected = hit ? -exp2f((float)(same - c.dry_allowed_length)) : 0;
            cr_assert_eq(out[token].x, expected, "round %d, token %d: %g, expected %g", round, token,
                         (double)out[token].x, (double)expected);
            n_penalised += hit;
        }
    }
    cr_assert(n_penalised > 1000 && n_behind > 1000); /* neither is a rare case */
    free(scratch);
}
