#include "reference.h"
#include "reference_delta.h"
#include "base/memory.h"
#include "gguf/quant.h"
#include "model/weight_reader.h"
#include "model/weight_use.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_BYTES ((size_t)256 << 20) /* limit for keeping all weights dequantised */

struct slot_cache {
    uint32_t n_tokens; /* positions written */
    uint32_t capacity;
    float *kv;      /* [layer][K, V][capacity][kv width] */
    double *states; /* [recurrent layer][reference_delta_doubles()], or NULL: of a model with such layers */
    int32_t sampled;
};

struct exact {
    const struct graph *g;
    const struct model_config *c;
    uint32_t n_slots, n_ctx, kv_width;
    struct slot_cache *slots;
    float *ropes[MODEL_MAX_KINDS]; /* [n_ctx][dim / 2][cos, sin] of each kind */
    float *row;                    /* one dequantised weight row */
    bool keeps;                    /* weights are kept as floats, else as the file has them */
    void **weights;                /* per weight that is used; vectors are floats either way */
    uint64_t weights_sum;
    float **values;          /* per node: [rows][width] while a node will still read it */
    uint32_t *last_use;      /* per node: the last node that reads it */
    const struct step *step; /* valid until its last dispatch */
    uint32_t n_logits;       /* logit rows of that step */
    int32_t tokens[STEP_MAX_ROWS];
    uint32_t logits_node; /* the input of ARGMAX */
};

/* Allocates a row for the widest weight, and the table of kept weights if all of them fit. */
static int plan_weights(struct exact *x, struct error *err)
{
    size_t total = 0, bytes = 0, widest = 1;
    uint32_t n_weights = model_n_weights(x->g->model);
    for (uint32_t i = 0; i < n_weights; i++) {
        const struct weight *w = model_weight(x->g->model, i);
        total += (size_t)w->n * w->k * sizeof(float);
        bytes += w->size;
        widest = w->k > widest ? w->k : widest;
    }
    x->keeps = total <= KEEP_BYTES;
    if (!x->keeps && bytes > memory_available())
        return error_set(err, -ENOMEM, "%s needs %zu MiB for its weights, %llu are available",
                         gguf_path(model_gguf(x->g->model)), bytes >> 20,
                         (unsigned long long)(memory_available() >> 20));
    x->row = malloc(widest * sizeof *x->row);
    x->weights = calloc(n_weights, sizeof *x->weights);
    if (!x->row || !x->weights)
        return error_set(err, -ENOMEM, "exact: no memory for a weight row of %zu values", widest);
    return 0;
}

/* The file's bytes of a weight, or their values. */
static int take_weight(struct exact *x, struct weight_reader *r, uint32_t index, struct error *err)
{
    const struct weight *w = model_weight(x->g->model, index);
    void *bytes = malloc(w->size), *values = x->keeps ? malloc((size_t)w->n * w->k * sizeof(float)) : bytes;
    int rc = bytes && values ? 0 : error_set(err, -ENOMEM, "exact: no memory for %s", w->name);
    bool read = rc == 0 && weight_reader_groups(r, index, 0, weight_groups(x->g->model, index), bytes) == 0;
    if (read && x->keeps)
        quant_dequantise(w->type, bytes, values, (size_t)w->n * w->k);
    x->weights[index] = values;
    if (x->keeps)
        free(bytes);
    return rc;
}

static int take_weights(struct exact *x, struct error *err)
{
    struct weight_reader r;
    uint8_t *uses = weight_uses(x->g);
    int rc = uses ? 0 : error_set(err, -ENOMEM, "exact: out of memory");
    weight_reader_open(&r, x->g->model);
    for (uint32_t i = 0; i < model_n_weights(x->g->model) && rc == 0; i++)
        if (uses[i] != WEIGHT_UNUSED)
            rc = take_weight(x, &r, i, err);
    free(uses);
    return rc < 0 ? rc : weight_reader_close(&r, &x->weights_sum, err);
}

