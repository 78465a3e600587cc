/* seeds.c - runs each phase of the decoder under many schedules, checks every run for races and other faults,
 * and compares its result with the cpu's (or with a run in which all threads take turns). A phase has many
 * cases, a case 25 schedules.
 *
 *   simt_seeds [PHASES [FIRST]]    all phases, or those listed, separated by commas; from that seed on
 *   SIMT_SEEDS=n                   seeds per phase (1000) */
#include "simt/attend/attend_cases.h"
#include "simt/products/product_case.h"
#include "simt/products/product_node_case.h"
#include "simt/sampling/sample_cases.h"
#include "simt/decoding/small_run.h"
#include "simt/toys/toy_cases.h"
#include "simt/resident/toy_run.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEDULES 25 /* of a case */

struct phase {
    const char *name;
    void *(*open)(const struct phase *phase, uint64_t number);
    int (*run)(void *context, uint32_t sm, uint64_t seed, struct simt_report *report);
    void (*close)(void *context);
    uint32_t which; /* the opener's own */
};

static void *must(void *p)
{
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    return p;
}

/* --- toys: a ring, barriers --- */

static void *open_toy(const struct phase *phase, uint64_t number)
{
    struct toy_case *c = must(malloc(sizeof *c));
    (void)number;
    toy_open(c, &toy_kinds[phase->which]);
    return c;
}

static int run_toy(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return toy_run(context, sm, seed, -1, report);
}

static void close_toy(void *context)
{
    toy_close(context);
    free(context);
}

/* --- embed --- */

static void *open_embed(const struct phase *phase, uint64_t number)
{
    (void)phase, (void)number;
    return must(malloc(1));
}

static int run_embed(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    const struct product_node of = {.seed = seed, .sm = sm, .small = true};
    (void)context;
    return product_node_gather(&of, seed % 4 == 0, -1, report);
}

/* --- products --- */

static void *open_product(const struct phase *phase, uint64_t number)
{
    uint32_t n_rows = phase->which ? 9 + number % 3 : 1 + number % 8;
    return product_case_open(number, (struct product_wish){.small = true, .n_rows = n_rows});
}

static int run_product(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return product_case_run(context, sm, seed, -1, report);
}

static void close_product(void *context)
{
    product_case_close(context);
}

/* --- attention --- */

enum { LONE, APPEND, MERGE };

static void *open_attend(const struct phase *phase, uint64_t number)
{
    struct attend_case *c = must(malloc(sizeof *c));
    struct attend_shape s = {.head_dim = 32 + 32 * (uint32_t)(number % 2),
                             .n_kv_heads = 1,
                             .ratio = 1 + (uint32_t)(number / 2 % 3),
                             .type = number / 4 % KV_N_TYPES,
                             .rope_dim = 32,
                             .neox = number / 3 % 2,
                             .normed = number / 5 % 2,
                             .n_blocks = 2 + (uint32_t)(number % 2),
                             .n_warps = 2,
                             .work_bytes = 12288,
                             .n_ctx = 200,
                             .max_rows = 8,
                             .n_steps = 1,
                             .before = phase->which == MERGE ? 150 : 40,
                             .chunk = phase->which == APPEND ? 5 : 0};
    attend_case_open(c, s, number);
    return c;
}

static int run_attend(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return attend_case_run_grid(context, sm, seed, -1, report);
}

static void close_attend(void *context)
{
    attend_case_close(context);
    free(context);
}

/* --- sampling --- */

static void *open_sample(const struct phase *phase, uint64_t number)
{
    static const uint32_t sizes[] = {33, 100, 257};
    struct sample_case *c = must(malloc(sizeof *c));
    (void)phase;
    sample_case_open(c,
                     (struct sample_shape){.n_vocab = sizes[number % 3],
                                           .n_logits = 1 + (uint32_t)(number / 3 % 3),
                                           .n_blocks = 2,
                                           .n_warps = 2},
                     number);
    return c;
}

static int run_sample(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return sample_case_run(context, "sample_grid", sm, seed, -1, report);
}

