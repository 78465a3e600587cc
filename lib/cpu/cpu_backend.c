/* cpu_backend.c - the table of the cpu backend: open, load, the ring of steps, info.
 */
#include "base/clock.h"
#include "base/cpu_name.h"
#include "cpu_decoder.h"
#include "cpu/reference/reference.h"
#include "turn.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Members count pieces without reading the clock, which would cost more. A count that has changed since the
 * last call sets the heartbeat to now: its readers look about every second. */
static uint64_t last_beat(struct decoder *d)
{
    uint64_t pieces = team_progress(d->team);
    if (atomic_exchange_explicit(&d->pieces_seen, pieces, memory_order_relaxed) != pieces)
        decoder_beat(d);
    return atomic_load_explicit(&d->heartbeat_ns, memory_order_relaxed);
}

/* --- open, load and close --- */

static void cpu_close(struct backend *be)
{
    struct decoder *d = (struct decoder *)be;
    if (!d)
        return;
    decoder_tune_close(d);
    decoder_unload(d);
    team_close(d->team);
    for (uint32_t i = 0; i < DECODER_RING; i++)
        free(d->ring[i]);
    free(d->end_tokens);
    free(d);
}

static int alloc_ring(struct decoder *d, struct error *err)
{
    const struct backend_config *cfg = &d->cfg;
    if (cfg->n_end_tokens) {
        d->end_tokens = malloc(cfg->n_end_tokens * sizeof *d->end_tokens);
        if (!d->end_tokens)
            return error_set(err, -ENOMEM, "end tokens: out of memory");
        memcpy(d->end_tokens, cfg->end_tokens, cfg->n_end_tokens * sizeof *d->end_tokens);
    }
    for (uint32_t i = 0; i < DECODER_RING; i++) {
        d->ring[i] = calloc(1, sizeof *d->ring[i]);
        if (!d->ring[i])
            return error_set(err, -ENOMEM, "steps: out of memory");
    }
    return 0;
}

static int cpu_open(struct backend **out, const struct backend_config *cfg, struct error *err)
{
    int rc = backend_check_config(cfg, err);
    if (rc < 0)
        return rc;
    if (cfg->arithmetic == BACKEND_EXACT && !cfg->eager)
        return error_set(err, -EINVAL, "arithmetic exact needs the eager executor");
    const char *isa = cfg->isa && strcmp(cfg->isa, "avx512") == 0 ? "avx512vnni" : cfg->isa;
    rc = matmul_check_isa(isa, err);
    if (rc < 0)
        return rc;
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(err, -ENOMEM, "cpu backend: out of memory");
    d->base.ops = &cpu_backend;
    d->cfg = *cfg;
    d->cfg.steps_in_flight = cfg->steps_in_flight ? cfg->steps_in_flight : DECODER_RING;
    d->kernels = matmul_find(isa);
    d->ops = ops_find(d->kernels->name);
    cpu_name(d->device, sizeof d->device);
    rc = alloc_ring(d, err);
    if (rc == 0)
        rc = team_open(&d->team, cfg->arithmetic == BACKEND_EXACT ? 1 : cfg->n_threads, err);
    if (rc < 0) {
        cpu_close(&d->base);
        return rc;
    }
    decoder_beat(d);
    *out = &d->base;
    return 0;
}

static int cpu_load(struct backend *be, const struct program *prog, const struct graph *graph,
                    struct error *err)
{
    struct decoder *d = (struct decoder *)be;
    d->program = prog;
    d->graph = graph;
    int rc = decoder_load(d, err);
    if (rc < 0)
        decoder_unload(d);
    return rc;
}

/* --- a step --- */

