/* weight_parts.c - the weights that stand in a tensor together with others, or transposed: which rows of the
 * tensor they have (struct weight_rows), and how they are read. */
#include "model_private.h"
#include "gguf/quant.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which rows ---- */

static uint32_t layer_tensor(const struct model *m, uint32_t layer, const char *box)
{
    char name[MODEL_PART_NAME];
    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, box);
    const struct gguf_tensor *t = gguf_find_tensor(m->gguf, name);
    return t ? (uint32_t)(t - gguf_tensor_at(m->gguf, 0)) : MODEL_NO_WEIGHT;
}

/* The tensor of a layer, if it is there and has n rows (a vector: n values) of a type that Hearth knows. */
static uint32_t fused_tensor(const struct model *m, uint32_t layer, const char *box, uint64_t n)
{
    uint32_t tensor = layer_tensor(m, layer, box);
    if (tensor == MODEL_NO_WEIGHT || !quant_traits(m->weights[tensor].type))
        return MODEL_NO_WEIGHT;
    const struct weight *w = &m->weights[tensor];
    if (w->n == 1 && quant_traits(w->type)->block > 1) /* a vector has no part of a block */
        return MODEL_NO_WEIGHT;
    return (w->n == 1 ? w->k : w->n) == n && n ? tensor : MODEL_NO_WEIGHT;
}

/* Adds rows [first, first + n) of a tensor, or values of a vector, as a weight "blk.<layer>.<box>". */
static struct weight *add_part(struct model *m, uint32_t tensor, uint32_t layer, const char *box,
                               uint32_t first, uint32_t n)
{
    const struct weight *whole = &m->weights[tensor];
    assert(m->n_weights - m->n_tensors < m->config.n_layers * MODEL_LAYER_PARTS);
    struct weight *part = &m->weights[m->n_weights];
    char *name = m->part_names[m->n_weights - m->n_tensors];
    bool vector = whole->n == 1;
    (void)snprintf(name, MODEL_PART_NAME, "blk.%u.%s", layer, box);
    *part = (struct weight){.name = name, .type = whole->type, .n_experts = 1, .tensor = tensor};
    part->n = vector ? 1 : n;
    part->k = vector ? n : whole->k;
    part->size = n * quant_size(whole->type, vector ? 1 : whole->k);
    part->rows[part->n_pieces++] = (struct weight_rows){first, n, n, n};
    m->n_weights++;
    return part;
}

/* Adds `run` rows of every `every`, from row `first` on; of n_experts matrices. */
static struct weight *add_runs(struct model *m, uint32_t tensor, uint32_t layer, const char *box,
                               struct weight_rows rows, uint32_t n_experts)
{
    struct weight *part = add_part(m, tensor, layer, box, rows.first, rows.n);
    part->rows[0] = rows;
    part->n_experts = n_experts;
    return part;
}

/* Adds the queries, and the gates of their heads: the rows of a head's query stand before those of its gate.
 */
static void split_queries(struct model *m, uint32_t tensor, uint32_t layer)
{
    const struct model_attention *kind = &m->config.kinds[m->config.layers[layer].kind];
    uint32_t dim = kind->head_dim, n = kind->n_heads * dim;
    add_runs(m, tensor, layer, "attn_q.weight", (struct weight_rows){0, dim, 2 * dim, n}, 1);
    add_runs(m, tensor, layer, "attn_q_gate.weight", (struct weight_rows){dim, dim, 2 * dim, n}, 1);
}

/* Adds q, k and v of the fused tensor attn_qkv (weight or bias): rows of all query heads, then keys, values.
 */
static void split_qkv(struct model *m, uint32_t layer, const char *suffix)
{
    const struct model_attention *kind = &m->config.kinds[m->config.layers[layer].kind];
    uint32_t n[3] = {kind->n_heads * kind->head_dim, kind->n_kv_heads * kind->head_dim};
    n[2] = n[1];
    bool gates = m->config.gated_attention;
    if (gates && strcmp(suffix, "weight") != 0)
        return;
    n[0] *= gates ? 2 : 1;
    char box[32];
    (void)snprintf(box, sizeof box, "attn_qkv.%s", suffix);
    uint32_t fused = fused_tensor(m, layer, box, (uint64_t)n[0] + n[1] + n[2]);
    if (fused == MODEL_NO_WEIGHT)
        return;
    if (gates)
        split_queries(m, fused, layer);
    for (uint32_t i = gates, at = gates * n[0]; i < 3; at += n[i++]) {
        (void)snprintf(box, sizeof box, "attn_%c.%s", "qkv"[i], suffix);
        add_part(m, fused, layer, box, at, n[i]);
    }
}

static void split_attention(struct model *m, uint32_t layer)
{
    if (m->config.latent.rank) /* it has parts of its own */
        return;
    const struct model_attention *kind = &m->config.kinds[m->config.layers[layer].kind];
    if (layer_tensor(m, layer, "attn_q.weight") == MODEL_NO_WEIGHT) {
        split_qkv(m, layer, "weight");
        split_qkv(m, layer, "bias");
    } else if (m->config.gated_attention) {
        uint32_t q = fused_tensor(m, layer, "attn_q.weight", 2ull * kind->n_heads * kind->head_dim);
        if (q != MODEL_NO_WEIGHT)
            split_queries(m, q, layer);
    }
}

