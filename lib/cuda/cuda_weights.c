#include "cuda_weights.h"
#include "base/team.h"
#include "model/graph.h"
#include "pack.h"
#include "gguf/quant.h"
#include "abi/tile.h"
#include "model/weight_reader.h"
#include "model/weight_use.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TILE_ROWS == WEIGHT_GROUP, "tiles are read as they are packed");

#define LOOK_BYTES    ((size_t)64 << 10)
#define STAGING_BYTES ((size_t)32 << 20) /* of each half: one is packed while the other is copied */

static size_t tile_bytes(const struct decoder_matrix *m)
{
    return (size_t)m->n_supers * m->super_bytes;
}

/* Finds whether BF16 holds all values of a router of floats; `room` has LOOK_BYTES. The first value that it
 * does not hold, mostly one of the first few, ends the reading. */
static int look_at_router(struct cuda_weights *w, const struct model *m, uint32_t index, void *room,
                          struct error *err)
{
    size_t size = model_weight(m, index)->size;
    w->as_bf16[index] = true;
    for (size_t at = 0; at < size && w->as_bf16[index]; at += LOOK_BYTES) {
        size_t n = size - at < LOOK_BYTES ? size - at : LOOK_BYTES;
        int rc = model_read_weight(m, index, at, room, n, err);
        if (rc < 0)
            return rc;
        w->as_bf16[index] = cuda_pack_is_bf16(room, n / sizeof(float));
    }
    return 0;
}

/* Looks at the routers alone, which are small: a matrix that is looked at is read twice, and by one thread.
 */
static int look_at_routers(struct cuda_weights *w, const struct graph *g, struct error *err)
{
    void *room = malloc(LOOK_BYTES);
    int rc = room ? 0 : error_set(err, -ENOMEM, "reading routers: out of memory");
    for (uint32_t i = 0; i < g->n_nodes && rc == 0; i++) {
        const struct graph_node *route = &g->nodes[i];
        if (route->op != GRAPH_ROUTE)
            continue;
        const struct graph_node *router = &g->nodes[route->inputs[0]];
        while (router->op == GRAPH_SCALE)
            router = &g->nodes[router->inputs[0]];
        if (router->op == GRAPH_MUL_MAT && model_weight(g->model, router->weight)->type == QUANT_F32)
            rc = look_at_router(w, g->model, router->weight, room, err);
    }
    free(room);
    return rc;
}

/* Places every weight of the graph in `a`, which may only count. */
static int place(struct cuda_weights *w, struct cuda_arena *a, const struct graph *g, const uint8_t *uses,
                 struct error *err)
{
    for (uint32_t i = 0; i < w->n; i++) {
        const struct weight *from = model_weight(g->model, i);
        struct error why = {0};
        if (uses[i] == WEIGHT_UNUSED)
            continue;
        if (uses[i] == WEIGHT_VECTOR) {
            w->vectors[i] = cuda_arena_take(a, (size_t)from->n * from->k * sizeof(float));
            continue;
        }
        int rc = cuda_pack_layout(from->type, from->n, from->k, &w->matrices[i], &why);
        if (rc < 0)
            return error_set(err, rc, "%s: %s", from->name, why.text);
        if (w->as_bf16[i])
            cuda_pack_as_bf16(&w->matrices[i]);
        w->matrices[i].tiles = cuda_arena_take(a, cuda_pack_size(&w->matrices[i]));
    }
    return 0;
}

int cuda_weights_open(struct cuda_weights *w, const struct graph *g, struct error *err)
{
    struct cuda_arena counted = {0};
    *w = (struct cuda_weights){.n = model_n_weights(g->model)};
    w->matrices = calloc(w->n ? w->n : 1, sizeof *w->matrices);
    w->vectors = calloc(w->n ? w->n : 1, sizeof *w->vectors);
    w->as_bf16 = calloc(w->n ? w->n : 1, sizeof *w->as_bf16);
    w->uses = weight_uses(g);
    if (!w->matrices || !w->vectors || !w->as_bf16 || !w->uses)
        return error_set(err, -ENOMEM, "weights: out of memory");
    int rc = look_at_routers(w, g, err);
    if (rc < 0)
        return rc;
    rc = place(w, &counted, g, w->uses, err);
    w->size = counted.used;
    return rc;
}

/* --- packing and copying --- */

struct upload {
    const struct cuda_driver *driver;
    struct weight_reader reader;
    struct team *team;
    struct cuda_pinned staging[2];
    void *streams[2]; /* of the copies out of each half */
    uint8_t *rows;    /* for each member: the file's bytes of the tiles that it packs */
    size_t rows_size; /* of each member's */
    uint32_t half;
    size_t done, total;
    const struct cuda_weights_progress *progress;
};

