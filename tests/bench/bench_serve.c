/* bench_serve - what clients of a hearthd see: how fast text comes, and how soon it is ready after its start.
 *
 *   bench_serve streams PORT N N_PROMPT N_GEN WAVES
 *       N connections at once, each with one streamed request of N_PROMPT random token ids (no two alike) and
 *       N_GEN tokens of text; WAVES times, with half a second of rest before each, after one wave that does
 *       not count.
 *
 *   bench_serve poisson PORT N N_PROMPT N_GEN PER_MINUTE [SEED]
 *       N such requests, each over its own connection, that arrive at random: PER_MINUTE of them a minute on
 *       average, with exponential times between them. To compare two daemons, give both the same seed: a few
 *       dozen arrivals differ more from one run to the next than daemons do.
 *
 *   bench_serve beside PORT N N_LONG GAPS
 *       N streams, and when all of them run prompts of N_LONG token ids, one after the other: the times
 * between the streams' tokens from then until the prompt is done with which there are GAPS of them; without
 * one (0) the first GAPS.
 *
 *   bench_serve schemas PORT N FILE GAPS
 *       The same beside requests that ask for texts of the JSON schema in FILE, an object with a member at
 * least, one after the other; each is made another schema, so that no cache has it. Some may be refused.
 *
 *   bench_serve health PORT
 *       GET /health over a new connection every 20 ms, until SIGTERM: how long from before connect() to the
 * reply.
 *
 *   bench_serve start N COMMAND...
 *       N times: starts COMMAND, a hearthd with --port, and asks for /health/ready until that says 200.
 *
 * Prints "name value" lines: medians over the waves and starts, percentiles over all that came. A token's
 * time is that of the recv() that brought its event. client_cpu is the part of one core that this program
 * took. One thread, which sleeps in poll(). */
#include "base/clock.h"
#include "support/http_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STREAMS 256
#define MAX_WAVES   64
#define ROOM        65536
#define REST_NS     500000000
#define HEALTH_NS   20000000
#define HEALTH_MAX  65536

extern char **environ;

struct stream {
    size_t n_out, sent, n_in;
    uint64_t began_ns, first_ns, last_ns;
    uint32_t n_events;
    bool done;
    char out[32768], in[ROOM];
};

static struct {
    uint16_t port;
    uint32_t n, n_prompt, n_gen, n_waves, random;
    const char *more;               /* members of a request, or NULL */
    uint32_t n_long;                /* long prompts, or schemas, so far */
    uint32_t n_refused;             /* of the schemas */
    const char *schema;             /* a JSON schema; NULL: prompts */
    uint32_t first_token, n_tokens; /* of the vocabulary, that prompts are made of */
    struct stream *streams;
    struct pollfd fds[MAX_STREAMS + 1];
    double *gaps_ms, *ttft_ms, *beyond_ms, rates[MAX_WAVES];
    uint32_t n_gaps, n_ttft, n_beyond;
} b;

