/* swiglu_clamped.c - out = arith_swiglu_clamped(a, b): gpt-oss's gate a and up b.
 *   a, b, out [n_rows][width] f32; struct flat_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 12 bytes an element. Must match
 * ops.swiglu_clamped: tests/simt/nodes.c. */
#include "abi/arith.h"
#include "node.h"

SIMT_KERNEL(swiglu_clamped, struct flat_args, NODE_FLAT_THREADS, 1)
{
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *a = node_row(&args.a, node_input(&args.step, &args.a, d.row));
        const SIMT_GLOBAL float *b = node_row(&args.b, node_input(&args.step, &args.b, d.row));
        node_row(&args.out, d.row)[d.at] = arith_swiglu_clamped(a[d.at], b[d.at]);
    }
}
