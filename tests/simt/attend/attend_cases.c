#include "attend_cases.h"
#include "attend_reference.h"
#include "device/dependency.h"
#include "abi/attend_any.h"

#include <stdlib.h>
#include <string.h>

struct source {
    uint64_t state;
};

static uint32_t draw(struct source *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->state >> 33) % below);
}

static float draw_float(struct source *r)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++)
        sum += (float)draw(r, 1u << 24) * 0x1p-24f - 0.5f;
    uint32_t odd = draw(r, 400);
    return odd == 0 ? 0.0f : odd == 1 ? sum * 1e-6f : odd == 2 ? sum * 20.0f : sum * 1.7f;
}

/* One dimension of all values is so small that its sums over a bf16 cache run below what is flushed. */
#define SMALL_DIM 5

static float draw_small(struct source *r)
{
    return draw_float(r) * 0x1p-125f;
}

static void *room(struct attend_case *c, size_t size, uint32_t flags, const char *name)
{
    void *p = aligned_alloc(128, (size + 127) / 128 * 128 + 128);
    if (!p || c->n_memory == sizeof c->memory / sizeof c->memory[0])
        abort(); /* a test tool: nothing sensible is left to do */
    memset(p, 0, size);
    c->memory[c->n_memory++] = p;
    if (name)
        simt_map(c->machine, p, size, flags, name);
    return p;
}

static float *floats(struct attend_case *c, struct source *r, size_t n, uint32_t flags, const char *name)
{
    float *x = room(c, n * sizeof *x, flags, name);
    for (size_t i = 0; i < n; i++)
        x[i] = draw_float(r);
    return x;
}

#define AT(p) ((uint64_t)(uintptr_t)(p))

/* Pages of all sequences in a random order. */
static uint32_t *make_tables(struct attend_case *c, struct source *r, uint32_t per_slot, uint32_t n_pages)
{
    uint32_t *t = room(c, (size_t)ATTEND_CASE_SLOTS * per_slot * sizeof *t, SIMT_MAP_READ_ONLY, "tables");
    for (uint32_t i = 0; i < ATTEND_CASE_SLOTS * per_slot; i++)
        t[i] = i;
    for (uint32_t i = n_pages - 1; i > 0; i--) {
        uint32_t j = draw(r, i + 1), x = t[i];
        t[i] = t[j];
        t[j] = x;
    }
    return t;
}

/* None of them is what models have: a kernel that brings its own gives other bits. */
static const float epsilons[4] = {3e-5f, 2e-3f, 7e-6f, 0.4f};

static void make_args(struct attend_case *c, struct source *r)
{
    const struct attend_shape *s = &c->shape;
    struct attend_args *a = &c->args.attend;
    uint32_t n_heads = s->n_kv_heads * s->ratio, per_slot = (s->n_ctx + 63) / 64;
    uint32_t n_pages = ATTEND_CASE_SLOTS * per_slot, half = s->rope_dim / 2;
    a->layout = (struct kv_layout){
        .n_layers = 2, .n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .type = s->type};
    a->q_col = 4 * draw(r, 3);
    a->k_col = a->q_col + n_heads * s->head_dim;
    a->v_col = a->k_col + s->n_kv_heads * s->head_dim + 4 * draw(r, 3);
    a->in_stride = a->v_col + s->n_kv_heads * s->head_dim + 4 * draw(r, 3);
    a->out_stride = n_heads * s->head_dim + 4 * draw(r, 3);
    a->cosines = AT(floats(c, r, (size_t)s->n_ctx * half, SIMT_MAP_READ_ONLY, "cosines"));
    a->sines = AT(floats(c, r, (size_t)s->n_ctx * half, SIMT_MAP_READ_ONLY, "sines"));
    if (s->normed) {
        a->q_gain = AT(floats(c, r, s->head_dim, SIMT_MAP_READ_ONLY, "q_gain"));
        a->k_gain = AT(floats(c, r, s->head_dim, SIMT_MAP_READ_ONLY, "k_gain"));
    }
    a->slots.tables = AT(make_tables(c, r, per_slot, n_pages));
    a->slots.n_slots = ATTEND_CASE_SLOTS;
    a->slots.n_ctx = s->n_ctx;
    a->slots.pages_per_slot = per_slot;
    a->slots.n_pages = n_pages;
    c->kv_bytes = n_pages * kv_page_size(&a->layout);
    a->kv = AT(room(c, c->kv_bytes, 0, "kv"));
    c->kv_begin = room(c, c->kv_bytes, 0, NULL);
    a->scratch = AT(
        room(c, attend_scratch_bytes(s->max_rows, n_heads, s->head_dim, s->n_ctx, s->window), 0, "scratch"));
    a->in = AT(room(c, (size_t)s->max_rows * a->in_stride * 4, 0, "in"));
    a->out = AT(room(c, (size_t)s->max_rows * a->out_stride * 4, 0, "out"));
    if (s->temperatures)
        a->temperatures = AT(floats(c, r, s->n_ctx, SIMT_MAP_READ_ONLY, "temperatures"));
    if (s->sinks)
        a->sinks = AT(floats(c, r, n_heads, SIMT_MAP_READ_ONLY, "sinks"));
    a->window = s->window;
    a->cap = s->cap;
    a->v_normed = s->v_normed;
    a->cached = s->cached;
    a->max_rows = s->max_rows;
    a->layer = 1;
    a->n_heads = n_heads;
    a->rope_dim = s->rope_dim;
    a->neox = s->neox;
    a->eps = epsilons[(n_heads + s->n_ctx) % 4];
    a->scale = 0.125f + (float)draw(r, 100) * 0.001f;
    a->work = 128;
    a->work_bytes = s->work_bytes;
}

