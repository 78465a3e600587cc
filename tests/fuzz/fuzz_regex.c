/* fuzz_regex - any bytes as a regular expression, a zero byte, and a text: compiled or refused with words,
 * and the text goes through one automaton in two forms, over code points and over bytes, with one answer. */
#include "base/utf8.h"
#include "fuzz.h"
#include "grammar/matcher.h"
#include "grammar/regex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size, n_text = zero ? size - n - 1 : 0;
    const char *s = size ? (const char *)data : "", *text = zero ? (const char *)zero + 1 : s;
    struct arena arena = {0};
    struct dfa_workshop shop = {
        .arena = &arena, .max_states = GRAMMAR_MAX_DFA, .work = GRAMMAR_WORK / 8, .seed = 1};
    const struct dfa *a = NULL;
    struct grammar *g = NULL;
    struct error err = {0};
    int rc = regex_compile(&shop, s, n, REGEX_WHOLE, &a, &err);
    CHECK(rc == 0 || err.text[0]);
    if (rc == 0 && grammar_from_regex(&g, s, n, NULL) == 0 && utf8_valid(text, n_text) == n_text) {
        struct matcher *m;
        CHECK(matcher_open(&m, g) == 0);
        bool all = matcher_bytes(m, text, n_text) == n_text && matcher_can_end(m);
        CHECK(all == dfa_accepts(a, text, n_text));
        matcher_close(m);
    }
    grammar_unref(g);
    arena_close(&arena);
    return 0;
}
