/* What bench --hops makes of a reply and of the times of tokens. */
#include "cli/bench/bench_hops.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- a reply ---- */

#define HEAD   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
#define FIRST  "data: {\"text\":\"a\",\"tokens\":[11]}\n\n"
#define SECOND "data: {\"text\":\"\\\"tokens\\\":[1,2,3]\",\"tokens\":[12,13]}\n\n"
#define LAST   "data: {\"id\":\"x\",\"text\":\"\",\"tokens\":[14],\"finish_reason\":\"length\"}\n\n"
#define DONE   "data: [DONE]\n\n"

static char text[4096];
static struct hops_arrival arrivals[8];
static struct hops_reply reply;
static struct hops_read reads[8];
static uint64_t n_bytes;
static struct error err;

static void put(const char *part)
{
    size_t n = strlen(part);
    memcpy(text + reply.n, part, n);
    reply.n += n;
}

static void put_chunk(const char *part)
{
    char head[32];
    snprintf(head, sizeof head, "%zx\r\n", strlen(part));
    put(head);
    put(part);
    put("\r\n");
}

/* All that was put so far is there. */
static void arrives(uint64_t ns)
{
    arrivals[reply.n_arrivals++] = (struct hops_arrival){reply.n, ns};
}

static void begin(void)
{
    err = (struct error){0};
    reply = (struct hops_reply){.bytes = text, .arrivals = arrivals};
    put(HEAD);
}

static int read_tokens(uint32_t n)
{
    return hops_reply_read(&reply, n, 100, reads, &n_bytes, &err);
}

TestSuite(bench_hops, .init = begin);

Test(bench_hops, a_token_is_there_when_the_last_byte_of_its_event_is)
{
    put_chunk(FIRST);
    reply.n -= 3; /* the chunk's end and the event's last newline come later */
    arrives(10);
    reply.n += 3;
    arrives(20);
    put_chunk(SECOND);
    put_chunk(LAST DONE);
    put("0\r\n\r\n");
    arrives(30);
    cr_assert_eq(read_tokens(4), 0, "%s", err.text);
    static const uint64_t ns[] = {20, 30, 30, 30};
    static const bool held[] = {false, true, false, true};
    size_t bytes[] = {strlen(FIRST), strlen(FIRST SECOND), strlen(FIRST SECOND), strlen(FIRST SECOND LAST)};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(reads[i].ns, ns[i], "token %d", i);
        cr_assert_eq(reads[i].held, held[i], "token %d", i);
        cr_assert_eq(reads[i].n_bytes, 100 + bytes[i], "token %d", i);
    }
    cr_assert_eq(n_bytes, 100 + strlen(FIRST SECOND LAST DONE));
}

Test(bench_hops, events_may_be_cut_into_chunks_anywhere)
{
    const char *all = FIRST SECOND LAST DONE;
    char part[2] = "";
    for (; *all; all++) {
        part[0] = *all;
        put_chunk(part);
    }
    put("0\r\n\r\n");
    arrives(5);
    cr_assert_eq(read_tokens(4), 0, "%s", err.text);
    cr_assert_eq(n_bytes, 100 + strlen(FIRST SECOND LAST DONE));
}

static void expect_refusal(uint32_t n_tokens, const char *words)
{
    cr_assert_eq(read_tokens(n_tokens), -EIO);
    cr_assert(strstr(err.text, words), "%s", err.text);
}

Test(bench_hops, a_stream_with_another_number_of_tokens_is_refused)
{
    put_chunk(FIRST LAST DONE);
    put("0\r\n\r\n");
    arrives(5);
    expect_refusal(3, "the stream has 2 tokens, 3 were asked for");
    err = (struct error){0};
    expect_refusal(1, "more than the 1 tokens asked for");
}

Test(bench_hops, a_stream_that_ends_early_is_refused)
{
    put_chunk(FIRST);
    arrives(5);
    expect_refusal(1, "it ends within a chunk");
    err = (struct error){0};
    put("0\r\n\r\n");
    arrives(6);
    expect_refusal(1, "its last event is missing");
}

Test(bench_hops, what_the_server_refuses_is_told_in_its_words)
{
    reply.n = 0;
    put("HTTP/1.1 413 Too Large\r\nContent-Length: 9\r\n\r\ntoo large");
    arrives(5);
    expect_refusal(1, "the server answers: too large");
    begin();
    put_chunk("event: error\ndata: {\"error\":{}}\n\n");
    arrives(5);
    expect_refusal(1, "the server answers: event: error");
}

Test(bench_hops, no_reply_at_all_is_refused)
{
    reply.n = 0;
    expect_refusal(1, "it is empty");
}

/* ---- figures ---- */

/* Two streams of three tokens, the first of which does not count. A step takes 100 us, 80 of them in ops. */
enum { N = 6 };
static struct engine_times engine[N];
static struct stream_taken taken[N];
static struct stream_handed handed[N];
static struct hops_read tokens[N];
static struct bench_hops out;
static struct hops_seen seen;

