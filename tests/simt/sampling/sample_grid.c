/* sample_grid.c - see sample_grid.h. */
#include "sample_grid.h"
#include "sampling/sample.h"

static bool hop(const struct sample_grid_args *args, const struct crew *crew, uint32_t n)
{
    SIMT_GLOBAL uint32_t *counter = DECODER_AT(uint32_t, args->counters) + n * DECODER_LINE;
    struct flow_guard guard = {DECODER_AT(uint32_t, args->guard), DECODER_AT(uint32_t, args->counters), 0, 0};
    flow_signal(counter, crew->n_threads);
    return flow_wait(counter, simt_n_blocks(), &guard, crew->n_threads);
}

#define SAMPLE_GRID_THREADS 288 /* a number, which the PTX needs */
_Static_assert(SAMPLE_GRID_THREADS == SAMPLE_GRID_CREW + SIMT_LANES, "one warp more");

SIMT_KERNEL(sample_grid, struct sample_grid_args, SAMPLE_GRID_THREADS, 1)
{
    struct sample s = {args.in, simt_carve(args.in.work, SAMPLE_WORK_BYTES)};
    struct crew crew = crew_of(simt_n_threads() - SIMT_LANES);
    if (simt_thread() >= crew.n_threads)
        return;
    sample_segments(&s, &crew, simt_block(), simt_n_blocks(), sample_prepare_unit(&s, &crew, simt_block()));
    if (!hop(&args, &crew, 0))
        return;
    if (sample_draws_any(&s, &crew)) {
        sample_draw(&s, &crew, simt_block(), simt_n_blocks());
        if (!hop(&args, &crew, 1))
            return;
    }
    struct sample_row row = {.way = SAMPLE_NOTHING};
    if (simt_block() < sample_n_rows(&s))
        row = sample_row_of(&s, simt_block());
    sample_results(&s, &crew, simt_block(), simt_n_blocks(), row);
}
