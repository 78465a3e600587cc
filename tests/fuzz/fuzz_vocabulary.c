/* fuzz_vocabulary - any bytes as a vocabulary: opens it, and when it opens, encodes and decodes with it. */
#include "fuzz.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>

static const char text[] =
    "<s>Once upon a time, ab abab <|im_end|>  1234\n\xE2\x96\x81 \xF0\x9F\x99\x82\xFF "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaababababcabababab";

static void use(const struct tokenizer *t, struct tokenizer_flags flags)
{
    int32_t *ids;
    size_t n, len;
    char *back;
    const int32_t *ends;
    CHECK(tokenizer_encode(t, text, sizeof text, flags, 0, &ids, &n, NULL) == 0);
    for (size_t i = 0; i < n; i++)
        CHECK(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_vocab(t));
    CHECK(tokenizer_detokenise(t, ids, n, true, &back, &len, NULL) == 0);
    for (size_t i = 0, n_ends = tokenizer_ends(t, &ends); i < n_ends; i++)
        CHECK(tokenizer_is_end(t, ends[i]) && (!i || ends[i - 1] < ends[i]));
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct tokenizer *t = NULL;
    struct error err = {0};
    if (gguf_open_memory(&g, "fuzz.gguf", data, size, NULL) < 0)
        return 0;
    int rc = tokenizer_open(&t, g, &err);
    gguf_close(g);
    CHECK(rc == 0 || ((rc == -EBADMSG || rc == -ENOTSUP) && err.text[0] && !t));
    if (rc == 0) {
        use(t, (struct tokenizer_flags){.add_special = true, .parse_special = true});
        use(t, (struct tokenizer_flags){0});
    }
    tokenizer_close(t);
    return 0;
}
