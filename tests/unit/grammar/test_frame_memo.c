/* Masks of random grammars, whose rules call one another and repeat characters: each token is in the mask
 * exactly when a fresh matcher takes its bytes behind the text. */
#include "grammar/matcher.h"
#include "support/sanitized.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    N_LETTERS = 8,
    N_PAIRS = N_LETTERS * N_LETTERS,
    N_LONG = 120,
    N_ALL = N_LETTERS + N_PAIRS + N_LONG + 1
};
enum { END = N_ALL - 1, N_GRAMMARS = 1200, N_WALKS = 3, N_STEPS = 8, MAX_TEXT = 128 };

static char pieces[N_ALL][8];

static uint32_t below(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % n;
}

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    (void)context;
    *len = (uint32_t)strlen(pieces[token]);
    return token == END ? NULL : pieces[token];
}

/* Letters, pairs of them, and longer tokens, so that many share their beginnings. */
static struct vocabulary *open_vocabulary(void)
{
    static const char letters[] = "abcx,[] ";
    struct vocabulary *v;
    uint32_t seed = 1;
    int32_t end = END;
    for (int i = 0; i < N_LETTERS; i++) {
        pieces[i][0] = letters[i];
        for (int k = 0; k < N_LETTERS; k++) {
            pieces[N_LETTERS + i * N_LETTERS + k][0] = letters[i];
            pieces[N_LETTERS + i * N_LETTERS + k][1] = letters[k];
        }
    }
    for (int i = N_LETTERS + N_PAIRS; i < END; i++)
        for (uint32_t k = 0, n = 3 + below(&seed, 4); k < n; k++)
            pieces[i][k] = letters[below(&seed, N_LETTERS)];
    cr_assert_eq(vocabulary_open(&v, N_ALL, piece, NULL, &end, 1, NULL), 0);
    cr_assert_eq(vocabulary_warm(v), 0);
    return v;
}

/* ---- grammars ---- */

struct text {
    char s[4096];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, format, args);
    va_end(args);
    cr_assert_lt(t->n, sizeof t->s);
}

static void put_element(struct text *t, uint32_t *seed, int depth)
{
    static const char *const atoms[] = {"\"a\"",  "\"b,\"", "\",\"",  "\"[\"",   "\"]\"",
                                        "\"ab\"", "\" \"",  "[a-c]",  "[ab,]",   "[^]]",
                                        "[ ]*",   "[a-c]+", "[a-x]*", "space",   "second",
                                        "third",  "word",   "word",   "[a-z ,]", "[a-x]* \"]\""};
    static const char *const repeats[] = {"", "", "", "", "", "*", "+", "?", "{1,2}", "{0,4}"};
    if (depth < 2 && below(seed, 4) == 0) {
        put(t, "(");
        put_element(t, seed, depth + 1);
        put(t, below(seed, 2) ? " | " : " ");
        put_element(t, seed, depth + 1);
        put(t, ")");
    } else
        put(t, "%s", atoms[below(seed, sizeof atoms / sizeof *atoms)]);
    put(t, "%s ", repeats[below(seed, sizeof repeats / sizeof *repeats)]);
}

static void put_rule(struct text *t, uint32_t *seed, const char *name)
{
    put(t, "%s ::= ", name);
    for (uint32_t a = 0, n = 1 + below(seed, 3); a < n; a++) {
        put(t, a ? "| " : "");
        for (uint32_t i = 0, k = 1 + below(seed, 3); i < k; i++)
            put_element(t, seed, 0);
    }
    put(t, "\n");
}

static void put_grammar(struct text *t, uint32_t seed)
{
    *t = (struct text){.n = 0};
    put_rule(t, &seed, "root");
    put_rule(t, &seed, "second");
    put_rule(t, &seed, "third");
    put(t, "space ::= %s\n", below(&seed, 2) ? "[ ]*" : "([ ] space)?");
    put(t, "word ::= [a-z]+ %s\n", below(&seed, 2) ? "" : "space");
}

