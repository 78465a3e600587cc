/* prefix_index.h - which pages lie in the directory of a prefix cache, and in which order they go: a hash
 * table and a list, the least recently used first. No file is touched here. Thread: one at a time. Memory:
 * grows as pages are added; nothing but prefix_index_put() takes any. */
#pragma once
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_INDEX_NONE UINT32_MAX

struct prefix_entry {
    uint64_t place;
    struct kv_key key;
    uint64_t size;     /* of the file */
    uint64_t stamp_ns; /* CLOCK_REALTIME, the file's time of change as it is or shall be */
    bool stale;        /* the file's time of change is another: in the list of prefix_index_stale() */
    /* Private. */
    bool used;
    uint32_t chain, older, newer, next_stale;
};

struct prefix_index {
    uint64_t bytes;
    uint32_t n;
    /* Private. */
    struct prefix_entry *entries;
    uint32_t n_entries, room, free;
    uint32_t *buckets;
    uint32_t n_buckets; /* a power of two */
    uint32_t oldest, newest, stale;
    uint64_t last_ns; /* stamps grow */
};

void prefix_index_open(struct prefix_index *x); /* takes nothing */
void prefix_index_close(struct prefix_index *x);

/* The entry, or NULL; valid until the next put. */
const struct prefix_entry *prefix_index_find(const struct prefix_index *x, uint64_t place, struct kv_key key);
/* Adds a page or replaces it, placed as if used now; `stamp_ns` is its file's. -ENOMEM: nothing has changed.
 */
int prefix_index_put(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                     uint64_t size, uint64_t stamp_ns);
void prefix_index_remove(struct prefix_index *x, uint64_t place, struct kv_key key);
/* It is used now: the newest, or next to its parent, if that is there, as the one that goes just before it.
 * Returns its new stamp; 0: there is none. */
uint64_t prefix_index_touch(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                            uint64_t now_ns);
/* The stamp a page used now would get. */
uint64_t prefix_index_stamp(struct prefix_index *x, uint64_t place, struct kv_key parent, uint64_t now_ns);
const struct prefix_entry *prefix_index_oldest(const struct prefix_index *x); /* or NULL */
/* An entry whose file has yet to learn its stamp, which it is supposed to have from now on; or NULL. */
const struct prefix_entry *prefix_index_stale(struct prefix_index *x);
