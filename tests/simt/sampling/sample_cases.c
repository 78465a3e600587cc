#include "sample_cases.h"
#include "sampler/sampler.h"
#include "sample_grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS   3
#define CONTEXT 160

struct source {
    uint64_t state;
};

static uint32_t draw(struct source *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((r->state >> 33) % below);
}

static float draw_unit(struct source *r)
{
    return (float)draw(r, 1u << 24) * 0x1p-24f;
}

static float draw_normal(struct source *r)
{
    float sum = 0.0f;
    for (int i = 0; i < 12; i++)
        sum += draw_unit(r);
    return sum - 6.0f;
}

#define DRAW_OF(r, ...)                                                                                      \
    (((const float[]){__VA_ARGS__})[draw(r, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))])

static void *room(size_t size)
{
    void *p = aligned_alloc(128, (size + 127) / 128 * 128 + 128);
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(p, 0, size);
    return p;
}

/* ---- what is made ---- */

enum kind { NORMAL, TIES, EQUAL, HUGE_ONES, ZEROS, PEAKED, FLAT, STEEP, NOT_FINITE, N_KINDS };

static float make_logit(struct source *r, enum kind kind)
{
    switch (kind) {
    case TIES:
        return (float)draw(r, 9) - 4.0f;
    case EQUAL:
        return -3.25f;
    case HUGE_ONES:
        return DRAW_OF(r, 3.4e38f, 3.2e38f, 1e38f, -3.4e38f, 1e30f, 7.0f, -1e-40f);
    case ZEROS:
        return DRAW_OF(r, 0.0f, -0.0f, 0.0f, -0.0f, 1e-42f, -1e-42f, -20.0f);
    case PEAKED:
        return draw(r, 50) ? -40.0f - draw_unit(r) : 9.0f + draw_unit(r);
    case FLAT:
        return 5.0f + draw_unit(r) * 1e-4f;
    case STEEP:
        return 80.0f * draw_normal(r);
    case NORMAL:
    case NOT_FINITE:
    case N_KINDS:
        break;
    }
    return 5.0f * draw_normal(r);
}

static void make_logits(struct source *r, float *x, uint32_t n)
{
    enum kind kind = draw(r, 3) ? draw(r, NOT_FINITE) : NORMAL;
    if (draw(r, 20) == 0)
        kind = NOT_FINITE;
    for (uint32_t i = 0; i < n; i++)
        x[i] = make_logit(r, kind);
    for (uint32_t i = 0; kind == NOT_FINITE && i < 1 + draw(r, 2); i++)
        x[draw(r, n)] = DRAW_OF(r, INFINITY, -INFINITY, NAN);
}

static int32_t make_top_k(struct source *r, uint32_t n)
{
    const int32_t all[] = {1, 2, 5, 20, 40, (int32_t)n - 1, (int32_t)n, (int32_t)n + 7, -1, (int32_t)n / 2};
    return all[draw(r, sizeof all / sizeof all[0])];
}

static struct step_sampling make_sampling(struct source *r, uint32_t n_vocab)
{
    struct step_sampling s = {STEP_SAMPLING_NEUTRAL, .penalty_last_n = 64};
    s.seed = (uint64_t)draw(r, 1u << 31) << 33 | draw(r, 1u << 31);
    s.temperature = draw(r, 3) ? DRAW_OF(r, 0.7f, 1.0f, 0.2f, 2.0f, 50.0f, 1e-6f, 1e-30f, 1e30f)
                               : DRAW_OF(r, 0.0f, -1.0f, NAN);
    if (draw(r, 2))
        s.top_k = make_top_k(r, n_vocab);
    if (draw(r, 2))
        s.top_p = DRAW_OF(r, 0.95f, 0.9f, 0.5f, 0.1f, 0.999f, 0.0f, -1.0f, 1.5f, 0.99999994f);
    if (draw(r, 3) == 0)
        s.min_p = DRAW_OF(r, 0.05f, 0.5f, 1.0f, 2.0f, 1e-12f, 1e-35f, -1.0f);
    if (draw(r, 3) == 0)
        s.typical_p = DRAW_OF(r, 0.9f, 0.5f, 0.1f, 0.0f, -1.0f, 0.999f, 1.5f);
    if (draw(r, 2)) {
        s.repetition_penalty = DRAW_OF(r, 1.0f, 1.1f, 1.5f, 0.5f, 1e-38f);
        s.presence_penalty = DRAW_OF(r, 0.0f, 0.5f, -1.0f, 3e38f);
        s.frequency_penalty = DRAW_OF(r, 0.0f, 0.5f, -0.25f);
        s.penalty_last_n = (uint32_t)DRAW_OF(r, 0, 1, 7, 64, 8192);
    }
    return s;
}