/* Exports or imports a part of a state. */
static void do_part_op(struct decoder *d, const struct step_page_op *op, size_t part)
{
    size_t size = delta_state_size(&d->delta.shape, d->delta.n_layers), at = op->from * part;
    uint8_t *state = (uint8_t *)d->delta.states.data + op->page * size + at;
    uint8_t *host = (uint8_t *)d->transfer.data + (size_t)op->host_offset * 64;
    size_t n = size - at < part ? size - at : part;
    if (op->kind == STEP_STATE_EXPORT) {
        memcpy(host, state, n);
        memset(host + n, 0, part - n);
    } else {
        memcpy(state, host, n);
    }
}

/* A page or window page, by its number in steps, and its size, which is 0 where all layers have windows. */
static uint8_t *page_at(const struct decoder *d, uint32_t number, size_t *size)
{
    const struct kv_plan *p = &d->plan;
    bool window = number >= p->n_pages;
    uint8_t *first = window ? d->windows.data : d->kv.data;
    *size = window ? p->window_bytes : p->page_bytes;
    return *size ? first + (number - (window ? p->n_pages : 0)) * *size : first;
}

static void do_page_op(const struct decoder *d, const struct step_page_op *op)
{
    size_t size;
    uint8_t *page = page_at(d, op->page, &size);
    uint8_t *host = (uint8_t *)d->transfer.data + (size_t)op->host_offset * 64;
    if (size == 0)
        return;
    if (op->kind == STEP_PAGE_COPY)
        memmove(page, page_at(d, op->from, &size), size);
    else if (op->kind == STEP_PAGE_EXPORT)
        memcpy(host, page, size);
    else if (op->kind == STEP_PAGE_IMPORT)
        memcpy(page, host, size);
    else
        memset(page, 0, size);
}

static void do_page_ops(struct decoder *d, const struct step *step)
{
    for (uint32_t i = 0; i < step->n_page_ops && (d->kv.data || d->windows.data); i++) {
        const struct step_page_op *op = &step->page_ops[i];
        if (op->kind == STEP_STATE_LOAD || op->kind == STEP_STATE_SAVE)
            continue; /* delta_plan() */
        if (op->kind > STEP_STATE_SAVE)
            do_part_op(d, op, kv_page_size(&d->whole));
        else
            do_page_op(d, op);
    }
}

static void count_pages(struct decoder *d, const struct step *step)
{
    uint64_t n = d->pages_used, n_windows = d->windows_used;
    for (uint32_t i = 0; i < step->n_edits; i++) {
        uint64_t window = step->edits[i].window + UINT64_C(1);
        n = step->edits[i].page >= n ? step->edits[i].page + 1u : n;
        n_windows = window > d->plan.n_pages + n_windows ? window - d->plan.n_pages : n_windows;
    }
    d->pages_used = n;
    d->windows_used = n_windows;
    if (d->ahead)
        ahead_use(d->ahead, n * d->plan.page_bytes);
    if (d->windows_ahead)
        ahead_use(d->windows_ahead, n_windows * d->plan.window_bytes);
}

/* Applies page operations, table edits, settings and tokens of a step; then its rows may run. */
static void decoder_begin_step(struct decoder *d, const struct step *step)
{
    atomic_store_explicit(&d->state, BACKEND_RUNNING, memory_order_relaxed);
    decoder_beat(d);
    d->step = step;
    d->n_results = d->n_taken = 0;
    d->fresh_logits = false;
    do_page_ops(d, step);
    count_pages(d, step);
    slots_apply(&d->slots, step);
    slots_take_rows(&d->slots, step, d->tokens);
    for (uint32_t i = 0; i < step->n_logits; i++)
        d->logit_rows[i] = step->logits[i].row;
    for (uint32_t i = 0; i < model_config(d->graph->model)->n_kinds; i++)
        attend_plan(&d->attend[i], step, &d->slots, team_size(d->team));
    delta_plan(&d->delta, step);
}

