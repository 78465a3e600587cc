/* random_blocks.h - random weights of any type, for made-up models and kernel tests.
 * Bits are random, scales are chosen: values have mean 0 and a given root mean square, so activations stay
 * finite and logits vary. The same seed gives the same bytes. Thread: a struct belongs to its caller. */
#pragma once
#include "abi/arith.h"
#include "base/half.h"
#include "block_scales.h"
#include "gguf/quant.h"
#include "gguf/quant_codes.h"

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
    uint8_t code;             /* MXFP4, NVFP4: scales are this or the next one, */
    uint8_t n_next;           /* which n_next of 256 are, so that the mean square is right */
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

/* The contents of a type's scales, and the size of its values when d is 1. */
struct random_layout {
    float mean; /* dmin = mean * d makes the values' mean 0 */
    bool sign;  /* d of either sign: the quants' own mean is not 0 */
    double rms; /* of a value when d is 1 */
};

static inline struct random_layout random_layout(uint32_t type)
{
    switch (type) {
    case QUANT_Q4_0:
        return (struct random_layout){0, true, 4.637};
    case QUANT_Q4_1:
        return (struct random_layout){-7.5f, false, 4.610};
    case QUANT_Q5_0:
        return (struct random_layout){0, true, 9.247};
    case QUANT_Q5_1:
        return (struct random_layout){-15.5f, false, 9.233};
    case QUANT_Q8_0:
        return (struct random_layout){0, true, 73.90};
    case QUANT_Q2_K:
        return (struct random_layout){1.5f, false, 11.21};
    case QUANT_Q3_K:
        return (struct random_layout){0, true, 43.30};
    case QUANT_Q4_K:
        return (struct random_layout){7.5f, false, 198.7};
    case QUANT_Q5_K:
        return (struct random_layout){15.5f, false, 398.9};
    case QUANT_Q6_K:
        return (struct random_layout){0, true, 1365.0};
    case QUANT_MXFP4: /* when its scale is */
    case QUANT_NVFP4:
    case QUANT_NVFP4_SCALED: /* and its factor 1 */
        return (struct random_layout){0, false, 2.926};
    case QUANT_IQ4_NL:
        return (struct random_layout){0, true, 67.47};
    case QUANT_IQ4_XS:
        return (struct random_layout){0, true, 1246.6};
    case QUANT_IQ3_XXS:
        return (struct random_layout){0, true, 142.4};
    case QUANT_IQ3_S:
        return (struct random_layout){0, true, 140.4};
    case QUANT_IQ2_XXS:
        return (struct random_layout){0, true, 53.43};
    case QUANT_IQ2_XS:
        return (struct random_layout){0, true, 55.96};
    case QUANT_IQ2_S:
        return (struct random_layout){0, true, 56.38};
    case QUANT_IQ1_S:
    case QUANT_IQ1_M:
        return (struct random_layout){0, true, 7.20};
    case QUANT_TQ1_0:
        return (struct random_layout){0, true, 0.8173};
    case QUANT_TQ2_0:
        return (struct random_layout){0, true, 1.2247};
    default:
        return (struct random_layout){0, false, 0};
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

/* A scale of MXFP4 or NVFP4. */
static inline double random_code_value(uint32_t type, uint32_t code)
{
    return 2 * (double)(type == QUANT_MXFP4 ? quant_half_e8m0(code) : quant_half_ue4m3(code));
}

/* Chooses two neighbouring scales between which `scale` lies. */
static inline void random_code_init(struct random_blocks *r, double scale)
{
    r->code = 1;
    while (random_code_value(r->type, r->code + 1u) <= scale)
        r->code++;
    double low = random_code_value(r->type, r->code), high = random_code_value(r->type, r->code + 1u);
    r->n_next = (uint8_t)(255 * (scale * scale - low * low) / (high * high - low * low));
}

/* `rms`: root mean square of the values to come. */
static inline void random_blocks_init(struct random_blocks *r, uint32_t type, float rms, uint64_t seed)
{
    const struct random_layout l = random_layout(type);
    *r = (struct random_blocks){.type = type, .state = seed, .rms = rms};
    (void)random_u64(&r->state);
    if (type == QUANT_MXFP4 || type == QUANT_NVFP4 || type == QUANT_NVFP4_SCALED)
        random_code_init(r, (double)rms / l.rms);
    for (int i = 0; i < 16 && l.rms > 0; i++) { /* 0.81 to 1.18, mean square 1 */
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

/* The scales of a block that are codes. */
static inline int random_n_codes(uint32_t type)
{
    return type == QUANT_MXFP4 ? 1 : type == QUANT_NVFP4 || type == QUANT_NVFP4_SCALED ? 4 : 0;
}

/* The next `n` values (whole blocks) into `out`, quant_size(type, n) bytes. */
static inline void random_blocks_fill(struct random_blocks *r, uint8_t *out, size_t n)
{
    const struct quant_traits *t = quant_traits(r->type);
    assert(t && n % t->block == 0);
    if (t->block == 1) {
        random_floats(r, out, n);
        return;
    }
    random_bits(&r->state, out, quant_size(r->type, n));
    for (size_t b = 0; b < n / t->block; b++, out += t->block_size) {
        uint64_t bits = random_u64(&r->state);
        if (r->type != QUANT_MXFP4)
            block_scales_put(r->type, out, r->d[bits & 15], r->dmin[bits & 15]);
        uint8_t *codes = out + (r->type == QUANT_NVFP4_SCALED ? sizeof(float) : 0);
        for (int i = 0; i < random_n_codes(r->type); i++)
            codes[i] = (uint8_t)(r->code + ((bits >> 8 * i & 255) < r->n_next));
        if (r->type == QUANT_Q4_K || r->type == QUANT_Q5_K)
            memcpy(out + 4, r->scales[bits >> 56], 12);
        if (r->type == QUANT_Q2_K)
            memcpy(out, r->scales[bits >> 56], 16);
    }
}
