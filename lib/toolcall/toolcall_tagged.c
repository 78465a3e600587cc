/* toolcall_tagged.c - calls in tags: <function=N><parameter=k>v</parameter></function> and its relatives.
 * They look like XML and are none: no entities, and a value may hold tags. A value ends at its closing tag
 * only if the next parameter, the call's end or the text's end follows. The schema says if a value is text;
 * any other value is JSON if it parses, True, False and None as Python writes them too, else text. Inside a
 * string of such a value tags are words, as long as the value is JSON; where it turns out to be none, the
 * first closing tag in a string ended it. */
#include "toolcall_private.h"

static bool body(struct toolcall_scanner *s);
static bool value(struct toolcall_scanner *s);

/* --- the call --- */

static bool finish(struct toolcall_scanner *s)
{
    struct bytes *out = toolcall_arguments(s);
    if (!(s->ended && s->cut))
        bytes_puts(out, s->tagged.n_params ? "}" : "{}");
    toolcall_end_call(s);
    s->tagged = (struct tagged){0};
    return toolcall_to_text(s);
}

/* As toolcall_match(), behind blanks: *to is where it stands. */
static int match_after_blanks(const struct toolcall_scanner *s, size_t i, const char *mark, size_t *to)
{
    *to = toolcall_blanks(s, i);
    if (*to - i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (*to == s->pending.n)
        return s->ended ? -1 : 0;
    return toolcall_match(s, *to, mark);
}

/* --- values --- */

static void put_key(struct toolcall_scanner *s)
{
    struct bytes *out = toolcall_arguments(s);
    bytes_puts(out, s->tagged.n_params++ ? ", \"" : "{\"");
    bytes_put_json_chars(out, s->id.p, s->id.n);
    bytes_puts(out, "\": ");
    if (s->tagged.is_text)
        bytes_put_char(out, '"');
}

static void put_value(struct toolcall_scanner *s, size_t n)
{
    if (s->tagged.is_text)
        bytes_put_json_chars(toolcall_arguments(s), s->pending.p, n);
    else
        bytes_put(&s->value, s->pending.p, n);
    toolcall_take(s, n);
}

/* Writes the value as JSON if it is, containers also if they are Python's. False: it is text. */
static bool put_as_json(struct toolcall_scanner *s)
{
    const char *p = s->value.p;
    size_t n = s->value.n, i = 0;
    struct bytes json = {.arena = s->value.arena};
    while (n && toolcall_is_blank(p[n - 1]))
        n--;
    while (i < n && toolcall_is_blank(p[i]))
        i++;
    bool container = i < n && (p[i] == '{' || p[i] == '[');
    bool empty = i == n;
    enum json_repair_result result = JSON_REPAIR_MORE;
    json_repair_open(&s->repair, JSON_REPAIR_JSON, &json);
    while (i < n && result == JSON_REPAIR_MORE)
        result = json_repair_push(&s->repair, p[i++]);
    bool whole = !empty && result != JSON_REPAIR_STOP && i == n;
    if (container)
        whole &= result == JSON_REPAIR_DONE;
    unsigned n_before = s->repair.n_repairs;
    json_repair_end(&s->repair);
    bool quoted = json.n && *json.p == '"';
    s->value.failed |= json.failed;
    if (!whole || s->repair.n_loose_words || (quoted && (n_before || result != JSON_REPAIR_DONE)))
        return false;
    bytes_put(toolcall_arguments(s), json.p, json.n);
    return true;
}

static void end_value(struct toolcall_scanner *s)
{
    struct bytes *out = toolcall_arguments(s);
    if (s->tagged.is_text) {
        bytes_put_char(out, '"');
    } else if (!put_as_json(s)) {
        bytes_put_char(out, '"');
        bytes_put_json_chars(out, s->value.p, s->value.n);
        bytes_put_char(out, '"');
    }
    s->value.n = 0;
    s->tagged.began_value = false;
}

/* Tells if the call goes on or ends at i: 1, 0 (more must come), -1. */
static int goes_on(const struct toolcall_scanner *s, size_t i, bool with_param)
{
    const struct tags *t = s->format->tags;
    const char *next[] = {t->close, t->section_end, with_param ? t->param : NULL, t->open};
    int best = -1;
    size_t to = toolcall_blanks(s, i);
    if (to - i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (to == s->pending.n)
        return s->ended;
    for (size_t k = 0; k < sizeof next / sizeof *next && best < 1; k++) {
        int match = next[k] && *next[k] ? toolcall_match(s, to, next[k]) : -1;
        best = match > best ? match : best;
    }
    return best;
}

/* The value ends at byte i: 1 with *n bytes of closing tag; 0: it may; -1: it does not. */
static int value_ends(const struct toolcall_scanner *s, size_t i, size_t *n)
{
    const struct tags *t = s->format->tags;
    int match = toolcall_match(s, i, t->value_end);
    *n = 0;
    if (match > 0) {
        *n = strlen(t->value_end);
        return goes_on(s, i + *n, true);
    }
    if (!match)
        return 0;
    match = toolcall_match(s, i, t->close); /* its own closing tag was left out */
    if (match > 0)
        return goes_on(s, i + strlen(t->close), false);
    if (!match)
        return 0;
    bool after_newline = i ? s->pending.p[i - 1] == '\n' : false;
    return t->strips_newline && after_newline ? toolcall_match(s, i, t->param) : -1;
}

/* 1: the value ends at byte i, *n bytes are to be taken there; 0: it may; -1: it does not. */
static int ends_at(const struct toolcall_scanner *s, size_t i, size_t *n)
{
    bool newline = s->format->tags->strips_newline && s->pending.p[i] == '\n';
    *n = 0;
    if (!newline && s->pending.p[i] != '<')
        return -1;
    if (newline && i + 1 == s->pending.n)
        return s->ended ? -1 : 0;
    int ends = newline && s->pending.p[i + 1] != '<' ? -1 : value_ends(s, i + newline, n);
    *n += ends > 0 && newline;
    return ends;
}

/* One byte more of a value that is JSON so far. */
static void follow_json(struct toolcall_scanner *s, char c)
{
    struct tagged *t = &s->tagged;
    if (t->is_whole) {
        t->follows = toolcall_is_blank(c);
        return;
    }
    enum json_repair_result result = json_repair_push(&s->repair, c);
    t->is_whole = result == JSON_REPAIR_DONE;
    t->follows = result != JSON_REPAIR_STOP && !s->repair.n_repairs;
    s->unread.n = 0;
}

static int end_in_doubt(struct toolcall_scanner *s, size_t *at, size_t *n)
{
    *at = s->tagged.doubt;
    *n = s->tagged.n_doubt;
    s->doubted = true;
    return 1;
}

/* The first pending byte that may be of the value's end. 1: it is, *n bytes are to be taken there. */
static int find_value_end(struct toolcall_scanner *s, size_t *at, size_t *n)
{
    struct tagged *t = &s->tagged;
    size_t i;
    for (i = t->seen; i < s->pending.n; i++) {
        char c = s->pending.p[i];
        int ends = ends_at(s, i, n);
        bool in_string = t->follows && c != '\n' && json_repair_in_string(&s->repair);
        if (ends > 0 && !in_string) {
            if (t->doubts && t->follows && json_repair_in_string(&s->repair))
                return end_in_doubt(s, at, n); /* a string has no line end: the first closing tag was one */
            *at = i;
            return 1;
        }
        if (!ends)
            break;
        if (ends > 0 && !t->doubts) {
            t->doubts = true;
            t->doubt = i;
            t->n_doubt = *n;
        }
        if (t->follows)
            follow_json(s, c);
        if (t->doubts && !t->follows)
            return end_in_doubt(s, at, n);
    }
    if (t->doubts && s->ended && !s->cut)
        return end_in_doubt(s, at, n);
    *at = t->doubts ? t->doubt : i;
    t->seen = i - *at;
    t->doubt = 0;
    return 0;
}

static void begin_value(struct toolcall_scanner *s)
{
    struct tagged *t = &s->tagged;
    t->began_value = true;
    t->follows = !t->is_text && !s->doubted;
    t->is_whole = t->doubts = false;
    t->seen = t->doubt = 0;
    json_repair_open(&s->repair, JSON_REPAIR_JSON, &s->unread);
    put_key(s);
}

static bool value(struct toolcall_scanner *s)
{
    size_t at = 0, n = 0;
    if (!s->tagged.began_value) {
        if (!s->pending.n && !s->ended)
            return false;
        if (s->format->tags->strips_newline && s->pending.n && *s->pending.p == '\n' &&
            !(s->pending.n == 1 && s->ended))
            toolcall_take(s, 1);
        begin_value(s);
    }
    int ends = find_value_end(s, &at, &n);
    put_value(s, at);
    if (ends > 0) {
        toolcall_take(s, n);
        end_value(s);
        s->state = body;
        return true;
    }
    if (!s->ended)
        return false;
    if (s->cut)
        toolcall_take(s, s->pending.n); /* perhaps the rest of a string that holds closing tags */
    else
        end_value(s);
    return finish(s);
}

/* --- parameters --- */

static bool takes_text(const struct toolcall_scanner *s)
{
    const struct toolcall_tool *tool = toolcall_find_tool(s, s->name.p, s->name.n);
    for (size_t i = 0; tool && i < tool->n_params; i++) {
        const char *name = tool->params[i].name;
        if (strlen(name) == s->id.n && !memcmp(name, s->id.p, s->id.n))
            return tool->params[i].is_text;
    }
    return true; /* undeclared values are passed on as they were written */
}

static const char *find(const struct toolcall_scanner *s, size_t from, const char *mark)
{
    return from > s->pending.n ? NULL : memmem(s->pending.p + from, s->pending.n - from, mark, strlen(mark));
}

/* True if what ends there would have been pending whole however the text was cut. */
static bool is_near(const struct toolcall_scanner *s, const char *end, size_t most)
{
    return (size_t)(end - s->pending.p) <= most;
}

/* Behind the parameter's opening tag: its key, and all up to its value. */
static bool key(struct toolcall_scanner *s)
{
    const struct tags *t = s->format->tags;
    const char *key_end = find(s, 0, t->key_end);
    size_t from = key_end ? (size_t)(key_end - s->pending.p) + strlen(t->key_end) : 0;
    const char *opened = key_end ? find(s, from, t->value) : NULL;
    bool near = opened && is_near(s, opened + strlen(t->value), 2 * TOOLCALL_MAX_NAME);
    if (!near)
        return (s->ended || s->pending.n > 2 * TOOLCALL_MAX_NAME) && finish(s);
    size_t i = toolcall_blanks(s, 0), n = (size_t)(key_end - s->pending.p);
    while (n > i && toolcall_is_blank(s->pending.p[n - 1]))
        n--;
    s->id.n = 0;
    bytes_put(&s->id, s->pending.p + i, n > i ? n - i : 0);
    size_t n_attributes = (size_t)(opened - (s->pending.p + from));
    const char *text = memmem(s->pending.p + from, n_attributes, "string=\"", 8);
    s->tagged.is_text = text ? text[8] == 't' : takes_text(s);
    toolcall_take(s, (size_t)(opened - s->pending.p) + strlen(t->value));
    s->tagged.began_value = false;
    s->state = value;
    return true;
}

/* Between parameters. Text that is no tag of the call ends it. */
static bool body(struct toolcall_scanner *s)
{
    const struct tags *t = s->format->tags;
    size_t to;
    int param = match_after_blanks(s, 0, t->param, &to);
    int close = match_after_blanks(s, 0, t->close, &to);
    if (param > 0) {
        toolcall_take(s, to + strlen(t->param));
        s->state = key;
        return true;
    }
    if (param == 0 || close == 0)
        return false;
    toolcall_take(s, close > 0 ? to + strlen(t->close) : to);
    return finish(s);
}

/* --- the name --- */

/* <arg_key> was left out, so that name and key stand together: the longest declared name is taken. */
static bool split_name(struct toolcall_scanner *s)
{
    size_t best = 0;
    for (size_t i = 0; s->tools && i < s->tools->n; i++) {
        size_t n = strlen(s->tools->list[i].name);
        if (n > best && n < s->name.n && !memcmp(s->tools->list[i].name, s->name.p, n))
            best = n;
    }
    if (!best)
        return false;
    s->id.n = 0;
    bytes_put(&s->id, s->name.p + best, s->name.n - best);
    s->name.n = best;
    return true;
}

/* At byte `at` the key ends that should have been opened. */
static bool glued_key(struct toolcall_scanner *s, size_t at)
{
    const char *value_tag = s->format->tags->value, *opened = find(s, at, value_tag);
    bool near = opened && is_near(s, opened + strlen(value_tag), TOOLCALL_MAX_NAME);
    if (!near && !s->ended && s->pending.n <= TOOLCALL_MAX_NAME)
        return false;
    if (!near || !split_name(s))
        return toolcall_give_up(s);
    toolcall_begin_call(s);
    s->tagged.is_text = takes_text(s);
    toolcall_take(s, (size_t)(opened - s->pending.p) + strlen(value_tag));
    s->state = value;
    return true;
}

/* Behind the name: a tag of the call must follow. */
static bool first(struct toolcall_scanner *s)
{
    const struct tags *t = s->format->tags;
    size_t to;
    int param = match_after_blanks(s, 0, t->param, &to), close = match_after_blanks(s, 0, t->close, &to);
    bool bare_end = s->ended && !s->cut && to == s->pending.n && toolcall_find_tool(s, s->name.p, s->name.n);
    if (param > 0 || close > 0 || bare_end) {
        toolcall_begin_call(s);
        s->state = body;
        return true;
    }
    int key_end = match_after_blanks(s, 0, t->key_end, &to);
    if (key_end > 0 && *t->key_end == '<')
        return glued_key(s, to);
    return param && close && key_end && toolcall_give_up(s);
}

bool toolcall_function(struct toolcall_scanner *s)
{
    const struct tags *t = s->format->tags;
    size_t i = toolcall_blanks(s, 0), end = i;
    const char *stops = *t->open_end ? t->open_end : "\n<";
    while (end < s->pending.n && !strchr(stops, s->pending.p[end]) && s->pending.p[end] != '\n' &&
           s->pending.p[end] != '<')
        end++;
    if (i > TOOLCALL_MAX_BLANKS || end - i > TOOLCALL_MAX_NAME || (end == i && end < s->pending.n))
        return toolcall_give_up(s);
    int match = *t->open_end && end < s->pending.n ? toolcall_match(s, end, t->open_end) : 1;
    bool bare_end = s->ended && end == s->pending.n && !*t->open_end;
    if (match < 0 || (s->ended && end == s->pending.n && !bare_end))
        return toolcall_give_up(s);
    if (!match || (end == s->pending.n && !bare_end))
        return false;
    s->name.n = 0;
    bytes_put(&s->name, s->pending.p + i, end - i);
    while (s->name.n && toolcall_is_blank(s->name.p[s->name.n - 1]))
        s->name.n--;
    toolcall_hold(s, end + strlen(t->open_end));
    s->state = first;
    return true;
}

/* Behind the mark of a call: JSON, or a tagged function. */
bool toolcall_call(struct toolcall_scanner *s)
{
    const struct tags *t = s->format->tags;
    size_t i = toolcall_blanks(s, 0);
    if (i > TOOLCALL_MAX_BLANKS)
        return toolcall_give_up(s);
    if (i == s->pending.n)
        return s->ended && toolcall_give_up(s);
    if (s->pending.p[i] == '{' || s->pending.p[i] == '[') {
        toolcall_hold(s, i);
        return toolcall_open_json(s, false);
    }
    int match = t ? toolcall_match(s, i, t->open) : -1;
    if (match < 0)
        return toolcall_give_up(s);
    if (!match)
        return false;
    toolcall_hold(s, i + strlen(t->open));
    s->state = toolcall_function;
    return true;
}
