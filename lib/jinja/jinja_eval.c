/* jinja_eval.c - evaluates expressions. */
#include "jinja_run.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/* --- parts of values --- */

static struct jinja_value undefined(struct jinja_text name)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .text = name};
}

static bool is_undefined(struct jinja_run *r, const struct jinja_value *v)
{
    return jinja_fail(r, -EBADMSG, "\"%.*s\" is undefined", (int)(v->text.len < 80 ? v->text.len : 80),
                      v->text.s);
}

static bool bound(struct jinja_run *r, const struct jinja_value *self, const struct jinja_builtin *b,
                  struct jinja_value *out)
{
    struct jinja_method *m = jinja_alloc(r, sizeof *m);
    if (!m)
        return false;
    *m = (struct jinja_method){.self = *self, .builtin = b};
    *out = (struct jinja_value){.kind = JINJA_METHOD, .object = m};
    return true;
}

static bool neighbour(const struct jinja_loop *l, struct jinja_text name, struct jinja_value *out)
{
    bool next = jinja_text_is(name, "nextitem");
    if (!next && !jinja_text_is(name, "previtem"))
        return false;
    bool there = next ? l->i + 1 < l->items->n : l->i > 0;
    *out = there ? l->items->items[next ? l->i + 1 : l->i - 1] : undefined(name);
    return true;
}

static void loop_attribute(const struct jinja_value *v, struct jinja_text name, struct jinja_value *out)
{
    const struct jinja_loop *l = v->object;
    int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", i + 1}, {"index0", i},           {"revindex", n - i}, {"revindex0", n - i - 1},
                   {"length", n},    {"depth", l->depth + 1}, {"depth0", l->depth}};
    *out = undefined(name);
    if (jinja_text_is(name, "first"))
        *out = jinja_bool(i == 0);
    else if (jinja_text_is(name, "last"))
        *out = jinja_bool(i + 1 == n);
    else if (!neighbour(l, name, out))
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (jinja_text_is(name, numbers[k].name))
                *out = jinja_int(numbers[k].value);
}

bool jinja_attribute(struct jinja_run *r, const struct jinja_value *v, struct jinja_text name,
                     struct jinja_value *out)
{
    const struct jinja_builtin *method = jinja_find_method(name, v->kind);
    if (v->kind == JINJA_UNDEFINED)
        return is_undefined(r, v);
    if (method)
        return bound(r, v, method, out);
    *out = undefined(name);
    if (v->kind == JINJA_LOOP) {
        loop_attribute(v, name, out);
    } else if (v->kind == JINJA_DICT || v->kind == JINJA_NAMESPACE) {
        struct jinja_value key = jinja_string(name.s, name.len, false);
        const struct jinja_value *found = jinja_dict_find(v->dict, name.s, name.len);
        if (found)
            *out = *found;
        return jinja_work_keys(r, v->dict, &key);
    }
    return true;
}

/* Converts an index, which counts from the end when negative. Returns false when there is no such item. */
static bool index_of(int64_t i, size_t n, size_t *out)
{
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return false;
    *out = (size_t)i;
    return true;
}

static bool character(struct jinja_run *r, struct jinja_text text, int64_t i, struct jinja_value *out)
{
    size_t at;
    if (!jinja_work_bytes(r, 2 * JINJA_WALK * text.len))
        return false;
    if (!index_of(i, i < 0 ? jinja_text_length(text) : text.len, &at))
        return true;
    size_t from = jinja_text_at(text, at);
    if (from == text.len)
        return true;
    *out = jinja_string(text.s, 0, false);
    out->text = jinja_text_cut(text, from, from + jinja_char(text.s + from, text.len - from));
    return true;
}

