/* decoder_walk.h - the persistent decoder's own walk (kernels/persistent/persistent_loop.h, interpreter.h,
 * dependency.h, weight_ring.h, step_gate.h, and of product.h what cuts the work into stages) on the host,
 * with no byte of a weight and no arithmetic: who fetches what, who takes it, who waits for whom, for a plan
 * of any model on any number of blocks.
 *
 * A block is two fibers, thread 0 of its crew and lane 0 of its producer warp; what others of these do is the
 * same. A fiber runs until it has to wait, then the next does. The words of simt.h are answered in
 * decoder_walk_words.h; fibers are those of tests/simt. The test's part is the border's: it publishes a step
 * once the one before has ended.
 *
 * Checks each time: a stage that the crew takes is what the producer fetched for it; in a step's
 * ops every super-block tile of a matrix is taken once, and every row tile is finished once; a thread past
 * a wait finds all arrivals there that come before it, and no other, and has computed their number as the
 * wait's target; no round passes in which no thread moves. The first error is kept in words. */
#pragma once
#include "decoder_walk_words.h"
#include "cuda/plan.h"
#include "abi/arith.h"
#include "experts/mixture.h"
#include "matmul/product_wide.h"
#include "persistent/persistent_loop.h"

/* A step, as far as the walk depends on it. */
struct walk_step {
    uint32_t n_rows, n_logits;
    bool lone; /* no two rows share a slot */
};

struct walk_fill {
    const void *src;
    uint32_t bytes;
};

/* The parts of a matrix of an op that were taken in this step: of experts and heads, each unit's of its own.
 */
struct walk_taken {
    uint8_t *supers; /* [units x n_tiles x n_supers]: where a stage begins, its length; else 0 */
    uint8_t *tiles;  /* [units x n_tiles]: how often finished */
    uint32_t n_supers, n_tiles, n_stages;
};

#define WALK_MAX_ROWS 9 /* of a step of experts */

struct fleet {
    struct walk_words words; /* first: fibers and memory */
    const struct program *program;
    struct decoder_args args;
    struct decoder_matrix *matrices;
    uint64_t *vectors;
    uint32_t *places;
    uint32_t *counters, *due; /* due: by counter, so many steps so far signal it */
    char *staged;
    float *rows;                   /* [WALK_MAX_ROWS][row_floats]: the choice of experts */
    struct mixture_list *list;     /* and their rows, gathered */
    struct walk_taken (*taken)[3]; /* [n_ops] */
    float *
        *out; /* NULL, or [n_ops] results of the one column: then stages are taken by product_run() itself */
    struct walk_fill fills[WORDS_MAX_BLOCKS][16];
    uint32_t n_filled[WORDS_MAX_BLOCKS], n_taken[WORDS_MAX_BLOCKS];
    uint32_t published[DECODER_LINE], aborted[DECODER_LINE], progress[DECODER_LINE];
};

static struct fleet fleet;

/* Says what is wrong, once, and makes all leave. */
#define walk_expect(condition, ...)                                                                          \
    do                                                                                                       \
        if (!(condition) && !fleet.words.wrong[0]) {                                                         \
            (void)snprintf(fleet.words.wrong, sizeof fleet.words.wrong, __VA_ARGS__);                        \
            fleet.aborted[FLOW_ABORT] = DECODER_ABORTED;                                                     \
        }                                                                                                    \
    while (0)

/* --- what the kernel's code is given --- */

/* product_open() by the four lanes that have a part in it. */
static struct product *walk_open_product(const struct decoder_args *args, const struct program_op *op,
                                         const struct schedule_op *plan, uint32_t which, uint32_t n_columns)
{
    struct product *p = product_at(simt_emu_carve(NULL, args->shared.fold, args->shared.fold_bytes), which);
    uint32_t thread = fleet.words.thread;
    for (uint32_t lane = 0; lane < 4; lane++) {
        fleet.words.thread = thread + lane;
        product_open(p, args, fleet.program, op, plan, NULL, n_columns, false);
    }
    fleet.words.thread = thread;
    p->forms = 0; /* they vote about it */
    for (uint32_t i = 0; i < op->n_weights; i++)
        p->forms |= activation_form(p->matrix[i].type);
    return p;
}

