/* matcher_mask.c - which tokens may come next: a walk of the vocabulary's trie by the matcher's threads.
 * Inside a string most tokens are allowed, and which ones depends on the state alone: such masks are computed
 * once and remembered. A byte that leaves the string is looked at anew each time, since it depends on the
 * stack; where many may, by memos of frames (frame_memo.h). */
#include "grammar_builder.h"
#include "frame_memo.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- remembered masks ---- */

#define FEW_BYTES 4 /* whose exits are looked at anew for each mask */

static bool add_exit_byte(struct memo *o, const struct grammar_edge *e)
{
    if (e->lo == e->hi)
        memo_exit_by(o, e->lo);
    return e->lo == e->hi && o->n_exit_bytes <= FEW_BYTES;
}

#define EXIT_MOVES 64 /* states that the exit state leads to without input */

/* Fills the bytes that the exit state reads; false: none, or many, or more than these. */
static bool reads_few_bytes(const struct grammar *g, uint32_t exit, struct memo *o)
{
    uint32_t queue[EXIT_MOVES] = {exit}, n = 1;
    bool few = true;
    for (uint32_t i = 0; i < n && few; i++) {
        const struct grammar_state *a = &g->states[queue[i]], *b = a + 1;
        few = (!a->final || a->last) && b->call == a->call && n + (b->empty - a->empty) <= EXIT_MOVES;
        for (uint32_t k = a->edge; few && k < b->edge; k++)
            few = add_exit_byte(o, &g->edges[k]);
        for (uint32_t k = a->empty; few && k < b->empty; k++)
            queue[n++] = g->empties[k];
    }
    return few && o->n_exit_bytes;
}

/* The exits of a part of which more depends on its frame, for memos of frames. */
static bool lists_all_exits(struct matcher *m, const struct vocabulary *v, struct memo *o)
{
    bool shared = m->g->states[o->state].memo < GRAMMAR_STRING_MEMOS;
    struct frames *f = shared || o->counts || o->exit_state == NO_FRAME ? NULL : frames_of(m, v);
    if (!f || !frames_plain(f, o->exit_state))
        return false;
    frames_add_bytes(f, m->g, o->exit_state, o);
    return true;
}

/* Exits of the one are all exits of the other. */
static bool same_exits(const struct memo *x, const struct memo *y)
{
    return x->byte_exit && y->byte_exit && !memcmp(x->exit_bytes, y->exit_bytes, sizeof x->exit_bytes);
}

/* The state outside that the part leads to, found by looking at all of its states that `state` reaches. A
 * part that would take too much of the mask's work counts as one with many. */
static uint32_t find_exit(struct matcher *m, uint32_t state, bool *many)
{
    const struct grammar *g = m->g;
    uint32_t *queue = malloc(g->n_states * sizeof *queue), n = 0, exit = NO_FRAME;
    bool *seen = calloc(g->n_states, 1);
    *many = !queue || !seen;
    if (queue && seen)
        queue[n++] = state, seen[state] = true;
    for (uint32_t i = 0; i < n; i++) {
        const struct grammar_state *s = &g->states[queue[i]], *e = s + 1;
        uint32_t steps = 1 + e->edge - s->edge + e->empty - s->empty;
        *many |= s->final || s->call != e->call || steps > m->work / 2;
        if (*many || !matcher_work(m, steps))
            break;
        for (uint32_t k = s->edge; k < e->edge + (e->empty - s->empty); k++) {
            uint32_t to = k < e->edge ? g->edges[k].to : g->empties[s->empty + (k - e->edge)];
            bool inside = g->states[to].memo != GRAMMAR_NO_MEMO;
            if (!inside) {
                *many |= exit != NO_FRAME && exit != to;
                exit = to;
            } else if (!seen[to])
                seen[to] = true, queue[n++] = to;
        }
    }
    free(queue);
    free(seen);
    return exit;
}

/* In words that a compiler may take several at once: a call for each would be half the time of many masks. */
static uint32_t count_bits(const uint32_t *mask, uint32_t n_words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_words; i++) {
        uint32_t x = mask[i];
        x -= x >> 1 & 0x55555555;
        x = (x & 0x33333333) + (x >> 2 & 0x33333333);
        x = (x + (x >> 4)) & 0x0f0f0f0f;
        x += x >> 8;
        n += (x + (x >> 16)) & 0x3f;
    }
    return n;
}

