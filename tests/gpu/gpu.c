#include "gpu.h"
#include "base/clock.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS 100000000u /* between two questions to the driver whether a kernel still runs */

int gpu_open(struct gpu *g, struct error *err)
{
    *g = (struct gpu){0};
    int rc = cuda_driver_open(&g->driver, getenv("HEARTH_LIBCUDA"), NULL, err);
    if (rc == 0)
        rc = cuda_device_open(&g->device, &g->driver, -1, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuStreamCreate, &g->stream, CUDA_STREAM_NON_BLOCKING);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuEventCreate, &g->start, CUDA_EVENT_DEFAULT);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuEventCreate, &g->end, CUDA_EVENT_DEFAULT);
    g->emulated = strstr(g->device.name, "emulator") != NULL;
    if (rc < 0)
        gpu_close(g);
    return rc;
}

void gpu_close(struct gpu *g)
{
    if (g->driver.library) {
        gpu_release(g);
        if (g->end)
            g->driver.cuEventDestroy(g->end);
        if (g->start)
            g->driver.cuEventDestroy(g->start);
        if (g->stream)
            g->driver.cuStreamDestroy(g->stream);
        cuda_device_close(&g->device, &g->driver); /* its modules with it */
    }
    cuda_driver_close(&g->driver);
    *g = (struct gpu){0};
}

/* ---- memory ---- */

int gpu_clear(struct gpu *g, uint64_t address, size_t bytes, struct error *err)
{
    int rc = CUDA_TRY(&g->driver, err, cuMemsetD8Async, address, 0, bytes, g->stream);
    return rc < 0 ? rc : CUDA_TRY(&g->driver, err, cuStreamSynchronize, g->stream);
}

int gpu_memory(struct gpu *g, uint64_t *address, size_t bytes, struct error *err)
{
    if (g->n_memory == GPU_MAX_MEMORY)
        return error_set(err, -ENOMEM, "more than %d pieces of device memory", GPU_MAX_MEMORY);
    int rc = CUDA_TRY(&g->driver, err, cuMemAlloc, address, bytes);
    if (rc < 0)
        return rc;
    g->memory[g->n_memory++] = *address;
    return gpu_clear(g, *address, bytes, err);
}

