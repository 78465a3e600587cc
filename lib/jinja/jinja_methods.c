/* jinja_methods.c - the methods of strings: Python's. */
#include "jinja_run.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define METHOD(name)                                                                                         \
    static bool name(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,     \
                     struct jinja_value *out)

static struct jinja_value text_value(struct jinja_text text)
{
    return (struct jinja_value){.kind = JINJA_TEXT, .text = text};
}

/* Reads an argument that must be a string. With `or_none` a None counts as absent, which leaves *out. */
static bool text_argument(struct jinja_run *r, const struct jinja_args *args, int i, bool or_none,
                          struct jinja_text *out, bool *given)
{
    const struct jinja_value *v = &args->values[i];
    *given = args->given[i] && !(or_none && v->kind == JINJA_NONE);
    if (!*given)
        return true;
    if (v->kind != JINJA_TEXT)
        return jinja_fail(r, -EBADMSG, "a string is needed, not %s", jinja_kind_name(v));
    *out = v->text;
    return true;
}

/* --- cases --- */

static bool begins_word(unsigned char before, enum jinja_case how)
{
    return how == JINJA_TITLE ? !isalpha(before) : isspace(before) || jinja_among((char)before, "-({[<");
}

bool jinja_recase(struct jinja_run *r, struct jinja_text text, enum jinja_case how, struct jinja_value *out)
{
    /* In a title each letter looks at the one before. */
    size_t times = how >= JINJA_TITLE ? 3 * JINJA_WALK : JINJA_WALK;
    char *s = jinja_work_bytes(r, times * text.len) ? jinja_alloc(r, text.len + 1) : NULL;
    if (!s)
        return false;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.s[i];
        bool upper = how == JINJA_UPPER || (how == JINJA_CAPITAL && !i) ||
                     (how >= JINJA_TITLE && (!i || begins_word((unsigned char)text.s[i - 1], how)));
        s[i] = (char)(c >= 0x80 ? c : upper ? toupper(c) : tolower(c));
    }
    text.s = s;
    *out = text_value(text);
    return true;
}

METHOD(upper)
{
    (void)args;
    return jinja_recase(r, self->text, JINJA_UPPER, out);
}

METHOD(lower)
{
    (void)args;
    return jinja_recase(r, self->text, JINJA_LOWER, out);
}

METHOD(capitalize)
{
    (void)args;
    return jinja_recase(r, self->text, JINJA_CAPITAL, out);
}

METHOD(title)
{
    (void)args;
    return jinja_recase(r, self->text, JINJA_TITLE, out);
}

/* --- ends --- */

static bool is_one_of(struct jinja_text chars, const char *s, size_t n)
{
    for (size_t at = 0, len; at < chars.len; at += len) {
        len = jinja_char(chars.s + at, chars.len - at);
        if (len == n && !memcmp(chars.s + at, s, n))
            return true;
    }
    return false;
}

static size_t last_char(const char *s, size_t n)
{
    size_t len = 1;
    while (len < 4 && len < n && jinja_char(s + n - len, len) != len)
        len++;
    return jinja_char(s + n - len, len) == len ? len : 1;
}

bool jinja_trim(struct jinja_run *r, struct jinja_text text, const struct jinja_value *chars, bool left,
                bool right, struct jinja_value *out)
{
    size_t from = 0, to = text.len, n;
    if (!jinja_work_bytes(r, text.len))
        return false;
    if (!chars || chars->kind == JINJA_NONE) {
        *out = text_value(jinja_strip(text, left, right));
        return jinja_work_bytes(r, JINJA_WALK * (text.len - out->text.len));
    }
    if (chars->kind != JINJA_TEXT)
        return jinja_fail(r, -EBADMSG, "strip needs a string of characters, not %s", jinja_kind_name(chars));
    for (; left && from < to; from += n) {
        n = jinja_char(text.s + from, to - from);
        if (!jinja_work_bytes(r, JINJA_WALK * (n + chars->text.len)))
            return false;
        if (!is_one_of(chars->text, text.s + from, n))
            break;
    }
    for (; right && from < to; to -= n) {
        n = last_char(text.s + from, to - from);
        if (!jinja_work_bytes(r, JINJA_WALK * (n + chars->text.len)))
            return false;
        if (!is_one_of(chars->text, text.s + to - n, n))
            break;
    }
    *out = text_value(jinja_text_cut(text, from, to));
    return true;
}

METHOD(strip)
{
    return jinja_trim(r, self->text, args->given[0] ? &args->values[0] : NULL, true, true, out);
}

METHOD(lstrip)
{
    return jinja_trim(r, self->text, args->given[0] ? &args->values[0] : NULL, true, false, out);
}

METHOD(rstrip)
{
    return jinja_trim(r, self->text, args->given[0] ? &args->values[0] : NULL, false, true, out);
}

