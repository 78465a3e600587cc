/* grammar_finish.c - from a builder's states to a grammar: what leads nowhere goes, left recursion is
 * refused, states and moves are laid out in order. */
#include "edge_order.h"
#include "grammar_builder.h"
#include "matcher.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct finisher {
    struct builder *b;
    uint32_t *first;         /* [n_states + 1] into edges sorted by state */
    uint32_t *in_first, *in; /* edges that depend on a state: by target, rule and way back */
    uint32_t *height;        /* frames below; UINT32_MAX: never ends */
    bool *nullable;          /* the frame can end here without input */
    uint32_t *behind;        /* the state that stands for it: itself, or that behind moves without a choice */
    uint32_t *queue;
};

static int by_kind(const void *x, const void *y)
{
    const struct builder_edge *a = x, *b = y;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static void *take(struct finisher *f, size_t n, size_t size)
{
    void *p = f->b->failed || !dfa_work(&f->b->shop, 1 + n * size / 256)
                  ? NULL
                  : arena_array(&f->b->arena, n + 1, size);
    if (!p && !f->b->failed)
        builder_exhausted(f->b);
    return p;
}

/* Puts the edges of each state together, by kind and range. */
static bool index_edges(struct finisher *f)
{
    struct builder *b = f->b;
    uint32_t *first = f->first;
    struct builder_edge *sorted = take(f, b->n_edges, sizeof *sorted);
    if (!sorted)
        return false;
    static_assert(offsetof(struct builder_edge, from) == 0, "as edges_by_state() reads it");
    edges_by_state(sorted, b->edges, sizeof *sorted, b->n_edges, first, b->n_states);
    for (uint32_t s = 0; s < b->n_states; s++) {
        uint32_t n = first[s + 1] - first[s];
        if (n == 2 && by_kind(&sorted[first[s]], &sorted[first[s] + 1]) > 0) {
            struct builder_edge e = sorted[first[s]];
            sorted[first[s]] = sorted[first[s] + 1];
            sorted[first[s] + 1] = e;
        } else if (n > 2) {
            qsort(&sorted[first[s]], n, sizeof *sorted, by_kind);
        }
    }
    b->edges = sorted;
    b->edge_room = b->n_edges;
    return true;
}

static bool open_finisher(struct finisher *f)
{
    struct builder *b = f->b;
    f->first = take(f, b->n_states + 1, sizeof *f->first);
    f->in_first = take(f, b->n_states + 2, sizeof *f->in_first);
    f->in = take(f, 2 * (size_t)b->n_edges, sizeof *f->in);
    f->height = take(f, b->n_states, sizeof *f->height);
    f->nullable = take(f, b->n_states, sizeof *f->nullable);
    f->behind = take(f, b->n_states, sizeof *f->behind);
    f->queue = take(f, 2 * (size_t)b->n_states + 2, sizeof *f->queue);
    if (b->failed)
        return false;
    return index_edges(f);
}

/* Lists for each state the edges that lead to it, call it or come back to it. */
static void index_targets(struct finisher *f)
{
    struct builder *b = f->b;
    uint32_t *at = f->in_first;
    memset(at, 0, (b->n_states + 2) * sizeof *at);
    for (uint32_t i = 0; i < b->n_edges; i++) {
        at[b->edges[i].to + 1]++;
        if (b->edges[i].kind == BUILDER_CALL)
            at[b->edges[i].back + 1]++;
    }
    edges_begin(at, b->n_states);
    for (uint32_t i = b->n_edges; i-- > 0;) {
        f->in[at[b->edges[i].to]++] = i;
        if (b->edges[i].kind == BUILDER_CALL)
            f->in[at[b->edges[i].back]++] = i;
    }
    edges_begin_again(at, b->n_states);
}

static uint32_t height_over(const struct finisher *f, const struct builder_edge *e)
{
    if (e->kind != BUILDER_CALL)
        return f->height[e->to];
    if (f->height[e->to] == UINT32_MAX || f->height[e->back] == UINT32_MAX)
        return UINT32_MAX;
    uint32_t below = f->height[e->to] + 1;
    return below > f->height[e->back] ? below : f->height[e->back];
}

/* The least depth that the way to the end needs, by relaxing backwards from the final states. */
static bool find_heights(struct finisher *f)
{
    struct builder *b = f->b;
    uint32_t n = b->n_states, room = 2 * n + 1, head = 0, tail = 0;
    bool *queued = take(f, n, sizeof *queued);
    if (!queued)
        return false;
    for (uint32_t s = 0; s < n; s++) {
        f->height[s] = b->states[s].final ? 0 : UINT32_MAX;
        if (b->states[s].final)
            f->queue[tail++] = s, queued[s] = true;
    }
    for (; head != tail; head = (head + 1) % room) {
        uint32_t s = f->queue[head];
        queued[s] = false;
        if (!dfa_work(&b->shop, 1 + f->in_first[s + 1] - f->in_first[s]))
            return builder_exhausted(b) == 0;
        for (uint32_t i = f->in_first[s]; i < f->in_first[s + 1]; i++) {
            const struct builder_edge *e = &b->edges[f->in[i]];
            uint32_t h = height_over(f, e);
            if (h >= f->height[e->from])
                continue;
            f->height[e->from] = h;
            if (!queued[e->from]) {
                queued[e->from] = true;
                f->queue[tail] = e->from;
                tail = (tail + 1) % room;
            }
        }
    }
    return true;
}

/* States from which the frame can end without input. */
static void find_nullable(struct finisher *f)
{
    struct builder *b = f->b;
    uint32_t n = 0;
    for (uint32_t s = 0; s < b->n_states; s++)
        if (b->states[s].final)
            f->nullable[s] = true, f->queue[n++] = s;
    while (n > 0) {
        uint32_t s = f->queue[--n];
        for (uint32_t i = f->in_first[s]; i < f->in_first[s + 1]; i++) {
            const struct builder_edge *e = &b->edges[f->in[i]];
            bool is = e->kind == BUILDER_EMPTY ||
                      (e->kind == BUILDER_CALL && f->nullable[e->to] && f->nullable[e->back]);
            if (is && !f->nullable[e->from])
                f->nullable[e->from] = true, f->queue[n++] = e->from;
        }
    }
}

/* ---- left recursion: a circle of moves without input that has a call in it ---- */

struct walk {
    uint32_t state, edge, n_calls;
};

static int refuse_recursion(struct builder *b, const struct walk *path, uint32_t n)
{
    const char *name = NULL;
    while (n-- > 0 && !name && b->rule_name)
        name = b->rule_name(b->context, path[n].state);
    return builder_fail(b, -ENOTSUP, "left recursion: rule %s begins with itself", name ? name : "?");
}

/* Depth first from s. calls_at[s]: calls on the path when s was met, while it is on the path; a state met
 * again below a call is left-recursive. */
static int search_from(struct finisher *f, uint32_t s, uint8_t *colour, uint32_t *calls_at, struct walk *path)
{
    struct builder *b = f->b;
    uint32_t n = 0;
    path[n++] = (struct walk){s, 2 * f->first[s], 0};
    colour[s] = 1;
    calls_at[s] = 0;
    while (n > 0) {
        struct walk *w = &path[n - 1];
        if (w->edge == 2 * f->first[w->state + 1]) {
            colour[w->state] = 2;
            n--;
            continue;
        }
        const struct builder_edge *e = &b->edges[w->edge / 2];
        bool second = w->edge++ & 1; /* of a call: the way back, when the callee can be empty */
        bool follow = e->kind == BUILDER_EMPTY  ? !second
                      : e->kind == BUILDER_CALL ? !second || f->nullable[e->to]
                                                : false;
        if (!follow)
            continue;
        uint32_t to = second ? e->back : e->to, calls = w->n_calls + (e->kind == BUILDER_CALL && !second);
        if (colour[to] == 1 && calls > calls_at[to])
            return refuse_recursion(b, path, n);
        if (colour[to] != 0)
            continue;
        colour[to] = 1;
        calls_at[to] = calls;
        path[n++] = (struct walk){to, 2 * f->first[to], calls};
    }
    return 0;
}

static int refuse_left_recursion(struct finisher *f)
{
    struct builder *b = f->b;
    uint8_t *colour = take(f, b->n_states, 1);
    uint32_t *calls_at = take(f, b->n_states, sizeof *calls_at);
    struct walk *path = take(f, b->n_states + 1, sizeof *path);
    for (uint32_t s = 0; s < b->n_states && !b->failed; s++)
        if (!colour[s])
            search_from(f, s, colour, calls_at, path);
    return b->failed ? -1 : 0;
}

/* ---- states that only pass on ---- */

static bool only_passes(const struct finisher *f, uint32_t s)
{
    const struct grammar_state *st = &f->b->states[s];
    return f->first[s + 1] - f->first[s] == 1 && f->b->edges[f->first[s]].kind == BUILDER_EMPTY &&
           !st->final && !st->unique && st->memo == GRAMMAR_NO_MEMO && st->words == DFA_INFINITE &&
           st->min == 0 && st->max == GRAMMAR_UNBOUNDED;
}

/* Where a call comes back to the end of its rule, no frame is needed; so this end must be in sight. A state
 * before a part of remembered masks stays: it is the way out of the part before it. */
static void find_behind(struct finisher *f)
{
    for (uint32_t s = 0; s < f->b->n_states; s++)
        f->behind[s] = UINT32_MAX;
    for (uint32_t s = 0; s < f->b->n_states; s++) {
        uint32_t n = 0, at = s;
        while (f->behind[at] == UINT32_MAX) {
            f->behind[at] = at; /* a circle stands for itself */
            uint32_t to = only_passes(f, at) ? f->b->edges[f->first[at]].to : at;
            if (to == at || f->b->states[to].memo != GRAMMAR_NO_MEMO)
                break;
            f->queue[n++] = at;
            at = to;
        }
        while (n-- > 0)
            f->behind[f->queue[n]] = f->behind[at];
    }
}

/* ---- the result ---- */

/* Numbers the states that can be reached from the start and lead to the end. Returns how many. */
static uint32_t number_states(struct finisher *f, uint32_t start, uint32_t *number)
{
    struct builder *b = f->b;
    uint32_t n = 0;
    memset(number, 0xff, b->n_states * sizeof *number);
    number[start] = n;
    f->queue[n++] = start;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = f->first[f->queue[i]]; k < f->first[f->queue[i] + 1]; k++) {
            const struct builder_edge *e = &b->edges[k];
            if (height_over(f, e) > GRAMMAR_MAX_DEPTH)
                continue;
            uint32_t to = f->behind[e->to], back = f->behind[e->back];
            if (number[to] == UINT32_MAX)
                number[to] = n, f->queue[n++] = to;
            if (e->kind == BUILDER_CALL && number[back] == UINT32_MAX)
                number[back] = n, f->queue[n++] = back;
        }
    return n;
}

