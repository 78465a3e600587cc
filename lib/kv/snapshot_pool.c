#include "snapshot_pool.h"

#include <assert.h>
#include <stdlib.h>

struct snapshot {
    enum { FREE, TAKEN, KEPT, DYING } state; /* DYING: free once its holders release it */
    uint32_t page, holders;
    bool was_used;
    uint64_t used; /* clock of the last use */
};

struct snapshot_pool {
    uint32_t n;
    uint64_t clock;
    struct snapshot of[];
};

struct snapshot_pool *snapshot_pool_open(uint32_t n)
{
    struct snapshot_pool *p = calloc(1, sizeof *p + n * sizeof *p->of);
    if (p)
        p->n = n;
    return p;
}

void snapshot_pool_close(struct snapshot_pool *p)
{
    free(p);
}

/* The free one, else the kept one without holders that was used least recently. */
static uint32_t choose(const struct snapshot_pool *p)
{
    uint32_t best = SNAPSHOT_NONE;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct snapshot *s = &p->of[i];
        if (s->state == FREE)
            return i;
        if (s->state == KEPT && s->holders == 0 && (best == SNAPSHOT_NONE || s->used < p->of[best].used))
            best = i;
    }
    return best;
}

uint32_t snapshot_take(struct snapshot_pool *p, uint32_t *page)
{
    uint32_t i = choose(p);
    *page = SNAPSHOT_NONE;
    if (i == SNAPSHOT_NONE)
        return i;
    *page = snapshot_page(p, i);
    p->of[i] = (struct snapshot){.state = TAKEN};
    return i;
}

void snapshot_keep(struct snapshot_pool *p, uint32_t i, uint32_t page)
{
    assert(i < p->n && p->of[i].state == TAKEN);
    p->of[i] = (struct snapshot){.state = KEPT, .page = page, .used = ++p->clock};
}

void snapshot_free(struct snapshot_pool *p, uint32_t i)
{
    assert(i < p->n && (p->of[i].state == TAKEN || p->of[i].state == KEPT));
    p->of[i].state = p->of[i].holders ? DYING : FREE;
}

void snapshot_hold(struct snapshot_pool *p, uint32_t i)
{
    assert(i < p->n && p->of[i].state == KEPT);
    p->of[i].holders++;
    p->of[i].was_used = true;
    p->of[i].used = ++p->clock;
}

void snapshot_release(struct snapshot_pool *p, uint32_t i)
{
    assert(i < p->n && p->of[i].holders > 0);
    if (--p->of[i].holders == 0 && p->of[i].state == DYING)
        p->of[i].state = FREE;
}

bool snapshot_was_used(const struct snapshot_pool *p, uint32_t i)
{
    return p->of[i].was_used;
}

uint32_t snapshot_n_kept(const struct snapshot_pool *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += p->of[i].state == KEPT;
    return n;
}

uint32_t snapshot_page(const struct snapshot_pool *p, uint32_t i)
{
    return p->of[i].state == KEPT ? p->of[i].page : SNAPSHOT_NONE;
}
