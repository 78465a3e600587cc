/* mul_mat.c - the node MUL_MAT; see node_args.h. One launch for any number of rows: each block has some tiles
 * of the matrix, quantises for itself the columns that it multiplies, as many at a time as fit its work area,
 * and streams its tiles again for the next ones.
 *   y = W x * factor + bias; in [n_rows][in.stride], out [n_rows][out.stride] f32; struct mul_mat_args
 * Any grid, NODE_PRODUCT_THREADS threads, args.shared.total bytes of shared memory. Floor: the packed bytes
 * of the matrix once for every 8 rows (Q4_K: 2,304 a tile of 16 rows by 256 columns, 0.5625 a weight), if 8
 * quantised rows fit the work area; and 4 bytes a value of x and y. Must match lib/cpu/matmul/matmul.h in
 * every bit: tests/simt/product_nodes.c, and in whole models tests/cuda/test_cuda_twin.c (eager). */
#include "abi/node_args.h"
#include "matmul/product.h"

/* Returns the largest group of tiles that fits a stage and still gives every block one. */
SIMT_INLINE uint32_t group_tiles(uint32_t stage_supers, uint32_t n_supers, uint32_t n_tiles)
{
    uint32_t fit = stage_supers / n_supers, even = n_tiles / simt_n_blocks();
    uint32_t tiles = fit < even ? fit : even;
    return tiles ? tiles : 1;
}

SIMT_INLINE void describe(SIMT_SHARED struct product *p, const struct mul_mat_args *args,
                          const SIMT_GLOBAL struct step *step)
{
    SIMT_SHARED struct product_matrix *m = &p->matrix[0];
    uint32_t fit = args->shared.stage_bytes / args->matrix.super_bytes;
    m->tiles = args->matrix.tiles;
    m->bias = args->bias;
    m->type = args->matrix.type;
    m->n = args->matrix.n;
    m->n_tiles = args->matrix.n_tiles;
    m->super_bytes = args->matrix.super_bytes;
    m->out_col = 0;
    m->first_group = 0;
    m->stage_supers = fit < SCHEDULE_MAX_SUPERS ? fit : SCHEDULE_MAX_SUPERS;
    p->in = args->in.data;
    p->in_stride = args->in.stride;
    p->out = args->out.data;
    p->out_stride = args->out.stride;
    p->gain = 0;
    p->factors = args->factors;
    p->gather = args->in.gathered ? (uint64_t)(uintptr_t)step->logits : 0;
    p->panels = 0;
    p->wide_factors = 0;
    p->k = args->matrix.k;
    p->n_supers = args->matrix.n_supers;
    p->forms = activation_form(args->matrix.type);
    p->n_rows = step->n_rows;
    p->n_columns = args->step.head ? step->n_logits : step->n_rows;
    p->n_matrices = 1;
    p->epilogue = PROGRAM_STORE;
    p->group_tiles = group_tiles(m->stage_supers, args->matrix.n_supers, args->matrix.n_tiles);
    p->n_groups = (args->matrix.n_tiles + p->group_tiles - 1) / p->group_tiles;
    p->first_block = 0;
    p->eps = 0;
    p->scale = 1;
    p->cap = 0;
}

/* Returns the number of columns that fit the work area together; the host makes sure that one does. */
SIMT_INLINE uint32_t columns_at_once(const SIMT_SHARED struct product *p, uint32_t work_bytes)
{
    uint32_t n = ACTIVATION_COLUMNS;
    while (n > 1 && activation_panel_bytes(n, p->k, p->forms) > work_bytes)
        n--;
    return n;
}

SIMT_INLINE void check_rows(const SIMT_SHARED struct product *p, const struct flow_guard *guard)
{
    if (!p->gather || simt_block())
        return;
    for (uint32_t i = simt_thread(); i < p->n_columns; i += simt_n_threads()) {
        uint32_t row = DECODER_AT(const struct step_logit, p->gather)[i].row;
        if (row >= p->n_rows)
            flow_fail(guard, DECODER_RANGE, DECODER_RANGE_LOGIT, row, p->n_rows);
    }
}

SIMT_KERNEL(mul_mat, struct mul_mat_args, NODE_PRODUCT_THREADS, 2)
{
    struct crew crew = crew_of(simt_n_threads() - SIMT_LANES);
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    SIMT_SHARED char *fold = simt_carve(args.shared.fold, args.shared.fold_bytes);
    SIMT_SHARED char *work = simt_carve(args.shared.work, args.shared.work_bytes);
    SIMT_SHARED struct product *p = product_at(fold, 0);
    struct ring ring;
    struct ring_place at = {0, 0};
    ring_open(&ring, args.shared.stages, args.shared.mbarriers, args.shared.n_stages, args.shared.stage_bytes,
              crew.n_warps);
    if (simt_thread() == 0)
        describe(p, &args, DECODER_AT(const struct step, args.step.step));
    simt_bar_sync(0, simt_n_threads());
    check_rows(p, &guard);
    uint32_t some = columns_at_once(p, args.shared.work_bytes), n = p->n_columns;
    if (simt_thread() >= crew.n_threads) {
        for (uint32_t first = 0; first < n; first += some)
            if (!product_produce(p, &ring, &at, &guard))
                break;
        ring_close(&ring, &at);
        return;
    }
    struct product_place place = {work, fold, &ring, &at, &guard};
    for (uint32_t first = 0; first < n; first += some) {
        uint32_t columns = n - first < some ? n - first : some;
        product_quantise(p, false, work, first, columns, simt_warp(), crew.n_warps);
        crew_sync(&crew);
        product_find_factors(p, false, first, columns, simt_warp(), crew.n_warps);
        if (!product_run(p, &place, &crew))
            return;
        crew_sync(&crew);
    }
}
