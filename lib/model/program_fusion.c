#include "program_fusion.h"
#include "program.h"

#include <assert.h>
#include <errno.h>

int fusion_refuse(const struct fusion *f, uint32_t i, const char *why)
{
    return error_set(f->err, -ENOTSUP, "graph node %u %s (%s): no pattern covers it: %s", i,
                     fusion_node(f, i)->name, graph_op_name(fusion_node(f, i)->op), why);
}

uint32_t fusion_next_reader(const struct fusion *f, uint32_t i, uint32_t from)
{
    for (uint32_t j = from; j < f->g->n_nodes; j++)
        for (uint32_t k = 0; k < graph_op_arity(fusion_node(f, j)->op); k++)
            if (fusion_node(f, j)->inputs[k] == i)
                return j;
    return NO_NODE;
}

uint32_t fusion_sole_reader(const struct fusion *f, uint32_t i, enum graph_op op)
{
    if (i == NO_NODE || f->n_readers[i] != 1)
        return NO_NODE;
    uint32_t j = fusion_next_reader(f, i, i + 1);
    return j != NO_NODE && fusion_node(f, j)->op == op ? j : NO_NODE;
}

void fusion_hold(struct fusion *f, enum program_buffer_index buffer, uint32_t node, uint32_t width)
{
    struct program_buffer *b = &f->p->buffers[buffer];
    f->held[buffer] = node;
    b->width = width > b->width ? width : b->width;
}

struct program_op *fusion_emit(struct fusion *f, enum program_opcode opcode, const uint32_t *nodes,
                               uint32_t n_nodes)
{
    struct program_op *op = &f->p->ops[f->p->n_ops];
    *op = (struct program_op){.opcode = (uint16_t)opcode,
                              .in = PROGRAM_NONE,
                              .out = PROGRAM_NONE,
                              .weight = {PROGRAM_NONE, PROGRAM_NONE, PROGRAM_NONE},
                              .bias = {PROGRAM_NONE, PROGRAM_NONE, PROGRAM_NONE},
                              .gain = PROGRAM_NONE,
                              .q_gain = PROGRAM_NONE,
                              .k_gain = PROGRAM_NONE,
                              .scale = 1,
                              .wait = f->p->n_ops ? f->p->n_ops - 1 : PROGRAM_NONE,
                              .signal = f->p->n_ops};
    f->p->n_ops++;
    for (uint32_t i = 0; i < n_nodes; i++) {
        assert(!f->covered[nodes[i]]);
        f->covered[nodes[i]] = 1;
        op->node = nodes[i] > op->node ? nodes[i] : op->node;
    }
    op->n_nodes = n_nodes;
    op->layer = fusion_node(f, op->node)->layer;
    op->flags = fusion_node(f, op->node)->head ? PROGRAM_HEAD : 0;
    return op;
}

struct program_op *fusion_attend(struct fusion *f, uint32_t soft_max, const uint32_t *nodes, uint32_t n_nodes)
{
    const struct graph_node *node = fusion_node(f, soft_max);
    struct program_op *op = fusion_emit(f, PROGRAM_ATTEND, nodes, n_nodes);
    op->in = PROGRAM_QKV;
    op->out = PROGRAM_ATTN;
    op->scale = node->scale;
    op->kind = node->kind;
    op->layer = node->cache;
    op->weight[0] = node->gain;
    return op;
}

void fusion_add_matrix(const struct fusion *f, struct program_op *op, uint32_t i)
{
    const struct graph_node *n = fusion_node(f, i);
    uint32_t w = op->n_weights++;
    op->k = n->k;
    op->weight[w] = n->weight;
    op->bias[w] = n->bias;
    op->n[w] = n->width;
    op->out_col[w] = w ? op->out_col[w - 1] + op->n[w - 1] : 0;
}

void fusion_set_norm(const struct fusion *f, struct program_op *op, uint32_t i)
{
    op->gain = fusion_node(f, i)->gain;
    op->eps = fusion_node(f, i)->eps;
}
