/* The promise in the large: a request's tokens and log-probabilities are the same bits beside any others,
 * however its prompt is cut, after a prefix hit, with one or two steps in flight, by any executor, thread
 * count and instruction set. Each KV type and each model has a reference of its own: the request alone, the
 * slow way. */
#include "support/identity.h"
#include "support/sanitized.h"
#include "tokenizer/tokenizer.h"

static const char *const models[] = {
    HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf",
    HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf", HEARTH_TEST_DATA "/tiny-qwen2-odd-s13-q5_0.gguf"};
static const char *const demo = HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf";

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
    {"amx", {.isa = "amx", .n_threads = 1, .steps_in_flight = 1}},
    {"eager",
     {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 3}},
};

/* Without --all every second pair of a type and circumstances: all circumstances meet each type, and each
 * model. */
static void check_model(const char *path, int first_type)
{
    const size_t stride = SAMPLED_STRIDE(2, 3);
    static struct answer alone, other;
    for (int type = first_type % SANITIZED_STRIDE(3); type < KV_N_TYPES; type += SANITIZED_STRIDE(3)) {
        struct circumstances slow = {
            .kv_type = (enum kv_type)type, .isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
        cr_assert(ask(path, slow, &alone));
        for (size_t i = (size_t)(type + first_type) % stride; i < sizeof cases / sizeof *cases; i += stride) {
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
    check_model(models[0], 0);
}

Test(identity, qwen3_q8_0_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[1], 1);
}

Test(identity, llama3_q4_k_m_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[2], 2);
}

Test(identity, qwen2_q5_0_gives_the_same_bits_in_all_circumstances)
{
    check_model(models[3], 3);
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

/* Choices of one prompt, and requests with those seeds sent one by one without a prefix to share. */
static void check_choices(const char *path, enum kv_type type, uint32_t max_chunk, uint32_t n_prompt)
{
    enum { N = 4 };
    static struct answer choices[N], alone[N];
    struct circumstances c = usual;
    struct rig rig;
    c.kv_type = type;
    c.max_chunk = max_chunk;
    cr_assert(rig_open(&rig, path, &c, NULL, 0));
    for (uint32_t i = 0; i < N; i++) {
        prepare(&alone[i], rig.n_vocab, 0);
        alone[i].r.n_prompt = n_prompt;
        alone[i].r.sampling.seed += i;
        alone[i].r.cache_prompt = false;
        choices[i] = alone[i];
        choices[i].r.prompt = choices[0].prompt;
        choices[i].r.out = choices[i].out;
        choices[i].r.top = choices[i].top;
        choices[i].r.next_choice = i + 1 < N ? &choices[i + 1].r : NULL;
        cr_assert_eq(engine_submit(rig.e, &alone[i].r, NULL), 0);
        wait_done(&rig, &alone[i]);
    }
    cr_assert_eq(engine_submit(rig.e, &choices[0].r, NULL), 0);
    for (uint32_t i = 0; i < N; i++) {
        wait_done(&rig, &choices[i]);
        expect_same(&alone[i], &choices[i], path, "one of four choices");
    }
    struct engine_stats s;
    engine_stats(rig.e, &s);
    cr_assert_eq(s.prompt_tokens, (N + 1) * n_prompt);
    rig_close(&rig);
}

Test(identity, choices_of_one_prompt_are_as_each_would_be_alone)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_choices(models[i], KV_F16, 0, 150);
        check_choices(models[i], KV_Q8_0, 7, 128);
        check_choices(models[i], KV_BF16, 0, 129);
        check_choices(models[i], KV_Q8_0, 0, 1);
    }
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
    cr_assert_eq(tokenizer_encode(t, "Once upon a time", 16,
                                  (struct tokenizer_flags){.add_special = true, .parse_special = true}, 0,
                                  &ids, &n_ids, &err),
                 0);
    size_t n_ends = tokenizer_ends(t, &ends);
    struct rig rig;
    cr_assert(rig_open(&rig, demo, &usual, ends, (uint32_t)n_ends));
    static struct engine_token out[N_CTX];
    struct engine_request r = {.prompt = ids, .n_prompt = (uint32_t)n_ids, .max_tokens = 200, .out = out};
    r.sampling = (struct step_sampling){STEP_SAMPLING_NEUTRAL};
    cr_assert_eq(engine_submit(rig.e, &r, NULL), 0);
    wait_end(&rig, &r);
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
