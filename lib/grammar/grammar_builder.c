#include "grammar_builder.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void builder_open(struct builder *b)
{
    *b = (struct builder){.n_memos = GRAMMAR_STRING_MEMOS};
    b->shop = (struct dfa_workshop){
        .arena = &b->arena, .max_states = GRAMMAR_MAX_DFA, .work = GRAMMAR_WORK, .seed = hash_seed()};
}

void builder_close(struct builder *b)
{
    arena_close(&b->arena);
}

int builder_fail(struct builder *b, int code, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->failed = true;
    error_set(&b->err, code, "%s", text);
    return code;
}

int builder_exhausted(struct builder *b)
{
    if (b->shop.no_memory)
        return builder_fail(b, -ENOMEM, "out of memory");
    return builder_fail(b, -E2BIG, "too large: the automaton would exceed its limit of states or work");
}

static bool make_room(struct builder *b, void **p, uint32_t n, uint32_t *room, size_t size)
{
    if (b->failed)
        return false;
    if (n < *room)
        return true;
    uint32_t more = *room ? 2 * *room : 64;
    void *q = dfa_work(&b->shop, 1 + more * size / 256) ? arena_grow(&b->arena, *p, *room * size, more * size)
                                                        : NULL;
    if (!q) {
        builder_exhausted(b);
        return false;
    }
    *p = q;
    *room = more;
    return true;
}

uint32_t builder_state(struct builder *b)
{
    if (b->n_states >= GRAMMAR_MAX_STATES)
        b->shop.work = 0, builder_exhausted(b);
    if (!make_room(b, (void **)&b->states, b->n_states, &b->state_room, sizeof *b->states))
        return 0;
    b->states[b->n_states] = (struct grammar_state){
        .max = GRAMMAR_UNBOUNDED, .words = DFA_INFINITE, .memo = GRAMMAR_NO_MEMO, .part = GRAMMAR_UNBOUNDED};
    return b->n_states++;
}

void builder_final(struct builder *b, uint32_t state)
{
    if (!b->failed)
        b->states[state].final = true;
}

void builder_last(struct builder *b, uint32_t state)
{
    builder_final(b, state);
    if (!b->failed)
        b->states[state].last = true;
}

void builder_bounds(struct builder *b, uint32_t state, uint32_t min, uint32_t max)
{
    if (b->failed)
        return;
    b->states[state].min = min;
    b->states[state].max = max;
}

static void add(struct builder *b, struct builder_edge e)
{
    if (make_room(b, (void **)&b->edges, b->n_edges, &b->edge_room, sizeof *b->edges))
        b->edges[b->n_edges++] = e;
}

void builder_bytes(struct builder *b, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to, bool counts)
{
    add(b, (struct builder_edge){.from = from, .to = to, .lo = lo, .hi = hi, .counts = counts});
}

void builder_empty(struct builder *b, uint32_t from, uint32_t to)
{
    add(b, (struct builder_edge){.from = from, .to = to, .kind = BUILDER_EMPTY});
}

void builder_call(struct builder *b, uint32_t from, uint32_t rule, uint32_t back, bool counts)
{
    add(b, (struct builder_edge){
               .from = from, .to = rule, .kind = BUILDER_CALL, .back = back, .counts = counts});
}

uint32_t builder_text(struct builder *b, uint32_t from, const char *s, size_t n)
{
    for (size_t i = 0; i < n && !b->failed; i++) {
        uint32_t to = builder_state(b);
        builder_bytes(b, from, (uint8_t)s[i], (uint8_t)s[i], to, false);
        from = to;
    }
    return from;
}

/* ---- characters ---- */

static uint32_t *suffix_slot(struct builder *b, const uint32_t key[4])
{
    for (uint64_t h = hash_bytes(b->shop.seed, key, 4 * sizeof *key);; h++) {
        struct utf8_suffix *s = &b->suffixes[h & b->suffix_mask];
        if (s->state == 0 || !memcmp(s->key, key, sizeof s->key)) {
            memcpy(s->key, key, sizeof s->key);
            return &s->state;
        }
    }
}

