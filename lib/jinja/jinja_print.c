/* jinja_print.c - writes values as Python's str() and repr() do, and as JSON like json.dumps(). */
#include "jinja_run.h"
#include "base/utf8.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool put_word(struct jinja_run *r, struct jinja_out *out, const char *s)
{
    return jinja_put_bytes(r, out, s, strlen(s), false);
}

/* --- numbers --- */

/* The fewest digits that read back as the same number, with zeros behind them or not: "d.ddde+xx" in `text`.
 * 15 digits show every normal number that has fewer; of a subnormal one all are tried. Each try counts. */
static bool shortest(struct jinja_run *r, double f, char text[32])
{
    for (int digits = f < DBL_MIN ? 0 : DBL_DIG - 1; digits < DBL_DECIMAL_DIG; digits++) {
        snprintf(text, 32, "%.*e", digits, f);
        if (!jinja_work(r, JINJA_OPERATION))
            return false;
        if (strtod(text, NULL) == f)
            break;
    }
    return true;
}

/* Writes a float as repr() does: 1.0, 0.0001, 1e+16, 1.5e-07. */
static bool float_text(struct jinja_run *r, double f, char out[64])
{
    char text[32], digits[32];
    size_t n = 0;
    if (!shortest(r, fabs(f), text))
        return false;
    int exponent = atoi(strchr(text, 'e') + 1);
    for (const char *s = text; *s != 'e'; s++)
        if (*s != '.')
            digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = '\0';
    const char *sign = signbit(f) ? "-" : "";
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 64, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, 64, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    else if ((size_t)exponent + 1 >= n)
        snprintf(out, 64, "%s%s%.*s.0", sign, digits, exponent + 1 - (int)n, "0000000000000000");
    else
        snprintf(out, 64, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    return true;
}

static bool put_number(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v, bool json)
{
    char text[64];
    if (!jinja_work(r, 2))
        return false;
    if (v->kind == JINJA_INT)
        snprintf(text, sizeof text, "%" PRId64, v->i);
    else if (isnan(v->f))
        snprintf(text, sizeof text, json ? "NaN" : "nan");
    else if (isinf(v->f))
        snprintf(text, sizeof text, "%s%s", v->f < 0 ? "-" : "", json ? "Infinity" : "inf");
    else if (!float_text(r, v->f, text))
        return false;
    return put_word(r, out, text);
}

/* --- texts in quotes --- */

struct escaper { /* `escape` writes a character's escape to `to` and returns its length; 0: the character
                    stays */
    size_t (*escape)(uint32_t c, size_t len, char quote, char *to);
    char quote;
};

static size_t escape_repr(uint32_t c, size_t len, char quote, char *to)
{
    const char *letters = "n\nr\rt\t";
    if (c >= 32 && c < 127 && c != '\\' && c != (unsigned char)quote)
        return 0;
    for (; *letters && c < 128; letters += 2)
        if (c == (unsigned char)letters[1])
            return (size_t)snprintf(to, 16, "\\%c", letters[0]);
    if (c == '\\' || c == (unsigned char)quote)
        return (size_t)snprintf(to, 16, "\\%c", (char)c);
    if (c < 32 || c == 127 || (c >= 0x80 && c <= 0xa0) || c == 0xad || !len)
        return (size_t)snprintf(to, 16, "\\x%02x", c);
    return 0;
}

static size_t escape_json(uint32_t c, size_t len, char quote, char *to)
{
    const char *letters = "n\nr\rt\tb\bf\f";
    (void)quote;
    if (len && c >= 32 && c != '\\' && c != '"')
        return 0;
    for (; *letters && c < 128; letters += 2)
        if (c == (unsigned char)letters[1])
            return (size_t)snprintf(to, 16, "\\%c", letters[0]);
    if (c == '\\' || c == '"')
        return (size_t)snprintf(to, 16, "\\%c", (char)c);
    if (!len)
        return (size_t)snprintf(to, 16, "\\ufffd");
    return c < 32 ? (size_t)snprintf(to, 16, "\\u%04x", c) : 0;
}

static size_t escape_ascii(uint32_t c, size_t len, char quote, char *to)
{
    size_t n = escape_json(c, len, quote, to);
    if (n || c < 127)
        return n;
    if (c < 0x10000)
        return (size_t)snprintf(to, 16, "\\u%04x", c);
    c -= 0x10000;
    return (size_t)snprintf(to, 16, "\\u%04x\\u%04x", 0xd800 + (c >> 10), 0xdc00 + (c & 0x3ff));
}

static bool put_quoted(struct jinja_run *r, struct jinja_out *out, struct jinja_text t, struct escaper e)
{
    size_t from = 0, at = 0;
    char escape[16];
    if (!jinja_work_bytes(r, JINJA_WALK * t.len) || !jinja_put_bytes(r, out, &e.quote, 1, false))
        return false;
    while (at < t.len) {
        size_t len = utf8_char(t.s + at, t.len - at);
        uint32_t c = len ? utf8_code(t.s + at, len) : (unsigned char)t.s[at];
        size_t n = e.escape(c, len, e.quote, escape), next = at + (len ? len : 1);
        if (n && (!jinja_work(r, 2) || !jinja_put(r, out, jinja_text_cut(t, from, at)) ||
                  !jinja_put_bytes(r, out, escape, n, jinja_is_plain(t, at))))
            return false;
        from = n ? next : from;
        at = next;
    }
    return jinja_put(r, out, jinja_text_cut(t, from, t.len)) && jinja_put_bytes(r, out, &e.quote, 1, false);
}

static char repr_quote(struct jinja_text t)
{
    return t.len && memchr(t.s, '\'', t.len) && !memchr(t.s, '"', t.len) ? '"' : '\'';
}

/* --- str() and repr() --- */

static bool put_repr(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v);

static bool put_items(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v)
{
    bool tuple = v->kind == JINJA_TUPLE;
    if (!put_word(r, out, tuple ? "(" : "["))
        return false;
    for (size_t i = 0; i < v->list->n; i++)
        if ((i && !put_word(r, out, ", ")) || !put_repr(r, out, &v->list->items[i]))
            return false;
    return put_word(r, out, !tuple ? "]" : v->list->n == 1 ? ",)" : ")");
}

static bool put_pairs(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v)
{
    bool space = v->kind == JINJA_NAMESPACE;
    if (!put_word(r, out, space ? "<Namespace {" : "{"))
        return false;
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct jinja_pair *one = &v->dict->pairs[i];
        if ((i && !put_word(r, out, ", ")) || !put_repr(r, out, &one->key) || !put_word(r, out, ": ") ||
            !put_repr(r, out, &one->value))
            return false;
    }
    return put_word(r, out, space ? "}>" : "}");
}

