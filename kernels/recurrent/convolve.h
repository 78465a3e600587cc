/* convolve.h - the convolution of a recurrent layer (abi/delta.h): the channels of a head through a group's
 * rows, from the first to the last.
 *   in, out  [rows][stride] f32; in == out is allowed: a row is read before its output is written, and no
 *            other head reads it
 *   taps     [channels][n_taps] f32, a row's own last
 * With `whole`, a constant, silu of the outputs follows, and heads of queries and keys get their length
 * (eps, arith.h); so a layer's heads are prepared in one pass.
 *
 * A unit (units.h) is a head; lane l has its channels l, l + 32, ... The last rows lie in a ring in the
 * warp's room, where rows to come are copied (cp.async), DELTA_AHEAD before their turn; the taps beside them.
 *
 *   convolve_fetch()  begins to copy what no op of this step writes: taps, and the rows before the group's
 *   convolve_run()    does the unit
 *
 * Floor: 8 bytes a row and channel; once a group (n_taps - 1) * 8 bytes of its state and n_taps * 4 of taps.
 * Must match delta_convolve() and delta_activate_head() of lib/cpu/delta_net.c in every bit:
 * tests/simt/recurrent/recurrent.c. Thread: all lanes of a warp, with the same arguments. */
#pragma once
#include "device/lanes.h"
#include "units.h"

struct convolve {
    struct recurrent r;
    const SIMT_GLOBAL float *taps;
    float eps;
};

SIMT_INLINE const struct delta_shape *convolve_shape(const struct convolve *c)
{
    return &c->r.states->shape;
}

SIMT_INLINE uint32_t convolve_width(const struct convolve *c)
{
    return delta_head_width(convolve_shape(c), recurrent_unit(&c->r)->at);
}

/* The ring's place of a group's row `row`, counted from its first; older ones are negative. [width] */
SIMT_INLINE SIMT_SHARED float *convolve_row(const struct convolve *c, int32_t row)
{
    uint32_t at = (uint32_t)row & (delta_ring(convolve_shape(c)) - 1);
    return (SIMT_SHARED float *)(c->r.room + DELTA_UNIT_BYTES) + at * convolve_width(c);
}

/* [width][n_taps] */
SIMT_INLINE SIMT_SHARED float *convolve_taps(const struct convolve *c)
{
    return (SIMT_SHARED float *)(c->r.room + DELTA_UNIT_BYTES) +
           delta_ring(convolve_shape(c)) * convolve_width(c);
}

/* [width]: the row's outputs before their length is known; each lane has its own. */
SIMT_INLINE SIMT_SHARED float *convolve_stage(const struct convolve *c)
{
    return convolve_taps(c) + convolve_shape(c)->n_taps * convolve_width(c);
}

/* The head's rows before the convolution in state `number`: [n_taps - 1][width]. */
SIMT_INLINE SIMT_GLOBAL float *convolve_mix(const struct convolve *c, uint32_t number)
{
    const struct delta_shape *s = convolve_shape(c);
    return state_at(c->r.states, number, c->r.layer) +
           delta_head_begin(s, recurrent_unit(&c->r)->at) * (s->n_taps - 1);
}

/* Begins to copy n floats, a multiple of 4. */
SIMT_INLINE void convolve_copy(SIMT_SHARED float *to, const SIMT_GLOBAL float *from, uint32_t n)
{
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane() * 4; i < n; i += SIMT_LANES * 4)
        simt_cp_async16(to + i, from + i);
}

/* No lane reads the unit before any more. */
SIMT_INLINE void convolve_fetch(const struct convolve *c)
{
    const struct delta_shape *s = convolve_shape(c);
    const SIMT_SHARED struct recurrent_unit *u = recurrent_unit(&c->r);
    uint32_t width = convolve_width(c);
    convolve_copy(convolve_taps(c), c->taps + delta_head_begin(s, u->at) * s->n_taps, width * s->n_taps);
    SIMT_SMALL_LOOP
    for (uint32_t j = 0; j + 1 < s->n_taps; j++) {
        SIMT_SHARED float *to = convolve_row(c, (int32_t)j - (int32_t)s->n_taps + 1);
        if (!u->begins) {
            convolve_copy(to, convolve_mix(c, u->source) + j * width, width);
            continue;
        }
        SIMT_SMALL_LOOP
        for (uint32_t i = simt_lane(); i < width; i += SIMT_LANES)
            to[i] = 0.0f;
    }
    simt_cp_async_commit();
}

