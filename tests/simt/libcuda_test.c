/* libcuda_test.c - tests the emulated driver through lib/cuda: memory, streams, events, graphs, grids beside
 * their host, and every failure that it can be asked for. HEARTH_LIBCUDA names the library; one of the two
 * has the race detector. */
#include "cuda/driver.h"
#include "simt/libcuda/kernels/driver_kernels.h"
#include "cuda/ptx_image.h"
#include "simt/toys/toys.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <elf.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CELLS 300

extern const struct ptx_image driver_test_images[];

struct bench { /* a device with a stream */
    struct cuda_driver d;
    struct cuda_device dev;
    void *stream;
};

#define WELL(b, call, ...) cr_assert_eq((b)->d.call(__VA_ARGS__), CUDA_SUCCESS, #call)

static struct bench open_bench(void)
{
    struct bench b = {0};
    struct error err = {0};
    cr_assert_eq(cuda_driver_open(&b.d, getenv("HEARTH_LIBCUDA"), NULL, &err), 0, "%s", err.text);
    cr_assert_eq(cuda_device_open(&b.dev, &b.d, -1, &err), 0, "%s", err.text);
    WELL(&b, cuStreamCreate, &b.stream, CUDA_STREAM_NON_BLOCKING);
    return b;
}

static void close_bench(struct bench *b)
{
    cuda_device_close(&b->dev, &b->d);
    cuda_driver_close(&b->d);
}

static void *function_of(struct bench *b, const char *module_name, const char *name)
{
    void *module = NULL, *function = NULL;
    struct error err = {0};
    cr_assert_eq(cuda_module_open(&module, &b->d, &b->dev, driver_test_images, module_name, NULL, &err), 0,
                 "%s", err.text);
    WELL(b, cuModuleGetFunction, &function, module, name);
    return function;
}

static uint64_t device_memory(struct bench *b, size_t bytes)
{
    uint64_t p = 0;
    WELL(b, cuMemAlloc, &p, bytes);
    WELL(b, cuMemsetD8Async, p, 0, bytes, b->stream);
    WELL(b, cuStreamSynchronize, b->stream);
    return p;
}

static void *pinned_memory(struct bench *b, size_t bytes)
{
    void *p = NULL;
    WELL(b, cuMemHostAlloc, &p, bytes, CUDA_HOST_MAPPED | CUDA_HOST_PORTABLE);
    memset(p, 0, bytes);
    return p;
}

static int launch(struct bench *b, void *function, unsigned n_blocks, const void *args)
{
    void *parameters[] = {(void *)(uintptr_t)args};
    return b->d.cuLaunchKernel(function, n_blocks, 1, 1, DRIVER_KERNEL_THREADS, 1, 1, 0, b->stream,
                               parameters, NULL);
}

static int launch_whole(struct bench *b, void *function, unsigned n_blocks, const void *args)
{
    void *parameters[] = {(void *)(uintptr_t)args};
    return b->d.cuLaunchCooperativeKernel(function, n_blocks, 1, 1, DRIVER_KERNEL_THREADS, 1, 1, 0, b->stream,
                                          parameters);
}

static struct scale_args scale_args(uint64_t cells)
{
    return (struct scale_args){.cells = cells, .n = CELLS, .factor = 3, .add = 5};
}

static bool is_checked(void)
{
    return !strstr(getenv("HEARTH_LIBCUDA"), "fast");
}

/* The emulator has said these words on stderr. */
static void expect_words(const char *words)
{
    char text[2000];
    fflush(stderr);
    FILE *said = cr_get_redirected_stderr();
    size_t n = fread(text, 1, sizeof text - 1, said);
    text[n] = '\0';
    cr_assert_not_null(strstr(text, words), "\"%s\" does not say \"%s\"", text, words);
}

