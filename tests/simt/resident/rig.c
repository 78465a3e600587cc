#include "rig.h"
#include "abi/attend_layout.h"
#include "abi/sample_layout.h"
#include "device/simt.h"
#include "abi/tile.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    return p;
}

static void *buffer(struct rig *r, size_t size, uint32_t flags, const char *name)
{
    size = (size + 127) / 128 * 128;
    void *p = must(aligned_alloc(128, size));
    memset(p, 0, size);
    if (r->n_buffers == RIG_BUFFERS)
        abort();
    r->buffers[r->n_buffers++] = (struct rig_buffer){.memory = p, .size = size};
    simt_map(r->machine, p, size, flags, name);
    return p;
}

static uint64_t device(struct rig *r, size_t size, const char *name)
{
    return (uint64_t)(uintptr_t)buffer(r, size, 0, name);
}

/* Device memory with contents that stay. */
static uint64_t table(struct rig *r, const void *from, size_t size, const char *name)
{
    void *p = buffer(r, size, SIMT_MAP_READ_ONLY, name);
    memcpy(p, from, size);
    r->buffers[r->n_buffers - 1].kept = true;
    return (uint64_t)(uintptr_t)p;
}

static uint64_t cleared(struct rig *r, size_t size, const char *name)
{
    uint64_t address = device(r, size, name);
    r->buffers[r->n_buffers - 1].cleared = true;
    return address;
}

static void open_slots(struct rig *r)
{
    struct decoder_slots *s = &r->args.slots;
    uint32_t n = r->config.n_slots, n_ctx = r->config.n_ctx;
    *s = (struct decoder_slots){
        .n_slots = n, .n_ctx = n_ctx, .n_pages = r->config.n_pages, .n_windows = r->config.n_windows};
    s->pages_per_slot = (n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    s->tables = device(r, (size_t)n * s->pages_per_slot * 4, "tables");
    s->windows = s->n_windows ? device(r, (size_t)n * s->pages_per_slot * 4, "windows") : 0;
    s->history = device(r, (size_t)n * n_ctx * 4, "history");
    s->start = device(r, n * 4, "start");
    s->last_sampled = device(r, n * 4, "last_sampled");
    s->sampling = device(r, n * sizeof(struct step_sampling), "sampling");
    s->biases = device(r, (size_t)n * STEP_MAX_BIAS * sizeof(struct step_bias), "biases");
}

/* Values of the longest input of a product. */
static uint32_t widest(const struct program *p)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        k = p->ops[i].opcode == PROGRAM_MATMUL && p->ops[i].k > k ? p->ops[i].k : k;
    return k;
}

static void open_buffers(struct rig *r)
{
    const struct rig_config *c = &r->config;
    const struct program *p = c->program;
    struct decoder_buffers *b = &r->args.buffers;
    *b = (struct decoder_buffers){.max_rows = c->max_rows,
                                  .row_floats = r->program->row_floats,
                                  .logits_stride = c->logits_stride,
                                  .n_vocab = p->n_vocab};
    b->rows = device(r, (size_t)c->max_rows * b->row_floats * 4, "rows");
    b->logits = device(r, (size_t)STEP_MAX_LOGITS * c->logits_stride * 4, "logits");
    uint64_t activations =
        activation_buffer_bytes(c->max_rows, widest(p), ACTIVATION_INTEGERS | ACTIVATION_FLOATS);
    struct plan_mixtures m;
    plan_mixtures(&m, p, c->matrices, c->max_rows);
    activations = m.activations > activations ? m.activations : activations;
    b->activations = device(r, r->panel_bytes > activations ? r->panel_bytes : activations, "activations");
    b->factors = device(r, m.factors > c->max_rows * 4u ? m.factors : c->max_rows * 4u, "factors");
    if (m.list)
        b->mixtures = (struct decoder_mixtures){.list = device(r, m.list, "list"),
                                                .rows = device(r, m.rows, "gathered rows"),
                                                .place = device(r, m.place, "places"),
                                                .inner = device(r, m.inner, "inner"),
                                                .parts = device(r, m.parts, "parts")};
    b->results = device(r, sizeof(struct step_result) * STEP_MAX_LOGITS * DECODER_RING, "results");
    b->attend =
        device(r, attend_scratch_bytes(c->max_rows, p->n_heads, c->layout.head_dim, c->n_ctx, 0), "attend");
    b->sample = device(r, sample_scratch_bytes(p->n_vocab, STEP_MAX_LOGITS), "sample");
}

