/* plan_words.c - which ops of the decoder's program pass their output on as words (kernels/device/words.h),
 * so that no hop stands between them and the next op. Declared in plan.h.
 *
 * Words must be empty before they are written. So there is an op that empties them, behind a wait for all
 * blocks' end of the op that reads them; and a wait for all blocks' end of that op lies before the next op
 * that writes them, and before the one that reads what it writes.
 *
 * A CHAIN has dense layers of five ops and the plain attention. All ops pass words on but the last layer's
 * last; h is quantised where it is made, if it can be. Three sets of buffers take turns: layer l has set l
 * % 3. In ATTEND a block waits until all have finished the layer before, which each signals while it begins
 * q, k and v, one op earlier. Behind that wait O empties that layer's set; the next layer's ATTEND waits for
 * this, before the set is used again two layers on.
 *
 * In OTHER PROGRAMS there are words where hops remain around them. X, from a product that adds to it (or the
 * experts' that do) to the product that reads it next: x gets a second buffer; such an op adds to what one of
 * them has, stores the sum in the other and empties the first. Q, K AND V, from their product to ATTEND: the
 * op behind ATTEND empties them. Hops into ops that add to x, and out of ATTEND, stay: two of a dense layer's
 * five. So do those in front of an op that writes what blocks may still read. */
#include "abi/arith.h"
#include "abi/tile.h"
#include "plan.h"

/* Blocks poll x as long as a hop would take. With 2,048 values a turn of 132 blocks reads up to 0.95 MB
 * through L2, 0.17 us; a model with more is bound by the weights' stream, which needs L2 as well
 * (kernels/PREDICTIONS.md). */
#define MOST_VALUES 2048u

#define X2 PROGRAM_N_BUFFERS /* the second buffer of x */

/* Adds a buffer behind the others of a row. */
static void add_buffer(struct program *p, uint32_t index, uint32_t width)
{
    p->buffers[index] = (struct program_buffer){p->row_floats, width};
    p->row_floats += (width + 15) / 16 * 16; /* 64 bytes: rows stay aligned */
    p->n_buffers = index + 1;
}

/* The forms of columns that a product's matrices read: a set of enum activation_form. */
static uint32_t forms_of(const struct program_op *op, const struct decoder_matrix *matrices)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < op->n_weights; i++)
        forms |= activation_form(matrices[op->weight[i]].type);
    return forms;
}

/* Most rows that a product may take as words: it is narrow. */
static uint32_t narrow_rows(const struct program_op *op, const struct decoder_matrix *matrices,
                            const struct plan_block *block)
{
    uint32_t forms = forms_of(op, matrices), n = ACTIVATION_COLUMNS;
    while (n && product_is_wide(n, op->k, forms, block->work_bytes))
        n--;
    return n;
}

/* --- the places of shared columns --- */

/* A product whose columns are shared and words writes them while blocks may still copy those of the product
 * before. So products take turns in N_PLACES places, which is two layers of a chain: by then ATTEND has
 * waited for the end of the layer in which the place was last used. In other programs a hop lies in front of
 * the product that makes x, so that all before it are over, and that one has another place.
 * Experts that make x have no place, and gathered ones use all of them; but all blocks meet behind them
 * before the sum is passed on (mixture_end()). */
#define N_PLACES 8

uint64_t plan_panels(struct program *program, const struct decoder_matrix *matrices)
{
    uint32_t most = 0, number = 0;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct program_op *op = &program->ops[i];
        if (op->opcode != PROGRAM_MATMUL)
            continue;
        uint32_t bytes = activation_panel_bytes(ACTIVATION_COLUMNS, op->k, forms_of(op, matrices));
        most = bytes > most ? bytes : most;
    }
    most = (most + 127) / 128 * 128;
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].opcode == PROGRAM_MATMUL)
            program->ops[i].panels = number++ % N_PLACES * most;
    return (uint64_t)N_PLACES * most;
}

/* --- pairs of ops with hops around them --- */

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
        bool chosen = p->ops[j].flags & PROGRAM_GATED || p->ops[j].opcode == PROGRAM_EXPERTS;
        if (p->ops[j].in == out || p->ops[j].out == out || (chosen && out == PROGRAM_CHOICE))
            return false;
        if (j == 0 || has_hop(p, j))
            return true;
    }
}

static bool adds_to_x(const struct program *p, uint32_t i)
{
    const struct program_op *op = &p->ops[i];
    return (op->opcode == PROGRAM_MATMUL || op->opcode == PROGRAM_EXPERTS) &&
           op->epilogue == PROGRAM_RESIDUAL && op->out == PROGRAM_X && op->in != PROGRAM_X && has_hop(p, i);
}

/* True if op i adds to x, and the next op is a product that may take x as words. */
static bool passes_x(const struct program *p, uint32_t i)
{
    const struct program_op *next = &p->ops[i + 1];
    return i + 1 < p->n_ops && adds_to_x(p, i) && next->opcode == PROGRAM_MATMUL && next->in == PROGRAM_X &&
           next->k <= MOST_VALUES && !(next->flags & (PROGRAM_HEAD | PROGRAM_GATED)) && is_free(p, i);
}

