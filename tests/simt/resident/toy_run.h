/* toy_run.h - rounds of the toy decoder on the emulator, each answer compared with the reference. */
#pragma once
#include "toy_feed.h"

struct toy_run {
    struct toy_model model;
    struct rig rig;
    uint32_t n_blocks;
};

void toy_run_open(struct toy_run *r, uint32_t n_blocks, uint32_t n_stages);
void toy_run_close(struct toy_run *r);

/* Launches of two steps each, submitted before, then one more in which the last block gets lost in an op:
 * what a decoder does with all that, wrong numbers included, is a report. 0 or -1. */
int toy_run_seed(struct toy_run *r, uint32_t n_launches, uint32_t sm, uint64_t seed, int mute,
                 struct simt_report *report);
/* One launch of those alone, the seed says which, with few rows: for runs in great number. */
int toy_run_one(struct toy_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
