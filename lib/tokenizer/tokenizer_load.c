/* tokenizer_load.c - reads a vocabulary from GGUF metadata. Allocations are few and large: 150,000 tokens
 * load in well under a tenth of a second. */
#include "gguf/gguf.h"
#include "tokenizer_private.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name)  "tokenizer.ggml." name
#define MAX_TOKENS (1u << 28)

static int no_memory(const struct gguf *g, int rc, struct error *err)
{
    if (rc == -E2BIG)
        return error_set(err, -ENOTSUP, "%s: the vocabulary's texts are larger than 4 GiB", gguf_path(g));
    return error_set(err, rc, "%s: out of memory for the vocabulary", gguf_path(g));
}

/* Makes a name of the file safe for a log: bytes that are not printable ASCII become '?'. */
static void copy_name(char *out, size_t room, struct gguf_str s)
{
    size_t n = s.len < room - 1 ? s.len : room - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = s.s[i] > ' ' && s.s[i] < 0x7F ? s.s[i] : '?';
    out[n] = 0;
}

/* ---- GPT-2's letters for bytes ----
 * A byte-level vocabulary stores printable characters only. A byte that is printable in Latin-1 is its own
 * letter; the other 68 have the characters from U+0100 on, in order. */

static bool is_own_letter(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct letters {
    uint16_t of_byte[256];
    int16_t to_byte[256 + 68]; /* -1: the letter of no byte */
};

static void letters_init(struct letters *l)
{
    uint16_t next = 256;
    memset(l->to_byte, 0xFF, sizeof l->to_byte);
    for (unsigned byte = 0; byte < 256; byte++) {
        l->of_byte[byte] = is_own_letter(byte) ? (uint16_t)byte : next++;
        l->to_byte[l->of_byte[byte]] = (int16_t)byte;
    }
}

/* Replaces letters by their bytes and copies other characters. `out` has room for len bytes. */
static size_t letters_decode(const struct letters *l, const char *s, size_t len, char *out)
{
    size_t o = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = utf8_char(s + i, len - i);
        uint32_t code = n ? utf8_code(s + i, n) : UINT32_MAX;
        n += !n;
        if (code < sizeof l->to_byte / sizeof l->to_byte[0] && l->to_byte[code] >= 0) {
            out[o++] = (char)l->to_byte[code];
            continue;
        }
        memcpy(out + o, s + i, n);
        o += n;
    }
    return o;
}

/* ---- tokens ---- */

static int load_texts(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    const struct gguf_value *tokens;
    int rc = gguf_get_array(g, KEY("tokens"), GGUF_STR, &tokens, err);
    if (rc == -ENOENT)
        return error_set(err, -EBADMSG, "%s: no " KEY("tokens"), gguf_path(g));
    if (rc < 0)
        return rc;
    if (!tokens->n || tokens->n > MAX_TOKENS)
        return error_set(err, -EBADMSG, "%s: " KEY("tokens") " has %llu items (1 to %u are possible)",
                         gguf_path(g), (unsigned long long)tokens->n, MAX_TOKENS);
    t->n_vocab = (uint32_t)tokens->n;
    rc = text_pool_reserve(&t->text, t->n_vocab + 256, tokens->size + 1024);
    struct gguf_str s;
    for (size_t cursor = 0; rc >= 0 && gguf_next_str(tokens, &cursor, &s);)
        rc = text_pool_add(&t->text, s.s, s.len);
    if (rc < 0)
        return no_memory(g, rc, err);
    return 0;
}

