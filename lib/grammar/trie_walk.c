#include "trie_walk.h"
#include "frame_walk.h"

#include <stdlib.h>

struct config *trie_levels(const struct vocabulary *v)
{
    uint32_t n = v->max_len + 2 > 258 ? v->max_len + 2 : 258;
    return calloc(n, sizeof(struct config));
}

struct trie_mark trie_mark(const struct matcher *m)
{
    return (struct trie_mark){m->n_pool, m->n_frames, m->n_links};
}

void trie_go_back(struct matcher *m, struct trie_mark to)
{
    m->n_pool = to.n_pool;
    m->n_frames = to.n_frames;
    m->n_links = to.n_links;
}

void trie_set_token(const struct trie_walk *w, int32_t token, uint32_t count)
{
    for (; token >= 0; token = w->v->same[token]) {
        w->mask[token / 32] |= 1u << (token % 32);
        if (w->memo && w->memo->counts)
            w->memo->counts[token] = count < 254 ? (uint8_t)count : 254;
    }
}

/* Takes the node's byte from the level above it. True: look below it too. */
static bool walk_node(struct trie_walk *w, uint32_t node, uint32_t depth)
{
    struct matcher *m = w->m;
    const struct vocabulary_node *n = &w->v->nodes[node];
    const struct config *above = &w->level[depth - 1];
    struct config *here = &w->level[depth];
    if (w->memo && w->memo->byte_exit && (w->memo->frame ? above->can_end : above->exits) &&
        memo_exits_by(w->memo, n->byte) && !memo_add_exit(w->memo, node, above->exit_count))
        m->failed = true;
    if (above->n == 0 ||
        (m->g->has_unique && !m->alone && !matcher_put_text(m, m->n_text - 1, (char)n->byte)))
        return false;
    if (!matcher_step(m, above, n->byte, here))
        return false;
    trie_set_token(w, n->token, here->n ? m->pool[here->first].count : here->exit_count);
    if (w->frames)
        frame_walk_parts(w->frames, node, here);
    return true;
}

void trie_walk_begin(struct trie_walk *w, uint32_t node, uint32_t end)
{
    w->node = node;
    w->top = 0;
    w->ends[0] = end;
    w->marks[0] = trie_mark(w->m);
    w->n_text = w->m->n_text;
}

/* Looks at the next node, and goes below it or behind it. */
static void walk_on(struct trie_walk *w)
{
    struct matcher *m = w->m;
    uint32_t node = w->node, end = w->v->nodes[node].end;
    trie_go_back(m, w->marks[w->top]);
    m->n_text = w->n_text + w->top + 1;
    if (w->top < TRIE_LEVELS - 1 && walk_node(w, node, w->top + 1) && end > node + 1) {
        w->top++;
        w->ends[w->top] = end;
        w->marks[w->top] = trie_mark(m);
        w->node++;
    } else
        w->node = end;
}

bool trie_walk(struct trie_walk *w)
{
    struct matcher *m = w->m;
    while (!m->failed) {
        while (w->top > 0 && w->node == w->ends[w->top]) /* done below: back to the level above */
            w->top--;
        if (w->node == w->ends[w->top])
            break;
        if (m->work < w->pause)
            return false;
        walk_on(w);
    }
    trie_go_back(m, w->marks[0]);
    m->n_text = w->n_text;
    return true;
}
