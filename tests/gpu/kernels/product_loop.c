/* product_loop.c - the decoder's matrix product alone: the weights of many layers one after another, as one
 * block per SM streams them, with nothing to wait for between two products; the blocks meet only if the
 * columns do not fit a block's work area, as the decoder's do. See gpu_kernels.h. n_crew compute threads and
 * a producer warp. Floor: n_rounds * n_copies * copy_bytes bytes, once. This only times the products;
 * tests/simt and the witness parts check their results. */
#include "guard.h"
#include "matmul/product_wide.h"

SIMT_INLINE void describe(SIMT_SHARED struct product *p, const struct product_loop_args *args)
{
    bool is_float = tile_is_float(args->type);
    p->matrix[0].tiles = args->tiles;
    p->matrix[0].bias = 0;
    p->matrix[0].type = args->type;
    p->matrix[0].n = args->n;
    p->matrix[0].n_tiles = args->n_tiles;
    p->matrix[0].super_bytes = args->super_bytes;
    p->matrix[0].out_col = 0;
    p->matrix[0].first_group = 0;
    p->matrix[0].stage_supers = args->stage_supers;
    p->in = args->in;
    p->out = args->out;
    p->gain = p->factors = p->gather = 0;
    p->gates = 0;
    p->panels = args->panels;
    p->wide_factors = args->factors;
    p->in_stride = args->k;
    p->out_stride = args->n;
    p->k = args->k;
    p->n_supers = tile_supers(args->k);
    p->forms = is_float ? ACTIVATION_FLOATS : ACTIVATION_INTEGERS;
    p->n_rows = p->n_columns = args->n_columns;
    p->n_matrices = 1;
    p->head_columns = 0;
    p->polls = p->words = 0;
    p->old = 0;
    p->empties_old = 0;
    p->n_empties = 0;
    p->epilogue = PROGRAM_STORE;
    p->n_groups = args->n_groups;
    p->group_tiles = args->group_tiles;
    p->first_block = 0;
    p->n_warps = args->n_crew / SIMT_LANES;
    p->part_floats = product_part_floats(args->shared.fold_bytes);
    p->eps = 0;
    p->scale = 1;
    p->cap = 0;
}

SIMT_INLINE void stream(const struct product_loop_args *args, const struct ring *ring,
                        const struct flow_guard *guard)
{
    SIMT_SHARED char *fold = simt_carve(args->shared.fold, args->shared.fold_bytes);
    SIMT_SHARED struct product *p = product_at(fold, 1);
    struct ring_place at = {0};
    uint32_t n = args->n_rounds * args->n_copies;
    bool go = true;
    if (simt_lane() == 0)
        describe(p, args);
    for (uint32_t i = 0, copy = 0; go && i < n; i++) {
        simt_syncwarp();
        if (simt_lane() == 0)
            p->matrix[0].tiles = args->tiles + copy * args->copy_bytes;
        copy = copy + 1 < args->n_copies ? copy + 1 : 0;
        simt_syncwarp();
        go = product_produce(p, fold, ring, &at, guard);
    }
    ring_close(ring, &at);
}

/* Waits until all blocks have arrived: their writes are visible, and their input may be overwritten. False:
 * end. */
SIMT_INLINE bool meet(const struct product_loop_args *args, const struct flow_guard *guard, uint32_t *target)
{
    SIMT_GLOBAL uint32_t *counter = GPU_AT(uint32_t, args->counters) + PRODUCT_MET * GPU_LINE;
    *target += simt_n_blocks();
    flow_signal(counter, args->n_crew);
    return flow_wait(counter, *target, guard, args->n_crew);
}

/* Quantises the columns into the block's work area, or by all blocks together into memory. False: end. */
SIMT_INLINE bool quantise(const struct product_loop_args *args, SIMT_SHARED struct product *p, bool is_wide,
                          SIMT_SHARED char *work, const struct flow_guard *guard, uint32_t *target)
{
    struct crew crew = crew_of(args->n_crew);
    if (!is_wide) {
        product_quantise(p, false, work, 0, args->n_columns, simt_warp(), crew.n_warps, false, NULL);
        crew_sync(&crew);
        product_find_factors(p, false, false, 0, args->n_columns, simt_warp(), crew.n_warps);
        return true;
    }
    if (!meet(args, guard, target))
        return false;
    uint32_t n_warps = simt_n_blocks() * crew.n_warps;
    uint32_t warp = product_find_factors(p, true, false, 0, args->n_columns,
                                         simt_block() * crew.n_warps + simt_warp(), n_warps);
    product_quantise(p, true, work, 0, args->n_columns, warp, n_warps, true, NULL);
    return meet(args, guard, target);
}

SIMT_INLINE void compute(const struct product_loop_args *args, const struct ring *ring,
                         const struct flow_guard *guard)
{
    struct crew crew = crew_of(args->n_crew);
    SIMT_SHARED char *fold = simt_carve(args->shared.fold, args->shared.fold_bytes);
    SIMT_SHARED char *work = simt_carve(args->shared.work, args->shared.work_bytes);
    SIMT_SHARED struct product *p = product_at(fold, 0);
    struct ring_place at = {0};
    struct product_place place = {work, fold, ring, &at, guard, NULL, args->shared.work_bytes};
    uint32_t target = 0;
    if (simt_thread() == 0)
        describe(p, args);
    crew_sync(&crew);
    bool is_wide = product_is_wide(args->n_columns, args->k, p->forms, args->shared.work_bytes);
    for (uint32_t i = 0; i < args->n_rounds * args->n_copies; i++) {
        crew_sync(&crew); /* no thread uses the columns or the fold area any more */
        if ((i == 0 || args->quantises) && !quantise(args, p, is_wide, work, guard, &target))
            return;
        if (!product_run(p, &place, &crew))
            return;
    }
    SIMT_GLOBAL uint32_t *by_columns = GPU_AT(uint32_t, args->counters) + PRODUCT_BY_COLUMNS * GPU_LINE;
    if (simt_block() == 0 && simt_thread() == 0)
        *by_columns = is_wide && product_first_lead(p, &place, &crew) != PRODUCT_NO_LEAD;
}

SIMT_KERNEL(gpu_product, struct product_loop_args, DECODER_MAX_THREADS, 1)
{
    struct flow_guard guard = gpu_guard(args.counters, 0);
    struct ring ring;
    ring_open(&ring, args.shared.stages, args.shared.mbarriers, args.shared.n_stages, args.shared.stage_bytes,
              args.n_crew / SIMT_LANES);
    simt_bar_sync(0, simt_n_threads());
    if (simt_thread() < args.n_crew)
        compute(&args, &ring, &guard);
    else if (simt_thread() < args.n_crew + SIMT_LANES)
        stream(&args, &ring, &guard);
}