static int load_attrs(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    static const uint8_t attr_of_type[] = {TOKEN_NORMAL, TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL,
                                           TOKEN_USER,   TOKEN_UNUSED, TOKEN_BYTE};
    t->attr = malloc(t->n_vocab);
    if (!t->attr)
        return no_memory(g, -ENOMEM, err);
    memset(t->attr, TOKEN_NORMAL, t->n_vocab);
    const struct gguf_value *types;
    int rc = gguf_get_array(g, KEY("token_type"), GGUF_I32, &types, err);
    if (rc == -ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    if (types->n != t->n_vocab)
        return error_set(err, -EBADMSG, "%s: " KEY("token_type") " has %llu items for %u tokens",
                         gguf_path(g), (unsigned long long)types->n, t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        int32_t type = gguf_item_i32(types, i);
        if (type < 0 || type >= (int32_t)sizeof attr_of_type)
            return error_set(err, -EBADMSG,
                             "%s: " KEY("token_type") " of token %u is %d (0 to 6 are possible)",
                             gguf_path(g), i, type);
        t->attr[i] = attr_of_type[type];
    }
    return 0;
}

/* Maps every text to its token. Among tokens with one text the last is taken, but never a control token
 * instead of a plain one. */
static int map_texts(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    if (text_map_reserve(&t->by_text, t->n_vocab) < 0)
        return no_memory(g, -ENOMEM, err);
    for (uint32_t id = 0; id < t->n_vocab; id++)
        if (t->text.at[id] != t->text.at[id + 1]) {
            uint32_t before = text_map_put(&t->by_text, &t->text, id, token_is_plain(t, id));
            if (before != NO_SYMBOL && !token_is_plain(t, before))
                text_map_put(&t->by_text, &t->text, id, true);
        }
    return 0;
}

/* Returns the byte of a text like "<0x41>", or -1. */
static int byte_of_text(const char *s, size_t len)
{
    static const char digits[] = "0123456789ABCDEF0123456789abcdef";
    if (len != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    const char *high = memchr(digits, s[3], 32), *low = memchr(digits, s[4], 32);
    return high && low ? (int)(((high - digits) & 15) << 4 | ((low - digits) & 15)) : -1;
}

static size_t unescape_spaces(const char *s, size_t len, char *out)
{
    size_t o = 0;
    for (size_t i = 0; i < len;) {
        bool space = len - i >= 3 && !memcmp(s + i, SPM_SPACE, 3);
        out[o++] = space ? ' ' : s[i];
        i += space ? 3 : 1;
    }
    return o;
}

static size_t show_token(const struct tokenizer *t, const struct letters *l, uint32_t id, char *out)
{
    size_t len;
    const char *s = text_at(&t->text, id, &len);
    switch (t->attr[id]) {
    case TOKEN_USER:
        memcpy(out, s, len);
        return len;
    case TOKEN_BYTE:
        *out = (char)byte_of_text(s, len);
        return byte_of_text(s, len) >= 0;
    case TOKEN_NORMAL:
        return t->spm ? unescape_spaces(s, len, out) : letters_decode(l, s, len, out);
    default:
        return 0;
    }
}

static int load_pieces(struct tokenizer *t, const struct gguf *g, const struct letters *l, struct error *err)
{
    size_t n_bytes = t->text.at[t->n_vocab]; /* a piece is never longer than the stored text */
    if (text_pool_reserve(&t->piece, t->n_vocab, n_bytes + 1) < 0)
        return no_memory(g, -ENOMEM, err);
    for (uint32_t id = 0; id < t->n_vocab; id++) {
        size_t at = t->piece.at[id], stored = t->text.at[id + 1] - t->text.at[id];
        size_t len = show_token(t, l, id, t->piece.bytes + at);
        assert(len <= stored);
        t->piece.at[id + 1] = (uint32_t)(at + len);
        t->piece.n = id + 1;
        size_t longest = t->attr[id] & (TOKEN_CONTROL | TOKEN_UNKNOWN) ? stored : len;
        if (longest > t->max_piece)
            t->max_piece = longest;
        size_t word = t->spm ? stored : len;
        if (word > t->max_word)
            t->max_word = word;
    }
    if (t->max_piece < 4)
        t->max_piece = 4; /* the unknown token may replace a whole character */
    if (t->max_word < 4)
        t->max_word = 4;
    return 0;
}

/* ---- byte-level BPE ---- */

/* Sets *out to the symbol of a merge's text: its token, or a further symbol, which is added when new. */
static int intern(struct tokenizer *t, struct text_map *further, const char *s, size_t len, uint32_t *out)
{
    uint32_t id = text_map_find(&t->by_text, &t->text, s, len);
    if (id == NO_SYMBOL || !(t->attr[id] & TOKEN_NORMAL))
        id = text_map_find(further, &t->text, s, len);
    if (id == NO_SYMBOL) {
        id = t->text.n;
        int rc = text_pool_add(&t->text, s, len);
        if (rc >= 0)
            rc = text_map_reserve(further, further->n + (size_t)1);
        if (rc < 0)
            return rc;
        text_map_put(further, &t->text, id, false);
    }
    *out = id;
    return 0;
}

static int intern_bytes(struct tokenizer *t, struct text_map *further, const struct letters *l)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint16_t code = l->of_byte[byte];
        char letter[2] = {(char)(code < 0x80 ? code : 0xC0 | code >> 6), (char)(0x80 | (code & 0x3F))};
        uint32_t symbol;
        int rc = intern(t, further, letter, code < 0x80 ? 1 : 2, &symbol);
        if (rc < 0)
            return rc;
        t->byte_symbol[byte] = symbol;
        t->byte_token[byte] = symbol < t->n_vocab ? (int32_t)symbol : -1;
        if (symbol >= t->n_vocab)
            t->max_word = SIZE_MAX;
    }
    return 0;
}

