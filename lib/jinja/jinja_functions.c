/* jinja_functions.c - the functions of every template, and the methods of loops and dicts. */
#include "jinja_run.h"

#include <errno.h>
#include <string.h>

#define FUNCTION(name)                                                                                       \
    static bool name(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,     \
                     struct jinja_value *out)

FUNCTION(make_range)
{
    struct jinja_range range = {.step = 1};
    int64_t i;
    (void)self;
    for (int k = 0; k < 3; k++)
        if (args->given[k] && args->values[k].kind != JINJA_INT && args->values[k].kind != JINJA_BOOL)
            return jinja_fail(r, -EBADMSG, "range needs integers, not %s", jinja_kind_name(&args->values[k]));
    range.to = jinja_integer(&args->values[args->given[1]]);
    if (args->given[1])
        range.from = jinja_integer(&args->values[0]);
    if (args->given[2])
        range.step = jinja_integer(&args->values[2]);
    if (!range.step)
        return jinja_fail(r, -EBADMSG, "range with step 0");
    if (!jinja_open_list(r, out))
        return false;
    while (jinja_range_next(&range, &i))
        if (!jinja_work(r, 1) || !jinja_push(r, out->list, jinja_int(i)))
            return false;
    return true;
}

/* Fills a dict or namespace from arguments like (a=1) or ({..}, a=1). */
static bool fill_dict(struct jinja_run *r, const struct jinja_args *args, struct jinja_value *out)
{
    const struct jinja_dict *parts[] = {NULL, &args->named};
    if (args->more.n > 1 || (args->more.n && args->more.items[0].kind != JINJA_DICT))
        return jinja_fail(r, -EBADMSG, "dict and namespace take one dict and named values");
    if (args->more.n)
        parts[0] = args->more.items[0].dict;
    if (!jinja_open_dict(r, out))
        return false;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; parts[k] && i < parts[k]->n; i++)
            if (!jinja_put_pair(r, out->dict, parts[k]->pairs[i].key, parts[k]->pairs[i].value))
                return false;
    return true;
}

FUNCTION(make_dict)
{
    (void)self;
    return fill_dict(r, args, out);
}

FUNCTION(make_namespace)
{
    (void)self;
    bool ok = fill_dict(r, args, out);
    out->kind = JINJA_NAMESPACE;
    return ok;
}

FUNCTION(raise)
{
    struct jinja_text words;
    (void)self;
    (void)out;
    return jinja_to_text(r, &args->values[0], &words) && jinja_fail_with(r, -EINVAL, words);
}

FUNCTION(strftime_now)
{
    char format[128], text[512];
    struct jinja_text wanted = args->values[0].text;
    (void)self;
    if (args->values[0].kind != JINJA_TEXT || wanted.len >= sizeof format)
        return jinja_fail(r, -EBADMSG, "strftime_now needs a short string");
    memcpy(format, wanted.s, wanted.len);
    format[wanted.len] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    size_t n = strftime(text, sizeof text, format, r->now);
#pragma GCC diagnostic pop
    char *copy = jinja_work_bytes(r, JINJA_WALK * n) ? jinja_alloc(r, n + 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, text, n);
    *out = jinja_string(copy, n, wanted.plain != NULL);
    return true;
}

const struct jinja_builtin jinja_functions[] = {
    {.name = "range", .call = make_range, .params = {"start", "stop", "step"}, .n_required = 1},
    {.name = "dict", .call = make_dict, .variadic = true},
    {.name = "namespace", .call = make_namespace, .variadic = true},
    {.name = "raise_exception", .call = raise, .params = {"message"}, .n_required = 1},
    {.name = "strftime_now", .call = strftime_now, .params = {"format"}, .n_required = 1},
    {0},
};

/* --- methods of loops --- */

FUNCTION(cycle)
{
    const struct jinja_loop *l = self->object;
    if (!args->more.n)
        return jinja_fail(r, -EBADMSG, "cycle needs values");
    *out = args->more.items[l->i % args->more.n];
    return true;
}

const struct jinja_builtin jinja_loop_methods[] = {{.name = "cycle", .call = cycle, .variadic = true}, {0}};

/* --- methods of dicts --- */

bool jinja_pairs(struct jinja_run *r, const struct jinja_dict *d, struct jinja_value *out)
{
    struct jinja_value pair;
    if (!jinja_open_list(r, out) || !jinja_work(r, d->n))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        if (!jinja_open_list(r, &pair) || !jinja_push(r, pair.list, d->pairs[i].key) ||
            !jinja_push(r, pair.list, d->pairs[i].value))
            return false;
        pair.kind = JINJA_TUPLE;
        if (!jinja_push(r, out->list, pair))
            return false;
    }
    return true;
}

FUNCTION(items)
{
    (void)args;
    return jinja_pairs(r, self->dict, out);
}

static bool one_side(struct jinja_run *r, const struct jinja_dict *d, bool keys, struct jinja_value *out)
{
    if (!jinja_open_list(r, out) || !jinja_work(r, d->n / 8))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if (!jinja_push(r, out->list, keys ? d->pairs[i].key : d->pairs[i].value))
            return false;
    return true;
}

FUNCTION(keys)
{
    (void)args;
    return one_side(r, self->dict, true, out);
}

FUNCTION(values)
{
    (void)args;
    return one_side(r, self->dict, false, out);
}

FUNCTION(get)
{
    *out = args->given[1] ? args->values[1] : jinja_none();
    for (size_t i = 0; i < self->dict->n; i++) {
        bool same;
        if (!jinja_equal(r, &self->dict->pairs[i].key, &args->values[0], &same))
            return false;
        if (same) {
            *out = self->dict->pairs[i].value;
            return true;
        }
    }
    return true;
}

const struct jinja_builtin jinja_dict_methods[] = {
    {.name = "items", .call = items},
    {.name = "keys", .call = keys},
    {.name = "values", .call = values},
    {.name = "get", .call = get, .params = {"key", "default"}, .n_required = 1},
    {0},
};
