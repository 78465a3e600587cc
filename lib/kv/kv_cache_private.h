/* kv_cache_private.h - the fields of the KV cache, shared by kv_cache.c and kv_cache_check.c. Thread: engine
 * only. Memory: kv_cache_open() allocates all of it. */
#pragma once
#include "kv_cache.h"

#define NONE UINT32_MAX

struct page {
    struct kv_key key;
    uint64_t salt;
    uint32_t holders;    /* sequences whose list names it */
    uint32_t parent;     /* of a published page: the page before it, or NONE */
    uint32_t n_children; /* published pages whose parent it is */
    uint32_t chain;      /* next page of the same bucket, or NONE */
    uint32_t snapshot;   /* of a published page: of the state behind it, or NONE */
    uint32_t window;     /* of a published page: its window page, or NONE */
    uint32_t next, prev; /* eviction list (cached), or the free list (next only) */
    bool published;
    bool seen_to; /* it was kept once: only another hit lists it again */
    uint8_t keep; /* enum keep: its list */
    uint32_t keep_next, keep_prev;
    int32_t ids[KV_PAGE_TOKENS];
};

enum keep { KEEP_NOT, KEEP_HIT, KEEP_RELEASED, KEEP_LISTS };

struct ends { /* ends of a list of pages worth keeping */
    uint32_t first, last;
};

struct page_list { /* of one sequence */
    bool live, publish;
    uint64_t salt;
    struct kv_key key;   /* key of its last published page, or of the salt */
    uint32_t n_pages;    /* acquired */
    uint32_t n_reserved; /* still to be acquired */
    uint32_t n_accepted; /* tokens */
    uint32_t copied;     /* of a fork: the page that it copied, or NONE */
    bool forked;         /* it has accepted no tokens itself: `key` is not known yet */
    uint32_t snapshot;   /* with which it began, or NONE */
    uint32_t n_state;    /* tokens that it has seen */
    uint32_t *pages;     /* [max_pages] */

    /* Indices of the first window page that may be held, and of the first one that rows have yet to get. */
    uint32_t first_window, end_window;
    uint32_t *windows;      /* [max_pages], NONE where none is held; or NULL */
    uint32_t copied_window; /* as `copied` */
    uint32_t twin;          /* publishes no more: the published page equal to its last full one, or NONE */
    struct kv_key twin_key;
};

struct kv_cache {
    uint32_t n_total, n_seqs, max_pages, max_hit;
    uint32_t n_free, n_cached, n_reserved;
    uint32_t free;           /* head of the free list */
    uint32_t oldest, newest; /* ends of the eviction list */
    bool keep;
    struct snapshot_pool *snapshots;
    struct window_pool *windows; /* or NULL */
    uint32_t window;
    uint32_t *window_lists; /* [n_seqs * max_pages], the memory of sequence.windows */
    struct ends kept[KEEP_LISTS];
    uint32_t n_buckets; /* a power of two */
    uint64_t seed;      /* of the buckets */
    struct page *pages;
    struct page_list *seqs;
    uint32_t *buckets;
    uint32_t *lists; /* [n_seqs * max_pages], the memory of sequence.pages */
};

/* The published page with these ids after `parent`, or NONE. */
uint32_t kv_cache_find(const struct kv_cache *kv, struct kv_key k, uint32_t parent, uint64_t salt,
                       const int32_t *ids);
