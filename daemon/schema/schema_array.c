/* schema_array.c - arrays as rules: items by position, a loop for the rest, contains, items that differ. */
#include "schema_private.h"

#include <errno.h>
#include <string.h>

#define OPEN         UINT32_MAX
#define MAX_EXPLICIT 64 /* positions that contains tells apart */

static void put_comma(struct compiler *c, uint32_t behind, uint32_t next, uint32_t max)
{
    struct builder *b = &c->b;
    uint32_t comma = builder_state(b);
    builder_bytes(b, behind, ',', ',', comma, false);
    if (max != OPEN)
        builder_bounds(b, comma, 0, max ? max - 1 : 0);
    builder_call(b, comma, c->space, next, false);
}

static uint32_t put_close(struct compiler *c, uint32_t to, uint32_t min, uint32_t max)
{
    struct builder *b = &c->b;
    uint32_t close = builder_state(b), before = builder_state(b);
    builder_bounds(b, close, min, max);
    builder_call(b, close, c->space, before, false);
    builder_bytes(b, before, ']', ']', to, false);
    return close;
}

/* ---- items that differ ---- */

/* Writes into each state from `first` on how many texts are left behind it: DFA_INFINITE where there is a
 * circle on the way to `to`, or as many. */
static void set_words(struct compiler *c, uint32_t first, uint32_t first_edge, uint32_t to)
{
    struct builder *b = &c->b;
    uint32_t n = b->n_states - first, n_edges = b->n_edges - first_edge, n_queue = 0;
    uint32_t *left = schema_take(c, n + 1, sizeof *left), *queue = schema_take(c, n + 1, sizeof *queue);
    uint32_t *at = schema_take(c, n + 2, sizeof *at), *list = schema_take(c, n_edges + 1, sizeof *list);
    uint64_t *words = schema_take(c, n + 1, sizeof *words);
    if (!left || !queue || !at || !list || !words)
        return;
    memset(left, 0, n * sizeof *left);
    memset(at, 0, (n + 2) * sizeof *at);
    memset(words, 0, n * sizeof *words);
    const struct builder_edge *edges = b->edges + first_edge;
    for (uint32_t i = 0; i < n_edges; i++)
        if (edges[i].from >= first && edges[i].to >= first) {
            left[edges[i].from - first]++;
            at[edges[i].to - first + 2]++;
        }
    for (uint32_t i = 0; i < n; i++)
        at[i + 2] += at[i + 1];
    for (uint32_t i = 0; i < n_edges; i++)
        if (edges[i].from >= first && edges[i].to >= first)
            list[at[edges[i].to - first + 1]++] = i;
    words[to - first] = 1;
    queue[n_queue++] = to - first;
    for (uint32_t i = 0; i < n_queue; i++)
        for (uint32_t k = at[queue[i]]; k < at[queue[i] + 1]; k++) {
            const struct builder_edge *e = &edges[list[k]];
            uint32_t from = e->from - first;
            uint64_t width = e->kind == BUILDER_BYTES ? e->hi - e->lo + 1u : 1;
            words[from] += width * words[queue[i]];
            words[from] = words[from] < OPEN ? words[from] : OPEN;
            if (--left[from] == 0)
                queue[n_queue++] = from;
        }
    /* Only states that a byte leads to: there all texts with the same beginning meet. */
    for (uint32_t i = 0; i < n_edges; i++) {
        uint32_t state = edges[i].to - first;
        if (edges[i].kind == BUILDER_BYTES && edges[i].from >= first)
            b->states[edges[i].to].words = left[state] ? DFA_INFINITE : (uint32_t)words[state];
    }
}

