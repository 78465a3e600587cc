/* cuda_kernels.h - the kernels that the backend launches: their functions, compiled by the driver.
 * Thread: the one that has the device's context current. */
#pragma once
#include "driver.h"

#include <stdbool.h>

enum cuda_kernel {
    CUDA_DECODER, /* the persistent one */
    CUDA_STEP_BEGIN,
    CUDA_STEP_END,
    CUDA_EMBED,
    CUDA_RMS_NORM,
    CUDA_MUL_MAT,
    CUDA_MUL_MAT_ID,
    CUDA_MUL_MAT_HEADS,
    CUDA_ROPE,
    CUDA_KV_APPEND,
    CUDA_ATTENTION,
    CUDA_ATTENTION_ANY,
    CUDA_ARGMAX,
    CUDA_ADD,
    CUDA_MUL,
    CUDA_SILU,
    CUDA_GELU,
    CUDA_SCALE,
    CUDA_SOFT_CAP,
    CUDA_ROUTE,
    CUDA_EXPERT_SUM,
    CUDA_GATE,
    CUDA_SWIGLU_CLAMPED,
    CUDA_JOIN,
    CUDA_SIGMOID,
    CUDA_SSM_CONV,
    CUDA_L2_NORM,
    CUDA_DELTA_GATE,
    CUDA_DELTA_NET,
    CUDA_N_KERNELS,
};

struct cuda_kernels {
    void *functions[CUDA_N_KERNELS]; /* NULL: not used by this executor */
    void *modules[CUDA_N_KERNELS];
    uint32_t n_modules;
    uint32_t n_cubins; /* modules that are the build's machine code; the driver compiled the others */
    char jit_reason[sizeof((struct cuda_module_origin *)0)->reason]; /* of the first that has one, or "" */
    uint32_t registers, local_bytes; /* of a thread: the most of any of them */
};

/* Checks that `images` have all kernels of the executor for the device. -ENODEV names the first missing
 * kernel, or what the build lacked if there are none. */
int cuda_kernels_check(const struct cuda_device *device, const struct ptx_image *images, bool eager,
                       struct error *err);
/* Loads them. What has no cubin is compiled, which takes seconds if the driver's cache does not have it.
 * `progress` (may be NULL) is called with 0..1. Errors: as cuda_module_open(); *out is closed then. */
int cuda_kernels_open(struct cuda_kernels *out, const struct cuda_driver *driver,
                      const struct cuda_device *device, bool eager,
                      void (*progress)(void *context, double fraction), void *context, struct error *err);
void cuda_kernels_close(struct cuda_kernels *k, const struct cuda_driver *driver); /* a closed one is fine */
