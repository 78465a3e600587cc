/* mutations.c - removes in turn every synchronisation of the persistent decoder with its real ops: the loop,
 * the ring, the dependency counters, the products and the hops between ops; ../mutation_suite.h has the
 * rules. simt_attending_mutations, simt_sampling_mutations and simt_recurrent_mutations cover the inside of
 * attention, sampling and recurrent layers, on shapes made for it. */
#include "simt/mutation_suite.h"
#include "small_run.h"

#include <stdlib.h>

/* A shallow ring, which the producer waits for, one so deep that it waits at its gate, and dense layers, of
 * which h is passed on quantised: three blocks would have groups of three tiles. */
struct runs {
    struct small_run shallow, deep, dense;
};

static void *open_run(const struct mutation_subject *subject)
{
    struct runs *r = malloc(sizeof *r);
    (void)subject;
    if (!r)
        abort(); /* a test tool: nothing sensible is left to do */
    small_run_open(&r->shallow, 2, 3, 2, TOY_SLOTS, false);
    small_run_open(&r->deep, 3, 16, 2, TOY_SLOTS, false);
    small_run_open(&r->dense, 2, 4, 2, TOY_SLOTS, true);
    return r;
}

static void close_run(void *context)
{
    struct runs *r = context;
    small_run_close(&r->shallow);
    small_run_close(&r->deep);
    small_run_close(&r->dense);
    free(r);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct runs *r = context;
    struct small_run *of[] = {&r->shallow, &r->dense, &r->deep};
    return small_run_seed(of[seed % 3], seed, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const char *const elsewhere[] = {
        "attend.h", "attend_room.h", "attend_page.h", "attend_head.h", "attend_parts.h",
        "sample",   "state.h",       "units.h",       "convolve.h",    "delta_rows.h",
        NULL};
    static const struct mutation_subject subject = {"persistent_decoder", 0};
    struct mutation_suite suite = {.subjects = &subject,
                                   .n_subjects = 1,
                                   .clean_seeds = 6,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 2,
                                   .elsewhere = elsewhere,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
