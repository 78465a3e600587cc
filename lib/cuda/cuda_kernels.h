/* cuda_kernels.h - which kernels the backend launches, and their functions once the driver has compiled them.
 */
#pragma once
#include "driver.h"

#include <stdbool.h>

enum cuda_kernel {
    CUDA_DECODER, /* the resident one */
    CUDA_STEP_BEGIN,
    CUDA_STEP_END,
    CUDA_EMBED,
    CUDA_RMS_NORM,
    CUDA_MUL_MAT,
    CUDA_ROPE,
    CUDA_KV_APPEND,
    CUDA_ATTENTION,
    CUDA_ARGMAX,
    CUDA_ADD,
    CUDA_MUL,
    CUDA_SILU,
    CUDA_N_KERNELS,
};

struct cuda_kernels {
    void *functions[CUDA_N_KERNELS]; /* NULL: not of this executor */
    void *modules[CUDA_N_KERNELS];
    uint32_t n_modules;
};

/* Whether `images` have all kernels of the executor for the device. -ENODEV names the first that is missing,
 * or what the build lacked when there are none at all. */
int cuda_kernels_check(const struct cuda_device *device, const struct ptx_image *images, bool eager,
                       struct error *err);
/* Compiles them, which takes seconds when the driver does not have them in its cache. `progress` (may be
 * NULL) is told 0..1. */
int cuda_kernels_open(struct cuda_kernels *out, const struct cuda_driver *driver,
                      const struct cuda_device *device, bool eager,
                      void (*progress)(void *context, double fraction), void *context, struct error *err);
void cuda_kernels_close(struct cuda_kernels *k, const struct cuda_driver *driver); /* a closed one is fine */
