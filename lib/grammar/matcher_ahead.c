/* matcher_ahead.c - what must follow a text, and a look ahead that is taken back: for drafts of constrained
 * texts. */
#include "matcher_private.h"

#include <stdlib.h>
#include <string.h>

/* The byte that all edges of the threads read, or -1: there are several, or none. */
static int only_byte(const struct matcher *m, const struct config *c)
{
    const struct grammar *g = m->g;
    int byte = -1;
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t state = m->pool[c->first + i].state;
        for (uint32_t k = g->states[state].edge; k < g->states[state + 1].edge; k++) {
            const struct grammar_edge *e = &g->edges[k];
            if (e->lo != e->hi || (byte >= 0 && e->lo != byte))
                return -1;
            byte = e->lo;
        }
    }
    return byte;
}

/* Bytes that must follow c. The threads of each byte take the place of those before, behind the text's. */
static uint32_t walk_forced(struct matcher *m, struct config c, char *out, uint32_t most)
{
    uint32_t behind = m->n_pool;
    for (uint32_t n = 0; n < most; n++) {
        struct config next;
        int byte = c.can_end ? -1 : only_byte(m, &c);
        if (byte < 0 || (m->g->has_unique && !matcher_put_text(m, m->n_text, (char)byte)))
            return n;
        m->n_text++;
        if (!matcher_step(m, &c, (uint8_t)byte, &next) || m->failed)
            return n;
        out[n] = (char)byte;
        memmove(m->pool + behind, m->pool + next.first, next.n * sizeof *m->pool);
        next.first = behind;
        m->n_pool = behind + next.n;
        c = next;
    }
    return most;
}

uint32_t matcher_forced(struct matcher *m, char *out, uint32_t most, uint64_t steps)
{
    uint32_t n_pool = m->n_pool, n_frames = m->n_frames, n_links = m->n_links;
    size_t n_text = m->n_text;
    if (m->failed || m->job)
        return 0;
    m->work = steps < MATCHER_WORK ? steps : MATCHER_WORK;
    uint32_t n = walk_forced(m, m->now, out, most);
    m->n_pool = n_pool;
    m->n_frames = n_frames;
    m->n_links = n_links;
    m->n_text = n_text;
    m->failed = m->ambiguous = false; /* of the look alone: the text itself may go another way */
    return n;
}

bool matcher_save(struct matcher *m)
{
    struct matcher_saved *s = m->saved;
    uint32_t n = m->now.n;
    matcher_stop_mask(m);
    if (m->failed)
        return false;
    if (!s || s->room < n) {
        size_t had = s ? s->n_bytes : 0, wanted = sizeof *s + n * sizeof *s->pool;
        s = realloc(s, wanted);
        if (!s)
            return false;
        matcher_take(m, wanted - had);
        s->n_bytes = wanted;
        s->room = n;
        m->saved = s;
    }
    s->now = m->now;
    s->n_frames = m->n_frames;
    s->n_links = m->n_links;
    s->n_text = m->n_text;
    if (n)
        memcpy(s->pool, m->pool, n * sizeof *s->pool);
    m->looks = true;
    return true;
}

void matcher_fail(struct matcher *m)
{
    m->failed = true;
}

void matcher_keep(struct matcher *m)
{
    m->looks = false;
}

void matcher_restore(struct matcher *m)
{
    const struct matcher_saved *s = m->saved;
    matcher_stop_mask(m);
    m->looks = false;
    m->now = s->now;
    m->n_pool = s->now.n;
    m->n_frames = s->n_frames;
    m->n_links = s->n_links;
    m->n_text = s->n_text;
    m->failed = m->ambiguous = false;
    if (s->now.n)
        memcpy(m->pool, s->pool, s->now.n * sizeof *s->pool);
}
