/* emulated.h - internals of libcuda-simt.so: one device, its context, memory and streams.
 *
 * A test double of the driver for programs that load it (HEARTH_LIBCUDA). Every stream has a thread, which
 * runs grids on a machine of its own (emulator.h), copies and fills, in order. It checks what a real driver
 * checks, and calls that a real driver would answer by waiting for ever (misuse). A report of the emulator,
 * or a misuse, is printed to stderr and poisons the context: every grid ends, every later call returns
 * CUDA_ERROR_ILLEGAL_ADDRESS.
 * Thread: all fields are under `emulated.lock`, which call_begin() takes and call_end() releases. */
#pragma once
#include "cuda/driver.h"
#include "simt/emulator/emulator.h"

#include <pthread.h>
#include <stdbool.h>

enum emulated_result { /* beyond those of driver.h */
                       RESULT_INVALID_VALUE = 1,
                       RESULT_NOT_INITIALIZED = 3,
                       RESULT_INVALID_DEVICE = 101,
                       RESULT_INVALID_IMAGE = 200,
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

/* Target of handles. All objects of a context are in one list, so that a wrong handle is detected and all are
 * freed with the context. */
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

/* A copy from memory that was not pinned, still in flight after cuMemcpyHtoD has returned. */
struct late_copy {
    struct late_copy *next;
    void *to;
    size_t bytes;
    char data[];
};

enum work_kind { WORK_GRID, WORK_COPY, WORK_FILL, WORK_RECORD };

/* Work queued on a stream, or a node of a graph. */
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
    bool unjoined; /* a grid ran here of whose end the program was not told */
};

struct emulated {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* work was added or done */
    bool initialised;
    unsigned n_retained; /* references to the context; it lives while this is not 0 */
    int sticky;          /* result of every later call; 0: the context is intact */
    struct object *objects;
    struct buffer *buffers;
    struct late_copy *late; /* oldest first */
    size_t used_bytes;
    unsigned n_cooperative; /* cooperative grids, queued or running */
    unsigned n_grids;       /* all grids queued or running */
    uint64_t n_launches;
    struct { /* from the environment, at cuInit() */
        uint32_t n_sms, sm;
        uint32_t threads; /* threads per block that the device reports; kernels with more run all the same */
        size_t shared_per_block, memory_bytes;
        uint64_t seed;
        enum simt_schedule schedule;
        int mute, time_limit, integrated;
        uint32_t local_bytes;
        long host_mute; /* offset of a word, or -1: see host.c */
        bool takes_cubins;
        bool pins_managed; /* reports pinned memory as managed */
    } settings;
};

extern struct emulated emulated;
extern _Thread_local bool emulated_current; /* the context is current on this thread */

/* Takes the lock. Returns 0, or what the call must return at once; the lock is then not held. */
int call_begin(void);
int call_end(int result); /* releases the lock; returns result */
/* As call_begin(), for a call that a GPU would answer only after all grids have ended, if ever: misuse while
 * a cooperative grid runs, otherwise waits for the running grids. */
int call_begin_alone(const char *call);

void *object_open(enum object_kind kind, size_t size);         /* NULL: out of memory */
void *object_check(const void *handle, enum object_kind kind); /* NULL: no handle of this kind */
void object_close(struct object *o);                           /* frees it and what it owns */
void emulated_poison(int result);                              /* ends all grids */
void emulated_settings_read(void);
unsigned long long emulated_number(const char *name, unsigned long long otherwise); /* from the environment */

/* memory.c */
struct buffer *buffer_of(const void *p, size_t bytes); /* the one that contains all these bytes, or NULL */
void buffers_close(void);
void buffers_map(struct simt_machine *m); /* announces all buffers */
void late_copies_arrive(void);

/* stream.c */
int stream_add(struct stream *s, const struct work *w); /* or to the graph being captured */
bool stream_idle(const struct stream *s);
bool streams_captured_here(void);  /* this thread is capturing: it may not allocate */
void stream_end(struct stream *s); /* ends and joins the thread; releases the lock meanwhile */
void work_free(struct work *first);
struct work *work_copy(const struct work *w);

/* host.c */
void host_watch_find(void);
void host_watch_pinned(const struct buffer *b); /* was allocated */
void host_joins(struct stream *s);              /* the program is told that the stream is idle */
void host_joins_all(void);

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
    FAULT_LOST,
    N_FAULTS
};
void faults_read(void);
bool fault_is_armed(
    void); /* returns whether steps and queries count yet: SIMT_FAULT_WHEN is unset, or that file exists */
int fault_due(enum fault f); /* counts a call; returns the result with which it must fail, or 0 */
uint64_t fault_number(enum fault f, int *result); /* 0: not requested */
