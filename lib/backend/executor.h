/* executor.h - runs steps on a backend: node by node (eager, graph) or as the fused program (persistent).
 * All kinds give the same bits. The engine calls only this interface, never a backend's table. Eager
 * validates the graph, launches one dispatch per node, counts launches, stops at the first error and returns
 * it with the node's name. With timing on it sums the time of each op, by the device's own clock where the
 * backend has one.
 * Thread: one at a time (open: the loader's; then the engine's); executor_info(), executor_forget(),
 * executor_program_ns() and the constant accessors from any. Memory: allocated in executor_open(); the
 * executor owns backend, graph and program. Errors: a negative errno with words. */
#pragma once
#include "backend.h"
#include "model/graph.h"
#include "trace.h"

enum executor_kind { EXECUTOR_PERSISTENT, EXECUTOR_EAGER, EXECUTOR_GRAPH /* cuda only */ };

struct executor;

/* Eager only: time in ns of each node, since timing was first turned on. */
struct executor_timing {
    bool by_device;    /* from the device's start of a node to its end; else the duration of the call */
    uint64_t *node_ns; /* [n_nodes]; NULL: timing was never turned on */
};

/* Eager execution of a graph: calls `dispatch` (one launch) for every node but NONE, in order. Returns the
 * number of launches or the first error, whose words begin with the node's name; no node after it runs.
 * `timing` may be NULL, its node_ns not. The graph must be validated. */
struct executor_walk {
    int (*dispatch)(void *context, uint32_t node, struct error *err);
    void *context;
    struct executor_timing *timing;
};
int executor_walk(const struct graph *g, const struct executor_walk *walk, struct error *err);

/* Checks that a backend supports an executor, for any model. EXECUTOR_GRAPH on cpu, and BACKEND_EXACT with
 * anything but eager on cpu, are -EINVAL with words. */
int executor_check(enum executor_kind kind, const struct backend_ops *ops, enum backend_arithmetic arithmetic,
                   struct error *err);
/* Opens `ops` with `cfg` (cfg->eager is set from `kind`), builds graph and program of the model, and loads.
 * The model must outlive the executor. -EINVAL: executor_check() refuses; -ENOTSUP: a context above the
 * model's sliding window; or the backend's error. */
int executor_open(struct executor **out, enum executor_kind kind, const struct backend_ops *ops,
                  const struct backend_config *cfg, const struct model *m, struct error *err);
/* Wraps a backend that is open and loaded, without graph and program (they are NULL): for tests with a
 * decoder of their own. Persistent only. The executor closes the backend; on failure the caller keeps it. */
int executor_wrap(struct executor **out, struct backend *be, struct error *err);
void executor_close(struct executor *x); /* NULL is fine */

/* Calls submit and advance of the backend. Eager runs the whole step inside submit and keeps the results of
 * at most two steps for advance (then -EAGAIN). */
int executor_submit(struct executor *x, const struct step *step, struct error *err);
int executor_advance(struct executor *x, struct step_result *out, int max, uint64_t *steps_done,
                     struct error *err);
/* See backend_sampling_ops.masks. False: the backend has none. Between steps. */
bool executor_masks(struct executor *x, const uint32_t *masks, uint32_t n, uint32_t words);
/* Stops the decoder until the next step. Call while no step is in flight and none is expected. */
void executor_park(struct executor *x);
/* See backend_ops.idle; UINT64_MAX where the backend has none. */
uint64_t executor_idle(struct executor *x, bool (*wanted)(void *context), void *context);
/* See backend_ops.logits. */
const float *executor_logits(struct executor *x, uint32_t index);
/* The number of threads that executor_share() runs work on, the calling one included; 1: it alone. */
uint32_t executor_members(const struct executor *x);
/* See backend_sampling_ops.share; without a team the calling thread does the work as member 0. */
void executor_share(struct executor *x, void (*work)(void *context, uint32_t member), void *context);
/* The width of a hidden state; 0: this executor keeps none (all but persistent on cpu). executor_hidden():
 * see backend_sampling_ops.hidden; only where there is one. */
uint32_t executor_n_hidden(const struct executor *x);
void executor_hidden(struct executor *x, uint32_t row, float *out);

const struct graph *executor_graph(const struct executor *x);
const struct program *executor_program(const struct executor *x);
struct backend *executor_backend(struct executor *x);
enum executor_kind executor_kind(const struct executor *x);
void executor_forget(struct executor *x); /* resets the launch count of eager and graph; any thread */
void executor_info(const struct executor *x, struct backend_info *out); /* launches as in /stats */

/* Writes the time in ns that each op of the fused program has taken in all steps so far, [program->n_ops] of
 * them, to `ns`, which may be NULL. False: this executor does not measure it (all but persistent on cpu).
 * While a step runs the values may mix two steps. The first op includes the time to wake the team. */
bool executor_program_ns(const struct executor *x, uint64_t *ns);

/* Turns the notes of trace.h on or off, between two steps. -ENOTSUP: this executor keeps none (all but
 * persistent). executor_traced() returns those of the newest step with rows; call trace_close() on them. */
int executor_trace(struct executor *x, bool on, struct error *err);
int executor_traced(struct executor *x, struct trace *out, struct error *err);

/* Turns timing on or off. Eager, between two steps. Returns 0, -ENOMEM, or the backend's error. */
int executor_time_ops(struct executor *x, bool on, struct error *err);
const struct executor_timing *executor_timing(const struct executor *x);
