/* ops_bf16.h - attention over a bf16 cache (arith.h, "ATTENTION OVER A BF16 CACHE"); part of ops_template.h.
 * An instruction set provides pairs: vectors of WIDTH 32-bit lanes of two bf16 each, the first in the low
 * half; and vec_dot2(), which adds a lane's two products as arith.h says. Where vec_dot2() consists of
 * ordinary FMAs (DOT2_FLUSHES is 0), all of this file runs with subnormal numbers flushed. Beyond the FMAs of
 * arith.h that changes no result: the sum of a score's two chains, and exp2 of it, differ only where both
 * give exp2 an argument so small that the result is 1. VDPBF16PS gives the rule's bits; the rule was made for
 * it. Two faster ways do not give theirs: a tile product (AMX's TDPBF16PS) sums the even and the odd elements
 * apart and adds both sums at the end; and of an f16 cache, bf16 products would lose three bits of each
 * element.
 *
 * Thread: any; all functions are pure. */

/* Queries are bf16 too, in order of dimensions. */
static void query_bf16(uint16_t *to, const float *from, uint32_t n, float factor)
{
    uint32_t d = 0;
    for (; d + WIDTH <= n; d += WIDTH)
        vec_to_bf16(to + d, vec_mul(vec_load(from + d), vec_all(factor)));
    for (; d < n; d++)
        to[d] = arith_bf16(from[d] * factor);
}

/* Two members may append the two tokens of a pair of values at the same time: each writes its own elements
 * only. */
static void append_bf16(uint32_t n, uint16_t *tile, enum kv_which which, uint32_t t, const float *x)
{
    _Alignas(64) uint16_t row[OPS_MAX_HEAD_DIM];
    uint32_t d = 0;
    for (; d + WIDTH <= n; d += WIDTH)
        vec_to_bf16(row + d, vec_load(x + d));
    for (; d < n; d++)
        row[d] = arith_bf16(x[d]);
    if (which == KV_KEYS) {
        uint16_t *to = tile + (size_t)(t / TOKEN_BLOCK) * n * TOKEN_BLOCK + t % TOKEN_BLOCK * 2;
        for (uint32_t i = 0; i < n; i += 2)
            memcpy(to + i * TOKEN_BLOCK, row + i, 2 * sizeof row[0]);
        return;
    }
    uint16_t *to = tile + (size_t)(t / 2) * n * 2;
    d = 0;
    for (; d + WIDTH <= n; d += WIDTH)
        pairs_store_half(to + 2 * d, row + d, t % 2);
    for (; d < n; d++)
        to[2 * d + t % 2] = row[d];
}

/* --- scores --- */

struct pair_dots {
    const uint16_t *keys; /* keys of the first token */
    const uint16_t *q[MAX_BATCH];
    uint32_t n_pairs;
    uint32_t next; /* elements from one vector of tokens to the next */
    struct ahead ahead;
};

INLINE void pair_dot_step(const struct pair_dots *x, uint32_t i, int n, int m, struct vec *sums)
{
    struct pairs k[DOT_VECS];
    for (int w = 0; w < m; w++)
        k[w] = pairs_load(x->keys + (size_t)w * x->next + (size_t)i * 2 * TOKEN_BLOCK);
    for (int j = 0; j < n; j++) {
        struct pairs q = pairs_all(x->q[j] + 2 * i);
        for (int w = 0; w < m; w++)
            sums[j * m + w] = vec_dot2(sums[j * m + w], q, k[w]);
    }
}

/* Prefetches beside pair i: of all, so many lines in the order of memory. */
INLINE void pair_dots_fetch(const struct pair_dots *x, uint32_t i, int n, int lines)
{
    ahead_step(&x->ahead, i, n);
    if (x->ahead.all)
        fetch(x->ahead.all + (size_t)i * (size_t)lines * 64, (size_t)lines * 64);
}

/* With few sums both chains run side by side; otherwise one would wait for its own latency. */
INLINE void pair_dots(const struct pair_dots *x, int n, int m, struct vec *sums)
{
    struct vec second[MAX_BATCH * DOT_VECS];
    uint32_t half = (x->n_pairs + 1) / 2, i = 0;
    for (int j = 0; j < n * m; j++)
        sums[j] = second[j] = vec_all(0.0f);
    if (n * m <= 8) {
        for (; i < x->n_pairs - half; i++) {
            pair_dots_fetch(x, i, n, 2 * m);
            pair_dot_step(x, i, n, m, sums);
            pair_dot_step(x, half + i, n, m, second);
        }
        for (; i < half; i++)
            pair_dot_step(x, i, n, m, sums);
    } else {
        for (; i < half; i++) {
            pair_dots_fetch(x, i, n, m);
            pair_dot_step(x, i, n, m, sums);
        }
        for (; i < x->n_pairs; i++) {
            pair_dots_fetch(x, i, n, m);
            pair_dot_step(x, i, n, m, second);
        }
    }
    for (int j = 0; j < n * m; j++)
        sums[j] = vec_add(sums[j], second[j]);
}