static bool put_value(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v)
{
    switch (v->kind) {
    case JINJA_UNDEFINED:
        return put_word(r, out, "Undefined");
    case JINJA_NONE:
        return put_word(r, out, "None");
    case JINJA_BOOL:
        return put_word(r, out, v->b ? "True" : "False");
    case JINJA_INT:
    case JINJA_FLOAT:
        return put_number(r, out, v, false);
    case JINJA_TEXT:
        return put_quoted(r, out, v->text, (struct escaper){escape_repr, repr_quote(v->text)});
    case JINJA_LIST:
    case JINJA_TUPLE:
        return put_items(r, out, v);
    case JINJA_DICT:
    case JINJA_NAMESPACE:
        return put_pairs(r, out, v);
    default:
        return jinja_fail(r, -EBADMSG, "%s cannot be printed", jinja_kind_name(v));
    }
}

static bool put_repr(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v)
{
    if (!jinja_work(r, 1) || !jinja_deeper(r))
        return false;
    bool ok = put_value(r, out, v);
    r->depth--;
    return ok;
}

bool jinja_print(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v)
{
    if (v->kind == JINJA_TEXT)
        return jinja_put(r, out, v->text);
    return v->kind == JINJA_UNDEFINED || put_repr(r, out, v);
}

bool jinja_to_text(struct jinja_run *r, const struct jinja_value *v, struct jinja_text *out)
{
    struct jinja_out text = {.max = r->limits.memory};
    if (v->kind == JINJA_TEXT) {
        *out = v->text;
        return true;
    }
    if (!jinja_print(r, &text, v))
        return false;
    *out = jinja_written(&text).text;
    return true;
}

/* --- JSON --- */

struct json {
    const struct jinja_json_style *style;
    unsigned level;
};

static bool put_json(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v, struct json *j);

static bool put_line(struct jinja_run *r, struct jinja_out *out, const struct json *j)
{
    if (j->style->indent < 0)
        return true;
    if (!put_word(r, out, "\n"))
        return false;
    for (uint64_t i = 0; i < (uint64_t)j->style->indent * j->level; i++)
        if (!put_word(r, out, " "))
            return false;
    return true;
}

