#include "cuda_kernels.h"
#include "ptx_image.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static const struct {
    const char *source, *entry; /* kernels of one source stand together: they share a module */
} kernels[] = {
    [CUDA_DECODER] = {"persistent_decoder", "persistent_decoder"},
    [CUDA_STEP_BEGIN] = {"step_io", "step_begin"},
    [CUDA_STEP_END] = {"step_io", "step_end"},
    [CUDA_EMBED] = {"embed", "embed"},
    [CUDA_RMS_NORM] = {"rms_norm", "rms_norm"},
    [CUDA_MUL_MAT] = {"mul_mat", "mul_mat"},
    [CUDA_MUL_MAT_ID] = {"mul_mat_id", "mul_mat_id"},
    [CUDA_MUL_MAT_HEADS] = {"mul_mat_heads", "mul_mat_heads"},
    [CUDA_ROPE] = {"rope", "rope"},
    [CUDA_KV_APPEND] = {"kv_append", "kv_append"},
    [CUDA_ATTENTION] = {"attention", "attention"},
    [CUDA_ATTENTION_ANY] = {"attention_any", "attention_any"},
    [CUDA_ARGMAX] = {"sample", "argmax"},
    [CUDA_ADD] = {"add", "add"},
    [CUDA_MUL] = {"mul", "mul"},
    [CUDA_SILU] = {"silu", "silu"},
    [CUDA_GELU] = {"gelu", "gelu"},
    [CUDA_SCALE] = {"scale", "scale"},
    [CUDA_SOFT_CAP] = {"soft_cap", "soft_cap"},
    [CUDA_ROUTE] = {"route", "route"},
    [CUDA_EXPERT_SUM] = {"expert_sum", "expert_sum"},
    [CUDA_GATE] = {"gate", "gate"},
    [CUDA_SWIGLU_CLAMPED] = {"swiglu_clamped", "swiglu_clamped"},
    [CUDA_JOIN] = {"join", "join"},
    [CUDA_SIGMOID] = {"sigmoid", "sigmoid"},
    [CUDA_SSM_CONV] = {"ssm_conv", "ssm_conv"},
    [CUDA_L2_NORM] = {"l2_norm", "l2_norm"},
    [CUDA_DELTA_GATE] = {"delta_gate", "delta_gate"},
    [CUDA_DELTA_NET] = {"delta_net", "delta_net"},
};
static_assert(sizeof kernels / sizeof *kernels == CUDA_N_KERNELS, "every kernel has a row");

static bool is_wanted(enum cuda_kernel k, bool eager)
{
    return (k == CUDA_DECODER) != eager;
}

int cuda_kernels_check(const struct cuda_device *device, const struct ptx_image *images, bool eager,
                       struct error *err)
{
    if (!images->name)
        return error_set(err, -ENODEV,
                         "this build has no GPU kernels; build it again with clang 18 or later (Debian: "
                         "clang-19)");
    for (enum cuda_kernel k = 0; k < CUDA_N_KERNELS; k++) {
        bool found = !is_wanted(k, eager);
        for (const struct ptx_image *i = images; i->name && !found; i++)
            found = !i->is_cubin && strcmp(i->name, kernels[k].source) == 0 && i->sm <= device->sm;
        if (!found)
            return error_set(err, -ENODEV, "this build has no kernel %s for %s (compute capability %u.%u)",
                             kernels[k].entry, device->name, device->sm / 10, device->sm % 10);
    }
    return 0;
}

/* Opens the module of a kernel, unless the previous kernel is of the same source. */
static int open_module(struct cuda_kernels *out, enum cuda_kernel k, const char **source,
                       const struct cuda_driver *driver, const struct cuda_device *device, struct error *err)
{
    if (*source && strcmp(*source, kernels[k].source) == 0)
        return 0;
    struct cuda_module_origin origin;
    int rc = cuda_module_open(&out->modules[out->n_modules], driver, device, ptx_images, kernels[k].source,
                              &origin, err);
    out->n_modules += rc == 0;
    out->n_cubins += rc == 0 && origin.is_cubin;
    if (*origin.reason && !*out->jit_reason)
        memcpy(out->jit_reason, origin.reason, sizeof out->jit_reason);
    *source = kernels[k].source;
    return rc;
}

/* Notes what the driver's compiler gave a kernel. */
static int note_size(struct cuda_kernels *out, enum cuda_kernel k, const struct cuda_driver *driver,
                     struct error *err)
{
    int registers = 0, local = 0;
    int rc =
        CUDA_TRY(driver, err, cuFuncGetAttribute, &registers, CUDA_FUNCTION_REGISTERS, out->functions[k]);
    if (rc == 0)
        rc = CUDA_TRY(driver, err, cuFuncGetAttribute, &local, CUDA_FUNCTION_LOCAL, out->functions[k]);
    out->registers = (uint32_t)registers > out->registers ? (uint32_t)registers : out->registers;
    out->local_bytes = (uint32_t)local > out->local_bytes ? (uint32_t)local : out->local_bytes;
    return rc;
}

int cuda_kernels_open(struct cuda_kernels *out, const struct cuda_driver *driver,
                      const struct cuda_device *device, bool eager,
                      void (*progress)(void *context, double fraction), void *context, struct error *err)
{
    const char *source = NULL;
    int rc = 0;
    *out = (struct cuda_kernels){0};
    for (enum cuda_kernel k = 0; k < CUDA_N_KERNELS && rc == 0; k++) {
        if (!is_wanted(k, eager))
            continue;
        rc = open_module(out, k, &source, driver, device, err);
        if (rc == 0)
            rc = CUDA_TRY(driver, err, cuModuleGetFunction, &out->functions[k],
                          out->modules[out->n_modules - 1], kernels[k].entry);
        if (rc == 0)
            rc = note_size(out, k, driver, err);
        if (rc == 0 && progress)
            progress(context, (double)(k + 1) / CUDA_N_KERNELS);
    }
    if (rc < 0)
        cuda_kernels_close(out, driver);
    return rc;
}

void cuda_kernels_close(struct cuda_kernels *k, const struct cuda_driver *driver)
{
    while (k->n_modules > 0)
        driver->cuModuleUnload(k->modules[--k->n_modules]);
    *k = (struct cuda_kernels){0};
}
