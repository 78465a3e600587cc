/* api_stats.c - GET /stats: one JSON object with the figures of model, device, decoder, requests and cache.
 */
#include "admin.h"
#include "api.h"
#include "engine/engine.h"
#include "generation/generation.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "model_list.h"

static void put_model(struct buf *out, const struct http_server *s)
{
    const struct model_config *c = model_config(s->generator->model->model);
    buf_puts(out, "{\"name\":");
    json_put_str(out, c->name);
    buf_puts(out, ",\"arch\":");
    json_put_str(out, c->arch);
    buf_puts(out, ",\"quantization\":");
    json_put_str(out, c->quantization);
    buf_printf(out, ",\"chat_format\":\"%s\"", toolcall_format_name(s->generator->model->format));
    buf_printf(out, ",\"parameters\":%llu,\"bytes\":%zu,\"n_layers\":%u,\"n_ctx\":%u,\"n_vocab\":%u}",
               (unsigned long long)c->n_params, gguf_file_size(model_gguf(s->generator->model->model)),
               c->n_layers, s->generator->model->n_ctx, c->n_vocab);
}

static void put_choice(struct buf *out, const struct backend_choice *c)
{
    buf_printf(out, "{\"weights\":\"%s\",\"first\":%u,\"last\":", c->weights, c->first);
    if (c->last == UINT32_MAX)
        buf_puts(out, "null");
    else
        buf_printf(out, "%u", c->last);
    buf_printf(out,
               ",\"kernels\":\"%s\",\"shape\":\"%s\",\"hint\":\"%s\",\"ahead\":%u,\"measured\":%s,"
               "\"unsettled\":%s,\"gain\":",
               c->kernels, c->shape, c->hint, c->ahead, c->measured ? "true" : "false",
               c->unsettled ? "true" : "false");
    json_put_number(out, c->gain, 4);
    buf_puts(out, ",\"GBps\":");
    json_put_number(out, c->gbps, 4);
    buf_puts(out, "}");
}

static void put_tuning(struct buf *out, const struct backend_tuning *t)
{
    if (!t) {
        buf_puts(out, "null");
        return;
    }
    buf_printf(out, "{\"source\":\"%s\",\"note\":", t->source);
    json_put_str(out, t->note);
    buf_puts(out, ",\"ms\":");
    json_put_ms(out, t->ms);
    buf_printf(out, ",\"unsettled\":%u,\"again\":%u,\"choices\":[", t->n_unsettled, t->n_again);
    for (uint32_t i = 0; i < t->n_choices; i++) {
        buf_puts(out, i ? "," : "");
        put_choice(out, &t->choices[i]);
    }
    buf_puts(out, "],\"folds\":[");
    for (uint32_t i = 0; i < t->n_folds; i++)
        buf_printf(out, "%s{\"head_dim\":%u,\"by\":\"%s\"}", i ? "," : "", t->folds[i].head_dim,
                   t->folds[i].by_floats ? "floats" : "bf16");
    buf_puts(out, "]}");
}

static void put_device(struct buf *out, const struct http_server *s, const struct backend_info *b)
{
    buf_puts(out, "{\"backend\":");
    json_put_str(out, b->name);
    buf_puts(out, ",\"name\":");
    json_put_str(out, b->device);
    buf_puts(out, ",\"isa\":");
    json_put_str(out, b->isa);
    buf_printf(out,
               ",\"threads\":%u,\"memory_used\":%llu,\"memory_total\":%llu,\"scratch\":%llu,"
               "\"sampling\":%llu,\"why\":",
               b->n_threads, (unsigned long long)b->memory_used, (unsigned long long)b->memory_total,
               (unsigned long long)b->scratch_bytes,
               (unsigned long long)engine_draw_bytes(s->generator->model->engine));
    json_put_str(out, s->generator->model->why ? s->generator->model->why : "");
    buf_printf(out, ",\"registers\":%u,\"local_bytes\":%u,\"modules\":%u,\"cubins\":%u,\"jit_reason\":",
               b->registers, b->local_bytes, b->n_modules, b->n_cubins);
    json_put_str(out, b->jit_reason ? b->jit_reason : "");
    buf_puts(out, ",\"tuning\":");
    put_tuning(out, b->tuning);
    buf_puts(out, "}");
}