static bool walk_stream(struct stream *s)
{
    struct product *p = walk_open_product(s->args, s->op, s->plan, 1, 0);
    for (uint32_t i = 0; fleet.out && i < p->n_matrices; i++)
        p->matrix[i].type = TILE_NONE; /* nothing is multiplied: walk_finish() */
    if (s->op->opcode != PROGRAM_MATMUL)
        return mixture_stream(p, s->args, fleet.program, s->op, &s->experts, &s->ring, &s->place, &s->guard);
    char *fold = simt_emu_carve(NULL, s->args->shared.fold, s->args->shared.fold_bytes);
    return product_produce(p, fold, &s->ring, &s->place, &s->guard);
}

/* The experts of a row: they differ from row to row, and some come again. */
static uint32_t walk_expert(const struct program_op *op, uint32_t row, uint32_t u)
{
    uint32_t spare = op->route.n_experts - op->route.n_used;
    return u + row % (spare + 1);
}

/* Past a wait at this counter: all of its arrivals so far are there, which is what was waited for. */
static void walk_check_arrivals(const struct walk *w, uint32_t counter)
{
    uint32_t n = fleet.due[counter], value = fleet.counters[counter * DECODER_LINE];
    walk_expect(
        value == n * fleet.words.n_blocks && w->uses[counter] == n,
        "block %u in op %u is past counter %u at %u, having signalled %u times, of %u steps and %u blocks",
        fleet.words.block, w->index, counter, value, w->uses[counter], n, fleet.words.n_blocks);
}

static bool walk_phase(struct walk *w, uint32_t phase)
{
    if (!walk_meet(w, phase))
        return false;
    walk_check_arrivals(w, w->index * DECODER_PHASES + phase);
    return true;
}

/* The unit before the crew, and its expert or head; 0 and 0 of a product of all rows. */
static void walk_unit(const struct walk *w, uint32_t *unit, uint32_t *expert)
{
    *unit = *expert = 0;
    if (w->op->opcode == PROGRAM_MATMUL)
        return;
    const struct mixture *m = mixture_at(w->args, 0);
    *unit = *expert = m->unit;
    if (w->op->opcode == PROGRAM_HEADS)
        return;
    *expert = m->gathers ? fleet.list->units[m->unit].expert
                         : walk_expert(w->op, m->unit / m->n_used, m->unit % m->n_used);
}

/* The stage that the crew has before it, and its label: of this op, and of what was fetched. */
static void walk_check_stage(const struct product *p, const struct walk *w, const struct product_label *label)
{
    uint32_t block = fleet.words.block, n = fleet.n_taken[block]++, which = label->matrix, unit, expert;
    struct walk_taken *t = &fleet.taken[w->index][which];
    uint32_t super_bytes = p->matrix[which].super_bytes;
    walk_unit(w, &unit, &expert);
    uint32_t first = label->first_tile * p->n_supers + label->first_item, of_unit = t->n_tiles * t->n_supers;
    uint64_t from =
        fleet.matrices[w->op->weight[which]].tiles + ((uint64_t)expert * of_unit + first) * super_bytes;
    const struct walk_fill *f = &fleet.fills[block][n % w->ring.n_stages];
    walk_expect(n < fleet.n_filled[block] && (uint64_t)(uintptr_t)f->src == from &&
                    f->bytes == label->n_items * super_bytes && label->type == p->matrix[which].type,
                "block %u takes tile %u of op %u matrix %u at %u: that was not fetched", block,
                label->first_tile, w->index, which, label->first_item);
    if (fleet.words.wrong[0] || first >= of_unit || t->supers[unit * of_unit + first]) {
        walk_expect(false, "op %u matrix %u: tile %u at %u is taken twice, or is none", w->index, which,
                    label->first_tile, label->first_item);
        return;
    }
    t->supers[unit * of_unit + first] = (uint8_t)label->n_items;
    t->n_stages++;
    walk_expect(label->last == (label->first_item + label->n_items == label->n_tiles * p->n_supers),
                "op %u: the run's last stage is another", w->index);
    for (uint32_t i = 0; label->last && i < label->n_tiles; i++)
        t->tiles[unit * t->n_tiles + label->first_tile + i]++;
}

