/* tokenizer.c - opens a tokenizer, answers about its tokens, and encodes. */
#include "tokenizer.h"

#include "tokenizer_private.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT ((size_t)1 << 30) /* positions fit 32 bits even when every byte is an escaped space */

int tokenizer_open(struct tokenizer **out, const struct gguf *g, struct error *err)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, -ENOMEM, "tokenizer: out of memory");
    t->bos = t->eos = t->unknown = -1;
    int rc = tokenizer_load(t, g, err);
    if (rc >= 0 && (specials_open(&t->always, t, TOKEN_USER) < 0 ||
                    specials_open(&t->parsed, t, TOKEN_USER | TOKEN_CONTROL | TOKEN_UNKNOWN) < 0))
        rc = error_set(err, -ENOMEM, "tokenizer: out of memory");
    if (rc < 0) {
        tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    text_pool_close(&t->text);
    text_pool_close(&t->piece);
    pretokenizer_close(t->pre);
    specials_close(&t->always);
    specials_close(&t->parsed);
    free(t->by_text.slots);
    free(t->by_piece.slots);
    free(t->attr);
    free(t->ends);
    free(t->merges);
    free(t->rank);
    free(t->pairs);
    free(t);
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->n_vocab;
}

size_t tokenizer_max_piece(const struct tokenizer *t)
{
    return t->max_piece;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

bool tokenizer_drops_space(const struct tokenizer *t)
{
    return t->spm && t->space_prefix;
}

static bool in_range(const struct tokenizer *t, int32_t token)
{
    return token >= 0 && (uint32_t)token < t->n_vocab;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t token)
{
    for (size_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == token)
            return true;
    return false;
}

size_t tokenizer_ends(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->ends;
    return t->n_ends;
}

uint32_t tokenizer_attr(const struct tokenizer *t, int32_t token)
{
    return in_range(t, token) ? t->attr[token] : 0;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len)
{
    uint32_t id = text_map_find(&t->by_text, &t->text, text, len);
    return id == NO_SYMBOL ? -1 : (int32_t)id;
}

struct tokenizer_piece tokenizer_text(const struct tokenizer *t, int32_t token)
{
    if (!in_range(t, token))
        return (struct tokenizer_piece){"", 0};
    size_t len;
    const char *s = text_at(&t->text, (uint32_t)token, &len);
    return (struct tokenizer_piece){s, (uint32_t)len};
}

struct tokenizer_piece tokenizer_piece(const struct tokenizer *t, int32_t token, bool special)
{
    if (!in_range(t, token))
        return (struct tokenizer_piece){"", 0};
    if (special && t->attr[token] & (TOKEN_CONTROL | TOKEN_UNKNOWN))
        return tokenizer_text(t, token);
    size_t len;
    const char *s = text_at(&t->piece, (uint32_t)token, &len);
    return (struct tokenizer_piece){s, (uint32_t)len};
}

/* ---- encoding ---- */

struct encoder {
    const struct tokenizer *t;
    struct id_list ids;
    struct merger *merger;
    struct pretokenizer_splitter splitter; /* BPE */
    char *escaped;                         /* SPM: three bytes for each byte, and the prefix */
};

static int encode_word(void *context, const char *word, size_t len)
{
    struct encoder *e = context;
    return merger_word(e->merger, word, len);
}

static size_t escape_spaces(const char *text, size_t len, bool prefix, char *out)
{
    char *o = out;
    if (prefix)
        o = mempcpy(o, SPM_SPACE, 3);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ')
            o = mempcpy(o, SPM_SPACE, 3);
        else
            *o++ = text[i];
    }
    return (size_t)(o - out);
}

/* SPM merges over the whole text, Gemma 4's BPE over runs of line ends and what lies between. It is cut
 * between two characters that are neighbours in no symbol: no merge spans them, so the ids are the same, and
 * the words are short enough for the cache of words. */
static int encode_spm(struct encoder *e, const char *text, size_t len, bool prefix)
{
    const uint64_t *pairs = e->t->pairs;
    const char *s = e->escaped;
    size_t end = escape_spaces(text, len, prefix, e->escaped), from = 0, n;
    uint32_t before = 0;
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < end; i += n) {
        uint32_t code = spm_character(s + i, end - i, &n);
        uint64_t bit = pair_bit(before, code);
        bool line = e->t->merges && (before == '\n') != (code == '\n');
        if (i && (line || !(pairs[bit / 64] >> bit % 64 & 1))) {
            rc = merger_word(e->merger, s + from, i - from);
            from = i;
        }
        before = code;
    }
    return rc < 0 || from == end ? rc : merger_word(e->merger, s + from, end - from);
}

static int encode_fragments(struct encoder *e, const char *text, const struct fragments *f)
{
    bool after_special = true; /* the beginning of a text counts as a special token */
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < f->n; i++) {
        const struct fragment *one = &f->list[i];
        if (one->token >= 0)
            rc = id_list_add(&e->ids, one->token);
        else if (e->t->spm)
            rc = encode_spm(e, text + one->at, one->len, e->t->space_prefix && after_special);
        else
            rc = pretokenizer_split(&e->splitter, text + one->at, one->len);
        after_special = one->token >= 0;
    }
    return rc;
}

static int encode_text(struct encoder *e, const char *text, size_t len, struct tokenizer_flags flags)
{
    const struct tokenizer *t = e->t;
    struct fragments f;
    int rc = specials_cut(flags.parse_special ? &t->parsed : &t->always, t, text, len, flags.plain, &f);
    if (rc < 0)
        return rc;
    if (flags.add_special && t->add_bos)
        rc = id_list_add(&e->ids, t->bos);
    if (rc >= 0)
        rc = encode_fragments(e, text, &f);
    if (rc >= 0 && flags.add_special && t->add_eos)
        rc = id_list_add(&e->ids, t->eos);
    free(f.list);
    return rc;
}

static int encoder_open(struct encoder *e, size_t len)
{
    int rc = merger_open(&e->merger, e->t, &e->ids, len);
    if (rc < 0)
        return rc;
    if (!e->t->spm)
        return pretokenizer_splitter_open(&e->splitter, e->t->pre, encode_word, e);
    e->escaped = malloc(3 * len + 3);
    return e->escaped ? 0 : -ENOMEM;
}

static void encoder_close(struct encoder *e)
{
    merger_close(e->merger);
    pretokenizer_splitter_close(&e->splitter);
    free(e->escaped);
}

/* Tells whether the text must give more than `max` ids, as no token has more than max_piece bytes. */
static bool cannot_fit(const struct tokenizer *t, size_t len, size_t max)
{
    return max && t->max_word != SIZE_MAX && len / t->max_piece > max;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, struct tokenizer_flags flags,
                     size_t max, int32_t **out, size_t *n, struct error *err)
{
    if (len > MAX_TEXT)
        return error_set(err, -E2BIG, "tokenize: %zu bytes are more than %zu", len, MAX_TEXT);
    if (cannot_fit(t, len, max))
        return error_set(err, -E2BIG, "tokenize: %zu bytes give more than %zu tokens", len, max);
    struct encoder e = {.t = t, .ids.max = max};
    int rc = encoder_open(&e, len);
    if (rc >= 0)
        rc = encode_text(&e, text, len, flags);
    encoder_close(&e);
    if (rc < 0) {
        free(e.ids.ids);
        if (rc == -E2BIG)
            return error_set(err, rc, "tokenize: more than %zu tokens", max);
        return error_set(err, rc, "tokenize: out of memory for %zu bytes of text", len);
    }
    *out = e.ids.ids;
    *n = e.ids.n;
    return 0;
}
