#include "plan.h"
#include "abi/sample_layout.h"
#include "abi/tile.h"
#include "abi/mixture_layout.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define LINE        128u   /* alignment of the parts of shared memory, in bytes */
#define STAGE_BYTES 36864u /* 16 super-block tiles of Q4_K: the best size for one bulk copy */
#define GOOD_STAGES 4u     /* fewer hide no hop: the work area shrinks first */
#define NARROW_ROWS 8u     /* columns of one mma tile */

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static uint32_t divide_up(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* --- products --- */

static uint32_t stage_supers(const struct decoder_matrix *m, uint32_t stage_bytes)
{
    assert(m->super_bytes > 0 && m->super_bytes <= stage_bytes); /* a stage without a tile would never end */
    return least(SCHEDULE_MAX_SUPERS, stage_bytes / m->super_bytes);
}

static bool is_product(const struct program_op *op)
{
    return op->opcode == PROGRAM_MATMUL || op->opcode == PROGRAM_EXPERTS || op->opcode == PROGRAM_HEADS;
}

/* True of an op of several products, each with a part of its matrices (experts/mixture.h). */
static bool has_units(const struct program_op *op)
{
    return op->opcode == PROGRAM_EXPERTS || op->opcode == PROGRAM_HEADS;
}

/* Products of a row: those of the experts that it chooses, of the heads, or one. */
static uint32_t products_of(const struct program_op *op)
{
    if (op->opcode == PROGRAM_HEADS)
        return op->n[1];
    return op->opcode == PROGRAM_EXPERTS ? op->route.n_used : 1;
}

/* Matrix i of an op; of experts and heads, the first one's part. */
static struct decoder_matrix matrix_of(const struct program_op *op, const struct decoder_matrix *matrices,
                                       uint32_t i)
{
    struct decoder_matrix m = matrices[op->weight[i]];
    if (has_units(op)) {
        m.n = op->n[i];
        m.n_tiles = m.n / TILE_ROWS;
    }
    return m;
}

/* Returns the smallest group that needs as few rounds over the blocks as the largest possible one. The stream
 * of experts begins anew with each op's choice, and its end waits for the block that has most: their group is
 * the one that leaves fewest tiles to that block, even in more rounds. */
static uint32_t choose_group(const struct program_op *op, const struct decoder_matrix m[3],
                             const struct schedule_op *s, uint32_t n_blocks)
{
    uint32_t most = UINT32_MAX, best = 1, load = UINT32_MAX, fewest = UINT32_MAX;
    for (uint32_t i = 0; i < op->n_weights; i++)
        most = least(most, s->part[i].stage_supers / m[i].n_supers);
    for (uint32_t tiles = most ? most : 1; tiles >= 1; tiles--) {
        uint32_t n_groups = 0;
        for (uint32_t i = 0; i < (s->paired ? 1 : op->n_weights); i++)
            n_groups += divide_up(m[i].n_tiles, tiles);
        uint32_t rounds = divide_up(n_groups * products_of(op), n_blocks);
        fewest = least(fewest, rounds);
        if (rounds > fewest && op->opcode != PROGRAM_EXPERTS)
            break;
        if (rounds * tiles >= load)
            continue;
        load = rounds * tiles;
        best = tiles;
    }
    return best;
}

static void plan_product(struct schedule_op *s, const struct program_op *op,
                         const struct decoder_matrix *matrices, uint32_t stage_bytes, uint32_t n_blocks,
                         uint32_t *next_block)
{
    struct decoder_matrix m[3] = {0};
    s->paired = program_is_gated(op->epilogue);
    for (uint32_t i = 0; i < op->n_weights; i++) {
        m[i] = matrix_of(op, matrices, i);
        s->part[i].stage_supers = stage_supers(&m[i], stage_bytes);
    }
    s->group_tiles = choose_group(op, m, s, n_blocks);
    for (uint32_t i = 0; i < (s->paired ? 1 : op->n_weights); i++) {
        s->part[i].first_group = s->n_groups;
        s->n_groups += divide_up(m[i].n_tiles, s->group_tiles);
    }
    s->first_block = *next_block;
    *next_block = (uint32_t)((*next_block + (uint64_t)s->n_groups * products_of(op)) % n_blocks);
}

/* --- shared memory --- */

struct needs {
    uint32_t largest_super;  /* bytes of the largest super-block tile */
    uint32_t smallest_super; /* and of the smallest */
    uint32_t widest;         /* values of a product's longest input */
    uint32_t forms;          /* enum activation_form: forms in which products read inputs */
    uint32_t work, uses;     /* least bytes of each part */
    uint32_t choices;        /* bytes of the choices that a block makes for itself: the last of its gates */
};

/* Experts take their columns one at a time, and all of them from the work area. */
static void add_needs(struct needs *n, const struct program_op *op, const struct decoder_matrix *matrices)
{
    uint32_t forms = 0, column;
    for (uint32_t i = 0; i < op->n_weights; i++) {
        const struct decoder_matrix *m = &matrices[op->weight[i]];
        n->largest_super = m->super_bytes > n->largest_super ? m->super_bytes : n->largest_super;
        n->smallest_super = least(n->smallest_super, m->super_bytes);
        forms |= activation_form(m->type);
    }
    column = activation_panel_bytes(1, op->k, forms);
    if (op->opcode == PROGRAM_EXPERTS) {
        n->work = column > n->work ? column : n->work;
        return;
    }
    n->widest = op->k > n->widest ? op->k : n->widest;
    n->forms |= forms;
}

static void find_needs(struct needs *n, const struct program *p, const struct decoder_matrix *matrices,
                       uint32_t attend, uint32_t n_counters)
{
    uint32_t sums = product_work_bytes(STEP_MAX_ROWS_CUDA);
    uint32_t sample = SAMPLE_WORK_BYTES, most = sums > sample ? sums : sample;
    *n = (struct needs){.work = most + DECODER_KEPT_BYTES > attend ? most : attend - DECODER_KEPT_BYTES,
                        .smallest_super = UINT32_MAX,
                        .uses = n_counters * 4};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (is_product(&p->ops[i]))
            add_needs(n, &p->ops[i], matrices);
        if (p->ops[i].opcode == PROGRAM_EXPERTS)
            n->choices = DECODER_CHOICE_BYTES;
    }
}

