/* nodes.c - the kernels of single nodes compared with lib/cpu/ops/ops_scalar.c, bit for bit: odd widths, in
 * place, gathered rows; and their reports of indices out of range. attending.c also has attention and
 * append. */
#include "cpu/ops/ops.h"
#include "simt/emulator/emulator.h"
#include "device/dependency.h"
#include "abi/node_args.h"

#include <stdlib.h>
#include <string.h>

#define ROWS   5
#define STRIDE 1032
#define AT(p)  ((uint64_t)(uintptr_t)(p))

struct bench {
    struct simt_machine *machine;
    struct step *step;
    float *a, *b, *out, *wanted, *gain, *factors;
    uint32_t fault[DECODER_LINE];
    uint32_t noise;
    int failures;
};

static float *room(struct bench *b, size_t n, const char *name)
{
    float *x = aligned_alloc(128, (n * 4 + 255) / 128 * 128);
    if (!x)
        abort(); /* a test tool: nothing sensible is left to do */
    for (size_t i = 0; i < n; i++) {
        b->noise = b->noise * 1664525u + 1013904223u;
        x[i] = ((float)(b->noise >> 8) * 0x1p-24f - 0.5f) * 8.0f;
    }
    simt_map(b->machine, x, n * 4 + 128, 0, name);
    return x;
}

static void bench_open(struct bench *b)
{
    *b = (struct bench){.machine = simt_open(), .step = calloc(1, sizeof(struct step)), .noise = 7};
    if (!b->machine || !b->step)
        abort();
    b->a = room(b, (size_t)ROWS * STRIDE, "a");
    b->b = room(b, (size_t)ROWS * STRIDE, "b");
    b->out = room(b, (size_t)ROWS * STRIDE, "out");
    b->wanted = room(b, (size_t)ROWS * STRIDE, "wanted");
    b->gain = room(b, STRIDE, "gain");
    b->factors = room(b, 32, "factors");
    simt_map(b->machine, b->step, sizeof *b->step, SIMT_MAP_READ_ONLY, "step");
    simt_map(b->machine, b->fault, sizeof b->fault, 0, "fault");
    b->step->n_rows = ROWS;
    b->step->n_logits = 3;
    for (uint32_t i = 0; i < 3; i++)
        b->step->logits[i].row = (uint16_t)(4 - i);
    for (uint32_t i = 0; i < ROWS; i++)
        b->step->rows[i] = (struct step_row){.slot = i % 2, .pos = i};
}

static struct node_step step_of(struct bench *b, bool head)
{
    memset(b->fault, 0, sizeof b->fault);
    return (struct node_step){.step = AT(b->step), .fault = AT(b->fault), .head = head, .node = 42};
}

static void launch(struct bench *b, const char *kernel, const void *args, uint32_t seed)
{
    struct simt_report report;
    struct simt_launch l = {.kernel = simt_find_kernel(kernel, seed % 2 ? 80 : 90),
                            .args = args,
                            .n_threads = 32 * (1 + seed % 5),
                            .n_blocks = 1 + seed % 3,
                            .shared_bytes = 40960,
                            .seed = seed,
                            .schedule = SIMT_N_SCHEDULES,
                            .mute = -1};
    if (simt_run(b->machine, &l, &report) == 0)
        return;
    printf("FAILED  %s: ", kernel);
    simt_report_print(&report, stdout);
    b->failures++;
}

static void expect(struct bench *b, bool right, const char *what, uint32_t number)
{
    if (right)
        return;
    printf("FAILED  %s, %u\n", what, number);
    b->failures++;
}

static bool same_rows(const struct bench *b, uint32_t n_rows, uint32_t width)
{
    for (uint32_t r = 0; r < n_rows; r++)
        if (memcmp(b->out + (size_t)r * STRIDE, b->wanted + (size_t)r * STRIDE, width * 4) != 0)
            return false;
    return true;
}

static struct node_rows rows(const float *x, bool gathered)
{
    return (struct node_rows){.data = AT(x), .stride = STRIDE, .gathered = gathered};
}

/* --- what they compute --- */

static const uint32_t widths[] = {1, 2, 31, 32, 33, 64, 100, 257, 896, 1000};
#define N_WIDTHS (sizeof widths / sizeof widths[0])

