/* Long replies, over an engine of the test's own: they are written as their clients take them, on the pool,
 * and say what short ones say; a client that takes nothing costs no more than its tokens. */
#include "generation/generation.h"
#include "http/http.h"
#include "service/server_private.h"
#include "support/server_driver.h"

/* 25 tokens. */
#define TEXT " there was a cat. there was a cat. there was a cat. there was a cat. there was a cat."
/* 8 x 25 tokens with 20 alternatives each. */
#define LONG "{\"prompt\":\"Once\",\"max_tokens\":25,\"n\":8,\"logprobs\":20}"

static struct {
    bool replying, limited;
    uint32_t n_active, n_ahead;
    uint64_t reply_bytes;
    size_t out_bytes, all_bytes;
    unsigned n_requests;
    struct stats stats;
} seen;

static void look(void)
{
    const struct server *s = f.server;
    const struct request *r = LIST_FIRST(&s->http.requests);
    const struct generation *g = LIST_FIRST(&s->generator.generations);
    seen.replying = g && g->state == GENERATION_REPLYING;
    seen.n_active = s->generator.n_active;
    seen.reply_bytes = s->http.reply_bytes;
    seen.out_bytes = r ? r->out.cap + (r->writing ? 0 : r->items.cap) : 0;
    seen.limited = r && r->limited;
    seen.stats = s->http.stats;
    seen.all_bytes = seen.n_requests = 0;
    for (; r; r = LIST_NEXT(r, link), seen.n_requests++)
        seen.all_bytes += r->arena.total + (r->writing ? 0 : r->items_arena.total);
}

static void wait_replying(void)
{
    for (seen.replying = false; !seen.replying; usleep(1000))
        on_loop(look);
}

static void wait_rest(void)
{
    for (seen.n_active = 1; seen.n_active || seen.reply_bytes; usleep(1000))
        on_loop(look);
}

/* Takes the threads that write replies, and sends a request whose tokens are all there then, but not its
 * reply. */
static int send_for_long_reply(const char *path, const char *body)
{
    script(TEXT);
    take_pool(POOL_REPLY);
    int fd = client_connect(f.port);
    client_request(fd, "POST", path, "X-Request-Id: x\r\n", body);
    wait_replying();
    return fd;
}

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

/* True if the end is among the bytes received. */
static bool has_end(int fd)
{
    char text[65536];
    ssize_t n = recv(fd, text, sizeof text - 1, MSG_PEEK | MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "finish_reason") != NULL;
}

/* --- on the pool --- */

SERVER_TEST(replies, others_are_answered_meanwhile)
{
    struct reply r;
    int fd = send_for_long_reply("/generate", LONG);
    r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":2}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    cr_assert_not(has_end(fd));
    free(expect_error(client_once(f.port, "DELETE", "/requests/x", "", NULL), 404, "not_found"));
    r = get("/requests");
    cr_assert_str_eq(r.body, "{\"requests\":[]}\n", "neither waits nor runs");
    reply_free(&r);
    let_go();
    client_read(fd, &r, false);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "choices")), 8);
    cr_assert_eq(json_array_size(json_at(root, "choices.7.logprobs")), 25);
    cr_assert_eq(json_array_size(json_at(root, "choices.7.logprobs.24.top")), 20);
    json_decref(root);
    reply_free(&r);
    close(fd);
}

SERVER_TEST(replies, a_stream_goes_as_far_as_its_text_and_ends_later)
{
    struct reply r = {0};
    struct events e;
    char *body = long_prompt(",\"stream\":true");
    int fd = send_for_long_reply("/generate", body);
    while (!r.raw || !strstr(r.raw, "\"prompt_logprobs\":[null"))
        cr_assert(reply_more(&r, fd));
    cr_assert(strstr(r.raw, " cat") && !strstr(r.raw, "[DONE]"));
    let_go();
    while (!strstr(r.raw, "[DONE]"))
        cr_assert(reply_more(&r, fd));
    close(fd);
    reply_free(&r);
    r = post("/generate", body); /* and once more, with nothing in its way */
    events_read(&e, &r);
    cr_assert(e.done);
    cr_assert_eq(json_array_size(json_at(e.data[e.n - 1], "prompt_logprobs")), 240);
    events_free(&e);
    reply_free(&r);
    free(body);
}

