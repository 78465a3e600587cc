/* program.c - fuses a graph to a program. Each pattern is found by following the graph's edges from the node
 * that begins it: a norm whose products are Q, K and V; a norm whose products are gate and up; a product that
 * is added to the residual stream, at once or behind a norm; the norm before the logits; the embeddings for
 * each layer. A value inside a pattern must have no other reader. */
#include "program_fusion.h"
#include "program.h"
#include "model.h"
#include "gguf/quant.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The node behind `i` if it alone reads it and multiplies it by a number: its factor goes to *scale. Else i.
 */
static uint32_t skip_scale(const struct fusion *f, uint32_t i, float *scale)
{
    uint32_t j = fusion_sole_reader(f, i, GRAPH_SCALE);
    if (j == NO_NODE || fusion_node(f, j)->gain != MODEL_NO_WEIGHT)
        return i;
    *scale = fusion_node(f, j)->scale;
    return j;
}

/* The first embedding begins the residual stream, a second one the embeddings for each layer. */
static int fuse_embed(struct fusion *f, uint32_t i)
{
    enum program_buffer_index out = f->p->n_ops == 0 ? PROGRAM_X : PROGRAM_LAYERS;
    float scale = 1;
    if (f->held[out] != NO_NODE)
        return fusion_refuse(f, i, "it is the third embedding");
    uint32_t nodes[2] = {i, skip_scale(f, i, &scale)};
    struct program_op *op = fusion_emit(f, PROGRAM_EMBED, nodes, nodes[1] == i ? 1 : 2);
    op->n_weights = 1;
    op->weight[0] = fusion_node(f, i)->weight;
    op->n[0] = op->k = fusion_node(f, i)->width;
    op->out = out;
    op->scale = scale;
    fusion_hold(f, out, nodes[1], fusion_node(f, i)->width);
    return 0;
}

/* The nodes between a product of Q, K or V and the attention: `end` is its SOFT_MAX or COPY, `last` the node
 * that this reads. */
struct head_chain {
    uint32_t product, norm, rope, last, end;
};

struct attention {
    struct head_chain q, k, v;
    uint32_t copy, soft_max;
};

static struct head_chain follow_heads(const struct fusion *f, uint32_t product, uint32_t reader)
{
    struct head_chain c = {product, NO_NODE, NO_NODE, product, reader};
    if (c.end != NO_NODE && fusion_node(f, c.end)->op == GRAPH_RMS_NORM) {
        c.norm = c.last = c.end;
        c.end = f->n_readers[c.last] == 1 ? fusion_next_reader(f, c.last, c.last + 1) : NO_NODE;
    }
    if (c.end != NO_NODE && fusion_node(f, c.end)->op == GRAPH_ROPE) {
        c.rope = c.last = c.end;
        c.end = f->n_readers[c.last] == 1 ? fusion_next_reader(f, c.last, c.last + 1) : NO_NODE;
    }
    return c;
}

/* Sorts the chains from one product into q, k and v: a product may be both K and V. */
static void sort_chains(const struct fusion *f, struct attention *a, uint32_t product)
{
    for (uint32_t j = fusion_next_reader(f, product, product + 1); j != NO_NODE;
         j = fusion_next_reader(f, product, j + 1)) {
        struct head_chain c = follow_heads(f, product, j);
        if (c.end == NO_NODE)
            continue;
        const struct graph_node *end = fusion_node(f, c.end);
        if (end->op == GRAPH_SOFT_MAX && end->inputs[0] == c.last)
            a->q = c;
        else if (end->op == GRAPH_COPY && end->inputs[0] == c.last)
            a->k = c;
        else if (end->op == GRAPH_COPY && end->inputs[1] == c.last)
            a->v = c;
    }
}

/* True if the n products of a norm end in one attention: with one, in the cache of an earlier layer. */
static bool find_attention(const struct fusion *f, const uint32_t *products, uint32_t n, struct attention *a)
{
    const struct head_chain none = {NO_NODE, NO_NODE, NO_NODE, NO_NODE, NO_NODE};
    a->q = a->k = a->v = none;
    uint32_t n_readers = 0;
    for (uint32_t i = 0; i < n; i++) {
        sort_chains(f, a, products[i]);
        n_readers += f->n_readers[products[i]];
    }
    if (a->q.end == NO_NODE || n_readers != (n == 1 ? 1 : 3))
        return false;
    a->soft_max = a->q.end;
    a->copy = fusion_node(f, a->soft_max)->inputs[1];
    if (n == 1)
        return f->covered[a->copy];
    return a->k.end == a->copy && a->v.end == a->copy && a->v.rope == NO_NODE;
}

