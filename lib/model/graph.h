/* clang-format off */
/* graph.h - the graph of a model: tensor operations in topological order.
 * The file of its architecture builds it once per model. Then it is validated: order, arity, shapes, weight
 * types; an error names the node. The eager executor runs it node by node; program.h is the same model after
 * fusion.
 *
 * Every node yields one value per row of a step: a vector of `width` floats. Rows are independent except in
 * attention, which also reads the KV cache. Inputs of a node are earlier nodes.
 *
 *   op         inputs    weight         width     meaning
 *   NONE       -         -              any       a leaf (the step's tokens); runs nothing, counts no launch
 *   EMBED      NONE      [n_vocab, w]   n_embd    the token's row of the embedding
 *   RMS_NORM   x         gain [1, k]    as x      x / rms(x) * gain, over `group` values at a time (head_dim
 *                                                 for QK-norm, else the whole row); without a gain x / rms(x)
 *   MUL_MAT    x         [w, k]         w         weight times x, plus bias [1, w] if there is one
 *   ROPE       x         -              as x      rotates every head of head_dim values by the row's position
 *   COPY       k, v      -              kv width  appends the row's K and V to the cache of `layer`; yields k
 *   SOFT_MAX   q, copy   gain [1, heads] q width  attention of q over the row's past in the cache of `layer`, as
 *                                                 the kind says; gain: sinks, one more score of each head that
 *                                                 has no value
 *   ADD        a, b      -              as a      a + b
 *   MUL        a, b      -              as a      a * b, b from column `col` on
 *   SILU       x         -              as x      x * sigmoid(x)
 *   GELU       x         -              as x      0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   SCALE      x         gain [1, 1]    as x      x * scale, or x * gain
 *   SOFT_CAP   x         -              as x      scale * tanh(x / scale)
 *   ROUTE      logits    bias, gain     2 U       chooses U of E experts: their numbers, ascending, then their
 *                        [1, E]                   weights (kernels/abi/route.h), times each one's gain; bias and
 *                                                 gain are optional
 *   MUL_MAT_ID x, route  [E w/U, k]     w         each chosen expert's weight times x, or times its own part of x
 *                                                 if x is U k wide, plus its bias [E, w/U] if there is one
 *   MUL_MAT_HEADS x      [H w, k]       H part    the matrix of each of n_heads heads times its part of x: of a
 *                                                 part's col + k + keep values it multiplies the k from `col`
 *                                                 on; the last `keep` stand before the w products
 *   JOIN       a, b      -              both      a, then b
 *   EXPERT_SUM x, route  -              x / U     sum of the chosen experts' parts of x times their weights
 *   SWIGLU_CLAMPED g, u  -              as g      arith_swiglu_clamped() of both
 *   GATE       x, g      -              as x      x * sigmoid(g), g of width 1
 *   SIGMOID    x         -              as x      sigmoid(x)
 *   SSM_CONV   x         gain [c, taps] as x      convolution of each channel over the last rows (kernels/abi/delta.h)
 *   L2_NORM    x         -              as x      the heads of queries and keys, the first ones of x, at length 1; queries
 *                                                 then over sqrt(key_dim)
 *   DELTA_GATE b, a      gain, bias     2 heads   of every value head sigmoid(b); then delta_decay(gain, a + bias). One
 *                                                 input for both holds, for each key head, its b, then its a
 *   DELTA_NET  qkv, gate -              values    delta_head() of every value head; advances the layer's states
 *   ARGMAX     logits    -              1         samples (greedy at temperature 0); only rows that request
 *                                                 logits
 *
 * Nodes marked `head` (the output norm and the nodes after it) run only for rows that need logits.
 * Thread: one builder; immutable after graph_open(), then any. Memory: the graph owns its nodes; the model
 * must outlive it. */
/* clang-format on */
#pragma once
#include "base/error.h"
#include "model.h"
#include "abi/route.h"

#include <stdint.h>

