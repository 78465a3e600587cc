#include "client_limit.h"

#include <assert.h>
#include <stdlib.h>

#define BUCKETS 1024

struct client {
    uint64_t id;
    uint32_t n;
    struct client *next;
};

static struct client **find(struct clients *c, uint64_t id)
{
    struct client **at = &c->buckets[(id ^ id >> 32) % BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

enum client_entry clients_enter(struct clients *c, uint64_t id, uint32_t limit)
{
    if (!c->buckets && !(c->buckets = calloc(BUCKETS, sizeof(struct client *))))
        return CLIENT_UNCOUNTED;
    struct client **at = find(c, id);
    if (*at && (*at)->n >= limit)
        return CLIENT_REFUSED;
    if (!*at && !(*at = calloc(1, sizeof **at)))
        return CLIENT_UNCOUNTED;
    c->n += (*at)->n == 0;
    (*at)->id = id;
    (*at)->n++;
    return CLIENT_COUNTED;
}

void clients_leave(struct clients *c, uint64_t id)
{
    struct client **at = c->buckets ? find(c, id) : NULL;
    if (!at || !*at || --(*at)->n)
        return;
    assert(c->n > 0);
    struct client *gone = *at;
    *at = gone->next;
    free(gone);
    c->n--;
}

void clients_free(struct clients *c)
{
    for (int i = 0; c->buckets && i < BUCKETS; i++)
        for (struct client *next, *at = c->buckets[i]; at; at = next) {
            next = at->next;
            free(at);
        }
    free(c->buckets);
    *c = (struct clients){0};
}