/* Sets the norms of the heads. */
static int set_head_norms(const struct fusion *f, const struct attention *a, struct program_op *op)
{
    uint32_t head_dim = fusion_node(f, a->soft_max)->group;
    bool cached = op->flags & PROGRAM_CACHED;
    if (!cached && (a->q.norm == NO_NODE) != (a->k.norm == NO_NODE))
        return fusion_refuse(f, a->soft_max, "only one of q and k is normalised");
    if (a->v.norm != NO_NODE) {
        const struct graph_node *v = fusion_node(f, a->v.norm);
        if (a->q.norm == NO_NODE || v->gain != MODEL_NO_WEIGHT || v->group != head_dim ||
            v->eps != fusion_node(f, a->q.norm)->eps)
            return fusion_refuse(f, a->v.norm, "the norms of q and v differ, or that of v has a gain");
        op->flags |= PROGRAM_V_NORM;
    }
    if (a->q.norm == NO_NODE)
        return 0;
    const struct graph_node *q = fusion_node(f, a->q.norm), *k = cached ? q : fusion_node(f, a->k.norm);
    if (q->eps != k->eps || q->group != head_dim || k->group != head_dim || q->gain == MODEL_NO_WEIGHT ||
        k->gain == MODEL_NO_WEIGHT)
        return fusion_refuse(f, cached ? a->q.norm : a->k.norm, "the norms of q and k differ");
    op->q_gain = q->gain;
    op->k_gain = k->gain;
    op->eps = q->eps;
    return 0;
}

static int emit_attend(struct fusion *f, const struct attention *a, const struct program_op *qkv)
{
    const struct graph_node *soft_max = fusion_node(f, a->soft_max);
    bool cached = f->covered[a->copy],
         rotates = model_config(f->g->model)->kinds[soft_max->kind].rope.dim > 0;
    const uint32_t all[7] = {a->q.norm, a->k.norm, a->v.norm, a->q.rope, a->k.rope, a->copy, a->soft_max};
    uint32_t nodes[7], n = 0;
    for (uint32_t i = 0; i < 7; i++)
        if (all[i] != NO_NODE && !f->covered[all[i]])
            nodes[n++] = all[i];
    if ((a->q.rope != NO_NODE) != rotates || (!cached && (a->k.rope != NO_NODE) != rotates))
        return fusion_refuse(f, a->soft_max, "q and k do not rotate as the kind of attention says");
    struct program_op *op = fusion_attend(f, a->soft_max, nodes, n);
    op->flags |= cached ? PROGRAM_CACHED : 0;
    memcpy(op->n, qkv->n, sizeof op->n);
    memcpy(op->out_col, qkv->out_col, sizeof op->out_col);
    if (!cached && a->k.product == a->v.product) {
        op->n[2] = op->n[1];
        op->out_col[2] = op->out_col[1];
    }
    fusion_hold(f, PROGRAM_ATTN, a->soft_max, soft_max->width);
    f->held[PROGRAM_QKV] = NO_NODE;
    return set_head_norms(f, a, op);
}

static int fuse_attention(struct fusion *f, uint32_t norm, const uint32_t *products, uint32_t n)
{
    struct attention a;
    if (!find_attention(f, products, n, &a))
        return fusion_refuse(f, norm, "its products do not end in one attention");
    uint32_t nodes[4] = {norm, a.q.product, a.k.product, a.v.product};
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, 1 + n);
    op->in = PROGRAM_X;
    op->out = PROGRAM_QKV;
    op->epilogue = PROGRAM_STORE;
    fusion_set_norm(f, op, norm);
    for (uint32_t i = 0; i < n; i++)
        fusion_add_matrix(f, op, nodes[1 + i]);
    fusion_hold(f, PROGRAM_QKV, nodes[n], op->out_col[n - 1] + op->n[n - 1]);
    return emit_attend(f, &a, op);
}

/* The activation of a gate, or NO_NODE. */
static uint32_t activation_of(const struct fusion *f, uint32_t product)
{
    uint32_t silu = fusion_sole_reader(f, product, GRAPH_SILU);
    return silu != NO_NODE ? silu : fusion_sole_reader(f, product, GRAPH_GELU);
}

/* Two products of a norm that end in one SILU or GELU, and MUL, or in one SWIGLU_CLAMPED: then active is
 * NO_NODE. */
