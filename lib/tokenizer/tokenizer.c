/* tokenizer.c - opens a tokenizer, answers about its tokens, encodes text, and decodes the bytes of tokens.
 */
#include "tokenizer.h"

#include "tokenizer_private.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT ((size_t)1 << 30) /* positions fit 32 bits even when every byte is an escaped space */

/* ---- special tokens: their texts are found in a text, which is cut there ---- */

struct fragment {
    size_t at, len;
    int32_t token; /* -1: text to encode */
};

struct fragments {
    struct fragment *list;
    size_t n, room;
};

static void set_bit(uint64_t *bits, unsigned i)
{
    bits[i / 64] |= UINT64_C(1) << i % 64;
}

static bool has_bit(const uint64_t *bits, unsigned i)
{
    return bits[i / 64] >> i % 64 & 1;
}

static int longer_first(const void *a, const void *b)
{
    const struct special_length *x = a, *y = b;
    return (x->len < y->len) - (x->len > y->len);
}

static void merge_equal_lengths(struct specials *s)
{
    qsort(s->lengths, s->n_lengths, sizeof *s->lengths, longer_first);
    size_t n = 0;
    for (size_t i = 0; i < s->n_lengths; i++) {
        struct special_length *one = &s->lengths[i];
        if (!n || s->lengths[n - 1].len != one->len) {
            s->lengths[n++] = *one;
            continue;
        }
        for (size_t k = 0; k < sizeof one->last / sizeof one->last[0]; k++)
            s->lengths[n - 1].last[k] |= one->last[k];
    }
    s->n_lengths = n;
}

static void note_start(struct specials *s, const unsigned char *text, size_t len)
{
    if (len > 1)
        set_bit(s->starts, text[0] << 8 | text[1]);
    else
        for (unsigned next = 0; next < 256; next++)
            set_bit(s->starts, text[0] << 8 | next);
}

static int specials_open(struct specials *s, const struct tokenizer *t, uint32_t attrs)
{
    size_t n = 0;
    for (uint32_t id = 0; id < t->n_vocab; id++)
        n += (t->attr[id] & attrs) != 0;
    s->lengths = calloc(n + 1, sizeof *s->lengths);
    if (!s->lengths || text_map_reserve(&s->map, n) < 0)
        return -ENOMEM;
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t len;
        const char *text = text_at(&t->text, id, &len);
        if (!(t->attr[id] & attrs) || !len)
            continue;
        text_map_put(&s->map, &t->text, id, false);
        note_start(s, (const unsigned char *)text, len);
        s->lengths[s->n_lengths].len = len;
        set_bit(s->lengths[s->n_lengths++].last, (unsigned char)text[len - 1]);
    }
    merge_equal_lengths(s);
    return 0;
}

static void specials_close(struct specials *s)
{
    free(s->lengths);
    free(s->map.slots);
}

static bool may_start(const struct specials *s, const char *text, size_t left)
{
    unsigned next = left > 1 ? (unsigned char)text[1] : 0;
    return has_bit(s->starts, (unsigned)(unsigned char)text[0] << 8 | next);
}

/* Returns the special token of this length at text, or NO_SYMBOL. */
static uint32_t special_at(const struct specials *s, const struct tokenizer *t,
                           const struct special_length *l, const char *text, size_t left)
{
    if (l->len > left || !has_bit(l->last, (unsigned char)text[l->len - 1]))
        return NO_SYMBOL;
    return text_map_find(&s->map, &t->text, text, l->len);
}

static int fragments_add(struct fragments *f, size_t at, size_t len, int32_t token)
{
    if (!len)
        return 0;
    if (f->n == f->room) {
        size_t room = f->room * 2 + 8;
        struct fragment *list = realloc(f->list, room * sizeof *list);
        if (!list)
            return -ENOMEM;
        f->list = list;
        f->room = room;
    }
    f->list[f->n++] = (struct fragment){at, len, token};
    return 0;
}

