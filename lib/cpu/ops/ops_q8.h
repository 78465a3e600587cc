/* ops_q8.h - attention over a q8_0 cache, in integers (arith.h, "ATTENTION OVER A Q8_0 CACHE"); part of
 * ops_template.h.
 * An instruction set provides ints: vectors of WIDTH 32-bit lanes, or of four bytes in each lane. Keys are
 * stored with 128 added (x86 multiplies unsigned by signed bytes); a dot product starts at the sum that
 * corrects for it. Stale elements may have any value: their weights are 0.
 * Thread: any; all functions are pure. */

enum { MAX_BLOCKS = OPS_MAX_HEAD_DIM / ARITH_BLOCK };

/* Lanes of four bytes in a token's keys. */
static uint32_t quads_of(uint32_t head_dim)
{
    return (head_dim + 3) / 4;
}

static uint32_t blocks_of(uint32_t head_dim)
{
    return (head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
}

/* A query in the form of ops_query; q has blocks * 32 values. */
struct q8_query {
    float scales[MAX_BLOCKS];
    int32_t sums[MAX_BLOCKS];
    int8_t q[];
};
_Static_assert(sizeof(struct q8_query) + ARITH_BLOCK <= OPS_MIN_PADDED * sizeof(float), "the shortest head");

/* Quantises the blocks of a head: blocks * 32 values. */
static void quantise_head(const float *x, uint32_t n, float factor, int8_t *q, float *scales)
{
    for (uint32_t first = 0; first < n; first += ARITH_BLOCK) {
        float block[ARITH_BLOCK] = {0};
        uint32_t m = n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK;
        for (uint32_t i = 0; i < m; i++)
            block[i] = x[first + i] * factor;
        scales[first / ARITH_BLOCK] = arith_quantise(block, q + first);
    }
}

static void query_q8(struct q8_query *to, const float *from, uint32_t n, float factor)
{
    quantise_head(from, n, factor, to->q, to->scales);
    for (uint32_t b = 0; b < blocks_of(n); b++) {
        to->sums[b] = 0;
        for (uint32_t i = 0; i < ARITH_BLOCK; i++)
            to->sums[b] += to->q[b * ARITH_BLOCK + i];
    }
}

static void append_q8(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t,
                      const float *x)
{
    uint32_t n = kv->head_dim, quads = quads_of(n), d = 0;
    float scales[MAX_BLOCKS];
    _Alignas(64) int8_t row[OPS_MAX_HEAD_DIM];
    uint16_t *to_scales = (uint16_t *)(void *)(tile + kv_tile_elements(kv));
    quantise_head(x, n, 1.0f, row, scales);
    for (uint32_t b = 0; b < blocks_of(n); b++)
        to_scales[b * KV_PAGE_TOKENS + t] = half_from_float(scales[b]);
    if (which == KV_KEYS) {
        uint8_t *to = tile + ((size_t)(t / TOKEN_BLOCK) * quads * TOKEN_BLOCK + t % TOKEN_BLOCK) * 4;
        for (uint32_t i = 0; i < quads; i++) {
            uint32_t four;
            memcpy(&four, row + 4 * i, sizeof four);
            four ^= 0x80808080u;
            memcpy(to + (size_t)i * TOKEN_BLOCK * 4, &four, sizeof four);
        }
        return;
    }
    uint8_t *to = tile + (size_t)(t / 4) * n * 4;
    for (; d + WIDTH <= n; d += WIDTH)
        ints_store_quarter(to + 4 * d, row + d, t % 4);
    for (; d < n; d++)
        to[4 * d + t % 4] = (uint8_t)row[d];
}

/* The scales of a page as floats, [blocks][64]. */
struct page_scales {
    _Alignas(64) float keys[MAX_BLOCKS * KV_PAGE_TOKENS];
    _Alignas(64) float values[MAX_BLOCKS * KV_PAGE_TOKENS];
};

struct q8_job {
    struct fold_job job;
    struct page_scales scales;
};

/* --- scores --- */

struct quad_dots {
    const uint8_t *keys; /* keys of the first token */
    const float *scales; /* their scales */
    const struct q8_query *q[MAX_BATCH];
    uint32_t n_quads;
    uint32_t next;      /* bytes from one vector of tokens to the next */
    struct ahead ahead; /* a step is a block */
};

/* Adds block b of n dot products with m vectors of tokens. */
INLINE void quad_block(const struct quad_dots *x, uint32_t b, int n, int m, struct vec *s)
{
    struct ints dots[MAX_BATCH * DOT_VECS];
    uint32_t first = b * (ARITH_BLOCK / 4), left = x->n_quads - first;
    uint32_t end = first + (left < ARITH_BLOCK / 4 ? left : ARITH_BLOCK / 4);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            dots[j * m + w] = ints_start(x->q[j]->sums[b]);
    ahead_step(&x->ahead, b, n);
    for (uint32_t i = first; i < end; i++) {
        struct ints k[DOT_VECS];
        for (int w = 0; w < m; w++) {
            size_t at = (size_t)w * x->next + (size_t)i * TOKEN_BLOCK * 4;
            k[w] = ints_load(x->keys + at);
            if (x->ahead.all)
                fetch(x->ahead.all + at, 64);
        }
        for (int j = 0; j < n; j++) {
            struct ints q = ints_all(x->q[j]->q + 4 * i);
            for (int w = 0; w < m; w++)
                dots[j * m + w] = ints_dot_keys(dots[j * m + w], k[w], q);
        }
    }
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++) {
            struct vec scale = vec_load(x->scales + b * KV_PAGE_TOKENS + w * WIDTH);
            scale = vec_mul(vec_all(x->q[j]->scales[b]), scale);
            s[j * m + w] = vec_fma(vec_from_ints(dots[j * m + w]), scale, s[j * m + w]);
        }
}

