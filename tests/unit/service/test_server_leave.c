/* A client that leaves, an id that is cancelled and a deadline that passes, over an engine of the test's own:
 * in every phase that is the HTTP side's, and what the engine is told in the others. Long work of that side
 * is the pool's, and holds up nobody. */
#include "generation/generation.h"
#include "http/http.h"
#include "support/server_driver.h"

/* --- a client that leaves --- */

static void leaves_while_waiting(const char *body, int how)
{
    fake.hold = true;
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", body);
    cr_assert(wait_for(&fake.n_submitted, 1));
    if (how < 0) {
        struct linger reset = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    } else {
        shutdown(fd, how);
    }
    cr_assert(wait_for(&fake.n_cancelled, 1), "the engine was not told");
    if (how >= 0)
        close(fd);
}

SERVER_TEST(leave, a_closed_connection_cancels_what_waits)
{
    leaves_while_waiting("{\"prompt\":\"Once\"}", SHUT_RDWR);
}

SERVER_TEST(leave, a_half_closed_connection_cancels_what_waits)
{
    leaves_while_waiting("{\"prompt\":\"Once\"}", SHUT_WR);
}

SERVER_TEST(leave, a_reset_connection_cancels_what_waits)
{
    leaves_while_waiting("{\"prompt\":\"Once\",\"stream\":true}", -1);
}

SERVER_TEST(leave, a_closed_connection_cancels_a_running_stream)
{
    struct reply r = {0};
    fake.finish = ENGINE_RUNNING; /* goes on for ever after the script */
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", "{\"prompt\":\"Once\",\"stream\":true}");
    while (!r.raw || !strstr(r.raw, " cat"))
        cr_assert(reply_more(&r, fd));
    close(fd);
    cr_assert(wait_for(&fake.n_cancelled, 1), "the engine was not told");
    reply_free(&r);
}

/* --- while the body waits to be tokenised --- */

static sem_t blocked, unblock;

static void block(uv_work_t *work)
{
    (void)work;
    sem_post(&blocked);
    sem_wait(&unblock);
}

static void unblocked(uv_work_t *work, int status)
{
    (void)work;
    (void)status;
}

static void queue_block(void)
{
    static uv_work_t work;
    uv_queue_work(&f.loop, &work, block, unblocked);
}

/* Takes the pool's one thread until `unblock` is posted. */
static void take_pool(void)
{
    sem_init(&blocked, 0, 0);
    sem_init(&unblock, 0, 0);
    on_loop(queue_block);
    sem_wait(&blocked);
}

/* Takes the pool, and sends a request whose body is too large for the loop; it stays where it is until the
 * pool is free. */
static int send_to_pool(const char *headers, const char *rest)
{
    char *body = malloc(REQUEST_INLINE_BODY + 256), words[REQUEST_INLINE_BODY + 1];
    memset(words, 'a', REQUEST_INLINE_BODY);
    words[REQUEST_INLINE_BODY] = '\0';
    snprintf(body, REQUEST_INLINE_BODY + 256, "{\"user\":\"%s\",\"prompt\":\"Once\"%s}", words, rest);
    take_pool();
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/v1/completions", headers, body);
    free(body);
    for (bool seen = false; !seen;) {
        struct reply r = get("/requests");
        seen = strstr(r.body, "\"state\":\"tokenising\"") != NULL;
        reply_free(&r);
    }
    return fd;
}

static struct stats counted;
static uint32_t n_active;

static void read_figures(void)
{
    counted = f.server->stats;
    n_active = f.server->n_active;
}

/* Waits until nothing is on its way. */
static void wait_rest(void)
{
    for (n_active = 1; n_active || !(counted.cancelled + counted.timed_out); usleep(1000))
        on_loop(read_figures);
}

