#include "graph.h"
#include "gguf/quant.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t arity;
} ops[GRAPH_N_OPS] = {
    [GRAPH_NONE] = {"NONE", 0},
    [GRAPH_EMBED] = {"EMBED", 1},
    [GRAPH_RMS_NORM] = {"RMS_NORM", 1},
    [GRAPH_MUL_MAT] = {"MUL_MAT", 1},
    [GRAPH_ROPE] = {"ROPE", 1},
    [GRAPH_COPY] = {"COPY", 2},
    [GRAPH_SOFT_MAX] = {"SOFT_MAX", 2},
    [GRAPH_ADD] = {"ADD", 2},
    [GRAPH_MUL] = {"MUL", 2},
    [GRAPH_SILU] = {"SILU", 1},
    [GRAPH_GELU] = {"GELU", 1},
    [GRAPH_SCALE] = {"SCALE", 1},
    [GRAPH_SOFT_CAP] = {"SOFT_CAP", 1},
    [GRAPH_ROUTE] = {"ROUTE", 1},
    [GRAPH_MUL_MAT_ID] = {"MUL_MAT_ID", 2},
    [GRAPH_MUL_MAT_HEADS] = {"MUL_MAT_HEADS", 1},
    [GRAPH_JOIN] = {"JOIN", 2},
    [GRAPH_EXPERT_SUM] = {"EXPERT_SUM", 2},
    [GRAPH_GATE] = {"GATE", 2},
    [GRAPH_SWIGLU_CLAMPED] = {"SWIGLU_CLAMPED", 2},
    [GRAPH_SIGMOID] = {"SIGMOID", 1},
    [GRAPH_SSM_CONV] = {"SSM_CONV", 1},
    [GRAPH_L2_NORM] = {"L2_NORM", 1},
    [GRAPH_DELTA_GATE] = {"DELTA_GATE", 2},
    [GRAPH_DELTA_NET] = {"DELTA_NET", 2},
    [GRAPH_ARGMAX] = {"ARGMAX", 1},
};

const char *graph_op_name(enum graph_op op)
{
    return (unsigned)op < GRAPH_N_OPS ? ops[op].name : "?";
}

uint32_t graph_op_arity(enum graph_op op)
{
    return (unsigned)op < GRAPH_N_OPS ? ops[op].arity : 0;
}

