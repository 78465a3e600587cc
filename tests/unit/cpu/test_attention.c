/* Attention over the paged cache against kernels/abi/arith.h taken literally (every bit), and against double.
 */
#include "abi/arith.h"
#include "base/half.h"
#include "base/isa.h"
#include "cpu/attention.h"
#include "cpu/matmul/matmul.h"
#include "support/sanitized.h"

#include <criterion/criterion.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 4200

static const uint32_t positions[] = {0, 1, 15, 63, 64, 65, 127, 128, 1023, 1024, 1025, 4095, 4096, 4199};
#define N_POSITIONS (sizeof positions / sizeof *positions)
#define N_ROWS      (b->n_rows)
#define MAX_ROWS    40

struct bench {
    uint32_t head_dim, ratio, n_kv_heads, n_rows;
    const uint32_t *positions; /* of the rows */
    enum kv_type type;
    struct attend a;
    struct attend_scratch scratch;
    struct slots slots;
    struct step *step;
    void *scratch_memory;
    float *keys, *values; /* [n_kv_heads][N_TOKENS][head_dim], as the cache gives them back */
    float *q, *out;       /* [MAX_ROWS][n_heads * head_dim] */
    const float *sinks;
};

static uint32_t seed;

static float noise(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        sum += (float)(seed >> 8) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7f;
}

static void *aligned(size_t size)
{
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    cr_assert_not_null(p);
    memset(p, 0xff, size); /* NaNs: nothing may be read that was not written */
    return p;
}

/* Turns a row of K or V into the values that the cache type keeps. */
static void store_as(enum kv_type type, float *x, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += ARITH_BLOCK) {
        float block[ARITH_BLOCK] = {0};
        int8_t q[ARITH_BLOCK];
        uint32_t m = n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK;
        memcpy(block, x + first, m * sizeof *x);
        float scale = half_to_float(half_from_float(arith_quantise(block, q)));
        for (uint32_t i = 0; i < m; i++)
            x[first + i] = type == KV_Q8_0   ? (float)q[i] * scale
                           : type == KV_BF16 ? arith_from_bf16(arith_bf16(block[i]))
                                             : half_to_float(half_from_float(block[i]));
    }
}

static void bench_open(struct bench *b, const struct ops *ops, uint32_t head_dim, uint32_t ratio,
                       enum kv_type type)
{
    *b = (struct bench){.head_dim = head_dim, .ratio = ratio, .n_kv_heads = 2, .type = type};
    b->positions = positions;
    b->n_rows = N_POSITIONS;
    seed = head_dim * 100 + ratio;
    b->a.ops = ops;
    b->a.kv = (struct kv_layout){.n_layers = 2, .n_kv_heads = 2, .head_dim = head_dim, .type = type};
    b->a.n_heads = 2 * ratio;
    attend_open(&b->a, N_TOKENS);
    uint32_t n_pages = (N_TOKENS + 63) / 64;
    b->a.pages = aligned(n_pages * kv_page_size(&b->a.kv));
    b->scratch_memory = aligned(attend_scratch_size(&b->a));
    attend_scratch_set(&b->a, &b->scratch, b->scratch_memory);
    cr_assert_eq(slots_open(&b->slots, 1, N_TOKENS, NULL), 0);
    for (uint32_t i = 0; i < n_pages; i++)
        b->slots.tables[i] = (i * 37 + 11) % n_pages; /* n_pages = 66, prime to 37 */
    b->step = calloc(1, sizeof *b->step);
    size_t n = (size_t)N_TOKENS * head_dim;
    b->keys = aligned(2 * n * sizeof(float));
    b->values = aligned(2 * n * sizeof(float));
    b->q = aligned((size_t)MAX_ROWS * 2 * ratio * head_dim * sizeof(float));
    b->out = aligned((size_t)MAX_ROWS * 2 * ratio * head_dim * sizeof(float));
    b->a.step = b->step;
    b->a.slots = &b->slots;
    b->step->n_rows = 1;
    for (uint32_t t = 0; t < N_TOKENS; t++)
        for (uint32_t h = 0; h < 2; h++) {
            float *k = b->keys + h * n + (size_t)t * head_dim, *v = b->values + h * n + (size_t)t * head_dim;
            for (uint32_t d = 0; d < head_dim; d++) {
                k[d] = noise();
                v[d] = noise();
            }
            b->step->rows[0].pos = t;
            attend_append(&b->a, 1, 0, h, k, v);
            store_as(type, k, head_dim);
            store_as(type, v, head_dim);
        }
    for (uint32_t i = 0; i < MAX_ROWS * 2 * ratio * head_dim; i++)
        b->q[i] = noise();
}

