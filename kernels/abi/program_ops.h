/* clang-format off */
/* program_ops.h - the program: the graph after fusion, a flat array of plain structs, about six ops a layer, that
 * a decoder interprets once per step. It can be copied to a device as it is: buffers are offsets, weights are
 * indices, nothing is a pointer.
 *
 *   op       does, per row
 *   EMBED    out = embedding row of the token * scale
 *   MATMUL   y_i = W_i * q8(in * gain) * r + bias_i for up to three matrices that share the input (QKV; gate
 *            and up), where r = 1/rms(in) when there is a gain, else no factor; then the epilogue:
 *              STORE      out_i = y_i * scale, then capped if there is a cap
 *              RESIDUAL   out += y_0 * scale
 *              SWIGLU     out = silu(y_0) * y_1
 *              GEGLU      out = gelu(y_0) * y_1
 *              TIMES_SILU     out = out * silu(y_0); TIMES_SIGMOID: out * sigmoid(y_0)
 *              RESIDUAL with PROGRAM_GATED: out += y_0 * sigmoid(column gate_col of buffer `choice`)
 *   ROUTE    chooses experts by the logits in columns [0, n_experts) of `in`; writes their numbers and weights to
 *            the columns from out_col[0] of `out` (kernels/abi/route.h); bias[0] moves the choice, weight[0] has
 *            factors of the weights
 *   EXPERTS  MATMUL with the weights of the experts that ROUTE chose for the row, n_used outputs a row:
 *              SWIGLU     out = silu(y_0) * y_1, each expert's in its own n[0] columns; the input is shared
 *              SWIGLU_CLAMPED  the same with arith_swiglu_clamped()
 *              GEGLU      out = gelu(y_0) * y_1
 *              RESIDUAL   out += sum of weight * y_0; each expert reads its own k columns of `in`
 *              STORE      out = that sum
 *            the choice stands in the columns from gate_col of buffer `choice`, or, with PROGRAM_CHOOSES and
 *            few rows, in each block's shared memory
 *   ATTEND   QK-norm (if gains), V-norm, RoPE, K and V appended to the cache, attention as the op's kind says;
 *            in = [q|k|v], out = heads; weight[0]: sinks
 *   CONV     prepares the rows of a recurrent layer in place (kernels/abi/delta.h): convolution by the taps weight[0]
 *            of the n[0] channels of column out_col[0], silu, heads of queries and keys to their length; then the gates
 *            from out_col[1] on, of decays weight[1] and biases bias[0]
 *   DELTA    the delta net of a layer: in as CONV left it, out = the heads, each normalised
 *   ADD_NORM out = (out + in / rms(in) * gain) * scale, normalised over k values at a time; the scale is
 *            weight[0]'s one value, if there is one
 *   GATE     out = gelu(out) * in, in from column out_col[0] on; n[0] values
 *   HEADS    the products of n[1] heads with matrices [n[0], k] of their own: of each part of col + k + keep values
 *            (out_col[1], n[2]) it multiplies the k from `col` on; the last `keep` stand before the products in
 *            `out`, whose parts have keep + n[0] values, from column out_col[0] on
 *   JOIN     out from column out_col[2] on = the n[0] values of `in` from column out_col[0] on, then the n[1] from
 *            out_col[1] on, normalised with the gain
 *   SAMPLE   for logit rows: logits -> token, log-probabilities
 *
 * Nine buffers, in this order (enum program_buffer_index): x the residual stream, qkv = [q|k|v], attn, h the
 * gated FFN row (of all chosen experts), h2 that of the shared expert, choice = the router's logits, the shared
 * expert's gate and the choice, branch what is normalised before it is added, layers the embeddings of the token
 * for each layer, logits. All but the last lie in every row's scratch; logits exist once per logit row (at most
 * STEP_MAX_LOGITS of them), in an area of their own: offset 0, and not part of row_floats. An op with
 * PROGRAM_HEAD runs for logit rows only: its row i is step.logits[i], which reads buffer x of row
 * step.logits[i].row.
 *
 * Dependencies: ops are ordered by counters. Op i may start its units when counter[wait] >= epoch *
 * wait_arrivals; each of its units adds 1 to counter[signal] when its output is visible. Counters are
 * cumulative over steps (epoch = steps so far) and never reset; they are u32 and wrap, so "at least" is modular:
 * the difference, taken as int32_t, is not negative. If every unit of the earlier op must have arrived, this is
 * a grid barrier. Backends fill wait_arrivals and signal_units for their own grid. Rank fields and ALL_REDUCE
 * are reserved for several devices. Where an op has PROGRAM_WORDS and rows are few, backend cuda orders the next
 * one by the words instead, and by `wait` besides; its buffers for words lie behind the nine.
 *
 * Thread: written once, when a model is loaded; read-only afterwards, by any thread. */
