/* Random requests in random circumstances. With any requests beside them, any cuts of prompts, cancels,
 * sharing and eviction: tokens are those of the sequence, every request ends once, no page stays.
 */
#include "support/engine_driver.h"
#include "kv/prefix_disk.h"
#include "support/temporary_dir.h"
#include "support/random.h"

static uint64_t soon(uint32_t max_us)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + (uint64_t)random_below(max_us) * 1000;
}

static void random_options(struct engine_request *r)
{
    static const int32_t stops[] = {1000, 2000, 3000};
    r->salt = random_below(5) == 0;
    r->cache_prompt = random_below(5) > 0;
    r->ignore_eos = random_below(4) == 0;
    r->min_tokens = random_below(3) == 0 ? random_below(40) : 0;
    r->priority = (int32_t)random_below(7) - 3;
    r->sampling.seed = random_below(3);
    if (random_below(4) == 0) {
        r->sampling.presence_penalty = 1;
        r->sampling.penalty_last_n = random_below(300);
    }
    if (random_below(4) == 0) {
        r->want_logprobs = true;
        r->n_top = random_below(4);
    }
    if (random_below(8) == 0) {
        r->want_prompt_logprobs = true;
        r->n_prompt_top = random_below(3);
    }
    if (random_below(4) == 0) {
        r->stop_ids = stops;
        r->n_stop_ids = 3;
    }
    if (random_below(8) == 0)
        r->queue_deadline_ns = random_below(3) ? soon(3000) : 1;
    if (random_below(8) == 0)
        r->deadline_ns = soon(5000);
    if (random_below(6) == 0) {
        struct step_bias *biases = calloc(400, sizeof *biases);
        r->sampling.n_bias = 1 + random_below(400);
        for (uint32_t i = 0; i < r->sampling.n_bias; i++)
            biases[i].token = (int32_t)random_below(FAKE_VOCAB);
        r->biases = biases;
    }
}

/* A prompt that begins like one of three, and then goes its own way. */
static struct engine_request *random_request(uint32_t n_ctx)
{
    int32_t prompt[2048];
    uint32_t n = 1 + random_below(random_below(2) && n_ctx > 100 ? 100 : n_ctx - 1),
             common = random_below(4) ? random_below(n + 1) : 0;
    memcpy(prompt, some_prompt(random_below(3)), sizeof prompt);
    for (uint32_t i = common; i < n; i++)
        prompt[i] = (int32_t)random_below(FAKE_VOCAB - 1);
    if (random_below(40) == 0)
        prompt[random_below(n)] = FAKE_POISON;
    uint32_t room = n_ctx - n;
    struct engine_request *r = request_new(prompt, n, random_below(room < 80 ? room + 1 : 80));
    random_options(r);
    return r;
}

/* Up to eight of one prompt. */
static struct engine_request *random_choices(uint32_t n_ctx, uint32_t *n, uint32_t max)
{
    struct engine_request *first = random_request(n_ctx), *last = first;
    for (*n = 1; *n < max && *n < ENGINE_MAX_CHOICES && random_below(3) == 0; ++*n) {
        struct engine_request *r = request_new(first->prompt, first->n_prompt, first->max_tokens),
                              new = *first;
        new.out = r->out;
        new.top = r->top;
        new.prompt = r->prompt;
        new.prompt_out = r->prompt_out;
        new.prompt_top = r->prompt_top;
        new.want_prompt_logprobs = false;
        new.next_choice = NULL;
        new.sampling.seed = *n;
        new.biases = NULL;
        if (first->biases) {
            size_t size = first->sampling.n_bias * sizeof *first->biases;
            new.biases = memcpy(malloc(size), first->biases, size);
        }
        *r = new;
        last = last->next_choice = r;
    }
    return first;
}

enum { N = 120 };

static struct engine_request *first_of[N]; /* by the number in r->user */

/* Until their prompt is computed choices end with the first. */
static bool first_cancelled(const struct engine_request *r)
{
    return atomic_load(&first_of[(uintptr_t)r->user]->cancelled);
}

static bool poisoned(const struct engine_request *r)
{
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] == FAKE_POISON)
            return true;
    return false;
}

static void check_end(const struct engine_request *r)
{
    switch (r->finish) {
    case ENGINE_NOT_FINITE:
        cr_assert(poisoned(r));
        break;
    case ENGINE_CANCELLED:
        cr_assert(atomic_load(&r->cancelled) || first_cancelled(r));
        break;
    case ENGINE_TIMEOUT:
        cr_assert(r->deadline_ns && r->done_ns >= r->deadline_ns && r->started_ns);
        break;
    case ENGINE_QUEUE_TIMEOUT:
        cr_assert_eq(r->started_ns, 0);
        cr_assert_eq(atomic_load(&r->n_out), 0);
        break;
    default:
        cr_assert(r->finish == ENGINE_EOS || r->finish == ENGINE_LENGTH, "finish %d", r->finish);
        cr_assert(!poisoned(r) || r->max_tokens == 0);
    }
    if (!poisoned(r))
        check_tokens(r);
}

struct crowd {
    struct engine_request *r[N];
    bool done[N];
    uint32_t n_sent, n_done, n_rejected;
};

