/* gbnf_regular.c - loops and rules of a GBNF grammar whose texts are regular. They are read once more, with
 * the rules that they call in place. */
#include "gbnf_private.h"

#include <string.h>

#define MAX_STATES      2000 /* states of the automaton: a loop of 100 characters of a JSON string has as many */
#define MAX_CALLS       16                   /* rules in one another */
#define MAX_WORK        (GRAMMAR_WORK / 160) /* steps for one loop: too few to take the memory of all others */
#define MANY_CHARACTERS 16                   /* that a rule may begin with, to be an automaton */
#define WORK_BYTES      16                   /* bytes of text that are read once more in a step */

struct regular {
    struct gbnf text; /* its place alone moves */
    struct nfa nfa;
    struct gbnf_rule *calls[MAX_CALLS]; /* the rules in one another, the last the inner one */
    unsigned n_calls;
};

static bool put_choice(struct regular *r, bool nested, uint32_t from, uint32_t to);

static bool has_room(const struct regular *r)
{
    return !r->text.b->failed && !r->nfa.failed && r->nfa.n_states < MAX_STATES;
}

static void put_literal(struct regular *r, uint32_t from, uint32_t to)
{
    while (has_room(r) && !gbnf_take(&r->text, "\"")) {
        uint32_t next = nfa_state(&r->nfa), code = gbnf_take_char(&r->text);
        nfa_edge(&r->nfa, from, code, code, next);
        from = next;
    }
    nfa_empty(&r->nfa, from, to);
}

static void put_class(struct regular *r, uint32_t from, uint32_t to)
{
    struct code_ranges set = {0};
    gbnf_take_class(&r->text, &set);
    for (size_t i = 0; i < set.n && has_room(r); i++)
        nfa_edge(&r->nfa, from, set.r[i].lo, set.r[i].hi, to);
}

/* None of the rules around a recursive one is regular. */
static bool is_recursive(struct regular *r, const struct gbnf_rule *rule)
{
    bool is = rule->recursive;
    for (unsigned i = 0; i < r->n_calls; i++)
        is |= r->calls[i] == rule;
    for (unsigned i = 0; is && i < r->n_calls; i++)
        r->calls[i]->recursive = true;
    return is;
}

static bool put_rule(struct regular *r, uint32_t from, uint32_t to)
{
    struct gbnf_rule *rule = gbnf_find(&r->text, gbnf_take_name(&r->text));
    size_t back = r->text.at;
    if (!rule || !rule->body || r->n_calls == MAX_CALLS || is_recursive(r, rule))
        return false;
    r->calls[r->n_calls++] = rule;
    r->text.at = rule->body;
    bool ok = put_choice(r, false, from, to);
    r->text.at = back;
    r->n_calls--;
    return ok;
}

static bool put_element(struct regular *r, uint32_t from, uint32_t to)
{
    struct gbnf *p = &r->text;
    if (!has_room(r))
        return false;
    if (gbnf_take(p, "\""))
        put_literal(r, from, to);
    else if (gbnf_take(p, "["))
        put_class(r, from, to);
    else if (gbnf_take(p, "."))
        nfa_edge(&r->nfa, from, 0, DFA_MAX_CODE, to);
    else if (gbnf_take(p, "(")) {
        gbnf_skip_space(p, true);
        return put_choice(r, true, from, to) && gbnf_take(p, ")");
    } else
        return put_rule(r, from, to);
    return has_room(r);
}

/* Puts the element once more for each time it may come; the place is behind its repetition. */
static bool put_repeated(struct regular *r, size_t element, struct gbnf_span x, uint32_t min, uint32_t max,
                         uint32_t from, uint32_t to)
{
    size_t end = r->text.at;
    bool loops = max == GRAMMAR_UNBOUNDED, ok = max > 0;
    uint32_t n = loops ? (min ? min : 1) : max;
    if (min == 0)
        nfa_empty(&r->nfa, from, to);
    for (uint32_t i = 1; ok && i <= n; i++) {
        nfa_empty(&r->nfa, from, x.in);
        if (i >= min)
            nfa_empty(&r->nfa, x.out, to);
        if (i == n)
            break;
        from = x.out;
        x = (struct gbnf_span){nfa_state(&r->nfa), nfa_state(&r->nfa)};
        r->text.at = element;
        ok = put_element(r, x.in, x.out);
    }
    if (loops)
        nfa_empty(&r->nfa, x.out, x.in);
    r->text.at = end;
    return ok;
}

