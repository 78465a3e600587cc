/* Attention over the paged cache against kernels/arith.h taken literally (every bit), and against double. */
#include "arith.h"
#include "half.h"
#include "cpu/attend.h"
#include "cpu/matmul.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_TOKENS 4200

static const uint32_t positions[] = {0, 1, 15, 63, 64, 65, 127, 128, 1023, 1024, 1025, 4095, 4096, 4199};
#define N_ROWS (sizeof positions / sizeof *positions)

struct bench {
    uint32_t head_dim, ratio, n_kv_heads;
    enum kv_type type;
    struct attend a;
    struct attend_scratch scratch;
    struct slots slots;
    struct step *step;
    void *scratch_memory;
    float *keys, *values; /* [n_kv_heads][N_TOKENS][head_dim], as the cache gives them back */
    float *q, *out;       /* [N_ROWS][n_heads * head_dim] */
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

/* What the cache type makes of a row of K or V. */
static void store_as(enum kv_type type, float *x, uint32_t n)
{
    for (uint32_t first = 0; first < n; first += ARITH_BLOCK) {
        float block[ARITH_BLOCK] = {0};
        int8_t q[ARITH_BLOCK];
        uint32_t m = n - first < ARITH_BLOCK ? n - first : ARITH_BLOCK;
        memcpy(block, x + first, m * sizeof *x);
        float scale = half_to_float(half_from_float(arith_quantise(block, q)));
        for (uint32_t i = 0; i < m; i++)
            x[first + i] = type == KV_Q8_0 ? (float)q[i] * scale : half_to_float(half_from_float(block[i]));
    }
}

static void bench_open(struct bench *b, const struct ops *ops, uint32_t head_dim, uint32_t ratio,
                       enum kv_type type)
{
    *b = (struct bench){.head_dim = head_dim, .ratio = ratio, .n_kv_heads = 2, .type = type};
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
    b->q = aligned(N_ROWS * 2 * ratio * head_dim * sizeof(float));
    b->out = aligned(N_ROWS * 2 * ratio * head_dim * sizeof(float));
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
    for (uint32_t i = 0; i < N_ROWS * 2 * ratio * head_dim; i++)
        b->q[i] = noise();
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
        b->step->rows[i] = (struct step_row){.pos = positions[i]};
    b->step->n_rows = N_ROWS;
    attend_plan(&b->a, b->step, &b->slots, 1);
    size_t stride = 2 * b->ratio * b->head_dim;
    for (uint32_t g = 0; g < b->a.n_groups; g++)
        for (uint32_t h = 0; h < 2; h++)
            attend_group(&b->a, &b->scratch, 1, g, h, 1.0f / sqrtf((float)b->head_dim),
                         (struct rows){b->q, stride}, (struct rows){b->out, stride});
}

/* The text of arith.h, for one query. */
struct literal {
    const float *q, *keys, *values;
    uint32_t head_dim;
    float m, l, o[OPS_MAX_HEAD_DIM];
};

static void literal_page(struct literal *x, uint32_t first, uint32_t n)
{
    float s[ARITH_PAGE], w[ARITH_PAGE] = {0}, top = x->m, lanes[ARITH_LANES] = {0};
    for (uint32_t t = 0; t < n; t++) {
        const float *k = x->keys + (size_t)(first + t) * x->head_dim;
        float v[ARITH_LANES] = {0};
        for (uint32_t d = 0; d < x->head_dim; d++)
            v[d % ARITH_LANES] = fmaf(x->q[d], k[d], v[d % ARITH_LANES]);
        s[t] = arith_tree(v);
        top = s[t] > top ? s[t] : top;
    }
    float f = arith_exp2(x->m - top);
    for (uint32_t t = 0; t < n; t++) {
        w[t] = arith_exp2(s[t] - top);
        lanes[t % ARITH_LANES] = fmaf(w[t], 1.0f, lanes[t % ARITH_LANES]);
    }
    x->l = fmaf(x->l, f, arith_tree(lanes));
    x->m = top;
    for (uint32_t d = 0; d < x->head_dim; d++) {
        x->o[d] = x->o[d] * f;
        for (uint32_t t = 0; t < n; t++)
            x->o[d] = fmaf(w[t], x->values[(size_t)(first + t) * x->head_dim + d], x->o[d]);
    }
}

static void literal_attention(const float *q, const float *keys, const float *values, uint32_t head_dim,
                              uint32_t pos, float *out)
{
    static struct literal parts[64];
    uint32_t split = arith_split(pos), n = 0;
    for (uint32_t first = 0; first <= pos; first += split, n++) {
        parts[n] = (struct literal){.q = q, .keys = keys, .values = values, .head_dim = head_dim};
        parts[n].m = -INFINITY;
        for (uint32_t t = first; t <= pos && t < first + split; t += ARITH_PAGE)
            literal_page(&parts[n], t, pos + 1 - t < ARITH_PAGE ? pos + 1 - t : ARITH_PAGE);
    }
    float top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        top = parts[i].m > top ? parts[i].m : top;
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

static void check_literal(const struct bench *b, const char *what)
{
    uint32_t n = b->head_dim, n_heads = 2 * b->ratio;
    float scaled[OPS_MAX_HEAD_DIM], expected[OPS_MAX_HEAD_DIM];
    float factor = 1.0f / sqrtf((float)n) * ARITH_LOG2E;
    for (uint32_t i = 0; i < N_ROWS * n_heads; i++) {
        uint32_t kv = i % n_heads / b->ratio;
        for (uint32_t d = 0; d < n; d++)
            scaled[d] = b->q[(size_t)i * n + d] * factor;
        literal_attention(scaled, b->keys + (size_t)kv * N_TOKENS * n, b->values + (size_t)kv * N_TOKENS * n,
                          n, positions[i / n_heads], expected);
        cr_assert(memcmp(expected, b->out + (size_t)i * n, n * sizeof(float)) == 0,
                  "%s, head_dim %u, ratio %u, position %u, head %u", what, n, b->ratio,
                  positions[i / n_heads], i % n_heads);
    }
}

static void check_double(const struct bench *b)
{
    uint32_t n = b->head_dim, n_heads = 2 * b->ratio;
    double *w = malloc(N_TOKENS * sizeof *w);
    for (uint32_t i = 0; i < N_ROWS * n_heads; i++) {
        uint32_t pos = positions[i / n_heads];
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
        cr_assert(worst < 3e-6, "head_dim %u, ratio %u, position %u: off by %g", n, b->ratio, pos, worst);
    }
    free(w);
}

static const struct ops *table(const char *isa)
{
    const struct matmul_kernels *kernels = matmul_find(isa, NULL);
    return kernels ? ops_find(kernels->name) : NULL;
}

static void check_shapes(const char *isa, enum kv_type type)
{
    static const uint32_t shapes[][2] = {{32, 1},  {64, 4},  {80, 7}, {96, 8},
                                         {128, 2}, {128, 1}, {6, 3},  {256, 1}};
    const struct ops *ops = table(isa);
    if (!ops) {
        cr_log_info("this CPU has no %s", isa);
        return;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct bench b;
        bench_open(&b, ops, shapes[i][0], shapes[i][1], type);
        bench_run(&b);
        check_literal(&b, isa);
        if (strcmp(isa, "auto") == 0)
            check_double(&b);
        bench_close(&b);
    }
}

Test(attention, f16_cache_equals_the_rules_in_every_bit_and_double_closely)
{
    check_shapes("auto", KV_F16);
}

Test(attention, q8_cache_equals_the_rules_in_every_bit_and_double_closely)
{
    check_shapes("auto", KV_Q8_0);
}

Test(attention, avx2_equals_the_rules_in_every_bit)
{
    check_shapes("avx2", KV_F16);
    check_shapes("avx2", KV_Q8_0);
}

Test(attention, scalar_equals_the_rules_in_every_bit)
{
    struct bench b;
    bench_open(&b, &ops_scalar, 80, 2, KV_F16);
    bench_run(&b);
    check_literal(&b, "scalar");
    bench_close(&b);
}

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
