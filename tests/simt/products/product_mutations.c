/* product_mutations.c - removes every synchronisation of matrix products in turn, as ops of a program and as
 * nodes, and of the gather of embeddings; mutation_suite.h has the rules. */
#include "simt/mutation_suite.h"
#include "product_case.h"
#include "product_node_case.h"

#include <stdlib.h>

enum { WALK, MUL_MAT, MUL_MAT_ID, MUL_MAT_HEADS, EMBED };

static void *open_kind(const struct mutation_subject *subject)
{
    uint32_t *kind = malloc(sizeof *kind);
    if (!kind)
        abort(); /* a test tool: nothing sensible is left to do */
    *kind = subject->index;
    return kind;
}

static int run_seed(void *context, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    const struct product_node of = {.seed = seed, .sm = sm, .small = true};
    uint32_t kind = *(const uint32_t *)context;
    if (kind == MUL_MAT)
        return product_node_multiply(&of, mute, report);
    if (kind == MUL_MAT_ID)
        return product_node_route(&of, mute, report);
    if (kind == MUL_MAT_HEADS)
        return product_node_parts(&of, mute, report);
    if (kind == EMBED)
        return product_node_gather(&of, seed % 4 == 0, mute, report);
    struct product_case *c = product_case_open(seed, (struct product_wish){.small = true});
    int rc = product_case_run(c, sm, seed, mute, report);
    product_case_close(c);
    return rc;
}

int main(int argc, char **argv)
{
    static const struct mutation_subject subjects[] = {{"product_walk", WALK},
                                                       {"mul_mat", MUL_MAT},
                                                       {"mul_mat_id", MUL_MAT_ID},
                                                       {"mul_mat_heads", MUL_MAT_HEADS},
                                                       {"embed", EMBED}};
    struct mutation_suite suite = {.subjects = subjects,
                                   .n_subjects = sizeof subjects / sizeof subjects[0],
                                   .clean_seeds = 30,
                                   .mutation_seeds = 100,
                                   .listed_seeds = 20,
                                   .open = open_kind,
                                   .close = free,
                                   .run = run_seed};
    return mutation_suite_main(&suite, argc, argv);
}
