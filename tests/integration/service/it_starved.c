/* Every allocation of a request failing in turn, alone and with all that come after it: the reply is a 503 or
 * an `event: error`, there is exactly one end, nothing is left behind, and the daemon goes on. First those of
 * lib/ and daemon/, then (not in a sanitized build) those of the libraries, where a connection may be cut
 * too.
 */
#include "integration/admin.h"
#include "integration/starved.h"

#include <sys/mman.h>

struct scene {
    const char *method, *path;
    char *body; /* malloc'ed, or NULL */
    bool stream;
    const char *headers; /* or NULL */
    void (*again)(void); /* makes all be as before the request; or NULL */
    bool loads;          /* a model, beside or after the reply */
    bool other;          /* its errors, and the end of its stream, are those of another dialect */
};

static void starve_from(enum starve_whose whose, long n, bool all_later)
{
    starve->all_later = all_later;
    starve->n_failed = 0;
    starve->n_calls[whose] = 0;
    starve->fails_at[whose] = n;
}

/* Returns the number of allocations that failed. */
static long feed(void)
{
    starve->fails_at[STARVE_OURS] = starve->fails_at[STARVE_THEIRS] = -1;
    return starve->n_failed;
}

static void wait_idle(void)
{
    wait_stat("requests.running", 0);
    wait_stat("requests.waiting", 0);
}

/* Sends a request, and waits until it runs; on a busy machine it may be over before that is seen. */
static int send_running(const char *headers, const char *body)
{
    int fd = client_connect(daemon_.port);
    long long completed = stat_number("requests.completed");
    client_request(fd, "POST", "/generate", headers, body);
    while (stat_number("requests.running") == 0 && stat_number("requests.completed") == completed)
        usleep(1000);
    return fd;
}

/* Returns the memory held once the connections of before are gone: the same number for a while. */
static long steady_held(void)
{
    long held = starve->n_held;
    for (int i = 0; i < 20; i++) {
        usleep(5000);
        if (starve->n_held != held)
            i = 0;
        held = starve->n_held;
    }
    return held;
}

static void expect_held(long most)
{
    for (int i = 0; i < 4000 && starve->n_held > most; i++)
        usleep(5000);
    cr_assert_leq(starve->n_held, most, "%ld pieces were not freed", starve->n_held - most);
}

/* --- what may come --- */

static void check_stream(const struct reply *r, const char *where)
{
    struct events e;
    events_read(&e, r);
    cr_assert_eq(e.done + (e.error != NULL), 1, "%s: not one end\n%s", where, r->body);
    if (e.error) {
        const char *tail = strstr(r->body, "event: error\n");
        cr_assert_null(strstr(tail + 1, "event: "), "%s: %s", where, r->body);
        cr_assert_str_eq(json_text(e.error, "error.message"), "out of memory", "%s", where);
    }
    events_free(&e);
}

static void check_whole(const struct scene *s, const struct reply *r, const char *where)
{
    cr_assert(!r->cut, "%s: cut: %s", where, r->raw);
    if (r->status == 503) {
        json_t *root = reply_json(r);
        if (s->other) /* another dialect's error */
            cr_assert(strstr(r->body, "out of memory"), "%s: %s", where, r->body);
        else
            cr_assert(strstr(r->body, "\"queue_full\""), "%s: %s", where,
                      r->body); /* type, or OpenAI's code */
        cr_assert_not_null(reply_header(r, "Retry-After"), "%s", where);
        json_decref(root);
        return;
    }
    cr_assert(r->status == 200 || r->status == 202, "%s: %d %s", where, r->status, r->body);
    if (s->stream && s->other)
        cr_assert(strstr(r->body, "event: response.completed\n") ||
                      strstr(r->body, "event: response.incomplete\n") || strstr(r->body, "out of memory"),
                  "%s: no end\n%s", where, r->body);
    else if (s->stream)
        check_stream(r, where);
}

/* For the libraries' allocations: a cut at any place is allowed, a wrong answer is not. */
static void check_theirs(const struct scene *s, const struct reply *r, const char *where)
{
    if (r->status && !r->cut)
        cr_assert(r->status == 200 || r->status == 202 || r->status >= 500, "%s: %d %s", where, r->status,
                  r->body);
    if (r->status == 200 && !r->cut && s->stream && !s->other)
        check_stream(r, where);
}

