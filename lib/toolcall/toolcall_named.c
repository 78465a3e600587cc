/* toolcall_named.c - calls that name the function in front of its arguments: [TOOL_CALLS]N[ARGS]{...},
 * <|tool_call>call:N{...}, N(k="v") and the like. */
#include "toolcall_private.h"

/* --- arguments --- */

static bool value_over(struct toolcall_scanner *s)
{
    json_repair_end(&s->repair);
    toolcall_end_call(s);
    if (s->named_kind == MARK_LIST) {
        s->named_part = 0;
        s->state = NULL;
        return toolcall_open_named(s, MARK_LIST);
    }
    s->skip_fence = s->named_kind == MARK_DEEPSEEK;
    return toolcall_to_text(s);
}

static bool value(struct toolcall_scanner *s)
{
    s->repair.out = toolcall_arguments(s);
    while (s->pending.n) {
        enum json_repair_result result = json_repair_push(&s->repair, *s->pending.p);
        if (result != JSON_REPAIR_STOP)
            toolcall_take(s, 1);
        if (result != JSON_REPAIR_MORE)
            return value_over(s);
    }
    if (!s->ended)
        return false;
    return s->cut ? toolcall_to_text(s) : value_over(s);
}

bool toolcall_open_value(struct toolcall_scanner *s, enum json_repair_form form)
{
    toolcall_begin_call(s);
    toolcall_put_id(s);
    json_repair_open(&s->repair, form, toolcall_arguments(s));
    s->state = value;
    return true;
}

/* --- the name --- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80) ||
           (c && strchr("_-.:/", c));
}

/* Takes a name that one of `ends` ends into `out`. 1 with the end's index in *which; 0: more must come; -1:
 * it is none. */
static int take_name(struct toolcall_scanner *s, const char *const *ends, struct bytes *out, size_t *which)
{
    size_t from = toolcall_blanks(s, 0), to = from;
    while (to < s->pending.n && is_name_char(s->pending.p[to]))
        to++;
    size_t i = toolcall_blanks(s, to);
    if (from > TOOLCALL_MAX_BLANKS || i - from > TOOLCALL_MAX_NAME)
        return -1;
    if (i == s->pending.n)
        return s->ended ? -1 : 0;
    int match = -1;
    for (*which = 0; ends[*which]; ++*which)
        if ((match = toolcall_match(s, i, ends[*which])) >= 0)
            break;
    if (match <= 0 || to == from)
        return match == 0 ? 0 : -1;
    out->n = 0;
    bytes_put(out, s->pending.p + from, to - from);
    toolcall_hold(s, i + (*ends[*which] == '{' ? 0 : strlen(ends[*which])));
    return 1;
}

/* Behind the name: 1 when the arguments' { is next, 0: more must come, -1: they do not follow. */
static int find_brace(struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0);
    if (i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (i == s->pending.n)
        return s->ended ? -1 : 0;
    if (s->pending.p[i] != '{')
        return -1;
    toolcall_hold(s, i);
    return 1;
}

static void drop_prefix(struct bytes *name, const char *prefix)
{
    size_t n = strlen(prefix);
    if (name->n > n && !memcmp(name->p, prefix, n))
        bytes_take(name, n);
}

/* --- the families --- */

static bool settle(struct toolcall_scanner *s, int found, enum json_repair_form form)
{
    if (found > 0)
        return toolcall_open_value(s, form);
    return found < 0 && toolcall_give_up(s);
}

static int mistral_part(struct toolcall_scanner *s)
{
    static const char *const after_name[] = {"[CALL_ID]", "[ARGS]", "{", NULL};
    size_t which = 0;
    if (s->named_part == 2)
        return 0;
    int found = take_name(s, after_name + (s->named_part == 1), s->named_part ? &s->id : &s->name, &which);
    if (found > 0)
        s->named_part = s->named_part || which ? 2 : 1;
    return found;
}

/* Behind i blanks. */
static bool opens_json(const struct toolcall_scanner *s, size_t i)
{
    return i <= TOOLCALL_MAX_BLANKS && i < s->pending.n && (s->pending.p[i] == '{' || s->pending.p[i] == '[');
}

static bool mistral(struct toolcall_scanner *s)
{
    if (!s->named_part) { /* the old form is a list */
        size_t i = toolcall_blanks(s, 0);
        if (i == s->pending.n && i <= TOOLCALL_MAX_BLANKS && !s->ended)
            return false;
        if (opens_json(s, i))
            return toolcall_open_json(s, false);
    }
    while (s->named_part < 2) {
        int found = mistral_part(s);
        if (found <= 0)
            return found < 0 && toolcall_give_up(s);
    }
    return settle(s, find_brace(s), JSON_REPAIR_JSON);
}

