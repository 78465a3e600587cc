/* cuda_nodes.c - the eager and graph executors: every graph node has a buffer of its own and one launch, with
 * the same arithmetic as the fused program. The kernels read the step, and with it their number of rows, from
 * device memory: so the launches are the same in every step and can be captured once and replayed as one
 * launch. Declared in cuda_decoder.h. */
#include "base/clock.h"
#include "cuda_decoder.h"
#include "model/graph_buffers.h"
#include "abi/attend_any.h"
#include "abi/node_args.h"
#include "abi/schedule.h"
#include "abi/tile.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define BEGIN_THREADS  256 /* as step_io.c */
#define END_THREADS    32
#define BLOCKS_PER_SM  2
#define ATTEND_WORK    40960u  /* shared memory of an attention block, */
#define PRODUCT_ROOM   102400u /* and of a product block, if it suffices: two of them share an SM */
#define PRODUCT_STAGES 4u
#define MBARRIERS      256u
#define DEFAULT_SHARED 49152u /* bytes of a block without a cuFuncSetAttribute */

struct value { /* output of a node */
    uint64_t data;
    uint32_t stride; /* floats */
    uint64_t factors;
};

struct launch { /* launch of a node */
    void *function;
    uint32_t n_blocks, n_threads, shared_bytes;
    union {
        struct decoder_args border;
        struct embed_args embed;
        struct rms_norm_args norm;
        struct mul_mat_args product;
        struct mul_mat_id_args experts;
        struct mul_mat_heads_args heads;
        struct rope_args rope;
        struct kv_append_args append;
        struct attention_args attention;
        struct sample_args sample;
        struct flat_args flat;
        struct route_args route;
        struct expert_sum_args sum;
        struct join_args join;
        struct ssm_conv_args conv;
        struct l2_norm_args unit;
        struct delta_gate_args gates;
        struct delta_net_args net;
    } args;
};

struct cuda_nodes {
    struct cuda_block values; /* of all nodes, and factors of norms */
    struct value *outputs;    /* [n_nodes] */
    struct launch *launches;  /* [n_nodes] */
    uint32_t n_nodes;
    struct launch begin, end;
    void *graph, *replay; /* captured, and ready to launch; NULL: not yet */
    struct mark {         /* events around the launch of a node */
        void *before, *after;
    } * marks;    /* [n_nodes]; NULL: timing was never turned on */
    bool timed;   /* per-node timing is on */
    bool settled; /* the events of the newest step have been waited for */
};

/* --- where values lie --- */

static uint32_t stride_of(uint32_t width)
{
    return (width + 63) / 64 * 64;
}

/* Places the output of every node in `a`, which may only count. */
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

/* --- launches --- */

