/* jinja_compare.c - equality, order, membership, and arithmetic. */
#include "jinja_run.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

bool jinja_is_number(const struct jinja_value *v)
{
    return v->kind == JINJA_BOOL || v->kind == JINJA_INT || v->kind == JINJA_FLOAT;
}

int64_t jinja_integer(const struct jinja_value *v)
{
    return v->kind == JINJA_BOOL ? v->b : v->i;
}

double jinja_number(const struct jinja_value *v)
{
    return v->kind == JINJA_FLOAT ? v->f : (double)jinja_integer(v);
}

static bool both_integers(const struct jinja_value *a, const struct jinja_value *b)
{
    return jinja_is_number(a) && jinja_is_number(b) && a->kind != JINJA_FLOAT && b->kind != JINJA_FLOAT;
}

/* --- equality --- */

static bool equal_lists(struct jinja_run *r, const struct jinja_list *a, const struct jinja_list *b,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        if (!jinja_equal(r, &a->items[i], &b->items[i], out))
            return false;
    return true;
}

static const struct jinja_value *find_key(struct jinja_run *r, const struct jinja_dict *d,
                                          const struct jinja_value *key)
{
    bool same = false;
    if (!jinja_work_keys(r, d, key))
        return NULL;
    if (key->kind == JINJA_TEXT)
        return jinja_dict_find(d, key->text.s, key->text.len);
    for (size_t i = 0; i < d->n; i++) {
        if (!jinja_equal(r, &d->pairs[i].key, key, &same))
            return NULL;
        if (same)
            return &d->pairs[i].value;
    }
    return NULL;
}

static bool equal_dicts(struct jinja_run *r, const struct jinja_dict *a, const struct jinja_dict *b,
                        bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const struct jinja_value *other = find_key(r, b, &a->pairs[i].key);
        *out = other != NULL;
        if (r->rc || (other && !jinja_equal(r, &a->pairs[i].value, other, out)))
            return false;
    }
    return true;
}

static bool equal_values(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b,
                         bool *out)
{
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out =
            both_integers(a, b) ? jinja_integer(a) == jinja_integer(b) : jinja_number(a) == jinja_number(b);
        return true;
    }
    *out = a->kind == b->kind;
    if (!*out)
        return true;
    switch (a->kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE:
        return true;
    case JINJA_TEXT:
        *out = jinja_text_equal(a->text, b->text);
        return jinja_work_bytes(r, a->text.len < b->text.len ? a->text.len : b->text.len);
    case JINJA_LIST:
    case JINJA_TUPLE:
        return equal_lists(r, a->list, b->list, out);
    case JINJA_DICT:
        return equal_dicts(r, a->dict, b->dict, out);
    default:
        *out = a->object == b->object;
        return true;
    }
}

bool jinja_equal(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b, bool *out)
{
    *out = false;
    if (!jinja_work(r, 1) || !jinja_deeper(r))
        return false;
    bool ok = equal_values(r, a, b, out);
    r->depth--;
    return ok;
}

/* --- order --- */

