/* Bodies that are read on the pool, over an engine of the test's own: no class of work waits for another,
 * what a body costs decides where it is read, and texts leave room for generations. */
#include "generation/constraint.h"
#include "generation/generation.h"
#include "http/http.h"
#include "service/server_private.h"
#include "support/server_driver.h"

/* A body of more than n bytes. */
static char *body_of(const char *before, size_t n, const char *after)
{
    size_t room = strlen(before) + n + strlen(after) + 1;
    char *body = malloc(room), *at = stpcpy(body, before);
    memset(at, 'a', n);
    strcpy(at + n, after);
    return body;
}

static int send_sized(const char *path, const char *before, size_t n, const char *after)
{
    char *body = body_of(before, n, after);
    int fd = client_connect(f.port);
    client_request(fd, "POST", path, "", body);
    free(body);
    return fd;
}

static int send_text(size_t n)
{
    return send_sized("/tokenize", "{\"content\":\"", n, "\"}");
}

static int send_prompt(size_t n)
{
    return send_sized("/v1/completions", "{\"prompt\":\"Once\",\"user\":\"", n, "\"}");
}

static void expect_ok(int fd)
{
    struct reply r;
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
}

static void expect_refused(int fd, int status, const char *type, const char *words)
{
    struct reply r;
    client_read(fd, &r, false);
    expect_words(r, status, type, words);
    close(fd);
}

static struct {
    uint32_t n_texts, n_preparing, n_expensive;
    uint64_t n_cancelled;
} seen;

static void look(void)
{
    seen.n_texts = f.server->generator.n_texts;
    seen.n_preparing = f.server->generator.n_preparing;
    seen.n_expensive = f.server->generator.model->n_expensive;
    seen.n_cancelled = f.server->http.stats.cancelled;
}

static void wait_texts(uint32_t n)
{
    for (seen.n_texts = n + 1; seen.n_texts != n; usleep(1000))
        on_loop(look);
}

static void wait_preparing(uint32_t n)
{
    for (seen.n_preparing = n + 1; seen.n_preparing != n; usleep(1000))
        on_loop(look);
}

/* --- classes --- */

SERVER_TEST(pool, texts_hold_up_no_generation)
{
    take_pool(POOL_TEXT);
    int text = send_text(100000), ids = send_sized("/detokenize", "{\"tokens\":[7],\"", 5000, "\":1}");
    wait_texts(2);
    expect_ok(send_prompt(5000));
    expect_ok(send_prompt(100000));
    let_go();
    expect_ok(text);
    expect_refused(ids, 400, "invalid_request", "unknown field");
}

SERVER_TEST(pool, long_prompts_hold_up_no_short_one_and_no_text)
{
    take_pool(POOL_LONG_PROMPT);
    int prompt = send_prompt(100000);
    wait_preparing(1);
    expect_ok(send_prompt(5000));
    expect_ok(send_text(5000));
    let_go();
    expect_ok(prompt);
}

static int send_constrained(void)
{
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":4,\"regex\":\"[a-z]*\"}");
    return fd;
}

static void open_constraints(void)
{
    struct server_model *m = f.server->generator.model;
    cr_assert_eq(constraints_open(&m->constraints, m->tokenizer, UINT32_MAX, 1 << 20, NULL), 0);
}

static void close_constraints(void)
{
    struct server_model *m = f.server->generator.model;
    constraints_close(m->constraints);
    m->constraints = NULL;
}

/* A matcher begins with a search, and that of a grammar which is known already is no exception. */
SERVER_TEST(pool, a_matcher_is_not_begun_on_the_loop)
{
    on_loop(open_constraints);
    expect_ok(send_constrained());
    take_pool(POOL_PROMPT);
    int again = send_constrained();
    wait_preparing(1);
    expect_ok(send_prompt(100)); /* on the loop, which is free */
    let_go();
    expect_ok(again);
    on_loop(look);
    cr_assert_eq(seen.n_expensive, 0, "chats are not to blame");
    on_loop(close_constraints);
}

static struct chat_template *with_tools;

