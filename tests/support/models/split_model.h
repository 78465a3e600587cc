/* split_model.h - a GGUF file written again as several parts, as tools for large models do. */
#pragma once
#include "gguf_write.h"
#include "tensor_bytes.h"

#include <criterion/criterion.h>
#include <stdio.h>

/* Adds a key with its value as the file has it. */
static inline void split_copy_value(struct gguf_write *w, const struct gguf_value *v)
{
    put_u64(&w->values, v->key.len);
    put(&w->values, v->key.s, v->key.len);
    put_u32(&w->values, v->type);
    if (v->type == GGUF_ARR) {
        put_u32(&w->values, v->item_type);
        put_u64(&w->values, v->n);
    }
    put(&w->values, v->data, v->size);
    w->n_values++;
}

/* The name of part `no` (from 0). */
static inline void split_path(const char *dir, uint32_t no, uint32_t n, char path[512])
{
    (void)snprintf(path, 512, "%s/model-%05u-of-%05u.gguf", dir, no + 1, n);
}

/* Writes part `no` of n with every n-th tensor, the first part with all keys. */
static inline void split_write_part(const struct gguf *g, const char *dir, uint32_t no, uint32_t n,
                                    uint32_t n_tensors)
{
    char path[512];
    struct gguf_write w = {0};
    struct gguf_bytes head = {0};
    for (size_t i = 0; no == 0 && i < gguf_n_values(g); i++)
        split_copy_value(&w, gguf_value_at(g, i));
    gguf_write_u32(&w, "split.no", no);
    gguf_write_u32(&w, "split.count", n);
    gguf_write_u32(&w, "split.tensors.count", n_tensors);
    for (size_t i = no; i < gguf_n_tensors(g); i += n) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        gguf_write_tensor(&w, t->name, t->type, t->n_dims, t->ne, t->size);
    }
    gguf_write_head(&w, &head);
    for (size_t i = no; i < gguf_n_tensors(g); i += n) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        void *bytes = tensor_bytes(g, t);
        put_padding(&head, 32);
        put(&head, bytes, t->size);
        free(bytes);
    }
    split_path(dir, no, n, path);
    FILE *f = fopen(path, "wb");
    cr_assert(f && fwrite(head.p, 1, head.n, f) == head.n && fclose(f) == 0);
    free(head.p);
    gguf_write_free(&w);
}

/* Writes all parts into `dir`; the first one's name into `first`. */
static inline void split_model(const char *path, const char *dir, uint32_t n, char first[512])
{
    struct gguf *g;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    for (uint32_t no = 0; no < n; no++)
        split_write_part(g, dir, no, n, (uint32_t)gguf_n_tensors(g));
    split_path(dir, 0, n, first);
    gguf_close(g);
}