/* Puts one kind of item between `from` and `to`; returns how many there are, OPEN without end. */
static uint32_t put_unique(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to)
{
    struct builder *b = &c->b;
    const char *word = s->kind == KIND_NULL ? "null" : s->kind == KIND_TRUE ? "true" : "false";
    uint32_t first = b->n_states, first_edge = b->n_edges, open = builder_state(b), close = builder_state(b),
             count = 1;
    builder_empty(b, from, open);
    builder_empty(b, close, to);
    if (s->kind == KIND_STRING || s->kind == KIND_NUMBER) {
        const struct dfa *text = s->text ? s->text : s->kind == KIND_NUMBER ? c->decimals : c->all;
        if (s->kind == KIND_NUMBER)
            text = dfa_combine(&b->shop, DFA_AND, text,
                               number_text(c, "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]*[1-9])?"));
        if (s->kind == KIND_NUMBER)
            text = dfa_combine(&b->shop, DFA_MINUS, text, number_text(c, "-0"));
        else
            text = dfa_length(&b->shop, text, s->min, s->max);
        if (!text) {
            builder_exhausted(b);
            return 0;
        }
        uint32_t in = open, out = close;
        if (s->kind == KIND_STRING) {
            in = builder_text(b, open, "\"", 1);
            out = builder_state(b);
            builder_bytes(b, out, '"', '"', close, false);
        }
        count = dfa_count(&b->shop, text); /* a mask of few texts depends on the items that have used them */
        bool memo = s->kind == KIND_STRING && count == OPEN;
        builder_dfa(b, text, s->kind == KIND_STRING ? SPELL_UNIQUE : SPELL_RAW, in, out, memo);
    } else
        builder_empty(b, builder_text(b, open, word, strlen(word)), close);
    if (!b->failed)
        set_words(c, first, first_edge, close);
    return count;
}

static void emit_unique(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to, json_t *where)
{
    struct builder *b = &c->b;
    struct set set = s->rest.node == SCHEMA_TRUE ? set_any(c) : node_set(c, s->rest.node);
    uint32_t rule = builder_state(b), end = builder_state(b), open = builder_state(b),
             next = builder_state(b);
    uint32_t behind = builder_state(b), max = s->max;
    uint64_t words = 0;
    bool scalar = !set.failed && !s->n_contains && !s->n_prefix;
    for (uint32_t i = 0; i < set.n; i++)
        scalar &= set.s[i]->kind < KIND_ARRAY;
    if (!scalar && s->max > 1) {
        schema_refuse(c, -ENOTSUP, where, "uniqueItems",
                      "its items may be other than strings, numbers, booleans and null");
        return;
    }
    for (uint32_t i = 0; i < set.n && !b->failed; i++) {
        uint32_t n = put_unique(c, set.s[i], rule, end);
        words = n == OPEN || words == OPEN || words + n >= OPEN ? OPEN : words + n;
    }
    max = words < max ? (uint32_t)words : max;
    if (b->failed || max < s->min)
        return;
    builder_final(b, end);
    builder_bytes(b, from, '[', '[', open, false);
    if (s->min == 0)
        builder_bytes(b, open, ']', ']', to, false);
    if (max == 0)
        return;
    builder_call(b, open, c->space, next, false);
    builder_call(b, next, rule, behind, true);
    b->states[behind].unique = true;
    put_comma(c, behind, next, max);
    builder_empty(b, behind, put_close(c, to, s->min, max));
}

/* ---- contains ---- */

struct search {
    struct compiler *c;
    const struct shape *s;
    uint32_t to, top; /* positions from `top` on are alike */
    uint32_t span[2]; /* counts of each contains that are told apart */
    uint32_t *choose, *behind;
};

static uint32_t index_of(const struct search *x, uint32_t pos, const uint32_t count[2])
{
    return (pos * x->span[0] + count[0]) * x->span[1] + count[1];
}

static uint32_t node_at(const struct shape *s, uint32_t pos)
{
    return pos < s->n_prefix ? s->prefix[pos].node : s->rest.node;
}

static bool may_close(const struct search *x, uint32_t pos, const uint32_t count[2])
{
    bool ok = pos >= x->s->min && (x->s->max == OPEN || pos <= x->s->max);
    for (uint32_t k = 0; k < x->s->n_contains; k++)
        ok &= count[k] >= x->s->contains[k].min;
    return ok;
}

/* Each item either counts for a contains or not; without an upper bound one that would count may pass as one
 * that does not, which changes no text. */
