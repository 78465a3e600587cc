/* made_vocab.h - the tokenizer.* keys of a made-up model: a byte-level BPE vocabulary of any size, or a real
 * one copied from another GGUF file and padded. */
#pragma once
#include "gguf_write.h"

#include <stdio.h>

/* The file format's types of tokens. */
enum { MADE_NORMAL = 1, MADE_CONTROL = 3, MADE_UNUSED = 5 };

struct made_vocab { /* what is special about a family's vocabulary */
    const char *pre;
    const char *special[8]; /* the last tokens, NULL-terminated */
    int eos, bos, eot;      /* which of them */
    bool add_bos;
    const char *chat_template;
};

static const struct made_vocab vocab_chatml = {
    .pre = "qwen2",
    .special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
    .eos = 2,
    .bos = 0,
    .eot = 2,
    .chat_template =
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
};

static const struct made_vocab vocab_llama3 = {
    .pre = "llama-bpe",
    .special = {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                "<|eot_id|>"},
    .eos = 4,
    .bos = 0,
    .eot = 4,
    .add_bos = true,
    .chat_template = "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + "
                     "'<|end_header_id|>\n\n' + "
                     "m['content'] + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
                     "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
};

static const struct made_vocab vocab_harmony = {
    .pre = "gpt-4o",
    .special = {"<|startoftext|>", "<|return|>", "<|call|>", "<|start|>", "<|message|>", "<|end|>",
                "<|channel|>"},
    .eos = 1,
    .bos = 0,
    .eot = 1,
    .chat_template =
        "{% for m in messages %}{{ '<|start|>' + m['role'] + '<|message|>' + m['content'] + '<|end|>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}",
};

/* Not the SPM vocabulary of the real files: a byte-level one with their marks. */
static const struct made_vocab vocab_gemma = {
    .pre = "gpt-2",
    .special = {"<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"},
    .eos = 0,
    .bos = 1,
    .eot = 3,
    .add_bos = true,
    .chat_template =
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] + "
        "'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% "
        "endif %}",
};

/* The character that byte-level vocabularies write for a byte: itself where it is printable in Latin-1, else
 * one of the 68 from U+0100 on, in the order of the bytes. */
