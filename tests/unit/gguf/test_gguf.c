/* GGUF files, whole and broken. */
#include "support/models/gguf_write.h"
#include "support/failing_alloc.h"
#include "gguf/quant.h"
#include "support/models/tensor_bytes.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- helpers: a file from a struct gguf_write, opened from memory ---- */

static struct gguf_bytes file_of(struct gguf_write *w)
{
    struct gguf_bytes file = {0};
    gguf_write_head(w, &file);
    size_t head = file.n;
    while (file.n < head + w->data_size)
        put(&file, &(uint8_t){(uint8_t)file.n}, 1);
    gguf_write_free(w);
    return file;
}

/* The code and words of opening what `w` has written; the file must be refused. */
static int refused(struct gguf_write *w, struct error *err)
{
    struct gguf_bytes file = file_of(w);
    struct gguf *g = NULL;
    *err = (struct error){0};
    int rc = gguf_open_memory(&g, "x.gguf", file.p, file.n, err);
    cr_assert_lt(rc, 0);
    cr_assert_null(g);
    cr_assert_eq(err->code, rc);
    free(file.p);
    return rc;
}

#define assert_says(err, part) cr_assert_not_null(strstr((err).text, part), "%s", (err).text)

/* The files that a test has opened with opened(), until it ends. */
static struct {
    struct gguf *g;
    uint8_t *bytes;
} kept[4];
static int n_kept;

static struct gguf *opened(struct gguf_write *w)
{
    struct gguf_bytes file = file_of(w);
    struct gguf *g = NULL;
    struct error err = {0};
    cr_assert_eq(gguf_open_memory(&g, "x.gguf", file.p, file.n, &err), 0, "%s", err.text);
    cr_assert_lt(n_kept, 4);
    kept[n_kept].g = g;
    kept[n_kept++].bytes = file.p;
    return g;
}

static void close_kept(void)
{
    for (int i = 0; i < n_kept; i++) {
        gguf_close(kept[i].g);
        free(kept[i].bytes);
    }
}

TestSuite(gguf, .fini = close_kept);

static void key_i64(struct gguf_write *w, const char *key, uint32_t type, int64_t v, size_t size)
{
    gguf_write_key(w, key, type);
    put(&w->values, &v, size);
}

static void key_f64(struct gguf_write *w, const char *key, double v)
{
    gguf_write_key(w, key, GGUF_F64);
    put(&w->values, &v, sizeof v);
}

static void tensor_f32(struct gguf_write *w, const char *name, uint64_t n)
{
    (void)gguf_write_tensor(w, name, QUANT_F32, 1, &n, 4 * n);
}

/* A tensor entry with any values at all. */
static void raw_tensor(struct gguf_write *w, const char *name, uint32_t type, uint32_t n_dims,
                       const uint64_t *ne, uint64_t offset)
{
    uint64_t data_size = w->data_size;
    (void)gguf_write_tensor(w, name, type, n_dims, ne, 0);
    memcpy(w->tensors.p + w->tensors.n - 8, &offset, 8);
    w->data_size = data_size;
}

/* Something of everything, two tensors. */
static void small_file(struct gguf_write *w)
{
    gguf_write_str(w, "general.architecture", "qwen3");
    gguf_write_u32(w, "count", 7);
    gguf_write_f32(w, "epsilon", 1e-6f);
    gguf_write_bool(w, "flag", true);
    gguf_write_array(w, "strings", GGUF_STR, 2, "\3\0\0\0\0\0\0\0abc\0\0\0\0\0\0\0\0", 19);
    gguf_write_array(w, "numbers", GGUF_I32, 2, (int32_t[]){-1, 5}, 8);
    tensor_f32(w, "a", 5);
    (void)gguf_write_tensor(w, "b", QUANT_Q8_0, 2, (uint64_t[]){64, 3}, 34 * 2 * 3);
}

/* ---- what a good file holds ---- */

Test(gguf, versions_2_and_3_open)
{
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_write w = {.version = version};
        small_file(&w);
        struct gguf *g = opened(&w);
        cr_assert_eq(gguf_version(g), version);
        cr_assert_eq(gguf_n_values(g), 6);
        cr_assert_eq(gguf_n_tensors(g), 2);
    }
}

