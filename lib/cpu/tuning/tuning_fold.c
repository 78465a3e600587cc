/* tuning_fold.c - which of two ways of the same bits folds a page faster for many queries (ops.h,
 * fold_by_floats). */
#include "base/clock.h"
#include "cpu/ops/ops.h"
#include "tuning.h"

#include <stdlib.h>
#include <string.h>

enum { QUERIES = 32, FOLDS = 7 };

struct trial {
    struct ops_page page;
    struct ops_query queries[QUERIES];
    struct ops_fold folds[QUERIES];
};

/* Places a page of zeros, its queries and their sums in `memory`, which is cleared. */
static void set(struct trial *t, const struct kv_layout *kv, const struct ops_order *order, uint8_t *memory)
{
    size_t row = ops_padded(kv->head_dim) * sizeof(float);
    uint8_t *queries = memory + 2 * kv_tile_size(kv), *outs = queries + QUERIES * row;
    t->page =
        (struct ops_page){.kv = kv, .order = order, .keys = memory, .values = memory + kv_tile_size(kv)};
    for (uint32_t j = 0; j < QUERIES; j++) {
        t->folds[j].out = (void *)(outs + j * row);
        t->queries[j] =
            (struct ops_query){.q = queries + j * row, .fold = &t->folds[j], .n_tokens = KV_PAGE_TOKENS};
    }
}

static uint64_t timed(void (*fold)(const struct ops_page *, const struct ops_query *, uint32_t),
                      struct trial *t)
{
    uint64_t began = clock_ns();
    fold(&t->page, t->queries, QUERIES);
    return clock_ns() - began;
}

bool tuning_fold_by_floats(const struct ops *ops, const struct kv_layout *kv)
{
    size_t row = ops_padded(kv->head_dim) * sizeof(float);
    size_t size = 2 * kv_tile_size(kv) + 2 * QUERIES * row;
    uint8_t *memory = kv->type == KV_BF16 ? aligned_alloc(64, (size + 63) / 64 * 64) : NULL;
    struct ops_order *order = memory ? malloc(sizeof *order) : NULL;
    uint64_t plain = UINT64_MAX, by_floats = UINT64_MAX;
    if (order) {
        struct trial t = {0};
        memset(memory, 0, size);
        ops_order_set(order, kv->head_dim);
        set(&t, kv, order, memory);
        for (uint32_t i = 0; i < FOLDS; i++) {
            uint64_t a = timed(ops->fold, &t), b = timed(ops->fold_by_floats, &t);
            plain = a < plain ? a : plain;
            by_floats = b < by_floats ? b : by_floats;
        }
    }
    free(order);
    free(memory);
    return by_floats < plain;
}
