/* mixture.h - the products of a mixture of experts in the persistent decoder (program_ops.h, EXPERTS), and
 * those of heads with matrices of their own (HEADS): those of product.h, of one expert's or head's matrices
 * at a time.
 *
 *   gated   inner of (row, u) = act(W_gate x + b) * (W_up x + b)
 *           x: the row's normalised input; W, b: of expert u of the row's choice
 *   summed  out of row (+)= sum over u, ascending, of weight u * (W_down inner + b)
 *
 * A unit is one product. Of a step with few rows it is a pair of a row and one of its chosen experts, row by
 * row, experts ascending: a narrow product of one column. Where the experts have several rows each, these
 * are gathered (mixture_layout.h, which has the rule): a unit is an expert with all its rows, a wide product,
 * whose columns all blocks have quantised together before the first unit. ROUTE makes the list of units
 * (gather.h).
 *
 * Of HEADS a unit is a head with all rows: a narrow product, or a wide one. Then all blocks have quantised
 * the columns of all heads together before the first unit: head after head, each from a multiple of
 * ACTIVATION_COLUMNS on.
 *
 * The groups of each unit are dealt to blocks where those of the unit before end, so that the blocks stream
 * as much. Between units one lane points the description of the product (struct product) at the next unit of
 * which its block has a group. The results of a summed op stand in mixtures.parts until all blocks have
 * theirs; then each thread adds those of its columns. No result depends on what else is in a step.
 *
 * A block's producer warp knows the experts only when its compute warps have seen ROUTE end, or have chosen
 * themselves (route_op.h): the experts' gate (step_gate.h) tells it the number of rows. It then reads the
 * choice, or the list, by itself, for both ops of the mixture, and so runs ahead of the compute warps through
 * the second one. They end that op only when it has read all: the next mixture's choice writes both anew. For
 * HEADS it needs to know nothing.
 *
 * Floor: the packed bytes of a row's experts, for each row anew; gathered, of each expert that any row has
 * chosen, once; of heads, once; of a summed op 8 bytes a part and a meeting of all blocks. Three barriers of
 * the compute warps a unit besides product_run()'s. Must match lib/cpu/matmul/team_experts.h and team_heads.h
 * in every bit: tests/cuda/test_cuda_golden.c, tests/cuda/test_cuda_twin.c.
 *
 * Thread: mixture_open(): one lane. mixture_seek(): one lane, of the warp that opened. mixture_stream(): all
 * lanes of the producer warp. The rest: all compute threads of every block together. Errors: false: end, as
 * interpreter.h says. */
#pragma once
#include "abi/mixture_layout.h"
#include "device/step_gate.h"
#include "matmul/product.h"

/* The unit at which a description is pointed. */
struct mixture {
    uint32_t choice;   /* column of a row's buffers: its experts' numbers, and then their weights */
    uint32_t column;   /* and of its input; of a summed op, of the result */
    uint32_t out_part; /* HEADS: floats from one head's result in a row to the next's; else 0 */
    uint32_t n_rows, n_units;
    uint32_t unit; /* n_units: there is no further one */
    uint16_t n_used, expert;
    uint16_t gathers;  /* the columns of all units are quantised before the first */
    uint16_t summed;   /* the op's results are weighed and added up */
    uint32_t adds;     /* to what stands at `column` */
    uint32_t state;    /* enum mixture_state */
    uint32_t own;      /* the block has chosen for itself: mixture_own() */
    uint32_t reserved; /* so that the second one begins at a multiple of 16 bytes */
};
_Static_assert(sizeof(struct mixture) == DECODER_MIXTURE_BYTES, "two of them lie behind the gates");

enum mixture_state {
    MIXTURE_OPENED, /* it is pointed at no unit yet */
    MIXTURE_FRESH,  /* the unit's column is not quantised yet */
    MIXTURE_KEPT,   /* it is: the unit before has the same */
};

/* The compute warps' (0) and the producer's (1). */
SIMT_INLINE SIMT_SHARED struct mixture *mixture_at(const struct decoder_args *args, uint32_t which)
{
    const struct decoder_shared *s = &args->shared;
    uint32_t behind = s->mbarriers + s->n_stages * 16 + DECODER_N_GATES * DECODER_GATE_BYTES;
    return simt_carve(behind + which * DECODER_MIXTURE_BYTES + simt_opaque(0), DECODER_MIXTURE_BYTES);
}

