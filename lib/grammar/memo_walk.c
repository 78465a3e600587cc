#include "memo_walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEAD       UINT32_MAX
#define SLOW       (UINT32_MAX - 1)
#define MAX_TABLES 4096
#define MAX_LEVELS 256
#define MAX_ALIKE  4   /* bytes of a character */
#define MAX_RUN    24  /* characters that are looked ahead: tokens with more are walked */
#define ENDLESS    255 /* characters */
#define RUN_SHARE  32  /* of all nodes, those under the first bytes of a run: fewer are walked as soon */

/* ---- any string ---- */

static bool is_key(uint32_t memo)
{
    return memo < GRAMMAR_STRING_MEMOS;
}

/* Returns the state to which the byte leads from a state of a string; UINT32_MAX: there are several or none.
 */
static uint32_t only_way(const struct grammar *g, uint32_t state, uint8_t byte)
{
    uint32_t to = UINT32_MAX;
    for (uint32_t k = g->states[state].edge; k < g->states[state + 1].edge; k++) {
        const struct grammar_edge *e = &g->edges[k];
        if (byte < e->lo || byte > e->hi)
            continue;
        if (to != UINT32_MAX)
            return UINT32_MAX;
        to = e->to;
    }
    return to != UINT32_MAX && is_key(g->states[to].memo) ? to : UINT32_MAX;
}

static void set_keys(struct any_string *a, const struct vocabulary *v)
{
    uint32_t at[MAX_LEVELS], ends[MAX_LEVELS], top = 0;
    memset(a->keys, ANY_STRING_NONE, v->n_nodes);
    at[0] = a->states[0];
    ends[0] = v->n_nodes;
    for (uint32_t node = 0; node < v->n_nodes;) {
        while (node == ends[top])
            top--;
        uint32_t to = only_way(a->g, at[top], v->nodes[node].byte), end = v->nodes[node].end;
        if (to != UINT32_MAX)
            a->keys[node] = (uint8_t)a->g->states[to].memo;
        if (to == UINT32_MAX || end == node + 1 || top == MAX_LEVELS - 1) {
            node = end;
            continue;
        }
        at[++top] = to;
        ends[top] = end;
        node++;
    }
}

int any_string_open(struct any_string *a, const struct vocabulary *v, struct grammar *g)
{
    *a = (struct any_string){.keys = malloc(v->n_nodes + 1)};
    if (!a->keys)
        return -ENOMEM;
    a->g = grammar_ref(g);
    for (uint32_t s = 0; s < g->n_states; s++)
        if (is_key(g->states[s].memo))
            a->states[g->states[s].memo] = s;
    set_keys(a, v);
    return 0;
}

void any_string_close(struct any_string *a)
{
    grammar_unref(a->g);
    free(a->keys);
    *a = (struct any_string){0};
}

/* ---- tables ---- */

struct table { /* of a state of the part */
    uint32_t state;
    bool leaves;   /* the part may end here */
    uint8_t alike; /* the key of the state of any string that goes on in the same way; ANY_STRING_NONE */
    bool run_known;
    uint8_t run; /* characters of the walk's run that may follow at least, or ENDLESS */
    struct table *older;
    uint32_t next[256];
};

struct part_tables {
    const struct grammar *g;
    struct table **of; /* [n_states] */
    struct table *newest;
    uint32_t n;
};

struct part_tables *part_tables_open(const struct grammar *g)
{
    struct part_tables *all = calloc(1, sizeof *all);
    if (!all || !(all->of = calloc(g->n_states, sizeof(struct table *)))) {
        free(all);
        return NULL;
    }
    all->g = g;
    return all;
}

void part_tables_close(struct part_tables *all)
{
    if (!all)
        return;
    for (struct table *t = all->newest, *next; t; t = next) {
        next = t->older;
        free(t);
    }
    free(all->of);
    free(all);
}

static bool leaves(const struct grammar *g, uint32_t state)
{
    const struct grammar_state *s = &g->states[state];
    return (s + 1)->empty - s->empty == 1 && g->states[g->empties[s->empty]].memo == GRAMMAR_NO_MEMO;
}

