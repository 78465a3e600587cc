#include "dfa.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "edge_order.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEAD UINT32_MAX

bool dfa_work(struct dfa_workshop *shop, uint64_t steps)
{
    if (shop->work < steps || shop->arena->total > DFA_MAX_MEMORY) {
        shop->work = 0;
        return false;
    }
    shop->work -= steps;
    return true;
}

static void *take(struct dfa_workshop *shop, size_t n, size_t size)
{
    if (!dfa_work(shop, 1 + n * size / 256))
        return NULL;
    void *p = arena_array(shop->arena, n + !n, size);
    shop->no_memory |= !p;
    return p;
}

/* Doubles the room of a piece of the arena. */
static void *grow(struct dfa_workshop *shop, void *p, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 16;
    if (!dfa_work(shop, more * size / 256))
        return NULL;
    void *q = arena_grow(shop->arena, p, *room * size, more * size);
    shop->no_memory |= !q;
    if (q)
        *room = more;
    return q;
}

/* ---- under construction: complete edges in any order of states ---- */

struct draft {
    struct dfa_workshop *shop;
    uint32_t n_states;
    size_t n_edges, edge_room, state_room;
    struct dfa_edge *edges;
    uint32_t *first; /* [n_states + 1] */
    bool *accept;
};

/* Opens the next state; its edges follow. */
static bool draft_state(struct draft *d, bool accept)
{
    if (d->n_states + 2 > d->state_room) {
        size_t room = d->state_room, same = d->state_room;
        bool *a = grow(d->shop, d->accept, &room, sizeof *a);
        if (a)
            d->accept = a;
        uint32_t *f = a ? grow(d->shop, d->first, &same, sizeof *f) : NULL;
        if (!f)
            return false;
        d->first = f;
        d->state_room = room;
    }
    d->accept[d->n_states] = accept;
    d->first[d->n_states++] = (uint32_t)d->n_edges;
    d->first[d->n_states] = (uint32_t)d->n_edges;
    return true;
}

static bool draft_edge(struct draft *d, uint32_t lo, uint32_t hi, uint32_t to)
{
    if (lo > hi || to == DEAD)
        return true;
    struct dfa_edge *last = d->n_edges > d->first[d->n_states - 1] ? &d->edges[d->n_edges - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        return true;
    }
    if (d->n_edges == d->edge_room) {
        struct dfa_edge *e = grow(d->shop, d->edges, &d->edge_room, sizeof *e);
        if (!e)
            return false;
        d->edges = e;
    }
    d->edges[d->n_edges++] = (struct dfa_edge){lo, hi, to};
    d->first[d->n_states] = (uint32_t)d->n_edges;
    return true;
}

/* ---- trimming and minimising ---- */

/* Finds how far each state is from acceptance, in symbols; DEAD: it never gets there. Passes over all edges
 * until none changes: automata here are shallow, and going backwards through the states settles most of them
 * in one pass. */
static bool measure(const struct draft *d, uint32_t *far)
{
    memset(far, 0xff, d->n_states * sizeof *far);
    for (bool changed = true; changed;) {
        changed = false;
        if (!dfa_work(d->shop, 1 + d->n_edges / 4))
            return false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            uint32_t least = d->accept[s] ? 0 : far[s];
            for (uint32_t i = d->first[s]; i < d->first[s + 1] && least; i++) {
                uint32_t next = far[d->edges[i].to];
                least = next < least - 1 ? next + 1 : least;
            }
            changed |= least != far[s];
            far[s] = least;
        }
    }
    return true;
}

/* Finds the length of the longest word behind each live state; DEAD: there is none, as a cycle can be
 * reached. Passes as above. */
static bool measure_longest(const struct draft *d, const uint32_t *far, uint32_t *longest)
{
    memset(longest, 0xff, d->n_states * sizeof *longest);
    for (bool changed = true; changed;) {
        changed = false;
        if (!dfa_work(d->shop, 1 + d->n_edges / 4))
            return false;
        for (uint32_t s = d->n_states; s-- > 0;) {
            uint32_t most = 0;
            if (longest[s] != DEAD || far[s] == DEAD)
                continue;
            for (uint32_t i = d->first[s]; i < d->first[s + 1] && most != DEAD; i++) {
                uint32_t to = d->edges[i].to, next = longest[to];
                if (far[to] != DEAD)
                    most = next == DEAD ? DEAD : next >= most ? next + 1 : most;
            }
            changed |= most != DEAD;
            longest[s] = most;
        }
    }
    return true;
}