/* Computes the scores of m vectors of tokens from token t on, for queries [at, at + n) of the job. */
INLINE void score_bf16_some(const struct fold_job *job, struct pair_dots x, uint32_t t, uint32_t at, int n,
                            int m)
{
    struct vec sums[MAX_BATCH * DOT_VECS];
    size_t start = (size_t)(t / TOKEN_BLOCK) * x.n_pairs * 2 * TOKEN_BLOCK + t % TOKEN_BLOCK * 2;
    x.keys = (const uint16_t *)(const void *)job->page->keys + start;
    x.ahead =
        ahead_tokens(x.ahead, start * 2, t, (uint32_t)m * WIDTH, n * m <= 8 ? x.n_pairs / 2 : x.n_pairs);
    for (int j = 0; j < n; j++)
        __asm__("" : "+r"(x.q[j])); /* as in score_some() */
    pair_dots(&x, n, m, sums);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            vec_store(&job->weights->w[at + (uint32_t)j][t + (uint32_t)w * WIDTH], sums[j * m + w]);
}

INLINE void scores_bf16(const struct fold_job *job, uint32_t head_dim, uint32_t at, int n)
{
    enum { M = DOT_VECS };
    struct pair_dots x = {.n_pairs = head_dim / 2, .ahead = ahead_of(job, at, job->page->values, 1)};
    uint32_t most = most_tokens(job->queries + at, n), t = 0;
    for (int j = 0; j < n; j++)
        x.q[j] = job->queries[at + (uint32_t)j].q;
    x.next = WIDTH == TOKEN_BLOCK ? x.n_pairs * 2 * TOKEN_BLOCK : 2 * WIDTH;
    for (; t + (M - 1) * WIDTH < most; t += M * WIDTH)
        score_bf16_some(job, x, t, at, n, M);
    for (; t < most; t += WIDTH)
        score_bf16_some(job, x, t, at, n, 1);
}

/* --- values --- */

/* Folds pairs [first, last) into dimensions [d, d + m * WIDTH) of n queries; `half`: also the first token of
 * one more pair. factor: of the earlier sums, or NULL. */
struct pair_sums {
    const uint16_t *values;
    float *out[MAX_BATCH];
    const uint16_t *weights[MAX_BATCH];
    const float *factor;
    uint32_t head_dim, first, last;
    bool half;
    struct ahead ahead; /* a step is a pair */
};

INLINE void pair_values_step(const struct pair_sums *x, uint32_t pair, bool half, uint32_t d, int n, int m,
                             struct vec *o)
{
    struct pairs w[MAX_BATCH];
    for (int j = 0; j < n; j++)
        w[j] = pairs_all(x->weights[j] + 2 * pair);
    for (int i = 0; i < m; i++) {
        struct pairs v = pairs_load(x->values + ((size_t)pair * x->head_dim + d + (size_t)i * WIDTH) * 2);
        v = half ? pairs_first(v) : v;
        for (int j = 0; j < n; j++)
            o[j * m + i] = vec_dot2(o[j * m + i], half ? pairs_first(w[j]) : w[j], v);
    }
}

INLINE void pair_values(const struct pair_sums *x, uint32_t d, int n, int m)
{
    struct vec o[MAX_VALUE_VECS];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            struct vec before = vec_load(x->out[j] + d + i * WIDTH);
            o[j * m + i] = x->factor ? vec_mul(before, vec_all(x->factor[j])) : before;
        }
    /* Even a short page prefetches all of the next one. */
    uint32_t all = KV_PAGE_TOKENS / 2, share = x->last ? (all + x->last - 1) / x->last : 0;
    for (uint32_t pair = x->first; pair < x->last; pair++) {
        if (d == 0)
            ahead_step(&x->ahead, pair, n);
        if (x->ahead.all && d == 0 && pair * share < all)
            fetch(x->ahead.all + (size_t)pair * share * x->head_dim * 4, (size_t)share * x->head_dim * 4);
        pair_values_step(x, pair, false, d, n, m, o);
    }
    if (x->half)
        pair_values_step(x, x->last, true, d, n, m, o);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++)
            vec_store(x->out[j] + d + i * WIDTH, o[j * m + i]);
}

