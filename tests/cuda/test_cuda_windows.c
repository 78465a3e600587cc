/* Layers that see the last tokens alone keep on cuda, too, what their windows cover, and no bit depends on
 * it: several prompts at once, a prefix hit, choices, a client that leaves, page by page over the disk to
 * another decoder. The reference is the cpu with a context so short that every layer keeps all. */
#include "engine/engine.h"
#include "abi/kv_layout.h"
#include "kv/prefix_disk.h"
#include "model/model.h"
#include "support/models/made_model.h"
#include "support/temporary_dir.h"

#include <errno.h>
#include <time.h>

enum {
    SHORT = 256,
    LONG = 1024, /* more than the pages of a window of 16 and of a step's 256 rows */
    N_SLOTS = 3,
    N_ASKED = 5,
    MAX_PROMPT = 220,
    N_TOKENS = 8,
};

/* --- a decoder and its engine --- */

struct served {
    struct model *model;
    struct executor *x;
    struct engine *e;
    struct prefix_disk *disk;
};

static char model_path[64];

static void forget_model(void)
{
    unlink(model_path);
}

static void serve(struct served *s, enum executor_kind kind, const struct backend_ops *ops, uint32_t n_ctx,
                  const char *dir)
{
    struct error err = {0};
    *s = (struct served){0};
    cr_assert_eq(model_open(&s->model, model_path, &err), 0, "%s", err.text);
    struct backend_config b = {.n_threads = 1,
                               .isa = "auto",
                               .libcuda = LIBCUDA,
                               .kv_memory = 6 << 20,
                               .stall_ms = 120000,
                               .n_slots = N_SLOTS,
                               .n_ctx = n_ctx,
                               .kv_type = KV_F16,
                               .steps_in_flight = 1};
    cr_assert_eq(executor_open(&s->x, kind, ops, &b, s->model, &err), 0, "%s", err.text);
    struct backend_info info;
    executor_info(s->x, &info);
    struct prefix_disk_config d = {
        .dir = dir, .budget = 8 << 20, .model = 1, .order = info.kv_order, .kv = info.kv};
    if (dir)
        cr_assert_eq(prefix_disk_open(&s->disk, &d, &err), 0, "%s", err.text);
    struct engine_config e = {.n_slots = N_SLOTS,
                              .n_ctx = n_ctx,
                              .queue_limit = 2 * N_ASKED,
                              .steps_in_flight = 1,
                              .prefix_cache = true,
                              .disk = s->disk};
    cr_assert_eq(engine_open(&s->e, s->x, &e, &err), 0, "%s", err.text);
}

static void stop(struct served *s)
{
    engine_close(s->e);
    prefix_disk_close(s->disk);
    executor_close(s->x);
    model_close(s->model);
}

/* --- requests --- */

struct asked {
    struct engine_request r;
    int32_t prompt[MAX_PROMPT];
    struct engine_token out[N_TOKENS];
};

/* The prompt follows from its number and length; `seed` 0: greedy. */
static void ask(struct served *s, struct asked *a, uint32_t number, uint32_t n_prompt, uint32_t seed,
                struct asked *other)
{
    memset(a, 0, sizeof *a);
    for (uint32_t i = 0; i < n_prompt; i++)
        a->prompt[i] = (int32_t)(20 + (i * 7 + number * 31 + i * i % 13) % 400);
    a->r = (struct engine_request){.next_choice = other ? &other->r : NULL,
                                   .prompt = a->prompt,
                                   .n_prompt = n_prompt,
                                   .max_tokens = N_TOKENS,
                                   .cache_prompt = true,
                                   .ignore_eos = true,
                                   .want_logprobs = true,
                                   .out = a->out};
    a->r.sampling =
        (struct step_sampling){.seed = seed, .temperature = seed ? 0.9f : 0, STEP_SAMPLING_NEUTRAL};
    if (s) {
        struct error err = {0};
        cr_assert_eq(engine_submit(s->e, &a->r, &err), 0, "%s", err.text);
    }
}