/* The states that a table can stand for: no count, no way without input but out of the part. */
static bool is_simple(const struct grammar *g, uint32_t state)
{
    const struct grammar_state *s = &g->states[state], *end = s + 1;
    return s->memo != GRAMMAR_NO_MEMO && !s->final && s->call == end->call &&
           (s->empty == end->empty || leaves(g, state));
}

static void fill_table(const struct grammar *g, struct table *t)
{
    memset(t->next, 0xff, sizeof t->next);
    for (uint32_t k = g->states[t->state].edge; k < g->states[t->state + 1].edge; k++) {
        const struct grammar_edge *e = &g->edges[k];
        bool simple = !e->counts && is_simple(g, e->to);
        for (uint32_t b = e->lo; b <= e->hi; b++)
            t->next[b] = simple && t->next[b] == DEAD ? e->to : SLOW;
    }
}

static struct table *make_table(struct part_tables *all, uint32_t state)
{
    struct table *t = all->n < MAX_TABLES ? malloc(sizeof *t) : NULL;
    if (!t)
        return NULL;
    t->state = state;
    t->run_known = false;
    t->leaves = leaves(all->g, state);
    t->alike = is_key(all->g->states[state].memo) ? (uint8_t)all->g->states[state].memo : ANY_STRING_NONE;
    fill_table(all->g, t);
    t->older = all->newest;
    all->newest = t;
    all->n++;
    return all->of[state] = t;
}

static inline struct table *table_of(struct part_tables *all, uint32_t state)
{
    struct table *t = all->of[state];
    return t ? t : make_table(all, state);
}

/* True if both read the same bytes up to the end of a character, and go on as any string. */
static bool goes_alike(const struct grammar *g, uint32_t s, const struct grammar *h, uint32_t r, int left)
{
    const struct grammar_state *a = &g->states[s], *b = &h->states[r];
    uint32_t n = (a + 1)->edge - a->edge;
    if (is_key(a->memo))
        return a->memo == b->memo;
    if (!left || a->final || (a + 1)->empty != a->empty || (b + 1)->empty != b->empty ||
        (b + 1)->edge - b->edge != n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct grammar_edge *e = &g->edges[a->edge + i], *f = &h->edges[b->edge + i];
        if (e->lo != f->lo || e->hi != f->hi || !goes_alike(g, e->to, h, f->to, left - 1))
            return false;
    }
    return true;
}

/* ---- the walk ---- */

struct part_walk {
    struct matcher *m;
    const struct vocabulary *v;
    struct memo *o;
    /* The mask that it begins with: of any string, or of another state of the grammar; NULL: empty. */
    const struct memo *base;
    const struct any_string *any; /* NULL: base is of a state of the grammar */
    /* Classes of characters: it begins with the tokens that consist of them. 0: not so. */
    uint64_t run;
    struct part_tables *tables;
    bool (*slow)(void *context, uint32_t state, uint32_t node);
    void *context;
};

bool memo_add_exit(struct memo *o, uint32_t node, uint32_t count)
{
    if (o->n_exits == o->exit_room) {
        uint32_t more = o->exit_room ? 2 * o->exit_room : 256;
        struct exit_node *e = realloc(o->exits, more * sizeof *e);
        if (!e)
            return false;
        o->exits = e;
        o->exit_room = more;
    }
    o->exits[o->n_exits++] = (struct exit_node){node, count};
    return true;
}

static void set_token(const struct part_walk *w, const struct vocabulary_node *n)
{
    int32_t token = n->token;
    if (token >= 0)
        w->o->mask[token / 32] |= 1u << (token % 32);
    while (n->shared && (token = w->v->same[token]) >= 0)
        w->o->mask[token / 32] |= 1u << (token % 32);
}

/* Takes the tokens of [node, end) out of the mask, where it began with them. */
static void clear_tokens(const struct part_walk *w, bool begun, uint32_t node, uint32_t end)
{
    for (; begun && node < end; node++) {
        const struct vocabulary_node *n = &w->v->nodes[node];
        int32_t token = n->token;
        if (token >= 0)
            w->o->mask[token / 32] &= ~(1u << (token % 32));
        while (n->shared && (token = w->v->same[token]) >= 0)
            w->o->mask[token / 32] &= ~(1u << (token % 32));
    }
}

