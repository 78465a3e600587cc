/* delta_net.c - the node DELTA_NET: the states of a recurrent layer's value heads, advanced by the step's
 * rows (recurrent/delta_rows.h).
 *   in [n_rows][channels], gates [n_rows][2 n_value_heads], out [n_rows][values] f32; struct delta_net_args,
 *   node_args.h
 * Any grid, NODE_DELTA_NET_THREADS threads: a warp per DELTA_NET_COLUMNS columns of a group's head, for all
 * of its rows. Floor: each group's state read and written once, 4 bytes a value of in and out. Must match
 * delta_head(): tests/simt/recurrent/recurrent.c. */
#include "recurrent/delta_rows.h"
#include "node.h"

SIMT_KERNEL(delta_net, struct delta_net_args, NODE_DELTA_NET_THREADS, 1)
{
    const struct delta_shape *s = &args.states.shape;
    uint32_t n_rows = node_n_rows(&args.step), per_head = s->value_dim / DELTA_NET_COLUMNS;
    const SIMT_GLOBAL struct step *step = node_step_of(&args.step);
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    struct node_deal d = node_deal_warps(n_rows, s->n_value_heads * per_head);
    for (; node_more(&d); node_next_warp(&d)) {
        struct state_group group;
        if (!state_group_at(&group, &args.states, step, d.row, &guard))
            continue;
        uint32_t head = d.at / per_head, key_head = delta_key_head(s, head);
        uint32_t column = d.at % per_head * DELTA_NET_COLUMNS + simt_lane() % DELTA_NET_COLUMNS;
        const SIMT_GLOBAL float *in = node_row(&args.in, 0), *gates = node_row(&args.gates, 0) + head;
        struct delta_rows rows = {
            .q = in + delta_head_begin(s, key_head),
            .k = in + delta_head_begin(s, s->n_key_heads + key_head),
            .v = in + delta_head_begin(s, 2 * s->n_key_heads + head) + column,
            .beta = gates,
            .decay = gates + s->n_value_heads,
            .out = node_row(&args.out, 0) + (size_t)head * s->value_dim + column,
            .in_stride = args.in.stride,
            .gate_stride = args.gates.stride,
            .out_stride = args.out.stride,
        };
        delta_scan(&args.states, &group, step, n_rows, args.layer, delta_lane_at(s, head, column), &rows,
                   &guard);
    }
}
