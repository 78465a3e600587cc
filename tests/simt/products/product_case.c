#include "product_case.h"
#include "cpu/matmul/matmul.h"
#include "cpu/ops/ops.h"
#include "cuda/pack.h"
#include "gguf/quant.h"
#include "support/models/block_scales.h"

#include "abi/schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS   3
#define MAX_ROWS  40 /* rows of a case that wishes for no other number */
#define MOST_ROWS 240

static const uint32_t types[] = {
    QUANT_Q4_K,    QUANT_Q6_K,   QUANT_Q8_0,  QUANT_Q5_K,  QUANT_Q5_0,         QUANT_Q4_0,   QUANT_Q2_K,
    QUANT_Q3_K,    QUANT_Q4_1,   QUANT_Q5_1,  QUANT_F16,   QUANT_BF16,         QUANT_F32,    QUANT_MXFP4,
    QUANT_IQ4_NL,  QUANT_IQ3_S,  QUANT_TQ1_0, QUANT_TQ2_0, QUANT_NVFP4_SCALED, QUANT_IQ4_XS, QUANT_IQ3_XXS,
    QUANT_IQ2_XXS, QUANT_IQ2_XS, QUANT_IQ2_S, QUANT_IQ1_S, QUANT_IQ1_M};
#define N_TYPES (sizeof types / sizeof *types)

static uint64_t state;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 32) * n >> 32);
}

static uint32_t between(uint32_t min, uint32_t max)
{
    return min + below(max - min + 1);
}

static float uniform(void)
{
    return (float)below(1u << 24) * 0x1p-23f - 1.0f;
}

/* --- a case: what the device is given, and the same for the reference --- */

struct buffer {
    void *data;
    size_t size;
};

struct weight {
    uint32_t type, n;
    struct buffer src, tiles, cpu;
    struct matmul_matrix matrix;
    struct buffer bias;
};

struct op {
    uint32_t n_weights;
    struct weight weights[3];
    struct buffer gain;
};

struct product_case {
    struct simt_machine *machine;
    struct product_wish wish;
    uint32_t n_ops, k, n_rows, n_logits, n_blocks;
    uint32_t max_rows; /* rows for which the buffers have room */
    struct op ops[MAX_OPS];
    struct program *program;
    struct step *step;
    struct schedule_op plan[MAX_OPS];
    struct decoder_matrix matrices[MAX_OPS * 3];
    uint64_t vectors[MAX_OPS * 7];
    uint32_t n_matrices, n_vectors;
    struct buffer rows, rows_before, logits, want_rows, want_logits, panels, factors, counters, words;
    struct decoder_args args;
};

static struct buffer buffer(size_t size)
{
    struct buffer b = {aligned_alloc(128, (size + 127) / 128 * 128 + 128), size};
    if (!b.data)
        abort(); /* a test tool: nothing sensible is left to do */
    memset(b.data, 0, size);
    return b;
}

static void map(struct product_case *c, const struct buffer *b, bool read_only, const char *name)
{
    simt_map(c->machine, b->data, b->size, read_only ? SIMT_MAP_READ_ONLY : 0, name);
}

