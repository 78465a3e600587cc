/* cuda_memory.h - memory of the device, and pinned memory of the host which the device reads and writes over
 * the bus. All of it is taken at load and given back at close, never while a kernel runs. Errors are -ENOMEM
 * (or what else the driver says; -ENOTSUP: pinned memory is not what it should be) and name what the memory
 * was for. Thread: the one that has the context. */
#pragma once
#include "driver.h"

struct cuda_block { /* device */
    uint64_t address;
    size_t size;
};

struct cuda_pinned { /* host; zeroed when taken */
    void *data;
    uint64_t address; /* as the device sees it */
    size_t size;
};

int cuda_block_take(struct cuda_block *b, const struct cuda_driver *d, size_t size, const char *what,
                    struct error *err);
void cuda_block_give(struct cuda_block *b, const struct cuda_driver *d); /* an empty one is fine */
int cuda_pinned_take(struct cuda_pinned *p, const struct cuda_driver *d, size_t size, const char *what,
                     struct error *err);
void cuda_pinned_give(struct cuda_pinned *p, const struct cuda_driver *d);

/* Hands out parts of one block, each at a multiple of 256; with base 0 it only counts, so that the same code
 * sizes and places. */
struct cuda_arena {
    uint64_t base;
    size_t used;
};

static inline uint64_t cuda_arena_take(struct cuda_arena *a, size_t size)
{
    uint64_t address = a->base ? a->base + a->used : 0;
    a->used += (size + 255) / 256 * 256;
    return address;
}
