#include "executor.h"
#include "base/clock.h"
#include "model/model.h"
#include "model/program.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 2 /* most steps in flight */

/* Results of a finished step of eager that have not all been taken. */
struct finished {
    uint64_t step;
    uint32_t n_results, n_taken;
    struct step_result results[STEP_MAX_LOGITS];
};

struct executor {
    enum executor_kind kind;
    const struct backend_ops *ops;
    struct backend *be;
    struct graph *graph;
    struct program *program;
    /* Dispatches of eager, and the backend's count at executor_forget(). The backend counts its other
     * launches, and all launches of the other executors. */
    _Atomic uint64_t launches, forgotten;
    bool timed;
    struct executor_timing timing;
    struct finished finished[MAX_STEPS]; /* a ring; the oldest is at `first` */
    uint32_t first, n_finished;
    uint64_t newest; /* id of the newest step whose results have all been taken */
};

int executor_walk(const struct graph *g, const struct executor_walk *walk, struct error *err)
{
    int launches = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *n = &g->nodes[i];
        if (n->op == GRAPH_NONE)
            continue;
        struct error why = {0};
        uint64_t start = walk->timing ? clock_ns() : 0;
        int rc = walk->dispatch(walk->context, i, &why);
        if (rc < 0)
            return error_set(err, rc, "node %u %s (%s): %s", i, n->name, graph_op_name(n->op),
                             why.code ? why.text : strerror(-rc));
        launches++;
        if (walk->timing)
            walk->timing->node_ns[i] += clock_ns() - start;
    }
    return launches;
}

int executor_check(enum executor_kind kind, const struct backend_ops *ops, enum backend_arithmetic arithmetic,
                   struct error *err)
{
    if (kind == EXECUTOR_GRAPH && !ops->has_graph)
        return error_set(err, -EINVAL,
                         "executor graph replays CUDA graphs: backend %s has none, it needs backend cuda",
                         ops->name);
    if (arithmetic == BACKEND_EXACT && (!ops->has_exact || kind != EXECUTOR_EAGER))
        return error_set(err, -EINVAL, "arithmetic exact needs backend cpu and executor eager");
    return 0;
}

static int check_context(const struct backend_config *cfg, const struct model *m, struct error *err)
{
    uint32_t window = model_config(m)->sliding_window;
    if (window && cfg->n_ctx > window)
        return error_set(err, -ENOTSUP,
                         "%s: attention looks back %u tokens only (%s.attention.sliding_window), which is "
                         "supported up to that context; n_ctx is %u",
                         gguf_path(model_gguf(m)), window, model_arch(m)->name, cfg->n_ctx);
    return 0;
}

int executor_open(struct executor **out, enum executor_kind kind, const struct backend_ops *ops,
                  const struct backend_config *cfg, const struct model *m, struct error *err)
{
    int rc = executor_check(kind, ops, cfg->arithmetic, err);
    if (rc == 0)
        rc = check_context(cfg, m, err);
    if (rc < 0)
        return rc;
    struct executor *x = calloc(1, sizeof *x);
    if (!x)
        return error_set(err, -ENOMEM, "no memory for the executor");
    x->kind = kind;
    x->ops = ops;
    struct backend_config config = *cfg;
    config.eager = kind != EXECUTOR_PERSISTENT;
    rc = graph_open(&x->graph, m, err);
    if (rc == 0)
        rc = program_open(&x->program, x->graph, err);
    if (rc == 0)
        rc = ops->open(&x->be, &config, err);
    if (rc == 0)
        rc = ops->load(x->be, x->program, x->graph, err);
    if (rc < 0) {
        executor_close(x);
        return rc;
    }
    *out = x;
    return 0;
}

int executor_wrap(struct executor **out, struct backend *be, struct error *err)
{
    struct executor *x = calloc(1, sizeof *x);
    if (!x)
        return error_set(err, -ENOMEM, "no memory for the executor");
    assert(be->ops);
    x->kind = EXECUTOR_PERSISTENT;
    x->ops = be->ops;
    x->be = be;
    *out = x;
    return 0;
}

void executor_close(struct executor *x)
{
    if (!x)
        return;
    if (x->be)
        x->ops->close(x->be);
    program_close(x->program);
    graph_close(x->graph);
    free(x->timing.node_ns);
    free(x);
}