static bool at_end(const struct gbnf *p)
{
    return p->at >= p->n || gbnf_looking_at(p, "|") || gbnf_looking_at(p, ")") || gbnf_looking_at(p, "\n") ||
           gbnf_looking_at(p, "\r");
}

static bool put_sequence(struct regular *r, bool nested, uint32_t from, uint32_t to)
{
    struct gbnf *p = &r->text;
    uint32_t min, max;
    bool ok = has_room(r);
    while (ok && !at_end(p)) {
        size_t element = p->at;
        struct gbnf_span x = {nfa_state(&r->nfa), nfa_state(&r->nfa)};
        uint32_t behind = nfa_state(&r->nfa);
        ok = put_element(r, x.in, x.out);
        gbnf_skip_space(p, nested);
        if (ok && gbnf_take_repetition(p, &min, &max)) {
            ok = put_repeated(r, element, x, min, max, from, behind);
            gbnf_skip_space(p, nested);
        } else {
            nfa_empty(&r->nfa, from, x.in);
            nfa_empty(&r->nfa, x.out, behind);
        }
        from = behind;
        ok = ok && !gbnf_take_repetition(p, &min, &max); /* a+* has no automaton */
    }
    nfa_empty(&r->nfa, from, to);
    return ok;
}

static bool put_choice(struct regular *r, bool nested, uint32_t from, uint32_t to)
{
    struct gbnf *p = &r->text;
    bool ok, goes_on;
    do {
        size_t begin = p->at;
        gbnf_skip_space(p, true);
        ok = put_sequence(r, nested, from, to);
        size_t end = p->at;
        gbnf_skip_space(p, true);
        ok = ok && dfa_work(&p->b->shop, 1 + (p->at - begin) / WORK_BYTES);
        goes_on = gbnf_take(p, "|");
        p->at = goes_on ? p->at : end;
    } while (ok && goes_on);
    return ok;
}

static const struct dfa *make_loop(struct regular *r, const struct gbnf_loop *loop)
{
    uint32_t min, max;
    r->text.at = loop->from;
    struct gbnf_span x = {nfa_state(&r->nfa), nfa_state(&r->nfa)};
    bool ok = put_element(r, x.in, x.out);
    gbnf_skip_space(&r->text, true);
    ok = ok && gbnf_take_repetition(&r->text, &min, &max) && r->text.at == loop->end &&
         put_repeated(r, loop->from, x, loop->min, loop->max, NFA_START, NFA_ACCEPT) && has_room(r);
    return ok ? nfa_dfa(&r->nfa) : NULL;
}

static const struct dfa *make_rule(struct regular *r, struct gbnf_rule *rule)
{
    uint32_t n = 0;
    r->calls[r->n_calls++] = rule;
    r->text.at = rule->body;
    bool ok = !rule->recursive && put_choice(r, false, NFA_START, NFA_ACCEPT) && has_room(r);
    const struct dfa *a = ok ? nfa_dfa(&r->nfa) : NULL;
    for (uint32_t i = 0; a && i < a->first[1]; i++)
        n += a->edges[i].hi - a->edges[i].lo + 1;
    return a && n >= MANY_CHARACTERS ? a : NULL;
}

static const struct dfa *make(const struct gbnf *p, const struct gbnf_loop *loop, struct gbnf_rule *rule)
{
    struct dfa_workshop *shop = &p->b->shop;
    struct regular r = {.text = *p};
    struct error err = p->b->err;
    uint32_t max_states = shop->max_states;
    uint64_t work = shop->work;
    if (work < GRAMMAR_WORK / 2 || shop->arena->total > DFA_MAX_MEMORY / 2) /* the rest is for the others */
        return NULL;
    shop->max_states = MAX_STATES;
    shop->work = MAX_WORK;
    nfa_open(&r.nfa, shop);
    const struct dfa *a = loop ? make_loop(&r, loop) : make_rule(&r, rule);
    shop->max_states = max_states;
    shop->work = work - (MAX_WORK - shop->work);
    p->b->failed = shop->no_memory; /* a grammar can do without an automaton that is too large */
    if (!shop->no_memory)
        p->b->err = err; /* words of a later failure are its own */
    return a;
}

const struct dfa *gbnf_regular(const struct gbnf *p, const struct gbnf_loop *loop)
{
    return make(p, loop, NULL);
}

const struct dfa *gbnf_regular_rule(const struct gbnf *p, struct gbnf_rule *rule)
{
    return make(p, NULL, rule);
}
