/* decoder_run.h - drives an executor in tests, on the cpu unless told otherwise: opens a model, feeds tokens
 * of sequences in chunks, keeps the logits of every row. Page `index` of a slot is pages[slot][index]. */
#pragma once
#include "backend/executor.h"
#include "model/model.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct decoder_run_config {
    const char *path;
    enum executor_kind kind;
    enum backend_arithmetic arithmetic;
    enum kv_type kv_type;
    const char *isa;
    const char *cpu_tuning;
    const struct backend_ops *ops; /* NULL: cpu */
    const char *libcuda;
    uint32_t n_threads, n_slots, n_ctx;
    uint64_t kv_memory;
    uint32_t stall_ms;
    bool cuda_hops; /* backend.h */
    const int32_t *end_tokens;
    uint32_t n_end_tokens;
    uint32_t page_shift; /* page ids are rotated by this, so that they are not in order */
};

struct decoder_run {
    struct model *model;
    struct executor *x;
    uint32_t n_vocab, n_ctx, n_pages, page_shift, n_mapped[STEP_MAX_SLOTS];
    struct step *step;
    struct step_result results[STEP_MAX_LOGITS];
};

/* This CPU has the instruction set. */
static inline bool decoder_run_has_isa(const char *isa)
{
    struct backend_config cfg = {.isa = isa, .n_slots = 1, .n_ctx = 64, .n_threads = 1};
    struct backend *be = NULL;
    int rc = cpu_backend.open(&be, &cfg, NULL);
    if (rc == 0)
        cpu_backend.close(be);
    return rc == 0;
}

static inline void decoder_run_open(struct decoder_run *r, const struct decoder_run_config *c)
{
    struct error err = {0};
    memset(r, 0, sizeof *r);
    cr_assert_eq(model_open(&r->model, c->path, &err), 0, "%s", err.text);
    struct backend_config cfg = {
        .arithmetic = c->arithmetic,
        .n_threads = c->n_threads ? c->n_threads : 1,
        .isa = c->isa ? c->isa : "auto",
        .cpu_tuning = c->cpu_tuning,
        .libcuda = c->libcuda,
        .stall_ms = c->stall_ms ? c->stall_ms : 120000,
        .cuda_hops = c->cuda_hops,
        .kv_memory = c->kv_memory,
        .end_tokens = c->end_tokens,
        .n_end_tokens = c->n_end_tokens,
        .n_slots = c->n_slots ? c->n_slots : 8,
        .n_ctx = c->n_ctx ? c->n_ctx : 256,
        .kv_type = c->kv_type,
        .steps_in_flight = 2,
    };
    cr_assert_eq(executor_open(&r->x, c->kind, c->ops ? c->ops : &cpu_backend, &cfg, r->model, &err), 0, "%s",
                 err.text);
    struct backend_info info;
    executor_info(r->x, &info);
    r->n_vocab = model_config(r->model)->n_vocab;
    r->n_ctx = cfg.n_ctx;
    r->n_pages = info.n_pages;
    r->page_shift = c->page_shift;
    r->step = calloc(1, sizeof *r->step);
    cr_assert_not_null(r->step);
}

static inline void decoder_run_close(struct decoder_run *r)
{
    executor_close(r->x);
    model_close(r->model);
    free(r->step);
}

/* Maps the pages up to position `pos` of a slot, in the step being built. */
static inline void decoder_run_map(struct decoder_run *r, uint32_t slot, uint32_t pos)
{
    uint32_t per_slot = (r->n_ctx + 63) / 64;
    for (; r->n_mapped[slot] <= pos / 64; r->n_mapped[slot]++) {
        uint32_t page = (slot * per_slot + r->n_mapped[slot]) % r->n_pages;
        if (r->page_shift)
            page = (r->n_pages - 1 - page + r->page_shift) % r->n_pages;
        r->step->edits[r->step->n_edits++] =
            (struct step_table_edit){.slot = slot, .index = r->n_mapped[slot], .page = page};
    }
}

/* Adds a row to the step being built; with its logits if there is room for them. */
static inline uint32_t decoder_run_row(struct decoder_run *r, uint32_t slot, uint32_t pos, int32_t token,
                                       bool logits)
{
    struct step *s = r->step;
    struct step_row row = {.slot = slot, .pos = pos, .token = token, .logit_index = STEP_NO_LOGITS};
    if (logits && s->n_logits < STEP_MAX_LOGITS) {
        row.logit_index = (uint16_t)s->n_logits;
        s->logits[s->n_logits++] =
            (struct step_logit){.row = (uint16_t)s->n_rows, .target = -1, .flags = STEP_EXPORT};
    }
    s->rows[s->n_rows++] = row;
    decoder_run_map(r, slot, pos);
    return row.logit_index;
}

/* Runs the step built, waits for its results (r->results) and starts the next one. */
static inline void decoder_run_step(struct decoder_run *r)
{
    struct error err = {0};
    uint64_t done = 0;
    uint32_t n = 0;
    r->step->id++;
    cr_assert_eq(executor_submit(r->x, r->step, &err), 0, "%s", err.text);
    do {
        int got = executor_advance(r->x, r->results + n, STEP_MAX_LOGITS - (int)n, &done, &err);
        cr_assert_geq(got, 0, "%s", err.text);
        n += (uint32_t)got;
    } while (done < r->step->id || n < r->step->n_logits);
    uint64_t id = r->step->id;
    memset(r->step, 0, offsetof(struct step, rows));
    r->step->id = id;
}

/* Feeds tokens[0..n) to a slot in chunks; the logits of every row that had room for them go to
 * out[n][n_vocab], the others stay as they are. */
static inline void decoder_run_feed(struct decoder_run *r, uint32_t slot, const int32_t *tokens, uint32_t n,
                                    uint32_t chunk, float *out)
{
    for (uint32_t first = 0; first < n; first += chunk) {
        uint32_t last = first + chunk < n ? first + chunk : n, index[STEP_MAX_ROWS];
        for (uint32_t i = first; i < last; i++)
            index[i - first] = decoder_run_row(r, slot, i, tokens[i], true);
        decoder_run_step(r);
        for (uint32_t i = first; i < last && out; i++)
            if (index[i - first] != STEP_NO_LOGITS)
                memcpy(out + (size_t)i * r->n_vocab, executor_logits(r->x, index[i - first]),
                       r->n_vocab * sizeof *out);
    }
}

/* The logits of n tokens fed to slot 0 of a fresh decoder; free() them. */
static inline float *decoder_run_logits(const struct decoder_run_config *c, const int32_t *tokens, uint32_t n,
                                        uint32_t chunk)
{
    struct decoder_run r;
    decoder_run_open(&r, c);
    float *out = calloc((size_t)n * r.n_vocab, sizeof *out);
    cr_assert_not_null(out);
    decoder_run_feed(&r, 0, tokens, n, chunk, out);
    decoder_run_close(&r);
    return out;
}
