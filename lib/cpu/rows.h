/* rows.h - the layout of a step's activations: row i is at data + i * stride.
 * Thread: any; all functions are pure. Memory: the caller's. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct rows {
    float *data;
    size_t stride; /* floats */
};

static inline float *row_at(struct rows r, uint32_t i)
{
    return r.data + i * r.stride;
}

/* The stride, in floats, for rows of `width` floats: whole cache lines, and never a large power of two, which
 * would map the same column of every row to the same few cache sets. */
static inline size_t rows_stride(uint32_t width)
{
    return ((size_t)width + 15) / 16 * 16 + 16;
}

/* Prefetches n floats that will be read soon. */
static inline void rows_prefetch(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        __builtin_prefetch(x + i);
}