static void add_row(struct attend_case *c, struct step *step, uint32_t slot)
{
    step->rows[step->n_rows++] = (struct step_row){
        .slot = slot, .pos = c->lengths[slot]++, .flags = c->shape.kept ? STEP_ROW_CACHED : 0};
}

/* A chunk of one sequence among lone rows of others, or lone rows alone. */
static void make_step(struct attend_case *c, struct source *r, uint32_t index)
{
    const struct attend_shape *s = &c->shape;
    struct step *step = &c->steps[index];
    uint32_t order = draw(r, ATTEND_CASE_SLOTS), long_slot = draw(r, ATTEND_CASE_SLOTS);
    uint32_t chunk = s->chunk && draw(r, 3) ? 2 + draw(r, s->chunk - 1) : 1;
    for (uint32_t i = 0; i < ATTEND_CASE_SLOTS; i++) {
        uint32_t slot = (i + order) % ATTEND_CASE_SLOTS, n = slot == long_slot ? chunk : draw(r, 2);
        for (; n && c->lengths[slot] < s->n_ctx && step->n_rows < s->max_rows; n--)
            add_row(c, step, slot);
    }
    bool seen[ATTEND_CASE_SLOTS] = {false};
    c->lone[index] = 1;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        c->lone[index] &= !seen[step->rows[i].slot];
        seen[step->rows[i].slot] = true;
    }
    c->n_rows[index] = step->n_rows;
}

static void fill_cache(struct attend_case *c, struct source *r)
{
    const struct attend_shape *s = &c->shape;
    float k[ATTEND_MAX_HEAD_DIM], v[ATTEND_MAX_HEAD_DIM];
    const uint32_t *filled = s->cached || s->kept ? c->lengths : c->starts;
    for (uint32_t slot = 0; slot < ATTEND_CASE_SLOTS; slot++) {
        for (uint32_t pos = 0; pos < filled[slot]; pos++)
            for (uint32_t h = 0; h < s->n_kv_heads; h++) {
                for (uint32_t d = 0; d < s->head_dim; d++) {
                    k[d] = draw_float(r);
                    v[d] = d == SMALL_DIM ? draw_small(r) : draw_float(r);
                }
                reference_append(c->reference, slot, pos, h, k, v);
            }
    }
    memset(c->kv_begin, 0xff, c->kv_bytes); /* NaNs: nothing may be read that was not written */
    reference_to_device(c->reference, filled, c->kv_begin);
}

static void run_reference(struct attend_case *c)
{
    const struct attend_args *a = &c->args.attend;
    size_t in = (size_t)c->shape.max_rows * a->in_stride, out = (size_t)c->shape.max_rows * a->out_stride;
    float *x = malloc(in * sizeof *x);
    for (uint32_t i = 0; i < c->shape.n_steps; i++) {
        memcpy(x, (float *)(uintptr_t)c->args.source + i * in, in * sizeof *x);
        reference_step(c->reference, c, &c->steps[i], x, c->wanted + i * out);
    }
    free(x);
}

