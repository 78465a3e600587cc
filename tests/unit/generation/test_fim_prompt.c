/* Prompts for a text in the middle, in the marks of each family. */
#include "generation/generation.h"
#include "gguf/gguf.h"
#include "support/models/made_vocab.h"
#include "support/tokenizer_fixture.h"

#include <criterion/criterion.h>

static struct tokenizer *open_vocabulary(const struct made_vocab *v)
{
    struct gguf_write w = {0};
    made_vocab_write(&w, v, 300);
    struct tokenizer *t = fixture_of(&w);
    cr_assert_not_null(t);
    return t;
}

#define TEXT(s)                                                                                              \
    (struct fim_text)                                                                                        \
    {                                                                                                        \
        s, sizeof s - 1                                                                                      \
    }

/* The prompt's ids as a text, control tokens shown; refusals as their words. */
static void expect(const struct made_vocab *v, const struct fim_file *files, size_t n, const char *want)
{
    struct arena arena = {0};
    struct api_error err = {0};
    struct server_model m = {.tokenizer = open_vocabulary(v), .n_ctx = 256};
    struct generation g = {.model = &m, .arena = &arena, .dialect = &(struct dialect){0}};
    char *text = NULL;
    size_t len;
    int rc = fim_prompt_put(&g, TEXT("int f("), TEXT(") {}<|fim_middle|>"), files, n, "suffix", &err);
    if (rc == 0) {
        cr_assert_eq(tokenizer_detokenise(m.tokenizer, g.p.ids, g.p.n_ids, true, &text, &len, NULL), 0);
        cr_assert_str_eq(text, want);
        cr_assert_eq(g.p.ids[g.p.n_ids - 1],
                     tokenizer_find(m.tokenizer, v->special[3], strlen(v->special[3])));
        cr_assert_neq(g.p.ids[g.p.n_ids - 2], g.p.ids[g.p.n_ids - 1], "a text is no control token");
    } else {
        cr_assert_eq(err.status, 501);
        cr_assert_str_eq(err.param, "suffix");
        cr_assert_str_eq(err.message, want);
    }
    free(text);
    tokenizer_close((struct tokenizer *)m.tokenizer);
    arena_close(&arena);
}

static const struct made_vocab qwen = {
    .pre = "qwen2",
    .special = {"<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"},
    .chat_template = "x"};
static const struct made_vocab starcoder = {
    .pre = "qwen2",
    .special = {"<|endoftext|>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    .add_bos = true,
    .chat_template = "x"};
static const struct made_vocab none = {.pre = "qwen2", .special = {"<|endoftext|>"}, .chat_template = "x"};

Test(fim_prompt, prefix_and_suffix_stand_between_the_familys_marks)
{
    expect(&qwen, NULL, 0, "<|fim_prefix|>int f(<|fim_suffix|>) {}<|fim_middle|><|fim_middle|>");
    expect(&starcoder, NULL, 0, "<|endoftext|><fim_prefix>int f(<fim_suffix>) {}<|fim_middle|><fim_middle>");
}

Test(fim_prompt, files_come_first_each_behind_its_name)
{
    const struct fim_file files[] = {{TEXT("a.h"), TEXT("A")}, {TEXT("b.h"), TEXT("B")}};
    expect(&qwen, files, 2,
           "<|file_sep|>a.h\nA<|file_sep|>b.h\nB<|fim_prefix|>int f(<|fim_suffix|>) {}<|fim_middle|>"
           "<|fim_middle|>");
}

Test(fim_prompt, a_model_without_marks_is_refused)
{
    expect(&none, NULL, 0, "suffix needs a model with fill-in-the-middle tokens: this one has none");
}
