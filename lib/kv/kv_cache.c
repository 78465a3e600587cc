#include "kv_cache.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct page {
    struct kv_key key;
    uint64_t salt;
    uint32_t holders;    /* sequences whose list names it */
    uint32_t parent;     /* of a published page: the page before it, or NONE */
    uint32_t n_children; /* published pages whose parent it is */
    uint32_t chain;      /* next page of the same bucket, or NONE */
    uint32_t snapshot;   /* of a published page: of the state behind it, or NONE */
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
};

struct kv_cache {
    uint32_t n_total, n_seqs, max_pages, max_hit;
    uint32_t n_free, n_cached, n_reserved;
    uint32_t free;           /* head of the free list */
    uint32_t oldest, newest; /* ends of the eviction list */
    bool keep;
    struct snapshot_pool *snapshots;
    struct ends kept[KEEP_LISTS];
    uint32_t n_buckets; /* a power of two */
    uint64_t seed;      /* of the buckets */
    struct page *pages;
    struct page_list *seqs;
    uint32_t *buckets;
    uint32_t *lists; /* [n_seqs * max_pages], the memory of sequence.pages */
};

/* ---- open and close ---- */

static void put_free(struct kv_cache *kv, uint32_t page)
{
    kv->pages[page].next = kv->free;
    kv->free = page;
    kv->n_free++;
}

static int take_memory(struct kv_cache *kv, uint32_t n_snapshots)
{
    kv->n_buckets = 16;
    while (kv->n_buckets < 2 * kv->n_total && kv->n_buckets < 1u << 30)
        kv->n_buckets *= 2;
    kv->pages = calloc(kv->n_total, sizeof *kv->pages);
    kv->seqs = calloc(kv->n_seqs, sizeof *kv->seqs);
    kv->buckets = malloc(kv->n_buckets * sizeof *kv->buckets);
    kv->lists = calloc((size_t)kv->n_seqs * kv->max_pages, sizeof *kv->lists);
    kv->snapshots = snapshot_pool_open(n_snapshots);
    return kv->pages && kv->seqs && kv->buckets && kv->lists && kv->snapshots ? 0 : -ENOMEM;
}

int kv_cache_open(struct kv_cache **out, const struct kv_cache_config *cfg, struct error *err)
{
    if (cfg->n_pages == 0 || cfg->n_seqs == 0 || cfg->n_ctx == 0)
        return error_set(err, -EINVAL, "KV cache: %u pages, %u sequences of %u tokens: none may be 0",
                         cfg->n_pages, cfg->n_seqs, cfg->n_ctx);
    struct kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv)
        return error_set(err, -ENOMEM, "no memory for the page tables");
    kv->n_total = cfg->n_pages;
    kv->n_seqs = cfg->n_seqs;
    kv->max_pages = kv_pages_for(cfg->n_ctx);
    kv->max_hit = cfg->max_hit ? cfg->max_hit : kv->max_pages;
    kv->free = kv->oldest = kv->newest = NONE;
    kv->keep = cfg->keep;
    kv->seed = hash_seed();
    for (int i = 0; i < KEEP_LISTS; i++)
        kv->kept[i] = (struct ends){NONE, NONE};
    if (take_memory(kv, cfg->n_snapshots) < 0) {
        kv_cache_close(kv);
        return error_set(err, -ENOMEM, "no memory for the tables of %u KV pages", cfg->n_pages);
    }
    for (uint32_t i = 0; i < kv->n_buckets; i++)
        kv->buckets[i] = NONE;
    for (uint32_t i = kv->n_total; i-- > 0;)
        put_free(kv, i);
    for (uint32_t i = 0; i < kv->n_seqs; i++)
        kv->seqs[i].pages = kv->lists + (size_t)i * kv->max_pages;
    *out = kv;
    return 0;
}

void kv_cache_close(struct kv_cache *kv)
{
    if (!kv)
        return;
    snapshot_pool_close(kv->snapshots);
    free(kv->pages);
    free(kv->seqs);
    free(kv->buckets);
    free(kv->lists);
    free(kv);
}

/* ---- keys ---- */

/* Two hashes by different seeds. A hit is compared in full, so they need not withstand an attacker. */
struct kv_key kv_key_next(struct kv_key parent, const int32_t *ids)
{
    const size_t n = KV_PAGE_TOKENS * sizeof *ids;
    return (struct kv_key){hash_bytes(parent.a, ids, n), hash_bytes(parent.b, ids, n)};
}

