/* Random requests in random circumstances, through the engine and the host side of the resident decoder to
 * the real kernels: few pages, a full ring, prompts in pieces, cancellations in every phase, parks, warps
 * that come late, an engine that is closed in the middle, a device that dies. Every request that was let in
 * ends once, its tokens are those that the cpu gives it alone, no page stays. HEARTH_LIVES=n: so many lives
 * of each kind. */
#include "engine/engine.h"
#include "abi/kv_layout.h"
#include "model/model.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MODEL HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf"
enum { N = 16, MAX_PROMPT = 90, MAX_TOKENS = 7, N_CTX = 192 };

#if defined __SANITIZE_ADDRESS__ ||                                                                          \
    defined __SANITIZE_THREAD__ /* which make it slow: one life of each kind, or two */
#define LIVES 1
#else
#define LIVES 3
#endif
#define MOST_LIVES 10000

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* The CPU is the engine's and the emulator's for a while. */
static void let_them_work(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* --- requests --- */

struct one {
    struct engine_request r;
    int32_t prompt[MAX_PROMPT];
    struct engine_token out[MAX_TOKENS];
    enum engine_state doom; /* cancelled when it is there; ENGINE_DONE: not */
    uint32_t doom_tokens;   /* and has so many tokens */
    bool in, ended, cancelled;
};

/* The requests follow from the number alone; prompts begin alike. */
static void prepare(struct one *o, uint32_t n_vocab, uint32_t which)
{
    uint32_t state = 777 * which, n = 1 + which * 29 % MAX_PROMPT;
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        o->prompt[i] = (int32_t)((i < 66 && which % 2 ? i * 31 + 5 : state >> 10) % n_vocab);
    }
    o->r = (struct engine_request){.prompt = o->prompt,
                                   .n_prompt = n,
                                   .max_tokens = which % (MAX_TOKENS + 1),
                                   .cache_prompt = which % 5 != 0,
                                   .want_logprobs = which % 3 == 0,
                                   .ignore_eos = true,
                                   .user = o,
                                   .out = o->out};
    o->r.sampling =
        (struct step_sampling){.seed = which, .temperature = which % 4 ? 0.9f : 0, STEP_SAMPLING_NEUTRAL};
}

/* --- an engine --- */

struct circumstances {
    const struct backend_ops *ops;
    uint32_t n_pages, n_slots, queue_limit, steps_in_flight, max_chunk, park_after_ms;
    uint32_t crowd; /* requests at once, at most */
};

struct life {
    struct model *model;
    struct executor *x;
    struct engine *e;
    uint32_t n_vocab, n_ended;
    struct one ones[N];
};

static void open_engine(struct life *l, const struct circumstances *c)
{
    struct error err = {0};
    struct engine_config e = {.n_slots = c->n_slots,
                              .n_ctx = N_CTX,
                              .queue_limit = c->queue_limit,
                              .steps_in_flight = c->steps_in_flight,
                              .max_chunk = c->max_chunk,
                              .prefix_cache = true};
    cr_assert_eq(engine_open(&l->e, l->x, &e, &err), 0, "%s", err.text);
    for (uint32_t i = 0; i < N; i++)
        prepare(&l->ones[i], l->n_vocab, i);
}

static void open_life(struct life *l, const struct circumstances *c)
{
    struct error err = {0};
    memset(l, 0, sizeof *l);
    cr_assert_eq(model_open(&l->model, MODEL, &err), 0, "%s", err.text);
    const struct model_config *m = model_config(l->model);
    struct kv_layout kv = {
        .n_layers = m->n_layers, .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim, .type = KV_F16};
    struct backend_config b = {.n_threads = 1,
                               .isa = "auto",
                               .libcuda = LIBCUDA,
                               .stall_ms = 120000,
                               .n_slots = c->n_slots,
                               .n_ctx = N_CTX,
                               .kv_type = KV_F16,
                               .kv_memory = c->n_pages * kv_page_size(&kv),
                               .park_after_ms = c->park_after_ms,
                               .steps_in_flight = c->steps_in_flight};
    cr_assert_eq(executor_open(&l->x, EXECUTOR_PERSISTENT, c->ops, &b, l->model, &err), 0, "%s", err.text);
    l->n_vocab = m->n_vocab;
    open_engine(l, c);
}

static void close_life(struct life *l)
{
    engine_close(l->e);
    executor_close(l->x);
    model_close(l->model);
}