SIMT_INLINE const SIMT_GLOBAL struct mixture_list *mixture_list_of(const struct decoder_args *args)
{
    return DECODER_AT(const struct mixture_list, args->buffers.mixtures.list);
}

/* True of the second op of a mixture: the one whose results are weighed and added up. */
SIMT_INLINE bool mixture_is_summed(const SIMT_GLOBAL struct program_op *op)
{
    return op->opcode == PROGRAM_EXPERTS && !program_is_gated(op->epilogue);
}

/* True of the first one, before which the producer must learn the choice. */
SIMT_INLINE bool mixture_is_chosen(const SIMT_GLOBAL struct program_op *op)
{
    return op->opcode == PROGRAM_EXPERTS && program_is_gated(op->epilogue);
}

/* True if each block chooses a step's experts for itself. */
SIMT_INLINE bool mixture_chooses(const SIMT_GLOBAL struct program_op *op, uint32_t n_rows)
{
    return mixture_is_own(op->flags, n_rows, op->route.n_used, op->route.n_experts);
}

/* The choices that this block has made, [n_rows][2 n_used], behind what its warps keep. */
SIMT_INLINE SIMT_SHARED float *mixture_own(const struct decoder_args *args)
{
    const struct decoder_shared *s = &args->shared;
    uint32_t end = s->mbarriers + s->n_stages * 16 + DECODER_GATES_BYTES;
    return simt_carve(end - DECODER_CHOICE_BYTES + simt_opaque(0), DECODER_CHOICE_BYTES);
}

/* Value `at` of the choice of a row: the experts' numbers, then their weights. */
SIMT_INLINE float mixture_choice(const SIMT_SHARED struct mixture *m, const struct decoder_args *args,
                                 uint32_t row, uint32_t at)
{
    const struct decoder_buffers *b = &args->buffers;
    if (m->own)
        return mixture_own(args)[row * 2 * m->n_used + at];
    return DECODER_AT(const float, b->rows)[(size_t)row * b->row_floats + m->choice + at];
}

/* Makes a description of a matrix of all heads one of the first head's. */
SIMT_INLINE void mixture_open_heads(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                                    const struct decoder_args *args, const SIMT_GLOBAL struct program_op *op,
                                    uint32_t n_rows)
{
    uint32_t n = op->n[0], col = op->out_col[1], keep = op->n[2];
    bool wide = product_is_wide(n_rows, p->k, p->forms, args->shared.work_bytes);
    m->out_part = keep + n;
    m->n_rows = n_rows;
    m->n_units = op->n[1];
    m->unit = 0;
    m->expert = 0;
    m->gathers = wide;
    m->summed = 0;
    m->state = MIXTURE_OPENED;
    p->matrix[0].n = n;
    p->matrix[0].n_tiles = n / TILE_ROWS;
    p->matrix[0].out_col = 0;
    p->in += (uint64_t)col * 4;
    p->out += ((uint64_t)op->out_col[0] + keep) * 4;
    p->head_part = col + p->k + keep;
    if (wide)
        p->head_columns = (n_rows + ACTIVATION_COLUMNS - 1) / ACTIVATION_COLUMNS * ACTIVATION_COLUMNS;
}

/* Makes a description of the op's whole matrices (product_open()) one of the first expert's, and of the
 * columns of all places. */
SIMT_INLINE void mixture_open(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                              const struct decoder_args *args, const SIMT_GLOBAL struct program *program,
                              const SIMT_GLOBAL struct program_op *op, uint32_t n_rows)
{
    const struct decoder_mixtures *x = &args->buffers.mixtures;
    uint32_t n = op->n[0], n_used = op->route.n_used;
    bool summed = mixture_is_summed(op), gathers = mixture_gathers(n_rows, n_used, op->route.n_experts);
    m->choice = program->buffers[PROGRAM_CHOICE].offset + op->gate_col;
    m->column = program->buffers[summed ? op->out : op->in].offset;
    m->n_rows = n_rows;
    m->out_part = m->n_units = m->unit = 0;
    m->n_used = (uint16_t)n_used;
    m->expert = 0;
    m->gathers = gathers;
    m->summed = summed;
    m->adds = op->epilogue == PROGRAM_RESIDUAL;
    m->own = mixture_chooses(op, n_rows);
    m->state = MIXTURE_OPENED;
    for (uint32_t i = 0; i < p->n_matrices; i++) {
        p->matrix[i].n = n;
        p->matrix[i].n_tiles = n / TILE_ROWS;
        p->matrix[i].out_col = 0;
    }
    p->out_stride = n;
    if (!summed) {
        p->gather = gathers ? x->rows : 0;
        return;
    }
    p->in = x->inner;
    p->in_stride = p->k;
    p->epilogue = PROGRAM_STORE;
    p->words = 0; /* parts are none, and are added to nothing: mixture_add() */
    p->old = 0;
    p->empties_old = 0;
}

