/* pretokenizer.h - cuts text into words; a byte-level BPE merges inside a word only.
 * A kind (a value of tokenizer.ggml.pre) is a sequence of patterns. Each pattern cuts every part that the
 * patterns before it left: a match becomes a part, and so does the text between matches. Look-around does not
 * see beyond its part. White space in the patterns means Unicode's White_Space; letters and numbers mean the
 * general categories. Thread: one thread opens and closes; any threads may share an open pretokenizer, which
 * does not change, each with a splitter of its own. Memory: the pretokenizer owns its compiled patterns, a
 * splitter its match data; words point into the caller's text. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define PRETOKENIZER_MAX_PATTERNS 6

struct pretokenizer; /* opaque */

struct pretokenizer_kind {
    const char *names;                               /* " qwen2 megrez ": a space on both sides of each */
    const char *patterns[PRETOKENIZER_MAX_PATTERNS]; /* NULL after the last */
    bool ignore_merges; /* a word whose text is a token becomes that token without merging */
    bool add_bos;       /* default of tokenizer.ggml.add_bos_token */
};

/* Returns NULL for a kind that Hearth does not know. */
const struct pretokenizer_kind *pretokenizer_find(const char *name, size_t len);

/* -ENOMEM, also when PCRE2 refuses a pattern. */
int pretokenizer_open(struct pretokenizer **out, const struct pretokenizer_kind *kind, struct error *err);
void pretokenizer_close(struct pretokenizer *p); /* NULL is fine */

struct pretokenizer_splitter { /* the state of one thread */
    const struct pretokenizer *p;
    void *match;       /* PCRE2 match data */
    bool in_stretches; /* PCRE2 has given up on a match before */
    /* Called for every word in order. A negative result ends the split and becomes its result. */
    int (*word)(void *context, const char *word, size_t len);
    void *context;
};

/* Returns 0 or -ENOMEM. */
int pretokenizer_splitter_open(struct pretokenizer_splitter *s, const struct pretokenizer *p,
                               int (*word)(void *context, const char *word, size_t len), void *context);
void pretokenizer_splitter_close(struct pretokenizer_splitter *s);

/* Calls s->word for every word of the text; the words in order are the text. A byte that is no UTF-8 is a
 * word by itself. Takes time linear in len for every kind. If PCRE2 gives up on a match for its limits, the
 * text is matched in shorter stretches. -ENOMEM, or the negative result of s->word. */
int pretokenizer_split(struct pretokenizer_splitter *s, const char *text, size_t len);