struct gated {
    uint32_t gate, up, active, gated;
};

static bool find_clamped(const struct fusion *f, const uint32_t products[2], struct gated *s)
{
    uint32_t gated = fusion_sole_reader(f, products[0], GRAPH_SWIGLU_CLAMPED);
    if (gated == NO_NODE || fusion_sole_reader(f, products[1], GRAPH_SWIGLU_CLAMPED) != gated)
        return false;
    *s = (struct gated){fusion_node(f, gated)->inputs[0], fusion_node(f, gated)->inputs[1], NO_NODE, gated};
    return true;
}

static bool find_gated(const struct fusion *f, const uint32_t products[2], struct gated *s)
{
    uint32_t first = activation_of(f, products[0]), second = activation_of(f, products[1]);
    bool swapped = first == NO_NODE;
    *s = (struct gated){products[swapped], products[!swapped], swapped ? second : first, NO_NODE};
    s->gated = fusion_sole_reader(f, s->active, GRAPH_MUL);
    return s->gated != NO_NODE && fusion_sole_reader(f, s->up, GRAPH_MUL) == s->gated &&
           !fusion_node(f, s->gated)->col;
}

/* Emits gate and up to a buffer; `norm` is covered already if another op has its nodes. */
static struct program_op *emit_gated(struct fusion *f, enum program_opcode opcode, uint32_t norm,
                                     const struct gated *s, enum program_buffer_index out)
{
    uint32_t nodes[5] = {s->gate, s->up, s->gated}, n = 3;
    bool gelu = s->active != NO_NODE && fusion_node(f, s->active)->op == GRAPH_GELU;
    if (s->active != NO_NODE)
        nodes[n++] = s->active;
    if (!f->covered[norm])
        nodes[n++] = norm;
    struct program_op *op = fusion_emit(f, opcode, nodes, n);
    op->in = PROGRAM_X;
    op->out = out;
    op->epilogue = s->active == NO_NODE ? PROGRAM_SWIGLU_CLAMPED : gelu ? PROGRAM_GEGLU : PROGRAM_SWIGLU;
    fusion_set_norm(f, op, norm);
    fusion_add_matrix(f, op, s->gate);
    fusion_add_matrix(f, op, s->up);
    op->out_col[1] = 0;
    fusion_hold(f, out, s->gated, fusion_node(f, s->gated)->width);
    return op;
}

static int fuse_gated(struct fusion *f, uint32_t norm, const uint32_t products[2])
{
    struct gated s;
    if (!find_gated(f, products, &s))
        return fusion_refuse(f, norm, "its two products do not end in one SILU or GELU, and MUL");
    emit_gated(f, PROGRAM_MATMUL, norm, &s, PROGRAM_H);
    return 0;
}

/* The readers of the norm before a mixture of experts. */
struct mixture {
    uint32_t router, route;
    uint32_t gate;       /* of the shared expert, a product of width 1, or NO_NODE */
    uint32_t experts[2]; /* gate and up */
    uint32_t shared[2];
    uint32_t n_experts, n_shared; /* counts of the two */
};

/* Returns NO_NODE, or the reader that has no place in the mixture. */
static uint32_t find_mixture(const struct fusion *f, uint32_t norm, struct mixture *m)
{
    *m = (struct mixture){.router = NO_NODE, .route = NO_NODE, .gate = NO_NODE};
    for (uint32_t j = fusion_next_reader(f, norm, norm + 1); j != NO_NODE;
         j = fusion_next_reader(f, norm, j + 1)) {
        const struct graph_node *n = fusion_node(f, j);
        bool product = n->op == GRAPH_MUL_MAT;
        if (n->op == GRAPH_MUL_MAT_ID && n->inputs[0] == norm && m->n_experts < 2)
            m->experts[m->n_experts++] = j;
        else if (product && m->router == NO_NODE && fusion_sole_reader(f, j, GRAPH_ROUTE) != NO_NODE)
            m->route = fusion_next_reader(f, m->router = j, j + 1);
        else if (product && m->gate == NO_NODE && n->width == 1 &&
                 fusion_sole_reader(f, j, GRAPH_GATE) != NO_NODE)
            m->gate = j;
        else if (product && m->n_shared < 2)
            m->shared[m->n_shared++] = j;
        else
            return j;
    }
    return NO_NODE;
}