/* Gives the rows a window, and just the scratch that it needs. */
static void bench_set_window(struct bench *b, uint32_t window)
{
    b->a.window = window;
    attend_open(&b->a, N_TOKENS);
    free(b->scratch_memory);
    b->scratch_memory = aligned(attend_scratch_size(&b->a));
    attend_scratch_set(&b->a, &b->scratch, b->scratch_memory);
}

static void bench_close(struct bench *b)
{
    free(b->a.pages);
    free(b->scratch_memory);
    slots_close(&b->slots);
    free(b->step);
    free(b->keys);
    free(b->values);
    free(b->q);
    free(b->out);
}

static void bench_run(struct bench *b)
{
    for (uint32_t i = 0; i < N_ROWS; i++)
        b->step->rows[i] = (struct step_row){.pos = b->positions[i]};
    b->step->n_rows = N_ROWS;
    attend_plan(&b->a, b->step, &b->slots, 1);
    size_t stride = 2 * b->ratio * b->head_dim;
    struct attend_layer layer = {1, 1.0f / sqrtf((float)b->head_dim), b->sinks};
    for (uint32_t g = 0; g < b->a.n_groups; g++)
        for (uint32_t h = 0; h < 2; h++)
            attend_group(&b->a, &b->scratch, &layer, g, h, (struct rows){b->q, stride},
                         (struct rows){b->out, stride});
}

/* The text of arith.h, for one query. */
struct literal {
    const float *q, *keys, *values;
    uint32_t head_dim;
    enum kv_type type;
    uint32_t window;
    float cap, sink; /* in base 2 */
    float m, l, o[OPS_MAX_HEAD_DIM];
};

static void to_bf16(uint16_t *to, const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = arith_bf16(from[i]);
}

/* A head as the cache holds it, from what is read back: the blocks that were stored quantise to themselves.
 */
static void quantise_head(const float *x, uint32_t n, int8_t *q, float *scales)
{
    for (uint32_t first = 0; first < n; first += ARITH_BLOCK) {
        float block[ARITH_BLOCK] = {0};
        memcpy(block, x + first, (n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK) * sizeof *x);
        scales[first / ARITH_BLOCK] = arith_quantise(block, q + first);
    }
}

static float literal_score_q8(const struct literal *x, const float *k)
{
    int8_t q[OPS_MAX_HEAD_DIM], keys[OPS_MAX_HEAD_DIM];
    float q_scales[OPS_MAX_HEAD_DIM / ARITH_BLOCK], k_scales[OPS_MAX_HEAD_DIM / ARITH_BLOCK];
    uint32_t n_blocks = (x->head_dim + ARITH_BLOCK - 1) / ARITH_BLOCK;
    quantise_head(x->q, x->head_dim, q, q_scales);
    quantise_head(k, x->head_dim, keys, k_scales);
    for (uint32_t b = 0; b < n_blocks; b++) /* stored rounded; quantising again finds about that */
        k_scales[b] = half_to_float(half_from_float(k_scales[b]));
    return arith_score_q8(q, q_scales, keys, k_scales, n_blocks);
}