/* clang-format on */
#pragma once
#include "route.h"

#include <stdint.h>

#define PROGRAM_MAGIC   0x31505248u /* "HRP1" */
#define PROGRAM_VERSION 2
#define PROGRAM_NONE    UINT32_MAX

enum program_opcode {
    PROGRAM_EMBED = 1,
    PROGRAM_MATMUL,
    PROGRAM_ATTEND,
    PROGRAM_SAMPLE,
    PROGRAM_ADD_NORM,
    PROGRAM_GATE,
    PROGRAM_ALL_REDUCE, /* not emitted yet */
    PROGRAM_ROUTE,
    PROGRAM_EXPERTS,
    PROGRAM_HEADS,
    PROGRAM_JOIN,
    PROGRAM_CONV,
    PROGRAM_DELTA,
};
enum program_epilogue {
    PROGRAM_STORE,
    PROGRAM_RESIDUAL,
    PROGRAM_SWIGLU,
    PROGRAM_SWIGLU_CLAMPED,
    PROGRAM_GEGLU,
    PROGRAM_TIMES_SILU,
    PROGRAM_TIMES_SIGMOID,
};
enum program_flags {
    PROGRAM_HEAD = 1,        /* only rows that need logits */
    PROGRAM_GATED = 2,       /* MATMUL: the product of a row takes the sigmoid of its gate */
    PROGRAM_V_NORM = 4,      /* ATTEND: every head of V is normalised, without a gain */
    PROGRAM_CACHED = 8,      /* ATTEND: K and V are in the cache already; in = [q] */
    PROGRAM_GENERAL = 16,    /* ATTEND, set by backend cuda: more than the plain attention (attend.h) */
    PROGRAM_SET = 32,        /* ADD_NORM: `out` is set to what would be added to it */
    PROGRAM_TOGETHER = 64,   /* CONV: the first product of the gates has both, by key head */
    PROGRAM_QUANTISES = 128, /* MATMUL with PROGRAM_WORDS, set by backend cuda: it passes its output on
                                quantised (kernels/matmul/quantised_words.h) */
    PROGRAM_QUANTISED = 256, /* MATMUL behind it, set by backend cuda: takes it so */
    PROGRAM_PLANNED = 1024,  /* ATTEND, set by backend cuda: of the kind of the ATTEND op before it in the
                                program, whose plan of the step holds for this one too */
    PROGRAM_CHOOSES = 2048,  /* ROUTE and the EXPERTS ops behind it, set by backend cuda: blocks choose for
                                themselves where rows are few (mixture_layout.h) */
    PROGRAM_BESIDE = 4096,   /* JOIN, set by backend cuda: neither it nor the HEADS op before it needs the
                                other, so that it does not wait */
    PROGRAM_WORDS = 8192, /* MATMUL, EXPERTS and ATTEND, set by backend cuda: where rows are few, its output
                             is passed on as words, for which the next op waits (kernels/device/words.h) */
    PROGRAM_EMPTIES = 16384, /* MATMUL and EXPERTS, set by backend cuda: it empties the old value that it adds
                                to */
    PROGRAM_SIGNALS = 32768, /* MATMUL with PROGRAM_WORDS: a later op waits for its end too */
};