static void die(const char *what)
{
    fprintf(stderr, "bench_serve: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void rest(long ns)
{
    nanosleep(&(struct timespec){0, ns}, NULL);
}

static int ascending(const void *a, const void *b_)
{
    double x = *(const double *)a, y = *(const double *)b_;
    return (x > y) - (x < y);
}

/* Returns a quantile of n values, which it sorts; 0 of none. */
static double percentile(double *values, uint32_t n, double fraction)
{
    qsort(values, n, sizeof *values, ascending);
    uint32_t at = (uint32_t)(fraction * n);
    return n ? values[at < n ? at : n - 1] : 0;
}

/* ---- streams ---- */

static size_t post(char *out, size_t size, const char *body, size_t n)
{
    return (size_t)snprintf(
        out, size, "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", n, body);
}

static void make_request(struct stream *s)
{
    char body[sizeof s->out - 256];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"prompt\":[");
    for (uint32_t i = 0; i < b.n_prompt && n < sizeof body - 128; i++) {
        b.random = b.random * 1664525u + 1013904223u;
        n += (size_t)snprintf(body + n, sizeof body - n, "%s%u", i ? "," : "",
                              b.first_token + (b.random >> 8) % b.n_tokens);
    }
    n += (size_t)snprintf(body + n, sizeof body - n,
                          "],\"max_tokens\":%u,\"ignore_eos\":true,\"stream\":true%s}", b.n_gen,
                          b.more ? b.more : "");
    s->n_out = post(s->out, sizeof s->out, body, n);
    s->sent = s->n_in = 0;
    s->n_events = 0;
    s->done = false;
    s->first_ns = s->last_ns = 0;
}

static void note_event(struct stream *s, uint64_t now)
{
    if (!s->n_events++) {
        s->first_ns = now;
        b.ttft_ms[b.n_ttft++] = (double)(now - s->began_ns) / 1e6;
    } else {
        b.gaps_ms[b.n_gaps++] = (double)(now - s->last_ns) / 1e6;
    }
    s->last_ns = now;
}

/* Notes the time of the first token beyond the prefill that the daemon tells of in the last event. */
static void note_prefill(const struct stream *s, const char *event)
{
    const char *at = strstr(event, "\"prefill_ms\":");
    if (at && s->first_ns)
        b.beyond_ms[b.n_beyond++] =
            (double)(s->first_ns - s->began_ns) / 1e6 - strtod(strchr(at, ':') + 1, NULL);
}

/* Events that bring tokens: those of the text, and the last one when it does. */
static void read_more(struct stream *s, int fd)
{
    ssize_t got = recv(fd, s->in + s->n_in, ROOM - 1 - s->n_in, 0);
    uint64_t now = clock_ns();
    if (got <= 0) {
        fprintf(stderr, "bench_serve: cut after %u events: %.300s\n", s->n_events, s->in);
        exit(1);
    }
    s->n_in += (size_t)got;
    s->in[s->n_in] = '\0';
    char *at = s->in, *end;
    for (; (end = strstr(at, "\n\n")); at = end + 2) {
        *end = '\0';
        if (strstr(at, "\"tokens\":[") && !strstr(at, "\"tokens\":[]"))
            note_event(s, now);
        note_prefill(s, at);
        s->done = s->done || strstr(at, "data: [DONE]");
    }
    s->n_in -= (size_t)(at - s->in);
    memmove(s->in, at, s->n_in + 1);
}

static void send_more(struct stream *s, struct pollfd *p)
{
    ssize_t n = send(p->fd, s->out + s->sent, s->n_out - s->sent, MSG_NOSIGNAL);
    if (n < 0)
        die("send");
    s->sent += (size_t)n;
    if (s->sent == s->n_out)
        p->events = POLLIN;
}

/* Sends and reads what can be. Returns the number of streams that have ended. */
static uint32_t serve_ready(void)
{
    uint32_t ended = 0;
    for (uint32_t i = 0; i < b.n; i++) {
        struct stream *s = &b.streams[i];
        if (b.fds[i].fd < 0)
            continue;
        if (b.fds[i].revents & POLLOUT && s->sent < s->n_out)
            send_more(s, &b.fds[i]);
        if (b.fds[i].revents & (POLLIN | POLLHUP | POLLERR))
            read_more(s, b.fds[i].fd);
        if (s->done) {
            close(b.fds[i].fd);
            b.fds[i].fd = -1;
            ended++;
        }
    }
    return ended;
}

/* Sends a wave over connections that are open, as those of a pool are. */
static void wave(uint32_t number)
{
    uint32_t open = b.n;
    for (uint32_t i = 0; i < b.n; i++) {
        make_request(&b.streams[i]);
        b.fds[i] = (struct pollfd){.fd = client_dial(b.port), .events = POLLIN | POLLOUT};
        if (b.fds[i].fd < 0)
            die("connect");
    }
    rest(REST_NS);
    uint64_t began = clock_ns();
    for (uint32_t i = 0; i < b.n; i++)
        b.streams[i].began_ns = began;
    while (open > 0) {
        if (poll(b.fds, b.n, 60000) <= 0)
            die("no news for a minute");
        open -= serve_ready();
    }
    b.rates[number] = (double)b.n * (b.n_prompt + b.n_gen) * 1e9 / (double)(clock_ns() - began);
}

/* The time to the next arrival of a Poisson process. */
static uint64_t next_arrival_ns(uint32_t per_minute)
{
    b.random = b.random * 1664525u + 1013904223u;
    double uniform = ((double)(b.random >> 8) + 0.5) / (1 << 24);
    return (uint64_t)(-log(uniform) * 60e9 / per_minute);
}

static void arrive(uint32_t i)
{
    make_request(&b.streams[i]);
    b.fds[i] = (struct pollfd){.fd = client_dial(b.port), .events = POLLIN | POLLOUT};
    if (b.fds[i].fd < 0)
        die("connect");
    b.streams[i].began_ns = clock_ns();
}

static void poisson_wave(uint32_t per_minute)
{
    uint64_t began = clock_ns(), due = began;
    uint32_t arrived = 0, done = 0;
    for (uint32_t i = 0; i < b.n; i++)
        b.fds[i].fd = -1;
    while (done < b.n) {
        for (; arrived < b.n && clock_ns() >= due; due += next_arrival_ns(per_minute))
            arrive(arrived++);
        uint64_t now = clock_ns();
        int wait_ms = arrived == b.n ? 60000 : now < due ? (int)((due - now) / 1000000) : 0;
        if (poll(b.fds, b.n, wait_ms) < 0 || (arrived == b.n && wait_ms && clock_ns() - now > 60000000000u))
            die("no news for a minute");
        done += serve_ready();
    }
    b.rates[0] = (double)b.n * (b.n_prompt + b.n_gen) * 1e9 / (double)(clock_ns() - began);
    b.n_waves = 1;
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void take_memory(void)
{
    size_t events = (size_t)b.n * (b.n_gen + 2) * (b.n_waves + 1);
    b.streams = calloc(b.n, sizeof *b.streams);
    b.gaps_ms = calloc(events, sizeof *b.gaps_ms);
    b.ttft_ms = calloc(events, sizeof *b.ttft_ms);
    b.beyond_ms = calloc(events, sizeof *b.beyond_ms);
    if (!b.streams || !b.gaps_ms || !b.ttft_ms || !b.beyond_ms)
        die("memory");
}

static void print_times(void)
{
    printf("inter_token_p50_ms %.3f\ninter_token_p99_ms %.3f\n", percentile(b.gaps_ms, b.n_gaps, 0.5),
           percentile(b.gaps_ms, b.n_gaps, 0.99));
    printf("ttft_p50_ms %.3f\nttft_p95_ms %.3f\nttft_p99_ms %.3f\n", percentile(b.ttft_ms, b.n_ttft, 0.5),
           percentile(b.ttft_ms, b.n_ttft, 0.95), percentile(b.ttft_ms, b.n_ttft, 0.99));
}

static void poisson(uint32_t per_minute)
{
    b.n_waves = 1;
    take_memory();
    poisson_wave(per_minute);
    printf("tokens_per_s %.1f\n", b.rates[0]);
    print_times();
}

static void streams(void)
{
    double busy = 0;
    take_memory();
    wave(0);
    b.n_gaps = b.n_ttft = b.n_beyond = 0;
    double cpu = cpu_seconds();
    for (uint32_t i = 0; i < b.n_waves; i++) {
        wave(i);
        busy += b.n * (double)(b.n_prompt + b.n_gen) / b.rates[i];
    }
    cpu = (cpu_seconds() - cpu) / busy;
    printf("tokens_per_s %.1f\n", percentile(b.rates, b.n_waves, 0.5));
    printf("events %u\nttft_beyond_prefill_p50_ms %.3f\n", b.n_gaps + b.n_ttft,
           percentile(b.beyond_ms, b.n_beyond, 0.5));
    print_times();
    printf("client_cpu %.4f\n", cpu);
}

/* ---- streams beside a long prompt, or beside schemas ---- */

static void send_all(int fd, const char *data, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        ssize_t more = send(fd, data + sent, n - sent, MSG_NOSIGNAL);
        if (more < 0)
            die("send");
        sent += (size_t)more;
    }
}

/* Its body is one that no cache has. A client that sends it can wait for the reply. */
static int send_long(uint32_t n_tokens)
{
    size_t room = 8 * (size_t)n_tokens + 256, n = 0;
    char *body = malloc(room), *out = malloc(room + 256);
    int fd = client_dial(b.port);
    if (!body || !out || fd < 0)
        die("the long prompt");
    n += (size_t)snprintf(body, room, "{\"max_tokens\":1,\"prompt\":[5");
    for (uint32_t i = 1; i < n_tokens; i++)
        n += (size_t)snprintf(body + n, room - n, ",%u", 5 + (b.n_long + i * 37) % 90);
    n += (size_t)snprintf(body + n, room - n, "]}");
    send_all(fd, out, post(out, room + 256, body, n));
    b.n_long++; /* the next one is another */
    free(body);
    free(out);
    return fd;
}

static void judge_long(int fd)
{
    char reply[64] = "";
    bool got = recv(fd, reply, sizeof reply - 1, 0) > 0;
    b.n_refused += b.schema && !strncmp(reply, "HTTP/1.1 4", 10);
    if (!got ||
        (strncmp(reply, "HTTP/1.1 200", 12) != 0 && !(b.schema && !strncmp(reply, "HTTP/1.1 4", 10)))) {
        fprintf(stderr, "bench_serve: the request beside: %s\n", reply);
        exit(1);
    }
    close(fd);
}

static void read_schema(const char *path)
{
    static char text[1 << 20];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (!n || text[0] != '{')
        die(path);
    fclose(f);
    b.schema = text;
}

/* The schema with a comment of its own. */
static int send_schema(void)
{
    size_t room = strlen(b.schema) + 256;
    char *body = malloc(room), *out = malloc(room + 256);
    int fd = client_dial(b.port);
    if (!body || !out || fd < 0)
        die("the schema");
    int n =
        snprintf(body, room, "{\"max_tokens\":64,\"prompt\":[5,6,7],\"json_schema\":{\"$comment\":\"%u\",%s}",
                 b.n_long++, b.schema + 1);
    send_all(fd, out, post(out, room + 256, body, (size_t)n));
    free(body);
    free(out);
    return fd;
}

static int send_beside(uint32_t n_long)
{
    return b.schema ? send_schema() : n_long ? send_long(n_long) : -1;
}

static bool all_run(void)
{
    for (uint32_t i = 0; i < b.n; i++)
        if (b.streams[i].n_events == 0)
            return false;
    return true;
}

static void start_streams(void)
{
    for (uint32_t i = 0; i < b.n; i++) {
        make_request(&b.streams[i]);
        b.fds[i] = (struct pollfd){.fd = client_dial(b.port), .events = POLLIN};
        if (b.fds[i].fd < 0)
            die("connect");
        b.streams[i].began_ns = clock_ns();
        send_all(b.fds[i].fd, b.streams[i].out, b.streams[i].n_out);
    }
}

/* The streams ask for more tokens than there is time for, and are left. */
static void beside(uint32_t n_long, uint32_t n_gaps)
{
    struct pollfd *prompt = &b.fds[b.n];
    size_t room = (size_t)b.n * (b.n_gen + 2);
    bool done = false, running = false;
    b.streams = calloc(b.n, sizeof *b.streams);
    b.gaps_ms = calloc(room, sizeof *b.gaps_ms);
    b.ttft_ms = calloc(room, sizeof *b.ttft_ms);
    b.beyond_ms = calloc(room, sizeof *b.beyond_ms);
    if (!b.streams || !b.gaps_ms || !b.ttft_ms || !b.beyond_ms)
        die("memory");
    start_streams();
    *prompt = (struct pollfd){.fd = -1, .events = POLLIN};
    while (!done) {
        if (poll(b.fds, b.n + 1, 60000) <= 0)
            die("no news for a minute");
        for (uint32_t i = 0; i < b.n; i++)
            if (b.fds[i].revents)
                read_more(&b.streams[i], b.fds[i].fd);
        if (!running && all_run()) {
            running = true;
            b.n_gaps = 0;
            prompt->fd = send_beside(n_long);
            prompt->revents = 0;
        }
        for (uint32_t i = 0; i < b.n; i++)
            if (b.streams[i].done) {
                fprintf(stderr, "bench_serve: a stream ended before the prompt did\n");
                exit(1);
            }
        bool asks = n_long || b.schema, over = running && (!asks || prompt->revents);
        if (over && asks)
            judge_long(prompt->fd);
        done = over && b.n_gaps >= n_gaps;
        if (over && asks && !done)
            prompt->fd = send_beside(n_long);
    }
    if (b.schema)
        printf("schemas %u\nrefused %u\n", b.n_long, b.n_refused);
    printf("gaps %u\ninter_token_p50_ms %.3f\ninter_token_p99_ms %.3f\ninter_token_max_ms %.3f\n", b.n_gaps,
           percentile(b.gaps_ms, b.n_gaps, 0.5), percentile(b.gaps_ms, b.n_gaps, 0.99),
           percentile(b.gaps_ms, b.n_gaps, 1));
}

/* ---- health ---- */

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
    stopped = signal;
}

