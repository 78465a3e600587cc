#include "toolcall_private.h"
#include "toolcall_writing.h"
#include "base/utf8.h"

#include <assert.h>
#include <errno.h>

/* --- events --- */

static void send(struct toolcall_scanner *s, enum toolcall_kind kind, const char *p, size_t n)
{
    struct toolcall_event event = {.kind = kind, .s = p, .n = n};
    s->emit(s->user, &event);
}

/* The bytes may begin a character that the next ones complete. */
static bool is_incomplete(const char *p, size_t n)
{
    unsigned char lead = (unsigned char)*p;
    size_t len = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || n >= len)
        return false;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return false;
    return true;
}

/* Emits what is whole; each byte that is no UTF-8 becomes U+FFFD. */
static void flush(struct toolcall_scanner *s, bool final)
{
    const char *p = s->out.p;
    size_t n = s->out.n, i = 0;
    while (i < n) {
        size_t valid = utf8_valid(p + i, n - i);
        if (valid)
            send(s, s->out_kind, p + i, valid);
        i += valid;
        if (i == n || (!final && is_incomplete(p + i, n - i)))
            break;
        send(s, s->out_kind, "\xEF\xBF\xBD", 3);
        i++;
    }
    bytes_take(&s->out, i);
}

static struct bytes *writer(struct toolcall_scanner *s, enum toolcall_kind kind)
{
    if (s->out_kind != kind)
        flush(s, true);
    s->out_kind = kind;
    return &s->out;
}

void toolcall_put(struct toolcall_scanner *s, enum toolcall_kind kind, const char *p, size_t n)
{
    if (!n)
        return;
    struct bytes *out = writer(s, kind);
    if (s->joins && s->any[kind == TOOLCALL_REASONING])
        bytes_puts(out, "\n\n");
    s->joins = false;
    s->any[kind == TOOLCALL_REASONING] = true;
    bytes_put(out, p, n);
    if (kind == TOOLCALL_TEXT) {
        s->bare_ok = false;
        s->last = p[n - 1];
    }
}

/* A name is one event: each byte in it that is no UTF-8 becomes a question mark. */
static void mend_name(struct bytes *name)
{
    for (size_t i = 0; i < name->n;) {
        i += utf8_valid(name->p + i, name->n - i);
        if (i < name->n)
            name->p[i++] = '?';
    }
}

void toolcall_begin_call(struct toolcall_scanner *s)
{
    flush(s, true);
    s->out_kind = TOOLCALL_ARGUMENTS;
    mend_name(&s->name);
    send(s, TOOLCALL_BEGIN, s->name.p, s->name.n);
    s->held.n = 0;
    s->n_calls++;
}

void toolcall_put_id(struct toolcall_scanner *s)
{
    if (!s->id.n || utf8_valid(s->id.p, s->id.n) != s->id.n)
        return;
    flush(s, true);
    send(s, TOOLCALL_ID, s->id.p, s->id.n);
    s->id.n = 0;
}

struct bytes *toolcall_arguments(struct toolcall_scanner *s)
{
    return writer(s, TOOLCALL_ARGUMENTS);
}

void toolcall_end_call(struct toolcall_scanner *s)
{
    flush(s, true);
    send(s, TOOLCALL_END, "", 0);
    s->name.n = s->id.n = 0;
}

/* --- bytes --- */

void toolcall_take(struct toolcall_scanner *s, size_t n)
{
    assert(n <= s->pending.n); /* else all memory behind it would be the text */
    s->pending.p += n;
    s->pending.n -= n;
}

void toolcall_hold(struct toolcall_scanner *s, size_t n)
{
    bytes_put(&s->held, s->pending.p, n);
    toolcall_take(s, n);
}

bool toolcall_give_up(struct toolcall_scanner *s)
{
    if (s->cut)
        toolcall_take(s, s->pending.n);
    else
        toolcall_put(s, s->in_reasoning ? TOOLCALL_REASONING : TOOLCALL_TEXT, s->held.p, s->held.n);
    s->held.n = s->name.n = s->id.n = 0;
    s->state = s->in_reasoning ? toolcall_reasoning : toolcall_text;
    s->skip_blanks = s->bare_ok = false;
    return true;
}

bool toolcall_to_text(struct toolcall_scanner *s)
{
    s->state = toolcall_text;
    s->skip_blanks = true;
    return true;
}

const struct toolcall_tool *toolcall_find_tool(const struct toolcall_scanner *s, const char *name, size_t n)
{
    for (size_t i = 0; s->tools && i < s->tools->n; i++)
        if (strlen(s->tools->list[i].name) == n && !memcmp(s->tools->list[i].name, name, n))
            return &s->tools->list[i];
    return NULL;
}

