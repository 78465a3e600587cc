/* mutations.c - every synchronisation of the resident loop, taken away in turn; ../mutation_suite.h has the
 * rules. */
#include "mutation_suite.h"
#include "toy_run.h"

#include <stdlib.h>

/* A shallow ring, which the producer waits for, and one so deep that it waits at its gate. */
struct runs {
    struct toy_run shallow, deep;
};

static void *open_run(const struct mutation_subject *subject)
{
    struct runs *r = malloc(sizeof *r);
    (void)subject;
    if (!r)
        abort(); /* a test tool: nothing sensible is left to do */
    toy_run_open(&r->shallow, 3, 3);
    toy_run_open(&r->deep, 4, 16);
    return r;
}

static void close_run(void *context)
{
    struct runs *r = context;
    toy_run_close(&r->shallow);
    toy_run_close(&r->deep);
    free(r);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct runs *r = context;
    return toy_run_seed(seed % 2 ? &r->deep : &r->shallow, 2, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subject = {"toy_decoder", 0};
    struct mutation_suite suite = {.subjects = &subject,
                                   .n_subjects = 1,
                                   .clean_seeds = 30,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 4,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
