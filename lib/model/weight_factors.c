/* weight_factors.c - matrices whose product the file multiplies: "X.scale" beside "X.weight" has one factor,
 * or one for each expert, as files of NVFP4 have. Blocks of NVFP4 are read with their factor (NVFP4_SCALED).
 * No other weight type holds one beside its own scales, so the weight is read as F16 (one of floats as F32),
 * each value times its factor. */
#include "base/half.h"
#include "gguf/quant.h"
#include "model_private.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor "X.scale" of tensor "X.weight", or NULL. */
static const struct gguf_tensor *factors_of(const struct model *m, uint32_t tensor)
{
    char name[128];
    const char *weight = m->weights[tensor].name, *end = strrchr(weight, '.');
    if (!end || strcmp(end, ".weight") != 0)
        return NULL;
    (void)snprintf(name, sizeof name, "%.*s.scale", (int)(end - weight), weight);
    return gguf_find_tensor(m->gguf, name);
}

/* Returns whether the factors are those of the product. Gemma 4's router has a gain under this name, and its
 * factors of experts count in their choice; an embedding is no product. */
static bool are_of_product(const struct model *m, const struct weight *w, const struct gguf_tensor *factors)
{
    if (strcmp(w->name, "token_embd.weight") == 0 ||
        (m->arch->expert_factors && strstr(w->name, ".ffn_down_exps.")))
        return false;
    const struct quant_traits *t = quant_traits(w->type);
    return w->n > 1 && t && w->k % t->block == 0 && factors->type == QUANT_F32 &&
           (factors->size == sizeof(float) || factors->size == w->n_experts * sizeof(float));
}

static int check_factors(const struct model *m, const struct gguf_tensor *t, struct error *err)
{
    float factor;
    for (size_t at = 0; at < t->size; at += sizeof factor) {
        int rc = gguf_read(m->gguf, t, at, &factor, sizeof factor, err);
        if (rc < 0)
            return rc;
        if (!isfinite(factor) || factor == 0)
            return error_set(err, -EBADMSG, "%s: tensor %s has %g at %zu, expected a factor",
                             gguf_path(m->gguf), t->name, (double)factor, at / sizeof factor);
    }
    return 0;
}

/* The type as which a weight of a type of files is read, so that it has its factor. */
static uint32_t type_with_factor(uint32_t type)
{
    if (type == QUANT_NVFP4)
        return QUANT_NVFP4_SCALED;
    return quant_traits(type)->block == 1 ? QUANT_F32 : QUANT_F16;
}

int model_find_factors(struct model *m, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->n_weights && rc == 0; i++) {
        struct weight *w = &m->weights[i];
        const struct gguf_tensor *t = factors_of(m, w->tensor);
        if (!t || !are_of_product(m, w, t))
            continue;
        rc = check_factors(m, t, err);
        w->multiplied = true;
        w->factors = (uint32_t)(t - gguf_tensor_at(m->gguf, 0));
        w->stored = w->type;
        w->type = type_with_factor(w->type);
        w->size = (size_t)w->n * quant_size(w->type, w->k);
    }
    return rc;
}

/* Writes a row's blocks of NVFP4, each behind the factor, to `out`. */
static void add_factor(const struct weight *w, const uint8_t *stored, float factor, uint8_t *out)
{
    uint32_t size = quant_traits(w->stored)->block_size;
    for (uint32_t i = 0; i < w->k / quant_traits(w->stored)->block; i++, stored += size, out += size) {
        memcpy(out, &factor, sizeof factor);
        out += sizeof factor;
        memcpy(out, stored, size);
    }
}

/* Writes the values of a stored row, times the factor, to `out` as the weight's type. */
static int multiply(const struct model *m, const struct weight *w, float *values, float factor, void *out,
                    struct error *err)
{
    uint16_t *halves = out;
    for (uint32_t i = 0; i < w->k; i++)
        values[i] *= factor;
    if (w->type == QUANT_F32) {
        memcpy(out, values, w->k * sizeof *values);
        return 0;
    }
    for (uint32_t i = 0; i < w->k; i++) {
        halves[i] = half_from_float(values[i]);
        if (!isfinite(half_to_float(halves[i])))
            return error_set(err, -ENOTSUP,
                             "%s: a value of tensor %s times its factor %g is %g, too large for F16",
                             gguf_path(m->gguf), w->name, (double)factor, (double)values[i]);
    }
    return 0;
}

/* A row: its values, as the weight's type, as it is stored. And the factor of its expert. */
struct row_room {
    float *values;
    uint8_t *out, *stored;
    size_t expert; /* whose factor it is; SIZE_MAX: none yet */
    float factor;
};

static int read_factor(const struct model *m, const struct weight *w, size_t row, struct row_room *room,
                       struct error *err)
{
    const struct gguf_tensor *t = gguf_tensor_at(m->gguf, w->factors);
    size_t expert = t->size == sizeof room->factor ? 0 : row / (w->n / w->n_experts);
    if (expert == room->expert)
        return 0;
    room->expert = expert;
    return gguf_read(m->gguf, t, expert * sizeof room->factor, &room->factor, sizeof room->factor, err);
}

static int read_row(const struct model *m, const struct weight *w, size_t row, struct row_room *room,
                    struct error *err)
{
    struct weight stored = *w;
    size_t size = quant_size(w->stored, w->k);
    stored.type = w->stored;
    stored.size = w->n * size;
    int rc = model_read_stored(m, &stored, row * size, room->stored, size, err);
    if (rc == 0)
        rc = read_factor(m, w, row, room, err);
    if (rc < 0)
        return rc;
    if (w->type == QUANT_NVFP4_SCALED) {
        add_factor(w, room->stored, room->factor, room->out);
        return 0;
    }
    quant_dequantise(w->stored, room->stored, room->values, w->k);
    return multiply(m, w, room->values, room->factor, room->out, err);
}

int model_read_multiplied(const struct model *m, const struct weight *w, size_t at, void *out, size_t n,
                          struct error *err)
{
    size_t size = quant_size(w->type, w->k);
    struct row_room room = {.expert = SIZE_MAX};
    room.values = malloc(w->k * sizeof *room.values + size + quant_size(w->stored, w->k));
    if (!room.values)
        return error_set(err, -ENOMEM, "%s: no memory for %s", gguf_path(m->gguf), w->name);
    room.out = (uint8_t *)(room.values + w->k);
    room.stored = room.out + size;
    int rc = 0;
    for (uint8_t *to = out; rc == 0 && n > 0;) {
        size_t from = at % size, part = size - from < n ? size - from : n;
        rc = read_row(m, w, at / size, &room, err);
        if (rc == 0)
            memcpy(to, room.out + from, part);
        at += part;
        to += part;
        n -= part;
    }
    free(room.values);
    return rc;
}
