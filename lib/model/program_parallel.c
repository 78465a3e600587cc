/* program_parallel.c - fuses two branches side by side (Gemma 4 with experts): the norm of a dense product
 * and that of the experts' sum are added, and the norm of this sum is added to the residual stream. The first
 * branch stands in buffer H2 until the second is added to it. */
#include "program_fusion.h"

#include <errno.h>

/* The node that adds the norm of `last` to the other branch, or NO_NODE. The norm of the sum is added to the
 * residual stream; the stream itself is a sum too, but the last norm is not added to anything. */
static uint32_t meeting(const struct fusion *f, uint32_t last, uint32_t *norm)
{
    *norm = fusion_sole_reader(f, last, GRAPH_RMS_NORM);
    uint32_t sum = fusion_sole_reader(f, *norm, GRAPH_ADD);
    uint32_t end = fusion_sole_reader(f, sum, GRAPH_RMS_NORM);
    return fusion_sole_reader(f, end, GRAPH_ADD) == NO_NODE ? NO_NODE : sum;
}

bool fusion_is_parallel(const struct fusion *f, uint32_t last)
{
    uint32_t norm;
    return meeting(f, last, &norm) != NO_NODE;
}

/* Emits the product, or the experts with their sum, to buffer BRANCH. */
static void emit_branch(struct fusion *f, uint32_t product, uint32_t last, uint32_t from)
{
    const struct graph_node *n = fusion_node(f, product);
    bool experts = n->op == GRAPH_MUL_MAT_ID;
    uint32_t nodes[2] = {product, last};
    struct program_op *op =
        fusion_emit(f, experts ? PROGRAM_EXPERTS : PROGRAM_MATMUL, nodes, experts ? 2 : 1);
    op->in = from;
    op->out = PROGRAM_BRANCH;
    op->epilogue = PROGRAM_STORE;
    fusion_add_matrix(f, op, product);
    if (experts) {
        op->route = n->route;
        op->n[0] = n->width / n->route.n_used;
        op->gate_col = f->choice_col;
    }
    fusion_hold(f, PROGRAM_BRANCH, last, fusion_node(f, last)->width);
}

/* The first branch: its norm alone. */
static void emit_first(struct fusion *f, uint32_t norm)
{
    struct program_op *op = fusion_emit(f, PROGRAM_ADD_NORM, &norm, 1);
    op->in = PROGRAM_BRANCH;
    op->out = PROGRAM_H2;
    op->flags |= PROGRAM_SET;
    fusion_set_norm(f, op, norm);
    op->k = fusion_node(f, norm)->group;
    op->n[0] = fusion_node(f, norm)->width;
    fusion_hold(f, PROGRAM_H2, norm, op->n[0]);
}

int fusion_parallel(struct fusion *f, uint32_t product, uint32_t last, uint32_t from)
{
    uint32_t norm, sum = meeting(f, last, &norm);
    const struct graph_node *n = fusion_node(f, sum);
    uint32_t other = n->inputs[n->inputs[0] == norm];
    bool second = f->held[PROGRAM_H2] == other;
    if (!second && f->covered[other])
        return fusion_refuse(f, sum, "the other branch is not computed yet");
    uint32_t end = fusion_sole_reader(f, sum, GRAPH_RMS_NORM), total = fusion_sole_reader(f, end, GRAPH_ADD);
    int rc = fusion_check_sum(f, total, end, PROGRAM_X);
    if (rc < 0)
        return rc;
    emit_branch(f, product, last, from);
    if (!second) {
        emit_first(f, norm);
        return 0;
    }
    fusion_add_norm(f, PROGRAM_BRANCH, PROGRAM_H2, norm, sum);
    fusion_add_norm(f, PROGRAM_H2, PROGRAM_X, end, total);
    f->held[PROGRAM_H2] = NO_NODE;
    return 0;
}
