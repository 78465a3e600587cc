/* Access: keys, hosts, origins, limits, and each client's own requests. */
#include "integration/harness.h"
#include "api/api.h"
#include "http/http_route.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char key_file[] = "/tmp/hearth-keys-XXXXXX", admin_file[] = "/tmp/hearth-admin-XXXXXX";

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void make_key_files(void)
{
    close(mkstemp(key_file));
    close(mkstemp(admin_file));
    write_file(key_file, "# who may ask\nalpha-key\n\n  beta-key  \n");
    write_file(admin_file, "boss-key\n");
}

static struct reply ask(const char *method, const char *path, const char *headers, const char *body)
{
    return client_once(daemon_.port, method, path, headers, body);
}

static void expect(const char *method, const char *path, const char *headers, const char *body, int status)
{
    struct reply r = ask(method, path, headers, body);
    cr_assert_eq(r.status, status, "%s %s with %s gave %d: %s", method, path, headers, r.status, r.body);
    reply_free(&r);
}

#define ONE_TOKEN "{\"prompt\":\"Once\",\"max_tokens\":1}"
#define ALPHA     "Authorization: Bearer alpha-key\r\n"
#define BETA      "x-api-key: beta-key\r\n"

static void start_with_keys(void)
{
    make_key_files();
    daemon_start((const char *[]){"--api-keys-file", key_file, "--admin-key-file", admin_file, NULL});
}

static void start_slow_with_keys(void)
{
    make_key_files();
    daemon_start((const char *[]){"--api-keys-file", key_file, "--admin-key-file", admin_file, SLOW, NULL});
}

static void stop_with_keys(void)
{
    daemon_stop();
    unlink(key_file);
    unlink(admin_file);
}

static bool is_open(const char *path)
{
    static const char *const open[] = {"/",     "/health",       "/health/live", "/health/ready",
                                       "/ping", "/health/proxy", "/v1/health"};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        if (!strcmp(open[i], path))
            return true;
    return false;
}

/* The answers of a route to a client without a key, by method. */
static void expect_closed(const struct route *route)
{
    static const char *const methods[] = {"GET", "POST", "DELETE", "PUT", "OPTIONS"};
    char path[64];
    snprintf(path, sizeof path, "%.*sx", (int)strcspn(route->path, "{"), route->path);
    if (!strchr(route->path, '{'))
        path[strlen(route->path)] = '\0';
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        bool post = !strcmp(methods[i], "POST"), options = !strcmp(methods[i], "OPTIONS");
        bool other = post && route->on_post;
        int status = is_open(path) && !other ? 200 : 401;
        if (options || (!other && !route_takes(route, methods[i])))
            status = options ? 204 : 405;
        expect(methods[i], path, "", post ? ONE_TOKEN : NULL, status);
    }
}

Test(access, with_keys_only_health_and_the_page_are_open)
{
    start_with_keys();
    for (const struct route *route = api_routes; route->path; route++)
        expect_closed(route);
    expect("GET", "/nowhere", "", NULL, 404);
    expect("OPTIONS", "/nowhere", "", NULL, 404);
    expect("POST", "/generate", "", ONE_TOKEN, 401);
    expect("POST", "/generate", "Authorization: Bearer alpha-kex\r\n", ONE_TOKEN, 401);
    expect("POST", "/generate", "Authorization: Bearer alpha-key2\r\n", ONE_TOKEN, 401);
    expect("POST", "/generate", "Authorization: Bearer \r\n", ONE_TOKEN, 401);
    expect("POST", "/generate", "Authorization: Basic alpha-key\r\n", ONE_TOKEN, 401);
    expect("POST", "/generate", ALPHA, ONE_TOKEN, 200);
    expect("POST", "/generate", "authorization: bearer beta-key\r\n", ONE_TOKEN, 200);
    expect("POST", "/generate", BETA, ONE_TOKEN, 200);
    expect("GET", "/stats", ALPHA, NULL, 200);
    expect("GET", "/stats", "x-api-key: boss-key\r\n", NULL, 200);
    struct reply r = ask("GET", "/stats", "", NULL);
    cr_assert_str_eq(reply_header(&r, "WWW-Authenticate"), "Bearer");
    cr_assert_not_null(strstr(r.body, "\"type\":\"unauthorized\""));
    reply_free(&r);
    stop_with_keys();
}