/* The model's template, for a while, is one that knows tools. */
static void show_tools(void)
{
    static const char template[] = "{% for t in tools %}{% endfor %}{{ messages[0].content }}";
    char path[] = "/tmp/hearth-tools-XXXXXX";
    struct server_model *m = f.server->generator.model;
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, template, strlen(template)), (ssize_t)strlen(template));
    close(fd);
    cr_assert_eq(chat_template_open(&with_tools, path, model_gguf(f.model), f.tokenizer, NULL), 0);
    m->chat = with_tools;
    (void)unlink(path);
}

static void hide_tools(void)
{
    struct server_model *m = f.server->generator.model;
    m->chat = f.chat;
    chat_template_close(with_tools);
}

/* A chat that must call one of n functions, each with `parameters`. */
static int send_tools(int n, const char *parameters)
{
    static const char before[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":4,"
                                 "\"chat_format\":\"hermes\",\"tool_choice\":\"required\",\"tools\":[";
    size_t each = strlen(parameters) + 100;
    char *body = malloc(sizeof before + (size_t)n * each), *at = stpcpy(body, before);
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%d\"%s}}", i ? "," : "", i,
                      parameters);
    strcpy(at, "]}");
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/v1/chat/completions", "", body);
    free(body);
    return fd;
}

/* They wait for a thread of the pool, of the class that no short prompt needs; those with large schemas are
 * refused by the number of their values. */
SERVER_TEST(pool, a_thousand_tools_hold_up_no_other_generation)
{
    on_loop(open_constraints);
    on_loop(show_tools);
    take_pool(POOL_LONG_PROMPT);
    int tools = send_tools(1000, "");
    wait_preparing(1);
    expect_ok(send_prompt(100));
    expect_ok(send_prompt(5000));
    let_go();
    expect_ok(tools);
    expect_refused(send_tools(1000, ",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                                    "\"string\"}},\"required\":[\"a\"]}"),
                   400, "invalid_request", "the body has more than");
    on_loop(hide_tools);
    on_loop(close_constraints);
}

/* --- clients --- */

static int send_long_as(const char *key)
{
    char header[64], *body = body_of("{\"prompt\":\"Once\",\"user\":\"", 100000, "\"}");
    int fd = client_connect(f.port);
    snprintf(header, sizeof header, "x-api-key: %s\r\n", key);
    client_request(fd, "POST", "/v1/completions", header, body);
    free(body);
    return fd;
}

SERVER_TEST(pool, long_prompts_of_one_client_do_not_go_before_all_of_another, "api_keys", "one, two")
{
    int fds[4];
    take_pool(POOL_LONG_PROMPT);
    for (uint32_t i = 0; i < 4; i++) {
        fds[i] = send_long_as(i < 3 ? "one" : "two");
        wait_preparing(i + 1);
    }
    let_go();
    for (int i = 0; i < 4; i++)
        expect_ok(fds[i]);
    uint64_t first = fake.salts[0], other = 0, at = 0;
    for (uint64_t i = 1; i < 4; i++)
        if (fake.salts[i] != first) {
            other = fake.salts[i];
            at = i;
        }
    cr_assert(other && at < 3, "it is number %llu", (unsigned long long)at);
}

SERVER_TEST(pool, a_text_that_waits_goes_when_its_client_leaves)
{
    take_pool(POOL_TEXT);
    int text = send_text(100000);
    wait_texts(1);
    close(text);
    wait_texts(0);
    let_go();
}

SERVER_TEST(pool, a_prompt_that_waits_goes_when_its_client_leaves)
{
    take_pool(POOL_LONG_PROMPT);
    int prompt = send_prompt(100000);
    wait_preparing(1);
    close(prompt);
    wait_preparing(0);
    let_go();
}

static void drain_at_once(void)
{
    server_drain(f.server, 60000, NULL, NULL);
}

SERVER_TEST(pool, what_waits_is_refused_when_a_drain_begins)
{
    take_pool(POOL_LONG_PROMPT);
    int prompt = send_prompt(100000);
    wait_preparing(1);
    on_loop(drain_at_once);
    expect_refused(prompt, 503, "draining", "shutting down");
    let_go();
}