struct pack_job {
    struct upload *upload;
    uint32_t index; /* of the weight */
    const struct decoder_matrix *matrix;
    uint8_t *out;
    uint32_t first_tile, n_tiles;
    _Atomic uint32_t n_packed;
};

static void report(const struct upload *u, size_t more)
{
    if (u->progress && u->progress->report)
        u->progress->report(u->progress->context, (double)(u->done + more) / (double)u->total);
}

static void pack_member(void *context, uint32_t member)
{
    struct pack_job *job = context;
    struct upload *u = job->upload;
    const struct weight *w = model_weight(u->reader.model, job->index);
    uint8_t *rows = u->rows + member * u->rows_size;
    size_t bytes = tile_bytes(job->matrix);
    struct team_deal deal =
        team_deal(u->team, member, job->n_tiles, weight_groups_at_once(u->reader.model, job->index));
    for (uint32_t first, last; team_next(&deal, &first, &last);) {
        uint32_t from = job->first_tile + first, to = job->first_tile + last;
        if (weight_reader_groups(&u->reader, job->index, from, to, rows) < 0)
            return;
        cuda_pack(w->type, job->matrix, rows, job->out + first * bytes, from, to);
        uint32_t n = atomic_fetch_add_explicit(&job->n_packed, last - first, memory_order_relaxed);
        if (member == 0)
            report(u, n * bytes);
    }
}

/* Switches halves and waits until the copy from the new one is done. */
static int next_half(struct upload *u, struct error *err)
{
    u->half ^= 1;
    return CUDA_TRY(u->driver, err, cuStreamSynchronize, u->streams[u->half]);
}

static int send_half(struct upload *u, uint64_t to, size_t bytes, struct error *err)
{
    u->done += bytes;
    report(u, 0);
    return CUDA_TRY(u->driver, err, cuMemcpyHtoDAsync, to, u->staging[u->half].data, bytes,
                    u->streams[u->half]);
}

static int send_matrix(struct upload *u, uint32_t index, const struct decoder_matrix *m, struct error *err)
{
    size_t bytes = tile_bytes(m);
    uint32_t room = (uint32_t)(u->staging[0].size / bytes);
    int rc = 0;
    for (uint32_t first = 0; first < m->n_tiles && rc == 0 && !u->reader.failed; first += room) {
        uint32_t n = m->n_tiles - first < room ? m->n_tiles - first : room;
        rc = next_half(u, err);
        if (rc < 0)
            return rc;
        struct pack_job job = {.upload = u,
                               .index = index,
                               .matrix = m,
                               .out = u->staging[u->half].data,
                               .first_tile = first,
                               .n_tiles = n};
        team_run(u->team, pack_member, &job);
        rc = send_half(u, m->tiles + first * bytes, n * bytes, err);
    }
    return rc;
}

/* A half holds the largest vector, all groups of it: experts' biases have a row for each. */
static int send_vector(struct upload *u, uint32_t index, uint64_t to, struct error *err)
{
    int rc = next_half(u, err);
    if (rc < 0 || weight_reader_groups(&u->reader, index, 0, weight_groups(u->reader.model, index),
                                       u->staging[u->half].data) < 0)
        return rc;
    return send_half(u, to, model_weight(u->reader.model, index)->size, err);
}

static int send_all(struct upload *u, struct cuda_weights *w, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < w->n && rc == 0 && !u->reader.failed; i++) {
        if (w->uses[i] == WEIGHT_VECTOR)
            rc = send_vector(u, i, w->vectors[i], err);
        if (w->uses[i] == WEIGHT_MATRIX)
            rc = send_matrix(u, i, &w->matrices[i], err);
    }
    for (uint32_t h = 0; h < 2 && rc == 0; h++)
        rc = CUDA_TRY(u->driver, err, cuStreamSynchronize, u->streams[h]);
    return rc;
}

/* --- life --- */

static void upload_close(struct upload *u)
{
    for (uint32_t h = 0; h < 2; h++) {
        if (u->streams[h]) {
            u->driver->cuStreamSynchronize(u->streams[h]);
            u->driver->cuStreamDestroy(u->streams[h]);
        }
        cuda_pinned_give(&u->staging[h], u->driver);
    }
    team_close(u->team);
    free(u->rows);
}

/* The least that one half must hold: STAGING_BYTES or all there is, one tile of every matrix, every vector.
 */
