/* gpu_report.c - combines the parts of check.sh.
 *   gpu_report WORK OUT
 * WORK/parts has a line name|kind|result|seconds per part; WORK/NAME.json and WORK/NAME.err are its output.
 * WORK/running has name|kind of a part that has not ended; WORK/ended exists when there are no more parts.
 * Replaces OUT/report.json and OUT/report.md as a whole. Exit code 0: no part is missing, every part of kind
 * `right` is ok, and there was one. On the emulated driver every speed is null, whichever program measured
 * it. */
#include "gpu_report.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OUTPUT_END 2000 /* bytes of a failed part's output */

const struct report_target report_targets[] = {
    {"qwen3-0.6b", 240, 155, 1.45},
    {"llama-3.2-1b", 300, 245, 1.25},
    {"qwen3-8b", 1390, 1210, 1.25},
    {NULL, 0, 0, 0},
};

/* ---- reading ---- */

static json_t *read_json(const char *work, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s.json", work, name);
    return json_load_file(path, 0, NULL);
}

static json_t *read_end(const char *work, const char *name)
{
    char path[4096], text[OUTPUT_END + 1];
    (void)snprintf(path, sizeof path, "%s/%s.err", work, name);
    FILE *f = fopen(path, "re");
    size_t n = 0;
    if (f && (fseek(f, -OUTPUT_END, SEEK_END) == 0 || fseek(f, 0, SEEK_SET) == 0))
        n = fread(text, 1, OUTPUT_END, f);
    if (f)
        (void)fclose(f);
    for (size_t i = 0; i < n; i++) /* a program may print any bytes: the report is UTF-8 */
        if ((unsigned char)text[i] >= 0x80 || ((unsigned char)text[i] < ' ' && text[i] != '\n'))
            text[i] = '?';
    return json_stringn(text, n);
}

static void add_part(json_t *parts, const char *work, const char *line)
{
    char name[64], clock_of[80], kind[16], result[16];
    int seconds;
    if (sscanf(line, "%63[^|]|%15[^|]|%15[^|]|%d", name, kind, result, &seconds) != 4)
        return;
    json_t *part =
        json_pack("{s:s, s:s, s:s, s:i}", "part", name, "kind", kind, "result", result, "seconds", seconds);
    if (strcmp(result, "ok") != 0)
        json_object_set_new(part, "output_end", read_end(work, name));
    json_t *data = read_json(work, name);
    (void)snprintf(clock_of, sizeof clock_of, "%s.clock", name); /* measured behind a program that does not */
    json_t *clock = read_json(work, clock_of);
    if (clock && json_is_object(data) && !json_object_get(data, "clock"))
        json_object_set(data, "clock", json_object_get(clock, "clock"));
    json_decref(clock);
    json_object_set_new(part, "data", data ? data : json_null());
    json_array_append_new(parts, part);
}

static FILE *open_in(const char *work, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", work, name);
    return fopen(path, "re");
}

/* Adds the part that ran when the check was killed. */
static void add_running(json_t *parts, const char *work)
{
    char line[128], full[160];
    FILE *f = open_in(work, "running");
    if (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(full, sizeof full, "%s|interrupted|0", line);
        add_part(parts, work, full);
    }
    if (f)
        (void)fclose(f);
}

static json_t *read_parts(const char *work)
{
    char line[256];
    json_t *parts = json_array();
    FILE *f = open_in(work, "parts");
    while (f && fgets(line, sizeof line, f))
        add_part(parts, work, line);
    if (f)
        (void)fclose(f);
    add_running(parts, work);
    return parts;
}

/* Returns the first line of a file, or null. */
static json_t *read_line(const char *work, const char *name)
{
    char line[256] = "";
    FILE *f = open_in(work, name);
    bool any = f && fgets(line, sizeof line, f);
    if (f)
        (void)fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return any ? json_string(line) : json_null();
}

