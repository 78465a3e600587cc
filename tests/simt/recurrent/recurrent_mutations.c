/* recurrent_mutations.c - removes every synchronisation of the nodes of recurrent layers in turn;
 * mutation_suite.h has the rules. */
#include "recurrent_case.h"
#include "simt/mutation_suite.h"

#include <stdlib.h>

#define N_CASES 3

struct run {
    enum recurrent_node node;
    struct recurrent_case *cases[N_CASES];
};

static void *open_run(const struct mutation_subject *subject)
{
    static const uint64_t numbers[N_CASES] = {0, 1, 2}; /* short heads */
    struct run *r = malloc(sizeof *r);
    if (!r)
        abort(); /* a test tool: nothing sensible is left to do */
    r->node = (enum recurrent_node)subject->index;
    for (uint32_t i = 0; i < N_CASES; i++)
        r->cases[i] = recurrent_case_open(numbers[i]);
    return r;
}

static void close_run(void *context)
{
    struct run *r = context;
    for (uint32_t i = 0; i < N_CASES; i++)
        recurrent_case_close(r->cases[i]);
    free(r);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct run *r = context;
    struct recurrent_case *c = r->cases[seed % N_CASES];
    int rc = recurrent_case_run(c, r->node, sm, seed, mute, report);
    return rc < 0 ? rc : recurrent_case_refuse(c, r->node, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subjects[] = {{"ssm_conv", RECURRENT_CONV},
                                                       {"delta_net", RECURRENT_NET}};
    struct mutation_suite suite = {.subjects = subjects,
                                   .n_subjects = sizeof subjects / sizeof subjects[0],
                                   .clean_seeds = 6,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 4,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
