/* identity.h - one request in given circumstances, through a whole engine: what its tokens and
 * log-probabilities are, and that two answers are the same bits. */
#pragma once
#include "engine/engine.h"
#include "model/model.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tokens of the request in question; a backend on the emulator takes fewer. */
#ifndef IDENTITY_PROMPT
#define IDENTITY_PROMPT 150
#define IDENTITY_TOKENS 40
#endif
#ifndef IDENTITY_CTX
#define IDENTITY_CTX 256
#endif
enum {
    N_PROMPT = IDENTITY_PROMPT,
    N_TOKENS = IDENTITY_TOKENS,
    N_TOP = 3,
    N_NEIGHBOURS = 7,
    N_CTX = IDENTITY_CTX
};

struct circumstances {
    enum executor_kind kind;
    enum kv_type kv_type;
    const char *isa;
    const struct backend_ops *ops; /* NULL: cpu */
    const char *libcuda;
    uint32_t n_threads, steps_in_flight, max_chunk, n_neighbours;
    uint64_t draw_ns;
    bool after_hit;
    enum engine_speculation speculation;
};

struct named_circumstances {
    const char *what;
    struct circumstances c;
};

/* Rows of the tables of several tests. */
#define BESIDE_SEVEN_OTHERS                                                                                  \
    {                                                                                                        \
        "two steps in flight, beside seven others",                                                          \
        {                                                                                                    \
            .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 7                           \
        }                                                                                                    \
    }
#define CHUNKS_OF_7_BESIDE_THREE                                                                             \
    {                                                                                                        \
        "chunks of 7, beside three others",                                                                  \
        {                                                                                                    \
            .isa = "auto", .n_threads = 1, .steps_in_flight = 1, .max_chunk = 7, .n_neighbours = 3           \
        }                                                                                                    \
    }
#define CHUNKS_OF_1                                                                                          \
    {                                                                                                        \
        "chunks of 1, avx2",                                                                                 \
        {                                                                                                    \
            .isa = "avx2", .n_threads = 1, .steps_in_flight = 2, .max_chunk = 1                              \
        }                                                                                                    \
    }
#define AFTER_A_HIT                                                                                          \
    {                                                                                                        \
        "after a prefix hit",                                                                                \
        {                                                                                                    \
            .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .after_hit = true                           \
        }                                                                                                    \
    }

struct rig {
    struct model *model;
    struct executor *x;
    struct engine *e;
    sem_t news; /* posted when engine_next() has something */
    uint32_t n_vocab;
};

static inline void rig_wake(void *context)
{
    sem_post(&((struct rig *)context)->news);
}

/* False when this CPU lacks the instruction set. */
static inline bool rig_open(struct rig *rig, const char *path, const struct circumstances *c,
                            const int32_t *ends, uint32_t n_ends)
{
    struct error err = {0};
    *rig = (struct rig){0};
    cr_assert_eq(model_open(&rig->model, path, &err), 0, "%s", err.text);
    rig->n_vocab = model_config(rig->model)->n_vocab;
    struct backend_config b = {.n_threads = c->n_threads,
                               .isa = c->isa,
                               .libcuda = c->libcuda,
                               .kv_memory = c->libcuda ? 24 << 20 : 0, /* the emulator fills all of it */
                               .stall_ms = 120000,
                               .n_slots = 8,
                               .n_ctx = N_CTX,
                               .end_tokens = ends,
                               .n_end_tokens = n_ends,
                               .kv_type = c->kv_type,
                               .steps_in_flight = c->steps_in_flight};
    int rc = executor_open(&rig->x, c->kind, c->ops ? c->ops : &cpu_backend, &b, rig->model, &err);
    if (rc < 0) {
        cr_assert(rc == -ENOTSUP && strcmp(c->isa, "scalar") != 0, "%s", err.text);
        model_close(rig->model);
        return false;
    }
    struct engine_config cfg = {.n_slots = 8,
                                .n_ctx = N_CTX,
                                .queue_limit = 100,
                                .steps_in_flight = c->steps_in_flight,
                                .max_chunk = c->max_chunk,
                                .draw_ns = c->draw_ns,
                                .prefix_cache = true,
                                .speculation = c->speculation,
                                .end_tokens = ends,
                                .n_end_tokens = n_ends,
                                .wake = rig_wake,
                                .context = rig};
    sem_init(&rig->news, 0, 0);
    cr_assert_eq(engine_open(&rig->e, rig->x, &cfg, &err), 0, "%s", err.text);
    return true;
}

/* After any requests no page is held in the end. */
static inline void rig_close(struct rig *rig)
{
    struct engine_stats s;
    for (engine_stats(rig->e, &s); !s.idle; engine_stats(rig->e, &s))
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    cr_assert_eq(s.pages_used, 0, "%u pages stay", s.pages_used);
    engine_close(rig->e);
    executor_close(rig->x);
    model_close(rig->model);
    sem_destroy(&rig->news);
}

