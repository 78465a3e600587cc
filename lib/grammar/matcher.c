#include "matcher_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POOL   (1u << 19)
#define MAX_FRAMES (1u << 17)
#define MAX_LINKS  (1u << 18)

static_assert(MAX_POOL * sizeof(struct thread) + MAX_FRAMES * sizeof(struct frame) +
                      MAX_LINKS * sizeof(struct link) <=
                  MATCHER_BYTES,
              "matcher.h");

static bool fail(struct matcher *m)
{
    m->failed = true;
    return false;
}

bool matcher_work(struct matcher *m, uint64_t steps)
{
    if (steps <= m->work) {
        m->work -= steps;
        return true;
    }
    m->work = 0;
    m->ambiguous = true;
    return fail(m);
}

void matcher_take(struct matcher *m, size_t n)
{
    m->n_bytes += n;
    grammar_take(m->g, n);
}

/* Each array has a limit of its own, so that a text fails where it does whatever was looked at ahead of it:
 * memory that a look has taken is there for the text, and takes no other array's part. Limits are rooms: 256
 * times a power of two. */
static bool room_for(struct matcher *m, void **p, uint32_t n, uint32_t *room, uint32_t most, size_t size)
{
    if (n < *room)
        return true;
    uint32_t more = *room ? 2 * *room : 256;
    m->ambiguous |= more > most;
    void *q = m->ambiguous ? NULL : realloc(*p, more * size);
    if (!q)
        return false;
    matcher_take(m, (more - *room) * size);
    *p = q;
    *room = more;
    return true;
}

bool matcher_pool_room(struct matcher *m, uint32_t n)
{
    while (m->pool_room < m->n_pool + n)
        if (!room_for(m, (void **)&m->pool, m->pool_room, &m->pool_room, MAX_POOL, sizeof *m->pool))
            return false;
    return true;
}

/* ---- items that must differ ---- */

bool matcher_put_text(struct matcher *m, size_t at, char byte)
{
    while (at >= m->text_room) {
        size_t more = m->text_room ? 2 * m->text_room : 1024;
        char *t = realloc(m->text, more);
        if (!t)
            return fail(m);
        matcher_take(m, more - m->text_room);
        m->text = t;
        m->text_room = more;
    }
    m->text[at] = byte;
    return true;
}

/* The next item of an array of scalars: [*at, end) of the text; false behind the last whole one. */
static bool next_item(const struct matcher *m, size_t *at, size_t end, size_t *item, size_t *len)
{
    while (*at < end &&
           (m->text[*at] == ' ' || m->text[*at] == '\n' || m->text[*at] == ',' || m->text[*at] == '\t'))
        ++*at;
    *item = *at;
    if (*at >= end)
        return false;
    bool quoted = m->text[*at] == '"';
    for (++*at; *at < end; ++*at) {
        char c = m->text[*at];
        if (quoted && c == '\\')
            ++*at;
        else if (quoted ? c == '"' : c == ',' || c == ']' || c == ' ' || c == '\n' || c == '\t')
            break;
    }
    *at += quoted;
    *len = *at - *item;
    return *at <= end;
}

/* Counts the items before text[from] that begin like text[from, to); `whole`: that equal it. `array` is where
 * the array begins. */
static uint32_t items_like(struct matcher *m, size_t array, size_t from, size_t to, bool whole)
{
    size_t at = array + 1, item, len, n = to - from;
    uint32_t like = 0;
    if (!matcher_work(m, (from - array) / 8))
        return 0;
    while (at < from && next_item(m, &at, from, &item, &len))
        like += (whole ? len == n : len >= n) && !memcmp(m->text + item, m->text + from, n);
    return like;
}

/* Returns where the array of an item begins whose frame is `stack`. */
static size_t array_of(const struct matcher *m, uint32_t stack)
{
    uint32_t below = m->links[m->frames[stack].links].below;
    return below == NO_FRAME ? 0 : m->frames[below].mark;
}

static bool is_repeated(struct matcher *m, uint32_t item)
{
    return items_like(m, array_of(m, item), m->frames[item].mark, m->n_text, true) > 0;
}

bool matcher_item_like(struct matcher *m, uint32_t stack, struct matcher_item *item)
{
    if (stack == NO_FRAME || !m->g->states[m->links[m->frames[stack].links].back].unique)
        return false;
    size_t from = m->frames[stack].mark, n = m->n_text - from;
    size_t at = item->len ? item->start + item->len : array_of(m, stack) + 1;
    size_t begin = at;
    bool is = false;
    while (!is && at < from && next_item(m, &at, from, &item->start, &item->len))
        is = item->len >= n && !memcmp(m->text + item->start, m->text + from, n);
    return matcher_work(m, 1 + (at - begin) / 8) && is; /* bytes read; the next call reads the rest */
}

