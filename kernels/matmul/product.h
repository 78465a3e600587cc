/* product.h - a matrix product op (program_ops.h, MATMUL) by all blocks: up to three packed matrices times
 * the same columns (rows of the step), folded and finished in the order of kernels/abi/arith.h.
 *
 *   in      [rows][in_stride] f32, 16-byte aligned, or quantised (quantised_words.h); column c is row c, or
 *           row logits[c].row of a HEAD op
 *   out     [n_columns][out_stride] f32, matrix i from column out_col on
 *   gain    [k] f32 or none; bias [n] of each matrix or none
 *   y       = ((half 0 + half 1) * r + bias) * scale; r = 1/rms of the input with a gain, else 1 or a factor
 *   STORE   out = y, or capped            RESIDUAL        out = old + y
 *   SWIGLU  out = silu(y0) * y1           SWIGLU_CLAMPED  out = arith_swiglu_clamped(y0, y1)
 *   GEGLU   out = gelu(y0) * y1             TIMES_SILU      out = out * silu(y); TIMES_SIGMOID likewise
 *
 * schedule.h deals groups of tiles to blocks. A block's producer warp (product_produce) puts their stages
 * into the ring in the order in which the compute warps (product_run) consume them; neither asks the other.
 *
 * Columns are NARROW (up to 8, and they fit the work area: every block quantises them for itself, no extra
 * hop, or copies them, if they came quantised; or, several long ones, all blocks together, and each copies
 * them: product_is_shared()) or WIDE (quantised once by all blocks together into global memory, in a phase of
 * its own, then read from there): product_is_wide() decides, the same everywhere. Up to 8 columns of either
 * kind are multiplied and added up as product_narrow.h says, more as product_wide.h does.
 *
 * The description of the product lies in shared memory (struct product): any thread may index it. The compute
 * warps and the producer have one each, so that neither waits for the other.
 *
 * Floor: the packed bytes of the matrices, once. Matches lib/cpu/matmul/team_matmul.c in every bit; NaNs may
 * differ in payload.
 *
 * Thread: product_produce() and product_ask_vectors(): all lanes of the producer warp. product_open(): one
 * whole warp. The rest: all compute threads of a block together, unless a function names one warp. */
#pragma once
#include "product_label.h"
#include "quantised_words.h"
#include "tile_product.h"
#include "device/interpreter.h"
#include "device/words.h"

struct product_matrix {
    uint64_t tiles, bias; /* bias: float [n], or 0 */
    uint32_t type, n, n_tiles, super_bytes;
    uint32_t out_col, first_group, stage_supers, reserved;
};

/* How columns are passed from one product to the next. */
enum product_words { PRODUCT_NO_WORDS, PRODUCT_FLOATS, PRODUCT_QUANTISED };

struct product {
    struct product_matrix matrix[3];
    uint64_t in, out;
    uint64_t gain;    /* or 0 */
    uint64_t factors; /* float, by row of `in`: multiplies y if there is no gain; 0: 1. See `gates` */
    uint64_t gather;  /* struct step_logit [n_columns], or 0 */
    uint64_t panels;  /* columns in global memory: wide, or shared */
    uint64_t wide_factors;
    uint32_t in_stride, out_stride; /* floats */
    uint32_t k, n_supers, forms;    /* enum activation_form */
    uint32_t n_rows;                /* rows of `in`; a gathered row beyond them is replaced by row 0 */
    uint32_t n_columns;
    uint16_t n_matrices, epilogue;
    uint32_t n_groups, group_tiles, first_block;
    float eps;
    float scale, cap;                  /* cap 0: none */
    uint32_t first_column, end_column; /* columns that the compute warps multiply now */
    uint16_t wide;                     /* columns are read from p->panels */
    uint16_t shift;                    /* the values of a row have room for 1 << shift columns of a panel */
    float factor[ACTIVATION_COLUMNS];  /* narrow: by column, from the first quantised one; the products do not
                                          wait for them */
    uint32_t n_warps;                  /* that multiply */
    uint32_t part_floats;              /* floats that a part of the fold area holds */
    uint32_t by_unit;                  /* an op of several products, EXPERTS or HEADS: product_op.h */
    uint32_t gates;        /* not 0: a row's factor is the sigmoid of the value so many floats on */
    uint32_t head_columns; /* HEADS, if wide: columns of a head, its rows and others up to a whole panel;
                              else 0 */
    uint32_t head_part;    /* HEADS: floats from one head's input in a row to the next's */
    uint16_t polls;        /* enum product_words; narrow: what the columns are */
    uint16_t words;        /* enum product_words: what the result is passed on as */
    int32_t old;           /* program_op.old, in floats */
    uint32_t empties_old;  /* PROGRAM_EMPTIES */
    uint32_t empties, n_empties; /* program_op */
};
#define PRODUCT_DESCRIPTION_BYTES 384u
_Static_assert(sizeof(struct product) <= PRODUCT_DESCRIPTION_BYTES, "the fold area has room for two of them");

