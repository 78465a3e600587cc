/* product_nodes.c - as many cases of the nodes MUL_MAT and EMBED as asked for (product_node_case.h).
 *
 *   product_nodes [first seed] [seeds] */
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

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 26;
    uint32_t failures = 0;
    for (uint64_t seed = first; seed < first + n; seed++) {
        struct product_node of = {.seed = seed, .sm = seed % 2 ? 90 : 80};
        struct simt_report report;
        failures += check(product_node_multiply(&of, -1, &report), &of, &report);
        failures += check(product_node_gather(&of, false, -1, &report), &of, &report);
        if (seed % 4 == 0)
            failures += check(product_node_gather(&of, true, -1, &report), &of, &report);
    }
    printf("%llu products and gathers, %u failures\n", (unsigned long long)n, failures);
    return failures ? 1 : 0;
}
