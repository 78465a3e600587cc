#include "peer.h"

#include <assert.h>
#include <stdlib.h>

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
        LIST_INSERT_HEAD(&all->buckets[(id ^ id >> 32) % PEER_BUCKETS], p, link);
    }
    p->refs++;
    return p;
}

void peer_unref(struct peer *p)
{
    assert(p->refs > 0);
    if (--p->refs)
        return;
    LIST_REMOVE(p, link);
    free(p);
}