static void count_inside(struct memo *o, const struct vocabulary *v)
{
    o->n_inside = count_bits(o->mask, vocabulary_mask_words(v));
    for (uint32_t t = 0; o->counts && t < v->n_tokens; t++)
        if (o->counts[t] != 255 && o->counts[t] > o->most)
            o->most = o->counts[t];
}

/* Walks the nodes [node, end), children of one, from a state alone. */
static bool walk_from(struct trie_walk *w, uint32_t state, uint32_t node, uint32_t end)
{
    struct trie_mark before = trie_mark(w->m);
    if (matcher_start(w->m, (struct thread){state, 0, NO_FRAME, 0}, &w->level[0])) {
        trie_walk_begin(w, node, end);
        trie_walk(w);
    }
    trie_go_back(w->m, before);
    return !w->m->failed;
}

static bool walk_slowly(void *context, uint32_t state, uint32_t node)
{
    struct trie_walk *w = context;
    return walk_from(w, state, node, w->v->nodes[node].end);
}

/* The mask of any string, if it can stand for most of this one's. */
static const struct memo *string_memo(const struct vocabulary *v, const struct memo *o)
{
    const struct vocabulary_memos *s = v->strings;
    const struct memo *string = s->memo && s->of == v && s->any.keys ? s->memo[0] : NULL;
    bool serves = string && !string->useless && string->byte_exit && (!o->byte_exit || same_exits(o, string));
    return serves ? string : NULL;
}

/* False: another walk is needed, or the matcher has failed. */
static bool walk_by_tables(struct matcher *m, const struct vocabulary *v, struct memo *o,
                           struct config *level)
{
    struct trie_walk w = {.m = m, .v = v, .mask = o->mask, .memo = o, .level = level};
    const struct memo *recent[MEMO_RECENT];
    struct memo_bases bases = {.memos = recent, .string = string_memo(v, o), .any = &v->strings->any};
    if (o->counts)
        return false;
    for (uint32_t i = 0; i < m->g->memos->n_recent && i < MEMO_RECENT; i++) {
        const struct memo *r = m->g->memos->recent[i];
        if (!o->byte_exit || same_exits(o, r))
            recent[bases.n_memos++] = r;
    }
    if (memo_walk(m, v, o, &bases, walk_slowly, &w)) {
        m->g->memos->recent[m->g->memos->n_recent++ % MEMO_RECENT] = o;
        return true;
    }
    memset(o->mask, 0, vocabulary_mask_words(v) * sizeof *o->mask);
    o->n_exits = 0;
    return m->failed;
}

static struct memo *memo_make(struct matcher *m, const struct vocabulary *v, uint32_t state,
                              struct config *level)
{
    struct memo *o = calloc(1, sizeof *o);
    if (!o || !(o->mask = calloc(vocabulary_mask_words(v) + 1, sizeof *o->mask)))
        goto fail;
    if (m->g->states[state].part != GRAMMAR_UNBOUNDED) {
        if (!(o->counts = malloc(v->n_tokens + 1)))
            goto fail;
        memset(o->counts, 255, v->n_tokens + 1);
    }
    bool many;
    o->state = state;
    o->exit_state = find_exit(m, state, &many);
    o->useless = many;
    if (many)
        return o;
    o->byte_exit = o->exit_state != NO_FRAME && reads_few_bytes(m->g, o->exit_state, o);
    o->wide = !o->byte_exit && lists_all_exits(m, v, o);
    o->byte_exit |= o->wide;
    m->alone = true;
    if (!walk_by_tables(m, v, o, level))
        walk_from(&(struct trie_walk){.m = m, .v = v, .mask = o->mask, .memo = o, .level = level}, state, 0,
                  v->n_nodes);
    m->alone = false;
    if (m->failed)
        goto fail;
    count_inside(o, v);
    return o;
fail:
    memo_free(o);
    return NULL;
}

