/* The memory that a client can make the daemon hold: room for answers that have not begun, what a chat was
 * made of, answers that are not taken. */
#include "integration/harness.h"

#include <poll.h>

/* And a text that is long in coming: what is sent must find it running. */
#define LONG_CONTEXT                                                                                         \
    "--slots", "1", "--n-ctx", "32768", "--kv-memory", "100M", "--speculation", "off", "--threads", "1"

#ifdef __SANITIZE_ADDRESS__ /* which keeps what was freed: only the ways to it are run */
#define WAITING 3
#else
#define WAITING 12
#endif

/* Behind a request that holds the only slot, so many of these wait: how much memory they take. */
static long long memory_of_waiting(const char *path, const char *body)
{
    int fds[WAITING], first = client_connect(daemon_.port);
    client_request(first, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":32000,\"ignore_eos\":true}");
    wait_stat("requests.running", 1);
    long long before = own_memory();
    for (int i = 0; i < WAITING; i++) {
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", path, "", body);
        wait_stat("requests.waiting", i + 1);
        while (metric("hearth_body_bytes")) /* until then it is being prepared */
            usleep(5000);
    }
    long long grown = own_memory() - before;
    for (int i = 0; i < WAITING; i++)
        close(fds[i]);
    close(first);
    wait_stat("requests.running", 0);
#ifdef __SANITIZE_ADDRESS__ /* which keeps what was freed */
    grown = 0;
#endif
    return grown;
}

/* 5 MB each when they are written. */
DAEMON_TEST(memory, log_probabilities_take_room_when_they_come, LONG_CONTEXT, "--body-memory", "128M")
{
    cr_assert_lt(memory_of_waiting("/generate", "{\"prompt\":\"Once\",\"max_tokens\":30000,\"logprobs\":20}"),
                 24ll << 20);
}

DAEMON_TEST(memory, what_a_chat_was_made_of_is_gone_when_it_waits, LONG_CONTEXT)
{
    size_t n = 3 << 20;
    char *body = malloc(n + 200), *at = body;
    at += sprintf(at, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":9,"
                      "\"chat_template_kwargs\":{\"x\":\"");
    memset(at, 'x', n);
    strcpy(at + n, "\"}}");
    cr_assert_lt(memory_of_waiting("/v1/chat/completions", body), 20ll << 20);
    free(body);
}

/* A body that has 2 MB between `before` and `after`. */
static char *large_body(const char *before, const char *after)
{
    size_t n = 2 << 20, n_before = strlen(before);
    char *body = malloc(n_before + n + strlen(after) + 1);
    memcpy(body, before, n_before);
    memset(body + n_before, 'x', n);
    strcpy(body + n_before + n, after);
    return body;
}

static bool waits(int fd, const char *path, const char *body);
static void close_all(const int *fds, int n);
static int take_slot(void);

/* Each keeps 2 MB. Those that wait may hold 6 MB: the next is refused, and one that is small is not. */
static void expect_bounded(const char *path, char *body)
{
    int first = take_slot(), fds[WAITING + 1], n = 0;
    struct reply r;
    for (bool let_in = true; let_in && n < WAITING; n += let_in) {
        fds[n] = client_connect(daemon_.port);
        let_in = waits(fds[n], path, body);
    }
    cr_assert_eq(n, 2, "%d wait", n);
    long long held = metric("hearth_reply_bytes");
    cr_assert(held > n * (2ll << 20) && held <= 6 << 20, "%lld bytes are held", held);
    client_read(fds[n], &r, false);
    cr_assert_eq(r.status, 503, "%.200s", r.body);
    cr_assert_not_null(strstr(r.body, "bytes of the request beside the replies"), "%s", r.body);
    reply_free(&r);
    close(fds[n]);
    fds[n] = client_connect(daemon_.port);
    cr_assert(waits(fds[n], "/generate", "{\"prompt\":\"Once\",\"max_tokens\":1}"));
    close_all(fds, n + 1);
    close(first);
    wait_stat("requests.running", 0);
    cr_assert_eq(metric("hearth_reply_bytes"), 0);
    free(body);
}

#define NAMES_OF_TOOLS LONG_CONTEXT, "--body-memory", "8M"
#define HI             "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":1,"
#define FUNCTION       HI "\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\""

DAEMON_TEST(memory, names_of_tools_of_waiting_chats_are_bounded_together, NAMES_OF_TOOLS)
{
    expect_bounded("/v1/chat/completions", large_body(FUNCTION, "\"}}]}"));
}

DAEMON_TEST(memory, and_so_are_those_of_their_parameters, NAMES_OF_TOOLS)
{
    expect_bounded("/v1/chat/completions",
                   large_body(FUNCTION "f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"",
                              "\":{\"type\":\"string\"}}}}}]}"));
}