static void copy_edges(struct finisher *f, struct grammar *g, uint32_t s, const uint32_t *number,
                       uint32_t at[3])
{
    for (uint32_t k = f->first[s]; k < f->first[s + 1]; k++) {
        const struct builder_edge *e = &f->b->edges[k];
        if (height_over(f, e) > GRAMMAR_MAX_DEPTH)
            continue;
        uint32_t to = number[f->behind[e->to]];
        assert(to != UINT32_MAX);
        if (e->kind == BUILDER_BYTES)
            g->edges[at[0]++] = (struct grammar_edge){e->lo, e->hi, e->counts, to};
        else if (e->kind == BUILDER_EMPTY)
            g->empties[at[1]++] = to;
        else {
            uint32_t back = number[f->behind[e->back]];
            assert(back != UINT32_MAX);
            g->calls[at[2]++] = (struct grammar_call){to, back, e->counts};
        }
    }
}

static void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    memo_store_close(g->memos);
    arena_close(&g->arena);
    free(g);
}

/* The moves of each kind took room for the edges of all kinds. */
static void shrink(struct grammar *g, size_t room, const uint32_t n[3])
{
    struct arena *a = &g->arena;
    g->edges = arena_shrink(a, g->edges, room * sizeof *g->edges, (n[0] + 1) * sizeof *g->edges);
    g->empties = arena_shrink(a, g->empties, room * sizeof *g->empties, (n[1] + 1) * sizeof *g->empties);
    g->calls = arena_shrink(a, g->calls, room * sizeof *g->calls, (n[2] + 1) * sizeof *g->calls);
}

