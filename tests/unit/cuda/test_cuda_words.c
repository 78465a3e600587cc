/* Which ops of a program pass their output on as words (lib/cuda/plan_words.c): in every program of the
 * tests' models, and in odd ones, a hop stands wherever words are emptied, written again and read again. */
#include "abi/tile.h"
#include "cuda/cuda_weights.h"
#include "cuda/plan.h"
#include "model/graph.h"
#include "model/program.h"

#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORK_BYTES 60000u
#define X2         PROGRAM_N_BUFFERS
#define N_BUFFERS  (PROGRAM_N_BUFFERS + 1)

/* What is known of a buffer: in which part of the run, counted by hops, it was last written, read and
 * emptied, and whether it holds values, of a row. */
struct buffer {
    int written, read, emptied; /* -1: never */
    bool is_empty;
};

struct run {
    const struct program *p;
    struct buffer b[N_BUFFERS];
    int hop;        /* so many hops so far */
    uint32_t first; /* op behind the last of them */
    char fault[160];
};

static void fail(struct run *r, uint32_t op, const char *what, uint32_t buffer)
{
    if (!r->fault[0])
        (void)snprintf(r->fault, sizeof r->fault, "op %u: buffer %u: %s", op, buffer, what);
}

/* A read behind a hop, or of words, which must have been emptied behind one before. */
static void read_buffer(struct run *r, uint32_t op, uint32_t buffer, bool polls)
{
    struct buffer *b = &r->b[buffer];
    if (b->is_empty)
        fail(r, op, "read while it is empty", buffer);
    if (!polls && b->written >= r->hop)
        fail(r, op, "read without a hop behind its writer", buffer);
    if (polls && b->emptied >= r->hop)
        fail(r, op, "polled without a hop behind its emptying", buffer);
    b->read = r->hop;
}

static void write_buffer(struct run *r, uint32_t op, uint32_t buffer, bool words)
{
    struct buffer *b = &r->b[buffer];
    if (words && (!b->is_empty || b->emptied >= r->hop))
        fail(r, op, "words are written where it is not empty, or without a hop behind that", buffer);
    if (b->read >= r->hop && !words)
        fail(r, op, "written without a hop behind its last reader", buffer);
    b->written = r->hop;
    b->is_empty = false;
}

static void empty_buffer(struct run *r, uint32_t op, uint32_t buffer)
{
    struct buffer *b = &r->b[buffer];
    if (b->read >= r->hop || b->written >= r->hop)
        fail(r, op, "emptied without a hop behind its last reader and writer", buffer);
    b->emptied = r->hop;
    b->is_empty = true;
}

static uint32_t buffer_at(const struct program *p, int64_t offset)
{
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (i != PROGRAM_LOGITS && p->buffers[i].width && p->buffers[i].offset == offset)
            return i;
    return PROGRAM_NONE;
}

/* x and q, k, v are followed; what else ops read and write stays behind hops as it was. */
static bool is_followed(uint32_t buffer)
{
    return buffer == PROGRAM_X || buffer == X2 || buffer == PROGRAM_QKV;
}

static void run_op(struct run *r, uint32_t i)
{
    const struct program_op *op = &r->p->ops[i];
    bool polls = i > 0 && r->p->ops[i - 1].flags & PROGRAM_WORDS, words = op->flags & PROGRAM_WORDS;
    r->hop += i > 0 && !polls;
    r->first = polls ? r->first : i;
    for (uint32_t j = r->first; j < i; j++)
        if (r->p->ops[j].in == op->out || r->p->ops[j].out == op->out)
            fail(r, i, "written without a hop behind another op's use", op->out);
    if (is_followed(op->in))
        read_buffer(r, i, op->in, polls);
    bool in_place = op->epilogue == PROGRAM_RESIDUAL || op->epilogue >= PROGRAM_TIMES_SILU ||
                    op->opcode == PROGRAM_ADD_NORM;
    if (op->opcode == PROGRAM_MATMUL && op->epilogue == PROGRAM_RESIDUAL && op->old) {
        uint32_t old = buffer_at(r->p, (int64_t)r->p->buffers[op->out].offset + op->old);
        if (!is_followed(old) || old == op->out) {
            fail(r, i, "the old value stands in no buffer of x", old);
            return;
        }
        if (r->b[old].is_empty || r->b[old].written >= r->hop)
            fail(r, i, "the old value is not there", old);
        empty_buffer(r, i, old);
    } else if (is_followed(op->out) && in_place) {
        if (r->b[op->out].is_empty || r->b[op->out].written >= r->hop)
            fail(r, i, "the old value is not there", op->out);
    }
    if (op->empties)
        empty_buffer(r, i, op->empties);
    if (is_followed(op->out))
        write_buffer(r, i, op->out, words);
}

