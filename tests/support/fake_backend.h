/* fake_backend.h - a decoder without a model, for tests of the engine: its next token is a hash of the whole
 * sequence as it finds it through page table and pages. A page that is wrong or stale, a row that is missing
 * or out of place, a wrong LAST_SAMPLED, a wrong history: all give other tokens than fake_next() over the
 * true sequence. A page is FAKE_PAGE bytes, and can be exported and imported. Steps wait until advance(), and
 * while fake.held until fake.allowed of them. A prompt that holds FAKE_POISON has logits that are not finite.
 * With window pages each row must find there what the pages have of the tokens that its window covers. */
#pragma once
#include "backend/backend.h"
#include "backend/executor.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FAKE_VOCAB  5000
#define FAKE_POISON 4999
#define FAKE_LOG    4096
#define FAKE_SLOTS  96  /* whose rows the log tells apart */
#define FAKE_PAGE   512 /* 64 tokens and their positions: kv_page_size(&fake_layout) */

static const struct kv_layout fake_layout = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2, .type = KV_F16};
/* With window pages, which are as large as the rest of a page. */
static const struct kv_layout fake_window_layout = {
    .n_layers = 2, .n_kv_heads = 1, .head_dim = 2, .type = KV_F16};

struct fake_slot {
    struct step_sampling sampling;
    int32_t last;
    bool known;
    uint32_t bias_hash;
    uint32_t table[512];
    uint32_t windows[512]; /* numbers behind the pages, or 0 */
    bool mapped[512];
};

struct fake {
    struct backend be;
    uint32_t n_pages, n_slots, max_rows, n_ring, ring_size;
    uint32_t n_windows, window; /* fake_set_window(), before the engine opens */
    uint32_t rows_together;     /* of info(); 0: 8. Set before the engine opens */
    uint32_t rows_of_a_pass;    /* 0: 64 */
    int32_t (*token)[KV_PAGE_TOKENS];
    uint32_t (*pos)[KV_PAGE_TOKENS];
    struct fake_slot *slots;
    struct step *ring; /* [2], oldest first */
    uint64_t done;
    const int32_t *end_tokens;
    uint32_t n_end_tokens;
    uint64_t fail_at;         /* advance fails at this step; 0: never */
    uint64_t twice_at;        /* from this step on logit row 0 is answered twice and row 1 not; 0: never */
    uint32_t step_us, row_us; /* what a step takes, and each of its rows beyond the first */
    _Atomic bool lost;        /* every advance fails, with nothing to do as well */
    bool echo;     /* seven tokens of eight follow from the one before alone: the text repeats itself */
    bool alone;    /* a page serves one sequence only; set before the engine opens */
    uint32_t lazy; /* one advance in `lazy` does nothing; 0: none */
    uint32_t lazy_state;
    atomic_bool held;
    _Atomic uint32_t allowed;
    bool broken; /* what was asked makes no sense: the first reason */
    const char *why;
    /* The shapes of the steps. */
    _Atomic uint32_t n_log;
    struct fake_log {
        uint32_t n_rows, n_logits;
        uint16_t rows_of[FAKE_SLOTS], end_of[FAKE_SLOTS]; /* how many; the position behind the last */
    } log[FAKE_LOG];
    _Atomic uint64_t n_rows, n_copies, n_exports, n_imports;
    _Atomic uint32_t most_page_ops; /* of a step with rows */
    uint8_t transfer[2 * STEP_MAX_PAGE_OPS * FAKE_PAGE];
};

static inline uint64_t fake_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9FB21C651E98DF25u;
    return h ^ h >> 29;
}

static inline uint64_t fake_hash_token(uint64_t h, int32_t token, uint32_t pos)
{
    return fake_mix(fake_mix(h, (uint32_t)token), pos);
}

static inline uint32_t fake_hash_bias(const struct step_bias *b, uint32_t n)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < n; i++)
        h = fake_mix(h, (uint32_t)b[i].token);
    return n ? (uint32_t)h : 0;
}

