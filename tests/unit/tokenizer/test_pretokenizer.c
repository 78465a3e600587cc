/* The words that each kind of pretokenizer cuts. */
#include "tokenizer/pretokenizer.h"
#include "support/tokenizer_fixture.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pretokenizer *open_kind(const char *name)
{
    const struct pretokenizer_kind *kind = pretokenizer_find(name, strlen(name));
    cr_assert_not_null(kind, "%s", name);
    struct pretokenizer *p = NULL;
    struct error err = {0};
    cr_assert_eq(pretokenizer_open(&p, kind, &err), 0, "%s", err.text);
    return p;
}

struct words { /* joined with "|" */
    char text[512];
    size_t n;
};

static int add_word(void *context, const char *word, size_t len)
{
    struct words *w = context;
    w->n +=
        (size_t)snprintf(w->text + w->n, sizeof w->text - w->n, "%s%.*s", w->n ? "|" : "", (int)len, word);
    return 0;
}

static void expect_words(const char *kind, const char *text, const char *expected)
{
    struct pretokenizer *p = open_kind(kind);
    struct pretokenizer_splitter s;
    struct words w = {0};
    cr_assert_eq(pretokenizer_splitter_open(&s, p, add_word, &w), 0);
    cr_assert_eq(pretokenizer_split(&s, text, strlen(text)), 0);
    cr_assert_str_eq(w.text, expected, "%s: %s, not %s", kind, w.text, expected);
    pretokenizer_splitter_close(&s);
    pretokenizer_close(p);
}

Test(pretokenizer, gives_the_last_space_of_a_run_to_the_word_after_it)
{
    expect_words("gpt-2", "a   b  ", "a|  | b|  ");
    expect_words("qwen2", "a   b  ", "a|  | b|  ");
    expect_words("gpt-2", "a\n b", "a|\n| b");
}

Test(pretokenizer, splits_contractions_off_in_the_cases_that_the_kind_knows)
{
    expect_words("gpt-2", "I'm WE'LL", "I|'m| WE|'|LL");
    expect_words("qwen2", "I'm WE'LL", "I|'m| WE|'LL");
    expect_words("gpt-4o", "I'm WE'LL", "I'm| WE'LL");
}

Test(pretokenizer, groups_digits_as_the_kind_does)
{
    expect_words("gpt-2", "12345 67", "12345| 67");
    expect_words("llama-bpe", "12345 67", "123|45| |67");
    expect_words("qwen2", "123", "1|2|3");
    expect_words("starcoder", "a 123", "a| |1|2|3");
    expect_words("falcon", "12345", "123|45");
    expect_words("default", "12345 67", "123|45| |67");
    expect_words("deepseek-v3", "12345", "123|45");
    expect_words("tekken", "123", "1|2|3");
}

Test(pretokenizer, keeps_line_ends_with_what_is_before_them_or_alone)
{
    expect_words("qwen2", "a.\n\n  b", "a|.\n\n| | b");
    expect_words("qwen2", " \n \n b", " \n \n| b");
    expect_words("deepseek-coder", "a \n\n", "a| |\n|\n");
}

Test(pretokenizer, splits_words_at_a_capital_after_a_small_letter)
{
    expect_words("tekken", "camelCase HTTPServer", "camel|Case| HTTPServer");
    expect_words("qwen2", "camelCase", "camelCase");
}

Test(pretokenizer, sets_cjk_apart_from_latin_letters_where_the_kind_does)
{
    expect_words("deepseek-llm", "abc\u4e2d\u6587", "abc|\u4e2d\u6587");
    expect_words("deepseek-v3", "abc\u4e2d\u6587", "abc|\u4e2d\u6587");
    expect_words("qwen2", "abc\u4e2d\u6587", "abc\u4e2d\u6587");
}

Test(pretokenizer, cuts_poro_text_at_spaces_and_stops)
{
    expect_words("bloom", "Hei, maailma. x", "Hei|,| maailma|.| x");
    expect_words("viking", "v12", "v|1|2");
}

Test(pretokenizer, counts_every_unicode_space_as_white_space)
{
    expect_words("gpt-2", "a\u3000\u2003b", "a|\u3000|\u2003|b");
    expect_words("qwen2", "\xC2\x85\u00a0", "\xC2\x85\u00a0");
}

Test(pretokenizer, makes_each_ill_formed_byte_a_word)
{
    expect_words("qwen2", "ab\xFF\xE2\x82 c", "ab|\xFF|\xE2|\x82| c");
}

