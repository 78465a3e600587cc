/* attend_grid.c - see attend_grid.h. */
#include "attend_grid.h"
#include "attention/attend.h"

enum { GRID_QKV, GRID_APPENDED, GRID_DONE };

static void signal(const struct attend_grid_args *args, const struct crew *crew, uint32_t counter)
{
    flow_signal(DECODER_AT(uint32_t, args->counters) + counter * DECODER_LINE, crew->n_threads);
}

static bool wait(const struct attend_grid_args *args, const struct crew *crew, const struct flow_guard *guard,
                 uint32_t counter, uint32_t uses)
{
    return flow_wait(DECODER_AT(uint32_t, args->counters) + counter * DECODER_LINE, uses * simt_n_blocks(),
                     guard, crew->n_threads);
}

/* This block's share of n floats. */
static void copy_share(uint64_t to, uint64_t from, uint32_t n)
{
    uint32_t step = simt_n_blocks() * simt_n_threads();
    for (uint32_t i = simt_block() * simt_n_threads() + simt_thread(); i < n; i += step)
        DECODER_AT(float, to)[i] = DECODER_AT(const float, from)[i];
}

/* Hops so far. */
struct hops {
    uint32_t layers, appends;
};

/* One layer of a step. False: end. */
SIMT_INLINE bool run_layer(const struct attend_grid_args *args, uint32_t s, bool planned, struct hops *hops,
                           const bool general)
{
    struct crew crew = crew_of(simt_n_threads());
    struct flow_guard guard = {DECODER_AT(uint32_t, args->guard), DECODER_AT(uint32_t, args->counters),
                               args->deadline_ns, 0};
    uint32_t max_rows = args->attend.max_rows, in = args->attend.in_stride;
    uint32_t n_rows = DECODER_AT(uint32_t, args->n_rows)[s];
    bool lone = DECODER_AT(uint32_t, args->lone)[s] != 0;
    copy_share(args->attend.in, args->source + (uint64_t)s * max_rows * in * 4, n_rows * in);
    signal(args, &crew, GRID_QKV);
    hops->layers++;
    struct attend a = {.crew = crew, .guard = &guard, .general = general};
    if (!attend_prefetch(&a, &args->attend, DECODER_AT(struct step_row, args->rows) + s * max_rows, n_rows,
                         lone, planned) ||
        !wait(args, &crew, &guard, GRID_QKV, hops->layers))
        return false;
    if (!a.lone) {
        attend_append_phase(&a);
        signal(args, &crew, GRID_APPENDED);
        if (!wait(args, &crew, &guard, GRID_APPENDED, ++hops->appends))
            return false;
    }
    if (simt_block() + 1 == args->lost || !attend_phase(&a)) {
        simt_cp_async_wait(0); /* a block must end with no copy under way */
        return false;
    }
    signal(args, &crew, GRID_DONE);
    return wait(args, &crew, &guard, GRID_DONE, hops->layers);
}

SIMT_INLINE void run_steps(const struct attend_grid_args *args, const bool general)
{
    uint32_t max_rows = args->attend.max_rows, out = args->attend.out_stride;
    struct hops hops = {0, 0};
    for (uint32_t s = 0; s < args->n_steps; s++) {
        for (uint32_t layer = 0; layer < args->n_layers; layer++)
            if (!run_layer(args, s, layer > 0, &hops, general))
                return;
        copy_share(args->results + (uint64_t)s * max_rows * out * 4, args->attend.out,
                   DECODER_AT(uint32_t, args->n_rows)[s] * out);
    }
}

SIMT_KERNEL(attend_grid, struct attend_grid_args, ATTEND_GRID_CREW, 1)
{
    if (args.general)
        run_steps(&args, true);
    else
        run_steps(&args, false);
}
