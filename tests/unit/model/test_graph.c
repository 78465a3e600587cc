/* The graph's checks, and the graphs that the architectures build. */
#include "backend/executor.h"
#include "support/failing_alloc.h"
#include "model/graph.h"
#include "gguf/quant.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A graph made by hand, without a model: weights are numbers that are never looked up. */

static struct graph_node node(enum graph_op op, const char *name, uint32_t width, uint32_t a, uint32_t b)
{
    struct graph_node n = {.op = op,
                           .inputs = {a, b},
                           .width = width,
                           .weight = MODEL_NO_WEIGHT,
                           .bias = MODEL_NO_WEIGHT,
                           .gain = MODEL_NO_WEIGHT};
    (void)snprintf(n.name, sizeof n.name, "%s", name);
    return n;
}

static uint32_t mul_mat(struct graph *g, const char *name, uint32_t in, uint32_t width, uint32_t k)
{
    struct graph_node n = node(GRAPH_MUL_MAT, name, width, in, GRAPH_NO_INPUT);
    n.k = k;
    n.weight = g->n_nodes;
    n.weight_type = QUANT_Q4_K;
    return graph_add(g, n);
}

enum { LEAF, NORM, Q, K, V, COPY, ATTENTION, ADD, GATE, ACT, GATED, LOGITS, CHOICE };

/* {leaf, RmsNorm, Q, K, V, cache, attention, Add}: 4 heads of 64 on 2. */
static struct graph *layer(void)
{
    struct graph *g = calloc(1, sizeof *g);
    cr_assert_not_null(g);
    graph_add(g, node(GRAPH_NONE, "x", 256, GRAPH_NO_INPUT, GRAPH_NO_INPUT));
    struct graph_node norm = node(GRAPH_RMS_NORM, "norm", 256, LEAF, GRAPH_NO_INPUT);
    norm.group = 256;
    norm.eps = 1e-6f;
    norm.gain = 0;
    graph_add(g, norm);
    mul_mat(g, "q", NORM, 256, 256);
    mul_mat(g, "k", NORM, 128, 256);
    mul_mat(g, "v", NORM, 128, 256);
    struct graph_node copy = node(GRAPH_COPY, "cache", 128, K, V);
    copy.group = 64;
    copy.n_kv_heads = 2;
    graph_add(g, copy);
    struct graph_node attention = node(GRAPH_SOFT_MAX, "attention", 256, Q, COPY);
    attention.group = 64;
    attention.n_heads = 4;
    attention.n_kv_heads = 2;
    attention.scale = 0.125f;
    graph_add(g, attention);
    graph_add(g, node(GRAPH_ADD, "sum", 256, LEAF, ATTENTION));
    return g;
}

/* The layer, then silu(gate) * gate, logits and a choice: every op but EMBED and ROPE. */
static struct graph *tail(void)
{
    struct graph *g = layer();
    mul_mat(g, "gate", ADD, 512, 256);
    graph_add(g, node(GRAPH_SILU, "act", 512, GATE, GRAPH_NO_INPUT));
    graph_add(g, node(GRAPH_MUL, "gated", 512, ACT, GATE));
    mul_mat(g, "logits", GATED, 1000, 512);
    g->nodes[LOGITS].head = true;
    graph_add(g, node(GRAPH_ARGMAX, "choice", 1, LOGITS, GRAPH_NO_INPUT));
    g->nodes[CHOICE].head = true;
    return g;
}

/* The graph is refused with words that name the node and hold this text. */
static void refused(struct graph *g, const char *name, const char *words)
{
    struct error err = {0};
    int rc = graph_validate(g, &err);
    cr_assert_eq(rc, -EINVAL, "%d, expected a refusal that says \"%s\"", rc, words);
    char named[64];
    (void)snprintf(named, sizeof named, " %s (", name);
    cr_assert_not_null(strstr(err.text, named), "\"%s\" does not name %s", err.text, name);
    cr_assert_not_null(strstr(err.text, words), "\"%s\" does not say \"%s\"", err.text, words);
    graph_close(g);
}

Test(graph, made_by_hand_is_valid)
{
    struct graph *g = tail();
    struct error err = {0};
    cr_assert_eq(graph_validate(g, &err), 0, "%s", err.text);
    graph_close(g);
}