Test(access, a_hangup_reads_the_keys_again_and_a_broken_file_changes_nothing)
{
    start_with_keys();
    write_file(key_file, "gamma-key\n");
    kill(daemon_.pid, SIGHUP);
    for (int i = 0; i < 2000; i++) {
        struct reply r = ask("GET", "/stats", "x-api-key: gamma-key\r\n", NULL);
        int status = r.status;
        reply_free(&r);
        if (status == 200)
            break;
        usleep(5000);
    }
    expect("GET", "/stats", "x-api-key: gamma-key\r\n", NULL, 200);
    expect("GET", "/stats", ALPHA, NULL, 401);
    write_file(key_file, "two words\n");
    kill(daemon_.pid, SIGHUP);
    for (int i = 0; i < 2000; i++) {
        char *log = daemon_read_log();
        bool told = strstr(log, ":1: a key must be 1 to 512 visible") != NULL;
        free(log);
        if (told)
            break;
        usleep(5000);
    }
    char *log = daemon_read_log();
    cr_assert(strstr(log, ":1: a key must be 1 to 512 visible"), "%s", log);
    free(log);
    expect("GET", "/stats", "x-api-key: gamma-key\r\n", NULL, 200);
    stop_with_keys();
}

Test(access, who_has_no_admin_key_asks_for_no_more_than_the_limits)
{
    make_key_files();
    daemon_start((const char *[]){"--api-keys-file", key_file, "--admin-key-file", admin_file,
                                  "--max-priority", "5", "--max-timeout-ms", "60000", NULL});
#define WITH(field) "{\"prompt\":\"Once\",\"max_tokens\":1," field "}"
    static const char admin[] = "x-api-key: boss-key\r\n";
    expect_words(ask("POST", "/generate", ALPHA, WITH("\"priority\":6")), 400, "invalid_request",
                 "priority must not be above max_priority, 5 (got 6)");
    expect_words(ask("POST", "/v1/completions", ALPHA, WITH("\"timeout_ms\":60001")), 400, "invalid_request",
                 "timeout_ms must be between 1 and max_timeout_ms, 60000 (got 60001)");
    expect("POST", "/generate", ALPHA, WITH("\"timeout_ms\":0"), 400); /* which is none */
    expect("POST", "/generate", ALPHA, WITH("\"priority\":5,\"timeout_ms\":60000"), 200);
    expect("POST", "/generate", ALPHA, WITH("\"priority\":-100"), 200);
    expect("POST", "/generate", admin, WITH("\"priority\":100,\"timeout_ms\":0"), 200);
    stop_with_keys();
}

Test(access, prefix_pages_are_not_shared_between_keys)
{
    start_with_keys();
    char *body = long_prompt("Once upon a time there was a dog. ", 30, ",\"max_tokens\":1,\"temperature\":0");
    const char *const who[] = {ALPHA, ALPHA, BETA};
    const bool hit[] = {false, true, false};
    for (int i = 0; i < 3; i++) {
        struct reply r = ask("POST", "/generate", who[i], body);
        cr_assert_eq(r.status, 200);
        json_t *root = reply_json(&r);
        json_int_t cached = json_integer_value(json_at(root, "usage.cached_tokens"));
        cr_assert_eq(cached > 0, hit[i], "request %d: %d cached", i, (int)cached);
        json_decref(root);
        reply_free(&r);
    }
    free(body);
    stop_with_keys();
}

/* A stream of many tokens that has begun. */
static int begin_stream(const char *headers)
{
    char seen[64];
    int fd = client_connect(daemon_.port);
    cr_assert(client_request(fd, "POST", "/generate", headers,
                             "{\"prompt\":\"Once\",\"max_tokens\":900,\"ignore_eos\":true,\"stream\":true}"));
    cr_assert_gt(read(fd, seen, sizeof seen), 0);
    return fd;
}

