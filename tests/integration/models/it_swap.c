/* Another model in place of the one that serves, without a restart: what begins and ends on which, what is
 * not reused, what cannot be loaded, and a model that is put away and fetched back. */
#include "integration/admin.h"
#include "integration/starved.h"

#define Q4    "tiny-qwen3-s11-q4_k_m.gguf"
#define Q8    "tiny-qwen3-s11-q8_0.gguf" /* the same weights and vocabulary, other bits */
#define LLAMA "tiny-llama3-s15-q4_k_m.gguf"
#define DATA  HEARTH_TEST_DATA "/"

static void start(const char *model, const char *flag, const char *value)
{
    daemon_start((const char *[]){"--admin-key-file", admin_open(), "--model", model, "--slots", "4",
                                  "--queue-limit", "8", flag, value, NULL});
}

#define STORY "{\"prompt\":[1,22,29,36,43],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":"

/* Member `path` of a short greedy reply, to free. */
static char *ask(const char *path)
{
    json_t *root = generate(STORY "24}");
    char *text = strdup(json_text(root, path));
    json_decref(root);
    return text;
}

/* Starts with such a model and a stream on it that goes on for seconds; its socket. */
static int begin_long_stream(struct reply *r)
{
    const char *key = admin_open();
    daemon_start((const char *[]){"--admin-key-file", key, "--model",
                                  admin_make_model("tiny-llama3", "long.gguf", 16384), "--n-ctx", "16384",
                                  "--slots", "1", "--kv-memory", "100M", NULL});
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "X-Request-Id: long\r\n", STORY "16000,\"stream\":true}");
    *r = (struct reply){0};
    while (!r->raw || !strstr(r->raw, "data: "))
        cr_assert(reply_more(r, fd));
    return fd;
}

/* ---- a swap ---- */

Test(swap, everything_switches_together)
{
    start(DATA Q4, NULL, NULL);
    char *first = ask("text"), *print = ask("system_fingerprint");
    expect_stat("model.quantization", "Q4_K_M");
    admin_swapped(Q8);
    expect_stat("model.quantization", "Q8_0");
    char *second = ask("text"), *other = ask("system_fingerprint");
    cr_assert_str_neq(print, other);
    long long tokens = stat_number("tokens.generated");
    admin_swapped(LLAMA);
    expect_stat("model.arch", "llama");
    cr_assert_eq(stat_number("tokens.generated"), tokens, "what was counted goes on counting");
    cr_assert_eq(stat_number("decoder.launches"), 1);
    json_t *root = generate(STORY "24}");
    struct reply r = get("/v1/models");
    cr_assert(strstr(r.body, json_text(root, "model")), "%s", r.body);
    reply_free(&r);
    json_decref(root);
    admin_swapped(Q4);
    char *again = ask("text"), *print_again = ask("system_fingerprint");
    cr_assert_str_eq(again, first);
    cr_assert_str_eq(print_again, print);
    daemon_stop();
    daemon_start((const char *[]){"--model", DATA Q8, NULL});
    char *alone = ask("text");
    cr_assert_str_eq(alone, second);
    daemon_stop();
    admin_close();
    free(first);
    free(print);
    free(second);
    free(other);
    free(again);
    free(print_again);
    free(alone);
}

static void expect_tokens(const char *ids)
{
    struct reply r = post("/tokenize", "{\"content\":\"Hello\"}");
    cr_assert(strstr(r.body, ids), "%s", r.body);
    reply_free(&r);
}

