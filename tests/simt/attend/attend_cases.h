/* attend_cases.h - sequences and steps for the attention kernels, generated from a seed, run on the emulator
 * and compared with lib/cpu: results and cache must be the same in every bit.
 * Thread: one per case. */
#pragma once
#include "attend_grid.h"
#include "simt/emulator/emulator.h"
#include "abi/step.h"

#define ATTEND_CASE_SLOTS 5
#define ATTEND_CASE_STEPS 8

/* Parameters of a case; the rest follows from its number. */
struct attend_shape {
    uint32_t head_dim, n_kv_heads, ratio, type;
    uint32_t rope_dim, neox, normed;
    uint32_t n_blocks, n_warps, work_bytes;
    uint32_t n_ctx, max_rows;
    uint32_t n_steps, before; /* most tokens in the cache at the start */
    uint32_t chunk;           /* most rows of a prefill chunk; 0: lone rows only */
    /* Cases of the general attention (attend.h). */
    uint32_t window;
    float cap;
    bool temperatures, sinks, v_normed;
    bool cached; /* the steps' K and V are in the cache before */
    bool kept; /* so they are, and the rows say it (STEP_ROW_CACHED), whatever K and V they have; not only of
                  the general attention */
};

struct attend_case {
    struct attend_shape shape;
    struct simt_machine *machine;
    struct attend_grid_args args;
    struct step *steps; /* [n_steps], for the reference and the nodes */
    uint32_t lengths[ATTEND_CASE_SLOTS], starts[ATTEND_CASE_SLOTS];
    uint32_t lone[ATTEND_CASE_STEPS], n_rows[ATTEND_CASE_STEPS];
    float *wanted; /* [n_steps][max_rows][out_stride] */
    size_t kv_bytes;
    char *kv_begin; /* the device's pages before the first step */
    struct reference *reference;
    void *memory[24];
    uint32_t n_memory;
    uint32_t counters[3 * DECODER_LINE], guard[DECODER_LINE];
};

void attend_case_open(struct attend_case *c, struct attend_shape shape, uint64_t number);
void attend_case_close(struct attend_case *c);
/* Runs all steps by "attend_grid", or by the nodes' kernels one after the other. A wrong result is a report
 * too. Returns 0, or -1 with the report. */
/* Loses the last block before its attention, whose parts the others wait for: one must record it. */
int attend_case_lose(struct attend_case *c, uint32_t sm, uint64_t seed, struct simt_report *report);
int attend_case_run_grid(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                         struct simt_report *report);
int attend_case_run_nodes(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                          struct simt_report *report);
