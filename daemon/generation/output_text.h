/* output_text.h - from sampled tokens to the text a client may see.
 * Bytes of tokens become whole UTF-8 characters; stop strings are matched over the boundaries of tokens, byte
 * by byte, so the answer does not depend on how the text was cut into tokens: the stop string that is
 * complete first ends the text, which is cut before it (of two complete at the same byte, the longer one).
 * Bytes that might still become a stop string are held back, unless the text keeps it. Cost: one step of a
 * Knuth-Morris-Pratt automaton per byte and stop string, however long it is. Thread: loop. Memory: the
 * arena's. */
#pragma once
#include "base/buf.h"
#include "tokenizer/tokenizer.h"

struct text_stop {
    const char *s;
    uint32_t len; /* >= 1 */
    /* [len] for each prefix, bytes of its longest end that is its beginning too; NULL: text_open() makes it
     */
    uint32_t *fail;
    uint32_t state; /* bytes of it that the text ends with */
};

struct text {
    struct tokenizer_decoder decoder;
    bool keeps_stop; /* the stop string is part of the text: set after text_open() */
    struct buf out;  /* whole characters so far; after a match, up to the stop string or its end */
    size_t scanned;
    size_t safe; /* bytes of `out` that no stop string can take back any more */
    struct text_stop *stops;
    uint32_t n_stops;
    const struct text_stop *matched; /* the one that ended the text, or NULL */
};

/* Prepares `stops` (s and len set by the caller, in the arena; fail too, if it is that of another text).
 * -ENOMEM. */
int text_open(struct text *t, struct arena *a, struct text_stop *stops, uint32_t n_stops);
/* The bytes of one more token. True when a stop string is complete: the text has ended. */
bool text_add(struct text *t, const char *bytes, size_t n);
/* No more tokens: what is held becomes text (unless a stop string matched). */
void text_end(struct text *t);
