/* bench_decode - decode and prefill speed of the cpu decoder beside this machine's ceilings.
 *   bench_decode MODEL [threads [prompt [decode [isa [sequences [f16|q8_0|bf16]]]]]]
 * Best of several rounds, since other work on the machine only ever adds time; then where the time goes. */
#include "clock.h"
#include "cpu/decoder.h"
#include "cpu/roofline.h"
#include "executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct executor *x;
    struct decoder *d;
    struct roofline *roofline;
    struct step *step;
    uint32_t n_vocab, pos, n_slots, n_pages; /* pages of a slot */
};

static void run(struct bench *b)
{
    struct step_result results[STEP_MAX_LOGITS];
    struct error err = {0};
    b->step->id++;
    if (executor_submit(b->x, b->step, &err) < 0 ||
        executor_poll(b->x, results, STEP_MAX_LOGITS, NULL, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    b->step->n_rows = b->step->n_logits = b->step->n_edits = 0;
}

/* `n` rows of one slot, the last with logits, to be run with the next step. */
static void add_rows(struct bench *b, uint32_t slot, uint32_t n)
{
    for (uint32_t i = 0, pos = b->pos; i < n; i++, pos++) {
        if (pos % 64 == 0)
            b->step->edits[b->step->n_edits++] = (struct step_table_edit){
                .slot = slot, .index = pos / 64, .page = slot * b->n_pages + pos / 64};
        b->step->rows[b->step->n_rows++] = (struct step_row){.slot = slot,
                                                             .pos = pos,
                                                             .token = (int32_t)(pos * 7919 % b->n_vocab),
                                                             .logit_index = STEP_NO_LOGITS};
    }
    b->step->rows[b->step->n_rows - 1].logit_index = (uint16_t)b->step->n_logits;
    b->step->logits[b->step->n_logits++] =
        (struct step_logit){.row = (uint16_t)(b->step->n_rows - 1), .target = -1};
}

/* Seconds of the step. */
static double timed_run(struct bench *b)
{
    uint64_t start = clock_ns();
    run(b);
    return (double)(clock_ns() - start) * 1e-9;
}

/* `n` rows of one slot in one step; seconds. */
static double rows(struct bench *b, uint32_t slot, uint32_t n)
{
    add_rows(b, slot, n);
    b->pos += n;
    return timed_run(b);
}

/* A row of every slot. */
static double decode_rows(struct bench *b)
{
    for (uint32_t slot = 0; slot < b->n_slots; slot++)
        add_rows(b, slot, 1);
    b->pos++;
    return timed_run(b);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bytes of weights a step of one row reads: every matrix but an embedding that is only gathered from. */
static double bytes_per_token(const struct decoder *d)
{
    double bytes = 0;
    for (uint32_t i = 0; i < d->graph->n_nodes; i++) {
        const struct graph_node *n = &d->graph->nodes[i];
        if (n->op == GRAPH_MUL_MAT)
            bytes +=
                (double)d->weights.matrices[n->weight].group_size * d->weights.matrices[n->weight].n_groups;
    }
    return bytes;
}

static double macs_per_token(const struct decoder *d)
{
    double macs = 0;
    for (uint32_t i = 0; i < d->graph->n_nodes; i++)
        if (d->graph->nodes[i].op == GRAPH_MUL_MAT && !d->graph->nodes[i].head)
            macs += (double)d->graph->nodes[i].width * d->graph->nodes[i].k;
    return macs;
}

static void print_ops(struct bench *b, const char *what, uint32_t n_steps)
{
    static const char *const epilogues[] = {"store", "residual", "swiglu"};
    struct kind {
        char name[64];
        double us;
    } kinds[32] = {0};
    double total = 0;
    for (uint32_t i = 0; i < b->d->program->n_ops; i++) {
        const struct program_op *op = &b->d->program->ops[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s %s k %u n %u", op->flags & PROGRAM_HEAD ? "head " : "",
                 program_opcode_name(op->opcode), op->opcode == PROGRAM_MATMUL ? epilogues[op->epilogue] : "",
                 op->k, op->n[0] + op->n[1] + op->n[2]);
        double us = (double)b->d->op_ns[i] * 1e-3 / n_steps;
        total += us;
        for (uint32_t k = 0; k < 32; k++)
            if (!kinds[k].name[0] || !strcmp(kinds[k].name, name)) {
                memcpy(kinds[k].name, name, sizeof name);
                kinds[k].us += us;
                break;
            }
    }
    printf("%s, us per step (mean of all rounds):\n", what);
    for (uint32_t k = 0; k < 32 && kinds[k].name[0]; k++)
        printf("  %10.1f  %4.1f %%  %s\n", kinds[k].us, 100 * kinds[k].us / total, kinds[k].name);
    memset(b->d->op_ns, 0, b->d->program->n_ops * sizeof *b->d->op_ns);
}

static void prefill(struct bench *b, uint32_t n)
{
    double best = 1e9;
    for (uint32_t slot = 0, n_rounds = b->n_slots > 5 ? b->n_slots : 5; slot < n_rounds; slot++) {
        b->pos = 0;
        double t = 0;
        for (uint32_t done = 0; done < n; done += STEP_MAX_ROWS)
            t += rows(b, slot % b->n_slots, n - done < STEP_MAX_ROWS ? n - done : STEP_MAX_ROWS);
        best = t < best ? t : best;
    }
    double tops = roofline_int8_tops(b->roofline, ROOFLINE_MAX_ROUNDS),
           used = 2e-12 * n * macs_per_token(b->d) / best;
    printf("prefill %u: %.1f tokens/s; %.3f of %.3f int8 Tops (%.2f)\n", n, n / best, used, tops,
           used / tops);
    print_ops(b, "prefill", (b->n_slots > 5 ? b->n_slots : 5) * ((n + STEP_MAX_ROWS - 1) / STEP_MAX_ROWS));
}

static void decode(struct bench *b, uint32_t n)
{
    double *times = malloc(n * sizeof *times);
    for (uint32_t i = 0; i < n; i++)
        times[i] = decode_rows(b);
    qsort(times, n, sizeof *times, compare);
    double bytes = bytes_per_token(b->d), ceiling = roofline_read_gbps(b->roofline, ROOFLINE_MAX_ROUNDS);
    printf("decode %u from %u: best %.2f ms, median %.2f ms (%.1f tokens/s); %.1f MB of weights: %.1f GB/s "
           "of %.1f "
           "(best %.2f, median %.2f)\n",
           b->n_slots, b->pos - n, times[0] * 1e3, times[n / 2] * 1e3, b->n_slots / times[n / 2],
           bytes * 1e-6, bytes * 1e-9 / times[0], ceiling, bytes * 1e-9 / times[0] / ceiling,
           bytes * 1e-9 / times[n / 2] / ceiling);
    print_ops(b, "decode", n);
    free(times);
}

static enum kv_type kv_type_of(const char *name)
{
    return strcmp(name, "bf16") == 0 ? KV_BF16 : strcmp(name, "q8_0") == 0 ? KV_Q8_0 : KV_F16;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr,
                "usage: bench_decode MODEL [threads [prompt [decode [isa [sequences [f16|q8_0|bf16]]]]]]\n");
        return 2;
    }
    uint32_t n_threads = argc > 2 ? (uint32_t)atoi(argv[2]) : 0,
             n_prompt = argc > 3 ? (uint32_t)atoi(argv[3]) : 512;
    uint32_t n_decode = argc > 4 ? (uint32_t)atoi(argv[4]) : 64;
    uint32_t n_slots = argc > 6 ? (uint32_t)atoi(argv[6]) : 1, n_ctx = n_prompt + n_decode + 64;
    struct bench b = {.n_slots = n_slots, .n_pages = (n_ctx + 63) / 64};
    struct error err = {0};
    struct model *m = NULL;
    struct backend_config cfg = {.n_threads = n_threads,
                                 .isa = argc > 5 ? argv[5] : "auto",
                                 .n_slots = n_slots,
                                 .n_ctx = n_ctx,
                                 .kv_type = argc > 7 ? kv_type_of(argv[7]) : KV_F16,
                                 .steps_in_flight = 2};
    uint64_t start = clock_ns();
    if (model_open(&m, argv[1], &err) < 0 ||
        executor_open(&b.x, EXECUTOR_PERSISTENT, &cpu_backend, &cfg, m, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    b.d = (struct decoder *)executor_backend(b.x);
    b.step = calloc(1, sizeof *b.step);
    b.n_vocab = model_config(m)->n_vocab;
    printf("%s, %s, %u threads; loaded in %.2f s\n", b.d->device, b.d->kernels->name, team_size(b.d->team),
           (double)(clock_ns() - start) * 1e-9);
    b.roofline = roofline_open(team_size(b.d->team));
    if (!b.roofline)
        return 1;
    prefill(&b, n_prompt);
    decode(&b, n_decode);
    roofline_close(b.roofline);
    free(b.step);
    executor_close(b.x);
    model_close(m);
    return 0;
}
