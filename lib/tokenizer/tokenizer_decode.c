/* tokenizer_decode.c - turns the bytes of tokens into valid UTF-8, piece by piece or as a whole text. */
#include "tokenizer_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of a character that begins with this byte; 0 when none does. */
static size_t length_of(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

/* Tells whether `byte` may follow the held ones. Only a second byte has narrower limits than 80..BF: they
 * exclude over-long forms, surrogates and code points above U+10FFFF. */
static bool may_follow(const struct tokenizer_decoder *d, unsigned char byte)
{
    unsigned char low = 0x80, high = 0xBF;
    if (d->n_held == 1) {
        low = d->held[0] == 0xE0 ? 0xA0 : d->held[0] == 0xF0 ? 0x90 : 0x80;
        high = d->held[0] == 0xED ? 0x9F : d->held[0] == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* The held bytes are always the beginning of a character, so they are one maximal ill-formed part. */
size_t tokenizer_decode_flush(struct tokenizer_decoder *d, char *out)
{
    if (!d->n_held)
        return 0;
    d->n_held = 0;
    return put_replacement(out);
}

static size_t begin(struct tokenizer_decoder *d, unsigned char byte, char *out)
{
    size_t len = length_of(byte);
    if (!len)
        return put_replacement(out);
    if (len == 1) {
        *out = (char)byte;
        return 1;
    }
    d->held[0] = byte;
    d->n_held = 1;
    return 0;
}

size_t tokenizer_decode(struct tokenizer_decoder *d, const char *bytes, size_t n, char *out)
{
    size_t o = 0, i = 0;
    if (n && d->drop_space) {
        d->drop_space = false;
        i = bytes[0] == ' ';
    }
    for (; i < n; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (d->n_held && may_follow(d, byte)) {
            assert(d->n_held < sizeof d->held);
            d->held[d->n_held++] = byte;
            if (d->n_held < length_of(d->held[0]))
                continue;
            memcpy(out + o, d->held, d->n_held);
            o += d->n_held;
            d->n_held = 0;
            continue;
        }
        o += tokenizer_decode_flush(d, out + o);
        o += begin(d, byte, out + o);
    }
    return o;
}

/* Tells whether the encoder put a space before this text: it puts none before a special or user-defined
 * token. */
static bool begins_with_space(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    size_t i = 0;
    while (i < n && tokenizer_attr(t, ids[i]) & (TOKEN_CONTROL | TOKEN_UNKNOWN))
        i++;
    return tokenizer_drops_space(t) && i < n && !(tokenizer_attr(t, ids[i]) & TOKEN_USER);
}

int tokenizer_detokenise(const struct tokenizer *t, const int32_t *ids, size_t n, bool special, char **out,
                         size_t *len, struct error *err)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(n_bytes, tokenizer_piece(t, ids[i], special).len, &n_bytes) ||
            n_bytes > SIZE_MAX / 8)
            return error_set(err, -E2BIG, "detokenise: %zu tokens give more text than memory can hold", n);
    char *text = malloc(TOKENIZER_DECODE_ROOM(n_bytes) + 1);
    if (!text)
        return error_set(err, -ENOMEM, "detokenise: out of memory for %zu bytes", n_bytes);
    struct tokenizer_decoder d = {.drop_space = begins_with_space(t, ids, n)};
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_piece piece = tokenizer_piece(t, ids[i], special);
        o += tokenizer_decode(&d, piece.s, piece.len, text + o);
    }
    o += tokenizer_decode_flush(&d, text + o);
    assert(o <= TOKENIZER_DECODE_ROOM(n_bytes));
    text[o] = 0;
    *out = text;
    *len = o;
    return 0;
}
