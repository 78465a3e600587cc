/* harness.h - the real hearthd with the demo model on a port of its own, and clients to talk to it.
 * A test that ends with its daemon alive and well calls daemon_stop(), which checks that it left in order;
 * the daemon's log is shown when something is wrong. */
#pragma once
#include "support/http_client.h"
#include "slow.h"

#include <signal.h>
#include <sys/types.h>

#define DEMO_MODEL HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf"

struct daemon {
    pid_t pid;
    uint16_t port;
    int log; /* what it wrote on stdout and stderr, in memory */
};

/* The program; HEARTHD_BINARY unless a test says otherwise. */
extern const char *daemon_binary;
/* It is started without standard streams. */
extern bool daemon_streams_closed;
/* Further header lines of get() and all that uses it, a key's; "" unless a test says otherwise. */
extern const char *daemon_headers;
/* The one daemon of a test: flags as on the command line, NULL at the end. Returns when it is ready. */
extern struct daemon daemon_;
void daemon_start(const char *const *flags);
/* The same without waiting: it may be loading, or end by itself. */
void daemon_spawn(const char *const *flags);
void daemon_wait_listening(void);
void daemon_wait_ready(void);
/* Sends `number` (0: nothing) and waits; its exit code, or 128 + the signal that ended it. */
int daemon_end(int number);
/* SIGTERM, and the exit code must be 0. */
void daemon_stop(void);
char *daemon_read_log(void); /* to free */

/* A test over a daemon with the flags that follow the name, which must leave with 0 at its end. (Criterion
 * does not count what fails in .fini.) After a failed assertion the daemon dies with the test's process. */
#define DAEMON_TEST(suite, name, ...)                                                                        \
    static void suite##_##name(void);                                                                        \
    Test(suite, name)                                                                                        \
    {                                                                                                        \
        daemon_start((const char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL});                                     \
        suite##_##name();                                                                                    \
        daemon_stop();                                                                                       \
    }                                                                                                        \
    static void suite##_##name(void)

/* Requests on a connection of their own. */
struct reply get(const char *path);
struct reply post(const char *path, const char *body);
/* Through libcurl, as most clients do it: with Expect: 100-continue for a large body. */
struct reply curl_post(const char *path, const char *body, size_t len);
/* The same that must give 200; the reply's object, to decref. */
json_t *get_ok(const char *path);
json_t *post_ok(const char *path, const char *body);
json_t *generate(const char *body); /* POST /generate */
/* Sends POST /generate with this X-Request-Id; the connection, whose reply is still to be read. */
int send_as(const char *id, const char *body);
/* A number of /stats, by path. */
long long stat_number(const char *path);
/* A text of /stats, to free; and the check that it is the one expected. */
char *stat_text(const char *path);
void expect_stat(const char *path, const char *expected);
/* Waits until a figure of /stats has this value; fails after a minute. */
void wait_stat(const char *path, long long value);
/* A whole number of /metrics. */
long long metric(const char *name);
/* Waits until the daemon has so many connections, that of the question included; fails after a minute. */
void wait_connections(long long n);
/* A connection to the daemon with buffers as small as they can be, the daemon's too. */
int connect_narrow(void);
/* Bytes of the daemon's private memory, without the decoder's, whose KV pages are taken from the system a
 * little ahead of use. */
long long own_memory(void);
/* A string of n times `unit` inside {"prompt":"..."} plus `rest` (",\"max_tokens\":1"), to free. */
char *long_prompt(const char *unit, size_t n, const char *rest);
