/* Several choices of one prompt, of the real daemon and in each dialect: every one is the text that its seed
 * gives alone, whole and streamed, and the prompt is computed and counted once. */
#include "integration/harness.h"

#define PROMPT   "\"prompt\":\"Once upon a time\",\"max_tokens\":40"
#define COMPLETE "/v1/completions"
#define CHAT     "/v1/chat/completions"
#define DOG      "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story about a dog.\"}]"

/* Returns the choice with this seed, asked for alone; to decref. */
static json_t *alone(const char *fields, long long seed)
{
    char body[512];
    snprintf(body, sizeof body, "{%s,\"seed\":%lld}", fields, seed);
    return generate(body);
}

static void check_choices(const char *fields, int n)
{
    char body[512];
    snprintf(body, sizeof body, "{%s,\"seed\":7,\"n\":%d}", fields, n);
    json_t *root = generate(body);
    long long completion_tokens = 0;
    cr_assert_eq(json_array_size(json_at(root, "choices")), (size_t)n);
    for (int i = 0; i < n; i++) {
        const json_t *c = json_array_get(json_at(root, "choices"), (size_t)i);
        json_t *one = alone(fields, 7 + i);
        static const char *const same[] = {"text", "tokens", "finish_reason", "stop", "seed", "logprobs"};
        cr_assert_eq(json_number(c, "index"), i);
        for (size_t k = 0; k < sizeof same / sizeof *same; k++)
            cr_assert(json_equal(json_object_get(c, same[k]), json_object_get(one, same[k])) ||
                          (!json_object_get(c, same[k]) && !json_object_get(one, same[k])),
                      "choice %d: %s", i, same[k]);
        completion_tokens += json_number(one, "usage.completion_tokens");
        cr_assert_eq(json_number(root, "usage.prompt_tokens"), json_number(one, "usage.prompt_tokens"));
        json_decref(one);
    }
    cr_assert_eq(json_number(root, "usage.completion_tokens"), completion_tokens);
    cr_assert_eq(json_number(root, "seed"), 7);
    json_decref(root);
}

DAEMON_TEST(choices, each_is_the_text_of_its_seed)
{
    check_choices(PROMPT, 2);
    check_choices(PROMPT ",\"logprobs\":3,\"repetition_penalty\":1.2", 8);
    check_choices(PROMPT ",\"temperature\":2,\"stop\":[\" the\",\"and\"]", 8);
}

DAEMON_TEST(choices, more_of_them_than_slots_are_the_same_texts, "--slots", "1", "--queue-limit", "1")
{
    check_choices(PROMPT, 4);
}

/* Eight are computed together, the others follow one by one. */
DAEMON_TEST(choices, as_many_as_openai_allows_are_the_same_texts, "--slots", "12", "--queue-limit", "1")
{
    check_choices("\"prompt\":\"Once upon a time\",\"max_tokens\":5,\"logprobs\":1", 128);
}

DAEMON_TEST(choices, many_computed_anew_are_the_same_texts, "--slots", "3")
{
    check_choices(PROMPT ",\"cache_prompt\":false", 20);
}

/* Those that follow are not in the queue, which has room for one. */
DAEMON_TEST(choices, many_of_them_do_not_fill_the_queue, SLOW, "--slots", "2", "--queue-limit", "1")
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "X-Request-Id: many\r\n",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":100}");
    wait_stat("requests.running", 2);
    cr_assert_eq(stat_number("requests.waiting"), 0);
    int other = client_connect(daemon_.port);
    client_request(other, "POST", "/generate", "", "{\"prompt\":\"Once\",\"max_tokens\":1}");
    wait_stat("requests.waiting", 1);
    r = client_once(daemon_.port, "DELETE", "/requests/many", "", NULL);
    reply_free(&r);
    client_read(fd, &r, false);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "choices")), 100);
    cr_assert_str_eq(json_text(json_at(root, "choices.99"), "finish_reason"), "cancelled");
    json_decref(root);
    reply_free(&r);
    client_read(other, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
    close(other);
}