static uint64_t address(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* --- random weights and rows --- */

static uint16_t random_half(bool extreme)
{
    static const uint16_t some[] = {0, 0x8000, 1, 0x7bff, 0xfbff, 0x0400};
    uint16_t h = (uint16_t)(0x1c00 + below(0x1800) + (below(8) == 0 ? 0x8000 : 0));
    return extreme && below(4) == 0 ? some[below(6)] : h;
}

static void random_weights(uint32_t type, uint8_t *w, size_t size, bool extreme)
{
    size_t block = quant_traits(type)->block_size;
    for (size_t i = 0; i < size; i++)
        w[i] = extreme && below(64) == 0 ? (uint8_t)(below(2) ? 0xff : 0x80) : (uint8_t)below(256);
    for (size_t i = 0; i < size; i += block) {
        float f = uniform();
        if (type == QUANT_F32 || type == QUANT_BF16)
            memcpy(w + i, (uint8_t *)&f + (4 - block), block);
        else if (type == QUANT_F16)
            memcpy(w + i, &(uint16_t){random_half(extreme)}, 2);
        else
            block_scales_put(type, w + i, random_half(extreme), random_half(extreme));
    }
}

static void random_floats(float *x, size_t n, bool extreme)
{
    static const float odd[] = {0.0f,
                                -0.0f,
                                1e30f,
                                -3e38f,
                                1e-30f,
                                1e-38f,
                                1e-42f,
                                1.0f,
                                -127.0f,
                                __builtin_inff(),
                                __builtin_nanf("")};
    float scale = __builtin_ldexpf(1.0f, (int)below(20) - 10);
    for (size_t i = 0; i < n; i++) {
        x[i] = uniform() * scale;
        if (extreme && below(16) == 0)
            x[i] = odd[below(below(16) ? 9 : 11)];
    }
    for (size_t block = 0; extreme && block + 32 <= n; block += 32) /* of zeros, or of tiny values */
        if (below(16) == 0)
            for (size_t i = block; i < block + 32; i++)
                x[i] = below(2) ? 0.0f : 1e-33f;
}

/* --- making a case --- */

static void open_weight(struct product_case *c, struct weight *w, uint32_t type, uint32_t n, bool extreme)
{
    struct decoder_matrix *m = &c->matrices[c->n_matrices++];
    *w = (struct weight){.type = type, .n = n};
    w->src = buffer(quant_size(type, (size_t)n * c->k));
    random_weights(type, w->src.data, w->src.size, extreme);
    block_factors_put(type, w->src.data, n, c->k);
    w->cpu = buffer(matmul_pack_size(type, n, c->k));
    matmul_matrix_set(&w->matrix, type, n, c->k, w->cpu.data);
    matmul_pack(type, n, c->k, w->src.data, w->cpu.data, 0, w->matrix.n_groups);
    int rc = cuda_pack_layout(type, n, c->k, m, NULL);
    assert(rc == 0);
    w->tiles = buffer(cuda_pack_size(m));
    uint32_t middle = below(m->n_tiles + 1);
    size_t before = (size_t)middle * m->n_supers * m->super_bytes;
    cuda_pack(type, m, (char *)w->src.data + middle * 16 * quant_size(type, c->k),
              (char *)w->tiles.data + before, middle, m->n_tiles);
    cuda_pack(type, m, w->src.data, w->tiles.data, 0, middle);
    m->tiles = address(w->tiles.data);
    map(c, &w->tiles, true, "tiles");
}

/* A vector's weight index. */
static uint32_t open_vector(struct product_case *c, struct buffer *b, uint32_t n)
{
    *b = buffer(n * sizeof(float));
    random_floats(b->data, n, false);
    map(c, b, true, "vector");
    c->vectors[c->n_vectors] = address(b->data);
    return c->n_vectors++;
}

static void plan_op(struct product_case *c, uint32_t i)
{
    const struct program_op *op = &c->program->ops[i];
    struct schedule_op *s = &c->plan[i];
    uint32_t n_supers = tile_supers(c->k), most = 16;
    uint32_t stage = between(op->flags & PROGRAM_QUANTISES ? 2 * n_supers : 1, SCHEDULE_MAX_SUPERS);
    *s = (struct schedule_op){.paired = op->epilogue == PROGRAM_SWIGLU};
    for (uint32_t j = 0; j < op->n_weights; j++) {
        s->part[j].stage_supers =
            below(3) || op->flags & PROGRAM_QUANTISES ? stage : between(1, SCHEDULE_MAX_SUPERS);
        uint32_t fit = s->part[j].stage_supers / n_supers;
        most = fit < most ? fit : most;
        uint32_t bytes = s->part[j].stage_supers * c->matrices[op->weight[j]].super_bytes;
        uint32_t fold = product_fold_bytes(s->part[j].stage_supers);
        struct decoder_shared *shared = &c->args.shared;
        shared->fold_bytes = fold > shared->fold_bytes ? fold : shared->fold_bytes;
        shared->stage_bytes = bytes > shared->stage_bytes ? bytes : shared->stage_bytes;
    }
    s->group_tiles = most > 1 ? between(1, most) : 1;
    if (op->flags & PROGRAM_QUANTISES)
        s->group_tiles = between(1, most / 2) * 2;
    for (uint32_t j = 0; j < (s->paired ? 1 : op->n_weights); j++) {
        s->part[j].first_group = s->n_groups;
        s->n_groups += (c->matrices[op->weight[j]].n_tiles + s->group_tiles - 1) / s->group_tiles;
    }
    s->first_block = below(c->n_blocks);
}

/* None of them is what models have: a kernel that brings its own gives other bits. */
static const float epsilons[] = {3e-5f, 2e-3f, 7e-6f, 0.4f};
#define N_EPSILONS (sizeof epsilons / sizeof *epsilons)

/* The number of rows of the first matrix. */
static uint32_t shape_any(struct program_op *op, uint32_t n_most)
{
    uint32_t n = between(1, 70);
    op->epilogue = (uint16_t)below(3);
    op->n_weights = (uint16_t)(op->epilogue == PROGRAM_STORE    ? between(1, 3)
                               : op->epilogue == PROGRAM_SWIGLU ? 2
                                                                : 1);
    op->out = PROGRAM_QKV;
    if (op->epilogue == PROGRAM_RESIDUAL) {
        op->in = PROGRAM_ATTN;
        op->out = PROGRAM_X;
        n = between(1, n_most);
    } else if (op->epilogue == PROGRAM_STORE && op->n_weights == 1 && below(2)) {
        op->flags = PROGRAM_HEAD;
        op->out = PROGRAM_LOGITS;
    }
    return n;
}

/* Gate and up of as many rows as they have columns, or what reads their result. */
static uint32_t shape_quantised(struct product_case *c, uint32_t i, struct program_op *op, uint32_t n_most)
{
    const struct program_buffer *b = c->program->buffers;
    bool makes = i == 0;
    op->epilogue = makes ? PROGRAM_SWIGLU : PROGRAM_STORE;
    op->flags = makes ? PROGRAM_WORDS | PROGRAM_QUANTISES : PROGRAM_QUANTISED;
    op->n_weights = makes ? 2 : 1;
    op->in = makes ? PROGRAM_X : PROGRAM_QKV;
    op->out = makes ? PROGRAM_QKV : PROGRAM_H; /* no hop would order a store to x behind the first op */
    op->old = makes ? (int32_t)(b[PROGRAM_ATTN].offset - b[PROGRAM_QKV].offset) : 0;
    return makes ? c->k : between(1, n_most);
}

static void open_op(struct product_case *c, uint32_t i, uint32_t type, bool extreme)
{
    struct program_op *op = &c->program->ops[i];
    struct op *o = &c->ops[i];
    uint32_t n_most = c->k < 70 ? c->k : 70;
    *op = (struct program_op){
        .opcode = PROGRAM_MATMUL, .k = c->k, .in = PROGRAM_X, .gain = PROGRAM_NONE, .scale = 1};
    uint32_t n = c->wish.quantised ? shape_quantised(c, i, op, n_most) : shape_any(op, n_most);
    o->n_weights = op->n_weights;
    for (uint32_t j = 0, at = 0; j < op->n_weights; j++) {
        uint32_t t = j == 0 || below(2) ? type : types[below(N_TYPES)];
        bool floats = t == QUANT_F32 || t == QUANT_F16 || t == QUANT_BF16;
        if (c->k % quant_traits(t)->block || (floats && op->flags & PROGRAM_QUANTISED))
            t = QUANT_Q8_0;
        op->weight[j] = c->n_matrices;
        open_weight(c, &o->weights[j], t, n, extreme);
        op->n[j] = n;
        op->bias[j] = below(2) ? PROGRAM_NONE : open_vector(c, &o->weights[j].bias, n);
        op->out_col[j] = op->epilogue == PROGRAM_SWIGLU ? 0 : at;
        at += n;
        if (op->epilogue == PROGRAM_STORE)
            n = between(1, 70);
    }
    static const uint16_t others[] = {PROGRAM_RESIDUAL, PROGRAM_TIMES_SILU, PROGRAM_TIMES_SIGMOID};
    if (op->epilogue == PROGRAM_RESIDUAL && op->bias[0] == PROGRAM_NONE)
        op->epilogue = others[(c->n_matrices + i) % 3];
    if (op->in == PROGRAM_X && below(3))
        op->gain = open_vector(c, &o->gain, c->k);
    op->eps = epsilons[(c->n_matrices + i) % N_EPSILONS];
    plan_op(c, i);
}

static void open_rows(struct product_case *c, bool extreme)
{
    struct program *p = c->program;
    uint32_t widths[] = {c->k > 96 ? c->k : 96, c->k > 224 ? c->k : 224, c->k, 80};
    for (uint32_t i = 0; i < (c->wish.quantised ? 4 : 3); i++) {
        p->buffers[i] = (struct program_buffer){p->row_floats, widths[i]};
        p->row_floats += widths[i];
    }
    c->rows = buffer((size_t)c->max_rows * p->row_floats * 4);
    c->logits = buffer(STEP_MAX_LOGITS * 80 * 4);
    for (uint32_t row = 0; row < c->max_rows; row++)
        random_floats((float *)c->rows.data + (size_t)row * p->row_floats, p->row_floats,
                      extreme && below(2));
    for (uint32_t row = 0; row < c->max_rows && c->wish.huge_first; row++)
        for (uint32_t i = 0; i < 3; i++)
            ((float *)c->rows.data)[(size_t)row * p->row_floats + p->buffers[i].offset] =
                row % 2 ? -6e5f : 5e5f;
    c->want_rows = buffer(c->rows.size);
    c->want_logits = buffer(c->logits.size);
    c->rows_before = buffer(c->rows.size);
    memcpy(c->rows_before.data, c->rows.data, c->rows.size);
    memcpy(c->want_rows.data, c->rows.data, c->rows.size);
    for (uint32_t row = 0; row < c->max_rows && c->wish.quantised; row++)
        memset((float *)c->rows_before.data + (size_t)row * p->row_floats + p->buffers[PROGRAM_QKV].offset,
               0xff, p->buffers[PROGRAM_QKV].width * sizeof(float)); /* no word is there */
}

static void open_step(struct product_case *c)
{
    static const uint32_t some[] = {1, 1, 2, 3, 7, 8, 8, 9, 16, 17, 33, 40};
    c->n_rows = some[below(sizeof some / sizeof *some)];
    if (c->wish.n_rows)
        c->n_rows = c->wish.n_rows;
    c->n_logits = between(1, c->n_rows < STEP_MAX_LOGITS ? c->n_rows : STEP_MAX_LOGITS);
    c->step->n_rows = c->n_rows;
    c->step->n_logits = c->n_logits;
    for (uint32_t i = 0; i < c->n_logits; i++)
        c->step->logits[i].row = (uint16_t)below(c->n_rows);
}

/* The layout of shared memory. A small work area makes products wide that have few rows. */
static void open_shared(struct product_case *c, uint32_t forms)
{
    struct decoder_shared *s = &c->args.shared;
    uint32_t sums = product_work_bytes(c->max_rows);
    uint32_t panel = activation_panel_bytes(c->wish.quantised ? 8 : between(1, 8), c->k, forms);
    if (c->wish.far) {
        sums = product_work_bytes(ACTIVATION_COLUMNS);
        panel = 0;
    }
    s->stage_bytes = (s->stage_bytes + 127) / 128 * 128;
    s->n_stages = between(2, 4);
    s->uses = (s->n_stages * 16 + DECODER_GATES_BYTES + 127) / 128 * 128;
    s->work = s->uses + 256; /* more than the counts of MAX_OPS ops take */
    s->work_bytes = ((sums > panel ? sums : panel) + 127) / 128 * 128;
    s->fold = s->work + DECODER_KEPT_BYTES + s->work_bytes;
    s->stages = s->fold + s->fold_bytes;
    s->total = s->stages + s->n_stages * s->stage_bytes;
}

static void open_args(struct product_case *c)
{
    uint32_t forms = ACTIVATION_INTEGERS | ACTIVATION_FLOATS;
    c->panels = buffer(2 * activation_buffer_bytes(c->max_rows, c->k, forms));
    for (uint32_t i = 0; i < c->n_ops; i++) /* where up to 8 columns lie: products take turns in two places */
        c->program->ops[i].panels = activation_panel_bytes(ACTIVATION_COLUMNS, c->k, forms) * (i % 2 == 0);
    c->factors = buffer(c->max_rows * 4);
    c->counters = buffer((size_t)MAX_OPS * DECODER_PHASES * DECODER_LINE * 4);
    c->words = buffer(DECODER_LINE * 4);
    struct decoder_args *a = &c->args;
    a->program = address(c->program);
    a->plan = address(c->plan);
    a->matrices = address(c->matrices);
    a->vectors = address(c->vectors);
    a->counters = address(c->counters.data);
    a->abort_word = address(c->words.data);
    a->steps = address(c->step);
    a->buffers = (struct decoder_buffers){.rows = address(c->rows.data),
                                          .logits = address(c->logits.data),
                                          .activations = address(c->panels.data),
                                          .factors = address(c->factors.data),
                                          .max_rows = c->max_rows,
                                          .row_floats = c->program->row_floats,
                                          .logits_stride = 80};
    a->words_rows = c->wish.quantised ? ACTIVATION_COLUMNS : 0;
    a->n_counters = c->n_ops * DECODER_PHASES;
    a->n_crew = 32 * (c->wish.small || below(2) ? between(2, 5) : between(2, DECODER_MAX_CREW / 32));
    open_shared(c, forms);
}

static void open_maps(struct product_case *c)
{
    struct buffer constant[] = {{c->program, sizeof *c->program + MAX_OPS * sizeof(struct program_op)},
                                {c->step, sizeof *c->step},
                                {c->plan, sizeof c->plan},
                                {c->matrices, sizeof c->matrices},
                                {c->vectors, sizeof c->vectors}};
    for (uint32_t i = 0; i < sizeof constant / sizeof *constant; i++)
        map(c, &constant[i], true, "tables");
    map(c, &c->rows, false, "rows");
    map(c, &c->logits, false, "logits");
    map(c, &c->panels, false, "panels");
    map(c, &c->factors, false, "factors");
    map(c, &c->counters, false, "counters");
    map(c, &c->words, false, "words");
}

/* --- the reference --- */

static float *want_row(const struct product_case *c, uint32_t buffer_index, uint32_t row)
{
    if (buffer_index == PROGRAM_LOGITS)
        return (float *)c->want_logits.data + (size_t)row * 80;
    return (float *)c->want_rows.data + (size_t)row * c->program->row_floats +
           c->program->buffers[buffer_index].offset;
}

static void multiply(const struct product_case *c, const struct program_op *op, const struct op *o,
                     uint32_t j, uint32_t n_rows, float *y)
{
    const struct matmul_matrix *m = &o->weights[j].matrix;
    struct buffer data = buffer(matmul_input_size(c->k, n_rows));
    struct matmul_input in = {.k = c->k, .n_columns = n_rows, .data = data.data};
    for (uint32_t panel = 0; panel < matmul_input_panels(&in); panel++) {
        const float *x[MATMUL_PANEL] = {0};
        for (uint32_t i = 0, row = panel * MATMUL_PANEL; i < MATMUL_PANEL && row < n_rows; i++, row++)
            x[i] = want_row(c, op->in, op->flags & PROGRAM_HEAD ? c->step->logits[row].row : row);
        matmul_scalar.quantise(&in, panel, 0, matmul_input_supers(&in), x, o->gain.data, matmul_is_float(m));
    }
    matmul_scalar.run(m, &in, 0, m->n_groups, y, m->n, NULL);
    free(data.data);
}

static void compute_op(const struct product_case *c, uint32_t i)
{
    const struct program_op *op = &c->program->ops[i];
    const struct op *o = &c->ops[i];
    uint32_t n_rows = op->flags & PROGRAM_HEAD ? c->n_logits : c->n_rows;
    static float y[3][MOST_ROWS * 80];
    float r[MOST_ROWS];
    for (uint32_t j = 0; j < op->n_weights; j++)
        multiply(c, op, o, j, n_rows, y[j]);
    for (uint32_t row = 0; row < n_rows; row++) {
        uint32_t from = op->flags & PROGRAM_HEAD ? c->step->logits[row].row : row;
        r[row] = o->gain.data ? ops_scalar.rms_inverse(want_row(c, op->in, from), c->k, op->eps) : 1.0f;
    }
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t j = 0; j < (op->epilogue == PROGRAM_SWIGLU ? 1 : op->n_weights); j++) {
            uint32_t n = op->n[j];
            float *out = want_row(c, op->out, row) + op->out_col[j], *mine = y[j] + (size_t)row * n;
            if (op->epilogue == PROGRAM_STORE)
                ops_scalar.store(out, mine, n, r[row], o->weights[j].bias.data);
            else if (op->epilogue == PROGRAM_RESIDUAL)
                ops_scalar.residual(out, mine, n, r[row], o->weights[j].bias.data);
            else if (op->epilogue == PROGRAM_TIMES_SILU)
                ops_scalar.gate_silu(out, mine, n, r[row]);
            else if (op->epilogue == PROGRAM_TIMES_SIGMOID)
                ops_scalar.gate_sigmoid(out, mine, n, r[row]);
            else
                ops_scalar.swiglu(out, mine, y[1] + (size_t)row * n, n, r[row], o->weights[0].bias.data,
                                  o->weights[1].bias.data);
        }
}

