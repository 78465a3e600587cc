/* ops_template.h - the operations of ops.h over a vector of WIDTH floats; included once per instruction set,
 * after struct vec and its operations.
 * Lanes of a vector are tokens or dimensions, never a changed order of additions: each expression is the one
 * in kernels/abi/arith.h.
 * Thread: any; all functions are pure. */
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
    for (uint32_t i = 0; i < n && gain; i++)
        x[i] = x[i] * r * gain[i];
    for (uint32_t i = 0; i < n && !gain; i++)
        x[i] = x[i] * r;
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

/* Applies factor and bias to a product, at column i. */
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

static void swiglu_clamped(float *out, const float *gate, const float *up, uint32_t n, float r,
                           const float *gate_bias, const float *up_bias)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = arith_swiglu_clamped(finished_one(gate, i, r, gate_bias), finished_one(up, i, r, up_bias));
}

/* arith_gelu() lane by lane. */
INLINE struct vec vec_gelu(struct vec x)
{
    struct vec a = vec_fma(vec_mul(x, x), vec_all(-ARITH_GELU_3), vec_all(-ARITH_GELU_1));
    return vec_div(x, vec_add(vec_all(1.0f), vec_exp2(vec_mul(x, a))));
}

/* arith_cap() lane by lane. */
INLINE struct vec vec_cap(struct vec u, float cap)
{
    struct vec e = vec_add(vec_all(1.0f), vec_exp2(u));
    return vec_sub(vec_all(cap), vec_div(vec_all(2.0f * cap), e));
}

static void geglu(float *out, const float *gate, const float *up, uint32_t n, float r, const float *gate_bias,
                  const float *up_bias)
{
    struct vec factor = vec_all(r);
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        struct vec g = finished(gate, i, factor, gate_bias), u = finished(up, i, factor, up_bias);
        vec_store(out + i, vec_mul(vec_gelu(g), u));
    }
    for (; i < n; i++)
        out[i] = arith_gelu(finished_one(gate, i, r, gate_bias)) * finished_one(up, i, r, up_bias);
}

static void gelu(float *out, const float *a, uint32_t n)
{
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_gelu(vec_load(a + i)));
    for (; i < n; i++)
        out[i] = arith_gelu(a[i]);
}

static void scale(float *out, const float *a, uint32_t n, float factor)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = a[i] * factor;
}

static void soft_cap(float *out, const float *a, uint32_t n, float cap)
{
    float factor = 2.0f / cap * ARITH_LOG2E;
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_cap(vec_mul(vec_load(a + i), vec_all(factor)), cap));
    for (; i < n; i++)
        out[i] = arith_cap(a[i] * factor, cap);
}

static void add_scaled(float *out, const float *y, uint32_t n, float w)
{
    struct vec weight = vec_all(w);
    uint32_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH)
        vec_store(out + i, vec_fma(weight, vec_load(y + i), vec_load(out + i)));
    for (; i < n; i++)
        out[i] = __builtin_fmaf(w, y[i], out[i]);
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

/* --- attention: several queries share every load of a key or value --- */

enum { MAX_BATCH = 4, DOT_VECS = WIDTH == 16 ? 4 : 2, MAX_VALUE_VECS = WIDTH == 16 ? 16 : 8 };

/* Prefetches are spread over the arithmetic: each tile is a separate run in memory, too short for the
 * hardware prefetcher, and a burst of prefetches would leave memory idle afterwards. */
INLINE void fetch(const uint8_t *p, size_t size)
{
    for (size_t i = 0; i < size; i += 64)
        __builtin_prefetch(p + i);
}

/* Caps the scores of n queries, where there is a cap; those of tokens that a query does not see are not used.
 */
INLINE void cap_scores(float w[][KV_PAGE_TOKENS], int n, float cap)
{
    for (int j = 0; cap > 0 && j < n; j++)
        for (uint32_t t = 0; t < KV_PAGE_TOKENS; t += WIDTH)
            vec_store(w[j] + t, vec_cap(vec_load(w[j] + t), cap));
}

/* Turns the scores of n queries into weights; factor[j] rescales the earlier sums of query j. Each stage runs
 * over all queries before the next, so that the latency of one query hides behind the others. */
INLINE void soften(const struct ops_page *page, const struct ops_query *queries, float w[][KV_PAGE_TOKENS],
                   int n, struct vec *factor)
{
    float max[MAX_BATCH];
    cap_scores(w, n, page->cap);
    for (int j = 0; j < n; j++) {
        for (uint32_t t = 0; t < queries[j].first; t++)
            w[j][t] = -ARITH_INF;
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

#include "ops_delta.h"
#include "ops_f16.h"
#include "ops_bf16.h"
#include "ops_q8.h"

static void query(const struct kv_layout *kv, const struct ops_order *order, void *to, const float *from,
                  float factor)
{
    if (kv->type == KV_BF16)
        query_bf16(to, from, kv->head_dim, factor);
    else if (kv->type == KV_Q8_0)
        query_q8(to, from, kv->head_dim, factor);
    else
        query_f16(order, to, from, kv->head_dim, factor);
}

static void fold(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    enum kv_type type = (enum kv_type)page->kv->type;
    (type == KV_F16 ? fold_f16 : type == KV_BF16 ? fold_bf16 : fold_q8)(page, queries, n);
}

static void merge(float *out, const struct ops_fold *folds, uint32_t n, uint32_t head_dim, float sink)
{
    float max = folds[0].max;
    for (uint32_t i = 1; i < n; i++)
        max = folds[i].max > max ? folds[i].max : max;
    max = sink > max ? sink : max;
    float sum = arith_exp2(sink - max);
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

/* --- the cache --- */

static void append(const struct kv_layout *kv, const struct ops_order *order, uint8_t *tile,
                   enum kv_which which, uint32_t t, const float *x)
{
    if (kv->type == KV_F16)
        append_f16(kv, order, (uint16_t *)(void *)tile, which, t, x);
    else if (kv->type == KV_BF16)
        append_bf16(kv->head_dim, (uint16_t *)(void *)tile, which, t, x);
    else
        append_q8(kv, tile, which, t, x);
}

static void append_fetch(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t)
{
    size_t row = kv_tile_elements(kv) / KV_PAGE_TOKENS; /* bytes per token */
    size_t together = which == KV_KEYS ? TOKEN_BLOCK : kv->type == KV_F16 ? 1 : kv->type == KV_BF16 ? 2 : 4;
    const uint8_t *first = tile + t / together * together * row;
    for (size_t i = 0; i < together * row; i += 64)
        __builtin_prefetch(first + i, 1);
}

/* --- logits --- */

static int32_t argmax(const float *logits, uint32_t n)
{
    enum { CHUNK = 1024 }; /* only one chunk is searched for the position of the maximum */
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
    .swiglu_clamped = swiglu_clamped,
    .gate_silu = gate_silu,
    .gate_sigmoid = gate_sigmoid,
    .sigmoid = sigmoid,
    .convolve = convolve,
    .delta = delta,
    .geglu = geglu,
    .scale = scale,
    .soft_cap = soft_cap,
    .add_scaled = add_scaled,
    .add = add,
    .mul = mul,
    .silu = silu,
    .gelu = gelu,
    .query = query,
    .append = append,
    .append_fetch = append_fetch,
    .fold = fold,
    .merge = merge,
    .argmax = argmax,
};
