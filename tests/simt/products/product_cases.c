/* product_cases.c - runs a number of random programs of products (product_case.h).
 *
 *   product_cases [first seed] [seeds] [long]
 *
 * long: also every type with the row lengths of real models, with up to 8 rows that do not fit the work area,
 * and more that are quantised where they are made; in every second case the first value is huge, so that a
 * kernel that loses or overwrites it is found (one of the sources that Hearth is specified by did). */
#include "product_case.h"

#include <stdlib.h>

static bool run(uint64_t seed, struct product_wish wish)
{
    struct simt_report report;
    struct product_case *c = product_case_open(seed, wish);
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

/* Each of 26 types twice, each of 7 lengths seven times or eight; narrow and wide in turn. */
static uint32_t run_long(void)
{
    static const uint32_t ks[] = {768, 3584, 4096, 9728, 12288, 14336, 18944}, rows[] = {1, 9, 8, 40};
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 26 * 2; i++)
        failures += !run(
            i, (struct product_wish){.n_rows = rows[i % 4], .k = ks[i % 7], .huge_first = (i + i / 4) % 2});
    printf("52 long products' programs, %u failures\n", failures);
    return failures;
}

/* Each of 26 types times 1 to `most` columns that stay in global memory. */
static uint32_t run_far(uint32_t most)
{
    static const uint32_t ks[] = {768, 1024, 2816};
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 26 * most; i++)
        failures += !run(2000 + i + i / 26,
                         (struct product_wish){.n_rows = 1 + i / 26, .k = ks[(i + i / 26) % 3], .far = true});
    printf("%u programs of few columns in global memory, %u failures\n", 26 * most, failures);
    return failures;
}

/* 26 types in turn, with 1 to 8 rows: the second product reads what the first has quantised. Where a type's
 * blocks do not divide k, and for floats in the second product, the type is Q8_0. */
static uint32_t run_quantised(uint32_t rounds)
{
    static const uint32_t ks[] = {128, 1024, 256, 448, 512, 2048, 832};
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 26 * rounds; i++)
        failures += !run(3000 + i, (struct product_wish){.n_rows = 1 + i % 8,
                                                         .k = ks[(i * 3 + i / 26) % 7],
                                                         .quantised = true,
                                                         .huge_first = i % 5 == 4});
    printf("%u programs that quantise where they multiply, %u failures\n", 26 * rounds, failures);
    return failures;
}

/* Prompts: from 65 rows on by columns, on any number of warps; 224 rows are one round of 14 warps, and 240
 * have room for fewer sums than two rounds take. */
static uint32_t run_prompts(void)
{
    static const uint32_t ks[] = {512, 256, 800, 1024, 544}, rows[] = {65, 224, 100, 240};
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 16; i++)
        failures += !run(1000 + i, (struct product_wish){.n_rows = rows[i % 4], .k = ks[i % 5]});
    printf("16 prompts' programs, %u failures\n", failures);
    return failures;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 26;
    uint32_t failures = 0;
    for (uint64_t seed = first; seed < first + n; seed++)
        failures += !run(seed, (struct product_wish){0});
    printf("%llu products' programs, %u failures\n", (unsigned long long)n, failures);
    failures += run_far(argc > 3 ? 8 : 1);
    failures += run_quantised(argc > 3 ? 4 : 1);
    if (argc > 3)
        failures += run_long() + run_prompts();
    return failures ? 1 : 0;
}
