/* part_idle.c - E5: watts of a waiting kernel, by how long it sleeps between two polls. The watts come from
 * the command in GPU_POWER ("watts, MHz"); without it only the polls are counted. */
#include "gpu/gpu.h"
#include "gpu/kernels/gpu_kernels.h"
#include "gpu/power.h"

#include <errno.h>

static int measure(struct gpu *g, struct idle_host *host, struct gpu_launch *launch, json_t *row,
                   struct error *err)
{
    struct idle_args *args = launch->args;
    uint64_t polls[2];
    *host = (struct idle_host){0};
    int rc = gpu_clear(g, args->counters, (size_t)2 * GPU_LINE * 4, err);
    if (rc == 0)
        rc = gpu_start(g, launch, err);
    if (rc < 0)
        return rc;
    if (!gpu_await(g, &host->running, 1, GPU_LIMIT_S))
        return gpu_no_answer(g, err, "the idle kernel did not start");
    gpu_sleep(g->emulated ? 0.005 : 1.5); /* averaging time of power meters */
    power_put(row);
    gpu_store(&host->stop, 1);
    rc = gpu_finish(g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_read(g, polls, args->polls, sizeof polls, err);
    if (rc == 0 && !polls[0])
        rc = error_set(err, -EIO, "the idle kernel never polled");
    if (rc == 0)
        json_object_set_new(row, "look_ns", gpu_figure(g, (double)polls[1] / (double)polls[0]));
    return rc;
}

int part_idle(struct gpu *g, json_t *out, struct error *err)
{
    static const struct {
        const char *what;
        uint32_t sleep_ns, mirror_ns;
    } states[] = {{"spinning", 0, 0},
                  {"sleep 200 ns", 200, 200},
                  {"sleep 1 us", 1000, 1000},
                  {"sleep 20 us", 20000, 1000}};
    struct idle_args args = {0};
    struct gpu_launch launch = {.n_blocks = g->device.n_sms,
                                .n_threads = g->emulated ? 32 : IDLE_THREADS,
                                .shared_bytes = (uint32_t)g->device.shared_per_block,
                                .whole = true,
                                .args = &args};
    struct idle_host *host;
    json_t *rows = json_array(), *row = json_pack("{s:s}", "state", "no kernel");
    gpu_put(out, "rows", rows);
    int rc = gpu_function(g, gpu_ptx_images, "idle", "gpu_idle", launch.shared_bytes, &launch.function, err);
    if (rc == 0)
        rc = gpu_pinned(g, &host, &args.host, sizeof *host, err);
    if (rc == 0)
        rc = gpu_memory(g, &args.counters, (size_t)2 * GPU_LINE * 4, err);
    if (rc == 0)
        rc = gpu_memory(g, &args.polls, 2 * sizeof(uint64_t), err);
    if (rc == 0)
        power_put(row);
    gpu_add(rows, row);
    for (size_t i = 0; rc == 0 && i < sizeof states / sizeof *states; i++) {
        row = json_pack("{s:s}", "state", states[i].what);
        args.sleep_ns = states[i].sleep_ns;
        args.mirror_ns = states[i].mirror_ns;
        rc = measure(g, host, &launch, row, err);
        gpu_add(rows, row);
    }
    return rc;
}