DAEMON_TEST(memory, and_those_of_messages, NAMES_OF_TOOLS)
{
    expect_bounded("/v1/messages",
                   large_body(HI "\"tool_choice\":{\"type\":\"none\"},\"tools\":[{\"name\":\"",
                              "\",\"input_schema\":{\"type\":\"object\"}}]}"));
}

DAEMON_TEST(memory, a_stop_string_has_a_limit)
{
    char text[1200], all[1400];
    memset(text, 'x', sizeof text);
    for (int n = 1024; n <= 1025; n++) {
        snprintf(all, sizeof all, "{\"prompt\":\"Once\",\"max_tokens\":1,\"n\":2,\"stop\":\"%.*s\"}", n,
                 text);
        struct reply r = post("/generate", all);
        cr_assert_eq(r.status, n == 1024 ? 200 : 400, "%s", r.body);
        cr_assert_eq(strstr(r.body, "at most 1024 bytes (got one of 1025)") != NULL, n == 1025, "%s", r.body);
        reply_free(&r);
    }
}

/* --- answers that are not taken --- */

/* {"content":"1 1 1 ..."}: about 400 KB, whose tokens are 1.4 MB of text. */
static char *long_content(void)
{
    size_t n = 200000;
    char *body = malloc(2 * n + 40), *at = body + sprintf(body, "{\"content\":\"");
    for (size_t i = 0; i < n; i++)
        at = stpcpy(at, "1 ");
    strcpy(at, "\"}");
    return body;
}

/* Asks, and waits until the answer has begun. */
static struct reply ask_long(int fd, const char *body)
{
    struct reply r = {0};
    client_request(fd, "POST", "/tokenize", "", body);
    while (!r.raw || !strstr(r.raw, "{\"tokens\":["))
        cr_assert(reply_more(&r, fd));
    return r;
}

DAEMON_TEST(memory, long_answers_that_are_not_taken_are_bounded_together, "--body-memory", "2M")
{
    char *body = long_content();
    int fd = connect_narrow();
    struct reply r = ask_long(fd, body);
    reply_free(&r);
    r = post("/tokenize", body);
    cr_assert_eq(r.status, 503, "%.200s", r.body);
    cr_assert_not_null(strstr(r.body, "replies that clients have not read"), "%s", r.body);
    reply_free(&r);
    r = post("/tokenize", "{\"content\":\"Once\"}"); /* short ones are none of them */
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
    wait_connections(1);
    r = post("/tokenize", body);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    free(body);
}

/* A prompt of 900 tokens, with 21 entries for each: 150 KB, and more than a megabyte as JSON. */
static const char *long_scores(bool stream)
{
    static char body[4096];
    char *at = body + sprintf(body, "{\"max_tokens\":1,\"prompt_logprobs\":20,\"stream\":%s,\"prompt\":[300",
                              stream ? "true" : "false");
    for (int i = 1; i < 900; i++)
        at = stpcpy(at, ",300");
    strcpy(at, "]}");
    return body;
}

static void expect_no_room(void)
{
    struct reply r = post("/generate", long_scores(false));
    cr_assert_eq(r.status, 503, "%.200s", r.body);
    cr_assert_not_null(strstr(r.body, "has no room for 151200 bytes of log-probabilities"), "%s", r.body);
    reply_free(&r);
    r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":1,\"prompt_logprobs\":20}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

DAEMON_TEST(memory, scores_of_prompts_that_are_not_taken_are_bounded_together, "--body-memory", "280K")
{
    for (int stream = 0; stream < 2; stream++) {
        int fd = connect_narrow();
        struct reply r = {0};
        client_request(fd, "POST", "/generate", "", long_scores(stream));
        while (!r.raw || !strstr(r.raw, "\"prompt_logprobs\":["))
            cr_assert(reply_more(&r, fd));
        expect_no_room();
        reply_free(&r);
        close(fd);
        wait_connections(1);
        r = post("/generate", long_scores(stream));
        cr_assert_eq(r.status, 200);
        reply_free(&r);
    }
}

DAEMON_TEST(memory, and_so_are_those_that_are_still_to_come, LONG_CONTEXT, "--body-memory", "280K")
{
    int first = client_connect(daemon_.port), second = client_connect(daemon_.port);
    client_request(first, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":32000,\"ignore_eos\":true}");
    wait_stat("requests.running", 1);
    client_request(second, "POST", "/generate", "", long_scores(false));
    wait_stat("requests.waiting", 1);
    struct reply r = post("/generate", long_scores(false));
    cr_assert_eq(r.status, 503, "%.200s", r.body);
    reply_free(&r);
    close(first);
    client_read(second, &r, false);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    close(second);
}

/* --- grammars --- */

/* A literal of 20,000 bytes is a grammar of about a megabyte. */
static char *large_grammar(int i)
{
    size_t n = 20000;
    char *body = malloc(n + 200), *at = body;
    at += sprintf(at, "{\"prompt\":\"Once\",\"max_tokens\":1,\"grammar\":\"root ::= \\\"%d", i);
    memset(at, 'a', n);
    strcpy(at + n, "\\\"\"}");
    return body;
}

/* Sends it behind others; true once it waits, false when it has an answer. One that is being prepared is
 * counted among those that wait, too, so they are counted again when no body is left. */
static bool waits(int fd, const char *path, const char *body)
{
    long long n = stat_number("requests.waiting");
    struct pollfd p = {.fd = fd, .events = POLLIN};
    client_request(fd, "POST", path, "", body);
    while (stat_number("requests.waiting") == n || metric("hearth_body_bytes") ||
           stat_number("requests.waiting") == n)
        if (poll(&p, 1, 5) > 0)
            return false;
    return true;
}

/* Sends up to WAITING; returns how many wait. */
static int wait_with_grammars(int *fds, bool same)
{
    bool let_in = true;
    int n = 0;
    for (int i = 0; i < WAITING && let_in; i++) {
        char *body = large_grammar(same ? 0 : i);
        fds[n] = client_connect(daemon_.port);
        let_in = waits(fds[n], "/generate", body);
        n += let_in;
        free(body);
    }
    return n;
}

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        close(fds[i]);
    wait_stat("requests.waiting", 0);
}