/* True when fewer texts are left from the state on than items have used. */
static bool is_used_up(struct matcher *m, const struct thread *t)
{
    uint32_t words = m->g->states[t->state].words;
    if (words == DFA_INFINITE || t->stack == NO_FRAME)
        return false;
    return items_like(m, array_of(m, t->stack), m->frames[t->stack].mark, m->n_text, false) >= words;
}

/* ---- closure: what is reached without input ---- */

static uint32_t depth_of(const struct matcher *m, uint32_t stack)
{
    return stack == NO_FRAME ? 0 : m->frames[stack].depth;
}

static bool is_too_deep(struct matcher *m, uint32_t depth)
{
    bool is = depth > m->depth_limit;
    m->too_deep |= is;
    return is;
}

static bool may_enter(struct matcher *m, const struct thread *t)
{
    const struct grammar_state *s = &m->g->states[t->state];
    if (m->alone)
        return s->memo != GRAMMAR_NO_MEMO;
    if (t->count < s->min || t->count > s->max || is_too_deep(m, depth_of(m, t->stack) + s->height))
        return false;
    return !m->g->has_unique || !is_used_up(m, t);
}

static bool add(struct matcher *m, struct config *c, struct thread t)
{
    if (!may_enter(m, &t)) {
        if (m->alone) {
            c->exits = true;
            c->exit_count = t.count;
        }
        return true;
    }
    uint32_t known = m->turn_of[t.state] == m->turn ? m->head[t.state] : NO_FRAME;
    uint32_t n_seen = 1;
    for (uint32_t i = known; i != NO_FRAME; i = m->pool[i].next, n_seen++)
        if (m->pool[i].count == t.count && m->pool[i].stack == t.stack)
            return matcher_work(m, n_seen);
    m->ambiguous |= c->n >= MATCHER_MAX_THREADS;
    if (m->ambiguous || !matcher_work(m, n_seen) || !matcher_pool_room(m, 1))
        return fail(m);
    t.next = known;
    m->turn_of[t.state] = m->turn;
    m->head[t.state] = m->n_pool;
    m->pool[m->n_pool++] = t;
    c->n++;
    return true;
}

static bool is_only_end(const struct grammar *g, uint32_t s)
{
    const struct grammar_state *a = &g->states[s], *b = a + 1;
    return a->final && a->edge == b->edge && a->empty == b->empty && a->call == b->call && a->min == 0 &&
           a->max == GRAMMAR_UNBOUNDED;
}

static bool add_link(struct matcher *m, uint32_t frame, struct link l)
{
    if (!room_for(m, (void **)&m->links, m->n_links, &m->link_room, MAX_LINKS, sizeof *m->links))
        return fail(m);
    l.next = m->frames[frame].links;
    m->frames[frame].links = m->n_links;
    m->links[m->n_links++] = l;
    return true;
}

static bool has_link(struct matcher *m, uint32_t frame, const struct link *l)
{
    for (uint32_t i = m->frames[frame].links; i != NO_FRAME && matcher_work(m, 1); i = m->links[i].next)
        if (m->links[i].back == l->back && m->links[i].below == l->below && m->links[i].count == l->count)
            return true;
    return false;
}

/* The frame of this closure for a rule, or NO_FRAME. Items that must differ belong to one array, so there
 * callers do not share. */
static uint32_t find_frame(struct matcher *m, uint32_t rule, const struct link *l, uint32_t since)
{
    for (uint32_t i = m->n_frames; i-- > since && matcher_work(m, 1);)
        if (m->frames[i].rule == rule && (!m->g->has_unique || has_link(m, i, l)))
            return i;
    return NO_FRAME;
}

/* The frame of a call: that of this closure for the rule, or a new one. A call after which the caller only
 * ends needs none. */
