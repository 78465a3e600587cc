/* small_run.h - launches of the real decoder with the small model.
 * Thread: one per run. */
#pragma once
#include "small_model.h"

struct small_answer;

struct small_run {
    struct small_model model;
    struct rig rig;
    uint32_t n_steps, n_slots;
    struct small_answer *answers[256]; /* results of the most recent feeds */
};

/* A launch has n_steps steps, two at most; n_slots of a step's slots get rows. Of three blocks each chooses
 * the experts of few rows for itself. */
void small_run_open(struct small_run *r, uint32_t n_blocks, uint32_t n_stages, uint32_t n_steps,
                    uint32_t n_slots, bool dense);
void small_run_close(struct small_run *r);

/* Runs one launch of the feed's steps, which are written before it begins, or of other feeds' steps, see
 * small_run.c. A result, page or exported page that differs from a run whose threads take turns in order is a
 * report too. Returns 0, or -1 with the report. */
int small_run_seed(struct small_run *r, uint64_t feed, uint32_t sm, uint64_t seed, int mute,
                   struct simt_report *report);
