/* machine.h - internals of the emulator: its threads, warps, blocks and copies, and their scheduling.
 * scheduler.c runs the grid, collectives.c lets threads meet, memory.c checks and orders accesses, copies.c
 * has mbarriers and asynchronous copies, report.c texts and mutations.
 * Thread: a machine belongs to the thread that runs its grid. */
#pragma once
#include "clocks.h"
#include "emulator.h"
#include "fiber.h"
#include "shadow.h"

#include <pthread.h>
#include <stdatomic.h>

#ifndef SIMT_SM
#define SIMT_SM 90 /* simt_host.h requires one; the emulator handles both generations */
#endif
#include "device/simt.h"
#undef simt_thread
#undef simt_lane
#undef simt_warp

#define SIMT_BARRIERS 16
/* The fast emulator: no clocks, no shadow, no poison; copies land at once. */
#ifdef SIMT_FAST
#define SIMT_CHECKED false
#else
#define SIMT_CHECKED true
#endif

#define SIMT_CARVES    64  /* parts of shared memory per block */
#define SIMT_MBARRIERS 256 /* per block */
#define SIMT_LOOKS     32 /* words that a thread may poll in one loop: with more it would never count as idle */
#define SIMT_GUARD     64 /* guard bytes on both sides of a part of shared memory */

struct region {
    uintptr_t start, end;
    uint32_t flags;
    const char *name;
};

enum thread_state { THREAD_READY, THREAD_BLOCKED, THREAD_DONE };

struct thread {
    struct fiber fiber;
    struct block *block;
    struct warp *warp;
    uint32_t index; /* index in the block; its column is its index in machine.threads */
    uint32_t column, epoch;
    uint32_t copy_column, copy_epoch; /* those of its asynchronous copies; column 0: none yet */
    struct knowledge knows;
    struct knowledge loose;  /* learned by relaxed loads: valid from the next fence on */
    struct knowledge fenced; /* what relaxed stores carry since its last fence */
    enum thread_state state;
    uint32_t ready_slot;        /* index in machine.ready, while ready */
    const struct simt_site *at; /* the last intrinsic it called */
    struct look {
        const struct simt_site *at;
        const void *of;
        uint64_t value;
    } looks[SIMT_LOOKS];      /* place, object and value of its last polls */
    uint32_t next_look;       /* the oldest one */
    uint32_t next_again;      /* the one behind the one found last: most loops poll the same words in turn */
    bool idle;                /* it would only poll again */
    uint32_t group;           /* cp.async: groups committed */
    uint32_t group_epoch[16]; /* copy_epoch when group i % 16 was committed */
    uint32_t oldest_copy;     /* epoch of its oldest cp.async in flight; 0: none */
    void *deposit;            /* its argument to a collective of its warp */
    bool barrier_answer;
};

struct warp {
    uint32_t n_arrived, n_done;
    const struct simt_site *site;
    uint32_t barrier_arrived; /* lanes that have reached the warp's barrier */
    uint32_t barrier_id;
    const struct simt_site *barrier_site;
};

struct barrier {
    uint32_t n, n_arrived;
    bool any;
    struct thread **waiting; /* room for all threads of the block */
};

struct mbarrier {
    uintptr_t address;
    uint32_t arrivals, pending, phase;
    int64_t tx;
    struct access init;
    struct knowledge now, ended; /* gathered in this phase; of the phase that ended last */
};

struct carve {
    size_t offset, bytes;
    char *memory; /* SIMT_GUARD bytes inside its allocation */
};

struct block {
    uint32_t index;
    struct thread *threads;
    struct warp *warps;
    struct barrier barriers[SIMT_BARRIERS];
    struct mbarrier mbarriers[SIMT_MBARRIERS];
    uint32_t n_mbarriers;
    struct carve carves[SIMT_CARVES];
    uint32_t n_carves;
    uint32_t n_done;
};