static bool push(struct matcher *m, struct config *c, const struct thread *t, const struct grammar_call *call,
                 uint32_t since, uint32_t *out)
{
    *out = t->stack;
    if (!m->g->has_unique && is_only_end(m->g, call->back))
        return true;
    struct link l = {.back = call->back, .count = t->count + call->counts, .below = t->stack};
    *out = find_frame(m, call->rule, &l, since);
    if (*out != NO_FRAME) {
        if (has_link(m, *out, &l))
            return true;
        bool ended = m->frames[*out].ended == m->turn;
        return add_link(m, *out, l) && (!ended || add(m, c, (struct thread){l.back, l.count, l.below, 0}));
    }
    if (!room_for(m, (void **)&m->frames, m->n_frames, &m->frame_room, MAX_FRAMES, sizeof *m->frames))
        return fail(m);
    assert(m->n_text <= UINT32_MAX); /* else an item of an array would be looked for elsewhere */
    *out = m->n_frames;
    m->frames[m->n_frames++] = (struct frame){.rule = call->rule,
                                              .links = NO_FRAME,
                                              .mark = (uint32_t)m->n_text,
                                              .depth = depth_of(m, t->stack) + 1};
    return add_link(m, *out, l);
}

static bool end_frame(struct matcher *m, struct config *c, const struct thread *t)
{
    if (t->stack == NO_FRAME) {
        c->can_end = true;
        return true;
    }
    m->frames[t->stack].ended = m->turn;
    for (uint32_t i = m->frames[t->stack].links; i != NO_FRAME; i = m->links[i].next) {
        struct link l = m->links[i];
        if (m->g->states[l.back].unique && is_repeated(m, t->stack))
            continue;
        if (!add(m, c, (struct thread){l.back, l.count, l.below, 0}))
            return false;
    }
    return true;
}

static bool close_over(struct matcher *m, struct config *c, uint32_t since)
{
    const struct grammar *g = m->g;
    for (uint32_t i = 0; i < c->n; i++) {
        struct thread t = m->pool[c->first + i];
        const struct grammar_state *s = &g->states[t.state], *end = s + 1;
        for (uint32_t k = s->empty; k < end->empty; k++)
            if (!add(m, c, (struct thread){g->empties[k], t.count, t.stack, 0}))
                return false;
        for (uint32_t k = s->call; k < end->call; k++) {
            uint32_t stack;
            if (is_too_deep(m, depth_of(m, t.stack) + 1 + g->states[g->calls[k].rule].height))
                continue;
            if (!push(m, c, &t, &g->calls[k], since, &stack) ||
                !add(m, c, (struct thread){g->calls[k].rule, 0, stack, 0}))
                return false;
        }
        if (s->final && !end_frame(m, c, &t))
            return false;
    }
    return true;
}

/* Drops threads that only passed through. */
static void compact(struct matcher *m, struct config *c)
{
    const struct grammar_state *s = m->g->states;
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        struct thread t = m->pool[c->first + i];
        if (s[t.state].edge != s[t.state + 1].edge)
            m->pool[c->first + n++] = t;
    }
    c->n = n;
    m->n_pool = c->first + n;
}

static void next_turn(struct matcher *m)
{
    if (++m->turn == 0) {
        memset(m->turn_of, 0, m->g->n_states * sizeof *m->turn_of);
        m->turn = 1;
    }
}

bool matcher_start(struct matcher *m, struct thread t, struct config *to)
{
    *to = (struct config){.first = m->n_pool};
    next_turn(m);
    if (!add(m, to, t) || !close_over(m, to, m->n_frames))
        return false;
    compact(m, to);
    return to->n > 0 || to->can_end || to->exits;
}

bool matcher_behind(struct matcher *m, uint32_t stack, struct config *to)
{
    *to = (struct config){.first = m->n_pool};
    next_turn(m);
    if (!end_frame(m, to, &(struct thread){0, 0, stack, 0}) || !close_over(m, to, m->n_frames))
        return false;
    compact(m, to);
    return to->n > 0 || to->can_end;
}

bool matcher_may_leave(struct matcher *m, uint32_t stack)
{
    bool may = stack == NO_FRAME;
    for (uint32_t i = may ? NO_FRAME : m->frames[stack].links; !may && i != NO_FRAME; i = m->links[i].next) {
        struct link l = m->links[i];
        may = may_enter(m, &(struct thread){l.back, l.count, l.below, 0});
    }
    return may;
}

uint32_t matcher_depth(const struct matcher *m)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < m->now.n; i++) {
        uint32_t d = depth_of(m, m->pool[m->now.first + i].stack);
        depth = d > depth ? d : depth;
    }
    return depth;
}

/* The edge of a state that reads a byte, when there is exactly one. */
static const struct grammar_edge *only_edge(const struct grammar *g, uint32_t state, uint8_t byte)
{
    const struct grammar_edge *e = g->edges + g->states[state].edge, *found = NULL;
    const struct grammar_edge *end = g->edges + g->states[state + 1].edge;
    for (; e < end && e->lo <= byte; e++) {
        if (byte > e->hi)
            continue;
        if (found)
            return NULL;
        found = e;
    }
    return found;
}

