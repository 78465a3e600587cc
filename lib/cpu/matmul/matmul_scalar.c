/* matmul_scalar.c - the matrix product in plain C, as kernels/abi/arith.h states it: the reference of the
 * vector kernels, and the kernel of CPUs without one. */
#include "matmul_pack.h"

static bool supported(void)
{
    return true;
}

static void quantise_block(const struct matmul_panel *p, uint32_t column, uint32_t j, const float *x,
                           const float *gain)
{
    float v[ARITH_BLOCK];
    int8_t q[ARITH_BLOCK];
    int32_t sum[2] = {0, 0};
    for (uint32_t i = 0; i < ARITH_BLOCK; i++)
        v[i] = gain ? x[i] * gain[i] : x[i];
    float a = arith_quantise(v, q);
    for (uint32_t i = 0; i < ARITH_BLOCK; i++)
        sum[i / 16] += q[i];
    matmul_panel_put(p, column, j, a, q, sum[0], sum[1]);
}

static void quantise(struct matmul_input *in, uint32_t panel, uint32_t first, uint32_t last,
                     const float *const *x, const float *gain, bool floats)
{
    for (uint32_t super = first; super < last; super++) {
        struct matmul_panel p = matmul_panel(in, panel, super);
        size_t start = (size_t)super * ARITH_SUPER;
        for (uint32_t c = 0; c < p.width; c++) {
            for (uint32_t j = 0; j < matmul_n_blocks(in->k, super); j++) {
                size_t k = start + j * ARITH_BLOCK;
                quantise_block(&p, c, j, x[c] + k, gain ? gain + k : NULL);
            }
            for (uint32_t i = 0; floats && i < matmul_n_values(in->k, super); i++)
                p.x[i * p.width + c] = gain ? x[c][start + i] * gain[start + i] : x[c][start + i];
        }
    }
}

/* Sums q*x over 16 values of one column, from value i of the row on; x is stored in panels. */
static int32_t dot16(uint32_t kind, const struct quant_super *s, const struct matmul_panel *p,
                     uint32_t column, uint32_t i)
{
    int32_t sum = 0;
    for (uint32_t end = i + 16; i < end; i++)
        sum += quant_super_value(matmul_traits[kind].type, s->q[i]) *
               p->q[(i / 4 * p->width + column) * 4 + i % 4];
    return sum;
}

/* Returns the value of super-block s of one row and one column (arith.h). */
static float super_value(uint32_t kind, const struct quant_super *s, const struct matmul_panel *p,
                         uint32_t column, uint32_t n_blocks)
{
    const struct matmul_traits *t = &matmul_traits[kind];
    float c = 0, m = 0, d = half_to_float(s->d) * matmul_unit(kind), dmin = half_to_float(s->dmin);
    for (uint32_t j = 0; j < n_blocks; j++) {
        uint32_t at = j * p->width + column;
        int32_t i0 = dot16(kind, s, p, column, j * ARITH_BLOCK);
        int32_t i1 = dot16(kind, s, p, column, j * ARITH_BLOCK + 16);
        float scaled;
        if (t->fold == MATMUL_FOLD_K || t->fold == MATMUL_FOLD_K32)
            scaled = (float)(s->scale[j] * (i0 + i1));
        else if (t->fold == MATMUL_FOLD_K16 || t->fold == MATMUL_FOLD_K16M)
            scaled = (float)(s->scale[2 * j] * i0 + s->scale[2 * j + 1] * i1);
        else if (t->fold == MATMUL_FOLD_S16)
            scaled = __builtin_fmaf(quant_half_ue4m3((uint8_t)s->scale[2 * j + 1]), (float)i1,
                                    quant_half_ue4m3((uint8_t)s->scale[2 * j]) * (float)i0);
        else
            scaled = quant_super_scale(matmul_traits[kind].type, s, j) * (float)(i0 + i1);
        c = __builtin_fmaf(p->a[at], scaled, c);
        if (t->fold == MATMUL_FOLD_K)
            m = __builtin_fmaf(p->b[at], (float)s->min[j], m);
        else if (t->fold == MATMUL_FOLD_SM)
            m = __builtin_fmaf(p->b[at], half_to_float(s->m[j]), m);
        for (uint32_t h = 0; t->fold == MATMUL_FOLD_K16M && h < 2; h++)
            m = __builtin_fmaf(p->b16[(2 * j + h) * p->width + column], (float)s->min[2 * j + h], m);
    }
    if (t->fold == MATMUL_FOLD_K || t->fold == MATMUL_FOLD_K16M)
        return __builtin_fmaf(d, c, -(dmin * m));
    if (t->fold == MATMUL_FOLD_S16)
        return s->factor * c;
    if (t->fold == MATMUL_FOLD_K16 || t->fold == MATMUL_FOLD_K32)
        return d * c;
    return t->fold == MATMUL_FOLD_SM ? c + m : c;
}

static float float_value(const float *w, const struct matmul_panel *p, uint32_t column, uint32_t n)
{
    float c = 0;
    for (uint32_t k = 0; k < n; k++)
        c = __builtin_fmaf(w[k], p->x[k * p->width + column], c);
    return c;
}

/* Adds super-block `super` of one row to total[column - first] of the columns [first, end). */
static void row_super(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t row,
                      uint32_t super, uint32_t first, uint32_t end, float *total)
{
    const uint8_t *tile = matmul_tile(m, row / MATMUL_ROWS, super);
    uint32_t n_blocks = matmul_n_blocks(m->k, super);
    struct quant_super s = {0};
    float w[ARITH_SUPER];
    if (!matmul_is_float(m))
        matmul_tile_read(m, row, super, &s);
    else
        for (uint32_t k = 0; k < matmul_n_values(m->k, super); k++)
            w[k] = matmul_tile_float(m->kind, tile, row % MATMUL_ROWS, k);
    for (uint32_t c = first; c < end; c++) {
        struct matmul_panel p = matmul_panel(in, c / MATMUL_PANEL, super);
        uint32_t i = c % MATMUL_PANEL;
        total[c - first] += matmul_is_float(m) ? float_value(w, &p, i, matmul_n_values(m->k, super))
                                               : super_value(m->kind, &s, &p, i, n_blocks);
    }
}

static void run(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first, uint32_t last,
                float *out, size_t stride, void *scratch)
{
    (void)scratch;
    uint32_t n_super = matmul_n_super(m->k), half = matmul_half(n_super);
    for (uint32_t row = first * MATMUL_ROWS; row < last * MATMUL_ROWS && row < m->n; row++, out++)
        for (uint32_t c = 0; c < in->n_columns; c += MATMUL_CHUNK) {
            float total[2][MATMUL_CHUNK] = {0};
            uint32_t end = matmul_min(c + MATMUL_CHUNK, in->n_columns);
            for (uint32_t super = 0; super < n_super; super++)
                row_super(m, in, row, super, c, end, total[super >= half]);
            for (uint32_t i = c; i < end; i++)
                out[i * stride] = total[0][i - c] + total[1][i - c];
        }
}

const struct matmul_kernels matmul_scalar = {
    .name = "scalar",
    .supported = supported,
    .quantise = quantise,
    .run = run,
    .scratch_size = 0,
    .columns = 1,
};
