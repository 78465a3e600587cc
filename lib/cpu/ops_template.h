/* ops_template.h - the operations of ops.h over a vector of WIDTH floats; included once per instruction set,
 * after struct vec and its operations. Lanes of a vector are tokens or dimensions, never a changed order of
 * additions: each expression is the one in kernels/arith.h. */
#include "ops.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANE_VECS = ARITH_LANES / WIDTH, TOKEN_BLOCK = 16 };

/* arith_tree(): whole vectors first, then inside the last one. */
INLINE float lanes_sum(struct vec v[LANE_VECS])
{
    for (int w = LANE_VECS / 2; w; w /= 2)
        for (int j = 0; j < w; j++)
            v[j] = vec_add(v[j], v[j + w]);
    return vec_tree(v[0]);
}

static float rms_inverse(const float *x, uint32_t n, float eps)
{
    struct vec v[LANE_VECS];
    for (int j = 0; j < LANE_VECS; j++)
        v[j] = vec_all(0.0f);
    uint32_t i = 0;
    for (; i + ARITH_LANES <= n; i += ARITH_LANES)
        for (int j = 0; j < LANE_VECS; j++) {
            struct vec a = vec_load(x + i + j * WIDTH);
            v[j] = vec_fma(a, a, v[j]);
        }
    float lanes[ARITH_LANES];
    for (int j = 0; j < LANE_VECS; j++)
        vec_store(lanes + j * WIDTH, v[j]);
    for (uint32_t l = 0; i + l < n; l++)
        lanes[l] = __builtin_fmaf(x[i + l], x[i + l], lanes[l]);
    return 1.0f / __builtin_sqrtf(arith_tree(lanes) / (float)n + eps);
}

static void norm_head(float *x, const float *gain, uint32_t n, float eps)
{
    float r = rms_inverse(x, n, eps);
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * r * gain[i];
}

static void rope(float *x, const float *cosines, const float *sines, uint32_t rope_dim, bool neox)
{
    uint32_t half = rope_dim / 2, i = 0;
    if (!neox) {
        for (; i < half; i++)
            arith_rope(&x[2 * i], &x[2 * i + 1], cosines[i], sines[i]);
        return;
    }
    for (; i + WIDTH <= half; i += WIDTH) {
        struct vec a = vec_load(x + i), b = vec_load(x + half + i);
        struct vec c = vec_load(cosines + i), s = vec_load(sines + i);
        struct vec minus_b = vec_mul(b, vec_all(-1.0f)); /* exact: -(b*s) = (-b)*s */
        vec_store(x + i, vec_fma(a, c, vec_mul(minus_b, s)));
        vec_store(x + half + i, vec_fma(a, s, vec_mul(b, c)));
    }
    for (; i < half; i++)
        arith_rope(&x[i], &x[half + i], cosines[i], sines[i]);
}

/* A product's factor and bias, at column i. */
INLINE struct vec finished(const float *y, uint32_t i, struct vec r, const float *bias)
{
    struct vec v = vec_mul(vec_load(y + i), r);
    return bias ? vec_add(v, vec_load(bias + i)) : v;
}

INLINE float finished_one(const float *y, uint32_t i, float r, const float *bias)
{
    float v = y[i] * r;
    return bias ? v + bias[i] : v;
}

static void store(float *out, const float *y, uint32_t n, float r, const float *bias)
{
    struct vec factor = vec_all(r);
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, finished(y, i, factor, bias));
    for (; i < n; i++)
        out[i] = finished_one(y, i, r, bias);
}

static void residual(float *out, const float *y, uint32_t n, float r, const float *bias)
{
    struct vec factor = vec_all(r);
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_add(vec_load(out + i), finished(y, i, factor, bias)));
    for (; i < n; i++)
        out[i] = out[i] + finished_one(y, i, r, bias);
}

INLINE struct vec vec_silu(struct vec x)
{
    struct vec e = vec_exp2(vec_mul(x, vec_all(-ARITH_LOG2E)));
    return vec_div(x, vec_add(vec_all(1.0f), e));
}