static void put_decoder(struct buf *out, const struct http_server *s, const struct backend_info *b,
                        const struct engine_stats *e)
{
    static const char *const names[] = {
        [BACKEND_IDLE] = "idle", [BACKEND_RUNNING] = "running", [BACKEND_PARKED] = "parked"};
    uint64_t now = clock_ns();
    buf_printf(out, "{\"executor\":\"%s\",\"arithmetic\":\"%s\",",
               config_executor_name((int)executor_kind(s->generator->model->executor)),
               config_arithmetic_name(s->cfg->arithmetic));
    buf_printf(out, "\"launches\":%llu,\"parks\":%llu,\"steps\":%llu,\"tokens\":%llu,\"launches_per_token\":",
               (unsigned long long)b->launches, (unsigned long long)b->parks, (unsigned long long)e->steps,
               (unsigned long long)e->generated_tokens);
    json_put_number(out, e->generated_tokens ? (double)b->launches / (double)e->generated_tokens : 0, 4);
    buf_printf(out, ",\"busy_ms\":%.3f,\"ops_per_step\":%u,\"heartbeat_age_ms\":", (double)b->busy_ns / 1e6,
               b->ops_per_step);
    if (b->state == BACKEND_RUNNING)
        json_put_ms(out, now > b->heartbeat_ns ? (double)(now - b->heartbeat_ns) / 1e6 : 0);
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"state\":\"%s\"}", names[b->state]);
}

static void put_kv(struct buf *out, const struct backend_info *b, const struct engine_stats *e)
{
    buf_printf(out,
               "{\"pages_total\":%u,\"pages_used\":%u,\"page_tokens\":%d,\"bytes\":%llu,\"type\":\"%s\","
               "\"window_pages\":%u,\"window_pages_used\":%u,\"window_pages_cached\":%u,"
               "\"states\":%llu,\"snapshots\":%u,\"snapshots_total\":%u,\"prefix_cache\":%s}",
               e->pages_total, e->pages_used, KV_PAGE_TOKENS, (unsigned long long)e->kv_bytes,
               config_kv_type_name((int)b->kv.type), e->windows_total, e->windows_used, e->windows_cached,
               (unsigned long long)b->state_bytes, e->snapshots_kept, e->snapshots_total,
               e->shares_prefixes ? "true" : "false");
}

static void put_disk(struct buf *out, const struct engine_stats *e)
{
    if (!e->has_disk) {
        buf_puts(out, "null");
        return;
    }
    buf_printf(out, "{\"pages\":%llu,\"bytes\":%llu,\"hits\":%llu,\"spilled\":%llu,\"errors\":%llu}",
               (unsigned long long)e->disk_pages, (unsigned long long)e->disk_bytes,
               (unsigned long long)e->disk_hits, (unsigned long long)e->disk_spilled,
               (unsigned long long)e->disk_errors);
}

static void put_speculation(struct buf *out, const struct engine_stats *e)
{
    buf_printf(out, "{\"enabled\":%s,\"drafted\":%llu,\"accepted\":%llu,\"acceptance\":",
               e->speculates ? "true" : "false", (unsigned long long)e->drafted,
               (unsigned long long)e->accepted);
    json_put_number(out, e->drafted ? (double)e->accepted / (double)e->drafted : 0, 4);
    buf_printf(
        out, ",\"forced\":%llu,\"steps\":%llu,\"steps_saved\":%llu,\"requests\":%llu,\"turned_off\":%llu}",
        (unsigned long long)e->forced, (unsigned long long)e->draft_steps, (unsigned long long)e->steps_saved,
        (unsigned long long)e->draft_requests, (unsigned long long)e->turned_off);
}

/* Counts the current model alone. */
static void put_loaded(struct buf *out, const struct http_server *s)
{
    struct engine_stats own, *e = &own;
    struct backend_info b;
    engine_stats(s->generator->model->engine, e);
    executor_info(s->generator->model->executor, &b);
    buf_puts(out, "\"model\":");
    put_model(out, s);
    buf_puts(out, ",\"device\":");
    put_device(out, s, &b);
    buf_puts(out, ",\"decoder\":");
    put_decoder(out, s, &b, e);
    buf_puts(out, ",\"kv\":");
    put_kv(out, &b, e);
    buf_puts(out, ",\"prefix_disk\":");
    put_disk(out, e);
    buf_puts(out, ",\"speculation\":");
    put_speculation(out, e);
}

static void put_swap(struct buf *out, const struct http_server *s)
{
    struct swap_view v = {0};
    if (s->api->admin)
        s->api->admin->view(s->api->admin_context, &v);
    if (!v.model) {
        buf_puts(out, ",\"swap\":null");
        return;
    }
    buf_printf(out, ",\"swap\":{\"state\":\"%s\",\"model\":", v.state);
    json_put_str(out, v.model);
    buf_puts(out, ",\"progress\":");
    json_put_number(out, v.progress, 4);
    buf_puts(out, "}");
}

static void begin_models(struct request *r, const struct model_list_part *p)
{
    (void)p;
    buf_puts(&r->out, ",\"models\":[");
}

