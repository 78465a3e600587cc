/* gpu_report.h - the report of check.sh: one object of everything that its parts said, and what follows. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* What is to be reached at batch 1 and 512 tokens of context, Q4_K_M, on an H200. */
struct report_target {
    const char *model;
    double step_us;       /* at batch 1 */
    double moonshot_us;   /* the aim */
    double batch8_factor; /* the step at batch 8, against that */
};
extern const struct report_target report_targets[]; /* ends with model NULL */

/* The part of that name, or NULL: {"part", "kind", "result", "seconds", "output_end", "data"}. */
json_t *report_part(json_t *report, const char *name);
/* A number of a part's data, by path: keys with dots. -1: there is none. */
double report_number(json_t *report, const char *part, const char *path);
/* Rows [{"model", "executor", "test", "batch", "depth", "tokens_per_s", "step_us", "gbps", ...}] of all
 * benchmarks. */
json_t *report_speed(json_t *report);
void report_print(json_t *report, FILE *f); /* Markdown */
