/* clang-format off */
/* delta.h - gated delta nets (Yang, Kautz, Hatamizadeh 2024): the recurrent layers of Qwen 3.5 and Qwen 3 Next.
 *
 * A row has the channels of n_key_heads queries, as many keys, and n_value_heads values, in this order. A causal
 * convolution of n_taps rows runs over each channel. Every value head has a state of key_dim x value_dim floats,
 * zero before position 0, that one row after another changes; no rule depends on how rows are cut into steps.
 * The state of a layer is
 *
 *   mix    [heads of q, k and v][n_taps - 1][dim]         the last rows before the convolution, oldest first
 *   heads  [n_value_heads][value_dim / 16][key_dim][16]   16 columns of a head lie together
 *
 * The formulas and the order of the sums stand in arith.h; delta_head() is their reference for one head and row.
 * Units: floats. Thread: any, host or device; pure functions but for the state that they are given. */
/* clang-format on */
#pragma once
#include "arith.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DELTA_COLUMNS   16 /* of a head's state that lie together */
#define DELTA_CHAINS    4  /* of the sums over key_dim */
#define DELTA_MAX_DIM   256
#define DELTA_MAX_TAPS  8
#define DELTA_MAX_HEADS 256 /* of values */

#define DELTA_NET_COLUMNS 8  /* columns of a head that a warp of a device advances */
#define DELTA_UNIT_BYTES  32 /* struct recurrent_unit of kernels/recurrent/units.h */
#define DELTA_AHEAD       3  /* rows that a warp of a device copies before it convolves them */

struct delta_shape {
    uint32_t n_key_heads, n_value_heads; /* n_key_heads divides n_value_heads, up to DELTA_MAX_HEADS */
    uint32_t key_dim, value_dim;         /* multiples of DELTA_COLUMNS, up to DELTA_MAX_DIM */
    uint32_t n_taps;                     /* 2..DELTA_MAX_TAPS */
    bool adjacent;                       /* adjacent value heads share a key head: delta_key_head() */
};

static inline uint32_t delta_key_head(const struct delta_shape *s, uint32_t value_head)
{
    return s->adjacent ? value_head / (s->n_value_heads / s->n_key_heads) : value_head % s->n_key_heads;
}

static inline uint32_t delta_key_width(const struct delta_shape *s)
{
    return s->n_key_heads * s->key_dim;
}

static inline uint32_t delta_value_width(const struct delta_shape *s)
{
    return s->n_value_heads * s->value_dim;
}

static inline uint32_t delta_channels(const struct delta_shape *s)
{
    return 2 * delta_key_width(s) + delta_value_width(s);
}

static inline size_t delta_mix_floats(const struct delta_shape *s)
{
    return (size_t)(s->n_taps - 1) * delta_channels(s);
}

static inline size_t delta_head_floats(const struct delta_shape *s)
{
    return (size_t)s->key_dim * s->value_dim;
}

/* Heads of queries, keys and values, in this order: the first channel of a head, and the number of them. */
static inline uint32_t delta_n_heads(const struct delta_shape *s)
{
    return 2 * s->n_key_heads + s->n_value_heads;
}

static inline uint32_t delta_head_begin(const struct delta_shape *s, uint32_t head)
{
    uint32_t keys = 2 * s->n_key_heads;
    return head < keys ? head * s->key_dim : keys * s->key_dim + (head - keys) * s->value_dim;
}

static inline uint32_t delta_head_width(const struct delta_shape *s, uint32_t head)
{
    return head < 2 * s->n_key_heads ? s->key_dim : s->value_dim;
}

/* The column of value head i's b in a product that holds, for each key head, the b of its value heads, then
 * their alphas, delta_share() behind. */
static inline uint32_t delta_share(const struct delta_shape *s)
{
    return s->n_value_heads / s->n_key_heads;
}

static inline uint32_t delta_together(const struct delta_shape *s, uint32_t i)
{
    return i / delta_share(s) * 2 * delta_share(s) + i % delta_share(s);
}

/* Floats of the state of one layer. */
static inline size_t delta_state_floats(const struct delta_shape *s)
{
    return delta_mix_floats(s) + s->n_value_heads * delta_head_floats(s);
}

/* Bytes of shared memory of a device's warp that advances columns: their state, and two rows' queries and
 * keys. */
static inline uint32_t delta_room_bytes(const struct delta_shape *s)
{
    return DELTA_UNIT_BYTES + s->key_dim * (DELTA_NET_COLUMNS + 4) * (uint32_t)sizeof(float);
}

static inline uint32_t delta_widest(const struct delta_shape *s)
{
    return s->key_dim > s->value_dim ? s->key_dim : s->value_dim;
}

/* Rows for which a warp that convolves a head has room, a power of two. */
static inline uint32_t delta_ring(const struct delta_shape *s)
{
    return s->n_taps + DELTA_AHEAD > 8 ? 16 : 8;
}

/* Bytes of shared memory of such a warp: these rows, the taps and an output. */
static inline uint32_t delta_convolve_bytes(const struct delta_shape *s)
{
    return DELTA_UNIT_BYTES + delta_widest(s) * (delta_ring(s) + s->n_taps + 1) * (uint32_t)sizeof(float);
}

/* e^(a softplus(x)), as 2^(a log2(1 + e^x)): the decay of a head; a < 0. */
static inline float delta_decay(float a, float x)
{
    float u = x * ARITH_LOG2E;
    return arith_exp2(a * (u > 24.0f ? u : arith_log2(1.0f + arith_exp2(u))));
}

/* The factors of a query and of a key whose 1/rms, with eps / key_dim in place of eps, is r: both become of
 * length 1, the query then is divided by sqrt(key_dim). */
static inline float delta_query_factor(const struct delta_shape *s, float r)
{
    return r * (1.0f / (float)s->key_dim);
}

static inline float delta_key_factor(const struct delta_shape *s, float r)
{
    return r * (1.0f / __builtin_sqrtf((float)s->key_dim));
}

/* Adds up the chains of a sum over key_dim. */
static inline float delta_join(const float c[DELTA_CHAINS])
{
    return (c[0] + c[2]) + (c[1] + c[3]);
}

/* Changes a head's state by one row and computes out[value_dim]. */
static inline void delta_head(const struct delta_shape *s, float *state, const float *q, const float *k,
                              const float *v, float beta, float decay, float *out)
{
    for (uint32_t j = 0; j < s->value_dim; j++) {
        float *column = state + (size_t)(j / DELTA_COLUMNS) * s->key_dim * DELTA_COLUMNS + j % DELTA_COLUMNS;
        float c[DELTA_CHAINS] = {0}, o[DELTA_CHAINS] = {0};
        for (uint32_t i = 0; i < s->key_dim; i++)
            c[i % DELTA_CHAINS] =
                __builtin_fmaf(column[(size_t)i * DELTA_COLUMNS], k[i], c[i % DELTA_CHAINS]);
        float d = beta * __builtin_fmaf(-decay, delta_join(c), v[j]);
        for (uint32_t i = 0; i < s->key_dim; i++) {
            float *at = &column[(size_t)i * DELTA_COLUMNS];
            *at = __builtin_fmaf(k[i], d, decay * *at);
            o[i % DELTA_CHAINS] = __builtin_fmaf(*at, q[i], o[i % DELTA_CHAINS]);
        }
        out[j] = delta_join(o);
    }
}
