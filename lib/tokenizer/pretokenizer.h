/* pretokenizer.h - cuts text into the words inside which a byte-level BPE merges.
 * One kind per tokenizer.ggml.pre; a kind is a sequence of patterns, each applied to every part the one
 * before it left: what a pattern matches becomes a part of its own, and so does what lies between matches.
 * Look-around never sees beyond its part. White space in the patterns means Unicode's White_Space, letters
 * and numbers the general categories. Thread: immutable after open; a splitter belongs to one thread. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define PRETOKENIZER_MAX_PATTERNS 6

struct pretokenizer; /* opaque */

struct pretokenizer_kind {                           /* what the kind implies beside its patterns */
    const char *names;                               /* " qwen2 megrez ": each with a space on both sides */
    const char *patterns[PRETOKENIZER_MAX_PATTERNS]; /* NULL after the last */
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
    bool add_bos;       /* default of tokenizer.ggml.add_bos_token */
};

/* NULL for a kind Hearth does not know. */
const struct pretokenizer_kind *pretokenizer_find(const char *name, size_t len);

int pretokenizer_open(struct pretokenizer **out, const struct pretokenizer_kind *kind, struct error *err);
void pretokenizer_close(struct pretokenizer *p); /* NULL is fine */

struct pretokenizer_splitter { /* one thread's state */
    const struct pretokenizer *p;
    void *match;       /* PCRE2 match data */
    bool in_stretches; /* PCRE2 gave up before */
    /* Called for every word in order; a negative return ends the split and becomes its result. */
    int (*word)(void *context, const char *word, size_t len);
    void *context;
};

int pretokenizer_splitter_open(struct pretokenizer_splitter *s, const struct pretokenizer *p,
                               int (*word)(void *context, const char *word, size_t len), void *context);
void pretokenizer_splitter_close(struct pretokenizer_splitter *s);

/* Any bytes: every byte that is not part of well-formed UTF-8 is a word of its own. The words' concatenation
 * is the text. Linear in len for every kind. A match that PCRE2 gives up on (its limits) is taken in shorter
 * stretches. */
int pretokenizer_split(struct pretokenizer_splitter *s, const char *text, size_t len);
