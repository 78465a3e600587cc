/* States of recurrent layers on the cuda decoder, through the emulated driver: copies of them behind any row,
 * and through the host; and an engine whose requests begin with them, beside others, after a hit, as choices,
 * with drafts. Tokens and log-probabilities are the cpu's, bit for bit. */
#define IDENTITY_PROMPT 70
#define IDENTITY_TOKENS 10
#include "support/draft_identity.h"
#include "support/models/made_model.h"
#include "support/sanitized.h"
#include "support/state_run.h"

/* Sanitizers look at the host's side, which each shape and each of the circumstances shares. */
#ifndef STRIDE
#define STRIDE SANITIZED_STRIDE(2)
#endif

static struct decoder_run_config on_cuda(const char *path, enum executor_kind kind)
{
    return (struct decoder_run_config){
        .path = path, .kind = kind, .ops = &cuda_backend, .libcuda = LIBCUDA, .kv_memory = 4 << 20};
}

/* All tests have one timeout: Criterion 2.4.1 loses the timer of a test whose deadline lies between others',
 * and the leak checker then fails the suite. */
Test(cuda_states, a_sequence_goes_on_from_one_that_was_kept_behind_any_row, .timeout = 1200)
{
    static const struct {
        const char *shape;
        enum executor_kind kind;
    } runs[] = {{"tiny-qwen35", EXECUTOR_PERSISTENT},    {"tiny-qwen35", EXECUTOR_GRAPH},
                {"tiny-qwen3next", EXECUTOR_PERSISTENT}, {"tiny-qwen35moe", EXECUTOR_EAGER},
                {"tiny-qwen35moe", EXECUTOR_PERSISTENT}, {"tiny-qwen3next", EXECUTOR_GRAPH}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i += STRIDE) {
        char path[64];
        made_model(runs[i].shape, "q4_k_m", path);
        struct decoder_run_config c = on_cuda(path, runs[i].kind);
        state_check_snapshots(&c);
        (void)unlink(path);
    }
}

/* Fourteen warps work on a block's units, as on a real device. */
Test(cuda_states, so_it_does_in_blocks_of_the_real_size, .timeout = 1200)
{
    char path[64];
    made_model("tiny-qwen3next", "q4_k_m", path);
    setenv("SIMT_THREADS", "1024", 1);
    setenv("SIMT_SHARED_KB", "227", 1);
    struct decoder_run_config c = on_cuda(path, EXECUTOR_PERSISTENT);
    state_check_snapshots(&c);
    (void)unlink(path);
}

Test(cuda_states, and_from_one_that_was_exported_and_imported, .timeout = 1200)
{
    char path[64];
    static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_GRAPH};
    made_model("tiny-qwen35", "q8_0", path);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct decoder_run_config c = on_cuda(path, kinds[i]);
        state_check_exported(&c);
    }
    (void)unlink(path);
}

/* --- an engine --- */

static char path[64];

static void make(void)
{
    made_model("tiny-qwen35moe", "q4_k_m", path);
}

static void unmake(void)
{
    (void)unlink(path);
}

static struct circumstances with(struct circumstances c)
{
    c.isa = "auto";
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    return c;
}

static const struct circumstances slow = {.isa = "auto", .n_threads = 1, .steps_in_flight = 1};