Test(graph, refuses_an_input_that_does_not_come_earlier)
{
    struct graph *g = tail();
    g->nodes[Q].inputs[0] = ADD;
    refused(g, "q", "input 0 is node 7, which does not come earlier");
    g = tail();
    g->nodes[ADD].inputs[1] = ADD;
    refused(g, "sum", "input 1 is node 7");
    g = tail();
    g->nodes[ACT].inputs[0] = 1u << 31;
    refused(g, "act", "does not come earlier");
}

Test(graph, refuses_too_few_and_too_many_inputs)
{
    struct graph *g = tail();
    g->nodes[ADD].inputs[1] = GRAPH_NO_INPUT;
    refused(g, "sum", "input 1 is missing");
    g = tail();
    g->nodes[ACT].inputs[1] = GATE;
    refused(g, "act", "takes 1 inputs");
    g = tail();
    g->nodes[LEAF].inputs[0] = 0;
    refused(g, "x", "takes 0 inputs");
}

Test(graph, refuses_an_op_that_does_not_exist)
{
    struct graph *g = tail();
    g->nodes[V].op = GRAPH_N_OPS;
    char words[32];
    (void)snprintf(words, sizeof words, "unknown op %d", GRAPH_N_OPS);
    refused(g, "v", words);
}

Test(graph, refuses_widths_that_do_not_fit)
{
    struct graph *g = tail();
    g->nodes[LEAF].width = 0;
    refused(g, "x", "width is 0");
    g = tail();
    g->nodes[K].k = 128;
    refused(g, "k", "k is 128, but input norm has 256");
    g = tail();
    g->nodes[ADD].width = 128;
    refused(g, "sum", "width is 128, but input x has 256");
    g = tail();
    g->nodes[V].width = 64;
    refused(g, "cache", "width is 128, but input v has 64");
    g = tail();
    g->nodes[GATED].inputs[1] = ADD;
    refused(g, "gated", "width is 512, but input sum has 256");
    g = tail();
    g->nodes[CHOICE].width = 1000;
    refused(g, "choice", "width is 1000, expected 1");
}

Test(graph, refuses_missing_weights_and_types_it_cannot_compute_with)
{
    struct graph *g = tail();
    g->nodes[Q].weight = MODEL_NO_WEIGHT;
    refused(g, "q", "weight is missing");
    g = tail();
    g->nodes[GATE].weight_type = 41;
    refused(g, "gate", "weight type Q1_0 (41) is not supported");
}

Test(graph, refuses_a_factor_that_is_not_positive_and_a_part_that_is_too_wide)
{
    struct graph *g = tail();
    struct graph_node scale = node(GRAPH_SCALE, "scaled", 1000, LOGITS, GRAPH_NO_INPUT);
    scale.head = true;
    graph_add(g, scale);
    refused(g, "scaled", "scale is 0");
    g = tail();
    scale.op = GRAPH_SOFT_CAP;
    graph_add(g, scale);
    refused(g, "scaled", "scale is 0");
    g = tail();
    g->nodes[GATED].col = 1;
    refused(g, "gated", "input gate has 512 from column 1");
}

/* The tail, and two heads of 64 of the values, of which each multiplies 48 from column 4 on and keeps 12. */
static struct graph *with_heads(void)
{
    struct graph *g = tail();
    struct graph_node heads = node(GRAPH_MUL_MAT_HEADS, "heads", 2 * (12 + 32), V, GRAPH_NO_INPUT);
    heads.n_heads = 2;
    heads.col = 4;
    heads.k = 48;
    heads.keep = 12;
    heads.weight = 0;
    graph_add(g, heads);
    graph_add(g, node(GRAPH_JOIN, "joined", 128 + 88, V, CHOICE + 1));
    return g;
}

Test(graph, refuses_heads_whose_parts_do_not_make_a_row_and_joins_of_another_width)
{
    struct graph *g = with_heads();
    struct error err = {0};
    cr_assert_eq(graph_validate(g, &err), 0, "%s", err.text);
    g->nodes[CHOICE + 1].col = 5;
    refused(g, "heads", "2 heads of 65 (at most 512 heads) do not make the width 128 of v");
    g = with_heads();
    g->nodes[CHOICE + 1].n_heads = 0;
    refused(g, "heads", "0 heads of 64");
    g = with_heads();
    g->nodes[CHOICE + 1].width = 2 * 12;
    refused(g, "heads", "width is 24 for 2 heads that keep 12");
    g = with_heads();
    g->nodes[CHOICE + 1].weight = MODEL_NO_WEIGHT;
    refused(g, "heads", "weight is missing");
    g = with_heads();
    g->nodes[CHOICE + 2].width = 217;
    refused(g, "joined", "width is 217, but its inputs have 128 and 88");
}