struct maker { /* context for making a node's launch */
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

static int make_embed(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_EMBED_THREADS;
    l->args.embed = (struct embed_args){.step = step_of(m),
                                        .out = rows_of(m, m->node),
                                        .matrix = m->d->weights.matrices[m->n->weight],
                                        .tokens = m->d->args.staged + offsetof(struct decoder_step, tokens)};
    return 0;
}

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Divides the shared memory of a product, with stages of so many super-blocks: quantised columns in at most
 * half of what the fold area leaves. Returns the number of stages that fit. */
static uint32_t lay_out_stages(struct decoder_shared *s, const struct decoder_matrix *w, uint32_t room,
                               uint32_t supers)
{
    uint32_t forms = activation_form(w->type), columns = ACTIVATION_COLUMNS;
    *s = (struct decoder_shared){.fold = MBARRIERS, .fold_bytes = product_fold_bytes(supers)};
    s->work = s->fold + s->fold_bytes;
    uint32_t left = room > s->work ? room - s->work : 0;
    while (columns > 1 && activation_panel_bytes(columns, w->k, forms) > left / 2)
        columns--;
    s->work_bytes = round_up(activation_panel_bytes(columns, w->k, forms), 128);
    left -= least(left, s->work_bytes);
    s->stages = s->work + s->work_bytes;
    s->stage_bytes = round_up(supers * w->super_bytes, 128);
    s->n_stages = least(left / s->stage_bytes, PRODUCT_STAGES);
    s->total = s->stages + s->n_stages * s->stage_bytes;
    return s->n_stages;
}

/* The largest stages of which two fit, or one of a single super-block. False: it does not fit. */
static bool lay_out(struct decoder_shared *s, const struct decoder_matrix *w, uint32_t room)
{
    uint32_t supers = SCHEDULE_MAX_SUPERS;
    while (supers > 1 && lay_out_stages(s, w, room, supers) < 2)
        supers--;
    return supers > 1 || lay_out_stages(s, w, room, 1) > 0;
}

/* The address of a vector's floats, or 0. */
static uint64_t vector_of(const struct maker *m, uint32_t weight)
{
    return weight == MODEL_NO_WEIGHT ? 0 : m->d->weights.vectors[weight];
}

static int make_product(const struct maker *m, struct launch *l, struct error *err)
{
    const struct cuda_decoder *d = m->d;
    const struct graph_node *n = m->n;
    const struct decoder_matrix *w = &d->weights.matrices[n->weight];
    struct decoder_shared *s = &l->args.product.shared;
    l->args.product = (struct mul_mat_args){.step = step_of(m),
                                            .in = input_of(m, 0),
                                            .out = rows_of(m, m->node),
                                            .matrix = *w,
                                            .bias = vector_of(m, n->bias),
                                            .factors = m->values[n->inputs[0]].factors};
    uint32_t room = (uint32_t)d->device.shared_per_block;
    if (!lay_out(s, w, least(room, PRODUCT_ROOM)) && !lay_out(s, w, room))
        return error_set(err, -ENOTSUP, "%s: rows of %u values do not fit the shared memory of %s", n->name,
                         w->k, d->device.name);
    l->n_threads = least(NODE_PRODUCT_THREADS, d->device.max_threads / 32 * 32);
    l->shared_bytes = s->total;
    return 0;
}

/* The product is the first part of the arguments. */
static int make_experts(const struct maker *m, struct launch *l, struct error *err)
{
    const struct graph_node *n = m->n;
    uint32_t rows = m->d->weights.matrices[n->weight].n / n->route.n_experts;
    if (rows % TILE_ROWS)
        return error_set(err, -ENOTSUP, "%s: experts of %u rows; cuda supports multiples of %d", n->name,
                         rows, TILE_ROWS);
    int rc = make_product(m, l, err);
    l->args.experts.choice = input_of(m, 1);
    l->args.experts.n = rows;
    l->args.experts.n_used = n->route.n_used;
    l->args.experts.own_input = m->d->graph->nodes[n->inputs[0]].width != n->k;
    return rc;
}

/* Likewise. */
static int make_heads(const struct maker *m, struct launch *l, struct error *err)
{
    const struct graph_node *n = m->n;
    uint32_t rows = n->width / n->n_heads - n->keep, part = n->col + n->k + n->keep;
    if (rows % TILE_ROWS || n->col % 4 || part % 4)
        return error_set(
            err, -ENOTSUP,
            "%s: heads of %u rows, %u values from column %u on; cuda supports multiples of %d, 4 "
            "and 4",
            n->name, rows, part, n->col, TILE_ROWS);
    int rc = make_product(m, l, err);
    l->args.heads.n_heads = n->n_heads;
    l->args.heads.n = rows;
    l->args.heads.part = part;
    l->args.heads.col = n->col;
    l->args.heads.keep = n->keep;
    return rc;
}

static int make_norm(const struct maker *m, struct launch *l, struct error *err)
{
    const struct graph_node *n = m->n;
    (void)err;
    l->n_threads = NODE_NORM_THREADS;
    l->shared_bytes = NODE_NORM_SHARED;
    l->args.norm = (struct rms_norm_args){.step = step_of(m),
                                          .in = input_of(m, 0),
                                          .out = rows_of(m, m->node),
                                          .gain = vector_of(m, n->gain),
                                          .factors = m->values[m->node].factors,
                                          .width = n->width,
                                          .group = n->group,
                                          .eps = n->eps};
    return 0;
}

static int make_rope(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    const struct decoder_args *a = &m->d->args;
    const struct program *p = m->d->program;
    const struct decoder_kind *kind = &m->d->kinds[m->n->kind];
    l->n_threads = NODE_ROPE_THREADS;
    l->args.rope = (struct rope_args){.step = step_of(m),
                                      .in = input_of(m, 0),
                                      .out = rows_of(m, m->node),
                                      .cosines = kind->cosines,
                                      .sines = kind->sines,
                                      .width = m->n->width,
                                      .head_dim = m->n->group,
                                      .rope_dim = kind->rope_dim,
                                      .neox = p->rope_neox,
                                      .n_ctx = a->slots.n_ctx};
    return 0;
}

/* The pages of a kind's layers: window pages, or the others. */
static void pages_of_kind(const struct decoder_args *a, const struct decoder_kind *kind, uint64_t *kv,
                          struct decoder_slots *slots)
{
    *kv = kind->windowed ? a->windows : a->kv;
    *slots = a->slots;
    if (!kind->windowed)
        return;
    slots->tables = a->slots.windows;
    slots->n_pages = a->slots.n_windows;
}

static int make_append(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    const struct decoder_args *a = &m->d->args;
    const struct decoder_kind *kind = &m->d->kinds[m->n->kind];
    l->n_threads = NODE_APPEND_THREADS;
    l->shared_bytes = NODE_APPEND_SHARED;
    l->args.append = (struct kv_append_args){.step = step_of(m),
                                             .k = input_of(m, 0),
                                             .v = input_of(m, 1),
                                             .out = rows_of(m, m->node),
                                             .layout = kind->layout,
                                             .layer = m->n->cache};
    pages_of_kind(a, kind, &l->args.append.kv, &l->args.append.slots);
    return 0;
}

static int make_attention(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    const struct decoder_args *a = &m->d->args;
    const struct decoder_kind *kind = &m->d->kinds[m->n->kind];
    struct node_rows q = input_of(m, 0), out = rows_of(m, m->node);
    bool more = m->n->gain != MODEL_NO_WEIGHT, any = kind->layout.head_dim % ARITH_BLOCK != 0;
    l->n_threads = NODE_ATTEND_THREADS;
    l->shared_bytes = any ? NODE_ANY_SHARED : ATTEND_WORK;
    if (any)
        l->function = m->d->kernels.functions[CUDA_ATTENTION_ANY];
    l->args.attention =
        (struct attention_args){.step = step_of(m),
                                .general = more || cuda_is_general(model_config(m->d->graph->model)),
                                .attend = {.in = q.data,
                                           .out = out.data,
                                           .scratch = a->buffers.attend,
                                           .layout = kind->layout,
                                           .max_rows = a->buffers.max_rows,
                                           .ready = 1,
                                           .in_stride = q.stride,
                                           .out_stride = out.stride,
                                           .layer = m->n->cache,
                                           .n_heads = m->n->n_heads,
                                           .scale = m->n->scale,
                                           .temperatures = kind->temperatures,
                                           .sinks = vector_of(m, m->n->gain),
                                           .window = kind->window,
                                           .cap = kind->cap,
                                           .work_bytes = ATTEND_WORK}};
    pages_of_kind(a, kind, &l->args.attention.attend.kv, &l->args.attention.attend.slots);
    return 0;
}

/* Exported logits have the same layout as the node's. */
static int make_sample(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    const struct decoder_args *a = &m->d->args;
    struct node_rows logits = input_of(m, 0);
    l->n_threads = a->n_crew;
    l->shared_bytes = SAMPLE_WORK_BYTES;
    l->args.sample = (struct sample_args){.step = a->staged + DECODER_STEP_AT,
                                          .logits = logits.data,
                                          .results = a->buffers.results,
                                          .scratch = a->buffers.sample,
                                          .exported = a->exported,
                                          .masks = a->masks,
                                          .end_tokens = a->end_tokens,
                                          .slots = a->slots,
                                          .n_end_tokens = a->n_end_tokens,
                                          .n_vocab = a->buffers.n_vocab,
                                          .logits_stride = logits.stride,
                                          .n_masks = DECODER_MASKS};
    return 0;
}

static int make_flat(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    uint32_t second = graph_op_arity(m->n->op) - 1;
    l->n_threads = NODE_FLAT_THREADS;
    l->args.flat = (struct flat_args){.step = step_of(m),
                                      .a = input_of(m, 0),
                                      .b = input_of(m, second),
                                      .out = rows_of(m, m->node),
                                      .width = m->n->width,
                                      .factor = m->n->scale};
    if (m->n->op == GRAPH_MUL)
        l->args.flat.b.data += m->n->col * sizeof(float);
    if (m->n->op == GRAPH_SCALE)
        l->args.flat.b.data = vector_of(m, m->n->gain);
    return 0;
}

static int make_route(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_ROUTE_THREADS;
    l->args.route = (struct route_args){.step = step_of(m),
                                        .in = input_of(m, 0),
                                        .out = rows_of(m, m->node),
                                        .bias = vector_of(m, m->n->bias),
                                        .factors = vector_of(m, m->n->gain),
                                        .rule = m->n->route};
    return 0;
}

static int make_sum(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_FLAT_THREADS;
    l->args.sum = (struct expert_sum_args){.step = step_of(m),
                                           .in = input_of(m, 0),
                                           .choice = input_of(m, 1),
                                           .out = rows_of(m, m->node),
                                           .width = m->n->width,
                                           .n_used = m->n->route.n_used};
    return 0;
}

static int make_join(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_FLAT_THREADS;
    l->args.join = (struct join_args){.step = step_of(m),
                                      .a = input_of(m, 0),
                                      .b = input_of(m, 1),
                                      .out = rows_of(m, m->node),
                                      .width = m->n->width,
                                      .first = m->d->graph->nodes[m->n->inputs[0]].width};
    return 0;
}

/* Gives a block as many warps, at most those of n_threads, as there is room of `bytes` each for; one warp's
 * always fits. */
static void give_rooms(const struct maker *m, struct launch *l, uint32_t n_threads, uint32_t bytes)
{
    uint32_t n = (uint32_t)m->d->device.shared_per_block / bytes, most = n_threads / 32;
    n = n < most ? n : most;
    assert(n > 0);
    l->n_threads = n * 32;
    l->shared_bytes = n * bytes;
}

static int make_conv(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    give_rooms(m, l, NODE_CONV_THREADS, delta_convolve_bytes(&m->d->args.states.shape));
    l->args.conv = (struct ssm_conv_args){.step = step_of(m),
                                          .in = input_of(m, 0),
                                          .out = rows_of(m, m->node),
                                          .taps = vector_of(m, m->n->gain),
                                          .states = m->d->args.states,
                                          .layer = m->n->cache};
    return 0;
}

static int make_unit(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_L2_NORM_THREADS;
    l->args.unit = (struct l2_norm_args){.step = step_of(m),
                                         .in = input_of(m, 0),
                                         .out = rows_of(m, m->node),
                                         .shape = m->n->delta,
                                         .eps = m->n->eps};
    return 0;
}

static int make_gates(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    l->n_threads = NODE_FLAT_THREADS;
    l->args.gates = (struct delta_gate_args){.step = step_of(m),
                                             .b = input_of(m, 0),
                                             .alpha = input_of(m, 1),
                                             .out = rows_of(m, m->node),
                                             .decay = vector_of(m, m->n->gain),
                                             .dt = vector_of(m, m->n->bias),
                                             .shape = m->n->delta,
                                             .together = m->n->inputs[0] == m->n->inputs[1]};
    return 0;
}

static int make_net(const struct maker *m, struct launch *l, struct error *err)
{
    (void)err;
    give_rooms(m, l, NODE_DELTA_NET_THREADS, delta_room_bytes(&m->d->args.states.shape));
    l->args.net = (struct delta_net_args){.step = step_of(m),
                                          .in = input_of(m, 0),
                                          .gates = input_of(m, 1),
                                          .out = rows_of(m, m->node),
                                          .states = m->d->args.states,
                                          .layer = m->n->cache};
    return 0;
}

static const struct {
    enum cuda_kernel kernel;
    int (*make)(const struct maker *m, struct launch *l, struct error *err); /* NULL: nothing to launch */
} makers[GRAPH_N_OPS] = {
    [GRAPH_EMBED] = {CUDA_EMBED, make_embed},
    [GRAPH_RMS_NORM] = {CUDA_RMS_NORM, make_norm},
    [GRAPH_MUL_MAT] = {CUDA_MUL_MAT, make_product},
    [GRAPH_MUL_MAT_ID] = {CUDA_MUL_MAT_ID, make_experts},
    [GRAPH_MUL_MAT_HEADS] = {CUDA_MUL_MAT_HEADS, make_heads},
    [GRAPH_ROPE] = {CUDA_ROPE, make_rope},
    [GRAPH_COPY] = {CUDA_KV_APPEND, make_append},
    [GRAPH_SOFT_MAX] = {CUDA_ATTENTION, make_attention},
    [GRAPH_ADD] = {CUDA_ADD, make_flat},
    [GRAPH_MUL] = {CUDA_MUL, make_flat},
    [GRAPH_SILU] = {CUDA_SILU, make_flat},
    [GRAPH_GELU] = {CUDA_GELU, make_flat},
    [GRAPH_SCALE] = {CUDA_SCALE, make_flat},
    [GRAPH_SOFT_CAP] = {CUDA_SOFT_CAP, make_flat},
    [GRAPH_ROUTE] = {CUDA_ROUTE, make_route},
    [GRAPH_EXPERT_SUM] = {CUDA_EXPERT_SUM, make_sum},
    [GRAPH_GATE] = {CUDA_GATE, make_flat},
    [GRAPH_SWIGLU_CLAMPED] = {CUDA_SWIGLU_CLAMPED, make_flat},
    [GRAPH_JOIN] = {CUDA_JOIN, make_join},
    [GRAPH_SIGMOID] = {CUDA_SIGMOID, make_flat},
    [GRAPH_SSM_CONV] = {CUDA_SSM_CONV, make_conv},
    [GRAPH_L2_NORM] = {CUDA_L2_NORM, make_unit},
    [GRAPH_DELTA_GATE] = {CUDA_DELTA_GATE, make_gates},
    [GRAPH_DELTA_NET] = {CUDA_DELTA_NET, make_net},
    [GRAPH_ARGMAX] = {CUDA_ARGMAX, make_sample},
};

/* Raises the kernels' limits of shared memory above the driver's default. */
static int allow_shared(struct cuda_decoder *d, const uint32_t most[GRAPH_N_OPS], struct error *err)
{
    int rc = 0;
    for (uint32_t op = 0; op < GRAPH_N_OPS && rc == 0; op++)
        if (most[op] > DEFAULT_SHARED)
            rc = CUDA_TRY(&d->driver, err, cuFuncSetAttribute, d->kernels.functions[makers[op].kernel],
                          CUDA_FUNCTION_SHARED, (int)most[op]);
    return rc;
}

static int make_nodes(struct cuda_decoder *d, const struct value *values, struct error *err)
{
    struct cuda_nodes *x = d->nodes;
    uint32_t most[GRAPH_N_OPS] = {0};
    for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
        struct maker m = {d, values, i, &d->graph->nodes[i]};
        struct launch *l = &x->launches[i];
        if (!makers[m.n->op].make)
            continue;
        *l = (struct launch){.function = d->kernels.functions[makers[m.n->op].kernel],
                             .n_blocks = d->n_blocks * BLOCKS_PER_SM};
        int rc = makers[m.n->op].make(&m, l, err);
        if (rc < 0)
            return rc;
        most[m.n->op] = l->shared_bytes > most[m.n->op] ? l->shared_bytes : most[m.n->op];
        if (m.n->op == GRAPH_ARGMAX)
            d->export_stride = l->args.sample.logits_stride;
    }
    return allow_shared(d, most, err);
}

