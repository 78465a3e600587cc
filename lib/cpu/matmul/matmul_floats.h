/* matmul_floats.h - the product of float weights with unquantised activations; part of matmul_template.h,
 * whose vectors, scratch and put_chunk() it uses.
 * Thread: any; pure but for the scratch. */
INLINE vf float_weights(uint32_t kind, const uint8_t *tile, uint32_t column, uint32_t o)
{
    size_t i = (size_t)column * MATMUL_ROWS + o;
    return kind == MATMUL_F32   ? vf_loadu(tile + 4 * i)
           : kind == MATMUL_F16 ? vf_half(tile + 2 * i)
                                : vf_bf16(tile + 2 * i);
}

/* A super-block of two row vectors of floats times W unquantised columns. */
INLINE void float_panel(uint32_t kind, uint32_t W, const uint8_t *const tile[2], const struct matmul_panel *p,
                        uint32_t column, uint32_t n, float total[][2][LANES])
{
    vf c[2][PANEL_COLUMNS];
    for (uint32_t i = 0; i < W; i++)
        c[0][i] = c[1][i] = vf_zero();
    const float *x = p->x + column;
    for (uint32_t k = 0; k < n; k++, x += p->width) {
        vf w0 = float_weights(kind, tile[0], k, 0), w1 = float_weights(kind, tile[1], k, LANES % MATMUL_ROWS);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < W; i++) {
            vf v = vf_bcast(x + i);
            c[0][i] = vf_fma(w0, v, c[0][i]);
            c[1][i] = vf_fma(w1, v, c[1][i]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < W; i++) {
        vf_store(total[i][0], vf_add(vf_load(total[i][0]), c[0][i]));
        vf_store(total[i][1], vf_add(vf_load(total[i][1]), c[1][i]));
    }
}

INLINE void float_super(uint32_t kind, const uint8_t *const tile[2], const struct matmul_input *in,
                        uint32_t chunk, uint32_t end, uint32_t super, uint32_t n, float total[][2][LANES])
{
    for (uint32_t column = chunk, W; column < end; column += W, total += W) {
        struct matmul_panel p = matmul_panel(in, column / MATMUL_PANEL, super);
        uint32_t c = column % MATMUL_PANEL;
        W = p.width - c >= PANEL_COLUMNS ? PANEL_COLUMNS : p.width - c >= 2 ? 2 : 1;
        if (W == PANEL_COLUMNS)
            float_panel(kind, PANEL_COLUMNS, tile, &p, c, n, total);
        else if (W == 2)
            float_panel(kind, 2, tile, &p, c, n, total);
        else
            float_panel(kind, 1, tile, &p, c, n, total);
    }
}

INLINE void floats(uint32_t kind, const struct matmul_matrix *m, const struct matmul_input *in,
                   uint32_t first, uint32_t last, float *out, size_t stride, struct scratch *s)
{
    uint32_t n_super = matmul_n_super(m->k);
    for (uint32_t g = first; g < last; g += PAIR_GROUPS, out += PAIR_GROUPS * MATMUL_ROWS)
        for (uint32_t chunk = 0; chunk < in->n_columns; chunk += MATMUL_CHUNK) {
            uint32_t end = matmul_min(chunk + MATMUL_CHUNK, in->n_columns);
            uint32_t n_groups = matmul_min(PAIR_GROUPS, last - g);
            memset(s->total[0], 0, (end - chunk) * sizeof s->total[0][0]);
            memset(s->total[1], 0, (end - chunk) * sizeof s->total[1][0]);
            for (uint32_t super = 0; super < n_super; super++) {
                const uint8_t *tile[2] = {matmul_tile(m, g, super), matmul_tile(m, g + n_groups - 1, super)};
                float_super(kind, tile, in, chunk, end, super, matmul_n_values(m->k, super),
                            s->total[super >= matmul_half(n_super)]);
            }
            put_chunk(m, g, n_groups, chunk, end, out, stride, s);
        }
}

static void run_floats(const struct matmul_matrix *m, const struct matmul_input *in, uint32_t first,
                       uint32_t last, float *out, size_t stride, struct scratch *s)
{
    if (m->kind == MATMUL_F32)
        floats(MATMUL_F32, m, in, first, last, out, stride, s);
    else if (m->kind == MATMUL_F16)
        floats(MATMUL_F16, m, in, first, last, out, stride, s);
    else
        floats(MATMUL_BF16, m, in, first, last, out, stride, s);
}
