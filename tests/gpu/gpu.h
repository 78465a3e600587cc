/* gpu.h - a device for the measuring and testing programs: memory, launches, times, and the report of a part.
 * Everything goes through lib/cuda/driver.h, so the same programs run on the emulated driver
 * (HEARTH_LIBCUDA), with small sizes and null in place of every figure.
 * Memory: gpu_release() frees what gpu_memory() and gpu_pinned() reserved.
 * Thread: one. */
#pragma once
#include "cuda/driver.h"
#include "cuda/ptx_image.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define GPU_MAX_MEMORY 16

extern const struct ptx_image gpu_ptx_images[]; /* of tests/gpu/kernels */

struct gpu {
    struct cuda_driver driver;
    struct cuda_device device;
    void *stream, *start, *end;
    bool emulated;
    uint64_t memory[GPU_MAX_MEMORY];
    void *pinned[GPU_MAX_MEMORY];
    uint32_t n_memory, n_pinned;
};

int gpu_open(struct gpu *g, struct error *err); /* the driver named by HEARTH_LIBCUDA, or the system's */
void gpu_close(struct gpu *g);

/* Reserves zeroed device memory, or zeroed host memory that the device can access, until gpu_release(). */
int gpu_memory(struct gpu *g, uint64_t *address, size_t bytes, struct error *err);
int gpu_pinned(struct gpu *g, void *host, uint64_t *address, size_t bytes, struct error *err); /* void ** */
void gpu_release(struct gpu *g);
int gpu_clear(struct gpu *g, uint64_t address, size_t bytes, struct error *err);
int gpu_write(struct gpu *g, uint64_t to, const void *from, size_t bytes, struct error *err);
int gpu_read(struct gpu *g, void *to, uint64_t from, size_t bytes, struct error *err);

struct gpu_launch {
    void *function;
    uint32_t n_blocks, n_threads, shared_bytes;
    bool whole; /* cooperative: all blocks at once, or an error */
    void *args;
};
/* Compiles kernel `name` of that source. shared_bytes: the most that a launch will request. */
int gpu_function(struct gpu *g, const struct ptx_image *images, const char *source, const char *name,
                 size_t shared_bytes, void **function, struct error *err);
int gpu_start(struct gpu *g, const struct gpu_launch *launch, struct error *err);
/* Longest wait for a kernel to answer or to end: less than half of the time after which a part is stopped, so
 * that it ends with words. */
#define GPU_LIMIT_S 5
/* Waits for all that was started. -ETIMEDOUT: the limit has passed; the kernel still runs. */
int gpu_finish(struct gpu *g, double limit_s, struct error *err);
/* Starts a launch, waits, and sets the time that the device needed. */
int gpu_time(struct gpu *g, const struct gpu_launch *launch, double *seconds, struct error *err);

/* Measures the clock of an SM against the device's timer over a millisecond. */
int gpu_clock_mhz(struct gpu *g, double *mhz, struct error *err);
/* Adds both figures to a part's report, as `clock`. */
void gpu_note_clock(const struct gpu *g, json_t *out, double before_mhz, double after_mhz);

/* Keeps the device busy until its clocks have risen from idle; does nothing on the emulator. */
int gpu_warm(struct gpu *g, struct error *err);

/* Words shared with a running kernel. */
void gpu_store(uint32_t *word, uint32_t value);
uint32_t gpu_load(const uint32_t *word);
/* Waits until *word == value. False: the limit has passed, or the kernel has ended without that. */
bool gpu_await(const struct gpu *g, const uint32_t *word, uint32_t value, double limit_s);
/* After such a wait. Returns the driver's error, if the kernel died; -EIO if it ended; -ETIMEDOUT if it still
 * runs. */
int gpu_no_answer(struct gpu *g, struct error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void gpu_sleep(double seconds);

/* The report of a program, a JSON object. While the program runs, everything reachable from it is added by
 * gpu_put() and gpu_add() alone (whole values, which change no more), since another thread may print it: on
 * SIGTERM, with which check.sh stops a part, the report comes with what it has so far, `ok` false, and the
 * process exits with 124, even if its other threads hang in the driver. */
void gpu_report_open(json_t *out); /* before any thread is started: blocks SIGTERM in all of them */
int gpu_put(json_t *object, const char *key, json_t *value); /* takes the value, like jansson's _new */
int gpu_add(json_t *array, json_t *value);
/* Prints it, with `ok` and, if rc < 0, `error`, also to stderr after `program`. Once: SIGTERM prints no more.
 */
void gpu_report_print(json_t *out, const char *program, int rc, const struct error *err);
void gpu_let_terminate(void); /* in a child after fork(): SIGTERM ends it again */

/* Returns a figure that only a GPU can give; null on the emulator. */
json_t *gpu_figure(const struct gpu *g, double value);
double gpu_percentile(double *values, uint32_t n, double fraction); /* sorts values */

/* A part of the measurement: fills in `out`. Returns an error if something failed or a result is wrong. */
typedef int gpu_part_fn(struct gpu *g, json_t *out, struct error *err);
gpu_part_fn part_device, part_first, part_selftest, part_copy, part_stream, part_hop, part_echo, part_idle,
    part_product, part_attention, part_calls;
/* E6: makes one driver call beside a running kernel, in a process of its own. */
int part_calls_child(const char *name);