/* The memo of a state, made now if there is room; NULL: walk. */
static struct memo *memo_of(struct matcher *m, const struct vocabulary *v, uint32_t state,
                            struct config *level)
{
    uint32_t key = m->g->states[state].memo;
    if (key == GRAMMAR_NO_MEMO)
        return NULL;
    struct vocabulary_memos *s = key < GRAMMAR_STRING_MEMOS ? v->strings : m->g->memos;
    if (!s->memo && (!s->of || s->of == v)) {
        s->n = s == v->strings ? GRAMMAR_STRING_MEMOS : m->g->n_memos;
        s->memo = calloc(s->n, sizeof *s->memo);
        s->of = v;
        if (s->memo)
            memo_take(m, s, s->n * sizeof *s->memo);
    }
    if (!s->memo || s->of != v)
        return NULL;
    assert(key < s->n);
    if (!s->memo[key] && memo_room(m, v, s)) {
        struct trie_mark before = trie_mark(m);
        struct memo *o = memo_make(m, v, state, level);
        if (o)
            memo_keep(m, v, s, o);
        trie_go_back(m, before);
    } else if (s->memo[key] && s == m->g->memos)
        memo_used(s, s->memo[key]);
    return s->memo[key] && !s->memo[key]->useless ? s->memo[key] : NULL;
}

/* Adds the tokens with at most `room` characters. */
static void add_counted(const struct memo *o, const struct vocabulary *v, uint32_t room, uint32_t *mask)
{
    if (!o->counts || room >= o->most) {
        for (uint32_t i = 0; i < vocabulary_mask_words(v); i++)
            mask[i] |= o->mask[i];
        return;
    }
    uint8_t most = (uint8_t)room;
    for (uint32_t at = 0; at < v->n_tokens; at += 32) {
        uint32_t bits = 0, n = v->n_tokens - at < 32 ? v->n_tokens - at : 32;
        for (uint32_t i = 0; i < n; i++)
            bits |= (uint32_t)(o->counts[at + i] <= most) << i;
        mask[at / 32] |= bits;
    }
}

/* ---- the mask ---- */

/* A mask that is being made: first by the memos of the threads that have one, then by a walk of the whole
 * trie for the others. It pauses between two threads and inside walks. */
struct mask_job {
    struct trie_walk w;
    enum { MASK_THREADS, MASK_EXITS, MASK_BELOW, MASK_PLAIN } at;
    uint64_t budget;      /* steps that memos of frames may take yet */
    bool shallow;         /* no frame is too deep for them */
    uint32_t next;        /* thread of the text so far */
    struct thread *plain; /* threads without a memo */
    uint32_t n_plain;
    /* The memo that is applied: its thread, the next of its exits, and the state around them. */
    struct memo *memo;
    struct thread thread;
    struct grammar_part part;
    uint32_t exit_state, exit;
    bool repeats;       /* an item that must differ begins like an earlier one */
    bool tried, opened; /* with `byte` */
    uint8_t byte;
    struct config outside;
    /* With a memo of frames: what follows where the frame ends, and behind each byte there. */
    struct config behind;
    uint64_t by_tried[4], by_opened[4]; /* sets of bytes */
    struct config by[256];
    struct trie_mark mark;
    size_t n_text;
    struct trie_mark begun; /* the state of the matcher before */
    size_t begun_text;
};

/* Puts the bytes that lead to a node behind the text; false: the matcher has failed. */
static bool put_way(struct mask_job *j, uint32_t node)
{
    struct matcher *m = j->w.m;
    const struct vocabulary_node *nodes = j->w.v->nodes;
    uint32_t with_token = node;
    while (nodes[with_token].token < 0)
        with_token++;
    const char *bytes = j->w.v->bytes[nodes[with_token].token];
    for (uint32_t i = 0; i < nodes[node].depth; i++)
        if (!matcher_put_text(m, j->n_text + i, bytes[i]))
            return false;
    return true;
}

/* Begins to walk what is below a node, from `outside`. */
static void begin_below(struct mask_job *j, uint32_t node)
{
    struct matcher *m = j->w.m;
    if (m->g->has_unique && !put_way(j, node))
        return;
    m->n_text += j->w.v->nodes[node].depth;
    j->w.level[0] = j->outside;
    trie_walk_begin(&j->w, node + 1, j->w.v->nodes[node].end);
    j->at = MASK_BELOW;
}

/* Behind the byte nothing depends on the count, so one configuration serves all its exits; but an item that
 * must differ from others may be one of them there. */
static bool opens(struct mask_job *j, uint32_t count, uint32_t node)
{
    struct matcher *m = j->w.m;
    struct config at = {0};
    const struct vocabulary_node *n = &j->w.v->nodes[node];
    if (j->tried && j->byte == n->byte && !j->repeats)
        return j->opened;
    trie_go_back(m, j->mark);
    j->tried = true;
    j->byte = n->byte;
    if (m->g->has_unique && !put_way(j, node))
        return false;
    m->n_text = j->n_text + n->depth - 1;
    j->opened = matcher_start(m, (struct thread){j->exit_state, count, j->thread.stack, 0}, &at);
    m->n_text++;
    j->opened = j->opened && matcher_step(m, &at, n->byte, &j->outside);
    m->n_text = j->n_text;
    return j->opened;
}

