/* l2_norm.c - the node L2_NORM: the heads of queries and keys of a recurrent layer at length 1, queries then
 * over sqrt(key_dim); the heads of values as they are.
 *   in, out [n_rows][channels] f32; struct l2_norm_args, node_args.h
 * Any grid, NODE_L2_NORM_THREADS threads: a warp per head. Floor: 8 bytes a value. Must match
 * delta_unit_head() of lib/cpu/delta_net.c: tests/simt/nodes.c. */
#include "device/lanes.h"
#include "node.h"

SIMT_KERNEL(l2_norm, struct l2_norm_args, NODE_L2_NORM_THREADS, 1)
{
    const struct delta_shape *s = &args.shape;
    struct node_deal d = node_deal_warps(node_n_rows(&args.step), delta_n_heads(s));
    for (; node_more(&d); node_next_warp(&d)) {
        uint32_t at = delta_head_begin(s, d.at), width = delta_head_width(s, d.at);
        const SIMT_GLOBAL float *x = node_row(&args.in, node_input(&args.step, &args.in, d.row)) + at;
        SIMT_GLOBAL float *out = node_row(&args.out, d.row) + at;
        bool value = d.at >= 2 * s->n_key_heads;
        float r = value ? 1.0f : lanes_rms_inverse(x, s->key_dim, args.eps / (float)s->key_dim);
        float factor = d.at < s->n_key_heads ? delta_query_factor(s, r) : delta_key_factor(s, r);
        for (uint32_t i = simt_lane(); i < width; i += SIMT_LANES)
            out[i] = value ? x[i] : x[i] * factor;
    }
}
