/* GET /metrics: what it counts is what was asked. */
#include "integration/harness.h"

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

static long long outcomes(void)
{
    static const char *const names[] = {"completed", "failed", "rejected", "cancelled", "timed_out"};
    char name[64];
    long long n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(name, sizeof name, "hearth_requests_total{outcome=\"%s\"}", names[i]);
        n += metric(name);
    }
    return n;
}

/* A client that leaves may find its text finished, where it gets no processor for long. */
DAEMON_TEST(metrics, each_request_has_one_outcome_whatever_became_of_it)
{
    ask("{\"prompt\":\"Once\",\"max_tokens\":3}", 200);
    ask("{\"prompt\":\"Once\",\"temperature\":7}", 400);
    struct reply r =
        post("/generate", "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"timeout_ms\":1}");
    cr_assert(r.status == 200 || r.status == 504, "%d %s", r.status, r.body);
    reply_free(&r);
    r = (struct reply){0};
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true,\"stream\":true,\"n\":8}");
    while (!r.raw || !strstr(r.raw, "data: "))
        cr_assert(reply_more(&r, fd), "%s", r.raw);
    reply_free(&r);
    close(fd);
    for (int i = 0; i < 600 && outcomes() < 4; i++)
        usleep(100000);
    cr_assert_eq(outcomes(), 4);
    cr_assert_eq(metric("hearth_requests_total{outcome=\"rejected\"}"), 1);
    cr_assert_eq(metric("hearth_requests_total{outcome=\"timed_out\"}"), 1);
    cr_assert_eq(metric("hearth_requests_total{outcome=\"failed\"}"), 0);
    cr_assert_geq(metric("hearth_requests_total{outcome=\"completed\"}"), 1);
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
    cr_assert_null(strstr(r.body, "llamacpp:"));
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

DAEMON_TEST(metrics, every_name_of_vllm_that_is_promised_is_there)
{
    static const char *const plain[] = {
        "vllm:num_requests_running",  "vllm:num_requests_waiting",       "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",   "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total"};
    static const char *const histograms[] = {
        "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"};
    static const char *const reasons[] = {"stop", "length", "abort"};
    char name[120];
    ask("{\"prompt\":\"Once\",\"max_tokens\":4,\"ignore_eos\":true}", 200);
    struct reply r = scrape();
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        cr_assert_geq(metric_of(r.body, plain[i]), 0);
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
        snprintf(name, sizeof name, "%s_count", histograms[i]);
        cr_assert_eq(metric_of(r.body, name), i == 1 ? 3 : 1, "%s", name);
        snprintf(name, sizeof name, "%s_bucket{le=\"+Inf\"}", histograms[i]);
        cr_assert_eq(metric_of(r.body, name), i == 1 ? 3 : 1, "%s", name);
        snprintf(name, sizeof name, "%s_sum", histograms[i]);
        cr_assert_geq(metric_of(r.body, name), 0, "%s", name);
    }
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        snprintf(name, sizeof name, "vllm:request_success_total{finished_reason=\"%s\"}", reasons[i]);
        cr_assert_eq(metric_of(r.body, name), i == 1, "%s", name);
    }
    reply_free(&r);
}

DAEMON_TEST(metrics, the_aliases_have_the_values_of_hearths_names)
{
    static const char *const pairs[][2] = {
        {"llamacpp:tokens_predicted_total", "hearth_generated_tokens_total"},
        {"llamacpp:n_decode_total", "hearth_steps_total"},
        {"llamacpp:requests_processing", "hearth_requests_running"},
        {"llamacpp:requests_deferred", "hearth_requests_waiting"},
        {"llamacpp:prompt_tokens_seconds", "hearth_prompt_tokens_per_second"},
        {"llamacpp:predicted_tokens_seconds", "hearth_tokens_per_second"},
        {"vllm:generation_tokens_total", "hearth_generated_tokens_total"},
        {"vllm:prompt_tokens_cached_total", "hearth_prompt_cached_tokens_total"}};
    char body[1024] = "{\"max_tokens\":4,\"ignore_eos\":true,\"prompt\":\"";
    for (int i = 0; i < 100; i++)
        strcat(body, "Once ");
    strcat(body, "\"}");
    ask(body, 200);
    ask(body, 200); /* most of it from the cache */
    struct reply r = scrape();
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        cr_assert_eq(metric_of(r.body, pairs[i][0]), metric_of(r.body, pairs[i][1]), "%s", pairs[i][0]);
    double cached = metric_of(r.body, "hearth_prompt_cached_tokens_total");
    cr_assert_gt(cached, 0);
    cr_assert_eq(metric_of(r.body, "llamacpp:prompt_tokens_total"),
                 metric_of(r.body, "hearth_prompt_tokens_total") - cached);
    cr_assert_eq(metric_of(r.body, "llamacpp:kv_cache_usage_ratio"), 0);
    cr_assert_eq(metric_of(r.body, "llamacpp:kv_cache_tokens"), 0);
    reply_free(&r);
}

/* --- what the dashboard and the alerts ask for --- */

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789"

struct query {
    const char *text, *scrape;
    char metrics[8][80], labels[8][80]; /* labels[]: of any metric of the query, as in by (le) */
    unsigned n_metrics, n_labels;
};

/* True if a line of the scrape is of this metric and, when `label` is not "", has that label; with `value`
 * (its quotes included) that value too. */
