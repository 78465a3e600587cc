/* The service manager's protocol: messages sent, sockets and the watchdog taken over. */
#include "base/notify.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* The manager's end: a datagram socket at a path, or at an abstract name ("@..."). */
static int manager_socket(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    memcpy(address.sun_path, name, n);
    bool abstract = name[0] == '@';
    if (abstract)
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + !abstract);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, length), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *received(int fd)
{
    static char text[2048];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    cr_assert_gt(n, 0);
    text[n] = '\0';
    return text;
}

Test(notify, a_message_reaches_a_socket_with_a_path)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hearth-notify-%d", getpid());
    int fd = manager_socket(path);
    struct notify n;
    cr_assert_eq(notify_open(&n, NULL), 0);
    notify_status(&n, "READY=1", "%d slots", 32);
    cr_assert_str_eq(received(fd), "READY=1\nSTATUS=32 slots");
    notify_close(&n);
    unlink(path);
}

Test(notify, a_message_reaches_an_abstract_socket)
{
    char name[64];
    snprintf(name, sizeof name, "@hearth-notify-%d", getpid());
    int fd = manager_socket(name);
    struct notify n;
    cr_assert_eq(notify_open(&n, NULL), 0);
    notify_send(&n, "WATCHDOG=1");
    cr_assert_str_eq(received(fd), "WATCHDOG=1");
    notify_close(&n);
}

