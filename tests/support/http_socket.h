/* http_socket.h - the sending half of the tests' HTTP client, for programs with Criterion (http_client.h) and
 * without: a connection to 127.0.0.1, all of some bytes, a whole request. Thread: any. */
#pragma once
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENT_TIMEOUT_S 300 /* the machine may be busy: a hang becomes a failure */

/* -1 with errno: refused. */
static inline int client_dial(uint16_t port)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = CLIENT_TIMEOUT_S};
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* False when the other side has closed. */
static inline bool client_send(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) /* with a time limit even a stop and a continue interrupt */
            continue;
        if (sent <= 0)
            return false;
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static inline bool client_puts(int fd, const char *text)
{
    return client_send(fd, text, strlen(text));
}

/* METHOD path with a body (NULL: none) and further header lines ("A: b\r\n", may be ""). */
static inline bool client_request(int fd, const char *method, const char *path, const char *headers,
                                  const char *body)
{
    char head[1024];
    size_t len = body ? strlen(body) : 0;
    int n = body ? snprintf(head, sizeof head,
                            "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: %zu\r\n%s\r\n",
                            method, path, len, headers)
                 : snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method, path,
                            headers);
    assert((size_t)n < sizeof head);
    return client_send(fd, head, (size_t)n) && client_send(fd, body, len);
}
