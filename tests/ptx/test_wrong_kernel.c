/* A driver with one wrong kernel, SILU with the first row of mutations.txt: node_compare.h must name it, the
 * value and what it read. */
#include "support/decoder_run.h"
#include "support/node_compare.h"

#include <math.h>

#define MODEL HEARTH_TEST_DATA "/tiny-qwen3-s11-q4_k_m.gguf"

Test(wrong_kernel, is_named_with_its_first_wrong_value_and_its_input)
{
    struct decoder_run cpu, cuda;
    struct decoder_run_config c = {.path = MODEL, .kind = EXECUTOR_EAGER, .n_slots = 2};
    struct node_difference d;
    struct error err = {0};
    char words[400];
    setenv("SIMT_MEMORY_MB", "64", 1);
    decoder_run_open(&cpu, &c);
    c.ops = &cuda_backend;
    c.libcuda = LIBCUDA;
    decoder_run_open(&cuda, &c);
    const struct graph *g = executor_graph(cpu.x);
    decoder_run_row(&cpu, 0, 0, 5, false);
    decoder_run_row(&cpu, 0, 1, 6, true);
    cpu.step->id = 1;
    cr_assert_eq(node_compare(cpu.x, cuda.x, cpu.step, &d, &err), 0, "%s", err.text);
    cr_assert(d.found);
    node_difference_say(&d, g, words, sizeof words);
    cr_assert_eq(g->nodes[d.node].op, GRAPH_SILU, "%s", words);
    for (uint32_t i = 0; i < d.node; i++)
        cr_assert_neq(g->nodes[i].op, GRAPH_SILU, "%s is the first one", g->nodes[i].name);
    cr_assert(d.row == 0 && d.n_rows == 2 && node_bits(d.want) != node_bits(d.got), "%s", words);
    cr_assert(d.n_inputs == 1 && d.inputs[0].row && d.inputs[0].node == g->nodes[d.node].inputs[0], "%s",
              words);
    float x = d.inputs[0].row[d.index];
    cr_assert(fabs((double)d.want - (double)x / (1 + exp(-(double)x))) < 1e-4 * (1 + fabs((double)x)), "%s",
              words);
    node_difference_close(&d);
    decoder_run_close(&cpu);
    decoder_run_close(&cuda);
}