static void put_each(struct request *r, struct model_list *l, const struct model_view *v)
{
    struct buf *out = &r->out;
    struct engine_stats e = {0};
    struct api_error none = {0};
    const struct generator *g = r->server->generator;
    if (v->model)
        engine_stats(v->model->engine, &e);
    bool first = l->i - 1 == g->source->find(g->source_context, "", &none);
    buf_puts(out, l->n ? ",{\"name\":" : "{\"name\":");
    json_put_str(out, v->name);
    buf_printf(out,
               ",\"default\":%s,\"state\":\"%s\",\"running\":%u,\"waiting\":%u,\"loads\":%llu,"
               "\"failed_loads\":%llu,\"timed_out\":%llu,"
               "\"unloads_in_ms\":",
               first ? "true" : "false", v->state, e.running, e.waiting, (unsigned long long)v->n_loads,
               (unsigned long long)v->n_failed, (unsigned long long)v->n_late);
    if (v->unloads_in_ms)
        buf_printf(out, "%llu}", (unsigned long long)v->unloads_in_ms);
    else
        buf_puts(out, "null}");
}

static void end_models(struct request *r, struct model_list *l)
{
    (void)l;
    buf_puts(&r->out, "]}\n");
}

static void put_percentiles(struct buf *out, const char *name, const struct histogram *h)
{
    buf_printf(out, "\"%s\":{\"p50\":", name);
    json_put_ms(out, histogram_percentile(h, 0.50));
    buf_puts(out, ",\"p95\":");
    json_put_ms(out, histogram_percentile(h, 0.95));
    buf_puts(out, ",\"p99\":");
    json_put_ms(out, histogram_percentile(h, 0.99));
    buf_puts(out, "}");
}

static void put_traffic(struct buf *out, const struct http_server *s, const struct engine_stats *e)
{
    const struct stats *c = &s->stats;
    buf_printf(out, ",\"requests\":{\"running\":%u,\"waiting\":%u,\"queue_limit\":%u,", e->running,
               generator_load(s->generator).waiting, s->cfg->queue_limit);
    buf_printf(
        out, "\"completed\":%llu,\"failed\":%llu,\"rejected\":%llu,\"cancelled\":%llu,\"timed_out\":%llu}",
        (unsigned long long)c->completed, (unsigned long long)c->failed, (unsigned long long)c->rejected,
        (unsigned long long)c->cancelled, (unsigned long long)c->timed_out);
    buf_printf(out, ",\"tokens\":{\"prompt\":%llu,\"prompt_cached\":%llu,\"generated\":%llu}",
               (unsigned long long)e->prompt_tokens, (unsigned long long)e->cached_tokens,
               (unsigned long long)e->generated_tokens);
    buf_puts(out, ",\"latency_ms\":{");
    put_percentiles(out, "queue", &c->queue);
    buf_puts(out, ",");
    put_percentiles(out, "ttft", &c->ttft);
    buf_puts(out, ",");
    put_percentiles(out, "inter_token", &c->inter_token);
    buf_puts(out, ",");
    put_percentiles(out, "total", &c->total);
    buf_puts(out, "},\"throughput\":{\"prompt_tokens_per_s\":");
    json_put_ms(out, e->prompt_tokens_per_s);
    buf_puts(out, ",\"tokens_per_s\":");
    json_put_ms(out, e->tokens_per_s);
    buf_puts(out, "}");
}

/* Each model that requests may name. */
static const struct model_list_part model_parts[] = {
    {.begin = begin_models, .put = put_each, .end = end_models}, {0}};

void api_stats(struct request *r)
{
    struct http_server *s = r->server;
    struct engine_stats e;
    struct buf *out = &r->out;
    buf_printf(out, "{\"version\":\"%s\",\"uptime_s\":%.3f,\"state\":\"%s\",", HEARTH_VERSION,
               (double)(clock_ns() - s->stats.started_ns) / 1e9, server_state_name(s->generator->state));
    generator_stats(s->generator, &e);
    if (s->generator->model) {
        put_loaded(out, s);
    } else {
        buf_puts(out, "\"model\":null,\"device\":null,\"decoder\":null,\"kv\":null,\"prefix_disk\":null,"
                      "\"speculation\":null");
    }
    put_swap(out, s);
    put_traffic(out, s, &e);
    buf_puts(out, ",\"warnings\":[");
    if (s->api->warning[0])
        json_put_str(out, s->api->warning);
    buf_puts(out, "]");
    if (s->generator->source) { /* last, as they may be many */
        model_list_reply(r, model_parts);
        return;
    }
    buf_puts(out, "}\n");
    request_reply(r, 200);
}
