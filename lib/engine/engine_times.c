/* engine_times.c - when each token passed through the engine, for measurements. */
#include "engine_private.h"
#include "model/program.h"

#include <errno.h>
#include <stdlib.h>

/* The ns that the program's ops have taken in all steps so far; 0: the executor does not say. */
static uint64_t sum_ops(struct engine *e)
{
    uint64_t sum = 0;
    if (!e->op_ns)
        return 0;
    executor_program_ns(e->x, e->op_ns);
    for (uint32_t i = 0; i < executor_program(e->x)->n_ops; i++)
        sum += e->op_ns[i];
    return sum;
}

int engine_times_open(struct engine *e, struct error *err)
{
    if (!e->cfg.times || !executor_program_ns(e->x, NULL) || !executor_program(e->x))
        return 0;
    e->op_ns = calloc(executor_program(e->x)->n_ops, sizeof *e->op_ns);
    if (!e->op_ns)
        return error_set(err, -ENOMEM, "no memory for the times of ops");
    e->ops_ns = sum_ops(e);
    return 0;
}

void engine_times_close(struct engine *e)
{
    free(e->op_ns);
}

void engine_times_step(struct engine *e, const struct flight *f, uint64_t begun_ns, uint64_t seen_ns)
{
    if (!e->cfg.times)
        return;
    uint64_t ops_ns = sum_ops(e);
    e->step_times = (struct engine_times){.submitted_ns = f->started_ns + f->submit_ns,
                                          .begun_ns = begun_ns,
                                          .seen_ns = seen_ns,
                                          .ops_ns = ops_ns - e->ops_ns};
    e->ops_ns = ops_ns;
}

void engine_times_publish(struct engine *e)
{
    if (!e->cfg.times || e->n_timed == e->cfg.n_times)
        return;
    struct engine_times *t = &e->cfg.times[e->n_timed++];
    *t = e->step_times;
    t->published_ns = clock_ns();
}

void engine_times_tell(struct engine *e)
{
    if (e->n_told == e->n_timed)
        return;
    uint64_t now = clock_ns();
    for (uint32_t i = e->n_told; i < e->n_timed; i++)
        e->cfg.times[i].told_ns = now;
}

void engine_times_back(struct engine *e)
{
    if (e->n_told == e->n_timed)
        return;
    uint64_t now = clock_ns();
    for (; e->n_told < e->n_timed; e->n_told++)
        e->cfg.times[e->n_told].back_ns = now;
}
