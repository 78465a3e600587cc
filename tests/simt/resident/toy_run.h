/* toy_run.h - launches of the toy decoder on the emulator; all results are compared with the reference.
 * Thread: one per run. */
#pragma once
#include "toy_feed.h"

struct toy_run {
    struct toy_model model;
    struct rig rig;
    uint32_t n_blocks;
};

void toy_run_open(struct toy_run *r, uint32_t n_blocks, uint32_t n_stages);
void toy_run_close(struct toy_run *r);

/* Runs launches of two steps each, submitted before, then one more in which the last block gets lost in an
 * op. Any fault, wrong results included, is a report. Returns 0, or -1 with the report. */
int toy_run_seed(struct toy_run *r, uint32_t n_launches, uint32_t sm, uint64_t seed, int mute,
                 struct simt_report *report);
/* Runs one such launch, selected by the seed, with few rows: for many runs. */
int toy_run_one(struct toy_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
