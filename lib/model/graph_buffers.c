#include "graph_buffers.h"

static uint32_t last_reader(const struct graph *g, uint32_t node)
{
    uint32_t last = node;
    for (uint32_t j = node + 1; j < g->n_nodes; j++)
        if (g->nodes[j].inputs[0] == node || g->nodes[j].inputs[1] == node)
            last = j;
    return last;
}

bool graph_is_deferred(const struct graph *g, uint32_t node)
{
    const struct graph_node *n = &g->nodes[node];
    if (n->op != GRAPH_RMS_NORM || n->group != n->width)
        return false;
    bool read = false;
    for (uint32_t j = node + 1; j < g->n_nodes; j++)
        if (g->nodes[j].inputs[0] == node || g->nodes[j].inputs[1] == node) {
            read = true;
            bool product = g->nodes[j].op == GRAPH_MUL_MAT || g->nodes[j].op == GRAPH_MUL_MAT_ID;
            if (!product || g->nodes[j].inputs[0] != node)
                return false;
        }
    return read;
}

/* The smallest free area that is wide enough, or a new one. */
static uint32_t area_take(struct graph_area *areas, uint32_t *n, uint32_t width, bool head)
{
    uint32_t best = *n;
    for (uint32_t i = 0; i < *n; i++)
        if (!areas[i].taken && areas[i].head == head && areas[i].width >= width &&
            (best == *n || areas[i].width < areas[best].width))
            best = i;
    if (best == *n)
        areas[(*n)++] = (struct graph_area){.width = width, .head = head};
    areas[best].taken = true;
    return best;
}

uint32_t graph_areas(const struct graph *g, struct graph_area *areas, uint32_t *area_of, uint32_t *last_use)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        last_use[i] = last_reader(g, i);
        area_of[i] = area_take(areas, &n, g->nodes[i].width, g->nodes[i].head);
        for (uint32_t j = 0; j <= i; j++)
            if (last_use[j] == i)
                areas[area_of[j]].taken = false;
    }
    return n;
}
