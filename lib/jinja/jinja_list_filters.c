/* jinja_list_filters.c - filters of lists, and filters that choose a value. */
#include "jinja_run.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FILTER(name)                                                                                         \
    static bool name(struct jinja_run *r, const struct jinja_value *v, const struct jinja_args *args,        \
                     struct jinja_value *out)

static struct jinja_value undefined(const char *word)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .text = jinja_text_of(word, strlen(word))};
}

/* Opens a list that stands for a generator of Jinja, which is true even when it gives nothing. */
static bool open_generated(struct jinja_run *r, struct jinja_value *out)
{
    if (!jinja_open_list(r, out))
        return false;
    out->list->generated = true;
    return true;
}

FILTER(or_default)
{
    bool whole = args->given[1] && jinja_truth(&args->values[1]);
    (void)r;
    if (whole ? jinja_truth(v) : v->kind != JINJA_UNDEFINED)
        *out = *v;
    else
        *out = args->given[0] ? args->values[0] : jinja_word("");
    return true;
}

FILTER(length)
{
    (void)args;
    switch (v->kind) {
    case JINJA_UNDEFINED:
        *out = jinja_int(0);
        return true;
    case JINJA_TEXT:
        *out = jinja_int((int64_t)jinja_text_length(v->text));
        return jinja_work_bytes(r, JINJA_WALK * v->text.len);
    case JINJA_LIST:
    case JINJA_TUPLE:
        *out = jinja_int((int64_t)v->list->n);
        return true;
    case JINJA_DICT:
        *out = jinja_int((int64_t)v->dict->n);
        return true;
    default:
        return jinja_fail(r, -EBADMSG, "%s has no length", jinja_kind_name(v));
    }
}

static bool copy(struct jinja_run *r, const struct jinja_value *v, struct jinja_value *out)
{
    struct jinja_list *items;
    if (!jinja_items(r, v, &items) || !jinja_open_list(r, out) || !jinja_work(r, items->n / 8))
        return false;
    for (size_t i = 0; i < items->n; i++)
        if (!jinja_push(r, out->list, items->items[i]))
            return false;
    return true;
}

FILTER(list)
{
    (void)args;
    return copy(r, v, out);
}

static bool one_end(struct jinja_run *r, const struct jinja_value *v, bool first, struct jinja_value *out)
{
    struct jinja_list *items;
    struct jinja_value key = jinja_int(first ? 0 : -1);
    if (v->kind == JINJA_TEXT)
        return jinja_item(r, v, &key, out);
    if (!jinja_items(r, v, &items))
        return false;
    *out = items->n ? items->items[first ? 0 : items->n - 1] : undefined("item");
    return true;
}

FILTER(first)
{
    (void)args;
    return one_end(r, v, true, out);
}

FILTER(last)
{
    (void)args;
    return one_end(r, v, false, out);
}

FILTER(reverse)
{
    struct jinja_out made = {.max = r->limits.memory};
    struct jinja_list *items;
    (void)args;
    if (!jinja_items(r, v, &items) || !open_generated(r, out) || !jinja_work(r, items->n / 8))
        return false;
    for (size_t i = items->n; i-- > 0;)
        if (v->kind == JINJA_TEXT ? !jinja_put(r, &made, items->items[i].text)
                                  : !jinja_push(r, out->list, items->items[i]))
            return false;
    if (v->kind == JINJA_TEXT)
        *out = jinja_written(&made);
    return true;
}

/* Sets *out to the item, or to its attribute when argument i names one. */
static bool part_of(struct jinja_run *r, const struct jinja_value *item, const struct jinja_args *args, int i,
                    struct jinja_value *out)
{
    *out = *item;
    if (!args->given[i] || args->values[i].kind == JINJA_NONE)
        return true;
    return jinja_path(r, item, &args->values[i], out);
}

FILTER(join)
{
    struct jinja_out made = {.max = r->limits.memory};
    struct jinja_text between = {0};
    struct jinja_list *items;
    struct jinja_value part;
    if (!jinja_items(r, v, &items) || (args->given[0] && !jinja_to_text(r, &args->values[0], &between)))
        return false;
    for (size_t i = 0; i < items->n; i++)
        if (!jinja_work(r, 1) || (i && !jinja_put(r, &made, between)) ||
            !part_of(r, &items->items[i], args, 1, &part) || !jinja_print(r, &made, &part))
            return false;
    *out = jinja_written(&made);
    return true;
}

FILTER(attribute)
{
    if (args->values[0].kind != JINJA_TEXT)
        return jinja_fail(r, -EBADMSG, "attr needs a name");
    return jinja_attribute(r, v, args->values[0].text, out);
}

/* --- by another filter or test --- */

static bool map_attribute(struct jinja_run *r, const struct jinja_value *item, const struct jinja_args *args,
                          struct jinja_value *out)
{
    const struct jinja_value *path = jinja_dict_find(&args->named, "attribute", 9);
    const struct jinja_value *otherwise = jinja_dict_find(&args->named, "default", 7);
    if (!jinja_path(r, item, path, out))
        return false;
    if (out->kind == JINJA_UNDEFINED && otherwise)
        *out = *otherwise;
    return true;
}