#define POOL_TEST(suite, name, ...)                                                                          \
    static void suite##_##name(void);                                                                        \
    Test(suite, name)                                                                                        \
    {                                                                                                        \
        setenv("UV_THREADPOOL_SIZE", "1", 1);                                                                \
        start_keys((const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL});                                       \
        suite##_##name();                                                                                    \
        stop();                                                                                              \
    }                                                                                                        \
    static void suite##_##name(void)

POOL_TEST(tokenising, a_client_that_leaves_is_not_given_to_the_engine)
{
    close(send_to_pool("", ""));
    do
        on_loop(read_figures);
    while (!counted.cancelled);
    sem_post(&unblock);
    wait_rest();
    cr_assert_eq(fake.n_submitted, 0);
    cr_assert_eq(counted.cancelled, 1);
}

POOL_TEST(tokenising, an_id_that_is_cancelled_is_a_499_and_not_given_to_the_engine)
{
    struct reply r;
    int fd = send_to_pool("X-Request-Id: x\r\n", "");
    r = client_once(f.port, "DELETE", "/requests/x", "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
    sem_post(&unblock);
    client_read(fd, &r, false);
    free(expect_error(r, 499, "cancelled"));
    close(fd);
    cr_assert_eq(fake.n_submitted, 0);
    wait_rest();
    cr_assert_eq(counted.cancelled, 1);
}

POOL_TEST(tokenising, a_body_counts_for_queue_tokens_before_it_is_read, "queue_tokens", "1000")
{
    struct reply r;
    fake.hold = true;
    int fd = send_to_pool("", "");
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full", "queue_tokens is 1000");
    sem_post(&unblock);
    cr_assert(wait_for(&fake.n_submitted, 1)); /* its prompt is one token */
    fake.hold = false;
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
}

POOL_TEST(tokenising, a_deadline_that_passed_meanwhile_is_a_504)
{
    struct reply r;
    fake.hold = true;
    int fd = send_to_pool("", ",\"queue_timeout_ms\":20");
    usleep(50000);
    sem_post(&unblock);
    client_read(fd, &r, false);
    expect_words(r, 504, "timeout", "queue_timeout_ms (20) passed");
    close(fd);
    wait_rest();
    cr_assert_eq(counted.timed_out, 1);
}

/* --- while a long reply is written --- */

static bool replying;

static void read_state(void)
{
    const struct generation *g = f.server->generations;
    replying = g && g->state == GENERATION_REPLYING;
}

/* Takes the pool, and sends a request whose tokens are all there then, but not its reply. */
static int send_for_long_reply(const char *path, const char *body)
{
    script(" there was a cat. there was a cat. there was a cat. there was a cat. there was a cat.");
    take_pool();
    int fd = client_connect(f.port);
    client_request(fd, "POST", path, "X-Request-Id: x\r\n", body);
    for (replying = false; !replying; usleep(1000))
        on_loop(read_state);
    return fd;
}

/* 8 x 25 tokens with 20 alternatives each. */
#define LONG "{\"prompt\":\"Once\",\"max_tokens\":25,\"n\":8,\"logprobs\":20}"

/* With 240 tokens of prompt and 20 alternatives. */
static char *long_prompt(const char *rest)
{
    size_t room = 4096, n = 0;
    char *body = malloc(room);
    n += (size_t)snprintf(body, room, "{\"prompt\":[7");
    for (int i = 1; i < 240; i++)
        n += (size_t)snprintf(body + n, room - n, ",%d", 7 + i % 9);
    snprintf(body + n, room - n, "],\"max_tokens\":4,\"prompt_logprobs\":20%s}", rest);
    return body;
}

/* Of what has come. */
static bool has_end(int fd)
{
    char text[65536];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_PEEK | MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "finish_reason") != NULL;
}

POOL_TEST(replying, others_are_answered_meanwhile)
{
    struct reply r;
    int fd = send_for_long_reply("/generate", LONG);
    r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    cr_assert_not(has_end(fd));
    free(expect_error(client_once(f.port, "DELETE", "/requests/x", "", NULL), 404, "not_found"));
    sem_post(&unblock);
    client_read(fd, &r, false);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "choices")), 8);
    cr_assert_eq(json_array_size(json_at(root, "choices.7.logprobs")), 25);
    cr_assert_eq(json_array_size(json_at(root, "choices.7.logprobs.24.top")), 20);
    json_decref(root);
    reply_free(&r);
    close(fd);
}