Test(gguf, tensors_have_their_shape_and_their_bytes)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf_bytes file = file_of(&w);
    struct gguf *g = NULL;
    cr_assert_eq(gguf_open_memory(&g, "x.gguf", file.p, file.n, NULL), 0);
    const struct gguf_tensor *a = gguf_find_tensor(g, "a"), *b = gguf_find_tensor(g, "b");
    cr_assert(a && a->ne[0] == 5 && a->ne[1] == 1 && a->ne[2] == 1 && a->ne[3] == 1 && a->n_dims == 1);
    cr_assert(b && b->ne[0] == 64 && b->ne[1] == 3 && b->n_dims == 2 && b->type == QUANT_Q8_0);
    cr_assert_eq(a->size, 20);
    cr_assert_eq(b->size, 204);
    cr_assert_eq(b->offset + b->size, file.n);
    cr_assert_eq(b->offset - a->offset, 32);
    uint8_t *bytes = tensor_bytes(g, b);
    cr_assert_eq(memcmp(bytes, file.p + b->offset, b->size), 0);
    free(bytes);
    cr_assert_null(gguf_find_tensor(g, "c"));
    gguf_close(g);
    free(file.p);
}

Test(gguf, a_vocabulary_without_tensors_opens)
{
    struct gguf_write w = {0};
    gguf_write_str(&w, "tokenizer.ggml.model", "gpt2");
    struct gguf *g = opened(&w);
    cr_assert_eq(gguf_n_tensors(g), 0);
    cr_assert_null(gguf_find_tensor(g, "token_embd.weight"));
}

Test(gguf, integers_of_any_width_convert_when_they_fit)
{
    struct gguf_write w = {0};
    const uint32_t types[] = {GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_U64, GGUF_I64};
    const size_t sizes[] = {1, 1, 2, 2, 4, 4, 8, 8};
    for (size_t i = 0; i < 8; i++) {
        char key[2] = {(char)('a' + i), 0};
        key_i64(&w, key, types[i], 100, sizes[i]);
    }
    key_i64(&w, "largest", GGUF_U64, UINT32_MAX, 8);
    struct gguf *g = opened(&w);
    for (size_t i = 0; i < 8; i++) {
        char key[2] = {(char)('a' + i), 0};
        uint32_t v = 0;
        cr_assert_eq(gguf_get_u32(g, key, &v, NULL), 0);
        cr_assert_eq(v, 100);
    }
    uint32_t v = 0;
    cr_assert_eq(gguf_get_u32(g, "largest", &v, NULL), 0);
    cr_assert_eq(v, UINT32_MAX);
}

Test(gguf, integers_that_do_not_fit_are_refused_and_leave_the_output_alone)
{
    struct gguf_write w = {0};
    key_i64(&w, "negative", GGUF_I8, -1, 1);
    key_i64(&w, "wide negative", GGUF_I64, -5, 8);
    key_i64(&w, "large", GGUF_U64, (int64_t)1 << 32, 8);
    struct gguf *g = opened(&w);
    const char *keys[] = {"negative", "wide negative", "large"};
    for (size_t i = 0; i < 3; i++) {
        uint32_t v = 77;
        struct error err = {0};
        cr_assert_eq(gguf_get_u32(g, keys[i], &v, &err), -EBADMSG);
        assert_says(err, keys[i]);
        cr_assert_eq(v, 77);
    }
}

Test(gguf, floats_of_both_widths_convert_and_must_be_finite)
{
    struct gguf_write w = {0};
    gguf_write_f32(&w, "f32", 0.5f);
    key_f64(&w, "f64", 0.25);
    key_f64(&w, "large", 1e300);
    gguf_write_f32(&w, "nan", NAN);
    struct gguf *g = opened(&w);
    float v = 0;
    cr_assert(gguf_get_f32(g, "f32", &v, NULL) == 0 && v == 0.5f);
    cr_assert(gguf_get_f32(g, "f64", &v, NULL) == 0 && v == 0.25f);
    cr_assert_eq(gguf_get_f32(g, "large", &v, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_f32(g, "nan", &v, NULL), -EBADMSG);
    cr_assert_eq(v, 0.25f);
}

Test(gguf, absent_keys_are_enoent_without_words)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf *g = opened(&w);
    struct error err = {0};
    uint32_t u;
    float f;
    bool b;
    struct gguf_str s;
    const struct gguf_value *v;
    cr_assert_null(gguf_find(g, "absent"));
    cr_assert_eq(gguf_get_u32(g, "absent", &u, &err), -ENOENT);
    cr_assert_eq(gguf_get_f32(g, "absent", &f, &err), -ENOENT);
    cr_assert_eq(gguf_get_bool(g, "absent", &b, &err), -ENOENT);
    cr_assert_eq(gguf_get_str(g, "absent", &s, &err), -ENOENT);
    cr_assert_eq(gguf_get_array(g, "absent", GGUF_STR, &v, &err), -ENOENT);
    cr_assert_eq(err.code, 0);
}