/* The fold area's size for stages of this size: of the type with the smallest super-blocks most fit one. */
static uint32_t fold_bytes(const struct needs *n, uint32_t stage_bytes)
{
    return product_fold_bytes(least(SCHEDULE_MAX_SUPERS, stage_bytes / n->smallest_super));
}

/* Lays shared memory out with stages of this size and a work area for `rows` quantised rows. Returns the
 * number of stages that fit; the work area gets what is left. */
static uint32_t lay_out(struct decoder_shared *s, const struct needs *n, uint32_t stage_bytes, uint32_t rows,
                        uint32_t shared_bytes)
{
    uint32_t work = activation_panel_bytes(rows, n->widest, n->forms);
    *s = (struct decoder_shared){
        .mbarriers = 0,
        .uses = round_up(SCHEDULE_MAX_STAGES * 16 + DECODER_GATES_BYTES - DECODER_CHOICE_BYTES + n->choices,
                         LINE),
        .stage_bytes = round_up(stage_bytes, LINE),
        .work_bytes = round_up(work > n->work ? work : n->work, LINE),
        .fold_bytes = round_up(fold_bytes(n, round_up(stage_bytes, LINE)), LINE)};
    s->fold = s->uses + round_up(n->uses, LINE);
    uint32_t fixed = s->fold + s->fold_bytes + DECODER_KEPT_BYTES + s->work_bytes;
    uint32_t room = shared_bytes / LINE * LINE;
    if (fixed + s->stage_bytes > room)
        return 0;
    s->n_stages = least((room - fixed) / s->stage_bytes, SCHEDULE_MAX_STAGES);
    s->stages = s->fold + s->fold_bytes;
    s->work = s->stages + s->n_stages * s->stage_bytes;
    s->work_bytes = room - s->work - DECODER_KEPT_BYTES;
    s->total = room;
    assert(s->work + DECODER_KEPT_BYTES < room &&
           s->fold + s->fold_bytes <= s->stages); /* the parts do not overlap */
    return s->n_stages;
}

