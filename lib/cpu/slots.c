#include "slots.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int slots_open(struct slots *s, uint32_t n_slots, uint32_t n_ctx, struct error *err)
{
    *s = (struct slots){.n_slots = n_slots, .n_ctx = n_ctx};
    s->pages_per_slot = (uint32_t)(((uint64_t)n_ctx + 63) / 64);
    s->slot = calloc(n_slots, sizeof *s->slot);
    s->tables = calloc((size_t)n_slots * s->pages_per_slot, sizeof *s->tables);
    s->windows = calloc((size_t)n_slots * s->pages_per_slot, sizeof *s->windows);
    s->history = calloc((size_t)n_slots * n_ctx, sizeof *s->history);
    s->biases = calloc((size_t)n_slots * STEP_MAX_BIAS, sizeof *s->biases);
    if (!s->slot || !s->tables || !s->windows || !s->history || !s->biases) {
        slots_close(s);
        return error_set(err, -ENOMEM, "%u slots of %u tokens: out of memory", n_slots, n_ctx);
    }
    for (uint32_t i = 0; i < n_slots; i++)
        s->slot[i].sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    return 0;
}

void slots_close(struct slots *s)
{
    free(s->slot);
    free(s->tables);
    free(s->windows);
    free(s->history);
    free(s->biases);
    *s = (struct slots){0};
}

static void slot_take(struct slots *s, const struct step *step, const struct step_slot *from)
{
    struct slot *slot = &s->slot[from->slot];
    assert(from->slot < s->n_slots && from->n_history <= from->start &&
           from->start <= s->n_ctx); /* step_check() */
    slot->sampling = from->sampling;
    slot->history_start = from->start - from->n_history;
    memcpy(s->history + (size_t)from->slot * s->n_ctx + slot->history_start,
           step->history + from->history_offset, from->n_history * sizeof *s->history);
    memcpy(s->biases + (size_t)from->slot * STEP_MAX_BIAS, step->biases + from->sampling.bias_offset,
           from->sampling.n_bias * sizeof *s->biases);
}

void slots_apply(struct slots *s, const struct step *step)
{
    for (uint32_t i = 0; i < step->n_edits; i++) {
        const struct step_table_edit *e = &step->edits[i];
        assert(e->slot < s->n_slots && e->index < s->pages_per_slot);
        size_t at = (size_t)e->slot * s->pages_per_slot + e->index;
        s->tables[at] = e->page;
        s->windows[at] = e->window > s->n_pages ? e->window - s->n_pages : 0;
    }
    for (uint32_t i = 0; i < step->n_slots; i++)
        slot_take(s, step, &step->slots[i]);
}

void slots_take_rows(struct slots *s, const struct step *step, int32_t *tokens)
{
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct step_row *row = &step->rows[i];
        assert(row->slot < s->n_slots && row->pos < s->n_ctx);
        tokens[i] = row->token == STEP_LAST_SAMPLED ? s->slot[row->slot].last_sampled : row->token;
        s->history[(size_t)row->slot * s->n_ctx + row->pos] = tokens[i];
    }
}
