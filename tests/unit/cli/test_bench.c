/* The arithmetic of a benchmark: names, medians, fractions. */
#include "cli/bench/bench.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const char *name_of(struct bench_test test)
{
    static char name[48];
    bench_test_name(&test, name, sizeof name);
    return name;
}

#define LOOK(read, int8)                                                                                     \
    {                                                                                                        \
        .read_gbps = (read), .int8_tops = (int8)                                                             \
    }

Test(bench, tests_are_named_as_the_manual_says)
{
    cr_assert_str_eq(name_of((struct bench_test){true, 512, 0, 1}), "pp512");
    cr_assert_str_eq(name_of((struct bench_test){false, 128, 0, 1}), "tg128");
    cr_assert_str_eq(name_of((struct bench_test){false, 128, 256, 1}), "tg128@d256");
    cr_assert_str_eq(name_of((struct bench_test){false, 128, 0, 8}), "tg128@b8");
    cr_assert_str_eq(name_of((struct bench_test){false, 128, 512, 8}), "tg128@d512@b8");
}

Test(bench, the_median_is_the_middle_of_the_sorted_values)
{
    double odd[] = {5, 1, 100}, even[] = {4, 1, 2, 100};
    cr_assert_eq(bench_median(odd, 3), 5);
    cr_assert_eq(bench_median(even, 4), 3);
}

Test(bench, the_deviation_of_one_value_is_0)
{
    double one[] = {7};
    cr_assert_eq(bench_deviation(one, 1), 0);
}

Test(bench, the_deviation_is_the_samples)
{
    double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
    cr_assert_lt(fabs(bench_deviation(values, 8) - 2.13809), 1e-4);
}

Test(bench, the_nearer_limit_is_the_bound)
{
    struct bench_roofline looks[] = {{.read_gbps = 10, .int8_tops = 1}, {.read_gbps = 10, .int8_tops = 1}};
    struct bench_row decode = {.cost = {.bytes = 5e7, .int8_ops = 1e8}};
    struct bench_row prefill = {.cost = {.bytes = 1e5, .int8_ops = 5e8}};
    bench_compare(&decode, (double[]){100}, looks, 1);
    bench_compare(&prefill, (double[]){1000}, looks, 1);
    cr_assert_str_eq(decode.bound, "read");
    cr_assert_lt(fabs(decode.fraction - 0.5), 1e-12);
    cr_assert_str_eq(prefill.bound, "int8");
    cr_assert_lt(fabs(prefill.fraction - 0.5), 1e-12);
}

Test(bench, a_repetition_is_compared_with_the_mean_of_the_limits_around_it)
{
    struct bench_roofline looks[] = {LOOK(40, 2), LOOK(60, 1), LOOK(100, 1), LOOK(20, 2)};
    struct bench_row row = {.cost = {.bytes = 4e8, .int8_ops = 1e8}};
    bench_compare(&row, (double[]){100, 120, 150}, looks, 3); /* 0.8, 0.6 and 1 of 50, 80 and 60 */
    cr_assert_lt(fabs(row.fraction - 0.8), 1e-12);
    cr_assert_lt(fabs(row.roofline.read_gbps - 190 / 3.0), 1e-12);
    cr_assert_lt(fabs(row.roofline.int8_tops - 4 / 3.0), 1e-12);
}

Test(bench, an_unknown_limit_bounds_nothing)
{
    struct bench_roofline looks[] = {LOOK(0, 0), LOOK(0, 0)};
    struct bench_row row = {.cost = {.bytes = 4e8, .int8_ops = 1e8}};
    bench_compare(&row, (double[]){100}, looks, 1);
    cr_assert_eq(row.fraction, 0);
}

Test(bench, an_op_is_compared_with_the_limit_that_is_nearer)
{
    struct bench_roofline limits = {.read_gbps = 40, .int8_tops = 2};
    struct bench_op reads = {.us = 100, .bytes = 2e6, .int8_ops = 1e6}; /* 20 GB/s, 0.01 TOPS */
    struct bench_op multiplies = {.us = 100, .bytes = 1e5, .int8_ops = 1.5e8};
    struct bench_op neither = {.us = 100, .float_ops = 1e9};
    double fraction;
    cr_assert_str_eq(bench_op_bound(&reads, &limits, &fraction), "read");
    cr_assert_lt(fabs(fraction - 0.5), 1e-12);
    cr_assert_str_eq(bench_op_bound(&multiplies, &limits, &fraction), "int8");
    cr_assert_lt(fabs(fraction - 0.75), 1e-12);
    cr_assert_null(bench_op_bound(&neither, &limits, &fraction));
    limits.f32_tflops = 20; /* neither reaches 10 of them */
    cr_assert_str_eq(bench_op_bound(&neither, &limits, &fraction), "f32");
    cr_assert_lt(fabs(fraction - 0.5), 1e-12);
    limits.bf16_tflops = 40;
    cr_assert_str_eq(bench_op_bound(&neither, &limits, &fraction), "f32");
    neither.bf16 = true;
    cr_assert_str_eq(bench_op_bound(&neither, &limits, &fraction), "bf16");
    cr_assert_lt(fabs(fraction - 0.25), 1e-12);
    cr_assert_null(bench_op_bound(&reads, &(struct bench_roofline){0}, &fraction));
}

Test(bench, a_layer_with_a_window_reads_what_the_window_covers)
{
    struct model_attention all = {.n_kv_heads = 4, .head_dim = 256}, window = all;
    double token = 2.0 * 4 * 256 * 2; /* keys and values, f16 */
    window.window = 1024;
    cr_expect_eq(bench_seen(&all, 32000), 32000);
    cr_expect_eq(bench_seen(&window, 32000), 1024);
    cr_expect_eq(bench_seen(&window, 1000), 1000);
    cr_expect_eq(bench_seen_bytes(&all, KV_F16, 32000), 32000 * token);
    cr_expect_eq(bench_seen_bytes(&window, KV_F16, 32000), 1024 * token);
}
