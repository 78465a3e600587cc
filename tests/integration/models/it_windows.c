/* Models whose layers see the last tokens alone, through the real daemon: with a long context these layers
 * keep what their windows cover, and the texts are those of a short context, where every layer keeps all:
 * after a prefix hit, for each of several choices, with drafts, after a client has left, another model, and a
 * restart. */
#include "integration/admin.h"

#include <dirent.h>
#include <sys/stat.h>

#define GEMMA "gemma3.gguf"
#define OSS   "gpt-oss.gguf"
#define PHI   "phi3.gguf" /* every layer has a window */

#define SHORT "1152" /* the longest prompt and its text; no more than window and steps cover */
#define LONG  "4096"

static void start(const char *model, const char *n_ctx, const char *flag, const char *value)
{
    char path[128], key[128];
    snprintf(path, sizeof path, "%s/%s", admin_dir, model);
    snprintf(key, sizeof key, "%s/key", admin_dir);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", path, "--slots", "3", "--n-ctx", n_ctx,
                                  flag, value, NULL});
}

static void make_models(void)
{
    (void)admin_open();
    admin_make_model("tiny-gemma3", GEMMA, 4096);
    admin_make_model("tiny-gpt-oss", OSS, 4096);
    admin_make_model("tiny-phi3", PHI, 4096);
}

#define N_PROMPT 900
#define N_CACHED 896 /* of them: full pages before the last token */

/* A prompt of n ids, `salt` apart, with further fields. */
static char *body_of(int n, int salt, const char *fields)
{
    size_t room = (size_t)n * 12 + 400;
    char *body = malloc(room), *at = body;
    cr_assert_not_null(body);
    at += sprintf(at, "{\"prompt\":[1");
    for (int i = 1; i < n; i++)
        at += sprintf(at, ",%d", 20 + (i * 7 + salt * 31) % 200);
    snprintf(at, room - (size_t)(at - body), "],\"ignore_eos\":true%s}", fields);
    return body;
}

static json_t *ask(int n, int salt, const char *fields)
{
    char *body = body_of(n, salt, fields);
    json_t *root = generate(body);
    free(body);
    return root;
}

/* Its text, to free; expects so many of its tokens in the cache, unless -1. */
static char *text(long long n_cached, const char *fields)
{
    json_t *root = ask(N_PROMPT, 0, fields);
    if (n_cached >= 0)
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

#define GREEDY ",\"max_tokens\":150,\"temperature\":0"
#define ALONE  GREEDY ",\"cache_prompt\":false"
#define NOISY  ",\"max_tokens\":150,\"temperature\":1,\"seed\":5"

/* Texts of a daemon whose layers all keep everything. */
static char *greedy, *noisy;

static void know_texts(const char *model)
{
    start(model, SHORT, NULL, NULL);
    cr_assert_eq(stat_number("kv.window_pages"), 0);
    greedy = text(0, ALONE);
    noisy = text(0, NOISY ",\"cache_prompt\":false");
    daemon_stop();
}

static void forget_texts(void)
{
    free(greedy);
    free(noisy);
}

static void texts_are_the_same(const char *model)
{
    know_texts(model);
    start(model, LONG, NULL, NULL);
    cr_assert_gt(stat_number("kv.window_pages"), 3 * 16);
    cr_assert_lt(stat_number("kv.window_pages"), 3 * 4096 / 64 / 2,
                 "a window is far shorter than the context");
    expect_text(greedy, 0, ALONE);
    expect_text(greedy, 0, GREEDY);
    cr_assert_gt(stat_number("kv.window_pages_cached"), 0);
    cr_assert_eq(metric("hearth_kv_window_pages"), stat_number("kv.window_pages"));
    cr_assert_eq(metric("hearth_kv_window_pages_cached"), stat_number("kv.window_pages_cached"));
    expect_text(greedy, N_CACHED, GREEDY);
    expect_text(noisy, N_CACHED, NOISY);
    forget_texts();
}

Test(windows, texts_of_gemma_are_those_of_whole_caches, .init = make_models)
{
    texts_are_the_same(GEMMA);
    admin_finish();
}

Test(windows, texts_of_gpt_oss_are_those_of_whole_caches, .init = make_models)
{
    texts_are_the_same(OSS);
    admin_finish();
}

Test(windows, texts_of_phi_are_those_of_whole_caches, .init = make_models)
{
    texts_are_the_same(PHI);
    admin_finish();
}

static void choices_share_a_window(const char *model)
{
    know_texts(model);
    start(model, LONG, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        json_t *root = ask(N_PROMPT, 0, NOISY ",\"n\":3");
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), 0), "text"), noisy);
        json_decref(root);
    }
    for (int i = 1; i < 3; i++) {
        char fields[100];
        json_t *root = ask(N_PROMPT, 0, NOISY ",\"n\":3,\"cache_prompt\":false");
        snprintf(fields, sizeof fields,
                 ",\"max_tokens\":150,\"temperature\":1,\"cache_prompt\":false,\"seed\":%d", 5 + i);
        char *alone = text(0, fields);
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), (size_t)i), "text"), alone);
        free(alone);
        json_decref(root);
    }
    forget_texts();
}