static void check_flat(struct bench *b, const char *kernel, uint32_t seed, bool head)
{
    uint32_t width = widths[seed % N_WIDTHS], n = head ? 3 : ROWS;
    struct flat_args args = {.step = step_of(b, head), .a = rows(b->a, head), .b = rows(b->b, false)};
    args.out = rows(b->out, false);
    args.width = width;
    args.factor = 1.75f;
    if (strcmp(kernel, "scale") == 0 && seed % 2)
        args.b.data = 0;
    for (uint32_t r = 0; r < n; r++) {
        const float *x = b->a + (size_t)(head ? 4 - r : r) * STRIDE, *y = b->b + (size_t)r * STRIDE;
        float *to = b->wanted + (size_t)r * STRIDE;
        if (strcmp(kernel, "add") == 0)
            ops_scalar.add(to, x, y, width);
        else if (strcmp(kernel, "mul") == 0)
            ops_scalar.mul(to, x, y, width);
        else if (strcmp(kernel, "gelu") == 0)
            ops_scalar.gelu(to, x, width);
        else if (strcmp(kernel, "scale") == 0)
            ops_scalar.scale(to, x, width, args.b.data ? b->b[0] : args.factor);
        else if (strcmp(kernel, "soft_cap") == 0)
            ops_scalar.soft_cap(to, x, width, args.factor);
        else if (strcmp(kernel, "gate") == 0)
            ops_scalar.store(to, x, width, arith_sigmoid(y[0]), NULL);
        else if (strcmp(kernel, "sigmoid") == 0)
            ops_scalar.sigmoid(to, x, width);
        else if (strcmp(kernel, "swiglu_clamped") == 0)
            ops_scalar.swiglu_clamped(to, x, y, width, 1.0f, NULL, NULL);
        else
            ops_scalar.silu(to, x, width);
    }
    launch(b, kernel, &args, seed);
    expect(b, same_rows(b, n, width), kernel, seed);
}

static void check_norm_rows(struct bench *b, uint32_t seed, bool deferred, bool head)
{
    uint32_t width = widths[seed % N_WIDTHS], n = head ? 3 : ROWS;
    struct rms_norm_args args = {
        .step = step_of(b, head), .in = rows(b->a, head), .out = rows(b->out, false)};
    args.gain = AT(b->gain);
    args.factors = deferred ? AT(b->factors) : 0;
    args.width = args.group = width;
    args.eps = 2e-3f; /* no model's */
    float factors[ROWS];
    for (uint32_t r = 0; r < n; r++) {
        const float *x = b->a + (size_t)(head ? 4 - r : r) * STRIDE;
        float *to = b->wanted + (size_t)r * STRIDE;
        factors[r] = ops_scalar.rms_inverse(x, width, args.eps);
        memcpy(to, x, width * 4);
        if (deferred)
            ops_scalar.mul(to, x, b->gain, width);
        else
            ops_scalar.norm_head(to, b->gain, width, args.eps);
    }
    launch(b, "rms_norm", &args, seed);
    expect(b, same_rows(b, n, width), "rms_norm of rows", seed);
    expect(b, !deferred || memcmp(factors, b->factors, n * 4) == 0, "factors", seed);
}

static void check_norm_heads(struct bench *b, uint32_t seed)
{
    static const uint32_t groups[] = {1, 7, 32, 64, 80, 96, 128};
    uint32_t group = groups[seed % 7], n_heads = 2 + seed % 4;
    memcpy(b->out, b->a, (size_t)ROWS * STRIDE * 4);
    memcpy(b->wanted, b->a, (size_t)ROWS * STRIDE * 4);
    struct rms_norm_args args = {
        .step = step_of(b, false), .in = rows(b->out, false), .out = rows(b->out, false)};
    const float *gain = seed % 4 ? b->gain : NULL;
    args.gain = AT(gain);
    args.width = n_heads * group;
    args.group = group;
    args.eps = 3e-5f;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t h = 0; h < n_heads; h++)
            ops_scalar.norm_head(b->wanted + (size_t)r * STRIDE + h * group, gain, group, args.eps);
    launch(b, "rms_norm", &args, seed);
    expect(b, same_rows(b, ROWS, STRIDE), "rms_norm of heads, in place", seed);
}

