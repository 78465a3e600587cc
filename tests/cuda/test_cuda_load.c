/* Life and limits of the cuda backend, on the emulated driver: every allocation failing in turn, what is
 * refused, what info() says, and a device that fails. */
#include "base/clock.h"
#include "support/decoder_run.h"
#include "support/failing_alloc.h"
#include "support/models/made_model.h"
#include "model/program.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

static const struct backend_config config = {.libcuda = LIBCUDA,
                                             .n_threads = 1,
                                             .n_slots = 2,
                                             .n_ctx = 128,
                                             .kv_memory = 4 << 20,
                                             .steps_in_flight = 2,
                                             .stall_ms = 60000};

static struct model *open_model(void)
{
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, MODEL, &err), 0, "%s", err.text);
    return m;
}

/* Opens with the n-th allocation of a kind failing, for ever larger n, until nothing fails. */
static void every_device_allocation(enum executor_kind kind, const char *fault)
{
    struct model *m = open_model();
    char setting[32];
    int n = 0;
    for (int rc = -ENOMEM; rc < 0; n++) {
        struct executor *x = NULL;
        struct error err = {0};
        (void)snprintf(setting, sizeof setting, "%s:%d", fault, n + 1);
        setenv("SIMT_FAULT", setting, 1);
        rc = executor_open(&x, kind, &cuda_backend, &config, m, &err);
        cr_assert(rc == 0 ||
                      (rc == -ENOMEM && strstr(err.text, "MiB for ") && strstr(err.text, "out of memory")),
                  "%s: %d %s", setting, rc, err.text);
        executor_close(x);
    }
    cr_assert_gt(n, 3);
    model_close(m);
}

Test(cuda_load, every_allocation_on_the_device_may_fail)
{
    every_device_allocation(EXECUTOR_PERSISTENT, "alloc");
    every_device_allocation(EXECUTOR_EAGER, "alloc");
    every_device_allocation(EXECUTOR_GRAPH, "alloc");
}

Test(cuda_load, every_allocation_of_pinned_memory_may_fail)
{
    every_device_allocation(EXECUTOR_PERSISTENT, "host_alloc");
    every_device_allocation(EXECUTOR_EAGER, "host_alloc");
}

/* One thread packs, so the count is the same every time. */
static void every_host_allocation(enum executor_kind kind)
{
    struct model *m = open_model();
    long n = 0;
    for (int rc = -ENOMEM; rc < 0; n++) {
        struct executor *x = NULL;
        fail_alloc_after(n);
        rc = executor_open(&x, kind, &cuda_backend, &config, m, NULL);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && !x), "allocation %ld: %d", n, rc);
        executor_close(x);
    }
    cr_assert_gt(n, 10);
    model_close(m);
}

Test(cuda_load, every_allocation_on_the_host_may_fail, .timeout = 1200)
{
    every_host_allocation(EXECUTOR_PERSISTENT);
    every_host_allocation(EXECUTOR_EAGER);
}

