#include "bench.h"
#include "base/clock.h"
#include "backend/executor.h"
#include "model/graph.h"
#include "model/model.h"
#include "gguf/quant.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void bench_test_name(const struct bench_test *test, char *out, size_t room)
{
    int n = snprintf(out, room, "%s%u", test->prefill ? "pp" : "tg", test->n_tokens);

    if (test->depth)
        n += snprintf(out + n, room - (size_t)n, "@d%u", test->depth);
    if (test->batch > 1)
        snprintf(out + n, room - (size_t)n, "@b%u", test->batch);
}

/* ---- what a token costs ---- */

bool bench_is_int8(uint32_t type)
{
    return type != QUANT_F32 && type != QUANT_F16 && type != QUANT_BF16; /* those are multiplied as floats */
}

uint64_t bench_weight_bytes(const struct weight *w)
{
    return w->type == QUANT_NVFP4_SCALED ? w->n * quant_size(w->stored, w->k) : w->size;
}

double bench_experts_read(const struct route_rule *r, double rows)
{
    return 1 - pow(1 - (double)r->n_used / r->n_experts, rows);
}

double bench_seen(const struct model_attention *a, double past)
{
    return a->window && past > a->window ? a->window : past;
}

double bench_seen_bytes(const struct model_attention *a, uint32_t kv_type, double past)
{
    const struct kv_layout layer = {
        .n_layers = 1, .n_kv_heads = a->n_kv_heads, .head_dim = a->head_dim, .type = kv_type};
    return (double)kv_part_size(&layer) / KV_PAGE_TOKENS * bench_seen(a, past);
}

struct bench_cost bench_cost(const struct offline *o, const struct bench_test *test)
{
    const struct graph *g = executor_graph(o->runtime.executor);
    const struct model_config *c = model_config(g->model);
    struct backend_info info;
    double weights = 0, row = 0, ops = 0, attention = 0, kv = 0;

    executor_info(o->runtime.executor, &info);
    uint32_t chunk = test->n_tokens < info.max_rows ? test->n_tokens : info.max_rows;
    double sharers = test->prefill ? chunk : test->batch, past = test->depth + test->n_tokens / 2.0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *node = &g->nodes[i];
        if (node->op == GRAPH_SOFT_MAX) {
            attention += 4 * node->width * bench_seen(&c->kinds[node->kind], past);
            kv += bench_seen_bytes(&c->kinds[node->kind], info.kv.type, past);
        }
        if (node->weight == MODEL_NO_WEIGHT || (test->prefill && node->head))
            continue;
        const struct weight *w = model_weight(g->model, node->weight);
        if (node->op == GRAPH_EMBED)
            row += (double)bench_weight_bytes(w) / w->n;
        if (node->op != GRAPH_MUL_MAT && node->op != GRAPH_MUL_MAT_HEADS && node->op != GRAPH_MUL_MAT_ID)
            continue;
        const struct route_rule *experts = node->op == GRAPH_MUL_MAT_ID ? &node->route : NULL;
        double used = experts ? (double)experts->n_used / experts->n_experts : 1;
        weights += (double)bench_weight_bytes(w) * (experts ? bench_experts_read(experts, sharers) : 1);
        ops += bench_is_int8(w->type) ? 2.0 * w->n * w->k * used : 0;
    }
    /* A text's states are read and written. A chunk's rows read each other's keys and values out of caches:
     * only decoding pays for the past. */
    return (struct bench_cost){.bytes = weights / sharers + row +
                                        (test->prefill ? 0 : kv + 2.0 * (double)model_state_size(c)),
                               .int8_ops = ops,
                               .attention_ops = attention};
}

/* ---- statistics ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double bench_deviation(const double *values, uint32_t n)
{
    double mean = 0, squares = 0;

    for (uint32_t i = 0; i < n; i++)
        mean += values[i] / n;
    for (uint32_t i = 0; i < n; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return n > 1 ? sqrt(squares / (n - 1)) : 0;
}

/* ---- beside the limits ---- */

/* The fraction of `limit`, in units per second, at `cost` units a token; 0: the limit is unknown. */
static double fraction_of(double limit, double tokens_per_s, double cost)
{
    return limit > 0 ? tokens_per_s * cost / limit : 0;
}

void bench_roofline_add(struct bench_roofline *to, const struct bench_roofline *from, double share)
{
    to->read_gbps += share * from->read_gbps;
    to->int8_tops += share * from->int8_tops;
    to->f32_tflops += share * from->f32_tflops;
    to->bf16_tflops += share * from->bf16_tflops;
    to->amx_tops += share * from->amx_tops;
}

