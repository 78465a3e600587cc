#include "delta_net.h"
#include "abi/arith.h"
#include "model/graph.h"
#include "weights.h"

#include <assert.h>
#include <string.h>

#define FETCH_HEADS 2 /* heads between the prefetched and the convolved one */

/* ---- memory ---- */

static size_t taps_floats(const struct delta_shape *s)
{
    return (size_t)s->n_taps * delta_channels(s);
}

size_t delta_state_size(const struct delta_shape *shape, uint32_t n_layers)
{
    return n_layers ? n_layers * delta_state_floats(shape) * sizeof(float) : 0;
}

size_t delta_size(const struct delta_shape *shape, uint32_t n_layers, uint32_t n_states)
{
    return n_layers
               ? n_states * delta_state_size(shape, n_layers) + n_layers * taps_floats(shape) * sizeof(float)
               : 0;
}

/* The place of a head's taps. */
static float *taps_of(const struct delta_net *d, uint32_t layer, uint32_t head)
{
    return (float *)d->taps.data + layer * taps_floats(&d->shape) +
           (size_t)delta_head_begin(&d->shape, head) * d->shape.n_taps;
}

/* Transposes a layer's taps, head by head, so that a vector of channels is one load. */
static void take_taps(const struct delta_net *d, uint32_t layer, const float *from)
{
    uint32_t n_taps = d->shape.n_taps;
    for (uint32_t h = 0; h < delta_n_heads(&d->shape); h++) {
        uint32_t width = delta_head_width(&d->shape, h);
        float *to = taps_of(d, layer, h);
        for (uint32_t c = 0; c < width; c++, from += n_taps)
            for (uint32_t j = 0; j < n_taps; j++)
                to[(size_t)j * width + c] = from[j];
    }
}

int delta_open(struct delta_net *d, const struct graph *g, const struct weights *w, uint32_t n_states,
               struct error *err)
{
    if (!d->n_layers)
        return 0;
    int rc =
        memory_map(&d->states, n_states * delta_state_size(&d->shape, d->n_layers), "recurrent states", err);
    if (rc == 0) {
        memory_promise(&d->states); /* those of snapshots are touched when they are used */
        rc = memory_map(&d->taps, d->n_layers * taps_floats(&d->shape) * sizeof(float), "convolutions", err);
    }
    for (uint32_t i = 0; i < g->n_nodes && rc == 0; i++)
        if (g->nodes[i].op == GRAPH_SSM_CONV)
            take_taps(d, g->nodes[i].cache, w->vectors[g->nodes[i].gain]);
    return rc;
}

void delta_close(struct delta_net *d)
{
    memory_unmap(&d->states);
    memory_unmap(&d->taps);
}

static float *state_of(const struct delta_net *d, uint32_t state, uint32_t layer)
{
    return (float *)d->states.data + ((size_t)state * d->n_layers + layer) * delta_state_floats(&d->shape);
}

/* ---- a step ---- */

static uint32_t group_of(const struct delta_net *d, uint32_t slot)
{
    uint32_t i = 0;
    while (i < d->n_groups && d->groups[i].slot != slot)
        i++;
    assert(i < d->n_groups); /* step_check() has found its rows */
    return i;
}

/* Inserts a save behind those of earlier rows. */
static void add_save(struct delta_net *d, const struct step *step, const struct step_page_op *op)
{
    uint32_t group = group_of(d, op->from), at = d->n_saves++;
    uint32_t after = op->host_offset - step->rows[d->groups[group].first].pos + 1;
    for (; at > 0 && d->saves[at - 1].after > after; at--)
        d->saves[at] = d->saves[at - 1];
    d->saves[at] = (struct delta_save){group, after, op->page};
}