/* Emits the router's product and the choice. */
static void emit_route(struct fusion *f, uint32_t norm, const struct mixture *m)
{
    float scale = 1;
    uint32_t nodes[4] = {norm, m->router}, n = 2, scaled = skip_scale(f, m->router, &scale);
    if (m->gate != NO_NODE)
        nodes[n++] = m->gate;
    if (scaled != m->router)
        nodes[n++] = scaled;
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, n);
    op->scale = scale;
    op->in = PROGRAM_X;
    op->out = PROGRAM_CHOICE;
    op->epilogue = PROGRAM_STORE;
    fusion_set_norm(f, op, norm);
    fusion_add_matrix(f, op, m->router);
    if (m->gate != NO_NODE)
        fusion_add_matrix(f, op, m->gate);
    f->gate = m->gate;
    f->gate_col = op->out_col[1];
    uint32_t column = (op->n[0] + op->n[1] + 3) / 4 * 4;
    struct program_op *route = fusion_emit(f, PROGRAM_ROUTE, &m->route, 1);
    route->in = route->out = PROGRAM_CHOICE;
    route->route = fusion_node(f, m->route)->route;
    route->bias[0] = fusion_node(f, m->route)->bias;
    route->weight[0] = fusion_node(f, m->route)->gain;
    route->out_col[0] = column;
    f->choice_col = column;
    fusion_hold(f, PROGRAM_CHOICE, m->route, column + fusion_node(f, m->route)->width);
}

static int fuse_experts(struct fusion *f, uint32_t norm)
{
    struct mixture m;
    struct gated experts, shared = {0};
    uint32_t odd = find_mixture(f, norm, &m);
    if (odd != NO_NODE)
        return fusion_refuse(f, odd, "it has no part in a mixture of experts");
    bool routed = m.route == NO_NODE && f->held[PROGRAM_CHOICE] != NO_NODE; /* by a router of another norm */
    m.route = routed ? f->held[PROGRAM_CHOICE] : m.route;
    if (m.route == NO_NODE || m.n_experts != 2 ||
        (!find_gated(f, m.experts, &experts) && !find_clamped(f, m.experts, &experts)) || m.n_shared == 1 ||
        (m.n_shared == 2 && !find_gated(f, m.shared, &shared)))
        return fusion_refuse(f, norm, "its products are not those of a mixture of experts");
    for (uint32_t i = 0; i < 2; i++)
        if (fusion_node(f, m.experts[i])->inputs[1] != m.route)
            return fusion_refuse(f, m.experts[i], "its experts are chosen elsewhere");
    if (!routed)
        emit_route(f, norm, &m);
    struct program_op *op = emit_gated(f, PROGRAM_EXPERTS, norm, &experts, PROGRAM_H);
    op->route = fusion_node(f, experts.gate)->route;
    op->gate_col = f->choice_col;
    op->n[0] = op->n[1] = op->n[0] / op->route.n_used;
    if (m.n_shared)
        emit_gated(f, PROGRAM_MATMUL, norm, &shared, PROGRAM_H2);
    return 0;
}

static int fuse_head(struct fusion *f, uint32_t norm, uint32_t product)
{
    float scale = 1, cap = 0;
    uint32_t nodes[4] = {norm, product}, n = 2, last = skip_scale(f, product, &scale);
    if (last != product)
        nodes[n++] = last;
    uint32_t capped = fusion_sole_reader(f, last, GRAPH_SOFT_CAP);
    if (capped != NO_NODE) {
        cap = fusion_node(f, capped)->scale;
        nodes[n++] = last = capped;
    }
    uint32_t sample = fusion_sole_reader(f, last, GRAPH_ARGMAX);
    if (sample == NO_NODE || !fusion_node(f, norm)->head)
        return fusion_refuse(f, norm, "its product does not end in sampling");
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, n);
    op->in = PROGRAM_X;
    op->out = PROGRAM_LOGITS;
    op->epilogue = PROGRAM_STORE;
    op->scale = scale;
    op->cap = cap;
    fusion_set_norm(f, op, norm);
    fusion_add_matrix(f, op, product);
    fusion_hold(f, PROGRAM_LOGITS, last, op->n[0]);
    struct program_op *choice = fusion_emit(f, PROGRAM_SAMPLE, &sample, 1);
    choice->in = PROGRAM_LOGITS;
    choice->n[0] = op->n[0];
    return 0;
}

