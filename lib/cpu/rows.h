/* rows.h - where the activations of a step lie: row i at data + i * stride. */
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

/* A stride for rows of `width` floats: whole cache lines, and never a large power of two, which would put the
 * same column of every row into the same few cache sets. */
static inline size_t rows_stride(uint32_t width)
{
    return ((size_t)width + 15) / 16 * 16 + 16;
}

/* Asks memory for n floats that will soon be read. */
static inline void rows_prefetch(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        __builtin_prefetch(x + i);
}
