/* Several models of one directory: a request names its model, which is loaded beside the others or in their
 * place, and goes again; what names none, what is no model, and what ends while requests wait for one. */
#include "integration/admin.h"

#define QWEN  HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"
#define LLAMA HEARTH_TEST_DATA "/tiny-llama3-s15-q4_k_m.gguf"

#define STORY(model, rest)                                                                                   \
    "{\"model\":\"" model "\",\"prompt\":[1,22,29,36,43],\"temperature\":0,\"ignore_eos\":true" rest "}"
#define CHAT(model)                                                                                          \
    "{\"model\":\"" model "\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}"

/* A daemon with models a and b in admin_dir, and b's file cut short as broken. */
static void start(const char *flag, const char *value)
{
    admin_open();
    admin_copy(QWEN, "a.gguf", SIZE_MAX);
    admin_copy(LLAMA, "b.gguf", SIZE_MAX);
    admin_copy(LLAMA, "broken.gguf", 100000);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--slots", "4", "--queue-limit", "8",
                                  flag, value, NULL});
}

/* Member `path` of a reply of /generate, to free. */
static char *ask(const char *body, const char *path)
{
    json_t *root = generate(body);
    char *text = strdup(json_text(root, path));
    json_decref(root);
    return text;
}

static void expect_reply(const char *path, const char *body, int status, const char *part)
{
    struct reply r = post(path, body);
    cr_assert_eq(r.status, status, "%d: %s", r.status, r.body);
    cr_assert(strstr(r.body, part), "%s lacks %s", r.body, part);
    reply_free(&r);
}

static void expect_get(const char *path, const char *part)
{
    struct reply r = get(path);
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    cr_assert(strstr(r.body, part), "%s lacks %s", r.body, part);
    reply_free(&r);
}

/* The state that /stats shows of a model; "" where it is not listed. */
static void read_state(const char *model, char out[32])
{
    struct reply r = get("/stats");
    json_t *root = reply_json(&r), *list = json_object_get(root, "models");
    out[0] = '\0';
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_text(json_array_get(list, i), "name"), model))
            snprintf(out, 32, "%s", json_text(json_array_get(list, i), "state"));
    json_decref(root);
    reply_free(&r);
}

static void wait_state(const char *model, const char *state)
{
    char now[32] = "";
    for (int left = 12000; strcmp(now, state); left--) {
        cr_assert_gt(left, 0, "%s is %s, never %s", model, now, state);
        usleep(5000);
        read_state(model, now);
    }
}

/* Waits until so many requests wait for their models. */
static void wait_loading(size_t n)
{
    for (int left = 12000;; left--) {
        struct reply r = get("/requests");
        size_t found = 0;
        for (const char *at = r.body; (at = strstr(at, "\"state\":\"loading\"")); at++)
            found++;
        reply_free(&r);
        if (found == n)
            return;
        cr_assert_gt(left, 0, "%zu requests wait for models, not %zu", found, n);
        usleep(5000);
    }
}

/* ---- names ---- */

Test(models, a_request_runs_on_the_model_it_names)
{
    daemon_start((const char *[]){"--model", LLAMA, NULL});
    char *alone = ask(STORY("x", ",\"max_tokens\":24"), "text");
    daemon_stop();
    start(NULL, NULL);
    char *first =
        ask("{\"prompt\":[1,22,29,36,43],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":24}", "text");
    char *a = ask(STORY("a", ",\"max_tokens\":24"), "text"),
         *b = ask(STORY("b", ",\"max_tokens\":24"), "text");
    char *name = ask(STORY("b.gguf", ",\"max_tokens\":1"), "model");
    cr_assert_str_eq(first, a, "the first by name serves what names none");
    cr_assert_str_eq(b, alone);
    cr_assert_str_neq(a, b);
    cr_assert_str_eq(name, "b");
    expect_reply("/v1/chat/completions", CHAT("b"), 200, "\"model\":\"b\"");
    expect_reply("/v1/chat/completions", CHAT("random-tiny-llama3"), 200, "\"model\":\"b\"");
    expect_reply("/v1/messages", CHAT("a"), 200, "\"model\":\"a\"");
    expect_reply("/api/chat", CHAT("b:latest"), 200, "\"model\":\"b\"");
    free(alone);
    free(first);
    free(a);
    free(b);
    free(name);
    admin_finish();
}