static bool fill(struct finisher *f, struct grammar *g, uint32_t n, const uint32_t *number)
{
    struct builder *b = f->b;
    uint32_t at[3] = {0};
    g->n_states = n;
    g->n_memos = b->n_memos;
    g->states = arena_array(&g->arena, n + 1, sizeof *g->states);
    g->edges = arena_array(&g->arena, b->n_edges + 1, sizeof *g->edges);
    g->empties = arena_array(&g->arena, b->n_edges + 1, sizeof *g->empties);
    g->calls = arena_array(&g->arena, b->n_edges + 1, sizeof *g->calls);
    g->parts = arena_array(&g->arena, b->n_parts + 1, sizeof *g->parts);
    if (!g->states || !g->edges || !g->empties || !g->calls || !g->parts)
        return false;
    if (b->n_parts)
        memcpy(g->parts, b->parts, b->n_parts * sizeof *g->parts);
    for (uint32_t i = 0; i < b->n_parts; i++)
        g->parts[i].exit = number[f->behind[b->parts[i].exit]];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = f->queue[i];
        struct grammar_state *st = &g->states[i];
        *st = b->states[s];
        st->edge = at[0];
        st->empty = at[1];
        st->call = at[2];
        assert(f->height[s] <= GRAMMAR_MAX_DEPTH); /* else the narrower number would be another */
        st->height = (uint8_t)f->height[s];
        st->nullable = f->nullable[s];
        g->has_unique |= st->unique;
        copy_edges(f, g, s, number, at);
    }
    g->states[n] = (struct grammar_state){.edge = at[0], .empty = at[1], .call = at[2]};
    shrink(g, (size_t)b->n_edges + 1, at);
    return true;
}

