/* part_attention.c - E7: attention alone: the shipped kernel of the node, on pasts of several lengths in each
 * type of cache. The layers of one cache are read one after another, so that they come from memory. All keys
 * are equal and so are all values, so the result is the value, which is checked. */
#include "gpu/gpu.h"
#include "abi/node_args.h"
#include "abi/step.h"
#include "gpu/kernels/gpu_kernels.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define ROUNDS               3
#define N_HEADS              32 /* of Qwen3-8B and Llama 3 8B */
#define N_KV_HEADS           8
#define HEAD_DIM             128
#define MOST_SLOTS           8
#define WORK_BYTES           40960u /* as lib/cuda/cuda_nodes.c has it */
#define FILL                 0x3c   /* of every byte of the cache */
#define MOST_LAYERS          64
#define MOST_LAYERS_EMULATED 2 /* the race detector looks at every access: a minute for a dozen */

struct attention {
    struct gpu *g;
    struct attention_args args;
    struct gpu_launch launch;
    struct step *step;
    uint32_t *tables;
    float *out;
    uint64_t q, out_at, step_at, tables_at, scratch, fault, pages;
    size_t page_bytes_most; /* memory of all pages */
    uint32_t most_tokens;
};

/* The value that FILL makes: 0x3c3c as f16 and bf16; 60 times that f16. */
static const double values[KV_N_TYPES] = {
    [KV_F16] = 1.05859375, [KV_BF16] = 0.011474609375, [KV_Q8_0] = 60 * 1.05859375};
static const char *const type_names[KV_N_TYPES] = {[KV_F16] = "f16", [KV_BF16] = "bf16", [KV_Q8_0] = "q8_0"};