static void put_items(struct search *x, uint32_t pos, const uint32_t count[2])
{
    struct compiler *c = x->c;
    const struct shape *s = x->s;
    uint32_t next_pos = pos < x->top ? pos + 1 : pos;
    for (uint32_t choice = 0; choice < 1u << s->n_contains && !c->b.failed; choice++) {
        uint32_t node = node_at(s, pos), next[2] = {count[0], count[1]};
        bool ok = true;
        for (uint32_t k = 0; k < s->n_contains; k++) {
            const struct contains *y = &s->contains[k];
            bool counts = choice >> k & 1;
            if (pos < y->from)
                ok &= !counts;
            else if (counts) {
                node = node_and(c, node, y->node);
                next[k] += next[k] < (y->max == OPEN ? y->min : y->max + 1);
                ok &= y->max == OPEN || next[k] <= y->max;
            } else if (y->max != OPEN)
                node = node_and(c, node, node_not(c, y->node));
        }
        if (ok && node != SCHEMA_FALSE)
            builder_call(&c->b, x->choose[index_of(x, pos, count)], emit_node(c, node),
                         x->behind[index_of(x, next_pos, next)], false);
    }
}

static void put_position(struct search *x, uint32_t pos, const uint32_t count[2])
{
    struct compiler *c = x->c;
    uint32_t i = index_of(x, pos, count);
    bool more = x->s->max == OPEN || pos < x->s->max;
    if (more) {
        put_items(x, pos, count);
        put_comma(c, x->behind[i], x->choose[i], OPEN);
    }
    if (may_close(x, pos, count))
        builder_empty(&c->b, x->behind[i], put_close(c, x->to, 0, OPEN));
}

static void emit_contains(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to,
                          json_t *where)
{
    struct search x = {.c = c, .s = s, .to = to, .span = {1, 1}};
    x.top = s->n_prefix > s->min ? s->n_prefix : s->min;
    if (s->max != OPEN)
        x.top = s->max + 1;
    for (uint32_t k = 0; k < s->n_contains && k < 2; k++) {
        const struct contains *y = &s->contains[k];
        x.top = y->from > x.top ? y->from : x.top;
        uint32_t span = y->max == OPEN ? y->min + 1 : y->max >= MAX_EXPLICIT ? OPEN : y->max + 2;
        x.span[k] = span;
    }
    if (s->n_contains > 2 || x.top > MAX_EXPLICIT || x.span[0] > MAX_EXPLICIT || x.span[1] > MAX_EXPLICIT) {
        schema_refuse(c, -ENOTSUP, where, "contains", "together with such counts it needs too many states");
        return;
    }
    uint32_t n = (x.top + 1) * x.span[0] * x.span[1], open = builder_state(&c->b);
    x.choose = schema_take(c, n, sizeof *x.choose);
    x.behind = schema_take(c, n, sizeof *x.behind);
    if (!x.choose || !x.behind)
        return;
    for (uint32_t i = 0; i < n; i++) {
        x.choose[i] = builder_state(&c->b);
        x.behind[i] = builder_state(&c->b);
    }
    builder_bytes(&c->b, from, '[', '[', open, false);
    builder_call(&c->b, open, c->space, x.choose[0], false);
    if (may_close(&x, 0, (uint32_t[2]){0, 0}))
        builder_bytes(&c->b, open, ']', ']', to, false);
    for (uint32_t pos = 0; pos <= x.top && !c->b.failed; pos++)
        for (uint32_t i = 0; i < x.span[0]; i++)
            for (uint32_t j = 0; j < x.span[1]; j++)
                put_position(&x, pos, (uint32_t[2]){i, j});
}

/* ---- without either ---- */

void emit_array(struct compiler *c, const struct shape *s, uint32_t from, uint32_t to, json_t *where)
{
    struct builder *b = &c->b;
    if (s->unique && s->max > 1) {
        emit_unique(c, s, from, to, where);
        return;
    }
    if (s->n_contains) {
        emit_contains(c, s, from, to, where);
        return;
    }
    uint32_t open = builder_state(b), next = builder_state(b);
    builder_bytes(b, from, '[', '[', open, false);
    builder_call(b, open, c->space, next, false);
    if (s->min == 0)
        builder_bytes(b, open, ']', ']', to, false);
    uint32_t close = put_close(c, to, s->min, s->max);
    for (uint32_t i = 0; i <= s->n_prefix && i < s->max && !b->failed; i++) {
        uint32_t behind = builder_state(b), node = node_at(s, i);
        if (node == SCHEMA_FALSE)
            break;
        builder_call(b, next, emit_node(c, node), behind, true);
        if (i + 1 >= s->min || i == s->n_prefix)
            builder_empty(b, behind, close);
        if (i < s->n_prefix)
            next = builder_state(b);
        put_comma(c, behind, next, s->max);
    }
}
