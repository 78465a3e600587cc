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

/* --- attention: several queries share every load of a key or value ---
 * A page is folded in three stages: the scores of all queries, batch by batch; their weights; then the
 * values, batch by batch. So the keys stay in the first-level cache for all batches, and after them the
 * values; one batch after the other would read both again from the second level. */

enum {
    MAX_BATCH = 4,
    FULL_BATCH = WIDTH > 8 ? 4 : 2,
    DOT_VECS = WIDTH == 16 ? 4 : 2,
    MAX_VALUE_VECS = WIDTH == 16 ? 16 : 8
};

/* The queries that go through the stages together; batches of which one prefetches for all. */
enum { FOLD_QUERIES = 32, FEW_BATCHES = 3 };

/* Their scores, then their weights; factor rescales a query's earlier sums. */
struct page_weights {
    _Alignas(64) float w[FOLD_QUERIES][KV_PAGE_TOKENS];
    _Alignas(64) uint16_t bf16[FOLD_QUERIES][KV_PAGE_TOKENS]; /* the weights; of a bf16 cache alone */
    _Alignas(64) float factor[FOLD_QUERIES];
};

/* Calls batch(context, size, first query, number) for n queries. The number is a constant for the compiler.
 */
#define IN_BATCHES(batch, context, size, n)                                                                  \
    do {                                                                                                     \
        uint32_t at_ = 0, n_ = (n);                                                                          \
        for (; WIDTH > 8 && n_ - at_ >= 4; at_ += 4)                                                         \
            batch(context, size, at_, 4);                                                                    \
        for (; n_ - at_ >= 2; at_ += 2)                                                                      \
            batch(context, size, at_, 2);                                                                    \
        if (at_ < n_)                                                                                        \
            batch(context, size, at_, 1);                                                                    \
    } while (0)

INLINE void fetch(const uint8_t *p, size_t size)
{
    for (size_t i = 0; i < size; i += 64)
        __builtin_prefetch(p + i);
}

/* The number of batches that IN_BATCHES() makes of n queries: the index of the one that begins with query n.
 */
INLINE uint32_t batch_index(uint32_t n)
{
    return WIDTH > 8 ? n / 4 + n % 4 / 2 + n % 2 : n / 2 + n % 2;
}

/* Caps the scores of a query, where there is a cap, and hides the tokens that it does not see: their score is
 * -infinity, so their weight 0. Returns the largest score of each lane. */
INLINE struct vec finish_scores(const struct ops_query *q, float *w, float cap)
{
    for (uint32_t t = 0; cap > 0 && t < KV_PAGE_TOKENS; t += WIDTH)
        vec_store(w + t, vec_cap(vec_load(w + t), cap));
    for (uint32_t t = 0; t < q->first; t++)
        w[t] = -ARITH_INF;
    for (uint32_t t = q->n_tokens; t < KV_PAGE_TOKENS; t++)
        w[t] = -ARITH_INF;
    struct vec top = vec_load(w);
    for (uint32_t t = WIDTH; t < KV_PAGE_TOKENS; t += WIDTH)
        top = vec_max(top, vec_load(w + t));
    return top;
}

/* Turns a query's scores into weights, also rounded to bf16 if `bf16` is not NULL. Returns their sum, as far
 * as the lanes of one vector. */
INLINE struct vec weigh(float *w, uint16_t *bf16, float max)
{
    struct vec lanes[LANE_VECS];
    for (uint32_t t = 0; t < KV_PAGE_TOKENS; t += WIDTH) {
        struct vec e = vec_exp2_falling(vec_sub(vec_load(w + t), vec_all(max)));
        vec_store(w + t, e);
        if (bf16)
            vec_to_bf16(bf16 + t, e);
        uint32_t l = t % ARITH_LANES / WIDTH;
        lanes[l] = t < ARITH_LANES ? e : vec_add(lanes[l], e);
    }
    for (int n = LANE_VECS / 2; n; n /= 2)
        for (int j = 0; j < n; j++)
            lanes[j] = vec_add(lanes[j], lanes[j + n]);
    return lanes[0];
}

/* Turns a query's scores into weights. */
INLINE void soften_one(const struct ops_page *page, const struct ops_query *q, float *w, uint16_t *bf16,
                       float *factor)
{
    struct ops_fold *f = q->fold;
    float page_max = vec_largest(finish_scores(q, w, page->cap));
    float max = f->max > page_max ? f->max : page_max;
    *factor = vec_first(vec_exp2(vec_all(f->max - max)));
    f->sum = __builtin_fmaf(f->sum, *factor, vec_tree(weigh(w, bf16, max)));
    f->max = max;
}

/* The same for n queries, n <= WIDTH. Values of one number per query are computed for all queries at once,
 * lane j being query j. */