static void plan_states(struct delta_net *d, const struct step *step)
{
    d->n_saves = 0;
    for (uint32_t i = 0; i < step->n_page_ops && d->n_layers; i++) {
        const struct step_page_op *op = &step->page_ops[i];
        if (op->kind == STEP_STATE_LOAD)
            d->groups[group_of(d, op->page)].source = op->from;
        else if (op->kind == STEP_STATE_SAVE)
            add_save(d, step, op);
    }
}

void delta_plan(struct delta_net *d, const struct step *step)
{
    d->n_groups = 0;
    for (uint32_t i = 0; i < step->n_rows && d->n_layers; i++) {
        const struct step_row *row = &step->rows[i];
        struct delta_group *last = d->n_groups ? &d->groups[d->n_groups - 1] : NULL;
        if (last && last->slot == row->slot)
            last->n++;
        else
            d->groups[d->n_groups++] = (struct delta_group){
                .slot = row->slot, .first = i, .n = 1, .source = row->slot, .begins = row->pos == 0};
    }
    plan_states(d, step);
}

/* Brings a part of a group's state, at `at` of the layer's, to what the group begins with. */
static float *begin_part(const struct delta_net *d, const struct delta_group *g, uint32_t layer, size_t at,
                         size_t bytes)
{
    float *part = state_of(d, g->slot, layer) + at;
    if (g->begins)
        memset(part, 0, bytes);
    else if (g->source != g->slot)
        memcpy(part, state_of(d, g->source, layer) + at, bytes);
    return part;
}

/* The rows of a head before a step, oldest first: where they stand in a layer's state. */
static size_t mix_at(const struct delta_net *d, uint32_t head)
{
    return (size_t)delta_head_begin(&d->shape, head) * (d->shape.n_taps - 1);
}

struct convolution {
    const struct delta_net *d;
    const struct delta_group *group;
    uint32_t column, width; /* of the head's channels */
    float *old;             /* [n_taps - 1][width] */
    struct rows in;
};

/* The head's channels in row `at` of the group; a negative one is older. */
static const float *mix_row(const struct convolution *c, int at)
{
    if (at >= 0)
        return row_at(c->in, c->group->first + (uint32_t)at) + c->column;
    return c->old + (size_t)((int)c->d->shape.n_taps - 1 + at) * c->width;
}

/* A head's memory is too short a run for the hardware to foresee. */
static void fetch_head(const struct delta_net *d, uint32_t slot, uint32_t layer, uint32_t head)
{
    uint32_t width = delta_head_width(&d->shape, head);
    rows_prefetch(state_of(d, slot, layer) + mix_at(d, head), (d->shape.n_taps - 1) * width);
    rows_prefetch(taps_of(d, layer, head), d->shape.n_taps * width);
}

/* Copies the last rows before row `at` of the group, oldest first. */
static void copy_mix(const struct convolution *c, int at, float *to)
{
    int n_old = (int)c->d->shape.n_taps - 1;
    for (int j = 0; j < n_old; j++)
        memcpy(to + (size_t)j * c->width, mix_row(c, at - n_old + j), c->width * sizeof *to);
}

/* Rows are convolved from the last to the first, since an output may overwrite its row: no earlier one needs
 * it. */
void delta_convolve(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                    struct rows out)
{
    const struct delta_group *g = &d->groups[group];
    uint32_t width = delta_head_width(&d->shape, head);
    float last[(DELTA_MAX_TAPS - 1) * DELTA_MAX_DIM];
    const float *rows[DELTA_MAX_TAPS], *taps = taps_of(d, layer, head);
    int n_old = (int)d->shape.n_taps - 1;
    size_t old_bytes = (size_t)n_old * width * sizeof *last;
    if (head + FETCH_HEADS < delta_n_heads(&d->shape))
        fetch_head(d, g->source, layer, head + FETCH_HEADS);
    float *old = begin_part(d, g, layer, mix_at(d, head), old_bytes);
    const struct convolution c = {d, g, delta_head_begin(&d->shape, head), width, old, in};
    copy_mix(&c, (int)g->n, last);
    for (uint32_t i = 0; i < d->n_saves; i++)
        if (d->saves[i].group == group)
            copy_mix(&c, (int)d->saves[i].after, state_of(d, d->saves[i].to, layer) + mix_at(d, head));
    for (int i = (int)g->n - 1; i >= 0; i--) {
        for (int j = 0; j <= n_old; j++)
            rows[j] = mix_row(&c, i - n_old + j);
        d->ops->convolve(row_at(out, g->first + (uint32_t)i) + c.column, rows, taps, d->shape.n_taps,
                         c.width);
    }
    memcpy(c.old, last, old_bytes);
}