static void refused(const struct backend_config *cfg, enum executor_kind kind, int code, const char *words)
{
    struct model *m = open_model();
    struct executor *x = NULL;
    struct error err = {0};
    cr_assert_eq(executor_open(&x, kind, &cuda_backend, cfg, m, &err), code, "%s", err.text);
    cr_assert(!x && strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    model_close(m);
}

Test(cuda_load, what_it_cannot_do_is_refused_with_words)
{
    struct backend_config c = config;
    c.arithmetic = BACKEND_EXACT;
    refused(&c, EXECUTOR_EAGER, -EINVAL, "exact");
    c = config;
    c.n_slots = STEP_MAX_SLOTS + 1;
    refused(&c, EXECUTOR_PERSISTENT, -EINVAL, "slots");
    c = config;
    c.steps_in_flight = 3;
    refused(&c, EXECUTOR_PERSISTENT, -EINVAL, "3 steps in flight");
    c = config;
    c.kv_memory = 1000;
    refused(&c, EXECUTOR_PERSISTENT, -EINVAL, "one page");
    c = config;
    c.kv_memory = (uint64_t)1 << 40;
    refused(&c, EXECUTOR_PERSISTENT, -ENOMEM, "MiB are free");
    c = config;
    c.end_tokens = (const int32_t[]){1 << 20};
    c.n_end_tokens = 1;
    refused(&c, EXECUTOR_PERSISTENT, -EINVAL, "end token 1048576");
    c = config;
    c.libcuda = "/nonexistent/libcuda.so";
    refused(&c, EXECUTOR_PERSISTENT, -ENODEV, "/nonexistent/libcuda.so");
    c = config;
    c.cuda_device = 1 + 1;
    refused(&c, EXECUTOR_PERSISTENT, -ENODEV,
            "the CUDA driver has 1 devices, counted from 0; there is no device 1");
}

/* Its only device, by number; the library that is asked to keep kernels is told so by its environment. */
Test(cuda_load, the_device_and_the_cache_directory_are_those_of_the_configuration)
{
    struct backend_config c = config;
    struct model *m = open_model();
    struct executor *x = NULL;
    struct error err = {0};
    c.cuda_device = 1 + 0;
    c.cuda_cache = "/srv/kernels";
    cr_assert_eq(executor_open(&x, EXECUTOR_EAGER, &cuda_backend, &c, m, &err), 0, "%s", err.text);
    cr_assert_str_eq(getenv("CUDA_CACHE_PATH"), "/srv/kernels");
    executor_close(x);
    model_close(m);
}

/* These are what README says that cpu serves and cuda does not. */
Test(cuda_load, models_that_only_the_cpu_serves_are_refused_with_the_reason)
{
    static const struct {
        const char *shape, *words;
    } cases[] = {{"tiny-llama-heads-48",
                  "heads of 48 values; cuda supports multiples of 32 up to 576 (executor = "
                  "eager and graph: even sizes)"},
                 {"tiny-deepseek-lite", "heads of 80 values; cuda supports multiples of 32 up to 576"},
                 {"tiny-llama-words", "a vocabulary of 262208 tokens; cuda supports at most 262144"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        struct model *m = NULL;
        struct executor *x = NULL;
        struct error err = {0};
        made_model(cases[i].shape, "q8_0", path);
        int rc = model_open(&m, path, &err);
        unlink(path);
        cr_assert_eq(rc, 0, "%s", err.text);
        cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cuda_backend, &config, m, &err), -ENOTSUP);
        cr_assert_not_null(strstr(err.text, cases[i].words), "%s", err.text);
        struct backend_config cpu = config;
        cpu.isa = "auto";
        cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cpu_backend, &cpu, m, &err), 0, "%s", err.text);
        executor_close(x);
        model_close(m);
    }
}

Test(cuda_load, a_driver_that_refuses_the_kernels_is_an_error)
{
    setenv("SIMT_FAULT", "jit", 1);
    refused(&config, EXECUTOR_PERSISTENT, -EIO, "kernel persistent_decoder for sm_90: cuModuleLoadDataEx");
}

Test(cuda_load, pinned_memory_that_is_managed_is_refused)
{
    setenv("SIMT_MANAGED", "1", 1);
    refused(&config, EXECUTOR_PERSISTENT, -ENOTSUP, "the driver gives managed memory for pinned");
}

/* The decoder's one launch is asked about at once. */
Test(cuda_load, a_device_that_is_lost_with_the_first_launch)
{
    setenv("SIMT_FAULT", "query:1", 1);
    refused(&config, EXECUTOR_PERSISTENT, -EIO, "cuStreamQuery: CUDA_ERROR_UNKNOWN");
}

struct reports {
    uint32_t n;
    double last;
};

static void note(void *context, double fraction)
{
    struct reports *r = context;
    cr_assert(fraction >= r->last && fraction <= 1 + 1e-9, "%g after %g", fraction, r->last);
    r->last = fraction;
    r->n++;
}

static uint64_t weights_sum(const struct backend_ops *ops, const struct model *m)
{
    struct executor *x = NULL;
    struct backend_info info;
    struct error err = {0};
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, ops, &config, m, &err), 0, "%s", err.text);
    executor_info(x, &info);
    executor_close(x);
    return info.weights_sum;
}

/* So a model has one fingerprint wherever it runs. */
Test(cuda_load, it_reads_the_same_weights_as_the_cpu)
{
    struct model *m = open_model();
    uint64_t sum = weights_sum(&cpu_backend, m);
    cr_assert(sum != 0 && weights_sum(&cuda_backend, m) == sum);
    model_close(m);
}

