/* toolcall_harmony.c - harmony's messages: a header that names a channel and a recipient, then a body.
 * <|channel|>analysis is reasoning, a recipient makes the body a call's arguments, all else is text. Headers
 * are the protocol's and never text. */
#include "toolcall_private.h"

#define MAX_HEADER 512

static const char message[] = "<|message|>", channel[] = "<|channel|>", recipient[] = "to=";

/* The last word behind `mark` in the header of n bytes; its length, 0: there is none. */
static size_t word_behind(const char *header, size_t n, const char *mark, const char **word)
{
    size_t len = strlen(mark), length = 0;
    for (size_t i = 0; i + len <= n; i++) {
        if (memcmp(header + i, mark, len))
            continue;
        size_t to = i + len;
        while (to < n && !toolcall_is_blank(header[to]) && header[to] != '<')
            to++;
        *word = header + i + len;
        length = to - i - len;
    }
    return length;
}

static bool is_word(const char *word, size_t n, const char *other)
{
    return n == strlen(other) && !memcmp(word, other, n);
}

/* The body is a call's, if an object follows. */
static bool call_body(struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0);
    if (i == s->pending.n && !s->ended && i <= TOOLCALL_MAX_BLANKS)
        return false;
    if (i <= TOOLCALL_MAX_BLANKS && i < s->pending.n && s->pending.p[i] == '{')
        return toolcall_open_value(s, JSON_REPAIR_JSON);
    return toolcall_to_text(s);
}

static bool follow_header(struct toolcall_scanner *s, size_t n)
{
    static const char functions[] = "functions.";
    const char *to = "", *in = "", *header = s->pending.p;
    size_t n_to = word_behind(header, n, recipient, &to), n_in = word_behind(header, n, channel, &in);
    size_t prefix = sizeof functions - 1;
    if (n_to > prefix && !memcmp(to, functions, prefix)) {
        to += prefix;
        n_to -= prefix;
    }
    bool calls = !s->no_calls && n_to && n_to <= TOOLCALL_MAX_NAME && !is_word(to, n_to, "assistant") &&
                 !is_word(to, n_to, "user") && !is_word(to, n_to, "all");
    s->name.n = s->held.n = 0;
    s->joins = true;
    s->skip_blanks = s->reason_start = false;
    if (calls)
        bytes_put(&s->name, to, n_to);
    s->state = calls ? call_body : is_word(in, n_in, "analysis") ? toolcall_reasoning : toolcall_text;
    toolcall_take(s, n + strlen(message));
    return true;
}

/* 1: what is pending begins a header, 0: it may, -1: it does not. */
static int begins_header(const struct toolcall_scanner *s)
{
    size_t i = toolcall_blanks(s, 0);
    int mark = toolcall_match(s, i, "<|"), to = toolcall_match(s, i, recipient);
    if (i > TOOLCALL_MAX_BLANKS)
        return -1;
    if (i == s->pending.n)
        return s->ended ? -1 : 0;
    return mark > to ? mark : to;
}

/* Where the text begins, or at <|start|> or <|channel|>. */
bool toolcall_harmony_header(struct toolcall_scanner *s)
{
    size_t n = s->pending.n;
    int begins = begins_header(s);
    const char *end = n ? memmem(s->pending.p, n, message, strlen(message)) : NULL;
    size_t length = end ? (size_t)(end - s->pending.p) : n;
    if (begins > 0 && end && length <= MAX_HEADER)
        return follow_header(s, length);
    if (begins > 0 && length > MAX_HEADER) { /* none is so long: its mark is text */
        size_t mark = toolcall_blanks(s, 0) + 2;
        toolcall_put(s, TOOLCALL_TEXT, s->pending.p, mark);
        toolcall_take(s, mark);
    }
    if (begins < 0 || length > MAX_HEADER) {
        s->state = toolcall_text;
        return true;
    }
    if (s->ended) /* a header without a body says nothing */
        toolcall_take(s, n);
    return false;
}

/* Behind a message. */
bool toolcall_harmony_between(struct toolcall_scanner *s)
{
    static const char start[] = "<|start|>";
    toolcall_take(s, toolcall_blanks(s, 0));
    if (!s->pending.n)
        return false;
    int starts = toolcall_match(s, 0, start), in = toolcall_match(s, 0, channel);
    if (starts > 0 || in > 0) {
        s->state = toolcall_harmony_header;
        return true;
    }
    if (!starts || !in)
        return false;
    s->state = toolcall_text;
    return true;
}