Test(emulated_device, says_what_it_is)
{
    setenv("SIMT_BLOCKS", "2", 1);
    setenv("SIMT_DEVICE_SM", "80", 1);
    setenv("SIMT_SHARED_KB", "163", 1);
    setenv("SIMT_MEMORY_MB", "64", 1);
    struct bench b = open_bench();
    cr_assert_str_eq(b.dev.name, "SIMT emulator");
    cr_assert_eq(b.dev.n_sms, 2);
    cr_assert_eq(b.dev.sm, 80);
    cr_assert_eq(b.dev.shared_per_block, 163 * 1024);
    cr_assert_eq(b.dev.memory_bytes, 64u << 20);
    close_bench(&b);
}

Test(emulated_device, a_thread_without_the_context_is_told_so)
{
    struct bench b = open_bench();
    uint64_t p = 0;
    WELL(&b, cuCtxSetCurrent, NULL);
    cr_assert_eq(b.d.cuMemAlloc(&p, 64), 201);
    WELL(&b, cuCtxSetCurrent, b.dev.context);
    WELL(&b, cuMemAlloc, &p, 64);
    close_bench(&b);
    cr_assert_eq(b.dev.context, NULL);
}

Test(emulated_memory, counts_what_is_taken_and_refuses_more_than_there_is)
{
    setenv("SIMT_MEMORY_MB", "4", 1);
    struct bench b = open_bench();
    size_t available = 0, total = 0;
    uint64_t p = 0, q = 0;
    WELL(&b, cuMemAlloc, &p, 3 << 20);
    WELL(&b, cuMemGetInfo, &available, &total);
    cr_assert_eq(total, 4u << 20);
    cr_assert_eq(available, 1u << 20);
    cr_assert_eq(b.d.cuMemAlloc(&q, 2 << 20), CUDA_OUT_OF_MEMORY);
    WELL(&b, cuMemFree, p);
    WELL(&b, cuMemAlloc, &q, 2 << 20);
    close_bench(&b);
}

Test(emulated_memory, copies_go_there_and_back_and_not_past_the_end)
{
    struct bench b = open_bench();
    uint32_t there[CELLS], back[CELLS] = {0};
    for (uint32_t i = 0; i < CELLS; i++)
        there[i] = i * 7;
    uint64_t p = device_memory(&b, sizeof there);
    WELL(&b, cuMemcpyHtoD, p, there, sizeof there);
    WELL(&b, cuMemcpyDtoH, back, p, sizeof back);
    cr_assert_arr_eq(there, back, sizeof there);
    cr_assert_eq(b.d.cuMemcpyHtoD(p + 4, there, sizeof there), 1);
    cr_assert_eq(b.d.cuMemcpyDtoH(back, p - 1, 4), 1);
    close_bench(&b);
}

/* A cuMemcpyHtoD from memory that is not pinned may arrive late: other streams do not
 * wait for it. */
