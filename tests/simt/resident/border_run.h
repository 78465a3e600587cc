/* border_run.h - steps node by node on the emulator: step_io.c's two kernels, and add, mul and silu
 * between them, whose indices come from the step. */
#pragma once
#include "toy_model.h"

enum border_kernel { BORDER_OF_STEPS, BORDER_ADD, BORDER_MUL, BORDER_SILU };

struct border_run {
    struct toy_model model;
    struct rig rig;
    enum border_kernel muted; /* whose launches a mutation is for: it costs the others time alone */
};

void border_run_open(struct border_run *r, enum border_kernel muted);
void border_run_close(struct border_run *r);
/* A few steps of a feed, the last of which may be damaged, before its begin or behind it. All that they leave
 * behind must be what threads that take turns leave. 0, or -1 with the report. */
int border_run_seed(struct border_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