static void check_rope(struct bench *b, uint32_t seed)
{
    uint32_t head_dim = 32 * (1 + seed % 4), rope_dim = seed % 3 ? head_dim : head_dim - 16,
             n_heads = 1 + seed % 5;
    struct rope_args args = {.step = step_of(b, false), .in = rows(b->a, false), .out = rows(b->out, false)};
    args.cosines = AT(b->b);
    args.sines = AT(b->gain);
    args.width = n_heads * head_dim;
    args.head_dim = head_dim;
    args.rope_dim = rope_dim;
    args.neox = seed / 2 % 2;
    args.n_ctx = ROWS;
    for (uint32_t r = 0; r < ROWS; r++) {
        float *to = b->wanted + (size_t)r * STRIDE;
        memcpy(to, b->a + (size_t)r * STRIDE, args.width * 4);
        size_t at = (size_t)b->step->rows[r].pos * (rope_dim / 2);
        for (uint32_t h = 0; h < n_heads; h++)
            ops_scalar.rope(to + h * head_dim, b->b + at, b->gain + at, rope_dim, args.neox);
    }
    launch(b, "rope", &args, seed);
    expect(b, same_rows(b, ROWS, args.width), "rope", seed);
}

/* Logits with equal values, and some that are no finite numbers, which move the choice. */
static void odd_logits(struct bench *b, uint32_t seed)
{
    static const float odd[] = {0.0f, -0.0f, __builtin_inff(), -__builtin_inff(), __builtin_nanf("")};
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < STRIDE; i++) {
            float *x = b->a + (size_t)r * STRIDE + i;
            b->noise = b->noise * 1664525u + 1013904223u;
            uint32_t n = b->noise >> 24;
            *x = seed % 3 == 0 ? (float)(int)(n % 7) - 3 : ((float)(b->noise >> 8) * 0x1p-24f - 0.5f) * 20;
            if (seed % 4 == 3 && r > 1 && (n < 8 || (i == 0 && r == 2)))
                *x = odd[n % 5];
        }
}

static void check_route(struct bench *b, uint32_t seed)
{
    static const struct route_rule rules[] = {
        {.n_experts = 8, .n_used = 2, .n_groups = 1, .n_groups_used = 1, .scale = 1},
        {.n_experts = 128, .n_used = 8, .n_groups = 1, .n_groups_used = 1, .scale = 1.5f},
        {.n_experts = 32, .n_used = 4, .n_groups = 1, .n_groups_used = 1, .scale = 1},
        {.n_experts = 60, .n_used = 6, .n_groups = 6, .n_groups_used = 3, .scale = 2.5f},
        {.n_experts = 512, .n_used = 10, .n_groups = 1, .n_groups_used = 1, .scale = 0.3f},
        {.n_experts = 256, .n_used = 8, .n_groups = 8, .n_groups_used = 4, .scale = 2.5f},
        {.n_experts = 33, .n_used = 32, .n_groups = 33, .n_groups_used = 33, .scale = 1},
        {.n_experts = 1, .n_used = 1, .n_groups = 1, .n_groups_used = 1, .scale = 1},
    };
    struct route_args args = {.step = step_of(b, false), .in = rows(b->a, false), .out = rows(b->out, false)};
    args.rule = rules[seed % 8];
    args.rule.gating = seed / 8 % 2 ? ROUTE_SIGMOID : ROUTE_SOFTMAX;
    args.rule.normalise = seed / 16 % 2;
    args.bias = seed % 5 < 2 ? 0 : AT(b->gain);
    args.factors = seed % 7 < 5 ? 0 : AT(b->b);
    odd_logits(b, seed);
    bool right = true;
    launch(b, "route", &args, seed);
    for (uint32_t r = 0; r < ROWS; r++) {
        float *to = b->wanted + (size_t)r * STRIDE, *have = b->out + (size_t)r * STRIDE;
        route_row(&args.rule, b->a + (size_t)r * STRIDE, args.bias ? b->gain : NULL, to);
        if (args.factors)
            route_factors(&args.rule, b->b, to);
        for (uint32_t i = 0; i < 2u * args.rule.n_used; i++)
            right = right && (memcmp(&to[i], &have[i], 4) == 0 || (to[i] != to[i] && have[i] != have[i]));
    }
    expect(b, right, "route", seed);
}