/* The tokens of a chat's prompt. */
static long long chat_tokens(const char *model)
{
    struct reply r = post("/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    long long n = json_number(root, "usage.prompt_tokens");
    cr_assert_str_eq(json_text(root, "model"), model);
    json_decref(root);
    reply_free(&r);
    return n;
}

Test(swap, tokenizer_and_chat_template_are_the_new_models)
{
    start(DEMO_MODEL, "--model-dir", HEARTH_TEST_DATA);
    expect_tokens("[999]");
    long long before = chat_tokens("Hearth Stories 6M");
    admin_swapped(LLAMA);
    expect_tokens("[72,101,108,108,111]");
    cr_assert_neq(chat_tokens("random-tiny-llama3"), before);
    admin_finish();
}

Test(swap, what_runs_ends_on_the_old_model_and_what_comes_begins_on_the_new_one)
{
    struct reply r;
    int fd = begin_long_stream(&r);
    admin_copy(DATA Q4, "next.gguf", SIZE_MAX);
    admin_expect(admin_swap("next.gguf"), 202);
    while (!admin_is("model", "next.gguf"))
        usleep(5000);
    json_t *root = generate(STORY "8}");
    struct reply models = get("/v1/models");
    cr_assert(strstr(models.body, json_text(root, "model")), "%s", models.body);
    reply_free(&models);
    json_decref(root);
    struct reply h = get("/health/ready");
    cr_assert_str_eq(h.body, "{\"status\":\"ready\"}\n");
    reply_free(&h);
    admin_expect(client_once(daemon_.port, "DELETE", "/requests/long", ADMIN_KEY, NULL), 202);
    while (reply_more(&r, fd))
        if (strstr(r.raw, "[DONE]"))
            break;
    cr_assert_not_null(strstr(r.raw, "\"finish_reason\":"), "the stream has an end of its own");
    reply_free(&r);
    close(fd);
    admin_wait("idle");
    wait_stat("requests.running", 0);
    admin_finish();
}

/* The one slot is taken: a second request waits, and is answered by the model it was accepted for. */
Test(swap, what_waits_is_answered_by_the_model_it_came_for)
{
    struct reply r, waiting;
    int fd = begin_long_stream(&r), second = client_connect(daemon_.port);
    struct reply models = get("/v1/models");
    json_t *list = reply_json(&models);
    client_request(second, "POST", "/generate", "", STORY "4}");
    wait_stat("requests.waiting", 1);
    admin_copy(DATA Q4, "next.gguf", SIZE_MAX);
    admin_expect(admin_swap("next.gguf"), 202);
    while (!admin_is("model", "next.gguf"))
        usleep(5000);
    admin_expect(client_once(daemon_.port, "DELETE", "/requests/long", ADMIN_KEY, NULL), 202);
    client_read(second, &waiting, false);
    cr_assert_eq(waiting.status, 200, "%s", waiting.body);
    json_t *root = reply_json(&waiting);
    cr_assert_str_eq(json_text(root, "model"), json_text(list, "data.0.id"));
    json_decref(root);
    json_decref(list);
    reply_free(&models);
    reply_free(&waiting);
    reply_free(&r);
    close(fd);
    close(second);
    admin_wait("idle");
    admin_finish();
}

/* ---- who, and which ---- */

Test(swap, only_the_admin_key_may)
{
    start(DATA Q4, NULL, NULL);
    expect_words(post("/admin/model", "{\"model\":\"" Q8 "\"}"), 401, "unauthorized", "needs the admin key");
    expect_words(get("/admin/model"), 401, "unauthorized", "needs the admin key");
    expect_words(post("/admin/suspend", "{}"), 401, "unauthorized", "needs the admin key");
    admin_finish();
    daemon_start(NULL);
    expect_words(get("/admin/model"), 401, "unauthorized", "admin_key_file is not set");
    daemon_stop();
}

Test(swap, nothing_outside_of_model_dir_is_found)
{
    char path[200];
    const char *const words[] = {
        "../key",    "/etc/passwd", "out", "out/passwd", "sub/../../x.gguf", "no-such.gguf", "sub",
        "fifo.gguf", ".",           "/",   DATA Q4,      "link-out.gguf",    "./../key"};
    const char *key = admin_open();
    snprintf(path, sizeof path, "%s/models", admin_dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    admin_copy(DATA Q4, "models/a.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--admin-key-file", key, "--model-dir", path, NULL});
    snprintf(path, sizeof path, "%s/models/out", admin_dir);
    cr_assert_eq(symlink("/etc", path), 0);
    snprintf(path, sizeof path, "%s/models/link-out.gguf", admin_dir);
    cr_assert_eq(symlink(DATA Q4, path), 0);
    snprintf(path, sizeof path, "%s/models/fifo.gguf", admin_dir);
    cr_assert_eq(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/models/sub", admin_dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        expect_words(admin_swap(words[i]), 404, "not_found", "no model ");
    expect_words(admin_swap("b.gguf"), 404, "not_found", "the nearest name is a.gguf");
    expect_words(admin_post("/admin/model", "{}"), 400, "invalid_request", "model is missing");
    expect_words(admin_post("/admin/model", "{\"model\":7}"), 400, "invalid_request", "model must be");
    expect_words(admin_post("/admin/model", "{\"path\":\"a.gguf\"}"), 400, "invalid_request", "path");
    snprintf(path, sizeof path, "%s/models/link-in.gguf", admin_dir);
    cr_assert_eq(symlink("a.gguf", path), 0);
    admin_expect(admin_swap("link-in.gguf"), 202);
    admin_wait("idle");
    cr_assert(admin_is("model", "a.gguf"));
    snprintf(path, sizeof path, "%s/models/a.gguf", admin_dir);
    admin_swapped("a.gguf");
    admin_expect(admin_swap(path), 202);
    admin_wait("idle");
    daemon_stop();
    snprintf(path, sizeof path, "rm -r %s", admin_dir);
    cr_assert_eq(system(path), 0);
}

Test(swap, the_model_of_the_start_comes_back_from_wherever_it_lies)
{
    char path[200], words[200];
    const char *key = admin_open();
    snprintf(path, sizeof path, "%s/models", admin_dir);
    cr_assert_eq(mkdir(path, 0700), 0);
    admin_copy(DATA Q4, "models/a.gguf", SIZE_MAX);
    const char *first = admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    admin_copy(DATA Q4, "other.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", first, "--model-dir", path, NULL});
    cr_assert(admin_is("model", first));
    admin_swapped("a.gguf");
    snprintf(words, sizeof words, "%s/other.gguf", admin_dir); /* beside it, and still not to be had */
    expect_words(admin_swap(words), 404, "not_found", "no model ");
    expect_words(admin_swap("first.gguf"), 404, "not_found", "no model ");
    admin_swapped(first);
    daemon_stop();
    snprintf(path, sizeof path, "rm -r %s", admin_dir);
    cr_assert_eq(system(path), 0);
}

Test(swap, the_second_of_two_at_once_is_a_conflict)
{
    struct reply r;
    int fd = begin_long_stream(&r);
    admin_copy(DATA Q4, "next.gguf", SIZE_MAX);
    admin_expect(admin_swap("next.gguf"), 202);
    /* Loading, and then as long as the old model has a request. */
    expect_words(admin_swap("next.gguf"), 409, "conflict", "model");
    while (!admin_is("model", "next.gguf"))
        usleep(5000);
    expect_words(admin_swap("next.gguf"), 409, "conflict", "still run");
    expect_words(admin_post("/admin/suspend", ""), 409, "conflict", "still run");
    close(fd);
    reply_free(&r);
    admin_wait("idle");
    admin_swapped("long.gguf");
    admin_finish();
}

/* ---- what cannot be loaded ---- */

Test(swap, a_file_that_is_no_model_costs_nothing)
{
    const char *key = admin_open();
    admin_copy(DATA Q4, "good.gguf", SIZE_MAX);
    admin_copy(DATA Q4, "short.gguf", 100000);
    admin_copy(DATA Q4, "cut.gguf", 1000000);
    admin_copy(DATA "once-upon-a-time.txt", "text.gguf", SIZE_MAX);
    admin_copy(DATA Q4, "empty.gguf", 0);
    admin_copy(DATA Q4, "mine.gguf", SIZE_MAX);
    char path[128];
    snprintf(path, sizeof path, "%s/good.gguf", admin_dir);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", path, NULL});
    char *before = ask("text");
    admin_not_swapped("short.gguf", "short.gguf");
    admin_not_swapped("cut.gguf", "cut off");
    admin_not_swapped("text.gguf", "text.gguf");
    admin_not_swapped("empty.gguf", "empty.gguf");
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    cr_assert(admin_is("model", "good.gguf"));
    struct reply r = get("/metrics");
    cr_assert(strstr(r.body, "hearth_model_swaps_total{outcome=\"failed\"} 4"), "%s", r.body);
    reply_free(&r);
    admin_swapped("mine.gguf");
    free(before);
    free(after);
    admin_finish();
}

/* The pages that a mapped file lacks are SIGBUS to their reader: the file is read instead. */
Test(swap, a_file_that_is_cut_short_while_it_is_loaded_costs_nothing, .timeout = 600)
{
    const char *key = admin_open();
    const char *first = admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", first, NULL});
    char *before = ask("text");
    int n_cut = 0;
    for (int round = 0; round < 200 && n_cut < 5; round++) {
        const char *path = admin_copy(DEMO_MODEL, "next.gguf", SIZE_MAX);
        admin_expect(admin_swap("next.gguf"), 202);
        usleep(250 * (useconds_t)(round % 40));
        cr_assert_eq(truncate(path, 0), 0);
        admin_wait("idle");
        char *error = admin_text("last.error");
        n_cut += strstr(error, "next.gguf") && strstr(error, "while it was read");
        free(error);
        if (!admin_is("model", "first.gguf")) /* it was loaded whole: once more */
            admin_swapped("first.gguf");
    }
    cr_assert_geq(n_cut, 5);
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    free(before);
    free(after);
    admin_finish();
}

static void check_file_of_serving_model(const char *executor, const char *arithmetic)
{
    const char *key = admin_open(), *path = admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", path, "--executor", executor,
                                  "--arithmetic", arithmetic, "--slots", "2", NULL});
    char *before = ask("text");
    admin_copy(DATA LLAMA, "first.gguf", SIZE_MAX); /* another model, in place */
    char *replaced = ask("text");
    cr_assert_eq(truncate(path, 0), 0);
    char *cut = ask("text"), *print = ask("system_fingerprint");
    cr_assert_str_eq(before, replaced);
    cr_assert_str_eq(before, cut);
    expect_tokens("[72,101,108,108,111]");
    chat_tokens("random-tiny-qwen3");
    expect_stat("model.quantization", "Q4_K_M");
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    admin_expect(admin_post("/admin/resume", ""), 202);
    admin_wait("idle");
    char *error = admin_text("last.error");
    cr_assert(strstr(error, "first.gguf: the file is empty"), "%s", error);
    admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    admin_expect(admin_post("/admin/resume", ""), 202);
    admin_wait("idle");
    char *again = ask("text"), *print_again = ask("system_fingerprint");
    cr_assert_str_eq(before, again);
    cr_assert_str_eq(print, print_again);
    free(before);
    free(replaced);
    free(cut);
    free(print);
    free(error);
    free(again);
    free(print_again);
    admin_finish();
}

