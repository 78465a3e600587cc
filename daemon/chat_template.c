#include "chat_template.h"
#include "gguf.h"
#include "tokenizer.h"

#include <stdbool.h>
#include <string.h>

void chat_template_read(struct chat_template *out, const struct gguf *g, const struct tokenizer *t)
{
    struct gguf_str source = {0};
    bool given = gguf_get_str(g, "tokenizer.chat_template", &source, NULL) == 0;

    out->start = tokenizer_find(t, "<|im_start|>", 12);
    out->end = tokenizer_find(t, "<|im_end|>", 10);
    bool tokens = out->start >= 0 && out->end >= 0;
    if (tokens && (!given || memmem(source.s, source.len, "<|im_start|>", 12)))
        out->kind = CHAT_CHATML;
    else
        out->kind = given ? CHAT_FOREIGN : CHAT_ABSENT;
}