struct kv_key kv_key_of_salt(uint64_t salt)
{
    return (struct kv_key){hash_word(1, salt), hash_word(2, salt)};
}

/* Keys are the same after a restart, as files are named by them; buckets are not, as clients choose the ids.
 */
static uint32_t *bucket_of(const struct kv_cache *kv, struct kv_key k)
{
    return &kv->buckets[hash_word(kv->seed, k.a) & (kv->n_buckets - 1)];
}

/* The published page with these ids after `parent`, or NONE. */
static uint32_t find(const struct kv_cache *kv, struct kv_key k, uint32_t parent, uint64_t salt,
                     const int32_t *ids)
{
    for (uint32_t p = *bucket_of(kv, k); p != NONE; p = kv->pages[p].chain) {
        const struct page *page = &kv->pages[p];
        if (page->key.a == k.a && page->key.b == k.b && page->parent == parent && page->salt == salt &&
            memcmp(page->ids, ids, sizeof page->ids) == 0)
            return p;
    }
    return NONE;
}

/* ---- the eviction list: cached pages, oldest first ---- */

static void list_append(struct kv_cache *kv, uint32_t page)
{
    kv->pages[page].next = NONE;
    kv->pages[page].prev = kv->newest;
    if (kv->newest != NONE)
        kv->pages[kv->newest].next = page;
    else
        kv->oldest = page;
    kv->newest = page;
    kv->n_cached++;
}

static void list_remove(struct kv_cache *kv, uint32_t page)
{
    const struct page *p = &kv->pages[page];
    if (p->prev != NONE)
        kv->pages[p->prev].next = p->next;
    else
        kv->oldest = p->next;
    if (p->next != NONE)
        kv->pages[p->next].prev = p->prev;
    else
        kv->newest = p->prev;
    kv->n_cached--;
}

/* ---- the lists of pages worth keeping ---- */

static void keep_remove(struct kv_cache *kv, uint32_t page)
{
    struct page *p = &kv->pages[page];
    if (p->keep == KEEP_NOT)
        return;
    struct ends *list = &kv->kept[p->keep];
    *(p->keep_prev != NONE ? &kv->pages[p->keep_prev].keep_next : &list->first) = p->keep_next;
    *(p->keep_next != NONE ? &kv->pages[p->keep_next].keep_prev : &list->last) = p->keep_prev;
    p->keep = KEEP_NOT;
}

/* Adds hit pages at the end: a hit lists parents first. Adds released pages at the front: children are
 * released before their parents, so parents come first. */
static void keep_add(struct kv_cache *kv, uint32_t page, enum keep which)
{
    struct page *p = &kv->pages[page];
    struct ends *list = &kv->kept[which];
    bool last = which == KEEP_HIT;
    if (!kv->keep || p->keep == KEEP_HIT || p->keep == which)
        return;
    keep_remove(kv, page);
    p->keep = which;
    p->keep_prev = last ? list->last : NONE;
    p->keep_next = last ? NONE : list->first;
    *(p->keep_prev != NONE ? &kv->pages[p->keep_prev].keep_next : &list->first) = page;
    *(p->keep_next != NONE ? &kv->pages[p->keep_next].keep_prev : &list->last) = page;
}

bool kv_cache_keep(const struct kv_cache *kv, bool all, uint32_t *page, struct kv_page_name *name)
{
    uint32_t i = kv->kept[KEEP_HIT].first;
    if (i == NONE && all)
        i = kv->kept[KEEP_RELEASED].first;
    if (i == NONE)
        return false;
    const struct page *p = &kv->pages[i];
    *page = i;
    *name = (struct kv_page_name){.key = p->key, .salt = p->salt};
    name->parent = p->parent != NONE ? kv->pages[p->parent].key : kv_key_of_salt(p->salt);
    memcpy(name->ids, p->ids, sizeof p->ids);
    return true;
}

void kv_cache_kept(struct kv_cache *kv, uint32_t page)
{
    keep_remove(kv, page);
    kv->pages[page].seen_to = true;
}

