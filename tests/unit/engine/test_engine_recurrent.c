/* Requests of a model with recurrent layers: the same bits in all circumstances, wherever they begin with the
 * state that an earlier one has left. */
#include "support/draft_identity.h"
#include "support/models/made_model.h"

static const struct named_circumstances cases[] = {
    BESIDE_SEVEN_OTHERS,
    CHUNKS_OF_7_BESIDE_THREE,
    CHUNKS_OF_1,
    AFTER_A_HIT,
    {"eager, beside three others",
     {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 3}},
    {"after a hit, chunks of 7, beside seven others",
     {.isa = "auto",
      .n_threads = 2,
      .steps_in_flight = 2,
      .max_chunk = 7,
      .n_neighbours = 7,
      .after_hit = true}},
    {"eager, after a hit",
     {.kind = EXECUTOR_EAGER, .isa = "scalar", .n_threads = 1, .steps_in_flight = 1, .after_hit = true}},
};

static const struct circumstances usual = {
    .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .speculation = ENGINE_SPECULATE_ALWAYS};

static char path[64];

static void make(void)
{
    made_model("tiny-qwen35moe", "q4_k_m", path);
}

static void unmake(void)
{
    (void)unlink(path);
}

static struct engine_stats stats(const struct rig *rig)
{
    struct engine_stats s;
    engine_stats(rig->e, &s);
    return s;
}