static void swiglu(float *out, const float *gate, const float *up, uint32_t n, float r,
                   const float *gate_bias, const float *up_bias)
{
    struct vec factor = vec_all(r);
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        struct vec g = finished(gate, i, factor, gate_bias), u = finished(up, i, factor, up_bias);
        vec_store(out + i, vec_mul(vec_silu(g), u));
    }
    for (; i < n; i++)
        out[i] = arith_silu(finished_one(gate, i, r, gate_bias)) * finished_one(up, i, r, up_bias);
}

static void add(float *out, const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void mul(float *out, const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = a[i] * b[i];
}

static void silu(float *out, const float *a, uint32_t n)
{
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_silu(vec_load(a + i)));
    for (; i < n; i++)
        out[i] = arith_silu(a[i]);
}

/* --- the cache --- */

static uint32_t scale_blocks(const struct kv_layout *kv)
{
    return (kv->head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
}

/* Where token t's keys begin in a tile; the next dimension in order is TOKEN_BLOCK elements further. */
INLINE size_t key_start(uint32_t head_dim, uint32_t t)
{
    return (size_t)(t / TOKEN_BLOCK) * head_dim * TOKEN_BLOCK + t % TOKEN_BLOCK;
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

static void append_q8(const struct kv_layout *kv, const struct ops_order *order, uint8_t *tile,
                      enum kv_which which, uint32_t t, const float *x)
{
    uint32_t n = kv->head_dim, blocks = scale_blocks(kv);
    int8_t row[OPS_MAX_HEAD_DIM + ARITH_BLOCK], *elements = (int8_t *)tile;
    uint16_t *scales = (uint16_t *)(void *)(tile + kv_tile_elements(kv));
    for (uint32_t b = 0; b < blocks; b++) {
        float block[ARITH_BLOCK] = {0};
        uint32_t first = b * ARITH_BLOCK, m = n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK;
        memcpy(block, x + first, m * sizeof block[0]);
        uint16_t scale = half_from_float(arith_quantise(block, row + first));
        scales[which == KV_VALUES ? t * blocks + b : b * KV_PAGE_TOKENS + t] = scale;
    }
    if (which == KV_VALUES) {
        memcpy(elements + (size_t)t * n, row, n);
        return;
    }
    int8_t *to = elements + key_start(n, t);
    for (uint32_t i = 0; i < n; i++)
        to[i * TOKEN_BLOCK] = row[order->dims[i]];
}

/* --- attention: several queries share every load of a key or value --- */

enum {
    MAX_BATCH = 4,
    DOT_VECS = WIDTH == 16 ? 4 : 2,
    MAX_VALUE_VECS = WIDTH == 16 ? 16 : 8,
    MAX_BLOCKS = OPS_MAX_HEAD_DIM / ARITH_BLOCK
};

/* The scales of a q8_0 page as floats. */
struct page_scales {
    _Alignas(64) float keys[MAX_BLOCKS * KV_PAGE_TOKENS];
    _Alignas(64) float values[MAX_BLOCKS * KV_PAGE_TOKENS];
};

/* Dot products of a batch of queries with the WIDTH tokens of a page that begin at `token`. */
struct dots {
    enum kv_type type;
    uint32_t count; /* elements per lane where all lanes have as many, else 0 */
    const struct ops_order *order;
    const uint16_t *halves; /* keys of the first of the tokens */
    const int8_t *bytes;
    const float *scales;
    const float *q[MAX_BATCH];
    uint32_t next;        /* elements from one vector of tokens to the next */
    const uint8_t *ahead; /* what to fetch meanwhile, as much as is read here; or NULL */
};

/* Fetching ahead is spread over the arithmetic: each tile is a run of its own in memory, too short for the
 * hardware to notice, and a burst of fetches would leave memory idle afterwards. */
INLINE void fetch(const uint8_t *p, size_t size)
{
    for (size_t i = 0; i < size; i += 64)
        __builtin_prefetch(p + i);
}

/* Sums of one part of the tree: of query j and the w-th vector of tokens at [j][w]. */
struct dot_sums {
    struct vec v[MAX_BATCH][DOT_VECS];
};

/* One lane: its elements lie together, ascending; element i has the i-th scale. With two vectors of tokens
 * (m) every broadcast of a query serves two products: loads, of which a core does as many as products, would
 * be the limit. */
INLINE void dot_leaf(const struct dots *x, uint32_t leaf, int n, int m, struct dot_sums *out)
{
    uint32_t at = x->count ? leaf * x->count : x->order->start[leaf];
    uint32_t end = x->count ? at + x->count : x->order->start[leaf + 1];
    const uint32_t size = x->type == KV_F16 ? 2 * TOKEN_BLOCK : TOKEN_BLOCK;
    if (x->ahead)
        for (int w = 0; w < m; w++)
            fetch(x->ahead + (size_t)w * x->next * size / TOKEN_BLOCK + (size_t)at * size,
                  (size_t)(end - at) * size);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            out->v[j][w] = vec_all(0.0f);
    for (uint32_t i = 0; at < end; at++, i++) {
        struct vec k[DOT_VECS];
        for (int w = 0; w < m; w++) {
            size_t e = (size_t)w * x->next + (size_t)at * TOKEN_BLOCK;
            k[w] = x->type == KV_F16 ? vec_from_half(x->halves + e)
                                     : vec_mul(vec_from_int8(x->bytes + e),
                                               vec_load(x->scales + i * KV_PAGE_TOKENS + w * WIDTH));
        }
        for (int j = 0; j < n; j++) {
            struct vec q = vec_all(x->q[j][at]);
            for (int w = 0; w < m; w++)
                out->v[j][w] = vec_fma(q, k[w], out->v[j][w]);
        }
    }
}

/* The xor tree over lanes, depth first, so that few partial sums are alive. Leaves are numbered in that
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

/* The whole tree: eighths of it in a loop, since the code of all 32 leaves would be large, and no more sums
 * than those of an eighth stay in registers. */
INLINE void dot_all(const struct dots *x, int n, int m, struct dot_sums *out)
{
    struct dot_sums part[8];
#pragma GCC unroll 1
    for (uint32_t i = 0; i < 8; i++)
        dot_4(x, i * 4, n, m, &part[i]);
    for (uint32_t width = 1; width < 8; width *= 2)
        for (uint32_t i = 0; i < 8; i += 2 * width)
            dot_add(&part[i], &part[i + width], n, m);
    *out = part[0];
}

/* Scores of m vectors of tokens from token t on. */
INLINE void score_some(struct dots x, const struct ops_page *page, const struct page_scales *scales,
                       uint32_t t, bool first, int n, int m, float s[][KV_PAGE_TOKENS])
{
    size_t start = key_start(page->kv->head_dim, t);
    struct dot_sums v;
    x.halves = (const uint16_t *)(const void *)page->keys + start;
    x.bytes = (const int8_t *)page->keys + start;
    x.scales = x.type == KV_Q8_0 ? scales->keys + t : NULL;
    x.ahead = first ? page->values + start * (x.type == KV_F16 ? 2 : 1) : NULL;
    /* Hides that the queries stay the same: else their broadcasts, a vector for every element, are made
     * before the loop and kept on the stack. */
    for (int j = 0; j < n; j++)
        __asm__("" : "+r"(x.q[j]));
    dot_all(&x, n, m, &v);
    for (int j = 0; j < n; j++)
        for (int w = 0; w < m; w++)
            vec_store(&s[j][t + (uint32_t)w * WIDTH], v.v[j][w]);
}

/* Scores of at least n_tokens tokens for n queries. Four vectors at a time are the fastest for two queries of
 * f16, but the end of a page that is not full is not read for nothing. */
INLINE void scores(struct dots x, const struct ops_page *page, const struct page_scales *scales,
                   uint32_t n_tokens, bool first, int n, float s[][KV_PAGE_TOKENS])
{
    const bool by_four = DOT_VECS > 2 && n == 2 && x.type == KV_F16;
    uint32_t t = 0, head_dim = page->kv->head_dim;
    x.next = (uint32_t)(key_start(head_dim, WIDTH) - key_start(head_dim, 0));
    for (; by_four && t + 2 * WIDTH < n_tokens; t += DOT_VECS * WIDTH)
        score_some(x, page, scales, t, first, n, DOT_VECS, s);
    for (; t < n_tokens; t += 2 * WIDTH)
        score_some(x, page, scales, t, first, n, 2, s);
}

/* Scores to weights, for n queries; factor[j]: of what query j had folded before. Each stage takes all
 * queries before the next begins: what one waits for hides behind the others. */
INLINE void soften(const struct ops_query *queries, float w[][KV_PAGE_TOKENS], int n, struct vec *factor)
{
    float max[MAX_BATCH];
    for (int j = 0; j < n; j++) {
        for (uint32_t t = queries[j].n_tokens; t < KV_PAGE_TOKENS; t++)
            w[j][t] = -ARITH_INF; /* weight 0 */
        struct vec top = vec_load(w[j]);
        for (uint32_t t = WIDTH; t < KV_PAGE_TOKENS; t += WIDTH)
            top = vec_max(top, vec_load(w[j] + t));
        float page_max = vec_largest(top), before = queries[j].fold->max;
        max[j] = before > page_max ? before : page_max;
    }
    for (int j = 0; j < n; j++)
        factor[j] = vec_exp2(vec_all(queries[j].fold->max - max[j]));
    for (int j = 0; j < n; j++) {
        struct vec lanes[LANE_VECS];
        for (int l = 0; l < LANE_VECS; l++)
            lanes[l] = vec_all(0.0f);
        for (uint32_t t = 0; t < KV_PAGE_TOKENS; t += WIDTH) {
            struct vec e = vec_exp2(vec_sub(vec_load(w[j] + t), vec_all(max[j])));
            vec_store(w[j] + t, e);
            uint32_t l = t % ARITH_LANES / WIDTH;
            lanes[l] = vec_add(lanes[l], e);
        }
        struct ops_fold *f = queries[j].fold;
        f->sum = __builtin_fmaf(f->sum, vec_first(factor[j]), lanes_sum(lanes));
        f->max = max[j];
    }
}

/* WIDTH values of token t from dimension d. */
INLINE struct vec value_at(const struct ops_page *page, enum kv_type type, const float *scales, uint32_t t,
                           uint32_t d)
{
    uint32_t n = page->kv->head_dim;
    if (type == KV_F16)
        return vec_from_half((const uint16_t *)(const void *)page->values + t * n + d);
    float scale = scales[t * ((n + ARITH_BLOCK - 1) / ARITH_BLOCK) + d / ARITH_BLOCK];
    return vec_mul(vec_from_int8((const int8_t *)page->values + t * n + d), vec_all(scale));
}

/* Tokens [first, last) into dimensions [d, d + m * WIDTH) of n queries. factor: of what is there, or NULL. */
INLINE void fold_values(const struct ops_page *page, enum kv_type type, const float *scales,
                        float *const out[], float w[][KV_PAGE_TOKENS], const struct vec *factor,
                        uint32_t first, uint32_t last, uint32_t d, const uint8_t *ahead, int n, int m)
{
    const uint32_t row = page->kv->head_dim * (type == KV_F16 ? 2 : 1);
    struct vec o[MAX_VALUE_VECS];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++)
            o[j * m + i] = factor ? vec_mul(vec_load(out[j] + d + i * WIDTH), factor[j])
                                  : vec_load(out[j] + d + i * WIDTH);
    for (uint32_t t = first; t < last; t++) {
        if (ahead)
            fetch(ahead + t * row, row);
        for (int i = 0; i < m; i++) {
            struct vec v = value_at(page, type, scales, t, d + i * WIDTH);
            for (int j = 0; j < n; j++)
                o[j * m + i] = vec_fma(vec_all(w[j][t]), v, o[j * m + i]);
        }
    }
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++)
            vec_store(out[j] + d + i * WIDTH, o[j * m + i]);
}

