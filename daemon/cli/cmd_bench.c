/* hearthd bench: prompts and text through the engine, tokens per second beside the machine's limits. */
#include "cli/bench/bench_hops.h"
#include "commands.h"
#include "roofline/roofline.h"
#include "base/team.h"
#include "backend/executor.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_N_PROMPT 512
#define DEFAULT_N_GEN    128

/* ---- options ---- */

/* An option that takes numbers, with commas, up to n_max of them. */
struct list_option {
    const char *flag;
    struct bench_list *list;
    uint32_t min, max, n_max;
};

static int refuse_list(const struct list_option *o, const char *text, struct error *err)
{
    if (!*text)
        return error_set(err, -EINVAL, "%s needs a value", o->flag);
    if (o->n_max == 1)
        return error_set(err, -EINVAL, "%s takes one number, %u to %u (got %s)", o->flag, o->min, o->max,
                         log_quote(text));
    return error_set(err, -EINVAL,
                     "%s must be %u to %u, or up to %u such numbers separated by commas (got %s)", o->flag,
                     o->min, o->max, o->n_max, log_quote(text));
}

static int parse_list(const struct list_option *o, const char *text, struct error *err)
{
    struct bench_list list = {0};
    const char *s = text;

    do {
        char *end;
        unsigned long value = strtoul(s, &end, 10);
        if (*s < '0' || *s > '9' || (*end && *end != ',') || value < o->min || value > o->max ||
            list.n == o->n_max)
            return refuse_list(o, text, err);
        list.items[list.n++] = (uint32_t)value;
        s = end;
    } while (*s++ == ',');
    *o->list = list;
    return 0;
}

static int take_option(void *context, int argc, char **argv, struct error *err)
{
    struct bench_options *o = context;
    struct bench_list repetitions = {0};
    const struct list_option lists[] = {{"-p", &o->n_prompt, 0, 1 << 20, BENCH_MAX_LIST},
                                        {"-n", &o->n_gen, 0, 1 << 20, BENCH_MAX_LIST},
                                        {"-d", &o->depth, 0, 1 << 20, BENCH_MAX_LIST},
                                        {"-b", &o->batch, 1, STEP_MAX_LOGITS, BENCH_MAX_LIST},
                                        {"-r", &repetitions, 1, BENCH_MAX_REPS, 1}};
    const struct {
        const char *flag;
        bool *on;
    } switches[] = {{"--roofline", &o->roofline},
                    {"--ops", &o->ops},
                    {"--executors", &o->executors},
                    {"--hops", &o->hops},
                    {"--json", &o->json}};

    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (strcmp(argv[0], switches[i].flag) == 0)
            return *switches[i].on = true;
    if (strcmp(argv[0], "--trace") == 0) {
        o->trace = argc > 1 ? argv[1] : "";
        return *o->trace ? 2 : error_set(err, -EINVAL, "--trace needs a file");
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(argv[0], lists[i].flag) != 0)
            continue;
        int rc = parse_list(&lists[i], argc > 1 ? argv[1] : "", err);
        if (repetitions.n)
            o->repetitions = repetitions.items[0];
        return rc < 0 ? rc : 2;
    }
    return 0;
}

static void usage(void)
{
    puts("hearthd bench --model FILE [flags]\n"
         "\n"
         "Measures prompt tokens per second (pp) and generated tokens per second (tg), as medians, and "
         "compares\n"
         "them with this machine's limits: memory reads for tg, int8 products for pp.\n"
         "\n"
         "  -p 512        prompt lengths, separated by commas; 0: none\n"
         "  -n 128        tokens to generate; 0: none\n"
         "  -d 0          tokens of context before the generated ones\n"
         "  -b 1          sequences at once; with -d, also after each of its contexts\n"
         "  -r 5          repetitions, after one warm-up\n"
         "  --roofline    the limits; without --model, only these\n"
         "  --ops         also the time, bytes and operations of every op of a step, and its share of the\n"
         "                limit; where the executor cannot time them, those of executor eager\n"
         "  --trace FILE  also the last step of each test, by thread or block: a table of wait,\n"
         "                work and skew, and FILE in Chrome's trace format (ui.perfetto.dev shows it)\n"
         "  --executors   every test with every executor of the backend, and its launches per token\n"
         "  --hops        instead: what a token's time at a client of the server is made of, over HTTP;\n"
         "                -r streams of -n tokens after -d\n"
         "  --json        one JSON object on stdout and nothing else\n"
         "\n"
         "Flags of `hearthd serve` that work here: --model --backend --threads --isa --cpu-tuning --executor "
         "--n-ctx --kv-type --step-ms "
         "--steps-in-flight");
}

/* ---- tests ---- */

