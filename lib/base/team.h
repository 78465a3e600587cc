/* team.h - the team of resident compute threads: one per core, awake only while there is work.
 *
 * The thread that calls team_run() is member 0 and works too. The others wait for it on a futex, after a
 * short spin, so an idle team uses no CPU and a busy one does not compete with another process for its cores.
 * All members run the same function. Inside it they meet at barriers, and between two barriers they share out
 * units of work: each member has a part of its own (so that it streams contiguous memory), and a member that
 * finishes early takes over units of the others. A team of one makes no system call and never waits.
 *
 * Thread: open, run and close from one thread at a time; team_progress() from any. Memory: all is allocated
 * in team_open(). */
#pragma once
#include "error.h"

#include <stdbool.h>
#include <stdint.h>

#define TEAM_MAX 256

struct team; /* opaque: the fields are in team.c */

/* The number of threads that can run at once: the affinity mask, bounded by the cgroup's cpu quota (v2 or v1)
 * rounded down; 1 to TEAM_MAX. */
uint32_t team_cores(void);
/* The same for a machine whose /proc/self/cgroup and /sys/fs/cgroup lie under `root`. */
uint32_t team_cores_under(const char *root);

/* Starts n_threads - 1 threads; n_threads 0 means team_cores(). Members are not pinned: pinning gains nothing
 * measurable (prefill and decode within 1 % either way), and two pinned teams on one machine would share the
 * same cores while others are free. Returns 0, -EINVAL above TEAM_MAX, -ENOMEM, or the error of
 * pthread_create(). */
int team_open(struct team **out, uint32_t n_threads, struct error *err);
void team_close(struct team *t); /* NULL is fine */
uint32_t team_size(const struct team *t);
/* True if waiting members spin before they sleep. They do not when the team has more members than
 * team_cores(). */
bool team_spins(const struct team *t);

/* The number of pieces of work that the members have taken so far. It grows while any member works and stands
 * still while all wait or hang. Any thread. */
uint64_t team_progress(const struct team *t);

/* Runs work(context, member) on every member and returns when all of them have returned. */
void team_run(struct team *t, void (*work)(void *context, uint32_t member), void *context);

/* Called inside work: no member passes the barrier before all have reached it. Writes before it are visible
 * after it. */
void team_barrier(struct team *t, uint32_t member);

/* Calls waited(context, member, begin_ns, end_ns), on the member, after each barrier inside work. NULL: no
 * more. Between two runs. */
void team_watch(struct team *t,
                void (*waited)(void *context, uint32_t member, uint64_t begin_ns, uint64_t end_ns),
                void *context);

/* Called inside work: shares out the units [0, n) in pieces of at most `chunk` (> 0). At most one deal
 * between two barriers, with the same n and chunk for every member. */
struct team_deal {
    struct team *team;
    uint32_t member, n, chunk, lead;
    uint32_t victim; /* the member whose part is being worked on, counted from `member` */
};
struct team_deal team_deal(struct team *t, uint32_t member, uint32_t n, uint32_t chunk);
/* The same, but the first piece that a member takes of its own part has up to `lead` units: where a long run
 * of units costs less than as many short ones, and what is left suffices to even out the members' speeds. */
struct team_deal team_deal_lead(struct team *t, uint32_t member, uint32_t n, uint32_t lead, uint32_t chunk);
/* The first unit of a member's own part of [0, n); n for member == team_size(). */
uint32_t team_part(const struct team *t, uint32_t member, uint32_t n);
/* Takes the next piece [*first, *last). False when none is left (other members may still be working on
 * theirs). */
bool team_next(struct team_deal *d, uint32_t *first, uint32_t *last);
