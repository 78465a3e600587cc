/* api_metrics.c - GET /metrics: the figures of /stats, and histograms, in Prometheus' text format. Every name
 * is one metric of one meaning; times are seconds, counters end in _total. With metrics_aliases the core
 * names that dashboards and autoscalers for vLLM and llama-server read stand beside them, with the same
 * values. */
#include "admin.h"
#include "api.h"
#include "engine/engine.h"
#include "generation/generation.h"
#include "model/model.h"
#include "model_list.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the text format --- */

static void put_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_value(struct buf *out, const char *type, const char *name, const char *help, double value)
{
    put_head(out, name, type, help);
    buf_printf(out, "%s %.17g\n", name, value);
}

static void put_count(struct buf *out, const char *type, const char *name, const char *help, uint64_t value)
{
    put_head(out, name, type, help);
    buf_printf(out, "%s %llu\n", name, (unsigned long long)value);
}

static void put_labelled(struct buf *out, const char *name, const char *label, const char *is, uint64_t value)
{
    buf_printf(out, "%s{%s=\"%s\"} %llu\n", name, label, is, (unsigned long long)value);
}

/* A label's value: backslash, quote and line feed escaped. */
static void put_label_text(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n') {
            buf_puts(out, "\\n");
            continue;
        }
        if (*text == '\\' || *text == '"')
            buf_put(out, "\\", 1);
        buf_put(out, text, 1);
    }
}

/* Buckets end at whole octaves of a microsecond, 0.512 ms to 134 s, where counts are exact. */
#define FIRST_OCTAVE 9
#define LAST_OCTAVE  27

static void put_histogram(struct buf *out, const char *name, const char *help, const struct histogram *h)
{
    put_head(out, name, "histogram", help);
    uint64_t n = 0;
    int bucket = 0;
    for (int octave = FIRST_OCTAVE; octave <= LAST_OCTAVE; octave++) {
        for (; bucket < octave * HISTOGRAM_PER_OCTAVE; bucket++)
            n += h->buckets[bucket];
        buf_printf(out, "%s_bucket{le=\"%.9g\"} %llu\n", name, (double)(1u << octave) * 1e-6,
                   (unsigned long long)n);
    }
    buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)h->n);
    buf_printf(out, "%s_sum %.17g\n%s_count %llu\n", name, h->sum_ms / 1e3, name, (unsigned long long)h->n);
}

/* --- what is shown --- */

static void put_requests(struct buf *out, const struct http_server *s, const struct engine_stats *e)
{
    const struct stats *c = &s->stats;
    const struct {
        const char *outcome;
        uint64_t n;
    } outcomes[] = {{"completed", c->completed},
                    {"failed", c->failed},
                    {"rejected", c->rejected},
                    {"cancelled", c->cancelled},
                    {"timed_out", c->timed_out}};
    put_head(out, "hearth_requests_total", "counter", "Requests for tokens, by outcome.");
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        put_labelled(out, "hearth_requests_total", "outcome", outcomes[i].outcome, outcomes[i].n);
    put_head(out, "hearth_rejects_total", "counter", "Refused requests for tokens, by type of error.");
    for (int i = 0; i < STATS_REJECTS; i++)
        put_labelled(out, "hearth_rejects_total", "type", stats_reject_names[i], c->rejects[i]);
    put_head(out, "hearth_finish_total", "counter",
             "Generated texts, by finish_reason; a request with n counts n times.");
    for (int i = 0; i < STATS_FINISHES; i++)
        put_labelled(out, "hearth_finish_total", "reason", stats_finish_names[i], c->finishes[i]);
    put_count(out, "gauge", "hearth_requests_running", "Requests that hold a slot.", e->running);
    put_count(out, "gauge", "hearth_requests_waiting", "Requests that wait for a slot.",
              generator_load(s->generator).waiting);
    put_count(out, "gauge", "hearth_queue_limit", "Requests that may wait.", s->cfg->queue_limit);
    put_count(out, "gauge", "hearth_connections", "Open connections.", s->n_connections);
    put_count(out, "gauge", "hearth_body_bytes", "Memory held by request bodies.", s->body_bytes);
    put_count(out, "gauge", "hearth_reply_bytes",
              "Memory held by or reserved for replies, compiled grammars and large requests.",
              s->reply_bytes);
}