Test(cuda_load, a_file_that_is_cut_short_while_it_is_loaded_is_an_error)
{
    char path[] = "/tmp/hearth-cuda-XXXXXX", command[300];
    struct model *m = NULL;
    struct executor *x = NULL;
    struct error err = {0};
    close(mkstemp(path));
    snprintf(command, sizeof command, "cp %s %s", MODEL, path);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(model_open(&m, path, &err), 0);
    const struct gguf *g = model_gguf(m);
    cr_assert_eq(truncate(path, (off_t)gguf_tensor_at(g, gguf_n_tensors(g) / 2)->offset), 0);
    cr_assert_eq(executor_open(&x, EXECUTOR_PERSISTENT, &cuda_backend, &config, m, &err), -EIO);
    cr_assert(strstr(err.text, path) && strstr(err.text, "cut short"), "%s", err.text);
    unlink(path);
    model_close(m);
}

Test(cuda_load, progress_goes_from_the_kernels_to_the_last_weight)
{
    struct backend_config c = config;
    struct reports reports = {0};
    struct model *m = open_model();
    struct executor *x = NULL;
    c.progress = note;
    c.context = &reports;
    cr_assert_eq(executor_open(&x, EXECUTOR_EAGER, &cuda_backend, &c, m, NULL), 0);
    cr_assert(reports.n > 20 && reports.last > 0.999, "%u, %g", reports.n, reports.last);
    executor_close(x);
    model_close(m);
}

Test(cuda_load, info_says_what_the_driver_and_the_model_are)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct backend_info info;
    setenv("SIMT_MEMORY_MB", "64", 1);
    decoder_run_open(&r, &c);
    executor_info(r.x, &info);
    cr_assert_str_eq(info.name, "cuda");
    cr_assert_str_eq(info.device, "SIMT emulator");
    cr_assert_str_eq(info.isa, "sm_90");
    cr_assert(info.memory_total == 64 << 20 && info.memory_used > 48 << 20, "%llu of %llu",
              (unsigned long long)info.memory_used, (unsigned long long)info.memory_total);
    cr_assert_leq(info.memory_used, (64 << 20) - (64 << 20) / 40); /* some of it stays free */
    cr_assert(info.max_rows > 0 && info.max_rows <= STEP_MAX_ROWS_CUDA && info.shares_pages);
    cr_assert_eq(info.rows_together, 16); /* of a wide product */
    cr_assert_eq(info.default_step_ms, 10);
    cr_assert(info.launches == 1 && info.parks == 0 && info.state == BACKEND_IDLE && info.scratch_bytes > 0);
    decoder_run_row(&r, 0, 0, 5, true);
    decoder_run_step(&r);
    executor_park(r.x);
    executor_info(r.x, &info);
    cr_assert(info.launches == 1 && info.parks == 1 && info.steps == 1 && info.state == BACKEND_PARKED);
    decoder_run_row(&r, 0, 1, 6, true);
    decoder_run_step(&r);
    executor_info(r.x, &info);
    cr_assert(info.launches == 2 && info.parks == 1 && info.steps == 2 && info.state == BACKEND_IDLE);
    decoder_run_close(&r);
}

Test(cuda_load, registers_that_the_drivers_compiler_spills_are_in_info)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct backend_info info;
    setenv("SIMT_MEMORY_MB", "64", 1);
    for (uint32_t local = 0; local <= 48; local += 48) {
        setenv("SIMT_LOCAL", local ? "48" : "0", 1);
        decoder_run_open(&r, &c);
        executor_info(r.x, &info);
        cr_assert(info.registers > 0 && info.local_bytes == local, "%u, %u", info.registers,
                  info.local_bytes);
        decoder_run_close(&r);
    }
}

/* Pages that are chosen with 64 MiB free, and the bytes of one. */
static uint64_t pages_chosen(uint32_t n_ctx, size_t *page)
{
    struct decoder_run r;
    struct decoder_run_config c = {
        .path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA, .n_slots = 8, .n_ctx = n_ctx};
    struct backend_info info;
    setenv("SIMT_MEMORY_MB", "64", 1);
    decoder_run_open(&r, &c);
    executor_info(r.x, &info);
    *page = kv_page_size(&info.kv);
    decoder_run_close(&r);
    return info.n_pages;
}

Test(cuda_load, where_device_memory_is_the_machines_the_cache_takes_no_more_than_on_cpu)
{
    size_t page = 0, quarter = (size_t)16 << 20;
    cr_assert_gt(pages_chosen(256, &page) * page, 2 * quarter);
    setenv("SIMT_INTEGRATED", "1", 1);
    cr_assert_eq(pages_chosen(256, &page), 8 * 256 / KV_PAGE_TOKENS); /* every slot's context */
    uint64_t n = pages_chosen(16384, &page);
    cr_assert(n * page <= quarter && (n + 1) * page > quarter, "%llu pages of %zu bytes",
              (unsigned long long)n, page);
}

