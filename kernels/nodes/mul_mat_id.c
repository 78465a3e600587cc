/* mul_mat_id.c - the node MUL_MAT_ID: products of every row with the matrices of the experts that were chosen
 * for it, one after the other; see node_args.h.
 *   y[u] = W[expert u] x[u] * factor + bias[expert u]; in [n_rows][k], the same x for all, or with
 *   args.own_input [n_rows][n_used k]; choice [n_rows][2 n_used], the numbers first; out [n_rows][n_used n]
 *   f32; struct mul_mat_id_args
 * The experts' matrices are parts of one, of n rows each: a multiple of 16, so that a part has whole tiles.
 * Each expert's groups are dealt where those of the one before end. Any grid, NODE_PRODUCT_THREADS threads,
 * args.product.shared.total bytes of shared memory. Floor: the packed bytes of a row's experts, for each row
 * anew. Must match lib/cpu/matmul/team_experts.h in every bit: tests/simt/products/product_nodes.c, and in
 * whole models tests/cuda/test_cuda_golden.c. */
#include "matmul/product_node.h"
#include "node.h"

/* Points the description at chosen expert u of a row, by one thread. */
SIMT_INLINE void point(SIMT_SHARED struct product *p, const struct mul_mat_id_args *args, uint32_t row,
                       uint32_t u)
{
    const struct mul_mat_args *of = &args->product;
    SIMT_SHARED struct product_matrix *m = &p->matrix[0];
    uint32_t expert = (uint32_t)node_row(&args->choice, row)[u];
    m->tiles = of->matrix.tiles + (uint64_t)expert * m->n_tiles * p->n_supers * m->super_bytes;
    m->bias = of->bias ? of->bias + (uint64_t)expert * m->n * 4 : 0;
    p->in = of->in.data + (args->own_input ? (uint64_t)u * p->k * 4 : 0);
    p->out = of->out.data + (uint64_t)u * m->n * 4;
    p->first_block = (row * args->n_used + u) * p->n_groups % simt_n_blocks();
}

SIMT_INLINE void stream(SIMT_SHARED struct product *p, SIMT_SHARED char *fold,
                        const struct mul_mat_id_args *args, const struct ring *ring, struct ring_place *at,
                        const struct flow_guard *guard, uint32_t n_rows)
{
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t u = 0; u < args->n_used; u++) {
            simt_syncwarp(); /* no lane reads the previous expert's any more */
            if (simt_lane() == 0)
                point(p, args, row, u);
            simt_syncwarp();
            if (!product_produce(p, fold, ring, at, guard))
                return;
        }
}

SIMT_KERNEL(mul_mat_id, struct mul_mat_id_args, NODE_PRODUCT_THREADS, 2)
{
    const struct decoder_shared *shared = &args.product.shared;
    struct crew crew = crew_of(simt_n_threads() - SIMT_LANES);
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.product.step.fault),
                               .op = args.product.step.node};
    SIMT_SHARED char *fold = simt_carve(shared->fold, shared->fold_bytes);
    SIMT_SHARED char *work = simt_carve(shared->work, shared->work_bytes);
    bool streams = simt_thread() >= crew.n_threads;
    SIMT_SHARED struct product *p = product_at(fold, streams);
    struct ring ring;
    struct ring_place at = {0};
    ring_open(&ring, shared->stages, shared->mbarriers, shared->n_stages, shared->stage_bytes, crew.n_warps);
    if (simt_thread() == 0 || simt_thread() == crew.n_threads)
        product_describe(p, &args.product, args.n, args.n / TILE_ROWS);
    simt_bar_sync(0, simt_n_threads());
    uint32_t n_rows = node_n_rows(&args.product.step);
    if (streams) {
        stream(p, fold, &args, &ring, &at, &guard, n_rows);
        ring_close(&ring, &at);
        return;
    }
    struct product_place place = {work, fold, &ring, &at, &guard, NULL, 0};
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t u = 0; u < args.n_used; u++) {
            if (simt_thread() == 0)
                point(p, &args, row, u);
            crew_sync(&crew);
            if (args.own_input || u == 0) {
                product_quantise(p, false, work, row, 1, simt_warp(), crew.n_warps, false, NULL);
                crew_sync(&crew);
                product_find_factors(p, false, false, row, 1, simt_warp(), crew.n_warps);
            }
            if (!product_run(p, &place, &crew))
                return;
            crew_sync(&crew);
        }
}
