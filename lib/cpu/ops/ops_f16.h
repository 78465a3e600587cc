/* ops_f16.h - attention over an f16 cache, in float; part of ops_template.h.
 * Thread: any; all functions are pure. */

/* The first element of token t's keys in a tile; the next dimension in order is TOKEN_BLOCK elements
 * further. */
INLINE size_t key_start(uint32_t head_dim, uint32_t t)
{
    return (size_t)(t / TOKEN_BLOCK) * head_dim * TOKEN_BLOCK + t % TOKEN_BLOCK;
}

static void query_f16(const struct ops_order *order, float *to, const float *from, uint32_t n, float factor)
{
    for (uint32_t d = 0; d < n; d++)
        to[d] = from[order->dims[d]] * factor;
}

static void append_f16(const struct kv_layout *kv, const struct ops_order *order, uint16_t *tile,
                       enum kv_which which, uint32_t t, const float *x)
{
    uint16_t row[OPS_MAX_HEAD_DIM];
    uint32_t n = kv->head_dim, d = 0;
    for (; d + WIDTH <= n; d += WIDTH)
        vec_to_half(row + d, vec_load(x + d));
    for (; d < n; d++)
        row[d] = half_from_float(x[d]);
    if (which == KV_VALUES) {
        memcpy(tile + (size_t)t * n, row, n * sizeof row[0]);
        return;
    }
    uint16_t *to = tile + key_start(n, t);
    for (uint32_t i = 0; i < n; i++)
        to[i * TOKEN_BLOCK] = row[order->dims[i]];
}

/* The dot products of a batch of queries with the WIDTH tokens of a page from `token` on. */
struct dots {
    uint32_t count; /* elements per lane if all lanes have as many, else 0 */
    const struct ops_order *order;
    const uint16_t *keys; /* keys of the first token */
    const float *q[MAX_BATCH];
    uint32_t next;      /* elements from one vector of tokens to the next */
    struct ahead ahead; /* a step is an eighth of the tree */
};

/* The sums of one part of the tree: [j][w] is query j and the w-th vector of tokens. */
struct dot_sums {
    struct vec v[MAX_BATCH][DOT_VECS];
};

/* Sums one lane, whose elements are adjacent and ascending. With two vectors of tokens (m) every broadcast of
 * a query serves two products: otherwise loads, of which a core does as many as products, would be the
 * limit. */
INLINE void dot_leaf(const struct dots *x, uint32_t leaf, int n, int m, struct dot_sums *out)
{
    uint32_t at = x->count ? leaf * x->count : x->order->start[leaf];
    uint32_t end = x->count ? at + x->count : x->order->start[leaf + 1];
    const uint32_t size = 2 * TOKEN_BLOCK;
    if (x->ahead.all)
        for (int w = 0; w < m; w++)
            fetch(x->ahead.all + (size_t)w * x->next * size / TOKEN_BLOCK + (size_t)at * size,
                  (size_t)(end - at) * size);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            out->v[j][w] = vec_all(0.0f);
    for (; at < end; at++) {
        struct vec k[DOT_VECS];
        for (int w = 0; w < m; w++)
            k[w] = vec_from_half(x->keys + (size_t)w * x->next + (size_t)at * TOKEN_BLOCK);
        for (int j = 0; j < n; j++) {
            struct vec q = vec_all(x->q[j][at]);
            for (int w = 0; w < m; w++)
                out->v[j][w] = vec_fma(q, k[w], out->v[j][w]);
        }
    }
}

/* The xor tree over lanes, depth first, so that few partial sums are live. Leaves are numbered in that
 * order. */
#define DOT_NODE(name, child, width)                                                                         \
    INLINE void name(const struct dots *x, uint32_t leaf, int n, int m, struct dot_sums *out)                \
    {                                                                                                        \
        struct dot_sums other;                                                                               \
        child(x, leaf, n, m, out);                                                                           \
        child(x, leaf + (width), n, m, &other);                                                              \
        dot_add(out, &other, n, m);                                                                          \
    }
