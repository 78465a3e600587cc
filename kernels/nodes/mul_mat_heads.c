/* mul_mat_heads.c - the node MUL_MAT_HEADS: the products of a row's heads with matrices of their own, and the
 * values that a head keeps; see node_args.h.
 *   out part h = the last `keep` values of part h of x, then W[h] times the k values from `col` on; in
 *   [n_rows][n_heads part], out [n_rows][n_heads (keep + n)] f32; struct mul_mat_heads_args
 * The heads' matrices are parts of one, of n rows each: a multiple of 16, so that a part has whole tiles. A
 * head's groups are dealt where those of the one before end; its tiles are streamed once for as many rows as
 * fit the work area, as mul_mat.c does it. Any grid, NODE_PRODUCT_THREADS threads, args.product.shared.total
 * bytes of shared memory. Floor: the packed bytes of the matrix once for every 8 rows, 4 bytes a value of x
 * and y. Must match lib/cpu/matmul/team_heads.h in every bit: tests/simt/products/product_nodes.c, and in
 * whole models tests/cuda/test_cuda_golden.c. */
#include "matmul/product_node.h"
#include "node.h"

/* Points the description at a head, by one thread. */
SIMT_INLINE void point(SIMT_SHARED struct product *p, const struct mul_mat_heads_args *args, uint32_t head)
{
    const struct mul_mat_args *of = &args->product;
    SIMT_SHARED struct product_matrix *m = &p->matrix[0];
    m->tiles = of->matrix.tiles + (uint64_t)head * m->n_tiles * p->n_supers * m->super_bytes;
    p->in = of->in.data + ((uint64_t)head * args->part + args->col) * 4;
    p->out = of->out.data + ((uint64_t)head * (args->keep + args->n) + args->keep) * 4;
    p->first_block = head * p->n_groups % simt_n_blocks();
}

/* By the producer warp: each head's tiles. */
SIMT_INLINE void stream(SIMT_SHARED struct product *p, const struct mul_mat_heads_args *args,
                        const struct product_place *place, uint32_t some)
{
    for (uint32_t head = 0; head < args->n_heads; head++) {
        simt_syncwarp(); /* no lane reads the previous head's any more */
        if (simt_lane() == 0)
            point(p, args, head);
        simt_syncwarp();
        if (!product_stream_rows(p, place, some))
            return;
    }
}

/* Copies what the heads keep, by the compute threads of all blocks; the products go to other columns. */
SIMT_INLINE void keep_values(const struct mul_mat_heads_args *args, uint32_t n_rows, uint32_t n_threads)
{
    uint32_t keep = args->keep;
    struct node_deal d =
        node_deal_from(n_rows, args->n_heads * keep, simt_block() * n_threads + simt_thread());
    for (; node_more(&d); node_next_by(&d, simt_n_blocks() * n_threads)) {
        uint32_t head = d.at / keep, i = d.at % keep;
        const SIMT_GLOBAL float *from = node_row(&args->product.in, d.row) + (head + 1) * args->part - keep;
        node_row(&args->product.out, d.row)[head * (keep + args->n) + i] = from[i];
    }
}

SIMT_KERNEL(mul_mat_heads, struct mul_mat_heads_args, NODE_PRODUCT_THREADS, 2)
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
    uint32_t n_rows = node_n_rows(&args.product.step);
    if (simt_thread() == 0 || simt_thread() == crew.n_threads) {
        product_describe(p, &args.product, args.n, args.n / TILE_ROWS);
        p->n_columns = n_rows;
    }
    simt_bar_sync(0, simt_n_threads());
    uint32_t some = product_columns_at_once(p, shared->work_bytes);
    struct product_place place = {work, fold, &ring, &at, &guard, NULL, 0};
    if (streams) {
        stream(p, &args, &place, some);
        ring_close(&ring, &at);
        return;
    }
    if (args.keep)
        keep_values(&args, n_rows, crew.n_threads);
    for (uint32_t head = 0; head < args.n_heads; head++) {
        if (simt_thread() == 0)
            point(p, &args, head);
        crew_sync(&crew);
        if (!product_multiply_rows(p, &place, &crew, some))
            return;
    }
}
