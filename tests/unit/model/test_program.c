/* Fusion of a graph into a program. */
#include "support/failing_alloc.h"
#include "model/graph.h"
#include "model/program.h"
#include "support/models/variant.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define LLAMA "tiny-llama3-s15-q4_k_m"
#define QWEN2 "tiny-qwen2-odd-s13-q5_0"
#define QWEN3 "tiny-qwen3-s11-q4_k_m"

struct fused {
    struct model *m;
    struct graph *g;
    struct program *p;
};

static struct fused fused(const char *name)
{
    char path[512];
    struct error err = {0};
    struct fused f = {0};
    (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, name);
    cr_assert_eq(model_open(&f.m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&f.g, f.m, &err), 0, "%s", err.text);
    cr_assert_eq(program_open(&f.p, f.g, &err), 0, "%s", err.text);
    return f;
}

static void fused_close(struct fused *f)
{
    program_close(f->p);
    graph_close(f->g);
    model_close(f->m);
}

static uint32_t node_named(const struct graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    cr_assert_fail("no node %s", name);
    return 0;
}

/* After a change to the graph, fusing fails and names this node. */
static void refused(struct fused *f, const char *name)
{
    struct error err = {0};
    struct program *p = NULL;
    char named[64];
    (void)snprintf(named, sizeof named, " %s (", name);
    cr_assert_eq(program_open(&p, f->g, &err), -ENOTSUP, "%s", err.text);
    cr_assert_not_null(strstr(err.text, named), "\"%s\" does not name %s", err.text, name);
    fused_close(f);
}

/* Returns how often a weight index stands in the program, in any role. */
static uint32_t uses_in_program(const struct program *p, uint32_t weight)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct program_op *op = &p->ops[i];
        for (uint32_t j = 0; j < 3; j++)
            n += (op->weight[j] == weight) + (op->bias[j] == weight);
        n += (op->gain == weight) + (op->q_gain == weight) + (op->k_gain == weight);
    }
    return n;
}

static uint32_t uses_in_graph(const struct graph *g, uint32_t weight)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += (g->nodes[i].weight == weight) + (g->nodes[i].bias == weight) + (g->nodes[i].gain == weight);
    return n;
}

static void covers_the_graph(const char *name)
{
    struct fused f = fused(name);
    uint32_t n_nodes = 0;
    for (uint32_t i = 0; i < f.p->n_ops; i++)
        n_nodes += f.p->ops[i].n_nodes;
    cr_assert_eq(n_nodes, graph_n_launches(f.g), "%s: %u of %u", name, n_nodes, graph_n_launches(f.g));
    for (uint32_t w = 0; w < model_n_weights(f.m); w++)
        cr_assert_eq(uses_in_program(f.p, w), uses_in_graph(f.g, w), "%s: %s", name,
                     model_weight(f.m, w)->name);
    fused_close(&f);
}

Test(program, covers_every_node_and_every_weight_of_each_architecture_once)
{
    covers_the_graph(LLAMA);
    covers_the_graph(QWEN2);
    covers_the_graph(QWEN3);
}

Test(program, has_five_ops_a_layer_and_three_around_them)
{
    struct fused f = fused(QWEN3);
    static const uint16_t expected[5] = {PROGRAM_MATMUL, PROGRAM_ATTEND, PROGRAM_MATMUL, PROGRAM_MATMUL,
                                         PROGRAM_MATMUL};
    static const uint16_t epilogues[5] = {PROGRAM_STORE, 0, PROGRAM_RESIDUAL, PROGRAM_SWIGLU,
                                          PROGRAM_RESIDUAL};
    cr_assert_eq(f.p->n_ops, 3 * 5 + 3);
    cr_assert_eq(f.p->ops[0].opcode, PROGRAM_EMBED);
    for (uint32_t i = 0; i < 15; i++) {
        cr_assert_eq(f.p->ops[1 + i].opcode, expected[i % 5]);
        cr_assert_eq(f.p->ops[1 + i].epilogue, epilogues[i % 5]);
        cr_assert_eq(f.p->ops[1 + i].layer, i / 5);
        cr_assert_eq(f.p->ops[1 + i].flags, 0);
    }
    cr_assert(f.p->ops[16].opcode == PROGRAM_MATMUL && f.p->ops[16].flags == PROGRAM_HEAD);
    cr_assert(f.p->ops[17].opcode == PROGRAM_SAMPLE && f.p->ops[17].flags == PROGRAM_HEAD);
    fused_close(&f);
}