static void unpublish(struct kv_cache *kv, uint32_t page)
{
    struct page *p = &kv->pages[page];
    keep_remove(kv, page);
    if (p->snapshot != NONE)
        snapshot_free(kv->snapshots, p->snapshot);
    p->snapshot = NONE;
    uint32_t *link = bucket_of(kv, p->key);
    while (*link != page)
        link = &kv->pages[*link].chain;
    *link = p->chain;
    if (p->parent != NONE)
        kv->pages[p->parent].n_children--;
    p->published = false;
}

/* Acquires a page to write into: a free one, else the least recently used cached one. */
static uint32_t take(struct kv_cache *kv)
{
    uint32_t page = kv->free;
    if (page != NONE) {
        kv->free = kv->pages[page].next;
        kv->n_free--;
    } else {
        page = kv->oldest;
        assert(page != NONE);                    /* reserved <= free + cached */
        assert(kv->pages[page].n_children == 0); /* children stand before their parent */
        list_remove(kv, page);
        unpublish(kv, page);
    }
    kv->pages[page].holders = 1;
    kv->pages[page].parent = NONE;
    return page;
}

/* ---- sequences ---- */

/* Finds the published pages that hold a prefix of the prompt. Returns their number, the pages in `hit`, and
 * the key of the last. */
static uint32_t match(const struct kv_cache *kv, const struct kv_sequence *s, uint32_t *hit,
                      struct kv_key *key)
{
    uint32_t max = s->reuse ? kv_shared_pages(s->n_prompt) : 0, n = 0;
    max = max < kv->max_hit ? max : kv->max_hit;
    *key = kv_key_of_salt(s->salt);
    for (; n < max; n++) {
        const int32_t *ids = s->prompt + (size_t)n * KV_PAGE_TOKENS;
        struct kv_key next = kv_key_next(*key, ids);
        uint32_t page = find(kv, next, n ? hit[n - 1] : NONE, s->salt, ids);
        if (page == NONE)
            break;
        hit[n] = page;
        *key = next;
    }
    return n;
}

static void begin(struct page_list *q, const struct kv_sequence *s, uint32_t n_reserved)
{
    *q = (struct page_list){.live = true,
                            .publish = s->publish,
                            .salt = s->salt,
                            .key = kv_key_of_salt(s->salt),
                            .n_reserved = n_reserved,
                            .copied = NONE,
                            .snapshot = NONE,
                            .pages = q->pages};
}

/* Holds the snapshot of the last of the sequence's pages that has one. */
static void begin_with_snapshot(struct kv_cache *kv, struct page_list *q)
{
    uint32_t n = q->n_pages;
    while (n > 0 && kv->pages[q->pages[n - 1]].snapshot == NONE)
        n--;
    if (n == 0)
        return;
    q->snapshot = kv->pages[q->pages[n - 1]].snapshot;
    q->n_state = n * KV_PAGE_TOKENS;
    snapshot_hold(kv->snapshots, q->snapshot);
}

int kv_cache_add(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s, uint32_t *n_cached)
{
    assert(seq < kv->n_seqs && !kv->seqs[seq].live);
    assert(s->n_prompt > 0 && s->n_prompt <= s->n_tokens && kv_pages_for(s->n_tokens) <= kv->max_pages);
    struct page_list *q = &kv->seqs[seq];
    struct kv_key key;
    uint32_t n_hit = match(kv, s, q->pages, &key), n_idle = 0;
    for (uint32_t i = 0; i < n_hit; i++)
        n_idle += kv->pages[q->pages[i]].holders == 0;
    uint32_t wanted = kv_pages_for(s->n_tokens) - n_hit;
    if ((uint64_t)wanted + n_idle + kv->n_reserved > (uint64_t)kv->n_free + kv->n_cached)
        return -ENOSPC;
    for (uint32_t i = 0; i < n_hit; i++) {
        if (kv->pages[q->pages[i]].holders++ == 0)
            list_remove(kv, q->pages[i]);
        keep_add(kv, q->pages[i], KEEP_HIT);
    }
    kv->n_reserved += wanted;
    *n_cached = n_hit * KV_PAGE_TOKENS;
    begin(q, s, wanted);
    q->key = key;
    q->n_pages = n_hit;
    q->n_accepted = *n_cached;
    begin_with_snapshot(kv, q);
    return 0;
}

