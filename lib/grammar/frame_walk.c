#include "frame_walk.h"

#include <stdlib.h>

#define PART_SHARE   4096 /* a node is large if it has more than this share of all nodes below it */
#define PART_THREADS 64   /* tables gain little in a configuration with more threads */
#define MAX_INNER    4    /* walks inside one another: the innermost goes by threads alone */

struct frame_walk {
    struct trie_walk w;
    struct part_tables *tables; /* the outermost walk owns them, all use them */
    struct frame_walk *inner;   /* goes on where parts end; made when it is needed */
    unsigned depth;
};

static struct frame_walk *open_walk(struct matcher *m, const struct vocabulary *v, struct memo *o,
                                    unsigned depth, struct part_tables *tables)
{
    struct frame_walk *f = calloc(1, sizeof *f);
    struct config *level = trie_levels(v);
    if (!f || !level) {
        free(f);
        free(level);
        return NULL;
    }
    f->w = (struct trie_walk){.m = m, .v = v, .mask = o->mask, .memo = o, .level = level, .frames = f};
    f->tables = tables;
    f->depth = depth;
    return f;
}

struct frame_walk *frame_walk_open(struct matcher *m, const struct vocabulary *v, struct memo *o)
{
    struct part_tables *tables = part_tables_open(m->g);
    struct frame_walk *f = tables ? open_walk(m, v, o, 0, tables) : NULL;
    if (!f)
        part_tables_close(tables);
    return f;
}

void frame_walk_close(struct frame_walk *f)
{
    if (!f)
        return;
    frame_walk_close(f->inner);
    if (f->depth == 0)
        part_tables_close(f->tables);
    free(f->w.level);
    free(f);
}

/* The walk for what is behind a part, or NULL. */
static struct frame_walk *inner_of(struct frame_walk *f)
{
    if (!f->inner && f->depth < MAX_INNER) {
        f->inner = open_walk(f->w.m, f->w.v, f->w.memo, f->depth + 1, f->tables);
        f->w.m->failed |= !f->inner;
    }
    return f->inner;
}

/* Walks the nodes [node, end), children of one, from a thread. */
static void walk_from(struct frame_walk *f, struct thread t, uint32_t node, uint32_t end)
{
    struct trie_mark before = trie_mark(f->w.m);
    if (matcher_start(f->w.m, t, &f->w.level[0])) {
        trie_walk_begin(&f->w, node, end);
        trie_walk(&f->w);
    }
    trie_go_back(f->w.m, before);
}

void frame_walk_all(struct frame_walk *f, uint32_t state)
{
    walk_from(f, (struct thread){state, 0, NO_FRAME, 0}, 0, f->w.v->n_nodes);
}

/* ---- parts ---- */

struct slow_walk { /* takes nodes that a part's tables cannot */
    struct frame_walk *inner;
    uint32_t stack;
};

static bool walk_slowly(void *context, uint32_t state, uint32_t node)
{
    struct slow_walk *s = context;
    walk_from(s->inner, (struct thread){state, 0, s->stack, 0}, node, s->inner->w.v->nodes[node].end);
    return !s->inner->w.m->failed;
}

/* Takes what a thread leads to below a node. False: it is in no part, or tables cannot take it. */
static bool walk_part(struct frame_walk *f, uint32_t node, struct thread t)
{
    struct matcher *m = f->w.m;
    struct frames *of = m->g->memos->frames;
    uint32_t exit = frames_exit(of, t.state);
    struct frame_walk *inner = exit == NO_FRAME ? NULL : inner_of(f);
    struct memo part = {.mask = f->w.mask, .state = t.state, .exit_state = exit, .byte_exit = true};
    if (!inner)
        return false;
    frames_exit_bytes(of, m->g, &part);
    bool taken =
        part_walk(m, f->w.v, &part, f->tables, node, walk_slowly, &(struct slow_walk){inner, t.stack});
    if (taken && part.n_exits)
        frame_walk_exits(inner, &part, (struct thread){exit, 0, t.stack, 0});
    free(part.exits);
    return taken;
}

static bool is_large(const struct frame_walk *f, uint32_t node)
{
    return f->w.v->nodes[node].end - node > f->w.v->n_nodes / PART_SHARE + 1;
}

void frame_walk_parts(struct frame_walk *f, uint32_t node, struct config *c)
{
    struct matcher *m = f->w.m;
    struct config rest = *c;
    if (!is_large(f, node) || c->n > PART_THREADS || !matcher_pool_room(m, c->n))
        return;
    rest.first = m->n_pool; /* the thread is taken off again where a part has it */
    rest.n = 0;
    for (uint32_t i = 0; i < c->n && !m->failed; i++) {
        struct thread t = m->pool[c->first + i];
        if (walk_part(f, node, t) || m->failed)
            continue;
        m->pool[m->n_pool++] = t;
        rest.n++;
    }
    if (rest.n < c->n)
        *c = rest;
    else
        m->n_pool = rest.first;
}

/* ---- exits ---- */

/* What may follow exits, by their bytes. */
struct behind {
    struct config at; /* before the byte */
    struct {
        bool tried, opened;
        struct config at;
    } by[256];
};

static void walk_exit(struct frame_walk *f, struct behind *b, uint32_t node)
{
    struct trie_walk *w = &f->w;
    struct matcher *m = w->m;
    uint8_t byte = w->v->nodes[node].byte;
    if (b->at.can_end && memo_exits_by(w->memo, byte) && !memo_add_exit(w->memo, node, 0))
        m->failed = true;
    if (!b->by[byte].tried) {
        b->by[byte].tried = true;
        b->by[byte].opened = matcher_step(m, &b->at, byte, &b->by[byte].at);
    }
    if (!b->by[byte].opened || !matcher_work(m, 1))
        return;
    trie_set_token(w, w->v->nodes[node].token, 0);
    struct trie_mark before = trie_mark(m);
    w->level[0] = b->by[byte].at;
    frame_walk_parts(f, node, &w->level[0]);
    trie_walk_begin(w, node + 1, w->v->nodes[node].end);
    trie_walk(w);
    trie_go_back(m, before);
}

void frame_walk_exits(struct frame_walk *f, const struct memo *from, struct thread t)
{
    struct matcher *m = f->w.m;
    struct trie_mark before = trie_mark(m);
    struct behind *b = calloc(1, sizeof *b);
    if (!b)
        m->failed = true;
    if (b && matcher_start(m, t, &b->at))
        for (uint32_t i = 0; i < from->n_exits && !m->failed; i++)
            walk_exit(f, b, from->exits[i].node);
    trie_go_back(m, before);
    free(b);
}