Test(program, multiplies_q_k_and_v_at_once_into_one_row)
{
    struct fused f = fused(QWEN2);
    const struct program_op *op = &f.p->ops[1];
    cr_assert(op->in == PROGRAM_X && op->out == PROGRAM_QKV && op->n_weights == 3 && op->k == 224);
    cr_assert(op->n[0] == 224 && op->n[1] == 32 && op->n[2] == 32);
    cr_assert(op->out_col[0] == 0 && op->out_col[1] == 224 && op->out_col[2] == 256);
    cr_assert_eq(op->weight[0], model_find_weight(f.m, "blk.0.attn_q.weight"));
    cr_assert_eq(op->weight[2], model_find_weight(f.m, "blk.0.attn_v.weight"));
    cr_assert_eq(op->bias[1], model_find_weight(f.m, "blk.0.attn_k.bias"));
    cr_assert_eq(op->gain, model_find_weight(f.m, "blk.0.attn_norm.weight"));
    cr_assert_float_eq(op->eps, 1e-6f, 1e-12);
    fused_close(&f);
}

Test(program, attends_with_the_norms_of_q_and_k)
{
    struct fused f = fused(QWEN3);
    const struct program_op *op = &f.p->ops[2];
    cr_assert(op->in == PROGRAM_QKV && op->out == PROGRAM_ATTN && op->n_nodes == 6);
    cr_assert_eq(op->q_gain, model_find_weight(f.m, "blk.0.attn_q_norm.weight"));
    cr_assert_eq(op->k_gain, model_find_weight(f.m, "blk.0.attn_k_norm.weight"));
    cr_assert_float_eq(op->scale, 0.125f, 0);
    cr_assert(op->n[0] == 256 && op->n[1] == 128 && op->out_col[1] == 256 && op->out_col[2] == 384);
    fused_close(&f);
    f = fused(LLAMA);
    cr_assert(f.p->ops[2].q_gain == PROGRAM_NONE && f.p->ops[2].k_gain == PROGRAM_NONE);
    fused_close(&f);
}

Test(program, gate_stands_before_up_whatever_order_the_graph_has)
{
    struct fused f = fused(LLAMA);
    uint32_t gate = node_named(f.g, "blk.0.ffn_gate"), up = node_named(f.g, "blk.0.ffn_up");
    struct graph_node node = f.g->nodes[gate];
    f.g->nodes[gate] = f.g->nodes[up];
    f.g->nodes[up] = node;
    f.g->nodes[up + 1].inputs[0] = up;
    f.g->nodes[up + 2].inputs[1] = gate;
    cr_assert_eq(graph_validate(f.g, NULL), 0);
    program_close(f.p);
    cr_assert_eq(program_open(&f.p, f.g, NULL), 0);
    cr_assert_eq(f.p->ops[4].weight[0], model_find_weight(f.m, "blk.0.ffn_gate.weight"));
    cr_assert_eq(f.p->ops[4].weight[1], model_find_weight(f.m, "blk.0.ffn_up.weight"));
    fused_close(&f);
}

Test(program, each_op_waits_for_the_one_before_it)
{
    struct fused f = fused(QWEN2);
    cr_assert_eq(f.p->n_counters, f.p->n_ops);
    cr_assert_eq(f.p->ops[0].wait, PROGRAM_NONE);
    for (uint32_t i = 0; i < f.p->n_ops; i++) {
        cr_assert_eq(f.p->ops[i].signal, i);
        cr_assert(i == 0 || f.p->ops[i].wait == f.p->ops[i - 1].signal);
    }
    fused_close(&f);
}