static bool has_end(struct jinja_run *r, struct jinja_text text, struct jinja_text end, bool begins,
                    bool *out)
{
    *out = end.len <= text.len &&
           (!end.len || !memcmp(text.s + (begins ? 0 : text.len - end.len), end.s, end.len));
    return jinja_work_bytes(r, end.len);
}

static bool ends_with(struct jinja_run *r, const struct jinja_value *self, const struct jinja_value *end,
                      bool begins, struct jinja_value *out)
{
    bool several = end->kind == JINJA_TUPLE;
    const struct jinja_value *ends = several ? end->list->items : end;
    *out = jinja_bool(false);
    for (size_t i = 0; i < (several ? end->list->n : 1); i++) {
        if (ends[i].kind != JINJA_TEXT)
            return jinja_fail(r, -EBADMSG, "a string is needed, not %s", jinja_kind_name(&ends[i]));
        bool has;
        if (!has_end(r, self->text, ends[i].text, begins, &has))
            return false;
        out->b |= has;
    }
    return true;
}

METHOD(startswith)
{
    return ends_with(r, self, &args->values[0], true, out);
}

METHOD(endswith)
{
    return ends_with(r, self, &args->values[0], false, out);
}

static bool remove_end(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,
                       bool begins, struct jinja_value *out)
{
    struct jinja_text end = {0}, text = self->text;
    bool given, has;
    if (!text_argument(r, args, 0, false, &end, &given) || !has_end(r, text, end, begins, &has))
        return false;
    *out = *self;
    if (given && has)
        out->text = jinja_text_cut(text, begins ? end.len : 0, begins ? text.len : text.len - end.len);
    return true;
}

METHOD(removeprefix)
{
    return remove_end(r, self, args, true, out);
}

METHOD(removesuffix)
{
    return remove_end(r, self, args, false, out);
}

/* --- splitting --- */

/* Appends the text [from, to) to the list. */
static bool push_part(struct jinja_run *r, const struct jinja_value *list, struct jinja_text text,
                      size_t from, size_t to)
{
    return jinja_work(r, 1) && jinja_push(r, list->list, text_value(jinja_text_cut(text, from, to)));
}

static void turn_round(struct jinja_list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jinja_value other = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = other;
    }
}

/* Cuts at most `max` times, and every cut has added one part: out->list->n counts them. */
static bool split_space(struct jinja_run *r, struct jinja_text t, size_t max, struct jinja_value *out)
{
    size_t from = 0, n;
    while ((n = jinja_space(t.s + from, t.len - from)))
        from += n;
    while (from < t.len) {
        size_t to = from;
        if (out->list->n == max)
            return push_part(r, out, t, from, t.len);
        while (to < t.len && !jinja_space(t.s + to, t.len - to))
            to += jinja_char(t.s + to, t.len - to);
        if (!push_part(r, out, t, from, to))
            return false;
        for (from = to; (n = jinja_space(t.s + from, t.len - from));)
            from += n;
    }
    return true;
}

static bool rsplit_space(struct jinja_run *r, struct jinja_text t, size_t max, struct jinja_value *out)
{
    size_t to = jinja_strip(t, false, true).len, n;
    while (to) {
        size_t from = to;
        if (out->list->n == max) {
            if (!push_part(r, out, t, 0, to))
                return false;
            break;
        }
        while (from && !jinja_space_before(t.s, from))
            from -= last_char(t.s, from);
        if (!push_part(r, out, t, from, to))
            return false;
        for (to = from; (n = jinja_space_before(t.s, to));)
            to -= n;
    }
    turn_round(out->list);
    return true;
}

static bool split_at(struct jinja_run *r, struct jinja_text t, struct jinja_text sep, size_t max,
                     struct jinja_value *out)
{
    size_t from = 0;
    const char *found;
    while (out->list->n < max && from < t.len && (found = memmem(t.s + from, t.len - from, sep.s, sep.len))) {
        size_t at = (size_t)(found - t.s);
        if (!push_part(r, out, t, from, at))
            return false;
        from = at + sep.len;
    }
    return push_part(r, out, t, from, t.len);
}

/* Tells whether `what`, which is not empty, stands at t.s + at. A search from the end calls this for every
 * place, and any of them may cost the length of `what`. */
static bool stands_at(struct jinja_run *r, struct jinja_text t, size_t at, struct jinja_text what, bool *out)
{
    *out = t.len - at >= what.len && t.s[at] == what.s[0];
    if (!*out)
        return jinja_work_bytes(r, 2 * JINJA_WALK);
    *out = !memcmp(t.s + at, what.s, what.len);
    return jinja_work_bytes(r, 2 * JINJA_WALK + what.len);
}

