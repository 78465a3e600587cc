/* Which ops of a program pass their output on as words (lib/cuda/plan_words.c): in every program of the
 * tests' models, and in odd ones, a hop stands wherever words are emptied, written again and read again. */
#include "abi/tile.h"
#include "cuda/cuda_weights.h"
#include "cuda/plan.h"
#include "model/graph.h"
#include "model/program.h"
#include "support/models/made_model.h"

#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORK_BYTES 60000u
#define X2         PROGRAM_N_BUFFERS
#define MAX_SEEN   32
#define MAX_PLACES 8
#define NEVER      (-1)

/* A buffer's history: the numbers of the ops, counted from the first step on, that last wrote, read and
 * emptied it, and of the one in which every block polled all of it, or all polled it together and met. */
struct buffer {
    int written, read, emptied, polled;
    bool is_empty;
};

struct run {
    const struct program *p;
    struct buffer b[MAX_SEEN];
    int now;   /* number of the op */
    int known; /* every block has finished the ops up to this one, where the op's stores begin */
    int first; /* number of the first op behind the last wait for all blocks' end of the op before */
    int placed[MAX_PLACES]; /* numbers of the products that last used the places of shared columns */
    char fault[160];
};

static void fail(struct run *r, const char *what, uint32_t buffer)
{
    if (!r->fault[0])
        (void)snprintf(r->fault, sizeof r->fault, "op %d: buffer %u: %s", r->now, buffer, what);
}

static void read_buffer(struct run *r, uint32_t buffer, bool polls)
{
    struct buffer *b = &r->b[buffer];
    if (b->is_empty)
        fail(r, "read while it is empty", buffer);
    if (!polls && b->written > r->known && b->polled < b->written)
        fail(r, "read without a wait for its writer", buffer);
    if (polls && b->emptied > r->known)
        fail(r, "polled without a wait for its emptying", buffer);
    b->read = r->now;
    if (polls)
        b->polled = r->now;
}

static void write_buffer(struct run *r, uint32_t buffer, bool words)
{
    struct buffer *b = &r->b[buffer];
    if (words && (!b->is_empty || b->emptied > r->known))
        fail(r, "words are written where it is not empty, or without a wait for its emptying", buffer);
    if (!words && (b->read > r->known || b->written > r->known))
        fail(r, "written without a wait for its last reader and writer", buffer);
    b->written = r->now;
    b->is_empty = false;
}

static void empty_buffer(struct run *r, uint32_t buffer)
{
    struct buffer *b = &r->b[buffer];
    if (b->read > r->known || b->written > r->known)
        fail(r, "emptied without a wait for its last reader and writer", buffer);
    b->emptied = r->now;
    b->is_empty = true;
}

static uint32_t buffer_at(const struct program *p, int64_t offset)
{
    for (uint32_t i = 0; i < p->n_buffers; i++)
        if (i != PROGRAM_LOGITS && p->buffers[i].width && p->buffers[i].offset == offset)
            return i;
    return PROGRAM_NONE;
}

/* x, what passes it on, and what is passed on in a chain are followed; what else ops read and write stays
 * behind hops as it was. */
static bool is_followed(uint32_t buffer)
{
    return buffer == PROGRAM_X || buffer == PROGRAM_QKV || (buffer >= X2 && buffer < MAX_SEEN);
}

/* Waits as the decoder does: op i of a step, behind op i - 1. */
static void wait_for_others(struct run *r, uint32_t i)
{
    const struct program_op *op = &r->p->ops[i];
    bool polls = i > 0 && op[-1].flags & PROGRAM_WORDS;
    if (!polls) {
        r->known = r->now - 1;
        r->first = r->now;
    } else if (op->opcode == PROGRAM_ATTEND && op->wait != PROGRAM_NONE) {
        uint32_t awaited = op->wait / DECODER_PHASES;
        const struct program_op *other = &r->p->ops[awaited];
        if (awaited >= i || op->wait % DECODER_PHASES ||
            (other->flags & PROGRAM_WORDS && !(other->flags & PROGRAM_SIGNALS)))
            fail(r, "waits for an op that does not signal", awaited);
        int known = r->now - (int)(i - awaited);
        r->known = known > r->known ? known : r->known;
    }
}

