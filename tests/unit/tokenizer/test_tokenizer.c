/* Text to ids and back. */
#include "support/sanitized.h"
#include "support/tokenizer_fixture.h"
#define RANDOM_SEED 42
#include "support/random.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <unistd.h>

#define PLAIN    ((struct tokenizer_flags){0})
#define SPECIALS ((struct tokenizer_flags){.add_special = true, .parse_special = true})
#define TEN_MB   (((size_t)10 << 20) / SANITIZED_STRIDE(5)) /* and still hours, were it quadratic */
#define VECTORS  HEARTH_SOURCE_DIR "/../shared/tokenizer"

static struct tokenizer *open_or_fail(const char *path)
{
    struct tokenizer *t = fixture_open(path);
    cr_assert_not_null(t, "%s", path);
    return t;
}

static size_t encode(const struct tokenizer *t, const char *s, size_t len, struct tokenizer_flags flags,
                     int32_t **ids)
{
    size_t n = 0;
    struct error err = {0};
    int rc = tokenizer_encode(t, s, len, flags, 0, ids, &n, &err);
    cr_assert_eq(rc, 0, "%s", err.text);
    return n;
}

static void expect_ids(const struct tokenizer *t, const char *s, struct tokenizer_flags flags,
                       size_t n_expected, const int32_t *expected)
{
    int32_t *ids = NULL;
    size_t n = encode(t, s, strlen(s), flags, &ids);
    cr_assert_eq(n, n_expected, "\"%s\": %zu ids, not %zu", s, n, n_expected);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(ids[i], expected[i], "\"%s\": id %zu is %d, not %d", s, i, ids[i], expected[i]);
    free(ids);
}

#define EXPECT_IDS(t, s, flags, ...)                                                                         \
    expect_ids(t, s, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})

/* Decoded text equals what went in, as the WHATWG decoder shows it. */
static void expect_round_trip(const struct tokenizer *t, const char *s, size_t len)
{
    int32_t *ids = NULL;
    size_t n = encode(t, s, len, PLAIN, &ids), text_len;
    char *text;
    cr_assert_eq(tokenizer_detokenise(t, ids, n, true, &text, &text_len, NULL), 0);
    char *shown = malloc(TOKENIZER_DECODE_ROOM(len));
    struct tokenizer_decoder d = {0};
    size_t shown_len = tokenizer_decode(&d, s, len, shown);
    shown_len += tokenizer_decode_flush(&d, shown + shown_len);
    cr_assert_eq(text_len, shown_len, "%zu bytes came back for %zu", text_len, shown_len);
    cr_assert_eq(memcmp(text, shown, shown_len), 0);
    free(shown);
    free(text);
    free(ids);
}

/* ---- vectors ---- */

static void expect_line(const struct tokenizer *t, const char *name, const char *s, size_t len, char *line)
{
    int32_t *ids = NULL;
    size_t n = encode(t, s, len, PLAIN, &ids), i = 0;
    for (char *rest, *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest), i++)
        cr_assert(i < n && ids[i] == atoi(word), "%s \"%.*s\": id %zu is %d, not %s", name, (int)len, s, i,
                  i < n ? ids[i] : -1, word);
    cr_assert_eq(i, n, "%s \"%.*s\": %zu ids, not %zu", name, (int)len, s, n, i);
    free(ids);
}

static void run_vectors(const char *dir, const char *name)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    struct tokenizer *t = open_or_fail(path);
    snprintf(path, sizeof path, "%s/%s.inp", dir, name);
    char *inputs = fixture_read(path);
    snprintf(path, sizeof path, "%s/%s.out", dir, name);
    char *outputs = fixture_read(path), *line = outputs;
    cr_assert(inputs && outputs, "%s", path);
    size_t n_cases = 0;
    for (char *s = inputs, *end; (end = strstr(s, mark)); s = end + strlen(mark), n_cases++) {
        char *newline = strchr(line, '\n');
        cr_assert_not_null(newline, "%s: fewer lines than inputs", path);
        *newline = 0;
        expect_line(t, name, s, (size_t)(end - s), line);
        expect_round_trip(t, s, (size_t)(end - s));
        line = newline + 1;
    }
    cr_assert_gt(n_cases, 40);
    free(inputs);
    free(outputs);
    tokenizer_close(t);
}