Test(gguf, values_of_another_type_are_refused_with_both_types_named)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf *g = opened(&w);
    struct error err = {0};
    uint32_t u;
    float f;
    bool b;
    struct gguf_str s;
    const struct gguf_value *v;
    cr_assert_eq(gguf_get_u32(g, "general.architecture", &u, &err), -EBADMSG);
    assert_says(err, "x.gguf: key 'general.architecture': has type string, expected an unsigned integer");
    cr_assert_eq(gguf_get_u32(g, "epsilon", &u, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_u32(g, "flag", &u, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_f32(g, "count", &f, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_bool(g, "count", &b, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_str(g, "count", &s, NULL), -EBADMSG);
    cr_assert_eq(gguf_get_array(g, "count", GGUF_U32, &v, NULL), -EBADMSG);
    err = (struct error){0};
    cr_assert_eq(gguf_get_array(g, "numbers", GGUF_F32, &v, &err), -EBADMSG);
    assert_says(err, "is an array of i32, expected an array of f32");
}

Test(gguf, arrays_give_their_items)
{
    struct gguf_write w = {0};
    small_file(&w);
    gguf_write_array(&w, "floats", GGUF_F32, 2, (float[]){1.5f, -2}, 8);
    struct gguf *g = opened(&w);
    const struct gguf_value *v;
    cr_assert_eq(gguf_get_array(g, "numbers", GGUF_I32, &v, NULL), 0);
    cr_assert_eq(v->n, 2);
    cr_assert_eq(gguf_item_i32(v, 0), -1);
    cr_assert_eq(gguf_item_i32(v, 1), 5);
    cr_assert_eq(gguf_get_array(g, "floats", GGUF_F32, &v, NULL), 0);
    cr_assert_eq(gguf_item_f32(v, 1), -2.0f);
}

Test(gguf, strings_of_an_array_come_in_order_and_then_no_more)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf *g = opened(&w);
    const struct gguf_value *v;
    struct gguf_str s;
    size_t cursor = 0;
    cr_assert_eq(gguf_get_array(g, "strings", GGUF_STR, &v, NULL), 0);
    cr_assert(gguf_next_str(v, &cursor, &s) && s.len == 3 && memcmp(s.s, "abc", 3) == 0);
    cr_assert(gguf_next_str(v, &cursor, &s) && s.len == 0);
    cr_assert(!gguf_next_str(v, &cursor, &s));
}

Test(gguf, many_names_are_all_found)
{
    struct gguf_write w = {0};
    char name[32];
    for (int i = 0; i < 5000; i++) {
        (void)snprintf(name, sizeof name, "blk.%d.weight", i);
        gguf_write_u32(&w, name, (uint32_t)i);
        tensor_f32(&w, name, 1);
    }
    struct gguf *g = opened(&w);
    for (int i = 0; i < 5000; i++) {
        uint32_t v;
        (void)snprintf(name, sizeof name, "blk.%d.weight", i);
        cr_assert(gguf_get_u32(g, name, &v, NULL) == 0 && v == (uint32_t)i);
        cr_assert_eq(gguf_find_tensor(g, name), gguf_tensor_at(g, (size_t)i));
    }
    cr_assert_null(gguf_find(g, "blk.5000.weight"));
}

Test(gguf, a_tensor_of_a_type_without_traits_is_kept_without_data)
{
    struct gguf_write w = {0};
    (void)gguf_write_tensor(&w, "iq", 41, 1, (uint64_t[]){256}, 136);
    tensor_f32(&w, "next", 4);
    struct gguf *g = opened(&w);
    const struct gguf_tensor *t = gguf_find_tensor(g, "iq");
    cr_assert(t && t->type == 41 && t->size == 0 && t->ne[0] == 256);
    cr_assert_eq(gguf_find_tensor(g, "next")->size, 16);
}

Test(gguf, the_alignment_of_the_file_places_the_tensors)
{
    struct gguf_write w = {.alignment = 4096};
    gguf_write_u32(&w, "general.alignment", 4096);
    tensor_f32(&w, "a", 1);
    tensor_f32(&w, "b", 1);
    struct gguf_bytes file = file_of(&w);
    struct gguf *g = NULL;
    cr_assert_eq(gguf_open_memory(&g, "x.gguf", file.p, file.n, NULL), 0);
    cr_assert_eq(gguf_find_tensor(g, "a")->offset, 4096);
    cr_assert_eq(gguf_find_tensor(g, "b")->offset, 8192);
    gguf_close(g);
    free(file.p);
}

/* ---- broken files ---- */

Test(gguf, a_file_cut_off_at_any_byte_is_refused_with_words)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf_bytes file = file_of(&w);
    for (size_t n = 0; n < file.n; n++) {
        uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
        struct gguf *g = NULL;
        struct error err = {0};
        memcpy(exact, file.p, n);
        cr_assert_eq(gguf_open_memory(&g, "x.gguf", exact, n, &err), -EBADMSG, "%zu bytes", n);
        assert_says(err, "x.gguf: ");
        free(exact);
    }
    free(file.p);
}

Test(gguf, a_file_with_any_byte_changed_opens_or_is_refused_but_never_faults)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf_bytes file = file_of(&w);
    for (size_t i = 0; i < file.n; i++) {
        for (int bit = 0; bit < 8; bit++) {
            struct gguf *g = NULL;
            struct error err = {0};
            file.p[i] ^= (uint8_t)(1 << bit);
            int rc = gguf_open_memory(&g, "x.gguf", file.p, file.n, &err);
            cr_assert_eq(rc, err.code);
            for (size_t k = 0; rc == 0 && k < gguf_n_tensors(g); k++) {
                const struct gguf_tensor *t = gguf_tensor_at(g, k);
                cr_assert(t->offset <= file.n && t->size <= file.n - t->offset);
            }
            gguf_close(g);
            file.p[i] ^= (uint8_t)(1 << bit);
        }
    }
    free(file.p);
}