POOL_TEST(replying, a_stream_goes_as_far_as_its_text_and_ends_later)
{
    struct reply r = {0};
    struct events e;
    char *body = long_prompt(",\"stream\":true");
    int fd = send_for_long_reply("/generate", body);
    while (!r.raw || !strstr(r.raw, " cat"))
        cr_assert(reply_more(&r, fd));
    cr_assert(!has_end(fd) && !strstr(r.raw, "finish_reason"));
    sem_post(&unblock);
    while (!strstr(r.raw, "[DONE]"))
        cr_assert(reply_more(&r, fd));
    close(fd);
    reply_free(&r);
    r = post("/generate", body); /* and once more, with nobody in its way */
    events_read(&e, &r);
    cr_assert(e.done);
    cr_assert_eq(json_array_size(json_at(e.data[e.n - 1], "prompt_logprobs")), 240);
    events_free(&e);
    reply_free(&r);
    free(body);
}

POOL_TEST(replying, a_client_that_leaves_costs_nothing_more)
{
    close(send_for_long_reply("/generate", LONG));
    do
        on_loop(read_figures);
    while (!counted.cancelled);
    sem_post(&unblock);
    wait_rest();
    cr_assert_eq(counted.cancelled, 1);
    cr_assert_eq(counted.completed, 0);
}

static void drain_soon(void)
{
    server_drain(f.server, 60000, NULL, NULL);
}

POOL_TEST(replying, a_drain_waits_for_it)
{
    struct reply r;
    int fd = send_for_long_reply("/generate", LONG);
    on_loop(drain_soon);
    sem_post(&unblock);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
}

/* However many choices end before the last. */
POOL_TEST(replying, a_stream_tells_of_its_prompt_once)
{
    static const char *const routes[] = {"/generate", "/v1/completions", "/v1/chat/completions"};
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        struct events e;
        struct reply r = post(routes[i], i < 2 ? "{\"prompt\":\"Once upon\",\"n\":3,\"stream\":true,"
                                                 "\"prompt_logprobs\":2,\"max_tokens\":4}"
                                               : "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                                                 "\"n\":3,\"stream\":true,\"prompt_logprobs\":2,"
                                                 "\"max_tokens\":4}");
        cr_assert_eq(r.status, 200, "%s", r.body);
        events_read(&e, &r);
        unsigned n = 0;
        for (size_t k = 0; k < e.n; k++)
            n += json_object_get(e.data[k], "prompt_logprobs") != NULL;
        cr_assert(e.done && n == 1, "%s: %u", routes[i], n);
        events_free(&e);
        reply_free(&r);
    }
}

/* What is written on the loop stays small, whatever the model says. */
SERVER_TEST(replying, tokens_without_text_come_in_pieces)
{
    struct events e;
    size_t n_tokens = 0, n_most = 0;
    fake.n_script = 200;
    for (uint32_t i = 0; i < fake.n_script; i++)
        fake.script[i] = tokenizer_bos(f.tokenizer);
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"stream\":true,\"ignore_eos\":true,"
                                       "\"logprobs\":20,\"max_tokens\":200}");
    events_read(&e, &r);
    for (size_t i = 0; i < e.n; i++) {
        size_t n = json_array_size(json_at(e.data[i], "tokens"));
        n_most = n > n_most ? n : n_most;
        n_tokens += n;
    }
    /* Each is an entry, and so are its log-probability and the 20 alternatives. */
    cr_assert_eq(n_most, (GENERATE_INLINE_ENTRIES + 21) / 22);
    cr_assert_eq(n_tokens, 200);
    events_free(&e);
    reply_free(&r);
}
