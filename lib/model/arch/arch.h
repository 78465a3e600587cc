/* arch.h - the vocabulary in which arch_*.c draw a model: one call per box of the figure.
 * Every call adds nodes to the graph and returns the index of the last one; what a box needs of the file
 * (tensor "<prefix>.<box>.weight", its bias) is looked up and checked. The first failure is kept in the
 * builder, the calls after it add nothing useful, and arch_end() returns it. */
#pragma once
#include "model/graph.h"

struct arch_builder {
    const struct model *m;
    struct graph *g;
    struct error *err;
    uint32_t layer; /* set by the architecture for each layer: boxes are named "blk.<layer>.<box>" */
    bool outside;   /* set after the last layer: boxes are named "<box>", and run for logit rows only */
    int rc;
};

enum arch_bias { ARCH_NO_BIAS, ARCH_BIAS, ARCH_MAY_HAVE_BIAS };

uint32_t arch_embed(struct arch_builder *b);
/* The whole row, or every head by itself (QK-norm). */
uint32_t arch_norm(struct arch_builder *b, uint32_t x, const char *box);
uint32_t arch_head_norm(struct arch_builder *b, uint32_t x, const char *box);
/* x times the weight [n, width of x]. */
uint32_t arch_linear(struct arch_builder *b, uint32_t x, uint32_t n, enum arch_bias bias, const char *box);
uint32_t arch_rope(struct arch_builder *b, uint32_t x, const char *box);
/* Appends k and v to the layer's cache and lets q attend to all of it. */
uint32_t arch_attention(struct arch_builder *b, uint32_t q, uint32_t k, uint32_t v);
uint32_t arch_add(struct arch_builder *b, uint32_t x, uint32_t y, const char *box);
/* down(silu(gate(x)) * up(x)). */
uint32_t arch_swiglu(struct arch_builder *b, uint32_t x, enum arch_bias bias);
/* Output norm, output weight (or the embedding again, when tied), choice of a token. */
int arch_end(struct arch_builder *b, uint32_t x);
