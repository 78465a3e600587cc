/* gbnf.c - llama.cpp's grammar language: rules of literals, classes, groups, alternatives and repetitions. */
#include "base/hash.h"
#include "base/utf8.h"
#include "gbnf_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH  200
#define MAX_RULES  16384
#define MAX_REPEAT 1000000
#define SLOTS      (1 << 15) /* twice MAX_RULES */

bool gbnf_fail(struct gbnf *p, size_t at, int code, const char *what, const char *name)
{
    size_t line = 1, column = 1;
    if (p->b->failed) /* the first failure says more */
        return false;
    for (size_t i = 0; i < at && i < p->n; i++) {
        column = p->s[i] == '\n' ? 1 : column + 1;
        line += p->s[i] == '\n';
    }
    builder_fail(p->b, code, "line %zu, column %zu: %s%s", line, column, what, name);
    return false;
}

static bool fail(struct gbnf *p, const char *what)
{
    return gbnf_fail(p, p->at, -EINVAL, what, "");
}

static bool going(const struct gbnf *p)
{
    return !p->b->failed && p->at < p->n;
}

bool gbnf_looking_at(const struct gbnf *p, const char *text)
{
    size_t len = strlen(text);
    return p->n - p->at >= len && !memcmp(p->s + p->at, text, len);
}

void gbnf_skip_space(struct gbnf *p, bool newlines)
{
    while (p->at < p->n) {
        char c = p->s[p->at];
        if (c == '#')
            while (p->at < p->n && p->s[p->at] != '\n')
                p->at++;
        else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')))
            p->at++;
        else
            return;
    }
}

bool gbnf_take(struct gbnf *p, const char *text)
{
    bool is = !p->b->failed && gbnf_looking_at(p, text);
    p->at += is ? strlen(text) : 0;
    return is;
}

/* ---- rules ---- */

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '_';
}

const char *gbnf_take_name(struct gbnf *p)
{
    size_t from = p->at;
    while (p->at < p->n && is_name(p->s[p->at]))
        p->at++;
    const char *name = arena_copy(&p->b->arena, p->s + from, p->at - from);
    if (p->at == from)
        fail(p, "a rule's name is expected");
    return name ? name : "";
}

static uint32_t *slot_of(const struct gbnf *p, const char *name)
{
    uint64_t h = hash_bytes(p->seed, name, strlen(name));
    while (p->slots[h & (SLOTS - 1)] && strcmp(p->rules[p->slots[h & (SLOTS - 1)] - 1].name, name) != 0)
        h++;
    return &p->slots[h & (SLOTS - 1)];
}

struct gbnf_rule *gbnf_find(const struct gbnf *p, const char *name)
{
    uint32_t slot = *slot_of(p, name);
    return slot ? &p->rules[slot - 1] : NULL;
}

/* Finds or makes a rule. */
uint32_t gbnf_rule_of(struct gbnf *p, const char *name)
{
    uint32_t *slot = p->b->failed ? NULL : slot_of(p, name);
    if (!slot)
        return 0;
    if (*slot)
        return *slot - 1;
    if (p->n_rules == MAX_RULES) {
        builder_fail(p->b, -E2BIG, "more than %d rules", MAX_RULES);
        return 0;
    }
    if (p->n_rules == p->room) {
        uint32_t more = p->room ? 2 * p->room : 32;
        struct gbnf_rule *r = arena_grow(&p->b->arena, p->rules, p->room * sizeof *r, more * sizeof *r);
        if (!r || !dfa_work(&p->b->shop, 100 * (uint64_t)more)) {
            p->b->shop.no_memory |= !r;
            builder_exhausted(p->b);
            return 0;
        }
        p->rules = r;
        p->room = more;
    }
    p->rules[p->n_rules] = (struct gbnf_rule){
        .name = name, .start = builder_state(p->b), .end = builder_state(p->b), .used_at = p->at};
    *slot = p->n_rules + 1;
    return p->n_rules++;
}