/* GET it: 200? */
static bool asks(uint16_t port, const char *path)
{
    char out[128], reply[64] = "";
    int fd = client_dial(port),
        n = snprintf(out, sizeof out, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                     path);
    if (fd < 0)
        return false;
    bool ok = send(fd, out, (size_t)n, MSG_NOSIGNAL) > 0 && recv(fd, reply, sizeof reply - 1, 0) > 0 &&
              strncmp(reply, "HTTP/1.1 200", 12) == 0;
    close(fd);
    return ok;
}

static void health(uint16_t port)
{
    static double ms[HEALTH_MAX];
    uint32_t n = 0;
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
    while (!stopped && n < HEALTH_MAX) {
        uint64_t began = clock_ns();
        bool healthy = asks(port, "/health");
        if (!healthy && !stopped) {
            fprintf(stderr, "bench_serve: /health did not answer 200 after %.1f ms\n",
                    (double)(clock_ns() - began) / 1e6);
            exit(1);
        }
        if (healthy)
            ms[n++] = (double)(clock_ns() - began) / 1e6;
        rest(HEALTH_NS);
    }
    printf("health asked %u times, p50 %.2f ms, p99 %.2f ms, max %.2f ms\n", n, percentile(ms, n, 0.5),
           percentile(ms, n, 0.99), percentile(ms, n, 1));
}

