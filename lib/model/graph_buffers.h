/* graph_buffers.h - assigns buffers to the nodes of a graph that runs node by node.
 * A node's value lives until its last reader has run; after that the next node that fits reuses its area.
 * Thread: any; all functions are pure. Memory: the caller's arrays. Errors: none. */
#pragma once
#include "graph.h"

struct graph_area { /* a buffer that several nodes use in turn */
    uint32_t width; /* floats per row */
    bool head;      /* one row per logit row, else per row */
    bool taken;     /* scratch of graph_areas(): in use */
};

/* Assigns every node the area that it writes: area_of[n_nodes]. Returns the number of areas, described in
 * areas[n_nodes]. last_use [n_nodes] is scratch. */
uint32_t graph_areas(const struct graph *g, struct graph_area *areas, uint32_t *area_of, uint32_t *last_use);

/* True for a norm whose readers are all products: it yields x * gain, and the product applies its 1/rms
 * (kernels/abi/arith.h). Every other norm is applied at once. */
bool graph_is_deferred(const struct graph *g, uint32_t node);
