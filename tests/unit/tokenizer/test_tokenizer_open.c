/* Opening a vocabulary: files that are refused, and settings that change the ids. */
#include "support/models/gguf_write.h"
#include "support/failing_alloc.h"
#include "support/tokenizer_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <unistd.h>

#define PLAIN ((struct tokenizer_flags){0})

/* A vocabulary as a test writes it down. Types are the file's: 1 normal, 2 unknown, 3 control, 4
 * user-defined, 5 unused, 6 byte. Merges (BPE) and scores (SPM) may be absent. */
struct vocabulary {
    const char *model, *pre;
    const char *tokens[16];
    int32_t types[16];
    const char *merges[8];
    float scores[16];
    bool with_scores;
};

static const struct vocabulary small_bpe = {
    .model = "gpt2",
    .pre = "qwen2",
    .tokens = {"a", "b", "c", "ab", "abc", "<x>", "<x>y", "tool", "\u0120"},
    .types = {1, 1, 1, 1, 1, 3, 3, 4, 1},
    .merges = {"a b", "ab c", "c c", "cc c"},
};

static const struct vocabulary small_spm = {
    .model = "llama",
    .tokens = {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab", "<0x63>", "aa"},
    .types = {2, 3, 3, 1, 1, 1, 1, 1, 6, 5},
    .scores = {0, 0, 0, -5, -6, -7, -1, -2, 0, 0},
    .with_scores = true,
};

static void put_strings(struct gguf_write *w, const char *key, const char *const *strings, size_t max)
{
    struct gguf_bytes items = {0};
    size_t n = 0;
    for (; n < max && strings[n]; n++)
        put_str(&items, strings[n]);
    gguf_write_array(w, key, GGUF_STR, n, items.p, items.n);
    free(items.p);
}

static void put_vocabulary(struct gguf_write *w, const struct vocabulary *v)
{
    size_t n = 0;
    while (n < 16 && v->tokens[n])
        n++;
    gguf_write_str(w, "general.architecture", "llama");
    gguf_write_str(w, "tokenizer.ggml.model", v->model);
    if (v->pre)
        gguf_write_str(w, "tokenizer.ggml.pre", v->pre);
    put_strings(w, "tokenizer.ggml.tokens", v->tokens, 16);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, n, v->types, n * sizeof v->types[0]);
    if (v->merges[0])
        put_strings(w, "tokenizer.ggml.merges", v->merges, 8);
    if (v->with_scores)
        gguf_write_array(w, "tokenizer.ggml.scores", GGUF_F32, n, v->scores, n * sizeof v->scores[0]);
}

/* Opens what was written, and frees it. */
static struct gguf *reopen(struct gguf_write *w)
{
    char path[] = "/tmp/hearth-test-tokenizer-XXXXXX";
    struct gguf_bytes bytes = {0};
    gguf_write_head(w, &bytes);
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, bytes.p, bytes.n) == (ssize_t)bytes.n);
    close(fd);
    struct gguf *g = NULL;
    struct error err = {0};
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.text);
    unlink(path);
    free(bytes.p);
    gguf_write_free(w);
    return g;
}

static struct tokenizer *open_written(struct gguf_write *w)
{
    struct gguf *g = reopen(w);
    struct tokenizer *t = NULL;
    struct error err = {0};
    cr_assert_eq(tokenizer_open(&t, g, &err), 0, "%s", err.text);
    gguf_close(g);
    return t;
}

static struct tokenizer *open_vocabulary(const struct vocabulary *v)
{
    struct gguf_write w = {0};
    put_vocabulary(&w, v);
    return open_written(&w);
}

static void expect_refused(struct gguf_write *w, int code, const char *words)
{
    struct gguf *g = reopen(w);
    struct tokenizer *t = NULL;
    struct error err = {0};
    cr_assert_eq(tokenizer_open(&t, g, &err), code);
    cr_assert(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    cr_assert_null(t);
    gguf_close(g);
}

static void expect_ids(const struct tokenizer *t, const char *s, struct tokenizer_flags flags,
                       const char *expected)
{
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    char shown[256] = "";
    cr_assert_eq(tokenizer_encode(t, s, strlen(s), flags, 0, &ids, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(shown + at, sizeof shown - at, "%s%d", i ? " " : "", ids[i]);
    cr_assert_str_eq(shown, expected, "\"%s\": %s, not %s", s, shown, expected);
    free(ids);
}

Test(tokenizer_open, names_the_pre_tokeniser_it_does_not_know)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_bpe;
    v.pre = "martian";
    put_vocabulary(&w, &v);
    expect_refused(&w, -ENOTSUP, "martian");
}

Test(tokenizer_open, names_the_model_it_does_not_read)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_bpe;
    v.model = "t5";
    put_vocabulary(&w, &v);
    expect_refused(&w, -ENOTSUP, "t5");
}

Test(tokenizer_open, refuses_a_file_without_a_vocabulary)
{
    struct gguf_write w = {0};
    gguf_write_str(&w, "general.architecture", "llama");
    expect_refused(&w, -EBADMSG, "no tokenizer.ggml.model");
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    expect_refused(&w, -EBADMSG, "no tokenizer.ggml.tokens");
}

Test(tokenizer_open, refuses_a_special_id_outside_the_vocabulary)
{
    struct gguf_write w = {0};
    put_vocabulary(&w, &small_bpe);
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", 9);
    expect_refused(&w, -EBADMSG, "tokenizer.ggml.eos_token_id is 9");
}

Test(tokenizer_open, refuses_types_and_scores_that_are_not_one_per_token)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_spm;
    v.with_scores = false;
    put_vocabulary(&w, &v);
    expect_refused(&w, -EBADMSG, "tokenizer.ggml.scores");
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    put_strings(&w, "tokenizer.ggml.tokens", small_bpe.tokens, 9);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, 2, small_bpe.types, 8);
    expect_refused(&w, -EBADMSG, "2 items for 9 tokens");
}

