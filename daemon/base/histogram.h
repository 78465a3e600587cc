/* histogram.h - what the HTTP side counts: outcomes of requests, and latencies in histograms of fixed
 * log-scale buckets (eight per doubling, 1 us to a week), so that recording is one increment and a percentile
 * is within 5 % of the truth. Thread: loop. Memory: fixed. */
#pragma once
#include <stdint.h>

#define HISTOGRAM_PER_OCTAVE 8
#define HISTOGRAM_BUCKETS    (40 * HISTOGRAM_PER_OCTAVE)

struct histogram {
    uint64_t n;
    double sum_ms;
    uint64_t buckets[HISTOGRAM_BUCKETS]; /* [0]: below 1.09 us */
};

void histogram_add(struct histogram *h, double ms, uint64_t n);
/* The value below which `fraction` of what was added lies, in milliseconds; 0 when nothing was. */
double histogram_percentile(const struct histogram *h, double fraction);

/* A mean in which the last sixteen or so count most; 0 before anything is added. */
struct recent {
    double mean_ms;
};

void recent_add(struct recent *r, double ms);
/* Seconds until `waiting` requests will have been worked off, `at_once` at a time, if each takes as long as
 * recent ones: 1..60; 1 where none is known. How many ended in the last seconds would not do: where few came,
 * few ended, and the clients that a burst refused would stay away for a minute. */
uint32_t retry_after_s(uint32_t waiting, uint32_t at_once, const struct recent *each);

enum stats_finish { STATS_EOS, STATS_STOP, STATS_LENGTH, STATS_TIMEOUT, STATS_CANCELLED, STATS_FINISHES };
#define STATS_REJECTS 15
extern const char *const stats_finish_names[STATS_FINISHES]; /* API.md's finish_reason */
extern const char *const stats_reject_names[STATS_REJECTS];  /* API.md's error types; the last is "other" */

struct stats {
    uint64_t started_ns; /* CLOCK_MONOTONIC */
    uint64_t completed, failed, rejected, cancelled, timed_out;
    uint64_t finishes[STATS_FINISHES]; /* of texts: a request may have several */
    uint64_t rejects[STATS_REJECTS];   /* of the rejected */
    /* Of generations that ran: run counts from a generation's start, stay from when it was accepted. */
    struct recent run, stay;
    struct histogram queue, ttft, inter_token, total;
    struct histogram reject; /* from a request's headers to its refusal */
};

/* Counts a text by its finish_reason, or a refused request by its error's type. */
void stats_count_finish(struct stats *s, const char *reason);
void stats_count_reject(struct stats *s, const char *type, double ms);
