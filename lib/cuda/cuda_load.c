/* cuda_load.c - load(): reserves what the decoder needs (kernels, weights, tables, scratch, KV cache, pinned
 * memory) and releases it again. Declared in cuda_decoder.h. */
#include "abi/attend_layout.h"
#include "cuda_decoder.h"
#include "model/graph.h"
#include "abi/tile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB(bytes)     ((double)(bytes) / (1 << 20))
#define JIT_SHARE      0.1 /* share of the load's progress */
#define TRANSFER_BYTES ((uint64_t)64 << 20)
#define MAX_PAGES      (1u << 18) /* 16 million tokens; more would only lengthen the page list */
#define SPIN_NS        1000000u   /* the time that the idle kernel polls at full speed */
#define QUANTUM_MS     1000u      /* longest launch on a device that drives a display */

static uint32_t slot_pages(const struct cuda_decoder *d)
{
    return (uint32_t)(((uint64_t)d->cfg.n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

/* --- model and device --- */

bool cuda_is_general(const struct model_config *c)
{
    const struct model_attention *k = &c->kinds[0];
    return c->n_kinds > 1 || k->window || k->cap > 0 || k->temperature > 0 ||
           k->head_dim > ATTEND_PLAIN_HEAD_DIM;
}

static int check_heads(const struct cuda_decoder *d, const struct model_config *c, struct error *err)
{
    uint32_t unit = d->cfg.eager ? 2 : ARITH_BLOCK;
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        uint32_t n = c->kinds[i].head_dim;
        if (n % unit || n < unit || n > ATTEND_MAX_HEAD_DIM)
            return error_set(
                err, -ENOTSUP,
                "heads of %u values; cuda supports multiples of 32 up to %u (executor = eager and "
                "graph: even sizes)",
                n, ATTEND_MAX_HEAD_DIM);
    }
    return 0;
}

/* The persistent decoder multiplies whole blocks of activations. */
static int check_rows(const struct graph *g, struct error *err)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        enum graph_op op = g->nodes[i].op;
        const struct weight *w =
            op == GRAPH_MUL_MAT || op == GRAPH_MUL_MAT_ID || op == GRAPH_MUL_MAT_HEADS || op == GRAPH_EMBED
                ? model_weight(g->model, g->nodes[i].weight)
                : NULL;
        if (w && w->k % ARITH_BLOCK)
            return error_set(err, -ENOTSUP,
                             "%s: rows of %u values; cuda supports multiples of %u (executor = eager and "
                             "graph: of 8, where the weights are floats)",
                             w->name, w->k, ARITH_BLOCK);
    }
    return 0;
}

static int check_model(const struct cuda_decoder *d, const struct model_config *c, struct error *err)
{
    for (uint32_t i = 0; i < d->cfg.n_end_tokens; i++)
        if ((uint32_t)d->end_tokens[i] >= c->n_vocab)
            return error_set(err, -EINVAL, "end token %d, the vocabulary has %u", d->end_tokens[i],
                             c->n_vocab);
    int rc = check_heads(d, c, err);
    if (rc == 0 && !d->cfg.eager)
        rc = check_rows(d->graph, err);
    if (rc < 0)
        return rc;
    if (c->n_vocab > SAMPLE_MAX_VOCAB)
        return error_set(err, -ENOTSUP, "a vocabulary of %u tokens; cuda supports at most %u", c->n_vocab,
                         SAMPLE_MAX_VOCAB);
    return 0;
}

/* All but the number of snapshots, and the memory. */
static void set_states(struct cuda_decoder *d, const struct model_config *c)
{
    struct decoder_states *s = &d->args.states;
    *s = (struct decoder_states){.shape = c->delta};
    if (c->n_recurrent == 0)
        return;
    s->n_slots = s->n_states = d->cfg.n_slots;
    s->n_layers = c->n_recurrent;
    s->layer_floats = (uint32_t)delta_state_floats(&c->delta);
    s->bytes = (uint64_t)s->n_layers * s->layer_floats * sizeof(float);
}

