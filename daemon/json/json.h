/* json.h - the body of a request: scanned before anything is allocated for it, then parsed.
 * A parser's tree costs up to eighty times the text, so values are counted first, knowing strings and
 * escapes; nesting is bounded; NUL and lone surrogates in strings are refused in our own words. Thread: any.
 */
#pragma once
#include "base/api_error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define JSON_MAX_DEPTH_IN_BODY 64

/* A member of the body that may be most of it. */
struct json_list {
    const char *name;
    size_t max; /* items it may have */
    bool over;  /* out: too many values, and that for having more than these */
};

struct json_limits {
    size_t max_values; /* members, items and the containers themselves */
    unsigned max_depth;
    struct json_list *list; /* or NULL; when it is `over`, *err is left for the caller to set */
};

/* 0, or -1 with *err set: the words give line and column (both from 1, columns in bytes). It finds what the
 * limits are for; whether the text is JSON at all is the parser's question. */
int json_scan(const char *s, size_t n, const struct json_limits *limits, struct api_error *err);

/* Where a string has an escaped NUL or half of a surrogate pair, writes U+FFFD in its place. Strings that
 * hold the output of programs, or were cut by programs that count in UTF-16, have them. The text keeps its
 * length.
 */
void json_mend_escapes(char *s, size_t n);

/* As json_loadb(), but an integer beyond 64 bits becomes the nearest real; a place in *where behind one on
 * the same line is two columns on for each. */
json_t *json_load_wide(const char *s, size_t n, size_t flags, json_error_t *where);

/* Before the first use of jansson: json_read() then tells a lack of memory from bad JSON. */
void json_count_failures(void);
/* Scans, then parses a body that must be one object without duplicate keys. NULL with *err set (503 without
 * memory); else a reference of the caller's. */
json_t *json_read(const char *s, size_t n, const struct json_limits *limits, struct api_error *err);
