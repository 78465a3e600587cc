/* mul_mat.c - the node MUL_MAT; see node_args.h. One launch for any number of rows: each block has some tiles
 * of the matrix, quantises for itself the columns that it multiplies, as many at a time as fit its work area,
 * and streams its tiles again for the next ones.
 *   y = W x * factor + bias; in [n_rows][in.stride], out [n_rows][out.stride] f32; struct mul_mat_args
 * Any grid, NODE_PRODUCT_THREADS threads, args.shared.total bytes of shared memory. Floor: the packed bytes
 * of the matrix once for every 8 rows (Q4_K: 2,304 a tile of 16 rows by 256 columns, 0.5625 a weight), if 8
 * quantised rows fit the work area; and 4 bytes a value of x and y. Must match lib/cpu/matmul/matmul.h in
 * every bit: tests/simt/products/product_nodes.c, and in whole models tests/cuda/test_cuda_twin.c (eager). */
#include "matmul/product_node.h"

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
    struct ring_place at = {0};
    ring_open(&ring, args.shared.stages, args.shared.mbarriers, args.shared.n_stages, args.shared.stage_bytes,
              crew.n_warps);
    if (simt_thread() == 0)
        product_describe(p, &args, args.matrix.n, args.matrix.n_tiles);
    simt_bar_sync(0, simt_n_threads());
    check_rows(p, &guard);
    uint32_t some = product_columns_at_once(p, args.shared.work_bytes);
    struct product_place place = {work, fold, &ring, &at, &guard, NULL, 0};
    if (simt_thread() < crew.n_threads) {
        (void)product_multiply_rows(p, &place, &crew, some);
        return;
    }
    (void)product_stream_rows(p, &place, some);
    ring_close(&ring, &at);
}
