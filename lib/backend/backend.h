/* backend.h - the table of operations of a backend, which runs a program: `cpu` or `cuda`, chosen once at
 * start.
 *
 * Life: open -> load -> (submit, advance)* -> close. load() allocates weights, KV cache and scratch; a step
 * allocates nothing. submit() copies the step into the backend's ring; advance() computes (cpu) or waits
 * (cuda) and returns results in the order of submission. Persistent executor: a decoder stays awake between
 * steps (cuda: one kernel; cpu: a team of threads, whose member 0 is the engine thread: it does its share of
 * the work inside advance()). Eager executor: begin(), dispatch() for every node, then advance() for the
 * results. Graph executor: like eager, but the backend captures the nodes' launches once (as a CUDA graph),
 * and every submit() replays them, one launch per step.
 *
 * Thread: one at a time (open and load: the loader's; then the engine's); info() and program_ns() from any,
 * lock-free. Memory: a backend belongs to its executor, which closes it. Errors: a negative errno with words;
 * after the first device error every call returns it. */
#pragma once
#include "base/error.h"
#include "abi/kv_layout.h"
#include "abi/step.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct graph;
struct model;
struct program;
struct trace;

enum backend_arithmetic { BACKEND_INT8, BACKEND_EXACT };

struct backend_config {
    enum backend_arithmetic arithmetic;
    bool eager;         /* node by node: by dispatch(), or by the replay of a graph in submit() */
    uint32_t n_threads; /* cpu: threads; 0: as affinity and cgroup quota allow */
    const char *isa;    /* cpu: "auto", "avx512", "avxvnni", "avx2", "amx", "scalar" */
    /* cpu: "auto" (or NULL) times the variants of its products at load, "off" does not; else the name of a
     * file that keeps the choice, and is written where there is none of this CPU */
    const char *cpu_tuning;
    const char *libcuda; /* cuda */
    /* cuda: directory in which the driver caches compiled kernels; NULL or "": as the environment or the
     * driver's default says */
    const char *cuda_cache;
    uint32_t cuda_device; /* cuda: 1 + the device's number; 0: the device with the most memory */
    bool cuda_hops;       /* cuda: no op passes words on (kernels/README.md): to measure what they gain */
    uint32_t n_slots, n_ctx;
    /* The tokens that STEP_BAN_END bans, each in range, maybe none. Copied in open(). */
    const int32_t *end_tokens;
    uint32_t n_end_tokens;
    enum kv_type kv_type;
    uint64_t kv_memory;       /* bytes for KV pages; 0: the backend's default */
    uint32_t steps_in_flight; /* 1 or 2 */
    uint32_t park_after_ms;
    uint32_t stall_ms; /* cuda: time without progress after which running work counts as failed; 0: 10 s */
    /* Reports the progress of load(), 0..1, on the calling thread. May be NULL. */
    void (*progress)(void *context, double fraction);
    void *context;
};

/* A backend's choice for products of one weight type with `first` to `last` rows of a step. */
struct backend_choice {
    const char *weights;      /* "Q4_K" */
    uint32_t first, last;     /* UINT32_MAX: no limit */
    const char *kernels;      /* "avx512vnni" */
    const char *hint, *shape; /* "built": the constants */
    uint32_t ahead;           /* bytes of prefetch distance; 0: as built */
    bool measured;            /* at this start, or when the file was written */
    bool unsettled;           /* other work disturbed it: it is measured again while the decoder is idle */
    double gain;              /* measured speed beside the constants; 1 where they were kept */
    double gbps;              /* 10^9 bytes of weights read per second with it; 0: unknown */
};
/* A backend's choice for the attention of heads of this length: many queries fold a page of a bf16 cache by
 * FMAs of floats, else by dot products of bf16. */
struct backend_fold {
    uint32_t head_dim;
    bool by_floats;
};
struct backend_tuning {
    const char *source;   /* "off", "constants" (unmeasured), "measured", "file" */
    const char *note;     /* why, as a sentence; or NULL */
    double ms;            /* time that measuring took */
    uint32_t n_unsettled; /* choices that are to be measured again */
    uint32_t n_again;     /* choices that were */
    uint32_t n_choices;
    const struct backend_choice *choices;
    uint32_t n_folds; /* 0: not measured, or the cache is not bf16 */
    const struct backend_fold *folds;
};

