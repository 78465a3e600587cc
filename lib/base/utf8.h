/* utf8.h - validation and decoding of UTF-8.
 * Well-formed as in Unicode table 3-7: no surrogates, nothing above U+10FFFF, no overlong form.
 * Thread: any; all functions are pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The length in bytes (1..4) of the character at s, or 0 if the bytes there are not one whole well-formed
 * character. */
size_t utf8_char(const char *s, size_t n);

/* The length in bytes of the longest well-formed prefix of s. */
size_t utf8_valid(const char *s, size_t n);

/* The number of bytes from s before the first one that begins a well-formed character. */
size_t utf8_invalid(const char *s, size_t n);

/* The code point of the well-formed character of `len` bytes at s. */
uint32_t utf8_code(const char *s, size_t len);
