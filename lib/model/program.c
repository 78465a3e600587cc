/* program.c - fuses a graph to a program. Each pattern is found by following the graph's edges from the node
 * that begins it: a norm whose products are Q, K and V; a norm whose products are gate and up; an addition to
 * the residual stream; the norm before the logits. A value inside a pattern must have no other reader. */
#include "program.h"
#include "graph.h"
#include "model.h"
#include "gguf/quant.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX

struct fusion {
    const struct graph *g;
    struct program *p;
    uint8_t *covered;                 /* per node: an op covers it */
    uint32_t *n_readers;              /* per node: nodes that read it */
    uint32_t held[PROGRAM_N_BUFFERS]; /* node whose value each buffer holds; CHOICE: the ROUTE */
    uint32_t gate, gate_col;          /* the shared expert's gate, and its column of CHOICE */
    uint32_t choice_col;              /* column of the choice there */
    struct error *err;
};

static const struct graph_node *node_at(const struct fusion *f, uint32_t i)
{
    return &f->g->nodes[i];
}

static int not_covered(const struct fusion *f, uint32_t i, const char *why)
{
    return error_set(f->err, -ENOTSUP, "graph node %u %s (%s): no pattern covers it: %s", i,
                     node_at(f, i)->name, graph_op_name(node_at(f, i)->op), why);
}

/* The next reader of node `i` after `from`, or NOBODY. */
static uint32_t next_reader(const struct fusion *f, uint32_t i, uint32_t from)
{
    for (uint32_t j = from; j < f->g->n_nodes; j++)
        for (uint32_t k = 0; k < graph_op_arity(node_at(f, j)->op); k++)
            if (node_at(f, j)->inputs[k] == i)
                return j;
    return NOBODY;
}

/* The only reader of node `i` if it has this op; NOBODY if not, or if there are others. */
static uint32_t sole_reader(const struct fusion *f, uint32_t i, enum graph_op op)
{
    if (i == NOBODY || f->n_readers[i] != 1)
        return NOBODY;
    uint32_t j = next_reader(f, i, i + 1);
    return j != NOBODY && node_at(f, j)->op == op ? j : NOBODY;
}

static void hold(struct fusion *f, enum program_buffer_index buffer, uint32_t node, uint32_t width)
{
    struct program_buffer *b = &f->p->buffers[buffer];
    f->held[buffer] = node;
    b->width = width > b->width ? width : b->width;
}

/* Appends an op that covers these nodes; the last of them gives it its name and layer. */
static struct program_op *emit(struct fusion *f, enum program_opcode opcode, const uint32_t *nodes,
                               uint32_t n_nodes)
{
    struct program_op *op = &f->p->ops[f->p->n_ops];
    *op = (struct program_op){.opcode = (uint16_t)opcode,
                              .in = PROGRAM_NONE,
                              .out = PROGRAM_NONE,
                              .weight = {PROGRAM_NONE, PROGRAM_NONE, PROGRAM_NONE},
                              .bias = {PROGRAM_NONE, PROGRAM_NONE, PROGRAM_NONE},
                              .gain = PROGRAM_NONE,
                              .q_gain = PROGRAM_NONE,
                              .k_gain = PROGRAM_NONE,
                              .wait = f->p->n_ops ? f->p->n_ops - 1 : PROGRAM_NONE,
                              .signal = f->p->n_ops};
    f->p->n_ops++;
    for (uint32_t i = 0; i < n_nodes; i++) {
        assert(!f->covered[nodes[i]]);
        f->covered[nodes[i]] = 1;
        op->node = nodes[i] > op->node ? nodes[i] : op->node;
    }
    op->n_nodes = n_nodes;
    op->layer = node_at(f, op->node)->layer;
    op->flags = node_at(f, op->node)->head ? PROGRAM_HEAD : 0;
    return op;
}

