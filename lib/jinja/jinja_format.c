/* jinja_format.c - formats values: "%s and %05.2f" % values, and "{} and {name}".format(values). */
#include "jinja_run.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct spec { /* one conversion */
    char flags[8];
    int width, precision; /* -1: absent */
    char letter;
};

static bool unknown(struct jinja_run *r, struct jinja_text format)
{
    return jinja_fail(r, -EBADMSG, "a format that is not supported: \"%.*s\"",
                      (int)(format.len < 60 ? format.len : 60), format.s);
}

/* Reads up to three digits at *at. */
static int read_count(struct jinja_text f, size_t *at)
{
    int n = 0;
    for (int i = 0; i < 3 && *at < f.len && isdigit((unsigned char)f.s[*at]); i++)
        n = n * 10 + (f.s[(*at)++] - '0');
    return n;
}

static bool read_spec(struct jinja_text f, size_t *at, struct spec *out)
{
    size_t n = 0;
    *out = (struct spec){.width = -1, .precision = -1};
    while (*at < f.len && n < sizeof out->flags - 1 && jinja_among(f.s[*at], "-+ 0#"))
        out->flags[n++] = f.s[(*at)++];
    if (*at < f.len && isdigit((unsigned char)f.s[*at]))
        out->width = read_count(f, at);
    if (*at < f.len && f.s[*at] == '.') {
        (*at)++;
        out->precision = read_count(f, at);
    }
    if (*at == f.len || !jinja_among(f.s[*at], "sdiuxXofFeEgGr"))
        return false;
    out->letter = f.s[(*at)++];
    return true;
}

static bool put_padded(struct jinja_run *r, struct jinja_out *out, struct jinja_text text,
                       const struct spec *s)
{
    size_t length = jinja_text_length(text);
    if (!jinja_work_bytes(r, 2 * JINJA_WALK * text.len))
        return false;
    bool left = strchr(s->flags, '-') != NULL;
    if (s->precision >= 0 && (size_t)s->precision < length) {
        text = jinja_text_cut(text, 0, jinja_text_at(text, (size_t)s->precision));
        length = (size_t)s->precision;
    }
    if (left && !jinja_put(r, out, text))
        return false;
    for (int i = (int)(length < 1000 ? length : 1000); i < s->width; i++)
        if (!jinja_put_bytes(r, out, " ", 1, false))
            return false;
    return left || jinja_put(r, out, text);
}

