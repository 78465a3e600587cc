/* report_table.c - the report of check.sh as Markdown. A dash stands where there is no figure. */
#include "gpu_report.h"

#include <string.h>

static const char *text_of(json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "-";
}

/* A cell: a number, or a dash. */
static void cell(FILE *f, json_t *value, int digits, double factor)
{
    if (json_is_number(value))
        (void)fprintf(f, " %.*f |", digits, json_number_value(value) * factor);
    else
        (void)fputs(" - |", f);
}

static void line(FILE *f, json_t *report, const char *what, const char *part, const char *path,
                 const char *unit)
{
    double value = report_number(report, part, path);
    if (value >= 0)
        (void)fprintf(f, "| %s | %.4g %s |\n", what, value, unit);
    else
        (void)fprintf(f, "| %s | - |\n", what);
}

static void print_head(json_t *report, FILE *f)
{
    json_t *d = json_object_get(report_part(report, "device"), "data");
    bool emulated = json_is_true(json_object_get(report, "emulated"));
    int version = (int)json_integer_value(json_object_get(d, "driver"));
    (void)fprintf(f, "# Hearth on %s\n\n%s · driver for CUDA %d.%d · sm_%d · %d SMs · %.1f GiB · %s\n\n",
                  text_of(report, "device"), text_of(report, "when"), version / 1000, version % 1000 / 10,
                  (int)json_integer_value(json_object_get(d, "capability")),
                  (int)json_integer_value(json_object_get(d, "sms")),
                  json_number_value(json_object_get(d, "memory_bytes")) / (1 << 30), text_of(report, "smi"));
    if (emulated)
        (void)fputs("**SIMT emulator: the driver is a test double. The report has no figures of speed.**\n\n",
                    f);
    const char *ended = json_string_value(json_object_get(report, "ended"));
    if (!ended)
        (void)fputs("**NOT ENDED: the check still runs, or was stopped.**\n\n", f);
    else
        (void)fprintf(f, "**%s** (%s)\n\n",
                      json_is_true(json_object_get(report, "passed"))
                          ? "All parts of kind `right` passed."
                          : "FAILED: see the parts of kind `right` below.",
                      ended);
}

static void print_parts(json_t *report, FILE *f)
{
    size_t i;
    json_t *part;
    (void)fputs("## Parts\n\n| part | kind | result | s |\n|---|---|---|---|\n", f);
    json_array_foreach(json_object_get(report, "parts"), i, part)(void)
        fprintf(f, "| %s | %s | %s | %d |\n", text_of(part, "part"), text_of(part, "kind"),
                text_of(part, "result"), (int)json_integer_value(json_object_get(part, "seconds")));
    json_array_foreach(json_object_get(report, "parts"), i,
                       part) if (strcmp(text_of(part, "result"), "ok") != 0)(void)
        fprintf(f, "\n%s, %s:\n```\n%s\n```\n", text_of(part, "part"), text_of(part, "result"),
                text_of(part, "output_end"));
}

static void print_speed(json_t *report, FILE *f)
{
    size_t i;
    json_t *row, *speed = json_object_get(report, "speed");
    if (!json_array_size(speed))
        return;
    (void)fputs(
        "\n## Models\n\nµs per step; GB/s: weights, and keys and values, that a step must read.\n\n"
        "| model | executor | test | µs | tokens/s | GB/s | of copy | of read | launches per token |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        f);
    json_array_foreach(speed, i, row)
    {
        (void)fprintf(f, "| %s | %s | %s |", text_of(row, "model"), text_of(row, "executor"),
                      text_of(row, "test"));
        cell(f, json_object_get(row, "step_us"), 1, 1);
        cell(f, json_object_get(row, "tokens_per_s"), 0, 1);
        cell(f, json_object_get(row, "gbps"), 0, 1);
        cell(f, json_object_get(row, "of_copy"), 3, 1);
        cell(f, json_object_get(row, "of_read"), 3, 1);
        cell(f, json_object_get(row, "launches_per_token"), 3, 1);
        (void)fputc('\n', f);
    }
}

/* The persistent executor's step at depth 512; NULL: not measured. */
static json_t *measured(json_t *report, const char *model, int batch)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(report, "speed"), i,
                       row) if (strcmp(text_of(row, "model"), model) == 0 &&
                                strcmp(text_of(row, "executor"), "persistent") == 0 &&
                                strncmp(text_of(row, "test"), "tg", 2) == 0 &&
                                json_integer_value(json_object_get(row, "depth")) == 512 &&
                                json_integer_value(json_object_get(row, "batch")) ==
                                    batch) return json_object_get(row, "step_us");
    return NULL;
}

