/* mutated_synchronisation.c - kernels on the emulator with its race detector: the toys, the products of a
 * program, attention, the nodes of recurrent layers, the resident loop under a
 * toy decoder with its words for the host, and mma and reductions of the GPU's selftest. See mutations.h. */
#include "simt/attend/attend_cases.h"
#include "simt/recurrent/recurrent_case.h"
#include "simt/products/product_case.h"
#include "ptx/mutations.h"
#include "gpu/kernels/gpu_kernels.h"
#include "resident/toy_run.h"
#include "simt/toys/toy_cases.h"

#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    return p;
}

/* --- toys --- */

static void *open_toy(const char *kernel)
{
    struct toy_case *c = must(malloc(sizeof *c));
    uint32_t i = 0;
    while (strcmp(toy_kinds[i].kernel, kernel) != 0)
        i++;
    toy_open(c, &toy_kinds[i]);
    return c;
}

static void *open_grid_barrier(void)
{
    return open_toy("grid_barrier");
}

static void *open_weight_ring(void)
{
    return open_toy("weight_ring");
}

static void close_toy(void *context)
{
    toy_close(context);
    free(context);
}

static int run_toy(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    return toy_run(context, sm, seed, -1, report);
}

/* --- products --- */

static void *open_product(void)
{
    return must(malloc(1));
}

static int run_product(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    (void)context;
    struct product_case *c = product_case_open(seed, (struct product_wish){.small = true});
    int rc = product_case_run(c, sm, seed, -1, report);
    product_case_close(c);
    return rc;
}

/* --- attention --- */

/* Lone rows in several splits; chunks of prompts. */
#define N_SHAPES 2
static const struct attend_shape shapes[N_SHAPES] = {
    {32, 1, 6, KV_F16, 32, 1, 1, 2, 2, 12288, 200, 8, 2, 130, 0},
    {64, 1, 3, KV_Q8_0, 64, 0, 1, 3, 3, 20480, 200, 12, 2, 70, 8},
};

static void *open_attend(void)
{
    struct attend_case *cases = must(malloc(N_SHAPES * sizeof *cases));
    for (uint32_t i = 0; i < N_SHAPES; i++)
        attend_case_open(&cases[i], shapes[i], i + 1);
    return cases;
}

static void close_attend(void *context)
{
    struct attend_case *cases = context;
    for (uint32_t i = 0; i < N_SHAPES; i++)
        attend_case_close(&cases[i]);
    free(cases);
}

static int run_attend(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct attend_case *cases = context;
    return attend_case_run_grid(&cases[seed % N_SHAPES], sm, seed, -1, report);
}

/* --- recurrent layers --- */

#define N_RECURRENT 3 /* the first ones have short heads */

static void *open_recurrent(void)
{
    struct recurrent_case **cases = must(malloc(N_RECURRENT * sizeof *cases));
    for (uint32_t i = 0; i < N_RECURRENT; i++)
        cases[i] = recurrent_case_open(i);
    return cases;
}

static void close_recurrent(void *context)
{
    struct recurrent_case **cases = context;
    for (uint32_t i = 0; i < N_RECURRENT; i++)
        recurrent_case_close(cases[i]);
    free(cases);
}

static int run_conv(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct recurrent_case **cases = context;
    return recurrent_case_run(cases[seed % N_RECURRENT], RECURRENT_CONV, sm, seed, -1, report);
}

static int run_net(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct recurrent_case **cases = context;
    return recurrent_case_run(cases[seed % N_RECURRENT], RECURRENT_NET, sm, seed, -1, report);
}

/* --- the resident loop --- */

/* A shallow ring, which the producer waits for, and one so deep that it waits at its gate. */
#define N_RINGS 2

static void *open_resident(void)
{
    struct toy_run *runs = must(malloc(N_RINGS * sizeof *runs));
    toy_run_open(&runs[0], 3, 3);
    toy_run_open(&runs[1], 4, 16);
    return runs;
}

static void close_resident(void *context)
{
    struct toy_run *runs = context;
    for (uint32_t i = 0; i < N_RINGS; i++)
        toy_run_close(&runs[i]);
    free(runs);
}