static void literal_values_q8(struct literal *x, const float *w, const float *v, uint32_t n)
{
    static int8_t values[ARITH_PAGE][OPS_MAX_HEAD_DIM];
    float scales[ARITH_PAGE][OPS_MAX_HEAD_DIM / ARITH_BLOCK], of_block[ARITH_PAGE];
    uint16_t u[ARITH_PAGE];
    for (uint32_t t = 0; t < n; t++)
        quantise_head(v + (size_t)t * x->head_dim, x->head_dim, values[t], scales[t]);
    for (uint32_t b = 0; b * ARITH_BLOCK < x->head_dim; b++) {
        for (uint32_t t = 0; t < n; t++)
            of_block[t] = half_to_float(half_from_float(scales[t][b]));
        float step = arith_quantise_weights(w, of_block, n, u);
        for (uint32_t d = b * ARITH_BLOCK; d < x->head_dim && d < (b + 1) * ARITH_BLOCK; d++) {
            int32_t sum = 0;
            for (uint32_t t = 0; t < n; t++)
                sum += u[t] * values[t][d];
            x->o[d] = fmaf((float)sum, step, x->o[d]);
        }
    }
}

static float literal_score(const struct literal *x, const float *k)
{
    uint16_t q_bf16[OPS_MAX_HEAD_DIM], k_bf16[OPS_MAX_HEAD_DIM];
    float v[ARITH_LANES] = {0};
    if (x->type == KV_Q8_0)
        return literal_score_q8(x, k);
    if (x->type == KV_BF16) {
        to_bf16(q_bf16, x->q, x->head_dim);
        to_bf16(k_bf16, k, x->head_dim);
        return arith_score_bf16(q_bf16, k_bf16, x->head_dim);
    }
    for (uint32_t d = 0; d < x->head_dim; d++)
        v[d % ARITH_LANES] = fmaf(x->q[d], k[d], v[d % ARITH_LANES]);
    return arith_tree(v);
}

/* Adds n tokens from v on to the sums of all dimensions. */
static void literal_values(struct literal *x, const float *w, const float *v, uint32_t n)
{
    static uint16_t w_bf16[ARITH_PAGE], v_bf16[ARITH_PAGE * OPS_MAX_HEAD_DIM];
    if (x->type == KV_Q8_0) {
        literal_values_q8(x, w, v, n);
        return;
    }
    to_bf16(w_bf16, w, n);
    to_bf16(v_bf16, v, n * x->head_dim);
    for (uint32_t d = 0; d < x->head_dim; d++) {
        if (x->type == KV_BF16)
            x->o[d] = arith_values_bf16(x->o[d], w_bf16, v_bf16 + d, x->head_dim, n);
        else
            for (uint32_t t = 0; t < n; t++)
                x->o[d] = fmaf(w[t], v[(size_t)t * x->head_dim + d], x->o[d]);
    }
}

/* Tokens of the page before `seen` are not. */
static void literal_page(struct literal *x, uint32_t first, uint32_t n, uint32_t seen)
{
    float s[ARITH_PAGE], w[ARITH_PAGE] = {0}, top = x->m, lanes[ARITH_LANES] = {0};
    for (uint32_t t = 0; t < n; t++) {
        s[t] = literal_score(x, x->keys + (size_t)(first + t) * x->head_dim);
        s[t] = x->cap > 0 ? arith_cap(s[t], x->cap) : s[t];
        s[t] = first + t < seen ? -INFINITY : s[t];
        top = s[t] > top ? s[t] : top;
    }
    float f = arith_exp2(x->m - top);
    for (uint32_t t = 0; t < n; t++) {
        w[t] = arith_exp2(s[t] - top);
        lanes[t % ARITH_LANES] = fmaf(w[t], 1.0f, lanes[t % ARITH_LANES]);
    }
    x->l = fmaf(x->l, f, arith_tree(lanes));
    x->m = top;
    for (uint32_t d = 0; d < x->head_dim; d++)
        x->o[d] = x->o[d] * f;
    literal_values(x, w, x->values + (size_t)first * x->head_dim, n);
}

