/* The prefix cache on disk with the real daemon: a long prompt costs nothing after a restart, its text is the
 * same, and what is broken, foreign or another's is not used. */
#include "integration/harness.h"
#include "gguf/gguf.h"
#include "support/temporary_dir.h"

#include <stdalign.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define N_TOKENS 700 /* of the prompt: 10 full pages before its last token */
#define N_PAGES  10

static char *dir;

/* Token ids, so that the number of pages is known. */
static char *prompt_body(const char *rest)
{
    char *body = malloc(16 * N_TOKENS + 200), *at = body;
    at += sprintf(at, "{\"prompt\":[1");
    for (int i = 1; i < N_TOKENS; i++)
        at += sprintf(at, ",%d", 20 + i * 7 % 200);
    sprintf(at, "],\"temperature\":0,\"max_tokens\":4,\"ignore_eos\":true%s}", rest);
    return body;
}

/* Asks; the text, to free. expected_cached -1: any. */
static char *ask(long long expected_cached)
{
    char *body = prompt_body("");
    json_t *root = generate(body);
    char *text = strdup(json_text(root, "text"));
    cr_assert_eq(json_number(root, "usage.prompt_tokens"), N_TOKENS);
    if (expected_cached >= 0)
        cr_assert_eq(json_number(root, "usage.cached_tokens"), expected_cached);
    json_decref(root);
    free(body);
    return text;
}

static void start(const char *flag, const char *value)
{
    if (!dir)
        dir = temporary_dir();
    daemon_start((const char *[]){"--prefix-cache-dir", dir, flag, value, NULL});
}

static void finish(void)
{
    daemon_stop();
    temporary_dir_remove(dir);
}

/* A daemon computes the prompt, keeps its pages, and ends; its text. */
static char *leave_pages(const char *flag, const char *value)
{
    start(flag, value);
    char *text = ask(0);
    wait_stat("prefix_disk.spilled", N_PAGES);
    daemon_stop();
    return text;
}

static void expect_log(const char *part)
{
    char *log = daemon_read_log();
    cr_assert(strstr(log, part), "\"%s\" should be in\n%s", part, log);
    free(log);
}

static void check_restart(const char *flag, const char *value)
{
    char *first = leave_pages(flag, value);
    start(flag, value);
    cr_assert_eq(stat_number("prefix_disk.pages"), N_PAGES);
    char *again = ask(N_PAGES * 64);
    cr_assert_str_eq(again, first);
    cr_assert_eq(stat_number("prefix_disk.hits"), N_PAGES);
    cr_assert_eq(stat_number("prefix_disk.errors"), 0);
    free(first);
    free(again);
    finish();
}

Test(prefix_disk, a_long_prompt_costs_nothing_after_a_restart_and_its_text_is_the_same)
{
    check_restart("--kv-type", "f16");
}

Test(prefix_disk, so_it_is_with_q8_0_pages)
{
    check_restart("--kv-type", "q8_0");
}

Test(prefix_disk, so_it_is_with_bf16_pages)
{
    check_restart("--kv-type", "bf16");
}

Test(prefix_disk, so_it_is_with_the_eager_executor)
{
    check_restart("--executor", "eager");
}