Test(engine_recurrent, gives_the_same_bits_in_all_circumstances, .init = make, .fini = unmake)
{
    static struct answer alone, other;
    const struct circumstances slow = {.isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
    cr_assert(ask(path, slow, &alone));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (ask(path, cases[i].c, &other))
            expect_same(&alone, &other, path, cases[i].what);
}

/* The same request three times, the second one cancelled on its way: what another has left in a slot does not
 * show, with and without the state of an earlier one. */
Test(engine_recurrent, forgets_the_sequence_that_a_slot_had_before, .init = make, .fini = unmake)
{
    static struct answer a[3];
    struct rig rig;
    cr_assert(rig_open(&rig, path, &usual, NULL, 0));
    for (int i = 0; i < 3; i++) {
        prepare(&a[i], rig.n_vocab, 0);
        a[i].r.cache_prompt = i == 2;
        cr_assert_eq(engine_submit(rig.e, &a[i].r, NULL), 0);
        if (i == 1)
            engine_cancel(rig.e, &a[i].r);
        if (i == 1)
            wait_end(&rig, &a[i].r);
        else
            wait_done(&rig, &a[i]);
    }
    expect_same(&a[0], &a[2], path, "the third one");
    cr_assert_eq(stats(&rig).cached_tokens, 0);
    rig_close(&rig);
}

/* Prompt `which`: the first `common` tokens are those of prompt 0. */
static void prepare_branch(struct answer *a, const struct rig *rig, uint32_t common, uint32_t which)
{
    prepare(a, rig->n_vocab, 0);
    for (uint32_t i = common; which && i < N_PROMPT; i++)
        a->prompt[i] = (int32_t)((i * 7 + which * 31) % rig->n_vocab);
}

static void expect_cached(struct rig *rig, struct answer *a, uint32_t n_cached, const char *what)
{
    static struct answer alone;
    alone = *a;
    alone.r.prompt = alone.prompt;
    alone.r.out = alone.out;
    alone.r.top = alone.top;
    alone.r.cache_prompt = false;
    cr_assert_eq(engine_submit(rig->e, &a->r, NULL), 0);
    wait_done(rig, a);
    cr_assert_eq(a->r.n_cached, n_cached, "%s: %u tokens cached", what, a->r.n_cached);
    cr_assert_eq(engine_submit(rig->e, &alone.r, NULL), 0);
    wait_done(rig, &alone);
    expect_same(&alone, a, path, what);
}

/* The first two prompts have a page in common, but no state was kept behind it: the second one keeps it. */
Test(engine_recurrent, keeps_the_state_where_a_prompt_leaves_another_one, .init = make, .fini = unmake)
{
    static struct answer a[4];
    struct rig rig;
    cr_assert(rig_open(&rig, path, &usual, NULL, 0));
    for (uint32_t i = 0; i < 4; i++)
        prepare_branch(&a[i], &rig, 100, i % 3);
    expect_cached(&rig, &a[0], 0, "the first");
    expect_cached(&rig, &a[1], 0, "the second");
    expect_cached(&rig, &a[2], 64, "the third");
    expect_cached(&rig, &a[3], 128, "the first again");
    cr_assert_gt(stats(&rig).snapshots_kept, 3);
    rig_close(&rig);
}

/* A chat's next turn begins with the prompt and the text of the one before it. */
Test(engine_recurrent, goes_on_behind_the_last_full_page_of_a_text, .init = make, .fini = unmake)
{
    static struct answer a, next;
    struct rig rig;
    cr_assert(rig_open(&rig, path, &usual, NULL, 0));
    prepare(&a, rig.n_vocab, 0);
    a.r.n_prompt = 100;
    cr_assert_eq(engine_submit(rig.e, &a.r, NULL), 0);
    wait_done(&rig, &a);
    cr_assert_eq(atomic_load(&a.r.n_out), N_TOKENS);
    prepare(&next, rig.n_vocab, 1);
    memcpy(next.prompt, a.prompt, 100 * sizeof *a.prompt);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        next.prompt[100 + i] = a.out[i].token;
    next.r.n_prompt = N_PROMPT;
    expect_cached(&rig, &next, 128, "the next turn");
    rig_close(&rig);
}

/* Takes every slot, and then leaves them to the requests that have come meanwhile. */
struct blocker {
    struct answer of[8];
};

static void block(struct rig *rig, struct blocker *b)
{
    for (int i = 0; i < 8; i++) {
        prepare(&b->of[i], rig->n_vocab, 7);
        b->of[i].r.ignore_eos = true;
        b->of[i].r.prompt = b->of[0].prompt;
        b->of[i].r.next_choice = i < 7 ? &b->of[i + 1].r : NULL;
    }
    cr_assert_eq(engine_submit(rig->e, &b->of[0].r, NULL), 0);
}

static void unblock(struct rig *rig, struct blocker *b)
{
    for (int i = 0; i < 8; i++)
        engine_cancel(rig->e, &b->of[i].r);
    for (int i = 0; i < 8; i++)
        wait_end(rig, &b->of[i].r);
}

/* Requests that come while another computes their prefix wait for the state behind it. Chunks are short, so
 * that all three begin before the first has computed a page. */
Test(engine_recurrent, waits_for_the_state_that_another_one_computes, .init = make, .fini = unmake)
{
    static struct answer a[3];
    static struct blocker blocker;
    struct circumstances c = usual;
    struct rig rig;
    c.max_chunk = 7;
    cr_assert(rig_open(&rig, path, &c, NULL, 0));
    block(&rig, &blocker);
    for (uint32_t i = 0; i < 3; i++)
        prepare_branch(&a[i], &rig, 70, i % 2);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(engine_submit(rig.e, &a[i].r, NULL), 0);
    unblock(&rig, &blocker);
    for (uint32_t i = 0; i < 3; i++)
        wait_done(&rig, &a[i]);
    cr_assert_eq(a[1].r.n_cached, 64);
    cr_assert_eq(a[2].r.n_cached, 128);
    expect_same(&a[0], &a[2], path, "the one that waited");
    rig_close(&rig);
}

static void check_choices(struct rig *rig, uint32_t n_prompt, bool cache)
{
    static struct answer a[4], alone[4];
    for (uint32_t i = 0; i < 4; i++) {
        prepare(&a[i], rig->n_vocab, 0);
        prepare(&alone[i], rig->n_vocab, 0);
        a[i].r.n_prompt = alone[i].r.n_prompt = n_prompt;
        a[i].r.sampling.seed = alone[i].r.sampling.seed = i;
        a[i].r.prompt = a[0].prompt;
        a[i].r.cache_prompt = cache;
        alone[i].r.cache_prompt = false;
        a[i].r.next_choice = i < 3 ? &a[i + 1].r : NULL;
    }
    uint64_t before = stats(rig).prompt_tokens;
    cr_assert_eq(engine_submit(rig->e, &a[0].r, NULL), 0);
    for (uint32_t i = 0; i < 4; i++)
        wait_done(rig, &a[i]);
    cr_assert_eq(stats(rig).prompt_tokens - before, n_prompt, "a prompt of %u", n_prompt);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(engine_submit(rig->e, &alone[i].r, NULL), 0);
        wait_done(rig, &alone[i]);
        expect_same(&alone[i], &a[i], path, "a choice");
    }
}