/* Adds the merge "left right". `joined` has room for the line. -EBADMSG when it has no space. */
static int add_merge(struct tokenizer *t, struct text_map *further, struct gguf_str s, uint32_t rank,
                     char *joined)
{
    const char *space = s.len > 2 ? memchr(s.s + 1, ' ', s.len - 2) : NULL;
    if (!space)
        return -EBADMSG;
    size_t left = (size_t)(space - s.s), right = s.len - left - 1;
    memcpy(joined, s.s, left);
    memcpy(joined + left, space + 1, right);
    struct merge merge = {.rank = rank};
    int rc = intern(t, further, s.s, left, &merge.left);
    if (rc >= 0)
        rc = intern(t, further, space + 1, right, &merge.right);
    if (rc >= 0)
        rc = intern(t, further, joined, left + right, &merge.symbol);
    if (rc >= 0)
        merges_put(t, merge);
    return rc;
}

static size_t longest_item(const struct gguf_value *strings)
{
    size_t longest = 0;
    struct gguf_str s;
    for (size_t cursor = 0; gguf_next_str(strings, &cursor, &s);)
        longest = s.len > longest ? s.len : longest;
    return longest;
}

static int merges_reserve(struct tokenizer *t, size_t n)
{
    size_t size = 16;
    while (size / 3 * 2 < n)
        size *= 2;
    if (size > UINT32_MAX)
        return -E2BIG;
    t->merges = malloc(size * sizeof *t->merges);
    if (!t->merges)
        return -ENOMEM;
    memset(t->merges, 0xFF, size * sizeof *t->merges); /* left = NO_SYMBOL: free */
    t->merge_mask = (uint32_t)size - 1;
    t->n_ranks = (uint32_t)n;
    return 0;
}

static int add_merges(struct tokenizer *t, struct text_map *further, const struct gguf *g,
                      const struct gguf_value *merges, struct error *err)
{
    char *joined = malloc(longest_item(merges) + 1);
    int rc = joined ? merges_reserve(t, merges->n) : -ENOMEM;
    struct gguf_str s;
    uint32_t rank = 0;
    for (size_t cursor = 0; rc >= 0 && gguf_next_str(merges, &cursor, &s); rank++)
        rc = add_merge(t, further, s, rank, joined);
    free(joined);
    if (rc == -EBADMSG)
        return error_set(err, rc, "%s: " KEY("merges") " item %u is not two texts with a space between",
                         gguf_path(g), rank - 1);
    return rc < 0 ? no_memory(g, rc, err) : 0;
}

/* letters NULL: the symbols are characters, not bytes. */
static int load_merges(struct tokenizer *t, const struct gguf *g, const struct letters *l, struct error *err)
{
    const struct gguf_value *merges;
    int rc = gguf_get_array(g, KEY("merges"), GGUF_STR, &merges, err);
    if (rc == -ENOENT)
        return error_set(err, -EBADMSG, "%s: no " KEY("merges"), gguf_path(g));
    if (rc < 0)
        return rc;
    struct text_map further = {0};
    rc = text_map_reserve(&further, 256);
    if (rc >= 0 && l)
        rc = intern_bytes(t, &further, l);
    rc = rc < 0 ? no_memory(g, rc, err) : add_merges(t, &further, g, merges, err);
    free(further.slots);
    return rc;
}