static void check_sum(struct bench *b, uint32_t seed)
{
    uint32_t n_used = 1 + seed % 8, width = widths[seed % N_WIDTHS] % 128 + 1;
    struct expert_sum_args args = {.step = step_of(b, false), .in = rows(b->a, false)};
    args.choice = rows(b->b, false);
    args.out = rows(b->out, false);
    args.width = width;
    args.n_used = n_used;
    for (uint32_t r = 0; r < ROWS; r++) {
        float *to = b->wanted + (size_t)r * STRIDE;
        memset(to, 0, width * sizeof *to);
        for (uint32_t u = 0; u < n_used; u++)
            ops_scalar.add_scaled(to, b->a + (size_t)r * STRIDE + (size_t)u * width, width,
                                  b->b[(size_t)r * STRIDE + n_used + u]);
    }
    launch(b, "expert_sum", &args, seed);
    expect(b, same_rows(b, ROWS, width), "expert_sum", seed);
}

static void check_join(struct bench *b, uint32_t seed, bool head)
{
    uint32_t first = widths[seed % N_WIDTHS] % 256 + 1,
             width = first + widths[(seed + 3) % N_WIDTHS] % 256 + 1;
    struct join_args args = {.step = step_of(b, head), .a = rows(b->a, head), .b = rows(b->b, false)};
    args.out = rows(b->out, false);
    args.width = width;
    args.first = first;
    for (uint32_t r = 0; r < (head ? 3 : ROWS); r++) {
        float *to = b->wanted + (size_t)r * STRIDE;
        memcpy(to, b->a + (size_t)(head ? 4 - r : r) * STRIDE, first * sizeof *to);
        memcpy(to + first, b->b + (size_t)r * STRIDE, (width - first) * sizeof *to);
    }
    launch(b, "join", &args, seed);
    expect(b, same_rows(b, head ? 3 : ROWS, width), "join", seed);
}

/* Heads of queries, keys and values; the kernels take any sizes. */
static struct delta_shape delta_of(uint32_t seed)
{
    uint32_t n_key_heads = 1 + seed % 3;
    return (struct delta_shape){.n_key_heads = n_key_heads,
                                .n_value_heads = n_key_heads * (1 + seed % 4),
                                .key_dim = 16 * (1 + seed % 5),
                                .value_dim = 16 * (1 + seed % 2),
                                .n_taps = 4};
}

static void check_unit(struct bench *b, uint32_t seed)
{
    struct l2_norm_args args = {.step = step_of(b, false), .in = rows(b->a, false)};
    const struct delta_shape *s = &args.shape;
    args.out = rows(b->out, false);
    args.shape = delta_of(seed);
    args.eps = 3e-4f;
    uint32_t width = delta_channels(s);
    for (uint32_t r = 0; r < ROWS; r++) {
        float *to = b->wanted + (size_t)r * STRIDE;
        memcpy(to, b->a + (size_t)r * STRIDE, width * 4);
        for (uint32_t h = 0; h < 2 * s->n_key_heads; h++, to += s->key_dim) {
            float inverse = ops_scalar.rms_inverse(to, s->key_dim, args.eps / (float)s->key_dim);
            ops_scalar.scale(to, to, s->key_dim,
                             h < s->n_key_heads ? delta_query_factor(s, inverse)
                                                : delta_key_factor(s, inverse));
        }
    }
    launch(b, "l2_norm", &args, seed);
    expect(b, width <= STRIDE && same_rows(b, ROWS, width), "l2_norm", seed);
}

static void check_gates(struct bench *b, uint32_t seed, bool together)
{
    struct delta_gate_args args = {.step = step_of(b, false), .b = rows(b->a, false)};
    args.alpha = together ? args.b : rows(b->b, false);
    args.out = rows(b->out, false);
    args.decay = AT(b->gain);
    args.dt = AT(b->factors);
    args.shape = delta_of(seed);
    args.together = together;
    uint32_t n = args.shape.n_value_heads, share = n / args.shape.n_key_heads;
    for (uint32_t i = 0; i < ROWS * n; i++) {
        uint32_t r = i / n, head = i % n, at = together ? head / share * 2 * share + head % share : head;
        const float *x = b->a + (size_t)r * STRIDE;
        float alpha = together ? x[at + share] : b->b[(size_t)r * STRIDE + head];
        b->wanted[(size_t)r * STRIDE + head] = arith_sigmoid(x[at]);
        b->wanted[(size_t)r * STRIDE + n + head] = delta_decay(b->gain[head], alpha + b->factors[head]);
    }
    launch(b, "delta_gate", &args, seed);
    expect(b, same_rows(b, ROWS, 2 * n), "delta_gate", seed);
}

