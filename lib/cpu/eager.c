/* eager.c - runs one graph node at a time, each with buffers of its own, in the arithmetic of the fused
 * program. A norm whose readers are all products yields x * gain, and its 1/rms is stored beside it for the
 * product (kernels/abi/arith.h); every other norm is applied at once. */
#include "cpu_decoder.h"
#include "model/graph_buffers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct value { /* value of a node */
    struct rows rows;
    float *factors; /* 1/rms of each row, or NULL */
};

struct eager {
    struct value *values; /* [n_nodes] */
    struct memory_block memory;
};

static size_t area_floats(const struct graph_area *a)
{
    return rows_stride(a->width) * (a->head ? STEP_MAX_LOGITS : STEP_MAX_ROWS);
}

static int values_set(struct eager *e, const struct graph *g, struct graph_area *areas, uint32_t *area_of,
                      uint32_t *last_use, struct error *err)
{
    uint32_t n = graph_areas(g, areas, area_of, last_use), n_deferred = 0;
    size_t floats = 0;
    for (uint32_t i = 0; i < n; i++)
        floats += area_floats(&areas[i]);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n_deferred += graph_is_deferred(g, i);
    int rc = memory_map(&e->memory, (floats + (size_t)n_deferred * STEP_MAX_ROWS) * sizeof(float),
                        "activations", err);
    if (rc < 0)
        return rc;
    float *at = e->memory.data;
    for (uint32_t a = 0; a < n; a++, at += area_floats(&areas[a - 1]))
        for (uint32_t i = 0; i < g->n_nodes; i++)
            if (area_of[i] == a)
                e->values[i].rows = (struct rows){.data = at, .stride = rows_stride(areas[a].width)};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (graph_is_deferred(g, i)) {
            e->values[i].factors = at;
            at += STEP_MAX_ROWS;
        }
    return 0;
}

int eager_open(struct decoder *d, struct error *err)
{
    const struct graph *g = d->graph;
    struct eager *e = d->eager = calloc(1, sizeof *e);
    struct graph_area *areas = calloc(g->n_nodes, sizeof *areas);
    uint32_t *area_of = calloc(g->n_nodes, sizeof *area_of), *last_use = calloc(g->n_nodes, sizeof *last_use);
    if (e)
        e->values = calloc(g->n_nodes, sizeof *e->values);
    int rc = e && e->values && areas && area_of && last_use
                 ? values_set(e, g, areas, area_of, last_use, err)
                 : error_set(err, -ENOMEM, "eager executor: out of memory");
    free(areas);
    free(area_of);
    free(last_use);
    return rc;
}

void eager_close(struct eager *e)
{
    if (!e)
        return;
    memory_unmap(&e->memory);
    free(e->values);
    free(e);
}

size_t eager_size(const struct eager *e)
{
    return e->memory.size;
}

struct rows eager_logits(const struct eager *e, const struct graph *g)
{
    return e->values[g->nodes[g->n_nodes - 1].inputs[0]].rows;
}

void eager_value(const struct decoder *d, uint32_t node, uint32_t row, float *out, float *factor)
{
    const struct value *v = &d->eager->values[node];
    memcpy(out, row_at(v->rows, row), d->graph->nodes[node].width * sizeof *out);
    *factor = v->factors ? v->factors[row] : 1;
}

struct launch { /* one node on one member */
    struct decoder *d;
    const struct graph_node *node;
    const struct value *out;
    uint32_t member, n_rows;
};

/* The row of input `i` for row `row` of the node: nodes for logit rows may read values of all rows. */
static uint32_t input_row(const struct launch *l, uint32_t i, uint32_t row)
{
    bool gathered = l->node->head && !l->d->graph->nodes[l->node->inputs[i]].head;
    return gathered ? l->d->logit_rows[row] : row;
}

static const struct value *input_value(const struct launch *l, uint32_t i)
{
    return &l->d->eager->values[l->node->inputs[i]];
}

static float *input_at(const struct launch *l, uint32_t i, uint32_t row)
{
    return row_at(input_value(l, i)->rows, input_row(l, i, row));
}

static const float *vector_of(const struct decoder *d, uint32_t weight)
{
    return weight == MODEL_NO_WEIGHT ? NULL : d->weights.vectors[weight];
}

static void norm_row(const struct launch *l, uint32_t row)
{
    const struct graph_node *n = l->node;
    const struct ops *ops = l->d->ops;
    const float *x = input_at(l, 0, row), *gain = vector_of(l->d, n->gain);
    float *out = row_at(l->out->rows, row);
    if (l->out->factors) {
        ops->mul(out, x, gain, n->width);
        l->out->factors[row] = ops->rms_inverse(x, n->width, n->eps);
        return;
    }
    memcpy(out, x, n->width * sizeof *out);
    for (uint32_t at = 0; at < n->width; at += n->group)
        ops->norm_head(out + at, gain, n->group, n->eps);
}