static int plan_nodes(struct exact *x, struct error *err)
{
    uint32_t n = x->g->n_nodes;
    x->values = calloc(n + 1, sizeof *x->values);
    x->last_use = calloc(n + 1, sizeof *x->last_use);
    if (!x->values || !x->last_use)
        return error_set(err, -ENOMEM, "exact: no memory for %u nodes", n);
    x->logits_node = GRAPH_NO_INPUT;
    for (uint32_t i = 0; i < n; i++) {
        const struct graph_node *node = &x->g->nodes[i];
        for (uint32_t j = 0; j < graph_op_arity(node->op); j++)
            x->last_use[node->inputs[j]] = i;
        if (node->op == GRAPH_COPY && node->width > x->kv_width)
            x->kv_width = node->width;
        if (node->op == GRAPH_ARGMAX)
            x->logits_node = node->inputs[0];
    }
    if (x->logits_node != GRAPH_NO_INPUT)
        x->last_use[x->logits_node] = n; /* read after the step */
    return 0;
}

static int take_ropes(struct exact *x)
{
    for (uint32_t i = 0; i < x->c->n_kinds; i++) {
        const struct model_rotation *rope = &x->c->kinds[i].rope;
        x->ropes[i] = malloc(((size_t)x->n_ctx * rope->dim + 1) * sizeof *x->ropes[i]);
        if (!x->ropes[i])
            return -ENOMEM;
        model_rope_table(rope, x->n_ctx, x->ropes[i]);
    }
    return 0;
}

/* The states of recurrent layers, zero as before position 0. */
static int take_states(struct exact *x)
{
    for (uint32_t i = 0; i < x->n_slots && x->c->n_recurrent; i++) {
        x->slots[i].states =
            calloc(x->c->n_recurrent * reference_delta_doubles(&x->c->delta), sizeof *x->slots[i].states);
        if (!x->slots[i].states)
            return -ENOMEM;
    }
    return 0;
}

int exact_open(struct exact **out, const struct graph *g, uint32_t n_slots, uint32_t n_ctx, struct error *err)
{
    struct exact *x = calloc(1, sizeof *x);
    if (!x)
        return error_set(err, -ENOMEM, "exact: out of memory");
    x->g = g;
    x->c = model_config(g->model);
    x->n_slots = n_slots;
    x->n_ctx = n_ctx;
    x->slots = calloc(n_slots, sizeof *x->slots);
    int rc = take_ropes(x);
    if (x->slots && rc == 0)
        rc = take_states(x);
    if (!x->slots || rc < 0)
        rc = error_set(err, -ENOMEM, "exact: no memory for %u slots and %u positions", n_slots, n_ctx);
    if (rc == 0)
        rc = plan_weights(x, err);
    if (rc == 0)
        rc = plan_nodes(x, err);
    if (rc == 0)
        rc = take_weights(x, err);
    if (rc < 0) {
        exact_close(x);
        return rc;
    }
    for (uint32_t i = 0; i < n_slots; i++)
        x->slots[i].sampled = -1;
    *out = x;
    return 0;
}

void exact_close(struct exact *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; x->slots && i < x->n_slots; i++) {
        free(x->slots[i].kv);
        free(x->slots[i].states);
    }
    for (uint32_t i = 0; x->values && i < x->g->n_nodes; i++)
        free(x->values[i]);
    for (uint32_t i = 0; x->weights && i < model_n_weights(x->g->model); i++)
        free(x->weights[i]);
    free(x->slots);
    for (uint32_t i = 0; i < MODEL_MAX_KINDS; i++)
        free(x->ropes[i]);
    free(x->row);
    free(x->weights);
    free(x->values);
    free(x->last_use);
    free(x);
}

/* Beginning a step. */

/* Makes room for positions 0..pos in a slot's cache: doubles it, up to n_ctx. */
static int grow_cache(struct exact *x, uint32_t slot, uint32_t pos, struct error *err)
{
    struct slot_cache *s = &x->slots[slot];
    if (pos < s->capacity)
        return 0;
    uint32_t capacity = s->capacity ? s->capacity : 64;
    while (capacity <= pos)
        capacity *= 2;
    capacity = capacity < x->n_ctx ? capacity : x->n_ctx;
    size_t n_runs = (size_t)x->c->n_layers * 2;
    float *kv = malloc(n_runs * capacity * x->kv_width * sizeof *kv);
    if (!kv)
        return error_set(err, -ENOMEM, "exact: no memory for %u positions of slot %u", capacity, slot);
    for (size_t i = 0; i < n_runs && s->n_tokens; i++)
        memcpy(kv + i * capacity * x->kv_width, s->kv + i * s->capacity * x->kv_width,
               (size_t)s->n_tokens * x->kv_width * sizeof *kv);
    free(s->kv);
    s->kv = kv;
    s->capacity = capacity;
    return 0;
}