/* Chooses the layout: keeps the depth of the ring as long as possible, then the stage size, then room for
 * narrow products. */
static int choose_shared(struct decoder_shared *s, const struct needs *n, uint32_t shared_bytes,
                         struct error *err)
{
    for (uint32_t depth = GOOD_STAGES; depth >= 2; depth--)
        for (uint32_t stage = STAGE_BYTES; stage >= STAGE_BYTES / 4; stage /= 2)
            for (uint32_t rows = NARROW_ROWS; stage >= n->largest_super && rows > 0; rows /= 2)
                if (lay_out(s, n, stage, rows, shared_bytes) >= depth)
                    return 0;
    for (uint32_t rows = NARROW_ROWS;; rows /= 2) { /* stages of one super-block tile */
        if (lay_out(s, n, n->largest_super, rows, shared_bytes) >= 2)
            return 0;
        if (rows == 0)
            break;
    }
    return error_set(
        err, -ENOTSUP,
        "the model needs stages of %u bytes, and %u bytes for work and sums, in a block's shared "
        "memory; the device has %u",
        n->largest_super,
        DECODER_KEPT_BYTES + n->work + fold_bytes(n, round_up(n->largest_super, LINE)) + n->uses,
        shared_bytes);
}

/* --- mixtures --- */

static void grow(uint64_t *size, uint64_t to)
{
    *size = to > *size ? to : *size;
}

void plan_mixtures(struct plan_mixtures *out, const struct program *program,
                   const struct decoder_matrix *matrices, uint32_t max_rows)
{
    *out = (struct plan_mixtures){0};
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const struct program_op *op = &program->ops[i];
        if (!has_units(op))
            continue;
        uint64_t places = op->opcode == PROGRAM_HEADS
                              ? mixture_head_places(max_rows, op->n[1])
                              : mixture_places(max_rows, op->route.n_used, op->route.n_experts);
        uint32_t forms = 0;
        for (uint32_t j = 0; j < op->n_weights; j++)
            forms |= activation_form(matrices[op->weight[j]].type);
        grow(&out->activations, activation_buffer_bytes((uint32_t)places, op->k, forms));
        grow(&out->factors, places * sizeof(float));
        if (op->opcode == PROGRAM_HEADS)
            continue;
        out->list = sizeof(struct mixture_list);
        grow(&out->rows, places * sizeof(struct step_logit));
        grow(&out->place, (uint64_t)max_rows * op->route.n_used * sizeof(uint32_t));
        grow(program_is_gated(op->epilogue) ? &out->inner : &out->parts, places * op->n[0] * sizeof(float));
    }
}

/* --- plan --- */

/* The rows of an expert, or of a head's matrix, are whole tiles of the matrix that has those of all. */
static int check_units(const struct program *p, struct error *err)
{
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (has_units(&p->ops[i]) && p->ops[i].n[0] % TILE_ROWS)
            return error_set(err, -ENOTSUP, "%s of %u rows; cuda supports multiples of %d",
                             p->ops[i].opcode == PROGRAM_HEADS ? "matrices of heads" : "experts",
                             p->ops[i].n[0], TILE_ROWS);
    return 0;
}

