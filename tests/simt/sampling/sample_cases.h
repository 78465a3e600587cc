/* sample_cases.h - steps to sample, with generated logits, run by the kernels of sample.h on the emulator and
 * by the reference, lib/cpu/cpu_backend.c. Thread: one per case. */
#pragma once
#include "simt/emulator/emulator.h"
#include "abi/sample_layout.h"

/* Parameters of a case; the rest follows from its number. */
struct sample_shape {
    uint32_t n_vocab, n_logits;
    uint32_t n_blocks, n_warps; /* n_warps: compute warps */
};

struct sample_case {
    struct sample_shape shape;
    struct simt_machine *machine;
    struct step *step;
    float *logits, *exported;
    uint32_t stride;
    uint32_t *masks;
    struct step_sampling *sampling;
    struct step_bias *biases;
    int32_t *history;
    uint32_t *start;
    char *scratch;
    size_t scratch_bytes;
    int32_t end_tokens[3];
    uint32_t counters[2 * DECODER_LINE], guard[32];
    struct step_result results[STEP_MAX_LOGITS], wanted[STEP_MAX_LOGITS];
    void *sampler; /* the reference's scratch */
};
#define SAMPLE_CASE_MASKS 5

void sample_case_open(struct sample_case *c, struct sample_shape shape, uint64_t number);
void sample_case_close(struct sample_case *c);
/* Runs "sample_grid" or "argmax" once; a wrong result is a report too. Returns 0, or -1 with the report. */
int sample_case_run(struct sample_case *c, const char *kernel, uint32_t sm, uint64_t seed, int mute,
                    struct simt_report *report);