/* Adds the weight of a MUL_MAT node to a MATMUL op. */
static void add_matrix(const struct fusion *f, struct program_op *op, uint32_t i)
{
    const struct graph_node *n = node_at(f, i);
    uint32_t w = op->n_weights++;
    op->k = n->k;
    op->weight[w] = n->weight;
    op->bias[w] = n->bias;
    op->n[w] = n->width;
    op->out_col[w] = w ? op->out_col[w - 1] + op->n[w - 1] : 0;
}

static void set_norm(const struct fusion *f, struct program_op *op, uint32_t i)
{
    op->gain = node_at(f, i)->gain;
    op->eps = node_at(f, i)->eps;
}

static int fuse_embed(struct fusion *f, uint32_t i)
{
    struct program_op *op = emit(f, PROGRAM_EMBED, &i, 1);
    op->n_weights = 1;
    op->weight[0] = node_at(f, i)->weight;
    op->n[0] = op->k = node_at(f, i)->width;
    op->out = PROGRAM_X;
    hold(f, PROGRAM_X, i, node_at(f, i)->width);
    return 0;
}

/* The nodes from the products of Q, K, V to the attention's output. */
struct attention {
    uint32_t product[3]; /* q, k, v */
    uint32_t head_norm[2], rope[2];
    uint32_t copy, soft_max;
};

/* Finds the RoPE of a product of Q or K, behind the QK-norm if there is one. */
static uint32_t find_rope(const struct fusion *f, uint32_t product, uint32_t *head_norm)
{
    *head_norm = sole_reader(f, product, GRAPH_RMS_NORM);
    return sole_reader(f, *head_norm == NOBODY ? product : *head_norm, GRAPH_ROPE);
}

/* True if the three products of a norm end in one attention. The only reader of v is the COPY, whose inputs
 * give k; the only reader of the COPY is the SOFT_MAX, whose inputs give q. */
static bool find_attention(const struct fusion *f, const uint32_t products[3], struct attention *a)
{
    a->copy = a->soft_max = NOBODY;
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t copy = sole_reader(f, products[i], GRAPH_COPY);
        if (copy == NOBODY || node_at(f, copy)->inputs[1] != products[i])
            continue;
        a->copy = copy;
        a->product[2] = products[i];
        a->product[0] = products[(i + 1) % 3];
        a->product[1] = products[(i + 2) % 3];
    }
    if (a->copy == NOBODY || (a->soft_max = sole_reader(f, a->copy, GRAPH_SOFT_MAX)) == NOBODY)
        return false;
    for (uint32_t i = 0; i < 2; i++)
        a->rope[i] = find_rope(f, a->product[i], &a->head_norm[i]);
    if (a->rope[0] != NOBODY && a->rope[0] == node_at(f, a->copy)->inputs[0]) { /* q and k are swapped */
        struct attention b = *a;
        for (uint32_t i = 0; i < 2; i++) {
            a->product[i] = b.product[1 - i];
            a->rope[i] = b.rope[1 - i];
            a->head_norm[i] = b.head_norm[1 - i];
        }
    }
    return a->rope[0] != NOBODY && a->rope[1] != NOBODY &&
           sole_reader(f, a->rope[0], GRAPH_SOFT_MAX) == a->soft_max &&
           sole_reader(f, a->rope[1], GRAPH_COPY) == a->copy &&
           node_at(f, a->soft_max)->inputs[0] == a->rope[0] && node_at(f, a->copy)->inputs[0] == a->rope[1];
}

static int emit_attend(struct fusion *f, const struct attention *a, const struct program_op *qkv)
{
    bool normed = a->head_norm[0] != NOBODY;
    const struct graph_node *soft_max = node_at(f, a->soft_max);
    if (normed != (a->head_norm[1] != NOBODY))
        return not_covered(f, a->soft_max, "only one of q and k is normalised");
    uint32_t nodes[6] = {a->rope[0], a->rope[1], a->copy, a->soft_max, a->head_norm[0], a->head_norm[1]};
    struct program_op *op = emit(f, PROGRAM_ATTEND, nodes, normed ? 6 : 4);
    op->in = PROGRAM_QKV;
    op->out = PROGRAM_ATTN;
    op->scale = soft_max->scale;
    memcpy(op->n, qkv->n, sizeof op->n);
    memcpy(op->out_col, qkv->out_col, sizeof op->out_col);
    if (normed) {
        const struct graph_node *q = node_at(f, a->head_norm[0]), *k = node_at(f, a->head_norm[1]);
        if (q->eps != k->eps || q->group != soft_max->group || k->group != soft_max->group)
            return not_covered(f, a->head_norm[1], "the norms of q and k differ");
        op->q_gain = q->gain;
        op->k_gain = k->gain;
        op->eps = q->eps;
    }
    hold(f, PROGRAM_ATTN, a->soft_max, soft_max->width);
    f->held[PROGRAM_QKV] = NOBODY;
    return 0;
}

