/* The report of `hearthd inspect`, as text and as JSON. */
#include "cli/commands.h"
#include "cpu/weights.h"
#include "model/graph.h"
#include "support/models/variant.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QWEN3 "tiny-qwen3-s11-q4_k_m"

/* Runs `hearthd inspect` with up to three arguments; its exit code. Its output goes to `out`, malloc'ed.
 */
static int inspect(const char *a, const char *b, const char *c, char **out)
{
    char *argv[] = {(char *)"inspect", (char *)a, (char *)b, (char *)c, NULL};
    int argc = 1 + (a != NULL) + (b != NULL) + (c != NULL), saved = dup(STDOUT_FILENO);
    FILE *f = tmpfile();
    cr_assert(f && saved >= 0);
    fflush(stdout);
    dup2(fileno(f), STDOUT_FILENO);
    int code = cmd_inspect(argc, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    long n = (fseek(f, 0, SEEK_END), ftell(f));
    char *text = calloc(1, (size_t)n + 1);
    rewind(f);
    cr_assert(text && fread(text, 1, (size_t)n, f) == (size_t)n);
    fclose(f);
    if (out)
        *out = text;
    else
        free(text);
    return code;
}

static const char model[] = HEARTH_TEST_DATA "/" QWEN3 ".gguf";

#define assert_says(text, part) cr_assert_not_null(strstr(text, part), "%s in:\n%s", part, text)

Test(inspect, without_a_model_or_with_an_unknown_flag_is_a_usage_error)
{
    cr_assert_eq(inspect(NULL, NULL, NULL, NULL), EXIT_USAGE);
    cr_assert_eq(inspect(model, "--colour", NULL, NULL), EXIT_USAGE);
    cr_assert_eq(inspect(model, model, NULL, NULL), EXIT_USAGE);
}

Test(inspect, lists_what_is_supported_without_a_file)
{
    char *text;
    cr_assert_eq(inspect("--supported", NULL, NULL, &text), EXIT_CLEAN);
    cr_expect_not_null(strstr(text, "architectures\n  llama        Llama 2 and 3, Mistral"), "%s", text);
    cr_expect_not_null(strstr(text, "\n  smollm3\n\nweight types\n  F32 F16 Q4_0 "), "%s", text);
    cr_expect_not_null(strstr(text, " MXFP4 NVFP4\n"), "%s", text);
    free(text);
    cr_assert_eq(inspect("--supported", model, NULL, NULL), EXIT_USAGE);
}

Test(inspect, of_a_missing_file_exits_with_3)
{
    cr_assert_eq(inspect("/nonexistent.gguf", NULL, NULL, NULL), EXIT_MODEL_MISSING);
}

Test(inspect, of_a_broken_file_exits_with_4)
{
    cr_assert_eq(inspect(HEARTH_TEST_DATA "/" QWEN3 ".json", NULL, NULL, NULL), EXIT_MODEL_BROKEN);
    char path[64];
    variant_write(path, QWEN3, EDITS(DROP_TENSOR("output_norm.weight")));
    cr_assert_eq(inspect(path, NULL, NULL, NULL), EXIT_MODEL_BROKEN);
    unlink(path);
}

Test(inspect, of_an_unsupported_model_still_shows_its_metadata_and_exits_with_5)
{
    char path[64], *text;
    variant_write(path, QWEN3, EDITS(SET_STR("general.architecture", "mamba")));
    cr_assert_eq(inspect(path, NULL, NULL, &text), EXIT_MODEL_UNSUPPORTED);
    assert_says(text, "general.architecture = mamba");
    assert_says(text, "blk.0.attn_q.weight");
    free(text);
    cr_assert_eq(inspect(path, "--graph", NULL, &text), EXIT_MODEL_UNSUPPORTED);
    cr_assert_str_eq(text, "");
    free(text);
    unlink(path);
}

Test(inspect, shows_numbers_types_metadata_and_tensors)
{
    char *text;
    cr_assert_eq(inspect(model, NULL, NULL, &text), EXIT_CLEAN);
    assert_says(text, "qwen3, Q4_K_M, 2.0 million parameters");
    assert_says(text, "4 heads of 64 on 2 key/value heads");
    assert_says(text, "18 ops for 61 graph nodes");
    assert_says(text, "0.094 MiB per page of 64 tokens");
    assert_says(text, "qwen3.attention.layer_norm_rms_epsilon = 1e-06");
    assert_says(text, "tokenizer.ggml.tokens = 512 items: ");
    assert_says(text, "Q6_K    [512, 256]");
    free(text);
}

Test(inspect, shows_the_graph_and_the_program)
{
    char *text;
    cr_assert_eq(inspect("--graph", model, NULL, &text), EXIT_CLEAN);
    assert_says(text, "SOFT_MAX  blk.2.attention");
    free(text);
    cr_assert_eq(inspect(model, "--program", NULL, &text), EXIT_CLEAN);
    assert_says(text, "18 ops, 18 counters");
    assert_says(text, "swiglu");
    free(text);
}

Test(inspect, json_is_one_object_with_the_same_numbers)
{
    char *text;
    cr_assert_eq(inspect(model, "--json", "--program", &text), EXIT_CLEAN);
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_not_null(root, "%s", text);
    json_t *m = json_object_get(root, "model");
    cr_assert_str_eq(json_string_value(json_object_get(m, "architecture")), "qwen3");
    cr_assert_eq(json_integer_value(json_object_get(m, "parameters")), 2033792);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(root, "memory"), "kv_per_page")),
                 64 * 2 * 2 * 64 * 2 * 3);
    cr_assert_eq(json_array_size(json_object_get(root, "program")), 18);
    cr_assert_null(json_object_get(root, "graph"));
    json_t *metadata = json_object_get(root, "metadata");
    cr_assert_eq(json_integer_value(json_object_get(metadata, "qwen3.block_count")), 3);
    cr_assert(json_is_false(json_object_get(metadata, "tokenizer.ggml.add_bos_token")));
    json_decref(root);
    free(text);
}