static int take_row(struct exact *x, uint32_t i, struct error *err)
{
    const struct step_row *r = &x->step->rows[i];
    if (r->slot >= x->n_slots || r->pos >= x->n_ctx)
        return error_set(err, -EINVAL, "exact: row %u names slot %u of %u, position %u of %u", i, r->slot,
                         x->n_slots, r->pos, x->n_ctx);
    struct slot_cache *s = &x->slots[r->slot];
    x->tokens[i] = r->token == STEP_LAST_SAMPLED ? s->sampled : r->token;
    if (x->tokens[i] < 0 || (uint32_t)x->tokens[i] >= x->c->n_vocab)
        return error_set(err, -EINVAL, "exact: row %u names token %d of %u", i, x->tokens[i], x->c->n_vocab);
    if (r->pos > s->n_tokens)
        return error_set(err, -EINVAL, "exact: row %u is position %u of slot %u, which has %u positions", i,
                         r->pos, r->slot, s->n_tokens);
    int rc = grow_cache(x, r->slot, r->pos, err);
    if (rc == 0)
        s->n_tokens = r->pos + 1;
    return rc;
}

int exact_begin(struct exact *x, const struct step *step, struct error *err)
{
    if (step->n_rows > STEP_MAX_ROWS || step->n_logits > STEP_MAX_LOGITS)
        return error_set(err, -EINVAL, "exact: a step of %u rows and %u logit rows", step->n_rows,
                         step->n_logits);
    if (step->n_page_ops)
        return error_set(err, -EINVAL, "exact: a step with %u page operations: this executor has no pages",
                         step->n_page_ops);
    for (uint32_t i = 0; i < x->g->n_nodes; i++) { /* the logits of the step before */
        free(x->values[i]);
        x->values[i] = NULL;
    }
    x->step = step;
    x->n_logits = step->n_logits;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        int rc = take_row(x, i, err);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < step->n_logits; i++)
        if (step->logits[i].row >= step->n_rows)
            return error_set(err, -EINVAL, "exact: logit row %u names row %u of %u", i, step->logits[i].row,
                             step->n_rows);
    return 0;
}

/* Running nodes. Each function fills one row of its node: `out` from inputs `a` and `b`. */

static uint32_t rows_of(const struct exact *x, const struct graph_node *n)
{
    return n->head ? x->step->n_logits : x->step->n_rows;
}

/* Input j of a node for its row i: a node for logit rows reads other nodes at the row of its logits. */
static const float *input_row(const struct exact *x, const struct graph_node *n, uint32_t j, uint32_t i)
{
    const struct graph_node *in = &x->g->nodes[n->inputs[j]];
    uint32_t row = n->head && !in->head ? x->step->logits[i].row : i;
    return x->values[n->inputs[j]] + (size_t)row * in->width;
}

static float *output_row(const struct exact *x, uint32_t node, uint32_t i)
{
    return x->values[node] + (size_t)i * x->g->nodes[node].width;
}

static const float *weight_row(struct exact *x, uint32_t index, uint32_t row)
{
    const struct weight *w = model_weight(x->g->model, index);
    if (x->keeps)
        return (const float *)x->weights[index] + (size_t)row * w->k;
    quant_dequantise(w->type, (const uint8_t *)x->weights[index] + row * quant_size(w->type, w->k), x->row,
                     w->k);
    return x->row;
}

