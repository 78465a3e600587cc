/* fuzz_gbnf - any bytes as a grammar, GBNF or Lark's, a zero byte, and a text: compiled or refused with
 * words, and the text is taken as far as it goes. */
#include "fuzz.h"
#include "grammar/matcher.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size, n_text = zero ? size - n - 1 : 0;
    struct grammar *g = NULL;
    struct matcher *m;
    struct error err = {0};
    int rc = grammar_from_text(&g, size ? (const char *)data : "", n, &err);
    CHECK(rc == 0 || err.text[0]);
    if (rc < 0)
        return 0;
    rc = matcher_open(&m, g);
    CHECK(rc == 0 || rc == -E2BIG);
    if (rc < 0) {
        grammar_unref(g);
        return 0;
    }
    CHECK(matcher_bytes(m, zero ? (const char *)zero + 1 : "", n_text) <= n_text);
    matcher_close(m);
    grammar_unref(g);
    return 0;
}
