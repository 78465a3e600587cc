#include "weights.h"
#include "model/graph.h"
#include "base/team.h"
#include "model/weight_use.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static size_t round64(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* The bytes of one weight's copy, or 0 with *err set. */
static size_t copy_size(const struct weight *w, uint8_t use, struct error *err)
{
    if (use == WEIGHT_VECTOR)
        return round64((size_t)w->n * w->k * sizeof(float));
    struct error why = {0};
    size_t size = matmul_pack_size(w->type, w->n, w->k, &why);
    if (!size)
        error_set(err, why.code ? why.code : -ENOTSUP, "%s: %s", w->name, why.text);
    return round64(size);
}

static size_t sum_sizes(const struct graph *g, const uint8_t *uses, struct error *err)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < model_n_weights(g->model); i++) {
        if (uses[i] == WEIGHT_UNUSED)
            continue;
        size_t size = copy_size(model_weight(g->model, i), uses[i], err);
        if (!size)
            return 0;
        sum += size;
    }
    return sum;
}

size_t weights_size(const struct graph *g, struct error *err)
{
    uint8_t *uses = weight_uses(g);
    if (!uses) {
        error_set(err, -ENOMEM, "weights: out of memory");
        return 0;
    }
    size_t size = sum_sizes(g, uses, err);
    free(uses);
    return size;
}

struct pack_job {
    struct team *team;
    const struct weight *weight;
    void *out;
    uint32_t n_groups;
    _Atomic uint32_t n_packed; /* groups packed by all members */
    const struct weights_progress *progress;
    double from, share; /* fractions of the whole work: before this matrix, and of it */
};

/* Reports every piece from the calling thread: a large matrix on a slow disk takes minutes. */
static void report_piece(struct pack_job *job, uint32_t member)
{
    const struct weights_progress *p = job->progress;
    double packed = atomic_load_explicit(&job->n_packed, memory_order_relaxed);
    if (member == 0 && p && p->report)
        p->report(p->context, job->from + job->share * packed / job->n_groups);
}

static void pack_member(void *context, uint32_t member)
{
    struct pack_job *job = context;
    const struct weight *w = job->weight;
    struct team_deal deal = team_deal(job->team, member, job->n_groups, 16);
    for (uint32_t first, last; team_next(&deal, &first, &last);) {
        matmul_pack(w->type, w->n, w->k, w->data, job->out, first, last);
        atomic_fetch_add_explicit(&job->n_packed, last - first, memory_order_relaxed);
        report_piece(job, member);
    }
}

/* Copies one weight. `job` has the state of the work and the progress callback. */
static void copy_weight(struct weights *w, const struct graph *g, struct pack_job *job, uint32_t index,
                        uint8_t use, uint8_t *out)
{
    const struct weight *from = model_weight(g->model, index);
    if (use == WEIGHT_VECTOR) {
        memcpy(out, from->data, (size_t)from->n * from->k * sizeof(float));
        w->vectors[index] = (const void *)out;
        return;
    }
    job->weight = from;
    job->out = out;
    job->n_groups = (from->n + MATMUL_ROWS - 1) / MATMUL_ROWS;
    team_run(job->team, pack_member, job);
    matmul_matrix_set(&w->matrices[index], from->type, from->n, from->k, out);
    const struct gguf *file = model_gguf(g->model);
    const struct gguf_tensor *tensor = gguf_find_tensor(file, from->name);
    if (tensor)
        gguf_drop_pages(file, tensor);
}

static int copy_all(struct weights *w, const struct graph *g, const uint8_t *uses, struct team *team,
                    const struct weights_progress *progress, struct error *err)
{
    size_t total = sum_sizes(g, uses, err), done = 0;
    if (!total)
        return err && err->code ? err->code : -ENOTSUP;
    int rc = memory_take(&w->block, total, "weights", err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < w->n; i++) {
        if (uses[i] == WEIGHT_UNUSED)
            continue;
        size_t size = copy_size(model_weight(g->model, i), uses[i], NULL);
        struct pack_job job = {.team = team,
                               .progress = progress,
                               .from = (double)done / (double)total,
                               .share = (double)size / (double)total};
        copy_weight(w, g, &job, i, uses[i], (uint8_t *)w->block.data + done);
        done += size;
        if (progress && progress->report)
            progress->report(progress->context, (double)done / (double)total);
    }
    return 0;
}

int weights_open(struct weights *w, const struct graph *g, struct team *team,
                 const struct weights_progress *progress, struct error *err)
{
    *w = (struct weights){.n = model_n_weights(g->model)};
    w->matrices = calloc(w->n ? w->n : 1, sizeof *w->matrices);
    w->vectors = calloc(w->n ? w->n : 1, sizeof *w->vectors);
    uint8_t *uses = weight_uses(g);
    int rc = w->matrices && w->vectors && uses ? copy_all(w, g, uses, team, progress, err)
                                               : error_set(err, -ENOMEM, "weights: out of memory");
    free(uses);
    if (rc < 0)
        weights_close(w);
    return rc;
}

void weights_close(struct weights *w)
{
    memory_give(&w->block);
    free(w->matrices);
    free(w->vectors);
    *w = (struct weights){0};
}
