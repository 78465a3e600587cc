/* The engine with a prefix cache on disk: what one engine left there, the next one begins with, and its
 * tokens are those of the sequence; what cannot be had is computed. */
#include "support/engine_driver.h"
#include "kv/prefix_disk.h"
#include "support/temporary_dir.h"

static char words[8][400];
static atomic_uint n_words;

static void keep_words(void *context, const char *text)
{
    (void)context;
    snprintf(words[atomic_fetch_add(&n_words, 1) % 8], sizeof words[0], "%s", text);
}

static struct prefix_disk *disk_of_model(const char *dir, uint64_t model)
{
    struct prefix_disk_config c = {.dir = dir,
                                   .budget = 1 << 20,
                                   .model = model,
                                   .order = "fake",
                                   .kv = fake_layout,
                                   .report = keep_words};
    struct prefix_disk *d = NULL;
    struct error err = {0};
    cr_assert_eq(prefix_disk_open(&d, &c, &err), 0, "%s", err.text);
    return d;
}

static struct rig *rig_on(struct prefix_disk *d, struct rig_config c)
{
    c.disk = d;
    return rig_open(c);
}

static void wait_spilled(struct rig *rig, uint64_t n)
{
    for (uint64_t since = clock_ns(); rig_stats(rig).disk_spilled < n;)
        wait_a_little(since);
    cr_assert_eq(rig_stats(rig).disk_spilled, n);
}

/* A request from begin to end; what it took from the cache. */
static uint32_t run(struct rig *rig, const int32_t *prompt, uint32_t n_prompt, uint64_t salt)
{
    struct engine_request *r = request_new(prompt, n_prompt, 20);
    r->salt = salt;
    r->ignore_eos = true;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    cr_assert_eq(r->finish, ENGINE_LENGTH);
    uint32_t n = r->n_cached;
    request_free(r);
    return n;
}

/* Leaves the pages of a prompt of n tokens (and 20 more) in the directory. */
static void leave(const char *dir, uint32_t n_prompt, uint64_t salt)
{
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    cr_assert_eq(run(rig, some_prompt(5), n_prompt, salt), 0);
    wait_spilled(rig, (n_prompt + 19) / KV_PAGE_TOKENS);
    rig_close(rig);
    prefix_disk_close(d);
}

/* n_written: pages it must leave anew before it ends. */
static uint32_t run_after_restart(const char *dir, uint32_t n_prompt, uint64_t model, uint64_t salt,
                                  uint64_t n_written)
{
    struct prefix_disk *d = disk_of_model(dir, model);
    struct rig *rig = rig_on(d, usual);
    uint32_t n = run(rig, some_prompt(5), n_prompt, salt);
    cr_assert_geq(rig_stats(rig).disk_hits,
                  n / KV_PAGE_TOKENS); /* more when what was read ahead is not used */
    cr_assert_eq(rig_stats(rig).cached_tokens, n);
    cr_assert_eq(rig_stats(rig).prompt_tokens, n_prompt);
    cr_assert_eq(atomic_load(&rig->fake->n_imports), n / KV_PAGE_TOKENS);
    cr_assert_eq(atomic_load(&rig->fake->n_rows), n_prompt - n + 19);
    cr_assert_eq(rig_stats(rig).pages_used, 0);
    wait_spilled(rig, n_written);
    rig_close(rig);
    prefix_disk_close(d);
    return n;
}

Test(engine_disk, a_restarted_engine_begins_with_what_the_one_before_left)
{
    const uint32_t lengths[] = {63, 64, 65, 128, 129, 200, 1000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char *dir = temporary_dir();
        leave(dir, lengths[i], 0);
        cr_assert_eq(run_after_restart(dir, lengths[i], 1, 0, 0), (lengths[i] - 1) / 64 * 64);
        temporary_dir_remove(dir);
    }
}

