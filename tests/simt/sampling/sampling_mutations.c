/* sampling_mutations.c - removes each synchronisation of the sampling kernels in turn: one of a hundred
 * generated steps must fail. None is exempt.
 *
 *   SIMT_MUTE=n simt_sampling_mutations   runs steps with mutation n until one fails, and prints the
 * report */
#include "sample_cases.h"
#include "device/simt.h"

#include <stdlib.h>
#include <string.h>

#define SEEDS 100

/* Rows of a few hundred logits or of two segments, three or more to a block. */
static struct sample_shape shape_of(uint32_t seed)
{
    return (struct sample_shape){.n_vocab = seed % 2 ? 300 : 7000,
                                 .n_logits = 4,
                                 .n_blocks = 1 + seed / 2 % 2,
                                 .n_warps = 2 + seed % 2};
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The number of the first step that fails, or SEEDS. */
static uint32_t first_failure(int mutation, struct simt_report *report)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    const char *kernel = strcmp(base_name(site->kernel_file), "sample.c") == 0 ? "argmax" : "sample_grid";
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        struct sample_case c;
        sample_case_open(&c, shape_of(seed), seed);
        int rc = sample_case_run(&c, kernel, site->sm, seed, mutation, report);
        sample_case_close(&c);
        if (rc < 0)
            return seed;
    }
    return SEEDS;
}

/* No wait fails here, so no thread writes the abort word whose poll would show its scope; the persistent
 * decoder's tests have failed waits. */
static bool is_elsewhere(int mutation)
{
    enum simt_aspect aspect = SIMT_WHOLE;
    const struct simt_site *site = simt_mutation(mutation, &aspect);
    return aspect == SIMT_SCOPE && strcmp(site->word, "ld_relaxed_gpu") == 0 &&
           strcmp(base_name(site->file), "dependency.h") == 0;
}

static int check(int mutation, bool loud)
{
    char text[256];
    struct simt_report report;
    simt_mutation_text(mutation, text, sizeof text);
    uint32_t at = first_failure(mutation, &report);
    printf("%s %3d %-72s ", at < SEEDS ? "ok     " : "FAILED ", mutation, text);
    if (at < SEEDS)
        printf("%s, step %u\n", report.kind, at);
    else
        printf("not seen\n");
    if (at < SEEDS && loud)
        simt_report_print(&report, stdout);
    return at < SEEDS ? 0 : 1;
}

int main(void)
{
    const char *mute = getenv("SIMT_MUTE");
    if (mute && atoi(mute) < simt_n_mutations())
        return check(atoi(mute), true);
    int failures = 0;
    for (int i = 0; i < simt_n_mutations(); i++)
        failures += is_elsewhere(i) ? 0 : check(i, false);
    printf("%d mutations, %d failures\n", simt_n_mutations(), failures);
    return failures ? 1 : 0;
}
