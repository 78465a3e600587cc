/* matmul.c - selects the kernel table for this CPU. */
#include "matmul.h"

#include <errno.h>
#include <string.h>

static const struct matmul_kernels *const tables[] = {
/* best first */
#if defined(__x86_64__)
    &matmul_avx512,
    &matmul_avxvnni,
    &matmul_avx2,
#endif
    &matmul_scalar,
};

size_t matmul_scratch_size(void)
{
    size_t size = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        size = tables[i]->scratch_size > size ? tables[i]->scratch_size : size;
    return size;
}

const struct matmul_kernels *matmul_find(const char *isa, struct error *err)
{
    size_t n = sizeof tables / sizeof *tables;
    if (!isa || !strcmp(isa, "auto"))
        for (size_t i = 0; i < n; i++)
            if (tables[i]->supported())
                return tables[i];
    for (size_t i = 0; i < n; i++)
        if (isa && !strcmp(tables[i]->name, isa)) {
            if (tables[i]->supported())
                return tables[i];
            error_set(err, -ENOTSUP, "isa %s: this CPU or its operating system does not support it", isa);
            return NULL;
        }
    error_set(err, -EINVAL, "isa %s: unknown, must be auto, avx512vnni, avxvnni, avx2 or scalar",
              isa ? isa : "");
    return NULL;
}
