/* part_first.c - runs the decoder's skeleton on this device: checks that its basic mechanisms work at all. */
#include "gpu/gpu.h"
#include "base/clock.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <stdlib.h>

struct first {
    struct gpu *g;
    struct first_host *host;
    struct first_args args;
    struct gpu_launch launch;
    uint32_t sum, total, asked; /* sum of all words; expected total on the device; steps asked for */
};

/* Fills memory with distinct words and computes their sum. */
static int fill_words(struct first *f, size_t n, struct error *err)
{
    uint32_t *words = malloc(n * sizeof *words);
    if (!words)
        return error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        f->sum += words[i] = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 3);
    int rc = gpu_write(f->g, f->args.words, words, n * sizeof *words, err);
    free(words);
    return rc;
}

static int set_up(struct first *f, struct error *err)
{
    struct gpu *g = f->g;
    bool small = g->emulated;
    uint32_t n_crew = small ? 64 : DECODER_MAX_CREW, n_blocks = g->device.n_sms;
    f->args = (struct first_args){.n_pieces = small ? 3 : 5,
                                  .piece_bytes = small ? 1024 : 16384,
                                  .n_stages = small ? 2 : 4,
                                  .n_crew = n_crew,
                                  .missing = UINT32_MAX};
    size_t bytes = (size_t)n_blocks * f->args.n_pieces * f->args.piece_bytes;
    f->launch = (struct gpu_launch){.n_blocks = n_blocks,
                                    .n_threads = n_crew + 64,
                                    .shared_bytes = FIRST_SHARED(f->args.n_stages, f->args.piece_bytes),
                                    .whole = true,
                                    .args = &f->args};
    int rc = gpu_function(g, gpu_ptx_images, "first", "gpu_first", f->launch.shared_bytes,
                          &f->launch.function, err);
    if (rc == 0)
        rc = gpu_pinned(g, &f->host, &f->args.host, sizeof *f->host, err);
    if (rc == 0)
        rc = gpu_memory(g, &f->args.words, bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &f->args.marks, 2 * n_blocks * sizeof(uint32_t), err);
    if (rc == 0)
        rc = gpu_memory(g, &f->args.total, 2 * sizeof(uint32_t), err);
    if (rc == 0)
        rc = gpu_memory(g, &f->args.counters, FIRST_N_WORDS * GPU_LINE * sizeof(uint32_t), err);
    return rc < 0 ? rc : fill_words(f, bytes / sizeof(uint32_t), err);
}

static int launch(struct first *f, uint32_t park_ms, struct error *err)
{
    gpu_store(&f->host->stop, FIRST_RUN);
    f->args.launch++;
    f->args.park_us = park_ms * 1000;
    f->args.first_step = f->asked;
    int rc = gpu_clear(f->g, f->args.counters, FIRST_N_WORDS * GPU_LINE * sizeof(uint32_t), err);
    return rc < 0 ? rc : gpu_start(f->g, &f->launch, err);
}

/* Waits until the kernel reports its end and the driver confirms it. */
static int await_end(struct first *f, const char *why, struct error *err)
{
    if (!gpu_await(f->g, &f->host->left, f->args.launch, GPU_LIMIT_S))
        return gpu_no_answer(f->g, err, "the kernel did not end: %s", why);
    return gpu_finish(f->g, GPU_LIMIT_S, err);
}

static int step(struct first *f, double *seconds, struct error *err)
{
    struct first_host *h = f->host;
    uint32_t key = ++f->asked * 40503u;
    uint64_t start = clock_ns();
    h->key = key;
    gpu_store(&h->asked, f->asked);
    if (!gpu_await(f->g, &h->answered, f->asked, GPU_LIMIT_S))
        return gpu_no_answer(f->g, err, "step %u got no answer", f->asked);
    *seconds = (double)(clock_ns() - start) * 1e-9;
    f->total += f->sum;
    if (gpu_load(&h->answer) != (f->total ^ key))
        return error_set(err, -EIO, "step %u: the sum is %08x, expected %08x", f->asked,
                         gpu_load(&h->answer) ^ key, f->total);
    if (gpu_load(&h->wrong))
        return error_set(err, -EIO, "step %u: %u blocks did not see their neighbour's mark", f->asked,
                         gpu_load(&h->wrong));
    return 0;
}

