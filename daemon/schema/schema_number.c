/* schema_number.c - sets of numbers as automata over their text, without exponents: literals, bounds,
 * multiples. Zeros at the end of a fraction change nothing, and -0 is 0. */
#include "grammar/regex.h"
#include "schema_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS 400

struct decimal {
    bool negative;
    char whole[MAX_DIGITS + 8], part[MAX_DIGITS + 8]; /* no zeros in front of `whole` or behind `part` */
};

const struct dfa *number_text(struct compiler *c, const char *regex)
{
    const struct dfa *a = NULL;
    return regex_compile(&c->b.shop, regex, strlen(regex), REGEX_WHOLE, &a, NULL) == 0 ? a : NULL;
}

/* The shortest text that reads back as the number. */
static void print_number(const json_t *value, char *out, size_t room)
{
    if (json_is_integer(value)) {
        snprintf(out, room, "%lld", (long long)json_integer_value(value));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, room, "%.*g", digits, json_real_value(value));
        if (strtod(out, NULL) == json_real_value(value))
            return;
    }
}

/* From digits d[n] with the point behind the first `point` of them, which may lie outside. */
static void place_point(struct decimal *x, const char *d, int n, int point)
{
    int w = 0, p = 0;
    for (int i = 0; i < point && w < MAX_DIGITS; i++)
        if (w > 0 || (i < n && d[i] != '0'))
            x->whole[w++] = i < n ? d[i] : '0';
    if (w == 0)
        x->whole[w++] = '0';
    for (int i = point; i < n && p < MAX_DIGITS; i++)
        x->part[p++] = i >= 0 ? d[i] : '0';
    while (p > 0 && x->part[p - 1] == '0')
        p--;
    x->whole[w] = x->part[p] = 0;
}

static struct decimal read_decimal(const json_t *value)
{
    struct decimal x = {0};
    char text[64], digits[64];
    int n = 0, point = -1;
    print_number(value, text, sizeof text);
    const char *t = text;
    x.negative = *t == '-';
    t += x.negative;
    for (; *t && *t != 'e'; t++) {
        if (*t == '.')
            point = n;
        else
            digits[n++] = *t;
    }
    point = point < 0 ? n : point;
    place_point(&x, digits, n, point + (*t == 'e' ? atoi(t + 1) : 0));
    if (!strcmp(x.whole, "0") && !x.part[0])
        x.negative = false;
    return x;
}

/* ---- regular expressions, as text ---- */

struct text {
    char *s;
    size_t n, room;
};

static void put(struct text *t, const char *s)
{
    size_t len = strlen(s);
    if (t->n + len + 1 <= t->room)
        memcpy(t->s + t->n, s, len + 1);
    t->n += len;
}

static void put_n(struct text *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(t, (char[]){s[i], 0});
}

static void put_more(struct text *t, char digit)
{
    char class[] = {'[', (char)(digit + 1), '-', '9', ']', 0};
    put(t, class);
}

static void put_repeat(struct text *t, size_t n)
{
    char s[32];
    snprintf(s, sizeof s, "[0-9]{%zu}", n);
    put(t, s);
}

static const char fraction[] = "(?:\\.[0-9]+)?";

/* Texts without a sign whose magnitude is above the bound, or equal to it too. */
static void put_above(struct text *t, const struct decimal *x, bool equal)
{
    size_t n = strlen(x->whole), m = strlen(x->part);
    put(t, "(?:[1-9]");
    put_repeat(t, n);
    put(t, "[0-9]*");
    put(t, fraction);
    for (size_t i = 0; i < n; i++) {
        if (x->whole[i] == '9')
            continue;
        put(t, "|");
        put_n(t, x->whole, i);
        put_more(t, x->whole[i]);
        put_repeat(t, n - i - 1);
        put(t, fraction);
    }
    for (size_t j = 0; j < m; j++) {
        if (x->part[j] == '9')
            continue;
        put(t, "|");
        put(t, x->whole);
        put(t, "\\.");
        put_n(t, x->part, j);
        put_more(t, x->part[j]);
        put(t, "[0-9]*");
    }
    put(t, "|");
    put(t, x->whole);
    put(t, m || !equal ? "\\." : "");
    put(t, x->part);
    put(t, !equal ? "0*[1-9][0-9]*" : m ? "[0-9]*" : fraction);
    put(t, ")");
}