/* Fuses a norm over the whole row with all nodes up to the next product. */
static int fuse_norm(struct fusion *f, uint32_t norm)
{
    uint32_t products[3], n = 0, gate = NO_NODE;
    if (fusion_node(f, norm)->inputs[0] != f->held[PROGRAM_X])
        return fusion_refuse(f, norm, "its input is not the residual stream");
    if (fusion_node(f, norm)->group != fusion_node(f, norm)->width)
        return fusion_refuse(f, norm, "it normalises parts of the residual stream");
    if (fusion_node(f, norm)->gain == MODEL_NO_WEIGHT)
        return fusion_refuse(f, norm, "it has no gain");
    for (uint32_t j = fusion_next_reader(f, norm, norm + 1); j != NO_NODE;
         j = fusion_next_reader(f, norm, j + 1))
        if (fusion_node(f, j)->op == GRAPH_MUL_MAT_ID)
            return fuse_experts(f, norm);
        else if (fusion_sole_reader(f, j, GRAPH_SSM_CONV) != NO_NODE)
            return fusion_delta(f, norm);
    for (uint32_t j = fusion_next_reader(f, norm, norm + 1); j != NO_NODE;
         j = fusion_next_reader(f, norm, j + 1)) {
        bool gates = gate == NO_NODE && fusion_sole_reader(f, j, GRAPH_SIGMOID) != NO_NODE;
        if (fusion_node(f, j)->op != GRAPH_MUL_MAT || (n == 3 && !gates))
            return fusion_refuse(f, j, "it reads a norm");
        *(gates ? &gate : &products[n++]) = j;
    }
    if (n == 0)
        return fusion_refuse(f, norm, "nothing reads it");
    if (fusion_is_latent(f, products, n))
        return fusion_latent(f, norm, products, n);
    if (n == 2 && (activation_of(f, products[0]) != NO_NODE || activation_of(f, products[1]) != NO_NODE))
        return fuse_gated(f, norm, products);
    float scale;
    struct mixture m = {.router = products[0], .gate = NO_NODE};
    m.route = n == 1 ? fusion_sole_reader(f, skip_scale(f, products[0], &scale), GRAPH_ROUTE) : NO_NODE;
    if (m.route != NO_NODE) {
        emit_route(f, norm, &m);
        return 0;
    }
    if (n == 1 && fusion_node(f, norm)->head)
        return fuse_head(f, norm, products[0]);
    int rc = fuse_attention(f, norm, products, n);
    return rc == 0 && gate != NO_NODE ? fusion_output_gate(f, norm, gate) : rc;
}

/* The other input of an addition. */
static uint32_t other_input(const struct fusion *f, uint32_t sum, uint32_t one)
{
    const uint32_t *in = fusion_node(f, sum)->inputs;
    return in[0] == one ? in[1] : in[0];
}

/* Checks that an addition is to what `buffer` holds, which no later node reads. */
int fusion_check_sum(const struct fusion *f, uint32_t sum, uint32_t branch, enum program_buffer_index buffer)
{
    uint32_t x = other_input(f, sum, branch);
    if (x == f->held[buffer] && fusion_next_reader(f, x, sum + 1) == NO_NODE)
        return 0;
    return fusion_refuse(f, sum, "it does not add to the residual stream");
}

void fusion_add_norm(struct fusion *f, enum program_buffer_index in, enum program_buffer_index out,
                     uint32_t norm, uint32_t sum)
{
    float scale = 1;
    uint32_t last = fusion_sole_reader(f, sum, GRAPH_SCALE), tail[3] = {norm, sum, last};
    struct program_op *op = fusion_emit(f, PROGRAM_ADD_NORM, tail, last == NO_NODE ? 2 : 3);
    last = last == NO_NODE ? sum : last;
    op->in = in;
    op->out = out;
    fusion_set_norm(f, op, norm);
    op->k = fusion_node(f, norm)->group;
    op->n[0] = fusion_node(f, norm)->width;
    (void)skip_scale(f, sum, &scale);
    op->scale = scale;
    op->weight[0] = last == sum ? PROGRAM_NONE : fusion_node(f, last)->gain;
    fusion_hold(f, out, last, op->n[0]);
}

/* Emits the product whose result a norm and an addition follow, and these two. */
static int fuse_branch(struct fusion *f, uint32_t product, enum program_buffer_index in,
                       enum program_buffer_index out)
{
    float scale = 1;
    uint32_t nodes[2] = {product, skip_scale(f, product, &scale)};
    uint32_t norm = fusion_sole_reader(f, nodes[1], GRAPH_RMS_NORM),
             sum = fusion_sole_reader(f, norm, GRAPH_ADD);
    if (sum == NO_NODE)
        return fusion_refuse(f, product, "it is not added to the residual stream");
    int rc = fusion_check_sum(f, sum, norm, out);
    if (rc < 0)
        return rc;
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, nodes, nodes[1] == product ? 1 : 2);
    op->in = in;
    op->out = PROGRAM_BRANCH;
    op->scale = scale;
    fusion_add_matrix(f, op, product);
    fusion_hold(f, PROGRAM_BRANCH, norm, fusion_node(f, norm)->width);
    fusion_add_norm(f, PROGRAM_BRANCH, out, norm, sum);
    return 0;
}

