#include "product_node_case.h"
#include "cpu/matmul/matmul.h"
#include "cpu/ops/ops.h"
#include "cuda/pack.h"
#include "device/dependency.h"
#include "abi/node_args.h"
#include "gguf/quant.h"
#include "support/models/random_blocks.h"
#include "abi/schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 24

static const uint32_t types[] = {
    QUANT_Q4_K,    QUANT_Q6_K,   QUANT_Q8_0,  QUANT_Q5_K,  QUANT_Q5_0,         QUANT_Q4_0,   QUANT_Q2_K,
    QUANT_Q3_K,    QUANT_Q4_1,   QUANT_Q5_1,  QUANT_F16,   QUANT_BF16,         QUANT_F32,    QUANT_MXFP4,
    QUANT_IQ4_NL,  QUANT_IQ3_S,  QUANT_TQ1_0, QUANT_TQ2_0, QUANT_NVFP4_SCALED, QUANT_IQ4_XS, QUANT_IQ3_XXS,
    QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S, QUANT_IQ1_S, QUANT_IQ1_M};
#define N_TYPES (sizeof types / sizeof *types)

static uint64_t state;

static uint32_t between(int min, int max)
{
    return (uint32_t)random_between(&state, min, max);
}

struct node_case {
    struct simt_machine *machine;
    const struct product_node *of;
    uint32_t type, n, k, n_rows, n_logits, n_blocks, in_stride, out_stride;
    uint32_t n_experts, n_used; /* MUL_MAT_ID: n is of all experts; else 0 */
    bool own_input;
    uint32_t n_heads, col, keep; /* MUL_MAT_HEADS: n is of all heads; else 0 */
    struct decoder_matrix m;
    uint8_t *src, *tiles;
    float *in, *out, *want, *factors, *bias, *choice;
    int32_t *tokens;
    struct step *step;
    uint32_t *fault;
};

/* Zeroed memory that the kernel may read, and write unless it is constant. */
static void *take(struct node_case *c, size_t size, bool constant, const char *name)
{
    void *p = aligned_alloc(128, (size + 127) / 128 * 128);
    if (!p)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(p, 0, size);
    simt_map(c->machine, p, size, constant ? SIMT_MAP_READ_ONLY : 0, name);
    return p;
}

static void open_weights(struct node_case *c)
{
    struct random_blocks r;
    size_t size = quant_size(c->type, (size_t)c->n * c->k);
    int rc = cuda_pack_layout(c->type, c->n, c->k, &c->m, NULL);
    assert(rc == 0);
    c->src = malloc(size);
    c->tiles = take(c, cuda_pack_size(&c->m), true, "tiles");
    if (!c->src)
        abort();
    random_blocks_init(&r, c->type, 0.5f, state);
    random_blocks_fill(&r, c->src, (size_t)c->n * c->k);
    block_factors_put(c->type, c->src, c->n, c->k);
    cuda_pack(c->type, &c->m, c->src, c->tiles, 0, c->m.n_tiles);
    c->m.tiles = (uint64_t)(uintptr_t)c->tiles;
}

/* Makes the shape that of experts, all of whose rows lie in one matrix. */
static void mix(struct node_case *c)
{
    uint32_t n = TILE_ROWS * between(1, 3);
    c->n_experts = between(1, 6);
    c->n_used = between(1, (int)(c->n_experts < 4 ? c->n_experts : 4));
    c->own_input = between(0, 1);
    c->n = n * c->n_experts;
    c->n_rows = between(1, 5);
    c->in_stride = c->k * (c->own_input ? c->n_used : 1) + 4 * between(0, 3);
    c->out_stride = n * c->n_used + 4 * between(0, 3);
}

/* Makes the shape that of heads, each with its part of a row. */
static void part(struct node_case *c)
{
    uint32_t n = TILE_ROWS * between(1, 3);
    c->n_heads = between(1, 5);
    c->col = 4 * between(0, 3);
    c->keep = 4 * between(0, 3);
    c->n = n * c->n_heads;
    c->in_stride = (c->col + c->k + c->keep) * c->n_heads + 4 * between(0, 3);
    c->out_stride = (n + c->keep) * c->n_heads + 4 * between(0, 3);
}

/* Chooses experts for every row, ascending, as ROUTE does. */
static void choose(struct node_case *c)
{
    for (uint32_t row = 0; row < MAX_ROWS; row++) {
        float *at = c->choice + (size_t)row * 2 * c->n_used;
        uint32_t left = c->n_used;
        for (uint32_t e = 0; e < c->n_experts && left; e++)
            if (c->n_experts - e == left || between(0, 1)) {
                *at++ = (float)e;
                left--;
            }
    }
}

