/* slots.h - the cpu decoder's state of each slot: page table, token history, last sampled token, sampling
 * settings.
 * Only steps change it, in their order; step_check() has checked their indices.
 * Thread: member 0 between ops writes, the team reads. Memory: allocated in slots_open(). Errors: -ENOMEM in
 * slots_open(). */
#pragma once
#include "base/error.h"
#include "abi/step.h"

#include <stddef.h>
#include <stdint.h>

struct slot {
    struct step_sampling sampling;
    uint32_t history_start; /* first position whose token is known */
    int32_t last_sampled;
};

struct slots {
    uint32_t n_slots, n_ctx, pages_per_slot;
    struct slot *slot;        /* [n_slots] */
    uint32_t *tables;         /* [n_slots][pages_per_slot] */
    uint32_t *windows;        /* the same of window pages, counted from the first of them */
    uint32_t n_pages;         /* window pages are numbered from here on in steps; 0 without them */
    int32_t *history;         /* [n_slots][n_ctx], by position; touched on use */
    struct step_bias *biases; /* [n_slots][STEP_MAX_BIAS] */
};

int slots_open(struct slots *s, uint32_t n_slots, uint32_t n_ctx, struct error *err);
void slots_close(struct slots *s);

/* slots_apply() applies the table edits and settings of a step. slots_take_rows() then sets tokens[i] to the
 * token of row i, and adds it to the history. */
void slots_apply(struct slots *s, const struct step *step);
void slots_take_rows(struct slots *s, const struct step *step, int32_t *tokens);

static inline const uint32_t *slots_table(const struct slots *s, uint32_t slot)
{
    return s->tables + (size_t)slot * s->pages_per_slot;
}

static inline const uint32_t *slots_windows(const struct slots *s, uint32_t slot)
{
    return s->windows + (size_t)slot * s->pages_per_slot;
}

static inline const int32_t *slots_history(const struct slots *s, uint32_t slot)
{
    return s->history + (size_t)slot * s->n_ctx;
}

static inline const struct step_bias *slots_biases(const struct slots *s, uint32_t slot)
{
    return s->biases + (size_t)slot * STEP_MAX_BIAS;
}