static void await(struct served *s, struct asked *a)
{
    while (atomic_load(&a->r.state) != ENGINE_DONE)
        if (!engine_next(s->e))
            (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void expect_same(const struct asked *a, const struct asked *want, const char *what)
{
    cr_assert_eq(a->r.finish, ENGINE_LENGTH, "%s: finish %d", what, (int)a->r.finish);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        cr_assert_eq(memcmp(&a->out[i], &want->out[i], sizeof *a->out), 0,
                     "%s: token %u is %d (%a), the cpu's %d (%a)", what, i, a->out[i].token,
                     (double)a->out[i].logprob, want->out[i].token, (double)want->out[i].logprob);
}

static const uint32_t lengths[N_ASKED] = {MAX_PROMPT, 70, 131, 193, 128};

/* Each alone on the cpu; then the first again with a seed. */
static struct asked wanted[N_ASKED], wanted_choice;

static void know_answers(void)
{
    struct served s;
    struct engine_stats stats;
    serve(&s, EXECUTOR_PERSISTENT, &cpu_backend, SHORT, NULL);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        ask(&s, &wanted[i], i, lengths[i], 0, NULL);
        await(&s, &wanted[i]);
    }
    ask(&s, &wanted_choice, 0, lengths[0], 5, NULL);
    await(&s, &wanted_choice);
    engine_stats(s.e, &stats);
    cr_assert_eq(stats.windows_total, 0, "every layer keeps all");
    stop(&s);
}

static void begin(void)
{
    made_model("tiny-gemma3 --n-ctx 1024", "q4_k_m", model_path);
    know_answers();
}

/* Every layer has a window. */
static void begin_phi(void)
{
    made_model("tiny-phi3 --n-ctx 1024", "q4_k_m", model_path);
    know_answers();
}

/* There are window pages, and none is held at the end. */
static void expect_windows(struct served *s)
{
    struct engine_stats stats;
    do {
        engine_stats(s->e, &stats);
        (void)engine_next(s->e);
    } while (!stats.idle);
    cr_assert_gt(stats.windows_total, 0);
    cr_assert_eq(stats.windows_used, 0, "%u window pages stay", stats.windows_used);
    cr_assert_eq(stats.pages_used, 0, "%u pages stay", stats.pages_used);
}

/* All prompts at once; then a hit with another choice beside it, and one whose client leaves. */
static void check_all(enum executor_kind kind, const char *what)
{
    static struct asked asked[N_ASKED], again, choice, left;
    struct served s;
    serve(&s, kind, &cuda_backend, LONG, NULL);
    for (uint32_t i = 0; i < N_ASKED; i++)
        ask(&s, &asked[i], i, lengths[i], 0, NULL);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        await(&s, &asked[i]);
        expect_same(&asked[i], &wanted[i], what);
    }
    ask(NULL, &choice, 0, lengths[0], 5, NULL);
    ask(&s, &again, 0, lengths[0], 0, &choice);
    ask(&s, &left, 9, 200, 0, NULL);
    engine_cancel(s.e, &left.r);
    await(&s, &again);
    await(&s, &choice);
    await(&s, &left);
    expect_same(&again, &wanted[0], "after a hit");
    expect_same(&choice, &wanted_choice, "another choice");
    cr_assert_eq(again.r.n_cached, (lengths[0] - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS, "%u cached",
                 again.r.n_cached);
    expect_windows(&s);
    stop(&s);
}

TestSuite(cuda_windows, .init = begin, .fini = forget_model, .timeout = 1200);

Test(cuda_windows, the_persistent_decoder_gives_the_cpus_bits)
{
    setenv("SIMT_BLOCKS", "2", 1);
    check_all(EXECUTOR_PERSISTENT, "persistent");
}

Test(cuda_windows, so_do_single_nodes)
{
    check_all(EXECUTOR_EAGER, "eager");
}

static void check_disk(void)
{
    static struct asked first, again;
    char *dir = temporary_dir();
    for (uint32_t life = 0; life < 2; life++) {
        struct served s;
        struct asked *a = life ? &again : &first;
        struct engine_stats stats;
        serve(&s, EXECUTOR_PERSISTENT, &cuda_backend, LONG, dir);
        ask(&s, a, 3, lengths[3], 0, NULL);
        await(&s, a);
        expect_same(a, &wanted[3], life ? "from the disk" : "to the disk");
        do
            engine_stats(s.e, &stats);
        while (life == 0 && stats.disk_spilled < lengths[3] / KV_PAGE_TOKENS && !stats.disk_errors);
        cr_assert_eq(stats.disk_errors, 0);
        expect_windows(&s);
        stop(&s);
    }
    cr_assert_eq(first.r.n_cached, 0);
    cr_assert_eq(again.r.n_cached, (lengths[3] - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS, "%u cached",
                 again.r.n_cached);
    temporary_dir_remove(dir);
}

Test(cuda_windows, pages_come_back_from_the_disk_with_what_their_windows_need)
{
    check_disk();
}

Test(cuda_windows, nothing_is_lost_where_every_layer_has_one, .init = begin_phi)
{
    setenv("SIMT_BLOCKS", "2", 1);
    check_all(EXECUTOR_PERSISTENT, "persistent");
    check_all(EXECUTOR_EAGER, "eager");
    check_disk();
}
