/* pretokenizer.c - the patterns of every kind, and matching them with PCRE2. */
#include "pretokenizer.h"

#include "base/utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* White_Space, for use inside a class. PCRE2's own \s has other characters, which depend on options. */
#define WS   "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define S    "[" WS "]"
#define NO_S "[^" WS "]"

/* The end of many kinds: the last character of a run of white space belongs to the word after it. */
#define SPACES S "+(?!" NO_S ")|" S "+"

/* White space up to the last line end of its run. */
#define LINES S "*[\\r\\n]+|"

#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PUNCTUATION  " ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|"
#define LLAMA3       CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" PUNCTUATION LINES SPACES
#define QWEN2        CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" PUNCTUATION LINES SPACES
#define QWEN35                                                                                               \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS                                     \
                 "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES SPACES
#define FALCON_PUNCTUATION  "[\\p{P}$+<=>^~|`]+"
#define DEFAULT_PUNCTUATION "[\\p{P}$+<=>^~|]+"

/* Words with case: capitals, then small letters; letters without case, and marks, go with both. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                               \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}| ?[^" WS   \
    "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES SPACES
#define GPT4O                                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER     \
    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" LINES SPACES

/* Kimi's: runs of Han first; words have none. The letters of UPPER and LOWER that are not Han, said by all
 * others: a look-ahead at each letter would need PCRE2's stack. */
#define KIMI_UPPER "[^\\p{Han}\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"
#define KIMI_LOWER "[^\\p{Han}\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}]"
#define KIMI                                                                                                 \
    "\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS                            \
    "?|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" CONTRACTIONS                                    \
    "?|\\p{N}{1,3}|" PUNCTUATION LINES SPACES

#define PORO " ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

#define DEEPSEEK_CJK  "[\\x{800}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK3_CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+"
#define DEEPSEEK3_WORDS                                                                                      \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "                                \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES SPACES
#define DEEPSEEK_LLM_PUNCTUATION                                                                             \
    S "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"

/* The letters with case of the scripts that deepseek-llm's tokenizer.json lists. */
#define DEEPSEEK_LLM_LETTERS                                                                                 \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}"          \
    "\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"                    \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"          \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"          \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"        \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"         \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"         \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"        \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"          \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                   \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                   \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"         \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"        \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                       \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                   \
    "\\x{1e900}-\\x{1e943}"

/* "(?<!S)": a search for white space at the end of the text begins at a run's beginning only, so that every
 * run is read once. */
#define LAST_SPACES "(?<!" S ")" S "+\\z"