/* Computes the scores of m vectors of tokens from token t on, for queries [at, at + n) of the job. */
INLINE void score_q8_some(const struct fold_job *job, struct quad_dots x, uint32_t t, uint32_t at, int n,
                          int m)
{
    struct vec sums[MAX_BATCH * DOT_VECS];
    size_t start = ((size_t)(t / TOKEN_BLOCK) * x.n_quads * TOKEN_BLOCK + t % TOKEN_BLOCK) * 4;
    x.keys = job->page->keys + start;
    x.scales += t;
    x.ahead = ahead_tokens(x.ahead, start, t, (uint32_t)m * WIDTH, (x.n_quads + 7) / 8);
    for (int j = 0; j < n * m; j++)
        sums[j] = vec_all(0.0f);
    for (uint32_t b = 0; b * (ARITH_BLOCK / 4) < x.n_quads; b++)
        quad_block(&x, b, n, m, sums);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            vec_store(&job->weights->w[at + (uint32_t)j][t + (uint32_t)w * WIDTH], sums[j * m + w]);
}

INLINE void scores_q8(const struct q8_job *q8, uint32_t head_dim, uint32_t at, int n)
{
    const struct fold_job *job = &q8->job;
    const int m = n > 2 ? DOT_VECS / 2 : DOT_VECS; /* all sums fit into registers */
    struct quad_dots x = {.n_quads = quads_of(head_dim),
                          .scales = q8->scales.keys,
                          .ahead = ahead_of(job, at, job->page->values, 1)};
    uint32_t most = most_tokens(job->queries + at, n), t = 0;
    for (int j = 0; j < n; j++)
        x.q[j] = job->queries[at + (uint32_t)j].q;
    x.next = WIDTH == TOKEN_BLOCK ? x.n_quads * TOKEN_BLOCK * 4 : WIDTH * 4;
    for (; t + (uint32_t)(m - 1) * WIDTH < most; t += (uint32_t)m * WIDTH)
        score_q8_some(job, x, t, at, n, m);
    for (; t < most; t += WIDTH)
        score_q8_some(job, x, t, at, n, 1);
}

