/* ngram_index.h - an n-gram index over one sequence's own tokens.
 * It predicts the next tokens from an earlier occurrence of the last ones; drafts are copied from there.
 *
 * The index keeps a source: the place whose token is expected next. While the expected token comes, the
 * source moves on. When another token comes, the last three tokens (else the last two) are looked up, and of
 * the latest places that follow them the one with the longest match becomes the source. If there is none and
 * the source had been right for long, one token was probably exchanged: the source continues behind it, with
 * a match of length 0.
 *
 * Cost: O(1) per token, a few dozen reads at most.
 * Thread: one at a time. Memory: at most 24 bytes per token of capacity, allocated in open and touched as far
 * as sequences reach. Errors: only lookup_open() fails. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define LOOKUP_LONGEST 32 /* most tokens of a match; a longer one counts as this */

struct lookup {
    uint32_t capacity, n_max;
    uint32_t n;      /* tokens of the sequence so far, at most n_max */
    uint32_t mask;   /* buckets in use - 1 */
    uint32_t source; /* place of the token expected next, if `expects` */
    uint32_t length; /* match length, up to LOOKUP_LONGEST: tokens before it that equal the last */
    bool expects;
    int32_t *tokens; /* [capacity] */
    uint32_t
        *after[2]; /* [buckets] by the hash of two and of three tokens: the latest place after them, or 0 */
    uint32_t *previous; /* [capacity + 1]: the previous place with the same hash of three tokens, or 0 */
};

int lookup_open(struct lookup *l, uint32_t capacity, struct error *err);
void lookup_close(struct lookup *l); /* a zeroed one is fine */

/* Begins a new sequence of at most n_max (<= capacity) tokens. */
void lookup_begin(struct lookup *l, uint32_t n_max);
/* Adds the first tokens, before any lookup_add(); they set no source. */
void lookup_feed(struct lookup *l, const int32_t *tokens, uint32_t n);
/* Adds the next token and moves the source. Beyond n_max it drops the token and the source. */
void lookup_add(struct lookup *l, int32_t token);
/* Copies the next n expected tokens to `out`. Requires a source. */
void lookup_draft(const struct lookup *l, int32_t *out, uint32_t n);