static void set_shape(struct cuda_decoder *d, const struct model_config *c)
{
    struct decoder_args *a = &d->args;
    a->layout = model_kv_layout(c, 0, d->cfg.kv_type);
    a->slots.n_slots = d->cfg.n_slots;
    a->slots.n_ctx = d->cfg.n_ctx;
    a->slots.pages_per_slot = slot_pages(d);
    a->n_end_tokens = d->cfg.n_end_tokens;
    a->buffers.n_vocab = c->n_vocab;
    /* The eager executor may reuse a wider value's memory for the logits. */
    a->buffers.logits_stride = ((c->n_vocab > c->n_embd ? c->n_vocab : c->n_embd) + 63) / 64 * 64;
    d->export_stride = a->buffers.logits_stride;
    set_states(d, c);
    a->staged_stride = (DECODER_STEP_AT + sizeof(struct step) + 255) / 256 * 256;
    a->step_stride = (sizeof(struct step) + 255) / 256 * 256;
    a->spin_ns = SPIN_NS;
    a->park_after_ms = d->cfg.park_after_ms;
    a->quantum_ms = d->device.has_time_limit ? QUANTUM_MS : 0;
    a->deadline_ns = d->stall_ns / 2;
}

/* The most rows of a step: those whose sums fit the work area. Of many, each compute warp has equally many
 * chunks of 16 (product_wide.h): 16 chunks on 14 warps would take two rounds where 14 take one. */
static uint32_t most_rows(const struct cuda_decoder *d)
{
    uint32_t rows = d->plan.shared.work_bytes / product_work_bytes(1), even = d->args.n_crew / 32 * 16;
    rows = rows < STEP_MAX_ROWS_CUDA ? rows : STEP_MAX_ROWS_CUDA;
    return rows > even ? rows / even * even : rows;
}

/* Makes the device's copy of the program. */
static int mark_program(struct cuda_decoder *d, struct error *err)
{
    const struct model_config *c = model_config(d->graph->model);
    const struct plan_block block = {d->plan.shared.work_bytes, d->args.n_crew, d->plan.ops};
    size_t size = sizeof *d->program + d->program->n_ops * sizeof *d->program->ops;
    struct program *p = d->marked = malloc(size);
    if (!p)
        return error_set(err, -ENOMEM, "a program of %u ops: out of memory", d->program->n_ops);
    memcpy(p, d->program, size);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        bool more =
            p->ops[i].weight[0] != PROGRAM_NONE || p->ops[i].flags & (PROGRAM_V_NORM | PROGRAM_CACHED);
        if (p->ops[i].opcode == PROGRAM_ATTEND && (more || cuda_is_general(c)))
            p->ops[i].flags |= PROGRAM_GENERAL;
    }
    struct plan_marks marks = plan_mark(p, d->weights.matrices, d->n_blocks, &block, !d->cfg.cuda_hops);
    d->args.words_rows = marks.words_rows;
    d->panel_bytes = marks.panel_bytes;
    d->args.buffers.row_floats = p->row_floats;
    return 0;
}

/* Sets the grid, the shared memory, the program and the most rows of a step. */
static int make_plan(struct cuda_decoder *d, struct error *err)
{
    uint32_t most = d->device.max_threads < DECODER_MAX_THREADS ? d->device.max_threads : DECODER_MAX_THREADS;
    d->n_threads = most / 32 * 32;
    d->args.n_crew = d->n_threads - 64;
    d->n_blocks = d->device.n_sms;
    const struct model_config *c = model_config(d->graph->model);
    struct plan_device device = {d->n_blocks, d->args.n_crew, (uint32_t)d->device.shared_per_block};
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        uint32_t least = attend_min_work(c->kinds[i].head_dim);
        device.attend_bytes = least > device.attend_bytes ? least : device.attend_bytes;
    }
    int rc = plan_open(&d->plan, d->program, d->weights.matrices, &device, err);
    if (rc < 0)
        return rc;
    d->args.shared = d->plan.shared;
    d->args.n_counters = d->plan.n_counters;
    d->max_rows = d->args.buffers.max_rows = most_rows(d);
    return mark_program(d, err);
}

/* Gives the persistent kernel its shared memory and checks that all its blocks can be resident at once. */
static int check_resident(struct cuda_decoder *d, struct error *err)
{
    int n = 0;
    int rc = CUDA_TRY(&d->driver, err, cuFuncSetAttribute, d->resident, CUDA_FUNCTION_SHARED,
                      (int)d->args.shared.total);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuOccupancyMaxActiveBlocksPerMultiprocessor, &n, d->resident,
                      (int)d->n_threads, d->args.shared.total);
    if (rc == 0 && n < 1)
        rc = error_set(err, -ENOTSUP, "%s: a block of %u threads and %u bytes of shared memory does not fit",
                       d->device.name, d->n_threads, d->args.shared.total);
    return rc;
}

