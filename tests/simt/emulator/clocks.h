/* clocks.h - vector clocks, shared by reference.
 *
 * A column is one sequential agent: a GPU thread, or the asynchronous copies of one thread. An agent's epoch
 * counts its releases. A clock has, for each column, the epoch up to which all accesses are known to have
 * happened before. Clocks are shared and copied on change, so that a barrier of 512 threads makes one clock
 * and 512 references.
 * Thread: one per pool; the owner of a reference calls clock_drop(). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct clock {
    uint32_t refs, n; /* columns it has; further ones are 0 */
    struct clock *next_free;
    uint32_t at[];
};

#define CLOCK_JOINED 256
struct clock_pool {
    uint32_t capacity; /* columns a clock has room for */
    struct clock *free;
    /* Recent joins: the lanes of a warp mostly join the same two clocks. */
    struct clock_joined {
        struct clock *into, *from, *result;
    } joined[CLOCK_JOINED];
};

/* An agent's knowledge. `async`: the part that is also visible to the async proxy. */
struct knowledge {
    struct clock *seen, *async;
};

void clock_pool_close(struct clock_pool *pool);  /* all clocks must have been dropped */
void clock_pool_forget(struct clock_pool *pool); /* forgets recent joins */
static inline uint32_t clock_at(const struct clock *c, uint32_t column)
{
    return c && column < c->n ? c->at[column] : 0;
}
void clock_drop(struct clock_pool *pool, struct clock **c);
void clock_share(struct clock_pool *pool, struct clock **to, struct clock *from);
void clock_join(struct clock_pool *pool, struct clock **into, struct clock *from);
/* into[column] = max(into[column], epoch). */
void clock_raise(struct clock_pool *pool, struct clock **into, uint32_t column, uint32_t epoch);

void knowledge_drop(struct clock_pool *pool, struct knowledge *k);
void knowledge_share(struct clock_pool *pool, struct knowledge *to, const struct knowledge *from);
void knowledge_join(struct clock_pool *pool, struct knowledge *into, const struct knowledge *from);
