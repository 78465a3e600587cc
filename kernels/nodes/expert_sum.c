/* expert_sum.c - the node EXPERT_SUM: the outputs of a row's experts times their weights, added from 0 in
 * order. in [n_rows][n_used width], choice [n_rows][2 n_used], out [n_rows][width] f32; struct
 * expert_sum_args Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 4 bytes a value of in and
 * out. Must match sum_row() of lib/cpu/eager.c: tests/simt/nodes.c. */
#include "node.h"

SIMT_KERNEL(expert_sum, struct expert_sum_args, NODE_FLAT_THREADS, 1)
{
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *y = node_row(&args.in, d.row) + d.at;
        const SIMT_GLOBAL float *weights = node_row(&args.choice, d.row) + args.n_used;
        float sum = 0;
        for (uint32_t u = 0; u < args.n_used; u++)
            sum = __builtin_fmaf(weights[u], y[(size_t)u * args.width], sum);
        node_row(&args.out, d.row)[d.at] = sum;
    }
}