Test(access, a_request_is_cancelled_by_its_id_and_only_by_its_owner)
{
    start_slow_with_keys();
    int fd = begin_stream(ALPHA "X-Request-Id: mine\r\n");
    expect("DELETE", "/requests/mine", "", NULL, 401);
    expect("DELETE", "/requests/mine", BETA, NULL, 404);
    struct reply r = ask("DELETE", "/requests/mine", ALPHA, NULL);
    cr_assert_eq(r.status, 202, "%s", r.body);
    cr_assert_not_null(strstr(r.body, "\"state\":\"cancelled\""));
    reply_free(&r);
    char rest[1 << 20];
    size_t n = 0;
    for (ssize_t got; n < sizeof rest - 1 && (got = read(fd, rest + n, sizeof rest - 1 - n)) > 0;) {
        n += (size_t)got;
        rest[n] = '\0';
        if (strstr(rest, "[DONE]"))
            break;
    }
    cr_assert(strstr(rest, "\"finish_reason\":\"cancelled\""), "%s", rest);
    close(fd);
    expect("DELETE", "/requests/mine", ALPHA, NULL, 404);
    expect("DELETE", "/requests/", ALPHA, NULL, 404);
    expect("GET", "/requests/mine", ALPHA, NULL, 405);
    stop_with_keys();
}

/* Runs `hearthd ps` with a key and returns its output. */
static void run_ps(const char *key, char *out, size_t room)
{
    char command[400];
    snprintf(command, sizeof command, "HEARTHD_CLIENT_KEY=%s " HEARTHD_BINARY " ps http://127.0.0.1:%u 2>&1",
             key, daemon_.port);
    FILE *f = popen(command, "r");
    cr_assert(f);
    out[fread(out, 1, room - 1, f)] = '\0';
    pclose(f);
}

Test(access, ps_shows_the_requests_of_its_key_and_no_prompt)
{
    static char text[16384];
    start_slow_with_keys();
    int fd = begin_stream(ALPHA "X-Request-Id: mine\r\n");
    struct reply r = ask("GET", "/requests", ALPHA, NULL);
    cr_assert_eq(r.status, 200);
    cr_assert(strstr(r.body, "\"request_id\":\"mine\",\"route\":\"/generate\",\"state\":\"decode\""), "%s",
              r.body);
    cr_assert_null(strstr(r.body, "Once"));
    reply_free(&r);
    r = ask("GET", "/requests", BETA, NULL);
    cr_assert_str_eq(r.body, "{\"requests\":[]}\n");
    reply_free(&r);
    run_ps("boss-key", text, sizeof text);
    cr_assert(strstr(text, "gen-") && strstr(text, "decode"), "%s", text);
    run_ps("beta-key", text, sizeof text);
    cr_assert(strstr(text, "SECONDS") && !strstr(text, "gen-"), "%s", text);
    run_ps("no-key", text, sizeof text);
    cr_assert(strstr(text, "the daemon does not know this key"), "%s", text);
    close(fd);
    stop_with_keys();
}