static inline void byte_token(int byte, char out[3])
{
    int c = byte, n_before = 0;
    for (int b = 0; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        c = printable ? b : 0x100 + n_before++;
    }
    if (c < 0x80)
        (void)snprintf(out, 3, "%c", c);
    else
        (void)snprintf(out, 3, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
}

/* Word number i: first a space mark or a letter, then one to four letters; all of a length before the longer
 * ones, so every word is a shorter one (or a byte) and a letter: its merge. */
static inline void made_word(uint64_t i, char *word, size_t *len, size_t *merge_at)
{
    int n_letters = 1;
    for (uint64_t n = 27 * 26; i >= n; n *= 26, n_letters++)
        i -= n;
    char letters[8];
    for (int k = n_letters; k > 0; k--, i /= 26)
        letters[k - 1] = (char)('a' + i % 26);
    *len = 0;
    if (i == 0) { /* the space mark: U+0120 */
        memcpy(word, "\xc4\xa0", 2);
        *len = 2;
    } else {
        word[(*len)++] = (char)('a' + i - 1);
    }
    memcpy(word + *len, letters, (size_t)n_letters);
    *len += (size_t)n_letters;
    *merge_at = *len - 1;
}

static inline void put_word(struct gguf_bytes *tokens, struct gguf_bytes *merges, uint64_t i)
{
    char word[16];
    size_t len, at;
    made_word(i, word, &len, &at);
    put_u64(tokens, len);
    put(tokens, word, len);
    put_u64(merges, len + 1);
    put(merges, word, at);
    put(merges, " ", 1);
    put(merges, word + at, len - at);
}

static inline void put_types(struct gguf_bytes *types, uint32_t type, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_u32(types, type);
}

/* 256 byte tokens, made-up words, the special tokens; `n_vocab` in all. */
static inline void made_vocab_write(struct gguf_write *w, const struct made_vocab *v, uint32_t n_vocab)
{
    struct gguf_bytes tokens = {0}, types = {0}, merges = {0};
    uint32_t n_special = 0;
    while (v->special[n_special])
        n_special++;
    assert(n_vocab >= 256 + n_special);
    uint32_t n_words = n_vocab - 256 - n_special;
    for (int b = 0; b < 256; b++) {
        char token[3];
        byte_token(b, token);
        put_str(&tokens, token);
    }
    for (uint32_t i = 0; i < n_words; i++)
        put_word(&tokens, &merges, i);
    put_types(&types, MADE_NORMAL, 256 + n_words);
    for (uint32_t i = 0; i < n_special; i++)
        put_str(&tokens, v->special[i]);
    put_types(&types, MADE_CONTROL, n_special);

    uint32_t first = n_vocab - n_special;
    gguf_write_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_write_str(w, "tokenizer.ggml.pre", v->pre);
    gguf_write_array(w, "tokenizer.ggml.tokens", GGUF_STR, n_vocab, tokens.p, tokens.n);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, n_vocab, types.p, types.n);
    gguf_write_array(w, "tokenizer.ggml.merges", GGUF_STR, n_words, merges.p, merges.n);
    gguf_write_u32(w, "tokenizer.ggml.bos_token_id", first + (uint32_t)v->bos);
    gguf_write_u32(w, "tokenizer.ggml.eos_token_id", first + (uint32_t)v->eos);
    gguf_write_u32(w, "tokenizer.ggml.eot_token_id", first + (uint32_t)v->eot);
    gguf_write_u32(w, "tokenizer.ggml.padding_token_id", first);
    gguf_write_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos);
    gguf_write_str(w, "tokenizer.chat_template", v->chat_template);
    free(tokens.p);
    free(types.p);
    free(merges.p);
}

/* One item more for each list that has one per token. */
static inline void put_unused_tokens(struct gguf_bytes *items, const char *key, uint64_t from, uint64_t to)
{
    char name[32];
    for (uint64_t i = from; i < to; i++) {
        if (strcmp(key, "tokenizer.ggml.tokens") == 0) {
            (void)snprintf(name, sizeof name, "[PAD%u]", (unsigned)i);
            put_str(items, name);
        } else {
            put_u32(items, strcmp(key, "tokenizer.ggml.token_type") == 0 ? MADE_UNUSED : 0);
        }
    }
}

static inline void copy_value(struct gguf_write *w, const struct gguf_value *v, uint32_t n_vocab)
{
    char key[128];
    (void)snprintf(key, sizeof key, "%.*s", (int)v->key.len, v->key.s);
    bool per_token = strcmp(key, "tokenizer.ggml.tokens") == 0 ||
                     strcmp(key, "tokenizer.ggml.token_type") == 0 ||
                     strcmp(key, "tokenizer.ggml.scores") == 0;
    if (v->type != GGUF_ARR) {
        gguf_write_key(w, key, v->type);
        put(&w->values, v->data, v->size);
        return;
    }
    struct gguf_bytes items = {0};
    put(&items, v->data, v->size);
    if (per_token && v->n < n_vocab)
        put_unused_tokens(&items, key, v->n, n_vocab);
    gguf_write_array(w, key, v->item_type, per_token && v->n < n_vocab ? n_vocab : v->n, items.p, items.n);
    free(items.p);
}

/* All tokenizer.* keys of `from`, its token lists padded with unused tokens up to `n_vocab`. */
static inline void made_vocab_copy(struct gguf_write *w, const struct gguf *from, uint32_t n_vocab)
{
    for (size_t i = 0; i < gguf_n_values(from); i++) {
        const struct gguf_value *v = gguf_value_at(from, i);
        if (v->key.len > 10 && v->key.len < 128 && memcmp(v->key.s, "tokenizer.", 10) == 0)
            copy_value(w, v, n_vocab);
    }
}
