#include "kv_cache_private.h"
#include "base/hash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- open and close ---- */

static void put_free(struct kv_cache *kv, uint32_t page)
{
    kv->pages[page].next = kv->free;
    kv->free = page;
    kv->n_free++;
}

static int alloc_window_memory(struct kv_cache *kv, uint32_t n_windows)
{
    kv->windows = window_pool_open(n_windows);
    kv->window_lists = calloc((size_t)kv->n_seqs * kv->max_pages, sizeof *kv->window_lists);
    if (!kv->windows || !kv->window_lists)
        return -ENOMEM;
    for (uint32_t i = 0; i < kv->n_seqs; i++)
        kv->seqs[i].windows = kv->window_lists + (size_t)i * kv->max_pages;
    return 0;
}

static int alloc_memory(struct kv_cache *kv, uint32_t n_snapshots, uint32_t n_windows)
{
    kv->n_buckets = 16;
    while (kv->n_buckets < 2 * kv->n_total && kv->n_buckets < 1u << 30)
        kv->n_buckets *= 2;
    kv->pages = calloc(kv->n_total, sizeof *kv->pages);
    kv->seqs = calloc(kv->n_seqs, sizeof *kv->seqs);
    kv->buckets = malloc(kv->n_buckets * sizeof *kv->buckets);
    kv->lists = calloc((size_t)kv->n_seqs * kv->max_pages, sizeof *kv->lists);
    kv->snapshots = snapshot_pool_open(n_snapshots);
    if (!kv->pages || !kv->seqs || !kv->buckets || !kv->lists || !kv->snapshots)
        return -ENOMEM;
    return n_windows ? alloc_window_memory(kv, n_windows) : 0;
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
    kv->window = cfg->window;
    kv->seed = hash_seed();
    for (int i = 0; i < KEEP_LISTS; i++)
        kv->kept[i] = (struct ends){NONE, NONE};
    if (alloc_memory(kv, cfg->n_snapshots, cfg->n_windows) < 0) {
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
    window_pool_close(kv->windows);
    free(kv->window_lists);
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

uint32_t kv_cache_find(const struct kv_cache *kv, struct kv_key k, uint32_t parent, uint64_t salt,
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

/* ---- window pages ---- */

uint32_t kv_cache_first_window(const struct kv_cache *kv, uint32_t n_tokens)
{
    return n_tokens >= kv->window ? (n_tokens + 1 - kv->window) / KV_PAGE_TOKENS : 0;
}

uint32_t kv_cache_window(const struct kv_cache *kv, uint32_t seq, uint32_t index)
{
    const struct page_list *q = &kv->seqs[seq];
    assert(index < q->n_pages);
    return q->windows ? q->windows[index] : NONE;
}

uint32_t kv_cache_n_windows(const struct kv_cache *kv, uint32_t seq)
{
    const struct page_list *q = &kv->seqs[seq];
    uint32_t n = 0;
    for (uint32_t i = q->first_window; q->windows && i < q->n_pages; i++)
        n += q->windows[i] != NONE;
    return n;
}

uint32_t kv_cache_window_of(const struct kv_cache *kv, uint32_t page)
{
    return kv->windows ? kv->pages[page].window : NONE;
}

static void get_window(struct kv_cache *kv, struct page_list *q, uint32_t index)
{
    uint32_t page;
    if (q->windows[index] != NONE)
        return;
    q->windows[index] = window_take(kv->windows, &page);
    if (page != NONE)
        kv->pages[page].window = NONE;
}

static void give_windows(struct kv_cache *kv, struct page_list *q, uint32_t first, uint32_t end, bool ends)
{
    for (uint32_t i = first; i < end; i++) {
        if (q->windows[i] != NONE)
            window_release(kv->windows, q->windows[i], ends);
        q->windows[i] = NONE;
    }
}

/* Gives back the window pages that no row behind the accepted tokens sees. */
static void slide(struct kv_cache *kv, struct page_list *q)
{
    uint32_t first = kv_cache_first_window(kv, q->n_accepted), n = q->n_accepted / KV_PAGE_TOKENS;
    q->end_window = q->end_window > n ? q->end_window : n; /* imported ones */
    if (first <= q->first_window)
        return;
    give_windows(kv, q, q->first_window, first < q->n_pages ? first : q->n_pages, false);
    q->first_window = first;
}

/* Begins with the window pages of its first n pages that the row behind them sees. */
static void share_windows(struct kv_cache *kv, struct page_list *q, const uint32_t *windows, uint32_t n,
                          uint32_t n_tokens)
{
    memset(q->windows, 0xff, kv->max_pages * sizeof *q->windows);
    q->first_window = kv_cache_first_window(kv, n_tokens);
    q->end_window = n;
    for (uint32_t i = q->first_window; i < n; i++) {
        q->windows[i] = windows ? windows[i] : kv->pages[q->pages[i]].window;
        window_hold(kv->windows, q->windows[i]);
    }
}

/* Gives the window page of the sequence's page `index` to an equal page that has lost its own. */
static void donate_window(struct kv_cache *kv, const struct page_list *q, uint32_t index, uint32_t twin)
{
    if (!kv->windows || kv->pages[twin].window != NONE || q->windows[index] == NONE)
        return;
    kv->pages[twin].window = q->windows[index];
    window_keep(kv->windows, q->windows[index], twin, true);
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
    if (kv->windows && p->window != NONE)
        window_forget(kv->windows, p->window);
    p->window = NONE;
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

/* The most of n pages behind which a sequence may begin: the window pages that its first row sees are there.
 */
static uint32_t with_windows(const struct kv_cache *kv, const uint32_t *hit, uint32_t n)
{
    while (kv->windows && n > 0) {
        uint32_t first = kv_cache_first_window(kv, n * KV_PAGE_TOKENS), i = n;
        while (i > first && kv->pages[hit[i - 1]].window != NONE)
            i--;
        if (i <= first)
            break;
        n = i - 1; /* its first row would see that page too, or one before it */
    }
    return n;
}

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
        uint32_t page = kv_cache_find(kv, next, n ? hit[n - 1] : NONE, s->salt, ids);
        if (page == NONE)
            break;
        hit[n] = page;
        *key = next;
    }
    uint32_t n_seen = with_windows(kv, hit, n);
    if (n_seen < n)
        *key = n_seen ? kv->pages[hit[n_seen - 1]].key : kv_key_of_salt(s->salt);
    return n_seen;
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
                            .copied_window = NONE,
                            .twin = NONE,
                            .windows = q->windows,
                            .pages = q->pages};
}

/* Holds the snapshot of the last of the sequence's pages that has one. */
static void begin_with_snapshot(struct kv_cache *kv, struct page_list *q)
{
    uint32_t n = q->n_pages;
    while (n > 0 && !(kv->pages[q->pages[n - 1]].published && kv->pages[q->pages[n - 1]].snapshot != NONE))
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
    if (kv->windows)
        share_windows(kv, q, NULL, n_hit, *n_cached);
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

static void fork_windows(struct kv_cache *kv, struct page_list *q, const struct page_list *first,
                         uint32_t n_prompt)
{
    share_windows(kv, q, first->windows, q->n_pages, n_prompt - 1);
    if ((n_prompt - 1) % KV_PAGE_TOKENS == 0)
        return;
    q->copied_window = first->windows[q->n_pages];
    if (q->copied_window != NONE)
        window_hold(kv->windows, q->copied_window);
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
    if (kv->windows)
        fork_windows(kv, q, first, n_prompt);
    if (!partial)
        return false;
    q->copied = *from = first->pages[n_shared];
    kv->pages[q->copied].holders++;
    return true;
}

static void grow_pages(struct kv_cache *kv, struct page_list *q, uint32_t n_pages)
{
    assert(q->live);
    while (q->n_pages < n_pages) {
        assert(q->n_reserved > 0);
        q->pages[q->n_pages++] = take(kv);
        q->n_reserved--;
        kv->n_reserved--;
    }
}

void kv_cache_grow(struct kv_cache *kv, uint32_t seq, uint32_t n_tokens)
{
    struct page_list *q = &kv->seqs[seq];
    grow_pages(kv, q, kv_pages_for(n_tokens));
    for (; q->windows && q->end_window < kv_pages_for(n_tokens); q->end_window++)
        get_window(kv, q, q->end_window);
}

uint32_t kv_cache_copied_window(const struct kv_cache *kv, uint32_t seq)
{
    return kv->seqs[seq].copied_window;
}

void kv_cache_grow_import(struct kv_cache *kv, uint32_t seq, uint32_t index, bool window)
{
    struct page_list *q = &kv->seqs[seq];
    grow_pages(kv, q, index + 1);
    if (window && q->windows)
        get_window(kv, q, index);
}

void kv_cache_import_failed(struct kv_cache *kv, uint32_t seq)
{
    struct page_list *q = &kv->seqs[seq];
    if (q->windows)
        give_windows(kv, q, q->end_window, q->n_pages, false);
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
    uint32_t twin = kv_cache_find(kv, key, parent, q->salt, p->ids);
    if (twin != NONE) {
        /* A successor's parent would be a page that this sequence does not hold. */
        q->publish = false;
        q->twin = twin;
        q->twin_key = key;
        donate_window(kv, q, index, twin);
        return;
    }
    p->key = q->key = key;
    p->salt = q->salt;
    p->parent = parent;
    p->n_children = 0;
    p->published = true;
    p->seen_to = false;
    p->snapshot = NONE;
    p->window = NONE;
    if (q->windows && q->windows[index] != NONE) {
        p->window = q->windows[index];
        window_keep(kv->windows, p->window, page, false);
    }
    if (parent != NONE)
        kv->pages[parent].n_children++;
    uint32_t *bucket = bucket_of(kv, key);
    p->chain = *bucket;
    *bucket = page;
}

/* Finds the page equal to page `index` of a sequence that publishes no more, behind the last that was found;
 * that one may have been evicted meanwhile. */
static void follow_twin(struct kv_cache *kv, struct page_list *q, uint32_t index)
{
    const struct page *last = &kv->pages[q->twin];
    const int32_t *ids = kv->pages[q->pages[index]].ids;
    struct kv_key key = kv_key_next(q->twin_key, ids);
    bool there = last->published && last->key.a == q->twin_key.a && last->key.b == q->twin_key.b;
    q->twin = there ? kv_cache_find(kv, key, q->twin, q->salt, ids) : NONE;
    q->twin_key = key;
    if (q->twin != NONE)
        donate_window(kv, q, index, q->twin);
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
        else if (at == KV_PAGE_TOKENS - 1 && q->twin != NONE && q->windows)
            follow_twin(kv, q, index);
    }
    if (q->windows)
        slide(kv, q);
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
    if (q->copied_window != NONE)
        window_release(kv->windows, q->copied_window, false);
    if (q->windows)
        give_windows(kv, q, q->first_window, q->n_pages, true);
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

/* ---- figures ---- */

void kv_cache_stats(const struct kv_cache *kv, struct kv_cache_stats *out)
{
    *out = (struct kv_cache_stats){.total = kv->n_total,
                                   .cached = kv->n_cached,
                                   .free = kv->n_free,
                                   .used = kv->n_total - kv->n_cached - kv->n_free,
                                   .reserved = kv->n_reserved,
                                   .snapshots = snapshot_n_kept(kv->snapshots),
                                   .windows_used = kv->windows ? window_n_held(kv->windows) : 0,
                                   .windows_cached = kv->windows ? window_n_cached(kv->windows) : 0};
}