static void open_states(struct rig *r)
{
    const struct rig_config *c = &r->config;
    struct decoder_states *s = &r->args.states;
    if (!c->n_recurrent)
        return;
    *s = (struct decoder_states){.n_slots = c->n_slots,
                                 .n_states = c->n_slots,
                                 .n_layers = c->n_recurrent,
                                 .layer_floats = (uint32_t)delta_state_floats(&c->delta),
                                 .shape = c->delta};
    s->bytes = (uint64_t)s->n_layers * s->layer_floats * sizeof(float);
    s->data = device(r, s->n_states * s->bytes, "states");
}

static void open_flow(struct rig *r)
{
    struct decoder_args *a = &r->args;
    a->n_counters = r->plan.n_counters;
    a->counters = cleared(r, (size_t)a->n_counters * DECODER_LINE * 4, "counters");
    a->published = cleared(r, DECODER_LINE * 4, "published");
    a->abort_word = cleared(r, DECODER_LINE * 4, "abort_word");
    a->progress = cleared(r, DECODER_LINE * 4, "progress");
    a->places = cleared(r, (size_t)r->config.device.n_blocks * DECODER_LINE * 4, "places");
    size_t n_marks = (size_t)r->config.device.n_blocks * r->plan.n_ops;
    size_t border = DECODER_RING * sizeof(struct decoder_border_mark);
    r->marks = (struct decoder_mark *)(uintptr_t)cleared(r, n_marks * sizeof *r->marks + border, "marks");
    a->staged_stride = (DECODER_STEP_AT + sizeof(struct step) + 127) / 128 * 128;
    a->staged = device(r, (size_t)DECODER_RING * a->staged_stride, "staged");
}

static void open_pinned(struct rig *r)
{
    struct decoder_args *a = &r->args;
    a->step_stride = sizeof(struct step);
    a->transfer_bytes = kv_page_size(&r->config.layout) * 4;
    r->control = buffer(r, sizeof *r->control, SIMT_MAP_HOST, "control");
    r->steps = buffer(r, (size_t)DECODER_RING * a->step_stride, SIMT_MAP_HOST | SIMT_MAP_READ_ONLY, "steps");
    r->results =
        buffer(r, sizeof *r->results * STEP_MAX_LOGITS * DECODER_RING, SIMT_MAP_HOST, "pinned results");
    r->transfer = buffer(r, a->transfer_bytes, SIMT_MAP_HOST, "transfer");
    size_t masks = (size_t)DECODER_MASKS * sample_mask_words(r->config.program->n_vocab) * 4;
    r->masks = buffer(r, masks, SIMT_MAP_HOST | SIMT_MAP_READ_ONLY, "masks");
    a->masks = (uint64_t)(uintptr_t)r->masks;
    a->exported = (uint64_t)(uintptr_t)buffer(r, (size_t)STEP_MAX_LOGITS * r->config.logits_stride * 4,
                                              SIMT_MAP_HOST, "exported");
    a->control = (uint64_t)(uintptr_t)r->control;
    a->steps = (uint64_t)(uintptr_t)r->steps;
    a->results = (uint64_t)(uintptr_t)r->results;
    a->transfer = (uint64_t)(uintptr_t)r->transfer;
}

/* So many stages in the ring's place, each as large as the largest copy. */
static void divide_ring(struct plan *p, const struct rig_config *c)
{
    struct decoder_shared *s = &p->shared;
    uint32_t room = s->n_stages * s->stage_bytes, largest = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        for (uint32_t w = 0; p->ops[i].n_groups && w < c->program->ops[i].n_weights; w++) {
            uint32_t bytes =
                p->ops[i].part[w].stage_supers * c->matrices[c->program->ops[i].weight[w]].super_bytes;
            largest = bytes > largest ? bytes : largest;
        }
    s->n_stages = c->n_stages;
    s->stage_bytes = (largest + 127) / 128 * 128;
    if (s->n_stages * s->stage_bytes > room)
        abort(); /* a test tool: give it more shared memory */
}

