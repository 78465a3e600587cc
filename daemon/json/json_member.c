#include "json_member.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t skip_blanks(const char *s, size_t len, size_t at)
{
    while (at < len && memchr(" \t\r\n", s[at], 4))
        at++;
    return at;
}

/* `at` is behind the opening quote; returns the place behind the closing one, or len. */
static size_t skip_string(const char *s, size_t len, size_t at)
{
    for (; at < len && s[at] != '"'; at++)
        at += s[at] == '\\';
    return at < len ? at + 1 : len;
}

/* Returns the place behind a value: the comma or bracket that ends it, or len. */
static size_t skip_value(const char *s, size_t len, size_t at)
{
    size_t depth = 0;
    while (at < len) {
        char c = s[at];
        if (!depth && (c == ',' || c == '}' || c == ']'))
            break;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at = c == '"' ? skip_string(s, len, at + 1) : at + 1;
    }
    return at;
}

/* True if [s, s + n), a string with its quotes, is the name; it may be written with escapes. */
static bool is_name(const char *s, size_t n, const char *name)
{
    size_t len = strlen(name);
    if (!memchr(s, '\\', n))
        return n == len + 2 && !memcmp(s + 1, name, len);
    json_t *text = n <= 6 * len + 2 ? json_loadb(s, n, JSON_DECODE_ANY, NULL) : NULL;
    const char *word = json_string_value(text);
    bool is = word && !strcmp(word, name);
    json_decref(text);
    return is;
}

bool json_member_find(const char *s, size_t len, const char *name, const char **value, size_t *n)
{
    size_t at = skip_blanks(s, len, 0);
    if (at >= len || s[at] != '{')
        return false;
    do {
        size_t key = skip_blanks(s, len, at + 1);
        if (key >= len || s[key] != '"')
            return false;
        at = skip_string(s, len, key + 1);
        bool same = is_name(s + key, at - key, name);
        at = skip_blanks(s, len, at);
        if (at >= len || s[at] != ':')
            return false;
        size_t begin = skip_blanks(s, len, at + 1);
        at = skip_value(s, len, begin);
        if (same && at < len) {
            *value = s + begin;
            *n = at - begin;
            return true;
        }
    } while (at < len && s[at] == ',');
    return false;
}

bool json_member_text(const char *s, size_t len, const char *name, char *out, size_t room)
{
    const char *value;
    size_t n;
    if (!json_member_find(s, len, name, &value, &n) || *value != '"')
        return false;
    json_t *text = n < 8 * room ? json_loadb(value, n, JSON_DECODE_ANY, NULL) : NULL;
    const char *word = json_string_value(text);
    if (!word || snprintf(out, room, "%s", word) >= (int)room)
        snprintf(out, room, "?");
    json_decref(text);
    return true;
}

double json_member_number(const char *s, size_t len, const char *name, double missing)
{
    const char *value;
    size_t n;
    char digits[32], *end;
    if (!json_member_find(s, len, name, &value, &n) || n >= sizeof digits)
        return missing;
    memcpy(digits, value, n);
    digits[n] = '\0';
    double number = strtod(digits, &end);
    return end > digits ? number : missing;
}
