/* mutation_suite.h - shows that tests of kernels bite: they run clean on many seeds, and with any one
 * synchronisation taken away a fault is found within a hundred. What cannot be seen stands in
 * mutations_unseen.txt, with the reason; a listed mutation that is seen after all fails too.
 *
 *   PROGRAM [clean seeds] [seeds per mutation]
 *   SIMT_MUTE=n PROGRAM      runs mutation n until it fails, and prints the report
 *   SIMT_MUTE=list PROGRAM   prints the numbers */
#pragma once
#include "emulator.h"

/* What runs the kernels of one source. */
struct mutation_subject {
    const char *source; /* without directory and .c */
    uint32_t index;     /* the suite's own */
};

struct mutation_suite {
    const struct mutation_subject *subjects;
    uint32_t n_subjects;
    uint32_t clean_seeds, mutation_seeds; /* where the command line does not say */
    uint32_t listed_seeds; /* for what is listed as unseen: each takes its time; 0: as for the others */
    /* Beginnings of headers' names, up to NULL, whose mutations another suite shows; or NULL. */
    const char *const *elsewhere;
    void *(*open)(const struct mutation_subject *subject);
    void (*close)(void *context);
    /* One seed; a wrong result is a report too. mute: a mutation, or -1. 0, or -1 with the report. */
    int (*run)(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report);
};

/* For main(): its answer. */
int mutation_suite_main(const struct mutation_suite *suite, int argc, char **argv);
