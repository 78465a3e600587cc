/* bench_hops - what this machine itself takes for a token's way from a computing thread to a client: the
 * floor under a daemon's CPU time per token of one stream, measured apart from any daemon.
 *
 *   bench_hops BYTES PERIOD_US TOKENS
 *
 * One thread computes (spins) for PERIOD_US and rings an eventfd, as an engine does after a token. A second
 * one sleeps in epoll_wait(), reads the eventfd and sends BYTES over TCP on the loopback interface. A child
 * process reads them, sleeping in poll(). Prints "name value" lines, CPU time in microseconds per token:
 * ring_us of the first thread's write(), hops_us of the second thread, total_us of both. */
#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_BYTES 65536

static struct {
    int bell, epoll, out;
    uint32_t bytes, n_tokens;
    uint64_t period_ns;
    double ring_us, hops_us;
} b;

static void die(const char *what)
{
    fprintf(stderr, "bench_hops: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Two ends of a connection; the first is the sender's. */
static void connect_ends(int ends[2])
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof addr;
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&addr, size) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&addr, &size) < 0)
        die("listen");
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (ends[1] < 0 || connect(ends[1], (struct sockaddr *)&addr, size) < 0)
        die("connect");
    ends[0] = accept(listener, NULL, NULL);
    if (ends[0] < 0 || setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) < 0)
        die("accept");
    close(listener);
}

static void read_all(int fd)
{
    static char in[MAX_BYTES];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, -1) > 0 && recv(fd, in, sizeof in, 0) > 0)
        ;
}

static void *send_tokens(void *arg)
{
    static char event[MAX_BYTES];
    memset(event, 'x', sizeof event);
    double before = cpu_us();
    for (uint32_t n = 0; n < b.n_tokens;) {
        struct epoll_event ready;
        uint64_t rung;
        if (epoll_wait(b.epoll, &ready, 1, -1) != 1 || read(b.bell, &rung, sizeof rung) != sizeof rung)
            die("eventfd");
        if (send(b.out, event, b.bytes, MSG_NOSIGNAL) != (ssize_t)b.bytes)
            die("send");
        n += (uint32_t)rung;
    }
    b.hops_us = cpu_us() - before;
    return arg;
}

static void compute(void)
{
    for (uint64_t until = clock_ns() + b.period_ns; clock_ns() < until;)
        ;
}

static void ring(void)
{
    const uint64_t one = 1;
    double before = cpu_us();
    if (write(b.bell, &one, sizeof one) != sizeof one)
        die("eventfd");
    b.ring_us += cpu_us() - before;
}

static uint32_t number(const char *text, uint32_t max)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (*end || n < 1 || n > max) {
        fprintf(stderr, "bench_hops: %s is not a number from 1 to %u\n", text, max);
        exit(2);
    }
    return (uint32_t)n;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: bench_hops BYTES PERIOD_US TOKENS\n");
        return 2;
    }
    b.bytes = number(argv[1], MAX_BYTES);
    b.period_ns = 1000ull * number(argv[2], 1000000);
    b.n_tokens = number(argv[3], 10000000);
    int ends[2];
    connect_ends(ends);
    pid_t client = fork();
    if (client < 0)
        die("fork");
    if (client == 0) {
        close(ends[0]);
        read_all(ends[1]);
        return 0;
    }
    close(ends[1]);
    b.out = ends[0];
    b.bell = eventfd(0, EFD_CLOEXEC);
    b.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event want = {.events = EPOLLIN};
    if (b.bell < 0 || b.epoll < 0 || epoll_ctl(b.epoll, EPOLL_CTL_ADD, b.bell, &want) < 0)
        die("epoll");
    pthread_t sender;
    errno = pthread_create(&sender, NULL, send_tokens, NULL);
    if (errno)
        die("thread");
    for (uint32_t i = 0; i < b.n_tokens; i++) {
        compute();
        ring();
    }
    pthread_join(sender, NULL);
    close(b.out);
    waitpid(client, NULL, 0);
    printf("ring_us %.2f\nhops_us %.2f\ntotal_us %.2f\n", b.ring_us / b.n_tokens, b.hops_us / b.n_tokens,
           (b.ring_us + b.hops_us) / b.n_tokens);
    return 0;
}
