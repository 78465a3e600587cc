/* route.c - the node ROUTE: the experts that compute a row, and their weights (abi/route.h).
 *   in [n_rows][n_experts], out [n_rows][2 n_used] f32; struct route_args, node_args.h
 * Any grid, NODE_ROUTE_THREADS threads: a warp per row. Floor: 4 bytes a logit; in fact the chain of n_used
 * choices, each of five exchanges between lanes. Must match route_row() and route_factors():
 * tests/simt/nodes.c. */
#include "experts/choose.h"
#include "node.h"

SIMT_KERNEL(route, struct route_args, NODE_ROUTE_THREADS, 1)
{
    struct node_deal d = node_deal_warps(node_n_rows(&args.step), 1);
    for (; node_more(&d); node_next_warp(&d)) {
        const struct choose_out out = {node_row(&args.out, d.row), NULL};
        choose_row(&args.rule, node_row(&args.in, node_input(&args.step, &args.in, d.row)),
                   DECODER_AT(const float, args.bias), DECODER_AT(const float, args.factors), &out);
    }
}
