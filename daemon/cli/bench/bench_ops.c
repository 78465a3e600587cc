/* The time of a step by op, beside the bytes and operations of each. */
#include "bench.h"
#include "backend/executor.h"
#include "model/graph.h"
#include "model/model.h"
#include "model/program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- what an op is for ---- */

/* Per step. */
struct work {
    double rows, logit_rows, past; /* past: tokens before a row, on average */
    uint32_t kv_type;              /* enum kv_type */
    bool reads_kv;                 /* a text does; a prompt's rows find keys and values in the CPU's caches */
    double state_bytes;            /* of a sequence's states, per recurrent layer; 0: as above */
};

/* The op of that name, which is new when there is none; ops without room share the last one. */
static struct bench_op *find(struct bench_ops *all, const char *name)
{
    for (uint32_t i = 0; i < all->n; i++)
        if (strcmp(all->ops[i].name, name) == 0)
            return &all->ops[i];
    struct bench_op *op = &all->ops[all->n < BENCH_MAX_OPS ? all->n++ : BENCH_MAX_OPS - 1];
    if (!op->name[0])
        snprintf(op->name, sizeof op->name, "%s", name);
    return op;
}

/* "attn_q" of "blk.3.attn_q.weight". */
static void put_part(char *out, size_t room, const char *name)
{
    size_t n = strlen(name), tail = strlen(".weight");
    if (strncmp(name, "blk.", 4) == 0 && strchr(name + 4, '.')) {
        const char *part = strchr(name + 4, '.') + 1;
        n -= (size_t)(part - name);
        name = part;
    }
    if (n > tail && strcmp(name + n - tail, ".weight") == 0)
        n -= tail;
    size_t at = strlen(out);
    snprintf(out + at, room - at, "%s%.*s", strchr(out, ' ') ? "+" : " ", (int)n, name);
}

static void add_gather(struct bench_op *op, const struct weight *w, double rows)
{
    op->bytes += (double)bench_weight_bytes(w) / w->n * rows;
}

static void add_product(struct bench_op *op, const struct weight *w, double rows)
{
    op->bytes += (double)bench_weight_bytes(w);
    *(bench_is_int8(w->type) ? &op->int8_ops : &op->float_ops) += 2.0 * w->n * w->k * rows;
}

static void add_experts(struct bench_op *op, const struct weight *w, const struct route_rule *r, double rows)
{
    double part = (double)r->n_used / r->n_experts;
    op->bytes += (double)bench_weight_bytes(w) * bench_experts_read(r, rows);
    *(bench_is_int8(w->type) ? &op->int8_ops : &op->float_ops) += 2.0 * w->n * w->k * part * rows;
}

static void add_attention(struct bench_op *op, const struct work *work, uint32_t width,
                          const struct model_attention *kind)
{
    if (work->reads_kv)
        op->bytes += bench_seen_bytes(kind, work->kv_type, work->past) * work->rows;
    op->float_ops += 4.0 * width * bench_seen(kind, work->past) * work->rows;
    op->bf16 = work->kv_type == KV_BF16;
}

static void put_op_name(char out[BENCH_OP_NAME], const struct graph *g, const struct program_op *op)
{
    snprintf(out, BENCH_OP_NAME, "%s", program_opcode_name(op->opcode));
    for (uint32_t m = 0; op->opcode != PROGRAM_EMBED && m < op->n_weights; m++)
        put_part(out, BENCH_OP_NAME, model_weight(g->model, op->weight[m])->name);
}

void bench_op_name(const struct executor *x, uint32_t i, char out[BENCH_OP_NAME])
{
    put_op_name(out, executor_graph(x), &executor_program(x)->ops[i]);
}

static void add_program_op(struct bench_ops *all, const struct graph *g, const struct program *p, uint32_t i,
                           const struct work *work, double us)
{
    const struct program_op *op = &p->ops[i];
    char name[BENCH_OP_NAME];
    put_op_name(name, g, op);
    struct bench_op *out = find(all, name);
    out->n++;
    out->us += us;
    if (op->opcode == PROGRAM_EMBED)
        add_gather(out, model_weight(g->model, op->weight[0]), work->rows);
    for (uint32_t m = 0; (op->opcode == PROGRAM_MATMUL || op->opcode == PROGRAM_HEADS) && m < op->n_weights;
         m++)
        if (!(op->flags & PROGRAM_HEAD) || work->logit_rows > 0)
            add_product(out, model_weight(g->model, op->weight[m]),
                        op->flags & PROGRAM_HEAD ? work->logit_rows : work->rows);
    for (uint32_t m = 0; op->opcode == PROGRAM_EXPERTS && m < op->n_weights; m++)
        add_experts(out, model_weight(g->model, op->weight[m]), &op->route, work->rows);
    if (op->opcode == PROGRAM_ATTEND)
        add_attention(out, work, op->n[0], &model_config(g->model)->kinds[op->kind]);
    if (op->opcode == PROGRAM_DELTA)
        out->bytes += 2 * work->state_bytes * work->rows; /* read and written */
}