int gpu_pinned(struct gpu *g, void *host, uint64_t *address, size_t bytes, struct error *err)
{
    void *memory;
    if (g->n_pinned == GPU_MAX_MEMORY)
        return error_set(err, -ENOMEM, "more than %d pieces of pinned memory", GPU_MAX_MEMORY);
    int rc = CUDA_TRY(&g->driver, err, cuMemHostAlloc, &memory, bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    if (rc < 0)
        return rc;
    g->pinned[g->n_pinned++] = memory;
    memset(memory, 0, bytes);
    memcpy(host, &memory, sizeof memory);
    return CUDA_TRY(&g->driver, err, cuMemHostGetDevicePointer, address, memory, 0);
}

void gpu_release(struct gpu *g)
{
    while (g->n_memory)
        g->driver.cuMemFree(g->memory[--g->n_memory]);
    while (g->n_pinned)
        g->driver.cuMemFreeHost(g->pinned[--g->n_pinned]);
}

int gpu_write(struct gpu *g, uint64_t to, const void *from, size_t bytes, struct error *err)
{
    /* cuMemcpyHtoD may return before the bytes have arrived, and kernels here do not wait for its stream. */
    int rc = CUDA_TRY(&g->driver, err, cuMemcpyHtoDAsync, to, from, bytes, g->stream);
    return rc < 0 ? rc : CUDA_TRY(&g->driver, err, cuStreamSynchronize, g->stream);
}

int gpu_read(struct gpu *g, void *to, uint64_t from, size_t bytes, struct error *err)
{
    return CUDA_TRY(&g->driver, err, cuMemcpyDtoH, to, from, bytes);
}

/* ---- kernels ---- */

int gpu_function(struct gpu *g, const struct ptx_image *images, const char *source, const char *name,
                 size_t shared_bytes, void **function, struct error *err)
{
    void *module;
    int rc = cuda_module_open(&module, &g->driver, &g->device, images, source, NULL, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuModuleGetFunction, function, module, name);
    if (rc == 0 && shared_bytes)
        rc =
            CUDA_TRY(&g->driver, err, cuFuncSetAttribute, *function, CUDA_FUNCTION_SHARED, (int)shared_bytes);
    return rc;
}

int gpu_start(struct gpu *g, const struct gpu_launch *l, struct error *err)
{
    void *parameters[] = {l->args};
    if (l->whole)
        return CUDA_TRY(&g->driver, err, cuLaunchCooperativeKernel, l->function, l->n_blocks, 1, 1,
                        l->n_threads, 1, 1, l->shared_bytes, g->stream, parameters);
    return CUDA_TRY(&g->driver, err, cuLaunchKernel, l->function, l->n_blocks, 1, 1, l->n_threads, 1, 1,
                    l->shared_bytes, g->stream, parameters, NULL);
}

/* The end of that time. The emulator depends on the machine's other work: it gets twenty times as long. */
static uint64_t gpu_limit_ns(const struct gpu *g, double limit_s)
{
    return clock_ns() + (uint64_t)(limit_s * 1e9) * (g->emulated ? 20 : 1);
}

int gpu_finish(struct gpu *g, double limit_s, struct error *err)
{
    uint64_t limit = gpu_limit_ns(g, limit_s);
    int result;
    while ((result = g->driver.cuStreamQuery(g->stream)) == CUDA_NOT_READY) {
        if (clock_ns() > limit)
            return error_set(err, -ETIMEDOUT, "the kernel still runs after %.0f s", limit_s);
        gpu_sleep(50e-6);
    }
    return cuda_check(&g->driver, err, "cuStreamQuery", result);
}

int gpu_time(struct gpu *g, const struct gpu_launch *l, double *seconds, struct error *err)
{
    float ms = 0;
    int rc = CUDA_TRY(&g->driver, err, cuEventRecord, g->start, g->stream);
    if (rc == 0)
        rc = gpu_start(g, l, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuEventRecord, g->end, g->stream);
    if (rc == 0)
        rc = gpu_finish(g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuEventElapsedTime, &ms, g->start, g->end);
    *seconds = (double)ms * 1e-3;
    return rc;
}

int gpu_clock_mhz(struct gpu *g, double *mhz, struct error *err)
{
    struct clock_args args = {.spin_ns = g->emulated ? 2000 : 1000000};
    struct gpu_launch launch = {.n_blocks = 1, .n_threads = 32, .args = &args};
    uint64_t out[2] = {0};
    int rc = gpu_function(g, gpu_ptx_images, "clock", "gpu_clock", 0, &launch.function, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuMemAlloc, &args.out, sizeof out);
    if (rc == 0)
        rc = gpu_start(g, &launch, err);
    if (rc == 0)
        rc = gpu_finish(g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_read(g, out, args.out, sizeof out, err);
    if (rc == 0 && (!out[0] || out[1] < args.spin_ns))
        rc = error_set(err, -EIO, "an SM counted %llu ticks in %llu ns", (unsigned long long)out[0],
                       (unsigned long long)out[1]);
    if (args.out)
        g->driver.cuMemFree(args.out);
    *mhz = rc == 0 ? (double)out[0] * 1e3 / (double)out[1] : 0;
    return rc;
}

void gpu_note_clock(const struct gpu *g, json_t *out, double before_mhz, double after_mhz)
{
    gpu_put(out, "clock",
            json_pack("{s:o, s:o}", "before_mhz", gpu_figure(g, before_mhz), "after_mhz",
                      gpu_figure(g, after_mhz)));
}

int gpu_warm(struct gpu *g, struct error *err)
{
    const size_t bytes = (size_t)256 << 20;
    struct copy_args args = {.n_words = bytes / 16};
    struct gpu_launch launch = {.n_blocks = 2 * g->device.n_sms, .n_threads = COPY_THREADS, .args = &args};
    if (g->emulated)
        return 0;
    int rc = gpu_function(g, gpu_ptx_images, "copy", "gpu_fill", 0, &launch.function, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuMemAlloc, &args.to, bytes);
    uint64_t end = clock_ns() + 300000000;
    while (rc == 0 && clock_ns() < end) {
        rc = gpu_start(g, &launch, err);
        if (rc == 0)
            rc = gpu_finish(g, GPU_LIMIT_S, err);
    }
    if (args.to)
        g->driver.cuMemFree(args.to);
    return rc;
}

/* ---- words ---- */

void gpu_store(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

uint32_t gpu_load(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void gpu_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

bool gpu_await(const struct gpu *g, const uint32_t *word, uint32_t value, double limit_s)
{
    uint64_t limit = 0, look = 0;
    for (uint32_t spins = 0; gpu_load(word) != value; spins++) {
        if (g->emulated)
            gpu_sleep(20e-6); /* it needs the processor */
        if (spins % 1024)
            continue;
        uint64_t now = clock_ns();
        if (!limit) {
            limit = gpu_limit_ns(g, limit_s);
            look = now + LOOK_NS;
        } else if (now > limit) {
            return false;
        } else if (now > look) { /* late enough for no measurement to notice the call */
            if (g->driver.cuStreamQuery(g->stream) != CUDA_NOT_READY)
                return gpu_load(word) == value;
            look = now + LOOK_NS;
        }
    }
    return true;
}

int gpu_no_answer(struct gpu *g, struct error *err, const char *fmt, ...)
{
    char words[160];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    struct error died = {0};
    int result = g->driver.cuStreamQuery(g->stream);
    if (result == CUDA_NOT_READY)
        return error_set(err, -ETIMEDOUT, "%s, and the kernel still runs", words);
    if (result == CUDA_SUCCESS)
        return error_set(err, -EIO, "%s: the kernel has ended", words);
    cuda_check(&g->driver, &died, "cuStreamQuery", result);
    return error_set(err, -EIO, "%s: %.200s", words, died.text);
}

/* ---- the report ---- */

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;

static sigset_t only_term(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    return set;
}

int gpu_put(json_t *object, const char *key, json_t *value)
{
    pthread_mutex_lock(&report_lock);
    int rc = json_object_set_new(object, key, value);
    pthread_mutex_unlock(&report_lock);
    return rc;
}

int gpu_add(json_t *array, json_t *value)
{
    pthread_mutex_lock(&report_lock);
    int rc = json_array_append_new(array, value);
    pthread_mutex_unlock(&report_lock);
    return rc;
}

/* The lock stays taken: nothing is printed after this. */
void gpu_report_print(json_t *out, const char *program, int rc, const struct error *err)
{
    pthread_mutex_lock(&report_lock);
    json_object_set_new(out, "ok", json_boolean(rc == 0));
    if (rc < 0) {
        json_object_set_new(out, "error", json_string(err->text));
        (void)fprintf(stderr, "%s: %s\n", program, err->text);
    }
    json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    (void)puts("");
    (void)fflush(stdout);
}

static void *print_when_stopped(void *out)
{
    sigset_t set = only_term();
    int number;
    while (sigwait(&set, &number) != 0)
        continue;
    struct error err = {0};
    (void)error_set(&err, -ETIMEDOUT, "stopped before its end; the report has what was measured until then");
    gpu_report_print(out, "SIGTERM", err.code, &err);
    _exit(124);
}

void gpu_report_open(json_t *out)
{
    sigset_t set = only_term();
    pthread_t thread;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&thread, NULL, print_when_stopped, out) != 0)
        gpu_let_terminate(); /* without a report */
    else
        pthread_detach(thread);
}

void gpu_let_terminate(void)
{
    sigset_t set = only_term();
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* ---- figures ---- */

json_t *gpu_figure(const struct gpu *g, double value)
{
    return g->emulated ? json_null() : json_real(value);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gpu_percentile(double *values, uint32_t n, double fraction)
{
    qsort(values, n, sizeof *values, ascending);
    return values[(uint32_t)((n - 1) * fraction)];
}