/* --- the walk --- */

static struct reply ask(const struct scene *s)
{
    char headers[200];
    snprintf(headers, sizeof headers, "X-Request-Id: starved\r\n%s", s->headers ? s->headers : "");
    return client_once(daemon_.port, s->method, s->path, headers, s->body);
}

static void walk(const struct scene *s, enum starve_whose whose, bool all_later)
{
    char where[200];
    long n = 0, failed;
    do {
        cr_assert_lt(n, 5000);
        snprintf(where, sizeof where, "%s %s, %s allocation %ld%s", s->method, s->path,
                 whose == STARVE_OURS ? "our" : "the libraries'", n, all_later ? " and all later" : "");
        starve_from(whose, n++, all_later);
        struct reply r = ask(s);
        failed = feed();
        if (whose == STARVE_OURS || !failed)
            check_whole(s, &r, where);
        else
            check_theirs(s, &r, where);
        cr_assert(failed || r.status == 200 || r.status == 202, "%s: %d %s", where, r.status, r.body);
        reply_free(&r);
        wait_idle();
        if (s->again)
            s->again();
    } while (failed);
    printf("%s: passes\n", where);
}

#define MOST_WARM 30

/* Asks until nothing more is made that stays: a request makes only so many of the masks that a grammar keeps,
 * and the next one goes on. Returns the memory held then. */
static long warm_held(const struct scene *s)
{
    long before, held = -1;
    int n = 0;
    do {
        struct reply r = ask(s);
        reply_free(&r);
        wait_idle();
        if (s->again)
            s->again();
        before = held;
        held = steady_held();
    } while (held != before && ++n < MOST_WARM);
    cr_assert_lt(n, MOST_WARM, "%s %s: each request keeps more: %ld pieces, then %ld", s->method, s->path,
                 before, held);
    return held;
}

static void walk_scene(const struct scene *s)
{
    long held = warm_held(s);
    walk(s, STARVE_OURS, false);
    walk(s, STARVE_OURS, true);
    expect_held(held);
#ifndef __SANITIZE_ADDRESS__
    walk(s, STARVE_THEIRS, false);
    if (!s->loads)
        walk(s, STARVE_THEIRS, true);
    expect_held(held);
#endif
}

/* `body` is freed. */
static void walk_all(const char *method, const char *path, char *body, bool stream)
{
    walk_scene(&(struct scene){.method = method, .path = path, .body = body, .stream = stream});
    free(body);
}

static void walk_post(const char *path, char *body)
{
    walk_all("POST", path, body, false);
}

static void walk_other(const char *path, char *body, bool stream)
{
    walk_scene(
        &(struct scene){.method = "POST", .path = path, .body = body, .stream = stream, .other = true});
    free(body);
}

static void walk_stream(const char *path, char *body)
{
    walk_all("POST", path, body, true);
}

/* The prompt makes the body larger than what is worked on at once: it goes to the pool. */
static char *long_body(const char *rest)
{
    return long_prompt("Tom and Lily went to the park with the dog. ", 70, rest);
}

/* A start up to its model, which is none: it ends so, or at once with one line of ours and the code for it.
 */
static bool start_starves(enum starve_whose whose, long n, bool all_later)
{
    int fd = starved_open();
    starve_from(whose, n, all_later);
    daemon_spawn((const char *[]){"--model", HEARTH_TEST_DATA "/once-upon-a-time.txt", NULL});
    int code = daemon_end(0);
    bool failed = starve->n_failed > 0;
    char *log = daemon_read_log();
    cr_assert(code == 7 || (code == 4 && !(failed && all_later)), "%d at allocation %ld of %d: %s", code, n,
              whose, log);
    cr_assert(code != 7 || !strncmp(log, "error: ", 7), "%ld of %d: %s", n, whose, log);
    free(log);
    munmap(starve, sizeof *starve);
    close(daemon_.log);
    close(fd);
    return failed;
}

