/* join.c - the node JOIN: out = a, then b.
 *   a [n_rows][first], b [n_rows][width - first], out [n_rows][width] f32; struct join_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 8 bytes an element. Must match join_row() of
 * lib/cpu/eager.c: tests/simt/nodes.c. */
#include "node.h"

SIMT_KERNEL(join, struct join_args, NODE_FLAT_THREADS, 1)
{
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *a = node_row(&args.a, node_input(&args.step, &args.a, d.row));
        const SIMT_GLOBAL float *b = node_row(&args.b, node_input(&args.step, &args.b, d.row));
        node_row(&args.out, d.row)[d.at] = d.at < args.first ? a[d.at] : b[d.at - args.first];
    }
}