/* A product whose columns are shared quantises them in its place, where no block may still copy others from.
 * Products of gathered rows may use all places. Those of summed experts are over when the op goes on: all
 * blocks meet before they add (mixture_end()). */
static void use_place(struct run *r, const struct program_op *op)
{
    bool units = op->opcode == PROGRAM_EXPERTS || op->opcode == PROGRAM_HEADS;
    bool meets = op->opcode == PROGRAM_EXPERTS && !program_is_gated(op->epilogue);
    uint32_t bytes = 1; /* the least place but the first */
    for (uint32_t i = 0; i < r->p->n_ops; i++)
        if (r->p->ops[i].panels && (bytes == 1 || r->p->ops[i].panels < bytes))
            bytes = r->p->ops[i].panels;
    if (op->opcode != PROGRAM_MATMUL && !units)
        return;
    cr_assert(op->panels % bytes == 0 && op->panels / bytes < MAX_PLACES);
    for (uint32_t i = units ? 0 : op->panels / bytes; i < MAX_PLACES; i = units ? i + 1 : MAX_PLACES) {
        if (r->placed[i] > r->known)
            fail(r, "columns are quantised where blocks may still copy others", i);
        r->placed[i] = meets ? NEVER : r->now;
    }
}

static void use_old(struct run *r, const struct program_op *op)
{
    uint32_t old = buffer_at(r->p, (int64_t)r->p->buffers[op->out].offset + op->old);
    if (old == PROGRAM_NONE || old == op->out)
        fail(r, "the old value stands in no buffer", old);
    else if (program_is_gated(op->epilogue)) /* gate's product: written and read by one thread */
        write_buffer(r, old, false);
    else
        read_buffer(r, old, false);
    if (old != PROGRAM_NONE && op->flags & PROGRAM_EMPTIES) {
        r->b[old].read = NEVER; /* by the thread that empties it */
        empty_buffer(r, old);
    }
}

static void run_op(struct run *r, uint32_t i)
{
    const struct program_op *op = &r->p->ops[i];
    bool polls = i > 0 && op[-1].flags & PROGRAM_WORDS, words = op->flags & PROGRAM_WORDS;
    wait_for_others(r, i);
    use_place(r, op);
    for (int j = r->first; j < r->now; j++) {
        const struct program_op *before = op - (r->now - j);
        bool chosen = before->flags & PROGRAM_GATED || before->opcode == PROGRAM_EXPERTS;
        if (j > r->known &&
            (before->in == op->out || before->out == op->out || (chosen && op->out == PROGRAM_CHOICE)))
            fail(r, "written without a wait for another op's use", op->out);
    }
    if (is_followed(op->in))
        read_buffer(r, op->in, polls);
    if (is_followed(op->in) && op->in == op->out) /* CONV: by the warp that writes it */
        r->b[op->in].read = NEVER;
    bool in_place = op->epilogue == PROGRAM_RESIDUAL || op->epilogue >= PROGRAM_TIMES_SILU ||
                    op->opcode == PROGRAM_ADD_NORM;
    if (op->old)
        use_old(r, op);
    else if (is_followed(op->out) && in_place)
        read_buffer(r, op->out, false);
    if (is_followed(op->out) && in_place && !op->old)
        r->b[op->out].read = NEVER; /* by the thread that writes it */
    for (uint32_t b = 0; b < r->p->n_buffers && op->n_empties; b++) {
        uint32_t first = r->p->buffers[b].offset, end = first + r->p->buffers[b].width;
        if (b == PROGRAM_LOGITS || first == end || first >= op->empties + op->n_empties || end <= op->empties)
            continue;
        if (first < op->empties || end > op->empties + op->n_empties)
            fail(r, "emptied in part", b);
        empty_buffer(r, b);
    }
    if (is_followed(op->out))
        write_buffer(r, op->out, words);
    r->now++;
}