/* Its name is looked for on the pool, behind the prompt. */
Test(models, a_long_body_finds_its_model_too)
{
    start(NULL, NULL);
    char *body = long_prompt("word ", 20000, ",\"max_tokens\":1,\"model\":\"b\"");
    expect_reply("/generate", body, 400, "context");
    expect_get("/v1/models/b", "\"value\":\"loaded\"");
    strcpy(strstr(body, "\"model\":\"b\""), "\"model\":\"z\"}");
    expect_reply("/generate", body, 404, "no model z");
    free(body);
    expect_reply("/v1/responses", "{\"model\":\"b\",\"input\":\"hi\",\"max_output_tokens\":2}", 200,
                 "\"model\":\"b\"");
    expect_reply("/v1/completions", STORY("b", ",\"max_tokens\":2"), 200, "\"model\":\"b\"");
    expect_reply("/v1/embeddings", "{\"model\":\"b\",\"input\":\"hi\"}", 200, "\"model\":\"b\"");
    expect_reply("/embed", "{\"model\":\"z\",\"inputs\":\"hi\"}", 404, "no model z");
    expect_reply("/embedding", "{\"model\":\"a\",\"content\":\"hi\"}", 200, "\"embedding\"");
    expect_reply("/v1/completions", "{\"model\":7,\"prompt\":\"x\"}", 400, "model must be a string");
    admin_finish();
}

Test(models, a_file_that_was_removed_is_no_model)
{
    char path[128];
    int status = 200;
    start(NULL, NULL);
    expect_get("/v1/models/b", "\"value\":\"unloaded\"");
    snprintf(path, sizeof path, "%s/b.gguf", admin_dir);
    cr_assert_eq(unlink(path), 0);
    for (int i = 0; i < 1000 && status == 200; i++) { /* the directory is read beside the loop */
        struct reply r = get("/v1/models/b");
        status = r.status;
        reply_free(&r);
        usleep(5000);
    }
    cr_assert_eq(status, 404);
    admin_finish();
}

Test(models, lists_show_what_there_is_and_what_is_loaded)
{
    start(NULL, NULL);
    expect_get("/v1/models", "\"id\":\"b\"");
    expect_get("/v1/models/b", "\"value\":\"unloaded\"");
    expect_get("/api/tags", "\"name\":\"b\"");
    struct reply r = get("/api/ps");
    cr_assert(strstr(r.body, "\"name\":\"a\"") && !strstr(r.body, "\"name\":\"b\""), "%s", r.body);
    reply_free(&r);
    expect_get("/metrics", "hearth_model_loaded{model=\"b\"} 0\n");
    expect_reply("/generate", STORY("b", ",\"max_tokens\":1"), 200, "");
    expect_get("/v1/models/b", "\"value\":\"loaded\"");
    expect_get("/api/ps", "\"name\":\"b\"");
    expect_get("/metrics", "hearth_model_loaded{model=\"b\"} 1\n");
    expect_get("/metrics", "hearth_model_loads_total{model=\"b\"} 1\n");
    admin_copy(QWEN, "new.gguf", SIZE_MAX);
    expect_reply("/generate", STORY("new", ",\"max_tokens\":1"), 200, "\"model\":\"new\"");
    char *log = daemon_read_log();
    cr_assert(strstr(log, "a, b, broken"), "%s", log);
    free(log);
    admin_finish();
}

/* The list at `member` of a reply that is written part by part. */
static void expect_parts(const char *path, const char *member, size_t n)
{
    struct reply r = get(path);
    cr_assert_eq(r.status, 200, "%s", path);
    cr_assert_str_eq(reply_header(&r, "Transfer-Encoding"), "chunked", "%s", path);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_object_get(root, member)), n, "%s", path);
    json_decref(root);
    reply_free(&r);
}

/* No list of so many is written in one go, in which others would wait. */
static void expect_long_lists(size_t n)
{
    size_t n_lines = 0;
    expect_parts("/v1/models", "data", n);
    expect_parts("/api/tags", "models", n);
    expect_parts("/stats", "models", n);
    struct reply r = get("/metrics");
    cr_assert_str_eq(reply_header(&r, "Transfer-Encoding"), "chunked");
    for (const char *at = r.body; (at = strstr(at, "\nhearth_model_")); at++)
        n_lines += strstr(at, "{model=\"") < strchr(at + 1, '\n');
    cr_assert_eq(n_lines, 6 * n + 1, "%zu", n_lines); /* and hearth_model_info */
    reply_free(&r);
    r = get("/api/ps");
    cr_assert_null(reply_header(&r, "Transfer-Encoding"));
    reply_free(&r);
    char command[300], line[200] = "";
    snprintf(command, sizeof command, "%s stats http://127.0.0.1:%u", HEARTHD_BINARY, daemon_.port);
    FILE *f = popen(command, "r");
    cr_assert(f && fgets(line, sizeof line, f) && strstr(line, "ready"), "%s", line);
    while (fgets(line, sizeof line, f))
        ;
    cr_assert_eq(pclose(f), 0);
}

/* The pool reads a directory of many files: the list that asks for it does not wait, and has what was known
 * before, and what is known by the time its end is written. A request finds its model at once. */