/* Fuses a product of the residual stream itself: its gate of the layer's embeddings. */
static int fuse_gate(struct fusion *f, uint32_t product)
{
    uint32_t gelu = fusion_sole_reader(f, product, GRAPH_GELU), mul = fusion_sole_reader(f, gelu, GRAPH_MUL);
    if (mul == NO_NODE || fusion_node(f, mul)->inputs[0] != gelu ||
        fusion_node(f, mul)->inputs[1] != f->held[PROGRAM_LAYERS])
        return fusion_refuse(f, product, "it does not gate the layer's embeddings");
    struct program_op *op = fusion_emit(f, PROGRAM_MATMUL, &product, 1);
    op->in = PROGRAM_X;
    op->out = PROGRAM_H;
    fusion_add_matrix(f, op, product);
    uint32_t nodes[2] = {gelu, mul};
    op = fusion_emit(f, PROGRAM_GATE, nodes, 2);
    op->in = PROGRAM_LAYERS;
    op->out = PROGRAM_H;
    op->n[0] = fusion_node(f, mul)->width;
    op->out_col[0] = fusion_node(f, mul)->col;
    fusion_hold(f, PROGRAM_H, mul, op->n[0]);
    return 0;
}

/* The buffer that holds the input of a product whose result goes to the residual stream, or PROGRAM_NONE. */
static uint32_t residual_input(const struct fusion *f, uint32_t product)
{
    static const uint32_t buffers[] = {PROGRAM_ATTN, PROGRAM_H, PROGRAM_H2};
    uint32_t input = fusion_node(f, product)->inputs[0];
    for (uint32_t i = 0; i < sizeof buffers / sizeof *buffers && f->n_readers[input] == 1; i++)
        if (f->held[buffers[i]] == input)
            return buffers[i];
    return PROGRAM_NONE;
}

/* The node between a product and its addition to the residual stream, or NO_NODE: a shared expert's gate, or
 * the sum of experts. */
static uint32_t find_between(const struct fusion *f, uint32_t product)
{
    if (fusion_node(f, product)->op == GRAPH_MUL_MAT_ID)
        return fusion_sole_reader(f, product, GRAPH_EXPERT_SUM);
    uint32_t gate = fusion_sole_reader(f, product, GRAPH_GATE);
    return gate != NO_NODE && f->gate != NO_NODE && fusion_node(f, gate)->inputs[1] == f->gate ? gate
                                                                                               : NO_NODE;
}

static int check_experts(const struct fusion *f, uint32_t product, uint32_t from, uint32_t between)
{
    uint32_t route = fusion_node(f, product)->inputs[1];
    if (between != NO_NODE && from == PROGRAM_H && route == f->held[PROGRAM_CHOICE] &&
        fusion_node(f, between)->inputs[1] == route)
        return 0;
    return fusion_refuse(f, product, "it is not summed by its experts' weights");
}

/* Emits a product, dense or of experts, that is added to the residual stream in place. */
static void emit_residual(struct fusion *f, uint32_t product, uint32_t from, uint32_t last, float scale)
{
    const struct graph_node *n = fusion_node(f, product);
    bool experts = n->op == GRAPH_MUL_MAT_ID;
    uint32_t sum = fusion_sole_reader(f, last, GRAPH_ADD), nodes[3] = {product, sum, last};
    struct program_op *op =
        fusion_emit(f, experts ? PROGRAM_EXPERTS : PROGRAM_MATMUL, nodes, last == product ? 2 : 3);
    op->in = from;
    op->out = PROGRAM_X;
    op->epilogue = PROGRAM_RESIDUAL;
    op->scale = scale;
    fusion_add_matrix(f, op, product);
    if (experts) {
        op->route = n->route;
        op->n[0] = n->width / n->route.n_used;
        op->gate_col = f->choice_col;
    } else if (fusion_node(f, last)->op == GRAPH_GATE) {
        op->flags |= PROGRAM_GATED;
        op->gate_col = f->gate_col;
    }
    fusion_hold(f, PROGRAM_X, sum, fusion_node(f, sum)->width);
}

