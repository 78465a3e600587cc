/* The merging of long words against the plainest way to do it: look for the best pair, again and again. The
 * vocabularies are random, so ranks do not rise from short texts to long ones as they do where merges were
 * learned. */
#include "support/models/gguf_write.h"
#include "support/tokenizer_fixture.h"
#define RANDOM_SEED 5
#include "support/random.h"

#include <criterion/criterion.h>
#include <unistd.h>

#define LETTERS   3
#define MAX_PARTS 8
#define N_MERGES  60
#define WORD      400

struct pair {
    char left[MAX_PARTS + 1], right[MAX_PARTS + 1];
    float score; /* SPM: of the joined text */
};

static void random_text(char *out, uint32_t max)
{
    uint32_t n = 1 + random_below(max);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (char)('a' + random_below(LETTERS));
    out[n] = 0;
}

struct texts { /* tokens: the letters, then every text that a pair joins, each once */
    char text[LETTERS + N_MERGES][2 * MAX_PARTS + 1];
    float score[LETTERS + N_MERGES];
    size_t n;
};

static int find_text(const struct texts *v, const char *s, size_t len)
{
    for (size_t i = 0; i < v->n; i++)
        if (strlen(v->text[i]) == len && !memcmp(v->text[i], s, len))
            return (int)i;
    return -1;
}

static void make_pairs(struct pair *pairs, struct texts *v)
{
    *v = (struct texts){.n = LETTERS};
    for (int i = 0; i < LETTERS; i++)
        v->text[i][0] = (char)('a' + i);
    for (int i = 0; i < N_MERGES; i++) {
        char joined[2 * MAX_PARTS + 1];
        random_text(pairs[i].left, i < 20 ? 1 : 4);
        random_text(pairs[i].right, i < 20 ? 2 : 4);
        snprintf(joined, sizeof joined, "%.8s%.8s", pairs[i].left, pairs[i].right);
        if (find_text(v, joined, strlen(joined)) >= 0)
            continue;
        strcpy(v->text[v->n], joined);
        v->score[v->n++] = -(float)random_below(20); /* with ties */
    }
}

static struct tokenizer *open_pairs(const struct pair *pairs, const struct texts *v, const char *model)
{
    struct gguf_write w = {0};
    struct gguf_bytes tokens = {0}, merges = {0}, types = {0};
    for (size_t i = 0; i < v->n; i++) {
        put_str(&tokens, v->text[i]);
        put_u32(&types, 1);
    }
    for (int i = 0; i < N_MERGES; i++) {
        char line[4 * MAX_PARTS];
        snprintf(line, sizeof line, "%.8s %.8s", pairs[i].left, pairs[i].right);
        put_str(&merges, line);
    }
    gguf_write_str(&w, "tokenizer.ggml.model", model);
    gguf_write_str(&w, "tokenizer.ggml.pre", "qwen2");
    gguf_write_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    gguf_write_array(&w, "tokenizer.ggml.tokens", GGUF_STR, v->n, tokens.p, tokens.n);
    gguf_write_array(&w, "tokenizer.ggml.token_type", GGUF_I32, v->n, types.p, types.n);
    gguf_write_array(&w, "tokenizer.ggml.merges", GGUF_STR, N_MERGES, merges.p, merges.n);
    gguf_write_array(&w, "tokenizer.ggml.scores", GGUF_F32, v->n, v->score, v->n * sizeof v->score[0]);
    struct tokenizer *t = fixture_of(&w);
    cr_assert_not_null(t);
    free(tokens.p);
    free(merges.p);
    free(types.p);
    return t;
}

/* Smaller merges first; -1: none. The scores are whole numbers from -19 to 0. */
static int rank_of(const struct pair *pairs, const struct texts *v, bool spm, const char *s, size_t left,
                   size_t len)
{
    if (spm) {
        int id = find_text(v, s, len);
        return id < 0 ? -1 : (int)-v->score[id];
    }
    for (int i = 0; i < N_MERGES; i++)
        if (strlen(pairs[i].left) == left && strlen(pairs[i].right) == len - left &&
            !memcmp(pairs[i].left, s, left) && !memcmp(pairs[i].right, s + left, len - left))
            return i;
    return -1;
}

/* cut[i]: byte at which symbol i begins; returns how many there are. */
static size_t merge_plainly(const struct pair *pairs, const struct texts *v, bool spm, const char *s,
                            size_t n, size_t *cut)
{
    for (size_t i = 0; i <= n; i++)
        cut[i] = i;
    for (;;) {
        int best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int rank = rank_of(pairs, v, spm, s + cut[i], cut[i + 1] - cut[i], cut[i + 2] - cut[i]);
            if (rank < 0 || (best >= 0 && rank >= best))
                continue;
            best = rank;
            at = i;
        }
        if (best < 0)
            return n;
        memmove(&cut[at + 1], &cut[at + 2], (n - at - 1) * sizeof cut[0]);
        n--;
    }
}

static void expect_same_merges(const char *model)
{
    bool spm = !strcmp(model, "llama");
    for (int round = 0; round < 60; round++) {
        struct pair pairs[N_MERGES];
        struct texts v;
        make_pairs(pairs, &v);
        struct tokenizer *t = open_pairs(pairs, &v, model);
        char word[WORD];
        size_t cut[WORD + 1], len = 1 + random_below(round & 1 ? WORD : 60);
        for (size_t i = 0; i < len; i++)
            word[i] = (char)('a' + random_below(LETTERS));
        size_t expected = merge_plainly(pairs, &v, spm, word, len, cut), n;
        int32_t *ids;
        cr_assert_eq(tokenizer_encode(t, word, len, (struct tokenizer_flags){0}, 0, &ids, &n, NULL), 0);
        cr_assert_eq(n, expected, "round %d: %zu ids, not %zu", round, n, expected);
        for (size_t i = 0; i < n; i++)
            cr_assert_eq(ids[i], find_text(&v, word + cut[i], cut[i + 1] - cut[i]), "round %d, id %zu", round,
                         i);
        free(ids);
        tokenizer_close(t);
    }
}

Test(tokenizer_merge, merges_long_words_in_order_of_rank_and_place)
{
    expect_same_merges("gpt2");
}

Test(tokenizer_merge, merges_spm_text_in_order_of_score_and_place)
{
    expect_same_merges("llama");
}

Test(tokenizer_merge, merges_characters_in_order_of_rank_and_place)
{
    expect_same_merges("gemma4");
}

/* Every pair has the same rank here, so merging adds to the very list that it walks. Quadratic work would not
 * end. */
Test(tokenizer_merge, is_not_quadratic_when_all_scores_are_equal)
{
    struct pair pairs[N_MERGES];
    struct texts v;
    make_pairs(pairs, &v);
    v.n = LETTERS;
    for (size_t len = 2; len <= 2 * MAX_PARTS; len++) {
        memset(v.text[v.n], 'a', len);
        v.text[v.n][len] = 0;
        v.score[v.n++] = 0;
    }
    struct tokenizer *t = open_pairs(pairs, &v, "llama");
    size_t len = 4 << 20, n;
    char *text = malloc(len);
    memset(text, 'a', len);
    int32_t *ids;
    cr_assert_eq(tokenizer_encode(t, text, len, (struct tokenizer_flags){0}, 0, &ids, &n, NULL), 0);
    cr_assert_eq(n, len / (2 * MAX_PARTS));
    free(text);
    free(ids);
    tokenizer_close(t);
}
