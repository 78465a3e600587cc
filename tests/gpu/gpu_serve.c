/* gpu_serve.c - measures hearthd with backend cuda from a client's side: time to first token, launches,
 * watts, park and relaunch, exit.
 *   gpu_serve HEARTHD MODEL
 * Starts HEARTHD on a Unix socket of its own and stops it again. JSON on stdout; exit code 0 only if the
 * daemon became ready, served, launched once per park and exited with 0. HEARTH_LIBCUDA and GPU_POWER as for
 * gpu_bench. */
#include "base/clock.h"
#include "base/error.h"
#include "power.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPLY_BYTES ((size_t)1 << 20)
#define READY_S     200 /* includes packing the weights of the largest model */

struct serve {
    char folder[64], socket[96];
    pid_t pid;
    bool emulated;
    int park_ms, n_requests, n_prompt, n_tokens;
    char *reply; /* REPLY_BYTES */
};

static void sleep_s(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)},
              NULL);
}

/* ---- the daemon ---- */

static int start(struct serve *s, const char *program, const char *model, struct error *err)
{
    char park[16];
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(s->folder, sizeof s->folder, "%s/hearth-XXXXXX",
                   temporary && strlen(temporary) < 40 ? temporary : "/tmp");
    if (!mkdtemp(s->folder))
        return error_set(err, -errno, "%s: %s", s->folder, strerror(errno));
    (void)snprintf(s->socket, sizeof s->socket, "%s/socket", s->folder);
    (void)snprintf(park, sizeof park, "%d", s->park_ms);
    s->pid = fork();
    if (s->pid < 0)
        return error_set(err, -errno, "fork: %s", strerror(errno));
    if (s->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(STDERR_FILENO, STDOUT_FILENO);
        execl(program, program, "serve", "--config", "/dev/null", "--model", model, "--backend", "cuda",
              "--port", "any", "--unix-socket", s->socket, "--slots", "8", "--n-ctx", "1024",
              "--park-after-ms", park, (char *)NULL);
        _exit(127);
    }
    return 0;
}

