#include "attention.h"
#include "abi/arith.h"
#include "abi/attend_layout.h"
#include "base/memory.h"
#include "base/team.h"

#include <assert.h>
#include <string.h>

/* Queries that share one read of a page: few enough that their folds stay in the second-level cache. */
#define GROUP_QUERIES 32

/* Number of the split behind a row's last one. */
static uint32_t end_split(const struct attend *a, uint32_t pos)
{
    return attend_end_split(a->window, pos);
}

/* The most splits that a group sees: behind the window its rows, which end in different places, see more
 * together than one of them. */
static uint32_t most_splits(const struct attend *a, uint32_t n_ctx)
{
    bool moves = a->window && a->window < n_ctx;
    return attend_max_splits(n_ctx, a->window) + (moves ? a->max_rows_per_group / KV_PAGE_TOKENS + 1 : 0);
}

void attend_open(struct attend *a, uint32_t n_ctx)
{
    ops_order_set(&a->order, a->kv.head_dim);
    a->ratio = a->n_heads / a->kv.n_kv_heads;
    a->max_rows_per_group = a->ratio < GROUP_QUERIES ? GROUP_QUERIES / a->ratio : 1;
    a->max_splits = most_splits(a, n_ctx);
}

static size_t max_queries(const struct attend *a)
{
    return (size_t)a->max_rows_per_group * a->ratio;
}

size_t attend_scratch_size(const struct attend *a)
{
    size_t padded = ops_padded(a->kv.head_dim), n_folds = max_queries(a) * a->max_splits;
    return (max_queries(a) + n_folds) * padded * sizeof(float) +
           round64(max_queries(a) * sizeof(struct ops_query)) + round64(n_folds * sizeof(struct ops_fold));
}

void attend_scratch_set(const struct attend *a, struct attend_scratch *s, void *memory)
{
    size_t padded = ops_padded(a->kv.head_dim);
    uint8_t *at = memory;
    s->queries = (void *)at;
    at += round64(max_queries(a) * sizeof(struct ops_query));
    s->folds = (void *)at;
    at += round64(max_queries(a) * a->max_splits * sizeof(struct ops_fold));
    s->scaled = (void *)at;
    s->outs = s->scaled + max_queries(a) * padded;
}

/* WHOLE_UNITS: units (group, kv head) per member from which whole rows are dealt. SPLIT_PAGES: pages of a row
 * below which a further barrier costs more than it gains. */
#define WHOLE_UNITS 2
#define SPLIT_PAGES 8

size_t attend_shared_size(const struct attend *a, uint32_t n_members)
{
    size_t n = (size_t)WHOLE_UNITS * n_members * a->ratio * a->max_splits;
    return round64(n * sizeof(struct ops_fold)) + n * ops_padded(a->kv.head_dim) * sizeof(float);
}

void attend_shared_set(struct attend *a, uint32_t n_members, void *memory)
{
    size_t n = (size_t)WHOLE_UNITS * n_members * a->ratio * a->max_splits;
    a->shared_folds = memory;
    a->shared_outs = (void *)((uint8_t *)memory + round64(n * sizeof(struct ops_fold)));
}

/* The first token that a row at position `pos` sees. */
static uint32_t first_seen(const struct attend *a, uint32_t pos)
{
    return a->window && pos >= a->window ? pos - a->window + 1 : 0;
}

/* Numbers the splits that all groups see if single splits will be dealt. */
static void plan_splits(struct attend *a, uint32_t n_members)
{
    uint32_t n = 0, longest = 0;
    a->n_splits = 0;
    for (uint32_t i = 0; i < a->n_groups; i++) {
        if (a->groups[i].n > 1)
            return;
        uint32_t pos = a->step->rows[a->groups[i].first].pos, seen = first_seen(a, pos);
        a->groups[i].first_split = n;
        n += end_split(a, pos) - seen / arith_split(pos, a->window);
        longest = pos - seen > longest ? pos - seen : longest;
    }
    if (n_members > 1 && a->n_groups * a->kv.n_kv_heads < WHOLE_UNITS * n_members &&
        longest / KV_PAGE_TOKENS >= SPLIT_PAGES)
        a->n_splits = n;
}

void attend_plan(struct attend *a, const struct step *step, const struct slots *slots, uint32_t n_members)
{
    bool seen[STEP_MAX_SLOTS] = {false};
    a->step = step;
    a->slots = slots;
    a->n_groups = 0;
    a->lone_rows = true;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct step_row *row = &step->rows[i];
        if (seen[row->slot])
            a->lone_rows = false;
        seen[row->slot] = true;
        struct attend_group *g = a->n_groups ? &a->groups[a->n_groups - 1] : NULL;
        const struct step_row *first = g ? &step->rows[g->first] : NULL;
        if (g && first->slot == row->slot && g->n < a->max_rows_per_group &&
            row->pos - first->pos < a->max_rows_per_group &&
            arith_split(first->pos, a->window) == arith_split(row->pos, a->window))
            g->n++;
        else
            a->groups[a->n_groups++] = (struct attend_group){.first = i, .n = 1};
    }
    plan_splits(a, n_members);
}