Test(cuda_states, requests_have_the_cpus_bits_in_all_circumstances, .init = make, .fini = unmake,
     .timeout = 1200)
{
    static const struct {
        const char *what, *blocks, *sm;
        struct circumstances c;
    } cases[] = {
        {"persistent, beside seven others", "3", "90", {.steps_in_flight = 2, .n_neighbours = 7}},
        {"persistent, chunks of 7", "2", "80", {.steps_in_flight = 1, .max_chunk = 7}},
        {"persistent, after a hit, beside three others",
         "4",
         "90",
         {.steps_in_flight = 2, .after_hit = true, .n_neighbours = 3}},
        {"persistent, after a hit, chunks of 1",
         "1",
         "80",
         {.steps_in_flight = 1, .after_hit = true, .max_chunk = 1}},
        {"eager, beside seven others",
         "2",
         "90",
         {.kind = EXECUTOR_EAGER, .steps_in_flight = 2, .n_neighbours = 7}},
        {"graph, chunks of 7", "3", "80", {.kind = EXECUTOR_GRAPH, .steps_in_flight = 1, .max_chunk = 7}},
        {"graph, after a hit, beside three others",
         "3",
         "90",
         {.kind = EXECUTOR_GRAPH, .steps_in_flight = 2, .after_hit = true, .n_neighbours = 3}},
        {"eager, after a hit, chunks of 1",
         "1",
         "80",
         {.kind = EXECUTOR_EAGER, .steps_in_flight = 1, .after_hit = true, .max_chunk = 1}},
    };
    static struct answer alone, other;
    cr_assert(ask(path, slow, &alone));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += STRIDE) {
        setenv("SIMT_BLOCKS", cases[i].blocks, 1);
        setenv("SIMT_DEVICE_SM", cases[i].sm, 1);
        cr_assert(ask(path, with(cases[i].c), &other));
        expect_same(&alone, &other, path, cases[i].what);
    }
}

/* Three choices of a request, twice: the second time the state behind the prompt is in the cache. */
static void check_choices(const struct circumstances *c, const struct answer *alone)
{
    static struct answer a[3];
    struct rig rig;
    cr_assert(rig_open(&rig, path, c, NULL, 0));
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < 3; i++) {
            prepare(&a[i], rig.n_vocab, 0);
            a[i].r.sampling.seed = i;
            a[i].r.prompt = a[0].prompt;
            a[i].r.next_choice = i < 2 ? &a[i + 1].r : NULL;
        }
        cr_assert_eq(engine_submit(rig.e, &a[0].r, NULL), 0);
        for (uint32_t i = 0; i < 3; i++) {
            wait_done(&rig, &a[i]);
            expect_same(&alone[i], &a[i], path, "a choice");
        }
        cr_assert_eq(a[0].r.n_cached, again ? 64 : 0);
    }
    rig_close(&rig);
}

/* Each choice has the tokens that it has alone on the cpu. */
Test(cuda_states, choices_begin_with_the_state_behind_their_prompt, .init = make, .fini = unmake,
     .timeout = 1200)
{
    static struct answer alone[3];
    struct rig rig;
    cr_assert(rig_open(&rig, path, &slow, NULL, 0));
    for (uint32_t i = 0; i < 3; i++) {
        prepare(&alone[i], rig.n_vocab, 0);
        alone[i].r.sampling.seed = i;
        alone[i].r.cache_prompt = false;
        cr_assert_eq(engine_submit(rig.e, &alone[i].r, NULL), 0);
        wait_done(&rig, &alone[i]);
    }
    rig_close(&rig);
    for (enum executor_kind kind = EXECUTOR_PERSISTENT; kind <= EXECUTOR_GRAPH; kind += EXECUTOR_GRAPH) {
        struct circumstances c = with((struct circumstances){.kind = kind, .steps_in_flight = 2});
        check_choices(&c, alone);
    }
}

/* Drafts are right, wrong at once, and wrong after a while: then the state goes back. */
Test(cuda_states, drafts_change_no_bit, .init = make, .fini = unmake, .timeout = 1200)
{
    static const enum executor_kind kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_GRAPH, EXECUTOR_PERSISTENT,
                                               EXECUTOR_EAGER};
    uint64_t drafted = 0, accepted = 0;
    for (uint32_t i = 0; i < 4; i++) {
        struct circumstances c = with((struct circumstances){.kind = kinds[i], .steps_in_flight = 1 + i % 2});
        struct engine_stats s = check_drafts(path, c, 2 + i, i % 2);
        drafted += s.drafted;
        accepted += s.accepted;
    }
    cr_assert(accepted > 5 && drafted > accepted + 5, "%lu drafted, %lu accepted", (unsigned long)drafted,
              (unsigned long)accepted);
}
