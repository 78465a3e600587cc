/* cpu_load.c - the memory of the cpu decoder: checks that it fits, then allocates weights, KV cache, scratch
 * and tables. */
#include "cpu_decoder.h"
#include "cpu/reference/reference.h"
#include "gguf/quant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Hands out parts of one block. Without a base it only counts, so that the same code computes the size and
 * the places. */
struct scratch {
    uint8_t *base;
    size_t used;
};

static void *scratch_alloc(struct scratch *s, size_t size)
{
    void *p = s->base ? s->base + s->used : NULL;
    s->used += (size + 63) / 64 * 64;
    return p;
}

static struct rows scratch_rows(struct scratch *s, uint32_t width, uint32_t n_rows)
{
    struct rows r = {.stride = rows_stride(width)};
    r.data = scratch_alloc(s, r.stride * n_rows * sizeof(float));
    return r;
}

static uint32_t max_k(const struct graph *g)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        k = g->nodes[i].k > k ? g->nodes[i].k : k;
    return k;
}

/* Sizes that the mixtures of experts of a graph, and heads with matrices of their own, need; 0 without any.
 */
struct experts_needs {
    size_t shared, own; /* bytes of quantised columns: of a step, and of one row */
    uint32_t n_used;
};

static struct experts_needs experts_needs(const struct graph *g)
{
    struct experts_needs needs = {0};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        if (n->op != GRAPH_MUL_MAT_ID && n->op != GRAPH_MUL_MAT_HEADS)
            continue;
        uint32_t used = n->op == GRAPH_MUL_MAT_ID ? n->route.n_used : n->n_heads;
        bool floats = quant_traits(n->weight_type)->block == 1;
        size_t shared = experts_input_size(n->k, STEP_MAX_ROWS * used, floats);
        size_t own = experts_input_size(n->k, used, floats);
        needs.shared = shared > needs.shared ? shared : needs.shared;
        needs.own = own > needs.own ? own : needs.own;
        needs.n_used = used > needs.n_used ? used : needs.n_used;
    }
    return needs;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct experts_order *place_order(struct scratch *s, uint32_t n_used)
{
    struct experts_order *o = scratch_alloc(s, n_used ? sizeof *o : 0);
    uint32_t *pairs = scratch_alloc(s, (size_t)STEP_MAX_ROWS * n_used * sizeof *pairs);
    if (o && n_used)
        o->pairs = pairs;
    return o;
}

static void place_scratch(struct decoder *d, struct scratch *s)
{
    uint32_t k = max_k(d->graph);
    struct experts_needs experts = experts_needs(d->graph);
    for (uint32_t b = 0; b < PROGRAM_N_BUFFERS && !d->cfg.eager; b++)
        d->buffers[b] = scratch_rows(s, d->program->buffers[b].width,
                                     b == PROGRAM_LOGITS ? STEP_MAX_LOGITS : STEP_MAX_ROWS);
    d->product.input = scratch_alloc(s, larger(matmul_input_size(k, STEP_MAX_ROWS), experts.shared));
    d->product.factors = scratch_alloc(s, STEP_MAX_ROWS * sizeof(float));
    uint32_t n_kinds = model_config(d->graph->model)->n_kinds;
    for (uint32_t i = 0; i < n_kinds; i++) {
        void *shared = scratch_alloc(s, attend_shared_size(&d->attend[i], team_size(d->team)));
        if (shared)
            attend_shared_set(&d->attend[i], team_size(d->team), shared);
    }
    for (uint32_t i = 0; i < team_size(d->team); i++) {
        struct decoder_member *m = &d->members[i];
        m->product.input = scratch_alloc(s, larger(matmul_input_size(k, PRODUCT_OWN_ROWS), experts.own));
        m->experts = place_order(s, experts.n_used);
        m->product.tile = scratch_alloc(s, PRODUCT_TILE * sizeof(float));
        m->product.kernel = scratch_alloc(s, matmul_scratch_size());
        m->sampler = scratch_alloc(s, sampler_scratch_size(d->n_vocab));
        for (uint32_t j = 0; j < n_kinds; j++) {
            void *attend = scratch_alloc(s, attend_scratch_size(&d->attend[j]));
            if (attend)
                attend_scratch_set(&d->attend[j], &m->attend[j], attend);
        }
    }
}