static const struct dfa *above(struct compiler *c, const struct decimal *x, bool equal, bool minus)
{
    size_t n = strlen(x->whole) + strlen(x->part), room = 200 + (n + 2) * (n + 60);
    struct text t = {schema_take(c, room, 1), 0, room};
    if (!t.s)
        return NULL;
    put(&t, minus ? "-" : "");
    put_above(&t, x, equal);
    return t.n < t.room ? number_text(c, t.s) : NULL;
}

const struct dfa *number_bound(struct compiler *c, json_t *value, bool least, bool strict)
{
    struct decimal x = read_decimal(value);
    struct dfa_workshop *shop = &c->b.shop;
    bool zero = !strcmp(x.whole, "0") && !x.part[0];
    bool outward = zero ? strict : least != x.negative; /* away from zero on the bound's own side */
    if (outward)
        return above(c, &x, !strict, !least);
    /* Otherwise the whole of the other side, and magnitudes up to the bound: all but those above. */
    return dfa_combine(shop, DFA_MINUS, c->decimals, above(c, &x, strict, least));
}

const struct dfa *number_literal(struct compiler *c, json_t *value)
{
    struct decimal x = read_decimal(value);
    char regex[2 * MAX_DIGITS + 64];
    bool zero = !strcmp(x.whole, "0") && !x.part[0];
    if (x.part[0])
        snprintf(regex, sizeof regex, "%s%s\\.%s0*", x.negative ? "-" : "", x.whole, x.part);
    else
        snprintf(regex, sizeof regex, "%s%s(?:\\.0+)?", zero ? "-?" : x.negative ? "-" : "", x.whole);
    return number_text(c, regex);
}

/* ---- multiples of p / 10^q ---- */

#define MAX_MULTIPLE 5000 /* states: remainders times places */

static uint64_t power_mod(uint64_t n, uint64_t p)
{
    uint64_t r = 1 % p;
    while (n-- > 0)
        r = r * 10 % p;
    return r;
}

/* State of remainder r with j fraction digits read; j == 0: in the whole part, j == 1: the point was read. */
static uint32_t place(uint32_t first, uint64_t p, uint64_t j, uint64_t r)
{
    return first + (uint32_t)(j * p + r);
}

static void digit_moves(struct nfa *n, uint32_t first, uint64_t p, uint64_t q, uint32_t zeros)
{
    for (uint64_t r = 0; r < p; r++) {
        for (uint32_t d = 0; d < 10; d++)
            nfa_edge(n, place(first, p, 0, r), '0' + d, '0' + d, place(first, p, 0, (r * 10 + d) % p));
        nfa_edge(n, place(first, p, 0, r), '.', '.', place(first, p, 1, r));
        if (r * power_mod(q, p) % p == 0)
            nfa_empty(n, place(first, p, 0, r), NFA_ACCEPT);
        for (uint64_t j = 1; j <= q; j++) { /* j - 1 digits of the fraction were read */
            for (uint32_t d = 0; d < 10; d++)
                nfa_edge(n, place(first, p, j, r), '0' + d, '0' + d,
                         place(first, p, j + 1, (r * 10 + d) % p));
            if (r * power_mod(q - (j - 1), p) % p == 0)
                nfa_empty(n, place(first, p, j, r), NFA_ACCEPT);
        }
        if (r == 0)
            nfa_empty(n, place(first, p, q + 1, r), zeros);
    }
}

const struct dfa *number_multiple(struct compiler *c, json_t *value)
{
    struct decimal x = read_decimal(value);
    char digits[2 * MAX_DIGITS + 32];
    snprintf(digits, sizeof digits, "%s%s", x.whole, x.part);
    uint64_t q = strlen(x.part), p = strlen(digits) > 18 ? 0 : strtoull(digits, NULL, 10);
    if (p == 0 || p * (q + 2) > MAX_MULTIPLE || x.negative)
        return NULL;
    struct nfa n;
    nfa_open(&n, &c->b.shop);
    uint32_t first = nfa_state(&n), zeros;
    for (uint64_t i = 1; i < p * (q + 2); i++)
        nfa_state(&n);
    zeros = nfa_state(&n);
    nfa_edge(&n, NFA_START, '-', '-', first);
    nfa_empty(&n, NFA_START, first);
    digit_moves(&n, first, p, q, zeros);
    nfa_edge(&n, zeros, '0', '0', zeros);
    nfa_empty(&n, zeros, NFA_ACCEPT);
    return dfa_combine(&c->b.shop, DFA_AND, nfa_dfa(&n), c->decimals);
}