Test(gguf, other_files_and_versions_are_refused_by_name)
{
    const struct {
        const char *head, *words;
        int code;
    } cases[] = {
        {"GGML\3\0\0\0", "not a GGUF file", -EBADMSG}, {"PK\3\4\0\0\0\0", "not a GGUF file", -EBADMSG},
        {"GGUF\1\0\0\0", "version 1", -ENOTSUP},       {"GGUF\4\0\0\0", "version 4", -ENOTSUP},
        {"GGUF\0\0\0\3", "big-endian", -ENOTSUP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[24] = {0};
        struct gguf *g = NULL;
        struct error err = {0};
        memcpy(bytes, cases[i].head, 8);
        cr_assert_eq(gguf_open_memory(&g, "x.gguf", bytes, sizeof bytes, &err), cases[i].code);
        assert_says(err, cases[i].words);
    }
}

Test(gguf, what_is_found_in_the_place_of_a_model_is_named)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\n", 43, "a pointer of Git LFS"},
        {"<!doctype html>", 15, "a web page"},
        {"\x3c\0\0\0\0\0\0\0{\"a\":{}}", 16, "safetensors"},
        {"\x10\0\0\0\0\0\0\0{\"a\":{}}", 16, "safetensors"},
        {"\x10\0\0\0\0\0\0\0{", 9, "does not begin with"},
        {"version https://git-lf", 22, "does not begin with"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *g = NULL;
        struct error err = {0};
        uint8_t *bytes = malloc(cases[i].n); /* no byte more, for the sanitizer */
        memcpy(bytes, cases[i].bytes, cases[i].n);
        cr_assert_eq(gguf_open_memory(&g, "x.gguf", bytes, cases[i].n, &err), -EBADMSG);
        assert_says(err, cases[i].words);
        free(bytes);
    }
}

Test(gguf, hostile_counts_are_refused_before_memory_is_taken)
{
    const uint64_t counts[] = {1, 1u << 20, (uint64_t)1 << 32, (uint64_t)1 << 60, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct gguf_bytes file = {0};
        struct gguf *g = NULL;
        struct error err = {0};
        put(&file, "GGUF\3\0\0\0", 8);
        put_u64(&file, i % 2 ? counts[i] : 0);
        put_u64(&file, i % 2 ? 0 : counts[i]);
        cr_assert_eq(gguf_open_memory(&g, "x.gguf", file.p, file.n, &err), -EBADMSG);
        assert_says(err, i % 2 ? "tensors" : "keys");
        free(file.p);
    }
}

