/* log_format = json: in all events and with any bytes, each line of the log is one JSON object with
 * the members that log.h and the README name. */
#include "integration/admin.h"

#include <sys/un.h>

static json_t *lines; /* of the log, as objects */

static const char *text_of(const json_t *line, const char *name)
{
    return json_string_value(json_object_get(line, name));
}

static void expect_time(const char *time)
{
    static const char like[] = "0000-00-00T00:00:00.000Z";
    cr_assert(time && strlen(time) == sizeof like - 1, "time is %s", time);
    for (size_t i = 0; i < sizeof like - 1; i++)
        cr_assert(like[i] == '0' ? time[i] >= '0' && time[i] <= '9' : time[i] == like[i], "time is %s", time);
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words && (!word || strcmp(*words, word)))
        words++;
    return *words;
}

static void expect_access(const json_t *line, const char *raw)
{
    int status = (int)json_integer_value(json_object_get(line, "status"));
    cr_assert(status == 0 || (status >= 200 && status < 600), "%s", raw);
    cr_assert(text_of(line, "method") && text_of(line, "request") && text_of(line, "client") &&
                  json_is_number(json_object_get(line, "ms")),
              "%s", raw);
    cr_assert(text_of(line, "route") ||
                  (json_is_null(json_object_get(line, "route")) && text_of(line, "path")),
              "%s", raw);
    if (!json_object_get(line, "generation"))
        return;
    static const char *const ends[] = {"eos", "stop", "length", "timeout", "cancelled", "error", NULL};
    cr_assert(is_one_of(text_of(line, "finish"), ends), "%s", raw);
    const json_t *choices = json_object_get(line, "choices");
    cr_assert(!choices || json_array_size(choices) > 1, "%s", raw);
    for (size_t i = 0; i < json_array_size(choices); i++)
        cr_assert(is_one_of(json_string_value(json_array_get(choices, i)), ends), "%s", raw);
    cr_assert(json_is_integer(json_object_get(line, "prompt_tokens")) &&
                  json_is_integer(json_object_get(line, "cached_tokens")) &&
                  json_is_integer(json_object_get(line, "tokens")),
              "%s", raw);
}

static void expect_line(char *raw)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    static const char *const known[] = {
        "time",          "level",         "request", "message",    "method", "route",
        "path",          "status",        "ms",      "generation", "finish", "choices",
        "prompt_tokens", "cached_tokens", "tokens",  "error",      "client", NULL};
    json_error_t words;
    json_t *line = json_loads(raw, JSON_REJECT_DUPLICATES, &words), *value;
    const char *key;
    cr_assert(json_is_object(line), "%s: %s", words.text, raw);
    for (const char *c = raw; *c; c++)
        cr_assert((unsigned char)*c >= 0x20 && *c != 0x7f, "a control character in %s", raw);
    json_object_foreach(line, key, value)
        cr_assert(is_one_of(key, known), "unknown key \"%s\": %s", key, raw);
    expect_time(text_of(line, "time"));
    cr_assert(is_one_of(text_of(line, "level"), levels), "%s", raw);
    cr_assert(text_of(line, "message"), "%s", raw);
    if (json_object_get(line, "status"))
        expect_access(line, raw);
    json_array_append_new(lines, line);
}

/* Reads the log of a daemon that has ended. */
static void read_lines(void)
{
    char *log = daemon_read_log(), *rest = log, *raw;
    lines = json_array();
    cr_assert(*log && log[strlen(log) - 1] == '\n', "the last line is whole: %s", log);
    while ((raw = strsep(&rest, "\n")) && (*raw || rest))
        expect_line(raw);
    free(log);
}

/* A line with this member; its message has the words. */
static const json_t *find(const char *member, const char *is, const char *words)
{
    const json_t *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const char *value = text_of(line, member);
        if (value && !strcmp(value, is) && strstr(text_of(line, "message"), words))
            return line;
    }
    char *all = json_dumps(lines, JSON_INDENT(1));
    cr_assert_fail("no line with %s \"%s\" and \"%s\":\n%s", member, is, words, all);
    return NULL;
}

