/* tests/support/node_compare.h: a wrong number names its node, row, index, bits and inputs. Here the wrong
 * one comes from a model's file with one changed byte; tests/ptx has one that comes from a kernel. */
#include "support/decoder_run.h"
#include "support/node_compare.h"

#include <unistd.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q8_0.gguf"

static const struct decoder_run_config eager = {.path = MODEL, .kind = EXECUTOR_EAGER};

/* Opens a copy of the model in which one byte of a tensor, `at` from its beginning, is another. */
static void open_changed(struct decoder_run *r, const char *tensor, size_t at)
{
    struct decoder_run_config c = eager;
    char path[] = "/tmp/hearth-changed-XXXXXX", command[300];
    struct model *m = NULL;
    close(mkstemp(path));
    (void)snprintf(command, sizeof command, "cp %s %s", MODEL, path);
    cr_assert_eq(system(command), 0);
    cr_assert_eq(model_open(&m, path, NULL), 0);
    const struct gguf *g = model_gguf(m);
    off_t offset = -1;
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++)
        if (strcmp(gguf_tensor_at(g, i)->name, tensor) == 0)
            offset = (off_t)(gguf_tensor_at(g, i)->offset + at);
    model_close(m);
    FILE *f = fopen(path, "r+e");
    cr_assert(f && offset > 0);
    fseeko(f, offset, SEEK_SET);
    int byte = fgetc(f);
    fseeko(f, offset, SEEK_SET);
    fputc(byte ^ 1, f);
    fclose(f);
    c.path = path;
    decoder_run_open(r, &c);
    unlink(path);
}

/* Compares a step of three rows, of which the last has logits, and then one of one row. */
static void compare(struct decoder_run *want, struct decoder_run *got, struct node_difference *d)
{
    struct error err = {0};
    *d = (struct node_difference){0};
    for (uint32_t n = 3, pos = 0; n > 0 && !d->found; pos += n, n /= 2) {
        memset(want->step, 0, offsetof(struct step, rows));
        for (uint32_t i = 0; i < n; i++)
            decoder_run_row(want, 0, pos + i, (int32_t)(3 * i + 7), i + 1 == n);
        want->step->id = pos + 1;
        cr_assert_eq(node_compare(want->x, got->x, want->step, d, &err), 0, "%s", err.text);
    }
}

Test(node_compare, equal_models_have_no_difference)
{
    struct decoder_run a, b;
    struct node_difference d;
    decoder_run_open(&a, &eager);
    decoder_run_open(&b, &eager);
    compare(&a, &b, &d);
    cr_assert(!d.found);
    decoder_run_close(&a);
    decoder_run_close(&b);
}

/* Q8_0: 34 bytes a block of 32 values, the weights behind a 16-bit scale: byte 2 of the matrix belongs to its
 * row 0, and so to value 0 of the product alone. */
Test(node_compare, a_changed_weight_names_the_product_its_value_and_its_input)
{
    struct decoder_run a, b;
    struct node_difference d;
    char words[400];
    decoder_run_open(&a, &eager);
    open_changed(&b, "blk.1.ffn_gate.weight", 2);
    compare(&a, &b, &d);
    const struct graph *g = executor_graph(a.x);
    cr_assert(d.found);
    cr_assert_str_eq(g->nodes[d.node].name, "blk.1.ffn_gate");
    cr_assert(d.step == 1 && d.index == 0 && d.n_values == 1 && d.n_rows >= 1 && d.want != d.got);
    cr_assert(d.n_inputs == 1 && d.inputs[0].node == g->nodes[d.node].inputs[0] && d.inputs[0].factor != 1);
    node_difference_say(&d, g, words, sizeof words);
    cr_assert_not_null(strstr(words, "blk.1.ffn_gate (MUL_MAT Q8_0), step 1, row "), "%s", words);
    cr_assert_not_null(strstr(words, "value 0 is "), "%s", words);
    node_difference_close(&d);
    decoder_run_close(&a);
    decoder_run_close(&b);
}

Test(node_compare, a_changed_gain_names_the_norm)
{
    struct decoder_run a, b;
    struct node_difference d;
    decoder_run_open(&a, &eager);
    open_changed(&b, "blk.0.ffn_norm.weight", 4 * 5 + 2);
    compare(&a, &b, &d);
    cr_assert_str_eq(executor_graph(a.x)->nodes[d.node].name, "blk.0.ffn_norm");
    cr_assert(d.index == 5 && d.row == 0 && d.n_rows == 3 && d.n_values == 1);
    node_difference_close(&d);
    decoder_run_close(&a);
    decoder_run_close(&b);
}