static int steps(struct first *f, uint32_t n, double *median_s, struct error *err)
{
    double *times = calloc(n, sizeof *times);
    int rc = times ? 0 : error_set(err, -ENOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = step(f, &times[i], err);
    if (rc == 0)
        *median_s = gpu_percentile(times, n, 0.5);
    free(times);
    return rc;
}

static int leave(struct first *f, enum first_stop how, const char *why, struct error *err)
{
    gpu_store(&f->host->stop, how);
    return await_end(f, why, err);
}

/* Runs steps whose answers must be right, then a drain. */
static int try_steps(struct first *f, json_t *out, struct error *err)
{
    uint32_t n = f->g->emulated ? 6 : 2000;
    double median = 0;
    int rc = launch(f, 60000, err);
    if (rc == 0)
        rc = steps(f, n, &median, err);
    if (rc == 0)
        rc = leave(f, FIRST_DRAIN, "drain", err);
    gpu_put(out, "steps", json_integer(n));
    gpu_put(out, "step_us", gpu_figure(f->g, median * 1e6));
    return rc;
}

/* Checks that it parks when nothing comes, and that a new launch continues from there. */
static int try_park(struct first *f, json_t *out, struct error *err)
{
    double ignored, begin, relaunch_s = 0;
    int rc = launch(f, f->g->emulated ? 1 : 20, err);
    if (rc == 0)
        rc = await_end(f, "park", err);
    begin = (double)clock_ns();
    if (rc == 0)
        rc = launch(f, 60000, err);
    if (rc == 0)
        rc = step(f, &ignored, err);
    relaunch_s = ((double)clock_ns() - begin) * 1e-9;
    if (rc == 0)
        rc = leave(f, FIRST_DRAIN, "drain after a park", err);
    gpu_put(out, "relaunch_to_answer_us", gpu_figure(f->g, relaunch_s * 1e6));
    return rc;
}

/* Keeps one block away from the barrier: abort must still end the grid, and the next launch must work. */
static int try_abort(struct first *f, struct error *err)
{
    double ignored;
    f->args.missing = f->launch.n_blocks - 1;
    int rc = launch(f, 60000, err);
    if (rc < 0)
        return rc;
    gpu_store(&f->host->asked, ++f->asked);
    gpu_sleep(0.02);
    if (gpu_load(&f->host->answered) == f->asked)
        return error_set(err, -EIO, "a step ended although a block did not reach the barrier");
    rc = leave(f, FIRST_ABORT, "abort", err);
    f->args.missing = UINT32_MAX;
    if (rc == 0) /* the aborted step has added to the total */
        rc = gpu_read(f->g, &f->total, f->args.total, sizeof f->total, err);
    if (rc == 0)
        rc = launch(f, 60000, err);
    if (rc == 0)
        rc = step(f, &ignored, err);
    return rc < 0 ? rc : leave(f, FIRST_DRAIN, "drain after an abort", err);
}

int part_first(struct gpu *g, json_t *out, struct error *err)
{
    struct first f = {.g = g};
    int rc = set_up(&f, err);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = try_steps(&f, out, err);
    gpu_put(out, "steps_right", json_boolean(rc == 0));
    if (rc == 0)
        rc = try_park(&f, out, err);
    gpu_put(out, "park_and_relaunch", json_boolean(rc == 0));
    if (rc == 0)
        rc = try_abort(&f, err);
    gpu_put(out, "abort_and_relaunch", json_boolean(rc == 0));
    gpu_put(out, "launches", json_integer(f.args.launch));
    return rc;
}
