/* matmul.c - selects the kernel table for this CPU. */
#include "matmul.h"

#include <errno.h>
#include <string.h>

static const struct matmul_kernels *const tables[] = {
/* in the order of preference; tiles only where they are asked for, by name or by the tuner */
#if defined(__x86_64__)
    &matmul_avx512, &matmul_avxvnni, &matmul_avx2, &matmul_amx,
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

static const struct matmul_kernels *named(const char *isa)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i]->name, isa))
            return tables[i];
    return NULL;
}

static bool is_auto(const char *isa)
{
    return !isa || !strcmp(isa, "auto");
}

const struct matmul_kernels *matmul_find(const char *isa)
{
    if (!is_auto(isa))
        return named(isa) && named(isa)->supported() ? named(isa) : NULL;
    size_t i = 0;
    while (!tables[i]->supported()) /* the last one is, everywhere */
        i++;
    return tables[i];
}

int matmul_check_isa(const char *isa, struct error *err)
{
    if (matmul_find(isa))
        return 0;
    if (named(isa))
        return error_set(err, -ENOTSUP, "isa %s: this CPU or its operating system does not support it", isa);
    return error_set(err, -EINVAL, "isa %s: unknown, must be auto, avx512vnni, avxvnni, avx2, amx or scalar",
                     isa);
}
