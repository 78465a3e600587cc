/* persistent.c - runs the fused program with the whole team: every member executes every op on its share of
 * the units. */
#include "base/clock.h"
#include "cpu_decoder.h"

#include <assert.h>
#include <string.h>

/* The context of one member in the program. Every member makes the same decisions; an op ends with a
 * barrier. */
struct walk {
    struct decoder *d;
    uint32_t member;
    struct decoder_member *own;
};

static void walk_embed(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_rows, 1);
    for (uint32_t first, last; team_next(&rows, &first, &last);) {
        float *out = row_at(d->buffers[op->out], first);
        matmul_row(&d->weights.matrices[op->weight[0]], (uint32_t)d->tokens[first], out);
        if (op->scale != 1)
            d->ops->scale(out, out, op->k, op->scale);
    }
}

static const float *vector_of(const struct decoder *d, uint32_t weight)
{
    return weight == PROGRAM_NONE ? NULL : d->weights.vectors[weight];
}

/* The weights that the member multiplies after op `op`: in this step, or first in the next one. */
static const uint8_t *next_weights(const struct walk *w, const struct program_op *op)
{
    const struct decoder *d = w->d;
    const struct program *program = d->program;
    uint32_t i = (uint32_t)(op - program->ops);
    do
        i = i + 1 < program->n_ops ? i + 1 : 0;
    while (!program->ops[i].n_weights || program->ops[i].opcode == PROGRAM_EMBED ||
           (program->ops[i].flags & PROGRAM_HEAD && !d->step->n_logits));
    const struct program_op *next = &program->ops[i];
    if (next->opcode == PROGRAM_EXPERTS ||
        next->opcode == PROGRAM_HEADS) /* which ones is not known yet, or they follow one another */
        return NULL;
    struct product p = {.n_matrices = next->n_weights, .epilogue = next->epilogue};
    for (uint32_t m = 0; m < next->n_weights; m++)
        p.matrices[m] = &d->weights.matrices[next->weight[m]];
    return product_begin(&p, d->team, w->member);
}

static struct rows columns_from(struct rows r, uint32_t column)
{
    return (struct rows){.data = r.data + column, .stride = r.stride};
}

static void walk_route(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_rows, 1);
    for (uint32_t row, last; team_next(&rows, &row, &last);) {
        float *out = row_at(d->buffers[op->out], row) + op->out_col[0];
        route_row(&op->route, row_at(d->buffers[op->in], row), vector_of(d, op->bias[0]), out);
        if (op->weight[0] != PROGRAM_NONE)
            route_factors(&op->route, vector_of(d, op->weight[0]), out);
    }
}

static void walk_experts(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    static const enum experts_end ends[] = {
        [PROGRAM_STORE] = EXPERTS_SUM,     [PROGRAM_RESIDUAL] = EXPERTS_ADD,
        [PROGRAM_SWIGLU] = EXPERTS_SWIGLU, [PROGRAM_SWIGLU_CLAMPED] = EXPERTS_SWIGLU_CLAMPED,
        [PROGRAM_GEGLU] = EXPERTS_GEGLU,
    };
    struct experts x = {
        .n_matrices = op->n_weights,
        .end = ends[op->epilogue],
        .n_experts = op->route.n_experts,
        .n_used = op->route.n_used,
        .n_rows = d->step->n_rows,
        .in = d->buffers[op->in],
        .own_input = op->epilogue == PROGRAM_RESIDUAL || op->epilogue == PROGRAM_STORE,
        .choice = columns_from(d->buffers[PROGRAM_CHOICE], op->gate_col),
        .gain = vector_of(d, op->gain),
        .eps = op->eps,
        .out = d->buffers[op->out],
        .next = next_weights(w, op),
    };
    for (uint32_t i = 0; i < op->n_weights; i++) {
        x.matrices[i] = &d->weights.matrices[op->weight[i]];
        x.bias[i] = vector_of(d, op->bias[i]);
    }
    experts_run(&x, &d->product, &w->own->product, w->own->experts, d->team, w->member);
}

