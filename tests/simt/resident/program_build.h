/* program_build.h - adds ops to a program by hand, for models that are in no file. Thread: one per
 * program. */
#pragma once
#include "abi/device_abi.h"
#include "abi/program_ops.h"

static inline struct program_op *program_add(struct program *p, uint32_t opcode, uint32_t in, uint32_t out)
{
    struct program_op *op = &p->ops[p->n_ops++];
    *op = (struct program_op){.opcode = (uint16_t)opcode, .in = in, .out = out, .eps = 1e-5f, .scale = 1};
    op->gain = op->q_gain = op->k_gain = PROGRAM_NONE;
    return op;
}

/* Adds one product of matrices [first, first + n), whose weights have the same numbers. */
static inline struct program_op *program_add_product(struct program *p, const struct decoder_matrix *matrices,
                                                     uint32_t in, uint32_t out, uint32_t epilogue,
                                                     uint32_t first, uint32_t n)
{
    struct program_op *op = program_add(p, PROGRAM_MATMUL, in, out);
    op->epilogue = (uint16_t)epilogue;
    op->n_weights = (uint16_t)n;
    op->k = matrices[first].k;
    for (uint32_t i = 0; i < n; i++) {
        op->weight[i] = first + i;
        op->n[i] = matrices[first + i].n;
        op->bias[i] = PROGRAM_NONE;
        op->out_col[i] = i && epilogue == PROGRAM_STORE ? op->out_col[i - 1] + op->n[i - 1] : 0;
    }
    return op;
}