void delta_unit_head(const struct delta_net *d, uint32_t head, float *x, float eps)
{
    const struct delta_shape *s = &d->shape;
    if (head >= 2 * s->n_key_heads)
        return;
    x += delta_head_begin(s, head);
    float r = d->ops->rms_inverse(x, s->key_dim, eps / (float)s->key_dim);
    d->ops->scale(x, x, s->key_dim,
                  head < s->n_key_heads ? delta_query_factor(s, r) : delta_key_factor(s, r));
}

void delta_activate_head(const struct delta_net *d, uint32_t head, float *x, float eps)
{
    float *at = x + delta_head_begin(&d->shape, head);
    d->ops->silu(at, at, delta_head_width(&d->shape, head));
    delta_unit_head(d, head, x, eps);
}

void delta_gates(const struct delta_shape *s, const float *a, const float *dt, const float *b,
                 const float *alpha, bool together, float *out)
{
    uint32_t n = s->n_value_heads, share = delta_share(s);
    float beta[DELTA_MAX_HEADS], decay[DELTA_MAX_HEADS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = together ? delta_together(s, i) : i;
        beta[i] = arith_sigmoid(b[at]);
        decay[i] = delta_decay(a[i], (together ? b[at + share] : alpha[i]) + dt[i]);
    }
    memcpy(out, beta, n * sizeof *out);
    memcpy(out + n, decay, n * sizeof *out);
}

static void scan_rows(const struct delta_net *d, struct ops_delta *job, uint32_t n_rows)
{
    if (n_rows == 0)
        return;
    job->n_rows = n_rows;
    d->ops->delta(job);
    job->q += n_rows * job->in_stride;
    job->k += n_rows * job->in_stride;
    job->v += n_rows * job->in_stride;
    job->beta += n_rows * job->gate_stride;
    job->decay += n_rows * job->gate_stride;
    job->out += n_rows * job->out_stride;
}

void delta_scan(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                struct rows gates, struct rows out)
{
    const struct delta_group *g = &d->groups[group];
    const struct delta_shape *s = &d->shape;
    size_t at = delta_mix_floats(s) + head * delta_head_floats(s),
           bytes = delta_head_floats(s) * sizeof(float);
    const float *row = row_at(in, g->first), *gate = row_at(gates, g->first) + head;
    uint32_t key_head = delta_key_head(s, head), done = 0;
    struct ops_delta job = {
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .state = begin_part(d, g, layer, at, bytes),
        .q = row + delta_head_begin(s, key_head),
        .k = row + delta_head_begin(s, s->n_key_heads + key_head),
        .v = row + delta_head_begin(s, 2 * s->n_key_heads + head),
        .beta = gate,
        .decay = gate + s->n_value_heads,
        .out = row_at(out, g->first) + (size_t)head * s->value_dim,
        .in_stride = in.stride,
        .gate_stride = gates.stride,
        .out_stride = out.stride,
    };
    for (uint32_t i = 0; i < d->n_saves; i++) {
        const struct delta_save *save = &d->saves[i];
        if (save->group != group)
            continue;
        scan_rows(d, &job, save->after - done);
        done = save->after;
        memcpy(state_of(d, save->to, layer) + at, job.state, bytes);
    }
    scan_rows(d, &job, g->n - done);
}
