/* The CUDA driver layer against a library that fails in chosen ways (fake_libcuda): what is opened, what is
 * refused, and with which words. */
#include "cuda/cuda_kernels.h"
#include "cuda/cuda_memory.h"
#include "cuda/driver.h"
#include "cuda/ptx_image.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct cuda_driver open_fake(void)
{
    struct cuda_driver d;
    struct error err = {0};
    cr_assert_eq(cuda_driver_open(&d, FAKE_LIBCUDA, NULL, &err), 0, "%s", err.text);
    return d;
}

static void refused_with(int code, const char *path, const char *words)
{
    struct cuda_driver d;
    struct error err = {0};
    cr_assert_eq(cuda_driver_open(&d, path, NULL, &err), code, "%s", err.text);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    cr_assert_null(d.library);
}

static void refused(const char *path, const char *words)
{
    refused_with(-ENODEV, path, words);
}

Test(cuda_driver, no_library_is_no_device_and_says_so)
{
    refused("/nonexistent/libcuda.so.1", "/nonexistent/libcuda.so.1");
}

Test(cuda_driver, a_library_without_the_functions_is_refused_by_the_name_of_the_first)
{
    refused("libm.so.6", "it has no cuInit");
}

Test(cuda_driver, an_error_has_the_calls_name_and_the_drivers_words)
{
    setenv("FAKE_CUDA_INIT", "100", 1);
    refused(FAKE_LIBCUDA, "cuInit: CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected");
}

Test(cuda_driver, an_error_that_the_driver_does_not_know_is_reported_by_its_number)
{
    setenv("FAKE_CUDA_INIT", "4711", 1);
    refused_with(-EIO, FAKE_LIBCUDA, "cuInit: an unknown error (4711)");
}

Test(cuda_driver, a_library_to_link_with_is_no_driver)
{
    setenv("FAKE_CUDA_INIT", "34", 1);
    refused(FAKE_LIBCUDA, "cuInit: ");
}