static void make_slot(struct sample_case *c, struct source *r, uint32_t slot)
{
    uint32_t n = c->shape.n_vocab, near = draw(r, 2) ? n : n < 9 ? n : 9;
    c->sampling[slot] = make_sampling(r, n);
    c->start[slot] = draw(r, 4) ? draw(r, 20) : CONTEXT - 1;
    for (uint32_t i = 0; i < CONTEXT; i++)
        c->history[slot * CONTEXT + i] = draw(r, 40) ? (int32_t)draw(r, near) : (int32_t)draw(r, 3) - 2;
    if (draw(r, 3))
        return;
    uint32_t n_bias = draw(r, 5) ? draw(r, 70) : STEP_MAX_BIAS;
    c->sampling[slot].n_bias = n_bias;
    bool all_out = draw(r, 5) == 0;
    for (uint32_t i = 0; i < n_bias; i++) {
        struct step_bias *b = &c->biases[slot * STEP_MAX_BIAS + i];
        b->token = draw(r, 40) ? (int32_t)draw(r, near) : (int32_t)draw(r, 2 * n) - 1;
        b->bias = all_out ? -INFINITY : DRAW_OF(r, 1.5f, -2.0f, 0.1f, 100.0f, -100.0f, -INFINITY, 3e38f);
        if (!all_out && draw(r, 100) == 0)
            b->bias = INFINITY;
    }
}

/* Fills one mask: a token, few, half of them, most or all; behind the vocabulary's end any bits. */
static void make_mask(struct source *r, uint32_t *mask, uint32_t n)
{
    uint32_t n_words = sample_mask_words(n), kind = draw(r, 5);
    for (uint32_t w = 0; w < n_words; w++) {
        uint32_t some = draw(r, 1u << 16) << 16 | draw(r, 1u << 16);
        const uint32_t words[] = {0, draw(r, 8) ? 0 : some, some, some | some << 1 | some >> 1, UINT32_MAX};
        mask[w] = words[kind];
    }
    if (n % 32)
        mask[n / 32] |= UINT32_MAX << n % 32;
    uint32_t least = draw(r, n); /* one that may follow */
    mask[least / 32] |= 1u << least % 32;
}

/* Puts something out of range. */
static void spoil(struct sample_case *c, struct source *r, struct step_logit *l)
{
    switch (draw(r, 6)) {
    case 5:
        l->mask = SAMPLE_CASE_MASKS + 1 + draw(r, 2) * 0x7fffffffu;
        break;
    case 0:
        c->step->rows[l->row].slot = SLOTS + draw(r, 2) * 0x7fffffffu;
        break;
    case 1:
        c->step->rows[l->row].pos = CONTEXT;
        break;
    case 2:
        l->target = (int32_t)c->shape.n_vocab;
        break;
    case 3:
        l->n_top = STEP_MAX_TOP + 1;
        break;
    default:
        l->row = (uint16_t)(draw(r, 2) ? c->step->n_rows : 0xffff);
    }
}

