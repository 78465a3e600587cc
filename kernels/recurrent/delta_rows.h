/* delta_rows.h - the delta net (abi/delta.h): a group's rows through some columns of a value head's state,
 * which lie in shared memory from the first row to the last.
 *
 *   in     [rows][in_stride] f32, 16-byte aligned: queries, keys and values of all heads, prepared
 *   gates  [rows][gate_stride] f32: beta of every value head, then every decay
 *   out    [rows][out_stride] f32: the values
 *
 * A unit (units.h) is DELTA_NET_COLUMNS columns of a head. Each of its columns has DELTA_CHAINS lanes: lane c
 * * 8 + j has chain c of column j, so the sums over key_dim are a lane's own, and two exchanges join them in
 * the order of delta_join(). A lane's elements of the state lie 32 floats apart in the warp's room, so that
 * it keeps no more than a few of them in registers. State, queries and keys are copied there (cp.async) in 16
 * bytes, the rows' one row ahead.
 *
 *   delta_fetch()  begins to copy the unit's state, which only this unit writes in the step
 *   delta_run()    advances it by all rows of the group
 *
 * Floor: a state is read and written once a group, 8 bytes a float; 4 bytes a value of in and out. Must match
 * delta_head(): tests/simt/recurrent/recurrent.c. Thread: all lanes of a warp, with the same arguments. */
#pragma once
#include "units.h"

#define DELTA_STEPS 4 /* key_dim, a multiple of 16, has as many elements of each chain, or a multiple */
_Static_assert(DELTA_NET_COLUMNS *DELTA_CHAINS == SIMT_LANES && DELTA_COLUMNS % DELTA_NET_COLUMNS == 0,
               "a warp's columns lie together");
_Static_assert(DELTA_COLUMNS % (DELTA_CHAINS * DELTA_STEPS) == 0, "whole turns");

struct delta_net {
    struct recurrent r;
    const SIMT_GLOBAL float *gates;
    uint32_t gate_stride; /* floats */
};

SIMT_INLINE const struct delta_shape *delta_shape_of(const struct delta_net *n)
{
    return &n->r.states->shape;
}

/* Queries, then keys, of the row, [2][key_dim]. */
SIMT_INLINE SIMT_SHARED float *delta_row_room(const struct delta_net *n, uint32_t row)
{
    return (SIMT_SHARED float *)(n->r.room + DELTA_UNIT_BYTES) + row % 2 * 2 * delta_shape_of(n)->key_dim;
}

/* [key_dim][DELTA_NET_COLUMNS] */
SIMT_INLINE SIMT_SHARED float *delta_state_room(const struct delta_net *n)
{
    return (SIMT_SHARED float *)(n->r.room + DELTA_UNIT_BYTES) + 4 * delta_shape_of(n)->key_dim;
}

/* --- units --- */

SIMT_INLINE uint32_t delta_n_units(const struct delta_shape *s)
{
    return s->n_value_heads * (s->value_dim / DELTA_NET_COLUMNS);
}

SIMT_INLINE uint32_t delta_head_of(const struct delta_net *n)
{
    return recurrent_unit(&n->r)->at / (delta_shape_of(n)->value_dim / DELTA_NET_COLUMNS);
}

/* The head's first column that the warp has. */
SIMT_INLINE uint32_t delta_column_of(const struct delta_net *n)
{
    return recurrent_unit(&n->r)->at % (delta_shape_of(n)->value_dim / DELTA_NET_COLUMNS) * DELTA_NET_COLUMNS;
}

/* --- state --- */

/* The warp's columns in state `number`; those of the next element of key_dim lie DELTA_COLUMNS floats behind.
 */
SIMT_INLINE SIMT_GLOBAL float *delta_columns(const struct delta_net *n, uint32_t number)
{
    const struct delta_shape *s = delta_shape_of(n);
    uint32_t column = delta_column_of(n);
    return state_at(n->r.states, number, n->r.layer) + delta_mix_floats(s) +
           delta_head_of(n) * delta_head_floats(s) +
           (size_t)(column / DELTA_COLUMNS) * s->key_dim * DELTA_COLUMNS + column % DELTA_COLUMNS;
}