/* Call after the last op: gives the sampled tokens to their slots and publishes the results. */
static void decoder_finish_step(struct decoder *d)
{
    const struct step *step = d->step;
    for (uint32_t i = 0; i < step->n_logits; i++)
        if (step->logits[i].target < 0)
            d->slots.slot[d->results[i].slot].last_sampled = d->results[i].token;
    d->n_results = step->n_logits;
    d->steps_done = step->id;
    d->fresh_logits = true;
    atomic_fetch_add_explicit(&d->steps, 1, memory_order_relaxed);
    decoder_beat(d);
    atomic_store_explicit(&d->pieces_seen, team_progress(d->team), memory_order_relaxed);
    atomic_store_explicit(&d->state, BACKEND_IDLE, memory_order_relaxed);
}

/* --- the ring of steps --- */

static void cpu_masks(struct backend *be, const uint32_t *masks, uint32_t n, uint32_t words)
{
    struct decoder *d = (struct decoder *)be;
    assert(n == 0 || words >= (d->n_vocab + 31) / 32);
    d->masks = masks;
    d->mask_words = words;
    step_checker_masks(d->checker, n);
}

static int cpu_submit(struct backend *be, const struct step *step, struct error *err)
{
    struct decoder *d = (struct decoder *)be;
    assert(d->checker && !d->cfg.eager);
    if (d->ring_n == d->cfg.steps_in_flight)
        return -EAGAIN;
    int rc = step_check(d->checker, step, err);
    if (rc < 0)
        return rc;
    step_copy(d->ring[(d->ring_first + d->ring_n++) % DECODER_RING], step);
    return 0;
}

/* For the watchdog: the decoder whose turn it is has a heartbeat of its own. */
static void wait_for_turn(void *context)
{
    decoder_beat(context);
}

static void run_oldest(struct decoder *d)
{
    decoder_beat(d); /* first: the age of a running decoder's is shown */
    atomic_store_explicit(&d->state, BACKEND_RUNNING, memory_order_relaxed);
    turn_take(wait_for_turn, d); /* of the decoders of other models */
    uint64_t began = clock_ns(), busy = atomic_load_explicit(&d->busy_ns, memory_order_relaxed);
    decoder_begin_step(d, d->ring[d->ring_first]);
    if (d->step->n_rows) /* else it has page ops only */
        decoder_walk(d);
    decoder_finish_step(d);
    d->ring_first = (d->ring_first + 1) % DECODER_RING;
    d->ring_n--;
    atomic_store_explicit(&d->busy_ns, busy + clock_ns() - began, memory_order_relaxed);
    turn_give();
}

static void cpu_share(struct backend *be, void (*work)(void *context, uint32_t member), void *context)
{
    struct decoder *d = (struct decoder *)be;
    decoder_beat(d); /* as in a step: who waits for its turn is alive */
    atomic_store_explicit(&d->state, BACKEND_RUNNING, memory_order_relaxed);
    turn_take(wait_for_turn, d);
    team_run(d->team, work, context);
    turn_give();
    decoder_beat(d);
    atomic_store_explicit(&d->state, BACKEND_IDLE, memory_order_relaxed);
}

static int cpu_advance(struct backend *be, struct step_result *out, int max, uint64_t *steps_done,
                       struct error *err)
{
    (void)err; /* a cpu has no device errors */
    struct decoder *d = (struct decoder *)be;
    if (d->n_taken == d->n_results && d->ring_n && !d->cfg.eager)
        run_oldest(d);
    int n = 0;
    while (n < max && d->n_taken < d->n_results)
        out[n++] = d->results[d->n_taken++];
    if (steps_done)
        *steps_done = d->steps_done;
    return n;
}

static int cpu_begin(struct backend *be, const struct step *step, struct error *err)
{
    struct decoder *d = (struct decoder *)be;
    assert(d->checker && d->cfg.eager);
    int rc = step_check(d->checker, step, err);
    if (rc < 0)
        return rc;
    step_copy(d->ring[0], step);
    if (d->exact) {
        rc = exact_begin(d->exact, d->ring[0], err);
        if (rc < 0)
            return rc;
    }
    decoder_begin_step(d, d->ring[0]);
    return 0;
}