static bool suffix_room(struct builder *b)
{
    if (b->failed || 2 * (b->n_suffixes + 1) <= b->suffix_mask)
        return !b->failed;
    struct utf8_suffix *old = b->suffixes;
    uint32_t n = b->suffix_mask + (b->suffixes != NULL), size = n ? 2 * n : 256;
    struct utf8_suffix *s = dfa_work(&b->shop, size / 8) ? arena_array(&b->arena, size, sizeof *s) : NULL;
    if (!s)
        return builder_exhausted(b) == 0;
    b->suffixes = s;
    b->suffix_mask = size - 1;
    for (uint32_t i = 0; i < n; i++)
        if (old[i].state)
            *suffix_slot(b, old[i].key) = old[i].state;
    return true;
}

/* The state that reads what `key` says and then goes to its target; *fresh: its edges are still to be made.
 */
static uint32_t suffix_state(struct builder *b, uint32_t kind, uint32_t lo, uint32_t hi, uint32_t to,
                             bool *fresh)
{
    uint32_t key[4] = {kind, lo, hi, to + 1};
    *fresh = false;
    if (!suffix_room(b))
        return 0;
    uint32_t *state = suffix_slot(b, key);
    if (*state == 0) {
        *fresh = true;
        b->n_suffixes++;
        uint32_t s = builder_state(b);
        if (b->failed)
            return 0;
        *state = s + 1;
    }
    return *state - 1;
}

static const uint32_t last_of_length[] = {0, 0x7f, 0x7ff, 0xffff, 0x10ffff};

/* Reads the low `digits` digits (of `bits` bits each) of lo..hi, whose higher digits are equal. The digit d
 * is written by `write`. */
struct digits {
    uint32_t kind;
    unsigned bits;
    void (*write)(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left, uint32_t to,
                  bool counts);
};

static void put_digits(struct builder *b, const struct digits *d, uint32_t from, uint32_t lo, uint32_t hi,
                       unsigned left, uint32_t to, bool counts)
{
    uint32_t below = (1u << (d->bits * (left - 1))) - 1;
    if (b->failed)
        return;
    if (left == 1) {
        d->write(b, from, lo, hi, left, to, counts);
        return;
    }
    while (lo <= hi && !b->failed) {
        uint32_t top = lo >> (d->bits * (left - 1)), end = lo | below;
        uint32_t last = end < hi ? end : hi;
        if ((lo & below) == 0 && last == end && hi > end) /* many whole digits at once */
            last = (hi & below) == below ? hi : ((hi & ~below) - 1);
        bool fresh, whole = (lo & below) == 0 && (last & below) == below;
        uint32_t sub_lo = whole ? 0 : lo & below, sub_hi = whole ? below : last & below;
        uint32_t next = suffix_state(b, d->kind * 8 + left, sub_lo, sub_hi, to, &fresh);
        d->write(b, from, top, last >> (d->bits * (left - 1)), left, next, counts);
        if (fresh)
            put_digits(b, d, next, sub_lo, sub_hi, left - 1, to, false);
        lo = last + 1;
    }
}

static void write_continuation(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left,
                               uint32_t to, bool counts)
{
    (void)left;
    builder_bytes(b, from, (uint8_t)(0x80 | (lo & 0x3f)), (uint8_t)(0x80 | (hi & 0x3f)), to, counts);
}
static void write_lead2(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left,
                        uint32_t to, bool counts)
{
    if (left < 2)
        write_continuation(b, from, lo, hi, left, to, counts);
    else
        builder_bytes(b, from, (uint8_t)(0xc0 | lo), (uint8_t)(0xc0 | hi), to, counts);
}
static void write_lead3(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left,
                        uint32_t to, bool counts)
{
    if (left < 3)
        write_continuation(b, from, lo, hi, left, to, counts);
    else
        builder_bytes(b, from, (uint8_t)(0xe0 | lo), (uint8_t)(0xe0 | hi), to, counts);
}
static void write_lead4(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left,
                        uint32_t to, bool counts)
{
    if (left < 4)
        write_continuation(b, from, lo, hi, left, to, counts);
    else
        builder_bytes(b, from, (uint8_t)(0xf0 | lo), (uint8_t)(0xf0 | hi), to, counts);
}

static void put_length(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned len, uint32_t to,
                       bool counts)
{
    static const struct digits forms[] = {
        {0}, {0}, {1, 6, write_lead2}, {1, 6, write_lead3}, {1, 6, write_lead4}};
    if (lo > hi)
        return;
    if (len == 1)
        builder_bytes(b, from, (uint8_t)lo, (uint8_t)hi, to, counts);
    else
        put_digits(b, &forms[len], from, lo, hi, len, to, counts);
}

