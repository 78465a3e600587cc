/* Order and refusals of requests when there is more work than slots. */
#include "integration/harness.h"

static double queue_ms(int fd)
{
    struct reply r;
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    double ms = json_number_value(json_at(root, "timings.queue_ms"));
    json_decref(root);
    reply_free(&r);
    close(fd);
    return ms;
}

DAEMON_TEST(order, a_larger_priority_goes_first_though_it_came_later, SLOW, "--slots", "1")
{
    int running = send_as("first", "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}"), fds[3];
    wait_stat("requests.running", 1);
    fds[0] = send_as("low", "{\"prompt\":\"Once\",\"max_tokens\":30,\"ignore_eos\":true,\"priority\":-50}");
    wait_stat("requests.waiting", 1);
    fds[1] = send_as("usual", "{\"prompt\":\"Once\",\"max_tokens\":30,\"ignore_eos\":true}");
    wait_stat("requests.waiting", 2);
    fds[2] = send_as("high", "{\"prompt\":\"Once\",\"max_tokens\":30,\"ignore_eos\":true,\"priority\":50}");
    wait_stat("requests.waiting", 3);
    close(running);
    double low = queue_ms(fds[0]), usual = queue_ms(fds[1]), high = queue_ms(fds[2]);
    cr_assert(high < usual && usual < low, "waited %g, %g and %g ms", high, usual, low);
}

/* Fills the queue and returns the Retry-After of one more. */
static int refused_for_s(void)
{
    int fds[9];
    for (int i = 0; i < 9; i++)
        fds[i] = send_as("x", "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}");
    wait_stat("requests.waiting", 8);
    struct reply r = post("/generate", "{\"prompt\":\"Once\"}");
    const char *text = reply_header(&r, "Retry-After");
    cr_assert_not_null(text);
    int seconds = atoi(text);
    free(expect_error(r, 503, "queue_full"));
    for (int i = 0; i < 9; i++)
        close(fds[i]);
    wait_stat("requests.waiting", 0);
    wait_stat("requests.running", 0);
    return seconds;
}

/* However few there were: a burst after a quiet time must not keep its clients away for a minute. */
DAEMON_TEST(refused, the_wait_named_is_the_queue_times_what_recent_requests_took, SLOW, "--slots", "1",
            "--queue-limit", "8")
{
    json_decref(
        generate("{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"timeout_ms\":1000}"));
    int after_long = refused_for_s();
    cr_assert(after_long >= 4 && after_long <= 30, "Retry-After: %d", after_long); /* eight of a second */
    for (int i = 0; i < 60; i++)
        json_decref(generate("{\"prompt\":\"Once\",\"max_tokens\":1}"));
    int after_short = refused_for_s();
    cr_assert(after_short < after_long, "Retry-After: %d, then %d", after_long, after_short);
}

DAEMON_TEST(refused, every_choice_counts_but_one_place_is_enough, SLOW, "--slots", "4", "--queue-limit", "1")
{
    int running = send_as("a", "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":4}");
    wait_stat("requests.running", 4);
    int waiting = send_as("b", "{\"prompt\":\"Once\",\"max_tokens\":2,\"ignore_eos\":true,\"n\":4}");
    wait_stat("requests.waiting", 4);
    free(expect_error(post("/generate", "{\"prompt\":\"Once\"}"), 503, "queue_full"));
    close(running);
    struct reply r;
    client_read(waiting, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(waiting);
}