static void print_targets(json_t *report, FILE *f)
{
    (void)fputs("\n## Targets\n\nPersistent, context 512, Q4_K_M, on an H200.\n\n"
                "| model | µs at batch 1 | target | moonshot | batch 8 / batch 1 | target "
                "|\n|---|---|---|---|---|---|\n",
                f);
    for (const struct report_target *t = report_targets; t->model; t++) {
        json_t *one = measured(report, t->model, 1), *eight = measured(report, t->model, 8);
        (void)fprintf(f, "| %s |", t->model);
        cell(f, one, 1, 1);
        (void)fprintf(f, " %.0f | %.0f |", t->step_us, t->moonshot_us);
        cell(f, json_is_number(one) ? eight : NULL, 2, json_is_number(one) ? 1 / json_number_value(one) : 0);
        (void)fprintf(f, " %.2f |\n", t->batch8_factor);
    }
}

static void print_lines(json_t *report, FILE *f)
{
    static const struct {
        const char *what, *part, *path, *unit;
    } lines[] = {
        {"memory bus, according to the driver", "device", "bus_gbps", "GB/s"},
        {"copy, plain loads and stores (read and written)", "copy", "copy_gbps", "GB/s"},
        {"copy, by the driver", "copy", "driver_copy_gbps", "GB/s"},
        {"read, plain loads", "copy", "read_gbps", "GB/s"},
        {"read, weight ring (E1, best setting)", "stream", "best_gbps", "GB/s"},
        {"fill", "copy", "fill_gbps", "GB/s"},
        {"host to device", "copy", "to_device_gbps", "GB/s"},
        {"device to host", "copy", "to_host_gbps", "GB/s"},
        {"first kernel: a step of 80 KiB per block, request to answer", "first", "step_us", "µs"},
        {"first kernel: relaunch to answer", "first", "relaunch_to_answer_us", "µs"},
        {"ring round trip, median (E3)", "echo", "round_trip.median_us", "µs"},
        {"ring round trip, 99th percentile", "echo", "round_trip.p99_us", "µs"},
        {"a poll of host memory", "echo", "poll_ns", "ns"},
        {"time to first token over HTTP, median", "serve", "ttft.median_ms", "ms"},
        {"time to first token after a park", "serve", "ttft_after_park_ms", "ms"},
        {"launches while serving", "serve", "launches", ""},
    };
    (void)fputs("\n## Figures\n\n| what | |\n|---|---|\n", f);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        line(f, report, lines[i].what, lines[i].part, lines[i].path, lines[i].unit);
}

/* A part's rows, some keys of each. */
static void print_rows(json_t *report, FILE *f, const char *title, const char *part, const char *list,
                       const char *const keys[])
{
    size_t i;
    json_t *row, *rows = json_object_get(json_object_get(report_part(report, part), "data"), list);
    if (!json_array_size(rows))
        return;
    (void)fprintf(f, "\n## %s\n\n|", title);
    for (size_t k = 0; keys[k]; k++)
        (void)fprintf(f, " %s |", keys[k]);
    (void)fputs("\n|", f);
    for (size_t k = 0; keys[k]; k++)
        (void)fputs("---|", f);
    json_array_foreach(rows, i, row)
    {
        (void)fputs("\n|", f);
        for (size_t k = 0; keys[k]; k++) {
            json_t *value = json_object_get(row, keys[k]);
            if (json_is_string(value))
                (void)fprintf(f, " %s |", json_string_value(value));
            else if (json_is_boolean(value))
                (void)fprintf(f, " %s |", json_is_true(value) ? "yes" : "no");
            else
                cell(f, value, json_is_integer(value) ? 0 : 2, 1);
        }
    }
    (void)fputc('\n', f);
}

