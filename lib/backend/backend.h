/* backend.h - where a program runs: `cpu` or `cuda`, each one narrow table, chosen once at start.
 *
 * Life: open -> load -> (submit, poll)* -> close. Weights, KV cache and scratch are taken in load(), none
 * later; a step allocates nothing. submit() copies the step into the backend's ring; results come from poll()
 * in the order of submission. With the persistent executor a decoder stays awake between steps (cuda: one
 * kernel; cpu: a team of threads, of which the polling engine thread is member 0 and does its share of the
 * work inside poll()). The eager executor goes node by node instead: begin(), dispatch() for every node, then
 * poll() for the results. The graph executor is eager as the backend runs it by itself: the nodes' launches
 * are captured once (cuda: as a CUDA graph), and every submit() replays them, one launch a step. Thread:
 * engine only, except info() (any thread, lock-free). After the first device error every call returns it. */
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

enum backend_arithmetic { BACKEND_INT8, BACKEND_EXACT };

struct backend_config {
    enum backend_arithmetic arithmetic;
    bool eager;          /* node by node: dispatch() will be used, or submit() replays what would have been */
    uint32_t n_threads;  /* cpu; 0: affinity and cgroup quota decide */
    const char *isa;     /* cpu: "auto", "avx512", "avxvnni", "avx2", "scalar" */
    const char *libcuda; /* cuda */
    /* cuda: where the driver keeps kernels it has compiled; NULL or "": where the environment or its own
     * default says */
    const char *cuda_cache;
    uint32_t cuda_device; /* 1 + its number; 0: the one with the most memory */
    uint32_t n_slots, n_ctx;
    /* What STEP_BAN_END bans, each in range; copied in open(). May be none. */
    const int32_t *end_tokens;
    uint32_t n_end_tokens;
    enum kv_type kv_type;
    uint64_t kv_memory;       /* bytes wanted for KV pages; 0: the default of the backend */
    uint32_t steps_in_flight; /* 1 or 2 */
    uint32_t park_after_ms;
    uint32_t stall_ms; /* cuda: work that does not move on for so long has failed; 0: 10 s */
    /* Called from load(), on the calling thread: 0..1. May be NULL. */
    void (*progress)(void *context, double fraction);
    void *context;
};

/* A snapshot for /stats; strings stay valid until close. */
struct backend_info {
    const char *name;   /* "cpu" */
    const char *device; /* "AMD EPYC ..." */
    const char *isa;    /* "avx512vnni", "sm_90" */
    const char *note;   /* what load() had to say that is no error, in a sentence; or NULL */
    uint32_t n_threads;
    uint32_t max_rows; /* rows a step may have */
    uint32_t n_pages;
    bool shares_pages;        /* a page may stand in several tables; else no prefix cache and no page ops */
    uint32_t default_step_ms; /* time budget of a step that suits this backend */
    struct kv_layout kv;
    uint64_t weights_sum; /* of all that was read of the model's file: see model_hash() */
    const char *kv_order; /* names the order inside its tiles: pages go only between equal ones */
    uint64_t memory_used, memory_total; /* bytes; total 0 when it is the host's */
    uint64_t bandwidth;                 /* bytes/s of the device's memory as its driver says; 0: unknown */
    uint64_t scratch_bytes;
    uint64_t launches, parks, steps;
    /* Spent inside steps: cpu: computing them (node by node: 0); cuda: from the submit of a step to the
     * moment the host has seen it end, steps that overlap counted once. */
    uint64_t busy_ns;
    uint32_t ops_per_step;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the last sign of life: while a step runs, any work done */
    enum { BACKEND_IDLE, BACKEND_RUNNING, BACKEND_PARKED } state;
};

struct backend {
    const struct backend_ops *ops;
}; /* first member of cpu_backend and cuda_backend */

struct backend_ops {
    const char *name;
    bool has_graph; /* EXECUTOR_GRAPH: submit() replays a step captured once */
    bool has_exact; /* BACKEND_EXACT */
    /* -ENODEV: no such device here. */
    int (*open)(struct backend **out, const struct backend_config *cfg, struct error *err);
    /* Reads and packs the weights, takes KV cache and scratch, starts the decoder: nothing of the model's
     * file is used afterwards. -ENOMEM names what was wanted and what there is; -EIO: the file cannot be
     * read. */
    int (*load)(struct backend *be, const struct program *prog, const struct graph *graph, struct error *err);
    /* -EAGAIN: as many steps in flight as the ring holds. -EINVAL: an index out of range (nothing was done).
     */
    int (*submit)(struct backend *be, const struct step *step, struct error *err);
    /* Moves work forward and takes up to `max` results. Returns their number; *steps_done, if not NULL, is
     * the id of the newest finished step (a step without logit rows finishes without results). With no
     * step in flight it looks whether the device is still there, and returns at once. */
    int (*poll)(struct backend *be, struct step_result *out, int max, uint64_t *steps_done,
                struct error *err);
    /* Eager: takes the step's edits and page ops; then every graph node in order; poll() gives the results
     * after the last. */
    int (*begin)(struct backend *be, const struct step *step, struct error *err);
    int (*dispatch)(struct backend *be, uint32_t node, struct error *err);
    /* Eager, of a device that goes on after dispatch() has returned (else both NULL: the call's time is the
     * node's). From the next step on, or no more, it notes when it comes to a node's launch and when it is
     * past it; then node_ns() says how long each node of the newest finished step took, in nanoseconds.
     * What that needs is taken here and kept until close. No step is in flight. */
    int (*time_nodes)(struct backend *be, bool on, struct error *err);
    int (*node_ns)(struct backend *be, uint32_t node, uint64_t *ns, struct error *err);
    /* What each op of the fused program has taken so far, in nanoseconds: n_ops of them; any thread. NULL:
     * not known of this device. */
    void (*program_ns)(const struct backend *be, uint64_t *ns);
    /* The decoder leaves the device until the next submit (cuda), which it does by itself once it has had no
     * step for park_after_ms: this is for a host that knows that none will come (executor_park()). No step is
     * in flight. On cpu the team sleeps on its futex anyway. */
    void (*park)(struct backend *be);
    /* Raw logits [n_vocab] of logit row `index` of the newest finished step, if it had STEP_EXPORT; else
     * NULL. Valid until the next submit. */
    const float *(*logits)(struct backend *be, uint32_t index);
    /* Bytes of an exported or imported page in host memory (transfer buffer), see step_page_op. */
    void *(*transfer)(struct backend *be, size_t *size);
    void (*info)(const struct backend *be, struct backend_info *out);
    void (*close)(struct backend *be); /* NULL is fine */
};

extern const struct backend_ops cpu_backend, cuda_backend;
