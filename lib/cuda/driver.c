#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
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

/* -ENODEV naming the first function that the library lacks. */
static int find_calls(struct cuda_driver *d, const char *path, struct error *err)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *symbol = dlsym(d->library, calls[i].symbol);
        if (!symbol)
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
    /* Loading a function lazily, in the middle of a service, can wait for a kernel that never ends. */
    set("CUDA_MODULE_LOADING", "EAGER");
    /* A launch that waits for the kernel's end would wait for ever. */
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
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d->library)
        return error_set(err, -ENODEV, "no CUDA driver: %s", dlerror());
    int rc = find_calls(d, path, err);
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuInit, 0);
    if (rc == 0)
        rc = check_version(d, path, err);
    if (rc < 0) {
        cuda_driver_close(d);
        return -ENODEV;
    }
    return 0;
}

void cuda_driver_close(struct cuda_driver *d)
{
    if (d->library)
        dlclose(d->library);
    *d = (struct cuda_driver){0};
}

int cuda_check(const struct cuda_driver *d, struct error *err, const char *call, int result)
{
    if (result == CUDA_SUCCESS)
        return 0;
    const char *name = NULL, *text = NULL;
    if (d->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an unknown error";
    if (d->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
        text = "the driver has no words for it";
    int code = result == CUDA_OUT_OF_MEMORY ? -ENOMEM : result == CUDA_NO_DEVICE ? -ENODEV : -EIO;
    return error_set(err, code, "%s: %s (%d), %s", call, name, result, text);
}