/* Lays out a cache of as many layers as fit, and gives each slot its pages. */
static int lay_out(struct attention *a, uint32_t n_slots, uint32_t n_tokens, enum kv_type type,
                   struct error *err)
{
    struct attend_args *t = &a->args.attend;
    uint32_t n_pages = (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    t->layout = (struct kv_layout){
        .n_layers = 1, .n_kv_heads = N_KV_HEADS, .head_dim = HEAD_DIM, .type = (uint32_t)type};
    uint64_t layer = (uint64_t)n_slots * n_pages * kv_page_size(&t->layout), fit = a->page_bytes_most / layer;
    uint32_t most = a->g->emulated ? MOST_LAYERS_EMULATED : MOST_LAYERS;
    t->layout.n_layers = fit > most ? most : (uint32_t)fit;
    t->slots = (struct decoder_slots){.tables = a->tables_at,
                                      .n_slots = n_slots,
                                      .n_ctx = n_pages * KV_PAGE_TOKENS,
                                      .pages_per_slot = n_pages,
                                      .n_pages = n_slots * n_pages};
    for (uint32_t i = 0; i < n_slots * n_pages; i++)
        a->tables[i] = n_slots * n_pages - 1 - i;
    a->step->n_rows = n_slots;
    for (uint32_t i = 0; i < n_slots; i++)
        a->step->rows[i] = (struct step_row){.slot = i, .pos = n_tokens - 1, .logit_index = STEP_NO_LOGITS};
    int rc = fit ? 0 : error_set(err, -ENOMEM, "%u pages do not fit", n_slots * n_pages);
    if (rc == 0)
        rc = gpu_write(a->g, a->tables_at, a->tables, (size_t)n_slots * n_pages * 4, err);
    return rc < 0 ? rc : gpu_write(a->g, a->step_at, a->step, sizeof *a->step, err);
}

static int check(struct attention *a, const char *what, double value, struct error *err)
{
    uint32_t fault[DECODER_LINE];
    size_t n = (size_t)a->step->n_rows * N_HEADS * HEAD_DIM;
    int rc = gpu_read(a->g, fault, a->fault, sizeof fault, err);
    if (rc == 0 && fault[0])
        rc = error_set(err, -EIO, "attention over %s: an index of the step is out of range", what);
    if (rc == 0)
        rc = gpu_read(a->g, a->out, a->out_at, n * sizeof *a->out, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (!(fabs((double)a->out[i] - value) <= 0.01 * value))
            rc = error_set(err, -EIO, "attention over %s: value %zu is %g, not %g", what, i,
                           (double)a->out[i], value);
    return rc;
}

/* Attends in all layers, one launch each. */
static int run(struct attention *a, double *seconds, struct error *err)
{
    const struct cuda_driver *d = &a->g->driver;
    float ms = 0;
    int rc = CUDA_TRY(d, err, cuEventRecord, a->g->start, a->g->stream);
    for (uint32_t layer = 0; rc == 0 && layer < a->args.attend.layout.n_layers; layer++) {
        a->args.attend.layer = layer;
        rc = gpu_start(a->g, &a->launch, err);
    }
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuEventRecord, a->g->end, a->g->stream);
    if (rc == 0)
        rc = gpu_finish(a->g, GPU_LIMIT_S, err);
    if (rc == 0)
        rc = CUDA_TRY(d, err, cuEventElapsedTime, &ms, a->g->start, a->g->end);
    *seconds = (double)ms * 1e-3 / a->args.attend.layout.n_layers;
    return rc;
}

static int measure(struct attention *a, uint32_t n_slots, uint32_t n_tokens, enum kv_type type, json_t *rows,
                   struct error *err)
{
    double best = 1e9;
    int rc = lay_out(a, n_slots, n_tokens, type, err);
    for (int i = 0; rc == 0 && i < (a->g->emulated ? 1 : ROUNDS); i++) {
        double seconds;
        rc = run(a, &seconds, err);
        best = rc == 0 && seconds < best ? seconds : best;
    }
    if (rc == 0)
        rc = check(a, type_names[type], values[type], err);
    if (rc < 0)
        return rc;
    struct kv_layout one = a->args.attend.layout;
    one.n_layers = 1;
    double bytes = (double)n_slots * n_tokens / KV_PAGE_TOKENS * (double)kv_page_size(&one);
    gpu_add(rows,
            json_pack("{s:s, s:i, s:i, s:i, s:o, s:o}", "cache", type_names[type], "tokens", (int)n_tokens,
                      "rows", (int)n_slots, "layers", (int)a->args.attend.layout.n_layers, "us",
                      gpu_figure(a->g, best * 1e6), "gbps", gpu_figure(a->g, bytes * 1e-9 / best)));
    return 0;
}

static int measure_all(struct attention *a, json_t *rows, struct error *err)
{
    static const uint32_t lengths[] = {512, 8192, 32768}, small[] = {40, 130};
    const uint32_t *list = a->g->emulated ? small : lengths;
    size_t n = a->g->emulated ? 2 : 3;
    int rc = 0;
    for (int type = 0; type < KV_N_TYPES; type++)
        for (size_t i = 0; rc == 0 && i < n; i++) {
            rc = measure(a, 1, list[i], (enum kv_type)type, rows, err);
            if (rc == 0 && list[i] <= 8192)
                rc = measure(a, a->g->emulated ? 2 : MOST_SLOTS, list[i], (enum kv_type)type, rows, err);
        }
    return rc;
}

static int take_memory(struct attention *a, struct error *err)
{
    struct gpu *g = a->g;
    size_t row = (size_t)N_HEADS * HEAD_DIM * sizeof(float);
    size_t scratch = attend_scratch_bytes(MOST_SLOTS, N_HEADS, HEAD_DIM, a->most_tokens, 0);
    size_t tables = (size_t)MOST_SLOTS * a->most_tokens / KV_PAGE_TOKENS * 4;
    a->tables = malloc(tables);
    a->step = calloc(1, sizeof *a->step);
    a->out = malloc(MOST_SLOTS * row);
    if (!a->tables || !a->step || !a->out)
        return error_set(err, -ENOMEM, "out of memory");
    const struct {
        uint64_t *at;
        size_t bytes;
    } wanted[] = {{&a->q, MOST_SLOTS * row},      {&a->out_at, MOST_SLOTS * row},
                  {&a->step_at, sizeof *a->step}, {&a->tables_at, tables},
                  {&a->scratch, scratch},         {&a->fault, DECODER_LINE * 4},
                  {&a->pages, a->page_bytes_most}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof wanted / sizeof *wanted; i++)
        rc = gpu_memory(g, wanted[i].at, wanted[i].bytes, err);
    if (rc == 0)
        rc = CUDA_TRY(&g->driver, err, cuMemsetD8Async, a->pages, FILL, a->page_bytes_most, g->stream);
    return rc < 0 ? rc : CUDA_TRY(&g->driver, err, cuMemsetD8Async, a->q, FILL, MOST_SLOTS * row, g->stream);
}

static void fill_args(struct attention *a)
{
    a->args.step = (struct node_step){.step = a->step_at, .fault = a->fault};
    a->args.attend = (struct attend_args){.in = a->q,
                                          .out = a->out_at,
                                          .kv = a->pages,
                                          .scratch = a->scratch,
                                          .max_rows = MOST_SLOTS,
                                          .ready = 1,
                                          .in_stride = N_HEADS * HEAD_DIM,
                                          .out_stride = N_HEADS * HEAD_DIM,
                                          .n_heads = N_HEADS,
                                          .scale = 0.088f,
                                          .work_bytes = WORK_BYTES};
    a->launch.args = &a->args;
    a->launch.n_blocks = 2 * a->g->device.n_sms;
    a->launch.n_threads = NODE_ATTEND_THREADS;
    a->launch.shared_bytes = WORK_BYTES;
}

int part_attention(struct gpu *g, json_t *out, struct error *err)
{
    struct attention a = {.g = g,
                          .page_bytes_most = g->emulated ? (size_t)3 << 20 : (size_t)3 << 30,
                          .most_tokens = g->emulated ? 192 : 32768};
    json_t *rows = json_array();
    gpu_put(out, "rows", rows);
    int rc = gpu_function(g, ptx_images, "attention", "attention", WORK_BYTES, &a.launch.function, err);
    if (rc == 0)
        rc = take_memory(&a, err);
    fill_args(&a);
    if (rc == 0)
        rc = gpu_warm(g, err);
    if (rc == 0)
        rc = measure_all(&a, rows, err);
    free(a.tables);
    free(a.step);
    free(a.out);
    return rc;
}