static int order_texts(struct jinja_text a, struct jinja_text b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int order = n ? memcmp(a.s, b.s, n) : 0;
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static bool order_lists(struct jinja_run *r, const struct jinja_list *a, const struct jinja_list *b, int *out)
{
    *out = 0;
    for (size_t i = 0; !*out && i < a->n && i < b->n; i++)
        if (!jinja_order(r, &a->items[i], &b->items[i], out))
            return false;
    if (!*out)
        *out = (a->n > b->n) - (a->n < b->n);
    return true;
}

bool jinja_order(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b, int *out)
{
    if (both_integers(a, b)) {
        *out = (jinja_integer(a) > jinja_integer(b)) - (jinja_integer(a) < jinja_integer(b));
        return jinja_work(r, 1);
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = (jinja_number(a) > jinja_number(b)) - (jinja_number(a) < jinja_number(b));
        return jinja_work(r, 1);
    }
    if (a->kind == JINJA_TEXT && b->kind == JINJA_TEXT) {
        *out = order_texts(a->text, b->text);
        return jinja_work(r, 1 + (a->text.len < b->text.len ? a->text.len : b->text.len) / 512);
    }
    if (a->kind == b->kind && (a->kind == JINJA_LIST || a->kind == JINJA_TUPLE)) {
        if (!jinja_work(r, 1) || !jinja_deeper(r))
            return false;
        bool ok = order_lists(r, a->list, b->list, out);
        r->depth--;
        return ok;
    }
    return jinja_fail(r, -EBADMSG, "%s and %s have no order", jinja_kind_name(a), jinja_kind_name(b));
}

bool jinja_contains(struct jinja_run *r, const struct jinja_value *in, const struct jinja_value *what,
                    bool *out)
{
    *out = false;
    switch (in->kind) {
    case JINJA_UNDEFINED:
        return true;
    case JINJA_TEXT:
        if (what->kind != JINJA_TEXT)
            return jinja_fail(r, -EBADMSG, "\"in\" a string needs a string, not %s", jinja_kind_name(what));
        *out = !what->text.len ||
               (in->text.len && memmem(in->text.s, in->text.len, what->text.s, what->text.len));
        return jinja_work_bytes(r, JINJA_SEARCH * in->text.len);
    case JINJA_DICT:
        *out = find_key(r, in->dict, what) != NULL;
        return !r->rc;
    case JINJA_LIST:
    case JINJA_TUPLE:
        for (size_t i = 0; !*out && i < in->list->n; i++)
            if (!jinja_equal(r, &in->list->items[i], what, out))
                return false;
        return true;
    default:
        return jinja_fail(r, -EBADMSG, "\"in\" needs a string, list or dict, not %s", jinja_kind_name(in));
    }
}

static bool holds(int op, int order)
{
    return op == '<' ? order < 0 : op == '>' ? order > 0 : op == OP_LE ? order <= 0 : order >= 0;
}

bool jinja_compare(struct jinja_run *r, int op, const struct jinja_value *a, const struct jinja_value *b,
                   bool *out)
{
    bool same, ok;
    int order = 0;
    switch (op) {
    case OP_EQ:
    case OP_NE:
        ok = jinja_equal(r, a, b, &same);
        *out = same == (op == OP_EQ);
        return ok;
    case OP_IN:
    case OP_NOT_IN:
        ok = jinja_contains(r, b, a, &same);
        *out = same == (op == OP_IN);
        return ok;
    default:
        if (!jinja_order(r, a, b, &order))
            return false;
        *out = holds(op, order);
        if (a->kind == JINJA_FLOAT || b->kind == JINJA_FLOAT) /* no order holds for NaN */
            *out = *out && !(jinja_number(a) != jinja_number(a)) && !(jinja_number(b) != jinja_number(b));
        return true;
    }
}

/* --- arithmetic ---
 *
 * Integers have 64 bits, where Python's have as many as they need: a result that does not fit fails.
 * Everything that a template computes with integers is computed here. */

bool jinja_too_large(struct jinja_run *r)
{
    return jinja_fail(r, -EBADMSG, "an integer of more than 64 bits");
}

bool jinja_truncate(struct jinja_run *r, double f, int64_t *out)
{
    if (!(f >= -0x1p63 && f < 0x1p63)) /* NaN fails too */
        return jinja_too_large(r);
    *out = (int64_t)f;
    return true;
}

bool jinja_limit_argument(struct jinja_run *r, const struct jinja_args *args, int i, size_t *out)
{
    const struct jinja_value *v = &args->values[i];
    if (!args->given[i])
        return true;
    if (v->kind != JINJA_INT && v->kind != JINJA_BOOL)
        return jinja_fail(r, -EBADMSG, "an integer is needed, not %s", jinja_kind_name(v));
    *out = jinja_integer(v) < 0 ? SIZE_MAX : (size_t)jinja_integer(v);
    return true;
}

bool jinja_range_next(struct jinja_range *range, int64_t *i)
{
    assert(range->step);
    if (range->step < 0 ? range->from <= range->to : range->from >= range->to)
        return false;
    *i = range->from;
    if (__builtin_add_overflow(range->from, range->step, &range->from))
        range->from = range->to; /* the next one needs more than 64 bits, so it lies beyond `to` */
    return true;
}

static bool cannot(struct jinja_run *r, int op, const struct jinja_value *a, const struct jinja_value *b)
{
    const struct jinja_value *unknown = a->kind == JINJA_UNDEFINED ? a : b;
    char sign[3] = {op > 255 ? (char)(op >> 8) : (char)op, op > 255 ? (char)op : 0, 0};
    if (unknown->kind == JINJA_UNDEFINED)
        return jinja_fail(r, -EBADMSG, "\"%.*s\" is undefined", (int)unknown->text.len, unknown->text.s);
    return jinja_fail(r, -EBADMSG, "%s %s %s is not supported", jinja_kind_name(a), sign, jinja_kind_name(b));
}

static int64_t power(int64_t base, int64_t exponent, bool *overflows)
{
    int64_t result = 1;
    for (; exponent && !*overflows; exponent /= 2) {
        if (exponent & 1)
            *overflows |= __builtin_mul_overflow(result, base, &result);
        if (exponent > 1)
            *overflows |= __builtin_mul_overflow(base, base, &base);
    }
    return result;
}

/* Divides and rounds down; *rest has the sign of b, which is neither 0 nor -1. */
static int64_t floor_divide(int64_t a, int64_t b, int64_t *rest)
{
    int64_t q = a / b, left = a % b;
    if (left && (left < 0) != (b < 0)) {
        q--;
        left += b;
    }
    *rest = left;
    return q;
}

bool jinja_round_integer(struct jinja_run *r, int64_t i, unsigned zeros, int64_t *out)
{
    bool overflows = false;
    int64_t scale = power(10, zeros, &overflows), rest, q;
    assert(zeros && !overflows && scale < INT64_MAX / 2);
    q = floor_divide(i, scale, &rest);
    q += 2 * rest > scale || (2 * rest == scale && q % 2);
    return !__builtin_mul_overflow(q, scale, out) || jinja_too_large(r);
}

/* Divides and rounds down as Python's divmod(): from the rest, which is exact, while a / b is rounded. */
static double floor_divide_floats(double a, double b, double *rest)
{
    double left = fmod(a, b), q = (a - left) / b;
    if (left != 0 && (left < 0) != (b < 0)) {
        left += b;
        q -= 1;
    }
    *rest = left != 0 ? left : copysign(0, b);
    return q != 0 ? rint(q) : copysign(0, a / b);
}

#define REST_WORK 16 /* the rest of a large number divided by a small one is found bit by bit */

static bool floats(struct jinja_run *r, int op, double a, double b, struct jinja_value *out)
{
    double f, rest;
    if (!jinja_work(r, op == OP_FLOOR || op == '%' ? REST_WORK : 1))
        return false;
    if ((op == '/' || op == OP_FLOOR || op == '%') && b == 0)
        return jinja_fail(r, -EBADMSG, "division by zero");
    switch (op) {
    case '+':
        f = a + b;
        break;
    case '-':
        f = a - b;
        break;
    case '*':
        f = a * b;
        break;
    case '/':
        f = a / b;
        break;
    case OP_FLOOR:
        f = floor_divide_floats(a, b, &rest);
        break;
    case '%':
        floor_divide_floats(a, b, &f);
        break;
    default:
        f = pow(a, b);
        if (!isfinite(f) && isfinite(a) && isfinite(b)) /* as Python: 0 ** -1, 10.0 ** 400 */
            return jinja_fail(r, -EBADMSG, "a power that is no finite number");
    }
    *out = jinja_float(f);
    return true;
}

static bool integers(struct jinja_run *r, int op, int64_t a, int64_t b, struct jinja_value *out)
{
    bool overflows = false;
    int64_t i = 0;
    if (op == '/' || (op == OP_POWER && b < 0))
        return floats(r, op, (double)a, (double)b, out);
    if ((op == OP_FLOOR || op == '%') && !b)
        return jinja_fail(r, -EBADMSG, "division by zero");
    if (op == '+')
        overflows = __builtin_add_overflow(a, b, &i);
    else if (op == '-')
        overflows = __builtin_sub_overflow(a, b, &i);
    else if (op == '*')
        overflows = __builtin_mul_overflow(a, b, &i);
    else if (op == OP_POWER)
        i = power(a, b, &overflows);
    else if (b == -1) /* INT64_MIN / -1 and INT64_MIN % -1 are undefined in C */
        overflows = op == OP_FLOOR && __builtin_sub_overflow(0, a, &i);
    else if (op == OP_FLOOR)
        i = floor_divide(a, b, &(int64_t){0});
    else
        floor_divide(a, b, &i);
    if (overflows)
        return jinja_too_large(r);
    *out = jinja_int(i);
    return true;
}

static bool join_lists(struct jinja_run *r, const struct jinja_value *a, const struct jinja_value *b,
                       struct jinja_value *out)
{
    const struct jinja_list *lists[] = {a->list, b->list};
    if (!jinja_open_list(r, out) || !jinja_work(r, (lists[0]->n + lists[1]->n) / 8))
        return false;
    out->kind = a->kind;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->n; i++)
            if (!jinja_push(r, out->list, lists[k]->items[i]))
                return false;
    return true;
}

