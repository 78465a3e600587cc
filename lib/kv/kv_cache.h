/* kv_cache.h - which page of keys and values belongs to whom. The bytes lie with the backend; here are page
 * numbers, counts and the prefix cache: what the host decides and the decoder follows by its page tables.
 *
 * A page holds KV_PAGE_TOKENS tokens of one sequence. A sequence reserves every page it may ever need when it
 * is added, and takes them one by one as it grows, so growing cannot fail. When a page is full and the host
 * has accepted all its tokens, it is published: later sequences that begin with the same tokens (and have the
 * same salt) share it instead of computing it. A page that nobody holds any more but that is published stays
 * cached; it counts as free and is evicted, least recently released first, when a page is wanted.
 *
 * The published pages form trees: a page's key is the 128-bit hash of (the parent page's key or the salt, its
 * 64 ids), and a hit is believed only after the ids and the parent have been compared. A hit covers at most
 * (n_prompt - 1) / 64 pages, so that the last prompt token is always computed.
 *
 * Sequences that continue one prompt in several ways are forks of the first of them: they share its full
 * pages, published or not, and begin with a copy of the partial one, which the decoder makes (a page op).
 *
 * Invariants (kv_cache_check):
 *   used + cached + free == total; used: held by a sequence; cached: published, held by none; free: the rest
 *   a page's holders are the sequences whose list names it or that have copied it
 *   a published page's parent is published, and held by everyone who holds the page: so a child is released
 *   before its parent, stands before it in the eviction list, and is evicted first
 *   pages that are reserved and not yet taken <= free + cached
 *   a page that is listed as worth keeping is published
 * Thread: engine only. Memory: all of it is taken in kv_cache_open(). */
#pragma once
#include "base/error.h"
#include "abi/kv_layout.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_cache;

struct kv_cache_config {
    uint32_t n_pages;
    uint32_t n_seqs;  /* sequences are numbered 0 .. n_seqs-1, like the slots */
    uint32_t n_ctx;   /* tokens a sequence may have */
    uint32_t max_hit; /* pages a hit may cover at most; 0: no bound of its own */
    bool keep;        /* there is a place to keep pages at: those worth it are listed, see kv_cache_keep() */
};

/* What identifies a page beyond this cache and this process: its key, from which its successors' follow. */
struct kv_key {
    uint64_t a, b;
};
struct kv_page_name {
    struct kv_key key, parent; /* parent: of the page before it, or of the salt */
    uint64_t salt;
    int32_t ids[KV_PAGE_TOKENS];
};
struct kv_key kv_key_of_salt(uint64_t salt);
struct kv_key kv_key_next(struct kv_key parent, const int32_t *ids); /* ids [KV_PAGE_TOKENS] */

struct kv_sequence {
    const int32_t *prompt;
    uint32_t n_prompt;
    uint32_t n_tokens; /* in all, prompt included: what is reserved; 1 .. n_ctx */
    uint64_t salt;
    bool reuse;   /* begin with pages of the prefix cache */
    bool publish; /* leave pages in it */
};

struct kv_cache_stats {
    uint32_t total, used, cached, free; /* pages */
    uint32_t reserved;                  /* of cached + free: promised, not yet taken */
};

int kv_cache_open(struct kv_cache **out, const struct kv_cache_config *cfg, struct error *err);
void kv_cache_close(struct kv_cache *kv); /* NULL is fine */

static inline uint32_t kv_pages_for(uint32_t n_tokens)
{
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

/* Pages of a prompt that may be another sequence's too: the last token is always computed. */
static inline uint32_t kv_shared_pages(uint32_t n_prompt)
{
    return (n_prompt - 1) / KV_PAGE_TOKENS;
}

/* Begins sequence `seq` (which must not exist): takes the pages of a prefix hit, reserves the rest. *n_cached
 * is the number of prompt tokens the hit covers, a multiple of 64. -ENOSPC: not enough pages now; nothing has
 * changed. */
int kv_cache_add(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s, uint32_t *n_cached);
/* Begins `seq` (which must not exist) as a fork to be: reserves what it needs beyond the (n_prompt - 1) / 64
 * pages it will share with a sequence of the same prompt. Nothing is taken before kv_cache_fork(). -ENOSPC as
 * above. */
int kv_cache_add_fork(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s);
/* Gives it those pages of `of`, which has taken pages for n_prompt - 1 tokens. True: the tokens behind them,
 * up to the last of the prompt, lie in page *from, to be copied into its page number (n_prompt - 1) / 64;
 * *from goes to nobody else until the fork ends. The first tokens it accepts are those behind the shared
 * pages. */
bool kv_cache_fork(struct kv_cache *kv, uint32_t seq, uint32_t of, uint32_t n_prompt, uint32_t *from);
/* Takes pages until the first n_tokens positions have one. n_tokens is within what was reserved. */
void kv_cache_grow(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens);
uint32_t kv_cache_page(const struct kv_cache *kv, uint32_t seq, uint32_t index);
/* The next n tokens of the sequence are computed and final; pages they fill are published. A sequence that
 * fills a page whose like has been published meanwhile by another keeps its own and publishes no more. */
void kv_cache_accept(struct kv_cache *kv, uint32_t seq, const int32_t *ids, uint32_t n);
/* Ends the sequence: nothing in flight may name its pages any more. */
void kv_cache_end(struct kv_cache *kv, uint32_t seq);
/* The key of the last published page the sequence has gone through, or of its salt. */
struct kv_key kv_cache_key(const struct kv_cache *kv, uint32_t seq);

/* A published page that is worth keeping somewhere else, and its name: first those that were hit, parents
 * before children; with `all` then those that nobody holds any more, of the latest sequence first. False:
 * none. It stays the next until kv_cache_kept() is called or it is evicted; its bytes are those of its name
 * until somebody takes the page. */
bool kv_cache_keep(const struct kv_cache *kv, bool all, uint32_t *page, struct kv_page_name *name);
/* Has been seen to; another hit lists it again. */
void kv_cache_kept(struct kv_cache *kv, uint32_t page);

void kv_cache_stats(const struct kv_cache *kv, struct kv_cache_stats *out);
/* Checks every invariant above the slow way: false when one does not hold. For tests.
 */
bool kv_cache_check(const struct kv_cache *kv);