/* Converts v for %d or %x. A negative integer is refused for %x, as C would print all 64 bits of it. */
static bool integer_of(struct jinja_run *r, const struct jinja_value *v, const struct spec *s, int64_t *out)
{
    bool real = v->kind == JINJA_FLOAT;
    if (jinja_among(s->letter, "xXo") && (real || jinja_integer(v) < 0))
        return jinja_fail(r, -EBADMSG, "%%%c needs an integer of 0 or more", s->letter);
    *out = real ? 0 : jinja_integer(v);
    return !real || jinja_truncate(r, v->f, out);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static bool put_number(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v,
                       const struct spec *s)
{
    char format[32], text[1400];
    bool real = jinja_among(s->letter, "fFeEgG");
    if (!jinja_is_number(v))
        return jinja_fail(r, -EBADMSG, "%%%c needs a number, not %s", s->letter, jinja_kind_name(v));
    int width = s->width < 0 ? 0 : s->width, precision = s->precision;
    if (real)
        snprintf(format, sizeof format, "%%%s*.*%c", s->flags, s->letter);
    else
        snprintf(format, sizeof format, "%%%s*.*j%c", s->flags, s->letter == 'u' ? 'd' : s->letter);
    int64_t i = 0;
    if (!real && !integer_of(r, v, s, &i))
        return false;
    int n = real ? snprintf(text, sizeof text, format, width, precision < 0 ? 6 : precision, jinja_number(v))
                 : snprintf(text, sizeof text, format, width, precision, (intmax_t)i);
    if (n < 0 || (size_t)n >= sizeof text)
        return jinja_fail(r, -EBADMSG, "a number of more than %zu characters", sizeof text);
    return jinja_work_digits(r, (size_t)n) && jinja_put_bytes(r, out, text, (size_t)n, false);
}
#pragma GCC diagnostic pop

static bool put_value(struct jinja_run *r, struct jinja_out *out, const struct jinja_value *v,
                      const struct spec *s)
{
    struct jinja_out text = {.max = r->limits.memory};
    struct jinja_list one = {.n = 1, .items = (struct jinja_value *)v};
    struct jinja_value list = jinja_list_value(&one);
    if (s->letter != 's' && s->letter != 'r')
        return put_number(r, out, v, s);
    if (!jinja_print(r, &text, s->letter == 's' ? v : &list))
        return false;
    struct jinja_text shown = jinja_written(&text).text;
    if (s->letter == 'r') /* without the brackets of the list */
        shown = jinja_text_cut(shown, 1, shown.len - 1);
    return put_padded(r, out, shown, s);
}

/* Reads the name of %(name)s and moves *at behind the bracket. */
static bool read_name(struct jinja_text f, size_t *at, struct jinja_text *name)
{
    const char *end = *at < f.len && f.s[*at] == '(' ? memchr(f.s + *at, ')', f.len - *at) : NULL;
    if (!end)
        return false;
    *name = jinja_text_cut(f, *at + 1, (size_t)(end - f.s));
    *at = (size_t)(end - f.s) + 1;
    return true;
}

/* Writes the conversion behind a percent sign, at *at: "%%", or one of the next or a named value. */
static bool put_conversion(struct jinja_run *r, struct jinja_out *out, struct jinja_text f, size_t *at,
                           const struct jinja_list *args, size_t *next, const struct jinja_dict *named)
{
    const struct jinja_value *v = NULL;
    struct jinja_text name;
    struct spec spec;
    if (*at < f.len && f.s[*at] == '%') {
        (*at)++;
        return jinja_put(r, out, jinja_text_cut(f, *at - 1, *at));
    }
    if (named && read_name(f, at, &name))
        v = jinja_dict_find(named, name.s, name.len);
    else if (args && *next < args->n)
        v = &args->items[(*next)++];
    return v && read_spec(f, at, &spec) ? put_value(r, out, v, &spec) : unknown(r, f);
}

bool jinja_percent(struct jinja_run *r, struct jinja_text format, const struct jinja_list *args,
                   const struct jinja_dict *named, struct jinja_value *out)
{
    struct jinja_out text = {.max = r->limits.memory};
    size_t from = 0, next = 0;
    const char *sign;
    while (from < format.len && (sign = memchr(format.s + from, '%', format.len - from))) {
        size_t at = (size_t)(sign - format.s);
        if (!jinja_work(r, 1) || !jinja_put(r, &text, jinja_text_cut(format, from, at)))
            return false;
        from = at + 1;
        if (!put_conversion(r, &text, format, &from, args, &next, named))
            return false;
    }
    if (args && !named && next < args->n)
        return jinja_fail(r, -EBADMSG, "more values than the format has places");
    if (!jinja_put(r, &text, jinja_text_cut(format, from, format.len)))
        return false;
    *out = jinja_written(&text);
    return true;
}

/* --- braces --- */

/* Writes a field: "", "0" or "name", each with or without a ":05.2f". */
static bool put_field(struct jinja_run *r, struct jinja_out *out, struct jinja_text field,
                      const struct jinja_list *args, size_t *next, const struct jinja_dict *named)
{
    const char *colon = field.len ? memchr(field.s, ':', field.len) : NULL;
    size_t n = colon ? (size_t)(colon - field.s) : field.len, at = 0;
    const struct jinja_value *v = NULL;
    struct spec spec = {.width = -1, .precision = -1, .letter = 's'};
    if (n && isdigit((unsigned char)field.s[0]))
        *next = (size_t)read_count(jinja_text_cut(field, 0, n), &at);
    if (at < n)
        v = jinja_dict_find(named, field.s, n);
    else if (*next < args->n)
        v = &args->items[(*next)++];
    at = n + 1;
    if (!v || (colon && at < field.len && (!read_spec(field, &at, &spec) || at < field.len)))
        return unknown(r, field);
    return put_value(r, out, v, &spec);
}

bool jinja_braces(struct jinja_run *r, struct jinja_text format, const struct jinja_list *args,
                  const struct jinja_dict *named, struct jinja_value *out)
{
    struct jinja_out text = {.max = r->limits.memory};
    size_t from = 0, at = 0, next = 0;
    if (!jinja_work_bytes(r, JINJA_WALK * format.len))
        return false;
    while (at < format.len) {
        char c = format.s[at];
        if (c != '{' && c != '}') {
            at++;
            continue;
        }
        if (!jinja_work(r, 1) || !jinja_put(r, &text, jinja_text_cut(format, from, at)))
            return false;
        if (at + 1 < format.len && format.s[at + 1] == c) { /* "{{" is "{" */
            from = at + 1;
            at += 2;
            continue;
        }
        const char *end = c == '{' ? memchr(format.s + at, '}', format.len - at) : NULL;
        if (!end)
            return unknown(r, format);
        struct jinja_text field = jinja_text_cut(format, at + 1, (size_t)(end - format.s));
        if (!put_field(r, &text, field, args, &next, named))
            return false;
        from = at = (size_t)(end - format.s) + 1;
    }
    if (!jinja_put(r, &text, jinja_text_cut(format, from, format.len)))
        return false;
    *out = jinja_written(&text);
    return true;
}