static const char *rule_name(const void *context, uint32_t state)
{
    const struct gbnf *p = context;
    for (uint32_t i = 0; i < p->n_rules; i++)
        if (p->rules[i].start == state)
            return p->rules[i].name;
    return NULL;
}

/* ---- elements ---- */

struct gbnf_span gbnf_new_span(struct gbnf *p)
{
    uint32_t in = builder_state(p->b);
    return (struct gbnf_span){in, builder_state(p->b)};
}

static int hex_digit(char c)
{
    if (isdigit((unsigned char)c))
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static uint32_t take_hex(struct gbnf *p, unsigned digits)
{
    uint32_t code = 0;
    for (unsigned i = 0; i < digits; i++, p->at++) {
        int d = p->at < p->n ? hex_digit(p->s[p->at]) : -1;
        if (d < 0) {
            fail(p, "a hex digit is expected");
            return 0;
        }
        code = code * 16 + (uint32_t)d;
    }
    if (code > DFA_MAX_CODE || (code >= 0xd800 && code < 0xe000)) {
        fail(p, "an escape that is no Unicode character");
        return 0;
    }
    return code;
}

uint32_t gbnf_take_char(struct gbnf *p)
{
    if (!gbnf_take(p, "\\")) {
        size_t len = p->at < p->n ? utf8_char(p->s + p->at, p->n - p->at) : 0;
        if (!len) {
            fail(p, p->at < p->n ? "bytes that are not UTF-8" : "the grammar ends too early");
            return 0;
        }
        p->at += len;
        return utf8_code(p->s + p->at - len, len);
    }
    if (!going(p)) {
        fail(p, "a backslash at the end");
        return 0;
    }
    char c = p->s[p->at++];
    switch (c) {
    case 'n':
        return '\n';
    case 't':
        return '\t';
    case 'r':
        return '\r';
    case 'x':
        return take_hex(p, 2);
    case 'u':
        return take_hex(p, 4);
    case 'U':
        return take_hex(p, 8);
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        return (uint32_t)c;
    default:
        p->at--;
        fail(p, "an unknown escape");
        return 0;
    }
}

static struct gbnf_span parse_literal(struct gbnf *p)
{
    struct gbnf_span s = gbnf_new_span(p);
    uint32_t at = s.in;
    while (going(p) && !gbnf_looking_at(p, "\"")) {
        uint32_t next = builder_state(p->b), code = gbnf_take_char(p);
        builder_codes(p->b, at, code, code, next, false);
        at = next;
    }
    if (!gbnf_take(p, "\""))
        fail(p, "a literal without its closing quote");
    builder_empty(p->b, at, s.out);
    return s;
}

static void put_ranges(struct gbnf *p, struct gbnf_span s, const struct code_ranges *set)
{
    for (size_t i = 0; i < set->n; i++)
        builder_codes(p->b, s.in, set->r[i].lo, set->r[i].hi, s.out, false);
}

void gbnf_take_class(struct gbnf *p, struct code_ranges *set)
{
    bool inverted = gbnf_take(p, "^");
    while (going(p) && !gbnf_looking_at(p, "]")) {
        uint32_t lo = gbnf_take_char(p), hi = lo;
        if (gbnf_looking_at(p, "-") && p->n - p->at > 1 && p->s[p->at + 1] != ']') {
            p->at++;
            hi = gbnf_take_char(p);
        }
        if (hi < lo)
            fail(p, "a range that runs backwards");
        if (!ranges_add(&p->b->shop, set, lo, hi))
            builder_exhausted(p->b);
    }
    if (!gbnf_take(p, "]"))
        fail(p, "a class without ]");
    ranges_sort(set);
    if (inverted && !ranges_invert(&p->b->shop, set))
        builder_exhausted(p->b);
}

static struct gbnf_span parse_class(struct gbnf *p)
{
    struct code_ranges set = {0};
    struct gbnf_span s = gbnf_new_span(p);
    gbnf_take_class(p, &set);
    put_ranges(p, s, &set);
    return s;
}

static struct gbnf_span parse_choice(struct gbnf *p, bool nested);

static struct gbnf_span parse_element(struct gbnf *p)
{
    struct gbnf_span s = {0};
    if (gbnf_take(p, "\""))
        return parse_literal(p);
    if (gbnf_take(p, "["))
        return parse_class(p);
    if (gbnf_take(p, ".")) {
        s = gbnf_new_span(p);
        builder_codes(p->b, s.in, 0, DFA_MAX_CODE, s.out, false);
        return s;
    }
    if (gbnf_take(p, "(")) {
        if (++p->depth > MAX_DEPTH)
            gbnf_fail(p, p->at, -E2BIG, "groups nested more than 200 deep", "");
        gbnf_skip_space(p, true);
        s = p->b->failed ? s : parse_choice(p, true);
        p->depth--;
        if (!gbnf_take(p, ")"))
            fail(p, "a group without )");
        return s;
    }
    if (gbnf_looking_at(p, "<") || gbnf_looking_at(p, "!<")) {
        gbnf_fail(p, p->at, -ENOTSUP, "a token (<...>) is not supported", "");
        return s;
    }
    uint32_t rule = gbnf_rule_of(p, gbnf_take_name(p));
    s = gbnf_new_span(p);
    if (!p->b->failed)
        builder_call(p->b, s.in, p->rules[rule].start, s.out, false);
    return s;
}

/* ---- repetitions ---- */

bool gbnf_take_number(struct gbnf *p, uint32_t *out)
{
    size_t from = p->at;
    uint64_t v = 0;
    for (; p->at < p->n && isdigit((unsigned char)p->s[p->at]); p->at++)
        v = v <= MAX_REPEAT ? 10 * v + (uint64_t)(p->s[p->at] - '0') : v;
    if (v > MAX_REPEAT)
        gbnf_fail(p, p->at, -E2BIG, "more than 1000000 repetitions", "");
    *out = (uint32_t)v;
    return p->at > from;
}

bool gbnf_take_repetition(struct gbnf *p, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GRAMMAR_UNBOUNDED;
    if (gbnf_take(p, "*"))
        return true;
    if (gbnf_take(p, "+"))
        return *min = 1, true;
    if (gbnf_take(p, "?"))
        return *max = 1, true;
    if (!gbnf_take(p, "{"))
        return false;
    gbnf_skip_space(p, true);
    bool low = gbnf_take_number(p, min);
    gbnf_skip_space(p, true);
    *max = *min;
    if (gbnf_take(p, ",")) {
        gbnf_skip_space(p, true);
        if (!gbnf_take_number(p, max))
            *max = GRAMMAR_UNBOUNDED;
        gbnf_skip_space(p, true);
    } else if (!low)
        fail(p, "a number is expected");
    if (!gbnf_take(p, "}"))
        fail(p, "a repetition without }");
    if (*max < *min)
        fail(p, "a repetition whose end is before its beginning");
    return true;
}

/* Makes the element a rule, which another one calls and counts: a thousand repetitions are no more states
 * than two. */
static struct gbnf_span counted(struct gbnf *p, struct gbnf_span x, uint32_t min, uint32_t max)
{
    struct builder *b = p->b;
    struct gbnf_span s = gbnf_new_span(p), rule = gbnf_new_span(p);
    uint32_t behind = builder_state(b), again = builder_state(b), enough = builder_state(b);
    builder_final(b, x.out);
    builder_final(b, rule.out);
    builder_call(b, s.in, rule.in, s.out, false);
    if (min == 0)
        builder_empty(b, rule.in, rule.out);
    if (max == 0)
        return s;
    builder_call(b, rule.in, x.in, behind, true);
    builder_empty(b, behind, again);
    builder_bounds(b, again, 0, max == GRAMMAR_UNBOUNDED ? max : max - 1);
    builder_call(b, again, x.in, behind, true);
    builder_empty(b, behind, enough);
    builder_bounds(b, enough, min, max);
    builder_empty(b, enough, rule.out);
    return s;
}

struct gbnf_span gbnf_repeated(struct gbnf *p, struct gbnf_span x, uint32_t min, uint32_t max)
{
    bool loops = max == GRAMMAR_UNBOUNDED;
    if (min > 1 || (max > 1 && !loops) || max == 0)
        return counted(p, x, min, max);
    struct gbnf_span s = gbnf_new_span(p);
    builder_empty(p->b, s.in, x.in);
    builder_empty(p->b, x.out, s.out);
    if (min == 0)
        builder_empty(p->b, s.in, s.out);
    if (loops)
        builder_empty(p->b, x.out, x.in);
    return s;
}

/* Keeps a loop for link_loops(). */
static struct gbnf_span loop_of(struct gbnf *p, struct gbnf_loop loop)
{
    if (p->n_loops == p->loop_room) {
        uint32_t more = p->loop_room ? 2 * p->loop_room : 32;
        struct gbnf_loop *l = arena_grow(&p->b->arena, p->loops, p->loop_room * sizeof *l, more * sizeof *l);
        if (!l || !dfa_work(&p->b->shop, more)) {
            builder_exhausted(p->b);
            return loop.element;
        }
        p->loops = l;
        p->loop_room = more;
    }
    loop.around = gbnf_new_span(p);
    p->loops[p->n_loops++] = loop;
    return loop.around;
}

/* Loops of characters become automata, whose masks can be remembered; others call or repeat their element.
 * The outer ones come first: what stands in one that is an automaton leads nowhere. */
static void link_loops(struct gbnf *p)
{
    size_t done = p->n; /* loops from here on stand in one that is linked */
    for (uint32_t i = p->n_loops; i-- > 0 && !p->b->failed;) {
        const struct gbnf_loop *l = &p->loops[i];
        if (l->from >= done || l->unused)
            continue;
        const struct dfa *a = gbnf_regular(p, l);
        if (a) {
            builder_dfa(p->b, a, SPELL_RAW, l->around.in, l->around.out, true);
            done = l->from;
            continue;
        }
        struct gbnf_span s = gbnf_repeated(p, l->element, l->min, l->max);
        builder_empty(p->b, l->around.in, s.in);
        builder_empty(p->b, s.out, l->around.out);
    }
}

/* Loops stand in the order of their ends. */
static void drop_loops(struct gbnf *p, size_t from, size_t end)
{
    uint32_t lo = 0, hi = p->n_loops;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (p->loops[mid].end <= from)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < p->n_loops && p->loops[lo].end <= end; lo++)
        p->loops[lo].unused = true;
}