/* Points the description at an expert's matrices. */
SIMT_INLINE void mixture_point_matrices(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                                        uint32_t expert)
{
    uint32_t before = m->expert, n = p->matrix[0].n;
    m->expert = (uint16_t)expert;
    for (uint32_t i = 0; i < p->n_matrices; i++) {
        SIMT_SHARED struct product_matrix *x = &p->matrix[i];
        uint64_t bytes = (uint64_t)x->n_tiles * p->n_supers * x->super_bytes;
        x->tiles += expert * bytes - before * bytes;
        if (x->bias)
            x->bias += (uint64_t)expert * n * 4 - (uint64_t)before * n * 4;
    }
}

/* Points the description's panels at the columns from place `place` on. */
SIMT_INLINE void mixture_point_columns(SIMT_SHARED struct product *p, const struct decoder_args *args,
                                       uint32_t place, uint32_t n_columns)
{
    const struct decoder_buffers *b = &args->buffers;
    uint32_t panel_bytes = p->n_supers * activation_super_bytes(ACTIVATION_COLUMNS, p->forms);
    p->end_column = n_columns;
    p->panels = b->activations + (uint64_t)(place / ACTIVATION_COLUMNS) * panel_bytes;
    p->wide_factors = b->factors + (uint64_t)place * 4;
}

/* Points the description at a head. */
SIMT_INLINE void mixture_point_head(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                                    const struct decoder_args *args, uint32_t head)
{
    uint32_t before = m->expert;
    m->state = MIXTURE_FRESH;
    m->unit = head;
    if (head == m->n_units)
        return;
    p->in += (uint64_t)(head - before) * p->head_part * 4;
    p->out += (uint64_t)(head - before) * m->out_part * 4;
    if (m->gathers)
        mixture_point_columns(p, args, head * p->head_columns, m->n_rows);
    mixture_point_matrices(m, p, head);
}

/* Points the description at unit `unit`, if there is one. */
SIMT_INLINE void mixture_point(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                               const struct decoder_args *args, uint32_t unit)
{
    const struct decoder_buffers *b = &args->buffers;
    uint32_t n_used = m->n_used, row = unit / n_used, place = unit, expert;
    bool kept = m->state != MIXTURE_OPENED && !m->summed && row == m->unit / n_used;
    m->state = kept ? MIXTURE_KEPT : MIXTURE_FRESH;
    m->unit = unit;
    if (unit == m->n_units)
        return;
    if (m->gathers) {
        const SIMT_GLOBAL struct mixture_unit *x = &mixture_list_of(args)->units[unit];
        expert = x->expert;
        place = x->place;
        mixture_point_columns(p, args, place, x->n_columns);
    } else {
        expert = (uint32_t)mixture_choice(m, args, row, unit % n_used);
        p->in = m->summed ? b->mixtures.inner + (uint64_t)place * p->k * 4
                          : b->rows + ((uint64_t)row * b->row_floats + m->column) * 4;
    }
    p->out = (m->summed ? b->mixtures.parts : b->mixtures.inner) + (uint64_t)place * p->out_stride * 4;
    mixture_point_matrices(m, p, expert);
}

/* Goes to the first unit, behind the current one if there is one, of which this block has a group. */
SIMT_INLINE void mixture_seek(SIMT_SHARED struct mixture *m, SIMT_SHARED struct product *p,
                              const struct decoder_args *args)
{
    bool on = m->state != MIXTURE_OPENED;
    if (!on && !m->out_part)
        m->n_units = m->gathers ? mixture_list_of(args)->n_units : m->n_rows * m->n_used;
    uint32_t unit = m->unit, n_units = m->n_units, first = product_first_group(p);
    uint32_t n_blocks = simt_n_blocks(), n_groups = p->n_groups, turn = n_groups % n_blocks;
    for (; unit < n_units && (on || first >= n_groups); on = false) {
        first = first < turn ? first + n_blocks - turn : first - turn;
        unit++;
    }
    uint32_t block = simt_block();
    p->first_block = block >= first ? block - first : block + n_blocks - first;
    if (m->out_part)
        mixture_point_head(m, p, args, unit);
    else
        mixture_point(m, p, args, unit);
}