static void set_times(void)
{
    for (uint32_t i = 0; i < N; i++) {
        uint64_t t = 1000000 + 130000 * (uint64_t)i;
        engine[i] = (struct engine_times){.submitted_ns = t - 20000,
                                          .begun_ns = t,
                                          .seen_ns = t + 100000,
                                          .published_ns = t + 102000,
                                          .told_ns = t + 105000,
                                          .back_ns = t + 115000,
                                          .ops_ns = 80000};
        taken[i] = (struct stream_taken){t + 110000, t + 111000};
        handed[i] = (struct stream_handed){40 * (i + 1), t + 125000};
        tokens[i] = (struct hops_read){.ns = t + 140000, .n_bytes = 40 * (i + 1)};
    }
    out = (struct bench_hops){0};
    err = (struct error){0};
    seen = (struct hops_seen){.n_streams = 2,
                              .n_tokens = 3,
                              .engine = engine,
                              .taken = taken,
                              .reads = tokens,
                              .handed = handed,
                              .n_handed = N};
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

TestSuite(hops_figures, .init = set_times);

Test(hops_figures, the_hops_of_a_token_add_up_to_its_way)
{
    static const double us[BENCH_HOPS] = {5 + 15, 10, 20, 0, 80, 2, 8, 15, 15};
    double sum = 0;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    for (int i = 0; i < BENCH_HOPS; i++) {
        cr_assert(near(out.hops[i].median, us[i]), "hop %d: %g", i, out.hops[i].median);
        cr_assert(near(out.hops[i].p99, us[i]) && near(out.hops[i].mean, us[i]), "hop %d", i);
        sum += us[i];
    }
    cr_assert(near(out.way.mean, sum) && near(out.beyond.mean, sum - 80));
    cr_assert(near(out.gap.mean, 130) && near(out.beyond_gap.mean, 50));
    cr_assert_eq(out.n_tokens, 2);
    cr_assert_eq(out.n_held + out.n_late, 0);
    cr_assert_eq(out.client_ns, 260000);
    cr_assert_eq(out.cycles_ns, 260000);
    cr_assert_eq(out.shift_ns, 0);
}

Test(hops_figures, a_slower_end_of_the_last_token_is_the_clients_alone)
{
    tokens[5].ns += 7000;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert_eq(out.client_ns, 267000);
    cr_assert_eq(out.cycles_ns, 260000);
    cr_assert_eq(out.shift_ns, 7000);
    cr_assert(near(out.hops[HOP_SOCKET].p99, 22) && near(out.hops[HOP_SOCKET].median, 18.5));
}

Test(hops_figures, tokens_without_text_of_their_own_are_left_out)
{
    tokens[4] = tokens[5];
    tokens[4].held = true;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert_eq(out.n_tokens, 1);
    cr_assert_eq(out.n_held, 1);
    cr_assert_eq(out.cycles_ns, 260000); /* the steps of both */
    cr_assert_eq(out.gap.mean, 0);       /* of no two tokens that follow each other */
    tokens[5].held = true;
    cr_assert_eq(hops_figures(&seen, &out, &err), -EINVAL);
}

/* The loop comes late and takes two tokens: the first has waited for a whole step. */
Test(hops_figures, tokens_taken_together_are_counted_and_kept)
{
    taken[4] = taken[5];
    handed[4].ns = handed[5].ns;
    tokens[4].ns = tokens[5].ns;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert_eq(out.n_late, 1);
    cr_assert_eq(out.n_tokens, 2);
    cr_assert(near(out.hops[HOP_WAKE].p99, 138));
}

/* The loop was on its way to the token before. */
Test(hops_figures, a_token_that_the_loop_need_not_be_told_of_lends_it_nothing)
{
    engine[3].told_ns = engine[3].back_ns = 0;
    engine[4].told_ns = engine[5].told_ns;
    engine[4].back_ns = engine[5].back_ns;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert(near(out.hops[HOP_ENGINE].mean, 30));
    cr_assert_eq(out.hops[HOP_LENT].mean, 0);
}

/* The loop was awake before the token came. */
Test(hops_figures, a_turn_that_began_before_the_token_waits_for_nothing)
{
    taken[5].turn_ns = engine[5].seen_ns - 1000;
    taken[5].taken_ns = engine[5].published_ns;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert(near(out.hops[HOP_WAKE].mean, 4));
    cr_assert(near(out.hops[HOP_HTTP].p99, 23));
}

/* The next step was submitted while one ran: the device has gone on since its end was seen. */
Test(hops_figures, a_device_that_goes_on_by_itself_waits_for_no_engine)
{
    seen.ahead = true;
    seen.kernel_ns = 90000;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert(near(out.hops[HOP_ENGINE].mean, 5) && near(out.hops[HOP_LENT].mean, 5)); /* submitted late */
    for (uint32_t i = 0; i < N; i++)
        engine[i].submitted_ns -= 100000;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert_eq(out.hops[HOP_ENGINE].mean + out.hops[HOP_LENT].mean, 0);
    cr_assert(near(out.hops[HOP_KERNEL].mean, 90) && out.hops[HOP_BORDER].mean == 0 &&
              near(out.hops[HOP_PCIE].mean, 40));
    seen.border_ns = 12000;
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert(near(out.hops[HOP_BORDER].mean, 12) && near(out.hops[HOP_PCIE].mean, 28));
    seen.border_ns = 50000; /* a median may be longer than what this step has left */
    cr_assert_eq(hops_figures(&seen, &out, &err), 0, "%s", err.text);
    cr_assert(near(out.hops[HOP_BORDER].mean, 40) && out.hops[HOP_PCIE].mean == 0);
}

Test(hops_figures, times_that_cannot_be_are_refused)
{
    uint64_t *const times[] = {&engine[4].seen_ns, &engine[5].published_ns, &taken[5].taken_ns,
                               &handed[5].ns,      &tokens[5].ns,           &engine[5].ops_ns};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        set_times();
        *times[i] += times[i] == &tokens[5].ns ? (uint64_t)-100000 : 100000000;
        cr_assert_eq(hops_figures(&seen, &out, &err), -EIO, "time %zu", i);
        cr_assert(strstr(err.text, "token 5") || strstr(err.text, "token 4"), "%s", err.text);
    }
    set_times();
    seen.n_handed = N - 1;
    cr_assert_eq(hops_figures(&seen, &out, &err), -EIO);
    cr_assert(strstr(err.text, "bytes of token 5 that the server never sent"), "%s", err.text);
}