/* Not -ENODEV, which backend auto would take for a machine without a GPU. */
Test(cuda_driver, one_that_is_there_and_does_not_start_says_what_to_do)
{
    setenv("FAKE_CUDA_INIT", "802", 1);
    refused_with(-EIO, FAKE_LIBCUDA,
                 "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802), system not yet initialized; start "
                 "nvidia-fabricmanager");
    setenv("FAKE_CUDA_INIT", "803", 1);
    refused_with(-EIO, FAKE_LIBCUDA, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
    refused_with(-EIO, FAKE_LIBCUDA, "load it again, or restart the machine");
    setenv("FAKE_CUDA_INIT", "999", 1);
    refused_with(-EIO, FAKE_LIBCUDA, "(999)");
}

Test(cuda_driver, a_driver_older_than_r525_is_refused)
{
    setenv("FAKE_CUDA_VERSION", "11080", 1);
    refused(FAKE_LIBCUDA, "is for CUDA 11.8, Hearth needs 12.0");
}

Test(cuda_driver, loads_eagerly_and_keeps_compiled_kernels_where_told)
{
    struct cuda_driver d;
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    cr_assert_eq(cuda_driver_open(&d, FAKE_LIBCUDA, "/var/cache/hearth", NULL), 0);
    cr_assert_str_eq(getenv("CUDA_MODULE_LOADING"), "EAGER");
    cr_assert_null(getenv("CUDA_LAUNCH_BLOCKING"));
    cr_assert_str_eq(getenv("CUDA_CACHE_PATH"), "/var/cache/hearth");
    cr_assert_eq(d.version, 12040);
    cuda_driver_close(&d);
    cuda_driver_close(&d);
}

Test(cuda_driver, a_closed_library_stays_where_its_threads_need_it)
{
    struct cuda_driver d = open_fake();
    cuda_driver_close(&d);
    void *again = dlopen(FAKE_LIBCUDA, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(again);
    dlclose(again);
}

Test(cuda_driver, launches_do_not_wait_for_the_kernel_whatever_the_environment_says)
{
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    struct cuda_driver d = open_fake();
    cr_assert_str_eq(getenv("CUDA_LAUNCH_BLOCKING"), "0");
    cuda_driver_close(&d);
}

Test(cuda_driver, out_of_memory_has_a_code_of_its_own)
{
    struct cuda_driver d = open_fake();
    struct error err = {0};
    cr_assert_eq(cuda_check(&d, &err, "cuMemAlloc", CUDA_OUT_OF_MEMORY), -ENOMEM);
    cr_assert_str_eq(err.text, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2), out of memory");
    cuda_driver_close(&d);
}

Test(cuda_driver, a_flush_takes_work_that_goes_on_for_well_and_passes_errors_on)
{
    struct cuda_driver d = open_fake();
    struct error err = {0};
    cr_assert_eq(cuda_flush(&d, NULL, &err), 0);
    setenv("FAKE_CUDA_QUERY", "600", 1);
    cr_assert_eq(cuda_flush(&d, NULL, &err), 0);
    cr_assert_eq(err.code, 0);
    setenv("FAKE_CUDA_QUERY", "700", 1);
    cr_assert_eq(cuda_flush(&d, NULL, &err), -EIO);
    cr_assert_not_null(strstr(err.text, "cuStreamQuery: an unknown error (700)"), "%s", err.text);
    cuda_driver_close(&d);
}

Test(cuda_memory, pinned_memory_that_is_managed_is_refused)
{
    struct cuda_driver d = open_fake();
    struct cuda_pinned p = {0};
    struct error err = {0};
    setenv("FAKE_CUDA_MANAGED", "1", 1);
    cr_assert_eq(cuda_pinned_take(&p, &d, 4096, "steps", &err), -ENOTSUP);
    cr_assert_null(p.data);
    cr_assert_not_null(strstr(err.text, "MiB for steps: the driver gives managed memory"), "%s", err.text);
    cuda_driver_close(&d);
}

static void pinned_is_taken(const struct cuda_driver *d)
{
    struct cuda_pinned p = {0};
    struct error err = {0};
    cr_assert_eq(cuda_pinned_take(&p, d, 4096, "steps", &err), 0, "%s", err.text);
    cr_assert(p.data && p.size == 4096);
    cuda_pinned_give(&p, d);
}

Test(cuda_memory, a_driver_that_does_not_tell_whether_it_is_managed_is_well)
{
    struct cuda_driver d = open_fake();
    cr_assert(d.cuPointerGetAttribute);
    pinned_is_taken(&d);
    setenv("FAKE_CUDA_MANAGED", "1", 1);
    setenv("FAKE_CUDA_POINTER", "1", 1);
    pinned_is_taken(&d);
    d.cuPointerGetAttribute = NULL; /* a library that lacks it */
    pinned_is_taken(&d);
    cuda_driver_close(&d);
}

Test(cuda_device, the_one_with_the_most_memory_is_taken)
{
    struct cuda_driver d = open_fake();
    struct cuda_device dev;
    struct error err = {0};
    cr_assert_eq(cuda_device_open(&dev, &d, -1, &err), 0, "%s", err.text);
    cr_assert_str_eq(dev.name, "Test Device 1");
    cr_assert_eq(dev.sm, 90);
    cr_assert_eq(dev.n_sms, 132);
    cr_assert_eq(dev.shared_per_block, 232448);
    cr_assert_eq(dev.memory_bytes, (size_t)80 << 30);
    cr_assert_eq(dev.bandwidth, 2619000ull * 1000 * 2 * 640);
    cr_assert_eq(dev.context, (void *)71);
    cuda_device_close(&dev, &d);
    cuda_driver_close(&d);
}

static void passed_over(const char *variable, const char *value)
{
    struct cuda_device dev;
    setenv(variable, value, 1);
    struct cuda_driver d = open_fake();
    cr_assert_eq(cuda_device_open(&dev, &d, -1, NULL), 0);
    cr_assert_str_eq(dev.name, "Test Device 0");
    cr_assert_eq(dev.context, (void *)70);
    cuda_device_close(&dev, &d);
    cuda_driver_close(&d);
}

Test(cuda_device, one_that_is_too_old_is_passed_over)
{
    passed_over("FAKE_CUDA_SM", "75");
}

Test(cuda_device, one_that_lets_no_program_in_is_passed_over)
{
    passed_over("FAKE_CUDA_MODE", "2");
}

Test(cuda_device, one_that_another_process_has_for_itself_is_passed_over)
{
    passed_over("FAKE_CUDA_BUSY", "1");
}

static void device_refused(int ordinal, int code, const char *words)
{
    struct cuda_driver d = open_fake();
    struct cuda_device dev;
    struct error err = {0};
    cr_assert_eq(cuda_device_open(&dev, &d, ordinal, &err), code);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    cuda_driver_close(&d);
}

Test(cuda_device, the_one_asked_for_is_not_replaced_by_another)
{
    setenv("FAKE_CUDA_SM", "75", 1);
    device_refused(1, -ENODEV, "Test Device 1 (device 1) has compute capability 7.5, Hearth needs 8.0");
}

Test(cuda_device, without_cooperative_launches_is_refused)
{
    setenv("FAKE_CUDA_COOPERATIVE", "0", 1);
    device_refused(-1, -ENODEV, "Test Device 0 (device 0) does not support cooperative launches");
}

Test(cuda_device, an_ordinal_that_is_not_there_is_refused)
{
    device_refused(2, -ENODEV, "the CUDA driver has 2 devices, counted from 0; there is no device 2");
}

Test(cuda_device, no_device_is_said_so)
{
    setenv("FAKE_CUDA_COUNT", "0", 1);
    device_refused(-1, -ENODEV, "the CUDA driver has 0 devices");
}

Test(cuda_device, a_context_that_cannot_be_had_is_reported)
{
    setenv("FAKE_CUDA_RETAIN", "2", 1);
    device_refused(-1, -ENOMEM, "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY");
}

Test(cuda_device, all_that_others_have_for_themselves_may_be_free_later)
{
    setenv("FAKE_CUDA_BUSY", "2", 1);
    device_refused(-1, -EIO,
                   "Test Device 1 (device 1): cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)");
}

Test(cuda_device, the_one_asked_for_lets_no_program_in)
{
    setenv("FAKE_CUDA_MODE", "2", 1);
    device_refused(1, -ENODEV, "Test Device 1 (device 1) is in compute mode prohibited");
}

struct made_image {
    const char *name;
    unsigned sm;
    const char *file;
};
static const struct made_image made[] = {
    {"walk", 80, "walk for 80"}, {"walk", 90, "walk for 90"}, {"stop", 90, "stop for 90"}};
static const struct made_image made_with_cubins[] = {
    {"walk", 80, "walk for 80"},    {"walk", 90, "walk for 90"},      {"walk", 80, "\177ELF for 80"},
    {"walk", 86, "\177ELF for 86"}, {"walk", 100, "\177ELF for 100"}, {"stop", 90, "stop for 90"},
    {"jump", 90, "\177ELF for 90"}};
static struct ptx_image images[4], with_cubins[8]; /* the last one has no name */

static void pack(struct ptx_image *out, const struct made_image *from)
{
    unsigned char *packed = malloc(128);
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)from->file,
                  .avail_in = (unsigned)strlen(from->file)};
    z.next_out = packed;
    z.avail_out = 128;
    cr_assert(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK &&
              deflate(&z, Z_FINISH) == Z_STREAM_END);
    *out = (struct ptx_image){.name = from->name,
                              .sm = from->sm,
                              .packed = packed,
                              .packed_size = z.total_out,
                              .size = strlen(from->file),
                              .is_cubin = from->file[0] == '\177'};
    deflateEnd(&z);
}

