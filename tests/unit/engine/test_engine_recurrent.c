/* Requests of a model with recurrent layers: the same bits in all circumstances, without a prefix cache and
 * without drafts, since a state cannot be cut back. */
#include "support/identity.h"
#include "support/made_model.h"

static const struct {
    const char *what;
    struct circumstances c;
} cases[] = {
    {"two steps in flight, beside seven others",
     {.isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 7}},
    {"chunks of 7, beside three others",
     {.isa = "auto", .n_threads = 1, .steps_in_flight = 1, .max_chunk = 7, .n_neighbours = 3}},
    {"chunks of 1, avx2", {.isa = "avx2", .n_threads = 1, .steps_in_flight = 2, .max_chunk = 1}},
    {"eager, beside three others",
     {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .n_neighbours = 3}},
};

static char path[64];

static void make(void)
{
    made_model("tiny-qwen35moe", "q4_k_m", path);
}

static void unmake(void)
{
    (void)unlink(path);
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

/* The same request three times, the second one cancelled on its way: each begins with states of zeros. */
Test(engine_recurrent, forgets_the_sequence_that_a_slot_had_before, .init = make, .fini = unmake)
{
    const struct circumstances usual = {
        .isa = "auto", .n_threads = 2, .steps_in_flight = 2, .speculation = ENGINE_SPECULATE_ALWAYS};
    static struct answer a[3];
    struct engine_stats s;
    struct rig rig;
    cr_assert(rig_open(&rig, path, &usual, NULL, 0));
    for (int i = 0; i < 3; i++) {
        prepare(&a[i], rig.n_vocab, 0);
        cr_assert_eq(engine_submit(rig.e, &a[i].r, NULL), 0);
        if (i == 1)
            engine_cancel(rig.e, &a[i].r);
        if (i == 1)
            wait_end(&rig, &a[i].r);
        else
            wait_done(&rig, &a[i]);
    }
    expect_same(&a[0], &a[2], path, "the third one");
    engine_stats(rig.e, &s);
    cr_assert(!s.shares_prefixes && !s.speculates);
    cr_assert_eq(s.cached_tokens, 0);
    cr_assert_eq(s.drafted, 0);
    rig_close(&rig);
}