/* The crew's whole part of a product of one column, by a crew of one thread, each super-block's values being
 * 1: it finishes its rows in fleet.out. */
static bool walk_finish(struct walk *w, struct product *p)
{
    const struct crew alone = {1, 1};
    char *fold = walk_fold(w), *work = walk_work(w);
    struct ring_place at = walk_place(w);
    const struct product_place place = {
        work, fold, &w->ring, &at, &w->guard, w->args, w->args->shared.work_bytes};
    p->first_column = p->wide = p->shift = 0;
    p->end_column = 1;
    p->factor[0] = 1;
    for (uint32_t i = 0; i < p->n_matrices; i++)
        p->matrix[i].type = TILE_NONE; /* nothing is multiplied */
    for (uint32_t i = PRODUCT_VALUES_AT; i < w->args->shared.fold_bytes; i += sizeof(float))
        *(float *)(fold + i) = 1;
    bool go = product_run(p, &place, &alone);
    walk_keep_place(w, at);
    return go;
}

/* The crew takes all stages of the description's product that are its block's. */
static bool walk_take_all(struct walk *w, const struct product *p)
{
    char *fold = walk_fold(w);
    struct ring_place place = walk_place(w);
    for (bool more = product_first_group(p) < p->n_groups; more;) {
        if (!ring_take(&w->ring, &place, &w->guard))
            return false;
        struct product_label label = product_label(product_labels(fold), ring_passed(&place));
        walk_check_stage(p, w, &label);
        ring_give(&w->ring, &place);
        more = !label.ends;
    }
    walk_keep_place(w, place);
    return true;
}

static bool walk_product(struct walk *w)
{
    struct product *p = walk_open_product(w->args, w->op, w->plan, 0, w->n_rows);
    if (fleet.out) {
        p->out = (uint64_t)(uintptr_t)fleet.out[w->index];
        return walk_finish(w, p);
    }
    if (product_is_wide(w->n_rows, p->k, p->forms, w->args->shared.work_bytes) && !walk_phase(w, 1))
        return false;
    p->first_column = 0;
    p->end_column = w->n_rows;
    return walk_take_all(w, p);
}

/* Of heads the results stand one behind the other, and none keeps a value. */
static void walk_open_heads(struct walk *w, struct product *p)
{
    mixture_open_heads(mixture_at(w->args, 0), p, w->args, w->op, w->n_rows);
    if (fleet.out)
        p->out = (uint64_t)(uintptr_t)fleet.out[w->index];
}

/* What the block's warps would have chosen for themselves. */
static void walk_choose(const struct walk *w)
{
    uint32_t n_used = w->op->route.n_used;
    float *choice = mixture_own(w->args);
    for (uint32_t row = 0; row < w->n_rows; row++)
        for (uint32_t u = 0; u < n_used; u++)
            choice[row * 2 * n_used + u] = (float)walk_expert(w->op, row, u);
}

/* An op of several products: unit after unit. */
static bool walk_units(struct walk *w)
{
    struct product *p = walk_open_product(w->args, w->op, w->plan, 0, w->n_rows);
    struct mixture *m = mixture_at(w->args, 0);
    struct decoder_mixtures *x = &fleet.args.buffers.mixtures;
    if (w->op->opcode == PROGRAM_HEADS)
        walk_open_heads(w, p);
    else
        mixture_open(m, p, w->args, fleet.program, w->op, w->n_rows);
    if (fleet.out) /* all blocks are in this op */
        x->inner = x->parts = (uint64_t)(uintptr_t)fleet.out[w->index];
    if (mixture_is_chosen(w->op) && m->own)
        walk_choose(w);
    mixture_tell(w);
    p->first_column = 0;
    p->end_column = 1;
    if (m->gathers && !walk_phase(w, 1))
        return false;
    if (!mixture_go(w, p))
        return false;
    while (mixture_goes_on(w)) {
        if (!(fleet.out ? walk_finish(w, p) : walk_take_all(w, p)))
            return false;
        if (!mixture_go(w, p))
            return false;
    }
    return !m->summed || walk_phase(w, 2);
}

