/* gguf.h - a GGUF file (v2, v3), mapped read-only and checked.
 * Everything that comes out of gguf_open() has been checked against the file's size: lengths, counts,
 * offsets, types, alignment, overflow, overlap; a broken file is an error that names file and tensor or key,
 * and what was expected. Split files are refused with words. Thread: immutable after open; any thread may
 * read. Memory: pointers stay valid until gguf_close(). */
#pragma once
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARR,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

struct gguf; /* opaque: the fields are in gguf.c */

struct gguf_str { /* not NUL-terminated; bytes lie in the mapping */
    const char *s;
    size_t len;
};

struct gguf_value {
    struct gguf_str key;
    uint32_t type;       /* enum gguf_type */
    uint32_t item_type;  /* of an array's items; arrays of arrays are refused */
    uint64_t n;          /* items of an array; 1 otherwise */
    const uint8_t *data; /* little-endian items; for strings: u64 length + bytes, one after the other */
    size_t size;         /* bytes from data to the end of this value */
};

struct gguf_tensor {
    const char *name; /* NUL-terminated copy */
    uint32_t type;    /* enum quant_type number as in the file; may be one Hearth cannot compute with */
    uint32_t n_dims;
    uint64_t ne[4];   /* ne[0] varies fastest: a weight matrix [rows, cols] has ne = {cols, rows}; absent dims
                         are 1 */
    const void *data; /* in the mapping, aligned as the file says; NULL when the type's size is unknown */
    size_t size;      /* bytes */
};

/* -EBADMSG: broken; -ENOTSUP: version 1, big-endian, split or with nested arrays; -EISDIR, or what open(2)
 * says. */
int gguf_open(struct gguf **out, const char *path, struct error *err);

/* The same for a file that lies in memory, which stays the caller's and must outlive `out`; `path` is what
 * errors and gguf_path() call it. */
int gguf_open_memory(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err);
void gguf_close(struct gguf *g); /* NULL is fine */

const char *gguf_path(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g);
size_t gguf_file_size(const struct gguf *g);
size_t gguf_n_values(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);

/* Look-ups by name, O(1); NULL when absent. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Scalars. 0 on success; -ENOENT when the key is absent (no error text: the caller knows whether that is an
 * error); -EBADMSG with words when the value has another type or does not fit. Integer types convert to one
 * another when the value fits; f32/f64 likewise. `out` is written only on success. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct error *err);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct error *err);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *err);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct error *err);

/* An array of the given item type; the same codes as above. */
int gguf_get_array(const struct gguf *g, const char *key, uint32_t item_type, const struct gguf_value **out,
                   struct error *err);

/* Walks an array of strings: `*cursor` starts at 0; false when there are no more. */
bool gguf_next_str(const struct gguf_value *array, size_t *cursor, struct gguf_str *out);

/* Item i of an array of 4-byte numbers; the caller has checked item_type and i < n. */
uint32_t gguf_item_u32(const struct gguf_value *array, size_t i);
int32_t gguf_item_i32(const struct gguf_value *array, size_t i);
float gguf_item_f32(const struct gguf_value *array, size_t i);

/* Tells the kernel that a tensor's pages of the mapping are not needed any more (its packed copy exists).
 * Reading them again stays legal and costs a page fault. */
void gguf_drop_pages(const struct gguf *g, const struct gguf_tensor *t);