/* ---- walks ---- */

struct walk {
    struct matcher *m;     /* its masks come from what the grammar remembers */
    struct matcher *fresh; /* reads bytes, and makes no mask */
    const struct vocabulary *v;
    char text[MAX_TEXT];
    size_t n;
};

/* Returns 1 or 0; -1: there are too many ways to know. */
static int takes(struct walk *w, int32_t token)
{
    cr_assert(matcher_save(w->fresh));
    bool takes = token == END
                     ? matcher_can_end(w->fresh)
                     : matcher_bytes(w->fresh, w->v->bytes[token], w->v->lens[token]) == w->v->lens[token];
    bool failed = matcher_has_failed(w->fresh);
    matcher_restore(w->fresh);
    return failed ? -1 : takes;
}

static void check_mask(struct walk *w, const uint32_t *mask, const char *grammar)
{
    for (int32_t t = 0; t < N_ALL; t++) {
        int expected = takes(w, t);
        cr_assert(expected < 0 || expected == (int)(mask[t / 32] >> (t % 32) & 1),
                  "token '%s' after '%.*s', %s the mask, of\n%s", t == END ? "end" : pieces[t], (int)w->n,
                  w->text, expected ? "not in" : "in", grammar);
    }
}

static uint32_t make_mask(struct walk *w, uint32_t *mask, uint32_t *seed)
{
    uint32_t n = 0;
    if (below(seed, 2))
        return matcher_mask(w->m, w->v, mask);
    while (!matcher_mask_part(w->m, w->v, mask, below(seed, 50), &n))
        ;
    return n;
}

/* Takes a random token of the mask's. False: the text ends. */
static bool take_token(struct walk *w, const uint32_t *mask, uint32_t n, uint32_t *seed)
{
    int32_t t = -1;
    for (uint32_t k = below(seed, n) + 1; k > 0; k--)
        do
            t++;
        while (!(mask[t / 32] >> (t % 32) & 1));
    if (t == END || w->n + w->v->lens[t] > sizeof w->text)
        return false;
    memcpy(w->text + w->n, w->v->bytes[t], w->v->lens[t]);
    w->n += w->v->lens[t];
    cr_assert(matcher_token(w->m, w->v, t));
    return matcher_bytes(w->fresh, w->v->bytes[t], w->v->lens[t]) == w->v->lens[t];
}

/* Returns the number of masks that were compared. */
static uint32_t walk(struct grammar *g, const struct vocabulary *v, const char *grammar, uint32_t seed)
{
    struct walk w = {.v = v};
    uint32_t mask[(N_ALL + 31) / 32], n_masks = 0, n;
    if (matcher_open(&w.m, g) < 0 || matcher_open(&w.fresh, g) < 0) {
        matcher_close(w.m);
        return 0;
    }
    while (n_masks < N_STEPS && (n = make_mask(&w, mask, &seed)) > 0) {
        check_mask(&w, mask, grammar);
        n_masks++;
        if (!take_token(&w, mask, n, &seed))
            break;
    }
    matcher_close(w.m);
    matcher_close(w.fresh);
    return n_masks;
}

Test(frame_memo, masks_are_those_of_the_definition)
{
    struct vocabulary *v = open_vocabulary();
    uint32_t n_masks = 0;
    for (uint32_t seed = 0; seed < N_GRAMMARS; seed += SANITIZED_STRIDE(8)) {
        struct text t;
        struct grammar *g;
        put_grammar(&t, seed * 2654435761u);
        if (grammar_from_gbnf(&g, t.s, t.n, NULL) < 0)
            continue; /* left recursion */
        for (uint32_t i = 0; i < N_WALKS; i++)
            n_masks += walk(g, v, t.s, seed + i);
        grammar_unref(g);
    }
    cr_assert_gt(n_masks, N_GRAMMARS / SANITIZED_STRIDE(8));
    vocabulary_close(v);
}