static inline bool fake_echoes(uint64_t h)
{
    return fake_mix(h, 11) % 8 != 0;
}

static inline int32_t fake_echo(int32_t last)
{
    return 100 + (last * 7 + 11) % 10;
}

/* The token after a sequence whose tokens hash to h. About one in 64 is an end token (ids below 78). */
static inline int32_t fake_sample(uint64_t h, uint64_t seed, uint32_t bias_hash, bool ban, const int32_t *end,
                                  uint32_t n_end)
{
    for (uint64_t salt = seed;; salt += 1000003) {
        int32_t token = (int32_t)(fake_mix(fake_mix(h, salt), bias_hash) % (FAKE_VOCAB - 1));
        bool is_end = false;
        for (uint32_t i = 0; i < n_end; i++)
            is_end = is_end || end[i] == token;
        if (!ban || !is_end)
            return token;
    }
}

static inline float fake_logprob(uint64_t h, int32_t token)
{
    return -(float)(fake_mix(h, (uint32_t)token) % 1024) / 64.0f;
}

static inline int fake_broken(struct fake *f, const char *why)
{
    f->broken = true;
    f->why = f->why ? f->why : why;
    return -EIO;
}

static inline uint64_t fake_hash_slot(struct fake *f, uint32_t slot, uint32_t n, bool *poison)
{
    uint64_t h = 7;
    for (uint32_t p = 0; p < n; p++) {
        uint32_t page = f->slots[slot].table[p / KV_PAGE_TOKENS];
        int32_t token = f->token[page][p % KV_PAGE_TOKENS];
        h = fake_hash_token(h, token, f->pos[page][p % KV_PAGE_TOKENS]);
        *poison = *poison || token == FAKE_POISON;
    }
    return h;
}

static inline void fake_export(struct fake *f, uint32_t page, uint8_t *to)
{
    memcpy(to, f->token[page], sizeof *f->token);
    memcpy(to + sizeof *f->token, f->pos[page], sizeof *f->pos);
    atomic_fetch_add(&f->n_exports, 1);
}

static inline void fake_import(struct fake *f, uint32_t page, const uint8_t *from)
{
    memcpy(f->token[page], from, sizeof *f->token);
    memcpy(f->pos[page], from + sizeof *f->token, sizeof *f->pos);
    atomic_fetch_add(&f->n_imports, 1);
}

static inline int fake_transfer_page(struct fake *f, const struct step_page_op *op)
{
    size_t at = (size_t)op->host_offset * 64;
    if (f->alone || op->page >= f->n_pages + f->n_windows || at + FAKE_PAGE > sizeof f->transfer)
        return fake_broken(f, "a transfer out of range");
    if (op->kind == STEP_PAGE_EXPORT)
        fake_export(f, op->page, f->transfer + at);
    else
        fake_import(f, op->page, f->transfer + at);
    return 0;
}

static inline int fake_take_pages(struct fake *f, const struct step *s)
{
    if (s->n_rows && s->n_page_ops > atomic_load(&f->most_page_ops))
        atomic_store(&f->most_page_ops, s->n_page_ops);
    for (uint32_t i = 0; i < s->n_page_ops; i++) {
        const struct step_page_op *op = &s->page_ops[i];
        if (op->kind == STEP_PAGE_EXPORT || op->kind == STEP_PAGE_IMPORT) {
            if (fake_transfer_page(f, op) < 0)
                return -EIO;
            continue;
        }
        uint32_t n = f->n_pages + f->n_windows;
        bool same = (op->page < f->n_pages) == (op->from < f->n_pages);
        if (f->alone || op->kind != STEP_PAGE_COPY || op->page >= n || op->from >= n || !same ||
            op->page == op->from)
            return fake_broken(f, "a page op that makes no sense");
        memcpy(f->token[op->page], f->token[op->from], sizeof *f->token);
        memcpy(f->pos[op->page], f->pos[op->from], sizeof *f->pos);
        atomic_fetch_add(&f->n_copies, op->page < f->n_pages);
    }
    return 0;
}