/* --- tables: written once, read by the device --- */

struct image { /* a copy of the tables, built here and then sent; without `bytes` it only counts */
    struct cuda_arena arena;
    uint8_t *bytes;
};

static uint64_t put(struct image *m, const void *data, size_t size)
{
    size_t at = m->arena.used;
    uint64_t address = cuda_arena_take(&m->arena, size);
    if (m->bytes && size)
        memcpy(m->bytes + at, data, size);
    return address;
}

/* Reserves `size` bytes, for the caller to fill. */
static void *put_room(struct image *m, size_t size, uint64_t *address)
{
    size_t at = m->arena.used;
    *address = cuda_arena_take(&m->arena, size);
    return m->bytes ? m->bytes + at : NULL;
}

static int put_rope(const struct cuda_decoder *d, struct image *m, const struct model_rotation *rope,
                    struct decoder_kind *kind, struct error *err)
{
    size_t pairs = (size_t)d->cfg.n_ctx * (rope->dim / 2);
    float *cosines = put_room(m, pairs * sizeof(float), &kind->cosines);
    float *sines = put_room(m, pairs * sizeof(float), &kind->sines);
    if (!m->bytes || !pairs)
        return 0;
    float *table = malloc(2 * pairs * sizeof *table);
    if (!table)
        return error_set(err, -ENOMEM, "RoPE table: out of memory");
    model_rope_table(rope, d->cfg.n_ctx, table);
    for (size_t i = 0; i < pairs; i++) {
        cosines[i] = table[2 * i];
        sines[i] = table[2 * i + 1];
    }
    free(table);
    return 0;
}

static void put_temperatures(const struct cuda_decoder *d, struct image *m,
                             const struct model_attention *from, struct decoder_kind *kind)
{
    if (from->temperature <= 0)
        return;
    float *to = put_room(m, d->cfg.n_ctx * sizeof *to, &kind->temperatures);
    for (uint32_t pos = 0; to && pos < d->cfg.n_ctx; pos++)
        to[pos] = model_temperature(from, pos);
}

static int put_kinds(struct cuda_decoder *d, struct image *m, struct error *err)
{
    const struct model_config *c = model_config(d->graph->model);
    int rc = 0;
    for (uint32_t i = 0; i < c->n_kinds && rc == 0; i++) {
        const struct model_attention *from = &c->kinds[i];
        struct decoder_kind *kind = &d->kinds[i];
        *kind = (struct decoder_kind){.layout = kv_plan_layout(c, &d->cache, i, d->cfg.kv_type),
                                      .n_heads = from->n_heads,
                                      .rope_dim = from->rope.dim,
                                      .window = from->window,
                                      .cap = from->cap,
                                      .windowed = d->cache.n_windows && from->window};
        rc = put_rope(d, m, &from->rope, kind, err);
        put_temperatures(d, m, from, kind);
    }
    d->args.cosines = d->kinds[0].cosines;
    d->args.sines = d->kinds[0].sines;
    d->args.kinds = put(m, d->kinds, c->n_kinds * sizeof *d->kinds);
    return rc;
}

static void put_program(struct cuda_decoder *d, struct image *m)
{
    d->args.program = put(m, d->marked, sizeof *d->marked + d->marked->n_ops * sizeof *d->marked->ops);
}

static int put_tables(struct cuda_decoder *d, struct image *m, struct error *err)
{
    struct decoder_args *a = &d->args;
    put_program(d, m);
    a->plan = put(m, d->plan.ops, d->plan.n_ops * sizeof *d->plan.ops);
    a->matrices = put(m, d->weights.matrices, d->weights.n * sizeof *d->weights.matrices);
    a->vectors = put(m, d->weights.vectors, d->weights.n * sizeof *d->weights.vectors);
    a->end_tokens = put(m, d->end_tokens, d->cfg.n_end_tokens * sizeof *d->end_tokens);
    return put_kinds(d, m, err);
}

/* Copies memory that is not pinned; `from` may be freed on return. Uses the kernels' stream: cuMemcpyHtoD may
 * return before the bytes have arrived, and only its own stream would wait for them. */
