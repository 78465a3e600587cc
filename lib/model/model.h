/* model.h - a GGUF file understood as a transformer: its numbers and its weights, checked.
 * Which tensors a model has, and how they are joined, is the business of one file per architecture
 * (arch_*.c), found by the file's general.architecture through `struct arch`. Weights stay in the file until
 * a loader reads them. Thread: immutable after open until model_release(). Memory: the model holds the file's
 * metadata and has it open; close it after everything that points into it. */
#pragma once
#include "base/error.h"
#include "gguf/gguf.h"
#include "abi/delta.h"
#include "abi/kv_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config_reader;
struct graph;
struct model;

#define MODEL_MAX_LAYERS   256
#define MODEL_MAX_HEAD_DIM 576
#define MODEL_MAX_KINDS    2
#define MODEL_OWN_CACHE    UINT32_MAX

enum model_pooling { /* key pooling_type: how the states of a text's tokens become its vector */
                     MODEL_POOL_NONE,
                     MODEL_POOL_MEAN,
                     MODEL_POOL_CLS, /* that of the first token */
                     MODEL_POOL_LAST,
                     MODEL_POOL_RANK, /* a score of two texts, which needs weights of its own */
                     MODEL_N_POOLS,
};

enum model_rope { MODEL_ROPE_NORM, MODEL_ROPE_NEOX }; /* rotates pairs (2i, 2i+1), or (i, i + rope_dim/2) */

/* A weight matrix [n, k] (n output values from k input values, rows of k contiguous), or a vector (n = 1, F32
 * only). The matrices of n_experts experts are one weight: rows [e n / n_experts, (e + 1) n / n_experts) are
 * those of expert e. */
struct weight {
    const char *name; /* "blk.3.attn_q.weight" */
    uint32_t type;    /* enum quant_type */
    uint32_t n, k;
    uint32_t n_experts;  /* 1: one matrix */
    size_t size;         /* bytes */
    uint32_t tensor;     /* its index in the file; it may be fused (attn_qkv) */
    struct weight_rows { /* the rows of that tensor that it has, in this order: `n` rows of this piece, */
        uint32_t first, run, every, n; /* row i is first + i / run * every + i % run */
    } rows[3];
    uint32_t n_pieces; /* 0: it is the tensor */
    /* It has the matrix of each expert transposed: rows[0] are those of the tensor from which its columns
     * are made. Its type is the tensor's where that is one of floats, else F32. */
    bool transposed;
    /* Its values are those of the file, of type `stored`, times the factors of tensor `factors`: one for all
     * rows or one for each expert (weight_factors.c). Its type is NVFP4_SCALED where the file has NVFP4, F32
     * where it has floats, else F16. */
    bool multiplied;
    uint32_t stored, factors;
};

/* The mixture of experts of a model's layers; n_experts 0: none. */
struct model_experts {
    uint32_t n_experts, n_used;
    uint32_t n_ff;        /* width of an expert */
    uint32_t n_ff_shared; /* width of the expert that computes every row; 0: none */
    uint32_t n_dense;     /* leading layers without experts */
    uint32_t gating;      /* key expert_gating_func: 1 softmax, 2 sigmoid */
    uint32_t n_groups, n_groups_used;
    bool normalise; /* the chosen experts' weights add up to 1 before `scale` */
    float scale;
};

/* Attention over a compressed cache (MLA): per token it holds `rotated` values that turn with the position,
 * and the `rank` values from which every head's keys and values follow. A head's query is `rotated` + `rank`
 * wide: what it multiplies with keys is moved to it (attn_k_b). rank 0: none. */
struct model_latent {
    uint32_t rank, rotated;
    uint32_t q_rank;             /* queries are made from so many values; 0: from the row itself */
    uint32_t key_dim, value_dim; /* of a head: keys without their rotated values; values */
};