/* A snapshot for /stats. Its strings stay valid until close. */
struct backend_info {
    const char *name;   /* "cpu" */
    const char *device; /* "AMD EPYC ..." */
    const char *isa;    /* "avx512vnni", "sm_90" */
    /* After a fault that is a hang: where each part of the decoder stood, in lines; or NULL. */
    const char *account;
    const char *note; /* a remark of load() that is no error, as a sentence; or NULL */
    uint32_t n_threads;
    /* cuda: the most of any kernel, as the driver compiled it: registers, and bytes of local memory, of a
     * thread. Local memory is spilled registers: the kernels are slow. Else 0. */
    uint32_t registers, local_bytes;
    /* cuda: modules of kernels, and how many are machine code of the build; the driver compiled the others.
     * jit_reason: why, if the build has machine code, as a clause; or NULL. */
    uint32_t n_modules, n_cubins;
    const char *jit_reason;
    const struct backend_tuning *tuning; /* cpu; else NULL */
    uint32_t max_rows;                   /* most rows of a step */
    uint32_t rows_together; /* rows that products compute together; a remainder costs as much as all; >= 1 */
    /* The executor's: rows of a prompt for which a step may read all weights, however long that takes. */
    uint32_t rows_of_a_pass;
    uint32_t n_pages;
    /* Layers that see the last `window` tokens alone have pages of their own, n_windows of window_bytes each,
     * numbered behind n_pages: a sequence keeps those that its window covers. They are the last window_bytes
     * of a page's bytes, as kv says and as pages are exchanged. 0: all layers are in the pages. */
    uint32_t n_windows, window;
    uint64_t window_bytes;
    bool shares_pages; /* several tables may name a page; else no page ops and no prefix cache */
    /* The model has recurrent layers: rows of a slot follow one another from position 0 on, or from that of a
     * state that was saved (step.h). */
    bool recurrent;
    uint32_t n_snapshots;     /* states beside those of the slots, for saved ones */
    uint64_t state_size;      /* bytes of one state */
    uint64_t state_bytes;     /* of all recurrent states, part of memory_used */
    uint32_t default_step_ms; /* ms; time budget of a step that suits this backend */
    struct kv_layout kv;
    uint64_t weights_sum; /* of all that was read of the model's file: see model_hash() */
    const char *kv_order; /* order inside its tiles: pages are exchanged only between equal orders */
    uint64_t memory_used, memory_total; /* bytes; total 0: host memory */
    uint64_t weights_bytes;             /* of the weights as this backend stores them, part of memory_used */
    uint64_t bandwidth;                 /* bytes/s of the device's memory, from its driver; 0: unknown */
    uint64_t scratch_bytes;
    uint64_t launches, parks, steps;
    /* Time spent inside steps. cpu: computing them (eager: 0). cuda: from the submission of a step until the
     * host has seen its end; overlapping steps count once. */
    uint64_t busy_ns;
    uint32_t ops_per_step;
    /* Host memory of exported and imported pages (step_page_op), from load() to close(); NULL: no page ops.
     */
    void *transfer;
    size_t transfer_bytes;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last progress; while a step runs, of any work done */
    enum { BACKEND_IDLE, BACKEND_RUNNING, BACKEND_PARKED } state;
};

struct backend {
    const struct backend_ops *ops;
}; /* first member of cpu_backend and cuda_backend */

/* EXECUTOR_EAGER: a step node by node. Thread: as submit(). */
struct backend_node_ops {
    /* begin() applies the step's edits and page ops, dispatch() runs one graph node; call it for every node
     * in order. advance() returns the results after the last. */
    int (*begin)(struct backend *be, const struct step *step, struct error *err);
    int (*dispatch)(struct backend *be, uint32_t node, struct error *err);
    /* For a device that runs asynchronously (else both are NULL: the duration of the call is the node's).
     * time() turns per-node timing on or off from the next step on. node_ns() returns the time in ns of a
     * node in the newest finished step, from the device's notes at the node's start and end. The memory for
     * that is allocated here and kept until close. No step may be in flight. */
    int (*time)(struct backend *be, bool on, struct error *err);
    int (*node_ns)(struct backend *be, uint32_t node, uint64_t *ns, struct error *err);
    /* Copies out[width], a row of the value of the node that was dispatched last: row of the step, or of its
     * logits if the node is `head`. *factor: the 1/rms that a norm leaves to the products behind it, else 1.
     * Waits for the device. The node is not NONE and not ARGMAX. -ENOTSUP: arithmetic exact. */
    int (*value)(struct backend *be, uint32_t node, uint32_t row, float *out, float *factor,
                 struct error *err);
};

/* For what the host adds to a step: constraints, chains of filters, embeddings. Each may be NULL. Thread: as
 * submit(). */
