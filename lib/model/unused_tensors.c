/* unused_tensors.c - the tensors of a file that no node of the graph reads. One that belongs to the model's
 * own layers, embedding or output would change the result (a bias, a factor of a product, a sink): the file
 * is refused rather than computed without it. */
#include "graph.h"
#include "model_private.h"
#include "weight_use.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Behind "blk.<layer>.": what may be there without a use. */
static const char *const spare_parts[] = {
    "nextn.",         /* tensors of blocks that predict further tokens */
    "attn_rot_embd.", /* frequencies that old converters wrote down */
    "rope_freqs.",
    "rope_factors_", /* read once, for all layers */
    NULL,
};

/* The beginnings of what stands outside of layers and takes part in the result. */
static const char *const whole[] = {"token_embd", "token_types", "position_embd",
                                    "output",     "per_layer_",  NULL};

static bool begins_with_any(const char *name, const char *const *beginnings)
{
    for (; *beginnings; beginnings++)
        if (strncmp(name, *beginnings, strlen(*beginnings)) == 0)
            return true;
    return false;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

/* Returns whether the layer reads the cache that an earlier one fills. */
static bool shares_cache(const struct model_config *c, uint32_t layer)
{
    const struct model_layer *mine = &c->layers[layer];
    bool shared = false;
    for (uint32_t i = 0; i < layer && !mine->recurrent; i++)
        shared |=
            !c->layers[i].recurrent && c->layers[i].kind == mine->kind && c->layers[i].cache == mine->cache;
    return shared;
}

/* Returns whether another tensor takes the place of this one of a layer: the absorbed halves of attn_kv_b, or
 * the keys and values of an earlier layer. */
static bool is_replaced(const struct model_config *c, uint32_t layer, const char *part)
{
    static const char *const cached[] = {"attn_k.", "attn_v.", "attn_k_norm.", NULL};
    if (c->latent.rank && strcmp(part, "attn_kv_b.weight") == 0)
        return true;
    return begins_with_any(part, cached) && shares_cache(c, layer);
}

/* Returns whether the model is another one without the tensor. */
static bool is_part_of_result(const struct model *m, const char *name)
{
    if (ends_with(name, ".input_scale")) /* it scales activations of four bits; ours have eight */
        return false;
    if (strncmp(name, "blk.", 4) != 0)
        return begins_with_any(name, whole);
    char *end;
    unsigned long layer = strtoul(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || layer >= m->config.n_layers)
        return false;
    return !begins_with_any(end + 1, spare_parts) && !is_replaced(&m->config, (uint32_t)layer, end + 1);
}

/* Marks the tensors that nodes read, fused ones and factors too. */
static void mark_used(const struct graph *g, const uint8_t *uses, bool *used)
{
    for (uint32_t i = 0; i < g->model->n_weights; i++) {
        const struct weight *w = &g->model->weights[i];
        used[w->tensor] |= uses[i] != WEIGHT_UNUSED;
        if (w->multiplied)
            used[w->factors] |= uses[i] != WEIGHT_UNUSED;
    }
}

int model_refuse_unused(const struct graph *g, struct error *err)
{
    const struct model *m = g->model;
    uint8_t *uses = weight_uses(g);
    bool *used = calloc(m->n_tensors, sizeof *used);
    int rc = uses && used
                 ? 0
                 : error_set(err, -ENOMEM, "%s: no memory for the uses of tensors", gguf_path(m->gguf));
    if (rc == 0)
        mark_used(g, uses, used);
    for (uint32_t i = 0; i < m->n_tensors && rc == 0; i++) {
        const char *name = m->weights[i].name;
        if (!used[i] && is_part_of_result(m, name))
            rc = error_set(err, -ENOTSUP,
                           "%s: tensor %s is not supported with architecture %s, and without it the result "
                           "would be another model's",
                           gguf_path(m->gguf), name, m->arch->name);
    }
    free(used);
    free(uses);
    return rc;
}
