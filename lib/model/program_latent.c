/* program_latent.c - fuses attention over a compressed cache (deepseek2). From one norm come the query, in
 * one product or two with a norm between, the compressed row, which is normalised, and the rotated key, which
 * is joined to it. The matrices of the heads move the query to that row's space and what it gathers back. */
#include "program_fusion.h"
#include "model.h"

#include <errno.h>

struct latent {
    uint32_t q, q_norm, q_b; /* q_norm, q_b: NO_NODE where the query is one product */
    uint32_t row, row_norm, rotated, join;
    uint32_t absorb, q_rope, k_rope, copy, soft_max, values;
};

bool fusion_is_latent(const struct fusion *f, const uint32_t *products, uint32_t n)
{
    bool found = false;
    for (uint32_t i = 0; i < n; i++)
        found |= fusion_sole_reader(f, products[i], GRAPH_JOIN) != NO_NODE;
    return found;
}

static void find_products(const struct fusion *f, const uint32_t *products, struct latent *a)
{
    for (uint32_t i = 0; i < 3; i++)
        a->join = a->join == NO_NODE ? fusion_sole_reader(f, products[i], GRAPH_JOIN) : a->join;
    a->rotated = fusion_node(f, a->join)->inputs[0];
    a->row_norm = fusion_node(f, a->join)->inputs[1];
    a->row = fusion_node(f, a->row_norm)->inputs[0];
    for (uint32_t i = 0; i < 3; i++)
        a->q = products[i] != a->rotated && products[i] != a->row ? products[i] : a->q;
}

/* False if a node of the figure is missing. */
static bool find_latent(const struct fusion *f, uint32_t norm, const uint32_t *products, struct latent *a)
{
    *a = (struct latent){.q = NO_NODE, .join = NO_NODE};
    find_products(f, products, a);
    if (a->q == NO_NODE || fusion_node(f, a->row_norm)->op != GRAPH_RMS_NORM ||
        fusion_node(f, a->row_norm)->gain == MODEL_NO_WEIGHT || fusion_node(f, a->row)->op != GRAPH_MUL_MAT ||
        fusion_node(f, a->row)->inputs[0] != norm || f->n_readers[a->row] != 1 ||
        f->n_readers[a->row_norm] != 1)
        return false;
    a->q_norm = fusion_sole_reader(f, a->q, GRAPH_RMS_NORM);
    a->q_b = fusion_sole_reader(f, a->q_norm, GRAPH_MUL_MAT);
    a->absorb = fusion_sole_reader(f, a->q_norm == NO_NODE ? a->q : a->q_b, GRAPH_MUL_MAT_HEADS);
    a->q_rope = fusion_sole_reader(f, a->absorb, GRAPH_ROPE);
    a->soft_max = fusion_sole_reader(f, a->q_rope, GRAPH_SOFT_MAX);
    a->k_rope = fusion_sole_reader(f, a->join, GRAPH_ROPE);
    a->values = fusion_sole_reader(f, a->soft_max, GRAPH_MUL_MAT_HEADS);
    if (a->values == NO_NODE || a->k_rope == NO_NODE)
        return false;
    a->copy = fusion_node(f, a->soft_max)->inputs[1];
    return fusion_node(f, a->copy)->inputs[0] == a->k_rope &&
           fusion_node(f, a->copy)->inputs[1] == a->k_rope && f->n_readers[a->k_rope] == 2 &&
           f->n_readers[a->copy] == 1;
}

static void emit_heads(struct fusion *f, uint32_t node, enum program_buffer_index in,
                       enum program_buffer_index out)
{
    const struct graph_node *n = fusion_node(f, node);
    struct program_op *op = fusion_emit(f, PROGRAM_HEADS, &node, 1);
    op->in = in;
    op->out = out;
    op->k = n->k;
    op->n_weights = 1;
    op->weight[0] = n->weight;
    op->n[0] = n->width / n->n_heads - n->keep;
    op->n[1] = n->n_heads;
    op->n[2] = n->keep;
    op->out_col[1] = n->col;
    fusion_hold(f, out, node, n->width);
}

/* Emits the products of the norm to buffer H, in the order q, row, rotated, and what makes the queries and
 * the token's row of the cache of them: columns of buffer QKV. */
static void emit_inputs(struct fusion *f, uint32_t norm, const struct latent *a)
{
    const struct graph_node *join = fusion_node(f, a->join), *absorb = fusion_node(f, a->absorb);
    uint32_t nodes[4] = {norm, a->q, a->row, a->rotated}, columns[3];
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, 4);
    op->in = PROGRAM_X;
    op->out = PROGRAM_H;
    op->epilogue = PROGRAM_STORE;
    fusion_set_norm(f, op, norm);
    for (uint32_t i = 0; i < 3; i++) {
        fusion_add_matrix(f, op, nodes[1 + i]);
        columns[i] = op->out_col[i];
    }
    fusion_hold(f, PROGRAM_H, a->rotated, columns[2] + op->n[2]);
    if (a->q_b != NO_NODE) {
        uint32_t second[2] = {a->q_norm, a->q_b};
        op = fusion_emit(f, PROGRAM_MATMUL, second, 2);
        op->in = PROGRAM_H;
        op->out = PROGRAM_H2;
        op->epilogue = PROGRAM_STORE;
        fusion_set_norm(f, op, a->q_norm);
        fusion_add_matrix(f, op, a->q_b);
        fusion_hold(f, PROGRAM_H2, a->q_b, op->n[0]);
    }
    emit_heads(f, a->absorb, a->q_b == NO_NODE ? PROGRAM_H : PROGRAM_H2, PROGRAM_QKV);
    uint32_t joined[2] = {a->row_norm, a->join};
    op = fusion_emit(f, PROGRAM_JOIN, joined, 2);
    op->in = PROGRAM_H;
    op->out = PROGRAM_QKV;
    op->n[0] = fusion_node(f, a->rotated)->width;
    op->n[1] = fusion_node(f, a->row)->width;
    op->out_col[0] = columns[2];
    op->out_col[1] = columns[1];
    op->out_col[2] = absorb->width;
    fusion_set_norm(f, op, a->row_norm);
    fusion_hold(f, PROGRAM_QKV, a->join, absorb->width + join->width);
}

int fusion_latent(struct fusion *f, uint32_t norm, const uint32_t *products, uint32_t n)
{
    struct latent a;
    if (n != 3 || !find_latent(f, norm, products, &a))
        return fusion_refuse(f, norm, "its products do not end in attention over one compressed row");
    emit_inputs(f, norm, &a);
    const struct graph_node *soft_max = fusion_node(f, a.soft_max);
    uint32_t nodes[4] = {a.q_rope, a.k_rope, a.copy, a.soft_max};
    struct program_op *op = fusion_attend(f, a.soft_max, nodes, 4);
    op->n[0] = soft_max->width;
    op->n[1] = op->n[2] = fusion_node(f, a.join)->width;
    op->out_col[1] = op->out_col[2] = soft_max->width; /* the row is key and value */
    fusion_hold(f, PROGRAM_ATTN, a.soft_max, soft_max->width);
    emit_heads(f, a.values, PROGRAM_ATTN, PROGRAM_H);
    f->held[PROGRAM_QKV] = f->held[PROGRAM_ATTN] = f->held[PROGRAM_H2] = NO_NODE;
    return 0;
}
