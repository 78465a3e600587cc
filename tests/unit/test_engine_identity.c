/* The promise in the large: a request's tokens and log-probabilities are the same bits whatever runs beside
 * it, however its prompt is cut, after a prefix hit, with one or two steps in flight, by any executor, thread
 * count and instruction set. Each KV type and each model has a reference of its own: the request alone, the
 * slow way. */
#include "engine.h"
#include "model.h"
#include "tokenizer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPT = 150, N_TOKENS = 40, N_TOP = 3, N_NEIGHBOURS = 7, N_CTX = 256 };

static const char *const models[] = {
    HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf",
    HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf"};
static const char *const demo = HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf";

struct circumstances {
    enum executor_kind kind;
    enum kv_type kv_type;
    const char *isa;
    uint32_t n_threads, steps_in_flight, max_chunk, n_neighbours;
    bool after_hit;
};

struct rig {
    struct model *model;
    struct executor *x;
    struct engine *e;
    uint32_t n_vocab;
};

/* False when this CPU lacks the instruction set. */
static bool rig_open(struct rig *rig, const char *path, const struct circumstances *c, const int32_t *ends,
                     uint32_t n_ends)
{
    struct error err = {0};
    *rig = (struct rig){0};
    cr_assert_eq(model_open(&rig->model, path, &err), 0, "%s", err.text);
    rig->n_vocab = model_config(rig->model)->n_vocab;
    struct backend_config b = {.n_threads = c->n_threads,
                               .isa = c->isa,
                               .n_slots = 8,
                               .n_ctx = N_CTX,
                               .end_tokens = ends,
                               .n_end_tokens = n_ends,
                               .kv_type = c->kv_type,
                               .steps_in_flight = c->steps_in_flight};
    int rc = executor_open(&rig->x, c->kind, &cpu_backend, &b, rig->model, &err);
    if (rc < 0) {
        cr_assert(rc == -ENOTSUP || strcmp(c->isa, "scalar") != 0, "%s", err.text);
        model_close(rig->model);
        return false;
    }
    struct engine_config cfg = {.n_slots = 8,
                                .n_ctx = N_CTX,
                                .queue_limit = 100,
                                .steps_in_flight = c->steps_in_flight,
                                .max_chunk = c->max_chunk,
                                .prefix_cache = true,
                                .end_tokens = ends,
                                .n_end_tokens = n_ends};
    cr_assert_eq(engine_open(&rig->e, rig->x, &cfg, &err), 0, "%s", err.text);
    return true;
}

static void rig_close(struct rig *rig)
{
    engine_close(rig->e);
    executor_close(rig->x);
    model_close(rig->model);
}

struct answer {
    struct engine_request r;
    int32_t prompt[N_PROMPT];
    struct engine_token out[N_TOKENS], prompt_out[N_PROMPT];
    struct step_top top[N_TOKENS * N_TOP], prompt_top[N_PROMPT * N_TOP];
};

/* `which` 0 is the request in question, 1.. its neighbours. */
static void prepare(struct answer *a, uint32_t n_vocab, uint32_t which)
{
    memset(a, 0, sizeof *a);
    uint32_t state = 12345 + which;
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        state = state * 1664525 + 1013904223;
        a->prompt[i] = (int32_t)((state >> 10) % n_vocab);
    }
    a->r = (struct engine_request){.prompt = a->prompt,
                                   .n_prompt = which ? 5 + 20 * which : N_PROMPT,
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

static void wait_done(struct rig *rig, struct answer *a)
{
    while (atomic_load_explicit(&a->r.state, memory_order_acquire) != ENGINE_DONE)
        if (!engine_next(rig->e))
            sched_yield();
    cr_assert(a->r.finish == ENGINE_LENGTH || a->r.finish == ENGINE_EOS, "finish %d", a->r.finish);
}

/* False when this CPU lacks the instruction set. */
static bool ask(const char *path, struct circumstances c, struct answer *a)
{
    static struct answer neighbours[N_NEIGHBOURS];
    struct rig rig;
    if (!rig_open(&rig, path, &c, NULL, 0))
        return false;
    prepare(a, rig.n_vocab, 0);
    if (c.after_hit) {
        cr_assert_eq(engine_submit(rig.e, &a->r, NULL), 0);
        wait_done(&rig, a);
        prepare(a, rig.n_vocab, 0);
    }
    for (uint32_t i = 0; i < c.n_neighbours; i++) {
        prepare(&neighbours[i], rig.n_vocab, i + 1);
        cr_assert_eq(engine_submit(rig.e, &neighbours[i].r, NULL), 0);
    }
    cr_assert_eq(engine_submit(rig.e, &a->r, NULL), 0);
    wait_done(&rig, a);
    for (uint32_t i = 0; i < c.n_neighbours; i++)
        wait_done(&rig, &neighbours[i]);
    cr_assert_eq(a->r.n_cached, c.after_hit ? N_PROMPT / 64 * 64 : 0);
    rig_close(&rig);
    return true;
}

static void expect_same(const struct answer *a, const struct answer *b, const char *path, const char *what)
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

static const struct {
    const char *what;
    struct circumstances c;
} cases[] = {
    {"two steps in flight", {.isa = "scalar", .n_threads = 1, .steps_in_flight = 2}},
    {"beside seven others", {.isa = "auto", .n_threads = 1, .steps_in_flight = 2, .n_neighbours = 7}},
    {"beside seven others, two threads, one step",
     {.isa = "auto", .n_threads = 2, .steps_in_flight = 1, .n_neighbours = 7}},
    {"chunks of 1", {.isa = "auto", .n_threads = 1, .steps_in_flight = 2, .max_chunk = 1}},
    {"chunks of 7", {.isa = "auto", .n_threads = 2, .steps_in_flight = 1, .max_chunk = 7}},
    {"chunks of 64", {.isa = "auto", .n_threads = 2, .steps_in_flight = 2, .max_chunk = 64}},
    {"after a prefix hit", {.isa = "auto", .n_threads = 1, .steps_in_flight = 2, .after_hit = true}},
    {"after a prefix hit beside seven others in chunks of 7",
     {.isa = "auto",
      .n_threads = 2,
      .steps_in_flight = 2,
      .after_hit = true,
      .n_neighbours = 7,
      .max_chunk = 7}},
    {"avx2", {.isa = "avx2", .n_threads = 1, .steps_in_flight = 1}},
    {"avxvnni", {.isa = "avxvnni", .n_threads = 1, .steps_in_flight = 1}},
    {"avx512", {.isa = "avx512", .n_threads = 1, .steps_in_flight = 1}},
    {"eager",
     {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 3}},
};

static void check_model(const char *path)
{
    static struct answer alone, other;
    for (int type = KV_F16; type <= KV_Q8_0; type++) {
        struct circumstances slow = {
            .kv_type = (enum kv_type)type, .isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
        cr_assert(ask(path, slow, &alone));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct circumstances c = cases[i].c;
            c.kv_type = (enum kv_type)type;
            if (ask(path, c, &other))
                expect_same(&alone, &other, path, cases[i].what);
            else
                cr_log_info("this CPU has no %s", c.isa);
        }
    }
}

Test(identity, qwen3_q4_k_m_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[0]);
}

Test(identity, qwen3_q8_0_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[1]);
}