static inline int fake_take_slots(struct fake *f, const struct step *s)
{
    for (uint32_t i = 0; i < s->n_edits; i++) {
        const struct step_table_edit *e = &s->edits[i];
        if (e->slot >= f->n_slots || e->index >= 512 || e->page >= f->n_pages)
            return fake_broken(f, "an edit out of range");
        if (e->window && (e->window < f->n_pages || e->window >= f->n_pages + f->n_windows))
            return fake_broken(f, "a window page out of range");
        f->slots[e->slot].table[e->index] = e->page;
        f->slots[e->slot].windows[e->index] = e->window;
        f->slots[e->slot].mapped[e->index] = true;
    }
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct step_slot *q = &s->slots[i];
        struct fake_slot *slot = &f->slots[q->slot];
        if (q->slot >= f->n_slots || q->history_offset + q->n_history > s->n_history ||
            q->sampling.bias_offset + q->sampling.n_bias > s->n_biases)
            return fake_broken(f, "settings out of range");
        slot->sampling = q->sampling;
        slot->last = -1;
        slot->known = true;
        slot->bias_hash = fake_hash_bias(s->biases + q->sampling.bias_offset, q->sampling.n_bias);
        bool penalties = q->sampling.presence_penalty != 0;
        uint32_t wanted = q->start < q->sampling.penalty_last_n ? q->start : q->sampling.penalty_last_n;
        if (q->n_history != (penalties ? wanted : 0))
            return fake_broken(f, "a history of the wrong length");
        for (uint32_t p = 0; p < q->n_history; p++) {
            uint32_t at = q->start - q->n_history + p, page = slot->table[at / KV_PAGE_TOKENS];
            if (f->token[page][at % KV_PAGE_TOKENS] != s->history[q->history_offset + p])
                return fake_broken(f, "a history that is not the sequence's");
        }
    }
    return 0;
}

/* Writes a row's token into its window page. */
static inline bool fake_write_window(struct fake *f, const struct step_row *r, int32_t token)
{
    uint32_t page = f->slots[r->slot].windows[r->pos / KV_PAGE_TOKENS];
    if (f->n_windows == 0 || page == 0)
        return f->n_windows == 0;
    f->token[page][r->pos % KV_PAGE_TOKENS] = token;
    f->pos[page][r->pos % KV_PAGE_TOKENS] = r->pos;
    return true;
}

/* True if the window pages have what the row sees: the tokens of its window. */
static inline bool fake_sees_window(const struct fake *f, const struct step_row *r)
{
    const struct fake_slot *slot = &f->slots[r->slot];
    for (uint32_t p = r->pos >= f->window ? r->pos - f->window + 1 : 0; f->n_windows && p <= r->pos; p++) {
        uint32_t page = slot->table[p / KV_PAGE_TOKENS], window = slot->windows[p / KV_PAGE_TOKENS];
        uint32_t at = p % KV_PAGE_TOKENS;
        if (window == 0 || f->pos[window][at] != p || f->token[window][at] != f->token[page][at])
            return false;
    }
    return true;
}

