/* mutations.c - shows on the toys that the emulator finds removed synchronisation; mutation_suite.h has the
 * rules. */
#include "simt/mutation_suite.h"
#include "toy_cases.h"

#include <stdlib.h>

#define MAX_TOYS 16

static void *open_toy(const struct mutation_subject *subject)
{
    struct toy_case *c = malloc(sizeof *c);
    if (!c)
        abort(); /* a test tool: nothing sensible is left to do */
    toy_open(c, &toy_kinds[subject->index]);
    return c;
}

static void close_toy(void *context)
{
    toy_close(context);
    free(context);
}

static int run_toy(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    return toy_run(context, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    struct mutation_subject subjects[MAX_TOYS];
    struct mutation_suite suite = {.subjects = subjects,
                                   .clean_seeds = 200,
                                   .mutation_seeds = 100,
                                   .open = open_toy,
                                   .close = close_toy,
                                   .run = run_toy};
    for (; suite.n_subjects < n_toy_kinds && suite.n_subjects < MAX_TOYS; suite.n_subjects++)
        subjects[suite.n_subjects] =
            (struct mutation_subject){toy_kinds[suite.n_subjects].kernel, suite.n_subjects};
    return mutation_suite_main(&suite, argc, argv);
}
