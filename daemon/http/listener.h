/* listener.h - one listening socket: a libmicrohttpd daemon in external epoll mode, driven by the uv loop.
 * Timeout rule: after every run libmicrohttpd is asked when it wants to run again; "now" is granted at most
 * LISTENER_RUNS times, then the loop gets its turn and a timer of at least 1 ms goes on (a 0 ms timer that
 * re-arms itself never leaves libuv's timer phase). Thread: loop. */
#pragma once
#include "base/error.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <uv.h>

#define LISTENER_RUNS 8

struct listener {
    uv_loop_t *loop;
    struct MHD_Daemon *mhd;
    uv_poll_t poll;
    uv_timer_t timer;
    int fd;
    bool inherited; /* of a service manager: quiesced on drain, so that the next process may go on */
    bool tls;       /* HTTPS, with the certificate of tls.h */
    bool quiesced;  /* the socket is no longer libmicrohttpd's to close */
    bool running;   /* inside MHD_run */
    bool dirty;     /* something was resumed, or a connection has gone: run it soon */
    unsigned n_handles;
    char where[160];       /* "http://127.0.0.1:8080", "unix:/run/hearth.sock" */
    uint16_t port;         /* 0: not TCP */
    char unlink_path[108]; /* of a Unix socket that is ours, with the file's number: it may have been replaced
                            */
    dev_t device;
    ino_t inode;
    void *owner;
};

/* What libmicrohttpd calls; `cls` of each is the listener. */
struct listener_callbacks {
    MHD_AccessHandlerCallback request;
    MHD_RequestCompletedCallback completed;
    MHD_NotifyConnectionCallback connection;
    void *(*uri)(void *cls, const char *uri, struct MHD_Connection *connection);
    MHD_LogCallback log;
    unsigned max_connections;
    unsigned idle_timeout_s; /* of a connection that neither sends nor takes anything */
};

/* Sockets: each returns a listening descriptor or a negative errno with words that name the address. */
int listener_bind_tcp(const struct sockaddr *addr, socklen_t len, struct error *err);
int listener_bind_unix(const char *path, struct error *err);
/* 0, or what listener_bind_unix() would say of the path alone, whoever may listen on it. */
int listener_check_unix(const char *path, struct error *err);
/* Closing removes the file of this Unix socket, if it still is the one that was bound. */
void listener_own_path(struct listener *l, const char *path);
/* Fills `where` and `port` from the socket. */
void listener_name(struct listener *l);

/* Whether only this machine reaches it. */
bool listener_is_local(const struct listener *l);

/* `l` has fd, inherited, owner set and must not move afterwards. On failure nothing is left but the fd. */
int listener_open(struct listener *l, uv_loop_t *loop, const struct listener_callbacks *callbacks,
                  struct error *err);
/* Lets libmicrohttpd do what there is to do; not from inside its callbacks (then it is noted). */
void listener_run(struct listener *l);
/* Runs those of n listeners on which something was resumed. */
void listener_run_dirty(struct listener *l, unsigned n);
/* New connections stay in the backlog. */
void listener_quiesce(struct listener *l);
/* Closes connections, socket and handles. No connection may be suspended. `n_handles` is 0 once the loop has
 * closed them. */
void listener_close(struct listener *l);