/* The dimensions behind the last whole vector, of one query. */
static void fold_values_rest(const struct ops_page *page, const float *scales, float *out, const float *w,
                             float factor, uint32_t first, uint32_t last, uint32_t d)
{
    uint32_t n = page->kv->head_dim, blocks = scale_blocks(page->kv);
    const uint16_t *halves = (const void *)page->values;
    const int8_t *bytes = (const void *)page->values;
    for (; d < n; d++) {
        out[d] = out[d] * factor;
        for (uint32_t t = first; t < last; t++) {
            float v = page->kv->type == KV_F16
                          ? half_to_float(halves[t * n + d])
                          : (float)bytes[t * n + d] * scales[t * blocks + d / ARITH_BLOCK];
            out[d] = __builtin_fmaf(w[t], v, out[d]);
        }
    }
}

INLINE void fold_tokens(const struct ops_page *page, enum kv_type type, const float *scales,
                        float *const out[], float w[][KV_PAGE_TOKENS], const struct vec *factor,
                        uint32_t first, uint32_t last, const uint8_t *ahead, int n)
{
    enum { WIDE = 8 };
    int m = n > 1 ? MAX_VALUE_VECS / n : WIDE;
    m = m < WIDE ? m : WIDE;
    uint32_t d = 0, head_dim = page->kv->head_dim;
    for (; d + (uint32_t)m * WIDTH <= head_dim; d += (uint32_t)m * WIDTH)
        fold_values(page, type, scales, out, w, factor, first, last, d, d == 0 ? ahead : NULL, n, m);
    for (; d + WIDTH <= head_dim; d += WIDTH)
        fold_values(page, type, scales, out, w, factor, first, last, d, NULL, n, 1);
    if (d < head_dim)
        for (int j = 0; j < n; j++)
            fold_values_rest(page, scales, out[j], w[j], factor ? vec_first(factor[j]) : 1.0f, first, last,
                             d);
}