struct copy { /* a copy in flight */
    char *dst;
    const char *src;
    uint32_t bytes, epoch, group;
    struct thread *issuer;
    struct mbarrier *mbar; /* receives complete_tx; NULL: cp.async */
};

struct late_arrival { /* cp.async.mbarrier.arrive: due when the issuer's copies up to this epoch have landed
                       */
    struct thread *issuer;
    struct mbarrier *mbar;
    uint32_t epoch;
};

/* The knowledge that ordered accesses to one address have released. */
struct released {
    uintptr_t address;
    struct knowledge knows;
    struct released *next;
};

#define RELEASED_BUCKETS 1024

/* The host as an agent: host.c. Its accesses before a launch are ordered before the launch. */
struct host {
    struct knowledge knows;
    uint32_t epoch;
    const void *pc;          /* the place of its newest access, or NULL */
    struct simt_report late; /* what it did wrong after the run */
};

/* Lets a host on another thread in, between two steps of a grid. */
struct door {
    pthread_mutex_t inside;    /* the run has it, and leaves it to a host */
    pthread_mutex_t turnstile; /* a host has it until it is in */
    _Atomic bool waits;        /* a host does */
};

struct machine_launch {
    const struct simt_kernel *kernel;
    _Alignas(16) char args[4096];
    uint32_t n_threads, n_blocks; /* threads per block; blocks of the whole grid */
    uint32_t n_resident;          /* blocks at a time */
    size_t shared_bytes;
    enum simt_schedule schedule;
    const struct simt_site *muted;
    uint32_t muted_aspects;
    uint32_t victim; /* the starved block's index, or the first column of the favoured warp */
    struct simt_outside *outside;
    const struct simt_host_program *host;
};

struct simt_machine {
    struct fiber host;
    struct host host_agent;
    struct door door;
    bool runs;
    struct machine_launch launch;
    struct thread *threads; /* threads of the resident blocks; only grows */
    uint32_t n_threads, room_threads;
    struct block *blocks; /* resident blocks: a slot serves one block after the other */
    uint32_t n_blocks, next_block;
    struct warp *warps;
    uint32_t n_columns;
    struct clock_pool clocks;
    struct shadow *shadow;
    struct thread *running, **ready;
    uint32_t n_ready, n_idle; /* n_idle: ready threads that would only poll again */
    uint32_t n_done;          /* threads of blocks that no other block replaces */
    uint32_t n_passes;        /* switches from lane to lane, without the scheduler */
    uint64_t random, steps, progress_step, slept_ns;
    bool lost;  /* block 1: see simt_outside.lost_at */
    bool armed; /* the faults of `outside` are due; steps before that: */
    uint64_t unarmed_steps;
    uint32_t naps; /* number of naps since the last progress */
    struct machine_clock {
        uint64_t ns, real_ns, steps,
            napped_ns; /* value of the timer; real time, steps and naps at its last update */
    } clock;
    struct region *regions, *last_region; /* by address; the one found last */
    uint32_t n_regions, room_regions;
    uintptr_t constants, constants_end; /* this program's image: it has the kernels' constant tables */
    struct copy *copies;
    uint32_t n_copies, room_copies;
    struct late_arrival *late;
    uint32_t n_late, room_late;
    struct released *released[RELEASED_BUCKETS];
    struct simt_report *report;
    bool reported;
    bool host_polled; /* an idle poll read memory that the host writes: waiting is no fault */
    bool time_polled; /* the timer was read: a deadline may end the waiting */
};

extern _Thread_local struct simt_machine *simt_machine; /* runs a grid on this thread, or NULL */

/* scheduler.c; the inline ones are called at every word. */
void machine_yield(struct simt_machine *m); /* lets others run; the thread stays ready */
void machine_rest(struct simt_machine *m);  /* the same, for a thread that has nothing to do now */
void machine_block(struct simt_machine *m); /* blocks the thread until machine_wake() */
uint32_t machine_random(struct simt_machine *m, uint32_t below);
/* Records an unsuccessful poll of an object (`value`) or progress; then yields. */
void machine_poll(struct simt_machine *m, const struct simt_site *at, const void *of, bool done,
                  uint64_t value);
