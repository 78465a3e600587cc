#include "chat_template.h"
#include "gguf.h"
#include "tokenizer.h"

#include <stdbool.h>
#include <string.h>

void chat_template_read(struct chat_template *out, const struct gguf *g, const struct tokenizer *t)
{
    struct gguf_str source = {0};
    bool given = gguf_get_str(g, "tokenizer.chat_template", &source, NULL) == 0;

    out->start = tokenizer_find(t, CHATML_START, strlen(CHATML_START));
    out->end = tokenizer_find(t, CHATML_END, strlen(CHATML_END));
    out->unknown = chatml_detect(given ? source.s : NULL, source.len, &out->form);
    out->kind = CHAT_CHATML;
    if (out->start >= 0 && out->end >= 0 && !out->unknown)
        return;
    out->kind = given ? CHAT_FOREIGN : CHAT_ABSENT;
    if (!out->unknown)
        out->unknown = "needs tokens that the vocabulary lacks";
}
