#include "client_limit.h"

#include <assert.h>
#include <stdlib.h>

#define BUCKETS 1024

struct client {
    uint64_t id;
    uint32_t n;
    LIST_ENTRY(client) link;
};

static struct client_list *bucket_of(struct clients *c, uint64_t id)
{
    return &c->buckets[(id ^ id >> 32) % BUCKETS];
}

static struct client *find(struct clients *c, uint64_t id)
{
    struct client *at;
    LIST_FOREACH(at, bucket_of(c, id), link)
        if (at->id == id)
            return at;
    return NULL;
}

static struct client *add(struct clients *c, uint64_t id)
{
    struct client *new = calloc(1, sizeof *new);
    if (!new)
        return NULL;
    new->id = id;
    LIST_INSERT_HEAD(bucket_of(c, id), new, link);
    c->n++;
    return new;
}

enum client_entry clients_enter(struct clients *c, uint64_t id, uint32_t limit)
{
    if (!c->buckets && !(c->buckets = calloc(BUCKETS, sizeof *c->buckets)))
        return CLIENT_UNCOUNTED;
    struct client *client = find(c, id);
    if (client && client->n >= limit)
        return CLIENT_REFUSED;
    if (!client && !(client = add(c, id)))
        return CLIENT_UNCOUNTED;
    client->n++;
    return CLIENT_COUNTED;
}

void clients_leave(struct clients *c, uint64_t id)
{
    struct client *client = c->buckets ? find(c, id) : NULL;
    if (!client || --client->n)
        return;
    assert(c->n > 0);
    LIST_REMOVE(client, link);
    free(client);
    c->n--;
}

void clients_free(struct clients *c)
{
    for (int i = 0; c->buckets && i < BUCKETS; i++)
        while (!LIST_EMPTY(&c->buckets[i])) {
            struct client *gone = LIST_FIRST(&c->buckets[i]);
            LIST_REMOVE(gone, link);
            free(gone);
        }
    free(c->buckets);
    *c = (struct clients){0};
}