void builder_codes(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to, bool counts)
{
    for (unsigned len = 1; len <= 4; len++) {
        uint32_t first = last_of_length[len - 1] + (len > 1), last = last_of_length[len];
        uint32_t l = lo > first ? lo : first, h = hi < last ? hi : last;
        if (len == 3 && l < 0xe000 && h >= 0xd800) { /* surrogates are no characters */
            put_length(b, from, l, h < 0xd7ff ? h : 0xd7ff, 3, to, counts);
            put_length(b, from, l > 0xe000 ? l : 0xe000, h, 3, to, counts);
        } else
            put_length(b, from, l, h, len, to, counts);
    }
}

/* ---- inside a JSON string ---- */

static void write_hex(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, unsigned left, uint32_t to,
                      bool counts)
{
    (void)left;
    if (lo < 10)
        builder_bytes(b, from, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 9 ? hi : 9)), to, counts);
    if (hi < 10)
        return;
    uint32_t first = lo < 10 ? 10 : lo;
    builder_bytes(b, from, (uint8_t)('a' + first - 10), (uint8_t)('a' + hi - 10), to, counts);
    builder_bytes(b, from, (uint8_t)('A' + first - 10), (uint8_t)('A' + hi - 10), to, counts);
}

static const struct digits hex_form = {2, 4, write_hex};

/* The four hex digits of lo..hi, all from one state behind \u. */
static void put_hex(struct builder *b, uint32_t behind_u, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (lo <= hi)
        put_digits(b, &hex_form, behind_u, lo, hi, 4, to, false);
}

/* Surrogate pairs: whole rows of low surrogates where there are any. */
static void put_pairs(struct builder *b, uint32_t behind_u, uint32_t lo, uint32_t hi, uint32_t to)
{
    while (lo <= hi && !b->failed) {
        uint32_t high = (lo - 0x10000) >> 10, end = 0x10000 + (high << 10) + 0x3ff;
        uint32_t last = end < hi ? end : hi, last_high = high;
        if (((lo - 0x10000) & 0x3ff) == 0 && hi >= end) {
            last_high = ((hi + 1 - 0x10000) >> 10) - 1;
            last = 0x10000 + (last_high << 10) + 0x3ff;
        }
        bool fresh, whole = last_high > high;
        uint32_t sub_lo = whole ? 0 : (lo - 0x10000) & 0x3ff,
                 sub_hi = whole ? 0x3ff : (last - 0x10000) & 0x3ff;
        uint32_t middle = suffix_state(b, 31, sub_lo, sub_hi, to, &fresh);
        put_hex(b, behind_u, 0xd800 + high, 0xd800 + last_high, middle);
        if (fresh) {
            uint32_t second = builder_text(b, middle, "\\u", 2);
            put_hex(b, second, 0xdc00 + sub_lo, 0xdc00 + sub_hi, to);
        }
        lo = last + 1;
    }
}

struct escape_states { /* of one state of a string, made when needed */
    uint32_t slash, u; /* behind \ and behind \u; 0: not yet */
};

static uint32_t behind_slash(struct builder *b, uint32_t from, struct escape_states *x, bool counts)
{
    if (!x->slash) {
        x->slash = builder_state(b);
        builder_bytes(b, from, '\\', '\\', x->slash, counts);
    }
    return x->slash;
}

static uint32_t behind_u(struct builder *b, uint32_t from, struct escape_states *x, bool counts)
{
    if (!x->u) {
        uint32_t slash = behind_slash(b, from, x, counts);
        x->u = builder_state(b);
        builder_bytes(b, slash, 'u', 'u', x->u, false);
    }
    return x->u;
}

static void put_control(struct builder *b, uint32_t from, uint32_t c, uint32_t to, struct escape_states *x,
                        bool counts, enum builder_spelling spell)
{
    static const char letters[] = "\b\t\n\f\r", short_form[] = "btnfr";
    const char *known = memchr(letters, (int)c, sizeof letters - 1);
    if (known) {
        uint8_t letter = (uint8_t)short_form[known - letters];
        builder_bytes(b, behind_slash(b, from, x, counts), letter, letter, to, false);
    }
    if (!known || spell == SPELL_JSON)
        put_hex(b, behind_u(b, from, x, counts), c, c, to);
}