static const struct pretokenizer_kind kinds[] = {
    {.names = " default ", .patterns = {DEFAULT_PUNCTUATION, GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     .patterns = {LLAMA3},
     .ignore_merges = true,
     .add_bos = true},
    {.names = " dbrx smaug-bpe chatglm-bpe ", .patterns = {LLAMA3}},
    {.names = " glm4 glm5 ", .patterns = {LLAMA3}, .ignore_merges = true},
    {.names = " qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 bailingmoe "
              "bailingmoe2 llada-moe ",
     .patterns = {QWEN2}},
    {.names = " qwen35 ", .patterns = {QWEN35}},
    {.names = " gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
              "exaone4 mpt olmo jais trillion granite-docling ",
     .patterns = {GPT2}},
    {.names = " starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 ",
     .patterns = {"\\p{N}", GPT2}},
    {.names = " falcon ", .patterns = {FALCON_PUNCTUATION, GPT2, "[0-9][0-9][0-9]"}},
    {.names = " deepseek-llm ",
     .patterns = {"[\\r\\n]", S "?[" DEEPSEEK_LLM_LETTERS "]+", DEEPSEEK_LLM_PUNCTUATION, LAST_SPACES,
                  DEEPSEEK_CJK, "\\p{N}"}},
    {.names = " deepseek-coder ",
     .patterns = {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     .patterns = {"\\p{N}{1,3}", DEEPSEEK3_CJK, DEEPSEEK3_WORDS}},
    {.names = " tekken ", .patterns = {TEKKEN}, .ignore_merges = true, .add_bos = true},
    {.names = " gpt-4o llama4 kanana2 minimax-m2 ", .patterns = {GPT4O}},
    {.names = " kimi-k2 ", .patterns = {KIMI}},
    {.names = " poro-chat bloom gpt3-finnish ", .patterns = {PORO}},
    {.names = " viking ", .patterns = {PORO, "\\p{N}"}},
    {.names = " chameleon ",
     .patterns = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
                  "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     .add_bos = true},
    {.names = " seed-coder ",
     .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS
                               "\\p{L}\\p{N}\\r\\n]+|" LINES SPACES}},
    {.names = " minicpm5 ",
     .patterns = {"\\p{N}{1,3}",
                  CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+|" PUNCTUATION LINES SPACES},
     .ignore_merges = true},
};

#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* Bytes per stretch of the rest of a text, after PCRE2 has given up on a match. */
#define STRETCH 4096

/* PCRE2's default limit of ten million steps is less than a long run of white space needs. The patterns here
 * are linear, so they need no limit. */
#define MATCH_LIMIT UINT32_MAX

struct pretokenizer {
    pcre2_code *code[PRETOKENIZER_MAX_PATTERNS];
    bool jit[PRETOKENIZER_MAX_PATTERNS];
    int n;
    pcre2_match_context *limits;
};

const struct pretokenizer_kind *pretokenizer_find(const char *name, size_t len)
{
    char word[64];
    if (len > sizeof word - 3 || memchr(name, ' ', len) || memchr(name, 0, len))
        return NULL;
    snprintf(word, sizeof word, " %.*s ", (int)len, name);
    for (size_t i = 0; i < N_KINDS; i++)
        if (strstr(kinds[i].names, word))
            return &kinds[i];
    return NULL;
}

int pretokenizer_open(struct pretokenizer **out, const struct pretokenizer_kind *kind, struct error *err)
{
    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, -ENOMEM, "pre-tokeniser: out of memory");
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits) {
        pretokenizer_close(p);
        return error_set(err, -ENOMEM, "pre-tokeniser: out of memory");
    }
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    for (; p->n < PRETOKENIZER_MAX_PATTERNS && kind->patterns[p->n]; p->n++) {
        int code;
        size_t at;
        p->code[p->n] = pcre2_compile((PCRE2_SPTR)kind->patterns[p->n], PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                                      &code, &at, NULL);
        if (!p->code[p->n]) {
            int rc = error_set(err, -ENOMEM, "pre-tokeniser%s: PCRE2 error %d at %zu of pattern %d",
                               kind->names, code, at, p->n);
            pretokenizer_close(p);
            return rc;
        }
        /* Without the JIT (a system may forbid writable code pages) the interpreter gives the same words. */
        p->jit[p->n] = !pcre2_jit_compile(p->code[p->n], PCRE2_JIT_COMPLETE);
    }
    *out = p;
    return 0;
}

void pretokenizer_close(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < PRETOKENIZER_MAX_PATTERNS; i++)
        pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

int pretokenizer_splitter_open(struct pretokenizer_splitter *s, const struct pretokenizer *p,
                               int (*word)(void *context, const char *word, size_t len), void *context)
{
    *s = (struct pretokenizer_splitter){.p = p, .word = word, .context = context};
    s->match = pcre2_match_data_create(4, NULL);
    return s->match ? 0 : -ENOMEM;
}

void pretokenizer_splitter_close(struct pretokenizer_splitter *s)
{
    pcre2_match_data_free(s->match);
    s->match = NULL;
}

/* Returns 1 and the match's position; 0 without a match; -ENOMEM; -ERANGE when PCRE2 gave up. */
static int find(struct pretokenizer_splitter *s, int pattern, const char *text, size_t len, size_t from,
                size_t *at, size_t *end)
{
    const struct pretokenizer *p = s->p;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = p->jit[pattern]
                 ? pcre2_jit_match(p->code[pattern], subject, len, from, 0, s->match, p->limits)
                 : pcre2_match(p->code[pattern], subject, len, from, PCRE2_NO_UTF_CHECK, s->match, p->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -ERANGE;
    const size_t *bounds = pcre2_get_ovector_pointer(s->match);
    *at = bounds[0];
    *end = bounds[1];
    return 1;
}

/* Like find(), but never returns -ERANGE: after PCRE2 has given up, it searches one stretch of the text, and
 * takes the whole stretch as the match if PCRE2 gives up again. Every later search is by stretches too, as
 * searching the whole rest each time would take quadratic time. */
static int find_within_limits(struct pretokenizer_splitter *s, int pattern, const char *text, size_t len,
                              size_t from, size_t *at, size_t *end)
{
    int found = s->in_stretches ? -ERANGE : find(s, pattern, text, len, from, at, end);
    if (found != -ERANGE)
        return found;
    s->in_stretches = true;
    size_t stop = len - from > STRETCH ? from + STRETCH : len;
    while (stop < len && (text[stop] & 0xC0) == 0x80)
        stop++;
    found = find(s, pattern, text, stop, from, at, end);
    if (found == -ENOMEM)
        return found;
    if (found <= 0) {
        *at = from;
        *end = stop;
    }
    return 1;
}

static int split_part(struct pretokenizer_splitter *s, int pattern, const char *text, size_t len)
{
    assert(pattern <= s->p->n);
    if (!len)
        return 0;
    if (pattern == s->p->n)
        return s->word(s->context, text, len);
    for (size_t from = 0; from < len;) {
        size_t at, end;
        int rc = find_within_limits(s, pattern, text, len, from, &at, &end);
        if (rc < 0)
            return rc;
        if (rc == 0)
            return split_part(s, pattern + 1, text + from, len - from);
        assert(at >= from && end > at && end <= len); /* no pattern has an empty match */
        rc = split_part(s, pattern + 1, text + from, at - from);
        if (rc >= 0)
            rc = split_part(s, pattern + 1, text + at, end - at);
        if (rc < 0)
            return rc;
        from = end;
    }
    return 0;
}

int pretokenizer_split(struct pretokenizer_splitter *s, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = utf8_valid(text + i, len - i);
        int rc = split_part(s, 0, text + i, n);
        if (rc < 0)
            return rc;
        i += n;
        n = utf8_invalid(text + i, len - i);
        for (size_t end = i + n; i < end; i++) {
            rc = s->word(s->context, text + i, 1);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}