Test(notify, a_status_is_one_line_whatever_it_holds)
{
    char name[64], longest[4096];
    snprintf(name, sizeof name, "@hearth-notify-line-%d", getpid());
    int fd = manager_socket(name);
    struct notify n;
    cr_assert_eq(notify_open(&n, NULL), 0);
    notify_status(&n, "", "x%s", "\nREADY=1\nMAINPID=1\nWATCHDOG=trigger\n");
    cr_assert_str_eq(received(fd), "STATUS=x\\x0aREADY=1\\x0aMAINPID=1\\x0aWATCHDOG=trigger\\x0a");
    notify_state(&n, "READY=1", "a\x1b[2J%s", "\xc2\x9b\xff\xe2\x80\xae");
    cr_assert_str_eq(received(fd), "READY=1\nSTATUS=a\\x1b[2J\\u009b\\xff\\u202e");
    memset(longest, '\n', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    notify_status(&n, "WATCHDOG=1", "%s", longest);
    const char *cut = received(fd);
    cr_assert_eq(strncmp(cut, "WATCHDOG=1\nSTATUS=\\x0a", 22), 0, "%s", cut);
    cr_assert_null(strchr(cut + 11, '\n'));
    notify_close(&n);
}

/* Its queue holds as many as net.unix.max_dgram_qlen. */
static void fill_queue(const struct notify *n)
{
    while (send(n->fd, "STATUS=", 7, MSG_DONTWAIT) == 7)
        ;
}

Test(notify, a_manager_that_does_not_read_holds_no_thread_up, .timeout = 60)
{
    char name[64];
    snprintf(name, sizeof name, "@hearth-notify-full-%d", getpid());
    int fd = manager_socket(name);
    struct notify n;
    cr_assert_eq(notify_open(&n, NULL), 0);
    fill_queue(&n);
    for (int i = 0; i < 100; i++)
        notify_send(&n, "WATCHDOG=1");
    notify_state(&n, "READY=1", "ready"); /* for a second, not for ever */
    cr_assert_str_eq(received(fd), "STATUS=");
    notify_state(&n, "READY=1", "ready");
    while (strcmp(received(fd), "STATUS=") == 0)
        ;
    cr_assert_lt(recv(fd, name, sizeof name, MSG_DONTWAIT), 0, "it was the last");
    notify_close(&n);
    close(fd);
}

/* Makes room after a while. */
static void *read_late(void *context)
{
    usleep(100 * 1000);
    received(*(int *)context);
    return NULL;
}

/* True if READY=1 came though the queue was full when it was sent. */
static bool comes_late(const struct notify *n, int fd)
{
    pthread_t reader;
    char text[64];
    ssize_t length;
    bool came = false;
    fill_queue(n);
    cr_assert_eq(pthread_create(&reader, NULL, read_late, &fd), 0);
    notify_state(n, "READY=1", "ready");
    pthread_join(reader, NULL);
    while ((length = recv(fd, text, sizeof text, MSG_DONTWAIT)) > 0)
        came |= length == 20 && memcmp(text, "READY=1\nSTATUS=ready", 20) == 0;
    return came;
}

Test(notify, what_is_said_once_waits_for_room, .timeout = 60)
{
    char name[64];
    snprintf(name, sizeof name, "@hearth-notify-late-%d", getpid());
    int fd = manager_socket(name), n_tries = 0;
    struct notify n;
    cr_assert_eq(notify_open(&n, NULL), 0);
    while (!comes_late(&n, fd)) /* a machine may stand still for the whole second */
        cr_assert_lt(++n_tries, 5);
    notify_close(&n);
    close(fd);
}

Test(notify, without_a_service_manager_nothing_happens)
{
    struct notify n;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    cr_assert_eq(notify_open(&n, NULL), 0);
    cr_assert_eq(n.fd, -1);
    cr_assert_eq(n.watchdog_us, 0);
    notify_send(&n, "READY=1");
    notify_close(&n);
}

Test(notify, an_address_that_is_neither_path_nor_abstract_is_refused)
{
    struct notify n;
    struct error err = {0};
    setenv("NOTIFY_SOCKET", "vsock:2:1234", 1);
    cr_assert_eq(notify_open(&n, &err), -EINVAL);
    cr_assert(strstr(err.text, "vsock:2:1234"));
}

Test(notify, the_watchdog_counts_only_for_this_process)
{
    struct notify n;
    setenv("WATCHDOG_USEC", "30000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    cr_assert_eq(notify_open(&n, NULL), 0);
    cr_assert_eq(n.watchdog_us, 0);
}

Test(notify, the_watchdog_interval_is_read_and_not_inherited)
{
    struct notify n;
    setenv("WATCHDOG_USEC", "30000000", 1);
    cr_assert_eq(notify_open(&n, NULL), 0);
    cr_assert_eq(n.watchdog_us, 30000000);
    cr_assert_null(getenv("WATCHDOG_USEC"));
}

static void listen_variables(const char *n)
{
    char pid[16];
    snprintf(pid, sizeof pid, "%d", getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", n, 1);
}

/* Runs `body` in a child whose descriptor 3 is a socket, listening or not, as the manager leaves it: in the
 * test's own process that number is taken. Returns the child's exit code. */
static int with_socket_at_3(bool listening, int (*body)(void))
{
    pid_t child = fork();
    if (child == 0) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) < 0 ||
            (listening && listen(fd, 8) < 0))
            _exit(100);
        if (fd != 3 && dup2(fd, 3) != 3)
            _exit(101);
        listen_variables("1");
        _exit(body());
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int takes_one(void)
{
    int first = -1;
    bool taken = notify_listen_fds(&first, NULL) == 1 && first == 3;
    return taken && (fcntl(3, F_GETFD) & FD_CLOEXEC) && !getenv("LISTEN_FDS") ? 0 : 1;
}

static int refuses(void)
{
    int first = -1;
    struct error err = {0};
    bool refused = notify_listen_fds(&first, &err) == -EINVAL;
    return refused && strstr(err.text, "descriptor 3 is not a listening socket") ? 0 : 1;
}

Test(notify, inherited_sockets_are_taken_and_closed_on_exec)
{
    cr_assert_eq(with_socket_at_3(true, takes_one), 0);
}

Test(notify, sockets_of_another_process_are_not_taken)
{
    int first = -1;
    setenv("LISTEN_PID", "1", 1);
    setenv("LISTEN_FDS", "1", 1);
    cr_assert_eq(notify_listen_fds(&first, NULL), 0);
}

Test(notify, a_descriptor_that_does_not_listen_is_refused)
{
    cr_assert_eq(with_socket_at_3(false, refuses), 0);
}

Test(notify, a_number_of_sockets_that_is_no_number_is_refused)
{
    int first = -1;
    listen_variables("two");
    cr_assert_eq(notify_listen_fds(&first, NULL), -EINVAL);
}
