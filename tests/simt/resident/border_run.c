#include "border_run.h"
#include "abi/node_args.h"
#include "device/simt.h"
#include "toy_feed.h"

#include <string.h>

#define MAX_STEPS     3
#define BEGIN_THREADS 256
#define FLAT_BLOCKS   2
#define FLAT_THREADS  64
#define WIDTH         8

/* The fault of the last step. */
enum damage { NONE, NO_SLOT, TOO_MANY_ROWS, NO_LOGIT, N_DAMAGES };

/* The way that its kernels are run. */
struct manner {
    uint32_t sm;
    uint64_t seed;
    enum simt_schedule schedule;
    int mute;
};

void border_run_open(struct border_run *r, enum border_kernel muted)
{
    r->muted = muted;
    toy_model_open(&r->model);
    toy_rig_open(&r->rig, &r->model, 2, 3);
    r->rig.args.staged_stride = 0; /* as the executors have it: one staged step */
}

void border_run_close(struct border_run *r)
{
    rig_close(&r->rig);
    toy_model_close(&r->model);
}

static int wrong(struct simt_report *report, const char *what)
{
    snprintf(report->kind, sizeof report->kind, "result");
    snprintf(report->text, sizeof report->text, "%s", what);
    return -1;
}

static int launch(struct border_run *r, const char *name, const void *args, uint32_t n_threads,
                  uint32_t n_blocks, const struct manner *m, int mute, struct simt_report *report)
{
    struct simt_launch l = {.kernel = simt_find_kernel(name, m->sm),
                            .args = args,
                            .n_threads = n_threads,
                            .n_blocks = n_blocks,
                            .seed = m->seed,
                            .schedule = m->schedule,
                            .mute = mute};
    return simt_run(r->rig.machine, &l, report);
}

/* Every kernel's mutation is for its own launches. */
static int launch_border(struct border_run *r, const char *name, uint32_t n_threads, const struct manner *m,
                         struct simt_report *report)
{
    int mute = r->muted == BORDER_OF_STEPS ? m->mute : -1;
    return launch(r, name, &r->rig.args, n_threads, 1, m, mute, report);
}

/* --- the nodes --- */

static struct step *staged(const struct border_run *r)
{
    return (struct step *)(uintptr_t)(r->rig.args.staged + DECODER_STEP_AT);
}

/* out = column `to` of the rows' buffer; a is gathered by logits, which a node of the head does. */
static int launch_flat(struct border_run *r, const char *name, enum border_kernel kernel, uint32_t to,
                       const struct manner *m, struct simt_report *report)
{
    const struct decoder_args *a = &r->rig.args;
    struct node_rows rows = {.data = a->buffers.rows, .stride = a->buffers.row_floats};
    struct flat_args args = {.step = {.step = a->staged + DECODER_STEP_AT, .fault = a->abort_word, .head = 1},
                             .a = rows,
                             .b = rows,
                             .out = rows,
                             .width = WIDTH,
                             .factor = 2};
    if (kernel == BORDER_SCALE)
        args.b.data = 0; /* it is a factor of the model there */
    args.a.gathered = 1;
    args.out.data += (size_t)to * WIDTH * 4;
    return launch(r, name, &args, FLAT_THREADS, FLAT_BLOCKS, m, r->muted == kernel ? m->mute : -1, report);
}

/* Column `at` of the rows' buffer. */
static struct node_rows column(const struct border_run *r, uint32_t at)
{
    const struct decoder_args *a = &r->rig.args;
    return (struct node_rows){.data = a->buffers.rows + (size_t)at * WIDTH * 4,
                              .stride = a->buffers.row_floats};
}

/* Routes by column 0 into column 3, then sums columns 0 and 1 into column 2 by the weights there. */
static int launch_experts(struct border_run *r, const struct manner *m, struct simt_report *report)
{
    const struct decoder_args *a = &r->rig.args;
    const struct node_step step = {.step = a->staged + DECODER_STEP_AT, .fault = a->abort_word, .head = 1};
    struct route_args route = {
        .step = step,
        .in = column(r, 0),
        .out = column(r, 3),
        .rule = {.n_experts = WIDTH, .n_used = 2, .n_groups = 1, .n_groups_used = 1, .scale = 1}};
    const struct expert_sum_args sum = {.step = step,
                                        .in = column(r, 0),
                                        .choice = column(r, 3),
                                        .out = column(r, 2),
                                        .width = WIDTH,
                                        .n_used = 2};
    route.in.gathered = 1;
    int rc = launch(r, "route", &route, NODE_ROUTE_THREADS, FLAT_BLOCKS, m,
                    r->muted == BORDER_ROUTE ? m->mute : -1, report);
    return rc < 0 ? rc
                  : launch(r, "expert_sum", &sum, FLAT_THREADS, FLAT_BLOCKS, m,
                           r->muted == BORDER_EXPERT_SUM ? m->mute : -1, report);
}