Test(tokenizer_open, refuses_a_type_that_does_not_exist)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_bpe;
    v.types[3] = 7;
    put_vocabulary(&w, &v);
    expect_refused(&w, -EBADMSG, "token 3 is 7");
}

Test(tokenizer_open, refuses_a_merge_of_one_text)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_bpe;
    v.merges[1] = "abc";
    put_vocabulary(&w, &v);
    expect_refused(&w, -EBADMSG, "tokenizer.ggml.merges item 1");
}

Test(tokenizer_open, leaves_nothing_behind_when_an_allocation_fails)
{
    static const struct vocabulary *const vocabularies[] = {&small_bpe, &small_spm};
    for (int k = 0; k < 2; k++) {
        struct gguf_write w = {0};
        put_vocabulary(&w, vocabularies[k]);
        struct gguf *g = reopen(&w);
        int rc = -ENOMEM;
        long n = 0;
        for (; rc < 0; n++) {
            struct tokenizer *t = NULL;
            struct error err = {0};
            fail_alloc_after(n);
            rc = tokenizer_open(&t, g, &err);
            fail_alloc_never();
            cr_assert(rc == 0 || (rc == -ENOMEM && err.text[0]), "after %ld: %d", n, rc);
            cr_assert_lt(n, 100);
            tokenizer_close(t);
        }
        cr_assert_gt(n, 10);
        gguf_close(g);
    }
}

static void expect_encode_survives(const char *path)
{
    struct tokenizer *t = fixture_open(path);
    size_t len = 4000; /* a cache, and a word too long for the plain search */
    char *text = malloc(len);
    memset(text, 'a', len);
    memcpy(text, "<s>Once upon a time ", 20);
    int rc = -ENOMEM;
    long n = 0;
    for (; rc < 0; n++) {
        int32_t *ids = NULL;
        size_t n_ids = 0;
        struct error err = {0};
        fail_alloc_after(n);
        rc = tokenizer_encode(t, text, len,
                              (struct tokenizer_flags){.add_special = true, .parse_special = true}, 0, &ids,
                              &n_ids, &err);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && err.text[0]), "after %ld: %d", n, rc);
        cr_assert_lt(n, 100);
        free(ids);
    }
    cr_assert_gt(n, 5);
    free(text);
    tokenizer_close(t);
}

Test(tokenizer_open, encoding_leaves_nothing_behind_when_an_allocation_fails)
{
    expect_encode_survives(DEMO_MODEL);
    expect_encode_survives(SPM_MODEL);
}

Test(tokenizer_open, merges_in_the_order_of_the_file)
{
    struct tokenizer *t = open_vocabulary(&small_bpe);
    expect_ids(t, "abcab", PLAIN, "4 3");
    expect_ids(t, "cab", PLAIN, "2 3");
    tokenizer_close(t);
}

Test(tokenizer_open, writes_a_merged_text_that_is_no_token_byte_by_byte)
{
    struct tokenizer *t = open_vocabulary(&small_bpe);
    expect_ids(t, "accc", PLAIN, "0 2 2 2"); /* "ccc" merges, but the vocabulary does not have it */
    expect_ids(t, "azb", PLAIN, "0 1");      /* nor any token for z */
    tokenizer_close(t);
}

Test(tokenizer_open, takes_the_longest_special_text_first)
{
    struct tokenizer *t = open_vocabulary(&small_bpe);
    struct tokenizer_flags parse = {.parse_special = true};
    expect_ids(t, "a<x>yb<x>a", parse, "0 6 1 5 0");
    tokenizer_close(t);
}