/* Runs four steps. Between two of them all blocks meet. */
static struct run run_steps(const struct program *p)
{
    struct run r = {.p = p};
    cr_assert(p->n_buffers <= MAX_SEEN);
    for (uint32_t b = 0; b < MAX_SEEN; b++)
        r.b[b] = (struct buffer){NEVER, NEVER, NEVER, NEVER, true};
    for (uint32_t i = 0; i < MAX_PLACES; i++)
        r.placed[i] = NEVER;
    for (int step = 0; step < 4; step++)
        for (uint32_t i = 0; i < p->n_ops; i++)
            run_op(&r, i);
    return r;
}

struct made {
    struct model *m;
    struct graph *g;
    struct program *fused, *p; /* as fused; as the device gets it */
    struct cuda_weights w;
    struct plan_marks marks;
    uint32_t rows; /* plan_words() */
};

static uint32_t n_crew = 448, n_blocks = 4;

static void mark(struct made *m, uint32_t work_bytes)
{
    size_t size = sizeof *m->p + m->fused->n_ops * sizeof *m->p->ops;
    struct plan_device device = {n_blocks, n_crew, 200000, 0};
    struct plan plan;
    struct error err = {0};
    free(m->p);
    m->p = malloc(size);
    cr_assert(m->p);
    memcpy(m->p, m->fused, size);
    cr_assert_eq(plan_open(&plan, m->fused, m->w.matrices, &device, &err), 0, "%s", err.text);
    m->marks =
        plan_mark(m->p, m->w.matrices, n_blocks, &(struct plan_block){work_bytes, n_crew, plan.ops}, true);
    plan_close(&plan);
    m->rows = m->marks.words_rows;
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

/* Recurrent layers store other things where layers with attention have q, k and v. */
Test(cuda_words, and_in_programs_with_other_kinds_of_layers, .timeout = 60)
{
    static const char *const shapes[] = {"tiny-qwen35",         "tiny-qwen35moe", "tiny-qwen3next",
                                         "tiny-deepseek-flash", "tiny-deepseek",  "tiny-gemma4moe",
                                         "tiny-gpt-oss",        "tiny-phi3",      "tiny-qwen3moe"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char path[64];
        made_model(shapes[i], "q8_0", path);
        struct made m = make(path);
        struct run r = run_steps(m.p);
        cr_assert_str_empty(r.fault, "%s: %s", shapes[i], r.fault);
        give(&m);
        (void)unlink(path);
    }
}

Test(cuda_words, dense_layers_are_a_chain, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t n = m.p->n_layers, floats = 0;
    cr_assert_eq(m.rows, ACTIVATION_COLUMNS);
    cr_assert_eq(n_words(m.p), 5 * n - 1, "all but the last");
    for (uint32_t layer = 0; layer < n; layer++) {
        const struct program_op *op = &m.p->ops[1 + layer * 5];
        cr_assert_eq((op[4].flags & PROGRAM_SIGNALS) != 0, layer + 1 < n);
        cr_assert_eq(op[1].wait, layer ? op[-1].signal : PROGRAM_NONE);
        cr_assert_eq(op[2].n_empties != 0, layer > 0);
        cr_assert(op[2].old && op[3].old && op[4].old);
    }
    cr_assert_gt(m.p->ops[0].n_empties, 0);
    for (uint32_t b = X2; b < m.p->n_buffers; b++)
        floats += m.p->buffers[b].width;
    cr_assert_geq(m.p->row_floats, m.fused->row_floats + floats);
    cr_assert_eq(m.p->buffers[X2].offset, m.fused->row_floats);
    give(&m);
}

static uint32_t n_quantising(const struct program *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i + 1 < p->n_ops; i++) {
        bool quantises = p->ops[i].flags & PROGRAM_QUANTISES;
        cr_assert_eq(quantises, (p->ops[i + 1].flags & PROGRAM_QUANTISED) != 0, "op %u", i);
        if (!quantises)
            continue;
        cr_assert(p->ops[i].flags & PROGRAM_WORDS && program_is_gated(p->ops[i].epilogue), "op %u", i);
        cr_assert(!(p->ops[i].flags & (PROGRAM_SIGNALS | PROGRAM_EMPTIES)), "op %u", i);
        n++;
    }
    return n;
}