Test(tokenizer, gives_the_reference_ids_for_a_llama_vocabulary)
{
    run_vectors(HEARTH_TEST_DATA "/tokenizer", "llama-spm");
}

Test(tokenizer, gives_the_reference_ids_for_the_shared_vectors)
{
    if (access(VECTORS, R_OK)) {
        fputs("SKIP test_tokenizer shared-vectors: ../shared/tokenizer is not here\n", stderr);
        cr_skip_test("../shared/tokenizer is not here");
    }
    run_vectors(VECTORS, "llama-spm");
    run_vectors(VECTORS, "gpt-2");
    run_vectors(VECTORS, "qwen2");
    run_vectors(VECTORS, "deepseek-coder");
}

Test(tokenizer, gives_the_demo_models_ids)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    EXPECT_IDS(t, "Once upon a time", SPECIALS, 424, 440, 258, 397);
    EXPECT_IDS(t, "One day, a little girl named Lily said, \"Look!\"", SPECIALS, 393, 334, 11, 258, 389, 466,
               407, 398, 329, 11, 319, 1171, 414);
    EXPECT_IDS(t, "<|im_start|>user\nTell me a story about a dog.<|im_end|>\n<|im_start|>assistant\n",
               SPECIALS, 4094, 556, 198, 752, 458, 258, 508, 482, 258, 500, 13, 4095, 198, 4094, 557, 198);
    tokenizer_close(t);
}

/* ---- special tokens ---- */

Test(tokenizer, ends_a_text_at_each_of_the_demo_models_end_tokens)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    const int32_t *ends;
    cr_assert_eq(tokenizer_ends(t, &ends), 2);
    cr_assert_eq(ends[0], 4093);
    cr_assert_eq(ends[1], 4095);
    cr_assert(tokenizer_is_end(t, 4095));
    cr_assert_not(tokenizer_is_end(t, 4094));
    cr_assert_eq(tokenizer_eos(t), 4093);
    tokenizer_close(t);
}

Test(tokenizer, takes_special_text_as_plain_text_unless_asked)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    int32_t *ids = NULL;
    size_t n = encode(t, "<|im_end|>", 10, PLAIN, &ids);
    cr_assert_gt(n, 1);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(tokenizer_attr(t, ids[i]), TOKEN_NORMAL);
    free(ids);
    EXPECT_IDS(t, "<|im_end|>", ((struct tokenizer_flags){.parse_special = true}), 4095);
    tokenizer_close(t);
}

/* A byte that is marked keeps a control token's text text; the text around it is still one. */
Test(tokenizer, takes_special_text_with_a_marked_byte_as_text)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    const char text[] = "a<|im_end|>b<|im_end|>";
    unsigned char marks[sizeof text] = {0};
    struct tokenizer_flags flags = {.parse_special = true, .plain = marks};
    EXPECT_IDS(t, "<|im_end|><|im_end|>", flags, 4095, 4095);
    for (size_t i = 1; i < 11; i++) { /* in turn each byte of the first */
        int32_t *ids = NULL;
        marks[i] = 1;
        size_t n = encode(t, text, strlen(text), flags, &ids), n_plain = 0;
        marks[i] = 0;
        cr_assert_eq(ids[n - 1], 4095);
        for (size_t k = 0; k < n; k++)
            n_plain += ids[k] != 4095;
        cr_assert_eq(n_plain, n - 1, "marked at %zu", i);
        free(ids);
    }
    tokenizer_close(t);
}

Test(tokenizer, never_merges_plain_text_into_a_control_token)
{
    struct tokenizer *t = open_or_fail(SPM_MODEL);
    int32_t *ids = NULL;
    size_t n = encode(t, "<s>x</s><unk><0x0A>", 19, PLAIN, &ids);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(tokenizer_attr(t, ids[i]), TOKEN_NORMAL, "id %d", ids[i]);
    free(ids);
    tokenizer_close(t);
}

