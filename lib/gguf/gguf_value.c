/* gguf_value.c - reads a file's values by type; each getter refuses the types that do not convert. */
#include "gguf_private.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int wrong_type(const struct gguf *g, const struct gguf_value *v, const char *expected,
                      struct error *err)
{
    if (v->type == GGUF_ARR)
        return gguf_fail_value(g, v, err, "is an array of %s, expected %s", gguf_type_name(v->item_type),
                               expected);
    return gguf_fail_value(g, v, err, "has type %s, expected %s", gguf_type_name(v->type), expected);
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return -ENOENT;
    uint64_t u = 0;
    int64_t sign = 0;
    switch (v->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        assert(v->size <= sizeof u);
        memcpy(&u, v->data, v->size);
        break;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        assert(v->size <= sizeof u);
        memcpy(&u, v->data, v->size);
        sign = (int8_t)v->data[v->size - 1];
        break;
    default:
        return wrong_type(g, v, "an unsigned integer", err);
    }
    if (sign < 0 || u > UINT32_MAX)
        return gguf_fail_value(g, v, err, "is %s, expected 0 to 4294967295",
                               sign < 0 ? "negative" : "larger than 32 bits");
    *out = (uint32_t)u;
    return 0;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *out, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return -ENOENT;
    double d;
    float f;
    if (v->type == GGUF_F32) {
        memcpy(&f, v->data, sizeof f);
        d = (double)f;
    } else if (v->type == GGUF_F64) {
        memcpy(&d, v->data, sizeof d);
    } else {
        return wrong_type(g, v, "a float", err);
    }
    if (!(fabs(d) <= (double)FLT_MAX))
        return gguf_fail_value(g, v, err, "is %g, expected a finite number of 32 bits", d);
    *out = (float)d;
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return -ENOENT;
    if (v->type != GGUF_BOOL)
        return wrong_type(g, v, "a bool", err);
    *out = v->data[0] != 0;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out, struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return -ENOENT;
    if (v->type != GGUF_STR)
        return wrong_type(g, v, "a string", err);
    *out = (struct gguf_str){(const char *)v->data + 8, v->size - 8};
    return 0;
}

int gguf_get_array(const struct gguf *g, const char *key, uint32_t item_type, const struct gguf_value **out,
                   struct error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return -ENOENT;
    if (v->type != GGUF_ARR || v->item_type != item_type) {
        char expected[32];
        (void)snprintf(expected, sizeof expected, "an array of %s", gguf_type_name(item_type));
        return wrong_type(g, v, expected, err);
    }
    *out = v;
    return 0;
}

bool gguf_next_str(const struct gguf_value *array, size_t *cursor, struct gguf_str *out)
{
    assert(array->item_type == GGUF_STR);
    if (*cursor >= array->size)
        return false;
    uint64_t len; /* checked when the file was opened */
    memcpy(&len, array->data + *cursor, sizeof len);
    assert(len <= array->size - *cursor - 8); /* else the cursor is not one of this array */
    *out = (struct gguf_str){(const char *)array->data + *cursor + 8, len};
    *cursor += 8 + len;
    return true;
}

static uint32_t item_bits(const struct gguf_value *array, size_t i)
{
    assert(i < array->n && array->size / 4 == array->n);
    uint32_t bits;
    memcpy(&bits, array->data + 4 * i, sizeof bits);
    return bits;
}

int32_t gguf_item_i32(const struct gguf_value *array, size_t i)
{
    return (int32_t)item_bits(array, i);
}

float gguf_item_f32(const struct gguf_value *array, size_t i)
{
    uint32_t bits = item_bits(array, i);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