struct bench_plan {
    struct bench_test tests[BENCH_MAX_TESTS];
    uint32_t n;
};

static void plan_add(struct bench_plan *plan, struct bench_test test)
{
    if (test.n_tokens > 0)
        plan->tests[plan->n++] = test;
}

static void plan_add_batch(struct bench_plan *plan, const struct bench_options *o, uint32_t n_gen,
                           uint32_t batch)
{
    if (batch < 2)
        return;
    plan_add(plan, (struct bench_test){false, n_gen, 0, batch});
    for (uint32_t d = 0; d < o->depth.n; d++)
        if (o->depth.items[d] > 0)
            plan_add(plan, (struct bench_test){false, n_gen, o->depth.items[d], batch});
}

/* The plain tests first, then every depth, then every batch size, without and with every depth. */
static void plan_make(struct bench_plan *plan, const struct bench_options *o)
{
    *plan = (struct bench_plan){0};
    for (uint32_t i = 0; i < o->n_prompt.n; i++)
        plan_add(plan, (struct bench_test){true, o->n_prompt.items[i], 0, 1});
    for (uint32_t i = 0; i < o->n_gen.n; i++) {
        plan_add(plan, (struct bench_test){false, o->n_gen.items[i], 0, 1});
        for (uint32_t d = 0; d < o->depth.n; d++)
            if (o->depth.items[d] > 0)
                plan_add(plan, (struct bench_test){false, o->n_gen.items[i], o->depth.items[d], 1});
        for (uint32_t b = 0; b < o->batch.n; b++)
            plan_add_batch(plan, o, o->n_gen.items[i], o->batch.items[b]);
    }
}

static uint32_t largest(const struct bench_list *list, uint32_t least)
{
    for (uint32_t i = 0; i < list->n; i++)
        least = list->items[i] > least ? list->items[i] : least;
    return least;
}

static int time_ops(struct executor *x, struct error *err)
{
    return executor_time_ops(x, true, err);
}

#define LOOK_ROUNDS 4 /* of tens of milliseconds each */

/* The limits of the threads that the model gets. */
static struct bench_roofline look_at_machine(void *roofline)
{
    return (struct bench_roofline){.read_gbps = roofline_read_gbps(roofline, LOOK_ROUNDS),
                                   .int8_tops = roofline_int8_tops(roofline, LOOK_ROUNDS)};
}

/* With the units of attention, for --ops. */
static struct bench_roofline look_at_units(void *roofline)
{
    struct bench_roofline all = look_at_machine(roofline);
    all.f32_tflops = roofline_f32_tflops(roofline, LOOK_ROUNDS);
    all.bf16_tflops = roofline_bf16_tflops(roofline, LOOK_ROUNDS);
    return all;
}

/* Reads the limits of its device. */
static struct bench_roofline look_at_device(void *info)
{
    return (struct bench_roofline){.read_gbps = (double)((struct backend_info *)info)->bandwidth / 1e9};
}

/* The limits that the tests of an executor are compared with. */
struct limits {
    struct bench_limits look;
    struct backend_info info;
    struct roofline *roofline; /* NULL: the limits are the device's */
};

static int limits_open(struct limits *l, const struct offline *o, struct error *err)
{
    *l = (struct limits){0};
    executor_info(o->runtime.executor, &l->info);
    int rc = l->info.memory_total ? 0 : roofline_open(&l->roofline, l->info.n_threads, err);
    if (rc < 0)
        return rc;
    if (l->roofline)
        l->look = (struct bench_limits){look_at_machine, l->roofline};
    else
        l->look = (struct bench_limits){look_at_device, &l->info};
    return 0;
}

static int run_tests(struct offline *o, const struct bench_plan *plan, const struct bench_options *opt,
                     struct bench_report *report, struct bench_row *rows, struct error *err)
{
    struct limits limits;
    int rc = limits_open(&limits, o, err);

    for (uint32_t i = 0; i < plan->n && rc == 0; i++) {
        rc = bench_measure(o, &plan->tests[i], opt->repetitions, &limits.look, &rows[report->n_rows], err);
        report->n_rows += rc == 0;
    }
    roofline_close(limits.roofline);
    return rc;
}

/* With the executor that is open where it tells its ops, else with eager. */
static int run_ops(struct offline *o, const struct config *cfg, const struct bench_plan *plan,
                   const struct bench_options *opt, struct bench_report *report, struct bench_ops *ops,
                   struct error *err)
{
    struct config eager = *cfg;
    struct limits limits;
    int rc = 0;