static int dispatch_exact(struct decoder *d, uint32_t node, struct error *err)
{
    int rc = exact_dispatch(d->exact, node, err);
    if (rc < 0 || d->graph->nodes[node].op != GRAPH_ARGMAX)
        return rc;
    for (uint32_t i = 0; i < d->step->n_logits; i++) {
        decoder_choose(d, i, exact_logits(d->exact, i), d->members[0].sampler);
        if (d->step->logits[i].target < 0)
            exact_sampled(d->exact, d->results[i].slot, d->results[i].token);
    }
    return 0;
}

static int cpu_dispatch(struct backend *be, uint32_t node, struct error *err)
{
    struct decoder *d = (struct decoder *)be;
    assert(d->step && d->cfg.eager);
    if (node >= d->graph->n_nodes)
        return error_set(err, -EINVAL, "node %u does not exist: the graph has %u", node, d->graph->n_nodes);
    int rc = 0;
    decoder_beat(d);
    if (d->exact)
        rc = dispatch_exact(d, node, err);
    else
        eager_dispatch(d, node);
    if (rc == 0 && node == d->graph->n_nodes - 1)
        decoder_finish_step(d);
    return rc;
}

static int cpu_value(struct backend *be, uint32_t node, uint32_t row, float *out, float *factor,
                     struct error *err)
{
    const struct decoder *d = (const struct decoder *)be;
    if (!d->eager)
        return error_set(err, -ENOTSUP, "arithmetic exact keeps no values of nodes");
    eager_value(d, node, row, out, factor);
    return 0;
}

/* --- accessors --- */

static void cpu_park(struct backend *be)
{
    (void)be; /* the team sleeps on its futex already */
}

static uint64_t cpu_idle(struct backend *be, bool (*wanted)(void *context), void *context)
{
    struct decoder *d = (struct decoder *)be;
    assert(d->ring_n == 0);
    return decoder_tune_again(d, wanted, context);
}

static const float *cpu_logits(struct backend *be, uint32_t index)
{
    const struct decoder *d = (const struct decoder *)be;
    if (!d->fresh_logits || index >= d->step->n_logits || !(d->step->logits[index].flags & STEP_EXPORT))
        return NULL;
    if (d->exact)
        return exact_logits(d->exact, index);
    return row_at(d->eager ? eager_logits(d->eager, d->graph) : d->buffers[PROGRAM_LOGITS], index);
}

/* The last norm is a part of the output's product: its gain stands there. The rows of the residual stream
 * stay until the next step. */
static void cpu_hidden(struct backend *be, uint32_t row, float *out)
{
    const struct decoder *d = (const struct decoder *)be;
    assert(d->program && d->step && row < d->step->n_rows);
    const struct program_op *op = d->program->ops;
    while (!((op->flags & PROGRAM_HEAD) && op->opcode == PROGRAM_MATMUL))
        op++;
    memcpy(out, row_at(d->buffers[op->in], row), op->k * sizeof *out);
    d->ops->norm_head(out, op->gain == PROGRAM_NONE ? NULL : d->weights.vectors[op->gain], op->k, op->eps);
}

/* Before load() nothing is tuned. */
static uint32_t rows_together(const struct decoder *d)
{
    const struct tuning *t = atomic_load_explicit(&d->tuned, memory_order_acquire);
    return t ? t->kernels[TUNING_CLASSES - 1]->columns : d->kernels->columns;
}

