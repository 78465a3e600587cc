/* emulated.h - the inside of libcuda-simt.so: one device, its context, memory and streams.
 *
 * A test double of the driver for programs that load it (HEARTH_LIBCUDA). Every stream has a thread, which
 * runs grids on a machine of its own (emulator.h), copies and fills, in order. Checked: what a real driver
 * checks, and what it would answer by waiting for ever (misuse). A report of the emulator, or a misuse, is
 * printed to stderr and poisons the context: every grid ends, every later call returns
 * CUDA_ERROR_ILLEGAL_ADDRESS. Thread: all fields are under `emulated.lock`, which call_begin() takes and
 * call_end() gives back. */
#pragma once
#include "cuda/driver.h"
#include "simt/emulator.h"

#include <pthread.h>
#include <stdbool.h>

enum emulated_result { /* besides those of driver.h */
                       RESULT_INVALID_VALUE = 1,
                       RESULT_NOT_INITIALIZED = 3,
                       RESULT_INVALID_DEVICE = 101,
                       RESULT_INVALID_CONTEXT = 201,
                       RESULT_NO_BINARY = 209,
                       RESULT_INVALID_HANDLE = 400,
                       RESULT_NOT_FOUND = 500,
                       RESULT_ILLEGAL_ADDRESS = 700,
                       RESULT_OUT_OF_RESOURCES = 701,
                       RESULT_LAUNCH_FAILED = 719,
                       RESULT_TOO_LARGE = 720,
                       RESULT_CAPTURE_UNSUPPORTED = 900,
                       RESULT_CAPTURE_INVALIDATED = 901,
                       RESULT_ILLEGAL_STATE = 401,
                       RESULT_UNKNOWN = 999,
};

enum object_kind {
    OBJECT_MODULE = 1,
    OBJECT_FUNCTION,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_GRAPH,
    OBJECT_EXEC
};

/* What handles point to. All of a context are in one list, so that a wrong handle is seen and nothing
 * outlives it. */
struct object {
    enum object_kind kind;
    struct object *next;
};

struct module {
    struct object object;
    char *text;
    uint32_t sm;
};

struct function {
    struct object object;
    struct module *module;
    const struct simt_kernel *kernel;
    size_t max_shared;
};

struct event {
    struct object object;
    unsigned n_pending, n_recorded;
    uint64_t ns;
};

struct buffer {
    struct buffer *next;
    char *memory;
    size_t bytes;
    bool is_host, is_mapped;
    char name[32];
};

/* A copy of memory that was not pinned, on its way: cuMemcpyHtoD has returned. */
struct late_copy {
    struct late_copy *next;
    void *to;
    size_t bytes;
    char data[];
};

enum work_kind { WORK_GRID, WORK_COPY, WORK_FILL, WORK_RECORD };

/* Queued on a stream, or a node of a graph. */
struct work {
    struct work *next;
    enum work_kind kind;
    struct {
        const struct simt_kernel *kernel;
        uint32_t n_blocks, n_threads, n_resident;
        size_t shared_bytes;
        bool cooperative;
        _Alignas(16) char args[4096];
    } grid;
    char *to;
    const char *from;
    size_t bytes;
    unsigned char value;
    struct event *event;
};

struct graph { /* OBJECT_GRAPH and OBJECT_EXEC */
    struct object object;
    struct work *first, **last;
};

struct stream {
    struct object object;
    pthread_t thread;
    struct work *first, **last; /* `first` is running */
    struct simt_machine *machine;
    struct simt_outside outside;
    struct graph *capture;
    pthread_t capturer;
    bool capture_failed, ends;
};

struct emulated {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* work came, or work was done */
    bool initialised;
    unsigned n_retained; /* of the context; it lives while this is not 0 */
    int sticky;          /* what every call returns from now on; 0: the context is well */
    struct object *objects;
    struct buffer *buffers;
    struct late_copy *late; /* the oldest first */
    size_t used_bytes;
    unsigned n_cooperative; /* grids queued or running that were launched as a whole */
    unsigned n_grids;       /* all grids queued or running */
    uint64_t n_launches;
    struct { /* from the environment, at cuInit() */
        uint32_t n_sms, sm;
        uint32_t threads; /* that a block may have, as it is told; kernels with more run all the same */
        size_t shared_per_block, memory_bytes;
        uint64_t seed;
        enum simt_schedule schedule;
        int mute, time_limit, integrated;
        bool pins_managed; /* what is pinned is managed memory, it says */
    } settings;
};

extern struct emulated emulated;
extern _Thread_local bool emulated_current; /* the context is this thread's */

/* Takes the lock. 0, or what the call must return at once (the lock is then not held). */
int call_begin(void);
int call_end(int result); /* gives the lock back; returns result */
/* The same for a call that a GPU would answer only after all grids have ended, if ever: misuse while one runs
 * that was launched as a whole, else waits for those that run. */
int call_begin_alone(const char *call);

void *object_open(enum object_kind kind, size_t size);         /* NULL: out of memory */
void *object_check(const void *handle, enum object_kind kind); /* NULL: not one of ours */
void object_close(struct object *o);                           /* frees it with what it owns */
void emulated_poison(int result);                              /* ends all grids */
void emulated_settings_read(void);
unsigned long long emulated_number(const char *name, unsigned long long otherwise); /* of the environment */

/* memory.c */
struct buffer *buffer_of(const void *p, size_t bytes); /* the one that holds all these bytes, or NULL */
void buffers_close(void);
void buffers_map(struct simt_machine *m); /* announces all */
void late_copies_arrive(void);

/* stream.c */
int stream_add(struct stream *s, const struct work *w); /* or to the graph that it captures */
bool stream_idle(const struct stream *s);
bool streams_captured_here(void);  /* this thread captures: calls that allocate are not for it */
void stream_end(struct stream *s); /* ends and joins the thread; the lock is given up meanwhile */
void work_free(struct work *first);
struct work *work_copy(const struct work *w);

/* grid.c */
void grid_run(struct stream *s, const struct work *w); /* without the lock */

/* fault.c: SIMT_FAULT, a list like "alloc:3,stuck:5000" (README.md) */
enum fault {
    FAULT_INIT,
    FAULT_ALLOC,
    FAULT_HOST_ALLOC,
    FAULT_JIT,
    FAULT_EVENT,
    FAULT_RECORD,
    FAULT_LAUNCH,
    FAULT_QUERY,
    FAULT_STEP,
    FAULT_STUCK,
    N_FAULTS
};
void faults_read(void);
bool fault_is_armed(
    void); /* whether steps and queries count yet: SIMT_FAULT_WHEN is not set, or that file is there */
int fault_due(enum fault f);                      /* counts; the result that this call must fail with, or 0 */
uint64_t fault_number(enum fault f, int *result); /* 0: not asked for */