/* More pages than are on their way at once, and no idle moment between the answer and the end. */
Test(engine_disk, what_an_engine_has_not_written_yet_is_written_when_it_closes)
{
    for (int i = 0; i < 10; i++) {
        char *dir = temporary_dir();
        struct prefix_disk *d = disk_of_model(dir, 1);
        struct rig *rig = rig_on(d, usual);
        run(rig, some_prompt(5), 400, 0);
        rig_close(rig);
        prefix_disk_close(d);
        d = disk_of_model(dir, 1);
        rig = rig_on(d, usual);
        cr_assert_eq(run(rig, some_prompt(5), 400, 0), 384);
        rig_close(rig);
        prefix_disk_close(d);
        temporary_dir_remove(dir);
    }
}

Test(engine_disk, what_came_back_is_shared_like_any_page)
{
    char *dir = temporary_dir();
    leave(dir, 500, 0);
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    struct engine_request *r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = request_new(some_prompt(5), 500, 30);
        r[i]->sampling.seed = (uint64_t)i;
        submit(rig, r[i]);
    }
    for (int i = 0; i < 4; i++) {
        wait_done(rig, r[i]);
        check_tokens(r[i]);
        cr_assert_eq(r[i]->n_cached, 448);
        request_free(r[i]);
    }
    cr_assert_eq(atomic_load(&rig->fake->n_imports), 7); /* once */
    rig_close(rig);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(engine_disk, choices_share_what_came_back)
{
    char *dir = temporary_dir();
    leave(dir, 200, 0);
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    struct engine_request *r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = request_new(some_prompt(5), 200, 30);
        r[i]->sampling.seed = (uint64_t)i;
        if (i)
            r[i - 1]->next_choice = r[i];
    }
    submit(rig, r[0]);
    for (int i = 0; i < 3; i++)
        wait_done(rig, r[i]);
    cr_assert_eq(r[0]->n_cached, 192);
    for (int i = 0; i < 3; i++) {
        check_tokens(r[i]);
        request_free(r[i]);
    }
    rig_close(rig);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(engine_disk, another_model_or_salt_finds_nothing)
{
    char *dir = temporary_dir();
    leave(dir, 200, 7);
    cr_assert_eq(run_after_restart(dir, 200, 2, 7, 3), 0);
    cr_assert_eq(run_after_restart(dir, 200, 1, 8, 3), 0);
    cr_assert_eq(run_after_restart(dir, 200, 1, 0, 3), 0);
    cr_assert_eq(run_after_restart(dir, 200, 1, 7, 0), 192);
    temporary_dir_remove(dir);
}

Test(engine_disk, a_broken_page_ends_the_hit_and_is_named_and_removed)
{
    char *dir = temporary_dir();
    leave(dir, 500, 0);
    struct kv_key key = kv_key_of_salt(0);
    for (int i = 0; i < 4; i++)
        key = kv_key_next(key, some_prompt(5) + i * KV_PAGE_TOKENS);
    temporary_dir_spoil(dir, key.a); /* the fourth page */
    cr_assert_eq(run_after_restart(dir, 500, 1, 0, 1), 192);
    cr_assert_eq(atomic_load(&n_words), 1);
    cr_assert(strstr(words[0], "checksum") && strstr(words[0], "removed"), "%s", words[0]);
    cr_assert_eq(run_after_restart(dir, 500, 1, 0, 0), 448);
    cr_assert_eq(atomic_load(&n_words), 1);
    temporary_dir_remove(dir);
}