int plan_open(struct plan *out, const struct program *program, const struct decoder_matrix *matrices,
              const struct plan_device *device, struct error *err)
{
    struct plan p = {.n_ops = program->n_ops,
                     .n_counters = program->n_ops * DECODER_PHASES + DECODER_N_COUNTERS};
    struct needs needs;
    uint32_t next_block = 0;
    assert(device->n_blocks > 0);
    if (program->n_ops > DECODER_MAX_OPS)
        return error_set(err, -ENOTSUP, "the model has %u ops a step, cuda supports at most %d",
                         program->n_ops, DECODER_MAX_OPS);
    int rc = check_units(program, err);
    if (rc < 0)
        return rc;
    find_needs(&needs, program, matrices, device->attend_bytes, p.n_counters);
    rc = choose_shared(&p.shared, &needs, device->shared_bytes, err);
    if (rc < 0)
        return rc;
    p.ops = calloc(p.n_ops, sizeof *p.ops);
    if (!p.ops)
        return error_set(err, -ENOMEM, "plan of %u ops: out of memory", p.n_ops);
    for (uint32_t i = 0; i < p.n_ops; i++)
        if (is_product(&program->ops[i]))
            plan_product(&p.ops[i], &program->ops[i], matrices, p.shared.stage_bytes, device->n_blocks,
                         &next_block);
        else
            p.ops[i].first_block = next_block;
    *out = p;
    return 0;
}

void plan_close(struct plan *p)
{
    free(p->ops);
    *p = (struct plan){0};
}

void plan_flow(struct program *program, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < program->n_ops; i++) {
        struct program_op *op = &program->ops[i];
        op->signal = i * DECODER_PHASES;
        op->signal_units = n_blocks;
        op->wait = i ? (i - 1) * DECODER_PHASES : PROGRAM_NONE;
        op->wait_arrivals = i ? n_blocks : 0;
    }
    program->n_counters = program->n_ops * DECODER_PHASES + DECODER_N_COUNTERS;
}

void plan_attention(struct program *program)
{
    const struct program_op *before = NULL;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        struct program_op *op = &program->ops[i];
        if (op->opcode != PROGRAM_ATTEND)
            continue;
        bool same = before && before->kind == op->kind && !((before->flags ^ op->flags) & PROGRAM_GENERAL);
        if (same)
            op->flags |= PROGRAM_PLANNED;
        before = op;
    }
}

void plan_choices(struct program *program)
{
    for (uint32_t i = 1; i + 1 < program->n_ops; i++) {
        struct program_op *op = &program->ops[i], *end = program->ops + program->n_ops;
        if (op->opcode != PROGRAM_ROUTE || op[1].opcode != PROGRAM_EXPERTS ||
            !program_is_gated(op[1].epilogue))
            continue;
        op->flags |= PROGRAM_CHOOSES;
        op[1].flags |= PROGRAM_CHOOSES;
        for (op += 2; op < end && op->opcode != PROGRAM_EXPERTS; op++) /* the summed one */
            continue;
        if (op < end)
            op->flags |= PROGRAM_CHOOSES;
    }
}

/* Returns whether JOIN reads nothing that HEADS writes, and writes nothing that HEADS reads or writes. */
static bool is_beside(const struct program_op *heads, const struct program_op *join)
{
    uint32_t end = heads->out_col[0] + heads->n[1] * (heads->n[2] + heads->n[0]);
    return join->in != heads->out && join->out != heads->in &&
           (join->out != heads->out || join->out_col[2] >= end);
}

void plan_joins(struct program *program)
{
    for (uint32_t i = 1; i < program->n_ops; i++) {
        struct program_op *op = &program->ops[i];
        if (op->opcode == PROGRAM_JOIN && op[-1].opcode == PROGRAM_HEADS && is_beside(&op[-1], op))
            op->flags |= PROGRAM_BESIDE;
    }
}

struct plan_marks plan_mark(struct program *program, const struct decoder_matrix *matrices, uint32_t n_blocks,
                            const struct plan_block *block, bool words)
{
    struct plan_marks marks = {0};
    plan_flow(program, n_blocks);
    plan_attention(program);
    plan_choices(program);
    plan_joins(program);
    marks.panel_bytes = plan_panels(program, matrices);
    if (words)
        marks.words_rows = plan_words(program, matrices, block);
    return marks;
}
