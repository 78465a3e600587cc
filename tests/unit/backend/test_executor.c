/* The executors over a made backend. */
#include "cpu/reference/reference.h"
#include "backend/executor.h"
#include "model/program.h"
#include "support/models/variant.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QWEN3    "tiny-qwen3-s11-q8_0"
#define QWEN3MOE "tiny-qwen3moe-s32-q4_k_m"

/* A backend of this test: eager over the oracle, greedy; submit and advance count their calls. */
struct test_backend {
    struct backend base;
    struct exact *exact;
    struct backend_config config;
    uint32_t n_submitted, n_advanced, n_parked, fail_at, lost_at;
    bool timed, has_no_clock;
    uint64_t step, n_own_launches;
    uint32_t n_results, n_taken;
    struct step_result results[STEP_MAX_LOGITS];
    const struct program *program;
};

static int test_open(struct backend **out, const struct backend_config *cfg, struct error *err)
{
    (void)err;
    struct test_backend *be = calloc(1, sizeof *be);
    cr_assert_not_null(be);
    be->config = *cfg;
    be->n_own_launches = !cfg->eager;
    be->fail_at = be->lost_at = UINT32_MAX;
    *out = &be->base;
    return 0;
}

static int test_load(struct backend *b, const struct program *prog, const struct graph *graph,
                     struct error *err)
{
    struct test_backend *be = (struct test_backend *)b;
    be->program = prog;
    return exact_open(&be->exact, graph, be->config.n_slots, be->config.n_ctx, err);
}

static int test_submit(struct backend *b, const struct step *step, struct error *err)
{
    (void)step, (void)err;
    ((struct test_backend *)b)->n_submitted++;
    return 0;
}

static int test_advance(struct backend *b, struct step_result *out, int max, uint64_t *done,
                        struct error *err)
{
    struct test_backend *be = (struct test_backend *)b;
    (void)err;
    int n = 0;
    be->n_advanced++;
    for (; be->n_taken < be->n_results && n < max; be->n_taken++)
        out[n++] = be->results[be->n_taken];
    *done = be->step;
    return n;
}

static int test_begin(struct backend *b, const struct step *step, struct error *err)
{
    struct test_backend *be = (struct test_backend *)b;
    be->step = step->id;
    be->n_results = step->n_logits;
    be->n_taken = 0;
    for (uint32_t i = 0; i < step->n_logits; i++)
        be->results[i] = (struct step_result){.step = step->id,
                                              .slot = step->rows[step->logits[i].row].slot,
                                              .pos = step->rows[step->logits[i].row].pos,
                                              .logit_index = i};
    return exact_begin(be->exact, step, err);
}

static int test_time_nodes(struct backend *b, bool on, struct error *err)
{
    struct test_backend *be = (struct test_backend *)b;
    be->timed = on;
    return be->has_no_clock ? error_set(err, -EIO, "no clock") : 0;
}

/* As if every node took as many microseconds as its number says. */
static int test_node_ns(struct backend *b, uint32_t node, uint64_t *ns, struct error *err)
{
    const struct test_backend *be = (const struct test_backend *)b;
    cr_assert(be->timed);
    if (node == be->lost_at)
        return error_set(err, -EIO, "the time of node %u is lost", node);
    *ns = 1000 * node;
    return 0;
}

enum { N_VOCAB = 512 };

