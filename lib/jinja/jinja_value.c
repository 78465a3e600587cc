/* jinja_value.c - values and texts of chat templates. */
#include "jinja_value.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

const unsigned char jinja_all_plain[1];

struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}

struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .b = b};
}

struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.kind = JINJA_INT, .i = i};
}

struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .f = f};
}

struct jinja_value jinja_string(const char *s, size_t len, bool plain)
{
    return (struct jinja_value){.kind = JINJA_TEXT, .text = {s, len, plain ? jinja_all_plain : NULL}};
}

struct jinja_value jinja_word(const char *s)
{
    return jinja_string(s, strlen(s), false);
}

struct jinja_list *jinja_list_open(struct arena *a)
{
    return arena_zalloc(a, sizeof(struct jinja_list));
}

struct jinja_dict *jinja_dict_open(struct arena *a)
{
    return arena_zalloc(a, sizeof(struct jinja_dict));
}

struct jinja_value jinja_list_value(struct jinja_list *list)
{
    return (struct jinja_value){.kind = JINJA_LIST, .list = list};
}

struct jinja_value jinja_dict_value(struct jinja_dict *dict)
{
    return (struct jinja_value){.kind = JINJA_DICT, .dict = dict};
}

/* Makes room for one more item of `size` bytes; NULL when memory has run out. */
static void *grow(struct arena *a, void *items, size_t n, size_t *room, size_t size)
{
    assert(n <= *room);
    if (n < *room)
        return items;
    size_t wanted = *room * 2 + 4;
    void *grown = wanted < SIZE_MAX / size ? arena_grow(a, items, *room * size, wanted * size) : NULL;
    if (grown)
        *room = wanted;
    return grown;
}

int jinja_list_add(struct arena *a, struct jinja_list *list, struct jinja_value item)
{
    struct jinja_value *items = grow(a, list->items, list->n, &list->room, sizeof *items);
    if (!items)
        return -ENOMEM;
    list->items = items;
    list->items[list->n++] = item;
    return 0;
}

int jinja_dict_add(struct arena *a, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value)
{
    struct jinja_pair *pairs = grow(a, dict->pairs, dict->n, &dict->room, sizeof *pairs);
    if (!pairs)
        return -ENOMEM;
    dict->pairs = pairs;
    dict->pairs[dict->n++] = (struct jinja_pair){key, value};
    return 0;
}

struct jinja_value *jinja_dict_find(const struct jinja_dict *dict, const char *key, size_t len)
{
    for (size_t i = 0; i < dict->n; i++) {
        const struct jinja_value *k = &dict->pairs[i].key;
        if (k->kind == JINJA_TEXT && k->text.len == len && !memcmp(k->text.s, key, len))
            return &dict->pairs[i].value;
    }
    return NULL;
}

bool jinja_truth(const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return false;
    case JINJA_BOOL:
        return v->b;
    case JINJA_INT:
        return v->i != 0;
    case JINJA_FLOAT:
        return v->f != 0;
    case JINJA_TEXT:
        return v->text.len > 0;
    case JINJA_LIST:
    case JINJA_TUPLE:
        return v->list->n > 0 || v->list->generated;
    case JINJA_DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

const char *jinja_kind_name(const struct jinja_value *v)
{
    static const char *const names[] = {
        [JINJA_UNDEFINED] = "an undefined value",
        [JINJA_NONE] = "none",
        [JINJA_BOOL] = "a boolean",
        [JINJA_INT] = "an integer",
        [JINJA_FLOAT] = "a float",
        [JINJA_TEXT] = "a string",
        [JINJA_LIST] = "a list",
        [JINJA_TUPLE] = "a tuple",
        [JINJA_DICT] = "a dict",
        [JINJA_NAMESPACE] = "a namespace",
        [JINJA_LOOP] = "a loop",
        [JINJA_MACRO] = "a macro",
        [JINJA_FUNCTION] = "a function",
        [JINJA_METHOD] = "a method",
    };
    assert((size_t)v->kind < sizeof names / sizeof *names);
    return names[v->kind];
}

/* --- texts --- */

struct jinja_text jinja_text_of(const char *s, size_t len)
{
    return (struct jinja_text){.s = s, .len = len};
}

struct jinja_text jinja_text_cut(struct jinja_text t, size_t from, size_t to)
{
    assert(from <= to && to <= t.len);
    if (t.plain && t.plain != jinja_all_plain)
        t.plain += from;
    if (from)
        t.s += from;
    t.len = to - from;
    return t;
}

bool jinja_text_is(struct jinja_text t, const char *word)
{
    return strlen(word) == t.len && !memcmp(t.s, word, t.len);
}

bool jinja_text_equal(struct jinja_text a, struct jinja_text b)
{
    return a.len == b.len && (!a.len || !memcmp(a.s, b.s, a.len));
}

bool jinja_among(char c, const char *letters)
{
    return c && strchr(letters, c);
}

size_t jinja_char(const char *s, size_t n)
{
    size_t len = utf8_char(s, n);
    return len || !n ? len : 1;
}

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

size_t jinja_space(const char *s, size_t n)
{
    size_t len = utf8_char(s, n);
    return len && is_space(utf8_code(s, len)) ? len : 0;
}

size_t jinja_space_before(const char *s, size_t n)
{
    for (size_t len = 1; len <= 3 && len <= n; len++)
        if (utf8_char(s + n - len, len) == len)
            return is_space(utf8_code(s + n - len, len)) ? len : 0;
    return 0;
}

struct jinja_text jinja_strip(struct jinja_text t, bool left, bool right)
{
    size_t from = 0, to = t.len, n;
    while (left && (n = jinja_space(t.s + from, to - from)))
        from += n;
    while (right && to > from && (n = jinja_space_before(t.s + from, to - from)))
        to -= n;
    return jinja_text_cut(t, from, to);
}

size_t jinja_text_length(struct jinja_text t)
{
    size_t n = 0;
    for (size_t at = 0; at < t.len; at += jinja_char(t.s + at, t.len - at))
        n++;
    return n;
}

size_t jinja_text_at(struct jinja_text t, size_t i)
{
    size_t at = 0;
    while (at < t.len && i--)
        at += jinja_char(t.s + at, t.len - at);
    return at;
}
