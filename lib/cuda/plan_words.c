/* plan_words.c - which ops of the decoder's program pass their output on as words (kernels/device/words.h),
 * so that no hop stands between them and the next op. Declared in plan.h.
 *
 * X, from a product that adds to it to the product that reads it next. x gets a second buffer. Such an op
 * adds to what one of them has, stores the sum in the other and empties the first: the other was emptied by
 * the op before it that did so. Q, K AND V, from their product to ATTEND: the op behind ATTEND empties them.
 *
 * An op that empties has waited for a hop, behind which nobody reads what it empties; the hop before the next
 * writer orders that writer and all readers behind the emptying. So the hops into ops that add to x, and out
 * of ATTEND, stay: two of a dense layer's five. Others stay where the next op writes what blocks may still
 * read. */
#include "abi/tile.h"
#include "plan.h"

/* Blocks poll x as long as a hop would take, and each poll reads all of it through L2. With 2,048 values that
 * is 1.1 MB for 132 blocks, 0.2 us; a model with more is bound by the weights' stream, which needs L2 as well
 * (kernels/PREDICTIONS.md). */
#define MOST_VALUES 2048u

#define X2 PROGRAM_N_BUFFERS /* the second buffer of x */

/* Most rows of which a product is narrow, so that it may take words. */
static uint32_t narrow_rows(const struct program_op *op, const struct decoder_matrix *matrices,
                            uint32_t work_bytes)
{
    uint32_t forms = 0, n = ACTIVATION_COLUMNS;
    for (uint32_t i = 0; i < op->n_weights; i++)
        forms |= activation_form(matrices[op->weight[i]].type);
    while (n && product_is_wide(n, op->k, forms, work_bytes))
        n--;
    return n;
}

/* True if a hop stands before op i. */
static bool has_hop(const struct program *p, uint32_t i)
{
    return i > 0 && !(p->ops[i - 1].flags & PROGRAM_WORDS);
}

/* True if the op behind op i writes nothing that a block may still read or write in op i or in one before it,
 * back to the last hop: then no hop is needed between the two. */
static bool is_free(const struct program *p, uint32_t i)
{
    uint32_t out = p->ops[i + 1].out;
    for (uint32_t j = i;; j--) {
        if (p->ops[j].in == out || p->ops[j].out == out)
            return false;
        if (j == 0 || has_hop(p, j))
            return true;
    }
}

static bool adds_to_x(const struct program *p, uint32_t i)
{
    const struct program_op *op = &p->ops[i];
    return op->opcode == PROGRAM_MATMUL && op->epilogue == PROGRAM_RESIDUAL && op->out == PROGRAM_X &&
           op->in != PROGRAM_X && has_hop(p, i);
}

/* True if op i adds to x, and the next op is a product that may take x as words. */
static bool passes_x(const struct program *p, uint32_t i)
{
    const struct program_op *next = &p->ops[i + 1];
    return i + 1 < p->n_ops && adds_to_x(p, i) && next->opcode == PROGRAM_MATMUL && next->in == PROGRAM_X &&
           next->k <= MOST_VALUES && !(next->flags & (PROGRAM_HEAD | PROGRAM_GATED)) && is_free(p, i);
}

/* True if op i makes q, k and v for ATTEND, behind which an op can empty them: nobody else reads them, and a
 * hop comes before they are made again. */
static bool passes_heads(const struct program *p, uint32_t i)
{
    const struct program_op *op = &p->ops[i];
    if (i + 2 >= p->n_ops || op->opcode != PROGRAM_MATMUL || op->epilogue != PROGRAM_STORE ||
        op->out != PROGRAM_QKV || op->in == PROGRAM_QKV || op[1].opcode != PROGRAM_ATTEND ||
        op[1].in != PROGRAM_QKV || op[2].opcode != PROGRAM_MATMUL || op[2].in == PROGRAM_QKV ||
        op[2].out == PROGRAM_QKV || !is_free(p, i))
        return false;
    bool hop = false;
    for (uint32_t j = i + 3; j < p->n_ops; j++) {
        hop |= has_hop(p, j);
        if (p->ops[j].in == PROGRAM_QKV)
            return false;
        if (p->ops[j].out == PROGRAM_QKV)
            return hop;
    }
    return true;
}

/* Gives x its second buffer behind the others of a row. */
static void add_buffer(struct program *p)
{
    p->buffers[X2] = (struct program_buffer){p->row_floats, p->buffers[PROGRAM_X].width};
    p->row_floats += (p->buffers[X2].width + 15) / 16 * 16; /* 64 bytes: rows stay aligned */
    p->n_buffers = X2 + 1;
}

/* Lets each op use the buffer that has x; ops with PROGRAM_WORDS, and op `also`, store it in the other. */
static void place_x(struct program *p, uint32_t also)
{
    uint32_t now = PROGRAM_X;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct program_op *op = &p->ops[i];
        if (op->in == PROGRAM_X)
            op->in = now;
        if (op->out != PROGRAM_X)
            continue;
        if (op->flags & PROGRAM_WORDS || i == also) {
            uint32_t other = now == PROGRAM_X ? X2 : PROGRAM_X;
            op->old = (int32_t)(p->buffers[now].offset - p->buffers[other].offset);
            now = other;
        }
        op->out = now;
    }
}

/* Marks the ops that pass x on. A step ends with x where it began: of an odd number one more op moves it, or
 * one fewer passes it on. Returns the most rows for which the next ops take it. */
static uint32_t mark_x(struct program *p, const struct decoder_matrix *matrices, uint32_t work_bytes,
                       uint32_t rows)
{
    uint32_t n = 0, last = 0, also = p->n_ops;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        uint32_t narrow = passes_x(p, i) ? narrow_rows(&p->ops[i + 1], matrices, work_bytes) : 0;
        if (!narrow)
            continue;
        p->ops[i].flags |= PROGRAM_WORDS;
        rows = narrow < rows ? narrow : rows;
        last = i;
        n++;
    }
    for (uint32_t i = p->n_ops; n % 2 && i > 0 && also == p->n_ops; i--)
        if (!(p->ops[i - 1].flags & PROGRAM_WORDS) && adds_to_x(p, i - 1))
            also = i - 1;
    if (n % 2 && also == p->n_ops) {
        p->ops[last].flags &= (uint16_t)~PROGRAM_WORDS;
        n--;
    }
    if (n == 0)
        return rows;
    add_buffer(p);
    place_x(p, also);
    return rows;
}

uint32_t plan_words(struct program *program, const struct decoder_matrix *matrices, uint32_t work_bytes)
{
    uint32_t rows = mark_x(program, matrices, work_bytes, ACTIVATION_COLUMNS);
    bool any = program->n_buffers > PROGRAM_N_BUFFERS;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (passes_heads(program, i)) {
            program->ops[i].flags |= PROGRAM_WORDS;
            program->ops[i + 2].empties = PROGRAM_QKV;
            any = true;
        }
    return any ? rows : 0;
}