static int map_pieces(struct tokenizer *t)
{
    int rc = text_map_reserve(&t->by_piece, t->n_vocab);
    for (uint32_t id = 0; rc >= 0 && id < t->n_vocab; id++)
        if (t->attr[id] & TOKEN_NORMAL && t->piece.at[id] != t->piece.at[id + 1])
            text_map_put(&t->by_piece, &t->piece, id, true);
    return rc;
}

static int load_bpe(struct tokenizer *t, const struct gguf *g, const struct letters *l, struct error *err)
{
    struct gguf_str pre = {"default", 7};
    int rc = gguf_get_str(g, KEY("pre"), &pre, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    char name[32];
    copy_name(name, sizeof name, pre);
    const struct pretokenizer_kind *kind = pretokenizer_find(pre.s, pre.len);
    if (!kind)
        return error_set(err, -ENOTSUP,
                         "%s: " KEY("pre") " \"%s\" is a pre-tokeniser that Hearth does not know",
                         gguf_path(g), name);
    t->add_bos = kind->add_bos;
    t->ignore_merges = kind->ignore_merges;
    rc = pretokenizer_open(&t->pre, kind, err);
    if (rc >= 0)
        rc = load_merges(t, g, l, err);
    if (rc >= 0 && t->ignore_merges && map_pieces(t) < 0)
        rc = no_memory(g, -ENOMEM, err);
    return rc;
}

/* ---- SPM ---- */

struct scored {
    float score;
    uint32_t id;
};

static int better_first(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

static int load_ranks(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    const struct gguf_value *scores;
    int rc = gguf_get_array(g, KEY("scores"), GGUF_F32, &scores, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    if (rc == -ENOENT || scores->n != t->n_vocab)
        return error_set(err, -EBADMSG, "%s: " KEY("scores") " has %llu items for %u tokens", gguf_path(g),
                         rc < 0 ? 0ull : (unsigned long long)scores->n, t->n_vocab);
    struct scored *list = malloc(t->n_vocab * sizeof *list);
    t->rank = malloc(t->n_vocab * sizeof *t->rank);
    if (!list || !t->rank) {
        free(list);
        return no_memory(g, -ENOMEM, err);
    }
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        float score = gguf_item_f32(scores, i);
        list[i] = (struct scored){isnan(score) ? -INFINITY : score, i};
    }
    qsort(list, t->n_vocab, sizeof *list, better_first);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        t->n_ranks += !i || list[i].score != list[i - 1].score;
        t->rank[list[i].id] = t->n_ranks - 1;
    }
    free(list);
    return 0;
}

static int load_pairs(struct tokenizer *t)
{
    t->pairs = calloc((1u << PAIR_BITS) / 64, sizeof *t->pairs);
    if (!t->pairs)
        return -ENOMEM;
    for (uint32_t id = 0; id < t->text.n; id++) { /* of merges whose texts are no tokens too */
        size_t len, n;
        const char *s = text_at(&t->text, id, &len);
        bool merges = id >= t->n_vocab || token_is_plain(t, id);
        uint32_t before = 0;
        for (size_t i = 0; merges && i < len; i += n) {
            uint32_t code = spm_character(s + i, len - i, &n);
            uint64_t bit = pair_bit(before, code);
            if (i)
                t->pairs[bit / 64] |= UINT64_C(1) << bit % 64;
            before = code;
        }
    }
    return 0;
}

/* The token of a byte is its <0x..> token, or else a plain token whose text is this byte. */
static void load_byte_tokens(struct tokenizer *t)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        uint32_t id = text_map_find(&t->by_text, &t->text, text, 6);
        if (id == NO_SYMBOL || !(t->attr[id] & TOKEN_BYTE)) {
            text[0] = (char)byte;
            id = text_map_find(&t->by_text, &t->text, text, 1);
            if (id != NO_SYMBOL && !token_is_plain(t, id))
                id = NO_SYMBOL;
        }
        t->byte_token[byte] = id == NO_SYMBOL ? -1 : (int32_t)id;
    }
}

