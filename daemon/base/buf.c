#include "buf.h"
#include "base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

char *buf_room(struct buf *b, size_t n)
{
    assert(b->len <= b->cap);
    if (b->failed)
        return NULL;
    if (n <= b->cap - b->len)
        return b->p + b->len;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < n && cap <= SIZE_MAX / 2)
        cap *= 2;
    char *p = cap - b->len >= n ? arena_grow(b->arena, b->p, b->cap, cap) : NULL;
    if (!p) {
        b->failed = true;
        return NULL;
    }
    b->p = p;
    b->cap = cap;
    return p + b->len;
}

void buf_put(struct buf *b, const char *s, size_t n)
{
    char *room = n ? buf_room(b, n) : NULL;
    if (!room)
        return;
    memcpy(room, s, n);
    b->len += n;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args;
    char small[256];
    va_start(args, fmt);
    int n = vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    if (n < (int)sizeof small) {
        buf_put(b, small, n > 0 ? (size_t)n : 0);
        return;
    }
    char *room = buf_room(b, (size_t)n + 1);
    if (!room)
        return;
    va_start(args, fmt);
    vsnprintf(room, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
}

static void put_escape(struct buf *b, unsigned char c)
{
    static const char names[] = "btn\0fr"; /* 8..13 */
    if (c == '"' || c == '\\')
        buf_put(b, (char[]){'\\', (char)c}, 2);
    else if (c >= 8 && c <= 13 && names[c - 8])
        buf_put(b, (char[]){'\\', names[c - 8]}, 2);
    else
        buf_printf(b, "\\u%04x", c);
}

static bool is_plain(char c)
{
    return c >= 0x20 && c != '"' && c != '\\' && c != 0x7f;
}

void json_put_chars(struct buf *b, const char *s, size_t n)
{
    size_t from = 0, i = 0;
    while (i < n) {
        size_t len = utf8_char(s + i, n - i);
        if (len > 1 || (len == 1 && is_plain(s[i]))) {
            i += len;
            continue;
        }
        buf_put(b, s + from, i - from);
        if (len)
            put_escape(b, (unsigned char)s[i]);
        else
            buf_put(b, "\xef\xbf\xbd", 3);
        from = ++i;
    }
    buf_put(b, s + from, n - from);
}

void json_put_string(struct buf *b, const char *s, size_t n)
{
    buf_put(b, "\"", 1);
    json_put_chars(b, s, n);
    buf_put(b, "\"", 1);
}

void json_put_str(struct buf *b, const char *s)
{
    if (s)
        json_put_string(b, s, strlen(s));
    else
        buf_puts(b, "null");
}

void json_put_uint(struct buf *b, uint64_t v)
{
    char digits[20];
    size_t i = sizeof digits;
    do
        digits[--i] = (char)('0' + v % 10);
    while (v /= 10);
    buf_put(b, digits + i, sizeof digits - i);
}

void json_put_int(struct buf *b, int64_t v)
{
    if (v < 0)
        buf_put(b, "-", 1);
    json_put_uint(b, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

void json_put_number(struct buf *b, double v, int digits)
{
    assert(digits > 0 && digits <= 17); /* no double has more */
    if (isfinite(v))
        buf_printf(b, "%.*g", digits, v);
    else
        buf_puts(b, "null");
}

void json_put_ms(struct buf *b, double v)
{
    if (isfinite(v))
        buf_printf(b, "%.3f", v);
    else
        buf_puts(b, "null");
}

void json_put_ids(struct buf *b, const int32_t *ids, size_t n)
{
    buf_put(b, "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_put(b, ",", 1);
        json_put_int(b, ids[i]);
    }
    buf_put(b, "]", 1);
}