/* Copies the rows before row `end` of the group to state `number`. */
SIMT_INLINE void convolve_keep(const struct convolve *c, int32_t end, uint32_t number)
{
    SIMT_GLOBAL float *to = convolve_mix(c, number);
    uint32_t width = convolve_width(c), n_old = convolve_shape(c)->n_taps - 1;
    SIMT_SMALL_LOOP
    for (uint32_t j = 0; j < n_old; j++) {
        const SIMT_SHARED float *from = convolve_row(c, end - (int32_t)n_old + (int32_t)j);
        SIMT_SMALL_LOOP
        for (uint32_t i = simt_lane(); i < width; i += SIMT_LANES)
            to[j * width + i] = from[i];
    }
}

/* Begins to copy row `row` of the group, if there is one. Each call commits one group of copies. */
SIMT_INLINE void convolve_ask(const struct convolve *c, uint32_t row)
{
    const SIMT_SHARED struct recurrent_unit *u = recurrent_unit(&c->r);
    if (u->first + row < u->end)
        convolve_copy(convolve_row(c, (int32_t)row),
                      c->r.in + (size_t)(u->first + row) * c->r.in_stride +
                          delta_head_begin(convolve_shape(c), u->at),
                      convolve_width(c));
    simt_cp_async_commit();
}

/* The sum of channel `channel` of the head at row `row` of the group. */
SIMT_INLINE float convolve_sum(const struct convolve *c, int32_t row, uint32_t channel)
{
    uint32_t n_taps = convolve_shape(c)->n_taps;
    const SIMT_SHARED float *taps = convolve_taps(c) + channel * n_taps;
    float sum = 0.0f;
#pragma clang loop unroll_count(4)
    for (uint32_t j = 0; j < n_taps; j++)
        sum = __builtin_fmaf(taps[j], convolve_row(c, row - (int32_t)n_taps + 1 + (int32_t)j)[channel], sum);
    return sum;
}

/* Computes row `row` of the group. */
SIMT_INLINE void convolve_one(const bool whole, const struct convolve *c, uint32_t row)
{
    const struct delta_shape *s = convolve_shape(c);
    uint32_t head = recurrent_unit(&c->r)->at, width = convolve_width(c);
    SIMT_GLOBAL float *out =
        c->r.out + (size_t)(recurrent_unit(&c->r)->first + row) * c->r.out_stride + delta_head_begin(s, head);
    bool keyed = whole && head < 2 * s->n_key_heads;
    SIMT_SHARED float *stage = convolve_stage(c);
    float squares = 0.0f;
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < width; i += SIMT_LANES) {
        float y = convolve_sum(c, (int32_t)row, i);
        y = whole ? arith_silu(y) : y;
        if (keyed)
            stage[i] = y;
        else
            out[i] = y;
        squares = __builtin_fmaf(y, y, squares);
    }
    if (!keyed)
        return;
    float r = 1.0f / __builtin_sqrtf(lanes_sum(squares) / (float)width + c->eps / (float)width);
    float factor = head < s->n_key_heads ? delta_query_factor(s, r) : delta_key_factor(s, r);
    SIMT_SMALL_LOOP
    for (uint32_t i = simt_lane(); i < width; i += SIMT_LANES)
        out[i] = stage[i] * factor;
}

/* Does the unit, whose taps and older rows are being fetched. The copies that it leaves open copy nothing. */
SIMT_INLINE void convolve_run(const bool whole, const struct convolve *c)
{
    const SIMT_SHARED struct recurrent_unit *u = recurrent_unit(&c->r);
    uint32_t row = 0;
    SIMT_SMALL_LOOP
    for (uint32_t i = 0; i < DELTA_AHEAD; i++)
        convolve_ask(c, i);
    SIMT_SMALL_LOOP
    for (; u->first + row < u->end; row++) {
        simt_cp_async_wait(DELTA_AHEAD - 1);
        simt_syncwarp(); /* all lanes' copies of the row have landed, and all have done the row before */
        convolve_ask(c, row + DELTA_AHEAD);
        convolve_one(whole, c, row);
        uint32_t op = 0, to;
        if (u->saves)
            while ((to = state_next_save(c->r.states, c->r.step, u->first + row, &op, c->r.guard)) !=
                   STATE_NONE)
                convolve_keep(c, (int32_t)row + 1, to);
    }
    convolve_keep(c, (int32_t)row, u->slot);
}
