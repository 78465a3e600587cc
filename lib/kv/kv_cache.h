/* kv_cache.h - assigns pages of keys and values to sequences.
 * The bytes lie with the backend. This module keeps page numbers, counts and the prefix cache; the decoder
 * follows them through its page tables.
 *
 * A page holds KV_PAGE_TOKENS tokens of one sequence. A sequence reserves every page it may ever need when it
 * is added, and acquires them one by one as it grows, so growing cannot fail. A page is published when it is
 * full and the host has accepted all its tokens: later sequences that begin with the same tokens (and have
 * the same salt) share it instead of computing it. A published page without holders stays cached. It counts
 * as free and is evicted, least recently released first, when a page is needed.
 *
 * The published pages form trees. A page's key is the 128-bit hash of (the parent page's key or the salt, its
 * 64 ids), and a hit counts only after the ids and the parent have been compared. A hit covers at most
 * (n_prompt - 1) / 64 pages, so that the last prompt token is always computed.
 *
 * Sequences that continue one prompt in several ways are forks of the first of them: they share its full
 * pages, published or not, and begin with a copy of the partial one, which the decoder makes (a page op).
 *
 * A model with recurrent layers goes on from a position only with the state behind it, which cannot be rolled
 * back. The backend has room for snapshots of states (snapshot_pool.h), and a published page may have one, of
 * the state behind its last token. Such a model's hit has two lengths: the pages that it shares, and the
 * tokens of the last of them with a snapshot, from which on rows are computed; their keys and values are
 * there.
 *
 * A model whose other layers see the last `window` tokens alone has window pages for these: each page that a
 * sequence acquires gets one (window_pool.h), and gives it back when the window of the sequence's next row no
 * longer covers it. A published page keeps its window page until another sequence needs it. A hit ends where
 * the window pages behind it are there. A sequence that computes a published page anew gives it the window
 * page that it has lost. There are enough window pages for all sequences, so that none is reserved.
 *
 * Invariants (kv_cache_check):
 * - used + cached + free == total; used: held by a sequence; cached: published without holders; free: all
 *   others
 * - a page's holders are the sequences whose list names it or that have copied it
 * - a published page's parent is published, and each holder of the page holds it too: so a child is released
 *   before its parent, stands before it in the eviction list, and is evicted first
 * - pages that are reserved and not yet acquired <= free + cached
 * - a page that is listed as worth keeping is published
 * - a page with a snapshot or a window page is published, and that names it
 * - a window page's holders are the sequences that list it or have copied it
 *
 * Thread: engine only. Memory: kv_cache_open() allocates all of it. Errors: -ENOSPC
 * where pages are short; wrong calls assert. */
#pragma once
#include "base/error.h"
#include "abi/kv_layout.h"
#include "snapshot_pool.h"
#include "window_pool.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_cache;

struct kv_cache_config {
    uint32_t n_pages;
    uint32_t n_seqs;      /* sequences are numbered 0 .. n_seqs-1, like the slots */
    uint32_t n_ctx;       /* tokens a sequence may have */
    uint32_t max_hit;     /* most pages of a hit; 0: no further limit */
    bool keep;            /* list the pages that are worth keeping elsewhere, see kv_cache_keep() */
    uint32_t n_snapshots; /* of recurrent states; 0: there are none */
    uint32_t n_windows;   /* window pages, kv_windows_of() for each sequence or more; 0: there are none */
    uint32_t window;      /* tokens that a row sees in them, its own included */
};

/* Identifies a page beyond this cache and this process. The keys of its successors follow from its key. */
struct kv_key {
    uint64_t a, b;
};
struct kv_page_name {
    struct kv_key key, parent; /* parent: key of the page before it, or of the salt */
    uint64_t salt;
    int32_t ids[KV_PAGE_TOKENS];
};
struct kv_key kv_key_of_salt(uint64_t salt);
struct kv_key kv_key_next(struct kv_key parent, const int32_t *ids); /* ids [KV_PAGE_TOKENS] */

struct kv_sequence {
    const int32_t *prompt;
    uint32_t n_prompt;
    uint32_t n_tokens; /* tokens to reserve, prompt included; 1 .. n_ctx */
    uint64_t salt;
    bool reuse;   /* share pages of the prefix cache */
    bool publish; /* publish pages to it */
};

struct kv_cache_stats {
    uint32_t total, used, cached, free; /* pages */
    uint32_t reserved;                  /* part of cached + free: reserved, not yet acquired */
    uint32_t snapshots;                 /* kept ones */
    uint32_t windows_used,
        windows_cached; /* window pages held by a sequence; those of pages without holders */
};

int kv_cache_open(struct kv_cache **out, const struct kv_cache_config *cfg, struct error *err);
void kv_cache_close(struct kv_cache *kv); /* NULL is fine */