static void literal_attention(const struct literal *of, uint32_t pos, float *out)
{
    uint32_t head_dim = of->head_dim;
    static struct literal parts[64];
    uint32_t split = arith_split(pos, of->window), n = 0;
    uint32_t seen = of->window && pos >= of->window ? pos - of->window + 1 : 0;
    for (uint32_t first = seen / split * split; first <= pos; first += split, n++) {
        parts[n] = *of;
        parts[n].m = -INFINITY;
        for (uint32_t t = first; t <= pos && t < first + split; t += ARITH_PAGE)
            if (t + ARITH_PAGE > seen)
                literal_page(&parts[n], t, pos + 1 - t < ARITH_PAGE ? pos + 1 - t : ARITH_PAGE, seen);
    }
    float top = of->sink;
    for (uint32_t i = 0; i < n; i++)
        top = parts[i].m > top ? parts[i].m : top;
    float sum = arith_exp2(of->sink - top);
    memset(out, 0, head_dim * sizeof *out);
    for (uint32_t i = 0; i < n; i++) {
        float e = arith_exp2(parts[i].m - top);
        sum = fmaf(e, parts[i].l, sum);
        for (uint32_t d = 0; d < head_dim; d++)
            out[d] = fmaf(e, parts[i].o[d], out[d]);
    }
    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = out[d] * (1.0f / sum);
}

/* What the rules say of all rows, as b->out has them. */
static void literal_rows(const struct bench *b, float *expected)
{
    uint32_t n = b->head_dim, n_heads = 2 * b->ratio;
    float scaled[OPS_MAX_HEAD_DIM];
    float whole = 1.0f / sqrtf((float)n) * ARITH_LOG2E;
    whole = b->a.cap > 0 ? whole * (2.0f / b->a.cap) : whole;
    for (uint32_t i = 0; i < N_ROWS * n_heads; i++) {
        float factor = b->a.temperatures ? whole * b->a.temperatures[b->positions[i / n_heads]] : whole;
        uint32_t kv = i % n_heads / b->ratio;
        for (uint32_t d = 0; d < n; d++)
            scaled[d] = b->q[(size_t)i * n + d] * factor;
        struct literal of = {.q = scaled,
                             .keys = b->keys + (size_t)kv * N_TOKENS * n,
                             .values = b->values + (size_t)kv * N_TOKENS * n,
                             .head_dim = n,
                             .window = b->a.window,
                             .cap = b->a.cap * ARITH_LOG2E,
                             .sink = b->sinks ? b->sinks[i % n_heads] * ARITH_LOG2E : -INFINITY,
                             .type = b->type};
        literal_attention(&of, b->positions[i / n_heads], expected + (size_t)i * n);
    }
}

static void check_rows(const struct bench *b, const float *expected, const char *what)
{
    uint32_t n = b->head_dim, n_heads = 2 * b->ratio;
    for (uint32_t i = 0; i < N_ROWS * n_heads; i++)
        cr_assert(memcmp(expected + (size_t)i * n, b->out + (size_t)i * n, n * sizeof(float)) == 0,
                  "%s, head_dim %u, ratio %u, position %u, head %u", what, n, b->ratio,
                  b->positions[i / n_heads], i % n_heads);
}

static void check_literal(const struct bench *b, const char *what)
{
    float *expected = aligned((size_t)N_ROWS * 2 * b->ratio * b->head_dim * sizeof *expected);
    literal_rows(b, expected);
    check_rows(b, expected, what);
    free(expected);
}

static void check_double(const struct bench *b)
{
    uint32_t n = b->head_dim, n_heads = 2 * b->ratio;
    double *w = malloc(N_TOKENS * sizeof *w);
    for (uint32_t i = 0; i < N_ROWS * n_heads; i++) {
        uint32_t pos = b->positions[i / n_heads];
        size_t base = (size_t)(i % n_heads / b->ratio) * N_TOKENS * n;
        double sum = 0, worst = 0;
        for (uint32_t t = 0; t <= pos; t++) {
            double s = 0;
            for (uint32_t d = 0; d < n; d++)
                s += (double)b->q[(size_t)i * n + d] * b->keys[base + (size_t)t * n + d];
            w[t] = exp(s / sqrt(n));
            sum += w[t];
        }
        for (uint32_t d = 0; d < n; d++) {
            double o = 0;
            for (uint32_t t = 0; t <= pos; t++)
                o += w[t] / sum * b->values[base + (size_t)t * n + d];
            worst = fmax(worst, fabs(o - b->out[(size_t)i * n + d]));
        }
        cr_assert(worst < (b->type == KV_F16 ? 3e-6 : 2e-2), "head_dim %u, ratio %u, position %u: off by %g",
                  n, b->ratio, pos, worst);
    }
    free(w);
}

