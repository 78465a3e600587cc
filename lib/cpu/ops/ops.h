/* clang-format off */
/* ops.h - all computations of a step besides matrix products, as one table per instruction set.
 * All tables give the same bits (kernels/abi/arith.h): ops_template.h is compiled once per instruction set
 * over a vector of 1, 8 or 16 floats.
 * Thread: any; all functions are pure. Memory: none is allocated. Errors: none.
 *
 * Order inside a KV tile on the cpu (kernels/abi/kv_layout.h leaves it to the backend), T = 16 tokens:
 *
 *   f16   keys    [64/T][head_dim][T]         a vector of tokens is multiplied by one element of q; the dimensions
 *                                             stand in the order in which the tree over lanes adds them (struct
 *                                             ops_order), so that they are read from front to back
 *         values  [64][head_dim]              a vector of dimensions is multiplied by one weight
 *   bf16  keys    [64/T][head_dim/2][T][2]    pairs of dimensions, as its rule adds them
 *         values  [32][head_dim][2]           pairs of tokens
 *   q8_0  keys    [64/T][quads][T][4]         four dimensions, 128 added to each; quads = ceil(head_dim / 4)
 *         values  [16][head_dim][4]           four tokens
 *         scales (f16), of both: [blocks][64], blocks = ceil(head_dim / 32)
 *
 * A q8_0 element is the result of arith_quantise() for its block (a short last block padded with zeros), with
 * the scale rounded to f16. */
/* clang-format on */
#pragma once
#include "abi/delta.h"
#include "abi/kv_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPS_MAX_HEAD_DIM 576 /* of deepseek2; a multiple of 32 */
#define OPS_MIN_PADDED   64  /* a q8_0 query has scales and sums for the longest head */

/* The row length, in floats, of queries and outputs: head_dim rounded up to 32s, at least OPS_MIN_PADDED. */
static inline uint32_t ops_padded(uint32_t head_dim)
{
    uint32_t whole = (head_dim + 31) / 32 * 32;
    return whole > OPS_MIN_PADDED ? whole : OPS_MIN_PADDED;
}

/* The order of the dimensions of keys: lane by lane (d % 32) in the order of the tree's leaves, d ascending
 * inside a lane. */
struct ops_order {
    uint16_t dims[OPS_MAX_HEAD_DIM];
    uint16_t start[33]; /* first index of each leaf's lane */
};
/* Fills the order for heads of head_dim values. */
void ops_order_set(struct ops_order *order, uint32_t head_dim);

/* The online softmax of one query over one split: maximum, sum and weighted values so far. */
struct ops_fold {
    float max, sum;
    float *out; /* [ops_padded(head_dim)], 64-byte aligned */
};

/* One page of one kv head, and a query that attends to it. */
struct ops_page {
    const struct kv_layout *kv;
    const struct ops_order *order;
    const uint8_t *keys, *values; /* tiles */
    const uint8_t *next;          /* the keys to prefetch, needed after this page; a hint */
    float cap;                    /* scores become arith_cap(score, cap); 0: they do not */
};
struct ops_query {
    const void *q; /* result of query() */
    struct ops_fold *fold;
    uint32_t first;    /* it sees tokens [first, n_tokens) of the page, */
    uint32_t n_tokens; /* 1..64 */
};

/* A value head of a gated delta net and consecutive rows of a sequence (kernels/abi/delta.h). Pointers are
 * those of the first row. */
struct ops_delta {
    uint32_t key_dim, value_dim, n_rows;
    float *state;              /* [value_dim / DELTA_COLUMNS][key_dim][DELTA_COLUMNS] */
    const float *q, *k, *v;    /* floats from row to row: in_stride */
    const float *beta, *decay; /* gate_stride */
    float *out;                /* [value_dim], out_stride */
    size_t in_stride, gate_stride, out_stride;
};

struct ops {
    const char *name;
    float (*rms_inverse)(const float *x, uint32_t n, float eps);
    /* Normalises one head: x = x * r * gain with r = 1/rms(x); without a gain (NULL) x * r. */
    void (*norm_head)(float *x, const float *gain, uint32_t n, float eps);
    /* Rotates one head in place; cosines and sines: [rope_dim / 2] of the row's position. */
    void (*rope)(float *x, const float *cosines, const float *sines, uint32_t rope_dim, bool neox);

