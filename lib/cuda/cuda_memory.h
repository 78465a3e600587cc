/* cuda_memory.h - device memory, and pinned host memory that the device reads and writes over the bus. All of
 * it is acquired at load and released at close, never while a kernel runs.
 * Errors: -ENOMEM, or as the driver's error; -ENOTSUP: the driver's pinned memory cannot be used. The text
 * names the purpose of the memory.
 * Thread: the one that has the context current. */
#pragma once
#include "driver.h"

struct cuda_block { /* device memory */
    uint64_t address;
    size_t size;
};

struct cuda_pinned { /* host memory, zeroed when acquired */
    void *data;
    uint64_t address; /* address on the device */
    size_t size;
};

int cuda_block_take(struct cuda_block *b, const struct cuda_driver *d, size_t size, const char *what,
                    struct error *err);
void cuda_block_give(struct cuda_block *b, const struct cuda_driver *d); /* an empty one is fine */
int cuda_pinned_take(struct cuda_pinned *p, const struct cuda_driver *d, size_t size, const char *what,
                     struct error *err);
void cuda_pinned_give(struct cuda_pinned *p, const struct cuda_driver *d);

/* Places parts of one block, each at a multiple of 256. With base 0 it only counts, so that the same code
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