/* Returns the arguments behind the first n. */
static struct jinja_list behind(const struct jinja_list *l, size_t n)
{
    return (struct jinja_list){.n = l->n - n, .items = l->items ? l->items + n : NULL};
}

FILTER(map)
{
    bool path = jinja_dict_find(&args->named, "attribute", 9) != NULL;
    const struct jinja_builtin *filter = NULL;
    struct jinja_list *items, rest = {0};
    struct jinja_value one;
    if (!path) {
        if (!args->more.n || args->more.items[0].kind != JINJA_TEXT ||
            !(filter = jinja_find_filter(args->more.items[0].text)))
            return jinja_fail(r, -EBADMSG, "map needs an attribute or the name of a filter");
        rest = behind(&args->more, 1);
    }
    if (!open_generated(r, out) || !jinja_truth(v)) /* any false value gives an empty list */
        return out->list != NULL;
    if (!jinja_items(r, v, &items))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        const struct jinja_value *item = &items->items[i];
        if (!jinja_work(r, JINJA_OPERATION) ||
            !(path ? map_attribute(r, item, args, &one)
                   : jinja_call_builtin(r, filter, item, &rest, &args->named, &one)) ||
            !jinja_push(r, out->list, one))
            return false;
    }
    return true;
}

/* select, reject, selectattr, rejectattr: keeps the items for which the test gives `keep`. With `path` the
 * first argument names the attribute to test. */
static bool choose(struct jinja_run *r, const struct jinja_value *v, const struct jinja_args *args, bool path,
                   bool keep, struct jinja_value *out)
{
    const struct jinja_builtin *test = NULL;
    struct jinja_list *items, rest;
    struct jinja_value part, yes;
    if (path && !args->more.n)
        return jinja_fail(r, -EBADMSG, "an attribute is needed");
    if (args->more.n > path) {
        const struct jinja_value *name = &args->more.items[path];
        if (name->kind != JINJA_TEXT || !(test = jinja_find_test(name->text)))
            return jinja_fail(r, -EBADMSG, "the name of a test is needed");
        rest = behind(&args->more, path + 1u);
    }
    if (!open_generated(r, out) || !jinja_truth(v))
        return out->list != NULL;
    if (!jinja_items(r, v, &items))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        part = items->items[i];
        if (!jinja_work(r, JINJA_OPERATION) || (path && !jinja_path(r, &part, &args->more.items[0], &part)))
            return false;
        yes = part;
        if (test && !jinja_call_builtin(r, test, &part, &rest, &args->named, &yes))
            return false;
        if (jinja_truth(&yes) == keep && !jinja_push(r, out->list, items->items[i]))
            return false;
    }
    return true;
}

FILTER(select_)
{
    return choose(r, v, args, false, true, out);
}

FILTER(reject)
{
    return choose(r, v, args, false, false, out);
}

FILTER(selectattr)
{
    return choose(r, v, args, true, true, out);
}

FILTER(rejectattr)
{
    return choose(r, v, args, true, false, out);
}

/* --- by order --- */

/* Sets *out to the key by which an item is ordered: the item or its attribute, in small letters unless
 * `cases`. */
static bool order_key(struct jinja_run *r, const struct jinja_value *item, const struct jinja_args *args,
                      int attribute, bool cases, struct jinja_value *out)
{
    struct jinja_value part;
    if (!part_of(r, item, args, attribute, &part))
        return false;
    *out = part;
    return cases || part.kind != JINJA_TEXT || jinja_recase(r, part.text, JINJA_LOWER, out);
}

struct sorting {
    struct jinja_value key, item;
};

/* Merges neighbouring runs of `width` items from `from` into `to`. The sort is stable. */
static bool merge(struct jinja_run *r, const struct sorting *from, struct sorting *to, size_t n, size_t width,
                  bool down)
{
    for (size_t start = 0; start < n; start += 2 * width) {
        size_t a = start, middle = start + width < n ? start + width : n, b = middle;
        size_t end = start + 2 * width < n ? start + 2 * width : n;
        for (size_t k = start; k < end; k++) {
            int order = 0;
            assert(a < middle || b < end);
            if (a < middle && b < end && !jinja_order(r, &from[a].key, &from[b].key, &order))
                return false;
            bool left = a < middle && (b >= end || (down ? order >= 0 : order <= 0));
            to[k] = left ? from[a++] : from[b++];
        }
    }
    return true;
}

static bool sort_all(struct jinja_run *r, struct sorting *all, size_t n, bool down, struct jinja_value *out)
{
    struct sorting *other = jinja_alloc(r, (n + 1) * sizeof *other);
    if (!other || !jinja_open_list(r, out))
        return false;
    for (size_t width = 1; width < n; width *= 2) {
        struct sorting *from = all;
        if (!merge(r, all, other, n, width, down))
            return false;
        all = other;
        other = from;
    }
    for (size_t i = 0; i < n; i++)
        if (!jinja_push(r, out->list, all[i].item))
            return false;
    return true;
}