/* Parts of a block's fold area, in bytes. */
#define PRODUCT_LABELS_AT (2 * PRODUCT_DESCRIPTION_BYTES)
_Static_assert(PRODUCT_LABELS_AT + PRODUCT_LABELS * sizeof(uint64_t) == 1024, "fold area");
#define PRODUCT_SUMS_AT 1024u
_Static_assert(PRODUCT_SUMS_AT + 1024 == PRODUCT_VALUES_AT, "fold area");
_Static_assert(PRODUCT_WIDE == TILE_MAX_PANEL * ACTIVATION_COLUMNS && PRODUCT_PARTS >= TILE_MAX_PANEL,
               "a chunk's values");

/* The description for the compute warps (0) or for the producer warp (1). */
SIMT_INLINE SIMT_SHARED struct product *product_at(SIMT_SHARED char *fold, uint32_t which)
{
    return (SIMT_SHARED struct product *)(fold + which * PRODUCT_DESCRIPTION_BYTES);
}

SIMT_INLINE SIMT_SHARED uint64_t *product_labels(SIMT_SHARED char *fold)
{
    return (SIMT_SHARED uint64_t *)(fold + PRODUCT_LABELS_AT);
}

/* --- description --- */

SIMT_INLINE uint32_t product_part_floats(uint32_t fold_bytes)
{
    return (fold_bytes - PRODUCT_VALUES_AT) / (PRODUCT_PARTS * 4);
}

SIMT_INLINE void product_open_matrix(SIMT_SHARED struct product_matrix *m, const struct decoder_args *args,
                                     const SIMT_GLOBAL struct program_op *op,
                                     const SIMT_GLOBAL struct schedule_op *plan, uint32_t i)
{
    const SIMT_GLOBAL struct decoder_matrix *from =
        DECODER_AT(const struct decoder_matrix, args->matrices) + op->weight[i];
    uint32_t bias = op->bias[i];
    m->tiles = from->tiles;
    m->type = from->type;
    m->n = from->n;
    m->n_tiles = from->n_tiles;
    m->super_bytes = from->super_bytes;
    m->bias = bias == PROGRAM_NONE ? 0 : DECODER_AT(const uint64_t, args->vectors)[bias];
    m->out_col = op->out_col[i];
    m->first_group = plan->part[i].first_group;
    m->stage_supers = plan->part[i].stage_supers;
}

/* Describes an op of the program for a step, by one whole warp; others may read it after their next barrier
 * with that warp. The producer warp passes step NULL and n_columns 0. */