/* The tokens that each request gives alone on the cpu. */
static const struct one *reference(void)
{
    static struct life l;
    static bool made;
    const struct circumstances c = {&cpu_backend, 16, 1, 1, 1, 0, 0, 1};
    if (made)
        return l.ones;
    open_life(&l, &c);
    for (uint32_t i = 0; i < N; i++) {
        cr_assert_eq(engine_submit(l.e, &l.ones[i].r, NULL), 0);
        while (atomic_load(&l.ones[i].r.state) != ENGINE_DONE)
            if (!engine_next(l.e))
                let_them_work();
    }
    close_life(&l);
    made = true;
    return l.ones;
}

static void check_tokens(const struct one *o, const struct one *want)
{
    uint32_t n = atomic_load(&o->r.n_out);
    cr_assert_leq(n, want->r.max_tokens);
    for (uint32_t i = 0; i < n; i++)
        cr_assert_eq(memcmp(&o->out[i], &want->out[i], sizeof *o->out), 0,
                     "token %u behind a prompt of %u: %d (%a), the cpu's is %d (%a)", i, o->r.n_prompt,
                     o->out[i].token, (double)o->out[i].logprob, want->out[i].token,
                     (double)want->out[i].logprob);
    if (o->r.finish == ENGINE_LENGTH)
        cr_assert_eq(n, want->r.max_tokens);
}

/* Takes the requests that have news; none ends twice. */
static void take_news(struct life *l)
{
    struct engine_request *r;
    while ((r = engine_next(l->e))) {
        struct one *o = r->user;
        cr_assert(o->in && !o->ended, "ended twice, or never let in");
        if (atomic_load(&r->state) != ENGINE_DONE)
            continue;
        cr_assert(r->finish == ENGINE_LENGTH || r->finish == ENGINE_FAULT ||
                      (r->finish == ENGINE_CANCELLED && o->cancelled),
                  "finish %d", (int)r->finish);
        o->ended = true;
        l->n_ended++;
    }
}

static struct circumstances random_circumstances(uint64_t seed)
{
    static const char *const blocks[] = {"1", "2", "3"};
    random_state = seed * 7919 + 1;
    setenv("SIMT_BLOCKS", blocks[below(3)], 1);
    setenv("SIMT_DEVICE_SM", below(2) ? "80" : "90", 1);
    return (struct circumstances){.ops = &cuda_backend,
                                  .n_pages = 4 + below(6),
                                  .n_slots = 1 + below(5),
                                  .queue_limit = 3 + below(N),
                                  .steps_in_flight = 1 + below(2),
                                  .max_chunk = below(2) ? 1 + below(20) : 0,
                                  .park_after_ms = below(2) ? 1 + below(3) : 0,
                                  .crowd = 1 + below(N)};
}

/* A third of them is cancelled: while it waits, in the middle of its prompt or of its tokens. */
static void doom(struct life *l)
{
    for (uint32_t i = 0; i < N; i++) {
        struct one *o = &l->ones[i];
        o->doom = below(3) ? ENGINE_DONE : ENGINE_QUEUED + below(ENGINE_DECODE - ENGINE_QUEUED + 1);
        o->doom_tokens = o->doom == ENGINE_DECODE ? below(MAX_TOKENS) : 0;
    }
}

static void cancel_the_doomed(struct life *l)
{
    for (uint32_t i = 0; i < N; i++) {
        struct one *o = &l->ones[i];
        if (!o->in || o->ended || o->cancelled || atomic_load(&o->r.state) < o->doom ||
            atomic_load(&o->r.n_out) < o->doom_tokens)
            continue;
        o->cancelled = true;
        engine_cancel(l->e, &o->r);
    }
}

/* Sends one after another and cancels the doomed, until `n_ended` have ended, or all. Requests let in. */
static uint32_t go_on(struct life *l, const struct circumstances *c, uint32_t n_ended)
{
    uint32_t n = 0, n_in = 0;
    while (l->n_ended < n_ended && (n < N || l->n_ended < n_in)) {
        if (n < N && n_in - l->n_ended < c->crowd) {
            int rc = engine_submit(l->e, &l->ones[n].r, NULL);
            cr_assert(rc == 0 || rc == -EAGAIN || rc == -EIO, "%d", rc);
            l->ones[n++].in = rc == 0;
            n_in += rc == 0;
        }
        cancel_the_doomed(l);
        take_news(l);
        let_them_work();
    }
    return n_in;
}