enum program_buffer_index {
    PROGRAM_X,
    PROGRAM_QKV,
    PROGRAM_ATTN,
    PROGRAM_H,
    PROGRAM_H2,
    PROGRAM_CHOICE,
    PROGRAM_BRANCH,
    PROGRAM_LAYERS,
    PROGRAM_LOGITS, /* per logit row, not in a row's scratch */
    PROGRAM_N_BUFFERS,
};

/* Activation buffers: `width` floats per row, at `offset` floats from the start of the row's scratch. */
struct program_buffer {
    uint32_t offset, width;
};

struct program_op {
    uint16_t opcode, flags;
    uint16_t epilogue, n_weights;
    uint32_t layer;   /* ATTEND: number of the cache among those of its kind; CONV, DELTA: of the layer among
                         the recurrent ones */
    uint32_t in, out; /* buffer indices; PROGRAM_NONE for EMBED's in and SAMPLE's out */
    uint32_t k;       /* MATMUL: input width; ADD_NORM: values normalised together */
    uint32_t weight[3];  /* model weight indices; EMBED: weight[0] */
    uint32_t n[3];       /* output width of each; ATTEND: of q, k, v; SAMPLE: n[0] = n_vocab */
    uint32_t bias[3];    /* weight indices or PROGRAM_NONE */
    uint32_t out_col[3]; /* MATMUL STORE: column where each output starts in a row of buffer `out`; ATTEND:
                            where q, k and v start in a row of `in` */
    uint32_t gain;       /* MATMUL: norm gain or PROGRAM_NONE */
    uint32_t q_gain, k_gain; /* ATTEND: per-head norm gains, both or neither (PROGRAM_NONE) */
    float eps;               /* of the norm, or of the QK-norm */
    float scale;             /* ATTEND: of the scores; others: 1 where there is none */
    uint32_t wait, signal;   /* counter indices; wait is PROGRAM_NONE for the first op. Behind an op
                                with PROGRAM_WORDS backend cuda sets what to wait for besides */
    uint32_t wait_arrivals, signal_units; /* per step; the backend fills them */
    uint32_t node;           /* the last graph node this op covers, which names the op in errors and tables */
    uint32_t n_nodes;        /* number of graph nodes it covers */
    uint32_t gate_col;       /* column of buffer CHOICE: EXPERTS: the choice; PROGRAM_GATED: the gate */
    struct route_rule route; /* ROUTE; EXPERTS: n_experts and n_used */
    uint32_t kind;           /* ATTEND: index of the model's kinds */
    float cap;               /* MATMUL STORE: 0: none */
    int32_t old;      /* MATMUL and EXPERTS, set by backend cuda: floats from a result to the old value that a
                         RESIDUAL adds to, or to where gate's product stands until up's is there; 0: its
                         place */
    uint32_t empties; /* MATMUL and EMBED, set by backend cuda: offset in a row's scratch of the words that it
                         empties */
    uint32_t n_empties; /* their number; 0: none */
    uint32_t panels;    /* MATMUL, set by backend cuda: bytes from decoder_buffers.activations to the place of
                           up to ACTIVATION_COLUMNS columns; more have theirs at its beginning */
    uint32_t reserved[8];
};
_Static_assert(sizeof(struct program_op) == 192, "program_op");

/* True if an epilogue joins two products of the same rows: gate and up. */
static inline bool program_is_gated(uint32_t epilogue)
{
    return epilogue >= PROGRAM_SWIGLU && epilogue <= PROGRAM_GEGLU;
}

struct program {
    uint32_t magic, version;
    uint32_t n_ops, n_layers, n_buffers, n_counters;
    uint32_t n_embd, n_ff, n_vocab, n_heads, n_kv_heads, head_dim;
    uint32_t rope_dim, rope_neox;
    uint32_t row_floats;    /* scratch floats per row: all buffers except the logits */
    uint32_t rank, n_ranks; /* always 0 of 1 */
    uint32_t reserved[3];
    struct program_buffer buffers[32];
    struct program_op ops[]; /* n_ops */
};
