/* mutations.c - removes in turn every synchronisation of the persistent loop, and of the kernels around the
 * nodes of a step when each node is a launch; ../mutation_suite.h has the rules. */
#include "border_run.h"
#include "simt/mutation_suite.h"
#include "toy_run.h"

#include <stdlib.h>

/* A shallow ring, which the producer waits for, and one so deep that it waits at its gate. */
struct runs {
    struct toy_run shallow, deep;
};

static void *must(void *p)
{
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    return p;
}

/* The kind of a subject, by its index: enum border_kernel, or the toy. */
#define TOY BORDER_N_KERNELS

struct context {
    bool toy;
    struct runs *runs;
    struct border_run *border;
};

static void *open_run(const struct mutation_subject *subject)
{
    struct context *c = must(calloc(1, sizeof *c));
    c->toy = subject->index == TOY;
    if (c->toy) {
        c->runs = must(malloc(sizeof *c->runs));
        toy_run_open(&c->runs->shallow, 3, 3);
        toy_run_open(&c->runs->deep, 4, 16);
    } else {
        c->border = must(malloc(sizeof *c->border));
        border_run_open(c->border, (enum border_kernel)subject->index);
    }
    return c;
}

static void close_run(void *context)
{
    struct context *c = context;
    if (c->toy) {
        toy_run_close(&c->runs->shallow);
        toy_run_close(&c->runs->deep);
    } else {
        border_run_close(c->border);
    }
    free(c->runs);
    free(c->border);
    free(c);
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    struct context *c = context;
    if (!c->toy)
        return border_run_seed(c->border, sm, seed, mute, report);
    return toy_run_seed(seed % 2 ? &c->runs->deep : &c->runs->shallow, 2, sm, seed, mute, report);
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subjects[] = {
        {"toy_decoder", TOY},        {"step_io", BORDER_OF_STEPS},
        {"add", BORDER_ADD},         {"mul", BORDER_MUL},
        {"silu", BORDER_SILU},       {"gelu", BORDER_GELU},
        {"scale", BORDER_SCALE},     {"soft_cap", BORDER_SOFT_CAP},
        {"gate", BORDER_GATE},       {"swiglu_clamped", BORDER_SWIGLU_CLAMPED},
        {"route", BORDER_ROUTE},     {"expert_sum", BORDER_EXPERT_SUM},
        {"sigmoid", BORDER_SIGMOID}, {"join", BORDER_JOIN},
        {"l2_norm", BORDER_L2_NORM}, {"delta_gate", BORDER_DELTA_GATE}};
    struct mutation_suite suite = {.subjects = subjects,
                                   .n_subjects = sizeof subjects / sizeof subjects[0],
                                   .clean_seeds = 30,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 4,
                                   .open = open_run,
                                   .close = close_run,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
