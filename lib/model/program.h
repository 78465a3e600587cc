/* program.h - from a graph to the program (program_ops.h) that a decoder walks. */
#pragma once
#include "base/error.h"
#include "abi/program_ops.h"

struct graph;
struct model;

/* Fuses a validated graph. -ENOTSUP names the first node that no pattern covers. */
int program_open(struct program **out, const struct graph *g, struct error *err);
void program_close(struct program *p); /* NULL is fine */

const char *program_opcode_name(uint32_t opcode);
/* One line per op with buffers, weights, dims and flow; malloc'ed text, for `inspect --program`. */
char *program_print(const struct program *p, const struct graph *g);
