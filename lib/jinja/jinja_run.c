/* jinja_run.c - the state of a render: errors, counting, names, and texts that grow. */
#include "jinja_run.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --- failing and counting --- */

bool jinja_fail(struct jinja_run *r, int code, const char *fmt, ...)
{
    char words[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(words, sizeof words, fmt, ap);
    va_end(ap);
    if (!r->rc)
        r->rc = error_set(r->err, code, "line %u: %s", r->line, words);
    return false;
}

bool jinja_fail_with(struct jinja_run *r, int code, struct jinja_text words)
{
    size_t n = words.len < 300 ? words.len : 300;
    if (!r->rc)
        r->rc = error_set(r->err, code, "%.*s", (int)n, words.s);
    return false;
}

bool jinja_work_bytes(struct jinja_run *r, size_t n)
{
    if (r->work_left < n) {
        r->work_left = 0;
        return jinja_fail(r, -ELOOP, "more than %u operations", r->limits.operations);
    }
    r->work_left -= n;
    return true;
}

bool jinja_work(struct jinja_run *r, size_t n)
{
    return jinja_work_bytes(r, n < SIZE_MAX / JINJA_BYTES ? n * JINJA_BYTES : SIZE_MAX);
}

/* The C library computes the digits of large and small numbers one by one, at up to 25 ns each. */
bool jinja_work_digits(struct jinja_run *r, size_t n)
{
    return jinja_work(r, 4 + n / 2);
}

bool jinja_work_keys(struct jinja_run *r, const struct jinja_dict *d, const struct jinja_value *key)
{
    size_t n = 0, len = key->kind == JINJA_TEXT ? key->text.len : 0;
    for (size_t i = 0; len >= JINJA_BYTES && i < d->n; i++)
        n += d->pairs[i].key.kind == JINJA_TEXT && d->pairs[i].key.text.len == len ? len : 0;
    return jinja_work(r, d->n / 8) && jinja_work_bytes(r, n);
}

bool jinja_deeper(struct jinja_run *r)
{
    if (r->depth == JINJA_MAX_FRAMES)
        return jinja_fail(r, -ELOOP, "more than %d nested calls and expressions", JINJA_MAX_FRAMES);
    r->depth++;
    return true;
}

static bool check_memory(struct jinja_run *r, size_t more)
{
    size_t used = r->arena->total - r->arena_start;
    if (used <= r->limits.memory && more <= r->limits.memory - used)
        return true;
    return jinja_fail(r, -ENOSPC, "more than %zu bytes of memory", r->limits.memory);
}

static bool out_of_memory(struct jinja_run *r)
{
    return jinja_fail(r, -ENOMEM, "out of memory");
}

void *jinja_alloc(struct jinja_run *r, size_t n)
{
    void *p = check_memory(r, n) ? arena_zalloc(r->arena, n) : NULL;
    if (!p)
        out_of_memory(r);
    return p;
}

bool jinja_push(struct jinja_run *r, struct jinja_list *list, struct jinja_value item)
{
    if (!check_memory(r, list->n == list->room ? 2 * list->n * sizeof item : 0))
        return false;
    return jinja_list_add(r->arena, list, item) == 0 || out_of_memory(r);
}

bool jinja_put_pair(struct jinja_run *r, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value)
{
    if (!jinja_work(r, 1 + dict->n / 8) ||
        !check_memory(r, dict->n == dict->room ? 4 * dict->n * sizeof key : 0))
        return false;
    for (size_t i = 0; i < dict->n; i++) {
        bool same;
        if (!jinja_equal(r, &dict->pairs[i].key, &key, &same))
            return false;
        if (same) {
            dict->pairs[i].value = value;
            return true;
        }
    }
    return jinja_dict_add(r->arena, dict, key, value) == 0 || out_of_memory(r);
}

bool jinja_open_list(struct jinja_run *r, struct jinja_value *out)
{
    struct jinja_list *list = jinja_alloc(r, sizeof *list);
    *out = jinja_list_value(list);
    return list != NULL;
}

bool jinja_open_dict(struct jinja_run *r, struct jinja_value *out)
{
    struct jinja_dict *dict = jinja_alloc(r, sizeof *dict);
    *out = jinja_dict_value(dict);
    return dict != NULL;
}

/* --- names --- */

bool jinja_open_frame(struct jinja_run *r, struct jinja_frame *outer, struct jinja_frame **out)
{
    *out = jinja_alloc(r, sizeof **out);
    if (!*out)
        return false;
    (*out)->outer = outer;
    return true;
}

/* Finds a variable in frame f or, when `outside`, in the innermost frame that has it. *n counts the variables
 * and frames that were passed. */
static struct jinja_variable *find_variable(struct jinja_frame *f, uint32_t symbol, bool outside, size_t *n)
{
    *n = 0;
    for (; f; f = outside ? f->outer : NULL, ++*n)
        for (struct jinja_variable *v = f->variables; v; v = v->next, ++*n)
            if (v->symbol == symbol)
                return v;
    return NULL;
}

bool jinja_assign(struct jinja_run *r, struct jinja_frame *f, uint32_t symbol, struct jinja_value value)
{
    size_t n;
    struct jinja_variable *v = find_variable(f, symbol, false, &n);
    if (!jinja_work(r, n / JINJA_NAMES))
        return false;
    if (v) {
        v->value = value;
        return true;
    }
    v = jinja_alloc(r, sizeof *v);
    if (!v)
        return false;
    *v = (struct jinja_variable){.symbol = symbol, .value = value, .next = f->variables};
    f->variables = v;
    return true;
}

bool jinja_look_up(struct jinja_run *r, uint32_t symbol, struct jinja_value *out)
{
    assert(symbol < r->t->n_symbols);
    const struct jinja_symbol *s = &r->t->symbols[symbol];
    size_t n;
    const struct jinja_variable *v = find_variable(r->frame, symbol, true, &n);
    if (v)
        *out = v->value;
    else if (s->function && (r->now || !jinja_text_is(s->name, "strftime_now")))
        *out = (struct jinja_value){.kind = JINJA_FUNCTION, .object = s->function};
    else
        *out = (struct jinja_value){.kind = JINJA_UNDEFINED, .text = s->name};
    return jinja_work(r, n / JINJA_NAMES);
}

/* --- texts --- */

bool jinja_is_plain(struct jinja_text t, size_t i)
{
    return t.plain && (t.plain == jinja_all_plain || t.plain[i]);
}

static bool make_room(struct jinja_run *r, struct jinja_out *out, size_t n)
{
    assert(out->len <= out->max && out->len <= out->room);
    if (n > out->max - out->len)
        return jinja_fail(r, -E2BIG, "a text of more than %zu bytes", out->max);
    if (n <= out->room - out->len)
        return true;
    size_t room = 2 * (out->len + n) + 64;
    if (!check_memory(r, 2 * room))
        return false;
    char *s = arena_grow(r->arena, out->s, out->room, room);
    if (!s)
        return out_of_memory(r);
    out->s = s;
    if (out->plain) {
        unsigned char *plain = arena_grow(r->arena, out->plain, out->room, room);
        if (!plain)
            return out_of_memory(r);
        out->plain = plain;
    }
    out->room = room;
    return true;
}

static bool open_marks(struct jinja_run *r, struct jinja_out *out)
{
    if (!out->plain && !(out->plain = arena_alloc(r->arena, out->room)))
        return out_of_memory(r);
    memset(out->plain, 0, out->len);
    return true;
}

bool jinja_put(struct jinja_run *r, struct jinja_out *out, struct jinja_text text)
{
    if (!text.len)
        return true;
    if (!jinja_work_bytes(r, text.len + JINJA_PIECE) || !make_room(r, out, text.len))
        return false;
    if (text.plain && !out->plain && !open_marks(r, out))
        return false;
    assert(text.len <= out->room - out->len);
    memcpy(out->s + out->len, text.s, text.len);
    if (out->plain && text.plain && text.plain != jinja_all_plain)
        memcpy(out->plain + out->len, text.plain, text.len);
    else if (out->plain)
        memset(out->plain + out->len, text.plain != NULL, text.len);
    out->len += text.len;
    return true;
}

bool jinja_put_bytes(struct jinja_run *r, struct jinja_out *out, const char *s, size_t n, bool plain)
{
    return jinja_put(r, out, (struct jinja_text){s, n, plain ? jinja_all_plain : NULL});
}

struct jinja_value jinja_written(const struct jinja_out *out)
{
    struct jinja_value v = jinja_string(out->s ? out->s : "", out->len, false);
    v.text.plain = out->plain;
    return v;
}
