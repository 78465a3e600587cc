/* delta_net.c - the node DELTA_NET: the states of a recurrent layer's value heads, advanced by the step's
 * rows (recurrent/delta_rows.h).
 *   in [n_rows][channels], gates [n_rows][2 n_value_heads], out [n_rows][values] f32; struct delta_net_args,
 *   node_args.h
 * Any grid, up to NODE_DELTA_NET_THREADS threads and delta_room_bytes() of shared memory for each warp: a
 * warp per DELTA_NET_COLUMNS columns of a group's head, for all of its rows. Floor: each group's state read
 * and written once, 4 bytes a value of in and out. Must match delta_head(): tests/simt/recurrent/recurrent.c.
 */
#include "recurrent/delta_rows.h"
#include "node.h"

SIMT_KERNEL(delta_net, struct delta_net_args, NODE_DELTA_NET_THREADS, 1)
{
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    uint32_t warps = simt_n_threads() / SIMT_LANES, room = delta_room_bytes(&args.states.shape);
    struct delta_net n = {.r = {.states = &args.states,
                                .step = node_step_of(&args.step),
                                .guard = &guard,
                                .in = node_row(&args.in, 0),
                                .out = node_row(&args.out, 0),
                                .in_stride = args.in.stride,
                                .out_stride = args.out.stride,
                                .n_rows = node_n_rows(&args.step),
                                .layer = args.layer,
                                .n_units = delta_n_units(&args.states.shape),
                                .room = simt_carve(simt_warp() * room, room)},
                          .gates = node_row(&args.gates, 0),
                          .gate_stride = args.gates.stride};
    bool more = recurrent_open(&n.r, simt_warp() * simt_n_blocks() + simt_block());
    for (; more; more = recurrent_seek(&n.r, warps * simt_n_blocks())) {
        delta_fetch(&n);
        delta_run(&n);
    }
}