static struct program_op *first_down(struct program *p)
{
    return &p->ops[5];
}

/* A warp makes a block of 32 values of h, and integers are all that down's matrix takes. */
Test(cuda_words, a_chain_passes_h_on_quantised, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t n = m.p->n_layers;
    cr_assert_eq(n_quantising(m.p), n);
    n_blocks = 132; /* a tile each */
    mark(&m, WORK_BYTES);
    cr_assert_eq(n_quantising(m.p), 0);
    cr_assert_eq(n_words(m.p), 5 * n - 1);
    n_blocks = 4;
    first_down(m.fused)->gain = first_down(m.fused)[-1].gain;
    mark(&m, WORK_BYTES);
    cr_assert_eq(n_quantising(m.p), n - 1, "a gain follows");
    first_down(m.fused)->gain = PROGRAM_NONE;
    first_down(m.fused)->k -= ARITH_BLOCK;
    mark(&m, WORK_BYTES);
    cr_assert_eq(n_quantising(m.p), n - 1, "half of a pair of blocks");
    first_down(m.fused)->k = 2 * ARITH_BLOCK;
    mark(&m, WORK_BYTES);
    cr_assert_eq(n_quantising(m.p), n - 1, "too short for its scales");
    give(&m);
    char path[64];
    made_model("tiny-qwen3", "f16", path);
    m = make(path);
    cr_assert(n_words(m.p) > 0 && n_quantising(m.p) == 0, "floats");
    give(&m);
    (void)unlink(path);
}

/* Behind one layer nothing would order the store of x behind its readers. */
Test(cuda_words, one_layer_is_no_chain, .timeout = 60)
{
    char path[64];
    made_model("tiny-qwen3", "q8_0", path);
    for (uint32_t n_layers = 1; n_layers <= 3; n_layers++) {
        char flags[32];
        (void)snprintf(flags, sizeof flags, "--layers %u", n_layers);
        make_model(path, "tiny-qwen3", "q8_0", flags);
        struct made m = make(path);
        cr_assert_eq(m.p->n_layers, n_layers);
        cr_assert_eq(m.p->ops[0].n_empties > 0, n_layers > 1);
        struct run r = run_steps(m.p);
        cr_assert_str_empty(r.fault, "%u layers: %s", n_layers, r.fault);
        n_crew = 32; /* a block of one warp has none to spare for signals */
        mark(&m, WORK_BYTES);
        cr_assert(m.rows == 0 && n_words(m.p) == 0);
        n_crew = 448;
        give(&m);
    }
    (void)unlink(path);
}

/* With a window somewhere layers are no chain, and a layer keeps two hops. */
Test(cuda_words, other_dense_layers_keep_two_hops, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t n_layers = m.p->n_layers;
    for (uint32_t i = 0; i < m.fused->n_ops; i++)
        m.fused->ops[i].flags |= m.fused->ops[i].opcode == PROGRAM_ATTEND ? PROGRAM_GENERAL : 0;
    mark(&m, WORK_BYTES);
    cr_assert_eq(m.rows, ACTIVATION_COLUMNS);
    cr_assert_eq(n_words(m.p), 3 * n_layers - 1, "q, k, v and twice x, but behind the last layer");
    for (uint32_t i = 0; i < m.p->n_ops; i++) {
        const struct program_op *op = &m.p->ops[i];
        bool adds = op->epilogue == PROGRAM_RESIDUAL && op->opcode == PROGRAM_MATMUL;
        bool heads = op->opcode == PROGRAM_MATMUL && op->out == PROGRAM_QKV;
        bool last = i + 1 < m.p->n_ops && op[1].flags & PROGRAM_HEAD;
        cr_assert_eq((op->flags & PROGRAM_WORDS) != 0, heads || (adds && !last), "op %u", i);
        cr_assert_eq(op->old != 0 && op->flags & PROGRAM_EMPTIES, adds, "op %u", i);
        cr_assert_eq(op->n_empties != 0, i > 0 && op[-1].opcode == PROGRAM_ATTEND, "op %u", i);
    }
    cr_assert_eq(m.p->row_floats, m.fused->row_floats + (m.p->buffers[X2].width + 15) / 16 * 16);
    cr_assert_eq(m.p->buffers[X2].offset, m.fused->row_floats);
    cr_assert_str_empty(run_steps(m.p).fault);
    give(&m);
}

