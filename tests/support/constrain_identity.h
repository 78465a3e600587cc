/* constrain_identity.h - requests whose text must stay in a grammar, and one that need not, through a whole
 * engine in given circumstances: their tokens, log-probabilities and figures. */
#pragma once
#include "grammar/matcher.h"
#include "identity.h"
#include "sampler/banned.h"
#include "tokenizer/tokenizer.h"

enum { N_REQUESTS = IDENTITY_TOKENS < 40 ? 3 : 5 };

/* Names that follow from one byte, and beside them numbers, choices and free text. */
static const char constrain_grammar[] =
    "root ::= \"{\\\"identification\\\": \" [0-9]{1,3} \", \\\"members\\\": [\" who (\", \" who){0,2} "
    "\"], \\\"note\\\": \\\"\" [a-z ]{3,9} \"\\\", \\\"completed\\\": \" (\"true\" | \"false\") \"}\"\n"
    "who ::= \"\\\"grandfather\\\"\" | \"\\\"grandmother\\\"\" | \"\\\"aunt\\\"\"";

/* The grammar of the next runs, and for each request a string that its text must not have, or NULL. */
static const char *constrain_language = constrain_grammar;
static const char *constrain_banned[N_REQUESTS];

static inline const char *constrain_piece(const void *t, int32_t token, uint32_t *len)
{
    struct tokenizer_piece p = tokenizer_piece(t, token, false);
    *len = p.len;
    return p.s;
}

static inline struct vocabulary *constrain_vocabulary(const struct rig *rig, struct tokenizer **out)
{
    struct tokenizer *tokenizer;
    struct vocabulary *v;
    const int32_t *ends;
    cr_assert_eq(tokenizer_open(&tokenizer, model_gguf(rig->model), NULL), 0);
    uint32_t n_ends = (uint32_t)tokenizer_ends(tokenizer, &ends);
    cr_assert_eq(
        vocabulary_open(&v, tokenizer_n_vocab(tokenizer), constrain_piece, tokenizer, ends, n_ends, NULL), 0);
    *out = tokenizer;
    cr_assert_eq(vocabulary_warm(v), 0);
    return v;
}

/* The last request is not constrained. */
static inline void constrain_prepare(struct answer *a, struct grammar *g, const struct vocabulary *v,
                                     uint32_t n_vocab, struct arena *arena, const struct tokenizer *t)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        prepare(&a[i], n_vocab, i);
        if (constrain_banned[i])
            a[i].r.banned = banned_open(
                arena, banned_strings_open(arena, &constrain_banned[i], 1, n_vocab, constrain_piece, t),
                false);
        if (i == N_REQUESTS - 1)
            continue;
        cr_assert_eq(matcher_open(&a[i].r.constraint, g), 0);
        a[i].r.vocabulary = v;
        a[i].r.sampling.top_k = 0;
    }
}

/* All at once, or one after the other; the figures. */
static inline struct engine_stats constrain_run(const char *path, const struct circumstances *c,
                                                bool together, struct answer *a)
{
    struct rig rig;
    struct grammar *g;
    struct engine_stats s;
    struct error err = {0};
    struct arena arena = {0};
    cr_assert(rig_open(&rig, path, c, NULL, 0));
    struct tokenizer *tokenizer;
    struct vocabulary *v = constrain_vocabulary(&rig, &tokenizer);
    cr_assert_eq(grammar_from_gbnf(&g, constrain_language, strlen(constrain_language), &err), 0, "%s",
                 err.text);
    constrain_prepare(a, g, v, rig.n_vocab, &arena, tokenizer);
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
    arena_close(&arena);
    return s;
}