uint32_t kv_cache_snapshot(const struct kv_cache *kv, uint32_t seq, uint32_t *n_tokens)
{
    const struct page_list *q = &kv->seqs[seq];
    assert(q->live);
    *n_tokens = q->n_state;
    return q->snapshot;
}

uint32_t kv_cache_begin_again(struct kv_cache *kv, uint32_t seq, uint32_t *n_tokens)
{
    struct page_list *q = &kv->seqs[seq];
    if (q->snapshot != NONE)
        snapshot_release(kv->snapshots, q->snapshot);
    q->snapshot = NONE;
    q->n_state = 0;
    begin_with_snapshot(kv, q);
    return kv_cache_snapshot(kv, seq, n_tokens);
}

int kv_cache_add_fork(struct kv_cache *kv, uint32_t seq, const struct kv_sequence *s)
{
    assert(seq < kv->n_seqs && !kv->seqs[seq].live);
    assert(s->n_prompt > 0 && s->n_prompt <= s->n_tokens && kv_pages_for(s->n_tokens) <= kv->max_pages);
    uint32_t wanted = kv_pages_for(s->n_tokens) - kv_shared_pages(s->n_prompt);
    if ((uint64_t)wanted + kv->n_reserved > (uint64_t)kv->n_free + kv->n_cached)
        return -ENOSPC;
    kv->n_reserved += wanted;
    begin(&kv->seqs[seq], s, wanted);
    return 0;
}

bool kv_cache_fork(struct kv_cache *kv, uint32_t seq, uint32_t of, uint32_t n_prompt, uint32_t *from)
{
    struct page_list *q = &kv->seqs[seq];
    const struct page_list *first = &kv->seqs[of];
    uint32_t n_shared = kv_shared_pages(n_prompt);
    bool partial = (n_prompt - 1) % KV_PAGE_TOKENS != 0;
    assert(q->live && first->live && q->n_pages == 0 && first->n_pages >= n_shared + partial);
    for (; q->n_pages < n_shared; q->n_pages++) {
        q->pages[q->n_pages] = first->pages[q->n_pages];
        kv->pages[q->pages[q->n_pages]].holders++;
    }
    q->n_accepted = n_shared * KV_PAGE_TOKENS;
    q->forked = true;
    q->snapshot = first->snapshot;
    q->n_state = first->n_state;
    if (q->snapshot != NONE)
        snapshot_hold(kv->snapshots, q->snapshot);
    if (!partial)
        return false;
    q->copied = *from = first->pages[n_shared];
    kv->pages[q->copied].holders++;
    return true;
}

void kv_cache_grow(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens)
{
    struct page_list *q = &kv->seqs[seq];
    assert(q->live);
    while (q->n_pages < kv_pages_for(n_tokens)) {
        assert(q->n_reserved > 0);
        q->pages[q->n_pages++] = take(kv);
        q->n_reserved--;
        kv->n_reserved--;
    }
}

uint32_t kv_cache_page(const struct kv_cache *kv, uint32_t seq, uint32_t index)
{
    assert(index < kv->seqs[seq].n_pages);
    return kv->seqs[seq].pages[index];
}

/* Publishes page `index` of the sequence, which is full; all pages before it are published or shared. */
static void publish(struct kv_cache *kv, struct page_list *q, uint32_t index)
{
    uint32_t page = q->pages[index], parent = index ? q->pages[index - 1] : NONE;
    struct page *p = &kv->pages[page];
    struct kv_key key = kv_key_next(q->key, p->ids);
    if (find(kv, key, parent, q->salt, p->ids) != NONE) {
        /* A successor's parent would be a page that this sequence does not hold. */
        q->publish = false;
        return;
    }
    p->key = q->key = key;
    p->salt = q->salt;
    p->parent = parent;
    p->n_children = 0;
    p->published = true;
    p->seen_to = false;
    p->snapshot = NONE;
    if (parent != NONE)
        kv->pages[parent].n_children++;
    uint32_t *bucket = bucket_of(kv, key);
    p->chain = *bucket;
    *bucket = page;
}

/* Sets `key` and `publish` of a fork: by now the first sequence has published the shared pages, or never
 * will. */
static void know_parents(const struct kv_cache *kv, struct page_list *q)
{
    q->forked = false;
    if (q->n_accepted == 0)
        return;
    const struct page *parent = &kv->pages[q->pages[q->n_accepted / KV_PAGE_TOKENS - 1]];
    q->publish = q->publish && parent->published;
    q->key = parent->key;
}

