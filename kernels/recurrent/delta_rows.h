/* delta_rows.h - the delta net (abi/delta.h): a group's rows through some columns of a value head's state,
 * which stay in registers from the first row to the last.
 *
 *   in     [rows][stride] f32: queries, keys and values of all heads, prepared
 *   gates  [rows][stride] f32: beta of every value head, then every decay
 *   out    [rows][stride] f32: the values
 *
 * A warp has DELTA_NET_COLUMNS columns, each DELTA_CHAINS lanes: lane c * 8 + j has chain c of column j, so
 * the sums over key_dim are a lane's own, and two exchanges join them in the order of delta_join(). Eight
 * adjacent lanes read 32 bytes of the state. Floor: a state is read and written once a group, 8 bytes a
 * float; 4 bytes a value of in and out. Must match delta_head(): tests/simt/recurrent/recurrent.c.
 * Thread: all lanes of a warp, with the same arguments. */
#pragma once
#include "state.h"

#define DELTA_NET_COLUMNS 8
#define DELTA_SHORT       128u /* key_dim that half of the registers hold */
_Static_assert(DELTA_NET_COLUMNS *DELTA_CHAINS == SIMT_LANES && DELTA_COLUMNS % DELTA_NET_COLUMNS == 0,
               "a warp's columns lie together");

struct delta_rows {
    const SIMT_GLOBAL float *q, *k, *v, *beta, *decay; /* of row 0, of the head and column */
    SIMT_GLOBAL float *out;
    uint32_t in_stride, gate_stride, out_stride; /* floats */
};

/* The place of this lane's column of a head in a layer's state; element i of its chain lies
 * DELTA_CHAINS * DELTA_COLUMNS * i floats behind. */
SIMT_INLINE size_t delta_lane_at(const struct delta_shape *s, uint32_t head, uint32_t column)
{
    uint32_t chain = simt_lane() / DELTA_NET_COLUMNS;
    return delta_mix_floats(s) + head * delta_head_floats(s) +
           (size_t)(column / DELTA_COLUMNS) * s->key_dim * DELTA_COLUMNS + chain * DELTA_COLUMNS +
           column % DELTA_COLUMNS;
}

/* (c0 + c2) + (c1 + c3) in each of a column's lanes. */
SIMT_INLINE float delta_join_lanes(float v)
{
    v = v + simt_shfl_xor_f32(v, 2 * DELTA_NET_COLUMNS);
    return v + simt_shfl_xor_f32(v, DELTA_NET_COLUMNS);
}

/* True if element i of a chain exists; four elements share the answer, as key_dim is a multiple of 16. */
SIMT_INLINE bool delta_has(uint32_t i, uint32_t key_dim)
{
    return i / 4 * 16 < key_dim;
}

SIMT_INLINE void delta_keep(SIMT_GLOBAL float *at, const float *state, uint32_t key_dim, const uint32_t most)
{
#pragma unroll
    for (uint32_t i = 0; i < most; i++)
        if (delta_has(i, key_dim))
            at[i * DELTA_CHAINS * DELTA_COLUMNS] = state[i];
}

/* One row; returns the output of the lane's column. */
SIMT_INLINE float delta_row(float *state, const SIMT_GLOBAL float *q, const SIMT_GLOBAL float *k, float v,
                            float beta, float decay, uint32_t key_dim, const uint32_t most)
{
    float known = 0.0f, o = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < most; i++)
        if (delta_has(i, key_dim))
            known = __builtin_fmaf(state[i], k[i * DELTA_CHAINS], known);
    float d = beta * __builtin_fmaf(-decay, delta_join_lanes(known), v);
#pragma unroll
    for (uint32_t i = 0; i < most; i++)
        if (delta_has(i, key_dim)) {
            state[i] = __builtin_fmaf(k[i * DELTA_CHAINS], d, decay * state[i]);
            o = __builtin_fmaf(state[i], q[i * DELTA_CHAINS], o);
        }
    return delta_join_lanes(o);
}

/* A group's rows; `at`: of this lane's column in a layer's state. most: key_dim / DELTA_CHAINS is not above.
 */
SIMT_INLINE void delta_scan_some(const struct decoder_states *s, const struct state_group *g,
                                 const SIMT_GLOBAL struct step *step, uint32_t n_rows, uint32_t layer,
                                 size_t at, const struct delta_rows *rows, const struct flow_guard *guard,
                                 const uint32_t most)
{
    uint32_t key_dim = s->shape.key_dim, chain = simt_lane() / DELTA_NET_COLUMNS;
    const SIMT_GLOBAL float *from = state_at(s, g->source, layer) + at;
    float state[DELTA_MAX_DIM / DELTA_CHAINS];
#pragma unroll
    for (uint32_t i = 0; i < most; i++)
        state[i] = delta_has(i, key_dim) && !g->begins ? from[i * DELTA_CHAINS * DELTA_COLUMNS] : 0.0f;
    for (uint32_t row = g->first;; row++) {
        size_t in = (size_t)row * rows->in_stride, gate = (size_t)row * rows->gate_stride;
        float o = delta_row(state, rows->q + in + chain, rows->k + in + chain, rows->v[in], rows->beta[gate],
                            rows->decay[gate], key_dim, most);
        if (chain == 0)
            rows->out[(size_t)row * rows->out_stride] = o;
        uint32_t op = 0, to;
        while ((to = state_next_save(s, step, row, &op, guard)) != STATE_NONE)
            delta_keep(state_at(s, to, layer) + at, state, key_dim, most);
        if (!state_goes_on(step, n_rows, row))
            break;
    }
    delta_keep(state_at(s, g->slot, layer) + at, state, key_dim, most);
}

SIMT_INLINE void delta_scan(const struct decoder_states *s, const struct state_group *g,
                            const SIMT_GLOBAL struct step *step, uint32_t n_rows, uint32_t layer, size_t at,
                            const struct delta_rows *rows, const struct flow_guard *guard)
{
    if (s->shape.key_dim <= DELTA_SHORT)
        delta_scan_some(s, g, step, n_rows, layer, at, rows, guard, DELTA_SHORT / DELTA_CHAINS);
    else
        delta_scan_some(s, g, step, n_rows, layer, at, rows, guard, DELTA_MAX_DIM / DELTA_CHAINS);
}
