/* The chat templates of model families against what Jinja makes of them, and the tokens that end a turn of
 * theirs. The templates are beside the checkout. */
#include "support/models/gguf_write.h"
#include "support/jinja_render.h"
#include "support/tokenizer_fixture.h"

#include <unistd.h>

#define TEMPLATES HEARTH_SOURCE_DIR "/../shared/language/templates"

static bool is_here(void)
{
    if (access(TEMPLATES, R_OK) == 0)
        return true;
    printf("SKIP test_family_templates shared-templates: ../shared/language/templates is not here\n");
    return false;
}

static char *read_template(const char *name)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", TEMPLATES, name);
    char *text = fixture_read(path);
    cr_assert_not_null(text, "%s", path);
    return text;
}

/* Renders one case of a template; the result lies in `rendered`. */
static int render_case(const json_t *inputs, const char *template, const char *name)
{
    json_t *root = json_deep_copy(json_object_get(json_object_get(inputs, "cases"), name));
    cr_assert_not_null(root, "%s", name);
    json_object_update(root, json_object_get(json_object_get(inputs, "tokens"), template));
    char *json = json_dumps(root, 0), *text = read_template(template);
    int rc = render_bytes(text, strlen(text), json);
    json_decref(root);
    free(json);
    free(text);
    return rc;
}

/* 2026-01-15 09:30, a Thursday. */
static const struct tm recorded_now = {
    .tm_year = 126, .tm_mon = 0, .tm_mday = 15, .tm_hour = 9, .tm_min = 30, .tm_wday = 4, .tm_yday = 14};

static void expect_rendering(const json_t *inputs, const json_t *line)
{
    const char *template = json_string_value(json_object_get(line, "template"));
    const char *name = json_string_value(json_object_get(line, "case"));
    const json_t *output = json_object_get(line, "output");
    int rc = render_case(inputs, template, name);
    if (!output) {
        cr_expect_lt(rc, 0, "%s, %s", template, name);
        return;
    }
    cr_expect_eq(rc, 0, "%s, %s: %s", template, name, rendered.err.text);
    if (rc == 0)
        cr_expect(jinja_text_is(rendered.text, json_string_value(output)), "%s, %s:\n%.*s\nnot\n%s", template,
                  name, (int)rendered.text.len, rendered.text.s, json_string_value(output));
}

Test(family_templates, render_as_jinja_does)
{
    if (!is_here())
        return;
    test_now = recorded_now;
    json_t *inputs = json_load_file(TEMPLATES "/inputs.json", 0, NULL);
    FILE *f = fopen(TEMPLATES "/renderings.jsonl", "re");
    cr_assert(inputs && f);
    char *line = NULL;
    size_t room = 0, n = 0;
    for (; getline(&line, &room, f) > 0; n++) {
        json_t *one = json_loads(line, 0, NULL);
        cr_assert_not_null(one);
        expect_rendering(inputs, one);
        json_decref(one);
    }
    cr_expect_eq(n, 300);
    free(line);
    (void)fclose(f);
    json_decref(inputs);
}

/* A vocabulary of these control tokens, of which the first is eos_token_id and the second, if it is said so,
 * eot_token_id. */
static struct tokenizer *open_marks(const char *const *marks, size_t n, bool has_eot)
{
    struct gguf_write w = {0};
    struct gguf_bytes tokens = {0}, types = {0}, merges = {0};
    put_str(&tokens, "a");
    put_u32(&types, 1);
    for (size_t i = 0; i < n; i++) {
        put_str(&tokens, marks[i]);
        put_u32(&types, 3);
    }
    put_str(&merges, "a a");
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str(&w, "tokenizer.ggml.pre", "gpt-4o");
    gguf_write_array(&w, "tokenizer.ggml.tokens", GGUF_STR, n + 1, tokens.p, tokens.n);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, n + 1, types.p, types.n);
    gguf_write_array(&w, "tokenizer.ggml.merges", GGUF_STR, 1, merges.p, merges.n);
    gguf_write_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    if (has_eot)
        gguf_write_u32(&w, "tokenizer.ggml.eot_token_id", 2);
    struct tokenizer *t = fixture_of(&w);
    cr_assert_not_null(t);
    free(tokens.p);
    free(types.p);
    free(merges.p);
    return t;
}