/* n queries at once. They may see different numbers of tokens: what all see is folded together. */
INLINE void fold_batch(const struct ops_page *page, const struct page_scales *scales, enum kv_type type,
                       uint32_t count, const struct ops_query *queries, bool first, int n)
{
    _Alignas(64) float w[MAX_BATCH][KV_PAGE_TOKENS];
    const float *value_scales = type == KV_Q8_0 ? scales->values : NULL;
    struct dots x = {.type = type, .count = count, .order = page->order};
    float *out[MAX_BATCH];
    uint32_t most = 0, least = KV_PAGE_TOKENS;
    for (int j = 0; j < n; j++) {
        x.q[j] = queries[j].q;
        out[j] = queries[j].fold->out;
        most = queries[j].n_tokens > most ? queries[j].n_tokens : most;
        least = queries[j].n_tokens < least ? queries[j].n_tokens : least;
    }
    scores(x, page, scales, most, first, n, w);
    struct vec factor[MAX_BATCH];
    soften(queries, w, n, factor);
    fold_tokens(page, type, value_scales, out, w, factor, 0, least, first ? page->next : NULL, n);
    for (int j = 0; j < n; j++)
        if (queries[j].n_tokens > least)
            fold_tokens(page, type, value_scales, &out[j], &w[j], NULL, least, queries[j].n_tokens, NULL, 1);
}