/* Where 16 bytes of the room lie in delta_columns(). */
SIMT_INLINE uint32_t delta_chunk_at(uint32_t chunk)
{
    return chunk / 2 * DELTA_COLUMNS + chunk % 2 * 4;
}
_Static_assert(DELTA_NET_COLUMNS == 2 * 4, "two chunks for each element of key_dim");

/* Begins to copy the unit's state; no lane reads the one before any more. */
SIMT_INLINE void delta_fetch(const struct delta_net *n)
{
    const SIMT_SHARED struct recurrent_unit *u = recurrent_unit(&n->r);
    SIMT_SHARED float *to = delta_state_room(n);
    const SIMT_GLOBAL float *from = delta_columns(n, u->source);
    bool begins = u->begins;
    const simt_u4 zeros = {0, 0, 0, 0};
    for (uint32_t i = simt_lane(); i < 2 * delta_shape_of(n)->key_dim; i += SIMT_LANES) {
        if (begins)
            ((SIMT_SHARED simt_u4 *)to)[i] = zeros;
        else
            simt_cp_async16(to + 4 * i, from + delta_chunk_at(i));
    }
    simt_cp_async_commit();
}

/* Copies the unit's state to state `number`. The warp must meet before a lane changes the state. */
SIMT_INLINE void delta_keep(const struct delta_net *n, uint32_t number)
{
    const SIMT_SHARED simt_u4 *from = (const SIMT_SHARED simt_u4 *)delta_state_room(n);
    SIMT_GLOBAL float *to = delta_columns(n, number);
    simt_syncwarp(); /* all lanes have written theirs */
    for (uint32_t i = simt_lane(); i < 2 * delta_shape_of(n)->key_dim; i += SIMT_LANES)
        *(SIMT_GLOBAL simt_u4 *)(to + delta_chunk_at(i)) = from[i];
}

/* --- rows --- */

/* Begins to copy a row's query and key. */
SIMT_INLINE void delta_ask(const struct delta_net *n, uint32_t row)
{
    const struct delta_shape *s = delta_shape_of(n);
    uint32_t key_dim = s->key_dim, apart = (s->n_key_heads - 1) * key_dim;
    SIMT_SHARED float *to = delta_row_room(n, row);
    const SIMT_GLOBAL float *from =
        n->r.in + (size_t)row * n->r.in_stride + delta_head_begin(s, delta_key_head(s, delta_head_of(n)));
    for (uint32_t i = simt_lane() * 4; i < 2 * key_dim; i += SIMT_LANES * 4)
        simt_cp_async16(to + i, from + (i < key_dim ? 0 : apart) + i);
    simt_cp_async_commit();
}

/* What a lane reads of a row besides. */
struct delta_scalars {
    float v, beta, decay;
};

SIMT_INLINE struct delta_scalars delta_load(const struct delta_net *n, uint32_t row)
{
    const struct delta_shape *s = delta_shape_of(n);
    uint32_t head = delta_head_of(n), column = delta_column_of(n) + simt_lane() % DELTA_NET_COLUMNS;
    const SIMT_GLOBAL float *gates = n->gates + (size_t)row * n->gate_stride + head;
    return (struct delta_scalars){
        .v = n->r.in[(size_t)row * n->r.in_stride + delta_head_begin(s, 2 * s->n_key_heads + head) + column],
        .beta = gates[0],
        .decay = gates[s->n_value_heads]};
}

/* (c0 + c2) + (c1 + c3) in each of a column's lanes. */
SIMT_INLINE float delta_join_lanes(float v)
{
    v = v + simt_shfl_xor_f32(v, 2 * DELTA_NET_COLUMNS);
    return v + simt_shfl_xor_f32(v, DELTA_NET_COLUMNS);
}

/* n elements of the lane's chain. */
SIMT_INLINE float delta_know(const SIMT_SHARED float *state, const SIMT_SHARED float *k, const uint32_t n,
                             float known)
{
#pragma unroll
    for (uint32_t j = 0; j < n; j++)
        known = __builtin_fmaf(state[j * SIMT_LANES], k[j * DELTA_CHAINS], known);
    return known;
}