bool jinja_item(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *key,
                struct jinja_value *out)
{
    bool whole = key->kind == JINJA_INT || key->kind == JINJA_BOOL;
    size_t at;
    if (v->kind == JINJA_UNDEFINED)
        return is_undefined(r, v);
    struct jinja_text name = key->kind == JINJA_TEXT ? key->text : jinja_text_of("item", 4);
    *out = undefined(name);
    switch (v->kind) {
    case JINJA_LIST:
    case JINJA_TUPLE:
        if (whole && index_of(jinja_integer(key), v->list->n, &at))
            *out = v->list->items[at];
        return true;
    case JINJA_TEXT:
        return !whole || character(r, v->text, jinja_integer(key), out);
    case JINJA_DICT:
        for (size_t i = 0; i < v->dict->n; i++) {
            bool same;
            if (!jinja_equal(r, &v->dict->pairs[i].key, key, &same))
                return false;
            if (same) {
                *out = v->dict->pairs[i].value;
                return true;
            }
        }
        return key->kind != JINJA_TEXT || jinja_attribute(r, v, key->text, out);
    default:
        return key->kind != JINJA_TEXT || jinja_attribute(r, v, key->text, out);
    }
}

/* Converts a part of a path: up to nine digits become an integer, other texts stay. */
static struct jinja_value path_key(const char *s, size_t n)
{
    struct jinja_value number = jinja_int(0);
    for (size_t i = 0; i < n; i++) {
        if (n > 9 || s[i] < '0' || s[i] > '9')
            return jinja_string(s, n, false);
        number.i = number.i * 10 + (s[i] - '0');
    }
    return n ? number : jinja_string(s, n, false);
}

bool jinja_path(struct jinja_run *r, const struct jinja_value *v, const struct jinja_value *path,
                struct jinja_value *out)
{
    struct jinja_value at = *v, key, part;
    if (path->kind != JINJA_TEXT)
        return jinja_item(r, v, path, out);
    for (struct jinja_text left = path->text; left.len;) {
        const char *dot = memchr(left.s, '.', left.len);
        size_t n = dot ? (size_t)(dot - left.s) : left.len;
        key = path_key(left.s, n);
        if (!jinja_work(r, 1) || !jinja_item(r, &at, &key, &part))
            return false;
        at = part;
        left = jinja_text_cut(left, dot ? n + 1 : n, left.len);
    }
    *out = at;
    return true;
}

bool jinja_items(struct jinja_run *r, const struct jinja_value *v, struct jinja_list **out)
{
    struct jinja_value list;
    if (v->kind == JINJA_LIST || v->kind == JINJA_TUPLE) {
        *out = v->list;
        return true;
    }
    if (v->kind != JINJA_UNDEFINED && v->kind != JINJA_TEXT && v->kind != JINJA_DICT)
        return jinja_fail(r, -EBADMSG, "%s is not iterable", jinja_kind_name(v));
    if (!jinja_open_list(r, &list))
        return false;
    *out = list.list;
    for (size_t i = 0; v->kind == JINJA_DICT && i < v->dict->n; i++)
        if (!jinja_push(r, *out, v->dict->pairs[i].key))
            return false;
    for (size_t at = 0, n; v->kind == JINJA_TEXT && at < v->text.len; at += n) {
        struct jinja_value one = *v;
        n = jinja_char(v->text.s + at, v->text.len - at);
        one.text = jinja_text_cut(v->text, at, at + n);
        if (!jinja_work(r, 1) || !jinja_push(r, *out, one))
            return false;
    }
    return true;
}

/* --- slices --- */

struct slice {
    struct jinja_range range;
    bool has_from, has_to;
};

static bool eval_bound(struct jinja_run *r, const struct jinja_node *n, int64_t *out, bool *given)
{
    struct jinja_value v;
    if (!n)
        return true;
    if (!jinja_eval(r, n, &v))
        return false;
    if (v.kind == JINJA_NONE)
        return true;
    if (v.kind != JINJA_INT && v.kind != JINJA_BOOL)
        return jinja_fail(r, -EBADMSG, "a slice needs integers, not %s", jinja_kind_name(&v));
    *out = jinja_integer(&v);
    *given = true;
    return true;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
}

