#include "harness.h"

#include <curl/curl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PATIENCE_MS 300000

struct daemon daemon_;
const char *daemon_binary = HEARTHD_BINARY;
bool daemon_streams_closed;
const char *daemon_headers = "";

static void exec_daemon(const char *const *flags)
{
    const char *args[64] = {HEARTHD_BINARY, "serve",    "--config", "/dev/null",
                            "--model",      DEMO_MODEL, "--port",   "0"};
    size_t n = 8;
    while (flags && *flags && n < 63)
        args[n++] = *flags++;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test takes its daemon along */
    dup2(daemon_.log, STDERR_FILENO);
    dup2(daemon_.log, STDOUT_FILENO);
    for (int fd = 0; fd < 3 && daemon_streams_closed; fd++)
        close(fd);
    setenv("HEARTH_CORE_DUMPS", "yes", 1); /* tests look at its descriptors, not only root's */
    execv(daemon_binary, (char *const *)args);
    _exit(127);
}

void daemon_spawn(const char *const *flags)
{
    memset(&daemon_, 0, sizeof daemon_);
    daemon_.log = memfd_create("log", MFD_CLOEXEC);
    cr_assert_geq(daemon_.log, 0);
    daemon_.pid = fork();
    if (daemon_.pid == 0)
        exec_daemon(flags);
    cr_assert_gt(daemon_.pid, 0);
}

char *daemon_read_log(void)
{
    char *text = calloc(1, 1 << 20);
    if (pread(daemon_.log, text, (1 << 20) - 1, 0) < 0)
        text[0] = '\0';
    return text;
}

/* The port, once the daemon has said where it listens; 0 before. */
static uint16_t listening_port(void)
{
    char *log = daemon_read_log();
    const char *at = strstr(log, "listening on http://127.0.0.1:");
    uint16_t port = at ? (uint16_t)atoi(at + 30) : 0;
    free(log);
    return port;
}

static bool is_gone(void)
{
    return waitpid(daemon_.pid, NULL, WNOHANG) != 0;
}

static void wait_a_little(int *left_ms, const char *what)
{
    char *log = daemon_read_log();
    bool gone = is_gone();
    if (gone)
        daemon_.pid = 0;
    cr_assert(!gone && *left_ms > 0, "%s: %s\n%s", what, gone ? "the daemon has ended" : "too slow", log);
    free(log);
    usleep(5000);
    *left_ms -= 5;
}

void daemon_wait_listening(void)
{
    int left = PATIENCE_MS;
    while (!(daemon_.port = listening_port()))
        wait_a_little(&left, "waiting for the port");
}

void daemon_wait_ready(void)
{
    int left = PATIENCE_MS;
    for (;;) {
        struct reply r = get("/health");
        int status = r.status;
        reply_free(&r);
        if (status == 200)
            return;
        wait_a_little(&left, "waiting for readiness");
    }
}

void daemon_start(const char *const *flags)
{
    daemon_spawn(flags);
    daemon_wait_listening();
    daemon_wait_ready();
}

void daemon_default(void)
{
    daemon_start(NULL);
}

int daemon_end(int number)
{
    int status = 0;
    pid_t pid = daemon_.pid;
    if (!pid)
        return -1;
    daemon_.pid = 0;
    if (number)
        kill(pid, number);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void daemon_stop(void)
{
    if (!daemon_.pid)
        return;
    int code = daemon_end(SIGTERM);
    char *log = daemon_read_log();
    cr_assert_eq(code, 0, "exit code %d\n%s", code, log);
    free(log);
}

struct reply get(const char *path)
{
    return client_once(daemon_.port, "GET", path, daemon_headers, NULL);
}

static struct reply post_bytes(const char *path, const char *body, size_t len)
{
    char head[256];
    struct reply r;
    int fd = client_connect(daemon_.port);
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     path, len);
    client_send(fd, head, (size_t)n);
    client_send(fd, body, len);
    client_read(fd, &r, false);
    close(fd);
    return r;
}

struct reply post(const char *path, const char *body)
{
    return post_bytes(path, body, strlen(body));
}

static size_t take(char *bytes, size_t size, size_t n, void *reply)
{
    reply_add(reply, bytes, size * n);
    return size * n;
}

struct reply curl_post(const char *path, const char *body, size_t len)
{
    struct reply r = {0};
    char url[128];
    long status = 0;
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", daemon_.port, path);
    reply_add(&r, "", 0);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)len);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &r);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)CLIENT_TIMEOUT_S);
    CURLcode code = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    r.status = code == CURLE_OK ? (int)status : 0;
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return r;
}

static json_t *object_of(struct reply r, const char *path, const char *body)
{
    cr_assert_eq(r.status, 200, "%s %s: %d: %s", path, body ? body : "", r.status, r.body);
    json_t *root = reply_json(&r);
    reply_free(&r);
    return root;
}

json_t *get_ok(const char *path)
{
    return object_of(get(path), path, NULL);
}

json_t *post_ok(const char *path, const char *body)
{
    return object_of(post(path, body), path, body);
}

json_t *generate(const char *body)
{
    return post_ok("/generate", body);
}

int send_as(const char *id, const char *body)
{
    char head[64];
    int fd = client_connect(daemon_.port);
    snprintf(head, sizeof head, "X-Request-Id: %s\r\n", id);
    client_request(fd, "POST", "/generate", head, body);
    return fd;
}

long long stat_number(const char *path)
{
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    long long v = json_number(root, path);
    json_decref(root);
    reply_free(&r);
    return v;
}

char *stat_text(const char *path)
{
    struct reply r = get("/stats");
    json_t *root = reply_json(&r);
    char *text = strdup(json_text(root, path));
    json_decref(root);
    reply_free(&r);
    return text;
}

void expect_stat(const char *path, const char *expected)
{
    char *text = stat_text(path);
    cr_assert_str_eq(text, expected, "%s is %s", path, text);
    free(text);
}

long long metric(const char *name)
{
    struct reply r = get("/metrics");
    char line[80];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(r.body, line);
    cr_assert_not_null(at, "no metric %s", name);
    long long value = atoll(at + strlen(line));
    reply_free(&r);
    return value;
}

void wait_connections(long long n)
{
    long long is = -1;
    for (int i = 0; i < 60000 && (is = metric("hearth_connections")) != n; i++)
        usleep(5000);
    cr_assert_eq(is, n, "%lld connections", is);
}

int connect_narrow(void)
{
    return client_connect_narrow(daemon_.port);
}

long long own_memory(void)
{
    return metric("hearth_process_anonymous_bytes") - metric("hearth_device_memory_bytes");
}

void wait_stat(const char *path, long long value)
{
    int left = PATIENCE_MS;
    long long got;
    while ((got = stat_number(path)) != value) {
        cr_assert_gt(left, 0, "%s is %lld, not %lld", path, got, value);
        usleep(5000);
        left -= 5;
    }
}

char *long_prompt(const char *unit, size_t n, const char *rest)
{
    size_t len = strlen(unit), size = len * n + strlen(rest) + 32, at;
    char *text = malloc(size);
    at = (size_t)snprintf(text, size, "{\"prompt\":\"");
    for (size_t i = 0; i < n; i++, at += len)
        memcpy(text + at, unit, len);
    snprintf(text + at, size - at, "\"%s}", rest);
    return text;
}
