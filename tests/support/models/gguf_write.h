/* gguf_write.h - builds GGUF files in memory, for tests and tools. It checks nothing: a test wants broken
 * files too. Out of memory aborts. Thread: a struct gguf_write belongs to its caller. */
#pragma once
#include "gguf/gguf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct gguf_bytes { /* grows; all zeros is empty; free(p) when done */
    uint8_t *p;
    size_t n, cap;
};

static inline void put(struct gguf_bytes *b, const void *src, size_t n)
{
    if (n > b->cap - b->n) {
        b->cap = 2 * b->cap + n + 64;
        b->p = realloc(b->p, b->cap);
        assert(b->p);
    }
    if (n > 0)
        memcpy(b->p + b->n, src, n);
    b->n += n;
}

static inline void put_u32(struct gguf_bytes *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static inline void put_u64(struct gguf_bytes *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static inline void put_str(struct gguf_bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static inline void put_padding(struct gguf_bytes *b, size_t alignment)
{
    while (b->n % alignment)
        put(b, "", 1);
}

/* A file to be: keys and tensors are added, then gguf_write_head() gives all bytes before the tensors' data.
 */
struct gguf_write {
    struct gguf_bytes values, tensors;
    uint64_t n_values, n_tensors, data_size;
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32; a key general.alignment is the caller's business */
};

static inline uint64_t gguf_write_aligned(const struct gguf_write *w, uint64_t n)
{
    uint64_t a = w->alignment ? w->alignment : 32;
    return (n + a - 1) / a * a;
}

/* Key and type; the value's bytes are for the caller to put into w->values. */
static inline void gguf_write_key(struct gguf_write *w, const char *key, uint32_t type)
{
    put_str(&w->values, key);
    put_u32(&w->values, type);
    w->n_values++;
}

static inline void gguf_write_u32(struct gguf_write *w, const char *key, uint32_t v)
{
    gguf_write_key(w, key, GGUF_U32);
    put_u32(&w->values, v);
}

static inline void gguf_write_f32(struct gguf_write *w, const char *key, float v)
{
    gguf_write_key(w, key, GGUF_F32);
    put(&w->values, &v, sizeof v);
}

static inline void gguf_write_bool(struct gguf_write *w, const char *key, bool v)
{
    gguf_write_key(w, key, GGUF_BOOL);
    put(&w->values, &(uint8_t){v}, 1);
}

static inline void gguf_write_str(struct gguf_write *w, const char *key, const char *v)
{
    gguf_write_key(w, key, GGUF_STR);
    put_str(&w->values, v);
}

/* `items`: `n` of them, as they lie in a file. */
static inline void gguf_write_array(struct gguf_write *w, const char *key, uint32_t item_type, uint64_t n,
                                    const void *items, size_t size)
{
    gguf_write_key(w, key, GGUF_ARR);
    put_u32(&w->values, item_type);
    put_u64(&w->values, n);
    put(&w->values, items, size);
}

/* A tensor of `size` bytes after those before it; returns its offset in the data. */
static inline uint64_t gguf_write_tensor(struct gguf_write *w, const char *name, uint32_t type,
                                         uint32_t n_dims, const uint64_t *ne, size_t size)
{
    uint64_t offset = gguf_write_aligned(w, w->data_size);
    put_str(&w->tensors, name);
    put_u32(&w->tensors, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(&w->tensors, ne[i]);
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, offset);
    w->n_tensors++;
    w->data_size = offset + size;
    return offset;
}

static inline void gguf_write_head(const struct gguf_write *w, struct gguf_bytes *out)
{
    put(out, "GGUF", 4);
    put_u32(out, w->version ? w->version : 3);
    put_u64(out, w->n_tensors);
    put_u64(out, w->n_values);
    put(out, w->values.p, w->values.n);
    put(out, w->tensors.p, w->tensors.n);
    put_padding(out, gguf_write_aligned(w, 1));
}

static inline void gguf_write_free(struct gguf_write *w)
{
    free(w->values.p);
    free(w->tensors.p);
    *w = (struct gguf_write){0};
}