Test(starved, a_start_without_memory_is_7_and_says_so, .timeout = 1200)
{
    for (int all_later = 0; all_later < 2; all_later++) {
        for (long n = 0; start_starves(STARVE_OURS, n, all_later); n++)
            ;
#ifndef __SANITIZE_ADDRESS__
        for (long n = 0; start_starves(STARVE_THEIRS, n, all_later); n++)
            ;
#endif
    }
}

#define STARVED_TEST(name, ...)                                                                              \
    static void starved_##name(void);                                                                        \
    Test(starved, name, .timeout = 1200)                                                                     \
    {                                                                                                        \
        starved_start((const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL});                                    \
        starved_##name();                                                                                    \
        daemon_stop();                                                                                       \
    }                                                                                                        \
    static void starved_##name(void)

STARVED_TEST(generate, "--client-limit", "4")
{
    walk_post("/generate", strdup("{\"prompt\":\"Once upon\",\"max_tokens\":6,\"ignore_eos\":true,"
                                  "\"logprobs\":20,\"prompt_logprobs\":2,\"stop\":[\"zebra\",\"xylophone\"],"
                                  "\"stop_token_ids\":[3],\"logit_bias\":{\"5\":1}}"));
    walk_post("/generate", long_body(",\"max_tokens\":4,\"ignore_eos\":true"));
}

STARVED_TEST(a_stream_with_choices)
{
    walk_stream("/generate", strdup("{\"prompt\":\"Once upon\",\"max_tokens\":40,\"ignore_eos\":true,"
                                    "\"logprobs\":20,\"n\":3,\"stream\":true,\"stop\":\"zebra\"}"));
    walk_post("/generate", strdup("{\"prompt\":\"Once\",\"max_tokens\":8,\"n\":3,\"ignore_eos\":true}"));
}

/* The stream waits for the only slot, and its first bytes are comments. */
STARVED_TEST(keep_alive_comments, "--keepalive-ms", "100", "--slots", "1")
{
    const struct scene waiting = {.method = "POST",
                                  .path = "/generate",
                                  .body = "{\"prompt\":\"One\",\"max_tokens\":2,\"stream\":true}",
                                  .stream = true};
    long failed = 1;
    for (long n = 0; failed; n++) {
        int fd = send_running("", "{\"prompt\":\"Once\",\"max_tokens\":120,\"ignore_eos\":true}");
        starve_from(STARVE_OURS, n, n % 2);
        struct reply r = ask(&waiting), first;
        failed = feed();
        check_whole(&waiting, &r, "a stream that waits");
        client_read(fd, &first, false);
        cr_assert(first.status == 200 || first.status == 503, "%d %s", first.status, first.body);
        reply_free(&first);
        reply_free(&r);
        close(fd);
        wait_idle();
    }
}

/* Nothing is warm: no thread of the pool, and descriptors that the loop has not seen. */
Test(starved, the_first_request_of_all, .timeout = 1200)
{
    struct scene first = {.method = "POST", .path = "/generate", .body = long_body(",\"max_tokens\":2")};
    long failed = 1;
    for (long n = 0; failed; n++) {
        int idle[40];
        starved_start(NULL);
        for (int i = 0; i < 40; i++)
            idle[i] = client_connect(daemon_.port);
        wait_stat("requests.running", 0);
        starve_from(STARVE_THEIRS, n, n % 2);
        struct reply r = ask(&first);
        failed = feed();
        check_theirs(&first, &r, "the first request");
        reply_free(&r);
        for (int i = 0; i < 40; i++)
            close(idle[i]);
        daemon_stop();
    }
    free(first.body);
}

#define CHAT                                                                                                 \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"You tell stories.\"},{\"role\":\"user\",\"content\":" \
    "[{\"type\":\"text\",\"text\":\"Once\"},{\"type\":\"text\",\"text\":\" upon\"}]}],\"max_tokens\":8"

