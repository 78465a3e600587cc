/* golden.h - recorded references that every arithmetic is held to: a model, 48 tokens, the logits of each
 * position computed in float64 over the dequantised weights, and the top 8 of each with log-probabilities.
 * The measure: root mean square of (logprob - reference logprob) over the reported top 8 tokens of a
 * position, divided by the standard deviation of the reference's logits there. */
#pragma once
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN_MAX_TOKENS 64
#define GOLDEN_TOP        8

/* Models in tests/data, and the others, which are beside the checkout (golden_shared). */
static const char *const golden_data_names[] = {
    "tiny-llama3-s15-q4_k_m",   "tiny-qwen2-odd-s13-q5_0",  "tiny-qwen3-s11-q4_k_m",   "tiny-qwen3-s11-q8_0",
    "tiny-qwen3moe-s32-q4_k_m", "tiny-qwen2moe-s82-q4_k_m", "tiny-glm4moe-s72-q4_k_m",
};
static const char *const golden_shared_names[] = {
    "tiny-llama-s14-q4_k_m", "tiny-qwen2-s12-q4_k_m", "tiny-qwen3-s11-f16",     "tiny-qwen3-s11-q4_0",
    "tiny-qwen3-s11-q5_k_m", "tiny-qwen3-s11-q6_k",   "tiny-qwen3moe-s31-f16",  "tiny-qwen2moe-s81-f16",
    "tiny-glm4moe-s71-f16",  "tiny-qwen3-s87-iq1_s",  "tiny-qwen3-s87-iq2_xxs", "tiny-qwen3-s87-iq3_xxs",
    "tiny-qwen3-s87-iq4_nl", "tiny-qwen3-s87-iq4_xs", "tiny-qwen3-s87-mxfp4all"};
#define GOLDEN_N_DATA   (sizeof golden_data_names / sizeof *golden_data_names)
#define GOLDEN_N_SHARED (sizeof golden_shared_names / sizeof *golden_shared_names)
/* The families beside Llama and Qwen: those in tests/data, and the others. Small as they are, their errors
 * are larger: the bounds are the ones of GOLDEN_FAMILY_*. */
static const char *const golden_data_families[] = {
    "tiny-gemma2-s78-q4_k_m",   "tiny-gemma3-s38-q4_0",  "tiny-gemma4-d-s55-q4_0", "tiny-gemma4-e-s54-f16",
    "tiny-mistral3-s59-q4_k_m", "tiny-gptoss-s34-mxfp4", "tiny-deepseek2-s74-f16",
};
static const char *const golden_shared_families[] = {
    "tiny-gemma2-s77-f16",        "tiny-gemma3-s37-f16",        "tiny-granite-s61-q4_k_m",
    "tiny-mistral3-s58-f16",      "tiny-llama-linear-s84-q8_0", "tiny-phi3-s51-f16",
    "tiny-smollm3-s68-q4_k_m",    "tiny-qwen3-yarn-s85-q4_k_m", "tiny-gptoss-s35-mxfp4-f16",
    "tiny-granitemoe-s64-q4_k_m", "tiny-granitemoe-s63-f16",    "tiny-phi3-s52-q4_k_m",
    "tiny-smollm3-s67-f16",       "tiny-deepseek2-s75-q4_k_m",  "tiny-qwen35-s41-f16",
    "tiny-qwen35-s42-q4_k_m",     "tiny-qwen35moe-s44-q4_k_m",  "tiny-qwen35moe-s45-f16",
    "tiny-qwen3next-s47-f16",     "tiny-qwen3next-s48-q4_k_m",
};
#define GOLDEN_N_DATA_FAMILIES   (sizeof golden_data_families / sizeof *golden_data_families)
#define GOLDEN_N_SHARED_FAMILIES (sizeof golden_shared_families / sizeof *golden_shared_families)
#define GOLDEN_FAMILY_WORST      0.09
#define GOLDEN_FAMILY_MEAN       0.036
#define GOLDEN_FAMILY_MEAN_F16   3e-3

struct golden_top {
    int32_t token;
    double logit, logprob;
};

struct golden {
    char name[64];
    char model[512]; /* path of the GGUF */
    bool float_weights;
    uint32_t n_vocab, n_tokens;
    int32_t tokens[GOLDEN_MAX_TOKENS];
    struct golden_top top[GOLDEN_MAX_TOKENS][GOLDEN_TOP];
    float *logits; /* [n_tokens][n_vocab] */
};

/* True for a model with head sizes (tiny gemma4-e: 16 and 48; one deepseek2: 80) that the persistent decoder
 * of cuda lacks: it refuses them by name, and cuda runs them node by node. */