/* The second time the prompt is in the cache, for 65 and 129 up to the last token. */
Test(engine_recurrent, computes_a_prompt_once_for_its_choices, .init = make, .fini = unmake)
{
    const uint32_t lengths[] = {1, 2, 64, 65, 100, 129};
    struct rig rig;
    struct circumstances c = usual;
    for (c.max_chunk = 0; c.max_chunk < 60; c.max_chunk += 33) {
        cr_assert(rig_open(&rig, path, &c, NULL, 0));
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            check_choices(&rig, lengths[i], false);
            check_choices(&rig, lengths[i], true);
            check_choices(&rig, lengths[i], true);
        }
        rig_close(&rig);
    }
}

/* Drafts are right, wrong at once, and wrong after a while: then the state goes back. */
Test(engine_recurrent, drafts_change_no_bit, .init = make, .fini = unmake)
{
    static const uint32_t n_words[] = {1, 2, 3, 6};
    uint64_t drafted = 0, accepted = 0;
    for (int i = 0; i < 8; i++) {
        struct circumstances c = {.kind = i == 3 ? EXECUTOR_EAGER : EXECUTOR_PERSISTENT,
                                  .isa = "auto",
                                  .n_threads = 2,
                                  .steps_in_flight = 1 + (uint32_t)i / 2 % 2};
        struct engine_stats s = check_drafts(path, c, n_words[i / 2], i % 2);
        drafted += s.drafted;
        accepted += s.accepted;
    }
    cr_assert(accepted > 100 && drafted > accepted + 100, "%lu drafted, %lu accepted", (unsigned long)drafted,
              (unsigned long)accepted);
}

enum { N_KINDS = 10, N_ROUNDS = 40, AT_ONCE = 6 };

/* Request `kind` of the property test: prompts of many lengths that part at several positions. */
static void prepare_kind(struct answer *a, const struct rig *rig, uint32_t kind)
{
    static const uint32_t common[N_KINDS] = {150, 130, 128, 127, 100, 64, 63, 65, 0, 140};
    prepare_branch(a, rig, common[kind], kind);
    a->r.n_prompt = kind % 3 == 0 ? 150 : 70 + 9 * kind;
    a->r.max_tokens = 10 + 3 * kind;
    if (kind % 2)
        limit_words(a, 2);
}

static uint32_t below(uint32_t n)
{
    static uint32_t state = 5;
    state = state * 1664525u + 1013904223u;
    return (state >> 12) % n;
}

/* Requests in any order, some cancelled on their way: each that ends has the tokens that it has alone. */
Test(engine_recurrent, gives_each_request_its_tokens_in_any_order, .init = make, .fini = unmake)
{
    static struct answer alone[N_KINDS], a[AT_ONCE];
    struct rig rig;
    cr_assert(rig_open(&rig, path, &usual, NULL, 0));
    for (uint32_t i = 0; i < N_KINDS; i++) {
        prepare_kind(&alone[i], &rig, i);
        alone[i].r.cache_prompt = false;
        cr_assert_eq(engine_submit(rig.e, &alone[i].r, NULL), 0);
        wait_done(&rig, &alone[i]);
    }
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint32_t kinds[AT_ONCE], n = 1 + below(AT_ONCE);
        for (uint32_t i = 0; i < n; i++) {
            prepare_kind(&a[i], &rig, kinds[i] = below(N_KINDS));
            cr_assert_eq(engine_submit(rig.e, &a[i].r, NULL), 0);
        }
        if (below(3) == 0)
            engine_cancel(rig.e, &a[below(n)].r);
        for (uint32_t i = 0; i < n; i++) {
            wait_end(&rig, &a[i].r);
            if (a[i].r.finish == ENGINE_LENGTH)
                expect_same(&alone[kinds[i]], &a[i], path, "in any order");
            else
                cr_assert_eq(a[i].r.finish, ENGINE_CANCELLED);
        }
    }
    cr_assert_gt(stats(&rig).cached_tokens, 64 * N_ROUNDS);
    cr_assert_gt(stats(&rig).drafted, stats(&rig).accepted);
    rig_close(&rig);
}