static const struct ops *table(const char *isa)
{
    const struct matmul_kernels *kernels = matmul_find(isa);
    return kernels ? ops_find(kernels->name) : NULL;
}

static void check_shapes_of(const struct ops *ops, const char *isa, enum kv_type type)
{
    static const uint32_t shapes[][2] = {{32, 1},  {64, 4},  {80, 7}, {96, 8},
                                         {128, 2}, {128, 1}, {6, 3},  {256, 1}};
    for (size_t i = type % SANITIZED_STRIDE(2); i < sizeof shapes / sizeof *shapes;
         i += SANITIZED_STRIDE(2)) {
        struct bench b;
        bench_open(&b, ops, shapes[i][0], shapes[i][1], type);
        bench_run(&b);
        check_literal(&b, isa);
        if (strcmp(isa, "auto") == 0)
            check_double(&b);
        bench_close(&b);
    }
}

static void check_shapes(const char *isa, enum kv_type type)
{
    const struct ops *ops = table(isa);
    if (ops)
        check_shapes_of(ops, isa, type);
    else
        cr_log_info("this CPU has no %s", isa);
}

Test(attention, f16_cache_equals_the_rules_in_every_bit_and_double_closely)
{
    check_shapes("auto", KV_F16);
}

Test(attention, q8_cache_equals_the_rules_in_every_bit_and_double_roughly)
{
    check_shapes("auto", KV_Q8_0);
}

Test(attention, bf16_cache_equals_the_rules_in_every_bit_and_double_roughly)
{
    check_shapes("auto", KV_BF16);
}

/* For a CPU that has no instruction for bf16. */
Test(attention, bf16_by_ordinary_products_equals_the_rules_in_every_bit)
{
#if defined(__x86_64__)
    if (table("avx512vnni"))
        check_shapes_of(&ops_avx512, "avx512 without bf16", KV_BF16);
#endif
    check_shapes("avx2", KV_BF16);
}

Test(attention, avx2_equals_the_rules_in_every_bit)
{
    check_shapes("avx2", KV_F16);
    check_shapes("avx2", KV_Q8_0);
}

Test(attention, scalar_equals_the_rules_in_every_bit)
{
    for (int type = 0; type < KV_N_TYPES; type++) {
        struct bench b;
        bench_open(&b, &ops_scalar, 80, 2, (enum kv_type)type);
        bench_run(&b);
        check_literal(&b, "scalar");
        bench_close(&b);
    }
}

/* Everything that a kind of attention may have, alone and together, with one of the types or with --all each;
 * heads up to the longest. */
static void check_kinds(const struct ops *ops, const char *isa, enum kv_type type, uint32_t n_shapes)
{
    static const uint32_t shapes[][2] = {{64, 4}, {512, 1}, {192, 2}, {32, 3}};
    static float sinks[8], temperatures[N_TOKENS];
    const uint32_t stride = SAMPLED_STRIDE(3, 7);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        temperatures[i] = 1.0f + (float)(i / 16) * 0.01f;
    for (uint32_t i = 0; i < 8; i++)
        sinks[i] = (float)i * 1.5f - 3.0f;
    for (uint32_t i = 0; i < n_shapes; i++)
        for (uint32_t what = i || n_shapes == 1 ? 15 : 1 + type % stride; what < 16; what += stride) {
            struct bench b;
            bench_open(&b, ops, shapes[i][0], shapes[i][1], type);
            bench_set_window(&b, what & 1 ? 100 : 0);
            b.a.cap = what & 2 ? 0.8f : 0;
            b.sinks = what & 4 ? sinks : NULL;
            b.a.temperatures = what & 8 ? temperatures : NULL;
            b.a.by_floats = what % 2;
            bench_run(&b);
            check_literal(&b, isa);
            bench_close(&b);
        }
}