Test(models, many_files_are_not_read_on_the_loop)
{
    char path[200];
    admin_open();
    admin_copy(QWEN, "a.gguf", SIZE_MAX);
    for (int i = 0; i < 1000; i++) {
        snprintf(path, sizeof path, "%s/m%03d.gguf", admin_dir, i);
        FILE *f = fopen(path, "w");
        cr_assert(f && fclose(f) == 0);
    }
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, NULL});
    admin_copy(QWEN, "new.gguf", SIZE_MAX);
    struct reply r = get("/v1/models");
    cr_assert(r.status == 200 && strstr(r.body, "\"id\":\"m999\""));
    reply_free(&r);
    wait_state("new", "file");
    expect_long_lists(1000 + 2);
    admin_copy(QWEN, "newest.gguf", SIZE_MAX);
    expect_reply("/generate", STORY("newest", ",\"max_tokens\":1"), 200, "\"model\":\"newest\"");
    expect_reply("/generate", STORY("zz", ""), 404, "no model zz (there are: a, m000");
    admin_finish();
}

Test(models, a_name_that_is_none_is_a_404_of_its_dialect_and_names_what_there_is)
{
    start(NULL, NULL);
    expect_reply("/v1/chat/completions", CHAT("zz"), 404, "no model zz (there are: a, b, broken)");
    expect_reply("/v1/messages", CHAT("zz"), 404,
                 "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\"");
    expect_reply("/api/chat", CHAT("zz"), 404, "{\"error\":\"no model zz");
    expect_reply("/api/show", "{\"name\":\"zz\"}", 404, "{\"error\":\"no model zz");
    expect_reply("/api/show", "{\"name\":\"b:latest\"}", 200, "\"capabilities\":[\"completion\"");
    expect_reply("/generate", STORY("zz", ""), 404, "\"param\":\"model\"");
    admin_finish();
}

Test(models, nothing_outside_of_the_directory_is_found)
{
    char outside[160], link[160];
    admin_open();
    snprintf(link, sizeof link, "%s/models", admin_dir);
    cr_assert_eq(mkdir(link, 0700), 0);
    admin_copy(LLAMA, "outside.gguf", SIZE_MAX);
    admin_copy(QWEN, "models/in.gguf", SIZE_MAX);
    snprintf(outside, sizeof outside, "%s/outside.gguf", admin_dir);
    snprintf(link, sizeof link, "%s/models/link.gguf", admin_dir);
    cr_assert_eq(symlink(outside, link), 0);
    *strrchr(link, '/') = '\0';
    daemon_start((const char *[]){"--model", "", "--models", link, NULL});
    expect_reply("/generate", STORY("../outside", ""), 404, "(there are: in)");
    expect_reply("/generate", STORY("../outside.gguf", ""), 404, "(there are: in)");
    expect_reply("/generate", STORY("link", ""), 404, "(there are: in)");
    expect_reply("/generate", STORY("/etc/passwd", ""), 404, "(there are: in)");
    admin_finish();
}

Test(models, a_directory_without_a_model_ends_the_start)
{
    admin_open();
    daemon_spawn((const char *[]){"--model", "", "--models", admin_dir, NULL});
    cr_assert_eq(daemon_end(0), 3);
    char *log = daemon_read_log();
    cr_assert(strstr(log, "no .gguf in it"), "%s", log);
    free(log);
    admin_close();
}

/* A download that was cut off may be the first by name after any restart. */
Test(models, the_first_by_name_that_can_be_loaded_is_the_first)
{
    admin_open();
    const char *broken = admin_copy(LLAMA, "a.gguf", 100000);
    admin_copy(QWEN, "b.gguf", SIZE_MAX);
    admin_copy(LLAMA, "c.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--slots", "4", NULL});
    char *log = daemon_read_log();
    cr_assert(strstr(log, ": a is not the first model"), "%s", log);
    free(log);
    char *name = ask("{\"prompt\":[1],\"max_tokens\":1}", "model");
    cr_assert_str_eq(name, "b");
    free(name);
    expect_reply("/generate", STORY("a", ""), 500, "model a cannot be loaded");
    expect_reply("/generate", STORY("c", ",\"max_tokens\":1"), 200, "");
    daemon_stop();
    daemon_spawn((const char *[]){"--model", broken, "--models", admin_dir, NULL});
    cr_assert_eq(daemon_end(0), 4, "what the configuration names must load");
    admin_copy(QWEN, "c.gguf", 1000);
    admin_copy(QWEN, "b.gguf", 1000);
    daemon_spawn((const char *[]){"--model", "", "--models", admin_dir, NULL});
    cr_assert_eq(daemon_end(0), 4, "none of them can be loaded");
    admin_close();
}

