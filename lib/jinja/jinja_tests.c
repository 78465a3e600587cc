/* jinja_tests.c - the tests of "is". */
#include "jinja_run.h"

#include <ctype.h>
#include <errno.h>

#define TEST(name)                                                                                           \
    static bool name(struct jinja_run *r, const struct jinja_value *v, const struct jinja_args *args,        \
                     struct jinja_value *out)
#define KIND_TEST(name, condition)                                                                           \
    TEST(name)                                                                                               \
    {                                                                                                        \
        (void)r;                                                                                             \
        (void)args;                                                                                          \
        *out = jinja_bool(condition);                                                                        \
        return true;                                                                                         \
    }

KIND_TEST(is_defined, v->kind != JINJA_UNDEFINED)
KIND_TEST(is_undefined, v->kind == JINJA_UNDEFINED)
KIND_TEST(is_none, v->kind == JINJA_NONE)
KIND_TEST(is_string, v->kind == JINJA_TEXT)
KIND_TEST(is_mapping, v->kind == JINJA_DICT)
KIND_TEST(is_number, jinja_is_number(v))
KIND_TEST(is_integer, v->kind == JINJA_INT)
KIND_TEST(is_float, v->kind == JINJA_FLOAT)
KIND_TEST(is_boolean, v->kind == JINJA_BOOL)
KIND_TEST(is_true, v->kind == JINJA_BOOL && v->b)
KIND_TEST(is_false, v->kind == JINJA_BOOL && !v->b)
KIND_TEST(is_callable, v->kind >= JINJA_MACRO || v->kind == JINJA_UNDEFINED)
/* Jinja's rule: a sequence is a value with a length, and an undefined value has the length 0. */
KIND_TEST(is_sequence, v->kind == JINJA_TEXT || (v->kind == JINJA_LIST && !v->list->generated) ||
                           v->kind == JINJA_TUPLE || v->kind == JINJA_DICT || v->kind == JINJA_UNDEFINED)
KIND_TEST(is_iterable, v->kind == JINJA_TEXT || v->kind == JINJA_LIST || v->kind == JINJA_TUPLE ||
                           v->kind == JINJA_DICT || v->kind == JINJA_UNDEFINED)

static bool is_case(struct jinja_run *r, const struct jinja_value *v, struct jinja_value *out, bool upper)
{
    struct jinja_text text;
    bool letters = false, other = false;
    if (!jinja_to_text(r, v, &text) || !jinja_work_bytes(r, JINJA_WALK * text.len))
        return false;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.s[i];
        letters |= isalpha(c) != 0;
        other |= upper ? islower(c) != 0 : isupper(c) != 0;
    }
    *out = jinja_bool(letters && !other);
    return true;
}

TEST(is_upper)
{
    (void)args;
    return is_case(r, v, out, true);
}

TEST(is_lower)
{
    (void)args;
    return is_case(r, v, out, false);
}

/* Tells whether v % by is `wanted`. */
static bool leaves(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *by,
                   double wanted, struct jinja_value *out)
{
    struct jinja_value rest;
    if (!jinja_is_number(v) || !jinja_is_number(by))
        return jinja_fail(r, -EBADMSG, "%s cannot be divided by %s", jinja_kind_name(v), jinja_kind_name(by));
    if (!jinja_binary(r, '%', v, by, &rest))
        return false;
    *out = jinja_bool(jinja_number(&rest) == wanted);
    return true;
}

TEST(is_divisibleby)
{
    return leaves(r, v, &args->values[0], 0, out);
}

TEST(is_odd)
{
    struct jinja_value two = jinja_int(2);
    (void)args;
    return leaves(r, v, &two, 1, out);
}

TEST(is_even)
{
    struct jinja_value two = jinja_int(2);
    (void)args;
    return leaves(r, v, &two, 0, out);
}

#define COMPARISON(name, op)                                                                                 \
    TEST(name)                                                                                               \
    {                                                                                                        \
        bool yes = false;                                                                                    \
        bool ok = jinja_compare(r, op, v, &args->values[0], &yes);                                           \
        *out = jinja_bool(ok && yes);                                                                        \
        return ok;                                                                                           \
    }

COMPARISON(is_eq, OP_EQ)
COMPARISON(is_ne, OP_NE)
COMPARISON(is_lt, '<')
COMPARISON(is_le, OP_LE)
COMPARISON(is_gt, '>')
COMPARISON(is_ge, OP_GE)
COMPARISON(is_in, OP_IN)

/* Compares kind and value: a template cannot tell equal values of one kind apart. */
TEST(is_sameas)
{
    bool yes = v->kind == args->values[0].kind;
    bool ok = !yes || jinja_compare(r, OP_EQ, v, &args->values[0], &yes);
    *out = jinja_bool(ok && yes);
    return ok;
}

#define ONE(n, f)                                                                                            \
    {                                                                                                        \
        .name = n, .call = f, .params = {"other"}, .n_required = 1                                           \
    }

const struct jinja_builtin jinja_tests[] = {
    {.name = "defined", .call = is_defined},
    {.name = "undefined", .call = is_undefined},
    {.name = "none", .call = is_none},
    {.name = "string", .call = is_string},
    {.name = "mapping", .call = is_mapping},
    {.name = "number", .call = is_number},
    {.name = "integer", .call = is_integer},
    {.name = "float", .call = is_float},
    {.name = "boolean", .call = is_boolean},
    {.name = "true", .call = is_true},
    {.name = "false", .call = is_false},
    {.name = "callable", .call = is_callable},
    {.name = "sequence", .call = is_sequence},
    {.name = "iterable", .call = is_iterable},
    {.name = "upper", .call = is_upper},
    {.name = "lower", .call = is_lower},
    {.name = "odd", .call = is_odd},
    {.name = "even", .call = is_even},
    {.name = "divisibleby", .call = is_divisibleby, .params = {"num"}, .n_required = 1},
    ONE("eq", is_eq),
    ONE("equalto", is_eq),
    ONE("==", is_eq),
    ONE("ne", is_ne),
    ONE("!=", is_ne),
    ONE("lt", is_lt),
    ONE("lessthan", is_lt),
    ONE("<", is_lt),
    ONE("le", is_le),
    ONE("<=", is_le),
    ONE("gt", is_gt),
    ONE("greaterthan", is_gt),
    ONE(">", is_gt),
    ONE("ge", is_ge),
    ONE(">=", is_ge),
    ONE("in", is_in),
    ONE("sameas", is_sameas),
    {0},
};