static bool flag(const struct jinja_args *args, int i)
{
    return args->given[i] && jinja_truth(&args->values[i]);
}

FILTER(sort)
{
    struct jinja_list *items;
    if (!jinja_items(r, v, &items))
        return false;
    struct sorting *all = jinja_alloc(r, (items->n + 1) * sizeof *all);
    for (size_t i = 0; i < items->n; i++) {
        if (!all || !order_key(r, &items->items[i], args, 2, flag(args, 1), &all[i].key))
            return false;
        all[i].item = items->items[i];
    }
    return all && sort_all(r, all, items->n, flag(args, 0), out);
}

FILTER(items)
{
    (void)args;
    if (v->kind == JINJA_UNDEFINED)
        return open_generated(r, out);
    if (v->kind != JINJA_DICT)
        return jinja_fail(r, -EBADMSG, "items needs a dict, not %s", jinja_kind_name(v));
    if (!jinja_pairs(r, v->dict, out))
        return false;
    out->list->generated = true;
    return true;
}

FILTER(dictsort)
{
    bool by_value =
        args->given[1] && args->values[1].kind == JINJA_TEXT && jinja_text_is(args->values[1].text, "value");
    struct jinja_value pairs, key;
    if (v->kind != JINJA_DICT)
        return jinja_fail(r, -EBADMSG, "dictsort needs a dict, not %s", jinja_kind_name(v));
    if (!jinja_pairs(r, v->dict, &pairs))
        return false;
    struct sorting *all = jinja_alloc(r, (pairs.list->n + 1) * sizeof *all);
    for (size_t i = 0; i < pairs.list->n; i++) {
        if (!all)
            return false;
        key = pairs.list->items[i].list->items[by_value];
        all[i] = (struct sorting){.key = key, .item = pairs.list->items[i]};
        if (key.kind == JINJA_TEXT && !flag(args, 0) && !jinja_recase(r, key.text, JINJA_LOWER, &all[i].key))
            return false;
    }
    return all && sort_all(r, all, pairs.list->n, flag(args, 2), out);
}

static bool extreme(struct jinja_run *r, const struct jinja_value *v, const struct jinja_args *args, int sign,
                    struct jinja_value *out)
{
    struct jinja_list *items;
    struct jinja_value key, best = {0};
    *out = undefined("item");
    if (!jinja_items(r, v, &items))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        int order = 0;
        if (!order_key(r, &items->items[i], args, 1, flag(args, 0), &key) ||
            (i && !jinja_order(r, &key, &best, &order)))
            return false;
        if (i && order * sign <= 0)
            continue;
        best = key;
        *out = items->items[i];
    }
    return true;
}

FILTER(min)
{
    return extreme(r, v, args, -1, out);
}

FILTER(max)
{
    return extreme(r, v, args, 1, out);
}

FILTER(sum)
{
    struct jinja_list *items;
    struct jinja_value part, more, total = args->given[1] ? args->values[1] : jinja_int(0);
    if (!jinja_items(r, v, &items))
        return false;
    for (size_t i = 0; i < items->n; i++)
        if (!jinja_work(r, 1) || !part_of(r, &items->items[i], args, 0, &part) ||
            !jinja_binary(r, '+', &total, &part, &more))
            return false;
        else
            total = more;
    *out = total;
    return true;
}

FILTER(unique)
{
    struct jinja_list *items;
    struct jinja_value keys, key;
    bool seen;
    if (!jinja_items(r, v, &items) || !open_generated(r, out) || !jinja_open_list(r, &keys))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        if (!order_key(r, &items->items[i], args, 1, flag(args, 0), &key) ||
            !jinja_contains(r, &keys, &key, &seen))
            return false;
        if (!seen && (!jinja_push(r, keys.list, key) || !jinja_push(r, out->list, items->items[i])))
            return false;
    }
    return true;
}

const struct jinja_builtin jinja_list_filters[] = {
    {.name = "default", .call = or_default, .params = {"default_value", "boolean"}},
    {.name = "d", .call = or_default, .params = {"default_value", "boolean"}},
    {.name = "length", .call = length},
    {.name = "count", .call = length},
    {.name = "list", .call = list},
    {.name = "first", .call = first},
    {.name = "last", .call = last},
    {.name = "reverse", .call = reverse},
    {.name = "join", .call = join, .params = {"d", "attribute"}},
    {.name = "attr", .call = attribute, .params = {"name"}, .n_required = 1},
    {.name = "map", .call = map, .variadic = true},
    {.name = "select", .call = select_, .variadic = true},
    {.name = "reject", .call = reject, .variadic = true},
    {.name = "selectattr", .call = selectattr, .variadic = true},
    {.name = "rejectattr", .call = rejectattr, .variadic = true},
    {.name = "sort", .call = sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "items", .call = items},
    {.name = "dictsort", .call = dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "min", .call = min, .params = {"case_sensitive", "attribute"}},
    {.name = "max", .call = max, .params = {"case_sensitive", "attribute"}},
    {.name = "sum", .call = sum, .params = {"attribute", "start"}},
    {.name = "unique", .call = unique, .params = {"case_sensitive", "attribute"}},
    {0},
};