static void close_sample(void *context)
{
    sample_case_close(context);
    free(context);
}

/* --- gate and border: whole steps of the toy decoder; a shallow ring, or one so deep that the producer waits
 * at its gate --- */

static void *open_toy_steps(const struct phase *phase, uint64_t number)
{
    struct toy_run *r = must(malloc(sizeof *r));
    toy_run_open(r, 2 + (uint32_t)(number % 2), phase->which ? 16 : 3);
    return r;
}

static int run_toy_steps(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return toy_run_one(context, sm, seed, -1, report);
}

static void close_toy_steps(void *context)
{
    toy_run_close(context);
    free(context);
}

/* --- whole steps of the real one --- */

static void *open_steps(const struct phase *phase, uint64_t number)
{
    struct small_run *r = must(malloc(sizeof *r));
    (void)phase;
    small_run_open(r, 2 + (uint32_t)(number % 2), number % 4 ? 3 : 16, 1 + (uint32_t)(number % 8 == 7),
                   1 + (uint32_t)(number / 2 % 2), number % 3 == 2);
    return r;
}

static int run_steps(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return small_run_seed(context, seed / SCHEDULES, sm, seed, -1, report);
}

static void close_steps(void *context)
{
    small_run_close(context);
    free(context);
}

/* --- all of them --- */

static const struct phase phases[] = {
    {"barrier", open_toy, run_toy, close_toy, 0},
    {"ring", open_toy, run_toy, close_toy, 1},
    {"embed", open_embed, run_embed, free, 0},
    {"product-narrow", open_product, run_product, close_product, 0},
    {"product-wide", open_product, run_product, close_product, 1},
    {"attend-lone", open_attend, run_attend, close_attend, LONE},
    {"attend-append", open_attend, run_attend, close_attend, APPEND},
    {"attend-merge", open_attend, run_attend, close_attend, MERGE},
    {"sample", open_sample, run_sample, close_sample, 0},
    {"border", open_toy_steps, run_toy_steps, close_toy_steps, 0},
    {"gate", open_toy_steps, run_toy_steps, close_toy_steps, 1},
    {"steps", open_steps, run_steps, close_steps, 0},
};
#define N_PHASES (sizeof phases / sizeof *phases)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t run_phase(const struct phase *p, uint64_t first, uint64_t n)
{
    double begin = now();
    uint64_t steps = 0, seed = first;
    struct simt_report report = {0};
    void *context = NULL;
    for (; seed < first + n; seed++) {
        if (seed == first || seed % SCHEDULES == 0) {
            if (context)
                p->close(context);
            context = p->open(p, seed / SCHEDULES);
        }
        if (p->run(context, seed % 2 ? 90 : 80, seed, &report) < 0)
            break;
        steps += report.steps;
    }
    if (context)
        p->close(context);
    bool ok = seed == first + n;
    printf("%s %-15s %6llu seeds from %llu, %llu M steps, %.0f s\n", ok ? "ok     " : "FAILED ", p->name,
           (unsigned long long)(seed - first), (unsigned long long)first,
           (unsigned long long)(steps / 1000000), now() - begin);
    if (!ok) {
        simt_report_print(&report, stdout);
        printf("        again: simt_seeds %s %llu\n", p->name, (unsigned long long)seed);
    }
    (void)fflush(stdout);
    return !ok;
}

static bool is_named(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, n) == 0 && (!at[n] || at[n] == ','))
            return true;
    return false;
}

int main(int argc, char **argv)
{
    const char *wanted = getenv("SIMT_SEEDS");
    uint64_t n = wanted ? strtoull(wanted, NULL, 10) : 1000,
             first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint32_t failures = 0, n_run = 0;
    for (uint32_t i = 0; i < N_PHASES; i++) {
        const struct phase *p = &phases[i];
        if (argc > 1 && !is_named(argv[1], p->name))
            continue;
        failures += run_phase(p, first, n);
        n_run++;
    }
    return failures || !n_run ? 1 : 0;
}