SERVER_TEST(replies, a_client_that_leaves_costs_nothing_more)
{
    int fd = send_for_long_reply("/generate", LONG);
    close(fd);
    do
        on_loop(look);
    while (!seen.stats.completed);
    cr_assert_eq(seen.n_active, 1, "the pool still reads its tokens");
    let_go();
    wait_rest();
}

/* The client's time is over while the pool has other things to do. */
SERVER_TEST(replies, the_pool_s_time_is_not_the_client_s, "body_timeout_ms", "100")
{
    struct reply r;
    int fd = send_for_long_reply("/generate", LONG);
    usleep(400000);
    let_go();
    client_read(fd, &r, false);
    cr_assert(r.status == 200 && !r.cut, "%d, %s", r.status, r.cut ? "cut" : "");
    reply_free(&r);
    close(fd);
}

static void drain_soon(void)
{
    server_drain(f.server, 60000, NULL, NULL);
}

SERVER_TEST(replies, a_drain_waits_for_it)
{
    struct reply r;
    int fd = send_for_long_reply("/generate", LONG);
    on_loop(drain_soon);
    let_go();
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    close(fd);
}

static atomic_bool left;

static void on_left(void *context)
{
    (void)context;
    left = true;
}

static void leave_model(void)
{
    struct server_model next = *f.server->generator.model;
    server_on_left(f.server, on_left, NULL);
    server_set_model(f.server, &next);
}

static void cancel_leaving(void)
{
    server_cancel_leaving(f.server);
}

/* The tokens' texts are the model's: it stays until they are written, or no client is to get them any more.
 */
SERVER_TEST(replies, a_model_that_is_replaced_waits_for_them_or_cuts_them_off)
{
    for (int cut = 0; cut < 2; cut++) {
        struct reply r = {0};
        int fd = send_for_long_reply("/generate", LONG);
        left = false;
        on_loop(leave_model);
        if (cut)
            on_loop(cancel_leaving);
        on_loop(look);
        cr_assert(!left && seen.n_active == 1);
        let_go();
        while (reply_more(&r, fd) && !strstr(r.raw, "\r\n0\r\n\r\n"))
            ;
        cr_assert_eq(strstr(r.raw, "\r\n0\r\n\r\n") != NULL, !cut, "its end");
        while (!left)
            usleep(1000);
        reply_free(&r);
        close(fd);
    }
}

/* --- what they say --- */

/* However many choices end before the last. */
SERVER_TEST(replies, a_stream_tells_of_its_prompt_once)
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

/* The part that is written at once stays small, for any text of the model. */
SERVER_TEST(replies, tokens_without_text_come_in_pieces)
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

/* The member at a path like "a.b", or NULL. */
static json_t *find_member(const json_t *object, const char *path)
{
    size_t n = strcspn(path, ".");
    json_t *member = json_object_getn(object, path, n);
    return path[n] ? find_member(member, path + n + 1) : member;
}

static const struct dialect_of {
    const char *route, *prompt, *top;
    const char *lists[4]; /* in an event's choice, and in that of a reply */
    const char *text, *delta;
} dialects[] = {
    {"/generate", "\"prompt\":\"Once\"", "\"logprobs\":20", {"tokens", "logprobs"}, "text", "text"},
    {"/v1/completions",
     "\"prompt\":\"Once\"",
     "\"logprobs\":20",
     {"logprobs.tokens", "logprobs.token_logprobs", "logprobs.top_logprobs", "logprobs.text_offset"},
     "text",
     "text"},
    {"/v1/chat/completions",
     "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]",
     "\"logprobs\":true,\"top_logprobs\":20",
     {"logprobs.content"},
     "message.content",
     "delta.content"},
};

/* Returns what an event says of a choice; NULL when it is of another, or of all. */
static json_t *choice_in(const json_t *event, long long index)
{
    json_t *choices = json_object_get(event, "choices");
    json_t *choice = choices ? json_array_get(choices, 0) : (json_t *)event;
    json_t *number = json_object_get(choice, "index");
    return number && json_integer_value(number) == index ? choice : NULL;
}