static void link_rule(struct gbnf *p, const struct gbnf_rule *r, struct gbnf_span s)
{
    builder_empty(p->b, r->start, s.in);
    builder_empty(p->b, s.out, r->end);
}

/* A rule becomes an automaton where that spares a walk of most tokens before its first character. */
static void link_rules(struct gbnf *p)
{
    for (uint32_t i = 0; i < p->n_rules && !p->b->failed; i++) {
        struct gbnf_rule *r = &p->rules[i];
        const struct dfa *a = r->body ? gbnf_regular_rule(p, r) : NULL;
        if (a) {
            builder_dfa(p->b, a, SPELL_RAW, r->start, r->end, true);
            drop_loops(p, r->body, r->body_end);
            continue;
        }
        if (r->body)
            link_rule(p, r, r->span);
    }
}

static struct gbnf_span parse_sequence(struct gbnf *p, bool nested)
{
    uint32_t in = builder_state(p->b), at = in, min, max;
    while (going(p) && !gbnf_looking_at(p, "|") && !gbnf_looking_at(p, ")") && !gbnf_looking_at(p, "\n") &&
           !gbnf_looking_at(p, "\r")) {
        size_t from = p->at;
        struct gbnf_span x = parse_element(p);
        gbnf_skip_space(p, nested);
        while (!p->b->failed && gbnf_take_repetition(p, &min, &max)) {
            x = max == 1 ? gbnf_repeated(p, x, min, max)
                         : loop_of(p, (struct gbnf_loop){
                                          .element = x, .from = from, .end = p->at, .min = min, .max = max});
            gbnf_skip_space(p, nested);
        }
        builder_empty(p->b, at, x.in);
        at = x.out;
    }
    return (struct gbnf_span){in, at};
}