static inline int fake_take_rows(struct fake *f, const struct step *s)
{
    int64_t *last_pos = calloc(f->n_slots, sizeof *last_pos);
    struct fake_log *log = &f->log[atomic_load(&f->n_log) % FAKE_LOG];
    *log = (struct fake_log){.n_rows = s->n_rows, .n_logits = s->n_logits};
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const struct step_row *r = &s->rows[i];
        if (r->slot >= f->n_slots || r->pos / KV_PAGE_TOKENS >= 512 ||
            !f->slots[r->slot].mapped[r->pos / KV_PAGE_TOKENS] || !f->slots[r->slot].known)
            return free(last_pos), fake_broken(f, "a row out of range");
        if ((int64_t)r->pos + 1 <= last_pos[r->slot])
            return free(last_pos), fake_broken(f, "rows that do not ascend");
        last_pos[r->slot] = (int64_t)r->pos + 1;
        int32_t token = r->token == STEP_LAST_SAMPLED ? f->slots[r->slot].last : r->token;
        if (token < 0)
            return free(last_pos), fake_broken(f, "nothing was sampled last");
        uint32_t page = f->slots[r->slot].table[r->pos / KV_PAGE_TOKENS];
        f->token[page][r->pos % KV_PAGE_TOKENS] = token;
        f->pos[page][r->pos % KV_PAGE_TOKENS] = r->pos;
        if (!fake_write_window(f, r, token))
            return free(last_pos), fake_broken(f, "a row without a window page");
        if (r->slot < FAKE_SLOTS) {
            log->rows_of[r->slot]++;
            log->end_of[r->slot] = (uint16_t)(r->pos + 1);
        }
    }
    free(last_pos);
    for (uint32_t i = 0; i < s->n_rows; i++)
        if (!fake_sees_window(f, &s->rows[i]))
            return fake_broken(f, "a window that is not the sequence's");
    atomic_fetch_add(&f->n_log, 1);
    atomic_fetch_add(&f->n_rows, s->n_rows);
    return 0;
}

static inline int fake_answer(struct fake *f, const struct step *s, uint32_t i, struct step_result *out)
{
    const struct step_logit *l = &s->logits[i];
    if (l->row >= s->n_rows || s->rows[l->row].logit_index != i)
        return fake_broken(f, "a logit row that its row does not know");
    const struct step_row *row = &s->rows[l->row];
    struct fake_slot *slot = &f->slots[row->slot];
    bool poison = false;
    uint64_t h = fake_hash_slot(f, row->slot, row->pos + 1, &poison);
    int32_t token = l->target;
    if (token < 0)
        token = fake_sample(h, slot->sampling.seed, slot->bias_hash, l->flags & STEP_BAN_END, f->end_tokens,
                            f->n_end_tokens);
    if (l->target < 0 && f->echo && fake_echoes(h)) {
        uint32_t page = slot->table[row->pos / KV_PAGE_TOKENS];
        token = fake_echo(f->token[page][row->pos % KV_PAGE_TOKENS]);
    }
    *out = (struct step_result){.step = s->id,
                                .slot = row->slot,
                                .pos = row->pos,
                                .token = token,
                                .n_top = l->n_top,
                                .logit_index = i};
    if (l->target >= 0)
        out->flags |= STEP_RESULT_TARGET;
    else
        slot->last = token;
    if (poison)
        out->flags |= STEP_RESULT_NOT_FINITE;
    if (l->flags & STEP_LOGPROB)
        out->logprob = fake_logprob(h, token);
    for (uint32_t t = 0; t < l->n_top; t++)
        out->top[t] = (struct step_top){.token = (int32_t)t, .logprob = fake_logprob(h, (int32_t)t)};
    if (f->twice_at && s->id >= f->twice_at && i == 1) { /* the first row's answer again */
        out->logit_index = 0;
        out->slot = s->rows[s->logits[0].row].slot;
    }
    return 0;
}

static inline int fake_submit(struct backend *be, const struct step *step, struct error *err)
{
    struct fake *f = (struct fake *)be;
    (void)err;
    if (f->n_ring == f->ring_size)
        return -EAGAIN;
    memcpy(&f->ring[f->n_ring++], step, sizeof *step);
    return 0;
}

static inline bool fake_may_run(struct fake *f)
{
    if (f->n_ring == 0)
        return false;
    if (atomic_load(&f->held)) {
        if (atomic_load(&f->allowed) == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
            return false;
        }
        atomic_fetch_sub(&f->allowed, 1);
    }
    f->lazy_state = f->lazy_state * 1664525 + 1013904223;
    return f->lazy == 0 || (f->lazy_state >> 16) % f->lazy != 0;
}

