/* bench.h - speed of a model on this machine, beside the two limits of the machine measured in the same run.
 * The whole path is measured: requests through the engine, as the server sends them. Thread: one. */
#pragma once
#include "abi/route.h"
#include "config/config.h"
#include "base/error.h"
#include "cli/local_engine.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_MAX_LIST 8
/* All that a command line can ask for: prompts, and texts of every length, depth and number; with every
 * executor. */
#define BENCH_MAX_TESTS (BENCH_MAX_LIST + BENCH_MAX_LIST * (1 + BENCH_MAX_LIST) * (1 + BENCH_MAX_LIST))
#define BENCH_MAX_ROWS  (3 * BENCH_MAX_TESTS)
#define BENCH_MAX_REPS  101

struct bench_list {
    uint32_t n, items[BENCH_MAX_LIST];
};

struct bench_options {
    struct bench_list n_prompt, n_gen, depth, batch; /* depth 0 and batch 1 are the plain tests */
    uint32_t repetitions;
    bool roofline; /* given: without a model, only that */
    bool ops, executors, json, hops;
    const char *trace; /* a file, or NULL */
};

struct bench_roofline { /* 0: unknown */
    double read_gbps;   /* 10^9 bytes per second */
    double int8_tops;   /* 10^12 operations per second */
    double f32_tflops;  /* 10^12 operations of fused multiply-adds per second */
    double bf16_tflops; /* the same of dot products of bf16 */
    double amx_tops;    /* int8 products of tiles, which the products on vectors do not use: shown with the
                           limits alone */
};

/* The cost of one token, by the shapes of the model. */
struct bench_cost {
    double bytes;         /* read: weights shared by the batch, and this sequence's keys and values */
    double int8_ops;      /* multiplications and additions of the matrix products */
    double attention_ops; /* those of attention: in floats, and no part of int8_ops */
};

struct bench_row {
    char test[48];             /* "pp512", "tg128@d256", "tg128@b4" */
    int executor;              /* enum executor_kind */
    double tokens_per_s, sd;   /* median, standard deviation of the repetitions */
    double launches_per_token; /* of kernels; a resident decoder needs none */
    uint64_t launches;         /* total over the repetitions */
    struct bench_cost cost;
    struct bench_roofline roofline;      /* mean of what was measured around the repetitions */
    double read_fraction, int8_fraction; /* of either limit: median of what the repetitions reached of it */
    const char *bound;                   /* "int8" or "read": the limit that is nearer */
    double fraction;                     /* of that limit */
};

/* The work of the ops of one kind and part of the layer in a step, all layers together: of the fused program,
 * or the graph's nodes where it is run node by node. */
#define BENCH_OP_NAME 72
struct bench_op {
    char name[BENCH_OP_NAME]; /* "MATMUL attn_q+attn_k+attn_v" */
    uint32_t n;               /* number of these ops */
    double us;
    double bytes; /* read: weights, and keys and values where texts are continued */
    double int8_ops, float_ops;
    bool bf16; /* the float operations are dot products of bf16 where the machine has them */
};

#define BENCH_MAX_OPS 48

struct bench_ops {
    char test[48];
    int executor;
    bool by_device; /* by the device's clock */
    uint64_t steps; /* steps of this mean; 0: none are known */
    double rows;    /* of a step, on average */
    struct bench_roofline roofline;
    uint32_t n;
    struct bench_op ops[BENCH_MAX_OPS];
};

/* Times of the decoder's members in the ops of one kind in one step: medians over the layers. */
struct bench_traced_op {
    char name[BENCH_OP_NAME];
    uint32_t n;              /* layers */
    double wait_us, work_us; /* of the median member */
    double skew_us;          /* from the median member's end to the last one's */
    uint32_t last, n_last;   /* the member that was last most often; in how many of the layers */
};

struct bench_trace {
    char test[48];
    uint64_t step;
    uint32_t n_members, n;
    struct bench_traced_op ops[BENCH_MAX_OPS];
};

struct bench_test { /* one row to be measured */
    bool prefill;
    uint32_t n_tokens, depth, batch;
};

/* Looks at the limits, shortly. */
struct bench_limits {
    struct bench_roofline (*look)(void *context);
    void *context;
};

/* Measures one test: a discarded run, then `repetitions`, each between two looks at the limits: those of a
 * machine that others share move within seconds. limits: NULL for no comparison. -EINVAL: the test does not
 * fit into the context. */
int bench_measure(struct offline *o, const struct bench_test *test, uint32_t repetitions,
                  const struct bench_limits *limits, struct bench_row *row, struct error *err);
