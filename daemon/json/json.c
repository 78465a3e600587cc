#include "json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct scan {
    const char *s;
    size_t n, at, line_start, line;
    size_t n_values;
    unsigned depth;
    size_t name_at,
        name_len;    /* the last string that is the body's own: a member that is a container is called so */
    size_t n_before; /* values before that container */
    const struct json_limits *limits;
    struct api_error *err;
};

static int refuse(struct scan *c, size_t at, const char *words)
{
    return api_invalid(c->err, NULL, "line %zu, column %zu: %s", c->line, at - c->line_start + 1, words);
}

/* Four hexadecimal digits, or -1. */
static int hex4(const char *s, size_t n)
{
    int v = 0;
    if (n < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* At the backslash of an escape; leaves `at` behind it. */
static int scan_escape(struct scan *c)
{
    size_t start = c->at;
    if (c->at + 1 >= c->n || c->s[c->at + 1] != 'u') {
        c->at += 2;
        return 0;
    }
    int unit = hex4(c->s + c->at + 2, c->n - c->at - 2);
    c->at += 2; /* malformed digits are the parser's to name */
    if (unit == 0)
        return refuse(c, start, "\\u0000 is not allowed in a string");
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return refuse(c, start, "a lone low surrogate in a string");
    if (unit < 0xd800 || unit > 0xdbff)
        return 0;
    c->at += 4;
    bool pair = c->n - c->at >= 6 && c->s[c->at] == '\\' && c->s[c->at + 1] == 'u';
    int low = pair ? hex4(c->s + c->at + 2, c->n - c->at - 2) : -1;
    if (low < 0xdc00 || low > 0xdfff)
        return refuse(c, start, "a lone high surrogate in a string");
    c->at += 6;
    return 0;
}

/* At the opening quote; leaves `at` behind the closing one. */
static int scan_string(struct scan *c)
{
    size_t start = ++c->at;
    while (c->at < c->n && c->s[c->at] != '"') {
        if (c->s[c->at] == '\0')
            return refuse(c, c->at, "a NUL byte");
        if (c->s[c->at] != '\\')
            c->at++;
        else if (scan_escape(c) < 0)
            return -1;
    }
    if (c->depth == 1) {
        c->name_at = start;
        c->name_len = c->at < c->n ? c->at - start : 0;
    }
    c->at++;
    return 0;
}

/* One more than its items may be those of a list in the list. */
static bool in_long_list(const struct scan *c)
{
    const struct json_list *list = c->limits->list;
    return list && c->depth > 1 && c->name_len == strlen(list->name) &&
           !memcmp(c->s + c->name_at, list->name, c->name_len) && c->n_values - c->n_before > list->max + 1;
}

static int count_value(struct scan *c)
{
    if (++c->n_values <= c->limits->max_values)
        return 0;
    if (in_long_list(c)) {
        c->limits->list->over = true;
        return -1;
    }
    return api_invalid(c->err, NULL, "line %zu, column %zu: the body has more than %zu values", c->line,
                       c->at - c->line_start + 1, c->limits->max_values);
}

static int open_container(struct scan *c)
{
    if (c->depth == 1)
        c->n_before = c->n_values;
    if (c->depth++ >= c->limits->max_depth)
        return api_invalid(c->err, NULL, "line %zu, column %zu: nested deeper than %u", c->line,
                           c->at - c->line_start + 1, c->limits->max_depth);
    return count_value(c);
}

static int scan_token(struct scan *c)
{
    switch (c->s[c->at]) {
    case '\n':
        c->line++;
        c->line_start = c->at + 1;
        break;
    case '"':
        return scan_string(c);
    case '[':
    case '{':
        if (open_container(c) < 0)
            return -1;
        break;
    case ']':
    case '}':
        c->depth -= c->depth > 0;
        break;
    case ',': /* one more member or item; the first of each container is counted with the container */
        if (count_value(c) < 0)
            return -1;
        break;
    case '\0':
        return refuse(c, c->at, "a NUL byte");
    default:
        break;
    }
    c->at++;
    return 0;
}

int json_scan(const char *s, size_t n, const struct json_limits *limits, struct api_error *err)
{
    struct scan c = {.s = s, .n = n, .line = 1, .limits = limits, .err = err};
    while (c.at < c.n)
        if (scan_token(&c) < 0)
            return -1;
    return 0;
}

/* The length of an escape at the backslash, whose digits become those of U+FFFD if it is none of a character.
 */
static size_t mend_escape(char *s, size_t n)
{
    if (n < 2 || s[1] != 'u')
        return 2;
    int unit = hex4(s + 2, n - 2);
    bool high = unit >= 0xd800 && unit <= 0xdbff, low = unit >= 0xdc00 && unit <= 0xdfff;
    int next = high && n >= 12 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8, n - 8) : -1;
    if (next >= 0xdc00 && next <= 0xdfff)
        return 12;
    if (!unit || high || low)
        memcpy(s + 2, "fffd", 4);
    return unit < 0 ? 2 : 6;
}

void json_mend_escapes(char *s, size_t n)
{
    char *end = n ? s + n : s; /* nothing may be added to the NULL of a body that is empty */
    while (s < end && (s = memchr(s, '\\', (size_t)(end - s))))
        s += mend_escape(s, (size_t)(end - s));
}

/* jansson says "invalid token" where it had no memory for one, or leaves out what it had no memory for. */
static _Thread_local unsigned n_failures;

/* jansson 2.14 looks for a string's closing quote in its buffer, where it is missing if it was the byte for
 * which the buffer could not grow: it then reads and writes beyond. So while json_read() runs the buffer
 * grows from here when there is no other memory. Its sizes are powers of two, and it doubles: for a text of n
 * bytes all of them together are below 4 n. */
#define BUFFER_LEAST 32
static _Thread_local struct reserve {
    char *first, *at, *end;
} reserve;

static bool reserve_open(size_t n)
{
    size_t size = 4 * n + 16 * BUFFER_LEAST; /* and a few other blocks of such sizes */
    char *p = malloc(size);
    reserve = (struct reserve){p, p, p ? p + size : NULL};
    return p;
}

static void reserve_close(void)
{
    free(reserve.first);
    reserve = (struct reserve){0};
}

static void *from_reserve(size_t size)
{
    if (size < BUFFER_LEAST || (size & (size - 1)) || size > (size_t)(reserve.end - reserve.at))
        return NULL;
    reserve.at += size;
    return reserve.at - size;
}

static void *allocate(size_t size)
{
    void *p = malloc(size);
    n_failures += !p;
    return p || !reserve.first ? p : from_reserve(size);
}

static void release(void *p)
{
    uintptr_t at = (uintptr_t)p;
    if (at < (uintptr_t)reserve.first || at >= (uintptr_t)reserve.end)
        free(p);
}

void json_count_failures(void)
{
    json_set_alloc_funcs(allocate, release);
}

json_t *json_read(const char *s, size_t n, const struct json_limits *limits, struct api_error *err)
{
    if (!n) {
        api_invalid(err, NULL, "the body is empty: a JSON object is expected");
        return NULL;
    }
    if (json_scan(s, n, limits, err) < 0)
        return NULL;
    json_error_t words;
    n_failures = !reserve_open(n);
    json_t *root = n_failures ? NULL : json_load_wide(s, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &words);
    if (n_failures)
        json_decref(root); /* before the reserve goes, in which parts of it may lie */
    reserve_close();
    if (n_failures) {
        api_out_of_memory(err);
        return NULL;
    }
    if (!root) {
        api_invalid(err, NULL, "line %d, column %d: %s", words.line, words.column, words.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        api_invalid(err, NULL, "the body must be a JSON object");
        return NULL;
    }
    return root;
}