struct answer {
    struct engine_request r;
    int32_t prompt[N_PROMPT];
    struct engine_token out[N_TOKENS], prompt_out[N_PROMPT];
    struct step_top top[N_TOKENS * N_TOP], prompt_top[N_PROMPT * N_TOP];
};

/* `which` 0 is the request in question, 1.. its neighbours. */
static inline void prepare(struct answer *a, uint32_t n_vocab, uint32_t which)
{
    memset(a, 0, sizeof *a);
    uint32_t state = 12345 + which;
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        state = state * 1664525 + 1013904223;
        a->prompt[i] = (int32_t)((state >> 10) % n_vocab);
    }
    a->r = (struct engine_request){.prompt = a->prompt,
                                   .n_prompt = which ? 5 + N_PROMPT / 8 * which : N_PROMPT,
                                   .max_tokens = N_TOKENS - which,
                                   .cache_prompt = true,
                                   .want_logprobs = true,
                                   .n_top = N_TOP,
                                   .out = a->out,
                                   .top = a->top,
                                   .prompt_out = a->prompt_out,
                                   .prompt_top = a->prompt_top};
    a->r.sampling = (struct step_sampling){.seed = 42 + which,
                                           .temperature = which % 3 == 2 ? 0 : 0.9f,
                                           .top_k = 40,
                                           .top_p = 0.95f,
                                           .typical_p = 1,
                                           .min_p = 0.01f,
                                           .repetition_penalty = 1.1f,
                                           .presence_penalty = 0.2f,
                                           .penalty_last_n = 64};
}

static inline void wait_end(struct rig *rig, struct engine_request *r)
{
    while (atomic_load_explicit(&r->state, memory_order_acquire) != ENGINE_DONE)
        if (!engine_next(rig->e))
            sem_wait(&rig->news); /* a signal ends it early: then it is only asked once more */
}

static inline void wait_done(struct rig *rig, struct answer *a)
{
    wait_end(rig, &a->r);
    cr_assert(a->r.finish == ENGINE_LENGTH || a->r.finish == ENGINE_EOS, "finish %d", a->r.finish);
}

static struct answer neighbours[N_NEIGHBOURS];

/* Submits c->n_neighbours other requests with the chains of chains[] (NULL: none has one; an entry may be
 * NULL). */
static inline void begin_neighbours(struct rig *rig, const struct circumstances *c,
                                    struct sampler_chain *const chains[N_NEIGHBOURS])
{
    for (uint32_t i = 0; i < c->n_neighbours; i++) {
        prepare(&neighbours[i], rig->n_vocab, i + 1);
        neighbours[i].r.chain = chains ? chains[i] : NULL;
        cr_assert_eq(engine_submit(rig->e, &neighbours[i].r, NULL), 0);
    }
}

static inline void end_neighbours(struct rig *rig, const struct circumstances *c)
{
    for (uint32_t i = 0; i < c->n_neighbours; i++)
        wait_done(rig, &neighbours[i]);
}

/* Submits `a` beside them, and waits for all. */
static inline void ask_beside(struct rig *rig, const struct circumstances *c, struct answer *a,
                              struct sampler_chain *const chains[N_NEIGHBOURS])
{
    begin_neighbours(rig, c, chains);
    cr_assert_eq(engine_submit(rig->e, &a->r, NULL), 0);
    wait_done(rig, a);
    end_neighbours(rig, c);
}

/* False when this CPU lacks the instruction set. */
static inline bool ask(const char *path, struct circumstances c, struct answer *a)
{
    struct rig rig;
    if (!rig_open(&rig, path, &c, NULL, 0))
        return false;
    prepare(a, rig.n_vocab, 0);
    if (c.after_hit) {
        cr_assert_eq(engine_submit(rig.e, &a->r, NULL), 0);
        wait_done(&rig, a);
        prepare(a, rig.n_vocab, 0);
    }
    ask_beside(&rig, &c, a, NULL);
    cr_assert_eq(a->r.n_cached, c.after_hit ? N_PROMPT / 64 * 64 : 0);
    rig_close(&rig);
    return true;
}

static inline void expect_same(const struct answer *a, const struct answer *b, const char *path,
                               const char *what)
{
    uint32_t n = atomic_load(&a->r.n_out);
    cr_assert_eq(atomic_load(&b->r.n_out), n, "%s: %s: %u tokens", path, what, atomic_load(&b->r.n_out));
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(b->out[i].token, a->out[i].token, "%s: %s: token %u", path, what, i);
        cr_assert_eq(memcmp(&b->out[i], &a->out[i], sizeof *a->out), 0, "%s: %s: log-probability %u", path,
                     what, i);
    }
    cr_assert_eq(memcmp(a->top, b->top, sizeof a->top), 0, "%s: %s: alternatives", path, what);
}
