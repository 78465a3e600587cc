/* utf8.h - where well-formed UTF-8 ends.
 * Well-formed as Unicode table 3-7 has it: no surrogates, nothing above U+10FFFF, no over-long form. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s (1..4), or 0 when the bytes there are not one whole well-formed character. */
size_t utf8_char(const char *s, size_t n);

/* Bytes from s on that are whole well-formed characters. */
size_t utf8_valid(const char *s, size_t n);

/* Bytes from s on of which none begins a well-formed character. */
size_t utf8_invalid(const char *s, size_t n);

/* The code point of the well-formed character of `len` bytes at s. */
uint32_t utf8_code(const char *s, size_t len);