/* Below the node all is as in any string. */
static bool joins(const struct part_walk *w, struct table *t, uint32_t node)
{
    uint8_t key = w->any ? w->any->keys[node] : ANY_STRING_NONE;
    if (key == ANY_STRING_NONE)
        return false;
    if (t->alike == ANY_STRING_NONE &&
        goes_alike(w->tables->g, t->state, w->any->g, w->any->states[key], MAX_ALIKE))
        t->alike = key;
    return t->alike == key;
}

static bool copy_exits(struct part_walk *w, uint32_t node, uint32_t end)
{
    const struct memo *s = w->base;
    uint32_t lo = 0, hi = s->n_exits;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->exits[mid].node <= node)
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; w->o->byte_exit && lo < s->n_exits && s->exits[lo].node < end; lo++)
        if (!memo_add_exit(w->o, s->exits[lo].node, 0))
            return false;
    return true;
}

/* A level of the walk: the state behind its node, and where the base's walk is there; NULL: nowhere. `pure`:
 * the bytes up to its node are of the run's characters. */
struct level {
    struct table *at, *base;
    uint32_t end;
    bool pure;
};

/* ---- runs ---- */

/* The state behind any of the characters that go on from here with lo..hi and `more` bytes; DEAD: there is
 * none, or several. */
static uint32_t behind_character(const struct grammar *g, uint32_t state, uint8_t lo, uint8_t hi,
                                 uint32_t more)
{
    const struct grammar_state *s = &g->states[state], *end = s + 1;
    uint32_t target = DEAD, from = lo;
    if (s->final || s->call != end->call || s->empty != end->empty)
        return DEAD;
    for (uint32_t k = s->edge; k < end->edge; k++) {
        const struct grammar_edge *e = &g->edges[k];
        if (e->lo != from || e->hi > hi || e->counts)
            return DEAD;
        uint32_t to = more ? behind_character(g, e->to, 0x80, 0xbf, more - 1) : e->to;
        if (to == DEAD || (target != DEAD && to != target))
            return DEAD;
        target = to;
        from = e->hi + 1u;
    }
    return from == hi + 1u && is_simple(g, target) ? target : DEAD;
}

static uint32_t behind_first(const struct grammar *g, const struct table *t, uint8_t byte)
{
    uint8_t lo, hi;
    uint32_t more, next = t->next[byte];
    if (byte < 0x80 || next == DEAD || next == SLOW || !token_character(byte, &lo, &hi, &more))
        return next;
    return behind_character(g, next, lo, hi, more);
}

/* Fills to[c] with the state behind the characters of class c: DEAD, or SLOW where there are several. */
static void fill_targets(const struct part_walk *w, const struct table *t, uint32_t to[TOKEN_CLASSES])
{
    uint64_t seen = 0;
    for (unsigned b = 0; b < 256; b++) {
        uint8_t class = w->v->classes.class_of[b];
        if (class == TOKEN_BROKEN)
            continue;
        uint32_t next = behind_first(w->tables->g, t, (uint8_t)b);
        to[class] = !(seen >> class & 1) || to[class] == next ? next : SLOW;
        seen |= UINT64_C(1) << class;
    }
}

/* Returns the state behind the characters of the run, or NULL: they do not all lead to one. */
static struct table *behind_run(struct part_walk *w, const struct table *t)
{
    uint32_t to[TOKEN_CLASSES], target = DEAD;
    fill_targets(w, t, to);
    for (unsigned c = 0; c < TOKEN_BROKEN; c++) {
        if (!(w->run >> c & 1))
            continue;
        if (to[c] == DEAD || to[c] == SLOW || (target != DEAD && to[c] != target))
            return NULL;
        target = to[c];
    }
    return target == DEAD ? NULL : table_of(w->tables, target);
}