/* With nothing left to do every page is free, or in the prefix cache. */
static void check_pages(struct life *l)
{
    struct engine_stats s;
    for (engine_stats(l->e, &s); !s.idle; engine_stats(l->e, &s))
        let_them_work();
    cr_assert_eq(s.pages_used, 0, "%u pages stay", s.pages_used);
}

static void serve_all(struct life *l, const struct circumstances *c, const struct one *want)
{
    uint32_t n_in = go_on(l, c, N);
    cr_assert_eq(l->n_ended, n_in);
    check_pages(l);
    for (uint32_t i = 0; i < N; i++)
        if (l->ones[i].in)
            check_tokens(&l->ones[i], &want[i]);
}

/* Seeds from `first` on. */
static struct criterion_test_params seeds_from(int first, int n)
{
    static int seeds[MOST_LIVES];
    const char *more = getenv("HEARTH_LIVES");
    n = more && atoi(more) > 0 ? atoi(more) : n;
    n = n < MOST_LIVES ? n : MOST_LIVES;
    for (int i = 0; i < n; i++)
        seeds[i] = first + i;
    return cr_make_param_array(int, seeds, (size_t)n);
}

/* --- tests --- */

ParameterizedTestParameters(cuda_lives, all_end_with_the_cpus_tokens_and_pages_return)
{
    return seeds_from(1, 2 * LIVES - 1);
}

ParameterizedTest(int *seed, cuda_lives, all_end_with_the_cpus_tokens_and_pages_return, .timeout = 1200)
{
    static struct life l;
    const struct one *want = reference();
    struct circumstances c = random_circumstances((uint64_t)*seed);
    struct engine_stats s;
    open_life(&l, &c);
    doom(&l);
    serve_all(&l, &c, want);
    engine_stats(l.e, &s);
    cr_assert_eq(s.completed + s.cancelled + s.rejected, N);
    close_life(&l);
}

ParameterizedTestParameters(cuda_lives, an_engine_closed_in_the_middle_has_ended_all)
{
    return seeds_from(10011, LIVES);
}

/* An engine leaves nothing on the device that disturbs the next, which gets all pages. */
ParameterizedTest(int *seed, cuda_lives, an_engine_closed_in_the_middle_has_ended_all, .timeout = 1200)
{
    static struct life l;
    const struct one *want = reference();
    struct circumstances c = random_circumstances((uint64_t)*seed);
    open_life(&l, &c);
    doom(&l);
    go_on(&l, &c, 1 + below(4));
    engine_close(l.e);
    for (uint32_t i = 0; i < N; i++) {
        const struct one *o = &l.ones[i];
        if (!o->in)
            continue;
        cr_assert_eq(atomic_load(&o->r.state), ENGINE_DONE, "request %u has not ended", i);
        cr_assert(o->ended || o->r.finish == ENGINE_CANCELLED || o->r.finish == ENGINE_LENGTH);
        check_tokens(o, &want[i]);
    }
    open_engine(&l, &c);
    l.n_ended = 0;
    doom(&l);
    serve_all(&l, &c, want);
    close_life(&l);
}

ParameterizedTestParameters(cuda_lives, a_device_that_dies_ends_all)
{
    return seeds_from(20021, LIVES);
}

ParameterizedTest(int *seed, cuda_lives, a_device_that_dies_ends_all, .timeout = 1200)
{
    static struct life l;
    const struct one *want = reference();
    struct circumstances c = random_circumstances((uint64_t)*seed);
    struct error err = {0};
    char fault[40];
    c.park_after_ms = 0; /* a launch counts its steps anew */
    snprintf(fault, sizeof fault, "step:%u", 400000 + below(4000000));
    setenv("SIMT_FAULT", fault, 1);
    open_life(&l, &c);
    doom(&l);
    uint32_t n_in = go_on(&l, &c, N);
    cr_assert_eq(l.n_ended, n_in);
    while (!engine_fault(l.e, &err)) /* it waits for work in steps, too */
        let_them_work();
    check_pages(&l);
    struct one *late = &l.ones[0];
    prepare(late, l.n_vocab, 0);
    cr_assert_eq(engine_submit(l.e, &late->r, NULL), -EIO);
    for (uint32_t i = 1; i < N; i++)
        if (l.ones[i].in)
            check_tokens(&l.ones[i], &want[i]);
    close_life(&l);
}