static bool scraped(const char *scrape, const char *metric, const char *label, const char *value)
{
    char part[200];
    size_t n = strlen(metric);
    snprintf(part, sizeof part, "%s=%s", label, value ? value : "\"");
    for (const char *line = scrape; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, metric, n) || (line[n] != ' ' && line[n] != '{'))
            continue;
        const char *at = *label ? strstr(line, part) : line, *end = strchr(line, '\n');
        if (at && at < end)
            return true;
    }
    return false;
}

static void expect_label(const struct query *q, const char *metric, const char *label, const char *value)
{
    if (!strcmp(label, "instance") || !strcmp(label, "job")) /* which Prometheus adds */
        return;
    cr_assert(scraped(q->scrape, metric, label, value), "no %s with %s %s, of: %s", metric, label,
              value ? value : "", q->text);
}

/* The word at `at`, whose length is returned. */
static size_t take_word(const char *at, char word[80])
{
    size_t n = strspn(at, NAME_LETTERS);
    cr_assert_lt(n, 80);
    snprintf(word, 80, "%.*s", (int)n, at);
    return n;
}

/* {state="stalled",instance=~"$instance"}, of the metric before it; where it ends. Only = names a value. */
static const char *read_selector(const struct query *q, const char *at)
{
    char label[80], value[80];
    while (*at != '}') {
        at += strspn(at, "{, ");
        at += take_word(at, label);
        const char *quote = strchr(at, '"'), *end = strchr(quote + 1, '"') + 1;
        snprintf(value, sizeof value, "%.*s", (int)(end - quote), quote);
        expect_label(q, q->metrics[q->n_metrics - 1], label, !strncmp(at, "=\"", 2) ? value : NULL);
        at = end;
    }
    return at + 1;
}

/* A word is a label after by, a function before a bracket, and else a metric. */
static const char *read_word(struct query *q, const char *at)
{
    char word[80];
    at += take_word(at, word);
    const char *next = at + strspn(at, " ");
    if (!strcmp(word, "by")) {
        for (at = next; *at != ')';) {
            cr_assert_lt(q->n_labels, 8);
            at += strspn(at, "(, ");
            at += take_word(at, q->labels[q->n_labels++]);
        }
    } else if (*next != '(' && !(*next == 'b' && next[1] == 'y')) {
        cr_assert_lt(q->n_metrics, 8);
        strcpy(q->metrics[q->n_metrics++], word);
        cr_assert(!strcmp(word, "up") || scraped(q->scrape, word, "", NULL), "no metric %s, of: %s", word,
                  q->text);
        return *at == '{' ? read_selector(q, at) : at;
    }
    return at;
}

/* Every metric and label of a query of PromQL, and the labels of its legend ("{{state}}"; may be ""), is in
 * the scrape. */
static void expect_query(const char *scrape, const char *text, const char *legend)
{
    struct query q = {.text = text, .scrape = scrape};
    for (const char *at = text; *at;) {
        if (*at == '[')
            at = strchr(at, ']');
        else if (*at >= '0' && *at <= '9')
            at += strspn(at, "0123456789.");
        else if (strspn(at, NAME_LETTERS))
            at = read_word(&q, at);
        else
            at++;
    }
    cr_assert_gt(q.n_metrics, 0, "%s", text);
    for (const char *at = legend; (at = strstr(at, "{{")); at += 2) {
        cr_assert_lt(q.n_labels, 8);
        take_word(at + 2, q.labels[q.n_labels++]);
    }
    for (unsigned m = 0; m < q.n_metrics; m++)
        for (unsigned l = 0; l < q.n_labels; l++)
            expect_label(&q, q.metrics[m], q.labels[l], NULL);
}

/* Below `node`; how many there were. */
static unsigned expect_queries_of(const char *scrape, json_t *node)
{
    unsigned n = 0;
    const char *key, *text = json_string_value(json_object_get(node, "expr"));
    const char *legend = json_string_value(json_object_get(node, "legendFormat"));
    json_t *child;
    size_t i;
    if (text) {
        expect_query(scrape, text, legend ? legend : "");
        n++;
    }
    json_object_foreach(node, key, child) n += expect_queries_of(scrape, child);
    json_array_foreach(node, i, child) n += expect_queries_of(scrape, child);
    return n;
}

DAEMON_TEST(metrics, whatever_the_dashboard_asks_for_is_there)
{
    struct reply r = scrape();
    json_error_t words;
    json_t *root = json_load_file(HEARTH_SOURCE_DIR "/config/grafana/hearth.json", 0, &words);
    cr_assert_not_null(root, "line %d: %s", words.line, words.text);
    cr_assert_geq(expect_queries_of(r.body, root), 30);
    json_t *instances = json_at(root, "templating.list.1.query.query");
    cr_assert_str_eq(json_string_value(instances), "label_values(hearth_build_info, instance)");
    cr_assert_eq(metric_of(r.body, "hearth_build_info{version=\"" HEARTH_VERSION "\"}"), 1);
    json_decref(root);
    reply_free(&r);
}

DAEMON_TEST(metrics, whatever_the_alerts_ask_for_is_there)
{
    struct reply r = scrape();
    char line[1024];
    unsigned n_alerts = 0, n_queries = 0;
    FILE *f = fopen(HEARTH_SOURCE_DIR "/config/prometheus/hearth-rules.yml", "re");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) {
        n_alerts += strstr(line, "- alert: ") != NULL;
        const char *at = strstr(line, "expr: ");
        if (at) {
            expect_query(r.body, at + strlen("expr: "), "");
            n_queries++;
        }
    }
    fclose(f);
    cr_assert(n_alerts == n_queries && n_alerts >= 10, "%u alerts, %u queries on a line", n_alerts,
              n_queries);
    reply_free(&r);
}
