#include "unread.h"

#include <stdbool.h>

void unread_open(struct unread *u)
{
    *u = (struct unread){0};
    TAILQ_INIT(&u->queues[0]);
    TAILQ_INIT(&u->queues[1]);
}

static struct unread_queue *queue_of(struct unread *u, size_t n_bytes)
{
    return &u->queues[n_bytes > UNREAD_LARGE];
}

void unread_set(struct unread *u, struct unread_reply *r, size_t n_bytes, uint64_t now_ns)
{
    if (r->n_bytes)
        TAILQ_REMOVE(queue_of(u, r->n_bytes), r, link);
    u->n_bytes = u->n_bytes - r->n_bytes + n_bytes;
    r->n_bytes = n_bytes;
    r->moved_ns = now_ns;
    if (n_bytes)
        TAILQ_INSERT_TAIL(queue_of(u, n_bytes), r, link);
}

static struct unread_reply *first_but(const struct unread_queue *queue, const struct unread_reply *but)
{
    struct unread_reply *r = TAILQ_FIRST(queue);
    return r && r == but ? TAILQ_NEXT(r, link) : r;
}

struct unread_reply *unread_first(const struct unread *u, const struct unread_reply *but, uint64_t now_ns)
{
    struct unread_reply *small = first_but(&u->queues[0], but), *large = first_but(&u->queues[1], but);
    if (!small || !large)
        return small ? small : large;
    bool still = now_ns - small->moved_ns >= UNREAD_STILL_NS;
    return still && small->moved_ns < large->moved_ns ? small : large;
}
