#include "http_get.h"
#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_S 10

struct place { /* of a url: host and port, or a path */
    char host[256], port[16];
    const char *unix_path;
};

/* "http://[::1]:8080/x" -> host "::1", port "8080". */
static int split_url(const char *url, struct place *out, struct error *err)
{
    *out = (struct place){.port = "80"};
    if (strncmp(url, "unix:", 5) == 0) {
        out->unix_path = url + 5;
        return 0;
    }
    if (strncmp(url, "https://", 8) == 0)
        return error_set(err, -EINVAL, "%s: https is not supported: use the http address, or unix:/path",
                         url);
    const char *host = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    char *end = NULL;
    bool bracket = host[0] == '[';
    host += bracket;
    size_t n = strcspn(host, bracket ? "]" : ":/");
    const char *rest = host + n + (bracket && host[n] == ']');
    unsigned long port = rest[0] == ':' ? strtoul(rest + 1, &end, 10) : 80;
    if (n == 0 || n >= sizeof out->host || port < 1 || port > 65535 || (end && *end && *end != '/'))
        return error_set(err, -EINVAL, "%s is not a URL: expected http://host:port or unix:/path",
                         log_quote(url));
    memcpy(out->host, host, n);
    snprintf(out->port, sizeof out->port, "%lu", port);
    return 0;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int code = -errno;
        close(fd);
        return code;
    }
    return fd < 0 ? -errno : fd;
}

static int connect_tcp(const struct place *place, const char **words)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(place->host, place->port, &hints, &list), fd = -ECONNREFUSED;

    if (rc != 0) {
        *words = gai_strerror(rc);
        return -EINVAL;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            int code = -errno;
            close(fd);
            fd = code;
        }
    }
    freeaddrinfo(list);
    return fd;
}

static int exchange(int fd, const char *path, const char *key, char *reply, size_t room)
{
    struct timeval patience = {PATIENCE_S, 0};
    char head[2048];
    size_t n = 0;
    ssize_t got;

    /* To a client of HTTP/1.0 nothing comes in chunks. */
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int length =
        snprintf(head, sizeof head, "GET %s HTTP/1.0\r\nHost: localhost\r\n%s%s%sConnection: close\r\n\r\n",
                 path, key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "");
    if (length >= (int)sizeof head)
        return -E2BIG;
    if (send(fd, head, (size_t)length, MSG_NOSIGNAL) != length)
        return -errno;
    while ((got = recv(fd, reply + n, room - 1 - n, 0)) > 0)
        n += (size_t)got;
    reply[n] = '\0';
    return got < 0 ? -errno : 0;
}

/* "HTTP/1.1 200 OK", or 1.0: the number, or -EPROTO. */
static int status_of(const char *reply)
{
    static const char version[] = "HTTP/1.";
    const char *digits = reply + strlen("HTTP/1.1 ");
    if (strncmp(reply, version, strlen(version)) || strspn(reply + strlen(version), "01") != 1 ||
        digits[-1] != ' ' || strspn(digits, "0123456789") != 3 || *digits == '0')
        return -EPROTO;
    return atoi(digits);
}

int http_get_over(int fd, const char *path, const char *key, char **body)
{
    char *reply = malloc(HTTP_GET_MAX), *split = NULL;
    int rc = reply ? exchange(fd, path, key, reply, HTTP_GET_MAX) : -ENOMEM;

    if (rc == 0) {
        split = strstr(reply, "\r\n\r\n");
        rc = split ? status_of(reply) : -EPROTO;
    }
    *body = rc > 0 ? strdup(split + 4) : NULL;
    free(reply);
    return rc > 0 && !*body ? -ENOMEM : rc;
}

bool http_is_local(const char *url)
{
    struct place place;
    struct error ignored;

    return split_url(url, &place, &ignored) == 0 &&
           (place.unix_path || strcmp(place.host, "localhost") == 0 || strcmp(place.host, "127.0.0.1") == 0 ||
            strcmp(place.host, "::1") == 0);
}

/* Codes are those of a failed question: what else -ENOENT or -EAGAIN mean to who exits with them is not
 * meant. */
static int not_reached(const struct place *place, const char *url, const char *words, int rc,
                       struct error *err)
{
    if (words)
        return error_set(err, -EINVAL, "%s: %s", url, words);
    if (rc == -ENOENT || (rc == -ECONNREFUSED && place->unix_path))
        return error_set(err, -ENOTCONN, "%s: %s; does a daemon listen there?", url, strerror(-rc));
    if (rc == -ECONNREFUSED)
        return error_set(err, -ENOTCONN, "%s: %s; does a daemon listen on port %s there?", url, strerror(-rc),
                         place->port);
    return error_set(err, -ENOTCONN, "%s: %s", url, strerror(-rc));
}

int http_get(const char *url, const char *path, const char *key, char **body, struct error *err)
{
    struct place place;
    const char *words = NULL;
    int rc = split_url(url, &place, err);

    if (rc < 0)
        return rc;
    int fd = place.unix_path ? connect_unix(place.unix_path) : connect_tcp(&place, &words);
    if (fd < 0)
        return not_reached(&place, url, words, fd, err);
    rc = http_get_over(fd, path, key, body);
    close(fd);
    if (rc == -EAGAIN)
        return error_set(err, -ETIMEDOUT, "%s%s: no answer in %d seconds", url, path, PATIENCE_S);
    return rc < 0 ? error_set(err, rc, "%s%s: %s", url, path, strerror(-rc)) : rc;
}