static int take_slot(void)
{
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":32000,\"ignore_eos\":true}");
    wait_stat("requests.running", 1);
    return fd;
}

DAEMON_TEST(memory, grammars_of_waiting_requests_are_bounded_together, LONG_CONTEXT, "--body-memory", "3M")
{
    int first = take_slot(), fds[WAITING + 1];
    struct reply r;
    int n = wait_with_grammars(fds, false);
    cr_assert(n > 0 && n < 3, "%d wait", n);
    client_read(fds[n], &r, false);
    cr_assert_eq(r.status, 503, "%.200s", r.body);
    cr_assert_not_null(strstr(r.body, "of a compiled grammar beside"), "%s", r.body);
    reply_free(&r);
    cr_assert_leq(metric("hearth_reply_bytes"), 9 << 18);
    close_all(fds, n + 1);
    close(first);
    wait_stat("requests.running", 0);
    cr_assert_eq(metric("hearth_reply_bytes"), 0);
}

/* 400 KB when it is let in; each "a" adds threads to its matcher, 2.9 MB in the end. */
static char *growing_grammar(int i)
{
    char *body = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&body, &size);
    fprintf(f,
            "{\"prompt\":\"Once\",\"max_tokens\":115,\"temperature\":0,\"grammar\":\"root ::= \\\"%d\\\" (r0",
            i);
    for (int k = 1; k < 400; k++)
        fprintf(f, " | r%d", k);
    fprintf(f, ")");
    for (int k = 0; k < 400; k++)
        fprintf(f, "\\nr%d ::= \\\"a\\\" r%d \\\"i\\\" | \\\"Z\\\"", k, k);
    fprintf(f, "\"}");
    fclose(f);
    return body;
}

/* They begin together, when the eight texts of another request leave the slots. */
DAEMON_TEST(memory, grammars_that_grow_while_their_texts_run_are_bounded_together, "--slots", "8",
            "--threads", "1", "--body-memory", "4M")
{
    int fds[6], n_ok = 0, n_refused = 0, first = client_connect(daemon_.port);
    client_request(first, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"n\":8,\"max_tokens\":1000,\"ignore_eos\":true}");
    wait_stat("requests.running", 8);
    for (int i = 0; i < 6; i++) {
        char *body = growing_grammar(i + 10);
        fds[i] = client_connect(daemon_.port);
        client_request(fds[i], "POST", "/generate", "", body);
        free(body);
    }
    wait_stat("requests.waiting", 6);
    while (metric("hearth_body_bytes")) /* until then one is being prepared */
        usleep(5000);
    close(first);
    while (stat_number("requests.running") + stat_number("requests.waiting")) {
        long long held = metric("hearth_reply_bytes");
        cr_assert_lt(held, 8 << 20, "%lld bytes are held", held); /* a step passes before the last has gone */
        usleep(1000);
    }
    for (int i = 0; i < 6; i++) {
        struct reply r;
        client_read(fds[i], &r, false);
        n_ok += r.status == 200;
        n_refused += r.status == 503 && strstr(r.body, "body_memory, 4194304 bytes, has no room ");
        reply_free(&r);
        close(fds[i]);
    }
    cr_assert_eq(n_ok + n_refused, 6);
    cr_assert(n_ok > 0 && n_refused > 0, "%d have a text, %d are refused", n_ok, n_refused);
    cr_assert_eq(metric("hearth_reply_bytes"), 0);
}