static int32_t largest(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < N_VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static int test_dispatch(struct backend *b, uint32_t node, struct error *err)
{
    struct test_backend *be = (struct test_backend *)b;
    if (node == be->fail_at)
        return error_set(err, -EIO, "no luck");
    int rc = exact_dispatch(be->exact, node, err);
    for (uint32_t i = 0; i < be->n_results && exact_logits(be->exact, i); i++)
        be->results[i].token = largest(exact_logits(be->exact, i));
    return rc;
}

static const float *test_logits(struct backend *b, uint32_t index)
{
    return exact_logits(((struct test_backend *)b)->exact, index);
}

static void test_info(const struct backend *b, struct backend_info *out)
{
    const struct test_backend *be = (const struct test_backend *)b;
    *out = (struct backend_info){.name = "test", .launches = be->n_own_launches, .ops_per_step = 7};
}

static void test_park(struct backend *b)
{
    ((struct test_backend *)b)->n_parked++;
}

static void test_close(struct backend *b)
{
    exact_close(((struct test_backend *)b)->exact);
    free(b);
}

static const struct backend_node_ops test_nodes = {.begin = test_begin, .dispatch = test_dispatch};
static const struct backend_node_ops timed_nodes = {
    .begin = test_begin, .dispatch = test_dispatch, .time = test_time_nodes, .node_ns = test_node_ns};

static const struct backend_sampling_ops test_sampling = {.logits = test_logits}, no_sampling;

#define TEST_OPS(title, graph, exact)                                                                        \
    {                                                                                                        \
        .name = title, .has_graph = graph, .has_exact = exact, .park = test_park, .open = test_open,         \
        .load = test_load, .submit = test_submit, .advance = test_advance, .nodes = &test_nodes,             \
        .sampling = &test_sampling, .info = test_info, .close = test_close                                   \
    }
static const struct backend_ops cpu_like = TEST_OPS("oracle", false, true),
                                cuda_like = TEST_OPS("device", true, false);
static const struct backend_ops with_clock = {.name = "clock",
                                              .has_exact = true,
                                              .open = test_open,
                                              .load = test_load,
                                              .advance = test_advance,
                                              .nodes = &timed_nodes,
                                              .sampling = &no_sampling,
                                              .info = test_info,
                                              .close = test_close};
static const struct backend_config config = {.arithmetic = BACKEND_EXACT, .n_slots = 2, .n_ctx = 64};

static struct step step;

static void one_row(uint64_t id, uint32_t pos, int32_t token, bool logits)
{
    memset(&step, 0, sizeof step);
    step.id = id;
    step.n_rows = 1;
    step.rows[0] = (struct step_row){0, pos, token, 0, logits ? 0 : STEP_NO_LOGITS};
    step.n_logits = logits;
    step.logits[0] = (struct step_logit){0, 0, -1, STEP_EXPORT, 0};
}

static struct model *model;

static void open_model(void)
{
    struct error err = {0};
    cr_assert_eq(model_open(&model, HEARTH_TEST_DATA "/" QWEN3 ".gguf", &err), 0, "%s", err.text);
}

static void close_model(void)
{
    model_close(model);
}

TestSuite(executor, .init = open_model, .fini = close_model);

static struct executor *open_with(enum executor_kind kind, const struct backend_ops *ops,
                                  const struct backend_config *cfg)
{
    struct error err = {0};
    struct executor *x = NULL;
    cr_assert_eq(executor_open(&x, kind, ops, cfg, model, &err), 0, "%s", err.text);
    return x;
}

Test(executor, eager_gives_the_result_of_a_step)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    struct step_result result;
    uint64_t done = 0;
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_eq(executor_advance(x, &result, 1, &done, NULL), 1);
    cr_assert(done == 1 && result.step == 1 && result.slot == 0 && result.pos == 0);
    const float *logits = executor_logits(x, 0);
    for (int i = 0; i < N_VOCAB; i++)
        cr_assert(logits[i] <= logits[result.token]);
    cr_assert_eq(executor_advance(x, &result, 1, &done, NULL), 0);
    executor_close(x);
}

Test(executor, eager_counts_one_launch_for_each_node_of_each_step)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    uint32_t n = graph_n_launches(executor_graph(x));
    struct backend_info info;
    executor_info(x, &info);
    cr_assert_eq(info.launches, 0);
    for (uint64_t id = 1; id <= 3; id++) {
        one_row(id, (uint32_t)id - 1, 5, false);
        cr_assert_eq(executor_submit(x, &step, NULL), 0);
        cr_assert_eq(executor_advance(x, NULL, 0, NULL, NULL), 0);
        executor_info(x, &info);
        cr_assert_eq(info.launches, id * n);
    }
    cr_assert_eq(info.ops_per_step, n);
    executor_close(x);
}

Test(executor, eager_adds_what_the_backend_launched_besides_and_forgets_both)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    struct test_backend *be = (struct test_backend *)executor_backend(x);
    struct backend_info info;
    one_row(1, 0, 5, false);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    be->n_own_launches = 2;
    executor_info(x, &info);
    cr_assert_eq(info.launches, graph_n_launches(executor_graph(x)) + 2);
    executor_forget(x);
    be->n_own_launches = 5;
    executor_info(x, &info);
    cr_assert_eq(info.launches, 3);
    executor_close(x);
}

