/* Latency histograms: percentiles within a bucket of the truth. */
#include "base/histogram.h"

#include <criterion/criterion.h>
#include <math.h>

Test(histogram, an_empty_one_has_zero_percentiles)
{
    static struct histogram h;
    cr_assert_eq(histogram_percentile(&h, 0.99), 0);
}

Test(histogram, percentiles_of_a_ramp_are_within_a_bucket)
{
    static struct histogram h;
    for (int i = 1; i <= 10000; i++)
        histogram_add(&h, i * 0.1, 1);
    cr_assert_eq(h.n, 10000);
    cr_assert_float_eq(histogram_percentile(&h, 0.50), 500, 50);
    cr_assert_float_eq(histogram_percentile(&h, 0.95), 950, 95);
    cr_assert_float_eq(histogram_percentile(&h, 0.99), 990, 99);
}

Test(histogram, one_value_counted_many_times_is_every_percentile)
{
    static struct histogram h;
    histogram_add(&h, 3.0, 1000);
    for (double p = 0.01; p < 1; p += 0.07)
        cr_assert_float_eq(histogram_percentile(&h, p), 3.0, 0.3);
}

Test(histogram, extremes_stay_inside)
{
    static struct histogram h;
    histogram_add(&h, 0, 1);
    histogram_add(&h, -1, 1);
    histogram_add(&h, NAN, 1);
    histogram_add(&h, 1e300, 1);
    cr_assert_eq(h.buckets[0], 3);
    cr_assert_eq(h.buckets[HISTOGRAM_BUCKETS - 1], 1);
    cr_assert(isfinite(histogram_percentile(&h, 1)));
}

Test(rate, events_are_forgotten_after_thirty_seconds)
{
    struct rate r = {0};
    for (uint64_t t = 1000; t < 1060; t++)
        rate_add(&r, t);
    cr_assert_float_eq(rate_per_s(&r, 1059), 1, 1e-9);
    cr_assert_float_eq(rate_per_s(&r, 1074), 0.5, 1e-9);
    cr_assert_eq(rate_per_s(&r, 1089), 0);
    rate_add(&r, 5000000);
    cr_assert_float_eq(rate_per_s(&r, 5000000), 1.0 / 30, 1e-9);
}

Test(rate, the_time_to_come_back_is_bounded_on_both_sides)
{
    cr_assert_eq(retry_after_s(100, 0), 1);
    cr_assert_eq(retry_after_s(0, 5), 1);
    cr_assert_eq(retry_after_s(11, 5), 3);
    cr_assert_eq(retry_after_s(10000, 0.1), 60);
}
