#include "weight_reader.h"
#include "base/hash.h"
#include "model.h"
#include "gguf/quant.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define AT_ONCE ((size_t)128 << 10) /* bytes: stays in a core's cache until it is packed */

/* ---- sizes ---- */

static size_t row_size(const struct weight *w)
{
    return quant_size(w->type, w->k);
}

uint32_t weight_groups(const struct model *m, uint32_t index)
{
    return (model_weight(m, index)->n + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
}

size_t weight_groups_size(const struct model *m, uint32_t index, uint32_t n_groups)
{
    const struct weight *w = model_weight(m, index);
    size_t rows = (size_t)n_groups * WEIGHT_GROUP;
    return (rows < w->n ? rows : w->n) * row_size(w);
}

uint32_t weight_groups_at_once(const struct model *m, uint32_t index)
{
    uint32_t all = weight_groups(m, index);
    size_t n = AT_ONCE / weight_groups_size(m, index, 1);
    return n < 1 ? 1 : n < all ? (uint32_t)n : all;
}

/* ---- reading ---- */

void weight_reader_open(struct weight_reader *r, const struct model *m)
{
    *r = (struct weight_reader){.model = m};
}

static int fail(struct weight_reader *r, const struct error *why)
{
    if (!atomic_exchange(&r->failed, true))
        r->err = *why;
    return why->code;
}

int weight_reader_groups(struct weight_reader *r, uint32_t index, uint32_t first, uint32_t last, void *out)
{
    const struct weight *w = model_weight(r->model, index);
    size_t group = row_size(w) * WEIGHT_GROUP, at = first * group;
    size_t end = last < weight_groups(r->model, index) ? last * group : w->size;
    struct error why = {0};
    uint64_t sum = 0;
    assert(first < last && at < end); /* each group once, or the sum differs */
    if (atomic_load_explicit(&r->failed, memory_order_relaxed))
        return -ECANCELED;
    if (model_read_weight(r->model, index, at, out, end - at, &why) < 0)
        return fail(r, &why);
    for (const uint8_t *p = out; at < end; at += group, p += group)
        sum += hash_bytes(hash_word(index, at), p, end - at < group ? end - at : group);
    atomic_fetch_add_explicit(&r->sum, sum, memory_order_relaxed);
    return 0;
}

int weight_reader_close(struct weight_reader *r, uint64_t *sum, struct error *err)
{
    *sum = atomic_load(&r->sum);
    return r->failed ? error_set(err, r->err.code, "%s", r->err.text) : 0;
}
