/* mutations.c - shows that a wrong instruction of the PTX is caught: each row of mutations.txt is about one
 * instruction of a kernel, and the case of that kernel (mutations.h) must fail with it, by a wrong result or
 * a report of the emulator, on one of the first seeds; without it, it must pass on them. mutations TABLE
 * SEEDS
 */
#include "mutations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLEAN_SEEDS 4

extern int ptx_mutation;
int ptx_mutation;

/* A kernel's case, open. */
struct subject {
    const struct mutated_kernel *kernel;
    void *context;
};

/* Returns the first seed that fails, or n_seeds. */
static uint64_t first_failure(const struct subject *s, uint32_t sm, uint64_t n_seeds,
                              struct simt_report *report)
{
    uint64_t seed = 0;
    while (seed < n_seeds && s->kernel->run(s->context, sm, seed, report) == 0)
        seed++;
    return seed;
}

/* Runs one row, and its kernel's clean seeds before. Returns true when the row is caught. */
static bool try_row(const char *row, int number, const struct subject *s, uint32_t sm, uint64_t n_seeds)
{
    struct simt_report report = {.kind = ""};
    ptx_mutation = 0;
    if (first_failure(s, sm, CLEAN_SEEDS, &report) < CLEAN_SEEDS) {
        (void)printf("FAILED  %s without a mutation: %s %s\n", s->kernel->name, report.kind, report.text);
        return false;
    }
    ptx_mutation = number;
    uint64_t seed = first_failure(s, sm, n_seeds, &report);
    if (seed == n_seeds)
        (void)printf("FAILED  not caught: %s", row);
    else
        (void)printf("ok      seed %-3llu %-8.8s %s", (unsigned long long)seed, report.kind, row);
    return seed < n_seeds;
}

/* Opens the case of the kernel, unless the last row had the same one. Returns false when it has none here. */
static bool take_kernel(struct subject *s, const char *name)
{
    if (s->kernel && strcmp(s->kernel->name, name) == 0)
        return true;
    for (uint32_t i = 0; i < n_mutated_kernels; i++) {
        if (strcmp(mutated_kernels[i].name, name) != 0)
            continue;
        if (s->kernel)
            s->kernel->close(s->context);
        *s = (struct subject){&mutated_kernels[i], mutated_kernels[i].open()};
        return true;
    }
    return false;
}

int main(int argc, char **argv)
{
    char row[512], kernel[96];
    int n = 0, n_failed = 0, number = 0;
    struct subject subject = {NULL, NULL};
    FILE *f = argc == 3 ? fopen(argv[1], "r") : NULL;
    if (!f) {
        (void)fprintf(stderr, "usage: mutations TABLE SEEDS\n");
        return 2;
    }
    while (fgets(row, sizeof row, f)) {
        if (*row == '#' || *row == '\n')
            continue;
        number++;
        char *sm = sscanf(row, "%95s", kernel) == 1 ? strstr(kernel, "_sm") : NULL;
        if (!sm)
            return 2;
        *sm = '\0';
        if (!take_kernel(&subject, kernel))
            continue;
        n++;
        n_failed += !try_row(row, number, &subject, (uint32_t)atoi(sm + 3), strtoull(argv[2], NULL, 10));
    }
    if (subject.kernel)
        subject.kernel->close(subject.context);
    (void)fclose(f);
    (void)printf("%d mutations of the PTX, %d not caught\n", n, n_failed);
    return n == 0 || n_failed;
}