/* Lets the pool go once no text waits for it. */
static void *let_go_later(void *arg)
{
    for (int i = 0; i < 100000 && __atomic_load_n(&f.server->generator.n_texts, __ATOMIC_RELAXED); i++)
        usleep(1000);
    let_go();
    return arg;
}

/* stop() expects an end within its time. */
SERVER_TEST(pool, texts_that_wait_hold_up_no_end)
{
    pthread_t thread;
    take_pool(POOL_TEXT);
    for (uint32_t i = 0; i < 3; i++) {
        send_text(100000);
        wait_texts(i + 1);
    }
    on_loop(stop_loop);
    pthread_join(f.thread, NULL);
    pthread_create(&thread, NULL, let_go_later, NULL);
    cr_assert_eq(server_end(f.server), 0);
    pthread_join(thread, NULL);
    pthread_create(&f.thread, NULL, run_loop, NULL); /* for stop() */
}

/* --- what texts may take --- */

SERVER_TEST(pool, texts_that_wait_are_counted_by_queue_limit, "queue_limit", "1")
{
    take_pool(POOL_TEXT);
    int first = send_text(5000), second;
    wait_texts(1);
    second = send_text(5000);
    wait_texts(2);
    expect_refused(send_text(5000), 503, "queue_full", "1 request is waiting, queue_limit is 1");
    expect_refused(send_sized("/detokenize", "{\"tokens\":[", 5000, "]}"), 503, "queue_full", "queue_limit");
    expect_ok(send_text(50)); /* need not wait */
    expect_ok(send_prompt(5000));
    let_go();
    expect_ok(first);
    expect_ok(second);
    expect_ok(send_text(5000));
}

SERVER_TEST(pool, a_text_whose_length_is_not_told_is_counted_too, "queue_limit", "1")
{
    take_pool(POOL_TEXT);
    int first = send_text(5000), second = send_text(5000);
    wait_texts(2);
    char *body = body_of("1400\r\n{\"content\":\"", 0x1400 - 14, "\"}\r\n0\r\n\r\n");
    int third = client_connect(f.port);
    client_puts(third, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_puts(third, body);
    expect_refused(third, 503, "queue_full", "queue_limit is 1");
    free(body);
    let_go();
    expect_ok(first);
    expect_ok(second);
}

/* Over an engine that has no free slot. */
SERVER_TEST(pool, texts_wait_behind_generations, "queue_limit", "2")
{
    fake.hold = true;
    take_pool(POOL_TEXT);
    int first = send_text(5000), prompts[2];
    wait_texts(1);
    for (unsigned i = 0; i < 2; i++) {
        prompts[i] = send_prompt(10);
        cr_assert(wait_for(&fake.n_submitted, i + 1));
    }
    expect_refused(send_text(5000), 503, "queue_full", "2 requests are waiting");
    fake.hold = false;
    expect_ok(prompts[0]);
    expect_ok(prompts[1]);
    let_go();
    expect_ok(first);
}

SERVER_TEST(pool, texts_are_counted_by_client_limit, "client_limit", "2")
{
    take_pool(POOL_TEXT);
    int first = send_text(5000), second = send_text(5000);
    wait_texts(2);
    expect_refused(send_text(5000), 429, "rate_limited", "client_limit");
    let_go();
    expect_ok(first);
    expect_ok(second);
}

/* A body takes a power of two. */
SERVER_TEST(pool, bodies_of_texts_leave_half_of_body_memory, "body_memory", "64K")
{
    take_pool(POOL_TEXT);
    int text = send_text(20000);
    wait_texts(1);
    expect_refused(send_text(5000), 503, "queue_full", "body_memory");
    expect_ok(send_prompt(20000));
    let_go();
    expect_ok(text);
    expect_ok(send_text(50000)); /* one alone may take all */
}

/* --- what a chat costs --- */

static struct chat_template *templates[4];
static const struct chat_template *next_template;

static void set_template(void)
{
    f.server->generator.model->chat = next_template;
    f.server->generator.model->n_ctx = 100000;
    f.server->generator.model->n_expensive = 0;
}

static void use_template(int i, const char *source)
{
    struct error err = {0};
    char path[] = "/tmp/hearth-template-XXXXXX";
    int fd = mkstemp(path);
    cr_assert_eq(write(fd, source, strlen(source)), (ssize_t)strlen(source));
    close(fd);
    cr_assert_eq(chat_template_open(&templates[i], path, model_gguf(f.model), f.tokenizer, &err), 0, "%s",
                 err.text);
    unlink(path);
    next_template = templates[i];
    on_loop(set_template);
}

static void close_templates(void)
{
    next_template = f.chat;
    on_loop(set_template);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        chat_template_close(templates[i]);
}

static int send_chat(const char *content)
{
    char body[256];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":2}",
             content);
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/v1/chat/completions", "", body);
    return fd;
}