/* Fuses a product, dense or of experts, with its addition to the residual stream. */
static int fuse_residual(struct fusion *f, uint32_t product)
{
    bool experts = fusion_node(f, product)->op == GRAPH_MUL_MAT_ID;
    uint32_t from = residual_input(f, product), between = find_between(f, product);
    float scale = 1;
    uint32_t last = between == NO_NODE ? skip_scale(f, product, &scale) : between;
    uint32_t sum = fusion_sole_reader(f, last, GRAPH_ADD);
    if (from == PROGRAM_NONE)
        return fusion_refuse(f, product, "its input is neither attention's output nor the gated row");
    int rc = experts ? check_experts(f, product, from, between) : 0;
    if (rc == 0 && fusion_is_parallel(f, last))
        rc = fusion_parallel(f, product, last, from);
    else if (rc == 0 && sum == NO_NODE)
        rc = experts ? fusion_refuse(f, product, "it is not added to the residual stream")
                     : fuse_branch(f, product, from, PROGRAM_X);
    else if (rc == 0 && (rc = fusion_check_sum(f, sum, last, PROGRAM_X)) == 0)
        emit_residual(f, product, from, last, scale);
    f->held[from] = NO_NODE;
    return rc;
}

static int fuse_product(struct fusion *f, uint32_t product)
{
    if (fusion_node(f, product)->inputs[0] != f->held[PROGRAM_X])
        return fuse_residual(f, product);
    return f->held[PROGRAM_LAYERS] == NO_NODE || activation_of(f, product) != NO_NODE
               ? fuse_gate(f, product)
               : fuse_branch(f, product, PROGRAM_X, PROGRAM_LAYERS);
}

static int fuse(struct fusion *f)
{
    int rc = 0;
    for (uint32_t i = 0; i < f->g->n_nodes && rc == 0; i++) {
        enum graph_op op = fusion_node(f, i)->op;
        if (f->covered[i] || op == GRAPH_NONE)
            continue;
        if (op == GRAPH_EMBED)
            rc = fuse_embed(f, i);
        else if (op == GRAPH_RMS_NORM)
            rc = fuse_norm(f, i);
        else if (op == GRAPH_MUL_MAT || op == GRAPH_MUL_MAT_ID)
            rc = fuse_product(f, i);
        else
            rc = fusion_refuse(f, i, "no pattern begins with it");
    }
    return rc;
}

/* Sets the decoder's parameters of the model, and the offsets of the buffers. */
static void fill_header(struct program *p, const struct model_config *c)
{
    p->magic = PROGRAM_MAGIC;
    p->version = PROGRAM_VERSION;
    p->n_layers = c->n_layers;
    p->n_buffers = PROGRAM_N_BUFFERS;
    p->n_counters = p->n_ops;
    p->n_embd = c->n_embd;
    p->n_ff = c->n_ff;
    p->n_vocab = c->n_vocab;
    p->n_heads = c->n_heads;
    p->n_kv_heads = c->n_kv_heads;
    p->head_dim = c->head_dim;
    p->rope_dim = c->kinds[0].rope.dim;
    p->rope_neox = c->rope == MODEL_ROPE_NEOX;
    p->n_ranks = 1;
    for (uint32_t b = 0; b < PROGRAM_LOGITS; b++) {
        p->buffers[b].offset = p->row_floats;
        p->row_floats += (p->buffers[b].width + 15) / 16 * 16; /* 64 bytes: rows stay aligned */
    }
}

int program_open(struct program **out, const struct graph *g, struct error *err)
{
    struct fusion f = {.g = g, .err = err, .gate = NO_NODE};
    for (uint32_t b = 0; b < PROGRAM_N_BUFFERS; b++)
        f.held[b] = NO_NODE;
    f.p = calloc(1, sizeof *f.p + g->n_nodes * sizeof *f.p->ops);
    f.covered = calloc(g->n_nodes + 1, sizeof *f.covered);
    f.n_readers = calloc(g->n_nodes + 1, sizeof *f.n_readers);
    int rc = 0;
    if (!g->model)
        rc = error_set(err, -EINVAL, "a graph without a model has no program");
    else if (!f.p || !f.covered || !f.n_readers)
        rc = error_set(err, -ENOMEM, "no memory for a program of %u nodes", g->n_nodes);
    for (uint32_t i = 0; i < g->n_nodes && rc == 0; i++)
        for (uint32_t j = 0; j < graph_op_arity(g->nodes[i].op); j++)
            f.n_readers[g->nodes[i].inputs[j]]++;
    if (rc == 0)
        rc = fuse(&f);
    free(f.covered);
    free(f.n_readers);
    if (rc < 0) {
        free(f.p);
        return rc;
    }
    fill_header(f.p, model_config(g->model));
    *out = f.p;
    return 0;
}