DAEMON_TEST(choices, a_backend_that_shares_no_pages_gives_the_same_texts, "--arithmetic", "exact",
            "--executor", "eager", "--threads", "1")
{
    check_choices("\"prompt\":\"Once upon a time\",\"max_tokens\":6", 3);
}

DAEMON_TEST(choices, the_prompt_is_computed_once)
{
    char *body = long_prompt("One day a cat sat. ", 60, ",\"max_tokens\":2,\"n\":8,\"cache_prompt\":false");
    json_t *root = generate(body);
    cr_assert_eq(stat_number("tokens.prompt"), json_number(root, "usage.prompt_tokens"));
    cr_assert_eq(json_number(root, "usage.completion_tokens"), 16);
    json_decref(root);
    free(body);
}

DAEMON_TEST(choices, prompt_log_probabilities_come_once)
{
    json_t *root = generate("{" PROMPT ",\"n\":2,\"prompt_logprobs\":1}");
    cr_assert_eq(json_array_size(json_at(root, "prompt_logprobs")), 4);
    cr_assert_null(json_object_get(json_at(root, "choices.0"), "prompt_logprobs"));
    json_decref(root);
}

/* --- streams --- */

/* The text of one choice out of a stream's events: `name` of the event or, within choices, of its `inner`. */
static char *joined(const struct events *e, long long index, const char *inner, const char *name, bool list)
{
    char *text = calloc(1, 65536);
    for (size_t i = 0; i < e->n; i++) {
        const json_t *c = list ? json_array_get(json_at(e->data[i], "choices"), 0) : e->data[i];
        const json_t *piece = json_object_get(inner ? json_object_get(c, inner) : c, name);
        if (json_integer_value(json_object_get(c, "index")) == index && json_is_string(piece))
            strcat(text, json_string_value(piece));
    }
    return text;
}

