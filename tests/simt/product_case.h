/* product_case.h - matrix products on the emulated device equal the cpu's in every bit: a random program of
 * one to three products (types, shapes, epilogues, gains, biases, rows) on a random grid, each a case of its
 * own. */
#pragma once
#include "emulator.h"

struct product_case;

/* What is not left to the seed. */
struct product_wish {
    bool small;      /* few warps and short rows, for runs in great number */
    uint32_t n_rows; /* of the step: up to 8 make its products narrow; 0: any number */
    uint32_t k;      /* 0: any up to 3,072 */
    bool huge_first; /* the first value of every input is a thousand times the largest of the others */
};

struct product_case *product_case_open(uint64_t seed, struct product_wish wish);
void product_case_close(struct product_case *c);
/* As often as one likes. A wrong result is a report too. 0, or -1 with the report. */
int product_case_run(struct product_case *c, uint32_t sm, uint64_t seed, int mute,
                     struct simt_report *report);
/* To stdout. */
void product_case_describe(const struct product_case *c);
