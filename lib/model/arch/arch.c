#include "arch.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A node with the builder's layer and the box's name, and no inputs or weights. */
static struct graph_node box_node(const struct arch_builder *b, enum graph_op op, const char *box)
{
    struct graph_node node = {.op = op,
                              .inputs = {GRAPH_NO_INPUT, GRAPH_NO_INPUT},
                              .layer = b->layer,
                              .weight = MODEL_NO_WEIGHT,
                              .bias = MODEL_NO_WEIGHT,
                              .gain = MODEL_NO_WEIGHT,
                              .head = b->outside};
    if (b->outside)
        (void)snprintf(node.name, sizeof node.name, "%s", box);
    else
        (void)snprintf(node.name, sizeof node.name, "blk.%u.%s", b->layer, box);
    return node;
}

static uint32_t width_of(const struct arch_builder *b, uint32_t node)
{
    return node < b->g->n_nodes ? b->g->nodes[node].width : 0;
}

static uint32_t want(struct arch_builder *b, struct model_want shape, const char *name, const char *suffix)
{
    uint32_t index = MODEL_NO_WEIGHT;
    if (b->rc == 0)
        b->rc = model_want(b->m, &index, shape, b->err, "%s.%s", name, suffix);
    return index;
}

static uint32_t add(struct arch_builder *b, struct graph_node node)
{
    if (b->rc < 0)
        return 0;
    uint32_t index = graph_add(b->g, node);
    if (b->g->failed) /* later calls would miss its width */
        b->rc = error_set(b->err, -ENOMEM, "%s: no memory for the graph", gguf_path(model_gguf(b->m)));
    return index;
}

static uint32_t type_of(const struct arch_builder *b, uint32_t weight)
{
    const struct weight *w = model_weight(b->m, weight);
    return w ? w->type : 0;
}

uint32_t arch_embed(struct arch_builder *b)
{
    const struct model_config *c = model_config(b->m);
    struct graph_node tokens = box_node(b, GRAPH_NONE, "");
    tokens.width = 1;
    (void)snprintf(tokens.name, sizeof tokens.name, "tokens");
    struct graph_node node = box_node(b, GRAPH_EMBED, "");
    (void)snprintf(node.name, sizeof node.name, "token_embd");
    node.inputs[0] = add(b, tokens);
    node.width = c->n_embd;
    node.weight = want(b, (struct model_want){.n = c->n_vocab, .k = c->n_embd}, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    return add(b, node);
}

static uint32_t norm(struct arch_builder *b, uint32_t x, uint32_t group, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_RMS_NORM, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.group = group;
    node.eps = model_config(b->m)->norm_eps;
    node.gain = want(b, (struct model_want){.n = 1, .k = group}, node.name, "weight");
    return add(b, node);
}

uint32_t arch_norm(struct arch_builder *b, uint32_t x, const char *box)
{
    return norm(b, x, width_of(b, x), box);
}

uint32_t arch_head_norm(struct arch_builder *b, uint32_t x, const char *box)
{
    return norm(b, x, model_config(b->m)->head_dim, box);
}

uint32_t arch_linear(struct arch_builder *b, uint32_t x, uint32_t n, enum arch_bias bias, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_MUL_MAT, box);
    node.inputs[0] = x;
    node.width = n;
    node.k = width_of(b, x);
    node.weight = want(b, (struct model_want){.n = n, .k = node.k}, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    if (bias != ARCH_NO_BIAS)
        node.bias = want(b, (struct model_want){1, n, bias == ARCH_MAY_HAVE_BIAS}, node.name, "bias");
    return add(b, node);
}

uint32_t arch_rope(struct arch_builder *b, uint32_t x, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_ROPE, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.group = model_config(b->m)->head_dim;
    node.n_heads = node.width / node.group;
    return add(b, node);
}

uint32_t arch_attention(struct arch_builder *b, uint32_t q, uint32_t k, uint32_t v)
{
    const struct model_config *c = model_config(b->m);
    struct graph_node copy = box_node(b, GRAPH_COPY, "kv_cache");
    copy.inputs[0] = k;
    copy.inputs[1] = v;
    copy.width = width_of(b, k);
    copy.group = c->head_dim;
    copy.n_kv_heads = c->n_kv_heads;
    struct graph_node node = box_node(b, GRAPH_SOFT_MAX, "attention");
    node.inputs[0] = q;
    node.inputs[1] = add(b, copy);
    node.width = width_of(b, q);
    node.group = c->head_dim;
    node.n_heads = c->n_heads;
    node.n_kv_heads = c->n_kv_heads;
    node.scale = (float)(1.0 / sqrt(c->head_dim));
    return add(b, node);
}

/* A node without weights, as wide as its first input. */
static uint32_t plain(struct arch_builder *b, enum graph_op op, uint32_t x, uint32_t y, const char *box)
{
    struct graph_node node = box_node(b, op, box);
    node.inputs[0] = x;
    node.inputs[1] = y;
    node.width = width_of(b, x);
    return add(b, node);
}

uint32_t arch_add(struct arch_builder *b, uint32_t x, uint32_t y, const char *box)
{
    return plain(b, GRAPH_ADD, x, y, box);
}

uint32_t arch_swiglu(struct arch_builder *b, uint32_t x, enum arch_bias bias)
{
    const struct model_config *c = model_config(b->m);
    uint32_t gate = arch_linear(b, x, c->n_ff, bias, "ffn_gate");
    uint32_t up = arch_linear(b, x, c->n_ff, bias, "ffn_up");
    uint32_t silu = plain(b, GRAPH_SILU, gate, GRAPH_NO_INPUT, "ffn_silu");
    uint32_t gated = plain(b, GRAPH_MUL, silu, up, "ffn_gated");
    return arch_linear(b, gated, c->n_embd, bias, "ffn_down");
}

int arch_end(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    b->outside = true;
    uint32_t h = arch_norm(b, x, "output_norm");
    struct graph_node output = box_node(b, GRAPH_MUL_MAT, "output");
    output.inputs[0] = h;
    output.width = c->n_vocab;
    output.k = c->n_embd;
    output.weight = want(b, (struct model_want){.n = c->n_vocab, .k = c->n_embd},
                         c->tied ? "token_embd" : "output", "weight");
    output.weight_type = type_of(b, output.weight);
    output.bias = want(b, (struct model_want){1, c->n_vocab, true}, output.name, "bias");
    struct graph_node choice = box_node(b, GRAPH_ARGMAX, "sample");
    choice.inputs[0] = add(b, output);
    choice.width = 1;
    (void)add(b, choice);
    return b->rc;
}