/* Inside a part one thread usually becomes one thread, without a closure: tens of millions of steps are made
 * so. False: take the way of all others. */
static bool step_alone(struct matcher *m, const struct config *from, uint8_t byte, struct config *to)
{
    const struct grammar *g = m->g;
    struct thread t = m->pool[from->first];
    const struct grammar_edge *e = only_edge(g, t.state, byte);
    if (!e || !matcher_pool_room(m, 1))
        return false;
    const struct grammar_state *s = &g->states[e->to], *end = s + 1;
    uint32_t n_empty = end->empty - s->empty;
    bool leaves = n_empty == 1 && g->states[g->empties[s->empty]].memo == GRAMMAR_NO_MEMO;
    if (s->memo == GRAMMAR_NO_MEMO || s->final || s->call != end->call || (n_empty && !leaves))
        return false;
    t.state = e->to;
    t.count += e->counts;
    *to = (struct config){
        .first = m->n_pool, .n = s->edge != end->edge, .exits = leaves, .exit_count = t.count};
    if (to->n)
        m->pool[m->n_pool++] = t;
    return true;
}

bool matcher_step(struct matcher *m, const struct config *from, uint8_t byte, struct config *to)
{
    const struct grammar *g = m->g;
    uint32_t since = m->n_frames;
    if (!matcher_work(m, 1 + from->n))
        return false;
    if (m->alone && from->n == 1 && step_alone(m, from, byte, to))
        return to->n > 0 || to->exits;
    *to = (struct config){.first = m->n_pool};
    next_turn(m);
    for (uint32_t i = 0; i < from->n; i++) {
        struct thread t = m->pool[from->first + i];
        const struct grammar_edge *e = g->edges + g->states[t.state].edge;
        const struct grammar_edge *end = g->edges + g->states[t.state + 1].edge;
        for (; e < end && e->lo <= byte; e++)
            if (!matcher_work(m, 1) ||
                (byte <= e->hi && !add(m, to, (struct thread){e->to, t.count + e->counts, t.stack, 0})))
                return false;
    }
    if (to->n == 0 && !to->exits)
        return false;
    if (!close_over(m, to, since))
        return false;
    compact(m, to);
    return to->n > 0 || to->can_end || to->exits;
}

/* ---- the text so far ---- */

