/* kv_plan.h - divides the memory of a KV cache into pages and window pages.
 * A layer that sees the last `window` tokens alone needs no more of them, however long the context is. Where
 * that saves memory, such layers have pages of their own, window pages: as many for each slot as its window
 * and the rows in flight cover. The memory that is left goes to the pages of the other layers. A page and a
 * window page together have the bytes of a page of all layers (model_kv_layout()), in that order. Without
 * windows, and where the context is about as short as the windows, all layers are in the pages; with windows
 * in all layers, pages have no bytes, only numbers. Thread: any; pure functions. Errors: n_pages 0: the limit
 * is less than a page. */
#pragma once
#include "model.h"
#include "abi/kv_layout.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_plan_config {
    uint32_t kv_type;
    uint32_t n_slots, n_ctx;
    uint32_t rows_in_flight; /* of all steps in flight together */
    uint64_t limit;          /* bytes */
    bool whole;              /* take all of the limit, not just what the slots' whole contexts take */
};

struct kv_plan {
    uint32_t n_pages, n_windows;
    uint32_t window;       /* tokens: the longest of the model's windows; 0 without window pages */
    uint64_t page_bytes;   /* the size of a page for the other layers; 0: there are none */
    uint64_t window_bytes; /* of a window page; 0: all layers are in the pages */
};

struct kv_plan kv_plan_of(const struct model_config *c, const struct kv_plan_config *cfg);
/* The bytes of pages and window pages. */
static inline uint64_t kv_plan_size(const struct kv_plan *p)
{
    return p->n_pages * p->page_bytes + p->n_windows * p->window_bytes;
}
/* The number of snapshots of recurrent states beside a KV cache of `kv` bytes, each of `state` bytes, not 0.
 * Keys and values of a page are of no use to a hit without the state behind it, so that their memory is a
 * measure: a quarter of it, but 8 states at least, and 64 at most; an eighth of what is available at most,
 * and of it what is left when `needed` bytes have been taken. */
uint32_t kv_plan_snapshots(uint64_t kv, uint64_t state, uint64_t available, uint64_t needed);
/* The place of keys and values of the layers of a kind in a page or, if it has a window, a window page. */
struct kv_layout kv_plan_layout(const struct model_config *c, const struct kv_plan *p, uint32_t kind,
                                uint32_t kv_type);
