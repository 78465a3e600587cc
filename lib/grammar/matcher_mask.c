/* matcher_mask.c - which tokens may come next: a walk of the vocabulary's trie by the matcher's threads.
 * Inside a string most tokens are allowed, and which ones depends on the state alone: such masks are computed
 * once and remembered. What leaves the string is looked at anew each time, since it depends on the stack. */
#include "grammar_builder.h"
#include "matcher_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MEMOS 256 /* of a grammar */
#define MEMO_BYTES                                                                                           \
    (8 << 20) /* of a grammar's: 19 KB each for 150,000 tokens, 170 KB where characters count */

struct exit_node { /* a node whose byte leaves the part */
    uint32_t node;
    uint32_t count; /* characters of the token before it */
};
struct memo {
    uint32_t *mask;          /* tokens that stay inside */
    uint8_t *counts;         /* [n_tokens]: their characters, 255 for other tokens; NULL where none count */
    uint32_t n_inside, most; /* tokens in the mask; the largest of the counts */
    struct exit_node *exits;
    uint32_t n_exits, exit_room;
    uint32_t exit_state;
    bool byte_exit; /* the exit state reads one byte, and `exits` lists the nodes that have it */
    bool useless;   /* more than one way out: walk instead */
};
struct vocabulary_memos {
    const struct vocabulary *of;
    struct memo **memo; /* by key */
    uint32_t n, n_made;
    size_t n_bytes; /* of all */
};

int memo_store_open(struct vocabulary_memos **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : -ENOMEM;
}

static void memo_free(struct memo *o)
{
    if (!o)
        return;
    free(o->mask);
    free(o->counts);
    free(o->exits);
    free(o);
}

void memo_store_close(struct vocabulary_memos *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        memo_free(s->memo[i]);
    free(s->memo);
    free(s);
}

/* ---- walking the trie ---- */

struct trie_walk {
    struct matcher *m;
    const struct vocabulary *v;
    uint32_t *mask;
    struct memo *memo;    /* being made, or NULL */
    uint8_t exit_byte;    /* of the memo */
    struct config *level; /* [max_len + 1] */
};

static void set_token(const struct trie_walk *w, int32_t token, uint32_t count)
{
    for (; token >= 0; token = w->v->same[token]) {
        w->mask[token / 32] |= 1u << (token % 32);
        if (w->memo && w->memo->counts)
            w->memo->counts[token] = count < 254 ? (uint8_t)count : 254;
    }
}

static bool add_exit(struct memo *o, uint32_t node, uint32_t count)
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

/* Takes the node's byte from the level above it. True: look below it too. */
static bool walk_node(struct trie_walk *w, uint32_t node, uint32_t depth)
{
    struct matcher *m = w->m;
    const struct vocabulary_node *n = &w->v->nodes[node];
    const struct config *above = &w->level[depth - 1];
    struct config *here = &w->level[depth];
    if (w->memo && above->exits && n->byte == w->exit_byte && !add_exit(w->memo, node, above->exit_count))
        m->failed = true;
    if (above->n == 0 ||
        (m->g->has_unique && !m->alone && !matcher_put_text(m, m->n_text - 1, (char)n->byte)))
        return false;
    if (!matcher_step(m, above, n->byte, here))
        return false;
    set_token(w, n->token, here->n ? m->pool[here->first].count : here->exit_count);
    return true;
}

/* Walks the nodes [node, end), children of a node whose configuration is level[depth]. */
static void walk(struct trie_walk *w, uint32_t node, uint32_t end, uint32_t depth)
{
    struct matcher *m = w->m;
    uint32_t ends[256], top = 0, pools[256], frames[256], links[256];
    size_t n_text = m->n_text;
    ends[0] = end;
    pools[0] = m->n_pool;
    frames[0] = m->n_frames;
    links[0] = m->n_links;
    while (!m->failed) {
        while (node == ends[top]) { /* done below: back to the level above */
            if (top == 0) {
                m->n_pool = pools[0];
                m->n_frames = frames[0];
                m->n_links = links[0];
                m->n_text = n_text;
                return;
            }
            top--;
        }
        m->n_pool = pools[top];
        m->n_frames = frames[top];
        m->n_links = links[top];
        m->n_text = n_text + top + 1;
        if (top < 255 && walk_node(w, node, depth + top + 1) && w->v->nodes[node].end > node + 1) {
            top++;
            ends[top] = w->v->nodes[node].end;
            pools[top] = m->n_pool;
            frames[top] = m->n_frames;
            links[top] = m->n_links;
            node++;
        } else
            node = w->v->nodes[node].end;
    }
    m->n_pool = pools[0];
    m->n_frames = frames[0];
    m->n_links = links[0];
    m->n_text = n_text;
}

/* ---- remembered masks ---- */

