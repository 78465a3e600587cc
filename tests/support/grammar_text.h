/* grammar_text.h - grammars written as text, GBNF's and Lark's: the texts that they hold, and the words that
 * refuse them. */
#pragma once
#include "grammar/matcher.h"

#include <criterion/criterion.h>
#include <string.h>

struct grammar_case {
    const char *grammar, *in[6], *out[6]; /* texts of its language, and others */
};

static inline bool accepts(struct grammar *g, const char *text)
{
    struct matcher *m;
    cr_assert_eq(matcher_open(&m, g), 0);
    bool ok = matcher_bytes(m, text, strlen(text)) == strlen(text) && matcher_can_end(m);
    matcher_close(m);
    return ok;
}

static inline void expect_texts(const struct grammar_case *c)
{
    struct grammar *g = NULL;
    struct error err = {0};
    cr_assert_eq(grammar_from_text(&g, c->grammar, strlen(c->grammar), &err), 0, "%s: %s", c->grammar,
                 err.text);
    for (int k = 0; k < 6 && c->in[k]; k++)
        cr_expect(accepts(g, c->in[k]), "%s: %s", c->grammar, c->in[k]);
    for (int k = 0; k < 6 && c->out[k]; k++)
        cr_expect_not(accepts(g, c->out[k]), "%s: %s", c->grammar, c->out[k]);
    grammar_unref(g);
}

static inline void expect_refused(const char *grammar, int code, const char *words)
{
    struct grammar *g = NULL;
    struct error err = {0};
    cr_expect_eq(grammar_from_text(&g, grammar, strlen(grammar), &err), code, "%s", grammar);
    cr_expect(strstr(err.text, words), "%s: %s", grammar, err.text);
}
