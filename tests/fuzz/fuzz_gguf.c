/* Opens any bytes as a GGUF file and touches all that a caller may touch. */
#include "fuzz.h"
#include "gguf/gguf.h"
#include "gguf/quant.h"

static volatile uint64_t seen; /* so that reads are not optimised away */

static void walk_value(const struct gguf *g, const struct gguf_value *v)
{
    struct gguf_str s;
    size_t cursor = 0, n_strings = 0;
    for (size_t i = 0; i < v->size; i++)
        seen += v->data[i];
    while (v->item_type == GGUF_STR && gguf_next_str(v, &cursor, &s)) {
        seen += s.len ? (uint8_t)s.s[s.len - 1] : 0;
        n_strings++;
    }
    CHECK(v->item_type != GGUF_STR || n_strings == v->n);
    bool four_bytes = v->item_type == GGUF_U32 || v->item_type == GGUF_I32 || v->item_type == GGUF_F32;
    for (size_t i = 0; four_bytes && i < v->n; i++)
        seen += (uint32_t)gguf_item_i32(v, i);

    char *key = strndup(v->key.s, v->key.len);
    struct error err = {0};
    uint32_t u;
    float f;
    bool b;
    const struct gguf_value *array;
    CHECK(key && gguf_find(g, key) == v);
    seen += (uint64_t)gguf_get_u32(g, key, &u, &err) + (uint64_t)gguf_get_f32(g, key, &f, &err);
    seen += (uint64_t)gguf_get_bool(g, key, &b, &err) + (uint64_t)gguf_get_str(g, key, &s, &err);
    seen += (uint64_t)gguf_get_array(g, key, v->item_type, &array, &err);
    free(key);
}

static void walk_tensor(const struct gguf *g, const struct gguf_tensor *t)
{
    CHECK(gguf_find_tensor(g, t->name) == t);
    if (!t->size)
        return;
    const struct quant_traits *q = quant_traits(t->type);
    float first[256], last[256];
    uint8_t block[4 * 256];
    CHECK(gguf_read(g, t, 0, block, q->block_size, NULL) == 0);
    quant_dequantise(t->type, block, first, q->block);
    CHECK(gguf_read(g, t, t->size - q->block_size, block, q->block_size, NULL) == 0);
    quant_dequantise(t->type, block, last, q->block);
    uint32_t bits[2];
    memcpy(&bits[0], first, sizeof bits[0]);
    memcpy(&bits[1], last, sizeof bits[1]);
    seen += bits[0] + bits[1];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct gguf *g;
    struct error err = {0};
    int rc = gguf_open_memory(&g, "fuzz.gguf", bytes, size, &err);
    if (rc < 0) {
        CHECK(err.code == rc && err.text[0]); /* every refusal says why */
        return 0;
    }
    for (size_t i = 0; i < gguf_n_values(g); i++)
        walk_value(g, gguf_value_at(g, i));
    for (size_t i = 0; i < gguf_n_tensors(g); i++)
        walk_tensor(g, gguf_tensor_at(g, i));
    gguf_close(g);
    return 0;
}
