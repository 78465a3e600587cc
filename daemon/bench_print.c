/* A benchmark's figures as a table and as one JSON object. */
#include "bench.h"
#include "model.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void bench_print_roofline(const struct bench_roofline *roofline, uint32_t threads, FILE *f)
{
    if (threads)
        fprintf(f, "limits of this machine, %u thread%s: %.1f GB/s read, %.2f int8 TOPS\n", threads,
                threads == 1 ? "" : "s", roofline->read_gbps, roofline->int8_tops);
    else if (roofline->read_gbps > 0)
        fprintf(f, "limit of this device, as its driver says: %.1f GB/s read\n", roofline->read_gbps);
    else
        fprintf(f, "the driver does not say how fast this device reads\n");
}

static void print_speed(const struct bench_row *row, bool emulated, FILE *f)
{
    if (emulated)
        fprintf(f, "%11s   %-9s", "-", "-");
    else
        fprintf(f, "%11.2f ± %-9.2f", row->tokens_per_s, row->sd);
}

static void print_row(const struct bench_row *row, bool emulated, FILE *f)
{
    const struct bench_roofline *roofline = &row->roofline;
    char limit[64] = "-";

    if (!emulated && strcmp(row->bound, "read") == 0 && roofline->read_gbps > 0)
        snprintf(limit, sizeof limit, "%5.1f %% of %.1f GB/s read", 100 * row->fraction, roofline->read_gbps);
    else if (!emulated && strcmp(row->bound, "int8") == 0)
        snprintf(limit, sizeof limit, "%5.1f %% of %.2f int8 TOPS", 100 * row->fraction, roofline->int8_tops);
    fprintf(f, "%-16s %-11s ", row->test, config_executor_name(row->executor));
    print_speed(row, emulated, f);
    fprintf(f, " %14.2f %8llu   %s\n", row->launches_per_token, (unsigned long long)row->launches, limit);
}

/* KiB of the largest cache that cpu0 uses, 0 when the kernel does not say. (sysconf() reports what CPUID says
 * of the whole package, ten times what a guest of it is given.) */
static long read_cache_kib(void)
{
    long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%ldK", &kib) != 1)
        kib = 0;
    fclose(f);
    return kib;
}

void bench_print_table(const struct bench_report *report, FILE *f)
{
    const struct model_config *mc = model_config(report->runtime->model);
    char device[128];
    double bytes = 0;

    for (uint32_t i = 0; i < model_n_weights(report->runtime->model); i++)
        bytes += (double)model_weight(report->runtime->model, i)->size;
    runtime_describe(report->runtime, device, sizeof device);
    fprintf(f, "%s · %s %s · %.2f M parameters, %.2f MiB · %s\n", mc->name, mc->arch, mc->quantization,
            (double)mc->n_params / 1e6, bytes / (1 << 20), device);
    if (report->emulated)
        fprintf(f, "SIMT emulator: not a GPU, and so no speeds\n");
    else
        bench_print_roofline(report->roofline, report->threads, f);
    long cache = read_cache_kib();
    if (report->threads && bytes < (double)cache * 1024)
        fprintf(f, "the weights fit this CPU's cache (%ld MiB): reading them may be faster than memory\n",
                cache >> 10);
    fprintf(f, "\n%-16s %-11s %11s   %-9s %14s %8s   %s\n", "test", "executor", "tokens/s", "sd",
            "launches/token", "in all", "of the limit");
    for (uint32_t i = 0; i < report->n_rows; i++)
        print_row(&report->rows[i], report->emulated, f);
}

/* A speed, or null where it is an emulator's. */
static json_t *speed(const struct bench_report *report, double value)
{
    return report->emulated ? json_null() : json_real(value);
}

static json_t *row_json(const struct bench_report *report, const struct bench_row *row)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:f, s:I, s:f, s:f, s:f, s:s, s:o, s:o, s:f, s:o, s:f}", "test",
                     row->test, "executor", config_executor_name(row->executor), "tokens_per_s",
                     speed(report, row->tokens_per_s), "sd", speed(report, row->sd), "launches_per_token",
                     row->launches_per_token, "launches", (json_int_t)row->launches, "bytes_per_token",
                     row->cost.bytes, "int8_ops_per_token", row->cost.int8_ops, "attention_ops_per_token",
                     row->cost.attention_ops, "bound", row->bound, "fraction", speed(report, row->fraction),
                     "read_GBps", speed(report, row->roofline.read_gbps), "int8_TOPS",
                     row->roofline.int8_tops, "read_fraction", speed(report, row->read_fraction),
                     "int8_fraction", row->int8_fraction);
}

void bench_print_json(const struct bench_report *report, FILE *f)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < report->n_rows; i++)
        json_array_append_new(rows, row_json(report, &report->rows[i]));
    json_t *all = json_pack("{s:b, s:{s:o, s:f}, s:o}", "emulated", report->emulated, "roofline", "read_GBps",
                            speed(report, report->roofline->read_gbps), "int8_TOPS",
                            report->roofline->int8_tops, "rows", rows);
    json_dumpf(all, f, JSON_REAL_PRECISION(7));
    fputc('\n', f);
    json_decref(all);
}
