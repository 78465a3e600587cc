/* bench_hops.c - a server, an engine and a client in this process, and a stream between them. */
#include "bench_hops.h"
#include "base/log.h"
#include "backend/executor.h"
#include "generation/generator.h"
#include "http/listener.h"
#include "model/model.h"
#include "service/models/model_file.h"
#include "service/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

struct rig {
    struct runtime runtime;
    struct engine *engine;
    struct config http; /* the server's: all defaults, since only this client asks it */
    uv_loop_t loop;
    uv_async_t ended; /* the client has */
    struct server *server;
    struct engine_times *engine_times;
    struct stream_times stream_times;
    struct hops_client client;
    struct error client_error;
    int client_rc;
    bool has_loop;
};

int bench_refuse_hops(struct error *err)
{
    return error_set(err, -EINVAL, "--hops: only executor persistent is measured");
}

/* ---- the client's thread ---- */

static void run_client(void *context)
{
    struct rig *r = context;

    r->client_rc = hops_client_run(&r->client, &r->client_error);
    uv_async_send(&r->ended);
}

static void on_drained(void *context)
{
    uv_stop(&((struct rig *)context)->loop);
}

static void on_ended(uv_async_t *ended)
{
    struct rig *r = ended->data;

    server_drain(r->server, r->http.drain_timeout_ms, on_drained, r);
}

/* ---- open ---- */

static char *make_body(const struct bench_test *test, uint32_t n_vocab)
{
    uint32_t n = bench_prompt_length(test);
    int32_t *prompt = calloc(n, sizeof *prompt);
    char *body = NULL;
    size_t size;
    FILE *f = prompt ? open_memstream(&body, &size) : NULL;

    if (f) {
        bench_fill_prompt(prompt, n, n_vocab);
        fputs("{\"prompt\":[", f);
        for (uint32_t i = 0; i < n; i++)
            fprintf(f, "%s%d", i ? "," : "", (int)prompt[i]);
        fprintf(f, "],\"max_tokens\":%u,\"temperature\":0,\"seed\":0,\"ignore_eos\":true,\"stream\":true}",
                bench_generated(test));
        bool failed = ferror(f);
        if (fclose(f) != 0 || failed) {
            free(body);
            body = NULL;
        }
    }
    free(prompt);
    return body;
}

/* Room for all tokens and, of the hand-overs, for the events that end the streams and what MHD takes in
 * parts. */
static int open_records(struct rig *r, const struct bench_test *test, uint32_t streams, struct error *err)
{
    struct hops_client *c = &r->client;
    size_t n = (size_t)streams * bench_generated(test), room = 2 * n + 64;

    c->n_streams = streams;
    c->n_tokens = bench_generated(test);
    c->body = make_body(test, model_config(r->runtime.model)->n_vocab);
    c->reads = calloc(n, sizeof *c->reads);
    r->engine_times = calloc(n, sizeof *r->engine_times);
    r->stream_times = (struct stream_times){.taken = calloc(room, sizeof(struct stream_taken)),
                                            .handed = calloc(room, sizeof(struct stream_handed)),
                                            .room = (uint32_t)room};
    bool whole = c->body && c->reads && r->engine_times && r->stream_times.taken && r->stream_times.handed;
    return whole ? 0 : error_set(err, -ENOMEM, "out of memory");
}

/* A port of the loopback interface that no configuration names. */
static int open_server(struct rig *r, struct error *err)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int rc = config_defaults(&r->http, err);

    if (rc == 0 && uv_loop_init(&r->loop) < 0)
        rc = error_set(err, -ENOMEM, "--hops: the event loop could not start");
    r->has_loop = rc == 0;
    if (rc == 0 && uv_async_init(&r->loop, &r->ended, on_ended) < 0)
        rc = error_set(err, -ENOMEM, "--hops: the event loop could not start");
    if (rc < 0)
        return rc;
    r->ended.data = r;
    int fd = listener_bind_tcp((const struct sockaddr *)&addr, sizeof addr, err);
    return fd < 0 ? fd : server_open(&r->server, &r->loop, &r->http, &fd, 1, err);
}

static int open_engine(struct rig *r, const struct config *cfg, struct error *err)
{
    struct engine_config ec;

    runtime_engine_config(&r->runtime, cfg, &ec);
    ec.wake = server_wake;
    ec.context = r->server;
    ec.times = r->engine_times;
    ec.n_times = r->client.n_streams * r->client.n_tokens;
    return engine_open(&r->engine, r->runtime.executor, &ec, err);
}

static void serve_model(struct rig *r)
{
    const struct server_model m = {.engine = r->engine,
                                   .tokenizer = r->runtime.tokenizer,
                                   .model = r->runtime.model,
                                   .executor = r->runtime.executor,
                                   .hash = r->runtime.hash};

    server_keep_times(r->server, &r->stream_times);
    server_set_model(r->server, &m);
    server_set_state(r->server, SERVER_READY);
}

static int open_rig(struct rig *r, const struct config *cfg, const struct bench_test *test, uint32_t streams,
                    struct error *err)
{
    char path[PATH_MAX];
    int rc = model_file_find(path, cfg->model, err);

