/* The trace of a step: figures by kind of op, and a file for a viewer of Chrome's trace format
 * (chrome://tracing, ui.perfetto.dev): a process for each test, a thread for each member. The format is
 * "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. */
#include "bench.h"
#include "backend/executor.h"
#include "model/program.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- figures ---- */

/* The values of an op, by member, and where they are sorted. */
struct scratch {
    double *wait, *work, *end; /* [n_members]: us */
};

/* The times of all members in one op. */
static struct bench_traced_op look_at_op(const struct trace *t, uint32_t op, struct scratch *s)
{
    struct bench_traced_op out = {0};
    double latest = 0;
    uint32_t n = 0;

    for (uint32_t m = 0; m < t->n_members; m++) {
        const struct trace_mark *mark = trace_mark(t, m, op);
        if (!mark->end_ns)
            continue;
        s->wait[n] = (double)trace_waited(mark) * 1e-3;
        s->work[n] = (double)(mark->end_ns - mark->begin_ns) * 1e-3 - s->wait[n];
        s->end[n] = (double)mark->end_ns * 1e-3;
        if (s->end[n] > latest) {
            latest = s->end[n];
            out.last = m;
        }
        n++;
    }
    if (n == 0)
        return out;
    out.n = 1;
    out.wait_us = bench_median(s->wait, n);
    out.work_us = bench_median(s->work, n);
    out.skew_us = latest - bench_median(s->end, n);
    return out;
}

/* The member that was last most often, among the looks of one kind of op. */
static void find_last(struct bench_traced_op *out, const struct bench_traced_op *looks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t times = 0;
        for (uint32_t k = 0; k < n; k++)
            times += looks[k].last == looks[i].last;
        if (times > out->n_last) {
            out->n_last = times;
            out->last = looks[i].last;
        }
    }
}

static double median_of(const struct bench_traced_op *looks, uint32_t n, size_t offset, double *values)
{
    for (uint32_t i = 0; i < n; i++)
        values[i] = *(const double *)(const void *)((const char *)&looks[i] + offset);
    return bench_median(values, n);
}

/* Medians over the layers. looks: [n] of one kind; values: room for n. */
static void sum_up(struct bench_traced_op *out, const struct bench_traced_op *looks, uint32_t n,
                   double *values)
{
    out->n = n;
    out->wait_us = median_of(looks, n, offsetof(struct bench_traced_op, wait_us), values);
    out->work_us = median_of(looks, n, offsetof(struct bench_traced_op, work_us), values);
    out->skew_us = median_of(looks, n, offsetof(struct bench_traced_op, skew_us), values);
    find_last(out, looks, n);
}

/* The index of the first op of the same name as op `i`. */
static uint32_t first_of_kind(const struct executor *x, uint32_t i)
{
    char name[BENCH_OP_NAME], other[BENCH_OP_NAME];

    bench_op_name(x, i, name);
    for (uint32_t k = 0; k < i; k++) {
        bench_op_name(x, k, other);
        if (strcmp(name, other) == 0)
            return k;
    }
    return i;
}

static void gather(struct bench_trace *out, const struct executor *x, const struct trace *t,
                   struct scratch *s, struct bench_traced_op *looks, uint32_t *kinds)
{
    double *values = s->wait; /* free by then; looked at per kind: n_ops of room */

    for (uint32_t i = 0; i < t->n_ops; i++)
        kinds[i] = first_of_kind(x, i);
    for (uint32_t i = 0; i < t->n_ops && out->n < BENCH_MAX_OPS; i++) {
        uint32_t n = 0;
        for (uint32_t k = i; k < t->n_ops && kinds[i] == i; k++) {
            looks[n] = kinds[k] == i ? look_at_op(t, k, s) : (struct bench_traced_op){0};
            n += looks[n].n;
        }
        if (n == 0)
            continue;
        bench_op_name(x, i, out->ops[out->n].name);
        sum_up(&out->ops[out->n++], looks, n, values);
    }
}

static int summarise(struct bench_trace *out, const struct executor *x, const struct trace *t,
                     struct error *err)
{
    uint32_t room = t->n_members > t->n_ops ? t->n_members : t->n_ops;
    struct scratch s = {calloc(room, sizeof(double)), calloc(room, sizeof(double)),
                        calloc(room, sizeof(double))};
    struct bench_traced_op *looks = calloc(t->n_ops + 1, sizeof *looks);
    uint32_t *kinds = calloc(t->n_ops, sizeof *kinds);
    int rc = 0;

    out->step = t->step;
    out->n_members = t->n_members;
    if (s.wait && s.work && s.end && looks && kinds)
        gather(out, x, t, &s, looks, kinds);
    else
        rc = error_set(err, -ENOMEM, "out of memory");
    free(s.wait);
    free(s.work);
    free(s.end);
    free(looks);
    free(kinds);
    return rc;
}

/* ---- the file ---- */

static void put_event(struct bench_trace_file *to, json_t *event)
{
    fputs(to->n_events++ ? ",\n" : "[\n", to->f);
    json_dumpf(event, to->f, JSON_REAL_PRECISION(9) | JSON_COMPACT);
    json_decref(event);
}

static void put_name(struct bench_trace_file *to, const char *what, uint32_t member, const char *name)
{
    put_event(to, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M", "pid", (int)to->n_tests,
                            "tid", (int)member, "args", "name", name));
}

struct slice {
    const char *name, *kind; /* kind: "work" or "wait" */
    uint32_t member, op;
    uint64_t begin_ns, end_ns, origin_ns;
};

static void put_slice(struct bench_trace_file *to, const struct slice *s)
{
    put_event(to, json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:i, s:{s:i}}", "name", s->name, "cat", s->kind,
                            "ph", "X", "ts", (double)(s->begin_ns - s->origin_ns) * 1e-3, "dur",
                            (double)(s->end_ns - s->begin_ns) * 1e-3, "pid", (int)to->n_tests, "tid",
                            (int)s->member, "args", "op", (int)s->op));
}