Test(attention, windows_caps_sinks_and_temperatures_follow_the_rules_in_every_bit)
{
    static const char *const isas[] = {"auto", "avx2", "scalar"};
    for (int i = 0; i < 3; i++)
        for (int type = 0; type < KV_N_TYPES && table(isas[i]); type++)
            check_kinds(table(isas[i]), isas[i], (enum kv_type)type, i ? 1 : 4);
}

/* Rows of a prompt, one after the other: batches and stages of every number of queries, of which some see
 * more of the last page than others; with 40 heads to a kv head more than go through the stages together. */
Test(attention, rows_of_a_prompt_follow_the_rules_in_every_bit_whatever_their_number)
{
    static const uint32_t heads[][2] = {{64, 1}, {128, 3}, {72, 2}, {32, 40}};
    static const char *const isas[] = {"auto", "avx2", "scalar"};
    uint32_t rows[MAX_ROWS];
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        rows[i] = 165 + i; /* the page ends at 191 */
    for (uint32_t i = 0; i < 3 * KV_N_TYPES * 4; i++) {
        struct bench b;
        const char *isa = isas[i % 3];
        if (!table(isa))
            continue;
        bench_open(&b, table(isa), heads[i / 3 % 4][0], heads[i / 3 % 4][1], (enum kv_type)(i / 12));
        b.positions = rows;
        b.n_rows = MAX_ROWS; /* a row's values do not depend on how many there are */
        float *expected = aligned((size_t)MAX_ROWS * 2 * b.ratio * b.head_dim * sizeof *expected);
        literal_rows(&b, expected);
        for (b.n_rows = 1 + i / 3 % SANITIZED_STRIDE(6); b.n_rows <= MAX_ROWS;
             b.n_rows += b.n_rows < 19 && i % 3 < 2 ? SANITIZED_STRIDE(6) : 7) {
            for (int way = 0; way < (b.type == KV_BF16 ? 2 : 1); way++) {
                b.a.by_floats = way;
                bench_run(&b);
                check_rows(&b, expected, way ? "by floats" : isa);
            }
        }
        free(expected);
        bench_close(&b);
    }
}

/* Deals the splits of one row, whose window is `window`, to two members. */
static void check_splits(uint32_t window, uint32_t expected, bool dealt)
{
    static const uint32_t pos[] = {4199};
    struct bench b;
    bench_open(&b, table("auto"), 64, 2, KV_F16);
    b.positions = pos;
    b.n_rows = 1;
    bench_set_window(&b, window);
    void *shared = aligned(attend_shared_size(&b.a, 2));
    attend_shared_set(&b.a, 2, shared);
    b.step->rows[0] = (struct step_row){.pos = pos[0]};
    b.step->n_rows = 1;
    attend_plan(&b.a, b.step, &b.slots, 2);
    cr_assert_eq(b.a.n_splits, dealt ? expected : 0, "window %u: %u splits", window, b.a.n_splits);
    struct attend_layer layer = {1, 1.0f / 8, NULL};
    struct rows q = {b.q, 2 * b.ratio * 64}, out = {b.out, 2 * b.ratio * 64};
    for (uint32_t h = 0; h < 2 && dealt; h++) {
        for (uint32_t i = 0; i < b.a.n_splits; i++)
            attend_split(&b.a, &b.scratch, &layer, i, h, q);
        attend_merge(&b.a, &layer, 0, h, out);
    }
    if (dealt)
        check_literal(&b, "dealt");
    free(shared);
    bench_close(&b);
}

Test(attention, a_window_deals_the_splits_that_it_sees_and_no_others)
{
    check_splits(0, 17, true);    /* splits of 256 tokens */
    check_splits(2048, 17, true); /* of 128 tokens; the window begins and ends inside one */
    check_splits(1000, 16, true); /* of 64 */
    check_splits(600, 10, true);
    check_splits(100, 0, false); /* a barrier would cost more */
}

/* Rows of a prompt far behind their window: groups of up to 32 rows, of which the first and the last see
 * other splits; 1,024 and 1,025 lie where splits double. */
