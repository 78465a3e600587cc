#include "notify.h"
#include "escape.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_FDS_START 3
#define MAX_LISTEN_FDS   64
#define STATE_WAIT_MS    1000 /* for a manager that is busy: its queue is short, and all services share it */

static bool env_number(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    char *end;

    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0';
}

static uint64_t watchdog_from_env(void)
{
    uint64_t usec, pid;
    bool other = getenv("WATCHDOG_PID") && !(env_number("WATCHDOG_PID", &pid) && pid == (uint64_t)getpid());

    return !other && env_number("WATCHDOG_USEC", &usec) ? usec : 0;
}

static int connect_to(const char *name, struct error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(name);

    if ((name[0] != '/' && name[0] != '@') || n < 2 || n >= sizeof address.sun_path)
        return error_set(err, -EINVAL, "NOTIFY_SOCKET=%.80s is neither a path nor @name", name);
    memcpy(address.sun_path, name, n);
    bool abstract = name[0] == '@';
    if (abstract)
        address.sun_path[0] = '\0';
    /* A path's address ends with its NUL, an abstract one with its last byte. */
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + !abstract);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return error_set(err, -errno, "socket for NOTIFY_SOCKET: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, length) < 0) {
        int code = -errno;
        close(fd);
        return error_set(err, code, "NOTIFY_SOCKET=%s: %s", name, strerror(-code));
    }
    return fd;
}

int notify_open(struct notify *out, struct error *err)
{
    const char *name = getenv("NOTIFY_SOCKET");
    int rc = 0;

    *out = (struct notify){.fd = -1, .watchdog_us = watchdog_from_env()};
    if (name && name[0]) {
        rc = connect_to(name, err);
        out->fd = rc < 0 ? -1 : rc;
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return rc < 0 ? rc : 0;
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    n->fd = -1;
}

static void deliver(const struct notify *n, int wait_ms, const char *message)
{
    struct pollfd room = {.fd = n->fd, .events = POLLOUT};

    if (n->fd < 0)
        return;
    if (wait_ms)
        poll(&room, 1, wait_ms);
    ssize_t ignored = send(n->fd, message, strlen(message), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

static void deliver_status(const struct notify *n, int wait_ms, const char *lines, const char *fmt,
                           va_list args)
{
    char status[1024], message[1200];

    vsnprintf(status, sizeof status, fmt, args);
    int head = snprintf(message, sizeof message, "%.128s%sSTATUS=", lines, lines[0] ? "\n" : "");
    escape_line(message + head, sizeof message - (size_t)head, status);
    deliver(n, wait_ms, message);
}

void notify_send(const struct notify *n, const char *lines)
{
    deliver(n, 0, lines);
}

void notify_status(const struct notify *n, const char *lines, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    deliver_status(n, 0, lines, fmt, args);
    va_end(args);
}

void notify_state(const struct notify *n, const char *lines, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    deliver_status(n, STATE_WAIT_MS, lines, fmt, args);
    va_end(args);
}

static int check_listener(int fd, struct error *err)
{
    int listening = 0;
    socklen_t length = sizeof listening;

    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return error_set(err, -EINVAL, "LISTEN_FDS: descriptor %d is not open", fd);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) < 0 || !listening)
        return error_set(err, -EINVAL, "LISTEN_FDS: descriptor %d is not a listening socket", fd);
    return 0;
}

int notify_listen_fds(int *first, struct error *err)
{
    uint64_t n = 0, pid = 0;
    bool ours = env_number("LISTEN_PID", &pid) && pid == (uint64_t)getpid();
    bool given = getenv("LISTEN_FDS") != NULL, valid = env_number("LISTEN_FDS", &n);

    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    if (!ours || !given)
        return 0;
    if (!valid || n > MAX_LISTEN_FDS)
        return error_set(err, -EINVAL, "LISTEN_FDS must be 0 to %d", MAX_LISTEN_FDS);
    for (int i = 0; i < (int)n; i++) {
        int rc = check_listener(LISTEN_FDS_START + i, err);
        if (rc < 0)
            return rc;
    }
    *first = LISTEN_FDS_START;
    return (int)n;
}