uint64_t machine_time(struct simt_machine *m); /* ns */

static inline void machine_progress(struct simt_machine *m)
{
    m->progress_step = m->steps;
    m->naps = 0;
}

/* Marks a ready thread as idle or busy. */
static inline void machine_set_idle(struct simt_machine *m, struct thread *t, bool idle)
{
    m->n_idle += (uint32_t)idle - (uint32_t)t->idle;
    t->idle = idle;
}

static inline void machine_make_ready(struct simt_machine *m, struct thread *t)
{
    t->state = THREAD_READY;
    t->idle = false;
    t->ready_slot = m->n_ready;
    m->ready[m->n_ready++] = t;
}

static inline void machine_wake(struct simt_machine *m, struct thread *t)
{
    machine_make_ready(m, t);
    machine_progress(m);
}

static inline bool machine_mutes(const struct simt_machine *m, const struct simt_site *at,
                                 enum simt_aspect aspect)
{
    return at == m->launch.muted && (m->launch.muted_aspects & (uint32_t)aspect);
}

/* Returns the calling thread, and records its place. */
static inline struct thread *machine_enter(const struct simt_site *at)
{
    struct thread *t = simt_machine->running;
    t->at = at;
    machine_set_idle(simt_machine, t, false);
    return t;
}

/* memory.c */
void memory_access(struct simt_machine *m, const void *p, size_t size, bool write, enum simt_scope scope,
                   const void *pc);
struct accessor memory_accessor(const struct thread *t, enum simt_scope scope, const void *pc);
void memory_report_race(struct simt_machine *m, const void *p, size_t size, bool write,
                        const struct access *mine, const struct access *other, bool other_is_write);
/* The same, without leaving the run. */
void memory_note_race(struct simt_machine *m, const void *p, size_t size, bool write,
                      const struct access *mine, const struct access *other, bool other_is_write);
/* Joins what the address carries into `into`; makes the address carry nothing but `what`. */
void memory_take_up(struct simt_machine *m, const void *p, struct knowledge *into);
void memory_give(struct simt_machine *m, const void *p, const struct knowledge *what);
const struct region *memory_region(struct simt_machine *m, const void *p, size_t size, const struct thread *t,
                                   bool *is_shared);
void memory_forget(struct simt_machine *m);                      /* forgets all releases */
void memory_drop_block(struct simt_machine *m, struct block *b); /* removes its shared memory */
void memory_find_constants(struct simt_machine *m);
void thread_next_epoch(struct simt_machine *m, struct thread *t);
/* Returns what t has done and knows, to be passed on. The caller drops it. */
struct knowledge thread_release(struct simt_machine *m, struct thread *t);

/* host.c */
bool host_turn(struct simt_machine *m); /* lets the host act; false: it had nothing to do */
void host_forget(struct simt_machine *m);
/* For a run with `outside`: the door is the run's between the first two, but for hosts that are let in. */
void host_shut(struct simt_machine *m);
void host_open(struct simt_machine *m);
void host_let_in(struct simt_machine *m);

/* copies.c */
bool copies_land_one(struct simt_machine *m); /* false: none in flight */
bool copies_in_flight(const struct simt_machine *m, const struct block *b);
void copies_drop(struct simt_machine *m); /* at the end of a run */

/* report.c */
void report_fault(struct simt_machine *m, const char *kind, const void *pc0, const void *pc1, const char *fmt,
                  ...) __attribute__((format(printf, 5, 6), noreturn));
/* For the scheduler, on the host's stack: fills in the report and returns. */
void report_note(struct simt_machine *m, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *report_where(const struct simt_site *at, char *out, size_t size);