static int fuse_attention(struct fusion *f, uint32_t norm, const uint32_t products[3])
{
    struct attention a;
    if (!find_attention(f, products, &a))
        return not_covered(f, norm, "its three products do not end in one attention");
    uint32_t nodes[4] = {norm, a.product[0], a.product[1], a.product[2]};
    struct program_op *op = emit(f, PROGRAM_MATMUL, nodes, 4);
    op->in = PROGRAM_X;
    op->out = PROGRAM_QKV;
    op->epilogue = PROGRAM_STORE;
    set_norm(f, op, norm);
    for (uint32_t i = 0; i < 3; i++)
        add_matrix(f, op, a.product[i]);
    hold(f, PROGRAM_QKV, a.product[2], op->out_col[2] + op->n[2]);
    return emit_attend(f, &a, op);
}

/* Two products of a norm that end in one SILU and MUL, or in one SWIGLU_CLAMPED: then silu is NOBODY. */
struct swiglu {
    uint32_t gate, up, silu, gated;
};

static bool find_clamped(const struct fusion *f, const uint32_t products[2], struct swiglu *s)
{
    uint32_t gated = sole_reader(f, products[0], GRAPH_SWIGLU_CLAMPED);
    if (gated == NOBODY || sole_reader(f, products[1], GRAPH_SWIGLU_CLAMPED) != gated)
        return false;
    *s = (struct swiglu){node_at(f, gated)->inputs[0], node_at(f, gated)->inputs[1], NOBODY, gated};
    return true;
}

static bool find_swiglu(const struct fusion *f, const uint32_t products[2], struct swiglu *s)
{
    uint32_t first = sole_reader(f, products[0], GRAPH_SILU),
             second = sole_reader(f, products[1], GRAPH_SILU);
    bool swapped = first == NOBODY;
    *s = (struct swiglu){products[swapped], products[!swapped], swapped ? second : first, NOBODY};
    s->gated = sole_reader(f, s->silu, GRAPH_MUL);
    return s->gated != NOBODY && sole_reader(f, s->up, GRAPH_MUL) == s->gated;
}

/* Emits gate and up to a buffer; `norm` is covered already if another op has its nodes. */
static struct program_op *emit_swiglu(struct fusion *f, enum program_opcode opcode, uint32_t norm,
                                      const struct swiglu *s, enum program_buffer_index out)
{
    uint32_t nodes[5] = {s->gate, s->up, s->gated}, n = 3;
    if (s->silu != NOBODY)
        nodes[n++] = s->silu;
    if (!f->covered[norm])
        nodes[n++] = norm;
    struct program_op *op = emit(f, opcode, nodes, n);
    op->in = PROGRAM_X;
    op->out = out;
    op->epilogue = s->silu == NOBODY ? PROGRAM_SWIGLU_CLAMPED : PROGRAM_SWIGLU;
    set_norm(f, op, norm);
    add_matrix(f, op, s->gate);
    add_matrix(f, op, s->up);
    op->out_col[1] = 0;
    hold(f, out, s->gated, node_at(f, s->gated)->width);
    return op;
}

static int fuse_swiglu(struct fusion *f, uint32_t norm, const uint32_t products[2])
{
    struct swiglu s;
    if (!find_swiglu(f, products, &s))
        return not_covered(f, norm, "its two products do not end in one SILU and MUL");
    emit_swiglu(f, PROGRAM_MATMUL, norm, &s, PROGRAM_H);
    return 0;
}

