/* border_run.h - steps node by node on the emulator: step_io.c's two kernels with add, mul and silu between
 * them, whose indices come from the step.
 * Thread: one per run. */
#pragma once
#include "toy_model.h"

enum border_kernel {
    BORDER_OF_STEPS,
    BORDER_ADD,
    BORDER_MUL,
    BORDER_SILU,
    BORDER_GELU,
    BORDER_SCALE,
    BORDER_SOFT_CAP,
    BORDER_GATE,
    BORDER_SWIGLU_CLAMPED,
    BORDER_ROUTE,
    BORDER_EXPERT_SUM,
    BORDER_SIGMOID,
    BORDER_JOIN,
    BORDER_L2_NORM,
    BORDER_DELTA_GATE,
    BORDER_N_KERNELS
};

struct border_run {
    struct toy_model model;
    struct rig rig;
    enum border_kernel muted; /* the kernel whose launches get the mutation; the others run as they are */
};

void border_run_open(struct border_run *r, enum border_kernel muted);
void border_run_close(struct border_run *r);
/* Runs a few steps of a feed; the last may be damaged, before its begin or after it. All memory they write
 * must equal that of a run whose threads take turns in order. Returns 0, or -1 with the report. */
int border_run_seed(struct border_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
