/* The plan of KV memory: pages, window pages, limits. */
#include "model/kv_plan.h"

#include <criterion/criterion.h>

/* Gemma 3 4B: five layers that see all, 29 that see 1024 tokens. */
static struct model_config gemma(void)
{
    struct model_config c = {.n_kinds = 2};
    for (uint32_t i = 0; i < 2; i++) {
        c.kinds[i].n_kv_heads = 4;
        c.kinds[i].head_dim = 256;
    }
    c.kinds[0].n_caches = 5;
    c.kinds[1].n_caches = 29;
    c.kinds[1].window = 1024;
    return c;
}

#define TILE  (64u * 256 * 2)
#define PAGE  (TILE * 2 * 4 * 5)
#define WHOLE (TILE * 2 * 4 * 34)

static struct kv_plan plan(uint32_t n_slots, uint32_t n_ctx, uint64_t limit, bool whole)
{
    struct model_config c = gemma();
    struct kv_plan_config cfg = {.kv_type = KV_F16,
                                 .n_slots = n_slots,
                                 .n_ctx = n_ctx,
                                 .rows_in_flight = 1024,
                                 .limit = limit,
                                 .whole = whole};
    return kv_plan_of(&c, &cfg);
}

Test(kv_plan, a_long_context_has_window_pages_for_the_windows_alone)
{
    struct kv_plan p = plan(8, 32768, UINT64_MAX, false);
    cr_assert_eq(p.n_pages, 8 * 512);
    cr_assert_eq(p.n_windows, 8 * kv_windows_of(1024, 1024));
    cr_assert_eq(p.n_windows, 8 * 35);
    cr_assert_eq(p.window, 1024);
    cr_assert_eq(p.page_bytes, PAGE);
    cr_assert_eq(p.page_bytes + p.window_bytes, WHOLE);
    cr_assert_lt(kv_plan_size(&p), 8ull * 512 * WHOLE / 4, "a quarter of what all layers would keep");
}

Test(kv_plan, a_short_context_keeps_all_in_the_pages)
{
    struct kv_plan p = plan(8, 35 * 64, UINT64_MAX, false);
    cr_assert_eq(p.n_windows, 0);
    cr_assert_eq(p.window_bytes, 0);
    cr_assert_eq(p.n_pages, 8 * 35);
    cr_assert_eq(p.page_bytes, WHOLE);
}

Test(kv_plan, little_memory_goes_where_it_holds_more_tokens)
{
    struct kv_plan p = plan(8, 32768, 100ull * WHOLE, true);
    cr_assert_eq(p.n_windows, 0, "eight slots' windows take more than that");
    cr_assert_eq(p.n_pages, 100);
    p = plan(1, 32768, 100ull * WHOLE, true);
    cr_assert_eq(p.n_windows, 35);
    cr_assert_gt(p.n_pages, 400);
    cr_assert_leq(kv_plan_size(&p), 100ull * WHOLE);
}

Test(kv_plan, memory_beyond_the_contexts_keeps_more_of_both)
{
    struct kv_plan all = plan(2, 32768, UINT64_MAX, false), p = plan(2, 32768, 1ull << 33, true);
    cr_assert_gt(p.n_pages, all.n_pages);
    cr_assert_gt(p.n_windows, all.n_windows);
    cr_assert_leq(kv_plan_size(&p), 1ull << 33);
}

/* Phi-3 mini with 4,096 tokens. */
Test(kv_plan, pages_have_no_bytes_where_every_layer_has_a_window)
{
    struct model_config c = {.n_kinds = 1, .kinds = {{.n_kv_heads = 32, .head_dim = 96, .n_caches = 32}}};
    struct kv_plan_config cfg = {.n_slots = 4, .n_ctx = 32768, .rows_in_flight = 1024, .limit = UINT64_MAX};
    struct kv_layout whole = model_kv_layout(&c, 0, KV_F16);
    cr_assert_eq(kv_plan_of(&c, &cfg).page_bytes, kv_page_size(&whole));
    c.kinds[0].window = 2047;
    struct kv_plan p = kv_plan_of(&c, &cfg);
    cr_assert_eq(p.page_bytes, 0);
    cr_assert_eq(p.n_pages, 4 * 512);
    cr_assert_eq(p.n_windows, 4 * kv_windows_of(2047, 1024));
    cr_assert_eq(kv_plan_size(&p), p.n_windows * kv_page_size(&whole));
    struct kv_layout window = kv_plan_layout(&c, &p, 0, KV_F16);
    cr_assert_eq(kv_page_size(&window), kv_page_size(&whole));
    cr_assert_eq(window.at, 0);
    cfg.limit = (p.n_windows + 7) * p.window_bytes + 1;
    cfg.whole = true;
    struct kv_plan more = kv_plan_of(&c, &cfg);
    cr_assert_eq(more.n_windows, p.n_windows + 7);
    cr_assert_eq(more.n_pages, p.n_pages + 7, "each further window page keeps one more page of a prefix");
    cfg.limit = (p.n_windows - 1) * p.window_bytes;
    struct kv_plan less = kv_plan_of(&c, &cfg);
    cr_assert_eq(less.n_windows, 0, "the slots' windows take more than that");
    cr_assert_eq(less.n_pages, p.n_windows - 1);
}

Test(kv_plan, less_than_a_page_is_none)
{
    cr_assert_eq(plan(1, 32768, WHOLE - 1, true).n_pages, 0);
}

Test(kv_plan, both_parts_make_up_a_page_of_all_layers)
{
    struct model_config c = gemma();
    struct kv_plan p = plan(1, 32768, UINT64_MAX, false);
    struct kv_layout full = kv_plan_layout(&c, &p, 0, KV_F16), window = kv_plan_layout(&c, &p, 1, KV_F16);
    cr_assert_eq(kv_page_size(&full), p.page_bytes);
    cr_assert_eq(kv_page_size(&window), p.window_bytes);
    cr_assert_eq(full.at, 0);
    cr_assert_eq(window.at, 0);
    struct kv_layout whole = model_kv_layout(&c, 1, KV_F16);
    cr_assert_eq(whole.at, p.page_bytes, "the window page is the end of the page");
}

Test(kv_plan, snapshots_of_states_take_what_is_left)
{
    enum { STATE = 1000 };
    const uint64_t plenty = 1000000000;
    cr_expect_eq(kv_plan_snapshots(0, STATE, plenty, 0), 8, "the least");
    cr_expect_eq(kv_plan_snapshots(4 * 20 * STATE, STATE, plenty, 0), 20, "a quarter of the cache");
    cr_expect_eq(kv_plan_snapshots(4 * 100 * STATE, STATE, plenty, 0), 64, "the most");
    cr_expect_eq(kv_plan_snapshots(4 * 100 * STATE, STATE, 8 * 15 * STATE, 0), 15, "an eighth of the memory");
    cr_expect_eq(kv_plan_snapshots(0, STATE, plenty, plenty - 3 * STATE - 1), 3, "what is left");
    cr_expect_eq(kv_plan_snapshots(0, STATE, plenty, plenty), 0);
    cr_expect_eq(kv_plan_snapshots(0, STATE, plenty, plenty + 1), 0);
}