static bool opens_behind(struct mask_job *j, uint32_t node)
{
    uint8_t byte = j->w.v->nodes[node].byte;
    uint64_t bit = UINT64_C(1) << (byte % 64);
    if (!(j->by_tried[byte / 64] & bit)) {
        j->by_tried[byte / 64] |= bit;
        if (matcher_step(j->w.m, &j->behind, byte, &j->by[byte]))
            j->by_opened[byte / 64] |= bit;
    }
    j->outside = j->by[byte];
    return j->by_opened[byte / 64] & bit;
}

/* Takes the tokens of the next exit of frames. */
static void take_frame_exit(struct mask_job *j)
{
    uint32_t node = j->memo->exits[j->exit++].node;
    if (!opens_behind(j, node))
        return;
    trie_set_token(&j->w, j->w.v->nodes[node].token, 0);
    if (j->w.v->nodes[node].end > node + 1)
        begin_below(j, node);
}

/* Takes the tokens of the next exit. */
static void take_exit(struct mask_job *j)
{
    const struct memo *o = j->memo;
    if (o->frame) {
        take_frame_exit(j);
        return;
    }
    const struct exit_node *e = &o->exits[j->exit++];
    uint32_t count = j->thread.count + (j->part.counts ? e->count : 0);
    if (count < j->part.min || count > j->part.max)
        return;
    if (!opens(j, count, e->node)) {
        if (o->n_exit_bytes == 1 && !j->repeats)
            j->exit = o->n_exits;
        return;
    }
    trie_set_token(&j->w, j->w.v->nodes[e->node].token, 0);
    if (j->w.v->nodes[e->node].end > e->node + 1)
        begin_below(j, e->node);
}

/* True if something may follow where a memo without exits ends: then the trie must be walked. */
static bool goes_on(struct mask_job *j)
{
    struct matcher *m = j->w.m;
    struct config behind;
    bool on =
        j->exit_state != NO_FRAME &&
        matcher_start(m, (struct thread){j->exit_state, j->thread.count, j->thread.stack, 0}, &behind) &&
        behind.n;
    trie_go_back(m, j->mark);
    return on;
}

/* The memo is being applied: it is not forgotten meanwhile. NULL: none is. */
static void hold(struct mask_job *j, struct memo *o)
{
    if (j->memo)
        j->memo->n_users--;
    j->memo = o;
    if (o)
        o->n_users++;
}

/* Takes what a memo says for one thread. False: it does not fit here, and the trie must be walked. */
static bool apply(struct mask_job *j, struct memo *o, struct thread t)
{
    struct matcher *m = j->w.m;
    const struct vocabulary *v = j->w.v;
    const struct grammar_state *s = &m->g->states[t.state];
    bool has_part = s->part != GRAMMAR_UNBOUNDED;
    if (!matcher_work(m, o->n_exits + v->n_tokens / (o->counts ? 8 : 32)))
        return false;
    hold(j, o);
    j->thread = t;
    j->part = has_part ? m->g->parts[s->part] : (struct grammar_part){0, GRAMMAR_UNBOUNDED, 0, false};
    j->exit_state = has_part ? j->part.exit : o->exit_state; /* a shared memo knows that of another grammar */
    j->mark = trie_mark(m);
    if (!o->byte_exit && goes_on(j))
        return false;
    add_counted(o, v, j->part.max - t.count, j->w.mask);
    j->exit = 0;
    j->n_text = m->n_text;
    j->tried = j->opened = false;
    j->at = o->byte_exit ? MASK_EXITS : MASK_THREADS;
    return true;
}

/* True if the text can go on as an earlier item did, up to its closing quote. */
static bool follows(struct mask_job *j, struct thread t, const struct matcher_item *item)
{
    struct matcher *m = j->w.m;
    struct trie_mark before = trie_mark(m);
    size_t n_text = m->n_text, done = n_text - m->frames[t.stack].mark;
    struct config at = {0}, next;
    bool on = matcher_start(m, t, &at);
    for (size_t i = done; on && i + 1 < item->len; i++, at = next) {
        char byte = m->text[item->start + i];
        on = matcher_put_text(m, m->n_text++, byte) && matcher_step(m, &at, (uint8_t)byte, &next);
    }
    m->n_text = n_text;
    trie_go_back(m, before);
    return on;
}