static bool reads_one_byte(const struct grammar *g, uint32_t s, uint8_t *byte)
{
    const struct grammar_state *a = &g->states[s], *b = a + 1;
    *byte = a->edge < b->edge ? g->edges[a->edge].lo : 0;
    return !a->final && b->edge - a->edge == 1 && b->empty == a->empty && b->call == a->call &&
           g->edges[a->edge].lo == g->edges[a->edge].hi;
}

/* The state outside that the part leads to, found by looking at all of its states that `state` reaches. */
static uint32_t find_exit(const struct grammar *g, uint32_t state, bool *many)
{
    uint32_t *queue = malloc(g->n_states * sizeof *queue), n = 0, exit = NO_FRAME;
    bool *seen = calloc(g->n_states, 1);
    *many = !queue || !seen;
    if (queue && seen)
        queue[n++] = state, seen[state] = true;
    for (uint32_t i = 0; i < n; i++) {
        const struct grammar_state *s = &g->states[queue[i]], *e = s + 1;
        *many |= s->final || s->call != e->call;
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

static void count_inside(struct memo *o, const struct vocabulary *v)
{
    for (uint32_t i = 0; i < vocabulary_mask_words(v); i++)
        o->n_inside += (uint32_t)__builtin_popcount(o->mask[i]);
    for (uint32_t t = 0; o->counts && t < v->n_tokens; t++)
        if (o->counts[t] != 255 && o->counts[t] > o->most)
            o->most = o->counts[t];
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
    o->exit_state = find_exit(m->g, state, &many);
    struct trie_walk w = {m, v, o->mask, o, 0, level};
    o->byte_exit = o->exit_state != NO_FRAME && reads_one_byte(m->g, o->exit_state, &w.exit_byte);
    o->useless = many;
    if (many)
        return o;
    if (!o->byte_exit) { /* exits are not listed: no node has this depth */
        w.exit_byte = 0;
    }
    m->alone = true;
    if (matcher_start(m, (struct thread){state, 0, NO_FRAME, 0}, &level[0])) {
        if (!o->byte_exit)
            w.memo = o->counts ? o : NULL;
        walk(&w, 0, v->n_nodes, 0);
    }
    m->alone = false;
    if (m->failed)
        goto fail;
    if (!o->byte_exit)
        o->n_exits = 0;
    count_inside(o, v);
    return o;
fail:
    memo_free(o);
    return NULL;
}

static size_t memo_bytes(const struct memo *o, const struct vocabulary *v)
{
    return sizeof *o + (vocabulary_mask_words(v) + 1) * sizeof *o->mask + (o->counts ? v->n_tokens + 1 : 0) +
           o->exit_room * sizeof *o->exits;
}

static void memo_take(struct matcher *m, struct vocabulary_memos *s, size_t n)
{
    s->n_bytes += n;
    if (s == m->g->memos)
        grammar_take(m->g, n);
}

/* Those of JSON strings are of a known number, and of the vocabulary. */
static bool has_room(const struct matcher *m, const struct vocabulary_memos *s)
{
    return s->n_made < MAX_MEMOS && (s != m->g->memos || s->n_bytes < MEMO_BYTES);
}

/* The memo of a state, made now if there is room; NULL: walk. */
static const struct memo *memo_of(struct matcher *m, const struct vocabulary *v, uint32_t state,
                                  struct config *level)
{
    uint32_t key = m->g->states[state].memo;
    if (key == GRAMMAR_NO_MEMO || (m->g->has_unique && key >= GRAMMAR_STRING_MEMOS))
        return NULL;
    struct vocabulary_memos *s = key < GRAMMAR_STRING_MEMOS ? v->strings : m->g->memos;
    if (!s->memo) {
        s->n = s == v->strings ? GRAMMAR_STRING_MEMOS : m->g->n_memos;
        s->memo = calloc(s->n, sizeof *s->memo);
        s->of = v;
        if (s->memo)
            memo_take(m, s, s->n * sizeof *s->memo);
    }
    if (!s->memo || s->of != v)
        return NULL;
    if (!s->memo[key] && has_room(m, s)) {
        uint32_t n_pool = m->n_pool;
        s->memo[key] = memo_make(m, v, state, level);
        if (s->memo[key]) {
            s->n_made++;
            memo_take(m, s, memo_bytes(s->memo[key], v));
        }
        m->n_pool = n_pool;
    }
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

/* Walks what is below a node, from level[0]; items that must differ need the bytes that led there. */
static void walk_below(struct trie_walk *w, uint32_t node)
{
    struct matcher *m = w->m;
    const struct vocabulary_node *nodes = w->v->nodes;
    size_t n_text = m->n_text;
    uint32_t with_token = node;
    while (nodes[with_token].token < 0)
        with_token++;
    const char *bytes = w->v->bytes[nodes[with_token].token];
    for (uint32_t i = 0; m->g->has_unique && i < nodes[node].depth; i++)
        if (!matcher_put_text(m, m->n_text++, bytes[i]))
            return;
    walk(w, node + 1, nodes[node].end, 0);
    m->n_text = n_text;
}

/* Adds what a memo says for one thread. False: it does not fit here, and the trie must be walked. */
static bool apply(struct trie_walk *w, const struct memo *o, struct thread t)
{
    struct matcher *m = w->m;
    const struct grammar_state *s = &m->g->states[t.state];
    struct grammar_part part = {0, GRAMMAR_UNBOUNDED, 0, false};
    if (s->part != GRAMMAR_UNBOUNDED)
        part = m->g->parts[s->part];
    uint32_t n_pool = m->n_pool, n_frames = m->n_frames, n_links = m->n_links;
    if (!matcher_work(m, o->n_exits + w->v->n_tokens / (o->counts ? 8 : 32)))
        return false;
    /* A shared memo knows the state of another grammar. */
    uint32_t exit = s->part != GRAMMAR_UNBOUNDED ? part.exit : o->exit_state;
    if (!o->byte_exit) {
        struct config behind;
        if (exit != NO_FRAME && matcher_start(m, (struct thread){exit, t.count, t.stack, 0}, &behind) &&
            behind.n)
            return false;
        m->n_pool = n_pool;
        m->n_frames = n_frames;
        m->n_links = n_links;
        add_counted(o, w->v, part.max - t.count, w->mask);
        return true;
    }
    add_counted(o, w->v, part.max - t.count, w->mask);
    struct config outside = {0};
    bool tried = false, opened = false;
    for (uint32_t i = 0; i < o->n_exits && !m->failed; i++) {
        uint32_t count = t.count + o->exits[i].count, node = o->exits[i].node;
        if (!part.counts)
            count = t.count;
        if (count < part.min || count > part.max)
            continue;
        if (!tried) { /* behind the byte nothing depends on the count, so one configuration serves all */
            tried = true;
            struct config at = {0};
            m->n_text++;
            opened = matcher_start(m, (struct thread){exit, count, t.stack, 0}, &at) &&
                     matcher_step(m, &at, w->v->nodes[node].byte, &outside);
            m->n_text--;
        }
        if (!opened)
            break;
        set_token(w, w->v->nodes[node].token, 0);
        if (w->v->nodes[node].end > node + 1) {
            w->level[0] = outside;
            walk_below(w, node);
        }
    }
    m->n_pool = n_pool;
    m->n_frames = n_frames;
    m->n_links = n_links;
    return !m->failed;
}

/* ---- the mask ---- */

static void add_plain(struct trie_walk *w, const struct thread *plain, uint32_t n)
{
    struct matcher *m = w->m;
    uint32_t n_pool = m->n_pool;
    if (n == 0)
        return;
    w->level[0] = (struct config){.first = n_pool, .n = n};
    for (uint32_t i = 0; i < n; i++)
        m->pool[m->n_pool++] = plain[i];
    walk(w, 0, w->v->n_nodes, 0);
    m->n_pool = n_pool;
}

static bool reserve_pool(struct matcher *m, uint32_t n)
{
    if (m->n_pool + n <= m->pool_room)
        return true;
    struct thread *p = realloc(m->pool, (2 * m->pool_room + n) * sizeof *p);
    if (!p)
        return false;
    matcher_take(m, (m->pool_room + n) * sizeof *p);
    m->pool = p;
    m->pool_room = 2 * m->pool_room + n;
    return true;
}

uint32_t matcher_mask(struct matcher *m, const struct vocabulary *v, uint32_t *mask)
{
    uint32_t n_words = vocabulary_mask_words(v), n_plain = 0, n = 0;
    memset(mask, 0, n_words * sizeof *mask);
    m->work = MATCHER_WORK + (uint64_t)MATCHER_WORK_NODE * v->n_nodes;
    struct thread *plain = malloc((m->now.n + 1) * sizeof *plain);
    struct config *level = calloc(v->max_len + 2 > 258 ? v->max_len + 2 : 258, sizeof *level);
    struct trie_walk w = {.m = m, .v = v, .mask = mask, .level = level};
    if (!plain || !level || !reserve_pool(m, m->now.n))
        m->failed = true;
    for (uint32_t i = 0; i < m->now.n && !m->failed; i++) {
        struct thread t = m->pool[m->now.first + i];
        const struct memo *o = memo_of(m, v, t.state, level);
        if (!o || !apply(&w, o, t))
            plain[n_plain++] = t;
    }
    if (!m->failed && reserve_pool(m, n_plain))
        add_plain(&w, plain, n_plain);
    for (uint32_t i = 0; m->now.can_end && i < v->n_ends; i++)
        if ((uint32_t)v->ends[i] < v->n_tokens)
            mask[v->ends[i] / 32] |= 1u << (v->ends[i] % 32);
    if (m->failed)
        memset(mask, 0, n_words * sizeof *mask);
    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(mask[i]);
    free(plain);
    free(level);
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
    matcher_close(m);
    grammar_unref(g);
    free(mask);
    return rc;
}