/* ---- starts ---- */

static uint16_t port_of(char **command)
{
    for (; *command; command++)
        if (strcmp(*command, "--port") == 0 && command[1])
            return (uint16_t)atoi(command[1]);
    errno = EINVAL;
    die("COMMAND has no --port");
    return 0;
}

static double start_once(char **command, uint16_t port)
{
    pid_t pid;
    int status;
    uint64_t began = clock_ns();
    errno = posix_spawnp(&pid, command[0], NULL, NULL, command, environ);
    if (errno)
        die(command[0]);
    while (!asks(port, "/health/ready")) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            errno = ECHILD;
            die("COMMAND has ended");
        }
        rest(2000000);
    }
    double ms = (double)(clock_ns() - began) / 1e6;
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    return ms;
}

static void starts(uint32_t n, char **command)
{
    double ms[MAX_WAVES];
    uint16_t port = port_of(command);
    for (uint32_t i = 0; i < n; i++)
        ms[i] = start_once(command, port);
    printf("start_ms %.1f\n", percentile(ms, n, 0.5));
}

static uint32_t number(const char *text, uint32_t max)
{
    unsigned long value = strtoul(text, NULL, 10);
    if (value >= 1 && value <= max)
        return (uint32_t)value;
    fprintf(stderr, "bench_serve: %s is not 1 to %u\n", text, max);
    exit(2);
}

