/* grammar_regular.c - grammars without recursion: a regular expression, a choice of texts. */
#include "grammar_builder.h"
#include "regex.h"

#include <errno.h>
#include <string.h>

static int finish_regular(struct builder *b, const struct dfa *a, struct grammar **out, struct error *err)
{
    uint32_t start = builder_state(b), end = builder_state(b);
    builder_dfa(b, a, SPELL_RAW, start, end, true);
    builder_final(b, end);
    return builder_finish(b, start, out, err);
}

int grammar_from_regex(struct grammar **out, const char *s, size_t n, struct error *err)
{
    struct builder b;
    const struct dfa *a;
    builder_open(&b);
    int rc = regex_compile(&b.shop, s, n, REGEX_WHOLE, &a, err);
    if (rc == 0)
        rc = finish_regular(&b, a, out, err);
    builder_close(&b);
    return rc;
}

int grammar_from_choice(struct grammar **out, const char *const *texts, const size_t *lens, size_t n,
                        struct error *err)
{
    struct builder b;
    struct nfa a;
    builder_open(&b);
    nfa_open(&a, &b.shop);
    for (size_t i = 0; i < n; i++)
        nfa_text(&a, texts[i], lens[i]);
    int rc = finish_regular(&b, nfa_dfa(&a), out, err);
    builder_close(&b);
    return rc;
}
