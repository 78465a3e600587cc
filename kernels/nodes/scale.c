/* scale.c - out = a * factor, or a * b[0] if there is a b.
 *   a, out [n_rows][width] f32; struct flat_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: one element each. Floor: 8 bytes an element. Must match ops.scale:
 * tests/simt/nodes.c. */
#include "abi/arith.h"
#include "node.h"

SIMT_KERNEL(scale, struct flat_args, NODE_FLAT_THREADS, 1)
{
    float factor = args.b.data ? *DECODER_AT(const float, args.b.data) : args.factor;
    struct node_deal d = node_deal(node_n_rows(&args.step), args.width);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *a = node_row(&args.a, node_input(&args.step, &args.a, d.row));
        node_row(&args.out, d.row)[d.at] = a[d.at] * factor;
    }
}
