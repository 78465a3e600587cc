/* attending_mutations.c - removes every synchronisation of attention and of the nodes' kernels in turn;
 * mutation_suite.h has the rules. */
#include "attend_cases.h"
#include "simt/mutation_suite.h"

#include <stdlib.h>

enum { GRID, ATTENTION, NODES, ANY }; /* NODES: what stands before an attention */

#define N_SHAPES 6
static const uint64_t numbers[N_SHAPES] = {1, 2, 3, 4, 29, 5}; /* of 29: 46 rows */
static const struct attend_shape shapes[N_SHAPES] = {
    {32, 1, 6, KV_F16, 32, 1, 1, 2, 2, 12288, 200, 8, 2, 130, 0},    /* three slots, several splits */
    {32, 4, 1, KV_Q8_0, 32, 0, 1, 1, 2, 16384, 320, 6, 2, 300, 0},   /* more units than a batch has */
    {128, 1, 4, KV_BF16, 128, 1, 1, 2, 3, 12288, 200, 8, 2, 100, 0}, /* small pieces, several passes */
    {64, 1, 3, KV_Q8_0, 64, 0, 1, 3, 3, 20480, 200, 12, 2, 70, 8},   /* chunks */
    {32, 1, 1, KV_F16, 32, 0, 0, 2, 3, 12288, 200, 48, 1, 30, 46},   /* more rows than a warp has lanes */
    {160, 1, 2, KV_Q8_0, 160, 1, 1, 2, 3, 14336, 200, 8, 2, 150, 4, .window = 70, .cap = 2.0f,
     .v_normed = true}, /* general */
};
/* Heads of other sizes than multiples of 32. */
#define N_OTHERS 3
static const struct attend_shape others[N_OTHERS] = {
    {80, 1, 2, KV_Q8_0, 80, 1, 0, 2, 3, 12288, 320, 8, 2, 200, 4},
    {48, 2, 1, KV_F16, 48, 0, 0, 1, 2, 12288, 320, 8, 2, 200, 4, .window = 70, .cap = 2.0f, .sinks = true},
    {34, 1, 3, KV_BF16, 34, 1, 0, 2, 3, 12288, 200, 8, 2, 130, 0},
};
static const struct attend_shape small = {64, 1, 2, KV_Q8_0, 64, 1, 1, 2, 3, 12288, 64, 8, 1, 5, 6};

struct run {
    uint32_t kind, n;
    struct attend_case cases[N_SHAPES];
};

static void *open_run(const struct mutation_subject *subject)
{
    struct run *r = malloc(sizeof *r);
    if (!r)
        abort(); /* a test tool: nothing sensible is left to do */
    r->kind = subject->index;
    r->n = r->kind == NODES ? 1 : r->kind == ANY ? N_OTHERS : N_SHAPES;
    const struct attend_shape *of = r->kind == NODES ? &small : r->kind == ANY ? others : shapes;
    for (uint32_t i = 0; i < r->n; i++)
        attend_case_open(&r->cases[i], of[i], numbers[i]);
    return r;
}

static void close_run(void *context)
{
    struct run *r = context;
    for (uint32_t i = 0; i < r->n; i++)
        attend_case_close(&r->cases[i]);
    free(r);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct run *r = context;
    struct attend_case *c = &r->cases[seed % r->n];
    return r->kind == GRID ? attend_case_run_grid(c, sm, seed, mute, report)
                           : attend_case_run_nodes(c, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subjects[] = {
        {"attend_grid", GRID}, {"attention", ATTENTION}, {"rms_norm", NODES},
        {"rope", NODES},       {"kv_append", NODES},     {"attention_any", ANY},
    };
    struct mutation_suite suite = {.subjects = subjects,
                                   .n_subjects = sizeof subjects / sizeof subjects[0],
                                   .clean_seeds = 4,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 10,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
