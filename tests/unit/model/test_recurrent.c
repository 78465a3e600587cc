/* Models with recurrent layers: their numbers, tensors and programs. */
#include "model/graph.h"
#include "model/model.h"
#include "model/program.h"
#include "support/models/made_model.h"
#include "support/models/variant_model.h"

#include <errno.h>

static char made[64];

static void make_dense(void)
{
    made_model("tiny-qwen35", "q4_k_m", made);
}

static void make_experts(void)
{
    made_model("tiny-qwen3next", "q8_0", made);
}

static void unmake(void)
{
    (void)unlink(made);
}

static struct model *opened(void)
{
    struct error err = {0};
    struct model *m = NULL;
    cr_assert_eq(model_open(&m, made, &err), 0, "%s", err.text);
    return m;
}

Test(recurrent, three_of_four_layers_have_a_state_and_the_fourth_a_cache, .init = make_dense, .fini = unmake)
{
    struct model *m = opened();
    const struct model_config *c = model_config(m);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(c->layers[i].recurrent, i < 3, "layer %u", i);
        cr_assert_eq(c->layers[i].cache, i < 3 ? i : 0, "layer %u", i);
    }
    cr_assert_eq(c->n_recurrent, 3);
    cr_assert_eq(c->kinds[0].n_caches, 1);
    cr_assert_eq(c->kinds[0].rope.dim, 16);
    size_t floats = 3 * (2 * 2 * 48 + 6 * 48) + 6 * 48 * 48; /* of a layer: 3 old rows, 6 heads */
    cr_assert_eq(model_state_size(c), 3 * floats * sizeof(float));
    model_close(m);
}

static void expect_key_heads(const uint32_t wanted[4], bool adjacent)
{
    struct model *m = opened();
    cr_assert_eq(model_config(m)->delta.adjacent, adjacent);
    const struct delta_shape shape = {.n_key_heads = 2, .n_value_heads = 4, .adjacent = adjacent};
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(delta_key_head(&shape, i), wanted[i], "value head %u", i);
    model_close(m);
}

/* The converter of qwen35 has put the value heads into another order, that of qwen3next has not. */
Test(recurrent, value_heads_of_qwen35_take_the_key_heads_in_turn, .init = make_dense, .fini = unmake)
{
    expect_key_heads((const uint32_t[4]){0, 1, 0, 1}, false);
}

Test(recurrent, value_heads_of_qwen3next_that_share_a_key_head_are_adjacent, .init = make_experts,
     .fini = unmake)
{
    expect_key_heads((const uint32_t[4]){0, 0, 1, 1}, true);
}

Test(recurrent, names_the_key_whose_number_no_delta_net_here_has, .init = make_dense, .fini = unmake)
{
    refused(made, -ENOTSUP, "qwen35.ssm.conv_kernel is 9, expected 2 to 8",
            EDITS(SET_U32("qwen35.ssm.conv_kernel", 9)));
    refused(made, -ENOTSUP, "qwen35.ssm.state_size is 40, expected a multiple of 16",
            EDITS(SET_U32("qwen35.ssm.state_size", 40)));
    refused(made, -ENOTSUP, "qwen35.ssm.time_step_rank is 5, expected a multiple of ssm.group_count",
            EDITS(SET_U32("qwen35.ssm.time_step_rank", 5)));
    refused(made, -ENOTSUP, "qwen35.ssm.inner_size is 290", EDITS(SET_U32("qwen35.ssm.inner_size", 290)));
    refused(made, -ENOTSUP, "qwen35.full_attention_interval is 0",
            EDITS(SET_U32("qwen35.full_attention_interval", 0)));
    refused(made, -ENOTSUP, "none of 4 layers has attention",
            EDITS(SET_U32("qwen35.full_attention_interval", 9)));
    refused(made, -EBADMSG, "key qwen35.ssm.group_count is missing",
            EDITS(DROP_KEY("qwen35.ssm.group_count")));
    refused(made, -EBADMSG, "attention.recurrent_layers is not an array",
            EDITS(SET_U32("qwen35.attention.recurrent_layers", 1)));
}

Test(recurrent, names_the_tensor_that_is_missing_or_has_another_shape_or_type, .init = make_dense,
     .fini = unmake)
{
    refused(made, -EBADMSG, "tensor blk.1.ssm_a is missing", EDITS(DROP_TENSOR("blk.1.ssm_a")));
    refused(made, -EBADMSG, "tensor blk.0.ssm_dt.bias has shape [5",
            EDITS(SET_TENSOR("blk.0.ssm_dt.bias", QUANT_F32, 5, 1)));
    refused(made, -EBADMSG, "tensor blk.2.ssm_conv1d.weight has shape [3, 480",
            EDITS(SET_TENSOR("blk.2.ssm_conv1d.weight", QUANT_F32, 3, 480)));
    refused(made, -ENOTSUP, "blk.2.ssm_conv1d.weight is a table of type F16",
            EDITS(SET_TENSOR("blk.2.ssm_conv1d.weight", QUANT_F16, 4, 480)));
    refused(made, -EBADMSG, "tensor blk.3.post_attention_norm.weight is missing",
            EDITS(DROP_TENSOR("blk.3.post_attention_norm.weight")));
}

