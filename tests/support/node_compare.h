/* node_compare.h - two eager executors of the same model side by side, node by node: the first value that
 * differs in a bit, and what it was made of. A wrong result of a whole model so names its kernel. */
#pragma once
#include "backend/executor.h"
#include "gguf/quant.h"
#include "model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node_operand { /* a row that the node read; both executors had the same */
    uint32_t node, width;
    float factor; /* 1/rms that goes with it, or 1 */
    float *row;   /* [width] */
};

struct node_difference {
    bool found;
    uint64_t step;
    uint32_t node, row,
        index; /* index: the first value of the row that differs; the width: only the factor */
    uint32_t n_values, n_rows; /* values of that row, and rows of the node, that differ */
    float want, got, want_factor, got_factor;
    struct node_operand inputs[2];
    uint32_t n_inputs;
};

static inline uint32_t node_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

struct node_value { /* all rows of a node */
    float *rows, *factors;
};

struct node_comparison {
    struct executor *want, *got;
    const struct graph *graph;
    const struct step *step;
    struct node_value *values; /* [n_nodes]: of `want`, for inputs */
    struct node_difference *found;
};

static inline uint32_t node_rows_of(const struct node_comparison *c, uint32_t node)
{
    return c->graph->nodes[node].head ? c->step->n_logits : c->step->n_rows;
}

static inline int node_value_read(const struct node_comparison *c, struct executor *x, uint32_t node,
                                  struct node_value *out, struct error *err)
{
    uint32_t width = c->graph->nodes[node].width, n = node_rows_of(c, node);
    struct backend *be = executor_backend(x);
    int rc = 0;
    out->rows = malloc(((size_t)n * width + 1) * sizeof *out->rows);
    out->factors = malloc(((size_t)n + 1) * sizeof *out->factors);
    if (!out->rows || !out->factors)
        return error_set(err, -ENOMEM, "%s: out of memory", c->graph->nodes[node].name);
    for (uint32_t r = 0; r < n && rc == 0; r++)
        rc = be->ops->nodes->value(be, node, r, out->rows + (size_t)r * width, &out->factors[r], err);
    return rc;
}

static inline void node_value_free(struct node_value *v)
{
    free(v->rows);
    free(v->factors);
    *v = (struct node_value){0};
}

/* Copies the row that each input had for a row of the node. */
static inline void node_note_inputs(const struct node_comparison *c, uint32_t node, uint32_t row)
{
    const struct graph_node *n = &c->graph->nodes[node];
    for (uint32_t i = 0; i < graph_op_arity(n->op); i++) {
        uint32_t from = n->inputs[i], width = c->graph->nodes[from].width;
        uint32_t at = n->head && !c->graph->nodes[from].head ? c->step->logits[row].row : row;
        if (!c->values[from].rows)
            continue;
        struct node_operand *o = &c->found->inputs[c->found->n_inputs++];
        *o = (struct node_operand){from, width, c->values[from].factors[at], malloc(width * sizeof(float))};
        if (o->row)
            memcpy(o->row, c->values[from].rows + (size_t)at * width, width * sizeof(float));
    }
}

/* Returns the values of a row that differ, and the first of them (width: none). */
static inline uint32_t node_row_differs(const float *a, const float *b, uint32_t width, uint32_t *first)
{
    uint32_t n = 0;
    *first = width;
    for (uint32_t i = 0; i < width; i++)
        if (node_bits(a[i]) != node_bits(b[i])) {
            *first = n++ ? *first : i;
        }
    return n;
}

static inline void node_judge(const struct node_comparison *c, uint32_t node, const struct node_value *got)
{
    const struct node_value *want = &c->values[node];
    struct node_difference *d = c->found;
    uint32_t width = c->graph->nodes[node].width;
    for (uint32_t r = 0; r < node_rows_of(c, node); r++) {
        const float *a = want->rows + (size_t)r * width, *b = got->rows + (size_t)r * width;
        uint32_t first, n = node_row_differs(a, b, width, &first);
        if (!n && node_bits(want->factors[r]) == node_bits(got->factors[r]))
            continue;
        if (d->n_rows++)
            continue;
        d->found = true;
        d->step = c->step->id;
        d->node = node;
        d->row = r;
        d->index = first;
        d->n_values = n;
        d->want = n ? a[first] : 0;
        d->got = n ? b[first] : 0;
        d->want_factor = want->factors[r];
        d->got_factor = got->factors[r];
        node_note_inputs(c, node, r);
    }
}