Test(identity, llama3_q4_k_m_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[2]);
}

Test(identity, qwen2_q5_0_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[3]);
}

/* ---- what else is promised of real logits ---- */

static const struct circumstances usual = {.isa = "auto", .n_threads = 2, .steps_in_flight = 2};

Test(identity, prompt_log_probabilities_do_not_depend_on_chunks)
{
    static struct answer a[3];
    const uint32_t chunks[] = {0, 1, 7};
    for (int i = 0; i < 3; i++) {
        struct circumstances c = usual;
        struct rig rig;
        c.max_chunk = chunks[i];
        cr_assert(rig_open(&rig, models[0], &c, NULL, 0));
        prepare(&a[i], rig.n_vocab, 0);
        a[i].r.want_prompt_logprobs = true;
        a[i].r.n_prompt_top = N_TOP;
        cr_assert_eq(engine_submit(rig.e, &a[i].r, NULL), 0);
        wait_done(&rig, &a[i]);
        rig_close(&rig);
        for (uint32_t t = 1; t < N_PROMPT; t++)
            cr_assert(a[i].prompt_out[t].logprob < 0 && a[i].prompt_out[t].token == a[i].prompt[t]);
        cr_assert_eq(memcmp(a[i].prompt_out + 1, a[0].prompt_out + 1, (N_PROMPT - 1) * sizeof *a->prompt_out),
                     0);
        cr_assert_eq(memcmp(a[i].prompt_top, a[0].prompt_top, sizeof a->prompt_top), 0);
    }
}

