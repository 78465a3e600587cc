/* gemma4.c - Gemma 4, dense and with experts: as Gemma 3, and: windowed and full layers have heads of their
 * own size; values are normalised without a weight, and are the keys before their norm where there is no
 * attn_v; scores are not scaled; the last layers read the cache of an earlier layer of their kind; a layer's
 * output has a factor, and small models add an embedding of the token for each layer. Experts compute beside
 * the dense feed-forward; each of the two is normalised before they are added. */
#include "arch.h"
#include "model/config_reader.h"

#include <errno.h>
#include <math.h>

/* Kind 1's sizes, and the layers that share a cache. */
static void configure_windows(struct config_reader *r, struct model_config *c)
{
    struct model_attention *window = &c->kinds[1];
    uint32_t shared = 0, n_own[MODEL_MAX_KINDS] = {0}, value_length = 0;
    float base = 10000;
    config_u32(r, "attention.key_length_swa", &window->head_dim);
    config_u32(r, "attention.value_length_swa", &value_length);
    config_u32(r, "rope.dimension_count_swa", &window->rope.dim);
    config_factor(r, "rope.freq_base_swa", &base);
    config_u32(r, "attention.shared_kv_layers", &shared);
    window->rope.base = (double)base;
    window->rope.scale = 1;
    if (window->head_dim == 0 || window->head_dim % 2 || window->head_dim > MODEL_MAX_HEAD_DIM ||
        (value_length && value_length != window->head_dim) || window->rope.dim > window->head_dim ||
        window->rope.dim % 2)
        config_fail(r, -ENOTSUP,
                    "%s.attention.key_length_swa %u with values of %u, %u of them rotated, is not supported",
                    r->arch, window->head_dim, value_length, window->rope.dim);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t *own = &n_own[c->layers[i].kind];
        config_layer_u32(r, "attention.head_count_kv", i, &c->kinds[c->layers[i].kind].n_kv_heads);
        if (i + shared < c->n_layers)
            ++*own;
        else if (*own > 0)
            c->layers[i].cache = *own - 1;
        else
            config_fail(r, -EBADMSG, "%s.attention.shared_kv_layers is %u of %u layers", r->arch, shared,
                        c->n_layers);
    }
}

static int configure(struct config_reader *r, struct model_config *c)
{
    c->embedding_scale = sqrtf((float)c->n_embd);
    c->kinds[0].scale = 1;
    config_factor(r, "final_logit_softcapping", &c->logit_cap);
    config_u32(r, "embedding_length_per_layer_input", &c->n_embd_layer);
    c->sliding_window = 0;
    if (config_windows(r, c, 0, 0))
        configure_windows(r, c);
    else
        config_fail(r, -EBADMSG, "key %s.attention.sliding_window is missing", r->arch);
    return r->rc;
}

/* The COPY of the layer's cache: its own, or that of the layer that it shares it with. */
static uint32_t cache_of(struct arch_builder *b, uint32_t h)
{
    const struct model_config *c = model_config(b->m);
    const struct model_layer *layer = &c->layers[b->layer];
    for (uint32_t i = 0; i < b->g->n_nodes; i++) {
        const struct graph_node *n = &b->g->nodes[i];
        if (n->op == GRAPH_COPY && n->kind == layer->kind && n->cache == layer->cache)
            return i;
    }
    uint32_t k = arch_linear(b, h, arch_kv_width(b), ARCH_NO_BIAS, "attn_k"), v = k;
    if (arch_has(b, "attn_v.weight"))
        v = arch_linear(b, h, arch_kv_width(b), ARCH_NO_BIAS, "attn_v");
    v = arch_plain_head_norm(b, v, "attn_v_normed");
    k = arch_head_norm(b, k, "attn_k_norm");
    return arch_copy(b, arch_rope(b, k, "k_rope"), v);
}

static uint32_t attention(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "attn_norm");
    uint32_t q = arch_linear(b, h, arch_q_width(b), ARCH_NO_BIAS, "attn_q");
    q = arch_head_norm(b, q, "attn_q_norm");
    q = arch_rope(b, q, "q_rope");
    uint32_t out = arch_attend(b, q, cache_of(b, h), false);
    out = arch_linear(b, out, model_config(b->m)->n_embd, ARCH_NO_BIAS, "attn_output");
    return arch_add(b, x, arch_norm(b, out, "post_attention_norm"), "attn_residual");
}

static uint32_t feed_forward(struct arch_builder *b, uint32_t x)
{
    uint32_t h = arch_norm(b, x, "ffn_norm");
    uint32_t out = arch_geglu(b, h, ARCH_NO_BIAS);
    if (model_config(b->m)->experts.n_experts) {
        uint32_t dense = arch_norm(b, out, "post_ffw_norm_1"), choice = arch_router(b, x);
        uint32_t experts = arch_gelu_experts(b, arch_norm(b, x, "pre_ffw_norm_2"), choice);
        out = arch_add(b, dense, arch_norm(b, experts, "post_ffw_norm_2"), "ffn_sum");
    }
    return arch_add(b, x, arch_norm(b, out, "post_ffw_norm"), "ffn_residual");
}

/* The layer's part of the token's further embedding, gated by x. */
static uint32_t layer_embedding(struct arch_builder *b, uint32_t x, uint32_t embeddings)
{
    const struct model_config *c = model_config(b->m);
    uint32_t gate = arch_linear(b, x, c->n_embd_layer, ARCH_NO_BIAS, "inp_gate");
    uint32_t gated = arch_gated_part(b, gate, embeddings, b->layer * c->n_embd_layer);
    uint32_t out = arch_linear(b, gated, c->n_embd, ARCH_NO_BIAS, "proj");
    return arch_add(b, x, arch_norm(b, out, "post_norm"), "embd_residual");
}

static int build(const struct model *m, struct graph *g, struct error *err)
{
    struct arch_builder b = {.m = m, .g = g, .err = err};
    bool further = model_config(m)->n_embd_layer > 0;
    uint32_t x = arch_embed(&b), embeddings = further ? arch_layer_embeddings(&b, x) : 0;
    for (b.layer = 0; b.layer < model_config(m)->n_layers; b.layer++) {
        x = attention(&b, x);
        x = feed_forward(&b, x);
        x = further ? layer_embedding(&b, x, embeddings) : x;
        x = arch_layer_scale(&b, x, "layer_output_scale");
    }
    return arch_end(&b, x);
}

const struct arch arch_gemma4 = {.name = "gemma4",
                                 .build = build,
                                 .rope = MODEL_ROPE_NEOX,
                                 .configure = configure,
                                 .gating = ROUTE_SOFTMAX,
                                 .normalise = true,
                                 .may_have_experts = true,
                                 .expert_factors = true};