/* Limits a slice to n items, as Python's slice.indices(n). */
static void fit(struct slice *s, int64_t n)
{
    struct jinja_range *range = &s->range;
    bool down = range->step < 0;
    assert(n >= 0 && range->step != 0);
    int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    range->from = s->has_from ? clamp(range->from, n, low, high) : down ? high : low;
    range->to = s->has_to ? clamp(range->to, n, low, high) : down ? low : high;
}

static bool slice_list(struct jinja_run *r, const struct jinja_value *v, struct slice s,
                       struct jinja_value *out)
{
    int64_t i;
    fit(&s, (int64_t)v->list->n);
    if (!jinja_open_list(r, out))
        return false;
    out->kind = v->kind;
    while (jinja_range_next(&s.range, &i))
        if (!jinja_work(r, 1) || !jinja_push(r, out->list, v->list->items[i]))
            return false;
    return true;
}

static bool slice_text(struct jinja_run *r, const struct jinja_value *v, struct slice s,
                       struct jinja_value *out)
{
    struct jinja_out text = {.max = r->limits.memory};
    struct jinja_list *all;
    int64_t i;
    if (s.range.step == 1) {
        if (!jinja_work_bytes(r, 2 * JINJA_WALK * v->text.len))
            return false;
        fit(&s, (int64_t)jinja_text_length(v->text));
        size_t from = jinja_text_at(v->text, (size_t)s.range.from);
        size_t to = s.range.to > s.range.from ? jinja_text_at(v->text, (size_t)s.range.to) : from;
        *out = *v;
        out->text = jinja_text_cut(v->text, from, to);
        return true;
    }
    if (!jinja_items(r, v, &all))
        return false;
    fit(&s, (int64_t)all->n);
    while (jinja_range_next(&s.range, &i))
        if (!jinja_work(r, 1) || !jinja_put(r, &text, all->items[i].text))
            return false;
    *out = jinja_written(&text);
    return true;
}

static bool eval_slice(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value v;
    struct slice s = {.range.step = 1};
    bool has_step = false;
    if (!jinja_eval(r, n->a, &v) || !eval_bound(r, n->b, &s.range.from, &s.has_from) ||
        !eval_bound(r, n->c, &s.range.to, &s.has_to) || !eval_bound(r, n->d, &s.range.step, &has_step))
        return false;
    if (!s.range.step)
        return jinja_fail(r, -EBADMSG, "a slice with step 0");
    if (v.kind == JINJA_UNDEFINED)
        return is_undefined(r, &v);
    if (v.kind == JINJA_TEXT)
        return slice_text(r, &v, s, out);
    if (v.kind == JINJA_LIST || v.kind == JINJA_TUPLE)
        return slice_list(r, &v, s, out);
    return jinja_fail(r, -EBADMSG, "%s cannot be sliced", jinja_kind_name(&v));
}

/* --- literals --- */

static bool eval_list(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value item;
    if (!jinja_open_list(r, out))
        return false;
    if (n->kind == NODE_TUPLE)
        out->kind = JINJA_TUPLE;
    for (const struct jinja_node *one = n->list; one; one = one->next)
        if (!jinja_eval(r, one, &item) || !jinja_push(r, out->list, item))
            return false;
    return true;
}

static bool can_be_key(const struct jinja_value *v)
{
    return v->kind == JINJA_TEXT || v->kind == JINJA_NONE || v->kind == JINJA_TUPLE || jinja_is_number(v);
}

static bool eval_dict(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value key, value;
    if (!jinja_open_dict(r, out))
        return false;
    for (const struct jinja_node *one = n->list; one; one = one->next) {
        if (!jinja_eval(r, one->a, &key) || !jinja_eval(r, one->b, &value))
            return false;
        if (!can_be_key(&key))
            return jinja_fail(r, -EBADMSG, "%s cannot be the key of a dict", jinja_kind_name(&key));
        if (!jinja_put_pair(r, out->dict, key, value))
            return false;
    }
    return true;
}

/* --- operators --- */

static bool eval_logic(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    if (!jinja_eval(r, n->a, out))
        return false;
    return jinja_truth(out) == (n->kind == NODE_OR) || jinja_eval(r, n->b, out);
}

