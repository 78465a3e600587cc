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

Test(recent, a_mean_follows_what_was_added_last)
{
    struct recent r = {0};
    recent_add(&r, 100);
    cr_assert_float_eq(r.mean_ms, 100, 1e-9);
    for (int i = 0; i < 48; i++)
        recent_add(&r, 1000);
    cr_assert(r.mean_ms > 900 && r.mean_ms < 1000, "%g", r.mean_ms);
}

Test(recent, the_time_to_come_back_is_bounded_on_both_sides)
{
    struct recent none = {0}, brief = {5}, second = {1000}, minute = {60000};
    cr_assert_eq(retry_after_s(100, 1, &none), 1);
    cr_assert_eq(retry_after_s(0, 5, &second), 1);
    cr_assert_eq(retry_after_s(11, 5, &second), 3);
    cr_assert_eq(retry_after_s(256, 32, &brief), 1, "however few there were before");
    cr_assert_eq(retry_after_s(10000, 32, &minute), 60);
}
