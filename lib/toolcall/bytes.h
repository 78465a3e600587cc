/* bytes.h - bytes that grow at the end and are taken from the front.
 * Running out of memory is remembered (`failed`); everything after it is dropped. Thread: one at a time.
 * Memory: the arena's. */
#pragma once
#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>

struct bytes {
    struct arena *arena;
    char *p;
    size_t n, cap;
    bool failed;
};

void bytes_put(struct bytes *b, const char *s, size_t n);
void bytes_puts(struct bytes *b, const char *s);
void bytes_put_char(struct bytes *b, char c);
/* Drops the first n bytes. */
void bytes_take(struct bytes *b, size_t n);
/* Adds what stands for the n bytes between the quotes of a JSON string. */
void bytes_put_json_chars(struct bytes *b, const char *s, size_t n);
