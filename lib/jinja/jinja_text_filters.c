/* jinja_text_filters.c - filters of texts and numbers. */
#include "jinja_run.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                                         \
    static bool name(struct jinja_run *r, const struct jinja_value *v, const struct jinja_args *args,        \
                     struct jinja_value *out)

static bool to_text_value(struct jinja_run *r, const struct jinja_value *v, struct jinja_value *out)
{
    struct jinja_text text;
    if (!jinja_to_text(r, v, &text))
        return false;
    *out = (struct jinja_value){.kind = JINJA_TEXT, .text = text};
    return true;
}

FILTER(string)
{
    (void)args;
    return to_text_value(r, v, out);
}

FILTER(trim)
{
    struct jinja_text text;
    return jinja_to_text(r, v, &text) &&
           jinja_trim(r, text, args->given[0] ? &args->values[0] : NULL, true, true, out);
}

#define CASE_FILTER(name, how)                                                                               \
    FILTER(name)                                                                                             \
    {                                                                                                        \
        struct jinja_text text;                                                                              \
        (void)args;                                                                                          \
        return jinja_to_text(r, v, &text) && jinja_recase(r, text, how, out);                                \
    }

CASE_FILTER(upper, JINJA_UPPER)
CASE_FILTER(lower, JINJA_LOWER)
CASE_FILTER(capitalize, JINJA_CAPITAL)
CASE_FILTER(title, JINJA_TITLE_WORDS)

FILTER(replace)
{
    struct jinja_text text, old, by;
    size_t max = SIZE_MAX;
    if (!jinja_to_text(r, v, &text) || !jinja_to_text(r, &args->values[0], &old) ||
        !jinja_to_text(r, &args->values[1], &by))
        return false;
    if (args->values[2].kind != JINJA_NONE && !jinja_limit_argument(r, args, 2, &max))
        return false;
    return jinja_replace(r, text, old, by, max, out);
}

