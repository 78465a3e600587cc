/* engine_driver.h - what the tests of the engine share: an engine on the fake decoder, requests with their
 * rooms, and what such a request must give. */
#pragma once
#include "base/clock.h"
#include "engine/engine.h"
#include "fake_backend.h"

#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <semaphore.h>

static const int32_t end_tokens[] = {3, 17, 42, 55, 77};
#define N_END 5

#define PATIENCE_S 60 /* without any news, after which a test fails that would else hang */

struct rig {
    struct fake *fake;
    struct executor *x;
    struct engine *e;
    sem_t news;
};

struct rig_config {
    uint32_t n_pages, n_slots, n_ctx, queue_limit, steps_in_flight, max_chunk, rows_together, rows_of_a_pass;
    bool prefix_cache, alone;
    uint32_t lazy;
    struct prefix_disk *disk;
    enum engine_speculation speculation;
    bool echo;
    uint64_t (*idle)(struct backend *be, bool (*wanted)(void *context), void *context); /* or NULL */
    uint32_t window; /* the decoder has window pages, for texts that see so many tokens; 0: it has none */
};

static bool echoing; /* the decoder of the rig opened last */

static const struct rig_config usual = {.n_pages = 64,
                                        .n_slots = 4,
                                        .n_ctx = 1024,
                                        .queue_limit = 100,
                                        .steps_in_flight = 2,
                                        .prefix_cache = true};

static inline void rig_wake(void *context)
{
    sem_post(context);
}

static inline struct rig *rig_open(struct rig_config c)
{
    struct rig *rig = calloc(1, sizeof *rig);
    struct error err = {0};
    sem_init(&rig->news, 0, 0);
    rig->fake = fake_open(c.n_pages, c.n_slots, end_tokens, N_END);
    static struct backend_ops ops; /* of the rig opened last */
    ops = fake_ops;
    ops.idle = c.idle;
    rig->fake->be.ops = &ops;
    rig->fake->lazy = c.lazy;
    rig->fake->rows_together = c.rows_together;
    rig->fake->rows_of_a_pass = c.rows_of_a_pass;
    rig->fake->alone = c.alone;
    fake_set_window(rig->fake, c.window, c.steps_in_flight);
    rig->fake->echo = echoing = c.echo;
    struct engine_config cfg = {.n_slots = c.n_slots,
                                .n_ctx = c.n_ctx,
                                .queue_limit = c.queue_limit,
                                .steps_in_flight = c.steps_in_flight,
                                .max_chunk = c.max_chunk,
                                .prefix_cache = c.prefix_cache,
                                .disk = c.disk,
                                .speculation = c.speculation,
                                .end_tokens = end_tokens,
                                .n_end_tokens = N_END,
                                .wake = rig_wake,
                                .context = &rig->news};
    cr_assert_eq(executor_wrap(&rig->x, &rig->fake->be, &err), 0, "%s", err.text);
    cr_assert_eq(engine_open(&rig->e, rig->x, &cfg, &err), 0, "%s", err.text);
    return rig;
}

static inline void rig_close(struct rig *rig)
{
    engine_close(rig->e);
    cr_expect_not(rig->fake->broken, "%s", rig->fake->why);
    executor_close(rig->x);
    sem_destroy(&rig->news);
    free(rig);
}

static inline struct engine_stats rig_stats(const struct rig *rig)
{
    struct engine_stats s;
    engine_stats(rig->e, &s);
    return s;
}

/* Lets the decoder do n more steps. */
static inline void rig_hold(struct rig *rig, uint32_t n)
{
    atomic_store(&rig->fake->allowed, n);
    atomic_store(&rig->fake->held, true);
}

static inline void rig_go(struct rig *rig)
{
    atomic_store(&rig->fake->held, false);
}

static inline struct engine_request *request_new(const int32_t *prompt, uint32_t n_prompt,
                                                 uint32_t max_tokens)
{
    struct engine_request *r = calloc(1, sizeof *r);
    int32_t *ids = malloc(n_prompt * sizeof *ids);
    memcpy(ids, prompt, n_prompt * sizeof *ids);
    r->prompt = ids;
    r->n_prompt = n_prompt;
    r->max_tokens = max_tokens;
    r->cache_prompt = true;
    r->sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    r->out = calloc(max_tokens + 1, sizeof *r->out);
    r->top = calloc((size_t)(max_tokens + 1) * STEP_MAX_TOP, sizeof *r->top);
    r->prompt_out = calloc(n_prompt, sizeof *r->prompt_out);
    r->prompt_top = calloc((size_t)n_prompt * STEP_MAX_TOP, sizeof *r->prompt_top);
    return r;
}

static inline void request_free(struct engine_request *r)
{
    free((void *)r->prompt);
    free((void *)r->biases);
    free(r->out);
    free(r->top);
    free(r->prompt_out);
    free(r->prompt_top);
    free(r);
}

static inline void submit(struct rig *rig, struct engine_request *r)
{
    struct error err = {0};
    cr_assert_eq(engine_submit(rig->e, r, &err), 0, "%s", err.text);
}

static inline uint32_t state_of(struct engine_request *r)
{
    return atomic_load_explicit(&r->state, memory_order_acquire);
}