Test(identity, another_seed_gives_another_text)
{
    static struct answer a, b;
    struct rig rig;
    cr_assert(rig_open(&rig, models[0], &usual, NULL, 0));
    prepare(&a, rig.n_vocab, 0);
    prepare(&b, rig.n_vocab, 0);
    b.r.sampling.seed++;
    cr_assert_eq(engine_submit(rig.e, &a.r, NULL), 0);
    cr_assert_eq(engine_submit(rig.e, &b.r, NULL), 0);
    wait_done(&rig, &a);
    wait_done(&rig, &b);
    uint32_t n_equal = 0;
    for (uint32_t i = 0; i < N_TOKENS; i++)
        n_equal += a.out[i].token == b.out[i].token;
    cr_assert_lt(n_equal, N_TOKENS / 2);
    rig_close(&rig);
}

Test(identity, a_text_continued_from_its_own_tokens_goes_on_the_same_way)
{
    /* 40 tokens at once, or 20 and then the prompt with those 20: the second half is the same, since noise
     * comes from the position and penalties from the history. */
    static struct answer whole, half;
    struct rig rig;
    cr_assert(rig_open(&rig, models[0], &usual, NULL, 0));
    prepare(&whole, rig.n_vocab, 0);
    whole.r.n_prompt = 100;
    cr_assert_eq(engine_submit(rig.e, &whole.r, NULL), 0);
    wait_done(&rig, &whole);
    prepare(&half, rig.n_vocab, 0);
    for (uint32_t i = 0; i < 20; i++)
        half.prompt[100 + i] = whole.out[i].token;
    half.r.n_prompt = 120;
    half.r.max_tokens = 20;
    cr_assert_eq(engine_submit(rig.e, &half.r, NULL), 0);
    wait_done(&rig, &half);
    cr_assert_eq(half.r.n_cached, 64);
    for (uint32_t i = 0; i < 20; i++)
        cr_assert_eq(half.out[i].token, whole.out[20 + i].token, "token %u", i);
    rig_close(&rig);
}

/* ---- the demo model's own golden ---- */

Test(demo, greedy_story_is_the_recorded_one)
{
    char expected[2048] = {0}, text[4096] = {0};
    FILE *f = fopen(HEARTH_TEST_DATA "/once-upon-a-time.txt", "rb");
    cr_assert_not_null(f);
    size_t n_expected = fread(expected, 1, sizeof expected - 1, f), n_text = 0, n_ids = 0;
    fclose(f);
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct error err = {0};
    int32_t *ids = NULL;
    const int32_t *ends;
    cr_assert_eq(gguf_open(&g, demo, &err), 0, "%s", err.text);
    cr_assert_eq(tokenizer_open(&t, g, &err), 0, "%s", err.text);
    cr_assert_eq(tokenizer_encode(t, "Once upon a time", 16, (struct tokenizer_flags){true, true}, 0, &ids,
                                  &n_ids, &err),
                 0);
    size_t n_ends = tokenizer_ends(t, &ends);
    struct rig rig;
    cr_assert(rig_open(&rig, demo, &usual, ends, (uint32_t)n_ends));
    static struct engine_token out[N_CTX];
    struct engine_request r = {.prompt = ids, .n_prompt = (uint32_t)n_ids, .max_tokens = 200, .out = out};
    r.sampling = (struct step_sampling){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    cr_assert_eq(engine_submit(rig.e, &r, NULL), 0);
    while (atomic_load_explicit(&r.state, memory_order_acquire) != ENGINE_DONE)
        if (!engine_next(rig.e))
            sched_yield();
    for (uint32_t i = 0; i < atomic_load(&r.n_out); i++) {
        struct tokenizer_piece p = tokenizer_piece(t, out[i].token, false);
        memcpy(text + n_text, p.s, p.len);
        n_text += p.len;
    }
    cr_assert(n_text == n_expected && memcmp(text, expected, n_text) == 0, "got: %s", text);
    rig_close(&rig);
    free(ids);
    tokenizer_close(t);
    gguf_close(g);
}