static void cpu_info(const struct backend *be, struct backend_info *out)
{
    struct decoder *d = (struct decoder *)be; /* only atomics are written */
    const struct tuning *tuned = atomic_load_explicit(&d->tuned, memory_order_acquire);
    uint64_t state_size = delta_state_size(&d->delta.shape, d->delta.n_layers);
    uint64_t scratch = d->scratch.size + d->rope.size + (d->eager ? eager_size(d->eager) : 0);
    *out = (struct backend_info){
        .name = cpu_backend.name,
        .device = d->device,
        .isa = d->kernels->name,
        .n_threads = team_size(d->team),
        .tuning = tuned && tuned->info.source ? &tuned->info : NULL,
        .max_rows = STEP_MAX_ROWS,
        .rows_together = rows_together(d),
        .n_pages = d->plan.n_pages,
        .n_windows = d->plan.n_windows,
        .window = d->plan.window,
        .window_bytes = d->plan.window_bytes,
        .shares_pages = d->cfg.arithmetic != BACKEND_EXACT,
        .recurrent = d->delta.n_layers > 0,
        .n_snapshots = d->n_snapshots,
        .state_size = state_size,
        .state_bytes = d->delta.states.data ? state_size * (d->cfg.n_slots + d->n_snapshots) : 0,
        .default_step_ms = 50,
        .kv = d->whole,
        .kv_order = ATTEND_KV_ORDER,
        .weights_sum = d->exact ? exact_weights_sum(d->exact) : d->weights.sum,
        .weights_bytes = d->weights.block.size,
        .memory_used = d->weights.block.size + d->delta.states.size + d->delta.taps.size + scratch +
                       (d->ahead ? ahead_taken(d->ahead) : 0) +
                       (d->windows_ahead ? ahead_taken(d->windows_ahead) : 0),
        .scratch_bytes = scratch,
        .launches = d->cfg.eager ? 0 : 1, /* of the team; eager: the executor counts */
        .steps = atomic_load_explicit(&d->steps, memory_order_relaxed),
        .busy_ns = atomic_load_explicit(&d->busy_ns, memory_order_relaxed),
        .ops_per_step = d->program ? d->program->n_ops : 0,
        .transfer = d->transfer.data,
        .transfer_bytes = d->transfer.data ? kv_page_size(&d->whole) * STEP_MAX_PAGE_OPS : 0,
        .heartbeat_ns = last_beat(d),
        .state = atomic_load_explicit(&d->state, memory_order_relaxed),
    };
}

static void cpu_program_ns(const struct backend *be, uint64_t *ns)
{
    const struct decoder *d = (const struct decoder *)be;
    for (uint32_t i = 0; i < d->program->n_ops; i++)
        ns[i] = atomic_load_explicit(&d->op_ns[i], memory_order_relaxed);
}

static int cpu_trace(struct backend *be, bool on, struct error *err)
{
    return decoder_trace((struct decoder *)be, on, err);
}

static int cpu_traced(struct backend *be, struct trace *out, struct error *err)
{
    const struct trace *t = &((const struct decoder *)be)->trace;
    assert(t->marks);
    int rc = trace_open(out, t->n_members, t->n_ops, err);
    if (rc < 0)
        return rc;
    memcpy(out->marks, t->marks, (size_t)t->n_members * t->n_ops * sizeof *t->marks);
    out->step = t->step;
    return 0;
}

static const struct backend_node_ops cpu_nodes = {
    .begin = cpu_begin, .dispatch = cpu_dispatch, .value = cpu_value};

static const struct backend_sampling_ops cpu_sampling = {
    .masks = cpu_masks, .logits = cpu_logits, .share = cpu_share, .hidden = cpu_hidden};
static const struct backend_trace_ops cpu_tracing = {
    .program_ns = cpu_program_ns, .trace = cpu_trace, .traced = cpu_traced};

const struct backend_ops cpu_backend = {
    .name = "cpu",
    .has_exact = true,
    .nodes = &cpu_nodes,
    .sampling = &cpu_sampling,
    .trace = &cpu_tracing,
    .weights_size = weights_size,
    .open = cpu_open,
    .load = cpu_load,
    .submit = cpu_submit,
    .advance = cpu_advance,
    .park = cpu_park,
    .idle = cpu_idle,
    .info = cpu_info,
    .close = cpu_close,
};
