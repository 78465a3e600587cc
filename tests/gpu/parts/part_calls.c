/* part_calls.c - E6: which driver calls wait for a kernel that does not end. Each call is made in a process
 * of its own beside a grid that fills the device. A call that has not returned after LIMIT_S "waits"; its
 * process then ends the kernel. One more process holds the device meanwhile, so that the driver does not
 * start it anew for each. */
#include "gpu/gpu.h"
#include "base/clock.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_S 1
#define BYTES   4096

/* Everything that a call may need, created before the kernel starts. */
struct beside {
    struct gpu g;
    struct idle_host *host;
    struct idle_args args;
    void *other, *event, *module, *pinned;
    uint64_t memory, spare;
    char small_log[8];
};

#define CALL(name, ...)                                                                                      \
    static int call_##name(struct beside *b)                                                                 \
    {                                                                                                        \
        struct cuda_driver *d = &b->g.driver;                                                                \
        __VA_ARGS__                                                                                          \
    }

CALL(mem_alloc, uint64_t p; return d->cuMemAlloc(&p, (size_t)64 << 20);)
CALL(mem_free, return d->cuMemFree(b->spare);)
CALL(host_alloc, void *p; return d->cuMemHostAlloc(&p, (size_t)1 << 20, CUDA_HOST_PORTABLE);)
CALL(host_free, return d->cuMemFreeHost(b->pinned);)
CALL(mem_info, size_t a; size_t t; return d->cuMemGetInfo(&a, &t);)
CALL(copy_to, return d->cuMemcpyHtoD(b->memory, b->pinned, BYTES);)
CALL(copy_to_async, int rc = d->cuMemcpyHtoDAsync(b->memory, b->pinned, BYTES, b->other);
     return rc ? rc : d->cuStreamSynchronize(b->other);)
CALL(copy_from_async, int rc = d->cuMemcpyDtoHAsync(b->pinned, b->memory, BYTES, b->other);
     return rc ? rc : d->cuStreamSynchronize(b->other);)
CALL(memset_async, int rc = d->cuMemsetD8Async(b->memory, 0, BYTES, b->other);
     return rc ? rc : d->cuStreamSynchronize(b->other);)
CALL(stream_query, int rc = d->cuStreamQuery(b->g.stream); return rc == CUDA_NOT_READY ? 0 : rc;)
CALL(stream_create, void *s; return d->cuStreamCreate(&s, CUDA_STREAM_NON_BLOCKING);)
CALL(stream_destroy, return d->cuStreamDestroy(b->other);)
CALL(event_record, return d->cuEventRecord(b->event, b->other);)
CALL(function_get, void *f; return d->cuModuleGetFunction(&f, b->module, "gpu_hop");)
CALL(module_unload, return d->cuModuleUnload(b->module);)
CALL(module_load, struct error e = {0}; void *m; (void)d;
     return cuda_module_open(&m, &b->g.driver, &b->g.device, gpu_ptx_images, "echo", NULL, &e) ? -1 : 0;)
CALL(context_sync, return d->cuCtxSynchronize();)

static const struct {
    const char *name, *call;
    int (*make)(struct beside *b);
} calls[] = {
    {"mem_alloc", "cuMemAlloc", call_mem_alloc},
    {"mem_free", "cuMemFree", call_mem_free},
    {"host_alloc", "cuMemHostAlloc", call_host_alloc},
    {"host_free", "cuMemFreeHost", call_host_free},
    {"mem_info", "cuMemGetInfo", call_mem_info},
    {"copy_to", "cuMemcpyHtoD", call_copy_to},
    {"copy_to_async", "cuMemcpyHtoDAsync, another stream", call_copy_to_async},
    {"copy_from_async", "cuMemcpyDtoHAsync, another stream", call_copy_from_async},
    {"memset_async", "cuMemsetD8Async, another stream", call_memset_async},
    {"stream_query", "cuStreamQuery", call_stream_query},
    {"stream_create", "cuStreamCreate", call_stream_create},
    {"stream_destroy", "cuStreamDestroy", call_stream_destroy},
    {"event_record", "cuEventRecord, another stream", call_event_record},
    {"function_get", "cuModuleGetFunction", call_function_get},
    {"module_unload", "cuModuleUnload", call_module_unload},
    {"module_load", "cuModuleLoadDataEx", call_module_load},
    {"context_sync", "cuCtxSynchronize", call_context_sync},
};
#define N_CALLS (sizeof calls / sizeof *calls)

