/* chat_template.h - how the model wants a conversation written, as its file says. Read once at load, so that
 * no request has to look into the file. Thread: any. */
#pragma once
#include "chatml.h"

#include <stdint.h>

struct gguf;
struct tokenizer;

struct chat_template {
    enum {
        CHAT_ABSENT,  /* no template, and no tokens of ChatML */
        CHAT_CHATML,  /* ChatML, or no template but ChatML's tokens */
        CHAT_FOREIGN, /* a template that is not ChatML, or says more */
    } kind;
    int32_t start, end;  /* CHAT_CHATML: the ids of <|im_start|> and <|im_end|> */
    struct chatml form;  /* CHAT_CHATML */
    const char *unknown; /* CHAT_FOREIGN: "the template ..."; a constant */
};

void chat_template_read(struct chat_template *out, const struct gguf *g, const struct tokenizer *t);