static bool eval_comparison(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;
    if (!jinja_eval(r, n->a, &left))
        return false;
    for (const struct jinja_node *one = n->list; holds && one; one = one->next) {
        if (!jinja_eval(r, one->a, &right) || !jinja_compare(r, one->op, &left, &right, &holds))
            return false;
        left = right;
    }
    *out = jinja_bool(holds);
    return true;
}

static bool eval_concat(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_out text = {.max = r->limits.memory};
    struct jinja_value part;
    for (const struct jinja_node *one = n->list; one; one = one->next)
        if (!jinja_eval(r, one, &part) || !jinja_print(r, &text, &part))
            return false;
    *out = jinja_written(&text);
    return true;
}

static bool eval_sign(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value zero = jinja_int(0), v;
    if (!jinja_eval(r, n->a, &v))
        return false;
    if (!jinja_is_number(&v))
        return v.kind == JINJA_UNDEFINED ? is_undefined(r, &v)
                                         : jinja_fail(r, -EBADMSG, "%s has no sign", jinja_kind_name(&v));
    if (v.kind == JINJA_FLOAT) {
        *out = jinja_float(n->kind == NODE_NEGATIVE ? -v.f : v.f);
        return true;
    }
    return jinja_binary(r, n->kind == NODE_NEGATIVE ? '-' : '+', &zero, &v, out);
}

static bool eval_choice(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value test;
    if (!jinja_eval(r, n->b, &test))
        return false;
    if (jinja_truth(&test))
        return jinja_eval(r, n->a, out);
    *out = undefined(jinja_text_of("else", 4));
    return !n->c || jinja_eval(r, n->c, out);
}

/* --- calls --- */

bool jinja_eval_arguments(struct jinja_run *r, const struct jinja_node *list, struct jinja_list *args,
                          struct jinja_dict *named)
{
    struct jinja_value v;
    for (; list; list = list->next) {
        bool keyword = list->kind == NODE_KEYWORD;
        if (!jinja_eval(r, keyword ? list->a : list, &v))
            return false;
        if (keyword ? !jinja_put_pair(r, named, jinja_string(list->text.s, list->text.len, false), v)
                    : !jinja_push(r, args, v))
            return false;
    }
    return true;
}

static bool bind_named(struct jinja_run *r, const struct jinja_builtin *b, const struct jinja_dict *named,
                       struct jinja_args *out)
{
    for (size_t i = 0; named && i < named->n; i++) {
        struct jinja_text name = named->pairs[i].key.text;
        int param = jinja_find_param(b, name);
        if (param >= 0) {
            if (out->given[param])
                return jinja_fail(r, -EBADMSG, "%s: %s is given twice", b->name, b->params[param]);
            out->values[param] = named->pairs[i].value;
            out->given[param] = true;
        } else if (!b->variadic) {
            return jinja_fail(r, -EBADMSG, "%s has no argument %.*s", b->name,
                              (int)(name.len < 40 ? name.len : 40), name.s);
        } else if (!jinja_put_pair(r, &out->named, named->pairs[i].key, named->pairs[i].value)) {
            return false;
        }
    }
    return true;
}

bool jinja_call_builtin(struct jinja_run *r, const struct jinja_builtin *b, const struct jinja_value *self,
                        const struct jinja_list *args, const struct jinja_dict *named,
                        struct jinja_value *out)
{
    struct jinja_args bound_args = {0};
    size_t n_params = 0;
    while (n_params < JINJA_MAX_PARAMS && b->params[n_params])
        n_params++;
    for (size_t i = 0; args && i < args->n; i++) {
        if (i < n_params) {
            bound_args.values[i] = args->items[i];
            bound_args.given[i] = true;
        } else if (!b->variadic) {
            return jinja_fail(r, -EBADMSG, "%s takes at most %zu arguments", b->name, n_params);
        } else if (!jinja_push(r, &bound_args.more, args->items[i])) {
            return false;
        }
    }
    if (!bind_named(r, b, named, &bound_args))
        return false;
    for (unsigned i = 0; i < b->n_required; i++)
        if (!bound_args.given[i])
            return jinja_fail(r, -EBADMSG, "%s needs its argument %s", b->name, b->params[i]);
    return jinja_work(r, JINJA_OPERATION) && b->call(r, self, &bound_args, out);
}

