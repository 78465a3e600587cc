/* tokenizer_private.h - declarations shared by lib/tokenizer*.c.
 * Merging works on symbols. An id below n_vocab is a token. A byte-level vocabulary whose merges or bytes
 * have texts that are no token gets further symbols for them, which are written as byte tokens. Thread: one
 * thread loads a tokenizer, which does not change then; a merger, fragments or an id list is one thread's.
 * Memory: struct tokenizer owns its pools, maps and tables; the caller owns fragments and id lists. */
#pragma once
#include "pretokenizer.h"
#include "tokenizer.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <assert.h>

#define NO_SYMBOL UINT32_MAX

struct text_slot {
    uint32_t hash; /* of the text; compared first */
    uint32_t id;   /* NO_SYMBOL: free */
};

struct text_map { /* ids of texts of a pool, by text: open addressing, at most two thirds full */
    struct text_slot *slots;
    uint32_t mask;
    uint32_t n;
};

struct text_pool { /* text i is bytes[at[i]] up to bytes[at[i + 1]] */
    char *bytes;
    uint32_t *at;
    uint32_t n;
    size_t room_bytes, room_texts;
};

struct merge { /* one slot of the merge table */
    uint32_t left, right;
    uint32_t rank; /* the pair of the smallest rank merges first */
    uint32_t symbol;
};

struct special_length {
    size_t len;
    uint64_t last[256 / 64]; /* bit set: the last bytes of the texts of this length */
};

struct specials { /* texts that become their token anywhere in a text */
    struct text_map map;
    struct special_length *lengths; /* of the texts, longest first */
    size_t n_lengths;
    uint64_t starts[65536 / 64]; /* bit set: the first two bytes of the texts, first byte * 256 + second */
};

struct tokenizer {
    bool spm; /* characters merge, with escaped spaces: by scores, or where there are `merges` by these */
    bool space_prefix, add_bos, add_eos, ignore_merges;
    uint32_t n_vocab;
    int32_t bos, eos, unknown;
    int32_t *ends;
    size_t n_ends;
    int32_t *suppressed;
    size_t n_suppressed;
    size_t max_piece;
    size_t max_word; /* most bytes of a word that one token takes; SIZE_MAX when some byte has no token */

    struct text_pool text;  /* stored text of every symbol */
    struct text_pool piece; /* bytes of every token in a reply */
    uint8_t *attr;          /* bits of enum token_attr of every token */
    struct text_map by_text;
    struct specials always;  /* user-defined tokens */
    struct specials parsed;  /* user-defined, control and unknown tokens */
    int32_t byte_token[256]; /* token of a single byte, or -1 */

    struct merge *merges; /* of both kinds of BPE; SPM: NULL */
    uint32_t merge_mask;

    /* byte-level BPE */
    struct pretokenizer *pre;
    struct text_map by_piece; /* filled only with ignore_merges */
    uint32_t byte_symbol[256];

    /* SPM: a pair merges when its text is a token, the best score first */
    uint32_t *rank; /* of each token; equal scores have equal ranks */
    /* Bloom filter of all pairs of neighbouring characters inside tokens; no merge spans another pair. */
    uint64_t *pairs;

    uint32_t n_ranks;
};

#define SPM_SPACE "\xE2\x96\x81" /* U+2581: a space in an SPM vocabulary */

#define PAIR_BITS 21 /* the filter has 256 KiB, and 256,000 tokens fill a few percent of it */

/* text_map.c. Functions that return int return 0, -ENOMEM or, above 4 GiB of texts, -E2BIG. */
int text_pool_reserve(struct text_pool *p, size_t n_texts, size_t n_bytes); /* room for so many in all */
int text_pool_add(struct text_pool *p, const char *s, size_t len);
void text_pool_close(struct text_pool *p);
int text_map_reserve(struct text_map *m, size_t n); /* room for n texts in all */
/* Maps the pool's text `id` to its id; an equal text keeps its own id unless `replace`. Returns the id that
 * the text had before, or NO_SYMBOL. */
uint32_t text_map_put(struct text_map *m, const struct text_pool *pool, uint32_t id, bool replace);
uint32_t text_map_find(const struct text_map *m, const struct text_pool *pool, const char *s, size_t len);

static inline const char *text_at(const struct text_pool *pool, uint32_t i, size_t *len)
{
    assert(i < pool->n);
    *len = pool->at[i + 1] - pool->at[i];
    return pool->bytes + pool->at[i];
}

/* Tells whether text may become this token by merging. A control token comes from parse_special only. */
static inline bool token_is_plain(const struct tokenizer *t, uint32_t id)
{
    assert(id < t->n_vocab);
    return t->attr[id] & (TOKEN_NORMAL | TOKEN_USER);
}

static inline uint64_t pair_bit(uint32_t left, uint32_t right)
{
    return hash_round((uint64_t)left << 32 | right, UINT64_C(0x9E3779B97F4A7C15)) >> (64 - PAIR_BITS);
}

/* Returns the character at s and its length. A byte that is no UTF-8 is a character beyond Unicode's. */
static inline uint32_t spm_character(const char *s, size_t left, size_t *len)
{
    *len = utf8_char(s, left);
    if (*len)
        return utf8_code(s, *len);
    *len = 1;
    return 0x110000u + (unsigned char)*s;
}

/* tokenizer_load.c: loads the vocabulary, all but `always` and `parsed`. */
int tokenizer_load(struct tokenizer *t, const struct gguf *g, struct error *err);

/* tokenizer_merge.c */
struct id_list { /* the ids of an encode so far; `max` 0: no limit */
    int32_t *ids;
    size_t n, room, max;
};

int id_list_add(struct id_list *l, int32_t id); /* -ENOMEM, -E2BIG */

/* Adds a merge to t->merges, which has room; a pair that is there already keeps its rank. */
void merges_put(struct tokenizer *t, struct merge merge);

struct merger; /* the state for one text, of one thread */

/* Opens a merger that appends to `ids`, which the caller owns. -ENOMEM. */
int merger_open(struct merger **out, const struct tokenizer *t, struct id_list *ids, size_t text_len);
void merger_close(struct merger *m);
/* Encodes one word: any bytes (BPE), or escaped text (SPM). -ENOMEM, -E2BIG. */
int merger_word(struct merger *m, const char *word, size_t len);