Test(swap, a_model_that_is_loaded_needs_its_file_no_longer)
{
    check_file_of_serving_model("persistent", "int8");
}

Test(swap, nor_does_the_oracle)
{
    check_file_of_serving_model("eager", "exact");
}

/* 192 MiB of KV cache, beside which there is room for 64. */
static void start_without_room(void)
{
    const char *key = admin_open();
    const char *first = admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    admin_copy(DATA Q8, "second.gguf", SIZE_MAX);
    admin_make_model("tiny-qwen3-deep", "large.gguf", 16384);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", first, "--slots", "64", NULL});
    cr_assert_geq(stat_number("kv.bytes"), 190 << 20);
    admin_limit_memory(64 << 20);
}

Test(swap, where_both_do_not_fit_the_old_model_goes_first)
{
    start_without_room();
    admin_swapped("second.gguf");
    expect_stat("model.quantization", "Q8_0");
    char *log = daemon_read_log();
    cr_assert(strstr(log, "not enough memory beside"), "%s", log);
    free(log);
    free(ask("text"));
    admin_finish();
}

Test(swap, a_model_that_does_not_fit_at_all_brings_the_old_one_back)
{
    start_without_room();
    char *before = ask("text");
    admin_not_swapped("large.gguf", "");
    char *after = ask("text"), *log = daemon_read_log();
    cr_assert(strstr(log, "restoring"), "%s", log);
    cr_assert_str_eq(before, after);
    cr_assert(admin_is("model", "first.gguf"));
    free(before);
    free(after);
    free(log);
    admin_finish();
}