/* Marks the lengths of special tokens that the text has; false for none. A text without special tokens costs
 * this one pass only. */
static bool lengths_in(const struct specials *s, const struct tokenizer *t, const char *text, size_t len,
                       bool *occurs)
{
    size_t n_left = s->n_lengths;
    for (size_t i = 0; i < len && n_left; i++) {
        if (!may_start(s, text + i, len - i))
            continue;
        for (size_t k = 0; k < s->n_lengths; k++) {
            if (occurs[k] || special_at(s, t, &s->lengths[k], text + i, len - i) == NO_SYMBOL)
                continue;
            occurs[k] = true;
            n_left--;
        }
    }
    return n_left < s->n_lengths;
}

/* Tells whether text with these marks may become this token. */
static bool may_become(const struct tokenizer *t, uint32_t id, const unsigned char *plain, size_t len)
{
    return !plain || t->attr[id] & TOKEN_USER || !memchr(plain, 1, len);
}

static int cut_text(const struct specials *s, const struct tokenizer *t, const char *text,
                    const unsigned char *plain, struct fragment f, const struct special_length *l,
                    struct fragments *out)
{
    size_t from = f.at, end = f.at + f.len;
    int rc = 0;
    assert(l->len); /* else the search would not move on */
    for (size_t i = f.at; rc >= 0 && i + l->len <= end;) {
        uint32_t id = NO_SYMBOL;
        if (may_start(s, text + i, end - i))
            id = special_at(s, t, l, text + i, end - i);
        if (id == NO_SYMBOL || !may_become(t, id, plain ? plain + i : NULL, l->len)) {
            i++;
            continue;
        }
        rc = fragments_add(out, from, i - from, -1);
        if (rc >= 0)
            rc = fragments_add(out, i, l->len, (int32_t)id);
        from = i += l->len;
    }
    return rc < 0 ? rc : fragments_add(out, from, end - from, -1);
}

/* Cuts every fragment of text at the special tokens of one length. */
static int cut_all(const struct specials *s, const struct tokenizer *t, const char *text,
                   const unsigned char *plain, const struct special_length *l, struct fragments *f)
{
    struct fragments cut = {0};
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < f->n; i++) {
        struct fragment *one = &f->list[i];
        rc = one->token < 0 ? cut_text(s, t, text, plain, *one, l, &cut)
                            : fragments_add(&cut, one->at, one->len, one->token);
    }
    if (rc < 0) {
        free(cut.list);
        return rc;
    }
    free(f->list);
    *f = cut;
    return 0;
}

/* Cuts text at its special tokens, the longest first, then the leftmost. If `plain` (may be NULL) marks a
 * byte of the token's text, only a user-defined token is cut. The caller frees out->list. -ENOMEM. */
static int specials_cut(const struct specials *s, const struct tokenizer *t, const char *text, size_t len,
                        const unsigned char *plain, struct fragments *out)
{
    *out = (struct fragments){0};
    int rc = fragments_add(out, 0, len, -1);
    bool *occurs = calloc(s->n_lengths + 1, sizeof *occurs);
    if (!occurs)
        rc = -ENOMEM;
    if (rc >= 0 && lengths_in(s, t, text, len, occurs))
        for (size_t k = 0; rc >= 0 && k < s->n_lengths; k++)
            if (occurs[k])
                rc = cut_all(s, t, text, plain, &s->lengths[k], out);
    free(occurs);
    if (rc < 0) {
        free(out->list);
        *out = (struct fragments){0};
    }
    return rc;
}

/* ---- open, close, and answers about tokens ---- */

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
    free(t->suppressed);
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

size_t tokenizer_suppressed(const struct tokenizer *t, const int32_t **ids)
{
    *ids = t->suppressed;
    return t->n_suppressed;
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

/* ---- decoding: bytes of tokens become valid UTF-8, piece by piece or as a whole text ---- */

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