SIMT_INLINE void product_open(SIMT_SHARED struct product *p, const struct decoder_args *args,
                              const SIMT_GLOBAL struct program *program,
                              const SIMT_GLOBAL struct program_op *op,
                              const SIMT_GLOBAL struct schedule_op *plan, const SIMT_GLOBAL struct step *step,
                              uint32_t n_columns, bool polls)
{
    uint32_t lane = simt_lane(), n_matrices = op->n_weights, type = TILE_NONE;
    if (lane < n_matrices) {
        product_open_matrix(&p->matrix[lane], args, op, plan, lane);
        type = p->matrix[lane].type;
    }
    bool floats = simt_ballot(type >= TILE_F16) != 0, integers = simt_ballot(type && type < TILE_F16) != 0;
    if (lane != 3)
        return;
    const struct decoder_buffers *b = &args->buffers;
    bool to_logits = op->out == PROGRAM_LOGITS;
    p->forms = (integers ? ACTIVATION_INTEGERS : 0) | (floats ? ACTIVATION_FLOATS : 0);
    p->in = b->rows + (uint64_t)program->buffers[op->in].offset * 4;
    p->in_stride = b->row_floats;
    p->out = to_logits ? b->logits : b->rows + (uint64_t)program->buffers[op->out].offset * 4;
    p->out_stride = to_logits ? b->logits_stride : b->row_floats;
    p->gain = op->gain == PROGRAM_NONE ? 0 : DECODER_AT(const uint64_t, args->vectors)[op->gain];
    bool gated = op->flags & PROGRAM_GATED;
    uint32_t gate = gated ? program->buffers[PROGRAM_CHOICE].offset + op->gate_col : 0;
    p->factors = gated ? b->rows + (uint64_t)gate * 4 : 0;
    p->gates = gated ? b->row_floats : 0;
    p->gather = step && op->flags & PROGRAM_HEAD ? (uint64_t)(uintptr_t)step->logits : 0;
    p->panels = b->activations + (n_columns <= ACTIVATION_COLUMNS ? op->panels : 0);
    p->wide_factors = b->factors;
    p->k = op->k;
    p->n_supers = tile_supers(op->k);
    p->n_rows = b->max_rows;
    p->n_columns = n_columns;
    p->n_matrices = (uint16_t)n_matrices;
    p->n_warps = args->n_crew / SIMT_LANES;
    p->part_floats = product_part_floats(args->shared.fold_bytes);
    p->by_unit = op->opcode == PROGRAM_EXPERTS || op->opcode == PROGRAM_HEADS;
    p->head_columns = 0;
    p->epilogue = op->epilogue;
    p->n_groups = plan->n_groups;
    p->group_tiles = plan->group_tiles;
    p->first_block = plan->first_block;
    p->eps = op->eps;
    p->scale = op->scale;
    p->cap = op->cap;
    p->polls = !polls ? PRODUCT_NO_WORDS : op->flags & PROGRAM_QUANTISED ? PRODUCT_QUANTISED : PRODUCT_FLOATS;
    p->words = PRODUCT_NO_WORDS;
    if (op->flags & PROGRAM_WORDS && n_columns <= args->words_rows)
        p->words = op->flags & PROGRAM_QUANTISES ? PRODUCT_QUANTISED : PRODUCT_FLOATS;
    p->old = op->old;
    p->empties_old = op->flags & PROGRAM_EMPTIES;
    p->empties = op->empties;
    p->n_empties = op->n_empties;
}

/* --- columns --- */

/* Returns log2 of the number of columns for which n columns get room. */
SIMT_INLINE uint32_t product_shift(uint32_t n)
{
    return n > 8 ? 4 : n > 4 ? 3 : n > 2 ? 2 : n > 1 ? 1 : 0;
}

SIMT_INLINE uint32_t product_row(const SIMT_SHARED struct product *p, uint32_t column)
{
    if (!p->gather)
        return column;
    uint32_t row = DECODER_AT(const struct step_logit, p->gather)[column].row;
    return row < p->n_rows ? row : 0;
}

/* Returns the factor by which row `row`'s column is multiplied after the product, by a whole warp. words:
 * constant; the columns may be words. */
SIMT_INLINE float product_factor(const SIMT_SHARED struct product *p, const bool words, uint32_t row)
{
    const SIMT_GLOBAL float *x = DECODER_AT(const float, p->in) + (size_t)row * p->in_stride;
    if (p->gain && words && p->polls)
        return activation_rms_inverse(x, p->k, p->eps, true);
    if (p->gain)
        return activation_rms_inverse(x, p->k, p->eps, false);
    if (!p->factors)
        return 1.0f;
    const SIMT_GLOBAL float *factors = DECODER_AT(const float, p->factors);
    return p->gates ? arith_sigmoid(factors[(size_t)row * p->gates]) : factors[row];
}

/* The input of a column of a wide product of heads: head after head has its rows. Columns behind a head's
 * rows have its last row. */
SIMT_INLINE const SIMT_GLOBAL float *product_head_in(const SIMT_SHARED struct product *p, uint32_t column)
{
    uint32_t head = column / p->head_columns, row = column % p->head_columns;
    row = row < p->n_columns ? row : p->n_columns - 1;
    return DECODER_AT(const float, p->in) + (size_t)row * p->in_stride + head * p->head_part;
}