Test(models, a_name_is_found_however_it_is_written_and_must_be_a_string)
{
    start(NULL, NULL);
    expect_reply("/generate", "{\"m\\u006fdel\":\"b\",\"prompt\":[1],\"max_tokens\":1}", 200,
                 "\"model\":\"b\"");
    expect_reply("/v1/messages", "{\"model\":7,\"messages\":[],\"max_tokens\":1}", 400,
                 "model must be a string");
    expect_reply("/api/chat", "{\"model\":[\"b\"],\"messages\":[]}", 400, "model must be a string");
    admin_finish();
}

Test(models, texts_are_those_of_the_model_they_name)
{
    start(NULL, NULL);
    admin_make_model("tiny-llama3", "b.gguf", 16384); /* its context is another */
    expect_reply("/tokenize", "{\"model\":\"zz\",\"content\":\"Once upon\"}", 404, "no model zz");
    expect_reply("/tokenize", "{\"model\":\"b\",\"content\":\"Once upon\"}", 409, "model b is not loaded");
    expect_reply("/generate", STORY("b", ",\"max_tokens\":1"), 200, "");
    struct reply a = post("/tokenize", "{\"model\":\"a\",\"prompt\":\"Once upon\"}"),
                 b = post("/tokenize", "{\"model\":\"b\",\"prompt\":\"Once upon\"}"),
                 none = post("/tokenize", "{\"prompt\":\"Once upon\"}");
    cr_assert(a.status == 200 && b.status == 200, "%s %s", a.body, b.body);
    cr_assert_str_eq(a.body, none.body);
    cr_assert_str_neq(a.body, b.body);
    char *body = malloc(6000);
    snprintf(body, 6000, "{\"content\":\"%5000d\",\"model\":\"zz\"}", 1);
    expect_reply("/tokenize", body, 404, "no model zz");
    snprintf(body, 6000, "{\"content\":\"%5000d\",\"model\":\"b\"}", 1);
    expect_reply("/tokenize", body, 200, "tokens");
    expect_reply("/detokenize", "{\"model\":\"b\",\"tokens\":[1,22]}", 200, "content");
    expect_reply("/detokenize", "{\"model\":\"zz\",\"tokens\":[1,22]}", 404, "no model zz");
    free(body);
    reply_free(&a);
    reply_free(&b);
    reply_free(&none);
    admin_finish();
}

/* ---- side by side ---- */

static struct reply read_reply(int fd)
{
    struct reply r = {0};
    client_read(fd, &r, false);
    return r;
}

static int begin_stream(const char *body)
{
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", body);
    return fd;
}

/* The text of a stream's last events is what counts: all of them, as they came. */
static char *end_stream(int fd)
{
    struct reply r = read_reply(fd);
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    cr_assert(strstr(r.body, "[DONE]"), "%s", r.body);
    char *text = calloc(1, r.len + 1), *out = text;
    for (const char *at = r.body; (at = strstr(at, "\"tokens\":[")); at++)
        out += sprintf(out, "%.*s,", (int)strcspn(at + 10, "]"), at + 10);
    reply_free(&r);
    close(fd);
    return text;
}

Test(models, streams_of_two_models_at_once_are_those_of_each_alone)
{
    start("--speculation", "off");
    char *alone[2], *beside[4];
    const char *bodies[] = {STORY("a", ",\"max_tokens\":200,\"stream\":true"),
                            STORY("b", ",\"max_tokens\":200,\"stream\":true")};
    for (int i = 0; i < 2; i++)
        alone[i] = end_stream(begin_stream(bodies[i]));
    int fds[4];
    for (int i = 0; i < 4; i++)
        fds[i] = begin_stream(bodies[i % 2]);
    for (int i = 0; i < 4; i++) {
        beside[i] = end_stream(fds[i]);
        cr_assert_str_eq(beside[i], alone[i % 2]);
        free(beside[i]);
    }
    free(alone[0]);
    free(alone[1]);
    admin_finish();
}

Test(models, one_that_is_idle_is_unloaded_and_comes_back)
{
    start("--model-ttl-s", "1");
    char *before = ask(STORY("b", ",\"max_tokens\":8"), "text");
    long long tokens = stat_number("tokens.generated");
    wait_state("b", "file");
    wait_state("a", "ready");
    expect_get("/stats", "{\"name\":\"a\",\"default\":true,\"state\":\"ready\"");
    expect_get("/stats", "{\"name\":\"b\",\"default\":false,\"state\":\"file\"");
    cr_assert_eq(stat_number("tokens.generated"), tokens, "what was counted stays counted");
    char *after = ask(STORY("b", ",\"max_tokens\":8"), "text");
    cr_assert_str_eq(before, after);
    free(before);
    free(after);
    admin_finish();
}