void kv_cache_accept(struct kv_cache *kv, uint32_t seq, const int32_t *ids, uint32_t n)
{
    struct page_list *q = &kv->seqs[seq];
    assert(q->live && q->n_accepted + n <= q->n_pages * KV_PAGE_TOKENS);
    if (q->forked)
        know_parents(kv, q);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t index = q->n_accepted / KV_PAGE_TOKENS, at = q->n_accepted % KV_PAGE_TOKENS;
        kv->pages[q->pages[index]].ids[at] = ids[i];
        q->n_accepted++;
        if (at == KV_PAGE_TOKENS - 1 && q->publish)
            publish(kv, q, index);
    }
}

uint32_t kv_cache_take_snapshot(struct kv_cache *kv)
{
    uint32_t page, i = snapshot_take(kv->snapshots, &page);
    if (page != NONE)
        kv->pages[page].snapshot = NONE;
    return i;
}

/* The page behind n_tokens of the sequence if it is published, else NULL. */
static struct page *published_behind(struct kv_cache *kv, const struct page_list *q, uint32_t n_tokens)
{
    uint32_t n = n_tokens / KV_PAGE_TOKENS;
    assert(q->live && n > 0 && n_tokens % KV_PAGE_TOKENS == 0);
    struct page *p = n <= q->n_pages ? &kv->pages[q->pages[n - 1]] : NULL;
    return p && p->published ? p : NULL;
}

bool kv_cache_keep_snapshot(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens, uint32_t snapshot)
{
    const struct page_list *q = &kv->seqs[seq];
    struct page *p = n_tokens <= q->n_accepted ? published_behind(kv, q, n_tokens) : NULL;
    if (!p || p->snapshot != NONE) {
        snapshot_free(kv->snapshots, snapshot);
        return false;
    }
    p->snapshot = snapshot;
    snapshot_keep(kv->snapshots, snapshot, (uint32_t)(p - kv->pages));
    return true;
}

void kv_cache_drop_snapshot(struct kv_cache *kv, uint32_t snapshot)
{
    snapshot_free(kv->snapshots, snapshot);
}

bool kv_cache_snapshot_name(const struct kv_cache *kv, uint32_t snapshot, struct kv_page_name *name)
{
    uint32_t page = snapshot_page(kv->snapshots, snapshot);
    if (page == NONE)
        return false;
    *name = (struct kv_page_name){.key = kv->pages[page].key, .salt = kv->pages[page].salt};
    return true;
}

void kv_cache_hold_snapshot(struct kv_cache *kv, uint32_t snapshot)
{
    snapshot_hold(kv->snapshots, snapshot);
}

void kv_cache_release_snapshot(struct kv_cache *kv, uint32_t snapshot)
{
    snapshot_release(kv->snapshots, snapshot);
}

void kv_cache_forget_snapshot(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens)
{
    struct page *p = published_behind(kv, &kv->seqs[seq], n_tokens);
    if (!p || p->snapshot == NONE || snapshot_was_used(kv->snapshots, p->snapshot))
        return;
    snapshot_free(kv->snapshots, p->snapshot);
    p->snapshot = NONE;
}

static void let_go(struct kv_cache *kv, uint32_t page)
{
    if (--kv->pages[page].holders > 0)
        return;
    if (!kv->pages[page].published) {
        put_free(kv, page);
        return;
    }
    list_append(kv, page);
    if (!kv->pages[page].seen_to)
        keep_add(kv, page, KEEP_RELEASED);
}

void kv_cache_end(struct kv_cache *kv, uint32_t seq)
{
    struct page_list *q = &kv->seqs[seq];
    assert(q->live);
    if (q->snapshot != NONE)
        snapshot_release(kv->snapshots, q->snapshot);
    if (q->copied != NONE) /* it is a child of the shared pages: release it before them */
        let_go(kv, q->copied);
    while (q->n_pages > 0) /* in reverse order: children before parents */
        let_go(kv, q->pages[--q->n_pages]);
    kv->n_reserved -= q->n_reserved;
    q->n_reserved = 0;
    q->live = false;
}