static void put_tokens(struct buf *out, const struct engine_stats *e)
{
    put_count(out, "counter", "hearth_prompt_tokens_total", "Prompt tokens of accepted requests.",
              e->prompt_tokens);
    put_count(out, "counter", "hearth_prompt_cached_tokens_total", "Prompt tokens found in the prefix cache.",
              e->cached_tokens);
    put_count(out, "counter", "hearth_generated_tokens_total", "Generated tokens.", e->generated_tokens);
    put_value(out, "gauge", "hearth_prompt_tokens_per_second",
              "Prompt tokens per second over the last ten seconds.", e->prompt_tokens_per_s);
    put_value(out, "gauge", "hearth_tokens_per_second",
              "Generated tokens per second over the last ten seconds.", e->tokens_per_s);
}

static void put_latencies(struct buf *out, const struct stats *c)
{
    put_histogram(out, "hearth_queue_seconds", "Time from acceptance to a slot.", &c->queue);
    put_histogram(out, "hearth_ttft_seconds", "Time from acceptance to the first token.", &c->ttft);
    put_histogram(out, "hearth_inter_token_seconds", "Time between two tokens of a request.",
                  &c->inter_token);
    put_histogram(out, "hearth_request_seconds", "Time from acceptance to the end of a completed request.",
                  &c->total);
    put_histogram(out, "hearth_reject_seconds",
                  "Time from a refused request's headers to its reply or disconnection.", &c->reject);
}

/* Without a disk there are none of these. */
static void put_disk(struct buf *out, const struct engine_stats *e)
{
    if (!e->has_disk)
        return;
    put_count(out, "gauge", "hearth_prefix_disk_pages", "Pages of the prefix cache on disk, of all models.",
              e->disk_pages);
    put_count(out, "gauge", "hearth_prefix_disk_bytes", "Bytes of the prefix cache on disk.", e->disk_bytes);
    put_count(out, "counter", "hearth_prefix_disk_hits_total", "Pages read back from disk.", e->disk_hits);
    put_count(out, "counter", "hearth_prefix_disk_spilled_total", "Pages written to disk.", e->disk_spilled);
    put_count(out, "counter", "hearth_prefix_disk_errors_total",
              "Failed writes, and files that were broken or foreign.", e->disk_errors);
}

static void put_speculation(struct buf *out, const struct engine_stats *e)
{
    put_count(out, "counter", "hearth_draft_tokens_total", "Tokens drafted by prompt lookup.", e->drafted);
    put_count(out, "counter", "hearth_draft_tokens_accepted_total", "Drafted tokens that were accepted.",
              e->accepted);
    put_count(out, "counter", "hearth_draft_tokens_forced_total",
              "Accepted drafts that a grammar had forced.", e->forced);
    put_count(out, "counter", "hearth_draft_steps_total", "Steps with drafted tokens.", e->draft_steps);
    put_count(out, "counter", "hearth_draft_steps_saved_total", "Steps saved by accepted drafts.",
              e->steps_saved);
    put_count(out, "counter", "hearth_draft_requests_total", "Requests with drafted tokens.",
              e->draft_requests);
    put_count(out, "counter", "hearth_draft_requests_off_total",
              "Requests that stopped drafting because it did not pay.", e->turned_off);
}