    eager.executor = EXECUTOR_EAGER;
    if (!executor_program_ns(o->runtime.executor, NULL)) {
        offline_close(o);
        rc = offline_open_with(o, &eager, time_ops, err);
    }
    if (rc == 0)
        rc = limits_open(&limits, o, err);
    if (rc < 0)
        return rc;
    if (limits.roofline)
        limits.look.look = look_at_units;
    for (uint32_t i = 0; i < plan->n && rc == 0; i++) {
        rc = bench_measure_ops(o, &plan->tests[i], opt->repetitions, &limits.look, &ops[report->n_ops], err);
        report->n_ops += rc == 0;
    }
    roofline_close(limits.roofline);
    return rc;
}

static int refuse_trace(struct error *err)
{
    return error_set(err, -EINVAL, "--trace: only executor persistent can be traced");
}

/* Refuses --trace before anything is measured, or opens its file. */
static int open_trace(struct bench_trace_file *file, const struct config *cfg,
                      const struct bench_options *opt, struct error *err)
{
    if (!opt->trace)
        return 0;
    if (cfg->executor != EXECUTOR_PERSISTENT && cfg->executor != CONFIG_EXECUTOR_AUTO)
        return refuse_trace(err);
    return bench_trace_open(file, opt->trace, err);
}

/* Traces every test, once more. */
static int run_traces(struct offline *o, const struct config *cfg, const struct bench_plan *plan,
                      struct bench_trace_file *file, struct bench_report *report, struct bench_trace *traces,
                      struct error *err)
{
    int rc = 0;

    for (uint32_t i = 0; i < plan->n && rc == 0; i++) {
        rc = bench_trace(o, cfg, &plan->tests[i], file, &traces[report->n_traces], err);
        report->n_traces += rc == 0;
    }
    int closed = bench_trace_close(file, err);
    return rc < 0 ? rc : closed;
}

/* The machine or device that the limits belong to. */
static void describe_machine(const struct offline *o, struct bench_report *report)
{
    struct backend_info info;

    executor_info(o->runtime.executor, &info);
    report->threads = info.n_threads;
    report->emulated = bench_is_emulated(o->runtime.executor);
}

/* Over all rows. */
static void mean_limits(const struct bench_report *report, struct bench_roofline *out)
{
    for (uint32_t i = 0; i < report->n_rows; i++)
        bench_roofline_add(out, &report->rows[i].roofline, 1.0 / report->n_rows);
}

/* The tests once more with every other executor that the backend has. */
static int run_others(struct offline *o, struct config *cfg, const struct bench_plan *plan,
                      const struct bench_options *opt, struct bench_report *report, struct bench_row *rows,
                      struct error *err)
{
    static const int kinds[] = {EXECUTOR_PERSISTENT, EXECUTOR_GRAPH, EXECUTOR_EAGER};
    bool has_graph = executor_backend(o->runtime.executor)->ops->has_graph;
    int first = (int)executor_kind(o->runtime.executor), rc = 0;
    bool lacks_decoder = cfg->executor == CONFIG_EXECUTOR_AUTO && first != EXECUTOR_PERSISTENT;

    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && rc == 0; i++) {
        if (kinds[i] == first || (kinds[i] == EXECUTOR_GRAPH && !has_graph) ||
            (kinds[i] == EXECUTOR_PERSISTENT && lacks_decoder))
            continue;
        cfg->executor = kinds[i];
        offline_close(o);
        rc = offline_open(o, cfg, err);
        if (rc == 0)
            rc = run_tests(o, plan, opt, report, rows, err);
    }
    return rc;
}

static void set_up(struct config *cfg, uint32_t slots)
{
    cfg->slots = slots;
    cfg->speculation = ENGINE_SPECULATE_OFF; /* the text says nothing, and a row is to be a token */
    cfg->park_after_ms = 0;                  /* while limits are measured the decoder is idle, and stays */
}

static int bench_model(struct config *cfg, const struct bench_options *opt, struct error *err)
{
    static struct bench_row rows[BENCH_MAX_ROWS];
    static struct bench_ops ops[BENCH_MAX_TESTS];
    static struct bench_trace traces[BENCH_MAX_TESTS];
    struct bench_roofline roofline = {0};
    struct bench_report report = {.roofline = &roofline, .rows = rows, .ops = ops, .traces = traces};
    struct bench_trace_file file = {0};
    struct bench_plan plan;
    struct offline o = {0};

    plan_make(&plan, opt);
    if (plan.n == 0)
        return error_set(err, -EINVAL, "nothing to measure: -p and -n are 0");
    set_up(cfg, largest(&opt->batch, 1));
    int rc = open_trace(&file, cfg, opt, err);
    if (rc == 0)
        rc = offline_open(&o, cfg, err);
    if (rc == 0 && opt->trace && executor_kind(o.runtime.executor) != EXECUTOR_PERSISTENT) {
        rc = refuse_trace(err);
        offline_close(&o);
    }
    if (rc < 0) {
        bench_trace_close(&file, NULL);
        return rc;
    }
    describe_machine(&o, &report);
    rc = run_tests(&o, &plan, opt, &report, rows, err);
    if (rc == 0 && opt->trace)
        rc = run_traces(&o, cfg, &plan, &file, &report, traces, err);
    if (rc == 0 && opt->ops)
        rc = run_ops(&o, cfg, &plan, opt, &report, ops, err);
    if (rc == 0 && opt->executors)
        rc = run_others(&o, cfg, &plan, opt, &report, rows, err);
    report.runtime = &o.runtime;
    mean_limits(&report, &roofline);
    if (rc == 0 || report.n_rows > 0) /* a later failure does not hide the rows */
        (opt->json ? bench_print_json : bench_print_table)(&report, stdout);
    bench_trace_close(&file, NULL); /* if a test failed */
    offline_close(&o);
    return rc;
}

