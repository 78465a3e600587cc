/* gpu_report.h - the report of check.sh: one object with the output of all its parts, and the conclusions.
 * Thread: one. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Targets at batch 1 and 512 tokens of context, Q4_K_M, on an H200. */
struct report_target {
    const char *model;
    double step_us;       /* at batch 1 */
    double moonshot_us;   /* the ambitious target */
    double batch8_factor; /* the step at batch 8, as a multiple of batch 1 */
};
extern const struct report_target report_targets[]; /* ends with model NULL */

/* Returns the part of that name, or NULL: {"part", "kind", "result", "seconds", "output_end", "data"}. */
json_t *report_part(json_t *report, const char *name);
/* Returns a number of a part's data, by path: keys with dots. -1: there is none. */
double report_number(json_t *report, const char *part, const char *path);
/* Returns rows [{"model", "executor", "test", "batch", "depth", "tokens_per_s", "step_us", "gbps", ...}] of
 * all benchmarks. */
json_t *report_speed(json_t *report);
void report_print(json_t *report, FILE *f); /* Markdown */
