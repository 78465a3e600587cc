/* cuda_backend.c - the backend table of cuda: open, the ring of steps, results, info, close. Contract:
 * backend/backend.h; the other files of the backend: cuda_decoder.h. */
#include "base/clock.h"
#include "cuda_decoder.h"
#include "ptx_image.h"
#include "abi/tile.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* Name of the order of elements inside a tile (kernels/attention/kv_tile.h): increase the number when it
 * changes. */
#define KV_ORDER "cuda 2"

#define SPIN_NS  10000u  /* advance() spins for this long, */
#define NEAR_NS  40000u  /* and so long before and behind the end of a step that takes as long as the last; */
#define SLEEP_NS 20000u  /* else it sleeps this long between two looks, */
#define POLL_NS  500000u /* and returns to the engine after this long, which may have new requests */
#define LEAVE_NS 5000000000u /* longest wait for the decoder to end; then its memory is abandoned */

/* --- life --- */

static int copy_end_tokens(struct cuda_decoder *d, struct error *err)
{
    const struct backend_config *cfg = &d->cfg;
    if (!cfg->n_end_tokens)
        return 0;
    d->end_tokens = malloc(cfg->n_end_tokens * sizeof *d->end_tokens);
    if (!d->end_tokens)
        return error_set(err, -ENOMEM, "end tokens: out of memory");
    memcpy(d->end_tokens, cfg->end_tokens, cfg->n_end_tokens * sizeof *d->end_tokens);
    return 0;
}

/* Decoders whose kernel does not end: their memory cannot be released. The process is about to end. */
static struct cuda_decoder *_Atomic left_behind;

static void leave_behind(struct cuda_decoder *d)
{
    d->next = atomic_exchange(&left_behind, d);
}

static bool is_stuck(struct cuda_decoder *d)
{
    if (!d->device.context)
        return false;
    d->driver.cuCtxSetCurrent(d->device.context);
    if (!d->stream)
        return false;
    if (d->resident && atomic_load(&d->launches))
        return !cuda_resident_leave(d, d->fault.code ? DECODER_ABORT : DECODER_DRAIN, LEAVE_NS);
    return !cuda_wait_idle(d, LEAVE_NS);
}

static void cuda_close(struct backend *be)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    if (!d)
        return;
    if (is_stuck(d)) {
        leave_behind(d);
        return;
    }
    cuda_unload(d);
    if (d->driver.library)
        cuda_device_close(&d->device, &d->driver);
    cuda_driver_close(&d->driver);
    free(d->end_tokens);
    free(d);
}

static int cuda_open(struct backend **out, const struct backend_config *cfg, struct error *err)
{
    int rc = backend_check_config(cfg, err);
    if (rc < 0)
        return rc;
    if (cfg->arithmetic != BACKEND_INT8)
        return error_set(err, -EINVAL, "arithmetic exact needs backend cpu and executor eager");
    struct cuda_decoder *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(err, -ENOMEM, "cuda backend: out of memory");
    d->base.ops = &cuda_backend;
    d->cfg = *cfg;
    d->cfg.steps_in_flight = cfg->steps_in_flight ? cfg->steps_in_flight : DECODER_RING;
    d->stall_ns = (uint64_t)(cfg->stall_ms ? cfg->stall_ms : CUDA_STALL_MS) * 1000000;
    rc = copy_end_tokens(d, err);
    if (rc == 0)
        rc = cuda_driver_open(&d->driver, cfg->libcuda, cfg->cuda_cache, err);
    if (rc == 0)
        rc = cuda_device_open(&d->device, &d->driver, (int)cfg->cuda_device - 1, err);
    if (rc == 0)
        rc = cuda_kernels_check(&d->device, ptx_images, cfg->eager, err);
    if (rc < 0) {
        cuda_close(&d->base);
        return rc;
    }
    (void)snprintf(d->isa, sizeof d->isa, "sm_%u", d->device.sm);
    *out = &d->base;
    return 0;
}

