#include "edge_order.h"
#include "frame_walk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STATES 20000 /* of a grammar: more take too long to look through */
#define MAX_EXITS  (1 << 16)

struct frames {
    uint32_t n_states;
    uint32_t *body;       /* [n_states]: the number of the rule's body, whose states one frame can be in */
    bool *counts;         /* [n_states], by body: some states have bounds */
    uint32_t *back_first; /* [n_states + 1], by body, into backs */
    uint32_t *backs;      /* the states to which calls of the body's rules come back */
    uint32_t *exit;       /* [n_states]: of a state in a part that counts nothing, the way out; or NO_FRAME */
    uint32_t exit_known;  /* whose bytes are known */
    uint64_t exit_bytes[4];
    uint32_t n_exit_bytes;
    uint32_t *seen;  /* [2 * n_states]: the turn in which it was queued, in the frame or in one above it */
    uint32_t *queue; /* [2 * n_states] */
    uint32_t turn, n_queue;
};

void frames_close(struct frames *f)
{
    if (!f)
        return;
    free(f->body);
    free(f->counts);
    free(f->back_first);
    free(f->backs);
    free(f->exit);
    free(f->seen);
    free(f->queue);
    free(f);
}

static uint32_t root_of(uint32_t *body, uint32_t s)
{
    while (body[s] != s)
        s = body[s] = body[body[s]];
    return s;
}

static void join(uint32_t *body, uint32_t a, uint32_t b)
{
    body[root_of(body, a)] = root_of(body, b);
}

static void find_bodies(struct frames *f, const struct grammar *g)
{
    for (uint32_t s = 0; s < g->n_states; s++)
        f->body[s] = s;
    for (uint32_t s = 0; s < g->n_states; s++) {
        const struct grammar_state *a = &g->states[s], *end = a + 1;
        for (uint32_t k = a->edge; k < end->edge; k++)
            join(f->body, s, g->edges[k].to);
        for (uint32_t k = a->empty; k < end->empty; k++)
            join(f->body, s, g->empties[k]);
        for (uint32_t k = a->call; k < end->call; k++)
            join(f->body, s, g->calls[k].back);
    }
    for (uint32_t s = 0; s < g->n_states; s++) {
        const struct grammar_state *a = &g->states[s];
        f->body[s] = root_of(f->body, s);
        f->counts[f->body[s]] |= a->min > 0 || a->max != GRAMMAR_UNBOUNDED;
    }
}

static void find_backs(struct frames *f, const struct grammar *g)
{
    uint32_t n_calls = g->states[g->n_states].call;
    for (uint32_t k = 0; k < n_calls; k++)
        f->back_first[f->body[g->calls[k].rule] + 1]++;
    edges_begin(f->back_first, g->n_states);
    for (uint32_t k = n_calls; k-- > 0;)
        f->backs[f->back_first[f->body[g->calls[k].rule]]++] = g->calls[k].back;
    edges_begin_again(f->back_first, g->n_states);
}

static bool in_part(const struct grammar_state *s)
{
    return s->memo != GRAMMAR_NO_MEMO && s->memo >= GRAMMAR_STRING_MEMOS && s->part == GRAMMAR_UNBOUNDED;
}

/* A part has one way out, or none that is known. */
static void find_exits(struct frames *f, const struct grammar *g)
{
    uint32_t *part = f->queue, *exit = f->queue + g->n_states;
    for (uint32_t s = 0; s < g->n_states; s++) {
        part[s] = s;
        exit[s] = NO_FRAME;
    }
    for (uint32_t s = 0; s < g->n_states; s++)
        for (uint32_t k = g->states[s].edge; in_part(&g->states[s]) && k < g->states[s + 1].edge; k++)
            join(part, s, g->edges[k].to);
    for (uint32_t s = 0; s < g->n_states; s++)
        for (uint32_t k = g->states[s].empty; in_part(&g->states[s]) && k < g->states[s + 1].empty; k++) {
            uint32_t *e = &exit[root_of(part, s)], to = g->empties[k];
            *e = *e == NO_FRAME || *e == to ? to : UINT32_MAX - 1;
        }
    for (uint32_t s = 0; s < g->n_states; s++) {
        uint32_t e = in_part(&g->states[s]) ? exit[root_of(part, s)] : NO_FRAME;
        f->exit[s] = e < g->n_states && !in_part(&g->states[e]) && frames_plain(f, e) ? e : NO_FRAME;
    }
    f->exit_known = NO_FRAME;
}

static size_t frames_bytes(const struct grammar *g)
{
    size_t n = g->n_states;
    return sizeof(struct frames) + n * (sizeof(bool) + 7 * sizeof(uint32_t)) +
           g->states[n].call * sizeof(uint32_t);
}

