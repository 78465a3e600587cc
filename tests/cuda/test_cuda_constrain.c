/* Constrained texts on cuda, beside one that is free: the cpu's tokens and log-probabilities, bit for bit,
 * with every executor, with drafts of what the grammar forces and without, and where texts go back. */
#define IDENTITY_PROMPT 20
#define IDENTITY_TOKENS 12
#include "support/constrain_identity.h"

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

static void check(enum executor_kind kind, const char *blocks, const char *sm, bool together,
                  enum engine_speculation speculation)
{
    static struct answer cpu[N_REQUESTS], cuda[N_REQUESTS];
    struct circumstances c = {.isa = "auto", .kv_type = KV_F16, .n_threads = 1, .steps_in_flight = 2};
    struct engine_stats first = constrain_run(MODEL, &c, false, cpu);
    c.kind = kind;
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    c.speculation = speculation;
    setenv("SIMT_BLOCKS", blocks, 1);
    setenv("SIMT_DEVICE_SM", sm, 1);
    struct engine_stats second = constrain_run(MODEL, &c, together, cuda);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        expect_same(&cpu[i], &cuda[i], MODEL, "constrained on cuda");
    cr_assert_eq(first.completed, second.completed);
    cr_assert_eq(second.forced > 0, speculation == ENGINE_SPECULATE_ALWAYS);
}

Test(cuda_constrain, a_persistent_decoder_gives_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_PERSISTENT, "3", "90", true, ENGINE_SPECULATE_ALWAYS);
}

Test(cuda_constrain, launches_of_nodes_give_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_EAGER, "2", "80", false, ENGINE_SPECULATE_OFF);
}

Test(cuda_constrain, a_captured_graph_gives_the_cpus_tokens, .timeout = 1200)
{
    check(EXECUTOR_GRAPH, "2", "90", true, ENGINE_SPECULATE_ALWAYS);
}

/* ---- texts that go back ---- */

static void pieces_of(const struct answer *a, char text[N_TOKENS][64])
{
    struct model *m;
    struct tokenizer *t;
    cr_assert_eq(model_open(&m, MODEL, NULL), 0);
    cr_assert_eq(tokenizer_open(&t, model_gguf(m), NULL), 0);
    for (uint32_t i = 0; i < atomic_load(&a->r.n_out); i++) {
        uint32_t len = 0;
        const char *piece = constrain_piece(t, a->out[i].token, &len);
        snprintf(text[i], 64, "%.*s", piece ? (int)len : 0, piece ? piece : "");
    }
    tokenizer_close(t);
    model_close(m);
}

/* A byte that ends a token and the first one of the next: some place behind the first tokens has both. */
static void border_of(const struct answer *a, char string[3])
{
    char text[N_TOKENS][64];
    pieces_of(a, text);
    for (int i = 2; i + 1 < N_TOKENS - N_REQUESTS; i++)
        if (text[i][0] && text[i + 1][0]) {
            string[0] = text[i][strlen(text[i]) - 1];
            string[1] = text[i + 1][0];
            return;
        }
    cr_assert_fail("the text has no bytes");
}

static bool has(const struct answer *a, const char *string)
{
    char text[N_TOKENS][64], all[N_TOKENS * 64] = "";
    pieces_of(a, text);
    for (uint32_t i = 0; i < atomic_load(&a->r.n_out); i++)
        strcat(all, text[i]);
    return strstr(all, string);
}

static void check_banned(enum executor_kind kind, const char *blocks, const char *sm)
{
    static struct answer plain[N_REQUESTS], cpu[N_REQUESTS], cuda[N_REQUESTS];
    static char strings[N_REQUESTS][3];
    struct circumstances c = {.isa = "auto", .kv_type = KV_F16, .n_threads = 1, .steps_in_flight = 2};
    constrain_language = "root ::= [a-z ]{3,200}";
    (void)constrain_run(MODEL, &c, false, plain);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        border_of(&plain[i], strings[i]);
        constrain_banned[i] = strings[i];
    }
    (void)constrain_run(MODEL, &c, false, cpu);
    c.kind = kind;
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    setenv("SIMT_BLOCKS", blocks, 1);
    setenv("SIMT_DEVICE_SM", sm, 1);
    (void)constrain_run(MODEL, &c, true, cuda);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        cr_assert(has(&plain[i], strings[i]));
        cr_assert_not(has(&cpu[i], strings[i]));
        expect_same(&cpu[i], &cuda[i], MODEL, "banned on cuda");
    }
}

Test(cuda_constrain, a_persistent_decoder_goes_back_as_the_cpu_does, .timeout = 1200)
{
    check_banned(EXECUTOR_PERSISTENT, "3", "90");
}

Test(cuda_constrain, launches_of_nodes_go_back_as_the_cpu_does, .timeout = 1200)
{
    check_banned(EXECUTOR_EAGER, "2", "80");
}
