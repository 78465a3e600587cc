#include "prefix_index.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define NONE PREFIX_INDEX_NONE

void prefix_index_open(struct prefix_index *x)
{
    *x = (struct prefix_index){
        .free = NONE, .oldest = NONE, .newest = NONE, .stale = NONE, .seed = hash_seed()};
}

void prefix_index_close(struct prefix_index *x)
{
    free(x->entries);
    free(x->buckets);
    prefix_index_open(x);
}

/* ---- the table ---- */

static uint32_t *bucket_of(const struct prefix_index *x, uint64_t place, struct kv_key key)
{
    return &x->buckets[hash_word(place ^ x->seed, key.a) & (x->n_buckets - 1)];
}

static uint32_t find(const struct prefix_index *x, uint64_t place, struct kv_key key)
{
    if (x->n_buckets == 0)
        return NONE;
    uint32_t i = *bucket_of(x, place, key);
    for (; i != NONE; i = x->entries[i].chain) {
        const struct prefix_entry *e = &x->entries[i];
        if (e->key.a == key.a && e->key.b == key.b && e->place == place)
            break;
    }
    return i;
}

const struct prefix_entry *prefix_index_find(const struct prefix_index *x, uint64_t place, struct kv_key key)
{
    uint32_t i = find(x, place, key);
    return i == NONE ? NULL : &x->entries[i];
}

static void link_bucket(struct prefix_index *x, uint32_t i)
{
    struct prefix_entry *e = &x->entries[i];
    uint32_t *bucket = bucket_of(x, e->place, e->key);
    e->chain = *bucket;
    *bucket = i;
}

static int make_room(struct prefix_index *x)
{
    if (x->free != NONE || x->n_entries < x->room)
        return 0;
    uint32_t room = x->room ? x->room * 2 : 256;
    if (room > 1u << 28)
        return -ENOMEM;
    uint32_t *buckets = malloc(room * sizeof *buckets);
    struct prefix_entry *entries = buckets ? realloc(x->entries, room * sizeof *entries) : NULL;
    if (!entries) {
        free(buckets);
        return -ENOMEM;
    }
    free(x->buckets);
    x->entries = entries;
    x->buckets = buckets;
    x->room = x->n_buckets = room;
    for (uint32_t i = 0; i < room; i++)
        buckets[i] = NONE;
    for (uint32_t i = 0; i < x->n_entries; i++)
        if (entries[i].used)
            link_bucket(x, i);
    return 0;
}

/* ---- the order of use ---- */

/* Inserts the entry just older than `next`, or as the newest. */
static void insert(struct prefix_index *x, uint32_t i, uint32_t next)
{
    assert(next != i);
    struct prefix_entry *e = &x->entries[i];
    e->newer = next;
    e->older = next == NONE ? x->newest : x->entries[next].older;
    *(e->older == NONE ? &x->oldest : &x->entries[e->older].newer) = i;
    *(next == NONE ? &x->newest : &x->entries[next].older) = i;
}

static void take_out(struct prefix_index *x, uint32_t i)
{
    const struct prefix_entry *e = &x->entries[i];
    *(e->older == NONE ? &x->oldest : &x->entries[e->older].newer) = e->newer;
    *(e->newer == NONE ? &x->newest : &x->entries[e->newer].older) = e->older;
}

static uint64_t stamp_of(struct prefix_index *x, uint32_t parent, uint64_t now_ns)
{
    if (parent != NONE)
        return x->entries[parent].stamp_ns - 1;
    x->last_ns = now_ns > x->last_ns ? now_ns : x->last_ns + 1;
    return x->last_ns;
}

uint64_t prefix_index_stamp(struct prefix_index *x, uint64_t place, struct kv_key parent, uint64_t now_ns)
{
    return stamp_of(x, find(x, place, parent), now_ns);
}

uint64_t prefix_index_touch(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                            uint64_t now_ns)
{
    uint32_t i = find(x, place, key), next = find(x, place, parent);
    if (i == NONE)
        return 0;
    struct prefix_entry *e = &x->entries[i];
    e->stamp_ns = stamp_of(x, next, now_ns);
    take_out(x, i);
    insert(x, i, next);
    if (!e->stale) {
        e->stale = true;
        e->next_stale = x->stale;
        x->stale = i;
    }
    return e->stamp_ns;
}

const struct prefix_entry *prefix_index_oldest(const struct prefix_index *x)
{
    return x->oldest == NONE ? NULL : &x->entries[x->oldest];
}

const struct prefix_entry *prefix_index_stale(struct prefix_index *x)
{
    if (x->stale == NONE)
        return NULL;
    struct prefix_entry *e = &x->entries[x->stale];
    x->stale = e->next_stale;
    e->stale = false;
    return e;
}

/* ---- adding and removing ---- */

int prefix_index_put(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                     uint64_t size, uint64_t stamp_ns)
{
    int rc = make_room(x);
    if (rc < 0)
        return rc;
    prefix_index_remove(x, place, key);
    uint32_t i = x->free;
    if (i != NONE)
        x->free = x->entries[i].chain;
    else
        i = x->n_entries++;
    x->entries[i] =
        (struct prefix_entry){.place = place, .key = key, .size = size, .stamp_ns = stamp_ns, .used = true};
    insert(x, i, find(x, place, parent));
    link_bucket(x, i);
    x->n++;
    x->bytes += size;
    return 0;
}

static void forget_stale(struct prefix_index *x, uint32_t i)
{
    uint32_t *link = &x->stale;
    while (*link != i)
        link = &x->entries[*link].next_stale;
    *link = x->entries[i].next_stale;
}

void prefix_index_remove(struct prefix_index *x, uint64_t place, struct kv_key key)
{
    uint32_t i = find(x, place, key);
    if (i == NONE)
        return;
    struct prefix_entry *e = &x->entries[i];
    uint32_t *link = bucket_of(x, place, key);
    while (*link != i)
        link = &x->entries[*link].chain;
    *link = e->chain;
    if (e->stale)
        forget_stale(x, i);
    take_out(x, i);
    assert(x->n > 0 && x->bytes >= e->size);
    x->n--;
    x->bytes -= e->size;
    e->used = false;
    e->chain = x->free;
    x->free = i;
}