static bool put_text_json(struct jinja_run *r, struct jinja_out *out, struct jinja_text t,
                          const struct json *j)
{
    return put_quoted(r, out, t, (struct escaper){j->style->ascii ? escape_ascii : escape_json, '"'});
}

/* Writes a key as a string, whatever its kind, as JSON has only strings for keys. */
static bool put_key(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *key,
                    const struct json *j)
{
    if (key->kind == JINJA_TEXT)
        return put_text_json(r, out, key->text, j);
    struct json flat = *j;
    return put_word(r, out, "\"") && put_json(r, out, key, &flat) && put_word(r, out, "\"");
}

static int by_key(const void *a, const void *b)
{
    const struct jinja_text *x = &((const struct jinja_pair *)a)->key.text;
    const struct jinja_text *y = &((const struct jinja_pair *)b)->key.text;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = n ? memcmp(x->s, y->s, n) : 0;
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Each key is compared about as often as its number of keys has bits. */
static bool work_sorting(struct jinja_run *r, const struct jinja_dict *d)
{
    size_t n = 0, bits = 0;
    for (size_t i = 0; i < d->n; i++)
        n += JINJA_PIECE + d->pairs[i].key.text.len;
    while (d->n >> bits)
        bits++;
    return jinja_work_bytes(r, n * bits);
}

static const struct jinja_pair *sorted_pairs(struct jinja_run *r, const struct jinja_dict *d)
{
    struct jinja_pair *copy = jinja_alloc(r, (d->n + 1) * sizeof *copy);
    for (size_t i = 0; copy && i < d->n; i++) {
        copy[i] = d->pairs[i];
        if (copy[i].key.kind != JINJA_TEXT) {
            jinja_fail(r, -EBADMSG, "tojson sorts only keys that are strings");
            return NULL;
        }
    }
    if (!copy || !work_sorting(r, d))
        return NULL;
    qsort(copy, d->n, sizeof *copy, by_key);
    return copy;
}

static bool put_object(struct jinja_run *r, struct jinja_out *out, const struct jinja_dict *d, struct json *j)
{
    const struct jinja_pair *pairs = j->style->sorted && d->n ? sorted_pairs(r, d) : d->pairs;
    if (!d->n)
        return put_word(r, out, "{}");
    if (!pairs || !put_word(r, out, "{"))
        return false;
    j->level++;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !jinja_put(r, out, j->style->item)) || !put_line(r, out, j) ||
            !put_key(r, out, &pairs[i].key, j) || !jinja_put(r, out, j->style->key) ||
            !put_json(r, out, &pairs[i].value, j))
            return false;
    j->level--;
    return put_line(r, out, j) && put_word(r, out, "}");
}

static bool put_array(struct jinja_run *r, struct jinja_out *out, const struct jinja_list *l, struct json *j)
{
    if (!l->n)
        return put_word(r, out, "[]");
    if (!put_word(r, out, "["))
        return false;
    j->level++;
    for (size_t i = 0; i < l->n; i++)
        if ((i && !jinja_put(r, out, j->style->item)) || !put_line(r, out, j) ||
            !put_json(r, out, &l->items[i], j))
            return false;
    j->level--;
    return put_line(r, out, j) && put_word(r, out, "]");
}

static bool put_value_json(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v,
                           struct json *j)
{
    switch (v->kind) {
    case JINJA_NONE:
        return put_word(r, out, "null");
    case JINJA_BOOL:
        return put_word(r, out, v->b ? "true" : "false");
    case JINJA_INT:
    case JINJA_FLOAT:
        return put_number(r, out, v, true);
    case JINJA_TEXT:
        return put_text_json(r, out, v->text, j);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return put_array(r, out, v->list, j);
    case JINJA_DICT:
        return put_object(r, out, v->dict, j);
    default:
        return jinja_fail(r, -EBADMSG, "%s cannot be written as JSON", jinja_kind_name(v));
    }
}

static bool put_json(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v, struct json *j)
{
    if (!jinja_work(r, 1) || !jinja_deeper(r))
        return false;
    bool ok = put_value_json(r, out, v, j);
    r->depth--;
    return ok;
}

bool jinja_json(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v,
                const struct jinja_json_style *style)
{
    struct json j = {.style = style};
    return put_json(r, out, v, &j);
}
