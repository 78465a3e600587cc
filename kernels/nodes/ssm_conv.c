/* ssm_conv.c - the node SSM_CONV: the convolution of a recurrent layer's channels (recurrent/convolve.h).
 *   in, out [n_rows][channels] f32; struct ssm_conv_args, node_args.h
 * Any grid, NODE_CONV_THREADS threads: a thread per channel of a group, for all of its rows. Floor: 8 bytes a
 * value, and each group's last rows once. Must match delta_convolve() of lib/cpu/delta_net.c:
 * tests/simt/recurrent/recurrent.c. */
#include "recurrent/convolve.h"
#include "node.h"

SIMT_KERNEL(ssm_conv, struct ssm_conv_args, NODE_CONV_THREADS, 1)
{
    uint32_t n_rows = node_n_rows(&args.step), n_taps = args.states.shape.n_taps;
    const SIMT_GLOBAL struct step *step = node_step_of(&args.step);
    struct flow_guard guard = {.words = DECODER_AT(uint32_t, args.step.fault), .op = args.step.node};
    struct node_deal d = node_deal(n_rows, delta_channels(&args.states.shape));
    for (; node_more(&d); node_next(&d)) {
        struct state_group group;
        if (!state_group_at(&group, &args.states, step, d.row, &guard))
            continue;
        struct convolve_rows rows = {.in = node_row(&args.in, 0) + d.at,
                                     .out = node_row(&args.out, 0) + d.at,
                                     .in_stride = args.in.stride,
                                     .out_stride = args.out.stride};
        convolve_channel(&args.states, &group, step, n_rows, args.layer, d.at,
                         DECODER_AT(const float, args.taps) + (size_t)d.at * n_taps, &rows, &guard);
    }
}
