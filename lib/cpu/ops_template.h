/* ops_template.h - the operations of ops.h over a vector of WIDTH floats; included once per instruction set,
 * after struct vec and its operations. Lanes of a vector are tokens or dimensions, never a changed order of
 * additions: each expression is the one in kernels/arith.h. */
#include "ops.h"

#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANE_VECS = ARITH_LANES / WIDTH, TOKEN_BLOCK = 16 };

static float lanes_sum(const struct vec v[LANE_VECS])
{
    float lanes[ARITH_LANES];
    for (int j = 0; j < LANE_VECS; j++)
        vec_store(lanes + j * WIDTH, v[j]);
    return arith_tree(lanes);
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

/* --- the cache: appending and reading back --- */

static uint32_t scale_blocks(const struct kv_layout *kv)
{
    return (kv->head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
}

/* Where element d of token t lies in a tile of keys. */
INLINE size_t key_index(uint32_t head_dim, uint32_t t, uint32_t d)
{
    return ((size_t)(t / TOKEN_BLOCK) * head_dim + d) * TOKEN_BLOCK + t % TOKEN_BLOCK;
}

static void append_f16(const struct kv_layout *kv, uint16_t *tile, enum kv_which which, uint32_t t,
                       const float *x)
{
    uint16_t row[OPS_MAX_HEAD_DIM];
    uint32_t n = kv->head_dim, d = 0;
    for (; d + WIDTH <= n; d += WIDTH)
        vec_to_half(row + d, vec_load(x + d));
    for (; d < n; d++)
        row[d] = half_from_float(x[d]);
    if (which == KV_VALUES)
        memcpy(tile + (size_t)t * n, row, n * sizeof row[0]);
    else
        for (d = 0; d < n; d++)
            tile[key_index(n, t, d)] = row[d];
}

static void append_q8(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t,
                      const float *x)
{
    uint32_t n = kv->head_dim, blocks = scale_blocks(kv);
    int8_t *elements = (int8_t *)tile;
    uint16_t *scales = (uint16_t *)(void *)(tile + kv_tile_elements(kv));
    for (uint32_t b = 0; b < blocks; b++) {
        float block[ARITH_BLOCK] = {0};
        int8_t q[ARITH_BLOCK];
        uint32_t first = b * ARITH_BLOCK, m = n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK;
        memcpy(block, x + first, m * sizeof block[0]);
        uint16_t scale = half_from_float(arith_quantise(block, q));
        if (which == KV_VALUES) {
            memcpy(elements + (size_t)t * n + first, q, m);
            scales[(size_t)t * blocks + b] = scale;
            continue;
        }
        for (uint32_t d = 0; d < m; d++)
            elements[key_index(n, t, first + d)] = q[d];
        scales[(size_t)b * KV_PAGE_TOKENS + t] = scale;
    }
}

static void append(const struct kv_layout *kv, uint8_t *tile, enum kv_which which, uint32_t t, const float *x)
{
    if (kv->type == KV_F16)
        append_f16(kv, (uint16_t *)(void *)tile, which, t, x);
    else
        append_q8(kv, tile, which, t, x);
}

static void unpack_keys_f16(const uint16_t *tile, uint32_t head_dim, uint32_t n, float *out)
{
    for (uint32_t t = 0; t < n; t += TOKEN_BLOCK) {
        const uint16_t *from = tile + (size_t)t * head_dim;
        for (uint32_t d = 0; d < head_dim; d++)
            for (uint32_t i = 0; i < TOKEN_BLOCK; i += WIDTH)
                vec_store(out + d * KV_PAGE_TOKENS + t + i, vec_from_half(from + d * TOKEN_BLOCK + i));
    }
}

static void unpack_values_f16(const uint16_t *tile, uint32_t head_dim, uint32_t n, float *out)
{
    uint32_t padded = ops_padded(head_dim);
    for (uint32_t t = 0; t < n; t++, tile += head_dim, out += padded) {
        uint32_t d = 0;
        for (; d + WIDTH <= head_dim; d += WIDTH)
            vec_store(out + d, vec_from_half(tile + d));
        for (; d < head_dim; d++)
            out[d] = half_to_float(tile[d]);
        for (; d < padded; d++)
            out[d] = 0.0f;
    }
}

static void unpack_keys_q8(const int8_t *tile, const uint16_t *scales, uint32_t head_dim, uint32_t n,
                           float *out)
{
    for (uint32_t t = 0; t < n; t += TOKEN_BLOCK) {
        const int8_t *from = tile + (size_t)t * head_dim;
        for (uint32_t d = 0; d < head_dim; d++) {
            const uint16_t *scale = scales + d / ARITH_BLOCK * KV_PAGE_TOKENS + t;
            for (uint32_t i = 0; i < TOKEN_BLOCK; i += WIDTH)
                vec_store(out + d * KV_PAGE_TOKENS + t + i,
                          vec_mul(vec_from_int8(from + d * TOKEN_BLOCK + i), vec_from_half(scale + i)));
        }
    }
}

static void unpack_values_q8(const int8_t *tile, const uint16_t *scales, uint32_t head_dim, uint32_t n,
                             float *out)
{
    uint32_t padded = ops_padded(head_dim), blocks = (head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
    for (uint32_t t = 0; t < n; t++, tile += head_dim, scales += blocks, out += padded) {
        uint32_t d = 0;
        for (; d + WIDTH <= head_dim; d += WIDTH) {
            struct vec scale = vec_all(half_to_float(scales[d / ARITH_BLOCK]));
            vec_store(out + d, vec_mul(vec_from_int8(tile + d), scale));
        }
        for (; d < head_dim; d++)
            out[d] = (float)tile[d] * half_to_float(scales[d / ARITH_BLOCK]);
        for (; d < padded; d++)
            out[d] = 0.0f;
    }
}

static void unpack(const struct kv_layout *kv, const uint8_t *tile, enum kv_which which, uint32_t n,
                   float *out)
{
    const uint16_t *halves = (const void *)tile;
    const uint16_t *scales = (const void *)(tile + kv_tile_elements(kv));
    const int8_t *bytes = (const void *)tile;
    if (kv->type == KV_F16 && which == KV_KEYS)
        unpack_keys_f16(halves, kv->head_dim, n, out);
    else if (kv->type == KV_F16)
        unpack_values_f16(halves, kv->head_dim, n, out);
    else if (which == KV_KEYS)
        unpack_keys_q8(bytes, scales, kv->head_dim, n, out);
    else
        unpack_values_q8(bytes, scales, kv->head_dim, n, out);
}

/* --- attention --- */

/* Lane `lane` of the dot products of q with n * WIDTH tokens: elements lane, lane + 32, ... ascending. */
INLINE void dot_leaf(const float *q, const float *keys, uint32_t head_dim, uint32_t lane, int n,
                     struct vec *out)
{
    for (int j = 0; j < n; j++)
        out[j] = vec_all(0.0f);
    for (uint32_t d = lane; d < head_dim; d += ARITH_LANES) {
        struct vec a = vec_all(q[d]);
        for (int j = 0; j < n; j++)
            out[j] = vec_fma(a, vec_load(keys + d * KV_PAGE_TOKENS + j * WIDTH), out[j]);
    }
}

/* The xor tree over lanes, depth first, so that few partial sums are alive: lane + (lane ^ width). */
#define DOT_NODE(name, child, width)                                                                         \
    INLINE void name(const float *q, const float *keys, uint32_t head_dim, uint32_t lane, int n,             \
                     struct vec *out)                                                                        \
    {                                                                                                        \
        struct vec other[4];                                                                                 \
        child(q, keys, head_dim, lane, n, out);                                                              \
        child(q, keys, head_dim, lane + (width), n, other);                                                  \
        for (int j = 0; j < n; j++)                                                                          \
            out[j] = vec_add(out[j], other[j]);                                                              \
    }
DOT_NODE(dot_16, dot_leaf, 16)
DOT_NODE(dot_8, dot_16, 8)
DOT_NODE(dot_4, dot_8, 4)
DOT_NODE(dot_2, dot_4, 2)
DOT_NODE(dot_1, dot_2, 1)
#undef DOT_NODE

/* Scores of at least n tokens, in vectors of tokens. */
INLINE void scores_of(const float *q, const float *keys, uint32_t head_dim, uint32_t n, float *s)
{
    uint32_t t = 0;
    struct vec v[4];
    for (; t + 4 * WIDTH <= n; t += 4 * WIDTH) {
        dot_1(q, keys + t, head_dim, 0, 4, v);
        for (int j = 0; j < 4; j++)
            vec_store(s + t + j * WIDTH, v[j]);
    }
    for (; t < n; t += WIDTH) {
        dot_1(q, keys + t, head_dim, 0, 1, v);
        vec_store(s + t, v[0]);
    }
}

/* One copy with the common head sizes known to the compiler. */
static void scores(const float *q, const float *keys, uint32_t head_dim, uint32_t n, float *s)
{
    if (head_dim == 128)
        scores_of(q, keys, 128, n, s);
    else if (head_dim == 64)
        scores_of(q, keys, 64, n, s);
    else
        scores_of(q, keys, head_dim, n, s);
}

/* out[0 .. n*WIDTH) = out * f, then the weighted values of every token, ascending. */
INLINE void fold_values(float *out, float f, const float *w, const float *values, size_t stride,
                        uint32_t n_tokens, int n)
{
    struct vec o[8], factor = vec_all(f);
    for (int j = 0; j < n; j++)
        o[j] = vec_mul(vec_load(out + j * WIDTH), factor);
    for (uint32_t t = 0; t < n_tokens; t++) {
        struct vec weight = vec_all(w[t]);
        for (int j = 0; j < n; j++)
            o[j] = vec_fma(weight, vec_load(values + t * stride + j * WIDTH), o[j]);
    }
    for (int j = 0; j < n; j++)
        vec_store(out + j * WIDTH, o[j]);
}

static void fold(struct ops_fold *f, const float *q, const float *keys, const float *values,
                 uint32_t head_dim, uint32_t n)
{
    _Alignas(64) float w[KV_PAGE_TOKENS];
    scores(q, keys, head_dim, n, w);
    for (uint32_t t = n; t < KV_PAGE_TOKENS; t++)
        w[t] = -ARITH_INF; /* weight 0 */
    struct vec top = vec_load(w);
    for (uint32_t t = WIDTH; t < KV_PAGE_TOKENS; t += WIDTH)
        top = vec_max(top, vec_load(w + t));
    float page_max = vec_largest(top), max = f->max > page_max ? f->max : page_max;
    float factor = arith_exp2(f->max - max);
    struct vec lanes[LANE_VECS];
    for (int j = 0; j < LANE_VECS; j++)
        lanes[j] = vec_all(0.0f);
    for (uint32_t t = 0; t < KV_PAGE_TOKENS; t += WIDTH) {
        struct vec e = vec_exp2(vec_sub(vec_load(w + t), vec_all(max)));
        vec_store(w + t, e);
        uint32_t j = t % ARITH_LANES / WIDTH;
        lanes[j] = vec_add(lanes[j], e);
    }
    f->sum = __builtin_fmaf(f->sum, factor, lanes_sum(lanes));
    f->max = max;
    uint32_t padded = ops_padded(head_dim), d = 0;
    for (; d + 8 * WIDTH <= padded; d += 8 * WIDTH)
        fold_values(f->out + d, factor, w, values + d, padded, n, 8);
    for (; d + 4 * WIDTH <= padded; d += 4 * WIDTH)
        fold_values(f->out + d, factor, w, values + d, padded, n, 4);
    for (; d < padded; d += WIDTH)
        fold_values(f->out + d, factor, w, values + d, padded, n, 1);
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
    .append = append,
    .unpack = unpack,
    .fold = fold,
    .merge = merge,
    .argmax = argmax,
};
