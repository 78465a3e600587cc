#include "peer.h"

#include <assert.h>
#include <stdlib.h>

bool peers_open(struct peers *all, uint32_t n_connections)
{
    *all = (struct peers){.n_levels = n_connections + 2};
    all->levels = calloc(all->n_levels, sizeof *all->levels);
    for (uint32_t i = 0; all->levels && i < all->n_levels; i++)
        TAILQ_INIT(&all->levels[i]);
    return all->levels != NULL;
}

void peers_close(struct peers *all)
{
    free(all->levels);
    all->levels = NULL;
}

struct peer *peer_ref(struct peers *all, uint64_t id)
{
    struct peer *p;
    LIST_FOREACH(p, &all->buckets[(id ^ id >> 32) % PEER_BUCKETS], link)
        if (p->id == id)
            break;
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!p)
            return NULL;
        p->id = id;
        for (int i = 0; i < PEER_STATES; i++)
            TAILQ_INIT(&p->idle[i]);
        LIST_INSERT_HEAD(&all->buckets[(id ^ id >> 32) % PEER_BUCKETS], p, link);
    }
    p->refs++;
    return p;
}

void peer_unref(struct peer *p)
{
    if (--p->refs)
        return;
    assert(!p->n_idle);
    LIST_REMOVE(p, link);
    free(p);
}

static uint32_t level_of(const struct peers *all, const struct peer *p)
{
    return p->n_idle < all->n_levels ? p->n_idle : all->n_levels - 1;
}

/* The number changes by one: so does the highest level, at most. */
static void set_idle(struct peers *all, struct peer *p, uint32_t n)
{
    uint32_t from = level_of(all, p);
    if (from)
        TAILQ_REMOVE(&all->levels[from], p, level);
    p->n_idle = n;
    uint32_t to = level_of(all, p);
    if (to)
        TAILQ_INSERT_TAIL(&all->levels[to], p, level);
    if (to > all->most || (from == all->most && TAILQ_EMPTY(&all->levels[from])))
        all->most = to;
}

void peer_add_idle(struct peers *all, struct peer *p)
{
    set_idle(all, p, p->n_idle + 1);
}

void peer_remove_idle(struct peers *all, struct peer *p)
{
    assert(p->n_idle);
    set_idle(all, p, p->n_idle - 1);
}

const struct peer_level *peers_largest(const struct peers *all)
{
    return &all->levels[all->most];
}
