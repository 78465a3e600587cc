#include "process.h"
#include "support/http_client.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 600000
#define MAX_ARGS    64

void expect_in(const char *text, const char *part)
{
    cr_assert(strstr(text, part) != NULL, "there is no \"%s\" in:\n%s", part, text);
}

static void pipe_pair(int ends[2])
{
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
}

static void become(const struct process_start *start, const int in[2], const int out[2], const int err[2])
{
    char pid[16];
    const char *argv[MAX_ARGS] = {HEARTHD_BINARY};
    const char *kept[] = {"PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", NULL};
    const char *values[4];
    int n = 1;

    for (const char *const *a = start->args; *a && n < MAX_ARGS - 1; a++)
        argv[n++] = *a;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    for (int i = 0; kept[i]; i++)
        values[i] = getenv(kept[i]) ? strdup(getenv(kept[i])) : NULL;
    clearenv();
    for (int i = 0; kept[i]; i++)
        if (values[i])
            setenv(kept[i], values[i], 1);
    setenv("HEARTH_CORE_DUMPS", "yes", 1); /* else only root may freeze its threads (ptrace) */
    for (const char *const *e = start->env; e && *e; e++)
        putenv((char *)*e);
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    if (start->listen_fd > 0) {
        if (start->listen_fd == 3)
            fcntl(3, F_SETFD, 0);
        else
            dup2(start->listen_fd, 3);
        snprintf(pid, sizeof pid, "%d", getpid());
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", "1", 1);
    }
    execv(HEARTHD_BINARY, (char *const *)argv);
    _exit(127);
}

void process_start(struct process *p, const struct process_start *start)
{
    int in[2], out[2], err[2];

    *p = (struct process){.stdout_text = calloc(1, PROCESS_TEXT), .stderr_text = calloc(1, PROCESS_TEXT)};
    cr_assert(p->stdout_text && p->stderr_text);
    pipe_pair(in);
    pipe_pair(out);
    pipe_pair(err);
    p->pid = fork();
    cr_assert_geq(p->pid, 0);
    if (p->pid == 0)
        become(start, in, out, err);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    p->in = in[1];
    p->out = out[0];
    p->err = err[0];
    signal(SIGPIPE, SIG_IGN);
}

/* Takes what has come from one of the two outputs. False at its end. */
static bool take(int fd, char *text, size_t *n)
{
    char spill[4096];
    size_t room = PROCESS_TEXT - 1 - *n;
    ssize_t got = room ? read(fd, text + *n, room) : read(fd, spill, sizeof spill);

    if (got > 0 && room) {
        *n += (size_t)got;
        text[*n] = '\0';
    }
    return got > 0;
}

/* Waits for words on either output and takes them. False when both have ended. */
static bool take_any(struct process *p)
{
    struct pollfd fds[2] = {{.fd = p->out, .events = POLLIN}, {.fd = p->err, .events = POLLIN}};

    if (p->out < 0 && p->err < 0)
        return false;
    int rc = poll(fds, 2, PATIENCE_MS);
    cr_assert_gt(rc, 0, "hearthd says nothing and does not end; so far:\n%s", p->stderr_text);
    if (fds[0].revents && !take(p->out, p->stdout_text, &p->n_stdout)) {
        close(p->out);
        p->out = -1;
    }
    if (fds[1].revents && !take(p->err, p->stderr_text, &p->n_stderr)) {
        close(p->err);
        p->err = -1;
    }
    return true;
}

void process_expect(struct process *p, const char *text)
{
    while (!strstr(p->stderr_text, text))
        cr_assert(p->err >= 0 && take_any(p), "\"%s\" never came; stderr was:\n%s", text, p->stderr_text);
}