/* --- values --- */

/* The weights of a query for a page: the upper and the lower seven bits. */
struct q8_weights {
    _Alignas(64) uint8_t high[MAX_BLOCKS][KV_PAGE_TOKENS];
    _Alignas(64) uint8_t low[MAX_BLOCKS][KV_PAGE_TOKENS];
    float steps[MAX_BLOCKS];
};

/* Quantises the weights of block b from w[64] and the values' scales [64]. */
INLINE void quantise_weights(struct q8_weights *to, uint32_t b, const float *w, const float *scales)
{
    enum { N = KV_PAGE_TOKENS / WIDTH };
    struct vec products[N];
    struct ints top = ints_zero();
    for (int i = 0; i < N; i++) {
        products[i] = vec_mul_weight(vec_load(w + i * WIDTH), vec_load(scales + i * WIDTH));
        top = ints_max_magnitude(top, products[i]);
    }
    struct arith_weights by = arith_weights_of(ints_largest(top));
    to->steps[b] = by.step;
    for (int i = 0; i < N; i++) {
        struct ints u = ints_zero();
        if (by.inverse > 0.0f)
            u = ints_from_vec(vec_mul(products[i], vec_all(by.inverse)));
        ints_store_sevens(to->high[b] + i * WIDTH, to->low[b] + i * WIDTH, u);
    }
}

struct quad_sums {
    const uint8_t *values;
    float *out[MAX_BATCH];
    const struct q8_weights *weights[MAX_BATCH];
    const float *factor;
    uint32_t head_dim, n_quads; /* groups of four tokens */
    struct ahead ahead;         /* a step is a block of dimensions */
};

/* Folds the values into dimensions [d, d + m * WIDTH), all of one block, of n queries. */
INLINE void quad_values(const struct quad_sums *x, uint32_t d, int n, int m)
{
    struct ints high[MAX_BATCH * 2], low[MAX_BATCH * 2];
    uint32_t b = d / ARITH_BLOCK, n_blocks = blocks_of(x->head_dim);
    for (int j = 0; j < n * m; j++)
        high[j] = low[j] = ints_zero();
    if (d % ARITH_BLOCK == 0)
        ahead_step(&x->ahead, b, n);
    for (uint32_t quad = 0; quad < x->n_quads; quad++) {
        struct ints v[2];
        for (int i = 0; i < m; i++)
            v[i] = ints_load(x->values + ((size_t)quad * x->head_dim + d + (size_t)i * WIDTH) * 4);
        if (x->ahead.all && d % ARITH_BLOCK == 0) /* each block prefetches a share of the quad's bytes */
            fetch(x->ahead.all + ((size_t)quad * n_blocks + b) * ARITH_BLOCK * 4, ARITH_BLOCK * 4);
        for (int j = 0; j < n; j++) {
            struct ints h = ints_all(x->weights[j]->high[b] + 4 * quad);
            struct ints l = ints_all(x->weights[j]->low[b] + 4 * quad);
            for (int i = 0; i < m; i++) {
                high[j * m + i] = ints_dot_values(high[j * m + i], h, v[i]);
                low[j * m + i] = ints_dot_values(low[j * m + i], l, v[i]);
            }
        }
    }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            float *o = x->out[j] + d + i * WIDTH;
            struct vec sum = vec_from_ints(ints_join_sevens(high[j * m + i], low[j * m + i]));
            vec_store(o, vec_fma(sum, vec_all(x->weights[j]->steps[b]),
                                 vec_mul(vec_load(o), vec_all(x->factor[j]))));
        }
}

