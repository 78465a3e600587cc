/* team.h - the resident threads that do a step's work: one per core, awake only while there is work.
 *
 * The thread that calls team_run() is member 0 and works too; the others wait for it on a futex, after a
 * short spin, so an idle team uses no CPU and a busy one does not fight another process for its cores. All
 * members run the same function; inside it they meet at barriers, and between two barriers they share out
 * units of work: each has a part of its own (so that its memory streams), and who is done early takes over
 * what is left of others. A team of one makes no system call and no atomic wait.
 *
 * Thread: open, run and close from one thread at a time. Memory: all is taken in team_open(). */
#pragma once
#include "error.h"

#include <stdbool.h>
#include <stdint.h>

#define TEAM_MAX 256

struct team; /* opaque: the fields are in team.c */

/* Threads that can run at once here: the affinity mask, bounded by the cgroup's cpu quota (v2 or v1) rounded
 * down; at least 1. */
uint32_t team_cores(void);
/* The same of a machine whose /proc/self/cgroup and /sys/fs/cgroup lie under `root`. */
uint32_t team_cores_under(const char *root);

/* n_threads 0: team_cores(). Members are not pinned: it gains nothing measurable (prefill and decode within
 * 1 % either way), and two teams on one machine would both sit on the same cores while others are free. */
int team_open(struct team **out, uint32_t n_threads, struct error *err);
void team_close(struct team *t); /* NULL is fine */
uint32_t team_size(const struct team *t);
/* Whether members who wait spin before they sleep: not when there are more of them than team_cores(). */
bool team_spins(const struct team *t);

/* Pieces of work that the members have taken so far: grows while any of them works, stands still while all
 * wait or hang. Any thread. */
uint64_t team_progress(const struct team *t);

/* CPU time, in ns, that the threads of the team have used so far (member 0 not counted). */
uint64_t team_cpu_ns(const struct team *t);

/* Runs work(context, member) on every member; returns when all have returned. */
void team_run(struct team *t, void (*work)(void *context, uint32_t member), void *context);

/* Inside work: nobody passes before all have come. What was written before it is visible after it. */
void team_barrier(struct team *t, uint32_t member);

/* Inside work: shares out units [0, n), in pieces of at most `chunk`. At most one deal between two barriers,
 * with the same n and chunk for every member. */
struct team_deal {
    struct team *team;
    uint32_t member, n, chunk;
    uint32_t victim; /* whose part is being worked on, counted from the own one */
};
struct team_deal team_deal(struct team *t, uint32_t member, uint32_t n, uint32_t chunk);
/* The first unit of a member's own part of [0, n); member = team_size(): n. */
uint32_t team_part(const struct team *t, uint32_t member, uint32_t n);
/* The next piece [*first, *last), or false: nothing is left to take (others may still be working). */
bool team_next(struct team_deal *d, uint32_t *first, uint32_t *last);