Test(emulated_memory, a_copy_of_pageable_memory_arrives_late_and_one_on_the_stream_does_not)
{
    struct bench b = open_bench();
    uint32_t there[CELLS], *back = pinned_memory(&b, sizeof there);
    for (uint32_t i = 0; i < CELLS; i++)
        there[i] = i * 7;
    uint64_t p = device_memory(&b, sizeof there);
    WELL(&b, cuMemcpyHtoD, p, there, sizeof there);
    WELL(&b, cuMemcpyDtoHAsync, back, p, sizeof there, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    cr_assert_eq(back[1], UINT32_MAX);
    WELL(&b, cuCtxSynchronize);
    WELL(&b, cuMemcpyDtoHAsync, back, p, sizeof there, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    cr_assert_arr_eq(there, back, sizeof there);
    there[1] = 5;
    WELL(&b, cuMemcpyHtoDAsync, p, there, sizeof there, b.stream);
    WELL(&b, cuMemcpyDtoHAsync, back, p, sizeof there, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    cr_assert_eq(back[1], 5);
    close_bench(&b);
}

Test(emulated_memory, fresh_memory_is_not_a_number)
{
    struct bench b = open_bench();
    uint64_t p = 0;
    float x = 0;
    WELL(&b, cuMemAlloc, &p, 4096);
    WELL(&b, cuMemcpyDtoH, &x, p + 1024, sizeof x);
    cr_assert(x != x);
    close_bench(&b);
}

Test(emulated_memory, only_mapped_pinned_memory_has_a_device_address)
{
    struct bench b = open_bench();
    void *mapped = pinned_memory(&b, 256), *other = NULL;
    uint64_t address = 0;
    WELL(&b, cuMemHostGetDevicePointer, &address, mapped, 0);
    cr_assert_eq(address, (uintptr_t)mapped);
    WELL(&b, cuMemHostAlloc, &other, 256, 0);
    cr_assert_eq(b.d.cuMemHostGetDevicePointer(&address, other, 0), 1);
    WELL(&b, cuMemFreeHost, other);
    cr_assert_eq(b.d.cuMemFreeHost(other), 1);
    close_bench(&b);
}

Test(emulated_stream, does_its_work_in_order)
{
    struct bench b = open_bench();
    void *scale = function_of(&b, "driver_kernels", "scale_cells");
    uint32_t *host = pinned_memory(&b, CELLS * 4);
    uint64_t p = device_memory(&b, CELLS * 4);
    struct scale_args args = scale_args(p);
    host[7] = 100;
    WELL(&b, cuMemcpyHtoDAsync, p, host, CELLS * 4, b.stream);
    cr_assert_eq(launch(&b, scale, 2, &args), CUDA_SUCCESS);
    cr_assert_eq(launch(&b, scale, 3, &args), CUDA_SUCCESS);
    WELL(&b, cuMemcpyDtoHAsync, host, p, CELLS * 4, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    WELL(&b, cuStreamQuery, b.stream);
    cr_assert_eq(host[7], (100 * 3 + 5) * 3 + 5);
    cr_assert_eq(host[8], 5 * 3 + 5);
    close_bench(&b);
}

Test(emulated_stream, a_grid_may_have_more_blocks_than_the_device_holds)
{
    setenv("SIMT_BLOCKS", "1", 1);
    struct bench b = open_bench();
    void *scale = function_of(&b, "driver_kernels", "scale_cells");
    uint32_t cells[CELLS];
    uint64_t p = device_memory(&b, sizeof cells);
    struct scale_args args = scale_args(p);
    void *parameters[] = {&args};
    WELL(&b, cuLaunchKernel, scale, 100, 1, 1, 32, 1, 1, 0, b.stream, parameters, NULL);
    WELL(&b, cuMemcpyDtoH, cells, p, sizeof cells);
    for (uint32_t i = 0; i < CELLS; i++)
        cr_assert_eq(cells[i], 5);
    close_bench(&b);
}

Test(emulated_stream, events_have_times)
{
    struct bench b = open_bench();
    void *scale = function_of(&b, "driver_kernels", "scale_cells"), *before = NULL, *after = NULL;
    struct scale_args args = scale_args(device_memory(&b, CELLS * 4));
    float ms = -1;
    WELL(&b, cuEventCreate, &before, CUDA_EVENT_DEFAULT);
    WELL(&b, cuEventCreate, &after, CUDA_EVENT_DEFAULT);
    cr_assert_neq(b.d.cuEventElapsedTime(&ms, before, after), CUDA_SUCCESS);
    WELL(&b, cuEventRecord, before, b.stream);
    cr_assert_eq(launch(&b, scale, 2, &args), CUDA_SUCCESS);
    WELL(&b, cuEventRecord, after, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    WELL(&b, cuEventElapsedTime, &ms, before, after);
    cr_assert(ms > 0);
    WELL(&b, cuEventDestroy, before);
    WELL(&b, cuEventDestroy, after);
    close_bench(&b);
}

Test(emulated_graph, what_was_captured_runs_only_when_launched_and_as_often)
{
    struct bench b = open_bench();
    void *scale = function_of(&b, "driver_kernels", "scale_cells"), *graph = NULL, *exec = NULL;
    uint32_t *host = pinned_memory(&b, CELLS * 4);
    uint64_t p = device_memory(&b, CELLS * 4);
    struct scale_args args = scale_args(p);
    WELL(&b, cuStreamBeginCapture, b.stream, CUDA_CAPTURE_THREAD_LOCAL);
    WELL(&b, cuMemsetD8Async, p, 0, 4, b.stream);
    cr_assert_eq(launch(&b, scale, 2, &args), CUDA_SUCCESS);
    WELL(&b, cuMemcpyDtoHAsync, host, p, CELLS * 4, b.stream);
    WELL(&b, cuStreamEndCapture, b.stream, &graph);
    WELL(&b, cuGraphInstantiate, &exec, graph, 0);
    WELL(&b, cuGraphDestroy, graph);
    WELL(&b, cuStreamSynchronize, b.stream);
    cr_assert_eq(host[1], 0);
    args.add = 1000; /* the graph has its own copy */
    for (int i = 0; i < 3; i++)
        WELL(&b, cuGraphLaunch, exec, b.stream);
    WELL(&b, cuStreamSynchronize, b.stream);
    cr_assert_eq(host[0], 5);
    cr_assert_eq(host[1], (5 * 3 + 5) * 3 + 5);
    WELL(&b, cuGraphExecDestroy, exec);
    close_bench(&b);
}

Test(emulated_graph, a_capture_does_not_survive_a_call_that_waits_or_allocates)
{
    struct bench b = open_bench();
    void *graph = NULL;
    uint64_t p = 0;
    WELL(&b, cuStreamBeginCapture, b.stream, CUDA_CAPTURE_THREAD_LOCAL);
    cr_assert_eq(b.d.cuStreamQuery(b.stream), 900);
    cr_assert_eq(b.d.cuStreamEndCapture(b.stream, &graph), 901);
    WELL(&b, cuStreamBeginCapture, b.stream, CUDA_CAPTURE_THREAD_LOCAL);
    cr_assert_eq(b.d.cuMemAlloc(&p, 64), 900);
    cr_assert_eq(b.d.cuStreamEndCapture(b.stream, &graph), 901);
    WELL(&b, cuStreamQuery, b.stream);
    close_bench(&b);
}

Test(emulated_module, ptx_that_is_none_is_refused_with_a_log)
{
    struct bench b = open_bench();
    char log[200] = "";
    int options[] = {CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_SIZE};
    void *values[] = {log, (void *)sizeof log}, *module = NULL;
    cr_assert_eq(b.d.cuModuleLoadDataEx(&module, "int main(void);", 2, options, values), CUDA_INVALID_PTX);
    cr_assert_not_null(strstr(log, "not the PTX of a kernel"));
    cr_assert_eq(
        b.d.cuModuleLoadDataEx(&module, "//\n.version 9.9\n.target sm_80\n.entry x()", 2, options, values),
        CUDA_UNSUPPORTED_PTX);
    close_bench(&b);
}

Test(emulated_module, the_newest_image_that_the_device_can_run_is_the_one_that_runs)
{
    setenv("SIMT_DEVICE_SM", "80", 1);
    struct bench b = open_bench();
    void *module = NULL, *function = NULL;
    struct error err = {0};
    function_of(&b, "grid_barrier", "grid_barrier");
    cr_assert_eq(cuda_module_open(&module, &b.d, &b.dev, driver_test_images, "grid_barrier", NULL, &err), 0);
    cr_assert_eq(b.d.cuModuleGetFunction(&function, module, "scale_cells"), 500);
    for (const struct ptx_image *i = driver_test_images; i->name; i++)
        if (i->sm == 90 && !i->is_cubin) {
            char *text = ptx_image_unpack(i);
            cr_assert_eq(b.d.cuModuleLoadDataEx(&module, text, 0, NULL, NULL), 209);
            free(text);
        }
    close_bench(&b);
}

/* To free. */
static char *first_cubin(void)
{
    for (const struct ptx_image *i = driver_test_images; i->name; i++)
        if (i->is_cubin)
            return ptx_image_unpack(i);
    return NULL;
}

/* Without ptxas there is no cubin to take. */
Test(emulated_module, a_cubin_is_refused_unless_the_device_takes_them)
{
    for (int takes = 0; takes < 2; takes++) {
        setenv("SIMT_CUBINS", takes ? "1" : "0", 1);
        struct bench b = open_bench();
        void *module = NULL, *function = NULL;
        char *cubin = first_cubin();
        if (cubin)
            cr_assert_eq(b.d.cuModuleLoadDataEx(&module, cubin, 0, NULL, NULL), takes ? 0 : 209);
        if (cubin && takes) {
            WELL(&b, cuModuleGetFunction, &function, module, "scale_cells");
            cr_assert_eq(b.d.cuModuleGetFunction(&function, module, "scale_cell"), 500);
        }
        free(cubin);
        close_bench(&b);
    }
}

Test(emulated_module, an_elf_file_of_another_machine_is_no_cubin)
{
    setenv("SIMT_CUBINS", "1", 1);
    struct bench b = open_bench();
    void *module = NULL;
    Elf64_Ehdr elf = {.e_ident = ELFMAG "\2\1\1", .e_machine = EM_X86_64, .e_shentsize = sizeof(Elf64_Shdr)};
    cr_assert_eq(b.d.cuModuleLoadDataEx(&module, &elf, 0, NULL, NULL), 200);
    elf.e_machine = EM_CUDA;
    elf.e_flags = 80;
    cr_assert_eq(b.d.cuModuleLoadDataEx(&module, &elf, 0, NULL, NULL), 209);
    close_bench(&b);
}

Test(emulated_launch, what_a_device_refuses_is_refused)
{
    setenv("SIMT_BLOCKS", "2", 1);
    struct bench b = open_bench();
    void *scale = function_of(&b, "driver_kernels", "scale_cells");
    struct scale_args args = scale_args(device_memory(&b, CELLS * 4));
    void *parameters[] = {&args};
    int n = 0;
    cr_assert_eq(b.d.cuLaunchKernel(scale, 1, 1, 1, 96, 1, 1, 0, b.stream, parameters, NULL), 1);
    cr_assert_eq(b.d.cuLaunchKernel(scale, 0, 1, 1, 64, 1, 1, 0, b.stream, parameters, NULL), 1);
    cr_assert_eq(b.d.cuLaunchKernel(scale, 1, 1, 1, 64, 1, 1, 90000, b.stream, parameters, NULL), 1);
    cr_assert_eq(b.d.cuFuncSetAttribute(scale, CUDA_FUNCTION_SHARED, 200000), 1);
    WELL(&b, cuFuncSetAttribute, scale, CUDA_FUNCTION_SHARED, 90000);
    WELL(&b, cuLaunchKernel, scale, 1, 1, 1, 64, 1, 1, 90000, b.stream, parameters, NULL);
    WELL(&b, cuOccupancyMaxActiveBlocksPerMultiprocessor, &n, scale, 64, 90000);
    cr_assert_eq(n, 1);
    cr_assert_eq(b.d.cuLaunchCooperativeKernel(scale, 3, 1, 1, 64, 1, 1, 90000, b.stream, parameters), 720);
    WELL(&b, cuLaunchCooperativeKernel, scale, 2, 1, 1, 64, 1, 1, 90000, b.stream, parameters);
    close_bench(&b);
}

Test(emulated_launch, a_toy_with_blocks_that_wait_for_each_other_runs)
{
    struct bench b = open_bench();
    void *function = function_of(&b, "grid_barrier", "grid_barrier");
    size_t bytes = 3 * GRID_BARRIER_THREADS * 4;
    uint64_t words = device_memory(&b, 8 + FLOW_WORDS * 4), cells = device_memory(&b, bytes),
             out = device_memory(&b, bytes);
    struct grid_barrier_args args = {.cells = (uint32_t *)(uintptr_t)cells,
                                     .out = (uint32_t *)(uintptr_t)out,
                                     .counter = (uint32_t *)(uintptr_t)words,
                                     .words = (uint32_t *)(uintptr_t)(words + 8),
                                     .rounds = 2};
    void *parameters[] = {&args};
    uint32_t sums[3 * GRID_BARRIER_THREADS];
    WELL(&b, cuLaunchCooperativeKernel, function, 3, 1, 1, GRID_BARRIER_THREADS, 1, 1, 0, b.stream,
         parameters);
    WELL(&b, cuStreamSynchronize, b.stream);
    WELL(&b, cuMemcpyDtoH, sums, out, bytes);
    for (uint32_t i = 0; i < 3 * GRID_BARRIER_THREADS; i++) {
        uint32_t neighbour = (i / GRID_BARRIER_THREADS + 1) % 3 * 100 + (i * 7 + 3) % GRID_BARRIER_THREADS;
        cr_assert_eq(sums[i], 1000 + 2 * neighbour);
    }
    close_bench(&b);
}

Test(emulated_launch, blocks_of_the_decoders_size_run)
{
    setenv("SIMT_BLOCKS", "4", 1);
    struct bench b = open_bench();
    void *function = function_of(&b, "driver_kernels", "wide");
    struct wide_args args = {.counter = device_memory(&b, 4),
                             .sums = device_memory(&b, 8),
                             .guard = device_memory(&b, FLOW_WORDS * 4),
                             .rounds = 2};
    void *parameters[] = {&args};
    uint32_t sums[2];
    WELL(&b, cuLaunchCooperativeKernel, function, 4, 1, 1, WIDE_THREADS, 1, 1, 0, b.stream, parameters);
    WELL(&b, cuStreamSynchronize, b.stream);
    WELL(&b, cuMemcpyDtoH, sums, args.sums, sizeof sums);
    cr_assert_eq(sums[0], 4 * (WIDE_THREADS * (WIDE_THREADS - 1) / 2));
    cr_assert_eq(sums[1], 2 * sums[0]);
    close_bench(&b);
}

struct echo { /* a grid that stays */
    struct echo_words *words;
    struct bench bench;
};

static struct echo start_echo(void)
{
    struct echo e = {.bench = open_bench()};
    struct bench *b = &e.bench;
    void *function = function_of(b, "driver_kernels", "echo");
    e.words = pinned_memory(b, sizeof *e.words);
    struct echo_args args = {.words = (uintptr_t)e.words, .ended = device_memory(b, 4)};
    cr_assert_eq(launch_whole(b, function, 3, &args), CUDA_SUCCESS);
    return e;
}

static uint32_t ask(struct echo *e, uint32_t request)
{
    __atomic_store_n(&e->words->request, request, __ATOMIC_RELEASE);
    while (__atomic_load_n(&e->words->answer, __ATOMIC_ACQUIRE) != request + 1)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    return e->words->time;
}

Test(emulated_grid, a_grid_that_stays_answers_its_host_and_leaves_when_told)
{
    struct echo e = start_echo();
    uint32_t first = ask(&e, 1);
    for (uint32_t i = 2; i < 50; i++)
        ask(&e, i);
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    cr_assert_eq(e.bench.d.cuStreamQuery(e.bench.stream), CUDA_NOT_READY);
    cr_assert_neq(ask(&e, 51), first, "its timer stands still");
    __atomic_store_n(&e.words->request, ECHO_STOP, __ATOMIC_RELEASE);
    WELL(&e.bench, cuStreamSynchronize, e.bench.stream);
    close_bench(&e.bench);
}

Test(emulated_grid, other_streams_work_beside_it)
{
    struct echo e = start_echo();
    close_bench(&e.bench); /* the context ends, and the grid with it */
    struct bench b = open_bench();
    void *second = NULL, *echo = function_of(&b, "driver_kernels", "echo"),
         *scale = function_of(&b, "driver_kernels", "scale_cells");
    WELL(&b, cuStreamCreate, &second, CUDA_STREAM_NON_BLOCKING);
    e = (struct echo){.words = pinned_memory(&b, sizeof *e.words), .bench = b};
    uint32_t *host = pinned_memory(&b, CELLS * 4);
    uint64_t p = device_memory(&b, CELLS * 4);
    struct echo_args args = {.words = (uintptr_t)e.words, .ended = device_memory(&b, 4)};
    cr_assert_eq(launch_whole(&b, echo, 2, &args), CUDA_SUCCESS);
    struct scale_args other = scale_args(p);
    ask(&e, 1);
    b.stream = second;
    cr_assert_eq(launch(&b, scale, 2, &other), CUDA_SUCCESS);
    WELL(&b, cuMemcpyDtoHAsync, host, p, CELLS * 4, second);
    WELL(&b, cuStreamSynchronize, second);
    cr_assert_eq(host[3], 5);
    ask(&e, 2);
    close_bench(&b);
}

Test(emulated_grid, a_call_that_would_wait_for_it_is_misuse, .init = cr_redirect_stderr)
{
    struct echo e = start_echo();
    uint64_t p = 0;
    ask(&e, 1);
    cr_assert_eq(e.bench.d.cuMemAlloc(&p, 64), 700);
    cr_assert_eq(e.bench.d.cuStreamQuery(e.bench.stream), 700);
    expect_words("misuse: cuMemAlloc");
    close_bench(&e.bench);
}

Test(emulated_grid, a_copy_of_unpinned_memory_beside_it_is_misuse, .init = cr_redirect_stderr)
{
    struct echo e = start_echo();
    struct bench *b = &e.bench;
    uint32_t word = 1;
    ask(&e, 1);
    cr_assert_eq(b->d.cuMemcpyHtoDAsync(4711, &word, 4, b->stream), 700);
    expect_words("misuse: cuMemcpyHtoDAsync of memory that is not pinned");
    close_bench(b);
}

Test(emulated_report, a_wait_that_nothing_ends_is_a_hang_and_the_context_is_lost, .init = cr_redirect_stderr)
{
    struct bench b = open_bench();
    void *function = function_of(&b, "driver_kernels", "wait_for_ever");
    struct wait_args args = {.counter = device_memory(&b, 4)};
    uint64_t p = 0;
    cr_assert_eq(launch(&b, function, 2, &args), CUDA_SUCCESS);
    cr_assert_eq(b.d.cuStreamSynchronize(b.stream), 700);
    cr_assert_eq(b.d.cuMemAlloc(&p, 64), 700);
    cr_assert_eq(launch(&b, function, 2, &args), 700);
    expect_words("wait_for_ever, launch 0, seed 1: hang");
    close_bench(&b);
    b = open_bench(); /* a new context is a new start */
    WELL(&b, cuMemAlloc, &p, 64);
    close_bench(&b);
}

Test(emulated_report, a_race_is_seen_by_the_checked_library, .init = cr_redirect_stderr)
{
    struct bench b = open_bench();
    void *function = function_of(&b, "driver_kernels", "race");
    struct scale_args args = scale_args(device_memory(&b, CELLS * 4));
    cr_assert_eq(launch(&b, function, 2, &args), CUDA_SUCCESS);
    cr_assert_eq(b.d.cuStreamSynchronize(b.stream), is_checked() ? 700 : CUDA_SUCCESS);
    if (is_checked())
        expect_words("is not ordered after the store");
    close_bench(&b);
}

Test(emulated_report, a_store_past_the_end_is_seen_by_the_checked_library, .init = cr_redirect_stderr)
{
    struct bench b = open_bench();
    void *function = function_of(&b, "driver_kernels", "scale_cells");
    struct scale_args args = scale_args(device_memory(&b, CELLS * 4 - 4));
    cr_assert_eq(launch(&b, function, 2, &args), CUDA_SUCCESS);
    cr_assert_eq(b.d.cuStreamSynchronize(b.stream), is_checked() ? 700 : CUDA_SUCCESS);
    if (is_checked())
        expect_words("bounds");
    close_bench(&b);
}

/* Each failure that SIMT_FAULT knows. */
static struct bench open_faulty(const char *fault)
{
    setenv("SIMT_FAULT", fault, 1);
    return open_bench();
}

Test(emulated_fault, the_third_allocation_fails)
{
    struct bench b = open_faulty("alloc:3,host_alloc:1");
    uint64_t p = 0;
    void *host = NULL;
    WELL(&b, cuMemAlloc, &p, 64);
    WELL(&b, cuMemAlloc, &p, 64);
    cr_assert_eq(b.d.cuMemAlloc(&p, 64), CUDA_OUT_OF_MEMORY);
    WELL(&b, cuMemAlloc, &p, 64);
    cr_assert_eq(b.d.cuMemHostAlloc(&host, 64, 0), CUDA_OUT_OF_MEMORY);
    close_bench(&b);
}

Test(emulated_fault, a_kernel_does_not_compile)
{
    struct bench b = open_faulty("jit");
    void *module = NULL;
    struct error err = {0};
    cr_assert_eq(cuda_module_open(&module, &b.d, &b.dev, driver_test_images, "scale", NULL, &err), -ENODEV);
    err = (struct error){0};
    cr_assert_eq(cuda_module_open(&module, &b.d, &b.dev, driver_test_images, "driver_kernels", NULL, &err),
                 -EIO);
    cr_assert_not_null(strstr(err.text, "CUDA_ERROR_INVALID_PTX"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "ptxas fatal"), "%s", err.text);
    close_bench(&b);
}

Test(emulated_fault, the_second_launch_fails_and_takes_the_context_along)
{
    struct bench b = open_faulty("launch:2:719");
    void *scale = function_of(&b, "driver_kernels", "scale_cells");
    struct scale_args args = scale_args(device_memory(&b, CELLS * 4));
    cr_assert_eq(launch(&b, scale, 1, &args), CUDA_SUCCESS);
    cr_assert_eq(launch(&b, scale, 1, &args), 719);
    cr_assert_eq(b.d.cuStreamSynchronize(b.stream), 719);
    close_bench(&b);
}

Test(emulated_fault, the_device_is_lost_at_the_third_query)
{
    struct bench b = open_faulty("query:3");
    WELL(&b, cuStreamQuery, b.stream);
    WELL(&b, cuStreamQuery, b.stream);
    cr_assert_eq(b.d.cuStreamQuery(b.stream), 999);
    cr_assert_eq(b.d.cuStreamQuery(b.stream), 999);
    close_bench(&b);
}

Test(emulated_fault, a_grid_dies_at_a_step)
{
    setenv("SIMT_FAULT", "step:200:719", 1);
    struct echo e = start_echo();
    cr_assert_eq(e.bench.d.cuStreamSynchronize(e.bench.stream), 719);
    close_bench(&e.bench);
}

/* Until its file is there a fault does not count, however long the grid runs. */
Test(emulated_fault, a_fault_waits_for_its_file)
{
    char path[] = "/tmp/hearth-test-XXXXXX";
    close(mkstemp(path));
    unlink(path);
    setenv("SIMT_FAULT_WHEN", path, 1);
    setenv("SIMT_FAULT", "step:1:719,query:1", 1);
    struct echo e = start_echo();
    for (uint32_t i = 1; i < 50; i++)
        ask(&e, i);
    cr_assert_eq(e.bench.d.cuStreamQuery(e.bench.stream), CUDA_NOT_READY);
    cr_assert_eq(symlink("/", path), 0);
    cr_assert_eq(e.bench.d.cuStreamSynchronize(e.bench.stream), 719);
    unlink(path);
    close_bench(&e.bench);
}

Test(emulated_fault, a_stuck_grid_answers_no_call_and_ends_with_its_context)
{
    setenv("SIMT_FAULT", "stuck:100", 1);
    struct echo e = start_echo();
    __atomic_store_n(&e.words->request, ECHO_STOP, __ATOMIC_RELEASE);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    cr_assert_eq(e.bench.d.cuStreamQuery(e.bench.stream), CUDA_NOT_READY);
    close_bench(&e.bench);
}