int matcher_open(struct matcher **out, struct grammar *g)
{
    struct matcher *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->g = grammar_ref(g);
    m->turn_of = calloc(g->n_states, sizeof *m->turn_of);
    m->head = calloc(g->n_states, sizeof *m->head);
    m->work = MATCHER_WORK;
    m->depth_limit = GRAMMAR_MAX_DEPTH;
    matcher_take(m, sizeof *m + g->n_states * (sizeof *m->turn_of + sizeof *m->head));
    if (!m->turn_of || !m->head ||
        (!matcher_start(m, (struct thread){g->start, 0, NO_FRAME, 0}, &m->now) && m->failed)) {
        int rc = m->ambiguous ? -E2BIG : -ENOMEM;
        matcher_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void matcher_close(struct matcher *m)
{
    if (!m)
        return;
    matcher_stop_mask(m);
    grammar_give(m->g, m->n_bytes);
    grammar_unref(m->g);
    free(m->pool);
    free(m->frames);
    free(m->links);
    free(m->turn_of);
    free(m->head);
    free(m->text);
    free(m->saved);
    free(m);
}

/* Numbers the frames that threads still stand on, or that lie below such, from 1; the others have 0. Callers
 * share a frame, so one that lies below may have been made later. Returns how many there are. */
static uint32_t number_frames(const struct matcher *m, uint32_t *number, uint32_t *queue)
{
    uint32_t n_queue = 0, n = 0;
    for (uint32_t i = 0; i < m->now.n; i++) {
        uint32_t f = m->pool[i].stack;
        if (f != NO_FRAME && !number[f])
            number[queue[n_queue++] = f] = 1;
    }
    for (uint32_t at = 0; at < n_queue; at++)
        for (uint32_t i = m->frames[queue[at]].links; i != NO_FRAME; i = m->links[i].next) {
            uint32_t f = m->links[i].below;
            if (f != NO_FRAME && !number[f])
                number[queue[n_queue++] = f] = 1;
        }
    for (uint32_t f = 0; f < m->n_frames; f++)
        number[f] = number[f] ? ++n : 0;
    return n;
}

/* Moves the numbered frames to the front, in order, and their links to `links`. */
static void move_frames(struct matcher *m, const uint32_t *number, uint32_t n, struct link *links)
{
    uint32_t n_links = 0;
    for (uint32_t f = 0; f < m->n_frames; f++) {
        if (!number[f])
            continue;
        struct frame kept = m->frames[f];
        uint32_t first = NO_FRAME;
        for (uint32_t i = kept.links; i != NO_FRAME; i = m->links[i].next) {
            links[n_links] = m->links[i];
            links[n_links].next = first;
            if (links[n_links].below != NO_FRAME) {
                assert(number[links[n_links].below]); /* else it leads to a frame that is gone */
                links[n_links].below = number[links[n_links].below] - 1;
            }
            first = n_links++;
        }
        kept.links = first;
        m->frames[number[f] - 1] = kept;
    }
    for (uint32_t i = 0; i < m->now.n; i++)
        if (m->pool[i].stack != NO_FRAME)
            m->pool[i].stack = number[m->pool[i].stack] - 1;
    memcpy(m->links, links, n_links * sizeof *links);
    m->n_links = n_links;
    m->n_frames = n;
}

/* Drops the frames that no thread needs any more, and their links. */
static void collect_frames(struct matcher *m)
{
    if (m->looks || (m->n_frames < 8192 && m->n_links < 16384))
        return;
    uint32_t *number = calloc(m->n_frames + 1, sizeof *number);
    uint32_t *queue = malloc((m->n_frames + 1) * sizeof *queue);
    struct link *links = malloc((m->n_links + 1) * sizeof *links);
    if (number && queue && links)
        move_frames(m, number, number_frames(m, number, queue), links);
    free(links);
    free(queue);
    free(number);
}

static bool take_byte(struct matcher *m, uint8_t byte)
{
    struct config next;
    uint32_t n_frames = m->n_frames, n_links = m->n_links;
    if (m->failed || (m->g->has_unique && !matcher_put_text(m, m->n_text, (char)byte)))
        return false;
    m->n_text++;
    if (!matcher_step(m, &m->now, byte, &next) || m->failed) {
        m->n_pool = m->now.n;
        m->n_frames = n_frames;
        m->n_links = n_links;
        m->n_text--;
        return false;
    }
    memmove(m->pool, m->pool + next.first, next.n * sizeof *m->pool);
    next.first = 0;
    m->n_pool = next.n;
    m->now = next;
    collect_frames(m);
    return true;
}

size_t matcher_bytes(struct matcher *m, const char *s, size_t n)
{
    matcher_stop_mask(m);
    for (size_t i = 0; i < n; i++) {
        m->work = MATCHER_WORK;
        if (!take_byte(m, (uint8_t)s[i]))
            return i;
    }
    return n;
}

bool matcher_can_end(const struct matcher *m)
{
    return m->now.can_end && !m->failed;
}

bool matcher_has_failed(const struct matcher *m)
{
    return m->failed;
}

bool matcher_is_ambiguous(const struct matcher *m)
{
    return m->ambiguous;
}

/* Tells whether bytes fit, without taking them. */
static bool fits(struct matcher *m, const char *s, uint32_t n)
{
    struct config c = m->now;
    uint32_t n_pool = m->n_pool, n_frames = m->n_frames, n_links = m->n_links;
    size_t n_text = m->n_text;
    bool ok = true;
    for (uint32_t i = 0; i < n && ok; i++) {
        struct config next = {0};
        ok = (!m->g->has_unique || matcher_put_text(m, m->n_text, s[i]));
        m->n_text++;
        ok = ok && matcher_step(m, &c, (uint8_t)s[i], &next);
        c = next;
    }
    m->n_pool = n_pool;
    m->n_frames = n_frames;
    m->n_links = n_links;
    m->n_text = n_text;
    return ok && !m->failed;
}

bool matcher_token(struct matcher *m, const struct vocabulary *v, int32_t token)
{
    for (uint32_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == token)
            return matcher_can_end(m);
    matcher_stop_mask(m);
    m->work = MATCHER_WORK;
    if (m->failed || (uint32_t)token >= v->n_tokens || !v->bytes[token] ||
        !fits(m, v->bytes[token], v->lens[token]))
        return false;
    for (uint32_t i = 0; i < v->lens[token]; i++)
        if (!take_byte(m, (uint8_t)v->bytes[token][i]))
            return false;
    return true;
}