/* Stops the daemon; returns its exit code, or -1. */
static int stop(struct serve *s)
{
    int status = -1;
    if (s->pid <= 0 || waitpid(s->pid, &status, WNOHANG) == s->pid)
        return s->pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    (void)kill(s->pid, SIGTERM);
    for (int i = 0; i < (s->emulated ? 4000 : 200); i++, sleep_s(0.1))
        if (waitpid(s->pid, &status, WNOHANG) == s->pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    (void)kill(s->pid, SIGKILL);
    (void)waitpid(s->pid, &status, 0);
    return -1;
}

/* ---- HTTP ---- */

static int dial(const struct serve *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, s->socket, strlen(s->socket) + 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends a request and reads the answer to its end. *first_s: time until the first event of a stream. Returns
 * the status, or -1. */
static int ask(struct serve *s, const char *method, const char *path, const char *body, double *first_s)
{
    char head[256];
    int fd = dial(s), status = -1;
    size_t n = 0;
    if (fd < 0)
        return -1;
    uint64_t start_ns = clock_ns();
    int length =
        snprintf(head, sizeof head,
                 "%s %s HTTP/1.1\r\nHost: gpu\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 method, path, strlen(body));
    size_t left = strlen(body);
    bool sent = send(fd, head, (size_t)length, MSG_NOSIGNAL) == length &&
                (left == 0 || send(fd, body, left, MSG_NOSIGNAL) == (ssize_t)left);
    for (ssize_t got = 1; sent && got > 0 && n + 1 < REPLY_BYTES; n += got > 0 ? (size_t)got : 0) {
        got = read(fd, s->reply + n, REPLY_BYTES - 1 - n);
        s->reply[n + (got > 0 ? (size_t)got : 0)] = '\0';
        if (first_s && *first_s == 0 && strstr(s->reply, "data: {"))
            *first_s = (double)(clock_ns() - start_ns) * 1e-9;
    }
    close(fd);
    if (sscanf(s->reply, "HTTP/1.1 %d", &status) != 1)
        return -1;
    return status;
}

static json_t *stats(struct serve *s)
{
    if (ask(s, "GET", "/stats", "", NULL) != 200)
        return NULL;
    const char *body = strstr(s->reply, "\r\n\r\n");
    return body ? json_loads(body + 4, 0, NULL) : NULL;
}

static int await_ready(struct serve *s, struct error *err)
{
    uint64_t limit = clock_ns() + (uint64_t)READY_S * 1000000000;
    while (ask(s, "GET", "/health/ready", "", NULL) != 200) {
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
            s->pid = 0;
            return error_set(err, -EIO, "hearthd ended before it was ready");
        }
        if (clock_ns() > limit)
            return error_set(err, -ETIMEDOUT, "hearthd is not ready after %d s", READY_S);
        sleep_s(0.05);
    }
    return 0;
}

/* Makes one streamed request of n_prompt tokens. */
static int request(struct serve *s, int n_prompt, uint32_t salt, double *first_s, struct error *err)
{
    char body[8192];
    int n = snprintf(body, sizeof body, "{\"prompt\":[");
    for (int i = 0; i < n_prompt; i++)
        n += snprintf(body + n, sizeof body - (size_t)n, "%s%u", i ? "," : "",
                      3 + (salt * 31 + (uint32_t)i * 7) % 200);
    (void)snprintf(
        body + n, sizeof body - (size_t)n,
        "],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"cache_prompt\":false,\"stream\":true}",
        s->n_tokens);
    *first_s = 0;
    int status = ask(s, "POST", "/generate", body, first_s);
    if (status != 200 || !strstr(s->reply, "data: [DONE]"))
        return error_set(err, -EIO, "a request ended with %d: %.120s", status, s->reply);
    return 0;
}

/* ---- measurements ---- */

static json_t *figure(const struct serve *s, double value)
{
    return s->emulated ? json_null() : json_real(value);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int first_tokens(struct serve *s, const char *key, int n_prompt, json_t *out, struct error *err)
{
    double times[64], ignored;
    int rc = request(s, n_prompt, 99, &ignored, err); /* warms up */
    for (int i = 0; rc == 0 && i < s->n_requests; i++)
        rc = request(s, n_prompt, (uint32_t)i, &times[i], err);
    if (rc < 0)
        return rc;
    qsort(times, (size_t)s->n_requests, sizeof *times, ascending);
    json_object_set_new(out, key,
                        json_pack("{s:i, s:i, s:o, s:o, s:o}", "prompt_tokens", n_prompt, "n", s->n_requests,
                                  "median_ms", figure(s, times[s->n_requests / 2] * 1e3), "min_ms",
                                  figure(s, times[0] * 1e3), "max_ms",
                                  figure(s, times[s->n_requests - 1] * 1e3)));
    return 0;
}

/* Reads the number of launches since the start from /stats; fails unless the decoder is in that state (NULL:
 * any). */
static int count_launches(struct serve *s, const char *state, json_int_t *launches, struct error *err)
{
    json_t *all = stats(s), *decoder = json_object_get(all, "decoder");
    const char *is = json_string_value(json_object_get(decoder, "state"));
    int rc = 0;
    *launches = json_integer_value(json_object_get(decoder, "launches"));
    if (!decoder)
        rc = error_set(err, -EIO, "/stats did not answer");
    else if (state && (!is || strcmp(is, state) != 0))
        rc = -EAGAIN;
    json_decref(all);
    return rc;
}

static void put_watts(json_t *list, const char *state)
{
    json_t *row = json_pack("{s:s}", "state", state);
    power_put(row);
    json_array_append_new(list, row);
}

/* Idle daemon: full speed, then backed off, then parked; and running again with the next request. */
static int idle_and_return(struct serve *s, json_int_t launches, json_t *out, struct error *err)
{
    json_t *watts = json_array();
    json_int_t now = 0;
    double first_s;
    json_object_set_new(out, "watts", watts);
    put_watts(watts, "just served");
    sleep_s(s->emulated ? 0 : 2);
    put_watts(watts, "backed off");
    uint64_t limit = clock_ns() + (uint64_t)(s->park_ms + (s->emulated ? 400000 : 10000)) * 1000000;
    int rc;
    while ((rc = count_launches(s, "parked", &now, err)) == -EAGAIN) {
        if (clock_ns() > limit)
            return error_set(err, -EIO, "the decoder did not park after %d ms", s->park_ms);
        sleep_s(0.05);
    }
    if (rc < 0)
        return rc;
    sleep_s(s->emulated ? 0 : 2);
    put_watts(watts, "parked");
    rc = request(s, s->n_prompt, 7, &first_s, err);
    json_object_set_new(out, "ttft_after_park_ms", figure(s, first_s * 1e3));
    if (rc == 0)
        rc = count_launches(s, NULL, &now, err);
    if (rc == 0 && now != launches + 1)
        rc = error_set(err, -EIO, "%lld launches before the park, %lld after it", (long long)launches,
                       (long long)now);
    return rc;
}

static int measure(struct serve *s, json_t *out, struct error *err)
{
    json_int_t launches = 0, tokens = 0;
    uint64_t begin = clock_ns();
    int rc = await_ready(s, err);
    json_object_set_new(out, "ready_s", figure(s, (double)(clock_ns() - begin) * 1e-9));
    if (rc == 0)
        rc = first_tokens(s, "ttft", s->n_prompt, out, err);
    if (rc == 0)
        rc = first_tokens(s, "ttft_short", 1, out, err);
    if (rc < 0)
        return rc;
    json_t *all = stats(s);
    json_t *decoder = json_object_get(all, "decoder");
    launches = json_integer_value(json_object_get(decoder, "launches"));
    tokens = json_integer_value(json_object_get(decoder, "tokens"));
    json_object_set(out, "device", json_object_get(json_object_get(all, "device"), "name"));
    json_decref(all);
    json_object_set_new(out, "launches", json_integer(launches));
    json_object_set_new(out, "tokens", json_integer(tokens));
    if (launches != 1)
        return error_set(err, -EIO, "%lld launches for %lld tokens: the persistent decoder needs one",
                         (long long)launches, (long long)tokens);
    return idle_and_return(s, launches, out, err);
}

int main(int argc, char **argv)
{
    const char *driver = getenv("HEARTH_LIBCUDA");
    struct serve s = {.emulated = driver && strstr(driver, "simt"), .reply = malloc(REPLY_BYTES)};
    struct error err = {0};
    if (argc != 3 || !s.reply) {
        (void)fprintf(stderr, "usage: gpu_serve HEARTHD MODEL\n");
        return 2;
    }
    s.park_ms = s.emulated ? 3000 : 8000;
    s.n_requests = s.emulated ? 1 : 20;
    s.n_prompt = s.emulated ? 5 : 512;
    s.n_tokens = s.emulated ? 3 : 16;
    json_t *out = json_pack("{s:b, s:i}", "emulated", s.emulated, "park_after_ms", s.park_ms);
    int rc = start(&s, argv[1], argv[2], &err);
    if (rc == 0)
        rc = measure(&s, out, &err);
    int code = stop(&s);
    json_object_set_new(out, "exit_code", json_integer(code));
    if (rc == 0 && code != 0)
        rc = error_set(&err, -EIO, "hearthd exited with %d", code);
    (void)unlink(s.socket);
    (void)rmdir(s.folder);
    json_object_set_new(out, "ok", json_boolean(rc == 0));
    if (rc < 0) {
        json_object_set_new(out, "error", json_string(err.text));
        (void)fprintf(stderr, "gpu_serve: %s\n", err.text);
    }
    json_dumpf(out, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    (void)puts("");
    json_decref(out);
    free(s.reply);
    return rc < 0;
}