static void is_noticed(struct made *m, uint32_t op, const char *what)
{
    cr_assert_str_not_empty(run_steps(m->p).fault, "op %u: %s", op, what);
}

/* So many places in place of eight. */
static void take_turns(struct made *m, uint32_t n_places)
{
    uint32_t bytes = (uint32_t)(m->marks.panel_bytes / MAX_PLACES), number = 0;
    for (uint32_t i = 0; i < m->p->n_ops; i++)
        if (m->p->ops[i].opcode == PROGRAM_MATMUL)
            m->p->ops[i].panels = number++ % n_places * bytes;
}

/* True if the next op that stores where op i's old value stands stores words. */
static bool is_rewritten(const struct program *p, uint32_t i)
{
    uint32_t old = buffer_at(p, (int64_t)p->buffers[p->ops[i].out].offset + p->ops[i].old);
    for (uint32_t n = 1; n <= p->n_ops; n++)
        if (p->ops[(i + n) % p->n_ops].out == old)
            return p->ops[(i + n) % p->n_ops].flags & PROGRAM_WORDS;
    return false;
}

/* The check above notices what the plan must not do. */
static void check_the_check(struct made *m)
{
    bool chain = m->p->ops[0].n_empties;
    for (uint32_t i = 0; i < m->p->n_ops; i++) {
        struct program_op *op = &m->p->ops[i], was = *op;
        bool reads_old = op->old && op->epilogue == PROGRAM_RESIDUAL;
        if (op->n_empties) {
            op->n_empties = 0;
            is_noticed(m, i, "the words of the layer before stay");
            *op = was;
        }
        if (reads_old) {
            op->old = 16;
            is_noticed(m, i, "no old value");
            *op = was;
        }
        if (chain && op->opcode == PROGRAM_ATTEND && op->wait != PROGRAM_NONE) {
            op->wait = PROGRAM_NONE;
            is_noticed(m, i, "no wait for the layer before");
            *op = was;
        }
        if (chain && op->flags & PROGRAM_SIGNALS) {
            op->flags &= (uint16_t)~PROGRAM_SIGNALS;
            is_noticed(m, i, "no signal for the layer behind");
            *op = was;
        }
        if (!chain && op->flags & PROGRAM_EMPTIES && is_rewritten(m->p, i)) {
            op->flags &= (uint16_t)~PROGRAM_EMPTIES;
            is_noticed(m, i, "the old value stays");
            *op = was;
        }
        bool behind_experts = i && op[-1].opcode == PROGRAM_EXPERTS; /* which have a hop in front */
        if (op->opcode == PROGRAM_MATMUL && op[-1].flags & PROGRAM_WORDS && !behind_experts) {
            const struct program_op *before = op - 1;
            while (before->opcode != PROGRAM_MATMUL)
                before--;
            op->panels = before->panels;
            is_noticed(m, i, "the place of the product before");
            *op = was;
        }
        if (!chain && op->opcode == PROGRAM_ATTEND) {
            op->flags |= PROGRAM_WORDS;
            is_noticed(m, i, "no hop behind readers");
            *op = was;
        }
    }
    take_turns(m, chain ? 4 : 1);
    is_noticed(m, 0, "a place is taken before all have left it");
    take_turns(m, MAX_PLACES);
    cr_assert_str_empty(run_steps(m->p).fault);
}