Test(graph, refuses_an_epsilon_or_a_scale_that_is_not_positive)
{
    const float values[] = {0, -1e-6f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        struct graph *g = tail();
        g->nodes[NORM].eps = values[i];
        refused(g, "norm", "eps is");
        g = tail();
        g->nodes[ATTENTION].scale = values[i];
        refused(g, "attention", "scale is");
    }
}

Test(graph, refuses_a_norm_whose_group_does_not_divide_its_width)
{
    struct graph *g = tail();
    g->nodes[NORM].group = 100;
    refused(g, "norm", "width 256 is not a multiple of its group 100");
    g = tail();
    g->nodes[NORM].group = 0;
    refused(g, "norm", "group 0");
}

Test(graph, refuses_heads_that_do_not_make_up_the_width)
{
    struct graph *g = tail();
    g->nodes[ATTENTION].n_heads = 8;
    refused(g, "attention", "8 heads of 64 do not make its width 256");
    g = tail();
    g->nodes[COPY].group = 63;
    refused(g, "cache", "head length 63 is not even");
    g = tail();
    g->nodes[ATTENTION].n_kv_heads = 3;
    refused(g, "attention", "4 heads cannot share 3 key/value heads");
    g = tail();
    g->nodes[ATTENTION].n_kv_heads = 0;
    refused(g, "attention", "4 heads cannot share 0");
    g = tail();
    g->nodes[ATTENTION].n_kv_heads = 1;
    refused(g, "attention", "do not make the width 128 of cache");
}

Test(graph, refuses_attention_that_does_not_read_its_own_layers_cache)
{
    struct graph *g = tail();
    g->nodes[ATTENTION].inputs[1] = K;
    refused(g, "attention", "input 1 is k, expected the COPY");
    g = tail();
    g->nodes[COPY].layer = 1;
    refused(g, "attention", "attends in layer 0, but cache writes layer 1");
    g = tail();
    g->nodes[COPY].layer = g->nodes[ATTENTION].layer = MODEL_MAX_LAYERS;
    refused(g, "cache", "layer 256 of 256");
}

Test(graph, refuses_two_writers_of_one_layers_cache)
{
    struct graph *g = layer();
    struct graph_node again = g->nodes[COPY];
    (void)snprintf(again.name, sizeof again.name, "again");
    graph_add(g, again);
    refused(g, "again", "node cache already writes the cache of layer 0");
}

Test(graph, refuses_nodes_for_every_row_that_read_logit_rows)
{
    struct graph *g = tail();
    g->nodes[GATE].head = true;
    refused(g, "act", "runs for every row, but its input gate only for logit rows");
    g = tail();
    g->nodes[CHOICE].head = g->nodes[LOGITS].head = false;
    refused(g, "choice", "samples for every row");
    g = tail();
    g->nodes[COPY].head = true;
    refused(g, "cache", "must run for every row");
}

Test(graph, embedding_reads_a_leaf)
{
    struct graph *g = layer();
    struct graph_node embed = node(GRAPH_EMBED, "embed", 256, ADD, GRAPH_NO_INPUT);
    embed.weight = 0;
    graph_add(g, embed);
    refused(g, "embed", "input sum is not a leaf");
}

Test(graph, remembers_that_it_ran_out_of_memory)
{
    struct graph *g = layer();
    struct graph_node leaf = node(GRAPH_NONE, "leaf", 1, GRAPH_NO_INPUT, GRAPH_NO_INPUT);
    while (g->n_nodes < g->capacity)
        graph_add(g, leaf);
    fail_alloc_after(0);
    graph_add(g, leaf);
    fail_alloc_never();
    graph_add(g, leaf);
    cr_assert_eq(graph_validate(g, NULL), -ENOMEM);
    graph_close(g);
}

/* The walk. */

struct log { /* what a dispatch has seen */
    uint32_t n, nodes[32], fail_at;
};

static int record(void *context, uint32_t i, struct error *err)
{
    struct log *log = context;
    if (i == log->fail_at)
        return error_set(err, -EIO, "the kernel fell over");
    log->nodes[log->n++] = i;
    usleep(1); /* some time, which the clock can see */
    return 0;
}