Test(pretokenizer, knows_names_whole_only)
{
    cr_assert_not_null(pretokenizer_find("smollm", 6));
    cr_assert_null(pretokenizer_find("smoll", 5));
    cr_assert_null(pretokenizer_find("qwen2 megrez", 12));
    cr_assert_null(pretokenizer_find("", 0));
    char longer[300];
    memset(longer, 'q', sizeof longer);
    cr_assert_null(pretokenizer_find(longer, sizeof longer));
}

/* FNV-1a over the words of 500 texts of mixed scripts and code, a 256 after each, as the regular expressions
 * of the models' tokenizer.json (deepseek-v3, refact: several, one after the other) cut them in node's
 * engine. */
static const struct {
    const char *kind;
    uint64_t hash;
} engine_splits[] = {
    {"gpt-4o", 0x753e491b63af0eebu}, {"tekken", 0xf9da14b734534181u},      {"qwen2", 0xbe38916b8c8eebddu},
    {"qwen35", 0x4c083234621045e3u}, {"glm4", 0x326c699d66bf9251u},        {"dbrx", 0x326c699d66bf9251u},
    {"refact", 0x83e3da5bf49d0809u}, {"deepseek-v3", 0xe254c2b1b0c15787u}, {"kimi-k2", 0xbcc23984145dfabbu},
};

static int hash_word(void *context, const char *word, size_t len)
{
    uint64_t *h = context;
    for (size_t i = 0; i < len; i++)
        *h = (*h ^ (uint8_t)word[i]) * 0x100000001b3u;
    *h = (*h ^ 256) * 0x100000001b3u;
    return 0;
}

Test(pretokenizer, cuts_mixed_texts_as_another_engine_does)
{
    char *texts = fixture_read(HEARTH_TEST_DATA "/tokenizer/split-texts.txt");
    cr_assert_not_null(texts);
    for (size_t k = 0; k < sizeof engine_splits / sizeof engine_splits[0]; k++) {
        struct pretokenizer *p = open_kind(engine_splits[k].kind);
        struct pretokenizer_splitter s;
        uint64_t h = 0xcbf29ce484222325u;
        cr_assert_eq(pretokenizer_splitter_open(&s, p, hash_word, &h), 0);
        for (const char *at = texts, *end; *at; at = *end ? end + 1 : end) {
            end = at + strcspn(at, "\x1e");
            cr_assert_eq(pretokenizer_split(&s, at, (size_t)(end - at)), 0);
        }
        cr_expect_eq(h, engine_splits[k].hash, "%s", engine_splits[k].kind);
        pretokenizer_splitter_close(&s);
        pretokenizer_close(p);
    }
    free(texts);
}

struct position {
    const char *next;
};

static int expect_next(void *context, const char *word, size_t len)
{
    struct position *p = context;
    cr_assert(word == p->next && len > 0);
    p->next = word + len;
    return 0;
}

/* Work that grows with the square of half a megabyte would not end. */
Test(pretokenizer, is_linear_and_loses_nothing_for_every_kind)
{
    static const char *const names[] = {
        "default", "llama-bpe",    "qwen2",     "qwen35",         "gpt-2",       "starcoder",
        "falcon",  "deepseek-llm", "tekken",    "deepseek-coder", "deepseek-v3", "gpt-4o",
        "bloom",   "viking",       "chameleon", "seed-coder",     "minicpm5",    "kimi-k2"};
    static const char *const texts[] = {" ",  "\n", " \n",  "a",   "A",      "aA",           "0",   "!", "'s",
                                        "\t", "a ", "\x01", "IMG", "\u4e2d", "\u00e9\u0301", "\xFF"};
    size_t size = 1 << 19;
    char *text = malloc(size);
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        struct pretokenizer *p = open_kind(names[k]);
        for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
            for (size_t at = 0, len = strlen(texts[i]); at < size; at++)
                text[at] = texts[i][at % len];
            text[size - 1] = 'x'; /* so that no run reaches the end */
            struct position position = {text};
            struct pretokenizer_splitter s;
            cr_assert_eq(pretokenizer_splitter_open(&s, p, expect_next, &position), 0);
            cr_assert_eq(pretokenizer_split(&s, text, size), 0);
            cr_assert_eq(position.next, text + size, "%s", names[k]);
            cr_assert_not(s.in_stretches, "%s", names[k]);
            pretokenizer_splitter_close(&s);
        }
        pretokenizer_close(p);
    }
    free(text);
}
