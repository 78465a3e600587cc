/* attend_cases.h - made sequences and steps for the attention kernels, run on the emulator, and what lib/cpu
 * makes of them: results and cache must be the same in every bit. */
#pragma once
#include "simt/attend/attend_grid.h"
#include "emulator.h"
#include "abi/step.h"

#define ATTEND_CASE_SLOTS 5
#define ATTEND_CASE_STEPS 8

/* What a case is made from; the rest follows from its number. */
struct attend_shape {
    uint32_t head_dim, n_kv_heads, ratio, type;
    uint32_t rope_dim, neox, normed;
    uint32_t n_blocks, n_warps, work_bytes;
    uint32_t n_ctx, max_rows;
    uint32_t n_steps, before; /* tokens in the cache at first, at most */
    uint32_t chunk;           /* rows of a prefill chunk, at most; 0: lone rows only */
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
/* All steps by "attend_grid", or by the kernels of the nodes one after the other. A wrong result is a report
 * too. 0, or -1 with the report. */
int attend_case_run_grid(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                         struct simt_report *report);
int attend_case_run_nodes(struct attend_case *c, uint32_t sm, uint64_t seed, int mute,
                          struct simt_report *report);