static int cuda_load(struct backend *be, const struct program *prog, const struct graph *graph,
                     struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    d->program = prog;
    d->graph = graph;
    int rc = CUDA_TRY(&d->driver, err, cuCtxSetCurrent, d->device.context);
    if (rc == 0)
        rc = cuda_load_all(d, err);
    if (rc == 0 && !d->cfg.eager)
        rc = cuda_resident_launch(d, err);
    if (rc < 0)
        cuda_unload(d);
    return rc;
}

/* --- steps --- */

static int fault(const struct cuda_decoder *d, struct error *err)
{
    return error_set(err, d->fault.code, "%s", d->fault.text);
}

/* Copies a step to its place in the ring. Each of its masks goes to a place of its logit row: so the engine
 * may make the next ones while the step runs. */
static void copy_step(struct cuda_decoder *d, const struct step *step)
{
    struct step *to = cuda_step_at(d, d->submitted);
    uint32_t first = d->submitted % DECODER_RING * STEP_MAX_LOGITS;
    step_copy(to, step);
    for (uint32_t i = 0; i < step->n_logits; i++) {
        if (!step->logits[i].mask)
            continue;
        const uint32_t *from = d->engine_masks + (size_t)(step->logits[i].mask - 1) * d->mask_words;
        size_t bytes = (d->args.buffers.n_vocab + 31) / 32 * sizeof *from;
        memcpy((char *)d->masks.data + (first + i) * cuda_mask_bytes(d), from, bytes);
        to->logits[i].mask = first + i + 1;
    }
}

/* Checks a step, copies it to the ring and publishes it to the device. */
static int take_step(struct cuda_decoder *d, const struct step *step, struct error *err)
{
    if (d->fault.code)
        return fault(d, err);
    if (cuda_in_flight(d) == d->cfg.steps_in_flight)
        return -EAGAIN;
    int rc = step_check(d->checker, step, err);
    if (rc < 0)
        return rc;
    copy_step(d, step);
    struct cuda_flight *f = &d->flights[d->submitted % DECODER_RING];
    *f = (struct cuda_flight){.id = step->id, .n_results = step->n_logits};
    for (uint32_t i = 0; i < step->n_logits && i < STEP_MAX_LOGITS;
         i++) /* step_check() has checked the bound; repeated for the compiler */
        f->exports |= (uint32_t)(step->logits[i].flags & STEP_EXPORT ? 1 : 0) << i;
    d->fresh_exports = 0;
    if (cuda_in_flight(d) == 0) {
        cuda_watch_begin(d);
        d->busy_since_ns = d->beat_ns;
    }
    d->submitted++;
    cuda_word_set(&cuda_control(d)->submitted, d->submitted);
    atomic_store_explicit(&d->in_flight, cuda_in_flight(d), memory_order_relaxed);
    return 0;
}

static int cuda_submit(struct backend *be, const struct step *step, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker);
    int rc = take_step(d, step, err);
    if (rc < 0)
        return rc;
    rc = d->cfg.eager ? cuda_nodes_replay(d, err) : cuda_resident_wake(d, true, err);
    return rc < 0 ? cuda_fail(d, rc, "%s", err ? err->text : "the step could not be launched") : 0;
}

static int cuda_begin(struct backend *be, const struct step *step, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker && d->cfg.eager);
    int rc = take_step(d, step, err);
    return rc < 0 ? rc : cuda_nodes_begin(d, err);
}

static int cuda_dispatch(struct backend *be, uint32_t node, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker && d->cfg.eager);
    if (d->fault.code)
        return fault(d, err);
    if (node >= d->graph->n_nodes)
        return error_set(err, -EINVAL, "node %u does not exist: the graph has %u", node, d->graph->n_nodes);
    return cuda_nodes_dispatch(d, node, err);
}

static int cuda_time_nodes(struct backend *be, bool on, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker && d->cfg.eager && !cuda_in_flight(d));
    return d->fault.code ? fault(d, err) : cuda_nodes_time(d, on, err);
}

static int cuda_node_ns(struct backend *be, uint32_t node, uint64_t *ns, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker && d->cfg.eager && !cuda_in_flight(d) && node < d->graph->n_nodes);
    return d->fault.code ? fault(d, err) : cuda_nodes_ns(d, node, ns, err);
}

