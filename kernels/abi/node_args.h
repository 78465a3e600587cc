/* node_args.h - parameters of the kernels of single graph nodes, for the eager and graph executors. A node is
 * one launch with any number of blocks; it reads its number of rows from the step in device memory when it
 * runs.
 *
 * A kernel skips an index of the step that is out of range and reports it in the words of dependency.h
 * (`fault`: DECODER_RANGE, enum decoder_range, value, limit); the launch ends as usual.
 *
 * Thread: the host fills these before a launch; kernels only read them. */
#pragma once
#include "attend_layout.h"
#include "route.h"

/* The rows that a node computes. */
struct node_step {
    uint64_t step;  /* struct step */
    uint64_t fault; /* u32 [DECODER_LINE]: enum flow_word, cleared by the host */
    uint32_t head;  /* 1: logit rows; row i is that of step.logits[i] */
    uint32_t node;  /* the node's index, for the failure record */
};

/* Rows of floats. A node with `head` may read a value that exists for all rows (gathered): its row i is then
 * step.logits[i].row. */
struct node_rows {
    uint64_t data;   /* float, 16-byte aligned */
    uint32_t stride; /* floats, a multiple of 4 */
    uint32_t gathered;
};

/* rms_norm.c, NODE_NORM_SHARED bytes of dynamic shared memory: out = x / rms(x) * gain, over `group` values
 * at a time; without a gain x / rms(x). With factors: out = x * gain, and 1/rms of the row is written beside
 * it. in == out is allowed. Any width that is a multiple of group. */
#define NODE_NORM_THREADS 256
#define NODE_NORM_SHARED  16
struct rms_norm_args {
    struct node_step step;
    struct node_rows in, out;
    uint64_t gain;    /* float [group], or 0 */
    uint64_t factors; /* float [rows], or 0; then group == width */
    uint32_t width, group;
    float eps;
    uint32_t reserved;
};

/* rope.c: rotates every head by the row's position; in == out is allowed. */
#define NODE_ROPE_THREADS 256
struct rope_args {
    struct node_step step;
    struct node_rows in, out;
    uint64_t cosines, sines; /* float [n_ctx][rope_dim / 2] */
    uint32_t width, head_dim, rope_dim, neox, n_ctx, reserved;
};

/* kv_append.c (COPY): K and V of every row into the cache; out = k. */
#define NODE_APPEND_THREADS 256
#define NODE_APPEND_SHARED  (NODE_APPEND_THREADS / 32 * ATTEND_MAX_HEAD_DIM * 4) /* dynamic, bytes */
struct kv_append_args {
    struct node_step step;
    struct node_rows k, v, out; /* [n_kv_heads * head_dim] */
    uint64_t kv;
    struct kv_layout layout;
    struct decoder_slots slots;
    uint32_t layer, reserved;
};

/* attention.c (SOFT_MAX): in is the rotated q alone; attend.ready = 1. A row's past has position + 1 tokens;
 * the position is read from the step. Dynamic shared memory: attend.work + attend.work_bytes. */
#define NODE_ATTEND_THREADS 256
struct attention_args {
    struct node_step step;
    struct attend_args attend;
    uint32_t general; /* 1: more than the plain attention (attend.h) */
    uint32_t reserved;
};

/* add.c, mul.c: out = a + b, a * b. silu.c, gelu.c, sigmoid.c, soft_cap.c: functions of a, b is not read.
 * scale.c: a * factor, or with b, an address of one float, a * b. out may be an input. gate.c: a *
 * sigmoid(b), b of width 1. swiglu_clamped.c: arith_swiglu_clamped(a, b). */
#define NODE_FLAT_THREADS 256
struct flat_args {
    struct node_step step;
    struct node_rows a, b, out;
    uint32_t width;
    float factor; /* scale.c, soft_cap.c */
};

/* mul_mat.c: out = matrix * in, times the row's factor (1/rms, which a norm before it left beside x * gain),
 * plus bias. Float types multiply in itself, others in quantised. The last warp of a block streams weights
 * through the ring of `shared`, the others multiply, up to 8 rows at a time. Eight warps: with 128 registers
 * a thread two blocks share an SM if it has shared memory for them (sm_90, sm_100), and both blocks together
 * have as many compute warps as the persistent decoder. */