static void make_border(struct cuda_decoder *d)
{
    d->nodes->begin = (struct launch){.function = d->kernels.functions[CUDA_STEP_BEGIN],
                                      .n_blocks = 1,
                                      .n_threads = BEGIN_THREADS,
                                      .args.border = d->args};
    d->nodes->end = (struct launch){.function = d->kernels.functions[CUDA_STEP_END],
                                    .n_blocks = 1,
                                    .n_threads = END_THREADS,
                                    .args.border = d->args};
}

/* --- life --- */

int cuda_nodes_open(struct cuda_decoder *d, struct error *err)
{
    uint32_t n = d->graph->n_nodes;
    struct cuda_nodes *x = d->nodes = calloc(1, sizeof *x);
    struct value *values = NULL;
    if (x) {
        values = x->outputs = calloc(n, sizeof *values);
        x->launches = calloc(n, sizeof *x->launches);
        x->n_nodes = n;
    }
    int rc = x && values && x->launches ? 0 : error_set(err, -ENOMEM, "launches of nodes: out of memory");
    if (rc == 0)
        rc = cuda_block_take(&x->values, &d->driver, cuda_nodes_size(d), "activations", err);
    struct cuda_arena placed = {.base = x ? x->values.address : 0};
    if (rc == 0 && place(d, &placed, values) < 0)
        rc = error_set(err, -ENOMEM, "launches of nodes: out of memory");
    d->args.staged_stride = 0; /* launches follow one another: one staged step suffices */
    if (rc == 0) {
        make_border(d);
        rc = make_nodes(d, values, err);
    }
    return rc;
}