/* Bytes as they are, to a connection of their own, read to the end. */
static void send_raw(const char *bytes)
{
    struct reply r = {0};
    int fd = client_connect(daemon_.port);
    client_puts(fd, bytes);
    shutdown(fd, SHUT_WR);
    while (reply_more(&r, fd))
        ;
    reply_free(&r);
    close(fd);
}

static void send_hostile(void)
{
    static char huge[3000];
    send_raw("GET /\"quoted\\path\x1b[31m\xff\xc3\x28\xe2\x80\xa8 HTTP/1.1\r\nHost: localhost\r\nConnection: "
             "close\r\n\r\n");
    send_raw("GET /sch\xc3\xb6n\xc2\x9b\x7f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    send_raw("G\"E\\T /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    send_raw("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\"b\\c\xff\r\nUser-Agent: "
             "\xf0\x9f\x94\xa5\"}\x01\r\nConnection: close\r\n\r\n");
    send_raw("GET /health HTTP/1.1\r\nHost: ev\"il\xff\r\nOrigin: \"\\\xe2\x82\r\nConnection: close\r\n\r\n");
    send_raw("\x16\x03\x01\x02\xff\xfe not HTTP \"at\\all\n\r\n\r\n");
    send_raw("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n");
    memset(huge, '"', sizeof huge - 1);
    memcpy(huge, "GET /", 5);
    send_raw(huge);
    strcpy(huge + 2000, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    send_raw(huge);
    memset(huge + 5, 0xc3, 1500);
    send_raw(huge);
}

static void hang_up(const char *words)
{
    kill(daemon_.pid, SIGHUP);
    for (int left = 60000;; left--) {
        char *log = daemon_read_log();
        bool told = strstr(log, words);
        cr_assert(told || left > 0, "no \"%s\" in %s", words, log);
        free(log);
        if (told)
            return;
        usleep(5000);
    }
}

#define SHORT "{\"prompt\":\"A \\\"secret\\\" hedgehog\",\"max_tokens\":3,\"ignore_eos\":true"

Test(log_json, a_busy_session_is_one_object_a_line)
{
    char path[128];
    const char *key = admin_open();
    const char *model = admin_copy(DEMO_MODEL, "a\"b.gguf", SIZE_MAX); /* a quote in a path of ours */
    setenv("HEARTH_LOG_FORMATT\"", "x", 1);
    setenv("HEARTH_QUEUE_LIMT", "x", 1);
    daemon_start((const char *[]){"--log-format", "json", "--log-level", "debug", "--model", model,
                                  "--admin-key-file", key, "--prefix-cache-dir", "/dev/null/none", SLOW,
                                  NULL});
    json_decref(generate(SHORT "}"));
    json_decref(generate(SHORT ",\"n\":2}"));
    struct reply r = post("/generate", SHORT ",\"stream\":true}");
    reply_free(&r);
    r = client_once(daemon_.port, "POST", "/v1/completions", "X-Request-Id: one.two-three\r\n", SHORT "}");
    reply_free(&r);
    r = post("/generate", SHORT ",\"temperature\":\"\\u00e9\\\"\"}");
    reply_free(&r);
    r = post("/generate", "{\"prompt\":\"\xff\"}");
    reply_free(&r);
    r = get("/no/such/route\\\"");
    reply_free(&r);
    send_hostile();
    admin_expect(admin_swap("nothing \\\"here\\\" \\u0001"), 404);
    admin_copy(DEMO_MODEL, "cut.gguf", 100000);
    admin_not_swapped("cut.gguf", "cut.gguf");
    int fd = client_connect(daemon_.port);
    client_request(fd, "POST", "/generate", "",
                   "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}");
    wait_stat("requests.running", 1);
    close(fd);
    wait_stat("requests.running", 0);
    hang_up("SIGHUP: log_level");
    snprintf(path, sizeof path, "%s/key", admin_dir);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs("two \"words\" \xff\n", f) >= 0 && fclose(f) == 0);
    hang_up("the current keys stay");
    cr_assert_eq(daemon_end(SIGTERM), 0);
    read_lines();
    find("level", "info", "listening on ");
    find("level", "warn", "HEARTH_QUEUE_LIMT");
    find("level", "info", "SIGHUP: log_level");
    find("level", "error", "the current keys stay");
    find("level", "error", "swap failed");
    find("level", "info", "SIGTERM: draining");
    find("level", "info", "bye");
    find("request", "one.two-three", "POST /v1/completions 200");
    find("finish", "length", "POST /generate 200");
    const json_t *two = find("finish", "length", " choices=length,length ");
    cr_assert_eq(json_array_size(json_object_get(two, "choices")), 2);
    find("finish", "cancelled", "POST /generate");
    cr_assert_str_eq(text_of(find("path", "/no/such/route\\\"", " 404"), "method"), "GET");
    find("path", "/sch\xc3\xb6n\xc2\x9b\x7f", " 404");
    char *all = json_dumps(lines, 0);
    cr_assert(!strstr(all, "hedgehog") && !strstr(all, "secret"), "a prompt in the log: %s", all);
    free(all);
    json_decref(lines);
    snprintf(path, sizeof path, "rm -r %s", admin_dir);
    cr_assert_eq(system(path), 0);
}

