/* matmul_pack.c - converts weights from the file's blocks to tiles of 16 rows, and back (matmul_pack.h). */
#include "matmul_pack.h"

#include <assert.h>
#include <errno.h>

/* The kind of a quant type, or MATMUL_N_KINDS. */
static uint32_t matmul_kind_of(uint32_t type)
{
    uint32_t kind = 0;
    type = type == QUANT_NVFP4_SCALED ? QUANT_NVFP4 : type; /* without a factor d is 1 */
    while (kind < MATMUL_N_KINDS && matmul_traits[kind].type != type)
        kind++;
    return kind;
}

static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void merge_u32(uint8_t *p, uint32_t v)
{
    v |= load_u32(p);
    memcpy(p, &v, sizeof v);
}

/* Writes values of 6 bits: of every four steps three have vectors of their own, whose upper bits hold the
 * fourth. */
static void write_six(const uint8_t *q, uint8_t *row)
{
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t v = load_u32(q + 16 * h + 4 * i) | (load_u32(q + 16 * h + 12) >> 2 * i & 0x03030303u)
                                                            << 6;
            memcpy(row + 192 * h + 64 * i, &v, 4);
        }
}

static void read_six(const uint8_t *row, uint8_t *q)
{
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t last = 0;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t v = load_u32(row + 192 * h + 64 * i), low = v & 0x3f3f3f3fu;
            memcpy(q + 16 * h + 4 * i, &low, 4);
            last |= (v >> 6 & 0x03030303u) << 2 * i;
        }
        memcpy(q + 16 * h + 12, &last, 4);
    }
}

/* Writes one block of one row into a tile's block, which is zeroed before. Four columns move as one 32-bit
 * word. */
static void write_values(uint32_t bits, const uint8_t *q, uint8_t *block, uint32_t row)
{
    if (bits == 6) {
        write_six(q, block + 4 * row);
        return;
    }
    uint8_t *planes = block + (bits & 4 ? 256 : 0), *last = planes + (bits & 2 ? 128 : 0);
    for (uint32_t t = 0; t < MATMUL_STEPS; t++) {
        uint32_t v = load_u32(q + 4 * t), n = 0;
        if (bits == 8) {
            memcpy(block + 64 * t + 4 * row, &v, 4);
            continue;
        }
        if (bits & 4) {
            merge_u32(block + 64 * (t / 2) + 4 * row, (v & 0x0f0f0f0fu) << 4 * (t % 2));
            n = 4;
        }
        if (bits & 2) {
            merge_u32(planes + 64 * (t / 4) + 4 * row, (v >> n & 0x03030303u) << 2 * (t % 4));
            n += 2;
        }
        if (bits & 1)
            merge_u32(last + 4 * row, (v >> n & 0x01010101u) << t);
    }
}

static void read_values(uint32_t bits, const uint8_t *block, uint32_t row, uint8_t *q)
{
    if (bits == 6) {
        read_six(block + 4 * row, q);
        return;
    }
    const uint8_t *planes = block + (bits & 4 ? 256 : 0), *last = planes + (bits & 2 ? 128 : 0);
    for (uint32_t t = 0; t < MATMUL_STEPS; t++) {
        uint32_t v = 0, n = 0;
        if (bits == 8)
            v = load_u32(block + 64 * t + 4 * row);
        if (bits & 4) {
            v = load_u32(block + 64 * (t / 2) + 4 * row) >> 4 * (t % 2) & 0x0f0f0f0fu;
            n = 4;
        }
        if (bits & 2) {
            v |= (load_u32(planes + 64 * (t / 4) + 4 * row) >> 2 * (t % 4) & 0x03030303u) << n;
            n += 2;
        }
        if (bits & 1)
            v |= (load_u32(last + 4 * row) >> t & 0x01010101u) << n;
        memcpy(q + 4 * t, &v, 4);
    }
}

