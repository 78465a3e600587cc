/* graph_buffers.h - which nodes of a graph can share memory when it is run node by node. A node's value lives
 * until its last reader has run; after that its area goes to the next node that fits. Pure functions. */
#pragma once
#include "graph.h"

struct graph_area { /* rows that nodes use one after the other */
    uint32_t width; /* floats per row */
    bool head;      /* rows are logit rows */
    bool taken;     /* scratch of graph_areas() */
};

/* Gives every node the area it writes: area_of[n_nodes]. Returns the number of areas, which are described in
 * areas[n_nodes]. last_use [n_nodes] is scratch. */
uint32_t graph_areas(const struct graph *g, struct graph_area *areas, uint32_t *area_of, uint32_t *last_use);

/* A norm whose readers are all products: it yields x * gain, and its 1/rms stays beside it for the product
 * (kernels/abi/arith.h). Every other norm is applied at once. */
bool graph_is_deferred(const struct graph *g, uint32_t node);