Test(engine_disk, prompt_log_probabilities_read_nothing_from_disk)
{
    char *dir = temporary_dir();
    leave(dir, 200, 0);
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    struct engine_request *r = request_new(some_prompt(5), 200, 5);
    r->want_prompt_logprobs = true;
    submit(rig, r);
    wait_done(rig, r);
    check_tokens(r);
    cr_assert_eq(r->n_cached, 0);
    request_free(r);
    rig_close(rig);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

/* A page that was hit goes to the disk while others run, one at a time. */
Test(engine_disk, beside_running_requests_a_hit_page_is_written_and_no_other)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    struct engine_request *first = request_new(some_prompt(5), 200, 800),
                          *second = request_new(some_prompt(5), 200, 800);
    first->ignore_eos = second->ignore_eos = true;
    submit(rig, first);
    wait_out(rig, first, 1);
    uint64_t n_exports = atomic_load(&rig->fake->n_exports);
    if (n_out(first) < first->max_tokens) /* it ran until now */
        cr_assert_eq(n_exports, 0);
    submit(rig, second);
    wait_out(rig, second, 1);
    cr_assert_eq(second->n_cached, 192);
    wait_done(rig, first);
    wait_done(rig, second);
    check_tokens(first);
    check_tokens(second);
    cr_assert_leq(atomic_load(&rig->fake->most_page_ops), 1);
    wait_spilled(rig, 15); /* (200 + 799) / 64 pages, the same of both */
    request_free(first);
    request_free(second);
    rig_close(rig);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(engine_disk, cancelled_while_pages_come_back_leaves_nothing_behind)
{
    char *dir = temporary_dir();
    leave(dir, 1000, 0);
    for (int i = 0; i < 30; i++) {
        struct prefix_disk *d = disk_of_model(dir, 1);
        struct rig_config c = usual;
        c.lazy = i % 3 ? 4 : 0;
        struct rig *rig = rig_on(d, c);
        struct engine_request *r = request_new(some_prompt(5), 1000, 20);
        submit(rig, r);
        for (int spin = 0; spin < i * 20; spin++)
            sched_yield();
        engine_cancel(rig->e, r);
        wait_done(rig, r);
        check_tokens(r);
        request_free(r);
        wait_idle(rig);
        cr_assert_eq(rig_stats(rig).pages_used, 0);
        cr_assert_eq(run(rig, some_prompt(5), 1000, 0), 960);
        rig_close(rig);
        prefix_disk_close(d);
    }
    temporary_dir_remove(dir);
}

Test(engine_disk, closing_while_pages_come_back_is_in_order)
{
    char *dir = temporary_dir();
    leave(dir, 1000, 0);
    for (int i = 0; i < 20; i++) {
        struct prefix_disk *d = disk_of_model(dir, 1);
        struct rig *rig = rig_on(d, usual);
        struct engine_request *r = request_new(some_prompt(5), 1000, 20);
        submit(rig, r);
        for (int spin = 0; spin < i * 20; spin++)
            sched_yield();
        rig_close(rig);
        cr_assert_eq(state_of(r), ENGINE_DONE);
        request_free(r);
        prefix_disk_close(d);
    }
    temporary_dir_remove(dir);
}

/* Few pages: what is spilled is evicted and overwritten at once, and comes back as it was. */
Test(engine_disk, pages_that_are_evicted_while_they_are_written_come_back_whole)
{
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig_config c = usual;
    c.n_pages = 12;
    c.lazy = 3;
    struct rig *rig = rig_on(d, c);
    uint32_t n_cached = 0;
    for (int round = 0; round < 40; round++) {
        n_cached += run(rig, some_prompt((uint32_t)(round * 7 % 5)), 300, (uint64_t)(round % 3));
        /* The first; later ones may leave no idle moment. */
        for (uint64_t since = clock_ns(); rig_stats(rig).disk_spilled == 0;)
            wait_a_little(since);
    }
    cr_assert_gt(rig_stats(rig).disk_hits, 0);
    cr_assert_geq(n_cached, rig_stats(rig).disk_hits * KV_PAGE_TOKENS);
    rig_close(rig);
    prefix_disk_close(d);
    temporary_dir_remove(dir);
}

Test(engine_disk, a_full_disk_is_said_once_and_requests_go_on)
{
    struct rlimit limit = {100, 100}; /* bytes of a file: write() fails with EFBIG */
    char *dir = temporary_dir();
    struct prefix_disk *d = disk_of_model(dir, 1);
    struct rig *rig = rig_on(d, usual);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    run(rig, some_prompt(5), 200, 0);
    for (uint64_t since = clock_ns(); rig_stats(rig).disk_errors == 0;)
        wait_a_little(since);
    for (int i = 0; i < 5; i++)
        run(rig, some_prompt(5), 200, (uint64_t)i);
    cr_assert_eq(atomic_load(&n_words), 1);
    cr_assert(strstr(words[0], "no pages are written"), "%s", words[0]);
    cr_assert_eq(rig_stats(rig).disk_spilled, 0);
    rig_close(rig);
    prefix_disk_close(d);
    cr_assert_eq(temporary_dir_count(dir), 0); /* no temporary file either */
    temporary_dir_remove(dir);
}