static void walk_heads(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct heads h = {
        .matrix = &d->weights.matrices[op->weight[0]],
        .n_heads = op->n[1],
        .n_rows = d->step->n_rows,
        .col = op->out_col[1],
        .keep = op->n[2],
        .in = d->buffers[op->in],
        .out = columns_from(d->buffers[op->out], op->out_col[0]),
        .next = next_weights(w, op),
    };
    heads_run(&h, &d->product, &w->own->product, w->own->experts, d->team, w->member);
}

static void walk_join(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_rows, 1);
    for (uint32_t i, last; team_next(&rows, &i, &last);) {
        const float *in = row_at(d->buffers[op->in], i);
        float *out = row_at(d->buffers[op->out], i) + op->out_col[2];
        memcpy(out, in + op->out_col[0], op->n[0] * sizeof *out);
        memcpy(out + op->n[0], in + op->out_col[1], op->n[1] * sizeof *out);
        d->ops->norm_head(out + op->n[0], vector_of(d, op->gain), op->n[1], op->eps);
    }
}

static void walk_matmul(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    bool head = op->flags & PROGRAM_HEAD;
    struct product p = {
        .n_matrices = op->n_weights,
        .epilogue = op->epilogue,
        .n_rows = head ? d->step->n_logits : d->step->n_rows,
        .in = d->buffers[op->in],
        .gather = head ? d->logit_rows : NULL,
        .gain = vector_of(d, op->gain),
        .eps = op->eps,
        .out = d->buffers[op->out],
        .scale = op->scale,
        .cap = op->cap,
        .next = next_weights(w, op),
    };
    if (op->flags & PROGRAM_GATED)
        p.gates = columns_from(d->buffers[PROGRAM_CHOICE], op->gate_col);
    for (uint32_t i = 0; i < op->n_weights; i++) {
        p.matrices[i] = &d->weights.matrices[op->weight[i]];
        p.bias[i] = vector_of(d, op->bias[i]);
        p.out_col[i] = op->epilogue == PROGRAM_STORE ? op->out_col[i] : 0;
    }
    product_run(&p, &d->product, &w->own->product, d->team, w->member);
}

static const struct attend *attend_of(const struct walk *w, const struct program_op *op)
{
    return &w->d->attend[op->kind];
}

static struct attend_layer layer_of(const struct walk *w, const struct program_op *op)
{
    return (struct attend_layer){op->layer, op->scale, vector_of(w->d, op->weight[0])};
}

/* Normalises and rotates the queries of a row that belong to one kv head. */
static void prepare_queries(const struct walk *w, const struct program_op *op, uint32_t row, uint32_t kv_head)
{
    const struct decoder *d = w->d;
    const struct attend *a = attend_of(w, op);
    uint32_t head_dim = a->kv.head_dim;
    float *q = row_at(d->buffers[op->in], row) + op->out_col[0] + (size_t)kv_head * a->ratio * head_dim;
    for (uint32_t h = 0; h < a->ratio && op->q_gain != PROGRAM_NONE; h++)
        d->ops->norm_head(q + (size_t)h * head_dim, vector_of(d, op->q_gain), head_dim, op->eps);
    attend_rope(a, row, q, a->ratio);
}

/* Normalises, rotates and appends the heads of a row that belong to one kv head. V may be K before its norm.
 */