/* Returns how many characters of the run may follow at least, looking `left` characters ahead. */
static uint8_t run_of(struct part_walk *w, struct table *t, uint32_t left)
{
    if (t->run_known || left == 0)
        return t->run_known ? t->run : 0;
    const struct table *next = behind_run(w, t);
    uint8_t behind = !next ? 0 : next == t ? ENDLESS : run_of(w, w->tables->of[next->state], left - 1);
    t->run = !next ? 0 : behind < ENDLESS - 1 ? behind + 1 : behind;
    t->run_known = true;
    return t->run;
}

/* The state that characters of the most nodes lead to; `nodes` counts them. */
static uint32_t heaviest(const struct part_walk *w, const uint32_t to[TOKEN_CLASSES], uint32_t *nodes)
{
    uint32_t best = DEAD;
    *nodes = 0;
    for (unsigned c = 0; c < TOKEN_BROKEN; c++) {
        uint32_t n = 0;
        for (unsigned d = c; d < TOKEN_BROKEN && to[c] != DEAD && to[c] != SLOW; d++)
            n += to[d] == to[c] ? w->v->classes.weight[d] : 0;
        if (n > *nodes) {
            *nodes = n;
            best = to[c];
        }
    }
    return best;
}

/* Finds characters that may repeat, of which most tokens of the part consist. False: the walk gains nothing
 * by them. */
static bool choose_run(struct part_walk *w, const struct table *root)
{
    const struct token_classes *classes = &w->v->classes;
    uint32_t first[TOKEN_CLASSES] = {0}, later[TOKEN_CLASSES] = {0}, n, kept = 0, cleared = 0;
    fill_targets(w, root, first);
    uint32_t next = heaviest(w, first, &n);
    uint32_t least = w->v->n_nodes / RUN_SHARE;
    struct table *t = n == 0 || n < least ? NULL : table_of(w->tables, next);
    if (!t)
        return false;
    fill_targets(w, t, later);
    uint32_t further = heaviest(w, later, &n);
    w->run = 0;
    for (unsigned c = 0; c < TOKEN_BROKEN; c++) {
        if (later[c] != further || further == DEAD)
            continue;
        w->run |= UINT64_C(1) << c;
        kept += first[c] == next ? classes->weight[c] : 0;
        cleared += first[c] == next ? 0 : classes->weight[c];
    }
    for (unsigned b = 0; w->o->byte_exit && b < 256; b++) /* nodes with an exit are walked */
        if (memo_exits_by(w->o, (uint8_t)b))
            w->run &= ~(UINT64_C(1) << classes->class_of[b]);
    if (kept < least || cleared > kept / 2 || run_of(w, t, MAX_RUN) < MAX_ALIKE)
        w->run = 0;
    return w->run != 0;
}

static bool is_of_run(const struct part_walk *w, uint8_t byte)
{
    bool goes_on = byte >= 0x80 && byte < 0xc0;
    return goes_on || w->run >> w->v->classes.class_of[byte] & 1;
}

/* The tokens of the node and below it are in the run, and all of them may come. */
static bool is_in_run(struct part_walk *w, const struct level *above, uint32_t node)
{
    const struct token_classes *classes = &w->v->classes;
    return above->pure && !(classes->from[node] & ~w->run) &&
           classes->tall[node] <= run_of(w, above->at, MAX_RUN);
}

/* ---- nodes ---- */

static struct table *behind(struct part_walk *w, const struct table *above, uint8_t byte)
{
    uint32_t next = above ? above->next[byte] : DEAD;
    return next == DEAD || next == SLOW ? NULL : table_of(w->tables, next);
}

/* Below the node all is as in the base. */
static bool is_as_base(const struct part_walk *w, struct table *t, const struct table *base, uint32_t node)
{
    return w->any ? joins(w, t, node) : w->base && t == base;
}