static int run_resident(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct toy_run *runs = context;
    return toy_run_seed(&runs[seed % N_RINGS], 2, sm, seed, -1, report);
}

/* --- the check of mma and of reductions on a GPU: the only kernel whose mma adds to sums that are not zero
 * --- */

struct selftest {
    struct simt_machine *machine;
    uint8_t *tile;
    int32_t *answers;
};

static void *open_selftest(void)
{
    struct selftest *s = must(malloc(sizeof *s));
    *s = (struct selftest){must(simt_open()), must(malloc(SELFTEST_TILE_BYTES)),
                           must(malloc(SELFTEST_ANSWERS * sizeof(int32_t)))};
    uint32_t x = 12345;
    for (uint32_t i = 0; i < SELFTEST_TILE_BYTES; i++) {
        x = x * 1664525 + 1013904223;
        s->tile[i] = (uint8_t)(x >> 24);
    }
    simt_map(s->machine, s->tile, SELFTEST_TILE_BYTES, SIMT_MAP_READ_ONLY, "tile");
    simt_map(s->machine, s->answers, SELFTEST_ANSWERS * sizeof(int32_t), 0, "answers");
    return s;
}

static void close_selftest(void *context)
{
    struct selftest *s = context;
    simt_close(s->machine);
    free(s->tile);
    free(s->answers);
    free(s);
}

/* What the first lane has of the largest and the smallest of A's first 32 words. */
static bool has_extremes(const struct selftest *s)
{
    uint32_t words[32], most = 0, least = UINT32_MAX;
    memcpy(words, s->tile, sizeof words);
    for (uint32_t i = 0; i < 32; i++) {
        most = words[i] > most ? words[i] : most;
        least = words[i] < least ? words[i] : least;
    }
    return (uint32_t)s->answers[3 * 128] == most && (uint32_t)s->answers[3 * 128 + 32] == least;
}

/* The first of the tile's three products, whose A is unsigned. */
static bool is_right(const struct selftest *s)
{
    const uint8_t *b = s->tile + 16 * 32;
    int32_t c[16 * 8];
    memcpy(c, b + 8 * 32, sizeof c);
    for (uint32_t at = 0; at < 16 * 8; at++) {
        int32_t sum = 0;
        for (uint32_t k = 0; k < 32; k++)
            sum += s->tile[at / 8 * 32 + k] * (int8_t)b[at % 8 * 32 + k];
        if (s->answers[at] != (int32_t)((uint32_t)c[at] + (uint32_t)sum))
            return false;
    }
    return true;
}

static int run_selftest(void *context, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct selftest *s = context;
    const struct selftest_args args = {
        .tiles = (uint64_t)(uintptr_t)s->tile, .answers = (uint64_t)(uintptr_t)s->answers, .n_tiles = 1};
    const struct simt_launch launch = {.kernel = simt_find_kernel("gpu_selftest", sm),
                                       .args = &args,
                                       .n_blocks = 1,
                                       .seed = seed,
                                       .schedule = SIMT_N_SCHEDULES,
                                       .mute = -1};
    if (simt_run(s->machine, &launch, report) < 0)
        return -1;
    if (is_right(s) && has_extremes(s))
        return 0;
    snprintf(report->kind, sizeof report->kind, "result");
    return -1;
}

const struct mutated_kernel mutated_kernels[] = {
    {"grid_barrier", open_grid_barrier, close_toy, run_toy},
    {"weight_ring", open_weight_ring, close_toy, run_toy},
    {"product_walk", open_product, free, run_product},
    {"attend_grid", open_attend, close_attend, run_attend},
    {"ssm_conv", open_recurrent, close_recurrent, run_conv},
    {"delta_net", open_recurrent, close_recurrent, run_net},
    {"toy_decoder", open_resident, close_resident, run_resident},
    {"selftest", open_selftest, close_selftest, run_selftest},
};
const uint32_t n_mutated_kernels = sizeof mutated_kernels / sizeof *mutated_kernels;