/* True if op i makes q, k and v for ATTEND, behind which an op can empty them: no other op reads them, and a
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
            op->flags |= PROGRAM_EMPTIES;
            now = other;
        }
        op->out = now;
    }
}

/* Marks the ops that pass x on. A step must end with x in the buffer where it began: if an odd number of ops
 * pass x on, one more op also moves it, or, where none can, the last one does not pass it on. Returns the
 * most rows for which the next ops take it. */
static uint32_t mark_x(struct program *p, const struct decoder_matrix *matrices,
                       const struct plan_block *block)
{
    uint32_t n = 0, last = 0, also = p->n_ops, rows = ACTIVATION_COLUMNS;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        uint32_t narrow = passes_x(p, i) ? narrow_rows(&p->ops[i + 1], matrices, block) : 0;
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
    add_buffer(p, X2, p->buffers[PROGRAM_X].width);
    place_x(p, also);
    return rows;
}

/* True if all that is ever stored where q, k and v are is emptied. */
static bool all_pass_heads(const struct program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].out == PROGRAM_QKV && !passes_heads(p, i))
            return false;
    return true;
}

static uint32_t mark_pairs(struct program *p, const struct decoder_matrix *matrices,
                           const struct plan_block *block)
{
    uint32_t rows = mark_x(p, matrices, block);
    bool any = p->n_buffers > PROGRAM_N_BUFFERS, heads = all_pass_heads(p);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (heads && passes_heads(p, i)) {
            struct program_op *op = &p->ops[i];
            op->flags |= PROGRAM_WORDS;
            op[1].wait = PROGRAM_NONE;
            op[2].empties = p->buffers[PROGRAM_QKV].offset;
            op[2].n_empties = p->buffers[PROGRAM_QKV].width / 4 * 4;
            any = true;
        }
    return any ? rows : 0;
}

/* --- a chain --- */

#define N_SETS 3

enum chain_op { CHAIN_QKV, CHAIN_ATTEND, CHAIN_O, CHAIN_GATED, CHAIN_DOWN, CHAIN_OPS };

/* The buffers of a set: what each op of a layer reads. */
enum chain_part { CHAIN_X, CHAIN_HEADS, CHAIN_ATTENDED, CHAIN_SUM, CHAIN_H, CHAIN_PARTS };
_Static_assert(PROGRAM_N_BUFFERS + N_SETS * CHAIN_PARTS <=
                   sizeof((struct program *)0)->buffers / sizeof(struct program_buffer),
               "room");

static uint32_t part_of(uint32_t layer, enum chain_part part)
{
    return PROGRAM_N_BUFFERS + layer % N_SETS * CHAIN_PARTS + part;
}

static bool is_product_of(const struct program_op *op, uint32_t in, uint32_t out)
{
    return op->opcode == PROGRAM_MATMUL && op->in == in && op->out == out &&
           !(op->flags & (PROGRAM_HEAD | PROGRAM_GATED));
}

static bool is_dense_layer(const struct program_op *op)
{
    const struct program_op *attend = &op[CHAIN_ATTEND];
    return is_product_of(&op[CHAIN_QKV], PROGRAM_X, PROGRAM_QKV) && op[CHAIN_QKV].epilogue == PROGRAM_STORE &&
           op[CHAIN_QKV].k <= MOST_VALUES && attend->opcode == PROGRAM_ATTEND && attend->in == PROGRAM_QKV &&
           attend->out == PROGRAM_ATTN && !(attend->flags & PROGRAM_GENERAL) &&
           is_product_of(&op[CHAIN_O], PROGRAM_ATTN, PROGRAM_X) && op[CHAIN_O].epilogue == PROGRAM_RESIDUAL &&
           is_product_of(&op[CHAIN_GATED], PROGRAM_X, PROGRAM_H) &&
           program_is_gated(op[CHAIN_GATED].epilogue) &&
           is_product_of(&op[CHAIN_DOWN], PROGRAM_H, PROGRAM_X) &&
           op[CHAIN_DOWN].epilogue == PROGRAM_RESIDUAL;
}

/* Returns the number of layers of a chain, or 0. A chain has two at least: behind the only layer's ATTEND,
 * which waits for no layer before it, nothing would order down's store to x behind those who still read x. */
static uint32_t chain_layers(const struct program *p)
{
    uint32_t n = 0;
    if (p->ops[0].opcode != PROGRAM_EMBED)
        return 0;
    while (1 + (n + 1) * CHAIN_OPS < p->n_ops && is_dense_layer(&p->ops[1 + n * CHAIN_OPS]))
        n++;
    const struct program_op *end = &p->ops[1 + n * CHAIN_OPS];
    return n >= 2 && end->opcode == PROGRAM_MATMUL && end->flags & PROGRAM_HEAD ? n : 0;
}

