/* Hashes: every bit, the length and the seed count, and neighbours spread. */
#include "base/hash.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 200 /* bytes: every way that hash_bytes() reads, several times */

static int compare(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static size_t count_equal(uint64_t *hashes, size_t n)
{
    size_t equal = 0;
    qsort(hashes, n, sizeof *hashes, compare);
    for (size_t i = 1; i < n; i++)
        equal += hashes[i] == hashes[i - 1];
    return equal;
}

Test(hash, every_bit_of_every_length_counts)
{
    uint8_t bytes[LONGEST];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37);
    for (size_t n = 0; n <= LONGEST; n++) {
        uint64_t whole = hash_bytes(5, bytes, n);
        cr_assert_neq(whole, hash_bytes(6, bytes, n));
        for (size_t bit = 0; bit < 8 * n; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            cr_assert_neq(hash_bytes(5, bytes, n), whole, "bit %zu of %zu bytes", bit, n);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

Test(hash, the_number_of_zero_bytes_counts)
{
    static const uint8_t zeros[LONGEST];
    uint64_t hashes[LONGEST + 1];
    for (size_t n = 0; n <= LONGEST; n++)
        hashes[n] = hash_bytes(0, zeros, n);
    cr_assert_eq(count_equal(hashes, LONGEST + 1), 0);
}

Test(hash, the_address_of_the_bytes_does_not_count)
{
    uint8_t bytes[LONGEST + 8];
    for (size_t n = 0; n <= LONGEST; n++) {
        memset(bytes, 0x5a, n);
        uint64_t even = hash_bytes(1, bytes, n);
        for (size_t shift = 1; shift < 8; shift++) {
            memset(bytes, 0xff, sizeof bytes);
            memset(bytes + shift, 0x5a, n);
            cr_assert_eq(hash_bytes(1, bytes + shift, n), even, "%zu bytes at %zu", n, shift);
        }
    }
}

/* Chance makes 0.03 collisions of 2^20 hashes in the upper 44 bits, and about the same in the lower ones. */
Test(hash, neighbouring_words_do_not_collide)
{
    const size_t n = 1 << 20;
    uint64_t *hashes = malloc(n * sizeof *hashes);
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < n; i++) {
            uint64_t h = hash_word(i >> 10, i & 1023);
            hashes[i] = half ? h >> 20 : h << 20;
        }
        cr_assert_leq(count_equal(hashes, n), 1);
    }
    free(hashes);
}

/* Chance puts at most about 8 of 65,536 balls into one of as many buckets. */
Test(hash, low_bits_spread_neighbouring_words_and_texts)
{
    static uint8_t words[1 << 16], texts[1 << 16];
    for (uint32_t i = 0; i < 1 << 16; i++) {
        cr_assert_lt(words[hash_word(7, i) & 0xffff]++, 12);
        cr_assert_lt(texts[hash_bytes(7, &i, sizeof i) & 0xffff]++, 12);
    }
}

Test(hash, a_seed_makes_another_hash_of_it)
{
    cr_assert_neq(hash_seed(), hash_seed());
    /* Words that make a factor 0 where the secret is known must not do so under another seed. */
    uint64_t words[2] = {3, hash_word(0, sizeof words)};
    uint64_t same = hash_bytes(1, words, sizeof words);
    words[0] = 4;
    cr_assert_neq(hash_bytes(1, words, sizeof words), same);
}