Test(gguf, hostile_array_and_string_lengths_are_refused)
{
    const uint64_t lengths[] = {100, (uint64_t)1 << 40, (uint64_t)1 << 62, UINT64_MAX, UINT64_MAX / 4 + 2};
    const uint32_t types[] = {GGUF_U8, GGUF_U32, GGUF_F64, GGUF_STR};
    struct error err;
    for (size_t i = 0; i < 5; i++) {
        struct gguf_write w = {0};
        gguf_write_key(&w, "string", GGUF_STR);
        put_u64(&w.values, lengths[i]);
        cr_assert_eq(refused(&w, &err), -EBADMSG);
        assert_says(err, "key 'string': cut off");
        for (size_t k = 0; k < 4; k++) {
            w = (struct gguf_write){0};
            gguf_write_array(&w, "items", types[k], lengths[i], "", 0);
            cr_assert_eq(refused(&w, &err), -EBADMSG);
            assert_says(err, "key 'items'");
        }
    }
}

Test(gguf, unknown_value_types_are_refused)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_key(&w, "k", 13);
    put_u64(&w.values, 0);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "unknown value type 13");
    gguf_write_array(&w, "k", 99, 1, "12345678", 8);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "unknown type 99");
}

Test(gguf, arrays_of_arrays_are_refused_with_words)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_array(&w, "nested", GGUF_ARR, 1, "\4\0\0\0\0\0\0\0\0\0\0\0", 12);
    cr_assert_eq(refused(&w, &err), -ENOTSUP);
    assert_says(err, "key 'nested': arrays of arrays");
}

Test(gguf, bools_other_than_0_and_1_are_refused)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_key(&w, "flag", GGUF_BOOL);
    put(&w.values, "\2", 1);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "a bool is 0 or 1");
}

Test(gguf, duplicate_keys_are_refused)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_u32(&w, "twice", 1);
    gguf_write_u32(&w, "once", 1);
    gguf_write_u32(&w, "twice", 2);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "key 'twice': appears twice");
}

Test(gguf, duplicate_tensors_are_refused)
{
    struct error err;
    struct gguf_write w = {0};
    tensor_f32(&w, "t", 1);
    tensor_f32(&w, "t", 1);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "tensor 't': appears twice");
}

Test(gguf, names_that_are_empty_long_or_hold_a_zero_byte_are_refused)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_u32(&w, "", 1);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "key number 0: a name has 1 to 65535 bytes");
    tensor_f32(&w, "12345678901234567890123456789012345678901234567890123456789012345", 1);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "1 to 64 bytes, this one has 65");
    tensor_f32(&w, "zero", 1);
    w.tensors.p[9] = 0;
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "zero byte");
}

Test(gguf, foreign_bytes_of_names_do_not_reach_error_texts)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_u32(&w, "a\n\033[31mred\377", 1);
    gguf_write_u32(&w, "a\n\033[31mred\377", 1);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    for (const char *p = err.text; *p; p++)
        cr_assert(*p >= 32 && *p < 127);
    assert_says(err, "a??[31mred?");
}

Test(gguf, alignments_that_are_no_power_of_two_or_too_large_are_refused)
{
    const uint32_t bad[] = {0, 1, 4, 24, 33, 2u << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct error err;
        struct gguf_write w = {0};
        gguf_write_u32(&w, "general.alignment", bad[i]);
        cr_assert_eq(refused(&w, &err), -EBADMSG);
        assert_says(err, "general.alignment");
    }
}

Test(gguf, an_alignment_of_another_type_is_refused)
{
    struct error err;
    struct gguf_write w = {0};
    gguf_write_str(&w, "general.alignment", "32");
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "general.alignment");
}

Test(gguf, offsets_off_the_alignment_are_refused)
{
    struct error err;
    struct gguf_write w = {.data_size = 256};
    raw_tensor(&w, "t", QUANT_F32, 1, (uint64_t[]){4}, 16);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "tensor 't': offset 16 is not a multiple of general.alignment 32");
}

Test(gguf, tensors_beyond_the_file_are_refused)
{
    const uint64_t offsets[] = {256, 224, (uint64_t)1 << 40, UINT64_MAX - 31};
    for (size_t i = 0; i < 4; i++) {
        struct error err;
        struct gguf_write w = {.data_size = 255};
        raw_tensor(&w, "t", QUANT_F32, 1, (uint64_t[]){8}, offsets[i]);
        cr_assert_eq(refused(&w, &err), -EBADMSG);
        assert_says(err, "tensor 't': cut off");
    }
}

