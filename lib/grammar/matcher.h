/* matcher.h - a text on its way through a grammar: which bytes and which tokens may come next.
 * A matcher holds the set of threads that the text so far allows; a thread is a state, a count and a stack of
 * frames. Stacks share their lower parts. Thread: one at a time; the remembered masks of a grammar belong to
 * the engine's thread. Memory: grows with ambiguity, up to MATCHER_MAX_THREADS threads and MATCHER_BYTES; it
 * counts in grammar_bytes(), and so do the grammar's remembered masks, at most 8 MB. Time: counted in
 * steps (a thread, an edge or a comparison; 3 to 10 ns each, 20 ns on a busy machine). A byte, a token or a
 * closure takes at most MATCHER_WORK steps (5 to 10 ms), a mask MATCHER_WORK_NODE more for each node of the
 * trie: 1.5 million at 4,096 tokens, 22 million (0.1 to 0.25 s) at 150,000, where llama.cpp's JSON grammar
 * takes 5 million in a string. A matcher that would need more has failed: nothing is allowed any more. */
#pragma once
#include "grammar.h"
#include "vocabulary.h"

#define MATCHER_MAX_THREADS 4096
#define MATCHER_BYTES       (16u << 20) /* of threads, frames and links */
#define MATCHER_WORK        (1000 * 1000)
#define MATCHER_WORK_NODE   64

struct matcher; /* opaque: matcher_private.h */

int matcher_open(struct matcher **out,
                 struct grammar *g);   /* takes a reference; -ENOMEM, -E2BIG: too many threads */
void matcher_close(struct matcher *m); /* NULL is fine */
/* Takes bytes while they are in the language; returns how many. The rest was not taken. */
size_t matcher_bytes(struct matcher *m, const char *s, size_t n);
bool matcher_can_end(const struct matcher *m);      /* the text so far is in the language */
bool matcher_has_failed(const struct matcher *m);   /* for lack of memory, or: */
bool matcher_is_ambiguous(const struct matcher *m); /* for too many threads or too much work */
/* Tells whether the token may come next, and takes it. An end token is taken where the text may end. */
bool matcher_token(struct matcher *m, const struct vocabulary *v, int32_t token);
/* Sets bit t of mask[vocabulary_mask_words()] exactly when token t may come next. Returns their number. */
uint32_t matcher_mask(struct matcher *m, const struct vocabulary *v, uint32_t *mask);
/* The same in parts, of about `steps` steps each (a memo is made whole: up to two for each node of the trie):
 * false until the mask is complete, then true with its number of tokens in *n. The mask stays the same
 * memory; a byte or token that is taken before drops it. */
bool matcher_mask_part(struct matcher *m, const struct vocabulary *v, uint32_t *mask, uint64_t steps,
                       uint32_t *n);

/* Writes the bytes that must come next, `most` at most, as long as there is only one and the text cannot end;
 * returns their number: of those that `steps` steps find. 0 too while a mask is being made. */
uint32_t matcher_forced(struct matcher *m, char *out, uint32_t most, uint64_t steps);
/* Saves the state, to which matcher_restore() goes back from any tokens and masks, once. False: it has failed
 * or memory has run out, and there is nothing to go back to. */
bool matcher_save(struct matcher *m);
/* For who cannot do without: the matcher has failed, for lack of memory. */
void matcher_fail(struct matcher *m);
void matcher_restore(struct matcher *m);
/* Goes on from here instead: what was saved is forgotten. */
void matcher_keep(struct matcher *m);

/* The remembered masks of a vocabulary (JSON strings) or of a grammar. */
struct vocabulary_memos;
int memo_store_open(struct vocabulary_memos **out);
void memo_store_close(struct vocabulary_memos *s);
/* Computes the masks of JSON strings that every grammar uses. Called once, before the vocabulary is shared.
 */
int vocabulary_warm(struct vocabulary *v);