/* The rotation of the pairs of a head by position (rope_table.c has the formulas). */
struct model_rotation {
    uint32_t dim; /* leading dimensions of a head that rotate; even, <= head_dim; 0: none */
    double base;
    double scale;     /* divisor of the angles: of all, or with yarn of the slow ones; 1: none */
    double magnitude; /* multiplies cosines and sines (rope.scaling.attn_factor); with yarn a further
                         factor follows from scale */
    bool yarn;
    double beta_fast, beta_slow; /* yarn: turns within n_ctx_original where its ramp begins and ends */
    double log_multiplier;       /* yarn */
    uint32_t n_ctx_original;     /* yarn, longrope */
    const float *factors;        /* [dim/2] divisors of the frequencies, or NULL */
    const float *long_factors;   /* longrope: those of a context above n_ctx_original, or NULL */
};

/* A kind of attention layer. Layers of one kind differ in their weights only. */
struct model_attention {
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t window;   /* a position sees this many tokens, its own included; 0: all */
    uint32_t n_caches; /* layers of the kind that have a cache of their own */
    float scale;       /* of the scores */
    float cap;         /* scores become cap * tanh(score / cap); 0: no cap */
    float temperature; /* t: the query at position p is multiplied by 1 + t ln(1 + floor(p / c)) with */
    uint32_t temperature_step; /* c; t = 0: it is not */
    struct model_rotation rope;
};

struct model_layer {
    uint32_t kind;  /* index of model_config.kinds */
    uint32_t cache; /* its number among the caches of its kind; layers with one number share the cache. Before
                       they are numbered: MODEL_OWN_CACHE, or the number that an earlier layer will have.
                       Of a recurrent layer: its number among those */
    bool recurrent; /* a gated delta net in place of attention */
    uint32_t n_ff;
};

struct model_config {
    char arch[32];
    char name[128];        /* general.name, else the file's name without .gguf */
    char quantization[16]; /* "Q4_K_M" from general.file_type, else the most frequent weight type */
    uint64_t n_params;
    uint32_t n_layers, n_embd, n_ff, n_vocab; /* n_ff: of the widest layer */
    uint32_t n_heads, n_kv_heads, head_dim;   /* of kind 0 */
    uint32_t n_ctx_train;
    struct model_experts experts;
    struct model_latent latent;
    float norm_eps;
    enum model_rope rope;
    uint32_t pooling; /* enum model_pooling */
    bool tied;        /* the output weight is the token embedding */
    /* attention.sliding_window of an architecture that has no windows. Hearth then attends to the whole past,
     * so the executor refuses a context above it. 0: none. */
    uint32_t sliding_window; /* an architecture with windows sets it to 0 */
    float embedding_scale, residual_scale,
        logit_scale;       /* multiply token rows, branches and logits; 1: none */
    float logit_cap;       /* logits become cap * tanh(logit / cap); 0: no cap */
    bool gated_attention;  /* attn_q has a gate's rows behind the query's of each head (attn_q_gate) */
    uint32_t n_embd_layer; /* width of the per-layer embeddings; 0: none */
    uint32_t n_kinds;      /* kinds of attention; kind 0 is that of layers that see the whole past */
    struct model_attention kinds[MODEL_MAX_KINDS];
    struct delta_shape delta; /* of the recurrent layers */
    uint32_t n_recurrent;     /* layers; 0: none */
    struct model_layer layers[MODEL_MAX_LAYERS];
};

/* Graph and program refer to weights by index. MODEL_NO_WEIGHT means absent. */
#define MODEL_NO_WEIGHT UINT32_MAX

/* One architecture: its tensors and how they are joined. Its file reads like the figure of the paper. */
struct arch {
    const char *name;   /* general.architecture */
    const char *models; /* for people: those that it is not named after; NULL: none */
    /* Adds every node of the model to the graph; the configuration of `m` is complete. Errors name the
     * tensor, its shape and the expected one. */
    int (*build)(const struct model *m, struct graph *g, struct error *err);
    enum model_rope rope;
    /* Reads the keys, and sets the rules, of this architecture alone (config_reader.h); NULL: none. */
    int (*configure)(struct config_reader *r, struct model_config *c);
    /* For an architecture with experts; the file's keys override both. 0: it has none. */
    uint32_t gating;
    bool normalise;
    bool may_have_experts; /* without a key expert_count it has none */
    bool wide_experts; /* without a key of its own an expert's width is feed_forward_length, not its n_used-th
                          part */
    bool untied;       /* output.weight is required */
    bool latent;       /* attention over a compressed cache: key and value lengths are those of the cache */
    bool expert_factors; /* ffn_down_exps.scale counts in the choice of experts, not in their product */
};
extern const struct arch arch_gemma2, arch_gemma3, arch_gemma4, arch_granite, arch_llama, arch_mistral3,
    arch_phi3, arch_qwen2, arch_qwen3, arch_smollm3;