/* True if the op has the phase, besides its end. */
static bool walk_has_phase(const struct program_op *op, const struct walk_step *s, uint32_t phase)
{
    bool gathers = mixture_gathers(s->n_rows, op->route.n_used, op->route.n_experts);
    if (op->opcode == PROGRAM_EXPERTS)
        return phase == 1 ? gathers : phase == 2 && mixture_is_summed(op);
    if (op->opcode == PROGRAM_ATTEND)
        return phase == 1 && !s->lone;
    return phase <= 2 && (op->opcode == PROGRAM_ROUTE ? gathers : op->opcode == PROGRAM_SAMPLE);
}

static bool walk_op(struct walk *w)
{
    const struct walk_step as = {.n_rows = w->n_rows, .lone = w->seen->lone_rows};
    bool own = mixture_chooses(w->op, w->n_rows);
    if ((own && w->op->opcode == PROGRAM_ROUTE) || w->op->flags & PROGRAM_BESIDE)
        return true;
    uint32_t earlier = own && mixture_is_chosen(w->op) ? DECODER_PHASES : 0; /* ROUTE is not waited for */
    w->before -= earlier;
    if (!walk_wait(w))
        return false;
    walk_expect(w->op->wait == w->before + earlier && w->op->signal == w->index * DECODER_PHASES,
                "op %u waits for counter %u, the plan says %u", w->index, w->before, w->op->wait);
    if (w->before != WALK_NOTHING) {
        walk_check_arrivals(w, w->before);
        walk_expect(fleet.due[w->before] * w->op->wait_arrivals == fleet.counters[w->before * DECODER_LINE],
                    "op %u: the plan's arrivals are %u a step", w->index, w->op->wait_arrivals);
    }
    if (w->op->opcode == PROGRAM_MATMUL)
        return walk_product(w);
    if (w->op->opcode == PROGRAM_EXPERTS || w->op->opcode == PROGRAM_HEADS)
        return walk_units(w);
    for (uint32_t phase = 1; phase < DECODER_PHASES; phase++)
        if (walk_has_phase(w->op, &as, phase) && !walk_phase(w, phase))
            return false;
    return true;
}

/* A copy's beginning, which is its end, too. */
static void words_copied(const void *src, uint32_t bytes)
{
    uint32_t block = fleet.words.block, n = fleet.n_filled[block]++;
    fleet.fills[block][n % fleet.args.shared.n_stages] = (struct walk_fill){src, bytes};
}

static void words_fiber(void)
{
    if (fleet.words.thread)
        resident_producer(&fleet.args, walk_stream);
    else
        resident_crew(&fleet.args, walk_op);
}

/* --- a fleet of blocks --- */

static void *walk_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        abort(); /* a test: nothing sensible is left to do */
    return p;
}

static void fleet_open_taken(const struct plan *plan)
{
    fleet.taken = walk_alloc(plan->n_ops, sizeof *fleet.taken);
    for (uint32_t i = 0; i < plan->n_ops; i++)
        for (uint32_t j = 0; plan->ops[i].n_groups && j < fleet.program->ops[i].n_weights; j++) {
            const struct program_op *op = &fleet.program->ops[i];
            const struct decoder_matrix *m = &fleet.matrices[op->weight[j]];
            bool experts = op->opcode == PROGRAM_EXPERTS, heads = op->opcode == PROGRAM_HEADS;
            uint32_t n_units = experts ? WALK_MAX_ROWS * op->route.n_used /* as many or fewer if gathered */
                               : heads ? op->n[1]
                                       : 1;
            uint32_t n_tiles = experts || heads ? op->n[j] / TILE_ROWS : m->n_tiles;
            fleet.taken[i][j] =
                (struct walk_taken){walk_alloc((size_t)n_units * n_tiles, m->n_supers),
                                    walk_alloc((size_t)n_units, n_tiles), m->n_supers, n_tiles, 0};
        }
}