static inline uint32_t kv_pages_for(uint32_t n_tokens)
{
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

/* The number of pages of a prompt that sequences may share: the last token is always computed. */
static inline uint32_t kv_shared_pages(uint32_t n_prompt)
{
    return (n_prompt - 1) / KV_PAGE_TOKENS;
}

/* Begins sequence `seq`, which must not exist: acquires the pages of a prefix hit and reserves the rest.
 * *n_cached is the number of prompt tokens that the hit covers, a multiple of 64. -ENOSPC: not enough pages
 * now; nothing has changed. */
int kv_cache_add(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s, uint32_t *n_cached);
/* The snapshot with which the sequence begins, or SNAPSHOT_NONE, and *n_tokens that it has seen: a multiple
 * of 64, up to *n_cached; 0 without one. It is held by the sequence until kv_cache_end(). */
uint32_t kv_cache_snapshot(const struct kv_cache *kv, uint32_t seq, uint32_t *n_tokens);
/* Begins it anew with the last snapshot that its published pages have by now; its own pages stay. Returns the
 * same. */
uint32_t kv_cache_begin_again(struct kv_cache *kv, uint32_t seq, uint32_t *n_tokens);
/* Begins `seq`, which must not exist, as a future fork: reserves the pages that it needs beyond the (n_prompt
 * - 1) / 64 pages that it will share with a sequence of the same prompt. It acquires no page before
 * kv_cache_fork(). -ENOSPC as above. */
int kv_cache_add_fork(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s);
/* Makes `seq` share those pages of `of`, which has acquired pages for n_prompt - 1 tokens. Returns true if
 * the tokens behind them, up to the last of the prompt, lie in page *from and window page
 * kv_cache_copied_window() (or WINDOW_NONE): the caller copies them into those of index (n_prompt - 1) / 64
 * of `seq`. They are not reused before the fork ends. The first tokens that the fork accepts are those behind
 * the shared pages. */
bool kv_cache_fork(struct kv_cache *kv, uint32_t seq, uint32_t of, uint32_t n_prompt, uint32_t *from);
uint32_t kv_cache_copied_window(const struct kv_cache *kv, uint32_t seq);
/* Acquires pages until the first n_tokens positions have one. n_tokens must not exceed the reservation. */
void kv_cache_grow(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens);
uint32_t kv_cache_page(const struct kv_cache *kv, uint32_t seq, uint32_t index);
/* Its window page, or WINDOW_NONE: there are none, or the sequence no longer sees it. */
uint32_t kv_cache_window(const struct kv_cache *kv, uint32_t seq, uint32_t index);
/* The index of the first page whose window page the row behind n_tokens sees. */
uint32_t kv_cache_first_window(const struct kv_cache *kv, uint32_t n_tokens);
/* The number of window pages that the sequence holds. */
uint32_t kv_cache_n_windows(const struct kv_cache *kv, uint32_t seq);
/* Acquires pages up to `index`, to import its bytes, and its window page if `window`. The sequence then
 * accepts all imported tokens together; or kv_cache_import_failed() gives the window pages back, and it
 * computes the tokens. */
void kv_cache_grow_import(struct kv_cache *kv, uint32_t seq, uint32_t index, bool window);
void kv_cache_import_failed(struct kv_cache *kv, uint32_t seq);
/* Notes that the next n tokens of the sequence are computed and final; publishes the pages that they fill. If
 * another sequence has published an equal page meanwhile, this one keeps its own and publishes no more. */
void kv_cache_accept(struct kv_cache *kv, uint32_t seq, const int32_t *ids, uint32_t n);
/* Takes a snapshot to write a state into; SNAPSHOT_NONE where all are in use. It is then kept or dropped. */
uint32_t kv_cache_take_snapshot(struct kv_cache *kv);
/* Keeps it as the state behind the first n_tokens of the sequence, a multiple of 64, all accepted; false, and
 * it is dropped, if their last page is not published or has one. */
bool kv_cache_keep_snapshot(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens, uint32_t snapshot);
void kv_cache_drop_snapshot(struct kv_cache *kv, uint32_t snapshot);
/* The name of the page that a kept snapshot belongs to, without its ids and parent; false if it is not kept.
 */
bool kv_cache_snapshot_name(const struct kv_cache *kv, uint32_t snapshot, struct kv_page_name *name);
/* Holds a kept snapshot while its bytes are read elsewhere. */
void kv_cache_hold_snapshot(struct kv_cache *kv, uint32_t snapshot);
void kv_cache_release_snapshot(struct kv_cache *kv, uint32_t snapshot);
/* Drops the one that the sequence's page has behind n_tokens, if no sequence has ever begun with it. */
void kv_cache_forget_snapshot(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens);
/* Ends the sequence. No step in flight may name its pages any more. */
void kv_cache_end(struct kv_cache *kv, uint32_t seq);
/* The key of the sequence's last published or shared page, or of its salt. */
struct kv_key kv_cache_key(const struct kv_cache *kv, uint32_t seq);

/* Finds the next published page that is worth keeping elsewhere, and its name: first pages that were hit,
 * parents before children; with `all` then pages without holders, those of the latest sequence first. False:
 * there is none. It stays the next until kv_cache_kept() is called or it is evicted; its bytes match its name
 * until the page is acquired again. */
bool kv_cache_keep(const struct kv_cache *kv, bool all, uint32_t *page, struct kv_page_name *name);
/* The window page of a published page, or WINDOW_NONE. */
uint32_t kv_cache_window_of(const struct kv_cache *kv, uint32_t page);
/* Marks the page as kept; another hit lists it again. */
void kv_cache_kept(struct kv_cache *kv, uint32_t page);

void kv_cache_stats(const struct kv_cache *kv, struct kv_cache_stats *out);
/* Checks every invariant above; false if one does not hold. Slow, for tests. */
bool kv_cache_check(const struct kv_cache *kv);
