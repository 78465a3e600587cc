/* tokenizer.h - turns text into token ids and back, by the vocabulary of the model's GGUF.
 * Three kinds: byte-level BPE (tokenizer.ggml.model = gpt2; tokenizer.ggml.pre chooses the pre-tokeniser's
 * patterns), SPM (llama: scores, byte fallback, space prefix), and Gemma 4's BPE over characters (gemma4:
 * merges, SPM's spaces and byte fallback, text cut around runs of line ends). A GGUF without tensors is
 * enough. Encoding takes O(n log n) in the text's length for any text, 10 MB of one letter included. Thread:
 * one thread opens and closes; between the two any threads may call the other functions at once, as the
 * tokenizer does not change. A struct tokenizer_decoder belongs to one thread. Memory: the tokenizer owns
 * copies of all it needs, so the GGUF may be closed; pieces and ids that are returned as pointers to const
 * are its own, until tokenizer_close(). */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf;
struct tokenizer; /* opaque: the fields are in tokenizer_private.h */

enum token_attr { /* bits */
                  TOKEN_NORMAL = 1,
                  TOKEN_UNKNOWN = 2,
                  TOKEN_CONTROL = 4, /* special: not part of a reply's text */
                  TOKEN_USER = 8,    /* user-defined: matched in every text, part of a reply's text */
                  TOKEN_UNUSED = 16,
                  TOKEN_BYTE = 32, /* SPM byte fallback, <0x41> */
};

struct tokenizer_piece { /* the bytes of a token, which may be a part of a UTF-8 character */
    const char *s;
    uint32_t len;
};

/* -EBADMSG: the vocabulary is broken; -ENOTSUP: a kind that Hearth does not know; -ENOMEM. */
int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct error *err);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
/* Returns the bytes of the longest token; callers bound a prompt's tokens from below with it. */
size_t tokenizer_max_piece(const struct tokenizer *t);

/* Return the ids of the special tokens, or -1. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);

/* Tells whether the token ends a text: the file's eos, eot and eom, and the end markers that reference
 * engines know
 * (<|im_end|>, <|eot_id|>, …). */
bool tokenizer_is_end(const struct tokenizer *t, int32_t token);
/* Sets *ids to all end tokens, sorted, and returns their number. */
size_t tokenizer_ends(const struct tokenizer *t, const int32_t **ids);
/* Returns the number of the tokens that no text may have, by the file's suppress_tokens (Gemma 4: images and
 * sounds), and sets *ids, which live as long as the tokenizer. At most TOKENIZER_MAX_SUPPRESSED. */
size_t tokenizer_suppressed(const struct tokenizer *t, const int32_t **ids);
#define TOKENIZER_MAX_SUPPRESSED 256
/* Returns bits of enum token_attr; 0 for an id out of range. */
uint32_t tokenizer_attr(const struct tokenizer *t, int32_t token);
/* Returns the token whose stored text is exactly this, or -1. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);

struct tokenizer_flags {
    bool add_special;   /* add BOS and EOS, if the file asks for them */
    bool parse_special; /* text of a special token becomes that token; a user-defined one's always does */
    /* One per byte of the text, or NULL. A control token's text stays text when one of its bytes is marked 1:
     * a user wrote it. The text between special tokens is still encoded as one. */
    const unsigned char *plain;
};

/* Encodes `len` bytes. Any bytes are allowed: bytes that are no UTF-8 become byte tokens where the vocabulary
 * has them. On success *out is a malloc'ed array of *n ids (NULL when n is 0), which the caller frees.
 * -ENOMEM; -E2BIG as soon as there would be more than `max` ids (0: no limit), so that a huge prompt is
 * refused early. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, struct tokenizer_flags flags,
                     size_t max, int32_t **out, size_t *n, struct error *err);

/* Returns the token's stored text: letters for bytes (BPE), U+2581 for spaces (SPM), or a special token's
 * text. */
struct tokenizer_piece tokenizer_text(const struct tokenizer *t, int32_t token);

/* Returns the bytes of a token in a reply: none for a control token unless `special`, none for an id out of
 * range. SPM's leading space is part of the piece. */
struct tokenizer_piece tokenizer_piece(const struct tokenizer *t, int32_t token, bool special);

/* An incremental decoder: takes bytes, gives whole UTF-8 characters. Invalid bytes become U+FFFD, by the rule
 * of the WHATWG decoder, so the output is always valid UTF-8. Zero-initialise it; set `drop_space` for an SPM
 * text whose first space is to be dropped (see tokenizer_drops_space()). */
struct tokenizer_decoder {
    unsigned char held[4]; /* bytes of a character that is not complete yet */
    uint8_t n_held;
    bool drop_space; /* drop the next byte if it is a space */
};

/* Bytes that tokenizer_decode() may write for n input bytes. */
#define TOKENIZER_DECODE_ROOM(n) (3 * ((size_t)(n) + 4))

/* Writes whole characters to out, which has room for TOKENIZER_DECODE_ROOM(n) bytes; returns the bytes
 * written. */
size_t tokenizer_decode(struct tokenizer_decoder *d, const char *bytes, size_t n, char *out);
/* Ends a text: writes one U+FFFD (3 bytes) if a character is incomplete; returns the bytes written. */
size_t tokenizer_decode_flush(struct tokenizer_decoder *d, char *out);

/* Tells whether the encoder puts a space before a text (SPM's add_space_prefix), which detokenising drops
 * again. */
bool tokenizer_drops_space(const struct tokenizer *t);

/* Sets *out to the text of n ids: malloc'ed, NUL-terminated, valid UTF-8, freed by the caller. Control tokens
 * are part of it only when `special`. -ENOMEM; -E2BIG. */
int tokenizer_detokenise(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char **out,
                         size_t *len, struct error *err);
