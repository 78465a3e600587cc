#include "kv_plan.h"

static uint64_t slot_pages(const struct kv_plan_config *cfg)
{
    return ((uint64_t)cfg->n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* The bytes to divide, of which the slots' whole contexts take `all`. */
static uint64_t bytes_for(const struct kv_plan_config *cfg, uint64_t all)
{
    return cfg->whole || cfg->limit < all ? cfg->limit : all;
}

static uint32_t clamp(uint64_t n)
{
    return n < UINT32_MAX / 2 ? (uint32_t)n : UINT32_MAX / 2;
}

/* All layers in the pages. */
static struct kv_plan together(const struct model_config *c, const struct kv_plan_config *cfg)
{
    struct kv_layout page = model_kv_layout(c, 0, cfg->kv_type);
    struct kv_plan p = {.page_bytes = kv_page_size(&page)};
    p.n_pages = clamp(bytes_for(cfg, cfg->n_slots * slot_pages(cfg) * p.page_bytes) / p.page_bytes);
    return p;
}

/* Sets window and window_bytes: of the kinds with a window, if they stand behind the others in a page. */
static void find_windows(const struct model_config *c, const struct kv_plan_config *cfg, struct kv_plan *p)
{
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        struct kv_layout part = model_kv_layout(c, i, cfg->kv_type);
        uint32_t window = c->kinds[i].window;
        if (window)
            p->window_bytes += kv_part_size(&part);
        else if (p->window_bytes && kv_part_size(&part)) {
            p->window_bytes = 0;
            return;
        }
        p->window = window > p->window ? window : p->window;
    }
}

/* Every layer has a window: pages are names of tokens without bytes. Window pages beyond the slots' keep
 * prefixes, whose pages need a name each. */
static struct kv_plan all_windows(const struct kv_plan_config *cfg, const struct kv_plan *one,
                                  const struct kv_plan *p, uint64_t n_windows)
{
    struct kv_plan all = *p;
    uint64_t n = bytes_for(cfg, n_windows * p->window_bytes) / p->window_bytes;
    if (n < n_windows)
        return *one;
    all.n_windows = clamp(n);
    all.n_pages = clamp(cfg->n_slots * slot_pages(cfg) + (n - n_windows));
    return all;
}

struct kv_plan kv_plan_of(const struct model_config *c, const struct kv_plan_config *cfg)
{
    struct kv_plan one = together(c, cfg), p = {0};
    find_windows(c, cfg, &p);
    uint64_t each = kv_windows_of(p.window, cfg->rows_in_flight), n_windows = cfg->n_slots * each;
    if (p.window_bytes == 0 || each >= slot_pages(cfg))
        return one;
    p.page_bytes = one.page_bytes - p.window_bytes;
    if (p.page_bytes == 0)
        return all_windows(cfg, &one, &p, n_windows);
    uint64_t all = cfg->n_slots * slot_pages(cfg) * p.page_bytes + n_windows * p.window_bytes;
    uint64_t bytes = bytes_for(cfg, all);
    if (bytes > all) /* what is beyond the slots' contexts keeps prefixes */
        n_windows += (bytes - all) / 2 / p.window_bytes;
    p.n_windows = clamp(n_windows);
    p.n_pages =
        clamp(bytes > n_windows * p.window_bytes ? (bytes - n_windows * p.window_bytes) / p.page_bytes : 0);
    return p.n_pages > one.n_pages || p.n_pages >= cfg->n_slots * slot_pages(cfg) ? p : one;
}

struct kv_layout kv_plan_layout(const struct model_config *c, const struct kv_plan *p, uint32_t kind,
                                uint32_t kv_type)
{
    struct kv_layout l = model_kv_layout(c, kind, kv_type);
    if (p->window_bytes == 0)
        return l;
    bool window = c->kinds[kind].window > 0;
    l.page_bytes = window ? p->window_bytes : p->page_bytes;
    l.at -= window ? p->page_bytes : 0;
    return l;
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint32_t kv_plan_snapshots(uint64_t kv, uint64_t state, uint64_t available, uint64_t needed)
{
    enum { LEAST = 8, MOST = 64 };
    uint64_t n = kv / 4 / state, left = available > needed ? available - needed : 0;
    n = least_of(n > LEAST ? n : LEAST, MOST);
    return (uint32_t)least_of(n, least_of(available / 8, left) / state);
}