Test(gguf, overlapping_tensors_are_refused_in_any_order)
{
    for (int order = 0; order < 2; order++) {
        struct error err;
        struct gguf_write w = {.data_size = 512};
        raw_tensor(&w, "first", QUANT_F32, 1, (uint64_t[]){order ? 4 : 9}, order ? 32 : 0);
        raw_tensor(&w, "second", QUANT_F32, 1, (uint64_t[]){order ? 9 : 4}, order ? 0 : 32);
        cr_assert_eq(refused(&w, &err), -EBADMSG);
        assert_says(err, "overlaps");
    }
}

Test(gguf, a_tensor_of_unknown_size_inside_another_is_refused)
{
    struct error err;
    struct gguf_write w = {.data_size = 512};
    raw_tensor(&w, "f32", QUANT_F32, 1, (uint64_t[]){64}, 0);
    raw_tensor(&w, "iq", 41, 1, (uint64_t[]){256}, 64);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "tensor 'iq': overlaps tensor 'f32'");
}

Test(gguf, a_type_that_only_memory_has_is_refused)
{
    struct gguf_write w = {0};
    (void)gguf_write_tensor(&w, "t", QUANT_NVFP4_SCALED, 1, (uint64_t[]){64}, 40);
    struct error err;
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "tensor 't': 64 is no weight type");
}

Test(gguf, dimensions_of_zero_or_too_many_are_refused)
{
    struct error err;
    struct gguf_write w = {.data_size = 512};
    raw_tensor(&w, "t", QUANT_F32, 2, (uint64_t[]){4, 0}, 0);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "tensor 't': dimension 1 is 0");
    raw_tensor(&w, "t", QUANT_F32, 0, NULL, 0);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "has 0 dimensions");
    raw_tensor(&w, "t", QUANT_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "has 5 dimensions");
}

