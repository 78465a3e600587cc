/* bench_hops_figures.c - from the times of tokens to figures of their hops. */
#include "bench_hops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The columns that figures are made of. */
enum { WAY = BENCH_HOPS, BEYOND, GAP, BEYOND_GAP, N_COLUMNS };

struct table {
    const struct hops_seen *seen;
    uint32_t handed; /* the first hand-over that may have the bytes that are looked for */
    uint32_t n[N_COLUMNS];
    double *columns[N_COLUMNS]; /* us */
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int out_of_order(uint32_t token, const char *earlier, const char *later, struct error *err)
{
    return error_set(err, -EIO, "--hops: the times of token %u are out of order: %s before %s", token, later,
                     earlier);
}

/* The hand-over that completed the token's event; tokens are asked for in their order. */
static int find_handed(struct table *t, uint32_t token, uint64_t *ns, struct error *err)
{
    const struct hops_seen *s = t->seen;
    while (t->handed < s->n_handed && s->handed[t->handed].n_bytes < s->reads[token].n_bytes)
        t->handed++;
    if (t->handed == s->n_handed)
        return error_set(err, -EIO, "--hops: the client has bytes of token %u that the server never sent",
                         token);
    *ns = s->handed[t->handed].ns;
    return 0;
}

/* The moments between the hops of a token, in their order. */
struct moments {
    uint64_t before_ns; /* the step before was seen */
    uint64_t told_ns, back_ns, begun_ns, seen_ns, published_ns, turn_ns, taken_ns, handed_ns, read_ns;
    uint64_t kernel_ns, border_ns; /* between begun_ns and seen_ns; the rest is PCIe's */
};

static int look(struct table *t, uint32_t token, struct moments *m, struct error *err)
{
    const struct hops_seen *s = t->seen;
    const struct engine_times *before = &s->engine[token - 1], *own = &s->engine[token];
    const struct stream_taken *taken = &s->taken[token];
    *m = (struct moments){.before_ns = before->seen_ns,
                          .begun_ns = own->begun_ns,
                          .seen_ns = own->seen_ns,
                          .published_ns = own->published_ns,
                          .turn_ns = larger(taken->turn_ns, own->published_ns),
                          .taken_ns = taken->taken_ns,
                          .read_ns = s->reads[token].ns};
    if (s->ahead)
        m->begun_ns = larger(own->submitted_ns, before->seen_ns);
    m->told_ns = before->told_ns ? smaller(before->told_ns, m->begun_ns) : m->begun_ns;
    m->back_ns = before->back_ns ? smaller(before->back_ns, m->begun_ns) : m->begun_ns;
    uint64_t step = m->seen_ns > m->begun_ns ? m->seen_ns - m->begun_ns : 0;
    m->kernel_ns = s->kernel_ns ? smaller(s->kernel_ns, step) : own->ops_ns;
    if (m->kernel_ns > step)
        return error_set(err, -EIO, "--hops: the ops of token %u take longer than its step", token);
    m->border_ns = step - m->kernel_ns;
    if (s->kernel_ns)
        m->border_ns = smaller(s->border_ns, m->border_ns);
    return find_handed(t, token, &m->handed_ns, err);
}

static int check(const struct moments *m, uint32_t token, struct error *err)
{
    const struct {
        const char *name;
        uint64_t ns;
    } order[] = {{"the end of the step before", m->before_ns},
                 {"telling the loop", m->told_ns},
                 {"the engine's return", m->back_ns},
                 {"the step's begin", m->begun_ns},
                 {"its end", m->seen_ns},
                 {"publishing", m->published_ns},
                 {"the loop's turn", m->turn_ns},
                 {"taking the token", m->taken_ns},
                 {"the hand-over", m->handed_ns},
                 {"the client's read", m->read_ns}};
    for (size_t i = 1; i < sizeof order / sizeof *order; i++)
        if (order[i].ns < order[i - 1].ns)
            return out_of_order(token, order[i - 1].name, order[i].name, err);
    return 0;
}

static void divide(const struct moments *m, uint64_t hops[BENCH_HOPS])
{
    hops[HOP_ENGINE] = (m->told_ns - m->before_ns) + (m->begun_ns - m->back_ns);
    hops[HOP_LENT] = m->back_ns - m->told_ns;
    hops[HOP_BORDER] = m->border_ns;
    hops[HOP_PCIE] = m->seen_ns - m->begun_ns - m->kernel_ns - m->border_ns;
    hops[HOP_KERNEL] = m->kernel_ns;
    hops[HOP_PUBLISH] = m->published_ns - m->seen_ns;
    hops[HOP_WAKE] = m->turn_ns - m->published_ns;
    hops[HOP_HTTP] = m->handed_ns - m->turn_ns;
    hops[HOP_SOCKET] = m->read_ns - m->handed_ns;
}

static uint64_t sum(const uint64_t *hops, uint32_t from, uint32_t to)
{
    uint64_t all = 0;
    for (uint32_t i = from; i < to; i++)
        all += hops[i];
    return all;
}

static void put(struct table *t, uint32_t column, double ns)
{
    t->columns[column][t->n[column]++] = ns * 1e-3;
}

/* A gap needs an event of the token before. */
static void put_token(struct table *t, uint32_t token, const uint64_t hops[BENCH_HOPS])
{
    const struct hops_read *reads = t->seen->reads;
    uint64_t way = sum(hops, 0, BENCH_HOPS);
    for (uint32_t i = 0; i < BENCH_HOPS; i++)
        put(t, i, (double)hops[i]);
    put(t, WAY, (double)way);
    put(t, BEYOND, (double)(way - hops[HOP_KERNEL]));
    if (reads[token - 1].held)
        return;
    double gap = (double)(reads[token].ns - reads[token - 1].ns);
    put(t, GAP, gap);
    put(t, BEYOND_GAP, gap - (double)hops[HOP_KERNEL]);
}

/* From the stream's first event to its last. */
struct span {
    bool begun;
    uint64_t first_ns, last_ns;         /* the client's reads */
    uint64_t first_tail, last_tail;     /* how long their hops beside the next step took */
    uint64_t cycles, cycles_since_last; /* up to the last event; behind it */
};

static void span_take(struct span *s, const struct hops_read *read, uint64_t seen_ns, uint64_t cycle)
{
    s->cycles_since_last += s->begun ? cycle : 0;
    if (read->held)
        return;
    s->last_ns = read->ns;
    s->last_tail = read->ns - seen_ns;
    s->cycles += s->cycles_since_last;
    s->cycles_since_last = 0;
    if (s->begun)
        return;
    s->begun = true;
    s->first_ns = s->last_ns;
    s->first_tail = s->last_tail;
}

static int take_stream(struct table *t, uint32_t first, struct bench_hops *out, struct error *err)
{
    const struct hops_seen *s = t->seen;
    struct span span = {0};
    int rc = 0;
    if (s->reads[first].ns < s->engine[first].seen_ns)
        return out_of_order(first, "its end", "the client's read", err);
    span_take(&span, &s->reads[first], s->engine[first].seen_ns, 0);
    for (uint32_t i = first + 1; i < first + s->n_tokens; i++) {
        struct moments m;
        uint64_t hops[BENCH_HOPS];
        rc = look(t, i, &m, err);
        if (rc == 0)
            rc = check(&m, i, err);
        if (rc < 0)
            return rc;
        divide(&m, hops);
        span_take(&span, &s->reads[i], m.seen_ns, sum(hops, 0, BENCH_CYCLE_HOPS));
        out->n_held += s->reads[i].held;
        out->n_late += i + 1 < first + s->n_tokens && s->taken[i].taken_ns == s->taken[i + 1].taken_ns;
        if (!s->reads[i].held)
            put_token(t, i, hops);
    }
    out->client_ns += (int64_t)(span.last_ns - span.first_ns);
    out->cycles_ns += (int64_t)span.cycles;
    out->shift_ns += (int64_t)span.last_tail - (int64_t)span.first_tail;
    return 0;
}

/* The value that a share of all does not exceed. */
static double percentile(const double *sorted, uint32_t n, uint32_t percent)
{
    return sorted[((uint64_t)n * percent + 99) / 100 - 1];
}

static struct bench_figure figure(struct table *t, uint32_t column)
{
    double *values = t->columns[column], mean = 0;
    uint32_t n = t->n[column];
    if (n == 0)
        return (struct bench_figure){0};
    for (uint32_t i = 0; i < n; i++)
        mean += values[i] / n;
    double median = bench_median(values, n); /* sorts them */
    return (struct bench_figure){mean, median, percentile(values, n, 90), percentile(values, n, 99)};
}

static int take_all(struct table *t, struct bench_hops *out, struct error *err)
{
    const struct hops_seen *s = t->seen;
    int rc = 0;
    for (uint32_t i = 1; i < s->n_streams && rc == 0; i++)
        rc = take_stream(t, i * s->n_tokens, out, err);
    out->n_tokens = t->n[WAY];
    if (rc == 0 && out->n_tokens == 0)
        rc = error_set(err, -EINVAL, "--hops: none of the tokens has text of its own; ask for more (-n)");
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < BENCH_HOPS; i++)
        out->hops[i] = figure(t, i);
    out->way = figure(t, WAY);
    out->beyond = figure(t, BEYOND);
    out->gap = figure(t, GAP);
    out->beyond_gap = figure(t, BEYOND_GAP);
    return 0;
}

int hops_figures(const struct hops_seen *seen, struct bench_hops *out, struct error *err)
{
    struct table t = {.seen = seen};
    size_t n = (size_t)seen->n_streams * seen->n_tokens;
    double *values = calloc(n * N_COLUMNS, sizeof *values);
    if (!values)
        return error_set(err, -ENOMEM, "out of memory");
    for (uint32_t i = 0; i < N_COLUMNS; i++)
        t.columns[i] = values + i * n;
    out->n_tokens = out->n_held = out->n_late = 0;
    out->client_ns = out->cycles_ns = out->shift_ns = 0;
    int rc = take_all(&t, out, err);
    free(values);
    return rc;
}