/* A chunk of ACTIVATION_CHUNK values of a column, counted from the first column that is quantised. */
struct product_chunk {
    uint32_t column, number;
};

/* Goes so many chunks on. The warps of a block need no division, of which each takes 100 cycles. */
SIMT_INLINE void product_next_chunk(const bool is_far, struct product_chunk *at, uint32_t by,
                                    uint32_t n_chunks)
{
    at->number += by;
    if (is_far) {
        at->column += at->number / n_chunks;
        at->number %= n_chunks;
    }
    SIMT_SMALL_LOOP
    while (!is_far && at->number >= n_chunks) {
        at->number -= n_chunks;
        at->column++;
    }
}

/* Loads this lane's values of a chunk. `first`: the first column; words: they may be missing. */
SIMT_INLINE void product_ask(const SIMT_SHARED struct product *p, const bool is_far, uint32_t first,
                             const struct product_chunk *at, const bool words, float v[4])
{
    uint32_t column = first + at->column;
    const SIMT_GLOBAL float *x;
    if (is_far && p->head_columns)
        x = product_head_in(p, column);
    else
        x = DECODER_AT(const float, p->in) + (size_t)product_row(p, column) * p->in_stride;
    activation_load(x, DECODER_AT(const float, p->gain), p->k, activation_index(at->number), words, v);
}

/* Finds the factors of columns [first, first + n), by warp `warp` of `n_warps`. They are read when a run's
 * last values are added; a barrier of the compute warps, or the ring's, must come before. words: as in
 * product_factor(). Returns where the warp goes on with the deal. */
SIMT_INLINE uint32_t product_find_factors(SIMT_SHARED struct product *p, const bool is_far, const bool words,
                                          uint32_t first, uint32_t n, uint32_t warp, uint32_t n_warps)
{
    uint32_t unit = simt_opaque(warp);
    for (; unit < n; unit += n_warps) {
        float r = product_factor(p, words, product_row(p, first + unit));
        if (simt_lane() == 0 && is_far)
            DECODER_AT(float, p->wide_factors)[unit] = r;
        else if (simt_lane() == 0)
            p->factor[unit] = r;
    }
    return unit - n;
}

/* Notes which columns the compute warps multiply now, by one thread: [first, first + n). */
SIMT_INLINE void product_set_columns(SIMT_SHARED struct product *p, uint32_t first, uint32_t n, bool wide)
{
    p->first_column = first;
    p->end_column = first + n;
    p->wide = wide;
    p->shift = (uint16_t)(wide ? 3 : product_shift(n));
}

/* Quantises columns [first, first + n) into panels that begin at `near` or p->panels, by warp `warp` of
 * `n_warps` (those of one block if near, of all blocks if far), chunk after chunk; each is loaded before the
 * previous one is quantised. A barrier of the compute warps must follow. wide: the product is; else far
 * panels have a narrow one's layout. guard: for waits for words; NULL if the columns cannot be words. */
SIMT_INLINE void product_quantise(SIMT_SHARED struct product *p, const bool is_far, SIMT_SHARED char *near,
                                  uint32_t first, uint32_t n, uint32_t warp, uint32_t n_warps, bool wide,
                                  const struct flow_guard *guard)
{
    uint32_t n_chunks = activation_n_chunks(p->k), width = is_far && wide ? ACTIVATION_COLUMNS : n;
    struct activation a = activation_at(near, DECODER_AT(char, p->panels), width, p->forms);
    uint32_t panel_bytes = p->n_supers * a.super_bytes;
    struct product_chunk at = {0, 0};
    SIMT_GLOBAL char *panels = a.far;
    if (simt_thread() == 0)
        product_set_columns(p, first, n, is_far && wide);
    float now[4] = {0}, next[4] = {0};
    product_next_chunk(is_far, &at, simt_opaque(warp), n_chunks);
    if (at.column < n)
        product_ask(p, is_far, first, &at, guard && p->polls, now);
    SIMT_SMALL_LOOP
    while (at.column < n) {
        struct product_chunk ahead = at;
        product_next_chunk(is_far, &ahead, n_warps, n_chunks);
        if (ahead.column < n)
            product_ask(p, is_far, first, &ahead, guard && p->polls, next);
        if (is_far)
            a.far = panels + (size_t)(at.column / ACTIVATION_COLUMNS) * panel_bytes;
        if (guard && p->polls)
            activation_await(DECODER_AT(const float, p->in) + (size_t)(first + at.column) * p->in_stride,
                             DECODER_AT(const float, p->gain), p->k, activation_index(at.number), guard, now);
        activation_chunk(&a, is_far, is_far ? at.column % ACTIVATION_COLUMNS : at.column, now, at.number);
        for (uint32_t e = 0; e < 4; e++)
            now[e] = next[e];
        at = ahead;
    }
}