/* --- opened and closed --- */

struct product_case *product_case_open(uint64_t seed, struct product_wish wish)
{
    static const uint32_t ks[] = {32, 96, 256, 288, 512, 896, 1024, 3072};
    uint32_t n_ks = wish.small ? 5 : sizeof ks / sizeof *ks;
    struct product_case *c = malloc(sizeof *c);
    if (!c)
        abort();
    *c = (struct product_case){.machine = simt_open(), .wish = wish};
    c->max_rows = wish.n_rows > MAX_ROWS ? wish.n_rows : MAX_ROWS;
    c->program = calloc(1, sizeof *c->program + MAX_OPS * sizeof(struct program_op));
    c->step = aligned_alloc(16, sizeof *c->step);
    if (!c->machine || !c->program || !c->step)
        abort();
    memset(c->step, 0, sizeof *c->step);
    state = seed * 0x9e3779b97f4a7c15u + 1;
    uint32_t type = types[seed % N_TYPES];
    bool extreme = below(4) == 0;
    do
        c->k = ks[below(n_ks)];
    while (c->k % quant_traits(type)->block);
    c->k = wish.k ? wish.k : c->k;
    c->n_blocks = between(1, 4);
    c->n_ops = c->program->n_ops = wish.quantised ? 2 : between(1, MAX_OPS);
    open_rows(c, extreme);
    open_step(c);
    for (uint32_t i = 0; i < c->n_ops; i++)
        open_op(c, i, type, extreme);
    open_args(c);
    open_maps(c);
    for (uint32_t i = 0; i < c->n_ops; i++)
        compute_op(c, i);
    return c;
}

