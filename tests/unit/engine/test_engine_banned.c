/* Texts without some strings through a whole engine, some of them in a grammar, too: the same tokens in all
 * circumstances, and those of a reference that asks for each token anew, with a request of its own. */
#include "grammar/matcher.h"
#include "sampler/banned.h"
#include "support/identity.h"
#include "support/models/made_model.h"

#include <math.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf"

enum { N_STRINGS = 3 };

enum { PLAIN = 0, CHAINED = 1, CONSTRAINED = 2 }; /* kinds of texts */

/* Items inside one another, so that what may follow depends on all that came. */
static const char nested[] = "root ::= item+\nitem ::= [a-d] | \"e\" item item | [f-k] item [h-p] | [m-p]";

/* Each token spells two letters of 16, so that strings of three to five begin in a token's middle too. */
static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    static const char pairs[] = "abcdefghijklmnop";
    static char all[256][2];
    (void)context;
    char *to = all[(uint32_t)token % 256];
    to[0] = pairs[token % 16];
    to[1] = pairs[token / 16 % 16];
    *len = 2;
    return to;
}

static const struct named_circumstances cases[] = {
    BESIDE_SEVEN_OTHERS,
    CHUNKS_OF_7_BESIDE_THREE,
    CHUNKS_OF_1,
    AFTER_A_HIT,
    {"eager, beside three others, with drafts",
     {.kind = EXECUTOR_EAGER,
      .isa = "auto",
      .n_threads = 2,
      .steps_in_flight = 2,
      .n_neighbours = 3,
      .speculation = ENGINE_SPECULATE_ALWAYS}},
};

/* Bans what the text without bans has: letters that end its 4th token and begin the 5th, and so on. */
static void strings_of(const struct answer *plain, char texts[N_STRINGS][8])
{
    for (int i = 0; i < N_STRINGS; i++) {
        uint32_t len;
        char letters[8];
        for (int k = 0; k < 3; k++)
            memcpy(letters + 2 * k, piece(NULL, plain->out[4 + 9 * i + k].token, &len), 2);
        int from = i % 2, n = 3 + i;
        memcpy(texts[i], letters + from, (size_t)(n < 6 - from ? n : 6 - from));
        texts[i][n < 6 - from ? n : 6 - from] = 0;
    }
}

static struct banned *banned_of(struct arena *a, char texts[N_STRINGS][8], uint32_t n_vocab, bool chained)
{
    const char *list[N_STRINGS] = {texts[0], texts[1], texts[2]};
    struct banned_strings *s = banned_strings_open(a, list, N_STRINGS, n_vocab, piece, NULL);
    return banned_open(a, s, chained);
}

static void ask_for_text(struct answer *a, uint32_t n_prompt)
{
    a->r.n_prompt = n_prompt;
    a->r.ignore_eos = true;
}

static void constrain(struct answer *a, const struct vocabulary *v)
{
    struct grammar *g;
    cr_assert_eq(grammar_from_gbnf(&g, nested, sizeof nested - 1, NULL), 0);
    cr_assert_eq(matcher_open(&a->r.constraint, g), 0);
    grammar_unref(g);
    a->r.vocabulary = v;
}

/* The engine's matcher has not read the last tokens, so another one reads all. */
static void expect_in_grammar(struct answer *a, const struct vocabulary *v)
{
    matcher_close(a->r.constraint);
    constrain(a, v);
    for (int i = 0; i < N_TOKENS; i++)
        cr_assert(matcher_token(a->r.constraint, v, a->out[i].token), "token %d", i);
    matcher_close(a->r.constraint);
}

/* False when this CPU lacks the instruction set. */
static bool ask_banned(const char *path, struct circumstances c, uint32_t n_prompt, char texts[N_STRINGS][8],
                       unsigned kind, struct answer *out)
{
    struct arena a = {0};
    struct rig rig;
    struct sampler_chain chain;
    struct vocabulary *v;
    bool chained = kind & CHAINED;
    if (!rig_open(&rig, path, &c, NULL, 0))
        return false;
    cr_assert_eq(vocabulary_open(&v, rig.n_vocab, piece, NULL, NULL, 0, NULL), 0);
    for (int i = 0; i <= c.after_hit; i++) {
        prepare(out, rig.n_vocab, 0);
        ask_for_text(out, n_prompt);
        if (texts)
            out->r.banned = banned_of(&a, texts, rig.n_vocab, chained);
        if (kind & CONSTRAINED)
            constrain(out, v);
        sampler_chain_defaults(&chain);
        chain.mirostat = true;
        sampler_chain_begin(&chain);
        out->r.chain = chained ? &chain : NULL;
        ask_beside(&rig, &c, out, NULL);
        if (kind & CONSTRAINED)
            expect_in_grammar(out, v);
    }
    rig_close(&rig);
    vocabulary_close(v);
    arena_close(&a);
    return true;
}

static bool occurs(const struct answer *a, char texts[N_STRINGS][8])
{
    char text[2 * N_TOKENS + 1] = "";
    for (int i = 0; i < N_TOKENS; i++) {
        uint32_t len;
        memcpy(text + 2 * i, piece(NULL, a->out[i].token, &len), 2);
    }
    for (int i = 0; i < N_STRINGS; i++)
        if (strstr(text, texts[i]))
            return true;
    return false;
}

