/* calls_that_answer.c - a driver with two devices, whose properties and failures come from the environment,
 * so that each way of failing can be tested: FAKE_CUDA_INIT, _VERSION, _COUNT, _SM (of device 1),
 * _MODE (of device 1), _COOPERATIVE, _RETAIN, _BUSY (how many of the devices are, the last first), _JIT,
 * _QUERY, _MANAGED (what pinned memory is), _POINTER (the question for that). It runs nothing. */
#include "cuda/driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)
#define DECLARE(call, symbol, parameters) int symbol parameters;
CUDA_CALLS(DECLARE)

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags)
{
    const char *loading = getenv("CUDA_MODULE_LOADING");
    return flags || !loading || strcmp(loading, "EAGER") != 0 ? 1 : setting("FAKE_CUDA_INIT", CUDA_SUCCESS);
}

int cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_CUDA_VERSION", 12040);
    return CUDA_SUCCESS;
}

static const struct {
    int result;
    const char *name, *text;
} words[] = {
    {CUDA_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
};

int cuGetErrorName(int result, const char **text)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].result == result)
            return *text = words[i].name, CUDA_SUCCESS;
    return 1;
}

int cuGetErrorString(int result, const char **text)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].result == result)
            return *text = words[i].text, CUDA_SUCCESS;
    return 1;
}

int cuDeviceGetCount(int *n)
{
    *n = setting("FAKE_CUDA_COUNT", 2);
    return CUDA_SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = 70 + ordinal;
    return CUDA_SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Test Device %d", device - 70);
    return CUDA_SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = device == 71 ? (size_t)80 << 30 : (size_t)24 << 30;
    return CUDA_SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int sm = device == 71 ? setting("FAKE_CUDA_SM", 90) : 86;
    switch (attribute) {
    case CUDA_CAPABILITY_MAJOR:
        *value = sm / 10;
        break;
    case CUDA_CAPABILITY_MINOR:
        *value = sm % 10;
        break;
    case CUDA_N_SMS:
        *value = 132;
        break;
    case CUDA_SHARED_PER_BLOCK:
        *value = 232448;
        break;
    case CUDA_COOPERATIVE_LAUNCH:
        *value = setting("FAKE_CUDA_COOPERATIVE", 1);
        break;
    case CUDA_COMPUTE_MODE:
        *value = device == 71 ? setting("FAKE_CUDA_MODE", 0) : 0;
        break;
    case CUDA_MEMORY_CLOCK_KHZ:
        *value = 2619000;
        break;
    case CUDA_MEMORY_BUS_BITS:
        *value = 5120;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(intptr_t)device;
    if (device > 71 - setting("FAKE_CUDA_BUSY", 0))
        return CUDA_DEVICE_UNAVAILABLE;
    return setting("FAKE_CUDA_RETAIN", CUDA_SUCCESS);
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    *memory = malloc(bytes);
    return *memory ? CUDA_SUCCESS : CUDA_OUT_OF_MEMORY;
}

int cuMemFreeHost(void *memory)
{
    free(memory);
    return CUDA_SUCCESS;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    if (attribute != CUDA_POINTER_IS_MANAGED || !address)
        return 1;
    *(uint32_t *)value = (uint32_t)setting("FAKE_CUDA_MANAGED", 0);
    return setting("FAKE_CUDA_POINTER", CUDA_SUCCESS);
}

int cuStreamQuery(void *stream)
{
    (void)stream;
    return setting("FAKE_CUDA_QUERY", CUDA_SUCCESS);
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned n_options, int *options, void **values)
{
    bool is_cubin = memcmp(image, "\177ELF", 4) == 0;
    int result = setting(is_cubin ? "FAKE_CUDA_CUBIN" : "FAKE_CUDA_JIT", CUDA_SUCCESS);
    for (unsigned i = 0; result != CUDA_SUCCESS && i + 1 < n_options; i++)
        if (options[i] == CUDA_JIT_ERROR_LOG && options[i + 1] == CUDA_JIT_ERROR_LOG_SIZE)
            snprintf(values[i], (size_t)(uintptr_t)values[i + 1], "line 7: unknown instruction in %s",
                     (const char *)image);
    static char loaded[64]; /* the last image: a caller frees its own */
    snprintf(loaded, sizeof loaded, "%s", (const char *)image);
    *module = loaded;
    return result;
}