Test(attention, behind_a_window_rows_keep_its_splits_in_every_bit)
{
    static const uint32_t windows[] = {1, 64, 65, 1000, 1024, 1025, 4096};
    uint32_t rows[MAX_ROWS];
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        rows[i] = N_TOKENS - 20 - MAX_ROWS + i; /* 4,160 begins a page */
    for (uint32_t i = 0; i < sizeof windows / sizeof *windows; i += SANITIZED_STRIDE(2)) {
        struct bench b;
        bench_open(&b, table("auto"), 64, 1 + i % 3, (enum kv_type)(i % KV_N_TYPES));
        bench_set_window(&b, windows[i]);
        b.positions = rows;
        b.n_rows = MAX_ROWS;
        bench_run(&b);
        check_literal(&b, "behind a window");
        bench_close(&b);
    }
}

static uint32_t random_bits(void)
{
    uint32_t high = seed = seed * 1664525u + 1013904223u;
    seed = seed * 1664525u + 1013904223u;
    return (high & 0xffff0000u) | seed >> 16;
}

/* A float whose exponent is drawn from 0 (subnormal) to 255 (infinite, NaN), mostly where sums of products
 * meet the ends of the range. */
static uint32_t random_float(void)
{
    static const uint32_t exponents[] = {0,  1,  2,   12,  24,  40,  62,  63, 64,
                                         65, 75, 100, 127, 128, 190, 254, 255};
    uint32_t bits = random_bits(), n = sizeof exponents / sizeof *exponents;
    return (bits & 0x807fffffu) | exponents[random_bits() % n] << 23;
}

Test(attention, bf16_rounding_is_the_same_everywhere)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512vnni"};
    struct kv_layout kv = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .type = KV_BF16};
    _Alignas(64) uint16_t q[32];
    float x[16];
    seed = 5;
    for (int i = 0; i < 60000; i++) {
        for (int d = 0; d < 16; d++)
            x[d] = arith_from_bits(i % 3 ? random_float() : random_float() & 0xffff8000u); /* also ties */
        for (size_t k = 0; k < 3; k++) {
            const struct ops *ops = table(isas[k]);
            if (!ops)
                continue;
            ops->query(&kv, NULL, q, x, 1.0f);
            for (int d = 0; d < 16; d++)
                cr_assert_eq(q[d], arith_bf16(x[d]), "%s: %08x to %04x, should be %04x", ops->name,
                             arith_to_bits(x[d]), q[d], arith_bf16(x[d]));
        }
    }
    cr_assert_eq(arith_bf16(0x1.01p0f), 0x3f80, "a tie goes to even");
    cr_assert_eq(arith_bf16(0x1.03p0f), 0x3f82, "a tie goes to even");
    cr_assert_eq(arith_bf16(-0x1p-127f), 0x8000, "a subnormal number is zero");
    cr_assert_eq(arith_bf16(0x1.ffp127f), 0x7f80, "too large is infinite");
}

#if defined(__x86_64__)
/* The smallest normal number: the rule leaves open whether what would round to it is zero. */
static bool at_the_edge(float x)
{
    return (arith_to_bits(x) & 0x7fffffffu) == 0x00800000u;
}

static bool same_number(float a, float b)
{
    return arith_to_bits(a) == arith_to_bits(b) || (a != a && b != b);
}

__attribute__((target("avx512f,avx512bf16"))) static void dot_by_instruction(float *sums, const uint32_t *a,
                                                                             const uint32_t *b)
{
    __m512 r = _mm512_dpbf16_ps(_mm512_loadu_ps(sums), (__m512bh)_mm512_loadu_si512(a),
                                (__m512bh)_mm512_loadu_si512(b));
    _mm512_storeu_ps(sums, r);
}