/* The dimensions behind the last whole vector, for one query. */
static void pair_values_rest(const struct pair_sums *x, int j, uint32_t d)
{
    const uint16_t *w = x->weights[j];
    for (; d < x->head_dim; d++) {
        float o = x->out[j][d] * (x->factor ? x->factor[j] : 1.0f);
        for (uint32_t pair = x->first; pair < x->last + x->half; pair++) {
            const uint16_t *v = x->values + ((size_t)pair * x->head_dim + d) * 2;
            bool both = pair < x->last;
            o = arith_fma_flushed(both ? arith_from_bf16(w[2 * pair + 1]) : 0.0f,
                                  both ? arith_from_bf16(v[1]) : 0.0f, o);
            o = arith_fma_flushed(arith_from_bf16(w[2 * pair]), arith_from_bf16(v[0]), o);
        }
        x->out[j][d] = o;
    }
}

INLINE void values_bf16(const struct pair_sums *x, int n)
{
    enum { WIDE = 8 };
    int m = n > 1 ? MAX_VALUE_VECS / n : WIDE;
    m = m < WIDE ? m : WIDE;
    uint32_t d = 0;
    for (; d + (uint32_t)m * WIDTH <= x->head_dim; d += (uint32_t)m * WIDTH)
        pair_values(x, d, n, m);
    for (; d + WIDTH <= x->head_dim; d += WIDTH)
        pair_values(x, d, n, 1);
    if (d < x->head_dim)
        for (int j = 0; j < n; j++)
            pair_values_rest(x, j, d);
}

/* Adds the values to the sums of queries [at, at + n). They may see different numbers of tokens: those that
 * all see are folded together. */
INLINE void sums_bf16(const struct fold_job *job, uint32_t head_dim, uint32_t at, int n)
{
    const struct ops_query *queries = job->queries + at;
    struct pair_sums sums = {.values = (const uint16_t *)(const void *)job->page->values,
                             .factor = job->weights->factor + at,
                             .head_dim = head_dim,
                             .ahead = ahead_of(job, at, job->page->next, KV_PAGE_TOKENS / 2)};
    uint32_t most = 0, least = KV_PAGE_TOKENS;
    for (int j = 0; j < n; j++) {
        sums.out[j] = queries[j].fold->out;
        sums.weights[j] = job->weights->bf16[at + (uint32_t)j];
        most = queries[j].n_tokens > most ? queries[j].n_tokens : most;
        least = queries[j].n_tokens < least ? queries[j].n_tokens : least;
    }
    sums.last = least / 2;
    sums.half = most == least && least % 2;
    values_bf16(&sums, n);
    for (int j = 0; j < n && most > least; j++) {
        struct pair_sums own = {.values = sums.values,
                                .out = {sums.out[j]},
                                .weights = {sums.weights[j]},
                                .head_dim = head_dim,
                                .first = sums.last,
                                .last = queries[j].n_tokens / 2,
                                .half = queries[j].n_tokens % 2};
        values_bf16(&own, 1);
    }
}

INLINE void fold_bf16_sized(const struct ops_page *page, const struct ops_query *queries, uint32_t n,
                            uint32_t head_dim)
{
    struct page_weights weights;
    struct fold_job job = {.page = page, .weights = &weights};
    for (uint32_t done = 0; done < n; done += job.n) {
        fold_part(&job, queries, n, done);
        IN_BATCHES(scores_bf16, &job, head_dim, job.n);
        soften(&job, true);
        IN_BATCHES(sums_bf16, &job, head_dim, job.n);
    }
}

/* Not inlined, so that no arithmetic moves across the change of mode. */
__attribute__((noinline)) static void fold_bf16_128(const struct ops_page *page,
                                                    const struct ops_query *queries, uint32_t n)
{
    fold_bf16_sized(page, queries, n, 128);
}

__attribute__((noinline)) static void fold_bf16_64(const struct ops_page *page,
                                                   const struct ops_query *queries, uint32_t n)
{
    fold_bf16_sized(page, queries, n, 64);
}

__attribute__((noinline)) static void fold_bf16_any(const struct ops_page *page,
                                                    const struct ops_query *queries, uint32_t n)
{
    fold_bf16_sized(page, queries, n, page->kv->head_dim);
}

static void fold_bf16(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    uint32_t head_dim = page->kv->head_dim, mode = DOT2_FLUSHES ? 0 : flush_begin();
    (head_dim == 128 ? fold_bf16_128 : head_dim == 64 ? fold_bf16_64 : fold_bf16_any)(page, queries, n);
    if (!DOT2_FLUSHES)
        flush_end(mode);
}
