/* tokenizer_private.h - what the files tokenizer*.c share; nobody else includes it.
 *
 * A symbol is what merging works on: ids below n_vocab are tokens; a byte-level vocabulary whose merges or
 * bytes name texts that are no token gets further symbols for them, which are written out byte by byte. */
#pragma once
#include "pretokenizer.h"
#include "tokenizer.h"
#include "base/utf8.h"

#define NO_SYMBOL UINT32_MAX

struct text_slot {
    uint32_t hash; /* compared before the text */
    uint32_t id;   /* NO_SYMBOL: free */
};

struct text_map { /* texts of a pool to ids; open addressing, never more than two thirds full */
    struct text_slot *slots;
    uint32_t mask;
    uint32_t n;
};

struct text_pool { /* text i is bytes[at[i]] .. bytes[at[i + 1]] */
    char *bytes;
    uint32_t *at;
    uint32_t n;
    size_t room_bytes, room_texts;
};

struct merge { /* one slot of the merge table */
    uint32_t left, right;
    uint32_t rank; /* smaller merges first */
    uint32_t symbol;
};

struct special_length {
    size_t len;
    uint64_t last[256 / 64]; /* bytes that texts of this length end with */
};

struct specials { /* texts that become their token wherever they stand */
    struct text_map map;
    struct special_length *lengths; /* those that occur, longest first */
    size_t n_lengths;
    uint64_t starts[65536 / 64]; /* two bytes that a text begins with, first byte first */
};

struct tokenizer {
    char kind[48];
    bool spm, space_prefix, add_bos, add_eos, ignore_merges;
    uint32_t n_vocab;
    int32_t bos, eos, unknown;
    int32_t *ends;
    size_t n_ends;
    size_t max_piece;
    size_t max_word; /* bytes that one token can take from a word; SIZE_MAX when bytes may get lost */

    struct text_pool text;  /* as stored, of all symbols */
    struct text_pool piece; /* as shown, of all tokens */
    uint8_t *attr;          /* bits of enum token_attr, of all tokens */
    struct text_map by_text;
    struct specials always, parsed; /* user-defined; those and control and unknown */
    int32_t byte_token[256];        /* the token of one byte, or -1 */

    /* byte-level BPE */
    struct pretokenizer *pre;
    struct text_map by_piece; /* only with ignore_merges */
    uint32_t byte_symbol[256];
    struct merge *merges;
    uint32_t merge_mask;

    /* SPM: a pair may merge when its text is a token; better scores first */
    uint32_t *rank; /* of each token; equal scores have equal ranks */
    uint64_t
        *pairs; /* Bloom filter of the neighbouring characters inside tokens: no merge spans any other pair */

    uint32_t n_ranks;
};

#define SPM_SPACE "\xE2\x96\x81" /* U+2581: a space in an SPM vocabulary */

#define PAIR_BITS 21 /* the filter: 256 KiB, a few percent full with 256,000 tokens */

/* text_map.c */
int text_pool_reserve(struct text_pool *p, size_t n_texts, size_t n_bytes); /* -ENOMEM, -E2BIG over 4 GiB */
int text_pool_add(struct text_pool *p, const char *s, size_t len);
void text_pool_close(struct text_pool *p);
int text_map_reserve(struct text_map *m, size_t n); /* room for n texts in all */
/* Maps pool text `id`; an equal text's id is replaced when `replace`. Returns the id that the text had, or
 * NO_SYMBOL. */
uint32_t text_map_put(struct text_map *m, const struct text_pool *pool, uint32_t id, bool replace);
uint32_t text_map_find(const struct text_map *m, const struct text_pool *pool, const char *s, size_t len);

static inline const char *text_at(const struct text_pool *pool, uint32_t i, size_t *len)
{
    *len = pool->at[i + 1] - pool->at[i];
    return pool->bytes + pool->at[i];
}

/* Whether plain text may become this token by merging: control tokens come from parse_special alone. */
static inline bool token_is_plain(const struct tokenizer *t, uint32_t id)
{
    return t->attr[id] & (TOKEN_NORMAL | TOKEN_USER);
}

static inline uint64_t pair_bit(uint32_t left, uint32_t right)
{
    return ((left * UINT64_C(0x9E3779B97F4A7C15)) ^ (right * UINT64_C(0xC2B2AE3D27D4EB4F))) >>
           (64 - PAIR_BITS);
}

/* The character at s and its length; a byte that is part of none is a character of its own. */
static inline uint32_t spm_character(const char *s, size_t left, size_t *len)
{
    *len = utf8_char(s, left);
    if (*len)
        return utf8_code(s, *len);
    *len = 1;
    return 0x110000u + (unsigned char)*s;
}

/* tokenizer_load.c: everything but the special tokens' texts. */
int tokenizer_load(struct tokenizer *t, const struct gguf *g, struct error *err);

/* tokenizer_specials.c */
struct fragment {
    size_t at, len;
    int32_t token; /* -1: text to encode */
};

struct fragments {
    struct fragment *list;
    size_t n, room;
};

int specials_open(struct specials *s, const struct tokenizer *t, uint32_t attrs);
void specials_close(struct specials *s);
/* Cuts text at the special tokens in it: longer ones first, then leftmost; where `plain` (may be NULL) marks
 * a byte, only at user-defined ones. -ENOMEM. */
int specials_cut(const struct specials *s, const struct tokenizer *t, const char *text, size_t len,
                 const unsigned char *plain, struct fragments *out);

/* tokenizer_merge.c */
struct id_list { /* what an encode has produced */
    int32_t *ids;
    size_t n, room, max;
};

int id_list_add(struct id_list *l, int32_t id); /* -ENOMEM, -E2BIG */

/* Adds to t->merges, which has room; a pair that is there already keeps its rank. */
void merges_put(struct tokenizer *t, struct merge merge);

struct merger; /* one thread's state, for one text */

int merger_open(struct merger **out, const struct tokenizer *t, struct id_list *ids, size_t text_len);
void merger_close(struct merger *m);
/* Encodes one word: of any bytes (BPE), or escaped text (SPM). */
int merger_word(struct merger *m, const char *word, size_t len);