static void prepare_heads(const struct walk *w, const struct program_op *op, uint32_t row, uint32_t kv_head)
{
    const struct decoder *d = w->d;
    const struct attend *a = attend_of(w, op);
    uint32_t head_dim = a->kv.head_dim;
    const float *in = row_at(d->buffers[op->in], row) + (size_t)kv_head * head_dim;
    prepare_queries(w, op, row, kv_head);
    if (op->flags & PROGRAM_CACHED)
        return;
    _Alignas(64) float own_v[OPS_MAX_HEAD_DIM];
    float *k = row_at(d->buffers[op->in], row) + op->out_col[1] + (size_t)kv_head * head_dim;
    const float *v = in + op->out_col[2];
    if (op->flags & PROGRAM_V_NORM) {
        memcpy(own_v, v, head_dim * sizeof *v);
        d->ops->norm_head(own_v, NULL, head_dim, op->eps);
        v = own_v;
    }
    if (op->q_gain != PROGRAM_NONE)
        d->ops->norm_head(k, vector_of(d, op->k_gain), head_dim, op->eps);
    attend_rope(a, row, k, 1);
    attend_append(a, op->layer, row, kv_head, k, v);
}

/* Units between the prefetched and the prepared one: preparing a unit takes about as long as memory
 * takes to answer. */
#define FETCH_UNITS 4

/* Prefetches a unit: its rows of q, k and v lie apart, in a buffer larger than the second-level cache, and so
 * does the memory of the KV cache that it will write. */
static void fetch_heads(const struct walk *w, const struct program_op *op, uint32_t row, uint32_t kv_head)
{
    const struct attend *a = attend_of(w, op);
    uint32_t head_dim = a->kv.head_dim;
    const float *in = row_at(w->d->buffers[op->in], row);
    rows_prefetch(in + op->out_col[0] + (size_t)kv_head * a->ratio * head_dim, a->ratio * head_dim);
    if (op->flags & PROGRAM_CACHED)
        return;
    rows_prefetch(in + op->out_col[1] + (size_t)kv_head * head_dim, head_dim);
    rows_prefetch(in + op->out_col[2] + (size_t)kv_head * head_dim, head_dim);
    attend_fetch(a, op->layer, row, kv_head);
}

static struct rows queries_of(const struct walk *w, const struct program_op *op)
{
    struct rows q = w->d->buffers[op->in];
    q.data += op->out_col[0];
    return q;
}

static void prepare_all(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    uint32_t n_rows = d->step->n_rows, n_units = n_rows * attend_of(w, op)->kv.n_kv_heads;
    struct team_deal rows = team_deal(d->team, w->member, n_units, 8);
    for (uint32_t first, last; team_next(&rows, &first, &last);)
        for (uint32_t i = first; i < last; i++) {
            uint32_t ahead = i + FETCH_UNITS;
            if (ahead < n_units)
                fetch_heads(w, op, ahead % n_rows, ahead / n_rows);
            prepare_heads(w, op, i % n_rows, i / n_rows);
        }
    team_barrier(d->team, w->member);
}

/* Without shared tiles a row's heads are computed in the order of their tiles in memory. */
static void attend_alone(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    const struct attend *a = attend_of(w, op);
    struct attend_layer layer = layer_of(w, op);
    uint32_t n_heads = a->kv.n_kv_heads;
    struct team_deal units = team_deal(d->team, w->member, a->n_groups * n_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);) {
        if (i + 1 < a->n_groups * n_heads)
            fetch_heads(w, op, (i + 1) / n_heads, (i + 1) % n_heads);
        prepare_heads(w, op, i / n_heads, i % n_heads);
        attend_group(a, &w->own->attend[op->kind], &layer, i / n_heads, i % n_heads, queries_of(w, op),
                     d->buffers[op->out]);
    }
}

