/* A benchmark's figures as a table and as one JSON object. */
#include "bench.h"
#include "roofline/roofline.h"
#include "model/model.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void print_machine(const struct bench_roofline *roofline, uint32_t threads, FILE *f)
{
    fprintf(f, "limits of this machine, %u thread%s: %.1f GB/s read, %.2f int8 TOPS (%s)", threads,
            threads == 1 ? "" : "s", roofline->read_gbps, roofline->int8_tops, roofline_unit());
    if (roofline->f32_tflops > 0)
        fprintf(f, ", %.2f f32 TFLOPS", roofline->f32_tflops);
    if (roofline->bf16_tflops > 0)
        fprintf(f, ", %.2f bf16 TFLOPS", roofline->bf16_tflops);
    if (roofline->amx_tops > 0)
        fprintf(f, ", %.2f int8 TOPS (AMX)", roofline->amx_tops);
    fputc('\n', f);
}

void bench_print_roofline(const struct bench_roofline *roofline, uint32_t threads, FILE *f)
{
    if (threads)
        print_machine(roofline, threads, f);
    else if (roofline->read_gbps > 0)
        fprintf(f, "limit of this device, as reported by its driver: %.1f GB/s read\n", roofline->read_gbps);
    else
        fprintf(f, "the driver does not report how fast this device reads\n");
}

static void print_speed(const struct bench_row *row, bool emulated, FILE *f)
{
    if (emulated)
        fprintf(f, "%11s   %-9s", "-", "-");
    else
        fprintf(f, "%11.2f ± %-9.2f", row->tokens_per_s, row->sd);
}

/* Ends a line. bound: "read", "int8", "f32", "bf16", or NULL where there is nothing to compare with. */
static void print_limit(const char *bound, double fraction, const struct bench_roofline *roofline, FILE *f)
{
    if (bound && strcmp(bound, "read") == 0 && roofline->read_gbps > 0)
        fprintf(f, "   %5.1f %% of %.1f GB/s read\n", 100 * fraction, roofline->read_gbps);
    else if (bound && strcmp(bound, "int8") == 0)
        fprintf(f, "   %5.1f %% of %.2f int8 TOPS\n", 100 * fraction, roofline->int8_tops);
    else if (bound)
        fprintf(f, "   %5.1f %% of %.2f %s TFLOPS\n", 100 * fraction,
                bound[0] == 'b' ? roofline->bf16_tflops : roofline->f32_tflops, bound);
    else
        fprintf(f, "   -\n");
}