static int dispatch(void *context, uint32_t node, struct error *err)
{
    struct executor *x = context;
    int rc = x->ops->nodes->dispatch(x->be, node, err);
    if (rc == 0)
        atomic_fetch_add_explicit(&x->launches, 1, memory_order_relaxed);
    return rc;
}

/* Collects the results of the step that has just run, so that the next may begin. */
static int collect(struct executor *x, const struct step *step, struct error *err)
{
    struct finished *f = &x->finished[(x->first + x->n_finished) % MAX_STEPS];
    f->step = step->id;
    f->n_taken = f->n_results = 0;
    uint64_t done = 0;
    int n;
    do {
        n = x->ops->advance(x->be, f->results + f->n_results, (int)(STEP_MAX_LOGITS - f->n_results), &done,
                            err);
        f->n_results += n > 0 ? (uint32_t)n : 0;
        assert(f->n_results <= STEP_MAX_LOGITS); /* the backend keeps to the room that it is given */
    } while (n > 0 && f->n_results < step->n_logits);
    if (n < 0)
        return n;
    if (f->n_results != step->n_logits)
        return error_set(err, -EIO, "step %llu gave %u results for %u logit rows",
                         (unsigned long long)step->id, f->n_results, step->n_logits);
    x->n_finished++;
    return 0;
}

/* Adds the device's times of the step that has just ended. */
static int add_times(struct executor *x, struct error *err)
{
    for (uint32_t i = 0; i < x->graph->n_nodes; i++) {
        uint64_t ns = 0;
        if (x->graph->nodes[i].op == GRAPH_NONE)
            continue;
        int rc = x->ops->nodes->node_ns(x->be, i, &ns, err);
        if (rc < 0)
            return rc;
        x->timing.node_ns[i] += ns;
    }
    return 0;
}

static int submit_eager(struct executor *x, const struct step *step, struct error *err)
{
    if (x->n_finished == MAX_STEPS)
        return -EAGAIN;
    int rc = x->ops->nodes->begin(x->be, step, err);
    if (rc < 0)
        return rc;
    bool by_device = x->timed && x->timing.by_device;
    struct executor_walk walk = {dispatch, x, x->timed && !by_device ? &x->timing : NULL};
    rc = executor_walk(x->graph, &walk, err);
    if (rc >= 0)
        rc = collect(x, step, err);
    return rc == 0 && by_device ? add_times(x, err) : rc;
}

int executor_submit(struct executor *x, const struct step *step, struct error *err)
{
    return x->kind == EXECUTOR_EAGER ? submit_eager(x, step, err) : x->ops->submit(x->be, step, err);
}

static int take_eager(struct executor *x, struct step_result *out, int max, uint64_t *steps_done)
{
    int n = 0;
    while (x->n_finished > 0) {
        struct finished *f = &x->finished[x->first];
        for (; f->n_taken < f->n_results && n < max; f->n_taken++)
            out[n++] = f->results[f->n_taken];
        if (f->n_taken < f->n_results)
            break;
        x->newest = f->step;
        x->first = (x->first + 1) % MAX_STEPS;
        x->n_finished--;
    }
    if (steps_done)
        *steps_done = x->newest;
    return n;
}

int executor_advance(struct executor *x, struct step_result *out, int max, uint64_t *steps_done,
                     struct error *err)
{
    int n = x->kind == EXECUTOR_EAGER ? take_eager(x, out, max, steps_done)
                                      : x->ops->advance(x->be, out, max, steps_done, err);
    assert(n <= max);
    return n;
}

void executor_park(struct executor *x)
{
    if (x->ops->park)
        x->ops->park(x->be);
}

uint64_t executor_idle(struct executor *x, bool (*wanted)(void *context), void *context)
{
    return x->ops->idle ? x->ops->idle(x->be, wanted, context) : UINT64_MAX;
}

const float *executor_logits(struct executor *x, uint32_t index)
{
    return x->ops->sampling->logits(x->be, index);
}

uint32_t executor_members(const struct executor *x)
{
    struct backend_info info;
    executor_info(x, &info);
    return x->ops->sampling->share && info.n_threads ? info.n_threads : 1;
}

void executor_share(struct executor *x, void (*work)(void *context, uint32_t member), void *context)
{
    if (x->ops->sampling->share)
        x->ops->sampling->share(x->be, work, context);
    else
        work(context, 0);
}

