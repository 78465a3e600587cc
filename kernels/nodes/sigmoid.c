/* sigmoid.c - out = sigmoid(a), as arith_sigmoid() computes it.
 *   a, out [n_rows][width] f32; struct flat_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 8 bytes an element. Must match ops.sigmoid:
 * tests/simt/nodes.c. */
#include "abi/arith.h"
#include "node.h"

SIMT_KERNEL(sigmoid, struct flat_args, NODE_FLAT_THREADS, 1)
{
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *a = node_row(&args.a, node_input(&args.step, &args.a, d.row));
        node_row(&args.out, d.row)[d.at] = arith_sigmoid(a[d.at]);
    }
}
