/* gpu_bench.c - runs one part of the measurement of a GPU and prints JSON to stdout.
 *   gpu_bench PART
 * Exit code 0: the part ran and its checks passed. 124: SIGTERM came, the JSON has what was measured until
 * then. HEARTH_LIBCUDA selects the driver; GPU_POWER is a command
 * that prints watts and MHz for the part `idle`. check.sh runs all parts. */
#include "gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static gpu_part_fn part_clock;

static const struct {
    const char *name, *what;
    gpu_part_fn *run;
    bool no_gpu; /* the part opens no GPU itself */
} parts[] = {
    {"device", "device, driver, and the registers of every kernel", part_device, false},
    {"first", "ring echo, weight ring, grid barrier, park, relaunch, drain, abort", part_first, false},
    {"selftest", "mma fragments, IEEE rounding, f16, the functions of arith.h", part_selftest, false},
    {"copy", "copy bandwidth and plain reads", part_copy, false},
    {"stream", "E1: read bandwidth of the weight ring", part_stream, false},
    {"hop", "E2: hop and grid barrier", part_hop, false},
    {"echo", "E3: round trips between host and device, evenness of steps beside them", part_echo, false},
    {"product", "E4: the matrix product on real shapes", part_product, false},
    {"attention", "E7: attention alone, by length and type of cache", part_attention, false},
    {"idle", "E5: watts of a waiting kernel", part_idle, false},
    {"clock", "the clock of an SM by the device's timer", part_clock, false},
    {"calls", "E6: which driver calls wait for a running kernel", part_calls, true},
};
/* The clock alone, for programs that do not measure it: check.sh runs this behind them. */
static int part_clock(struct gpu *g, json_t *out, struct error *err)
{
    (void)g, (void)out, (void)err; /* run_part() measures it */
    return 0;
}

#define N_PARTS (sizeof parts / sizeof *parts)

/* The part opens its devices in processes of its own. */
static int run_apart(size_t i, json_t *out, struct error *err)
{
    struct gpu g;
    double before = 0, after = 0;
    int rc = gpu_open(&g, err);
    if (rc < 0)
        return rc;
    rc = gpu_clock_mhz(&g, &before, err);
    gpu_close(&g);
    if (rc == 0)
        rc = parts[i].run(NULL, out, err);
    if (rc == 0)
        rc = gpu_open(&g, err);
    if (rc < 0)
        return rc;
    rc = gpu_clock_mhz(&g, &after, err);
    gpu_note_clock(&g, out, before, after);
    gpu_close(&g);
    return rc;
}

static int run_part(size_t i, struct error *err, json_t *out)
{
    struct gpu g = {0};
    double before = 0, after = 0;
    int rc = parts[i].no_gpu ? run_apart(i, out, err) : gpu_open(&g, err);
    if (rc == 0 && !parts[i].no_gpu) {
        gpu_put(out, "device", json_string(g.device.name));
        gpu_put(out, "emulated", json_boolean(g.emulated));
        rc = gpu_clock_mhz(&g, &before, err);
        if (rc == 0)
            rc = parts[i].run(&g, out, err);
        if (rc == 0)
            rc = gpu_clock_mhz(&g, &after, err);
        if (rc == 0)
            gpu_note_clock(&g, out, before, after);
    }
    char program[32];
    (void)snprintf(program, sizeof program, "gpu_bench %s", parts[i].name);
    gpu_report_print(out, program, rc, err);
    if (rc == -ETIMEDOUT)
        _exit(1); /* a kernel still runs: waiting for it could take for ever */
    gpu_close(&g);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "call") == 0)
        return part_calls_child(argv[2]);
    for (size_t i = 0; argc == 2 && i < N_PARTS; i++) {
        if (strcmp(argv[1], parts[i].name) != 0)
            continue;
        struct error err = {0};
        json_t *out = json_pack("{s:s}", "part", parts[i].name);
        gpu_report_open(out);
        return run_part(i, &err, out) < 0;
    }
    (void)fprintf(stderr, "usage: gpu_bench PART\n");
    for (size_t i = 0; i < N_PARTS; i++)
        (void)fprintf(stderr, "  %-9s %s\n", parts[i].name, parts[i].what);
    return 2;
}