/* Most rows of which all products are narrow. */
static uint32_t chain_rows(const struct program *p, uint32_t n_layers, const struct decoder_matrix *matrices,
                           const struct plan_block *block)
{
    uint32_t rows = ACTIVATION_COLUMNS;
    for (uint32_t i = 1; i < 1 + n_layers * CHAIN_OPS; i++) {
        uint32_t narrow =
            p->ops[i].opcode == PROGRAM_MATMUL ? narrow_rows(&p->ops[i], matrices, block) : rows;
        rows = narrow < rows ? narrow : rows;
    }
    return rows;
}

/* Gives the layers their sets, behind the other buffers of a row. */
static void add_sets(struct program *p)
{
    static const uint32_t like[CHAIN_PARTS] = {[CHAIN_X] = PROGRAM_X,
                                               [CHAIN_HEADS] = PROGRAM_QKV,
                                               [CHAIN_ATTENDED] = PROGRAM_ATTN,
                                               [CHAIN_SUM] = PROGRAM_X,
                                               [CHAIN_H] = PROGRAM_H};
    for (uint32_t set = 0; set < N_SETS; set++)
        for (uint32_t part = 0; part < CHAIN_PARTS; part++)
            add_buffer(p, part_of(set, part), p->buffers[like[part]].width);
}

static int32_t floats_between(const struct program *p, uint32_t from, uint32_t to)
{
    return (int32_t)(p->buffers[to].offset - p->buffers[from].offset);
}

/* Lets an op empty a layer's set. */
static void empty_set(const struct program *p, struct program_op *op, uint32_t layer)
{
    const struct program_buffer *last = &p->buffers[part_of(layer, CHAIN_H)];
    op->empties = p->buffers[part_of(layer, CHAIN_X)].offset;
    op->n_empties = (last->offset + last->width - op->empties) / 4 * 4;
}

/* True if h is passed on quantised: no gain follows, down's matrix takes integers alone, a quantised column
 * fits where its floats would lie (of 64 values it does not), and a warp makes a block of 32 of its values,
 * of two tiles, which groups do not part. Gate and up have no PROGRAM_SIGNALS and empty no old value. */
static bool quantises_h(const struct program *p, uint32_t gated, const struct decoder_matrix *matrices,
                        const struct plan_block *block)
{
    const struct program_op *down = &p->ops[gated + 1];
    return forms_of(down, matrices) == ACTIVATION_INTEGERS && down->k % (2 * ARITH_BLOCK) == 0 &&
           down->k > 2 * ARITH_BLOCK && down->gain == PROGRAM_NONE && block->plan[gated].group_tiles % 2 == 0;
}

static void mark_layer(struct program *p, uint32_t layer, bool last, bool quantises)
{
    struct program_op *op = &p->ops[1 + layer * CHAIN_OPS];
    uint32_t x = layer ? part_of(layer, CHAIN_X) : PROGRAM_X,
             next = last ? PROGRAM_X : part_of(layer + 1, CHAIN_X);
    uint32_t heads = part_of(layer, CHAIN_HEADS), attended = part_of(layer, CHAIN_ATTENDED);
    uint32_t sum = part_of(layer, CHAIN_SUM), h = part_of(layer, CHAIN_H);
    const uint32_t in[CHAIN_OPS] = {x, heads, attended, sum, h},
                   out[CHAIN_OPS] = {heads, attended, sum, h, next};
    for (uint32_t i = 0; i < CHAIN_OPS; i++) {
        op[i].in = in[i];
        op[i].out = out[i];
        if (i != CHAIN_DOWN || !last)
            op[i].flags |= PROGRAM_WORDS;
        if (i || layer)
            op[i].wait = PROGRAM_NONE;
    }
    op[CHAIN_O].old = floats_between(p, sum, x);
    op[CHAIN_GATED].old = floats_between(p, h, PROGRAM_H); /* which is free: h is in the sets */
    op[CHAIN_DOWN].old = floats_between(p, next, sum);
    if (quantises) {
        op[CHAIN_GATED].flags |= PROGRAM_QUANTISES;
        op[CHAIN_DOWN].flags |= PROGRAM_QUANTISED;
    }
    if (!last)
        op[CHAIN_DOWN].flags |= PROGRAM_SIGNALS;
    if (layer == 0)
        return;
    op[CHAIN_ATTEND].wait = op[-1].signal;
    empty_set(p, &op[CHAIN_O], layer - 1);
}

/* The last layer's set is emptied when the next step begins. */
static uint32_t mark_chain(struct program *p, const struct decoder_matrix *matrices,
                           const struct plan_block *block)
{
    uint32_t n = chain_layers(p), rows = n ? chain_rows(p, n, matrices, block) : 0;
    if (rows == 0)
        return 0;
    add_sets(p);
    for (uint32_t layer = 0; layer < n; layer++)
        mark_layer(p, layer, layer + 1 == n,
                   quantises_h(p, 1 + layer * CHAIN_OPS + CHAIN_GATED, matrices, block));
    empty_set(p, &p->ops[0], n - 1);
    return rows;
}

uint32_t plan_words(struct program *program, const struct decoder_matrix *matrices,
                    const struct plan_block *block)
{
    if (block->n_crew < 64) /* one warp of a block signals while the others take words */
        return 0;
    uint32_t rows = mark_chain(program, matrices, block);
    return rows ? rows : mark_pairs(program, matrices, block);
}
