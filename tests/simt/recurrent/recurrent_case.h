/* recurrent_case.h - the nodes SSM_CONV and DELTA_NET on the emulator: random shapes, groups of rows and
 * operations on states, over a few steps, against the formulas of kernels/abi/delta.h in every bit of rows
 * and states. Thread: one per case. Memory: the case's, to recurrent_case_close(). */
#pragma once
#include "simt/emulator/emulator.h"

enum recurrent_node { RECURRENT_CONV, RECURRENT_NET };

struct recurrent_case; /* opaque: the fields are in recurrent_case.c */

struct recurrent_case *recurrent_case_open(uint64_t number); /* its shape and its steps */
void recurrent_case_close(struct recurrent_case *c);
/* Runs the case's steps. Returns 0, or -1 with the report; a wrong result is a report too. mute: a mutation,
 * or -1. */
int recurrent_case_run(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed,
                       int mute, struct simt_report *report);
/* Runs a step with an index out of range, which must be reported and cause no access out of bounds. */
int recurrent_case_refuse(struct recurrent_case *c, enum recurrent_node node, uint32_t sm, uint64_t seed,
                          int mute, struct simt_report *report);
