/* peer.h - the addresses that have connections, and which of them has most that may be closed to make room
 * for others. Each change takes the same time, however many connections and addresses there are. Thread:
 * loop. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define PEER_BUCKETS 1024
#define PEER_STATES  3 /* of idle connections: CONNECTION_RESTING to CONNECTION_REPLYING */

struct connection;

/* Connections of one state; the first has moved no byte for longest. */
TAILQ_HEAD(connection_queue, connection);

struct peer {
    LIST_ENTRY(peer) link;   /* of its bucket */
    TAILQ_ENTRY(peer) level; /* of those with as many idle connections */
    uint64_t id;             /* access_client(): an IPv4 address, an IPv6 /64, or the Unix sockets */
    uint32_t refs;           /* its connections */
    uint32_t n_idle;         /* of these, connections that may be closed (connection.c) */
    struct connection_queue idle[PEER_STATES]; /* these */
};

TAILQ_HEAD(peer_level, peer);

struct peers { /* a chained hash table, and lists by the number of idle connections */
    LIST_HEAD(, peer) buckets[PEER_BUCKETS];
    struct peer_level *levels; /* [n_levels]; the last has all with more, too */
    uint32_t n_levels;
    uint32_t most; /* the highest level with a peer; 0: no connection is idle */
};

/* For about so many connections. False: out of memory. */
bool peers_open(struct peers *all, uint32_t n_connections);
void peers_close(struct peers *all);
/* The peer with this id, for one more connection; NULL: out of memory. */
struct peer *peer_ref(struct peers *all, uint64_t id);
/* Frees it with its last connection, which is not idle. */
void peer_unref(struct peer *p);
/* One of its connections becomes idle, or is idle no more. The caller links it. */
void peer_add_idle(struct peers *all, struct peer *p);
void peer_remove_idle(struct peers *all, struct peer *p);
/* Returns the peers with most idle connections, while there are any. The first has had so many for longest.
 */
const struct peer_level *peers_largest(const struct peers *all);
