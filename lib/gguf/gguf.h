/* gguf.h - a GGUF file (v2, v3), read and checked.
 * Everything that comes out of gguf_open() has been checked against the file's size: lengths, counts,
 * offsets, types, alignment, overflow, overlap; a broken file is an error that names file and tensor or key,
 * and what was expected. A split model is opened by its first part, as one file. Nothing is mapped: a file
 * that is cut short, is replaced in place or cannot be read any longer is an error of the call that reads,
 * never a signal. Thread: immutable after open until gguf_release(); any thread may read. Memory: the
 * metadata is held, tensors are not; pointers stay valid until gguf_release() or gguf_close(). */
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

struct gguf_str { /* not NUL-terminated; bytes belong to the struct gguf */
    const char *s;
    size_t len;
};

struct gguf_value {
    struct gguf_str key;
    uint32_t type;       /* enum gguf_type */
    uint32_t item_type;  /* type of an array's items, else `type`; arrays of arrays are refused */
    uint64_t n;          /* items of an array; 1 otherwise */
    const uint8_t *data; /* little-endian items; for strings: u64 length + bytes, one after the other */
    size_t size;         /* bytes from data to the end of this value */
};

struct gguf_tensor {
    const char *name; /* NUL-terminated copy */
    uint32_t type;    /* enum quant_type number as in the file; may be one Hearth cannot compute with */
    uint32_t n_dims;
    uint64_t ne[4];  /* ne[0] varies fastest: a weight matrix [rows, cols] has ne = {cols, rows}; absent dims
                        are 1 */
    uint64_t offset; /* of its bytes in its file, aligned as the file says */
    uint32_t part;   /* of a split model, from 0 */
    size_t size;     /* bytes; 0: of a type whose size is not known */
};

/* -EBADMSG: broken; -ENOTSUP: version 1, big-endian, with nested arrays or with very much metadata; -EIO: it
 * cannot be read to its end; -EISDIR, or what open(2) says.
 * A model in N parts is opened by the first, NAME-00001-of-N.gguf, whose keys are the model's; the others lie
 * beside it. -ENOENT: parts are missing, which the words name; -EINVAL: `path` is another part; -EBADMSG: the
 * parts' numbers (split.no, split.count, split.tensors.count) contradict each other. */
int gguf_open(struct gguf **out, const char *path, struct error *err);

/* The same for the bytes of a file in memory, which is whole (a part: -ENOTSUP). The caller owns them and
 * must keep them until gguf_close(). `path` is the name for errors and gguf_path(). For tests. */
int gguf_open_memory(struct gguf **out, const char *path, const void *bytes, size_t size, struct error *err);
void gguf_close(struct gguf *g); /* NULL is fine */

const char *gguf_path(const struct gguf *g);
uint32_t gguf_version(const struct gguf *g);
size_t gguf_file_size(const struct gguf *g); /* of all parts */
size_t gguf_n_values(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i);
size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);

/* Look up a key or a tensor by name, in O(1). Return NULL when it is absent. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Read a scalar. Return 0; -ENOENT without a text when the key is absent, which the caller may allow;
 * -EBADMSG when the value has another type or does not fit. Integer types convert to one another when the
 * value fits, as do f32 and f64. `out` is written only on success. */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct error *err);
int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct error *err);
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *err);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct error *err);

/* Finds an array of the given item type; the same codes as above. */
int gguf_get_array(const struct gguf *g, const char *key, uint32_t item_type, const struct gguf_value **out,
                   struct error *err);

/* Writes the next string of an array of strings to *out and returns true; false behind the last. `*cursor`
 * starts at 0. */
bool gguf_next_str(const struct gguf_value *array, size_t *cursor, struct gguf_str *out);

/* Return item i of an array of 4-byte numbers. The caller has checked item_type and i < n. */
int32_t gguf_item_i32(const struct gguf_value *array, size_t i);
float gguf_item_f32(const struct gguf_value *array, size_t i);

/* Bytes [at, at + n) of a tensor, which has them, into `out`. -EIO: they cannot be read, or the file has
 * become shorter; the words name file and tensor. */
int gguf_read(const struct gguf *g, const struct gguf_tensor *t, size_t at, void *out, size_t n,
              struct error *err);

/* After the last gguf_read(): -EIO when the file is not the one that was opened any longer (its size or its
 * time of change), so that what was read may be parts of two. A file renamed over it does not count. */
int gguf_check_unchanged(const struct gguf *g, struct error *err);

/* Closes the file and frees the metadata. From here on there are no values, and gguf_read() is not called;
 * path, sizes and tensors stay. No other thread uses g meanwhile. */
void gguf_release(struct gguf *g);
