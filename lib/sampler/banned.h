/* banned.h - strings that a text must not contain, and the tokens that are withdrawn because of them.
 *
 * Tokens are drawn one by one. Where the text comes to contain one of the strings, the text is withdrawn from
 * the token that has the string's first byte. That token is then banned at its position, which is drawn anew,
 * with other noise. A ban holds as long as the tokens before it stand. A token whose own bytes contain a
 * string is banned at every position. Bans come before all filters, like a mask. Of two strings that one byte
 * completes the longer counts.
 *
 * So the text is distributed as by this rule: draw from the model; whenever a token completes a string, go
 * back to where it began and draw from what the model's distribution leaves without that token. Nothing
 * biases what stays, as the noise of a position is new after each withdrawal (banned_seed()).
 *
 * Tokens are held back while they may become part of a string: those from the first byte of the longest
 * ending of the text that begins a string. The others are final. Where a withdrawal makes a final token the
 * beginning of a string again, and the string comes, the first token that is not final is withdrawn. Tokens
 * without bytes (control tokens) are passed over: a string reaches across them.
 *
 * With a constraint (grammar/matcher.h) the rule is the same, but the bans of a position may leave it no
 * token: where "Bern" and "Basel" may come, both may begin with the same one. Then they are lifted, and from
 * there on, until it is final, the token that completes a string is withdrawn, and the one before where no
 * token is left. So a text is found if there is one behind the final tokens.
 *
 * Cost: a step for each byte and string. Thread: one at a time per text; the strings are read by any.
 * Memory: the caller's arena. */
#pragma once
#include "base/arena.h"
#include "sampler_chain.h"

#define BANNED_MAX_STRINGS 64
#define BANNED_MAX_BYTES   128  /* of a string */
#define BANNED_MAX_HELD    255  /* tokens; a string has so many only with tokens without bytes */
#define BANNED_MAX_BANS    1024 /* of one text at once */

struct banned_strings; /* constant once open; the texts of a request share them */
struct banned;         /* one text */

/* Copies n strings of 1 to BANNED_MAX_BYTES bytes, and looks for them in the tokens of the vocabulary. NULL:
 * no memory. */
struct banned_strings *banned_strings_open(struct arena *a, const char *const *strings, uint32_t n,
                                           uint32_t n_vocab, sampler_piece *piece, const void *context);
/* A text with no token. `chained`: a chain draws it, whose state goes back with the text. NULL: no memory. */
struct banned *banned_open(struct arena *a, const struct banned_strings *s, bool chained);
/* Limits what it holds back to so many tokens, and its withdrawals by the length that it may get. */
void banned_begin(struct banned *b, uint32_t most_held, uint32_t max_tokens);

/* The tokens of the text: drawn and not withdrawn; and those of them that will never be. */
uint32_t banned_n_tokens(const struct banned *b);
uint32_t banned_n_final(const struct banned *b);
/* Before each draw: writes the mask of the tokens that may come next, [n_vocab] bits, and keeps the state of
 * the chain (NULL: there is none) for a withdrawal. False if no token is left. */
bool banned_mask(struct banned *b, uint32_t *mask, uint32_t n_vocab, const struct sampler_chain *chain);
/* The same for a mask that has bits already: takes tokens out of it. */
bool banned_restrict(struct banned *b, uint32_t *mask, uint32_t n_vocab, const struct sampler_chain *chain);
/* The seed of the next draw. */
uint64_t banned_seed(const struct banned *b, uint64_t seed);

enum banned_verdict {
    BANNED_FINE,
    BANNED_WITHDRAWN, /* the text is shorter; the chain has the state that it had there */
    BANNED_HOPELESS,  /* it cannot go on: its withdrawals or bans are at their limit, or the last token is
                         final */
};
/* Takes the token that was drawn. */
enum banned_verdict banned_take(struct banned *b, int32_t token, struct sampler_chain *chain);
/* Call where no token is left: lifts bans, or withdraws the last token. BANNED_WITHDRAWN: the next mask is
 * another one. */
enum banned_verdict banned_go_back(struct banned *b, struct sampler_chain *chain);