/* One edge of a string's automaton: characters lo..hi in their spellings. */
static void put_json(struct builder *b, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to,
                     enum builder_spelling spell, bool counts, struct escape_states *x)
{
    for (uint32_t c = lo; c <= hi && c < 0x20; c++)
        put_control(b, from, c, to, x, counts, spell);
    static const uint8_t plain[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x7f}};
    for (int i = 0; i < 3; i++) {
        uint32_t l = lo > plain[i][0] ? lo : plain[i][0], h = hi < plain[i][1] ? hi : plain[i][1];
        if (l <= h)
            builder_bytes(b, from, (uint8_t)l, (uint8_t)h, to, counts);
    }
    for (const char *c = "\"\\/"; *c; c++)
        if (lo <= (uint8_t)*c && (uint8_t)*c <= hi && (*c != '/' || spell == SPELL_JSON))
            builder_bytes(b, behind_slash(b, from, x, counts), (uint8_t)*c, (uint8_t)*c, to, false);
    if (hi < 0x80)
        return;
    lo = lo < 0x80 ? 0x80 : lo;
    builder_codes(b, from, lo, hi, to, counts);
    if (spell != SPELL_JSON)
        return;
    put_hex(b, behind_u(b, from, x, counts), lo, hi < 0xd7ff ? hi : 0xd7ff, to);
    put_hex(b, behind_u(b, from, x, counts), lo < 0xe000 ? 0xe000 : lo, hi < 0xffff ? hi : 0xffff, to);
    put_pairs(b, behind_u(b, from, x, counts), lo < 0x10000 ? 0x10000 : lo, hi, to);
}

uint32_t builder_dfa(struct builder *b, const struct dfa *a, enum builder_spelling spell, uint32_t from,
                     uint32_t to, bool memo)
{
    if (!a) {
        builder_exhausted(b);
        return to;
    }
    uint32_t first = builder_state(b), before = b->n_states, any = 0;
    for (uint32_t s = 1; s < a->n_states; s++)
        builder_state(b);
    builder_empty(b, from, first);
    for (uint32_t s = 0; s < a->n_states && !b->failed; s++) {
        struct escape_states x = {0};
        for (uint32_t i = a->first[s]; i < a->first[s + 1]; i++) {
            const struct dfa_edge *e = &a->edges[i];
            if (spell == SPELL_RAW)
                builder_codes(b, first + s, e->lo, e->hi, first + e->to, false);
            else
                put_json(b, first + s, e->lo, e->hi, first + e->to, spell, false, &x);
        }
        if (a->accept[s])
            builder_empty(b, first + s, to);
        bool anything = a->accept[s] && a->first[s + 1] - a->first[s] == 1 && a->edges[a->first[s]].to == s &&
                        a->edges[a->first[s]].lo == 0 && a->edges[a->first[s]].hi == DFA_MAX_CODE;
        if (memo && spell == SPELL_JSON && anything)
            any = first + s;
    }
    for (uint32_t s = before - 1; memo && !b->failed && s < b->n_states; s++)
        b->states[s].memo = b->n_memos++;
    if (any && make_room(b, (void **)&b->parts, b->n_parts, &b->part_room, sizeof *b->parts)) {
        /* From here on any string goes: the mask is that of the inside of all strings. */
        b->parts[b->n_parts] = (struct grammar_part){0, GRAMMAR_UNBOUNDED, to, false};
        b->states[any].memo = 0;
        b->states[any].part = b->n_parts++;
    }
    return first;
}

uint32_t builder_string(struct builder *b, uint32_t min, uint32_t max)
{
    struct escape_states x = {0};
    uint32_t start = builder_state(b), close = builder_state(b), out = builder_state(b);
    uint32_t body = builder_state(b), end = builder_state(b);
    builder_bytes(b, start, '"', '"', body, false);
    builder_bytes(b, close, '"', '"', out, false);
    builder_final(b, out);
    put_json(b, body, 0, DFA_MAX_CODE, body, SPELL_JSON, true, &x);
    builder_empty(b, body, end);
    builder_empty(b, end, close);
    if (!make_room(b, (void **)&b->parts, b->n_parts, &b->part_room, sizeof *b->parts))
        return start;
    b->parts[b->n_parts] = (struct grammar_part){min, max, close, true};
    for (uint32_t s = body; s < b->n_states; s++) {
        builder_bounds(b, s, s == end ? min : 0, max);
        b->states[s].memo = s - body; /* the first keys are theirs: every string numbers its states alike */
        b->states[s].part = b->n_parts;
    }
    b->n_parts++;
    assert(b->failed || b->n_states - body <= GRAMMAR_STRING_MEMOS);
    return start;
}