static size_t half_size(const struct cuda_weights *w, const struct model *m)
{
    size_t half = w->block.size < STAGING_BYTES ? w->block.size : STAGING_BYTES;
    for (uint32_t i = 0; i < w->n; i++) {
        size_t least = w->uses[i] == WEIGHT_VECTOR   ? model_weight(m, i)->size
                       : w->uses[i] == WEIGHT_MATRIX ? tile_bytes(&w->matrices[i])
                                                     : 0;
        half = least > half ? least : half;
    }
    return half;
}

static int take_rows(struct upload *u, const struct cuda_weights *w, const struct model *m, struct error *err)
{
    for (uint32_t i = 0; i < w->n; i++) {
        size_t size = w->uses[i] == WEIGHT_MATRIX ? weight_groups_size(m, i, weight_groups_at_once(m, i)) : 0;
        u->rows_size = size > u->rows_size ? size : u->rows_size;
    }
    u->rows = malloc(u->rows_size * team_size(u->team) + 1);
    return u->rows ? 0 : error_set(err, -ENOMEM, "reading weights: out of memory");
}

static int upload_open(struct upload *u, const struct cuda_weights *w, const struct model *m,
                       uint32_t n_threads, struct error *err)
{
    size_t half = half_size(w, m);
    weight_reader_open(&u->reader, m);
    int rc = team_open(&u->team, n_threads, err);
    if (rc == 0)
        rc = take_rows(u, w, m, err);
    for (uint32_t h = 0; h < 2 && rc == 0; h++) {
        rc = cuda_pinned_take(&u->staging[h], u->driver, half, "copying the weights", err);
        if (rc == 0)
            rc = CUDA_TRY(u->driver, err, cuStreamCreate, &u->streams[h], CUDA_STREAM_NON_BLOCKING);
    }
    return rc;
}

int cuda_weights_load(struct cuda_weights *w, const struct graph *g, const struct cuda_driver *driver,
                      uint32_t n_threads, const struct cuda_weights_progress *progress, struct error *err)
{
    int rc = cuda_block_take(&w->block, driver, w->size, "weights", err);
    struct cuda_arena placed = {.base = w->block.address};
    struct upload u = {.driver = driver, .total = w->size, .progress = progress};
    if (rc == 0)
        rc = place(w, &placed, g, w->uses, err);
    if (rc == 0)
        rc = upload_open(&u, w, g->model, n_threads, err);
    if (rc == 0)
        rc = send_all(&u, w, err);
    if (rc == 0)
        rc = weight_reader_close(&u.reader, &w->sum, err);
    upload_close(&u);
    return rc;
}

void cuda_weights_close(struct cuda_weights *w, const struct cuda_driver *driver)
{
    cuda_block_give(&w->block, driver);
    free(w->matrices);
    free(w->vectors);
    free(w->as_bf16);
    free(w->uses);
    *w = (struct cuda_weights){0};
}

void cuda_weights_note(const struct cuda_weights *w, const struct graph *g, char *out, size_t room)
{
    static const struct {
        uint32_t type;
        const char *as; /* a type, or bits a weight */
    } converted[] = {{QUANT_Q3_K, "Q6_K"},       {QUANT_Q4_1, "Q5_1"},        {QUANT_IQ4_XS, "4.7 bits"},
                     {QUANT_IQ3_S, "4.7 bits"},  {QUANT_IQ3_XXS, "4.7 bits"}, {QUANT_IQ2_S, "3.7 bits"},
                     {QUANT_IQ2_XS, "3.7 bits"}, {QUANT_IQ2_XXS, "3.7 bits"}, {QUANT_IQ1_M, "3.7 bits"},
                     {QUANT_IQ1_S, "3.7 bits"},  {QUANT_TQ1_0, "3.7 bits"},   {QUANT_TQ2_0, "3.7 bits"},
                     {QUANT_F32, "BF16"}};
    size_t n = 0;
    *out = '\0';
    for (size_t c = 0; c < sizeof converted / sizeof *converted; c++) {
        bool found = false;
        for (uint32_t i = 0; i < w->n; i++)
            found = found || (w->matrices[i].n && model_weight(g->model, i)->type == converted[c].type &&
                              (converted[c].type != QUANT_F32 || w->as_bf16[i]));
        if (found && n < room)
            n +=
                (size_t)snprintf(out + n, room - n, "%s%s as %s",
                                 n ? ", " : "weights converted without loss: ", quant_name(converted[c].type),
                                 converted[c].as);
    }
}