STARVED_TEST(chat, "--chat-template", HEARTH_TEST_DATA "/templates/chatml.jinja")
{
    walk_post("/v1/chat/completions",
              strdup(CHAT ",\"logprobs\":true,\"top_logprobs\":5,\"temperature\":0}"));
    walk_stream("/v1/chat/completions",
                strdup(CHAT ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"));
    walk_post("/v1/completions", strdup("{\"prompt\":\"Once\",\"max_tokens\":4}"));
}

#define TOOL_SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}"
#define TOOL_MODEL  HEARTH_SOURCE_DIR "/tests/integration/external/clients/tools.jinja"
#define ASKED       "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

/* Items, and calls that a grammar makes. The text is the same each time, and with it the masks that are kept;
 * but not those that are made for drafts, which depend on time: so there are none. */
STARVED_TEST(responses, "--chat-template", TOOL_MODEL, "--speculation", "off")
{
#define RESPONSES                                                                                            \
    "{\"input\":\"Once\",\"temperature\":0,\"tools\":[{\"type\":\"function\",\"name\":\"f\","                \
    "\"parameters\":" TOOL_SCHEMA "}],\"parallel_tool_calls\":false,\"max_output_tokens\":40"
    walk_post("/v1/responses", strdup(RESPONSES ",\"tool_choice\":\"required\"}"));
    walk_other("/v1/responses", strdup(RESPONSES ",\"stream\":true}"), true);
}

STARVED_TEST(other_dialects, "--chat-template", TOOL_MODEL, "--speculation", "off")
{
    static const char *const others[][2] = {
        {"/v1/messages", "{\"max_tokens\":40,\"temperature\":0," ASKED
                         ",\"tools\":[{\"name\":\"f\",\"input_schema\":" TOOL_SCHEMA
                         "}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}}"},
        {"/api/generate", "{\"prompt\":\"a\",\"raw\":true,\"stream\":false,\"options\":{\"num_predict\":4}}"},
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":4,\"logit_bias\":[[1,false]],\"n_probs\":1}"},
        {"/apply-template", "{" ASKED "}"},
        {"/v1/completions", "{\"prompt\":[424],\"max_tokens\":4,\"echo\":true}"},
        {"/v1/completions",
         "{\"prompt\":[[424,440],[258,397]],\"max_tokens\":2,\"echo\":true,\"logprobs\":2}"},
        {"/v1/chat/completions/input_tokens", "{" ASKED "}"},
        {"/tokenize", "{" ASKED ",\"return_token_strs\":true}"},
        {"/generate", "{\"text\":[\"a\",\"b\"],\"return_logprob\":true,\"top_logprobs_num\":1,"
                      "\"sampling_params\":{\"max_new_tokens\":4,\"regex\":\"[ab]+\"}}"},
        {"/generate",
         "{\"inputs\":\"a\",\"parameters\":{\"max_new_tokens\":4,\"details\":true,\"top_n_tokens\":1}}"},
        {"/generate", "{\"prompt\":\"a\",\"max_tokens\":9,\"guided_json\":\"{\\\"const\\\":1}\"}"},
        {"/api/chat", "{" ASKED ",\"stream\":false,\"logprobs\":true,\"options\":{\"num_predict\":4}}"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        walk_other(others[i][0], strdup(others[i][1]), false);
}

/* The matcher keeps the state to which it may have to go back. */
STARVED_TEST(banned_strings_beside_a_grammar, "--speculation", "off")
{
    walk_post("/generate",
              strdup("{\"prompt\":\"Once\",\"temperature\":0,\"max_tokens\":8,\"regex\":\"[a-z ]{1,40}\","
                     "\"banned_strings\":[\"a \",\"e \",\" t\"]}"));
}

STARVED_TEST(text_and_tokens)
{
    char *content = long_body("");
    memcpy(content + 1, "\"content\":\"", 11); /* in place of "prompt":" and one letter */
    walk_post("/tokenize", content);
    walk_post("/tokenize", strdup("{\"content\":\"Once upon a time\"}"));
    walk_post("/detokenize", strdup("{\"tokens\":[11,400,282,258,389,466]}"));
}

STARVED_TEST(what_is_read)
{
    const char *paths[] = {"/stats", "/metrics", "/requests", "/v1/models", "/health", "/"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        walk_all("GET", paths[i], NULL, false);
}

/* --- who brings a key --- */

STARVED_TEST(with_a_key, "--api-keys", "alpha-key,beta-key")
{
    static const char bearer[] = "Authorization: Bearer alpha-key\r\n", plain[] = "x-api-key: beta-key\r\n";
    const struct scene scenes[] = {
        {.method = "POST",
         .path = "/generate",
         .body = "{\"prompt\":\"Once\",\"max_tokens\":2}",
         .headers = bearer},
        {.method = "POST", .path = "/tokenize", .body = "{\"content\":\"Once\"}", .headers = plain},
        {.method = "GET", .path = "/requests", .headers = plain}};
    daemon_headers = bearer;
    wait_idle();
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        walk_scene(&scenes[i]);
}

/* --- another model --- */

static void still_serves(void)
{
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
}

static void swap_again(void)
{
    admin_wait("idle");
    still_serves();
}

static void resume_again(void)
{
    admin_wait("idle");
    struct reply r = admin_post("/admin/resume", "");
    cr_assert(r.status == 200 || r.status == 202, "%d: %s", r.status, r.body);
    reply_free(&r);
    swap_again();
}

static void suspend_again(void)
{
    admin_wait("idle");
    struct reply r = admin_post("/admin/suspend", "");
    cr_assert(r.status == 200 || r.status == 202, "%d: %s", r.status, r.body);
    reply_free(&r);
    admin_wait("idle");
}

/* A failed allocation of the load itself shows in its progress, if it came before the reply: that is another
 * 202, and the model of before. Allocations of the libraries must not all fail for long: in the end no model
 * at all could be loaded. */
Test(starved, another_model, .timeout = 1200)
{
    const char *key = admin_open();
    starved_start((const char *[]){"--admin-key-file", key, "--model",
                                   HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf", "--model-dir",
                                   HEARTH_TEST_DATA, NULL});
    walk_scene(&(struct scene){.method = "GET", .path = "/admin/model", .headers = ADMIN_KEY});
    walk_scene(&(struct scene){.method = "POST",
                               .path = "/admin/model",
                               .body = "{\"model\":\"tiny-qwen3-s11-q4_k_m.gguf\"}",
                               .headers = ADMIN_KEY,
                               .again = swap_again,
                               .loads = true});
    walk_scene(&(struct scene){.method = "POST",
                               .path = "/admin/suspend",
                               .headers = ADMIN_KEY,
                               .body = "",
                               .again = resume_again,
                               .loads = true});
    suspend_again();
    walk_scene(&(struct scene){.method = "POST",
                               .path = "/admin/resume",
                               .headers = ADMIN_KEY,
                               .body = "",
                               .again = suspend_again,
                               .loads = true});
    resume_again();
    daemon_stop();
    admin_close();
}

/* The cancelled stream's own allocations are among those that fail. */
STARVED_TEST(cancel, "--speculation", "off")
{
    const struct scene delete = {.method = "DELETE", .path = "/requests/victim"};
    const char *body = "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}";
    long failed = 1;
    for (long n = 0; failed; n++) {
        struct reply stream, r;
        int fd = send_running("X-Request-Id: victim\r\n", body);
        starve_from(STARVE_OURS, n, n % 2);
        r = ask(&delete);
        failed = feed();
        cr_assert(r.status == 202 || r.status == 503 || r.status == 404, "%ld: %d %s", n, r.status, r.body);
        if (r.status != 202) {
            reply_free(&r);
            r = ask(&delete);
        }
        reply_free(&r);
        client_read(fd, &stream, false);
        if (stream.status == 200)
            check_stream(&stream, "the cancelled one");
        else
            cr_assert(stream.status == 499 || stream.status == 503, "%d: %s", stream.status, stream.body);
        reply_free(&stream);
        close(fd);
        wait_idle();
    }
}

/* A page that finds no memory is not kept; the request does not notice. */
Test(starved, the_prefix_cache_on_disk, .timeout = 1200)
{
    char *dir = temporary_dir();
    starved_start((const char *[]){"--prefix-cache-dir", dir, NULL});
    walk_post("/generate", long_body(",\"max_tokens\":2,\"ignore_eos\":true"));
    cr_assert_eq(stat_number("prefix_disk.errors"), 0);
    daemon_stop();
    temporary_dir_remove(dir);
}
