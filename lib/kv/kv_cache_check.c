/* kv_cache_check.c - checks the invariants of kv_cache.h, for tests. */
#include "kv_cache_private.h"

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
    if (n_children != p->n_children || kv_cache_find(kv, p->key, p->parent, p->salt, p->ids) != page)
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

static uint32_t count_window_holders(const struct kv_cache *kv, uint32_t window)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < kv->n_seqs; s++) {
        const struct page_list *q = &kv->seqs[s];
        for (uint32_t i = q->first_window; q->live && i < q->n_pages; i++)
            n += q->windows[i] == window;
        n += q->live && q->copied_window == window;
    }
    return n;
}

/* Checks that pages and window pages name one another, the holders, and that a sequence has the window pages
 * that its next row sees. */
static bool check_windows(const struct kv_cache *kv, uint32_t n_windows)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < n_windows; w++) {
        uint32_t page = window_page(kv->windows, w);
        if (page != NONE && (!kv->pages[page].published || kv->pages[page].window != w))
            return false;
        n += page != NONE;
        if (window_holders(kv->windows, w) != count_window_holders(kv, w))
            return false;
    }
    for (uint32_t p = 0; p < kv->n_total; p++)
        n -= kv->pages[p].published && kv->pages[p].window != NONE;
    for (uint32_t s = 0; s < kv->n_seqs; s++) {
        const struct page_list *q = &kv->seqs[s];
        for (uint32_t i = q->first_window; q->live && i < kv_pages_for(q->n_accepted); i++)
            if (q->windows[i] == NONE)
                return false;
    }
    return n == 0 && window_pool_check(kv->windows);
}

bool kv_cache_check(const struct kv_cache *kv)
{
    if (!check_snapshots(kv) || (kv->windows && !check_windows(kv, window_n(kv->windows))))
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