/* Units are numbered with heads as the outer index, so that a member keeps to its heads' tiles. */
static void attend_together(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    const struct attend *a = attend_of(w, op);
    struct attend_layer layer = layer_of(w, op);
    struct team_deal units = team_deal(d->team, w->member, a->n_groups * a->kv.n_kv_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        attend_group(a, &w->own->attend[op->kind], &layer, i % a->n_groups, i / a->n_groups,
                     queries_of(w, op), d->buffers[op->out]);
}

static void walk_attend(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    const struct attend *a = attend_of(w, op);
    struct attend_layer layer = layer_of(w, op);
    if (a->lone_rows && !a->n_splits) {
        attend_alone(w, op);
        return;
    }
    prepare_all(w, op);
    if (a->n_splits)
        attend_splits(a, d->team, w->member, &d->members[w->member].attend[a - d->attend], &layer,
                      queries_of(w, op), d->buffers[op->out]);
    else
        attend_together(w, op);
}

static void walk_add_norm(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    const float *weight = vector_of(d, op->weight[0]);
    float scale = weight ? weight[0] : op->scale;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_rows, 1);
    for (uint32_t i, last; team_next(&rows, &i, &last);) {
        float *in = row_at(d->buffers[op->in], i), *out = row_at(d->buffers[op->out], i);
        for (uint32_t at = 0; at < op->n[0]; at += op->k)
            d->ops->norm_head(in + at, vector_of(d, op->gain), op->k, op->eps);
        if (op->flags & PROGRAM_SET)
            memcpy(out, in, op->n[0] * sizeof *out);
        else
            d->ops->add(out, out, in, op->n[0]);
        if (scale != 1)
            d->ops->scale(out, out, op->n[0], scale);
    }
}

static void walk_gate(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_rows, 1);
    for (uint32_t i, last; team_next(&rows, &i, &last);) {
        float *out = row_at(d->buffers[op->out], i);
        d->ops->gelu(out, out, op->n[0]);
        d->ops->mul(out, out, row_at(d->buffers[op->in], i) + op->out_col[0], op->n[0]);
    }
}

static void walk_gates(const struct walk *w, const struct program_op *op, uint32_t row)
{
    const struct decoder *d = w->d;
    float *in = row_at(d->buffers[op->in], row), *b = in + op->out_col[1];
    delta_gates(&d->delta.shape, vector_of(d, op->weight[1]), vector_of(d, op->bias[0]), b,
                b + d->delta.shape.n_value_heads, op->flags & PROGRAM_TOGETHER, b);
}

/* One head of a group's rows, from the products to the net's input. */
static void walk_conv_head(const struct walk *w, const struct program_op *op, uint32_t group, uint32_t head)
{
    struct decoder *d = w->d;
    const struct delta_group *g = &d->delta.groups[group];
    delta_convolve(&d->delta, op->layer, group, head, d->buffers[op->in], d->buffers[op->in]);
    for (uint32_t row = g->first; row < g->first + g->n; row++)
        delta_activate_head(&d->delta, head, row_at(d->buffers[op->in], row), op->eps);
}

static void walk_conv(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    uint32_t n_heads = delta_n_heads(&d->delta.shape), n_all = d->delta.n_groups * n_heads;
    struct team_deal units = team_deal(d->team, w->member, n_all + d->step->n_rows, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        if (i < n_all)
            walk_conv_head(w, op, i / n_heads, i % n_heads);
        else
            walk_gates(w, op, i - n_all);
}

static void walk_delta(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    uint32_t n_heads = d->delta.shape.n_value_heads, dim = d->delta.shape.value_dim;
    struct rows gates = columns_from(d->buffers[op->in], op->out_col[1]), out = d->buffers[op->out];
    struct team_deal units = team_deal(d->team, w->member, d->delta.n_groups * n_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);) {
        const struct delta_group *g = &d->delta.groups[i / n_heads];
        uint32_t head = i % n_heads;
        delta_scan(&d->delta, op->layer, i / n_heads, head, d->buffers[op->in], gates, out);
        for (uint32_t row = g->first; row < g->first + g->n; row++)
            d->ops->norm_head(row_at(out, row) + (size_t)head * dim, vector_of(d, op->gain), dim, op->eps);
    }
}

