/* part_product.c - E4: the decoder's matrix product alone, on the shapes of real models, compared with what
 * the weight ring can read. The weights are a pattern, not a model's. */
#include "gpu/gpu.h"
#include "cuda/pack.h"
#include "cuda/plan.h"
#include "gpu/kernels/gpu_kernels.h"
#include "model/program.h"
#include "gguf/quant.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS         3
#define SMALL_K        1024
#define SMALL_COLUMNS  224 /* the most on the emulator; 16 of more than SMALL_K values */
#define MOST_COLUMNS   256
#define MOST_ROWS      151936
#define MOST_WIDE_ROWS 24576 /* the head is computed for few columns alone */

struct shape {
    const char *what;
    uint32_t type, n, k, widest; /* widest: input of the model's widest product, which sizes the work area */
};
static const struct shape shapes[] = {
    {"0.6B q k v", QUANT_Q4_K, 4096, 1024, 3072},      {"0.6B gate up", QUANT_Q4_K, 6144, 1024, 3072},
    {"0.6B down Q6_K", QUANT_Q6_K, 1024, 3072, 3072},  {"1B gate up", QUANT_Q4_K, 16384, 2048, 8192},
    {"1B down Q6_K", QUANT_Q6_K, 2048, 8192, 8192},    {"8B q k v", QUANT_Q4_K, 6144, 4096, 12288},
    {"8B o", QUANT_Q4_K, 4096, 4096, 12288},           {"8B gate up", QUANT_Q4_K, 24576, 4096, 12288},
    {"8B down", QUANT_Q4_K, 4096, 12288, 12288},       {"8B down Q6_K", QUANT_Q6_K, 4096, 12288, 12288},
    {"8B head Q6_K", QUANT_Q6_K, 151936, 4096, 12288},
};
static const struct shape small_shapes[] = {
    {"tiny", QUANT_Q4_K, 96, 512, 512},
    {"tiny Q6_K", QUANT_Q6_K, 40, 768, 768},
    {"tiny wide", QUANT_Q4_K, 40, 12288, 12288}, /* 8 columns do not fit a block's work area */
};

struct product_bench {
    struct gpu *g;
    size_t bytes; /* bytes of the weights' memory */
    uint64_t tiles;
    float *first, *column; /* results of column 0: the shape's first setting's, and this one's */
    struct product_loop_args args;
    void *function;
};

/* Plans the op as the decoder would, in a program that also has the model's widest product. */
static int plan_shape(struct product_bench *b, const struct shape *shape, struct error *err)
{
    struct decoder_matrix m[2];
    struct program *program = calloc(1, sizeof *program + 2 * sizeof *program->ops);
    struct plan plan = {0};
    struct plan_device device = {b->g->device.n_sms, b->args.n_crew, (uint32_t)b->g->device.shared_per_block};
    int rc = program ? cuda_pack_layout(shape->type, shape->n, shape->k, &m[0], err) : -ENOMEM;
    if (rc == 0)
        rc = cuda_pack_layout(shape->type, 16, shape->widest, &m[1], err);
    if (rc == 0) {
        program->n_ops = 2;
        for (uint32_t i = 0; i < 2; i++)
            program->ops[i] = (struct program_op){
                .opcode = PROGRAM_MATMUL, .n_weights = 1, .k = m[i].k, .weight = {i}, .scale = 1};
        rc = plan_open(&plan, program, m, &device, err);
    }
    if (rc == 0) {
        struct product_loop_args *a = &b->args;
        a->shared = plan.shared;
        a->type = m[0].type;
        a->n = m[0].n;
        a->k = m[0].k;
        a->n_tiles = m[0].n_tiles;
        a->super_bytes = m[0].super_bytes;
        a->copy_bytes = cuda_pack_size(&m[0]);
        a->n_groups = plan.ops[0].n_groups;
        a->group_tiles = plan.ops[0].group_tiles;
        a->stage_supers = plan.ops[0].part[0].stage_supers;
    }
    plan_close(&plan);
    free(program);
    return rc;
}

struct setting {
    uint32_t n_columns, quantises;
    bool resident; /* one matrix again and again, which fits into half of L2: what the compute warps can do */
};
static const struct setting settings[] = {
    {1, 0, false},   {1, 1, false},   {8, 0, false},  {8, 1, false},   {1, 0, true},
    {8, 0, true},    {16, 1, false},  {64, 1, false}, {128, 1, false}, /* prompts */
    {224, 1, false}, {256, 1, false},
};