INLINE void dot_add(struct dot_sums *to, const struct dot_sums *other, int n, int m)
{
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            to->v[j][w] = vec_add(to->v[j][w], other->v[j][w]);
}
DOT_NODE(dot_2, dot_leaf, 1)
DOT_NODE(dot_4, dot_2, 2)
#undef DOT_NODE

/* The whole tree: its eighths in a loop, because the code of all 32 leaves would be large, and only the sums
 * of one eighth fit into registers. */
INLINE void dot_all(const struct dots *x, int n, int m, struct dot_sums *out)
{
    struct dot_sums part[8];
#pragma GCC unroll 1
    for (uint32_t i = 0; i < 8; i++) {
        ahead_step(&x->ahead, i, n);
        dot_4(x, i * 4, n, m, &part[i]);
    }
    for (uint32_t width = 1; width < 8; width *= 2)
        for (uint32_t i = 0; i < 8; i += 2 * width)
            dot_add(&part[i], &part[i + width], n, m);
    *out = part[0];
}

/* Computes the scores of m vectors of tokens from token t on, for queries [at, at + n) of the job. */
INLINE void score_some(const struct fold_job *job, struct dots x, uint32_t t, uint32_t at, int n, int m)
{
    uint32_t head_dim = job->page->kv->head_dim;
    size_t start = key_start(head_dim, t);
    struct dot_sums v;
    x.keys = (const uint16_t *)(const void *)job->page->keys + start;
    x.ahead = ahead_tokens(x.ahead, start * 2, t, (uint32_t)m * WIDTH, 8);
    /* Hides from the compiler that the queries do not change: otherwise it makes their broadcasts, a vector
     * per element, before the loop and keeps them on the stack. */
    for (int j = 0; j < n; j++)
        __asm__("" : "+r"(x.q[j]));
    dot_all(&x, n, m, &v);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            vec_store(&job->weights->w[at + (uint32_t)j][t + (uint32_t)w * WIDTH], v.v[j][w]);
}

/* Computes the scores of queries [at, at + n). count: as in struct dots. Four vectors at a time are the
 * fastest for two queries, but the unused end of a page is not read. */
INLINE void scores_f16(const struct fold_job *job, uint32_t count, uint32_t at, int n)
{
    const bool by_four = DOT_VECS > 2 && n == 2;
    uint32_t t = 0, head_dim = job->page->kv->head_dim, most = most_tokens(job->queries + at, n);
    struct dots x = {
        .count = count, .order = job->page->order, .ahead = ahead_of(job, at, job->page->values, 1)};
    for (int j = 0; j < n; j++)
        x.q[j] = job->queries[at + (uint32_t)j].q;
    x.next = (uint32_t)(key_start(head_dim, WIDTH) - key_start(head_dim, 0));
    for (; by_four && t + 2 * WIDTH < most; t += DOT_VECS * WIDTH)
        score_some(job, x, t, at, n, DOT_VECS);
    for (; t < most; t += 2 * WIDTH)
        score_some(job, x, t, at, n, 2);
}

/* The values of tokens [first, last), to be folded into n queries. */
struct token_sums {
    const struct ops_page *page;
    float *out[MAX_BATCH];
    const float *weights[MAX_BATCH];
    const float *factor; /* of the earlier sums, or NULL */
    uint32_t first, last;
    struct ahead ahead; /* a step is a token */
};

/* Folds dimensions [d, d + m * WIDTH). */
INLINE void fold_values(const struct token_sums *x, uint32_t d, int n, int m)
{
    const uint32_t head_dim = x->page->kv->head_dim, row = head_dim * 2;
    const uint16_t *values = (const void *)x->page->values;
    struct vec o[MAX_VALUE_VECS];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            struct vec before = vec_load(x->out[j] + d + i * WIDTH);
            o[j * m + i] = x->factor ? vec_mul(before, vec_all(x->factor[j])) : before;
        }
    for (uint32_t t = x->first; t < x->last; t++) {
        if (d == 0)
            ahead_step(&x->ahead, t, n);
        if (x->ahead.all && d == 0)
            fetch(x->ahead.all + t * row, row);
        for (int i = 0; i < m; i++) {
            struct vec v = vec_from_half(values + t * head_dim + d + i * WIDTH);
            for (int j = 0; j < n; j++)
                o[j * m + i] = vec_fma(vec_all(x->weights[j][t]), v, o[j * m + i]);
        }
    }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++)
            vec_store(x->out[j] + d + i * WIDTH, o[j * m + i]);
}

