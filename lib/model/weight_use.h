/* weight_use.h - the use of each of the model's weights in a graph: the backends pack matrices and keep
 * vectors as they are.
 * Thread: any; pure. Memory: the caller frees the result. */
#pragma once
#include <stdint.h>

struct graph;

enum weight_use { WEIGHT_UNUSED, WEIGHT_VECTOR, WEIGHT_MATRIX };

/* Returns an enum weight_use for each weight, [model_n_weights()], malloc'ed; NULL when out of memory. */
uint8_t *weight_uses(const struct graph *g);