/* Chooses so many products that the weights come from memory and the launch takes a negligible share. */
static void choose_repeats(struct product_bench *b, const struct setting *set)
{
    uint64_t fit = set->resident ? 1 : b->bytes / b->args.copy_bytes;
    uint64_t bytes = (set->n_columns > 8 ? (uint64_t)1 : (uint64_t)4) << 30;
    uint64_t wanted = b->g->emulated ? 2 : bytes / b->args.copy_bytes;
    b->args.n_copies = (uint32_t)(fit < 64 ? fit : 64);
    if (b->g->emulated && !set->resident)
        b->args.n_copies = 2;
    b->args.n_rounds = (uint32_t)(wanted / b->args.n_copies ? wanted / b->args.n_copies : 1);
}

/* The deal must be the decoder's. */
static int check_deal(const struct product_bench *b, const char *what, bool by_columns, struct error *err)
{
    const struct product_loop_args *a = &b->args;
    bool right = by_columns == product_is_by_columns(a->n_columns, a->n_crew / 32, a->shared.work_bytes);
    return right ? 0
                 : error_set(err, -EIO, "%s, %u rows: the warps shared the stages %s", what, a->n_columns,
                             by_columns ? "by columns" : "by super-blocks");
}

/* Column 0 has the same results in each setting whose last product is by the same weights. Some are numbers
 * other than 0, unless the rows are long: a few of the pattern's scales are not finite. */
static int check_results(struct product_bench *b, const char *what, bool is_first, struct error *err)
{
    const struct product_loop_args *a = &b->args;
    float *to = is_first ? b->first : b->column;
    uint32_t n_numbers = 0, n_others = 0;
    int rc = gpu_read(b->g, to, a->out, a->n * sizeof *to, err);
    for (uint32_t i = 0; rc == 0 && i < a->n; i++) {
        n_numbers += isfinite(to[i]) && to[i] != 0;
        n_others +=
            !is_first && memcmp(&to[i], &b->first[i], sizeof *to) && !(isnan(to[i]) && isnan(b->first[i]));
    }
    if (rc == 0 && (n_others || (!n_numbers && a->k <= SMALL_K)))
        rc =
            error_set(err, -EIO, "%s, %u rows: %u of %u results are numbers, %u differ from those of one row",
                      what, a->n_columns, n_numbers, a->n, n_others);
    return rc;
}

static int measure(struct product_bench *b, const char *what, bool is_resident, json_t *rows,
                   struct error *err)
{
    struct product_loop_args *a = &b->args;
    bool is_wide = product_is_wide(a->n_columns, a->k, activation_form(a->type), a->shared.work_bytes);
    uint32_t by_columns = 0;
    struct gpu_launch launch = {.function = b->function,
                                .n_blocks = b->g->device.n_sms,
                                .n_threads = a->n_crew + 64,
                                .shared_bytes = a->shared.total,
                                .whole = true,
                                .args = a};
    double best = 1e9;
    for (int i = 0; i < (b->g->emulated ? 1 : ROUNDS); i++) {
        double seconds;
        int rc = gpu_clear(b->g, a->counters, (size_t)PRODUCT_N_WORDS * GPU_LINE * 4, err);
        if (rc == 0)
            rc = gpu_time(b->g, &launch, &seconds, err);
        uint32_t gave_up = 0;
        if (rc == 0)
            rc = gpu_read(b->g, &gave_up, a->counters, sizeof gave_up, err);
        if (rc == 0 && gave_up)
            rc = error_set(err, -EIO, "%s, %u rows: the blocks gave up waiting", what, a->n_columns);
        if (rc == 0)
            rc = gpu_read(b->g, &by_columns, a->counters + PRODUCT_BY_COLUMNS * GPU_LINE * 4,
                          sizeof by_columns, err);
        if (rc == 0)
            rc = check_deal(b, what, by_columns, err);
        if (rc < 0)
            return rc;
        best = seconds < best ? seconds : best;
    }
    double each = best / ((double)a->n_rounds * a->n_copies);
    json_t *row = json_pack("{s:s, s:i, s:b, s:b, s:b}", "weights", what, "rows", (int)a->n_columns, "wide",
                            (int)is_wide, "quantises", (int)a->quantises, "in_l2", (int)is_resident);
    json_object_set_new(row, "by_columns", json_boolean(by_columns));
    json_object_set_new(row, "stages", json_integer(a->shared.n_stages));
    json_object_set_new(row, "stage_bytes", json_integer((json_int_t)a->stage_supers * a->super_bytes));
    json_object_set_new(row, "bytes", json_integer((json_int_t)a->copy_bytes));
    json_object_set_new(row, "us", gpu_figure(b->g, each * 1e6));
    json_object_set_new(row, "gbps", gpu_figure(b->g, (double)a->copy_bytes * 1e-9 / each));
    json_object_set_new(row, "tops", gpu_figure(b->g, 2e-12 * a->n * a->k * a->n_columns / each));
    gpu_add(rows, row);
    return 0;
}