/* Copies a narrow product's n columns, which were quantised where they were made, to the block's panels, by
 * its compute threads. A barrier must follow. No thread signals the end of the op before meanwhile: that has
 * no PROGRAM_SIGNALS. */
SIMT_INLINE void product_take_quantised(SIMT_SHARED struct product *p, SIMT_SHARED char *near, uint32_t n,
                                        const struct crew *crew, const struct flow_guard *guard)
{
    struct activation a = activation_at(near, NULL, n, ACTIVATION_INTEGERS);
    if (simt_thread() == 0)
        product_set_columns(p, 0, n, false);
    quantised_take(&a, DECODER_AT(const float, p->in), p->in_stride, p->k, crew, guard);
}

/* Copies the far panels of a narrow product's n columns to the block's own, by its compute threads. A barrier
 * must follow. */
SIMT_INLINE void product_fetch(const SIMT_SHARED struct product *p, SIMT_SHARED char *near, uint32_t n,
                               const struct crew *crew)
{
    uint32_t bytes = p->n_supers * activation_super_bytes(n, p->forms);
    const SIMT_GLOBAL char *far = DECODER_AT(const char, p->panels);
#pragma clang loop unroll_count(4)
    for (uint32_t i = simt_thread() * 16; i < bytes; i += crew->n_threads * 16)
        *(SIMT_SHARED simt_u4 *)(near + i) = *(const SIMT_GLOBAL simt_u4 *)(far + i);
}

/* --- groups, runs and stages: the same for compute warps and producer --- */

struct product_run {
    SIMT_SHARED const struct product_matrix *matrix;
    uint32_t index; /* gated: 0 gate, 1 up */
    uint32_t first_tile, n_tiles;
};

SIMT_INLINE uint32_t product_first_group(const SIMT_SHARED struct product *p)
{
    uint32_t block = simt_block();
    return block >= p->first_block ? block - p->first_block : block + simt_n_blocks() - p->first_block;
}

SIMT_INLINE uint32_t product_n_runs(const SIMT_SHARED struct product *p)
{
    return program_is_gated(p->epilogue) ? 2 : 1;
}

/* Run `index` of a group of this block. */
SIMT_INLINE struct product_run product_run_of(const SIMT_SHARED struct product *p, uint32_t group,
                                              uint32_t index)
{
    uint32_t part = index;
    if (!program_is_gated(p->epilogue))
        while (part + 1 < p->n_matrices && group >= p->matrix[part + 1].first_group)
            part++;
    const SIMT_SHARED struct product_matrix *m = &p->matrix[part];
    uint32_t first = (group - (program_is_gated(p->epilogue) ? 0 : m->first_group)) * p->group_tiles;
    uint32_t left = m->n_tiles - first;
    return (struct product_run){m, index, first, left < p->group_tiles ? left : p->group_tiles};
}

/* Prefetches the product's gain and biases into L2; they were last read a step ago, so only memory has them.
 * Called by the producer warp, which is ahead of the compute warps; every block does a share of the lines. */
SIMT_INLINE void product_ask_vectors(const SIMT_SHARED struct product *p)
{
    uint32_t part = simt_block() + simt_lane() * simt_n_blocks(), n_parts = simt_n_blocks() * SIMT_LANES;
    if (p->gain)
        walk_ask(p->gain, p->k, part, n_parts);
    for (uint32_t i = 0; i < p->n_matrices; i++)
        if (p->matrix[i].bias)
            walk_ask(p->matrix[i].bias, p->matrix[i].n, part, n_parts);
}