static bool call_value(struct jinja_run *r, const struct jinja_value *callee, const struct jinja_list *args,
                       const struct jinja_dict *named, struct jinja_value *out)
{
    struct jinja_value no_self = undefined(jinja_text_of("self", 4));
    const struct jinja_method *m = callee->object;
    switch (callee->kind) {
    case JINJA_MACRO:
        return jinja_call_macro(r, callee->object, args, named, out);
    case JINJA_FUNCTION:
        return jinja_call_builtin(r, callee->object, &no_self, args, named, out);
    case JINJA_METHOD:
        return jinja_call_builtin(r, m->builtin, &m->self, args, named, out);
    case JINJA_UNDEFINED:
        return is_undefined(r, callee);
    default:
        return jinja_fail(r, -EBADMSG, "%s cannot be called", jinja_kind_name(callee));
    }
}

static bool eval_call(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value callee;
    struct jinja_list args = {0};
    struct jinja_dict named = {0};
    return jinja_eval(r, n->a, &callee) && jinja_eval_arguments(r, n->list, &args, &named) &&
           call_value(r, &callee, &args, &named, out);
}

static bool eval_filter(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value self;
    struct jinja_list args = {0};
    struct jinja_dict named = {0};
    return jinja_eval(r, n->a, &self) && jinja_eval_arguments(r, n->list, &args, &named) &&
           jinja_call_builtin(r, n->builtin, &self, &args, &named, out);
}

/* --- all --- */

static bool eval_node(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    struct jinja_value a, b;
    switch (n->kind) {
    case NODE_CONST:
        *out = n->value;
        return true;
    case NODE_NAME:
        return jinja_look_up(r, n->symbol, out);
    case NODE_BLOCK:
        *out = *r->block;
        return true;
    case NODE_LIST:
    case NODE_TUPLE:
        return eval_list(r, n, out);
    case NODE_DICT:
        return eval_dict(r, n, out);
    case NODE_ATTR:
        return jinja_eval(r, n->a, &a) && jinja_attribute(r, &a, n->text, out);
    case NODE_ITEM:
        return jinja_eval(r, n->a, &a) && jinja_eval(r, n->b, &b) && jinja_item(r, &a, &b, out);
    case NODE_SLICE:
        return eval_slice(r, n, out);
    case NODE_CALL:
        return eval_call(r, n, out);
    case NODE_FILTER:
    case NODE_TEST:
        return eval_filter(r, n, out);
    case NODE_NOT:
        if (!jinja_eval(r, n->a, &a))
            return false;
        *out = jinja_bool(!jinja_truth(&a));
        return true;
    case NODE_NEGATIVE:
    case NODE_POSITIVE:
        return eval_sign(r, n, out);
    case NODE_BINARY:
        return jinja_eval(r, n->a, &a) && jinja_eval(r, n->b, &b) && jinja_binary(r, n->op, &a, &b, out);
    case NODE_AND:
    case NODE_OR:
        return eval_logic(r, n, out);
    case NODE_COMPARE:
        return eval_comparison(r, n, out);
    case NODE_CONCAT:
        return eval_concat(r, n, out);
    case NODE_CHOICE:
        return eval_choice(r, n, out);
    default:
        return jinja_fail(r, -EBADMSG, "no expression");
    }
}

bool jinja_eval(struct jinja_run *r, const struct jinja_node *n, struct jinja_value *out)
{
    if (!jinja_work(r, 1) || !jinja_deeper(r))
        return false;
    r->line = n->line;
    bool ok = eval_node(r, n, out);
    assert(r->depth > 0);
    r->depth--;
    return ok;
}