static void put_decoder(struct buf *out, const struct http_server *s, const struct engine_stats *e)
{
    static const char *const states[] = {
        [BACKEND_IDLE] = "idle", [BACKEND_RUNNING] = "running", [BACKEND_PARKED] = "parked"};
    struct backend_info b;
    executor_info(s->generator->model->executor, &b);
    uint64_t now = clock_ns();
    bool running = b.state == BACKEND_RUNNING;
    double age = running && now > b.heartbeat_ns ? (double)(now - b.heartbeat_ns) / 1e9 : 0;
    put_count(out, "counter", "hearth_kernel_launches_total",
              "Launches of GPU kernels, or starts of the resident cpu threads.", b.launches);
    put_count(out, "counter", "hearth_kernel_parks_total", "Times the decoder's kernel left an idle GPU.",
              b.parks);
    put_count(out, "counter", "hearth_steps_total", "Steps of the decoder.", e->steps);
    put_value(
        out, "counter", "hearth_decoder_busy_seconds_total",
        "Time in steps; on a GPU from submit until the host sees the end; 0 on cpu with executor eager.",
        (double)b.busy_ns / 1e9);
    put_value(out, "gauge", "hearth_heartbeat_age_seconds",
              "Time since the decoder's last heartbeat; 0 while nothing runs.", age);
    put_head(out, "hearth_decoder_state", "gauge", "1 for the state of the decoder.");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        put_labelled(out, "hearth_decoder_state", "state", states[i], (size_t)b.state == i);
    put_count(out, "gauge", "hearth_kv_pages", "Pages of the KV cache.", e->pages_total);
    put_count(out, "gauge", "hearth_kv_pages_used", "Pages held by running requests.", e->pages_used);
    put_count(out, "gauge", "hearth_kv_pages_cached", "Pages of the prefix cache, free when needed.",
              e->pages_cached);
    put_count(out, "gauge", "hearth_kv_window_pages",
              "Pages of the layers that see a window alone; 0: all layers are in hearth_kv_pages.",
              e->windows_total);
    put_count(out, "gauge", "hearth_kv_window_pages_used", "Window pages held by running requests.",
              e->windows_used);
    put_count(out, "gauge", "hearth_kv_window_pages_cached",
              "Window pages of the prefix cache, free when needed.", e->windows_cached);
    put_count(out, "gauge", "hearth_kv_bytes", "Bytes of the KV cache.", e->kv_bytes);
    put_count(out, "gauge", "hearth_recurrent_state_bytes",
              "Bytes of recurrent states, of slots and snapshots; 0: no layer is recurrent.", b.state_bytes);
    put_count(out, "gauge", "hearth_recurrent_snapshots", "Room for snapshots of recurrent states.",
              e->snapshots_total);
    put_count(out, "gauge", "hearth_recurrent_snapshots_kept",
              "Snapshots of recurrent states that the prefix cache keeps.", e->snapshots_kept);
    put_count(out, "gauge", "hearth_device_memory_bytes", "Memory the decoder uses.", b.memory_used);
    put_count(out, "gauge", "hearth_device_scratch_bytes", "Memory the decoder uses for activations.",
              b.scratch_bytes);
    put_count(out, "gauge", "hearth_sampling_bytes", "Memory taken to draw tokens with further filters.",
              engine_draw_bytes(s->generator->model->engine));
    put_head(out, "hearth_model_info", "gauge", "1, with the model, backend and device in the labels.");
    buf_puts(out, "hearth_model_info{model=\"");
    put_label_text(out, model_config(s->generator->model->model)->name);
    buf_puts(out, "\",quantization=\"");
    put_label_text(out, model_config(s->generator->model->model)->quantization);
    buf_printf(out, "\",backend=\"%s\",device=\"", b.name);
    put_label_text(out, b.device);
    buf_printf(out, "\",fingerprint=\"%s\"} 1\n", s->generator->model->fingerprint);
}

