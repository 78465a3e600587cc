/* json_wide.c - jansson's loader for texts with integers beyond 64 bits, which it refuses. JavaScript writes
 * the smallest 64-bit integer of a schema as -9223372036854776000, which is one. Any thread. */
#include "json.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_DIGITS 19 /* of an integer beyond 64 bits */

static bool is_number(char c)
{
    return isdigit((unsigned char)c) || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Tells whether the number of len bytes, which a byte that is none of a number's follows, is an integer
 * beyond 64 bits. */
static bool is_wide(const char *s, size_t len)
{
    size_t sign = s[0] == '-';
    for (size_t i = sign; i < len; i++)
        if (!isdigit((unsigned char)s[i]))
            return false;
    if (len - sign < LEAST_DIGITS)
        return false;
    errno = 0;
    (void)strtoll(s, NULL, 10);
    return errno == ERANGE;
}

/* Copies the token at s to *out: a string, a number, or a byte. Returns its length. The text ends in a NUL.
 */
static size_t copy_token(const char *s, size_t n, char **out)
{
    size_t len = 1;
    bool wide = false;
    if (*s == '"') {
        for (; len < n && s[len] != '"'; len++)
            len += s[len] == '\\' && len + 1 < n;
        len += len < n;
    } else if (*s == '-' || isdigit((unsigned char)*s)) {
        while (len < n && is_number(s[len]))
            len++;
        wide = is_wide(s, len);
    }
    memcpy(*out, s, len);
    *out += len;
    if (wide) {
        memcpy(*out, "e0", 2); /* a real */
        *out += 2;
    }
    return len;
}

json_t *json_load_wide(const char *s, size_t n, size_t flags, json_error_t *where)
{
    json_t *root = json_loadb(s, n, flags, where);
    if (root || json_error_code(where) != json_error_numeric_overflow)
        return root;
    json_malloc_t take;
    json_free_t give;
    json_get_alloc_funcs(&take, &give);
    char *text = take(n + 1), *copy = take(n + n / LEAST_DIGITS * 2 + 2), *end = copy;
    if (text && copy) {
        memcpy(text, s, n);
        text[n] = 0; /* strtoll() ends there at the latest */
        for (size_t at = 0; at < n;)
            at += copy_token(text + at, n - at, &end);
        root = json_loadb(copy, (size_t)(end - copy), flags, where);
    }
    give(text);
    give(copy);
    return root;
}