Test(models, a_file_that_is_no_model_costs_its_own_requests)
{
    start(NULL, NULL);
    expect_reply("/v1/chat/completions", CHAT("broken"), 500, "model broken cannot be loaded");
    expect_reply("/v1/chat/completions", CHAT("a"), 200, "");
    expect_get("/metrics", "hearth_model_load_failures_total{model=\"broken\"} 1\n");
    admin_copy(LLAMA, "broken.gguf", SIZE_MAX);
    expect_reply("/v1/chat/completions", CHAT("broken"), 200, "");
    admin_finish();
}

Test(models, admin_routes_leave_the_choice_to_requests)
{
    const char *key = admin_open();
    admin_copy(QWEN, "a.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--admin-key-file", key, NULL});
    cr_assert(admin_is("model", "a"));
    admin_expect(admin_swap("a.gguf"), 409);
    admin_expect(admin_post("/admin/suspend", ""), 409);
    admin_finish();
}

/* ---- in turns ---- */

/* Two models of which only one has room: 192 MiB of KV cache each, and 64 beside the first. The first has a
 * long context. */
static void start_without_room(void)
{
    admin_open();
    admin_make_model("tiny-llama3", "a.gguf", 16384);
    admin_copy(QWEN, "b.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--n-ctx", "16384", "--slots", "1",
                                  "--kv-memory", "192M", NULL});
    admin_limit_memory(64 << 20);
}

/* A stream that goes on for long, an administrator's: no limit of time holds for it. It has begun. */
static int begin_long_stream_on(const char *model, struct reply *r)
{
    char body[200];
    int fd = client_connect(daemon_.port);
    snprintf(body, sizeof body,
             "{\"model\":\"%s\",\"prompt\":[1,22,29,36,43],\"temperature\":0,\"ignore_eos\":true,"
             "\"max_tokens\":16000,\"stream\":true,\"queue_timeout_ms\":0}",
             model);
    client_request(fd, "POST", "/generate", ADMIN_KEY, body);
    *r = (struct reply){0};
    while (!r->raw || !strstr(r->raw, "data: "))
        cr_assert(reply_more(r, fd));
    return fd;
}

static int begin_long_stream(struct reply *r)
{
    return begin_long_stream_on("a", r);
}

static void end_long_stream(int fd, struct reply *r)
{
    reply_free(r);
    close(fd);
}

Test(models, without_room_the_next_model_waits_for_what_runs_and_then_serves_in_turn)
{
    struct reply stream;
    start_without_room();
    int fd = begin_long_stream(&stream);
    int other = begin_stream(STORY("b", ",\"max_tokens\":4"));
    wait_loading(1);
    wait_state("a", "leaving");
    int late = begin_stream(STORY("a", ",\"max_tokens\":4"));
    wait_loading(2);
    end_long_stream(fd, &stream);
    struct reply b = read_reply(other), a = read_reply(late);
    cr_assert_eq(b.status, 200, "%s", b.body);
    cr_assert(strstr(b.body, "\"model\":\"b\""), "%s", b.body);
    cr_assert_eq(a.status, 200, "%s", a.body);
    cr_assert(strstr(a.body, "\"model\":\"a\""), "%s", a.body);
    reply_free(&a);
    reply_free(&b);
    close(other);
    close(late);
    wait_state("b", "file");
    admin_finish();
}

Test(models, one_that_no_longer_waits_lets_the_other_go_on)
{
    struct reply stream;
    start_without_room();
    int fd = begin_long_stream(&stream);
    int other = begin_stream(STORY("b", ",\"max_tokens\":4"));
    wait_state("a", "leaving");
    close(other);
    wait_state("a", "ready");
    expect_reply("/generate", STORY("b", ",\"queue_timeout_ms\":50"), 504, "queue_timeout_ms (50)");
    wait_state("a", "ready");
    end_long_stream(fd, &stream);
    expect_reply("/generate", STORY("a", ",\"max_tokens\":4"), 200, "\"model\":\"a\"");
    admin_finish();
}

