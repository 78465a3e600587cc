/* cuda_nodes.c - the graph on the device node by node: every node has a buffer of its own and one launch, in
 * the arithmetic that the fused program has. The kernels read the step, and with it their number of rows,
 * from device memory: so what is launched is the same in every step, and can be captured once and replayed as
 * one launch. */
#include "clock.h"
#include "cuda_decoder.h"
#include "graph_areas.h"
#include "nodes.h"
#include "sample_layout.h"

#include <errno.h>
#include <stdlib.h>

#define BEGIN_THREADS 256 /* step_border.c */
#define END_THREADS   32
#define BLOCKS_PER_SM 2
#define ATTEND_WORK   40960u /* shared memory of a block that attends */

struct value { /* what a node yields */
    uint64_t data;
    uint32_t stride; /* floats */
    uint64_t factors;
};

struct launch { /* of a node */
    void *function;
    uint32_t n_blocks, n_threads, shared_bytes;
    union {
        struct decoder_args border;
        struct rms_norm_args norm;
        struct rope_args rope;
        struct kv_append_args append;
        struct attention_args attention;
        struct sample_args sample;
        struct flat_args flat;
    } args;
};

struct cuda_nodes {
    struct cuda_block values; /* of all nodes, and factors of norms */
    struct launch *launches;  /* [n_nodes] */
    struct launch begin, end;
    void *graph, *replay; /* captured, and ready to be launched; NULL: not yet */
};

/* --- where values lie --- */

static uint32_t stride_of(uint32_t width)
{
    return (width + 63) / 64 * 64;
}

/* Places the value of every node in `a`, which may only count. */
static int place(const struct cuda_decoder *d, struct cuda_arena *a, struct value *values)
{
    const struct graph *g = d->graph;
    uint32_t n_nodes = g->n_nodes;
    struct graph_area *areas = calloc(n_nodes, sizeof *areas);
    uint32_t *area_of = calloc(n_nodes, sizeof *area_of), *last_use = calloc(n_nodes, sizeof *last_use);
    bool ok = areas && area_of && last_use;
    uint32_t n = ok ? graph_areas(g, areas, area_of, last_use) : 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = areas[i].head ? STEP_MAX_LOGITS : d->max_rows, stride = stride_of(areas[i].width);
        uint64_t data = cuda_arena_take(a, (size_t)rows * stride * sizeof(float));
        for (uint32_t j = 0; j < n_nodes && values; j++)
            if (area_of[j] == i)
                values[j] = (struct value){.data = data, .stride = stride};
    }
    for (uint32_t i = 0; ok && i < n_nodes; i++) {
        uint64_t factors = graph_is_deferred(g, i) ? cuda_arena_take(a, d->max_rows * sizeof(float)) : 0;
        if (values)
            values[i].factors = factors;
    }
    free(areas);
    free(area_of);
    free(last_use);
    return ok ? 0 : -ENOMEM;
}

size_t cuda_nodes_size(const struct cuda_decoder *d)
{
    struct cuda_arena counted = {0};
    place(d, &counted, NULL);
    return counted.used;
}

/* --- what is launched --- */

struct maker { /* makes the launches of the nodes */
    const struct cuda_decoder *d;
    const struct value *values;
    uint32_t node;
    const struct graph_node *n;
};

static struct node_step step_of(const struct maker *m)
{
    const struct decoder_args *a = &m->d->args;
    return (struct node_step){
        .step = a->staged + DECODER_STEP_AT, .fault = a->abort_word, .head = m->n->head, .node = m->node};
}

static struct node_rows rows_of(const struct maker *m, uint32_t node)
{
    const struct value *v = &m->values[node];
    return (struct node_rows){
        .data = v->data, .stride = v->stride, .gathered = m->n->head && !m->d->graph->nodes[node].head};
}

static struct node_rows input_of(const struct maker *m, uint32_t i)
{
    return rows_of(m, m->n->inputs[i]);
}

static void make_norm(const struct maker *m, struct launch *l)
{
    const struct graph_node *n = m->n;
    l->n_threads = NODE_NORM_THREADS;
    l->args.norm = (struct rms_norm_args){.step = step_of(m),
                                          .in = input_of(m, 0),
                                          .out = rows_of(m, m->node),
                                          .gain = m->d->weights.vectors[n->gain],
                                          .factors = m->values[m->node].factors,
                                          .width = n->width,
                                          .group = n->group,
                                          .eps = n->eps};
}

static void make_rope(const struct maker *m, struct launch *l)
{
    const struct decoder_args *a = &m->d->args;
    const struct program *p = m->d->program;
    l->n_threads = NODE_ROPE_THREADS;
    l->args.rope = (struct rope_args){.step = step_of(m),
                                      .in = input_of(m, 0),
                                      .out = rows_of(m, m->node),
                                      .cosines = a->cosines,
                                      .sines = a->sines,
                                      .width = m->n->width,
                                      .head_dim = m->n->group,
                                      .rope_dim = p->rope_dim,
                                      .neox = p->rope_neox,
                                      .n_ctx = a->slots.n_ctx};
}