static bool rsplit_at(struct jinja_run *r, struct jinja_text t, struct jinja_text sep, size_t max,
                      struct jinja_value *out)
{
    size_t to = t.len;
    for (size_t at = to; out->list->n < max && at-- > 0;) {
        bool here;
        if (!stands_at(r, jinja_text_cut(t, 0, to), at, sep, &here))
            return false;
        if (!here)
            continue;
        if (!push_part(r, out, t, at + sep.len, to))
            return false;
        to = at;
    }
    if (!push_part(r, out, t, 0, to))
        return false;
    turn_round(out->list);
    return true;
}

static bool split_any(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,
                      bool right, struct jinja_value *out)
{
    struct jinja_text sep = {0};
    bool given;
    size_t max = SIZE_MAX;
    if (!text_argument(r, args, 0, true, &sep, &given) || !jinja_limit_argument(r, args, 1, &max) ||
        !jinja_work_bytes(r, (given ? JINJA_SEARCH : 2 * JINJA_WALK) * self->text.len) ||
        !jinja_open_list(r, out))
        return false;
    if (!given)
        return right ? rsplit_space(r, self->text, max, out) : split_space(r, self->text, max, out);
    if (!sep.len)
        return jinja_fail(r, -EBADMSG, "an empty separator");
    return right ? rsplit_at(r, self->text, sep, max, out) : split_at(r, self->text, sep, max, out);
}

METHOD(split)
{
    return split_any(r, self, args, false, out);
}

METHOD(rsplit)
{
    return split_any(r, self, args, true, out);
}

/* Returns the bytes of the line end at s, by the rule of Python's splitlines(); 0 when there is none. */
static size_t line_end(const char *s, size_t n)
{
    static const char *const wide[] = {"\r\n", "\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (n >= strlen(wide[i]) && !memcmp(s, wide[i], strlen(wide[i])))
            return strlen(wide[i]);
    return n && jinja_among(*s, "\n\r\v\f\x1c\x1d\x1e");
}

size_t jinja_line(struct jinja_text t, size_t from, size_t *next)
{
    size_t to = from, n = 0;
    while (to < t.len && !(n = line_end(t.s + to, t.len - to)))
        to++;
    *next = to + n;
    return to;
}

METHOD(splitlines)
{
    struct jinja_text t = self->text;
    bool keep = args->given[0] && jinja_truth(&args->values[0]);
    if (!jinja_work_bytes(r, JINJA_WALK * t.len) || !jinja_open_list(r, out))
        return false;
    for (size_t from = 0, next; from < t.len; from = next) {
        size_t end = jinja_line(t, from, &next);
        if (!push_part(r, out, t, from, keep ? next : end))
            return false;
    }
    return true;
}

/* --- finding and replacing --- */

bool jinja_replace(struct jinja_run *r, struct jinja_text text, struct jinja_text old, struct jinja_text by,
                   size_t max, struct jinja_value *out)
{
    struct jinja_out made = {.max = r->limits.memory};
    size_t from = 0, at = 0;
    if (!jinja_work_bytes(r, (old.len ? JINJA_SEARCH : JINJA_WALK) * text.len))
        return false;
    for (size_t n = 0; n < max && at + old.len <= text.len; n++) {
        const char *found = old.len ? memmem(text.s + at, text.len - at, old.s, old.len) : text.s + at;
        if (!found)
            break;
        size_t hit = (size_t)(found - text.s);
        if (!jinja_work(r, 1) || !jinja_put(r, &made, jinja_text_cut(text, from, hit)) ||
            !jinja_put(r, &made, by))
            return false;
        from = hit + old.len;
        at = old.len ? from : hit + (hit < text.len ? jinja_char(found, text.len - hit) : 1);
    }
    if (!jinja_put(r, &made, jinja_text_cut(text, from < text.len ? from : text.len, text.len)))
        return false;
    *out = jinja_written(&made);
    return true;
}

METHOD(replace)
{
    struct jinja_text old = {0}, by = {0};
    bool given;
    size_t max = SIZE_MAX;
    return text_argument(r, args, 0, false, &old, &given) && text_argument(r, args, 1, false, &by, &given) &&
           jinja_limit_argument(r, args, 2, &max) && jinja_replace(r, self->text, old, by, max, out);
}

static bool find_last(struct jinja_run *r, struct jinja_text t, struct jinja_text what, const char **out)
{
    bool here = false;
    size_t at = t.len;
    while (what.len && !here && at > 0)
        if (!stands_at(r, t, --at, what, &here))
            return false;
    *out = here || !what.len ? t.s + at : NULL;
    return true;
}

static bool find_any(struct jinja_run *r, const struct jinja_value *self, const struct jinja_args *args,
                     bool last, struct jinja_value *out)
{
    struct jinja_text what = {0}, t = self->text;
    bool given;
    if (!text_argument(r, args, 0, false, &what, &given) ||
        !jinja_work_bytes(r, (JINJA_SEARCH + JINJA_WALK) * t.len))
        return false;
    const char *found = NULL;
    if (last && !find_last(r, t, what, &found))
        return false;
    if (!last)
        found = memmem(t.s, t.len, what.s, what.len);
    *out = jinja_int(found ? (int64_t)jinja_text_length(jinja_text_of(t.s, (size_t)(found - t.s))) : -1);
    return true;
}

METHOD(find)
{
    return find_any(r, self, args, false, out);
}

METHOD(rfind)
{
    return find_any(r, self, args, true, out);
}

METHOD(count)
{
    struct jinja_text what = {0}, t = self->text;
    bool given;
    int64_t n = 0;
    if (!text_argument(r, args, 0, false, &what, &given) ||
        !jinja_work_bytes(r, (what.len ? JINJA_SEARCH : JINJA_WALK) * t.len))
        return false;
    const char *at = t.s, *end = t.s + t.len;
    while (what.len && at < end && (at = memmem(at, (size_t)(end - at), what.s, what.len))) {
        at += what.len;
        n++;
    }
    *out = jinja_int(what.len ? n : (int64_t)jinja_text_length(t) + 1);
    return true;
}

METHOD(join)
{
    struct jinja_out text = {.max = r->limits.memory};
    struct jinja_list *items;
    if (!jinja_items(r, &args->values[0], &items))
        return false;
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].kind != JINJA_TEXT)
            return jinja_fail(r, -EBADMSG, "join needs strings, not %s", jinja_kind_name(&items->items[i]));
        if (!jinja_work(r, 1) || (i && !jinja_put(r, &text, self->text)) ||
            !jinja_put(r, &text, items->items[i].text))
            return false;
    }
    *out = jinja_written(&text);
    return true;
}