void product_case_close(struct product_case *c)
{
    for (uint32_t i = 0; i < c->n_ops; i++) {
        for (uint32_t j = 0; j < c->ops[i].n_weights; j++) {
            struct weight *w = &c->ops[i].weights[j];
            free(w->src.data);
            free(w->tiles.data);
            free(w->cpu.data);
            free(w->bias.data);
        }
        free(c->ops[i].gain.data);
    }
    void *others[] = {c->program,          c->rows_before.data, c->step,
                      c->rows.data,        c->logits.data,      c->want_rows.data,
                      c->want_logits.data, c->panels.data,      c->factors.data,
                      c->counters.data,    c->words.data};
    for (uint32_t i = 0; i < sizeof others / sizeof *others; i++)
        free(others[i]);
    simt_close(c->machine);
    free(c);
}

/* --- running it --- */

/* Says which floats differ in a bit; a NaN is a NaN. */
static bool same(const struct buffer *have, const struct buffer *want, const char *what,
                 struct simt_report *report)
{
    const float *a = have->data, *b = want->data;
    for (size_t i = 0; i < have->size / 4; i++) {
        if (memcmp(&a[i], &b[i], 4) == 0 || (a[i] != a[i] && b[i] != b[i]))
            continue;
        snprintf(report->kind, sizeof report->kind, "result");
        snprintf(report->text, sizeof report->text, "%s[%zu] is %a, not %a", what, i, (double)a[i],
                 (double)b[i]);
        return false;
    }
    return true;
}

