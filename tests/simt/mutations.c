/* mutations.c - shows that the emulator bites: the toys run clean on many seeds, and with any one
 * synchronisation taken away a fault is found within a hundred. What cannot be seen stands in
 * mutations_unseen.txt, with the reason; a listed mutation that is seen after all fails too.
 *
 *   simt_mutations [clean seeds] [seeds per mutation]
 *   SIMT_MUTE=n simt_mutations      runs the toy of mutation n until it fails, and prints the report
 *   SIMT_MUTE=list simt_mutations   prints the numbers */
#include "toy_cases.h"
#include "simt.h"

#include <stdlib.h>
#include <string.h>

#define CLEAN_SEEDS    200
#define MUTATION_SEEDS 100
#define GENERATIONS    2
static const uint32_t generations[GENERATIONS] = {80, 90};

static int run_clean(uint32_t n_seeds)
{
    int failures = 0;
    for (uint32_t i = 0; i < n_toy_kinds * GENERATIONS; i++) {
        struct toy_case c;
        struct simt_report report;
        uint32_t sm = generations[i % GENERATIONS];
        uint64_t seed = 0;
        toy_open(&c, &toy_kinds[i / GENERATIONS]);
        while (seed < n_seeds && toy_run(&c, sm, seed, -1, &report) == 0)
            seed++;
        printf("%-14s sm_%u  %s on %llu seeds\n", c.kind->kernel, sm, seed == n_seeds ? "clean" : "FAILED",
               (unsigned long long)seed);
        if (seed < n_seeds) {
            simt_report_print(&report, stdout);
            failures++;
        }
        toy_close(&c);
    }
    return failures;
}

static const struct toy_kind *toy_of(const struct simt_site *site)
{
    const char *slash = strrchr(site->kernel_file, '/'), *name = slash ? slash + 1 : site->kernel_file;
    for (uint32_t i = 0; i < n_toy_kinds; i++) {
        size_t n = strlen(toy_kinds[i].kernel);
        if (strncmp(name, toy_kinds[i].kernel, n) == 0 && strcmp(name + n, ".c") == 0)
            return &toy_kinds[i];
    }
    return NULL;
}

/* The number of the first seed that fails, or n_seeds. */
static uint32_t first_failure(int mutation, uint32_t n_seeds, struct simt_report *report)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    struct toy_case c;
    toy_open(&c, toy_of(site));
    uint32_t seed = 0;
    while (seed < n_seeds && toy_run(&c, site->sm, seed, mutation, report) == 0)
        seed++;
    toy_close(&c);
    return seed;
}

/* Lines of the list are "<source> sm_NN <function's file> <word> <aspect>: <reason>"; line numbers are left
 * out. */
static bool is_listed(const char *mutation)
{
    char want[256], line[512];
    const char *colon = strchr(mutation, ':'), *space = colon ? strchr(colon, ' ') : NULL;
    if (!space)
        return false;
    snprintf(want, sizeof want, "%.*s%s: ", (int)(colon - mutation), mutation, space);
    FILE *f = fopen(SIMT_UNSEEN, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, want, strlen(want)) == 0 && strlen(line) > strlen(want) + 1;
    if (f)
        fclose(f);
    return found;
}

static int run_mutations(uint32_t n_seeds)
{
    int failures = 0, seen = 0, unseen = 0;
    for (int i = 0; i < simt_n_mutations(); i++) {
        enum simt_aspect aspect = SIMT_WHOLE;
        char text[256];
        struct simt_report report;
        simt_mutation_text(i, text, sizeof text);
        if (!toy_of(simt_mutation(i, &aspect))) {
            printf("FAILED  %3d %s: no toy runs it\n", i, text);
            failures++;
            continue;
        }
        uint32_t at = first_failure(i, n_seeds, &report);
        bool listed = is_listed(text), ok = (at < n_seeds) != listed;
        printf("%s %3d %-72s ", ok ? "ok     " : "FAILED ", i, text);
        if (at < n_seeds)
            printf("%s, seed %u%s\n", report.kind, at, listed ? ", though listed as unseen" : "");
        else
            printf("not seen%s\n", listed ? ", as listed" : "");
        seen += at < n_seeds;
        unseen += at == n_seeds;
        failures += !ok;
    }
    printf("%d mutations seen, %d not seen, %d failures\n", seen, unseen, failures);
    return failures;
}

static int run_one(const char *which, uint32_t n_seeds)
{
    char text[256];
    struct simt_report report;
    if (strcmp(which, "list") == 0) {
        for (int i = 0; i < simt_n_mutations(); i++) {
            simt_mutation_text(i, text, sizeof text);
            printf("%3d %s\n", i, text);
        }
        return 0;
    }
    int mutation = atoi(which);
    enum simt_aspect aspect = SIMT_WHOLE;
    if (mutation < 0 || mutation >= simt_n_mutations() || !toy_of(simt_mutation(mutation, &aspect))) {
        fprintf(stderr, "SIMT_MUTE=%s: there are mutations 0 to %d\n", which, simt_n_mutations() - 1);
        return 2;
    }
    simt_mutation_text(mutation, text, sizeof text);
    printf("%s\n", text);
    uint32_t at = first_failure(mutation, n_seeds, &report);
    if (at == n_seeds) {
        printf("not seen on %u seeds\n", n_seeds);
        return 1;
    }
    printf("seed %u: ", at);
    simt_report_print(&report, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t clean = argc > 1 ? (uint32_t)atoi(argv[1]) : CLEAN_SEEDS;
    uint32_t per_mutation = argc > 2 ? (uint32_t)atoi(argv[2]) : MUTATION_SEEDS;
    const char *mute = getenv("SIMT_MUTE");
    if (mute)
        return run_one(mute, per_mutation);
    int failures = run_clean(clean);
    failures += run_mutations(per_mutation);
    return failures ? 1 : 0;
}
