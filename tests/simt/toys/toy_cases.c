#include "toy_cases.h"
#include "toys.h"

#include <stdlib.h>
#include <string.h>

#define BLOCKS        4
#define ROUNDS        3
#define N_OUT_BARRIER (BLOCKS * GRID_BARRIER_THREADS)

/* A buffer of the case, mapped for the kernel. Those that are zeroed before each run come first. */
static void *buffer(struct toy_case *c, size_t size, uint32_t flags, const char *name)
{
    void *p = aligned_alloc(128, (size + 127) / 128 * 128);
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(p, 0, size);
    c->buffers[c->n_buffers] = p;
    c->sizes[c->n_buffers++] = size;
    if (!(flags & SIMT_MAP_READ_ONLY))
        c->n_cleared = c->n_buffers;
    simt_map(c->machine, p, size, flags, name);
    return p;
}

static void fill_random(void *p, size_t size)
{
    uint32_t x = 12345;
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525 + 1013904223;
        ((uint8_t *)p)[i] = (uint8_t)(x >> 24);
    }
}

static void open_grid_barrier(struct toy_case *c)
{
    struct grid_barrier_args *a = (struct grid_barrier_args *)c->args;
    a->cells = buffer(c, N_OUT_BARRIER * 4, 0, "cells");
    a->out = buffer(c, N_OUT_BARRIER * 4, 0, "out");
    a->counter = buffer(c, 8, 0, "counter");
    a->words = buffer(c, FLOW_WORDS * 4, 0, "words");
    a->rounds = ROUNDS;
}

static bool right_grid_barrier(const struct toy_case *c)
{
    const struct grid_barrier_args *a = (const struct grid_barrier_args *)c->args;
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t t = 0; t < GRID_BARRIER_THREADS; t++) {
            uint32_t sum = 0;
            for (uint32_t r = 0; r < ROUNDS; r++)
                sum += r * 1000 + (b + 1) % BLOCKS * 100 + (t * 7 + 3) % GRID_BARRIER_THREADS;
            if (a->out[b * GRID_BARRIER_THREADS + t] != sum)
                return false;
        }
    return true;
}

static void open_weight_ring(struct toy_case *c)
{
    struct weight_ring_args *a = (struct weight_ring_args *)c->args;
    size_t weights = (size_t)BLOCKS * ROUNDS * WEIGHT_RING_STREAM * WEIGHT_RING_BYTES;
    a->segments = buffer(c, (size_t)2 * BLOCKS * WEIGHT_RING_BYTES, 0, "segments");
    a->out = buffer(c, BLOCKS * WEIGHT_RING_CONSUMERS * 4, 0, "out");
    a->counter = buffer(c, 4, 0, "counter");
    a->words = buffer(c, FLOW_WORDS * 4, 0, "words");
    char *w = buffer(c, weights, SIMT_MAP_READ_ONLY, "weights");
    fill_random(w, weights);
    a->weights = w;
    a->rounds = ROUNDS;
}

static uint32_t stage_value(const void *stage, uint32_t t)
{
    uint32_t w[4];
    memcpy(w, (const char *)stage + t * 16, 16);
    return w[0] + w[1] * 5 + w[2] * 7 + w[3] * 11;
}

static bool right_weight_ring(const struct toy_case *c)
{
    const struct weight_ring_args *a = (const struct weight_ring_args *)c->args;
    uint32_t sum[BLOCKS] = {0}, wrote[BLOCKS] = {0};
    for (uint32_t t = 0; t < WEIGHT_RING_CONSUMERS; t++) {
        memset(sum, 0, sizeof sum);
        for (uint32_t r = 0; r < ROUNDS; r++) {
            for (uint32_t b = 0; b < BLOCKS; b++) {
                const char *w =
                    a->weights + (size_t)(b * ROUNDS + r) * WEIGHT_RING_STREAM * WEIGHT_RING_BYTES;
                for (uint32_t i = 0; i < WEIGHT_RING_STREAM; i++)
                    sum[b] = sum[b] * 3 + stage_value(w + i * WEIGHT_RING_BYTES, t);
                uint32_t v = wrote[(b + 1) % BLOCKS];
                if (r > 0)
                    sum[b] = sum[b] * 3 + v + (v + 1) * 5 + (v + 2) * 7 + (v + 3) * 11;
            }
            memcpy(wrote, sum, sizeof wrote);
        }
        for (uint32_t b = 0; b < BLOCKS; b++)
            if (a->out[b * WEIGHT_RING_CONSUMERS + t] != sum[b])
                return false;
    }
    return true;
}

const struct toy_kind toy_kinds[] = {
    {"grid_barrier", BLOCKS, 0, open_grid_barrier, right_grid_barrier},
    {"weight_ring", BLOCKS, WEIGHT_RING_SHARED, open_weight_ring, right_weight_ring},
};
const uint32_t n_toy_kinds = sizeof toy_kinds / sizeof toy_kinds[0];

void toy_open(struct toy_case *c, const struct toy_kind *kind)
{
    *c = (struct toy_case){.kind = kind, .machine = simt_open()};
    if (!c->machine)
        abort(); /* a test tool: nothing sensible is left to do */
    kind->open(c);
}

void toy_close(struct toy_case *c)
{
    simt_close(c->machine);
    for (uint32_t i = 0; i < c->n_buffers; i++)
        free(c->buffers[i]);
}

int toy_run(struct toy_case *c, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    for (uint32_t i = 0; i < c->n_cleared; i++)
        memset(c->buffers[i], 0, c->sizes[i]);
    struct simt_launch launch = {.kernel = simt_find_kernel(c->kind->kernel, sm),
                                 .args = c->args,
                                 .n_blocks = c->kind->n_blocks,
                                 .shared_bytes = c->kind->shared_bytes,
                                 .seed = seed,
                                 .schedule = SIMT_N_SCHEDULES,
                                 .mute = mute};
    if (simt_run(c->machine, &launch, report) < 0)
        return -1;
    if (c->kind->right(c))
        return 0;
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s computed something else", c->kind->kernel);
    return -1;
}
