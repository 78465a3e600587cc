/* client_limit.h - how many requests each client has under way. A client is a number (access.h); only those
 * with a request are remembered. Thread: loop. */
#pragma once
#include <stdint.h>
#include <sys/queue.h>

struct client;
LIST_HEAD(client_list, client);
struct clients {
    struct client_list *buckets; /* of a chained hash table; NULL: no client yet */
    uint32_t n;                  /* clients with requests; for tests: none must stay */
};

enum client_entry {
    CLIENT_REFUSED,   /* it has `limit` requests already */
    CLIENT_COUNTED,   /* clients_leave() must follow */
    CLIENT_UNCOUNTED, /* let in, since memory is out; clients_leave() would take another request's place */
};

/* One more request of `id`. */
enum client_entry clients_enter(struct clients *c, uint64_t id, uint32_t limit);
void clients_leave(struct clients *c, uint64_t id);
void clients_free(struct clients *c);