static void copy_row(const struct launch *l, uint32_t row)
{
    const struct graph_node *n = l->node;
    const float *k = input_at(l, 0, row), *v = input_at(l, 1, row);
    for (uint32_t h = 0; h < n->n_kv_heads; h++)
        attend_append(&l->d->attend[n->kind], n->cache, row, h, k + (size_t)h * n->group,
                      v + (size_t)h * n->group);
    memcpy(row_at(l->out->rows, row), k, n->width * sizeof *k);
}

static void join_row(const struct launch *l, uint32_t row)
{
    uint32_t first = l->d->graph->nodes[l->node->inputs[0]].width;
    float *out = row_at(l->out->rows, row);
    memcpy(out, input_at(l, 0, row), first * sizeof *out);
    memcpy(out + first, input_at(l, 1, row), (l->node->width - first) * sizeof *out);
}

static void sum_row(const struct launch *l, uint32_t row)
{
    const struct graph_node *n = l->node;
    const float *y = input_at(l, 0, row), *weights = input_at(l, 1, row) + n->route.n_used;
    float *out = row_at(l->out->rows, row);
    memset(out, 0, n->width * sizeof *out);
    for (uint32_t u = 0; u < n->route.n_used; u++)
        l->d->ops->add_scaled(out, y + (size_t)u * n->width, n->width, weights[u]);
}

static void run_row(const struct launch *l, uint32_t row)
{
    const struct graph_node *n = l->node;
    struct decoder *d = l->d;
    float *out = row_at(l->out->rows, row);
    switch (n->op) {
    case GRAPH_EMBED:
        matmul_row(&d->weights.matrices[n->weight], (uint32_t)d->tokens[row], out);
        break;
    case GRAPH_RMS_NORM:
        norm_row(l, row);
        break;
    case GRAPH_ROPE:
        memcpy(out, input_at(l, 0, row), n->width * sizeof *out);
        attend_rope(&d->attend[n->kind], row, out, n->n_heads);
        break;
    case GRAPH_COPY:
        copy_row(l, row);
        break;
    case GRAPH_ADD:
        d->ops->add(out, input_at(l, 0, row), input_at(l, 1, row), n->width);
        break;
    case GRAPH_MUL:
        d->ops->mul(out, input_at(l, 0, row), input_at(l, 1, row) + n->col, n->width);
        break;
    case GRAPH_SILU:
        d->ops->silu(out, input_at(l, 0, row), n->width);
        break;
    case GRAPH_GELU:
        d->ops->gelu(out, input_at(l, 0, row), n->width);
        break;
    case GRAPH_SCALE:
        d->ops->scale(out, input_at(l, 0, row), n->width,
                      n->gain == MODEL_NO_WEIGHT ? n->scale : vector_of(d, n->gain)[0]);
        break;
    case GRAPH_SOFT_CAP:
        d->ops->soft_cap(out, input_at(l, 0, row), n->width, n->scale);
        break;
    case GRAPH_JOIN:
        join_row(l, row);
        break;
    case GRAPH_ROUTE:
        route_row(&n->route, input_at(l, 0, row), vector_of(d, n->bias), out);
        if (n->gain != MODEL_NO_WEIGHT)
            route_factors(&n->route, vector_of(d, n->gain), out);
        break;
    case GRAPH_EXPERT_SUM:
        sum_row(l, row);
        break;
    case GRAPH_SWIGLU_CLAMPED:
        d->ops->swiglu_clamped(out, input_at(l, 0, row), input_at(l, 1, row), n->width, 1.0f, NULL, NULL);
        break;
    case GRAPH_GATE:
        d->ops->store(out, input_at(l, 0, row), n->width, arith_sigmoid(input_at(l, 1, row)[0]), NULL);
        break;
    case GRAPH_SIGMOID:
        d->ops->sigmoid(out, input_at(l, 0, row), n->width);
        break;
    case GRAPH_L2_NORM:
        memcpy(out, input_at(l, 0, row), n->width * sizeof *out);
        for (uint32_t h = 0; h < 2 * n->delta.n_key_heads; h++)
            delta_unit_head(&d->delta, h, out, n->eps);
        break;
    case GRAPH_DELTA_GATE:
        delta_gates(&n->delta, vector_of(d, n->gain), vector_of(d, n->bias), input_at(l, 0, row),
                    input_at(l, 1, row), n->inputs[0] == n->inputs[1], out);
        break;
    case GRAPH_ARGMAX:
        decoder_choose(d, row, input_at(l, 0, row), d->members[l->member].sampler);
        break;
    case GRAPH_NONE:
    case GRAPH_MUL_MAT:
    case GRAPH_MUL_MAT_ID:
    case GRAPH_MUL_MAT_HEADS:
    case GRAPH_SOFT_MAX:
    case GRAPH_SSM_CONV:
    case GRAPH_DELTA_NET:
    case GRAPH_N_OPS:
        break;
    }
}