static const float *vector(const struct exact *x, uint32_t index)
{
    return index == MODEL_NO_WEIGHT ? NULL : x->weights[index];
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void run_embed(struct exact *x, uint32_t node)
{
    const struct graph_node *n = &x->g->nodes[node];
    for (uint32_t i = 0; i < rows_of(x, n); i++) {
        const float *w = weight_row(x, n->weight, (uint32_t)x->tokens[i]);
        memcpy(output_row(x, node, i), w, n->width * sizeof *w);
    }
}

static void run_mul_mat(struct exact *x, uint32_t node)
{
    const struct graph_node *n = &x->g->nodes[node];
    const float *bias = vector(x, n->bias);
    for (uint32_t o = 0; o < n->width; o++) { /* dequantises a weight row once for all rows of the step */
        const float *w = weight_row(x, n->weight, o);
        for (uint32_t i = 0; i < rows_of(x, n); i++)
            output_row(x, node, i)[o] =
                (float)(dot(w, input_row(x, n, 0, i), n->k) + (bias ? (double)bias[o] : 0.0));
    }
}

static void rms_norm(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *in = input_row(x, n, 0, i), *gain = vector(x, n->gain);
    for (uint32_t g = 0; g < n->width; g += n->group) {
        double mean = dot(in + g, in + g, n->group) / n->group;
        double r = 1.0 / sqrt(mean + (double)n->eps);
        for (uint32_t j = 0; j < n->group; j++)
            out[g + j] = (float)((double)in[g + j] * r * (gain ? (double)gain[j] : 1.0));
    }
}

static void rope(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    uint32_t pairs = x->c->kinds[n->kind].rope.dim / 2;
    const float *table = x->ropes[n->kind] + (size_t)x->step->rows[i].pos * pairs * 2;
    memcpy(out, input_row(x, n, 0, i), n->width * sizeof *out);
    for (float *head = out; head < out + n->width; head += n->group)
        for (uint32_t p = 0; p < pairs; p++) {
            float *a = x->c->rope == MODEL_ROPE_NEOX ? head + p : head + 2 * p;
            float *b = x->c->rope == MODEL_ROPE_NEOX ? head + p + pairs : head + 2 * p + 1;
            double c = (double)table[2 * p], s = (double)table[2 * p + 1], u = (double)*a, v = (double)*b;
            *a = (float)(u * c - v * s);
            *b = (float)(u * s + v * c);
        }
}

/* K (which = 0) or V (1) of a slot's position, all key/value heads. */
static float *cached(const struct exact *x, uint32_t slot, uint32_t layer, uint32_t which, uint32_t pos)
{
    const struct slot_cache *s = &x->slots[slot];
    return s->kv + (((size_t)layer * 2 + which) * s->capacity + pos) * x->kv_width;
}

static void copy(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const struct step_row *r = &x->step->rows[i];
    memcpy(cached(x, r->slot, n->layer, 0, r->pos), input_row(x, n, 0, i), n->width * sizeof(float));
    memcpy(cached(x, r->slot, n->layer, 1, r->pos), input_row(x, n, 1, i), n->width * sizeof(float));
    memcpy(out, input_row(x, n, 0, i), n->width * sizeof(float));
}

static double capped(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* One head's attention to the positions that it sees of one key/value head. `w` has room for pos + 1
 * doubles. */
static void attend(const struct exact *x, const struct graph_node *n, const struct step_row *r,
                   const float *q, uint32_t head, double *w, float *out)
{
    const struct model_attention *kind = &x->c->kinds[n->kind];
    const float *sinks = vector(x, n->gain);
    double scale = (double)n->scale * (double)model_temperature(kind, r->pos);
    double top = sinks ? (double)sinks[head] : -INFINITY, sum = 0;
    size_t at = (size_t)(head / (n->n_heads / n->n_kv_heads)) * n->group;
    uint32_t first = kind->window && r->pos >= kind->window ? r->pos - kind->window + 1 : 0;
    for (uint32_t t = first; t <= r->pos; t++) {
        w[t] = capped(dot(q, cached(x, r->slot, n->layer, 0, t) + at, n->group) * scale, (double)kind->cap);
        top = w[t] > top ? w[t] : top;
    }
    for (uint32_t t = first; t <= r->pos; t++)
        sum += w[t] = exp(w[t] - top);
    sum += sinks ? exp((double)sinks[head] - top) : 0;
    for (uint32_t d = 0; d < n->group; d++) {
        double o = 0;
        for (uint32_t t = first; t <= r->pos; t++)
            o += w[t] * (double)cached(x, r->slot, n->layer, 1, t)[at + d];
        out[d] = (float)(o / sum);
    }
}

static int run_soft_max(struct exact *x, uint32_t node)
{
    const struct graph_node *n = &x->g->nodes[node];
    double *w = malloc(x->n_ctx * sizeof *w);
    if (!w)
        return -ENOMEM;
    for (uint32_t i = 0; i < rows_of(x, n); i++)
        for (uint32_t h = 0; h < n->n_heads; h++)
            attend(x, n, &x->step->rows[i], input_row(x, n, 0, i) + (size_t)h * n->group, h, w,
                   output_row(x, node, i) + (size_t)h * n->group);
    free(w);
    return 0;
}

static void add(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i), *b = input_row(x, n, 1, i);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = a[j] + b[j];
}

static void mul(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i), *b = input_row(x, n, 1, i);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = a[j] * b[n->col + j];
}