    /* Epilogues of a product y[n]: multiply by r, add the bias (or NULL); then store, add to out, or gate. */
    void (*store)(float *out, const float *y, uint32_t n, float r, const float *bias);
    void (*residual)(float *out, const float *y, uint32_t n, float r, const float *bias);
    void (*swiglu)(float *out, const float *gate, const float *up, uint32_t n, float r,
                   const float *gate_bias, const float *up_bias);
    void (*swiglu_clamped)(float *out, const float *gate, const float *up, uint32_t n, float r,
                           const float *gate_bias, const float *up_bias);
    void (*geglu)(float *out, const float *gate, const float *up, uint32_t n, float r, const float *gate_bias,
                  const float *up_bias);
    /* The same for a gate of what out has already: out = out * silu(v), out = out * sigmoid(v), v = y * r. */
    void (*gate_silu)(float *out, const float *y, uint32_t n, float r);
    void (*gate_sigmoid)(float *out, const float *y, uint32_t n, float r);
    /* out[i] = a[i] * factor; out[i] = arith_cap(a[i] * (2 / cap * log2 e), cap). */
    void (*scale)(float *out, const float *a, uint32_t n, float factor);
    void (*soft_cap)(float *out, const float *a, uint32_t n, float cap);
    /* Adds one expert's output to the sum of a row: out = fmaf(w, y, out). */
    void (*add_scaled)(float *out, const float *y, uint32_t n, float w);
    /* Single nodes of the eager executor: out[i] = a[i] op b[i]. */
    void (*add)(float *out, const float *a, const float *b, uint32_t n);
    void (*mul)(float *out, const float *a, const float *b, uint32_t n);
    void (*silu)(float *out, const float *a, uint32_t n);
    void (*gelu)(float *out, const float *a, uint32_t n);
    void (*sigmoid)(float *out, const float *a, uint32_t n);

    /* n channels of a convolution: out[i] = sum over j of taps[j * n + i] * rows[j][i], j < n_taps
     * ascending. out may be one of the rows. */
    void (*convolve)(float *out, const float *const *rows, const float *taps, uint32_t n_taps, uint32_t n);
    /* delta_head() of every row, in order. */
    void (*delta)(const struct ops_delta *d);

    /* Converts a query of head_dim floats, times factor (scale * log2 e), to the form of fold(): at most
     * ops_padded(head_dim) * 4 bytes. */
    void (*query)(const struct kv_layout *kv, const struct ops_order *order, void *to, const float *from,
                  float factor);
    /* Writes token `t` (0..63) of a tile. Two members may write two tokens of one tile at the same time. */
    void (*append)(const struct kv_layout *kv, const struct ops_order *order, uint8_t *tile,
                   enum kv_which which, uint32_t t, const float *x);
    /* Prefetches the lines that append() will write. */
    void (*append_fetch)(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t);
    /* Folds a page into every query's fold. */
    void (*fold)(const struct ops_page *page, const struct ops_query *queries, uint32_t n_queries);
    /* The same bits by another way: where many queries share a page of a bf16 cache, by FMAs of floats, even
     * if the instruction set has dot products of bf16, which some CPUs execute at half that speed. */
    void (*fold_by_floats)(const struct ops_page *page, const struct ops_query *queries, uint32_t n_queries);
    /* Merges the folds of n splits, ascending, to out[head_dim]. sink: a further score; -infinity: none. */
    void (*merge)(float *out, const struct ops_fold *folds, uint32_t n, uint32_t head_dim, float sink);

    /* The index of the largest logit (the smallest of equals), or -1 if a logit is not finite. */
    int32_t (*argmax)(const float *logits, uint32_t n);
};

extern const struct ops ops_scalar;
#if defined(__x86_64__)
extern const struct ops ops_avx2, ops_avx512, ops_bf16_avx512; /* ops_bf16_avx512: with bf16 instructions */
#endif
/* The best table for this CPU that matches a matmul table's name. */
const struct ops *ops_find(const char *matmul_name);