static void print_row(const struct bench_row *row, bool emulated, FILE *f)
{
    fprintf(f, "%-16s %-11s ", row->test, config_executor_name(row->executor));
    print_speed(row, emulated, f);
    fprintf(f, " %14.2f %8llu", row->launches_per_token, (unsigned long long)row->launches);
    print_limit(emulated ? NULL : row->bound, row->fraction, &row->roofline, f);
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

static void print_op(const struct bench_op *op, const struct bench_ops *all, double total_us, bool emulated,
                     FILE *f)
{
    double fraction;
    const char *bound = bench_op_bound(op, &all->roofline, &fraction);

    fprintf(f, "%-30s %4u", op->name, op->n);
    if (!emulated)
        fprintf(f, " %10.1f %5.1f %%", op->us, total_us > 0 ? 100 * op->us / total_us : 0);
    fprintf(f, " %9.3f %9.4f %9.4f", op->bytes * 1e-6, op->int8_ops * 1e-9, op->float_ops * 1e-9);
    print_limit(emulated ? NULL : bound, fraction, &all->roofline, f);
}

static double total_us(const struct bench_ops *all)
{
    double sum = 0;

    for (uint32_t i = 0; i < all->n; i++)
        sum += all->ops[i].us;
    return sum;
}

static void print_ops(const struct bench_ops *all, const struct bench_report *report, FILE *f)
{
    struct bench_op sum = {.name = "all", .us = total_us(all)};

    if (all->steps == 0) {
        fprintf(f, "\n%s: no table of ops, since prompts are computed between its steps\n", all->test);
        return;
    }
    fprintf(f, "\n%s, executor %s%s, a step of %.1f rows (mean of %llu)\n", all->test,
            config_executor_name(all->executor),
            all->by_device && !report->emulated ? " by the device's clock" : "", all->rows,
            (unsigned long long)all->steps);
    fprintf(f, "%-30s %4s%s %9s %9s %9s   %s\n", "op", "n", report->emulated ? "" : "         us   share",
            "MB", "int8 GOP", "float GOP", "of the limit");
    for (uint32_t i = 0; i < all->n; i++) {
        print_op(&all->ops[i], all, sum.us, report->emulated, f);
        sum.n += all->ops[i].n;
        sum.bytes += all->ops[i].bytes;
        sum.int8_ops += all->ops[i].int8_ops;
        sum.float_ops += all->ops[i].float_ops;
    }
    print_op(&sum, all, sum.us, report->emulated, f);
    if (report->threads > 1 && all->executor == EXECUTOR_PERSISTENT)
        fprintf(f, "EMBED is the first op of a step: its time includes waking the threads.\n");
    if (all->executor == EXECUTOR_PERSISTENT)
        fprintf(f, "Norms, rotations and sums are counted with the ops that they are fused with.\n");
    fprintf(f, "MB counts what a step reads from memory: weights and, while a text is generated, keys and "
               "values.\n");
}

static void print_trace(const struct bench_trace *t, const struct bench_report *report, FILE *f)
{
    const char *member = report->threads ? "thread" : "block";

    fprintf(f, "\n%s, the last step on %u %s%s: medians over the layers\n", t->test, t->n_members, member,
            t->n_members == 1 ? "" : "s");
    fprintf(f, "%-30s %4s%s   last\n", "op", "n",
            report->emulated ? "" : "    wait us    work us    skew us");
    for (uint32_t i = 0; i < t->n; i++) {
        const struct bench_traced_op *op = &t->ops[i];
        fprintf(f, "%-30s %4u", op->name, op->n);
        if (!report->emulated)
            fprintf(f, " %10.1f %10.1f %10.1f", op->wait_us, op->work_us, op->skew_us);
        fprintf(f, "   %s %u (%u of %u)\n", member, op->last, op->n_last, op->n);
    }
}

void bench_print_table(const struct bench_report *report, FILE *f)
{
    const struct model_config *mc = model_config(report->runtime->model);
    char device[128];
    double bytes = 0;

    for (uint32_t i = 0; i < model_n_weights(report->runtime->model); i++)
        bytes += (double)bench_weight_bytes(model_weight(report->runtime->model, i));
    runtime_describe(report->runtime, device, sizeof device);
    fprintf(f, "%s · %s %s · %.2f M parameters, %.2f MiB · %s\n", mc->name, mc->arch, mc->quantization,
            (double)mc->n_params / 1e6, bytes / (1 << 20), device);
    if (report->emulated)
        fprintf(f, "SIMT emulator, not a GPU: no speeds are shown\n");
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
    for (uint32_t i = 0; i < report->n_ops; i++)
        print_ops(&report->ops[i], report, f);
    for (uint32_t i = 0; i < report->n_traces; i++)
        print_trace(&report->traces[i], report, f);
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

static json_t *op_json(const struct bench_report *report, const struct bench_ops *all,
                       const struct bench_op *op)
{
    double fraction;
    const char *bound = bench_op_bound(op, &all->roofline, &fraction);

    return json_pack("{s:s, s:i, s:o, s:f, s:f, s:f, s:s?, s:o}", "op", op->name, "n", (int)op->n, "us",
                     speed(report, op->us), "bytes", op->bytes, "int8_ops", op->int8_ops, "float_ops",
                     op->float_ops, "bound", report->emulated ? NULL : bound, "fraction",
                     bound ? speed(report, fraction) : json_null());
}

/* The ops of one test's steps as JSON, on average. */
static json_t *ops_json(const struct bench_report *report, const struct bench_ops *all)
{
    json_t *ops = json_array();

    for (uint32_t i = 0; i < all->n; i++)
        json_array_append_new(ops, op_json(report, all, &all->ops[i]));
    return json_pack("{s:s, s:s, s:I, s:f, s:o, s:f, s:f, s:f, s:o}", "test", all->test, "executor",
                     config_executor_name(all->executor), "steps", (json_int_t)all->steps, "rows_per_step",
                     all->rows, "read_GBps", speed(report, all->roofline.read_gbps), "int8_TOPS",
                     all->roofline.int8_tops, "f32_TFLOPS", all->roofline.f32_tflops, "bf16_TFLOPS",
                     all->roofline.bf16_tflops, "ops", ops);
}

/* The ops of one kind in one step of a test, as its members saw them. */
static json_t *trace_json(const struct bench_report *report, const struct bench_trace *t)
{
    json_t *ops = json_array();

    for (uint32_t i = 0; i < t->n; i++) {
        const struct bench_traced_op *op = &t->ops[i];
        json_array_append_new(
            ops, json_pack("{s:s, s:i, s:o, s:o, s:o, s:i, s:i}", "op", op->name, "n", (int)op->n, "wait_us",
                           speed(report, op->wait_us), "work_us", speed(report, op->work_us), "skew_us",
                           speed(report, op->skew_us), "last", (int)op->last, "n_last", (int)op->n_last));
    }
    return json_pack("{s:s, s:I, s:i, s:o}", "test", t->test, "step", (json_int_t)t->step, "members",
                     (int)t->n_members, "ops", ops);
}

/* The variants of the cpu's products, as in /stats; null on other backends. */
static json_t *tuning_json(const struct bench_report *report)
{
    struct backend_info info;
    json_t *choices = json_array();

    executor_info(report->runtime->executor, &info);
    for (uint32_t i = 0; info.tuning && i < info.tuning->n_choices; i++) {
        const struct backend_choice *c = &info.tuning->choices[i];
        json_array_append_new(choices,
                              json_pack("{s:s, s:I, s:o, s:s, s:s, s:s, s:I, s:b, s:f, s:f, s:b}", "weights",
                                        c->weights, "first", (json_int_t)c->first, "last",
                                        c->last == UINT32_MAX ? json_null() : json_integer(c->last),
                                        "kernels", c->kernels, "shape", c->shape, "hint", c->hint, "ahead",
                                        (json_int_t)c->ahead, "measured", c->measured, "gain", c->gain,
                                        "GBps", c->gbps, "unsettled", c->unsettled));
    }
    if (!info.tuning) {
        json_decref(choices);
        return json_null();
    }
    json_t *folds = json_array();
    for (uint32_t i = 0; i < info.tuning->n_folds; i++) {
        const struct backend_fold *fold = &info.tuning->folds[i];
        json_array_append_new(folds, json_pack("{s:I, s:s}", "head_dim", (json_int_t)fold->head_dim, "by",
                                               fold->by_floats ? "floats" : "bf16"));
    }
    return json_pack("{s:s, s:s?, s:f, s:I, s:I, s:o, s:o}", "source", info.tuning->source, "note",
                     info.tuning->note, "ms", info.tuning->ms, "unsettled",
                     (json_int_t)info.tuning->n_unsettled, "again", (json_int_t)info.tuning->n_again,
                     "choices", choices, "folds", folds);
}

void bench_print_json(const struct bench_report *report, FILE *f)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < report->n_rows; i++)
        json_array_append_new(rows, row_json(report, &report->rows[i]));
    json_t *limits = json_pack("{s:o, s:f, s:s}", "read_GBps", speed(report, report->roofline->read_gbps),
                               "int8_TOPS", report->roofline->int8_tops, "int8_unit", roofline_unit());
    if (!report->runtime)
        json_object_update_new(
            limits, json_pack("{s:f, s:f, s:f}", "f32_TFLOPS", report->roofline->f32_tflops, "bf16_TFLOPS",
                              report->roofline->bf16_tflops, "amx_TOPS", report->roofline->amx_tops));
    json_t *all =
        json_pack("{s:b, s:o, s:o}", "emulated", report->emulated, "roofline", limits, "rows", rows);
    if (report->runtime)
        json_object_set_new(all, "tuning", tuning_json(report));
    for (uint32_t i = 0; i < report->n_ops; i++) {
        if (i == 0)
            json_object_set_new(all, "ops", json_array());
        json_array_append_new(json_object_get(all, "ops"), ops_json(report, &report->ops[i]));
    }
    for (uint32_t i = 0; i < report->n_traces; i++) {
        if (i == 0)
            json_object_set_new(all, "traces", json_array());
        json_array_append_new(json_object_get(all, "traces"), trace_json(report, &report->traces[i]));
    }
    json_dumpf(all, f, JSON_REAL_PRECISION(7));
    fputc('\n', f);
    json_decref(all);
}
