/* product_cases.c - as many random products' programs as asked for (product_case.h).
 *
 *   product_cases [first seed] [seeds] */
#include "product_case.h"

#include <stdlib.h>

static bool run(uint64_t seed)
{
    struct simt_report report;
    struct product_case *c = product_case_open(seed, (struct product_wish){0});
    uint32_t sm = seed % 2 ? 90 : 80;
    bool ok = product_case_run(c, sm, seed, -1, &report) == 0;
    if (!ok) {
        simt_report_print(&report, stdout);
        printf("FAILED  seed %llu, sm_%u\n", (unsigned long long)seed, sm);
        product_case_describe(c);
    }
    product_case_close(c);
    return ok;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 26;
    uint32_t failures = 0;
    for (uint64_t seed = first; seed < first + n; seed++)
        failures += !run(seed);
    printf("%llu products' programs, %u failures\n", (unsigned long long)n, failures);
    return failures ? 1 : 0;
}