/* Labels the next stage of a run and fills it. False: end. */
SIMT_INLINE bool product_fill(const SIMT_SHARED struct product *p, const struct product_run *run,
                              struct product_label label, SIMT_SHARED char *fold, const struct ring *ring,
                              struct ring_place *place, const struct flow_guard *guard)
{
    uint32_t super_bytes = run->matrix->super_bytes;
    size_t first = (size_t)run->first_tile * p->n_supers + label.first_item;
    if (simt_lane() == 0)
        product_put_label(product_labels(fold), ring_passed(place), &label);
    return ring_fill(ring, place, DECODER_AT(const char, run->matrix->tiles) + first * super_bytes,
                     label.n_items * super_bytes, guard);
}

/* Fills the ring with all of this block's share of the product, by the producer warp. False: end. */
SIMT_INLINE bool product_produce(const SIMT_SHARED struct product *p, SIMT_SHARED char *fold,
                                 const struct ring *ring, struct ring_place *place,
                                 const struct flow_guard *guard)
{
    uint32_t n_runs = product_n_runs(p), n_warps = p->n_warps, turn = 0;
    uint32_t lead = n_warps > 2 ? 2 : 0;
    for (uint32_t group = product_first_group(p); group < p->n_groups; group += simt_n_blocks(), turn++)
        for (uint32_t index = 0; index < n_runs; index++) {
            struct product_run run = product_run_of(p, group, index);
            uint32_t n = run.n_tiles * p->n_supers, most = run.matrix->stage_supers;
            for (uint32_t at = 0; at < n; at += most) {
                struct product_label label = {
                    .first_tile = run.first_tile,
                    .first_item = at,
                    .n_items = n - at < most ? n - at : most,
                    .n_tiles = run.n_tiles,
                    .lead = lead,
                    .type = run.matrix->type,
                    .matrix = (uint32_t)(run.matrix - p->matrix),
                    .turn = turn,
                    .last = n - at <= most,
                };
                label.ends = label.last && index + 1 == n_runs && group + simt_n_blocks() >= p->n_groups;
                if (!product_fill(p, &run, label, fold, ring, place, guard))
                    return false;
                for (lead += label.n_items; lead >= n_warps;)
                    lead -= n_warps;
            }
        }
    return true;
}

/* --- the compute warps' part --- */

/* Columns from `column` on by which a stage is multiplied together. */
SIMT_INLINE uint32_t product_some(const bool wide, const SIMT_SHARED struct product *p, uint32_t column)
{
    uint32_t left = p->end_column - column;
    return wide && left > PRODUCT_WIDE ? PRODUCT_WIDE : left; /* narrow: up to ACTIVATION_COLUMNS */
}

/* Index of a value in its panel. Columns are exchanged in pairs, by row, so that with 8 of them neither
 * writes by fragments nor reads by rows have bank conflicts. */
SIMT_INLINE uint32_t product_word(uint32_t row, uint32_t column, uint32_t shift)
{
    return (row << shift) + (column ^ (row / 4 % 4 * 2 & ((1u << shift) - 1)));
}

/* Stores columns `column`, which is even, and the next, as far as the panel has room for them. */
SIMT_INLINE void product_put(SIMT_SHARED float *panel, uint32_t shift, uint32_t row, uint32_t column,
                             float v0, float v1)
{
    SIMT_SHARED float *to = panel + product_word(row, column, shift);
    if (column >> shift)
        return;
    if (shift)
        *(SIMT_SHARED float __attribute__((vector_size(8))) *)to =
            (float __attribute__((vector_size(8)))){v0, v1};
    else
        *to = v0;
}

/* The memory, ring and guard that the compute warps multiply with. */
struct product_place {
    SIMT_SHARED char *work, *fold; /* product_fold_bytes() */
    const struct ring *ring;
    struct ring_place *at;
    const struct flow_guard *guard;
    const struct decoder_args *args; /* or NULL; see below */
    uint32_t sums_bytes; /* of the work area, for a wide product's sums; 0: no product is wide. Constant in a
                            kernel without wide ones, whose code the compiler then omits */
};

/* The decoder computes addresses from the launch's parameter wherever it needs them, since a multiplication
 * has no registers for what lasts longer. A node's kernel has room, and passes no `args`. */

