/* The served arithmetic against the float oracle: the demo model, teacher-forced on stories it told itself,
 * and random models with float weights, whose activations are not quantised. */
#include "support/decoder_run.h"
#include "support/models/made_model.h"

#include <math.h>
#include <unistd.h>

#define DEMO      HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf"
#define MAX_STORY 256
#define END_STORY 4093

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ /* to which all tokens are the same code */
#define N_TOKENS 500
#else
#define N_TOKENS 2000
#endif

static const int32_t opening[4] = {424, 440, 258, 397}; /* "Once upon a time" */

static double log_sum_exp(const float *logits, uint32_t n)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        top = (double)logits[i] > top ? (double)logits[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - top);
    return top + log(sum);
}

static uint32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* One story at temperature 0.8 in slot 0: its tokens, and the logits after each of them. */
static uint32_t tell_story(struct decoder_run *r, uint64_t seed, int32_t tokens[MAX_STORY], float *logits)
{
    uint32_t n = 0;
    r->step->slots[0] = (struct step_slot){
        .sampling = {
            .seed = seed, .temperature = 0.8f, .top_p = 0.95f, .typical_p = 1, .repetition_penalty = 1}};
    r->step->n_slots = 1;
    for (int32_t next = opening[0]; n < MAX_STORY && next != END_STORY; n++) {
        tokens[n] = next;
        decoder_run_row(r, 0, n, next, true);
        decoder_run_step(r);
        memcpy(logits + (size_t)n * r->n_vocab, executor_logits(r->x, 0), r->n_vocab * sizeof *logits);
        next = n + 1 < 4 ? opening[n + 1] : r->results[0].token;
    }
    return n;
}

Test(demo, int8_chooses_as_the_oracle_on_two_thousand_tokens_of_its_own_stories, .timeout = 1200)
{
    struct decoder_run fast, oracle;
    decoder_run_open(&fast, &(struct decoder_run_config){.path = DEMO, .kind = EXECUTOR_PERSISTENT});
    decoder_run_open(&oracle, &(struct decoder_run_config){
                                  .path = DEMO, .kind = EXECUTOR_EAGER, .arithmetic = BACKEND_EXACT});
    uint32_t n_vocab = fast.n_vocab, n_done = 0, n_equal = 0;
    float *a = malloc((size_t)MAX_STORY * n_vocab * sizeof *a),
          *b = malloc((size_t)MAX_STORY * n_vocab * sizeof *b);
    cr_assert(a && b);
    double sum_a = 0, sum_b = 0;
    for (uint64_t seed = 1; n_done < N_TOKENS; seed++) {
        int32_t tokens[MAX_STORY];
        uint32_t n = tell_story(&fast, seed, tokens, a);
        decoder_run_feed(&oracle, 0, tokens, n, 32, b);
        for (uint32_t i = 0; i + 1 < n && n_done < N_TOKENS; i++, n_done++) {
            const float *x = a + (size_t)i * n_vocab, *y = b + (size_t)i * n_vocab;
            n_equal += argmax(x, n_vocab) == argmax(y, n_vocab);
            sum_a += (double)x[tokens[i + 1]] - log_sum_exp(x, n_vocab);
            sum_b += (double)y[tokens[i + 1]] - log_sum_exp(y, n_vocab);
        }
    }
    printf("argmax equal in %.2f %% of places; mean log-probability int8 %.4f, exact %.4f\n",
           100.0 * n_equal / N_TOKENS, sum_a / N_TOKENS, sum_b / N_TOKENS);
    cr_assert_geq(n_equal, N_TOKENS * 98 / 100, "%u of %d", n_equal, N_TOKENS);
    cr_assert_leq(fabs(sum_a - sum_b) / N_TOKENS, 0.01);
    free(a);
    free(b);
    decoder_run_close(&fast);
    decoder_run_close(&oracle);
}

/* ---- float weights ---- */

static double deviation(const float *x, uint32_t n)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    return sqrt(squares / n - sum / n * (sum / n));
}

/* Largest error of a position: root mean square of the difference over all logits, in standard deviations of
 * the oracle's. */
static double worst_error(const char *quant)
{
    char path[64];
    made_model("tiny-qwen3", quant, path);
    int32_t tokens[48];
    for (int i = 0; i < 48; i++)
        tokens[i] = (i * 37 + 11) % 500;
    float *fast = decoder_run_logits(
        &(struct decoder_run_config){.path = path, .kind = EXECUTOR_PERSISTENT, .n_threads = 2}, tokens, 48,
        32);
    struct decoder_run r;
    decoder_run_open(
        &r, &(struct decoder_run_config){.path = path, .kind = EXECUTOR_EAGER, .arithmetic = BACKEND_EXACT});
    float *oracle = calloc((size_t)48 * r.n_vocab, sizeof *oracle);
    cr_assert_not_null(oracle);
    decoder_run_feed(&r, 0, tokens, 48, 32, oracle);
    double worst = 0;
    for (uint32_t pos = 0; pos < 48; pos++) {
        const float *a = fast + (size_t)pos * r.n_vocab, *b = oracle + (size_t)pos * r.n_vocab;
        double squares = 0;
        for (uint32_t i = 0; i < r.n_vocab; i++)
            squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        double error = sqrt(squares / r.n_vocab) / deviation(b, r.n_vocab);
        worst = error > worst ? error : worst;
    }
    printf("%s: worst error %.2e\n", quant, worst);
    free(fast);
    free(oracle);
    decoder_run_close(&r);
    unlink(path);
    return worst;
}

Test(float_weights, f16_stays_within_two_thousandths_of_the_oracle)
{
    cr_assert_leq(worst_error("f16"), 2e-3);
}

Test(float_weights, bf16_stays_within_six_thousandths_of_the_oracle)
{
    cr_assert_leq(worst_error("bf16"), 6e-3);
}

Test(float_weights, f32_stays_within_two_thousandths_of_the_oracle)
{
    cr_assert_leq(worst_error("f32"), 2e-3);
}