/* The small dimension of the rows' own values, from a source of its own. */
static void make_small(struct attend_case *c, uint64_t number)
{
    const struct attend_args *a = &c->args.attend;
    struct source r = {number};
    float *row = (float *)(uintptr_t)c->args.source;
    for (uint32_t i = 0; i < c->shape.n_steps * c->shape.max_rows; i++, row += a->in_stride)
        for (uint32_t h = 0; h < c->shape.n_kv_heads; h++)
            row[a->v_col + h * c->shape.head_dim + SMALL_DIM] = draw_small(&r);
}

static bool attend_shape_is_general(const struct attend_shape *s)
{
    return s->head_dim > ATTEND_PLAIN_HEAD_DIM || s->window || s->cap > 0 || s->temperatures || s->sinks ||
           s->v_normed || s->cached;
}

void attend_case_open(struct attend_case *c, struct attend_shape shape, uint64_t number)
{
    struct source r = {number * 2654435761u + 12345};
    *c = (struct attend_case){.shape = shape, .machine = simt_open()};
    if (!c->machine)
        abort();
    make_args(c, &r);
    struct attend_args *a = &c->args.attend;
    size_t in = (size_t)shape.n_steps * shape.max_rows * a->in_stride;
    size_t out = (size_t)shape.n_steps * shape.max_rows * a->out_stride;
    c->args.source = AT(floats(c, &r, in, SIMT_MAP_READ_ONLY, "source"));
    make_small(c, number);
    c->args.results = AT(room(c, out * 4, 0, "results"));
    c->wanted = room(c, out * 4, 0, NULL);
    c->steps = room(c, shape.n_steps * sizeof *c->steps, SIMT_MAP_READ_ONLY, "steps");
    struct step_row *rows =
        room(c, (size_t)shape.n_steps * shape.max_rows * sizeof *rows, SIMT_MAP_READ_ONLY, "rows");
    for (uint32_t s = 0; s < ATTEND_CASE_SLOTS; s++)
        c->lengths[s] = c->starts[s] = draw(&r, 3) ? draw(&r, shape.before + 1) : shape.before;
    for (uint32_t i = 0; i < shape.n_steps; i++) {
        make_step(c, &r, i);
        memcpy(rows + (size_t)i * shape.max_rows, c->steps[i].rows, c->n_rows[i] * sizeof *rows);
    }
    c->args.rows = AT(rows);
    c->args.n_rows = AT(c->n_rows);
    c->args.lone = AT(c->lone);
    c->args.counters = AT(c->counters);
    c->args.guard = AT(c->guard);
    c->args.n_steps = shape.n_steps;
    c->args.n_layers = 1 + number % 2;
    c->args.general = attend_shape_is_general(&shape);
    simt_map(c->machine, c->n_rows, sizeof c->n_rows, SIMT_MAP_READ_ONLY, "n_rows");
    simt_map(c->machine, c->lone, sizeof c->lone, SIMT_MAP_READ_ONLY, "lone");
    simt_map(c->machine, c->counters, sizeof c->counters, 0, "counters");
    simt_map(c->machine, c->guard, sizeof c->guard, 0, "guard");
    c->reference =
        reference_open(c, (float *)(uintptr_t)a->cosines, (float *)(uintptr_t)a->sines,
                       (uint32_t *)(uintptr_t)a->slots.tables, a->slots.pages_per_slot, a->slots.n_pages);
    fill_cache(c, &r);
    run_reference(c);
}

void attend_case_close(struct attend_case *c)
{
    reference_close(c->reference);
    simt_close(c->machine);
    for (uint32_t i = 0; i < c->n_memory; i++)
        free(c->memory[i]);
}

/* The words of parts that are handed over without tickets, up to the scratch's end. */
static uint64_t *handed_words(const struct attend_case *c, size_t *n)
{
    const struct attend_args *a = &c->args.attend;
    uint32_t head_dim = a->layout.head_dim;
    uint64_t at =
        attend_handed_at(a->max_rows, a->n_heads, head_dim, attend_max_splits(a->slots.n_ctx, a->window));
    *n = (attend_scratch_bytes(a->max_rows, a->n_heads, head_dim, a->slots.n_ctx, a->window) - at) / 8;
    return (uint64_t *)(uintptr_t)(a->scratch + at);
}

