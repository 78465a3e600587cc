#include "runtime.h"
#include "engine/engine.h"
#include "backend/executor.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/team.h"
#include "model/model.h"
#include "gguf/quant.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DEFAULT_N_CTX 8192

void runtime_prepare(const struct config *cfg)
{
    if (cfg->backend != CONFIG_CPU)
        cuda_backend.prepare(cfg->cuda_cache);
}

/* NULL: the best that works. */
static const struct backend_ops *named_backend(const struct config *cfg)
{
    if (cfg->backend == CONFIG_CUDA)
        return &cuda_backend;
    bool is_cpu = cfg->backend == CONFIG_CPU || cfg->arithmetic == BACKEND_EXACT;
    return is_cpu ? &cpu_backend : NULL;
}

/* The file's lines are checked when it is read: they belong to a CPU and a number of threads. */
static int check_tuning(const char *path, struct error *err)
{
    struct stat st;

    if (!strchr(path, '/') || stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    return error_set(err, -EINVAL, "cpu_tuning: %s: %s", path, strerror(EISDIR));
}

/* The executor that is tried first. */
static enum executor_kind first_executor(const struct config *cfg)
{
    return cfg->executor == CONFIG_EXECUTOR_AUTO ? EXECUTOR_PERSISTENT : (enum executor_kind)cfg->executor;
}

int runtime_check(const struct config *cfg, struct error *err)
{
    const struct backend_ops *ops = named_backend(cfg);
    int rc = ops == &cuda_backend ? 0 : check_tuning(cfg->cpu_tuning, err);

    if (rc < 0 || !ops)
        return rc;
    return executor_check(first_executor(cfg), ops, (enum backend_arithmetic)cfg->arithmetic, err);
}

uint32_t runtime_default_n_ctx(const struct model_config *mc)
{
    return mc->n_ctx_train < DEFAULT_N_CTX ? mc->n_ctx_train : DEFAULT_N_CTX;
}

static uint32_t choose_n_ctx(const struct config *cfg, const struct model_config *mc)
{
    if (cfg->n_ctx == 0)
        return runtime_default_n_ctx(mc);
    if (cfg->n_ctx > mc->n_ctx_train)
        log_warn(
            "n_ctx %u exceeds the %u tokens the model was trained with: text beyond them may be nonsense",
            cfg->n_ctx, mc->n_ctx_train);
    return cfg->n_ctx;
}

/* Sorted. Those that the embedding has no row for cannot be sampled, and a backend would refuse them. */
static uint32_t end_tokens(const struct runtime *r, const int32_t **out)
{
    size_t n = tokenizer_ends(r->tokenizer, out);

    while (n > 0 && (uint32_t)(*out)[n - 1] >= model_config(r->model)->n_vocab)
        n--;
    return (uint32_t)n;
}

/* Where executor is auto and the decoder does not run the model, graph does. If graph fails too, its reason
 * is the one to tell. */
static int open_kind(struct runtime *r, const struct config *cfg, const struct backend_ops *ops,
                     const struct backend_config *bc, struct error *err)
{
    struct error why = {0};

    if (cfg->executor != CONFIG_EXECUTOR_AUTO || !ops->has_graph)
        return executor_open(&r->executor, first_executor(cfg), ops, bc, r->model, err);
    int rc = executor_open(&r->executor, EXECUTOR_PERSISTENT, ops, bc, r->model, &why);
    if (rc == 0)
        return 0;
    if (rc != -ENOTSUP)
        return error_set(err, rc, "%s", why.text);
    rc = executor_open(&r->executor, EXECUTOR_GRAPH, ops, bc, r->model, err);
    if (rc == 0)
        log_info("executor auto uses graph: %s", why.text);
    return rc;
}

/* The threads meet at each op: one without a core makes all the others wait. */
static void check_threads(const struct config *cfg)
{
    uint32_t cores = team_cores();

    if (cfg->threads > cores)
        log_warn("threads is %u, but this process may use %u core%s: text will be much slower than with auto",
                 cfg->threads, cores, cores == 1 ? "" : "s");
}

static int open_on(struct runtime *r, const struct config *cfg, const struct backend_ops *ops,
                   const struct backend_config *bc, struct error *err)
{
    struct backend_info info;
    int rc = open_kind(r, cfg, ops, bc, err);

    if (rc < 0)
        return rc;
    if (ops == &cpu_backend)
        check_threads(cfg);
    executor_info(r->executor, &info);
    if (info.note)
        log_info("%s", info.note);
    if (info.jit_reason)
        log_info("the driver compiles %u of %u kernels from PTX: %s", info.n_modules - info.n_cubins,
                 info.n_modules, info.jit_reason);
    if (info.registers)
        log_debug("the kernels have up to %u registers; %u of %u are machine code of the build",
                  info.registers, info.n_cubins, info.n_modules);
    if (info.local_bytes)
        log_warn("the driver's compiler spills: %u bytes of local memory in a kernel's thread, which is slow",
                 info.local_bytes);
    return 0;
}

/* cuda where that works, else cpu. A device that does not serve is something to warn of, none at all is not.
 */
static int open_best(struct runtime *r, const struct config *cfg, const struct backend_config *bc,
                     struct error *err)
{
    struct error why = {0};
    int rc = open_on(r, cfg, &cuda_backend, bc, &why);

    if (rc == 0)
        return 0;
    snprintf(r->why, sizeof r->why, "backend auto uses cpu: %s", why.text);
    if (rc != -ENODEV)
        log_warn("%s", r->why);
    return open_on(r, cfg, &cpu_backend, bc, err);
}

enum kv_type runtime_kv_type(const struct config *cfg, const struct model *m)
{
    if (cfg->kv_type != CONFIG_KV_AUTO)
        return (enum kv_type)cfg->kv_type;
    if (cfg->arithmetic == BACKEND_EXACT)
        return KV_F16;
    for (uint32_t i = 0; i < model_n_weights(m); i++) {
        uint32_t type = model_weight(m, i)->type;
        if (type != QUANT_F32 && type != QUANT_F16)
            return KV_BF16;
    }
    return KV_F16;
}

static int open_executor(struct runtime *r, const struct config *cfg, const struct runtime_progress *progress,
                         struct error *err)
{
    struct backend_config bc = {.arithmetic = (enum backend_arithmetic)cfg->arithmetic,
                                .n_threads = cfg->threads,
                                .isa = cfg->isa,
                                .cpu_tuning = cfg->cpu_tuning,
                                .libcuda = cfg->libcuda,
                                .cuda_cache = cfg->cuda_cache,
                                .cuda_device = (uint32_t)cfg->cuda_device,
                                .cuda_hops = !cfg->cuda_words,
                                .n_slots = cfg->slots,
                                .n_ctx = r->n_ctx,
                                .kv_type = runtime_kv_type(cfg, r->model),
                                .kv_memory = cfg->kv_memory,
                                .steps_in_flight = cfg->steps_in_flight,
                                .park_after_ms = cfg->park_after_ms,
                                .stall_ms = cfg->watchdog_ms,
                                .progress = progress ? progress->report : NULL,
                                .context = progress ? progress->context : NULL};

    bc.n_end_tokens = end_tokens(r, &bc.end_tokens);
    const struct backend_ops *ops = named_backend(cfg);
    return ops ? open_on(r, cfg, ops, &bc, err) : open_best(r, cfg, &bc, err);
}

/* Logs why the file of cpu_tuning was not taken or could not be written. Nothing was measured: no warning. */
static void log_tuning(const struct config *cfg, const struct backend_tuning *t)
{
    if (!t || !t->note || !strchr(cfg->cpu_tuning, '/'))
        return;
    if (strcmp(t->source, "measured") == 0)
        log_warn("cpu_tuning: %s", t->note);
    else
        log_info("cpu_tuning: %s", t->note);
}

int runtime_load(struct runtime *r, const struct config *cfg, const struct runtime_progress *progress,
                 struct error *err)
{
    struct backend_info info;
    int rc = open_executor(r, cfg, progress, err);

    if (rc == 0)
        rc = gguf_check_unchanged(model_gguf(r->model), err);
    if (rc < 0)
        return rc;
    executor_info(r->executor, &info);
    log_tuning(cfg, info.tuning);
    r->hash = hash_word(model_hash(r->model, info.weights_sum),
                        model_takes_long_factors(&model_config(r->model)->kinds[0].rope, r->n_ctx));
    model_release(r->model);
    return 0;
}

int runtime_read(struct runtime *out, const struct config *cfg, const char *path, struct error *err)
{
    struct runtime r = {0};

    snprintf(r.path, sizeof r.path, "%s", path);
    int rc = model_open(&r.model, path, err);
    if (rc == 0)
        rc = tokenizer_open(&r.tokenizer, model_gguf(r.model), err);
    if (rc < 0) {
        runtime_close(&r);
        return rc;
    }
    r.n_ctx = choose_n_ctx(cfg, model_config(r.model));
    *out = r;
    return 0;
}

int runtime_open(struct runtime *out, const struct config *cfg, const char *path,
                 const struct runtime_progress *progress, struct error *err)
{
    int rc = runtime_read(out, cfg, path, err);

    if (rc < 0)
        return rc;
    rc = runtime_load(out, cfg, progress, err);
    if (rc < 0)
        runtime_close(out);
    return rc;
}

void runtime_close(struct runtime *r)
{
    executor_close(r->executor);
    tokenizer_close(r->tokenizer);
    model_close(r->model);
    *r = (struct runtime){0};
}

void runtime_engine_config(const struct runtime *r, const struct config *cfg, struct engine_config *out)
{
    const int32_t *ends = NULL;
    uint32_t n_ends = end_tokens(r, &ends);

    *out = (struct engine_config){.n_slots = cfg->slots,
                                  .n_ctx = r->n_ctx,
                                  .queue_limit = cfg->queue_limit,
                                  .step_ms = cfg->step_ms,
                                  .steps_in_flight = cfg->steps_in_flight,
                                  .prefix_cache = true,
                                  .speculation = (enum engine_speculation)cfg->speculation,
                                  .end_tokens = ends,
                                  .n_end_tokens = n_ends};
}

void runtime_describe(const struct runtime *r, char *out, size_t room)
{
    struct backend_info info;

    executor_info(r->executor, &info);
    if (info.memory_total) { /* a device of its own */
        snprintf(out, room, "%s %s (%s)", info.name, info.device, info.isa);
        return;
    }
    int n = snprintf(out, room, "%s", info.name);
    if (info.isa && n >= 0 && (size_t)n < room)
        n += snprintf(out + n, room - (size_t)n, " %s", info.isa);
    if (info.n_threads && n >= 0 && (size_t)n < room)
        snprintf(out + n, room - (size_t)n, ", %u thread%s", info.n_threads, info.n_threads == 1 ? "" : "s");
}