static void pack_all(void)
{
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        pack(&images[i], &made[i]);
    for (size_t i = 0; i < sizeof made_with_cubins / sizeof *made_with_cubins; i++)
        pack(&with_cubins[i], &made_with_cubins[i]);
}

static void free_all(void)
{
    for (struct ptx_image *i = images; i->name; i++)
        free((void *)(uintptr_t)i->packed);
    for (struct ptx_image *i = with_cubins; i->name; i++)
        free((void *)(uintptr_t)i->packed);
}

TestSuite(cuda_module, .init = pack_all, .fini = free_all);

Test(cuda_module, the_newest_image_that_the_device_can_run_is_loaded)
{
    struct cuda_driver d = open_fake();
    struct cuda_device ada = {.sm = 89}, blackwell = {.sm = 120};
    void *module = NULL;
    cr_assert_eq(cuda_module_open(&module, &d, &ada, images, "walk", NULL, NULL), 0);
    cr_assert_str_eq(module, "walk for 80");
    cr_assert_eq(cuda_module_open(&module, &d, &blackwell, images, "walk", NULL, NULL), 0);
    cr_assert_str_eq(module, "walk for 90");
    cuda_driver_close(&d);
}

static const struct {
    uint32_t sm;
    const char *name, *loaded, *reason; /* NULL: there is none */
} cubin_cases[] = {
    {80, "walk", "\177ELF for 80", NULL},
    {86, "walk", "\177ELF for 86", NULL},
    {89, "walk", "\177ELF for 86", NULL}, /* the same major number, a minor one that is not later */
    {103, "walk", "\177ELF for 100", NULL},
    {90, "walk", "walk for 90", "this build has no machine code for compute capability 9.0"},
    {120, "walk", "walk for 90", "this build has no machine code for compute capability 12.0"},
    {90, "stop", "stop for 90", NULL}, /* has no cubins at all */
};