/* RssAnon of /proc/self/status: what is the process's own, not its program file. */
static uint64_t anonymous_memory(void)
{
    static const char name[] = "RssAnon:";
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

static void put_process(struct buf *out, const struct http_server *s)
{
    static const enum server_state states[] = {SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_STALLED,
                                               SERVER_SUSPENDED};
    put_head(out, "hearth_state", "gauge", "1 for the state that /health shows.");
    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        put_labelled(out, "hearth_state", "state", server_state_name(states[i]),
                     s->generator->state == states[i]);
    if (s->api->admin) {
        struct swap_view v;
        s->api->admin->view(s->api->admin_context, &v);
        put_head(out, "hearth_model_swaps_total", "counter", "Model swaps, by outcome.");
        put_labelled(out, "hearth_model_swaps_total", "outcome", "done", v.n_done);
        put_labelled(out, "hearth_model_swaps_total", "outcome", "failed", v.n_failed);
    }
    put_value(out, "gauge", "hearth_uptime_seconds", "Time since the start.",
              (double)(clock_ns() - s->stats.started_ns) / 1e9);
    put_count(out, "gauge", "hearth_process_anonymous_bytes", "The process's own resident memory (RssAnon).",
              anonymous_memory());
    put_head(out, "hearth_build_info", "gauge", "1, with the version in a label.");
    buf_printf(out, "hearth_build_info{version=\"%s\"} 1\n", HEARTH_VERSION);
}

/* A figure of each model that requests may name. */
struct each {
    const char *name, *type, *help;
    uint64_t (*of)(const struct model_view *v);
};

static void begin_each(struct request *r, const struct model_list_part *p)
{
    const struct each *e = p->of;
    put_head(&r->out, e->name, e->type, e->help);
}

static void put_each(struct request *r, struct model_list *l, const struct model_view *v)
{
    const struct each *e = l->part->of;
    buf_printf(&r->out, "%s{model=\"", e->name);
    put_label_text(&r->out, v->name);
    buf_printf(&r->out, "\"} %llu\n", (unsigned long long)e->of(v));
}

static uint64_t is_loaded(const struct model_view *v)
{
    return v->model != NULL;
}

static uint64_t n_loads(const struct model_view *v)
{
    return v->n_loads;
}

static uint64_t n_failed(const struct model_view *v)
{
    return v->n_failed;
}

static uint64_t n_late(const struct model_view *v)
{
    return v->n_late;
}

static uint64_t n_running(const struct model_view *v)
{
    struct engine_stats e = {0};
    if (v->model)
        engine_stats(v->model->engine, &e);
    return e.running;
}

static uint64_t n_waiting(const struct model_view *v)
{
    struct engine_stats e = {0};
    if (v->model)
        engine_stats(v->model->engine, &e);
    return e.waiting;
}

#define EACH(...)                                                                                            \
    {                                                                                                        \
        .begin = begin_each, .put = put_each, .of = &(const struct each)                                     \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
static const struct model_list_part model_parts[] = {
    EACH("hearth_model_loaded", "gauge", "1 while the model is loaded.", is_loaded),
    EACH("hearth_model_requests_running", "gauge", "Requests that run on the model.", n_running),
    EACH("hearth_model_requests_waiting", "gauge", "Requests that wait in the model's queue.", n_waiting),
    EACH("hearth_model_loads_total", "counter", "Times the model was loaded.", n_loads),
    EACH("hearth_model_load_failures_total", "counter", "Times the model could not be loaded.", n_failed),
    EACH("hearth_model_wait_timeouts_total", "counter",
         "Requests that waited too long for the model to be loaded.", n_late),
    {0}};

/* --- vLLM's names, as its documentation lists them --- */

static void put_alias_histogram(struct buf *out, const char *name, const struct histogram *h)
{
    put_histogram(out, name, "Alias.", h);
}

static void put_aliases(struct buf *out, const struct http_server *s, const struct engine_stats *e)
{
    const struct stats *c = &s->stats;
    put_count(out, "gauge", "vllm:num_requests_running", "Alias.", e->running);
    put_count(out, "gauge", "vllm:num_requests_waiting", "Alias.", generator_load(s->generator).waiting);
    put_value(out, "gauge", "vllm:kv_cache_usage_perc", "Alias: 0 to 1.",
              e->pages_total ? (double)e->pages_used / e->pages_total : 0);
    put_head(out, "vllm:cache_config_info", "gauge", "Alias: tokens of a page, and pages.");
    buf_printf(out, "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%u\"} 1\n", KV_PAGE_TOKENS,
               e->pages_total);
    put_count(out, "counter", "vllm:num_preemptions_total", "Alias: an accepted request is never preempted.",
              0);
    put_count(out, "counter", "vllm:prefix_cache_queries_total", "Alias.", e->prompt_tokens);
    put_count(out, "counter", "vllm:prefix_cache_hits_total", "Alias.", e->cached_tokens);
    put_count(out, "counter", "vllm:prompt_tokens_total", "Alias.", e->prompt_tokens);
    put_count(out, "counter", "vllm:prompt_tokens_cached_total", "Alias.", e->cached_tokens);
    put_count(out, "counter", "vllm:generation_tokens_total", "Alias.", e->generated_tokens);
    put_head(out, "vllm:request_success_total", "counter", "Alias.");
    put_labelled(out, "vllm:request_success_total", "finished_reason", "stop",
                 c->finishes[STATS_EOS] + c->finishes[STATS_STOP]);
    put_labelled(out, "vllm:request_success_total", "finished_reason", "length", c->finishes[STATS_LENGTH]);
    put_labelled(out, "vllm:request_success_total", "finished_reason", "abort", c->cancelled);
    put_alias_histogram(out, "vllm:time_to_first_token_seconds", &c->ttft);
    put_alias_histogram(out, "vllm:inter_token_latency_seconds", &c->inter_token);
    put_alias_histogram(out, "vllm:e2e_request_latency_seconds", &c->total);
    put_alias_histogram(out, "vllm:request_queue_time_seconds", &c->queue);
}

/* --- llama-server's names --- */

static void put_llama_aliases(struct buf *out, const struct http_server *s, const struct engine_stats *e)
{
    double ratio = e->pages_total ? (double)e->pages_used / e->pages_total : 0;
    put_count(out, "counter", "llamacpp:prompt_tokens_total", "Alias: prompt tokens that were computed.",
              e->prompt_tokens - e->cached_tokens);
    put_count(out, "counter", "llamacpp:tokens_predicted_total", "Alias.", e->generated_tokens);
    put_count(out, "counter", "llamacpp:n_decode_total", "Alias: steps of the decoder.", e->steps);
    put_value(out, "gauge", "llamacpp:prompt_tokens_seconds", "Alias.", e->prompt_tokens_per_s);
    put_value(out, "gauge", "llamacpp:predicted_tokens_seconds", "Alias.", e->tokens_per_s);
    put_value(out, "gauge", "llamacpp:kv_cache_usage_ratio", "Alias: 0 to 1.", ratio);
    put_count(out, "gauge", "llamacpp:kv_cache_tokens", "Alias: room in the pages that are held.",
              (uint64_t)e->pages_used * KV_PAGE_TOKENS);
    put_count(out, "gauge", "llamacpp:requests_processing", "Alias.", e->running);
    put_count(out, "gauge", "llamacpp:requests_deferred", "Alias.", generator_load(s->generator).waiting);
}

void api_metrics(struct request *r)
{
    struct http_server *s = r->server;
    struct engine_stats e, own;
    generator_stats(s->generator, &e);
    put_process(&r->out, s);
    put_requests(&r->out, s, &e);
    put_tokens(&r->out, &e);
    put_disk(&r->out, &e);
    put_speculation(&r->out, &e);
    put_latencies(&r->out, &s->stats);
    if (s->generator->model) {
        engine_stats(s->generator->model->engine, &own);
        put_decoder(&r->out, s, &own);
    }
    if (s->cfg->metrics_aliases) {
        put_aliases(&r->out, s, &e);
        put_llama_aliases(&r->out, s, &e);
    }
    r->content_type = "text/plain; version=0.0.4; charset=utf-8";
    if (s->generator->source) /* last, as they may be many */
        model_list_reply(r, model_parts);
    else
        request_reply(r, 200);
}