enum graph_op {
    GRAPH_NONE,
    GRAPH_EMBED,
    GRAPH_RMS_NORM,
    GRAPH_MUL_MAT,
    GRAPH_ROPE,
    GRAPH_COPY,
    GRAPH_SOFT_MAX,
    GRAPH_ADD,
    GRAPH_MUL,
    GRAPH_SILU,
    GRAPH_GELU,
    GRAPH_SCALE,
    GRAPH_SOFT_CAP,
    GRAPH_ROUTE,
    GRAPH_MUL_MAT_ID,
    GRAPH_MUL_MAT_HEADS,
    GRAPH_JOIN,
    GRAPH_EXPERT_SUM,
    GRAPH_GATE,
    GRAPH_SWIGLU_CLAMPED,
    GRAPH_SIGMOID,
    GRAPH_SSM_CONV,
    GRAPH_L2_NORM,
    GRAPH_DELTA_GATE,
    GRAPH_DELTA_NET,
    GRAPH_ARGMAX,
    GRAPH_N_OPS,
};

struct graph_node {
    enum graph_op op;
    uint32_t inputs[2];           /* node indices; unused ones are GRAPH_NO_INPUT */
    uint32_t width;               /* floats per row */
    uint32_t k;                   /* input width of MUL_MAT, of an expert and of a head; 0 otherwise */
    uint32_t group;               /* RMS_NORM: values normalised together; ROPE, COPY, SOFT_MAX: head_dim */
    uint32_t n_heads, n_kv_heads; /* SOFT_MAX; COPY: n_kv_heads; ROPE, MUL_MAT_HEADS: n_heads */
    uint32_t layer;  /* of COPY, and of the COPY whose cache SOFT_MAX reads; elsewhere for names only */
    uint32_t kind;   /* ROPE, COPY, SOFT_MAX: index of model_config.kinds */
    uint32_t cache;  /* COPY, SOFT_MAX: number of the cache among those of the kind; SSM_CONV, DELTA_NET: of
                        the  layer among the recurrent ones */
    uint32_t col;    /* MUL: column of its second input; MUL_MAT_HEADS */
    uint32_t keep;   /* MUL_MAT_HEADS */
    uint32_t weight; /* products, EMBED; MODEL_NO_WEIGHT otherwise */
    uint32_t weight_type;
    uint32_t bias;            /* MUL_MAT, MUL_MAT_ID, ROUTE, DELTA_GATE, or MODEL_NO_WEIGHT */
    uint32_t gain;            /* RMS_NORM, SOFT_MAX, SCALE, ROUTE, SSM_CONV, DELTA_GATE, or MODEL_NO_WEIGHT */
    float eps;                /* RMS_NORM, L2_NORM */
    float scale;              /* SOFT_MAX, SCALE, SOFT_CAP */
    struct route_rule route;  /* ROUTE; MUL_MAT_ID and EXPERT_SUM: n_experts and n_used */
    struct delta_shape delta; /* SSM_CONV, L2_NORM, DELTA_GATE, DELTA_NET */
    bool head;                /* runs only for rows that need logits */
    char name[40];            /* "blk.3.attn_q" */
};
#define GRAPH_NO_INPUT UINT32_MAX

struct graph {
    const struct model *model;
    uint32_t n_nodes, capacity;
    struct graph_node *nodes;
    bool failed; /* graph_add ran out of memory */
};

/* Builds and validates the graph of a model. -EINVAL, -EBADMSG or -ENOTSUP name the node or the tensor;
 * -ENOMEM. */
int graph_open(struct graph **out, const struct model *m, struct error *err);
void graph_close(struct graph *g); /* NULL is fine */

/* For builders: appends a node and returns its index. On failure it sets `failed`, and graph_validate()
 * reports it. */
uint32_t graph_add(struct graph *g, struct graph_node node);

/* Checks order, arity, shapes, types and weights. Returns 0, or -EINVAL with words that name the node.
 * graph_open() calls it; also for graphs made by hand in tests. */
int graph_validate(const struct graph *g, struct error *err);

const char *graph_op_name(enum graph_op op); /* "MUL_MAT" */
/* The number of inputs an op takes: 0, 1 or 2. */
uint32_t graph_op_arity(enum graph_op op);
/* The number of nodes that run something: every op but NONE. */
uint32_t graph_n_launches(const struct graph *g);
/* One line per node for `inspect --graph`: malloc'ed text that the caller frees, or NULL. */
char *graph_print(const struct graph *g);
