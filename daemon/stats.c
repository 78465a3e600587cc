#include "stats.h"

#include <math.h>

/* Bucket i holds [lower(i), lower(i + 1)); lower(0) is 0 in effect. */
static double lower(int bucket)
{
    return 1e-3 * exp2((double)bucket / HISTOGRAM_PER_OCTAVE);
}

static int bucket_of(double ms)
{
    if (!(ms > 1e-3))
        return 0;
    double place = log2(ms * 1e3) * HISTOGRAM_PER_OCTAVE;
    return place < HISTOGRAM_BUCKETS - 1 ? (int)place : HISTOGRAM_BUCKETS - 1;
}

void histogram_add(struct histogram *h, double ms, uint64_t n)
{
    h->n += n;
    h->sum_ms += ms * (double)n;
    h->buckets[bucket_of(ms)] += n;
}

double histogram_percentile(const struct histogram *h, double fraction)
{
    double wanted = fraction * (double)h->n, below = 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS && h->n; i++) {
        double here = (double)h->buckets[i];
        if (here > 0 && below + here >= wanted) {
            double from = i ? lower(i) : 0;
            return from + (lower(i + 1) - from) * (wanted - below) / here;
        }
        below += here;
    }
    return 0;
}