/* The text that follows an answer in each family, and its effect: it ends the model's turn or not. In harmony
 * <|end|> closes a message, and the model itself ends a turn with <|return|>. GLM's turn ends where the
 * user's begins. */
static const struct family {
    const char *template, *after; /* "Hello!" and this stand in the rendering of "turns" */
    const char *marks[4];         /* eos_token_id first */
    bool has_eot, ends[4];
} families[] = {
    {"openai-gpt-oss-120b.jinja",
     "<|end|>",
     {"<|return|>", "<|call|>", "<|end|>"},
     false,
     {true, true, false}},
    {"google-gemma-4-31B-it.jinja",
     "<turn|>",
     {"<eos>", "<turn|>", "<|tool_response>", "</s>"},
     false,
     {true, true, true, false}},
    {"ibm-granite-granite-3.3-2B-Instruct.jinja", "<|end_of_text|>", {"<|end_of_text|>"}, false, {true}},
    {"GLM-4.6.jinja", "<|user|>", {"<|endoftext|>", "<|user|>", "<|system|>"}, true, {true, true, false}},
    {"GLM-4.7-Flash.jinja", "<|user|>", {"<|endoftext|>", "<|user|>"}, true, {true, true}},
    {"HuggingFaceTB-SmolLM3-3B.jinja", "<|im_end|>", {"<|im_end|>", "<|im_start|>"}, false, {true, false}},
    {"Qwen-Qwen3-0.6B.jinja", "<|im_end|>", {"<|endoftext|>", "<|im_end|>"}, false, {true, true}},
    {"Qwen3.5-4B.jinja", "<|im_end|>", {"<|endoftext|>", "<|im_end|>"}, false, {true, true}},
    {"deepseek-ai-DeepSeek-V3.1.jinja",
     "<\uff5cend\u2581of\u2581sentence\uff5c>",
     {"<|x|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"},
     false,
     {true, true}},
    {"microsoft-Phi-3.5-mini-instruct.jinja", "<|end|>", {"<|endoftext|>", "<|end|>"}, false, {true, true}},
    {"microsoft-Phi-4-mini-instruct-llama-cpp.jinja",
     "<|end|>",
     {"<|endoftext|>", "<|end|>"},
     false,
     {true, true}},
    {"mistralai-Ministral-3-14B-Reasoning-2512.jinja", "</s>", {"</s>"}, false, {true}},
};

static void expect_ends(const json_t *inputs, const struct family *f)
{
    char wanted[128];
    size_t n = 0;
    while (n < 4 && f->marks[n])
        n++;
    cr_assert_eq(render_case(inputs, f->template, "turns"), 0, "%s: %s", f->template, rendered.err.text);
    const char *answer = memmem(rendered.text.s, rendered.text.len, "Hello!", 6);
    (void)snprintf(wanted, sizeof wanted, "Hello!%s", f->after);
    cr_expect(answer && strncmp(answer, wanted, strlen(wanted)) == 0, "%s:\n%.*s", f->template,
              (int)rendered.text.len, rendered.text.s);
    struct tokenizer *t = open_marks(f->marks, n, f->has_eot);
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(tokenizer_is_end(t, (int32_t)i + 1), f->ends[i], "%s: %s", f->template, f->marks[i]);
    tokenizer_close(t);
}

Test(family_templates, end_a_turn_with_a_token_that_ends_a_text)
{
    if (!is_here())
        return;
    test_now = recorded_now;
    json_t *inputs = json_load_file(TEMPLATES "/inputs.json", 0, NULL);
    cr_assert_not_null(inputs);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        expect_ends(inputs, &families[i]);
    json_decref(inputs);
}