Test(tokenizer, puts_a_space_before_spm_text_and_after_special_tokens)
{
    struct tokenizer *t = open_or_fail(SPM_MODEL);
    cr_assert(tokenizer_adds_bos(t));
    EXPECT_IDS(t, "Hello</s>Hello", SPECIALS, 1, 15043, 2, 15043);
    EXPECT_IDS(t, "", SPECIALS, 1);
    int32_t *ids = NULL;
    cr_assert_eq(encode(t, "", 0, PLAIN, &ids), 0);
    cr_assert_null(ids);
    tokenizer_close(t);
}

Test(tokenizer, shows_control_tokens_only_when_asked)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    cr_assert_eq(tokenizer_piece(t, 4095, false).len, 0);
    cr_assert_eq(tokenizer_piece(t, 4095, true).len, strlen("<|im_end|>"));
    cr_assert_eq(tokenizer_piece(t, -1, true).len, 0);
    cr_assert_eq(tokenizer_piece(t, 4096, true).len, 0);
    cr_assert_eq(tokenizer_find(t, "<|im_end|>", 10), 4095);
    cr_assert_eq(tokenizer_find(t, "<|im_end|", 9), -1);
    tokenizer_close(t);
}

Test(tokenizer, drops_the_encoders_space_also_behind_bos)
{
    struct tokenizer *t = open_or_fail(SPM_MODEL);
    int32_t *ids = NULL;
    size_t n = encode(t, " two spaces", 11, SPECIALS, &ids), len;
    char *text;
    cr_assert_eq(tokenizer_detokenise(t, ids, n, false, &text, &len, NULL), 0);
    cr_assert_str_eq(text, " two spaces");
    free(text);
    free(ids);
    tokenizer_close(t);
}

/* ---- any bytes ---- */

static size_t put_utf8(char *out, uint32_t c)
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    if (c < 0x800)
        return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3F)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 0x3F)),
               out[2] = (char)(0x80 | (c & 0x3F)), 3;
    return out[0] = (char)(0xF0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 0x3F)),
           out[2] = (char)(0x80 | (c >> 6 & 0x3F)), out[3] = (char)(0x80 | (c & 0x3F)), 4;
}

static uint32_t random_code(void)
{
    static const uint32_t below[] = {0x80, 0x80, 0x250, 0x800, 0x3100, 0x10000, 0x110000};
    uint32_t c = random_below(below[random_below(7)]);
    bool surrogate = c >= 0xD800 && c < 0xE000;
    return surrogate || c == 0x2581 ? 'x' : c; /* U+2581 is a space to SPM */
}

static void expect_random_round_trips(const char *path)
{
    struct tokenizer *t = open_or_fail(path);
    char s[512];
    for (int round = 0; round < 3000; round++) {
        size_t len = 0, want = random_below(sizeof s - 4);
        bool bytes = round & 1;
        while (len < want)
            len += bytes ? (s[len] = (char)random_below(256), 1) : put_utf8(s + len, random_code());
        expect_round_trip(t, s, len);
    }
    tokenizer_close(t);
}

Test(tokenizer, gives_back_random_text_and_bytes_through_bpe)
{
    expect_random_round_trips(DEMO_MODEL);
}

Test(tokenizer, gives_back_random_text_and_bytes_through_spm)
{
    expect_random_round_trips(SPM_MODEL);
}

/* ---- decoding ---- */

static void expect_decoded(const char *bytes, size_t n, const char *expected)
{
    char out[256];
    struct tokenizer_decoder d = {0};
    size_t o = tokenizer_decode(&d, bytes, n, out);
    o += tokenizer_decode_flush(&d, out + o);
    out[o] = 0;
    cr_assert_str_eq(out, expected);
}

Test(tokenizer, replaces_ill_formed_parts_as_the_whatwg_decoder_does)
{
#define R "\xEF\xBF\xBD"
    expect_decoded("a\xFF\xC0\xAF", 4, "a" R R R);
    expect_decoded("\xF0\x9F\x98", 3, R);
    expect_decoded("\xF0\x9F\x98q", 4, R "q");
    expect_decoded("\xE0\x80\x80", 3, R R R);
    expect_decoded("\xED\xA0\x80", 3, R R R);
    expect_decoded("\xF4\x90\x80\x80", 4, R R R R);
    expect_decoded("\xE2\x82\xE2\x82\xAC", 5, R "\xE2\x82\xAC");
    expect_decoded("\xC3", 1, R);
    expect_decoded("\xE2\x82\xAC", 3, "\xE2\x82\xAC");
}