Test(models, one_that_waits_can_be_cancelled)
{
    struct reply stream;
    start_without_room();
    int fd = begin_long_stream(&stream);
    int other = client_connect(daemon_.port);
    client_request(other, "POST", "/generate", "X-Request-Id: other\r\n", STORY("b", ",\"max_tokens\":4"));
    wait_loading(1);
    struct reply r = client_once(daemon_.port, "DELETE", "/requests/other", "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
    r = read_reply(other);
    cr_assert_eq(r.status, 499, "%d: %s", r.status, r.body);
    reply_free(&r);
    close(other);
    end_long_stream(fd, &stream);
    admin_finish();
}

/* ---- room on disk ---- */

/* Pages of 64 tokens of either model have some 20 KB. */
Test(models, all_share_the_budget_of_the_prefix_cache_on_disk)
{
    char cache[160], body[4000], *at;
    admin_open();
    snprintf(cache, sizeof cache, "%s/cache", admin_dir);
    admin_copy(QWEN, "a.gguf", SIZE_MAX);
    admin_copy(LLAMA, "b.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--prefix-cache-dir", cache,
                                  "--prefix-cache-disk", "1M", NULL});
    for (int i = 0; i < 60; i++) {
        at = body + sprintf(body, "{\"model\":\"%c\",\"max_tokens\":1,\"prompt\":[%d", 'a' + i % 2, i + 1);
        for (int k = 0; k < 400; k++)
            at += sprintf(at, ",%d", 1 + (k * 7 + i) % 200);
        sprintf(at, "]}");
        expect_reply("/generate", body, 200, "");
        usleep(20000); /* idle, it writes */
    }
    wait_stat("requests.running", 0);
    long long bytes = stat_number("prefix_disk.bytes"), on_disk = 0;
    DIR *d = opendir(cache);
    struct stat st;
    for (const struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && fstatat(dirfd(d), e->d_name, &st, 0) == 0)
            on_disk += st.st_size;
    closedir(d);
    cr_assert_gt(bytes, 512 << 10, "both have written: %lld", bytes);
    cr_assert_leq(bytes, 1 << 20);
    cr_assert_leq(on_disk, 1 << 20, "%lld bytes are on disk", on_disk);
    daemon_stop();
    temporary_dir_each(cache, temporary_dir_unlink, NULL);
    rmdir(cache);
    admin_close();
}

/* ---- room for others ---- */

/* A daemon on which requests for c wait: a and b run one each, memory is used up, and b, which is not the
 * first, is to make room. a has three free slots. */
struct crowd {
    int fds[2];
    struct reply streams[2];
};

/* Less than the KV cache of c takes, 96M. The sanitizer needs some for each thread, and for what was freed.
 */
#ifdef __SANITIZE_ADDRESS__
#define CROWD_ROOM ((size_t)64 << 20)
#else
#define CROWD_ROOM ((size_t)16 << 20)
#endif

static void start_crowd(struct crowd *c, const char *flag, const char *value, const char *flag2,
                        const char *value2)
{
    const char *key = admin_open();
    admin_make_model("tiny-llama3", "a.gguf", 16384);
    admin_make_model("tiny-llama3", "b.gguf", 16384);
    admin_copy(QWEN, "c.gguf", SIZE_MAX);
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--n-ctx", "16384", "--slots", "4",
                                  "--kv-memory", "96M", "--admin-key-file", key, flag, value, flag2, value2,
                                  NULL});
    c->fds[1] = begin_long_stream_on("b", &c->streams[1]);
    c->fds[0] = begin_long_stream_on("a", &c->streams[0]);
    admin_limit_memory(CROWD_ROOM);
}

static void finish_crowd(struct crowd *c)
{
    for (int i = 0; i < 2; i++)
        end_long_stream(c->fds[i], &c->streams[i]);
    admin_finish();
}

Test(models, a_queue_for_a_model_that_is_not_there_leaves_the_loaded_ones_theirs)
{
    struct crowd crowd;
    int fds[4];
    start_crowd(&crowd, "--queue-limit", "4", NULL, NULL);
    for (int i = 0; i < 4; i++)
        fds[i] = begin_stream(STORY("c", ",\"max_tokens\":1"));
    wait_loading(4);
    expect_reply("/generate", STORY("c", ",\"max_tokens\":1"), 503, "4 requests are waiting");
    expect_reply("/generate", STORY("a", ",\"max_tokens\":1"), 200, "\"model\":\"a\"");
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    finish_crowd(&crowd);
}

Test(models, bodies_for_a_model_that_is_not_there_leave_the_loaded_ones_half_of_the_memory)
{
    struct crowd crowd;
    start_crowd(&crowd, "--body-memory", "768K", "--max-body", "256K");
    char *body = long_prompt("word ", 40000, ",\"max_tokens\":1,\"model\":\"c\"");
    int fd = begin_stream(body);
    wait_loading(1);
    expect_reply("/generate", body, 503, "half of body_memory, 393216 bytes");
    expect_reply("/generate", STORY("a", ",\"max_tokens\":1"), 200, "\"model\":\"a\"");
    wait_loading(1);
    free(body);
    close(fd);
    finish_crowd(&crowd);
}

Test(models, the_wait_for_a_model_has_the_limits_of_the_queue)
{
    struct crowd crowd;
    start_crowd(&crowd, "--max-timeout-ms", "200", "--queue-timeout-ms", "100");
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":0"), 504, "timeout_ms (200) passed");
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":0,\"timeout_ms\":90000"), 504,
                 "timeout_ms (200) passed");
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":0,\"timeout_ms\":50"), 504,
                 "timeout_ms (50) passed");
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":-7"), 504, "queue_timeout_ms (100) passed");
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":1e12"), 504, "queue_timeout_ms (100) passed");
    finish_crowd(&crowd);
}