/* Runs three steps. Between two of them all blocks meet. Returns what is wrong, or an empty string. */
static struct run run_steps(const struct program *p)
{
    struct run r = {.p = p};
    for (uint32_t b = 0; b < N_BUFFERS; b++)
        r.b[b] = (struct buffer){-1, -1, -1, true};
    for (int step = 0; step < 3; step++) {
        for (uint32_t i = 0; i < p->n_ops; i++)
            run_op(&r, i);
        r.hop++;
    }
    return r;
}

struct made {
    struct model *m;
    struct graph *g;
    struct program *fused, *p; /* as fused; as the device gets it */
    struct cuda_weights w;
    uint32_t rows; /* plan_words() */
};

static void mark(struct made *m, uint32_t work_bytes)
{
    size_t size = sizeof *m->p + m->fused->n_ops * sizeof *m->p->ops;
    free(m->p);
    m->p = malloc(size);
    cr_assert(m->p);
    memcpy(m->p, m->fused, size);
    plan_flow(m->p, 4);
    plan_attention(m->p);
    plan_choices(m->p);
    plan_joins(m->p);
    m->rows = plan_words(m->p, m->w.matrices, work_bytes);
}

static struct made make(const char *path)
{
    struct error err = {0};
    struct made m = {0};
    cr_assert_eq(model_open(&m.m, path, &err), 0, "%s", err.text);
    cr_assert_eq(graph_open(&m.g, m.m, &err), 0, "%s", err.text);
    cr_assert_eq(program_open(&m.fused, m.g, &err), 0, "%s", err.text);
    cr_assert_eq(cuda_weights_open(&m.w, m.g, &err), 0, "%s", err.text);
    mark(&m, WORK_BYTES);
    return m;
}

static struct made make_named(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", HEARTH_TEST_DATA, name);
    return make(path);
}

static void give(struct made *m)
{
    free(m->p);
    cuda_weights_close(&m->w, NULL);
    program_close(m->fused);
    graph_close(m->g);
    model_close(m->m);
}

static uint32_t n_words(const struct program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        n += (p->ops[i].flags & PROGRAM_WORDS) != 0;
    return n;
}