enum node_shape { ONE, MIXED, PARTED };

static void case_open(struct node_case *c, const struct product_node *of, enum node_shape shape)
{
    static const uint32_t ks[] = {32, 96, 256, 288, 512, 896, 1024, 3072};
    uint64_t seed = of->seed;
    *c = (struct node_case){.machine = simt_open(), .of = of, .type = types[seed % N_TYPES]};
    state = seed;
    (void)random_u64(&state);
    do
        c->k = ks[between(0, of->small ? 4 : 7)];
    while (c->k % quant_traits(c->type)->block);
    c->k = of->k ? of->k : c->k;
    c->n = between(1, 90);
    c->n_rows = between(1, between(0, 1) ? 4 : MAX_ROWS);
    c->n_logits = between(1, (int)c->n_rows);
    c->n_blocks = between(1, 4);
    c->in_stride = c->k + 4 * between(0, 3);
    c->out_stride = (c->n > c->k ? c->n : c->k) + 4 * between(1, 3);
    c->out_stride += 4 - c->out_stride % 4;
    if (shape == MIXED)
        mix(c);
    if (shape == PARTED)
        part(c);
    open_weights(c);
    c->in = take(c, (size_t)MAX_ROWS * c->in_stride * 4, true, "in");
    c->out = take(c, (size_t)MAX_ROWS * c->out_stride * 4, false, "out");
    c->want = calloc(MAX_ROWS * c->out_stride, 4);
    c->factors = take(c, MAX_ROWS * 4, true, "factors");
    c->bias = take(c, c->n * 4, true, "bias");
    c->tokens = take(c, MAX_ROWS * 4, true, "tokens");
    c->step = take(c, sizeof *c->step, true, "step");
    c->fault = take(c, DECODER_LINE * 4, false, "fault");
    c->choice = take(c, (size_t)MAX_ROWS * 2 * (c->n_used + 1) * 4, true, "choice");
    if (!c->machine || !c->want)
        abort();
    for (uint32_t i = 0; i < MAX_ROWS * c->in_stride; i++)
        c->in[i] = of->k && i % c->in_stride == 0 ? 1e3f : random_unit(&state);
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        c->factors[i] = 1.0f + random_unit(&state) * 0.5f;
        c->tokens[i] = (int32_t)between(0, (int)c->n - 1);
    }
    for (uint32_t i = 0; i < c->n; i++)
        c->bias[i] = random_unit(&state);
    c->step->n_rows = c->n_rows;
    c->step->n_logits = c->n_logits;
    for (uint32_t i = 0; i < c->n_logits; i++)
        c->step->logits[i].row = (uint16_t)between(0, (int)c->n_rows - 1);
    choose(c);
}

static void case_close(struct node_case *c)
{
    void *all[] = {c->src,  c->tiles,  c->in,   c->out,   c->want,  c->factors,
                   c->bias, c->tokens, c->step, c->fault, c->choice};
    for (uint32_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    simt_close(c->machine);
}

static int fails(const struct node_case *c, struct simt_report *report, const char *kernel, const char *what)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s %s: %s [%u, %u], %u rows, %u logits, %u blocks", kernel,
             what, quant_traits(c->type)->name, c->n, c->k, c->n_rows, c->n_logits, c->n_blocks);
    return -1;
}

static int launch(struct node_case *c, const char *kernel, const void *args, uint32_t n_threads,
                  uint32_t shared_bytes, int mute, struct simt_report *report)
{
    struct simt_launch l = {.kernel = simt_find_kernel(kernel, c->of->sm),
                            .args = args,
                            .n_threads = n_threads,
                            .n_blocks = c->n_blocks,
                            .shared_bytes = shared_bytes,
                            .seed = c->of->seed,
                            .schedule = SIMT_N_SCHEDULES,
                            .mute = mute};
    return simt_run(c->machine, &l, report);
}

/* --- MUL_MAT --- */

/* y [n_columns][n] = the products of the whole matrix with the columns x. */
static float *multiply(const struct node_case *c, const float *const *x, uint32_t n_rows)
{
    size_t pack = matmul_pack_size(c->type, c->n, c->k), size = matmul_input_size(c->k, n_rows);
    void *packed = aligned_alloc(64, (pack + 63) / 64 * 64), *data = aligned_alloc(64, (size + 63) / 64 * 64);
    float *y = calloc((size_t)n_rows * c->n, 4);
    struct matmul_matrix m;
    struct matmul_input in = {.k = c->k, .n_columns = n_rows, .data = data};
    if (!packed || !data || !y)
        abort();
    matmul_matrix_set(&m, c->type, c->n, c->k, packed);
    matmul_pack(c->type, c->n, c->k, c->src, packed, 0, m.n_groups);
    memset(data, 0, size);
    for (uint32_t panel = 0; panel < matmul_input_panels(&in); panel++) {
        const float *some[MATMUL_PANEL] = {0};
        for (uint32_t i = 0, row = panel * MATMUL_PANEL; i < MATMUL_PANEL && row < n_rows; i++, row++)
            some[i] = x[row];
        matmul_scalar.quantise(&in, panel, 0, matmul_input_supers(&in), some, NULL, matmul_is_float(&m));
    }
    matmul_scalar.run(&m, &in, 0, m.n_groups, y, c->n, NULL);
    free(packed);
    free(data);
    return y;
}