/* Writes the scales of a tile, which begin at `p`. */
static void write_scales(uint32_t kind, uint32_t n_blocks, const struct quant_super *s, uint8_t *p,
                         uint32_t row)
{
    uint32_t fold = matmul_traits[kind].fold;
    if (fold == MATMUL_FOLD_K)
        for (uint32_t j = 0; j < 8; j++) {
            p[16 * j + row] = (uint8_t)((s->scale[j] & 15) | (s->min[j] & 15) << 4);
            p[128 + 16 * (j / 2) + row] |=
                (uint8_t)((s->scale[j] >> 4 | (s->min[j] >> 4) << 2) << 4 * (j % 2));
        }
    else if (kind == MATMUL_Q3_K)
        for (uint32_t i = 0; i < 16; i++) {
            uint32_t v = (uint32_t)(s->scale[i] + 32);
            p[16 * (i / 2) + row] |= (uint8_t)((v & 15) << 4 * (i % 2));
            p[128 + 16 * (i / 4) + row] |= (uint8_t)(v >> 4 << 2 * (i % 4));
        }
    else if (fold == MATMUL_FOLD_K16 || fold == MATMUL_FOLD_K16M)
        for (uint32_t i = 0; i < 16; i++)
            p[16 * i + row] = (uint8_t)(s->scale[i] | (fold == MATMUL_FOLD_K16M ? s->min[i] << 4 : 0));
    else if (fold == MATMUL_FOLD_K32 || fold == MATMUL_FOLD_S16)
        for (uint32_t i = 0; i < n_blocks * matmul_traits[kind].scale_size / 16; i++)
            p[16 * i + row] = (uint8_t)s->scale[i];
    else if (kind == MATMUL_MXFP4)
        for (uint32_t j = 0; j < n_blocks; j++)
            p[16 * j + row] = (uint8_t)s->s[j];
    else
        for (uint32_t j = 0; j < n_blocks; j++) {
            memcpy(p + 32 * j + 2 * row, &s->s[j], 2);
            if (fold == MATMUL_FOLD_SM)
                memcpy(p + 32 * (n_blocks + j) + 2 * row, &s->m[j], 2);
        }
}

static void write_globals(uint32_t kind, const struct quant_super *s, uint8_t *p, uint32_t row)
{
    if (matmul_traits[kind].fold == MATMUL_FOLD_S16) {
        memcpy(p + 4 * row, &s->factor, 4);
        return;
    }
    if (matmul_traits[kind].global_size)
        memcpy(p + 2 * row, &s->d, 2);
    if (matmul_traits[kind].global_size > 32)
        memcpy(p + 32 + 2 * row, &s->dmin, 2);
}

static void read_scales(uint32_t kind, uint32_t n_blocks, const uint8_t *p, uint32_t row,
                        struct quant_super *s)
{
    uint32_t fold = matmul_traits[kind].fold;
    if (fold == MATMUL_FOLD_K)
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t high = p[128 + 16 * (j / 2) + row] >> 4 * (j % 2);
            s->scale[j] = (int8_t)((p[16 * j + row] & 15) | (high & 3) << 4);
            s->min[j] = (uint8_t)((p[16 * j + row] >> 4) | (high >> 2 & 3) << 4);
        }
    else if (kind == MATMUL_Q3_K)
        for (uint32_t i = 0; i < 16; i++)
            s->scale[i] = (int8_t)(((p[16 * (i / 2) + row] >> 4 * (i % 2) & 15) |
                                    (p[128 + 16 * (i / 4) + row] >> 2 * (i % 4) & 3) << 4) -
                                   32);
    else if (fold == MATMUL_FOLD_K16 || fold == MATMUL_FOLD_K16M)
        for (uint32_t i = 0; i < 16; i++) {
            uint8_t v = p[16 * i + row];
            s->scale[i] = (int8_t)(fold == MATMUL_FOLD_K16M ? v & 15 : v);
            s->min[i] = v >> 4;
        }
    else if (fold == MATMUL_FOLD_K32 || fold == MATMUL_FOLD_S16)
        for (uint32_t i = 0; i < 16; i++) {
            bool has = i < n_blocks * matmul_traits[kind].scale_size / 16;
            s->scale[i] = has ? (int8_t)p[16 * i + row] : 1;
        }
    else if (kind == MATMUL_MXFP4)
        for (uint32_t j = 0; j < n_blocks; j++)
            s->s[j] = p[16 * j + row];
    else
        for (uint32_t j = 0; j < n_blocks; j++) {
            memcpy(&s->s[j], p + 32 * j + 2 * row, 2);
            if (fold == MATMUL_FOLD_SM)
                memcpy(&s->m[j], p + 32 * (n_blocks + j) + 2 * row, 2);
        }
}

static void read_globals(uint32_t kind, const uint8_t *p, uint32_t row, struct quant_super *s)
{
    if (matmul_traits[kind].fold == MATMUL_FOLD_S16) {
        memcpy(&s->factor, p + 4 * row, 4);
        return;
    }
    if (matmul_traits[kind].global_size)
        memcpy(&s->d, p + 2 * row, 2);
    if (matmul_traits[kind].global_size > 32)
        memcpy(&s->dmin, p + 32 + 2 * row, 2);
}

