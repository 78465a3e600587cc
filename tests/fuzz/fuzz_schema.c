/* fuzz_schema - any bytes as a JSON schema, a zero byte, and a text. The schema is compiled or refused with
 * words; what a grammar accepts is JSON, every mask of the walk leads on, and no beginning is a dead end. */
#include "fuzz.h"
#include "grammar/matcher.h"
#include "schema/schema.h"

#include <errno.h>

static const char *piece(const void *context, int32_t token, uint32_t *len)
{
    static char bytes[256];
    (void)context;
    *len = token < 256;
    if (token == 256)
        return NULL;
    bytes[token] = (char)token;
    return &bytes[token];
}

/* Follows masks for a while from wherever the text has got. */
static void follow(struct matcher *m, const struct vocabulary *v, uint32_t seed)
{
    uint32_t mask[9];
    for (int i = 0; i < 24; i++) {
        uint32_t n = matcher_mask(m, v, mask), k = (seed = seed * 1664525u + 1013904223u) % (n ? n : 1);
        CHECK(n > 0 || matcher_has_failed(m));
        if (n == 0)
            return;
        int32_t t = 0;
        for (;; t++)
            if (mask[t / 32] >> (t % 32) & 1 && k-- == 0)
                break;
        CHECK(matcher_token(m, v, t));
        if (t == 256)
            return;
    }
}

static void use(struct grammar *g, const uint8_t *text, size_t n)
{
    struct vocabulary *v;
    struct matcher *m;
    int32_t end = 256;
    CHECK(vocabulary_open(&v, 257, piece, NULL, &end, 1, NULL) == 0);
    int rc = matcher_open(&m, g);
    CHECK(rc == 0 || rc == -E2BIG);
    if (rc < 0) {
        vocabulary_close(v);
        return;
    }
    size_t taken = matcher_bytes(m, (const char *)text, n);
    if (taken == n && matcher_can_end(m)) {
        size_t flags = JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
        json_error_t words;
        json_t *json = json_loadb((const char *)text, n, flags, &words);
        CHECK(json || strstr(words.text, "real number overflow"));
        json_decref(json);
    }
    follow(m, v, (uint32_t)n);
    matcher_close(m);
    vocabulary_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    struct grammar *g = NULL;
    struct error err = {0};
    int rc = schema_compile_text(&g, (const char *)data, n, &err);
    CHECK((rc == 0) == (g != NULL) && (rc == 0 || err.text[0]));
    if (rc == 0)
        use(g, zero ? zero + 1 : data, zero ? size - n - 1 : 0);
    grammar_unref(g);
    return 0;
}