/* Splits attn_kv_a_mqa into compressed and rotated rows, and older files' attn_kv_b, per head, into key rows
 * and value rows. attn_k_b is the key rows transposed. */
static void split_latent(struct model *m, uint32_t layer)
{
    const struct model_latent *l = &m->config.latent;
    uint32_t heads = m->config.n_heads, every = l->key_dim + l->value_dim;
    if (!l->rank)
        return;
    uint32_t fused = fused_tensor(m, layer, "attn_kv_a_mqa.weight", l->rank + l->rotated);
    if (fused != MODEL_NO_WEIGHT) {
        add_part(m, fused, layer, "attn_kv_a.weight", 0, l->rank);
        add_part(m, fused, layer, "attn_k_rope.weight", l->rank, l->rotated);
    }
    fused = fused_tensor(m, layer, "attn_kv_b.weight", (uint64_t)heads * every);
    if (fused == MODEL_NO_WEIGHT || layer_tensor(m, layer, "attn_k_b.weight") != MODEL_NO_WEIGHT ||
        m->weights[fused].k != l->rank)
        return;
    struct weight_rows keys = {0, l->key_dim, every, heads * l->key_dim},
                       values = {l->key_dim, l->value_dim, every, heads * l->value_dim};
    struct weight *k = add_runs(m, fused, layer, "attn_k_b.weight", keys, heads);
    k->transposed = true;
    k->n = heads * l->rank;
    k->k = l->key_dim;
    k->type = quant_traits(k->type)->block == 1 ? k->type : QUANT_F32;
    k->size = k->n * quant_size(k->type, k->k);
    add_runs(m, fused, layer, "attn_v_b.weight", values, heads);
}

/* Adds attn_qkv and attn_gate of ssm_in, which older files of Qwen 3 Next have: of each key head its query,
 * its key, the values of its value heads, and their gates. */
static void split_delta(struct model *m, uint32_t layer)
{
    const struct delta_shape *s = &m->config.delta;
    uint32_t n = s->n_key_heads * s->key_dim, n_values = delta_value_width(s);
    uint32_t fused = fused_tensor(m, layer, "ssm_in.weight", 2ull * n + 2ull * n_values);
    if (fused == MODEL_NO_WEIGHT || layer_tensor(m, layer, "attn_qkv.weight") != MODEL_NO_WEIGHT)
        return;
    uint32_t dim = s->key_dim, values = n_values / s->n_key_heads, every = 2 * dim + 2 * values;
    struct weight *mix = add_part(m, fused, layer, "attn_qkv.weight", 0, 2 * n + n_values);
    mix->rows[0] = (struct weight_rows){0, dim, every, n};
    mix->rows[1] = (struct weight_rows){dim, dim, every, n};
    mix->rows[2] = (struct weight_rows){2 * dim, values, every, n_values};
    mix->n_pieces = 3;
    struct weight_rows gates = {2 * dim + values, values, every, n_values};
    add_runs(m, fused, layer, "attn_gate.weight", gates, 1);
}

/* Adds gate and up of an ffn_up that has the rows of both, gate's first. */
static void split_gate_up(struct model *m, uint32_t layer)
{
    uint32_t n_ff = m->config.layers[layer].n_ff;
    uint32_t fused = fused_tensor(m, layer, "ffn_up.weight", 2ull * n_ff);
    if (fused == MODEL_NO_WEIGHT || layer_tensor(m, layer, "ffn_gate.weight") != MODEL_NO_WEIGHT)
        return;
    add_part(m, fused, layer, "ffn_gate.weight", 0, n_ff);
    add_part(m, fused, layer, "ffn_up.weight", n_ff, n_ff);
}

/* Adds gate and up of the experts, whose rows stand in one tensor: of each expert gate's first. */
static void split_experts(struct model *m, uint32_t layer)
{
    const struct model_experts *e = &m->config.experts;
    uint32_t n = e->n_experts * e->n_ff;
    uint32_t fused = fused_tensor(m, layer, "ffn_gate_up_exps.weight", 2ull * n);
    if (fused == MODEL_NO_WEIGHT || m->weights[fused].n_experts != e->n_experts)
        return;
    struct weight_rows gate = {0, e->n_ff, 2 * e->n_ff, n}, up = {e->n_ff, e->n_ff, 2 * e->n_ff, n};
    add_runs(m, fused, layer, "ffn_gate_exps.weight", gate, e->n_experts);
    add_runs(m, fused, layer, "ffn_up_exps.weight", up, e->n_experts);
}

void model_split_fused(struct model *m)
{
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        if (m->config.layers[i].recurrent)
            split_delta(m, i);
        else
            split_attention(m, i);
        split_gate_up(m, i);
        split_experts(m, i);
        split_latent(m, i);
    }
}