#define NODE_PRODUCT_THREADS 256
struct mul_mat_args {
    struct node_step step;
    struct node_rows in, out;
    struct decoder_matrix matrix;
    uint64_t bias;    /* float [n], or 0 */
    uint64_t factors; /* float, by row of `in`, or 0 */
    struct decoder_shared shared;
};

/* mul_mat_id.c: out = the products of each row with the n_used matrices that `choice` names, of n rows each,
 * a multiple of 16, in one matrix of n_experts x n; biases are [n_experts][n]. With own_input each of them
 * has its own k columns of a row of `in`. */
struct mul_mat_id_args {
    struct mul_mat_args product;
    struct node_rows choice; /* [2 n_used]: numbers, then weights */
    uint32_t n, n_used, own_input, reserved;
};

/* mul_mat_heads.c: each row has n_heads parts of `part` values. out = of each part its last `keep` values,
 * then the product of the k values from `col` on with the head's matrix of n rows, a multiple of 16, in one
 * matrix of n_heads x n. No bias, no factors; col and part are multiples of 4. */
struct mul_mat_heads_args {
    struct mul_mat_args product;
    uint32_t n_heads, n, part, col, keep, reserved;
};

/* embed.c: out = row `token` of the matrix. */
#define NODE_EMBED_THREADS 256
struct embed_args {
    struct node_step step;
    struct node_rows out;
    struct decoder_matrix matrix;
    uint64_t tokens; /* i32 [rows] */
};

/* route.c: chooses experts of every row by the logits `in`: their numbers, ascending, then their weights. A
 * warp per row. */
#define NODE_ROUTE_THREADS 256
struct route_args {
    struct node_step step;
    struct node_rows in, out; /* [n_experts], [2 n_used] */
    uint64_t bias, factors;   /* float [n_experts], or 0 */
    struct route_rule rule;
};

/* expert_sum.c: out = the sum of the n_used parts of `in`, each times its weight in `choice`, in order. */
struct expert_sum_args {
    struct node_step step;
    struct node_rows in, choice, out; /* [n_used width], [2 n_used], [width] */
    uint32_t width, n_used;
};

/* join.c: out = a, of width `first`, then b. */
struct join_args {
    struct node_step step;
    struct node_rows a, b, out;
    uint32_t width, first;
};

/* ssm_conv.c: the convolution of each channel over the last rows of its sequence (delta.h); advances the
 * states. A group is the step's rows of a slot, which stand together and follow one another; it begins with
 * zeros at position 0, else with its slot's state or the one that the step loads for it. Dynamic shared
 * memory: delta_convolve_bytes() for each warp. */
#define NODE_CONV_THREADS 64
struct ssm_conv_args {
    struct node_step step;
    struct node_rows in, out; /* [channels] */
    uint64_t taps;            /* float [channels][n_taps] */
    struct decoder_states states;
    uint32_t layer, reserved; /* among the recurrent ones */
};

/* l2_norm.c: heads of queries and keys at length 1, queries then over sqrt(key_dim); values as they are. A
 * warp per head. */
#define NODE_L2_NORM_THREADS 256
struct l2_norm_args {
    struct node_step step;
    struct node_rows in, out; /* [channels] */
    struct delta_shape shape;
    float eps;
    uint32_t reserved;
};

/* delta_gate.c: out = sigmoid(b) of every value head, then the decays of alpha + dt. together: b has both, by
 * key head. */
struct delta_gate_args {
    struct node_step step;
    struct node_rows b, alpha, out; /* [n_value_heads], or [2 n_value_heads] */
    uint64_t decay, dt;             /* float [n_value_heads] */
    struct delta_shape shape;
    uint32_t together, reserved;
};

/* delta_net.c: out = delta_head() of every value head; advances the states. A warp has DELTA_NET_COLUMNS of a
 * head's columns, from a group's first row to its last. Dynamic shared memory: delta_room_bytes() for each
 * warp. */
#define NODE_DELTA_NET_THREADS 128
struct delta_net_args {
    struct node_step step;
    struct node_rows in, gates, out; /* [channels], [2 n_value_heads], [values] */
    struct decoder_states states;
    uint32_t layer, reserved;
};