/* A row whose keys and values are in the cache is not written there again. */
static void check_cached(struct bench *b, uint32_t seed)
{
    struct kv_layout layout = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 32, .type = KV_F16};
    size_t size = kv_page_size(&layout);
    uint32_t *tables = (uint32_t *)room(b, 4, "tables");
    char *pages = (char *)room(b, 4 * size / 4, "pages"), *before = malloc(4 * size);
    struct kv_append_args args = {.step = step_of(b, false), .k = rows(b->a, false), .v = rows(b->b, false)};
    args.out = rows(b->out, false);
    args.kv = AT(pages);
    args.layout = layout;
    args.slots = (struct decoder_slots){
        .tables = AT(tables), .n_slots = 2, .n_ctx = 128, .pages_per_slot = 2, .n_pages = 4};
    for (uint32_t i = 0; i < 4; i++)
        tables[i] = i;
    for (uint32_t i = 0; i < ROWS; i++)
        b->step->rows[i].flags = STEP_ROW_CACHED;
    if (!before)
        abort(); /* a test tool: nothing sensible is left to do */
    memcpy(before, pages, 4 * size);
    launch(b, "kv_append", &args, seed);
    expect(b, memcmp(before, pages, 4 * size) == 0, "cached rows are not written", seed);
    for (uint32_t i = 0; i < ROWS; i++)
        b->step->rows[i].flags = 0;
    launch(b, "kv_append", &args, seed);
    expect(b, memcmp(before, pages, 4 * size) != 0, "other rows are written", seed);
    free(before);
    free(pages);
    free(tables);
}

/* --- what they refuse --- */

static void expect_fault(struct bench *b, uint32_t what, uint32_t value, uint32_t limit, const char *text)
{
    bool told = b->fault[FLOW_ABORT] == DECODER_RANGE && b->fault[FLOW_WHAT] == what &&
                b->fault[FLOW_VALUE] == value && b->fault[FLOW_TARGET] == limit && b->fault[FLOW_OP] == 42;
    expect(b, told, text, value);
}

static void check_counts(struct bench *b, uint32_t seed)
{
    struct flat_args args = {.step = step_of(b, false), .a = rows(b->a, false), .b = rows(b->b, false)};
    args.out = rows(b->out, false);
    args.width = 8;
    b->step->n_rows = STEP_MAX_ROWS_CUDA + 1;
    launch(b, "add", &args, seed);
    expect_fault(b, DECODER_RANGE_COUNT, STEP_MAX_ROWS_CUDA + 1, STEP_MAX_ROWS_CUDA, "too many rows");
    b->step->n_rows = ROWS;
    b->step->logits[1].row = 9;
    args.step = step_of(b, true);
    args.a.gathered = 1;
    launch(b, "mul", &args, seed);
    expect_fault(b, DECODER_RANGE_LOGIT, 9, ROWS, "a logit of a row that is not there");
    b->step->logits[1].row = 3;
}

static struct attention_args attention_of(struct bench *b, char *pages, uint32_t *tables, float *scratch)
{
    struct attention_args args = {.step = step_of(b, false)};
    struct attend_args *a = &args.attend;
    a->in = AT(b->a);
    a->out = AT(b->out);
    a->in_stride = a->out_stride = STRIDE;
    a->kv = AT(pages);
    a->scratch = AT(scratch);
    a->layout = (struct kv_layout){.n_layers = 1, .n_kv_heads = 1, .head_dim = 32, .type = KV_F16};
    a->slots = (struct decoder_slots){
        .tables = AT(tables), .n_slots = 2, .n_ctx = 128, .pages_per_slot = 2, .n_pages = 4};
    a->max_rows = ROWS;
    a->ready = 1;
    a->n_heads = 2;
    a->scale = 0.2f;
    a->work_bytes = attend_min_work(32);
    return args;
}

