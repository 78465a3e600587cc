/* program_fusion.h - the workshop of program_open(): what the patterns share. Private to lib/model.
 * Thread: the caller's. Memory: the fusion's; program_open() owns it. */
#pragma once
#include "graph.h"
#include "abi/program_ops.h"

#define NO_NODE UINT32_MAX

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

static inline const struct graph_node *fusion_node(const struct fusion *f, uint32_t i)
{
    return &f->g->nodes[i];
}

/* -ENOTSUP: names the node that no pattern covers. */
int fusion_refuse(const struct fusion *f, uint32_t i, const char *why);
/* The next reader of node `i` from node `from` on, or NO_NODE. */
uint32_t fusion_next_reader(const struct fusion *f, uint32_t i, uint32_t from);
/* The only reader of node `i` if it has this op; NO_NODE if not, or if there are others. */
uint32_t fusion_sole_reader(const struct fusion *f, uint32_t i, enum graph_op op);
/* Notes that the buffer holds the node's value, `width` floats a row. */
void fusion_hold(struct fusion *f, enum program_buffer_index buffer, uint32_t node, uint32_t width);
/* Appends an op that covers these nodes; the last of them gives it its name and layer. */
struct program_op *fusion_emit(struct fusion *f, enum program_opcode opcode, const uint32_t *nodes,
                               uint32_t n_nodes);
/* The same of attention, from QKV to ATTN: its kind, cache, scale and sinks are those of node soft_max. */
struct program_op *fusion_attend(struct fusion *f, uint32_t soft_max, const uint32_t *nodes,
                                 uint32_t n_nodes);
/* Adds the weight of a MUL_MAT node to a MATMUL op, whose outputs stand one behind the other. */
void fusion_add_matrix(const struct fusion *f, struct program_op *op, uint32_t i);
void fusion_set_norm(const struct fusion *f, struct program_op *op, uint32_t i);

/* The sum adds `branch` to what the buffer holds, which nothing else reads later; or -ENOTSUP. */
int fusion_check_sum(const struct fusion *f, uint32_t sum, uint32_t branch, enum program_buffer_index buffer);
/* Emits the norm of a buffer and its addition to another, with the factor behind it. */
void fusion_add_norm(struct fusion *f, enum program_buffer_index in, enum program_buffer_index out,
                     uint32_t norm, uint32_t sum);

/* program_latent.c: the attention over a compressed cache, from the norm before it up to its output's
 * products. */
bool fusion_is_latent(const struct fusion *f, const uint32_t *products, uint32_t n);
int fusion_latent(struct fusion *f, uint32_t norm, const uint32_t *products, uint32_t n);

/* program_parallel.c: a product, or the sum of experts, that ends in node `last` and is one of two branches
 * side by side. */
bool fusion_is_parallel(const struct fusion *f, uint32_t last);
int fusion_parallel(struct fusion *f, uint32_t product, uint32_t last, uint32_t from);

/* program_delta.c: a norm with a recurrent layer's delta net, up to the product of its output; and the
 * product of a norm, covered already, whose SILU or SIGMOID multiplies what buffer ATTN holds. */
int fusion_delta(struct fusion *f, uint32_t norm);
int fusion_output_gate(struct fusion *f, uint32_t norm, uint32_t product);