Test(executor, eager_keeps_the_results_of_two_steps_in_order)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    struct step_result results[2];
    uint64_t done = 0;
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    one_row(2, 1, STEP_LAST_SAMPLED, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    one_row(3, 2, STEP_LAST_SAMPLED, true);
    cr_assert_eq(executor_submit(x, &step, NULL), -EAGAIN);
    cr_assert_eq(executor_advance(x, results, 1, &done, NULL), 1);
    cr_assert(results[0].step == 1 && done == 1);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_eq(executor_advance(x, results, 2, &done, NULL), 2);
    cr_assert(results[0].step == 2 && results[1].step == 3 && done == 3);
    executor_close(x);
}

Test(executor, eager_says_that_a_step_without_logit_rows_is_done)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    struct step_result result;
    uint64_t done = 0;
    one_row(7, 0, 5, false);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_eq(executor_advance(x, &result, 1, &done, NULL), 0);
    cr_assert_eq(done, 7);
    executor_close(x);
}

Test(executor, eager_stops_at_the_first_error_and_names_the_node)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    struct error err = {0};
    struct backend_info info;
    ((struct test_backend *)executor_backend(x))->fail_at = 6;
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, &err), -EIO);
    cr_assert_str_eq(err.text, "node 6 blk.0.attn_q_norm (RMS_NORM): no luck");
    executor_info(x, &info);
    cr_assert_eq(info.launches, 5);
    executor_close(x);
}

/* The number of nodes that have taken some time. */
static uint32_t n_timed(const struct executor *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < executor_graph(x)->n_nodes; i++)
        n += executor_timing(x)->node_ns[i] > 0;
    return n;
}

Test(executor, times_nodes_once_switched_on)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_null(executor_timing(x)->node_ns);
    cr_assert_eq(executor_time_ops(x, true, NULL), 0);
    cr_assert_eq(n_timed(x), 0);
    one_row(2, 1, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_gt(n_timed(x), 0);
    executor_close(x);
}

Test(executor, takes_the_devices_times_where_the_backend_has_them)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &with_clock, &config);
    const struct executor_timing *timing = executor_timing(x);
    const struct graph *g = executor_graph(x);
    cr_assert_eq(executor_time_ops(x, true, NULL), 0);
    for (uint32_t i = 0; i < 4; i++) {
        one_row(i + 1, i, 5, true);
        cr_assert_eq(executor_submit(x, &step, NULL), 0);
        cr_assert_eq(executor_advance(x, &(struct step_result){0}, 1, NULL, NULL), 1);
        if (i == 1)
            cr_assert_eq(executor_time_ops(x, false, NULL), 0);
    }
    cr_assert(timing->by_device);
    for (uint32_t i = 0; i < g->n_nodes; i++)
        cr_assert_eq(timing->node_ns[i], g->nodes[i].op == GRAPH_NONE ? 0 : 2000 * i);
    executor_close(x);
}

Test(executor, a_device_that_has_no_times_is_an_error)
{
    struct executor *x = open_with(EXECUTOR_EAGER, &with_clock, &config);
    struct test_backend *be = (struct test_backend *)executor_backend(x);
    struct error err = {0}, lost = {0};
    be->has_no_clock = true;
    cr_assert_eq(executor_time_ops(x, true, &err), -EIO);
    cr_assert_str_eq(err.text, "no clock");
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0); /* and nothing is timed */
    cr_assert_eq(n_timed(x), 0);
    be->has_no_clock = false;
    be->lost_at = 3;
    cr_assert_eq(executor_time_ops(x, true, NULL), 0);
    one_row(2, 1, 5, true);
    cr_assert_eq(executor_submit(x, &step, &lost), -EIO);
    cr_assert_str_eq(lost.text, "the time of node 3 is lost");
    executor_close(x);
}