/* The oldest waits for c; d is small enough for what is left. */
Test(models, one_that_fits_beside_does_not_wait_for_the_one_that_does_not)
{
    struct crowd crowd;
    start_crowd(&crowd, NULL, NULL, NULL, NULL);
    int fd = begin_stream(STORY("c", ",\"max_tokens\":1"));
    wait_loading(1);
    wait_state("b", "leaving");
    admin_limit_memory(512 << 20);
    admin_copy(LLAMA, "d.gguf", SIZE_MAX);
    expect_reply("/generate", STORY("d", ",\"max_tokens\":1"), 200, "\"model\":\"d\"");
    wait_state("b", "leaving");
    wait_loading(1);
    close(fd);
    finish_crowd(&crowd);
}

/* Without memory for it too it waits in its turn, and is tried once. */
Test(models, one_that_does_not_fit_beside_either_waits_in_its_turn)
{
    struct crowd crowd;
    start_crowd(&crowd, NULL, NULL, NULL, NULL);
    int fds[2] = {begin_stream(STORY("c", ",\"max_tokens\":1"))};
    wait_state("b", "leaving");
    admin_copy(QWEN, "d.gguf", SIZE_MAX);
    fds[1] = begin_stream(STORY("d", ",\"max_tokens\":1"));
    wait_loading(2);
    expect_reply("/generate", STORY("c", ",\"queue_timeout_ms\":50"), 504, "queue_timeout_ms (50)");
    char *log = daemon_read_log(), *once = strstr(log, "d waits: it has no room beside the loaded models");
    cr_assert(once && !strstr(once + 1, "d waits: it has no room"), "%s", log);
    free(log);
#ifdef __SANITIZE_ADDRESS__ /* whose own memory leaves none for the threads of a model that is loaded */
    admin_limit_memory(512 << 20);
#endif
    end_long_stream(crowd.fds[1], &crowd.streams[1]);
    for (int i = 0; i < 2; i++) {
        struct reply r = read_reply(fds[i]);
        cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
        reply_free(&r);
        close(fds[i]);
    }
    end_long_stream(crowd.fds[0], &crowd.streams[0]);
    admin_finish();
}

Test(models, a_stream_that_waits_for_its_model_is_kept_alive)
{
    struct crowd crowd;
    start_crowd(&crowd, "--keepalive-ms", "100", NULL, NULL);
    const char *bodies[] = {STORY("c", ",\"max_tokens\":1,\"stream\":true"),
                            "{\"model\":\"c\",\"prompt\":7,\"stream\":true}",
                            STORY("c", ",\"stream\":true,\"queue_timeout_ms\":1500")};
    const char *last[] = {"[DONE]", "prompt must be", "queue_timeout_ms (1500) passed"};
    struct reply r[3] = {0};
    int fds[3], silent = begin_stream(STORY("c", ",\"max_tokens\":1"));
    for (int i = 0; i < 3; i++) {
        fds[i] = begin_stream(bodies[i]);
        while (!r[i].raw || !strstr(r[i].raw, ": keep-alive"))
            cr_assert(reply_more(&r[i], fds[i]));
        cr_assert(!strncmp(r[i].raw, "HTTP/1.1 200", 12), "%s", r[i].raw);
    }
    while (!strstr(r[2].raw, last[2]))
        cr_assert(reply_more(&r[2], fds[2]));
    cr_assert(strstr(r[2].raw, "event: error"), "%s", r[2].raw);
    expect_get("/metrics", "hearth_model_wait_timeouts_total{model=\"c\"} 1\n");
    expect_get("/stats", "\"timed_out\":1");
    char *log = daemon_read_log();
    cr_assert(strstr(log, "timeout"), "%s", log);
    free(log);
    end_long_stream(crowd.fds[1], &crowd.streams[1]);
    for (int i = 0; i < 2; i++)
        while (!strstr(r[i].raw, last[i]))
            cr_assert(reply_more(&r[i], fds[i]), "%s", r[i].raw);
    cr_assert(strstr(r[1].raw, "event: error"), "%s", r[1].raw);
    struct reply whole = read_reply(silent);
    cr_assert_eq(whole.status, 200, "%s", whole.body);
    cr_assert(!strstr(whole.raw, "keep-alive\n"), "%s", whole.raw);
    reply_free(&whole);
    close(silent);
    for (int i = 0; i < 3; i++) {
        reply_free(&r[i]);
        close(fds[i]);
    }
    end_long_stream(crowd.fds[0], &crowd.streams[0]);
    admin_finish();
}

/* ---- models that cannot be had ---- */