/* Joins columns 0 and 3 in column 1; brings column 0 to length 1 there; the gates of columns 0 and 3 into
 * column 2. */
static int launch_recurrent(struct border_run *r, const struct manner *m, struct simt_report *report)
{
    const struct decoder_args *a = &r->rig.args;
    const struct node_step step = {.step = a->staged + DECODER_STEP_AT, .fault = a->abort_word, .head = 1};
    struct l2_norm_args unit = {
        .step = step,
        .in = column(r, 0),
        .out = column(r, 1),
        .shape = {.n_key_heads = 1, .n_value_heads = 2, .key_dim = WIDTH / 4, .value_dim = WIDTH / 4},
        .eps = 1};
    struct delta_gate_args gates = {.step = step,
                                    .b = column(r, 0),
                                    .alpha = column(r, 3),
                                    .out = column(r, 2),
                                    .decay = a->buffers.rows,
                                    .dt = a->buffers.rows,
                                    .shape = {.n_key_heads = 1, .n_value_heads = WIDTH / 2}};
    struct join_args join = {.step = step,
                             .a = column(r, 0),
                             .b = column(r, 3),
                             .out = column(r, 1),
                             .width = WIDTH,
                             .first = WIDTH / 2};
    join.a.gathered = join.b.gathered = 1;
    unit.in.gathered = gates.b.gathered = gates.alpha.gathered = 1;
    int rc = launch(r, "join", &join, FLAT_THREADS, FLAT_BLOCKS, m, r->muted == BORDER_JOIN ? m->mute : -1,
                    report);
    if (rc < 0)
        return rc;
    rc = launch(r, "l2_norm", &unit, NODE_L2_NORM_THREADS, FLAT_BLOCKS, m,
                r->muted == BORDER_L2_NORM ? m->mute : -1, report);
    return rc < 0 ? rc
                  : launch(r, "delta_gate", &gates, FLAT_THREADS, FLAT_BLOCKS, m,
                           r->muted == BORDER_DELTA_GATE ? m->mute : -1, report);
}

static int launch_nodes(struct border_run *r, const struct manner *m, struct simt_report *report)
{
    static const struct {
        const char *name;
        enum border_kernel kernel;
        uint32_t to;
    } nodes[] = {{"add", BORDER_ADD, 1},        {"mul", BORDER_MUL, 2},
                 {"silu", BORDER_SILU, 3},      {"gelu", BORDER_GELU, 1},
                 {"scale", BORDER_SCALE, 2},    {"soft_cap", BORDER_SOFT_CAP, 3},
                 {"gate", BORDER_GATE, 1},      {"swiglu_clamped", BORDER_SWIGLU_CLAMPED, 2},
                 {"sigmoid", BORDER_SIGMOID, 1}};
    int rc = 0;
    for (size_t i = 0; rc >= 0 && i < sizeof nodes / sizeof nodes[0]; i++)
        rc = launch_flat(r, nodes[i].name, nodes[i].kernel, nodes[i].to, m, report);
    rc = rc < 0 ? rc : launch_experts(r, m, report);
    return rc < 0 ? rc : launch_recurrent(r, m, report);
}

/* Writes the output of a sample node. */
static void sample(struct border_run *r, uint32_t n_logits)
{
    struct step_result *results = (struct step_result *)(uintptr_t)r->rig.args.buffers.results;
    for (uint32_t i = 0; i < n_logits; i++)
        results[i] =
            (struct step_result){.token = (int32_t)((staged(r)->id * 7 + i) % TOY_VOCAB), .logprob = -1};
}

/* --- a step --- */

static void damage(struct step *s, enum damage how)
{
    if (how == NO_SLOT && s->n_rows)
        s->rows[s->n_rows - 1].slot = TOY_SLOTS;
    if (how == TOO_MANY_ROWS)
        s->n_rows = TOY_ROWS + 1;
}