#define FOLD_BATCHES(name, type, count)                                                                      \
    static void name(const struct ops_page *page, const struct page_scales *scales,                          \
                     const struct ops_query *queries, uint32_t n)                                            \
    {                                                                                                        \
        const struct ops_query *q = queries, *end = queries + n;                                             \
        for (; WIDTH > 8 && end - q >= 4; q += 4)                                                            \
            fold_batch(page, scales, type, count, q, q == queries, 4);                                       \
        for (; end - q >= 2; q += 2)                                                                         \
            fold_batch(page, scales, type, count, q, q == queries, 2);                                       \
        if (q < end)                                                                                         \
            fold_batch(page, scales, type, count, q, q == queries, 1);                                       \
    }
FOLD_BATCHES(fold_f16_128, KV_F16, 4)
FOLD_BATCHES(fold_f16_64, KV_F16, 2)
FOLD_BATCHES(fold_f16, KV_F16, 0)
FOLD_BATCHES(fold_q8_128, KV_Q8_0, 4)
FOLD_BATCHES(fold_q8_64, KV_Q8_0, 2)
FOLD_BATCHES(fold_q8, KV_Q8_0, 0)
#undef FOLD_BATCHES

#include "ops_bf16.h"

static void query(const struct kv_layout *kv, const struct ops_order *order, void *to, const float *from,
                  float factor)
{
    float *q = to;
    if (kv->type == KV_BF16)
        query_bf16(to, from, kv->head_dim, factor);
    else
        for (uint32_t d = 0; d < kv->head_dim; d++)
            q[d] = from[order->dims[d]] * factor;
}

static void append(const struct kv_layout *kv, const struct ops_order *order, uint8_t *tile,
                   enum kv_which which, uint32_t t, const float *x)
{
    if (kv->type == KV_F16)
        append_f16(kv, order, (uint16_t *)(void *)tile, which, t, x);
    else if (kv->type == KV_BF16)
        append_bf16(kv->head_dim, (uint16_t *)(void *)tile, which, t, x);
    else
        append_q8(kv, order, tile, which, t, x);
}

