/* lark.c - Lark's grammars, read character by character: rules, terminals, regular expressions, imports of
 * common terminals, %ignore. All readings of a text count, as with Lark's Earley parser and dynamic lexer. */
#include "gbnf_private.h"
#include "regex.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define MAX_DEPTH 200
#define IGNORED   "%ignore" /* a rule's name: no text has such a one */

/* The terminals that %import common.NAME defines. */
static const struct {
    const char *name, *regex;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[a-zA-Z_][a-zA-Z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

/* In a rule, ignored text may follow each terminal; inside a terminal it may not. */
struct lark {
    struct gbnf text;
    bool ignores, in_terminal;
};

static struct gbnf_span parse_choice(struct lark *l, bool nested);

static bool going(const struct lark *l)
{
    return !l->text.b->failed && l->text.at < l->text.n;
}

static bool fail(struct lark *l, int code, const char *what)
{
    return gbnf_fail(&l->text, l->text.at, code, what, "");
}

static void skip(struct lark *l, bool newlines)
{
    struct gbnf *p = &l->text;
    while (p->at < p->n) {
        char c = p->s[p->at];
        if (gbnf_looking_at(p, "//") || c == '#')
            while (p->at < p->n && p->s[p->at] != '\n')
                p->at++;
        else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n'))
            p->at++;
        else
            return;
    }
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static const char *take_name(struct lark *l)
{
    struct gbnf *p = &l->text;
    size_t from = p->at;
    while (p->at < p->n && is_name(p->s[p->at]))
        p->at++;
    const char *name = arena_copy(&p->b->arena, p->s + from, p->at - from);
    if (p->at == from)
        fail(l, -EINVAL, "a name is expected");
    return name ? name : "";
}

static bool is_terminal(const char *name)
{
    name += strspn(name, "_");
    return isupper((unsigned char)*name);
}

/* ---- terminals ---- */

static struct gbnf_span put_regex(struct lark *l, const char *s, size_t n, size_t at)
{
    struct gbnf *p = &l->text;
    struct error err = {0};
    const struct dfa *a = NULL;
    struct gbnf_span span = gbnf_new_span(p);
    int rc = p->b->failed ? 0 : regex_compile(&p->b->shop, s, n, REGEX_WHOLE, &a, &err);
    if (rc < 0)
        gbnf_fail(p, at, rc, "in this regular expression: ", err.text);
    else if (a)
        builder_dfa(p->b, a, SPELL_RAW, span.in, span.out, true);
    return span;
}

/* Copies Python's expression as one of ECMA-262, where . has other exceptions. Returns its length. */
static size_t copy_regex(char *out, const char *s, size_t n, bool dot_is_all)
{
    static const char all[] = "[^]", line[] = "[^\\n]";
    bool in_class = false;
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        const char *dot = dot_is_all ? all : line;
        bool is_dot = s[i] == '.' && !in_class;
        if (is_dot) {
            memcpy(out + len, dot, strlen(dot));
            len += strlen(dot);
            continue;
        }
        bool opens = s[i] == '[' && !in_class;
        in_class = in_class ? s[i] != ']' : opens;
        out[len++] = s[i];
        if (opens && i + 1 < n && s[i + 1] == '^')
            out[len++] = s[++i];
        if (opens && i + 1 < n && s[i + 1] == ']') { /* the first one is a member of the class */
            out[len++] = '\\';
            out[len++] = s[++i];
        }
        if (s[i] == '\\' && i + 1 < n)
            out[len++] = s[++i];
    }
    return len;
}

static struct gbnf_span parse_regex(struct lark *l)
{
    struct gbnf *p = &l->text;
    size_t from = p->at;
    bool dot_is_all = false;
    while (going(l) && p->s[p->at] != '/' && p->s[p->at] != '\n')
        p->at += 1 + (p->s[p->at] == '\\');
    p->at = p->at < p->n ? p->at : p->n;
    size_t end = p->at;
    if (!gbnf_take(p, "/"))
        fail(l, -EINVAL, "a regular expression without its closing /");
    for (; going(l) && strchr("imslux", p->s[p->at]); p->at++) {
        dot_is_all |= p->s[p->at] == 's';
        if (p->s[p->at] != 's' && p->s[p->at] != 'u')
            fail(l, -ENOTSUP, "a flag of a regular expression other than s and u is not supported");
    }
    char *copy = p->b->failed ? NULL : arena_alloc(&p->b->arena, 5 * (end - from) + 1);
    if (!copy) {
        if (!p->b->failed)
            builder_fail(p->b, -ENOMEM, "out of memory");
        return gbnf_new_span(p);
    }
    return put_regex(l, copy, copy_regex(copy, p->s + from, end - from, dot_is_all), from - 1);
}

/* Reads a string behind its quote; of one character *code is that, else -1. */
static struct gbnf_span parse_string(struct lark *l, int64_t *code)
{
    struct gbnf *p = &l->text;
    struct gbnf_span s = gbnf_new_span(p);
    size_t from = p->at, end;
    uint32_t at = s.in, n = 0;
    while (going(l) && p->s[p->at] != '"' && p->s[p->at] != '\n')
        p->at += 1 + (p->s[p->at] == '\\');
    end = p->at;
    bool any_case = end + 1 < p->n && p->s[end + 1] == 'i' && (end + 2 >= p->n || !is_name(p->s[end + 2]));
    p->at = from;
    for (; going(l) && p->at < end; n++) {
        uint32_t next = builder_state(p->b), c = gbnf_take_char(p);
        builder_codes(p->b, at, c, c, next, false);
        if (any_case && c < 0x80 && isalpha((int)c))
            builder_codes(p->b, at, c ^ 0x20, c ^ 0x20, next, false);
        if (any_case && c >= 0x80)
            fail(l, -ENOTSUP, "the flag i with characters beyond ASCII is not supported");
        *code = c;
        at = next;
    }
    *code = n == 1 ? *code : -1;
    if (!gbnf_take(p, "\""))
        fail(l, -EINVAL, "a string without its closing quote");
    p->at += any_case && !p->b->failed;
    builder_empty(p->b, at, s.out);
    return s;
}

static struct gbnf_span parse_string_or_range(struct lark *l)
{
    int64_t lo = -1, hi = -1;
    struct gbnf_span s = parse_string(l, &lo);
    skip(l, false);
    if (!gbnf_take(&l->text, ".."))
        return s;
    skip(l, false);
    if (!gbnf_take(&l->text, "\"")) {
        fail(l, -EINVAL, "the end of a range is expected");
        return s;
    }
    (void)parse_string(l, &hi);
    if (!l->text.b->failed && (lo < 0 || hi < lo))
        fail(l, -EINVAL, "a range must lead from one character to a later one");
    s = gbnf_new_span(&l->text);
    if (!l->text.b->failed)
        builder_codes(l->text.b, s.in, (uint32_t)lo, (uint32_t)hi, s.out, false);
    return s;
}

/* Appends a call of the rule of ignored texts. */
static struct gbnf_span with_ignored(struct lark *l, struct gbnf_span s)
{
    struct gbnf *p = &l->text;
    if (!l->ignores || l->in_terminal)
        return s;
    uint32_t rule = gbnf_rule_of(p, IGNORED);
    struct gbnf_span out = {s.in, builder_state(p->b)};
    if (!p->b->failed)
        builder_call(p->b, s.out, p->rules[rule].start, out.out, false);
    return out;
}

/* ---- rules ---- */

static struct gbnf_span parse_group(struct lark *l, const char *close, bool optional)
{
    struct gbnf_span s = {0};
    if (++l->text.depth > MAX_DEPTH)
        fail(l, -E2BIG, "groups nested more than 200 deep");
    s = l->text.b->failed ? s : parse_choice(l, true);
    l->text.depth--;
    if (!gbnf_take(&l->text, close))
        fail(l, -EINVAL, "a group without its end");
    return optional ? gbnf_repeated(&l->text, s, 0, 1) : s;
}

static struct gbnf_span parse_atom(struct lark *l)
{
    struct gbnf *p = &l->text;
    if (gbnf_take(p, "("))
        return parse_group(l, ")", false);
    if (gbnf_take(p, "["))
        return parse_group(l, "]", true);
    if (gbnf_take(p, "\""))
        return with_ignored(l, parse_string_or_range(l));
    if (gbnf_take(p, "/"))
        return with_ignored(l, parse_regex(l));
    const char *name = take_name(l);
    struct gbnf_span s = gbnf_new_span(p);
    if (gbnf_looking_at(p, "{"))
        fail(l, -ENOTSUP, "a template is not supported");
    uint32_t rule = gbnf_rule_of(p, name);
    if (!p->b->failed)
        builder_call(p->b, s.in, p->rules[rule].start, s.out, false);
    return is_terminal(name) ? with_ignored(l, s) : s;
}

static bool take_repetition(struct lark *l, uint32_t *min, uint32_t *max)
{
    struct gbnf *p = &l->text;
    if (!gbnf_take(p, "~"))
        return !gbnf_looking_at(p, "{") && gbnf_take_repetition(p, min, max);
    skip(l, false);
    if (!gbnf_take_number(p, min))
        fail(l, -EINVAL, "a number is expected");
    *max = *min;
    if (gbnf_take(p, "..") && !gbnf_take_number(p, max))
        fail(l, -EINVAL, "a number is expected");
    if (*max < *min)
        fail(l, -EINVAL, "a repetition whose end is before its beginning");
    return true;
}

static bool at_end(const struct lark *l)
{
    const struct gbnf *p = &l->text;
    return !going(l) || strchr("|)]\n", p->s[p->at]) || gbnf_looking_at(p, "->");
}

static struct gbnf_span parse_sequence(struct lark *l, bool nested)
{
    struct gbnf *p = &l->text;
    uint32_t in = builder_state(p->b), at = in, min, max;
    for (skip(l, nested); !at_end(l); skip(l, nested)) {
        struct gbnf_span x = parse_atom(l);
        skip(l, nested);
        while (!p->b->failed && take_repetition(l, &min, &max)) {
            x = gbnf_repeated(p, x, min, max);
            skip(l, nested);
        }
        builder_empty(p->b, at, x.in);
        at = x.out;
    }
    if (gbnf_take(p, "->")) { /* a name for the tree */
        skip(l, false);
        (void)take_name(l);
        skip(l, nested);
    }
    return (struct gbnf_span){in, at};
}

static bool goes_on(struct lark *l)
{
    size_t at = l->text.at;
    skip(l, true);
    bool is = gbnf_looking_at(&l->text, "|");
    l->text.at = is ? l->text.at : at;
    return is;
}

static struct gbnf_span parse_choice(struct lark *l, bool nested)
{
    struct gbnf *p = &l->text;
    struct gbnf_span s = gbnf_new_span(p);
    do {
        struct gbnf_span one = parse_sequence(l, nested);
        builder_empty(p->b, s.in, one.in);
        builder_empty(p->b, one.out, s.out);
    } while (!p->b->failed && goes_on(l) && gbnf_take(p, "|"));
    return s;
}

/* ---- statements ---- */

static void import(struct lark *l, const char *name, const char *as)
{
    size_t i = 0, n = sizeof common / sizeof *common;
    while (i < n && strcmp(common[i].name, name) != 0)
        i++;
    if (i == n) {
        gbnf_fail(&l->text, l->text.at, -ENOTSUP, "common has no terminal that is known as ", name);
        return;
    }
    uint32_t rule = gbnf_rule_of(&l->text, as);
    if (gbnf_may_define(&l->text, rule, l->text.at))
        gbnf_define(&l->text, rule, put_regex(l, common[i].regex, strlen(common[i].regex), l->text.at));
}

static void parse_import(struct lark *l)
{
    struct gbnf *p = &l->text;
    skip(l, false);
    if (!gbnf_take(p, "common")) {
        fail(l, -ENOTSUP, "an import from elsewhere than common is not supported");
        return;
    }
    skip(l, false);
    if (gbnf_take(p, ".")) {
        const char *name = take_name(l), *as = name;
        skip(l, false);
        if (gbnf_take(p, "->")) {
            skip(l, false);
            as = take_name(l);
        }
        import(l, name, as);
        return;
    }
    if (!gbnf_take(p, "("))
        fail(l, -EINVAL, "common.NAME or common (NAME, …) is expected");
    do {
        skip(l, true);
        const char *name = take_name(l);
        if (!p->b->failed)
            import(l, name, name);
        skip(l, true);
    } while (!p->b->failed && gbnf_take(p, ","));
    if (!gbnf_take(p, ")"))
        fail(l, -EINVAL, "a list without )");
}

/* Adds one more text that may stand between terminals. */
static void parse_ignore(struct lark *l)
{
    struct gbnf *p = &l->text;
    l->in_terminal = true;
    struct gbnf_span s = parse_choice(l, false);
    uint32_t rule = gbnf_rule_of(p, IGNORED);
    if (p->b->failed)
        return;
    builder_empty(p->b, p->rules[rule].end, s.in);
    builder_empty(p->b, s.out, p->rules[rule].end);
}

static void parse_rule(struct lark *l)
{
    struct gbnf *p = &l->text;
    size_t at = p->at;
    while (gbnf_take(p, "?") || gbnf_take(p, "!")) /* for the tree */
        ;
    const char *name = take_name(l);
    uint32_t rule = gbnf_rule_of(p, name), priority;
    skip(l, false);
    if (gbnf_looking_at(p, "{"))
        fail(l, -ENOTSUP, "a template is not supported");
    if (gbnf_take(p, "."))
        (void)gbnf_take_number(p, &priority); /* which reading wins; all count here */
    skip(l, false);
    if (!gbnf_take(p, ":"))
        fail(l, -EINVAL, ": is expected after a rule's name");
    if (!gbnf_may_define(p, rule, at))
        return;
    l->in_terminal = is_terminal(name);
    gbnf_define(p, rule, parse_choice(l, false));
}

static void parse_statement(struct lark *l)
{
    struct gbnf *p = &l->text;
    if (gbnf_take(p, "%import"))
        parse_import(l);
    else if (gbnf_take(p, "%ignore"))
        parse_ignore(l);
    else if (gbnf_looking_at(p, "%"))
        fail(l, -ENOTSUP, "a directive other than %import and %ignore is not supported");
    else
        parse_rule(l);
    skip(l, false);
    if (going(l) && !gbnf_looking_at(p, "\n"))
        fail(l, -EINVAL, "the end of the line is expected");
    skip(l, true);
}

static void define_ignored(struct lark *l)
{
    struct gbnf *p = &l->text;
    uint32_t rule = gbnf_rule_of(p, IGNORED);
    if (!p->b->failed && gbnf_may_define(p, rule, 0)) {
        builder_empty(p->b, p->rules[rule].start, p->rules[rule].end);
        builder_final(p->b, p->rules[rule].end);
    }
}

/* The name of the rule to begin with: a text begins with what is ignored, then `start`. */
static const char *put_start(struct lark *l)
{
    struct gbnf *p = &l->text;
    if (l->ignores)
        define_ignored(l);
    if (p->b->failed || !l->ignores || !gbnf_find(p, "start"))
        return "start";
    uint32_t all = gbnf_rule_of(p, "%start"), between = builder_state(p->b);
    struct gbnf_span s = gbnf_new_span(p);
    if (p->b->failed || !gbnf_may_define(p, all, 0))
        return "start";
    builder_call(p->b, s.in, gbnf_find(p, IGNORED)->start, between, false);
    builder_call(p->b, between, gbnf_find(p, "start")->start, s.out, false);
    gbnf_define(p, all, s);
    return "%start";
}

int grammar_from_lark(struct grammar **out, const char *s, size_t n, struct error *err)
{
    struct builder b;
    struct lark l = {.ignores = memmem(s, n, "%ignore", 7) != NULL};
    gbnf_open(&l.text, &b, s, n);
    skip(&l, true);
    while (going(&l))
        parse_statement(&l);
    return gbnf_finish(&l.text, put_start(&l), out, err);
}

/* True if the first rule is GBNF's: a name, then ::=. */
static bool is_gbnf(const char *s, size_t n)
{
    struct gbnf text = {.s = s, .n = n};
    struct lark l = {.text = text};
    skip(&l, true);
    size_t from = l.text.at;
    while (l.text.at < n && (is_name(s[l.text.at]) || s[l.text.at] == '-'))
        l.text.at++;
    bool named = l.text.at > from;
    skip(&l, false);
    return named && gbnf_looking_at(&l.text, "::=");
}

int grammar_from_text(struct grammar **out, const char *s, size_t n, struct error *err)
{
    return is_gbnf(s, n) ? grammar_from_gbnf(out, s, n, err) : grammar_from_lark(out, s, n, err);
}
