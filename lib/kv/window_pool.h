/* window_pool.h - says which window pages are free, held or cached. A window page has the keys and values of
 * 64 tokens in the layers that see the last tokens alone, and belongs to at most one published page of the
 * same tokens; the bytes lie with the backend. One without holders may be taken: first those that belong to
 * no page, then those that a sequence has left behind and no other has used, then those at which a text ended
 * or with which a second one began, each the longest unused first. Thread: engine only. Memory: taken in
 * window_pool_open(). Errors: none; wrong calls assert. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define WINDOW_NONE UINT32_MAX

struct window_pool;

struct window_pool *window_pool_open(uint32_t n); /* NULL: no memory */
void window_pool_close(struct window_pool *p);    /* NULL is fine */

/* Takes one, which then has one holder; there must be one without holders. *page: the page that loses it, or
 * WINDOW_NONE. */
uint32_t window_take(struct window_pool *p, uint32_t *page);
/* Makes a held one that of a published page, which has none. `wanted`: a second sequence has computed it. */
void window_keep(struct window_pool *p, uint32_t i, uint32_t page, bool wanted);
/* Parts it from its page, which is no longer published. */
void window_forget(struct window_pool *p, uint32_t i);
/* Adds a holder: a sequence begins with it. */
void window_hold(struct window_pool *p, uint32_t i);
/* Removes a holder. `ends`: the text ended here, so that its next turn may begin with it. */
void window_release(struct window_pool *p, uint32_t i, bool ends);

uint32_t window_holders(const struct window_pool *p, uint32_t i);
uint32_t window_page(const struct window_pool *p, uint32_t i); /* or WINDOW_NONE */
uint32_t window_n(const struct window_pool *p);
uint32_t window_n_held(const struct window_pool *p);
uint32_t window_n_cached(const struct window_pool *p); /* of a page, without holders */
/* Checks the list of those without holders. Slow, for tests. */
bool window_pool_check(const struct window_pool *p);
