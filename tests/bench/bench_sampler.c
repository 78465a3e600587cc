/* bench_sampler [N_VOCAB] - how long one draw by a chain of filters takes on one core, by filter, for flat
 * logits, which leave most tokens in play, and peaked ones. Prints p50 and the largest of 40 draws in ms of
 * processor time, which other programs of the machine move less than that of the clock. */
#include "abi/arith.h"
#include "sampler/sampler_chain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_DRAWS   40
#define N_HISTORY 32768

struct kind {
    const char *name;
    float top_p, typical_p, min_p, n_sigma, xtc, dynatemp, dry, adaptive;
    int32_t top_k;
    bool mirostat, penalties;
};

static const struct kind kinds[] = {
    {.name = "none"},
    {.name = "top_p 0.95", .top_p = 0.95f},
    {.name = "typical_p 0.9", .typical_p = 0.9f},
    {.name = "typical_p + top_p", .typical_p = 0.9f, .top_p = 0.95f},
    {.name = "min_p 0.001", .min_p = 0.001f},
    {.name = "top_n_sigma 3", .n_sigma = 3},
    {.name = "xtc", .xtc = 1},
    {.name = "dynatemp", .dynatemp = 0.5f},
    {.name = "top_k 100000", .top_k = 100000},
    {.name = "penalties", .penalties = true},
    {.name = "dry, 32k history", .dry = 0.8f},
    {.name = "mirostat", .mirostat = true},
    {.name = "adaptive_p", .adaptive = 0.4f},
    {.name = "all but mirostat",
     .top_p = 0.95f,
     .typical_p = 0.9f,
     .n_sigma = 8,
     .xtc = 1,
     .dynatemp = 0.5f,
     .dry = 0.8f,
     .adaptive = 0.4f,
     .top_k = 150000,
     .penalties = true},
};

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *x, const void *y)
{
    const uint64_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static void set_chain(const struct kind *k, struct sampler_chain *c, struct step_sampling *set)
{
    sampler_chain_defaults(c);
    *set = (struct step_sampling){.temperature = 1,
                                  .top_p = k->top_p > 0 ? k->top_p : 1,
                                  .typical_p = k->typical_p > 0 ? k->typical_p : 1,
                                  .min_p = k->min_p,
                                  .top_k = k->top_k,
                                  .repetition_penalty = k->penalties ? 1.1f : 1,
                                  .penalty_last_n = k->penalties ? 1024 : 0};
    c->top_n_sigma = k->n_sigma;
    c->xtc_probability = k->xtc;
    c->xtc_threshold = 1e-6f;
    c->dynatemp_range = k->dynatemp;
    c->dry_multiplier = k->dry;
    c->mirostat = k->mirostat;
    c->adaptive_target = k->adaptive > 0 ? k->adaptive : -1;
    sampler_chain_begin(c);
}

static void measure(const struct kind *k, struct sampler_input *in, void *scratch)
{
    struct sampler_chain c;
    struct step_sampling set;
    uint64_t ns[N_DRAWS], sum = 0;
    set_chain(k, &c, &set);
    in->set = &set;
    for (in->position = 0; in->position < N_DRAWS; in->position++) {
        uint64_t from = cpu_ns();
        sum = sum * 31 + (uint32_t)sampler_chain_pick(&c, in, scratch);
        ns[in->position] = cpu_ns() - from;
    }
    qsort(ns, N_DRAWS, sizeof *ns, ascending);
    printf("  %-20s %8.3f %8.3f   tokens %016llx\n", k->name, (double)ns[N_DRAWS / 2] / 1e6,
           (double)ns[N_DRAWS - 1] / 1e6, (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 151936;
    float *logits = calloc(n, sizeof *logits);
    int32_t *history = calloc(N_HISTORY, sizeof *history);
    uint32_t *dry = calloc(N_HISTORY, sizeof *dry);
    void *scratch = malloc(sampler_chain_scratch_size(n));
    if (!n || !logits || !history || !dry || !scratch)
        return 1;
    struct sampler_input in = {
        .logits = logits, .n_vocab = n, .history = history, .n_history = N_HISTORY, .dry = dry};
    for (uint32_t i = 0; i < N_HISTORY; i++)
        history[i] = (int32_t)((i * 2654435761u >> 20) % 500 % n);
    for (int peaked = 0; peaked < 2; peaked++) {
        for (uint32_t i = 0; i < n; i++)
            logits[i] = arith_gumbel(9, 1, i) * (peaked ? 2.0f : 0.7f);
        printf("%u tokens, %s: ms p50, largest\n", n, peaked ? "peaked" : "flat");
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            measure(&kinds[i], &in, scratch);
    }
    free(logits);
    free(history);
    free(dry);
    free(scratch);
    return 0;
}