static struct events streamed(const char *path, const char *body)
{
    struct events e;
    struct reply r = post(path, body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_assert(!r.cut);
    events_read(&e, &r);
    cr_assert(e.done);
    reply_free(&r);
    return e;
}

DAEMON_TEST(choices, a_stream_tells_them_apart_by_index)
{
#define STREAMED PROMPT ",\"temperature\":1.5,\"stop\":\" the\",\"n\":4,\"seed\":3"
    json_t *whole = generate("{" STREAMED "}");
    struct events e = streamed("/generate", "{" STREAMED ",\"stream\":true}");
    for (long long k = 0; k < 4; k++) {
        const json_t *c = json_array_get(json_at(whole, "choices"), (size_t)k), *end = NULL;
        char *text = joined(&e, k, NULL, "text", false);
        cr_assert_str_eq(text, json_text(c, "text"));
        for (size_t i = 0; i + 1 < e.n; i++)
            if (json_number(e.data[i], "index") == k && json_object_get(e.data[i], "finish_reason"))
                end = e.data[i];
        cr_assert_not_null(end, "choice %lld has no end", k);
        cr_assert_str_eq(json_text(end, "finish_reason"), json_text(c, "finish_reason"));
        cr_assert_eq(json_number(end, "seed"), 3 + k);
        free(text);
    }
    const json_t *last = e.data[e.n - 1];
    cr_assert_null(json_object_get(last, "index"));
    cr_assert(
        json_equal(json_at(last, "usage.completion_tokens"), json_at(whole, "usage.completion_tokens")));
    cr_assert_not_null(json_at(last, "timings.ttft_ms"));
    json_decref(whole);
    events_free(&e);
}

static void check_openai(const char *path, const char *fields, const char *whole_text, const char *inner,
                         const char *name)
{
    char body[512];
    snprintf(body, sizeof body, "{%s,\"max_tokens\":30,\"n\":3,\"seed\":5}", fields);
    json_t *whole = post_ok(path, body);
    snprintf(body, sizeof body,
             "{%s,\"max_tokens\":30,\"n\":3,\"seed\":5,\"stream\":true,\"stream_options\":{\"include_usage\":"
             "true}}",
             fields);
    struct events e = streamed(path, body);
    cr_assert_eq(json_array_size(json_at(whole, "choices")), 3);
    long long n_tokens = 0;
    for (long long k = 0; k < 3; k++) {
        snprintf(body, sizeof body, "{%s,\"max_tokens\":30,\"seed\":%lld}", fields, 5 + k);
        json_t *one = post_ok(path, body);
        const json_t *c = json_array_get(json_at(whole, "choices"), (size_t)k);
        char *text = joined(&e, k, inner, name, true);
        cr_assert_eq(json_number(c, "index"), k);
        cr_assert_str_eq(json_text(c, whole_text),
                         json_text(json_array_get(json_at(one, "choices"), 0), whole_text));
        cr_assert_str_eq(text, json_text(c, whole_text));
        n_tokens += json_number(one, "usage.completion_tokens");
        free(text);
        json_decref(one);
    }
    cr_assert_eq(json_number(whole, "usage.completion_tokens"), n_tokens);
    cr_assert_eq(json_number(e.data[e.n - 1], "usage.completion_tokens"), n_tokens);
    json_decref(whole);
    events_free(&e);
}

DAEMON_TEST(choices, completions_give_them_as_the_dialect_says)
{
    check_openai(COMPLETE, "\"prompt\":\"Once\"", "text", NULL, "text");
    json_decref(post_ok(COMPLETE, "{\"prompt\":\"Once\",\"n\":2,\"best_of\":2,\"max_tokens\":2}"));
    expect_words(post(COMPLETE, "{\"prompt\":\"Once\",\"n\":2,\"best_of\":3}"), 400, "invalid_request",
                 "best_of must be equal to n, 2");
}

DAEMON_TEST(choices, chats_give_them_as_the_dialect_says)
{
    check_openai(CHAT, DOG, "message.content", "delta", "content");
}

/* --- ends --- */

DAEMON_TEST(choices, a_cancel_ends_all_of_them_with_what_they_have, SLOW)
{
    struct reply r;
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "X-Request-Id: many\r\n",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":4}");
    wait_stat("requests.running", 4);
    while (stat_number("tokens.generated") < 8)
        usleep(1000);
    r = client_once(daemon_.port, "DELETE", "/requests/many", "", NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    reply_free(&r);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    json_t *root = reply_json(&r);
    for (size_t i = 0; i < 4; i++)
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), i), "finish_reason"),
                         "cancelled");
    json_decref(root);
    reply_free(&r);
    close(fd);
    wait_stat("requests.running", 0);
    wait_stat("kv.pages_used", 0);
    cr_assert_eq(stat_number("requests.cancelled"), 1);
}

DAEMON_TEST(choices, a_client_that_leaves_ends_all_of_them, SLOW)
{
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":8,\"stream\":true}");
    wait_stat("requests.running", 8);
    close(fd);
    wait_stat("requests.running", 0);
    wait_stat("kv.pages_used", 0);
    cr_assert_eq(stat_number("requests.cancelled"), 1);
}

/* Of `count` texts some may still wait for a slot. */
static void expect_late(size_t count)
{
    struct reply r;
    int n = 0;
    /* On a busy machine it may come before the first token: that is a 504, and then they get more time. */
    for (int ms = 1000; n++, ms <= 32000; ms *= 2, reply_free(&r)) {
        char body[128];
        snprintf(body, sizeof body,
                 "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":%zu,\"timeout_ms\":%d}",
                 count, ms);
        r = post("/generate", body);
        if (r.status != 504)
            break;
    }
    cr_assert_eq(r.status, 200, "%d", r.status);
    json_t *root = reply_json(&r);
    reply_free(&r);
    cr_assert_eq(json_array_size(json_at(root, "choices")), count);
    for (size_t i = 0; i < count; i++)
        cr_assert_str_eq(json_text(json_array_get(json_at(root, "choices"), i), "finish_reason"), "timeout");
    json_decref(root);
    cr_assert_eq(stat_number("requests.timed_out"), n);
}

DAEMON_TEST(choices, a_deadline_ends_those_that_still_run, SLOW)
{
    expect_late(8);
}

DAEMON_TEST(choices, a_deadline_ends_those_that_wait_for_a_slot_too, SLOW, "--slots", "2")
{
    expect_late(30);
}
