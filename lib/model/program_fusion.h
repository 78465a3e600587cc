/* program_fusion.h - the words in which the patterns of program.c and program_delta.c are written.
 * Thread: that of program_open(). Memory: program_open()'s. Errors: not_covered(), with words. */
#pragma once
#include "program.h"
#include "graph.h"
#include "model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX

struct fusion {
    const struct graph *g;
    struct program *p;
    uint8_t *covered;                 /* per node: an op covers it */
    uint32_t *n_readers;              /* per node: nodes that read it */
    uint32_t held[PROGRAM_N_BUFFERS]; /* node whose value each buffer holds; CHOICE: the ROUTE */
    uint32_t gate, gate_col;          /* the shared expert's gate, and its column of CHOICE */
    uint32_t choice_col;              /* column of the choice there */
    struct error *err;
};

static inline const struct graph_node *node_at(const struct fusion *f, uint32_t i)
{
    return &f->g->nodes[i];
}

static inline int not_covered(const struct fusion *f, uint32_t i, const char *why)
{
    return error_set(f->err, -ENOTSUP, "graph node %u %s (%s): no pattern covers it: %s", i,
                     node_at(f, i)->name, graph_op_name(node_at(f, i)->op), why);
}

/* The next reader of node `i` after `from`, or NOBODY. */
static inline uint32_t next_reader(const struct fusion *f, uint32_t i, uint32_t from)
{
    for (uint32_t j = from; j < f->g->n_nodes; j++)
        for (uint32_t k = 0; k < graph_op_arity(node_at(f, j)->op); k++)
            if (node_at(f, j)->inputs[k] == i)
                return j;
    return NOBODY;
}

/* The only reader of node `i` if it has this op; NOBODY if not, or if there are others. */
static inline uint32_t sole_reader(const struct fusion *f, uint32_t i, enum graph_op op)
{
    if (i == NOBODY || f->n_readers[i] != 1)
        return NOBODY;
    uint32_t j = next_reader(f, i, i + 1);
    return j != NOBODY && node_at(f, j)->op == op ? j : NOBODY;
}

static inline void hold(struct fusion *f, enum program_buffer_index buffer, uint32_t node, uint32_t width)
{
    struct program_buffer *b = &f->p->buffers[buffer];
    f->held[buffer] = node;
    b->width = width > b->width ? width : b->width;
}

/* Appends an op that covers these nodes; the last of them gives it its name and layer. */
static inline struct program_op *emit(struct fusion *f, enum program_opcode opcode, const uint32_t *nodes,
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
    op->layer = node_at(f, op->node)->layer;
    op->flags = node_at(f, op->node)->head ? PROGRAM_HEAD : 0;
    return op;
}

/* Adds the weight of a MUL_MAT node to a MATMUL op. */
static inline void add_matrix(const struct fusion *f, struct program_op *op, uint32_t i)
{
    const struct graph_node *n = node_at(f, i);
    uint32_t w = op->n_weights++;
    op->k = n->k;
    op->weight[w] = n->weight;
    op->bias[w] = n->bias;
    op->n[w] = n->width;
    op->out_col[w] = w ? op->out_col[w - 1] + op->n[w - 1] : 0;
}

static inline void set_norm(const struct fusion *f, struct program_op *op, uint32_t i)
{
    op->gain = node_at(f, i)->gain;
    op->eps = node_at(f, i)->eps;
}

/* program_delta.c: fuses a norm with a recurrent layer's delta net, up to the product of its output. */
int fuse_delta(struct fusion *f, uint32_t norm);
/* The product of a norm, covered already, whose SILU or SIGMOID multiplies what buffer ATTN holds. */
int fuse_output_gate(struct fusion *f, uint32_t norm, uint32_t product);
