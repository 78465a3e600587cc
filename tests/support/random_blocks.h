/* random_blocks.h - random weights of any type, for made-up models and kernel tests.
 * Bits are random, scales are chosen: values have mean 0 and a given root mean square, so activations stay
 * finite and logits vary. The same seed gives the same bytes. Thread: a struct belongs to its caller. */
#pragma once
#include "abi/arith.h"
#include "base/half.h"
#include "gguf/quant.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

struct random_blocks {
    uint32_t type;
    uint64_t state;
    float rms;
    uint16_t d[16], dmin[16]; /* scales to choose from: blocks differ */
    uint8_t scales[256][16];  /* of the K types, packed */
    uint16_t halves[4096];    /* F16, BF16: values to choose from */
};

/* wyrand: as fast as the disk, and good enough for weights. */
static inline uint64_t random_u64(uint64_t *state)
{
    *state += 0xa0761d6478bd642fu;
    unsigned __int128 product = (unsigned __int128)*state * (*state ^ 0xe7037ed1a0b428dbu);
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

/* Uniform in [-1, 1). */
static inline float random_unit(uint64_t *state)
{
    return (float)(int32_t)(random_u64(state) >> 32) * 0x1p-31f;
}

static inline int random_between(uint64_t *state, int min, int max)
{
    return min + (int)((random_u64(state) >> 32) % (uint64_t)(max - min + 1));
}

/* Where a type keeps its scales, what goes into them, and how large its values are when d is 1. */
struct random_layout {
    int d, dmin; /* offsets in the block; -1: none */
    float mean;  /* dmin = mean * d makes the values' mean 0 */
    bool sign;   /* d of either sign: the quants' own mean is not 0 */
    double rms;  /* of a value when d is 1 */
};

static inline struct random_layout random_layout(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
        return (struct random_layout){0, -1, 0, true, 4.637};
    case QUANT_Q4_1:
        return (struct random_layout){0, 2, -7.5f, false, 4.610};
    case QUANT_Q5_0:
        return (struct random_layout){0, -1, 0, true, 9.247};
    case QUANT_Q5_1:
        return (struct random_layout){0, 2, -15.5f, false, 9.233};
    case QUANT_Q8_0:
        return (struct random_layout){0, -1, 0, true, 73.90};
    case QUANT_Q2_K:
        return (struct random_layout){80, 82, 1.5f, false, 11.21};
    case QUANT_Q3_K:
        return (struct random_layout){108, -1, 0, true, 43.30};
    case QUANT_Q4_K:
        return (struct random_layout){0, 2, 7.5f, false, 198.7};
    case QUANT_Q5_K:
        return (struct random_layout){0, 2, 15.5f, false, 398.9};
    case QUANT_Q6_K:
        return (struct random_layout){208, -1, 0, true, 1365.0};
    default:
        return (struct random_layout){-1, -1, 0, false, 0};
    }
}

/* Eight six-bit scales and minimums that nearly match, packed as Q4_K and Q5_K do. */
static inline void random_k_scales(uint64_t *state, uint8_t *packed)
{
    int scale[8], min[8];
    for (int i = 0; i < 8; i++) {
        scale[i] = random_between(state, 24, 60);
        min[i] = scale[i] + random_between(state, -3, 3);
    }
    for (int i = 0; i < 4; i++) {
        packed[i] = (uint8_t)(scale[i] | scale[i + 4] >> 4 << 6);
        packed[i + 4] = (uint8_t)(min[i] | min[i + 4] >> 4 << 6);
        packed[i + 8] = (uint8_t)((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
    }
}

/* `rms`: root mean square of the values to come. */
static inline void random_blocks_init(struct random_blocks *r, uint32_t type, float rms, uint64_t seed)
{
    const struct random_layout l = random_layout(type);
    *r = (struct random_blocks){.type = type, .state = seed, .rms = rms};
    (void)random_u64(&r->state);
    for (int i = 0; i < 16 && l.d >= 0; i++) { /* 0.81 to 1.18, mean square 1 */
        double d = (double)rms / l.rms * (0.806 + 0.025 * i);
        r->d[i] = half_from_float((float)(l.sign && i % 2 ? -d : d));
        r->dmin[i] = half_from_float(l.mean * half_to_float(r->d[i]));
    }
    for (int i = 0; i < 256; i++) {
        if (type == QUANT_Q2_K) { /* scale and minimum in one byte */
            for (int s = 0; s < 16; s++)
                r->scales[i][s] = (uint8_t)(random_between(&r->state, 4, 15) * 0x11);
        } else {
            random_k_scales(&r->state, r->scales[i]);
        }
    }
    for (int i = 0; i < 4096; i++) { /* uniform: sqrt(3) times the root mean square at the ends */
        float f = 1.7320508f * rms * ((float)i + 0.5f - 2048) / 2048;
        r->halves[i] = type == QUANT_BF16 ? arith_bf16(f) : half_from_float(f);
    }
}

static inline void random_bits(uint64_t *state, uint8_t *out, size_t size)
{
    uint64_t bits;
    for (; size >= 8; out += 8, size -= 8) {
        bits = random_u64(state);
        memcpy(out, &bits, 8);
    }
    bits = random_u64(state);
    memcpy(out, &bits, size);
}

static inline void random_floats(struct random_blocks *r, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_u64(&r->state);
        float f = 1.7320508f * r->rms * (float)(int32_t)(bits >> 32) * 0x1p-31f;
        if (r->type == QUANT_F32)
            memcpy(out + 4 * i, &f, 4);
        else
            memcpy(out + 2 * i, &r->halves[bits >> 52], 2);
    }
}

/* The next `n` values (whole blocks) into `out`, quant_size(type, n) bytes. */
static inline void random_blocks_fill(struct random_blocks *r, uint8_t *out, size_t n)
{
    const struct quant_traits *t = quant_traits(r->type);
    const struct random_layout l = random_layout(r->type);
    assert(t && n % t->block == 0);
    if (t->block == 1) {
        random_floats(r, out, n);
        return;
    }
    random_bits(&r->state, out, quant_size(r->type, n));
    for (size_t b = 0; b < n / t->block; b++, out += t->block_size) {
        uint64_t bits = random_u64(&r->state);
        memcpy(out + l.d, &r->d[bits & 15], 2);
        if (l.dmin >= 0)
            memcpy(out + l.dmin, &r->dmin[bits & 15], 2);
        if (r->type == QUANT_Q4_K || r->type == QUANT_Q5_K)
            memcpy(out + 4, r->scales[bits >> 56], 12);
        if (r->type == QUANT_Q2_K)
            memcpy(out, r->scales[bits >> 56], 16);
    }
}