void matmul_tile_read(const struct matmul_matrix *m, uint32_t row, uint32_t super, struct quant_super *out)
{
    const struct matmul_traits *t = &matmul_traits[m->kind];
    uint32_t n_blocks = matmul_n_blocks(m->k, super), r = row % MATMUL_ROWS, group = row / MATMUL_ROWS;
    const uint8_t *tile = matmul_tile(m, group, super);
    for (uint32_t j = 0; j < n_blocks; j++)
        read_values(t->bits, tile + matmul_block_at(t, n_blocks, j), r, out->q + j * ARITH_BLOCK);
    read_scales(m->kind, n_blocks, tile, r, out);
    read_globals(m->kind, matmul_globals(m, group, super), r, out);
}

float matmul_tile_float(uint32_t kind, const uint8_t *tile, uint32_t row, uint32_t column)
{
    size_t i = (size_t)column * MATMUL_ROWS + row;
    uint16_t h;
    float f;
    if (kind == MATMUL_F32) {
        memcpy(&f, tile + 4 * i, 4);
        return f;
    }
    memcpy(&h, tile + 2 * i, 2);
    return kind == MATMUL_F16 ? half_to_float(h) : bf16_to_float(h);
}

int matmul_check_weight(uint32_t type, uint32_t n, uint32_t k, struct error *err)
{
    uint32_t kind = matmul_kind_of(type);
    if (kind == MATMUL_N_KINDS)
        return error_set(err, -ENOTSUP, "weight type %s is not supported on cpu", quant_name(type));
    uint32_t block = quant_traits(type)->block > ARITH_BLOCK ? quant_traits(type)->block : ARITH_BLOCK;
    if (matmul_traits[kind].fold == MATMUL_FOLD_FLOAT)
        block = 1;
    if (!n || !k || k % block)
        return error_set(err, -ENOTSUP,
                         "a %s weight of %u rows of %u values: rows must be multiples of %u values",
                         quant_name(type), n, k, block);
    return 0;
}

size_t matmul_pack_size(uint32_t type, uint32_t n, uint32_t k)
{
    struct matmul_matrix m;
    matmul_matrix_set(&m, type, n, k, NULL);
    return m.n_groups * m.group_size;
}

void matmul_matrix_set(struct matmul_matrix *m, uint32_t type, uint32_t n, uint32_t k, const void *packed)
{
    uint32_t kind = matmul_kind_of(type), n_super = matmul_n_super(k);
    assert(kind < MATMUL_N_KINDS);
    const struct matmul_traits *t = &matmul_traits[kind];
    *m = (struct matmul_matrix){
        .kind = kind,
        .type = type,
        .n = n,
        .k = k,
        .n_groups = (n + MATMUL_ROWS - 1) / MATMUL_ROWS,
        .group_size =
            (matmul_globals_size(t, n_super) + (n_super - 1) * matmul_tile_size(t, MATMUL_SUPER_BLOCKS) +
             matmul_tile_size(t, (matmul_n_values(k, n_super - 1) + ARITH_BLOCK - 1) / ARITH_BLOCK) + 63) /
            64 * 64,
        .data = packed,
    };
}

/* `rows` are the group's. */
static void pack_integer(const struct matmul_matrix *m, const uint8_t *rows, uint8_t *out, uint32_t super,
                         uint32_t group)
{
    uint8_t *tile = out + (matmul_tile(m, group, super) - m->data);
    uint8_t *globals = out + (matmul_globals(m, group, super) - m->data);
    const struct matmul_traits *t = &matmul_traits[m->kind];
    uint32_t n_blocks = matmul_n_blocks(m->k, super);
    uint32_t n_rows = matmul_min(MATMUL_ROWS, m->n - group * MATMUL_ROWS);
    size_t row_size = quant_size(m->type, m->k), offset = super * quant_size(m->type, ARITH_SUPER);
    struct quant_super s = {0};
    for (uint32_t r = 0; r < n_rows; r++) {
        quant_super_read(m->type, rows + r * row_size + offset, n_blocks, &s);
        for (uint32_t j = 0; j < n_blocks; j++)
            write_values(t->bits, s.q + j * ARITH_BLOCK, tile + matmul_block_at(t, n_blocks, j), r);
        write_scales(m->kind, n_blocks, &s, tile, r);
        write_globals(m->kind, &s, globals, r);
    }
}