extern const struct arch arch_deepseek2, arch_gptoss, arch_granitemoe;
extern const struct arch arch_qwen2moe, arch_qwen3moe, arch_glm4moe;
extern const struct arch arch_qwen35, arch_qwen35moe, arch_qwen3next;
/* The names of all, "llama, qwen2, …". */
const char *arch_names(void);
/* The i-th of them, or NULL behind the last. */
const struct arch *arch_at(size_t i);

/* Maps the file and checks everything that the model needs. -ENOTSUP: an architecture, weight type or kind of
 * RoPE scaling is not supported (the words name it); -EBADMSG: the file contradicts itself; or the error of
 * opening it. */
int model_open(struct model **out, const char *path, struct error *err);
/* Nothing of the file is read any more: see gguf_release(). */
void model_release(struct model *m);
void model_close(struct model *m); /* NULL is fine */

const struct model_config *model_config(const struct model *m);
const struct gguf *model_gguf(const struct model *m);
const struct arch *model_arch(const struct model *m);
uint32_t model_n_weights(const struct model *m);
const struct weight *model_weight(const struct model *m, uint32_t index);
uint32_t model_find_weight(const struct model *m, const char *name); /* or MODEL_NO_WEIGHT */
/* Bytes [at, at + n) of a weight into `out`; any thread. Errors of gguf_read(). */
int model_read_weight(const struct model *m, uint32_t index, size_t at, void *out, size_t n,
                      struct error *err);

/* The growth of scores with a context stretched `scale` times (YaRN): 1 + 0.1 k ln(scale). */
double model_yarn_growth(double scale, double k);

/* For builders: finds a weight that must exist with this shape [n, k] (a vector: n = 1) and sets *out to its
 * index. With `optional` an absent weight gives MODEL_NO_WEIGHT. The name is printf-like. Returns 0, -EBADMSG
 * or -ENOTSUP. */
struct model_want {
    uint32_t n, k;
    bool optional;
    uint32_t n_experts; /* n rows are those of so many experts; 0: one matrix */
    bool table;         /* F32 only, as a vector is */
    bool any_k;         /* rows of floats may have any length, not only multiples of 32 */
};
int model_want(const struct model *m, uint32_t *out, struct model_want want, struct error *err,
               const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* 64-bit hash of all that a model's arithmetic depends on: metadata, shapes, and the bytes of every weight
 * that is used, whose sum (weight_reader.h) the backend has found while it read them. Before model_release().
 */
uint64_t model_hash(const struct model *m, uint64_t weights_sum);

/* Computes cosine and sine of every position and pair: out[(pos * dim/2 + i) * 2 + {0,1}], in double and
 * without the C library's functions, so that every machine gets the same bits (rope_table.c). n_ctx chooses
 * the factors of longrope too. */
void model_rope_table(const struct model_rotation *r, uint32_t n_ctx, float *out);
/* Returns whether a context of this many tokens takes the long factors of longrope (struct model_rotation):
 * the same text has other keys then, so model_hash() alone does not name them. */
bool model_takes_long_factors(const struct model_rotation *r, uint32_t n_ctx);
/* The place of keys and values of the layers of a kind in a page whose elements have type kv_type. */
struct kv_layout model_kv_layout(const struct model_config *c, uint32_t kind, uint32_t kv_type);
/* Bytes of the recurrent states of one slot; 0: the model has none. */
size_t model_state_size(const struct model_config *c);
/* The factor of the query at position `pos` (struct model_attention), computed in the same way. */
float model_temperature(const struct model_attention *a, uint32_t pos);
