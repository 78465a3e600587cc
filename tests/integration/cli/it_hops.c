/* hearthd bench --hops, from outside: what it says of a token's way, and what it refuses. */
#include "integration/process.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct process p;

static void end(void)
{
    if (p.pid > 0)
        process_free(&p);
}

TestSuite(hops, .fini = end, .timeout = 1200);

static double number(const json_t *of, const char *name)
{
    const json_t *value = json_object_get(of, name);
    cr_assert(json_is_number(value), "%s: %s", name, p.stdout_text);
    return json_number_value(value);
}

static void expect_same(double a, double b)
{
    cr_assert(fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)) + 1e-3, "%.9g and %.9g", a, b);
}

/* All times are there and none is negative; the means of the hops add up to that of the way. */
static void expect_hops(const json_t *report)
{
    static const char *const names[] = {"engine",  "lent", "border", "kernel",
                                        "publish", "wake", "http",   "socket"};
    static const char *const figures[] = {"median", "p90", "p99", "mean"};
    const json_t *hops = json_object_get(report, "hops"), *way = json_object_get(report, "way_us");
    double sum = 0, shares = 0;
    cr_assert_eq(json_array_size(hops), 8, "%s", p.stdout_text);
    for (size_t i = 0; i < 8; i++) {
        const json_t *hop = json_array_get(hops, i), *us = json_object_get(hop, "us");
        cr_assert_str_eq(json_string_value(json_object_get(hop, "hop")), names[i]);
        for (size_t k = 0; k < 4; k++)
            cr_assert_geq(number(us, figures[k]), 0);
        cr_assert_leq(number(us, "median"), number(us, "p90"));
        cr_assert_leq(number(us, "p90"), number(us, "p99"));
        sum += number(us, "mean");
        shares += number(hop, "share");
    }
    cr_assert_gt(number(json_object_get(json_array_get(hops, 3), "us"), "median"), 0);
    expect_same(sum, number(way, "mean"));
    expect_same(shares, 1);
    expect_same(number(json_object_get(report, "way_beyond_kernel_us"), "mean"),
                sum - number(json_object_get(json_array_get(hops, 3), "us"), "mean"));
}

/* The client's own clock over all streams, and the hops of all steps between its first and last event. */
static void expect_sums(const json_t *report)
{
    const json_t *sums = json_object_get(report, "sums");
    cr_assert_gt(number(sums, "client_ms"), 0);
    expect_same(number(sums, "client_ms"), number(sums, "cycles_ms") + number(sums, "shift_ms"));
}

Test(hops, every_token_of_the_streams_has_hops_that_add_up_to_what_the_client_sees)
{
    cr_assert_eq(PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--threads", "2", "--hops", "-n", "24",
                             "-d", "70", "-r", "2", "--json"),
                 0, "%s", p.stderr_text);
    json_t *report = json_loads(p.stdout_text, 0, NULL);
    cr_assert(report, "%s", p.stdout_text);
    cr_assert(json_is_false(json_object_get(report, "emulated")));
    cr_assert_str_eq(json_string_value(json_object_get(report, "test")), "tg24@d70");
    cr_assert_str_eq(json_string_value(json_object_get(report, "executor")), "persistent");
    cr_assert_eq(number(report, "streams"), 2);
    cr_assert_eq(number(report, "tokens") + number(report, "held"), 2 * 24);
    cr_assert_gt(number(report, "tokens"), 24);
    cr_assert(json_is_null(json_object_get(report, "empty_step_us"))); /* of a GPU */
    expect_hops(report);
    expect_sums(report);
    json_decref(report);
}

Test(hops, a_table_names_each_hop_and_its_part)
{
    static const char *const lines[] = {"tg8 over HTTP, executor persistent: ",
                                        "\nengine  between two steps ",
                                        "\nengine  waking the loop, ",
                                        "\nborder  the step, without its ops ",
                                        "\nkernel  the ops ",
                                        "\nengine  from the result ",
                                        "\nHTTP    until the loop's turn ",
                                        "\nHTTP    text, event, ",
                                        "\nHTTP    send, loopback, ",
                                        "a token's way: all of these ",
                                        "beyond the kernel ",
                                        "the gap between two tokens "};
    cr_assert_eq(
        PROCESS_RUN(&p, "bench", "--model", PROCESS_MODEL, "--threads", "1", "--hops", "-n", "8", "-r", "1"),
        0, "%s", p.stderr_text);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_in(p.stdout_text, lines[i]);
    cr_assert_eq(p.n_stderr, 0, "%s", p.stderr_text);
}

static void expect_refusal(const char *words, const char *flag, const char *value)
{
    struct process one;
    cr_assert_eq(PROCESS_RUN(&one, "bench", "--model", PROCESS_MODEL, "--hops", flag, value), 2, "%s %s",
                 flag, value);
    expect_in(one.stderr_text, words);
    cr_assert_eq(one.n_stdout, 0);
    process_free(&one);
}

Test(hops, flags_that_do_not_go_with_it_are_refused_by_name)
{
    expect_refusal("it does not go with -p", "-p", "8");
    expect_refusal("it does not go with -b", "-b", "1");
    expect_refusal("it does not go with --ops", "--ops", "--json");
    expect_refusal("it does not go with --trace", "--trace", "/dev/null");
    expect_refusal("it does not go with --executors", "--executors", "--json");
    expect_refusal("it does not go with --roofline", "--roofline", "--json");
    expect_refusal("-n takes one number with --hops", "-n", "8,16");
    expect_refusal("-d takes one number with --hops", "-d", "8,16");
    expect_refusal("nothing to measure: -n is 0", "-n", "0");
    expect_refusal("tg5000 needs 5002 tokens of context", "-n", "5000");
    expect_refusal("only executor persistent is measured", "--executor", "eager");
}