int graph_open(struct graph **out, const struct model *m, struct error *err)
{
    struct graph *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(err, -ENOMEM, "%s: no memory for the graph", gguf_path(model_gguf(m)));
    g->model = m;
    int rc = model_arch(m)->build(m, g, err);
    if (rc == 0)
        rc = graph_validate(g, err);
    if (rc < 0) {
        graph_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void graph_close(struct graph *g)
{
    if (!g)
        return;
    free(g->nodes);
    free(g);
}

uint32_t graph_add(struct graph *g, struct graph_node node)
{
    if (g->n_nodes == g->capacity && !g->failed) {
        uint32_t capacity = g->capacity ? 2 * g->capacity : 64;
        struct graph_node *nodes = realloc(g->nodes, capacity * sizeof *nodes);
        g->failed = !nodes;
        g->nodes = nodes ? nodes : g->nodes;
        g->capacity = nodes ? capacity : g->capacity;
    }
    if (g->failed)
        return 0;
    g->nodes[g->n_nodes] = node;
    return g->n_nodes++;
}

uint32_t graph_n_launches(const struct graph *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op != GRAPH_NONE;
    return n;
}

/* Validation. bad() names the node in every error. */

static int bad(const struct graph *g, uint32_t i, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int bad(const struct graph *g, uint32_t i, struct error *err, const char *fmt, ...)
{
    char words[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    return error_set(err, -EINVAL, "graph node %u %s (%s): %s", i, g->nodes[i].name,
                     graph_op_name(g->nodes[i].op), words);
}

static const struct graph_node *input(const struct graph *g, const struct graph_node *n, uint32_t i)
{
    return &g->nodes[n->inputs[i]];
}

static int check_inputs(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if ((unsigned)n->op >= GRAPH_N_OPS)
        return bad(g, i, err, "unknown op %u", (unsigned)n->op);
    uint32_t arity = ops[n->op].arity;
    for (uint32_t j = 0; j < 2; j++) {
        if (j >= arity && n->inputs[j] != GRAPH_NO_INPUT)
            return bad(g, i, err, "takes %u inputs, but input %u is given", arity, j);
        if (j < arity && n->inputs[j] == GRAPH_NO_INPUT)
            return bad(g, i, err, "input %u is missing", j);
        if (j < arity && n->inputs[j] >= i)
            return bad(g, i, err, "input %u is node %u, which does not come earlier", j, n->inputs[j]);
        if (j < arity && input(g, n, j)->head && !n->head)
            return bad(g, i, err, "runs for every row, but its input %s only for logit rows",
                       input(g, n, j)->name);
    }
    if (n->width == 0)
        return bad(g, i, err, "width is 0");
    if (n->head && (n->op == GRAPH_COPY || n->op == GRAPH_SOFT_MAX || n->op == GRAPH_SSM_CONV ||
                    n->op == GRAPH_DELTA_NET))
        return bad(g, i, err, "must run for every row, not only for logit rows");
    return 0;
}

/* Checks that a weight exists and has this shape and a supported type. */
static int check_weight(const struct graph *g, uint32_t i, const char *what, uint32_t index, uint32_t n,
                        uint32_t k, struct error *err)
{
    if (index == MODEL_NO_WEIGHT)
        return bad(g, i, err, "%s is missing", what);
    if (!g->model)
        return 0; /* a graph made by hand, which computes nothing */
    const struct weight *w = model_weight(g->model, index);
    if (!w)
        return bad(g, i, err, "%s is number %u, the model has %u", what, index, model_n_weights(g->model));
    if (w->n != n || w->k != k)
        return bad(g, i, err, "%s %s is [%u, %u], expected [%u, %u]", what, w->name, w->n, w->k, n, k);
    if (!quant_traits(w->type))
        return bad(g, i, err, "%s %s has type %s, which is not supported", what, w->name,
                   quant_name(w->type));
    return 0;
}

static int check_matrix(const struct graph *g, uint32_t i, uint32_t n, uint32_t k, struct error *err)
{
    const struct graph_node *node = &g->nodes[i];
    int rc = check_weight(g, i, "weight", node->weight, n, k, err);
    if (rc < 0)
        return rc;
    if (!quant_traits(node->weight_type))
        return bad(g, i, err, "weight type %s (%u) is not supported", quant_name(node->weight_type),
                   node->weight_type);
    if (g->model && model_weight(g->model, node->weight)->type != node->weight_type)
        return bad(g, i, err, "names weight type %s, but %s is %s", quant_name(node->weight_type),
                   model_weight(g->model, node->weight)->name,
                   quant_name(model_weight(g->model, node->weight)->type));
    return 0;
}

static int same_width(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    for (uint32_t j = 0; j < ops[n->op].arity; j++)
        if (input(g, n, j)->width != n->width)
            return bad(g, i, err, "width is %u, but input %s has %u", n->width, input(g, n, j)->name,
                       input(g, n, j)->width);
    return 0;
}

static int check_embed(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (input(g, n, 0)->op != GRAPH_NONE)
        return bad(g, i, err, "input %s is not a leaf", input(g, n, 0)->name);
    uint32_t n_vocab = g->model ? model_config(g->model)->n_vocab : 0;
    return check_matrix(g, i, n_vocab, n->width, err);
}

static int check_rms_norm(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (n->group == 0 || n->width % n->group)
        return bad(g, i, err, "width %u is not a multiple of its group %u", n->width, n->group);
    if (!isfinite(n->eps) || n->eps <= 0)
        return bad(g, i, err, "eps is %g, expected a positive number", (double)n->eps);
    int rc = same_width(g, i, err);
    return rc < 0 || n->gain == MODEL_NO_WEIGHT ? rc : check_weight(g, i, "gain", n->gain, 1, n->group, err);
}

static int check_mul_mat(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (n->k != input(g, n, 0)->width)
        return bad(g, i, err, "k is %u, but input %s has %u", n->k, input(g, n, 0)->name,
                   input(g, n, 0)->width);
    int rc = check_matrix(g, i, n->width, n->k, err);
    return rc < 0 || n->bias == MODEL_NO_WEIGHT ? rc : check_weight(g, i, "bias", n->bias, 1, n->width, err);
}

/* Checks that n_heads heads of `group` values make up the width. */
static int check_heads(const struct graph *g, uint32_t i, uint32_t n_heads, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (n->group == 0 || n->group % 2)
        return bad(g, i, err, "head length %u is not even and positive", n->group);
    if ((uint64_t)n_heads * n->group != n->width)
        return bad(g, i, err, "%u heads of %u do not make its width %u", n_heads, n->group, n->width);
    return 0;
}

static int check_rope(const struct graph *g, uint32_t i, struct error *err)
{
    int rc = check_heads(g, i, g->nodes[i].n_heads, err);
    return rc < 0 ? rc : same_width(g, i, err);
}

static int check_copy(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    int rc = check_heads(g, i, n->n_kv_heads, err);
    if (rc == 0)
        rc = same_width(g, i, err);
    uint32_t n_layers = g->model ? model_config(g->model)->n_layers : MODEL_MAX_LAYERS;
    if (rc == 0 && n->layer >= n_layers)
        return bad(g, i, err, "layer %u of %u", n->layer, n_layers);
    for (uint32_t j = 0; rc == 0 && j < i; j++)
        if (g->nodes[j].op == GRAPH_COPY && g->nodes[j].layer == n->layer)
            return bad(g, i, err, "node %s already writes the cache of layer %u", g->nodes[j].name, n->layer);
    return rc;
}

static int check_scale(const struct graph *g, uint32_t i, struct error *err)
{
    float scale = g->nodes[i].scale;
    return isfinite(scale) && scale > 0
               ? 0
               : bad(g, i, err, "scale is %g, expected a positive number", (double)scale);
}

static int check_soft_max(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i], *q = input(g, n, 0), *copy = input(g, n, 1);
    int rc = check_heads(g, i, n->n_heads, err);
    if (rc < 0)
        return rc;
    if (q->width != n->width)
        return bad(g, i, err, "width is %u, but input %s has %u", n->width, q->name, q->width);
    if (copy->op != GRAPH_COPY)
        return bad(g, i, err, "input 1 is %s, expected the COPY of keys and values", copy->name);
    if (copy->layer != n->layer)
        return bad(g, i, err, "attends in layer %u, but %s writes layer %u", n->layer, copy->name,
                   copy->layer);
    if (n->n_kv_heads == 0 || n->n_heads % n->n_kv_heads)
        return bad(g, i, err, "%u heads cannot share %u key/value heads", n->n_heads, n->n_kv_heads);
    if ((uint64_t)n->n_kv_heads * n->group != copy->width)
        return bad(g, i, err, "%u key/value heads of %u do not make the width %u of %s", n->n_kv_heads,
                   n->group, copy->width, copy->name);
    rc = check_scale(g, i, err);
    return rc < 0 || n->gain == MODEL_NO_WEIGHT ? rc
                                                : check_weight(g, i, "sinks", n->gain, 1, n->n_heads, err);
}

static int check_factor(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    int rc = same_width(g, i, err);
    if (rc < 0)
        return rc;
    return n->gain == MODEL_NO_WEIGHT ? check_scale(g, i, err)
                                      : check_weight(g, i, "factor", n->gain, 1, 1, err);
}

static int check_soft_cap(const struct graph *g, uint32_t i, struct error *err)
{
    int rc = same_width(g, i, err);
    return rc < 0 ? rc : check_scale(g, i, err);
}

static int check_mul(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i], *a = input(g, n, 0), *b = input(g, n, 1);
    if (a->width != n->width)
        return bad(g, i, err, "width is %u, but input %s has %u", n->width, a->name, a->width);
    if (n->col > b->width || n->width > b->width - n->col)
        return bad(g, i, err, "width is %u, but input %s has %u from column %u", n->width, b->name, b->width,
                   n->col);
    return 0;
}

static int check_route(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    const struct route_rule *r = &n->route;
    if (r->n_experts == 0 || r->n_experts > ROUTE_MAX_EXPERTS || input(g, n, 0)->width != r->n_experts)
        return bad(g, i, err, "chooses of %u experts (at most %u), input %s has %u", r->n_experts,
                   ROUTE_MAX_EXPERTS, input(g, n, 0)->name, input(g, n, 0)->width);
    if (r->n_groups == 0 || r->n_experts % r->n_groups || r->n_groups_used == 0 ||
        r->n_groups_used > r->n_groups)
        return bad(g, i, err, "%u of %u groups of %u experts", r->n_groups_used, r->n_groups, r->n_experts);
    uint32_t most = r->n_experts / r->n_groups * r->n_groups_used;
    most = most < ROUTE_MAX_USED ? most : ROUTE_MAX_USED;
    if (r->n_used == 0 || r->n_used > most || n->width != 2u * r->n_used)
        return bad(g, i, err, "%u experts of at most %u, width %u", r->n_used, most, n->width);
    if (r->gating != ROUTE_SOFTMAX && r->gating != ROUTE_SIGMOID)
        return bad(g, i, err, "gating function %u is not known", r->gating);
    if (!isfinite(r->scale))
        return bad(g, i, err, "scale is %g", (double)r->scale);
    int rc = n->bias == MODEL_NO_WEIGHT ? 0 : check_weight(g, i, "bias", n->bias, 1, r->n_experts, err);
    return rc < 0 || n->gain == MODEL_NO_WEIGHT
               ? rc
               : check_weight(g, i, "factors", n->gain, 1, r->n_experts, err);
}

/* Checks that input 1 is the choice that the node names. */
static int check_choice(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i], *route = input(g, n, 1);
    if (route->op != GRAPH_ROUTE || route->route.n_experts != n->route.n_experts ||
        route->route.n_used != n->route.n_used)
        return bad(g, i, err, "input %s is not the choice of %u of %u experts", route->name, n->route.n_used,
                   n->route.n_experts);
    return 0;
}

static int check_mul_mat_id(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    uint32_t used = n->route.n_used, in = input(g, n, 0)->width;
    int rc = check_choice(g, i, err);
    if (rc < 0)
        return rc;
    if (n->width % used || (n->k != in && (uint64_t)n->k * used != in))
        return bad(g, i, err, "width %u, k %u, %u experts used, but input %s has %u", n->width, n->k, used,
                   input(g, n, 0)->name, in);
    rc = check_matrix(g, i, n->width / used * n->route.n_experts, n->k, err);
    return rc < 0 || n->bias == MODEL_NO_WEIGHT
               ? rc
               : check_weight(g, i, "bias", n->bias, n->route.n_experts, n->width / used, err);
}

static int check_mul_mat_heads(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    uint64_t part = (uint64_t)n->col + n->k + n->keep;
    if (n->n_heads == 0 || n->n_heads > ROUTE_MAX_EXPERTS || n->n_heads * part != input(g, n, 0)->width)
        return bad(g, i, err, "%u heads of %llu (at most %u heads) do not make the width %u of %s",
                   n->n_heads, (unsigned long long)part, ROUTE_MAX_EXPERTS, input(g, n, 0)->width,
                   input(g, n, 0)->name);
    if (n->width % n->n_heads || n->width / n->n_heads <= n->keep)
        return bad(g, i, err, "width is %u for %u heads that keep %u", n->width, n->n_heads, n->keep);
    return check_matrix(g, i, n->width - n->n_heads * n->keep, n->k, err);
}

static int check_join(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if ((uint64_t)input(g, n, 0)->width + input(g, n, 1)->width != n->width)
        return bad(g, i, err, "width is %u, but its inputs have %u and %u", n->width, input(g, n, 0)->width,
                   input(g, n, 1)->width);
    return 0;
}

static int check_expert_sum(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i], *x = input(g, n, 0);
    int rc = check_choice(g, i, err);
    if (rc == 0 && (uint64_t)n->width * n->route.n_used != x->width)
        return bad(g, i, err, "%u outputs of width %u, but input %s has %u", n->route.n_used, n->width,
                   x->name, x->width);
    return rc;
}