/* Each has a matcher of its own, of 160 KB. */
DAEMON_TEST(memory, a_grammar_that_requests_share_counts_once, LONG_CONTEXT)
{
    int first = take_slot(), fds[WAITING + 1], n = wait_with_grammars(fds, true);
    cr_assert_eq(n, WAITING, "%d wait", n);
    cr_assert_geq(metric("hearth_reply_bytes"), WAITING * 160000);
    cr_assert_leq(metric("hearth_reply_bytes"), 3 << 20);
    close_all(fds, n);
    close(first);
    wait_stat("requests.running", 0);
    cr_assert_eq(metric("hearth_reply_bytes"), 0);
}

/* --- answers that are not taken --- */

/* A reply of eight choices with 20 alternatives a token: 2.5 MB as JSON, 280 KB as the engine has them. */
#define SCORED                                                                                               \
    "\"max_tokens\":200,\"n\":8,\"ignore_eos\":true,\"temperature\":1,\"messages\":[{\"role\":\"user\","     \
    "\"content\":\"Hi\"}],\"logprobs\":true,\"top_logprobs\":20"

/* Private memory that so many take which have ended, and of which nothing is read. */
static long long memory_of_unread(const char *body)
{
    int fds[WAITING];
    long long before = own_memory(), ended = stat_number("requests.completed");
    for (int i = 0; i < WAITING; i++) {
        fds[i] = connect_narrow();
        client_request(fds[i], "POST", "/v1/chat/completions", "", body);
    }
    while (stat_number("requests.waiting") || stat_number("requests.running"))
        usleep(20000);
    long long grown = own_memory() - before;
    cr_assert_eq(stat_number("requests.completed"), ended, "they are not taken");
    for (int i = 0; i < WAITING; i++)
        close(fds[i]);
    wait_connections(1);
#ifdef __SANITIZE_ADDRESS__
    grown = 0;
#endif
    return grown;
}

DAEMON_TEST(memory, log_probabilities_that_are_not_taken_stay_as_they_are, "--slots", "8", "--threads", "1")
{
    struct reply r = post("/v1/chat/completions", "{" SCORED "}"); /* what the first one takes is no growth */
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    cr_assert_lt(memory_of_unread("{" SCORED "}"), 12ll << 20);
    cr_assert_lt(memory_of_unread("{" SCORED ",\"stream\":true}"), 12ll << 20);
}

#define MANY 200

/* Asks for more than the buffers of both sides hold, some 30 KB a time, and reads nothing of it. */
static void ask_for_metrics(int fd)
{
    for (int i = 0; i < 100; i++)
        client_request(fd, "GET", "/metrics", "", NULL);
}

/* Their connections are there before, and so is what each of them takes. */
DAEMON_TEST(memory, many_short_answers_that_are_not_taken_are_bounded_too, "--body-memory", "1M")
{
    int fds[MANY];
    for (int i = 0; i < MANY; i++) {
        struct reply r;
        fds[i] = connect_narrow();
        client_request(fds[i], "GET", "/health", "", NULL);
        client_read(fds[i], &r, false);
        reply_free(&r);
    }
    long long most = 0;
#ifndef __SANITIZE_ADDRESS__
    long long before = own_memory();
#endif
    for (int i = 0; i < MANY; i++) {
        ask_for_metrics(fds[i]);
        long long held = metric("hearth_reply_bytes");
        most = held > most ? held : most;
    }
    cr_assert_gt(most, 1 << 19, "they are not held");
    cr_assert_leq(most, 1 << 20, "%lld bytes are held", most);
#ifndef __SANITIZE_ADDRESS__
    cr_assert_lt(own_memory() - before, 3ll << 20);
#endif
    for (int i = 0; i < MANY; i++)
        close(fds[i]);
}

DAEMON_TEST(memory, a_long_answer_is_not_to_be_taken_in_drops, "--body-timeout-ms", "4000")
{
    char *body = long_content(), piece[4096];
    int fd = connect_narrow();
    struct reply r = ask_long(fd, body);
    size_t n = r.raw_len, all = strtoul(strstr(r.raw, "Content-Length: ") + 16, NULL, 10);
    cr_assert_gt(all, 1 << 20);
    for (ssize_t got = 1; got > 0; n += got > 0 ? (size_t)got : 0) {
        usleep(20000);
        got = recv(fd, piece, sizeof piece, 0);
    }
    cr_assert_lt(n, all, "it was not cut");
    reply_free(&r);
    close(fd);
    free(body);
}
