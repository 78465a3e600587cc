/* ssm_conv.c - the node SSM_CONV: the convolution of a recurrent layer's channels (recurrent/convolve.h).
 *   in, out [n_rows][channels] f32; struct ssm_conv_args, node_args.h
 * Any grid, up to NODE_CONV_THREADS threads and delta_convolve_bytes() of shared memory for each warp: a warp
 * per head of a group, for all of its rows. Floor: 8 bytes a value, and each group's last rows once. Must
 * match delta_convolve() of lib/cpu/delta_net.c: tests/simt/recurrent/recurrent.c. */
#include "recurrent/convolve.h"
#include "node.h"

SIMT_KERNEL(ssm_conv, struct ssm_conv_args, NODE_CONV_THREADS, 1)
{
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    uint32_t warps = simt_n_threads() / SIMT_LANES, room = delta_convolve_bytes(&args.states.shape);
    struct convolve c = {.r = {.states = &args.states,
                               .step = node_step_of(&args.step),
                               .guard = &guard,
                               .in = node_row(&args.in, 0),
                               .out = node_row(&args.out, 0),
                               .in_stride = args.in.stride,
                               .out_stride = args.out.stride,
                               .n_rows = node_n_rows(&args.step),
                               .layer = args.layer,
                               .n_units = delta_n_heads(&args.states.shape),
                               .room = simt_carve(simt_warp() * room, room)},
                         .taps = DECODER_AT(const float, args.taps)};
    bool more = recurrent_open(&c.r, simt_warp() * simt_n_blocks() + simt_block());
    for (; more; more = recurrent_seek(&c.r, warps * simt_n_blocks())) {
        convolve_fetch(&c);
        convolve_run(false, &c);
    }
}