/* The edges of a state as seen by classes: runs of one class are one run. */
static uint64_t signature(const struct draft *d, uint32_t s, const uint32_t *class, const uint32_t *far)
{
    uint64_t h = hash_word(hash_word(d->shop->seed, class[s]), far[s]);
    uint32_t lo = 0, hi = 0, to = DEAD;
    for (uint32_t i = d->first[s]; i < d->first[s + 1]; i++) {
        const struct dfa_edge *e = &d->edges[i];
        if (far[e->to] == DEAD)
            continue;
        if (to == class[e->to] && hi + 1 == e->lo) {
            hi = e->hi;
            continue;
        }
        if (to != DEAD)
            h = hash_word(hash_word(h, ((uint64_t)lo << 32) | hi), to);
        lo = e->lo;
        hi = e->hi;
        to = class[e->to];
    }
    return to == DEAD ? h : hash_word(hash_word(h, ((uint64_t)lo << 32) | hi), to);
}

/* Refines classes of equivalent states (Moore) until their number stays. Equivalent states are equally far
 * from acceptance and from the longest word's end, so classes begin with that: chains, as of names and
 * digits, need no round for each of their links. States of one signature count as equal: two of n states with
 * different edges have the same 64 bits with a probability of about n^2 / 2^65 a round, and a client that
 * writes the pattern cannot know the seed. Returns the number, 0 without budget. */
static uint32_t refine(const struct draft *d, uint32_t *class, const uint32_t *far)
{
    uint32_t n = d->n_states, n_classes = 1, before = 0, size = 64;
    while (size < 2 * n)
        size *= 2;
    uint64_t *sign = take(d->shop, n, sizeof *sign);
    uint32_t *slot = take(d->shop, size, sizeof *slot); /* open addressing: a state of the signature + 1 */
    uint32_t *longest = take(d->shop, n, sizeof *longest);
    if (!sign || !slot || !longest || !measure_longest(d, far, longest))
        return 0;
    for (uint32_t s = 0; s < n; s++)
        class[s] = far[s] ^ longest[s] << 16; /* two that are equal by chance cost a round */
    while (n_classes != before) {
        before = n_classes;
        if (!dfa_work(d->shop, 1 + d->n_edges + n))
            return 0;
        for (uint32_t s = 0; s < n; s++)
            if (far[s] != DEAD)
                sign[s] = signature(d, s, class, far);
        memset(slot, 0, size * sizeof *slot);
        n_classes = 0;
        for (uint32_t s = 0; s < n; s++) {
            if (far[s] == DEAD)
                continue;
            uint32_t h = (uint32_t)sign[s] & (size - 1);
            while (slot[h] && sign[slot[h] - 1] != sign[s])
                h = (h + 1) & (size - 1);
            if (!slot[h])
                n_classes++;
            class[s] = slot[h] ? class[slot[h] - 1] : n_classes;
            slot[h] = slot[h] ? slot[h] : s + 1;
        }
    }
    return n_classes;
}

/* Appends state s of `d` to `out` with classes mapped to new numbers, which are dealt as they are met. */
static bool copy_state(struct draft *out, const struct draft *d, uint32_t s, const uint32_t *class,
                       const uint32_t *far, uint32_t *number, uint32_t *queue, uint32_t *n_queue)
{
    bool ok = draft_state(out, d->accept[s]);
    for (uint32_t i = d->first[s]; ok && i < d->first[s + 1]; i++) {
        const struct dfa_edge *e = &d->edges[i];
        if (far[e->to] == DEAD)
            continue;
        uint32_t *to = &number[class[e->to]];
        if (*to == DEAD) {
            *to = *n_queue;
            queue[(*n_queue)++] = e->to;
        }
        ok = draft_edge(out, e->lo, e->hi, *to);
    }
    return ok;
}