void product_case_describe(const struct product_case *c)
{
    printf("  %u blocks of %u threads, k %u, %u rows, %u logits, work %u, %u stages\n", c->n_blocks,
           c->args.n_crew, c->k, c->n_rows, c->n_logits, c->args.shared.work_bytes, c->args.shared.n_stages);
    for (uint32_t i = 0; i < c->n_ops; i++) {
        const struct program_op *op = &c->program->ops[i];
        const struct schedule_op *s = &c->plan[i];
        printf("  op %u: epilogue %u flags %u gain %d groups %u of %u tiles from block %u;", i, op->epilogue,
               op->flags, op->gain != PROGRAM_NONE, s->n_groups, s->group_tiles, s->first_block);
        for (uint32_t j = 0; j < op->n_weights; j++)
            printf(" %s n %u%s by %u", quant_traits(c->ops[i].weights[j].type)->name, op->n[j],
                   op->bias[j] == PROGRAM_NONE ? "" : " bias", s->part[j].stage_supers);
        printf("\n");
    }
}

/* Takes the words, and gate's product, as they are: what reads them tells whether they are right. Behind the
 * last word of a row nothing is stored. */
static bool forget_words(struct product_case *c, struct simt_report *report)
{
    const struct program_buffer *b = &c->program->buffers[PROGRAM_QKV];
    uint32_t end = tile_supers(c->k) * 96; /* words: quantised_words.h */
    for (uint32_t row = 0; row < c->max_rows; row++) {
        float *have = (float *)c->rows.data + (size_t)row * c->program->row_floats + b->offset;
        const uint32_t *words = (const uint32_t *)have;
        for (uint32_t i = row < c->n_rows ? end : 0; i < b->width; i++)
            if (words[i] != UINT32_MAX) {
                snprintf(report->kind, sizeof report->kind, "result");
                snprintf(report->text, sizeof report->text, "row %u: word %u is stored, of %u", row, i, end);
                return false;
            }
        memcpy((float *)c->want_rows.data + (have - (float *)c->rows.data), have,
               (b[1].offset + b[1].width - b->offset) * sizeof(float));
    }
    return true;
}

int product_case_run(struct product_case *c, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    const struct buffer *fresh[] = {&c->logits, &c->panels, &c->factors, &c->counters, &c->words};
    memcpy(c->rows.data, c->rows_before.data, c->rows.size);
    for (uint32_t i = 0; i < sizeof fresh / sizeof *fresh; i++)
        memset(fresh[i]->data, 0, fresh[i]->size);
    struct simt_launch launch = {.kernel = simt_find_kernel("product_walk", sm),
                                 .args = &c->args,
                                 .n_threads = c->args.n_crew + 32,
                                 .n_blocks = c->n_blocks,
                                 .shared_bytes = c->args.shared.total,
                                 .seed = seed,
                                 .schedule = SIMT_N_SCHEDULES,
                                 .mute = mute};
    if (simt_run(c->machine, &launch, report) < 0)
        return -1;
    if (c->wish.quantised && !forget_words(c, report))
        return -1;
    return same(&c->rows, &c->want_rows, "rows", report) &&
                   same(&c->logits, &c->want_logits, "logits", report)
               ? 0
               : -1;
}