/* --- text and reasoning --- */

/* Reasoning begins a message or a line: elsewhere its mark is quoted. */
static bool may_think(const struct toolcall_scanner *s, size_t i)
{
    if (!s->any[false] && i <= TOOLCALL_MAX_BLANKS && toolcall_blanks(s, 0) >= i)
        return true;
    return (i ? s->pending.p[i - 1] : s->last) == '\n';
}

static bool counts(const struct toolcall_scanner *s, const struct mark *m, size_t i, bool reasoning)
{
    if (s->no_calls && m->action >= MARK_CALL_END && m->action < MARK_HARMONY_HEADER)
        return false;
    if (reasoning)
        return m->action == MARK_THINK_END || m->in_reasoning;
    return m->action != MARK_THINK || may_think(s, i);
}

/* The first mark that is pending, or may be: *at is its place, else the end. NULL without a whole one. */
static const struct mark *find_mark(const struct toolcall_scanner *s, bool reasoning, size_t *at)
{
    for (size_t i = 0; i < s->pending.n; i++) {
        if (!s->first[(unsigned char)s->pending.p[i]])
            continue;
        for (const struct mark *m = s->format->marks; m->action; m++) {
            int match = toolcall_match(s, i, m->s);
            if (match < 0 || !counts(s, m, i, reasoning))
                continue;
            *at = i;
            return match ? m : NULL;
        }
    }
    *at = s->pending.n;
    return NULL;
}

/* Newlines before a mark belong to it. */
static size_t before_newlines(const struct toolcall_scanner *s, size_t end)
{
    size_t e = end;
    while (e && end - e < 2 && s->pending.p[e - 1] == '\n')
        e--;
    return e;
}

/* Behind the mark of a section of calls: a call must follow, else it is quoted. */
static bool section(struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0);
    bool waits = i <= TOOLCALL_MAX_BLANKS;
    int best = i == s->pending.n && !s->ended && waits ? 0 : -1;
    for (const struct mark *m = s->format->marks; m->action && waits && i < s->pending.n && best < 1; m++) {
        int match = m->action > MARK_SECTION ? toolcall_match(s, i, m->s) : -1;
        best = match > best ? match : best;
    }
    if (!best)
        return false;
    return best < 0 ? toolcall_give_up(s) : toolcall_to_text(s);
}

static bool follow(struct toolcall_scanner *s, const struct mark *m)
{
    s->tagged = (struct tagged){0};
    switch (m->action) {
    case MARK_THINK:
        s->state = toolcall_reasoning;
        s->skip_blanks = s->reason_start = true;
        break;
    case MARK_CALL:
        s->state = toolcall_call;
        return true;
    case MARK_SECTION:
        s->state = section;
        return true;
    case MARK_FUNCTION:
        s->state = toolcall_function;
        return true;
    case MARK_HARMONY_HEADER:
        s->state = toolcall_harmony_header;
        break;
    case MARK_HARMONY_END:
        s->state = toolcall_harmony_between;
        break;
    case MARK_DROP:
    case MARK_CALL_END:
    case MARK_THINK_END:
        toolcall_to_text(s);
        break;
    default:
        return toolcall_open_named(s, m->action);
    }
    s->held.n = 0;
    return true;
}

/* Emits up to the next mark and follows it. */
static bool scan(struct toolcall_scanner *s, bool reasoning)
{
    size_t at = 0;
    const struct mark *m = find_mark(s, reasoning, &at);
    size_t e = m || !s->ended ? before_newlines(s, at) : at;
    bool leading = !reasoning && !s->any[false] && toolcall_blanks(s, 0) >= e;
    if (leading && (m || !s->ended) && at <= TOOLCALL_MAX_BLANKS) /* they are dropped before a mark */
        e = 0;
    toolcall_put(s, reasoning ? TOOLCALL_REASONING : TOOLCALL_TEXT, s->pending.p, e);
    toolcall_take(s, e);
    if (!m)
        return false;
    s->held.n = 0;
    s->in_reasoning = reasoning;
    toolcall_hold(s, at - e + (m->action == MARK_HARMONY_HEADER ? 0 : strlen(m->s)));
    return follow(s, m);
}

/* True when nothing more is to be skipped. */
static bool skip(struct toolcall_scanner *s)
{
    static const char fence[] = "```";
    toolcall_take(s, toolcall_blanks(s, 0));
    if (!s->pending.n)
        return false;
    int match = s->skip_fence ? toolcall_match(s, 0, fence) : -1;
    if (!match)
        return false;
    s->skip_fence = false;
    if (match > 0) {
        toolcall_take(s, strlen(fence));
        return skip(s);
    }
    s->skip_blanks = false;
    return true;
}