static void run_product(const struct launch *l)
{
    struct decoder *d = l->d;
    const struct graph_node *n = l->node;
    struct product p = {
        .matrices = {&d->weights.matrices[n->weight]},
        .bias = {vector_of(d, n->bias)},
        .n_matrices = 1,
        .epilogue = PROGRAM_STORE,
        .n_rows = l->n_rows,
        .in = input_value(l, 0)->rows,
        .gather = n->head && !d->graph->nodes[n->inputs[0]].head ? d->logit_rows : NULL,
        .factors = input_value(l, 0)->factors,
        .out = l->out->rows,
        .scale = 1,
    };
    product_run(&p, &d->product, &d->members[l->member].product, d->team, l->member);
}

static void run_experts(const struct launch *l)
{
    struct decoder *d = l->d;
    const struct graph_node *n = l->node;
    struct experts x = {
        .matrices = {&d->weights.matrices[n->weight]},
        .bias = {vector_of(d, n->bias)},
        .n_matrices = 1,
        .end = EXPERTS_STORE,
        .n_experts = n->route.n_experts,
        .n_used = n->route.n_used,
        .n_rows = l->n_rows,
        .in = input_value(l, 0)->rows,
        .own_input = d->graph->nodes[n->inputs[0]].width != n->k,
        .choice = input_value(l, 1)->rows,
        .factors = input_value(l, 0)->factors,
        .out = l->out->rows,
    };
    const struct decoder_member *own = &d->members[l->member];
    experts_run(&x, &d->product, &own->product, own->experts, d->team, l->member);
}

static void run_heads(const struct launch *l)
{
    struct decoder *d = l->d;
    const struct graph_node *n = l->node;
    struct heads h = {
        .matrix = &d->weights.matrices[n->weight],
        .n_heads = n->n_heads,
        .n_rows = l->n_rows,
        .col = n->col,
        .keep = n->keep,
        .in = input_value(l, 0)->rows,
        .out = l->out->rows,
    };
    const struct decoder_member *own = &d->members[l->member];
    heads_run(&h, &d->product, &own->product, own->experts, d->team, l->member);
}

static void run_attention(const struct launch *l)
{
    struct decoder *d = l->d;
    const struct graph_node *n = l->node;
    const struct attend *a = &d->attend[n->kind];
    const struct attend_layer layer = {n->cache, n->scale, vector_of(d, n->gain)};
    uint32_t n_groups = a->n_groups;
    if (a->n_splits) {
        attend_splits(a, d->team, l->member, &d->members[l->member].attend[a - d->attend], &layer,
                      input_value(l, 0)->rows, l->out->rows);
        return;
    }
    struct team_deal units = team_deal(d->team, l->member, n_groups * n->n_kv_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        attend_group(a, &d->members[l->member].attend[n->kind], &layer, i % n_groups, i / n_groups,
                     input_value(l, 0)->rows, l->out->rows);
}

static void run_convolution(const struct launch *l)
{
    const struct delta_net *net = &l->d->delta;
    uint32_t n_heads = delta_n_heads(&net->shape);
    struct team_deal units = team_deal(l->d->team, l->member, net->n_groups * n_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        delta_convolve(net, l->node->cache, i / n_heads, i % n_heads, input_value(l, 0)->rows, l->out->rows);
}

static void run_delta_net(const struct launch *l)
{
    const struct delta_net *net = &l->d->delta;
    uint32_t n_heads = net->shape.n_value_heads;
    struct team_deal units = team_deal(l->d->team, l->member, net->n_groups * n_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        delta_scan(net, l->node->cache, i / n_heads, i % n_heads, input_value(l, 0)->rows,
                   input_value(l, 1)->rows, l->out->rows);
}

struct dispatch {
    struct decoder *d;
    uint32_t node;
};

static void dispatch_member(void *context, uint32_t member)
{
    const struct dispatch *x = context;
    struct decoder *d = x->d;
    struct launch l = {.d = d, .node = &d->graph->nodes[x->node], .out = &d->eager->values[x->node]};
    l.member = member;
    l.n_rows = l.node->head ? d->step->n_logits : d->step->n_rows;
    if (l.node->op == GRAPH_MUL_MAT) {
        run_product(&l);
        return;
    }
    if (l.node->op == GRAPH_MUL_MAT_ID) {
        run_experts(&l);
        return;
    }
    if (l.node->op == GRAPH_MUL_MAT_HEADS) {
        run_heads(&l);
        return;
    }
    if (l.node->op == GRAPH_SOFT_MAX) {
        run_attention(&l);
        return;
    }
    if (l.node->op == GRAPH_SSM_CONV || l.node->op == GRAPH_DELTA_NET) {
        (l.node->op == GRAPH_SSM_CONV ? run_convolution : run_delta_net)(&l);
        return;
    }
    struct team_deal rows = team_deal(d->team, member, l.n_rows, 1);
    for (uint32_t row, last; team_next(&rows, &row, &last);)
        run_row(&l, row);
}

void eager_dispatch(struct decoder *d, uint32_t node)
{
    struct dispatch x = {.d = d, .node = node};
    team_run(d->team, dispatch_member, &x);
}
