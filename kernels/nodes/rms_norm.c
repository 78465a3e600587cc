/* rms_norm.c - RMSNorm of whole rows or of every head of a row (QK-norm, before RoPE and the cache).
 *   in, out [n_rows][width] f32, in == out allowed; gain [group]; struct rms_norm_args, node_args.h
 *   group == width   x / rms(x) * gain over the row; with factors: out = x * gain, factors[row] = 1/rms(x),
 *                    by which the product multiplies afterwards (arith.h). A block per row
 *   group < width    (x * r) * gain over every head of `group` values, any number; a warp per head
 *   no gain          x * r
 * Any grid, NODE_NORM_THREADS threads. Floor: 8 bytes an element. Must match ops.rms_inverse and norm_head:
 * tests/simt/nodes.c. */
#include "attention/attend_head.h"
#include "node.h"

/* The first warp computes the sum; all threads wait for it. */
static float row_inverse(const struct rms_norm_args *args, const SIMT_GLOBAL float *x)
{
    SIMT_SHARED float *shared = simt_carve(0, NODE_NORM_SHARED);
    if (simt_warp() == 0) {
        float r = lanes_rms_inverse(x, args->width, args->eps);
        if (simt_lane() == 0)
            *shared = r;
    }
    simt_bar_sync(0, simt_n_threads());
    float r = *shared;
    simt_bar_sync(0, simt_n_threads()); /* all have read it */
    return r;
}

static void norm_rows(const struct rms_norm_args *args, uint32_t n_rows)
{
    const SIMT_GLOBAL float *gain = DECODER_AT(const float, args->gain);
    SIMT_GLOBAL float *factors = DECODER_AT(float, args->factors);
    bool deferred = args->factors != 0;
    for (uint32_t row = simt_block(); row < n_rows; row += simt_n_blocks()) {
        const SIMT_GLOBAL float *x = node_row(&args->in, node_input(&args->step, &args->in, row));
        SIMT_GLOBAL float *out = node_row(&args->out, row);
        float r = row_inverse(args, x);
        if (deferred && simt_thread() == 0)
            factors[row] = r;
        for (uint32_t i = simt_thread(); i < args->width; i += simt_n_threads())
            out[i] = deferred ? x[i] * gain[i] : gain ? x[i] * r * gain[i] : x[i] * r;
    }
}

static void norm_heads(const struct rms_norm_args *args, uint32_t n_rows)
{
    const SIMT_GLOBAL float *gain = DECODER_AT(const float, args->gain);
    struct node_deal d = node_deal_warps(n_rows, args->width / args->group);
    for (; node_more(&d); node_next_warp(&d)) {
        uint32_t at = d.at * args->group;
        const SIMT_GLOBAL float *x = node_row(&args->in, node_input(&args->step, &args->in, d.row)) + at;
        SIMT_GLOBAL float *out = node_row(&args->out, d.row) + at;
        float r = lanes_rms_inverse(x, args->group, args->eps);
        for (uint32_t i = simt_lane(); i < args->group; i += SIMT_LANES)
            out[i] = gain ? x[i] * r * gain[i] : x[i] * r;
    }
}

SIMT_KERNEL(rms_norm, struct rms_norm_args, NODE_NORM_THREADS, 1)
{
    uint32_t n_rows = node_n_rows(&args.step);
    if (args.group == args.width)
        norm_rows(&args, n_rows);
    else
        norm_heads(&args, n_rows);
}