void attend_rope(const struct attend *a, uint32_t row, float *x, uint32_t n_heads)
{
    size_t at = (size_t)a->step->rows[row].pos * (a->rope_dim / 2);
    if (a->rope_dim == 0)
        return;
    for (uint32_t h = 0; h < n_heads; h++)
        a->ops->rope(x + (size_t)h * a->kv.head_dim, a->cosines + at, a->sines + at, a->rope_dim, a->neox);
}

static const uint32_t *table_of(const struct attend *a, uint32_t slot)
{
    return a->windowed ? slots_windows(a->slots, slot) : slots_table(a->slots, slot);
}

static uint8_t *tile_of(const struct attend *a, uint32_t page, uint32_t layer, uint32_t kv_head,
                        enum kv_which which)
{
    return a->pages + kv_offset(&a->kv, page, layer, kv_head, which);
}

void attend_append(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head, const float *k,
                   const float *v)
{
    const struct step_row *r = &a->step->rows[row];
    uint32_t page = table_of(a, r->slot)[r->pos / KV_PAGE_TOKENS], t = r->pos % KV_PAGE_TOKENS;
    if (r->flags & STEP_ROW_CACHED) /* others may read the page at this moment */
        return;
    a->ops->append(&a->kv, &a->order, tile_of(a, page, layer, kv_head, KV_KEYS), KV_KEYS, t, k);
    a->ops->append(&a->kv, &a->order, tile_of(a, page, layer, kv_head, KV_VALUES), KV_VALUES, t, v);
}

void attend_fetch(const struct attend *a, uint32_t layer, uint32_t row, uint32_t kv_head)
{
    const struct step_row *r = &a->step->rows[row];
    uint32_t page = table_of(a, r->slot)[r->pos / KV_PAGE_TOKENS], t = r->pos % KV_PAGE_TOKENS;
    a->ops->append_fetch(&a->kv, tile_of(a, page, layer, kv_head, KV_KEYS), KV_KEYS, t);
    a->ops->append_fetch(&a->kv, tile_of(a, page, layer, kv_head, KV_VALUES), KV_VALUES, t);
}

struct walk { /* one call of attend_group or attend_split */
    const struct attend *a;
    struct attend_scratch *s;
    const struct attend_group *group;
    const struct step_row *rows;
    const struct attend_layer *layer;
    uint32_t kv_head, split; /* split: tokens per split */
    uint32_t first;          /* number of the first split that the group sees */
    struct ops_fold *folds;  /* [query][stride], from split `first` on; their outs [query][stride][padded] */
    float *outs;
    size_t stride, padded;
};

static struct walk walk_of(const struct attend *a, struct attend_scratch *s, const struct attend_layer *layer,
                           uint32_t group, uint32_t kv_head)
{
    const struct attend_group *g = &a->groups[group];
    struct walk w = {.a = a, .s = s, .group = g, .rows = &a->step->rows[g->first]};
    uint32_t last = w.rows[g->n - 1].pos;
    w.layer = layer;
    w.kv_head = kv_head;
    w.split = arith_split(last, a->window);
    w.first = first_seen(a, w.rows[0].pos) / w.split;
    w.padded = ops_padded(a->kv.head_dim);
    if (a->n_splits) {
        size_t first = (size_t)kv_head * a->ratio * a->n_splits + g->first_split;
        w.stride = a->n_splits;
        w.folds = a->shared_folds + first;
        w.outs = a->shared_outs + first * w.padded;
        return w;
    }
    w.stride = end_split(a, last) - w.first;
    assert(w.stride <= a->max_splits);
    w.folds = s->folds;
    w.outs = s->outs;
    return w;
}

static struct ops_fold *fold_at(const struct walk *w, uint32_t query, uint32_t split)
{
    size_t index = (size_t)query * w->stride + split - w->first;
    struct ops_fold *f = &w->folds[index];
    f->out = w->outs + index * w->padded;
    return f;
}

static void scale_queries(const struct walk *w, struct rows q)
{
    uint32_t ratio = w->a->ratio, head_dim = w->a->kv.head_dim;
    const float *temperatures = w->a->temperatures;
    float whole = w->layer->scale * ARITH_LOG2E;
    whole = w->a->cap > 0 ? whole * (2.0f / w->a->cap) : whole;
    for (uint32_t i = 0; i < w->group->n * ratio; i++) {
        const float *from =
            row_at(q, w->group->first + i / ratio) + ((size_t)w->kv_head * ratio + i % ratio) * head_dim;
        float *to = w->s->scaled + i * w->padded;
        float factor = temperatures ? whole * temperatures[w->rows[i / ratio].pos] : whole;
        if (i + 2 * ratio < w->group->n * ratio)
            rows_prefetch(from + 2 * q.stride, head_dim);
        w->a->ops->query(&w->a->kv, &w->a->order, to, from, factor);
    }
}