INLINE void soften_wide(const struct ops_page *page, const struct ops_query *queries, uint32_t n,
                        float w[][KV_PAGE_TOKENS], uint16_t bf16[][KV_PAGE_TOKENS], float *factor)
{
    _Alignas(64) float max[WIDTH] = {0}, sum[WIDTH] = {0};
    struct vec of[WIDTH];
    for (uint32_t j = 0; j < n; j++) {
        of[j] = finish_scores(&queries[j], w[j], page->cap);
        max[j] = queries[j].fold->max;
        sum[j] = queries[j].fold->sum;
    }
    for (uint32_t j = n; j < WIDTH; j++)
        of[j] = vec_all(0.0f);
    struct vec before = vec_load(max), after = vec_max(before, vec_largests(of));
    struct vec f = vec_exp2(vec_sub(before, after));
    vec_store(factor, f);
    vec_store(max, after);
    for (uint32_t j = 0; j < n; j++)
        of[j] = weigh(w[j], bf16 ? bf16[j] : NULL, max[j]);
    vec_store(sum, vec_fma(vec_load(sum), f, vec_trees(of)));
    for (uint32_t j = 0; j < n; j++) {
        queries[j].fold->max = max[j];
        queries[j].fold->sum = sum[j];
    }
}

/* The queries of one call of a fold that go through the stages together. */
struct fold_job {
    const struct ops_page *page;
    const struct ops_query *queries;
    uint32_t n, n_batches;
    bool first; /* of the page: these prefetch */
    struct page_weights *weights;
};

/* Takes the next queries of n. */
INLINE void fold_part(struct fold_job *job, const struct ops_query *queries, uint32_t n, uint32_t done)
{
    job->queries = queries + done;
    job->n = n - done < FOLD_QUERIES ? n - done : FOLD_QUERIES;
    job->n_batches = batch_index(job->n);
    job->first = done == 0;
}

/* Prefetches are spread over the arithmetic: each tile is a separate run in memory, too short for the
 * hardware prefetcher, and a burst of prefetches would leave memory idle meanwhile. With few batches,
 * the loops of the first one prefetch all of the next tile; with many, each prefetches an equal part. */
struct ahead {
    const uint8_t *all;  /* or NULL */
    const uint8_t *part; /* or NULL */
    uint32_t size, step; /* bytes of the part, and of each of its steps */
};

/* The part of a tile that the batch of query `at` prefetches. */
INLINE struct ahead ahead_of(const struct fold_job *job, uint32_t at, const uint8_t *tile, uint32_t n_steps)
{
    struct ahead a = {0};
    if (job->n_batches <= FEW_BATCHES) {
        a.all = job->first && at == 0 ? tile : NULL;
    } else if (job->first && tile) {
        a.size = (uint32_t)kv_tile_elements(job->page->kv) / job->n_batches;
        a.part = tile + (size_t)batch_index(at) * a.size;
        a.step = (a.size + n_steps - 1) / n_steps;
    }
    return a;
}

/* The part of it that belongs to n_tokens tokens from t on, whose keys begin at byte `start`. */
INLINE struct ahead ahead_tokens(struct ahead a, size_t start, uint32_t t, uint32_t n_tokens,
                                 uint32_t n_steps)
{
    a.all = a.all ? a.all + start : NULL;
    if (a.part) {
        a.part += a.size * t / KV_PAGE_TOKENS;
        a.step = (a.size * n_tokens / KV_PAGE_TOKENS + n_steps - 1) / n_steps;
    }
    return a;
}

/* Prefetches the lines that begin in a step of a batch of n: of a line that several steps share, only one
 * does. Few queries have no parts, and their loops no check for one. */
INLINE void ahead_step(const struct ahead *a, uint32_t step, int n)
{
    if (n < FULL_BATCH || !a->part)
        return;
    uintptr_t p = (uintptr_t)a->part + (size_t)step * a->step, end = p + a->step;
    for (p = (p + 63) & ~(uintptr_t)63; p < end; p += 64)
        __builtin_prefetch((const void *)p);
}

/* The largest number of tokens that a query of the batch sees. */
INLINE uint32_t most_tokens(const struct ops_query *queries, int n)
{
    uint32_t most = 0;
    for (int j = 0; j < n; j++)
        most = queries[j].n_tokens > most ? queries[j].n_tokens : most;
    return most;
}

/* Turns the scores of a job into weights; `bf16`: rounded, too. */
INLINE void soften(const struct fold_job *job, bool bf16)
{
    struct page_weights *p = job->weights;
    uint32_t i = 0;
    for (uint32_t n; n = job->n - i, WIDTH > 1 && n > WIDTH / 2; i += n) {
        n = n < WIDTH ? n : WIDTH;
        soften_wide(job->page, job->queries + i, n, p->w + i, bf16 ? p->bf16 + i : NULL, p->factor + i);
    }
    for (; i < job->n; i++)
        soften_one(job->page, &job->queries[i], p->w[i], bf16 ? p->bf16[i] : NULL, &p->factor[i]);
}

#include "ops_delta.h"
#include "ops_f16.h"
#include "ops_bf16.h"
#include "ops_q8.h"
#if WIDTH > 1
#include "ops_wide.h"
#else
#define fold_wide fold_bf16
#endif

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
    if (type == KV_BF16)
        (DOT2_FLUSHES ? fold_bf16 : fold_wide)(page, queries, n);
    else
        (type == KV_F16 ? fold_f16 : fold_q8)(page, queries, n);
}

static void fold_by_floats(const struct ops_page *page, const struct ops_query *queries, uint32_t n)
{
    (page->kv->type == KV_BF16 ? fold_wide : fold)(page, queries, n);
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
    .fold_by_floats = fold_by_floats,
    .merge = merge,
    .argmax = argmax,
};
