/* Vectors of prompts: against the recorded float64 logits, against each other, and the same bits in all
 * circumstances. */
#include "support/identity.h"
#include "support/golden.h"
#include "gguf/quant.h"

#include <math.h>

#define MODEL    HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf"
#define MAX_EMBD 1024

/* Submits the prompt's first n tokens and waits for their vector. */
static void embed(struct rig *rig, const int32_t *tokens, uint32_t n, enum engine_pooling pooling, float *out)
{
    struct engine_request r = {
        .prompt = tokens, .n_prompt = n, .pooling = pooling, .cache_prompt = true, .embedding = out};
    struct error err = {0};
    r.sampling.repetition_penalty = 1;
    cr_assert_leq(engine_n_embedding(rig->e), MAX_EMBD);
    cr_assert_eq(engine_submit(rig->e, &r, &err), 0, "%s", err.text);
    wait_end(rig, &r);
    cr_assert_eq(r.finish, ENGINE_LENGTH);
}

static float *output_weights(const struct model *m)
{
    uint32_t i = model_find_weight(m, model_config(m)->tied ? "token_embd.weight" : "output.weight");
    const struct weight *w = model_weight(m, i);
    void *bytes = malloc(w->size);
    float *out = malloc((size_t)w->n * w->k * sizeof *out);
    cr_assert_eq(model_read_weight(m, i, 0, bytes, w->size, NULL), 0);
    quant_dequantise(w->type, bytes, out, (size_t)w->n * w->k);
    free(bytes);
    return out;
}

/* The logits that the output weights make of a hidden state are those of the reference, within the bounds of
 * 8-bit activations in the layers before it. */
static void check_golden(const char *name, double worst)
{
    static float hidden[MAX_EMBD];
    struct circumstances c = {.isa = "auto", .n_threads = 2, .steps_in_flight = 2};
    struct golden g;
    struct rig rig;
    cr_assert(golden_open(&g, HEARTH_TEST_DATA, name), "%s", name);
    cr_assert(rig_open(&rig, g.model, &c, NULL, 0));
    const struct model_config *m = model_config(rig.model);
    float *weights = output_weights(rig.model), *logits = malloc(g.n_vocab * sizeof *logits);
    for (uint32_t pos = 0; pos < g.n_tokens; pos += 7) {
        embed(&rig, g.tokens, pos + 1, ENGINE_POOL_LAST, hidden);
        for (uint32_t t = 0; t < g.n_vocab; t++) {
            double sum = 0;
            for (uint32_t k = 0; k < m->n_embd; k++)
                sum += (double)weights[(size_t)t * m->n_embd + k] * (double)hidden[k];
            sum *= (double)m->logit_scale;
            logits[t] = (float)(m->logit_cap > 0 ? m->logit_cap * tanh(sum / m->logit_cap) : sum);
        }
        double error = golden_error(&g, pos, logits);
        cr_expect(error <= worst, "%s position %u: error %.4f", name, pos, error);
    }
    free(logits);
    free(weights);
    rig_close(&rig);
    golden_close(&g);
}

Test(engine_embed, the_last_hidden_state_gives_the_recorded_logits)
{
    check_golden("tiny-qwen3-s11-q8_0", 0.045);
    check_golden("tiny-llama3-s15-q4_k_m", 0.045);
    check_golden("tiny-gemma2-s78-q4_k_m", GOLDEN_FAMILY_WORST);
    check_golden("tiny-deepseek2-s74-f16", GOLDEN_FAMILY_WORST);
}

static void tokens_of(int32_t *tokens, uint32_t n, uint32_t n_vocab, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((seed = seed * 1664525 + 1013904223) >> 10) % (int32_t)n_vocab;
}

/* A token sees those before it alone, so every hidden state is the last of a shorter prompt. */
Test(engine_embed, the_mean_is_that_of_the_last_states_of_all_beginnings)
{
    static float sum[MAX_EMBD], one[MAX_EMBD], mean[MAX_EMBD], first[MAX_EMBD];
    struct circumstances c = {.isa = "auto", .n_threads = 2, .steps_in_flight = 2, .max_chunk = 7};
    int32_t tokens[70];
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    uint32_t n = engine_n_embedding(rig.e);
    tokens_of(tokens, 70, rig.n_vocab, 5);
    embed(&rig, tokens, 70, ENGINE_POOL_MEAN, mean);
    embed(&rig, tokens, 70, ENGINE_POOL_FIRST, first);
    for (uint32_t k = 1; k <= 70; k++) {
        embed(&rig, tokens, k, ENGINE_POOL_LAST, one);
        for (uint32_t i = 0; i < n; i++)
            sum[i] = k == 1 ? one[i] : sum[i] + one[i];
        cr_expect(k > 1 || !memcmp(first, one, n * sizeof *one));
    }
    for (uint32_t i = 0; i < n; i++)
        sum[i] /= 70.0f;
    cr_expect_eq(memcmp(sum, mean, n * sizeof *sum), 0);
    rig_close(&rig);
}

static const struct named_circumstances cases[] = {BESIDE_SEVEN_OTHERS, CHUNKS_OF_7_BESIDE_THREE, CHUNKS_OF_1,
                                                   AFTER_A_HIT};

/* False when this CPU lacks the instruction set. */
static bool embed_in(const struct circumstances *c, enum engine_pooling pooling, float *out)
{
    int32_t tokens[N_PROMPT];
    struct rig rig;
    if (!rig_open(&rig, MODEL, c, NULL, 0))
        return false;
    tokens_of(tokens, N_PROMPT, rig.n_vocab, 9);
    begin_neighbours(&rig, c, NULL);
    if (c->after_hit)
        embed(&rig, tokens, N_PROMPT, pooling, out);
    embed(&rig, tokens, N_PROMPT, pooling, out);
    end_neighbours(&rig, c);
    rig_close(&rig);
    return true;
}

Test(engine_embed, gives_the_same_bits_in_all_circumstances)
{
    static float alone[MAX_EMBD], other[MAX_EMBD];
    const struct circumstances slow = {.isa = "scalar", .n_threads = 1, .steps_in_flight = 1};
    for (enum engine_pooling p = ENGINE_POOL_MEAN; p <= ENGINE_POOL_LAST; p++) {
        cr_assert(embed_in(&slow, p, alone));
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (embed_in(&cases[i].c, p, other))
                cr_expect_eq(memcmp(alone, other, sizeof alone), 0, "pooling %d, %s", (int)p, cases[i].what);
    }
}

Test(engine_embed, refuses_by_name_where_no_hidden_states_are_kept)
{
    struct circumstances c = {.kind = EXECUTOR_EAGER, .isa = "auto", .n_threads = 1, .steps_in_flight = 1};
    struct engine_request r = {.prompt = (const int32_t[]){1, 2}, .n_prompt = 2, .pooling = ENGINE_POOL_LAST};
    struct error err = {0};
    struct rig rig;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    cr_expect_eq(engine_n_embedding(rig.e), 0);
    cr_expect_eq(engine_submit(rig.e, &r, &err), -EINVAL);
    cr_expect(strstr(err.text, "keep no hidden states"), "%s", err.text);
    rig_close(&rig);
    c.kind = EXECUTOR_PERSISTENT;
    cr_assert(rig_open(&rig, MODEL, &c, NULL, 0));
    r.max_tokens = 1;
    err = (struct error){0};
    cr_expect_eq(engine_submit(rig.e, &r, &err), -EINVAL);
    cr_expect(strstr(err.text, "max_tokens is 0"), "%s", err.text);
    rig_close(&rig);
}
