/* ops_delta.h - the operations of recurrent layers and gates, over a vector of WIDTH floats (ops_template.h).
 * Lanes are channels, or columns of a state: a column's sums stay in its lane, in the order of arith.h.
 * Thread: any; the members of a team call them on their own units. */

INLINE struct vec vec_sigmoid(struct vec x)
{
    struct vec e = vec_exp2(vec_mul(x, vec_all(-ARITH_LOG2E)));
    return vec_div(vec_all(1.0f), vec_add(vec_all(1.0f), e));
}

static void gate_silu(float *out, const float *y, uint32_t n, float r)
{
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        struct vec v = vec_mul(vec_load(y + i), vec_all(r));
        vec_store(out + i, vec_mul(vec_load(out + i), vec_silu(v)));
    }
    for (; i < n; i++)
        out[i] = out[i] * arith_silu(y[i] * r);
}

static void gate_sigmoid(float *out, const float *y, uint32_t n, float r)
{
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        struct vec v = vec_mul(vec_load(y + i), vec_all(r));
        vec_store(out + i, vec_mul(vec_load(out + i), vec_sigmoid(v)));
    }
    for (; i < n; i++)
        out[i] = out[i] * arith_sigmoid(y[i] * r);
}

static void sigmoid(float *out, const float *a, uint32_t n)
{
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_sigmoid(vec_load(a + i)));
    for (; i < n; i++)
        out[i] = arith_sigmoid(a[i]);
}

static void convolve(float *out, const float *const *rows, const float *taps, uint32_t n_taps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += WIDTH) { /* n is a multiple of DELTA_COLUMNS */
        struct vec sum = vec_all(0.0f);
        for (uint32_t j = 0; j < n_taps; j++)
            sum = vec_fma(vec_load(taps + (size_t)j * n + i), vec_load(rows[j] + i), sum);
        vec_store(out + i, sum);
    }
}

/* Vectors of the columns that lie together. */
enum { COLUMN_VECS = DELTA_COLUMNS / WIDTH };

struct column_chains {
    struct vec v[DELTA_CHAINS][COLUMN_VECS];
};

INLINE struct column_chains chains_begin(void)
{
    struct column_chains c;
    for (int i = 0; i < DELTA_CHAINS; i++)
        for (int j = 0; j < COLUMN_VECS; j++)
            c.v[i][j] = vec_all(0.0f);
    return c;
}

/* delta_join() of vector j. */
INLINE struct vec chains_join(const struct column_chains *c, int j)
{
    return vec_add(vec_add(c->v[0][j], c->v[2][j]), vec_add(c->v[1][j], c->v[3][j]));
}

/* delta_head() of one row on 16 columns. */
INLINE void delta_columns(float *state, const float *q, const float *k, const float *v, float beta,
                          float decay, uint32_t key_dim, float *out)
{
    struct column_chains known = chains_begin(), o = chains_begin();
    for (uint32_t i = 0; i < key_dim; i += DELTA_CHAINS)
        for (int c = 0; c < DELTA_CHAINS; c++)
            for (int j = 0; j < COLUMN_VECS; j++)
                known.v[c][j] = vec_fma(vec_load(state + (i + (uint32_t)c) * DELTA_COLUMNS + j * WIDTH),
                                        vec_all(k[i + (uint32_t)c]), known.v[c][j]);
    struct vec d[COLUMN_VECS], factor = vec_all(decay);
    for (int j = 0; j < COLUMN_VECS; j++)
        d[j] =
            vec_mul(vec_all(beta), vec_fma(vec_all(-decay), chains_join(&known, j), vec_load(v + j * WIDTH)));
    for (uint32_t i = 0; i < key_dim; i += DELTA_CHAINS)
        for (int c = 0; c < DELTA_CHAINS; c++)
            for (int j = 0; j < COLUMN_VECS; j++) {
                float *at = state + (i + (uint32_t)c) * DELTA_COLUMNS + j * WIDTH;
                struct vec s = vec_fma(vec_all(k[i + (uint32_t)c]), d[j], vec_mul(factor, vec_load(at)));
                vec_store(at, s);
                o.v[c][j] = vec_fma(s, vec_all(q[i + (uint32_t)c]), o.v[c][j]);
            }
    for (int j = 0; j < COLUMN_VECS; j++)
        vec_store(out + j * WIDTH, chains_join(&o, j));
}

/* All rows go through 16 columns, which stay in the first-level cache, before the next ones. */
static void delta(const struct ops_delta *d)
{
    size_t block = (size_t)d->key_dim * DELTA_COLUMNS;
    for (uint32_t j = 0; j < d->value_dim; j += DELTA_COLUMNS)
        for (uint32_t row = 0; row < d->n_rows; row++) {
            size_t in = row * d->in_stride, gate = row * d->gate_stride;
            delta_columns(d->state + j / DELTA_COLUMNS * block, d->q + in, d->k + in, d->v + in + j,
                          d->beta[gate], d->decay[gate], d->key_dim, d->out + row * d->out_stride + j);
        }
}