static uint64_t busy_ns(const struct executor *x)
{
    struct backend_info info;
    executor_info(x, &info);
    return info.busy_ns;
}

Test(cuda_load, time_inside_steps_is_counted_and_none_between_them)
{
    static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_EAGER, EXECUTOR_GRAPH};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct decoder_run r;
        struct decoder_run_config c = {
            .path = MODEL, .kind = kinds[i], .ops = &cuda_backend, .libcuda = LIBCUDA};
        decoder_run_open(&r, &c);
        cr_assert_eq(busy_ns(r.x), 0);
        for (uint32_t pos = 0; pos < 3; pos++) {
            uint64_t before = busy_ns(r.x), begin = clock_ns();
            decoder_run_row(&r, 0, pos, 5, true);
            decoder_run_step(&r);
            uint64_t passed = clock_ns() - begin, busy = busy_ns(r.x) - before;
            cr_assert(busy > 0 && busy <= passed, "executor %u: %llu ns of %llu", (unsigned)kinds[i],
                      (unsigned long long)busy, (unsigned long long)passed);
        }
        decoder_run_close(&r);
    }
}

/* ---- how long nodes take ---- */

/* Processor time of the thread that runs the emulated device's grids. */
static uint64_t device_cpu_ns(void)
{
    struct timespec used = {0};
    char path[64], name[32] = "";
    DIR *threads = opendir("/proc/self/task");
    cr_assert_not_null(threads);
    for (struct dirent *t; (t = readdir(threads)) && strcmp(name, "simt-stream\n") != 0;) {
        int id = atoi(t->d_name);
        (void)snprintf(path, sizeof path, "/proc/self/task/%d/comm", id);
        FILE *f = id ? fopen(path, "re") : NULL;
        if (f && fgets(name, sizeof name, f) && strcmp(name, "simt-stream\n") == 0)
            cr_assert_eq(clock_gettime((clockid_t)(~(unsigned)id << 3 | 6), &used),
                         0); /* a thread's, by id */
        if (f)
            fclose(f);
    }
    closedir(threads);
    cr_assert_str_eq(name, "simt-stream\n");
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static uint64_t time_of_all(const struct executor_timing *t, const struct graph *g)
{
    uint64_t sum = 0, ns[GRAPH_N_OPS] = {0}, launches[GRAPH_N_OPS] = {0};
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        launches[g->nodes[i].op]++;
        ns[g->nodes[i].op] += t->node_ns[i];
    }
    for (int op = 0; op < GRAPH_N_OPS; op++) {
        cr_assert_eq(ns[op] > 0, op != GRAPH_NONE && launches[op], "%s took %llu ns",
                     graph_op_name((enum graph_op)op), (unsigned long long)ns[op]);
        sum += ns[op];
    }
    return sum;
}

