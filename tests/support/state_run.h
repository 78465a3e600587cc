/* state_run.h - operations on the states of recurrent layers, driven through a decoder (decoder_run.h):
 * copies kept behind rows, sequences that begin with them, states that go through the host. Each sequence
 * goes on in the bits of the one that was never cut. */
#pragma once
#include "decoder_run.h"

enum { STATE_TOKENS = 100, STATE_VOCAB = 512 };

static inline const int32_t *state_text(void)
{
    static int32_t tokens[STATE_TOKENS];
    for (uint32_t i = 0, x = 77; i < STATE_TOKENS; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(x >> 16) % 256;
    }
    return tokens;
}

static inline void state_op(struct decoder_run *r, uint32_t kind, uint32_t page, uint32_t from, uint32_t pos)
{
    r->step->page_ops[r->step->n_page_ops++] =
        (struct step_page_op){.kind = kind, .page = page, .from = from, .host_offset = pos};
}

/* Rows [first, last) of a slot in one step; the logits of the last into out. */
static inline void state_feed(struct decoder_run *r, uint32_t slot, uint32_t first, uint32_t last, float *out)
{
    uint32_t index = 0;
    for (uint32_t i = first; i < last; i++)
        index = decoder_run_row(r, slot, i, state_text()[i], i + 1 == last);
    decoder_run_step(r);
    memcpy(out, executor_logits(r->x, index), STATE_VOCAB * sizeof *out);
}

/* A step keeps states behind three of its rows, two of them for slots; each sequence that begins with one of
 * them goes on as the first one does. Its pages are those of slot 0. */
static inline void state_check_snapshots(const struct decoder_run_config *c)
{
    static const uint32_t behind[3] = {1, 2, 40};
    float *wanted = decoder_run_logits(c, state_text(), STATE_TOKENS, 25), found[STATE_VOCAB];
    struct decoder_run r;
    decoder_run_open(&r, c);
    const uint32_t to[3] = {8 + 3, 1, 2};
    for (int i = 2; i >= 0; i--)
        state_op(&r, STEP_STATE_SAVE, to[i], 0, behind[i] - 1);
    state_feed(&r, 0, 0, STATE_TOKENS, found);
    cr_assert_eq(memcmp(found, wanted + (size_t)(STATE_TOKENS - 1) * STATE_VOCAB, sizeof found), 0);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t slot = i == 0 ? 3 : to[i];
        for (uint32_t page = 0; page < (STATE_TOKENS + 63) / 64; page++)
            r.step->edits[r.step->n_edits++] =
                (struct step_table_edit){.slot = slot, .index = page, .page = page};
        r.n_mapped[slot] = (STATE_TOKENS + 63) / 64;
        if (i == 0)
            state_op(&r, STEP_STATE_LOAD, slot, to[i], 0);
        for (uint32_t pos = behind[i]; pos < STATE_TOKENS; pos++) {
            uint32_t index = decoder_run_row(&r, slot, pos, state_text()[pos], pos + 1 == STATE_TOKENS);
            r.step->rows[r.step->n_rows - 1].flags = STEP_ROW_CACHED;
            if (pos % 30 != 29 && pos + 1 < STATE_TOKENS)
                continue;
            decoder_run_step(&r);
            if (pos + 1 == STATE_TOKENS)
                memcpy(found, executor_logits(r.x, index), sizeof found);
        }
        cr_assert_eq(memcmp(found, wanted + (size_t)(STATE_TOKENS - 1) * STATE_VOCAB, sizeof found), 0,
                     "state %u", i);
    }
    decoder_run_close(&r);
    free(wanted);
}

/* A state that was exported part by part is, when imported, the state that it was. */
static inline void state_check_exported(const struct decoder_run_config *c)
{
    float wanted[STATE_VOCAB], found[STATE_VOCAB];
    struct backend_info info;
    struct decoder_run r;
    decoder_run_open(&r, c);
    executor_info(r.x, &info);
    uint64_t part = kv_page_size(&info.kv), n_parts = (info.state_size + part - 1) / part;
    cr_assert(n_parts > 1 && n_parts * part > info.state_size); /* the last one is shorter */
    state_op(&r, STEP_STATE_SAVE, 8, 0, 39);
    state_feed(&r, 0, 0, 50, wanted);
    for (uint32_t i = 0; i < n_parts; i++)
        state_op(&r, STEP_STATE_EXPORT, 8, i, (uint32_t)(i * part / 64));
    decoder_run_step(&r);
    for (uint32_t i = 0; i < n_parts; i++)
        state_op(&r, STEP_STATE_IMPORT, 11, i, (uint32_t)(i * part / 64));
    decoder_run_step(&r);
    state_op(&r, STEP_STATE_LOAD, 0, 11, 0);
    state_feed(&r, 0, 40, 50, found);
    cr_assert_eq(memcmp(wanted, found, sizeof wanted), 0);
    decoder_run_close(&r);
}
