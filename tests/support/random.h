/* random.h - numbers that look random and are the same in every run. A program may name the first state:
 * #define RANDOM_SEED before the #include, or random_state later. Thread: one. */
#pragma once
#include <stdint.h>

#ifndef RANDOM_SEED
#define RANDOM_SEED 1
#endif

static uint64_t random_state = RANDOM_SEED;

static inline uint32_t random_u32(void) /* 31 bits */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static inline uint32_t random_below(uint32_t n)
{
    return random_u32() % n;
}

/* In [0, 1), of 24 bits. */
static inline float random_part(void)
{
    return (float)(random_u32() & 0xffffff) * 0x1p-24f;
}
