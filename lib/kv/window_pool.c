#include "window_pool.h"

#include <assert.h>
#include <stdlib.h>

/* The lists of those without holders. */
enum { SOON, LATE, LISTS };

struct window {
    uint32_t holders, page;
    uint32_t next, prev; /* in its list */
    uint8_t list;
    bool used; /* a second sequence has begun with it */
};

struct window_pool {
    uint32_t n, n_held, n_cached;
    struct {
        uint32_t first, last; /* the next to take first */
    } lists[LISTS];
    struct window windows[];
};

static void list_put(struct window_pool *p, uint32_t i, uint8_t list, bool at_end)
{
    struct window *w = &p->windows[i];
    w->list = list;
    w->prev = at_end ? p->lists[list].last : WINDOW_NONE;
    w->next = at_end ? WINDOW_NONE : p->lists[list].first;
    *(w->prev != WINDOW_NONE ? &p->windows[w->prev].next : &p->lists[list].first) = i;
    *(w->next != WINDOW_NONE ? &p->windows[w->next].prev : &p->lists[list].last) = i;
}

static void list_remove(struct window_pool *p, uint32_t i)
{
    const struct window *w = &p->windows[i];
    *(w->prev != WINDOW_NONE ? &p->windows[w->prev].next : &p->lists[w->list].first) = w->next;
    *(w->next != WINDOW_NONE ? &p->windows[w->next].prev : &p->lists[w->list].last) = w->prev;
}

struct window_pool *window_pool_open(uint32_t n)
{
    struct window_pool *p = calloc(1, sizeof *p + n * sizeof *p->windows);
    if (!p)
        return NULL;
    p->n = n;
    for (int list = 0; list < LISTS; list++)
        p->lists[list].first = p->lists[list].last = WINDOW_NONE;
    for (uint32_t i = 0; i < n; i++) {
        p->windows[i].page = WINDOW_NONE;
        list_put(p, i, SOON, true);
    }
    return p;
}

void window_pool_close(struct window_pool *p)
{
    free(p);
}

uint32_t window_take(struct window_pool *p, uint32_t *page)
{
    uint32_t i = p->lists[SOON].first != WINDOW_NONE ? p->lists[SOON].first : p->lists[LATE].first;
    assert(i != WINDOW_NONE); /* each sequence has its share (kv_windows_of) */
    *page = p->windows[i].page;
    p->n_cached -= *page != WINDOW_NONE;
    list_remove(p, i);
    p->windows[i] = (struct window){.holders = 1, .page = WINDOW_NONE};
    p->n_held++;
    return i;
}

void window_keep(struct window_pool *p, uint32_t i, uint32_t page, bool wanted)
{
    assert(p->windows[i].holders > 0 && p->windows[i].page == WINDOW_NONE);
    p->windows[i].page = page;
    p->windows[i].used = wanted;
}

void window_forget(struct window_pool *p, uint32_t i)
{
    struct window *w = &p->windows[i];
    assert(w->page != WINDOW_NONE);
    w->page = WINDOW_NONE;
    w->used = false;
    if (w->holders > 0)
        return;
    p->n_cached--;
    list_remove(p, i);
    list_put(p, i, SOON, false);
}

void window_hold(struct window_pool *p, uint32_t i)
{
    struct window *w = &p->windows[i];
    w->used = true;
    if (w->holders++ > 0)
        return;
    p->n_held++;
    p->n_cached -= w->page != WINDOW_NONE;
    list_remove(p, i);
}

void window_release(struct window_pool *p, uint32_t i, bool ends)
{
    struct window *w = &p->windows[i];
    assert(w->holders > 0);
    if (--w->holders > 0)
        return;
    p->n_held--;
    p->n_cached += w->page != WINDOW_NONE;
    bool kept = w->page != WINDOW_NONE;
    list_put(p, i, kept && (ends || w->used) ? LATE : SOON, kept);
}

uint32_t window_holders(const struct window_pool *p, uint32_t i)
{
    return p->windows[i].holders;
}

uint32_t window_page(const struct window_pool *p, uint32_t i)
{
    return p->windows[i].page;
}

uint32_t window_n(const struct window_pool *p)
{
    return p->n;
}

uint32_t window_n_held(const struct window_pool *p)
{
    return p->n_held;
}

uint32_t window_n_cached(const struct window_pool *p)
{
    return p->n_cached;
}

/* Counts a list; false if a link of it is wrong. */
static bool check_list(const struct window_pool *p, uint8_t list, uint32_t *n, uint32_t *n_cached)
{
    uint32_t last = WINDOW_NONE;
    for (uint32_t i = p->lists[list].first; i != WINDOW_NONE && *n <= p->n; i = p->windows[i].next, ++*n) {
        if (p->windows[i].holders || p->windows[i].prev != last || p->windows[i].list != list)
            return false;
        *n_cached += p->windows[i].page != WINDOW_NONE;
        last = i;
    }
    return last == p->lists[list].last;
}

bool window_pool_check(const struct window_pool *p)
{
    uint32_t n = 0, n_cached = 0, n_held = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n_held += p->windows[i].holders > 0;
    return check_list(p, SOON, &n, &n_cached) && check_list(p, LATE, &n, &n_cached) && n + n_held == p->n &&
           n_held == p->n_held && n_cached == p->n_cached;
}
