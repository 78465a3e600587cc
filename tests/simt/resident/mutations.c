/* mutations.c - every synchronisation of the resident loop, taken away in turn; ../mutation_suite.h has the
 * rules. */
#include "mutation_suite.h"
#include "toy_run.h"

#include <stdlib.h>

static void *open_run(const struct mutation_subject *subject)
{
    struct toy_run *r = malloc(sizeof *r);
    (void)subject;
    if (!r)
        abort(); /* a test tool: nothing sensible is left to do */
    toy_run_open(r, 3, 3);
    return r;
}

static void close_run(void *context)
{
    toy_run_close(context);
    free(context);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    return toy_run_seed(context, 2, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subject = {"toy_decoder", 0};
    struct mutation_suite suite = {.subjects = &subject,
                                   .n_subjects = 1,
                                   .clean_seeds = 40,
                                   .mutation_seeds = 100,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