static void expect_same_everywhere(const char *path, unsigned kind)
{
    static struct answer plain, alone, other;
    const struct circumstances slow = {.isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
    for (uint32_t n_prompt = 127; n_prompt <= 128;
         n_prompt++) { /* a page ends with the prompt, or does not */
        char texts[N_STRINGS][8];
        cr_assert(ask_banned(path, slow, n_prompt, NULL, kind, &plain));
        strings_of(&plain, texts);
        cr_assert(occurs(&plain, texts));
        cr_assert(ask_banned(path, slow, n_prompt, texts, kind, &alone));
        cr_assert_not(occurs(&alone, texts));
        cr_assert_eq(memcmp(alone.out, plain.out, 4 * sizeof *plain.out), 0);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (ask_banned(path, cases[i].c, n_prompt, texts, kind, &other))
                expect_same(&alone, &other, path, cases[i].what);
    }
}

Test(engine_banned, gives_the_same_bits_in_all_circumstances)
{
    expect_same_everywhere(MODEL, PLAIN);
}

Test(engine_banned, a_chain_goes_back_with_the_text)
{
    expect_same_everywhere(MODEL, CHAINED);
}

Test(engine_banned, a_grammar_goes_back_with_the_text)
{
    expect_same_everywhere(MODEL, CONSTRAINED);
}

Test(engine_banned, a_grammar_and_a_chain_go_back_with_the_text)
{
    expect_same_everywhere(MODEL, CONSTRAINED | CHAINED);
}

Test(engine_banned, recurrent_layers_go_back_with_the_text)
{
    char path[64];
    made_model("tiny-qwen35moe", "q4_k_m", path);
    expect_same_everywhere(path, PLAIN);
    (void)unlink(path);
}

Test(engine_banned, layers_with_windows_go_back_with_the_text)
{
    char path[64];
    made_model("tiny-gpt-oss-24", "q4_0", path);
    expect_same_everywhere(path, PLAIN);
    (void)unlink(path);
}

/* ---- the reference: a request for each token, of the prompt and the text before it ---- */

static int32_t next_token(struct rig *rig, struct answer *a, const struct banned *b, const uint32_t *mask)
{
    static struct step_bias biases[STEP_MAX_BIAS];
    uint32_t n = banned_n_tokens(b), n_biases = 0;
    static struct answer one;
    static int32_t prompt[N_PROMPT + N_TOKENS];
    memcpy(prompt, a->prompt, a->r.n_prompt * sizeof *prompt);
    for (uint32_t i = 0; i < n; i++)
        prompt[a->r.n_prompt + i] = a->out[i].token;
    for (uint32_t i = 0; i < rig->n_vocab; i++)
        if (!(mask[i / 32] >> (i % 32) & 1)) {
            cr_assert_lt(n_biases, STEP_MAX_BIAS);
            biases[n_biases++] = (struct step_bias){(int32_t)i, -INFINITY};
        }
    one.r = a->r;
    one.r.banned = NULL;
    one.r.prompt = prompt;
    one.r.n_prompt = a->r.n_prompt + n;
    one.r.max_tokens = 1;
    one.r.out = one.out;
    one.r.top = one.top;
    one.r.biases = biases;
    one.r.sampling.n_bias = n_biases;
    one.r.sampling.seed = banned_seed(b, a->r.sampling.seed);
    cr_assert_eq(engine_submit(rig->e, &one.r, NULL), 0);
    wait_done(rig, &one);
    return one.out[0].token;
}

Test(engine_banned, tokens_are_those_of_single_requests)
{
    static struct answer plain, got, reference;
    static uint32_t mask[4096];
    const struct circumstances c = {.isa = "auto", .n_threads = 2, .steps_in_flight = 2};
    char texts[N_STRINGS][8];
    struct arena a = {0};
    struct rig rig;
    int n_withdrawn = 0;
    cr_assert(ask_banned(MODEL, c, 100, NULL, PLAIN, &plain));
    strings_of(&plain, texts);
    cr_assert(ask_banned(MODEL, c, 100, texts, PLAIN, &got));
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    prepare(&reference, rig.n_vocab, 0);
    ask_for_text(&reference, 100);
    struct banned *b = banned_of(&a, texts, rig.n_vocab, false);
    banned_begin(b, BANNED_MAX_HELD, N_TOKENS);
    while (banned_n_tokens(b) < N_TOKENS) {
        cr_assert(banned_mask(b, mask, rig.n_vocab, NULL));
        uint32_t n = banned_n_tokens(b);
        reference.out[n].token = next_token(&rig, &reference, b, mask);
        n_withdrawn += banned_take(b, reference.out[n].token, NULL) == BANNED_WITHDRAWN;
    }
    cr_assert_gt(n_withdrawn, 0);
    for (int i = 0; i < N_TOKENS; i++)
        cr_assert_eq(got.out[i].token, reference.out[i].token, "token %d", i);
    rig_close(&rig);
    arena_close(&a);
}
