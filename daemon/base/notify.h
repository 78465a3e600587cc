/* notify.h - systemd's side of a service, without libsystemd, whose sd_notify() waits for a busy manager and
 * which is a library more for one datagram: readiness and status to $NOTIFY_SOCKET, listening sockets from
 * $LISTEN_FDS, the watchdog's interval. Everything is a no-op without the variables. Thread: one; messages
 * may be sent from any once notify_open() has returned. */
#pragma once
#include "base/error.h"

#include <stdint.h>

struct notify {
    int fd;               /* datagram socket connected to $NOTIFY_SOCKET, or -1 */
    uint64_t watchdog_us; /* $WATCHDOG_USEC meant for this process, or 0 */
};

/* Reads the variables and removes them from the environment, so that no child inherits them. -EINVAL: the
 * address is neither a path nor abstract ("@name"). */
int notify_open(struct notify *out, struct error *err);
void notify_close(struct notify *n);

/* One message of sd_notify(3). `lines` are assignments ("WATCHDOG=1", or several with newlines between them)
 * made of constants and numbers alone; "": none. The status is printf-like; what it holds, names of files and
 * of models and words of errors, is escaped and stays one line. notify_send() and notify_status() never wait:
 * a manager that does not read, or is busy, loses a message that another will follow. */
void notify_send(const struct notify *n, const char *lines);
void notify_status(const struct notify *n, const char *lines, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same of what is said once ("READY=1", "STOPPING=1"): waits for room, but not longer than a second. */
void notify_state(const struct notify *n, const char *lines, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Sockets handed over by the service manager: their number and, from *first on, their descriptors (set
 * close-on-exec). 0 when there are none for this process; -EINVAL when the variables or descriptors are not
 * what they should be. Removes the variables. */
int notify_listen_fds(int *first, struct error *err);