/* The same for its ops (bench_ops.c): `repetitions` after one that does not count. The executor is one whose
 * ops' times are known: executor_program_ns(), or eager with executor_time_ops(). No steps: several texts
 * after prompts, which are computed in between and would be counted in. */
int bench_measure_ops(struct offline *o, const struct bench_test *test, uint32_t repetitions,
                      const struct bench_limits *limits, struct bench_ops *out, struct error *err);
/* Writes the name of op i of the fused program, for a person. */
void bench_op_name(const struct executor *x, uint32_t i, char out[BENCH_OP_NAME]);

/* A file of Chrome's trace format. */
struct bench_trace_file {
    FILE *f; /* NULL: closed */
    const char *path;
    bool blocks; /* members are blocks of a kernel, not threads */
    uint32_t n_tests;
    uint64_t n_events;
};
int bench_trace_open(struct bench_trace_file *to, const char *path, struct error *err);
int bench_trace_close(struct bench_trace_file *to, struct error *err); /* a closed one is fine */
/* Runs one test with the decoder's notes on and adds its last step to the file. -ENOTSUP: the executor keeps
 * none. */
int bench_trace(struct offline *o, const struct config *cfg, const struct bench_test *test,
                struct bench_trace_file *to, struct bench_trace *out, struct error *err);
struct bench_traced_step {
    uint64_t ops_ns;    /* from the first begin of an op to the last end */
    uint64_t border_ns; /* what the border of a device takes beside that: publishing, looking for the end */
};
/* The same without a file, of the test's last step. */
int bench_traced_step(struct offline *o, const struct config *cfg, const struct bench_test *test,
                      struct bench_traced_step *out, struct error *err);
/* Names the nearest limit and sets *fraction of it: "read", "int8", "f32" or "bf16"; NULL: no limit or no
 * work is known. */
const char *bench_op_bound(const struct bench_op *op, const struct bench_roofline *roofline,
                           double *fraction);
/* Adds `share` of each limit. */
void bench_roofline_add(struct bench_roofline *to, const struct bench_roofline *from, double share);
/* The prompt's tokens before a test's text, at least 1, and the tokens it generates; the first one's step
 * also reads the prompt and is not timed. */
uint32_t bench_prompt_length(const struct bench_test *test);
uint32_t bench_generated(const struct bench_test *test);
/* Fills the prompt of a test, which says nothing. */
void bench_fill_prompt(int32_t *prompt, uint32_t n, uint32_t n_vocab);
/* -EINVAL: the test needs more than n_ctx tokens of context. */
int bench_check_fit(const struct bench_test *test, uint32_t n_ctx, struct error *err);
void bench_test_name(const struct bench_test *test, char *out, size_t room);
struct bench_cost bench_cost(const struct offline *o, const struct bench_test *test);
/* Sets a row's limits, bound and fraction from the tokens per second of n >= 1 repetitions and the n + 1
 * looks at the limits around them (0: unknown); a repetition's limit is the mean of the two beside it. */
void bench_compare(struct bench_row *row, const double *rates, const struct bench_roofline *looks,
                   uint32_t n);
/* The median of n >= 1 values; sorts them. */
double bench_median(double *values, uint32_t n);
double bench_deviation(const double *values, uint32_t n);

struct bench_report {
    const struct bench_roofline *roofline; /* mean of all */
    uint32_t threads;                      /* the roofline was measured with */
    bool emulated;                         /* the device: speeds would be of no use, and are left out */
    const struct runtime *runtime;
    const struct bench_row *rows;
    uint32_t n_rows;
    const struct bench_ops *ops; /* of the tests, when they were asked for */
    uint32_t n_ops;
    const struct bench_trace *traces;
    uint32_t n_traces;
};
void bench_print_roofline(const struct bench_roofline *roofline, uint32_t threads, FILE *f);
void bench_print_table(const struct bench_report *report, FILE *f);
void bench_print_json(const struct bench_report *report, FILE *f);
/* True if the device is the SIMT emulator, whose times say nothing about a GPU. */
bool bench_is_emulated(const struct executor *x);
/* True if products with weights of this type (enum quant_type) are of integers. */
bool bench_is_int8(uint32_t type);
/* The bytes of a weight as the file has them: a factor of NVFP4, which each block repeats, is read once. */
uint64_t bench_weight_bytes(const struct weight *w);
/* The share of the experts' weights that rows, which choose as if by chance, are expected to read. */
double bench_experts_read(const struct route_rule *r, double rows);
/* The tokens that a row sees of `past` tokens in a layer of this kind, and the bytes of their keys and
 * values. */
double bench_seen(const struct model_attention *a, double past);
double bench_seen_bytes(const struct model_attention *a, uint32_t kv_type, double past);
