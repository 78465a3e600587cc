#include "regex.h"
#include "base/utf8.h"
#include "code_ranges.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define MAX_DEPTH  200
#define MAX_REPEAT 100000
#define UNBOUNDED  UINT32_MAX

struct parser {
    struct dfa_workshop *shop;
    const char *s;
    size_t n, at;
    unsigned depth;
    struct nfa nfa;
    struct error *err;
    int rc; /* the first error */
};

struct span { /* a part of the automaton: from `in` to `out` */
    uint32_t in, out;
};

static struct span parse_choice(struct parser *p);

static bool fail(struct parser *p, int code, const char *what)
{
    if (p->rc == 0)
        p->rc = error_set(p->err, code, "%s at byte %zu of the pattern", what, p->at);
    return false;
}

static bool exhausted(struct parser *p)
{
    return fail(p, p->shop->no_memory ? -ENOMEM : -E2BIG,
                p->shop->no_memory ? "out of memory" : "too large an automaton");
}

static bool at_end(const struct parser *p)
{
    return p->at >= p->n || p->rc < 0;
}

/* A NUL, which a pattern may hold, is none of them. */
static bool is_one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

static bool looking_at(const struct parser *p, const char *text)
{
    size_t len = strlen(text);
    return p->n - p->at >= len && !memcmp(p->s + p->at, text, len);
}

static bool take(struct parser *p, const char *text)
{
    bool is = p->rc == 0 && looking_at(p, text);
    p->at += is ? strlen(text) : 0;
    return is;
}

static uint32_t take_code(struct parser *p)
{
    size_t len = utf8_char(p->s + p->at, p->n - p->at);
    uint32_t code = len ? utf8_code(p->s + p->at, len) : 0xfffd;
    if (!len)
        fail(p, -EINVAL, "bytes that are not UTF-8");
    p->at += len + !len;
    return code;
}

static struct span new_span(struct parser *p)
{
    struct span s = {nfa_state(&p->nfa), 0};
    s.out = nfa_state(&p->nfa);
    if (p->nfa.failed)
        exhausted(p);
    return s;
}

static struct span empty_span(struct parser *p)
{
    uint32_t s = nfa_state(&p->nfa);
    if (p->nfa.failed)
        exhausted(p);
    return (struct span){s, s};
}

static struct span symbol_span(struct parser *p, uint32_t lo, uint32_t hi)
{
    struct span s = new_span(p);
    nfa_edge(&p->nfa, s.in, lo, hi, s.out);
    return s;
}

static struct span set_span(struct parser *p, const struct code_ranges *set)
{
    struct span s = new_span(p);
    for (size_t i = 0; i < set->n; i++)
        nfa_edge(&p->nfa, s.in, set->r[i].lo, set->r[i].hi, s.out);
    return s;
}

/* ---- escapes and classes ---- */

static bool add(struct parser *p, struct code_ranges *set, uint32_t lo, uint32_t hi)
{
    return ranges_add(p->shop, set, lo, hi) || exhausted(p);
}

static void add_space(struct parser *p, struct code_ranges *set)
{
    static const struct code_range spaces[] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        add(p, set, spaces[i].lo, spaces[i].hi);
}

static void add_word(struct parser *p, struct code_ranges *set)
{
    add(p, set, '0', '9');
    add(p, set, 'A', 'Z');
    add(p, set, '_', '_');
    add(p, set, 'a', 'z');
}

static void add_property(struct parser *p, struct code_ranges *set)
{
    size_t start = p->at + 1;
    const char *close = looking_at(p, "{") ? memchr(p->s + start, '}', p->n - start) : NULL;
    if (!close) {
        fail(p, -EINVAL, "\\p without {name}");
        return;
    }
    size_t len = (size_t)(close - p->s) - start;
    int rc = ranges_add_property(p->shop, set, p->s + start, len);
    p->at = start + len + 1;
    if (rc == -ENOMEM)
        exhausted(p);
    else if (rc < 0)
        fail(p, -ENOTSUP, "an unknown property in \\p{}");
}

