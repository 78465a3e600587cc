/* executor.h - how a step is run: node by node (eager) or as the fused program (persistent). Both give the
 * same bits. The engine talks to this, never to a backend's table. Eager validates the graph, launches one
 * dispatch per node, counts launches, stops at the first error and returns it with the node's name; with
 * timing on it keeps the elapsed time per op, by the device's own clock where the backend has one. Thread:
 * engine only, except executor_info(). */
#pragma once
#include "backend.h"
#include "model/graph.h"

enum executor_kind { EXECUTOR_PERSISTENT, EXECUTOR_EAGER, EXECUTOR_GRAPH /* cuda only */ };

struct executor;

/* Eager only: nanoseconds and launches of each op kind since the start, once switched on. */
struct executor_timing {
    bool by_device; /* from the moment the device came to a node to that when it was past it; else of the call
                     */
    uint64_t launches[GRAPH_N_OPS];
    uint64_t ns[GRAPH_N_OPS];
    uint64_t *node_ns; /* [n_nodes], or NULL: not wanted */
};

/* The walk eager is made of: every node but NONE, in order, one call of `dispatch` (one launch) each. Returns
 * the number of launches, or the first error, whose words then begin with the node's name; no node after it
 * runs. `timing` may be NULL. The graph has been validated. */
struct executor_walk {
    int (*dispatch)(void *context, uint32_t node, struct error *err);
    void *context;
    struct executor_timing *timing;
};
int executor_walk(const struct graph *g, const struct executor_walk *walk, struct error *err);

/* Whether the backend can be run so, whatever the model. EXECUTOR_GRAPH on cpu and BACKEND_EXACT with
 * anything but eager on cpu are -EINVAL with words. */
int executor_check(enum executor_kind kind, const struct backend_ops *ops, enum backend_arithmetic arithmetic,
                   struct error *err);
/* Opens `ops` with `cfg` (cfg->eager is set from `kind`), builds graph and program of the model, loads. The
 * model must outlive the executor. What executor_check() refuses is -EINVAL; a context above the model's
 * sliding window is -ENOTSUP. */
int executor_open(struct executor **out, enum executor_kind kind, const struct backend_ops *ops,
                  const struct backend_config *cfg, const struct model *m, struct error *err);
/* Around a backend that is open and loaded already, without graph and program (they are NULL then): for tests
 * that bring their own decoder. Persistent only. The executor closes the backend; on failure the caller
 * keeps it. */
int executor_wrap(struct executor **out, struct backend *be, struct error *err);
void executor_close(struct executor *x); /* NULL is fine */

/* As backend submit/poll; eager runs the whole step inside submit and keeps its results for poll, of at most
 * two steps (then -EAGAIN). */
int executor_submit(struct executor *x, const struct step *step, struct error *err);
int executor_poll(struct executor *x, struct step_result *out, int max, uint64_t *steps_done,
                  struct error *err);
/* No step is in flight and none will come for now: the decoder leaves the device until the next one. */
void executor_park(struct executor *x);
const float *executor_logits(struct executor *x, uint32_t index);

const struct graph *executor_graph(const struct executor *x);
const struct program *executor_program(const struct executor *x);
struct backend *executor_backend(struct executor *x);
enum executor_kind executor_kind(const struct executor *x);
void executor_forget(
    struct executor *x); /* but for persistent the launches so far do not count; any thread */
void executor_info(const struct executor *x, struct backend_info *out); /* launches as /stats counts them */

/* Nanoseconds that each op of the fused program has taken in all steps so far, [program->n_ops] of them into
 * `ns`, or nothing when it is NULL. False: this decoder does not tell (anything but cpu, persistent). While a
 * step runs they may be of two steps. The first op's hold what it takes to wake the team. */
bool executor_program_ns(const struct executor *x, uint64_t *ns);

/* Eager, between two steps. -ENOMEM. */
int executor_time_ops(struct executor *x, bool on, struct error *err);
const struct executor_timing *executor_timing(const struct executor *x);