static int cuda_value(struct backend *be, uint32_t node, uint32_t row, float *out, float *factor,
                      struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->checker && d->cfg.eager);
    return d->fault.code ? fault(d, err) : cuda_nodes_value(d, node, row, out, factor, err);
}

/* --- results --- */

/* Sleeps alone would show the end of a step half a sleep late, on average, which a client of one text pays
 * with every token; and the steps of a text are alike. */
static bool ends_soon(const struct cuda_decoder *d, uint64_t now)
{
    uint64_t end = d->busy_since_ns + d->last_step_ns;
    return now + NEAR_NS > end && now < end + NEAR_NS;
}

static void rest(bool spins)
{
    if (spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    struct timespec t = {.tv_nsec = SLEEP_NS};
    nanosleep(&t, NULL);
}

/* Waits until the oldest step is done. Returns earlier if the engine can use the time: the persistent decoder
 * takes further steps. */
static int wait_for_step(struct cuda_decoder *d)
{
    static _Thread_local bool precise;
    if (!precise) /* without this every sleep takes 50 us longer */
        precise = prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul) == 0;
    uint64_t begin = clock_ns();
    for (uint64_t now = begin; cuda_word(&cuda_control(d)->completed) == d->taken; now = clock_ns()) {
        int rc = cuda_watch(d, now);
        if (rc < 0)
            return rc;
        if (d->resident && now - begin > POLL_NS)
            return 0;
        rest(now - begin < SPIN_NS || ends_soon(d, now));
    }
    return 0;
}

/* Adds the time since the device became busy, or since the end of the previous step was seen. */
static void count_busy(struct cuda_decoder *d)
{
    uint64_t now = clock_ns();
    d->last_step_ns = now - d->busy_since_ns;
    atomic_fetch_add_explicit(&d->busy_ns, d->last_step_ns, memory_order_relaxed);
    d->busy_since_ns = now;
}

static void finish_step(struct cuda_decoder *d)
{
    const struct cuda_flight *f = &d->flights[d->taken % DECODER_RING];
    d->steps_done = f->id;
    d->fresh_exports = f->exports;
    d->taken++;
    d->n_taken = 0;
    count_busy(d);
    atomic_fetch_add_explicit(&d->n_steps, 1, memory_order_relaxed);
    atomic_store_explicit(&d->in_flight, cuda_in_flight(d), memory_order_relaxed);
}

static int hand_out(struct cuda_decoder *d, struct step_result *out, int max)
{
    uint32_t completed = cuda_word(&cuda_control(d)->completed);
    int n = 0;
    while (d->taken != completed) {
        const struct cuda_flight *f = &d->flights[d->taken % DECODER_RING];
        const struct step_result *from =
            (const struct step_result *)d->results.data + (size_t)(d->taken % DECODER_RING) * STEP_MAX_LOGITS;
        while (n < max && d->n_taken < f->n_results)
            out[n++] = from[d->n_taken++];
        if (d->n_taken < f->n_results)
            break;
        finish_step(d);
    }
    return n;
}

static int cuda_advance(struct backend *be, struct step_result *out, int max, uint64_t *steps_done,
                        struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    if (d->fault.code)
        return fault(d, err);
    bool waits = cuda_in_flight(d) > 0;
    if ((waits ? wait_for_step(d) : cuda_watch_idle(d, clock_ns())) < 0)
        return fault(d, err);
    int n = waits ? hand_out(d, out, max) : 0;
    if (steps_done)
        *steps_done = d->steps_done;
    return n;
}

/* --- what callers see --- */

static void cuda_park(struct backend *be)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    if (d->resident && !d->fault.code && !cuda_resident_leave(d, DECODER_DRAIN, LEAVE_NS))
        cuda_fail(d, -EIO, "the decoder on %s does not end", d->device.name);
}

static int cuda_set_trace(struct backend *be, bool on, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->resident && !cuda_in_flight(d));
    return cuda_trace(d, on, err);
}

static int cuda_get_trace(struct backend *be, struct trace *out, struct error *err)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(d->args.trace && !cuda_in_flight(d));
    return cuda_traced(d, out, err);
}

