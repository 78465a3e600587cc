#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *symbol;
    size_t member;
} calls[] = {
#define CUDA_ROW(call, symbol, parameters) {#symbol, offsetof(struct cuda_driver, call)},
    CUDA_CALLS(CUDA_ROW)
#undef CUDA_ROW
};

/* Finds all functions. -ENODEV names the first one that the library lacks. */
static int find_calls(struct cuda_driver *d, const char *path, struct error *err)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *symbol = dlsym(d->library, calls[i].symbol);
        bool is_needed = calls[i].member != offsetof(struct cuda_driver, cuPointerGetAttribute);
        if (!symbol && is_needed)
            return error_set(err, -ENODEV, "%s is not a CUDA driver of R525 or later: it has no %s", path,
                             calls[i].symbol);
        memcpy((char *)d + calls[i].member, &symbol, sizeof symbol);
    }
    return 0;
}

static int check_version(struct cuda_driver *d, const char *path, struct error *err)
{
    int rc = CUDA_TRY(d, err, cuDriverGetVersion, &d->version);
    if (rc == 0 && d->version < CUDA_MIN_VERSION)
        rc = error_set(err, -ENODEV, "%s: the driver is for CUDA %d.%d, Hearth needs %d.%d (R525) or later",
                       path, d->version / 1000, d->version % 1000 / 10, CUDA_MIN_VERSION / 1000,
                       CUDA_MIN_VERSION % 1000 / 10);
    return rc;
}

static void set(const char *name, const char *value)
{
    const char *now = getenv(name);
    if (!now || strcmp(now, value) != 0)
        setenv(name, value, 1);
}

void cuda_driver_environment(const char *cache_directory)
{
    /* Loading a function lazily, while serving, can wait for a kernel that never ends. */
    set("CUDA_MODULE_LOADING", "EAGER");
    /* A launch that waits for the persistent kernel to end would wait for ever. */
    if (getenv("CUDA_LAUNCH_BLOCKING"))
        set("CUDA_LAUNCH_BLOCKING", "0");
    if (cache_directory && *cache_directory)
        set("CUDA_CACHE_PATH", cache_directory);
}

int cuda_driver_open(struct cuda_driver *d, const char *path, const char *cache_directory, struct error *err)
{
    *d = (struct cuda_driver){0};
    if (!path || !*path)
        path = "libcuda.so.1";
    cuda_driver_environment(cache_directory);
    /* The driver's threads, and its data about this process's threads, outlive dlclose(). */
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!d->library)
        return error_set(err, -ENODEV, "no CUDA driver: %s", dlerror());
    int rc = find_calls(d, path, err);
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuInit, 0);
    if (rc == 0)
        rc = check_version(d, path, err);
    if (rc < 0)
        cuda_driver_close(d);
    return rc;
}

void cuda_driver_close(struct cuda_driver *d)
{
    if (d->library)
        dlclose(d->library);
    *d = (struct cuda_driver){0};
}

/* Returns advice, if the driver's own text has none. */
static const char *advice(int result)
{
    switch (result) {
    case CUDA_NO_JIT:
        return "; install libnvidia-ptxjitcompiler";
    case CUDA_SYSTEM_NOT_READY:
        return "; start nvidia-fabricmanager";
    case CUDA_DRIVER_MISMATCH:
        return "; the kernel module has another version: load it again, or restart the machine";
    default:
        return "";
    }
}

/* -EIO is for errors that may pass or need an operator: with -ENODEV, backend auto would use cpu without a
 * warning, and the systemd units would not restart the daemon once the driver is ready. */
static int code_of(int result)
{
    switch (result) {
    case CUDA_OUT_OF_MEMORY:
        return -ENOMEM;
    case CUDA_STUB_LIBRARY:
    case CUDA_NO_DEVICE:
        return -ENODEV;
    default:
        return -EIO;
    }
}

int cuda_check(const struct cuda_driver *d, struct error *err, const char *call, int result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    const char *name = NULL, *text = NULL;
    if (d->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an unknown error";
    if (d->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
        text = "no description";
    return error_set(err, code_of(result), "%s: %s (%d), %s%s", call, name, result, text, advice(result));
}

int cuda_flush(const struct cuda_driver *d, void *stream, struct error *err)
{
    int result = d->cuStreamQuery(stream);
    return result == CUDA_NOT_READY ? 0 : cuda_check(d, err, "cuStreamQuery", result);
}
