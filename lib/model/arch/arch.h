/* arch.h - the building blocks of an architecture: one call per box of its figure.
 * Every call adds nodes to the graph and returns the index of the last one. It finds and checks the tensors
 * of its box ("<prefix>.<box>.weight" and the bias). The builder keeps the first failure: the calls after it
 * add nothing useful, and arch_end() returns it.
 * Thread: one at a time, inside arch.build. Memory: the graph's. */
#pragma once
#include "model/graph.h"

struct arch_builder {
    const struct model *m;
    struct graph *g;
    struct error *err;
    uint32_t layer; /* the architecture sets it for each layer: boxes are named "blk.<layer>.<box>" */
    bool outside;   /* set outside of layers: boxes are named "<box>" */
    bool head;      /* set after the last layer: nodes run for logit rows only */
    int rc;
};

enum arch_bias { ARCH_NO_BIAS, ARCH_BIAS, ARCH_MAY_HAVE_BIAS };

/* The tokens and their rows of the embedding, times embedding_scale. */
uint32_t arch_embed(struct arch_builder *b);
/* RMS norm of the whole row, or of every head by itself (QK-norm). */
uint32_t arch_norm(struct arch_builder *b, uint32_t x, const char *box);
uint32_t arch_head_norm(struct arch_builder *b, uint32_t x, const char *box);
/* The same without a weight. */
uint32_t arch_plain_head_norm(struct arch_builder *b, uint32_t x, const char *box);
/* The weight [n, width of x] times x, plus the bias. */
uint32_t arch_linear(struct arch_builder *b, uint32_t x, uint32_t n, enum arch_bias bias, const char *box);
/* Rotates the heads as the layer's kind says; a kind without rotation yields x. */
uint32_t arch_rope(struct arch_builder *b, uint32_t x, const char *box);
/* The kind of attention of the layer, and the widths of its queries and of its keys. */
const struct model_attention *arch_kind(const struct arch_builder *b);
uint32_t arch_q_width(const struct arch_builder *b);
uint32_t arch_kv_width(const struct arch_builder *b);
/* Appends k and v to the layer's cache; q attends to what the layer's kind sees of it. */
uint32_t arch_attention(struct arch_builder *b, uint32_t q, uint32_t k, uint32_t v);
/* The parts of arch_attention(): q attends to the cache that COPY node `copy` appends to. With sinks it wants
 * "attn_sinks". */
uint32_t arch_copy(struct arch_builder *b, uint32_t k, uint32_t v);
uint32_t arch_attend(struct arch_builder *b, uint32_t q, uint32_t copy, bool sinks);
/* The whole of the usual attention of normed rows: q, k, v, norms of their heads, rotation, attention,
 * output. */
struct arch_heads {
    enum arch_bias bias, output_bias; /* of q, k and v; of the output */
    bool normed, may_be_normed;       /* the heads of q and k, always or where the file has the gains */
    bool sinks;
};
uint32_t arch_heads(struct arch_builder *b, uint32_t x, struct arch_heads heads);
/* The usual first half of a layer: arch_heads() behind "attn_norm", added to x times residual_scale; with
 * another norm in between unless post_norm is NULL. */
uint32_t arch_self_attention(struct arch_builder *b, uint32_t x, struct arch_heads heads,
                             const char *post_norm);
/* The same without biases, every head normalised, times the sigmoid of a gate of its own ("attn_q_gate"). */
uint32_t arch_gated_heads(struct arch_builder *b, uint32_t x);
/* The whole of a recurrent layer's gated delta net of normed rows (kernels/abi/delta.h): convolution, step
 * sizes and decays, the net, its norm, gate, output. */
uint32_t arch_delta_net(struct arch_builder *b, uint32_t x);
/* The weight of each of n_heads heads [n, k] times its part of x: the k values from column `col` of the part
 * on. The values behind them stay in front of the n products. */