static inline uint32_t n_out(struct engine_request *r)
{
    return atomic_load_explicit(&r->n_out, memory_order_acquire);
}

/* Until the engine wakes us. */
static inline void wait_news(struct rig *rig)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE_S;
    int rc;
    do
        rc = sem_clockwait(&rig->news, CLOCK_MONOTONIC, &until);
    while (rc < 0 && errno == EINTR);
    cr_assert_eq(rc, 0, "the engine had no news for %d s", PATIENCE_S);
}

/* In a loop that waits since `since_ns` for an event that wakes no thread. */
static inline void wait_a_little(uint64_t since_ns)
{
    cr_assert_lt(clock_ns() - since_ns, PATIENCE_S * 1000000000ull, "nothing has happened for %d s",
                 PATIENCE_S);
    sched_yield();
}

/* Takes news until the request is terminal. */
static inline void wait_done(struct rig *rig, struct engine_request *r)
{
    while (state_of(r) != ENGINE_DONE)
        if (!engine_next(rig->e))
            wait_news(rig);
}

static inline void wait_out(struct rig *rig, struct engine_request *r, uint32_t n)
{
    while (n_out(r) < n && state_of(r) != ENGINE_DONE)
        if (!engine_next(rig->e))
            wait_news(rig);
}

/* Waits until the engine holds nothing any more. */
static inline void wait_idle(struct rig *rig)
{
    for (uint64_t since = clock_ns(); !rig_stats(rig).idle;)
        wait_a_little(since);
}

static inline bool is_end(const struct engine_request *r, int32_t token, uint32_t n)
{
    bool end = false;
    for (uint32_t i = 0; i < N_END; i++)
        end = end || (end_tokens[i] == token && !r->ignore_eos);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        end = end || r->stop_ids[i] == token;
    return end && n >= r->min_tokens;
}

/* Writes the tokens that the request must give, and returns their number, when nothing interrupts it. */
static inline uint32_t expected_tokens(const struct engine_request *r, int32_t *out,
                                       enum engine_finish *finish)
{
    uint64_t h = 7;
    uint32_t bias_hash = fake_hash_bias(r->biases, r->sampling.n_bias);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        h = fake_hash_token(h, r->prompt[i], i);
    *finish = ENGINE_LENGTH;
    for (uint32_t n = 0; n < r->max_tokens; n++) {
        bool ban = r->ignore_eos || n < r->min_tokens;
        out[n] = fake_sample(h, r->sampling.seed, bias_hash, ban, end_tokens, N_END);
        if (echoing && fake_echoes(h))
            out[n] = fake_echo(n ? out[n - 1] : r->prompt[r->n_prompt - 1]);
        if (is_end(r, out[n], n)) {
            *finish = ENGINE_EOS;
            return n + 1;
        }
        h = fake_hash_token(h, out[n], r->n_prompt + n);
    }
    return r->max_tokens;
}

static inline void check_logprobs(const struct engine_request *r)
{
    uint64_t h = 7;
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        if (i > 0 && r->want_prompt_logprobs) {
            cr_assert_eq(r->prompt_out[i].token, r->prompt[i]);
            cr_assert_eq(r->prompt_out[i].logprob, fake_logprob(h, r->prompt[i]), "prompt token %u", i);
            for (uint32_t t = 0; t < r->n_prompt_top; t++)
                cr_assert_eq(r->prompt_top[i * r->n_prompt_top + t].logprob, fake_logprob(h, (int32_t)t));
        }
        h = fake_hash_token(h, r->prompt[i], i);
    }
    for (uint32_t n = 0; n < atomic_load(&r->n_out); n++) {
        cr_assert_eq(r->out[n].logprob, r->want_logprobs ? fake_logprob(h, r->out[n].token) : 0.0f);
        for (uint32_t t = 0; r->want_logprobs && t < r->n_top; t++)
            cr_assert_eq(r->top[n * r->n_top + t].logprob, fake_logprob(h, (int32_t)t));
        h = fake_hash_token(h, r->out[n].token, r->n_prompt + n);
    }
}

/* A terminal request: its tokens are those of the reference, all of them unless it was interrupted. */
static inline void check_tokens(const struct engine_request *r)
{
    int32_t *expected = malloc((r->max_tokens + 1) * sizeof *expected);
    enum engine_finish finish;
    uint32_t n = expected_tokens(r, expected, &finish), got = atomic_load(&r->n_out);
    cr_assert_leq(got, n);
    for (uint32_t i = 0; i < got; i++)
        cr_assert_eq(r->out[i].token, expected[i], "token %u of a prompt of %u: %d, expected %d", i,
                     r->n_prompt, r->out[i].token, expected[i]);
    if (r->finish == ENGINE_EOS || r->finish == ENGINE_LENGTH) {
        cr_assert_eq(got, n);
        cr_assert_eq(r->finish, finish);
        check_logprobs(r);
    }
    free(expected);
}

static inline const int32_t *some_prompt(uint32_t from)
{
    static int32_t ids[8][2048];
    static int next;
    int32_t *out = ids[next++ % 8];
    for (uint32_t i = 0; i < 2048; i++)
        out[i] = (int32_t)((from + i * 37) % (FAKE_VOCAB - 1));
    return out;
}
