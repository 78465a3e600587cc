#include "listener.h"
#include "tls.h"

#include <assert.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MEMORY_PER_CONNECTION (32 * 1024) /* bounds request line and headers */
#define BACKLOG               1024

static void format_address(const struct sockaddr *addr, char *out, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const void *)addr;
        inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        snprintf(out, size, "[%s]:%u", host, ntohs(six->sin6_port));
        return;
    }
    const struct sockaddr_in *four = (const void *)addr;
    inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
    snprintf(out, size, "%s:%u", host, ntohs(four->sin_port));
}

int listener_bind_tcp(const struct sockaddr *addr, socklen_t len, struct error *err)
{
    char name[INET6_ADDRSTRLEN + 16];
    format_address(addr, name, sizeof name);
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, -errno, "%s: %s", name, strerror(errno));
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (addr->sa_family == AF_INET6) /* the IPv4 address, if wanted, has its own socket */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (bind(fd, addr, len) < 0 || listen(fd, BACKLOG) < 0) {
        int code = errno;
        close(fd);
        if (code == EADDRINUSE)
            return error_set(err, -code, "%s: %s; find the process: ss -ltnp 'sport = :%s'", name,
                             strerror(code), strrchr(name, ':') + 1);
        if (code == EACCES)
            return error_set(err, -code, "%s: %s: ports below 1024 need root or CAP_NET_BIND_SERVICE", name,
                             strerror(code));
        return error_set(err, -code, "%s: %s", name, strerror(code));
    }
    return fd;
}

static int unix_failed(const char *path, int code, struct error *err)
{
    struct stat st;
    if (code != EADDRINUSE)
        return error_set(err, -code, "unix_socket %s: %s", path, strerror(code));
    if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return error_set(err, -EEXIST, "unix_socket %s: exists and is not a socket", path);
    return error_set(err, -code, "unix_socket %s: another process listens on it; find it: ss -lxp src %s",
                     path, path);
}