static struct frames *frames_open(const struct grammar *g)
{
    struct frames *f = calloc(1, sizeof *f);
    size_t n = g->n_states + 1;
    if (!f)
        return NULL;
    f->n_states = g->n_states;
    f->body = calloc(n, sizeof *f->body);
    f->counts = calloc(n, sizeof *f->counts);
    f->back_first = calloc(n + 1, sizeof *f->back_first);
    f->backs = calloc(g->states[g->n_states].call + 1, sizeof *f->backs);
    f->exit = calloc(n, sizeof *f->exit);
    f->seen = calloc(2 * n, sizeof *f->seen);
    f->queue = calloc(2 * n, sizeof *f->queue);
    if (!f->body || !f->counts || !f->back_first || !f->backs || !f->exit || !f->seen || !f->queue) {
        frames_close(f);
        return NULL;
    }
    find_bodies(f, g);
    find_backs(f, g);
    find_exits(f, g);
    return f;
}

struct frames *frames_of(struct matcher *m, const struct vocabulary *v)
{
    struct vocabulary_memos *s = m->g->memos;
    s->of = s->of ? s->of : v;
    if (s->of != v || s->frameless)
        return NULL;
    if (!s->frames) {
        s->frameless = m->g->has_unique || m->g->n_states > MAX_STATES;
        s->frames = s->frameless ? NULL : frames_open(m->g); /* without memory now, perhaps later */
        if (s->frames)
            memo_take(m, s, frames_bytes(m->g));
    }
    return s->frames;
}

bool frames_plain(const struct frames *f, uint32_t state)
{
    return !f->counts[f->body[state]];
}

/* ---- the bytes that may come ---- */

/* A state above the frame is that of a rule which was called on the way: its end is the caller's affair. */
static void look_at(struct frames *f, uint32_t state, bool above)
{
    uint32_t i = 2 * state + above;
    if (f->seen[i] == f->turn)
        return;
    f->seen[i] = f->turn;
    f->queue[f->n_queue++] = i;
}

static void look_behind(struct frames *f, uint32_t body)
{
    for (uint32_t k = f->back_first[body]; k < f->back_first[body + 1]; k++)
        look_at(f, f->backs[k], false);
}

static void add_all(struct frames *f, const struct grammar *g, struct memo *o)
{
    for (uint32_t i = 0; i < f->n_queue; i++) {
        uint32_t s = f->queue[i] / 2;
        bool above = f->queue[i] % 2;
        const struct grammar_state *a = &g->states[s], *end = a + 1;
        for (uint32_t k = a->edge; k < end->edge; k++)
            for (uint32_t b = g->edges[k].lo; b <= g->edges[k].hi; b++)
                memo_exit_by(o, (uint8_t)b);
        for (uint32_t k = a->empty; k < end->empty; k++)
            look_at(f, g->empties[k], above);
        for (uint32_t k = a->call; k < end->call; k++) {
            look_at(f, g->calls[k].rule, true);
            if (g->states[g->calls[k].rule].nullable)
                look_at(f, g->calls[k].back, above);
        }
        if (a->final && !above)
            look_behind(f, f->body[s]);
    }
}

static void begin_look(struct frames *f)
{
    f->n_queue = 0;
    if (++f->turn == 0) {
        memset(f->seen, 0, 2 * (size_t)f->n_states * sizeof *f->seen);
        f->turn = 1;
    }
}

void frames_add_bytes(struct frames *f, const struct grammar *g, uint32_t state, struct memo *o)
{
    begin_look(f);
    look_at(f, state, false);
    add_all(f, g, o);
}

uint32_t frames_exit(const struct frames *f, uint32_t state)
{
    return f->exit[state];
}

void frames_exit_bytes(struct frames *f, const struct grammar *g, struct memo *o)
{
    if (f->exit_known != o->exit_state) {
        struct memo all = {0};
        frames_add_bytes(f, g, o->exit_state, &all);
        memcpy(f->exit_bytes, all.exit_bytes, sizeof f->exit_bytes);
        f->n_exit_bytes = all.n_exit_bytes;
        f->exit_known = o->exit_state;
    }
    memcpy(o->exit_bytes, f->exit_bytes, sizeof f->exit_bytes);
    o->n_exit_bytes = f->n_exit_bytes;
}

/* The bytes that may come when the state's frame has ended. */
static void add_bytes_behind(struct frames *f, const struct grammar *g, uint32_t state, struct memo *o)
{
    begin_look(f);
    look_behind(f, f->body[state]);
    add_all(f, g, o);
}

/* ---- memos ---- */

uint32_t frame_memo_few(const struct vocabulary *v)
{
    return vocabulary_mask_words(v) / 64;
}

/* A mask is taken from a memo in a time of so many steps. */
static uint64_t little(const struct vocabulary *v)
{
    return vocabulary_mask_words(v) / 16;
}

static uint64_t much(const struct vocabulary *v)
{
    return 4 * (uint64_t)v->n_nodes + MATCHER_WORK / 16;
}

uint64_t frame_memo_budget(const struct vocabulary *v)
{
    return 2 * much(v);
}

