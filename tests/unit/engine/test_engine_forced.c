/* Drafts of constrained texts, whose bytes the grammar forces: the same tokens and log-probabilities as
 * without them, in fewer steps. */
#include "grammar/matcher.h"
#include "support/identity.h"
#include "support/made_model.h"
#include "tokenizer/tokenizer.h"

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

enum { N_REQUESTS = 5 };

/* Names that follow from one byte, and beside them numbers, choices and free text. */
static const char grammar[] =
    "root ::= \"{\\\"identification\\\": \" [0-9]{1,3} \", \\\"members\\\": [\" who (\", \" who){0,2} "
    "\"], \\\"note\\\": \\\"\" [a-z ]{3,9} \"\\\", \\\"completed\\\": \" (\"true\" | \"false\") \"}\"\n"
    "who ::= \"\\\"grandfather\\\"\" | \"\\\"grandmother\\\"\" | \"\\\"aunt\\\"\"";

static struct tokenizer *tokenizer;

static const char *piece(const void *t, int32_t token, uint32_t *len)
{
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    *len = p.len;
    return p.s;
}

static struct vocabulary *vocabulary_of(const struct rig *rig)
{
    struct vocabulary *v;
    const int32_t *ends;
    cr_assert_eq(tokenizer_open(&tokenizer, model_gguf(rig->model), NULL), 0);
    uint32_t n_ends = (uint32_t)tokenizer_ends(tokenizer, &ends);
    cr_assert_eq(vocabulary_open(&v, tokenizer_n_vocab(tokenizer), piece, tokenizer, ends, n_ends, NULL), 0);
    cr_assert_eq(vocabulary_warm(v), 0);
    return v;
}

/* The last request is not constrained. */
static void prepare_forced(struct answer *a, struct grammar *g, const struct vocabulary *v, uint32_t n_vocab)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        prepare(&a[i], n_vocab, i);
        if (i == N_REQUESTS - 1)
            continue;
        cr_assert_eq(matcher_open(&a[i].r.constraint, g), 0);
        a[i].r.vocabulary = v;
        a[i].r.sampling.top_k = 0;
    }
}

/* All at once, or one after the other; the figures. */
static struct engine_stats run(const char *path, const struct circumstances *c, bool together,
                               struct answer *a)
{
    struct rig rig;
    struct grammar *g;
    struct engine_stats s;
    struct error err = {0};
    cr_assert(rig_open(&rig, path, c, NULL, 0));
    struct vocabulary *v = vocabulary_of(&rig);
    cr_assert_eq(grammar_from_gbnf(&g, grammar, sizeof grammar - 1, &err), 0, "%s", err.text);
    prepare_forced(a, g, v, rig.n_vocab);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        cr_assert_eq(engine_submit(rig.e, &a[i].r, &err), 0, "%s", err.text);
        if (!together)
            wait_done(&rig, &a[i]);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        wait_done(&rig, &a[i]);
    engine_stats(rig.e, &s);
    rig_close(&rig);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        matcher_close(a[i].r.constraint);
    grammar_unref(g);
    vocabulary_close(v);
    tokenizer_close(tokenizer);
    return s;
}

static void check(const char *path, bool together, enum engine_speculation speculation)
{
    static struct answer plain[N_REQUESTS], forced[N_REQUESTS];
    struct circumstances c = {.isa = "auto",
                              .kv_type = KV_F16,
                              .n_threads = 2,
                              .steps_in_flight = 2,
                              .speculation = ENGINE_SPECULATE_OFF};
    struct engine_stats without = run(path, &c, false, plain);
    c.speculation = speculation;
    struct engine_stats with = run(path, &c, together, forced);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        expect_same(&plain[i], &forced[i], path, "with forced drafts");
    cr_assert_eq(without.forced, 0);
    cr_assert_leq(with.forced, with.accepted);
    if (speculation != ENGINE_SPECULATE_ALWAYS)
        return;
    cr_assert_gt(with.forced, 20, "%lu forced", (unsigned long)with.forced);
    cr_assert_gt(with.steps_saved, 20);
    cr_assert_lt(with.steps + 20, without.steps, "%lu steps, %lu without", (unsigned long)with.steps,
                 (unsigned long)without.steps);
}

Test(engine_forced, one_after_the_other_they_take_fewer_steps)
{
    check(MODEL, false, ENGINE_SPECULATE_ALWAYS);
}

Test(engine_forced, at_once_they_take_fewer_steps)
{
    check(MODEL, true, ENGINE_SPECULATE_ALWAYS);
}

Test(engine_forced, where_they_need_not_pay_the_tokens_are_the_same)
{
    check(MODEL, true, ENGINE_SPECULATE_AUTO);
}

/* Wrong ones take a state back. */
Test(engine_forced, of_a_recurrent_model_they_take_fewer_steps)
{
    char path[64];
    made_model("tiny-qwen35moe", "q4_k_m", path);
    check(path, true, ENGINE_SPECULATE_ALWAYS);
    unlink(path);
}