/* The calls only put launches on the stream: their times would be a small part of the device's work. */
Test(cuda_times, each_op_has_the_devices_time_and_all_together_no_more_than_passed)
{
    struct decoder_run r;
    struct decoder_run_config c = {
        .path = MODEL, .kind = EXECUTOR_EAGER, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct error err = {0};
    uint64_t sum = 0;
    decoder_run_open(&r, &c);
    for (uint32_t on = 0; on < 3; on++) {
        cr_assert_eq(executor_time_ops(r.x, on == 1, &err), 0, "%s", err.text);
        for (uint32_t i = 0; i < 16; i++)
            decoder_run_row(&r, 0, on * 16 + i, 5, true);
        uint64_t cpu = device_cpu_ns(), begin = clock_ns();
        decoder_run_step(&r);
        uint64_t passed = clock_ns() - begin;
        cpu = device_cpu_ns() - cpu;
        if (on == 0)
            cr_assert_null(executor_timing(r.x)->node_ns);
        if (on != 1)
            continue;
        sum = time_of_all(executor_timing(r.x), executor_graph(r.x));
        cr_assert(sum <= passed && sum > cpu / 2, "%llu ns of %llu, in which the device worked for %llu",
                  (unsigned long long)sum, (unsigned long long)passed, (unsigned long long)cpu);
    }
    cr_assert_eq(time_of_all(executor_timing(r.x), executor_graph(r.x)), sum); /* of one step still */
    decoder_run_close(&r);
}

Test(cuda_times, events_that_cannot_be_had_are_an_error_and_steps_go_on_without)
{
    struct decoder_run r;
    struct decoder_run_config c = {
        .path = MODEL, .kind = EXECUTOR_EAGER, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct error err = {0};
    setenv("SIMT_FAULT", "event:20", 1);
    decoder_run_open(&r, &c);
    cr_assert_eq(executor_time_ops(r.x, true, &err), -ENOMEM);
    cr_assert(strstr(err.text, "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"), "%s", err.text);
    decoder_run_row(&r, 0, 0, 5, true);
    decoder_run_step(&r);
    for (uint32_t i = 0; i < executor_graph(r.x)->n_nodes; i++)
        cr_assert_eq(executor_timing(r.x)->node_ns[i], 0);
    cr_assert_eq(executor_time_ops(r.x, true, NULL), 0); /* the next time there are some */
    decoder_run_row(&r, 0, 1, 5, true);
    decoder_run_step(&r);
    time_of_all(executor_timing(r.x), executor_graph(r.x));
    decoder_run_close(&r);
}

Test(cuda_times, a_record_that_fails_is_a_fault_of_its_node)
{
    struct decoder_run r;
    struct decoder_run_config c = {
        .path = MODEL, .kind = EXECUTOR_EAGER, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct error err = {0}, again = {0};
    setenv("SIMT_FAULT", "record:4", 1); /* after the second node */
    decoder_run_open(&r, &c);
    cr_assert_eq(executor_time_ops(r.x, true, NULL), 0);
    decoder_run_row(&r, 0, 0, 5, true);
    cr_assert_eq(executor_submit(r.x, r.step, &err), -EIO);
    cr_assert(strstr(err.text, "attn_norm") && strstr(err.text, "cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS"),
              "%s", err.text);
    cr_assert_eq(executor_submit(r.x, r.step, &again), -EIO);
    cr_assert(strstr(again.text, "cuEventRecord"), "%s", again.text);
    decoder_run_close(&r);
}

/* ---- what load() has sent is there with the first step ---- */

Test(cuda_load, a_slot_that_had_no_settings_yet_takes_the_likeliest_token)
{
    static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_EAGER};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct decoder_run r;
        struct decoder_run_config c = {
            .path = MODEL, .kind = kinds[i], .ops = &cuda_backend, .libcuda = LIBCUDA};
        decoder_run_open(&r, &c);
        bool fed[4096] = {false};
        uint32_t n_repeats = 0, best = 5;
        for (uint32_t pos = 0; pos < 24; pos++) {
            fed[best] = true;
            decoder_run_row(&r, 0, pos, (int32_t)best, true);
            decoder_run_step(&r);
            const float *logits = executor_logits(r.x, 0);
            for (uint32_t v = best = 0; v < r.n_vocab; v++)
                best = logits[v] > logits[best] ? v : best;
            cr_assert_eq(r.results[0].token, (int32_t)best);
            n_repeats += fed[best];
        }
        cr_assert_gt(n_repeats, 0); /* which a penalty would have kept away */
        decoder_run_close(&r);
    }
}

/* ---- steps that are refused ---- */

Test(cuda_step, an_index_out_of_range_is_refused_and_nothing_happens)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct error err = {0};
    decoder_run_open(&r, &c);
    decoder_run_row(&r, 0, 0, 1 << 20, false);
    r.step->id = 1;
    cr_assert_eq(executor_submit(r.x, r.step, &err), -EINVAL);
    cr_assert(strstr(err.text, "token"), "%s", err.text);
    uint64_t done = 7;
    cr_assert_eq(executor_advance(r.x, r.results, 1, &done, NULL), 0);
    cr_assert_eq(done, 0);
    r.step->rows[0].token = 5;
    r.step->id = 0;
    decoder_run_step(&r);
    decoder_run_close(&r);
}