/* --- the compute warps --- */

/* Number of columns that are quantised before the first unit. */
SIMT_INLINE uint32_t mixture_n_columns(const struct walk *w, const SIMT_SHARED struct product *p)
{
    const SIMT_SHARED struct mixture *m = mixture_at(w->args, 0);
    return m->out_part ? m->n_units * p->head_columns : mixture_list_of(w->args)->n_places;
}

/* Copies what the heads keep, beside the columns of the products, by the compute threads of all blocks. */
SIMT_INLINE void mixture_keep(const struct walk *w)
{
    const SIMT_GLOBAL struct program_op *op = w->op;
    uint32_t keep = op->n[2], n = op->n[1] * keep, n_threads = w->crew.n_threads;
    uint32_t part = op->out_col[1] + op->k + keep;
    for (uint32_t i = simt_block() * n_threads + simt_thread(); i < w->n_rows * n;
         i += simt_n_blocks() * n_threads) {
        uint32_t row = i / n, head = i % n / keep, at = i % n % keep;
        walk_row(w, op->out, row)[op->out_col[0] + head * (keep + op->n[0]) + at] =
            walk_row(w, op->in, row)[(head + 1) * part - keep + at];
    }
}

/* Returns what is left of the op, enum gate_again; GATE_ENDS before its first call, too. */
SIMT_INLINE uint32_t mixture_again(const struct walk *w)
{
    return gate_of(w->args, GATE_EXPERTS).word[GATE_AGAIN];
}

/* True while the op is to be called once more for a unit: the description is pointed at one, or will be. */
SIMT_INLINE bool mixture_goes_on(const struct walk *w)
{
    return mixture_again(w) == GATE_GOES_ON;
}

/* Tells the producer, behind the wait of the op, that the choice is there; by thread 0. */
SIMT_INLINE void mixture_tell(struct walk *w)
{
    const SIMT_SHARED struct mixture *m = mixture_at(w->args, 0);
    struct gate gate = gate_of(w->args, GATE_EXPERTS);
    if (mixture_is_chosen(w->op)) /* a wait that fails here fails for all threads at the next one */
        gate_put(&gate, m->n_rows, &w->guard);
}

/* Lets the op be called once more, before the description is pointed at a unit; by thread 0. */
SIMT_INLINE void mixture_come_again(const struct walk *w)
{
    gate_of(w->args, GATE_EXPERTS).word[GATE_AGAIN] = GATE_GOES_ON;
}

/* Points the description at the block's next unit; behind the last one of all waits until the producer has
 * read the choice. */
SIMT_INLINE bool mixture_go(struct walk *w, SIMT_SHARED struct product *p)
{
    bool stop = false;
    if (simt_thread() == 0) {
        SIMT_SHARED struct mixture *m = mixture_at(w->args, 0);
        struct gate gate = gate_of(w->args, GATE_EXPERTS);
        mixture_seek(m, p, w->args);
        gate.word[GATE_AGAIN] = m->unit < m->n_units ? GATE_GOES_ON : GATE_ENDS;
        if (m->summed && m->unit == m->n_units)
            stop = !gate_drained(&gate, &w->guard);
    }
    return !crew_any(&w->crew, stop);
}

#define MIXTURE_AHEAD 8 /* parts of a column that a thread loads together */

