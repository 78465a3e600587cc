/* GET /metrics: what it counts is what was asked. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

/* The value on the line that begins with `name` and a space; fails when there is none. */
static double metric_of(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, n) && line[n] == ' ')
            return strtod(line + n + 1, NULL);
    }
    cr_assert_fail("no metric %s", name);
    return 0;
}

static struct reply scrape(void)
{
    struct reply r = get("/metrics");
    cr_assert_eq(r.status, 200);
    return r;
}

static void ask(const char *body, int status)
{
    struct reply r = post("/generate", body);
    cr_assert_eq(r.status, status, "%s gave %d", body, r.status);
    reply_free(&r);
}

DAEMON_TEST(metrics, sums_equal_the_requests_sent)
{
    for (int i = 0; i < 5; i++)
        ask("{\"prompt\":\"Once upon a time\",\"max_tokens\":7,\"ignore_eos\":true}", 200);
    ask("{\"prompt\":\"Once\",\"max_tokens\":0}", 200);
    ask("{\"prompt\":\"Once\",\"max_tokens\":5,\"ignore_eos\":true,\"n\":3}", 200);
    ask("{\"prompt\":\"Once\",\"temperature\":7}", 400);
    ask("{\"prompt\":\"Once\",\"max_tokens\":100000}", 400);
    struct reply r = scrape();
    cr_assert_eq(metric_of(r.body, "hearth_requests_total{outcome=\"completed\"}"), 7);
    cr_assert_eq(metric_of(r.body, "hearth_requests_total{outcome=\"rejected\"}"), 2);
    cr_assert_eq(metric_of(r.body, "hearth_requests_total{outcome=\"failed\"}"), 0);
    cr_assert_eq(metric_of(r.body, "hearth_rejects_total{type=\"invalid_request\"}"), 1);
    cr_assert_eq(metric_of(r.body, "hearth_rejects_total{type=\"context_exceeded\"}"), 1);
    cr_assert_eq(metric_of(r.body, "hearth_finish_total{reason=\"length\"}"), 9, "each text counts");
    cr_assert_eq(metric_of(r.body, "hearth_generated_tokens_total"), 50);
    cr_assert_eq(metric_of(r.body, "hearth_kernel_launches_total"), 1);
    cr_assert_eq(metric_of(r.body, "hearth_reject_seconds_count"), 2);
    cr_assert_eq(metric_of(r.body, "hearth_ttft_seconds_count"), 6);
    cr_assert_eq(metric_of(r.body, "hearth_inter_token_seconds_count"), 42);
    cr_assert_eq(metric_of(r.body, "hearth_request_seconds_count"), 7);
    cr_assert_gt(metric_of(r.body, "hearth_process_anonymous_bytes"), 1e6);
    cr_assert_eq(metric_of(r.body, "vllm:generation_tokens_total"), 50);
    cr_assert_eq(metric_of(r.body, "vllm:request_success_total{finished_reason=\"length\"}"), 9);
    reply_free(&r);
}

DAEMON_TEST(metrics, buckets_are_cumulative_and_end_with_the_count)
{
    ask("{\"prompt\":\"Once\",\"max_tokens\":20,\"ignore_eos\":true}", 200);
    struct reply r = scrape();
    static const char prefix[] = "hearth_inter_token_seconds_bucket{le=\"";
    double last = 0, border = 0;
    int n = 0;
    for (const char *at = r.body; (at = strstr(at, prefix)); at++, n++) {
        const char *le = at + sizeof prefix - 1;
        double edge = strncmp(le, "+Inf", 4) ? strtod(le, NULL) : 1e300,
               value = strtod(strchr(le, ' '), NULL);
        cr_assert(edge > border && value >= last, "bucket %d", n);
        border = edge;
        last = value;
    }
    cr_assert_gt(n, 15);
    cr_assert_eq(last, metric_of(r.body, "hearth_inter_token_seconds_count"));
    reply_free(&r);
}

DAEMON_TEST(metrics, the_aliases_can_be_left_out, "--metrics-aliases", "no")
{
    struct reply r = scrape();
    cr_assert_null(strstr(r.body, "vllm:"));
    cr_assert_not_null(strstr(r.body, "hearth_build_info{version="));
    reply_free(&r);
}

DAEMON_TEST(metrics, the_model_is_named_in_labels)
{
    struct reply r = scrape();
    cr_assert_not_null(
        strstr(r.body, "hearth_model_info{model=\"Hearth Stories 6M\",quantization=\"Q4_K_M\","));
    cr_assert_eq(metric_of(r.body, "hearth_state{state=\"ready\"}"), 1);
    cr_assert_eq(metric_of(r.body, "hearth_state{state=\"loading\"}"), 0);
    reply_free(&r);
}