/* A launch that was ended in the middle leaves its tickets, and parts that were handed over. */
static void reset(struct attend_case *c)
{
    const struct attend_args *a = &c->args.attend;
    memset((char *)(uintptr_t)a->scratch, 0, (size_t)a->max_rows * a->n_heads * sizeof(uint32_t));
    size_t n_handed;
    uint64_t *handed = handed_words(c, &n_handed);
    memset(handed, 0, n_handed * sizeof *handed);
    memcpy((char *)(uintptr_t)c->args.attend.kv, c->kv_begin, c->kv_bytes);
    memset(c->counters, 0, sizeof c->counters);
    memset(c->guard, 0, sizeof c->guard);
    memset((char *)(uintptr_t)c->args.results, 0xff,
           (size_t)c->shape.n_steps * c->shape.max_rows * c->args.attend.out_stride * 4);
}

static int wrong(struct simt_report *report, const char *text)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s", text);
    return -1;
}

static int check(struct attend_case *c, struct simt_report *report)
{
    const struct attend_args *a = &c->args.attend;
    const float *results = (const float *)(uintptr_t)c->args.results;
    char text[200];
    const uint32_t *tickets = (const uint32_t *)(uintptr_t)a->scratch;
    for (uint32_t i = 0; i < a->max_rows * a->n_heads; i++)
        if (tickets[i])
            return wrong(report, "a ticket is not 0 afterwards");
    size_t n_handed;
    const uint64_t *handed = handed_words(c, &n_handed);
    for (size_t i = 0; i < n_handed; i++)
        if (handed[i])
            return wrong(report, "a word that was handed over is not 0 afterwards");
    if (c->guard[FLOW_CLAIMED])
        return wrong(report, "a failure was recorded");
    for (uint32_t i = 0; i < c->shape.n_steps; i++)
        for (uint32_t row = 0; row < c->n_rows[i]; row++)
            for (uint32_t d = 0; d < a->n_heads * a->layout.head_dim; d++) {
                size_t at = ((size_t)i * a->max_rows + row) * a->out_stride + d;
                if (memcmp(&results[at], &c->wanted[at], 4) == 0)
                    continue;
                snprintf(text, sizeof text,
                         "step %u row %u (slot %u, position %u) head %u dim %u: %a, not %a", i, row,
                         c->steps[i].rows[row].slot, c->steps[i].rows[row].pos, d / a->layout.head_dim,
                         d % a->layout.head_dim, (double)results[at], (double)c->wanted[at]);
                return wrong(report, text);
            }
    if (!reference_equals(c->reference, c->lengths, (const char *)(uintptr_t)a->kv, text, sizeof text))
        return wrong(report, text);
    return 0;
}

static int launch_grid(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                       struct simt_report *report)
{
    reset(c);
    struct simt_launch launch = {.kernel = simt_find_kernel("attend_grid", sm),
                                 .args = &c->args,
                                 .n_blocks = c->shape.n_blocks,
                                 .n_threads = c->shape.n_warps * 32,
                                 .shared_bytes = 128 + c->shape.work_bytes,
                                 .seed = seed,
                                 .schedule = SIMT_N_SCHEDULES,
                                 .mute = mute};
    return simt_run(c->machine, &launch, report);
}

int attend_case_run_grid(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                         struct simt_report *report)
{
    if (launch_grid(c, sm, seed, mute, report) < 0)
        return -1;
    return check(c, report);
}

int attend_case_lose(struct attend_case *c, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    c->args.lost = c->shape.n_blocks;
    c->args.deadline_ns = 20000000;
    int rc = launch_grid(c, sm, seed, -1, report);
    c->args.lost = 0;
    c->args.deadline_ns = 0;
    if (rc < 0)
        return -1;
    if (c->guard[FLOW_ABORT] != FLOW_DEADLINE || c->guard[FLOW_WHAT] - FLOW_HEAD >= c->args.attend.n_heads ||
        c->guard[FLOW_VALUE] != 0 || c->guard[FLOW_TARGET] != 1)
        return wrong(report, "a block was lost, and the record says something else");
    return 0;
}

/* --- the same by nodes --- */

struct nodes_run {
    struct attend_case *c;
    struct simt_report *report;
    uint32_t sm;
    uint64_t seed;
    int mute;
    struct node_step step;
    uint32_t row; /* floats before the step's results */
};