static int alloc_scratch(struct decoder *d, struct error *err)
{
    struct scratch counted = {0};
    place_scratch(d, &counted);
    int rc = memory_map(&d->scratch, counted.used, "activations", err);
    if (rc < 0)
        return rc;
    struct scratch placed = {.base = d->scratch.data};
    place_scratch(d, &placed);
    return 0;
}

static uint32_t slot_pages(const struct decoder *d)
{
    return (uint32_t)(((uint64_t)d->cfg.n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

#define MIB(bytes) ((double)(bytes) / (1 << 20))

/* Divides the KV cache: kv_memory or, by default, a quarter of the memory, at most every slot's whole
 * context. */
static int choose_pages(struct decoder *d, const struct model_config *c, struct error *err)
{
    struct kv_plan_config cfg = {.kv_type = (uint32_t)d->cfg.kv_type,
                                 .n_slots = d->cfg.n_slots,
                                 .n_ctx = d->cfg.n_ctx,
                                 .rows_in_flight = d->cfg.steps_in_flight * STEP_MAX_ROWS,
                                 .limit = d->cfg.kv_memory ? d->cfg.kv_memory : memory_available() / 4,
                                 .whole = d->cfg.kv_memory > 0};
    d->plan = kv_plan_of(c, &cfg);
    if (d->plan.n_pages == 0)
        return error_set(err, d->cfg.kv_memory ? -EINVAL : -ENOMEM,
                         "%sthe KV cache may take %llu bytes, one page of %u tokens takes %llu",
                         d->cfg.kv_memory ? "kv_memory: " : "", (unsigned long long)cfg.limit, KV_PAGE_TOKENS,
                         (unsigned long long)kv_page_size(&d->whole));
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        d->attend[i].kv = kv_plan_layout(c, &d->plan, i, cfg.kv_type);
        d->attend[i].windowed = d->plan.n_windows && c->kinds[i].window;
    }
    return 0;
}

/* Floats of the tables that depend on positions: cosines, sines and temperatures of each kind. */
static size_t table_floats(const struct decoder *d, const struct model_attention *kind)
{
    return (size_t)d->cfg.n_ctx * (kind->rope.dim + (kind->temperature > 0 ? 1 : 0));
}

static size_t all_table_floats(const struct decoder *d, const struct model_config *c)
{
    size_t n = 16;
    for (uint32_t i = 0; i < c->n_kinds; i++)
        n += table_floats(d, &c->kinds[i]);
    return n;
}

/* Checks that memory suffices, and sets the number of snapshots of recurrent states to what is left; they
 * become resident when used. */
static int fit(struct decoder *d, struct error *err)
{
    size_t weights = 0;
    int rc = weights_size(d->graph, &weights, err);
    if (rc < 0)
        return rc;
    struct scratch counted = {0};
    place_scratch(d, &counted);
    uint64_t kv = kv_plan_size(&d->plan), available = memory_available();
    uint64_t rope = sizeof(float) * (uint64_t)all_table_floats(d, model_config(d->graph->model));
    uint64_t states = delta_size(&d->delta.shape, d->delta.n_layers, d->cfg.n_slots);
    uint64_t needed = weights + counted.used + rope + kv + states;
    if (needed > available)
        return error_set(
            err, -ENOMEM,
            "%s needs %.0f MiB (weights %.0f, KV cache %.0f, %u recurrent states %.0f, scratch %.0f, "
            "rotation table %.0f), %.0f MiB are available",
            gguf_path(model_gguf(d->graph->model)), MIB(needed), MIB(weights), MIB(kv),
            states ? d->cfg.n_slots : 0, MIB(states), MIB(counted.used), MIB(rope), MIB(available));
    uint64_t state = delta_state_size(&d->delta.shape, d->delta.n_layers);
    if (state)
        d->n_snapshots = kv_plan_snapshots(kv, state, available, needed);
    return 0;
}

/* Stores cosines and sines apart, so that a vector of pairs is one load of each. */
static int fill_rope(struct decoder *d, const struct model_rotation *rope, struct attend *a, float *to,
                     struct error *err)
{
    struct memory_block table = {0};
    size_t pairs = (size_t)d->cfg.n_ctx * (rope->dim / 2);
    int rc = memory_map(&table, 2 * pairs * sizeof(float) + 64, "rotation table", err);
    if (rc < 0)
        return rc;
    model_rope_table(rope, d->cfg.n_ctx, table.data);
    const float *from = table.data;
    float *cosines = to, *sines = to + pairs;
    for (size_t i = 0; i < pairs; i++) {
        cosines[i] = from[2 * i];
        sines[i] = from[2 * i + 1];
    }
    memory_unmap(&table);
    a->cosines = cosines;
    a->sines = sines;
    return 0;
}

static void fill_temperatures(const struct decoder *d, const struct model_attention *kind, struct attend *a,
                              float *to)
{
    for (uint32_t pos = 0; pos < d->cfg.n_ctx; pos++)
        to[pos] = model_temperature(kind, pos);
    a->temperatures = to;
}

static int alloc_tables(struct decoder *d, const struct model_config *c, struct error *err)
{
    int rc = memory_map(&d->rope, all_table_floats(d, c) * sizeof(float), "rotation table", err);
    float *at = d->rope.data;
    for (uint32_t i = 0; i < c->n_kinds && rc == 0; at += table_floats(d, &c->kinds[i++])) {
        const struct model_attention *kind = &c->kinds[i];
        if (kind->rope.dim)
            rc = fill_rope(d, &kind->rope, &d->attend[i], at, err);
        if (kind->temperature > 0)
            fill_temperatures(d, kind, &d->attend[i], at + (size_t)d->cfg.n_ctx * kind->rope.dim);
    }
    return rc;
}

static void set_kind(struct decoder *d, const struct model_config *c, uint32_t i)
{
    const struct model_attention *kind = &c->kinds[i];
    struct attend *a = &d->attend[i];
    a->ops = d->ops;
    a->kv = model_kv_layout(c, i, d->cfg.kv_type);
    a->n_heads = kind->n_heads;
    a->rope_dim = kind->rope.dim;
    a->neox = c->rope == MODEL_ROPE_NEOX;
    a->window = kind->window;
    a->cap = kind->cap;
    attend_open(a, d->cfg.n_ctx);
}

static int set_shape(struct decoder *d, const struct model_config *c, struct error *err)
{
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        if (c->kinds[i].head_dim > OPS_MAX_HEAD_DIM)
            return error_set(err, -ENOTSUP, "heads of %u values, at most %u are supported on cpu",
                             c->kinds[i].head_dim, OPS_MAX_HEAD_DIM);
        set_kind(d, c, i);
    }
    d->whole = model_kv_layout(c, 0, d->cfg.kv_type);
    d->delta.ops = d->ops;
    d->delta.shape = c->delta;
    d->delta.n_layers = c->n_recurrent;
    d->n_vocab = c->n_vocab;
    d->product.kernels = d->kernels;
    d->product.ops = d->ops;
    d->members = calloc(team_size(d->team), sizeof *d->members);
    d->op_ns = calloc(d->program->n_ops, sizeof *d->op_ns);
    return d->members && d->op_ns ? 0 : error_set(err, -ENOMEM, "compute threads: out of memory");
}

static int alloc_slots(struct decoder *d, uint64_t transfer_bytes, struct error *err)
{
    struct step_limits limits = {
        .n_slots = d->cfg.n_slots,
        .n_ctx = d->cfg.n_ctx,
        .n_vocab = d->n_vocab,
        .n_pages = d->plan.n_pages,
        .n_windows = d->plan.n_windows,
        .window_bytes = d->plan.window_bytes,
        .max_rows = STEP_MAX_ROWS,
        .recurrent = d->delta.n_layers > 0,
        .n_states =
            d->delta.n_layers && d->cfg.arithmetic != BACKEND_EXACT ? d->cfg.n_slots + d->n_snapshots : 0,
        .state_bytes = delta_state_size(&d->delta.shape, d->delta.n_layers),
        .transfer_bytes = transfer_bytes,
        .page_bytes = kv_page_size(&d->whole),
    };
    int rc = step_checker_open(&d->checker, &limits, err);
    if (rc == 0)
        rc = slots_open(&d->slots, d->cfg.n_slots, d->cfg.n_ctx, err);
    d->slots.n_pages = d->plan.n_windows ? d->plan.n_pages : 0;
    return rc;
}

/* The reference executor has a cache of its own; this allocates what sampling needs. */
static int load_exact(struct decoder *d, struct error *err)
{
    d->plan.n_pages = d->cfg.n_slots * slot_pages(d);
    int rc = alloc_slots(d, 0, err);
    if (rc == 0)
        rc = memory_map(&d->scratch, sampler_scratch_size(d->n_vocab), "sampler", err);
    if (rc == 0)
        rc = exact_open(&d->exact, d->graph, d->cfg.n_slots, d->cfg.n_ctx, err);
    if (rc == 0)
        d->members[0].sampler = d->scratch.data;
    return rc;
}

/* A block of the KV cache, whose pages are touched one by one. */
static int alloc_pages(struct memory_block *block, struct ahead **ahead, uint64_t size, struct error *err)
{
    int rc = memory_map(block, size, "the KV cache", err);
    if (rc < 0)
        return rc;
    memory_promise(block);
    return ahead_open(ahead, block, err);
}

static int alloc_cache(struct decoder *d, struct error *err)
{
    const struct kv_plan *p = &d->plan;
    int rc = p->page_bytes ? alloc_pages(&d->kv, &d->ahead, p->n_pages * p->page_bytes, err) : 0;
    if (rc == 0 && p->n_windows)
        rc = alloc_pages(&d->windows, &d->windows_ahead, p->n_windows * p->window_bytes, err);
    return rc;
}

static int load_int8(struct decoder *d, const struct model_config *c, struct error *err)
{
    uint64_t transfer = kv_page_size(&d->whole) * STEP_MAX_PAGE_OPS;
    int rc = choose_pages(d, c, err);
    if (rc == 0)
        rc = fit(d, err);
    if (rc == 0)
        rc = alloc_slots(d, transfer, err);
    struct weights_progress progress = {.report = d->cfg.progress, .context = d->cfg.context};
    if (rc == 0)
        rc = weights_open(&d->weights, d->graph, d->team, &progress, err);
    if (rc == 0)
        rc = delta_open(&d->delta, d->graph, &d->weights, d->cfg.n_slots + d->n_snapshots, err);
    if (rc == 0)
        rc = alloc_cache(d, err);
    if (rc == 0)
        rc = memory_map(&d->transfer, transfer, "page transfers", err);
    if (rc == 0)
        rc = alloc_tables(d, c, err);
    if (rc == 0)
        rc = alloc_scratch(d, err);
    if (rc == 0)
        rc = decoder_tune(d, err);
    if (rc == 0 && d->cfg.eager)
        rc = eager_open(d, err);
    for (uint32_t i = 0; i < c->n_kinds; i++)
        d->attend[i].pages = d->attend[i].windowed ? d->windows.data : d->kv.data;
    return rc;
}

int decoder_load(struct decoder *d, struct error *err)
{
    const struct model_config *c = model_config(d->graph->model);
    for (uint32_t i = 0; i < d->cfg.n_end_tokens; i++)
        if ((uint32_t)d->end_tokens[i] >= c->n_vocab)
            return error_set(err, -EINVAL, "end token %d, the vocabulary has %u", d->end_tokens[i],
                             c->n_vocab);
    int rc = set_shape(d, c, err);
    if (rc < 0)
        return rc;
    return d->cfg.arithmetic == BACKEND_EXACT ? load_exact(d, err) : load_int8(d, c, err);
}

void decoder_unload(struct decoder *d)
{
    weights_close(&d->weights);
    ahead_close(d->ahead);
    ahead_close(d->windows_ahead);
    d->ahead = d->windows_ahead = NULL;
    delta_close(&d->delta);
    memory_unmap(&d->kv);
    memory_unmap(&d->windows);
    memory_unmap(&d->scratch);
    memory_unmap(&d->transfer);
    memory_unmap(&d->rope);
    slots_close(&d->slots);
    step_checker_close(d->checker);
    eager_close(d->eager);
    exact_close(d->exact);
    free(d->members);
    free(d->op_ns);
    d->op_ns = NULL;
    trace_close(&d->trace);
    d->checker = NULL;
    d->eager = NULL;
    d->exact = NULL;
    d->members = NULL;
}
