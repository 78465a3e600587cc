/* mutation_suite.h - shows that kernel tests detect faults: they run clean on many seeds, and with any one
 * synchronisation removed a fault is found within a hundred. mutations_unseen.txt lists those that cannot be
 * found, with the reason; a listed mutation that is found fails too.
 *
 *   PROGRAM [clean seeds] [seeds per mutation]
 *   SIMT_MUTE=n PROGRAM      runs mutation n until it fails, and prints the report
 *   SIMT_MUTE=list PROGRAM   prints the numbers
 *
 * Thread: one. */
#pragma once
#include "simt/emulator/emulator.h"

/* A source whose kernels a suite runs. */
struct mutation_subject {
    const char *source; /* without directory and .c */
    uint32_t index;     /* index for the suite's own use */
};

struct mutation_suite {
    const struct mutation_subject *subjects;
    uint32_t n_subjects;
    uint32_t clean_seeds, mutation_seeds; /* defaults for the command line */
    uint32_t listed_seeds; /* seeds for mutations listed as unseen, since each runs them all; 0: as for the
                              others */
    /* Prefixes of headers whose mutations another suite covers, up to NULL; or NULL. */
    const char *const *elsewhere;
    void *(*open)(const struct mutation_subject *subject);
    void (*close)(void *context);
    /* Runs one seed; a wrong result is a report too. mute: a mutation, or -1. Returns 0, or -1 with the
     * report. */
    int (*run)(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
};

/* Runs the suite; returns main()'s exit status. */
int mutation_suite_main(const struct mutation_suite *suite, int argc, char **argv);