Test(windows, choices_share_the_window_of_their_prompt, .init = make_models)
{
    choices_share_a_window(GEMMA);
    daemon_stop();
    choices_share_a_window(PHI);
    admin_finish();
}

/* Long texts take the window pages that earlier ones have left, a client leaves, and another model runs. */
Test(windows, no_use_of_the_cache_changes_a_text, .init = make_models)
{
    know_texts(GEMMA);
    start(GEMMA, LONG, "--speculation", "auto");
    expect_text(greedy, 0, GREEDY);
    for (int salt = 1; salt <= 4; salt++)
        json_decref(ask(3500, salt, ",\"max_tokens\":200,\"temperature\":0"));
    cr_assert_eq(stat_number("kv.window_pages_used"), 0);
    char *body = body_of(3000, 9, ",\"max_tokens\":1000,\"stream\":true,\"temperature\":0");
    struct reply r = {0};
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", body);
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd));
    expect_text(noisy, -1, NOISY); /* beside it */
    reply_free(&r);
    close(fd);
    free(body);
    wait_stat("requests.running", 0);
    cr_assert_eq(stat_number("kv.window_pages_used"), 0);
    expect_text(greedy, -1, GREEDY);
    expect_text(greedy, N_CACHED, GREEDY);
    admin_swapped(OSS);
    free(text(0, GREEDY));
    admin_swapped(GEMMA);
    expect_text(greedy, 0, GREEDY);
    forget_texts();
    admin_finish();
}

/* The number of the directory's pages of at least `size` bytes; *largest: the size of the largest. */
static int n_files(const char *dir, long long size, long long *largest)
{
    int n = 0;
    DIR *d = opendir(dir);
    cr_assert_not_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        struct stat st;
        if (!strstr(f->d_name, ".kv") || fstatat(dirfd(d), f->d_name, &st, 0) < 0)
            continue;
        n += st.st_size >= size;
        *largest = st.st_size > *largest ? st.st_size : *largest;
    }
    closedir(d);
    return n;
}

/* The first pages have left the window of a long prompt, which has taken their window pages again: they are
 * written without, and the prompt begins behind its last page all the same. */
static void goes_on_from_the_disk(const char *model)
{
    char dir[128];
    snprintf(dir, sizeof dir, "%s/pages-%s", admin_dir, model);
    start(model, LONG, "--prefix-cache-dir", dir);
    json_t *root = ask(3900, 3, ",\"max_tokens\":12,\"temperature\":0");
    char *first = strdup(json_text(root, "text"));
    json_decref(root);
    wait_stat("prefix_disk.spilled", (3900 + 12) / 64);
    daemon_stop();
    long long whole = 0;
    cr_assert_eq(n_files(dir, 0, &whole), (3900 + 12) / 64);
    cr_assert_lt(n_files(dir, whole, &whole), (3900 + 12) / 64);
    start(model, LONG, "--prefix-cache-dir", dir);
    root = ask(3900, 3, ",\"max_tokens\":12,\"temperature\":0");
    cr_assert_str_eq(json_text(root, "text"), first);
    cr_assert_eq(json_number(root, "usage.cached_tokens"), 3899 / 64 * 64);
    json_decref(root);
    cr_assert_eq(stat_number("prefix_disk.errors"), 0);
    free(first);
    daemon_stop();
}

Test(windows, a_restart_goes_on_from_pages_on_the_disk, .init = make_models)
{
    goes_on_from_the_disk(GEMMA);
    goes_on_from_the_disk(PHI);
    admin_close();
}