/* The rows of a head's query stand before those of its gate. */
Test(recurrent, queries_and_gates_are_every_other_run_of_rows_of_one_tensor, .init = make_dense,
     .fini = unmake)
{
    struct model *m = opened();
    struct error err = {0};
    uint32_t q = model_find_weight(m, "blk.3.attn_q.weight"),
             gate = model_find_weight(m, "blk.3.attn_q_gate.weight");
    const struct gguf_tensor *t = gguf_find_tensor(model_gguf(m), "blk.3.attn_q.weight");
    cr_assert(q != MODEL_NO_WEIGHT && gate != MODEL_NO_WEIGHT);
    size_t row = quant_size(t->type, 256), half = 256 * row;
    uint8_t *whole = tensor_bytes(model_gguf(m), t), *parts[2] = {malloc(half), malloc(half)};
    /* In pieces that begin and end inside runs. */
    for (size_t at = 0, n = 37 * row; at < half; at += n) {
        n = half - at < n ? half - at : n;
        cr_assert_eq(model_read_weight(m, q, at, parts[0] + at, n, &err), 0, "%s", err.text);
        cr_assert_eq(model_read_weight(m, gate, at, parts[1] + at, n, &err), 0, "%s", err.text);
    }
    for (uint32_t r = 0; r < 512; r++) { /* heads of 64 */
        const uint8_t *part = parts[r / 64 % 2] + (r / 128 * 64 + r % 64) * row;
        cr_assert_eq(memcmp(part, whole + r * row, row), 0, "row %u", r);
    }
    free(whole);
    free(parts[0]);
    free(parts[1]);
    model_close(m);
}

Test(recurrent, experts_whose_gate_and_up_are_one_tensor_have_both, .init = make_experts, .fini = unmake)
{
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(
        open_edited(&m, made,
                    EDITS(DROP_TENSOR("blk.0.ffn_gate_exps.weight"), DROP_TENSOR("blk.0.ffn_up_exps.weight"),
                          SET_EXPERTS("blk.0.ffn_gate_up_exps.weight", QUANT_Q8_0, 256, 320, 8)),
                    &err),
        0, "%s", err.text);
    const struct weight *up = model_weight(m, model_find_weight(m, "blk.0.ffn_up_exps.weight"));
    cr_assert(up && up->n == 8 * 160 && up->k == 256 && up->n_experts == 8);
    cr_assert(up->rows[0].run == 160 && up->rows[0].every == 320 && up->rows[0].first == 160);
    model_close(m);
}

/* The opcodes of the first layer, and of the last one, up to the feed-forward. */
Test(recurrent, a_layer_becomes_five_ops_and_gated_attention_four, .init = make_dense, .fini = unmake)
{
    static const struct {
        enum program_opcode opcode;
        enum program_epilogue epilogue;
    } first[] = {{PROGRAM_MATMUL, PROGRAM_STORE},
                 {PROGRAM_CONV, 0},
                 {PROGRAM_DELTA, 0},
                 {PROGRAM_MATMUL, PROGRAM_TIMES_SILU},
                 {PROGRAM_MATMUL, PROGRAM_RESIDUAL}},
      last[] = {{PROGRAM_MATMUL, PROGRAM_STORE},
                {PROGRAM_ATTEND, 0},
                {PROGRAM_MATMUL, PROGRAM_TIMES_SIGMOID},
                {PROGRAM_MATMUL, PROGRAM_RESIDUAL}};
    struct model *m = opened();
    struct graph *g = NULL;
    struct program *p = NULL;
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    cr_assert_eq(program_open(&p, g, NULL), 0);
    cr_assert_eq(p->n_ops, 1 + 3 * 7 + 6 + 2);
    for (uint32_t i = 0; i < 5; i++)
        cr_assert(p->ops[1 + i].opcode == first[i].opcode && p->ops[1 + i].epilogue == first[i].epilogue,
                  "%u", i);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert(p->ops[22 + i].opcode == last[i].opcode && p->ops[22 + i].epilogue == last[i].epilogue,
                  "%u", i);
    program_close(p);
    graph_close(g);
    model_close(m);
}

static uint32_t node_named(const struct graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    cr_assert_fail("no node %s", name);
    return 0;
}

Test(recurrent, a_net_that_is_put_together_otherwise_is_refused_by_name, .init = make_dense, .fini = unmake)
{
    struct model *m = opened();
    struct graph *g = NULL;
    struct program *p = NULL;
    struct error err = {0};
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    g->nodes[node_named(g, "blk.1.attn_gate_silu")].op = GRAPH_SIGMOID;
    cr_assert_eq(program_open(&p, g, &err), -ENOTSUP);
    cr_assert_not_null(strstr(err.text, "blk.1.attn_norm"), "%s", err.text);
    graph_close(g);
    cr_assert_eq(graph_open(&g, m, NULL), 0);
    err = (struct error){0};
    g->nodes[node_named(g, "blk.0.ssm_scan")].width--;
    cr_assert_eq(graph_validate(g, &err), -EINVAL);
    cr_assert_not_null(strstr(err.text, "blk.0.ssm_scan"), "%s", err.text);
    graph_close(g);
    model_close(m);
}
