/* ops_wide.h - attention over a bf16 cache for many queries, by ordinary FMAs (arith.h, "ATTENTION OVER A
 * BF16 CACHE"); part of ops_template.h. A part of the page is unpacked into floats once and serves every
 * query after that, so the loops consist of FMAs and their loads. It runs with subnormal numbers flushed
 * (ops_bf16.h).
 *
 * An instruction set provides pairs_high() and pairs_low(): the second and the first element of each lane as
 * floats.
 *
 * Lower bound: one FMA a query, token and dimension of K and again of V. Unpacking two vectors takes five
 * instructions, beside an FMA for each query and vector.
 *
 * Thread: any; all functions are pure. */

/* A step multiplies WIDE_QUERIES numbers by WIDE_VECS vectors. WIDE_LEAST: queries from which unpacking pays.
 */
enum {
    WIDE_QUERIES = WIDTH > 8 ? 8 : 4,
    WIDE_VECS = 2,
    WIDE_LANES = WIDE_VECS * WIDTH,
    WIDE_LEAST = 16,
    WIDE_HEAD_DIM = 256
};

struct wide {
    struct fold_job job;
    /* Keys of WIDE_LANES tokens, [head_dim / 2][2][WIDE_LANES], or WIDE_LANES dimensions of the values, [64 /
     * 2][2] [WIDE_LANES]: the second element of a pair stands before the first, as they are added. */
    _Alignas(64) float part[WIDE_HEAD_DIM * WIDE_LANES];
    _Alignas(64) float q[FOLD_QUERIES * WIDE_HEAD_DIM];
};

/* Whether this way takes n queries of a page: those that fill steps, and see the page to its end. */
INLINE bool wide_takes(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    uint32_t head_dim = page->kv->head_dim;
    bool all = n >= WIDE_LEAST && head_dim <= WIDE_HEAD_DIM && head_dim % WIDE_LANES == 0;
    for (uint32_t j = 0; all && j < n; j++)
        all = queries[j].n_tokens == KV_PAGE_TOKENS;
    return all;
}

INLINE void unpack(float *to, const uint16_t *from)
{
    struct pairs x = pairs_load(from);
    vec_store(to, pairs_high(x));
    vec_store(to + WIDE_LANES, pairs_low(x));
}

/* Prefetches the next of `steps` equal parts of a tile. */
INLINE void wide_fetch(const struct wide *x, const uint8_t *tile, uint32_t step, uint32_t steps)
{
    uint32_t size = (uint32_t)kv_tile_elements(x->job.page->kv) * 2,
             share = (size / 64 + steps - 1) / steps * 64;
    if (tile && x->job.first && step * share < size)
        fetch(tile + step * share, size - step * share < share ? size - step * share : share);
}

/* Adds the products of pairs [first, last) of the part with those of WIDE_QUERIES rows of numbers. */
INLINE void wide_chain(const struct wide *x, const float *row, uint32_t stride, uint32_t first, uint32_t last,
                       struct vec *sums)
{
    const float *part = x->part + (size_t)first * 2 * WIDE_LANES;
    for (uint32_t i = 2 * first; i < 2 * last; i++, part += WIDE_LANES) {
        struct vec v[WIDE_VECS];
        for (int w = 0; w < WIDE_VECS; w++)
            v[w] = vec_load(part + w * WIDTH);
        for (int j = 0; j < WIDE_QUERIES; j++) {
            struct vec number = vec_all(row[(size_t)j * stride + (i ^ 1)]);
            for (int w = 0; w < WIDE_VECS; w++)
                sums[j * WIDE_VECS + w] = vec_fma(number, v[w], sums[j * WIDE_VECS + w]);
        }
    }
}

/* Computes the scores of all queries with WIDE_LANES tokens from token t on. */
INLINE void wide_scores(struct wide *x, uint32_t head_dim, uint32_t t)
{
    const uint16_t *keys = (const uint16_t *)(const void *)x->job.page->keys;
    uint32_t n_pairs = head_dim / 2, half = (n_pairs + 1) / 2, n_batches = x->job.n / WIDE_QUERIES;
    for (uint32_t w = 0; w < WIDE_VECS; w++) {
        uint32_t token = t + w * WIDTH;
        const uint16_t *from =
            keys + ((size_t)(token / TOKEN_BLOCK) * n_pairs * TOKEN_BLOCK + token % TOKEN_BLOCK) * 2;
        for (uint32_t i = 0; i < n_pairs; i++)
            unpack(x->part + (size_t)i * 2 * WIDE_LANES + w * WIDTH, from + (size_t)i * 2 * TOKEN_BLOCK);
    }
    for (uint32_t b = 0, at = 0; b < n_batches; b++, at += WIDE_QUERIES) {
        struct vec sums[WIDE_QUERIES * WIDE_VECS];
        float(*to)[KV_PAGE_TOKENS] = x->job.weights->w + at;
        const float *q = x->q + (size_t)at * head_dim;
        wide_fetch(x, x->job.page->values, t / WIDE_LANES * n_batches + b,
                   KV_PAGE_TOKENS / WIDE_LANES * n_batches);
        for (int j = 0; j < WIDE_QUERIES * WIDE_VECS; j++)
            sums[j] = vec_all(0.0f);
        wide_chain(x, q, head_dim, 0, half, sums);
        for (uint32_t j = 0; j < WIDE_QUERIES * WIDE_VECS; j++) {
            vec_store(&to[j / WIDE_VECS][t + j % WIDE_VECS * WIDTH], sums[j]);
            sums[j] = vec_all(0.0f);
        }
        wide_chain(x, q, head_dim, half, n_pairs, sums);
        for (uint32_t j = 0; j < WIDE_QUERIES * WIDE_VECS; j++) {
            float *score = &to[j / WIDE_VECS][t + j % WIDE_VECS * WIDTH];
            vec_store(score, vec_add(vec_load(score), sums[j]));
        }
    }
}