static const struct dfa *draft_dfa(const struct draft *d)
{
    struct dfa *a = take(d->shop, 1, sizeof *a);
    if (a)
        *a = (struct dfa){d->n_states, d->first, d->edges, d->accept};
    return a;
}

static const struct dfa *finish(struct draft *d)
{
    struct dfa_workshop *shop = d->shop;
    uint32_t n = d->n_states;
    uint32_t *far = take(shop, n, sizeof *far);
    uint32_t *class = take(shop, n, sizeof *class), *queue = take(shop, n + 1, sizeof *queue);
    uint32_t *number = take(shop, n + 2, sizeof *number);
    if (!far || !class || !queue || !number || !measure(d, far))
        return NULL;
    struct draft out = {.shop = shop};
    if (far[0] == DEAD)
        return draft_state(&out, false) ? draft_dfa(&out) : NULL;
    if (!refine(d, class, far))
        return NULL;
    memset(number, 0xff, (n + 2) * sizeof *number);
    uint32_t n_queue = 1;
    queue[0] = 0;
    number[class[0]] = 0;
    for (uint32_t i = 0; i < n_queue; i++)
        if (!copy_state(&out, d, queue[i], class, far, number, queue, &n_queue))
            return NULL;
    return draft_dfa(&out);
}

/* ---- sets of states as numbers ---- */

/* Maps keys of words to 0, 1, 2, ... in the order of their first appearance. */
struct numbering {
    struct dfa_workshop *shop;
    uint32_t n, *slot, mask; /* open addressing: number + 1 */
    uint32_t *start;         /* [n + 1] into words */
    uint32_t *words;
    size_t start_room, word_room;
};

static uint32_t key_hash(const struct numbering *m, const uint32_t *key, uint32_t n)
{
    return (uint32_t)hash_bytes(m->shop->seed, key, n * sizeof *key);
}

static bool rehash(struct numbering *m)
{
    uint32_t size = m->mask ? 2 * (m->mask + 1) : 64;
    uint32_t *slot = take(m->shop, size, sizeof *slot);
    if (!slot)
        return false;
    for (uint32_t k = 0; k < m->n; k++) {
        uint32_t h = key_hash(m, m->words + m->start[k], m->start[k + 1] - m->start[k]);
        while (slot[h & (size - 1)])
            h++;
        slot[h & (size - 1)] = k + 1;
    }
    m->slot = slot;
    m->mask = size - 1;
    return true;
}

/* Returns the key's number, or DEAD without budget. A key costs the same however many slots are probed, so
 * that the work of a grammar does not depend on the seed. */
static uint32_t number_of(struct numbering *m, const uint32_t *key, uint32_t n)
{
    if (!dfa_work(m->shop, 1 + n / 4) || ((2 * (m->n + 1) > m->mask) && !rehash(m)))
        return DEAD;
    uint32_t h = key_hash(m, key, n);
    for (; m->slot[h & m->mask]; h++) {
        uint32_t k = m->slot[h & m->mask] - 1;
        if (m->start[k + 1] - m->start[k] == n && !memcmp(m->words + m->start[k], key, n * sizeof *key))
            return k;
    }
    if (m->n >= m->shop->max_states) {
        m->shop->work = 0;
        return DEAD;
    }
    if (m->n + 2 > m->start_room) {
        uint32_t *s = grow(m->shop, m->start, &m->start_room, sizeof *s);
        if (!s)
            return DEAD;
        if (!m->n)
            s[0] = 0;
        m->start = s;
    }
    while (m->start[m->n] + n > m->word_room) {
        uint32_t *w = grow(m->shop, m->words, &m->word_room, sizeof *w);
        if (!w)
            return DEAD;
        m->words = w;
    }
    if (n)
        memcpy(m->words + m->start[m->n], key, n * sizeof *key);
    m->start[m->n + 1] = m->start[m->n] + n;
    m->slot[h & m->mask] = m->n + 1;
    return m->n++;
}

/* ---- nondeterministic to deterministic ---- */

