/* program_delta.c - the patterns of recurrent layers and of gated attention. */
#include "program_fusion.h"

#include <string.h>

/* The nodes of a delta net. */
struct delta_parts {
    uint32_t mix, conv, silu, unit; /* the product of queries, keys and values, and what follows it */
    uint32_t beta, alpha, gate;     /* one product may be both */
    uint32_t net, norm, z;
};

/* The product of z in MUL node `gated`, whose other input is `norm`. */
static uint32_t find_z(const struct fusion *f, uint32_t gated, uint32_t norm)
{
    const uint32_t *in = fusion_node(f, gated)->inputs;
    uint32_t silu = in[0] == norm ? in[1] : in[0];
    return fusion_node(f, silu)->op == GRAPH_SILU ? fusion_node(f, silu)->inputs[0] : NO_NODE;
}

static bool find_delta(const struct fusion *f, uint32_t norm, struct delta_parts *p)
{
    for (uint32_t j = fusion_next_reader(f, norm, norm + 1); j != NO_NODE;
         j = fusion_next_reader(f, norm, j + 1))
        if (fusion_sole_reader(f, j, GRAPH_SSM_CONV) != NO_NODE)
            p->mix = j;
    p->conv = fusion_sole_reader(f, p->mix, GRAPH_SSM_CONV);
    p->silu = fusion_sole_reader(f, p->conv, GRAPH_SILU);
    p->unit = fusion_sole_reader(f, p->silu, GRAPH_L2_NORM);
    p->net = fusion_sole_reader(f, p->unit, GRAPH_DELTA_NET);
    p->norm = fusion_sole_reader(f, p->net, GRAPH_RMS_NORM);
    uint32_t gated = fusion_sole_reader(f, p->norm, GRAPH_MUL);
    if (gated == NO_NODE || fusion_node(f, gated)->col)
        return false;
    p->gate = fusion_node(f, p->net)->inputs[1];
    p->beta = fusion_node(f, p->gate)->inputs[0];
    p->alpha = fusion_node(f, p->gate)->inputs[1];
    p->z = find_z(f, gated, p->norm);
    const uint32_t products[4] = {p->mix, p->beta, p->alpha, p->z};
    for (uint32_t i = 0; i < 4; i++)
        if (products[i] == NO_NODE || fusion_node(f, products[i])->op != GRAPH_MUL_MAT ||
            fusion_node(f, products[i])->inputs[0] != norm)
            return false;
    return f->n_readers[norm] == (p->beta == p->alpha ? 3 : 4) && f->n_readers[p->gate] == 1 &&
           f->n_readers[p->beta] == (p->beta == p->alpha ? 2 : 1) &&
           fusion_node(f, p->norm)->group == fusion_node(f, p->net)->delta.value_dim &&
           fusion_node(f, p->norm)->gain != MODEL_NO_WEIGHT;
}

/* The products of queries, keys, values and gates. */
static const struct program_op *emit_products(struct fusion *f, uint32_t norm, const struct delta_parts *p)
{
    uint32_t nodes[4] = {norm, p->mix, p->beta, p->alpha}, n = p->beta == p->alpha ? 3 : 4;
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, n);
    op->in = PROGRAM_X;
    op->out = PROGRAM_QKV;
    op->epilogue = PROGRAM_STORE;
    fusion_set_norm(f, op, norm);
    for (uint32_t i = 1; i < n; i++)
        fusion_add_matrix(f, op, nodes[i]);
    fusion_hold(f, PROGRAM_QKV, nodes[n - 1], op->out_col[n - 2] + op->n[n - 2]);
    return op;
}

static void emit_conv(struct fusion *f, const struct delta_parts *p, const struct program_op *products)
{
    uint32_t nodes[4] = {p->conv, p->silu, p->unit, p->gate};
    struct program_op *op = fusion_emit(f, PROGRAM_CONV, nodes, 4);
    op->in = op->out = PROGRAM_QKV;
    op->layer = fusion_node(f, p->conv)->cache;
    op->weight[0] = fusion_node(f, p->conv)->gain;
    op->weight[1] = fusion_node(f, p->gate)->gain;
    op->bias[0] = fusion_node(f, p->gate)->bias;
    op->n[0] = fusion_node(f, p->conv)->width;
    op->eps = fusion_node(f, p->unit)->eps;
    op->flags |= p->beta == p->alpha ? PROGRAM_TOGETHER : 0;
    memcpy(op->out_col, products->out_col, sizeof op->out_col);
}

static void emit_net(struct fusion *f, const struct delta_parts *p, const struct program_op *products)
{
    uint32_t nodes[2] = {p->net, p->norm};
    struct program_op *op = fusion_emit(f, PROGRAM_DELTA, nodes, 2);
    op->in = PROGRAM_QKV;
    op->out = PROGRAM_ATTN;
    op->layer = fusion_node(f, p->net)->cache;
    op->gain = fusion_node(f, p->norm)->gain;
    op->eps = fusion_node(f, p->norm)->eps;
    op->n[0] = fusion_node(f, p->net)->width;
    memcpy(op->out_col, products->out_col, sizeof op->out_col);
    fusion_hold(f, PROGRAM_ATTN, p->norm, op->n[0]);
    f->held[PROGRAM_QKV] = NO_NODE;
}

int fusion_output_gate(struct fusion *f, uint32_t norm, uint32_t product)
{
    uint32_t active = fusion_sole_reader(f, product, GRAPH_SIGMOID);
    bool sigmoid = active != NO_NODE;
    active = sigmoid ? active : fusion_sole_reader(f, product, GRAPH_SILU);
    uint32_t gated = fusion_sole_reader(f, active, GRAPH_MUL), of = f->held[PROGRAM_ATTN];
    if (gated == NO_NODE || fusion_sole_reader(f, of, GRAPH_MUL) != gated || fusion_node(f, gated)->col)
        return fusion_refuse(f, product, "it does not gate the layer's output");
    uint32_t nodes[3] = {product, active, gated};
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, 3);
    op->in = PROGRAM_X;
    op->out = PROGRAM_ATTN;
    op->epilogue = sigmoid ? PROGRAM_TIMES_SIGMOID : PROGRAM_TIMES_SILU;
    fusion_set_norm(f, op, norm);
    fusion_add_matrix(f, op, product);
    fusion_hold(f, PROGRAM_ATTN, gated, op->n[0]);
    return 0;
}

int fusion_delta(struct fusion *f, uint32_t norm)
{
    struct delta_parts p = {0};
    if (!find_delta(f, norm, &p))
        return fusion_refuse(f, norm, "its products are not those of a delta net");
    const struct program_op *products = emit_products(f, norm, &p);
    emit_conv(f, &p, products);
    emit_net(f, &p, products);
    return fusion_output_gate(f, norm, p.z);
}