static void expect_like_stream(const struct dialect_of *d, const json_t *choice, const struct events *e,
                               long long index)
{
    json_t *joined = json_array();
    char text[4096] = "";
    for (size_t k = 0; k < 4 && d->lists[k]; k++) {
        json_array_clear(joined);
        for (size_t i = 0; i < e->n; i++)
            json_array_extend(joined, find_member(choice_in(e->data[i], index), d->lists[k]));
        cr_assert_eq(json_array_size(joined), 250);
        cr_assert(json_equal(joined, json_at(choice, d->lists[k])), "%s of choice %lld", d->lists[k], index);
    }
    for (size_t i = 0; i < e->n; i++) {
        const char *more = json_string_value(find_member(choice_in(e->data[i], index), d->delta));
        strcat(text, more ? more : "");
    }
    cr_assert_str_eq(text, json_text(choice, d->text));
    json_decref(joined);
}

/* Letters of several bytes, quotes and controls, so that the text is cut in its midst. */
static void long_script(void)
{
    fake.n_script = 0;
    script(
        "\"Caf\xc3\xa9\", \xe4\xb8\xad\xe6\x96\x87 \\ \n\t there was a cat \xf0\x9f\x90\x88 and a dog. The "
        "end of it was that they lived in a house by the sea with a lot of mice");
    uint32_t n = fake.n_script;
    for (uint32_t i = n; i < 250; i++)
        fake.script[i] = fake.script[i % n];
    fake.n_script = 250;
    fake.n_ctx = 1024;
    f.server->generator.model->n_ctx = 1024;
}

SERVER_TEST(replies, a_long_reply_says_what_its_stream_says)
{
    char body[512];
    on_loop(long_script);
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        struct events e;
        const struct dialect_of *d = &dialects[i];
        snprintf(body, sizeof body, "{%s,%s,\"n\":2,\"max_tokens\":250,\"ignore_eos\":true}", d->prompt,
                 d->top);
        struct reply r = post(d->route, body);
        cr_assert_null(reply_header(&r, "Content-Length"), "it is not written ahead");
        json_t *root = reply_json(&r);
        reply_free(&r);
        snprintf(body, sizeof body, "{%s,%s,\"n\":2,\"max_tokens\":250,\"ignore_eos\":true,\"stream\":true}",
                 d->prompt, d->top);
        r = post(d->route, body);
        events_read(&e, &r);
        cr_assert(e.done);
        for (long long k = 0; k < 2; k++)
            expect_like_stream(d, json_array_get(json_object_get(root, "choices"), (size_t)k), &e, k);
        json_decref(root);
        events_free(&e);
        reply_free(&r);
    }
}

SERVER_TEST(replies, a_short_reply_has_its_length)
{
    script(TEXT);
    struct reply r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":25,\"logprobs\":20}");
    cr_assert_eq(r.status, 200);
    cr_assert_not_null(reply_header(&r, "Content-Length"));
    reply_free(&r);
}

/* --- clients that do not take them --- */

#define MUCH                                                                                                 \
    "{\"prompt\":\"Once\",\"max_tokens\":250,\"n\":8,\"logprobs\":20,\"ignore_eos\":true,\"stream\":%s}"

/* Two megabytes of JSON, of which a window is there, and what the system holds. */
static int send_for_much(const char *stream)
{
    char body[128];
    snprintf(body, sizeof body, MUCH, stream);
    int fd = client_connect_narrow(f.port);
    client_request(fd, "POST", "/generate", "", body);
    wait_replying();
    on_loop(look);
    cr_assert_leq(seen.out_bytes, 8 * REPLY_WINDOW, "%zu bytes are written ahead", seen.out_bytes);
    cr_assert_geq(seen.reply_bytes, 8 * 250 * 20 * sizeof(struct step_top));
    cr_assert_leq(seen.reply_bytes, 512 * 1024);
    return fd;
}

static void add_events(struct events *e, const struct reply *r)
{
    events_read(e, r);
    cr_assert(e->done && !e->error);
}

/* Without what differs from run to run. */
static void expect_same_deltas(const struct events *a, const struct events *b)
{
    cr_assert_eq(a->n, b->n);
    for (long long index = 0; index < 8; index++) {
        json_t *all[2] = {json_array(), json_array()};
        for (size_t i = 0; i + 1 < a->n; i++) { /* the last is of all choices */
            if (json_number(a->data[i], "index") == index)
                json_array_append(all[0], a->data[i]);
            if (json_number(b->data[i], "index") == index)
                json_array_append(all[1], b->data[i]);
        }
        cr_assert_geq(json_array_size(all[0]), 200);
        cr_assert(json_equal(all[0], all[1]), "choice %lld", index);
        json_decref(all[0]);
        json_decref(all[1]);
    }
}