const struct gguf_tensor *model_fused_tensor(const struct model *m, const char *name)
{
    static const struct {
        const char *part, *whole;
    } boxes[] = {{"attn_q.", "attn_qkv."},
                 {"attn_k.", "attn_qkv."},
                 {"attn_v.", "attn_qkv."},
                 {"ffn_gate.", "ffn_up."},
                 {"ffn_gate_exps.", "ffn_gate_up_exps."},
                 {"ffn_up_exps.", "ffn_gate_up_exps."},
                 {"attn_kv_a.", "attn_kv_a_mqa."},
                 {"attn_k_b.", "attn_kv_b."},
                 {"attn_v_b.", "attn_kv_b."},
                 {"attn_gate.", "ssm_in."}};
    const char *box = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    char whole[MODEL_PART_NAME];
    for (size_t i = 0; box && i < sizeof boxes / sizeof *boxes; i++) {
        size_t n = strlen(boxes[i].part);
        if (strncmp(box + 1, boxes[i].part, n) != 0)
            continue;
        (void)snprintf(whole, sizeof whole, "%.*s.%s%s", (int)(box - name), name, boxes[i].whole,
                       box + 1 + n);
        return gguf_find_tensor(m->gguf, whole);
    }
    return NULL;
}

/* ---- reading ---- */

/* Bytes [at, at + n) of rows of `row` bytes. */
static int read_rows(const struct model *m, const struct weight *w, size_t row, size_t at, uint8_t *out,
                     size_t n, struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor_at(m->gguf, w->tensor);
    const struct weight_rows *p = w->rows;
    if (!n)
        return 0;
    for (; at >= p->n * row; p++)
        at -= p->n * row;
    int rc = 0;
    for (size_t part; rc == 0 && n > 0; at += part, out += part, n -= part) {
        if (at == p->n * row) {
            p++;
            at = 0;
        }
        size_t run = p->run * row, left = p->n * row - at;
        part = run - at % run;
        part = part < left ? part : left;
        part = part < n ? part : n;
        rc = gguf_read(m->gguf, t, (p->first + at / run * p->every) * row + at % run, out, part, err);
    }
    return rc;
}

/* dst[j][i] = src[i][j] for n x k items of `size` bytes, 2 or 4. */
static void transpose(void *dst, const void *src, size_t n, size_t k, size_t size)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++)
            memcpy((uint8_t *)dst + (j * n + i) * size, (const uint8_t *)src + (i * k + j) * size, size);
}

/* The whole matrix of one expert, [k of the tensor, rows of an expert], into `out`. */
static int read_transposed(const struct model *m, const struct weight *w, uint32_t expert, void *out,
                           struct error *err)
{
    uint32_t type = gguf_tensor_at(m->gguf, w->tensor)->type;
    size_t rows = w->k, cols = w->n / w->n_experts, row = quant_size(type, cols);
    size_t item = quant_size(w->type, 1);
    uint8_t *bytes = malloc(rows * row);
    float *values = w->type == type ? NULL : malloc(rows * cols * sizeof *values);
    int rc = bytes && (values || w->type == type)
                 ? read_rows(m, w, row, expert * rows * row, bytes, rows * row, err)
                 : error_set(err, -ENOMEM, "%s: no memory for %s", gguf_path(m->gguf), w->name);
    if (rc == 0 && values)
        quant_dequantise(type, bytes, values, rows * cols);
    if (rc == 0)
        transpose(out, values ? (void *)values : bytes, rows, cols, item);
    free(bytes);
    free(values);
    return rc;
}

/* Bytes [at, at + n) of a transposed weight: expert by expert. */
static int read_experts(const struct model *m, const struct weight *w, size_t at, uint8_t *out, size_t n,
                        struct error *err)
{
    size_t slab = w->size / w->n_experts;
    uint8_t *whole = malloc(slab);
    int rc = whole ? 0 : error_set(err, -ENOMEM, "%s: no memory for %s", gguf_path(m->gguf), w->name);
    for (size_t part; rc == 0 && n > 0; at += part, out += part, n -= part) {
        part = slab - at % slab < n ? slab - at % slab : n;
        rc = read_transposed(m, w, (uint32_t)(at / slab), whole, err);
        if (rc == 0)
            memcpy(out, whole + at % slab, part);
    }
    free(whole);
    return rc;
}

int model_read_stored(const struct model *m, const struct weight *w, size_t at, void *out, size_t n,
                      struct error *err)
{
    if (w->transposed)
        return read_experts(m, w, at, out, n, err);
    if (w->n_pieces)
        return read_rows(m, w, quant_size(w->type, w->n == 1 ? 1 : w->k), at, out, n, err);
    return gguf_read(m->gguf, gguf_tensor_at(m->gguf, w->tensor), at, out, n, err);
}

int model_read_weight(const struct model *m, uint32_t index, size_t at, void *out, size_t n,
                      struct error *err)
{
    const struct weight *w = &m->weights[index];
    assert(at <= w->size && n <= w->size - at);
    return w->multiplied ? model_read_multiplied(m, w, at, out, n, err)
                         : model_read_stored(m, w, at, out, n, err);
}
