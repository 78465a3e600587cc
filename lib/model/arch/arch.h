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
    bool outside;   /* set after the last layer: boxes are named "<box>" and run for logit rows only */
    int rc;
};

enum arch_bias { ARCH_NO_BIAS, ARCH_BIAS, ARCH_MAY_HAVE_BIAS };

/* The tokens and their rows of the embedding. */
uint32_t arch_embed(struct arch_builder *b);
/* RMS norm of the whole row, or of every head by itself (QK-norm). */
uint32_t arch_norm(struct arch_builder *b, uint32_t x, const char *box);
uint32_t arch_head_norm(struct arch_builder *b, uint32_t x, const char *box);
/* The same where the file has its gain; else x. */
uint32_t arch_may_head_norm(struct arch_builder *b, uint32_t x, const char *box);
/* The weight [n, width of x] times x, plus the bias. */
uint32_t arch_linear(struct arch_builder *b, uint32_t x, uint32_t n, enum arch_bias bias, const char *box);
uint32_t arch_rope(struct arch_builder *b, uint32_t x, const char *box);
/* Appends k and v to the layer's cache; q attends to all of it. */
uint32_t arch_attention(struct arch_builder *b, uint32_t q, uint32_t k, uint32_t v);
uint32_t arch_add(struct arch_builder *b, uint32_t x, uint32_t y, const char *box);
/* down(silu(gate(x)) * up(x)). */
uint32_t arch_swiglu(struct arch_builder *b, uint32_t x, enum arch_bias bias);
/* The layer's mixture of experts over h, the norm of x, added to x; then the shared expert, if the model has
 * one. */
enum arch_expert_parts {
    ARCH_SHARED_GATE = 1, /* ffn_gate_inp_shexp: the shared expert counts sigmoid(gate(h)) */
    ARCH_EXPERT_BIAS = 4, /* the router and the experts have biases */
    ARCH_CLAMPED = 8,     /* arith_swiglu_clamped() in place of silu(gate) * up */
    ARCH_CHOICE_BIAS = 2, /* exp_probs_b: moves the choice of experts */
};
uint32_t arch_experts(struct arch_builder *b, uint32_t x, uint32_t h, unsigned parts);
/* Output norm, output weight (the embedding, if tied) and sampling. Returns the first error of all calls, or
 * 0. */
int arch_end(struct arch_builder *b, uint32_t x);
