/* mutations.h - the kernels whose PTX a program of mutations runs, each with its case.
 * Thread: one. Memory: `context` belongs to the kernel's open() and close(). */
#pragma once
#include "simt/emulator/emulator.h"

struct mutated_kernel {
    const char *name; /* as in mutations.txt, without _smNN */
    void *(*open)(void);
    void (*close)(void *context);
    /* Runs one seed; a wrong result is a report too. Returns 0, or -1 with the report. */
    int (*run)(void *context, uint32_t sm, uint64_t seed, struct simt_report *report);
};

extern const struct mutated_kernel mutated_kernels[];
extern const uint32_t n_mutated_kernels;