static void close_marks(struct cuda_nodes *x, const struct cuda_driver *driver)
{
    for (uint32_t i = 0; i < x->n_nodes && x->marks; i++) {
        if (x->marks[i].before)
            driver->cuEventDestroy(x->marks[i].before);
        if (x->marks[i].after)
            driver->cuEventDestroy(x->marks[i].after);
    }
    free(x->marks);
    x->marks = NULL;
}

void cuda_nodes_close(struct cuda_nodes *x, const struct cuda_driver *driver)
{
    if (!x)
        return;
    if (x->replay)
        driver->cuGraphExecDestroy(x->replay);
    if (x->graph)
        driver->cuGraphDestroy(x->graph);
    close_marks(x, driver);
    cuda_block_give(&x->values, driver);
    free(x->outputs);
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

/* Launches a kernel that is no node; it is counted here, since the executor counts only nodes. */
static int launch_border(struct cuda_decoder *d, struct launch *l, struct error *err)
{
    atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
    return launch(d, l, err);
}

int cuda_nodes_begin(struct cuda_decoder *d, struct error *err)
{
    struct error why = {0};
    int rc = CUDA_TRY(&d->driver, &why, cuCtxSetCurrent, d->device.context);
    d->nodes->settled = false;
    if (rc == 0)
        rc = launch_border(d, &d->nodes->begin, &why);
    if (rc < 0)
        cuda_fail(d, rc, "%s: %s", d->device.name, why.text);
    return rc < 0 ? error_set(err, rc, "%s", d->fault.text) : 0;
}

static int launch_node(struct cuda_decoder *d, uint32_t node, struct error *err)
{
    const struct cuda_nodes *x = d->nodes;
    int rc = 0;
    if (x->timed)
        rc = CUDA_TRY(&d->driver, err, cuEventRecord, x->marks[node].before, d->stream);
    if (rc == 0)
        rc = launch(d, &x->launches[node], err);
    if (rc == 0 && x->timed)
        rc = CUDA_TRY(&d->driver, err, cuEventRecord, x->marks[node].after, d->stream);
    return rc;
}

int cuda_nodes_dispatch(struct cuda_decoder *d, uint32_t node, struct error *err)
{
    struct error why = {0};
    d->beat_ns = clock_ns();
    atomic_store_explicit(&d->heartbeat_ns, d->beat_ns, memory_order_relaxed);
    int rc = launch_node(d, node, &why);
    if (rc == 0 && node == d->graph->n_nodes - 1) {
        rc = launch_border(d, &d->nodes->end, &why);
        if (rc == 0) /* sends it and all launches before it */
            rc = cuda_flush(&d->driver, d->stream, &why);
    }
    if (rc < 0)
        cuda_fail(d, rc, "%s: %s", d->device.name, why.text);
    return rc < 0 ? error_set(err, rc, "%s", d->fault.text) : 0;
}

/* --- per-node timing --- */

static int open_marks(struct cuda_decoder *d, struct error *err)
{
    struct cuda_nodes *x = d->nodes;
    int rc = 0;
    x->marks = calloc(x->n_nodes, sizeof *x->marks);
    if (!x->marks)
        return error_set(err, -ENOMEM, "per-node timing: out of memory");
    for (uint32_t i = 0; i < x->n_nodes && rc == 0; i++) {
        if (!x->launches[i].function)
            continue;
        rc = CUDA_TRY(&d->driver, err, cuEventCreate, &x->marks[i].before, CUDA_EVENT_DEFAULT);
        if (rc == 0)
            rc = CUDA_TRY(&d->driver, err, cuEventCreate, &x->marks[i].after, CUDA_EVENT_DEFAULT);
    }
    if (rc < 0)
        close_marks(x, &d->driver);
    return rc;
}

int cuda_nodes_time(struct cuda_decoder *d, bool on, struct error *err)
{
    int rc = CUDA_TRY(&d->driver, err, cuCtxSetCurrent, d->device.context);
    if (rc == 0 && on && !d->nodes->marks)
        rc = open_marks(d, err);
    d->nodes->timed = rc == 0 && on;
    return rc;
}

/* Waits for the newest step's events. Its results are here and its last launch wrote them, so all earlier
 * work on the stream is done; only the driver has yet to notice. */
static int settle(struct cuda_decoder *d, struct error *err)
{
    int rc = d->nodes->settled ? 0 : CUDA_TRY(&d->driver, err, cuStreamSynchronize, d->stream);
    d->nodes->settled = rc == 0;
    return rc;
}

int cuda_nodes_ns(struct cuda_decoder *d, uint32_t node, uint64_t *ns, struct error *err)
{
    const struct mark *m = &d->nodes->marks[node];
    struct error why = {0};
    float ms = 0;
    int rc = settle(d, &why);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, &why, cuEventElapsedTime, &ms, m->before, m->after);
    if (rc < 0) {
        cuda_fail(d, rc, "%s: %s", d->device.name, why.text);
        return error_set(err, rc, "%s", d->fault.text);
    }
    *ns = (uint64_t)((double)ms * 1e6);
    return 0;
}

/* --- the value of a node --- */

int cuda_nodes_value(struct cuda_decoder *d, uint32_t node, uint32_t row, float *out, float *factor,
                     struct error *err)
{
    const struct value *v = &d->nodes->outputs[node];
    int rc = CUDA_TRY(&d->driver, err, cuStreamSynchronize, d->stream);
    *factor = 1;
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuMemcpyDtoH, out, v->data + (uint64_t)row * v->stride * sizeof *out,
                      d->graph->nodes[node].width * sizeof *out);
    if (rc == 0 && v->factors)
        rc = CUDA_TRY(&d->driver, err, cuMemcpyDtoH, factor, v->factors + row * sizeof *factor,
                      sizeof *factor);
    return rc;
}

/* --- graph: captured and replayed --- */

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
    int ended = CUDA_TRY(&d->driver, err, cuStreamEndCapture, d->stream, &x->graph); /* also after an error */
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
    rc = CUDA_TRY(&d->driver, err, cuGraphLaunch, d->nodes->replay, d->stream);
    return rc < 0 ? rc : cuda_flush(&d->driver, d->stream, err);
}
