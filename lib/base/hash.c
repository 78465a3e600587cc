#include "hash.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#define LANES 4 /* independent chains, so that multiplications overlap: 18 GB/s of a core from its cache */
#define BLOCK (16 * LANES)

static const uint64_t pi[LANES] = {0xA4093822299F31D0u, 0x082EFA98EC4E6C89u, 0x452821E638D01377u,
                                   0xBE5466CF34E90C6Cu}; /* the digits after hash_word()'s */

uint64_t hash_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed)
        return seed;
    struct timespec now; /* early at boot, before the kernel has randomness */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return hash_word((uint64_t)now.tv_nsec, (uintptr_t)&seed);
}

/* `secret` is a hash of the seed: with a random seed no chosen word can make a factor 0. */
static inline uint64_t take_words(uint64_t h, uint64_t secret, const uint64_t words[2])
{
    return hash_round(h ^ words[0], secret ^ words[1]);
}

static uint64_t hash_blocks(uint64_t secret, const uint8_t *p, size_t n_blocks)
{
    uint64_t lanes[LANES], words[2 * LANES], h = secret;
    for (int i = 0; i < LANES; i++)
        lanes[i] = secret + pi[i];
    for (; n_blocks; n_blocks--, p += BLOCK) {
        memcpy(words, p, sizeof words);
        for (int i = 0; i < LANES; i++)
            lanes[i] = take_words(lanes[i], secret ^ pi[i], words + 2 * i);
    }
    for (int i = 0; i < LANES; i++)
        h = hash_word(h, lanes[i]);
    return h;
}

/* At most 16 bytes as two words. They may overlap, because the length is hashed too. */
static inline void read_rest(uint64_t words[2], const uint8_t *p, size_t n)
{
    uint32_t halves[2];
    words[0] = words[1] = 0;
    if (n >= 8) {
        memcpy(words, p, 8);
        memcpy(words + 1, p + n - 8, 8);
    } else if (n >= 4) {
        memcpy(halves, p, 4);
        memcpy(halves + 1, p + n - 4, 4);
        words[0] = halves[0];
        words[1] = halves[1];
    } else if (n) {
        words[0] = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
}

uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t secret = hash_word(h, n), words[2];
    h = secret ^ pi[0];
    if (n >= BLOCK) {
        h = hash_blocks(secret, p, n / BLOCK);
        p += n / BLOCK * BLOCK;
        n %= BLOCK;
    }
    for (; n > 16; p += 16, n -= 16) {
        memcpy(words, p, sizeof words);
        h = take_words(h, secret, words);
    }
    read_rest(words, p, n);
    return hash_word(take_words(h, secret, words), secret);
}