static int launch(struct nodes_run *n, const char *kernel, const void *args, size_t shared)
{
    struct simt_launch l = {.kernel = simt_find_kernel(kernel, n->sm),
                            .args = args,
                            .n_blocks = n->c->shape.n_blocks,
                            .n_threads = n->c->shape.n_warps * 32,
                            .shared_bytes = shared,
                            .seed = n->seed++,
                            .schedule = SIMT_N_SCHEDULES,
                            .mute = n->mute};
    return simt_run(n->c->machine, &l, n->report);
}

static struct node_rows columns(const struct attend_args *a, uint32_t col)
{
    return (struct node_rows){.data = a->in + 4 * col, .stride = a->in_stride};
}

/* Norm and rotation of n_heads heads from a column on, in place. */
static int turn_heads(struct nodes_run *n, uint32_t col, uint32_t n_heads, uint64_t gain, bool normed,
                      bool turned)
{
    const struct attend_args *a = &n->c->args.attend;
    uint32_t head_dim = a->layout.head_dim;
    struct rms_norm_args norm = {.step = n->step,
                                 .in = columns(a, col),
                                 .out = columns(a, col),
                                 .gain = gain,
                                 .width = n_heads * head_dim,
                                 .group = head_dim,
                                 .eps = a->eps};
    struct rope_args rope = {.step = n->step,
                             .in = columns(a, col),
                             .out = columns(a, col),
                             .cosines = a->cosines,
                             .sines = a->sines,
                             .width = n_heads * head_dim,
                             .head_dim = head_dim,
                             .rope_dim = a->rope_dim,
                             .neox = a->neox,
                             .n_ctx = a->slots.n_ctx};
    int rc = normed ? launch(n, "rms_norm", &norm, NODE_NORM_SHARED) : 0;
    return rc < 0 || !turned ? rc : launch(n, "rope", &rope, 0);
}

static int run_step(struct nodes_run *n)
{
    const struct attend_args *a = &n->c->args.attend;
    uint32_t n_kv_heads = a->layout.n_kv_heads;
    struct kv_append_args append = {.step = n->step,
                                    .k = columns(a, a->k_col),
                                    .v = columns(a, a->v_col),
                                    .out = columns(a, a->k_col),
                                    .kv = a->kv,
                                    .layout = a->layout,
                                    .slots = a->slots,
                                    .layer = a->layer};
    struct attention_args attention = {.step = n->step, .attend = *a, .general = n->c->args.general};
    attention.attend.ready = 1;
    int rc = turn_heads(n, a->q_col, a->n_heads, a->q_gain, a->q_gain != 0, true);
    if (!a->cached) {
        rc = rc < 0 ? rc : turn_heads(n, a->k_col, n_kv_heads, a->k_gain, a->k_gain != 0, true);
        rc = rc < 0 || !a->v_normed ? rc : turn_heads(n, a->v_col, n_kv_heads, 0, true, false);
        rc = rc < 0 ? rc : launch(n, "kv_append", &append, NODE_APPEND_SHARED);
    }
    if (a->layout.head_dim % 32)
        return rc < 0 ? rc : launch(n, "attention_any", &attention, NODE_ANY_SHARED);
    return rc < 0 ? rc : launch(n, "attention", &attention, a->work + a->work_bytes);
}

int attend_case_run_nodes(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                          struct simt_report *report)
{
    reset(c);
    struct nodes_run n = {.c = c, .report = report, .sm = sm, .seed = seed, .mute = mute};
    const struct attend_args *a = &c->args.attend;
    for (uint32_t i = 0; i < c->shape.n_steps; i++) {
        size_t in = (size_t)c->n_rows[i] * a->in_stride, all = (size_t)c->shape.max_rows;
        memcpy((float *)(uintptr_t)a->in, (float *)(uintptr_t)c->args.source + i * all * a->in_stride,
               in * 4);
        n.step = (struct node_step){.step = AT(&c->steps[i]), .fault = AT(c->guard)};
        if (run_step(&n) < 0)
            return -1;
        memcpy((float *)(uintptr_t)c->args.results + i * all * a->out_stride, (float *)(uintptr_t)a->out,
               (size_t)c->n_rows[i] * a->out_stride * 4);
    }
    return check(c, report);
}
