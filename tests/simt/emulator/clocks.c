#include "clocks.h"

#include <stdlib.h>
#include <string.h>

static struct clock *clock_make(struct clock_pool *pool, uint32_t n)
{
    struct clock *c = pool->free;
    if (c) {
        pool->free = c->next_free;
    } else {
        c = malloc(sizeof *c + pool->capacity * sizeof c->at[0]);
        if (!c)
            abort(); /* a test tool: nothing sensible is left to do */
    }
    c->refs = 1;
    c->n = n;
    return c;
}

void clock_pool_close(struct clock_pool *pool)
{
    while (pool->free) {
        struct clock *c = pool->free;
        pool->free = c->next_free;
        free(c);
    }
}

void clock_drop(struct clock_pool *pool, struct clock **c)
{
    if (*c && --(*c)->refs == 0) {
        (*c)->next_free = pool->free;
        pool->free = *c;
    }
    *c = NULL;
}

void clock_share(struct clock_pool *pool, struct clock **to, struct clock *from)
{
    if (from)
        from->refs++;
    clock_drop(pool, to);
    *to = from;
}

/* Without an early end, so that it runs on vectors: this is most of a run's time. */
static bool clock_covers(const struct clock *a, const struct clock *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n, behind = 0;
    for (uint32_t i = 0; i < n; i++)
        behind |= b->at[i] > a->at[i];
    for (uint32_t i = n; i < b->n; i++)
        behind |= b->at[i];
    return !behind;
}

/* *c as a clock of its own with at least n columns. */
static struct clock *clock_own(struct clock_pool *pool, struct clock **c, uint32_t n)
{
    uint32_t had = *c ? (*c)->n : 0;
    n = n > had ? n : had;
    if (!*c || (*c)->refs > 1) {
        struct clock *copy = clock_make(pool, n);
        if (had)
            memcpy(copy->at, (*c)->at, had * sizeof copy->at[0]);
        clock_drop(pool, c);
        *c = copy;
    }
    memset((*c)->at + had, 0, (n - had) * sizeof(*c)->at[0]);
    (*c)->n = n;
    return *c;
}

static void remember(struct clock_pool *pool, struct clock_joined *j, struct clock *into, struct clock *from,
                     struct clock *result)
{
    clock_share(pool, &j->into, into);
    clock_share(pool, &j->from, from);
    clock_share(pool, &j->result, result);
}

void clock_pool_forget(struct clock_pool *pool)
{
    for (int i = 0; i < CLOCK_JOINED; i++)
        remember(pool, &pool->joined[i], NULL, NULL, NULL);
}

void clock_join(struct clock_pool *pool, struct clock **into, struct clock *from)
{
    if (!from || *into == from)
        return;
    if (!*into) {
        clock_share(pool, into, from);
        return;
    }
    uintptr_t hash = ((uintptr_t)*into * 31 + (uintptr_t)from) * 0x9E3779B97F4A7C15u;
    struct clock_joined *j = &pool->joined[(hash >> 32) % CLOCK_JOINED];
    if (*into == j->into && from == j->from) {
        clock_share(pool, into, j->result);
        return;
    }
    struct clock *before = NULL;
    clock_share(pool, &before, *into); /* so that it is copied, not changed: it is remembered as it was */
    if (!clock_covers(*into, from)) {
        struct clock *c = clock_own(pool, into, from->n);
        for (uint32_t i = 0; i < from->n; i++)
            c->at[i] = c->at[i] > from->at[i] ? c->at[i] : from->at[i];
    }
    remember(pool, j, before, from, *into);
    clock_drop(pool, &before);
}

void clock_raise(struct clock_pool *pool, struct clock **into, uint32_t column, uint32_t epoch)
{
    if (clock_at(*into, column) < epoch)
        clock_own(pool, into, column + 1)->at[column] = epoch;
}

void knowledge_drop(struct clock_pool *pool, struct knowledge *k)
{
    clock_drop(pool, &k->seen);
    clock_drop(pool, &k->async);
}

void knowledge_share(struct clock_pool *pool, struct knowledge *to, const struct knowledge *from)
{
    clock_share(pool, &to->seen, from->seen);
    clock_share(pool, &to->async, from->async);
}

void knowledge_join(struct clock_pool *pool, struct knowledge *into, const struct knowledge *from)
{
    clock_join(pool, &into->seen, from->seen);
    clock_join(pool, &into->async, from->async);
}