static void want_products(struct node_case *c, bool head, bool gathered, bool factors, bool bias)
{
    uint32_t n_rows = head ? c->n_logits : c->n_rows;
    const float *x[MAX_ROWS];
    for (uint32_t row = 0; row < n_rows; row++)
        x[row] = c->in + (size_t)(gathered ? c->step->logits[row].row : row) * c->in_stride;
    float *y = multiply(c, x, n_rows);
    for (uint32_t row = 0; row < n_rows; row++) {
        uint32_t from = gathered ? c->step->logits[row].row : row;
        ops_scalar.store(c->want + (size_t)row * c->out_stride, y + (size_t)row * c->n, c->n,
                         factors ? c->factors[from] : 1.0f, bias ? c->bias : NULL);
    }
    free(y);
}

static void lay_out(struct node_case *c, struct decoder_shared *s)
{
    uint32_t form = activation_form(c->m.type);
    s->n_stages = between(2, 4);
    uint32_t supers = between(1, SCHEDULE_MAX_SUPERS);
    s->stage_bytes = (c->m.super_bytes * supers + 127) / 128 * 128;
    s->fold = 128;
    s->fold_bytes = product_fold_bytes(supers);
    s->work = s->fold + s->fold_bytes;
    s->work_bytes = (activation_panel_bytes(between(1, 8), c->k, form) + 127) / 128 * 128;
    s->stages = s->work + s->work_bytes;
    s->total = s->stages + s->n_stages * s->stage_bytes;
}

/* Launches the kernel, whose arguments' layout of shared memory it sets, and compares the results. */
static int run_and_close(struct node_case *c, const char *kernel, const void *args, struct decoder_shared *s,
                         int mute, struct simt_report *report)
{
    lay_out(c, s);
    uint32_t n_threads = 32 * between(3, c->of->small ? 5 : NODE_PRODUCT_THREADS / 32);
    int rc = launch(c, kernel, args, n_threads, s->total, mute, report);
    if (rc == 0 && memcmp(c->out, c->want, (size_t)MAX_ROWS * c->out_stride * 4) != 0)
        rc = fails(c, report, kernel, "computed something else");
    if (rc == 0 && c->fault[FLOW_ABORT])
        rc = fails(c, report, kernel, "says that something was out of range");
    case_close(c);
    return rc;
}

int product_node_multiply(const struct product_node *of, int mute, struct simt_report *report)
{
    struct node_case c;
    case_open(&c, of, ONE);
    bool head = between(0, 1), gathered = head && between(0, 1), factors = between(0, 1),
         bias = between(0, 1);
    want_products(&c, head, gathered, factors, bias);
    struct mul_mat_args args = {
        .step = {.step = (uint64_t)(uintptr_t)c.step, .fault = (uint64_t)(uintptr_t)c.fault, .head = head},
        .in = {(uint64_t)(uintptr_t)c.in, c.in_stride, gathered},
        .out = {(uint64_t)(uintptr_t)c.out, c.out_stride, 0},
        .matrix = c.m,
        .bias = bias ? (uint64_t)(uintptr_t)c.bias : 0,
        .factors = factors ? (uint64_t)(uintptr_t)c.factors : 0,
    };
    return run_and_close(&c, "mul_mat", &args, &args.shared, mute, report);
}

/* --- MUL_MAT_ID --- */

static void want_mixed(struct node_case *c, bool factors, bool bias)
{
    uint32_t n = c->n / c->n_experts;
    for (uint32_t row = 0; row < c->n_rows; row++)
        for (uint32_t u = 0; u < c->n_used; u++) {
            size_t first = (size_t)c->choice[row * 2 * c->n_used + u] * n;
            const float *x = c->in + (size_t)row * c->in_stride + (c->own_input ? (size_t)u * c->k : 0);
            float *y = multiply(c, &x, 1);
            ops_scalar.store(c->want + (size_t)row * c->out_stride + (size_t)u * n, y + first, n,
                             factors ? c->factors[row] : 1.0f, bias ? c->bias + first : NULL);
            free(y);
        }
}