Test(gguf, shapes_whose_product_overflows_are_refused)
{
    const uint64_t shapes[][4] = {
        {(uint64_t)1 << 32, (uint64_t)1 << 32, 1, 1},
        {(uint64_t)1 << 62, 4, 1, 1},
        {UINT64_MAX, 1, 1, 1},
        {(uint64_t)1 << 61, 1, 1, 1}, /* fits, its bytes do not */
        {(uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16, (uint64_t)1 << 16},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct error err;
        struct gguf_write w = {.data_size = 512};
        raw_tensor(&w, "t", i == 3 ? QUANT_F32 : QUANT_Q4_K, 4, shapes[i], 0);
        cr_assert_eq(refused(&w, &err), -EBADMSG);
        cr_assert(strstr(err.text, "overflow") || strstr(err.text, "cut off") || strstr(err.text, "blocks"),
                  "%s", err.text);
    }
}

Test(gguf, rows_that_do_not_fill_blocks_are_refused)
{
    struct error err;
    struct gguf_write w = {.data_size = 512};
    raw_tensor(&w, "t", QUANT_Q4_K, 2, (uint64_t[]){128, 2}, 0);
    cr_assert_eq(refused(&w, &err), -EBADMSG);
    assert_says(err, "rows of 128 values do not fill blocks of 256 (Q4_K)");
}

Test(gguf, parts_of_a_split_model_are_refused_with_words)
{
    struct error err;
    struct gguf_write w = {0};
    key_i64(&w, "split.count", GGUF_U16, 3, 2);
    cr_assert_eq(refused(&w, &err), -ENOTSUP);
    assert_says(err, "one of 3 parts of a split model");

    uint8_t empty[24] = "GGUF\3";
    struct gguf *g = NULL;
    err = (struct error){0};
    cr_assert_eq(gguf_open_memory(&g, "m-00001-of-00004.gguf", empty, 24, &err), -ENOTSUP);
    assert_says(err, "one of 4 parts");
    cr_assert_eq(gguf_open_memory(&g, "m-00001-of-00001.gguf", empty, 24, NULL), 0);
    gguf_close(g);
}

/* ---- files on disk ---- */

static char *temporary(const void *bytes, size_t n)
{
    static char path[] = "/tmp/hearth-gguf-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
    return path;
}

/* A tensor of 400,000 bytes, and metadata of several megabytes before it. */
static struct gguf_bytes large_file(void)
{
    struct gguf_write w = {0};
    char *text = malloc(3 << 20);
    cr_assert_not_null(text);
    memset(text, 'x', 3 << 20);
    text[(3 << 20) - 1] = '\0';
    gguf_write_str(&w, "first", text);
    gguf_write_u32(&w, "second", 7);
    gguf_write_str(&w, "third", text);
    tensor_f32(&w, "large", 100000);
    free(text);
    return file_of(&w);
}

Test(gguf, a_file_on_disk_is_read_and_outlives_its_name)
{
    struct gguf_bytes file = large_file();
    char *path = temporary(file.p, file.n);
    struct gguf *g = NULL;
    struct gguf_str s;
    uint32_t seven = 0;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    unlink(path);
    const struct gguf_tensor *t = gguf_find_tensor(g, "large");
    cr_assert_eq(gguf_file_size(g), file.n);
    cr_assert_str_eq(gguf_path(g), path);
    cr_assert(gguf_get_str(g, "third", &s, NULL) == 0 && s.len == (3 << 20) - 1 && s.s[s.len - 1] == 'x');
    cr_assert(gguf_get_u32(g, "second", &seven, NULL) == 0 && seven == 7);
    uint8_t *bytes = tensor_bytes(g, t);
    cr_assert_eq(memcmp(bytes, file.p + t->offset, t->size), 0);
    cr_assert_eq(gguf_read(g, t, t->size - 3, bytes, 3, NULL), 0);
    cr_assert_eq(memcmp(bytes, file.p + file.n - 3, 3), 0);
    cr_assert_eq(gguf_check_unchanged(g, NULL), 0);
    free(bytes);
    gguf_close(g);
    free(file.p);
}

Test(gguf, a_file_that_is_cut_short_after_it_was_opened_is_an_error_of_reading)
{
    struct gguf_bytes file = large_file();
    char *path = temporary(file.p, file.n);
    struct gguf *g = NULL;
    struct gguf_str s;
    struct error err = {0};
    uint8_t byte;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    const struct gguf_tensor *t = gguf_find_tensor(g, "large");
    cr_assert_eq(truncate(path, (off_t)t->offset + 100), 0);
    cr_assert_eq(gguf_read(g, t, 99, &byte, 1, NULL), 0);
    cr_assert_eq(gguf_read(g, t, 100, &byte, 1, &err), -EIO);
    assert_says(err, path);
    assert_says(err, "cut short");
    assert_says(err, "large");
    cr_assert_eq(truncate(path, 0), 0);
    cr_assert_eq(gguf_get_str(g, "third", &s, NULL), 0);
    cr_assert_eq(s.s[s.len - 1], 'x', "metadata is held");
    unlink(path);
    gguf_close(g);
    free(file.p);
}

/* Puts a directory, which cannot be read, under the descriptor of the file at `path`. */
static void break_descriptor_of(const char *path)
{
    int directory = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int fd = 3; fd < 64; fd++) {
        char link[32], target[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0 && strcmp(target, path) == 0)
            cr_assert_eq(dup2(directory, fd), fd);
    }
    close(directory);
}

Test(gguf, a_disk_that_fails_is_an_error_of_reading)
{
    struct gguf_bytes file = large_file();
    char *path = temporary(file.p, file.n);
    struct gguf *g = NULL;
    struct error err = {0};
    uint8_t byte;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    break_descriptor_of(path);
    cr_assert_eq(gguf_read(g, gguf_find_tensor(g, "large"), 0, &byte, 1, &err), -EIO);
    assert_says(err, path);
    assert_says(err, "cannot be read at byte");
    assert_says(err, "Is a directory");
    unlink(path);
    gguf_close(g);
    free(file.p);
}