/* What --hops has no use for. */
static int check_hops(const struct config *cfg, const struct bench_options *opt, struct error *err)
{
    const struct {
        const char *flag;
        bool given;
    } others[] = {{"-p", opt->n_prompt.n > 0},     {"-b", opt->batch.n > 0},
                  {"--roofline", opt->roofline},   {"--ops", opt->ops},
                  {"--trace", opt->trace != NULL}, {"--executors", opt->executors}};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i].given)
            return error_set(err, -EINVAL, "--hops measures one text over HTTP: it does not go with %s",
                             others[i].flag);
    if (opt->n_gen.n > 1 || opt->depth.n > 1)
        return error_set(err, -EINVAL, "%s takes one number with --hops", opt->n_gen.n > 1 ? "-n" : "-d");
    if (opt->n_gen.n && opt->n_gen.items[0] == 0)
        return error_set(err, -EINVAL, "nothing to measure: -n is 0");
    if (cfg->executor != EXECUTOR_PERSISTENT && cfg->executor != CONFIG_EXECUTOR_AUTO)
        return bench_refuse_hops(err);
    return 0;
}

static int bench_over_http(struct config *cfg, const struct bench_options *opt, struct error *err)
{
    struct bench_hops hops;
    int rc = check_hops(cfg, opt, err);

    if (rc < 0)
        return rc;
    const struct bench_test test = {.n_tokens = opt->n_gen.n ? opt->n_gen.items[0] : DEFAULT_N_GEN,
                                    .depth = opt->depth.n ? opt->depth.items[0] : 0,
                                    .batch = 1};
    set_up(cfg, 1);
    rc = bench_hops(cfg, &test, opt->repetitions, &hops, err);
    if (rc == 0)
        (opt->json ? bench_hops_print_json : bench_hops_print_table)(&hops, stdout);
    return rc;
}

/* The plain tests, where the command line has named none. */
static void complete(struct bench_options *opt)
{
    if (!opt->n_prompt.n)
        opt->n_prompt = (struct bench_list){1, {DEFAULT_N_PROMPT}};
    if (!opt->n_gen.n)
        opt->n_gen = (struct bench_list){1, {DEFAULT_N_GEN}};
}

static int bench(struct config *cfg, void *options, struct error *err)
{
    struct bench_options *opt = options;

    if (opt->hops)
        return bench_over_http(cfg, opt, err);
    complete(opt);
    if (!opt->roofline || config_is_set(cfg, "model"))
        return bench_model(cfg, opt, err);
    uint32_t threads = cfg->threads ? cfg->threads : team_cores();
    threads = threads < ROOFLINE_MAX_THREADS ? threads : ROOFLINE_MAX_THREADS;
    struct roofline *r;
    int rc = roofline_open(&r, threads, err);
    if (rc < 0)
        return rc;
    struct bench_roofline roofline = {.read_gbps = roofline_read_gbps(r, ROOFLINE_MAX_ROUNDS),
                                      .int8_tops = roofline_int8_tops(r, ROOFLINE_MAX_ROUNDS),
                                      .f32_tflops = roofline_f32_tflops(r, ROOFLINE_MAX_ROUNDS),
                                      .bf16_tflops = roofline_bf16_tflops(r, ROOFLINE_MAX_ROUNDS),
                                      .amx_tops = roofline_amx_tops(r, ROOFLINE_MAX_ROUNDS)};
    struct bench_report report = {.roofline = &roofline, .threads = threads};
    roofline_close(r);
    if (opt->json)
        bench_print_json(&report, stdout);
    else
        bench_print_roofline(&roofline, threads, stdout);
    return 0;
}

int cmd_bench(int argc, char **argv)
{
    static const struct command_configured command = {usage, take_option, bench};
    struct bench_options options = {.repetitions = 5};

    return command_run_configured(&command, &options, argc, argv);
}