Test(tokenizer, decodes_byte_by_byte_what_it_decodes_at_once)
{
    for (int round = 0; round < 5000; round++) {
        char bytes[64], once[512], slowly[512];
        size_t n = random_below(sizeof bytes), a, b = 0;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)(random_below(3) ? 0x80 | random_below(128) : random_below(128));
        struct tokenizer_decoder d = {.drop_space = round & 1}, e = d;
        a = tokenizer_decode(&d, bytes, n, once);
        a += tokenizer_decode_flush(&d, once + a);
        for (size_t i = 0; i < n; i++)
            b += tokenizer_decode(&e, bytes + i, 1, slowly + b);
        b += tokenizer_decode_flush(&e, slowly + b);
        cr_assert(a == b && !memcmp(once, slowly, a));
    }
}

Test(tokenizer, holds_half_a_character_back)
{
    char out[64];
    struct tokenizer_decoder d = {0};
    cr_assert_eq(tokenizer_decode(&d, "\xE2\x82", 2, out), 0);
    cr_assert_eq(tokenizer_decode(&d, "\xAC", 1, out), 3);
}

/* ---- bounds ---- */

Test(tokenizer, refuses_more_ids_than_the_bound)
{
    struct tokenizer *t = open_or_fail(DEMO_MODEL);
    int32_t *ids = NULL;
    size_t n = 0;
    struct error err = {0};
    cr_assert_eq(tokenizer_encode(t, "Once upon a time", 16, SPECIALS, 3, &ids, &n, &err), -E2BIG);
    cr_assert(strstr(err.text, "more than 3 tokens"), "%s", err.text);
    cr_assert_eq(tokenizer_encode(t, "Once upon a time", 16, SPECIALS, 4, &ids, &n, NULL), 0);
    cr_assert_eq(n, 4);
    free(ids);
    tokenizer_close(t);
}

static char *repeat(const char *what, size_t n_bytes)
{
    size_t len = strlen(what);
    char *s = malloc(n_bytes);
    cr_assert_not_null(s);
    for (size_t i = 0; i < n_bytes; i++)
        s[i] = what[i % len];
    return s;
}

/* Ten megabytes without a place to cut: quadratic work anywhere would take hours. */
static void expect_survives(const char *path, const char *what)
{
    struct tokenizer *t = open_or_fail(path);
    char *s = repeat(what, TEN_MB);
    expect_round_trip(t, s, TEN_MB);
    int32_t *ids;
    size_t n;
    cr_assert_eq(tokenizer_encode(t, s, TEN_MB, PLAIN, 1000, &ids, &n, NULL), -E2BIG);
    free(s);
    tokenizer_close(t);
}

Test(tokenizer, takes_ten_megabytes_of_one_letter)
{
    expect_survives(DEMO_MODEL, "a");
}

Test(tokenizer, takes_ten_megabytes_of_spaces)
{
    expect_survives(DEMO_MODEL, " ");
}

Test(tokenizer, takes_ten_megabytes_of_newlines)
{
    expect_survives(DEMO_MODEL, "\n");
}

Test(tokenizer, takes_ten_megabytes_of_digits)
{
    expect_survives(DEMO_MODEL, "7031");
}

Test(tokenizer, takes_ten_megabytes_of_emoji)
{
    expect_survives(DEMO_MODEL, "\xF0\x9F\x99\x82");
}

Test(tokenizer, takes_ten_megabytes_of_half_a_special_token)
{
    expect_survives(DEMO_MODEL, "<|im_end|");
}

Test(tokenizer, takes_ten_megabytes_of_one_letter_through_spm)
{
    expect_survives(SPM_MODEL, "a");
}

Test(tokenizer, takes_ten_megabytes_of_spaces_through_spm)
{
    expect_survives(SPM_MODEL, " ");
}
