#include "fim_prompt.h"
#include "generation.h"

#include <string.h>

/* Sources: the models' own READMEs. The order is prefix, suffix, middle in all of them. */
static const struct family {
    const char *prefix, *suffix, *middle;
    const char *file; /* begins a file; NULL: files are not told apart */
} families[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"}, /* Qwen2.5-Coder, CodeGemma */
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"},         /* StarCoder 2, Granite */
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL},           /* DeepSeek */
    {"▁<PRE>", "▁<SUF>", "▁<MID>", NULL},                                   /* Code Llama */
};

static int32_t find(const struct tokenizer *t, const char *mark)
{
    return mark ? tokenizer_find(t, mark, strlen(mark)) : -1;
}

static const struct family *family_of(const struct tokenizer *t)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const struct family *f = &families[i];
        if (find(t, f->prefix) >= 0 && find(t, f->suffix) >= 0 && find(t, f->middle) >= 0)
            return f;
    }
    return NULL;
}

/* A mark, if there is one, then a text; a text never becomes a control token. */
static int put(struct generation *g, const char *mark, struct fim_text text, struct api_error *err)
{
    int32_t id = find(g->model->tokenizer, mark);
    if (id >= 0 && generation_append_id(g, id, err) < 0)
        return -1;
    return generation_encode(g, text.s ? text.s : "", text.len, (struct tokenizer_flags){0}, err);
}

static int put_files(struct generation *g, const struct family *f, const struct fim_file *files, size_t n,
                     struct api_error *err)
{
    const struct fim_text line = {"\n", 1};
    for (size_t i = 0; i < n; i++)
        if (put(g, f->file, files[i].name, err) < 0 || put(g, NULL, line, err) < 0 ||
            put(g, NULL, files[i].text, err) < 0)
            return -1;
    return 0;
}

int fim_prompt_put(struct generation *g, struct fim_text prefix, struct fim_text suffix,
                   const struct fim_file *files, size_t n_files, const char *field, struct api_error *err)
{
    const struct tokenizer *t = g->model->tokenizer;
    const struct family *f = family_of(t);
    const struct fim_text none = {0};
    if (!f)
        return api_fail(err, 501, "not_supported", field,
                        "%s needs a model with fill-in-the-middle tokens: this one has none", field);
    if (tokenizer_adds_bos(t) && generation_append_id(g, tokenizer_bos(t), err) < 0)
        return -1;
    if (put_files(g, f, files, n_files, err) < 0)
        return -1;
    return put(g, f->prefix, prefix, err) < 0 || put(g, f->suffix, suffix, err) < 0 ||
                   put(g, f->middle, none, err) < 0
               ? -1
               : 0;
}