static int lay_out(struct finisher *f, uint32_t start, struct grammar **out)
{
    struct builder *b = f->b;
    uint32_t *number = take(f, b->n_states, sizeof *number);
    struct grammar *g = number ? calloc(1, sizeof *g) : NULL;
    if (!g || memo_store_open(&g->memos) < 0 || !fill(f, g, number_states(f, start, number), number)) {
        grammar_free(g);
        return b->failed ? b->err.code : builder_fail(b, -ENOMEM, "out of memory");
    }
    g->start = 0;
    atomic_init(&g->n_refs, 1);
    atomic_init(&g->n_bytes, sizeof *g + g->arena.total);
    *out = g;
    return 0;
}

int builder_finish(struct builder *b, uint32_t start, struct grammar **out, struct error *err)
{
    struct finisher f = {.b = b};
    if (!b->failed && open_finisher(&f)) {
        index_targets(&f);
        find_nullable(&f);
        find_behind(&f);
        if (find_heights(&f) && refuse_left_recursion(&f) == 0) {
            if (f.height[start] == UINT32_MAX)
                builder_fail(b, -EDOM, "no text satisfies it: the language is empty");
            else if (f.height[start] > GRAMMAR_MAX_DEPTH)
                builder_fail(b, -E2BIG, "nested deeper than %d levels", GRAMMAR_MAX_DEPTH);
            else
                lay_out(&f, start, out);
        }
    }
    return b->failed ? error_set(err, b->err.code, "%s", b->err.text) : 0;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add_explicit(&g->n_refs, 1, memory_order_relaxed);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    grammar_free(g);
}

size_t grammar_bytes(const struct grammar *g)
{
    return atomic_load_explicit(&g->n_bytes, memory_order_relaxed);
}

void grammar_take(struct grammar *g, size_t n)
{
    atomic_fetch_add_explicit(&g->n_bytes, n, memory_order_relaxed);
}

void grammar_give(struct grammar *g, size_t n)
{
    size_t before = atomic_fetch_sub_explicit(&g->n_bytes, n, memory_order_relaxed);
    assert(before >= n); /* else it would count as all memory there is */
}
