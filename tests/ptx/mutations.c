/* mutations.c - shows that a wrong instruction of the PTX is caught: each row of mutations.txt is about one
 * instruction of a kernel, and the case of that kernel must fail with it, by a wrong result or a report of
 * the emulator, on one of the first seeds; without it, it must pass on them. mutations TABLE SEEDS KERNEL...
 */
#include "product_node_case.h"
#include "toy_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern int ptx_mutation;
int ptx_mutation;

#ifdef PTX_PRODUCTS
static int run(const char *kernel, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    struct product_node of = {.seed = seed, .sm = sm, .small = true};
    (void)kernel; /* MUL_MAT is the only one */
    return product_node_multiply(&of, -1, report);
}
#else
static int run(const char *kernel, uint32_t sm, uint64_t seed, struct simt_report *report)
{
    for (uint32_t i = 0; i < n_toy_kinds; i++) {
        struct toy_case c;
        if (strcmp(toy_kinds[i].kernel, kernel) != 0)
            continue;
        toy_open(&c, &toy_kinds[i]);
        int rc = toy_run(&c, sm, seed, -1, report);
        toy_close(&c);
        return rc;
    }
    (void)printf("%s is no toy\n", kernel);
    exit(2);
}
#endif

/* Returns the first seed that fails, or n_seeds. */
static uint64_t first_failure(const char *kernel, uint32_t sm, uint64_t n_seeds, struct simt_report *report)
{
    uint64_t seed = 0;
    while (seed < n_seeds && run(kernel, sm, seed, report) == 0)
        seed++;
    return seed;
}

/* One row, with its kernel's clean run. Returns whether it is as it must be. */
static bool try_row(const char *row, const char *kernel, uint32_t sm, uint64_t n_seeds)
{
    struct simt_report report = {.kind = ""};
    int number = ptx_mutation;
    ptx_mutation = 0;
    if (first_failure(kernel, sm, n_seeds < 4 ? n_seeds : 4, &report) < 4) {
        (void)printf("FAILED  %s without a mutation: %s %s\n", kernel, report.kind, report.text);
        return false;
    }
    ptx_mutation = number;
    uint64_t seed = first_failure(kernel, sm, n_seeds, &report);
    if (seed == n_seeds)
        (void)printf("FAILED  not caught: %s", row);
    else
        (void)printf("ok      seed %-3llu %-8.8s %s", (unsigned long long)seed, report.kind, row);
    return seed < n_seeds;
}

static bool is_among(const char *kernel, char **kernels, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(kernels[i], kernel) == 0)
            return true;
    return false;
}

int main(int argc, char **argv)
{
    char row[512], kernel[96];
    int n = 0, n_failed = 0, number = 0;
    FILE *f = argc > 3 ? fopen(argv[1], "r") : NULL;
    if (!f) {
        (void)fprintf(stderr, "usage: mutations TABLE SEEDS KERNEL...\n");
        return 2;
    }
    while (fgets(row, sizeof row, f)) {
        if (*row == '#' || *row == '\n')
            continue;
        ptx_mutation = ++number;
        char *sm = sscanf(row, "%95s", kernel) == 1 ? strstr(kernel, "_sm") : NULL;
        if (!sm)
            return 2;
        *sm = '\0';
        if (!is_among(kernel, argv + 3, argc - 3))
            continue;
        n++;
        n_failed += !try_row(row, kernel, (uint32_t)atoi(sm + 3), strtoull(argv[2], NULL, 10));
    }
    (void)fclose(f);
    (void)printf("%d mutations of the PTX, %d not caught\n", n, n_failed);
    return n == 0 || n_failed;
}