/* The host has submitted it. */
static int run_step(struct border_run *r, const struct step *s, enum damage how, const struct manner *m,
                    struct simt_report *report)
{
    if (launch_border(r, "step_begin", BEGIN_THREADS, m, report) < 0)
        return -1;
    if (how == NO_LOGIT && staged(r)->n_logits)
        staged(r)->logits[staged(r)->n_logits - 1].row = TOY_ROWS;
    if (launch_nodes(r, m, report) < 0)
        return -1;
    sample(r, staged(r)->n_logits);
    if (launch_border(r, "step_end", SIMT_LANES, m, report) < 0)
        return -1;
    return rig_take_answer(&r->rig, s, report);
}

/* Checks the words to the host. */
static int check_words(const struct border_run *r, uint32_t n_steps, enum damage how,
                       struct simt_report *report)
{
    const struct decoder_control *c = r->rig.control;
    if (!c->failed)
        return c->completed == n_steps ? 0 : wrong(report, "a step without an answer");
    if (how == NONE || c->failed != DECODER_RANGE || c->completed != n_steps - 1)
        return wrong(report, "a failure that is none");
    return 0;
}

static void fill(struct rig *r, uint64_t seed)
{
    size_t page = kv_page_size(&r->config.layout);
    uint32_t *kv = (uint32_t *)(uintptr_t)r->args.kv, *transfer = (uint32_t *)(void *)r->transfer;
    uint32_t *windows = (uint32_t *)(uintptr_t)r->args.windows;
    float *rows = (float *)(uintptr_t)r->args.buffers.rows;
    for (size_t i = 0; i < TOY_PAGES * page / 4; i++)
        kv[i] = (uint32_t)(i * 2654435761u + seed);
    for (size_t i = 0; i < TOY_WINDOWS * r->args.window_bytes / 4; i++)
        windows[i] = (uint32_t)(i * 2246822519u + seed);
    for (size_t i = 0; i < page; i++)
        transfer[i] = (uint32_t)(i * 40503u + seed);
    for (size_t i = 0; i < (size_t)TOY_ROWS * r->args.buffers.row_floats; i++)
        rows[i] = (float)(i * 37 % 101) - 50;
}

static int run_steps(struct border_run *r, uint64_t feed_seed, const struct manner *m,
                     struct simt_report *report)
{
    struct toy_feed feed;
    uint32_t n = 1 + (uint32_t)(feed_seed % MAX_STEPS);
    enum damage last = feed_seed / MAX_STEPS % N_DAMAGES;
    rig_reset(&r->rig);
    fill(&r->rig, feed_seed);
    toy_feed_open(&feed, &r->model.layout, feed_seed);
    feed.n_windows = TOY_WINDOWS;
    for (uint32_t i = 0; i < n; i++) {
        struct step *s = rig_step(&r->rig);
        enum damage how = i + 1 == n ? last : NONE;
        toy_feed_next(&feed, s);
        damage(s, how);
        rig_submit(&r->rig);
        if (run_step(r, s, how, m, report) < 0)
            return -1;
    }
    return check_words(r, n, last, report);
}

/* The hash of all memory that kernels may write. */
static uint64_t hash(const struct rig *r)
{
    uint64_t h = 0, word;
    for (uint32_t i = 0; i < r->n_buffers; i++)
        for (size_t at = 0; !r->buffers[i].kept && at < r->buffers[i].size; at += 8) {
            memcpy(&word, (const char *)r->buffers[i].memory + at, 8);
            h = (h ^ word) * 0x9E3779B97F4A7C15u;
            h ^= h >> 32;
        }
    return h;
}

int border_run_seed(struct border_run *r, uint32_t sm, uint64_t seed, int mute, struct simt_report *report)
{
    const struct manner turns = {sm, 0, SIMT_IN_ORDER, -1}, wild = {sm, seed, SIMT_N_SCHEDULES, mute};
    if (run_steps(r, seed, &turns, report) < 0)
        return -1;
    uint64_t want = hash(&r->rig);
    if (run_steps(r, seed, &wild, report) < 0)
        return -1;
    return hash(&r->rig) == want ? 0 : wrong(report, "something else than when all threads take turns");
}