/* The readers of the norm before a mixture of experts. */
struct mixture {
    uint32_t router, route;
    uint32_t gate;       /* of the shared expert, a product of width 1, or NOBODY */
    uint32_t experts[2]; /* gate and up */
    uint32_t shared[2];
    uint32_t n_experts, n_shared; /* counts of the two */
};

/* Returns NOBODY, or the reader that has no place in the mixture. */
static uint32_t find_mixture(const struct fusion *f, uint32_t norm, struct mixture *m)
{
    *m = (struct mixture){.router = NOBODY, .route = NOBODY, .gate = NOBODY};
    for (uint32_t j = next_reader(f, norm, norm + 1); j != NOBODY; j = next_reader(f, norm, j + 1)) {
        const struct graph_node *n = node_at(f, j);
        bool product = n->op == GRAPH_MUL_MAT;
        if (n->op == GRAPH_MUL_MAT_ID && n->inputs[0] == norm && m->n_experts < 2)
            m->experts[m->n_experts++] = j;
        else if (product && m->router == NOBODY && sole_reader(f, j, GRAPH_ROUTE) != NOBODY)
            m->route = next_reader(f, m->router = j, j + 1);
        else if (product && m->gate == NOBODY && n->width == 1 && sole_reader(f, j, GRAPH_GATE) != NOBODY)
            m->gate = j;
        else if (product && m->n_shared < 2)
            m->shared[m->n_shared++] = j;
        else
            return j;
    }
    return NOBODY;
}

/* Emits the router's product and the choice. */
static void emit_route(struct fusion *f, uint32_t norm, const struct mixture *m)
{
    uint32_t nodes[3] = {norm, m->router, m->gate};
    struct program_op *op = emit(f, PROGRAM_MATMUL, nodes, m->gate == NOBODY ? 2 : 3);
    op->in = PROGRAM_X;
    op->out = PROGRAM_CHOICE;
    op->epilogue = PROGRAM_STORE;
    set_norm(f, op, norm);
    add_matrix(f, op, m->router);
    if (m->gate != NOBODY)
        add_matrix(f, op, m->gate);
    f->gate = m->gate;
    f->gate_col = op->out_col[1];
    uint32_t column = (op->n[0] + op->n[1] + 3) / 4 * 4;
    struct program_op *route = emit(f, PROGRAM_ROUTE, &m->route, 1);
    route->in = route->out = PROGRAM_CHOICE;
    route->route = node_at(f, m->route)->route;
    route->bias[0] = node_at(f, m->route)->bias;
    route->out_col[0] = column;
    f->choice_col = column;
    hold(f, PROGRAM_CHOICE, m->route, column + node_at(f, m->route)->width);
}

static int fuse_experts(struct fusion *f, uint32_t norm)
{
    struct mixture m;
    struct swiglu experts, shared = {0};
    uint32_t odd = find_mixture(f, norm, &m);
    if (odd != NOBODY)
        return not_covered(f, odd, "it has no part in a mixture of experts");
    if (m.route == NOBODY || m.n_experts != 2 ||
        (!find_swiglu(f, m.experts, &experts) && !find_clamped(f, m.experts, &experts)) || m.n_shared == 1 ||
        (m.n_shared == 2 && !find_swiglu(f, m.shared, &shared)))
        return not_covered(f, norm, "its products are not those of a mixture of experts");
    for (uint32_t i = 0; i < 2; i++)
        if (node_at(f, m.experts[i])->inputs[1] != m.route)
            return not_covered(f, m.experts[i], "its experts are chosen elsewhere");
    emit_route(f, norm, &m);
    struct program_op *op = emit_swiglu(f, PROGRAM_EXPERTS, norm, &experts, PROGRAM_H);
    op->route = node_at(f, experts.gate)->route;
    op->gate_col = f->choice_col;
    op->n[0] = op->n[1] = op->n[0] / op->route.n_used;
    if (m.n_shared)
        emit_swiglu(f, PROGRAM_MATMUL, norm, &shared, PROGRAM_H2);
    return 0;
}