uint32_t executor_n_hidden(const struct executor *x)
{
    bool keeps = x->kind == EXECUTOR_PERSISTENT && x->ops->sampling->hidden && x->graph;
    return keeps ? model_config(x->graph->model)->n_embd : 0;
}

void executor_hidden(struct executor *x, uint32_t row, float *out)
{
    assert(executor_n_hidden(x));
    x->ops->sampling->hidden(x->be, row, out);
}

const struct graph *executor_graph(const struct executor *x)
{
    return x->graph;
}

const struct program *executor_program(const struct executor *x)
{
    return x->program;
}

struct backend *executor_backend(struct executor *x)
{
    return x->be;
}

enum executor_kind executor_kind(const struct executor *x)
{
    return x->kind;
}

void executor_forget(struct executor *x)
{
    struct backend_info info;
    x->ops->info(x->be, &info);
    atomic_store_explicit(&x->launches, 0, memory_order_relaxed);
    if (x->kind != EXECUTOR_PERSISTENT)
        atomic_store_explicit(&x->forgotten, info.launches, memory_order_relaxed);
}

/* Dense weights are read for 64 rows. Of a mixture such a step would read nearly all experts for few rows
 * each, so there it is as many as give an expert EXPERT_ROWS by mean, within MOST_OF_A_PASS. */
static uint32_t rows_of_a_pass(const struct graph *g)
{
    enum { DENSE = 64, EXPERT_ROWS = 16, MOST_OF_A_PASS = 256 };
    const struct model_experts *e = &model_config(g->model)->experts;
    uint32_t rows = e->n_experts ? EXPERT_ROWS * e->n_experts / e->n_used : DENSE;
    return rows < DENSE ? DENSE : rows > MOST_OF_A_PASS ? MOST_OF_A_PASS : rows;
}

void executor_info(const struct executor *x, struct backend_info *out)
{
    x->ops->info(x->be, out);
    if (x->graph)
        out->rows_of_a_pass = rows_of_a_pass(x->graph);
    if (x->kind == EXECUTOR_PERSISTENT)
        return;
    out->launches += atomic_load_explicit(&x->launches, memory_order_relaxed) -
                     atomic_load_explicit(&x->forgotten, memory_order_relaxed);
    out->ops_per_step = graph_n_launches(x->graph);
}

bool executor_program_ns(const struct executor *x, uint64_t *ns)
{
    if (x->kind != EXECUTOR_PERSISTENT || !x->ops->trace || !x->ops->trace->program_ns)
        return false;
    if (ns)
        x->ops->trace->program_ns(x->be, ns);
    return true;
}

static int check_trace(const struct executor *x, struct error *err)
{
    if (x->kind == EXECUTOR_PERSISTENT && x->ops->trace && x->ops->trace->trace)
        return 0;
    return error_set(err, -ENOTSUP, "only executor persistent can be traced");
}

int executor_trace(struct executor *x, bool on, struct error *err)
{
    int rc = check_trace(x, err);
    return rc < 0 ? rc : x->ops->trace->trace(x->be, on, err);
}

int executor_traced(struct executor *x, struct trace *out, struct error *err)
{
    int rc = check_trace(x, err);
    return rc < 0 ? rc : x->ops->trace->traced(x->be, out, err);
}

int executor_time_ops(struct executor *x, bool on, struct error *err)
{
    if (on && !x->timing.node_ns)
        x->timing.node_ns = calloc(x->graph->n_nodes, sizeof *x->timing.node_ns);
    if (on && !x->timing.node_ns)
        return error_set(err, -ENOMEM, "no memory for the times of %u nodes", x->graph->n_nodes);
    int rc = x->kind == EXECUTOR_EAGER && x->ops->nodes->time ? x->ops->nodes->time(x->be, on, err) : 0;
    if (rc < 0)
        return rc;
    x->timed = on;
    x->timing.by_device = x->ops->nodes && x->ops->nodes->time;
    return 0;
}

const struct executor_timing *executor_timing(const struct executor *x)
{
    return &x->timing;
}

bool executor_masks(struct executor *x, const uint32_t *masks, uint32_t n, uint32_t words)
{
    if (!x->ops->sampling->masks)
        return false;
    x->ops->sampling->masks(x->be, masks, n, words);
    return true;
}