static json_t *read_lines(const char *work, const char *name)
{
    char line[512];
    json_t *lines = json_array();
    FILE *f = open_in(work, name);
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        json_array_append_new(lines, json_string(line));
    }
    if (f)
        (void)fclose(f);
    return lines;
}

/* ---- parts ---- */

json_t *report_part(json_t *report, const char *name)
{
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(report, "parts"), i,
                       part) if (strcmp(json_string_value(json_object_get(part, "part")), name) ==
                                 0) return part;
    return NULL;
}

double report_number(json_t *report, const char *part, const char *path)
{
    json_t *at = json_object_get(report_part(report, part), "data");
    char key[64];
    for (const char *p = path; at && *p;) {
        size_t n = strcspn(p, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, p);
        at = json_object_get(at, key);
        p += n + (p[n] == '.');
    }
    return json_is_number(at) ? json_number_value(at) : -1;
}

static bool is_emulated(json_t *report)
{
    size_t i;
    json_t *part;
    json_array_foreach(
        json_object_get(report, "parts"), i,
        part) if (json_is_true(json_object_get(json_object_get(part, "data"), "emulated"))) return true;
    return false;
}

/* ---- speeds ---- */

/* Removes speeds that hearthd bench measured on the emulated driver. */
static void forget_speeds(json_t *rows)
{
    static const char *const keys[] = {"tokens_per_s", "sd", "fraction"};
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        json_object_set_new(row, keys[k], json_null());
}

/* Returns the number after `mark` in a test's name, such as "tg128@d512@b8". */
static int named(const char *test, const char *mark, int otherwise)
{
    const char *at = strstr(test, mark);
    return at ? atoi(at + strlen(mark)) : otherwise;
}

static json_t *number_or_null(double value)
{
    return value > 0 ? json_real(value) : json_null();
}

/* `by`: the last word of the part's name. */
static void add_speed(json_t *report, json_t *to, const char *model, const char *by, json_t *row)
{
    const char *test = json_string_value(json_object_get(row, "test"));
    double rate = json_number_value(json_object_get(row, "tokens_per_s"));
    double bytes = json_number_value(json_object_get(row, "bytes_per_token"));
    bool prefill = test && strncmp(test, "pp", 2) == 0;
    int batch = test ? named(test, "@b", 1) : 1;
    if (!test)
        return;
    double gbps = prefill ? 0 : rate * bytes * 1e-9;
    double copy = report_number(report, "copy", "copy_gbps"),
           read = json_number_value(json_object_get(report, "read_ceiling_gbps"));
    const char *executor = json_string_value(json_object_get(row, "executor"));
    bool hops = strcmp(by, "hops") == 0; /* persistent too */
    json_t *out = json_pack("{s:s, s:s?, s:s, s:i, s:i}", "model", model, "executor", hops ? by : executor,
                            "test", test, "batch", batch, "depth", named(test, "@d", 0));
    json_object_set_new(out, "tokens_per_s", number_or_null(rate));
    json_object_set_new(out, "step_us", prefill || rate <= 0 ? json_null() : json_real(batch * 1e6 / rate));
    json_object_set_new(out, "gbps", number_or_null(gbps));
    json_object_set_new(out, "of_copy", copy > 0 ? number_or_null(gbps / copy) : json_null());
    json_object_set_new(out, "of_read", read > 0 ? number_or_null(gbps / read) : json_null());
    json_object_set(out, "launches_per_token", json_object_get(row, "launches_per_token"));
    json_array_append_new(to, out);
}

/* Collects the parts named bench-MODEL-EXECUTOR. */
json_t *report_speed(json_t *report)
{
    json_t *speed = json_array(), *part, *row;
    size_t i, k;
    json_array_foreach(json_object_get(report, "parts"), i, part)
    {
        const char *name = json_string_value(json_object_get(part, "part"));
        char model[64];
        if (strncmp(name, "bench-", 6) != 0)
            continue;
        const char *by = strrchr(name, '-') + 1;
        (void)snprintf(model, sizeof model, "%.*s", by > name + 6 ? (int)(by - 1 - (name + 6)) : 0, name + 6);
        json_t *rows = json_object_get(json_object_get(part, "data"), "rows");
        if (is_emulated(report))
            forget_speeds(rows);
        json_array_foreach(rows, k, row) add_speed(report, speed, model, by, row);
    }
    return speed;
}