static int fuse_head(struct fusion *f, uint32_t norm, uint32_t product)
{
    uint32_t sample = sole_reader(f, product, GRAPH_ARGMAX);
    if (sample == NOBODY || !node_at(f, norm)->head)
        return not_covered(f, norm, "its product does not end in sampling");
    uint32_t nodes[2] = {norm, product};
    struct program_op *op = emit(f, PROGRAM_MATMUL, nodes, 2);
    op->in = PROGRAM_X;
    op->out = PROGRAM_LOGITS;
    op->epilogue = PROGRAM_STORE;
    set_norm(f, op, norm);
    add_matrix(f, op, product);
    hold(f, PROGRAM_LOGITS, product, op->n[0]);
    struct program_op *choice = emit(f, PROGRAM_SAMPLE, &sample, 1);
    choice->in = PROGRAM_LOGITS;
    choice->n[0] = op->n[0];
    return 0;
}

/* Fuses a norm over the whole row with all nodes up to the next product. */
static int fuse_norm(struct fusion *f, uint32_t norm)
{
    uint32_t products[3], n = 0;
    if (node_at(f, norm)->inputs[0] != f->held[PROGRAM_X])
        return not_covered(f, norm, "its input is not the residual stream");
    if (node_at(f, norm)->group != node_at(f, norm)->width)
        return not_covered(f, norm, "it normalises parts of the residual stream");
    for (uint32_t j = next_reader(f, norm, norm + 1); j != NOBODY; j = next_reader(f, norm, j + 1))
        if (node_at(f, j)->op == GRAPH_MUL_MAT_ID)
            return fuse_experts(f, norm);
    for (uint32_t j = next_reader(f, norm, norm + 1); j != NOBODY; j = next_reader(f, norm, j + 1)) {
        if (node_at(f, j)->op != GRAPH_MUL_MAT || n == 3)
            return not_covered(f, j, "it reads a norm");
        products[n++] = j;
    }
    if (n == 3)
        return fuse_attention(f, norm, products);
    if (n == 2)
        return fuse_swiglu(f, norm, products);
    return n == 1 ? fuse_head(f, norm, products[0]) : not_covered(f, norm, "nothing reads it");
}

/* The buffer that holds the input of a product whose result goes to the residual stream, or PROGRAM_NONE. */
static uint32_t residual_input(const struct fusion *f, uint32_t product)
{
    static const uint32_t buffers[] = {PROGRAM_ATTN, PROGRAM_H, PROGRAM_H2};
    uint32_t input = node_at(f, product)->inputs[0];
    for (uint32_t i = 0; i < sizeof buffers / sizeof *buffers && f->n_readers[input] == 1; i++)
        if (f->held[buffers[i]] == input)
            return buffers[i];
    return PROGRAM_NONE;
}

/* The node between a product and its addition to the residual stream, or NOBODY: a shared expert's gate, or
 * the sum of experts. */
static uint32_t find_between(const struct fusion *f, uint32_t product)
{
    if (node_at(f, product)->op == GRAPH_MUL_MAT_ID)
        return sole_reader(f, product, GRAPH_EXPERT_SUM);
    uint32_t gate = sole_reader(f, product, GRAPH_GATE);
    return gate != NOBODY && f->gate != NOBODY && node_at(f, gate)->inputs[1] == f->gate ? gate : NOBODY;
}