/* `program` has its flow (plan_flow()); the matrices' tiles are made up. All of it stays the caller's. */
static void fleet_open(const struct program *program, const struct plan *plan,
                       const struct decoder_matrix *matrices, uint32_t n_matrices, uint32_t n_blocks)
{
    fleet.program = program;
    fleet.matrices = walk_alloc(n_matrices, sizeof *matrices);
    fleet.vectors = walk_alloc(n_matrices, sizeof *fleet.vectors);
    for (uint32_t i = 0; i < n_matrices; i++) {
        fleet.matrices[i] = matrices[i];
        fleet.matrices[i].tiles = (uint64_t)(i + 1) << 40;
    }
    fleet.counters = walk_alloc((size_t)plan->n_counters * DECODER_LINE, 4);
    fleet.due = walk_alloc(plan->n_counters, 4);
    fleet.places = walk_alloc((size_t)n_blocks * DECODER_LINE, 4);
    uint32_t stride = (DECODER_STEP_AT + sizeof(struct step) + 127) / 128 * 128;
    fleet.staged = walk_alloc(DECODER_RING, stride);
    fleet.rows = walk_alloc((size_t)WALK_MAX_ROWS, (program->row_floats + 1) * sizeof(float));
    fleet.list = walk_alloc(1, sizeof *fleet.list);
    fleet.args = (struct decoder_args){.program = (uint64_t)(uintptr_t)program,
                                       .plan = (uint64_t)(uintptr_t)plan->ops,
                                       .matrices = (uint64_t)(uintptr_t)fleet.matrices,
                                       .vectors = (uint64_t)(uintptr_t)fleet.vectors,
                                       .counters = (uint64_t)(uintptr_t)fleet.counters,
                                       .places = (uint64_t)(uintptr_t)fleet.places,
                                       .published = (uint64_t)(uintptr_t)fleet.published,
                                       .abort_word = (uint64_t)(uintptr_t)fleet.aborted,
                                       .progress = (uint64_t)(uintptr_t)fleet.progress,
                                       .staged = (uint64_t)(uintptr_t)fleet.staged,
                                       .staged_stride = stride,
                                       .shared = plan->shared,
                                       .n_counters = plan->n_counters,
                                       .buffers.rows = (uint64_t)(uintptr_t)fleet.rows,
                                       .buffers.row_floats = program->row_floats,
                                       .buffers.mixtures.list = (uint64_t)(uintptr_t)fleet.list,
                                       .n_crew = SIMT_LANES};
    fleet.published[0] = fleet.aborted[FLOW_ABORT] = 0;
    fleet_open_taken(plan);
    words_open(&fleet.words, n_blocks, plan->shared.total);
    for (uint32_t b = 0; b < n_blocks; b++) {
        fleet.n_filled[b] = fleet.n_taken[b] = 0;
        words_be(&fleet.words, b, 0);
        resident_open(&fleet.args);
    }
}

static void fleet_close(void)
{
    for (uint32_t i = 0; i < fleet.program->n_ops; i++)
        for (uint32_t j = 0; j < 3; j++) {
            free(fleet.taken[i][j].supers);
            free(fleet.taken[i][j].tiles);
        }
    free(fleet.taken);
    free(fleet.matrices);
    free(fleet.vectors);
    free(fleet.counters);
    free(fleet.due);
    free(fleet.places);
    free(fleet.staged);
    free(fleet.rows);
    free(fleet.list);
}

/* True if a step runs an op. */
static bool walk_runs(const struct walk_step *s, const struct program_op *op)
{
    return s->n_rows && (!(op->flags & PROGRAM_HEAD) || s->n_logits);
}

/* The list of an op's units, were its rows gathered. */
static void fleet_gather(const struct program_op *op, uint32_t n_rows)
{
    struct mixture_list *list = fleet.list;
    *list = (struct mixture_list){0};
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t u = 0; u < op->route.n_used; u++)
            list->count[walk_expert(op, row, u)]++;
    for (uint32_t e = 0; e < op->route.n_experts; e++) {
        if (!list->count[e])
            continue;
        list->units[list->n_units++] = (struct mixture_unit){e, list->n_places, list->count[e], 0};
        list->n_places += (list->count[e] + 7) / 8 * 8;
    }
}