/* A token of this model takes its keys and values and 64 floats of the rotations' table. */
Test(inspect, says_which_context_fits_into_the_memory_that_is_available)
{
    char *text;
    cr_assert_eq(inspect(model, "--json", NULL, &text), EXIT_CLEAN);
    json_t *root = json_loads(text, 0, NULL), *m = json_object_get(root, "memory");
    long long available = json_integer_value(json_object_get(m, "available"));
    long long left = available - json_integer_value(json_object_get(m, "weights")) -
                     json_integer_value(json_object_get(m, "scratch")) -
                     json_integer_value(json_object_get(m, "sampling_per_slot"));
    long long token = json_integer_value(json_object_get(m, "kv_per_token")) + 64 * 4;
    long long n = json_integer_value(json_object_get(m, "n_ctx_fits"));
    cr_assert(n > 0 && n % 64 == 0 && n * token <= left && (n == 1 << 24 || (n + 64) * token > left),
              "%lld of %lld", n, left);
    json_decref(root);
    free(text);
    cr_assert_eq(inspect(model, NULL, NULL, &text), EXIT_CLEAN);
    assert_says(text, "tokens of one slot, of ");
    free(text);
}

/* Of IQ1_S cpu keeps codes of three bits, twice the bytes of the file. */
Test(inspect, counts_weights_as_they_are_packed)
{
    char path[64], *text;
    struct error err = {0};
    struct model *m;
    struct graph *g;
    size_t size = 0, file = 256 / 256 * 50 * 512;
    variant_write(path, QWEN3, EDITS(SET_TENSOR("blk.0.ffn_gate.weight", QUANT_IQ1_S, 256, 512)));
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&g, m, &err), 0, "%s", err.text);
    cr_assert_eq(weights_size(g, &size, &err), 0, "%s", err.text);
    cr_assert_gt(matmul_pack_size(QUANT_IQ1_S, 512, 256), 2 * file);
    cr_assert_eq(inspect(path, "--json", NULL, &text), EXIT_CLEAN);
    json_t *root = json_loads(text, 0, NULL), *memory = json_object_get(root, "memory");
    cr_assert_eq(json_integer_value(json_object_get(memory, "weights")), (json_int_t)size);
    json_decref(root);
    free(text);
    graph_close(g);
    model_close(m);
    unlink(path);
}

Test(inspect, json_of_an_unsupported_model_says_why)
{
    char path[64], *text;
    variant_write(path, QWEN3, EDITS(SET_STR("general.architecture", "mamba")));
    cr_assert_eq(inspect(path, "--json", NULL, &text), EXIT_MODEL_UNSUPPORTED);
    json_t *root = json_loads(text, 0, NULL);
    assert_says(json_string_value(json_object_get(root, "error")), "\"mamba\"");
    cr_assert_null(json_object_get(root, "model"));
    json_decref(root);
    free(text);
    unlink(path);
}

Test(inspect, control_bytes_of_the_file_do_not_reach_the_terminal)
{
    char path[64], *text;
    variant_write(path, QWEN3,
                  EDITS(SET_STR("general.name", "a\x1b[31mb\xc2\x9b"
                                                "c"),
                        SET_STR("odd\x07key", "v")));
    cr_assert_eq(inspect(path, NULL, NULL, &text), EXIT_CLEAN);
    assert_says(text, "a\\x1b[31mb\\u009bc");
    assert_says(text, "odd\\x07key = v");
    cr_assert_null(strchr(text, 0x1b));
    cr_assert_null(strstr(text, "\xc2\x9b"));
    free(text);
    unlink(path);
}

Test(inspect, json_survives_text_that_is_no_utf_8)
{
    char path[64], *text;
    variant_write(path, QWEN3, EDITS(SET_STR("general.description", "caf\xe9")));
    cr_assert_eq(inspect(path, "--json", NULL, &text), EXIT_CLEAN);
    json_t *root = json_loads(text, 0, NULL);
    cr_assert_str_eq(
        json_string_value(json_object_get(json_object_get(root, "metadata"), "general.description")),
        "caf\\xe9");
    json_decref(root);
    free(text);
    unlink(path);
}