/* Looks at the earlier items that begin like the text of an item that must differ. False: these use up what a
 * state leads to, so no memo says what may follow. */
static bool may_differ(struct mask_job *j, struct thread t)
{
    struct matcher_item item = {0};
    bool may = true;
    j->repeats = false;
    while (may && matcher_item_like(j->w.m, t.stack, &item)) {
        j->repeats = true;
        may = follows(j, t, &item);
    }
    return may;
}

/* The memo of a thread's frame, from that of the part in which it is, or NULL. */
static struct memo *memo_of_its_frame(struct mask_job *j, struct memo *part, struct thread t)
{
    struct matcher *m = j->w.m;
    const struct vocabulary *v = j->w.v;
    struct frames *f = j->shallow ? frames_of(m, v) : NULL;
    uint32_t state = part ? part->exit_state : t.state;
    if (!f || !frames_plain(f, state) || !matcher_may_leave(m, t.stack))
        return NULL;
    return part ? frame_memo_on(m, v, part, state, &j->budget) : frame_memo(m, v, state, &j->budget);
}

#define MAX_FRAMES_ON 8 /* frames that one memo goes through */

/* Goes on with a memo's exits in the frames below, as long as each has one caller, which counts nothing. */
static struct memo *memo_of_more_frames(struct mask_job *j, struct memo *o, uint32_t *stack)
{
    struct matcher *m = j->w.m;
    for (int i = 0; i < MAX_FRAMES_ON && *stack != NO_FRAME && o->n_exits > frame_memo_few(j->w.v); i++) {
        struct link l = m->links[m->frames[*stack].links];
        if (l.next != NO_FRAME || !frames_plain(frames_of(m, j->w.v), l.back) ||
            !matcher_may_leave(m, l.below))
            break;
        struct memo *more = frame_memo_on(m, j->w.v, o, l.back, &j->budget);
        if (!more)
            break;
        o = more;
        *stack = l.below;
    }
    return o;
}

/* Takes what the memos of a thread's frame, and of those below, say. False: there is none. */
static bool apply_frames(struct mask_job *j, struct memo *part, struct thread t)
{
    struct matcher *m = j->w.m;
    const struct vocabulary *v = j->w.v;
    uint64_t budget = j->budget;
    struct memo *o = memo_of_its_frame(j, part, t);
    if (o)
        o = memo_of_more_frames(j, o, &t.stack);
    if (j->w.pause) /* what was made is of this part's time; a mask that is made whole does not pause */
        j->w.pause += budget - j->budget;
    if (!o || !matcher_work(m, o->n_exits + v->n_tokens / 32))
        return false;
    hold(j, o);
    add_counted(o, v, 0, j->w.mask);
    if (t.stack == NO_FRAME || !o->n_exits)
        return true;
    j->mark = trie_mark(m);
    j->exit = 0;
    j->n_text = m->n_text;
    memset(j->by_tried, 0, sizeof j->by_tried);
    memset(j->by_opened, 0, sizeof j->by_opened);
    if (matcher_behind(m, t.stack, &j->behind))
        j->at = MASK_EXITS;
    else
        trie_go_back(m, j->mark);
    return true;
}

static void take_thread(struct mask_job *j)
{
    struct matcher *m = j->w.m;
    hold(j, NULL);
    struct thread t = m->pool[m->now.first + j->next++];
    struct memo *o = memo_of(m, j->w.v, t.state, j->w.level);
    bool whole = o && !o->wide, taken;
    if (whole)
        taken = (!m->g->has_unique || may_differ(j, t)) && apply(j, o, t);
    else
        taken = (o || m->g->states[t.state].memo == GRAMMAR_NO_MEMO) && apply_frames(j, o, t);
    if (!taken)
        j->plain[j->n_plain++] = t;
}

static void begin_plain(struct mask_job *j)
{
    struct matcher *m = j->w.m;
    j->at = MASK_PLAIN;
    j->mark = trie_mark(m);
    if (!matcher_pool_room(m, j->n_plain))
        m->failed = true;
    if (m->failed)
        return;
    j->w.level[0] = (struct config){.first = m->n_pool, .n = j->n_plain};
    for (uint32_t i = 0; i < j->n_plain; i++)
        m->pool[m->n_pool++] = j->plain[i];
    trie_walk_begin(&j->w, 0, j->n_plain ? j->w.v->n_nodes : 0);
}

