/* recurrent.c - runs a number of cases of the nodes SSM_CONV and DELTA_NET (recurrent_case.h).
 *
 *   recurrent [first] [cases] */
#include "recurrent_case.h"

#include <stdlib.h>

static uint32_t check(int rc, uint64_t number, enum recurrent_node node, const struct simt_report *report)
{
    if (rc == 0)
        return 0;
    simt_report_print(report, stdout);
    printf("FAILED  case %llu, %s\n", (unsigned long long)number,
           node == RECURRENT_CONV ? "ssm_conv" : "delta_net");
    return 1;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
             n = argc > 2 ? strtoull(argv[2], NULL, 10) : 24;
    uint32_t failures = 0;
    for (uint64_t i = first; i < first + n; i++) {
        struct recurrent_case *c = recurrent_case_open(i);
        uint32_t sm = i % 2 ? 90 : 80;
        struct simt_report report;
        for (enum recurrent_node node = RECURRENT_CONV; node <= RECURRENT_NET; node++) {
            failures += check(recurrent_case_run(c, node, sm, i, -1, &report), i, node, &report);
            if (i % 4 == 0)
                failures += check(recurrent_case_refuse(c, node, sm, i, -1, &report), i, node, &report);
        }
        recurrent_case_close(c);
    }
    printf("%llu cases of recurrent layers, %u failures\n", (unsigned long long)n, failures);
    return failures ? 1 : 0;
}