uint16_t process_serve(struct process *p, const struct process_start *start)
{
    const char *args[MAX_ARGS] = {"serve", "--port", "0", "--threads", "2", "--model", PROCESS_MODEL};
    int n = 7;

    for (const char *const *a = start->args; a && *a && n < MAX_ARGS - 1; a++)
        args[n++] = *a;
    struct process_start all = *start;
    all.args = args;
    process_start(p, &all);
    process_expect(p, "/generate\n"); /* the end of the curl line */
    const char *url = strstr(p->stderr_text, "listening on http://127.0.0.1:");
    return url ? (uint16_t)atoi(url + strlen("listening on http://127.0.0.1:")) : 0;
}

void process_signal(struct process *p, int number)
{
    cr_assert_eq(kill(p->pid, number), 0);
}

void process_feed(struct process *p, const char *text)
{
    size_t n = strlen(text);

    while (n > 0) {
        ssize_t wrote = write(p->in, text, n);
        if (wrote < 0)
            break; /* it may leave before it has read all */
        text += wrote;
        n -= (size_t)wrote;
    }
    close(p->in);
    p->in = -1;
}

int process_wait(struct process *p)
{
    int status;

    while (!p->reaped) {
        while (take_any(p))
            ;
        /* __WALL: threads that process_freeze_workers() holds are ours to reap as well. */
        pid_t pid = waitpid(-1, &status, __WALL);
        cr_assert_gt(pid, 0);
        p->reaped = pid == p->pid && (WIFEXITED(status) || WIFSIGNALED(status));
    }
    p->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return p->exit_code;
}

void process_free(struct process *p)
{
    if (!p->reaped) {
        kill(p->pid, SIGKILL);
        process_wait(p);
    }
    if (p->in >= 0)
        close(p->in);
    free(p->stdout_text);
    free(p->stderr_text);
}

static bool freeze(pid_t thread)
{
    int status;

    return ptrace(PTRACE_SEIZE, thread, NULL, NULL) == 0 &&
           ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) == 0 && waitpid(thread, &status, __WALL) == thread;
}

int process_threads(const struct process *p, pid_t *out, int room)
{
    char path[64];
    int n = 0;

    snprintf(path, sizeof path, "/proc/%d/task", p->pid);
    DIR *tasks = opendir(path);
    cr_assert(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));)
        if (atoi(entry->d_name) > 0 && n < room)
            out[n++] = atoi(entry->d_name);
    closedir(tasks);
    return n;
}

void process_freeze_others(struct process *p, const pid_t *known, int n)
{
    pid_t threads[256];
    int n_frozen = 0, n_threads = process_threads(p, threads, 256);

    for (int i = 0; i < n_threads; i++) {
        bool spared = threads[i] == p->pid;
        for (int k = 0; k < n; k++)
            spared = spared || threads[i] == known[k];
        n_frozen += !spared && freeze(threads[i]);
    }
    cr_assert_gt(n_frozen, 0, "no thread could be stopped");
}

void process_freeze_workers(struct process *p)
{
    process_freeze_others(p, NULL, 0);
}

/* ---- requests ---- */

int process_request(uint16_t port, const char *path, const char *body)
{
    int fd = client_connect(port);
    cr_assert(client_request(fd, body ? "POST" : "GET", path, "Connection: close\r\n", body));
    return fd;
}

bool process_read_until(int fd, const char *text, char *out, size_t room)
{
    size_t n = strlen(out);

    while (!text || !strstr(out, text)) {
        cr_assert_lt(n + 1, room, "the reply is longer than %zu bytes", room);
        ssize_t got;
        while ((got = recv(fd, out + n, room - n - 1, 0)) < 0 && errno == EINTR) /* stopped meanwhile */
            ;
        if (got < 0 && errno != ECONNRESET)
            cr_assert_fail("no reply: %s; so far:\n%s", strerror(errno), out);
        if (got <= 0)
            return false;
        n += (size_t)got;
        out[n] = '\0';
    }
    return true;
}

int process_http(uint16_t port, const char *path, const char *body, char *out, size_t room)
{
    int fd = process_request(port, path, body);

    out[0] = '\0';
    process_read_until(fd, NULL, out, room);
    close(fd);
    return strncmp(out, "HTTP/1.1 ", 9) == 0 ? atoi(out + 9) : 0;
}
