/* Streams of the real daemon: the same text in pieces, and a client that leaves in any phase. */
#include "integration/harness.h"

#define BODY(rest) "{\"prompt\":\"Once upon a time\",\"temperature\":0" rest "}"

static struct events streamed(const char *body)
{
    struct events e;
    struct reply r = post("/generate", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert(!r.cut);
    events_read(&e, &r);
    cr_assert(e.done);
    reply_free(&r);
    return e;
}

static void same_as_whole(const char *streaming, const char *whole)
{
    struct events e = streamed(streaming);
    json_t *root = generate(whole);
    char *text = events_text(&e, "text");
    const json_t *last = e.data[e.n - 1];
    cr_assert_str_eq(text, json_text(root, "text"));
    cr_assert_str_eq(json_text(last, "finish_reason"), json_text(root, "finish_reason"));
    cr_assert(json_equal(json_at(last, "usage.completion_tokens"), json_at(root, "usage.completion_tokens")));
    json_t *tokens = json_array();
    for (size_t i = 0; i < e.n; i++)
        json_array_extend(tokens, json_at(e.data[i], "tokens"));
    cr_assert(json_equal(tokens, json_at(root, "tokens")));
    json_decref(tokens);
    json_decref(root);
    free(text);
    events_free(&e);
}

DAEMON_TEST(stream, the_pieces_join_to_the_whole_reply)
{
    same_as_whole(BODY(",\"max_tokens\":60,\"stream\":true"), BODY(",\"max_tokens\":60"));
}

DAEMON_TEST(stream, a_stop_string_gives_the_same_text_streamed_and_whole)
{
    same_as_whole(BODY(",\"max_tokens\":60,\"stream\":true,\"stop\":\"a little\""),
                  BODY(",\"max_tokens\":60,\"stop\":\"a little\""));
}

DAEMON_TEST(stream, log_probabilities_come_with_their_tokens)
{
    struct events e = streamed(BODY(",\"max_tokens\":8,\"stream\":true,\"logprobs\":2"));
    for (size_t i = 0; i < e.n; i++)
        cr_assert_eq(json_array_size(json_at(e.data[i], "logprobs")),
                     json_array_size(json_at(e.data[i], "tokens")));
    events_free(&e);
}

DAEMON_TEST(stream, many_streams_at_once_give_each_its_own_text)
{
    int fds[24];
    json_t *root = generate(BODY(",\"max_tokens\":40"));
    for (int i = 0; i < 24; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", "/generate", "", BODY(",\"max_tokens\":40,\"stream\":true"));
    }
    for (int i = 0; i < 24; i++) {
        struct reply r;
        struct events e;
        client_read(fds[i], &r, false);
        cr_assert_eq(r.status, 200, "%s", r.body);
        events_read(&e, &r);
        char *text = events_text(&e, "text");
        cr_assert_str_eq(text, json_text(root, "text"));
        free(text);
        events_free(&e);
        reply_free(&r);
        close(fds[i]);
    }
    json_decref(root);
}

DAEMON_TEST(stream, an_error_before_the_first_text_is_a_status)
{
    free(expect_error(post("/generate", BODY(",\"stream\":true,\"max_tokens\":5000")), 400,
                      "context_exceeded"));
}

DAEMON_TEST(stream, an_old_client_gets_the_stream_without_chunks)
{
    struct reply r = {0};
    int fd = client_connect(daemon_.port);
    const char *body = BODY(",\"max_tokens\":5,\"stream\":true");
    char head[128];
    snprintf(head, sizeof head, "POST /generate HTTP/1.0\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    client_puts(fd, head);
    client_puts(fd, body);
    while (reply_more(&r, fd))
        ;
    cr_assert_not_null(strstr(r.raw, "data: [DONE]"), "%s", r.raw);
    reply_free(&r);
    close(fd);
}

/* --- leaving --- */

#define ENDLESS "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true}"

static int start_stream(void)
{
    struct reply r = {0};
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "", ENDLESS);
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd));
    reply_free(&r);
    return fd;
}

DAEMON_TEST(leave, a_closed_stream_stops_computing, SLOW)
{
    int fd = start_stream();
    close(fd);
    wait_stat("requests.running", 0);
    cr_assert_eq(stat_number("requests.cancelled"), 1);
    cr_assert_lt(stat_number("tokens.generated"), 1000);
}

DAEMON_TEST(leave, a_half_closed_stream_stops_computing, SLOW)
{
    int fd = start_stream();
    shutdown(fd, SHUT_WR);
    wait_stat("requests.running", 0);
    cr_assert_eq(stat_number("requests.cancelled"), 1);
    close(fd);
}

DAEMON_TEST(leave, a_waiting_request_leaves_the_queue, SLOW, "--slots", "1")
{
    int running = start_stream(), waiting = client_connect(daemon_.port);
    client_request(waiting, "POST", "/generate", "", "{\"prompt\":\"Once\"}");
    wait_stat("requests.waiting", 1);
    close(waiting);
    wait_stat("requests.waiting", 0);
    close(running);
    wait_stat("requests.running", 0);
    cr_assert_eq(stat_number("requests.cancelled"), 2);
}

DAEMON_TEST(leave, a_long_prompt_is_given_up_in_prefill)
{
    char *body = long_prompt("once upon a time ", 200, ",\"max_tokens\":100,\"cache_prompt\":false");
    for (int i = 0; i < 8; i++) {
        int fd = client_connect(daemon_.port);
        client_request(fd, "POST", "/generate", "", body);
        if (i % 2)
            usleep(2000);
        close(fd);
    }
    wait_stat("requests.running", 0);
    wait_stat("requests.waiting", 0);
    cr_assert_lt(stat_number("tokens.generated"), 8 * 100);
    free(body);
}

/* Requests that were refused or failed; a client that leaves counts as cancelled, in its body too. */
static long long n_refused(void)
{
    return stat_number("requests.failed") + stat_number("requests.rejected") +
           stat_number("requests.timed_out");
}

DAEMON_TEST(leave, half_a_body_is_no_request)
{
    long long prompt = stat_number("tokens.prompt"), refused = n_refused();
    int fd = client_connect(daemon_.port);
    client_puts(fd, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\":");
    close(fd);
    json_t *root = generate("{\"prompt\":\"Once\",\"max_tokens\":1}");
    wait_stat("requests.running", 0);
    cr_assert_eq(n_refused(), refused);
    cr_assert_eq(stat_number("tokens.prompt"),
                 prompt + json_integer_value(json_at(root, "usage.prompt_tokens")));
    json_decref(root);
}

DAEMON_TEST(leave, hundreds_of_aborts_leave_nothing_behind)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/200", daemon_.pid);
    for (int i = 0; i < 300; i++) {
        int fd = client_connect(daemon_.port);
        client_request(fd, "POST", "/generate", "",
                       i % 2 ? ENDLESS : "{\"prompt\":\"Once\",\"max_tokens\":50}");
        if (i % 3 == 0)
            usleep(1000);
        if (i % 5 == 0) {
            struct linger reset = {.l_onoff = 1};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        close(fd);
    }
    wait_stat("requests.running", 0);
    wait_stat("requests.waiting", 0);
    cr_assert_neq(access(path, F_OK), 0, "descriptors were left open");
    json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
}