/* Adds what \d, \W, \p{..} and so on stand for; false when the letter is none of them. */
static bool add_class_escape(struct parser *p, char c, struct code_ranges *set)
{
    struct code_ranges own = {0};
    char small = (char)tolower((unsigned char)c);
    if (small == 'd')
        add(p, &own, '0', '9');
    else if (small == 'w')
        add_word(p, &own);
    else if (small == 's')
        add_space(p, &own);
    else if (small == 'p')
        add_property(p, &own);
    else
        return false;
    if (c != small && !ranges_invert(p->shop, &own))
        exhausted(p);
    if (!ranges_add_all(p->shop, set, &own))
        exhausted(p);
    return true;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `digits` hex digits; -1 (and nothing taken) when they are not there. */
static int64_t take_hex(struct parser *p, unsigned digits)
{
    int64_t code = 0;
    if (p->n - p->at < digits)
        return -1;
    for (unsigned i = 0; i < digits; i++) {
        int d = hex_digit(p->s[p->at + i]);
        if (d < 0)
            return -1;
        code = code * 16 + d;
    }
    p->at += digits;
    return code;
}

static uint32_t take_unicode(struct parser *p)
{
    if (take(p, "{")) {
        int64_t code = 0;
        size_t start = p->at;
        for (int d; p->at < p->n && (d = hex_digit(p->s[p->at])) >= 0 && code <= DFA_MAX_CODE; p->at++)
            code = code * 16 + d;
        if (p->at == start || code > DFA_MAX_CODE || !take(p, "}"))
            fail(p, -EINVAL, "a broken \\u{}");
        return (uint32_t)code;
    }
    int64_t high = take_hex(p, 4);
    if (high < 0)
        fail(p, -EINVAL, "\\u without four hex digits");
    if (high < 0xd800 || high > 0xdbff || !looking_at(p, "\\u"))
        return (uint32_t)high;
    p->at += 2;
    int64_t low = take_hex(p, 4);
    if (low < 0xdc00 || low > 0xdfff)
        fail(p, -EINVAL, "half a surrogate pair");
    return (uint32_t)(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
}

/* The one code point of an escape; the backslash is taken. */
static uint32_t take_escape(struct parser *p)
{
    static const char letters[] = "fnrtv0", codes[] = "\f\n\r\t\v\0";
    if (at_end(p)) {
        fail(p, -EINVAL, "a backslash at the end");
        return 0;
    }
    char c = p->s[p->at];
    const char *known = memchr(letters, c, sizeof letters - 1);
    if (known) {
        p->at++;
        return (uint8_t)codes[known - letters];
    }
    if (c == 'x' || c == 'u' || c == 'c') {
        p->at++;
        if (c == 'u')
            return take_unicode(p);
        if (c == 'c' && p->at < p->n && isalpha((unsigned char)p->s[p->at]))
            return (uint32_t)p->s[p->at++] & 31;
        int64_t code = c == 'x' ? take_hex(p, 2) : -1;
        if (code < 0)
            fail(p, -EINVAL, c == 'x' ? "\\x without two hex digits" : "\\c without a letter");
        return (uint32_t)code;
    }
    if (isalnum((unsigned char)c))
        fail(p, c >= '1' && c <= '9' ? -ENOTSUP : -EINVAL,
             (c >= '1' && c <= '9') || c == 'k' ? "a backreference" : "an unknown escape");
    return take_code(p);
}

/* One end of a range, or a whole class escape (*whole). */
static uint32_t class_item(struct parser *p, struct code_ranges *set, bool *whole)
{
    *whole = false;
    if (!take(p, "\\"))
        return take_code(p);
    if (take(p, "b"))
        return 8;
    if (take(p, "-"))
        return '-';
    if (!at_end(p) && is_one_of(p->s[p->at], "dDwWsSpP")) {
        char c = p->s[p->at++];
        *whole = add_class_escape(p, c, set);
        return 0;
    }
    return take_escape(p);
}

static struct span parse_class(struct parser *p)
{
    struct code_ranges set = {0};
    bool inverted = take(p, "^"), whole;
    while (!at_end(p) && !looking_at(p, "]")) {
        uint32_t lo = class_item(p, &set, &whole);
        if (whole)
            continue;
        uint32_t hi = lo;
        if (looking_at(p, "-") && p->n - p->at > 1 && p->s[p->at + 1] != ']') {
            p->at++;
            hi = class_item(p, &set, &whole);
            if (whole) { /* [a-\d]: three things */
                add(p, &set, '-', '-');
                hi = lo;
            }
        }
        if (hi < lo)
            fail(p, -EINVAL, "a range that runs backwards");
        add(p, &set, lo, hi);
    }
    if (!take(p, "]"))
        fail(p, -EINVAL, "a class without ]");
    if (inverted && !ranges_invert(p->shop, &set))
        exhausted(p);
    return set_span(p, &set);
}

/* ---- atoms ---- */

static struct span parse_dot(struct parser *p)
{
    struct code_ranges set = {0};
    add(p, &set, '\n', '\n');
    add(p, &set, '\r', '\r');
    add(p, &set, 0x2028, 0x2029);
    if (!ranges_invert(p->shop, &set))
        exhausted(p);
    return set_span(p, &set);
}

static struct span parse_group(struct parser *p)
{
    if (looking_at(p, "?=") || looking_at(p, "?!"))
        fail(p, -ENOTSUP, "a lookahead that is not at the beginning");
    else if (looking_at(p, "?<=") || looking_at(p, "?<!"))
        fail(p, -ENOTSUP, "a lookbehind");
    else if (take(p, "?<")) {
        while (!at_end(p) && p->s[p->at] != '>')
            p->at++;
        if (!take(p, ">"))
            fail(p, -EINVAL, "a group's name without >");
    } else if (!take(p, "?:") && looking_at(p, "?"))
        fail(p, -ENOTSUP, "a group with flags");
    if (++p->depth > MAX_DEPTH)
        fail(p, -E2BIG, "groups nested more than 200 deep");
    struct span s = parse_choice(p);
    p->depth--;
    if (!take(p, ")"))
        fail(p, -EINVAL, "a group without )");
    return s;
}

static struct span parse_backslash(struct parser *p)
{
    struct code_ranges set = {0};
    if (looking_at(p, "b") || looking_at(p, "B"))
        fail(p, -ENOTSUP, "a word boundary (\\b)");
    if (!at_end(p) && is_one_of(p->s[p->at], "dDwWsSpP")) {
        char c = p->s[p->at++];
        add_class_escape(p, c, &set);
        return set_span(p, &set);
    }
    uint32_t code = take_escape(p);
    return symbol_span(p, code, code);
}

static struct span parse_atom(struct parser *p)
{
    if (take(p, "("))
        return parse_group(p);
    if (take(p, "["))
        return parse_class(p);
    if (take(p, "."))
        return parse_dot(p);
    if (take(p, "\\"))
        return parse_backslash(p);
    if (take(p, "^"))
        return symbol_span(p, DFA_BEGIN, DFA_BEGIN);
    if (take(p, "$"))
        return symbol_span(p, DFA_END, DFA_END);
    if (is_one_of(p->s[p->at], "*+?"))
        fail(p, -EINVAL, "a quantifier without anything before it");
    uint32_t code = take_code(p);
    return symbol_span(p, code, code);
}

/* ---- quantifiers ---- */

static bool take_number(struct parser *p, uint32_t *out)
{
    size_t start = p->at;
    uint64_t v = 0;
    for (; p->at < p->n && isdigit((unsigned char)p->s[p->at]); p->at++)
        v = v < MAX_REPEAT + 1 ? 10 * v + (uint64_t)(p->s[p->at] - '0') : v;
    if (v > MAX_REPEAT)
        fail(p, -E2BIG, "more than 100000 repetitions");
    *out = (uint32_t)v;
    return p->at > start;
}

/* Reads * + ? {m} {m,} {m,n}; a brace that begins none of them is a letter. */
static bool take_quantifier(struct parser *p, uint32_t *min, uint32_t *max)
{
    size_t start = p->at;
    *min = 0;
    *max = UNBOUNDED;
    if (take(p, "*"))
        return true;
    if (take(p, "+")) {
        *min = 1;
        return true;
    }
    if (take(p, "?")) {
        *max = 1;
        return true;
    }
    if (!take(p, "{") || !take_number(p, min)) {
        p->at = start;
        return false;
    }
    *max = *min;
    if (take(p, ",") && !take_number(p, max))
        *max = UNBOUNDED;
    if (!take(p, "}")) {
        p->at = start;
        return false;
    }
    if (*max < *min)
        fail(p, -EINVAL, "a repetition whose end is before its beginning");
    return true;
}

/* Copies of an atom come from reading its text again. */
static struct span repeat(struct parser *p, struct span first, size_t from, size_t to, uint32_t min,
                          uint32_t max)
{
    struct span all = empty_span(p);
    size_t behind = p->at;
    uint32_t copies = max == UNBOUNDED ? min + !min : max, end = nfa_state(&p->nfa);
    for (uint32_t i = 0; i < copies && p->rc == 0; i++) {
        struct span one = first;
        if (i > 0) {
            p->at = from;
            one = parse_atom(p);
        }
        if (i >= min)
            nfa_empty(&p->nfa, all.out, end);
        nfa_empty(&p->nfa, all.out, one.in);
        if (max == UNBOUNDED && i + 1 == copies)
            nfa_empty(&p->nfa, one.out, one.in);
        all.out = one.out;
        if (!dfa_work(p->shop, 1 + (to - from)))
            exhausted(p);
    }
    nfa_empty(&p->nfa, all.out, end);
    p->at = behind;
    return (struct span){all.in, end};
}

static struct span parse_item(struct parser *p)
{
    size_t from = p->at;
    bool assertion = looking_at(p, "^") || looking_at(p, "$");
    struct span s = parse_atom(p);
    size_t to = p->at;
    uint32_t min, max;
    if (at_end(p) || assertion || !take_quantifier(p, &min, &max))
        return s;
    take(p, "?"); /* lazy: the same texts */
    struct span all = repeat(p, s, from, to, min, max);
    if (!at_end(p) && is_one_of(p->s[p->at], "*+?"))
        fail(p, -EINVAL, "a quantifier after a quantifier");
    return all;
}

static struct span parse_sequence(struct parser *p)
{
    struct span all = empty_span(p);
    while (!at_end(p) && !looking_at(p, "|") && !looking_at(p, ")")) {
        struct span next = parse_item(p);
        nfa_empty(&p->nfa, all.out, next.in);
        all.out = next.out;
    }
    return all;
}

static struct span parse_choice(struct parser *p)
{
    struct span all = new_span(p);
    do {
        struct span one = parse_sequence(p);
        nfa_empty(&p->nfa, all.in, one.in);
        nfa_empty(&p->nfa, one.out, all.out);
    } while (take(p, "|"));
    return all;
}

/* ---- the whole ---- */

/* Texts with marked ends in which s[from, to) matches somewhere (at their beginning when `bound`; from end to
 * end when `whole`). */
static const struct dfa *match(struct parser *p, size_t from, size_t to, bool bound, bool whole)
{
    size_t n = p->n;
    p->at = from;
    p->n = to;
    nfa_open(&p->nfa, p->shop);
    struct span s = parse_choice(p);
    if (p->rc == 0 && p->at < to)
        fail(p, -EINVAL, "an unmatched )");
    struct nfa *a = &p->nfa;
    uint32_t before = nfa_state(a), after = nfa_state(a);
    if (whole) {
        nfa_edge(a, NFA_START, DFA_BEGIN, DFA_BEGIN, s.in);
        nfa_edge(a, s.out, DFA_END, DFA_END, NFA_ACCEPT);
    }
    nfa_empty(a, NFA_START, s.in); /* ^ takes the mark itself */
    nfa_edge(a, NFA_START, DFA_BEGIN, DFA_BEGIN, before);
    if (!bound && !whole)
        nfa_edge(a, before, 0, DFA_MAX_CODE, before);
    nfa_empty(a, before, s.in);
    if (!whole)
        nfa_edge(a, after, 0, DFA_MAX_CODE, after);
    nfa_empty(a, s.out, after);
    nfa_edge(a, after, DFA_END, DFA_END, NFA_ACCEPT);
    nfa_empty(a, s.out, NFA_ACCEPT); /* so does $ */
    p->n = n;
    const struct dfa *marked = p->rc == 0 ? nfa_dfa(a) : NULL;
    const struct dfa *d = marked ? dfa_strip(p->shop, marked) : NULL;
    if (!d && p->rc == 0)
        exhausted(p);
    return d;
}

/* Takes the next byte at or behind *i that is not part of a class or escaped. Returns false at the end. */
static bool next_syntax(const struct parser *p, size_t *i, char *c)
{
    for (bool class = false; *i < p->n;) {
        *c = p->s[(*i)++];
        if (*c == '\\')
            ++*i;
        else if (class)
            class = *c != ']';
        else if (*c == '[')
            class = true;
        else
            return true;
    }
    return false;
}

/* The byte behind the group that begins at `from`, or 0. */
static size_t group_end(const struct parser *p, size_t from)
{
    unsigned depth = 0;
    char c;
    for (size_t i = from; next_syntax(p, &i, &c);) {
        depth += c == '(';
        if (c == ')' && --depth == 0)
            return i;
    }
    return 0;
}

/* True when s[from...) has an alternative outside of groups: a lookahead in front is of the first only. */
static bool has_choice(const struct parser *p, size_t from)
{
    unsigned depth = 0;
    char c;
    for (size_t i = from; next_syntax(p, &i, &c);) {
        depth += (c == '(') - (c == ')');
        if (c == '|' && depth == 0)
            return true;
    }
    return false;
}

/* Reads lookaheads in front: the texts they leave. *from moves behind them. */
static const struct dfa *lookaheads(struct parser *p, size_t *from)
{
    const struct dfa *left = dfa_all(p->shop);
    while (left && p->rc == 0 && p->n - *from > 3 && p->s[*from] == '(' && p->s[*from + 1] == '?' &&
           (p->s[*from + 2] == '=' || p->s[*from + 2] == '!')) {
        size_t end = group_end(p, *from);
        p->at = *from;
        if (!end || has_choice(p, end)) {
            fail(p, end ? -ENOTSUP : -EINVAL,
                 end ? "a lookahead that is not at the beginning" : "a group without )");
            return NULL;
        }
        enum dfa_op op = p->s[*from + 2] == '!' ? DFA_MINUS : DFA_AND;
        const struct dfa *seen = match(p, *from + 3, end - 1, true, false);
        left = seen ? dfa_combine(p->shop, op, left, seen) : NULL;
        *from = end;
    }
    return left;
}

int regex_compile(struct dfa_workshop *shop, const char *s, size_t n, enum regex_kind kind,
                  const struct dfa **out, struct error *err)
{
    struct parser p = {.shop = shop, .s = s, .n = n, .err = err};
    bool anchored = kind == REGEX_WHOLE || (n > 0 && s[0] == '^');
    size_t from = n > 0 && s[0] == '^';
    size_t start = from;
    const struct dfa *left = NULL;
    if (anchored)
        left = lookaheads(&p, &from);
    bool ahead = from > start;
    const struct dfa *d = p.rc == 0 ? match(&p, ahead ? from : 0, n, ahead, kind == REGEX_WHOLE) : NULL;
    if (d && ahead)
        d = left ? dfa_combine(shop, DFA_AND, d, left) : NULL;
    if (p.rc == 0 && !d)
        exhausted(&p);
    if (p.rc == 0)
        *out = d;
    return p.rc;
}