static int send(const struct cuda_decoder *d, uint64_t to, const void *from, size_t size, struct error *err)
{
    int rc = CUDA_TRY(&d->driver, err, cuMemcpyHtoDAsync, to, from, size, d->stream);
    return rc < 0 ? rc : CUDA_TRY(&d->driver, err, cuStreamSynchronize, d->stream);
}

static size_t tables_size(struct cuda_decoder *d)
{
    struct image counted = {0};
    put_tables(d, &counted, NULL);
    return counted.arena.used;
}

static int take_tables(struct cuda_decoder *d, struct error *err)
{
    size_t size = tables_size(d);
    struct image m = {.bytes = calloc(1, size)};
    if (!m.bytes)
        return error_set(err, -ENOMEM, "tables: out of memory");
    int rc = cuda_block_take(&d->tables, &d->driver, size, "tables", err);
    m.arena.base = d->tables.address;
    if (rc == 0)
        rc = put_tables(d, &m, err);
    if (rc == 0)
        rc = send(d, d->tables.address, m.bytes, size, err);
    free(m.bytes);
    return rc;
}

/* --- scratch --- */

/* Quantised rows of wide products. */
static uint64_t activations_size(const struct cuda_decoder *d)
{
    uint32_t k = 1, forms = 0;
    for (uint32_t i = 0; i < d->weights.n; i++) {
        const struct decoder_matrix *m = &d->weights.matrices[i];
        k = m->k > k ? m->k : k;
        forms |= m->n ? activation_form(m->type) : 0;
    }
    return activation_buffer_bytes(d->max_rows, k, forms);
}

/* Scratch of attention, which all kinds share. Only the plain attention hands parts over without tickets. */
static uint64_t attend_size(const struct cuda_decoder *d)
{
    const struct model_config *c = model_config(d->graph->model);
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        const struct model_attention *k = &c->kinds[i];
        uint64_t size = cuda_is_general(c)
                            ? attend_handed_at(d->max_rows, k->n_heads, k->head_dim,
                                               attend_max_splits(d->cfg.n_ctx, k->window))
                            : attend_scratch_bytes(d->max_rows, k->n_heads, k->head_dim, d->cfg.n_ctx, 0);
        most = size > most ? size : most;
    }
    return most;
}

static void place_slots(struct decoder_slots *s, struct cuda_arena *a)
{
    s->tables = cuda_arena_take(a, (size_t)s->n_slots * s->pages_per_slot * sizeof(uint32_t));
    s->windows = cuda_arena_take(a, (size_t)s->n_slots * s->pages_per_slot * sizeof(uint32_t));
    s->history = cuda_arena_take(a, (size_t)s->n_slots * s->n_ctx * sizeof(int32_t));
    s->start = cuda_arena_take(a, s->n_slots * sizeof(uint32_t));
    s->last_sampled = cuda_arena_take(a, s->n_slots * sizeof(int32_t));
    s->sampling = cuda_arena_take(a, s->n_slots * sizeof(struct step_sampling));
    s->biases = cuda_arena_take(a, (size_t)s->n_slots * STEP_MAX_BIAS * sizeof(struct step_bias));
}

/* What mixtures of experts need in the decoder, and products besides. */
static void place_products(const struct cuda_decoder *d, struct decoder_buffers *b, struct cuda_arena *a)
{
    struct plan_mixtures m = {0};
    uint64_t activations = activations_size(d), factors = (d->max_rows + ACTIVATION_COLUMNS) * sizeof(float);
    if (!d->cfg.eager)
        plan_mixtures(&m, d->program, d->weights.matrices, d->max_rows);
    activations = m.activations > activations ? m.activations : activations;
    b->activations = cuda_arena_take(a, d->panel_bytes > activations ? d->panel_bytes : activations);
    b->factors = cuda_arena_take(a, m.factors > factors ? m.factors : factors);
    b->mixtures = (struct decoder_mixtures){.list = cuda_arena_take(a, m.list),
                                            .rows = cuda_arena_take(a, m.rows),
                                            .place = cuda_arena_take(a, m.place),
                                            .inner = cuda_arena_take(a, m.inner),
                                            .parts = cuda_arena_take(a, m.parts)};
}

