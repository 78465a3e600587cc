/* variant.h - a model file of tests/data with some things changed: for tests of what a model refuses. */
#pragma once
#include "gguf_write.h"
#include "gguf/quant.h"
#include "tensor_bytes.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

enum variant_kind {
    VARIANT_DROP_KEY,
    VARIANT_U32, /* sets or adds a key */
    VARIANT_F32,
    VARIANT_BOOL, /* u32: 0 or 1 */
    VARIANT_STR,
    VARIANT_I32S, /* an array of u32 numbers: `bytes` */
    VARIANT_DROP_TENSOR,
    VARIANT_TENSOR, /* sets or adds a tensor: type, cols x rows; its data is `bytes`, or else kept as far as
                       it goes, then 0 */
    VARIANT_FLIP,   /* flips the first bit of a tensor's data */
};

struct variant_edit {
    enum variant_kind kind;
    const char *name;
    uint32_t u32; /* value, or tensor type */
    float f32;
    const char *str;
    uint64_t cols, rows, experts; /* experts 0: one matrix */
    const void *bytes;            /* of a tensor; NULL: not set */
};

/* f(base, EDITS(DROP_KEY("a"), SET_U32("b", 1))): the edits and their number. */
#define EDITS(...)                                                                                           \
    (const struct variant_edit[]){__VA_ARGS__},                                                              \
        sizeof((const struct variant_edit[]){__VA_ARGS__}) / sizeof(struct variant_edit)
#define DROP_KEY(key)                                                                                        \
    {                                                                                                        \
        .kind = VARIANT_DROP_KEY, .name = key                                                                \
    }
#define SET_U32(key, value)                                                                                  \
    {                                                                                                        \
        .kind = VARIANT_U32, .name = key, .u32 = value                                                       \
    }
#define SET_BOOL(key, value)                                                                                 \
    {                                                                                                        \
        .kind = VARIANT_BOOL, .name = key, .u32 = value                                                      \
    }
#define SET_F32(key, value)                                                                                  \
    {                                                                                                        \
        .kind = VARIANT_F32, .name = key, .f32 = value                                                       \
    }
#define SET_STR(key, value)                                                                                  \
    {                                                                                                        \
        .kind = VARIANT_STR, .name = key, .str = value                                                       \
    }
#define DROP_TENSOR(tensor)                                                                                  \
    {                                                                                                        \
        .kind = VARIANT_DROP_TENSOR, .name = tensor                                                          \
    }
#define FLIP_TENSOR(tensor)                                                                                  \
    {                                                                                                        \
        .kind = VARIANT_FLIP, .name = tensor                                                                 \
    }
#define SET_TENSOR(tensor, type, n_cols, n_rows)                                                             \
    {                                                                                                        \
        .kind = VARIANT_TENSOR, .name = tensor, .u32 = type, .cols = n_cols, .rows = n_rows                  \
    }

#define SET_EXPERTS(tensor, type, n_cols, n_rows, n_experts)                                                 \
    {                                                                                                        \
        .kind = VARIANT_TENSOR, .name = tensor, .u32 = type, .cols = n_cols, .rows = n_rows,                 \
        .experts = n_experts                                                                                 \
    }

struct variant { /* the edits, and what is written */
    const struct variant_edit *edits;
    size_t n_edits;
    struct gguf_write w;
    struct gguf_bytes data;
};

static inline const struct variant_edit *variant_find(const struct variant *v, const char *name, size_t len,
                                                      bool tensor)
{
    for (size_t i = 0; i < v->n_edits; i++)
        if ((v->edits[i].kind >= VARIANT_DROP_TENSOR) == tensor && strlen(v->edits[i].name) == len &&
            memcmp(v->edits[i].name, name, len) == 0)
            return &v->edits[i];
    return NULL;
}

static inline void variant_copy_value(struct variant *v, const struct gguf_value *value)
{
    put_u64(&v->w.values, value->key.len);
    put(&v->w.values, value->key.s, value->key.len);
    put_u32(&v->w.values, value->type);
    if (value->type == GGUF_ARR) {
        put_u32(&v->w.values, value->item_type);
        put_u64(&v->w.values, value->n);
    }
    put(&v->w.values, value->data, value->size);
    v->w.n_values++;
}