Test(cuda_module, a_cubin_of_the_devices_major_number_goes_before_ptx)
{
    struct cuda_driver d = open_fake();
    for (size_t i = 0; i < sizeof cubin_cases / sizeof *cubin_cases; i++) {
        struct cuda_device device = {.sm = cubin_cases[i].sm};
        struct cuda_module_origin origin;
        void *module = NULL;
        cr_assert_eq(cuda_module_open(&module, &d, &device, with_cubins, cubin_cases[i].name, &origin, NULL),
                     0);
        cr_assert_str_eq(module, cubin_cases[i].loaded);
        cr_assert_eq(origin.is_cubin, *(const char *)module == '\177');
        cr_assert_str_eq(origin.reason, cubin_cases[i].reason ? cubin_cases[i].reason : "");
    }
    cuda_driver_close(&d);
}

Test(cuda_module, a_cubin_that_the_driver_refuses_gives_way_to_ptx)
{
    setenv("FAKE_CUDA_CUBIN", "209", 1);
    struct cuda_driver d = open_fake();
    struct cuda_device ada = {.sm = 89};
    struct cuda_module_origin origin;
    void *module = NULL;
    cr_assert_eq(cuda_module_open(&module, &d, &ada, with_cubins, "walk", &origin, NULL), 0);
    cr_assert_str_eq(module, "walk for 80");
    cr_assert_not(origin.is_cubin);
    cr_assert_not_null(strstr(origin.reason, "the driver refused the build's: cuModuleLoadDataEx: "), "%s",
                       origin.reason);
    cuda_driver_close(&d);
}

Test(cuda_module, without_ptx_a_refused_cubin_is_an_error)
{
    setenv("FAKE_CUDA_CUBIN", "200", 1);
    struct cuda_driver d = open_fake();
    struct cuda_device hopper = {.sm = 90};
    void *module = NULL;
    cr_assert_eq(cuda_module_open(&module, &d, &hopper, with_cubins, "jump", NULL, NULL), -ENODEV);
    cuda_driver_close(&d);
}

Test(cuda_module, a_kernel_that_the_device_cannot_run_is_named)
{
    struct cuda_driver d = open_fake();
    struct cuda_device ada = {.sm = 89};
    struct error err = {0};
    void *module = NULL;
    cr_assert_eq(cuda_module_open(&module, &d, &ada, images, "stop", NULL, &err), -ENODEV);
    cr_assert_str_eq(err.text, "this build has no kernel stop for compute capability 8.9");
    cuda_driver_close(&d);
}

Test(cuda_module, a_build_without_kernels_says_what_it_lacked)
{
    static const struct ptx_image none[] = {{NULL, 0, NULL, 0}};
    struct cuda_device ada = {.sm = 89, .name = "a card"};
    struct error err = {0};
    cr_assert_eq(cuda_kernels_check(&ada, none, false, &err), -ENODEV);
    cr_assert_not_null(strstr(err.text, "no GPU kernels"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "clang-19"), "%s", err.text);
    err = (struct error){0};
    cr_assert_eq(cuda_kernels_check(&ada, images, false, &err), -ENODEV);
    cr_assert_not_null(strstr(err.text, "for a card (compute capability 8.9)"), "%s", err.text);
}

/* Nor is that a machine without a GPU. */
Test(cuda_module, a_driver_without_its_compiler_is_an_error_and_not_no_device)
{
    static const char *const results[] = {"209", "222", "223", "221"};
    struct cuda_device hopper = {.sm = 90};
    struct error err = {0};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        void *module = NULL;
        setenv("FAKE_CUDA_JIT", results[i], 1);
        struct cuda_driver d = open_fake();
        err = (struct error){0};
        cr_assert_eq(cuda_module_open(&module, &d, &hopper, images, "walk", NULL, &err), -EIO);
        cuda_driver_close(&d);
    }
    cr_assert_not_null(strstr(err.text, "install libnvidia-ptxjitcompiler"), "%s", err.text);
}

Test(cuda_module, a_failed_compilation_carries_the_compilers_log)
{
    setenv("FAKE_CUDA_JIT", "218", 1);
    struct cuda_driver d = open_fake();
    struct cuda_device hopper = {.sm = 90};
    struct error err = {0};
    void *module = NULL;
    cr_assert_eq(cuda_module_open(&module, &d, &hopper, images, "walk", NULL, &err), -EIO);
    cr_assert_not_null(strstr(err.text, "kernel walk for sm_90: cuModuleLoadDataEx"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "line 7: unknown instruction in walk for 90"), "%s", err.text);
    cuda_driver_close(&d);
}