METHOD(format)
{
    return jinja_braces(r, self->text, &args->more, &args->named, out);
}

/* --- what characters are --- */

static bool all_are(struct jinja_run *r, struct jinja_text t, int (*is)(int), struct jinja_value *out)
{
    bool all = t.len > 0;
    for (size_t i = 0; all && i < t.len; i++)
        all = (unsigned char)t.s[i] < 0x80 && is((unsigned char)t.s[i]);
    *out = jinja_bool(all);
    return jinja_work_bytes(r, JINJA_WALK * t.len);
}

METHOD(isdigit_)
{
    (void)args;
    return all_are(r, self->text, isdigit, out);
}

METHOD(isalpha_)
{
    (void)args;
    return all_are(r, self->text, isalpha, out);
}

METHOD(isalnum_)
{
    (void)args;
    return all_are(r, self->text, isalnum, out);
}

METHOD(isspace_)
{
    size_t left = jinja_strip(self->text, true, false).len;
    (void)args;
    *out = jinja_bool(self->text.len && !left);
    return jinja_work_bytes(r, JINJA_WALK * (self->text.len - left));
}

const struct jinja_builtin jinja_text_methods[] = {
    {.name = "strip", .call = strip, .params = {"chars"}},
    {.name = "lstrip", .call = lstrip, .params = {"chars"}},
    {.name = "rstrip", .call = rstrip, .params = {"chars"}},
    {.name = "split", .call = split, .params = {"sep", "maxsplit"}},
    {.name = "rsplit", .call = rsplit, .params = {"sep", "maxsplit"}},
    {.name = "splitlines", .call = splitlines, .params = {"keepends"}},
    {.name = "startswith", .call = startswith, .params = {"prefix"}, .n_required = 1},
    {.name = "endswith", .call = endswith, .params = {"suffix"}, .n_required = 1},
    {.name = "removeprefix", .call = removeprefix, .params = {"prefix"}, .n_required = 1},
    {.name = "removesuffix", .call = removesuffix, .params = {"suffix"}, .n_required = 1},
    {.name = "upper", .call = upper},
    {.name = "lower", .call = lower},
    {.name = "title", .call = title},
    {.name = "capitalize", .call = capitalize},
    {.name = "replace", .call = replace, .params = {"old", "new", "count"}, .n_required = 2},
    {.name = "find", .call = find, .params = {"sub"}, .n_required = 1},
    {.name = "rfind", .call = rfind, .params = {"sub"}, .n_required = 1},
    {.name = "count", .call = count, .params = {"sub"}, .n_required = 1},
    {.name = "join", .call = join, .params = {"iterable"}, .n_required = 1},
    {.name = "format", .call = format, .variadic = true},
    {.name = "isdigit", .call = isdigit_},
    {.name = "isnumeric", .call = isdigit_},
    {.name = "isalpha", .call = isalpha_},
    {.name = "isalnum", .call = isalnum_},
    {.name = "isspace", .call = isspace_},
    {0},
};