/* Attention and append of rows whose slot, position or page does not exist. */
static void check_places(struct bench *b, uint32_t seed)
{
    struct kv_layout layout = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 32, .type = KV_F16};
    uint32_t *tables = (uint32_t *)room(b, 4, "tables"), *bad = tables + seed % 4;
    char *pages = (char *)room(b, 4 * kv_page_size(&layout) / 4, "pages");
    float *scratch = room(b, attend_scratch_bytes(ROWS, 2, 32, 128, 0) / 4, "scratch");
    memset(scratch, 0, attend_scratch_bytes(ROWS, 2, 32, 128, 0));
    memset(pages, 0, 4 * kv_page_size(&layout));
    for (uint32_t i = 0; i < 4; i++)
        tables[i] = 3 - i;
    struct attention_args args = attention_of(b, pages, tables, scratch);
    struct kv_append_args append = {.step = args.step, .k = rows(b->a, false), .v = rows(b->b, false)};
    append.out = rows(b->out, false);
    append.kv = args.attend.kv;
    append.layout = layout;
    append.slots = args.attend.slots;

    launch(b, "attention", &args, seed);
    expect(b, b->fault[FLOW_CLAIMED] == 0, "rows in order are not refused", seed);
    b->step->rows[2].pos = 128;
    launch(b, "attention", &args, seed);
    expect_fault(b, DECODER_RANGE_ROW, 128, 128, "attention of a position behind the context");
    args.step = append.step = step_of(b, false);
    launch(b, "kv_append", &append, seed);
    expect_fault(b, DECODER_RANGE_ROW, 128, 128, "a position behind the context appended");
    b->step->rows[2] = (struct step_row){.slot = 2, .pos = 2};
    args.step = append.step = step_of(b, false);
    launch(b, "attention", &args, seed);
    expect_fault(b, DECODER_RANGE_ROW, 2, 2, "attention of a slot that does not exist");
    step_of(b, false);
    launch(b, "kv_append", &append, seed);
    expect_fault(b, DECODER_RANGE_ROW, 2, 2, "a slot that does not exist appended");
    b->step->rows[2] = (struct step_row){.slot = 0, .pos = 2};
    step_of(b, false);
    *bad = 4;
    tables[0] = tables[2] = 4;
    launch(b, "attention", &args, seed);
    expect_fault(b, DECODER_RANGE_EDIT, 4, 4, "attention of a page that does not exist");
    step_of(b, false);
    launch(b, "kv_append", &append, seed);
    expect_fault(b, DECODER_RANGE_EDIT, 4, 4, "a page that does not exist appended");
    args.step = step_of(b, false);
    args.attend.max_rows = ROWS - 1;
    launch(b, "attention", &args, seed);
    expect_fault(b, DECODER_RANGE_COUNT, ROWS, ROWS - 1, "more rows than there is room for");
    free(tables);
    free(pages);
    free(scratch);
}

int main(void)
{
    struct bench b;
    bench_open(&b);
    for (uint32_t seed = 0; seed < 20; seed++) {
        check_flat(&b, "add", seed, seed % 3 == 0);
        check_flat(&b, "mul", seed, seed % 3 == 1);
        check_flat(&b, "silu", seed, seed % 3 == 2);
        check_flat(&b, "gelu", seed, seed % 3 == 2);
        check_flat(&b, "scale", seed, seed % 3 == 2);
        check_flat(&b, "soft_cap", seed, seed % 3 == 2);
        check_flat(&b, "gate", seed, false);
        check_flat(&b, "swiglu_clamped", seed, false);
        check_flat(&b, "sigmoid", seed, seed % 3 == 0);
        check_join(&b, seed, seed % 3 == 1);
        check_unit(&b, seed);
        check_gates(&b, seed, seed % 2);
        check_norm_rows(&b, seed, seed / 2 % 2, seed % 3 == 0);
        check_norm_heads(&b, seed);
        check_rope(&b, seed);
        check_sum(&b, seed);
    }
    for (uint32_t seed = 0; seed < 64; seed++)
        check_route(&b, seed);
    check_counts(&b, 1);
    check_cached(&b, 1);
    check_places(&b, 2);
    check_places(&b, 3);
    printf("nodes, %d failures\n", b.failures);
    simt_close(b.machine);
    free(b.step);
    free(b.a);
    free(b.b);
    free(b.out);
    free(b.wanted);
    free(b.gain);
    free(b.factors);
    return b.failures ? 1 : 0;
}