/* Returns the best read bandwidth: the weight ring's, or that of plain loads. */
static double read_ceiling(json_t *report)
{
    double ring = report_number(report, "stream", "best_gbps"),
           plain = report_number(report, "copy", "read_gbps");
    return ring > plain ? ring : plain;
}

/* Adds to each product its fraction of the ring's bandwidth without computation. */
static void compare_products(json_t *report)
{
    size_t i;
    json_t *row, *rows = json_object_get(json_object_get(report_part(report, "product"), "data"), "rows");
    double ring = report_number(report, "stream", "best_gbps");
    json_array_foreach(rows, i, row)
    {
        json_t *gbps = json_object_get(row, "gbps");
        bool known = json_is_number(gbps) && ring > 0;
        json_object_set_new(row, "of_ring", known ? json_real(json_number_value(gbps) / ring) : json_null());
    }
}

/* ---- the report ---- */

static bool passed(json_t *report)
{
    size_t i, n_right = 0, n_ok = 0;
    json_t *part;
    json_array_foreach(json_object_get(report, "parts"), i, part)
    {
        bool right = strcmp(json_string_value(json_object_get(part, "kind")), "right") == 0;
        n_right += right;
        n_ok += right && strcmp(json_string_value(json_object_get(part, "result")), "ok") == 0;
    }
    return n_right > 0 && n_ok == n_right && json_is_string(json_object_get(report, "ended"));
}

static json_t *make_report(const char *work)
{
    char when[32];
    time_t now = time(NULL);
    (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    json_t *report =
        json_pack("{s:s, s:o, s:o, s:o, s:o}", "when", when, "smi", read_line(work, "smi"), "health",
                  read_lines(work, "health"), "ended", read_line(work, "ended"), "parts", read_parts(work));
    json_t *device = json_object_get(json_object_get(report_part(report, "device"), "data"), "device");
    json_object_set(report, "device", device ? device : json_null());
    json_object_set_new(report, "emulated", json_boolean(is_emulated(report)));
    json_object_set_new(report, "passed", json_boolean(passed(report)));
    json_object_set_new(report, "read_ceiling_gbps", number_or_null(read_ceiling(report)));
    json_object_set_new(report, "speed", report_speed(report));
    compare_products(report);
    return report;
}

/* Opens OUT/NAME.new, which close_out() renames to OUT/NAME: a reader never sees half a report. */
static FILE *open_out(const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s.new", folder, name);
    FILE *f = fopen(path, "we");
    if (!f)
        perror(path);
    return f;
}

static bool close_out(FILE *f, const char *folder, const char *name)
{
    char from[4096], to[4096];
    (void)snprintf(from, sizeof from, "%s/%s.new", folder, name);
    (void)snprintf(to, sizeof to, "%s/%s", folder, name);
    if (f && fclose(f) == 0 && rename(from, to) == 0)
        return true;
    perror(to);
    return false;
}

static bool write_report(json_t *report, const char *folder)
{
    FILE *json = open_out(folder, "report.json"), *table = open_out(folder, "report.md");
    if (json) {
        (void)json_dumpf(report, json, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        (void)fputc('\n', json);
    }
    if (table)
        report_print(report, table);
    bool written = close_out(json, folder, "report.json");
    return close_out(table, folder, "report.md") && written;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: gpu_report WORK OUT\n");
        return 2;
    }
    json_t *report = make_report(argv[1]);
    bool written = write_report(report, argv[2]);
    bool right = json_is_true(json_object_get(report, "passed"));
    (void)printf("%s: %s\n", argv[2], right ? "all parts of kind right passed" : "FAILED: see report.md");
    json_decref(report);
    return !written || !right;
}
