/* listen.h - listening TCP sockets of a test, on a port that the kernel chooses. Any thread; the caller
 * closes them. */
#ifndef HEARTH_TESTS_SUPPORT_LISTEN_H
#define HEARTH_TESTS_SUPPORT_LISTEN_H

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* Listens at an address of the host's byte order, as a socket unit does. *port may be NULL. */
static inline int listen_at(in_addr_t where, uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(where)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(fd, 64), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    if (port)
        *port = ntohs(address.sin_port);
    return fd;
}

static inline int listen_loopback(uint16_t *port)
{
    return listen_at(INADDR_LOOPBACK, port);
}

#endif