Test(tokenizer_open, always_takes_user_defined_text)
{
    struct tokenizer *t = open_vocabulary(&small_bpe);
    expect_ids(t, "atoolb", PLAIN, "0 7 1");
    cr_assert_eq(tokenizer_piece(t, 7, false).len, 4);
    tokenizer_close(t);
}

Test(tokenizer_open, puts_bos_and_eos_where_the_file_asks_for_them)
{
    struct gguf_write w = {0};
    put_vocabulary(&w, &small_bpe);
    gguf_write_u32(&w, "tokenizer.ggml.bos_token_id", 5);
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", 6);
    gguf_write_bool(&w, "tokenizer.ggml.add_bos_token", true);
    gguf_write_bool(&w, "tokenizer.ggml.add_eos_token", true);
    struct tokenizer *t = open_written(&w);
    expect_ids(t, "a", (struct tokenizer_flags){.add_special = true}, "5 0 6");
    expect_ids(t, "a", PLAIN, "0");
    tokenizer_close(t);
}

Test(tokenizer_open, adds_bos_for_llama_bpe_unless_the_file_says_no)
{
    struct vocabulary v = small_bpe;
    v.pre = "llama-bpe";
    struct gguf_write w = {0};
    put_vocabulary(&w, &v);
    gguf_write_u32(&w, "tokenizer.ggml.bos_token_id", 5);
    struct tokenizer *t = open_written(&w);
    cr_assert(tokenizer_adds_bos(t));
    tokenizer_close(t);
    put_vocabulary(&w, &v);
    gguf_write_u32(&w, "tokenizer.ggml.bos_token_id", 5);
    gguf_write_bool(&w, "tokenizer.ggml.add_bos_token", false);
    t = open_written(&w);
    cr_assert_not(tokenizer_adds_bos(t));
    tokenizer_close(t);
}

Test(tokenizer_open, takes_a_word_that_is_a_token_whole_for_llama_bpe)
{
    struct vocabulary v = small_bpe;
    v.pre = "llama-bpe";
    v.merges[1] = "c a"; /* no way to abc by merging */
    struct tokenizer *t = open_vocabulary(&v);
    expect_ids(t, "abc", PLAIN, "4");
    tokenizer_close(t);
    v.pre = "qwen2";
    t = open_vocabulary(&v);
    expect_ids(t, "abc", PLAIN, "3 2");
    tokenizer_close(t);
}

Test(tokenizer_open, ends_at_eot_and_eom_and_at_known_markers)
{
    struct vocabulary v = small_bpe;
    v.tokens[5] = "<|im_end|>";
    v.tokens[4] = "</s>"; /* normal text here */
    struct gguf_write w = {0};
    put_vocabulary(&w, &v);
    gguf_write_u32(&w, "tokenizer.ggml.eot_token_id", 6);
    gguf_write_u32(&w, "tokenizer.ggml.eom_token_id", 7);
    struct tokenizer *t = open_written(&w);
    const int32_t *ends;
    cr_assert_eq(tokenizer_ends(t, &ends), 3);
    cr_assert(ends[0] == 5 && ends[1] == 6 && ends[2] == 7);
    tokenizer_close(t);
}

/* A vocabulary whose file suppresses a token besides number 7. */
static struct gguf_write *suppressing(struct gguf_write *w, int32_t token, uint32_t n)
{
    int32_t tokens[TOKENIZER_MAX_SUPPRESSED + 1] = {7, token};
    *w = (struct gguf_write){0};
    put_vocabulary(w, &small_bpe);
    gguf_write_array(w, "tokenizer.ggml.suppress_tokens", GGUF_I32, n, tokens, n * sizeof *tokens);
    return w;
}

Test(tokenizer_open, knows_the_tokens_that_no_text_may_have)
{
    struct gguf_write w;
    struct tokenizer *t = open_written(suppressing(&w, 2, 2));
    const int32_t *ids;
    cr_assert_eq(tokenizer_suppressed(t, &ids), 2);
    cr_assert(ids[0] == 7 && ids[1] == 2);
    tokenizer_close(t);
    expect_refused(suppressing(&w, -1, 2), -EBADMSG, "suppress_tokens has -1");
    expect_refused(suppressing(&w, 100000, 2), -EBADMSG, "suppress_tokens has 100000");
    expect_refused(suppressing(&w, 1, TOKENIZER_MAX_SUPPRESSED + 1), -ENOTSUP, "at most 256");
}

Test(tokenizer_open, does_not_end_at_s_where_a_model_waits_for_tools)
{
    struct vocabulary v = small_bpe;
    v.tokens[5] = "</s>";
    struct tokenizer *t = open_vocabulary(&v);
    cr_assert(tokenizer_is_end(t, 5));
    tokenizer_close(t);
    v.tokens[6] = "<|tool_response>";
    t = open_vocabulary(&v);
    cr_assert(tokenizer_is_end(t, 6) && !tokenizer_is_end(t, 5));
    tokenizer_close(t);
}