SIMT_INLINE float delta_change(SIMT_SHARED float *state, const SIMT_SHARED float *q,
                               const SIMT_SHARED float *k, const uint32_t n, float d, float decay, float o)
{
    float key[2 * DELTA_STEPS], query[2 * DELTA_STEPS],
        now[2 * DELTA_STEPS]; /* all loads before the stores */
#pragma unroll
    for (uint32_t j = 0; j < n; j++) {
        now[j] = state[j * SIMT_LANES];
        key[j] = k[j * DELTA_CHAINS];
        query[j] = q[j * DELTA_CHAINS];
    }
#pragma unroll
    for (uint32_t j = 0; j < n; j++) {
        now[j] = __builtin_fmaf(key[j], d, decay * now[j]);
        state[j * SIMT_LANES] = now[j];
        o = __builtin_fmaf(now[j], query[j], o);
    }
    return o;
}

/* Advances the lane's chain by one row; returns the output of its column. */
SIMT_INLINE float delta_row(const struct delta_net *n, uint32_t row, struct delta_scalars x)
{
    uint32_t key_dim = delta_shape_of(n)->key_dim, n_steps = key_dim / DELTA_CHAINS, i = 0;
    SIMT_SHARED float *state = delta_state_room(n) + simt_lane();
    const SIMT_SHARED float *q = delta_row_room(n, row) + simt_lane() / DELTA_NET_COLUMNS, *k = q + key_dim;
    float known = 0.0f, o = 0.0f;
    SIMT_SMALL_LOOP
    for (; i + 2 * DELTA_STEPS <= n_steps; i += 2 * DELTA_STEPS)
        known = delta_know(state + i * SIMT_LANES, k + i * DELTA_CHAINS, 2 * DELTA_STEPS, known);
    if (i < n_steps)
        known = delta_know(state + i * SIMT_LANES, k + i * DELTA_CHAINS, DELTA_STEPS, known);
    float d = x.beta * __builtin_fmaf(-x.decay, delta_join_lanes(known), x.v);
    SIMT_SMALL_LOOP
    for (i = 0; i + 2 * DELTA_STEPS <= n_steps; i += 2 * DELTA_STEPS)
        o = delta_change(state + i * SIMT_LANES, q + i * DELTA_CHAINS, k + i * DELTA_CHAINS, 2 * DELTA_STEPS,
                         d, x.decay, o);
    if (i < n_steps)
        o = delta_change(state + i * SIMT_LANES, q + i * DELTA_CHAINS, k + i * DELTA_CHAINS, DELTA_STEPS, d,
                         x.decay, o);
    return delta_join_lanes(o);
}

/* Keeps the states that the step asks for behind the row. */
SIMT_INLINE void delta_save(const struct delta_net *n, uint32_t row)
{
    uint32_t op = 0, to;
    while ((to = state_next_save(n->r.states, n->r.step, row, &op, n->r.guard)) != STATE_NONE)
        delta_keep(n, to);
}

/* Advances the unit, whose state is being fetched, by its group's rows. */
SIMT_INLINE void delta_run(const struct delta_net *n)
{
    const SIMT_SHARED struct recurrent_unit *u = recurrent_unit(&n->r);
    uint32_t row = u->first;
    struct delta_scalars now = delta_load(n, row), next = now;
    delta_ask(n, row);
    for (;; row++) {
        bool more = row + 1 < u->end;
        simt_cp_async_wait(0);
        simt_syncwarp(); /* all lanes' copies have landed, and all have read the row before the last */
        if (more) {
            delta_ask(n, row + 1);
            next = delta_load(n, row + 1);
        }
        float o = delta_row(n, row, now);
        if (simt_lane() < DELTA_NET_COLUMNS)
            n->r.out[(size_t)row * n->r.out_stride + delta_head_of(n) * delta_shape_of(n)->value_dim +
                     delta_column_of(n) + simt_lane()] = o;
        if (u->saves)
            delta_save(n, row);
        if (!more)
            break;
        now = next;
    }
    delta_keep(n, u->slot);
}
