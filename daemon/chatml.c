#include "chatml.h"

#include <string.h>

struct span {
    const char *at, *end;
};

static bool starts(struct span s, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(s.end - s.at) >= n && !memcmp(s.at, word, n);
}

static const char *find(struct span s, const char *word)
{
    return s.at < s.end ? memmem(s.at, (size_t)(s.end - s.at), word, strlen(word)) : NULL;
}

static const char *find_last(struct span s, const char *word)
{
    const char *last = NULL, *at;
    while ((at = find(s, word))) {
        last = at;
        s.at = at + 1;
    }
    return last;
}

static bool is_quote(struct span s)
{
    return s.at < s.end && (*s.at == '\'' || *s.at == '"');
}

/* A line's end: itself, or as a string in a template writes it. */
static bool skip_newline(struct span *s)
{
    if (starts(*s, "\n"))
        s->at++;
    else if (starts(*s, "\\n"))
        s->at += 2;
    else
        return false;
    return true;
}

/* '<|im_end|>' + '\n' is the same as '<|im_end|>\n'. */
static bool ends_line(struct span s)
{
    if (is_quote(s)) {
        do
            s.at++;
        while (s.at < s.end && strchr(" +~", *s.at));
        if (!is_quote(s))
            return false;
        s.at++;
    }
    return skip_newline(&s);
}

static const char *check_ends(struct span text)
{
    struct span s = text;
    while ((s.at = find(s, CHATML_END))) {
        s.at += strlen(CHATML_END);
        if (!ends_line(s))
            return "does not end a message's line after " CHATML_END;
    }
    return NULL;
}

/* --- the default system message --- */

/* The literal up to "<|im_end|>", with \n made a line's end; false when there is anything in it that a string
 * of a template might mean otherwise. */
static bool read_system(struct span s, struct chatml *out)
{
    out->n_system = 0;
    while (s.at < s.end && !starts(s, CHATML_END)) {
        if (out->n_system == sizeof out->system || strchr("{}'\"<", *s.at))
            return false;
        if (skip_newline(&s)) {
            out->system[out->n_system++] = '\n';
        } else {
            if (*s.at == '\\' || !*s.at)
                return false;
            out->system[out->n_system++] = *s.at++;
        }
    }
    return s.at < s.end && out->n_system > 0;
}

/* After each '<|im_start|>system\n' the string ends and the message's own text follows, or it goes on with a
 * text for messages without one: the same everywhere. */
static const char *take_system(struct span text, struct chatml *out)
{
    struct span s = text;
    while ((s.at = find(s, CHATML_START "system"))) {
        struct chatml other = {0};
        s.at += strlen(CHATML_START "system");
        if (!skip_newline(&s))
            return "begins system messages in an unknown way";
        if (is_quote(s))
            continue;
        if (!read_system(s, &other))
            return "has a default system message that cannot be read";
        if (out->n_system &&
            (out->n_system != other.n_system || memcmp(out->system, other.system, other.n_system)))
            return "has several default system messages";
        memcpy(out->system, other.system, other.n_system);
        out->n_system = other.n_system;
    }
    return NULL;
}

static bool begins_system(struct span s)
{
    if (starts(s, "You are provided with function signatures")) /* said of tools */
        return false;
    return starts(s, "You are ") || starts(s, "system_message") || starts(s, "system_prompt");
}

/* Such a text elsewhere: the same one is what the template says when there are tools. */
static const char *check_rest(struct span text, const struct chatml *c)
{
    struct span s = text;
    while (s.at < s.end) {
        if (c->n_system && (size_t)(s.end - s.at) >= c->n_system && !memcmp(s.at, c->system, c->n_system)) {
            s.at += c->n_system;
        } else if (begins_system(s)) {
            return "has a default system message that cannot be read";
        } else {
            s.at++;
        }
    }
    return NULL;
}

/* --- the last line --- */

/* What follows add_generation_prompt; with enable_thinking as a client leaves it, not given. */
static const char *check_answer(struct span text)
{
    static const char line[] = CHATML_START "assistant";
    const char *words = "begins an answer in another way than " CHATML_START "assistant";
    struct span s = text;
    s.at = find_last(s, "add_generation_prompt");
    if (!s.at || !(s.at = find(s, line)))
        return words;
    s.at += sizeof line - 1;
    if (!skip_newline(&s) || !is_quote(s))
        return words;
    const char *thought = find(s, "<think>");
    const char *condition = find(s, "enable_thinking is false");
    return thought && (!condition || condition > thought) ? words : NULL;
}

const char *chatml_detect(const char *text, size_t len, struct chatml *out)
{
    *out = (struct chatml){0};
    if (!text)
        return NULL;
    struct span s = {.at = text, .end = text + len};
    if (!find(s, CHATML_START) || !find(s, CHATML_END))
        return "is not ChatML";
    if (find(s, "trim"))
        return "trims what messages say";
    const char *words = check_ends(s);
    if (!words)
        words = take_system(s, out);
    if (!words)
        words = check_rest(s, out);
    if (!words)
        words = check_answer(s);
    out->changes_tools = find(s, "tool") != NULL;
    out->changes_answers = find(s, "think>") || find(s, "loop.last") || find(s, "messages[-1]");
    return words;
}