void program_close(struct program *p)
{
    free(p);
}

/* Printing. */

const char *program_opcode_name(uint32_t opcode)
{
    static const char *const names[] = {
        [PROGRAM_EMBED] = "EMBED",   [PROGRAM_MATMUL] = "MATMUL",     [PROGRAM_ATTEND] = "ATTEND",
        [PROGRAM_SAMPLE] = "SAMPLE", [PROGRAM_ADD_NORM] = "ADD_NORM", [PROGRAM_GATE] = "GATE",
        [PROGRAM_ROUTE] = "ROUTE",   [PROGRAM_EXPERTS] = "EXPERTS",   [PROGRAM_ALL_REDUCE] = "ALL_REDUCE",
        [PROGRAM_HEADS] = "HEADS",   [PROGRAM_JOIN] = "JOIN",         [PROGRAM_CONV] = "CONV",
        [PROGRAM_DELTA] = "DELTA",
    };
    return opcode > 0 && opcode < sizeof names / sizeof *names ? names[opcode] : "?";
}

static const char *buffer_name(uint32_t buffer)
{
    static const char *const names[PROGRAM_N_BUFFERS] = {"x",      "qkv",    "attn",   "h",     "h2",
                                                         "choice", "branch", "layers", "logits"};
    return buffer < PROGRAM_N_BUFFERS ? names[buffer] : "-";
}

static void print_op(FILE *f, const struct program_op *op, const struct graph *g)
{
    static const char *const epilogues[] = {"store", "residual",   "swiglu",       "swiglu clamped",
                                            "geglu", "times silu", "times sigmoid"};
    fprintf(f, "  %-6s -> %-6s", buffer_name(op->in), buffer_name(op->out));
    if (op->opcode == PROGRAM_MATMUL || op->opcode == PROGRAM_EXPERTS)
        fprintf(f, "  %-8s", epilogues[op->epilogue]);
    if (op->route.n_used)
        fprintf(f, "  %u of %u experts", op->route.n_used, op->route.n_experts);
    if (op->gain != PROGRAM_NONE)
        fprintf(f, "  norm(eps %g)", (double)op->eps);
    for (uint32_t i = 0; i < op->n_weights; i++) {
        const struct weight *w = model_weight(g->model, op->weight[i]);
        fprintf(f, "  %s %s [%u, %u]%s", w ? w->name : "?", w ? quant_name(w->type) : "?", w ? w->n : 0,
                w ? w->k : 0, op->bias[i] == PROGRAM_NONE ? "" : " + bias");
    }
    if (op->opcode == PROGRAM_ATTEND)
        fprintf(f, "  layer %u, q %u, k %u, v %u%s%s%s, scale %.6g", g->nodes[op->node].layer, op->n[0],
                op->n[1], op->n[2], op->q_gain == PROGRAM_NONE ? "" : ", QK-norm",
                op->flags & PROGRAM_V_NORM ? ", V-norm" : "", op->weight[0] == PROGRAM_NONE ? "" : ", sinks",
                (double)op->scale);
    else if (op->scale != 1)
        fprintf(f, "  scale %.6g", (double)op->scale);
    if (op->cap > 0)
        fprintf(f, "  cap %.6g", (double)op->cap);
    if (op->flags & PROGRAM_HEAD)
        fputs("  (logit rows)", f);
}

char *program_print(const struct program *p, const struct graph *g)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fprintf(f, "%u ops, %u counters, %u nodes; per row %u floats:", p->n_ops, p->n_counters, g->n_nodes,
            p->row_floats);
    for (uint32_t b = 0; b < p->n_buffers; b++)
        fprintf(f, " %s[%u]", buffer_name(b), p->buffers[b].width);
    fputs(" (logits: per logit row)\n", f);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct program_op *op = &p->ops[i];
        fprintf(f, "%4u  %-6s", i, program_opcode_name(op->opcode));
        print_op(f, op, g);
        if (op->wait == PROGRAM_NONE)
            fprintf(f, "  signal %u\n", op->signal);
        else
            fprintf(f, "  wait %u, signal %u\n", op->wait, op->signal);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