/* A line that begins with | goes on with the rule above it. */
static bool goes_on(struct gbnf *p)
{
    size_t at = p->at;
    gbnf_skip_space(p, true);
    bool is = gbnf_looking_at(p, "|");
    p->at = is ? p->at : at;
    return is;
}

static struct gbnf_span parse_choice(struct gbnf *p, bool nested)
{
    struct gbnf_span s = gbnf_new_span(p);
    do {
        gbnf_skip_space(p, true);
        struct gbnf_span one = parse_sequence(p, nested);
        builder_empty(p->b, s.in, one.in);
        builder_empty(p->b, one.out, s.out);
    } while (!p->b->failed && goes_on(p) && gbnf_take(p, "|"));
    return s;
}

void gbnf_define(struct gbnf *p, uint32_t rule, struct gbnf_span s)
{
    if (p->b->failed)
        return;
    if (p->rules[rule].body)
        p->rules[rule].span = s;
    else
        link_rule(p, &p->rules[rule], s);
    builder_final(p->b, p->rules[rule].end);
}

bool gbnf_may_define(struct gbnf *p, uint32_t rule, size_t at)
{
    if (!p->b->failed && p->rules[rule].defined)
        gbnf_fail(p, at, -EINVAL, "a second definition of rule ", p->rules[rule].name);
    if (p->b->failed)
        return false;
    return p->rules[rule].defined = true;
}