static int check_gate(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (input(g, n, 0)->width != n->width || input(g, n, 1)->width != 1)
        return bad(g, i, err, "width is %u, but its inputs have %u and %u (1 expected)", n->width,
                   input(g, n, 0)->width, input(g, n, 1)->width);
    return 0;
}

/* Recurrent layers. */

static int check_shape(const struct graph *g, uint32_t i, struct error *err)
{
    const struct delta_shape *s = &g->nodes[i].delta;
    if (s->n_key_heads == 0 || s->n_value_heads == 0 || s->n_value_heads % s->n_key_heads ||
        s->n_value_heads > DELTA_MAX_HEADS)
        return bad(g, i, err, "%u value heads cannot share %u key heads", s->n_value_heads, s->n_key_heads);
    const uint32_t dims[2] = {s->key_dim, s->value_dim};
    for (uint32_t j = 0; j < 2; j++)
        if (dims[j] == 0 || dims[j] % DELTA_COLUMNS || dims[j] > DELTA_MAX_DIM)
            return bad(g, i, err, "a head of %u values, expected a multiple of %u up to %u", dims[j],
                       DELTA_COLUMNS, DELTA_MAX_DIM);
    if (s->n_taps < 2 || s->n_taps > DELTA_MAX_TAPS)
        return bad(g, i, err, "a convolution of %u taps, expected 2 to %u", s->n_taps, DELTA_MAX_TAPS);
    return 0;
}

