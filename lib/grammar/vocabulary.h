/* vocabulary.h - the tokens of a model as a trie of bytes, and the masks over them. Control tokens are not in
 * the trie: a grammar never allows them; end tokens are allowed where a text may end. Thread: immutable after
 * vocabulary_open(), but for the remembered masks of JSON strings, which one thread (the engine's) fills.
 * Memory: about 21 bytes per node, 2 nodes per token. */
#pragma once
#include "base/error.h"
#include "token_classes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocabulary_node { /* in depth-first order: the children follow */
    uint32_t end;        /* behind the last node below */
    int32_t token;       /* the first token that ends here, or -1; `same` has the others */
    uint8_t byte, depth; /* depth 1: the first byte of a token; 255 stands for as much or more */
    bool shared;         /* several tokens end here */
};
struct vocabulary_memos;
struct vocabulary {
    uint32_t n_tokens, n_nodes, max_len;
    struct vocabulary_node *nodes;
    int32_t *same; /* [n_tokens]: the next token with the same bytes, or -1 */
    uint32_t n_ends;
    int32_t *ends;
    const char **bytes; /* [n_tokens]: of each token, NULL for one that is not in the trie */
    uint32_t *lens;
    struct token_classes classes;
    struct vocabulary_memos *strings; /* matcher_mask.c: of memo keys that all grammars share */
};

/* `piece` gives a token's bytes, which must outlive the vocabulary; NULL (or no bytes) leaves it out.
 * -ENOMEM.
 */
int vocabulary_open(struct vocabulary **out, uint32_t n_tokens,
                    const char *(*piece)(const void *context, int32_t token, uint32_t *len),
                    const void *context, const int32_t *ends, uint32_t n_ends, struct error *err);
void vocabulary_close(struct vocabulary *v); /* NULL is fine */

/* The token with the most of these bytes, from the first on; -1: none begins so. Among equal ones it is the
 * last: the first is often one that stands for a single byte, which models write only where no other does. */
int32_t vocabulary_longest(const struct vocabulary *v, const char *s, uint32_t n);

/* 32-bit words of a mask. */
static inline uint32_t vocabulary_mask_words(const struct vocabulary *v)
{
    return (v->n_tokens + 31) / 32;
}