static void parse_rule(struct gbnf *p)
{
    size_t at = p->at;
    uint32_t r = gbnf_rule_of(p, gbnf_take_name(p));
    gbnf_skip_space(p, false);
    if (!gbnf_take(p, "::="))
        fail(p, "::= is expected after a rule's name");
    if (!gbnf_may_define(p, r, at))
        return;
    p->rules[r].body = p->at;
    struct gbnf_span s = parse_choice(p, false);
    if (!p->b->failed)
        p->rules[r].body_end = p->at;
    gbnf_define(p, r, s);
    gbnf_skip_space(p, false);
    if (going(p) && !gbnf_looking_at(p, "\n") && !gbnf_looking_at(p, "\r"))
        fail(p, "the end of the rule is expected");
    gbnf_skip_space(p, true);
}

void gbnf_open(struct gbnf *p, struct builder *b, const char *s, size_t n)
{
    builder_open(b);
    *p = (struct gbnf){.b = b, .s = s, .n = n, .seed = hash_seed()};
    b->rule_name = rule_name;
    b->context = p;
    p->slots = arena_array(&b->arena, SLOTS, sizeof *p->slots);
    if (!p->slots)
        builder_fail(b, -ENOMEM, "out of memory");
}

int gbnf_finish(struct gbnf *p, const char *name, struct grammar **out, struct error *err)
{
    for (uint32_t i = 0; i < p->n_rules && !p->b->failed; i++)
        if (!p->rules[i].defined)
            gbnf_fail(p, p->rules[i].used_at, -EINVAL, "there is no rule ", p->rules[i].name);
    const struct gbnf_rule *root = p->b->failed ? NULL : gbnf_find(p, name);
    if (!p->b->failed && !root)
        builder_fail(p->b, -EINVAL, "there is no rule %s", name);
    if (!p->b->failed)
        link_rules(p);
    if (!p->b->failed)
        link_loops(p);
    int rc = builder_finish(p->b, p->b->failed ? 0 : root->start, out, err);
    builder_close(p->b);
    return rc;
}

int grammar_from_gbnf(struct grammar **out, const char *s, size_t n, struct error *err)
{
    struct builder b;
    struct gbnf p;
    gbnf_open(&p, &b, s, n);
    gbnf_skip_space(&p, true);
    while (going(&p))
        parse_rule(&p);
    return gbnf_finish(&p, "root", out, err);
}
