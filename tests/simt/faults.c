/* faults.c - checks that each fault of faults/faults.h is reported with its kind, on every seed and with the
 * lanes in turn, and that correct code passes. */
#include "simt/emulator/emulator.h"
#include "simt/faults/faults.h"

#include <stdlib.h>
#include <string.h>

#define SEEDS 20 /* the last one: lanes in turn */

static const struct {
    const char *name, *kind;
    uint32_t sm; /* 0: both generations */
} faults[] = {
#define FAULT_ROW(name, kind, sm) {#name, kind, sm},
    FAULTS(FAULT_ROW)};

static _Alignas(16) uint32_t words[64];
static char
    *constant; /* 256 bytes of the heap: what lies beside a static array would pass for a constant table */
static uint32_t host[4];
static uint64_t pointers[1];

/* Returns what run `seed` reports: a kind, or "". */
static int run(struct simt_machine *m, uint32_t which, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct faults_args args = {which, words, constant, host, pointers};
    struct simt_launch launch = {.kernel = simt_find_kernel("faults", sm),
                                 .args = &args,
                                 .n_blocks = 2,
                                 .shared_bytes = FAULTS_SHARED,
                                 .seed = seed,
                                 .schedule = seed + 1 < SEEDS ? SIMT_N_SCHEDULES : SIMT_IN_ORDER,
                                 .mute = -1};
    memset(words, 0, sizeof words);
    memset(host, 0, sizeof host);
    return simt_run(m, &launch, report);
}

static bool check(struct simt_machine *m, uint32_t which, uint32_t sm)
{
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct simt_report report;
        run(m, which, sm, seed, &report);
        if (strcmp(report.kind, faults[which].kind) == 0)
            continue;
        printf("FAILED  sm_%u %s, seed %llu: wanted %s, got %s %s\n", sm, faults[which].name,
               (unsigned long long)seed, *faults[which].kind ? faults[which].kind : "no report",
               *report.kind ? report.kind : "no report", report.text);
        return false;
    }
    printf("ok      sm_%u %s: %s\n", sm, faults[which].name,
           *faults[which].kind ? faults[which].kind : "passes");
    return true;
}

int main(void)
{
    struct simt_machine *m = simt_open();
    constant = aligned_alloc(16, 256);
    if (!m || !constant)
        return 2;
    memset(constant, 1, 256);
    simt_map(m, words, sizeof words, 0, "words");
    simt_map(m, constant, 256, SIMT_MAP_READ_ONLY, "constant");
    simt_map(m, host, sizeof host, SIMT_MAP_HOST, "host");
    simt_map(m, pointers, sizeof pointers, 0, "pointers");
    int failures = 0;
    for (uint32_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        for (uint32_t sm = 80; sm <= 90; sm += 10)
            if (!faults[i].sm || faults[i].sm == sm)
                failures += !check(m, i, sm);
    simt_close(m);
    free(constant);
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
