/* Opening an engine: memory that runs out, and settings that it refuses. */
#include "engine/engine.h"
#include "support/failing_alloc.h"
#include "support/fake_backend.h"
#include "kv/kv_cache.h"

#include <criterion/criterion.h>

Test(engine_open, survives_every_allocation_failing)
{
    const int32_t ends[] = {3, 4};
    struct engine_config cfg = {
        .n_slots = 3, .n_ctx = 200, .steps_in_flight = 2, .end_tokens = ends, .n_end_tokens = 2};
    struct executor *x = NULL;
    cr_assert_eq(executor_wrap(&x, &fake_open(10, 3, NULL, 0)->be, NULL), 0);
    int rc = -ENOMEM;
    long n = 0;
    for (; rc < 0; n++) {
        struct engine *e = NULL;
        struct error err = {0};
        fail_alloc_after(n);
        rc = engine_open(&e, x, &cfg, &err);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && !e && strstr(err.text, "memory")), "%ld: %s", n, err.text);
        engine_close(e);
    }
    cr_assert_gt(n, 5);
    executor_close(x);
}

Test(engine_open, refuses_what_it_cannot_keep_with_words)
{
    const struct {
        struct engine_config cfg;
        const char *words;
    } bad[] = {{{.n_slots = 0, .n_ctx = 64, .steps_in_flight = 1}, "slots 0"},
               {{.n_slots = STEP_MAX_SLOTS + 1, .n_ctx = 64, .steps_in_flight = 1}, "slots"},
               {{.n_slots = 1, .n_ctx = 64, .steps_in_flight = 3}, "1 or 2 (got 3)"},
               {{.n_slots = 1, .n_ctx = 64}, "1 or 2 (got 0)"},
               {{.n_slots = 1, .steps_in_flight = 1}, "n_ctx 0"},
               {{.n_slots = 1, .n_ctx = 1, .steps_in_flight = 1}, "n_ctx 1: at least 2"}};
    struct executor *x = NULL;
    cr_assert_eq(executor_wrap(&x, &fake_open(10, 3, NULL, 0)->be, NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct engine *e = NULL;
        struct error err = {0};
        cr_assert_eq(engine_open(&e, x, &bad[i].cfg, &err), -EINVAL);
        cr_assert(!e && strstr(err.text, bad[i].words), "%s", err.text);
    }
    executor_close(x);
}

Test(kv_cache_open, survives_every_allocation_failing)
{
    struct kv_cache_config cfg = {.n_pages = 10, .n_seqs = 2, .n_ctx = 200};
    struct kv_cache *kv = NULL;
    long n = 0;
    for (int rc = -ENOMEM; rc < 0; n++) {
        fail_alloc_after(n);
        rc = kv_cache_open(&kv, &cfg, NULL);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && !kv));
    }
    cr_assert_gt(n, 4);
    kv_cache_close(kv);
}