/* Fuses a product, dense or of experts, with its addition to the residual stream, in place. */
static int fuse_residual(struct fusion *f, uint32_t product)
{
    const struct graph_node *n = node_at(f, product);
    bool experts = n->op == GRAPH_MUL_MAT_ID;
    uint32_t from = residual_input(f, product), between = find_between(f, product);
    uint32_t last = between == NOBODY ? product : between, sum = sole_reader(f, last, GRAPH_ADD);
    if (from == PROGRAM_NONE)
        return not_covered(f, product, "its input is neither attention's output nor the gated row");
    if (experts && (between == NOBODY || from != PROGRAM_H || n->inputs[1] != f->held[PROGRAM_CHOICE] ||
                    node_at(f, between)->inputs[1] != n->inputs[1]))
        return not_covered(f, product, "it is not summed by its experts' weights");
    if (sum == NOBODY)
        return not_covered(f, product, "it is not added to the residual stream");
    const uint32_t *in = node_at(f, sum)->inputs;
    uint32_t x = in[0] == last ? in[1] : in[0];
    if (x != f->held[PROGRAM_X] || next_reader(f, x, sum + 1) != NOBODY)
        return not_covered(f, sum, "it does not add to the residual stream");
    uint32_t nodes[3] = {product, sum, between};
    struct program_op *op =
        emit(f, experts ? PROGRAM_EXPERTS : PROGRAM_MATMUL, nodes, between == NOBODY ? 2 : 3);
    op->in = from;
    op->out = PROGRAM_X;
    op->epilogue = PROGRAM_RESIDUAL;
    add_matrix(f, op, product);
    if (experts) {
        op->route = n->route;
        op->n[0] = n->width / n->route.n_used;
        op->gate_col = f->choice_col;
    } else if (between != NOBODY) {
        op->flags |= PROGRAM_GATED;
        op->gate_col = f->gate_col;
    }
    f->held[op->in] = NOBODY;
    hold(f, PROGRAM_X, sum, node_at(f, sum)->width);
    return 0;
}

static int fuse(struct fusion *f)
{
    int rc = 0;
    for (uint32_t i = 0; i < f->g->n_nodes && rc == 0; i++) {
        enum graph_op op = node_at(f, i)->op;
        if (f->covered[i] || op == GRAPH_NONE)
            continue;
        if (op == GRAPH_EMBED && f->p->n_ops == 0)
            rc = fuse_embed(f, i);
        else if (op == GRAPH_RMS_NORM)
            rc = fuse_norm(f, i);
        else if (op == GRAPH_MUL_MAT || op == GRAPH_MUL_MAT_ID)
            rc = fuse_residual(f, i);
        else
            rc = not_covered(f, i, "no pattern begins with it");
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
    p->rope_dim = c->rope_dim;
    p->rope_neox = c->rope == MODEL_ROPE_NEOX;
    p->n_ranks = 1;
    for (uint32_t b = 0; b < PROGRAM_LOGITS; b++) {
        p->buffers[b].offset = p->row_floats;
        p->row_floats += (p->buffers[b].width + 15) / 16 * 16; /* 64 bytes: rows stay aligned */
    }
}

int program_open(struct program **out, const struct graph *g, struct error *err)
{
    struct fusion f = {.g = g, .err = err, .gate = NOBODY};
    for (uint32_t b = 0; b < PROGRAM_N_BUFFERS; b++)
        f.held[b] = NOBODY;
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
        [PROGRAM_EMBED] = "EMBED",     [PROGRAM_MATMUL] = "MATMUL",         [PROGRAM_ATTEND] = "ATTEND",
        [PROGRAM_SAMPLE] = "SAMPLE",   [PROGRAM_ALL_REDUCE] = "ALL_REDUCE", [PROGRAM_ROUTE] = "ROUTE",
        [PROGRAM_EXPERTS] = "EXPERTS",
    };
    return opcode > 0 && opcode < sizeof names / sizeof *names ? names[opcode] : "?";
}

static const char *buffer_name(uint32_t buffer)
{
    static const char *const names[PROGRAM_N_BUFFERS] = {"x", "qkv", "attn", "h", "h2", "choice", "logits"};
    return buffer < PROGRAM_N_BUFFERS ? names[buffer] : "-";
}

static void print_op(FILE *f, const struct program_op *op, const struct graph *g)
{
    static const char *const epilogues[] = {"store", "residual", "swiglu", "swiglu clamped"};
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
        fprintf(f, "  layer %u, q %u, k %u, v %u%s, scale %.6g", op->layer, op->n[0], op->n[1], op->n[2],
                op->q_gain == PROGRAM_NONE ? "" : ", QK-norm", (double)op->scale);
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