/* Behind <sep> of a call of type `function`: its name, a newline, a fence. */
static int fenced_name(struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0), end = i;
    while (end < s->pending.n && s->pending.p[end] != '\n' && s->pending.p[end] != '{' &&
           s->pending.p[end] != '`')
        end++;
    const char *brace = memchr(s->pending.p + end, '{', s->pending.n - end);
    size_t to = brace ? (size_t)(brace - s->pending.p) : s->pending.n;
    if (i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (to - i > TOOLCALL_MAX_NAME || end == i)
        return end == i && i == s->pending.n && !s->ended ? 0 : -1;
    if (!brace)
        return s->ended ? -1 : 0;
    while (end > i && toolcall_is_blank(s->pending.p[end - 1]))
        end--;
    s->name.n = 0;
    bytes_put(&s->name, s->pending.p + i, end - i);
    toolcall_hold(s, to);
    return 1;
}

static bool deepseek(struct toolcall_scanner *s)
{
    static const char *const separators[] = {"<｜tool▁sep｜>", "<|tool_sep|>", NULL};
    size_t which = 0;
    if (!s->named_part) {
        int found = take_name(s, separators, &s->name, &which);
        if (found <= 0)
            return found < 0 && toolcall_give_up(s);
        s->named_part = 1;
    }
    int found = find_brace(s);
    return settle(s, found < 0 ? fenced_name(s) : found, JSON_REPAIR_JSON);
}

static bool gemma(struct toolcall_scanner *s)
{
    static const char *const brace[] = {"{", NULL};
    size_t which = 0;
    int found = take_name(s, brace, &s->name, &which);
    if (found > 0)
        drop_prefix(&s->name, "call:");
    return settle(s, found, JSON_REPAIR_GEMMA);
}

static bool llama(struct toolcall_scanner *s)
{
    static const char *const bracket[] = {">", NULL};
    size_t which = 0;
    if (!s->named_part) {
        int found = take_name(s, bracket, &s->name, &which);
        if (found <= 0)
            return found < 0 && toolcall_give_up(s);
        s->named_part = 1;
    }
    return settle(s, find_brace(s), JSON_REPAIR_JSON);
}

static bool kimi(struct toolcall_scanner *s)
{
    static const char *const ends[] = {"<|tool_call_argument_begin|>", NULL};
    size_t which = 0;
    if (!s->named_part) {
        int found = take_name(s, ends, &s->name, &which);
        if (found <= 0)
            return found < 0 && toolcall_give_up(s);
        drop_prefix(&s->name, "functions.");
        const char *colon = memrchr(s->name.p, ':', s->name.n);
        s->name.n = colon && colon > s->name.p ? (size_t)(colon - s->name.p) : s->name.n;
        s->named_part = 1;
    }
    return settle(s, find_brace(s), JSON_REPAIR_JSON);
}

static bool python(struct toolcall_scanner *s)
{
    static const char *const bracket[] = {"(", NULL};
    static const char call[] = ".call";
    size_t i = toolcall_blanks(s, 0), which = 0;
    if (i == s->pending.n && i <= TOOLCALL_MAX_BLANKS && !s->ended)
        return false;
    if (opens_json(s, i))
        return toolcall_open_json(s, true);
    int found = take_name(s, bracket, &s->name, &which);
    size_t n = sizeof call - 1;
    if (found > 0 && s->name.n > n && !memcmp(s->name.p + s->name.n - n, call, n))
        s->name.n -= n;
    return settle(s, found, JSON_REPAIR_KEYWORDS);
}

/* [N(k="v"), ...]: commas and brackets between calls are nothing of their own. */
static bool list(struct toolcall_scanner *s)
{
    static const char *const bracket[] = {"(", NULL};
    size_t i = 0, which = 0;
    while (i < s->pending.n && (toolcall_is_blank(s->pending.p[i]) || strchr("[],", s->pending.p[i])))
        i++;
    if (s->held.n)
        toolcall_hold(s, i);
    else
        toolcall_take(s, i);
    if (!s->held.n && s->pending.n && !is_name_char(*s->pending.p))
        return toolcall_to_text(s);
    if (!s->pending.n)
        return s->ended && (s->held.n ? toolcall_give_up(s) : toolcall_to_text(s));
    return settle(s, take_name(s, bracket, &s->name, &which), JSON_REPAIR_KEYWORDS);
}

bool toolcall_open_named(struct toolcall_scanner *s, enum mark_action action)
{
    s->named_kind = (unsigned char)action;
    s->named_part = 0;
    s->id.n = 0;
    s->state = action == MARK_MISTRAL    ? mistral
               : action == MARK_DEEPSEEK ? deepseek
               : action == MARK_GEMMA    ? gemma
               : action == MARK_LLAMA    ? llama
               : action == MARK_KIMI     ? kimi
               : action == MARK_PYTHON   ? python
                                         : list;
    return true;
}
