/* buf.h - bytes that grow at the end, and JSON written into them by hand.
 * Running out of memory is remembered (`failed`) and everything after it is dropped, so a writer checks once,
 * at its end. The output of the JSON writers is always valid: UTF-8 that is not becomes U+FFFD, a number that
 * is not finite becomes null. Thread: one at a time. Memory: the arena's. */
#pragma once
#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    struct arena *arena;
    char *p; /* not NUL-terminated */
    size_t len, cap;
    bool failed;
};

/* Room for n more bytes at p + len, or NULL (and failed). The caller adds to len what it wrote. */
char *buf_room(struct buf *b, size_t n);
void buf_put(struct buf *b, const char *s, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Writes the characters between the quotes of a string. */
void json_put_chars(struct buf *b, const char *s, size_t n);
/* A string with its quotes. */
void json_put_string(struct buf *b, const char *s, size_t n);
void json_put_str(struct buf *b, const char *s); /* NULL is null */
void json_put_int(struct buf *b, int64_t v);
void json_put_uint(struct buf *b, uint64_t v);
/* `digits` significant digits. */
void json_put_number(struct buf *b, double v, int digits);
/* Milliseconds and rates: three digits after the point. */
void json_put_ms(struct buf *b, double v);
/* [1,2,3] */
void json_put_ids(struct buf *b, const int32_t *ids, size_t n);