/* Returns the sum of a row's parts of one column, `parts`, ascending from 0, times their weights. */
SIMT_INLINE float mixture_sum(const SIMT_SHARED struct mixture *m, const struct decoder_args *args,
                              uint32_t row, const SIMT_GLOBAL float *parts, uint32_t n)
{
    const SIMT_GLOBAL uint32_t *places = DECODER_AT(const uint32_t, args->buffers.mixtures.place);
    const SIMT_SHARED float *own = mixture_own(args) + (2 * row + 1) * m->n_used;
    const SIMT_GLOBAL float *far = DECODER_AT(const float, args->buffers.rows) +
                                   (size_t)row * args->buffers.row_floats + m->choice + m->n_used;
    uint32_t n_used = m->n_used;
    float sum = 0;
    SIMT_SMALL_LOOP
    for (uint32_t first = 0; first < n_used; first += MIXTURE_AHEAD) {
        float part[MIXTURE_AHEAD], weight[MIXTURE_AHEAD];
        uint32_t at[MIXTURE_AHEAD];
        bool gathers = simt_opaque(m->gathers), is_own = simt_opaque(m->own);
#pragma unroll
        for (uint32_t e = 0; e < MIXTURE_AHEAD; e++) {
            at[e] = first + e < n_used ? first + e : first;
            weight[e] = is_own ? own[at[e]] : far[at[e]];
            at[e] += row * n_used;
        }
        if (gathers)
#pragma unroll
            for (uint32_t e = 0; e < MIXTURE_AHEAD; e++)
                at[e] = places[at[e]];
#pragma unroll
        for (uint32_t e = 0; e < MIXTURE_AHEAD; e++)
            part[e] = parts[(size_t)at[e] * n];
#pragma unroll
        for (uint32_t e = 0; e < MIXTURE_AHEAD; e++)
            sum = first + e < n_used ? __builtin_fmaf(weight[e], part[e], sum) : sum;
    }
    return sum;
}

/* Adds the parts of each row's experts up, and to what stands in the row. The sum may be passed on as words,
 * and what was added to emptied: product_give(). */
SIMT_INLINE void mixture_add(const struct walk *w, uint32_t n)
{
    const struct decoder_args *args = w->args;
    const SIMT_SHARED struct mixture *m = mixture_at(args, 0);
    const struct decoder_buffers *b = &args->buffers;
    uint32_t n_threads = args->n_crew;
    int32_t old = w->op->old;
    bool words = walk_passes_words(w), empties = w->op->flags & PROGRAM_EMPTIES;
    for (uint32_t i = simt_block() * n_threads + simt_thread(); i < m->n_rows * n;
         i += simt_n_blocks() * n_threads) {
        uint32_t row = i / n, column = i % n;
        SIMT_GLOBAL float *out =
            DECODER_AT(float, b->rows) + (size_t)row * b->row_floats + m->column + column;
        float before = m->adds ? out[old] : 0;
        float sum = mixture_sum(m, args, row, DECODER_AT(const float, b->mixtures.parts) + column, n);
        sum = m->adds ? before + sum : sum;
        if (words)
            words_put(out, sum);
        else
            *out = sum;
        if (empties)
            out[old] = arith_from_bits(WORDS_EMPTY);
    }
}

/* Ends the op behind its last unit. */
SIMT_INLINE bool mixture_end(struct walk *w, const SIMT_SHARED struct product *p)
{
    if (!mixture_at(w->args, 0)->summed)
        return true;
    if (!walk_meet(w, 2))
        return false;
    mixture_add(w, p->matrix[0].n);
    return true;
}

/* --- the producer warp --- */

/* Fetches what the compute warps will consume of an EXPERTS or HEADS op that is described in p. */
SIMT_INLINE bool mixture_stream(SIMT_SHARED struct product *p, const struct decoder_args *args,
                                const SIMT_GLOBAL struct program *program,
                                const SIMT_GLOBAL struct program_op *op, struct gate *gate,
                                const struct ring *ring, struct ring_place *place,
                                const struct flow_guard *guard)
{
    SIMT_SHARED struct mixture *m = mixture_at(args, 1);
    SIMT_SHARED char *fold = simt_carve(args->shared.fold, args->shared.fold_bytes);
    bool by_head = op->opcode == PROGRAM_HEADS;
    if (mixture_is_chosen(op) && !gate_await(gate, guard))
        return false;
    if (simt_lane() == 0) {
        if (by_head)
            mixture_open_heads(m, p, args, op, 0);
        else
            mixture_open(m, p, args, program, op, gate->word[GATE_WORD]);
        mixture_seek(m, p, args);
    }
    simt_syncwarp();
    while (m->unit < m->n_units) {
        if (!product_produce(p, fold, ring, place, guard))
            return false;
        simt_syncwarp(); /* no lane reads the unit before any more */
        if (simt_lane() == 0)
            mixture_seek(m, p, args);
        simt_syncwarp();
    }
    if (mixture_is_summed(op))
        gate_take(gate);
    return true;
}