/* Logit rows are every other row of the step; some share a slot. */
static void make_step(struct sample_case *c, struct source *r)
{
    struct step *s = c->step;
    s->id = 77 + draw(r, 1000);
    s->n_logits = c->shape.n_logits;
    s->n_rows = 2 * s->n_logits + 1;
    for (uint32_t i = 0; i < s->n_rows; i++)
        s->rows[i] = (struct step_row){.slot = draw(r, SLOTS),
                                       .pos = draw(r, 2) ? draw(r, CONTEXT) : draw(r, 24),
                                       .logit_index = STEP_NO_LOGITS};
    for (uint32_t i = 0; i < s->n_logits; i++) {
        struct step_logit *l = &s->logits[i];
        l->row = (uint16_t)(2 * i + 1);
        l->target = draw(r, 5) ? -1 : (int32_t)draw(r, c->shape.n_vocab);
        l->n_top = (uint16_t)(draw(r, 2) ? 0 : draw(r, STEP_MAX_TOP + 1));
        l->flags = draw(r, 8);
        l->mask = draw(r, 3) ? 0 : 1 + draw(r, SAMPLE_CASE_MASKS);
        s->rows[l->row].logit_index = (uint16_t)i;
        make_logits(r, c->logits + (size_t)i * c->stride, c->shape.n_vocab);
        if (draw(r, 30) == 0)
            spoil(c, r, l);
    }
}

/* ---- what is expected ---- */

static bool is_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static int32_t reference_pick(struct sample_case *c, const struct step_row *row,
                              const struct step_logit *want, const float *logits)
{
    bool bans = want->flags & STEP_BAN_END;
    uint32_t start = c->start[row->slot], n = row->pos + 1;
    struct sampler_input in = {
        .logits = logits,
        .n_vocab = c->shape.n_vocab,
        .set = &c->sampling[row->slot],
        .biases = c->biases + (size_t)row->slot * STEP_MAX_BIAS,
        .history = c->history + (size_t)row->slot * CONTEXT + start,
        .n_history = n > start ? n - start : 0,
        .banned = bans ? c->end_tokens : NULL,
        .n_banned = bans ? 3 : 0,
        .position = row->pos + 1,
        .mask = want->mask ? c->masks + (size_t)(want->mask - 1) * sample_mask_words(c->shape.n_vocab) : NULL,
    };
    return sampler_pick(&in, c->sampler);
}

/* As decoder_choose() of lib/cpu/cpu_step.c; what is out of range fails its row. */
static void reference(struct sample_case *c, uint32_t i)
{
    const struct step_logit *want = &c->step->logits[i];
    const struct step_row *row = &c->step->rows[want->row < STEP_MAX_ROWS ? want->row : 0];
    const float *logits = c->logits + (size_t)i * c->stride;
    uint32_t n = c->shape.n_vocab;
    struct step_result *r = &c->wanted[i];
    memset(r, 0, sizeof *r);
    r->step = c->step->id;
    r->logit_index = i;
    r->flags = STEP_RESULT_NOT_FINITE;
    if (want->row >= c->step->n_rows)
        return;
    r->slot = row->slot;
    r->pos = row->pos;
    r->flags = want->target >= 0 ? STEP_RESULT_TARGET : 0;
    bool in_range = row->slot < SLOTS && row->pos < CONTEXT && want->target < (int32_t)n;
    if (!in_range || want->n_top > STEP_MAX_TOP || want->mask > SAMPLE_CASE_MASKS || !is_finite(logits, n)) {
        r->flags |= STEP_RESULT_NOT_FINITE;
        return;
    }
    r->token = want->target >= 0 ? want->target : reference_pick(c, row, want, logits);
    if (!(want->flags & STEP_LOGPROB) && !want->n_top && want->target < 0)
        return;
    struct sampler_norm norm;
    sampler_norm(logits, n, &norm);
    r->logprob = sampler_logprob(&norm, logits[r->token]);
    r->n_top = want->n_top < n ? want->n_top : (uint16_t)n;
    sampler_top(logits, n, &norm, r->n_top, r->top);
}

