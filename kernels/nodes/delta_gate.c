/* delta_gate.c - the node DELTA_GATE: of every value head of a recurrent layer sigmoid(b), then the decay of
 * alpha + dt.
 *   b, alpha [n_rows][n_value_heads] f32, or one [n_rows][2 n_value_heads] for both;
 *   out [n_rows][2 n_value_heads]; struct delta_gate_args, node_args.h
 * Any grid, NODE_FLAT_THREADS threads: a head each. Floor: 16 bytes a head. Must match delta_gates() of
 * lib/cpu/delta_net.c: tests/simt/nodes.c. */
#include "node.h"

SIMT_KERNEL(delta_gate, struct delta_gate_args, NODE_FLAT_THREADS, 1)
{
    uint32_t n = args.shape.n_value_heads;
    const SIMT_GLOBAL float *decay = DECODER_AT(const float, args.decay);
    const SIMT_GLOBAL float *dt = DECODER_AT(const float, args.dt);
    struct node_deal d = node_deal(node_n_rows(&args.step), n);
    for (; node_more(&d); node_next(&d)) {
        const SIMT_GLOBAL float *b = node_row(&args.b, node_input(&args.step, &args.b, d.row));
        const SIMT_GLOBAL float *alpha = node_row(&args.alpha, node_input(&args.step, &args.alpha, d.row));
        SIMT_GLOBAL float *out = node_row(&args.out, d.row);
        uint32_t at = args.together ? delta_together(&args.shape, d.at) : d.at;
        float x = args.together ? b[at + delta_share(&args.shape)] : alpha[at];
        out[d.at] = arith_sigmoid(b[at]);
        out[n + d.at] = delta_decay(decay[d.at], x + dt[d.at]);
    }
}