void bench_compare(struct bench_row *row, const double *rates, const struct bench_roofline *looks, uint32_t n)
{
    double read[BENCH_MAX_REPS], int8[BENCH_MAX_REPS];

    row->roofline = (struct bench_roofline){0};
    for (uint32_t i = 0; i < n; i++) {
        double gbps = (looks[i].read_gbps + looks[i + 1].read_gbps) / 2;
        double tops = (looks[i].int8_tops + looks[i + 1].int8_tops) / 2;
        read[i] = fraction_of(gbps * 1e9, rates[i], row->cost.bytes);
        int8[i] = fraction_of(tops * 1e12, rates[i], row->cost.int8_ops);
        row->roofline.read_gbps += gbps / n;
        row->roofline.int8_tops += tops / n;
    }
    row->read_fraction = bench_median(read, n);
    row->int8_fraction = bench_median(int8, n);
    row->bound = row->read_fraction >= row->int8_fraction ? "read" : "int8";
    row->fraction = row->read_fraction >= row->int8_fraction ? row->read_fraction : row->int8_fraction;
}

/* ---- measuring ---- */

struct bench_batch { /* one test's requests; memory for all repetitions */
    uint32_t n;
    int32_t *prompt;
    struct engine_request *requests;
    struct engine_token *out;
    struct {
        uint64_t ns, n; /* when, and how many tokens there were by then; ns 0: not seen */
    } all_began, one_ended;
};

uint32_t bench_prompt_length(const struct bench_test *test)
{
    return test->prefill ? test->n_tokens : test->depth ? test->depth : 1;
}

uint32_t bench_generated(const struct bench_test *test)
{
    return test->prefill ? 0 : test->n_tokens + 1;
}

void bench_fill_prompt(int32_t *prompt, uint32_t n, uint32_t n_vocab)
{
    uint32_t random = 12345;

    for (uint32_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((random >> 8) % n_vocab);
    }
}

static void batch_close(struct bench_batch *b)
{
    free(b->prompt);
    free(b->requests);
    free(b->out);
}

static int batch_open(struct bench_batch *b, const struct offline *o, const struct bench_test *test,
                      struct error *err)
{
    uint32_t n_prompt = bench_prompt_length(test), n_out = bench_generated(test);

    *b = (struct bench_batch){.n = test->batch};
    b->prompt = malloc(n_prompt * sizeof *b->prompt);
    b->requests = calloc(b->n, sizeof *b->requests);
    b->out = calloc((size_t)b->n * (n_out + 1), sizeof *b->out);
    if (!b->prompt || !b->requests || !b->out) {
        batch_close(b);
        return error_set(err, -ENOMEM, "out of memory");
    }
    bench_fill_prompt(b->prompt, n_prompt, model_config(o->runtime.model)->n_vocab);
    return 0;
}

static void batch_prepare(struct bench_batch *b, const struct bench_test *test)
{
    uint32_t n_out = bench_generated(test);

    b->all_began.ns = b->one_ended.ns = 0;
    for (uint32_t i = 0; i < b->n; i++)
        b->requests[i] = (struct engine_request){
            .prompt = b->prompt,
            .n_prompt = bench_prompt_length(test),
            .max_tokens = n_out,
            .ignore_eos = true,
            /* One text's past is computed once; several ones' would be one past in the caches of the CPU. */
            .cache_prompt = !test->prefill && test->batch == 1,
            .sampling = {.seed = i, STEP_SAMPLING_NEUTRAL},
            .out = b->out + (size_t)i * (n_out + 1)};
}

/* Between the two moments that it notes, all sequences generate and nothing else goes on. */
static uint32_t batch_watch(struct bench_batch *b, uint32_t n_submitted)
{
    uint32_t n_began = 0, n_done = 0;
    uint64_t n = 0, now = clock_ns();

    for (uint32_t i = 0; i < n_submitted; i++) {
        uint32_t n_out = atomic_load(&b->requests[i].n_out);
        n += n_out;
        n_began += n_out > 0;
        n_done += atomic_load(&b->requests[i].state) == ENGINE_DONE;
    }
    if (!b->all_began.ns && n_began == b->n && !n_done) {
        b->all_began.ns = now;
        b->all_began.n = n;
    }
    if (!b->one_ended.ns && n_done) {
        b->one_ended.ns = now;
        b->one_ended.n = n;
    }
    return n_done;
}

