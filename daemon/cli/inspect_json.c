/* inspect_json.c - the report of `hearthd inspect --json`. */
#include "inspect.h"

#include "model/graph.h"
#include "model/model.h"
#include "model/program.h"
#include "gguf/quant.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_ITEMS 64 /* longer arrays are shown as their length: a vocabulary is not metadata to look at */

/* Text of a file as a JSON string; where it is no UTF-8, its other bytes become \xNN. */
static json_t *text(const char *s, size_t len)
{
    json_t *j = json_stringn(s, len);
    char *escaped = j ? NULL : malloc(4 * len + 1);
    if (!escaped)
        return j;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        n += (size_t)(c < 0x80 ? sprintf(escaped + n, "%c", c) : sprintf(escaped + n, "\\x%02x", c));
    }
    j = json_stringn(escaped, n);
    free(escaped);
    return j;
}

/* JSON has no NaN and no infinity. */
static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_string(isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
}

static json_t *number(uint32_t type, const uint8_t *data)
{
    struct inspection_number v = inspection_number(type, data);
    if (v.kind == INSPECTION_BOOL)
        return json_boolean(v.i != 0);
    if (v.kind == INSPECTION_REAL)
        return real(v.f);
    if (v.kind == INSPECTION_UNSIGNED &&
        v.u > INT64_MAX) /* a number all the same, if not to the last digit */
        return json_real((double)v.u);
    return json_integer(v.i);
}

static json_t *array(const struct gguf_value *v)
{
    if (v->n > MAX_ITEMS)
        return json_pack("{s:I}", "items", (json_int_t)v->n);
    json_t *out = json_array();
    struct gguf_str s;
    size_t cursor = 0;
    if (v->item_type == GGUF_STR) {
        while (gguf_next_str(v, &cursor, &s))
            json_array_append_new(out, text(s.s, s.len));
        return out;
    }
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(out, number(v->item_type, v->data + i * (v->size / v->n)));
    return out;
}

static json_t *metadata(const struct gguf *g)
{
    json_t *out = json_object();
    for (size_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        json_t *value = v->type == GGUF_ARR   ? array(v)
                        : v->type == GGUF_STR ? text((const char *)v->data + 8, v->size - 8)
                                              : number(v->type, v->data);
        json_object_setn_new(out, v->key.s, v->key.len, value);
    }
    return out;
}

static json_t *tensors(const struct gguf *g)
{
    json_t *out = json_array();
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->ne[d]));
        json_array_append_new(out,
                              json_pack("{s:o,s:s,s:o,s:I}", "name", text(t->name, strlen(t->name)), "type",
                                        quant_name(t->type), "shape", shape, "bytes", (json_int_t)t->size));
    }
    return out;
}

static json_t *numbers(const struct model *m)
{
    const struct model_config *c = model_config(m);
    return json_pack(
        "{s:o,s:s,s:s,s:I,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:f,s:s,s:i,s:f,s:f,s:b,s:b,s:I,s:i,s:i,s:i}",
        "name", text(c->name, strlen(c->name)), "architecture", c->arch, "quantization", c->quantization,
        "parameters", (json_int_t)c->n_params, "layers", (int)c->n_layers, "embedding", (int)c->n_embd,
        "feed_forward", (int)c->n_ff, "vocabulary", (int)c->n_vocab, "heads", (int)c->n_heads, "kv_heads",
        (int)c->n_kv_heads, "head_dim", (int)c->head_dim, "context", (json_int_t)c->n_ctx_train, "norm_eps",
        (double)c->norm_eps, "rope", c->rope == MODEL_ROPE_NEOX ? "neox" : "norm", "rope_dim",
        (int)c->kinds[0].rope.dim, "rope_base", c->kinds[0].rope.base, "rope_scale", c->kinds[0].rope.scale,
        "rope_factors", c->kinds[0].rope.factors != NULL, "tied", (int)c->tied, "sliding_window",
        (json_int_t)c->sliding_window, "experts", (int)c->experts.n_experts, "experts_used",
        (int)c->experts.n_used, "expert_feed_forward", (int)c->experts.n_ff);
}

