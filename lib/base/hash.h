/* hash.h - the one hash of Hearth: 64 bits, all of them usable, low ones as the index of a table.
 *
 * A round multiplies two 64-bit words and XORs the halves of the 128-bit product. The values depend on the
 * host's byte order. Files and fingerprints hold them: a change raises PREFIX_FILE_VERSION. It
 * detects accidents and tells things apart; it is no signature. Where a client or a file chooses what is
 * hashed into a table, begin with hash_seed(): then collisions cannot be prepared. Thread: any. Memory: none.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* Returns a number that differs in each call and cannot be foreseen, at least where the kernel has
 * randomness. */
uint64_t hash_seed(void);

/* One round, of which the upper bits are the better ones. */
static inline uint64_t hash_round(uint64_t a, uint64_t b)
{
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Continues hash h, or a seed or word of the caller's, with a word. The second product mixes what the first
 * left in a few bits, as it does with small numbers. */
static inline uint64_t hash_word(uint64_t h, uint64_t word)
{
    const uint64_t a = 0x243F6A8885A308D3u, b = 0x13198A2E03707344u; /* the first digits of pi's fraction */
    unsigned __int128 p = (unsigned __int128)(h ^ a) * (word ^ b);
    return hash_round((uint64_t)p ^ a, (uint64_t)(p >> 64) ^ b);
}

/* Continues hash h with n bytes and their number. */
uint64_t hash_bytes(uint64_t h, const void *data, size_t n);