/* An op as a slice, with its waits inside. */
static void put_mark(struct bench_trace_file *to, const struct trace_mark *mark, struct slice s)
{
    s.kind = "work";
    s.begin_ns = mark->begin_ns;
    s.end_ns = mark->end_ns;
    put_slice(to, &s);
    s.name = s.kind = "wait";
    for (uint32_t i = 0; i < mark->n_waits; i++) {
        s.begin_ns = mark->wait_ns[i][0];
        s.end_ns = mark->wait_ns[i][1];
        put_slice(to, &s);
    }
}

static uint64_t earliest(const struct trace *t)
{
    uint64_t ns = UINT64_MAX;

    for (size_t i = 0; i < (size_t)t->n_members * t->n_ops; i++)
        if (t->marks[i].end_ns && t->marks[i].begin_ns < ns)
            ns = t->marks[i].begin_ns;
    return ns;
}

static uint64_t latest(const struct trace *t)
{
    uint64_t ns = 0;

    for (size_t i = 0; i < (size_t)t->n_members * t->n_ops; i++)
        ns = t->marks[i].end_ns > ns ? t->marks[i].end_ns : ns;
    return ns;
}

/* What the border does before the first op and behind the last one. */
static void put_border(struct bench_trace_file *to, const struct trace *t, uint64_t origin_ns)
{
    struct slice s = {.name = "publish", .kind = "work", .member = t->n_members, .origin_ns = origin_ns};

    put_name(to, "thread_name", t->n_members, "border");
    s.begin_ns = t->ready_ns;
    s.end_ns = earliest(t) > t->ready_ns ? earliest(t) : t->ready_ns; /* clocks are aligned, not equal */
    put_slice(to, &s);
    s.name = "end";
    s.op = t->n_ops - 1;
    s.end_ns = t->ended_ns;
    s.begin_ns = latest(t) < t->ended_ns ? latest(t) : t->ended_ns;
    put_slice(to, &s);
}

static void put_trace(struct bench_trace_file *to, const struct executor *x, const struct trace *t,
                      const char *test)
{
    char name[BENCH_OP_NAME];
    bool cpu = !to->blocks;

    to->n_tests++;
    put_name(to, "process_name", 0, test);
    for (uint32_t m = 0; m < t->n_members; m++) {
        snprintf(name, sizeof name, "%s %u", cpu ? "thread" : "block", m);
        put_name(to, "thread_name", m, name);
    }
    struct slice s = {.name = name, .origin_ns = t->ready_ns ? t->ready_ns : earliest(t)};
    if (t->ready_ns)
        put_border(to, t, s.origin_ns);
    for (s.op = 0; s.op < t->n_ops; s.op++) {
        bench_op_name(x, s.op, name);
        for (s.member = 0; s.member < t->n_members; s.member++)
            if (trace_mark(t, s.member, s.op)->end_ns)
                put_mark(to, trace_mark(t, s.member, s.op), s);
    }
}

int bench_trace_open(struct bench_trace_file *to, const char *path, struct error *err)
{
    *to = (struct bench_trace_file){.f = fopen(path, "we"), .path = path};
    return to->f ? 0 : error_set(err, -EINVAL, "--trace: %s: %s", path, strerror(errno));
}

int bench_trace_close(struct bench_trace_file *to, struct error *err)
{
    if (!to->f)
        return 0;
    fputs(to->n_events ? "\n]\n" : "[]\n", to->f);
    bool failed = ferror(to->f);
    failed |= fclose(to->f) != 0;
    to->f = NULL;
    return failed ? error_set(err, -EIO, "--trace: %s cannot be written", to->path) : 0;
}

/* ---- a test ---- */

static int start(void *context, struct executor *x, struct error *err)
{
    (void)context;
    return executor_trace(x, true, err);
}

static int take(void *context, struct executor *x, struct error *err)
{
    return executor_traced(x, context, err);
}

int bench_traced_step(struct offline *o, const struct config *cfg, const struct bench_test *test,
                      struct bench_traced_step *out, struct error *err)
{
    struct trace t = {0};
    struct bench_row row;
    int rc = offline_pause(o, cfg, start, NULL, err);

    if (rc == 0)
        rc = bench_measure(o, test, 1, NULL, &row, err);
    if (rc == 0)
        rc = offline_pause(o, cfg, take, &t, err);
    if (rc < 0)
        return rc;
    uint64_t first = earliest(&t), last = latest(&t), bordered = t.ended_ns - t.ready_ns;
    out->ops_ns = last > first ? last - first : 0;
    out->border_ns = bordered > out->ops_ns ? bordered - out->ops_ns : 0;
    trace_close(&t);
    return 0;
}

int bench_trace(struct offline *o, const struct config *cfg, const struct bench_test *test,
                struct bench_trace_file *to, struct bench_trace *out, struct error *err)
{
    struct trace t = {0};
    struct backend_info info;
    struct bench_row row;

    *out = (struct bench_trace){0};
    bench_test_name(test, out->test, sizeof out->test);
    int rc = offline_pause(o, cfg, start, NULL, err);
    if (rc == 0)
        rc = bench_measure(o, test, 1, NULL, &row, err);
    if (rc == 0)
        rc = offline_pause(o, cfg, take, &t, err);
    if (rc == 0) {
        executor_info(o->runtime.executor, &info);
        to->blocks = info.memory_total > 0;
        rc = summarise(out, o->runtime.executor, &t, err);
        put_trace(to, o->runtime.executor, &t, out->test);
    }
    trace_close(&t);
    return rc;
}
