#include "bytes.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static bool grow(struct bytes *b, size_t n)
{
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->n < n && cap <= SIZE_MAX / 2)
        cap *= 2;
    char *p = cap - b->n >= n ? arena_grow(b->arena, b->p, b->cap, cap) : NULL;
    if (!p)
        return false;
    b->p = p;
    b->cap = cap;
    return true;
}

void bytes_put(struct bytes *b, const char *s, size_t n)
{
    if (b->failed || !n)
        return;
    if (n > b->cap - b->n && !grow(b, n)) {
        b->failed = true;
        return;
    }
    memcpy(b->p + b->n, s, n);
    b->n += n;
}

void bytes_puts(struct bytes *b, const char *s)
{
    bytes_put(b, s, strlen(s));
}

void bytes_put_char(struct bytes *b, char c)
{
    bytes_put(b, &c, 1);
}

void bytes_take(struct bytes *b, size_t n)
{
    assert(n <= b->n);
    if (n && n < b->n)
        memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

static void put_json_char(struct bytes *b, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *at = c ? strchr(from, c) : NULL;
    char escape[8];
    if (at)
        snprintf(escape, sizeof escape, "\\%c", to[at - from]);
    else
        snprintf(escape, sizeof escape, "\\u%04x", c);
    bytes_puts(b, escape);
}

void bytes_put_json_chars(struct bytes *b, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        bytes_put(b, s + from, i - from);
        put_json_char(b, c);
        from = i + 1;
    }
    if (from < n) /* s may be NULL for no text */
        bytes_put(b, s + from, n - from);
}