/* Checks that the node has the shape's channels. */
static int check_channels(const struct graph *g, uint32_t i, struct error *err)
{
    int rc = check_shape(g, i, err);
    if (rc < 0)
        return rc;
    uint32_t channels = delta_channels(&g->nodes[i].delta);
    const struct graph_node *x = input(g, &g->nodes[i], 0);
    return x->width == channels
               ? 0
               : bad(g, i, err, "%u channels, but input %s has %u", channels, x->name, x->width);
}

static int check_conv(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    int rc = check_channels(g, i, err);
    if (rc == 0)
        rc = same_width(g, i, err);
    return rc < 0 ? rc : check_weight(g, i, "table of taps", n->gain, n->width, n->delta.n_taps, err);
}

static int check_l2_norm(const struct graph *g, uint32_t i, struct error *err)
{
    int rc = check_channels(g, i, err);
    if (rc < 0)
        return rc;
    if (!isfinite(g->nodes[i].eps) || g->nodes[i].eps <= 0)
        return bad(g, i, err, "eps is %g, expected a positive number", (double)g->nodes[i].eps);
    return same_width(g, i, err);
}

static int check_delta_gate(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    int rc = check_shape(g, i, err);
    uint32_t heads = n->delta.n_value_heads, width = n->inputs[0] == n->inputs[1] ? 2 * heads : heads;
    for (uint32_t j = 0; j < 2 && rc == 0; j++)
        if (input(g, n, j)->width != width || n->width != 2 * heads)
            rc = bad(g, i, err, "width is %u for %u heads, but input %s has %u", n->width, heads,
                     input(g, n, j)->name, input(g, n, j)->width);
    if (rc == 0)
        rc = check_weight(g, i, "decay", n->gain, 1, heads, err);
    return rc < 0 ? rc : check_weight(g, i, "bias", n->bias, 1, heads, err);
}