void nfa_open(struct nfa *n, struct dfa_workshop *shop)
{
    *n = (struct nfa){.shop = shop, .n_states = 2};
}

uint32_t nfa_state(struct nfa *n)
{
    if (n->n_states >= 16 * n->shop->max_states || !dfa_work(n->shop, 1))
        n->failed = true;
    return n->failed ? 0 : n->n_states++;
}

void nfa_edge(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, uint32_t to)
{
    size_t room = n->room;
    if (n->failed)
        return;
    if (n->n_edges == n->room) {
        struct nfa_edge *e = grow(n->shop, n->edges, &room, sizeof *e);
        if (!e) {
            n->failed = true;
            return;
        }
        n->edges = e;
        n->room = (uint32_t)room;
    }
    n->edges[n->n_edges++] = (struct nfa_edge){from, lo, hi, to};
}

void nfa_empty(struct nfa *n, uint32_t from, uint32_t to)
{
    nfa_edge(n, from, 1, 0, to);
}

static int by_number(const void *x, const void *y)
{
    const uint32_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

#define FEW 24 /* items that are in order sooner than qsort() has begun */

static void sort_numbers(uint32_t *a, size_t n)
{
    if (n > FEW) {
        qsort(a, n, sizeof *a, by_number);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        uint32_t x = a[i];
        size_t k = i;
        for (; k > 0 && a[k - 1] > x; k--)
            a[k] = a[k - 1];
        a[k] = x;
    }
}

static int by_range(const void *x, const void *y)
{
    const struct nfa_edge *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static void sort_edges(struct nfa_edge *e, size_t n)
{
    if (n > FEW) {
        qsort(e, n, sizeof *e, by_range);
        return;
    }
    for (size_t i = 1; i < n; i++) {
        struct nfa_edge x = e[i];
        size_t k = i;
        for (; k > 0 && e[k - 1].lo > x.lo; k--)
            e[k] = e[k - 1];
        e[k] = x;
    }
}

struct subsets {
    struct nfa *nfa;
    uint32_t *first;      /* [n_states + 1] into the sorted edges */
    uint32_t *set, n_set; /* the set under construction */
    uint32_t *seen, turn; /* seen[s] == turn: in the set */
    uint32_t *cuts;       /* bounds of ranges, 2 per edge at most */
    size_t cut_room;
    struct numbering sets;
};

static bool add_closure(struct subsets *u, uint32_t s)
{
    uint32_t at = u->n_set;
    if (u->seen[s] == u->turn)
        return true;
    u->seen[s] = u->turn;
    u->set[u->n_set++] = s;
    for (; at < u->n_set; at++) {
        uint32_t from = u->set[at];
        for (uint32_t i = u->first[from]; i < u->first[from + 1]; i++) {
            const struct nfa_edge *e = &u->nfa->edges[i];
            if (e->lo <= e->hi || u->seen[e->to] == u->turn)
                continue;
            u->seen[e->to] = u->turn;
            u->set[u->n_set++] = e->to;
        }
    }
    return dfa_work(u->nfa->shop, 1);
}

static uint32_t set_number(struct subsets *u)
{
    if (u->n_set == 0)
        return DEAD;
    sort_numbers(u->set, u->n_set);
    return number_of(&u->sets, u->set, u->n_set);
}

/* Collects where the ranges of a set's edges begin and end. Returns their number, sorted, or -1. */
static int64_t list_cuts(struct subsets *u, const uint32_t *set, uint32_t n_set)
{
    size_t n = 0;
    for (uint32_t k = 0; k < n_set; k++)
        for (uint32_t i = u->first[set[k]]; i < u->first[set[k] + 1]; i++) {
            const struct nfa_edge *e = &u->nfa->edges[i];
            if (e->lo > e->hi)
                continue;
            if (n + 2 > u->cut_room) {
                uint32_t *c = grow(u->nfa->shop, u->cuts, &u->cut_room, sizeof *c);
                if (!c)
                    return -1;
                u->cuts = c;
            }
            u->cuts[n++] = e->lo;
            u->cuts[n++] = e->hi + 1;
        }
    sort_numbers(u->cuts, n);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (i == 0 || u->cuts[i] != u->cuts[kept - 1])
            u->cuts[kept++] = u->cuts[i];
    return dfa_work(u->nfa->shop, 1 + n) ? (int64_t)kept : -1;
}

/* Appends the edges of set number k. */
static bool expand(struct subsets *u, uint32_t k, struct draft *d)
{
    uint32_t n_set = u->sets.start[k + 1] - u->sets.start[k];
    int64_t n_cuts = list_cuts(u, u->sets.words + u->sets.start[k], n_set);
    if (n_cuts < 0)
        return false;
    for (int64_t c = 0; c + 1 < n_cuts; c++) {
        uint32_t lo = u->cuts[c], hi = u->cuts[c + 1] - 1;
        u->n_set = 0;
        u->turn++;
        if (!dfa_work(u->nfa->shop, n_set))
            return false;
        for (uint32_t j = 0; j < n_set; j++) {
            uint32_t from = u->sets.words[u->sets.start[k] + j];
            for (uint32_t i = u->first[from]; i < u->first[from + 1]; i++) {
                const struct nfa_edge *e = &u->nfa->edges[i];
                if (e->lo <= lo && hi <= e->hi && !add_closure(u, e->to))
                    return false;
            }
        }
        uint32_t to = set_number(u);
        if ((to == DEAD && u->n_set) || !draft_edge(d, lo, hi, to))
            return false;
    }
    return true;
}

/* Puts the edges of each state together, by their ranges. */
static bool index_edges(struct subsets *u)
{
    struct nfa *n = u->nfa;
    struct nfa_edge *sorted = take(n->shop, n->n_edges, sizeof *sorted);
    uint32_t *first = u->first;
    if (!sorted)
        return false;
    static_assert(offsetof(struct nfa_edge, from) == 0, "as edges_by_state() reads it");
    edges_by_state(sorted, n->edges, sizeof *sorted, n->n_edges, first, n->n_states);
    for (uint32_t s = 0; s < n->n_states; s++)
        sort_edges(sorted + first[s], first[s + 1] - first[s]);
    n->edges = sorted;
    n->room = n->n_edges;
    return dfa_work(n->shop, n->n_edges);
}

const struct dfa *nfa_dfa(struct nfa *n)
{
    struct dfa_workshop *shop = n->shop;
    if (n->failed)
        return NULL;
    struct subsets u = {.nfa = n, .turn = 1, .sets.shop = shop};
    u.first = take(shop, n->n_states + 1, sizeof *u.first);
    u.set = take(shop, n->n_states, sizeof *u.set);
    u.seen = take(shop, n->n_states, sizeof *u.seen);
    if (!u.first || !u.set || !u.seen || !index_edges(&u))
        return NULL;
    if (!add_closure(&u, NFA_START) || set_number(&u) == DEAD)
        return NULL;
    struct draft d = {.shop = shop};
    for (uint32_t k = 0; k < u.sets.n; k++) {
        bool accept = false;
        for (uint32_t i = u.sets.start[k]; i < u.sets.start[k + 1]; i++)
            accept |= u.sets.words[i] == NFA_ACCEPT;
        if (!draft_state(&d, accept) || !expand(&u, k, &d))
            return NULL;
    }
    return finish(&d);
}

/* ---- algebra ---- */

static bool holds(enum dfa_op op, bool a, bool b)
{
    return op == DFA_AND ? a && b : op == DFA_OR ? a || b : a && !b;
}

/* A walk over a state's edges in pieces on which it has one target, DEAD between them. */
struct pieces {
    const struct dfa *a;
    uint32_t i, end;
};

static struct pieces pieces_of(const struct dfa *a, uint32_t s)
{
    if (s == DEAD)
        return (struct pieces){a, 0, 0};
    return (struct pieces){a, a->first[s], a->first[s + 1]};
}

/* The target from `lo` on and the last code for which it holds. */
static uint32_t piece_at(struct pieces *p, uint32_t lo, uint32_t *hi)
{
    while (p->i < p->end && p->a->edges[p->i].hi < lo)
        p->i++;
    const struct dfa_edge *e = p->i < p->end ? &p->a->edges[p->i] : NULL;
    *hi = !e ? DFA_END : e->lo <= lo ? e->hi : e->lo - 1;
    return e && e->lo <= lo ? e->to : DEAD;
}

static bool combine_state(struct draft *d, struct numbering *pairs, enum dfa_op op, const struct dfa *a,
                          uint32_t sa, const struct dfa *b, uint32_t sb)
{
    struct pieces pa = pieces_of(a, sa), pb = pieces_of(b, sb);
    if (!draft_state(d, holds(op, sa != DEAD && a->accept[sa], sb != DEAD && b->accept[sb])))
        return false;
    for (uint32_t lo = 0; lo <= DFA_END;) {
        uint32_t ha, hb, key[2] = {piece_at(&pa, lo, &ha), piece_at(&pb, lo, &hb)};
        uint32_t hi = ha < hb ? ha : hb, to = DEAD;
        if (holds(op, key[0] != DEAD, op == DFA_MINUS ? false : key[1] != DEAD)) {
            to = number_of(pairs, key, 2);
            if (to == DEAD)
                return false;
        }
        if (!draft_edge(d, lo, hi, to))
            return false;
        lo = hi + 1;
    }
    return true;
}

const struct dfa *dfa_combine(struct dfa_workshop *shop, enum dfa_op op, const struct dfa *a,
                              const struct dfa *b)
{
    struct numbering pairs = {.shop = shop};
    uint32_t start[2] = {0, 0};
    if (!a || !b || number_of(&pairs, start, 2) == DEAD)
        return NULL;
    struct draft d = {.shop = shop};
    for (uint32_t k = 0; k < pairs.n; k++) {
        const uint32_t *key = pairs.words + pairs.start[k];
        if (!combine_state(&d, &pairs, op, a, key[0], b, key[1]))
            return NULL;
    }
    return finish(&d);
}

const struct dfa *dfa_none(struct dfa_workshop *shop)
{
    struct draft d = {.shop = shop};
    return draft_state(&d, false) ? draft_dfa(&d) : NULL;
}

const struct dfa *dfa_all(struct dfa_workshop *shop)
{
    struct draft d = {.shop = shop};
    return draft_state(&d, true) && draft_edge(&d, 0, DFA_MAX_CODE, 0) ? draft_dfa(&d) : NULL;
}

const struct dfa *dfa_not(struct dfa_workshop *shop, const struct dfa *a)
{
    return dfa_combine(shop, DFA_MINUS, dfa_all(shop), a);
}

/* The one text of n code points. */
static const struct dfa *dfa_text(struct dfa_workshop *shop, const uint32_t *codes, size_t n)
{
    struct draft d = {.shop = shop};
    for (size_t i = 0; i < n; i++)
        if (!draft_state(&d, false) || !draft_edge(&d, codes[i], codes[i], (uint32_t)i + 1))
            return NULL;
    return draft_state(&d, true) ? draft_dfa(&d) : NULL;
}

/* The next code point of s[*at...); *at moves behind it. */
static uint32_t next_code(const char *s, size_t n, size_t *at)
{
    size_t len = utf8_char(s + *at, n - *at);
    uint32_t code = len ? utf8_code(s + *at, len) : 0xfffd;
    *at += len + !len;
    return code;
}

const struct dfa *dfa_utf8(struct dfa_workshop *shop, const char *s, size_t n)
{
    uint32_t *codes = take(shop, n, sizeof *codes);
    size_t n_codes = 0;
    for (size_t at = 0; codes && at < n;)
        codes[n_codes++] = next_code(s, n, &at);
    return codes ? dfa_text(shop, codes, n_codes) : NULL;
}

void nfa_text(struct nfa *n, const char *s, size_t len)
{
    const struct dfa *text = dfa_utf8(n->shop, s, len);
    uint32_t at = NFA_START;
    n->failed |= !text;
    for (uint32_t i = 0; text && i + 1 < text->n_states; i++) {
        uint32_t to = nfa_state(n);
        nfa_edge(n, at, text->edges[i].lo, text->edges[i].hi, to);
        at = to;
    }
    if (text)
        nfa_empty(n, at, NFA_ACCEPT);
}

const struct dfa *dfa_length(struct dfa_workshop *shop, const struct dfa *a, uint32_t min, uint32_t max)
{
    if (min == 0 && max == DFA_INFINITE)
        return a;
    struct draft d = {.shop = shop};
    uint32_t n = max == DFA_INFINITE ? min : max;
    if (n >= shop->max_states) {
        shop->work = 0;
        return NULL;
    }
    for (uint32_t i = 0; i <= n; i++)
        if (!draft_state(&d, i >= min) || !draft_edge(&d, 0, DFA_MAX_CODE,
                                                      i < n                 ? i + 1
                                                      : max == DFA_INFINITE ? i
                                                                            : DEAD))
            return NULL;
    return dfa_combine(shop, DFA_AND, a, draft_dfa(&d));
}

/* The state that `code` leads to, or -1. */
static int64_t dfa_next(const struct dfa *a, uint32_t state, uint32_t code)
{
    uint32_t low = a->first[state], high = a->first[state + 1];
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (a->edges[mid].hi < code)
            low = mid + 1;
        else
            high = mid;
    }
    return low < a->first[state + 1] && a->edges[low].lo <= code ? (int64_t)a->edges[low].to : -1;
}

const struct dfa *dfa_strip(struct dfa_workshop *shop, const struct dfa *a)
{
    struct draft d = {.shop = shop};
    int64_t start = a ? dfa_next(a, 0, DFA_BEGIN) : -1;
    if (!a || start < 0)
        return a ? dfa_none(shop) : NULL;
    for (uint32_t k = 0; k <= a->n_states; k++) { /* the new start goes in front: all others move by one */
        uint32_t s = k ? k - 1 : (uint32_t)start;
        int64_t end = dfa_next(a, s, DFA_END);
        bool ok = draft_state(&d, end >= 0 && a->accept[end]);
        for (uint32_t i = a->first[s]; ok && i < a->first[s + 1]; i++) {
            const struct dfa_edge *e = &a->edges[i];
            uint32_t hi = e->hi < DFA_MAX_CODE ? e->hi : DFA_MAX_CODE;
            ok = draft_edge(&d, e->lo, hi, e->to + 1);
        }
        if (!ok)
            return NULL;
    }
    return finish(&d);
}

/* ---- questions ---- */

bool dfa_is_none(const struct dfa *a)
{
    return !a->accept[0] && a->first[1] == a->first[0];
}

bool dfa_accepts(const struct dfa *a, const char *utf8, size_t n)
{
    int64_t s = 0;
    for (size_t at = 0; at < n && s >= 0;)
        s = dfa_next(a, (uint32_t)s, next_code(utf8, n, &at));
    return s >= 0 && a->accept[s];
}

/* Texts from a state on; a state on the way leads in a circle, so there are infinitely many. Depth is bounded
 * by a limit beyond which the number counts as infinite. */
static uint32_t count_from(struct dfa_workshop *shop, const struct dfa *a, uint32_t s, uint32_t *known,
                           uint32_t depth)
{
    if (known[s])
        return known[s] - 1;
    if (depth > 2000)
        return DFA_INFINITE;
    known[s] = DFA_INFINITE; /* met again: a circle. DFA_INFINITE - 1 texts count as infinite too. */
    uint64_t sum = a->accept[s];
    for (uint32_t i = a->first[s]; i < a->first[s + 1]; i++) {
        uint32_t more = count_from(shop, a, a->edges[i].to, known, depth + 1);
        sum += (uint64_t)more * (a->edges[i].hi - a->edges[i].lo + 1);
        if (more >= DFA_INFINITE - 1 || sum >= DFA_INFINITE - 1)
            return DFA_INFINITE;
    }
    known[s] = (uint32_t)sum + 1;
    return (uint32_t)sum;
}

uint32_t dfa_count(struct dfa_workshop *shop, const struct dfa *a)
{
    uint32_t *known = take(shop, a->n_states, sizeof *known);
    return known ? count_from(shop, a, 0, known, 0) : DFA_INFINITE;
}