SERVER_TEST(replies, a_stream_that_is_not_taken_is_not_written_and_says_the_same_later)
{
    struct reply r;
    static struct events late, early;
    char body[128];
    on_loop(long_script);
    int fd = send_for_much("true");
    client_read(fd, &r, false);
    add_events(&late, &r);
    reply_free(&r);
    close(fd);
    snprintf(body, sizeof body, MUCH, "true");
    r = post("/generate", body);
    add_events(&early, &r);
    reply_free(&r);
    for (size_t i = 0; i < late.n; i++) { /* of ends alone */
        json_object_del(late.data[i], "seed");
        json_object_del(early.data[i], "seed");
    }
    expect_same_deltas(&late, &early);
    events_free(&late);
    events_free(&early);
    wait_rest();
}

/* Members that the last event alone may have, over a text that has ended long before its events are taken. */
SERVER_TEST(replies, an_event_that_is_taken_late_does_not_say_that_the_text_has_ended)
{
    static struct events e;
    struct reply r;
    on_loop(long_script);
    int fd = client_connect_narrow(f.port);
    client_request(
        fd, "POST", "/completion", "",
        "{\"prompt\":\"Once\",\"n_predict\":250,\"n_probs\":20,\"ignore_eos\":true,\"stream\":true}");
    wait_replying();
    client_read(fd, &r, false);
    events_read(&e, &r);
    cr_assert_geq(e.n, 200);
    for (size_t i = 0; i < e.n; i++)
        cr_assert_eq(json_is_true(json_at(e.data[i], "stop")), i + 1 == e.n, "event %zu of %zu", i, e.n);
    events_free(&e);
    reply_free(&r);
    close(fd);
    wait_rest();
}

SERVER_TEST(replies, a_reply_that_is_not_taken_is_not_written)
{
    struct reply r;
    on_loop(long_script);
    int fd = send_for_much("false");
    client_read(fd, &r, false);
    json_t *root = reply_json(&r);
    cr_assert_eq(json_array_size(json_at(root, "choices.7.logprobs")), 250);
    json_decref(root);
    reply_free(&r);
    close(fd);
    wait_rest();
}

