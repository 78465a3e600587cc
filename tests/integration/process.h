/* process.h - a real hearthd as a child of the test: started, talked to, stopped, its words and exit code
 * kept. Every wait has a generous limit and fails the test when it is over; nothing here measures time.
 * Children die with the test. Thread: one. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_MODEL HEARTH_SOURCE_DIR "/models/hearth-stories-6m-q4_k_m.gguf"
#define PROCESS_TEXT  (256 * 1024)

struct process {
    pid_t pid;
    int in, out, err;                /* our ends of its stdin, stdout, stderr */
    char *stdout_text, *stderr_text; /* PROCESS_TEXT bytes each, NUL-terminated */
    size_t n_stdout, n_stderr;
    bool reaped;
    int exit_code; /* or 128 + signal */
};

/* Arguments and variables end with NULL; `env` may be NULL. Only PATH and the sanitizers' options are
 * inherited: HEARTH_* come from the test alone. */
struct process_start {
    const char *const *args;
    const char *const *env;
    int listen_fd; /* handed over as systemd does (LISTEN_FDS=1), when > 0 */
};
void process_start(struct process *p, const struct process_start *start);
#define PROCESS_START(p, ...)                                                                                \
    process_start(p, &(struct process_start){.args = (const char *const[]){__VA_ARGS__, NULL}})

/* Reads its stderr until `text` has come. */
void process_expect(struct process *p, const char *text);
/* Starts `hearthd serve` on a free port with these further arguments and waits for the start line; returns
 * the port. */
uint16_t process_serve(struct process *p, const struct process_start *start);
void process_signal(struct process *p, int number);
/* Writes all of `text` to its stdin and closes it. */
void process_feed(struct process *p, const char *text);
/* Reads both outputs to their ends and waits; returns the exit code. */
int process_wait(struct process *p);
void process_free(struct process *p);
/* Start, wait: the exit code; the words are in *p. */
#define PROCESS_RUN(p, ...) (PROCESS_START(p, __VA_ARGS__), process_feed(p, ""), process_wait(p))

/* Stops every thread of the process but the first one, as a decoder that hangs would. */
void process_freeze_workers(struct process *p);
/* The same of those alone that are not among `known`, the first n that process_threads() found before. */
void process_freeze_others(struct process *p, const pid_t *known, int n);
/* Its threads, at most `room` of them; their number. */
int process_threads(const struct process *p, pid_t *out, int room);

/* Sends a request and leaves the connection open; `body` NULL is a GET. */
int process_request(uint16_t port, const char *path, const char *body);
/* Reads from a connection until `text` has come or it ends; appends to out. False when it ended before. */
bool process_read_until(int fd, const char *text, char *out, size_t room);
/* GET or POST, whole reply into out; returns the status. */
int process_http(uint16_t port, const char *path, const char *body, char *out, size_t room);

/* Fails the test unless `text` contains `part`, showing both. */
void expect_in(const char *text, const char *part);
