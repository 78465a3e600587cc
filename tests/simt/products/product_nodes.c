/* product_nodes.c - runs a number of cases of the nodes MUL_MAT, MUL_MAT_ID, MUL_MAT_HEADS and EMBED
 * (product_node_case.h).
 *
 *   product_nodes [first seed] [seeds] [long]: long: also rows of real models' lengths */
#include "product_node_case.h"

#include <stdlib.h>

static uint32_t check(int rc, const struct product_node *of, const struct simt_report *report)
{
    if (rc == 0)
        return 0;
    simt_report_print(report, stdout);
    printf("FAILED  seed %llu, sm_%u\n", (unsigned long long)of->seed, of->sm);
    return 1;
}

static uint32_t run_long(void)
{
    static const uint32_t ks[] = {768, 3584, 4096, 9728, 12288, 14336, 18944};
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 13 * 3; i++) {
        struct product_node of = {.seed = i, .sm = i % 2 ? 90 : 80, .k = ks[i % 7]};
        struct simt_report report;
        failures += check(product_node_multiply(&of, -1, &report), &of, &report);
        failures += check(product_node_gather(&of, false, -1, &report), &of, &report);
    }
    printf("39 long products and gathers, %u failures\n", failures);
    return failures;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 26;
    uint32_t failures = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        struct product_node of = {.seed = seed, .sm = seed % 2 ? 90 : 80};
        struct simt_report report;
        failures += check(product_node_multiply(&of, -1, &report), &of, &report);
        failures += check(product_node_route(&of, -1, &report), &of, &report);
        failures += check(product_node_parts(&of, -1, &report), &of, &report);
        failures += check(product_node_gather(&of, false, -1, &report), &of, &report);
        if (seed % 4 == 0)
            failures += check(product_node_gather(&of, true, -1, &report), &of, &report);
    }
    printf("%llu products and gathers, %u failures\n", (unsigned long long)n, failures);
    if (argc > 3)
        failures += run_long();
    return failures ? 1 : 0;
}
