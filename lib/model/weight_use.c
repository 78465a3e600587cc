#include "weight_use.h"
#include "graph.h"

#include <stdlib.h>

uint8_t *weight_uses(const struct graph *g)
{
    uint32_t n = model_n_weights(g->model);
    uint8_t *uses = calloc(n ? n : 1, 1);
    for (uint32_t i = 0; uses && i < g->n_nodes; i++) {
        const struct graph_node *node = &g->nodes[i];
        bool product = node->op == GRAPH_MUL_MAT || node->op == GRAPH_MUL_MAT_ID;
        if (node->op == GRAPH_EMBED || node->op == GRAPH_MUL_MAT_HEADS || product)
            uses[node->weight] = WEIGHT_MATRIX;
        if ((product || node->op == GRAPH_ROUTE || node->op == GRAPH_DELTA_GATE) &&
            node->bias != MODEL_NO_WEIGHT)
            uses[node->bias] = WEIGHT_VECTOR;
        bool gain = node->op == GRAPH_RMS_NORM || node->op == GRAPH_SOFT_MAX || node->op == GRAPH_SCALE ||
                    node->op == GRAPH_ROUTE || node->op == GRAPH_SSM_CONV || node->op == GRAPH_DELTA_GATE;
        if (gain && node->gain != MODEL_NO_WEIGHT)
            uses[node->gain] = WEIGHT_VECTOR;
    }
    return uses;
}