static inline void variant_set_value(struct variant *v, const struct variant_edit *e)
{
    if (e->kind == VARIANT_U32)
        gguf_write_u32(&v->w, e->name, e->u32);
    else if (e->kind == VARIANT_BOOL)
        gguf_write_bool(&v->w, e->name, e->u32);
    else if (e->kind == VARIANT_F32)
        gguf_write_f32(&v->w, e->name, e->f32);
    else if (e->kind == VARIANT_STR)
        gguf_write_str(&v->w, e->name, e->str);
    else if (e->kind == VARIANT_I32S)
        gguf_write_array(&v->w, e->name, GGUF_I32, e->u32, e->bytes, e->u32 * sizeof(int32_t));
}

/* `old` may be NULL: the tensor is new. */
static inline void variant_put_tensor(struct variant *v, const struct gguf *g, const struct gguf_tensor *old,
                                      const struct variant_edit *e)
{
    bool set = e && e->kind == VARIANT_TENSOR;
    uint64_t ne[3] = {set ? e->cols : old->ne[0], set ? e->rows : old->ne[1], set ? e->experts : old->ne[2]};
    ne[2] = ne[2] ? ne[2] : 1;
    uint32_t type = set ? e->u32 : old->type;
    size_t size = quant_size(type, (size_t)(ne[0] * ne[1] * ne[2]));
    size = size ? size : 64; /* of a type whose size is unknown */
    put_padding(&v->data, 32);
    gguf_write_tensor(&v->w, set ? e->name : old->name, type, ne[2] > 1 ? 3 : ne[1] > 1 ? 2 : 1, ne, size);
    size_t at = v->data.n, kept = old && old->size < size ? old->size : old ? size : 0;
    void *bytes = old ? tensor_bytes(g, old) : NULL;
    if (set && e->bytes)
        put(&v->data, e->bytes, size);
    else
        put(&v->data, bytes, kept);
    free(bytes);
    while (v->data.n < at + size)
        put(&v->data, "", 1);
    if (e && e->kind == VARIANT_FLIP)
        v->data.p[at] ^= 1;
}

/* Writes tests/data/BASE.gguf, or the file of this absolute path, with the edits; the file's name into
 * `path`, for the caller to unlink. */
static inline void variant_write(char path[64], const char *base, const struct variant_edit *edits, size_t n)
{
    char source[512];
    struct error err = {0};
    struct gguf *g = NULL;
    struct variant v = {.edits = edits, .n_edits = n};
    struct gguf_bytes head = {0};
    if (base[0] == '/')
        (void)snprintf(source, sizeof source, "%s", base);
    else
        (void)snprintf(source, sizeof source, "%s/%s.gguf", HEARTH_TEST_DATA, base);
    cr_assert_eq(gguf_open(&g, source, &err), 0, "%s", err.text);
    for (size_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *value = gguf_value_at(g, i);
        if (!variant_find(&v, value->key.s, value->key.len, false))
            variant_copy_value(&v, value);
    }
    for (size_t i = 0; i < n; i++)
        variant_set_value(&v, &edits[i]);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct variant_edit *e = variant_find(&v, t->name, strlen(t->name), true);
        if (!e || e->kind != VARIANT_DROP_TENSOR)
            variant_put_tensor(&v, g, t, e);
    }
    for (size_t i = 0; i < n; i++)
        if (edits[i].kind == VARIANT_TENSOR && !gguf_find_tensor(g, edits[i].name))
            variant_put_tensor(&v, g, NULL, &edits[i]);
    gguf_write_head(&v.w, &head);
    strcpy(path, "/tmp/hearth-variant-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    FILE *f = fdopen(fd, "wb");
    cr_assert(f && fwrite(head.p, 1, head.n, f) == head.n && fwrite(v.data.p, 1, v.data.n, f) == v.data.n);
    cr_assert_eq(fclose(f), 0);
    free(head.p);
    free(v.data.p);
    gguf_write_free(&v.w);
    gguf_close(g);
}
