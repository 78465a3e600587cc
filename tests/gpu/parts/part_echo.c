/* part_echo.c - E3: round trip of a word to the device, cost of a poll of host memory on the device, and
 * whether steps stay even while the I/O warp polls and the host asks. */
#include "gpu/gpu.h"
#include "base/clock.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <stdlib.h>

struct echo {
    struct gpu *g;
    struct echo_host *host;
    struct echo_args args;
    struct gpu_launch launch;
    double *times; /* times of asks, or of steps; room for n_times */
    uint32_t n_times, asked;
};

static int start(struct echo *e, uint32_t n_blocks, uint32_t n_steps, bool polls, struct error *err)
{
    e->launch.n_blocks = n_blocks;
    e->args.n_steps = n_steps;
    e->args.polls_host = polls;
    *e->host = (struct echo_host){0};
    e->asked = 0;
    int rc = gpu_clear(e->g, e->args.counters, (size_t)ECHO_N_WORDS * GPU_LINE * 4, err);
    return rc < 0 ? rc : gpu_start(e->g, &e->launch, err);
}

static int ask(struct echo *e, double *us, struct error *err)
{
    uint64_t begin = clock_ns();
    gpu_store(&e->host->asked, ++e->asked);
    if (!gpu_await(e->g, &e->host->answered, e->asked, GPU_LIMIT_S))
        return gpu_no_answer(e->g, err, "request %u got no answer", e->asked);
    *us = (double)(clock_ns() - begin) * 1e-3;
    return 0;
}

static void put_percentiles(const struct echo *e, json_t *to, uint32_t n)
{
    json_object_set_new(to, "median_us", gpu_figure(e->g, gpu_percentile(e->times, n, 0.5)));
    json_object_set_new(to, "min_us", gpu_figure(e->g, e->times[0]));
    json_object_set_new(to, "p99_us", gpu_figure(e->g, e->times[(uint32_t)((n - 1) * 0.99)]));
    json_object_set_new(to, "max_us", gpu_figure(e->g, e->times[n - 1]));
}

/* Measures round trips with one block and no other work. */
static int round_trips(struct echo *e, json_t *out, struct error *err)
{
    uint32_t n = e->g->emulated ? 20 : 5000;
    uint64_t polls[2];
    int rc = start(e, 1, 0, true, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = ask(e, &e->times[i], err);
    gpu_store(&e->host->stop, 1);
    if (rc == 0)
        rc = gpu_finish(e->g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_read(e->g, polls, e->args.polls, sizeof polls, err);
    if (rc < 0)
        return rc;
    json_t *row = json_pack("{s:i}", "n", (int)n);
    put_percentiles(e, row, n);
    gpu_put(out, "round_trip", row);
    gpu_put(out, "poll_ns", gpu_figure(e->g, (double)polls[1] / (double)polls[0]));
    return 0;
}

/* Asks while the steps run. False: they are over, and no answer comes; they may end at any moment. */
static bool ask_beside(struct echo *e)
{
    gpu_store(&e->host->asked, ++e->asked);
    while (!gpu_await(e->g, &e->host->answered, e->asked, 0.001))
        if (e->g->driver.cuStreamQuery(e->g->stream) != CUDA_NOT_READY)
            return false;
    return true;
}

/* Measures steps of 32 grid barriers; the first ones warm up. */
static int even_steps(struct echo *e, const char *what, bool polls, bool asks, json_t *rows,
                      struct error *err)
{
    uint32_t n = e->g->emulated ? 4 : 2000, warm = n / 10;
    uint64_t *ns = calloc(n, sizeof *ns);
    int rc = ns ? start(e, e->g->device.n_sms, n, polls, err) : error_set(err, -ENOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && asks && i < (e->g->emulated ? 3 : 2000); i++) {
        if (!ask_beside(e))
            break;
    }
    if (rc == 0)
        rc = gpu_finish(e->g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_read(e->g, ns, e->args.times, n * sizeof *ns, err);
    for (uint32_t i = warm; i < n; i++)
        e->times[i - warm] = (double)(ns ? ns[i] : 0) * 1e-3;
    free(ns);
    if (rc < 0)
        return rc;
    json_t *row = json_pack("{s:s, s:i}", "what", what, "n", (int)(n - warm));
    put_percentiles(e, row, n - warm);
    return gpu_add(rows, row);
}

static int set_up(struct echo *e, struct error *err)
{
    struct gpu *g = e->g;
    e->n_times = 5000;
    e->times = calloc(e->n_times, sizeof *e->times);
    e->args.n_crew = g->emulated ? 64 : DECODER_MAX_CREW;
    e->args.n_barriers = g->emulated ? 2 : 32;
    e->launch = (struct gpu_launch){.n_threads = e->args.n_crew + 32, .whole = true, .args = &e->args};
    int rc = e->times ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = gpu_function(g, gpu_ptx_images, "echo", "gpu_echo", 0, &e->launch.function, err);
    if (rc == 0)
        rc = gpu_pinned(g, &e->host, &e->args.host, sizeof *e->host, err);
    if (rc == 0)
        rc = gpu_memory(g, &e->args.counters, (size_t)ECHO_N_WORDS * GPU_LINE * 4, err);
    if (rc == 0)
        rc = gpu_memory(g, &e->args.times, e->n_times * sizeof(uint64_t), err);
    return rc < 0 ? rc : gpu_memory(g, &e->args.polls, 2 * sizeof(uint64_t), err);
}

int part_echo(struct gpu *g, json_t *out, struct error *err)
{
    struct echo e = {.g = g};
    json_t *rows = json_array();
    gpu_put(out, "steps", rows);
    int rc = set_up(&e, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = round_trips(&e, out, err);
    if (rc == 0)
        rc = even_steps(&e, "no polls of the host", false, false, rows, err);
    if (rc == 0)
        rc = even_steps(&e, "I/O warp polls", true, false, rows, err);
    if (rc == 0)
        rc = even_steps(&e, "I/O warp polls, host asks", true, true, rows, err);
    free(e.times);
    return rc;
}