/* The matcher's own work stays as it is: a mask fails or not whatever is remembered. */
struct making {
    uint64_t work;
    struct trie_mark mark;
};

static struct making begin(struct matcher *m, const struct vocabulary *v)
{
    struct making k = {m->work, trie_mark(m)};
    m->work = much(v);
    m->depth_limit = FRAME_MEMO_DEPTH;
    m->too_deep = false;
    return k;
}

/* Returns the steps taken. *ok: the memo is whole; *no_memory: it may be made another time. */
static uint64_t end(struct matcher *m, const struct vocabulary *v, const struct making *k, bool *ok,
                    bool *no_memory)
{
    uint64_t used = much(v) - m->work;
    *ok = !m->failed && !m->too_deep;
    *no_memory = m->failed && !m->ambiguous;
    m->failed = m->ambiguous = m->too_deep = false;
    m->depth_limit = GRAMMAR_MAX_DEPTH;
    m->work = k->work;
    trie_go_back(m, k->mark);
    return used;
}

static void make_useless(struct memo *o)
{
    free(o->mask);
    free(o->exits);
    o->mask = NULL;
    o->exits = NULL;
    o->n_exits = o->exit_room = 0;
    o->useless = true;
}

static struct memo *new_memo(struct matcher *m, const struct vocabulary *v, uint64_t from, uint32_t state)
{
    struct memo *o = calloc(1, sizeof *o);
    if (!o || !(o->mask = calloc(vocabulary_mask_words(v) + 1, sizeof *o->mask))) {
        memo_free(o);
        return NULL;
    }
    o->frame = o->byte_exit = true;
    o->from = from;
    o->state = state;
    add_bytes_behind(m->g->memos->frames, m->g, state, o);
    return o;
}

static int by_node(const void *x, const void *y)
{
    const struct exit_node *a = x, *b = y;
    return a->node < b->node ? -1 : a->node > b->node;
}

/* Several threads may end the frame at one node. */
static void sort_exits(struct memo *o)
{
    uint32_t n = 0;
    if (o->n_exits)
        qsort(o->exits, o->n_exits, sizeof *o->exits, by_node);
    for (uint32_t i = 0; i < o->n_exits; i++)
        if (n == 0 || o->exits[i].node != o->exits[n - 1].node)
            o->exits[n++] = o->exits[i];
    o->n_exits = n;
}

/* Fills the memo, from another one or by a walk of the trie. */
static void fill(struct matcher *m, const struct vocabulary *v, struct memo *o, const struct memo *from)
{
    struct frame_walk *f = frame_walk_open(m, v, o);
    if (!f)
        m->failed = true;
    else if (from) {
        memcpy(o->mask, from->mask, vocabulary_mask_words(v) * sizeof *o->mask);
        frame_walk_exits(f, from, (struct thread){o->state, 0, NO_FRAME, 0});
    } else
        frame_walk_all(f, o->state);
    frame_walk_close(f);
    sort_exits(o);
}

/* Makes the memo, from another one or by a walk of the trie, and keeps it. */
static struct memo *make(struct matcher *m, const struct vocabulary *v, struct memo *from, uint32_t state,
                         uint64_t *budget)
{
    struct vocabulary_memos *s = m->g->memos;
    bool ok, no_memory;
    if (*budget < much(v) || !memo_room(m, v, s))
        return NULL;
    struct memo *o = new_memo(m, v, from ? from->id : 0, state);
    if (!o)
        return NULL;
    struct making k = begin(m, v);
    fill(m, v, o, from);
    uint64_t used = end(m, v, &k, &ok, &no_memory);
    *budget -= used;
    if (no_memory) {
        memo_free(o);
        return NULL;
    }
    if (!ok || o->n_exits > MAX_EXITS || (!from && used < little(v) && o->n_exits <= frame_memo_few(v)))
        make_useless(o);
    memo_keep(m, v, s, o);
    return o;
}

static struct memo *find_or_make(struct matcher *m, const struct vocabulary *v, struct memo *from,
                                 uint32_t state, uint64_t *budget)
{
    struct vocabulary_memos *s = m->g->memos;
    struct memo *o = memo_of_frame(s, from ? from->id : 0, state);
    assert(s->frames);
    if (o)
        memo_used(s, o);
    else
        o = make(m, v, from, state, budget);
    return o && !o->useless ? o : NULL;
}

struct memo *frame_memo(struct matcher *m, const struct vocabulary *v, uint32_t state, uint64_t *budget)
{
    return find_or_make(m, v, NULL, state, budget);
}

struct memo *frame_memo_on(struct matcher *m, const struct vocabulary *v, struct memo *from, uint32_t state,
                           uint64_t *budget)
{
    from->n_users++; /* not to be forgotten for the new one's room */
    struct memo *o = find_or_make(m, v, from, state, budget);
    from->n_users--;
    return o;
}