int main(int argc, char **argv)
{
    b.random = (uint32_t)clock_ns();
    b.first_token = 300;
    b.n_tokens = 2000;
    if (argc == 7 && strcmp(argv[1], "streams") == 0) {
        b.port = (uint16_t)number(argv[2], 65535);
        b.n = number(argv[3], MAX_STREAMS);
        b.n_prompt = number(argv[4], 4096);
        b.n_gen = number(argv[5], 4096);
        b.n_waves = number(argv[6], MAX_WAVES);
        streams();
    } else if ((argc == 7 || argc == 8) && strcmp(argv[1], "poisson") == 0) {
        b.port = (uint16_t)number(argv[2], 65535);
        b.n = number(argv[3], MAX_STREAMS);
        b.n_prompt = number(argv[4], 4096);
        b.n_gen = number(argv[5], 4096);
        b.random = argc == 8 ? number(argv[7], UINT32_MAX) : b.random;
        poisson(number(argv[6], 1000000));
    } else if (argc == 6 && (strcmp(argv[1], "beside") == 0 || strcmp(argv[1], "schemas") == 0)) {
        bool schemas = argv[1][0] == 's';
        if (schemas)
            read_schema(argv[4]);
        b.port = (uint16_t)number(argv[2], 65535);
        b.n = number(argv[3], MAX_STREAMS);
        b.n_prompt = 4;
        b.first_token = 5; /* the smallest models have 512, of which the last have no text to be seen by */
        b.more = ",\"logit_bias\":{\"507\":-100,\"508\":-100,\"509\":-100,\"510\":-100,\"511\":-100}";
        b.n_tokens = 90;
        b.n_gen = 4096;
        beside(schemas || strcmp(argv[4], "0") == 0 ? 0 : number(argv[4], 1000000), number(argv[5], 1000000));
    } else if (argc == 3 && strcmp(argv[1], "health") == 0) {
        health((uint16_t)number(argv[2], 65535));
    } else if (argc > 3 && strcmp(argv[1], "start") == 0) {
        starts(number(argv[2], MAX_WAVES), argv + 3);
    } else {
        fprintf(stderr, "usage: bench_serve streams PORT N N_PROMPT N_GEN WAVES | poisson PORT N N_PROMPT "
                        "N_GEN PER_MINUTE [SEED] | beside PORT N N_LONG GAPS | "
                        "schemas PORT N FILE GAPS |"
                        " health PORT | start N COMMAND...\n");
        return 2;
    }
    return 0;
}