int product_node_route(const struct product_node *of, int mute, struct simt_report *report)
{
    struct node_case c;
    case_open(&c, of, MIXED);
    bool factors = between(0, 1), bias = between(0, 1);
    want_mixed(&c, factors, bias);
    struct mul_mat_id_args args = {
        .product = {.step = {.step = (uint64_t)(uintptr_t)c.step, .fault = (uint64_t)(uintptr_t)c.fault},
                    .in = {(uint64_t)(uintptr_t)c.in, c.in_stride, 0},
                    .out = {(uint64_t)(uintptr_t)c.out, c.out_stride, 0},
                    .matrix = c.m,
                    .bias = bias ? (uint64_t)(uintptr_t)c.bias : 0,
                    .factors = factors ? (uint64_t)(uintptr_t)c.factors : 0},
        .choice = {(uint64_t)(uintptr_t)c.choice, 2 * c.n_used, 0},
        .n = c.n / c.n_experts,
        .n_used = c.n_used,
        .own_input = c.own_input,
    };
    return run_and_close(&c, "mul_mat_id", &args, &args.product.shared, mute, report);
}

/* --- MUL_MAT_HEADS --- */

static void want_parted(struct node_case *c)
{
    uint32_t n = c->n / c->n_heads, part = c->col + c->k + c->keep;
    for (uint32_t row = 0; row < c->n_rows; row++)
        for (uint32_t h = 0; h < c->n_heads; h++) {
            const float *x = c->in + (size_t)row * c->in_stride + (size_t)h * part;
            float *to = c->want + (size_t)row * c->out_stride + (size_t)h * (c->keep + n);
            const float *multiplied = x + c->col;
            float *y = multiply(c, &multiplied, 1);
            memcpy(to, x + part - c->keep, c->keep * sizeof *to);
            memcpy(to + c->keep, y + (size_t)h * n, n * sizeof *to);
            free(y);
        }
}

int product_node_parts(const struct product_node *of, int mute, struct simt_report *report)
{
    struct node_case c;
    case_open(&c, of, PARTED);
    want_parted(&c);
    struct mul_mat_heads_args args = {
        .product = {.step = {.step = (uint64_t)(uintptr_t)c.step, .fault = (uint64_t)(uintptr_t)c.fault},
                    .in = {(uint64_t)(uintptr_t)c.in, c.in_stride, 0},
                    .out = {(uint64_t)(uintptr_t)c.out, c.out_stride, 0},
                    .matrix = c.m},
        .n_heads = c.n_heads,
        .n = c.n / c.n_heads,
        .part = c.col + c.k + c.keep,
        .col = c.col,
        .keep = c.keep,
    };
    return run_and_close(&c, "mul_mat_heads", &args, &args.product.shared, mute, report);
}

/* --- EMBED --- */

int product_node_gather(const struct product_node *of, bool bad, int mute, struct simt_report *report)
{
    struct node_case c;
    case_open(&c, of, ONE);
    uint32_t bad_row = between(0, (int)c.n_rows - 1);
    if (bad)
        c.tokens[bad_row] = between(0, 1) ? -1 : (int32_t)c.n;
    for (uint32_t row = 0; row < c.n_rows; row++)
        if (!bad || row != bad_row)
            quant_dequantise(c.type, c.src + (size_t)c.tokens[row] * quant_size(c.type, c.k),
                             c.want + (size_t)row * c.out_stride, c.k);
    struct embed_args args = {
        .step = {.step = (uint64_t)(uintptr_t)c.step, .fault = (uint64_t)(uintptr_t)c.fault},
        .out = {(uint64_t)(uintptr_t)c.out, c.out_stride, 0},
        .matrix = c.m,
        .tokens = (uint64_t)(uintptr_t)c.tokens,
    };
    int rc = launch(&c, "embed", &args, 32 * between(1, 8), 0, mute, report);
    for (uint32_t i = 0; rc == 0 && i < MAX_ROWS * c.out_stride; i++)
        if (memcmp(&c.out[i], &c.want[i], 4) != 0)
            rc = fails(&c, report, "embed", "gathered something else");
    if (rc == 0 && bad && (c.fault[FLOW_ABORT] != DECODER_RANGE || c.fault[FLOW_WHAT] != DECODER_RANGE_TOKEN))
        rc = fails(&c, report, "embed", "passed over a token out of range");
    if (rc == 0 && !bad && c.fault[FLOW_ABORT])
        rc = fails(&c, report, "embed", "says that something was out of range");
    case_close(&c);
    return rc;
}
