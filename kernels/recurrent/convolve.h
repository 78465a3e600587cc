/* convolve.h - the convolution of a recurrent layer (abi/delta.h): one channel of a group's rows, from the
 * first to the last, with the rows before it in registers.
 *   in, out  [rows][stride] f32, the channel's column; in == out is allowed: a row is read before its output
 *            is written, and no other channel reads it
 *   taps     [n_taps] f32 of the channel, the row's own last
 * Floor: 8 bytes a row and channel; once a group (n_taps - 1) * 8 bytes of its state and n_taps * 4 of taps.
 * The next row is asked for before a row's sum. Must match delta_convolve() of lib/cpu/delta_net.c in every
 * bit: tests/simt/recurrent/recurrent.c. Thread: one per (group, channel). */
#pragma once
#include "state.h"

struct convolve_rows {
    const SIMT_GLOBAL float *in;
    SIMT_GLOBAL float *out;
    uint32_t in_stride, out_stride; /* floats */
};

/* A channel's rows before the convolution, in a layer's state: [n_taps - 1], `width` apart. */
SIMT_INLINE uint32_t convolve_mix_at(const struct delta_shape *s, uint32_t channel, uint32_t *width)
{
    uint32_t keys = 2 * delta_key_width(s);
    bool is_key = channel < keys;
    *width = is_key ? s->key_dim : s->value_dim;
    uint32_t in_head = (is_key ? channel : channel - keys) % *width;
    return (channel - in_head) * (s->n_taps - 1) + in_head;
}

/* The last rows, oldest first; the entries before DELTA_MAX_TAPS - n_taps are not used, so that every index
 * is a constant. */
struct convolve_window {
    float x[DELTA_MAX_TAPS - 1], taps[DELTA_MAX_TAPS];
    uint32_t unused, width;
};

SIMT_INLINE void convolve_keep(const struct convolve_window *w, SIMT_GLOBAL float *mix)
{
#pragma unroll
    for (uint32_t j = 0; j < DELTA_MAX_TAPS - 1; j++)
        if (j >= w->unused)
            mix[(j - w->unused) * w->width] = w->x[j];
}

SIMT_INLINE void convolve_open(struct convolve_window *w, const SIMT_GLOBAL float *taps,
                               const SIMT_GLOBAL float *mix, bool begins)
{
#pragma unroll
    for (uint32_t j = 0; j < DELTA_MAX_TAPS; j++) {
        w->taps[j] = j >= w->unused ? taps[j - w->unused] : 0.0f;
        if (j < DELTA_MAX_TAPS - 1)
            w->x[j] = j >= w->unused && !begins ? mix[(j - w->unused) * w->width] : 0.0f;
    }
}

/* The output of the next row; the window moves on. */
SIMT_INLINE float convolve_next(struct convolve_window *w, float x)
{
    float sum = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < DELTA_MAX_TAPS; j++) {
        float m = j < DELTA_MAX_TAPS - 1 ? w->x[j] : x;
        if (j >= w->unused)
            sum = __builtin_fmaf(w->taps[j], m, sum);
        if (j > 0)
            w->x[j - 1] = m;
    }
    return sum;
}

SIMT_INLINE void convolve_channel(const struct decoder_states *s, const struct state_group *g,
                                  const SIMT_GLOBAL struct step *step, uint32_t n_rows, uint32_t layer,
                                  uint32_t channel, const SIMT_GLOBAL float *taps,
                                  const struct convolve_rows *rows, const struct flow_guard *guard)
{
    struct convolve_window w = {.unused = DELTA_MAX_TAPS - s->shape.n_taps};
    uint32_t at = convolve_mix_at(&s->shape, channel, &w.width);
    convolve_open(&w, taps, state_at(s, g->source, layer) + at, g->begins);
    float next = rows->in[(size_t)g->first * rows->in_stride];
    for (uint32_t row = g->first;; row++) {
        float x = next;
        bool more = state_goes_on(step, n_rows, row);
        if (more)
            next = rows->in[(size_t)(row + 1) * rows->in_stride];
        rows->out[(size_t)row * rows->out_stride] = convolve_next(&w, x);
        uint32_t op = 0, to;
        while ((to = state_next_save(s, step, row, &op, guard)) != STATE_NONE)
            convolve_keep(&w, state_at(s, to, layer) + at);
        if (!more)
            break;
    }
    convolve_keep(&w, state_at(s, g->slot, layer) + at);
}