/* Adds dimensions [d, d + WIDE_LANES) of the values to the sums of all queries. */
INLINE void wide_values(struct wide *x, uint32_t head_dim, uint32_t d)
{
    const uint16_t *values = (const uint16_t *)(const void *)x->job.page->values + 2 * (size_t)d;
    uint32_t n_batches = x->job.n / WIDE_QUERIES;
    for (uint32_t pair = 0; pair < KV_PAGE_TOKENS / 2; pair++)
        for (uint32_t w = 0; w < WIDE_VECS; w++)
            unpack(x->part + (size_t)pair * 2 * WIDE_LANES + w * WIDTH,
                   values + ((size_t)pair * head_dim + w * WIDTH) * 2);
    for (uint32_t b = 0, at = 0; b < n_batches; b++, at += WIDE_QUERIES) {
        struct vec sums[WIDE_QUERIES * WIDE_VECS];
        const struct ops_query *queries = x->job.queries + at;
        wide_fetch(x, x->job.page->next, d / WIDE_LANES * n_batches + b, head_dim / WIDE_LANES * n_batches);
        for (uint32_t j = 0; j < WIDE_QUERIES; j++)
            for (uint32_t w = 0; w < WIDE_VECS; w++)
                sums[j * WIDE_VECS + w] = vec_mul(vec_load(queries[j].fold->out + d + w * WIDTH),
                                                  vec_all(x->job.weights->factor[at + j]));
        wide_chain(x, x->job.weights->w[at], KV_PAGE_TOKENS, 0, KV_PAGE_TOKENS / 2, sums);
        for (uint32_t j = 0; j < WIDE_QUERIES; j++)
            for (uint32_t w = 0; w < WIDE_VECS; w++)
                vec_store(queries[j].fold->out + d + w * WIDTH, sums[j * WIDE_VECS + w]);
    }
}

INLINE void fold_wide_sized(const struct ops_page *page, const struct ops_query *queries, uint32_t n,
                            uint32_t head_dim)
{
    struct page_weights weights;
    struct wide x; /* not cleared: larger than the page */
    x.job = (struct fold_job){.page = page, .weights = &weights};
    for (uint32_t done = 0; done < n; done += x.job.n) {
        fold_part(&x.job, queries, n, done);
        for (uint32_t j = 0; j < x.job.n; j++)
            for (uint32_t d = 0; d < head_dim; d++)
                x.q[j * head_dim + d] = arith_from_bf16(((const uint16_t *)x.job.queries[j].q)[d]);
        for (uint32_t t = 0; t < KV_PAGE_TOKENS; t += WIDE_LANES)
            wide_scores(&x, head_dim, t);
        soften(&x.job, true);
        for (uint32_t j = 0; j < x.job.n; j++)
            for (uint32_t t = 0; t < KV_PAGE_TOKENS; t++)
                weights.w[j][t] = arith_from_bf16(weights.bf16[j][t]);
        for (uint32_t d = 0; d < head_dim; d += WIDE_LANES)
            wide_values(&x, head_dim, d);
    }
}

/* Not inlined, so that no arithmetic moves across the change of mode. */
__attribute__((noinline)) static void fold_wide_128(const struct ops_page *page,
                                                    const struct ops_query *queries, uint32_t n)
{
    fold_wide_sized(page, queries, n, 128);
}

__attribute__((noinline)) static void fold_wide_any(const struct ops_page *page,
                                                    const struct ops_query *queries, uint32_t n)
{
    fold_wide_sized(page, queries, n, page->kv->head_dim);
}

/* fold() of a page of a bf16 cache: steps of queries by this way, the others by ops_bf16.h. */
static void fold_wide(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    uint32_t whole = n / WIDE_QUERIES * WIDE_QUERIES;
    if (!wide_takes(page, queries, n))
        whole = 0;
    if (whole) {
        uint32_t mode = flush_begin();
        (page->kv->head_dim == 128 ? fold_wide_128 : fold_wide_any)(page, queries, whole);
        flush_end(mode);
    }
    if (whole < n)
        fold_bf16(page, queries + whole, n - whole);
}
