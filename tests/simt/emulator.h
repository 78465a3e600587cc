/* emulator.h - a GPU in one host thread, for kernels compiled for the host through kernels/device/simt.h.
 *
 * Every GPU thread is a fiber. A machine runs one grid at a time, on the calling thread (several machines may
 * run on several threads at once), in an order that follows from the seed alone. Plain accesses of the
 * kernels arrive through the compiler's load and store callbacks and are checked against vector clocks: two
 * accesses to the same byte, one of them a write, that no synchronisation orders are a report, whatever order
 * this run took. Also reported: memory that is not the kernel's, shared memory read before it was written,
 * collectives that not all lanes reach at the same place, waits that can never end. The first report ends the
 * run.
 *
 * Device memory is host memory: what a kernel may touch is announced with simt_map(). Muting: every site (one
 * use of a word of simt.h) has up to two mutable aspects; mutation n is the n-th of them in link order. */
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
    SIMT_STARVE_BLOCK, /* one block gets to run only rarely */
    SIMT_WARP_AHEAD,   /* one warp runs whenever it can */
    SIMT_N_SCHEDULES,  /* with this value the seed decides */
    SIMT_IN_ORDER,     /* the lanes of a warp in turn, each as far as it gets: the cheapest */
};

enum simt_map_flags {
    SIMT_MAP_READ_ONLY = 1, /* the kernel must not write it */
    SIMT_MAP_HOST = 2, /* shared with the host while the kernel runs: ordered accesses at sys scope only */
};

/* What goes on beside a grid whose host does not just wait for it. Then the kernel's timer follows real time
 * (more slowly while the emulator is at work), and a grid that only waits for the host sleeps between its
 * looks. */
struct simt_outside {
    _Atomic bool stop; /* set by any thread: the run ends at once, reported as "stopped" */
    bool (*armed)(
        void); /* asked now and then; the steps of the next two count from when it is true; NULL: always */
    uint64_t stuck_at; /* from this step on no thread gets to run, until `stop`; 0: never */
    uint64_t fault_at; /* the run ends with this step, reported as "fault"; 0: never */
};

struct simt_launch {
    const struct simt_kernel *kernel;
    const void *args;   /* kernel->args_size bytes; copied */
    uint32_t n_threads; /* per block, whole warps, no more than the kernel's; 0: the kernel's */
    uint32_t n_blocks;
    uint32_t n_resident; /* so many blocks at a time, a new one when one has ended; 0: all at once */
    size_t shared_bytes; /* dynamic shared memory per block */
    uint64_t seed;
    enum simt_schedule schedule;
    int mute;                     /* mutation number, or -1 */
    struct simt_outside *outside; /* NULL: nothing but the grid moves, and the seed decides everything */
};

struct simt_report {
    char kind[16]; /* "race", "bounds", "uninitialised", "collective", "hang", "mbarrier", "scope", "misuse";
                    * with simt_outside "stopped", "fault" */
    char text[900];
    const void *pc[2]; /* of the kernel's accesses, or NULL */
    uint64_t steps;    /* of the scheduler; set in every case */
};

struct simt_machine *simt_open(void); /* NULL: out of memory */
void simt_close(struct simt_machine *m);
void simt_map(struct simt_machine *m, void *memory, size_t size, uint32_t flags, const char *name);
void simt_unmap_all(struct simt_machine *m);
/* Runs the grid to its end. 0, or -1 with the report filled in. */
int simt_run(struct simt_machine *m, const struct simt_launch *launch, struct simt_report *report);
void simt_report_print(const struct simt_report *report,
                       FILE *to); /* with lines of source where addr2line is there */

/* The linked kernels and mutations. A kernel of that name compiled for that generation, or NULL. */
const struct simt_kernel *simt_find_kernel(const char *name, uint32_t sm);
int simt_n_mutations(void);
const struct simt_site *simt_mutation(int n, enum simt_aspect *aspect);
/* "weight_ring.h:88 mbar_try_wait dropped in toys/ring.c" */
void simt_mutation_text(int n, char *out, size_t size);