Test(prefix_disk, another_kv_type_or_model_finds_nothing)
{
    free(leave_pages("--kv-type", "f16"));
    start("--kv-type", "q8_0");
    free(ask(0));
    daemon_stop();
    start("--model", HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf");
    char *body = prompt_body(",\"cache_prompt\":true");
    struct reply r = post("/generate", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert_eq(stat_number("prefix_disk.hits"), 0);
    reply_free(&r);
    free(body);
    finish();
}

/* Returns when the n-th temporary file has been made in the directory that `watch` looks at. */
static void wait_temporary(int watch, int n)
{
    alignas(struct inotify_event) char block[4096];
    while (n > 0) {
        ssize_t got = read(watch, block, sizeof block);
        cr_assert_gt(got, 0);
        for (ssize_t at = 0; at < got;) {
            const struct inotify_event *e = (const void *)(block + at);
            n -= !strncmp(e->name, ".tmp-", 5);
            at += (ssize_t)(sizeof *e + e->len);
        }
    }
}

static void count_temporary(int at, const char *name, void *n)
{
    (void)at;
    *(int *)n += !strncmp(name, ".tmp-", 5);
}

/* A daemon on an empty directory is killed as soon as its n-th page is being written; whether it was before
 * the file had its name. */
static bool die_in_spill(int n)
{
    int n_temporary = 0, watch = inotify_init1(IN_CLOEXEC);
    if (dir)
        temporary_dir_each(dir, temporary_dir_unlink, NULL);
    start(NULL, NULL);
    cr_assert_geq(inotify_add_watch(watch, dir, IN_CREATE), 0);
    char *body = prompt_body("");
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", body);
    wait_temporary(watch, n);
    cr_assert_eq(daemon_end(SIGKILL), 128 + SIGKILL);
    close(fd);
    close(watch);
    free(body);
    temporary_dir_each(dir, count_temporary, &n_temporary);
    cr_assert_leq(n_temporary, 1);
    return n_temporary == 1;
}

Test(prefix_disk, a_daemon_killed_while_it_writes_loses_nothing_else)
{
    for (int n = 1; n < N_PAGES; n += 4) {
        int tries = 1;
        while (!die_in_spill(n))
            cr_assert_lt(tries++, 200, "page %d was never caught half written", n);
        long long n_whole = temporary_dir_count(dir) - 1;
        cr_assert(n_whole >= n - 1 && n_whole < N_PAGES);
        start(NULL, NULL);
        cr_assert_eq(temporary_dir_count(dir), n_whole, "the temporary file stays");
        cr_assert_eq(stat_number("prefix_disk.pages"), n_whole);
        free(ask(n_whole * 64));
        cr_assert_eq(stat_number("prefix_disk.hits"), n_whole);
        cr_assert_eq(stat_number("prefix_disk.errors"), 0);
        daemon_stop();
    }
    finish();
}

/* Restarts until all is whole again: what lies too far behind a broken page is not read, and found later. */
Test(prefix_disk, broken_files_are_named_and_what_they_held_is_computed)
{
    char *first = leave_pages(NULL, NULL);
    temporary_dir_spoil(dir, 0);
    long long hits = 0;
    for (int restart = 0; hits < N_PAGES; restart++) {
        cr_assert_lt(restart, 10);
        start(NULL, NULL);
        char *again = ask(restart ? -1 : 0);
        cr_assert_str_eq(again, first);
        if (restart == 0) {
            expect_log("the checksum is wrong: removed");
            cr_assert_geq(stat_number("prefix_disk.errors"), 1);
        }
        hits = stat_number("prefix_disk.hits");
        wait_stat("prefix_disk.pages", N_PAGES);
        free(again);
        daemon_stop();
    }
    free(first);
    temporary_dir_remove(dir);
}

static json_t *ask_as(const char *key)
{
    char head[300], *body = prompt_body("");
    snprintf(head, sizeof head, "Authorization: Bearer %s\r\n", key);
    struct reply r = client_once(daemon_.port, "POST", "/generate", head, body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    reply_free(&r);
    free(body);
    return root;
}

static long long cached_as(const char *key)
{
    json_t *root = ask_as(key);
    long long n = json_number(root, "usage.cached_tokens");
    json_decref(root);
    return n;
}

Test(prefix_disk, keys_keep_their_pages_apart)
{
    start("--api-keys", "alpha,beta");
    cr_assert_eq(cached_as("alpha"), 0);
    for (long long n = 0; n < N_PAGES;) { /* /stats wants a key too */
        struct reply r = client_once(daemon_.port, "GET", "/stats", "Authorization: Bearer alpha\r\n", NULL);
        json_t *root = reply_json(&r);
        n = json_number(root, "prefix_disk.spilled");
        json_decref(root);
        reply_free(&r);
    }
    daemon_stop();
    start("--api-keys", "alpha,beta");
    cr_assert_eq(cached_as("beta"), 0);
    cr_assert_eq(cached_as("alpha"), N_PAGES * 64);
    finish();
}

/* Byte `at` of a large tensor. */
static void flip_byte_of_embedding(const char *path, size_t at)
{
    struct gguf *g = NULL;
    uint8_t byte;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    const struct gguf_tensor *t = gguf_find_tensor(g, "token_embd.weight");
    cr_assert(t && t->size > 65536 && at < t->size);
    off_t offset = (off_t)(t->offset + at);
    gguf_close(g);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(pread(fd, &byte, 1, offset), 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, offset), 1);
    close(fd);
}

static char *fingerprint(void)
{
    json_t *root = generate("{\"prompt\":[1],\"max_tokens\":1}");
    char *text = strdup(json_text(root, "system_fingerprint"));
    json_decref(root);
    return text;
}

/* A model trained a little further has other weights under the same name, sizes and metadata. */
Test(prefix_disk, pages_of_a_model_that_differs_in_one_weight_are_not_used)
{
    char path[128], command[600];
    dir = temporary_dir();
    snprintf(path, sizeof path, "%s.gguf", dir);
    snprintf(command, sizeof command, "cp %s %s", DEMO_MODEL, path);
    cr_assert_eq(system(command), 0);
    free(leave_pages("--model", path));
    start("--model", path);
    char *before = fingerprint();
    free(ask(N_PAGES * 64));
    daemon_stop();
    flip_byte_of_embedding(path, 5000);
    start("--model", path);
    char *after = fingerprint();
    cr_assert_str_neq(before, after);
    free(ask(0));
    free(before);
    free(after);
    finish();
    unlink(path);
}

Test(prefix_disk, a_directory_that_cannot_be_used_costs_the_cache_alone)
{
    daemon_start((const char *[]){"--prefix-cache-dir", "/proc/hearth", NULL});
    free(ask(0));
    expect_log("the prefix cache is not kept on disk: /proc/hearth");
    struct reply r = get("/stats");
    cr_assert_not_null(strstr(r.body, "\"prefix_disk\":null"));
    reply_free(&r);
    daemon_stop();
}

static void expect_private(int at, const char *name, void *context)
{
    struct stat st;
    (void)context;
    cr_assert_eq(fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW), 0);
    cr_assert_eq(st.st_mode & 07777, 0600, "%s has mode %o", name, st.st_mode & 07777);
}

/* The names of files are hashes of prompts: they can be computed from a guess. */
Test(prefix_disk, no_other_user_can_look_for_a_prompt)
{
    dir = temporary_dir();
    umask(0);
    free(leave_pages("--slots", "2"));
    cr_assert_eq(temporary_dir_each(dir, expect_private, NULL), N_PAGES);
    cr_assert_eq(chmod(dir, 0711), 0);
    start("--slots", "2");
    expect_log("mode 0711 lets others in (chmod 700)");
    free(ask(0));
    cr_assert_eq(chmod(dir, 0700), 0);
    finish();
}

Test(prefix_disk, systemds_state_directory_is_the_default_and_off_is_off)
{
    char inner[64];
    dir = temporary_dir();
    snprintf(inner, sizeof inner, "%s/prefix", dir);
    setenv("STATE_DIRECTORY", dir, 1);
    daemon_start(NULL);
    expect_log(inner);
    cr_assert_eq(stat_number("prefix_disk.pages"), 0);
    struct reply r = get("/metrics");
    cr_assert_not_null(strstr(r.body, "\nhearth_prefix_disk_spilled_total 0\n"));
    reply_free(&r);
    daemon_stop();
    rmdir(inner);
    daemon_start((const char *[]){"--prefix-cache-disk", "off", NULL});
    cr_assert_eq(access(inner, F_OK), -1);
    finish();
}

Test(prefix_disk, the_budget_holds)
{
    start("--prefix-cache-disk", "1M");
    free(ask(0));
    wait_stat("prefix_disk.spilled", N_PAGES);
    cr_assert_leq(stat_number("prefix_disk.bytes"), 1 << 20);
    cr_assert_lt(stat_number("prefix_disk.pages"), N_PAGES);
    cr_assert_gt(stat_number("prefix_disk.pages"), 0);
    finish();
}

/* Sends signals until the daemon has ended by itself; its exit code. */
static int end_under_signals(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    pid_t pid = daemon_.pid;
    int status = 0, sent = 0;
    daemon_.pid = 0;
    do {
        cr_assert_lt(sent, 60000, "it does not end");
        kill(pid, sent ? numbers[sent % 3] : SIGTERM);
        usleep(1000);
        sent++;
    } while (waitpid(pid, &status, WNOHANG) == 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The last pages are written while the model is closed, and signals that come meanwhile are handled after it.
 */
Test(prefix_disk, signals_that_come_while_the_model_is_closed_use_nothing_that_is_freed)
{
    setenv("MALLOC_PERTURB_", "165", 1);
    for (int round = 0; round < 3; round++) {
        start("--prefix-cache-disk", "1G");
        free(ask(-1));
        int code = end_under_signals();
        char *log = daemon_read_log();
        cr_assert_eq(code, 0, "exit code %d\n%s", code, log);
        cr_assert_not_null(strstr(log, "bye"), "%s", log);
        free(log);
    }
    temporary_dir_remove(dir);
}