static void add_node(struct bench_ops *all, const struct graph *g, uint32_t i, const struct work *work,
                     double us)
{
    const struct graph_node *node = &g->nodes[i];
    char name[sizeof all->ops->name] = "";
    if (node->op == GRAPH_NONE)
        return;
    snprintf(name, sizeof name, "%s", graph_op_name(node->op));
    bool product = node->op == GRAPH_MUL_MAT || node->op == GRAPH_MUL_MAT_HEADS;
    if (product || node->op == GRAPH_MUL_MAT_ID)
        put_part(name, sizeof name, node->name);
    struct bench_op *out = find(all, name);
    out->n++;
    out->us += us;
    if (node->op == GRAPH_EMBED)
        add_gather(out, model_weight(g->model, node->weight), work->rows);
    if (product && (!node->head || work->logit_rows > 0))
        add_product(out, model_weight(g->model, node->weight), node->head ? work->logit_rows : work->rows);
    if (node->op == GRAPH_MUL_MAT_ID)
        add_experts(out, model_weight(g->model, node->weight), &node->route, work->rows);
    if (node->op == GRAPH_SOFT_MAX)
        add_attention(out, work, node->width, &model_config(g->model)->kinds[node->kind]);
    if (node->op == GRAPH_DELTA_NET)
        out->bytes += 2 * work->state_bytes * work->rows;
}

const char *bench_op_bound(const struct bench_op *op, const struct bench_roofline *roofline, double *fraction)
{
    bool bf16 = op->bf16 && roofline->bf16_tflops > 0;
    const struct {
        const char *name;
        double work, limit; /* per second, in the same unit */
    } bounds[] = {
        {"read", op->bytes * 1e-9, roofline->read_gbps},
        {"int8", op->int8_ops * 1e-12, roofline->int8_tops},
        {bf16 ? "bf16" : "f32", op->float_ops * 1e-12, bf16 ? roofline->bf16_tflops : roofline->f32_tflops}};
    const char *nearest = NULL;
    *fraction = 0;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        double reached =
            op->us > 0 && bounds[i].limit > 0 ? bounds[i].work / op->us * 1e6 / bounds[i].limit : 0;
        if (reached > *fraction) {
            *fraction = reached;
            nearest = bounds[i].name;
        }
    }
    return nearest;
}

/* ---- measuring ---- */

/* The counters at one measurement of the limits: the first one comes after the run that does not count. */
struct progress {
    uint64_t *ns;                  /* [n_times] */
    uint64_t steps, prompt_tokens; /* the tokens that were computed, not found in the cache */
};

struct watch {
    struct offline *o;
    const struct bench_limits *limits;
    struct bench_roofline sum;
    uint32_t n_looks, n_times;
    struct progress first, last;
};

static void note(struct watch *w, struct progress *p)
{
    const struct executor *x = w->o->runtime.executor;
    struct engine_stats s;
    engine_stats(w->o->engine, &s);
    p->steps = s.steps;
    p->prompt_tokens = s.prompt_tokens - s.cached_tokens;
    if (!executor_program_ns(x, p->ns))
        memcpy(p->ns, executor_timing(x)->node_ns, w->n_times * sizeof *p->ns);
}

static struct bench_roofline look(void *context)
{
    struct watch *w = context;
    note(w, w->n_looks++ ? &w->last : &w->first);
    struct bench_roofline now = w->limits ? w->limits->look(w->limits->context) : (struct bench_roofline){0};
    bench_roofline_add(&w->sum, &now, 1);
    return now;
}

static void gather(struct bench_ops *out, const struct watch *w, const struct bench_test *test,
                   uint32_t repetitions)
{
    const struct executor *x = w->o->runtime.executor;
    const struct graph *g = executor_graph(x);
    struct backend_info info;
    executor_info(x, &info);
    double texts = test->prefill ? 0 : (double)test->batch * repetitions, steps = (double)out->steps;
    double rows = (double)(w->last.prompt_tokens - w->first.prompt_tokens) + texts * test->n_tokens;
    struct work work = {.rows = rows / steps,
                        .logit_rows = texts * (test->n_tokens + 1) / steps,
                        .past = test->depth + test->n_tokens / 2.0,
                        .kv_type = info.kv.type,
                        .reads_kv = !test->prefill};
    const struct model_config *c = model_config(g->model);
    if (c->n_recurrent && !test->prefill)
        work.state_bytes = (double)model_state_size(c) / c->n_recurrent;
    out->rows = work.rows;
    for (uint32_t i = 0; i < w->n_times; i++) {
        double us = (double)(w->last.ns[i] - w->first.ns[i]) * 1e-3 / steps;
        if (out->executor == EXECUTOR_PERSISTENT)
            add_program_op(out, g, executor_program(x), i, &work, us);
        else
            add_node(out, g, i, &work, us);
    }
}

int bench_measure_ops(struct offline *o, const struct bench_test *test, uint32_t repetitions,
                      const struct bench_limits *limits, struct bench_ops *out, struct error *err)
{
    const struct executor *x = o->runtime.executor;
    struct watch w = {.o = o, .limits = limits};
    struct bench_row row;
    *out = (struct bench_ops){.executor = (int)executor_kind(x)};
    bench_test_name(test, out->test, sizeof out->test);
    if (test->batch > 1 && test->depth > 0)
        return 0;
    out->by_device = out->executor == EXECUTOR_EAGER && executor_timing(x)->by_device;
    w.n_times =
        out->executor == EXECUTOR_PERSISTENT ? executor_program(x)->n_ops : executor_graph(x)->n_nodes;
    w.first.ns = calloc(w.n_times, sizeof *w.first.ns);
    w.last.ns = calloc(w.n_times, sizeof *w.last.ns);
    int rc = w.first.ns && w.last.ns ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (rc == 0)
        rc = bench_measure(o, test, repetitions, &(struct bench_limits){look, &w}, &row, err);
    if (rc == 0) {
        out->steps = w.last.steps - w.first.steps;
        bench_roofline_add(&out->roofline, &w.sum, 1.0 / w.n_looks);
        gather(out, &w, test, repetitions);
    }
    free(w.first.ns);
    free(w.last.ns);
    return rc;
}
