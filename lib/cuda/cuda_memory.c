#include "cuda_memory.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static int refuse(struct error *err, const struct error *why, int rc, size_t size, const char *what)
{
    return error_set(err, rc, "%.1f MiB for %s: %.240s", (double)size / (1 << 20), what, why->text);
}

int cuda_block_take(struct cuda_block *b, const struct cuda_driver *d, size_t size, const char *what,
                    struct error *err)
{
    struct error why = {0};
    uint64_t address = 0;
    size_t bytes = size ? size : 256; /* the driver rejects 0 */
    int rc = CUDA_TRY(d, &why, cuMemAlloc, &address, bytes);
    if (rc < 0)
        return refuse(err, &why, rc, size, what);
    *b = (struct cuda_block){address, bytes};
    return 0;
}

void cuda_block_give(struct cuda_block *b, const struct cuda_driver *d)
{
    if (b->address)
        d->cuMemFree(b->address);
    *b = (struct cuda_block){0};
}

/* Returns whether memory is managed: in Confidential Computing mode the driver returns managed memory for
 * pinned. It moves to the side that accesses it, so that a word which one side polls and the other writes is
 * never seen to change. A driver that cannot tell has none. */
static bool is_managed(const struct cuda_driver *d, const void *data)
{
    uint32_t managed = 0;
    return d->cuPointerGetAttribute &&
           d->cuPointerGetAttribute(&managed, CUDA_POINTER_IS_MANAGED, (uintptr_t)data) == CUDA_SUCCESS &&
           managed;
}

int cuda_pinned_take(struct cuda_pinned *p, const struct cuda_driver *d, size_t size, const char *what,
                     struct error *err)
{
    struct error why = {0};
    void *data = NULL;
    uint64_t address = 0;
    int rc = CUDA_TRY(d, &why, cuMemHostAlloc, &data, size, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    if (rc < 0)
        return refuse(err, &why, rc, size, what);
    if (is_managed(d, data))
        rc = error_set(&why, -ENOTSUP,
                       "the driver gives managed memory for pinned, as in Confidential Computing mode; host "
                       "and kernel cannot communicate through it");
    else
        rc = CUDA_TRY(d, &why, cuMemHostGetDevicePointer, &address, data, 0);
    if (rc < 0) {
        d->cuMemFreeHost(data);
        return refuse(err, &why, rc, size, what);
    }
    memset(data, 0, size);
    *p = (struct cuda_pinned){data, address, size};
    return 0;
}

void cuda_pinned_give(struct cuda_pinned *p, const struct cuda_driver *d)
{
    if (p->data)
        d->cuMemFreeHost(p->data);
    *p = (struct cuda_pinned){0};
}
