#include "histogram.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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
    assert(fraction >= 0 && fraction <= 1);
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

void recent_add(struct recent *r, double ms)
{
    r->mean_ms = r->mean_ms > 0 ? r->mean_ms + (ms - r->mean_ms) / 16 : ms;
}

uint32_t retry_after_s(uint32_t waiting, uint32_t at_once, const struct recent *each)
{
    assert(at_once > 0);
    double seconds = ceil(waiting * each->mean_ms / at_once / 1000);
    return seconds < 1 ? 1 : seconds > 60 ? 60 : (uint32_t)seconds;
}

const char *const stats_finish_names[] = {[STATS_EOS] = "eos",
                                          [STATS_STOP] = "stop",
                                          [STATS_LENGTH] = "length",
                                          [STATS_TIMEOUT] = "timeout",
                                          [STATS_CANCELLED] = "cancelled"};
const char *const stats_reject_names[] = {
    "invalid_request", "context_exceeded",   "unauthorized", "forbidden",
    "not_found",       "method_not_allowed", "too_large",    "unsupported_media_type",
    "rate_limited",    "queue_full",         "loading",      "draining",
    "stalled",         "suspended",          "other"};
static_assert(sizeof stats_reject_names / sizeof *stats_reject_names == STATS_REJECTS, "all have a name");

static int index_of(const char *const *names, int n, const char *name)
{
    int i = 0;
    while (i < n && strcmp(names[i], name) != 0)
        i++;
    return i;
}

void stats_count_finish(struct stats *s, const char *reason)
{
    int i = index_of(stats_finish_names, STATS_FINISHES, reason);
    if (i < STATS_FINISHES)
        s->finishes[i]++;
}

void stats_count_reject(struct stats *s, const char *type, double ms)
{
    s->rejected++;
    s->rejects[index_of(stats_reject_names, STATS_REJECTS - 1, type ? type : "")]++;
    histogram_add(&s->reject, ms, 1);
}
