/* ngram_index.h - what came next the last time: an index over one sequence's own tokens, from which drafts
 * are copied.
 *
 * It keeps a source: the place whose token is expected next. As long as that is what comes the source moves
 * on; when it is not, the last three tokens (else the last two) are looked up, and of the latest places that
 * follow them the one with the longest common past is taken. If there is none and the source had been right
 * for long, one token was exchanged, most likely: the source goes on behind it, with a common past of 0.
 *
 * Cost: O(1) per token, a few dozen reads at most. Memory: 24 bytes per token of capacity at most, taken in
 * open, touched as far as sequences reach. Thread: one. */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define LOOKUP_LONGEST 32 /* a longer common past counts as this */

struct lookup {
    uint32_t capacity, n_max;
    uint32_t n;      /* tokens so far, at most n_max */
    uint32_t mask;   /* buckets in use, less 1 */
    uint32_t source; /* place of the token expected next, when `expects` */
    uint32_t length; /* tokens before it that are those at the end, up to LOOKUP_LONGEST */
    bool expects;
    int32_t *tokens; /* [capacity] */
    uint32_t
        *after[2]; /* [buckets] by the hash of two, of three tokens: the latest place behind them, or 0 */
    uint32_t *previous; /* [capacity + 1]: the place before with the same hash of three, or 0 */
};

int lookup_open(struct lookup *l, uint32_t capacity, struct error *err);
void lookup_close(struct lookup *l); /* zeroed is fine */

/* A new sequence of at most n_max (<= capacity) tokens. */
void lookup_begin(struct lookup *l, uint32_t n_max);
/* Its first tokens, before any lookup_add(): nothing is expected of them. */
void lookup_feed(struct lookup *l, const int32_t *tokens, uint32_t n);
/* The next token: moves the source. Beyond n_max it is not kept, and nothing is expected any more. */
void lookup_add(struct lookup *l, int32_t token);
/* The next n tokens as expected: with a source only. */
void lookup_draft(const struct lookup *l, int32_t *out, uint32_t n);