static void cuda_masks(struct backend *be, const uint32_t *masks, uint32_t n, uint32_t words)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be;
    assert(n == 0 || words >= (d->args.buffers.n_vocab + 31) / 32);
    d->engine_masks = masks;
    d->mask_words = words;
    step_checker_masks(d->checker, n);
}

static const float *cuda_logits(struct backend *be, uint32_t index)
{
    const struct cuda_decoder *d = (const struct cuda_decoder *)be;
    if (index >= STEP_MAX_LOGITS || !(d->fresh_exports >> index & 1))
        return NULL;
    return (const float *)d->exported.data + (size_t)index * d->export_stride;
}

static void cuda_info(const struct backend *be, struct backend_info *out)
{
    struct cuda_decoder *d = (struct cuda_decoder *)be; /* only atomics are written */
    bool away = d->resident && cuda_resident_has_left(d);
    bool running = atomic_load_explicit(&d->in_flight, memory_order_relaxed) > 0;
    *out = (struct backend_info){
        .name = cuda_backend.name,
        .device = d->device.name,
        .isa = d->isa,
        .note = *d->note ? d->note : NULL,
        .account = atomic_load_explicit(&d->account, memory_order_acquire),
        .registers = d->kernels.registers,
        .local_bytes = d->kernels.local_bytes,
        .n_modules = d->kernels.n_modules,
        .n_cubins = d->kernels.n_cubins,
        .jit_reason = *d->kernels.jit_reason ? d->kernels.jit_reason : NULL,
        .max_rows = d->max_rows,
        .rows_together = PRODUCT_WIDE,
        .n_pages = d->cache.n_pages,
        .n_windows = d->cache.n_windows,
        .window = d->cache.window,
        .window_bytes = d->cache.window_bytes,
        .shares_pages = true,
        .recurrent = d->args.states.n_layers > 0,
        .n_snapshots = d->args.states.n_states - d->args.states.n_slots,
        .state_size = d->args.states.bytes,
        .state_bytes = d->states.size,
        .default_step_ms = 10,
        .kv = d->args.layout,
        .kv_order = KV_ORDER,
        .weights_sum = d->weights.sum,
        .weights_bytes = d->weights.block.size,
        .memory_used = d->weights.block.size + d->scratch_bytes + d->pages.size + d->states.size,
        .memory_total = d->device.memory_bytes,
        .bandwidth = d->device.bandwidth,
        .scratch_bytes = d->scratch_bytes,
        .launches = atomic_load_explicit(&d->launches, memory_order_relaxed),
        .parks = atomic_load_explicit(&d->parks, memory_order_relaxed) + (away && !running),
        .steps = atomic_load_explicit(&d->n_steps, memory_order_relaxed),
        .busy_ns = atomic_load_explicit(&d->busy_ns, memory_order_relaxed),
        .ops_per_step = d->program ? d->program->n_ops : 0,
        .transfer = d->transfer.data,
        .transfer_bytes = d->transfer.size,
        .heartbeat_ns = d->control.data ? cuda_last_beat(d) : 0,
        .state = running ? BACKEND_RUNNING
                 : away  ? BACKEND_PARKED
                         : BACKEND_IDLE,
    };
}

static const struct backend_node_ops cuda_nodes = {.begin = cuda_begin,
                                                   .dispatch = cuda_dispatch,
                                                   .time = cuda_time_nodes,
                                                   .node_ns = cuda_node_ns,
                                                   .value = cuda_value};

static const struct backend_sampling_ops cuda_sampling = {.masks = cuda_masks, .logits = cuda_logits};
static const struct backend_trace_ops cuda_tracing = {.trace = cuda_set_trace, .traced = cuda_get_trace};

const struct backend_ops cuda_backend = {
    .name = "cuda",
    .has_graph = true,
    .nodes = &cuda_nodes,
    .sampling = &cuda_sampling,
    .trace = &cuda_tracing,
    .prepare = cuda_driver_environment,
    .open = cuda_open,
    .load = cuda_load,
    .submit = cuda_submit,
    .advance = cuda_advance,
    .park = cuda_park,
    .info = cuda_info,
    .close = cuda_close,
};
