/* part_copy.c - the ceilings: device memory read and copied by plain loads, copied by the driver, and the
 * bus. Copy bandwidth counts bytes read and bytes written. */
#include "gpu/gpu.h"
#include "base/clock.h"
#include "gpu/kernels/gpu_kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 5

struct copy {
    struct gpu *g;
    size_t bytes;
    uint32_t n_blocks;
    uint64_t from, to;
};

static uint32_t copy_pattern(uint32_t i)
{
    uint32_t v = i * 2654435761u;
    return v ^ v >> 15;
}

/* Returns the best of some rounds: other work on the machine only adds time. */
static int time_kernel(struct copy *c, const char *name, double *best, struct error *err)
{
    struct copy_args args = {.to = c->to, .from = c->from, .n_words = c->bytes / 16};
    struct gpu_launch launch = {.n_blocks = c->n_blocks, .n_threads = COPY_THREADS, .args = &args};
    if (strcmp(name, "gpu_fill") == 0)
        args.to = c->from;
    int rc = gpu_function(c->g, gpu_ptx_images, "copy", name, 0, &launch.function, err);
    *best = 1e9;
    for (int i = 0; rc == 0 && i < (c->g->emulated ? 1 : ROUNDS); i++) {
        double seconds;
        rc = gpu_time(c->g, &launch, &seconds, err);
        *best = seconds < *best ? seconds : *best;
    }
    return rc;
}

/* Times the driver's own copy. Hearth does not use this call, so it is looked up here. */
static int time_driver(struct copy *c, double *best, struct error *err)
{
    struct cuda_driver *d = &c->g->driver;
    int (*copy)(uint64_t, uint64_t, size_t, void *) = NULL;
    void *symbol = dlsym(d->library, "cuMemcpyDtoDAsync_v2");
    *best = 0;
    if (!symbol)
        return 0;
    memcpy(&copy, &symbol, sizeof copy);
    int rc = 0;
    *best = 1e9;
    for (int i = 0; rc == 0 && i < ROUNDS; i++) {
        float ms = 0;
        rc = CUDA_TRY(d, err, cuEventRecord, c->g->start, c->g->stream);
        if (rc == 0)
            rc = cuda_check(d, err, "cuMemcpyDtoDAsync", copy(c->to, c->from, c->bytes, c->g->stream));
        if (rc == 0)
            rc = CUDA_TRY(d, err, cuEventRecord, c->g->end, c->g->stream);
        if (rc == 0)
            rc = gpu_finish(c->g, GPU_LIMIT_S, err);
        if (rc == 0)
            rc = CUDA_TRY(d, err, cuEventElapsedTime, &ms, c->g->start, c->g->end);
        *best = ms * 1e-3 < *best ? ms * 1e-3 : *best;
    }
    return rc;
}

/* Checks the beginning and the end of the destination after `move`. */
static int check_copy(struct copy *c, struct error *err)
{
    enum { N = 4096 };
    static uint32_t words[N];
    size_t n_all = c->bytes / 4;
    for (int end = 0; end < 2; end++) {
        size_t first = end ? n_all - N : 0;
        int rc = gpu_read(c->g, words, c->to + first * 4, sizeof words, err);
        for (size_t i = 0; rc == 0 && i < N; i++)
            if (words[i] != copy_pattern((uint32_t)(first + i)))
                rc =
                    error_set(err, -EIO, "word %zu of the copy is %08x, which is wrong", first + i, words[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Checks the sum of all words, thread by thread, from the device's sums. */
static int check_read(struct copy *c, struct error *err)
{
    size_t n = (size_t)c->n_blocks * COPY_THREADS;
    uint32_t *sums = malloc(n * sizeof *sums), sum = 0;
    int rc = sums ? gpu_read(c->g, sums, c->to, n * sizeof *sums, err) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < n; i++)
        sum += sums[i];
    for (size_t i = 0; rc == 0 && i < c->bytes / 4; i++)
        sum -= copy_pattern((uint32_t)i);
    free(sums);
    return rc == 0 && sum ? error_set(err, -EIO, "the sum of the words read is wrong") : rc;
}

/* Measures pinned host memory to the device and back, GB/s: the fastest that weights can be loaded. */
static int time_bus(struct copy *c, double rates[2], struct error *err)
{
    struct cuda_driver *d = &c->g->driver;
    size_t bytes = c->g->emulated ? 4096 : (size_t)256 << 20;
    uint64_t address;
    void *host;
    int rc = gpu_pinned(c->g, &host, &address, bytes, err);
    for (int back = 0; rc == 0 && back < 2; back++) {
        uint64_t start = clock_ns();
        rc = back ? CUDA_TRY(d, err, cuMemcpyDtoHAsync, host, c->from, bytes, c->g->stream)
                  : CUDA_TRY(d, err, cuMemcpyHtoDAsync, c->to, host, bytes, c->g->stream);
        if (rc == 0)
            rc = gpu_finish(c->g, GPU_LIMIT_S, err);
        rates[back] = (double)bytes / (double)(clock_ns() - start);
    }
    return rc;
}

int part_copy(struct gpu *g, json_t *out, struct error *err)
{
    struct copy c = {.g = g, .n_blocks = g->emulated ? 2 : 2 * g->device.n_sms};
    double fill = 0, read = 0, move = 0, driver = 0, bus[2] = {0};
    size_t unit = (size_t)COPY_CHUNK * 16;
    c.bytes = (g->emulated ? unit : (size_t)2 << 30) / unit * unit;
    int rc = gpu_memory(g, &c.from, c.bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &c.to, c.bytes, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = time_kernel(&c, "gpu_fill", &fill, err);
    if (rc == 0)
        rc = time_kernel(&c, "gpu_read", &read, err);
    if (rc == 0)
        rc = check_read(&c, err);
    if (rc == 0)
        rc = time_kernel(&c, "gpu_move", &move, err);
    if (rc == 0)
        rc = check_copy(&c, err);
    if (rc == 0)
        rc = time_driver(&c, &driver, err);
    if (rc == 0)
        rc = time_bus(&c, bus, err);
    if (rc < 0)
        return rc;
    double gigabytes = (double)c.bytes * 1e-9;
    gpu_put(out, "bytes", json_integer((json_int_t)c.bytes));
    gpu_put(out, "fill_gbps", gpu_figure(g, gigabytes / fill));
    gpu_put(out, "read_gbps", gpu_figure(g, gigabytes / read));
    gpu_put(out, "copy_gbps", gpu_figure(g, 2 * gigabytes / move));
    gpu_put(out, "driver_copy_gbps", driver > 0 ? gpu_figure(g, 2 * gigabytes / driver) : json_null());
    gpu_put(out, "to_device_gbps", gpu_figure(g, bus[0]));
    gpu_put(out, "to_host_gbps", gpu_figure(g, bus[1]));
    return 0;
}
