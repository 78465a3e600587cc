/* part_device.c - the device, the driver, and its compiler's registers and local memory for every kernel. */
#include "gpu/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds the next kernel name in a PTX text: moves *at; false at the end. */
static bool next_entry(const char **at, char *name, size_t room)
{
    static const char word[] = ".visible .entry ";
    const char *p = strstr(*at, word);
    if (!p)
        return false;
    p += sizeof word - 1;
    size_t n = strcspn(p, "( \n");
    n = n < room ? n : room - 1;
    memcpy(name, p, n);
    name[n] = '\0';
    *at = p;
    return true;
}

static int put_kernel(struct gpu *g, void *module, const char *source, const char *name,
                      const struct cuda_module_origin *origin, json_t *rows, struct error *err)
{
    void *function;
    int registers = 0, local = 0;
    int rc = CUDA_TRY(&g->driver, err, cuModuleGetFunction, &function, module, name);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuFuncGetAttribute, &registers, CUDA_FUNCTION_REGISTERS, function);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuFuncGetAttribute, &local, CUDA_FUNCTION_LOCAL, function);
    if (rc == 0)
        gpu_add(rows, json_pack("{s:s, s:s, s:o, s:o, s:b, s:s}", "source", source, "kernel", name,
                                "registers", gpu_figure(g, registers), "local_bytes", gpu_figure(g, local),
                                "cubin", origin->is_cubin, "jit_reason", origin->reason));
    return rc;
}

/* Handles every source once: the image that this device would use. */
static int put_kernels(struct gpu *g, const struct ptx_image *images, json_t *rows, struct error *err)
{
    for (const struct ptx_image *i = images; i->name; i++) {
        const struct ptx_image *best = i;
        struct cuda_module_origin origin;
        char name[96];
        void *module;
        bool seen = false;
        for (const struct ptx_image *k = images; k->name; k++) {
            if (k->is_cubin || strcmp(k->name, i->name) != 0)
                continue;
            seen = seen || k < i;
            best = k->sm <= g->device.sm && k->sm > best->sm ? k : best;
        }
        if (seen || i->is_cubin)
            continue;
        int rc = cuda_module_open(&module, &g->driver, &g->device, images, i->name, &origin, err);
        char *text = rc == 0 ? ptx_image_unpack(best) : NULL;
        const char *at = text;
        if (rc == 0 && !text)
            rc = error_set(err, -ENOMEM, "no memory for kernel %s", i->name);
        while (rc == 0 && next_entry(&at, name, sizeof name))
            rc = put_kernel(g, module, i->name, name, &origin, rows, err);
        free(text);
        if (rc < 0)
            return rc;
        g->driver.cuModuleUnload(module);
    }
    return 0;
}

int part_device(struct gpu *g, json_t *out, struct error *err)
{
    const struct cuda_device *d = &g->device;
    json_t *kernels = json_array(), *benches = json_array();
    gpu_put(out, "driver", json_integer(g->driver.version));
    gpu_put(out, "capability", json_integer(d->sm));
    gpu_put(out, "sms", json_integer(d->n_sms));
    gpu_put(out, "shared_per_block", json_integer((json_int_t)d->shared_per_block));
    gpu_put(out, "l2_bytes", json_integer((json_int_t)d->l2_bytes));
    gpu_put(out, "memory_bytes", json_integer((json_int_t)d->memory_bytes));
    gpu_put(out, "bus_gbps", gpu_figure(g, (double)d->bandwidth * 1e-9));
    gpu_put(out, "time_limit", json_boolean(d->has_time_limit));
    gpu_put(out, "kernels", kernels);
    gpu_put(out, "bench_kernels", benches);
    int rc = put_kernels(g, ptx_images, kernels, err);
    return rc < 0 ? rc : put_kernels(g, gpu_ptx_images, benches, err);
}
