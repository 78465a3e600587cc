/* device.c - choice of the GPU, and kernels compiled for it. Declared in driver.h. */
#include "driver.h"
#include "ptx_image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_SM      80
#define MAX_DEVICES 64

static int attribute(const struct cuda_driver *d, const struct cuda_device *dev,
                     enum cuda_device_attribute which, int *value, struct error *err)
{
    return CUDA_TRY(d, err, cuDeviceGetAttribute, value, (int)which, dev->handle);
}

struct abilities {
    int cooperative; /* supports cooperative launches */
    int compute_mode;
};

/* Fills in everything except the context. */
static int describe(struct cuda_device *dev, const struct cuda_driver *d, struct abilities *can,
                    struct error *err)
{
    int major = 0, minor = 0, n_sms = 0, shared = 0, l2 = 0, khz = 0, bits = 0, threads = 0;
    const struct {
        enum cuda_device_attribute which;
        int *value;
    } wanted[] = {
        {CUDA_CAPABILITY_MAJOR, &major},
        {CUDA_CAPABILITY_MINOR, &minor},
        {CUDA_N_SMS, &n_sms},
        {CUDA_SHARED_PER_BLOCK, &shared},
        {CUDA_L2_BYTES, &l2},
        {CUDA_COOPERATIVE_LAUNCH, &can->cooperative},
        {CUDA_COMPUTE_MODE, &can->compute_mode},
        {CUDA_KERNEL_TIME_LIMIT, &dev->has_time_limit},
        {CUDA_INTEGRATED, &dev->is_integrated},
    };
    int rc = CUDA_TRY(d, err, cuDeviceGet, &dev->handle, dev->ordinal);
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuDeviceGetName, dev->name, (int)sizeof dev->name - 1, dev->handle);
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuDeviceTotalMem, &dev->memory_bytes, dev->handle);
    for (size_t i = 0; rc == 0 && i < sizeof wanted / sizeof wanted[0]; i++)
        rc = attribute(d, dev, wanted[i].which, wanted[i].value, err);
    if (rc < 0)
        return rc;
    dev->sm = (uint32_t)(major * 10 + minor);
    dev->n_sms = (uint32_t)n_sms;
    dev->shared_per_block = (size_t)shared;
    dev->l2_bytes = (size_t)l2;
    dev->max_threads = attribute(d, dev, CUDA_THREADS_PER_BLOCK, &threads, NULL) == 0 && threads > 0
                           ? (uint32_t)threads
                           : 1024;
    /* Newer drivers may lack these attributes; the bandwidth is then unknown. Two transfers per clock. */
    if (attribute(d, dev, CUDA_MEMORY_CLOCK_KHZ, &khz, NULL) == 0 &&
        attribute(d, dev, CUDA_MEMORY_BUS_BITS, &bits, NULL) == 0 && khz > 0 && bits > 0)
        dev->bandwidth = (uint64_t)khz * 1000 * 2 * (uint64_t)bits / 8;
    return 0;
}

static int check_fit(const struct cuda_device *dev, const struct abilities *can, struct error *err)
{
    if (dev->sm < MIN_SM)
        return error_set(err, -ENODEV,
                         "%s (device %d) has compute capability %u.%u, Hearth needs %d.%d or later",
                         dev->name, dev->ordinal, dev->sm / 10, dev->sm % 10, MIN_SM / 10, MIN_SM % 10);
    if (!can->cooperative)
        return error_set(err, -ENODEV, "%s (device %d) does not support cooperative launches", dev->name,
                         dev->ordinal);
    if (can->compute_mode == CUDA_PROHIBITED)
        return error_set(err, -ENODEV, "%s (device %d) is in compute mode prohibited", dev->name,
                         dev->ordinal);
    return 0;
}

/* *best = the suitable device with the most memory among those not `taken` (a bit each). If there is none,
 * *first has the reason for the first rejected one. */
static int choose(struct cuda_device *best, const struct cuda_driver *d, int wanted, uint64_t taken,
                  struct error *first)
{
    int n = 0, rc = CUDA_TRY(d, first, cuDeviceGetCount, &n);
    if (rc < 0)
        return rc;
    n = n < MAX_DEVICES ? n : MAX_DEVICES;
    if (n <= 0 || wanted >= n)
        return error_set(first, -ENODEV,
                         wanted < 0 ? "the CUDA driver has %d devices"
                                    : "the CUDA driver has %d devices, counted from 0; there is no device %d",
                         n, wanted);
    best->memory_bytes = 0;
    for (int i = wanted < 0 ? 0 : wanted; i < (wanted < 0 ? n : wanted + 1); i++) {
        struct cuda_device dev = {.ordinal = i};
        struct abilities can = {0};
        if (!(taken >> i & 1) && describe(&dev, d, &can, first) == 0 && check_fit(&dev, &can, first) == 0 &&
            dev.memory_bytes > best->memory_bytes)
            *best = dev;
    }
    if (!best->memory_bytes)
        return error_set(first, first->code ? first->code : -ENODEV, "the CUDA device has no memory");
    return 0;
}