    if (rc == 0)
        rc = runtime_open(&r->runtime, cfg, path, NULL, err);
    if (rc == 0 && executor_kind(r->runtime.executor) != EXECUTOR_PERSISTENT)
        rc = bench_refuse_hops(err);
    if (rc == 0)
        rc = bench_check_fit(test, r->runtime.n_ctx, err);
    if (rc == 0)
        rc = open_records(r, test, streams, err);
    if (rc == 0)
        rc = open_server(r, err);
    if (rc == 0)
        rc = open_engine(r, cfg, err);
    if (rc == 0) /* kv_memory may hold less */
        rc = bench_check_fit(test, engine_n_ctx(r->engine), err);
    if (rc == 0)
        serve_model(r);
    return rc;
}

/* ---- close ---- */

/* Ends all threads; then what they wrote may be read. */
static void stop(struct rig *r)
{
    if (r->server && server_end(r->server) < 0)
        abort(); /* the engine never let go: nothing may be freed */
    engine_close(r->engine);
    r->engine = NULL;
    server_free(r->server);
    r->server = NULL;
    if (!r->has_loop)
        return;
    if (r->ended.data)
        uv_close((uv_handle_t *)&r->ended, NULL);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_loop_close(&r->loop);
    r->has_loop = false;
}

static void close_rig(struct rig *r)
{
    stop(r);
    runtime_close(&r->runtime);
    config_free(&r->http);
    free(r->client.body);
    free(r->client.reads);
    free(r->engine_times);
    free(r->stream_times.taken);
    free(r->stream_times.handed);
}

/* ---- a test ---- */

static int run_streams(struct rig *r, struct error *err)
{
    uv_thread_t client;

    r->client.port = server_port(r->server);
    if (uv_thread_create(&client, run_client, r) < 0)
        return error_set(err, -ENOMEM, "--hops: the client's thread could not start");
    uv_run(&r->loop, UV_RUN_DEFAULT);
    uv_thread_join(&client);
    return r->client_rc < 0 ? error_set(err, r->client_rc, "%s", r->client_error.text) : 0;
}

/* The times of every token are known only if all saw the same ones. */
static int check_counts(const struct rig *r, struct error *err)
{
    const struct hops_client *c = &r->client;
    const struct stream_times *t = &r->stream_times;
    uint32_t n = c->n_streams * c->n_tokens;

    if (t->n_taken == n && t->n_bytes == c->n_bytes && r->engine_times[n - 1].published_ns)
        return 0;
    return error_set(err, -EIO,
                     "--hops: the server took %u tokens and sent %llu bytes, the client read %u and %llu",
                     t->n_taken, (unsigned long long)t->n_bytes, n, (unsigned long long)c->n_bytes);
}

static void describe(const struct runtime *r, struct bench_hops *out)
{
    const struct model_config *mc = model_config(r->model);
    char device[128];

    runtime_describe(r, device, sizeof device);
    snprintf(out->machine, sizeof out->machine, "%.100s · %.30s %.30s · %s", mc->name, mc->arch,
             mc->quantization, device);
    out->emulated = bench_is_emulated(r->executor);
    out->executor = (int)executor_kind(r->executor);
}

/* Measures with everything else closed: on a GPU the model may not fit twice. */
static int look_at(struct rig *r, const struct config *cfg, const struct bench_test *test,
                   struct bench_hops *out, struct error *err)
{
    struct hops_seen seen = {.n_streams = r->client.n_streams,
                             .n_tokens = r->client.n_tokens,
                             .ahead = out->by_device,
                             .engine = r->engine_times,
                             .taken = r->stream_times.taken,
                             .reads = r->client.reads,
                             .handed = r->stream_times.handed,
                             .n_handed = r->stream_times.n_handed};
    struct hops_device device = {0};
    int rc = out->by_device ? hops_device(cfg, test, out->emulated, &device, err) : 0;
    seen.kernel_ns = device.kernel_ns;
    seen.border_ns = device.border_ns;
    out->empty_us = (double)device.empty_ns * 1e-3;
    return rc < 0 ? rc : hops_figures(&seen, out, err);
}

int bench_hops(const struct config *cfg, const struct bench_test *test, uint32_t streams,
               struct bench_hops *out, struct error *err)
{
    struct rig r = {0};

    *out = (struct bench_hops){.n_streams = streams};
    bench_test_name(test, out->test, sizeof out->test);
    log_set_level(LOG_LEVEL_WARN); /* a line for each stream would say nothing */
    int rc = open_rig(&r, cfg, test, streams + 1, err);
    if (rc == 0) {
        describe(&r.runtime, out);
        out->by_device = !executor_program_ns(r.runtime.executor, NULL);
        rc = run_streams(&r, err);
    }
    stop(&r);
    runtime_close(&r.runtime);
    if (rc == 0)
        rc = check_counts(&r, err);
    if (rc == 0)
        rc = look_at(&r, cfg, test, out, err);
    close_rig(&r);
    return rc;
}