static int load_spm(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    t->add_bos = true;
    t->space_prefix = true;
    t->bos = 1;
    t->eos = 2;
    t->unknown = 0;
    load_byte_tokens(t);
    int rc = gguf_get_bool(g, KEY("add_space_prefix"), &t->space_prefix, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    rc = load_ranks(t, g, err);
    if (rc >= 0 && load_pairs(t) < 0)
        rc = no_memory(g, -ENOMEM, err);
    return rc;
}

/* Gemma 4: BPE over characters, with SPM's spaces and bytes. */
static int load_character_bpe(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    t->add_bos = true;
    load_byte_tokens(t);
    int rc = gguf_get_bool(g, KEY("add_space_prefix"), &t->space_prefix, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    rc = load_merges(t, g, NULL, err);
    if (rc >= 0 && load_pairs(t) < 0)
        rc = no_memory(g, -ENOMEM, err);
    return rc;
}

/* ---- special tokens ---- */

static int load_id(const struct tokenizer *t, const struct gguf *g, const char *key, int32_t *id,
                   struct error *err)
{
    uint32_t value;
    int rc = gguf_get_u32(g, key, &value, err);
    if (rc == -ENOENT) {
        if (*id >= 0 && (uint32_t)*id >= t->n_vocab)
            *id = -1;
        return 0;
    }
    if (rc < 0)
        return rc;
    if (value >= t->n_vocab)
        return error_set(err, -EBADMSG, "%s: %s is %u, but the vocabulary has %u tokens", gguf_path(g), key,
                         value, t->n_vocab);
    *id = (int32_t)value;
    return 0;
}

static int32_t token_named(const struct tokenizer *t, const char *text)
{
    uint32_t id = text_map_find(&t->by_text, &t->text, text, strlen(text));
    return id != NO_SYMBOL && t->attr[id] & (TOKEN_CONTROL | TOKEN_USER) ? (int32_t)id : -1;
}

/* Texts that model families put at the end of a turn, a message or a text. */
#define DEEPSEEK_END "<\uff5cend\u2581of\u2581sentence\uff5c>"

static const char *const end_markers[] = {
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot|>",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<end_of_utterance>", "<EOT>",
    "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>", "<turn|>", "<|tool_response>", "[e~[", DEEPSEEK_END,
    /* code models put these between files */
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_repo|>"};

#define N_MARKERS (sizeof end_markers / sizeof end_markers[0])

static void add_end(struct tokenizer *t, int32_t id)
{
    size_t i = t->n_ends;
    assert(id < (int64_t)t->n_vocab && i < N_MARKERS + 3);
    for (size_t k = 0; k < t->n_ends; k++)
        if (t->ends[k] == id)
            return;
    if (id < 0)
        return;
    for (; i && t->ends[i - 1] > id; i--)
        t->ends[i] = t->ends[i - 1];
    t->ends[i] = id;
    t->n_ends++;
}

static int load_ends(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    int32_t eot = -1, eom = -1;
    int rc = load_id(t, g, KEY("eot_token_id"), &eot, err);
    if (rc >= 0)
        rc = load_id(t, g, KEY("eom_token_id"), &eom, err);
    if (rc < 0)
        return rc;
    t->ends = malloc((N_MARKERS + 3) * sizeof *t->ends);
    if (!t->ends)
        return no_memory(g, -ENOMEM, err);
    add_end(t, t->eos);
    add_end(t, eot);
    add_end(t, eom);
    /* If a message can end in a call, <|end|> closes only one of several messages. */
    bool calls = (token_named(t, "<|return|>") >= 0 && token_named(t, "<|call|>") >= 0) ||
                 (token_named(t, "<|calls|>") >= 0 && token_named(t, "<|flush|>") >= 0);
    /* If the model waits for a tool's response, </s> is a token of other texts (Gemma 4). */
    bool waits = token_named(t, "<|tool_response>") >= 0;
    for (size_t i = 0; i < N_MARKERS; i++)
        if (!(calls && !strcmp(end_markers[i], "<|end|>")) && !(waits && !strcmp(end_markers[i], "</s>")))
            add_end(t, token_named(t, end_markers[i]));
    return 0;
}

static int load_suppressed(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    const struct gguf_value *ids;
    int rc = gguf_get_array(g, KEY("suppress_tokens"), GGUF_I32, &ids, err);
    if (rc < 0)
        return rc == -ENOENT ? 0 : rc;
    if (ids->n > TOKENIZER_MAX_SUPPRESSED)
        return error_set(err, -ENOTSUP,
                         "%s: " KEY("suppress_tokens") " has %llu tokens: at most %d are supported",
                         gguf_path(g), (unsigned long long)ids->n, TOKENIZER_MAX_SUPPRESSED);
    t->suppressed = malloc((ids->n + 1) * sizeof *t->suppressed);
    if (!t->suppressed)
        return no_memory(g, -ENOMEM, err);
    for (size_t i = 0; i < ids->n; i++) {
        int32_t id = gguf_item_i32(ids, i);
        if (id < 0 || (uint32_t)id >= t->n_vocab)
            return error_set(err, -EBADMSG,
                             "%s: " KEY("suppress_tokens") " has %d, but the vocabulary has %u tokens",
                             gguf_path(g), id, t->n_vocab);
        t->suppressed[t->n_suppressed++] = id;
    }
    return 0;
}

static int load_special_ids(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    int rc = load_id(t, g, KEY("bos_token_id"), &t->bos, err);
    if (rc >= 0)
        rc = load_id(t, g, KEY("eos_token_id"), &t->eos, err);
    if (rc >= 0)
        rc = load_id(t, g, KEY("unknown_token_id"), &t->unknown, err);
    if (rc >= 0)
        rc = load_ends(t, g, err);
    if (rc >= 0)
        rc = load_suppressed(t, g, err);
    if (rc < 0)
        return rc;
    rc = gguf_get_bool(g, KEY("add_bos_token"), &t->add_bos, err);
    if (rc >= 0 || rc == -ENOENT)
        rc = gguf_get_bool(g, KEY("add_eos_token"), &t->add_eos, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    t->add_bos &= t->bos >= 0;
    t->add_eos &= t->eos >= 0;
    return 0;
}

static bool is_model(struct gguf_str model, const char *name)
{
    return model.len == strlen(name) && !memcmp(model.s, name, model.len);
}

static int load_model(struct tokenizer *t, const struct gguf *g, bool *by_merges, struct error *err)
{
    struct gguf_str model;
    int rc = gguf_get_str(g, KEY("model"), &model, err);
    if (rc == -ENOENT)
        return error_set(err, -EBADMSG, "%s: no " KEY("model"), gguf_path(g));
    if (rc < 0)
        return rc;
    *by_merges = !is_model(model, "llama");
    t->spm = is_model(model, "llama") || is_model(model, "gemma4");
    if (t->spm || is_model(model, "gpt2"))
        return 0;
    char name[32];
    copy_name(name, sizeof name, model);
    return error_set(
        err, -ENOTSUP,
        "%s: " KEY("model") " is \"%s\"; Hearth reads gpt2 (byte-level BPE), llama (SPM) and gemma4",
        gguf_path(g), name);
}

int tokenizer_load(struct tokenizer *t, const struct gguf *g, struct error *err)
{
    struct letters letters;
    bool by_merges = false;
    letters_init(&letters);
    int rc = load_model(t, g, &by_merges, err);
    if (rc >= 0)
        rc = load_texts(t, g, err);
    if (rc >= 0)
        rc = load_attrs(t, g, err);
    if (rc >= 0)
        rc = map_texts(t, g, err);
    if (rc >= 0)
        rc = load_pieces(t, g, &letters, err);
    if (rc >= 0)
        rc = !t->spm      ? load_bpe(t, g, &letters, err)
             : !by_merges ? load_spm(t, g, err)
                          : load_character_bpe(t, g, err);
    if (rc >= 0)
        rc = load_special_ids(t, g, err);
    return rc;
}