static void place_scratch(struct cuda_decoder *d, struct cuda_arena *a)
{
    struct decoder_args *x = &d->args;
    struct decoder_buffers *b = &x->buffers;
    size_t row = (size_t)b->row_floats * sizeof(float);
    b->rows = cuda_arena_take(a, d->cfg.eager ? 0 : d->max_rows * row);
    b->logits = cuda_arena_take(a, (size_t)STEP_MAX_LOGITS * b->logits_stride * sizeof(float));
    place_products(d, b, a);
    b->results = cuda_arena_take(a, (size_t)DECODER_RING * STEP_MAX_LOGITS * sizeof(struct step_result));
    b->attend = cuda_arena_take(a, attend_size(d));
    b->sample = cuda_arena_take(a, sample_scratch_bytes(b->n_vocab, STEP_MAX_LOGITS));
    x->staged = cuda_arena_take(a, (size_t)DECODER_RING * x->staged_stride);
    place_slots(&x->slots, a);
    d->cleared.address = x->counters =
        cuda_arena_take(a, (size_t)x->n_counters * DECODER_LINE * sizeof(uint32_t));
    x->published = cuda_arena_take(a, 256);
    x->abort_word = cuda_arena_take(a, 256);
    x->progress = cuda_arena_take(a, 256);
    x->places = cuda_arena_take(a, (size_t)d->n_blocks * DECODER_LINE * sizeof(uint32_t));
    d->cleared.size = (size_t)(x->places - x->counters) + d->n_blocks * DECODER_LINE * sizeof(uint32_t);
}

static size_t scratch_size(struct cuda_decoder *d)
{
    struct cuda_arena counted = {0};
    place_scratch(d, &counted);
    return counted.used;
}

/* Sets every slot's initial sampling settings. */
static int set_sampling(struct cuda_decoder *d, struct error *err)
{
    uint32_t n = d->cfg.n_slots;
    struct step_sampling *all = calloc(n, sizeof *all);
    if (!all)
        return error_set(err, -ENOMEM, "%u slots: out of memory", n);
    for (uint32_t i = 0; i < n; i++)
        all[i] = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    int rc = send(d, d->args.slots.sampling, all, n * sizeof *all, err);
    free(all);
    return rc;
}

static int take_scratch(struct cuda_decoder *d, struct error *err)
{
    int rc = cuda_block_take(&d->scratch, &d->driver, scratch_size(d), "activations", err);
    if (rc < 0)
        return rc;
    struct cuda_arena placed = {.base = d->scratch.address};
    place_scratch(d, &placed);
    rc = CUDA_TRY(&d->driver, err, cuMemsetD8Async, d->scratch.address, 0, d->scratch.size, d->stream);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuStreamSynchronize, d->stream);
    return rc < 0 ? rc : set_sampling(d, err);
}

/* --- pages --- */

static uint64_t states_size(const struct cuda_decoder *d)
{
    return d->args.states.n_states * d->args.states.bytes;
}

static int refuse_size(const struct cuda_decoder *d, uint64_t kv, uint64_t scratch, uint64_t available,
                       struct error *err)
{
    uint64_t weights = d->weights.size, states = states_size(d);
    return error_set(
        err, -ENOMEM,
        "%s needs %.0f MiB (weights %.0f, KV cache %.0f, %u recurrent states %.0f, scratch %.0f) "
        "on %s, %.0f MiB are free",
        gguf_path(model_gguf(d->graph->model)), MIB(weights + kv + states + scratch), MIB(weights), MIB(kv),
        d->args.states.n_states, MIB(states), MIB(scratch), d->device.name, MIB(available));
}

/* Most bytes of the KV cache by default: what is left, minus 5 %; on an integrated device, whose memory other
 * programs need, at most a quarter of the free memory. */
static uint64_t default_kv(const struct cuda_decoder *d, uint64_t available, uint64_t rest)
{
    uint64_t most = rest / 20 * 19;
    return d->device.is_integrated && available / 4 < most ? available / 4 : most;
}

/* The pages and window pages of kv_memory or of the default for what `rest` leaves, which on an integrated
 * device, as on cpu, is at most every slot's whole context. */
static struct kv_plan plan_cache(const struct cuda_decoder *d, uint64_t available, uint64_t rest)
{
    uint64_t wanted = d->cfg.kv_memory;
    struct kv_plan_config cfg = {.kv_type = d->cfg.kv_type,
                                 .n_slots = d->cfg.n_slots,
                                 .n_ctx = d->cfg.n_ctx,
                                 .rows_in_flight = d->cfg.steps_in_flight * d->max_rows,
                                 .limit = wanted ? wanted : default_kv(d, available, rest),
                                 .whole = wanted || !d->device.is_integrated};
    struct kv_plan p = kv_plan_of(model_config(d->graph->model), &cfg);
    p.n_pages = p.n_pages < MAX_PAGES ? p.n_pages : MAX_PAGES;
    p.n_windows = p.n_windows < MAX_PAGES ? p.n_windows : MAX_PAGES;
    return p;
}