/* With its own connection, and headers. */
static void ask_with(const char *headers, int status)
{
    struct reply r = client_once(daemon_.port, "GET", "/v1/models", headers, NULL);
    cr_assert_eq(r.status, status, "%s", r.body);
    reply_free(&r);
}

static void ask_unix(const char *path)
{
    struct reply r;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    cr_assert_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    client_request(fd, "GET", "/v1/models", "X-Request-Id: local\r\nX-Forwarded-For: 10.0.0.3\r\n", NULL);
    client_read(fd, &r, false);
    cr_assert_eq(r.status, 401);
    reply_free(&r);
    close(fd);
}

static void expect_client(const char *request, const char *client)
{
    char words[80];
    snprintf(words, sizeof words, "GET /v1/models 401 unauthorized ");
    const json_t *line = find("request", request, words);
    cr_assert_str_eq(text_of(line, "client"), client);
    snprintf(words, sizeof words, " ms from %s", client);
    const char *message = text_of(line, "message"), *end = strstr(message, words);
    cr_assert(end && !end[strlen(words)], "%s", message);
}

Test(log_json, who_has_no_key_is_named_by_address_behind_trusted_proxies_too)
{
    char dir[] = "/tmp/hearth-it-XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/hearth.sock", dir);
    daemon_start((const char *[]){"--log-format", "json", "--api-keys", "a-key", "--trusted-proxies",
                                  "127.0.0.0/8", "--unix-socket", path, NULL});
    ask_with("X-Request-Id: direct\r\n", 401);
    ask_with("X-Request-Id: four\r\nX-Forwarded-For: 192.0.2.1, 10.0.0.2, 127.0.0.5\r\n", 401);
    ask_with("X-Request-Id: six\r\nX-Forwarded-For: 2001:DB8:0::7\r\n", 401);
    ask_unix(path);
    cr_assert_eq(daemon_end(SIGTERM), 0);
    read_lines();
    expect_client("direct", "127.0.0.1");
    expect_client("four", "10.0.0.2");
    expect_client("six", "2001:db8::7");
    expect_client("local", "unix");
    json_decref(lines);
    rmdir(dir);
}

static void expect_last(const char *const *flags, int code, const char *words)
{
    daemon_spawn(flags);
    int got = daemon_end(0);
    char *log = daemon_read_log();
    cr_assert_eq(got, code, "%s", log);
    free(log);
    read_lines();
    find("level", "error", words);
    json_decref(lines);
}

Test(log_json, so_are_the_words_of_a_start_that_fails)
{
    admin_open();
    expect_last((const char *[]){"--log-format", "json", "--model", "/no/such\xff\"model.gguf", NULL}, 3,
                "does not exist");
    expect_last(
        (const char *[]){"--log-format", "json", "--model", admin_copy(DEMO_MODEL, "cut.gguf", 100000), NULL},
        4, "cut.gguf");
    expect_last((const char *[]){"--log-format", "json", "--host", "192.0.2.1", NULL}, 2, "192.0.2.1");
    expect_last((const char *[]){"--log-format", "json", "--chat-template", "/no/such.jinja", NULL}, 2,
                "/no/such.jinja");
    admin_close();
}