static int check_delta_net(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i], *gate = input(g, n, 1);
    int rc = check_channels(g, i, err);
    if (rc < 0)
        return rc;
    if (n->width != delta_value_width(&n->delta))
        return bad(g, i, err, "width is %u, expected %u", n->width, delta_value_width(&n->delta));
    return gate->op == GRAPH_DELTA_GATE && gate->width == 2 * n->delta.n_value_heads
               ? 0
               : bad(g, i, err, "input 1 is %s, expected the gates of %u heads", gate->name,
                     n->delta.n_value_heads);
}

static int check_argmax(const struct graph *g, uint32_t i, struct error *err)
{
    const struct graph_node *n = &g->nodes[i];
    if (n->width != 1)
        return bad(g, i, err, "width is %u, expected 1", n->width);
    if (!n->head)
        return bad(g, i, err, "samples for every row, expected only logit rows");
    return 0;
}

static int check_node(const struct graph *g, uint32_t i, struct error *err)
{
    static int (*const checks[GRAPH_N_OPS])(const struct graph *, uint32_t, struct error *) = {
        [GRAPH_EMBED] = check_embed,
        [GRAPH_RMS_NORM] = check_rms_norm,
        [GRAPH_MUL_MAT] = check_mul_mat,
        [GRAPH_ROPE] = check_rope,
        [GRAPH_COPY] = check_copy,
        [GRAPH_SOFT_MAX] = check_soft_max,
        [GRAPH_ADD] = same_width,
        [GRAPH_MUL] = check_mul,
        [GRAPH_SILU] = same_width,
        [GRAPH_GELU] = same_width,
        [GRAPH_SCALE] = check_factor,
        [GRAPH_SOFT_CAP] = check_soft_cap,
        [GRAPH_ROUTE] = check_route,
        [GRAPH_MUL_MAT_ID] = check_mul_mat_id,
        [GRAPH_MUL_MAT_HEADS] = check_mul_mat_heads,
        [GRAPH_JOIN] = check_join,
        [GRAPH_EXPERT_SUM] = check_expert_sum,
        [GRAPH_GATE] = check_gate,
        [GRAPH_SWIGLU_CLAMPED] = same_width,
        [GRAPH_SIGMOID] = same_width,
        [GRAPH_SSM_CONV] = check_conv,
        [GRAPH_L2_NORM] = check_l2_norm,
        [GRAPH_DELTA_GATE] = check_delta_gate,
        [GRAPH_DELTA_NET] = check_delta_net,
        [GRAPH_ARGMAX] = check_argmax,
    };
    int rc = check_inputs(g, i, err);
    return rc < 0 || !checks[g->nodes[i].op] ? rc : checks[g->nodes[i].op](g, i, err);
}