/* Goes on with the mask; true when it is made, or the matcher has failed. */
static bool go_on(struct mask_job *j)
{
    struct matcher *m = j->w.m;
    while (!m->failed && m->work >= j->w.pause) {
        if (j->at == MASK_THREADS && j->next < m->now.n) {
            take_thread(j);
        } else if (j->at == MASK_THREADS) {
            begin_plain(j);
        } else if (j->at == MASK_EXITS && j->exit < j->memo->n_exits) {
            take_exit(j);
        } else if (j->at == MASK_EXITS) {
            trie_go_back(m, j->mark);
            j->at = MASK_THREADS;
        } else if (j->at == MASK_BELOW && trie_walk(&j->w)) {
            m->n_text = j->n_text;
            j->at = MASK_EXITS;
        } else if (j->at == MASK_PLAIN && trie_walk(&j->w)) {
            return true;
        }
    }
    return m->failed;
}

static struct mask_job *job_open(struct matcher *m, const struct vocabulary *v, uint32_t *mask)
{
    struct mask_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->w = (struct trie_walk){.m = m, .v = v, .mask = mask};
    j->plain = malloc((m->now.n + 1) * sizeof *j->plain);
    j->w.level = trie_levels(v);
    m->job = j;
    j->begun = trie_mark(m);
    j->begun_text = m->n_text;
    j->shallow = matcher_depth(m) <= FRAME_MEMO_DEPTH;
    j->budget = frame_memo_budget(v);
    return j->plain && j->w.level && matcher_pool_room(m, m->now.n) ? j : NULL;
}

void matcher_stop_mask(struct matcher *m)
{
    struct mask_job *j = m->job;
    if (!j)
        return;
    hold(j, NULL);
    trie_go_back(m, j->begun);
    m->n_text = j->begun_text;
    free(j->plain);
    free(j->w.level);
    free(j);
    m->job = NULL;
}

/* Adds the end tokens and counts all. */
static uint32_t end_mask(struct matcher *m, const struct vocabulary *v, uint32_t *mask)
{
    uint32_t n_words = vocabulary_mask_words(v);
    for (uint32_t i = 0; m->now.can_end && i < v->n_ends; i++)
        if ((uint32_t)v->ends[i] < v->n_tokens)
            mask[v->ends[i] / 32] |= 1u << (v->ends[i] % 32);
    if (m->failed)
        memset(mask, 0, n_words * sizeof *mask);
    return count_bits(mask, n_words);
}

bool matcher_mask_part(struct matcher *m, const struct vocabulary *v, uint32_t *mask, uint64_t steps,
                       uint32_t *n)
{
    if (!m->job) {
        memset(mask, 0, vocabulary_mask_words(v) * sizeof *mask);
        m->work = MATCHER_WORK + (uint64_t)MATCHER_WORK_NODE * v->n_nodes;
        if (!job_open(m, v, mask))
            m->failed = true;
    }
    if (!m->failed) {
        m->job->w.pause = m->work > steps ? m->work - steps : 0;
        if (!go_on(m->job))
            return false;
    }
    matcher_stop_mask(m);
    *n = end_mask(m, v, mask);
    return true;
}

uint32_t matcher_mask(struct matcher *m, const struct vocabulary *v, uint32_t *mask)
{
    uint32_t n = 0;
    matcher_mask_part(m, v, mask, UINT64_MAX, &n);
    return n;
}

int vocabulary_warm(struct vocabulary *v)
{
    struct builder b;
    struct grammar *g = NULL;
    struct matcher *m = NULL;
    uint32_t *mask = calloc(vocabulary_mask_words(v) + 1, sizeof *mask);
    builder_open(&b);
    int rc = mask ? builder_finish(&b, builder_string(&b, 0, GRAMMAR_UNBOUNDED), &g, NULL) : -ENOMEM;
    builder_close(&b);
    if (rc == 0)
        rc = matcher_open(&m, g);
    if (rc == 0 && matcher_bytes(m, "\"", 1) == 1)
        matcher_mask(m, v, mask);
    if (rc == 0)
        rc = any_string_open(&v->strings->any, v, g);
    matcher_close(m);
    grammar_unref(g);
    free(mask);
    return rc;
}