/* The dimensions behind the last whole vector, for one query. */
static void quad_values_rest(const struct quad_sums *x, int j, uint32_t d)
{
    for (; d < x->head_dim; d++) {
        uint32_t b = d / ARITH_BLOCK;
        int32_t sum = 0;
        for (uint32_t t = 0; t < 4 * x->n_quads; t++)
            sum += (x->weights[j]->high[b][t] << 7 | x->weights[j]->low[b][t]) *
                   (int8_t)x->values[((size_t)(t / 4) * x->head_dim + d) * 4 + t % 4];
        x->out[j][d] = __builtin_fmaf((float)sum, x->weights[j]->steps[b], x->out[j][d] * x->factor[j]);
    }
}

INLINE void values_q8(const struct quad_sums *x, int n)
{
    uint32_t d = 0;
    for (; d + 2 * WIDTH <= x->head_dim; d += 2 * WIDTH)
        quad_values(x, d, n, 2);
    for (; d + WIDTH <= x->head_dim; d += WIDTH)
        quad_values(x, d, n, 1);
    if (d < x->head_dim)
        for (int j = 0; j < n; j++)
            quad_values_rest(x, j, d);
}

/* Quantises the weights of queries [at, at + n) and adds the values to their sums. */
INLINE void sums_q8(const struct q8_job *q8, uint32_t head_dim, uint32_t at, int n)
{
    const struct fold_job *job = &q8->job;
    const struct ops_query *queries = job->queries + at;
    struct q8_weights weights[MAX_BATCH];
    uint32_t n_blocks = blocks_of(head_dim), n_quads = (most_tokens(queries, n) + 3) / 4;
    struct quad_sums sums = {.values = job->page->values,
                             .factor = job->weights->factor + at,
                             .head_dim = head_dim,
                             .n_quads = n_quads,
                             .ahead = ahead_of(job, at, job->page->next, blocks_of(head_dim))};
    for (int j = 0; j < n; j++) {
        sums.out[j] = queries[j].fold->out;
        sums.weights[j] = &weights[j];
        for (uint32_t b = 0; b < n_blocks; b++)
            quantise_weights(&weights[j], b, job->weights->w[at + (uint32_t)j],
                             q8->scales.values + b * KV_PAGE_TOKENS);
    }
    values_q8(&sums, n);
}

/* Reads the page's scales and prefetches the next page's, for which every query would wait. */
INLINE void read_scales(struct page_scales *to, const struct ops_page *page, uint32_t n_blocks)
{
    size_t elements = kv_tile_elements(page->kv), size = n_blocks * KV_PAGE_TOKENS * 2;
    const uint16_t *keys = (const void *)(page->keys + elements);
    const uint16_t *values = (const void *)(page->values + elements);
    for (uint32_t i = 0; i < n_blocks * KV_PAGE_TOKENS; i += WIDTH) {
        vec_store(to->keys + i, vec_from_half(keys + i));
        vec_store(to->values + i, vec_from_half(values + i));
    }
    if (page->next) {
        fetch(page->next + elements, size);
        fetch(page->next + kv_tile_size(page->kv) + elements, size);
    }
}

INLINE void fold_q8_by(const struct ops_page *page, const struct ops_query *queries, uint32_t n,
                       uint32_t head_dim)
{
    struct page_weights weights;
    struct q8_job q8;
    q8.job = (struct fold_job){.page = page, .weights = &weights};
    read_scales(&q8.scales, page, blocks_of(head_dim));
    for (uint32_t done = 0; done < n; done += q8.job.n) {
        fold_part(&q8.job, queries, n, done);
        IN_BATCHES(scores_q8, &q8, head_dim, q8.job.n);
        soften(&q8.job, false);
        IN_BATCHES(sums_q8, &q8, head_dim, q8.job.n);
    }
}

static void fold_q8(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    if (page->kv->head_dim == 128)
        fold_q8_by(page, queries, n, 128);
    else if (page->kv->head_dim == 64)
        fold_q8_by(page, queries, n, 64);
    else
        fold_q8_by(page, queries, n, page->kv->head_dim);
}
