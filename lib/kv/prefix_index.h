/* prefix_index.h - the index of a prefix cache's directory: a hash table of its pages and a list in order of
 * use, least recent first.
 * It accesses no file.
 * Thread: one at a time (under the lock of prefix_disk). Memory: only prefix_index_put() allocates; the
 * tables grow with the pages. */
#pragma once
#include "kv_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFIX_INDEX_NONE UINT32_MAX

struct prefix_entry {
    uint64_t place;
    struct kv_key key;
    uint64_t size;     /* bytes of the file */
    uint64_t stamp_ns; /* CLOCK_REALTIME, the modification time that the file has or will get */
    bool stale;        /* the file has another modification time: listed for prefix_index_stale() */
    /* Private. */
    bool used;
    uint32_t chain, older, newer, next_stale;
};

struct prefix_index {
    uint64_t bytes;
    uint32_t n;
    /* Private. */
    uint64_t seed; /* of the buckets: other processes write names too */
    struct prefix_entry *entries;
    uint32_t n_entries, room, free;
    uint32_t *buckets;
    uint32_t n_buckets; /* a power of two */
    uint32_t oldest, newest, stale;
    uint64_t last_ns; /* latest stamp; stamps only grow */
};

void prefix_index_open(struct prefix_index *x); /* allocates nothing */
void prefix_index_close(struct prefix_index *x);

/* The entry, or NULL; valid until the next put. */
const struct prefix_entry *prefix_index_find(const struct prefix_index *x, uint64_t place, struct kv_key key);
/* Adds or replaces a page, in the order as if used now; `stamp_ns` is its file's. -ENOMEM: nothing has
 * changed. */
int prefix_index_put(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                     uint64_t size, uint64_t stamp_ns);
void prefix_index_remove(struct prefix_index *x, uint64_t place, struct kv_key key);
/* Marks the page as used now: it becomes the newest or, if its parent is present, the one just older than the
 * parent. Returns its new stamp; 0: there is no such page. */
uint64_t prefix_index_touch(struct prefix_index *x, uint64_t place, struct kv_key key, struct kv_key parent,
                            uint64_t now_ns);
/* The stamp that a page used now would get. */
uint64_t prefix_index_stamp(struct prefix_index *x, uint64_t place, struct kv_key parent, uint64_t now_ns);
const struct prefix_entry *prefix_index_oldest(const struct prefix_index *x); /* the next to evict, or NULL */
/* Takes an entry off the stale list, or returns NULL. The caller writes its stamp to the file. */
const struct prefix_entry *prefix_index_stale(struct prefix_index *x);