int graph_validate(const struct graph *g, struct error *err)
{
    if (g->failed)
        return error_set(err, -ENOMEM, "no memory for a graph of more than %u nodes", g->n_nodes);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        int rc = check_node(g, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Printing. */

static void print_shape(FILE *f, const struct graph_node *n)
{
    if (n->op == GRAPH_MUL_MAT || n->op == GRAPH_EMBED || n->op == GRAPH_MUL_MAT_ID)
        fprintf(f, "  %s", quant_name(n->weight_type));
    if (n->op == GRAPH_MUL_MAT)
        fprintf(f, " [%u, %u]%s", n->width, n->k, n->bias == MODEL_NO_WEIGHT ? "" : " + bias");
    if (n->op == GRAPH_MUL_MAT_ID)
        fprintf(f, " %u of %u x [%u, %u]%s", n->route.n_used, n->route.n_experts, n->width / n->route.n_used,
                n->k, n->bias == MODEL_NO_WEIGHT ? "" : " + bias");
    if (n->op == GRAPH_MUL_MAT_HEADS)
        fprintf(f, "  %s %u heads [%u, %u]", quant_name(n->weight_type), n->n_heads,
                n->width / n->n_heads - n->keep, n->k);
    if (n->op == GRAPH_ROUTE)
        fprintf(f, "  %u of %u, %s%s%s, scale %g", n->route.n_used, n->route.n_experts,
                n->route.gating == ROUTE_SIGMOID ? "sigmoid" : "softmax",
                n->route.normalise ? ", normalised" : "", n->bias == MODEL_NO_WEIGHT ? "" : ", biased choice",
                (double)n->route.scale);
    if (n->op == GRAPH_RMS_NORM)
        fprintf(f, "  over %u, eps %g", n->group, (double)n->eps);
    if (n->op == GRAPH_ROPE)
        fprintf(f, "  %u heads of %u", n->n_heads, n->group);
    if (n->op == GRAPH_COPY)
        fprintf(f, "  layer %u, %u heads of %u", n->layer, n->n_kv_heads, n->group);
    if (n->op == GRAPH_SOFT_MAX)
        fprintf(f, "  layer %u, %u heads of %u on %u, scale %.6g", n->layer, n->n_heads, n->group,
                n->n_kv_heads, (double)n->scale);
    if (n->op == GRAPH_SOFT_MAX && n->gain != MODEL_NO_WEIGHT)
        fputs(", sinks", f);
    if (n->op == GRAPH_SSM_CONV)
        fprintf(f, "  %u taps", n->delta.n_taps);
    if (n->op == GRAPH_L2_NORM)
        fprintf(f, "  %u heads of %u, eps %g", 2 * n->delta.n_key_heads, n->delta.key_dim, (double)n->eps);
    if (n->op == GRAPH_DELTA_NET)
        fprintf(f, "  %u heads of %u on %u of %u", n->delta.n_value_heads, n->delta.value_dim,
                n->delta.n_key_heads, n->delta.key_dim);
    if ((n->op == GRAPH_SCALE || n->op == GRAPH_SOFT_CAP) && n->gain == MODEL_NO_WEIGHT)
        fprintf(f, "  %.6g", (double)n->scale);
    if (n->op == GRAPH_MUL && n->col)
        fprintf(f, "  from column %u", n->col);
    if (n->head)
        fputs("  (logit rows)", f);
}

char *graph_print(const struct graph *g)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        fprintf(f, "%4u  %-8s  %-24s  %6u ", i, graph_op_name(n->op), n->name, n->width);
        for (uint32_t j = 0; j < 2 && n->inputs[j] != GRAPH_NO_INPUT; j++)
            fprintf(f, "%s %u", j ? "," : " <-", n->inputs[j]);
        print_shape(f, n);
        fputc('\n', f);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
