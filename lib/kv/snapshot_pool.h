/* snapshot_pool.h - says which snapshots of recurrent states are free, and which page each kept one belongs
 * to. The bytes lie with the backend. A snapshot is free, taken (a step writes it), or kept: the state behind
 * the last token of a published page. A kept one that no sequence holds may be taken again, the least
 * recently used first; its page then has none. They are few, so that searches are loops. Thread: engine only.
 * Memory: taken in snapshot_pool_open(). Errors: none; wrong calls assert. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SNAPSHOT_NONE UINT32_MAX

struct snapshot_pool;

struct snapshot_pool *snapshot_pool_open(uint32_t n); /* NULL: no memory */
void snapshot_pool_close(struct snapshot_pool *p);    /* NULL is fine */

/* Takes a snapshot, or SNAPSHOT_NONE where all are taken or held. *page: the page that loses it, or
 * SNAPSHOT_NONE. */
uint32_t snapshot_take(struct snapshot_pool *p, uint32_t *page);
/* Keeps a taken one for a page. */
void snapshot_keep(struct snapshot_pool *p, uint32_t i, uint32_t page);
/* Frees a taken or kept one, once it has no holders. */
void snapshot_free(struct snapshot_pool *p, uint32_t i);
/* A holder keeps a kept one from being taken; to begin counts as a use. */
void snapshot_hold(struct snapshot_pool *p, uint32_t i);
void snapshot_release(struct snapshot_pool *p, uint32_t i);
/* Returns true if kept snapshot i was held at least once. */
bool snapshot_was_used(const struct snapshot_pool *p, uint32_t i);
uint32_t snapshot_n_kept(const struct snapshot_pool *p);
/* The page of a kept one, else SNAPSHOT_NONE. */
uint32_t snapshot_page(const struct snapshot_pool *p, uint32_t i);