/* ---- running ---- */

static void map(struct sample_case *c, void *p, size_t size, uint32_t flags, const char *name)
{
    simt_map(c->machine, p, size, flags, name);
}

static void map_all(struct sample_case *c)
{
    size_t n = (size_t)c->shape.n_logits * c->stride * sizeof(float);
    c->machine = simt_open();
    if (!c->machine)
        abort(); /* a test tool: nothing sensible is left to do */
    map(c, c->step, sizeof *c->step, SIMT_MAP_READ_ONLY, "step");
    map(c, c->logits, n, SIMT_MAP_READ_ONLY, "logits");
    map(c, c->exported, n, SIMT_MAP_HOST, "exported");
    map(c, c->masks, SAMPLE_CASE_MASKS * sample_mask_words(c->shape.n_vocab) * sizeof *c->masks,
        SIMT_MAP_HOST | SIMT_MAP_READ_ONLY, "masks");
    map(c, c->sampling, SLOTS * sizeof *c->sampling, SIMT_MAP_READ_ONLY, "sampling");
    map(c, c->biases, SLOTS * STEP_MAX_BIAS * sizeof *c->biases, SIMT_MAP_READ_ONLY, "biases");
    map(c, c->history, SLOTS * CONTEXT * sizeof *c->history, SIMT_MAP_READ_ONLY, "history");
    map(c, c->start, SLOTS * sizeof *c->start, SIMT_MAP_READ_ONLY, "start");
    map(c, c->scratch, c->scratch_bytes, 0, "scratch");
    map(c, c->end_tokens, sizeof c->end_tokens, SIMT_MAP_READ_ONLY, "end tokens");
    map(c, c->counters, sizeof c->counters, 0, "counters");
    map(c, c->guard, sizeof c->guard, 0, "guard");
    map(c, c->results, c->shape.n_logits * sizeof *c->results, 0, "results");
}

void sample_case_open(struct sample_case *c, struct sample_shape shape, uint64_t number)
{
    struct source r = {number * 0x9E3779B97F4A7C15u + 1};
    *c = (struct sample_case){.shape = shape, .stride = (shape.n_vocab + 31) / 32 * 32};
    for (int i = 0; i < 4; i++)
        draw(&r, 2);
    c->step = room(sizeof *c->step);
    c->logits = room((size_t)shape.n_logits * c->stride * sizeof(float));
    c->exported = room((size_t)shape.n_logits * c->stride * sizeof(float));
    uint32_t n_words = sample_mask_words(shape.n_vocab);
    c->masks = room((size_t)SAMPLE_CASE_MASKS * n_words * sizeof *c->masks);
    for (uint32_t i = 0; i < SAMPLE_CASE_MASKS; i++)
        make_mask(&r, c->masks + (size_t)i * n_words, shape.n_vocab);
    c->sampling = room(SLOTS * sizeof *c->sampling);
    c->biases = room(SLOTS * STEP_MAX_BIAS * sizeof *c->biases);
    c->history = room(SLOTS * CONTEXT * sizeof *c->history);
    c->start = room(SLOTS * sizeof *c->start);
    c->scratch_bytes = sample_scratch_bytes(shape.n_vocab, shape.n_logits);
    c->scratch = room(c->scratch_bytes);
    c->sampler = room(sampler_scratch_size(shape.n_vocab));
    for (uint32_t i = 0; i < 3; i++)
        c->end_tokens[i] = (int32_t)draw(&r, shape.n_vocab < 8 ? shape.n_vocab : 8);
    for (uint32_t i = 0; i < SLOTS; i++)
        make_slot(c, &r, i);
    make_step(c, &r);
    for (uint32_t i = 0; i < shape.n_logits; i++)
        reference(c, i);
    map_all(c);
}