/* The second would fit alone. */
SERVER_TEST(replies, log_probabilities_to_come_are_within_body_memory_together, "body_memory", "600K")
{
    char body[128];
    struct reply r;
    on_loop(long_script);
    fake.hold = true;
    snprintf(body, sizeof body, MUCH, "false");
    int fd = client_connect(f.port);
    client_request(fd, "POST", "/generate", "", body);
    cr_assert(wait_for(&fake.n_submitted, 1));
    expect_words(post("/generate", body), 503, "queue_full",
                 "has no room for 336000 bytes of log-probabilities");
    fake.hold = false;
    /* Text alone is none of them, however much it may be. */
    r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":250,\"logprobs\":20}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    r = post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":250,\"n\":8}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 200);
    reply_free(&r);
    close(fd);
    wait_rest();
    r = post("/generate", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

/* 42,000 bytes each: as short as they are, all are counted. */
SERVER_TEST(replies, few_log_probabilities_to_come_are_within_body_memory_together, "body_memory", "100K")
{
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":250,\"logprobs\":20}";
    int fds[2];
    on_loop(long_script);
    fake.hold = true;
    for (unsigned i = 0; i < 2; i++) {
        fds[i] = client_connect(f.port);
        client_request(fds[i], "POST", "/generate", "", body);
        cr_assert(wait_for(&fake.n_submitted, i + 1));
    }
    expect_words(post("/generate", body), 503, "queue_full",
                 "has no room for 42000 bytes of log-probabilities");
    fake.hold = false;
    for (unsigned i = 0; i < 2; i++)
        close(fds[i]);
    wait_rest();
}

#define TEXTS "{\"prompt\":\"Once\",\"max_tokens\":5000,\"n\":8,\"ignore_eos\":true,\"stream\":%s}"

static void longer_script(void)
{
    long_script();
    for (int i = fake.n_script; i < 256; i++)
        fake.script[i] = fake.script[0];
    fake.n_script = 5000;
    fake.n_at_once = 500;
    fake.n_ctx = f.server->generator.model->n_ctx = 10000;
}

/* Asks for text, and waits until it has ended; more of it than the buffers of both sides hold is left. */
static int send_for_text(const char *stream, unsigned n_completed)
{
    char body[128];
    int fd = client_connect_narrow(f.port);
    snprintf(body, sizeof body, TEXTS, stream);
    client_request(fd, "POST", "/generate", "", body);
    for (seen.stats.total.n = 0; seen.stats.total.n < n_completed; usleep(1000))
        on_loop(look);
    return fd;
}

/* Half a megabyte each. */
SERVER_TEST(replies, text_that_is_not_read_is_within_body_memory_together, "body_memory", "2M")
{
    struct reply r;
    int fds[8];
    on_loop(longer_script);
    for (unsigned i = 0; i < 8; i++) {
        fds[i] = send_for_text(i % 2 ? "true" : "false", i + 1);
        cr_assert_leq(seen.all_bytes, 2u << 20, "%u replies hold %zu bytes", seen.n_requests, seen.all_bytes);
    }
    cr_assert_geq(seen.n_requests, 2, "no more are dropped than must be");
    client_read(fds[7], &r, false); /* the newest is kept */
    cr_assert(r.status == 200 && !r.cut && strstr(r.body, "[DONE]"));
    reply_free(&r);
    for (unsigned i = 0; i < 8; i++)
        close(fds[i]);
    wait_rest();
}

SERVER_TEST(replies, one_alone_may_be_more_than_body_memory, "body_memory", "100K")
{
    char body[128];
    on_loop(long_script);
    snprintf(body, sizeof body, MUCH, "false");
    struct reply r = post("/generate", body);
    cr_assert_eq(r.status, 200, "%s", r.body);
    reply_free(&r);
}

/* A drop now and then is not enough. */
SERVER_TEST(replies, a_long_reply_is_not_to_be_taken_in_drops, "body_timeout_ms", "1000")
{
    char byte[512];
    on_loop(long_script);
    int fd = send_for_much("false");
    while (recv(fd, byte, sizeof byte, 0) > 0)
        usleep(20000);
    wait_rest();
    close(fd);
}

/* --- streams that failed --- */

/* More of it was there to write than the buffers of both sides hold. */
SERVER_TEST(replies, a_stream_that_failed_is_held_and_has_its_time_like_one_that_ended)
{
    char body[128];
    struct reply r;
    on_loop(long_script);
    fake.n_script = 240; /* of 250 */
    fake.finish = ENGINE_FAULT;
    int fd = client_connect_narrow(f.port);
    snprintf(body, sizeof body, MUCH, "true");
    client_request(fd, "POST", "/generate", "", body);
    cr_assert(wait_for(&fake.n_submitted, 1));
    for (seen.n_active = 1; seen.n_active; usleep(1000))
        on_loop(look);
    cr_assert_eq(seen.n_requests, 1);
    cr_assert(seen.limited);
    cr_assert_eq(seen.reply_bytes, seen.all_bytes, "%llu bytes of %zu", (unsigned long long)seen.reply_bytes,
                 seen.all_bytes);
    client_read(fd, &r, false);
    cr_assert(!r.cut && strstr(r.body, "event: error"));
    reply_free(&r);
    wait_rest();
    close(fd);
}

/* --- without memory --- */

static const char *cut_short(bool lines)
{
    static char out[256];
    struct route route = {.lines = lines};
    struct request r = {.route = &route, .out.failed = true};
    size_t n = request_take(&r, out, sizeof out - 1);
    out[n] = '\0';
    cr_assert(r.stream_ended);
    return out;
}

Test(no_memory, ends_a_stream_in_the_form_of_its_route)
{
    const char *event = cut_short(false);
    cr_assert(!strncmp(event, "event: error\ndata: {", 20) && !strcmp(event + strlen(event) - 3, "}\n\n"),
              "%s", event);
    cr_assert_str_eq(cut_short(true), "{\"error\":\"out of memory\"}\n");
}