/* The dimensions behind the last whole vector, for one query. */
static void fold_values_rest(const struct token_sums *x, int j, uint32_t d)
{
    uint32_t n = x->page->kv->head_dim;
    const uint16_t *values = (const void *)x->page->values;
    for (float *out = x->out[j]; d < n; d++) {
        out[d] = out[d] * (x->factor ? x->factor[j] : 1.0f);
        for (uint32_t t = x->first; t < x->last; t++)
            out[d] = __builtin_fmaf(x->weights[j][t], half_to_float(values[t * n + d]), out[d]);
    }
}

INLINE void fold_tokens(const struct token_sums *x, int n)
{
    enum { WIDE = 8 };
    int m = n > 1 ? MAX_VALUE_VECS / n : WIDE;
    m = m < WIDE ? m : WIDE;
    uint32_t d = 0, head_dim = x->page->kv->head_dim;
    for (; d + (uint32_t)m * WIDTH <= head_dim; d += (uint32_t)m * WIDTH)
        fold_values(x, d, n, m);
    for (; d + WIDTH <= head_dim; d += WIDTH)
        fold_values(x, d, n, 1);
    if (d < head_dim)
        for (int j = 0; j < n; j++)
            fold_values_rest(x, j, d);
}

/* Adds the values to the sums of queries [at, at + n). They may see different numbers of tokens: those that
 * all see are folded together. */
INLINE void sums_f16(const struct fold_job *job, uint32_t count, uint32_t at, int n)
{
    const struct ops_query *queries = job->queries + at;
    struct token_sums sums = {.page = job->page,
                              .factor = job->weights->factor + at,
                              .last = KV_PAGE_TOKENS,
                              .ahead = ahead_of(job, at, job->page->next, KV_PAGE_TOKENS)};
    (void)count;
    for (int j = 0; j < n; j++) {
        sums.out[j] = queries[j].fold->out;
        sums.weights[j] = job->weights->w[at + (uint32_t)j];
        sums.last = queries[j].n_tokens < sums.last ? queries[j].n_tokens : sums.last;
    }
    fold_tokens(&sums, n);
    for (int j = 0; j < n; j++) {
        struct token_sums own = {.page = job->page,
                                 .out = {sums.out[j]},
                                 .weights = {sums.weights[j]},
                                 .first = sums.last,
                                 .last = queries[j].n_tokens};
        if (own.last > own.first)
            fold_tokens(&own, 1);
    }
}

/* One function per common head size, which is then a constant for the compiler. */
#define FOLD_SIZED(name, count)                                                                              \
    static __attribute__((noinline)) void name(const struct ops_page *page, const struct ops_query *queries, \
                                               uint32_t n)                                                   \
    {                                                                                                        \
        struct page_weights weights;                                                                         \
        struct fold_job job = {.page = page, .weights = &weights};                                           \
        for (uint32_t done = 0; done < n; done += job.n) {                                                   \
            fold_part(&job, queries, n, done);                                                               \
            IN_BATCHES(scores_f16, &job, count, job.n);                                                      \
            soften(&job, false);                                                                             \
            IN_BATCHES(sums_f16, &job, count, job.n);                                                        \
        }                                                                                                    \
    }
FOLD_SIZED(fold_f16_128, 4)
FOLD_SIZED(fold_f16_64, 2)
FOLD_SIZED(fold_f16_any, 0)
#undef FOLD_SIZED

static void fold_f16(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    uint32_t head_dim = page->kv->head_dim;
    (head_dim == 128 ? fold_f16_128 : head_dim == 64 ? fold_f16_64 : fold_f16_any)(page, queries, n);
}