/* What ROUTE would have written: the same for all mixtures. */
static void fleet_choose(uint32_t n_rows)
{
    for (uint32_t i = 0; i < fleet.program->n_ops; i++) {
        const struct program_op *op = &fleet.program->ops[i];
        float *choice = fleet.rows + fleet.program->buffers[PROGRAM_CHOICE].offset + op->gate_col;
        for (uint32_t row = 0; op->opcode == PROGRAM_EXPERTS && row < n_rows; row++)
            for (uint32_t u = 0; u < op->route.n_used; u++)
                choice[row * fleet.program->row_floats + u] = (float)walk_expert(op, row, u);
        if (op->opcode == PROGRAM_EXPERTS)
            fleet_gather(op, n_rows);
    }
}

/* Step `number` lies there for all, and what it will signal is known. */
static void fleet_publish(const struct walk_step *s, uint32_t number)
{
    char *staged = fleet.staged + number % DECODER_RING * (size_t)fleet.args.staged_stride;
    struct decoder_step *seen = (struct decoder_step *)staged;
    struct step *step = (struct step *)(staged + DECODER_STEP_AT);
    seen->lone_rows = s->lone;
    step->id = number + 1;
    step->n_rows = s->n_rows;
    step->n_logits = s->n_logits;
    fleet_choose(s->n_rows);
    for (uint32_t i = 0; i < fleet.program->n_ops; i++) {
        const struct program_op *op = &fleet.program->ops[i];
        bool runs = walk_runs(s, op);
        uint32_t forms = 0, rows = op->flags & PROGRAM_HEAD ? s->n_logits : s->n_rows;
        uint32_t *due = &fleet.due[i * DECODER_PHASES];
        bool by_rows = op->opcode == PROGRAM_MATMUL || op->opcode == PROGRAM_HEADS;
        for (uint32_t j = 0; runs && by_rows && j < op->n_weights; j++)
            forms |= activation_form(fleet.matrices[op->weight[j]].type);
        bool wide = forms && product_is_wide(rows, op->k, forms, fleet.args.shared.work_bytes);
        due[0] += runs || i + 1 == fleet.program->n_ops;
        for (uint32_t phase = 1; phase < DECODER_PHASES; phase++)
            due[phase] += runs && (walk_has_phase(op, s, phase) || (wide && phase == 1));
    }
    fleet.published[0] = number + 1;
}

/* All that n_units of an op have was taken and finished, once; it is forgotten. */
static void walk_check_taken(struct walk_taken *t, uint32_t n_units, uint32_t op)
{
    uint32_t total = t->n_supers * t->n_tiles * n_units, at = 0, n_stages = 0;
    for (uint32_t n = 1; at < total && n; at += n, n_stages++) {
        n = t->supers[at];
        t->supers[at] = 0;
        walk_expect(n, "op %u: super-block %u of %u is never taken", op, at, total);
    }
    walk_expect(n_stages == t->n_stages && at == total, "op %u: %u stages, %u are one behind the other", op,
                t->n_stages, n_stages);
    t->n_stages = 0;
    for (uint32_t i = 0; i < t->n_tiles * n_units; i++)
        walk_expect(t->tiles[i] == 1, "op %u: tile %u is finished %u times", op, i, t->tiles[i]);
    memset(t->tiles, 0, (size_t)t->n_tiles * n_units);
}

static void fleet_check_step(const struct walk_step *s)
{
    for (uint32_t i = 0; i < fleet.program->n_ops; i++) {
        const struct program_op *op = &fleet.program->ops[i];
        uint32_t n_used = op->route.n_used, n_units = op->opcode == PROGRAM_HEADS ? op->n[1] : 1;
        if (op->opcode == PROGRAM_EXPERTS)
            n_units = mixture_gathers(s->n_rows, n_used, op->route.n_experts) ? fleet.list->n_units
                                                                              : s->n_rows * n_used;
        for (uint32_t j = 0; j < 3; j++)
            if (fleet.taken[i][j].supers)
                walk_check_taken(&fleet.taken[i][j], walk_runs(s, op) ? n_units : 0, i);
    }
}

