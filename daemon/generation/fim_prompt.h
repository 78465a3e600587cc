/* fim_prompt.h - fill-in-the-middle prompts: prefix and suffix between the marks of the model's family, which
 * are control tokens of its vocabulary. Thread: loop or pool. */
#pragma once
#include "base/api_error.h"

#include <stddef.h>

struct generation;
struct tokenizer;

struct fim_text {
    const char *s;
    size_t len;
};
struct fim_file { /* of the same repository, as context */
    struct fim_text name, text;
};

/* Appends to g->p.ids: the files, then prefix and suffix. 0, or -1 with *err: a model without marks is
 * refused under the name of `field`, with 501. */
int fim_prompt_put(struct generation *g, struct fim_text prefix, struct fim_text suffix,
                   const struct fim_file *files, size_t n_files, const char *field, struct api_error *err);