/* A socket file without a listener is left over from a crash. */
static bool is_stale(const struct sockaddr_un *addr)
{
    struct stat st;
    if (lstat(addr->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* its backlog may be full */
    bool refused =
        fd >= 0 && connect(fd, (const struct sockaddr *)addr, sizeof *addr) < 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

/* 0 or a negative errno. */
static int bind_path(int fd, const struct sockaddr_un *addr)
{
    int code = bind(fd, (const struct sockaddr *)addr, sizeof *addr) < 0 ? -errno : 0;
    if (code != -EADDRINUSE || !is_stale(addr))
        return code;
    unlink(addr->sun_path);
    return bind(fd, (const struct sockaddr *)addr, sizeof *addr) < 0 ? -errno : 0;
}

/* 0 or an errno. */
static int check_directory(const char *path)
{
    char dir[sizeof((struct sockaddr_un *)0)->sun_path];
    struct stat st;
    strcpy(dir, path);
    char *slash = strrchr(dir, '/');
    if (!slash)
        return 0;
    slash[slash == dir] = '\0';
    if (stat(dir, &st) < 0)
        return errno;
    return S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
}

int listener_check_unix(const char *path, struct error *err)
{
    struct stat st;
    size_t room = sizeof((struct sockaddr_un *)0)->sun_path;
    if (strlen(path) >= room)
        return error_set(err, -EINVAL, "unix_socket %s: longer than %zu bytes", path, room - 1);
    int code = check_directory(path);
    if (code == 0 && lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        code = EADDRINUSE;
    return code ? unix_failed(path, code, err) : 0;
}

int listener_bind_unix(const char *path, struct error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int checked = listener_check_unix(path, err);
    if (checked < 0)
        return checked;
    strcpy(addr.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_set(err, -errno, "unix_socket %s: %s", path, strerror(errno));
    int rc = bind_path(fd, &addr);
    /* A process that reaches the socket may use it under any umask: its directory is what keeps others out.
     */
    if (rc == 0 && (listen(fd, BACKLOG) < 0 || chmod(path, 0666) < 0))
        rc = -errno;
    if (rc == 0)
        return fd;
    close(fd);
    return unix_failed(path, -rc, err);
}

void listener_own_path(struct listener *l, const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return;
    snprintf(l->unlink_path, sizeof l->unlink_path, "%s", path);
    l->device = st.st_dev;
    l->inode = st.st_ino;
}

/* Another process may have been started on the same path meanwhile: then the file is that one's. */
static void remove_path(const struct listener *l)
{
    struct stat st;
    if (l->unlink_path[0] && lstat(l->unlink_path, &st) == 0 && st.st_dev == l->device &&
        st.st_ino == l->inode)
        unlink(l->unlink_path);
}

void listener_name(struct listener *l)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    char name[INET6_ADDRSTRLEN + 16];
    if (getsockname(l->fd, (struct sockaddr *)&addr, &len) < 0) {
        snprintf(l->where, sizeof l->where, "fd %d", l->fd);
    } else if (addr.ss_family == AF_UNIX) {
        snprintf(l->where, sizeof l->where, "unix:%s", ((struct sockaddr_un *)&addr)->sun_path);
    } else {
        format_address((struct sockaddr *)&addr, name, sizeof name);
        snprintf(l->where, sizeof l->where, "%s://%s", l->tls ? "https" : "http", name);
        l->port = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                                   : ((struct sockaddr_in *)&addr)->sin_port);
    }
}

bool listener_is_local(const struct listener *l)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    if (getsockname(l->fd, (struct sockaddr *)&addr, &len) < 0)
        return false;
    if (addr.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&addr)->sin6_addr);
    return addr.ss_family == AF_UNIX || ntohl(((struct sockaddr_in *)&addr)->sin_addr.s_addr) >> 24 == 127;
}

static void on_timer(uv_timer_t *timer)
{
    listener_run(timer->data);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    listener_run(poll->data);
}

void listener_run(struct listener *l)
{
    if (l->running || !l->mhd) {
        l->dirty = true;
        return;
    }
    MHD_UNSIGNED_LONG_LONG timeout = 0;
    enum MHD_Result wanted = MHD_NO;
    l->running = true;
    for (int i = 0; i < LISTENER_RUNS; i++) {
        l->dirty = false;
        MHD_run(l->mhd);
        wanted = MHD_get_timeout(l->mhd, &timeout);
        if (!l->dirty && (wanted != MHD_YES || timeout > 0))
            break;
    }
    l->running = false;
    if (l->dirty || wanted == MHD_YES)
        uv_timer_start(&l->timer, on_timer, l->dirty || !timeout ? 1 : timeout, 0);
    else
        uv_timer_stop(&l->timer);
}

void listener_run_dirty(struct listener *l, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (l[i].dirty && !l[i].running)
            listener_run(&l[i]);
}

static struct MHD_Daemon *start(struct listener *l, const struct listener_callbacks *c)
{
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (l->tls ? MHD_USE_TLS : 0);
    /* Not STRICT_FOR_CLIENT: it refuses a missing Host, which we do, and that with a page whose head 0.9.75
     * sends twice; and a blank in the path, of which there is no route. */
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)c->log, l},
        {MHD_OPTION_LISTEN_SOCKET, l->fd, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)c->completed, l},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)c->connection, l},
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)c->uri, l},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, MEMORY_PER_CONNECTION, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)c->max_connections, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)c->idle_timeout_s, NULL},
        {l->tls ? MHD_OPTION_HTTPS_CERT_CALLBACK : MHD_OPTION_END, 0, l->tls ? tls_callback() : NULL},
        {l->tls ? MHD_OPTION_HTTPS_PRIORITIES : MHD_OPTION_END, 0, l->tls ? TLS_PRIORITIES : NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    return MHD_start_daemon(flags, 0, NULL, NULL, c->request, l, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
}

static void on_closed(uv_handle_t *handle)
{
    struct listener *l = handle->data;
    assert(l->n_handles > 0); /* the listener may be freed when none is left */
    l->n_handles--;
}

int listener_open(struct listener *l, uv_loop_t *loop, const struct listener_callbacks *callbacks,
                  struct error *err)
{
    l->loop = loop;
    l->mhd = start(l, callbacks);
    if (!l->mhd)
        return error_set(err, -ENOMEM, "%s: libmicrohttpd could not start", l->where);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    int rc = info ? uv_poll_init(loop, &l->poll, info->epoll_fd) : UV_EINVAL;
    if (rc < 0) {
        MHD_stop_daemon(l->mhd);
        l->mhd = NULL;
        l->fd = -1;
        return error_set(err, rc, "%s: %s", l->where, uv_strerror(rc));
    }
    uv_timer_init(loop, &l->timer);
    l->poll.data = l->timer.data = l;
    l->n_handles = 2;
    uv_poll_start(&l->poll, UV_READABLE, on_readable);
    return 0;
}

void listener_quiesce(struct listener *l)
{
    if (l->mhd && !l->quiesced) {
        MHD_quiesce_daemon(l->mhd);
        l->quiesced = true;
        listener_run(l);
    }
}

void listener_close(struct listener *l)
{
    if (!l->mhd) {
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
        remove_path(l);
        return;
    }
    uv_poll_stop(&l->poll);
    uv_timer_stop(&l->timer);
    uv_close((uv_handle_t *)&l->poll, on_closed);
    uv_close((uv_handle_t *)&l->timer, on_closed);
    MHD_stop_daemon(l->mhd);
    l->mhd = NULL;
    if (l->quiesced)
        close(l->fd);
    l->fd = -1;
    remove_path(l);
}
