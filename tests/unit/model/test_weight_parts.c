/* Files of older converters: the tensors that newer ones store apart, or transposed. */
#include "model/model.h"
#include "support/decoder_run.h"
#include "support/golden.h"
#include "support/models/made_model.h"
#include "support/models/variant_model.h"

#include <errno.h>

#define LLAMA    "tiny-llama3-s15-q4_k_m"
#define DEEPSEEK "tiny-deepseek2-s74-f16"
enum { MAX_EDITS = 64, MAX_LAYERS = 8, N_TOKENS = 40 };

struct old_file { /* edits, and what they point to */
    struct variant_edit edits[MAX_EDITS];
    size_t n;
    char names[MAX_EDITS][64];
    void *bytes[MAX_EDITS];
    size_t n_bytes;
};

static void edit(struct old_file *f, struct variant_edit e)
{
    cr_assert_lt(f->n, MAX_EDITS);
    (void)snprintf(f->names[f->n], sizeof f->names[0], "%s", e.name);
    e.name = f->names[f->n];
    f->edits[f->n++] = e;
}

static void *keep(struct old_file *f, size_t size)
{
    void *bytes = calloc(1, size);
    cr_assert(bytes && f->n_bytes < MAX_EDITS);
    return f->bytes[f->n_bytes++] = bytes;
}

static void release(struct old_file *f)
{
    for (size_t i = 0; i < f->n_bytes; i++)
        free(f->bytes[i]);
}

static const struct gguf_tensor *layer_tensor(const struct gguf *g, uint32_t layer, const char *box)
{
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, box);
    return gguf_find_tensor(g, name);
}

static void drop(struct old_file *f, uint32_t layer, const char *box)
{
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, box);
    edit(f, (struct variant_edit){.kind = VARIANT_DROP_TENSOR, .name = name});
}

static void put_tensor(struct old_file *f, uint32_t layer, const char *box, uint32_t type, uint64_t cols,
                       uint64_t rows, const void *bytes)
{
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, box);
    edit(f,
         (struct variant_edit){
             .kind = VARIANT_TENSOR, .name = name, .u32 = type, .cols = cols, .rows = rows, .bytes = bytes});
}

/* attn_kv_b of attn_k_b [nope, rank, heads] and attn_v_b [rank, value, heads], both F16. */
static void join_keys_and_values(struct old_file *f, const struct gguf *g, uint32_t layer)
{
    const struct gguf_tensor *k = layer_tensor(g, layer, "attn_k_b.weight"),
                             *v = layer_tensor(g, layer, "attn_v_b.weight");
    size_t nope = k->ne[0], rank = k->ne[1], heads = k->ne[2], value = v->ne[1];
    cr_assert(k->type == QUANT_F16 && v->type == QUANT_F16 && v->ne[0] == rank);
    uint16_t *keys = tensor_bytes(g, k), *values = tensor_bytes(g, v);
    uint16_t *both = keep(f, heads * (nope + value) * rank * sizeof *both), *out = both;
    for (size_t h = 0; h < heads; h++) {
        for (size_t j = 0; j < nope; j++)
            for (size_t r = 0; r < rank; r++)
                *out++ = keys[(h * rank + r) * nope + j];
        memcpy(out, values + h * value * rank, value * rank * sizeof *out);
        out += value * rank;
    }
    drop(f, layer, "attn_k_b.weight");
    drop(f, layer, "attn_v_b.weight");
    put_tensor(f, layer, "attn_kv_b.weight", QUANT_F16, rank, heads * (nope + value), both);
    free(keys);
    free(values);
}

/* ssm_in of attn_qkv and attn_gate: of each key head its query, its key, its values and their gates. */
static void join_mix_and_gates(struct old_file *f, const struct gguf *g, const struct delta_shape *s,
                               uint32_t layer)
{
    const struct gguf_tensor *mix = layer_tensor(g, layer, "attn_qkv.weight"),
                             *gate = layer_tensor(g, layer, "attn_gate.weight");
    size_t row = quant_size(mix->type, mix->ne[0]), q = s->key_dim * row, keys = s->n_key_heads * q;
    size_t v = delta_value_width(s) / s->n_key_heads * row;
    cr_assert(mix->size == 2 * keys + s->n_key_heads * v && gate->size == s->n_key_heads * v);
    uint8_t *mixed = tensor_bytes(g, mix), *gates = tensor_bytes(g, gate);
    uint8_t *all = keep(f, mix->size + gate->size), *out = all;
    for (size_t h = 0; h < s->n_key_heads; h++, out += 2 * (q + v)) {
        memcpy(out, mixed + h * q, q);
        memcpy(out + q, mixed + keys + h * q, q);
        memcpy(out + 2 * q, mixed + 2 * keys + h * v, v);
        memcpy(out + 2 * q + v, gates + h * v, v);
    }
    drop(f, layer, "attn_qkv.weight");
    drop(f, layer, "attn_gate.weight");
    put_tensor(f, layer, "ssm_in.weight", mix->type, mix->ne[0], mix->ne[1] + gate->ne[1], all);
    free(mixed);
    free(gates);
}

/* Writes the older form of a file; its name into `path`, to unlink. */
static void write_old(char path[64], const char *base)
{
    struct model *m = NULL;
    struct error err = {0};
    struct old_file *f = calloc(1, sizeof *f);
    cr_assert_eq(model_open(&m, base, &err), 0, "%s", err.text);
    const struct model_config *c = model_config(m);
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->latent.rank)
            join_keys_and_values(f, model_gguf(m), i);
        else if (c->layers[i].recurrent)
            join_mix_and_gates(f, model_gguf(m), &c->delta, i);
    if (c->latent.rank) {
        edit(f, (struct variant_edit)DROP_KEY("deepseek2.attention.key_length_mla"));
        edit(f, (struct variant_edit)DROP_KEY("deepseek2.attention.value_length_mla"));
        edit(f, (struct variant_edit)SET_U32("deepseek2.attention.key_length",
                                             c->latent.key_dim + c->latent.rotated));
        edit(f, (struct variant_edit)SET_U32("deepseek2.attention.value_length", c->latent.value_dim));
        edit(f, (struct variant_edit)SET_U32("deepseek2.attention.head_count_kv", c->n_heads));
    }
    variant_write(path, base, f->edits, f->n);
    release(f);
    free(f);
    model_close(m);
}