DAEMON_TEST(access, a_host_that_is_another_name_is_refused, "--allowed-hosts", "hearth.example.org")
{
    static const struct {
        const char *host;
        int status;
    } cases[] = {{"127.0.0.1:8080", 200},
                 {"localhost:1", 200},
                 {"LOCALHOST", 200},
                 {"[::1]:8080", 200},
                 {"10.1.2.3", 200},
                 {"hearth.example.org", 200},
                 {"Hearth.Example.Org:8", 200},
                 {"evil.example.org", 403},
                 {"hearth.example.org.evil", 403},
                 {"[::1", 403},
                 {"", 403}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char request[200], seen[64] = "";
        int fd = client_connect(daemon_.port);
        snprintf(request, sizeof request, "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                 cases[i].host);
        cr_assert(client_puts(fd, request));
        cr_assert_gt(read(fd, seen, sizeof seen - 1), 12);
        cr_assert_eq(atoi(seen + 9), cases[i].status, "Host %s gave %s", cases[i].host, seen);
        close(fd);
    }
}

DAEMON_TEST(access, a_page_elsewhere_may_ask_only_when_its_origin_is_listed, "--cors-origins",
            "https://chat.example.org, http://localhost:3000")
{
    struct reply r = ask("OPTIONS", "/generate", "Origin: https://chat.example.org\r\n", NULL);
    cr_assert_eq(r.status, 204);
    cr_assert_str_eq(reply_header(&r, "Access-Control-Allow-Origin"), "https://chat.example.org");
    cr_assert_str_eq(reply_header(&r, "Access-Control-Allow-Methods"), "POST, OPTIONS");
    cr_assert_not_null(strstr(reply_header(&r, "Access-Control-Allow-Headers"), "Authorization"));
    cr_assert_not_null(strstr(reply_header(&r, "Access-Control-Allow-Headers"), ", *"));
    reply_free(&r);
    r = ask("POST", "/generate", "Origin: http://localhost:3000\r\n", ONE_TOKEN);
    cr_assert_eq(r.status, 200);
    cr_assert_str_eq(reply_header(&r, "Access-Control-Allow-Origin"), "http://localhost:3000");
    cr_assert_str_eq(reply_header(&r, "Vary"), "Origin");
    reply_free(&r);
    expect("POST", "/generate", "Origin: https://evil.example.org\r\n", ONE_TOKEN, 403);
    expect("OPTIONS", "/generate", "Origin: https://evil.example.org\r\n", NULL, 403);
    expect("POST", "/generate", "Origin: null\r\n", ONE_TOKEN, 403);
}

/* The status of GET /stats as a page of this origin on this host asks for it. */
static int status_from(const char *host, const char *origin)
{
    char request[300];
    struct reply r;
    int fd = client_connect(daemon_.port);
    snprintf(request, sizeof request, "GET /stats HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n\r\n", host, origin);
    cr_assert(client_puts(fd, request));
    client_read(fd, &r, false);
    int status = r.status;
    reply_free(&r);
    close(fd);
    return status;
}

DAEMON_TEST(access, the_daemons_own_origin_is_the_host_it_was_asked_by_with_its_port)
{
    char host[40], origin[60];
    snprintf(host, sizeof host, "127.0.0.1:%u", daemon_.port);
    snprintf(origin, sizeof origin, "http://%s", host);
    cr_assert_eq(status_from(host, origin), 200);
    cr_assert_eq(status_from("localhost", "http://localhost"), 200);
    cr_assert_eq(status_from("LocalHost:8080", "https://localhost:8080"), 200);
    cr_assert_eq(status_from("localhost", origin), 403, "another name of this machine");
    cr_assert_eq(status_from("127.0.0.1", origin), 403, "another port");
    cr_assert_eq(status_from("127.0.0.1:1", "http://127.0.0.1:10"), 403, "another port");
    cr_assert_eq(status_from("127.0.0.1:10", "http://127.0.0.1:1"), 403, "another port");
    cr_assert_eq(status_from(host, "null"), 403);
}

/* A browser sends no key with the question whether it may send one, and reads a 401 only with the headers. */
Test(access, a_preflight_needs_no_key)
{
    make_key_files();
    daemon_start(
        (const char *[]){"--api-keys-file", key_file, "--cors-origins", "https://chat.example.org", NULL});
    static const char page[] = "Origin: https://chat.example.org\r\n";
    static const char *const paths[] = {"/generate", "/v1/chat/completions", "/stats", "/requests/x"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct reply r = ask("OPTIONS", paths[i],
                             "Origin: https://chat.example.org\r\nAccess-Control-Request-Method: POST\r\n"
                             "Access-Control-Request-Headers: authorization, content-type\r\n",
                             NULL);
        cr_assert_eq(r.status, 204, "%s: %d %s", paths[i], r.status, r.body);
        cr_assert_str_eq(reply_header(&r, "Access-Control-Allow-Origin"), "https://chat.example.org");
        cr_assert_not_null(strstr(reply_header(&r, "Access-Control-Allow-Headers"), "Authorization"));
        reply_free(&r);
    }
    expect("OPTIONS", "/generate", "Origin: https://evil.example.org\r\n", NULL, 403);
    struct reply r = ask("POST", "/generate", page, ONE_TOKEN);
    cr_assert_eq(r.status, 401);
    cr_assert_str_eq(reply_header(&r, "Access-Control-Allow-Origin"), "https://chat.example.org");
    reply_free(&r);
    expect("POST", "/generate", "Origin: https://chat.example.org\r\n" ALPHA, ONE_TOKEN, 200);
    stop_with_keys();
}

DAEMON_TEST(access, a_client_has_so_many_requests_at_once, SLOW, "--client-limit", "2")
{
    int one = begin_stream(""), two = begin_stream("");
    struct reply r = ask("POST", "/generate", "", ONE_TOKEN);
    cr_assert_eq(r.status, 429, "%s", r.body);
    cr_assert_not_null(reply_header(&r, "Retry-After"));
    cr_assert_not_null(strstr(r.body, "\"type\":\"rate_limited\""));
    reply_free(&r);
    expect("POST", "/tokenize", "", "{\"content\":\"Once\"}", 429);
    expect("POST", "/detokenize", "", "{\"tokens\":[1]}", 429);
    expect("GET", "/stats", "", NULL, 200);
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.9\r\n", ONE_TOKEN, 429);
    close(one);
    wait_stat("requests.running", 1);
    expect("POST", "/generate", "", ONE_TOKEN, 200);
    expect("POST", "/tokenize", "", "{\"content\":\"Once\"}", 200);
    close(two);
}

DAEMON_TEST(access, behind_a_trusted_proxy_clients_are_told_apart, SLOW, "--client-limit", "1",
            "--trusted-proxies", "127.0.0.0/8")
{
    int one = begin_stream("X-Forwarded-For: 10.0.0.1\r\n");
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.1\r\n", ONE_TOKEN, 429);
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.2\r\n", ONE_TOKEN, 200);
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.2, 10.0.0.1\r\n", ONE_TOKEN, 429);
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.2, 10.0.0.1, 127.0.0.5\r\n", ONE_TOKEN, 429);
    /* A proxy may add a line of its own: all are one list. */
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.2, 10.0.0.1\r\nX-Forwarded-For: 127.0.0.5\r\n",
           ONE_TOKEN, 429);
    expect("POST", "/generate", "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n", ONE_TOKEN, 200);
    char many[1024] = "";
    for (size_t n = 0; n < 900; n = strlen(many)) /* only the last addresses of so many lines are kept */
        snprintf(many + n, sizeof many - n, "X-Forwarded-For: 10.0.0.2, 10.0.0.1\r\n");
    expect("POST", "/generate", many, ONE_TOKEN, 429);
    close(one);
}