static void make_append(const struct maker *m, struct launch *l)
{
    const struct decoder_args *a = &m->d->args;
    l->n_threads = NODE_APPEND_THREADS;
    l->args.append = (struct kv_append_args){.step = step_of(m),
                                             .k = input_of(m, 0),
                                             .v = input_of(m, 1),
                                             .out = rows_of(m, m->node),
                                             .kv = a->kv,
                                             .layout = a->layout,
                                             .slots = a->slots,
                                             .layer = m->n->layer};
}

static void make_attention(const struct maker *m, struct launch *l)
{
    const struct decoder_args *a = &m->d->args;
    const struct program *p = m->d->program;
    struct node_rows q = input_of(m, 0), out = rows_of(m, m->node);
    l->n_threads = NODE_ATTEND_THREADS;
    l->shared_bytes = ATTEND_WORK;
    l->args.attention = (struct attention_args){.step = step_of(m),
                                                .attend = {.in = q.data,
                                                           .out = out.data,
                                                           .cosines = a->cosines,
                                                           .sines = a->sines,
                                                           .kv = a->kv,
                                                           .scratch = a->buffers.attend,
                                                           .layout = a->layout,
                                                           .slots = a->slots,
                                                           .max_rows = a->buffers.max_rows,
                                                           .ready = 1,
                                                           .in_stride = q.stride,
                                                           .out_stride = out.stride,
                                                           .layer = m->n->layer,
                                                           .n_heads = m->n->n_heads,
                                                           .rope_dim = p->rope_dim,
                                                           .neox = p->rope_neox,
                                                           .scale = m->n->scale,
                                                           .work_bytes = ATTEND_WORK}};
}

/* Exported logits lie as the node's own do. */
static void make_sample(const struct maker *m, struct launch *l)
{
    const struct decoder_args *a = &m->d->args;
    struct node_rows logits = input_of(m, 0);
    l->n_threads = a->n_crew;
    l->shared_bytes = SAMPLE_WORK_BYTES;
    l->args.sample = (struct sample_args){.step = a->staged + DECODER_STEP_AT,
                                          .logits = logits.data,
                                          .results = a->buffers.results,
                                          .scratch = a->buffers.sample,
                                          .exported = a->exported,
                                          .end_tokens = a->end_tokens,
                                          .slots = a->slots,
                                          .n_end_tokens = a->n_end_tokens,
                                          .n_vocab = a->buffers.n_vocab,
                                          .logits_stride = logits.stride};
}

static void make_flat(const struct maker *m, struct launch *l)
{
    uint32_t second = m->n->op == GRAPH_SILU ? 0 : 1;
    l->n_threads = NODE_FLAT_THREADS;
    l->args.flat = (struct flat_args){.step = step_of(m),
                                      .a = input_of(m, 0),
                                      .b = input_of(m, second),
                                      .out = rows_of(m, m->node),
                                      .width = m->n->width};
}

static const struct {
    enum cuda_kernel kernel;
    void (*make)(const struct maker *m, struct launch *l); /* NULL: nothing to launch */
} makers[GRAPH_N_OPS] = {
    [GRAPH_RMS_NORM] = {CUDA_RMS_NORM, make_norm}, [GRAPH_ROPE] = {CUDA_ROPE, make_rope},
    [GRAPH_COPY] = {CUDA_KV_APPEND, make_append},  [GRAPH_SOFT_MAX] = {CUDA_ATTENTION, make_attention},
    [GRAPH_ADD] = {CUDA_ADD, make_flat},           [GRAPH_MUL] = {CUDA_MUL, make_flat},
    [GRAPH_SILU] = {CUDA_SILU, make_flat},         [GRAPH_ARGMAX] = {CUDA_ARGMAX, make_sample},
};

static void make_launches(struct cuda_decoder *d, const struct value *values)
{
    struct cuda_nodes *x = d->nodes;
    for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
        struct maker m = {d, values, i, &d->graph->nodes[i]};
        if (!makers[m.n->op].make)
            continue;
        x->launches[i] = (struct launch){.function = d->kernels.functions[makers[m.n->op].kernel],
                                         .n_blocks = d->n_blocks * BLOCKS_PER_SM};
        makers[m.n->op].make(&m, &x->launches[i]);
        if (m.n->op == GRAPH_ARGMAX)
            d->export_stride = x->launches[i].args.sample.logits_stride;
    }
    x->begin = (struct launch){.function = d->kernels.functions[CUDA_STEP_BEGIN],
                               .n_blocks = 1,
                               .n_threads = BEGIN_THREADS,
                               .args.border = d->args};
    x->end = (struct launch){.function = d->kernels.functions[CUDA_STEP_END],
                             .n_blocks = 1,
                             .n_threads = END_THREADS,
                             .args.border = d->args};
}