Test(executor, persistent_hands_steps_to_the_backend_and_counts_its_launches)
{
    const struct backend_config int8 = {.n_slots = 1, .n_ctx = 64};
    struct executor *x = open_with(EXECUTOR_PERSISTENT, &cpu_like, &int8);
    struct test_backend *be = (struct test_backend *)executor_backend(x);
    struct step_result result;
    struct backend_info info;
    uint64_t done;
    one_row(1, 0, 5, true);
    cr_assert_eq(executor_submit(x, &step, NULL), 0);
    cr_assert_eq(executor_advance(x, &result, 1, &done, NULL), 0);
    executor_info(x, &info);
    cr_assert(be->n_submitted == 1 && be->n_advanced == 1 && info.launches == 1 && info.ops_per_step == 7);
    cr_assert_eq(be->program, executor_program(x));
    cr_assert_not(be->config.eager);
    cr_assert_eq(executor_kind(x), EXECUTOR_PERSISTENT);
    executor_close(x);
}

Test(executor, a_decoder_that_does_not_time_its_ops_says_so)
{
    const struct backend_config int8 = {.n_slots = 1, .n_ctx = 64};
    struct executor *x = open_with(EXECUTOR_PERSISTENT, &cpu_like, &int8), *eager;
    cr_assert_not(executor_program_ns(x, NULL));
    executor_close(x);
    eager = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    cr_assert_not(executor_program_ns(eager, NULL));
    executor_close(eager);
}

Test(executor, park_reaches_the_backend)
{
    const struct backend_config int8 = {.n_slots = 1, .n_ctx = 64};
    struct executor *x = open_with(EXECUTOR_PERSISTENT, &cpu_like, &int8);
    executor_park(x);
    cr_assert_eq(((struct test_backend *)executor_backend(x))->n_parked, 1);
    executor_close(x);
}

Test(executor, graph_is_for_a_backend_that_has_graphs)
{
    const struct backend_config int8 = {.n_slots = 1, .n_ctx = 64};
    struct executor *x = open_with(EXECUTOR_GRAPH, &cuda_like, &int8);
    cr_assert(((struct test_backend *)executor_backend(x))->config.eager);
    executor_close(x);
}

/* The combination is refused before anything is opened. */
static void refused(enum executor_kind kind, const struct backend_ops *ops, const struct backend_config *cfg,
                    int code, const char *words)
{
    struct error err = {0};
    struct executor *x = NULL;
    cr_assert_eq(executor_open(&x, kind, ops, cfg, model, &err), code, "%s", err.text);
    cr_assert_null(x);
    cr_assert_not_null(strstr(err.text, words), "%s", err.text);
}

Test(executor, refuses_combinations_that_make_no_sense)
{
    const struct backend_config int8 = {.n_slots = 1, .n_ctx = 64};
    refused(EXECUTOR_GRAPH, &cpu_like, &int8, -EINVAL, "backend cuda");
    refused(EXECUTOR_PERSISTENT, &cpu_like, &config, -EINVAL, "executor eager");
    refused(EXECUTOR_EAGER, &cuda_like, &config, -EINVAL, "backend cpu");
}

Test(executor, refuses_a_context_above_the_sliding_window)
{
    char path[64];
    variant_write(path, QWEN3, EDITS(SET_U32("qwen3.attention.sliding_window", 64)));
    model_close(model);
    cr_assert_eq(model_open(&model, path, NULL), 0);
    unlink(path);
    struct backend_config cfg = config;
    executor_close(open_with(EXECUTOR_EAGER, &cpu_like, &cfg));
    cfg.n_ctx = 65;
    refused(EXECUTOR_EAGER, &cpu_like, &cfg, -ENOTSUP, "looks back 64 tokens");
}

/* The rows of a prompt alone, where `n_used` of six experts compute a row; 0: of a dense model. */
static uint32_t rows_of_a_pass(uint32_t n_used)
{
    char path[64];
    struct backend_info info;
    variant_write(path, n_used ? QWEN3MOE : QWEN3, EDITS(SET_U32("qwen3moe.expert_used_count", n_used)));
    model_close(model);
    cr_assert_eq(model_open(&model, path, NULL), 0);
    unlink(path);
    struct executor *x = open_with(EXECUTOR_EAGER, &cpu_like, &config);
    executor_info(x, &info);
    executor_close(x);
    return info.rows_of_a_pass;
}

Test(executor, says_how_many_rows_of_a_prompt_pay_for_reading_the_experts)
{
    cr_assert_eq(rows_of_a_pass(0), 64);
    cr_assert_eq(rows_of_a_pass(2), 64); /* 48 give each expert 16 by mean */
    cr_assert_eq(rows_of_a_pass(1), 96);
}
