/* The real daemon with a model of recurrent layers on the emulated driver: its text is the cpu's, choices
 * share the state behind their prompt, a restart goes on from the state on the disk, and it is swapped for a
 * model with windows and back. */
#include "integration/admin.h"

#define CUDA     "--backend", "cuda", "--libcuda", LIBCUDA
#define N_PROMPT 150
#define N_CACHED 128 /* of them: full pages before the last token */

static char *ask(long long n_cached)
{
    char body[2048], *at = body + sprintf(body, "{\"prompt\":[1");
    for (int i = 1; i < N_PROMPT; i++)
        at += sprintf(at, ",%d", 20 + i * 7 % 200);
    sprintf(at, "],\"ignore_eos\":true,\"max_tokens\":6,\"temperature\":0,\"n\":2}");
    json_t *root = generate(body);
    char *text = strdup(json_text(json_array_get(json_at(root, "choices"), 0), "text"));
    cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), 1), "text"), text);
    cr_assert_eq(json_number(root, "usage.cached_tokens"), n_cached);
    json_decref(root);
    return text;
}

static void expect_text(const char *wanted, long long n_cached)
{
    char *text = ask(n_cached);
    cr_assert_str_eq(text, wanted);
    free(text);
}

/* Files of a prompt's pages and of the parts of the state behind them. */
static long long n_files(void)
{
    long long page = stat_number("kv.bytes") / stat_number("kv.pages_total");
    long long state = stat_number("kv.states") / (4 + stat_number("kv.snapshots_total"));
    return N_CACHED / 64 + (state + page - 1) / page;
}

Test(cuda_states, a_restart_goes_on_from_the_state_on_the_disk, .timeout = 600)
{
    (void)admin_open();
    const char *model = admin_make_model("tiny-qwen35", "qwen35.gguf", 256);
    char dir[128];
    snprintf(dir, sizeof dir, "%s/pages", admin_dir);
    daemon_start(
        (const char *[]){"--backend", "cpu", "--model", model, "--slots", "4", "--n-ctx", "256", NULL});
    char *wanted = ask(0);
    daemon_stop();
    const char *const flags[] = {CUDA,      "--model", model,         "--slots", "4",
                                 "--n-ctx", "256",     "--kv-memory", "8M",      "--prefix-cache-dir",
                                 dir,       NULL};
    daemon_start(flags);
    expect_stat("decoder.executor", "persistent");
    expect_text(wanted, 0);
    cr_assert_gt(stat_number("kv.states"), 0);
    long long n = n_files();
    wait_stat("prefix_disk.spilled", n);
    expect_text(wanted, N_CACHED);
    daemon_stop();
    daemon_start(flags);
    expect_text(wanted, N_CACHED);
    cr_assert_eq(stat_number("prefix_disk.hits"), n);
    cr_assert_eq(stat_number("prefix_disk.errors"), 0);
    daemon_stop();
    free(wanted);
    admin_close();
}

/* Swaps to gemma3 and back; each model's text, to free. */
static void ask_in_turns(char *text[3])
{
    text[0] = ask(0);
    admin_swapped("gemma3.gguf");
    expect_stat("decoder.executor", "persistent");
    text[1] = ask(0);
    admin_swapped("qwen35.gguf");
    text[2] = ask(0); /* the model that came back has nothing in its cache */
}

Test(cuda_states, a_model_with_states_is_swapped_for_one_with_windows_and_back, .timeout = 600)
{
    char *wanted[3], *found[3];
    const char *key = admin_open();
    (void)admin_make_model("tiny-gemma3", "gemma3.gguf", 1024);
    const char *model = admin_make_model("tiny-qwen35", "qwen35.gguf", 1024);
#define SERVED                                                                                               \
    "--admin-key-file", key, "--model", model, "--slots", "4", "--n-ctx", "1024", "--kv-memory", "8M"
    daemon_start((const char *[]){"--backend", "cpu", SERVED, NULL});
    ask_in_turns(wanted);
    daemon_stop();
    daemon_start((const char *[]){CUDA, SERVED, NULL});
    ask_in_turns(found);
    cr_assert_str_neq(wanted[0], wanted[1]);
    for (int i = 0; i < 3; i++) {
        cr_assert_str_eq(found[i], wanted[i]);
        free(found[i]);
        free(wanted[i]);
    }
    cr_assert_gt(stat_number("kv.states"), 0);
    expect_stat("decoder.executor", "persistent");
    admin_finish();
}

/* As executor = auto, the default, says: the decoder takes no heads of 80 values. */
Test(cuda_states, a_model_that_the_decoder_does_not_take_runs_as_graphs, .timeout = 600)
{
    (void)admin_open();
    const char *model = admin_make_model("tiny-deepseek-lite", "deepseek.gguf", 256);
    daemon_start((const char *[]){CUDA, "--model", model, "--n-ctx", "256", "--kv-memory", "8M", NULL});
    expect_stat("decoder.executor", "graph");
    daemon_stop();
    admin_close();
}