static void scale(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i), *gain = vector(x, n->gain);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = a[j] * (gain ? gain[0] : n->scale);
}

static void soft_cap(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = (float)capped((double)a[j], (double)n->scale);
}

static void gelu(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i);
    for (uint32_t j = 0; j < n->width; j++) {
        double v = (double)a[j];
        out[j] = (float)(0.5 * v * (1 + tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v))));
    }
}

static void silu(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = (float)((double)a[j] / (1.0 + exp(-(double)a[j])));
}

/* The choice in doubles; ties and the order of the chosen are those of kernels/abi/route.h. */
static void probabilities(const struct route_rule *r, const float *logits, double *p)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < r->n_experts; e++)
        top = fmax(top, (double)logits[e]);
    for (uint32_t e = 0; e < r->n_experts; e++)
        sum += p[e] =
            r->gating == ROUTE_SIGMOID ? 1 / (1 + exp(-(double)logits[e])) : exp((double)logits[e] - top);
    for (uint32_t e = 0; e < r->n_experts && r->gating == ROUTE_SOFTMAX; e++)
        p[e] /= sum;
}

/* The largest value in [first, last) that is not -infinity becomes it. Returns its index, the lowest of
 * equals. */
static uint32_t take_best(double *value, uint32_t first, uint32_t last, double *taken)
{
    uint32_t best = first;
    for (uint32_t e = first; e < last; e++)
        best = value[e] > value[best] ? e : best;
    *taken = value[best];
    value[best] = -INFINITY;
    return best;
}

static void drop_groups(const struct route_rule *r, double *value)
{
    double score[ROUTE_MAX_EXPERTS], copy[ROUTE_MAX_EXPERTS], first, second = 0;
    bool kept[ROUTE_MAX_EXPERTS] = {false};
    uint32_t size = r->n_experts / r->n_groups;
    memcpy(copy, value, r->n_experts * sizeof *copy);
    for (uint32_t g = 0; g < r->n_groups; g++) {
        take_best(copy, g * size, (g + 1) * size, &first);
        if (size > 1)
            take_best(copy, g * size, (g + 1) * size, &second);
        score[g] = first + second;
    }
    for (uint32_t i = 0; i < r->n_groups_used; i++)
        kept[take_best(score, 0, r->n_groups, &first)] = true;
    for (uint32_t e = 0; e < r->n_experts; e++)
        value[e] = kept[e / size] ? value[e] : -INFINITY;
}

static void route(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const struct route_rule *r = &n->route;
    const float *bias = vector(x, n->bias), *gain = vector(x, n->gain);
    double p[ROUTE_MAX_EXPERTS], value[ROUTE_MAX_EXPERTS], sum = 0, ignored;
    bool chosen[ROUTE_MAX_EXPERTS] = {false};
    probabilities(r, input_row(x, n, 0, i), p);
    for (uint32_t e = 0; e < r->n_experts; e++) { /* as in route.h, what is no number is chosen last */
        double v = p[e] + (bias ? (double)bias[e] : 0.0);
        value[e] = isfinite(v) ? v : -1e300;
    }
    if (r->n_groups > 1)
        drop_groups(r, value);
    for (uint32_t u = 0; u < r->n_used; u++)
        chosen[take_best(value, 0, r->n_experts, &ignored)] = true;
    for (uint32_t e = 0; e < r->n_experts; e++)
        sum += chosen[e] ? p[e] : 0.0;
    sum = !r->normalise ? 1.0 : sum > 0x1p-14 ? sum : 0x1p-14;
    for (uint32_t e = 0, u = 0; e < r->n_experts; e++)
        if (chosen[e]) {
            out[u] = (float)e;
            out[r->n_used + u++] = (float)(p[e] / sum * (double)r->scale * (gain ? (double)gain[e] : 1.0));
        }
}

