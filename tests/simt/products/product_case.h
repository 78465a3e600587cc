/* product_case.h - checks that matrix products on the emulated device equal the cpu's in every bit: a case is
 * a random program of one to three products (types, shapes, epilogues, gains, biases, rows) on a random grid.
 * Thread: one per case. */
#pragma once
#include "simt/emulator/emulator.h"

struct product_case;

/* Parameters that are not left to the seed. */
struct product_wish {
    bool small;      /* few warps and short rows, for many runs */
    uint32_t n_rows; /* rows of the step: up to 8 make its products narrow; at most 240; 0: up to 40 */
    uint32_t k;      /* 0: any up to 3,072 */
    bool far;        /* the work area has room for no column of 768 values: n_rows is up to 8 */
    bool quantised;  /* gate and up pass their result on quantised; n_rows is up to 8, k a multiple of 64
                        from 128 to 2,048 */
    bool huge_first; /* the first value of every input is a thousand times the largest of the others */
};

struct product_case *product_case_open(uint64_t seed, struct product_wish wish);
void product_case_close(struct product_case *c);
/* Runs the case; may be repeated. A wrong result is a report too. Returns 0, or -1 with the report. */
int product_case_run(struct product_case *c, uint32_t sm, uint64_t seed, int mute,
                     struct simt_report *report);
/* Prints the case to stdout. */
void product_case_describe(const struct product_case *c);