static json_t *memory(const struct inspection *in)
{
    struct inspection_memory m = inspection_memory(in);
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "weights", (json_int_t)m.weights,
                     "kv_per_token", (json_int_t)m.kv_per_token, "kv_per_page", (json_int_t)m.kv_per_page,
                     "kv_per_slot", (json_int_t)m.kv_per_slot, "windows_per_slot", (json_int_t)m.windows,
                     "states_per_slot", (json_int_t)m.states, "scratch", (json_int_t)m.scratch,
                     "sampling_per_slot", (json_int_t)m.sampling, "n_ctx", (json_int_t)m.n_ctx, "available",
                     (json_int_t)m.available, "n_ctx_fits", (json_int_t)m.n_ctx_fits);
}

/* The name of a weight, or null. */
static json_t *weight_name(const struct model *m, uint32_t index)
{
    const struct weight *w = model_weight(m, index);
    return w ? text(w->name, strlen(w->name)) : json_null();
}

static json_t *graph_nodes(const struct inspection *in)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < in->graph->n_nodes; i++) {
        const struct graph_node *n = &in->graph->nodes[i];
        json_t *inputs = json_array();
        for (uint32_t j = 0; j < graph_op_arity(n->op); j++)
            json_array_append_new(inputs, json_integer(n->inputs[j]));
        json_array_append_new(
            out, json_pack("{s:i,s:s,s:s,s:i,s:o,s:o,s:b}", "node", (int)i, "op", graph_op_name(n->op),
                           "name", n->name, "width", (int)n->width, "inputs", inputs, "weight",
                           weight_name(in->model, n->op == GRAPH_RMS_NORM ? n->gain : n->weight), "head",
                           (int)n->head));
    }
    return out;
}

/* A counter's number, or null for PROGRAM_NONE. */
static json_t *counter(uint32_t index)
{
    return index == PROGRAM_NONE ? json_null() : json_integer(index);
}

static json_t *program_ops(const struct inspection *in)
{
    json_t *out = json_array();
    for (uint32_t i = 0; i < in->program->n_ops; i++) {
        const struct program_op *op = &in->program->ops[i];
        json_t *weights = json_array();
        for (uint32_t j = 0; j < op->n_weights; j++)
            json_array_append_new(weights, weight_name(in->model, op->weight[j]));
        json_array_append_new(out, json_pack("{s:i,s:s,s:i,s:o,s:o,s:o,s:i,s:s}", "op", (int)i, "opcode",
                                             program_opcode_name(op->opcode), "layer", (int)op->layer,
                                             "weights", weights, "wait", counter(op->wait), "signal",
                                             counter(op->signal), "nodes", (int)op->n_nodes, "last_node",
                                             in->graph->nodes[op->node].name));
    }
    return out;
}

int inspection_print_json(const struct inspection *in)
{
    json_t *root =
        json_pack("{s:o,s:i,s:I,s:o,s:o}", "file", text(in->path, strlen(in->path)), "gguf_version",
                  (int)gguf_version(in->gguf), "bytes", (json_int_t)gguf_file_size(in->gguf), "metadata",
                  metadata(in->gguf), "tensors", tensors(in->gguf));
    if (in->error)
        json_object_set_new(root, "error", text(in->error, strlen(in->error)));
    if (in->model) {
        json_object_set_new(root, "model", numbers(in->model));
        json_object_set_new(root, "memory", memory(in));
    }
    if (in->model && in->show_graph)
        json_object_set_new(root, "graph", graph_nodes(in));
    if (in->model && in->show_program)
        json_object_set_new(root, "program", program_ops(in));
    size_t flags =
        JSON_INDENT(1) | (isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0); /* a terminal obeys some */
    int rc = root && json_dumpf(root, stdout, flags) == 0 && putchar('\n') != EOF ? 0 : -ENOMEM;
    json_decref(root);
    return rc;
}