/* Folds page `index` of the sequence into every query that sees it. */
static void fold_page(const struct walk *w, uint32_t index, const struct ops_page *page)
{
    const struct attend *a = w->a;
    uint32_t start = index * KV_PAGE_TOKENS, split = start / w->split, n = 0;
    for (uint32_t i = 0; i < w->group->n * a->ratio; i++) {
        uint32_t pos = w->rows[i / a->ratio].pos, n_tokens = pos + 1 - start, seen = first_seen(a, pos);
        if (pos < start || seen >= start + KV_PAGE_TOKENS)
            continue;
        struct ops_fold *f = fold_at(w, i, split);
        if (start % w->split == 0 || seen >= start) {
            f->max = -ARITH_INF;
            f->sum = 0.0f;
            memset(f->out, 0, w->padded * sizeof(float));
        }
        w->s->queries[n++] = (struct ops_query){
            .q = w->s->scaled + i * w->padded,
            .fold = f,
            .first = seen > start ? seen - start : 0,
            .n_tokens = n_tokens < KV_PAGE_TOKENS ? n_tokens : KV_PAGE_TOKENS,
        };
    }
    (a->by_floats ? a->ops->fold_by_floats : a->ops->fold)(page, w->s->queries, n);
}

/* Folds pages [first, end) of the sequence, from the first one that a row sees up to its last. */
static void fold_pages(const struct walk *w, uint32_t first, uint32_t end)
{
    const struct attend *a = w->a;
    const uint32_t *table = table_of(a, w->rows[0].slot);
    uint32_t last = w->rows[w->group->n - 1].pos / KV_PAGE_TOKENS, head = w->kv_head;
    uint32_t seen = first_seen(a, w->rows[0].pos) / KV_PAGE_TOKENS;
    for (uint32_t i = first > seen ? first : seen; i < end && i <= last; i++) {
        struct ops_page page = {.kv = &a->kv, .order = &a->order};
        page.cap = a->cap * ARITH_LOG2E;
        /* The next head most likely follows the last page. */
        bool more = i < last;
        page.next = tile_of(a, table[more ? i + 1 : seen], w->layer->layer,
                            more || head + 1 == a->kv.n_kv_heads ? head : head + 1, KV_KEYS);
        page.keys = tile_of(a, table[i], w->layer->layer, head, KV_KEYS);
        page.values = tile_of(a, table[i], w->layer->layer, head, KV_VALUES);
        fold_page(w, i, &page);
    }
}

static void merge_queries(const struct walk *w, struct rows out)
{
    const struct attend *a = w->a;
    for (uint32_t i = 0; i < w->group->n * a->ratio; i++) {
        uint32_t row = i / a->ratio, head = w->kv_head * a->ratio + i % a->ratio;
        uint32_t pos = w->rows[row].pos, first = first_seen(a, pos) / w->split;
        float sink = w->layer->sinks ? w->layer->sinks[head] * ARITH_LOG2E : -ARITH_INF;
        a->ops->merge(row_at(out, w->group->first + row) + (size_t)head * a->kv.head_dim,
                      fold_at(w, i, first), end_split(a, pos) - first, a->kv.head_dim, sink);
    }
}

void attend_group(const struct attend *a, struct attend_scratch *s, const struct attend_layer *layer,
                  uint32_t group, uint32_t kv_head, struct rows q, struct rows out)
{
    struct walk w = walk_of(a, s, layer, group, kv_head);
    scale_queries(&w, q);
    fold_pages(&w, 0, UINT32_MAX);
    merge_queries(&w, out);
}

void attend_split(const struct attend *a, struct attend_scratch *s, const struct attend_layer *layer,
                  uint32_t split, uint32_t kv_head, struct rows q)
{
    uint32_t group = 0;
    while (group + 1 < a->n_groups && a->groups[group + 1].first_split <= split)
        group++;
    struct walk w = walk_of(a, s, layer, group, kv_head);
    uint32_t pages = w.split / KV_PAGE_TOKENS;
    uint32_t first = (w.first + split - a->groups[group].first_split) * pages;
    scale_queries(&w, q);
    fold_pages(&w, first, first + pages);
}

void attend_merge(const struct attend *a, const struct attend_layer *layer, uint32_t group, uint32_t kv_head,
                  struct rows out)
{
    struct walk w = walk_of(a, NULL, layer, group, kv_head);
    merge_queries(&w, out);
}

void attend_splits(const struct attend *a, struct team *team, uint32_t member, struct attend_scratch *s,
                   const struct attend_layer *layer, struct rows q, struct rows out)
{
    struct team_deal splits = team_deal(team, member, a->n_splits * a->kv.n_kv_heads, 1);
    for (uint32_t i, last; team_next(&splits, &i, &last);)
        attend_split(a, s, layer, i % a->n_splits, i / a->n_splits, q);
    team_barrier(team, member);
    struct team_deal units = team_deal(team, member, a->n_groups * a->kv.n_kv_heads, 1);
    for (uint32_t i, last; team_next(&units, &i, &last);)
        attend_merge(a, layer, i % a->n_groups, i / a->n_groups, out);
}