DAEMON_TEST(access, a_customer_of_ipv6_is_one_client_whatever_its_address, SLOW, "--client-limit", "1",
            "--trusted-proxies", "127.0.0.0/8")
{
    int one = begin_stream("X-Forwarded-For: 2001:db8:1:2::1\r\n");
    expect("POST", "/generate", "X-Forwarded-For: 2001:db8:1:2:3:4:5:6\r\n", ONE_TOKEN, 429);
    expect("POST", "/generate", "X-Forwarded-For: 2001:db8:1:3::1\r\n", ONE_TOKEN, 200);
    close(one);
}

/* --- grammars --- */

/* A number of /metrics. */
static long long figure(const char *name)
{
    char line[80];
    struct reply r = ask("GET", "/metrics", ALPHA, NULL);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(r.body, line);
    cr_assert_not_null(at, "no metric %s: %s", name, r.body);
    long long value = atoll(at + strlen(line));
    reply_free(&r);
    return value;
}

/* A literal of 20,000 bytes, whose grammar takes about a megabyte. */
static char *large_grammar(void)
{
    static char body[20200];
    char *at = body + sprintf(body, "{\"prompt\":\"Once\",\"max_tokens\":1,\"grammar\":\"root ::= \\\"");
    memset(at, 'a', 20000);
    strcpy(at + 20000, "\\\"\"}");
    return body;
}

/* The bytes by which hearth_reply_bytes grows when this key's request is the nth to wait. */
static long long held_for(int *fd, const char *key, const char *body, int n)
{
    long long before = figure("hearth_reply_bytes");
    *fd = client_connect(daemon_.port);
    client_request(*fd, "POST", "/generate", key, body);
    for (bool waits = false; !waits; usleep(5000)) /* one that is being prepared is among those that wait */
        waits = figure("hearth_requests_waiting") == n && !figure("hearth_body_bytes") &&
                figure("hearth_requests_waiting") == n;
    return figure("hearth_reply_bytes") - before;
}

Test(access, compiled_grammars_are_not_shared_between_keys)
{
    int fds[4];
    make_key_files();
    daemon_start((const char *[]){"--api-keys-file", key_file, "--admin-key-file", admin_file, "--slots", "1",
                                  SLOW, NULL});
    fds[0] = client_connect(daemon_.port);
    client_request(fds[0], "POST", "/generate", ALPHA,
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}");
    while (!figure("hearth_requests_running"))
        usleep(5000);
    long long first = held_for(&fds[1], ALPHA, large_grammar(), 1);
    long long same = held_for(&fds[2], ALPHA, large_grammar(), 2);
    long long other = held_for(&fds[3], BETA, large_grammar(), 3);
    cr_assert(first > 800000 && same < first / 2 && other > first / 2, "%lld, %lld, %lld", first, same,
              other);
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    stop_with_keys();
}
