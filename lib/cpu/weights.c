#include "weights.h"
#include "model/graph.h"
#include "model/model.h"
#include "base/memory.h"
#include "base/team.h"
#include "model/weight_reader.h"
#include "model/weight_use.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(MATMUL_ROWS == WEIGHT_GROUP, "groups are read as they are packed");

/* Adds the bytes of one weight's copy. */
static int add_size(const struct weight *w, uint8_t use, size_t *sum, struct error *err)
{
    struct error why = {0};
    if (use == WEIGHT_VECTOR) {
        *sum += round64((size_t)w->n * w->k * sizeof(float));
        return 0;
    }
    int rc = matmul_check_weight(w->type, w->n, w->k, &why);
    if (rc < 0)
        return error_set(err, rc, "%s: %s", w->name, why.text);
    *sum += round64(matmul_pack_size(w->type, w->n, w->k));
    return 0;
}

static int sum_sizes(const struct graph *g, const uint8_t *uses, size_t *size, struct error *err)
{
    size_t sum = 0;
    int rc = 0;
    for (uint32_t i = 0; i < model_n_weights(g->model) && rc == 0; i++)
        if (uses[i] != WEIGHT_UNUSED)
            rc = add_size(model_weight(g->model, i), uses[i], &sum, err);
    if (rc == 0)
        *size = sum;
    return rc;
}

int weights_size(const struct graph *g, size_t *size, struct error *err)
{
    uint8_t *uses = weight_uses(g);
    int rc = uses ? sum_sizes(g, uses, size, err) : error_set(err, -ENOMEM, "weights: out of memory");
    free(uses);
    return rc;
}

/* Buffer for the file's bytes of the groups that a member packs. */
struct pack_buffers {
    struct memory_block block;
    size_t size; /* of each member's */
};

struct pack_job {
    struct team *team;
    struct weight_reader *reader;
    const struct pack_buffers *buffers;
    uint32_t index;
    void *out;
    uint32_t n_groups;
    _Atomic uint32_t n_packed; /* groups packed by all members */
    const struct weights_progress *progress;
    double from, share; /* fractions of the whole work: before this matrix, and of it */
};

static int alloc_buffers(struct pack_buffers *b, const struct graph *g, const uint8_t *uses,
                         uint32_t n_members, struct error *err)
{
    for (uint32_t i = 0; i < model_n_weights(g->model); i++) {
        size_t size = uses[i] == WEIGHT_MATRIX
                          ? weight_groups_size(g->model, i, weight_groups_at_once(g->model, i))
                          : 0;
        b->size = size > b->size ? size : b->size;
    }
    b->size = round64(b->size);
    return memory_map(&b->block, b->size * n_members + 1, "reading weights", err);
}

/* A large matrix on a slow disk takes minutes: the calling thread reports every piece of it. */
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
    const struct weight *w = model_weight(job->reader->model, job->index);
    uint8_t *rows = (uint8_t *)job->buffers->block.data + member * job->buffers->size;
    struct team_deal deal =
        team_deal(job->team, member, job->n_groups, weight_groups_at_once(job->reader->model, job->index));
    for (uint32_t first, last; team_next(&deal, &first, &last);) {
        if (weight_reader_groups(job->reader, job->index, first, last, rows) < 0)
            return;
        matmul_pack(w->type, w->n, w->k, rows, job->out, first, last);
        atomic_fetch_add_explicit(&job->n_packed, last - first, memory_order_relaxed);
        report_piece(job, member);
    }
}

/* `job`: where the work stands, and who is told. */
static void copy_weight(struct weights *w, struct pack_job *job, uint8_t use, uint8_t *out)
{
    const struct weight *from = model_weight(job->reader->model, job->index);
    if (use == WEIGHT_VECTOR) {
        weight_reader_groups(job->reader, job->index, 0, weight_groups(job->reader->model, job->index), out);
        w->vectors[job->index] = (const void *)out;
        return;
    }
    job->out = out;
    job->n_groups = weight_groups(job->reader->model, job->index);
    team_run(job->team, pack_member, job);
    matmul_matrix_set(&w->matrices[job->index], from->type, from->n, from->k, out);
}

static void copy_all(struct weights *w, struct weight_reader *reader, const uint8_t *uses, struct team *team,
                     const struct pack_buffers *buffers, const struct weights_progress *progress,
                     size_t total)
{
    size_t done = 0;
    for (uint32_t i = 0; i < w->n && !reader->failed; i++) {
        if (uses[i] == WEIGHT_UNUSED)
            continue;
        size_t size = 0;
        int rc = add_size(model_weight(reader->model, i), uses[i], &size, NULL);
        assert(rc == 0); /* weights_size() has counted it */
        struct pack_job job = {.team = team,
                               .reader = reader,
                               .buffers = buffers,
                               .index = i,
                               .progress = progress,
                               .from = (double)done / (double)total,
                               .share = (double)size / (double)total};
        copy_weight(w, &job, uses[i], (uint8_t *)w->block.data + done);
        done += size;
        if (progress && progress->report)
            progress->report(progress->context, (double)done / (double)total);
    }
}

static int fill(struct weights *w, const struct graph *g, const uint8_t *uses, struct team *team,
                const struct weights_progress *progress, struct error *err)
{
    struct weight_reader reader;
    struct pack_buffers buffers = {0};
    size_t total = 0;
    int rc = sum_sizes(g, uses, &total, err);
    if (rc == 0)
        rc = memory_map(&w->block, total, "weights", err);
    if (rc == 0)
        rc = alloc_buffers(&buffers, g, uses, team_size(team), err);
    if (rc == 0) {
        weight_reader_open(&reader, g->model);
        copy_all(w, &reader, uses, team, &buffers, progress, total);
        rc = weight_reader_close(&reader, &w->sum, err);
    }
    memory_unmap(&buffers.block);
    return rc;
}

int weights_open(struct weights *w, const struct graph *g, struct team *team,
                 const struct weights_progress *progress, struct error *err)
{
    *w = (struct weights){.n = model_n_weights(g->model)};
    w->matrices = calloc(w->n ? w->n : 1, sizeof *w->matrices);
    w->vectors = calloc(w->n ? w->n : 1, sizeof *w->vectors);
    uint8_t *uses = weight_uses(g);
    int rc = w->matrices && w->vectors && uses ? fill(w, g, uses, team, progress, err)
                                               : error_set(err, -ENOMEM, "weights: out of memory");
    free(uses);
    if (rc < 0)
        weights_close(w);
    return rc;
}

void weights_close(struct weights *w)
{
    memory_unmap(&w->block);
    free(w->matrices);
    free(w->vectors);
    *w = (struct weights){0};
}