Test(attention, the_instruction_for_bf16_is_two_flushed_products)
{
    if (!isa_has(ISA_AVX512_BF16)) {
        cr_log_info("this CPU has no avx512bf16");
        return;
    }
    seed = 11;
    for (int i = 0; i < 200000; i++) {
        uint32_t a[16], b[16], n_edges = 0;
        float sums[16], before[16];
        for (int l = 0; l < 16; l++) {
            a[l] = random_float() >> 16 | (random_float() & 0xffff0000u);
            b[l] = random_float() >> 16 | (random_float() & 0xffff0000u);
            before[l] = sums[l] = arith_from_bits(random_float());
        }
        dot_by_instruction(sums, a, b);
        for (int l = 0; l < 16; l++) {
            float first =
                arith_fma_flushed(arith_from_bf16(a[l] >> 16), arith_from_bf16(b[l] >> 16), before[l]);
            float r =
                arith_fma_flushed(arith_from_bf16(a[l] & 0xffff), arith_from_bf16(b[l] & 0xffff), first);
            if (at_the_edge(first) || at_the_edge(r))
                n_edges++;
            else
                cr_assert(same_number(r, sums[l]), "%08x * %08x + %a: %a, should be %a", a[l], b[l],
                          before[l], sums[l], r);
        }
        cr_assert_lt(n_edges, 16);
    }
}
#endif

/* The other operations of a table against arith.h, over lengths with every kind of remainder. */
static void check_table(const struct ops *ops)
{
    float x[301], y[301], bias[301], out[301];
    for (uint32_t n = 1; n <= 300; n += n < 70 ? 1 : 23) {
        for (uint32_t i = 0; i < n; i++) {
            x[i] = noise() * 8;
            y[i] = noise();
            bias[i] = noise();
        }
        float r = arith_rms_inverse(x, n, 1e-6f);
        cr_assert_eq(ops->rms_inverse(x, n, 1e-6f), r);
        ops->swiglu(out, x, y, n, r, bias, NULL);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], arith_silu(x[i] * r + bias[i]) * (y[i] * r), "%s swiglu %u", ops->name, i);
        ops->silu(out, x, n);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], arith_silu(x[i]), "%s silu %u", ops->name, i);
        memcpy(out, y, n * sizeof *out);
        ops->residual(out, x, n, r, NULL);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], y[i] + x[i] * r, "%s residual %u", ops->name, i);
        ops->store(out, x, n, r, bias);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], x[i] * r + bias[i], "%s store %u", ops->name, i);
        memcpy(out, x, n * sizeof *out);
        ops->norm_head(out, y, n, 1e-5f);
        r = arith_rms_inverse(x, n, 1e-5f);
        for (uint32_t i = 0; i < n; i++)
            cr_assert_eq(out[i], x[i] * r * y[i], "%s norm_head %u", ops->name, i);
    }
}

static void check_rope(const struct ops *ops, bool neox)
{
    float x[256], y[256], cosines[128], sines[128];
    for (uint32_t dim = 2; dim <= 256; dim += 2) {
        uint32_t half = dim / 2;
        for (uint32_t i = 0; i < 256; i++)
            x[i] = y[i] = noise();
        for (uint32_t i = 0; i < half; i++) {
            cosines[i] = cosf((float)i);
            sines[i] = sinf((float)i);
        }
        ops->rope(x, cosines, sines, dim, neox);
        for (uint32_t i = 0; i < half; i++)
            arith_rope(&y[neox ? i : 2 * i], &y[neox ? half + i : 2 * i + 1], cosines[i], sines[i]);
        cr_assert(memcmp(x, y, sizeof x) == 0, "%s rope %u", ops->name, dim);
    }
}

static void check_argmax(const struct ops *ops)
{
    static float x[5000];
    for (uint32_t n = 1; n < 5000; n = n * 2 + 3) {
        for (uint32_t i = 0; i < n; i++)
            x[i] = noise();
        x[n * 2 / 3] = 9.0f;
        x[n - 1] = 9.0f; /* a tie goes to the smaller id */
        cr_assert_eq(ops->argmax(x, n), (int32_t)(n * 2 / 3));
        x[n / 2] = NAN;
        cr_assert_eq(ops->argmax(x, n), -1);
        x[n / 2] = -INFINITY;
        cr_assert_eq(ops->argmax(x, n), -1);
    }
}

Test(operations, every_table_equals_the_rules_in_every_bit)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512vnni"};
    for (size_t i = 0; i < 3; i++) {
        const struct ops *ops = table(isas[i]);
        if (!ops)
            continue;
        seed = 7;
        check_table(ops);
        check_rope(ops, true);
        check_rope(ops, false);
        check_argmax(ops);
    }
}