struct arch_head_product {
    uint32_t n_heads, n, k, col;
};
uint32_t arch_head_linear(struct arch_builder *b, uint32_t x, struct arch_head_product p, const char *box);
/* x, then y. */
uint32_t arch_join(struct arch_builder *b, uint32_t x, uint32_t y, const char *box);
uint32_t arch_add(struct arch_builder *b, uint32_t x, uint32_t y, const char *box);
/* x + y * residual_scale. */
uint32_t arch_residual(struct arch_builder *b, uint32_t x, uint32_t y, const char *box);
uint32_t arch_scale(struct arch_builder *b, uint32_t x, float scale, const char *box);
/* down(silu(gate(x)) * up(x)). */
uint32_t arch_swiglu(struct arch_builder *b, uint32_t x, enum arch_bias bias);
/* down(gelu(gate(x)) * up(x)). */
uint32_t arch_geglu(struct arch_builder *b, uint32_t x, enum arch_bias bias);
/* The usual second half of a dense layer: arch_swiglu() without biases, or arch_geglu() with "post_ffw_norm"
 * behind it, each behind "ffn_norm" and added to x. */
uint32_t arch_dense(struct arch_builder *b, uint32_t x);
uint32_t arch_gelu_dense(struct arch_builder *b, uint32_t x);
/* x times the one number of tensor "<box>.weight", if the file has it. */
uint32_t arch_layer_scale(struct arch_builder *b, uint32_t x, const char *box);
/* True if the file has "blk.<layer>.<name>". */
bool arch_has(const struct arch_builder *b, const char *name);
/* The embeddings of the token for all layers, [n_layers * n_embd_layer]: what the scaled embedding `x`
 * projects to, normalised for each layer, plus the token's rows, over sqrt(2). */
uint32_t arch_layer_embeddings(struct arch_builder *b, uint32_t x);
/* gelu(gate) times as many values of `of`, from column `col` on. */
uint32_t arch_gated_part(struct arch_builder *b, uint32_t gate, uint32_t of, uint32_t col);
/* The layer's mixture of experts over h, the norm of x, added to x times residual_scale, which the weights of
 * the choice contain; then the shared expert, if the model has one. */
enum arch_expert_parts {
    ARCH_SHARED_GATE = 1, /* ffn_gate_inp_shexp: the shared expert counts sigmoid(gate(h)) */
    ARCH_EXPERT_BIAS = 4, /* the router and the experts have biases */
    ARCH_CLAMPED = 8,     /* arith_swiglu_clamped() in place of silu(gate) * up */
    ARCH_CHOICE_BIAS = 2, /* exp_probs_b: moves the choice of experts */
    ARCH_FACTORS = 16,    /* ffn_down_exps.scale, if the file has it: factors of the experts' weights */
};
uint32_t arch_experts(struct arch_builder *b, uint32_t x, uint32_t h, unsigned parts);
/* Gemma 4's parts of a mixture: the choice of experts by x, normalised with a gain of the router's own and
 * over sqrt(n_embd); and what the chosen experts make of h, with GELU. */
uint32_t arch_router(struct arch_builder *b, uint32_t x);
uint32_t arch_gelu_experts(struct arch_builder *b, uint32_t h, uint32_t choice);
/* The whole graph of a model whose layers are `attention`, then `feed_forward`: each takes the residual
 * stream and returns it. Errors are those of struct arch's build(). */
typedef uint32_t arch_part(struct arch_builder *b, uint32_t x);
int arch_build_layers(const struct model *m, struct graph *g, struct error *err, arch_part *attention,
                      arch_part *feed_forward);
/* A whole model of Llama's layers: attention and a gated feed-forward or experts, each behind a norm, added
 * to x times residual_scale. */
int arch_build_llama(const struct model *m, struct graph *g, struct error *err);
/* Configures and builds Qwen 3.5's hybrids (qwen35.c): gated attention in every fourth layer or so, gated
 * delta nets in the others; behind them a dense feed-forward or experts with a gated shared one. */
int arch_configure_hybrid(struct config_reader *r, struct model_config *c);
int arch_build_hybrid(const struct model *m, struct graph *g, struct error *err);
/* Output norm, output weight (the embedding, if tied), logit_scale and logit_cap, and sampling. Returns the
 * first error of all calls, or 0. */
int arch_end(struct arch_builder *b, uint32_t x);
