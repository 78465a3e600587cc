/* tokenizer.h - text to token ids and back, as the model's GGUF describes it.
 * Two kinds: byte-level BPE (tokenizer.ggml.model = gpt2; the pre-tokeniser pattern is chosen by
 * tokenizer.ggml.pre) and SPM (llama: scores, byte fallback, space prefix). A vocabulary without tensors is
 * enough. Cost: encoding is O(n log n) in the text's length, also for adversarial text (10 MB of one letter).
 * Thread: immutable after open; any number of threads may encode and decode at once. Memory: copies what it
 * needs, so the GGUF may be closed afterwards. */
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
                  TOKEN_CONTROL = 4, /* special: no text in a reply */
                  TOKEN_USER = 8,    /* user-defined: matched in every text, its text is shown */
                  TOKEN_UNUSED = 16,
                  TOKEN_BYTE = 32, /* SPM byte fallback, <0x41> */
};

struct tokenizer_piece { /* the bytes a token stands for; may be part of a UTF-8 character */
    const char *s;
    uint32_t len;
};

int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct error *err);
void tokenizer_close(struct tokenizer *t); /* NULL is fine */

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
const char *tokenizer_kind(const struct tokenizer *t); /* "bpe qwen2", "spm" */
size_t tokenizer_max_piece(
    const struct tokenizer *t); /* bytes of the longest token: bounds a prompt's length from below */

/* Ids of the special tokens, or -1. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);

/* Whether this token ends a text: the file's eos, eot and eom, and the known end markers (<|im_end|>,
 * <|eot_id|>, …) that reference engines treat so. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t token);
size_t tokenizer_ends(const struct tokenizer *t, const int32_t **ids); /* all of them, sorted */
uint32_t tokenizer_attr(const struct tokenizer *t,
                        int32_t token); /* bits of enum token_attr; 0 out of range */
int32_t tokenizer_find(const struct tokenizer *t, const char *text,
                       size_t len); /* the token with exactly this text as stored, or -1 */

struct tokenizer_flags {
    bool add_special; /* BOS/EOS as the file asks for */
    bool
        parse_special; /* special-token text in the input becomes that token; user-defined tokens always do */
    /* One per byte of the text, or NULL: a control token's text that has a byte marked here (a user wrote it)
     * stays text. Everything between special tokens is still encoded as one text. */
    const unsigned char *plain;
};

/* Encodes `len` bytes (any bytes: invalid UTF-8 is encoded byte-wise where the vocabulary allows). On success
 * *out is a malloc'ed array of *n ids (NULL when none), owned by the caller. -ENOMEM; -E2BIG as soon as more
 * than `max` ids would come out (max 0: no bound), so a huge prompt is refused early. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, struct tokenizer_flags flags,
                     size_t max, int32_t **out, size_t *n, struct error *err);

/* The token's text as stored: letters for bytes (BPE), U+2581 for spaces (SPM), the text of a special token.
 */
struct tokenizer_piece tokenizer_text(const struct tokenizer *t, int32_t token);

/* The bytes of one token as they appear in a reply: nothing for control tokens unless `special`. Never fails:
 * an id out of range is empty. The pointer stays valid until close. SPM's leading space is part of the piece.
 */
struct tokenizer_piece tokenizer_piece(const struct tokenizer *t, int32_t token, bool special);

/* Incremental decoding: bytes go in, whole UTF-8 characters come out. Invalid bytes become U+FFFD (as the
 * WHATWG decoder replaces them), so what comes out is always valid UTF-8. Zero-initialise; `drop_space` is
 * set by the caller for an SPM text whose first space is to be dropped (see tokenizer_drops_space). */
struct tokenizer_decoder {
    unsigned char held[4]; /* bytes of a character not complete yet */
    uint8_t n_held;
    bool drop_space; /* the next byte, if a space, is dropped */
};

/* Room that tokenizer_decode() may need for `n` input bytes. */
#define TOKENIZER_DECODE_ROOM(n) (3 * ((size_t)(n) + 4))

/* Appends whole characters to out and returns the bytes written. */
size_t tokenizer_decode(struct tokenizer_decoder *d, const char *bytes, size_t n, char *out);
/* At the end of a text: what is still held becomes one U+FFFD per maximal ill-formed part. */
size_t tokenizer_decode_flush(struct tokenizer_decoder *d, char *out);

/* Whether the encoder puts a space before a text (SPM add_space_prefix), which whole-text detokenising takes
 * away again. */
bool tokenizer_drops_space(const struct tokenizer *t);

/* Whole text of n ids, malloc'ed, NUL-terminated, valid UTF-8; control tokens appear only when `special`. */
int tokenizer_detokenise(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char **out,
                         size_t *len, struct error *err);