/* {{ messages[0].content }}, with much to do where that is "slow". */
#define EXPENSIVE(work) "{% if messages[0].content == 'slow' %}" work "{% endif %}{{ messages[0].content }}"

/* A body of a hundred bytes that takes the template long is prepared elsewhere, and again elsewhere when that
 * takes too long there. */
SERVER_TEST(pool, a_chat_is_prepared_where_its_template_takes_no_longer_than_it_may)
{
    static const struct {
        const char *source;
        enum pool_class class;
    } expensive[] = {
        {EXPENSIVE("{% for i in range(3000) %}{% set x = i %}{% endfor %}"), POOL_PROMPT},
        {EXPENSIVE("{% for i in range(30000) %}{% set x = i %}{% endfor %}"), POOL_LONG_PROMPT},
        {EXPENSIVE("{% set x = ([2.2250738585072011e-308] * 1000)|string %}"), POOL_PROMPT},
        {EXPENSIVE("{{ 'a' * 20000 }}"), POOL_PROMPT}, /* text that has to be tokenised */
    };
    for (int i = 0; i < 4; i++) {
        use_template(i, expensive[i].source);
        expect_ok(send_chat("quick"));
        take_pool(expensive[i].class);
        int fd = send_chat("slow");
        wait_preparing(1);
        expect_ok(send_sized("/generate", "{\"prompt\":\"Once", 10, "\"}"));
        on_loop(look);
        cr_assert_eq(seen.n_preparing, 1, "it was prepared on the loop");
        let_go();
        expect_ok(fd);
    }
    close_templates();
}

SERVER_TEST(pool, after_one_that_was_expensive_chats_are_not_tried_on_the_loop_for_a_while)
{
    use_template(0, EXPENSIVE("{% for i in range(3000) %}{% set x = i %}{% endfor %}"));
    expect_ok(send_chat("slow"));
    take_pool(POOL_PROMPT);
    int fd = send_chat("quick");
    wait_preparing(1);
    let_go();
    expect_ok(fd);
    for (seen.n_expensive = 1; seen.n_expensive; on_loop(look))
        expect_ok(send_chat("quick"));
    take_pool(POOL_PROMPT);
    expect_ok(send_chat("quick"));
    let_go();
    close_templates();
}

SERVER_TEST(pool, what_no_place_allows_is_a_400_once)
{
    use_template(0,
                 EXPENSIVE("{% for i in range(99999) %}{% for k in range(999) %}{% endfor %}{% endfor %}"));
    expect_refused(send_chat("slow"), 400, "invalid_request", "more than 100000 operations");
    close_templates();
}

/* The client leaves, or the id is cancelled, between two places. */
SERVER_TEST(pool, an_expensive_chat_that_is_given_up_is_not_prepared_again)
{
    use_template(0, EXPENSIVE("{% for i in range(30000) %}{% set x = i %}{% endfor %}"));
    take_pool(POOL_PROMPT);
    int fd = send_chat("slow");
    wait_preparing(1);
    close(fd);
    for (seen.n_cancelled = 0; !seen.n_cancelled; usleep(1000))
        on_loop(look);
    let_go();
    wait_preparing(0);
    cr_assert_eq(fake.n_submitted, 0);
    close_templates();
}
