/* convolve_op.h - CONV in the persistent decoder (program_ops.h): the rows of a recurrent layer, from the
 * products to what DELTA reads, in place.
 *   in [n_rows][channels] f32; behind them the products b and alpha of the gates
 * Units of convolve.h are dealt to all warps for which the work area has room, block by block; a warp asks
 * for its first unit's taps and older rows before it waits for the products. The gates of a row are a warp's,
 * from the last block on, which copies the products before it overwrites them. Floor: 8 bytes a value; in
 * fact a round trip to memory. Must match walk_conv() of lib/cpu/persistent.c: tests/cuda/test_cuda_golden.c.
 * Thread: all compute threads of every block together. Errors: false: end, as interpreter.h says. */
#pragma once
#include "convolve.h"
#include "device/interpreter.h"

/* Room of a warp for the products of the gates too. */
SIMT_INLINE uint32_t convolve_room_bytes(const struct walk *w)
{
    uint32_t room = delta_convolve_bytes(&w->args->states.shape);
    return room > 2 * DELTA_MAX_HEADS * 4 ? room : 2 * DELTA_MAX_HEADS * 4;
}

SIMT_INLINE struct convolve convolve_of(const struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t stride = w->args->buffers.row_floats;
    SIMT_GLOBAL float *x = walk_row(w, op->in, 0) + op->out_col[0];
    return (struct convolve){
        .r = {.states = &w->args->states,
              .step = w->step,
              .guard = &w->guard,
              .in = x,
              .out = x,
              .in_stride = stride,
              .out_stride = stride,
              .n_rows = w->n_rows,
              .layer = op->layer,
              .n_units = delta_n_heads(&w->args->states.shape),
              .room = (SIMT_SHARED char *)walk_work(w) + simt_warp() * convolve_room_bytes(w)},
        .taps = walk_vector(w, op->weight[0]),
        .eps = op->eps,
    };
}

/* The gates of a row, by one warp. */
SIMT_INLINE void convolve_gates(const struct walk *w, uint32_t row)
{
    const struct delta_shape *s = &w->args->states.shape;
    uint32_t n = s->n_value_heads;
    SIMT_SHARED float *copy =
        (SIMT_SHARED float *)((SIMT_SHARED char *)walk_work(w) + simt_warp() * convolve_room_bytes(w));
    SIMT_GLOBAL float *x = walk_row(w, w->op->in, row) + w->op->out_col[1];
    const SIMT_GLOBAL float *decay = walk_vector(w, w->op->weight[1]), *dt = walk_vector(w, w->op->bias[0]);
    bool together = w->op->flags & PROGRAM_TOGETHER;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < 2 * n; i += SIMT_LANES)
        copy[i] = x[i];
    simt_syncwarp();
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < n; i += SIMT_LANES) {
        uint32_t at = together ? delta_together(s, i) : i;
        x[i] = arith_sigmoid(copy[at]);
        x[n + i] = delta_decay(decay[i], copy[at + (together ? delta_share(s) : n)] + dt[i]);
    }
    simt_syncwarp(); /* all lanes have read the copy */
}

SIMT_INLINE bool convolve_op(struct walk *w)
{
    struct convolve c = convolve_of(w);
    uint32_t n_blocks = simt_n_blocks(), n_warps = w->args->shared.work_bytes / convolve_room_bytes(w);
    n_warps = n_warps < w->crew.n_warps ? n_warps : w->crew.n_warps;
    bool works = simt_warp() < n_warps;
    bool more = works && recurrent_open(&c.r, simt_warp() * n_blocks + simt_block());
    if (more)
        convolve_fetch(&c);
    bool go = walk_wait(w);
    while (go && more) {
        convolve_run(true, &c);
        more = recurrent_seek(&c.r, n_warps * n_blocks);
        if (more)
            convolve_fetch(&c);
    }
    simt_cp_async_wait(0); /* a block must end with no copy under way */
    simt_syncwarp();       /* all lanes have done the unit, whose room the gates take */
    SIMT_SMALL_LOOP
    for (uint32_t row = simt_warp() * n_blocks + n_blocks - 1 - simt_block(); go && works && row < w->n_rows;
         row += n_warps * n_blocks)
        convolve_gates(w, row);
    return go;
}
