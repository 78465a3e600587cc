/* engine_stats.c - the engine's figures: its thread counts them, any thread reads them. */
#include "engine_private.h"
#include "kv/prefix_disk.h"

void engine_count_tokens(struct engine *e, uint64_t now_ns, uint32_t prompt, uint32_t generated)
{
    uint64_t second = now_ns / 1000000000u + 1; /* 0 marks an unused entry */
    struct rate *rate = &e->rates[second % (RATE_SECONDS + 1)];
    if (atomic_load_explicit(&rate->second, memory_order_relaxed) != second) {
        atomic_store_explicit(&rate->prompt, 0, memory_order_relaxed);
        atomic_store_explicit(&rate->generated, 0, memory_order_relaxed);
        atomic_store_explicit(&rate->second, second, memory_order_relaxed);
    }
    count(&rate->prompt, prompt);
    count(&rate->generated, generated);
    count(&e->prompt_tokens, prompt);
    count(&e->generated_tokens, generated);
}

void engine_publish_stats(struct engine *e)
{
    struct kv_cache_stats kv;
    kv_cache_stats(e->kv, &kv);
    atomic_store_explicit(&e->pages_used, kv.used, memory_order_relaxed);
    atomic_store_explicit(&e->pages_cached, kv.cached, memory_order_relaxed);
    atomic_store_explicit(&e->windows_used, kv.windows_used, memory_order_relaxed);
    atomic_store_explicit(&e->windows_cached, kv.windows_cached, memory_order_relaxed);
    atomic_store_explicit(&e->snapshots_kept, kv.snapshots, memory_order_relaxed);
    atomic_store_explicit(&e->n_running, e->n_live, memory_order_relaxed);
}

#define LOAD(field) atomic_load_explicit(&e->field, memory_order_relaxed)

static void add_rates(const struct engine *e, struct engine_stats *out)
{
    uint64_t now = clock_ns(), second = now / 1000000000u + 1, prompt = 0, generated = 0;
    for (uint32_t i = 0; i <= RATE_SECONDS; i++)
        if (LOAD(rates[i].second) + RATE_SECONDS > second) {
            prompt += LOAD(rates[i].prompt);
            generated += LOAD(rates[i].generated);
        }
    double up = (double)(now - e->opened_ns) / 1e9;
    double span = up < 1 ? 1 : up < RATE_SECONDS ? up : RATE_SECONDS;
    out->prompt_tokens_per_s = (double)prompt / span;
    out->tokens_per_s = (double)generated / span;
}

void engine_forget(struct engine *e)
{
    _Atomic uint64_t *const figures[] = {
        &e->completed,   &e->failed,         &e->rejected,      &e->cancelled,
        &e->timed_out,   &e->prompt_tokens,  &e->cached_tokens, &e->generated_tokens,
        &e->steps,       &e->drafted,        &e->accepted,      &e->draft_steps,
        &e->steps_saved, &e->draft_requests, &e->turned_off,    &e->forced};
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        atomic_store_explicit(figures[i], 0, memory_order_relaxed);
    for (uint32_t i = 0; i <= RATE_SECONDS; i++)
        atomic_store_explicit(&e->rates[i].second, 0, memory_order_relaxed);
    executor_forget(e->x);
}

static void add_disk(const struct engine *e, struct engine_stats *out)
{
    struct prefix_disk_stats d;
    if (!e->disk)
        return;
    prefix_disk_stats(e->cfg.disk, &d);
    out->has_disk = true;
    out->disk_pages = d.pages;
    out->disk_bytes = d.bytes;
    out->disk_hits = d.hits;
    out->disk_spilled = d.spilled;
    out->disk_errors = d.errors;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    uint32_t open = LOAD(n_open), running = LOAD(n_running);
    *out = (struct engine_stats){.running = running,
                                 .waiting = open > running ? open - running : 0,
                                 .queue_limit = e->cfg.queue_limit,
                                 .completed = LOAD(completed),
                                 .failed = LOAD(failed),
                                 .rejected = LOAD(rejected),
                                 .cancelled = LOAD(cancelled),
                                 .timed_out = LOAD(timed_out),
                                 .prompt_tokens = LOAD(prompt_tokens),
                                 .cached_tokens = LOAD(cached_tokens),
                                 .generated_tokens = LOAD(generated_tokens),
                                 .steps = LOAD(steps),
                                 .speculates = e->draft != NULL,
                                 .shares_prefixes = e->cfg.prefix_cache,
                                 .drafted = LOAD(drafted),
                                 .accepted = LOAD(accepted),
                                 .forced = LOAD(forced),
                                 .draft_steps = LOAD(draft_steps),
                                 .steps_saved = LOAD(steps_saved),
                                 .draft_requests = LOAD(draft_requests),
                                 .turned_off = LOAD(turned_off),
                                 .pages_total = LOAD(pages_total),
                                 .pages_used = LOAD(pages_used),
                                 .pages_cached = LOAD(pages_cached),
                                 .windows_total = e->n_windows,
                                 .windows_used = LOAD(windows_used),
                                 .windows_cached = LOAD(windows_cached),
                                 .snapshots_total = e->n_snapshots,
                                 .snapshots_kept = LOAD(snapshots_kept),
                                 .kv_bytes = e->kv_bytes,
                                 .faulted = LOAD(faulted),
                                 .heartbeat_ns = LOAD(heartbeat_ns),
                                 .idle = LOAD(idle) && open == 0};
    add_rates(e, out);
    add_disk(e, out);
}