static int set_up(struct beside *b, void **function, struct error *err)
{
    struct gpu *g = &b->g;
    uint64_t ignored;
    int rc = gpu_open(g, err);
    if (rc == 0)
        rc = gpu_function(g, gpu_ptx_images, "idle", "gpu_idle", g->device.shared_per_block, function, err);
    if (rc == 0)
        rc = cuda_module_open(&b->module, &g->driver, &g->device, gpu_ptx_images, "hop", NULL, err);
    if (rc == 0)
        rc = gpu_pinned(g, &b->host, &b->args.host, sizeof *b->host, err);
    if (rc == 0)
        rc = gpu_pinned(g, &b->pinned, &ignored, BYTES, err);
    if (rc == 0)
        rc = gpu_memory(g, &b->memory, BYTES, err);
    if (rc == 0)
        rc = gpu_memory(g, &b->spare, BYTES, err);
    if (rc == 0)
        rc = gpu_memory(g, &b->args.counters, (size_t)2 * GPU_LINE * 4, err);
    if (rc == 0)
        rc = gpu_memory(g, &b->args.polls, 2 * sizeof(uint64_t), err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuStreamCreate, &b->other, CUDA_STREAM_NON_BLOCKING);
    return rc < 0 ? rc : CUDA_TRY(&g->driver, err, cuEventCreate, &b->event, CUDA_EVENT_DEFAULT);
}

/* Ends the kernel after the call's time limit. */
static void *release_late(void *host)
{
    gpu_sleep(LIMIT_S);
    gpu_store(&((struct idle_host *)host)->stop, 1);
    return NULL;
}

static int start_kernel(struct beside *b, void *function, struct error *err)
{
    struct gpu_launch launch = {.function = function,
                                .n_blocks = b->g.device.n_sms,
                                .n_threads = b->g.emulated ? 32 : IDLE_THREADS,
                                .shared_bytes = (uint32_t)b->g.device.shared_per_block,
                                .whole = true,
                                .args = &b->args};
    pthread_t thread;
    b->args.sleep_ns = b->args.mirror_ns = 1000;
    int rc = gpu_start(&b->g, &launch, err);
    if (rc == 0 && !gpu_await(&b->g, &b->host->running, 1, GPU_LIMIT_S))
        rc = gpu_no_answer(&b->g, err, "the idle kernel did not start");
    if (rc == 0 && pthread_create(&thread, NULL, release_late, b->host) != 0)
        rc = error_set(err, -ENOMEM, "a thread could not be started");
    return rc;
}

