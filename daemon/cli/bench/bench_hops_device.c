/* bench_hops_device.c - what a device that runs ahead of its host shows by its trace alone, and its border.
 */
#include "base/clock.h"
#include "backend/executor.h"
#include "bench_hops.h"

#include <errno.h>
#include <stdlib.h>

#define LOOKS 15

struct looks {
    uint32_t n;
    double ns[LOOKS];
};

static uint64_t median(struct looks *l)
{
    return (uint64_t)bench_median(l->ns, l->n);
}

static int run_empty(struct executor *x, struct step *step, double *ns, struct error *err)
{
    struct step_result none;
    uint64_t done = 0, begun = clock_ns();
    int rc = executor_submit(x, step, err);

    while (rc >= 0 && done != step->id)
        rc = executor_advance(x, &none, 1, &done, err);
    *ns = (double)(clock_ns() - begun);
    step->id++;
    return rc < 0 ? rc : 0;
}

/* The first one may launch the decoder. */
static int run_empties(void *context, struct executor *x, struct error *err)
{
    struct looks *l = context;
    struct step *step = calloc(1, sizeof *step);
    struct backend_info info;
    double first;

    if (!step)
        return error_set(err, -ENOMEM, "out of memory");
    executor_info(x, &info);
    step->id = info.steps + 1;
    int rc = run_empty(x, step, &first, err);
    for (uint32_t i = 0; i < l->n && rc == 0; i++)
        rc = run_empty(x, step, &l->ns[i], err);
    free(step);
    return rc;
}

int hops_device(const struct config *cfg, const struct bench_test *test, bool once, struct hops_device *out,
                struct error *err)
{
    struct bench_test half = *test; /* its last step has as much past as the test's middle one */
    struct looks steps = {.n = once ? 1 : LOOKS}, borders = steps, empty = steps;
    struct config alone = *cfg;
    struct offline o = {0};

    alone.steps_in_flight = 1; /* a step that follows at once may change the id that marks are kept under */
    int rc = offline_open(&o, &alone, err);
    half.n_tokens = test->n_tokens / 2 + 1;
    if (rc == 0)
        rc = offline_pause(&o, &alone, run_empties, &empty, err);
    for (uint32_t i = 0; i < steps.n && rc == 0; i++) {
        struct bench_traced_step step = {0};
        rc = bench_traced_step(&o, &alone, &half, &step, err);
        steps.ns[i] = (double)step.ops_ns;
        borders.ns[i] = (double)step.border_ns;
    }
    offline_close(&o);
    if (rc == 0)
        *out = (struct hops_device){
            .kernel_ns = median(&steps), .border_ns = median(&borders), .empty_ns = median(&empty)};
    return rc;
}
