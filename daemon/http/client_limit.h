/* client_limit.h - how many requests each client has under way. A client is a number (access.h); only those
 * with a request are remembered. Thread: loop. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct client;
struct clients {
    struct client **buckets; /* of a chained hash table; NULL: nobody yet */
    uint32_t n;              /* clients with requests; for tests: none must stay */
};

/* One more request of `id`, unless it has `limit` already (or memory is out: then it is let in uncounted). */
bool clients_enter(struct clients *c, uint64_t id, uint32_t limit);
void clients_leave(struct clients *c, uint64_t id);
void clients_free(struct clients *c);