static int batch_run(struct bench_batch *b, struct offline *o, struct error *err)
{
    uint32_t n_submitted = 0, n_done = 0;
    int rc = 0;

    for (; n_submitted < b->n && rc == 0; n_submitted += rc == 0)
        rc = engine_submit(o->engine, &b->requests[n_submitted], err);
    while (n_done < n_submitted) {
        offline_wait(o);
        n_done = batch_watch(b, n_submitted);
    }
    for (uint32_t i = 0; i < n_submitted && rc == 0; i++)
        if (b->requests[i].finish != ENGINE_LENGTH && b->requests[i].finish != ENGINE_EOS)
            rc = engine_fault(o->engine, err)
                     ? err->code
                     : error_set(err, -EIO, "benchmark request %u ended with code %d", i,
                                 (int)b->requests[i].finish);
    return rc;
}

/* Tokens per second of all requests together: a prompt from its start to its end; the text of several
 * sequences while all of them generate, so that the prompts of the later ones are not counted in; else text
 * from the first token of the first sequence to the last token of the last. */
static double batch_rate(const struct bench_batch *b, const struct bench_test *test)
{
    uint64_t begin = UINT64_MAX, end = 0;

    if (test->batch > 1 && b->all_began.ns && b->one_ended.n > b->all_began.n)
        return (double)(b->one_ended.n - b->all_began.n) * 1e9 / (double)(b->one_ended.ns - b->all_began.ns);

    for (uint32_t i = 0; i < b->n; i++) {
        const struct engine_request *r = &b->requests[i];
        uint64_t from = test->prefill ? r->started_ns : r->first_ns;
        begin = from < begin ? from : begin;
        end = r->done_ns > end ? r->done_ns : end;
    }
    return end > begin ? (double)test->n_tokens * b->n * 1e9 / (double)(end - begin) : 0;
}

int bench_check_fit(const struct bench_test *test, uint32_t n_ctx, struct error *err)
{
    uint32_t needed = bench_prompt_length(test) + bench_generated(test);
    char name[48];

    bench_test_name(test, name, sizeof name);
    if (needed > n_ctx)
        return error_set(err, -EINVAL, "%s needs %u tokens of context, the context has %u; see --n-ctx", name,
                         needed, n_ctx);
    return 0;
}

bool bench_is_emulated(const struct executor *x)
{
    struct backend_info info;

    executor_info(x, &info);
    return info.memory_total && strstr(info.device, "emulator");
}

static uint64_t launches(const struct offline *o)
{
    struct backend_info info;

    executor_info(o->runtime.executor, &info);
    return info.launches;
}

int bench_measure(struct offline *o, const struct bench_test *test, uint32_t repetitions,
                  const struct bench_limits *limits, struct bench_row *row, struct error *err)
{
    double rates[BENCH_MAX_REPS];
    struct bench_roofline looks[BENCH_MAX_REPS + 1] = {0};
    struct bench_batch b = {0}; /* gcc cannot see under TSan that batch_open fills it */
    uint64_t launched = 0;
    int rc = bench_check_fit(test, engine_n_ctx(o->engine), err);

    if (rc == 0)
        rc = batch_open(&b, o, test, err);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i <= repetitions && rc == 0; i++) {
        batch_prepare(&b, test);
        launched = i == 1 ? launches(o) : launched; /* the first one warms caches and clocks */
        rc = batch_run(&b, o, err);
        if (rc == 0 && limits)
            looks[i] = limits->look(limits->context);
        if (rc == 0 && i > 0)
            rates[i - 1] = batch_rate(&b, test);
    }
    batch_close(&b);
    if (rc < 0)
        return rc;
    launched = launches(o) - launched;
    uint64_t n_tokens = (uint64_t)repetitions * test->batch *
                        (test->prefill ? test->n_tokens : bench_generated(test) + test->depth);
    *row = (struct bench_row){.executor = (int)executor_kind(o->runtime.executor),
                              .sd = bench_deviation(rates, repetitions),
                              .launches_per_token = (double)launched / (double)n_tokens,
                              .launches = launched,
                              .cost = bench_cost(o, test)};
    bench_compare(row, rates, looks, repetitions);
    row->tokens_per_s = bench_median(rates, repetitions); /* sorts them */
    bench_test_name(test, row->test, sizeof row->test);
    return 0;
}