static void append_fetch(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t)
{
    size_t element = kv->type == KV_Q8_0 ? 1 : 2, n = kv->head_dim;
    size_t first = (size_t)(t / TOKEN_BLOCK) * n * TOKEN_BLOCK, size = n * TOKEN_BLOCK;
    if (which == KV_VALUES) {
        first = kv->type == KV_BF16 ? t / 2 * n * 2 : t * n;
        size = kv->type == KV_BF16 ? n * 2 : n;
    }
    for (size_t i = 0; i < size * element; i += 64)
        __builtin_prefetch(tile + first * element + i, 1);
}

/* The common head sizes are known to the compiler. */
static void fold(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    uint32_t head_dim = page->kv->head_dim;
    if (page->kv->type == KV_BF16) {
        fold_bf16(page, queries, n);
        return;
    }
    if (page->kv->type == KV_F16) {
        const struct page_scales *none = NULL;
        (head_dim == 128 ? fold_f16_128 : head_dim == 64 ? fold_f16_64 : fold_f16)(page, none, queries, n);
        return;
    }
    struct page_scales scales;
    const uint16_t *keys = (const void *)(page->keys + kv_tile_elements(page->kv));
    const uint16_t *values = (const void *)(page->values + kv_tile_elements(page->kv));
    for (uint32_t i = 0; i < scale_blocks(page->kv) * KV_PAGE_TOKENS; i += WIDTH) {
        vec_store(scales.keys + i, vec_from_half(keys + i));
        vec_store(scales.values + i, vec_from_half(values + i));
    }
    (head_dim == 128 ? fold_q8_128 : head_dim == 64 ? fold_q8_64 : fold_q8)(page, &scales, queries, n);
}

static void merge(float *out, const struct ops_fold *folds, uint32_t n, uint32_t head_dim)
{
    float max = folds[0].max, sum = 0.0f;
    for (uint32_t i = 1; i < n; i++)
        max = folds[i].max > max ? folds[i].max : max;
    _Alignas(64) float o[OPS_MAX_HEAD_DIM] = {0};
    uint32_t padded = ops_padded(head_dim);
    for (uint32_t i = 0; i < n; i++) {
        float e = arith_exp2(folds[i].max - max);
        sum = __builtin_fmaf(e, folds[i].sum, sum);
        struct vec weight = vec_all(e);
        for (uint32_t d = 0; d < padded; d += WIDTH)
            vec_store(o + d, vec_fma(weight, vec_load(folds[i].out + d), vec_load(o + d)));
    }
    float inverse = 1.0f / sum;
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = o[d] * inverse;
}

/* --- logits --- */

static int32_t argmax(const float *logits, uint32_t n)
{
    enum { CHUNK = 1024 }; /* the place of the maximum is searched in one chunk only */
    float best = -ARITH_INF;
    uint32_t best_chunk = 0;
    for (uint32_t first = 0; first < n; first += CHUNK) {
        uint32_t last = n - first < CHUNK ? n : first + CHUNK, i = first;
        struct vec top = vec_all(-ARITH_INF);
        bool bad = false;
        for (; i + WIDTH <= last; i += WIDTH) {
            struct vec v = vec_load(logits + i);
            bad |= vec_any_not_finite(v);
            top = vec_max(top, v);
        }
        float largest = vec_largest(top);
        for (; i < last; i++) {
            bad |= !isfinite(logits[i]);
            largest = logits[i] > largest ? logits[i] : largest;
        }
        if (bad)
            return -1;
        if (largest > best) {
            best = largest;
            best_chunk = first;
        }
    }
    uint32_t i = best_chunk;
    while (logits[i] != best)
        i++;
    return (int32_t)i;
}

const struct ops OPS_TABLE = {
    .name = OPS_NAME,
    .rms_inverse = rms_inverse,
    .norm_head = norm_head,
    .rope = rope,
    .store = store,
    .residual = residual,
    .swiglu = swiglu,
    .add = add,
    .mul = mul,
    .silu = silu,
    .query = query,
    .append = append,
    .append_fetch = append_fetch,
    .fold = fold,
    .merge = merge,
    .argmax = argmax,
};