/* --- life --- */

int cuda_nodes_open(struct cuda_decoder *d, struct error *err)
{
    uint32_t n = d->graph->n_nodes;
    struct cuda_nodes *x = d->nodes = calloc(1, sizeof *x);
    struct value *values = calloc(n, sizeof *values);
    if (x)
        x->launches = calloc(n, sizeof *x->launches);
    int rc = x && values && x->launches ? 0 : error_set(err, -ENOMEM, "node by node: out of memory");
    if (rc == 0)
        rc = cuda_block_take(&x->values, &d->driver, cuda_nodes_size(d), "activations", err);
    struct cuda_arena placed = {.base = x ? x->values.address : 0};
    if (rc == 0 && place(d, &placed, values) < 0)
        rc = error_set(err, -ENOMEM, "node by node: out of memory");
    d->args.staged_stride = 0; /* launches follow one another: one staged step is enough */
    if (rc == 0)
        make_launches(d, values);
    free(values);
    return rc;
}

void cuda_nodes_close(struct cuda_nodes *x, const struct cuda_driver *driver)
{
    if (!x)
        return;
    if (x->replay)
        driver->cuGraphExecDestroy(x->replay);
    if (x->graph)
        driver->cuGraphDestroy(x->graph);
    cuda_block_give(&x->values, driver);
    free(x->launches);
    free(x);
}

/* --- a step --- */

static int launch(struct cuda_decoder *d, struct launch *l, struct error *err)
{
    void *parameters[] = {&l->args};
    return CUDA_TRY(&d->driver, err, cuLaunchKernel, l->function, l->n_blocks, 1, 1, l->n_threads, 1, 1,
                    l->shared_bytes, d->stream, parameters, NULL);
}

/* A launch that is no node's: the executor does not count it. */
static int launch_border(struct cuda_decoder *d, struct launch *l, struct error *err)
{
    atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
    return launch(d, l, err);
}

int cuda_nodes_begin(struct cuda_decoder *d, struct error *err)
{
    struct error why = {0};
    int rc = CUDA_TRY(&d->driver, &why, cuCtxSetCurrent, d->device.context);
    if (rc == 0)
        rc = launch_border(d, &d->nodes->begin, &why);
    if (rc < 0)
        cuda_fail(d, rc, "%s: %s", d->device.name, why.text);
    return rc < 0 ? error_set(err, rc, "%s", d->fault.text) : 0;
}

int cuda_nodes_dispatch(struct cuda_decoder *d, uint32_t node, struct error *err)
{
    struct error why = {0};
    d->beat_ns = clock_ns();
    atomic_store_explicit(&d->heartbeat_ns, d->beat_ns, memory_order_relaxed);
    int rc = launch(d, &d->nodes->launches[node], &why);
    if (rc == 0 && node == d->graph->n_nodes - 1)
        rc = launch_border(d, &d->nodes->end, &why);
    if (rc < 0)
        cuda_fail(d, rc, "%s: %s", d->device.name, why.text);
    return rc < 0 ? error_set(err, rc, "%s", d->fault.text) : 0;
}

/* --- the same, captured --- */

static int launch_all(struct cuda_decoder *d, struct error *err)
{
    struct cuda_nodes *x = d->nodes;
    int rc = launch(d, &x->begin, err);
    for (uint32_t i = 0; i < d->graph->n_nodes && rc == 0; i++)
        if (x->launches[i].function)
            rc = launch(d, &x->launches[i], err);
    return rc == 0 ? launch(d, &x->end, err) : rc;
}

static int capture(struct cuda_decoder *d, struct error *err)
{
    struct cuda_nodes *x = d->nodes;
    int rc = CUDA_TRY(&d->driver, err, cuStreamBeginCapture, d->stream, CUDA_CAPTURE_THREAD_LOCAL);
    if (rc < 0)
        return rc;
    rc = launch_all(d, err);
    int ended = CUDA_TRY(&d->driver, err, cuStreamEndCapture, d->stream, &x->graph); /* in any case */
    rc = rc < 0 ? rc : ended;
    return rc < 0 ? rc : CUDA_TRY(&d->driver, err, cuGraphInstantiate, &x->replay, x->graph, 0);
}

int cuda_nodes_replay(struct cuda_decoder *d, struct error *err)
{
    int rc = CUDA_TRY(&d->driver, err, cuCtxSetCurrent, d->device.context);
    if (rc == 0 && !d->nodes->replay)
        rc = capture(d, err);
    if (rc < 0)
        return rc;
    atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
    return CUDA_TRY(&d->driver, err, cuGraphLaunch, d->nodes->replay, d->stream);
}
