/* sampling.c - the kernels of sample.h compared with lib/sampler/sampler.h, bit for bit, on generated steps
 * of all kinds.
 *
 *   simt_sampling [first case] [end]
 *   SAMPLE_CASE=n simt_sampling      case n alone, with its report */
#include "sample_cases.h"

#include <stdlib.h>
#include <string.h>

static struct sample_shape shape_of(uint64_t n)
{
    static const uint32_t small[] = {1, 2, 31, 32, 33, 100, 257, 384}, large[] = {4096, 4097, 5000, 8193};
    struct sample_shape s = {.n_logits = 1 + (uint32_t)(n % 3), .n_blocks = 1 + (uint32_t)(n / 3 % 4)};
    s.n_warps = 2 + (uint32_t)(n / 12 % 7);
    s.n_vocab = small[n / 5 % 8];
    if (n % 25 == 24)
        s.n_vocab = large[n / 25 % 4];
    if (n % 500 == 499) {
        s.n_vocab = 20000;
        s.n_logits = 1;
    }
    if (n % 1000 == 300 || n % 1000 == 311 ||
        n % 1000 == 322) /* more segments than lanes, once of each kernel */
        s = (struct sample_shape){.n_vocab = 135169, .n_logits = 1, .n_blocks = 4, .n_warps = 8};
    return s;
}

static int run(uint64_t number)
{
    static const char *const kernels[] = {"sample_grid", "argmax"};
    struct sample_case c;
    struct simt_report report = {0};
    sample_case_open(&c, shape_of(number), number);
    uint32_t sm = number / 2 % 2 ? 80 : 90;
    int rc = sample_case_run(&c, kernels[number % 4 == 3], sm, number, -1, &report);
    if (rc < 0) {
        printf("FAILED  case %llu, %s sm_%u: ", (unsigned long long)number, kernels[number % 4 == 3], sm);
        simt_report_print(&report, stdout);
    }
    sample_case_close(&c);
    return rc;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t end = argc > 2 ? strtoull(argv[2], NULL, 10) : first + 400;
    const char *one = getenv("SAMPLE_CASE");
    if (one)
        return run(strtoull(one, NULL, 10)) < 0;
    uint32_t failures = 0;
    for (uint64_t i = first; i < end && failures < 10; i++)
        failures += run(i) < 0;
    printf("%llu cases, %u failures\n", (unsigned long long)(end - first), failures);
    return failures || end <= first ? 1 : 0;
}