Test(tokenizer_open, merges_spm_text_by_score)
{
    struct tokenizer *t = open_vocabulary(&small_spm);
    expect_ids(t, "ab", PLAIN, "7");
    expect_ids(t, "aab", PLAIN, "3 4 6"); /* "aa" is unused */
    tokenizer_close(t);
}

Test(tokenizer_open, falls_back_to_bytes_and_then_to_unknown)
{
    struct tokenizer *t = open_vocabulary(&small_spm);
    expect_ids(t, "ac", PLAIN, "3 4 8");
    expect_ids(t, "a\u20ac", PLAIN, "3 4 0");
    cr_assert_eq(tokenizer_piece(t, 8, false).len, 1);
    cr_assert_eq(tokenizer_piece(t, 8, false).s[0], 'c');
    tokenizer_close(t);
}

Test(tokenizer_open, leaves_the_space_prefix_out_where_the_file_says_so)
{
    struct gguf_write w = {0};
    put_vocabulary(&w, &small_spm);
    gguf_write_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    struct tokenizer *t = open_written(&w);
    expect_ids(t, "ab", PLAIN, "6");
    cr_assert_not(tokenizer_drops_space(t));
    tokenizer_close(t);
}

Test(tokenizer_open, keeps_the_stored_text_of_every_token)
{
    struct tokenizer *t = open_vocabulary(&small_bpe);
    struct tokenizer_piece stored = tokenizer_text(t, 8);
    cr_assert(stored.len == 2 && !memcmp(stored.s, "\u0120", 2));
    cr_assert(tokenizer_piece(t, 8, false).len == 1 && tokenizer_piece(t, 8, false).s[0] == ' ');
    cr_assert_eq(tokenizer_text(t, 99).len, 0);
    tokenizer_close(t);
}

/* Gemma 4: 0 to 4 special, then characters, what merges make of them, and bytes. */
static const struct vocabulary small_gemma4 = {
    .model = "gemma4",
    .tokens = {"<pad>", "<eos>", "<bos>", "<turn|>", "\n", "\n\n", "\u2581", "a", "b", "\u2581a", "ab",
               "<0xC3>", "<0xA9>", "</s>", "<|tool_response>"},
    .types = {3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1, 3},
    .merges = {"a b", "\u2581 a", "\n \u2581"},
};

static struct tokenizer *open_gemma4(void)
{
    struct gguf_write w = {0};
    put_vocabulary(&w, &small_gemma4);
    gguf_write_u32(&w, "tokenizer.ggml.bos_token_id", 2);
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    return open_written(&w);
}

Test(tokenizer_open, gemma4_merges_characters_by_rank_and_cuts_around_line_ends)
{
    struct tokenizer *t = open_gemma4();
    const struct tokenizer_flags plain = {0}, special = {.add_special = true, .parse_special = true};
    expect_ids(t, " ab", plain, "6 10");     /* "a b" has the lower rank */
    expect_ids(t, " a a", plain, "9 9");     /* no space is put in front */
    expect_ids(t, "a\n\nb", plain, "7 5 8"); /* a run of line ends that is a token, without a merge */
    expect_ids(t, "\n\n\n", plain, "4 4 4"); /* a run that is none merges */
    expect_ids(t, "\n a", plain, "4 9");     /* no merge spans a line end */
    expect_ids(t, "\u00e9", plain, "11 12"); /* a character that is no token becomes its bytes */
    expect_ids(t, "a<turn|>", special, "2 7 3");
    tokenizer_close(t);
}

Test(tokenizer_open, gemma4_writes_spaces_and_bytes_back)
{
    struct tokenizer *t = open_gemma4();
    const int32_t ids[] = {9, 11, 12, 6, 10, 5};
    char *text = NULL;
    size_t len = 0;
    cr_assert_eq(tokenizer_detokenise(t, ids, 6, false, &text, &len, NULL), 0);
    cr_assert_str_eq(text, " a\u00e9 ab\n\n");
    free(text);
    tokenizer_close(t);
}

Test(tokenizer_open, gemma4_ends_at_turns_and_tools_but_not_at_another_models_mark)
{
    struct tokenizer *t = open_gemma4();
    cr_assert(tokenizer_is_end(t, 1) && tokenizer_is_end(t, 3) && tokenizer_is_end(t, 14));
    cr_assert(!tokenizer_is_end(t, 13));
    tokenizer_close(t);
}

Test(tokenizer_open, gemma4_without_merges_is_refused)
{
    struct gguf_write w = {0};
    struct vocabulary v = small_gemma4;
    v.merges[0] = NULL;
    put_vocabulary(&w, &v);
    expect_refused(&w, -EBADMSG, "no tokenizer.ggml.merges");
}
