/* gate.c - out = a * sigmoid(b), b one value a row: a shared expert's gate.
 *   a, out [n_rows][width], b [n_rows][1] f32; struct flat_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 8 bytes an element. Must match ops.store with
 * that factor: tests/simt/nodes.c. */
#include "abi/arith.h"
#include "node.h"

SIMT_KERNEL(gate, struct flat_args, NODE_FLAT_THREADS, 1)
{
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *a = node_row(&args.a, node_input(&args.step, &args.a, d.row));
        const SIMT_GLOBAL float *b = node_row(&args.b, node_input(&args.step, &args.b, d.row));
        node_row(&args.out, d.row)[d.at] = a[d.at] * arith_sigmoid(b[0]);
    }
}