static void open_program(struct rig *r)
{
    const struct rig_config *c = &r->config;
    size_t size = sizeof *c->program + c->program->n_ops * sizeof *c->program->ops;
    struct error err = {0};
    struct plan_block block = {0, c->device.n_crew, NULL};
    r->program = must(malloc(size));
    memcpy(r->program, c->program, size);
    plan_flow(r->program, c->device.n_blocks);
    if (plan_open(&r->plan, c->program, c->matrices, &c->device, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (c->n_stages)
        divide_ring(&r->plan, c);
    plan_attention(r->program);
    r->panel_bytes = plan_panels(r->program, c->matrices);
    block.work_bytes = r->plan.shared.work_bytes;
    block.plan = r->plan.ops;
    if (c->words)
        r->args.words_rows = plan_words(r->program, c->matrices, &block);
    r->args.program = table(r, r->program, size, "program");
    r->args.plan = table(r, r->plan.ops, r->plan.n_ops * sizeof *r->plan.ops, "plan");
    r->args.matrices = table(r, c->matrices, c->n_weights * sizeof *c->matrices, "matrices");
    r->args.vectors = table(r, c->vectors, c->n_weights * sizeof *c->vectors, "vectors");
}

void rig_open(struct rig *r, const struct rig_config *config)
{
    *r = (struct rig){.config = *config, .machine = must(simt_open())};
    open_program(r);
    open_slots(r);
    open_buffers(r);
    open_states(r);
    open_flow(r);
    open_pinned(r);
    r->args.kv = device(r, kv_page_size(&config->layout) * config->n_pages, "kv");
    r->args.layout = config->layout;
    r->args.page_bytes = kv_page_size(&config->layout);
    r->args.window_bytes = kv_page_size(&config->windows);
    if (config->n_windows)
        r->args.windows = device(r, r->args.window_bytes * config->n_windows, "window pages");
    r->args.shared = r->plan.shared;
    r->args.n_crew = config->device.n_crew;
    r->args.spin_ns = 2000;
    r->args.deadline_ns = 20000000;
}

void rig_close(struct rig *r)
{
    simt_close(r->machine);
    for (uint32_t i = 0; i < r->n_buffers; i++)
        free(r->buffers[i].memory);
    for (uint32_t i = 0; i < RIG_SCRIPT; i++)
        free(r->script.steps[i]);
    plan_close(&r->plan);
    free(r->program);
}

void rig_map(struct rig *r, void *memory, size_t size, const char *name)
{
    simt_map(r->machine, memory, size, SIMT_MAP_READ_ONLY, name);
}

void rig_reset(struct rig *r)
{
    for (uint32_t i = 0; i < r->n_buffers; i++)
        if (!r->buffers[i].kept)
            memset(r->buffers[i].memory, 0, r->buffers[i].size);
    r->args.launch = 0;
}

/* Words that a running kernel shares. */
static uint32_t word(const uint32_t *p)
{
    return atomic_load_explicit((const _Atomic uint32_t *)(const void *)p, memory_order_acquire);
}

struct step *rig_step(struct rig *r)
{
    struct step *s = &r->steps[word(&r->control->submitted) % DECODER_RING];
    memset(s, 0, sizeof *s);
    return s;
}

void rig_submit(struct rig *r)
{
    atomic_store_explicit((_Atomic uint32_t *)(void *)&r->control->submitted,
                          word(&r->control->submitted) + 1, memory_order_release);
}

const struct step_result *rig_results(const struct rig *r, uint32_t back)
{
    return r->results + (word(&r->control->completed) - 1 - back) % DECODER_RING * STEP_MAX_LOGITS;
}

/* --- the host's part --- */

struct step *rig_script(struct rig *r)
{
    struct rig_script *s = &r->script;
    if (s->n_steps == RIG_SCRIPT)
        abort(); /* a test tool: the script is full */
    struct step **place = &s->steps[s->n_steps++];
    if (!*place)
        *place = must(malloc(sizeof **place));
    memset(*place, 0, sizeof **place);
    s->n_rounds = 1;
    return *place;
}

static uint32_t acquire(struct rig *r, const uint32_t *p)
{
    uint32_t value = word(p);
    simt_host(r->machine, SIMT_HOST_ACQUIRE, p, sizeof *p);
    return value;
}

static void release(struct rig *r, uint32_t *p, uint32_t value)
{
    simt_host(r->machine, SIMT_HOST_RELEASE, p, sizeof *p);
    atomic_store_explicit((_Atomic uint32_t *)(void *)p, value, memory_order_release);
}

static void read_results(struct rig *r, uint32_t number, const struct step *step)
{
    simt_host(r->machine, SIMT_HOST_READ, r->results + number % DECODER_RING * STEP_MAX_LOGITS,
              step->n_logits * sizeof *r->results);
}

static void read_failure(struct rig *r)
{
    if (acquire(r, &r->control->failed))
        simt_host(r->machine, SIMT_HOST_READ, r->control->error, sizeof r->control->error);
}

int rig_take_answer(struct rig *r, const struct step *step, struct simt_report *report)
{
    acquire(r, &r->control->heartbeat);
    uint32_t completed = acquire(r, &r->control->completed);
    if (completed == word(&r->control->submitted))
        read_results(r, completed - 1, step);
    read_failure(r);
    return simt_host_verdict(r->machine, report);
}

/* Reads the results of a step, as hand_out() of lib/cuda; and exported pages, once no step may write others.
 */
static bool take_results(struct rig *r)
{
    struct rig_script *s = &r->script;
    if (acquire(r, &r->control->completed) == s->taken)
        return false;
    const struct step *step = s->steps[(s->taken - r->args.first_step) % s->n_steps];
    read_results(r, s->taken, step);
    if (++s->taken == s->submitted)
        simt_host(r->machine, SIMT_HOST_READ, r->transfer, r->args.transfer_bytes);
    return true;
}

static bool has_more(const struct rig *r)
{
    const struct rig_script *s = &r->script;
    return s->submitted - r->args.first_step != s->n_steps * s->n_rounds;
}

/* Writes the masks of the step `to`, whose place in the ring is `place`: about half of the tokens. */
static void write_masks(struct rig *r, struct step *to, uint32_t place)
{
    uint32_t n_words = sample_mask_words(r->config.program->n_vocab);
    for (uint32_t i = 0; i < to->n_logits; i++) {
        uint32_t number = place * STEP_MAX_LOGITS + i, *mask = r->masks + (size_t)number * n_words;
        if (!to->logits[i].mask)
            continue;
        simt_host(r->machine, SIMT_HOST_WRITE, mask, n_words * sizeof *mask);
        for (uint32_t w = 0; w < n_words; w++)
            mask[w] = ((uint32_t)to->id * 31 + i * 7 + w + 1) * 0x9E3779B9u ^ 0x55555555u;
        to->logits[i].mask = number + 1;
    }
}

static bool submit_next(struct rig *r)
{
    struct rig_script *s = &r->script;
    if (!has_more(r) || s->submitted - s->taken == DECODER_RING)
        return false;
    struct step *to = &r->steps[s->submitted % DECODER_RING];
    simt_host(r->machine, SIMT_HOST_WRITE, to, sizeof *to);
    memcpy(to, s->steps[(s->submitted - r->args.first_step) % s->n_steps], sizeof *to);
    write_masks(r, to, s->submitted % DECODER_RING);
    release(r, &r->control->submitted, ++s->submitted);
    return true;
}

static bool turn(void *context)
{
    struct rig *r = context;
    acquire(r, &r->control->heartbeat);
    if (take_results(r) || submit_next(r))
        return true;
    if (has_more(r) || r->script.told)
        return false;
    release(r, &r->control->stop, DECODER_DRAIN);
    return r->script.told = true;
}

/* Does what the host may do once the launch has ended. */
static int finish(struct rig *r, struct simt_report *report)
{
    while (r->script.n_steps && take_results(r)) {
    }
    read_failure(r);
    if (acquire(r, &r->control->left) == r->args.launch)
        simt_host_owns_all(r->machine);
    r->script.n_steps = 0;
    return simt_host_verdict(r->machine, report);
}

int rig_launch(struct rig *r, uint32_t sm, uint64_t seed, enum simt_schedule schedule, int mute,
               struct simt_report *report)
{
    for (uint32_t i = 0; i < r->n_buffers; i++)
        if (r->buffers[i].cleared)
            memset(r->buffers[i].memory, 0, r->buffers[i].size);
    memset((void *)(uintptr_t)r->args.buffers.rows, 0xff, /* no word is there */
           (size_t)r->args.words_rows * r->args.buffers.row_floats * sizeof(float));
    r->args.launch++;
    r->args.first_step = word(&r->control->completed);
    struct simt_host_program host = {turn, r};
    r->script.submitted = r->script.taken = r->args.first_step;
    r->script.told = false;
    if (r->script.n_steps)
        r->control->stop = DECODER_RUN;
    struct simt_launch launch = {.kernel = simt_find_kernel(r->config.kernel, sm),
                                 .args = &r->args,
                                 .n_threads = r->config.device.n_crew + 2 * SIMT_LANES,
                                 .n_blocks = r->config.device.n_blocks,
                                 .shared_bytes = r->args.shared.total,
                                 .seed = seed,
                                 .schedule = schedule,
                                 .mute = mute,
                                 .outside = r->outside,
                                 .host = r->script.n_steps ? &host : NULL};
    if (simt_run(r->machine, &launch, report) < 0) {
        r->script.n_steps = 0;
        return -1;
    }
    return finish(r, report);
}