/* Escapes & < > " ' for HTML. */
FILTER(escape)
{
    static const char signs[] = "&<>\"'", *const names[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    struct jinja_out made = {.max = r->limits.memory};
    struct jinja_text text;
    size_t from = 0;
    (void)args;
    if (!jinja_to_text(r, v, &text) || !jinja_work_bytes(r, JINJA_WALK * text.len))
        return false;
    for (size_t i = 0; i < text.len; i++) {
        const char *sign = text.s[i] ? strchr(signs, text.s[i]) : NULL;
        if (!sign)
            continue;
        const char *name = names[sign - signs];
        if (!jinja_put(r, &made, jinja_text_cut(text, from, i)) ||
            !jinja_put_bytes(r, &made, name, strlen(name), jinja_is_plain(text, i)))
            return false;
        from = i + 1;
    }
    if (!jinja_put(r, &made, jinja_text_cut(text, from, text.len)))
        return false;
    *out = jinja_written(&made);
    return true;
}

static bool indentation(struct jinja_run *r, const struct jinja_args *args, struct jinja_text *out)
{
    static const char spaces[101] = "                                                  "
                                    "                                                  ";
    const struct jinja_value *v = &args->values[0];
    int64_t width = args->given[0] && v->kind == JINJA_INT ? v->i : 4;
    if (args->given[0] && v->kind == JINJA_TEXT) {
        *out = v->text;
        return true;
    }
    if (width > 100)
        return jinja_fail(r, -EBADMSG, "indent by more than 100");
    *out = jinja_text_of(spaces, width > 0 ? (size_t)width : 0);
    return true;
}

FILTER(indent)
{
    struct jinja_out made = {.max = r->limits.memory};
    struct jinja_text text, by;
    bool first = args->given[1] && jinja_truth(&args->values[1]);
    bool blank = args->given[2] && jinja_truth(&args->values[2]);
    if (v->kind != JINJA_TEXT)
        return jinja_fail(r, -EBADMSG, "indent needs a string, not %s", jinja_kind_name(v));
    text = v->text;
    if (!indentation(r, args, &by))
        return false;
    if (text.len && text.s[text.len - 1] == '\r') /* Jinja adds \n, and \r\n is one line end */
        text.len--;
    if (!jinja_work_bytes(r, JINJA_WALK * text.len))
        return false;
    for (size_t from = 0, next; from <= text.len; from = next) { /* behind a line end there is a line */
        size_t end = jinja_line(text, from, &next);
        bool put = from ? blank || end > from : first;
        if (!jinja_work(r, 1) || (put && !jinja_put(r, &made, by)) ||
            !jinja_put(r, &made, jinja_text_cut(text, from, end)) ||
            (next > end && !jinja_put_bytes(r, &made, "\n", 1, jinja_is_plain(text, end))))
            return false;
        next += next == end; /* ends the loop after the last line */
    }
    *out = jinja_written(&made);
    return true;
}

FILTER(format)
{
    struct jinja_text text;
    return jinja_to_text(r, v, &text) &&
           jinja_percent(r, text, &args->more, args->named.n ? &args->named : NULL, out);
}

/* --- JSON --- */

/* Reads the argument separators=(',', ':'). */
static bool separators(struct jinja_run *r, const struct jinja_value *v, struct jinja_json_style *style)
{
    bool pair = (v->kind == JINJA_TUPLE || v->kind == JINJA_LIST) && v->list->n == 2;
    if (!pair || v->list->items[0].kind != JINJA_TEXT || v->list->items[1].kind != JINJA_TEXT)
        return jinja_fail(r, -EBADMSG, "tojson: separators must be two strings");
    style->item = v->list->items[0].text;
    style->key = v->list->items[1].text;
    return true;
}

/* The arguments have the order of transformers' tojson. */
FILTER(tojson)
{
    struct jinja_out made = {.max = r->limits.memory};
    const struct jinja_value *indent = &args->values[1];
    struct jinja_json_style style = {
        .indent = -1, .item = jinja_text_of(", ", 2), .key = jinja_text_of(": ", 2)};
    style.ascii = args->given[0] && jinja_truth(&args->values[0]);
    style.sorted = args->given[3] && jinja_truth(&args->values[3]);
    if (args->given[1] && indent->kind != JINJA_NONE) {
        if (indent->kind != JINJA_INT || indent->i < 0 || indent->i > 100)
            return jinja_fail(r, -EBADMSG, "tojson: indent must be 0 to 100");
        style.indent = indent->i;
        style.item = jinja_text_of(",", 1);
    }
    if (args->given[2] && args->values[2].kind != JINJA_NONE && !separators(r, &args->values[2], &style))
        return false;
    if (!jinja_json(r, &made, v, &style))
        return false;
    *out = jinja_written(&made);
    return true;
}

/* --- numbers --- */

#define MAX_DIGITS 4300 /* of a text that Python's int() takes */

/* Copies a text without the spaces around it, NUL-terminated for strtod(). Returns the copy's length; 0 when
 * the text is no number, which hexadecimal digits are none of. */
static size_t copy_number(struct jinja_text text, char copy[MAX_DIGITS + 1])
{
    text = jinja_strip(text, true, true);
    if (!text.len || text.len > MAX_DIGITS || memchr(text.s, 'x', text.len) || memchr(text.s, 'X', text.len))
        return 0;
    memcpy(copy, text.s, text.len);
    copy[text.len] = '\0';
    return text.len;
}

/* Reads a float like Python's float(). */
static bool parse_float(struct jinja_text text, double *out)
{
    char digits[MAX_DIGITS + 1], *end;
    size_t n = copy_number(text, digits);
    if (!n)
        return false;
    *out = strtod(digits, &end);
    return end == digits + n;
}

/* Reads an integer like Python's int(). -EINVAL: the text is none; -ERANGE: it needs more than 64 bits. */
static int parse_integer(struct jinja_text text, int64_t *out)
{
    char digits[MAX_DIGITS + 1], *end;
    size_t n = copy_number(text, digits);
    if (!n)
        return -EINVAL;
    errno = 0;
    *out = strtoll(digits, &end, 10);
    return end == digits + n ? -errno : -EINVAL;
}

/* Like Jinja: NaN leaves the default in *out, and infinity fails. */
static bool float_to_int(struct jinja_run *r, double f, struct jinja_value *out)
{
    int64_t i = 0;
    if (isnan(f))
        return true;
    if (!jinja_truncate(r, f, &i))
        return false;
    *out = jinja_int(i);
    return true;
}

/* Reads an integer, or a float as "42.9"; a text that is neither leaves the default in *out. */
static bool text_to_int(struct jinja_run *r, struct jinja_text text, struct jinja_value *out)
{
    int64_t i = 0;
    double f = 0;
    if (!jinja_work_bytes(r, JINJA_WALK * text.len))
        return false;
    int rc = parse_integer(text, &i);
    if (rc == -ERANGE)
        return jinja_too_large(r);
    if (rc == 0)
        *out = jinja_int(i);
    else if (parse_float(text, &f) && isfinite(f)) /* "inf" leaves the default */
        return float_to_int(r, f, out);
    return true;
}

/* Text that is read as a number is walked from end to end. */
static bool walk_text(struct jinja_run *r, const struct jinja_value *v)
{
    return v->kind != JINJA_TEXT || jinja_work_bytes(r, JINJA_WALK * v->text.len);
}

FILTER(to_int)
{
    *out = args->given[0] ? args->values[0] : jinja_int(0);
    switch (v->kind) {
    case JINJA_UNDEFINED:
        return jinja_fail(r, -EBADMSG, "int of an undefined value");
    case JINJA_INT:
    case JINJA_BOOL:
        *out = jinja_int(jinja_integer(v));
        return true;
    case JINJA_FLOAT:
        return float_to_int(r, v->f, out);
    case JINJA_TEXT:
        return text_to_int(r, v->text, out);
    default:
        return true;
    }
}

FILTER(to_float)
{
    double f;
    if (!walk_text(r, v))
        return false;
    if (v->kind == JINJA_UNDEFINED)
        return jinja_fail(r, -EBADMSG, "float of an undefined value");
    *out = args->given[0] ? args->values[0] : jinja_float(0);
    if (jinja_is_number(v))
        *out = jinja_float(jinja_number(v));
    else if (v->kind == JINJA_TEXT && !jinja_work_bytes(r, JINJA_WALK * v->text.len))
        return false;
    else if (v->kind == JINJA_TEXT && parse_float(v->text, &f))
        *out = jinja_float(f);
    return true;
}

FILTER(absolute)
{
    struct jinja_value zero = jinja_int(0);
    (void)args;
    if (!jinja_is_number(v))
        return jinja_fail(r, -EBADMSG, "abs needs a number, not %s", jinja_kind_name(v));
    if (v->kind != JINJA_FLOAT)
        return jinja_binary(r, jinja_integer(v) < 0 ? '-' : '+', &zero, v, out);
    *out = jinja_float(fabs(v->f));
    return true;
}

/* Digits charged for a rounding: a large number prints 309, of which few are read. */
#define ROUND_DIGITS 160

/* Rounds to the nearest; a half in decimal digits goes to the even digit. */
static double nearest(double f, int digits)
{
    char text[400];
    double scale = pow(10, -digits);
    if (digits < 0)
        return rint(f / scale) * scale;
    int n = snprintf(text, sizeof text, "%.*f", digits, f);
    assert(n > 0 && (size_t)n < sizeof text); /* else the text is cut and reads as another number */
    return strtod(text, NULL);
}

/* Rounds the scaled number by `side`: ceil() or floor(). */
static bool round_to_side(struct jinja_run *r, const struct jinja_value *v, int digits,
                          double (*side)(double), struct jinja_value *out)
{
    double f = jinja_number(v), scale = pow(10, v->kind != JINJA_FLOAT && digits > 0 ? 0 : digits);
    if (!isfinite(f * scale))
        return jinja_fail(r, -EBADMSG, "round of a number that is not finite");
    *out = jinja_float(side(f * scale) / scale + 0.0); /* Python divides an integer, which is never -0.0 */
    return true;
}

FILTER(rounded)
{
    int64_t digits = args->given[0] && args->values[0].kind == JINJA_INT ? args->values[0].i : 0;
    const struct jinja_value *method = &args->values[1];
    if (!jinja_is_number(v) || digits < -15 || digits > 15 || (args->given[1] && method->kind != JINJA_TEXT))
        return jinja_fail(r, -EBADMSG, "round needs a number and at most 15 digits");
    if (!jinja_work_digits(r, ROUND_DIGITS))
        return false;
    bool up = args->given[1] && jinja_text_is(method->text, "ceil");
    if (up || (args->given[1] && jinja_text_is(method->text, "floor")))
        return round_to_side(r, v, (int)digits, up ? ceil : floor, out);
    if (v->kind == JINJA_FLOAT) {
        *out = isfinite(v->f) ? jinja_float(nearest(v->f, (int)digits)) : *v;
        return true;
    }
    *out = jinja_int(jinja_integer(v));
    return digits >= 0 || jinja_round_integer(r, out->i, (unsigned)-digits, &out->i);
}

const struct jinja_builtin jinja_text_filters[] = {
    {.name = "string", .call = string},
    {.name = "safe", .call = string},
    {.name = "trim", .call = trim, .params = {"chars"}},
    {.name = "upper", .call = upper},
    {.name = "lower", .call = lower},
    {.name = "capitalize", .call = capitalize},
    {.name = "title", .call = title},
    {.name = "replace", .call = replace, .params = {"old", "new", "count"}, .n_required = 2},
    {.name = "escape", .call = escape},
    {.name = "e", .call = escape},
    {.name = "indent", .call = indent, .params = {"width", "first", "blank"}},
    {.name = "format", .call = format, .variadic = true},
    {.name = "tojson", .call = tojson, .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "int", .call = to_int, .params = {"default"}},
    {.name = "float", .call = to_float, .params = {"default"}},
    {.name = "abs", .call = absolute},
    {.name = "round", .call = rounded, .params = {"precision", "method"}},
    {0},
};