/* A file and its older form give the same bits, node by node and as a program. */
static void expect_same_logits(const char *base, const char *old, uint32_t n_vocab)
{
    int32_t tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (i * 37 + 11) % 256;
    for (int eager = 0; eager < 2; eager++) {
        struct decoder_run_config c = {.n_threads = 2, .kind = eager ? EXECUTOR_EAGER : EXECUTOR_PERSISTENT};
        c.path = base;
        float *wanted = decoder_run_logits(&c, tokens, N_TOKENS, 16);
        c.path = old;
        float *found = decoder_run_logits(&c, tokens, N_TOKENS, 16);
        cr_assert_eq(memcmp(wanted, found, sizeof *found * N_TOKENS * n_vocab), 0, "%s", base);
        free(wanted);
        free(found);
    }
}

static void check_old(const char *base)
{
    char old[64];
    struct model *m = NULL;
    struct error err = {0};
    write_old(old, base);
    cr_assert_eq(model_open(&m, old, &err), 0, "%s", err.text);
    uint32_t n_vocab = model_config(m)->n_vocab;
    model_close(m);
    expect_same_logits(base, old, n_vocab);
    unlink(old);
}

Test(weight_parts, of_attn_kv_b_give_the_bits_of_absorbed_matrices)
{
    check_old(HEARTH_TEST_DATA "/" DEEPSEEK ".gguf");
}

Test(weight_parts, of_ssm_in_give_the_bits_of_mix_and_gates)
{
    char made[64];
    made_model("tiny-qwen3next", "q8_0", made);
    check_old(made);
    unlink(made);
}

/* Numbers that Q8_0 holds: every block has scale 1, and values of their own. */
static void fill_q8_0(uint8_t *out, size_t n_values)
{
    for (size_t i = 0; i < n_values; i += 32, out += 34) {
        out[0] = 0;
        out[1] = 0x3c; /* 1.0 */
        for (size_t j = 0; j < 32; j++)
            out[2 + j] = (uint8_t)((i / 32 * 7 + j * 3) % 251);
    }
}

Test(weight_parts, transposed_ones_of_blocks_are_read_as_floats_in_any_pieces)
{
    char path[64], name[] = "blk.0.attn_kv_b.weight";
    struct old_file *f = calloc(1, sizeof *f);
    struct model *m = NULL;
    struct error err = {0};
    cr_assert_eq(model_open(&m, HEARTH_TEST_DATA "/" DEEPSEEK ".gguf", &err), 0, "%s", err.text);
    struct model_latent l = model_config(m)->latent;
    size_t heads = model_config(m)->n_heads, rows = heads * (l.key_dim + l.value_dim);
    model_close(m);
    void *blocks = keep(f, quant_size(QUANT_Q8_0, rows * l.rank));
    fill_q8_0(blocks, rows * l.rank);
    drop(f, 0, "attn_k_b.weight");
    drop(f, 0, "attn_v_b.weight");
    put_tensor(f, 0, "attn_kv_b.weight", QUANT_Q8_0, l.rank, rows, blocks);
    variant_write(path, DEEPSEEK, f->edits, f->n);
    cr_assert_eq(model_open(&m, path, &err), 0, "%s", err.text);
    uint32_t index = model_find_weight(m, "blk.0.attn_k_b.weight");
    const struct weight *w = model_weight(m, index);
    cr_assert(w && w->type == QUANT_F32 && w->n == heads * l.rank && w->k == l.key_dim);
    cr_assert_eq(w->n_experts, heads);
    float *found = malloc(w->size), *values = malloc(rows * l.rank * sizeof *values);
    for (size_t at = 0, n = 4; at < w->size; at += n, n = n * 3 + 4) {
        n = w->size - at < n ? w->size - at : n;
        cr_assert_eq(model_read_weight(m, index, at, (char *)found + at, n, &err), 0, "%s", err.text);
    }
    quant_dequantise(QUANT_Q8_0, blocks, values, rows * l.rank);
    for (size_t h = 0; h < heads; h++)
        for (size_t r = 0; r < l.rank; r++)
            for (size_t j = 0; j < l.key_dim; j++)
                cr_assert_eq(found[(h * l.rank + r) * l.key_dim + j],
                             values[(h * (l.key_dim + l.value_dim) + j) * l.rank + r], "%s", name);
    free(found);
    free(values);
    model_close(m);
    unlink(path);
    release(f);
    free(f);
}

Test(weight_parts, a_vector_of_blocks_has_none)
{
    refused(
        LLAMA, -EBADMSG,
        "tensor blk.0.ffn_gate.weight is missing: blk.0.ffn_up.weight, of shape [1024, 1, 1, 1], does not "
        "hold it",
        EDITS(DROP_TENSOR("blk.0.ffn_gate.weight"), SET_TENSOR("blk.0.ffn_up.weight", QUANT_Q8_0, 1024, 1)));
    refused(LLAMA, -EBADMSG, "tensor blk.0.attn_q.weight is missing",
            EDITS(DROP_TENSOR("blk.0.attn_q.weight"), SET_TENSOR("blk.0.attn_qkv.bias", QUANT_Q8_0, 512, 1)));
}