/* Adds snapshots to the states, of the memory `rest`, of which the KV cache takes `kv`: of what it leaves
 * where its size was asked for, else the cache is the smaller for them. */
static void choose_snapshots(struct cuda_decoder *d, uint64_t kv, uint64_t rest)
{
    struct decoder_states *s = &d->args.states;
    if (s->bytes)
        s->n_states += kv_plan_snapshots(kv, s->bytes, rest, d->cfg.kv_memory ? kv : 0);
}

/* Sets the numbers of pages, window pages and snapshots. */
static int choose_pages(struct cuda_decoder *d, struct error *err)
{
    size_t available = 0, total = 0;
    int rc = CUDA_TRY(&d->driver, err, cuMemGetInfo, &available, &total);
    if (rc < 0)
        return rc;
    uint64_t page = kv_page_size(&d->args.layout);
    uint64_t scratch = tables_size(d) + scratch_size(d) + (d->cfg.eager ? cuda_nodes_size(d) : 0);
    uint64_t wanted = d->cfg.kv_memory, taken = d->weights.size + scratch + states_size(d);
    if (wanted && wanted < page)
        return error_set(err, -EINVAL,
                         "kv_memory: the KV cache may take %llu bytes, one page of %u tokens takes %llu",
                         (unsigned long long)wanted, KV_PAGE_TOKENS, (unsigned long long)page);
    if (taken + (wanted ? wanted / page * page : page) > available)
        return refuse_size(d, wanted ? wanted : page, scratch, available, err);
    struct kv_plan without = plan_cache(d, available, available - taken);
    choose_snapshots(d, kv_plan_size(&without), available - taken);
    d->cache = plan_cache(d, available, available - d->weights.size - scratch - states_size(d));
    if (d->cache.n_pages == 0)
        return refuse_size(d, page, scratch, available / 20 * 19, err);
    d->args.slots.n_pages = d->cache.n_pages;
    d->args.slots.n_windows = d->cache.n_windows;
    d->args.page_bytes = d->cache.page_bytes;
    d->args.window_bytes = d->cache.window_bytes;
    d->scratch_bytes = scratch;
    return 0;
}

/* --- the rest --- */

static int take_pinned(struct cuda_decoder *d, struct error *err)
{
    struct decoder_args *a = &d->args;
    uint64_t unused, page = kv_page_size(&a->layout), n = TRANSFER_BYTES / page;
    n = n < 1 ? 1 : n > STEP_MAX_PAGE_OPS ? STEP_MAX_PAGE_OPS : n;
    const struct {
        struct cuda_pinned *memory;
        uint64_t *address;
        size_t size;
        const char *what;
    } wanted[] = {
        {&d->control, &a->control, 4096, "the control words"},
        {&d->steps, &a->steps, (size_t)DECODER_RING * a->step_stride, "steps"},
        {&d->results, &a->results, sizeof(struct step_result[DECODER_RING][STEP_MAX_LOGITS]), "results"},
        {&d->exported, &a->exported, (size_t)STEP_MAX_LOGITS * a->buffers.logits_stride * sizeof(float),
         "exported logits"},
        {&d->masks, &a->masks, DECODER_MASKS * cuda_mask_bytes(d), "masks"},
        {&d->transfer, &a->transfer, n * page, "page transfers"},
        {&d->standing, &unused, d->cleared.size, "an account of the blocks"},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && rc == 0; i++) {
        rc = cuda_pinned_take(wanted[i].memory, &d->driver, wanted[i].size, wanted[i].what, err);
        *wanted[i].address = wanted[i].memory->address;
    }
    a->transfer_bytes = n * page;
    return rc;
}

static int take_checker(struct cuda_decoder *d, struct error *err)
{
    struct step_limits limits = {
        .n_slots = d->cfg.n_slots,
        .n_ctx = d->cfg.n_ctx,
        .n_vocab = d->args.buffers.n_vocab,
        .n_pages = d->cache.n_pages,
        .n_windows = d->cache.n_windows,
        .window_bytes = d->cache.window_bytes,
        .max_rows = d->max_rows,
        .recurrent = d->args.states.n_layers > 0,
        .n_states = d->args.states.n_states,
        .state_bytes = d->args.states.bytes,
        .transfer_bytes = d->transfer.size,
        .page_bytes = kv_page_size(&d->args.layout),
    };
    return step_checker_open(&d->checker, &limits, err);
}