struct kv_key kv_cache_key(const struct kv_cache *kv, uint32_t seq)
{
    return kv->seqs[seq].key;
}

/* ---- figures and checks ---- */

void kv_cache_stats(const struct kv_cache *kv, struct kv_cache_stats *out)
{
    *out = (struct kv_cache_stats){.total = kv->n_total,
                                   .cached = kv->n_cached,
                                   .free = kv->n_free,
                                   .used = kv->n_total - kv->n_cached - kv->n_free,
                                   .reserved = kv->n_reserved,
                                   .snapshots = snapshot_n_kept(kv->snapshots)};
}

static uint32_t count_holders(const struct kv_cache *kv, uint32_t page)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < kv->n_seqs; s++) {
        const struct page_list *q = &kv->seqs[s];
        for (uint32_t i = 0; q->live && i < q->n_pages; i++)
            n += q->pages[i] == page;
        n += q->live && q->copied == page;
    }
    return n;
}

static bool check_page(const struct kv_cache *kv, uint32_t page)
{
    const struct page *p = &kv->pages[page];
    uint32_t n_children = 0;
    if (p->holders != count_holders(kv, page))
        return false;
    if (!p->published)
        return p->keep == KEEP_NOT;
    for (uint32_t i = 0; i < kv->n_total; i++)
        n_children += kv->pages[i].published && kv->pages[i].parent == page;
    if (n_children != p->n_children || find(kv, p->key, p->parent, p->salt, p->ids) != page)
        return false;
    return p->parent == NONE ||
           (kv->pages[p->parent].published && kv->pages[p->parent].holders >= p->holders);
}

/* Checks the eviction list: every cached page once, children before parents, links consistent. */
static bool check_list(const struct kv_cache *kv)
{
    uint32_t n = 0, last = NONE;
    for (uint32_t p = kv->oldest; p != NONE; last = p, p = kv->pages[p].next, n++) {
        if (n >= kv->n_cached || !kv->pages[p].published || kv->pages[p].holders || kv->pages[p].prev != last)
            return false;
        for (uint32_t later = kv->pages[p].next; later != NONE; later = kv->pages[later].next)
            if (kv->pages[later].parent == p)
                return false;
    }
    return n == kv->n_cached && last == kv->newest;
}

/* Checks a list of pages worth keeping: its pages name it, and both directions agree. */
static bool check_kept(const struct kv_cache *kv, enum keep which)
{
    uint32_t n = 0, last = NONE;
    for (uint32_t p = kv->kept[which].first; p != NONE; last = p, p = kv->pages[p].keep_next, n++)
        if (n >= kv->n_total || kv->pages[p].keep != which || kv->pages[p].keep_prev != last)
            return false;
    for (uint32_t p = 0; p < kv->n_total; p++)
        n -= kv->pages[p].keep == which;
    return n == 0 && last == kv->kept[which].last;
}

/* Checks that pages and snapshots name one another. */
static bool check_snapshots(const struct kv_cache *kv)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < kv->n_total; p++) {
        uint32_t i = kv->pages[p].published ? kv->pages[p].snapshot : NONE;
        if (i != NONE && snapshot_page(kv->snapshots, i) != p)
            return false;
        n += i != NONE;
    }
    return n == snapshot_n_kept(kv->snapshots);
}

bool kv_cache_check(const struct kv_cache *kv)
{
    if (!check_snapshots(kv))
        return false;
    if (!check_kept(kv, KEEP_HIT) || !check_kept(kv, KEEP_RELEASED))
        return false;
    uint32_t n_free = 0, n_used = 0, n_reserved = 0;
    for (uint32_t p = kv->free; p != NONE && n_free <= kv->n_free; p = kv->pages[p].next, n_free++)
        if (kv->pages[p].holders || kv->pages[p].published)
            return false;
    for (uint32_t p = 0; p < kv->n_total; p++) {
        n_used += kv->pages[p].holders > 0;
        if (!check_page(kv, p))
            return false;
    }
    for (uint32_t s = 0; s < kv->n_seqs; s++)
        n_reserved += kv->seqs[s].live ? kv->seqs[s].n_reserved : 0;
    return n_free == kv->n_free && n_free + n_used + kv->n_cached == kv->n_total && check_list(kv) &&
           n_reserved == kv->n_reserved && n_reserved <= kv->n_free + kv->n_cached;
}
