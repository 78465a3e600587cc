/* emulator.h - a GPU in one host thread, for kernels compiled for the host through kernels/device/simt.h.
 *
 * Every GPU thread is a fiber. A machine runs one grid at a time, in an order that follows from the seed
 * alone. Plain accesses of the kernels arrive through the compiler's load and store callbacks and are checked
 * against vector clocks: two accesses to the same byte, one of them a write, that no synchronisation orders
 * are a report, whatever order this run took. Also reported: accesses outside the kernel's memory, shared
 * memory read before it was written, collectives that not all lanes reach at the same place, waits that can
 * never end. The first report ends the run.
 *
 * Device memory is host memory; simt_map() announces what a kernel may access. Muting: every site (one use of
 * an intrinsic of simt.h) has up to three mutable aspects; mutation n is the n-th of them in link order.
 * Thread: a machine runs on the calling thread; several machines may run on several threads at once. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum simt_aspect;
struct simt_kernel;
struct simt_site;
struct simt_machine;

enum simt_schedule {
    SIMT_UNIFORM,      /* any fiber that can run */
    SIMT_STARVE_BLOCK, /* one block seldom runs */
    SIMT_WARP_AHEAD,   /* one warp runs whenever it can */
    SIMT_N_SCHEDULES,  /* with this value the seed selects one */
    SIMT_IN_ORDER,     /* the lanes of a warp in turn, each until it must wait: the fastest */
};

enum simt_map_flags {
    SIMT_MAP_READ_ONLY = 1, /* the kernel must not write it */
    SIMT_MAP_HOST = 2, /* shared with the host while the kernel runs: ordered accesses at sys scope only */
};

/* Outside world of a grid whose host acts while it runs. The kernel's timer then follows real time (more
 * slowly while the emulator is busy), and a grid that only waits for the host sleeps between its polls. */
struct simt_outside {
    _Atomic bool stop; /* set by any thread: the run ends at once, reported as "stopped" */
    bool (*armed)(
        void); /* called now and then; stuck_at and fault_at count from when it returns true; NULL: always */
    uint64_t stuck_at; /* from this step on no thread runs, until `stop`; 0: never */
    uint64_t lost_at;  /* from this step on no thread of block 1 runs; 0: never */
    uint64_t fault_at; /* the run ends with this step, reported as "fault"; 0: never */
};

/* A host that acts while the grid runs, on the machine's own thread: the seed decides when. */
struct simt_host_program {
    bool (*turn)(void *context); /* does one thing, without waiting; false: there was nothing to do */
    void *context;
};

struct simt_launch {
    const struct simt_kernel *kernel;
    const void *args;   /* kernel->args_size bytes; copied */
    uint32_t n_threads; /* per block, whole warps, no more than the kernel's; 0: the kernel's */
    uint32_t n_blocks;
    uint32_t n_resident; /* blocks resident at a time; 0: all */
    size_t shared_bytes; /* dynamic shared memory per block */
    uint64_t seed;
    enum simt_schedule schedule;
    int mute;                             /* mutation number, or -1 */
    struct simt_outside *outside;         /* NULL: only the grid acts, and the seed decides everything */
    const struct simt_host_program *host; /* NULL: no host, or one outside */
};

struct simt_report {
    char kind[16]; /* "race", "bounds", "uninitialised", "collective", "hang", "mbarrier", "scope", "misuse";
                    * with simt_outside "stopped", "fault" */
    char text[900];
    const void *pc[2]; /* in the kernel's code, or NULL */
    uint64_t steps;    /* steps of the scheduler; always set */
};

struct simt_machine *simt_open(void); /* NULL: out of memory */
void simt_close(struct simt_machine *m);
void simt_map(struct simt_machine *m, void *memory, size_t size, uint32_t flags, const char *name);
void simt_unmap_all(struct simt_machine *m);
/* Runs the grid to its end. Returns 0, or -1 with the report filled in. */
int simt_run(struct simt_machine *m, const struct simt_launch *launch, struct simt_report *report);
/* The host's accesses, as threads' accesses are: a race with one of the grid's is a report, of the run while
 * it runs. What it did before a launch is ordered before the launch; after one it knows only what it has
 * acquired. The access itself is the caller's. simt_host_at() also has the place of the access in the
 * program, for the report, or NULL. Thread: the machine's, or one between simt_host_enter() and _leave(). */
enum simt_host_access {
    SIMT_HOST_READ,
    SIMT_HOST_WRITE,
    SIMT_HOST_ACQUIRE,
    SIMT_HOST_RELEASE,
    SIMT_HOST_LOOK, /* a relaxed load */
    SIMT_HOST_SET,  /* a relaxed store */
};
void simt_host(struct simt_machine *m, enum simt_host_access what, const void *p, size_t size);
void simt_host_at(struct simt_machine *m, enum simt_host_access what, const void *p, size_t size,
                  const void *pc);
/* Between the two a grid with `outside` stands still between two of its steps. Thread: any but the machine's.
 */
void simt_host_enter(struct simt_machine *m);
void simt_host_leave(struct simt_machine *m);
/* The host was told that the grids of this machine have ended: all that they did happened before. */
void simt_host_joins(struct simt_machine *m);
/* The host may write all memory that was announced: nothing of the grid's is left that is not ordered before.
 */
void simt_host_owns_all(struct simt_machine *m);
/* Returns 0, or -1 with the report of an access after the run. */
int simt_host_verdict(struct simt_machine *m, struct simt_report *report);
void simt_report_print(const struct simt_report *report,
                       FILE *to); /* with source lines if addr2line is installed */

/* The linked kernels and mutations. simt_find_kernel() returns the kernel of that name for that generation,
 * or NULL. */
const struct simt_kernel *simt_find_kernel(const char *name, uint32_t sm);
int simt_n_mutations(void);
const struct simt_site *simt_mutation(int n, enum simt_aspect *aspect);
/* Writes a mutation's name, such as "weight_ring.h:88 mbar_try_wait dropped in toys/ring.c". */
void simt_mutation_text(int n, char *out, size_t size);