static bool repeat(struct jinja_run *r, const struct jinja_value *what, const struct jinja_value *times,
                   struct jinja_value *out)
{
    int64_t n = jinja_integer(times);
    if (what->kind == JINJA_TEXT) {
        struct jinja_out text = {.max = r->limits.memory};
        for (int64_t i = 0; what->text.len && i < n; i++)
            if (!jinja_work(r, 1) || !jinja_put(r, &text, what->text))
                return false;
        *out = jinja_written(&text);
        return true;
    }
    if (!jinja_open_list(r, out))
        return false;
    out->kind = what->kind;
    for (int64_t i = 0; what->list->n && i < n; i++)
        for (size_t k = 0; k < what->list->n; k++)
            if (!jinja_work(r, 1) || !jinja_push(r, out->list, what->list->items[k]))
                return false;
    return true;
}

static bool is_sequence(const struct jinja_value *v)
{
    return v->kind == JINJA_TEXT || v->kind == JINJA_LIST || v->kind == JINJA_TUPLE;
}

static bool is_integer(const struct jinja_value *v)
{
    return v->kind == JINJA_INT || v->kind == JINJA_BOOL;
}

bool jinja_binary(struct jinja_run *r, int op, const struct jinja_value *a, const struct jinja_value *b,
                  struct jinja_value *out)
{
    if (both_integers(a, b))
        return integers(r, op, jinja_integer(a), jinja_integer(b), out);
    if (jinja_is_number(a) && jinja_is_number(b))
        return floats(r, op, jinja_number(a), jinja_number(b), out);
    if (op == '+' && a->kind == JINJA_TEXT && b->kind == JINJA_TEXT) {
        struct jinja_out text = {.max = r->limits.memory};
        bool ok = jinja_put(r, &text, a->text) && jinja_put(r, &text, b->text);
        *out = jinja_written(&text);
        return ok;
    }
    if (op == '+' && a->kind == b->kind && is_sequence(a))
        return join_lists(r, a, b, out);
    if (op == '*' && is_sequence(a) && is_integer(b))
        return repeat(r, a, b, out);
    if (op == '*' && is_integer(a) && is_sequence(b))
        return repeat(r, b, a, out);
    if (op == '%' && a->kind == JINJA_TEXT) {
        struct jinja_list one = {.n = 1, .items = (struct jinja_value *)b};
        return jinja_percent(r, a->text, b->kind == JINJA_TUPLE ? b->list : &one,
                             b->kind == JINJA_DICT ? b->dict : NULL, out);
    }
    return cannot(r, op, a, b);
}
