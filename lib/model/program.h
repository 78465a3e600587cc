/* program.h - fuses a graph to the program (program_ops.h) that a decoder runs.
 * Thread: any; a program is immutable after open. Memory: program_open() allocates it in one block. Errors: a
 * negative errno with words. */
#pragma once
#include "base/error.h"
#include "abi/program_ops.h"

struct graph;
struct model;

/* Fuses a validated graph. -ENOTSUP names the first node that no pattern covers; -EINVAL: a graph without a
 * model; -ENOMEM. */
int program_open(struct program **out, const struct graph *g, struct error *err);
void program_close(struct program *p); /* NULL is fine */

/* "MATMUL" for PROGRAM_MATMUL; "?" for an unknown one. */
const char *program_opcode_name(uint32_t opcode);
/* One line per op with buffers, weights, dimensions and dependency counters, for `inspect --program`:
 * malloc'ed text that the caller frees, or NULL. */
char *program_print(const struct program *p, const struct graph *g);