/* Opens the device, says so with an empty line, and keeps it until it is killed or its parent ends. */
static int hold_device(void)
{
    struct gpu g;
    struct error err = {0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (gpu_open(&g, &err) < 0) {
        (void)fprintf(stderr, "hold: %s\n", err.text);
        _exit(1);
    }
    (void)puts("");
    (void)fflush(stdout);
    for (;;)
        pause();
}

/* The child: prints one line, "<us> <waited> <result>". */
int part_calls_child(const char *name)
{
    if (strcmp(name, "hold") == 0)
        return hold_device();
    static struct beside b;
    struct error err = {0};
    void *function;
    size_t i = 0;
    while (i < N_CALLS && strcmp(calls[i].name, name) != 0)
        i++;
    if (i == N_CALLS)
        return 2;
    int rc = set_up(&b, &function, &err);
    if (rc == 0)
        rc = start_kernel(&b, function, &err);
    if (rc < 0) {
        (void)fprintf(stderr, "%s: %s\n", name, err.text);
        _exit(1);
    }
    uint64_t start = clock_ns();
    int result = calls[i].make(&b);
    double us = (double)(clock_ns() - start) * 1e-3;
    (void)printf("%.1f %d %d\n", us, us > LIMIT_S * 0.9e6, result);
    (void)fflush(stdout);
    gpu_store(&b.host->stop, 1);
    rc = gpu_finish(&b.g, 2 * GPU_LIMIT_S, &err);
    /* The emulated driver ends the kernel when a GPU would make the call wait. The call has freed half of
     * what this process holds: exit without cleaning up. */
    _exit(rc < 0 && !b.g.emulated);
}

/* Uses the library's name: this process may not open a context, half of which its children would inherit. */
static bool is_emulated(void)
{
    const char *path = getenv("HEARTH_LIBCUDA");
    return path && strstr(path, "simt");
}

/* Starts `gpu_bench call NAME`, which SIGALRM ends after limit_s (0: none), even if the driver hangs. Returns
 * its id, or -1; reads the beginning of what it prints, up to its end or its first write. */
static pid_t start_child(const char *name, unsigned limit_s, char *line, size_t size)
{
    int pipe_ends[2];
    line[0] = '\0';
    if (pipe(pipe_ends) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        gpu_let_terminate();
        (void)dup2(pipe_ends[1], STDOUT_FILENO);
        (void)alarm(limit_s);
        execl("/proc/self/exe", "gpu_bench", "call", name, (char *)NULL);
        _exit(127);
    }
    close(pipe_ends[1]);
    ssize_t n = pid > 0 ? read(pipe_ends[0], line, size - 1) : -1;
    close(pipe_ends[0]);
    line[n > 0 ? n : 0] = '\0';
    return pid;
}

/* Runs one child. False: it did not end, or printed nothing. */
static bool run_child(const char *name, double *us, int *waited, int *result)
{
    char line[128];
    int status = 1;
    pid_t pid = start_child(name, LIMIT_S + (is_emulated() ? 400 : 20), line, sizeof line);
    if (pid > 0)
        (void)waitpid(pid, &status, 0);
    return pid > 0 && status == 0 && sscanf(line, "%lf %d %d", us, waited, result) == 3;
}

static int make_calls(json_t *rows, struct error *err)
{
    bool emulated = is_emulated();
    int rc = 0;
    for (size_t i = 0; i < N_CALLS; i++) {
        double us = 0;
        int waited = 0, result = 0;
        bool ended = run_child(calls[i].name, &us, &waited, &result);
        json_t *row = json_pack("{s:s}", "call", calls[i].call);
        json_object_set_new(row, "waits", ended && !emulated ? json_boolean(waited) : json_null());
        json_object_set_new(row, "result", ended ? json_integer(result) : json_null());
        json_object_set_new(row, "us", ended && !waited && !emulated ? json_real(us) : json_null());
        gpu_add(rows, row);
        if (!ended)
            rc = error_set(err, -EIO, "%s: its process failed", calls[i].call);
    }
    return rc;
}

int part_calls(struct gpu *g, json_t *out, struct error *err)
{
    char line[8];
    json_t *rows = json_array();
    (void)g;
    gpu_put(out, "rows", rows);
    gpu_put(out, "all_wait_s", json_integer(LIMIT_S * (json_int_t)N_CALLS));
    pid_t holder = start_child("hold", 0, line, sizeof line);
    if (holder < 0 || line[0] != '\n')
        (void)error_set(err, -EIO, "the process that holds the device failed");
    int rc = err->code ? err->code : make_calls(rows, err);
    if (holder > 0) {
        (void)kill(holder, SIGKILL);
        (void)waitpid(holder, NULL, 0);
    }
    return rc;
}