/* Takes a node from the state above it. The caller walks the nodes below it if *below has a state. */
static bool take_node(struct part_walk *w, const struct level *above, uint32_t node, struct level *below)
{
    const struct vocabulary_node *n = &w->v->nodes[node];
    uint32_t next = above->at->next[n->byte];
    bool unsure = next == SLOW || (above->base && above->base->next[n->byte] == SLOW);
    *below = (struct level){.end = n->end, .pure = w->run && above->pure && is_of_run(w, n->byte)};
    if (w->run && is_in_run(w, above, node))
        return true;
    if (!unsure && w->o->byte_exit && above->at->leaves && memo_exits_by(w->o, n->byte) &&
        !memo_add_exit(w->o, node, 0))
        return false;
    if (next == DEAD || unsure)
        clear_tokens(w, w->base || below->pure, node, n->end);
    if (unsure)
        return w->slow(w->context, above->at->state, node);
    if (next == DEAD)
        return true;
    struct table *t = table_of(w->tables, next);
    if (!t)
        return false;
    set_token(w, n);
    below->base = behind(w, above->base, n->byte);
    if (is_as_base(w, t, below->base, node))
        return copy_exits(w, node, n->end);
    below->at = n->end > node + 1 ? t : NULL;
    return true;
}

/* Returns true if most nodes of the first level are as in the base: then the walk begins with its mask. */
static bool joins_mostly(struct part_walk *w, const struct level *root)
{
    uint64_t n = 0;
    for (uint32_t node = 0; node < w->v->n_nodes; node = w->v->nodes[node].end) {
        uint8_t byte = w->v->nodes[node].byte;
        struct table *t = behind(w, root->at, byte);
        if (t && is_as_base(w, t, behind(w, root->base, byte), node))
            n += w->v->nodes[node].end - node;
    }
    return n > w->v->n_nodes / 2;
}

/* Walks the nodes [node, root->end). */
static bool walk_all(struct part_walk *w, const struct level *root, uint32_t node)
{
    struct level levels[MAX_LEVELS], below;
    uint32_t top = 0, n_taken = 0;
    levels[0] = *root;
    while (node < root->end) {
        while (node == levels[top].end)
            top--;
        if (++n_taken % 64 == 0 && !matcher_work(w->m, 64))
            return false;
        if (!take_node(w, &levels[top], node, &below))
            return false;
        if (below.at && top < MAX_LEVELS - 1) {
            levels[++top] = below;
            node++;
            continue;
        }
        if (below.at)
            clear_tokens(w, w->base || below.pure, node + 1, below.end);
        node = below.end;
    }
    return true;
}

/* Takes the first of the bases that serves, if one does. */
static void choose_base(struct part_walk *w, const struct memo_bases *bases, struct level *root)
{
    for (uint32_t i = 0; i < bases->n_memos && root->at; i++) {
        w->base = bases->memos[i];
        root->base = table_of(w->tables, w->base->state);
        if (root->base && joins_mostly(w, root))
            return;
    }
    root->base = NULL;
    w->base = bases->string;
    w->any = bases->any;
    if (w->base && root->at && joins_mostly(w, root))
        return;
    w->base = NULL;
    w->any = NULL;
    root->pure = root->at && choose_run(w, root->at);
}

bool memo_walk(struct matcher *m, const struct vocabulary *v, struct memo *o, const struct memo_bases *bases,
               bool (*slow)(void *context, uint32_t state, uint32_t node), void *context)
{
    struct part_tables *tables = part_tables_open(m->g);
    struct part_walk w = {.m = m, .v = v, .o = o, .tables = tables, .slow = slow, .context = context};
    struct level root = {.end = v->n_nodes};
    if (tables && is_simple(m->g, o->state))
        root.at = table_of(tables, o->state);
    choose_base(&w, bases, &root);
    if (w.base)
        memcpy(o->mask, w.base->mask, vocabulary_mask_words(v) * sizeof *o->mask);
    else if (w.run)
        token_classes_mask(&v->classes, w.run, o->mask);
    bool ok = root.at && walk_all(&w, &root, 0);
    part_tables_close(tables);
    return ok;
}

bool part_walk(struct matcher *m, const struct vocabulary *v, struct memo *o, struct part_tables *tables,
               uint32_t node, bool (*slow)(void *context, uint32_t state, uint32_t node), void *context)
{
    struct part_walk w = {.m = m, .v = v, .o = o, .tables = tables, .slow = slow, .context = context};
    struct level root = {.end = v->nodes[node].end};
    if (is_simple(m->g, o->state))
        root.at = table_of(tables, o->state);
    return root.at && walk_all(&w, &root, node + 1);
}
