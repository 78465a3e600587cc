#define PCRE2_CODE_UNIT_WIDTH 8
#include "code_ranges.h"
#include "base/utf8.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ranges_add(struct dfa_workshop *shop, struct code_ranges *set, uint32_t lo, uint32_t hi)
{
    if (set->n == set->room) {
        size_t more = set->room ? 2 * set->room : 8;
        struct code_range *r = dfa_work(shop, 1 + more / 8)
                                   ? arena_grow(shop->arena, set->r, set->room * sizeof *r, more * sizeof *r)
                                   : NULL;
        if (!r)
            return false;
        set->r = r;
        set->room = more;
    }
    set->r[set->n++] = (struct code_range){lo, hi};
    return true;
}

bool ranges_add_all(struct dfa_workshop *shop, struct code_ranges *set, const struct code_ranges *more)
{
    for (size_t i = 0; i < more->n; i++)
        if (!ranges_add(shop, set, more->r[i].lo, more->r[i].hi))
            return false;
    return true;
}

static int by_lo(const void *x, const void *y)
{
    const struct code_range *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void ranges_sort(struct code_ranges *set)
{
    size_t kept = 0;
    if (set->n)
        qsort(set->r, set->n, sizeof *set->r, by_lo);
    for (size_t i = 0; i < set->n; i++) {
        struct code_range *last = kept ? &set->r[kept - 1] : NULL;
        if (last && set->r[i].lo <= last->hi + 1)
            last->hi = set->r[i].hi > last->hi ? set->r[i].hi : last->hi;
        else
            set->r[kept++] = set->r[i];
    }
    set->n = kept;
}

bool ranges_invert(struct dfa_workshop *shop, struct code_ranges *set)
{
    struct code_ranges out = {0};
    uint32_t lo = 0;
    ranges_sort(set);
    for (size_t i = 0; i < set->n; i++) {
        if (set->r[i].lo > lo && !ranges_add(shop, &out, lo, set->r[i].lo - 1))
            return false;
        lo = set->r[i].hi + 1;
    }
    if (lo <= DFA_MAX_CODE && !ranges_add(shop, &out, lo, DFA_MAX_CODE))
        return false;
    *set = out;
    return true;
}

/* ---- Unicode properties, from PCRE2's tables ---- */

/* ECMA-262 knows long names of general categories, PCRE2 the short ones. */
static const char *const short_names[][2] = {
    {"Letter", "L"},
    {"Lowercase_Letter", "Ll"},
    {"Uppercase_Letter", "Lu"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"cntrl", "Cc"},
    {"Alphabetic", "Alphabetic"},
};

static void property_name(const char *name, size_t n, char *out, size_t room)
{
    static const char *const prefixes[] = {"gc=", "General_Category=", "sc=", "Script="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t len = strlen(prefixes[i]);
        if (n > len && !strncmp(name, prefixes[i], len)) {
            name += len;
            n -= len;
        }
    }
    snprintf(out, room, "%.*s", (int)n, name);
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (!strcmp(out, short_names[i][0]))
            snprintf(out, room, "%s", short_names[i][1]);
}

static size_t put_utf8(char *out, uint32_t c)
{
    size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = len; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[len] | c);
    return len;
}

/* Every code point that is a character, 256 at a time: PCRE2 says which of them have the property. */
static int add_matches(struct dfa_workshop *shop, struct code_ranges *set, pcre2_code *code)
{
    pcre2_match_data *data = pcre2_match_data_create(2, NULL);
    char text[256 * 4];
    int rc = data ? 0 : -ENOMEM;
    for (uint32_t base = 0; rc == 0 && base <= DFA_MAX_CODE; base += 256) {
        size_t n = 0, at = 0;
        if (base >= 0xd800 && base < 0xe000)
            continue;
        for (uint32_t i = 0; i < 256; i++)
            n += put_utf8(text + n, base + i);
        rc = dfa_work(shop, 100) ? 0 : -ENOMEM;
        while (rc == 0 && at < n && pcre2_match(code, (PCRE2_SPTR)text, n, at, 0, data, NULL) > 0) {
            const PCRE2_SIZE *span = pcre2_get_ovector_pointer(data);
            const char *last = text + span[1] - 1;
            while (((uint8_t)*last & 0xc0) == 0x80)
                last--;
            const char *first = text + span[0];
            uint32_t lo = utf8_code(first, utf8_char(first, n - span[0]));
            uint32_t hi = utf8_code(last, utf8_char(last, (size_t)(text + n - last)));
            rc = ranges_add(shop, set, lo, hi) ? 0 : -ENOMEM;
            at = span[1];
        }
    }
    pcre2_match_data_free(data);
    return rc;
}

int ranges_add_property(struct dfa_workshop *shop, struct code_ranges *set, const char *name, size_t n)
{
    char shorter[64], pattern[80];
    for (size_t i = 0; i < n; i++)
        if (!((name[i] | 32) >= 'a' && (name[i] | 32) <= 'z') && name[i] != '_' && name[i] != '=')
            return -EINVAL;
    if (n == 0 || n >= sizeof shorter)
        return -EINVAL;
    property_name(name, n, shorter, sizeof shorter);
    snprintf(pattern, sizeof pattern, "\\p{%s}+", shorter);
    int number;
    PCRE2_SIZE at;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &number, &at, NULL);
    if (!code)
        return -EINVAL;
    int rc = add_matches(shop, set, code);
    pcre2_code_free(code);
    ranges_sort(set);
    return rc;
}
