#include "arch.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The box's name in the file: "blk.<layer>.<box>", or "<box>" outside of layers. */
static void name_box(const struct arch_builder *b, char *name, size_t room, const char *box)
{
    int n = b->outside ? snprintf(name, room, "%s", box) : snprintf(name, room, "blk.%u.%s", b->layer, box);
    assert(n >= 0 && (size_t)n < room); /* else the tensor of another name would be its weight */
}

/* A node with the builder's layer and the box's name, and no inputs or weights. */
static struct graph_node box_node(const struct arch_builder *b, enum graph_op op, const char *box)
{
    struct graph_node node = {.op = op,
                              .inputs = {GRAPH_NO_INPUT, GRAPH_NO_INPUT},
                              .layer = b->layer,
                              .weight = MODEL_NO_WEIGHT,
                              .bias = MODEL_NO_WEIGHT,
                              .gain = MODEL_NO_WEIGHT,
                              .head = b->head};
    name_box(b, node.name, sizeof node.name, box);
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
    uint32_t x = add(b, node);
    b->outside = true;
    x = c->embedding_scale == 1 ? x : arch_scale(b, x, c->embedding_scale, "embd_scaled");
    b->outside = false;
    return x;
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
    return norm(b, x, arch_kind(b)->head_dim, box);
}

uint32_t arch_plain_head_norm(struct arch_builder *b, uint32_t x, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_RMS_NORM, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.group = arch_kind(b)->head_dim;
    node.eps = model_config(b->m)->norm_eps;
    return add(b, node);
}

/* The same where the file has its gain; else x. */
static uint32_t may_head_norm(struct arch_builder *b, uint32_t x, const char *box)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%s.weight", box);
    return arch_has(b, name) ? arch_head_norm(b, x, box) : x;
}

uint32_t arch_linear(struct arch_builder *b, uint32_t x, uint32_t n, enum arch_bias bias, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_MUL_MAT, box);
    node.inputs[0] = x;
    node.width = n;
    node.k = width_of(b, x);
    node.weight = want(b, (struct model_want){.n = n, .k = node.k, .any_k = true}, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    if (bias != ARCH_NO_BIAS)
        node.bias = want(b, (struct model_want){.n = 1, .k = n, .optional = bias == ARCH_MAY_HAVE_BIAS},
                         node.name, "bias");
    return add(b, node);
}

/* Attention. */

const struct model_attention *arch_kind(const struct arch_builder *b)
{
    const struct model_config *c = model_config(b->m);
    return &c->kinds[c->layers[b->layer].kind];
}

uint32_t arch_q_width(const struct arch_builder *b)
{
    return arch_kind(b)->n_heads * arch_kind(b)->head_dim;
}

uint32_t arch_kv_width(const struct arch_builder *b)
{
    return arch_kind(b)->n_kv_heads * arch_kind(b)->head_dim;
}