/* ---- the prefix cache ---- */

/* Returns the cached part of a prompt of 401 tokens on this model. */
static long long cached(void)
{
    char body[4096], *at = body + sprintf(body, "{\"prompt\":[1");
    for (int i = 0; i < 400; i++)
        at += sprintf(at, ",%d", 20 + i * 7 % 200);
    sprintf(at, "],\"temperature\":0,\"max_tokens\":1}");
    json_t *root = generate(body);
    long long n = json_number(root, "usage.cached_tokens");
    json_decref(root);
    return n;
}

Test(swap, no_page_of_another_model_is_used_neither_from_memory_nor_from_disk)
{
    char dir[128];
    const char *key = admin_open();
    snprintf(dir, sizeof dir, "%s/pages", admin_dir);
    daemon_start(
        (const char *[]){"--admin-key-file", key, "--model", DATA Q4, "--prefix-cache-dir", dir, NULL});
    cr_assert_eq(cached(), 0);
    cr_assert_eq(cached(), 384);
    wait_stat("prefix_disk.spilled", 6);
    admin_swapped(Q8);
    cr_assert_eq(cached(), 0);
    cr_assert_eq(cached(), 384);
    wait_stat("prefix_disk.spilled", 6);
    admin_swapped(Q4);
    cr_assert_eq(stat_number("prefix_disk.hits"), 0);
    cr_assert_eq(cached(), 384);
    cr_assert_eq(stat_number("prefix_disk.hits"), 6);
    daemon_stop();
    snprintf(dir, sizeof dir, "rm -r %s", admin_dir);
    cr_assert_eq(system(dir), 0);
}