/* Retains the device's context. Returns 1 if another process has exclusive use of the device. */
static int retain(struct cuda_device *dev, const struct cuda_driver *d, struct error *err)
{
    struct error why = {0};
    /* So that a thread that waits for the device sleeps. */
    int rc = CUDA_TRY(d, &why, cuDevicePrimaryCtxSetFlags, dev->handle, CUDA_CONTEXT_BLOCKING_SYNC),
        result = 0;
    if (rc == 0) {
        result = d->cuDevicePrimaryCtxRetain(&dev->context, dev->handle);
        rc = cuda_check(d, &why, "cuDevicePrimaryCtxRetain", result);
    }
    if (rc < 0)
        error_set(err, rc, "%s (device %d): %s", dev->name, dev->ordinal, why.text);
    return result == CUDA_DEVICE_UNAVAILABLE ? 1 : rc;
}

int cuda_device_open(struct cuda_device *out, const struct cuda_driver *d, int ordinal, struct error *err)
{
    struct cuda_device dev = {0};
    struct error first = {0};
    int rc = 1;
    for (uint64_t taken = 0; rc > 0; taken |= 1ull << dev.ordinal) {
        rc = choose(&dev, d, ordinal, taken, &first);
        if (rc == 0)
            rc = retain(&dev, d, &first);
    }
    if (rc < 0)
        return error_set(err, rc, "%s", first.text);
    rc = CUDA_TRY(d, err, cuCtxSetCurrent, dev.context);
    if (rc < 0) {
        cuda_device_close(&dev, d);
        return rc;
    }
    *out = dev;
    return 0;
}

void cuda_device_close(struct cuda_device *dev, const struct cuda_driver *d)
{
    if (dev->context)
        d->cuDevicePrimaryCtxRelease(dev->handle);
    dev->context = NULL;
}

static bool can_run(const struct ptx_image *image, uint32_t sm)
{
    return image->sm <= sm && (!image->is_cubin || image->sm / 10 == sm / 10);
}

static const struct ptx_image *find_image(const struct ptx_image *images, const char *name, uint32_t sm,
                                          bool is_cubin)
{
    const struct ptx_image *best = NULL;
    for (const struct ptx_image *i = images; i->name; i++)
        if (strcmp(i->name, name) == 0 && i->is_cubin == is_cubin && can_run(i, sm) &&
            (!best || i->sm > best->sm))
            best = i;
    return best;
}

static bool has_cubins(const struct ptx_image *images, const char *name)
{
    for (const struct ptx_image *i = images; i->name; i++)
        if (i->is_cubin && strcmp(i->name, name) == 0)
            return true;
    return false;
}

/* Returns whether the driver took a cubin; *origin says why it did not. */
static bool load_cubin(void **module, const struct cuda_driver *d, const struct cuda_device *dev,
                       const struct ptx_image *images, const char *name, struct cuda_module_origin *origin)
{
    const struct ptx_image *image = find_image(images, name, dev->sm, true);
    struct error why = {0};
    *origin = (struct cuda_module_origin){0};
    char *cubin = image ? ptx_image_unpack(image) : NULL;
    if (cubin)
        origin->is_cubin = cuda_check(d, &why, "cuModuleLoadDataEx",
                                      d->cuModuleLoadDataEx(module, cubin, 0, NULL, NULL)) == 0;
    else if (image)
        error_set(&why, -ENOMEM, "there was no memory for the build's machine code");
    else if (has_cubins(images, name))
        error_set(&why, -ENODEV, "this build has no machine code for compute capability %u.%u", dev->sm / 10,
                  dev->sm % 10);
    snprintf(origin->reason, sizeof origin->reason, "%s%.160s",
             cubin && *why.text ? "the driver refused the build's: " : "", why.text);
    free(cubin);
    return origin->is_cubin;
}

static int load_ptx(void **module, const struct cuda_driver *d, const struct cuda_device *dev,
                    const struct ptx_image *images, const char *name, struct error *err)
{
    const struct ptx_image *image = find_image(images, name, dev->sm, false);
    if (!image)
        return error_set(err, -ENODEV, "this build has no kernel %s for compute capability %u.%u", name,
                         dev->sm / 10, dev->sm % 10);
    char *ptx = ptx_image_unpack(image), log[256] = "";
    if (!ptx)
        return error_set(err, -ENOMEM, "no memory for kernel %s", name);
    int options[] = {CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_SIZE};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    int result = d->cuModuleLoadDataEx(module, ptx, 2, options, values);
    free(ptx);
    if (result == CUDA_SUCCESS)
        return 0;
    struct error call = {0};
    int rc = cuda_check(d, &call, "cuModuleLoadDataEx", result);
    log[sizeof log - 1] = '\0';
    return error_set(err, rc, "kernel %s for sm_%u: %.150s%s%.130s", name, image->sm, call.text,
                     *log ? ": " : "", log);
}

int cuda_module_open(void **module, const struct cuda_driver *d, const struct cuda_device *dev,
                     const struct ptx_image *images, const char *name, struct cuda_module_origin *origin,
                     struct error *err)
{
    struct cuda_module_origin unused;
    if (load_cubin(module, d, dev, images, name, origin ? origin : &unused))
        return 0;
    return load_ptx(module, d, dev, images, name, err);
}
