#include "delta_net.h"
#include "abi/arith.h"
#include "model/graph.h"
#include "weights.h"

#include <string.h>

/* ---- memory ---- */

static size_t taps_floats(const struct delta_shape *s)
{
    return (size_t)s->n_taps * delta_channels(s);
}

size_t delta_size(const struct delta_shape *shape, uint32_t n_layers, uint32_t n_slots)
{
    return n_layers ? n_layers * (n_slots * delta_state_floats(shape) + taps_floats(shape)) * sizeof(float)
                    : 0;
}

/* Transposes a layer's taps, so that a vector of channels is one load. */
static void take_taps(const struct delta_net *d, uint32_t layer, const float *from)
{
    uint32_t channels = delta_channels(&d->shape), n_taps = d->shape.n_taps;
    float *to = (float *)d->taps.data + layer * taps_floats(&d->shape);
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t j = 0; j < n_taps; j++)
            to[(size_t)j * channels + c] = from[(size_t)c * n_taps + j];
}

int delta_open(struct delta_net *d, const struct graph *g, const struct weights *w, uint32_t n_slots,
               struct error *err)
{
    if (!d->n_layers)
        return 0;
    int rc = memory_take(&d->states, n_slots * d->n_layers * delta_state_floats(&d->shape) * sizeof(float),
                         "recurrent states", err);
    if (rc == 0)
        rc = memory_take(&d->taps, d->n_layers * taps_floats(&d->shape) * sizeof(float), "convolutions", err);
    for (uint32_t i = 0; i < g->n_nodes && rc == 0; i++)
        if (g->nodes[i].op == GRAPH_SSM_CONV)
            take_taps(d, g->nodes[i].cache, w->vectors[g->nodes[i].gain]);
    return rc;
}

void delta_close(struct delta_net *d)
{
    memory_give(&d->states);
    memory_give(&d->taps);
}

static float *state_of(const struct delta_net *d, uint32_t slot, uint32_t layer)
{
    return (float *)d->states.data + ((size_t)slot * d->n_layers + layer) * delta_state_floats(&d->shape);
}

/* ---- a step ---- */

void delta_plan(struct delta_net *d, const struct step *step)
{
    d->n_groups = 0;
    for (uint32_t i = 0; i < step->n_rows && d->n_layers; i++) {
        const struct step_row *row = &step->rows[i];
        struct delta_group *last = d->n_groups ? &d->groups[d->n_groups - 1] : NULL;
        if (last && last->slot == row->slot)
            last->n++;
        else
            d->groups[d->n_groups++] =
                (struct delta_group){.slot = row->slot, .first = i, .n = 1, .begins = row->pos == 0};
    }
}

/* The first channel of a head, and the number of its channels. */
static uint32_t head_begin(const struct delta_shape *s, uint32_t head)
{
    uint32_t keys = 2 * s->n_key_heads;
    return head < keys ? head * s->key_dim : keys * s->key_dim + (head - keys) * s->value_dim;
}

static uint32_t head_width(const struct delta_shape *s, uint32_t head)
{
    return head < 2 * s->n_key_heads ? s->key_dim : s->value_dim;
}

/* Row `at` of a group's channels from `column` on: a negative one stands in the state. */
static const float *mix_row(const struct delta_net *d, const struct delta_group *g, const float *state,
                            int at, uint32_t column, struct rows in)
{
    if (at >= 0)
        return row_at(in, g->first + (uint32_t)at) + column;
    uint32_t old = d->shape.n_taps - 1 - (uint32_t)-at;
    return state + (size_t)old * delta_channels(&d->shape) + column;
}

/* Rows are convolved from the last to the first, since an output may overwrite its row: no earlier one needs
 * it. */
void delta_convolve(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                    struct rows out)
{
    const struct delta_group *g = &d->groups[group];
    const struct delta_shape *s = &d->shape;
    uint32_t column = head_begin(s, head), width = head_width(s, head), channels = delta_channels(s);
    float *state = state_of(d, g->slot, layer), last[DELTA_MAX_TAPS - 1][DELTA_MAX_DIM];
    const float *rows[DELTA_MAX_TAPS];
    int n_old = (int)s->n_taps - 1;
    for (int j = 0; j < n_old && g->begins; j++)
        memset(state + (size_t)j * channels + column, 0, width * sizeof *state);
    for (int j = 0; j < n_old; j++)
        memcpy(last[j], mix_row(d, g, state, (int)g->n - n_old + j, column, in), width * sizeof **last);
    for (int i = (int)g->n - 1; i >= 0; i--) {
        for (int j = 0; j <= n_old; j++)
            rows[j] = mix_row(d, g, state, i - n_old + j, column, in);
        d->ops->convolve(row_at(out, g->first + (uint32_t)i) + column, rows,
                         (const float *)d->taps.data + layer * taps_floats(s) + column, channels, s->n_taps,
                         width);
    }
    for (int j = 0; j < n_old; j++)
        memcpy(state + (size_t)j * channels + column, last[j], width * sizeof *state);
}

void delta_unit_head(const struct delta_net *d, uint32_t head, float *x, float eps)
{
    const struct delta_shape *s = &d->shape;
    if (head >= 2 * s->n_key_heads)
        return;
    x += head_begin(s, head);
    float r = d->ops->rms_inverse(x, s->key_dim, eps / (float)s->key_dim);
    d->ops->scale(x, x, s->key_dim,
                  head < s->n_key_heads ? delta_query_factor(s, r) : delta_key_factor(s, r));
}

void delta_activate_head(const struct delta_net *d, uint32_t head, float *x, float eps)
{
    float *at = x + head_begin(&d->shape, head);
    d->ops->silu(at, at, head_width(&d->shape, head));
    delta_unit_head(d, head, x, eps);
}

void delta_gates(const struct delta_shape *s, const float *a, const float *dt, const float *b,
                 const float *alpha, bool together, float *out)
{
    uint32_t n = s->n_value_heads, share = n / s->n_key_heads;
    float beta[DELTA_MAX_HEADS], decay[DELTA_MAX_HEADS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = together ? i / share * 2 * share + i % share : i;
        beta[i] = arith_sigmoid(b[at]);
        decay[i] = delta_decay(a[i], (together ? b[at + share] : alpha[i]) + dt[i]);
    }
    memcpy(out, beta, n * sizeof *out);
    memcpy(out + n, decay, n * sizeof *out);
}

void delta_scan(const struct delta_net *d, uint32_t layer, uint32_t group, uint32_t head, struct rows in,
                struct rows gates, struct rows out)
{
    const struct delta_group *g = &d->groups[group];
    const struct delta_shape *s = &d->shape;
    float *state = state_of(d, g->slot, layer) + delta_mix_floats(s) + head * delta_head_floats(s);
    const float *row = row_at(in, g->first), *gate = row_at(gates, g->first) + head;
    if (g->begins)
        memset(state, 0, delta_head_floats(s) * sizeof *state);
    uint32_t key_head = delta_key_head(s, head);
    struct ops_delta job = {
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .n_rows = g->n,
        .state = state,
        .q = row + head_begin(s, key_head),
        .k = row + head_begin(s, s->n_key_heads + key_head),
        .v = row + head_begin(s, 2 * s->n_key_heads + head),
        .beta = gate,
        .decay = gate + s->n_value_heads,
        .out = row_at(out, g->first) + (size_t)head * s->value_dim,
        .in_stride = in.stride,
        .gate_stride = gates.stride,
        .out_stride = out.stride,
    };
    d->ops->delta(&job);
}