/* The waits in one step of a test of hearthd bench. */
static void print_trace(json_t *trace, const char *part, FILE *f)
{
    size_t i;
    json_t *op;
    (void)fprintf(f,
                  "\n%s, %s, %d blocks:\n\n| op | n | wait µs | work µs | skew µs | last block | in |\n"
                  "|---|---|---|---|---|---|---|\n",
                  part, text_of(trace, "test"), (int)json_integer_value(json_object_get(trace, "members")));
    json_array_foreach(json_object_get(trace, "ops"), i, op)
    {
        (void)fprintf(f, "| %s |", text_of(op, "op"));
        cell(f, json_object_get(op, "n"), 0, 1);
        cell(f, json_object_get(op, "wait_us"), 2, 1);
        cell(f, json_object_get(op, "work_us"), 2, 1);
        cell(f, json_object_get(op, "skew_us"), 2, 1);
        cell(f, json_object_get(op, "last"), 0, 1);
        cell(f, json_object_get(op, "n_last"), 0, 1);
        (void)fputc('\n', f);
    }
}

static void print_traces(json_t *report, FILE *f)
{
    size_t i, k;
    json_t *part, *trace;
    bool any = false;
    json_array_foreach(json_object_get(report, "parts"), i, part)
    {
        json_array_foreach(json_object_get(json_object_get(part, "data"), "traces"), k, trace)
        {
            if (!any)
                (void)fputs("\n## One step, by its blocks\n\nMedians over the layers; trace-*.json has every "
                            "block, for ui.perfetto.dev.\n",
                            f);
            any = true;
            print_trace(trace, text_of(part, "part"), f);
        }
    }
}

/* The device's state before and after, and the clock of its SMs around each part, or behind it. */
static void print_health(json_t *report, FILE *f)
{
    size_t i;
    json_t *line, *part, *lines = json_object_get(report, "health");
    if (json_array_size(lines) > 0)
        (void)fputs("\n## The device, before and after\n\n", f);
    json_array_foreach(lines, i, line)(void) fprintf(f, "- %s\n", json_string_value(line));
    if (!json_is_true(json_object_get(report, "emulated")))
        (void)fputs("\n## Clock of the SMs by the device's timer, MHz\n\n", f);
    json_array_foreach(json_object_get(report, "parts"), i, part)
    {
        json_t *clock = json_object_get(json_object_get(part, "data"), "clock");
        if (json_is_number(json_object_get(clock, "before_mhz")))
            (void)fprintf(f, "- %s: %.0f before, %.0f after\n", text_of(part, "part"),
                          json_number_value(json_object_get(clock, "before_mhz")),
                          json_number_value(json_object_get(clock, "after_mhz")));
    }
}

void report_print(json_t *report, FILE *f)
{
    static const char *const stream[] = {"mode", "stages", "stage_bytes", "burst_bytes", "gbps", NULL};
    static const char *const hop[] = {"what", "crew", "blocks", "streams", "ns", "beside_gbps", NULL};
    static const char *const steps[] = {"what", "n", "median_us", "min_us", "p99_us", "max_us", NULL};
    static const char *const attention[] = {"cache", "tokens", "rows", "layers", "us", "gbps", NULL};
    static const char *const watts[] = {"state", "watts", "sm_mhz", "look_ns", NULL};
    static const char *const calls[] = {"call", "waits", "us", "result", NULL};
    static const char *const products[] = {"weights", "rows",    "wide",        "by_columns", "quantises",
                                           "in_l2",   "stages",  "stage_bytes", "us",         "gbps",
                                           "tops",    "of_ring", NULL};
    static const char *const kernels[] = {"source", "kernel", "registers", "local_bytes", "cubin", NULL};
    print_head(report, f);
    print_parts(report, f);
    print_targets(report, f);
    print_speed(report, f);
    print_traces(report, f);
    print_health(report, f);
    print_lines(report, f);
    print_rows(report, f, "Watts of the daemon", "serve", "watts", watts);
    print_rows(report, f, "E1: the weight ring", "stream", "rows", stream);
    print_rows(report, f, "E2: hops", "hop", "rows", hop);
    print_rows(report, f, "E3: steps of 32 grid barriers", "echo", "steps", steps);
    print_rows(report, f, "E4: products alone", "product", "rows", products);
    print_rows(report, f, "E7: attention alone", "attention", "rows", attention);
    print_rows(report, f, "E5: a waiting kernel", "idle", "rows", watts);
    print_rows(report, f, "E6: driver calls beside a running kernel", "calls", "rows", calls);
    print_rows(report, f, "Kernels", "device", "kernels", kernels);
}
