/* peer.h - the addresses that have connections, and how many of each may be closed to make room for others.
 * Thread: loop. */
#pragma once
#include <stdint.h>
#include <sys/queue.h>

#define PEER_BUCKETS 1024

struct peer {
    LIST_ENTRY(peer) link; /* of its bucket */
    uint64_t id;           /* access_client(): an IPv4 address, an IPv6 /64, or the Unix sockets */
    uint32_t refs;         /* its connections */
    uint32_t n_idle;       /* of these, connections that may be closed (connection.c) */
};

struct peers { /* a chained hash table; zero-initialised is empty */
    LIST_HEAD(, peer) buckets[PEER_BUCKETS];
};

/* The peer with this id, for one more connection; NULL: out of memory. */
struct peer *peer_ref(struct peers *all, uint64_t id);
/* Frees it with its last connection. */
void peer_unref(struct peer *p);