static inline int fake_advance(struct backend *be, struct step_result *out, int max, uint64_t *steps_done,
                               struct error *err)
{
    struct fake *f = (struct fake *)be;
    int n = 0, rc = 0;
    if (atomic_load(&f->lost))
        return error_set(err, -EIO, "the fake device is lost");
    if (fake_may_run(f)) {
        const struct step *s = &f->ring[0];
        if (f->fail_at && s->id >= f->fail_at)
            return error_set(err, -EIO, "the fake decoder was told to fail");
        if ((int)s->n_logits > max)
            rc = fake_broken(f, "no room for the results");
        if (f->step_us)
            nanosleep(&(struct timespec){.tv_nsec = 1000L * (f->step_us + f->row_us * (s->n_rows - 1))},
                      NULL);
        rc = rc < 0 ? rc : fake_take_pages(f, s);
        rc = rc < 0 ? rc : fake_take_slots(f, s);
        rc = rc < 0 ? rc : fake_take_rows(f, s);
        for (uint32_t i = 0; rc == 0 && i < s->n_logits; i++)
            rc = fake_answer(f, s, i, &out[n++]);
        if (rc < 0)
            return error_set(err, rc, "step %llu: %s", (unsigned long long)s->id, f->why);
        f->done = s->id;
        memmove(&f->ring[0], &f->ring[1], --f->n_ring * sizeof *f->ring);
    }
    *steps_done = f->done;
    return n;
}

static inline void fake_info(const struct backend *be, struct backend_info *out)
{
    struct fake *f = (struct fake *)be;
    *out = (struct backend_info){.name = "fake",
                                 .device = "none",
                                 .isa = "none",
                                 .max_rows = f->max_rows,
                                 .rows_together = f->rows_together ? f->rows_together : 8,
                                 .rows_of_a_pass = f->rows_of_a_pass ? f->rows_of_a_pass : 64,
                                 .n_pages = f->n_pages,
                                 .n_windows = f->n_windows,
                                 .window = f->window,
                                 .window_bytes = f->n_windows ? FAKE_PAGE : 0,
                                 .kv = f->n_windows ? fake_window_layout : fake_layout,
                                 .kv_order = "fake",
                                 .shares_pages = !f->alone,
                                 .transfer = f->transfer,
                                 .transfer_bytes = sizeof f->transfer,
                                 .default_step_ms = 50};
}

static inline void fake_close(struct backend *be)
{
    struct fake *f = (struct fake *)be;
    if (!f)
        return;
    free(f->token);
    free(f->pos);
    free(f->slots);
    free(f->ring);
    free(f);
}

static const struct backend_sampling_ops fake_sampling;
static const struct backend_ops fake_ops = {.name = "fake",
                                            .sampling = &fake_sampling,
                                            .submit = fake_submit,
                                            .advance = fake_advance,
                                            .info = fake_info,
                                            .close = fake_close};

/* Gives the decoder window pages for texts that see `window` tokens; 0: none. Before the engine opens. */
static inline void fake_set_window(struct fake *f, uint32_t window, uint32_t steps_in_flight)
{
    uint32_t n = window ? f->n_slots * kv_windows_of(window, steps_in_flight * f->max_rows) : 0;
    f->n_windows = n;
    f->window = window;
    f->token = realloc(f->token, (f->n_pages + n) * sizeof *f->token);
    f->pos = realloc(f->pos, (f->n_pages + n) * sizeof *f->pos);
    memset(f->pos, 0xff, (f->n_pages + n) * sizeof *f->pos);
}

static inline struct fake *fake_open(uint32_t n_pages, uint32_t n_slots, const int32_t *end_tokens,
                                     uint32_t n_end)
{
    struct fake *f = calloc(1, sizeof *f);
    f->be.ops = &fake_ops;
    f->n_pages = n_pages;
    f->n_slots = n_slots;
    f->max_rows = 128;
    f->ring_size = 2;
    f->token = calloc(n_pages, sizeof *f->token);
    f->pos = calloc(n_pages, sizeof *f->pos);
    memset(f->pos, 0xff, n_pages * sizeof *f->pos);
    f->slots = calloc(n_slots, sizeof *f->slots);
    f->ring = calloc(2, sizeof *f->ring);
    f->end_tokens = end_tokens;
    f->n_end_tokens = n_end;
    return f;
}