static void send_one(struct rig *rig, struct crowd *c)
{
    uint32_t n;
    struct engine_request *first = random_choices(engine_n_ctx(rig->e), &n, N - c->n_sent), *r = first;
    for (uint32_t i = 0; i < n; i++, r = r->next_choice)
        r->user = (void *)(uintptr_t)(c->n_sent + i);
    int rc = engine_submit(rig->e, first, NULL);
    cr_assert(rc == 0 || rc == -EAGAIN);
    for (r = first; r; r = r->next_choice) {
        first_of[c->n_sent] = first;
        c->r[c->n_sent] = r;
        c->done[c->n_sent++] = rc < 0;
    }
    c->n_done += rc < 0 ? n : 0;
    c->n_rejected += rc < 0 ? n : 0;
}

static void take_news(struct rig *rig, struct crowd *c)
{
    struct engine_request *r;
    while ((r = engine_next(rig->e))) {
        uint32_t i = (uint32_t)(uintptr_t)r->user;
        cr_assert_not(c->done[i], "terminal twice");
        if (state_of(r) != ENGINE_DONE)
            continue;
        check_end(r);
        c->done[i] = true;
        c->n_done++;
    }
}

/* The events of all lives: a test in which nothing happens would pass. */
static uint32_t n_finish[ENGINE_NOT_FINITE + 1], n_hits, n_rejected;
static uint64_t n_tokens, n_copies, n_restored, n_drafted, n_accepted;

static char *dir; /* of the engines with a disk, each of which finds what those before it left */

static struct prefix_disk *open_disk(bool windows)
{
    struct prefix_disk *d = NULL;
    struct prefix_disk_config c = {
        .dir = dir, .budget = 40 * 1024, .model = 1, .order = "fake", .kv = fake_layout};
    if (windows)
        c.kv = fake_window_layout;
    cr_assert_eq(prefix_disk_open(&d, &c, NULL), 0);
    return d;
}

static void live(uint64_t seed, bool windows)
{
    random_state = seed;
    struct rig_config cfg = {.n_slots = 1 + random_below(8),
                             .n_pages = 4 + random_below(40),
                             .n_ctx = 64 + random_below(700),
                             .queue_limit = random_below(100),
                             .steps_in_flight = 1 + random_below(2),
                             .max_chunk = random_below(2) ? 1 + random_below(70) : 0,
                             .prefix_cache = random_below(5) > 0,
                             .lazy = random_below(2) ? 2 + random_below(5) : 0,
                             .speculation = (enum engine_speculation)random_below(3),
                             .echo = random_below(3) > 0};
    bool on_disk = random_below(2);
    cfg.window = windows ? 1 + random_below(200) : 0;
    cfg.disk = on_disk ? open_disk(windows) : NULL;
    struct rig *rig = rig_open(cfg);
    struct crowd c = {0};
    uint32_t crowd = random_below(cfg.n_slots + cfg.queue_limit + 1); /* the largest is rejected at times */
    while (c.n_done < N) {
        if (c.n_sent < N && c.n_sent - c.n_done <= crowd && random_below(3) == 0)
            send_one(rig, &c);
        uint32_t victim = random_below(4 * N);
        if (victim < c.n_sent && !c.done[victim] && random_below(4) == 0)
            engine_cancel(rig->e, c.r[victim]);
        take_news(rig, &c);
        if (c.n_sent == N || c.n_sent - c.n_done > crowd)
            sched_yield();
    }
    wait_idle(rig);
    struct engine_stats s = rig_stats(rig);
    cr_assert_eq(s.windows_used, 0);
    cr_assert_eq(s.pages_used, 0, "seed %lu: %u pages left", seed, s.pages_used);
    cr_assert_leq(s.pages_cached, s.pages_total);
    cr_assert_eq(s.rejected, c.n_rejected);
    cr_assert_eq(s.completed + s.failed + s.cancelled + s.timed_out + s.rejected, N);
    n_copies += atomic_load(&rig->fake->n_copies);
    rig_close(rig);
    n_restored += s.disk_hits;
    cr_assert_eq(s.disk_errors, 0);
    prefix_disk_close(cfg.disk);
    cr_assert(s.accepted <= s.drafted && s.steps_saved <= s.accepted && s.draft_steps <= s.drafted);
    cr_assert(cfg.speculation != ENGINE_SPECULATE_OFF || s.drafted == 0);
    n_drafted += s.drafted;
    n_accepted += s.accepted;
    n_rejected += c.n_rejected;
    n_tokens += s.generated_tokens;
    for (uint32_t i = 0; i < N; i++) {
        n_finish[c.r[i]->finish]++;
        n_hits += c.r[i]->n_cached > 0;
        request_free(c.r[i]);
    }
}

static void lives(bool windows)
{
    dir = temporary_dir();
    for (uint64_t seed = 1; seed <= 60; seed++)
        live(seed, windows);
    for (int f = ENGINE_EOS; f <= ENGINE_NOT_FINITE; f++)
        cr_assert(n_finish[f] > 10 || f == ENGINE_FAULT || f == ENGINE_TIMEOUT, "finish %d: %u times", f,
                  n_finish[f]);
    cr_assert_gt(n_hits, 100);
    cr_assert_gt(n_rejected, 10);
    cr_assert_gt(n_tokens, 10000);
    cr_assert_gt(n_copies, 100);
    cr_assert_gt(n_restored, 20);
    cr_assert_gt(n_accepted, 2000);
    cr_assert_gt(n_drafted, n_accepted + 2000);
    temporary_dir_remove(dir);
}

Test(engine_property, whatever_happens_tokens_are_the_sequences_and_pages_return, .timeout = 1200)
{
    lives(false);
}

Test(engine_property, whatever_happens_rows_see_the_window_of_their_sequence, .timeout = 1200)
{
    lives(true);
}