void sample_case_close(struct sample_case *c)
{
    simt_close(c->machine);
    free(c->step);
    free(c->logits);
    free(c->exported);
    free(c->masks);
    free(c->sampling);
    free(c->biases);
    free(c->history);
    free(c->start);
    free(c->scratch);
    free(c->sampler);
}

static uint64_t at(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static int wrong(struct simt_report *report, uint32_t i, const struct sample_case *c)
{
    const struct step_result *a = &c->results[i], *b = &c->wanted[i];
    const struct step_sampling *s = &c->sampling[b->slot < SLOTS ? b->slot : 0];
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text,
             "row %u: token %d, flags %u, n_top %u, logprob %a; wanted %d, %u, %u, %a (vocabulary %u, "
             "temperature %g, top_k %d, top_p %g, min_p %g, typical_p %g, %u biases, last_n %u, mask %u)",
             i, a->token, a->flags, a->n_top, (double)a->logprob, b->token, b->flags, b->n_top,
             (double)b->logprob, c->shape.n_vocab, (double)s->temperature, s->top_k, (double)s->top_p,
             (double)s->min_p, (double)s->typical_p, s->n_bias, s->penalty_last_n, c->step->logits[i].mask);
    return -1;
}

static int check(const struct sample_case *c, struct simt_report *report)
{
    for (uint32_t i = 0; i < c->shape.n_logits; i++) {
        size_t first = (size_t)i * c->stride;
        if (memcmp(&c->results[i], &c->wanted[i], sizeof c->wanted[i]) != 0)
            return wrong(report, i, c);
        bool export = c->step->logits[i].flags & STEP_EXPORT;
        const float *want = export ? c->logits + first : NULL;
        for (uint32_t k = 0; k < c->shape.n_vocab; k++) {
            uint32_t bits, have;
            memcpy(&have, &c->exported[first + k], 4);
            bits = 0xa5a5a5a5u;
            if (want)
                memcpy(&bits, &want[k], 4);
            if (have != bits) {
                snprintf(report->kind, sizeof report->kind, "export");
                snprintf(report->text, sizeof report->text, "row %u, logit %u", i, k);
                return -1;
            }
        }
    }
    return 0;
}

int sample_case_run(struct sample_case *c, const char *kernel, uint32_t sm, uint64_t seed, int mute,
                    struct simt_report *report)
{
    struct sample_grid_args args = {
        .in = {.step = at(c->step),
               .logits = at(c->logits),
               .results = at(c->results),
               .scratch = at(c->scratch),
               .exported = at(c->exported),
               .masks = at(c->masks),
               .end_tokens = at(c->end_tokens),
               .slots = {.history = at(c->history),
                         .start = at(c->start),
                         .sampling = at(c->sampling),
                         .biases = at(c->biases),
                         .n_slots = SLOTS,
                         .n_ctx = CONTEXT},
               .n_end_tokens = 3,
               .n_vocab = c->shape.n_vocab,
               .logits_stride = c->stride,
               .n_masks = SAMPLE_CASE_MASKS},
        .counters = at(c->counters),
        .guard = at(c->guard),
    };
    memset(c->scratch, 0xa5, c->scratch_bytes);
    memset(c->exported, 0xa5, (size_t)c->shape.n_logits * c->stride * sizeof(float));
    memset(c->results, 0xa5, sizeof c->results);
    memset(c->counters, 0, sizeof c->counters);
    memset(c->guard, 0, sizeof c->guard);
    bool grid = strcmp(kernel, "sample_grid") == 0;
    struct simt_launch launch = {.kernel = simt_find_kernel(kernel, sm),
                                 .args = &args,
                                 .n_threads = 32 * (c->shape.n_warps + grid),
                                 .n_blocks = c->shape.n_blocks,
                                 .shared_bytes = SAMPLE_WORK_BYTES,
                                 .seed = seed,
                                 .schedule = SIMT_N_SCHEDULES,
                                 .mute = mute};
    return simt_run(c->machine, &launch, report) < 0 ? -1 : check(c, report);
}