/* ---- the process ends meanwhile ---- */

/* A first signal, and when the drain has begun a second, which cancels the stream: it ends in order. */
static void expect_orderly_end(int fd, struct reply *r)
{
    kill(daemon_.pid, SIGTERM);
    for (int status = 200; status && status != 404;) {
        struct reply h = get("/health/proxy");
        status = h.status;
        reply_free(&h);
    }
    int code = daemon_end(SIGTERM);
    while (reply_more(r, fd))
        ;
    cr_assert_eq(code, 0);
    cr_assert_not_null(strstr(r->raw, "[DONE]"), "an orderly end");
    reply_free(r);
    close(fd);
    admin_close();
}

/* ---- a file system that does not answer ---- */

/* Returns the connection whose swap waits for its file. */
static int begin_hung_swap(void)
{
    const char *key = admin_open();
    admin_copy(DATA Q8, "next.gguf", SIZE_MAX);
    starved_start(
        (const char *[]){"--admin-key-file", key, "--model", admin_copy(DATA Q4, Q4, SIZE_MAX), NULL});
    starve->paths_hang = true;
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/admin/model", ADMIN_KEY, "{\"model\":\"next.gguf\"}");
    while (!starve->n_paths_hung)
        usleep(5000);
    return fd;
}

Test(swap, a_directory_that_does_not_answer_delays_the_swap_alone)
{
    int fd = begin_hung_swap();
    free(ask("text"));
    char text[8100];
    snprintf(text, sizeof text, "{\"content\":\"%08000d\"}", 0); /* on the pool */
    admin_expect(post("/tokenize", text), 200);
    starve->paths_hang = false;
    struct reply r = {0};
    client_read(fd, &r, false);
    admin_expect(r, 202);
    close(fd);
    admin_wait("idle");
    char *now = admin_text("model");
    cr_assert_str_eq(now, "next.gguf");
    free(now);
    admin_finish();
}

/* Its client has left by then. */
Test(swap, one_that_nobody_waits_for_is_not_begun)
{
    int fd = begin_hung_swap();
    close(fd);
    wait_connections(1);
    starve->paths_hang = false;
    admin_expect(admin_swap("none.gguf"), 404);
    char *now = admin_text("model");
    cr_assert_str_eq(now, Q4);
    free(now);
    admin_finish();
}