Test(walk, of_an_empty_graph_launches_nothing)
{
    struct graph g = {0};
    struct log log = {.fail_at = GRAPH_NO_INPUT};
    cr_assert_eq(graph_validate(&g, NULL), 0);
    cr_assert_eq(executor_walk(&g, &(struct executor_walk){record, &log, NULL}, NULL), 0);
    cr_assert_eq(log.n, 0);
    cr_assert_eq(graph_n_launches(&g), 0);
}

Test(walk, launches_every_node_but_leaves_once_and_in_order)
{
    struct graph *g = layer();
    struct log log = {.fail_at = GRAPH_NO_INPUT};
    cr_assert_eq(executor_walk(g, &(struct executor_walk){record, &log, NULL}, NULL), 7);
    cr_assert_eq(graph_n_launches(g), 7);
    cr_assert_eq(log.n, 7);
    for (uint32_t i = 0; i < log.n; i++)
        cr_assert_eq(log.nodes[i], i + 1);
    graph_close(g);
}

Test(walk, stops_at_the_first_error_and_names_the_node)
{
    struct graph *g = layer();
    struct log log = {.fail_at = V};
    struct error err = {0};
    cr_assert_eq(executor_walk(g, &(struct executor_walk){record, &log, NULL}, &err), -EIO);
    cr_assert_eq(log.n, 3);
    cr_assert_str_eq(err.text, "node 4 v (MUL_MAT): the kernel fell over");
    graph_close(g);
}

Test(walk, adds_the_time_of_each_node_that_is_launched)
{
    struct graph *g = layer();
    struct log log = {.fail_at = GRAPH_NO_INPUT};
    uint64_t ns[16] = {0};
    struct executor_timing timing = {.node_ns = ns};
    cr_assert_leq(g->n_nodes, 16);
    cr_assert_eq(executor_walk(g, &(struct executor_walk){record, &log, &timing}, NULL), 7);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        cr_assert_eq(ns[i] > 0, g->nodes[i].op != GRAPH_NONE, "node %u", i);
    graph_close(g);
}

/* Graphs of models. */

static struct graph *graph_of(const char *name, struct model **m)
{
    char path[512];
    struct error err = {0};
    struct graph *g = NULL;
    (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, name);
    cr_assert_eq(model_open(m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&g, *m, &err), 0, "%s", err.text);
    return g;
}

Test(graph, of_a_model_has_17_nodes_a_layer_and_19_with_normed_heads)
{
    struct model *m;
    struct graph *g = graph_of("tiny-llama3-s15-q4_k_m", &m);
    cr_assert_eq(graph_n_launches(g), 1 + 2 * 17 + 3);
    graph_close(g);
    model_close(m);
    g = graph_of("tiny-qwen3-s11-q8_0", &m);
    cr_assert_eq(graph_n_launches(g), 1 + 3 * 19 + 3);
    graph_close(g);
    model_close(m);
}

Test(graph, of_a_model_refuses_a_weight_of_another_shape_or_type_than_the_models)
{
    struct model *m;
    struct graph *g = graph_of("tiny-qwen3-s11-q8_0", &m);
    g->nodes[3].weight = model_find_weight(m, "blk.0.ffn_down.weight");
    refused(g, "blk.0.attn_q", "weight blk.0.ffn_down.weight is [256, 512], expected [256, 256]");
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    g->nodes[3].weight_type = QUANT_Q4_K;
    refused(g, "blk.0.attn_q", "names weight type Q4_K, but blk.0.attn_q.weight is Q8_0");
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    g->nodes[3].weight = 100000;
    refused(g, "blk.0.attn_q", "weight is number 100000, the model has");
    model_close(m);
}

Test(graph, prints_one_line_for_each_node)
{
    struct model *m;
    struct graph *g = graph_of("tiny-llama3-s15-q4_k_m", &m);
    char *text = graph_print(g);
    cr_assert_not_null(text);
    uint32_t lines = 0;
    for (char *p = text; (p = strchr(p, '\n')); p++)
        lines++;
    cr_assert_eq(lines, g->n_nodes);
    cr_assert_not_null(strstr(text, "blk.1.ffn_down"));
    cr_assert_not_null(strstr(text, "Q6_K [256, 512]"));
    free(text);
    graph_close(g);
    model_close(m);
}