Test(gguf, a_file_that_is_changed_after_it_was_opened_is_found_out)
{
    struct gguf_bytes file = large_file();
    char *path = temporary(file.p, file.n);
    struct gguf *g = NULL;
    struct error err = {0};
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    cr_assert_eq(chmod(path, 0640), 0);
    cr_assert_eq(gguf_check_unchanged(g, NULL), 0, "its content is the same");
    cr_assert_eq(utimensat(AT_FDCWD, path, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
    cr_assert_eq(gguf_check_unchanged(g, &err), -EIO);
    assert_says(err, path);
    assert_says(err, "was changed");
    gguf_close(g);
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    cr_assert_eq(truncate(path, (off_t)file.n + 1), 0);
    cr_assert_eq(gguf_check_unchanged(g, NULL), -EIO);
    unlink(path);
    gguf_close(g);
    free(file.p);
}

Test(gguf, a_released_file_has_its_tensors_and_no_values)
{
    struct gguf_bytes file = large_file();
    char *path = temporary(file.p, file.n);
    struct gguf *g = NULL;
    uint32_t seven;
    cr_assert_eq(gguf_open(&g, path, NULL), 0);
    gguf_release(g);
    cr_assert_eq(gguf_n_values(g), 0);
    cr_assert_null(gguf_find(g, "second"));
    cr_assert_eq(gguf_get_u32(g, "second", &seven, NULL), -ENOENT);
    cr_assert_eq(gguf_find_tensor(g, "large")->size, 400000);
    cr_assert_eq(gguf_file_size(g), file.n);
    cr_assert_str_eq(gguf_path(g), path);
    unlink(path);
    gguf_close(g);
    free(file.p);
}

/* A sparse file is as large as it says and takes no disk. */
Test(gguf, more_metadata_than_there_can_be_is_refused_before_it_is_read)
{
    enum { TYPE_AT = 24 + 8 + 5 }; /* behind the header and the key */
    struct gguf_write w = {0};
    struct gguf *g = NULL;
    struct error err = {0};
    const uint32_t types[] = {GGUF_ARR, GGUF_U8};
    const uint64_t n = UINT64_C(1) << 30;
    gguf_write_u32(&w, "first", 1);
    struct gguf_bytes file = file_of(&w);
    char *path = temporary(file.p, file.n);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    cr_assert_eq(pwrite(fd, types, 8, TYPE_AT), 8);
    cr_assert_eq(pwrite(fd, &n, 8, TYPE_AT + 8), 8);
    cr_assert_eq(ftruncate(fd, (off_t)4 << 30), 0);
    close(fd);
    cr_assert_eq(gguf_open(&g, path, &err), -ENOTSUP);
    assert_says(err, "key 'first': metadata of more than 256 MiB");
    unlink(path);
    free(file.p);
}

Test(gguf, missing_files_directories_fifos_and_empty_files_have_their_own_errors)
{
    struct gguf *g = NULL;
    struct error err = {0};
    cr_assert_eq(gguf_open(&g, "/nonexistent/m.gguf", &err), -ENOENT);
    assert_says(err, "/nonexistent/m.gguf: cannot open");
    err = (struct error){0};
    cr_assert_eq(gguf_open(&g, "/tmp", &err), -EISDIR);
    assert_says(err, "directory");
    char *path = temporary("", 0);
    err = (struct error){0};
    cr_assert_eq(gguf_open(&g, path, &err), -EBADMSG);
    assert_says(err, "empty");
    unlink(path);
    cr_assert_eq(mkfifo(path, 0600), 0);
    err = (struct error){0};
    cr_assert_eq(gguf_open(&g, path, &err), -EINVAL);
    assert_says(err, "not a regular file");
    unlink(path);
    cr_assert_null(g);
}

Test(gguf, an_unreadable_file_is_eacces)
{
    char *path = temporary("GGUF", 4);
    struct gguf *g = NULL;
    uid_t user = geteuid();
    cr_assert_eq(chmod(path, 0), 0);
    if (user == 0) /* root reads everything */
        cr_assert_eq(seteuid(65534), 0);
    int rc = gguf_open(&g, path, NULL);
    cr_assert_eq(seteuid(user), 0);
    unlink(path);
    cr_assert_eq(rc, -EACCES);
}

Test(gguf, open_survives_every_allocation_failing)
{
    struct gguf_write w = {0};
    small_file(&w);
    struct gguf_bytes file = file_of(&w);
    long n = 0;
    for (int rc = -ENOMEM; rc < 0; n++) {
        struct gguf *g = NULL;
        struct error err = {0};
        fail_alloc_after(n);
        rc = gguf_open_memory(&g, "x.gguf", file.p, file.n, &err);
        fail_alloc_never();
        cr_assert(rc == 0 || (rc == -ENOMEM && !g));
        if (rc < 0)
            assert_says(err, "x.gguf: out of memory");
        gguf_close(g);
    }
    cr_assert_gt(n, 6); /* the file, its path, two tables, two indexes, names */
    free(file.p);
}

Test(gguf, the_recorded_models_open)
{
    const char *names[] = {"tiny-qwen3-s11-q8_0", "tiny-qwen3-s11-q4_k_m", "tiny-qwen2-odd-s13-q5_0",
                           "tiny-llama3-s15-q4_k_m"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        struct gguf *g = NULL;
        struct error err = {0};
        (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, names[i]);
        cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.text);
        cr_assert_gt(gguf_n_tensors(g), 20);
        gguf_close(g);
    }
}