static int measure_shape(struct product_bench *b, const struct shape *shape, json_t *rows, struct error *err)
{
    int rc = plan_shape(b, shape, err);
    for (size_t i = 0; rc == 0 && i < sizeof settings / sizeof *settings; i++) {
        const struct setting *set = &settings[i];
        if ((set->resident && b->args.copy_bytes > b->g->device.l2_bytes / 2) ||
            (set->n_columns > 8 && shape->n > MOST_WIDE_ROWS) ||
            (b->g->emulated && set->n_columns > (shape->k > SMALL_K ? 16 : SMALL_COLUMNS)))
            continue;
        choose_repeats(b, set);
        b->args.n_columns = set->n_columns;
        b->args.quantises = set->quantises;
        rc = measure(b, shape->what, set->resident, rows, err);
        if (rc == 0 && !set->resident)
            rc = check_results(b, shape->what, i == 0, err);
    }
    return rc;
}

/* Fills in weights that are neither zero nor all equal, and columns of ones. */
static int fill(struct product_bench *b, size_t in_floats, struct error *err)
{
    struct copy_args args = {.to = b->tiles, .n_words = b->bytes / 16};
    struct gpu_launch launch = {
        .n_blocks = b->g->emulated ? 2 : 1024, .n_threads = COPY_THREADS, .args = &args};
    float *ones = malloc(in_floats * sizeof *ones);
    int rc =
        ones ? gpu_function(b->g, gpu_ptx_images, "copy", "gpu_fill", 0, &launch.function, err) : -ENOMEM;
    for (size_t i = 0; rc == 0 && i < in_floats; i++)
        ones[i] = i % 3 ? 1.0f : -0.5f;
    if (rc == 0)
        rc = gpu_start(b->g, &launch, err);
    if (rc == 0)
        rc = gpu_finish(b->g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = gpu_write(b->g, b->args.in, ones, in_floats * sizeof *ones, err);
    free(ones);
    return rc;
}

int part_product(struct gpu *g, json_t *out, struct error *err)
{
    bool small = g->emulated;
    uint32_t most = small ? SMALL_COLUMNS : MOST_COLUMNS;
    size_t in_floats = (size_t)most * 12288,
           out_floats = small ? (size_t)most * 96 : (size_t)most * MOST_WIDE_ROWS;
    struct product_bench b = {.g = g, .bytes = small ? 1 << 20 : (size_t)1 << 30};
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    b.args.n_crew = small ? 64 : DECODER_MAX_CREW;
    int rc = gpu_function(g, gpu_ptx_images, "product_loop", "gpu_product", g->device.shared_per_block,
                          &b.function, err);
    if (rc == 0)
        rc = gpu_memory(g, &b.tiles, b.bytes, err);
    if (rc == 0)
        rc = gpu_memory(g, &b.args.in, in_floats * sizeof(float), err);
    if (rc == 0)
        rc = gpu_memory(g, &b.args.out, out_floats * sizeof(float), err);
    if (rc == 0)
        rc = gpu_memory(g, &b.args.counters, (size_t)PRODUCT_N_WORDS * GPU_LINE * 4, err);
    if (rc == 0)
        rc = gpu_memory(g, &b.args.panels,
                        (size_t)2 * activation_buffer_bytes(most, 12288, ACTIVATION_INTEGERS), err);
    if (rc == 0)
        rc = gpu_memory(g, &b.args.factors, most * sizeof(float), err);
    b.args.tiles = b.tiles;
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = fill(&b, in_floats, err);
    const struct shape *list = small ? small_shapes : shapes;
    size_t n = small ? sizeof small_shapes / sizeof *list : sizeof shapes / sizeof *list;
    b.first = malloc(MOST_ROWS * sizeof *b.first);
    b.column = malloc(MOST_ROWS * sizeof *b.column);
    if (rc == 0 && !(b.first && b.column))
        rc = -ENOMEM;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = measure_shape(&b, &list[i], rows, err);
    free(b.first);
    free(b.column);
    return rc;
}