static void pack_float(const struct matmul_matrix *m, const uint8_t *rows, uint8_t *out, uint32_t super,
                       uint32_t group)
{
    uint8_t *tile = out + (matmul_tile(m, group, super) - m->data);
    uint32_t n_rows = matmul_min(MATMUL_ROWS, m->n - group * MATMUL_ROWS);
    uint32_t n_columns = matmul_n_values(m->k, super);
    size_t size = matmul_traits[m->kind].bits / 8;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint8_t *from = rows + (r * (size_t)m->k + super * ARITH_SUPER) * size;
        for (uint32_t i = 0; i < n_columns; i++)
            memcpy(tile + (i * MATMUL_ROWS + r) * size, from + i * size, size);
    }
}

void matmul_pack(uint32_t type, uint32_t n, uint32_t k, const void *rows, void *out, uint32_t first,
                 uint32_t last)
{
    struct matmul_matrix m;
    const uint8_t *from = rows;
    size_t group_bytes = quant_size(type, k) * MATMUL_ROWS;
    matmul_matrix_set(&m, type, n, k, out);
    assert(first <= last && last <= m.n_groups);
    memset((uint8_t *)out + first * m.group_size, 0, (last - first) * m.group_size);
    for (uint32_t group = first; group < last; group++, from += group_bytes)
        for (uint32_t super = 0; super < matmul_n_super(k); super++)
            if (matmul_is_float(&m))
                pack_float(&m, from, out, super, group);
            else
                pack_integer(&m, from, out, super, group);
}

bool matmul_is_float(const struct matmul_matrix *m)
{
    return matmul_traits[m->kind].fold == MATMUL_FOLD_FLOAT;
}

/* Converts one row of an integer tile to floats, in the order of operations of quant_dequantise(). */
static void row_of_tile(uint32_t kind, const struct quant_super *s, uint32_t n_blocks, float *out)
{
    const struct matmul_traits *t = &matmul_traits[kind];
    float d = half_to_float(s->d) * matmul_unit(kind), dmin = half_to_float(s->dmin);
    for (uint32_t i = 0; i < n_blocks * ARITH_BLOCK; i++) {
        float q = (float)quant_super_value(matmul_traits[kind].type, s->q[i]);
        uint32_t sub = t->fold == MATMUL_FOLD_K ? i / 32 : i / 16, j = i / 32;
        if (t->fold == MATMUL_FOLD_S)
            out[i] = quant_super_scale(matmul_traits[kind].type, s, j) * q;
        else if (t->fold == MATMUL_FOLD_S16)
            out[i] = s->factor * quant_half_ue4m3((uint8_t)s->scale[sub]) * q;
        else if (t->fold == MATMUL_FOLD_K32)
            out[i] = d * (float)s->scale[j] * q;
        else if (t->fold == MATMUL_FOLD_SM)
            out[i] = half_to_float(s->s[j]) * q + half_to_float(s->m[j]);
        else if (t->fold == MATMUL_FOLD_K16)
            out[i] = d * (float)s->scale[sub] * q;
        else
            out[i] = d * (float)s->scale[sub] * q - dmin * (float)s->min[sub];
    }
}

void matmul_row(const struct matmul_matrix *m, uint32_t row, float *out)
{
    assert(row < m->n);
    for (uint32_t super = 0; super < matmul_n_super(m->k); super++) {
        const uint8_t *tile = matmul_tile(m, row / MATMUL_ROWS, super);
        uint32_t n_blocks = matmul_n_blocks(m->k, super);
        struct quant_super s = {0};
        float *to = out + super * ARITH_SUPER;
        if (!matmul_is_float(m)) {
            matmul_tile_read(m, row, super, &s);
            row_of_tile(m->kind, &s, n_blocks, to);
        } else
            for (uint32_t i = 0; i < matmul_n_values(m->k, super); i++)
                to[i] = matmul_tile_float(m->kind, tile, row % MATMUL_ROWS, i);
    }
}

size_t matmul_input_size(uint32_t k, uint32_t n_columns)
{
    return n_columns * ((size_t)matmul_n_super(k) * MATMUL_COLUMN_SUPER + (size_t)k * sizeof(float));
}

uint32_t matmul_input_supers(const struct matmul_input *in)
{
    return matmul_n_super(in->k);
}

uint32_t matmul_input_panels(const struct matmul_input *in)
{
    return (in->n_columns + MATMUL_PANEL - 1) / MATMUL_PANEL;
}
