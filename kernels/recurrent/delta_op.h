/* delta_op.h - DELTA in the persistent decoder (program_ops.h): the delta net of a layer, then the norm of
 * each head of its output.
 *   in [n_rows][channels] as CONV left it, gates among its columns; out [n_rows][values] f32
 * Units of delta_rows.h are dealt to all warps for which the work area has room, block by block: of 32 heads
 * of 128 columns, 512 units, an H100's 132 blocks have 4 each. A warp asks for its first unit's state before
 * it waits for CONV. Behind a hop, since a head's columns are many warps', each warp normalises heads of
 * rows. Floor: 8 bytes a float of each group's states, 12 a value of out, and a hop. Must match walk_delta()
 * of lib/cpu/persistent.c: tests/cuda/test_cuda_golden.c. Thread: all compute threads of every block
 * together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "delta_rows.h"
#include "device/interpreter.h"
#include "device/lanes.h"

/* Warps of a block that have room. */
SIMT_INLINE uint32_t delta_n_warps(const struct walk *w)
{
    uint32_t n = w->args->shared.work_bytes / delta_room_bytes(&w->args->states.shape);
    return n < w->crew.n_warps ? n : w->crew.n_warps;
}

SIMT_INLINE struct delta_net delta_net_of(const struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t stride = w->args->buffers.row_floats;
    const SIMT_GLOBAL float *in = walk_row(w, op->in, 0);
    return (struct delta_net){
        .r = {.states = &w->args->states,
              .step = w->step,
              .guard = &w->guard,
              .in = in + op->out_col[0],
              .out = walk_row(w, op->out, 0),
              .in_stride = stride,
              .out_stride = stride,
              .n_rows = w->n_rows,
              .layer = op->layer,
              .n_units = delta_n_units(&w->args->states.shape),
              .room =
                  (SIMT_SHARED char *)walk_work(w) + simt_warp() * delta_room_bytes(&w->args->states.shape)},
        .gates = in + op->out_col[1],
        .gate_stride = stride,
    };
}

/* Normalises the heads of all rows, a warp each. */
SIMT_INLINE void delta_norm(const struct walk *w)
{
    const struct delta_shape *s = &w->args->states.shape;
    uint32_t n_heads = s->n_value_heads, n = s->value_dim;
    const SIMT_GLOBAL float *gain = walk_vector(w, w->op->gain);
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_warp() * simt_n_blocks() + simt_block(); i < w->n_rows * n_heads;
         i += w->crew.n_warps * simt_n_blocks()) {
        SIMT_GLOBAL float *x = walk_row(w, w->op->out, i / n_heads) + i % n_heads * n;
        float r = lanes_rms_inverse(x, n, w->op->eps);
        for (uint32_t j = simt_lane(); j < n; j += SIMT_LANES)
            x[j] = x[j] * r * gain[j];
    }
}

SIMT_INLINE bool delta_op(struct walk *w)
{
    struct delta_net n = delta_net_of(w);
    uint32_t n_warps = delta_n_warps(w);
    bool more = simt_warp() < n_warps && recurrent_open(&n.r, simt_warp() * simt_n_blocks() + simt_block());
    if (more)
        delta_fetch(&n);
    bool go = walk_wait(w);
    while (go && more) {
        delta_run(&n);
        more = recurrent_seek(&n.r, n_warps * simt_n_blocks());
        if (more)
            delta_fetch(&n);
    }
    simt_cp_async_wait(0); /* a block must end with no copy under way */
    if (!go || !walk_meet(w, 1))
        return false;
    delta_norm(w);
    return true;
}