Test(swap, sigterm_while_a_model_is_loaded_leaves_in_order)
{
    struct reply r;
    int fd = begin_long_stream(&r);
    admin_copy(DEMO_MODEL, "next.gguf", SIZE_MAX);
    admin_expect(admin_swap("next.gguf"), 202);
    expect_orderly_end(fd, &r);
}

Test(swap, sigterm_while_the_old_models_requests_end_leaves_in_order)
{
    struct reply r;
    int fd = begin_long_stream(&r);
    admin_copy(DATA Q4, "next.gguf", SIZE_MAX);
    admin_expect(admin_swap("next.gguf"), 202);
    while (!admin_is("model", "next.gguf"))
        usleep(5000);
    expect_orderly_end(fd, &r);
}

Test(swap, sigterm_while_nothing_serves_leaves_in_order)
{
    start_without_room();
    admin_expect(admin_swap("second.gguf"), 202);
    cr_assert_eq(daemon_end(SIGTERM), 0);
    admin_close();
}

/* ---- put away ---- */

Test(suspend, memory_is_free_and_the_same_tokens_come_after)
{
    const char *key = admin_open();
    daemon_start((const char *[]){"--admin-key-file", key, NULL});
    char *before = ask("text");
    long long held = metric("hearth_process_anonymous_bytes");
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    struct reply r = get("/health/ready");
    cr_assert_eq(r.status, 503);
    cr_assert_str_eq(r.body, "{\"status\":\"suspended\"}\n");
    reply_free(&r);
    expect_words(post("/generate", STORY "4}"), 503, "suspended", "is suspended");
    expect_words(get("/v1/models"), 503, "suspended", "is suspended");
    expect_words(post("/tokenize", "{\"content\":\"x\"}"), 503, "suspended", "is suspended");
    expect_stat("state", "suspended");
    long long left = metric("hearth_process_anonymous_bytes");
    cr_assert_lt(left, held - (3 << 20), "%lld bytes with a model, %lld without", held, left);
    admin_expect(admin_post("/admin/suspend", ""), 200);
    admin_expect(admin_post("/admin/resume", ""), 202);
    admin_wait("idle");
    admin_expect(admin_post("/admin/resume", ""), 200);
    char *after = ask("text");
    cr_assert_str_eq(before, after);
    free(before);
    free(after);
    admin_finish();
}

Test(suspend, what_runs_may_finish_and_what_waits_is_refused)
{
    struct reply r, waiting;
    int fd = begin_long_stream(&r), second = client_connect(daemon_.port);
    client_request(second, "POST", "/generate", "", STORY "4}");
    wait_stat("requests.waiting", 1);
    admin_expect(admin_post("/admin/suspend", ""), 202);
    client_read(second, &waiting, false);
    expect_words(waiting, 503, "suspended", "is suspended");
    cr_assert(admin_is("state", "draining"));
    expect_words(post("/generate", STORY "4}"), 503, "suspended", "is suspended");
    admin_expect(client_once(daemon_.port, "DELETE", "/requests/long", ADMIN_KEY, NULL), 202);
    while (reply_more(&r, fd))
        if (strstr(r.raw, "[DONE]"))
            break;
    cr_assert_not_null(strstr(r.raw, "[DONE]"));
    reply_free(&r);
    close(fd);
    close(second);
    admin_wait("idle");
    admin_finish(); /* with nothing loaded */
}

Test(suspend, another_model_may_come_instead_and_a_broken_one_changes_nothing)
{
    const char *key = admin_open();
    const char *first = admin_copy(DATA Q4, "first.gguf", SIZE_MAX);
    admin_copy(DATA Q8, "second.gguf", SIZE_MAX);
    admin_copy(DATA Q4, "cut.gguf", 1000000);
    daemon_start((const char *[]){"--admin-key-file", key, "--model", first, NULL});
    admin_expect(admin_post("/admin/suspend", ""), 202);
    admin_wait("idle");
    admin_not_swapped("cut.gguf", "cut off");
    expect_stat("state", "suspended");
    admin_swapped("second.gguf");
    expect_stat("state", "ready");
    free(ask("text"));
    admin_finish();
}