static inline int node_compare_node(const struct node_comparison *c, uint32_t node, struct error *err)
{
    enum graph_op op = c->graph->nodes[node].op;
    struct node_value got = {0};
    if (op == GRAPH_NONE)
        return 0;
    int rc = executor_backend(c->want)->ops->nodes->dispatch(executor_backend(c->want), node, err);
    if (rc == 0)
        rc = executor_backend(c->got)->ops->nodes->dispatch(executor_backend(c->got), node, err);
    if (rc < 0 || op == GRAPH_ARGMAX)
        return rc;
    rc = node_value_read(c, c->want, node, &c->values[node], err);
    if (rc == 0)
        rc = node_value_read(c, c->got, node, &got, err);
    if (rc == 0)
        node_judge(c, node, &got);
    node_value_free(&got);
    return rc;
}

static inline int node_drain(struct executor *x, const struct step *s, struct error *err)
{
    struct step_result results[STEP_MAX_LOGITS];
    uint64_t done = 0;
    int n = 0, rc = 0;
    while (rc >= 0 && (done < s->id || n < (int)s->n_logits)) {
        struct backend *be = executor_backend(x);
        rc = be->ops->advance(be, results, STEP_MAX_LOGITS, &done, err);
        n += rc > 0 ? rc : 0;
    }
    return rc < 0 ? rc : 0;
}

/* Runs a step on both, and stops at the first difference, after which neither can go on. Both have had the
 * same steps before. Returns 0 or an error; *found says the difference, whose inputs node_difference_close()
 * frees. */
static inline int node_compare(struct executor *want, struct executor *got, const struct step *s,
                               struct node_difference *found, struct error *err)
{
    struct node_comparison c = {want, got, executor_graph(want), s, NULL, found};
    struct executor *both[] = {want, got};
    int rc = 0;
    *found = (struct node_difference){0};
    c.values = calloc(c.graph->n_nodes, sizeof *c.values);
    if (!c.values)
        return error_set(err, -ENOMEM, "values of nodes: out of memory");
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = executor_backend(both[i])->ops->nodes->begin(executor_backend(both[i]), s, err);
    for (uint32_t i = 0; i < c.graph->n_nodes && rc == 0 && !found->found; i++)
        rc = node_compare_node(&c, i, err);
    for (int i = 0; i < 2 && rc == 0 && !found->found; i++)
        rc = node_drain(both[i], s, err);
    for (uint32_t i = 0; i < c.graph->n_nodes; i++)
        node_value_free(&c.values[i]);
    free(c.values);
    return rc;
}

static inline void node_difference_close(struct node_difference *d)
{
    for (uint32_t i = 0; i < d->n_inputs; i++)
        free(d->inputs[i].row);
    *d = (struct node_difference){0};
}

/* One sentence. */
static inline void node_difference_say(const struct node_difference *d, const struct graph *g, char *out,
                                       size_t room)
{
    const struct graph_node *n = &g->nodes[d->node];
    int at = snprintf(out, room, "node %u %s (%s%s%s), step %llu, row %u: ", d->node, n->name,
                      graph_op_name(n->op), n->op == GRAPH_MUL_MAT ? " " : "",
                      n->op == GRAPH_MUL_MAT ? quant_name(n->weight_type) : "", (unsigned long long)d->step,
                      d->row);
    if (d->n_values)
        at += snprintf(out + at, room - (size_t)at,
                       "value %u is %08x (%g), must be %08x (%g); %u of %u values, %u rows", d->index,
                       node_bits(d->got), (double)d->got, node_bits(d->want), (double)d->want, d->n_values,
                       n->width, d->n_rows);
    else
        at += snprintf(out + at, room - (size_t)at, "1/rms is %08x (%g), must be %08x (%g); %u rows",
                       node_bits(d->got_factor), (double)d->got_factor, node_bits(d->want_factor),
                       (double)d->want_factor, d->n_rows);
    for (uint32_t i = 0; i < d->n_inputs && (size_t)at < room; i++) {
        const struct node_operand *o = &d->inputs[i];
        uint32_t k = o->width == n->width && d->index < o->width ? d->index : 0;
        at += snprintf(out + at, room - (size_t)at, "; %s[%u] %08x", g->nodes[o->node].name, k,
                       o->row ? node_bits(o->row[k]) : 0);
    }
}
