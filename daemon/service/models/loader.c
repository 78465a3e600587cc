#include "loader.h"
#include "generation/constraint.h"
#include "chat/chat_template.h"
#include "generation/generator.h"
#include "backend/backend.h"
#include "backend/executor.h"
#include "gguf/gguf.h"
#include "base/log.h"
#include "model/model.h"
#include "kv/prefix_disk.h"
#include "prefix_store.h"
#include "tokenizer/tokenizer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_progress(void *context, double fraction)
{
    struct loader *l = context;

    atomic_store(&l->progress, (uint32_t)(fraction * 1000));
    atomic_fetch_add(&l->n_moves, 1);
}

static void count_move(void *context)
{
    struct loader *l = context;

    atomic_fetch_add(&l->n_moves, 1);
}

/* The engine's wake: until the warm-up is over it is this thread that waits, later it is the server. */
static void relay_wake(void *context)
{
    struct loader *l = context;

    if (atomic_load(&l->warm))
        l->options.wake(l->options.wake_context);
    else
        sem_post(&l->warm_up);
}

/* One greedy token: page faults, frequency, and a fault in the decoder all come before READY. */
static int warm_up(struct loader *l, struct error *err)
{
    int32_t bos = tokenizer_bos(l->runtime.tokenizer), prompt = bos >= 0 ? bos : 0;
    struct engine_token out;
    struct engine_request r = {
        .prompt = &prompt, .n_prompt = 1, .max_tokens = 1, .sampling = {STEP_SAMPLING_NEUTRAL}, .out = &out};
    int rc = engine_submit(l->engine, &r, err);

    while (rc == 0 && atomic_load(&r.state) != ENGINE_DONE)
        if (!engine_next(l->engine))
            sem_wait(&l->warm_up);
    if (rc < 0 || r.finish == ENGINE_EOS || r.finish == ENGINE_LENGTH)
        return rc;
    if (r.finish == ENGINE_NOT_FINITE)
        return error_set(err, -EBADMSG, "%s: the model's first logits are not finite numbers",
                         l->runtime.path);
    struct error fault = {0};
    bool faulted = engine_fault(l->engine, &fault);
    return error_set(err, -EIO, "the warm-up token failed: %s", faulted ? fault.text : "no result");
}

static void drop(struct loader *l)
{
    engine_close(l->engine);
    l->engine = NULL;
    count_move(l);
    prefix_disk_close(l->disk);
    l->disk = NULL;
    count_move(l);
    chat_template_close(l->chat);
    l->chat = NULL;
    constraints_close(l->constraints);
    l->constraints = NULL;
    runtime_close(&l->runtime);
}

static int load(struct loader *l, struct error *err)
{
    struct runtime_progress progress = {set_progress, l};
    const struct config *cfg = l->options.cfg;
    struct engine_config ec;
    assert(!l->engine && !l->disk);
    int rc = runtime_read(&l->runtime, cfg, l->path, err);

    if (rc < 0)
        return rc;
    rc = chat_template_open(&l->chat, cfg->chat_template, model_gguf(l->runtime.model), l->runtime.tokenizer,
                            err);
    if (rc < 0) {
        drop(l);
        return rc;
    }
    if (l->options.check)
        return 0;
    rc = runtime_load(&l->runtime, cfg, &progress, err);
    if (rc < 0) {
        drop(l);
        return rc;
    }
    runtime_engine_config(&l->runtime, cfg, &ec);
    l->disk =
        prefix_store_open(cfg, l->runtime.executor, l->runtime.hash, l->options.prefix_dir, count_move, l);
    ec.disk = l->disk;
    ec.wake = relay_wake;
    ec.context = l;
    rc = engine_open(&l->engine, l->runtime.executor, &ec, err);
    if (rc == 0 && engine_n_ctx(l->engine) < ec.n_ctx)
        log_warn("n_ctx is %u, not %u: kv_memory cannot hold more", engine_n_ctx(l->engine), ec.n_ctx);
    if (rc == 0 && engine_constrains(l->engine))
        rc = constraints_open(&l->constraints, l->runtime.tokenizer, model_config(l->runtime.model)->n_vocab,
                              cfg->body_memory / 4, err);
    if (rc == 0)
        rc = warm_up(l, err);
    if (rc == 0)
        engine_forget(l->engine); /* figures are of what clients asked for */
    if (rc < 0)
        drop(l);
    return rc;
}

static void run(void *context)
{
    struct loader *l = context;

    l->rc = load(l, &l->err);
    atomic_store(&l->warm, true);
    uv_async_send(l->finished);
}

static void on_finished(uv_async_t *async)
{
    struct loader *l = async->data;

    l->options.done(l->options.done_context);
}

static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

/* A handle outlives uv_close() by a turn of the loop, and so perhaps the loader. */
static int open_async(struct loader *l, uv_loop_t *loop)
{
    l->finished = malloc(sizeof *l->finished);
    if (!l->finished)
        return UV_ENOMEM;
    int rc = uv_async_init(loop, l->finished, on_finished);
    if (rc < 0)
        free(l->finished);
    else
        l->finished->data = l;
    return rc;
}

int loader_start(struct loader *l, uv_loop_t *loop, const struct loader_options *options, struct error *err)
{
    *l = (struct loader){.options = *options};
    snprintf(l->path, sizeof l->path, "%s", options->path);
    l->options.path = l->path;
    if (sem_init(&l->warm_up, 0, 0) < 0)
        return error_set(err, -errno, "cannot start the loading thread: %s", strerror(errno));
    int rc = open_async(l, loop);
    if (rc == 0) {
        rc = uv_thread_create(&l->thread, run, l);
        if (rc < 0)
            uv_close((uv_handle_t *)l->finished, on_closed);
    }
    if (rc < 0) {
        sem_destroy(&l->warm_up);
        return error_set(err, rc, "cannot start the loading thread: %s", uv_strerror(rc));
    }
    return 0;
}

uint64_t loader_moves(const struct loader *l)
{
    return atomic_load(&l->n_moves);
}

double loader_progress(const struct loader *l)
{
    return atomic_load(&l->progress) / 1000.0;
}

int loader_finish(struct loader *l, struct error *err)
{
    uv_thread_join(&l->thread);
    assert(atomic_load(&l->warm)); /* the engine wakes the server from now on */
    uv_close((uv_handle_t *)l->finished, on_closed);
    return l->rc < 0 ? error_set(err, l->rc, "%s", l->err.text) : 0;
}

void loader_close(struct loader *l)
{
    drop(l);
    sem_destroy(&l->warm_up); /* only now: the engine's thread may have been about to post it */
}

struct server_model loader_model(const struct loader *l)
{
    return (struct server_model){.engine = l->engine,
                                 .tokenizer = l->runtime.tokenizer,
                                 .model = l->runtime.model,
                                 .executor = l->runtime.executor,
                                 .why = l->runtime.why,
                                 .hash = l->runtime.hash,
                                 .constraints = l->constraints,
                                 .chat = l->chat};
}

int loader_check_size(const struct loader *l, const struct loader *on, struct error *err)
{
    struct backend_info info;
    executor_info(on->runtime.executor, &info);
    size_t size = gguf_file_size(model_gguf(l->runtime.model));
    if (!info.memory_total || size <= info.memory_total)
        return 0;
    return error_set(err, -ENOMEM, "%s has %zu MiB, the device has only %llu", l->path, size >> 20,
                     (unsigned long long)(info.memory_total >> 20));
}