/* As many as are loaded at once, and one more that is none. */
Test(models, a_file_that_is_no_model_takes_no_others_place)
{
    char name[24], body[64], log_words[] = "b14 is unloaded";
    start(NULL, NULL);
    for (int i = 0; i < 15; i++) {
        snprintf(name, sizeof name, "b%d.gguf", i);
        admin_copy(QWEN, name, SIZE_MAX);
        snprintf(body, sizeof body, "{\"model\":\"b%d\",\"prompt\":[1],\"max_tokens\":1}", i);
        expect_reply("/generate", body, 200, "");
    }
    expect_reply("/generate", STORY("broken", ""), 500, "model broken cannot be loaded");
    wait_state("b0", "ready");
    char *log = daemon_read_log();
    cr_assert(!strstr(log, "is unloaded"), "%s", log);
    free(log);
    expect_reply("/generate", STORY("b", ",\"max_tokens\":1"), 200, "");
    wait_state("b0", "file");
    log = daemon_read_log();
    cr_assert(!strstr(log, log_words), "%s", log);
    free(log);
    admin_finish();
}

Test(models, one_that_does_not_fit_alone_takes_no_others_place_twice)
{
    char path[128];
    admin_open();
    admin_copy(QWEN, "a.gguf", SIZE_MAX);
    snprintf(path, sizeof path, "%s/b.gguf", admin_dir);
    make_model(path, "tiny-qwen3-deep", "f32", "--layers 400");
    daemon_start(
        (const char *[]){"--model", "", "--models", admin_dir, "--slots", "1", "--kv-memory", "64M", NULL});
    admin_limit_memory(16 << 20); /* with a's place b, of 47 MB, still lacks some */
    expect_reply("/generate", STORY("b", ",\"max_tokens\":1"), 503, "model b cannot be loaded");
    wait_state("a", "file");
    admin_limit_memory(256 << 20);
    expect_reply("/generate", STORY("a", ",\"max_tokens\":1"), 200, "\"model\":\"a\"");
    admin_limit_memory(16 << 20);
    struct reply r = post("/generate", STORY("b", ",\"max_tokens\":1"));
    cr_assert_eq(r.status, 503, "%d: %s", r.status, r.body);
    cr_assert(strstr(r.raw, "Retry-After: 30"), "%s", r.raw);
    reply_free(&r);
    char *log = daemon_read_log(), *gone = strstr(log, "a is unloaded");
    cr_assert(gone && !strstr(gone + 1, "a is unloaded"), "%s", log);
    free(log);
    expect_reply("/generate", STORY("a", ",\"max_tokens\":1"), 200, "\"model\":\"a\"");
    admin_finish();
}

/* ---- the end ---- */

Test(models, sigterm_while_requests_wait_for_their_model_leaves_in_order)
{
    struct reply stream;
    start_without_room();
    int fd = begin_long_stream(&stream);
    int other = begin_stream(STORY("b", ",\"max_tokens\":4"));
    wait_loading(1);
    cr_assert_eq(kill(daemon_.pid, SIGTERM), 0);
    struct reply r = read_reply(other);
    cr_assert_eq(r.status, 503, "%d: %s", r.status, r.body);
    cr_assert(strstr(r.body, "shutting down"), "%s", r.body);
    reply_free(&r);
    close(other);
    end_long_stream(fd, &stream);
    cr_assert_eq(daemon_end(0), 0);
    admin_close();
}

Test(models, sigterm_while_a_model_is_loaded_leaves_in_order)
{
    start(NULL, NULL);
    int fd = begin_stream(STORY("b", ",\"max_tokens\":4"));
    wait_connections(2);
    cr_assert_eq(daemon_end(SIGTERM), 0);
    close(fd);
    admin_close();
}

/* What goes on during the drain asks for figures and names while the load ends. */
Test(models, a_model_that_is_loaded_during_the_drain_is_closed_at_once)
{
    struct reply stream;
    char path[128];
    const char *key = admin_open();
    admin_make_model("tiny-llama3", "a.gguf", 16384);
    snprintf(path, sizeof path, "%s/b.gguf", admin_dir);
    make_model(path, "tiny-qwen3-deep", "f32", "--layers 400");
    daemon_start((const char *[]){"--model", "", "--models", admin_dir, "--n-ctx", "16384", "--slots", "1",
                                  "--admin-key-file", key, SLOW, NULL});
    int fd = begin_long_stream(&stream);
    int other = begin_stream(STORY("b", ",\"max_tokens\":4"));
    wait_state("b", "loading");
    cr_assert_eq(kill(daemon_.pid, SIGTERM), 0);
    wait_state("b", "file");
    expect_get("/metrics", "hearth_model_loaded{model=\"b\"} 0\n");
    struct reply r = get("/v1/models/zz");
    cr_assert_eq(r.status, 404, "%d: %s", r.status, r.body);
    reply_free(&r);
    close(other);
    end_long_stream(fd, &stream);
    cr_assert_eq(daemon_end(0), 0);
    admin_close();
}