static void mul_mat_id(struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *in = input_row(x, n, 0, i), *choice = input_row(x, n, 1, i), *bias = vector(x, n->bias);
    uint32_t width = n->width / n->route.n_used;
    bool own = x->g->nodes[n->inputs[0]].width != n->k; /* each expert has its part of the input */
    for (uint32_t u = 0; u < n->route.n_used; u++)
        for (uint32_t o = 0; o < width; o++) {
            uint32_t row = (uint32_t)choice[u] * width + o;
            double y = dot(weight_row(x, n->weight, row), in + (own ? (size_t)u * n->k : 0), n->k);
            out[u * width + o] = (float)(y + (bias ? (double)bias[row] : 0.0));
        }
}

static void mul_mat_heads(struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    uint32_t part = n->col + n->k + n->keep, width = n->width / n->n_heads - n->keep;
    for (uint32_t h = 0; h < n->n_heads; h++, out += n->keep + width) {
        const float *in = input_row(x, n, 0, i) + (size_t)h * part;
        memcpy(out, in + n->col + n->k, n->keep * sizeof *out);
        for (uint32_t o = 0; o < width; o++)
            out[n->keep + o] = (float)dot(weight_row(x, n->weight, h * width + o), in + n->col, n->k);
    }
}

static void join(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    uint32_t first = x->g->nodes[n->inputs[0]].width;
    memcpy(out, input_row(x, n, 0, i), first * sizeof *out);
    memcpy(out + first, input_row(x, n, 1, i), (n->width - first) * sizeof *out);
}

static void expert_sum(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *in = input_row(x, n, 0, i), *weights = input_row(x, n, 1, i) + n->route.n_used;
    for (uint32_t j = 0; j < n->width; j++) {
        double sum = 0;
        for (uint32_t u = 0; u < n->route.n_used; u++)
            sum += (double)weights[u] * (double)in[(size_t)u * n->width + j];
        out[j] = (float)sum;
    }
}

static void gate(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i);
    double factor = 1.0 / (1.0 + exp(-(double)input_row(x, n, 1, i)[0]));
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = (float)((double)a[j] * factor);
}

static void swiglu_clamped(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i), *b = input_row(x, n, 1, i);
    for (uint32_t j = 0; j < n->width; j++) {
        double g = fmin((double)a[j], 7.0), u = fmax(fmin((double)b[j], 7.0), -7.0);
        out[j] = (float)(g / (1.0 + exp(-1.702 * g)) * (u + 1.0));
    }
}

static void sigmoid(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *a = input_row(x, n, 0, i);
    for (uint32_t j = 0; j < n->width; j++)
        out[j] = (float)(1.0 / (1.0 + exp(-(double)a[j])));
}

/* The state of the row's slot in the node's layer. */
static double *state_of(const struct exact *x, const struct graph_node *n, uint32_t i)
{
    return x->slots[x->step->rows[i].slot].states + n->cache * reference_delta_doubles(&n->delta);
}

/* Rows of a slot come in the order of their positions. The first one of a sequence finds a state of zeros. */
static void ssm_conv(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    double *state = state_of(x, n, i);
    if (x->step->rows[i].pos == 0)
        memset(state, 0, reference_delta_doubles(&n->delta) * sizeof *state);
    reference_convolve(&n->delta, state, vector(x, n->gain), input_row(x, n, 0, i), out);
}

static void delta_gate(const struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    reference_delta_gate(&n->delta, vector(x, n->gain), vector(x, n->bias), input_row(x, n, 0, i),
                         input_row(x, n, 1, i), n->inputs[0] == n->inputs[1], out);
}

static void argmax(struct exact *x, const struct graph_node *n, uint32_t i, float *out)
{
    const float *logits = input_row(x, n, 0, i);
    uint32_t best = 0;
    for (uint32_t j = 1; j < x->g->nodes[n->inputs[0]].width; j++)
        if (logits[j] > logits[best])
            best = j;
    out[0] = (float)best;
    const struct step_logit *l = &x->step->logits[i];
    if (l->target < 0)
        x->slots[x->step->rows[l->row].slot].sampled = (int32_t)best;
}