static void walk_sample(const struct walk *w, const struct program_op *op)
{
    struct decoder *d = w->d;
    struct team_deal rows = team_deal(d->team, w->member, d->step->n_logits, 1);
    for (uint32_t i, last; team_next(&rows, &i, &last);)
        decoder_choose(d, i, row_at(d->buffers[op->in], i), w->own->sampler);
}

static void walk_op(const struct walk *w, const struct program_op *op)
{
    switch ((enum program_opcode)op->opcode) {
    case PROGRAM_EMBED:
        walk_embed(w, op);
        break;
    case PROGRAM_MATMUL:
        walk_matmul(w, op);
        break;
    case PROGRAM_ROUTE:
        walk_route(w, op);
        break;
    case PROGRAM_EXPERTS:
        walk_experts(w, op);
        break;
    case PROGRAM_HEADS:
        walk_heads(w, op);
        break;
    case PROGRAM_JOIN:
        walk_join(w, op);
        break;
    case PROGRAM_ATTEND:
        walk_attend(w, op);
        break;
    case PROGRAM_SAMPLE:
        walk_sample(w, op);
        break;
    case PROGRAM_ADD_NORM:
        walk_add_norm(w, op);
        break;
    case PROGRAM_GATE:
        walk_gate(w, op);
        break;
    case PROGRAM_CONV:
        walk_conv(w, op);
        break;
    case PROGRAM_DELTA:
        walk_delta(w, op);
        break;
    case PROGRAM_ALL_REDUCE:
        assert(!"not emitted for one rank");
    }
}

/* Begins the member's mark of an op, in which its waits are noted from now on. */
static void note_begin(const struct walk *w, uint32_t op, uint64_t now_ns)
{
    const struct trace *t = &w->d->trace;
    w->own->op = op;
    if (t->marks && op < t->n_ops)
        *trace_mark(t, w->member, op) = (struct trace_mark){.begin_ns = now_ns};
}

static void note_end(const struct walk *w, uint32_t op)
{
    const struct trace *t = &w->d->trace;
    if (!t->marks)
        return;
    uint64_t now_ns = clock_ns();
    trace_mark(t, w->member, op)->end_ns = now_ns;
    note_begin(w, op + 1, now_ns);
}

/* A barrier that ends an op is a wait of the next one, since it is behind note_end(). */
static void note_wait(void *context, uint32_t member, uint64_t begin_ns, uint64_t end_ns)
{
    struct decoder *d = context;
    uint32_t op = d->members[member].op;
    if (op < d->trace.n_ops)
        trace_wait(trace_mark(&d->trace, member, op), begin_ns, end_ns);
}

int decoder_trace(struct decoder *d, bool on, struct error *err)
{
    trace_close(&d->trace);
    team_watch(d->team, NULL, NULL);
    if (!on)
        return 0;
    int rc = trace_open(&d->trace, team_size(d->team), d->program->n_ops, err);
    if (rc == 0)
        team_watch(d->team, note_wait, d);
    return rc;
}

static void walk_member(void *context, uint32_t member)
{
    struct decoder *d = context;
    struct walk w = {.d = d, .member = member, .own = &d->members[member]};
    uint64_t start = member == 0 ? decoder_beat(d) : 0;
    if (d->trace.marks)
        note_begin(&w, 0, clock_ns());
    for (uint32_t i = 0; i < d->program->n_ops; i++) {
        walk_op(&w, &d->program->ops[i]);
        note_end(&w, i);
        team_barrier(d->team, member);
        if (member > 0)
            continue;
        uint64_t end = decoder_beat(d);
        uint64_t before = atomic_load_explicit(&d->op_ns[i], memory_order_relaxed);
        atomic_store_explicit(&d->op_ns[i], before + (end - start),
                              memory_order_relaxed); /* only this thread writes it */
        start = end;
    }
}

void decoder_walk(struct decoder *d)
{
    d->trace.step = d->step->id;
    team_run(d->team, walk_member, d);
}