Test(program, buffers_of_a_row_do_not_overlap_and_logits_are_not_among_them)
{
    struct fused f = fused(QWEN2);
    uint32_t end = 0;
    for (uint32_t b = 0; b < PROGRAM_LOGITS; b++) {
        cr_assert_geq(f.p->buffers[b].offset, end);
        cr_assert_eq(f.p->buffers[b].offset % 16, 0);
        end = f.p->buffers[b].offset + f.p->buffers[b].width;
    }
    cr_assert(f.p->row_floats >= end && f.p->row_floats < end + 16);
    cr_assert_eq(f.p->buffers[PROGRAM_X].width, 224);
    cr_assert_eq(f.p->buffers[PROGRAM_QKV].width, 288);
    cr_assert_eq(f.p->buffers[PROGRAM_H].width, 608);
    cr_assert_eq(f.p->buffers[PROGRAM_LOGITS].width, 384);
    fused_close(&f);
}

Test(program, carries_the_models_numbers)
{
    struct fused f = fused(QWEN2);
    cr_assert(f.p->magic == PROGRAM_MAGIC && f.p->version == PROGRAM_VERSION);
    cr_assert(f.p->n_layers == 2 && f.p->n_embd == 224 && f.p->n_ff == 608 && f.p->n_vocab == 384);
    cr_assert(f.p->n_heads == 7 && f.p->n_kv_heads == 1 && f.p->head_dim == 32);
    cr_assert(f.p->rope_dim == 32 && f.p->rope_neox == 1 && f.p->n_ranks == 1 && f.p->rank == 0);
    fused_close(&f);
}

Test(program, refuses_a_node_that_no_pattern_covers)
{
    struct fused f = fused(LLAMA);
    f.g->nodes[node_named(f.g, "blk.1.ffn_silu")].op = GRAPH_RMS_NORM; /* no gate any more */
    refused(&f, "blk.1.ffn_norm");
    f = fused(LLAMA);
    struct graph_node *rope = &f.g->nodes[node_named(f.g, "blk.1.k_rope")];
    rope->op = GRAPH_SILU; /* no position */
    refused(&f, "blk.1.attn_norm");
}

Test(program, refuses_a_value_that_fusing_would_swallow_but_somebody_still_reads)
{
    struct fused f = fused(LLAMA);
    struct graph_node *sum = &f.g->nodes[node_named(f.g, "blk.0.ffn_residual")];
    sum->inputs[0] = node_named(f.g, "blk.0.attn_output"); /* not the stream, but what went into it */
    refused(&f, "blk.0.attn_output");
    f = fused(LLAMA);
    sum = &f.g->nodes[node_named(f.g, "blk.1.attn_residual")];
    sum->inputs[0] = node_named(f.g, "blk.0.attn_residual"); /* the stream of a layer before */
    refused(&f, "blk.0.ffn_residual");
}

Test(program, refuses_norms_of_q_and_k_that_differ)
{
    struct fused f = fused(QWEN3);
    f.g->nodes[node_named(f.g, "blk.2.attn_k_norm")].eps = 1e-5f;
    refused(&f, "blk.2.attn_k_norm");
}

Test(program, refuses_a_graph_without_a_model)
{
    struct graph g = {0};
    struct program *p = NULL;
    cr_assert_eq(program_open(&p, &g, NULL), -EINVAL);
}

Test(program, prints_every_op_with_its_weights)
{
    struct fused f = fused(QWEN3);
    char *text = program_print(f.p, f.g);
    uint32_t lines = 0;
    cr_assert_not_null(text);
    for (char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    cr_assert_eq(lines, f.p->n_ops + 1);
    cr_assert_not_null(strstr(text, "blk.2.ffn_down.weight Q6_K [256, 512]"));
    cr_assert_not_null(strstr(text, "QK-norm"));
    free(text);
    fused_close(&f);
}

Test(program, open_survives_every_allocation_failing)
{
    struct fused f = fused(LLAMA);
    for (long n = 0; n < 3; n++) {
        struct program *p = NULL;
        fail_alloc_after(n);
        int rc = program_open(&p, f.g, NULL);
        fail_alloc_never();
        cr_assert(rc == -ENOMEM && !p, "allocation %ld: %d", n, rc);
    }
    fused_close(&f);
}
