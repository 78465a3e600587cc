/* Models with recurrent layers through the real daemon: a prompt goes on from the state that an earlier one
 * has left, its choices share it, drafts are taken back, and the texts are the same, also after a client has
 * left, after another model, and after a restart. */
#include "integration/admin.h"

#include <dirent.h>

#define QWEN35 "qwen35.gguf"
#define NEXT   "qwen3next.gguf"
#define DENSE  "dense.gguf"

static void start(const char *flag, const char *value)
{
    char model[128], key[128];
    snprintf(model, sizeof model, "%s/" QWEN35, admin_dir);
    snprintf(key, sizeof key, "%s/key", admin_dir);
    daemon_start(
        (const char *[]){"--admin-key-file", key, "--model", model, "--slots", "4", flag, value, NULL});
}

static void make_models(void)
{
    (void)admin_open();
    admin_make_model("tiny-qwen35", QWEN35, 1024);
    admin_make_model("tiny-qwen3next", NEXT, 1024);
    admin_make_model("tiny-qwen3", DENSE, 1024);
}

#define N_PROMPT 300
#define N_CACHED 256 /* of them: full pages before the last token */

/* The reply to a prompt of N_PROMPT ids with further fields; to decref. */
static json_t *ask(const char *fields)
{
    char body[4096], *at = body + sprintf(body, "{\"prompt\":[1");
    for (int i = 1; i < N_PROMPT; i++)
        at += sprintf(at, ",%d", 20 + i * 7 % 200);
    sprintf(at, "],\"ignore_eos\":true,\"max_tokens\":12%s}", fields);
    return generate(body);
}

/* Its text, to free; expects so many of its tokens in the cache. */
static char *text(long long n_cached, const char *fields)
{
    json_t *root = ask(fields);
    cr_assert_eq(json_number(root, "usage.cached_tokens"), n_cached);
    char *text = strdup(json_text(root, "text"));
    json_decref(root);
    return text;
}

static void expect_text(const char *expected, long long n_cached, const char *fields)
{
    char *found = text(n_cached, fields);
    cr_assert_str_eq(found, expected, "%lld cached", n_cached);
    free(found);
}

#define GREEDY ",\"temperature\":0"
#define ALONE  ",\"temperature\":0,\"cache_prompt\":false"

Test(recurrent, a_prompt_that_was_computed_costs_nothing, .init = make_models)
{
    start(NULL, NULL);
    char *alone = text(0, ALONE);
    expect_text(alone, 0, GREEDY);
    cr_assert_gt(stat_number("kv.snapshots"), 0);
    cr_assert_gt(stat_number("kv.snapshots_total"), 4);
    cr_assert_gt(stat_number("kv.states"), 0);
    cr_assert_eq(metric("hearth_recurrent_state_bytes"), stat_number("kv.states"));
    cr_assert_eq(metric("hearth_recurrent_snapshots"), stat_number("kv.snapshots_total"));
    cr_assert_eq(metric("hearth_recurrent_snapshots_kept"), stat_number("kv.snapshots"));
    expect_text(alone, N_CACHED, GREEDY);
    free(alone);
    admin_finish();
}

Test(recurrent, choices_share_the_state_behind_their_prompt, .init = make_models)
{
    start(NULL, NULL);
    long long before = stat_number("tokens.prompt");
    json_t *root = ask(",\"temperature\":1,\"seed\":5,\"n\":4,\"cache_prompt\":false");
    cr_assert_eq(stat_number("tokens.prompt") - before, N_PROMPT);
    for (int i = 0; i < 4; i++) {
        char fields[100];
        snprintf(fields, sizeof fields, ",\"temperature\":1,\"cache_prompt\":false,\"seed\":%d", 5 + i);
        char *alone = text(0, fields);
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), (size_t)i), "text"), alone);
        free(alone);
    }
    json_decref(root);
    admin_finish();
}

/* A client leaves while its text is written; the prompt then goes on from the state that it left. */
Test(recurrent, a_client_that_leaves_changes_no_text, .init = make_models)
{
    start(NULL, NULL);
    char *alone = text(0, ALONE), body[4096], *at = body + sprintf(body, "{\"prompt\":[1");
    for (int i = 1; i < N_PROMPT; i++)
        at += sprintf(at, ",%d", 20 + i * 7 % 200);
    sprintf(at, "],\"ignore_eos\":true,\"max_tokens\":600,\"stream\":true,\"temperature\":0}");
    for (int i = 0; i < 3; i++) {
        struct reply r = {0};
        int fd = client_connect(daemon_.port);
        client_request(fd, "POST", "/generate", "", body);
        while (!r.raw || !strstr(r.raw, "data: "))
            cr_assert(reply_more(&r, fd));
        reply_free(&r);
        close(fd);
    }
    wait_stat("requests.running", 0);
    expect_text(alone, N_CACHED, GREEDY);
    free(alone);
    admin_finish();
}

Test(recurrent, neither_another_model_nor_a_restart_changes_the_text, .init = make_models)
{
    start("--speculation", "off");
    char *first = text(0, GREEDY);
    admin_swapped(DENSE);
    char *dense = text(0, GREEDY);
    admin_swapped(NEXT);
    char *next = text(0, GREEDY);
    expect_text(next, N_CACHED, GREEDY);
    admin_swapped(QWEN35);
    expect_text(first, 0, GREEDY);
    expect_text(first, N_CACHED, GREEDY);
    daemon_stop();
    start("--speculation", "auto");
    expect_text(first, 0, GREEDY);
    expect_text(first, N_CACHED, GREEDY);
    admin_swapped(DENSE);
    expect_text(dense, 0, GREEDY);
    free(first);
    free(dense);
    free(next);
    admin_finish();
}

/* Files that a prompt leaves: its full pages, and the state behind the last, in parts as large as pages. */
static long long n_files(void)
{
    long long page = stat_number("kv.bytes") / stat_number("kv.pages_total");
    long long state = stat_number("kv.states") / (4 + stat_number("kv.snapshots_total"));
    return N_CACHED / 64 + (state + page - 1) / page;
}

static void remove_a_file(const char *dir)
{
    char path[512] = "";
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *f; !path[0] && (f = readdir(d));)
        if (strstr(f->d_name, ".kv"))
            snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
    closedir(d);
    cr_assert_eq(unlink(path), 0, "%s", path);
}

Test(recurrent, a_restart_goes_on_from_the_state_on_the_disk, .init = make_models)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/pages", admin_dir);
    start("--prefix-cache-dir", dir);
    char *first = text(0, GREEDY);
    long long n = n_files();
    cr_assert_gt(n, N_CACHED / 64 + 1);
    wait_stat("prefix_disk.spilled", n);
    daemon_stop();
    start("--prefix-cache-dir", dir);
    expect_text(first, N_CACHED, GREEDY);
    cr_assert_eq(stat_number("prefix_disk.hits"), n);
    expect_text(first, N_CACHED, GREEDY);
    cr_assert_eq(stat_number("prefix_disk.hits"), n);
    json_t *root = ask(",\"temperature\":0,\"n\":2");
    for (size_t i = 0; i < 2; i++)
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), i), "text"), first);
    json_decref(root);
    daemon_stop();
    remove_a_file(dir);
    start("--prefix-cache-dir", dir);
    expect_text(first, 0, GREEDY);
    cr_assert_eq(stat_number("prefix_disk.errors"), 0);
    free(first);
    admin_finish();
}
