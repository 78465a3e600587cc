/* The recorded float64 references through HTTP: `prompt` as token ids, `prompt_logprobs` as a client sees
 * them. */
#include "support/golden.h"
#include "integration/harness.h"

#define WORST 0.045
#define MEAN  0.030
#define N_TOP 20

static char *request_body(const struct golden *g)
{
    json_t *prompt = json_array();
    for (uint32_t i = 0; i < g->n_tokens; i++)
        json_array_append_new(prompt, json_integer(g->tokens[i]));
    json_t *root = json_pack("{s:o,s:i,s:i,s:b}", "prompt", prompt, "max_tokens", 0, "prompt_logprobs", N_TOP,
                             "add_special", 0);
    char *body = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return body;
}

/* Entry i + 1 of the reply holds what the model expected after token i. */
static double position_error(const struct golden *g, const json_t *list, uint32_t pos)
{
    json_t *top = json_object_get(json_array_get(list, pos + 1), "top");
    int32_t tokens[N_TOP];
    float logprobs[N_TOP];
    cr_assert_eq(json_array_size(top), N_TOP);
    for (size_t i = 0; i < N_TOP; i++) {
        json_t *entry = json_array_get(top, i);
        tokens[i] = (int32_t)json_integer_value(json_object_get(entry, "id"));
        logprobs[i] = (float)json_number_value(json_object_get(entry, "logprob"));
    }
    if (golden_is_clear(g, pos))
        cr_expect_eq(tokens[0], g->top[pos][0].token, "%s position %u", g->name, pos);
    return golden_error_of_logprobs(g, pos, tokens, logprobs, N_TOP);
}

static void check_file(const char *dir, const char *name, double worst, double mean)
{
    struct golden g;
    cr_assert(golden_open(&g, dir, name), "%s/%s", dir, name);
    daemon_start((const char *[]){"--model", g.model, NULL});
    char *body = request_body(&g);
    json_t *root = generate(body);
    json_t *list = json_object_get(root, "prompt_logprobs");
    cr_assert_eq(json_array_size(list), g.n_tokens);
    cr_assert(json_is_null(json_array_get(list, 0)));
    double sum = 0;
    for (uint32_t pos = 0; pos + 1 < g.n_tokens; pos++) {
        double error = position_error(&g, list, pos);
        cr_expect(error <= worst, "%s position %u: error %.4f", name, pos, error);
        sum += error;
    }
    cr_expect(sum / (g.n_tokens - 1) <= mean, "%s: mean error %.4f", name, sum / (g.n_tokens - 1));
    json_decref(root);
    free(body);
    golden_close(&g);
    daemon_stop();
}

Test(golden, recorded_references_come_back_through_http)
{
    for (size_t i = 0; i < GOLDEN_N_DATA; i++)
        check_file(HEARTH_TEST_DATA, golden_data_names[i], WORST, MEAN);
}

Test(golden, so_do_those_beside_the_checkout)
{
    const char *dir = golden_shared();
    if (!dir) {
        printf("SKIP it_golden shared-golden: ../shared/golden is not here\n");
        return;
    }
    for (size_t i = 0; i < GOLDEN_N_SHARED; i++) {
        bool f16 = strstr(golden_shared_names[i], "-f16") != NULL;
        check_file(dir, golden_shared_names[i], f16 ? 2e-3 : WORST, f16 ? 2e-3 : MEAN);
    }
}