static int run_node(struct exact *x, uint32_t node)
{
    const struct graph_node *n = &x->g->nodes[node];
    if (n->op == GRAPH_EMBED || n->op == GRAPH_MUL_MAT) {
        (n->op == GRAPH_EMBED ? run_embed : run_mul_mat)(x, node);
        return 0;
    }
    for (uint32_t i = 0; n->op == GRAPH_COPY && i < rows_of(x, n); i++)
        copy(x, n, i, output_row(x, node, i));
    if (n->op == GRAPH_SOFT_MAX)
        return run_soft_max(x, node);
    for (uint32_t i = 0; i < rows_of(x, n); i++) {
        float *out = output_row(x, node, i);
        switch (n->op) {
        case GRAPH_RMS_NORM:
            rms_norm(x, n, i, out);
            break;
        case GRAPH_ROPE:
            rope(x, n, i, out);
            break;
        case GRAPH_ADD:
            add(x, n, i, out);
            break;
        case GRAPH_MUL:
            mul(x, n, i, out);
            break;
        case GRAPH_SILU:
            silu(x, n, i, out);
            break;
        case GRAPH_GELU:
            gelu(x, n, i, out);
            break;
        case GRAPH_SCALE:
            scale(x, n, i, out);
            break;
        case GRAPH_SOFT_CAP:
            soft_cap(x, n, i, out);
            break;
        case GRAPH_ROUTE:
            route(x, n, i, out);
            break;
        case GRAPH_MUL_MAT_ID:
            mul_mat_id(x, n, i, out);
            break;
        case GRAPH_MUL_MAT_HEADS:
            mul_mat_heads(x, n, i, out);
            break;
        case GRAPH_JOIN:
            join(x, n, i, out);
            break;
        case GRAPH_EXPERT_SUM:
            expert_sum(x, n, i, out);
            break;
        case GRAPH_GATE:
            gate(x, n, i, out);
            break;
        case GRAPH_SWIGLU_CLAMPED:
            swiglu_clamped(x, n, i, out);
            break;
        case GRAPH_SIGMOID:
            sigmoid(x, n, i, out);
            break;
        case GRAPH_SSM_CONV:
            ssm_conv(x, n, i, out);
            break;
        case GRAPH_L2_NORM:
            reference_l2_norm(&n->delta, n->eps, input_row(x, n, 0, i), out);
            break;
        case GRAPH_DELTA_GATE:
            delta_gate(x, n, i, out);
            break;
        case GRAPH_DELTA_NET:
            reference_delta_net(&n->delta, state_of(x, n, i), input_row(x, n, 0, i), input_row(x, n, 1, i),
                                out);
            break;
        case GRAPH_ARGMAX:
            argmax(x, n, i, out);
            break;
        default:
            break; /* NONE runs nothing */
        }
    }
    return 0;
}

int exact_dispatch(struct exact *x, uint32_t node, struct error *err)
{
    if (!x->step || node >= x->g->n_nodes)
        return error_set(err, -EINVAL, "exact: node %u of %u", node, x->g->n_nodes);
    const struct graph_node *n = &x->g->nodes[node];
    for (uint32_t j = 0; j < graph_op_arity(n->op); j++)
        if (!x->values[n->inputs[j]] && x->g->nodes[n->inputs[j]].op != GRAPH_NONE)
            return error_set(err, -EINVAL, "exact: %s has not run before %s", x->g->nodes[n->inputs[j]].name,
                             n->name);
    free(x->values[node]);
    size_t floats = (size_t)rows_of(x, n) * n->width;
    x->values[node] = malloc((floats ? floats : 1) * sizeof(float));
    int rc = x->values[node] ? run_node(x, node) : -ENOMEM;
    if (rc < 0)
        return error_set(err, rc, "exact: no memory for %zu values", floats);
    for (uint32_t j = 0; j < graph_op_arity(n->op); j++)
        if (x->last_use[n->inputs[j]] == node) {
            free(x->values[n->inputs[j]]);
            x->values[n->inputs[j]] = NULL;
        }
    return 0;
}

float *exact_logits(struct exact *x, uint32_t index)
{
    if (x->logits_node == GRAPH_NO_INPUT || !x->values[x->logits_node] || index >= x->n_logits)
        return NULL;
    return output_row(x, x->logits_node, index);
}

void exact_sampled(struct exact *x, uint32_t slot, int32_t token)
{
    if (slot < x->n_slots)
        x->slots[slot].sampled = token;
}

uint64_t exact_weights_sum(const struct exact *x)
{
    return x->weights_sum;
}