/* A call without a mark: 1 it begins here, 0 more must come, -1 it does not. */
static int bare_call(struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0);
    if (i < s->pending.n && s->n_calls && (s->pending.p[i] == ';' || s->pending.p[i] == ','))
        i = toolcall_blanks(s, i + 1);
    if (i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (i == s->pending.n)
        return s->ended ? -1 : 0;
    if (s->pending.p[i] != '{' && s->pending.p[i] != '[')
        return -1;
    toolcall_hold(s, i);
    return 1;
}

/* At the beginning of a text that is verbatim but for its reasoning. */
static bool before_verbatim(struct toolcall_scanner *s)
{
    const char *think = s->format->think;
    size_t i = toolcall_blanks(s, 0);
    int match = think && i <= TOOLCALL_MAX_BLANKS ? toolcall_match(s, i, think) : -1;
    if (!match)
        return false;
    if (match > 0)
        toolcall_take(s, i + strlen(think));
    s->state = match > 0 ? toolcall_reasoning : toolcall_text;
    s->skip_blanks = s->reason_start = match > 0;
    return true;
}

bool toolcall_text(struct toolcall_scanner *s)
{
    if (s->skip_blanks && !skip(s))
        return false;
    if (s->verbatim) {
        toolcall_put(s, TOOLCALL_TEXT, s->pending.p, s->pending.n);
        toolcall_take(s, s->pending.n);
        return false;
    }
    if (s->bare_ok && s->format->bare) {
        int bare = bare_call(s);
        if (bare >= 0)
            return bare && toolcall_open_json(s, true);
    }
    return scan(s, false);
}

bool toolcall_reasoning(struct toolcall_scanner *s)
{
    if (s->skip_blanks && !skip(s))
        return false;
    if (s->reason_start) { /* the prompt opened it, and the model again */
        int again = s->format->think ? toolcall_match(s, 0, s->format->think) : -1;
        if (!again)
            return false;
        s->reason_start = false;
        if (again > 0) {
            toolcall_take(s, strlen(s->format->think));
            s->skip_blanks = true;
            return true;
        }
    }
    return scan(s, true);
}

/* --- the scanner --- */

static void open_buffers(struct toolcall_scanner *s, struct arena *a)
{
    struct bytes *all[] = {&s->input, &s->out,   &s->held,   &s->name,
                           &s->id,    &s->value, &s->unread, &s->envelope.args};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->arena = a;
}

struct toolcall_scanner *toolcall_open(struct arena *a, const struct toolcall_options *o)
{
    struct toolcall_scanner *s = arena_zalloc(a, sizeof *s);
    if (!s)
        return NULL;
    s->format = o->format;
    s->tools = o->tools;
    s->emit = o->emit;
    s->user = o->user;
    s->verbatim = o->verbatim;
    s->no_calls = o->no_calls || o->verbatim;
    s->bare_ok = !s->no_calls;
    s->state = s->format->harmony ? toolcall_harmony_header : s->verbatim ? before_verbatim : toolcall_text;
    open_buffers(s, a);
    for (const struct mark *m = s->format->marks; m->action; m++)
        s->first[(unsigned char)*m->s] = true;
    if (toolcall_reasoning_is_open(s->format, o->prompt, o->prompt_len)) {
        s->state = toolcall_reasoning;
        s->skip_blanks = s->reason_start = true;
    }
    return s;
}

static bool failed(const struct toolcall_scanner *s)
{
    return s->input.failed || s->out.failed || s->held.failed || s->name.failed || s->id.failed ||
           s->value.failed || s->unread.failed || s->envelope.args.failed;
}

static void run(struct toolcall_scanner *s)
{
    while (!failed(s) && s->state(s))
        continue;
}

int toolcall_feed(struct toolcall_scanner *s, const char *bytes, size_t n)
{
    bytes_take(&s->input, s->input.n - s->pending.n);
    bytes_put(&s->input, bytes, n);
    if (failed(s))
        return -ENOMEM;
    s->pending.p = s->input.p;
    s->pending.n = s->input.n;
    run(s);
    flush(s, false);
    return failed(s) ? -ENOMEM : 0;
}

int toolcall_end(struct toolcall_scanner *s, bool cut)
{
    s->ended = true;
    s->cut = cut;
    run(s);
    flush(s, true);
    return failed(s) ? -ENOMEM : 0;
}
