/* fuzz_tokenizer - any bytes as text, and any numbers as ids.
 * The first byte chooses: bit 0 the vocabulary (BPE or SPM), bit 1 specials parsed, bit 2 BOS and EOS, bit 3
 * ids instead of text, bit 4 a bound of 16 ids. The rest is the text, or little-endian ids. */
#include "fuzz.h"
#include "gguf/gguf.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>

static const char *const paths[2] = {HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf",
                                     HEARTH_SOURCE_DIR "/tests/data/tokenizer/llama-spm.gguf"};

static const struct tokenizer *vocabulary(int which)
{
    static struct tokenizer *opened[2];
    if (!opened[which]) {
        struct gguf *g;
        CHECK(gguf_open(&g, paths[which], NULL) == 0);
        CHECK(tokenizer_open(&opened[which], g, NULL) == 0);
        gguf_close(g);
    }
    return opened[which];
}

/* The text as a WHATWG decoder shows it: what decoding must give back. */
static size_t shown(const char *text, size_t len, char *out)
{
    struct tokenizer_decoder d = {0};
    size_t n = tokenizer_decode(&d, text, len, out);
    return n + tokenizer_decode_flush(&d, out + n);
}

/* The same, piece by piece. */
static size_t streamed(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char *out)
{
    struct tokenizer_decoder d = {0};
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i], special);
        for (uint32_t k = 0; k < piece.len; k++)
            o += tokenizer_decode(&d, piece.s + k, 1, out + o);
    }
    return o + tokenizer_decode_flush(&d, out + o);
}

static void check_ids(const struct tokenizer *t, const int32_t *ids, size_t n, bool special)
{
    size_t n_bytes = 0, len;
    char *text;
    for (size_t i = 0; i < n; i++)
        n_bytes += tokenizer_piece(t, ids[i], special).len;
    char *slowly = malloc(TOKENIZER_DECODE_ROOM(n_bytes));
    size_t slowly_len = streamed(t, ids, n, special, slowly);
    CHECK(tokenizer_detokenise(t, ids, n, special, &text, &len, NULL) == 0);
    size_t dropped = slowly_len - len; /* at most the space that SPM puts first */
    CHECK(dropped <= 1 && (!dropped || (slowly[0] == ' ' && tokenizer_drops_space(t))));
    CHECK(!memcmp(slowly + dropped, text, len) && !text[len]);
    char *again = malloc(TOKENIZER_DECODE_ROOM(len));
    CHECK(shown(text, len, again) == len && !memcmp(again, text, len)); /* valid UTF-8 */
    free(again);
    free(slowly);
    free(text);
}

static void check_text(const struct tokenizer *t, const char *text, size_t len, struct tokenizer_flags flags,
                       size_t max)
{
    int32_t *ids;
    size_t n, back_len;
    struct error err = {0};
    int rc = tokenizer_encode(t, text, len, flags, max, &ids, &n, &err);
    if (rc < 0) {
        CHECK(rc == -E2BIG && max && err.text[0]);
        return;
    }
    CHECK(!max || n <= max);
    CHECK(n * tokenizer_max_piece(t) >= len);
    for (size_t i = 0; i < n; i++)
        CHECK(ids[i] >= 0 && (uint32_t)ids[i] < tokenizer_n_vocab(t));
    check_ids(t, ids, n, true);
    /* SPM's own space character comes back as a space, and so do the spaces put after special tokens. */
    if (!flags.parse_special && !flags.add_special && !memmem(text, len, "\xE2\x96\x81", 3)) {
        char *expected = malloc(TOKENIZER_DECODE_ROOM(len)), *back;
        size_t expected_len = shown(text, len, expected);
        CHECK(tokenizer_detokenise(t, ids, n, false, &back, &back_len, NULL) == 0);
        CHECK(back_len == expected_len && !memcmp(back, expected, expected_len));
        free(expected);
        free(back);
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const struct tokenizer *t = vocabulary(data[0] & 1);
    const char *rest = (const char *)data + 1;
    if (data[0] & 8) {
        size_t n = (size - 1) / sizeof(int32_t);
        int32_t *ids = malloc(n * sizeof *ids + 1);
        memcpy(ids, rest, n * sizeof *ids);
        for (size_t i = 0; i < n; i++)
            if (ids[i] & 1 << 30) /* half of them in range */
                ids[i] = (int32_t)((uint32_t)ids[i] % tokenizer_n_vocab(t));
        check_ids(t, ids, n, data[0] & 2);
        free(ids);
        return 0;
    }
    struct tokenizer_flags flags = {.parse_special = data[0] & 2, .add_special = data[0] & 4};
    check_text(t, rest, size - 1, flags, data[0] & 16 ? 16 : 0);
    return 0;
}