SIMT_INLINE SIMT_SHARED char *product_work(const struct product_place *place)
{
    if (!place->args)
        return place->work;
    return (SIMT_SHARED char *)simt_carve(place->args->shared.work + simt_opaque(0),
                                          DECODER_KEPT_BYTES + place->args->shared.work_bytes) +
           DECODER_KEPT_BYTES;
}

SIMT_INLINE struct ring product_ring(const struct product_place *place)
{
    if (!place->args)
        return *place->ring;
    const struct decoder_shared *shared = &place->args->shared;
    uint32_t zero = simt_opaque(0);
    return ring_at(shared->stages + zero, shared->mbarriers + zero, shared->n_stages, shared->stage_bytes);
}

/* The place of a block's stage number `stage` of a product in its part of the fold area, where a row's values
 * have room for 1 << shift columns. */
SIMT_INLINE uint32_t product_at_in_part(uint32_t stage, uint32_t shift)
{
    return stage & ((PRODUCT_MOST_STAGES >> shift) - 1);
}

/* Floats of the fold area that a stage has: PRODUCT_MOST_STAGES >> shift of them fill a part. */
SIMT_INLINE uint32_t product_stage_floats(const SIMT_SHARED struct product *p, uint32_t shift)
{
    return p->part_floats / PRODUCT_MOST_STAGES << shift;
}

/* Values of the block's stage number `stage` of this product: [item][row 16][1 << shift columns], see
 * product_word(). Stages fill the parts of the fold area in turn. When wide, those of the only stage:
 * [item][panel 2][row 16][column 8]. */
SIMT_INLINE SIMT_SHARED float *product_values(const bool wide, const SIMT_SHARED struct product *p,
                                              uint32_t shift, SIMT_SHARED char *fold, uint32_t stage)
{
    SIMT_SHARED float *all = (SIMT_SHARED float *)(fold + PRODUCT_VALUES_AT);
    if (wide)
        return all;
    uint32_t part = (stage << shift) / PRODUCT_MOST_STAGES % PRODUCT_PARTS;
    return all + part * p->part_floats + product_at_in_part(stage, shift) * product_stage_floats(p, shift);
}

/* How columns are multiplied and folded: a constant wherever it is passed, since one column needs far fewer
 * instructions. FAR: in global memory; up to 8 of them are folded as NARROW. */
enum product_form { PRODUCT_ONE, PRODUCT_NARROW, PRODUCT_FAR };

/* Whether the columns that are multiplied lie in global memory: those of a wide product. */
SIMT_INLINE bool product_is_far(const SIMT_SHARED struct product *p, const struct product_place *place)
{
    return place->sums_bytes && p->wide;
}

/* The far columns from `column` on: a panel, and its distance to the next if that has columns. */
SIMT_INLINE struct activation product_far_columns(const SIMT_SHARED struct product *p,
                                                  const struct product_place *place, uint32_t column)
{
    uint64_t all = place->args ? place->args->buffers.activations : p->panels;
    struct activation x = activation_at(NULL, DECODER_AT(char, all), ACTIVATION_COLUMNS, p->forms);
    uint32_t panel_bytes = p->n_supers * x.super_bytes;
    x.far_at = (uint32_t)(p->panels - all) + column / ACTIVATION_COLUMNS * panel_bytes;
    x.second = p->end_column - column > ACTIVATION_COLUMNS ? panel_bytes : 0;
    return x;
}

/* The cases of a switch by the type of a stage's tiles. */
#define PRODUCT_EACH_TYPE(CASE)                                                                              \
    CASE(TILE_Q4_K);                                                                                         \
    CASE(TILE_Q5_K);                                                                                         \
    CASE(TILE_Q6_K);                                                                                         \
    CASE(TILE_Q2_K);                                                                                         \
    CASE(TILE_Q8_0);                                                                                         \
    CASE(TILE_Q5_0);                                                                                         \
    CASE(TILE_Q4_0);                                                                                         \
    CASE(TILE_Q5_1);                                                                                         \
    CASE(TILE_MXFP4);                                                                                        \
    CASE(TILE_IQ4_NL);                                                                                       \
    CASE(TILE_NVFP4);                                                                                        \
    CASE(TILE_CODES);                                                                                        \
    CASE(TILE_THREES);                                                                                       \
    CASE(TILE_F16);                                                                                          \
    CASE(TILE_BF16);                                                                                         \
    CASE(TILE_F32)
