/* A client that leaves, an id that is cancelled and a deadline that passes, over an engine of the test's own:
 * in every phase that is the HTTP side's, and what the engine is told in the others. (While a reply is taken:
 * test_server_replies.c.) */
#include "generation/generation.h"
#include "http/http.h"
#include "service/server_private.h"
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

/* Takes the pool, and sends a request whose body is too large for the loop; it stays where it is until the
 * pool is free. */
static int send_to_pool(const char *headers, const char *rest)
{
    char *body = malloc(REQUEST_INLINE_BODY + 256), words[REQUEST_INLINE_BODY + 1];
    memset(words, 'a', REQUEST_INLINE_BODY);
    words[REQUEST_INLINE_BODY] = '\0';
    snprintf(body, REQUEST_INLINE_BODY + 256, "{\"user\":\"%s\",\"prompt\":\"Once\"%s}", words, rest);
    take_pool(POOL_PROMPT);
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
    counted = f.server->http.stats;
    n_active = f.server->generator.n_active;
}

/* Waits until nothing is on its way. */
static void wait_rest(void)
{
    for (n_active = 1; n_active || !(counted.cancelled + counted.timed_out); usleep(1000))
        on_loop(read_figures);
}

SERVER_TEST(tokenising, a_client_that_leaves_is_not_given_to_the_engine)
{
    close(send_to_pool("", ""));
    do
        on_loop(read_figures);
    while (!counted.cancelled);
    let_go();
    wait_rest();
    cr_assert_eq(fake.n_submitted, 0);
    cr_assert_eq(counted.cancelled, 1);
}

SERVER_TEST(tokenising, an_id_that_is_cancelled_is_a_499_and_not_given_to_the_engine)
{
    struct reply r;
    int fd = send_to_pool("X-Request-Id: x\r\n", "");
    r = client_once(f.port, "DELETE", "/requests/x", "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
    let_go();
    client_read(fd, &r, false);
    free(expect_error(r, 499, "cancelled"));
    close(fd);
    cr_assert_eq(fake.n_submitted, 0);
    wait_rest();
    cr_assert_eq(counted.cancelled, 1);
}

SERVER_TEST(tokenising, a_body_counts_for_queue_tokens_before_it_is_read, "queue_tokens", "1000")
{
    struct reply r;
    fake.hold = true;
    int fd = send_to_pool("", "");
    expect_words(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full", "queue_tokens is 1000");
    let_go();
    cr_assert(wait_for(&fake.n_submitted, 1)); /* its prompt is one token */
    fake.hold = false;
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
}

SERVER_TEST(tokenising, a_deadline_that_passed_meanwhile_is_a_504)
{
    struct reply r;
    fake.hold = true;
    int fd = send_to_pool("", ",\"queue_timeout_ms\":20");
    usleep(50000);
    let_go();
    client_read(fd, &r, false);
    expect_words(r, 504, "timeout", "queue_timeout_ms (20) passed");
    close(fd);
    wait_rest();
    cr_assert_eq(counted.timed_out, 1);
}
