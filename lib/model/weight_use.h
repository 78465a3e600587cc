/* weight_use.h - what the graph wants of each of the model's weights: the backends pack matrices and keep
 * vectors as they are. */
#pragma once
#include <stdint.h>

struct graph;

enum weight_use { WEIGHT_UNUSED, WEIGHT_VECTOR, WEIGHT_MATRIX };

/* [model_n_weights()], enum weight_use each; malloc'ed, NULL when out of memory. */
uint8_t *weight_uses(const struct graph *g);
