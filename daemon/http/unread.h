/* unread.h - whole replies that their clients have not taken yet, and which of them goes first when memory
 * runs short: one that its client does not read, the longest unread first; else a large one, though it is
 * being read; a small one that has just been written, which a client is about to take, goes last, as it would
 * free next to nothing. Each call costs the same however many there are. Thread: loop. Memory: the replies'
 * owners'. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define UNREAD_LARGE    (64 * 1024)   /* bytes: more than a socket takes at once */
#define UNREAD_STILL_NS 1000000000ull /* without a byte: longer than a client needs to take more */

struct unread_reply {
    size_t n_bytes; /* 0: it is not in the list */
    uint64_t moved_ns;
    TAILQ_ENTRY(unread_reply) link;
};

/* In order of moved_ns: small ones, large ones. */
struct unread {
    TAILQ_HEAD(unread_queue, unread_reply) queues[2];
    uint64_t n_bytes; /* of all replies together */
};

void unread_open(struct unread *u);
/* The reply holds so many bytes as of now, or has moved some; 0: it is gone. Calls come in order of time. */
void unread_set(struct unread *u, struct unread_reply *r, size_t n_bytes, uint64_t now_ns);
/* The one to drop, other than `but`; NULL: there is none. */
struct unread_reply *unread_first(const struct unread *u, const struct unread_reply *but, uint64_t now_ns);
