/* token_classes.h - of which bytes and characters the tokens of a vocabulary consist, in 64 classes. Inside a
 * text of letters, say, all tokens of letters may come, and only the rest of the trie has to be walked.
 * A class has bytes of ASCII, or the characters with some first bytes in UTF-8; TOKEN_BROKEN is of bytes that
 * are no character, read from the beginning of the token (its last character may be cut). Thread: immutable
 * after token_classes_open(). Memory: 9 bytes per node of the trie, 4 per token, 12 per set. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct vocabulary;

#define TOKEN_CLASSES 64
#define TOKEN_BROKEN  63

struct token_classes {
    uint8_t class_of[256]; /* by the byte that begins a character; TOKEN_BROKEN: it begins none */
    uint64_t *from;        /* [n_nodes]: classes of the node's byte and of all below it */
    uint8_t *tall;         /* [n_nodes]: bytes from the node on, itself among them; 255 for as many or more */
    uint32_t n_sets;       /* of classes that a token has */
    uint64_t *sets;        /* [n_sets] */
    uint32_t *first;       /* [n_sets + 1] into tokens */
    int32_t *tokens;       /* of the trie, by set */
    uint32_t *all;         /* the mask of all of them */
    uint32_t n_mask_words;
    uint32_t weight[TOKEN_CLASSES]; /* nodes that are, or are below, a first byte of the class */
};

/* The bytes lo..hi that may follow `lead`, and how many more bytes 0x80..0xbf follow those; false: `lead` is
 * of ASCII, or begins no character. */
bool token_character(uint8_t lead, uint8_t *lo, uint8_t *hi, uint32_t *more);

/* v has its nodes and tokens. 0 or -ENOMEM; token_classes_close() frees what there is. */
int token_classes_open(struct token_classes *c, const struct vocabulary *v);
void token_classes_close(struct token_classes *c); /* zeros are fine */

/* Sets mask[n_mask_words], which has zeros, to the tokens all of whose classes are in `allowed`. */
void token_classes_mask(const struct token_classes *c, uint64_t allowed, uint32_t *mask);