Test(cuda_step, a_third_step_in_flight_is_refused_for_now)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA};
    decoder_run_open(&r, &c);
    for (uint32_t i = 0; i < 3; i++) {
        decoder_run_row(&r, 0, i, 5, true);
        r.step->id = i + 1;
        cr_assert_eq(executor_submit(r.x, r.step, NULL), i < 2 ? 0 : -EAGAIN, "step %u", i);
        if (i < 2)
            memset(r.step, 0, offsetof(struct step, rows));
    }
    uint64_t done = 0;
    for (int n = 0; n < 2;)
        n += executor_advance(r.x, r.results, 1, &done, NULL); /* one result at a time, in order */
    cr_assert_eq(done, 2);
    cr_assert_eq(executor_submit(r.x, r.step, NULL), 0);
    while (done < 3)
        cr_assert_geq(executor_advance(r.x, r.results, 1, &done, NULL), 0);
    decoder_run_close(&r);
}

/* ---- a device that fails ---- */

/* Steps until one fails; then every call says the same, and info can still be read. */
static void fails(const char *fault, enum executor_kind kind, const char *words)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .kind = kind, .ops = &cuda_backend, .libcuda = LIBCUDA};
    struct backend_info info;
    struct error err = {0}, again = {0};
    uint64_t done = 0;
    int rc = 0;
    setenv("SIMT_FAULT", fault, 1);
    if (!strcmp(words, "is not responding")) /* others may take their time, on a busy machine */
        c.stall_ms = 2000;
    decoder_run_open(&r, &c);
    for (uint32_t i = 0; rc >= 0 && i < 200; i++) {
        decoder_run_row(&r, 0, i, 5, true);
        r.step->id = i + 1;
        rc = executor_submit(r.x, r.step, &err);
        while (rc >= 0 && done < i + 1)
            rc = executor_advance(r.x, r.results, 1, &done, &err);
        memset(r.step, 0, offsetof(struct step, rows));
    }
    cr_assert_eq(rc, -EIO);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    if (kind == EXECUTOR_PERSISTENT) {
        cr_assert_eq(executor_advance(r.x, r.results, 1, &done, &again), -EIO);
        cr_assert_not_null(strstr(again.text, words), "%s", again.text);
    }
    cr_assert_eq(executor_submit(r.x, r.step, NULL), -EIO);
    executor_info(r.x, &info);
    cr_assert_str_eq(info.device, "SIMT emulator");
    cr_assert_neq(info.state, BACKEND_RUNNING);
    decoder_run_close(&r);
}

Test(cuda_fault, a_grid_that_dies)
{
    fails("step:600000", EXECUTOR_PERSISTENT, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

Test(cuda_fault, a_grid_that_stands_still)
{
    fails("stuck:600000", EXECUTOR_PERSISTENT, "is not responding");
}

/* Nor is one given up that no thread could look at: its process is stopped for longer than the limit. */
Test(cuda_fault, a_process_that_was_stopped_goes_on)
{
    struct decoder_run r;
    struct decoder_run_config c = {.path = MODEL, .ops = &cuda_backend, .libcuda = LIBCUDA, .stall_ms = 2000};
    decoder_run_open(&r, &c);
    pid_t self = getpid(), child = fork();
    if (child == 0) {
        for (int i = 0; i < 2; i++) {
            usleep(100000);
            kill(self, SIGSTOP);
            usleep(2200000);
            kill(self, SIGCONT);
        }
        _exit(0);
    }
    for (uint32_t i = 0; waitpid(child, NULL, WNOHANG) == 0; i++) { /* under way whenever it is stopped */
        decoder_run_row(&r, 0, i % 100, 5, true);
        decoder_run_step(&r);
    }
    decoder_run_close(&r);
}

Test(cuda_fault, a_launch_that_fails_in_the_middle_of_a_step)
{
    fails("launch:100", EXECUTOR_EAGER, "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS");
}

Test(cuda_fault, a_replay_that_fails)
{
    fails("launch:3", EXECUTOR_GRAPH, "cuGraphLaunch: CUDA_ERROR_ILLEGAL_ADDRESS");
}

/* A step's launches are asked about once, as its results are waited for without a call: the third step. */
Test(cuda_fault, a_device_that_is_lost_between_launch_and_result)
{
    fails("query:3", EXECUTOR_EAGER, "cuStreamQuery: CUDA_ERROR_UNKNOWN");
    fails("query:3", EXECUTOR_GRAPH, "cuStreamQuery: CUDA_ERROR_UNKNOWN");
}

Test(cuda_fault, a_device_that_is_lost)
{
    /* it stops, and the driver, which was asked once after the launch, is asked why */
    fails("stuck:600000,query:2", EXECUTOR_PERSISTENT, "cuStreamQuery: CUDA_ERROR_UNKNOWN");
}