Test(cuda_words, in_every_models_program_hops_stand_where_words_need_them, .timeout = 60)
{
    glob_t found;
    uint32_t n_with = 0;
    cr_assert_eq(glob(HEARTH_TEST_DATA "/*.gguf", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct made m = make(found.gl_pathv[i]);
        struct run r = run_steps(m.p);
        cr_assert_str_empty(r.fault, "%s: %s", found.gl_pathv[i], r.fault);
        cr_assert(m.rows <= ACTIVATION_COLUMNS && (n_words(m.p) > 0) == (m.rows > 0), "%s",
                  found.gl_pathv[i]);
        n_with += m.rows > 0;
        give(&m);
    }
    cr_assert_gt(n_with, 4);
    globfree(&found);
}

Test(cuda_words, a_dense_layer_keeps_two_hops, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t n_layers = m.p->n_layers;
    cr_assert_eq(m.rows, ACTIVATION_COLUMNS);
    cr_assert_eq(n_words(m.p), 3 * n_layers - 1, "q, k, v and twice x, but behind the last layer");
    for (uint32_t i = 0; i < m.p->n_ops; i++) {
        const struct program_op *op = &m.p->ops[i];
        bool adds = op->epilogue == PROGRAM_RESIDUAL && op->opcode == PROGRAM_MATMUL;
        bool heads = op->opcode == PROGRAM_MATMUL && op->out == PROGRAM_QKV;
        bool last = i + 1 < m.p->n_ops && op[1].flags & PROGRAM_HEAD;
        cr_assert_eq((op->flags & PROGRAM_WORDS) != 0, heads || (adds && !last), "op %u", i);
        cr_assert_eq(op->old != 0, adds, "op %u", i);
        cr_assert_eq(op->empties != 0, i > 0 && op[-1].opcode == PROGRAM_ATTEND, "op %u", i);
    }
    cr_assert_eq(m.p->row_floats, m.fused->row_floats + (m.p->buffers[X2].width + 15) / 16 * 16);
    cr_assert_eq(m.p->buffers[X2].offset, m.fused->row_floats);
    give(&m);
}

Test(cuda_words, a_row_that_is_long_takes_a_hop, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    for (uint32_t i = 0; i < m.fused->n_ops; i++)
        if (m.fused->ops[i].in == PROGRAM_X)
            m.fused->ops[i].k = 4096;
    mark(&m, WORK_BYTES);
    cr_assert_eq(n_words(m.p), m.p->n_layers, "q, k and v");
    cr_assert_eq(m.p->row_floats, m.fused->row_floats);
    cr_assert_str_empty(run_steps(m.p).fault);
    give(&m);
}

Test(cuda_words, so_many_rows_as_the_next_products_have_room_for, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t k = m.p->buffers[PROGRAM_X].width, one = activation_panel_bytes(1, k, ACTIVATION_INTEGERS);
    mark(&m, activation_panel_bytes(3, k, ACTIVATION_INTEGERS));
    cr_assert_eq(m.rows, 3);
    mark(&m, one - 1);
    cr_assert_eq(n_words(m.p), m.p->n_layers, "q, k and v, which ATTEND takes");
    give(&m);
}

/* An odd number of ops that pass x on: one is left out, or the last layer's, which passes nothing on, moves
 * x. */
Test(cuda_words, a_step_ends_with_x_where_it_began, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    for (uint32_t i = 0; i < m.p->n_ops; i++)
        if (m.p->ops[i].flags & PROGRAM_HEAD && m.p->ops[i].opcode == PROGRAM_MATMUL)
            cr_assert_eq(m.p->ops[i].in, PROGRAM_X);
    /* Without a last layer's second addition only the first could pass x on. */
    uint32_t last = 0;
    for (uint32_t i = 0; i < m.fused->n_ops; i++)
        if (m.fused->ops[i].epilogue == PROGRAM_RESIDUAL)
            last = i;
    m.fused->ops[last].opcode = PROGRAM_GATE;
    mark(&m, WORK_BYTES);
    uint32_t n_moves = 0;
    for (uint32_t i = 0; i < m.p->n_ops; i++)
        n_moves += m.p->ops[i].old != 0;
    cr_assert_eq(n_moves % 2, 0);
    cr_assert_str_empty(run_steps(m.p).fault);
    give(&m);
}

/* The check above notices what the plan must not do. */
Test(cuda_words, a_program_with_a_mistake_is_noticed, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    for (uint32_t i = 1; i < m.p->n_ops; i++) {
        struct program_op *op = &m.p->ops[i], was = *op;
        if (op->empties) { /* the words of the layer before stay */
            op->empties = 0;
            cr_assert_str_not_empty(run_steps(m.p).fault);
            *op = was;
        }
        if (op->old) { /* both additions in one buffer */
            op->out = op->out == X2 ? PROGRAM_X : X2;
            op->old = -op->old;
            cr_assert_str_not_empty(run_steps(m.p).fault);
            *op = was;
        }
        if (op->opcode == PROGRAM_ATTEND ||
            (op->epilogue == PROGRAM_SWIGLU && !(op[1].flags & PROGRAM_HEAD))) {
            op->flags |= PROGRAM_WORDS; /* no hop behind readers */
            cr_assert_str_not_empty(run_steps(m.p).fault);
            *op = was;
        }
    }
    cr_assert_str_empty(run_steps(m.p).fault);
    give(&m);
}