static inline bool golden_is_of_nodes(const char *name)
{
    static const char *const parts[] = {"deepseek2-s74", "gemma4-e"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

/* The directory of all golden files, or NULL when it is not here: then the test prints its SKIP line. */
static inline const char *golden_shared(void)
{
    const char *dir = HEARTH_SOURCE_DIR "/../shared/golden";
    return access(dir, R_OK) == 0 ? dir : NULL;
}

static inline bool golden_read_json(struct golden *g, const char *path)
{
    json_t *root = json_load_file(path, 0, NULL);
    json_t *tokens = json_object_get(root, "tokens"), *top8 = json_object_get(root, "top8");
    g->n_vocab = (uint32_t)json_integer_value(json_object_get(root, "n_vocab"));
    g->n_tokens = (uint32_t)json_array_size(tokens);
    bool ok = g->n_vocab > 0 && g->n_tokens > 0 && g->n_tokens <= GOLDEN_MAX_TOKENS &&
              json_array_size(top8) == g->n_tokens;
    for (uint32_t i = 0; ok && i < g->n_tokens; i++) {
        g->tokens[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
        for (uint32_t j = 0; j < GOLDEN_TOP; j++) {
            json_t *entry = json_array_get(json_array_get(top8, i), j);
            ok = ok && json_array_size(entry) == 3;
            g->top[i][j] = (struct golden_top){(int32_t)json_integer_value(json_array_get(entry, 0)),
                                               json_number_value(json_array_get(entry, 1)),
                                               json_number_value(json_array_get(entry, 2))};
            ok = ok && g->top[i][j].token >= 0 && (uint32_t)g->top[i][j].token < g->n_vocab;
        }
    }
    json_decref(root);
    return ok;
}

/* Reads NAME.json and NAME.logits.f32 of a directory; false when one is missing or malformed. */
static inline bool golden_open(struct golden *g, const char *dir, const char *name)
{
    char path[600];
    memset(g, 0, sizeof *g);
    (void)snprintf(g->name, sizeof g->name, "%s", name);
    g->float_weights = strstr(name, "f16") && !strstr(name, "mxfp4");
    (void)snprintf(g->model, sizeof g->model, "%s/%s.gguf", dir, name);
    (void)snprintf(path, sizeof path, "%s/%s.json", dir, name);
    if (!golden_read_json(g, path))
        return false;
    (void)snprintf(path, sizeof path, "%s/%s.logits.f32", dir, name);
    size_t n = (size_t)g->n_tokens * g->n_vocab;
    FILE *f = fopen(path, "rb");
    g->logits = malloc(n * sizeof *g->logits);
    bool ok = f && g->logits && fread(g->logits, sizeof *g->logits, n, f) == n && fgetc(f) == EOF;
    if (f)
        (void)fclose(f);
    if (!ok)
        free(g->logits);
    return ok;
}

static inline void golden_close(struct golden *g)
{
    free(g->logits);
    g->logits = NULL;
}

static inline double golden_log_sum_exp(const float *logits, uint32_t n)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        top = (double)logits[i] > top ? (double)logits[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum);
}

/* Standard deviation of the reference's logits at a position. */
static inline double golden_deviation(const struct golden *g, uint32_t pos)
{
    const float *ref = g->logits + (size_t)pos * g->n_vocab;
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < g->n_vocab; i++) {
        sum += (double)ref[i];
        squares += (double)ref[i] * (double)ref[i];
    }
    double mean = sum / g->n_vocab;
    return sqrt(squares / g->n_vocab - mean * mean);
}

/* True if the reference's best token must be that of all executors at a position: it leads the next one by
 * 0.05. Logits where weights are floats; with activations of 8 bits standard deviations of the logits, which
 * is what their error is measured in. (Of the recorded files 0.05 logits would be missed in two places, by
 * leads of 0.051 and 0.071 logits where the deviation is 1.57 and 1.47: 0.032 and 0.049 of it.) */
static inline bool golden_is_clear(const struct golden *g, uint32_t pos)
{
    double lead = g->top[pos][0].logit - g->top[pos][1].logit;
    return lead >= 0.05 * (g->float_weights ? 1 : golden_deviation(g, pos));
}

/* The measure for one position's logits [n_vocab]; NaN when one of them is. */
static inline double golden_error(const struct golden *g, uint32_t pos, const float *logits)
{
    double lse = golden_log_sum_exp(logits, g->n_vocab), squares = 0;
    for (uint32_t j = 0; j < GOLDEN_TOP; j++) {
        double d = (double)logits[g->top[pos][j].token] - lse - g->top[pos][j].logprob;
        squares += d * d;
    }
    return sqrt(squares / GOLDEN_TOP) / golden_deviation(g, pos);
}

/* The same from the alternatives of a result: log-probabilities by token id, as a client sees them. A token
 * of the reference that is not among the `n` given ones counts as NaN. */
static inline double golden_error_of_logprobs(const struct golden *g, uint32_t pos, const int32_t *tokens,
                                              const float *logprobs, uint32_t n)
{
    double squares = 0;
    for (uint32_t j = 0; j < GOLDEN_TOP; j++) {
        double found = NAN;
        for (uint32_t i = 0; i < n; i++)
            found = tokens[i] == g->top[pos][j].token ? (double)logprobs[i] : found;
        squares += (found - g->top[pos][j].logprob) * (found - g->top[pos][j].logprob);
    }
    return sqrt(squares / GOLDEN_TOP) / golden_deviation(g, pos);
}