static void report(const struct cuda_decoder *d, double fraction)
{
    if (d->cfg.progress)
        d->cfg.progress(d->cfg.context, fraction);
}

static void report_jit(void *context, double fraction)
{
    report(context, fraction * JIT_SHARE);
}

static void report_weights(void *context, double fraction)
{
    report(context, JIT_SHARE + fraction * (1 - JIT_SHARE));
}

static int take_pages(struct cuda_decoder *d, struct error *err)
{
    int rc = cuda_block_take(&d->pages, &d->driver, kv_plan_size(&d->cache), "the KV cache", err);
    d->args.kv = d->pages.address;
    d->args.windows = d->pages.address + d->cache.n_pages * d->cache.page_bytes;
    return rc;
}

/* Nothing clears the states: a sequence begins with zeros. */
static int take_states(struct cuda_decoder *d, struct error *err)
{
    if (!states_size(d))
        return 0;
    int rc = cuda_block_take(&d->states, &d->driver, states_size(d), "recurrent states", err);
    d->args.states.data = d->states.address;
    return rc;
}

static int take_all(struct cuda_decoder *d, struct error *err)
{
    struct cuda_weights_progress progress = {report_weights, d};
    int rc = choose_pages(d, err);
    if (rc == 0)
        rc = cuda_weights_load(&d->weights, d->graph, &d->driver, d->cfg.n_threads, &progress, err);
    if (rc == 0)
        rc = take_tables(d, err);
    if (rc == 0)
        rc = take_scratch(d, err);
    if (rc == 0)
        rc = take_pages(d, err);
    if (rc == 0)
        rc = take_states(d, err);
    if (rc == 0)
        rc = take_pinned(d, err);
    if (rc == 0)
        rc = take_checker(d, err);
    if (rc == 0 && d->cfg.eager)
        rc = cuda_nodes_open(d, err);
    return rc;
}

int cuda_load_all(struct cuda_decoder *d, struct error *err)
{
    const struct model_config *c = model_config(d->graph->model);
    int rc = check_model(d, c, err);
    if (rc < 0)
        return rc;
    set_shape(d, c);
    rc = cuda_weights_open(&d->weights, d->graph, err);
    if (rc == 0)
        cuda_weights_note(&d->weights, d->graph, d->note, sizeof d->note);
    if (rc == 0)
        rc = make_plan(d, err);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuStreamCreate, &d->stream, CUDA_STREAM_NON_BLOCKING);
    if (rc == 0)
        rc = CUDA_TRY(&d->driver, err, cuStreamCreate, &d->copies, CUDA_STREAM_NON_BLOCKING);
    if (rc == 0)
        rc = cuda_kernels_open(&d->kernels, &d->driver, &d->device, d->cfg.eager, report_jit, d, err);
    d->resident = d->kernels.functions[CUDA_DECODER];
    if (rc == 0 && d->resident)
        rc = check_resident(d, err);
    return rc < 0 ? rc : take_all(d, err);
}

void cuda_unload(struct cuda_decoder *d)
{
    const struct cuda_driver *driver = &d->driver;
    cuda_nodes_close(d->nodes, driver);
    cuda_weights_close(&d->weights, driver);
    struct cuda_block *blocks[] = {&d->tables, &d->scratch, &d->pages, &d->states, &d->marks};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        cuda_block_give(blocks[i], driver);
    struct cuda_pinned *pinned[] = {&d->control, &d->steps,    &d->results, &d->exported,
                                    &d->masks,   &d->transfer, &d->standing};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
        cuda_pinned_give(pinned[i], driver);
    if (d->copies)
        driver->cuStreamDestroy(d->copies);
    if (d->stream)
        driver->cuStreamDestroy(d->stream);
    free(atomic_exchange(&d->account, NULL));
    cuda_kernels_close(&d->kernels, driver);
    plan_close(&d->plan);
    free(d->marked);
    d->marked = NULL;
    step_checker_close(d->checker);
    d->nodes = NULL;
    d->stream = d->copies = d->resident = NULL;
    d->checker = NULL;
}