/* Goes on until the word has the value, or until no block moves. */
static void fleet_run_until(const uint32_t *word, uint32_t value)
{
    while (*word != value && !fleet.words.wrong[0])
        if (!words_round(&fleet.words)) {
            walk_expect(false, "no thread moves: %u blocks, %u stages, a counter at %u of %u",
                        fleet.words.n_blocks, fleet.args.shared.n_stages, *word, value);
            break;
        }
}

static const char *fleet_leave(void)
{
    if (!fleet.aborted[FLOW_ABORT])
        fleet.aborted[FLOW_ABORT] = DECODER_LEAVING;
    for (uint32_t idle = 0; idle < 2 * SIMT_LOOK_SPINS; idle++) /* the word is looked at now and then */
        if (words_round(&fleet.words))
            idle = 0;
    walk_expect(fleet.words.n_ended == 2 * fleet.words.n_blocks, "%u of %u fibers leave", fleet.words.n_ended,
                2 * fleet.words.n_blocks);
    return fleet.words.wrong;
}

/* Runs the steps, and all leave. Returns the fault in words; "": none. */
static const char *fleet_run(const struct walk_step *steps, uint32_t n_steps)
{
    uint32_t last = (fleet.program->n_ops - 1) * DECODER_PHASES;
    for (uint32_t i = 0; i < n_steps && !fleet.words.wrong[0]; i++) {
        fleet_publish(&steps[i], i);
        fleet_run_until(&fleet.counters[last * DECODER_LINE], (i + 1) * fleet.words.n_blocks);
        fleet_check_step(&steps[i]);
    }
    return fleet_leave();
}

/* Every row has the sum of its super-blocks, added once. */
static void walk_check_out(uint32_t index)
{
    const struct program_op *op = &fleet.program->ops[index];
    uint32_t n_used = op->opcode == PROGRAM_EXPERTS ? op->route.n_used : 0; /* of the only row */
    for (uint32_t j = 0, at = 0; j < (op->epilogue == PROGRAM_SWIGLU ? 1 : op->n_weights); j++) {
        const struct decoder_matrix *m = &fleet.matrices[op->weight[j]];
        float sum = (float)m->n_supers, want = op->epilogue == PROGRAM_SWIGLU ? arith_silu(sum) * sum : sum;
        for (uint32_t i = 0; i < (n_used ? n_used * op->n[j] : m->n); i++, at++)
            walk_expect(fleet.out[index][at] == want, "op %u matrix %u: row %u is %g, not %g", index, j, i,
                        (double)fleet.out[index][at], (double)want);
        walk_expect(j + 1 < op->n_weights || fleet.out[index][at] == 0, "op %u: a row too many", index);
    }
}

/* A step of one row with logits, by product_run(). Returns the fault in words; "": none. */
static const char *fleet_finish(void)
{
    static const struct walk_step step = {1, 1, true};
    fleet.out = walk_alloc(fleet.program->n_ops, sizeof *fleet.out);
    for (uint32_t i = 0; i < fleet.program->n_ops; i++) {
        const struct program_op *op = &fleet.program->ops[i];
        size_t n = TILE_ROWS; /* more than belongs there */
        for (uint32_t j = 0; fleet.taken[i][0].supers && j < op->n_weights; j++)
            n += fleet.matrices[op->weight[j]].n;
        fleet.out[i] = walk_alloc(n, sizeof **fleet.out);
    }
    fleet_publish(&step, 0);
    fleet_run_until(&fleet.counters[(fleet.program->n_ops - 1) * DECODER_PHASES * DECODER_LINE],
                    fleet.words.n_blocks);
    for (uint32_t i = 0; i < fleet.program->n_ops; i++) {
        if (fleet.taken[i][0].supers)
            walk_check_out(i);
        free(fleet.out[i]);
    }
    free(fleet.out);
    fleet.out = NULL;
    return fleet_leave();
}
