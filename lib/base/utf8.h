/* utf8.h - checks and decodes UTF-8.
 * "Well-formed" is Unicode's table 3-7: no surrogates, no code point above U+10FFFF, no over-long form.
 * Thread: any; the functions are pure. Memory: they allocate nothing and read n bytes at s at most. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the bytes (1..4) of the character at s, or 0 when no whole well-formed character begins there. */
size_t utf8_char(const char *s, size_t n);

/* Returns how many bytes from s on are whole well-formed characters. */
size_t utf8_valid(const char *s, size_t n);

/* Returns how many bytes from s on begin no well-formed character. */
size_t utf8_invalid(const char *s, size_t n);

/* Returns the code point of the well-formed character of `len` bytes (1..4) at s. */
uint32_t utf8_code(const char *s, size_t len);

/* Characters that a terminal or a reader of lines obeys instead of showing them: control characters (C0, DEL,
 * C1), line and paragraph separators, marks and overrides of the direction of writing; and those that no
 * reader can see: other format characters, blanks without width, fillers, tags (Unicode 15, categories Cf and
 * Default_Ignorable_Code_Point). Joiners and the variation selectors of the BMP are not among them: they
 * change how their neighbours look, in emoji and in several scripts. */
bool utf8_is_obeyed(uint32_t code);