struct backend_sampling_ops {
    /* Names the memory of the masks that step_logit.mask refers to: `n` masks of `words` 32-bit words, bit t
     * of a mask set where token t may be sampled. A mask stays as it is while a step that uses it is in
     * flight; one without tokens is never used. NULL: this backend cannot constrain. */
    void (*masks)(struct backend *be, const uint32_t *masks, uint32_t n, uint32_t words);
    /* Raw logits [n_vocab] of logit row `index` of the newest finished step if it had STEP_EXPORT, else NULL.
     * Valid until the next submit. */
    const float *(*logits)(struct backend *be, uint32_t index);
    /* Runs work(context, member) on every thread of the team, member below n_threads of backend_info and 0
     * the calling one, and returns when all have. Between two calls of advance(). NULL: there is no team. */
    void (*share)(struct backend *be, void (*work)(void *context, uint32_t member), void *context);
    /* Writes out[n_embd], the hidden state of row `row` of the newest finished step behind the last norm:
     * what the output weights multiply. Valid until the next step runs, which on cpu is the next advance().
     * NULL: this backend cannot say. */
    void (*hidden)(struct backend *be, uint32_t row, float *out);
};

/* The times of the fused program's ops. Thread: program_ns() any, the others as submit(). */
struct backend_trace_ops {
    /* Writes the time in ns that each op of the fused program has taken so far, n_ops of them. Any thread.
     * NULL: unknown for this backend. */
    void (*program_ns)(const struct backend *be, uint64_t *ns);
    /* Persistent executor: turns the notes of trace.h on or off, from the next step on; they cost little, but
     * something. traced() writes those of the newest step that had rows; the caller closes *out. The notes
     * are on, and no step is in flight. Both NULL: this backend keeps none. -ENOMEM, or the device's error.
     */
    int (*trace)(struct backend *be, bool on, struct error *err);
    int (*traced)(struct backend *be, struct trace *out, struct error *err);
};

struct backend_ops {
    const char *name;
    bool has_graph; /* it supports EXECUTOR_GRAPH: submit() replays a step captured once */
    bool has_exact; /* it supports BACKEND_EXACT */
    const struct backend_node_ops *nodes;        /* for EXECUTOR_EAGER; NULL: it has none */
    const struct backend_sampling_ops *sampling; /* never NULL */
    const struct backend_trace_ops *trace;       /* NULL: this backend keeps no times of ops */
    /* Prepares the environment of this process for the backend's driver; `cache` as cuda_cache. Call before
     * other threads start. NULL: nothing to do. */
    void (*prepare)(const char *cache);
    /* Sets *size to the bytes that load() takes for the weights of a graph. -ENOTSUP: one cannot be packed;
     * -ENOMEM. NULL: that is not known without a device. */
    int (*weights_size)(const struct graph *graph, size_t *size, struct error *err);
    /* -ENODEV: this machine has no such device. */
    int (*open)(struct backend **out, const struct backend_config *cfg, struct error *err);
    /* Reads and packs the weights, allocates KV cache and scratch, starts the decoder. Nothing of the model's
     * file is used afterwards. -ENOMEM names the bytes needed and available; -EIO: the file cannot be read.
     */
    int (*load)(struct backend *be, const struct program *prog, const struct graph *graph, struct error *err);
    /* Queues a step. -EAGAIN: the ring is full. -EINVAL: an index is out of range (nothing has changed). */
    int (*submit)(struct backend *be, const struct step *step, struct error *err);
    /* Advances the work, on cpu by computing the oldest step, and writes up to `max` results. Returns their
     * number; *steps_done, if not NULL, is the id of the newest finished step (a step without logit rows
     * finishes without results). With no step in flight it checks that the device still exists, and returns
     * at once. */
    int (*advance)(struct backend *be, struct step_result *out, int max, uint64_t *steps_done,
                   struct error *err);
    /* Stops the decoder until the next submit (cuda). It does so by itself after park_after_ms without a
     * step; a host that knows that none will come calls this (executor_park()). No step may be in flight. On
     * cpu the team sleeps on its futex anyway. */
    void (*park)(struct backend *be);
    /* Uses an idle moment: no step is in flight and none is expected. Works for 20 ms at most, and ends at
     * once when wanted(context) is true, which it asks every 0.1 ms or so. Returns the ns of further idleness
     * after which it wants to be called again; UINT64_MAX: never. NULL: nothing to do. */
    uint64_t (*idle)(struct backend *be, bool (*wanted)(void *context), void *context);
    void (*info)(const struct backend *be, struct backend_info *out);
    void (*close)(struct backend *be); /* NULL is fine */
};

extern const struct backend_ops cpu_backend, cuda_backend;

/* Checks the numbers that every backend bounds alike; open() of each calls it first. Any thread. Returns 0,
 * or -EINVAL with words that name the limit. */
int backend_check_config(const struct backend_config *cfg, struct error *err);