/* A mixture's experts pass their sum on as O does; no hop stands in front of the next layer. */
Test(cuda_words, experts_pass_their_sum_on, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3moe-s32-q4_k_m");
    uint32_t n_layers = m.p->n_layers, n_experts = 0;
    cr_assert_gt(m.rows, 0);
    cr_assert_eq(n_words(m.p), 3 * n_layers - 1, "q, k and v and twice x, but behind the last layer");
    for (uint32_t i = 0; i < m.p->n_ops; i++) {
        const struct program_op *op = &m.p->ops[i];
        bool summed = op->opcode == PROGRAM_EXPERTS && op->epilogue == PROGRAM_RESIDUAL;
        bool last = i + 1 < m.p->n_ops && op[1].flags & PROGRAM_HEAD;
        n_experts += summed;
        if (op->opcode != PROGRAM_EXPERTS)
            continue;
        cr_assert_eq((op->flags & PROGRAM_WORDS) != 0, summed && !last, "op %u", i);
        cr_assert_eq(op->old != 0 && op->flags & PROGRAM_EMPTIES, summed, "op %u", i);
    }
    cr_assert_eq(n_experts, n_layers);
    cr_assert_str_empty(run_steps(m.p).fault);
    check_the_check(&m);
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

Test(cuda_words, as_many_rows_as_the_products_have_room_for, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    uint32_t k = m.p->buffers[PROGRAM_H].width, x = m.p->buffers[PROGRAM_X].width;
    cr_assert_gt(k, x);
    mark(&m, activation_panel_bytes(3, k, ACTIVATION_INTEGERS));
    cr_assert_eq(m.rows, 3);
    cr_assert_eq(n_words(m.p), 5 * m.p->n_layers - 1);
    mark(&m, activation_panel_bytes(1, k, ACTIVATION_INTEGERS) - 1);
    cr_assert_eq(n_words(m.p), 3 * m.p->n_layers - 1, "of h there is no room for a row, of x there is");
    mark(&m, activation_panel_bytes(1, x, ACTIVATION_INTEGERS) - 1);
    cr_assert_eq(n_words(m.p), m.p->n_layers, "q, k and v, which ATTEND takes");
    cr_assert_str_empty(run_steps(m.p).fault);
    n_crew = 64; /* two warps, which share columns with all blocks */
    mark(&m, WORK_BYTES);
    cr_assert(product_is_shared(ACTIVATION_COLUMNS, x, 2) && m.rows == ACTIVATION_COLUMNS);
    n_crew = 448;
    give(&m);
}

/* Of an odd number of ops that pass x on one more op moves it, or one fewer passes it on. */
Test(cuda_words, a_step_ends_with_x_where_it_began, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    for (uint32_t i = 0; i < m.p->n_ops; i++)
        if (m.p->ops[i].flags & PROGRAM_HEAD && m.p->ops[i].opcode == PROGRAM_MATMUL)
            cr_assert_eq(m.p->ops[i].in, PROGRAM_X);
    uint32_t last = 0, n_moves = 0;
    for (uint32_t i = 0; i < m.fused->n_ops; i++)
        if (m.fused->ops[i].epilogue == PROGRAM_RESIDUAL)
            last = i;
    m.fused->ops[last].opcode = PROGRAM_GATE; /* the last layer adds to x once */
    mark(&m, WORK_BYTES);
    for (uint32_t i = 0; i < m.p->n_ops; i++)
        n_moves += m.p->ops[i].old != 0;
    cr_assert(n_moves > 0 && n_moves % 2 == 0);
    cr_assert_str_empty(run_steps(m.p).fault);
    give(&m);
}

Test(cuda_words, a_program_with_a_mistake_is_noticed, .timeout = 60)
{
    struct made m = make_named("tiny-qwen3-s11-q4_k_m");
    check_the_check(&m);
    for (uint32_t i = 0; i < m.fused->n_ops; i++)
        m.fused->ops[i].flags |= m.fused->ops[i].opcode == PROGRAM_ATTEND ? PROGRAM_GENERAL : 0;
    mark(&m, WORK_BYTES);
    check_the_check(&m);
    give(&m);
}