/* A node of the layer's attention. */
static struct graph_node kind_node(const struct arch_builder *b, enum graph_op op, uint32_t x,
                                   const char *box)
{
    struct graph_node node = box_node(b, op, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.group = arch_kind(b)->head_dim;
    node.kind = model_config(b->m)->layers[b->layer].kind;
    node.cache = model_config(b->m)->layers[b->layer].cache;
    return node;
}

uint32_t arch_rope(struct arch_builder *b, uint32_t x, const char *box)
{
    struct graph_node node = kind_node(b, GRAPH_ROPE, x, box);
    node.n_heads = node.width / node.group;
    return arch_kind(b)->rope.dim ? add(b, node) : x;
}

uint32_t arch_copy(struct arch_builder *b, uint32_t k, uint32_t v)
{
    struct graph_node node = kind_node(b, GRAPH_COPY, k, "kv_cache");
    node.inputs[1] = v;
    node.n_kv_heads = arch_kind(b)->n_kv_heads;
    return add(b, node);
}

uint32_t arch_attend(struct arch_builder *b, uint32_t q, uint32_t copy, bool sinks)
{
    struct graph_node node = kind_node(b, GRAPH_SOFT_MAX, q, "attention");
    const struct model_attention *kind = arch_kind(b);
    node.inputs[1] = copy;
    node.layer = copy < b->g->n_nodes ? b->g->nodes[copy].layer : b->layer;
    node.n_heads = kind->n_heads;
    node.n_kv_heads = kind->n_kv_heads;
    node.scale = kind->scale;
    if (sinks) {
        char name[40];
        name_box(b, name, sizeof name, "attn_sinks");
        node.gain = want(b, (struct model_want){.n = 1, .k = kind->n_heads}, name, "weight");
    }
    return add(b, node);
}

uint32_t arch_attention(struct arch_builder *b, uint32_t q, uint32_t k, uint32_t v)
{
    return arch_attend(b, q, arch_copy(b, k, v), false);
}

uint32_t arch_heads(struct arch_builder *b, uint32_t x, struct arch_heads heads)
{
    uint32_t q = arch_linear(b, x, arch_q_width(b), heads.bias, "attn_q");
    uint32_t k = arch_linear(b, x, arch_kv_width(b), heads.bias, "attn_k");
    uint32_t v = arch_linear(b, x, arch_kv_width(b), heads.bias, "attn_v");
    if (heads.normed) {
        q = arch_head_norm(b, q, "attn_q_norm");
        k = arch_head_norm(b, k, "attn_k_norm");
    } else if (heads.may_be_normed) {
        q = may_head_norm(b, q, "attn_q_norm");
        k = may_head_norm(b, k, "attn_k_norm");
    }
    q = arch_rope(b, q, "q_rope");
    k = arch_rope(b, k, "k_rope");
    uint32_t out = arch_attend(b, q, arch_copy(b, k, v), heads.sinks);
    return arch_linear(b, out, model_config(b->m)->n_embd, heads.output_bias, "attn_output");
}

uint32_t arch_head_linear(struct arch_builder *b, uint32_t x, struct arch_head_product p, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_MUL_MAT_HEADS, box);
    uint32_t part = width_of(b, x) / p.n_heads;
    node.inputs[0] = x;
    node.n_heads = p.n_heads;
    node.k = p.k;
    node.col = p.col;
    node.keep = part > p.col + p.k ? part - p.col - p.k : 0;
    node.width = p.n_heads * (node.keep + p.n);
    struct model_want shape = {.n = p.n_heads * p.n, .k = p.k, .n_experts = p.n_heads, .any_k = true};
    node.weight = want(b, shape, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    return add(b, node);
}

uint32_t arch_join(struct arch_builder *b, uint32_t x, uint32_t y, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_JOIN, box);
    node.inputs[0] = x;
    node.inputs[1] = y;
    node.width = width_of(b, x) + width_of(b, y);
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

uint32_t arch_scale(struct arch_builder *b, uint32_t x, float scale, const char *box)
{
    uint32_t node = plain(b, GRAPH_SCALE, x, GRAPH_NO_INPUT, box);
    if (b->rc == 0)
        b->g->nodes[node].scale = scale;
    return node;
}

uint32_t arch_residual(struct arch_builder *b, uint32_t x, uint32_t y, const char *box)
{
    float scale = model_config(b->m)->residual_scale;
    return arch_add(b, x, scale == 1 ? y : arch_scale(b, y, scale, "residual_scaled"), box);
}

static uint32_t gated(struct arch_builder *b, uint32_t x, enum arch_bias bias, enum graph_op op,
                      const char *box)
{
    const struct model_config *c = model_config(b->m);
    uint32_t n_ff = c->layers[b->layer].n_ff;
    uint32_t gate = arch_linear(b, x, n_ff, bias, "ffn_gate");
    uint32_t up = arch_linear(b, x, n_ff, bias, "ffn_up");
    uint32_t active = plain(b, op, gate, GRAPH_NO_INPUT, box);
    uint32_t product = plain(b, GRAPH_MUL, active, up, "ffn_gated");
    return arch_linear(b, product, c->n_embd, bias, "ffn_down");
}

uint32_t arch_swiglu(struct arch_builder *b, uint32_t x, enum arch_bias bias)
{
    return gated(b, x, bias, GRAPH_SILU, "ffn_silu");
}

uint32_t arch_geglu(struct arch_builder *b, uint32_t x, enum arch_bias bias)
{
    return gated(b, x, bias, GRAPH_GELU, "ffn_gelu");
}

bool arch_has(const struct arch_builder *b, const char *name)
{
    char full[64];
    name_box(b, full, sizeof full, name);
    return model_find_weight(b->m, full) != MODEL_NO_WEIGHT;
}

uint32_t arch_layer_scale(struct arch_builder *b, uint32_t x, const char *box)
{
    struct graph_node node = box_node(b, GRAPH_SCALE, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.gain = want(b, (struct model_want){.n = 1, .k = 1, .optional = true}, node.name, "weight");
    return node.gain == MODEL_NO_WEIGHT ? x : add(b, node);
}

/* The token's rows of per_layer_token_embd. */
static uint32_t layer_rows(struct arch_builder *b, uint32_t width)
{
    const struct model_config *c = model_config(b->m);
    struct graph_node node = box_node(b, GRAPH_EMBED, "per_layer_token_embd");
    node.width = width;
    node.inputs[0] = 0; /* the tokens are the first node of every graph */
    node.weight = want(b, (struct model_want){.n = c->n_vocab, .k = width}, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    return arch_scale(b, add(b, node), sqrtf((float)c->n_embd_layer), "per_layer_rows");
}

uint32_t arch_layer_embeddings(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    uint32_t width = c->n_layers * c->n_embd_layer;
    b->outside = true;
    uint32_t rows = layer_rows(b, width);
    uint32_t projected = arch_linear(b, x, width, ARCH_NO_BIAS, "per_layer_model_proj");
    projected = arch_scale(b, projected, 1 / sqrtf((float)c->n_embd), "per_layer_projected");
    projected = norm(b, projected, c->n_embd_layer, "per_layer_proj_norm");
    uint32_t sum = arch_add(b, projected, rows, "per_layer_sum");
    sum = arch_scale(b, sum, (float)sqrt(0.5), "per_layer_embd");
    b->outside = false;
    return sum;
}

uint32_t arch_gated_part(struct arch_builder *b, uint32_t gate, uint32_t of, uint32_t col)
{
    uint32_t active = plain(b, GRAPH_GELU, gate, GRAPH_NO_INPUT, "embd_gelu");
    uint32_t part = plain(b, GRAPH_MUL, active, of, "embd_gated");
    if (b->rc == 0)
        b->g->nodes[part].col = col;
    return part;
}

/* The choice of experts, by the router's logits. */
static uint32_t route(struct arch_builder *b, uint32_t logits, unsigned parts)
{
    const struct model_config *c = model_config(b->m);
    const struct model_experts *e = &c->experts;
    struct graph_node node = box_node(b, GRAPH_ROUTE, "exp_probs_b");
    node.inputs[0] = logits;
    node.width = 2 * e->n_used;
    node.route = (struct route_rule){.n_experts = (uint16_t)e->n_experts,
                                     .n_used = (uint16_t)e->n_used,
                                     .n_groups = (uint16_t)e->n_groups,
                                     .n_groups_used = (uint16_t)e->n_groups_used,
                                     .gating = (uint16_t)e->gating,
                                     .normalise = e->normalise,
                                     .scale = e->scale * c->residual_scale};
    if (parts & ARCH_CHOICE_BIAS)
        node.bias = want(b, (struct model_want){.n = 1, .k = e->n_experts}, node.name, "bias");
    name_box(b, node.name, sizeof node.name, "ffn_down_exps");
    if (parts & ARCH_FACTORS)
        node.gain =
            want(b, (struct model_want){.n = 1, .k = e->n_experts, .optional = true}, node.name, "scale");
    name_box(b, node.name, sizeof node.name, "ffn_route");
    return add(b, node);
}

/* The chosen experts' weights [n, k] times x, or times their own parts of x. */
static uint32_t by_expert(struct arch_builder *b, uint32_t x, uint32_t choice, uint32_t n, uint32_t k,
                          bool bias, const char *box)
{
    const struct model_experts *e = &model_config(b->m)->experts;
    struct graph_node node = box_node(b, GRAPH_MUL_MAT_ID, box);
    node.inputs[0] = x;
    node.inputs[1] = choice;
    node.width = n * e->n_used;
    node.k = k;
    node.route.n_experts = (uint16_t)e->n_experts;
    node.route.n_used = (uint16_t)e->n_used;
    struct model_want shape = {.n = n * e->n_experts, .k = k, .n_experts = e->n_experts, .any_k = true};
    node.weight = want(b, shape, node.name, "weight");
    node.weight_type = type_of(b, node.weight);
    if (bias) {
        struct model_want table = {.n = e->n_experts, .k = n, .table = true};
        node.bias = want(b, table, node.name, "bias");
    }
    return add(b, node);
}

static uint32_t sum_experts(struct arch_builder *b, uint32_t x, uint32_t choice)
{
    const struct model_config *c = model_config(b->m);
    struct graph_node node = box_node(b, GRAPH_EXPERT_SUM, "ffn_moe");
    node.inputs[0] = x;
    node.inputs[1] = choice;
    node.width = c->n_embd;
    node.route.n_experts = (uint16_t)c->experts.n_experts;
    node.route.n_used = (uint16_t)c->experts.n_used;
    return add(b, node);
}

/* The shared expert's gated row; its product follows the addition of the others. */
static uint32_t shared_gated(struct arch_builder *b, uint32_t h)
{
    uint32_t n_ff = model_config(b->m)->experts.n_ff_shared;
    uint32_t gate = arch_linear(b, h, n_ff, ARCH_NO_BIAS, "ffn_gate_shexp");
    uint32_t up = arch_linear(b, h, n_ff, ARCH_NO_BIAS, "ffn_up_shexp");
    uint32_t silu = plain(b, GRAPH_SILU, gate, GRAPH_NO_INPUT, "ffn_silu_shexp");
    return plain(b, GRAPH_MUL, silu, up, "ffn_gated_shexp");
}

static uint32_t add_shared(struct arch_builder *b, uint32_t x, uint32_t gated, uint32_t factor)
{
    uint32_t out = arch_linear(b, gated, model_config(b->m)->n_embd, ARCH_NO_BIAS, "ffn_down_shexp");
    if (factor != GRAPH_NO_INPUT)
        out = plain(b, GRAPH_GATE, out, factor, "ffn_shexp");
    return arch_residual(b, x, out, "ffn_shared_residual");
}

static uint32_t gated_row(struct arch_builder *b, uint32_t gate, uint32_t up)
{
    uint32_t silu = plain(b, GRAPH_SILU, gate, GRAPH_NO_INPUT, "ffn_silu");
    return plain(b, GRAPH_MUL, silu, up, "ffn_gated");
}

uint32_t arch_experts(struct arch_builder *b, uint32_t x, uint32_t h, unsigned parts)
{
    const struct model_config *c = model_config(b->m);
    const struct model_experts *e = &c->experts;
    uint32_t shared = GRAPH_NO_INPUT, factor = GRAPH_NO_INPUT;
    bool bias = parts & ARCH_EXPERT_BIAS;
    uint32_t logits = arch_linear(b, h, e->n_experts, bias ? ARCH_BIAS : ARCH_NO_BIAS, "ffn_gate_inp");
    uint32_t choice = route(b, logits, parts);
    uint32_t gate = by_expert(b, h, choice, e->n_ff, c->n_embd, bias, "ffn_gate_exps");
    uint32_t up = by_expert(b, h, choice, e->n_ff, c->n_embd, bias, "ffn_up_exps");
    if (e->n_ff_shared)
        shared = shared_gated(b, h);
    if (e->n_ff_shared && parts & ARCH_SHARED_GATE)
        factor = arch_linear(b, h, 1, ARCH_NO_BIAS, "ffn_gate_inp_shexp");
    uint32_t gated =
        parts & ARCH_CLAMPED ? plain(b, GRAPH_SWIGLU_CLAMPED, gate, up, "ffn_gated") : gated_row(b, gate, up);
    uint32_t down = by_expert(b, gated, choice, c->n_embd, e->n_ff, bias, "ffn_down_exps");
    uint32_t out = arch_add(b, x, sum_experts(b, down, choice), "ffn_residual");
    return shared == GRAPH_NO_INPUT ? out : add_shared(b, out, shared, factor);
}

uint32_t arch_router(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    struct graph_node node = box_node(b, GRAPH_RMS_NORM, "ffn_gate_inp");
    node.inputs[0] = x;
    node.width = node.group = c->n_embd;
    node.eps = c->norm_eps;
    node.gain = want(b, (struct model_want){.n = 1, .k = c->n_embd}, node.name, "scale");
    name_box(b, node.name, sizeof node.name, "ffn_router_norm");
    uint32_t logits = arch_linear(b, add(b, node), c->experts.n_experts, ARCH_NO_BIAS, "ffn_gate_inp");
    logits = arch_scale(b, logits, 1 / sqrtf((float)c->n_embd), "ffn_router_scaled");
    return route(b, logits, ARCH_FACTORS);
}

uint32_t arch_gelu_experts(struct arch_builder *b, uint32_t h, uint32_t choice)
{
    const struct model_config *c = model_config(b->m);
    uint32_t n_ff = c->experts.n_ff;
    uint32_t gate = by_expert(b, h, choice, n_ff, c->n_embd, false, "ffn_gate_exps");
    uint32_t up = by_expert(b, h, choice, n_ff, c->n_embd, false, "ffn_up_exps");
    uint32_t active = plain(b, GRAPH_GELU, gate, GRAPH_NO_INPUT, "ffn_gelu_exps");
    uint32_t gated = plain(b, GRAPH_MUL, active, up, "ffn_gated_exps");
    uint32_t down = by_expert(b, gated, choice, c->n_embd, n_ff, false, "ffn_down_exps");
    return sum_experts(b, down, choice);
}

/* Recurrent layers. */

/* A node of the layer's delta net. */
static struct graph_node delta_node(const struct arch_builder *b, enum graph_op op, uint32_t x,
                                    const char *box)
{
    struct graph_node node = box_node(b, op, box);
    node.inputs[0] = x;
    node.width = width_of(b, x);
    node.delta = model_config(b->m)->delta;
    node.cache = model_config(b->m)->layers[b->layer].cache;
    return node;
}

/* The rows of queries, keys and values behind the convolution. */
static uint32_t convolved(struct arch_builder *b, uint32_t h)
{
    const struct delta_shape *shape = &model_config(b->m)->delta;
    uint32_t channels = delta_channels(shape);
    uint32_t mix = arch_linear(b, h, channels, ARCH_NO_BIAS, "attn_qkv");
    struct graph_node conv = delta_node(b, GRAPH_SSM_CONV, mix, "ssm_conv1d");
    conv.gain =
        want(b, (struct model_want){.n = channels, .k = shape->n_taps, .table = true}, conv.name, "weight");
    uint32_t silu = plain(b, GRAPH_SILU, add(b, conv), GRAPH_NO_INPUT, "ssm_conv_silu");
    struct graph_node unit = delta_node(b, GRAPH_L2_NORM, silu, "ssm_l2_norm");
    unit.eps = model_config(b->m)->norm_eps;
    return add(b, unit);
}

/* Step sizes and decays of the heads. Some files have both products in one tensor. */
static uint32_t delta_gates(struct arch_builder *b, uint32_t h)
{
    uint32_t heads = model_config(b->m)->delta.n_value_heads, beta, alpha;
    if (arch_has(b, "ssm_ba.weight")) {
        beta = alpha = arch_linear(b, h, 2 * heads, ARCH_NO_BIAS, "ssm_ba");
    } else {
        beta = arch_linear(b, h, heads, ARCH_NO_BIAS, "ssm_beta");
        alpha = arch_linear(b, h, heads, ARCH_NO_BIAS, "ssm_alpha");
    }
    struct graph_node node = delta_node(b, GRAPH_DELTA_GATE, beta, "ssm_dt");
    struct model_want vector = {.n = 1, .k = heads};
    node.inputs[1] = alpha;
    node.width = 2 * heads;
    node.bias = want(b, vector, node.name, "bias");
    if (b->rc == 0)
        b->rc = model_want(b->m, &node.gain, vector, b->err, "blk.%u.ssm_a", b->layer);
    name_box(b, node.name, sizeof node.name, "ssm_gate");
    return add(b, node);
}

uint32_t arch_delta_net(struct arch_builder *b, uint32_t h)
{
    const struct delta_shape *shape = &model_config(b->m)->delta;
    struct graph_node node = delta_node(b, GRAPH_DELTA_NET, convolved(b, h), "ssm_scan");
    node.inputs[1] = delta_gates(b, h);
    node.width = delta_value_width(shape);
    uint32_t out = norm(b, add(b, node), shape->value_dim, "ssm_norm");
    uint32_t z = arch_linear(b, h, delta_value_width(shape), ARCH_NO_BIAS, "attn_gate");
    uint32_t silu = plain(b, GRAPH_SILU, z, GRAPH_NO_INPUT, "attn_gate_silu");
    out = plain(b, GRAPH_MUL, out, silu, "ssm_gated");
    return arch_linear(b, out, model_config(b->m)->n_embd, ARCH_NO_BIAS, "ssm_out");
}

uint32_t arch_gated_heads(struct arch_builder *b, uint32_t x)
{
    uint32_t q = arch_linear(b, x, arch_q_width(b), ARCH_NO_BIAS, "attn_q");
    uint32_t k = arch_linear(b, x, arch_kv_width(b), ARCH_NO_BIAS, "attn_k");
    uint32_t v = arch_linear(b, x, arch_kv_width(b), ARCH_NO_BIAS, "attn_v");
    uint32_t gate = arch_linear(b, x, arch_q_width(b), ARCH_NO_BIAS, "attn_q_gate");
    q = arch_rope(b, arch_head_norm(b, q, "attn_q_norm"), "q_rope");
    k = arch_rope(b, arch_head_norm(b, k, "attn_k_norm"), "k_rope");
    uint32_t out = arch_attention(b, q, k, v);
    gate = plain(b, GRAPH_SIGMOID, gate, GRAPH_NO_INPUT, "attn_q_sigmoid");
    out = plain(b, GRAPH_MUL, out, gate, "attn_gated");
    return arch_linear(b, out, model_config(b->m)->n_embd, ARCH_NO_BIAS, "attn_output");
}

int arch_end(struct arch_builder *b, uint32_t x)
{
    const struct model_config *c = model_config(b->m);
    b->outside = b->head = true;
    uint32_t h = arch_norm(b, x, "output_norm");
    struct graph_node output = box_node(b, GRAPH_MUL_MAT, "output");
    output.inputs[0] = h;
    output.width = c->n_vocab;
    output.k = c->n_embd;
    output.weight = want(b, (struct model_want){.n = c->n_vocab, .k = c->n_embd},
                         c->tied ? "token_embd" : "output", "weight");
    output.weight_type = type_of(b, output.weight);
    output.bias =
        want(b, (struct model_want){.n = 1, .k = c->n_vocab, .optional = true}, output.name, "bias");
    uint32_t logits = add(b, output);
    if (c->logit_scale != 1)
        logits = arch_scale(b, logits, c->logit_scale, "logits_scaled");
    if (c->logit_cap > 0) {
        logits = plain(b, GRAPH_SOFT_CAP, logits, GRAPH_NO_INPUT, "logits_capped");
        if (b->rc == 0)
            b->g->nodes[logits].scale = c->logit_cap;
    }
    struct graph_node choice = box_node(b, GRAPH_ARGMAX, "sample");
    choice.inputs[0] = logits;
    choice.width = 1;
    (void)add(b, choice);
    return b->rc;
}

uint32_t arch_self_attention(struct arch_builder *b, uint32_t x, struct arch_heads heads,
                             const char *post_norm)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t out = arch_heads(b, h, heads);
    if (post_norm)
        out = arch_norm(b, out, post_norm);
    return arch_residual(b, x, out, "attn_residual");
}

uint32_t arch_dense(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    return arch_add(b, x, arch_swiglu(b, h, ARCH_NO_BIAS), "ffn_residual");
}

uint32_t arch_gelu_dense(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    uint32_t out = arch_geglu(b, h, ARCH_NO_BIAS);
    return arch_add(b, x, arch_norm(b, out, "post_ffw_norm"), "ffn_residual");
}

static uint32_t llama_layer(struct arch_builder *b, uint32_t x)
{
    struct arch_heads heads = {.bias = ARCH_MAY_HAVE_BIAS, .output_bias = ARCH_MAY_HAVE_BIAS};
    x = arch_self_attention(b, x, heads, NULL);
    uint32_t h = arch_norm(b, x, "ffn_norm");
    if (model_config(b->m)->experts.n_experts)
        return arch_experts(b, x, h, 0);
    return arch_residual(b, x, arch_swiglu(b, h, ARCH_MAY_HAVE_BIAS), "ffn_residual");
}

int arch_build_layers(const struct model *m, struct graph *g, struct error *err, arch_part *attention,
                      arch_part *feed_forward)
{
    struct arch_builder b = {.m = m, .g = g, .err = err};
    uint32_t x = arch_embed(&b);
    for (b.layer = 0; b.layer < model_config(m)->n_layers; b.layer++) {
        x = attention(&b, x);
        x = feed_forward(&b, x);
    }
    return arch_end(&b, x);
}

int arch_build_llama(const struct model *m, struct graph *g, struct error *err)
{
    struct arch_builder b = {.m = m, .g = g, .err = err};
    uint32_t x = arch_embed(&b);
    for (b.layer = 0; b.layer < model_config(m)->n_layers; b.layer++)
        x = llama_layer(&b, x);
    return arch_end(&b, x);
}
